/* Policy: host names, patterns, paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "egress/policy_int.h"

#define S(lit)                 \
    {                          \
        (lit), sizeof(lit) - 1 \
    }
#define L63 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static void test_normal(void **state)
{
    static const struct {
        struct hf_str in;
        const char *out; /* NULL: refused */
    } cases[] = {
        {S("example.org"), "example.org"},
        {S("EXAMPLE.Org"), "example.org"},
        {S("example.org."), "example.org"},
        {S("xn--bcher-kva.example"), "xn--bcher-kva.example"},
        {S("_dmarc.example.org"), "_dmarc.example.org"},
        {S("localhost"), "localhost"},
        {S("a"), "a"},
        {S("1.2.3.example"), "1.2.3.example"},
        {S(L63 ".x"), L63 ".x"},
        {S(L63 "." L63 "." L63 ".aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
         L63 "." L63 "." L63 ".aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
        {S(L63 "." L63 "." L63 ".aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), NULL},
        {S(""), NULL},
        {S("."), NULL},
        {S("example.org.."), NULL},
        {S(".example.org"), NULL},
        {S("a..b"), NULL},
        {S(L63 "a.x"), NULL},
        {S("-a.x"), NULL},
        {S("a-.x"), NULL},
        {S("allowed.com\0.evil.com"), NULL},
        {S("allowed.com\r\nHost: evil.com"), NULL},
        {S("allowed.com%00.evil.com"), NULL},
        {S("allowed.com%2eevil.com"), NULL},
        {S("b\xc3\xbc"
           "cher.example"),
         NULL},
        {S("allowed.com@evil.com"), NULL},
        {S("allowed.com:80"), NULL},
        {S("allowed.com/x"), NULL},
        {S("allowed com"), NULL},
        {S("allowed.com\t"), NULL},
        {S("*.example.org"), NULL},
        {S("127.0.0.1"), NULL},
        {S("127.1"), NULL},
        {S("2130706433"), NULL},
        {S("0x7f000001"), NULL},
        {S("0x7f.1"), NULL},
        {S("0177.0.0.01"), NULL},
        {S("1.2.3.0x4"), NULL},
        {S("0x"), NULL},
        {S("::1"), NULL},
        {S("[::1]"), NULL},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        char out[254] = "untouched";
        int r = hf_name_normal(cases[i].in, out);
        if (cases[i].out ? r != 0 || strcmp(out, cases[i].out) != 0 : r == 0 || strcmp(out, "untouched") != 0)
            fail_msg("case %zu: %.*s gave %d %s", i, (int)cases[i].in.n, cases[i].in.p, r, out);
    }
}

static void test_match(void **state)
{
    static const struct {
        const char *pattern, *name;
        bool match;
    } cases[] = {
        {"allowed.com", "allowed.com", true},
        {"allowed.com", "x.allowed.com", false},
        {"allowed.com", "allowed.com.evil.com", false},
        {"allowed.com", "evilallowed.com", false},
        {"*.allowed.com", "x.allowed.com", true},
        {"*.allowed.com", "y.x.allowed.com", true},
        {"*.allowed.com", "allowed.com", false},
        {"*.allowed.com", "evilallowed.com", false},
        {"*.allowed.com", ".allowed.com", false},
        {"*.allowed.com", "x.allowed.com.evil.com", false},
        {"192.0.2.1", "192.0.2.1", true},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        if (hf_name_match(cases[i].pattern, cases[i].name) != cases[i].match)
            fail_msg("%s against %s", cases[i].pattern, cases[i].name);
    }
}

static void test_path_forms(void **state)
{
    static const struct {
        struct hf_str in;
        const char *strict, *loose; /* NULL: refused */
    } cases[] = {
        {S("/"), "/", "/"},
        {S("/v1/x?a=/../b"), "/v1/x", "/v1/x"},
        {S("/v1/x#f"), "/v1/x", "/v1/x"},
        {S("/a/./b/../c"), "/a/c", "/a/c"},
        {S("/a/.."), "/", "/"},
        {S("/../../a"), "/a", "/a"},
        {S("/a/."), "/a/", "/a/"},
        {S("/v1/%2e%2e/admin"), "/admin", "/admin"},
        {S("/%76%31/x"), "/v1/x", "/v1/x"},
        {S("/v1/%2f%2e%2e%2f..%2fadmin"), "/v1/%2F..%2F..%2Fadmin", "/admin"},
        {S("/v1/..%2fadmin"), "/v1/..%2Fadmin", "/admin"},
        {S("//admin/x"), "//admin/x", "/admin/x"},
        {S("/v1/..;/admin"), "/v1/..;/admin", "/admin"},
        {S("/v1\\..\\admin"), "/v1\\..\\admin", "/admin"},
        {S("/v1/%252e%252e/admin"), "/v1/%252e%252e/admin", "/admin"},
        {S("/a;v=1/b;w"), "/a;v=1/b;w", "/a/b"},
        {S("/a//"), "/a//", "/a/"},
        {S("/a%20b"), "/a%20b", "/a b"},
        {S(""), NULL, NULL},
        {S("*"), NULL, NULL},
        {S("v1"), NULL, NULL},
        {S("http://h/v1"), NULL, NULL},
        {S("/a%00b"), NULL, NULL},
        {S("/a%0d%0ab"), NULL, NULL},
        {S("/a\0b"), NULL, NULL},
        {S("/a%"), NULL, NULL},
        {S("/a%2"), NULL, NULL},
        {S("/a%zz"), NULL, NULL},
        {S("/a%2500"), NULL, NULL}, /* a NUL after the second decoding */
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        struct hf_path_forms f;
        int r = hf_path_forms(cases[i].in, &f);
        if (!cases[i].strict) {
            if (r == 0)
                fail_msg("taken: %.*s", (int)cases[i].in.n, cases[i].in.p);
            continue;
        }
        if (r < 0)
            fail_msg("refused: %s", cases[i].in.p);
        struct hf_str strict = {f.strict.p, f.strict.n}, loose = {f.loose.p, f.loose.n};
        if (!hf_str_eq(strict, cases[i].strict) || !hf_str_eq(loose, cases[i].loose))
            fail_msg("%s: %.*s and %.*s", cases[i].in.p, (int)strict.n, strict.p, (int)loose.n, loose.p);
        hf_path_forms_done(&f);
    }
}

static void test_path_limit(void **state)
{
    struct hf_path_forms f;
    hf_auto_free char *big = hf_xcalloc(1, HF_POLICY_REQ_PATH_MAX + 2);
    memset(big, 'a', HF_POLICY_REQ_PATH_MAX + 1);
    big[0] = '/';
    assert_int_equal(hf_path_forms((struct hf_str){big, HF_POLICY_REQ_PATH_MAX + 1}, &f), -EMSGSIZE);
    assert_int_equal(hf_path_forms((struct hf_str){big, HF_POLICY_REQ_PATH_MAX}, &f), 0);
    hf_path_forms_done(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normal),
        cmocka_unit_test(test_match),
        cmocka_unit_test(test_path_forms),
        cmocka_unit_test(test_path_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
