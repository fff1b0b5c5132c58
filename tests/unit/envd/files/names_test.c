/* Users, paths, signatures, mode strings and texts. argv[1] is the directory of the fixtures. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "envd/files.h"

static const char *fixtures;

static int lookup(const char *name, struct envd_user *u, struct hf_err *err)
{
    hf_auto_free char *passwd = path_join(fixtures, "passwd"), *group = path_join(fixtures, "group");
    return users_lookup(passwd, group, name, u, err);
}

static void test_users(void **state)
{
    struct envd_user u;
    struct hf_err err = {0};
    assert_int_equal(lookup("user", &u, &err), 0);
    assert_int_equal(u.uid, 1000);
    assert_int_equal(u.gid, 1000);
    assert_string_equal(u.home, "/home/user");
    assert_string_equal(u.shell, "/bin/bash");
    assert_int_equal(u.n_groups, 3);
    assert_int_equal(u.groups[0], 1000);
    assert_int_equal(u.groups[1], 27);
    assert_int_equal(u.groups[2], 44);
    /* A name wins over a number. */
    assert_int_equal(lookup("1000", &u, &err), 0);
    assert_int_equal(u.uid, 2000);
    assert_string_equal(u.shell, "/bin/sh");
    assert_int_equal(lookup("2000", &u, &err), 0);
    assert_string_equal(u.name, "1000");
    assert_int_equal(lookup("nohome", &u, &err), 0);
    assert_string_equal(u.home, "/");
    assert_int_equal(lookup("nonl", &u, &err), 0); /* the last line has no newline */
    assert_int_equal(u.uid, 10);
    static const char *const bad[] = {"nobody-here", "short", "broken line", "badid", "hugeid",
                                      "extra",       "",      "root:x"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        if (lookup(bad[i], &u, &err) != -ENOENT)
            fail_msg("%s", bad[i]);
    }
    assert_int_equal(lookup("root123", &u, &err), -ENOENT);
    assert_string_equal(err.msg, "invalid username: 'root123'");
    assert_int_equal(users_lookup("/dev/zero", "/dev/zero", "root", &u, &err), -ENOENT);
}

static void expect_path(const char *workdir, struct hf_str path, const char *want)
{
    char *got = NULL;
    struct hf_err err = {0};
    int r = path_resolve("/home/user", workdir, path, &got, &err);
    if (r < 0)
        fail_msg("%s", err.msg);
    assert_string_equal(got, want);
    free(got);
}

static void test_paths(void **state)
{
    static const struct {
        const char *workdir, *path, *want;
    } cases[] = {
        {NULL, "", "/home/user"},
        {"/srv", "", "/srv"},
        {"", "a", "/home/user/a"},
        {NULL, "a", "/home/user/a"},
        {"/srv", "a/b", "/srv/a/b"},
        {"/srv", "~", "/home/user"},
        {"/srv", "~/", "/home/user"},
        {"/srv", "~/x/../y", "/home/user/y"},
        {"/srv", "./~x", "/srv/~x"},
        {"/srv", "/", "/"},
        {"/srv", "/../..", "/"},
        {"/srv", "../../../etc/passwd", "/etc/passwd"},
        {"/srv", "//a///b/./c/", "/a/b/c"},
        {"/srv", "/a/../../b", "/b"},
        {"/srv", "/a/b/../..", "/"},
        {"/srv", "...", "/srv/..."},
        {"/srv", "/.../..x/.y", "/.../..x/.y"},
        {"relative", "x", "/relative/x"},
        {"/srv", "new\nline", "/srv/new\nline"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++)
        expect_path(cases[i].workdir, hf_str_c(cases[i].path), cases[i].want);
}

static void test_bad_paths(void **state)
{
    char *got = NULL;
    struct hf_err err = {0};
    assert_int_equal(path_resolve("/h", NULL, (struct hf_str){"/a\0b", 4}, &got, &err), -EINVAL);
    assert_int_equal(err.status, 400);
    assert_int_equal(path_resolve("/h", NULL, HF_STR("~root/x"), &got, &err), -EINVAL);
    hf_auto_free char *fits = hf_xasprintf("/%0*d", PATH_MAX - 2, 1);
    hf_auto_free char *over = hf_xasprintf("/%0*d", PATH_MAX - 1, 1);
    assert_int_equal(path_resolve("/h", NULL, hf_str_c(fits), &got, &err), 0);
    assert_string_equal(got, fits);
    free(got);
    assert_int_equal(path_resolve("/h", NULL, hf_str_c(over), &got, &err), -ENAMETOOLONG);
    /* A relative path that is too long only together with its base. */
    assert_int_equal(path_resolve("/h", NULL, hf_str_c(fits + 1), &got, &err), -ENAMETOOLONG);
}

static void test_path_parts(void **state)
{
    static const char *const cases[][3] = {
        {"/", "/", "/"}, {"/a", "/", "a"}, {"/a/b", "/a", "b"}, {"/a/b c/d", "/a/b c", "d"}};
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        hf_auto_free char *dir = path_dir(cases[i][0]);
        assert_string_equal(dir, cases[i][1]);
        assert_string_equal(path_base(cases[i][0]), cases[i][2]);
    }
    hf_auto_free char *a = path_join("/", "x"), *b = path_join("/y", "x");
    assert_string_equal(a, "/x");
    assert_string_equal(b, "/y/x");
}

static void test_signature(void **state)
{
    static const char token[] = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0";
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(256);
    assert_int_equal(files_signature(HF_STR("hello.txt"), "read", HF_STR("user"), token, -1, &b), 0);
    assert_string_equal(b.p, "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");
    hf_auto_buf struct hf_buf c = HF_BUF_INIT(256);
    assert_int_equal(files_signature(HF_STR("hello.txt"), "read", HF_STR("user"), token, 0, &c), 0);
    assert_string_not_equal(b.p, c.p);
}

static void test_modes(void **state)
{
    static const struct {
        mode_t mode;
        const char *want;
    } cases[] = {
        {S_IFREG | 0644, "-rw-r--r--"},      {S_IFDIR | 0755, "drwxr-xr-x"},
        {S_IFLNK | 0777, "Lrwxrwxrwx"},      {S_IFREG | 0, "----------"},
        {S_IFDIR | 01777, "dtrwxrwxrwx"},    {S_IFREG | 04755, "urwxr-xr-x"},
        {S_IFREG | 06711, "ugrwx--x--x"},    {S_IFIFO | 0600, "prw-------"},
        {S_IFSOCK | 0755, "Srwxr-xr-x"},     {S_IFCHR | 0666, "Dcrw-rw-rw-"},
        {S_IFBLK | 0660, "Drw-rw----"},      {S_IFDIR | 02775, "dgrwxrwxr-x"},
        {S_IFCHR | 07777, "Dugctrwxrwxrwx"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        char out[FS_MODE_STRING_MAX];
        fs_mode_string(cases[i].mode, out);
        assert_string_equal(out, cases[i].want);
    }
}

static void expect_text(struct hf_str in, const char *want, const char *want_b64)
{
    json_auto_t *o = json_object();
    fs_set_text(o, "name", in.p, in.n);
    assert_string_equal(json_string_value(json_object_get(o, "name")), want);
    const char *b64 = json_string_value(json_object_get(o, "nameBase64"));
    if (want_b64)
        assert_string_equal(b64, want_b64);
    else
        assert_null(b64);
}

static void test_texts(void **state)
{
    expect_text(HF_STR("plain \xe6\xbc\xa2 \xf0\x9f\x98\x80"), "plain \xe6\xbc\xa2 \xf0\x9f\x98\x80", NULL);
    expect_text(HF_STR("a\xff"), "a\xef\xbf\xbd", "Yf8=");
    expect_text(HF_STR("\xe6\xbc"), "\xef\xbf\xbd\xef\xbf\xbd", "5rw=");                 /* cut short */
    expect_text(HF_STR("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd", "wK8=");                 /* overlong */
    expect_text(HF_STR("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", "7aCA"); /* surrogate */
    expect_text(HF_STR("\xf5\x80"), "\xef\xbf\xbd\xef\xbf\xbd", "9YA=");
}

static int check_metadata(const char *key, const char *value)
{
    json_auto_t *meta = json_object();
    struct hf_err err = {0};
    assert_int_equal(json_object_set_new(meta, key, json_string(value)), 0);
    int r = fs_metadata_check(meta, &err);
    if (r < 0)
        assert_memory_equal(err.msg, "invalid metadata: ", 18);
    return r;
}

static void test_metadata(void **state)
{
    hf_auto_free char *key = hf_xasprintf("%0*d", (int)FS_METADATA_KEY_MAX, 1);
    hf_auto_free char *long_key = hf_xasprintf("%0*d", (int)FS_METADATA_KEY_MAX + 1, 1);
    hf_auto_free char *value = hf_xasprintf("%0*d", (int)FS_METADATA_TOTAL_MAX - 1, 1);
    hf_auto_free char *long_value = hf_xasprintf("%0*d", (int)FS_METADATA_TOTAL_MAX, 1);
    assert_int_equal(check_metadata("k", "v ~"), 0);
    assert_int_equal(check_metadata(key, ""), 0);
    assert_int_equal(check_metadata(long_key, ""), -EINVAL);
    assert_int_equal(check_metadata("k", value), 0);
    assert_int_equal(check_metadata("k", long_value), -EINVAL);
    assert_int_equal(check_metadata("", "v"), -EINVAL);
    assert_int_equal(check_metadata("k", "\xc3\xa9"), -EINVAL);
    assert_int_equal(check_metadata("k", "a\tb"), -EINVAL);
}

int main(int argc, char **argv)
{
    fixtures = argc > 1 ? argv[1] : "fixtures";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_users),      cmocka_unit_test(test_paths),     cmocka_unit_test(test_bad_paths),
        cmocka_unit_test(test_path_parts), cmocka_unit_test(test_signature), cmocka_unit_test(test_modes),
        cmocka_unit_test(test_texts),      cmocka_unit_test(test_metadata),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
