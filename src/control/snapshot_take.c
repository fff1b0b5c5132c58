/* Taking a snapshot. The row comes first (creating), then the directory, the box's save, the manifest, and
 * the row again (ready): whatever ends in between leaves a row that says what to remove. */
#include <stdio.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "control/snapshot_int.h"
#include "engine/disk/disk.h"

struct take {
    struct hf_list node; /* of hf_snapshots.takes */
    struct hf_control *c;
    struct hf_sandbox *sb; /* NULL: a copy that belongs to nobody's queue */
    struct hf_snapshot_row row;
    char name[HF_ROW_NAME];
    char from[HF_ROW_ID]; /* the snapshot that is copied; "" = the box is saved */
    bool memory, end, skip_clean, running;
    json_t *meta; /* of the row */
    char *dir;
    uint64_t need;                /* bytes that it will probably take */
    struct hf_snapshot_meta head; /* the worker's while working */
    uint64_t exclusive, shared;   /* likewise */
    struct hf_err err;            /* likewise */
    struct hf_box_saved saved;
    void (*with_ready)(void *arg, struct hf_meta_batch *b, const char *snapshot_id);
    void *with_ready_arg;
    hf_snapshot_cb cb;
    void *arg;
};

static void begin(struct take *t);

static void free_take(struct take *t)
{
    hf_snapshot_row_done(&t->row);
    hf_snapshot_meta_done(&t->head);
    json_decref(t->meta);
    free(t->dir);
    free(t);
}

/* The next one that waits for this sandbox. */
static void start_next(struct hf_control *c, const struct hf_sandbox *sb)
{
    hf_list_foreach(it, &c->snapshots->takes)
    {
        struct take *t = hf_list_entry(it, struct take, node);
        if (t->sb != sb)
            continue;
        if (!t->running) {
            t->running = true;
            begin(t);
        }
        return;
    }
}

/* s NULL and no error: nothing had changed. */
static void finish(struct take *t, const struct hf_snapshot_row *s)
{
    struct hf_control *c = t->c;
    struct hf_sandbox *sb = t->sb;
    hf_list_del(&t->node);
    c->busy--;
    t->cb(t->arg, t->err.r ? NULL : s, t->err.r ? &t->err : NULL);
    free_take(t);
    if (!sb)
        return;
    start_next(c, sb);
    hf_sandbox_unref(sb);
}

static void on_undone(void *arg, const struct hf_err *err)
{
    (void)err; /* logged; the next start tries again */
    finish(arg, NULL);
}

static void fail(struct take *t)
{
    hf_log_info("snapshot not taken", "snapshot=%s sandbox=%s error=%s", t->row.id, t->row.sandbox_id,
                hf_log_quote(t->err.msg));
    hf_snapshot_erase(t->c, t->row.id, on_undone, t);
}

/* ---- the end of it ---- */

static void on_ready(void *arg, int r, const struct hf_err *err)
{
    struct take *t = arg;
    if (r < 0) {
        t->err = *err;
        fail(t);
        return;
    }
    hf_killpoint("snapshot.ready");
    (void)snprintf(t->row.state, sizeof(t->row.state), "ready");
    hf_log_info("snapshot taken", "snapshot=%s sandbox=%s kind=%s purpose=%s frozen_us=%lld total_us=%lld",
                t->row.id, t->row.sandbox_id, t->row.kind, t->row.purpose, (long long)t->row.frozen_us,
                (long long)t->row.total_us);
    if (hf_snapshot_is_listed(&t->row))
        hf_control_event(t->c, t->row.tenant, t->row.sandbox_id, t->row.session_id, "sandbox.snapshot",
                         t->row.purpose, t->row.id);
    if (strcmp(t->row.purpose, "fork") != 0)
        hf_snapshot_seal_later(t->c, t->row.id);
    finish(t, &t->row);
}

static void publish(struct take *t)
{
    t->row.bytes = (int64_t)(t->exclusive + t->shared);
    t->row.exclusive_bytes = (int64_t)t->exclusive;
    t->row.frozen_us = (int64_t)t->saved.frozen_us;
    t->row.total_us = (int64_t)t->saved.total_us;
    free(t->row.meta);
    t->row.meta = json_dumps(t->meta, JSON_COMPACT);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_set_snapshot_ready(b, t->row.id, t->row.kind, t->row.bytes, t->row.exclusive_bytes, t->row.frozen_us,
                          t->row.total_us);
    hf_set_snapshot_meta(b, t->row.id, t->row.meta);
    if (*t->name)
        hf_put_snapshot_name(b, t->row.tenant, t->name, t->row.id);
    if (t->with_ready)
        t->with_ready(t->with_ready_arg, b, t->row.id);
    hf_meta_commit(t->c->meta, b, 0, on_ready, t);
}

static void commit_work(void *arg)
{
    struct take *t = arg;
    const char *data_dir = t->c->cfg->data_dir;
    int r = hf_snapshot_commit(data_dir, &t->head, &t->err);
    hf_killpoint("snapshot.committed");
    if (r == 0)
        r = hf_snapshot_usage(data_dir, t->row.id, &t->exclusive, &t->shared, &t->err);
    if (r < 0 && !t->err.r)
        (void)hf_err_set(&t->err, r, "the snapshot can't be written: %s", strerror(-r));
}

static void on_committed(void *arg)
{
    struct take *t = arg;
    if (t->err.r)
        fail(t);
    else
        publish(t);
}

/* ---- what changed ---- */

struct newest {
    const char *kind; /* NULL = any */
    json_t *meta;
    char id[HF_ROW_ID];
    int64_t generation;
};

static void look_newest(void *arg, const struct hf_snapshot_row *s)
{
    struct newest *n = arg;
    if (*n->id || !hf_snapshot_is_listed(s) || (n->kind && strcmp(s->kind, n->kind) != 0))
        return;
    (void)snprintf(n->id, sizeof(n->id), "%s", s->id);
    n->generation = s->generation;
    n->meta = json_loads(s->meta, 0, NULL);
}

/* The sandbox's newest snapshot that a client can see. */
static void find_newest(struct take *t, const char *kind, struct newest *ret)
{
    *ret = (struct newest){.kind = kind};
    if (hf_each_snapshot(t->c->meta, t->row.tenant, t->row.sandbox_id, NULL, 0, "", INT32_MAX, look_newest,
                         ret) < 0)
        hf_log_error("the snapshots' rows can't be read", "%s", "");
}

static int64_t count(const json_t *meta, const char *key)
{
    const json_t *v = json_object_get(meta, key);
    return v ? json_integer_value(v) : -1;
}

/* Nothing ran and nothing was written since the newest snapshot of this kind: told by processor time and by
 * the blocks that reached the disk, both counted while the box stood still for that snapshot. */
static bool is_clean(struct take *t)
{
    struct newest n;
    struct hf_box_stats st;
    find_newest(t, t->row.kind, &n);
    json_auto_t *meta = n.meta;
    int64_t cpu = count(meta, "cpu_ns"), writes = count(meta, "disk_writes");
    return *n.id && cpu >= 0 && writes >= 0 && n.generation == t->sb->row.generation && t->sb->box &&
           t->c->driver->ops->stats(t->c->driver, t->sb->box, &st) == 0 && (int64_t)st.cpu_usage_ns >= cpu &&
           (int64_t)st.cpu_usage_ns - cpu <= HF_CLEAN_CPU_NS && (int64_t)st.disk_writes == writes;
}

/* ---- saving ---- */

static void on_saved(void *arg, const struct hf_box_saved *saved, const struct hf_err *err)
{
    struct take *t = arg;
    if (err) {
        t->err = *err;
        fail(t);
        return;
    }
    hf_killpoint("snapshot.saved");
    t->saved = *saved;
    (void)json_object_set_new(t->meta, "cpu_ns", json_integer((json_int_t)saved->cpu_ns));
    (void)json_object_set_new(t->meta, "disk_writes", json_integer((json_int_t)saved->disk_writes));
    hf_snapshots_work(t->c, commit_work, on_committed, t);
}

static void begin_work(void *arg)
{
    struct take *t = arg;
    const struct hf_config *cfg = t->c->cfg;
    int r = hf_disk_pool_room(cfg->data_dir, t->need, cfg->pool_bytes, &t->err);
    if (r == 0 && *t->from) {
        r = hf_snapshot_clone(cfg->data_dir, t->from, t->row.id, &t->err);
        if (r == 0)
            r = hf_snapshot_usage(cfg->data_dir, t->row.id, &t->exclusive, &t->shared, &t->err);
    } else if (r == 0) {
        r = hf_snapshot_begin(cfg->data_dir, t->row.id, &t->dir, &t->err);
    }
    if (r < 0 && !t->err.r)
        (void)hf_err_set(&t->err, r, "the snapshot can't be written: %s", strerror(-r));
}

static void on_begun(void *arg)
{
    struct take *t = arg;
    struct hf_control *c = t->c;
    if (!t->err.r && !*t->from && !t->sb->box)
        (void)hf_err_http(&t->err, -ECANCELED, 409, "Sandbox %s ended while its snapshot was being taken",
                          t->sb->row.id);
    if (t->err.r) {
        fail(t);
        return;
    }
    hf_killpoint("snapshot.begun");
    if (*t->from) {
        publish(t);
        return;
    }
    struct hf_box_save save = {.dir = t->dir, .memory = t->memory, .end = t->end};
    c->driver->ops->save(c->driver, t->sb->box, &save, on_saved, t);
}

static void on_row(void *arg, int r, const struct hf_err *err)
{
    struct take *t = arg;
    if (r < 0) {
        t->err = *err;
        finish(t, NULL);
        return;
    }
    hf_killpoint("snapshot.row-written");
    hf_snapshots_work(t->c, begin_work, on_begun, t);
}

/* ---- what is known about it ---- */

static void set_text(json_t *v, const char *key, const char *text, const char *empty)
{
    json_t *m = text && *text ? json_loads(text, 0, NULL) : NULL;
    (void)json_object_set_new(v, key, m ? m : json_loads(empty, 0, NULL));
}

static json_t *limits_of(const struct hf_sandbox_row *row)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "cpu_millis", (json_int_t)row->cpu_millis, "memory_bytes",
                     (json_int_t)row->memory_bytes, "disk_bytes", (json_int_t)row->disk_bytes, "pids_max",
                     (json_int_t)row->pids_max);
}

/* The row gets everything; the manifest, which may be carried to other machines, neither network nor mounts:
 * they name things of this one. */
static void describe(struct take *t)
{
    const struct hf_sandbox_row *row = &t->sb->row;
    t->meta = limits_of(row);
    set_text(t->meta, "metadata", row->metadata, "{}");
    t->head.config = json_deep_copy(t->meta);
    (void)json_object_set_new(t->head.config, "alias", json_string(row->alias));
    (void)json_object_set_new(t->meta, "alias", json_string(row->alias));
    set_text(t->meta, "network", row->network, "{}");
    set_text(t->meta, "lifecycle", row->lifecycle, "{}");
    set_text(t->meta, "mounts", row->mounts, "[]");
}

static void fill_row(struct take *t)
{
    const struct hf_sandbox_row *from = &t->sb->row;
    struct hf_snapshot_row *s = &t->row;
    (void)snprintf(s->template_id, sizeof(s->template_id), "%s", from->template_id);
    (void)snprintf(s->kind, sizeof(s->kind), "%s", t->memory ? "full" : "disk");
    s->generation = from->generation;
    s->created_ms = hf_real_ms();
    if (from->env_sealed_n) {
        s->env_sealed = hf_xmalloc(from->env_sealed_n);
        memcpy(s->env_sealed, from->env_sealed, from->env_sealed_n);
        s->env_sealed_n = from->env_sealed_n;
    }
    struct newest n;
    find_newest(t, NULL, &n);
    json_decref(n.meta);
    (void)snprintf(s->parent_id, sizeof(s->parent_id), "%s", *n.id ? n.id : from->snapshot_id);
    describe(t);
    s->meta = json_dumps(t->meta, JSON_COMPACT);
    struct hf_snapshot_meta *h = &t->head;
    h->memory = t->memory;
    h->generation = (uint64_t)s->generation;
    h->created_ms = s->created_ms;
    (void)snprintf(h->id, sizeof(h->id), "%s", s->id);
    (void)snprintf(h->template_id, sizeof(h->template_id), "%s", s->template_id);
    (void)snprintf(h->parent, sizeof(h->parent), "%s", s->parent_id);
    (void)snprintf(h->sandbox_id, sizeof(h->sandbox_id), "%s", s->sandbox_id);
}

/* From a row that exists: everything but id, purpose and time is the same. */
static void fill_copy(struct take *t, const struct hf_snapshot_row *from)
{
    struct hf_snapshot_row own = t->row;
    t->row = *from;
    memcpy(t->row.id, own.id, sizeof(own.id));
    memcpy(t->row.purpose, own.purpose, sizeof(own.purpose));
    memcpy(t->row.parent_id, from->id, sizeof(own.parent_id));
    (void)snprintf(t->row.state, sizeof(t->row.state), "creating");
    t->row.created_ms = hf_real_ms();
    t->row.meta = hf_xstrdup(from->meta);
    t->row.env_sealed = NULL;
    if (from->env_sealed_n) {
        t->row.env_sealed = hf_xmalloc(from->env_sealed_n);
        memcpy(t->row.env_sealed, from->env_sealed, from->env_sealed_n);
    }
    t->meta = json_loads(from->meta, 0, NULL);
    t->saved = (struct hf_box_saved){.frozen_us = 0};
    memcpy(t->from, from->id, sizeof(t->from));
}

/* ---- the beginning ---- */

static int begin_cold(struct take *t)
{
    hf_auto_snapshot_row struct hf_snapshot_row image = {0};
    int r = hf_get_snapshot(t->c->meta, t->sb->row.pause_id, &image);
    if (r != 1)
        return hf_err_set(&t->err, -EIO, "the image that sandbox %s is paused in is not known",
                          t->sb->row.id);
    if (t->memory && strcmp(image.kind, "full") != 0)
        return hf_err_http(&t->err, -EINVAL, 409,
                           "Sandbox %s was paused without its memory: only a snapshot of kind disk can be "
                           "taken of it",
                           t->sb->row.id);
    fill_copy(t, &image);
    return 0;
}

static int begin_warm(struct take *t)
{
    struct hf_box_stats st;
    fill_row(t);
    if (t->memory && t->c->driver->ops->stats(t->c->driver, t->sb->box, &st) == 0)
        t->need = st.mem_used;
    return 0;
}

static void begin(struct take *t)
{
    const struct hf_sandbox *sb = t->sb;
    bool cold = sb && sb->state == HF_PAUSED && !sb->box;
    bool warm =
        sb && sb->box && (sb->state == HF_RUNNING || sb->state == HF_PAUSED || sb->state == HF_PAUSING);
    int r = 0;
    if (sb && !cold && !warm)
        r = hf_err_http(&t->err, -EBUSY, 409, "Sandbox %s is %s; no snapshot can be taken of it now",
                        sb->row.id, hf_state_name(sb->state));
    else if (t->c->stopping)
        r = hf_err_http(&t->err, -ESHUTDOWN, 503, "the daemon is going down; try again in a moment");
    else if (cold)
        r = begin_cold(t);
    else if (sb)
        r = begin_warm(t);
    if (r == 0 && warm && t->skip_clean && is_clean(t)) {
        hf_killpoint("snapshot.clean");
        finish(t, NULL);
        return;
    }
    if (r < 0) {
        finish(t, NULL);
        return;
    }
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_snapshot(b, &t->row);
    hf_meta_commit(t->c->meta, b, 0, on_row, t);
}

static struct take *take_new(struct hf_control *c, const char *tenant, const struct hf_snapshot_ask *ask,
                             hf_snapshot_cb cb, void *arg)
{
    struct take *t = hf_new(struct take);
    t->c = c;
    t->memory = ask->memory;
    t->end = ask->end;
    t->skip_clean = ask->skip_clean;
    t->with_ready = ask->with_ready;
    t->with_ready_arg = ask->with_ready_arg;
    t->cb = cb;
    t->arg = arg;
    hf_snapshot_id_new(t->row.id);
    (void)snprintf(t->row.tenant, sizeof(t->row.tenant), "%s", tenant);
    (void)snprintf(t->row.purpose, sizeof(t->row.purpose), "%s", ask->purpose);
    (void)snprintf(t->row.state, sizeof(t->row.state), "creating");
    if (ask->name && *ask->name && hf_snapshot_name(tenant, ask->name, t->name, &t->err) < 0)
        t->name[0] = '\0'; /* begin answers with the error */
    c->busy++;
    hf_list_add_tail(&c->snapshots->takes, &t->node);
    return t;
}

static void no_work(void *arg)
{
    (void)arg;
}

/* In the loop's next turn: no callback runs inside the call. */
static void on_turn(void *arg)
{
    struct take *t = arg;
    if (t->err.r)
        finish(t, NULL);
    else
        begin(t);
}

void hf_snapshot_take(struct hf_sandbox *sb, const struct hf_snapshot_ask *ask, hf_snapshot_cb cb, void *arg)
{
    bool waits = false;
    hf_list_foreach(it, &sb->c->snapshots->takes)
    {
        waits |= hf_list_entry(it, struct take, node)->sb == sb;
    }
    struct take *t = take_new(sb->c, sb->row.tenant, ask, cb, arg);
    t->sb = hf_sandbox_ref(sb);
    (void)snprintf(t->row.sandbox_id, sizeof(t->row.sandbox_id), "%s", sb->row.id);
    (void)snprintf(t->row.session_id, sizeof(t->row.session_id), "%s", sb->row.session_id);
    if (waits && !t->err.r)
        return;
    t->running = true;
    hf_snapshots_work(sb->c, no_work, on_turn, t);
}

void hf_snapshot_copy(struct hf_control *c, const struct hf_snapshot_row *from,
                      const struct hf_snapshot_ask *ask, hf_snapshot_cb cb, void *arg)
{
    struct take *t = take_new(c, from->tenant, ask, cb, arg);
    fill_copy(t, from);
    hf_snapshots_work(c, no_work, on_turn, t);
}
