#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "envd/server.h"

static void numbers(void **state)
{
    uint64_t v = 0;
    assert_true(metrics_parse_number(HF_STR("123\n"), &v));
    assert_int_equal(v, 123);
    assert_true(metrics_parse_number(HF_STR("max\n"), &v));
    assert_true(v == UINT64_MAX);
    assert_false(metrics_parse_number(HF_STR(""), &v));
    assert_false(metrics_parse_number(HF_STR("usage_usec 5\n"), &v));
}

static void cpu(void **state)
{
    uint64_t ns = 0;
    assert_true(metrics_parse_cpu(HF_STR("5000000\n"), &ns));
    assert_int_equal(ns, 5000000);
    assert_true(metrics_parse_cpu(HF_STR("usage_usec 12\nuser_usec 8\nsystem_usec 4\n"), &ns));
    assert_int_equal(ns, 12000);
    assert_false(metrics_parse_cpu(HF_STR("user_usec 8\n"), &ns));
    assert_false(metrics_parse_cpu(HF_STR(""), &ns));
}

static void fields(void **state)
{
    uint64_t v = 0;
    struct hf_str stat = HF_STR("anon 1\nfile_mapped 7\nfile 4096\ntotal_cache 9");
    assert_true(metrics_parse_field(stat, "file", &v));
    assert_int_equal(v, 4096);
    assert_true(metrics_parse_field(stat, "total_cache", &v));
    assert_int_equal(v, 9);
    assert_false(metrics_parse_field(stat, "cache", &v));
    assert_false(metrics_parse_field(HF_STR("file x\n"), "file", &v));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers), cmocka_unit_test(cpu),
                                       cmocka_unit_test(fields)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
