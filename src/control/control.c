/* Life of the control plane object itself, and what the driver reports. */
#include "control/control.h"

#include <stdio.h>

#include "base/log.h"
#include "base/path.h"
#include "control/snapshot_int.h"

static void on_box_exit(void *arg, struct hf_box *box, const struct hf_box_exit *exit)
{
    struct hf_control *c = arg;
    struct hf_sandbox *sb = hf_sandbox_find(c, NULL, hf_box_sandbox_id(box));
    if (!sb || sb->box != box || sb->state == HF_KILLING)
        return; /* its end is under way already */
    c->counts.died++;
    hf_sandbox_kill(sb, sb->state == HF_CREATING ? HF_CAUSE_CREATE_FAILED : hf_cause_of_exit(exit->cause),
                    exit->detail, NULL, NULL);
}

static void read_boot_id(char *out, size_t n)
{
    hf_auto_free char *text = NULL;
    size_t len = 0;
    if (hf_read_file("/proc/sys/kernel/random/boot_id", 64, &text, &len) < 0)
        return;
    (void)snprintf(out, n, "%.*s", (int)strcspn(text, "\n"), text);
}

struct hf_control *hf_control_new(uv_loop_t *loop, const struct hf_config *cfg, struct hf_meta *meta,
                                  struct hf_driver *driver)
{
    struct hf_control *c = hf_new(struct hf_control);
    c->loop = loop;
    c->cfg = cfg;
    c->meta = meta;
    c->driver = driver;
    hf_list_init(&c->list);
    hf_meta_seed(meta, c->seed);
    read_boot_id(c->boot_id, sizeof(c->boot_id));
    uv_timer_t *timers[] = {&c->tick, &c->sampler, &c->pruner, &c->policies};
    for (size_t i = 0; i < HF_ARRAY_LEN(timers); i++) {
        (void)uv_timer_init(loop, timers[i]);
        timers[i]->data = c;
        c->open_timers++;
    }
    c->snapshots = hf_snapshots_new(c);
    driver->on_exit = on_box_exit;
    driver->on_exit_arg = c;
    return c;
}

static void on_timer_closed(uv_handle_t *h)
{
    struct hf_control *c = h->data;
    if (--c->open_timers)
        return;
    void (*stopped)(void *) = c->stopped;
    void *arg = c->stopped_arg;
    explicit_bzero(c->seed, sizeof(c->seed));
    hf_map_done(&c->map);
    hf_map_done(&c->secrets_changing);
    hf_map_done(&c->policies_changing);
    free(c);
    if (stopped)
        stopped(arg);
}

void hf_control_free(struct hf_control *c, void (*stopped)(void *arg), void *arg)
{
    c->stopping = true;
    c->stopped = stopped;
    c->stopped_arg = arg;
    size_t pos = 0;
    for (struct hf_sandbox *sb; (sb = hf_map_next(&c->map, &pos, NULL));)
        hf_sandbox_unref(sb);
    hf_snapshots_free(c->snapshots);
    uv_close((uv_handle_t *)&c->tick, on_timer_closed);
    uv_close((uv_handle_t *)&c->sampler, on_timer_closed);
    uv_close((uv_handle_t *)&c->pruner, on_timer_closed);
    uv_close((uv_handle_t *)&c->policies, on_timer_closed);
}

void hf_control_set_warm(struct hf_control *c)
{
    struct hf_template_row t;
    const char *want = c->cfg->warm_template;
    int r = *want ? hf_get_template(c->meta, want, &t) : 0;
    if (r == 0 && *want)
        r = hf_get_template_by_name(c->meta, "default", want, "default", &t);
    if (r == 0 && *want)
        r = hf_get_public_template_by_name(c->meta, want, "default", &t);
    const char *id = r == 1 && strcmp(t.state, "ready") == 0 ? t.id : "";
    if (strcmp(id, c->warm_id) == 0)
        return;
    (void)snprintf(c->warm_id, sizeof(c->warm_id), "%s", id);
    c->driver->ops->set_warm(c->driver, id, *id ? c->cfg->warm_pool : 0);
    hf_log_info("warm pool", "template=%s size=%u", *id ? id : "none", *id ? c->cfg->warm_pool : 0);
}
