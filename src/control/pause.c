/* Pauses: warm at once, cold later; and the way back. The order of the rows is in control/persist.h. */
#include <stdio.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "control/net.h"
#include "control/persist.h"

struct waiter {
    struct hf_list node;
    hf_done_cb done;   /* of a pause */
    hf_sandbox_cb ran; /* of a resume */
    void *arg;
    int64_t timeout_s;
    char cause[24];
};

static void wait_for_pause(struct hf_sandbox *sb, hf_done_cb cb, void *arg)
{
    if (!cb)
        return;
    struct waiter *w = hf_new(struct waiter);
    w->done = cb;
    w->arg = arg;
    hf_list_add_tail(&sb->pause.waiters, &w->node);
}

static void tell_waiters(struct hf_sandbox *sb, const struct hf_err *err)
{
    while (!hf_list_empty(&sb->pause.waiters)) {
        struct waiter *w = hf_list_entry(sb->pause.waiters.next, struct waiter, node);
        hf_list_del(&w->node);
        w->done(w->arg, err);
        free(w);
    }
}

static void wake(struct hf_sandbox *sb);

/* Fills err for an operation that finds the sandbox elsewhere than it wants it. */
static void in_transition(const struct hf_sandbox *sb, struct hf_err *err)
{
    (void)hf_err_http(err, -EBUSY, 409, "Sandbox %s is %s; try again in a moment", sb->row.id,
                      hf_state_name(sb->state));
}

/* ---- warm ---- */

void hf_pause_set(struct hf_sandbox *sb, struct hf_meta_batch *b, const char *depth, const char *pause_id)
{
    (void)snprintf(sb->row.pause_depth, sizeof(sb->row.pause_depth), "%s", depth);
    (void)snprintf(sb->row.pause_id, sizeof(sb->row.pause_id), "%s", pause_id);
    hf_set_sandbox_pause(b, sb->row.id, sb->row.generation, depth, pause_id, sb->row.paused_ms);
}

static void arm_cold(struct hf_sandbox *sb)
{
    uint64_t delay = sb->c->cfg->pause_warm_s;
    sb->pause.cold_at_boot_ms = (int64_t)(hf_boot_ms() + delay * 1000);
    hf_deadline_arm(sb->c);
}

static void paused(struct hf_sandbox *sb)
{
    tell_waiters(sb, NULL);
    if (!hf_list_empty(&sb->pause.wakers))
        wake(sb); /* somebody wants it back already */
}

static void on_paused_row(void *arg, int r, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    hf_killpoint("pause.paused-row");
    if (r < 0)
        hf_log_error("cannot record a pause", "sandbox=%s error=%s", sb->row.id, hf_log_quote(err->msg));
    if (sb->state == HF_PAUSED)
        paused(sb);
    hf_sandbox_unref(sb);
}

static void cold_after_pause(void *arg, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    if (err)
        hf_log_warn("a pause stays warm", "sandbox=%s cause=%s", sb->row.id, hf_log_quote(err->msg));
    if (sb->state == HF_PAUSED)
        paused(sb);
    hf_sandbox_unref(sb);
}

/* The waiters of a pause that shall end cold are told when it is. */
static void on_warm_row(void *arg, int r, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    hf_killpoint("pause.warm-row");
    if (r < 0 || sb->state != HF_PAUSED) {
        on_paused_row(arg, r, err);
        return;
    }
    hf_sandbox_freeze_out(sb, true, sb->row.cause, cold_after_pause, sb);
}

static void fail_pause(struct hf_sandbox *sb, const struct hf_err *err)
{
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_sandbox_move(sb, b, HF_RUNNING, sb->row.cause, err->msg);
    hf_meta_commit(sb->c->meta, b, HF_META_LAZY, NULL, NULL);
    hf_deadline_arm(sb->c);
    tell_waiters(sb, err);
    if (!hf_list_empty(&sb->pause.wakers))
        wake(sb);
    hf_sandbox_unref(sb);
}

static void on_frozen(void *arg, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    hf_killpoint("pause.frozen");
    if (sb->state != HF_PAUSING) {
        hf_sandbox_unref(sb);
        return; /* killed: its waiters were told */
    }
    if (err) {
        fail_pause(sb, err);
        return;
    }
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_sandbox_move(sb, b, HF_PAUSED, sb->row.cause, sb->row.detail);
    hf_pause_set(sb, b, "warm", "");
    /* Where it becomes cold now the delay may not come first. */
    if (!sb->pause.cold_wanted && !sb->pause.hold)
        arm_cold(sb);
    hf_meta_commit(sb->c->meta, b, 0, sb->pause.cold_wanted ? on_warm_row : on_paused_row, sb);
}

static void save_and_end(struct hf_sandbox *sb, bool memory, hf_done_cb cb, void *arg);

/* The disk only: it is saved while it stands still, then its processes end. */
static void on_disk_saved(void *arg, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    if (sb->state == HF_PAUSING) {
        fail_pause(sb, err);
        return;
    }
    if (sb->state == HF_PAUSED)
        paused(sb);
    hf_sandbox_unref(sb);
}

static void on_pausing_row(void *arg, int r, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    hf_killpoint("pause.row-written");
    if (sb->state != HF_PAUSING) {
        hf_sandbox_unref(sb);
        return;
    }
    if (r < 0) {
        fail_pause(sb, err);
        return;
    }
    if (sb->c->hooks.drop)
        sb->c->hooks.drop(sb->c->hooks_self, sb->row.id);
    if (sb->pause.disk_only)
        save_and_end(sb, false, on_disk_saved, sb);
    else
        sb->c->driver->ops->freeze(sb->c->driver, sb->box, true, on_frozen, sb);
}

void hf_sandbox_pause(struct hf_sandbox *sb, const struct hf_pause_ask *ask, hf_done_cb cb, void *arg)
{
    struct hf_err err = {0};
    if (sb->state == HF_PAUSING) {
        wait_for_pause(sb, cb, arg);
        return;
    }
    if (sb->state != HF_RUNNING) {
        if (sb->state == HF_PAUSED)
            (void)hf_err_http(&err, -EALREADY, 409, "Error pausing sandbox - sandbox '%s' is already paused",
                              sb->row.id);
        else
            in_transition(sb, &err);
        if (cb)
            cb(arg, &err);
        return;
    }
    wait_for_pause(sb, cb, arg);
    (void)hf_sandbox_ref(sb); /* until it is paused, or can't be */
    sb->pause.cold_wanted = ask->cold && ask->memory;
    sb->pause.disk_only = !ask->memory;
    sb->pause.hold = ask->hold;
    sb->pause.stays_warm = false;
    sb->row.paused_ms = hf_real_ms();
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_sandbox_move(sb, b, HF_PAUSING, ask->cause, ask->detail);
    hf_pause_set(sb, b, "", "");
    hf_meta_commit(sb->c->meta, b, 0, on_pausing_row, sb);
}

/* ---- cold ---- */

struct out {
    struct hf_sandbox *sb;
    bool memory, recorded; /* the row says so */
    hf_done_cb cb;
    void *arg;
};

static void set_pause_again(struct hf_sandbox *sb, const struct hf_err *err)
{
    sb->pause.stays_warm = true;
    arm_cold(sb);
    hf_control_event(sb->c, sb->row.tenant, sb->row.id, sb->row.session_id, "sandbox.stays-warm", "",
                     err ? err->msg : "");
}

static void out_over(struct out *o, const struct hf_err *err)
{
    struct hf_sandbox *sb = o->sb;
    sb->pause.freezing_out = false;
    if (o->cb)
        o->cb(o->arg, err);
    if (sb->state == HF_PAUSED && !hf_list_empty(&sb->pause.wakers))
        wake(sb);
    hf_sandbox_unref(sb);
    free(o);
}

static void on_out_destroyed(void *arg, const struct hf_err *err)
{
    struct out *o = arg;
    struct hf_sandbox *sb = o->sb;
    hf_killpoint("pause.box-destroyed");
    if (err && err->r < 0)
        hf_log_error("parts of a paused sandbox are left behind", "sandbox=%s error=%s", sb->row.id,
                     hf_log_quote(err->msg));
    sb->driver_busy = false;
    if (sb->c->net && sb->net_key)
        hf_cnet_forget(sb->c->net, sb->net_key);
    sb->net_key = 0;
    sb->wired = false;
    if (sb->state == HF_KILLING)
        hf_sandbox_kill_step(sb);
    out_over(o, NULL);
}

/* In the batch that makes the snapshot ready: there is no moment with one and without the other. */
static void cold_row(void *arg, struct hf_meta_batch *b, const char *snapshot_id)
{
    struct out *o = arg;
    struct hf_sandbox *sb = o->sb;
    if (sb->state == HF_PAUSING)
        hf_sandbox_move(sb, b, HF_PAUSED, sb->row.cause, sb->row.detail);
    if (sb->state != HF_PAUSED)
        return;
    hf_pause_set(sb, b, o->memory ? "cold" : "disk", snapshot_id);
    o->recorded = true;
}

static void on_saved(void *arg, const struct hf_snapshot_row *s, const struct hf_err *err)
{
    struct out *o = arg;
    struct hf_sandbox *sb = o->sb;
    hf_killpoint("pause.saved");
    if (!s && sb->state == HF_PAUSED) {
        /* It keeps what it has: memory, frozen. What can't be dumped today may be dumped later. */
        set_pause_again(sb, err);
    } else if (s && !o->recorded) {
        hf_snapshot_delete(sb->c, sb->row.tenant, s->id, NULL, NULL); /* killed meanwhile */
    }
    struct hf_box *box = sb->box;
    if (!s || !o->recorded || !box || sb->state != HF_PAUSED) { /* a kill takes care of the box */
        out_over(o, err);
        return;
    }
    sb->box = NULL;
    sb->driver_busy = true; /* a kill waits for it */
    sb->c->driver->ops->destroy(sb->c->driver, box, on_out_destroyed, o);
}

static void save_and_end(struct hf_sandbox *sb, bool memory, hf_done_cb cb, void *arg)
{
    struct out *o = hf_new(struct out);
    *o = (struct out){.sb = hf_sandbox_ref(sb), .memory = memory, .cb = cb, .arg = arg};
    sb->pause.freezing_out = true;
    sb->pause.cold_at_boot_ms = 0;
    const struct hf_snapshot_ask ask = {
        .purpose = "pause", .memory = memory, .end = true, .with_ready = cold_row, .with_ready_arg = o};
    hf_snapshot_take(sb, &ask, on_saved, o);
}

void hf_sandbox_freeze_out(struct hf_sandbox *sb, bool memory, const char *cause, hf_done_cb cb, void *arg)
{
    struct hf_err err = {0};
    struct hf_driver_caps caps = {0};
    sb->c->driver->ops->caps(sb->c->driver, &caps);
    if (memory && !caps.snapshot_memory)
        (void)hf_err_http(&err, -EOPNOTSUPP, 501,
                          "this host can't save the memory of a sandbox: it has no CRIU");
    else if (sb->state != HF_PAUSED || strcmp(sb->row.pause_depth, "warm") != 0 || sb->pause.freezing_out)
        in_transition(sb, &err);
    if (err.r) {
        sb->pause.cold_at_boot_ms = 0;
        if (cb)
            cb(arg, &err);
        return;
    }
    hf_log_info("a pause becomes cold", "sandbox=%s cause=%s", sb->row.id, cause);
    save_and_end(sb, memory, cb, arg);
}

/* ---- resume ---- */

static void tell_wakers(struct hf_sandbox *sb, const struct hf_err *err)
{
    sb->pause.reboot = false;
    while (!hf_list_empty(&sb->pause.wakers)) {
        struct waiter *w = hf_list_entry(sb->pause.wakers.next, struct waiter, node);
        hf_list_del(&w->node);
        w->ran(w->arg, err ? NULL : sb, err);
        free(w);
    }
}

void hf_pause_over(struct hf_sandbox *sb, struct hf_meta_batch *b, int64_t generation)
{
    sb->row.generation = generation;
    sb->row.paused_ms = 0;
    (void)snprintf(sb->pause.spent, sizeof(sb->pause.spent), "%s", sb->row.pause_id);
    hf_pause_set(sb, b, "", "");
}

/* It ran on and its row says so: what it was paused in is not needed any more. */
static void forget_image(struct hf_sandbox *sb)
{
    if (!*sb->pause.spent)
        return;
    hf_killpoint("resume.image-spent");
    hf_snapshot_delete(sb->c, sb->row.tenant, sb->pause.spent, NULL, NULL);
    sb->pause.spent[0] = '\0';
}

static void on_back(void *arg, struct hf_sandbox *ran, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    if (ran) {
        forget_image(sb);
        char detail[40];
        (void)snprintf(detail, sizeof(detail), "generation %lld", (long long)sb->row.generation);
        hf_control_event(sb->c, sb->row.tenant, sb->row.id, sb->row.session_id, "sandbox.restored",
                         sb->row.cause, detail);
    }
    tell_wakers(sb, err);
    hf_sandbox_unref(sb);
}

static void stay(struct hf_sandbox *sb, const struct hf_err *err)
{
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_sandbox_move(sb, b, HF_PAUSED, HF_CAUSE_NOT_RESUMED, err->msg);
    hf_meta_commit(sb->c->meta, b, HF_META_LAZY, NULL, NULL);
    tell_wakers(sb, err);
    hf_sandbox_unref(sb);
}

static void on_checked(void *arg, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    hf_auto_snapshot_row struct hf_snapshot_row s = {0};
    struct hf_err why = {0};
    if (sb->state != HF_RESUMING) {
        hf_sandbox_unref(sb);
        return;
    }
    if (err)
        why = *err;
    else if (hf_get_snapshot(sb->c->meta, sb->row.pause_id, &s) != 1)
        (void)hf_err_set(&why, -ENOENT, "what the sandbox was paused in (%s) is gone", sb->row.pause_id);
    if (why.r) {
        stay(sb, &why);
        return;
    }
    hf_auto_free char *dir = hf_xasprintf("%s/pool/snapshots/%s", sb->c->cfg->data_dir, s.id);
    hf_sandbox_bring_back(sb, dir, strcmp(s.kind, "full") == 0 && !sb->pause.reboot, sb->row.timeout_s,
                          on_back, sb);
}

static void on_resuming_row(void *arg, int r, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    hf_killpoint("resume.row-written");
    if (sb->state != HF_RESUMING) {
        hf_sandbox_unref(sb);
        return;
    }
    if (r < 0)
        stay(sb, err);
    else
        hf_snapshot_check(sb->c, sb->row.pause_id, on_checked, sb);
}

static void on_thawed(void *arg, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    hf_killpoint("resume.thawed");
    if (sb->state == HF_RESUMING) {
        struct hf_meta_batch *b = hf_meta_batch_new();
        if (err) {
            hf_sandbox_move(sb, b, HF_PAUSED, HF_CAUSE_NOT_RESUMED, err->msg);
        } else {
            sb->row.started_ms = hf_real_ms();
            sb->row.end_ms = sb->row.started_ms + sb->row.timeout_s * 1000;
            sb->deadline_boot_ms = sb->row.deadline_boot_ms =
                (int64_t)hf_boot_ms() + sb->row.timeout_s * 1000;
            hf_set_sandbox_times(b, sb->row.id, sb->row.started_ms, sb->row.end_ms, sb->row.deadline_boot_ms);
            hf_pause_over(sb, b, sb->row.generation);
            hf_sandbox_move(sb, b, HF_RUNNING, sb->row.cause, "");
        }
        /* Lazy: a box that runs while its row says paused is taken for what it is at the next start. */
        hf_meta_commit(sb->c->meta, b, HF_META_LAZY, NULL, NULL);
        hf_deadline_arm(sb->c);
        tell_wakers(sb, err);
    }
    hf_sandbox_unref(sb);
}

static void on_processes_ended(void *arg, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    if (err)
        tell_wakers(sb, err);
    hf_sandbox_unref(sb);
}

/* paused -> resuming, for everybody who waits. */
static void wake(struct hf_sandbox *sb)
{
    if (sb->state == HF_RUNNING) {
        tell_wakers(sb, NULL);
        return;
    }
    if (sb->state != HF_PAUSED || sb->pause.freezing_out || sb->driver_busy)
        return; /* when that is over */
    struct hf_err err = {0};
    if (hf_control_not_draining(sb->c, &err) < 0) {
        tell_wakers(sb, &err);
        return;
    }
    const struct waiter *first = hf_list_entry(sb->pause.wakers.next, struct waiter, node);
    bool warm = strcmp(sb->row.pause_depth, "warm") == 0;
    if (warm && sb->pause.reboot) { /* as from any other pause of its disk, when that is done */
        hf_sandbox_freeze_out(sb, false, first->cause, on_processes_ended, hf_sandbox_ref(sb));
        return;
    }
    tell_waiters(sb, NULL); /* it was paused, even if that is over before its row is written */
    sb->row.timeout_s = 0;
    hf_list_foreach(it, &sb->pause.wakers)
    {
        sb->row.timeout_s = HF_MAX(sb->row.timeout_s, hf_list_entry(it, struct waiter, node)->timeout_s);
    }
    sb->pause.cold_at_boot_ms = 0;
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_sandbox_move(sb, b, HF_RESUMING, first->cause, "");
    (void)hf_sandbox_ref(sb);
    if (warm) {
        hf_meta_commit(sb->c->meta, b, HF_META_LAZY, NULL, NULL);
        sb->c->driver->ops->freeze(sb->c->driver, sb->box, false, on_thawed, sb);
    } else {
        hf_meta_commit(sb->c->meta, b, 0, on_resuming_row, sb);
    }
}

struct already {
    hf_sandbox_cb cb;
    void *arg;
    struct hf_sandbox *sb;
    struct hf_err err;
    uv_timer_t timer;
};

static void free_already(uv_handle_t *h)
{
    free(h->data);
}

static void on_already(uv_timer_t *t)
{
    struct already *a = t->data;
    bool runs = a->sb->state == HF_RUNNING && !a->err.r;
    if (!runs && !a->err.r)
        in_transition(a->sb, &a->err);
    a->cb(a->arg, runs ? a->sb : NULL, runs ? NULL : &a->err);
    hf_sandbox_unref(a->sb);
    uv_close((uv_handle_t *)t, free_already);
}

/* The answer comes later than the call. */
static void answer_soon(struct hf_sandbox *sb, const struct hf_err *err, hf_sandbox_cb cb, void *arg)
{
    struct already *a = hf_new(struct already);
    a->cb = cb;
    a->arg = arg;
    a->sb = hf_sandbox_ref(sb);
    a->err = *err;
    (void)uv_timer_init(sb->c->loop, &a->timer);
    a->timer.data = a;
    (void)uv_timer_start(&a->timer, on_already, 0, 0);
}

void hf_sandbox_resume(struct hf_sandbox *sb, int64_t timeout_s, const char *cause, hf_sandbox_cb cb,
                       void *arg)
{
    struct hf_err err = {0};
    if (!hf_state_asleep(sb->state)) {
        if (sb->state != HF_RUNNING)
            in_transition(sb, &err);
        answer_soon(sb, &err, cb, arg);
        return;
    }
    struct waiter *w = hf_new(struct waiter);
    w->ran = cb;
    w->arg = arg;
    w->timeout_s = timeout_s;
    (void)snprintf(w->cause, sizeof(w->cause), "%s", cause);
    hf_list_add_tail(&sb->pause.wakers, &w->node);
    if (sb->state == HF_PAUSED)
        wake(sb);
}

void hf_pause_wake_waiting(struct hf_sandbox *sb)
{
    if (sb->state == HF_PAUSED && !hf_list_empty(&sb->pause.wakers))
        wake(sb);
}

bool hf_pause_is_disk_only(const struct hf_sandbox *sb)
{
    return sb->state == HF_PAUSING ? sb->pause.disk_only : strcmp(sb->row.pause_depth, "disk") == 0;
}

void hf_pause_killed(struct hf_sandbox *sb)
{
    struct hf_err err = {0};
    (void)hf_err_http(&err, -ECANCELED, 404, "Sandbox \"%s\" doesn't exist or you don't have access to it",
                      sb->row.id);
    tell_waiters(sb, &err);
    tell_wakers(sb, &err);
}

void hf_pause_gone(struct hf_sandbox *sb)
{
    if (*sb->row.pause_id)
        hf_snapshot_delete(sb->c, sb->row.tenant, sb->row.pause_id, NULL, NULL);
    forget_image(sb);
}

/* ---- at start ---- */

static void on_settled(void *arg, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    if (err)
        hf_log_error("an adopted sandbox can't be stopped or let go on", "sandbox=%s error=%s", sb->row.id,
                     hf_log_quote(err->msg));
    hf_sandbox_unref(sb);
}

void hf_pause_settle(struct hf_sandbox *sb, bool thaw)
{
    struct hf_meta_batch *b = hf_meta_batch_new();
    if (thaw) {
        hf_pause_over(sb, b, sb->row.generation);
        hf_sandbox_move(sb, b, HF_RUNNING, sb->row.cause, "");
    } else {
        if (sb->state == HF_PAUSING)
            hf_sandbox_move(sb, b, HF_PAUSED, sb->row.cause, sb->row.detail);
        hf_pause_set(sb, b, "warm", "");
        arm_cold(sb);
    }
    hf_meta_commit(sb->c->meta, b, HF_META_LAZY, NULL, NULL);
    sb->c->driver->ops->freeze(sb->c->driver, sb->box, !thaw, on_settled, hf_sandbox_ref(sb));
}

void hf_pause_settle_cold(struct hf_sandbox *sb)
{
    if (sb->state != HF_RESUMING)
        return;
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_sandbox_move(sb, b, HF_PAUSED, HF_CAUSE_NOT_RESUMED,
                    "the daemon ended while the sandbox was being resumed");
    hf_meta_commit(sb->c->meta, b, HF_META_LAZY, NULL, NULL);
}
