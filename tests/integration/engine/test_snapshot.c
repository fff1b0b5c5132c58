/* Snapshots of boxes at work: the disk is one moment's, and stays in few pieces. Needs root. */
#include "harness.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/ext4.h"
#include "engine/disk/snapshot.h"

#define SNAPSHOTS 5
#define TOGETHER_MS 60000

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
    struct hf_err err;
};

static void on_saved(void *arg, const struct hf_box_saved *saved, const struct hf_err *err)
{
    struct wait *w = arg;
    w->done = true;
    if (err)
        w->err = *err;
}

/* The snapshot's directory (heap). */
static char *snapshot(struct hf_box *box, const char *id)
{
    struct hf_err err = {0};
    struct wait w = {0};
    char *dir = NULL;
    struct hf_snapshot_meta meta = {.template_id = H_TEMPLATE, .generation = 1};
    (void)snprintf(meta.id, sizeof(meta.id), "%s", id);
    int r = hf_snapshot_begin(host.data, id, &dir, &err);
    struct hf_box_save save = {.dir = dir};
    if (r == 0) {
        host.driver->ops->save(host.driver, box, &save, on_saved, &w);
        assert_true(h_until(&host, &w.done, 60000));
        r = w.err.r;
        err = w.err;
    }
    if (r == 0)
        r = hf_snapshot_commit(host.data, &meta, &err);
    if (r == 0)
        r = hf_snapshot_open(host.data, id, NULL, &err);
    if (r < 0)
        fail_msg("snapshot %s: %s", id, err.msg);
    return dir;
}

/* A mount replays the journal; then nothing is to be repaired. */
static void assert_sound(const char *dir)
{
    struct hf_err err = {0};
    hf_auto_free char *saved = hf_xasprintf("%s/disk.img", dir);
    hf_auto_free char *copy = hf_xasprintf("%s/pool/cells/check.img", host.data);
    int r = hf_disk_clone(saved, copy, &err);
    hf_auto_close int fd = r < 0 ? r : hf_image_open_locked(copy, false, &err);
    hf_auto_close int mnt = fd < 0 ? fd : hf_image_mount(fd, false, MOUNT_ATTR_NODEV, NULL, &err);
    if (mnt < 0)
        fail_msg("mount: %s", err.msg);
    mnt = hf_close(mnt);
    fd = hf_close(fd);
    fd = hf_image_open_locked(copy, false, &err); /* once the device has let go */
    if (fd < 0 || hf_ext4_check(copy, &err) < 0)
        fail_msg("%s: %s", dir, err.msg);
    assert_int_equal(unlink(copy), 0);
}

/* b follows a: at any one moment it is the same number or the one before. */
#define WRITERS                                                                                             \
    "mkdir /root/many; (n=0; while :; do n=$((n+1)); echo $n > /root/a; echo $n > /root/b; done) "          \
    "</dev/null >/dev/null 2>&1 & "                                                                         \
    "(n=0; while :; do n=$((n+1)); echo $n > /root/many/$((n % 500)); rm -f /root/many/$((n * 7 % 500)); "  \
    "done) </dev/null >/dev/null 2>&1 & "                                                                   \
    "(while :; do dd if=/dev/zero of=/root/big bs=64k count=64; rm /root/big; done) </dev/null >/dev/null " \
    "2>&1 & usleep 200000; echo on"

static void test_one_moment(void **state)
{
    struct hf_err err = {0};
    h_open(&host, 0);
    struct hf_box *box = h_create(&host, "busy");
    h_expect(box, WRITERS, "on\n");
    long last = 0;
    for (int i = 0; i < SNAPSHOTS; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "busy-%d", i);
        hf_auto_free char *dir = snapshot(box, id);
        assert_sound(dir);
        struct hf_box_spec spec = {
            .sandbox_id = "copy", .template_id = H_TEMPLATE, .from = dir, .generation = 2, .clone = true};
        struct hf_box *copy = h_create_spec(&host, &spec, &err);
        if (!copy)
            fail_msg("start: %s", err.msg);
        /* A shell truncates before it writes, so either may be empty just then. */
        hf_auto_free char *text =
            h_exec(copy, "echo $(cat /root/a | grep . || echo -1) $(cat /root/b | grep . || echo -1)");
        long a = -2, b = -2;
        assert_int_equal(sscanf(text, "%ld %ld", &a, &b), 2);
        if ((a >= 0 && b >= 0 && a != b && a != b + 1) || (a < 0 && b < 0) || (a >= 0 && a < last))
            fail_msg("snapshot %d has %ld and %ld, after %ld", i, a, b, last);
        last = a >= 0 ? a : b;
        assert_int_equal(h_destroy(&host, copy, &err), 0);
        h_spin(&host, 100);
    }
    assert_int_equal(h_destroy(&host, box, &err), 0);
    for (int i = 0; i < SNAPSHOTS; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "busy-%d", i);
        assert_int_equal(hf_snapshot_remove(host.data, id, &err), 0);
    }
    h_assert_clean(&host);
    h_close(&host, true);
}

static unsigned pieces(const struct hf_box *box)
{
    struct fiemap map = {.fm_length = FIEMAP_MAX_OFFSET, .fm_flags = FIEMAP_FLAG_SYNC};
    hf_auto_free char *image = hf_xasprintf("%s/pool/cells/%u.img", host.data, h_box_number(box));
    hf_auto_close int fd = open(image, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && ioctl(fd, FS_IOC_FIEMAP, &map) == 0);
    return map.fm_mapped_extents;
}

/* Every other block of a file is written between two snapshots. */
static void test_few_pieces(void **state)
{
    struct hf_err err = {0};
    struct hf_driver_caps caps;
    h_open(&host, 0);
    host.driver->ops->caps(host.driver, &caps);
    if (!caps.reflink) {
        h_close(&host, true);
        skip();
    }
    struct hf_box *box = h_create(&host, "pieces");
    h_expect(box, "dd if=/dev/zero bs=1M count=8 2>/dev/null | tr '\\0' x > /root/data; sync; echo on",
             "on\n");
    free(snapshot(box, "whole"));
    h_expect(
        box,
        "i=0; while [ $i -lt 1000 ]; do dd if=/bin/busybox of=/root/data bs=4096 count=1 conv=notrunc "
        "seek=$((i * 2)) 2>/dev/null; i=$((i + 1)); done; sync; sha256sum < /root/data > /root/sum; echo on",
        "on\n");
    assert_true(pieces(box) > HF_DISK_PIECES_MAX);
    free(snapshot(box, "broken"));
    uint64_t end = hf_mono_ms() + TOGETHER_MS;
    while (pieces(box) > HF_DISK_PIECES_MAX && hf_mono_ms() < end)
        h_spin(&host, 50);
    assert_true(pieces(box) <= HF_DISK_PIECES_MAX);
    /* What the disk says, not what the box remembers. */
    hf_auto_free char *dir = snapshot(box, "together");
    struct hf_box_spec spec = {
        .sandbox_id = "copy", .template_id = H_TEMPLATE, .from = dir, .generation = 2, .clone = true};
    struct hf_box *copy = h_create_spec(&host, &spec, &err);
    if (!copy)
        fail_msg("start: %s", err.msg);
    h_expect(copy, "sha256sum < /root/data | cmp - /root/sum && echo same", "same\n");
    assert_int_equal(h_destroy(&host, copy, &err), 0);
    assert_int_equal(h_destroy(&host, box, &err), 0);
    assert_int_equal(hf_snapshot_remove(host.data, "whole", &err), 0);
    assert_int_equal(hf_snapshot_remove(host.data, "broken", &err), 0);
    assert_int_equal(hf_snapshot_remove(host.data, "together", &err), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

int main(int argc, char **argv)
{
    h_require(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_one_moment, h_reset),
        cmocka_unit_test_teardown(test_few_pieces, h_reset),
    };
    return cmocka_run_group_tests_name("snapshots of boxes", tests, setup, teardown);
}
