#include "fixture.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/pool.h"
#include "engine/driver.h"

static char pool_image[128];
static bool on_image; /* false where /tmp itself can reflink: there is no pool image to test then */

static int open_pool(void)
{
    bool reflink;
    struct hf_err err = {0};
    int r = hf_disk_pool_open(fixture_data, FIXTURE_POOL_BYTES, &reflink, &err);
    if (r < 0)
        print_error("pool_open: %s\n", err.msg);
    else
        assert_int_equal(err.r, 0); /* untouched on success */
    return r < 0 || !reflink;
}

static void close_pool(void)
{
    struct hf_err err = {0};
    assert_ok(hf_disk_pool_close(fixture_data, fixture_run, &err), &err);
}

static bool pool_is_image(void)
{
    struct hf_disk_pool_info info;
    hf_disk_pool_info(fixture_data, &info);
    return info.on_image;
}

/* What an earlier run without XFS left goes on as it is: with copies, and a note that says so. */
static void a_plain_pool_stays_plain(void **state)
{
    hf_auto_free char *data = hf_xasprintf("%s/plain", fixture_top);
    hf_auto_free char *blank = hf_xasprintf("%s/pool/blank", data);
    hf_auto_free char *image = hf_xasprintf("%s/pool.img", data);
    assert_int_equal(hf_mkdir_p(blank, 0700), 0);
    if (!on_image)
        skip();
    bool reflink = true;
    struct hf_err err = {0};
    struct hf_disk_pool_info info;
    assert_ok(hf_disk_pool_open(data, FIXTURE_POOL_BYTES, &reflink, &err), &err);
    assert_false(reflink);
    assert_false(fixture_exists(image));
    hf_disk_pool_info(data, &info);
    assert_false(info.on_image);
    assert_non_null(strstr(info.note, "no reflink"));
    hf_auto_free char *path = NULL;
    assert_ok(hf_disk_volume_create(data, "v", 64 << 20, &path, &err), &err);
    hf_auto_close int fd = hf_image_open_locked(path, false, &err);
    hf_auto_close int mnt = hf_image_mount(fd, false, 0, NULL, &err);
    assert_ok(mnt, &err);
    assert_ok(hf_disk_pool_close(data, fixture_run, &err), &err);
}

static void opens_again_and_again(void **state)
{
    struct hf_err err = {0};
    for (int i = 0; i < 3; i++)
        assert_int_equal(open_pool(), 0);
    struct hf_disk_pool_info info;
    hf_disk_pool_info(fixture_data, &info);
    assert_true(info.reflink);
    assert_string_equal(info.note, "");
    uint64_t free_bytes, total;
    assert_int_equal(hf_disk_pool_space(fixture_data, &free_bytes, &total), 0);
    assert_true(free_bytes > 0 && free_bytes <= total && total <= FIXTURE_POOL_BYTES);
    close_pool();
    assert_false(pool_is_image());
    close_pool(); /* nothing mounted is success */
    assert_int_equal(open_pool(), 0);
    char *path;
    assert_ok(hf_disk_blank(fixture_data, 64 << 20, &path, &err), &err);
    free(path);
    struct hf_disk_usage usage;
    assert_ok(hf_disk_pool_usage(fixture_data, &usage, &err), &err);
    assert_true(usage.blanks > 0 && usage.blanks < 8 << 20);
    assert_int_equal(usage.n_templates, 0);
    close_pool();
}

/* As after the death of a daemon that had a mount namespace of its own: its mount is gone, and what still
 * uses the file system keeps it and its loop device. */
static void is_found_again_when_its_mount_is_gone(void **state)
{
    assert_int_equal(open_pool(), 0);
    if (!pool_is_image())
        skip();
    hf_auto_free char *pool = hf_xasprintf("%s/pool", fixture_data);
    hf_auto_free char *file = hf_xasprintf("%s/kept", pool);
    hf_auto_close int user = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(user >= 0);
    assert_int_equal(umount2(pool, MNT_DETACH), 0);
    assert_false(pool_is_image());
    assert_int_equal(open_pool(), 0);
    assert_true(pool_is_image());
    struct stat before, after;
    assert_int_equal(fstat(user, &before), 0);
    assert_int_equal(stat(file, &after), 0);
    assert_true(before.st_dev == after.st_dev && before.st_ino == after.st_ino);
    user = hf_close(user);
    close_pool();
    assert_false(hf_disk_image_attached(pool_image));
}

static void survives_kill_at_each_step(void **state)
{
    if (!on_image)
        skip();
    static const char *const points[] = {"disk.pool.sparse", "disk.pool.formatted", "disk.pool.renamed",
                                         "disk.pool.attached", "disk.pool.mounted"};
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        close_pool();
        assert_true(unlink(pool_image) == 0 || errno == ENOENT);
        fixture_kill_at("open", points[i]);
        assert_int_equal(open_pool(), 0);
        assert_true(pool_is_image());
    }
    close_pool();
}

static void a_half_written_image_is_made_anew(void **state)
{
    if (!on_image)
        skip();
    assert_true(unlink(pool_image) == 0);
    hf_auto_free char *tmp = hf_xasprintf("%s.tmp", pool_image);
    fixture_write(tmp, "XFSB and then nothing", 21, 0600);
    assert_int_equal(open_pool(), 0);
    assert_false(fixture_exists(tmp));
    close_pool();
}

static void two_processes_open_at_once(void **state)
{
    if (!on_image)
        skip();
    assert_true(unlink(pool_image) == 0);
    int pids[4];
    for (size_t i = 0; i < HF_ARRAY_LEN(pids); i++)
        pids[i] = fixture_start("open", NULL);
    for (size_t i = 0; i < HF_ARRAY_LEN(pids); i++)
        assert_int_equal(fixture_wait(pids[i]), 0);
    close_pool();
    assert_false(pool_is_image()); /* one umount was enough */
}

static void sweeps_staging(void **state)
{
    assert_int_equal(open_pool(), 0);
    hf_auto_free char *left = hf_xasprintf("%s/pool/staging/left/over", fixture_data);
    assert_int_equal(hf_mkdir_p(left, 0700), 0);
    assert_int_equal(open_pool(), 0);
    assert_false(fixture_exists(left));
    close_pool();
}

static void a_damaged_image_is_explained(void **state)
{
    if (!on_image)
        skip();
    assert_true(unlink(pool_image) == 0);
    fixture_write(pool_image, "no file system", 14, 0600);
    assert_int_equal(truncate(pool_image, 400 << 20), 0);
    bool reflink = true;
    struct hf_err err = {0};
    assert_true(hf_disk_pool_open(fixture_data, FIXTURE_POOL_BYTES, &reflink, &err) < 0);
    assert_non_null(strstr(err.msg, "xfs_repair"));
    assert_true(reflink); /* outputs stay as they were */
    assert_true(unlink(pool_image) == 0);
}

static void too_small_a_pool_is_refused(void **state)
{
    if (!on_image)
        skip();
    bool reflink;
    struct hf_err err = {0};
    assert_int_equal(hf_disk_pool_open(fixture_data, 100 << 20, &reflink, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "512 MiB"));
    assert_false(fixture_exists(pool_image));
}

static void blanks_are_what_a_cell_needs(void **state)
{
    assert_int_equal(open_pool(), 0);
    struct hf_err err = {0};
    char *path;
    assert_int_equal(hf_disk_blank(fixture_data, 1, &path, &err), -EINVAL);
    assert_ok(hf_disk_blank(fixture_data, HF_DISK_BLANK_DEFAULT, &path, &err), &err);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, HF_DISK_BLANK_DEFAULT);
    hf_auto_free char *clone = hf_xasprintf("%s/pool/cells/t.img", fixture_data);
    assert_int_equal(hf_disk_clone(path, clone, &err), 0); /* 0: by reflink */
    assert_int_equal(hf_disk_clone(path, clone, &err), -EEXIST);
    free(path);
    hf_auto_close int fd = hf_image_open_locked(clone, false, &err);
    assert_true(fd >= 0);
    hf_auto_close int mnt = hf_image_mount(fd, false, 0, NULL, &err);
    assert_ok(mnt, &err);
    assert_int_equal(fstatat(mnt, "upper", &st, 0), 0);
    assert_true(S_ISDIR(st.st_mode) && st.st_uid == 0 && (st.st_mode & 07777) == 0755);
    assert_int_equal(fstatat(mnt, "work", &st, 0), 0);
    assert_int_equal(fstatat(mnt, "lost+found", &st, 0), -1);
    struct statfs fs;
    assert_int_equal(fstatfs(mnt, &fs), 0);
    assert_true(fs.f_files <= 65536); /* a million files end inside */
    mnt = hf_close(mnt);
    fd = hf_close(fd);
    assert_int_equal(unlink(clone), 0);
    close_pool();
}

static void an_undersized_disk_fails_inside(void **state)
{
    assert_int_equal(open_pool(), 0);
    struct hf_err err = {0};
    char *path;
    assert_ok(hf_disk_blank(fixture_data, HF_DISK_BLANK_MIN, &path, &err), &err);
    hf_auto_free char *clone = hf_xasprintf("%s/pool/cells/small.img", fixture_data);
    assert_int_equal(hf_disk_clone(path, clone, &err), 0);
    free(path);
    hf_auto_close int fd = hf_image_open_locked(clone, false, &err);
    hf_auto_close int mnt = hf_image_mount(fd, false, 0, NULL, &err);
    assert_ok(mnt, &err);
    hf_auto_close int file = openat(mnt, "upper/big", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(file >= 0);
    static char chunk[1 << 20];
    int r = 0;
    for (int i = 0; r == 0 && i < 64; i++)
        r = hf_write_all(file, chunk, sizeof(chunk));
    assert_int_equal(r, -ENOSPC);
    r = 0;
    for (int i = 0; r == 0 && i < 100000; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "upper/%d", i);
        int f = openat(mnt, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        r = f < 0 ? -errno : 0;
        (void)hf_close(f);
    }
    assert_int_equal(r, -ENOSPC);
    file = hf_close(file);
    mnt = hf_close(mnt);
    fd = hf_close(fd);
    assert_int_equal(unlink(clone), 0);
    close_pool();
}

/* A pool without room: the error says so, and nothing half-made stays. */
static void a_full_pool_is_explained(void **state)
{
    assert_int_equal(open_pool(), 0);
    struct hf_err err = {0};
    hf_auto_free char *hog = hf_xasprintf("%s/pool/hog", fixture_data);
    hf_auto_close int fd = open(hog, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    struct statfs fs;
    while (fstatfs(fd, &fs) == 0 && fs.f_bavail > 64) {
        off_t at = lseek(fd, 0, SEEK_END), n = (off_t)(fs.f_bavail / 2) * fs.f_bsize;
        if (fallocate(fd, 0, at, n) < 0 || lseek(fd, at + n, SEEK_SET) < 0)
            break;
    }
    hf_auto_free char *tree = hf_xasprintf("%s/tree", fixture_top);
    hf_auto_free char *file = hf_xasprintf("%s/file", tree);
    assert_int_equal(mkdir(tree, 0755), 0);
    size_t n = 32 << 20;
    hf_auto_free char *data = hf_xmalloc(n);
    memset(data, 0x5a, n);
    fixture_write(file, data, n, 0644);
    uint64_t bytes = 0;
    assert_int_equal(hf_disk_template_build(fixture_data, "full", tree, &bytes, &err), -ENOSPC);
    assert_non_null(strstr(err.msg, "no room"));
    struct hf_disk_usage usage;
    assert_ok(hf_disk_pool_usage(fixture_data, &usage, &err), &err);
    assert_int_equal(usage.n_templates, 0);
    assert_true(usage.staging < 1 << 20);
    fd = hf_close(fd);
    assert_int_equal(unlink(hog), 0);
    assert_ok(hf_disk_template_build(fixture_data, "full", tree, &bytes, &err), &err);
    assert_ok(hf_disk_template_remove(fixture_data, "full", &err), &err);
    close_pool();
}

static int tests(void)
{
    (void)snprintf(pool_image, sizeof(pool_image), "%s/pool.img", fixture_data);
    if (open_pool() != 0)
        return 1;
    on_image = pool_is_image();
    close_pool();
    assert_true(unlink(pool_image) == 0 || errno == ENOENT);
    const struct CMUnitTest all[] = {
        cmocka_unit_test(too_small_a_pool_is_refused),
        cmocka_unit_test(opens_again_and_again),
        cmocka_unit_test(is_found_again_when_its_mount_is_gone),
        cmocka_unit_test(survives_kill_at_each_step),
        cmocka_unit_test(a_half_written_image_is_made_anew),
        cmocka_unit_test(two_processes_open_at_once),
        cmocka_unit_test(sweeps_staging),
        cmocka_unit_test(blanks_are_what_a_cell_needs),
        cmocka_unit_test(an_undersized_disk_fails_inside),
        cmocka_unit_test(a_full_pool_is_explained),
        cmocka_unit_test(a_damaged_image_is_explained),
        cmocka_unit_test(a_plain_pool_stays_plain),
    };
    return cmocka_run_group_tests_name("disk pool", all, NULL, NULL);
}

static int step(const char *what)
{
    return strcmp(what, "open") == 0 ? open_pool() : 1;
}

int main(int argc, char **argv)
{
    return fixture_main(argc, argv, tests, step);
}
