/* Timers: the end of each sandbox's life, and its metrics samples.
 *
 * A deadline is a point of CLOCK_BOOTTIME, so neither a jump of the wall clock nor a restart of the daemon
 * moves it; with another boot there is no sandbox left that it could concern. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "control/persist.h"
#include "store/net.h"

#define SAMPLER_MS 500u /* granularity of the sampling, not its period */

static void end_of_life(struct hf_sandbox *sb)
{
    static const char why[] = "it reached the end of its life";
    const struct hf_pause_ask ask = {
        .memory = hf_sandbox_keeps_memory(sb), .cause = HF_CAUSE_TIMEOUT, .detail = why};
    if (hf_sandbox_pauses(sb))
        hf_sandbox_pause(sb, &ask, NULL, NULL);
    else
        hf_sandbox_kill(sb, HF_CAUSE_TIMEOUT, why, NULL, NULL);
}

static void on_tick(uv_timer_t *t)
{
    struct hf_control *c = t->data;
    int64_t now = (int64_t)hf_boot_ms();
    hf_list_foreach_safe(it, &c->list)
    {
        struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (sb->state == HF_RUNNING && sb->deadline_boot_ms <= now)
            end_of_life(sb);
        else if (sb->state == HF_PAUSED && sb->pause.cold_at_boot_ms && sb->pause.cold_at_boot_ms <= now)
            hf_sandbox_freeze_out(sb, true, HF_CAUSE_DELAY, NULL, NULL);
    }
    hf_deadline_arm(c);
}

void hf_deadline_arm(struct hf_control *c)
{
    int64_t now = (int64_t)hf_boot_ms(), wait = INT64_MAX;
    if (c->stopping)
        return;
    hf_list_foreach(it, &c->list)
    {
        const struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (sb->state == HF_RUNNING)
            wait = HF_MIN(wait, HF_MAX(sb->deadline_boot_ms - now, (int64_t)0));
        else if (sb->state == HF_PAUSED && sb->pause.cold_at_boot_ms)
            wait = HF_MIN(wait, HF_MAX(sb->pause.cold_at_boot_ms - now, (int64_t)0));
    }
    if (wait == INT64_MAX) {
        (void)uv_timer_stop(&c->tick);
        return;
    }
    /* The loop's timers stand still while the host sleeps, BOOTTIME does not: look again now and then. */
    uint64_t ms = (uint64_t)HF_MIN(wait, (int64_t)HF_CONTROL_TICK_MAX_MS);
    uv_update_time(c->loop);
    (void)uv_timer_start(&c->tick, on_tick, ms, 0);
}

bool hf_sandbox_set_timeout(struct hf_sandbox *sb, int64_t timeout_s, bool extend_only)
{
    int64_t deadline = (int64_t)hf_boot_ms() + timeout_s * 1000;
    if (extend_only && deadline <= sb->deadline_boot_ms)
        return false;
    sb->deadline_boot_ms = sb->row.deadline_boot_ms = deadline;
    sb->row.end_ms = hf_real_ms() + timeout_s * 1000;
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_set_sandbox_times(b, sb->row.id, sb->row.started_ms, sb->row.end_ms, deadline);
    hf_meta_commit(sb->c->meta, b, HF_META_LAZY, NULL, NULL);
    hf_deadline_arm(sb->c);
    return true;
}

void hf_sample_now(struct hf_sandbox *sb)
{
    sb->next_sample_ms = hf_mono_ms() + HF_CONTROL_SAMPLE_MS;
    struct hf_sample s = {.time_ms = hf_real_ms()};
    int r = sb->c->driver->ops->stats(sb->c->driver, sb->box, &s.stats);
    if (r < 0) {
        hf_log_debug("no metrics", "sandbox=%s error=%d", sb->row.id, r);
        return;
    }
    if (sb->samples_n == sb->samples_cap && sb->samples_cap < HF_CONTROL_SAMPLES_MAX) {
        sb->samples_cap = HF_MIN(HF_MAX(sb->samples_cap * 2, 8u), HF_CONTROL_SAMPLES_MAX);
        sb->samples = hf_xrealloc(sb->samples, sb->samples_cap * sizeof(*sb->samples));
    }
    if (sb->samples_n < sb->samples_cap) {
        sb->samples[sb->samples_n++] = s;
        return;
    }
    sb->samples[sb->samples_at] = s; /* full: the oldest goes */
    sb->samples_at = (sb->samples_at + 1) % sb->samples_cap;
}

static bool memory_is_low(const struct hf_control *c)
{
    return uv_get_free_memory() < (c->cfg->memory_low ? c->cfg->memory_low : uv_get_total_memory() / 10);
}

/* Memory that nobody uses at the moment is the first to go: of the warm pauses the longest, one at a time. */
static void relieve(struct hf_control *c)
{
    struct hf_sandbox *longest = NULL;
    hf_list_foreach(it, &c->list)
    {
        struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (sb->pause.freezing_out)
            return;
        if (sb->state == HF_PAUSED && sb->pause.cold_at_boot_ms && !sb->pause.stays_warm &&
            (!longest || sb->row.paused_ms < longest->row.paused_ms))
            longest = sb;
    }
    if (longest && memory_is_low(c))
        hf_sandbox_freeze_out(longest, true, HF_CAUSE_PRESSURE, NULL, NULL);
}

static void on_sampler(uv_timer_t *t)
{
    struct hf_control *c = t->data;
    uint64_t now = hf_mono_ms();
    relieve(c);
    hf_list_foreach(it, &c->list)
    {
        struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (sb->state == HF_RUNNING && sb->box && now >= sb->next_sample_ms)
            hf_sample_now(sb);
    }
}

static void on_pruner(uv_timer_t *t)
{
    struct hf_control *c = t->data;
    int64_t now = hf_real_ms();
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_prune(b, now - HF_CONTROL_KEEP_ENDED_MS, now - HF_CONTROL_KEEP_ANSWERS_MS);
    hf_prune_outbound(b, now - (int64_t)c->cfg->outbound_keep * 1000, HF_CONTROL_OUTBOUND_ROWS);
    hf_meta_commit(c->meta, b, HF_META_LAZY, NULL, NULL);
}

void hf_deadline_start(struct hf_control *c)
{
    (void)uv_timer_start(&c->sampler, on_sampler, SAMPLER_MS, SAMPLER_MS);
    (void)uv_timer_start(&c->pruner, on_pruner, 60000, 3600000);
    hf_deadline_arm(c);
}
