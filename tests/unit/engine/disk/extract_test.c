#include "fixture.h"
#include "tarball.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "base/path.h"
#include "engine/disk/template.h"

static char dest[80], outside[80];

/* Each test has an empty destination, next to a file that nothing may touch. */
static int fresh(void **state)
{
    (void)snprintf(dest, sizeof(dest), "%s/dest", fixture_top);
    (void)snprintf(outside, sizeof(outside), "%s/outside", fixture_top);
    int r = hf_remove_tree(dest);
    if (r == 0)
        r = hf_mkdir_p(dest, 0755);
    fixture_write(outside, "untouched", 9, 0600);
    return r;
}

static int outside_is_untouched(void **state)
{
    hf_auto_free char *text = NULL;
    struct stat st;
    bool good = hf_read_file(outside, 64, &text, NULL) == 0 && strcmp(text, "untouched") == 0 &&
                stat(outside, &st) == 0 && st.st_nlink == 1 && (st.st_mode & 07777) == 0600;
    if (!good)
        print_error("the file outside was changed\n");
    return good ? 0 : -1;
}

static char *in_dest(const char *name)
{
    return hf_xasprintf("%s/%s", dest, name);
}

static int unpack(struct tarball *t, struct hf_template_stats *stats, struct hf_err *err)
{
    hf_auto_close int fd = tarball_close(t);
    return hf_template_extract(fd, dest, NULL, stats, err);
}

/* Expects a refusal whose message has the word. */
static void refused(struct tarball *t, const char *word)
{
    struct hf_err err = {0};
    int r = unpack(t, NULL, &err);
    if (r >= 0)
        fail_msg("it was not refused");
    if (!strstr(err.msg, word))
        fail_msg("\"%s\" does not name \"%s\"", err.msg, word);
}

static void good_archives(void **state)
{
    static const int filters[] = {ARCHIVE_FILTER_NONE, ARCHIVE_FILTER_GZIP, ARCHIVE_FILTER_XZ,
                                  ARCHIVE_FILTER_ZSTD};
    for (size_t i = 0; i < HF_ARRAY_LEN(filters); i++) {
        assert_int_equal(fresh(state), 0);
        struct tarball t;
        struct hf_err err = {0};
        struct hf_template_stats stats;
        tarball_open(&t, filters[i]);
        tarball_add(&t, "./", AE_IFDIR, 0700, NULL);
        tarball_add(&t, "./usr/", AE_IFDIR, 0555, NULL);
        tarball_add(&t, "./usr/sudo", AE_IFREG, 04755, "#!");
        tarball_add(&t, "bin", AE_IFLNK, 0777, "usr");
        tarball_add(&t, "/etc/abs", AE_IFREG, 0600, "absolute");
        tarball_add(&t, "etc/F\xc5\x91tan\xc3\xbas\xc3\xadtv\xc3\xa1ny.crt", AE_IFREG, 0644, "name");
        tarball_add_hardlink(&t, "usr/sudo2", "./usr/sudo");
        tarball_add(&t, "a..b", AE_IFREG, 0644, "two dots are no dot-dot");
        assert_ok(unpack(&t, &stats, &err), &err);
        assert_int_equal(stats.entries, 8);
        assert_int_equal(stats.devices_skipped, 0);
        struct stat st;
        hf_auto_free char *sudo = in_dest("usr/sudo2");
        hf_auto_free char *abs = in_dest("etc/abs");
        hf_auto_free char *crt = in_dest("etc/F\xc5\x91tan\xc3\xbas\xc3\xadtv\xc3\xa1ny.crt");
        assert_int_equal(stat(sudo, &st), 0);
        assert_true((st.st_mode & 07777) == 04755 && st.st_nlink == 2 && st.st_mtime == 1000000000);
        assert_true(fixture_exists(abs) && fixture_exists(crt));
        assert_int_equal(stat(dest, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0755); /* the archive does not decide on the root itself */
    }
}

static void attributes_are_sorted_out(void **state)
{
    struct tarball t;
    struct hf_err err = {0};
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    tarball_add_xattr(&t, "kept", "user.kept", "yes");
    tarball_add_xattr(&t, "trusted", "trusted.overlay.opaque", "y");
    tarball_add_xattr(&t, "opaque", "user.overlay.opaque", "y");
    assert_ok(unpack(&t, NULL, &err), &err);
    char value[64];
    hf_auto_free char *kept = in_dest("kept");
    hf_auto_free char *trusted = in_dest("trusted");
    hf_auto_free char *opaque = in_dest("opaque");
    struct stat st;
    assert_int_equal(stat(kept, &st), 0);
    assert_true(st.st_uid == 1000 && st.st_gid == 1000);
    assert_int_equal(getxattr(kept, "user.kept", value, sizeof(value)), 3);
    assert_int_equal(listxattr(trusted, NULL, 0), 0);
    assert_int_equal(listxattr(opaque, NULL, 0), 0);
}

static void dot_dot(void **state)
{
    static const char *const names[] = {"../outside", "a/../../outside", "/../outside", "./..",
                                        "a/..",       "a//../../outside"};
    for (size_t i = 0; i < HF_ARRAY_LEN(names); i++) {
        struct tarball t;
        tarball_open(&t, ARCHIVE_FILTER_NONE);
        tarball_add(&t, names[i], AE_IFREG, 0644, "evil");
        refused(&t, "..");
    }
}

static void through_symlinks(void **state)
{
    static const char *const targets[] = {"..", "/", "../../..", "usr"};
    for (size_t i = 0; i < HF_ARRAY_LEN(targets); i++) {
        assert_int_equal(fresh(state), 0);
        struct tarball t;
        tarball_open(&t, ARCHIVE_FILTER_NONE);
        tarball_add(&t, "usr/", AE_IFDIR, 0755, NULL);
        tarball_add(&t, "way", AE_IFLNK, 0777, targets[i]);
        tarball_add(&t, "way/outside", AE_IFREG, 0644, "evil");
        refused(&t, "way");
    }
}

/* A file in the place of a symbolic link replaces the link, never what it points to. */
static void onto_a_symlink(void **state)
{
    struct tarball t;
    struct hf_err err = {0};
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    tarball_add(&t, "link", AE_IFLNK, 0777, "../outside");
    tarball_add(&t, "link", AE_IFREG, 0644, "evil");
    tarball_add(&t, "dir", AE_IFLNK, 0777, "..");
    tarball_add(&t, "dir/", AE_IFDIR, 0700, NULL);
    int r = unpack(&t, NULL, &err);
    struct stat st;
    hf_auto_free char *link = in_dest("link");
    assert_true(r == 0 || r == -EINVAL);
    assert_true(lstat(link, &st) == 0 && S_ISREG(st.st_mode));
    assert_int_equal(stat(fixture_top, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
}

static void hard_links_outside(void **state)
{
    static const char *const targets[] = {"../outside", "/../outside", "", "/"};
    for (size_t i = 0; i < HF_ARRAY_LEN(targets); i++) {
        struct tarball t;
        tarball_open(&t, ARCHIVE_FILTER_NONE);
        tarball_add_hardlink(&t, "stolen", targets[i]);
        struct hf_err err = {0};
        hf_auto_free char *stolen = in_dest("stolen");
        (void)(unpack(&t, NULL, &err) == 0);
        struct stat st;
        assert_true(lstat(stolen, &st) < 0 || st.st_size == 0);
    }
    assert_int_equal(fresh(state), 0);
    struct tarball t;
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    tarball_add(&t, "way", AE_IFLNK, 0777, "..");
    tarball_add_hardlink(&t, "stolen", "way/outside");
    refused(&t, "stolen");
}

/* A hard link to a symbolic link, then content: must not arrive at the link's target. */
static void hard_link_to_symlink(void **state)
{
    struct tarball t;
    struct hf_err err = {0};
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    tarball_add(&t, "link", AE_IFLNK, 0777, "../outside");
    tarball_add_hardlink(&t, "second", "link");
    tarball_add(&t, "second", AE_IFREG, 0644, "evil");
    int r = unpack(&t, NULL, &err);
    assert_true(r == 0 || r == -EINVAL);
}

static void devices(void **state)
{
    static const unsigned types[] = {AE_IFCHR, AE_IFBLK};
    for (size_t i = 0; i < HF_ARRAY_LEN(types); i++) {
        assert_int_equal(fresh(state), 0);
        struct tarball t;
        tarball_open(&t, ARCHIVE_FILTER_NONE);
        tarball_add(&t, "srv/disk", types[i], 0666, NULL);
        refused(&t, "srv/disk");
    }
    struct tarball t;
    struct hf_err err = {0};
    struct hf_template_stats stats;
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    tarball_add(&t, "./dev/", AE_IFDIR, 0755, NULL);
    tarball_add(&t, "./dev/null", AE_IFCHR, 0666, NULL);
    tarball_add(&t, "dev/loop0", AE_IFBLK, 0666, NULL);
    assert_ok(unpack(&t, &stats, &err), &err);
    assert_int_equal(stats.devices_skipped, 2);
    hf_auto_free char *null = in_dest("dev/null");
    assert_false(fixture_exists(null));
}

static void limits(void **state)
{
    struct hf_err err = {0};
    struct tarball t;
    tarball_open(&t, ARCHIVE_FILTER_GZIP);
    for (int i = 0; i < 100000; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "f%d", i);
        tarball_add(&t, name, AE_IFREG, 0644, NULL);
    }
    hf_auto_close int fd = tarball_close(&t);
    struct hf_template_limits few = {.entries = 1000};
    assert_int_equal(hf_template_extract(fd, dest, &few, NULL, &err), -EMSGSIZE);
    assert_non_null(strstr(err.msg, "1000 entries"));

    size_t n = 3 << 20;
    hf_auto_free char *big = hf_xmalloc(n + 1);
    memset(big, 'b', n);
    big[n] = '\0';
    tarball_open(&t, ARCHIVE_FILTER_ZSTD);
    tarball_add(&t, "one", AE_IFREG, 0644, big);
    tarball_add(&t, "two", AE_IFREG, 0644, big);
    hf_auto_close int bomb = tarball_close(&t);
    struct hf_template_limits small = {.bytes = 4 << 20};
    assert_int_equal(hf_template_extract(bomb, dest, &small, NULL, &err), -EMSGSIZE);
    assert_non_null(strstr(err.msg, "4 MiB"));
    hf_auto_free char *two = in_dest("two");
    assert_false(fixture_exists(two));

    char deep[4 * 200] = "";
    for (int i = 0; i < 199; i++)
        memcpy(deep + 2 * i, "d/", 3);
    assert_int_equal(fresh(state), 0);
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    tarball_add(&t, deep, AE_IFDIR, 0755, NULL);
    refused(&t, "levels");
}

static int refuse_bytes(const void *p, size_t n, struct hf_err *err)
{
    hf_auto_close int fd = memfd_create("bytes", MFD_CLOEXEC);
    assert_int_equal(hf_write_all(fd, p, n), 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    return hf_template_extract(fd, dest, NULL, NULL, err);
}

static void garbage(void **state)
{
    struct hf_err err = {0};
    static char junk[65536];
    for (size_t i = 0; i < sizeof(junk); i++)
        junk[i] = (char)(i * 2654435761u >> 13);
    assert_int_equal(refuse_bytes(junk, sizeof(junk), &err), -EINVAL);
    assert_int_equal(refuse_bytes("", 0, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "refused") ? err.msg : strstr(err.msg, "empty"));
    /* Cut in the middle of a compressed stream, and of a file. */
    for (int filter = ARCHIVE_FILTER_NONE; filter <= ARCHIVE_FILTER_GZIP; filter++) {
        assert_int_equal(fresh(state), 0);
        struct tarball t;
        char *text = hf_xmalloc(100001);
        for (int i = 0; i < 100000; i++)
            text[i] = (char)('a' + (i * 7919 >> 5) % 26);
        text[100000] = '\0';
        tarball_open(&t, filter);
        tarball_add(&t, "file", AE_IFREG, 0644, text);
        free(text);
        hf_auto_close int fd = tarball_close(&t);
        struct stat st;
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(ftruncate(fd, filter == ARCHIVE_FILTER_NONE ? 60000 : st.st_size / 2), 0);
        assert_int_equal(hf_template_extract(fd, dest, NULL, NULL, &err), -EINVAL);
    }
}

/* The thread's working directory and umask are its own. */
static void the_caller_stays_where_it_is(void **state)
{
    char before[4096], after[4096];
    assert_non_null(getcwd(before, sizeof(before)));
    mode_t mask = umask(027);
    struct tarball t;
    struct hf_err err = {0};
    tarball_open(&t, ARCHIVE_FILTER_NONE);
    tarball_add(&t, "open/to/all", AE_IFREG, 0666, "x");
    assert_ok(unpack(&t, NULL, &err), &err);
    assert_int_equal(umask(mask), 027);
    assert_non_null(getcwd(after, sizeof(after)));
    assert_string_equal(before, after);
    hf_auto_free char *file = in_dest("open/to/all");
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0666);
}

static int tests(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, fresh, outside_is_untouched)
    const struct CMUnitTest all[] = {
        CASE(good_archives),
        CASE(attributes_are_sorted_out),
        CASE(dot_dot),
        CASE(through_symlinks),
        CASE(onto_a_symlink),
        CASE(hard_links_outside),
        CASE(devices),
        CASE(hard_link_to_symlink),
        CASE(limits),
        CASE(garbage),
        CASE(the_caller_stays_where_it_is),
    };
    return cmocka_run_group_tests_name("template extract", all, NULL, NULL);
}

int main(int argc, char **argv)
{
    return fixture_main(argc, argv, tests, NULL);
}
