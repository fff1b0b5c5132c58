#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/table.h"

/* What the table prints, malloc'ed. */
static char *render(const struct hf_table *t, size_t width, const char *bold, const char *reset)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    hf_table_print(t, f, width, bold, reset);
    (void)fclose(f);
    return text;
}

static void aligned(void **state)
{
    (void)state;
    static const char *const heads[] = {"ID", "N", "NAME", NULL};
    struct hf_table t;
    hf_table_init(&t, heads);
    hf_table_flag(&t, 1, HF_TABLE_RIGHT);
    hf_table_cell(&t, "a");
    hf_table_cell(&t, "7");
    hf_table_cell(&t, "first");
    hf_table_cell(&t, "longer");
    hf_table_cell(&t, "1000");
    hf_table_cell(&t, "");
    hf_auto_free char *out = render(&t, 0, "", "");
    assert_string_equal(out, "ID         N  NAME\n"
                             "a          7  first\n"
                             "longer  1000  -\n");
    hf_table_done(&t);
}

static void wide_characters(void **state)
{
    (void)state;
    static const char *const heads[] = {"NAME", "X", NULL};
    struct hf_table t;
    hf_table_init(&t, heads);
    hf_table_cell(&t, "\xe6\xb5\xb7\xe8\x97\xbb"); /* two wide characters: four columns */
    hf_table_cell(&t, "1");
    hf_table_cell(&t, "e\xcc\x81t\xc3\xa9"); /* a combining accent takes none */
    hf_table_cell(&t, "2");
    hf_auto_free char *out = render(&t, 0, "", "");
    assert_string_equal(out, "NAME  X\n"
                             "\xe6\xb5\xb7\xe8\x97\xbb  1\n"
                             "e\xcc\x81t\xc3\xa9   2\n");
    hf_table_done(&t);
    assert_int_equal(hf_text_width("\xe6\xb5\xb7\xe8\x97\xbb"), 4);
}

static void narrow_terminal(void **state)
{
    (void)state;
    static const char *const heads[] = {"ID", "NAME", "STATE", NULL};
    struct hf_table t;
    hf_table_init(&t, heads);
    hf_table_flag(&t, 1, HF_TABLE_FLEX);
    hf_table_cell(&t, "i1");
    hf_table_cell(&t, "a very long name indeed");
    hf_table_cell(&t, "running");
    hf_auto_free char *out = render(&t, 24, "", "");
    assert_string_equal(out, "ID  NAME         STATE\n"
                             "i1  a very lon…  running\n");
    free(hf_take_ptr(out));
    out = render(&t, 8, "", ""); /* too narrow for anything: no column below its heading */
    assert_string_equal(out, "ID  NAME  STATE\n"
                             "i1  a v…  running\n");
    hf_table_done(&t);
}

static void hostile_text(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\033[31mred\033[0m", "?[31mred?[0m"},
        {"two\nlines\ttab", "two?lines?tab"},
        {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"cut \xe6\xb5", "cut \xef\xbf\xbd\xef\xbf\xbd"},
        {"c1 \xc2\x9b"
         "31m",
         "c1 ?31m"},
        {"plain", "plain"},
        {"", ""},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        hf_auto_free char *s = hf_text_printable(cases[i][0]);
        assert_string_equal(s, cases[i][1]);
    }
}

static void colors(void **state)
{
    (void)state;
    static const char *const heads[] = {"A", "B", NULL};
    struct hf_table t;
    hf_table_init(&t, heads);
    hf_table_cell_color(&t, "x", "<g>");
    hf_table_cell(&t, "y");
    hf_auto_free char *out = render(&t, 0, "<b>", "<0>");
    assert_string_equal(out, "<b>A<0>  <b>B<0>\n"
                             "<g>x<0>  y\n");
    hf_table_done(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aligned),      cmocka_unit_test(wide_characters), cmocka_unit_test(narrow_terminal),
        cmocka_unit_test(hostile_text), cmocka_unit_test(colors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
