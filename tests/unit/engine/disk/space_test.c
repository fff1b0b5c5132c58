/* The pool's space: growth, the low-water mark, what belongs to whom, and images that fall to pieces. */
#include "fixture.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/disk/disk.h"
#include "engine/disk/hash.h"
#include "engine/disk/pool.h"
#include "engine/disk/snapshot.h"
#include "engine/driver.h"
#include "snapfix.h"

#define MIB (1ull << 20)
#define SMALL (600 * MIB)
#define LARGE (1024 * MIB)

static bool on_image(void)
{
    struct hf_disk_pool_info info;
    hf_disk_pool_info(fixture_data, &info);
    return info.on_image;
}

static uint64_t total(void)
{
    uint64_t left, all = 0;
    assert_int_equal(hf_disk_pool_space(fixture_data, &left, &all), 0);
    return all;
}

static void open_pool(uint64_t max)
{
    bool reflink;
    struct hf_err err = {0};
    assert_ok(hf_disk_pool_open(fixture_data, max, &reflink, &err), &err);
}

static void close_pool(void)
{
    struct hf_err err = {0};
    assert_ok(hf_disk_pool_close(fixture_data, fixture_run, &err), &err);
}

static void the_low_mark_is_bounded(void **state)
{
    assert_int_equal(hf_disk_pool_low(0), HF_POOL_LOW_MIN);
    assert_int_equal(hf_disk_pool_low(HF_POOL_LOW_MIN * HF_POOL_LOW_PART), HF_POOL_LOW_MIN);
    assert_int_equal(hf_disk_pool_low(20ull << 30), 1ull << 30);
    assert_int_equal(hf_disk_pool_low(1ull << 50), HF_POOL_LOW_MAX);
}

static void the_image_leaves_room_to_the_host(void **state)
{
    assert_int_equal(hf_pool_image_target(10ull << 30, 0, 100ull << 30), 10ull << 30);
    assert_int_equal(hf_pool_image_target(10ull << 30, 1ull << 30, 4ull << 30), 3ull << 30);
    assert_int_equal(hf_pool_image_target(10ull << 30, 1ull << 30, 0), 1ull << 30);
    assert_int_equal(hf_pool_image_target(MIB + 5, 0, 100ull << 30), MIB);
}

static void grows_when_the_setting_rises(void **state)
{
    open_pool(SMALL);
    if (!on_image())
        skip();
    uint64_t before = total();
    assert_true(before <= SMALL);
    open_pool(SMALL); /* no change */
    assert_int_equal(total(), before);
    open_pool(SMALL + HF_POOL_GROW_MIN / 2); /* too little to be worth it */
    assert_int_equal(total(), before);
    open_pool(LARGE);
    assert_int_equal(total(), before + LARGE - SMALL);
    open_pool(SMALL); /* never shrinks */
    assert_int_equal(total(), before + LARGE - SMALL);
    close_pool();
    open_pool(LARGE);
    assert_int_equal(total(), before + LARGE - SMALL);
}

static void grows_when_room_is_short(void **state)
{
    if (!on_image())
        skip();
    struct hf_err err = {0};
    uint64_t before = total();
    assert_ok(hf_disk_pool_room(fixture_data, 100 * MIB, 2 * LARGE, &err), &err);
    assert_int_equal(total(), before); /* not needed */
    assert_int_equal(hf_disk_pool_room(fixture_data, LARGE, LARGE, &err), -ENOSPC);
    assert_int_equal(err.status, 507);
    assert_non_null(strstr(err.msg, "1024 MiB are wanted"));
    assert_ok(hf_disk_pool_room(fixture_data, LARGE, 2 * LARGE, &err), &err);
    assert_int_equal(total(), before + LARGE);
}

static void refuses_below_the_mark(void **state)
{
    struct hf_err err = {0};
    uint64_t left, all;
    assert_int_equal(hf_disk_pool_space(fixture_data, &left, &all), 0);
    uint64_t low = hf_disk_pool_low(all);
    /* Other tests may run on this host's disk: a wide margin where the exact number could differ. */
    assert_ok(hf_disk_pool_room(fixture_data, left - low - 64 * MIB, 0, &err), &err);
    assert_int_equal(hf_disk_pool_room(fixture_data, left - low + 64 * MIB, 0, &err), -ENOSPC);
    hf_auto_free char *path = hf_xasprintf("%s/pool/filler", fixture_data);
    hf_auto_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (!on_image())
        skip();
    assert_int_equal(fallocate(fd, 0, 0, (off_t)(left - low / 2)), 0);
    assert_int_equal(hf_disk_pool_room(fixture_data, 0, 0, &err), -ENOSPC);
    assert_int_equal(unlink(path), 0);
    fd = hf_close(fd);
    assert_int_equal(hf_disk_pool_room("/nonexistent", 0, 0, &err), -ENOENT);
}

static int step(const char *what)
{
    bool reflink;
    struct hf_err err = {0};
    return hf_disk_pool_open(fixture_data, 3 * LARGE, &reflink, &err) < 0;
}

static void a_killed_growth_goes_on(void **state)
{
    if (!on_image())
        skip();
    uint64_t before = total();
    fixture_kill_at("grow", "disk.grow.longer");
    assert_int_equal(total(), before);
    fixture_kill_at("grow", "disk.grow.device");
    assert_int_equal(total(), before);
    assert_int_equal(fixture_in_child("grow", NULL), 0);
    assert_int_equal(total(), before + LARGE);
}

struct found {
    unsigned n[HF_DISK_KINDS], half;
    uint64_t volume_bytes;
};

static void note(void *arg, const struct hf_disk_object *o)
{
    struct found *f = arg;
    f->n[o->kind]++;
    f->half += !o->complete;
    if (o->kind == HF_DISK_VOLUME && strcmp(o->name, "v1") == 0)
        f->volume_bytes = o->exclusive + o->shared;
}

static void put(const char *rel, const char *text)
{
    hf_auto_free char *path = hf_xasprintf("%s/pool/%s", fixture_data, rel);
    fixture_write(path, text, strlen(text), 0600);
}

static void all_objects_are_shown_and_removed(void **state)
{
    static const struct {
        enum hf_disk_kind kind;
        const char *name;
    } known[] = {{HF_DISK_TEMPLATE, "base"}, {HF_DISK_CELL, "12"},     {HF_DISK_VOLUME, "v1"},
                 {HF_DISK_SNAPSHOT, "s1"},   {HF_DISK_SNAPSHOT, "s2"}, {HF_DISK_STAGING, "half"}};
    struct hf_err err = {0};
    struct found f = {0};
    hf_auto_free char *dir = NULL;
    snapfix_template("base", "an image");
    snapfix_make("s1", false, 0);
    assert_ok(hf_snapshot_begin(fixture_data, "s2", &dir, &err), &err);
    put("cells/12.img", "cell");
    put("cells/12.tmp", "not an object");
    put("volumes/v1.img", "volume");
    put("volumes/.img", "not an object");
    hf_auto_free char *half = hf_xasprintf("%s/pool/staging/half", fixture_data);
    assert_int_equal(mkdir(half, 0700), 0);
    assert_ok(hf_disk_each_object(fixture_data, true, note, &f, &err), &err);
    assert_int_equal(f.n[HF_DISK_TEMPLATE], 1);
    assert_int_equal(f.n[HF_DISK_CELL], 1);
    assert_int_equal(f.n[HF_DISK_VOLUME], 1);
    assert_int_equal(f.n[HF_DISK_SNAPSHOT], 2);
    assert_int_equal(f.n[HF_DISK_STAGING], 1);
    assert_int_equal(f.half, 1);
    assert_true(f.volume_bytes > 0);
    struct hf_disk_usage usage;
    assert_ok(hf_disk_pool_usage(fixture_data, &usage, &err), &err);
    assert_int_equal(usage.n_snapshots, 1);
    assert_true(usage.snapshots > 100000);

    hf_auto_free char *cell = hf_xasprintf("%s/pool/cells/12.img", fixture_data);
    hf_auto_close int lock = hf_image_open_locked(cell, false, &err);
    assert_int_equal(hf_disk_object_remove(fixture_data, HF_DISK_CELL, "12", &err), -EBUSY);
    lock = hf_close(lock);
    assert_int_equal(hf_disk_object_remove(fixture_data, HF_DISK_CELL, "../x", &err), -EINVAL);
    for (size_t i = 0; i < HF_ARRAY_LEN(known); i++) {
        assert_ok(hf_disk_object_remove(fixture_data, known[i].kind, known[i].name, &err), &err);
        assert_ok(hf_disk_object_remove(fixture_data, known[i].kind, known[i].name, &err), &err);
    }
    f = (struct found){0};
    assert_ok(hf_disk_each_object(fixture_data, false, note, &f, &err), &err);
    for (size_t i = 0; i < HF_DISK_KINDS; i++)
        assert_int_equal(f.n[i], 0);
}

static void staging_in_use_stays(void **state)
{
    struct hf_err err = {0};
    hf_auto_staging struct hf_staging st = HF_STAGING_INIT;
    assert_ok(hf_staging_begin(&st, fixture_data, &err), &err);
    assert_int_equal(hf_disk_object_remove(fixture_data, HF_DISK_STAGING, strrchr(st.dir, '/') + 1, &err),
                     -EBUSY);
}

/* ---- images in pieces ---- */

#define PIECES_IMAGE (32 * MIB)
#define BLOCKS ((int)(PIECES_IMAGE / 4096))

static unsigned pieces(int fd)
{
    struct fiemap map = {.fm_length = FIEMAP_MAX_OFFSET};
    assert_int_equal(ioctl(fd, FS_IOC_FIEMAP, &map), 0);
    return map.fm_mapped_extents;
}

static void put_block(int fd, int block, unsigned char c)
{
    char p[4096];
    memset(p, c, sizeof(p));
    assert_int_equal(pwrite(fd, p, sizeof(p), (off_t)block * 4096), 4096);
}

/* An image of which every fourth block was written after its snapshot. */
static int broken_image(const char *image, const char *snapshot)
{
    struct hf_err err = {0};
    (void)unlink(image);
    (void)unlink(snapshot);
    int fd = open(image, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    for (int i = 0; i < BLOCKS; i++)
        put_block(fd, i, 1);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(hf_disk_clone(image, snapshot, &err), 0);
    for (int i = 0; i < BLOCKS; i += 4)
        put_block(fd, i, 2);
    assert_int_equal(fsync(fd), 0);
    return fd;
}

static void an_image_in_pieces_is_put_together(void **state)
{
    struct hf_err err = {0};
    struct hf_disk_compacted done;
    if (!on_image())
        skip();
    hf_auto_free char *image = hf_xasprintf("%s/pool/cells/7.img", fixture_data);
    hf_auto_free char *snapshot = hf_xasprintf("%s/pool/cells/8.img", fixture_data);
    hf_auto_close int fd = broken_image(image, snapshot);
    char before[HF_HASH_HEX], after[HF_HASH_HEX], old[HF_HASH_HEX];
    hf_auto_close int old_fd = open(snapshot, O_RDONLY | O_CLOEXEC);
    assert_int_equal(hf_hash_data(fd, NULL, before), 0);
    assert_int_equal(hf_hash_data(old_fd, NULL, old), 0);
    assert_true(pieces(fd) > HF_DISK_PIECES_MAX);
    bool stop = true;
    assert_int_equal(hf_disk_compact(fixture_data, image, &stop, &done, &err), -ECANCELED);
    assert_ok(hf_disk_compact(fixture_data, image, NULL, &done, &err), &err);
    assert_true(done.before > HF_DISK_PIECES_MAX && done.after <= HF_DISK_PIECES_MAX / 2 + 64);
    assert_int_equal(pieces(fd), done.after);
    assert_true(done.bytes > 0);
    assert_int_equal(hf_hash_data(fd, NULL, after), 0);
    assert_string_equal(after, before);
    assert_int_equal(hf_hash_data(old_fd, NULL, after), 0);
    assert_string_equal(after, old);
    /* Nothing to do now. */
    assert_ok(hf_disk_compact(fixture_data, image, NULL, &done, &err), &err);
    assert_int_equal(done.bytes, 0);
    assert_int_equal(hf_disk_compact(fixture_data, "/nonexistent", NULL, &done, &err), -ENOENT);
}

struct writer {
    int fd;
    bool stop;
    unsigned char last[BLOCKS];
};

static void *write_on(void *arg)
{
    struct writer *w = arg;
    unsigned seed = 1;
    for (unsigned char c = 3; !__atomic_load_n(&w->stop, __ATOMIC_RELAXED); c = c == 250 ? 3 : c + 1) {
        seed = seed * 1103515245u + 12345u;
        int block = (int)((seed >> 8) % BLOCKS);
        char p[4096];
        memset(p, c, sizeof(p));
        if (pwrite(w->fd, p, sizeof(p), (off_t)block * 4096) == 4096)
            w->last[block] = c;
    }
    return NULL;
}

static void a_writer_loses_nothing_meanwhile(void **state)
{
    struct hf_err err = {0};
    struct hf_disk_compacted done;
    if (!on_image())
        skip();
    hf_auto_free char *image = hf_xasprintf("%s/pool/cells/7.img", fixture_data);
    hf_auto_free char *snapshot = hf_xasprintf("%s/pool/cells/8.img", fixture_data);
    hf_auto_close int fd = broken_image(image, snapshot);
    hf_auto_free struct writer *w = hf_xcalloc(1, sizeof(*w));
    w->fd = fd;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_on, w), 0);
    int r = 0;
    for (int i = 0; i < 5 && r == 0; i++)
        r = hf_disk_compact(fixture_data, image, NULL, &done, &err);
    __atomic_store_n(&w->stop, true, __ATOMIC_RELAXED);
    (void)pthread_join(thread, NULL);
    assert_ok(r, &err);
    for (int i = 0; i < BLOCKS; i++) {
        unsigned char p[4096], want = w->last[i] ? w->last[i] : i % 4 ? 1 : 2;
        assert_int_equal(pread(fd, p, sizeof(p), (off_t)i * 4096), 4096);
        if (p[0] != want || memcmp(p, p + 1, sizeof(p) - 1) != 0)
            fail_msg("block %d has %d instead of %d", i, p[0], want);
    }
}

static int tests(void)
{
    const struct CMUnitTest list[] = {
        cmocka_unit_test(the_low_mark_is_bounded),
        cmocka_unit_test(the_image_leaves_room_to_the_host),
        cmocka_unit_test(grows_when_the_setting_rises),
        cmocka_unit_test(grows_when_room_is_short),
        cmocka_unit_test(refuses_below_the_mark),
        cmocka_unit_test(a_killed_growth_goes_on),
        cmocka_unit_test(all_objects_are_shown_and_removed),
        cmocka_unit_test(staging_in_use_stays),
        cmocka_unit_test(an_image_in_pieces_is_put_together),
        cmocka_unit_test(a_writer_loses_nothing_meanwhile),
    };
    int failed = cmocka_run_group_tests_name("pool space", list, NULL, NULL);
    close_pool();
    return failed;
}

int main(int argc, char **argv)
{
    return fixture_main(argc, argv, tests, step);
}
