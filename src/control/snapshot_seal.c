/* The background of snapshots: their hashes, one at a time, and what a restart finds. */
#include <stdio.h>

#include "base/fault.h"
#include "base/log.h"
#include "control/snapshot_int.h"

/* ---- hashes ---- */

struct queued {
    struct hf_list node;
    char id[HF_ROW_ID];
};

/* Something that waits for the seal to let go of its snapshot. */
struct waiting {
    struct hf_list node;
    void (*fn)(void *arg);
    void *arg;
};

struct seal {
    struct hf_snapshots *s;
    char id[HF_ROW_ID];
    char *data_dir;
    uint64_t exclusive, shared;
    int r;
    struct hf_err err;
};

static void seal_next(struct hf_snapshots *s);

static void free_snapshots(struct hf_snapshots *s)
{
    hf_list_foreach_safe(it, &s->seals)
    {
        hf_list_del(it);
        free(hf_list_entry(it, struct queued, node));
    }
    free(s);
}

static void seal_work(void *arg)
{
    struct seal *k = arg;
    k->r = hf_snapshot_seal(k->data_dir, k->id, &k->s->seal_stop, &k->err);
    if (k->r == 0)
        k->r = hf_snapshot_usage(k->data_dir, k->id, &k->exclusive, &k->shared, &k->err);
    hf_killpoint("snapshot.sealed");
}

static void on_sealed(void *arg)
{
    struct seal *k = arg;
    struct hf_snapshots *s = k->s;
    s->sealing[0] = '\0';
    s->seal_stop = false;
    if (!s->c) { /* the daemon stopped meanwhile */
        free_snapshots(s);
    } else {
        if (k->r == 0 && !s->c->stopping) { /* at a stop the store is closed first */
            struct hf_meta_batch *b = hf_meta_batch_new();
            hf_set_snapshot_bytes(b, k->id, (int64_t)(k->exclusive + k->shared), (int64_t)k->exclusive);
            hf_meta_commit(s->c->meta, b, HF_META_LAZY, NULL, NULL);
        } else if (k->r != -ECANCELED && k->r != -ENOENT) {
            hf_log_warn("a snapshot's hashes can't be taken", "snapshot=%s error=%s", k->id,
                        hf_log_quote(k->err.msg));
        }
        while (!hf_list_empty(&s->removals)) {
            struct waiting *w = hf_list_entry(s->removals.next, struct waiting, node);
            hf_list_del(&w->node);
            w->fn(w->arg);
            free(w);
        }
        seal_next(s);
    }
    free(k->data_dir);
    free(k);
}

static void seal_next(struct hf_snapshots *s)
{
    if (*s->sealing || hf_list_empty(&s->seals) || s->c->stopping)
        return;
    struct queued *q = hf_list_entry(s->seals.next, struct queued, node);
    struct seal *k = hf_new(struct seal);
    hf_list_del(&q->node);
    k->s = s;
    k->data_dir = hf_xstrdup(s->c->cfg->data_dir);
    memcpy(k->id, q->id, sizeof(k->id));
    memcpy(s->sealing, q->id, sizeof(s->sealing));
    free(q);
    hf_snapshots_work(s->c, seal_work, on_sealed, k);
}

void hf_snapshot_seal_later(struct hf_control *c, const char *id)
{
    struct queued *q = hf_new(struct queued);
    (void)snprintf(q->id, sizeof(q->id), "%s", id);
    hf_list_add_tail(&c->snapshots->seals, &q->node);
    seal_next(c->snapshots);
}

bool hf_snapshot_unseal_first(struct hf_control *c, const char *id, void (*fn)(void *arg), void *arg)
{
    struct hf_snapshots *s = c->snapshots;
    hf_list_foreach_safe(it, &s->seals)
    {
        struct queued *q = hf_list_entry(it, struct queued, node);
        if (strcmp(q->id, id) != 0)
            continue;
        hf_list_del(it);
        free(q);
    }
    if (strcmp(s->sealing, id) != 0)
        return false;
    s->seal_stop = true;
    struct waiting *w = hf_new(struct waiting);
    w->fn = fn;
    w->arg = arg;
    hf_list_add_tail(&s->removals, &w->node);
    return true;
}

/* ---- life ---- */

struct hf_snapshots *hf_snapshots_new(struct hf_control *c)
{
    struct hf_snapshots *s = hf_new(struct hf_snapshots);
    s->c = c;
    hf_list_init(&s->takes);
    hf_list_init(&s->seals);
    hf_list_init(&s->removals);
    return s;
}

void hf_snapshots_free(struct hf_snapshots *s)
{
    s->c = NULL;
    s->seal_stop = true;
    if (!*s->sealing) /* else its end does it */
        free_snapshots(s);
}

/* ---- what a restart finds ---- */

struct recover {
    struct hf_control *c;
    char *data_dir;
    struct hf_list found; /* of struct queued: directories on the disk */
    struct hf_err err;
};

/* Whether a row that is ready is still good for something. */
static bool is_wanted(struct hf_control *c, const struct hf_snapshot_row *s)
{
    hf_auto_sandbox_row struct hf_sandbox_row sb = {0};
    enum hf_state state;
    if (strcmp(s->purpose, "fork") == 0)
        return false; /* its children run or are undone */
    if (strcmp(s->purpose, "pause") != 0)
        return true;
    int r = hf_get_sandbox(c->meta, s->sandbox_id, &sb);
    if (r < 0) /* when in doubt it is kept */
        return true;
    return r == 1 && strcmp(sb.pause_id, s->id) == 0 && hf_state_parse(hf_str_c(sb.state), &state) &&
           !hf_state_ended(state);
}

struct rows {
    struct hf_list list; /* of struct queued */
    struct hf_control *c;
};

static void add_unfinished(void *arg, const struct hf_snapshot_row *s)
{
    struct rows *rows = arg;
    struct queued *q = hf_new(struct queued);
    (void)snprintf(q->id, sizeof(q->id), "%s", s->id);
    hf_list_add_tail(&rows->list, &q->node);
}

static void settle_row(struct hf_control *c, const char *id)
{
    hf_auto_snapshot_row struct hf_snapshot_row row = {0};
    if (hf_get_snapshot(c->meta, id, &row) != 1)
        return;
    if (strcmp(row.state, "ready") == 0 && is_wanted(c, &row)) {
        hf_snapshot_seal_later(c, id);
        return;
    }
    hf_log_info("removing what is left of a snapshot", "snapshot=%s state=%s purpose=%s", id, row.state,
                row.purpose);
    hf_snapshot_erase(c, id, NULL, NULL);
}

static void add_found(void *arg, const char *id, bool complete)
{
    struct recover *r = arg;
    struct queued *q = hf_new(struct queued);
    (void)complete;
    (void)snprintf(q->id, sizeof(q->id), "%s", id);
    hf_list_add_tail(&r->found, &q->node);
}

static void look_work(void *arg)
{
    struct recover *r = arg;
    (void)!hf_snapshot_each(r->data_dir, add_found, r, &r->err);
}

/* A directory whose row is gone. Rows come before directories, so none of them is new. */
static void on_looked(void *arg)
{
    struct recover *r = arg;
    if (r->err.r)
        hf_log_warn("the snapshots' directories can't be listed", "error=%s", hf_log_quote(r->err.msg));
    hf_list_foreach_safe(it, &r->found)
    {
        struct queued *q = hf_list_entry(it, struct queued, node);
        hf_auto_snapshot_row struct hf_snapshot_row row = {0};
        if (hf_get_snapshot(r->c->meta, q->id, &row) == 0) {
            hf_log_warn("removing a snapshot that has no row", "snapshot=%s", q->id);
            hf_snapshot_erase(r->c, q->id, NULL, NULL);
        }
        hf_list_del(it);
        free(q);
    }
    r->c->busy--;
    free(r->data_dir);
    free(r);
}

void hf_snapshot_recover(struct hf_control *c)
{
    struct rows rows = {.c = c};
    hf_list_init(&rows.list);
    if (hf_each_snapshot(c->meta, NULL, NULL, NULL, 0, "", INT32_MAX, add_unfinished, &rows) < 0)
        hf_log_error("the snapshots' rows can't be read", "%s", "");
    hf_list_foreach_safe(it, &rows.list)
    {
        struct queued *q = hf_list_entry(it, struct queued, node);
        settle_row(c, q->id);
        hf_list_del(it);
        free(q);
    }
    hf_snapshot_policies_start(c);
    struct recover *r = hf_new(struct recover);
    r->c = c;
    r->data_dir = hf_xstrdup(c->cfg->data_dir);
    hf_list_init(&r->found);
    c->busy++;
    hf_snapshots_work(c, look_work, on_looked, r);
}
