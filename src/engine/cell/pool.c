/* The warm pool: complete boxes that wait for a request (docs/adr/0006). */
#include <stdio.h>

#include "base/clock.h"
#include "engine/cell/cell.h"

static void set_defaults(const struct cell_driver *d, struct hf_cell_spec *s)
{
    s->limits = (struct hf_cg_limits){
        .cpu_millis = CELL_DEFAULT_CPU_MILLIS,
        .memory_bytes = CELL_DEFAULT_MEMORY,
        .pids_max = CELL_DEFAULT_PIDS,
    };
    s->disk_bytes = CELL_DEFAULT_DISK;
    s->fabric = d->fabric;
    s->network = d->fabric.ns[0] != '\0'; /* made before anybody waits for it; a claim without unplugs it */
}

static void start_one(struct cell_driver *d)
{
    struct hf_box *box = cell_box_new(d, 0);
    box->warm = true;
    set_defaults(d, &box->spec);
    (void)snprintf(box->spec.template_id, sizeof(box->spec.template_id), "%s", d->warm_template);
    (void)snprintf(box->spec.envd, sizeof(box->spec.envd), "%s", d->envd_path);
    (void)snprintf(box->spec.cgroup_root, sizeof(box->spec.cgroup_root), "%s", d->cg.root);
    (void)snprintf(box->spec.cgroup_group, sizeof(box->spec.cgroup_group), "%s", d->cg.group);
    cell_start(box);
}

static void quiet_over(void *arg)
{
    struct cell_driver *d = arg;
    cell_timer_free(&d->warm_quiet);
    cell_pool_fill(d);
}

/* Whoever just claimed a box is about to use it: as long as the pool is half full, the refill keeps off the
 * processors until nobody has asked for a while. */
static bool too_early(struct cell_driver *d)
{
    uint64_t quiet_ms = hf_mono_ms() - d->last_claim_ms;
    if (!d->last_claim_ms || quiet_ms >= CELL_WARM_QUIET_MS || d->warm_ready < (d->warm_target + 1) / 2)
        return false;
    if (!d->warm_quiet)
        d->warm_quiet = cell_timer_new(d->base.loop, CELL_WARM_QUIET_MS - quiet_ms, quiet_over, d);
    return true;
}

/* Requests go first: nothing is warmed while one waits for its turn to start. */
void cell_pool_fill(struct cell_driver *d)
{
    if (d->closing || !d->warm_template[0] || d->warm_retry)
        return;
    while (hf_list_empty(&d->queue) && d->warm_starting < CELL_WARM_STARTS && d->starting < d->starts_max &&
           d->warm_ready + d->warm_starting < d->warm_target && !too_early(d))
        start_one(d);
}

bool cell_pool_fits(const struct hf_box *box)
{
    const struct cell_driver *d = box->d;
    const struct hf_cell_fabric *a = &box->spec.fabric, *b = &d->fabric;
    return box->state == CELL_RUNNING && box->spec.disk_bytes == CELL_DEFAULT_DISK &&
           box->spec.network == (b->ns[0] != '\0') && strcmp(a->ns, b->ns) == 0 &&
           strcmp(a->subnet4, b->subnet4) == 0 && strcmp(a->subnet6, b->subnet6) == 0 && a->ipv6 == b->ipv6;
}

void cell_pool_add(struct hf_box *box)
{
    struct cell_driver *d = box->d;
    if (d->closing && !d->close_kill_pool)
        return; /* the next daemon finds it */
    if (d->closing || strcmp(box->spec.template_id, d->warm_template) != 0 ||
        d->warm_ready >= d->warm_target) {
        cell_box_remove(box, NULL, NULL);
        return;
    }
    hf_list_add_tail(&d->warm, &box->turn);
    d->warm_ready++;
    cell_pool_fill(d);
}

void cell_pool_drop(struct hf_box *box)
{
    if (!box->warm || hf_list_empty(&box->turn) || box->state == CELL_QUEUED)
        return;
    hf_list_del(&box->turn);
    box->d->warm_ready--;
}

struct hf_box *cell_pool_take(struct cell_driver *d, const struct hf_cell_spec *want)
{
    if (hf_list_empty(&d->warm) || want->disk_bytes != CELL_DEFAULT_DISK ||
        strcmp(want->template_id, d->warm_template) != 0)
        return NULL;
    struct hf_box *box = hf_list_entry(d->warm.next, struct hf_box, turn);
    cell_pool_drop(box); /* stays warm until its supervisor has agreed */
    d->last_claim_ms = hf_mono_ms();
    return box;
}

void cell_pool_empty(struct cell_driver *d)
{
    while (!hf_list_empty(&d->warm))
        cell_box_remove(hf_list_entry(d->warm.next, struct hf_box, turn), NULL, NULL);
}

void cell_pool_set(struct cell_driver *d, const char *template_id, uint32_t count)
{
    bool same = strcmp(d->warm_template, template_id) == 0;
    (void)snprintf(d->warm_template, sizeof(d->warm_template), "%s", template_id);
    d->warm_target = count;
    if (!same)
        cell_pool_empty(d);
    while (d->warm_ready > d->warm_target)
        cell_box_remove(hf_list_entry(d->warm.prev, struct hf_box, turn), NULL, NULL);
    cell_pool_fill(d);
}

static void retry(void *arg)
{
    struct cell_driver *d = arg;
    cell_timer_free(&d->warm_retry);
    cell_pool_fill(d);
}

void cell_pool_failed(struct cell_driver *d)
{
    if (!d->warm_retry && !d->closing)
        d->warm_retry = cell_timer_new(d->base.loop, CELL_WARM_RETRY_MS, retry, d);
}
