/* Rows against facts, once at start. */
#include "control/reconcile.h"

#include <stdio.h>

#include "base/fault.h"
#include "base/log.h"

/* What scan told about one sandbox's box. */
struct fact {
    struct hf_list node;
    struct hf_sandbox *sb;
    bool alive, frozen;
    struct hf_box_exit exit;
};

struct reconcile {
    struct hf_control *c;
    hf_done_cb ready;
    void *arg;
    struct hf_list facts;
    unsigned orphans, adopted, ended, unreadable;
};

enum hf_settle hf_reconcile_decide(enum hf_state row, bool cold, enum hf_found_box box,
                                   enum hf_box_cause exit_cause, bool same_boot, const char **ret_cause,
                                   const char **ret_detail)
{
    if (row == HF_KILLING)
        return HF_SETTLE_CONTINUE;
    if (row == HF_CREATING) {
        /* Nobody got an answer, and the environment that envd needs is in no row: undo. */
        *ret_cause = HF_CAUSE_INTERRUPTED;
        *ret_detail = "the daemon ended while the sandbox was being created";
        return HF_SETTLE_KILL;
    }
    if (row == HF_RUNNING && box == HF_BOX_ALIVE)
        return HF_SETTLE_ADOPT;
    /* Until the row says running, the image is what the sandbox is. */
    if ((row == HF_PAUSED || row == HF_RESUMING) && cold)
        return HF_SETTLE_COLD;
    /* Its client may have been told that it is paused, or not yet. */
    if ((row == HF_PAUSED || row == HF_PAUSING) && box == HF_BOX_ALIVE)
        return HF_SETTLE_FROZEN;
    if (row == HF_RESUMING && box == HF_BOX_ALIVE)
        return HF_SETTLE_THAWED;
    if (box == HF_BOX_DEAD) {
        *ret_cause = hf_cause_of_exit(exit_cause);
        *ret_detail = NULL; /* the box has a better one */
    } else if (!same_boot) {
        *ret_cause = HF_CAUSE_REBOOT;
        *ret_detail = "the host was restarted";
    } else {
        *ret_cause = HF_CAUSE_LOST;
        *ret_detail = "its supervisor was gone when the daemon started";
    }
    return HF_SETTLE_KILL;
}

static void load_row(void *arg, const struct hf_sandbox_row *row)
{
    struct reconcile *rec = arg;
    enum hf_state state;
    if (!hf_state_parse(hf_str_c(row->state), &state)) {
        hf_log_error("a row has an unknown state", "sandbox=%s state=%s", row->id, hf_log_quote(row->state));
        rec->unreadable++;
        return;
    }
    (void)hf_sandbox_new(rec->c, row, state);
}

static void orphan_gone(void *arg, const struct hf_err *err)
{
    if (err && err->r < 0)
        hf_log_error("parts of an unknown box are left behind", "error=%s", hf_log_quote(err->msg));
}

static struct fact *fact_of(struct reconcile *rec, const struct hf_sandbox *sb)
{
    hf_list_foreach(it, &rec->facts)
    {
        struct fact *f = hf_list_entry(it, struct fact, node);
        if (f->sb == sb)
            return f;
    }
    return NULL;
}

/* Of two boxes of one sandbox, the one that its row speaks of: after a rollback the former one stands still
 * until it is removed, while the sandbox runs on in the other. */
static bool fits(const struct hf_sandbox *sb, bool frozen)
{
    return frozen == (sb->state == HF_PAUSING || sb->state == HF_PAUSED);
}

static void on_found(void *arg, const struct hf_box_found *f)
{
    struct reconcile *rec = arg;
    struct hf_control *c = rec->c;
    struct hf_sandbox *sb = *f->sandbox_id ? hf_sandbox_find(c, NULL, f->sandbox_id) : NULL;
    struct fact *fact = sb ? fact_of(rec, sb) : NULL;
    bool taken = sb && (!fact || (fits(sb, f->frozen) && !fits(sb, fact->frozen)));
    struct hf_box *unowned = !taken ? f->box : fact ? sb->box : NULL;
    if (unowned) {
        if (*f->sandbox_id)
            hf_log_warn("destroying a box that nobody owns", "sandbox=%s", f->sandbox_id);
        rec->orphans++;
        c->driver->ops->destroy(c->driver, unowned, orphan_gone, NULL);
    }
    if (!taken)
        return;
    if (!fact) {
        fact = hf_new(struct fact);
        fact->sb = sb;
        hf_list_add_tail(&rec->facts, &fact->node);
    }
    sb->box = f->box;
    fact->alive = f->alive;
    fact->frozen = f->frozen;
    fact->exit = f->exit;
}

static void settle(struct reconcile *rec, struct hf_sandbox *sb)
{
    struct hf_control *c = rec->c;
    const struct fact *f = sb->box ? fact_of(rec, sb) : NULL;
    enum hf_found_box box = !f ? HF_BOX_NONE : f->alive ? HF_BOX_ALIVE : HF_BOX_DEAD;
    const char *cause = "", *detail = NULL;
    bool same_boot = strcmp(sb->row.boot_id, c->boot_id) == 0;
    switch (hf_reconcile_decide(sb->state, *sb->row.pause_id != 0, box, f ? f->exit.cause : HF_BOX_LOST,
                                same_boot, &cause, &detail)) {
    case HF_SETTLE_ADOPT:
        c->driver->ops->adopt(c->driver, sb->box);
        rec->adopted++;
        hf_log_info("sandbox adopted", "sandbox=%s", sb->row.id);
        hf_control_event(c, sb->row.tenant, sb->row.id, sb->row.session_id, "sandbox.adopted", "", "");
        break;
    case HF_SETTLE_KILL:
        rec->ended++;
        hf_sandbox_kill(sb, cause, detail ? detail : f ? f->exit.detail : "", NULL, NULL);
        break;
    case HF_SETTLE_FROZEN:
    case HF_SETTLE_THAWED:
        rec->adopted++;
        c->driver->ops->adopt(c->driver, sb->box);
        hf_pause_settle(sb, sb->state == HF_RESUMING);
        break;
    case HF_SETTLE_COLD:
        rec->adopted++;
        if (sb->box)
            c->driver->ops->destroy(c->driver, hf_take_ptr(sb->box), orphan_gone, NULL);
        hf_pause_settle_cold(sb);
        break;
    case HF_SETTLE_CONTINUE:
        rec->ended++;
        sb->kill_durable = true;
        hf_sandbox_kill_step(hf_sandbox_ref(sb));
        break;
    }
}

static void on_scanned(void *arg, const struct hf_err *err)
{
    struct reconcile *rec = arg;
    struct hf_control *c = rec->c;
    hf_killpoint("reconcile.scanned");
    if (!err || err->r == 0) {
        hf_list_foreach_safe(it, &c->list)
        {
            settle(rec, hf_list_entry(it, struct hf_sandbox, node));
        }
        hf_log_info("rows compared with facts", "adopted=%u ended=%u unowned=%u", rec->adopted, rec->ended,
                    rec->orphans);
        hf_deadline_start(c);
    }
    hf_list_foreach_safe(it, &rec->facts)
    {
        hf_list_del(it);
        free(hf_list_entry(it, struct fact, node));
    }
    hf_killpoint("reconcile.adopted");
    rec->ready(rec->arg, err && err->r ? err : NULL);
    free(rec);
}

int hf_control_reconcile(struct hf_control *c, hf_done_cb ready, void *arg, struct hf_err *err)
{
    struct reconcile *rec = hf_new(struct reconcile);
    rec->c = c;
    rec->ready = ready;
    rec->arg = arg;
    hf_list_init(&rec->facts);
    hf_killpoint("reconcile.begin");
    int r = hf_each_live_sandbox(c->meta, load_row, rec);
    if (r < 0 || rec->unreadable) {
        /* A box whose row can't be read would look like one that nobody owns, and be destroyed. */
        free(rec);
        return hf_err_set(err, -EIO,
                          "cannot read the rows of the sandboxes; nothing was touched. Check %s/%s",
                          c->cfg->data_dir, HF_META_DB_NAME);
    }
    c->driver->ops->scan(c->driver, on_found, on_scanned, rec);
    return 0;
}
