#include "fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "engine/disk/disk.h"
#include "engine/driver.h"

#define MIB (1ull << 20)

static int open_pool(void **state)
{
    bool reflink;
    struct hf_err err = {0};
    int r = hf_disk_pool_open(fixture_data, FIXTURE_POOL_BYTES, &reflink, &err);
    if (r < 0)
        print_error("%s\n", err.msg);
    return r;
}

static int close_pool(void **state)
{
    struct hf_err err = {0};
    return hf_disk_pool_close(fixture_data, fixture_run, &err);
}

static void names_are_checked(void **state)
{
    static const char *const bad[] = {
        "",    "..", "a/b", "A",
        "a.b", "-a", "a b", "0123456789012345678901234567890123456789012345678901234567890123"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        struct hf_err err = {0};
        char *path = NULL;
        assert_int_equal(hf_disk_volume_create(fixture_data, bad[i], 64 * MIB, &path, &err), -EINVAL);
        assert_non_null(strstr(err.msg, "volume name"));
        assert_int_equal(hf_disk_volume_remove(fixture_data, bad[i], &err), -EINVAL);
        assert_null(path);
    }
}

static void sizes_are_checked(void **state)
{
    struct hf_err err = {0};
    char *path = NULL;
    assert_int_equal(hf_disk_volume_create(fixture_data, "v", 0, &path, &err), -EINVAL);
    assert_int_equal(hf_disk_volume_create(fixture_data, "v", UINT64_MAX, &path, &err), -EINVAL);
}

static void creates_once(void **state)
{
    struct hf_err err = {0};
    char *path = NULL;
    assert_ok(hf_disk_volume_create(fixture_data, "ws-1", 256 * MIB, &path, &err), &err);
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(before.st_size, 256 * MIB);
    free(path);
    assert_ok(hf_disk_volume_create(fixture_data, "ws-1", 512 * MIB, &path, &err), &err);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_ino, before.st_ino);
    assert_int_equal(after.st_size, before.st_size);
    free(path);
}

static void belongs_to_the_user(void **state)
{
    struct hf_err err = {0};
    hf_auto_free char *path = NULL;
    assert_ok(hf_disk_volume_create(fixture_data, "ws-2", 64 * MIB, &path, &err), &err);
    hf_auto_close int fd = hf_image_open_locked(path, false, &err);
    hf_auto_close int mnt = hf_image_mount(fd, false, MOUNT_ATTR_NODEV, NULL, &err);
    assert_ok(mnt, &err);
    struct stat st;
    assert_int_equal(fstat(mnt, &st), 0);
    assert_true(st.st_uid == 1000 && st.st_gid == 1000 && (st.st_mode & 07777) == 0755);
    assert_int_equal(fstatat(mnt, "lost+found", &st, 0), -1);
}

static void busy_while_mounted(void **state)
{
    struct hf_err err = {0};
    char *path = NULL;
    assert_ok(hf_disk_volume_create(fixture_data, "ws-3", 64 * MIB, &path, &err), &err);
    int fd = hf_image_open_locked(path, false, &err);
    int mnt = hf_image_mount(fd, false, 0, NULL, &err);
    assert_ok(mnt, &err);
    (void)hf_close(fd); /* the loop device holds the lock now */
    assert_int_equal(hf_disk_volume_remove(fixture_data, "ws-3", &err), -EBUSY);
    assert_non_null(strstr(err.msg, "ws-3 is mounted"));
    assert_true(fixture_exists(path));
    (void)hf_close(mnt);
    assert_ok(hf_disk_volume_remove(fixture_data, "ws-3", &err), &err);
    assert_false(fixture_exists(path));
    assert_ok(hf_disk_volume_remove(fixture_data, "ws-3", &err), &err);
    free(path);
}

static int step(const char *what)
{
    struct hf_err err = {0};
    char *path = NULL;
    int r = hf_disk_volume_create(fixture_data, what, 64 * MIB, &path, &err);
    if (r < 0)
        print_error("%s\n", err.msg);
    free(path);
    return r < 0;
}

static void killed_creates_leave_old_or_new(void **state)
{
    struct hf_err err = {0};
    hf_auto_free char *path = hf_xasprintf("%s/pool/volumes/killed.img", fixture_data);
    fixture_kill_at("killed", "disk.volume.cloned");
    assert_false(fixture_exists(path));
    assert_int_equal(fixture_in_child("killed", NULL), 0);
    assert_true(fixture_exists(path));
    assert_int_equal(open_pool(NULL), 0); /* sweeps what the killed one left */
    struct hf_disk_usage usage;
    assert_ok(hf_disk_pool_usage(fixture_data, &usage, &err), &err);
    assert_int_equal(usage.staging, 0);
}

static void racing_creates_make_one(void **state)
{
    int pids[6];
    struct hf_err err = {0};
    for (size_t i = 0; i < HF_ARRAY_LEN(pids); i++)
        pids[i] = fixture_start("raced", NULL);
    for (size_t i = 0; i < HF_ARRAY_LEN(pids); i++)
        assert_int_equal(fixture_wait(pids[i]), 0);
    assert_ok(hf_disk_volume_remove(fixture_data, "raced", &err), &err);
}

static int tests(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(names_are_checked),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(creates_once),
        cmocka_unit_test(belongs_to_the_user),
        cmocka_unit_test(busy_while_mounted),
        cmocka_unit_test(killed_creates_leave_old_or_new),
        cmocka_unit_test(racing_creates_make_one),
    };
    return cmocka_run_group_tests_name("disk volumes", all, open_pool, close_pool);
}

int main(int argc, char **argv)
{
    return fixture_main(argc, argv, tests, step);
}
