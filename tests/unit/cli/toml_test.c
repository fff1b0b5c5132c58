#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/buf.h"
#include "control/toml.h"

static int note(void *arg, const char *key, const struct hf_toml_value *v, struct hf_err *err)
{
    static const char *const types[] = {"s", "i", "b"};
    (void)err;
    return hf_buf_addf(arg, "%u:%s=%s:%s;", v->line, key, types[v->type], v->text);
}

static void assert_parses(const char *text, const char *want)
{
    struct hf_err err = {0};
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(64 * 1024);
    assert_int_equal(hf_buf_adds(&b, ""), 0);
    assert_int_equal(hf_toml_parse(hf_str_c(text), note, &b, &err), 0);
    assert_string_equal(b.p, want);
}

static void assert_refused(const char *text, const char *want)
{
    struct hf_err err = {0};
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(64 * 1024);
    int r = hf_toml_parse(hf_str_c(text), note, &b, &err);
    assert_true(r == -EINVAL || r == -EMSGSIZE);
    assert_string_equal(err.msg, want);
}

static void values(void **state)
{
    (void)state;
    assert_parses("", "");
    assert_parses("# only a comment", "");
    assert_parses("a = \"x\"\r\nb='y\\n'\n\n\tc = true # yes\nd=false",
                  "1:a=s:x;2:b=s:y\\n;4:c=b:true;5:d=b:false;");
    assert_parses("n = 1_000\nm = -5\nz = 0\np = +7", "1:n=i:1000;2:m=i:-5;3:z=i:0;4:p=i:7;");
    assert_parses("big = 9223372036854775807", "1:big=i:9223372036854775807;");
    assert_parses("s = \"a\\t\\\"q\\\" \\u00e9 \\U0001F30A\"", "1:s=s:a\t\"q\" \xc3\xa9 \xf0\x9f\x8c\x8a;");
    assert_parses("e = \"\"", "1:e=s:;");
}

static void tables(void **state)
{
    (void)state;
    assert_parses("a = 1\n[t]\na = 2\n[ x . y ]\nz.w = 3\n", "1:a=i:1;3:t.a=i:2;5:x.y.z.w=i:3;");
}

static void refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"a", "line 1: expected '=' after the key 'a'"},
        {"\n\n= 1", "line 3: expected a key of letters, digits, '_' or '-'"},
        {"a =", "line 1: the value is missing after '='"},
        {"a = # x", "line 1: the value is missing after '='"},
        {"a = 1 2", "line 1: unexpected text after the value; one setting a line"},
        {"a = 1\na = 2", "line 2: a is given twice"},
        {"[t]\n[t]", "line 2: [t] is given twice"},
        {"a = [1]", "line 1: arrays are not supported here"},
        {"a = {b=1}", "line 1: inline tables are not supported here"},
        {"[[a]]", "line 1: arrays of tables are not supported"},
        {"[a", "line 1: expected ']' after the table's name"},
        {"a = \"x", "line 1: the string does not end"},
        {"a = \"x\n\"", "line 1: the string does not end on its line"},
        {"a = \"\"\"x\"\"\"", "line 1: multi-line strings are not supported"},
        {"a = \"\\x\"", "line 1: unknown escape; write \\\\ for a backslash"},
        {"a = \"\\u12\"", "line 1: \\u takes 4 and \\U takes 8 hex digits"},
        {"a = \"\\ud800\"", "line 1: that escape is no character a setting may hold"},
        {"a = \"\\u0000\"", "line 1: that escape is no character a setting may hold"},
        {"a = \"\x01\"", "line 1: control character in a string; write it as an escape"},
        {"a = 1.5", "line 1: 1.5 is no value here; write \"text\", a whole number, true or false"},
        {"a = 012", "line 1: 012 is no value here; write \"text\", a whole number, true or false"},
        {"a = 1__0", "line 1: 1__0 is no value here; write \"text\", a whole number, true or false"},
        {"a = 9223372036854775808",
         "line 1: 9223372036854775808 is no value here; write \"text\", a whole number, true or false"},
        {"a = yes", "line 1: yes is no value here; write \"text\", a whole number, true or false"},
        {"a = /etc", "line 1: that is no value here; write \"text\", a whole number, true or false"},
        {"a = 1 # \x02", "line 1: control character in a comment"},
        {"\"a\" = 1", "line 1: expected a key of letters, digits, '_' or '-'"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++)
        assert_refused(cases[i][0], cases[i][1]);
}

static void limits(void **state)
{
    (void)state;
    struct hf_err err = {0};
    hf_auto_free char *big = hf_xcalloc(1, HF_TOML_SIZE_MAX + 2);
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_TOML_SIZE_MAX);
    memset(big, '\n', HF_TOML_SIZE_MAX + 1);
    assert_int_equal(hf_toml_parse((struct hf_str){big, HF_TOML_SIZE_MAX}, note, &b, &err), 0);
    assert_int_equal(hf_toml_parse((struct hf_str){big, HF_TOML_SIZE_MAX + 1}, note, &b, &err), -EMSGSIZE);
    memset(big, 'k', HF_TOML_KEY_MAX + 1);
    memcpy(big + HF_TOML_KEY_MAX + 1, "=1", 3);
    assert_refused(big, "line 1: key longer than 128 bytes");
    memcpy(big, "a=\"", 3);
    memset(big + 3, 'x', HF_TOML_STRING_MAX + 1);
    memcpy(big + 3 + HF_TOML_STRING_MAX + 1, "\"", 2);
    assert_refused(big, "line 1: string longer than 4096 bytes");
}

static int refuse(void *arg, const char *key, const struct hf_toml_value *v, struct hf_err *err)
{
    (void)arg;
    (void)v;
    return hf_err_set(err, -ENOENT, "no %s", key);
}

static void callback_ends_it(void **state)
{
    (void)state;
    struct hf_err err = {0};
    assert_int_equal(hf_toml_parse(hf_str_c("a=1\n!!!"), refuse, NULL, &err), -ENOENT);
    assert_string_equal(err.msg, "no a");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values), cmocka_unit_test(tables),           cmocka_unit_test(refused),
        cmocka_unit_test(limits), cmocka_unit_test(callback_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
