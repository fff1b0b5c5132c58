/* Building batches: typed adders over one statement table. */
#include "store/meta_int.h"

const char *const meta_write_sql[W_COUNT] = {
    [W_TENANT] = "INSERT INTO tenants VALUES(?, ?) ON CONFLICT DO NOTHING",
    [W_KEY] = "INSERT INTO api_keys(id, tenant, name, prefix, hash, created_ms) VALUES(?, ?, ?, ?, ?, ?)",
    [W_KEY_USED] = "UPDATE api_keys SET last_used_ms = ?2 WHERE id = ?1",
    [W_KEY_REVOKED] = "UPDATE api_keys SET revoked_ms = ?2 WHERE id = ?1 AND revoked_ms = 0",
    [W_SANDBOX] = "INSERT INTO sandboxes VALUES"
                  "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)",
    [W_SANDBOX_STATE] = "UPDATE sandboxes SET state = ?3, cause = ?4, detail = ?5,"
                        " ended_ms = CASE WHEN ?3 IN ('killed', 'failed') THEN ?6 ELSE ended_ms END"
                        " WHERE id = ?1 AND state = ?2",
    [W_SANDBOX_TIMES] =
        "UPDATE sandboxes SET started_ms = ?2, end_ms = ?3, deadline_boot_ms = ?4 WHERE id = ?1",
    [W_SANDBOX_ENVD] = "UPDATE sandboxes SET envd_version = ?2 WHERE id = ?1",
    [W_EVENT] =
        "INSERT INTO events(time_ms, tenant, sandbox_id, session_id, kind, from_state, to_state, cause,"
        " detail) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
    [W_PRUNE_EVENTS] = "DELETE FROM events WHERE time_ms < ?1 AND NOT EXISTS"
                       " (SELECT 1 FROM sandboxes s WHERE s.id = events.sandbox_id AND s.ended_ms = 0)",
    [W_PRUNE_SANDBOXES] = "DELETE FROM sandboxes WHERE ended_ms > 0 AND ended_ms < ?1",
    [W_PRUNE_ANSWERS] = "DELETE FROM answers WHERE created_ms < ?1",
    [W_TEMPLATE] = "INSERT INTO templates VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0)",
    [W_TEMPLATE_READY] = "UPDATE templates SET state = 'ready', sha256 = ?2, bytes = ?3, updated_ms = ?4"
                         " WHERE id = ?1 AND state = 'importing'",
    [W_TEMPLATE_NAME] = "INSERT INTO template_names VALUES(?, ?, ?, ?) ON CONFLICT(tenant, name, tag)"
                        " DO UPDATE SET template_id = excluded.template_id",
    [W_TEMPLATE_SPAWNED] =
        "UPDATE templates SET last_spawned_ms = ?2, spawn_count = spawn_count + 1 WHERE id = ?1",
    [W_TEMPLATE_DELETING] = "UPDATE templates SET state = 'deleting' WHERE id = ?1",
    [W_TEMPLATE_NAMES_DEL] = "DELETE FROM template_names WHERE template_id = ?1",
    [W_TEMPLATE_DEL] = "DELETE FROM templates WHERE id = ?1",
    [W_SESSION] = "INSERT INTO sessions VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    [W_SESSION_BIND] =
        "UPDATE sessions SET sandbox_id = ?3, epoch = epoch + 1, updated_ms = ?4, opened_ms = ?4,"
        " state = 'open' WHERE id = ?1 AND epoch = ?2 AND state <> 'deleting'",
    [W_SESSION_STATE] = "UPDATE sessions SET state = ?2, updated_ms = ?3,"
                        " closed_ms = CASE WHEN ?2 = 'closed' THEN ?3 ELSE closed_ms END,"
                        " opened_ms = CASE WHEN ?2 = 'open' THEN ?3 ELSE opened_ms END WHERE id = ?1",
    [W_SESSION_DEL] = "DELETE FROM sessions WHERE id = ?1",
    [W_VOLUME] = "INSERT INTO volumes VALUES(?, ?, ?, ?, ?, ?, ?)",
    [W_VOLUME_STATE] = "UPDATE volumes SET state = ?2 WHERE id = ?1",
    [W_VOLUME_DEL] = "DELETE FROM volumes WHERE id = ?1",
    [W_ANSWER] = "INSERT OR REPLACE INTO answers VALUES(?, ?, ?, ?, ?, ?)",
};

struct hf_meta_batch *hf_meta_batch_new(void)
{
    struct hf_meta_batch *b = hf_new(struct hf_meta_batch);
    b->last = &b->first;
    return b;
}

void hf_meta_batch_free(struct hf_meta_batch *b)
{
    if (!b)
        return;
    for (struct meta_op *op = b->first, *next; op; op = next) {
        next = op->next;
        for (int i = 0; i < op->n; i++)
            free(op->params[i].p);
        free(op);
    }
    free(b);
}

static struct meta_op *add(struct hf_meta_batch *b, enum meta_stmt stmt)
{
    struct meta_op *op = hf_new(struct meta_op);
    op->stmt = stmt;
    *b->last = op;
    b->last = &op->next;
    return op;
}

static struct meta_param *param(struct meta_op *op)
{
    if (op->n >= META_PARAMS_MAX)
        abort(); /* a statement of the table above has too many: a programming error */
    return &op->params[op->n++];
}

static void p_int(struct meta_op *op, int64_t v)
{
    struct meta_param *p = param(op);
    p->type = P_INT;
    p->i = v;
}

static void p_text(struct meta_op *op, const char *s)
{
    struct meta_param *p = param(op);
    p->type = P_TEXT;
    p->p = hf_xstrdup(s ? s : "");
    p->n = strlen(p->p);
}

static void p_blob(struct meta_op *op, const void *data, size_t n)
{
    struct meta_param *p = param(op);
    p->type = P_BLOB;
    p->p = hf_xmalloc(n + 1);
    memcpy(p->p, data, n);
    p->n = n;
}

void hf_put_tenant(struct hf_meta_batch *b, const char *name, int64_t now_ms)
{
    struct meta_op *op = add(b, W_TENANT);
    p_text(op, name);
    p_int(op, now_ms);
}

void hf_put_key(struct hf_meta_batch *b, const struct hf_key_row *k)
{
    struct meta_op *op = add(b, W_KEY);
    p_text(op, k->id);
    p_text(op, k->tenant);
    p_text(op, k->name);
    p_text(op, k->prefix);
    p_blob(op, k->hash, sizeof(k->hash));
    p_int(op, k->created_ms);
}

static void id_and_time(struct hf_meta_batch *b, enum meta_stmt stmt, const char *id, int64_t now_ms)
{
    struct meta_op *op = add(b, stmt);
    p_text(op, id);
    p_int(op, now_ms);
}

static void id_only(struct hf_meta_batch *b, enum meta_stmt stmt, const char *id)
{
    p_text(add(b, stmt), id);
}

void hf_set_key_used(struct hf_meta_batch *b, const char *id, int64_t now_ms)
{
    id_and_time(b, W_KEY_USED, id, now_ms);
}

void hf_set_key_revoked(struct hf_meta_batch *b, const char *id, int64_t now_ms)
{
    id_and_time(b, W_KEY_REVOKED, id, now_ms);
}

void hf_put_sandbox(struct hf_meta_batch *b, const struct hf_sandbox_row *s)
{
    struct meta_op *op = add(b, W_SANDBOX);
    const char *texts[] = {s->id,       s->tenant,  s->template_id, s->alias,        s->state,
                           s->cause,    s->detail,  s->session_id,  s->envd_version, s->boot_id,
                           s->metadata, s->network, s->lifecycle,   s->mounts};
    for (size_t i = 0; i < HF_ARRAY_LEN(texts); i++)
        p_text(op, texts[i]);
    const int64_t ints[] = {s->cpu_millis, s->memory_bytes, s->disk_bytes, s->pids_max,         s->timeout_s,
                            s->created_ms, s->started_ms,   s->end_ms,     s->deadline_boot_ms, s->epoch};
    for (size_t i = 0; i < HF_ARRAY_LEN(ints); i++)
        p_int(op, ints[i]);
}

void hf_set_sandbox_state(struct hf_meta_batch *b, const char *id, const char *from, const char *to,
                          const char *cause, const char *detail, int64_t now_ms)
{
    struct meta_op *op = add(b, W_SANDBOX_STATE);
    op->expect_change = true;
    p_text(op, id);
    p_text(op, from);
    p_text(op, to);
    p_text(op, cause);
    p_text(op, detail);
    p_int(op, now_ms);
}

void hf_set_sandbox_times(struct hf_meta_batch *b, const char *id, int64_t started_ms, int64_t end_ms,
                          int64_t deadline_boot_ms)
{
    struct meta_op *op = add(b, W_SANDBOX_TIMES);
    p_text(op, id);
    p_int(op, started_ms);
    p_int(op, end_ms);
    p_int(op, deadline_boot_ms);
}

void hf_set_sandbox_envd(struct hf_meta_batch *b, const char *id, const char *envd_version)
{
    struct meta_op *op = add(b, W_SANDBOX_ENVD);
    p_text(op, id);
    p_text(op, envd_version);
}

void hf_put_event(struct hf_meta_batch *b, const struct hf_event_row *e)
{
    struct meta_op *op = add(b, W_EVENT);
    p_int(op, e->time_ms);
    const char *texts[] = {e->tenant, e->sandbox_id, e->session_id, e->kind,
                           e->from,   e->to,         e->cause,      e->detail};
    for (size_t i = 0; i < HF_ARRAY_LEN(texts); i++)
        p_text(op, texts[i]);
}

void hf_prune(struct hf_meta_batch *b, int64_t sandboxes_before_ms, int64_t answers_before_ms)
{
    p_int(add(b, W_PRUNE_SANDBOXES), sandboxes_before_ms);
    p_int(add(b, W_PRUNE_EVENTS), sandboxes_before_ms);
    p_int(add(b, W_PRUNE_ANSWERS), answers_before_ms);
}

void hf_put_template(struct hf_meta_batch *b, const struct hf_template_row *t)
{
    struct meta_op *op = add(b, W_TEMPLATE);
    p_text(op, t->id);
    p_text(op, t->tenant);
    p_text(op, t->name);
    p_text(op, t->sha256);
    p_text(op, t->state);
    p_int(op, t->is_public);
    p_int(op, t->bytes);
    p_int(op, t->created_ms);
    p_int(op, t->updated_ms);
}

void hf_set_template_ready(struct hf_meta_batch *b, const char *id, const char *sha256, int64_t bytes,
                           int64_t now_ms)
{
    struct meta_op *op = add(b, W_TEMPLATE_READY);
    op->expect_change = true;
    p_text(op, id);
    p_text(op, sha256);
    p_int(op, bytes);
    p_int(op, now_ms);
}

void hf_put_template_name(struct hf_meta_batch *b, const char *tenant, const char *name, const char *tag,
                          const char *template_id)
{
    struct meta_op *op = add(b, W_TEMPLATE_NAME);
    p_text(op, tenant);
    p_text(op, name);
    p_text(op, tag);
    p_text(op, template_id);
}

void hf_set_template_spawned(struct hf_meta_batch *b, const char *id, int64_t now_ms)
{
    id_and_time(b, W_TEMPLATE_SPAWNED, id, now_ms);
}

void hf_set_template_deleting(struct hf_meta_batch *b, const char *id)
{
    id_only(b, W_TEMPLATE_DELETING, id);
    id_only(b, W_TEMPLATE_NAMES_DEL, id);
}

void hf_del_template(struct hf_meta_batch *b, const char *id)
{
    id_only(b, W_TEMPLATE_NAMES_DEL, id);
    id_only(b, W_TEMPLATE_DEL, id);
}

void hf_put_session(struct hf_meta_batch *b, const struct hf_session_row *s)
{
    struct meta_op *op = add(b, W_SESSION);
    const char *texts[] = {s->id,        s->tenant,     s->key,          s->state,
                           s->volume_id, s->sandbox_id, s->template_ref, s->metadata};
    for (size_t i = 0; i < HF_ARRAY_LEN(texts); i++)
        p_text(op, texts[i]);
    p_int(op, s->epoch);
    p_int(op, s->created_ms);
    p_int(op, s->updated_ms);
    p_int(op, s->opened_ms);
    p_int(op, s->closed_ms);
}

void hf_bind_session(struct hf_meta_batch *b, const char *id, int64_t expect_epoch, const char *sandbox_id,
                     int64_t now_ms)
{
    struct meta_op *op = add(b, W_SESSION_BIND);
    op->expect_change = true;
    p_text(op, id);
    p_int(op, expect_epoch);
    p_text(op, sandbox_id);
    p_int(op, now_ms);
}

void hf_set_session_state(struct hf_meta_batch *b, const char *id, const char *state, int64_t now_ms)
{
    struct meta_op *op = add(b, W_SESSION_STATE);
    op->expect_change = true;
    p_text(op, id);
    p_text(op, state);
    p_int(op, now_ms);
}

void hf_del_session(struct hf_meta_batch *b, const char *id)
{
    id_only(b, W_SESSION_DEL, id);
}

void hf_put_volume(struct hf_meta_batch *b, const struct hf_volume_row *v)
{
    struct meta_op *op = add(b, W_VOLUME);
    p_text(op, v->id);
    p_text(op, v->tenant);
    p_text(op, v->name);
    p_text(op, v->session_id);
    p_text(op, v->state);
    p_int(op, v->bytes);
    p_int(op, v->created_ms);
}

void hf_set_volume_state(struct hf_meta_batch *b, const char *id, const char *state)
{
    struct meta_op *op = add(b, W_VOLUME_STATE);
    p_text(op, id);
    p_text(op, state);
}

void hf_del_volume(struct hf_meta_batch *b, const char *id)
{
    id_only(b, W_VOLUME_DEL, id);
}

void hf_put_answer(struct hf_meta_batch *b, const struct hf_answer_row *a)
{
    struct meta_op *op = add(b, W_ANSWER);
    p_text(op, a->tenant);
    p_text(op, a->key);
    p_blob(op, a->request_hash, sizeof(a->request_hash));
    p_int(op, a->status);
    p_text(op, a->body);
    p_int(op, a->created_ms);
}
