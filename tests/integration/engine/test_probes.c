/* Runs the attacker's statements inside boxes, as root and as the user. Needs root. */
#include "harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cmocka.h>

#include "base/clock.h"

static struct h_host host;
static int abstract_fd = -1;
static char abstract_name[64];

static int setup(void **state)
{
    h_setup(&host);
    *state = &host;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int n = snprintf(abstract_name, sizeof(abstract_name), "hf-engine-test/%d", (int)getpid());
    memcpy(a.sun_path + 1, abstract_name, (size_t)n);
    abstract_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(abstract_fd, (struct sockaddr *)&a,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)),
                     0);
    return listen(abstract_fd, 1);
}

static int teardown(void **state)
{
    (void)hf_close(abstract_fd);
    h_teardown(&host);
    return 0;
}

static void run_probes(struct hf_box *box, bool as_user)
{
    char script[256];
    const char *quote = as_user ? "'" : "";
    (void)snprintf(script, sizeof(script), "%s%s/bin/probes %s %d %s%s", as_user ? "su user -c " : "", quote,
                   host.data, (int)getpid(), abstract_name, quote);
    hf_auto_free char *out = h_exec(box, script);
    assert_non_null(out);
    if (!strstr(out, "\n0 failed\n"))
        fail_msg("%s\n%s", script, out);
}

static void test_probes(void **state)
{
    h_open(&host, 1);
    struct hf_box *cold = h_create(&host, "cold");
    run_probes(cold, false);
    run_probes(cold, true);
    assert_int_equal(h_destroy(&host, cold, NULL), 0);
    h_spin(&host, 500);
    struct hf_box *warm = h_create(&host, "warm");
    run_probes(warm, false);
    assert_int_equal(h_destroy(&host, warm, NULL), 0);
    h_close(&host, true);
    h_assert_clean(&host);
}

/* 21: nothing in the box can end its PID 1; everything else may die. */
static void test_kill_all(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "killer");
    free(h_exec(box, "sleep 1000 & kill -9 1; kill -9 -1"));
    h_expect(box, "kill -9 1; echo alive", "alive\n");
    h_spin(&host, 50);
    assert_false(host.exited);
    assert_int_equal(h_destroy(&host, box, NULL), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

/* 12, 13, 14: quota in bytes, inodes and depth; the box goes away at once all the same. */
static void test_full_disk(void **state)
{
    h_open(&host, 0);
    struct hf_box_spec spec = {.sandbox_id = "full", .template_id = H_TEMPLATE, .disk_bytes = 64u << 20};
    struct hf_box *box = h_create_spec(&host, &spec, NULL);
    assert_non_null(box);
    h_expect(box, "mkdir /many; /bin/probes inodes /many 2>&1", "many files: No space left on device\n");
    h_expect(box,
             "rm -rf /many; dd if=/dev/zero of=/f bs=1M 2>&1 | grep -c 'No space left'; rm /f; echo x > /y; "
             "cat /y",
             "1\nx\n");
    h_expect(box, "/bin/probes deep /home 100000 2>&1", "deep\n");
    uint64_t t0 = hf_mono_ms();
    assert_int_equal(h_destroy(&host, box, NULL), 0);
    assert_true(hf_mono_ms() - t0 < 2000);
    h_assert_clean(&host);
    h_close(&host, true);
}

/* 19: tmpfs pages count for the box. */
static void test_tmpfs_is_charged(void **state)
{
    h_open(&host, 0);
    struct hf_box_spec spec = {.sandbox_id = "tmpfs", .template_id = H_TEMPLATE, .memory_bytes = 32u << 20};
    struct hf_box *box = h_create_spec(&host, &spec, NULL);
    assert_non_null(box);
    h_expect(box, "dd if=/dev/zero of=/run/x bs=1M count=60 2>/dev/null; echo $?; rm -f /run/x", "137\n");
    assert_false(host.exited);
    assert_int_equal(h_destroy(&host, box, NULL), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_a_thousand_processes(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "many");
    h_expect(box, "for i in $(seq 900); do sleep 100 >/dev/null 2>&1 & done; echo started", "started\n");
    struct hf_box_stats st;
    assert_int_equal(host.driver->ops->stats(host.driver, box, &st), 0);
    assert_true(st.pids >= 900);
    uint64_t t0 = hf_mono_ms();
    assert_int_equal(h_destroy(&host, box, NULL), 0);
    print_message("destroy with %u processes: %u ms\n", st.pids, (unsigned)(hf_mono_ms() - t0));
    h_assert_clean(&host);
    h_close(&host, true);
}

int main(int argc, char **argv)
{
    h_require(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_probes, h_reset),
        cmocka_unit_test_teardown(test_kill_all, h_reset),
        cmocka_unit_test_teardown(test_full_disk, h_reset),
        cmocka_unit_test_teardown(test_tmpfs_is_charged, h_reset),
        cmocka_unit_test_teardown(test_a_thousand_processes, h_reset),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
