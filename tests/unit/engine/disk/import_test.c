#include "fixture.h"
#include "tarball.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/template.h"
#include "engine/driver.h"

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

static void add_root(struct tarball *t)
{
    tarball_add(t, "bin", AE_IFLNK, 0777, "usr/bin");
    tarball_add(t, "usr/bin/bash", AE_IFREG, 0755, "#!");
    tarball_add(t, "usr/bin/sh", AE_IFLNK, 0777, "bash");
    tarball_add(t, "etc/passwd", AE_IFREG, 0644, "root:x:0:0:root:/root:/bin/bash\nuser2:x:7:7::/:/bin/sh");
    tarball_add(t, "etc/group", AE_IFREG, 0644, "root:x:0:\n");
    tarball_add(t, "etc/shadow", AE_IFREG, 0640, "root:*:1:0:99999:7:::\n");
    tarball_add(t, "etc/sudoers.d/", AE_IFDIR, 0750, NULL);
}

/* Feeds fd in pieces of that size. */
static int feed_all(struct hf_template_import *imp, int fd, size_t piece, struct hf_err *err)
{
    hf_auto_free char *p = hf_xmalloc(piece);
    for (ssize_t n; (n = read(fd, p, piece)) > 0;) {
        int r = hf_template_import_feed(imp, p, (size_t)n, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static char *read_mounted(const char *id, const char *name)
{
    hf_auto_free char *path = hf_xasprintf("%s/templates/%s/%s", fixture_run, id, name);
    char *text = NULL;
    if (hf_read_file(path, 65536, &text, NULL) < 0)
        fail_msg("cannot read %s", path);
    return text;
}

static void a_root_becomes_a_template(void **state)
{
    struct tarball t;
    struct hf_err err = {0};
    uint64_t bytes = 0;
    tarball_open(&t, ARCHIVE_FILTER_GZIP);
    add_root(&t);
    hf_auto_close int fd = tarball_close(&t);
    struct hf_template_import *imp = hf_template_import_begin(fixture_data, "root1", &err);
    assert_non_null(imp);
    assert_ok(feed_all(imp, fd, 7, &err), &err);
    assert_ok(hf_template_import_finish(imp, &bytes, &err), &err);
    assert_true(bytes > 0);
    assert_ok(hf_disk_template_verify(fixture_data, "root1", &err), &err);
    assert_ok(hf_disk_template_mount(fixture_data, fixture_run, "root1", &err), &err);
    hf_auto_free char *passwd = read_mounted("root1", "etc/passwd");
    hf_auto_free char *group = read_mounted("root1", "etc/group");
    hf_auto_free char *shadow = read_mounted("root1", "etc/shadow");
    hf_auto_free char *sudo = read_mounted("root1", "etc/sudoers.d/holdfast-user");
    assert_string_equal(passwd, "root:x:0:0:root:/root:/bin/bash\nuser2:x:7:7::/:/bin/sh\n"
                                "user:x:1000:1000::/home/user:/bin/bash\n");
    assert_string_equal(group, "root:x:0:\nuser:x:1000:\n");
    assert_non_null(strstr(shadow, "\nuser:*:"));
    assert_non_null(strstr(sudo, "NOPASSWD"));
    static const char *const dirs[] = {"proc", "sys", "dev", "run", "tmp", "workspace", "home/user"};
    for (size_t i = 0; i < HF_ARRAY_LEN(dirs); i++) {
        hf_auto_free char *path = hf_xasprintf("%s/templates/root1/%s", fixture_run, dirs[i]);
        struct stat st;
        assert_true(stat(path, &st) == 0 && S_ISDIR(st.st_mode));
        assert_int_equal(st.st_uid, i >= 5 ? 1000 : 0);
    }
    assert_null(hf_template_import_begin(fixture_data, "root1", &err));
    assert_int_equal(err.r, -EEXIST);
    assert_ok(hf_disk_template_remove(fixture_data, "root1", &err), &err);
}

static void staging_is_empty(void)
{
    struct hf_err err = {0};
    struct hf_disk_usage usage;
    assert_ok(hf_disk_pool_usage(fixture_data, &usage, &err), &err);
    assert_int_equal(usage.staging, 0);
    assert_int_equal(usage.n_templates, 0);
}

static void what_is_no_root_is_refused(void **state)
{
    struct tarball t;
    struct hf_err err = {0};
    uint64_t bytes;
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    tarball_add(&t, "readme", AE_IFREG, 0644, "hello");
    hf_auto_close int fd = tarball_close(&t);
    struct hf_template_import *imp = hf_template_import_begin(fixture_data, "root2", &err);
    assert_non_null(imp);
    assert_ok(feed_all(imp, fd, 4096, &err), &err);
    assert_int_equal(hf_template_import_finish(imp, &bytes, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "/bin/sh"));
    staging_is_empty();
}

/* /bin/sh that leads out of the root by a link is none; a mount point may not be a link. */
static void links_do_not_help(void **state)
{
    struct tarball t;
    struct hf_err err = {0};
    uint64_t bytes;
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    tarball_add(&t, "bin/sh", AE_IFLNK, 0777, "/../../../../../../bin/dash");
    hf_auto_close int fd = tarball_close(&t);
    struct hf_template_import *imp = hf_template_import_begin(fixture_data, "root3", &err);
    assert_non_null(imp);
    assert_ok(feed_all(imp, fd, 4096, &err), &err);
    assert_int_equal(hf_template_import_finish(imp, &bytes, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "/bin/sh"));
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    add_root(&t);
    tarball_add(&t, "workspace", AE_IFLNK, 0777, "/tmp");
    hf_auto_close int fd2 = tarball_close(&t);
    imp = hf_template_import_begin(fixture_data, "root3", &err);
    assert_non_null(imp);
    assert_ok(feed_all(imp, fd2, 4096, &err), &err);
    assert_int_equal(hf_template_import_finish(imp, &bytes, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "/workspace"));
    staging_is_empty();
}

/* A feeder learns of the refusal while it still sends, and is not killed by SIGPIPE. */
static void a_refusal_comes_early(void **state)
{
    struct tarball t;
    struct hf_err err = {0};
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    tarball_add(&t, "../evil", AE_IFREG, 0644, "evil");
    hf_auto_close int fd = tarball_close(&t);
    struct hf_template_import *imp = hf_template_import_begin(fixture_data, "root4", &err);
    assert_non_null(imp);
    int r = feed_all(imp, fd, 512, &err);
    static char more[65536];
    for (int i = 0; r == 0 && i < 1000; i++)
        r = hf_template_import_feed(imp, more, sizeof(more), &err);
    assert_int_equal(r, -EINVAL);
    assert_non_null(strstr(err.msg, "../evil"));
    assert_int_equal(hf_template_import_feed(imp, more, sizeof(more), &err), -EINVAL);
    hf_template_import_abort(imp);
    staging_is_empty();
}

static void abort_leaves_nothing(void **state)
{
    struct tarball t;
    struct hf_err err = {0};
    hf_template_import_abort(NULL);
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    add_root(&t);
    hf_auto_close int fd = tarball_close(&t);
    struct hf_template_import *imp = hf_template_import_begin(fixture_data, "root5", &err);
    assert_non_null(imp);
    char half[1500];
    assert_int_equal(read(fd, half, sizeof(half)), sizeof(half));
    assert_ok(hf_template_import_feed(imp, half, sizeof(half), &err), &err);
    hf_template_import_abort(imp);
    staging_is_empty();
    assert_null(hf_template_import_begin(fixture_data, "../x", &err));
    assert_int_equal(err.r, -EINVAL);
}

static int step(const char *what)
{
    struct hf_err err = {0};
    struct tarball t;
    uint64_t bytes;
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    add_root(&t);
    hf_auto_close int fd = tarball_close(&t);
    struct hf_template_import *imp = hf_template_import_begin(fixture_data, what, &err);
    if (!imp || feed_all(imp, fd, 4096, &err) < 0)
        return 1;
    return hf_template_import_finish(imp, &bytes, &err) < 0;
}

static void a_killed_import_is_swept_away(void **state)
{
    fixture_kill_at("root6", "disk.import.unpacked");
    assert_int_equal(open_pool(NULL), 0);
    staging_is_empty();
}

static int tests(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(a_root_becomes_a_template), cmocka_unit_test(what_is_no_root_is_refused),
        cmocka_unit_test(links_do_not_help),         cmocka_unit_test(a_refusal_comes_early),
        cmocka_unit_test(abort_leaves_nothing),      cmocka_unit_test(a_killed_import_is_swept_away),
    };
    return cmocka_run_group_tests_name("template import", all, open_pool, close_pool);
}

int main(int argc, char **argv)
{
    return fixture_main(argc, argv, tests, step);
}
