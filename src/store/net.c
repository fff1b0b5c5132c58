/* Rows of the network part: writes and reads of store/net.h. */
#include "store/net.h"

#include <stdio.h>

#include "store/meta_int.h"

#define POLICY_COLS "tenant, name, doc, version, created_ms, updated_ms"
#define SECRET_COLS "id, tenant, name, metadata, sealed, version, created_ms, updated_ms"
#define OUTBOUND_COLS "seq, time_ms, tenant, sandbox_id, session_id, kind, denied, doc"
#define OUTBOUND_OF                                                     \
    " FROM outbound WHERE tenant = ?1 AND (?2 = '' OR sandbox_id = ?2)" \
    " AND (?3 = '' OR session_id = ?3)"

enum {
    N_POLICY,
    N_POLICIES,
    N_SECRET,
    N_SECRETS,
    N_CA,
    N_CURSOR,
    N_OUTBOUND,
    N_OUTBOUND_LAST,
    N_COUNT,
};
_Static_assert((int)N_COUNT <= (int)META_NET_READS_MAX, "raise META_NET_READS_MAX");

static const char *const net_sql[N_COUNT] = {
    [N_POLICY] = "SELECT " POLICY_COLS " FROM policies WHERE tenant = ?1 AND name = ?2",
    [N_POLICIES] = "SELECT " POLICY_COLS " FROM policies WHERE tenant = ?1 ORDER BY name",
    [N_SECRET] = "SELECT " SECRET_COLS " FROM secrets WHERE tenant = ?1 AND (name = ?2 OR id = ?2)",
    [N_SECRETS] = "SELECT " SECRET_COLS " FROM secrets WHERE tenant = ?1 ORDER BY name",
    [N_CA] = "SELECT tenant, cert, sealed_key, created_ms FROM authorities WHERE tenant = ?1",
    [N_CURSOR] = "SELECT file, position FROM outbound_cursor",
    [N_OUTBOUND] = "SELECT " OUTBOUND_COLS OUTBOUND_OF " AND seq > ?4 ORDER BY seq LIMIT ?5",
    [N_OUTBOUND_LAST] = "SELECT * FROM (SELECT " OUTBOUND_COLS OUTBOUND_OF
                        " AND ?4 < 0 ORDER BY seq DESC LIMIT ?5) ORDER BY seq",
};

static sqlite3_stmt *get(struct hf_meta *m, int which, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *s = meta_bind(m, &m->net_rd[which], net_sql[which], fmt, ap);
    va_end(ap);
    return s;
}

#define COL(dst, col) meta_col_text(s, (col), (dst), sizeof(dst))

/* ---- rows ---- */

void hf_policy_row_done(struct hf_policy_row *p)
{
    free(p->doc);
    p->doc = NULL;
}

void hf_secret_row_done(struct hf_secret_row *s)
{
    free(s->metadata);
    free(s->sealed);
    s->metadata = NULL;
    s->sealed = NULL;
}

void hf_ca_row_done(struct hf_ca_row *c)
{
    free(c->cert);
    free(c->sealed_key);
    c->cert = NULL;
    c->sealed_key = NULL;
}

void hf_outbound_row_done(struct hf_outbound_row *o)
{
    free(o->doc);
    o->doc = NULL;
}

/* ---- writes ---- */

static void two_texts(struct hf_meta_batch *b, enum meta_stmt stmt, const char *first, const char *second)
{
    struct meta_op *op = meta_add(b, stmt);
    meta_p_text(op, first);
    meta_p_text(op, second);
}

void hf_set_sandbox_network(struct hf_meta_batch *b, const char *id, const char *network)
{
    two_texts(b, W_SANDBOX_NETWORK, id, network);
}

void hf_set_session_metadata(struct hf_meta_batch *b, const char *id, const char *metadata)
{
    two_texts(b, W_SESSION_METADATA, id, metadata);
}

void hf_put_policy(struct hf_meta_batch *b, const struct hf_policy_row *p)
{
    struct meta_op *op = meta_add(b, W_POLICY);
    meta_p_text(op, p->tenant);
    meta_p_text(op, p->name);
    meta_p_text(op, p->doc);
    meta_p_int(op, p->version);
    meta_p_int(op, p->created_ms);
    meta_p_int(op, p->updated_ms);
}

void hf_del_policy(struct hf_meta_batch *b, const char *tenant, const char *name)
{
    two_texts(b, W_POLICY_DEL, tenant, name);
}

void hf_put_secret(struct hf_meta_batch *b, const struct hf_secret_row *s)
{
    struct meta_op *op = meta_add(b, W_SECRET);
    meta_p_text(op, s->id);
    meta_p_text(op, s->tenant);
    meta_p_text(op, s->name);
    meta_p_text(op, s->metadata);
    meta_p_blob(op, s->sealed, s->sealed_n);
    meta_p_int(op, s->version);
    meta_p_int(op, s->created_ms);
    meta_p_int(op, s->updated_ms);
}

void hf_del_secret(struct hf_meta_batch *b, const char *tenant, const char *name)
{
    two_texts(b, W_SECRET_DEL, tenant, name);
}

void hf_put_ca(struct hf_meta_batch *b, const struct hf_ca_row *c)
{
    struct meta_op *op = meta_add(b, W_CA);
    meta_p_text(op, c->tenant);
    meta_p_text(op, c->cert);
    meta_p_blob(op, c->sealed_key, c->sealed_key_n);
    meta_p_int(op, c->created_ms);
}

void hf_put_outbound(struct hf_meta_batch *b, const struct hf_outbound_row *o)
{
    struct meta_op *op = meta_add(b, W_OUTBOUND);
    meta_p_int(op, o->time_ms);
    meta_p_text(op, o->tenant);
    meta_p_text(op, o->sandbox_id);
    meta_p_text(op, o->session_id);
    meta_p_text(op, o->kind);
    meta_p_int(op, o->denied);
    meta_p_text(op, o->doc);
}

void hf_set_outbound_cursor(struct hf_meta_batch *b, const char *file, int64_t offset)
{
    struct meta_op *op = meta_add(b, W_OUTBOUND_CURSOR);
    meta_p_text(op, file);
    meta_p_int(op, offset);
}

void hf_prune_outbound(struct hf_meta_batch *b, int64_t before_ms, int64_t keep_rows)
{
    meta_p_int(meta_add(b, W_OUTBOUND_PRUNE_AGE), before_ms);
    meta_p_int(meta_add(b, W_OUTBOUND_PRUNE_COUNT), keep_rows);
}

/* ---- reads ---- */

static void fill_policy(sqlite3_stmt *s, struct hf_policy_row *p)
{
    COL(p->tenant, 0);
    COL(p->name, 1);
    p->doc = meta_col_dup(s, 2);
    p->version = sqlite3_column_int64(s, 3);
    p->created_ms = sqlite3_column_int64(s, 4);
    p->updated_ms = sqlite3_column_int64(s, 5);
}

static void fill_secret(sqlite3_stmt *s, struct hf_secret_row *r)
{
    COL(r->id, 0);
    COL(r->tenant, 1);
    COL(r->name, 2);
    r->metadata = meta_col_dup(s, 3);
    r->sealed = meta_col_blob(s, 4, &r->sealed_n);
    r->version = sqlite3_column_int64(s, 5);
    r->created_ms = sqlite3_column_int64(s, 6);
    r->updated_ms = sqlite3_column_int64(s, 7);
}

static void fill_ca(sqlite3_stmt *s, struct hf_ca_row *c)
{
    COL(c->tenant, 0);
    c->cert = meta_col_dup(s, 1);
    c->sealed_key = meta_col_blob(s, 2, &c->sealed_key_n);
    c->created_ms = sqlite3_column_int64(s, 3);
}

static void fill_outbound(sqlite3_stmt *s, struct hf_outbound_row *o)
{
    o->seq = sqlite3_column_int64(s, 0);
    o->time_ms = sqlite3_column_int64(s, 1);
    COL(o->tenant, 2);
    COL(o->sandbox_id, 3);
    COL(o->session_id, 4);
    COL(o->kind, 5);
    o->denied = sqlite3_column_int(s, 6) != 0;
    o->doc = meta_col_dup(s, 7);
}

#define ONE(stmt, ret, fill)              \
    sqlite3_stmt *s = (stmt);             \
    if (!s)                               \
        return -EIO;                      \
    int code = sqlite3_step(s);           \
    if (code == SQLITE_ROW) {             \
        memset((ret), 0, sizeof(*(ret))); \
        fill(s, (ret));                   \
    }                                     \
    return meta_read_end(s, code)

#define EACH(stmt, type, fill, done)                         \
    sqlite3_stmt *s = (stmt);                                \
    if (!s)                                                  \
        return -EIO;                                         \
    int code;                                                \
    bool more = true;                                        \
    while (more && (code = sqlite3_step(s)) == SQLITE_ROW) { \
        struct type row = {0};                               \
        fill(s, &row);                                       \
        more = cb(arg, &row);                                \
        done(&row);                                          \
    }                                                        \
    return meta_read_end(s, code) < 0 ? -EIO : 0

int hf_get_policy(struct hf_meta *m, const char *tenant, const char *name, struct hf_policy_row *ret)
{
    ONE(get(m, N_POLICY, "ss", tenant, name), ret, fill_policy);
}

int hf_each_policy(struct hf_meta *m, const char *tenant,
                   bool (*cb)(void *arg, const struct hf_policy_row *p), void *arg)
{
    EACH(get(m, N_POLICIES, "s", tenant), hf_policy_row, fill_policy, hf_policy_row_done);
}

int hf_get_secret(struct hf_meta *m, const char *tenant, const char *id_or_name, struct hf_secret_row *ret)
{
    ONE(get(m, N_SECRET, "ss", tenant, id_or_name), ret, fill_secret);
}

int hf_each_secret(struct hf_meta *m, const char *tenant,
                   bool (*cb)(void *arg, const struct hf_secret_row *s), void *arg)
{
    EACH(get(m, N_SECRETS, "s", tenant), hf_secret_row, fill_secret, hf_secret_row_done);
}

int hf_get_ca(struct hf_meta *m, const char *tenant, struct hf_ca_row *ret)
{
    ONE(get(m, N_CA, "s", tenant), ret, fill_ca);
}

int hf_get_outbound_cursor(struct hf_meta *m, char file[HF_ROW_ID], int64_t *ret_offset)
{
    sqlite3_stmt *s = get(m, N_CURSOR, "");
    if (!s)
        return -EIO;
    int code = sqlite3_step(s);
    if (code == SQLITE_ROW) {
        meta_col_text(s, 0, file, HF_ROW_ID);
        *ret_offset = sqlite3_column_int64(s, 1);
    }
    return meta_read_end(s, code);
}

int hf_each_outbound(struct hf_meta *m, const char *tenant, const char *sandbox_id, const char *session_id,
                     int64_t after_seq, int limit, bool (*cb)(void *arg, const struct hf_outbound_row *o),
                     void *arg)
{
    EACH(get(m, after_seq < 0 ? N_OUTBOUND_LAST : N_OUTBOUND, "sssii", tenant, sandbox_id, session_id,
             after_seq, (int64_t)limit),
         hf_outbound_row, fill_outbound, hf_outbound_row_done);
}
