/* The host goes down: what runs, or is only paused warm, is saved to the disk, a few at a time. */
#include "base/log.h"
#include "control/persist.h"

#define DRAIN_LOOK_MS 100u /* for those that are in the middle of something */

struct drain {
    struct hf_control *c;
    uv_timer_t timer;
    unsigned saving;
    hf_done_cb done;
    void *arg;
};

struct drained {
    struct drain *d;
    struct hf_sandbox *sb;
};

static bool is_warm(const struct hf_sandbox *sb)
{
    return sb->state == HF_PAUSED && strcmp(sb->row.pause_depth, "warm") == 0;
}

static void on_disk(void *arg, const struct hf_err *err)
{
    struct drained *one = arg;
    if (err)
        hf_log_error("a sandbox is lost with the host", "sandbox=%s error=%s", one->sb->row.id,
                     hf_log_quote(err->msg));
    hf_sandbox_unref(one->sb);
    one->d->saving--;
    free(one);
}

/* Files are better than nothing, where the memory can't be saved; the event of that has the reason. */
static void on_memory(void *arg, const struct hf_err *err)
{
    struct drained *one = arg;
    if (is_warm(one->sb)) {
        hf_sandbox_freeze_out(one->sb, false, HF_CAUSE_SHUTDOWN, on_disk, one);
        return;
    }
    on_disk(one, NULL);
}

static void save(struct drain *d, struct hf_sandbox *sb)
{
    static const struct hf_pause_ask ask = {
        .memory = true, .cold = true, .cause = HF_CAUSE_SHUTDOWN, .detail = "the host goes down"};
    struct drained *one = hf_new(struct drained);
    *one = (struct drained){d, hf_sandbox_ref(sb)};
    sb->pause.drained = true;
    d->saving++;
    if (sb->state == HF_RUNNING)
        hf_sandbox_pause(sb, &ask, on_memory, one);
    else
        hf_sandbox_freeze_out(sb, true, HF_CAUSE_SHUTDOWN, on_memory, one);
}

static void on_closed(uv_handle_t *h)
{
    struct drain *d = h->data;
    d->done(d->arg, NULL);
    free(d);
}

static void look(uv_timer_t *t)
{
    struct drain *d = t->data;
    bool more = false;
    hf_list_foreach_safe(it, &d->c->list)
    {
        struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (sb->pause.drained || hf_state_ended(sb->state) || sb->state == HF_KILLING)
            continue;
        bool busy = sb->pause.freezing_out || (sb->pause.hold && d->c->busy); /* a rollback resumes it */
        bool ready = sb->state == HF_RUNNING || (is_warm(sb) && !busy);
        if (sb->state == HF_PAUSED && !ready && !busy)
            continue; /* cold already */
        more = true;
        if (ready && d->saving < HF_DRAIN_AT_ONCE)
            save(d, sb);
    }
    if (!more && d->saving == 0)
        uv_close((uv_handle_t *)t, on_closed);
}

void hf_control_drain(struct hf_control *c, hf_done_cb done, void *arg)
{
    struct drain *d = hf_new(struct drain);
    *d = (struct drain){.c = c, .done = done, .arg = arg};
    c->draining = true;
    (void)uv_timer_init(c->loop, &d->timer);
    d->timer.data = d;
    (void)uv_timer_start(&d->timer, look, 0, DRAIN_LOOK_MS);
}

int hf_control_not_draining(const struct hf_control *c, struct hf_err *err)
{
    return c->draining ? hf_err_http(err, -EAGAIN, 503, "this host goes down; try again later") : 0;
}
