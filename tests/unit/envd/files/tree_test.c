/* Trees on disk: the walk, removal, opening, and what a watcher says when it lost events. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/path.h"
#include "envd/fs.h"
#include "envd/fsjob.h"
#include "envd/fswalk.h"
#include "envd/watch.h"

static char root[] = "/tmp/hf-envd-tree-XXXXXX";

static char *in_root(const char *rel)
{
    return path_join(root, rel);
}

static void touch(const char *rel)
{
    hf_auto_free char *path = in_root(rel);
    hf_auto_close int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
}

static void make_dirs(const char *rel)
{
    hf_auto_free char *path = in_root(rel);
    assert_int_equal(hf_mkdir_p(path, 0755), 0);
}

/* ---- walk ---- */

static int log_entry(void *self, struct fs_walk *w, const char *name, unsigned char d_type)
{
    assert_int_equal(hf_buf_addf(self, "%zu:%s ", w->depth, name), 0);
    return fs_walk_type(w, name, d_type) == DT_DIR ? FS_WALK_DESCEND : FS_WALK_NEXT;
}

static int log_leave(void *self, struct fs_walk *w, const char *name)
{
    assert_int_equal(hf_buf_addf(self, "<%s ", name), 0);
    return FS_WALK_NEXT;
}

static const struct fs_walk_ops log_ops = {.entry = log_entry, .leave = log_leave};

static int open_dir(const char *rel)
{
    hf_auto_free char *path = in_root(rel);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void test_walk_order(void **state)
{
    make_dirs("w/b/c");
    make_dirs("w/b2");
    touch("w/a");
    touch("w/b/c/f");
    touch("w/b/z");
    hf_auto_free char *link = in_root("w/link");
    assert_int_equal(symlink("b", link), 0);
    hf_auto_close int fd = open_dir("w");
    hf_auto_buf struct hf_buf log = HF_BUF_INIT(4096);
    assert_int_equal(fs_walk(fd, true, NULL, &log_ops, &log), 0);
    assert_string_equal(log.p, "1:a 1:b 2:c 3:f <c 2:z <b 1:b2 <b2 1:link ");
}

static int move_away(void *self, struct fs_walk *w, const char *name, unsigned char d_type)
{
    if (w->depth < 2)
        return FS_WALK_DESCEND;
    hf_auto_free char *from = in_root("m/in/sub"), *to = in_root("elsewhere");
    assert_int_equal(rename(from, to), 0);
    return FS_WALK_NEXT;
}

static void test_walk_moved(void **state)
{
    static const struct fs_walk_ops ops = {.entry = move_away};
    make_dirs("m/in/sub/x");
    hf_auto_close int fd = open_dir("m/in");
    assert_int_equal(fs_walk(fd, true, NULL, &ops, NULL), -ESTALE);
}

static void test_walk_cancel(void **state)
{
    atomic_bool cancelled = true;
    hf_auto_close int fd = open_dir(".");
    hf_auto_buf struct hf_buf log = HF_BUF_INIT(4096);
    assert_int_equal(fs_walk(fd, true, &cancelled, &log_ops, &log), -ECANCELED);
}

/* ---- removal ---- */

static void test_remove(void **state)
{
    make_dirs("r/a/b/c");
    touch("r/a/b/f");
    hf_auto_free char *outside = in_root("outside"), *link = in_root("r/a/link"), *r = in_root("r");
    touch("outside");
    assert_int_equal(symlink(outside, link), 0);
    struct hf_err err = {0};
    assert_int_equal(fs_remove_tree(r, &err), 0);
    assert_int_equal(access(r, F_OK), -1);
    assert_int_equal(access(outside, F_OK), 0);
    assert_int_equal(fs_remove_tree(r, &err), 0);
    assert_int_equal(fs_remove_tree("/", &err), -EINVAL);
    assert_int_equal(fs_remove_tree("/proc/self/status", &err), -EPERM);
    assert_non_null(strstr(err.msg, "error removing file or directory"));
}

/* ---- opening ---- */

static void test_open_write(void **state)
{
    struct envd_user u = {.uid = getuid(), .gid = getgid()};
    struct hf_err err = {0};
    struct fs_target t = FS_TARGET_NONE;
    hf_auto_free char *deep = in_root("o/p/q/file"), *dir = in_root("o"), *below = in_root("o/p/q/file/x");
    assert_int_equal(fs_open_write(deep, &u, 0, &t, &err), 0);
    assert_true(t.created);
    assert_int_equal(fs_target_close(&t, deep, true), 0); /* undone */
    assert_int_equal(access(deep, F_OK), -1);
    assert_int_equal(fs_open_write(deep, &u, 0, &t, &err), 0);
    assert_int_equal(fs_target_close(&t, deep, false), 0);
    assert_int_equal(fs_open_write(deep, &u, 0, &t, &err), 0);
    assert_false(t.created);
    assert_int_equal(fs_target_close(&t, deep, true), 0); /* it was there before: it stays */
    assert_int_equal(access(deep, F_OK), 0);
    assert_int_equal(fs_open_write(dir, &u, 0, &t, &err), -EISDIR);
    assert_int_equal(err.status, 400);
    assert_int_equal(fs_open_write(below, &u, 0, &t, &err), -ENOTDIR);
    assert_int_equal(err.status, 400);
    assert_int_equal(fs_open_write(deep, &u, UINT64_MAX / 2, &t, &err), -ENOSPC);
    assert_int_equal(err.status, 507);
}

/* ---- watcher ---- */

struct seen {
    bool ready, lost;
    size_t events;
};

static void on_ready(void *self)
{
    ((struct seen *)self)->ready = true;
}

static void on_event(void *self, const char *name, enum watch_type type)
{
    ((struct seen *)self)->events++;
}

static void on_lost(void *self, const struct hf_err *err)
{
    assert_int_equal(err->r, -EOVERFLOW);
    ((struct seen *)self)->lost = true;
}

static void test_watch_overflow(void **state)
{
    static const struct watcher_ops ops = {on_ready, on_event, on_lost};
    hf_auto_free char *text = NULL;
    uint64_t max = 0;
    size_t n = 0;
    assert_int_equal(hf_read_file("/proc/sys/fs/inotify/max_queued_events", 64, &text, &n), 0);
    if (hf_parse_u64((struct hf_str){text, strcspn(text, "\n")}, 1u << 20, &max) < 0)
        skip(); /* this host's queue is too long to fill */
    make_dirs("watched");
    hf_auto_free char *dir = in_root("watched"), *a = in_root("watched/a"), *b = in_root("watched/b");
    uv_loop_t loop;
    struct seen seen = {0};
    struct watcher *w = NULL;
    struct hf_err err = {0};
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(watcher_new(&loop, dir, false, &ops, &seen, &w, &err), 0);
    while (!seen.ready)
        (void)uv_run(&loop, UV_RUN_ONCE);
    watcher_pause(w);
    touch("watched/a");
    for (uint64_t i = 0; i < max; i++) /* two events each */
        assert_int_equal(i % 2 ? rename(b, a) : rename(a, b), 0);
    watcher_resume(w);
    while (!seen.lost)
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(seen.events, max);
    watcher_free(w);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static int setup(void **state)
{
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    return fs_remove_tree(root, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk_order),  cmocka_unit_test(test_walk_moved),
        cmocka_unit_test(test_walk_cancel), cmocka_unit_test(test_remove),
        cmocka_unit_test(test_open_write),  cmocka_unit_test(test_watch_overflow),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
