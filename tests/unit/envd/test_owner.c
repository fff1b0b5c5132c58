#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "envd/owner.h"

#define LINE4                                                                                              \
    "   3: 0100007F:1F90 020200C0:01BB 01 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0 " \
    "20 4 30 10 -1\n"
#define LISTEN                                                                                               \
    "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 17 1 0 100 " \
    "0 0 10 0\n"
#define WAITING \
    "   1: 0100007F:1F90 020200C0:01BB 06 00000000:00000000 03:00000F9F 00000000     0        0 0 3 0\n"
#define LINE6                                                                               \
    "   0: B80D0120000000000000000001000000:1F90 B80D0120000000000000000002000000:01BB 01 " \
    "00000000:00000000 00:00000000 00000000  1000        0 99 1 0 20 4 30 10 -1\n"
#define MAPPED                                                                              \
    "   0: 0000000000000000FFFF00000100007F:1F90 0000000000000000FFFF0000020200C0:01BB 01 " \
    "00000000:00000000 00:00000000 00000000  1000        0 77 1 0 20 4 30 10 -1\n"

static struct hf_addr addr(const char *s)
{
    struct hf_addr a = {0};
    assert_int_equal(hf_addr_parse(hf_str_c(s), &a), 0);
    return a;
}

static uint64_t match(const char *line, struct owner_ends want)
{
    uint64_t inode = 0;
    return owner_match_line(hf_str_c(line), &want, &inode) ? inode : 0;
}

static void test_lines(void **state)
{
    struct owner_ends port = {.local_port = 8080}, other = {.local_port = 8081};
    assert_int_equal(match(LINE4, port), 4242);
    assert_int_equal(match(LINE4, other), 0);
    assert_int_equal(match(LISTEN, port), 0);  /* no connection */
    assert_int_equal(match(WAITING, port), 0); /* nobody's any more */
    assert_int_equal(match(LINE6, port), 99);
    struct owner_ends all = {
        .local = addr("127.0.0.1"), .local_port = 8080, .remote = addr("192.0.2.2"), .remote_port = 443};
    assert_int_equal(match(LINE4, all), 4242);
    assert_int_equal(match(MAPPED, all), 77);
    assert_int_equal(match(LINE6, all), 0);
    all.remote = addr("192.0.2.3");
    assert_int_equal(match(LINE4, all), 0);
    all.remote = addr("192.0.2.2");
    all.remote_port = 80;
    assert_int_equal(match(LINE4, all), 0);
    struct owner_ends six = {
        .local = addr("2001:db8::1"), .local_port = 8080, .remote = addr("2001:db8::2"), .remote_port = 443};
    assert_int_equal(match(LINE6, six), 99);
}

static void test_nonsense(void **state)
{
    static const char *const bad[] = {
        "",
        "\n",
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n",
        "0: 0100007F:1F9 020200C0:01BB 01 a b c d e 1\n",
        "0: 0100007X:1F90 020200C0:01BB 01 a b c d e 1\n",
        "0: 0100007F:1F90 020200C0:01BB 01 a b c d e x\n",
        "0: 0100007F:1F90 020200C0:01BB 01 a b c d\n"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        assert_int_equal(match(bad[i], (struct owner_ends){.local_port = 8080}), 0);
}

static void test_nobody(void **state)
{
    struct owner o;
    assert_int_equal(owner_find(&(struct owner_ends){.local = addr("192.0.2.77"), .local_port = 1}, &o),
                     -ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
