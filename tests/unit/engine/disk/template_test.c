#include "fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/driver.h"

static char tree[80];

static void put(const char *name, const void *p, size_t n, unsigned mode)
{
    hf_auto_free char *path = hf_xasprintf("%s/%s", tree, name);
    fixture_write(path, p, n, mode);
}

static void make_tree(void)
{
    (void)snprintf(tree, sizeof(tree), "%s/tree", fixture_top);
    hf_auto_free char *bin = hf_xasprintf("%s/bin", tree);
    hf_auto_free char *su = hf_xasprintf("%s/bin/su", tree);
    hf_auto_free char *link = hf_xasprintf("%s/bin/su-too", tree);
    hf_auto_free char *owned = hf_xasprintf("%s/owned", tree);
    assert_int_equal(hf_mkdir_p(bin, 0755), 0);
    put("bin/su", "#!", 2, 04755);
    put("bin/cap", "#!", 2, 0755);
    put("owned", "x", 1, 0640);
    assert_int_equal(linkat(AT_FDCWD, su, AT_FDCWD, link, 0), 0);
    assert_int_equal(chown(owned, 1000, 1000), 0);
    assert_int_equal(setxattr(owned, "user.note", "kept", 4, 0), 0);
    hf_auto_free char *sh = hf_xasprintf("%s/bin/sh", tree);
    assert_int_equal(
        symlink("/usr/bin/a-name-so-long-that-it-does-not-fit-into-the-inode-itself-but-takes-a-block", sh),
        0);
}

static int open_pool(void **state)
{
    bool reflink;
    struct hf_err err = {0};
    make_tree();
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

static int step(const char *what)
{
    uint64_t bytes;
    struct hf_err err = {0};
    hf_auto_free char *dir = hf_xasprintf("%s/tree", fixture_top);
    int r = hf_disk_template_build(fixture_data, what, dir, &bytes, &err);
    if (r < 0)
        print_error("%s\n", err.msg);
    return r < 0;
}

static char *at_mount(const char *id, const char *name)
{
    return hf_xasprintf("%s/templates/%s/%s", fixture_run, id, name);
}

static void keeps_what_the_tree_has(void **state)
{
    struct hf_err err = {0};
    uint64_t bytes = 0;
    assert_ok(hf_disk_template_build(fixture_data, "t1", tree, &bytes, &err), &err);
    assert_true(bytes > 0 && bytes <= 8 << 20);
    for (int i = 0; i < 3; i++)
        assert_ok(hf_disk_template_mount(fixture_data, fixture_run, "t1", &err), &err);
    hf_auto_free char *su = at_mount("t1", "bin/su");
    hf_auto_free char *owned = at_mount("t1", "owned");
    hf_auto_free char *fresh = at_mount("t1", "new");
    hf_auto_free char *lost = at_mount("t1", "lost+found");
    struct stat st;
    assert_int_equal(stat(su, &st), 0);
    assert_true(st.st_nlink == 2 && st.st_uid == 0 && (st.st_mode & 07777) == 04755);
    assert_int_equal(stat(owned, &st), 0);
    assert_true(st.st_uid == 1000 && st.st_gid == 1000 && (st.st_mode & 07777) == 0640);
    char value[8];
    assert_int_equal(getxattr(owned, "user.note", value, sizeof(value)), 4);
    assert_true(open(fresh, O_CREAT | O_WRONLY | O_CLOEXEC, 0600) < 0 && errno == EROFS);
    assert_false(fixture_exists(lost));
    assert_int_equal(hf_disk_template_build(fixture_data, "t1", tree, &bytes, &err), -EEXIST);
}

static void notices_damage(void **state)
{
    struct hf_err err = {0};
    uint64_t bytes;
    assert_ok(hf_disk_template_build(fixture_data, "t2", tree, &bytes, &err), &err);
    assert_ok(hf_disk_template_verify(fixture_data, "t2", &err), &err);
    hf_auto_free char *image = hf_xasprintf("%s/pool/templates/t2.img", fixture_data);
    hf_auto_close int fd = open(image, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "!", 1, (off_t)bytes / 2), 1);
    assert_int_equal(hf_disk_template_verify(fixture_data, "t2", &err), -EUCLEAN);
    assert_non_null(strstr(err.msg, "import it again"));
    assert_int_equal(hf_disk_template_verify(fixture_data, "none", &err), -ENOENT);
    assert_ok(hf_disk_template_remove(fixture_data, "t2", &err), &err);
}

/* A box has a mount of its own: the template stays, mounted as before, until the box is gone. */
static void in_use_is_not_removed(void **state)
{
    struct hf_err err = {0};
    uint64_t bytes;
    assert_ok(hf_disk_template_build(fixture_data, "t3", tree, &bytes, &err), &err);
    assert_ok(hf_disk_template_mount(fixture_data, fixture_run, "t3", &err), &err);
    hf_auto_free char *point = at_mount("t3", "");
    hf_auto_free char *su = at_mount("t3", "bin/su");
    hf_auto_free char *image = hf_xasprintf("%s/pool/templates/t3.img", fixture_data);
    int box = open_tree(AT_FDCWD, point, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    assert_true(box >= 0);
    assert_int_equal(hf_disk_template_remove(fixture_data, "t3", &err), -EBUSY);
    assert_true(fixture_exists(su) && fixture_exists(image));
    /* Somebody is in the directory itself. */
    int inside = open(su, O_RDONLY | O_CLOEXEC);
    (void)hf_close(box);
    assert_int_equal(hf_disk_template_remove(fixture_data, "t3", &err), -EBUSY);
    assert_true(fixture_exists(su));
    (void)hf_close(inside);
    assert_ok(hf_disk_template_remove(fixture_data, "t3", &err), &err);
    assert_false(fixture_exists(image));
    assert_false(fixture_exists(su));
    assert_ok(hf_disk_template_remove(fixture_data, "t3", &err), &err);
    assert_int_equal(hf_disk_template_mount(fixture_data, fixture_run, "t3", &err), -ENOENT);
}

/* A supervisor's mount namespace is a slave of ours: an umount here must reach it. */
static void umounts_reach_supervisors(void **state)
{
    struct hf_err err = {0};
    uint64_t bytes;
    assert_ok(hf_disk_template_build(fixture_data, "t4", tree, &bytes, &err), &err);
    assert_ok(hf_disk_template_mount(fixture_data, fixture_run, "t4", &err), &err);
    int go[2];
    char c;
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    int ready[2];
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close(go[1]);
        bool ok = unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) == 0;
        _exit(ok && write(ready[1], "x", 1) == 1 && read(go[0], &c, 1) == 0 ? 0 : 1);
    }
    (void)close(ready[1]);
    assert_int_equal(read(ready[0], &c, 1), 1);
    int r = hf_disk_template_remove(fixture_data, "t4", &err);
    (void)close(go[1]);
    assert_int_equal(fixture_wait(pid), 0);
    (void)close(go[0]);
    (void)close(ready[0]);
    assert_ok(r, &err);
}

static void killed_builds_leave_old_or_new(void **state)
{
    static const char *const points[] = {"disk.template.made", "disk.template.manifest"};
    struct hf_err err = {0};
    hf_auto_free char *image = hf_xasprintf("%s/pool/templates/t5.img", fixture_data);
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        fixture_kill_at("t5", points[i]);
        assert_false(fixture_exists(image));
        assert_int_equal(fixture_in_child("t5", NULL), 0);
        assert_ok(hf_disk_template_verify(fixture_data, "t5", &err), &err);
        assert_ok(hf_disk_template_remove(fixture_data, "t5", &err), &err);
    }
}

/* Trees of awkward shapes fit at the first or a later try. */
static void many_small_files_fit(void **state)
{
    struct hf_err err = {0};
    uint64_t bytes;
    hf_auto_free char *many = hf_xasprintf("%s/many", fixture_top);
    assert_int_equal(mkdir(many, 0755), 0);
    for (int i = 0; i < 3000; i++) {
        hf_auto_free char *path = hf_xasprintf("%s/a-rather-long-name-for-a-file-%d", many, i);
        fixture_write(path, "y", (size_t)(i % 2), 0644);
    }
    assert_ok(hf_disk_template_build(fixture_data, "t6", many, &bytes, &err), &err);
    assert_true(bytes < 16 << 20);
    assert_ok(hf_disk_template_remove(fixture_data, "t6", &err), &err);
}

static int tests(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(keeps_what_the_tree_has), cmocka_unit_test(notices_damage),
        cmocka_unit_test(in_use_is_not_removed),   cmocka_unit_test(umounts_reach_supervisors),
        cmocka_unit_test(many_small_files_fit),    cmocka_unit_test(killed_builds_leave_old_or_new),
    };
    return cmocka_run_group_tests_name("disk templates", all, open_pool, close_pool);
}

int main(int argc, char **argv)
{
    return fixture_main(argc, argv, tests, step);
}
