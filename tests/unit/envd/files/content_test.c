#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "envd/content.h"

static const struct hf_str absent = {NULL, 0};

static void expect_range(const char *header, uint64_t size, enum content_range want, uint64_t first,
                         uint64_t n)
{
    uint64_t got_first = 0, got_n = 0;
    assert_int_equal(content_range(hf_str_c(header), size, &got_first, &got_n), want);
    if (want == CONTENT_RANGE_ONE) {
        assert_int_equal(got_first, first);
        assert_int_equal(got_n, n);
    }
}

static void test_range(void **state)
{
    expect_range("bytes=0-0", 10, CONTENT_RANGE_ONE, 0, 1);
    expect_range(" Bytes= 2 - 5 ", 10, CONTENT_RANGE_ONE, 2, 4);
    expect_range("bytes=3-", 10, CONTENT_RANGE_ONE, 3, 7);
    expect_range("bytes=-3", 10, CONTENT_RANGE_ONE, 7, 3);
    expect_range("bytes=-11", 10, CONTENT_RANGE_ONE, 0, 10);
    expect_range("bytes=0-18446744073709551615", 10, CONTENT_RANGE_ONE, 0, 10);
    expect_range("bytes=0-99999999999999999999999", 10, CONTENT_RANGE_ONE, 0, 10);
    expect_range("bytes=-99999999999999999999999", 10, CONTENT_RANGE_ONE, 0, 10);
    expect_range("bytes=10-", 10, CONTENT_RANGE_BAD, 0, 0);
    expect_range("bytes=99999999999999999999999-", 10, CONTENT_RANGE_BAD, 0, 0);
    expect_range("bytes=-0", 10, CONTENT_RANGE_BAD, 0, 0);
    expect_range("bytes=0-", 0, CONTENT_RANGE_BAD, 0, 0);
    static const char *const ignored[] = {"",          "bytes",      "bytes=",    "bytes=-",
                                          "bytes=a-",  "bytes=1-b",  "bytes=5-2", "bytes=0-1,2-3",
                                          "items=0-1", "bytes=+1-2", "bytes=1",   "bytes=0x1-2"};
    for (size_t i = 0; i < HF_ARRAY_LEN(ignored); i++)
        expect_range(ignored[i], 10, CONTENT_RANGE_NONE, 0, 0);
    hf_auto_free char *at_max = hf_xasprintf("bytes=%0*d-", (int)CONTENT_RANGE_HEADER_MAX - 7, 1);
    hf_auto_free char *over = hf_xasprintf("bytes=%0*d-", (int)CONTENT_RANGE_HEADER_MAX - 6, 1);
    expect_range(at_max, 10, CONTENT_RANGE_ONE, 1, 9);
    expect_range(over, 10, CONTENT_RANGE_NONE, 0, 0);
}

static void test_accept(void **state)
{
    static const struct {
        const char *header;
        enum content_coding want;
    } cases[] = {
        {"", CONTENT_IDENTITY},
        {"gzip", CONTENT_GZIP},
        {"GZIP;q=0.5", CONTENT_GZIP},
        {"gzip, deflate", CONTENT_GZIP_MAYBE},
        {"br, gzip;q=0.1", CONTENT_GZIP_MAYBE},
        {"deflate", CONTENT_IDENTITY},
        {"*", CONTENT_IDENTITY},
        {"gzip;q=0", CONTENT_IDENTITY},
        {"gzip;q=0.000", CONTENT_IDENTITY},
        {"gzip;q=0.5, identity;q=0.6", CONTENT_IDENTITY},
        {"gzip;q=0.6, identity;q=0.5", CONTENT_GZIP},
        {"identity;q=0", CONTENT_NONE},
        {"*;q=0", CONTENT_NONE},
        {"gzip;q=0, *;q=0", CONTENT_NONE},
        {"identity;q=0, gzip", CONTENT_GZIP},
        {"identity;q=0, gzip, br", CONTENT_GZIP},
        {"identity;q=0, *;q=0.5", CONTENT_GZIP},
        {"*;q=0, identity", CONTENT_IDENTITY},
        {",,;;q=,", CONTENT_IDENTITY},
        {"gzip;q=junk", CONTENT_GZIP},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        if (content_accept(hf_str_c(cases[i].header)) != cases[i].want)
            fail_msg("%s", cases[i].header);
    }
    assert_int_equal(content_accept(absent), CONTENT_IDENTITY);
}

static void test_encoding(void **state)
{
    struct hf_err err = {0};
    assert_int_equal(content_encoding(absent, &err), 0);
    assert_int_equal(content_encoding(HF_STR("identity"), &err), 0);
    assert_int_equal(content_encoding(HF_STR(" GZip "), &err), 1);
    assert_int_equal(content_encoding(HF_STR("gzip, gzip"), &err), -EINVAL);
    assert_string_equal(err.msg,
                        "error decompressing request body: unsupported Content-Encoding: gzip, gzip, "
                        "supported: [gzip]");
}

static void test_dates(void **state)
{
    char text[CONTENT_DATE_MAX];
    time_t t;
    content_date(784111777, text);
    assert_string_equal(text, "Sun, 06 Nov 1994 08:49:37 GMT");
    assert_int_equal(content_date_parse(HF_STR("Sun, 06 Nov 1994 08:49:37 GMT"), &t), 0);
    assert_int_equal(t, 784111777);
    static const char *const bad[] = {"",
                                      "Sun, 06 Nov 1994 08:49:37",
                                      "Mon, 06 Nov 1994 08:49:37 GMT",
                                      "Fri, 31 Feb 2023 08:49:37 GMT",
                                      "Sunday, 06-Nov-94 08:49:37 GMT",
                                      "Sun, 06 Nov 1994 08:49:37 GMT+1"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        assert_int_equal(content_date_parse(hf_str_c(bad[i]), &t), -EINVAL);
}

static void test_conditions(void **state)
{
    struct hf_str same = HF_STR("Sun, 06 Nov 1994 08:49:37 GMT");
    assert_true(content_not_modified(HF_STR("*"), absent, "\"a\"", 1));
    assert_true(content_not_modified(HF_STR("\"b\" , W/\"a\""), absent, "\"a\"", 1));
    assert_false(content_not_modified(HF_STR("\"b\""), same, "\"a\"", 1));
    assert_false(content_not_modified(HF_STR(""), same, "\"a\"", 1));
    assert_true(content_not_modified(absent, same, "\"a\"", 784111777));
    assert_false(content_not_modified(absent, same, "\"a\"", 784111778));
    assert_false(content_not_modified(absent, HF_STR("nonsense"), "\"a\"", 1));
    assert_false(content_not_modified(absent, absent, "\"a\"", 1));
    assert_true(content_if_range(absent, "\"a\"", 1));
    assert_true(content_if_range(HF_STR("\"a\""), "\"a\"", 1));
    assert_false(content_if_range(HF_STR("W/\"a\""), "\"a\"", 1));
    assert_true(content_if_range(same, "\"a\"", 784111777));
    assert_false(content_if_range(same, "\"a\"", 784111778));
}

static void expect_disposition(const char *name, const char *want)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(1024);
    assert_int_equal(content_disposition(name, &b), 0);
    assert_string_equal(b.p, want);
}

static void test_disposition(void **state)
{
    expect_disposition("a.txt", "inline; filename=a.txt");
    expect_disposition("a b", "inline; filename=\"a b\"");
    expect_disposition("q\"\\", "inline; filename=\"q\\\"\\\\\"");
    expect_disposition("x\r\nSet-Cookie: y", "inline; filename*=utf-8''x%0D%0ASet-Cookie%3A%20y");
    expect_disposition("\xc3\xa9'%*", "inline; filename*=utf-8''%C3%A9%27%25%2A");
    expect_disposition("\xff", "inline; filename*=utf-8''%FF");
}

static void test_types(void **state)
{
    assert_string_equal(content_type("x.PNG", "", 0), "image/png");
    assert_string_equal(content_type("x.unknown", "plain", 5), "text/plain; charset=utf-8");
    assert_string_equal(content_type("x", "a\0b", 3), "application/octet-stream");
    assert_string_equal(content_type("x", "%PDF-1.7", 8), "application/pdf");
    assert_string_equal(content_type("x", "<HTML>", 6), "text/html; charset=utf-8");
    assert_string_equal(content_type("x", "<ht", 3), "text/plain; charset=utf-8");
    assert_string_equal(content_type("x", "", 0), "text/plain; charset=utf-8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_range), cmocka_unit_test(test_accept),     cmocka_unit_test(test_encoding),
        cmocka_unit_test(test_dates), cmocka_unit_test(test_conditions), cmocka_unit_test(test_disposition),
        cmocka_unit_test(test_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
