/* Open: the session's one living sandbox, found, claimed again, or made. */
#include <stdio.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "control/envd_client.h"
#include "control/persist.h"
#include "control/present.h"
#include "session/session_int.h"

static void answer_open(struct session_op *op, struct hf_sandbox *sb, bool created)
{
    /* The row as it is by now, with the binding. */
    hf_session_row_done(&op->row);
    if (hf_get_session(op->s->c->meta, op->tenant, op->ask.key, &op->row) != 1) {
        struct hf_err err = {0};
        (void)hf_err_set(&err, -EIO, "the session's row can't be read");
        hf_session_fail(op, &err);
        return;
    }
    json_t *s = hf_session_present_sandbox(sb);
    (void)json_object_set_new(s, "created", json_boolean(created));
    if (op->call)
        hf_call_json(op->call, created ? 201 : 200,
                     json_pack("{s:o, s:o}", "session", hf_session_present(&op->row), "sandbox", s));
    hf_killpoint("session.answered");
    hf_session_leave(op);
}

/* ---- a new sandbox ---- */

static void on_created(void *arg, struct hf_sandbox *sb, const struct hf_err *err)
{
    struct session_op *op = arg;
    if (!sb) {
        hf_session_fail(op, err);
        return;
    }
    hf_killpoint("session.bound");
    hf_control_event(op->s->c, op->tenant, sb->row.id, op->row.id, "session.bound", "", op->row.key);
    answer_open(op, sb, true);
}

static void with_row(void *arg, struct hf_meta_batch *b, const char *sandbox_id)
{
    struct session_op *op = arg;
    hf_bind_session(b, op->row.id, op->row.epoch, sandbox_id, hf_real_ms());
    hf_session_keep_network(op, b);
}

/* What the session's metadata says, what this open says, and the stamp by which a lost binding is found. */
static json_t *stamped(const struct session_op *op)
{
    json_t *m = hf_session_metadata(&op->row, NULL);
    if (op->ask.metadata)
        (void)json_object_update(m, op->ask.metadata);
    (void)json_object_set_new(m, "holdfast.session", json_string(op->row.id));
    (void)json_object_set_new(m, "holdfast.session-key", json_string(op->row.key));
    (void)json_object_set_new(m, "holdfast.binding-epoch",
                              json_sprintf("%lld", (long long)op->row.epoch + 1));
    return m;
}

static int64_t life_of(const struct session_op *op)
{
    return op->ask.timeout_s ? op->ask.timeout_s
                             : HF_MIN((int64_t)HF_SESSION_TIMEOUT_S, (int64_t)op->s->c->cfg->max_timeout_s);
}

static void create_sandbox(struct session_op *op)
{
    struct hf_control *c = op->s->c;
    struct hf_err err = {0};
    if (hf_control_admit(c, op->tenant, &err) < 0 || hf_session_pick_network(op, &err) < 0) {
        hf_session_fail(op, &err);
        return;
    }
    json_auto_t *metadata = stamped(op);
    struct hf_create_req req = {.tenant = op->tenant,
                                .template_id = op->template_id,
                                .alias = op->alias,
                                .cpu_millis = op->ask.limits.cpu_millis,
                                .memory_bytes = op->ask.limits.memory_bytes,
                                .disk_bytes = op->ask.limits.disk_bytes,
                                .pids_max = op->ask.limits.pids_max,
                                .timeout_s = life_of(op),
                                .metadata = metadata,
                                .env = op->ask.env,
                                .network = op->ask.network,
                                .session_id = op->row.id,
                                .epoch = op->row.epoch + 1,
                                .n_mounts = 1,
                                .with_row = with_row,
                                .with_row_arg = op};
    req.mounts[0].name = op->row.volume_id;
    req.mounts[0].image = op->image;
    req.mounts[0].path = HF_SESSION_MOUNT;
    hf_sandbox_create(c, &req, on_created, op, NULL);
}

/* ---- the workspace ---- */

static void volume_work(uv_work_t *w)
{
    struct session_op *op = w->data;
    int r = hf_disk_volume_create(op->s->c->cfg->data_dir, op->volume.name, (uint64_t)op->volume.bytes,
                                  &op->image, &op->err);
    if (r < 0 && !op->err.r)
        (void)hf_err_set(&op->err, r, "the workspace can't be made: %s", strerror(-r));
}

static void on_volume(uv_work_t *w, int status)
{
    struct session_op *op = w->data;
    if (op->err.r) {
        hf_session_fail(op, &op->err);
        return;
    }
    hf_killpoint("session.volume-made");
    if (strcmp(op->volume.state, "ready") != 0) {
        struct hf_meta_batch *b = hf_meta_batch_new();
        hf_set_volume_state(b, op->volume.id, "ready");
        hf_meta_commit(op->s->c->meta, b, HF_META_LAZY, NULL, NULL);
    }
    create_sandbox(op);
}

/* Making the image is idempotent, so a crash before the row said "ready" needs no case of its own. */
static void ensure_volume(struct session_op *op)
{
    struct hf_err err = {0};
    int r = hf_get_volume(op->s->c->meta, op->row.volume_id, &op->volume);
    if (r != 1) {
        (void)hf_err_set(&err, -EIO, "the workspace's row is missing or can't be read");
        hf_session_fail(op, &err);
        return;
    }
    op->work.data = op;
    if (uv_queue_work(op->s->c->loop, &op->work, volume_work, on_volume) < 0)
        abort(); /* fails for a NULL callback only */
}

/* ---- the binding ---- */

static void bind_step(struct session_op *op);

static void on_gone(void *arg, const struct hf_err *err)
{
    bind_step(arg);
}

struct claim {
    struct session_op *op;
    struct hf_sandbox *sb;
};

static void on_claimed(void *arg, int r, const struct hf_err *err)
{
    struct claim claim = *(struct claim *)arg;
    free(arg);
    bool alive = claim.sb->state == HF_RUNNING;
    if (r < 0)
        hf_session_fail(claim.op, err);
    else if (alive)
        answer_open(claim.op, claim.sb, false);
    else
        bind_step(claim.op);
    hf_sandbox_unref(claim.sb);
}

/* The sandbox bears the session's stamp but the row names another, or none: the binding was lost. */
static void claim_again(struct session_op *op, struct hf_sandbox *sb)
{
    hf_log_warn("session claims its sandbox again", "session=%s sandbox=%s", op->row.id, sb->row.id);
    struct claim *claim = hf_new(struct claim);
    *claim = (struct claim){op, hf_sandbox_ref(sb)};
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_bind_session(b, op->row.id, op->row.epoch, sb->row.id, hf_real_ms());
    hf_meta_commit(op->s->c->meta, b, 0, on_claimed, claim);
    hf_control_event(op->s->c, op->tenant, sb->row.id, op->row.id, "session.claimed", "", op->row.key);
}

/* The oldest running one, the bound one before others; where none runs, one that sleeps. *ret_other: one that
 * must be gone first. */
static struct hf_sandbox *choose(struct session_op *op, struct hf_sandbox **ret_other)
{
    struct hf_sandbox *best = NULL;
    int best_rank = 0;
    *ret_other = NULL;
    hf_list_foreach(it, &op->s->c->list)
    {
        struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (hf_state_ended(sb->state) || strcmp(sb->row.session_id, op->row.id) != 0)
            continue;
        bool bound = strcmp(sb->row.id, op->row.sandbox_id) == 0;
        int rank = sb->state == HF_RUNNING ? 3 + bound : hf_state_asleep(sb->state) ? 1 + bound : 0;
        if (rank > best_rank) {
            *ret_other = best ? best : *ret_other;
            best = sb;
            best_rank = rank;
        } else {
            *ret_other = sb;
        }
    }
    return best;
}

struct probe {
    struct session_op *op;
    struct hf_sandbox *sb;
};

static void on_retry_closed(uv_handle_t *h)
{
    bind_step(h->data);
}

static void on_retry(uv_timer_t *t)
{
    uv_close((uv_handle_t *)t, on_retry_closed);
}

static void on_health(void *arg, const char *version, const struct hf_err *err)
{
    struct session_op *op = ((struct probe *)arg)->op;
    struct hf_sandbox *sb = ((struct probe *)arg)->sb;
    free(arg);
    if (sb->state != HF_RUNNING) {
        bind_step(op);
    } else if (!err || err->r == -ETIMEDOUT) {
        answer_open(op, sb, false);
    } else if (op->tries++ < HF_SESSION_HEALTH_TRIES) {
        (void)uv_timer_init(op->s->c->loop, &op->timer);
        op->timer.data = op;
        (void)uv_timer_start(&op->timer, on_retry, HF_SESSION_HEALTH_RETRY_MS, 0);
    } else {
        hf_sandbox_kill(sb, HF_CAUSE_UNRESPONSIVE, err->msg, on_gone, op);
    }
    hf_sandbox_unref(sb);
}

/* It may have died a moment ago without our knowing yet: nobody gets a dead sandbox for an open session. */
static void check_alive(struct session_op *op, struct hf_sandbox *sb)
{
    struct probe *probe = hf_new(struct probe);
    *probe = (struct probe){op, hf_sandbox_ref(sb)};
    (void)hf_envd_health(op->s->c->loop, hf_box_control_socket(sb->box), HF_SESSION_HEALTH_MS, on_health,
                         probe);
}

/* What it was doing goes on. At failure it sleeps on, with all that it has: whoever wants a new one kills it.
 */
static void on_awake(void *arg, struct hf_sandbox *awake, const struct hf_err *err)
{
    struct session_op *op = ((struct probe *)arg)->op;
    struct hf_sandbox *sb = ((struct probe *)arg)->sb;
    free(arg);
    if (awake || !hf_state_asleep(sb->state)) /* killed meanwhile: the session goes on without it */
        bind_step(op);
    else
        hf_session_fail(op, err);
    hf_sandbox_unref(sb);
}

static void wake(struct session_op *op, struct hf_sandbox *sb)
{
    struct hf_err err = {0};
    if (hf_control_admit_resume(sb, &err) < 0) {
        hf_session_fail(op, &err);
        return;
    }
    struct probe *probe = hf_new(struct probe);
    *probe = (struct probe){op, hf_sandbox_ref(sb)};
    hf_sandbox_resume(sb, life_of(op), HF_CAUSE_SESSION, on_awake, probe);
}

static void bind_step(struct session_op *op)
{
    struct hf_sandbox *other = NULL, *sb = choose(op, &other);
    if (other) {
        /* The workspace is locked by a dying one until nothing of it is left; a second one should not be. */
        if (op->rounds++ == HF_SESSION_ROUNDS_MAX) {
            struct hf_err err = {0};
            (void)hf_err_http(&err, -EBUSY, 409, "the session's sandboxes do not settle; try again");
            hf_session_fail(op, &err);
            return;
        }
        hf_sandbox_kill(other, HF_CAUSE_DUPLICATE, "its session has another one", on_gone, op);
        return;
    }
    if (!sb) {
        ensure_volume(op);
        return;
    }
    if (hf_state_asleep(sb->state)) {
        wake(op, sb);
        return;
    }
    if (op->ask.timeout_s)
        (void)hf_sandbox_set_timeout(sb, op->ask.timeout_s, true);
    if (strcmp(sb->row.id, op->row.sandbox_id) != 0)
        claim_again(op, sb);
    else
        check_alive(op, sb);
}

/* ---- the row ---- */

static void on_session_row(void *arg, int r, const struct hf_err *err)
{
    struct session_op *op = arg;
    if (r < 0) {
        hf_session_fail(op, err);
        return;
    }
    hf_killpoint("session.row-written");
    bind_step(op);
}

static void make_session(struct session_op *op)
{
    struct hf_control *c = op->s->c;
    struct hf_session_row *row = &op->row;
    struct hf_volume_row v = {.created_ms = hf_real_ms()};
    (void)snprintf(row->id, sizeof(row->id), "ses_");
    hf_random_id(row->id + 4, 20);
    (void)snprintf(row->tenant, sizeof(row->tenant), "%s", op->tenant);
    (void)snprintf(row->key, sizeof(row->key), "%s", op->ask.key);
    (void)snprintf(row->state, sizeof(row->state), "open");
    (void)snprintf(row->volume_id, sizeof(row->volume_id), "ws-%s", row->id + 4);
    (void)snprintf(row->template_ref, sizeof(row->template_ref), "%s",
                   *op->ask.template_ref ? op->ask.template_ref : HF_SESSION_TEMPLATE);
    row->metadata = hf_session_metadata_with(op->ask.metadata, NULL);
    row->created_ms = row->updated_ms = row->opened_ms = v.created_ms;
    v.bytes = op->ask.workspace_bytes ? op->ask.workspace_bytes : (int64_t)c->cfg->default_volume;
    (void)snprintf(v.id, sizeof(v.id), "%s", row->volume_id);
    (void)snprintf(v.name, sizeof(v.name), "%s", row->volume_id);
    (void)snprintf(v.tenant, sizeof(v.tenant), "%s", op->tenant);
    (void)snprintf(v.session_id, sizeof(v.session_id), "%s", row->id);
    (void)snprintf(v.state, sizeof(v.state), "creating");
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_session(b, row);
    hf_put_volume(b, &v);
    hf_meta_commit(c->meta, b, 0, on_session_row, op);
}

/* The template is looked at before anything is written: a typing error makes no session. */
static int pick_template(struct session_op *op, struct hf_err *err)
{
    const char *ref = *op->ask.template_ref ? op->ask.template_ref
                      : *op->row.id         ? op->row.template_ref
                                            : HF_SESSION_TEMPLATE;
    struct hf_template_row t;
    int r = hf_template_resolve(op->s->c, op->tenant, ref, &t, op->alias, err);
    if (r == 0)
        (void)snprintf(op->template_id, sizeof(op->template_id), "%s", t.id);
    return r;
}

void hf_session_open_run(struct session_op *op)
{
    struct hf_err err = {0};
    int r = hf_get_session(op->s->c->meta, op->tenant, op->ask.key, &op->row);
    if (r < 0)
        r = hf_err_set(&err, -EIO, "the database can't be read");
    else if (r == 1 && strcmp(op->row.state, "deleting") == 0)
        r = hf_err_http(&err, -EBUSY, 409, "the session is being deleted; try again when it is gone");
    else
        r = pick_template(op, &err);
    if (r < 0)
        hf_session_fail(op, &err);
    else if (*op->row.id)
        bind_step(op);
    else
        make_session(op);
}
