/* Building batches: typed adders over one statement table. */
#include "store/meta_int.h"

const char *const meta_write_sql[W_COUNT] = {
    [W_TENANT] = "INSERT INTO tenants VALUES(?, ?) ON CONFLICT DO NOTHING",
    [W_KEY] = "INSERT INTO api_keys(id, tenant, name, prefix, hash, created_ms) VALUES(?, ?, ?, ?, ?, ?)",
    [W_KEY_USED] = "UPDATE api_keys SET last_used_ms = ?2 WHERE id = ?1",
    [W_KEY_REVOKED] = "UPDATE api_keys SET revoked_ms = ?2 WHERE id = ?1 AND revoked_ms = 0",
    [W_SANDBOX] =
        "INSERT INTO sandboxes VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,"
        " ?, 0, ?, ?, ?, '', '', 0, ?, ?)",
    [W_SANDBOX_PAUSE] = "UPDATE sandboxes SET generation = ?2, pause_depth = ?3, pause_id = ?4,"
                        " paused_ms = ?5 WHERE id = ?1",
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
    [W_TEMPLATE] = "INSERT INTO templates VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, '{}', '')",
    [W_TEMPLATE_READY] = "UPDATE templates SET state = 'ready', sha256 = ?2, bytes = ?3, updated_ms = ?4"
                         " WHERE id = ?1 AND state = 'importing'",
    [W_TEMPLATE_NAME] = "INSERT INTO template_names VALUES(?, ?, ?, ?, 0) ON CONFLICT(tenant, name, tag)"
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
    [W_VOLUME] = "INSERT INTO volumes VALUES(?, ?, ?, ?, ?, ?, ?, 'exclusive')",
    [W_VOLUME_STATE] = "UPDATE volumes SET state = ?2 WHERE id = ?1",
    [W_VOLUME_DEL] = "DELETE FROM volumes WHERE id = ?1",
    [W_ANSWER] = "INSERT OR REPLACE INTO answers VALUES(?, ?, ?, ?, ?, ?)",
    [W_SESSION_METADATA] = "UPDATE sessions SET metadata = ?2 WHERE id = ?1",
    [W_SANDBOX_NETWORK] = "UPDATE sandboxes SET network = ?2 WHERE id = ?1",
    [W_POLICY] = "INSERT INTO policies VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT(tenant, name) DO UPDATE SET"
                 " doc = excluded.doc, version = excluded.version, updated_ms = excluded.updated_ms",
    [W_POLICY_DEL] = "DELETE FROM policies WHERE tenant = ?1 AND name = ?2",
    [W_SECRET] = "INSERT INTO secrets VALUES(?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(tenant, name) DO UPDATE SET"
                 " metadata = excluded.metadata, sealed = excluded.sealed, version = excluded.version,"
                 " updated_ms = excluded.updated_ms",
    [W_SECRET_DEL] = "DELETE FROM secrets WHERE tenant = ?1 AND name = ?2",
    [W_CA] = "INSERT INTO authorities VALUES(?, ?, ?, ?)",
    [W_OUTBOUND] = "INSERT INTO outbound(time_ms, tenant, sandbox_id, session_id, kind, denied, doc)"
                   " VALUES(?, ?, ?, ?, ?, ?, ?)",
    [W_OUTBOUND_CURSOR] = "INSERT INTO outbound_cursor VALUES(1, ?, ?) ON CONFLICT(one) DO UPDATE SET"
                          " file = excluded.file, position = excluded.position",
    [W_SNAPSHOT] = "INSERT INTO snapshots VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    [W_SNAPSHOT_READY] = "UPDATE snapshots SET state = 'ready', kind = ?2, bytes = ?3, exclusive_bytes = ?4,"
                         " frozen_us = ?5, total_us = ?6 WHERE id = ?1 AND state = 'creating'",
    [W_SNAPSHOT_META] = "UPDATE snapshots SET meta = ?2 WHERE id = ?1",
    [W_SNAPSHOT_POLICY] = "INSERT INTO snapshot_policies VALUES(?, ?, ?, ?) ON CONFLICT(sandbox_id)"
                          " DO UPDATE SET policy = excluded.policy",
    [W_SNAPSHOT_POLICY_LAST] = "UPDATE snapshot_policies SET last_ms = ?2 WHERE sandbox_id = ?1",
    [W_SNAPSHOT_POLICY_DEL] = "DELETE FROM snapshot_policies WHERE sandbox_id = ?1",
    [W_SNAPSHOT_BYTES] = "UPDATE snapshots SET bytes = ?2, exclusive_bytes = ?3 WHERE id = ?1",
    [W_SNAPSHOT_DELETING] = "UPDATE snapshots SET state = 'deleting' WHERE id = ?1",
    [W_SNAPSHOT_NAMES_DEL] = "DELETE FROM snapshot_names WHERE snapshot_id = ?1",
    [W_SNAPSHOT_DEL] = "DELETE FROM snapshots WHERE id = ?1",
    [W_SNAPSHOT_NAME] = "INSERT INTO snapshot_names VALUES(?, ?, ?) ON CONFLICT(tenant, name)"
                        " DO UPDATE SET snapshot_id = excluded.snapshot_id",
    [W_OUTBOUND_PRUNE_AGE] = "DELETE FROM outbound WHERE time_ms < ?1",
    [W_OUTBOUND_PRUNE_COUNT] = "DELETE FROM outbound WHERE seq <= (SELECT MAX(seq) FROM outbound) - ?1",
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

struct meta_op *meta_add(struct hf_meta_batch *b, enum meta_stmt stmt)
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

void meta_p_int(struct meta_op *op, int64_t v)
{
    struct meta_param *p = param(op);
    p->type = P_INT;
    p->i = v;
}

void meta_p_text(struct meta_op *op, const char *s)
{
    struct meta_param *p = param(op);
    p->type = P_TEXT;
    p->p = hf_xstrdup(s ? s : "");
    p->n = strlen(p->p);
}

void meta_p_blob(struct meta_op *op, const void *data, size_t n)
{
    struct meta_param *p = param(op);
    p->type = P_BLOB;
    p->p = hf_xmalloc(n + 1);
    if (n)
        memcpy(p->p, data, n);
    p->n = n;
}

void hf_put_tenant(struct hf_meta_batch *b, const char *name, int64_t now_ms)
{
    struct meta_op *op = meta_add(b, W_TENANT);
    meta_p_text(op, name);
    meta_p_int(op, now_ms);
}

void hf_put_key(struct hf_meta_batch *b, const struct hf_key_row *k)
{
    struct meta_op *op = meta_add(b, W_KEY);
    meta_p_text(op, k->id);
    meta_p_text(op, k->tenant);
    meta_p_text(op, k->name);
    meta_p_text(op, k->prefix);
    meta_p_blob(op, k->hash, sizeof(k->hash));
    meta_p_int(op, k->created_ms);
}

static void id_and_time(struct hf_meta_batch *b, enum meta_stmt stmt, const char *id, int64_t now_ms)
{
    struct meta_op *op = meta_add(b, stmt);
    meta_p_text(op, id);
    meta_p_int(op, now_ms);
}

static void id_only(struct hf_meta_batch *b, enum meta_stmt stmt, const char *id)
{
    meta_p_text(meta_add(b, stmt), id);
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
    struct meta_op *op = meta_add(b, W_SANDBOX);
    const char *texts[] = {s->id,       s->tenant,  s->template_id, s->alias,        s->state,
                           s->cause,    s->detail,  s->session_id,  s->envd_version, s->boot_id,
                           s->metadata, s->network, s->lifecycle,   s->mounts};
    for (size_t i = 0; i < HF_ARRAY_LEN(texts); i++)
        meta_p_text(op, texts[i]);
    const int64_t ints[] = {s->cpu_millis,
                            s->memory_bytes,
                            s->disk_bytes,
                            s->pids_max,
                            s->timeout_s,
                            s->created_ms,
                            s->started_ms,
                            s->end_ms,
                            s->deadline_boot_ms,
                            s->epoch,
                            s->generation ? s->generation : 1};
    for (size_t i = 0; i < HF_ARRAY_LEN(ints); i++)
        meta_p_int(op, ints[i]);
    meta_p_text(op, s->snapshot_id);
    meta_p_blob(op, s->env_sealed, s->env_sealed_n);
}

void hf_set_sandbox_state(struct hf_meta_batch *b, const char *id, const char *from, const char *to,
                          const char *cause, const char *detail, int64_t now_ms)
{
    struct meta_op *op = meta_add(b, W_SANDBOX_STATE);
    op->expect_change = true;
    meta_p_text(op, id);
    meta_p_text(op, from);
    meta_p_text(op, to);
    meta_p_text(op, cause);
    meta_p_text(op, detail);
    meta_p_int(op, now_ms);
}

void hf_set_sandbox_times(struct hf_meta_batch *b, const char *id, int64_t started_ms, int64_t end_ms,
                          int64_t deadline_boot_ms)
{
    struct meta_op *op = meta_add(b, W_SANDBOX_TIMES);
    meta_p_text(op, id);
    meta_p_int(op, started_ms);
    meta_p_int(op, end_ms);
    meta_p_int(op, deadline_boot_ms);
}

void hf_set_sandbox_envd(struct hf_meta_batch *b, const char *id, const char *envd_version)
{
    struct meta_op *op = meta_add(b, W_SANDBOX_ENVD);
    meta_p_text(op, id);
    meta_p_text(op, envd_version);
}

void hf_put_event(struct hf_meta_batch *b, const struct hf_event_row *e)
{
    struct meta_op *op = meta_add(b, W_EVENT);
    meta_p_int(op, e->time_ms);
    const char *texts[] = {e->tenant, e->sandbox_id, e->session_id, e->kind,
                           e->from,   e->to,         e->cause,      e->detail};
    for (size_t i = 0; i < HF_ARRAY_LEN(texts); i++)
        meta_p_text(op, texts[i]);
}

void hf_prune(struct hf_meta_batch *b, int64_t sandboxes_before_ms, int64_t answers_before_ms)
{
    meta_p_int(meta_add(b, W_PRUNE_SANDBOXES), sandboxes_before_ms);
    meta_p_int(meta_add(b, W_PRUNE_EVENTS), sandboxes_before_ms);
    meta_p_int(meta_add(b, W_PRUNE_ANSWERS), answers_before_ms);
}

void hf_put_template(struct hf_meta_batch *b, const struct hf_template_row *t)
{
    struct meta_op *op = meta_add(b, W_TEMPLATE);
    meta_p_text(op, t->id);
    meta_p_text(op, t->tenant);
    meta_p_text(op, t->name);
    meta_p_text(op, t->sha256);
    meta_p_text(op, t->state);
    meta_p_int(op, t->is_public);
    meta_p_int(op, t->bytes);
    meta_p_int(op, t->created_ms);
    meta_p_int(op, t->updated_ms);
}

void hf_set_template_ready(struct hf_meta_batch *b, const char *id, const char *sha256, int64_t bytes,
                           int64_t now_ms)
{
    struct meta_op *op = meta_add(b, W_TEMPLATE_READY);
    op->expect_change = true;
    meta_p_text(op, id);
    meta_p_text(op, sha256);
    meta_p_int(op, bytes);
    meta_p_int(op, now_ms);
}

void hf_put_template_name(struct hf_meta_batch *b, const char *tenant, const char *name, const char *tag,
                          const char *template_id)
{
    struct meta_op *op = meta_add(b, W_TEMPLATE_NAME);
    meta_p_text(op, tenant);
    meta_p_text(op, name);
    meta_p_text(op, tag);
    meta_p_text(op, template_id);
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
    struct meta_op *op = meta_add(b, W_SESSION);
    const char *texts[] = {s->id,        s->tenant,     s->key,          s->state,
                           s->volume_id, s->sandbox_id, s->template_ref, s->metadata};
    for (size_t i = 0; i < HF_ARRAY_LEN(texts); i++)
        meta_p_text(op, texts[i]);
    meta_p_int(op, s->epoch);
    meta_p_int(op, s->created_ms);
    meta_p_int(op, s->updated_ms);
    meta_p_int(op, s->opened_ms);
    meta_p_int(op, s->closed_ms);
}

void hf_bind_session(struct hf_meta_batch *b, const char *id, int64_t expect_epoch, const char *sandbox_id,
                     int64_t now_ms)
{
    struct meta_op *op = meta_add(b, W_SESSION_BIND);
    op->expect_change = true;
    meta_p_text(op, id);
    meta_p_int(op, expect_epoch);
    meta_p_text(op, sandbox_id);
    meta_p_int(op, now_ms);
}

void hf_set_session_state(struct hf_meta_batch *b, const char *id, const char *state, int64_t now_ms)
{
    struct meta_op *op = meta_add(b, W_SESSION_STATE);
    op->expect_change = true;
    meta_p_text(op, id);
    meta_p_text(op, state);
    meta_p_int(op, now_ms);
}

void hf_del_session(struct hf_meta_batch *b, const char *id)
{
    id_only(b, W_SESSION_DEL, id);
}

void hf_put_volume(struct hf_meta_batch *b, const struct hf_volume_row *v)
{
    struct meta_op *op = meta_add(b, W_VOLUME);
    meta_p_text(op, v->id);
    meta_p_text(op, v->tenant);
    meta_p_text(op, v->name);
    meta_p_text(op, v->session_id);
    meta_p_text(op, v->state);
    meta_p_int(op, v->bytes);
    meta_p_int(op, v->created_ms);
}

void hf_set_volume_state(struct hf_meta_batch *b, const char *id, const char *state)
{
    struct meta_op *op = meta_add(b, W_VOLUME_STATE);
    meta_p_text(op, id);
    meta_p_text(op, state);
}

void hf_del_volume(struct hf_meta_batch *b, const char *id)
{
    id_only(b, W_VOLUME_DEL, id);
}

void hf_put_answer(struct hf_meta_batch *b, const struct hf_answer_row *a)
{
    struct meta_op *op = meta_add(b, W_ANSWER);
    meta_p_text(op, a->tenant);
    meta_p_text(op, a->key);
    meta_p_blob(op, a->request_hash, sizeof(a->request_hash));
    meta_p_int(op, a->status);
    meta_p_text(op, a->body);
    meta_p_int(op, a->created_ms);
}
