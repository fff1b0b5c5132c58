#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "wire/http.h"

static struct hf_buf out = {NULL, 0, 0, 64};

static int get(const char *query, const char *name)
{
    hf_buf_clear(&out);
    return hf_query_get(hf_str_c(query), name, &out);
}

static int decode(struct hf_str s, bool plus)
{
    hf_buf_clear(&out);
    return hf_percent_decode(s, plus, &out);
}

static void test_get(void **state)
{
    assert_int_equal(get("path=a%2Fb+c&x=1", "path"), 1);
    assert_string_equal(out.p, "a/b c");
    assert_int_equal(get("path=a&x=1", "x"), 1);
    assert_string_equal(out.p, "1");
    assert_int_equal(get("%70ath=v", "path"), 1);
    assert_string_equal(out.p, "v");
    assert_int_equal(get("path", "path"), 1);
    assert_string_equal(out.p, "");
    assert_int_equal(get("a=&path=&b", "path"), 1);
    assert_string_equal(out.p, "");
    assert_int_equal(get("path=1&path=2", "path"), 1);
    assert_string_equal(out.p, "1");
    assert_int_equal(get("paths=1&pat=2", "path"), 0);
    assert_int_equal(get("", "path"), 0);
    assert_int_equal(get("&&==&", "path"), 0);
    assert_int_equal(hf_query_get((struct hf_str){NULL, 0}, "path", &out), 0);
}

static void test_bad(void **state)
{
    assert_int_equal(get("path=%", "path"), -EINVAL);
    assert_int_equal(get("path=%4", "path"), -EINVAL);
    assert_int_equal(get("path=%zz", "path"), -EINVAL);
    assert_int_equal(get("path=%00", "path"), -EINVAL);
    assert_int_equal(get("%=1&path=1", "path"), -EINVAL);
    assert_int_equal(get("x=%zz&path=1", "path"), 1); /* other values are not looked at */
    char big[80];
    memset(big, 'a', sizeof(big));
    assert_int_equal(decode((struct hf_str){big, sizeof(big)}, true), -EMSGSIZE);
    assert_int_equal(out.n, 0);
}

static void test_decode(void **state)
{
    assert_int_equal(decode(HF_STR("a%20b+c%C3%A9"), false), 0);
    assert_string_equal(out.p, "a b+c\xc3\xa9");
    assert_int_equal(decode(HF_STR("%2e%2E"), true), 0);
    assert_string_equal(out.p, "..");
    assert_int_equal(decode(HF_STR("a\0b"), false), -EINVAL);
    assert_int_equal(decode(HF_STR("%2500"), false), 0); /* decoded once */
    assert_string_equal(out.p, "%00");
    hf_buf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_get), cmocka_unit_test(test_bad),
                                       cmocka_unit_test(test_decode)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
