/* Pauses that meet something: a waker, a limit, a host short of memory or on its way down. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/log.h"
#include "control/persist.h"
#include "control/present.h"
#include "harness.h"

static void pause_warm(struct hf_harness *h, struct hf_sandbox *sb)
{
    const struct hf_pause_ask warm = {.memory = true, .cause = "api", .detail = ""};
    struct hf_outcome paused = {0};
    hf_sandbox_pause(sb, &warm, hf_harness_on_outcome, &paused);
    hf_harness_wait(h, &paused.done);
    assert_string_equal(sb->row.pause_depth, "warm");
    hf_harness_run_ms(h, 3); /* the next one is paused later */
}

/* Woken before the row of the pause is on the disk: both callers hear of it. */
static void test_woken_at_once(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    const struct hf_pause_ask cold = {.memory = true, .cold = true, .cause = "api", .detail = ""};
    struct hf_outcome paused = {0};
    struct hf_created resumed = {0};
    hf_sandbox_pause(sb, &cold, hf_harness_on_outcome, &paused);
    while (sb->state != HF_PAUSED)
        (void)uv_run(&h->loop, UV_RUN_ONCE);
    assert_false(paused.done);
    hf_sandbox_resume(sb, 60, "traffic", hf_harness_on_created, &resumed);
    hf_harness_wait(h, &paused.done);
    hf_harness_wait(h, &resumed.done);
    assert_int_equal(paused.err.r, 0);
    assert_int_equal(resumed.err.r, 0);
    assert_int_equal(sb->state, HF_RUNNING);
}

/* Paused ones don't count, until they are resumed. */
static void test_limit(void **state)
{
    struct hf_harness *h = *state;
    struct hf_err err = {0};
    h->cfg.max_sandboxes = 1;
    h->cfg.pause_warm_s = 3600;
    struct hf_sandbox *a = hf_harness_create(h);
    assert_int_equal(hf_control_admit(h->c, "default", &err), -EAGAIN);
    pause_warm(h, a);
    assert_int_equal(hf_control_admit(h->c, "default", &err), 0);
    assert_int_equal(hf_control_admit_resume(a, &err), 0);
    struct hf_sandbox *b = hf_harness_create(h);
    assert_int_equal(hf_control_admit_resume(a, &err), -EAGAIN);
    assert_int_equal(hf_control_admit_resume(b, &err), 0); /* it runs: joining costs nothing */
}

/* Short of memory: the longest pause first, one at a time; what can't be saved is asked once. */
static void test_pressure(void **state)
{
    struct hf_harness *h = *state;
    h->cfg.pause_warm_s = 3600;
    h->cfg.memory_low = 1;
    struct hf_sandbox *a = hf_harness_create(h), *b = hf_harness_create(h), *running = hf_harness_create(h);
    pause_warm(h, b);
    pause_warm(h, a);
    hf_harness_run_ms(h, 700); /* a look */
    assert_string_equal(b->row.pause_depth, "warm");
    h->cfg.memory_low = UINT64_MAX;
    h->fake->save_ms = 30;
    while (strcmp(b->row.pause_depth, "cold") != 0) {
        assert_string_equal(a->row.pause_depth, "warm");
        (void)uv_run(&h->loop, UV_RUN_ONCE);
    }
    while (strcmp(a->row.pause_depth, "cold") != 0)
        (void)uv_run(&h->loop, UV_RUN_ONCE);
    assert_int_equal(running->state, HF_RUNNING);

    h->cfg.memory_low = 1;
    struct hf_sandbox *stuck = hf_harness_create(h);
    h->fake->fail_save = -EOPNOTSUPP;
    pause_warm(h, stuck);
    unsigned saves = h->fake->saves;
    h->cfg.memory_low = UINT64_MAX;
    hf_harness_run_ms(h, 1700); /* three looks */
    assert_int_equal(h->fake->saves, saves + 1);
    assert_string_equal(stuck->row.pause_depth, "warm");
}

/* The host goes down: memory where it can be saved, else the disk, and nothing new. */
static void test_drain(void **state)
{
    struct hf_harness *h = *state;
    h->cfg.pause_warm_s = 3600;
    h->fake->save_ms = 20;
    struct hf_sandbox *sb[HF_DRAIN_AT_ONCE + 2], *warm = hf_harness_create(h);
    for (size_t i = 0; i < HF_ARRAY_LEN(sb); i++)
        sb[i] = hf_harness_create(h);
    pause_warm(h, warm);
    int done = 0;
    hf_control_drain(h->c, hf_harness_on_done, &done);
    while (!done) {
        size_t in_flight = 0;
        for (size_t i = 0; i < HF_ARRAY_LEN(sb); i++)
            in_flight += sb[i]->state == HF_PAUSING || sb[i]->pause.freezing_out;
        assert_true(in_flight <= HF_DRAIN_AT_ONCE);
        (void)uv_run(&h->loop, UV_RUN_ONCE);
    }
    for (size_t i = 0; i < HF_ARRAY_LEN(sb); i++)
        assert_string_equal(sb[i]->row.pause_depth, "cold");
    assert_string_equal(sb[0]->row.cause, "shutdown");
    assert_string_equal(warm->row.pause_depth, "cold");
    struct hf_err err = {0};
    assert_int_equal(hf_control_admit(h->c, "default", &err), -EAGAIN);
    assert_int_equal(hf_err_http_status(&err), 503);
    struct hf_created resumed = {0};
    hf_sandbox_resume(warm, 60, "api", hf_harness_on_created, &resumed);
    hf_harness_wait(h, &resumed.done);
    assert_int_equal(hf_err_http_status(&resumed.err), 503);
    assert_int_equal(warm->state, HF_PAUSED);
}

static void test_drain_without_memory(void **state)
{
    struct hf_harness *h = *state;
    h->fake->fail_save = -EOPNOTSUPP;
    struct hf_sandbox *sb = hf_harness_create(h);
    int done = 0;
    hf_control_drain(h->c, hf_harness_on_done, &done);
    hf_harness_wait(h, &done);
    assert_int_equal(sb->state, HF_PAUSED);
    assert_string_equal(sb->row.pause_depth, "disk");
    hf_auto_snapshot_row struct hf_snapshot_row row = {0};
    assert_int_equal(hf_get_snapshot(h->meta, sb->row.pause_id, &row), 1);
    assert_string_equal(row.kind, "disk");
}

#define T(name) cmocka_unit_test_setup_teardown(name, hf_harness_setup, hf_harness_teardown)

int main(void)
{
    hf_log_set_level(HF_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        T(test_woken_at_once), T(test_limit), T(test_pressure), T(test_drain), T(test_drain_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
