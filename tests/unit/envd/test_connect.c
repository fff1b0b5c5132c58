#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "wire/connect.h"

struct seen {
    struct hf_buf text;
    unsigned count, stop_after;
};

static int collect(void *arg, unsigned flags, struct hf_str payload)
{
    struct seen *s = arg;
    s->count++;
    assert_int_equal(hf_buf_addf(&s->text, "%u:%.*s;", flags, (int)payload.n, payload.p), 0);
    assert_int_equal(payload.p[payload.n], '\0');
    return s->count == s->stop_after ? 7 : 0;
}

static void any_split_gives_the_same(void **state)
{
    hf_auto_buf struct hf_buf in = HF_BUF_INIT(1000);
    assert_int_equal(hf_connect_add(&in, 0, "hello", 5), 0);
    assert_int_equal(hf_connect_add(&in, HF_CONNECT_FLAG_COMPRESSED, "", 0), 0);
    assert_int_equal(hf_connect_add(&in, HF_CONNECT_FLAG_END, "{}", 2), 0);
    for (size_t step = 1; step <= in.n; step++) {
        struct hf_connect_parser p;
        struct seen s = {.text = HF_BUF_INIT(1000)};
        hf_connect_init(&p, 100);
        for (size_t at = 0; at < in.n; at += step) {
            assert_int_equal(hf_connect_feed(&p, in.p + at, HF_MIN(step, in.n - at), collect, &s), 0);
        }
        assert_string_equal(s.text.p, "0:hello;1:;2:{};");
        assert_false(hf_connect_partial(&p));
        hf_buf_done(&s.text);
        hf_connect_done(&p);
    }
}

static void limits(void **state)
{
    struct hf_connect_parser p;
    struct seen s = {.text = HF_BUF_INIT(1000)};
    hf_connect_init(&p, 4);
    assert_int_equal(hf_connect_feed(&p, "\0\0\0\0\4abcd", 9, collect, &s), 0);
    assert_int_equal(hf_connect_feed(&p, "\0\0\0\0\5", 5, collect, &s), -EMSGSIZE);
    hf_connect_done(&p);
    hf_connect_init(&p, 4);
    assert_int_equal(hf_connect_feed(&p, "\4\0\0\0\0", 5, collect, &s), -EBADMSG);
    hf_connect_done(&p);
    hf_connect_init(&p, 4);
    assert_int_equal(hf_connect_feed(&p, "\0\0\0\0\4ab", 7, collect, &s), 0);
    assert_true(hf_connect_partial(&p));
    hf_connect_done(&p);
    hf_buf_done(&s.text);
}

static void the_callback_can_stop(void **state)
{
    struct hf_connect_parser p;
    struct seen s = {.text = HF_BUF_INIT(1000), .stop_after = 2};
    hf_connect_init(&p, 4);
    assert_int_equal(hf_connect_feed(&p, "\0\0\0\0\1a\0\0\0\0\1b\0\0\0\0\1c", 18, collect, &s), 7);
    assert_int_equal(s.count, 2);
    hf_connect_done(&p);
    hf_buf_done(&s.text);
}

static void a_full_buffer_stays_whole(void **state)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(8);
    assert_int_equal(hf_connect_add(&b, 0, "abc", 3), 0);
    assert_int_equal(hf_connect_add(&b, 0, "abc", 3), -EMSGSIZE);
    assert_int_equal(b.n, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_gives_the_same),
        cmocka_unit_test(limits),
        cmocka_unit_test(the_callback_can_stop),
        cmocka_unit_test(a_full_buffer_stays_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
