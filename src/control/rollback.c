/* Rollback: a sandbox goes on from one of its snapshots, under the same id and in a new generation.
 *
 * It is paused, and resumed from a copy of the snapshot instead of what it was paused in. What it was is kept
 * until the other has been confirmed: the stopped box itself, or, where two boxes can't be at once because
 * they would need the same volume, the image of a cold pause. The daemon's end in between leaves a paused
 * sandbox, in the old state or the new one. */
#include <stdio.h>

#include "base/fault.h"
#include "base/log.h"
#include "control/net.h"
#include "control/snapshot_int.h"

struct rollback {
    struct hf_sandbox *sb;
    struct hf_snapshot_row to;
    char image[HF_ROW_ID]; /* the copy that is resumed from */
    bool was_running;
    int64_t timeout_s;
    /* What it was. */
    struct hf_box *box;
    uint32_t net_key;
    bool wired, ca_sent;
    char old_depth[sizeof(((struct hf_sandbox_row *)0)->pause_depth)];
    char old_image[HF_ROW_ID]; /* of a cold pause; "" = the box */
    struct hf_err err;
    hf_sandbox_cb cb;
    void *arg;
};

static void finish(struct rollback *k)
{
    struct hf_sandbox *sb = k->sb;
    if (k->err.r)
        hf_log_warn("a sandbox was not rolled back", "sandbox=%s snapshot=%s error=%s", sb->row.id, k->to.id,
                    hf_log_quote(k->err.msg));
    else
        hf_control_event(sb->c, sb->row.tenant, sb->row.id, sb->row.session_id, "sandbox.rolled-back", "api",
                         k->to.id);
    k->cb(k->arg, k->err.r ? NULL : sb, k->err.r ? &k->err : NULL);
    sb->c->busy--;
    hf_snapshot_row_done(&k->to);
    hf_sandbox_unref(sb);
    free(k);
}

static void on_old_gone(void *arg, const struct hf_err *err)
{
    struct rollback *k = arg;
    if (err && err->r < 0)
        hf_log_error("parts of a sandbox are left behind", "sandbox=%s error=%s", k->sb->row.id,
                     hf_log_quote(err->msg));
    if (k->sb->c->net && k->net_key)
        hf_cnet_forget(k->sb->c->net, k->net_key);
    hf_killpoint("rollback.old-gone");
    finish(k);
}

static void forget_old(struct rollback *k)
{
    struct hf_control *c = k->sb->c;
    if (*k->old_image)
        hf_snapshot_delete(c, k->sb->row.tenant, k->old_image, NULL, NULL);
    if (k->box)
        c->driver->ops->destroy(c->driver, hf_take_ptr(k->box), on_old_gone, k);
    else
        finish(k);
}

static void on_again(void *arg, struct hf_sandbox *sb, const struct hf_err *err)
{
    struct rollback *k = arg;
    if (err)
        hf_log_error("a sandbox stays paused after a rollback that failed", "sandbox=%s error=%s",
                     k->sb->row.id, hf_log_quote(err->msg));
    finish(k);
}

/* What it was is put back, and goes on if it did. */
static void put_back(void *arg)
{
    struct rollback *k = arg;
    struct hf_sandbox *sb = k->sb;
    sb->driver_busy = false;
    if (sb->state != HF_PAUSED) { /* it was killed meanwhile */
        if (sb->state == HF_KILLING)
            hf_sandbox_kill_step(sb);
        forget_old(k);
        return;
    }
    sb->box = hf_take_ptr(k->box);
    sb->net_key = k->net_key;
    sb->wired = k->wired;
    sb->ca_sent = k->ca_sent;
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_pause_set(sb, b, k->old_depth, k->old_image);
    hf_meta_commit(sb->c->meta, b, 0, NULL, NULL);
    hf_snapshot_delete(sb->c, sb->row.tenant, k->image, NULL, NULL);
    hf_killpoint("rollback.put-back");
    if (k->was_running)
        hf_sandbox_resume(sb, k->timeout_s, "rollback", on_again, k);
    else
        finish(k);
    hf_pause_wake_waiting(sb);
}

static void no_work(void *arg)
{
}

static void on_resumed(void *arg, struct hf_sandbox *sb, const struct hf_err *err)
{
    struct rollback *k = arg;
    if (!err) {
        hf_killpoint("rollback.confirmed");
        forget_old(k);
        return;
    }
    k->err = *err;
    /* In a turn of its own: the others who wait for this resume are told first. Nobody resumes it until then,
     * and a kill waits. */
    k->sb->driver_busy = true;
    hf_snapshots_work(k->sb->c, no_work, put_back, k);
}

/* It stands still: the pause image is exchanged, and it is resumed as from any cold pause. */
static void exchange(struct rollback *k)
{
    struct hf_sandbox *sb = k->sb;
    k->box = hf_take_ptr(sb->box);
    k->net_key = sb->net_key;
    k->wired = sb->wired;
    k->ca_sent = sb->ca_sent;
    memcpy(k->old_depth, sb->row.pause_depth, sizeof(k->old_depth));
    memcpy(k->old_image, sb->row.pause_id, sizeof(k->old_image));
    sb->net_key = 0;
    sb->wired = false;
    sb->pause.cold_at_boot_ms = 0;
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_pause_set(sb, b, strcmp(k->to.kind, "full") == 0 ? "cold" : "disk", k->image);
    hf_meta_commit(sb->c->meta, b, 0, NULL, NULL); /* rows are written in order: before the resume's */
    hf_killpoint("rollback.exchanged");
    hf_sandbox_resume(sb, k->timeout_s, "rollback", on_resumed, k);
}

static void give_up(struct rollback *k)
{
    hf_snapshot_delete(k->sb->c, k->sb->row.tenant, k->image, NULL, NULL);
    finish(k);
}

static bool has_exclusive_volume(const struct hf_sandbox *sb)
{
    json_auto_t *all = json_loads(sb->row.mounts, 0, NULL);
    return hf_mounts_exclusive(all) != NULL;
}

static void on_still_running(void *arg, struct hf_sandbox *sb, const struct hf_err *err)
{
    give_up(arg);
}

static void on_paused(void *arg, const struct hf_err *err)
{
    struct rollback *k = arg;
    struct hf_sandbox *sb = k->sb;
    hf_killpoint("rollback.paused");
    if (err)
        k->err = *err;
    else if (sb->state != HF_PAUSED || sb->pause.freezing_out || sb->driver_busy)
        (void)hf_err_http(&k->err, -EBUSY, 409, "Sandbox %s is %s; try again in a moment", sb->row.id,
                          sb->state == HF_PAUSED ? "being saved" : hf_state_name(sb->state));
    else if (sb->box && has_exclusive_volume(sb))
        (void)hf_err_http(
            &k->err, -EBUSY, 409,
            "Sandbox %s has a volume that one sandbox at a time can have, so its present state "
            "must be saved before it is left, and its processes can't be saved (see its events)",
            sb->row.id);
    if (!k->err.r)
        exchange(k);
    else if (sb->state == HF_PAUSED && k->was_running)
        hf_sandbox_resume(sb, k->timeout_s, "rollback", on_still_running, k);
    else
        give_up(k);
}

static void on_copied(void *arg, const struct hf_snapshot_row *s, const struct hf_err *err)
{
    struct rollback *k = arg;
    struct hf_sandbox *sb = k->sb;
    if (err) {
        k->err = *err;
        finish(k);
        return;
    }
    hf_killpoint("rollback.copied");
    memcpy(k->image, s->id, sizeof(k->image));
    bool cold = has_exclusive_volume(sb);
    const struct hf_pause_ask ask = {
        .memory = true, .cold = cold, .hold = !cold, .cause = "rollback", .detail = k->to.id};
    if (sb->state == HF_RUNNING)
        hf_sandbox_pause(sb, &ask, on_paused, k);
    else if (sb->state == HF_PAUSED && sb->box && ask.cold)
        hf_sandbox_freeze_out(sb, true, "rollback", on_paused, k);
    else
        on_paused(k, NULL);
}

static void on_checked(void *arg, const struct hf_err *err)
{
    struct rollback *k = arg;
    if (err && !k->err.r)
        k->err = *err;
    if (k->err.r) {
        finish(k);
        return;
    }
    const struct hf_snapshot_ask ask = {.purpose = "pause"};
    hf_snapshot_copy(k->sb->c, &k->to, &ask, on_copied, k);
}

void hf_rollback(struct hf_sandbox *sb, const struct hf_snapshot_row *to, hf_sandbox_cb cb, void *arg)
{
    struct rollback *k = hf_new(struct rollback);
    k->sb = hf_sandbox_ref(sb);
    k->was_running = sb->state == HF_RUNNING;
    k->timeout_s = sb->row.timeout_s;
    k->cb = cb;
    k->arg = arg;
    sb->c->busy++;
    if (hf_get_snapshot(sb->c->meta, to->id, &k->to) != 1)
        (void)hf_err_set(&k->err, -EIO, "the database can't be read");
    /* A bad snapshot is refused before anything stops. */
    hf_snapshot_check(sb->c, to->id, on_checked, k);
}
