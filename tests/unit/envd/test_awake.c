/* Deadlines of processes: they run while the box does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "envd/awake.h"

static void test_counted(void **state)
{
    (void)state;
    assert_int_equal(awake_counted(1000, 1000), 0);
    assert_int_equal(awake_counted(1000, 1700), 700);
    /* A pause of a day, and a host that was started anew. */
    assert_int_equal(awake_counted(1000, 86401000), AWAKE_SLICE_MS + AWAKE_SLACK_MS);
    assert_int_equal(awake_counted(86401000, 20), 0);
}

static unsigned fired;

static void on_fire(struct awake_timer *t)
{
    fired++;
    awake_close(t, NULL);
}

static void test_fires_once(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct awake_timer a, b, closed;
    assert_int_equal(uv_loop_init(&loop), 0);
    awake_init(&loop, &a);
    awake_init(&loop, &b);
    awake_init(&loop, &closed);
    awake_start(&a, 1, on_fire);
    awake_start(&b, 20, on_fire);
    awake_start(&closed, 5, on_fire);
    awake_close(&closed, NULL);
    awake_again();
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(fired, 2);
    assert_int_equal(uv_loop_close(&loop), 0);
}

/* Much more time has passed than was waited for: what is left is waited for. */
static void test_a_pause_does_not_count(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct awake_timer a;
    assert_int_equal(uv_loop_init(&loop), 0);
    awake_init(&loop, &a);
    fired = 0;
    awake_start(&a, 60000, on_fire);
    a.since_ms -= 10000; /* nothing ran for ten seconds */
    (void)uv_timer_start(&a.uv, a.uv.timer_cb, 0, 0);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    assert_int_equal(fired, 0);
    assert_int_equal(a.left_ms, 60000 - AWAKE_SLICE_MS - AWAKE_SLACK_MS);
    assert_true(uv_is_active((const uv_handle_t *)&a.uv));
    awake_close(&a, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counted), cmocka_unit_test(test_fires_once),
                                       cmocka_unit_test(test_a_pause_does_not_count)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
