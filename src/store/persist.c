/* Rows of persistence: writes and reads of store/persist.h. */
#include "store/persist.h"

#include "store/meta_int.h"

#define SNAPSHOT_COLS                                                                                     \
    "s.id, s.tenant, s.purpose, s.kind, s.state, s.sandbox_id, s.session_id, s.template_id, s.parent_id," \
    " s.generation, s.detail, s.meta, s.env_sealed, s.bytes, s.exclusive_bytes, s.frozen_us, s.total_us," \
    " s.created_ms"

enum { P_SNAPSHOT, P_SNAPSHOT_NAME, P_SNAPSHOTS, P_SNAPSHOT_NAMES, P_SNAPSHOT_POLICIES, P_COUNT };
_Static_assert((int)P_COUNT <= (int)META_PERSIST_READS_MAX, "raise META_PERSIST_READS_MAX");

static const char *const persist_sql[P_COUNT] = {
    [P_SNAPSHOT] = "SELECT " SNAPSHOT_COLS " FROM snapshots s WHERE s.id = ?1",
    [P_SNAPSHOT_NAME] = "SELECT " SNAPSHOT_COLS " FROM snapshot_names n JOIN snapshots s"
                        " ON s.id = n.snapshot_id WHERE n.tenant = ?1 AND n.name = ?2",
    [P_SNAPSHOTS] = "SELECT " SNAPSHOT_COLS " FROM snapshots s WHERE (?1 = '' OR s.tenant = ?1)"
                    " AND (?2 = '' OR s.sandbox_id = ?2) AND (?3 = '' OR s.purpose = ?3)"
                    " AND (?4 <= 0 OR s.created_ms < ?4 OR (s.created_ms = ?4 AND s.id > ?5))"
                    " ORDER BY s.created_ms DESC, s.id LIMIT ?6",
    [P_SNAPSHOT_POLICIES] = "SELECT sandbox_id, tenant, policy, last_ms FROM snapshot_policies",
    [P_SNAPSHOT_NAMES] = "SELECT name FROM snapshot_names WHERE snapshot_id = ?1 ORDER BY name",
};

void hf_snapshot_row_done(struct hf_snapshot_row *s)
{
    free(s->meta);
    free(s->env_sealed);
    s->meta = NULL;
    s->env_sealed = NULL;
}

static sqlite3_stmt *get(struct hf_meta *m, int which, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *s = meta_bind(m, &m->persist_rd[which], persist_sql[which], fmt, ap);
    va_end(ap);
    return s;
}

#define COL(dst, col) meta_col_text(s, (col), (dst), sizeof(dst))

static void fill(sqlite3_stmt *s, struct hf_snapshot_row *r)
{
    memset(r, 0, sizeof(*r));
    COL(r->id, 0);
    COL(r->tenant, 1);
    COL(r->purpose, 2);
    COL(r->kind, 3);
    COL(r->state, 4);
    COL(r->sandbox_id, 5);
    COL(r->session_id, 6);
    COL(r->template_id, 7);
    COL(r->parent_id, 8);
    r->generation = sqlite3_column_int64(s, 9);
    COL(r->detail, 10);
    r->meta = meta_col_dup(s, 11);
    r->env_sealed = meta_col_blob(s, 12, &r->env_sealed_n);
    r->bytes = sqlite3_column_int64(s, 13);
    r->exclusive_bytes = sqlite3_column_int64(s, 14);
    r->frozen_us = sqlite3_column_int64(s, 15);
    r->total_us = sqlite3_column_int64(s, 16);
    r->created_ms = sqlite3_column_int64(s, 17);
}

/* ---- writes ---- */

void hf_set_sandbox_pause(struct hf_meta_batch *b, const char *id, int64_t generation, const char *depth,
                          const char *pause_id, int64_t paused_ms)
{
    struct meta_op *op = meta_add(b, W_SANDBOX_PAUSE);
    meta_p_text(op, id);
    meta_p_int(op, generation);
    meta_p_text(op, depth);
    meta_p_text(op, pause_id);
    meta_p_int(op, paused_ms);
}

void hf_put_snapshot(struct hf_meta_batch *b, const struct hf_snapshot_row *s)
{
    struct meta_op *op = meta_add(b, W_SNAPSHOT);
    const char *texts[] = {s->id,         s->tenant,     s->purpose,     s->kind,     s->state,
                           s->sandbox_id, s->session_id, s->template_id, s->parent_id};
    for (size_t i = 0; i < HF_ARRAY_LEN(texts); i++)
        meta_p_text(op, texts[i]);
    meta_p_int(op, s->generation);
    meta_p_text(op, s->detail);
    meta_p_text(op, s->meta ? s->meta : "{}");
    meta_p_blob(op, s->env_sealed, s->env_sealed_n);
    const int64_t ints[] = {s->bytes, s->exclusive_bytes, s->frozen_us, s->total_us, s->created_ms};
    for (size_t i = 0; i < HF_ARRAY_LEN(ints); i++)
        meta_p_int(op, ints[i]);
}

void hf_set_snapshot_ready(struct hf_meta_batch *b, const char *id, const char *kind, int64_t bytes,
                           int64_t exclusive_bytes, int64_t frozen_us, int64_t total_us)
{
    struct meta_op *op = meta_add(b, W_SNAPSHOT_READY);
    op->expect_change = true;
    meta_p_text(op, id);
    meta_p_text(op, kind);
    meta_p_int(op, bytes);
    meta_p_int(op, exclusive_bytes);
    meta_p_int(op, frozen_us);
    meta_p_int(op, total_us);
}

void hf_set_snapshot_meta(struct hf_meta_batch *b, const char *id, const char *meta)
{
    struct meta_op *op = meta_add(b, W_SNAPSHOT_META);
    meta_p_text(op, id);
    meta_p_text(op, meta);
}

void hf_set_snapshot_bytes(struct hf_meta_batch *b, const char *id, int64_t bytes, int64_t exclusive_bytes)
{
    struct meta_op *op = meta_add(b, W_SNAPSHOT_BYTES);
    meta_p_text(op, id);
    meta_p_int(op, bytes);
    meta_p_int(op, exclusive_bytes);
}

void hf_set_snapshot_deleting(struct hf_meta_batch *b, const char *id)
{
    meta_p_text(meta_add(b, W_SNAPSHOT_DELETING), id);
    meta_p_text(meta_add(b, W_SNAPSHOT_NAMES_DEL), id);
}

void hf_del_snapshot(struct hf_meta_batch *b, const char *id)
{
    meta_p_text(meta_add(b, W_SNAPSHOT_NAMES_DEL), id);
    meta_p_text(meta_add(b, W_SNAPSHOT_DEL), id);
}

void hf_put_snapshot_name(struct hf_meta_batch *b, const char *tenant, const char *name, const char *id)
{
    struct meta_op *op = meta_add(b, W_SNAPSHOT_NAME);
    meta_p_text(op, tenant);
    meta_p_text(op, name);
    meta_p_text(op, id);
}

void hf_put_snapshot_policy(struct hf_meta_batch *b, const char *sandbox_id, const char *tenant,
                            const char *policy, int64_t last_ms)
{
    struct meta_op *op = meta_add(b, W_SNAPSHOT_POLICY);
    meta_p_text(op, sandbox_id);
    meta_p_text(op, tenant);
    meta_p_text(op, policy);
    meta_p_int(op, last_ms);
}

void hf_set_snapshot_policy_last(struct hf_meta_batch *b, const char *sandbox_id, int64_t last_ms)
{
    struct meta_op *op = meta_add(b, W_SNAPSHOT_POLICY_LAST);
    meta_p_text(op, sandbox_id);
    meta_p_int(op, last_ms);
}

void hf_del_snapshot_policy(struct hf_meta_batch *b, const char *sandbox_id)
{
    meta_p_text(meta_add(b, W_SNAPSHOT_POLICY_DEL), sandbox_id);
}

/* ---- reads ---- */

static int one(sqlite3_stmt *s, struct hf_snapshot_row *ret)
{
    if (!s)
        return -EIO;
    int code = sqlite3_step(s);
    if (code == SQLITE_ROW)
        fill(s, ret);
    return meta_read_end(s, code);
}

int hf_get_snapshot(struct hf_meta *m, const char *id, struct hf_snapshot_row *ret)
{
    return one(get(m, P_SNAPSHOT, "s", id), ret);
}

int hf_get_snapshot_by_name(struct hf_meta *m, const char *tenant, const char *name,
                            struct hf_snapshot_row *ret)
{
    return one(get(m, P_SNAPSHOT_NAME, "ss", tenant, name), ret);
}

int hf_each_snapshot(struct hf_meta *m, const char *tenant, const char *sandbox, const char *purpose,
                     int64_t before_ms, const char *before_id, int limit,
                     void (*fn)(void *arg, const struct hf_snapshot_row *s), void *arg)
{
    sqlite3_stmt *s =
        get(m, P_SNAPSHOTS, "sssisi", tenant, sandbox, purpose, before_ms, before_id, (int64_t)limit);
    if (!s)
        return -EIO;
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        hf_auto_snapshot_row struct hf_snapshot_row row;
        fill(s, &row);
        fn(arg, &row);
    }
    return meta_read_end(s, code) < 0 ? -EIO : 0;
}

int hf_each_snapshot_name(struct hf_meta *m, const char *id, void (*fn)(void *arg, const char *name),
                          void *arg)
{
    sqlite3_stmt *s = get(m, P_SNAPSHOT_NAMES, "s", id);
    if (!s)
        return -EIO;
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        fn(arg, (const char *)sqlite3_column_text(s, 0));
    return meta_read_end(s, code) < 0 ? -EIO : 0;
}

int hf_each_snapshot_policy(struct hf_meta *m, void (*fn)(void *arg, const struct hf_snapshot_policy_row *p),
                            void *arg)
{
    sqlite3_stmt *s = get(m, P_SNAPSHOT_POLICIES, "");
    if (!s)
        return -EIO;
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        struct hf_snapshot_policy_row p;
        COL(p.sandbox_id, 0);
        COL(p.tenant, 1);
        p.policy = meta_col_dup(s, 2);
        p.last_ms = sqlite3_column_int64(s, 3);
        fn(arg, &p);
        free(p.policy);
    }
    return meta_read_end(s, code) < 0 ? -EIO : 0;
}
