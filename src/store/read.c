/* Reads: prepared once, on a connection of their own. */
#include <stdio.h>

#include "store/meta_int.h"

#define SANDBOX_COLS                                                                                      \
    "id, tenant, template_id, alias, state, cause, detail, session_id, envd_version, boot_id, metadata,"  \
    " network, lifecycle, mounts, cpu_millis, memory_bytes, disk_bytes, pids_max, timeout_s, created_ms," \
    " started_ms, end_ms, ended_ms, deadline_boot_ms, epoch,"                                             \
    " generation, paused_ms, pause_depth, pause_id, snapshot_id, env_sealed"
#define TEMPLATE_COLS                                                                           \
    "t.id, t.tenant, t.name, t.sha256, t.state, t.public, t.bytes, t.created_ms, t.updated_ms," \
    " t.last_spawned_ms, t.spawn_count"
#define SESSION_COLS                                                                                        \
    "id, tenant, key, state, volume_id, sandbox_id, template_ref, metadata, epoch, created_ms, updated_ms," \
    " opened_ms, closed_ms"
#define VOLUME_COLS "id, tenant, name, session_id, state, bytes, created_ms"
#define KEY_COLS "id, tenant, name, prefix, created_ms, last_used_ms, revoked_ms"
/* Newest first, from a cursor on. */
#define PAGE                                                             \
    " AND (?2 <= 0 OR created_ms < ?2 OR (created_ms = ?2 AND id > ?3))" \
    " ORDER BY created_ms DESC, id LIMIT ?4"

enum {
    R_SEED,
    R_KEY,
    R_KEYS,
    R_SANDBOX,
    R_LIVE,
    R_SANDBOXES,
    R_EVENTS,
    R_EVENTS_LAST,
    R_TEMPLATE,
    R_TEMPLATE_NAME,
    R_TEMPLATE_ANYTAG,
    R_TEMPLATE_PUBLIC,
    R_TEMPLATES,
    R_TEMPLATE_NAMES,
    R_SESSION,
    R_SESSIONS,
    R_VOLUME,
    R_VOLUMES,
    R_ANSWER,
    R_COUNT,
};
_Static_assert((int)R_COUNT <= (int)META_READS_MAX, "raise META_READS_MAX");

static const char *const read_sql[R_COUNT] = {
    [R_SEED] = "SELECT value FROM node WHERE key = 'seed'",
    [R_KEY] = "SELECT " KEY_COLS " FROM api_keys WHERE hash = ?1 AND revoked_ms = 0",
    [R_KEYS] = "SELECT " KEY_COLS " FROM api_keys ORDER BY created_ms DESC, id",
    [R_SANDBOX] = "SELECT " SANDBOX_COLS " FROM sandboxes WHERE id = ?1",
    [R_LIVE] = "SELECT " SANDBOX_COLS " FROM sandboxes WHERE state NOT IN ('killed', 'failed')",
    [R_SANDBOXES] = "SELECT " SANDBOX_COLS " FROM sandboxes WHERE tenant = ?1" PAGE,
    [R_EVENTS] =
        "SELECT seq, time_ms, tenant, sandbox_id, session_id, kind, from_state, to_state, cause, detail"
        " FROM events WHERE tenant = ?1 AND (?2 = '' OR sandbox_id = ?2) AND seq > ?3"
        " ORDER BY seq LIMIT ?4",
    [R_EVENTS_LAST] =
        "SELECT * FROM (SELECT seq, time_ms, tenant, sandbox_id, session_id, kind, from_state,"
        " to_state, cause, detail FROM events WHERE tenant = ?1 AND (?2 = '' OR sandbox_id = ?2)"
        " ORDER BY seq DESC LIMIT ?4) ORDER BY seq",
    [R_TEMPLATE] = "SELECT " TEMPLATE_COLS " FROM templates t WHERE t.id = ?1",
    [R_TEMPLATE_NAME] =
        "SELECT " TEMPLATE_COLS " FROM template_names n JOIN templates t ON t.id = n.template_id"
        " WHERE n.tenant = ?1 AND n.name = ?2 AND n.tag = ?3 AND t.state = 'ready'",
    [R_TEMPLATE_ANYTAG] = "SELECT " TEMPLATE_COLS " FROM template_names n JOIN templates t"
                          " ON t.id = n.template_id WHERE n.tenant = ?1 AND n.name = ?2 AND t.state = 'ready'"
                          " LIMIT 1",
    [R_TEMPLATE_PUBLIC] = "SELECT " TEMPLATE_COLS " FROM template_names n JOIN templates t"
                          " ON t.id = n.template_id WHERE n.name = ?1 AND (?2 = '' OR n.tag = ?2)"
                          " AND t.public = 1 AND t.state = 'ready' ORDER BY t.created_ms LIMIT 1",
    [R_TEMPLATES] =
        "SELECT " TEMPLATE_COLS " FROM templates t WHERE (?1 = '' OR t.tenant = ?1 OR t.public = 1)"
        " ORDER BY t.created_ms DESC, t.id",
    [R_TEMPLATE_NAMES] = "SELECT name, tag FROM template_names WHERE template_id = ?1 ORDER BY name, tag",
    [R_SESSION] = "SELECT " SESSION_COLS " FROM sessions WHERE tenant = ?1 AND (id = ?2 OR key = ?2)",
    [R_SESSIONS] = "SELECT " SESSION_COLS " FROM sessions WHERE (?1 = '' OR tenant = ?1)"
                   " AND (?5 = '' OR state = ?5)" PAGE,
    [R_VOLUME] = "SELECT " VOLUME_COLS " FROM volumes WHERE id = ?1",
    [R_VOLUMES] = "SELECT " VOLUME_COLS " FROM volumes",
    [R_ANSWER] = "SELECT request_hash, status, body, created_ms FROM answers WHERE tenant = ?1 AND key = ?2",
};

void hf_sandbox_row_done(struct hf_sandbox_row *s)
{
    free(s->metadata);
    free(s->network);
    free(s->lifecycle);
    free(s->mounts);
    free(s->env_sealed);
    s->env_sealed = NULL;
    s->metadata = s->network = s->lifecycle = s->mounts = NULL;
}

void hf_session_row_done(struct hf_session_row *s)
{
    free(s->metadata);
    s->metadata = NULL;
}

void hf_answer_row_done(struct hf_answer_row *a)
{
    free(a->body);
    a->body = NULL;
}

void meta_read_done(struct hf_meta *m)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(m->rd); i++)
        (void)sqlite3_finalize(m->rd[i]);
    for (size_t i = 0; i < HF_ARRAY_LEN(m->net_rd); i++)
        (void)sqlite3_finalize(m->net_rd[i]);
    for (size_t i = 0; i < HF_ARRAY_LEN(m->persist_rd); i++)
        (void)sqlite3_finalize(m->persist_rd[i]);
}

sqlite3_stmt *meta_bind(struct hf_meta *m, sqlite3_stmt **s, const char *sql, const char *fmt, va_list ap)
{
    if (!*s && sqlite3_prepare_v3(m->rdb, sql, -1, SQLITE_PREPARE_PERSISTENT, s, NULL) != SQLITE_OK)
        return NULL;
    for (int i = 0; fmt[i]; i++) {
        if (fmt[i] == 's') {
            const char *text = va_arg(ap, const char *);
            (void)sqlite3_bind_text(*s, i + 1, text ? text : "", -1, SQLITE_TRANSIENT);
        } else {
            (void)sqlite3_bind_int64(*s, i + 1, va_arg(ap, int64_t));
        }
    }
    return *s;
}

/* Bound parameters of a read: texts as ("s"), integers as ("i"), in the order of the format. */
static sqlite3_stmt *get(struct hf_meta *m, int which, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *s = meta_bind(m, &m->rd[which], read_sql[which], fmt, ap);
    va_end(ap);
    return s;
}

int meta_read_end(sqlite3_stmt *s, int code)
{
    if (s) {
        (void)sqlite3_reset(s);
        (void)sqlite3_clear_bindings(s);
    }
    return code == SQLITE_ROW ? 1 : code == SQLITE_DONE ? 0 : -EIO;
}

#define COL(dst, col) meta_col_text(s, (col), (dst), sizeof(dst))
void meta_col_text(sqlite3_stmt *s, int col, char *out, size_t n)
{
    const char *text = (const char *)sqlite3_column_text(s, col);
    (void)snprintf(out, n, "%s", text ? text : "");
}

char *meta_col_dup(sqlite3_stmt *s, int col)
{
    const char *text = (const char *)sqlite3_column_text(s, col);
    return hf_xstrdup(text ? text : "");
}

unsigned char *meta_col_blob(sqlite3_stmt *s, int col, size_t *ret_n)
{
    const void *p = sqlite3_column_blob(s, col);
    size_t n = (size_t)sqlite3_column_bytes(s, col);
    unsigned char *copy = hf_xmalloc(n + 1);
    if (n)
        memcpy(copy, p, n);
    copy[n] = '\0';
    *ret_n = n;
    return copy;
}

static void fill_key(sqlite3_stmt *s, struct hf_key_row *k)
{
    COL(k->id, 0);
    COL(k->tenant, 1);
    COL(k->name, 2);
    COL(k->prefix, 3);
    k->created_ms = sqlite3_column_int64(s, 4);
    k->last_used_ms = sqlite3_column_int64(s, 5);
    k->revoked_ms = sqlite3_column_int64(s, 6);
}

static void fill_sandbox(sqlite3_stmt *s, struct hf_sandbox_row *r)
{
    COL(r->id, 0);
    COL(r->tenant, 1);
    COL(r->template_id, 2);
    COL(r->alias, 3);
    COL(r->state, 4);
    COL(r->cause, 5);
    COL(r->detail, 6);
    COL(r->session_id, 7);
    COL(r->envd_version, 8);
    COL(r->boot_id, 9);
    r->metadata = meta_col_dup(s, 10);
    r->network = meta_col_dup(s, 11);
    r->lifecycle = meta_col_dup(s, 12);
    r->mounts = meta_col_dup(s, 13);
    int64_t *ints[] = {&r->cpu_millis, &r->memory_bytes, &r->disk_bytes, &r->pids_max, &r->timeout_s,
                       &r->created_ms, &r->started_ms,   &r->end_ms,     &r->ended_ms, &r->deadline_boot_ms,
                       &r->epoch,      &r->generation,   &r->paused_ms};
    for (size_t i = 0; i < HF_ARRAY_LEN(ints); i++)
        *ints[i] = sqlite3_column_int64(s, 14 + (int)i);
    COL(r->pause_depth, 27);
    COL(r->pause_id, 28);
    COL(r->snapshot_id, 29);
    r->env_sealed = meta_col_blob(s, 30, &r->env_sealed_n);
}

static void fill_event(sqlite3_stmt *s, struct hf_event_row *e)
{
    e->seq = sqlite3_column_int64(s, 0);
    e->time_ms = sqlite3_column_int64(s, 1);
    COL(e->tenant, 2);
    COL(e->sandbox_id, 3);
    COL(e->session_id, 4);
    COL(e->kind, 5);
    COL(e->from, 6);
    COL(e->to, 7);
    COL(e->cause, 8);
    COL(e->detail, 9);
}

static void fill_template(sqlite3_stmt *s, struct hf_template_row *t)
{
    COL(t->id, 0);
    COL(t->tenant, 1);
    COL(t->name, 2);
    COL(t->sha256, 3);
    COL(t->state, 4);
    t->is_public = sqlite3_column_int(s, 5) != 0;
    t->bytes = sqlite3_column_int64(s, 6);
    t->created_ms = sqlite3_column_int64(s, 7);
    t->updated_ms = sqlite3_column_int64(s, 8);
    t->last_spawned_ms = sqlite3_column_int64(s, 9);
    t->spawn_count = sqlite3_column_int64(s, 10);
}

static void fill_session(sqlite3_stmt *s, struct hf_session_row *r)
{
    COL(r->id, 0);
    COL(r->tenant, 1);
    COL(r->key, 2);
    COL(r->state, 3);
    COL(r->volume_id, 4);
    COL(r->sandbox_id, 5);
    COL(r->template_ref, 6);
    r->metadata = meta_col_dup(s, 7);
    r->epoch = sqlite3_column_int64(s, 8);
    r->created_ms = sqlite3_column_int64(s, 9);
    r->updated_ms = sqlite3_column_int64(s, 10);
    r->opened_ms = sqlite3_column_int64(s, 11);
    r->closed_ms = sqlite3_column_int64(s, 12);
}

static void fill_volume(sqlite3_stmt *s, struct hf_volume_row *v)
{
    COL(v->id, 0);
    COL(v->tenant, 1);
    COL(v->name, 2);
    COL(v->session_id, 3);
    COL(v->state, 4);
    v->bytes = sqlite3_column_int64(s, 5);
    v->created_ms = sqlite3_column_int64(s, 6);
}

/* One row or none: `fill` gets the statement when there is one. */
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

int meta_read_seed(struct hf_meta *m, struct hf_err *err)
{
    sqlite3_stmt *s = get(m, R_SEED, "");
    int code = s ? sqlite3_step(s) : SQLITE_ERROR;
    bool good = code == SQLITE_ROW && sqlite3_column_bytes(s, 0) == (int)sizeof(m->seed);
    if (good)
        memcpy(m->seed, sqlite3_column_blob(s, 0), sizeof(m->seed));
    (void)meta_read_end(s, code);
    return good ? 0 : hf_err_set(err, -EIO, "the database has no node seed: %s", sqlite3_errmsg(m->rdb));
}

void hf_meta_seed(const struct hf_meta *m, unsigned char out[HF_META_SEED_LEN])
{
    memcpy(out, m->seed, sizeof(m->seed));
}

int hf_get_key(struct hf_meta *m, const unsigned char hash[32], struct hf_key_row *ret)
{
    sqlite3_stmt *q = get(m, R_KEY, "");
    if (q)
        (void)sqlite3_bind_blob(q, 1, hash, 32, SQLITE_TRANSIENT);
    ONE(q, ret, fill_key);
}

int hf_get_sandbox(struct hf_meta *m, const char *id, struct hf_sandbox_row *ret)
{
    ONE(get(m, R_SANDBOX, "s", id), ret, fill_sandbox);
}

int hf_get_template(struct hf_meta *m, const char *id, struct hf_template_row *ret)
{
    ONE(get(m, R_TEMPLATE, "s", id), ret, fill_template);
}

int hf_get_template_by_name(struct hf_meta *m, const char *tenant, const char *name, const char *tag,
                            struct hf_template_row *ret)
{
    ONE(tag ? get(m, R_TEMPLATE_NAME, "sss", tenant, name, tag)
            : get(m, R_TEMPLATE_ANYTAG, "ss", tenant, name),
        ret, fill_template);
}

int hf_get_public_template_by_name(struct hf_meta *m, const char *name, const char *tag,
                                   struct hf_template_row *ret)
{
    ONE(get(m, R_TEMPLATE_PUBLIC, "ss", name, tag), ret, fill_template);
}

int hf_get_session(struct hf_meta *m, const char *tenant, const char *id_or_key, struct hf_session_row *ret)
{
    ONE(get(m, R_SESSION, "ss", tenant, id_or_key), ret, fill_session);
}

int hf_get_volume(struct hf_meta *m, const char *id, struct hf_volume_row *ret)
{
    ONE(get(m, R_VOLUME, "s", id), ret, fill_volume);
}

static void fill_answer(sqlite3_stmt *s, struct hf_answer_row *a)
{
    if (sqlite3_column_bytes(s, 0) == (int)sizeof(a->request_hash))
        memcpy(a->request_hash, sqlite3_column_blob(s, 0), sizeof(a->request_hash));
    a->status = sqlite3_column_int(s, 1);
    a->body = meta_col_dup(s, 2);
    a->created_ms = sqlite3_column_int64(s, 3);
}

int hf_get_answer(struct hf_meta *m, const char *tenant, const char *key, struct hf_answer_row *ret)
{
    ONE(get(m, R_ANSWER, "ss", tenant, key), ret, fill_answer);
}

/* Every row of a statement: `row` is filled, given to fn, and let go with `done`. */
#define EACH(stmt, type, fill, done)                 \
    sqlite3_stmt *s = (stmt);                        \
    if (!s)                                          \
        return -EIO;                                 \
    int code;                                        \
    while ((code = sqlite3_step(s)) == SQLITE_ROW) { \
        struct type row = {0};                       \
        fill(s, &row);                               \
        fn(arg, &row);                               \
        done(&row);                                  \
    }                                                \
    return meta_read_end(s, code) < 0 ? -EIO : 0
#define NOTHING(row) (void)(row)

int hf_each_key(struct hf_meta *m, void (*fn)(void *arg, const struct hf_key_row *k), void *arg)
{
    EACH(get(m, R_KEYS, ""), hf_key_row, fill_key, NOTHING);
}

int hf_each_live_sandbox(struct hf_meta *m, void (*fn)(void *arg, const struct hf_sandbox_row *s), void *arg)
{
    EACH(get(m, R_LIVE, ""), hf_sandbox_row, fill_sandbox, hf_sandbox_row_done);
}

int hf_each_sandbox(struct hf_meta *m, const char *tenant, int64_t before_ms, const char *before_id,
                    int limit, void (*fn)(void *arg, const struct hf_sandbox_row *s), void *arg)
{
    EACH(get(m, R_SANDBOXES, "sisi", tenant, before_ms, before_id, (int64_t)limit), hf_sandbox_row,
         fill_sandbox, hf_sandbox_row_done);
}

int hf_each_event(struct hf_meta *m, const char *tenant, const char *sandbox, int64_t after, int limit,
                  void (*fn)(void *arg, const struct hf_event_row *e), void *arg)
{
    EACH(get(m, after < 0 ? R_EVENTS_LAST : R_EVENTS, "ssii", tenant, sandbox, after, (int64_t)limit),
         hf_event_row, fill_event, NOTHING);
}

int hf_each_template(struct hf_meta *m, const char *tenant,
                     void (*fn)(void *arg, const struct hf_template_row *t), void *arg)
{
    EACH(get(m, R_TEMPLATES, "s", tenant), hf_template_row, fill_template, NOTHING);
}

int hf_each_template_name(struct hf_meta *m, const char *template_id,
                          void (*fn)(void *arg, const char *name, const char *tag), void *arg)
{
    sqlite3_stmt *s = get(m, R_TEMPLATE_NAMES, "s", template_id);
    if (!s)
        return -EIO;
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        fn(arg, (const char *)sqlite3_column_text(s, 0), (const char *)sqlite3_column_text(s, 1));
    return meta_read_end(s, code) < 0 ? -EIO : 0;
}

int hf_each_session(struct hf_meta *m, const char *tenant, const char *state, int64_t before_ms,
                    const char *before_id, int limit, void (*fn)(void *arg, const struct hf_session_row *s),
                    void *arg)
{
    EACH(get(m, R_SESSIONS, "sisis", tenant, before_ms, before_id, (int64_t)limit, state), hf_session_row,
         fill_session, hf_session_row_done);
}

int hf_each_volume(struct hf_meta *m, void (*fn)(void *arg, const struct hf_volume_row *v), void *arg)
{
    EACH(get(m, R_VOLUMES, ""), hf_volume_row, fill_volume, NOTHING);
}
