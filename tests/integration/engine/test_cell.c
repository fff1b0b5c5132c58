/* Life of boxes on this host's kernel: create, use, limits, ends, adoption. Needs root. */
#include "harness.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/path.h"

static struct h_host host;

static int setup(void **state)
{
    h_setup(&host);
    *state = &host;
    return 0;
}

static int teardown(void **state)
{
    h_teardown(&host);
    return 0;
}

static void destroy_ok(struct hf_box *box)
{
    struct hf_err err;
    if (h_destroy(&host, box, &err) < 0)
        fail_msg("destroy: %s", err.msg);
}

static void test_create_and_destroy(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "sbx-one");
    assert_string_equal(hf_box_sandbox_id(box), "sbx-one");
    h_expect(box, "hostname; cat /etc/marker; id -u; echo new > /etc/marker; cat /etc/marker",
             "sbx-one\ntemplate\n0\nnew\n");
    h_expect(box, "su user -c 'id -u; touch /home/user/x && echo ok; touch /root/x 2>/dev/null || echo no'",
             "1000\nok\nno\n");
    h_expect(box, "su user -c '/bin/suid-probes euid'", "0\n");
    h_expect(box, "cat /proc/1/cmdline | tr '\\0' '\\n'", "/run/holdfast/envd\n");
    struct hf_box_stats st;
    assert_int_equal(host.driver->ops->stats(host.driver, box, &st), 0);
    assert_true(st.disk_total > (900u << 20) && st.disk_used > 0);
    assert_int_equal(st.mem_total, 512u << 20);
    assert_int_equal(st.cpu_count, 2);
    destroy_ok(box);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_template_is_untouched(void **state)
{
    h_open(&host, 0);
    struct hf_box *a = h_create(&host, "a");
    struct hf_box *b = h_create(&host, "b");
    h_expect(a, "echo changed > /etc/marker; rm /bin/yes; mkdir /opt/x; chown user /opt/x; stat -c %U /opt/x",
             "user\n");
    h_expect(b, "cat /etc/marker; test -e /bin/yes && echo there", "template\nthere\n");
    hf_auto_free char *ua = h_exec(a, "cat /proc/self/uid_map");
    hf_auto_free char *ub = h_exec(b, "cat /proc/self/uid_map");
    assert_string_not_equal(ua, ub);
    destroy_ok(a);
    destroy_ok(b);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_exit_is_reported(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "ends");
    free(h_exec(box, "#exit 7"));
    assert_true(h_until(&host, &host.exited, 5000));
    assert_ptr_equal(host.exited_box, box);
    assert_int_equal(host.exit.cause, HF_BOX_EXITED);
    assert_int_equal(host.exit.code, 7);
    assert_non_null(strstr(host.exit.detail, "the guest was told to end"));
    destroy_ok(box);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_kill_from_outside(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "shot");
    char path[128];
    hf_auto_free char *pids = NULL;
    (void)snprintf(path, sizeof(path), "/sys/fs/cgroup/pids/holdfast/%s/%u/cgroup.procs", host.group,
                   h_box_number(box));
    assert_int_equal(hf_read_file(path, 4096, &pids, NULL), 0);
    uint64_t pid;
    assert_int_equal(hf_parse_u64((struct hf_str){pids, strspn(pids, "0123456789")}, INT32_MAX, &pid), 0);
    assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
    assert_true(h_until(&host, &host.exited, 5000));
    assert_int_equal(host.exit.cause, HF_BOX_KILLED);
    assert_int_equal(host.exit.code, -SIGKILL);
    destroy_ok(box);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_supervisor_killed(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "lost");
    free(h_exec(box, "(sleep 1000 & sleep 1000 &) >/dev/null 2>&1; echo"));
    pid_t shim = h_shim_pid(&host, h_box_number(box));
    assert_true(shim > 0);
    assert_int_equal(kill(shim, SIGKILL), 0);
    assert_true(h_until(&host, &host.exited, 5000));
    assert_int_equal(host.exit.cause, HF_BOX_LOST);
    destroy_ok(box);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_init_out_of_memory(void **state)
{
    h_open(&host, 0);
    struct hf_box_spec spec = {.sandbox_id = "oom", .template_id = H_TEMPLATE, .memory_bytes = 64u << 20};
    struct hf_box *box = h_create_spec(&host, &spec, NULL);
    assert_non_null(box);
    free(h_exec(box, "#eat"));
    assert_true(h_until(&host, &host.exited, 20000));
    assert_int_equal(host.exit.cause, HF_BOX_OOM);
    destroy_ok(box);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_memory_bomb_of_a_user(void **state)
{
    h_open(&host, 0);
    struct hf_box_spec spec = {.sandbox_id = "bomb", .template_id = H_TEMPLATE, .memory_bytes = 64u << 20};
    struct hf_box *box = h_create_spec(&host, &spec, NULL);
    assert_non_null(box);
    h_expect(box, "/bin/probes eat; echo code $?", "Killed\ncode 137\n");
    h_expect(box, "dd if=/dev/zero of=/dev/shm/x bs=1M count=200 2>/dev/null; echo $?; rm -f /dev/shm/x",
             "1\n"); /* the file system's size is the limit */
    struct hf_box_stats st;
    assert_int_equal(host.driver->ops->stats(host.driver, box, &st), 0);
    assert_true(st.oom_kills >= 1);
    assert_false(host.exited);
    destroy_ok(box);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_fork_bomb(void **state)
{
    h_open(&host, 0);
    struct hf_box_spec spec = {.sandbox_id = "forks", .template_id = H_TEMPLATE, .pids_max = 100};
    struct hf_box *box = h_create_spec(&host, &spec, NULL);
    assert_non_null(box);
    free(h_exec(box, "setsid /bin/probes forkbomb >/dev/null 2>&1 & sleep 1; echo"));
    /* envd's reserve: it starts a process, which can't enter the full user group and says so. */
    uint64_t t0 = hf_mono_ms();
    hf_auto_free char *out = h_exec(box, "echo alive");
    assert_non_null(out);
    assert_non_null(strstr(out, "alive"));
    assert_true(hf_mono_ms() - t0 < 5000);
    struct hf_box_stats st;
    assert_int_equal(host.driver->ops->stats(host.driver, box, &st), 0);
    assert_in_range(st.pids, 50, 100 + 64);
    t0 = hf_mono_ms();
    destroy_ok(box);
    assert_true(hf_mono_ms() - t0 < 1000);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_cpu_limit(void **state)
{
    h_open(&host, 0);
    struct hf_box_spec spec = {.sandbox_id = "cpu", .template_id = H_TEMPLATE, .cpu_millis = 200};
    struct hf_box *box = h_create_spec(&host, &spec, NULL);
    assert_non_null(box);
    struct hf_box_stats st;
    free(h_exec(box, "(yes & yes &) >/dev/null 2>&1; echo"));
    assert_int_equal(host.driver->ops->stats(host.driver, box, &st), 0);
    h_spin(&host, 1500);
    assert_int_equal(host.driver->ops->stats(host.driver, box, &st), 0);
    if (st.cpu_used_pct > 30 || st.cpu_used_pct < 5)
        fail_msg("used %.1f %% of a core with a limit of 20 %%", st.cpu_used_pct);
    destroy_ok(box);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_disk_limit(void **state)
{
    h_open(&host, 0);
    struct hf_box_spec spec = {.sandbox_id = "disk", .template_id = H_TEMPLATE, .disk_bytes = 64u << 20};
    struct hf_box *box = h_create_spec(&host, &spec, NULL);
    assert_non_null(box);
    h_expect(box,
             "dd if=/dev/zero of=/big bs=1M count=100 2>&1 | grep -c 'No space left'; rm /big; "
             "dd if=/dev/zero of=/big bs=1M count=40 2>/dev/null && echo fits",
             "1\nfits\n");
    struct hf_box_stats st;
    assert_int_equal(host.driver->ops->stats(host.driver, box, &st), 0);
    assert_in_range(st.disk_used, 40u << 20, 64u << 20);
    destroy_ok(box);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_volume_outlives_boxes(void **state)
{
    h_open(&host, 1);
    struct hf_err err = {0};
    hf_auto_free char *image = NULL;
    assert_int_equal(hf_disk_volume_create(host.data, "work", 64u << 20, &image, &err), 0);
    struct hf_box_spec spec = {.sandbox_id = "v1",
                               .template_id = H_TEMPLATE,
                               .n_mounts = 1,
                               .mounts = {{.image = image, .path = "/srv/deep/work"}}};
    for (int round = 0; round < 4; round++) { /* from the pool and cold */
        if (round % 2 == 0)
            h_spin(&host, 300);
        struct hf_box *box = h_create_spec(&host, &spec, &err);
        if (!box)
            fail_msg("create: %s", err.msg);
        if (round == 0)
            h_expect(box, "stat -c %u:%g /srv/deep; su user -c 'echo kept > /srv/deep/work/f && sync'",
                     "1000:1000\n");
        h_expect(box, "cat /srv/deep/work/f; stat -c %U /srv/deep/work/f", "kept\nuser\n");
        if (round == 2) { /* one writer at a time */
            spec.sandbox_id = "second";
            assert_null(h_create_spec(&host, &spec, &err));
            assert_int_equal(err.r, -EBUSY);
        }
        destroy_ok(box);
    }
    spec.mounts[0].read_only = true;
    struct hf_box *box = h_create_spec(&host, &spec, &err);
    assert_non_null(box);
    h_expect(box, "cat /srv/deep/work/f; touch /srv/deep/work/g 2>/dev/null || echo read-only",
             "kept\nread-only\n");
    destroy_ok(box);
    h_close(&host, true);
    h_assert_clean(&host);
    assert_int_equal(hf_disk_volume_remove(host.data, "work", &err), 0);
}

static void test_dial(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "net");
    free(h_exec(
        box, "(/bin/probes listen4 8080 four & /bin/probes listen6 8081 six &) >/dev/null 2>&1; sleep 0.3"));
    char buf[16] = "";
    int fd = h_dial(&host, box, 8080);
    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
    assert_int_equal(recv(fd, buf, 4, MSG_WAITALL), 4);
    assert_memory_equal(buf, "four", 4);
    (void)close(fd);
    fd = h_dial(&host, box, 8081);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(h_dial(&host, box, 9), -ECONNREFUSED);
    destroy_ok(box);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_adopt(void **state)
{
    struct h_found found[H_FOUND_MAX];
    h_open(&host, 0);
    (void)h_create(&host, "keeps");
    struct hf_box *dies = h_create(&host, "dies");
    free(h_exec(dies, "(sleep 0.4; kill -9 1) & echo"));
    h_abandon(&host);
    h_open(&host, 0);
    assert_int_equal(h_scan(&host, found), 2);
    for (size_t i = 0; i < 2; i++) {
        assert_true(found[i].alive);
        host.driver->ops->adopt(host.driver, found[i].box);
        h_expect(found[i].box, "hostname",
                 i == 0 ? (strcmp(found[0].sandbox_id, "keeps") ? "dies\n" : "keeps\n")
                        : (strcmp(found[1].sandbox_id, "keeps") ? "dies\n" : "keeps\n"));
    }
    struct hf_box *keeps = found[strcmp(found[0].sandbox_id, "keeps") == 0 ? 0 : 1].box;
    struct hf_box *other = found[strcmp(found[0].sandbox_id, "keeps") == 0 ? 1 : 0].box;
    struct hf_box_stats st;
    assert_int_equal(host.driver->ops->stats(host.driver, keeps, &st), 0);
    assert_true(st.disk_total > 0);
    free(h_exec(other, "#exit 5"));
    assert_true(h_until(&host, &host.exited, 5000));
    assert_ptr_equal(host.exited_box, other);
    assert_int_equal(host.exit.code, 5);
    h_abandon(&host);
    h_open(&host, 0);
    /* The dead one is found with its exit, the living one alive. */
    assert_int_equal(h_scan(&host, found), 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(found[i].alive, strcmp(found[i].sandbox_id, "keeps") == 0);
        if (!found[i].alive) {
            assert_int_equal(found[i].exit.cause, HF_BOX_EXITED);
            assert_int_equal(found[i].exit.code, 5);
        }
        destroy_ok(found[i].box);
    }
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_warm_pool(void **state)
{
    struct h_found found[H_FOUND_MAX];
    h_open(&host, 2);
    h_spin(&host, 1000);
    struct hf_box_spec spec = {
        .sandbox_id = "warm", .template_id = H_TEMPLATE, .memory_bytes = 64u << 20, .pids_max = 50};
    uint64_t t0 = hf_mono_ns();
    struct hf_box *box = h_create_spec(&host, &spec, NULL);
    print_message("from the pool: %.2f ms\n", (double)(hf_mono_ns() - t0) / 1e6);
    assert_non_null(box);
    h_expect(box, "hostname; cat /etc/hostname; grep -c warm /etc/hosts; stat -c %u:%a /etc/hosts",
             "warm\nwarm\n1\n0:644\n");
    h_expect(box, "/bin/probes eat; echo code $?", "Killed\ncode 137\n");
    h_abandon(&host);
    h_open(&host, 0);
    size_t n = h_scan(&host, found);
    size_t claimed = 0;
    for (size_t i = 0; i < n; i++) {
        claimed += strcmp(found[i].sandbox_id, "warm") == 0;
        assert_true(found[i].alive);
        destroy_ok(found[i].box);
    }
    assert_int_equal(claimed, 1);
    assert_in_range(n, 2, 3);
    h_assert_clean(&host);
    h_close(&host, true);
}

/* The unified hierarchy of a hybrid host has no controllers, but is a real cgroup2. */
static void test_other_cgroups(void **state)
{
    static const char *const roots[] = {"/sys/fs/cgroup/unified", "/nonexistent"};
    for (size_t i = 0; i < HF_ARRAY_LEN(roots); i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "%s/cgroup.controllers", roots[i]);
        if (i == 0 && access(path, F_OK) < 0)
            continue;
        host.cgroup_root = roots[i];
        h_open(&host, 1);
        struct hf_driver_caps caps;
        host.driver->ops->caps(host.driver, &caps);
        assert_false(caps.memory_limit);
        assert_non_null(strstr(caps.missing, "memory limits"));
        struct hf_box *box = h_create(&host, "other");
        h_expect(box, "echo fine", "fine\n");
        free(h_exec(box, "for i in 1 2 3 4 5; do sleep 1000 >/dev/null 2>&1 & done"));
        struct hf_box_stats st;
        assert_int_equal(host.driver->ops->stats(host.driver, box, &st), 0);
        destroy_ok(box);
        box = h_create(&host, "other2");
        pid_t shim = h_shim_pid(&host, h_box_number(box));
        assert_int_equal(kill(shim, SIGKILL), 0);
        assert_true(h_until(&host, &host.exited, 5000));
        destroy_ok(box);
        h_close(&host, true);
        h_assert_clean(&host);
    }
}

static void test_io_limit(void **state)
{
    h_open(&host, 0);
    struct hf_driver_caps caps;
    host.driver->ops->caps(host.driver, &caps);
    if (!caps.io_limit) {
        print_message("this host has no io controller\n");
        h_close(&host, true);
        return;
    }
    struct hf_box_spec spec = {.sandbox_id = "io", .template_id = H_TEMPLATE, .io_bps = 4u << 20};
    struct hf_box *box = h_create_spec(&host, &spec, NULL);
    assert_non_null(box);
    uint64_t t0 = hf_mono_ms();
    h_expect(box, "/bin/probes directwrite /big 8", "written\n");
    uint64_t took = hf_mono_ms() - t0;
    if (took < 1500)
        fail_msg("8 MiB at 4 MiB/s took %u ms", (unsigned)took);
    destroy_ok(box);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_bad_specs(void **state)
{
    h_open(&host, 0);
    struct hf_err err;
    struct hf_box_spec spec = {.sandbox_id = "../x", .template_id = H_TEMPLATE};
    assert_null(h_create_spec(&host, &spec, &err));
    assert_int_equal(err.r, -EINVAL);
    spec.sandbox_id = "x";
    spec.template_id = "none";
    assert_null(h_create_spec(&host, &spec, &err));
    assert_int_equal(err.r, -ENOENT);
    spec.template_id = H_TEMPLATE;
    spec.n_mounts = 1;
    spec.mounts[0] = (struct hf_box_mount){.image = "/nonexistent.img", .path = "/w"};
    assert_null(h_create_spec(&host, &spec, &err));
    assert_int_equal(err.r, -ENOENT);
    h_assert_clean(&host);
    h_close(&host, true);
}

int main(int argc, char **argv)
{
    h_require(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_create_and_destroy, h_reset),
        cmocka_unit_test_teardown(test_template_is_untouched, h_reset),
        cmocka_unit_test_teardown(test_exit_is_reported, h_reset),
        cmocka_unit_test_teardown(test_kill_from_outside, h_reset),
        cmocka_unit_test_teardown(test_supervisor_killed, h_reset),
        cmocka_unit_test_teardown(test_init_out_of_memory, h_reset),
        cmocka_unit_test_teardown(test_memory_bomb_of_a_user, h_reset),
        cmocka_unit_test_teardown(test_fork_bomb, h_reset),
        cmocka_unit_test_teardown(test_cpu_limit, h_reset),
        cmocka_unit_test_teardown(test_disk_limit, h_reset),
        cmocka_unit_test_teardown(test_volume_outlives_boxes, h_reset),
        cmocka_unit_test_teardown(test_dial, h_reset),
        cmocka_unit_test_teardown(test_adopt, h_reset),
        cmocka_unit_test_teardown(test_warm_pool, h_reset),
        cmocka_unit_test_teardown(test_other_cgroups, h_reset),
        cmocka_unit_test_teardown(test_io_limit, h_reset),
        cmocka_unit_test_teardown(test_bad_specs, h_reset),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
