#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/url.h"

static void paths(void **state)
{
    (void)state;
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_URL_MAX);
    assert_int_equal(hf_url_path(&b, "/v1/sessions/%s/close", "a/b ?#%\xc3\xa9"), 0);
    assert_string_equal(b.p, "/v1/sessions/a%2Fb%20%3F%23%25%C3%A9/close");
    hf_buf_clear(&b);
    assert_int_equal(hf_url_path(&b, "/x/%s", "../.."), 0);
    assert_string_equal(b.p, "/x/..%2F..");
}

static void queries(void **state)
{
    (void)state;
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_URL_MAX);
    assert_int_equal(hf_buf_adds(&b, "/files"), 0);
    assert_int_equal(hf_url_query(&b, "path", "/a b&c=d"), 0);
    assert_int_equal(hf_url_query(&b, "username", NULL), 0);
    assert_int_equal(hf_url_query(&b, "x", "+"), 0);
    assert_string_equal(b.p, "/files?path=%2Fa%20b%26c%3Dd&x=%2B");
}

/* The transcript of a published SDK: {"a b": "c&d"} travels as a%252520b%3Dc%252526d. */
static void metadata(void **state)
{
    (void)state;
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_URL_MAX), f = HF_BUF_INIT(HF_URL_MAX);
    assert_int_equal(hf_url_metadata(&f, "a b=c&d"), 0);
    assert_int_equal(hf_buf_adds(&b, "/v2/sandboxes"), 0);
    assert_int_equal(hf_url_query(&b, "metadata", f.p), 0);
    assert_string_equal(b.p, "/v2/sandboxes?metadata=a%252520b%3Dc%252526d");
    hf_buf_clear(&f);
    assert_int_equal(hf_url_metadata(&f, "k=v=w"), 0);
    assert_int_equal(hf_url_metadata(&f, "n="), 0);
    assert_string_equal(f.p, "k=v%253Dw&n=");
    assert_int_equal(hf_url_metadata(&f, "nothing"), -EINVAL);
    assert_int_equal(hf_url_metadata(&f, "=v"), -EINVAL);
}

static void bases(void **state)
{
    (void)state;
    static const char *const good[][2] = {
        {"http://127.0.0.1:3000", "http://127.0.0.1:3000"},
        {"http://127.0.0.1:3000///", "http://127.0.0.1:3000"},
        {"https://[::1]:3000/prefix/", "https://[::1]:3000/prefix"},
    };
    static const char *const bad[] = {"",           "127.0.0.1:3000",    "ftp://x",    "http://",
                                      "http:///",   "http://:3000",      "http://a b", "http://a?x=1",
                                      "http://a\n", "file:///etc/passwd"};
    for (size_t i = 0; i < HF_ARRAY_LEN(good); i++) {
        hf_auto_free char *s = NULL;
        assert_int_equal(hf_url_base(good[i][0], &s, NULL), 0);
        assert_string_equal(s, good[i][1]);
    }
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        char *s = NULL;
        struct hf_err err = {0};
        assert_int_equal(hf_url_base(bad[i], &s, &err), -EINVAL);
        assert_null(s);
        assert_non_null(strstr(err.msg, "http"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths),
        cmocka_unit_test(queries),
        cmocka_unit_test(metadata),
        cmocka_unit_test(bases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
