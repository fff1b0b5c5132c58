/* The driver's side of saving: what is refused, what comes in between, and what starts from a save. Needs
 * root. */
#include "harness.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/path.h"
#include "engine/shim/spec.h"

#define STOPPED_MS 6000u /* longer than a supervisor that does not save is waited for */
#define MIB (1024u * 1024u)

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

struct wait {
    bool done;
    unsigned calls;
    struct hf_err err;
};

static void on_done(void *arg, const struct hf_err *err)
{
    struct wait *w = arg;
    w->done = true;
    w->calls++;
    if (err)
        w->err = *err;
}

static void on_saved(void *arg, const struct hf_box_saved *saved, const struct hf_err *err)
{
    assert_true((saved != NULL) == (err == NULL));
    on_done(arg, err);
}

static char *make_dir(const char *name)
{
    char *dir = hf_xasprintf("%s/pool/%s", host.data, name);
    assert_int_equal(hf_mkdir_p(dir, 0700), 0);
    return dir;
}

static void begin_save(struct hf_box *box, const char *dir, bool memory, struct wait *w)
{
    const struct hf_box_save job = {.dir = dir, .memory = memory};
    host.driver->ops->save(host.driver, box, &job, on_saved, w);
}

/* 0 or the error's number. */
static int save(struct hf_box *box, const char *dir, bool memory, struct hf_err *err)
{
    struct wait w = {0};
    begin_save(box, dir, memory, &w);
    assert_true(h_until(&host, &w.done, 60000));
    *err = w.err;
    return w.err.r;
}

static void freeze(struct hf_box *box, bool frozen)
{
    struct wait w = {0};
    host.driver->ops->freeze(host.driver, box, frozen, on_done, &w);
    assert_true(h_until(&host, &w.done, 10000));
    assert_int_equal(w.err.r, 0);
}

static void destroy_ok(struct hf_box *box)
{
    struct hf_err err = {0};
    if (h_destroy(&host, box, &err) < 0)
        fail_msg("destroy: %s", err.msg);
}

static bool has_memory(void)
{
    struct hf_driver_caps caps;
    host.driver->ops->caps(host.driver, &caps);
    return caps.snapshot_memory;
}

/* After each refusal the box is as before. */
static void test_refused(void **state)
{
    struct hf_err err;
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "whole");
    char *endless = hf_xmalloc(HF_SHIM_MSG_MAX + 2);
    memset(endless, 'x', HF_SHIM_MSG_MAX + 1);
    endless[0] = '/';
    endless[HF_SHIM_MSG_MAX + 1] = '\0';
    const char *const bad[] = {"relative", "/tmp/no such directory", "/tmp/a\nb", endless};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        assert_true(save(box, bad[i], false, &err) < 0);
        assert_true(err.msg[0] != '\0');
        h_expect(box, "echo on", "on\n");
    }
    free(endless);
    destroy_ok(box);
    h_assert_clean(&host);
    h_close(&host, true);
}

/* Without CRIU the disk can be saved, and nobody is led to believe more. */
static void test_without_criu(void **state)
{
    struct hf_err err;
    struct hf_driver_caps caps;
    host.no_criu = true;
    h_open(&host, 0);
    host.driver->ops->caps(host.driver, &caps);
    assert_true(caps.pause);
    assert_false(caps.snapshot_memory);
    assert_non_null(strstr(caps.missing, "memory images"));
    struct hf_box *box = h_create(&host, "plain");
    hf_auto_free char *dir = make_dir("s-plain");
    assert_int_equal(save(box, dir, true, &err), -EOPNOTSUPP);
    assert_non_null(strstr(err.msg, "CRIU"));
    h_expect(box, "echo on", "on\n");
    assert_int_equal(save(box, dir, false, &err), 0);
    destroy_ok(box);
    assert_int_equal(hf_remove_tree(dir), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

/* The supervisor has the save before the request to end: both end, the save is told of it once. */
static void test_destroy_meanwhile(void **state)
{
    h_open(&host, 0);
    for (int late = 0; late < 2; late++) {
        struct wait w = {0};
        struct hf_box *box = h_create(&host, "ends");
        hf_auto_free char *dir = make_dir("s-ends");
        h_expect(box, "dd if=/dev/zero of=/root/data bs=1M count=32 2>/dev/null; echo on", "on\n");
        begin_save(box, dir, has_memory(), &w);
        if (late)
            h_spin(&host, 20);
        bool answered = w.done;
        destroy_ok(box);
        assert_true(h_until(&host, &w.done, 10000));
        h_spin(&host, 20);
        assert_int_equal(w.calls, 1);
        if (!answered)
            assert_true(w.err.r < 0 && w.err.msg[0]);
        h_assert_clean(&host);
        assert_int_equal(hf_remove_tree(dir), 0);
    }
    h_close(&host, true);
}

/* A daemon that ends leaves a save behind: the box goes on after it, and is adopted. */
static void test_close_meanwhile(void **state)
{
    struct h_found found[H_FOUND_MAX];
    struct wait w = {0};
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "stays");
    hf_auto_free char *dir = make_dir("s-stays");
    begin_save(box, dir, has_memory(), &w);
    h_close(&host, false);
    assert_int_equal(w.calls, 1);
    h_open(&host, 0);
    assert_int_equal(h_scan(&host, found), 1);
    assert_true(found[0].alive);
    assert_false(found[0].frozen);
    host.driver->ops->adopt(host.driver, found[0].box);
    h_expect(found[0].box, "echo on", "on\n");
    destroy_ok(found[0].box);
    assert_int_equal(hf_remove_tree(dir), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void go_on(uv_timer_t *t)
{
    const pid_t *shim = t->data;
    assert_int_equal(kill(*shim, SIGCONT), 0);
    uv_close((uv_handle_t *)t, NULL);
}

/* It answers nobody for longer than others are waited for, and says why (the mark is ours here: a save that
 * surely takes so long would need a box of many gigabytes). */
static void test_scan_meanwhile(void **state)
{
    struct h_found found[H_FOUND_MAX];
    struct hf_err err;
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "busy");
    unsigned n = h_box_number(box);
    hf_auto_free char *mark = hf_xasprintf("%s/%u/%s", host.run, n, HF_CELL_SAVING);
    hf_auto_free char *dir = make_dir("s-busy");
    assert_int_equal(save(box, dir, false, &err), 0);
    assert_int_equal(access(mark, F_OK), -1); /* none is left by a save */
    pid_t shim = h_shim_pid(&host, n);
    assert_true(shim > 0);
    h_close(&host, false);
    assert_int_equal(kill(shim, SIGSTOP), 0);
    hf_auto_close int fd = open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    h_open(&host, 0);
    uv_timer_t timer = {.data = &shim};
    assert_int_equal(uv_timer_init(&host.loop, &timer), 0);
    assert_int_equal(uv_timer_start(&timer, go_on, STOPPED_MS, 0), 0);
    assert_int_equal(h_scan(&host, found), 1);
    assert_true(found[0].alive);
    host.driver->ops->adopt(host.driver, found[0].box);
    h_expect(found[0].box, "echo on", "on\n");
    destroy_ok(found[0].box);
    assert_int_equal(hf_remove_tree(dir), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_frozen_stats(void **state)
{
    struct hf_box_stats st;
    struct h_found found[H_FOUND_MAX];
    struct hf_err err;
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "still");
    freeze(box, true);
    assert_int_equal(host.driver->ops->stats(host.driver, box, &st), 0);
    assert_true(st.pids > 0 && st.disk_total > 0);
    uint64_t cpu = st.cpu_usage_ns;
    assert_int_equal(host.driver->ops->stats(host.driver, box, &st), 0);
    assert_int_equal(st.cpu_usage_ns, cpu);
    /* A save of one that stands still leaves it so. */
    hf_auto_free char *dir = make_dir("s-still");
    assert_int_equal(save(box, dir, false, &err), 0);
    h_abandon(&host);
    h_open(&host, 0);
    assert_int_equal(h_scan(&host, found), 1);
    assert_true(found[0].alive && found[0].frozen);
    host.driver->ops->adopt(host.driver, found[0].box);
    freeze(found[0].box, false);
    h_expect(found[0].box, "echo on", "on\n");
    destroy_ok(found[0].box);
    assert_int_equal(hf_remove_tree(dir), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

static struct hf_box *create(const struct hf_box_spec *spec)
{
    struct hf_err err = {0};
    struct hf_box *box = h_create_spec(&host, spec, &err);
    if (!box)
        fail_msg("create: %s", err.msg);
    return box;
}

/* A member of the pool gets its generation by the claim; a start from a save never takes one. */
static void test_pool(void **state)
{
    struct hf_err err;
    h_open(&host, 1);
    h_spin(&host, 500);
    struct hf_box *first = h_create(&host, "first");
    h_expect(first, "echo saved > /root/file; cat /run/holdfast/generation", "1\n");
    hf_auto_free char *dir = make_dir("s-first");
    assert_int_equal(save(first, dir, false, &err), 0);
    h_spin(&host, 500);
    const struct hf_box_spec seventh = {.sandbox_id = "seventh", .template_id = H_TEMPLATE, .generation = 7};
    struct hf_box *claimed = create(&seventh);
    h_expect(claimed, "cat /run/holdfast/generation /root/file 2>&1 | head -n1", "7\n");
    h_spin(&host, 500);
    const struct hf_box_spec from = {
        .sandbox_id = "from", .template_id = H_TEMPLATE, .from = dir, .generation = 2, .clone = true};
    struct hf_box *copy = create(&from);
    h_expect(copy, "cat /run/holdfast/generation /root/file", "2\nsaved\n");
    destroy_ok(copy);
    destroy_ok(claimed);
    destroy_ok(first);
    assert_int_equal(hf_remove_tree(dir), 0);
    h_close(&host, true);
    h_open(&host, 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_from_nothing(void **state)
{
    struct hf_err err = {0};
    h_open(&host, 0);
    hf_auto_free char *empty = make_dir("s-empty");
    const char *const bad[] = {"relative", "/tmp/no such directory", empty};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        const struct hf_box_spec spec = {.sandbox_id = "none", .template_id = H_TEMPLATE, .from = bad[i]};
        err = (struct hf_err){0};
        assert_null(h_create_spec(&host, &spec, &err));
        assert_true(err.r < 0 && err.msg[0]);
    }
    assert_int_equal(hf_remove_tree(empty), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

/* A directory of the pool and a memory file system; neither is part of a save. */
static void test_mounts(void **state)
{
    struct hf_err err;
    struct stat st;
    h_open(&host, 0);
    hf_auto_free char *shared = make_dir("shared"), *dir = make_dir("s-mounts");
    hf_auto_free char *file = hf_xasprintf("%s/note", shared);
    struct hf_box_spec spec = {
        .sandbox_id = "mounts",
        .template_id = H_TEMPLATE,
        .n_mounts = 3,
        .mounts = {{.kind = HF_MOUNT_DIR, .image = shared, .path = "/srv/shared"},
                   {.kind = HF_MOUNT_DIR, .image = shared, .path = "/srv/read", .read_only = true},
                   {.kind = HF_MOUNT_TMPFS, .bytes = MIB, .path = "/srv/quick"}}};
    struct hf_box *box = create(&spec);
    h_expect(box,
             "echo hello > /srv/shared/note; cat /srv/read/note; (echo no > /srv/read/x) 2>/dev/null || echo "
             "refused",
             "hello\nrefused\n");
    assert_int_equal(stat(file, &st), 0); /* the box's root is root in the pool, whatever its range */
    assert_int_equal(st.st_uid, 0);
    h_expect(box,
             "dd if=/dev/zero of=/srv/quick/big bs=64k count=32 2>/dev/null || stat -c %s /srv/quick/big",
             "1048576\n");
    h_expect(box, "grep ' /srv/quick ' /proc/mounts | grep -c 'nosuid,nodev'", "1\n");
    assert_int_equal(save(box, dir, false, &err), 0);
    destroy_ok(box);
    const struct hf_box_spec bare = {.sandbox_id = "bare", .template_id = H_TEMPLATE, .from = dir};
    box = create(&bare);
    h_expect(box, "ls /srv/shared /srv/quick 2>/dev/null | grep -c -e note -e big", "0\n");
    destroy_ok(box);
    assert_int_equal(hf_remove_tree(dir), 0);
    assert_int_equal(hf_remove_tree(shared), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

int main(int argc, char **argv)
{
    h_require(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_refused, h_reset),
        cmocka_unit_test_teardown(test_without_criu, h_reset),
        cmocka_unit_test_teardown(test_destroy_meanwhile, h_reset),
        cmocka_unit_test_teardown(test_close_meanwhile, h_reset),
        cmocka_unit_test_teardown(test_scan_meanwhile, h_reset),
        cmocka_unit_test_teardown(test_frozen_stats, h_reset),
        cmocka_unit_test_teardown(test_pool, h_reset),
        cmocka_unit_test_teardown(test_from_nothing, h_reset),
        cmocka_unit_test_teardown(test_mounts, h_reset),
    };
    return cmocka_run_group_tests_name("engine/save", tests, setup, teardown);
}
