/* Fork: one full snapshot, and children that go on from it, each with an id, a token and random numbers of
 * its own. The snapshot is nobody's but the fork's and goes with it. */
#include <stdio.h>

#include "base/fault.h"
#include "base/log.h"
#include "control/present.h"
#include "control/snapshot_int.h"
#include "control/validate.h"

struct hf_fork {
    struct hf_control *c;
    struct hf_sandbox *sb;
    struct hf_fork_ask ask;
    struct hf_snapshot_row row;
    struct hf_err err; /* of the whole */
    json_t *result;    /* array of ask.count */
    char (*ids)[HF_ROW_ID];
    int64_t started, ended;
    bool abandoned;
    hf_fork_cb cb;
    void *arg;
};

struct child {
    struct hf_fork *f;
    size_t at;
};

static void start_children(struct hf_fork *f);

static void on_removed(void *arg, const struct hf_err *err)
{
    struct hf_fork *f = arg;
    struct hf_control *c = f->c;
    (void)err; /* logged; the next start tries again */
    hf_killpoint("fork.snapshot-removed");
    f->cb(f->arg, f->err.r ? NULL : f->result, f->err.r ? &f->err : NULL);
    c->busy--;
    json_decref(f->result);
    hf_snapshot_row_done(&f->row);
    hf_sandbox_unref(f->sb);
    free(f->ids);
    free(f);
}

static void child_over(struct child *k, json_t *v)
{
    struct hf_fork *f = k->f;
    (void)json_array_set_new(f->result, k->at, v);
    f->ended++;
    free(k);
    hf_killpoint("fork.child");
    if (f->ended == f->ask.count)
        hf_snapshot_delete(f->c, f->row.tenant, f->row.id, on_removed, f);
    else
        start_children(f);
}

static json_t *error_of(const struct hf_err *err)
{
    int status = hf_err_http_status(err);
    json_t *v = json_pack("{s:{s:i, s:s}}", "error", "code", status, "message", err->msg);
    return v ? v : json_pack("{s:{s:i, s:s}}", "error", "code", status, "message", "the child can't be made");
}

static void on_child(void *arg, struct hf_sandbox *sb, const struct hf_err *err)
{
    struct child *k = arg;
    struct hf_fork *f = k->f;
    if (!sb) {
        child_over(k, error_of(err));
        return;
    }
    memcpy(f->ids[k->at], sb->row.id, HF_ROW_ID);
    json_t *v = json_pack("{s:o}", "sandbox", hf_present_handle(sb));
    if (f->abandoned)
        hf_sandbox_kill(sb, HF_CAUSE_CLIENT_GONE, "the client left before it was answered", NULL, NULL);
    child_over(k, v);
}

/* The parent's, without what holdfast itself wrote into it: a child belongs to no session. */
static json_t *child_metadata(const struct hf_fork *f, const json_t *meta)
{
    json_t *v = json_object();
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(meta, "metadata"), key, value)
    {
        if (strncmp(key, HF_RESERVED_METADATA, sizeof(HF_RESERVED_METADATA) - 1) != 0)
            (void)json_object_set(v, key, value);
    }
    (void)json_object_set_new(v, HF_SNAPSHOT_FORKED_FROM, json_string(f->sb->row.id));
    return v;
}

static void start_child(struct hf_fork *f, size_t at)
{
    struct child *k = hf_new(struct child);
    struct hf_snapshot_fill own = {0};
    struct hf_err err = {0};
    struct hf_create_req req = {.tenant = f->row.tenant, .timeout_s = f->ask.timeout_s};
    k->f = f;
    k->at = at;
    int r = f->abandoned ? hf_err_http(&err, -ECANCELED, 499, "the client left before it was answered")
                         : hf_control_admit(f->c, f->row.tenant, &err);
    if (r == 0)
        r = hf_snapshot_fill(f->c, &f->row, &req, &own, &err);
    if (r < 0) {
        child_over(k, error_of(&err));
    } else {
        json_auto_t *metadata = child_metadata(f, own.meta);
        req.metadata = metadata;
        req.lifecycle = json_object_get(own.meta, "lifecycle");
        req.alias = json_string_value(json_object_get(own.meta, "alias"));
        hf_sandbox_create(f->c, &req, on_child, k, NULL);
    }
    hf_snapshot_fill_done(&own);
}

static void start_children(struct hf_fork *f)
{
    /* The last child that can't even begin ends the fork, so f is looked at before each. */
    int64_t n = f->ask.count;
    while (f->started < n && f->started - f->ended < HF_FORK_AT_ONCE) {
        bool last = f->started + 1 == n;
        start_child(f, (size_t)f->started++);
        if (last)
            return;
    }
}

static void on_taken(void *arg, const struct hf_snapshot_row *s, const struct hf_err *err)
{
    struct hf_fork *f = arg;
    if (err)
        f->err = *err;
    else if (hf_get_snapshot(f->c->meta, s->id, &f->row) != 1)
        (void)hf_err_set(&f->err, -EIO, "the database can't be read");
    if (f->err.r) {
        on_removed(f, NULL);
        return;
    }
    hf_killpoint("fork.snapshot");
    start_children(f);
}

/* A volume that one box at a time can have, mounted for writing. */
static int check_volumes(const struct hf_sandbox *sb, struct hf_err *err)
{
    json_auto_t *all = json_loads(sb->row.mounts, 0, NULL);
    const char *name = hf_mounts_exclusive(all);
    if (!name)
        return 0;
    return hf_err_http(err, -EBUSY, 409,
                       "Sandbox %s has the volume \"%.64s\", which one sandbox at a time can have, so its "
                       "children can't go on with it; \"volumes\":\"none\" makes children that boot from "
                       "its disk without volumes",
                       sb->row.id, name);
}

struct hf_fork *hf_fork_begin(struct hf_sandbox *sb, const struct hf_fork_ask *ask, hf_fork_cb cb, void *arg,
                              struct hf_err *err)
{
    if (sb->state != HF_RUNNING) {
        (void)hf_err_http(err, -EBUSY, 409, "Sandbox %s is %s: only a running one can be forked", sb->row.id,
                          hf_state_name(sb->state));
        return NULL;
    }
    if (ask->memory && check_volumes(sb, err) < 0)
        return NULL;
    struct hf_fork *f = hf_new(struct hf_fork);
    f->c = sb->c;
    f->sb = hf_sandbox_ref(sb);
    f->ask = *ask;
    f->cb = cb;
    f->arg = arg;
    f->result = json_array();
    for (int64_t i = 0; i < ask->count; i++)
        (void)json_array_append_new(f->result, json_null());
    f->ids = hf_xcalloc((size_t)ask->count, sizeof(*f->ids));
    f->c->busy++;
    const struct hf_snapshot_ask what = {.purpose = "fork", .memory = ask->memory};
    hf_snapshot_take(sb, &what, on_taken, f);
    return f;
}

void hf_fork_abandon(struct hf_fork *f)
{
    f->abandoned = true;
    for (int64_t i = 0; i < f->ask.count; i++) {
        struct hf_sandbox *sb = *f->ids[i] ? hf_sandbox_find(f->c, f->sb->row.tenant, f->ids[i]) : NULL;
        if (sb)
            hf_sandbox_kill(sb, HF_CAUSE_CLIENT_GONE, "the client left before it was answered", NULL, NULL);
    }
}
