/* Unit tests of src/base: buffers, strings, maps, time, encodings, SHA-256, paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/id.h"
#include "base/list.h"
#include "base/log.h"
#include "base/map.h"
#include "base/path.h"

static void buf_refuses_more_than_its_maximum(void **state)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(10);
    assert_int_equal(hf_buf_adds(&b, "12345"), 0);
    assert_int_equal(hf_buf_adds(&b, "678901"), -EMSGSIZE);
    assert_string_equal(b.p, "12345");
    assert_int_equal(hf_buf_addf(&b, "%d", 67890), 0);
    assert_int_equal(b.n, 10);
    assert_int_equal(hf_buf_reserve(&b, SIZE_MAX), -EMSGSIZE);
    hf_buf_consume(&b, 5);
    assert_string_equal(b.p, "67890");
    hf_buf_consume(&b, 99);
    assert_int_equal(b.n, 0);
}

static void numbers_are_strict(void **state)
{
    uint64_t v = 7;
    assert_int_equal(hf_parse_u64(HF_STR("0"), 10, &v), 0);
    assert_int_equal(v, 0);
    assert_int_equal(hf_parse_u64(HF_STR("18446744073709551615"), UINT64_MAX, &v), 0);
    assert_true(v == UINT64_MAX);
    const char *bad[] = {"", "-1", "+1", " 1", "1 ", "0x1", "1.0"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        assert_int_equal(hf_parse_u64(hf_str_c(bad[i]), 100, &v), -EINVAL);
    assert_int_equal(hf_parse_u64(HF_STR("18446744073709551616"), UINT64_MAX, &v), -ERANGE);
    assert_int_equal(hf_parse_u64(HF_STR("11"), 10, &v), -ERANGE);
    assert_true(v == UINT64_MAX); /* untouched by failures */
}

static void map_keeps_every_key_through_growth_and_removal(void **state)
{
    enum { N = 5000 };
    static int values[N];
    struct hf_map m = {0};
    char key[16];
    for (int i = 0; i < N; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        assert_null(hf_map_put(&m, hf_str_c(key), &values[i]));
    }
    for (int i = 0; i < N; i += 2) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        assert_ptr_equal(hf_map_del(&m, hf_str_c(key)), &values[i]);
    }
    size_t pos = 0, seen = 0;
    while (hf_map_next(&m, &pos, NULL))
        seen++;
    assert_int_equal(seen, N / 2);
    assert_int_equal(m.len, N / 2);
    for (int round = 0; round < 20; round++) /* tombstones must not fill the table */
        for (int i = 0; i < N; i += 2) {
            (void)snprintf(key, sizeof(key), "k%d", i);
            hf_map_put(&m, hf_str_c(key), &values[i]);
            assert_ptr_equal(hf_map_get(&m, hf_str_c(key)), &values[i]);
            hf_map_del(&m, hf_str_c(key));
        }
    assert_null(hf_map_get(&m, HF_STR("absent")));
    assert_ptr_equal(hf_map_put(&m, HF_STR("k1"), &values[3]), &values[1]);
    hf_map_done(&m);
}

static void rfc3339_round_trips(void **state)
{
    char s[HF_RFC3339_MAX];
    int64_t ns;
    hf_rfc3339_ns(1767225600123456789, s);
    assert_string_equal(s, "2026-01-01T00:00:00.123456789Z");
    assert_int_equal(hf_rfc3339_parse(hf_str_c(s), &ns), 0);
    assert_true(ns == 1767225600123456789);
    hf_rfc3339_ms(-1, s);
    assert_string_equal(s, "1969-12-31T23:59:59.999Z");
    assert_int_equal(hf_rfc3339_parse(HF_STR("2026-01-01T02:00:00+02:00"), &ns), 0);
    assert_true(ns == 1767225600000000000);
    const char *bad[] = {"",
                         "2026-01-01",
                         "2026-13-01T00:00:00Z",
                         "2026-01-01T00:00:00",
                         "2026-01-01T00:00:00.Z",
                         "2026-01-01T00:00:00Zx",
                         "2026-01-01T24:00:00Z",
                         "20260101T000000Z"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        assert_int_equal(hf_rfc3339_parse(hf_str_c(bad[i]), &ns), -EINVAL);
}

static void base64_matches_rfc4648(void **state)
{
    static const struct {
        const char *plain, *coded;
    } v[] = {{"", ""},        {"f", "Zg=="},        {"fo", "Zm8="},
             {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"fooba", "Zm9vYmE="}};
    for (size_t i = 0; i < HF_ARRAY_LEN(v); i++) {
        hf_auto_buf struct hf_buf c = HF_BUF_INIT(100), p = HF_BUF_INIT(100);
        assert_int_equal(hf_base64_add(&c, v[i].plain, strlen(v[i].plain)), 0);
        assert_string_equal(c.p, v[i].coded);
        assert_int_equal(hf_unbase64_add(&p, hf_str_c(v[i].coded)), 0);
        assert_int_equal(p.n, strlen(v[i].plain));
        assert_memory_equal(p.p, v[i].plain, p.n);
    }
    hf_auto_buf struct hf_buf p = HF_BUF_INIT(100);
    assert_int_equal(hf_unbase64_add(&p, HF_STR("-_8")), 0); /* url-safe, no padding */
    assert_memory_equal(p.p, "\xfb\xff", 2);
    assert_int_equal(hf_unbase64_add(&p, HF_STR("a")), -EINVAL);
    assert_int_equal(hf_unbase64_add(&p, HF_STR("a!aa")), -EINVAL);
    assert_int_equal(p.n, 2);
}

static void sha256_matches_fips_vectors(void **state)
{
    unsigned char d[HF_SHA256_LEN];
    char hex[65];
    hf_sha256_of("abc", 3, d);
    hf_hex(d, sizeof(d), hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hf_sha256_of("", 0, d);
    hf_hex(d, sizeof(d), hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    struct hf_sha256 s; /* a million 'a' in uneven pieces */
    char piece[997];
    memset(piece, 'a', sizeof(piece));
    hf_sha256_init(&s);
    for (size_t left = 1000000; left;) {
        size_t n = HF_MIN(left, sizeof(piece));
        hf_sha256_add(&s, piece, n);
        left -= n;
    }
    hf_sha256_done(&s, d);
    hf_hex(d, sizeof(d), hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    /* RFC 4231 test case 2 */
    hf_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, d);
    hf_hex(d, sizeof(d), hex);
    assert_string_equal(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

static void hex_and_ids(void **state)
{
    unsigned char raw[2];
    assert_int_equal(hf_unhex(HF_STR("beEF"), raw, 2), 0);
    assert_memory_equal(raw, "\xbe\xef", 2);
    assert_int_equal(hf_unhex(HF_STR("beE"), raw, 2), -EINVAL);
    assert_int_equal(hf_unhex(HF_STR("bexx"), raw, 2), -EINVAL);
    char a[21], b[21];
    hf_random_id(a, 20);
    hf_random_id(b, 20);
    assert_int_equal(strspn(a, "abcdefghijklmnopqrstuvwxyz0123456789"), 20);
    assert_string_not_equal(a, b);
    assert_true(hf_str_eq_consttime(hf_str_c(a), hf_str_c(a)));
    assert_false(hf_str_eq_consttime(hf_str_c(a), hf_str_c(b)));
    assert_false(hf_str_eq_consttime(hf_str_c(a), (struct hf_str){0}));
}

static void errors_carry_context_and_status(void **state)
{
    struct hf_err err = {0};
    assert_int_equal(hf_err_set(&err, -ENOENT, "template '%s' not found", "x"), -ENOENT);
    assert_int_equal(hf_err_wrap(&err, "sandbox %d", 7), -ENOENT);
    assert_string_equal(err.msg, "sandbox 7: template 'x' not found");
    assert_int_equal(hf_err_http_status(&err), 404);
    (void)hf_err_http(&err, -EIO, 418, "teapot");
    assert_int_equal(hf_err_http_status(&err), 418);
    assert_int_equal(hf_err_set(NULL, -EIO, "ignored"), -EIO);
    char big[2 * HF_ERR_MSG_MAX];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    (void)hf_err_set(&err, -EIO, "%s", big);
    (void)hf_err_wrap(&err, "%s", big);
    assert_int_equal(strlen(err.msg), HF_ERR_MSG_MAX - 1);
}

static void log_quoting_keeps_lines_whole(void **state)
{
    assert_string_equal(hf_log_quote("a\"b\\c\nd"), "\"a\\\"b\\\\c\\x0ad\"");
    enum hf_log_level level;
    assert_int_equal(hf_log_level_parse("warn", &level), 0);
    assert_int_equal(level, HF_LOG_WARN);
    assert_int_equal(hf_log_level_parse("loud", &level), -EINVAL);
}

static int make_tmp(void **state)
{
    static char dir[] = "/tmp/hf-base-XXXXXX";
    memcpy(dir, "/tmp/hf-base-XXXXXX", sizeof(dir));
    *state = mkdtemp(dir);
    return *state ? 0 : -1;
}

static int drop_tmp(void **state)
{
    return hf_remove_tree(*state);
}

static void paths_stay_under_the_root(void **state)
{
    const char *dir = *state;
    hf_auto_free char *root = hf_xasprintf("%s/root", dir), *deep = hf_xasprintf("%s/a/b/c", root);
    hf_auto_free char *secret = hf_xasprintf("%s/secret", dir), *link = hf_xasprintf("%s/link", root);
    hf_auto_free char *magic = hf_xasprintf("%s/magic", root);
    assert_int_equal(hf_mkdir_p(deep, 0755), 0);
    assert_int_equal(hf_mkdir_p(deep, 0755), 0);
    assert_int_equal(hf_write_file_atomic(secret, "s", 1, 0600), 0);
    assert_int_equal(symlink(secret, link), 0);
    assert_int_equal(symlink("/proc/self/root", magic), 0);
    hf_auto_close int root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(hf_open_in_root(root_fd, "../secret", O_RDONLY, 0), -ENOENT);
    assert_int_equal(hf_open_in_root(root_fd, "a/../../secret", O_RDONLY, 0), -ENOENT);
    assert_int_equal(hf_open_in_root(root_fd, secret, O_RDONLY, 0), -ENOENT);
    assert_int_equal(hf_open_in_root(root_fd, "link", O_RDONLY, 0), -ENOENT);
    assert_int_equal(hf_open_in_root(root_fd, "magic/etc/passwd", O_RDONLY, 0), -ENOENT);
    assert_int_equal(hf_open_in_root_nolink(root_fd, "link", O_RDONLY, 0), -ELOOP);
    hf_auto_close int fd = hf_open_in_root(root_fd, "a/b/c", O_RDONLY | O_DIRECTORY, 0);
    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(hf_remove_tree(root), 0);
    assert_int_equal(hf_remove_tree(root), 0);
    assert_int_equal(access(secret, F_OK), 0); /* the link's target is not touched */
}

static void files_are_read_up_to_a_limit_and_written_whole(void **state)
{
    hf_auto_free char *path = hf_xasprintf("%s/f", (char *)*state);
    hf_auto_free char *content = NULL;
    size_t n = 0;
    char big[9000];
    memset(big, 'x', sizeof(big));
    assert_int_equal(hf_write_file_atomic(path, big, sizeof(big), 0640), 0);
    assert_int_equal(hf_read_file(path, sizeof(big) - 1, &content, &n), -EMSGSIZE);
    assert_null(content);
    assert_int_equal(hf_read_file(path, sizeof(big), &content, &n), 0);
    assert_int_equal(n, sizeof(big));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    hf_auto_free char *missing = hf_xasprintf("%s/no/such", (char *)*state);
    assert_int_equal(hf_write_file_atomic(missing, "x", 1, 0600), -ENOENT);
    assert_int_equal(hf_write_existing(missing, "x"), -ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buf_refuses_more_than_its_maximum),
        cmocka_unit_test(numbers_are_strict),
        cmocka_unit_test(map_keeps_every_key_through_growth_and_removal),
        cmocka_unit_test(rfc3339_round_trips),
        cmocka_unit_test(base64_matches_rfc4648),
        cmocka_unit_test(sha256_matches_fips_vectors),
        cmocka_unit_test(hex_and_ids),
        cmocka_unit_test(errors_carry_context_and_status),
        cmocka_unit_test(log_quoting_keeps_lines_whole),
        cmocka_unit_test_setup_teardown(paths_stay_under_the_root, make_tmp, drop_tmp),
        cmocka_unit_test_setup_teardown(files_are_read_up_to_a_limit_and_written_whole, make_tmp, drop_tmp),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
