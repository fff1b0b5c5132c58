/* Close keeps the workspace, delete does not. */
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "session/session_int.h"

/* ---- close ---- */

static void on_closed_row(void *arg, int r, const struct hf_err *err)
{
    struct session_op *op = arg;
    if (r < 0) {
        hf_session_fail(op, err);
        return;
    }
    hf_killpoint("session.closed");
    hf_control_event(op->s->c, op->tenant, "", op->row.id, "session.closed", HF_CAUSE_API, op->row.key);
    hf_session_row_done(&op->row);
    if (!hf_session_load(op))
        return;
    if (op->call)
        hf_call_json(op->call, 200, json_pack("{s:o}", "session", hf_session_present(&op->row)));
    hf_session_leave(op);
}

static void after_close(struct session_op *op)
{
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_set_session_state(b, op->row.id, "closed", hf_real_ms());
    hf_meta_commit(op->s->c->meta, b, 0, on_closed_row, op);
}

void hf_session_close_run(struct session_op *op)
{
    if (!hf_session_load(op))
        return;
    if (strcmp(op->row.state, "deleting") == 0) {
        struct hf_err err = {0};
        (void)hf_err_http(&err, -EBUSY, 409, "the session is being deleted");
        hf_session_fail(op, &err);
        return;
    }
    hf_session_end_all(op, HF_CAUSE_SESSION_CLOSED, after_close);
}

/* ---- delete ---- */

static void on_deleted_row(void *arg, int r, const struct hf_err *err)
{
    struct session_op *op = arg;
    if (r < 0) {
        hf_session_fail(op, err);
        return;
    }
    hf_killpoint("session.deleted");
    hf_log_info("session deleted", "session=%s", op->row.id);
    if (op->call)
        hf_call_empty(op->call, 204);
    hf_session_leave(op);
}

static void remove_work(uv_work_t *w)
{
    struct session_op *op = w->data;
    op->err = (struct hf_err){0};
    int r = hf_disk_volume_remove(op->s->c->cfg->data_dir, op->row.volume_id, &op->err);
    if (r < 0 && !op->err.r)
        (void)hf_err_set(&op->err, r, "the workspace can't be removed: %s", strerror(-r));
}

static void try_remove(struct session_op *op);

static void on_timer_closed(uv_handle_t *h)
{
    try_remove(h->data);
}

static void on_retry(uv_timer_t *t)
{
    uv_close((uv_handle_t *)t, on_timer_closed);
}

static void on_removed(uv_work_t *w, int status)
{
    struct session_op *op = w->data;
    struct hf_control *c = op->s->c;
    if (op->err.r == -EBUSY && ++op->tries < HF_SESSION_REMOVE_TRIES && !c->stopping) {
        (void)uv_timer_init(c->loop, &op->timer);
        op->timer.data = op;
        (void)uv_timer_start(&op->timer, on_retry, HF_SESSION_REMOVE_RETRY_MS, 0);
        return;
    }
    if (op->err.r) { /* the row stays `deleting`: the next start, or another DELETE, goes on */
        hf_session_fail(op, &op->err);
        return;
    }
    hf_killpoint("session.volume-removed");
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_del_session(b, op->row.id);
    hf_del_volume(b, op->row.volume_id);
    hf_meta_commit(c->meta, b, 0, on_deleted_row, op);
}

static void try_remove(struct session_op *op)
{
    op->work.data = op;
    if (uv_queue_work(op->s->c->loop, &op->work, remove_work, on_removed) < 0)
        abort(); /* fails for a NULL callback only */
}

static void on_deleting_row(void *arg, int r, const struct hf_err *err)
{
    struct session_op *op = arg;
    if (r < 0) {
        hf_session_fail(op, err);
        return;
    }
    hf_killpoint("session.deleting");
    hf_session_end_all(op, HF_CAUSE_SESSION_DELETED, try_remove);
}

void hf_session_delete_run(struct session_op *op)
{
    if (!hf_session_load(op))
        return;
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_set_session_state(b, op->row.id, "deleting", hf_real_ms());
    hf_set_volume_state(b, op->row.volume_id, "deleting");
    hf_meta_commit(op->s->c->meta, b, 0, on_deleting_row, op);
}
