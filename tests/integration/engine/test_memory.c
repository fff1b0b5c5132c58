/* Freezing boxes, saving them, and starting them again, with and without their processes. Needs root, and
 * CRIU for the latter. */
#include "harness.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/path.h"

static struct h_host host;
static struct hf_box_saved last_saved;

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
    struct hf_err err;
};

static void on_done(void *arg, const struct hf_err *err)
{
    struct wait *w = arg;
    w->done = true;
    if (err)
        w->err = *err;
}

static void on_saved(void *arg, const struct hf_box_saved *saved, const struct hf_err *err)
{
    if (saved)
        last_saved = *saved;
    on_done(arg, err);
}

static void freeze(struct hf_box *box, bool frozen)
{
    struct wait w = {0};
    host.driver->ops->freeze(host.driver, box, frozen, on_done, &w);
    assert_true(h_until(&host, &w.done, 10000));
    if (w.err.r)
        fail_msg("freeze: %s", w.err.msg);
}

/* Into DATA/saved/<name>. */
static char *save(struct hf_box *box, const char *name, bool memory, bool end)
{
    char *dir = hf_xasprintf("%s/pool/%s", host.data, name);
    assert_int_equal(hf_mkdir_p(dir, 0700), 0);
    struct wait w = {0};
    const struct hf_box_save job = {.dir = dir, .memory = memory, .end = end};
    host.driver->ops->save(host.driver, box, &job, on_saved, &w);
    assert_true(h_until(&host, &w.done, 60000));
    if (w.err.r)
        fail_msg("save: %s", w.err.msg);
    return dir;
}

static struct hf_box *start(const char *id, const char *from, bool memory, uint64_t generation, bool clone)
{
    struct hf_err err = {0};
    const struct hf_box_spec spec = {.sandbox_id = id,
                                     .template_id = H_TEMPLATE,
                                     .from = from,
                                     .from_memory = memory,
                                     .generation = generation,
                                     .clone = clone};
    struct hf_box *box = h_create_spec(&host, &spec, &err);
    if (!box)
        fail_msg("start from %s: %s", from, err.msg);
    return box;
}

static void destroy_ok(struct hf_box *box)
{
    struct hf_err err = {0};
    if (h_destroy(&host, box, &err) < 0)
        fail_msg("destroy: %s", err.msg);
}

static void test_freeze(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "cold");
    h_expect(box, "(while :; do echo x >> /tmp/ticks; usleep 10000; done) >/dev/null 2>&1 & echo on", "on\n");
    freeze(box, true);
    freeze(box, true);
    hf_auto_free char *before = NULL, *after = NULL;
    freeze(box, false);
    before = h_exec(box, "wc -l < /tmp/ticks");
    h_spin(&host, 100);
    after = h_exec(box, "wc -l < /tmp/ticks");
    assert_true(strtol(after, NULL, 10) > strtol(before, NULL, 10));
    freeze(box, true);
    destroy_ok(box); /* works on one that stands still */
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_adopt_frozen(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "stays");
    freeze(box, true);
    h_abandon(&host);
    h_open(&host, 0);
    struct h_found found[H_FOUND_MAX];
    assert_int_equal(h_scan(&host, found), 1);
    assert_true(found[0].alive);
    host.driver->ops->adopt(host.driver, found[0].box);
    freeze(found[0].box, false);
    h_expect(found[0].box, "echo alive", "alive\n");
    destroy_ok(found[0].box);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_disk(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "first");
    h_expect(box, "echo one > /root/file; cat /run/holdfast/generation", "1\n");
    hf_auto_free char *dir = save(box, "s-disk", false, false);
    assert_true(last_saved.frozen_us > 0 && last_saved.frozen_us <= last_saved.total_us);
    h_expect(box, "echo two > /root/file; echo on", "on\n");
    struct hf_box *copy = start("second", dir, false, 2, true);
    h_expect(copy, "cat /root/file /run/holdfast/generation; hostname", "one\n2\nsecond\n");
    h_expect(box, "cat /root/file", "two\n");
    destroy_ok(copy);
    destroy_ok(box);
    assert_int_equal(hf_remove_tree(dir), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void require_criu(void)
{
    struct hf_driver_caps caps;
    host.driver->ops->caps(host.driver, &caps);
    if (!caps.snapshot_memory) {
        h_close(&host, true);
        skip();
    }
}

#define COUNTER                                                                                     \
    "(n=0; while :; do n=$((n+1)); echo $n > /tmp/n.new; mv /tmp/n.new /tmp/n; usleep 5000; done) " \
    "</dev/null >/dev/null 2>&1 & "                                                                 \
    "usleep 200000; echo on"

static long count_in(struct hf_box *box)
{
    hf_auto_free char *text = h_exec(box, "cat /tmp/n");
    return strtol(text ? text : "-1", NULL, 10);
}

/* The counter of a restored box goes on from where it was. */
static void expect_counting(struct hf_box *box, long from)
{
    long a = count_in(box);
    h_spin(&host, 300);
    long b = count_in(box);
    if (a < from || b <= a)
        fail_msg("the counter was %ld, then %ld and %ld", from, a, b);
}

static void test_memory(void **state)
{
    h_open(&host, 0);
    require_criu();
    struct hf_box *box = h_create(&host, "counter");
    h_expect(box, COUNTER, "on\n");
    h_expect(box,
             "echo kept > /run/note; mkdir /dev/shm/d; echo shm > /dev/shm/d/f; ln -s d /dev/shm/l; echo on",
             "on\n");
    long n = count_in(box);
    hf_auto_free char *dir = save(box, "s-mem", true, false);
    expect_counting(box, n); /* the original goes on */
    struct hf_box *copy = start("clone", dir, true, 2, true);
    expect_counting(copy, n);
    h_expect(copy, "cat /run/note /dev/shm/l/f /run/holdfast/generation; hostname", "kept\nshm\n2\nclone\n");
    h_expect(copy, "su user -c '/bin/suid-probes euid'", "0\n");
    destroy_ok(box);
    destroy_ok(copy);
    assert_int_equal(hf_remove_tree(dir), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

/* What a hostile box puts there: files that are mostly holes, and names that look like headers. */
static void test_memory_file_systems(void **state)
{
    static const char long_name[] = "n=$(printf 'x%.0s' $(seq 99)); f=\"/dev/shm/$n\n15 path=forged\n\"; ";
    h_open(&host, 0);
    require_criu();
    struct hf_box *box = h_create(&host, "holes");
    h_expect(box,
             "cd /dev/shm; truncate -s 1099511627776 hole; truncate -s 9663676416 two; : > empty; "
             "printf a | dd of=two bs=1 seek=1000000 conv=notrunc 2>/dev/null; "
             "printf b | dd of=two bs=1 seek=9000000000 conv=notrunc 2>/dev/null; chmod 0400 two; echo on",
             "on\n");
    hf_auto_free char *make = hf_xasprintf("%secho named > \"$(printf \"$f\")\"; echo on", long_name);
    h_expect(box, make, "on\n");
    hf_auto_free char *dir = save(box, "s-holes", true, false), *tar = hf_xasprintf("%s/tmpfs.tar", dir);
    struct stat st;
    assert_int_equal(stat(tar, &st), 0);
    assert_true(st.st_size < 1 << 20);
    struct hf_box *copy = start("holes-too", dir, true, 2, true);
    h_expect(
        copy,
        "cd /dev/shm; stat -c '%s %a' hole two empty; "
        "dd if=two bs=1 skip=1000000 count=1 2>/dev/null; dd if=two bs=1 skip=9000000000 count=1 2>/dev/null",
        "1099511627776 644\n9663676416 400\n0 644\nab");
    hf_auto_free char *look =
        hf_xasprintf("%scat \"$(printf \"$f\")\"; ls /forged 2>/dev/null | wc -l", long_name);
    h_expect(copy, look, "named\n0\n");
    destroy_ok(box);
    destroy_ok(copy);
    assert_int_equal(hf_remove_tree(dir), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

/* What the second and the tenth pause must keep as the first did. */
static void test_again_and_again(void **state)
{
    h_open(&host, 0);
    require_criu();
    struct hf_box *box = h_create(&host, "again");
    h_expect(box, COUNTER, "on\n");
    for (unsigned i = 1; i <= 10; i++) {
        char name[16], script[64];
        (void)snprintf(name, sizeof(name), "s-%u", i);
        (void)snprintf(script, sizeof(script), "echo %u >> /tmp/log; wc -l < /tmp/log", i);
        hf_auto_free char *said = h_exec(box, script);
        assert_int_equal(strtoul(said, NULL, 10), i);
        long n = count_in(box);
        hf_auto_free char *dir = save(box, name, true, true);
        destroy_ok(box);
        box = start("again", dir, true, i + 1, false);
        expect_counting(box, n);
        assert_int_equal(hf_remove_tree(dir), 0);
    }
    destroy_ok(box);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_refused(void **state)
{
    h_open(&host, 0);
    require_criu();
    struct hf_box *box = h_create(&host, "whole");
    hf_auto_free char *dir = save(box, "s-bad", true, false);
    hf_auto_free char *core = hf_xasprintf("%s/mem/pstree.img", dir);
    assert_int_equal(truncate(core, 4), 0);
    struct hf_err err = {0};
    const struct hf_box_spec spec = {
        .sandbox_id = "broken", .template_id = H_TEMPLATE, .from = dir, .from_memory = true, .generation = 2};
    assert_null(h_create_spec(&host, &spec, &err));
    assert_true(err.r < 0 && err.msg[0]);
    destroy_ok(box);
    assert_int_equal(hf_remove_tree(dir), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

int main(int argc, char **argv)
{
    h_require(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_freeze, h_reset),
        cmocka_unit_test_teardown(test_adopt_frozen, h_reset),
        cmocka_unit_test_teardown(test_disk, h_reset),
        cmocka_unit_test_teardown(test_memory, h_reset),
        cmocka_unit_test_teardown(test_memory_file_systems, h_reset),
        cmocka_unit_test_teardown(test_again_and_again, h_reset),
        cmocka_unit_test_teardown(test_refused, h_reset),
    };
    return cmocka_run_group_tests_name("engine/memory", tests, setup, teardown);
}
