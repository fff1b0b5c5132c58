/* Ending sandboxes: from any state, once, in an order that a crash can't spoil. */
#include <stdio.h>

#include "base/fault.h"
#include "base/log.h"
#include "control/control.h"
#include "control/net.h"

struct waiter {
    struct hf_list node;
    hf_done_cb cb;
    void *arg;
};

const char *hf_cause_of_exit(enum hf_box_cause cause)
{
    switch (cause) {
    case HF_BOX_EXITED:
        return HF_CAUSE_EXITED;
    case HF_BOX_OOM:
        return HF_CAUSE_OOM;
    case HF_BOX_KILLED:
        return HF_CAUSE_KILLED;
    case HF_BOX_LOST:
        break;
    }
    return HF_CAUSE_LOST;
}

static void on_killed_row(void *arg, int r, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    hf_killpoint("kill.killed-row");
    if (r < 0)
        hf_log_error("cannot record the end of a sandbox", "sandbox=%s error=%s", sb->row.id,
                     hf_log_quote(err->msg));
    while (!hf_list_empty(&sb->waiters)) {
        struct waiter *w = hf_list_entry(sb->waiters.next, struct waiter, node);
        hf_list_del(&w->node);
        w->cb(w->arg, NULL);
        free(w);
    }
    hf_sandbox_unref(sb); /* the kill's */
}

/* What the sandbox becomes: one that never ran has failed. */
static enum hf_state end_state(const struct hf_sandbox *sb)
{
    return strcmp(sb->row.cause, HF_CAUSE_CREATE_FAILED) == 0 ||
                   strcmp(sb->row.cause, HF_CAUSE_INTERRUPTED) == 0
               ? HF_FAILED
               : HF_KILLED;
}

static void gone(struct hf_sandbox *sb, const char *left_behind)
{
    struct hf_control *c = sb->c;
    char cause[sizeof(sb->row.cause)], detail[sizeof(sb->row.detail)];
    (void)snprintf(cause, sizeof(cause), "%s", sb->row.cause);
    if (left_behind)
        (void)snprintf(detail, sizeof(detail), "left behind: %.200s", left_behind);
    else
        (void)snprintf(detail, sizeof(detail), "%s", sb->row.detail);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_sandbox_move(sb, b, end_state(sb), cause, detail);
    (void)hf_map_del(&c->map, hf_str_c(sb->row.id));
    hf_sandbox_unref(sb); /* the map's; the kill holds its own */
    c->counts.killed++;
    hf_pause_gone(sb);
    /* Lazy: without this row the reconciler finds `killing` and no box, and writes it again. */
    hf_meta_commit(c->meta, b, HF_META_LAZY, on_killed_row, sb);
}

static void on_destroyed(void *arg, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    sb->box = NULL;
    if (sb->c->net && sb->net_key)
        hf_cnet_forget(sb->c->net, sb->net_key);
    hf_killpoint("kill.box-destroyed");
    if (err && err->r < 0)
        hf_log_error("parts of a sandbox are left behind", "sandbox=%s error=%s", sb->row.id,
                     hf_log_quote(err->msg));
    gone(sb, err && err->r < 0 ? err->msg : NULL);
}

void hf_sandbox_kill_step(struct hf_sandbox *sb)
{
    if (sb->state != HF_KILLING || !sb->kill_durable || sb->driver_busy || sb->destroying)
        return;
    sb->destroying = true;
    if (!sb->box) {
        gone(sb, NULL);
        return;
    }
    sb->net_key = hf_box_net_key(sb->box);
    sb->c->driver->ops->destroy(sb->c->driver, sb->box, on_destroyed, sb);
}

static void on_killing_row(void *arg, int r, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    hf_killpoint("kill.row-written");
    if (r < 0)
        /* Goes on all the same: a sandbox that can't be killed because the database is full is worse than a
         * row that the reconciler has to settle. */
        hf_log_error("cannot record the kill of a sandbox", "sandbox=%s error=%s", sb->row.id,
                     hf_log_quote(err->msg));
    sb->kill_durable = true;
    hf_sandbox_kill_step(sb);
}

void hf_sandbox_kill(struct hf_sandbox *sb, const char *cause, const char *detail, hf_done_cb cb, void *arg)
{
    if (cb) {
        struct waiter *w = hf_new(struct waiter);
        w->cb = cb;
        w->arg = arg;
        hf_list_add_tail(&sb->waiters, &w->node);
    }
    if (sb->state == HF_KILLING || hf_state_ended(sb->state))
        return; /* joined: the waiters are told at the end */
    struct hf_control *c = sb->c;
    (void)hf_sandbox_ref(sb); /* until on_killed_row */
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_sandbox_move(sb, b, HF_KILLING, cause, detail);
    if (c->hooks.drop)
        c->hooks.drop(c->hooks_self, sb->row.id);
    hf_create_killed(sb);
    hf_pause_killed(sb);
    hf_meta_commit(c->meta, b, 0, on_killing_row, sb);
}
