/* Snapshots: names, pins, deletion, and what a start from one needs. */
#include "control/snapshot_int.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/id.h"
#include "base/log.h"
#include "control/net.h"
#include "control/seal.h"
#include "control/validate.h"

/* ---- small things ---- */

struct work {
    uv_work_t w;
    void (*work)(void *arg), (*after)(void *arg);
    void *arg;
};

static void run_work(uv_work_t *w)
{
    struct work *k = w->data;
    k->work(k->arg);
}

static void on_worked(uv_work_t *w, int status)
{
    struct work *k = w->data;
    void (*after)(void *) = k->after;
    void *arg = k->arg;
    (void)status;
    free(k);
    after(arg);
}

void hf_snapshots_work(struct hf_control *c, void (*work)(void *arg), void (*after)(void *arg), void *arg)
{
    struct work *k = hf_new(struct work);
    *k = (struct work){.work = work, .after = after, .arg = arg};
    k->w.data = k;
    if (uv_queue_work(c->loop, &k->w, run_work, on_worked) < 0)
        abort(); /* fails for a NULL callback only */
}

void hf_snapshot_id_new(char id[HF_ROW_ID])
{
    memset(id, 0, HF_ROW_ID);
    id[0] = 's';
    hf_random_id(id + 1, 20);
}

bool hf_snapshot_is_listed(const struct hf_snapshot_row *row)
{
    return strcmp(row->state, "ready") == 0 && strcmp(row->purpose, "pause") != 0 &&
           strcmp(row->purpose, "fork") != 0;
}

int hf_snapshot_name(const char *tenant, const char *text, char ret[HF_ROW_NAME], struct hf_err *err)
{
    char name[HF_ROW_NAME], tag[HF_ROW_NAME];
    int r = hf_validate_template_ref(text, name, tag, err);
    if (r < 0)
        return r;
    size_t ns = strlen(tenant);
    const char *bare = strncmp(name, tenant, ns) == 0 && name[ns] == '/' ? name + ns + 1 : name;
    if (!*bare || strchr(bare, '/'))
        return hf_err_http(err, -EINVAL, 400, "validation error: a snapshot's name is name or name:tag");
    if (snprintf(ret, HF_ROW_NAME, "%s:%s", bare, *tag ? tag : "default") >= (int)HF_ROW_NAME)
        return hf_err_http(err, -EINVAL, 400, "validation error: the snapshot's name is too long");
    return 0;
}

int hf_snapshot_resolve(struct hf_control *c, const char *tenant, const char *ref,
                        struct hf_snapshot_row *ret, struct hf_err *err)
{
    char name[HF_ROW_NAME], tag[HF_ROW_NAME], full[HF_ROW_NAME];
    int r = hf_validate_template_ref(ref, name, tag, err);
    if (r < 0)
        return r;
    struct hf_snapshot_row row = {0};
    /* "<id>:default" is how E2B's clients write an unnamed one. */
    r = !*tag || strcmp(tag, "default") == 0 ? hf_get_snapshot(c->meta, name, &row) : 0;
    if (r == 0 && hf_snapshot_name(tenant, ref, full, NULL) == 0)
        r = hf_get_snapshot_by_name(c->meta, tenant, full, &row);
    if (r < 0)
        return hf_err_set(err, -EIO, "the database can't be read");
    if (r == 1 && strcmp(row.tenant, tenant) == 0 && hf_snapshot_is_listed(&row)) {
        *ret = row;
        return 1;
    }
    hf_snapshot_row_done(&row);
    return 0;
}

/* ---- pins ---- */

struct search {
    const char *template_id;
    struct hf_snapshot_row *ret;
    bool found;
};

static void match_template(void *arg, const struct hf_snapshot_row *s)
{
    struct search *q = arg;
    if (q->found || strcmp(s->template_id, q->template_id) != 0)
        return;
    q->found = true;
    *q->ret = *s;
    q->ret->meta = NULL; /* the list's */
    q->ret->env_sealed = NULL;
    q->ret->env_sealed_n = 0;
}

int hf_snapshot_of_template(struct hf_control *c, const char *template_id, struct hf_snapshot_row *ret)
{
    struct search q = {template_id, ret, false};
    if (hf_each_snapshot(c->meta, NULL, NULL, NULL, 0, "", INT32_MAX, match_template, &q) < 0)
        return -EIO;
    return q.found;
}

bool hf_snapshot_pinned(struct hf_control *c, const struct hf_snapshot_row *row, struct hf_err *err)
{
    hf_list_foreach(it, &c->list)
    {
        const struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (hf_state_ended(sb->state) || sb->state == HF_KILLING)
            continue;
        if (strcmp(sb->row.pause_id, row->id) == 0) {
            (void)hf_err_http(err, -EBUSY, 409,
                              "snapshot %s holds the paused sandbox %s: resume it or end it first", row->id,
                              sb->row.id);
            return true;
        }
        if (sb->state == HF_CREATING && strcmp(sb->row.snapshot_id, row->id) == 0) {
            (void)hf_err_http(err, -EBUSY, 409, "snapshot %s is in use: sandbox %s is being made from it",
                              row->id, sb->row.id);
            return true;
        }
    }
    return false;
}

/* ---- deletion ---- */

struct erase {
    struct hf_control *c;
    char id[HF_ROW_ID];
    char *data_dir;
    struct hf_err err;
    hf_done_cb cb;
    void *arg;
};

static void erase_over(struct erase *e)
{
    if (e->err.r)
        hf_log_warn("a snapshot's files stay until the next start", "snapshot=%s error=%s", e->id,
                    hf_log_quote(e->err.msg));
    e->c->busy--;
    if (e->cb)
        e->cb(e->arg, e->err.r ? &e->err : NULL);
    free(e->data_dir);
    free(e);
}

static void on_row_gone(void *arg, int r, const struct hf_err *err)
{
    struct erase *e = arg;
    if (r < 0)
        e->err = *err;
    erase_over(e);
}

static void erase_work(void *arg)
{
    struct erase *e = arg;
    int r = hf_snapshot_remove(e->data_dir, e->id, &e->err);
    if (r < 0 && !e->err.r)
        (void)hf_err_set(&e->err, r, "the snapshot's files can't be removed: %s", strerror(-r));
}

static void on_erased(void *arg)
{
    struct erase *e = arg;
    if (e->err.r) {
        erase_over(e);
        return;
    }
    hf_killpoint("snapshot.files-removed");
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_del_snapshot(b, e->id);
    hf_meta_commit(e->c->meta, b, HF_META_LAZY, on_row_gone, e);
}

static void erase_files(void *arg)
{
    struct erase *e = arg;
    hf_snapshots_work(e->c, erase_work, on_erased, e);
}

static struct erase *erase_new(struct hf_control *c, const char *id, hf_done_cb cb, void *arg)
{
    struct erase *e = hf_new(struct erase);
    *e = (struct erase){.c = c, .data_dir = hf_xstrdup(c->cfg->data_dir), .cb = cb, .arg = arg};
    (void)snprintf(e->id, sizeof(e->id), "%s", id);
    c->busy++;
    return e;
}

static void erase_start(struct erase *e)
{
    if (!hf_snapshot_unseal_first(e->c, e->id, erase_files, e))
        erase_files(e);
}

void hf_snapshot_erase(struct hf_control *c, const char *id, hf_done_cb cb, void *arg)
{
    erase_start(erase_new(c, id, cb, arg));
}

static void on_deleting(void *arg, int r, const struct hf_err *err)
{
    struct erase *e = arg;
    if (r < 0) {
        e->err = *err;
        erase_over(e);
        return;
    }
    hf_killpoint("snapshot.deleting-row");
    erase_start(e);
}

struct refusal {
    struct hf_control *c;
    struct hf_err err;
    hf_done_cb cb;
    void *arg;
};

static void no_work(void *arg)
{
    (void)arg;
}

static void on_refused(void *arg)
{
    struct refusal *f = arg;
    f->cb(f->arg, f->err.r ? &f->err : NULL);
    free(f);
}

/* An answer that needs nothing done; later, as every callback. */
static void tell_later(struct hf_control *c, const struct hf_err *err, hf_done_cb cb, void *arg)
{
    if (!cb)
        return;
    struct refusal *f = hf_new(struct refusal);
    *f = (struct refusal){.c = c, .err = *err, .cb = cb, .arg = arg};
    hf_snapshots_work(c, no_work, on_refused, f);
}

void hf_snapshot_delete(struct hf_control *c, const char *tenant, const char *id, hf_done_cb cb, void *arg)
{
    hf_auto_snapshot_row struct hf_snapshot_row row = {0};
    struct hf_err err = {0};
    int r = hf_get_snapshot(c->meta, id, &row);
    if (r < 0)
        (void)hf_err_set(&err, -EIO, "the database can't be read");
    else if (r == 1 && strcmp(row.tenant, tenant) == 0 && strcmp(row.state, "creating") == 0)
        (void)hf_err_http(&err, -EBUSY, 409, "snapshot %s is still being taken", id);
    if (r == 0 || err.r || strcmp(row.tenant, tenant) != 0 || hf_snapshot_pinned(c, &row, &err)) {
        tell_later(c, &err, cb, arg);
        return;
    }
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_set_snapshot_deleting(b, id);
    hf_meta_commit(c->meta, b, 0, on_deleting, erase_new(c, id, cb, arg));
}

/* ---- starts ---- */

struct check {
    struct hf_control *c;
    char id[HF_ROW_ID];
    char *data_dir;
    struct hf_err err;
    hf_done_cb cb;
    void *arg;
};

static void check_work(void *arg)
{
    struct check *k = arg;
    int r = hf_snapshot_open(k->data_dir, k->id, NULL, &k->err);
    if (r < 0 && !k->err.r)
        (void)hf_err_set(&k->err, r, "snapshot %s can't be read: %s", k->id, strerror(-r));
    /* What is wrong with it is the server's, except that it is not there. */
    if (r < 0 && !k->err.status)
        k->err.status = r == -ENOENT ? 404 : 500;
}

static void on_checked(void *arg)
{
    struct check *k = arg;
    k->c->busy--;
    k->cb(k->arg, k->err.r ? &k->err : NULL);
    free(k->data_dir);
    free(k);
}

void hf_snapshot_check(struct hf_control *c, const char *id, hf_done_cb cb, void *arg)
{
    struct check *k = hf_new(struct check);
    *k = (struct check){.c = c, .data_dir = hf_xstrdup(c->cfg->data_dir), .cb = cb, .arg = arg};
    (void)snprintf(k->id, sizeof(k->id), "%s", id);
    c->busy++;
    hf_snapshots_work(c, check_work, on_checked, k);
}

void hf_snapshot_fill_done(struct hf_snapshot_fill *f)
{
    hf_wipe_json(f->env);
    json_decref(f->env);
    json_decref(f->meta);
    free(f->dir);
    *f = (struct hf_snapshot_fill){0};
}

/* The environment is sealed under the id of the sandbox that had it (sandbox.c). */
static int open_env(struct hf_control *c, const struct hf_snapshot_row *row, json_t **ret, struct hf_err *err)
{
    struct hf_sealer *sealer = row->env_sealed_n && c->net ? hf_cnet_sealer(c->net, err) : NULL;
    if (!row->env_sealed_n)
        return 0;
    char label[HF_ROW_ID + 32], *text = NULL;
    size_t n = 0;
    (void)snprintf(label, sizeof(label), "env/%s", row->sandbox_id);
    int r = sealer ? hf_unseal(sealer, label, row->env_sealed, row->env_sealed_n, &text, &n) : -ENOTSUP;
    if (r < 0)
        return hf_err_set(err, r, "the environment that snapshot %s was taken with can't be opened: %s",
                          row->id, strerror(-r));
    *ret = json_loadb(text, n, 0, NULL);
    explicit_bzero(text, n);
    free(text);
    return 0;
}

static int64_t number(const json_t *meta, const char *key)
{
    return json_integer_value(json_object_get(meta, key));
}

/* The volumes of a box whose processes go on: the same ones, at the same places. */
static int fill_mounts(struct hf_control *c, struct hf_create_req *req, const json_t *meta,
                       struct hf_err *err)
{
    size_t i;
    json_t *m;
    json_array_foreach(json_object_get(meta, "mounts"), i, m)
    {
        const char *name = json_string_value(json_object_get(m, "name"));
        const char *path = json_string_value(json_object_get(m, "path"));
        if (!name || !path || req->n_mounts == HF_CONTROL_MOUNTS_MAX)
            return hf_err_set(err, -EINVAL, "the volumes of the saved sandbox can't be mounted again");
        hf_auto_free char *image = hf_mount_image(c, m);
        (void)json_object_set_new(m, "image", json_string(image)); /* lives as long as meta */
        size_t n = req->n_mounts++;
        req->mounts[n].name = name;
        req->mounts[n].image = json_string_value(json_object_get(m, "image"));
        req->mounts[n].path = path;
        req->mounts[n].kind = hf_mount_kind(m);
        req->mounts[n].read_only = json_is_true(json_object_get(m, "read_only"));
    }
    return 0;
}

int hf_snapshot_fill(struct hf_control *c, const struct hf_snapshot_row *row, struct hf_create_req *req,
                     struct hf_snapshot_fill *own, struct hf_err *err)
{
    own->meta = row->meta ? json_loads(row->meta, 0, NULL) : NULL;
    if (!json_is_object(own->meta))
        return hf_err_set(err, -EIO, "the row of snapshot %s can't be read", row->id);
    own->dir = hf_xasprintf("%s/pool/snapshots/%s", c->cfg->data_dir, row->id);
    req->snapshot_id = row->id;
    req->from_dir = own->dir;
    req->from_memory = strcmp(row->kind, "full") == 0;
    req->generation = req->from_memory ? row->generation + 1 : 0; /* its programs see that they are clones */
    req->template_id = row->template_id;
    req->disk_bytes = number(own->meta, "disk_bytes");
    req->cpu_millis = req->cpu_millis ? req->cpu_millis : number(own->meta, "cpu_millis");
    req->memory_bytes = req->memory_bytes ? req->memory_bytes : number(own->meta, "memory_bytes");
    req->pids_max = req->pids_max ? req->pids_max : number(own->meta, "pids_max");
    const json_t *network = json_object_get(own->meta, "network");
    if (!req->network && json_is_object(network))
        req->network = network;
    int r = open_env(c, row, &own->env, err);
    if (r < 0)
        return r;
    if (own->env && req->env) {
        json_auto_t *said = json_deep_copy(req->env); /* own->env is wiped at the end */
        (void)json_object_update(own->env, said);     /* what is said now wins */
        req->env = own->env;
    } else if (own->env) {
        req->env = own->env;
    }
    return req->from_memory ? fill_mounts(c, req, own->meta, err) : 0;
}
