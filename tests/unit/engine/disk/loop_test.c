#include "fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "base/path.h"
#include "engine/disk/loop.h"

#define RACERS 8
#define ROUNDS 12
#define IMAGE_BYTES (1 << 20)

static char *image_path(const char *name)
{
    return hf_xasprintf("%s/%s.img", fixture_top, name);
}

/* An image whose first bytes are its own name. */
static void make_image(const char *name)
{
    hf_auto_free char *path = image_path(name);
    fixture_write(path, name, strlen(name), 0600);
    assert_int_equal(truncate(path, IMAGE_BYTES), 0);
}

/* Attaches its own image again and again; each time the device must show that image and no other. */
static int race(const char *name)
{
    hf_auto_free char *path = image_path(name);
    for (int i = 0; i < ROUNDS; i++) {
        struct hf_err err = {0};
        char dev[HF_LOOP_DEV_MAX], seen[64] = "";
        hf_auto_close int image = open(path, O_RDWR | O_CLOEXEC);
        hf_auto_close int loop = hf_loop_attach(image, false, dev, &err);
        if (loop < 0) {
            print_error("%s: %s\n", name, err.msg);
            return 1;
        }
        if (pread(loop, seen, strlen(name), 0) < 0 || strcmp(seen, name) != 0) {
            print_error("%s shows \"%s\" instead of \"%s\"\n", dev, seen, name);
            return 1;
        }
    }
    return 0;
}

static void many_processes_race(void **state)
{
    int pids[RACERS];
    char name[16];
    for (int i = 0; i < RACERS; i++) {
        (void)snprintf(name, sizeof(name), "racer-%d", i);
        make_image(name);
        pids[i] = fixture_start(name, NULL);
    }
    for (int i = 0; i < RACERS; i++)
        assert_int_equal(fixture_wait(pids[i]), 0);
}

/* Whether the lock of path is free; waits up to a second for that when it should be. */
static bool lock_is_free(const char *path, bool wait)
{
    for (int i = 0; i < (wait ? 500 : 1); i++) {
        hf_auto_close int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            return true;
        struct timespec ts = {0, 2000000};
        (void)nanosleep(&ts, NULL);
    }
    return false;
}

static void the_lock_lives_with_the_device(void **state)
{
    struct hf_err err = {0};
    make_image("locked");
    hf_auto_free char *path = image_path("locked");
    char dev[HF_LOOP_DEV_MAX];
    int fd = hf_image_open_locked(path, false, &err);
    assert_ok(fd, &err);
    int loop = hf_loop_attach(fd, false, dev, &err);
    assert_ok(loop, &err);
    (void)hf_close(fd);
    assert_false(lock_is_free(path, false));
    assert_int_equal(hf_image_open_locked(path, false, &err), -EBUSY);
    assert_non_null(strstr(err.msg, "in use"));
    (void)hf_close(loop);
    assert_true(lock_is_free(path, true));
}

static void a_removed_image_is_not_locked(void **state)
{
    struct hf_err err = {0};
    hf_auto_free char *path = image_path("gone");
    assert_int_equal(hf_image_open_locked(path, true, &err), -ENOENT);
}

static void readers_share(void **state)
{
    struct hf_err err = {0};
    make_image("shared");
    hf_auto_free char *path = image_path("shared");
    hf_auto_close int a = hf_image_open_locked(path, true, &err);
    hf_auto_close int b = hf_image_open_locked(path, true, &err);
    assert_true(a >= 0 && b >= 0);
    char dev[HF_LOOP_DEV_MAX];
    hf_auto_close int loop = hf_loop_attach(a, true, dev, &err);
    assert_ok(loop, &err);
    assert_int_equal(write(loop, "x", 1), -1);
}

static void what_is_no_file_system_is_explained(void **state)
{
    struct hf_err err = {0};
    make_image("nofs");
    hf_auto_free char *path = image_path("nofs");
    hf_auto_close int fd = hf_image_open_locked(path, false, &err);
    assert_true(hf_image_mount(fd, false, 0, NULL, &err) < 0);
    assert_non_null(strstr(err.msg, "cannot mount /dev/loop"));
    assert_true(hf_mount_detached("nosuchfs", "none", false, 0, NULL, &err) < 0);
    assert_non_null(strstr(err.msg, "no nosuchfs"));
}

/* Without reflink: the copy has the same bytes and the same holes. */
static void a_copy_keeps_holes(void **state)
{
    struct hf_err err = {0};
    hf_auto_free char *src = image_path("sparse");
    hf_auto_free char *dst = image_path("sparse-copy");
    hf_auto_close int fd = open(src, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    static const off_t at[] = {0, 5 << 20, (100 << 20) - 4096};
    for (size_t i = 0; i < HF_ARRAY_LEN(at); i++)
        assert_int_equal(pwrite(fd, &at[i], sizeof(at[i]), at[i]), sizeof(at[i]));
    assert_int_equal(ftruncate(fd, 100 << 20), 0);
    int r = hf_disk_clone(src, dst, &err);
    assert_ok(r, &err);
    struct stat a, b;
    hf_auto_close int copy = open(dst, O_RDONLY | O_CLOEXEC);
    assert_true(fstat(fd, &a) == 0 && fstat(copy, &b) == 0);
    assert_int_equal(a.st_size, b.st_size);
    assert_true(b.st_blocks * 512 < 4 << 20);
    for (size_t i = 0; i < HF_ARRAY_LEN(at); i++) {
        off_t seen = -1;
        assert_int_equal(pread(copy, &seen, sizeof(seen), at[i]), sizeof(seen));
        assert_int_equal(seen, at[i]);
    }
    assert_int_equal(hf_disk_clone("/nonexistent", dst, &err), -ENOENT);
    assert_int_equal(hf_disk_clone(src, dst, &err), -EEXIST);
    assert_true(fixture_exists(dst));
}

static int tests(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(many_processes_race),
        cmocka_unit_test(the_lock_lives_with_the_device),
        cmocka_unit_test(a_removed_image_is_not_locked),
        cmocka_unit_test(readers_share),
        cmocka_unit_test(what_is_no_file_system_is_explained),
        cmocka_unit_test(a_copy_keeps_holes),
    };
    return cmocka_run_group_tests_name("disk loop", all, NULL, NULL);
}

int main(int argc, char **argv)
{
    return fixture_main(argc, argv, tests, race);
}
