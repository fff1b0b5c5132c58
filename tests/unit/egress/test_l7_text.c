/* What the L7 proxy reads and writes as text: first bytes, hosts, header values, the talk with a proxy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "egress/l7_int.h"

static enum hf_l7_kind sniff(const char *s)
{
    return hf_l7_sniff(s, strlen(s));
}

static void first_bytes(void **state)
{
    assert_int_equal(hf_l7_sniff(NULL, 0), HF_L7_MORE);
    assert_int_equal(sniff("\x16"), HF_L7_TLS);
    assert_int_equal(sniff("G"), HF_L7_MORE);
    assert_int_equal(sniff("GET /"), HF_L7_MORE);
    assert_int_equal(sniff("GET / HTTP/1.1"), HF_L7_PLAIN_HTTP);
    assert_int_equal(sniff("GET\thttp://x/ y\r\n"), HF_L7_PLAIN_HTTP);
    assert_int_equal(sniff("\r\n\nGET / HTTP/1.1\r\n"), HF_L7_PLAIN_HTTP);
    assert_int_equal(sniff("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), HF_L7_PLAIN_HTTP);
    assert_int_equal(sniff("EHLO me\r\n"), HF_L7_OTHER);
    assert_int_equal(sniff("SSH-2.0-OpenSSH_9.2\r\n"), HF_L7_OTHER);
    assert_int_equal(sniff("*1\r\n$4\r\nPING\r\n"), HF_L7_OTHER);
    assert_int_equal(sniff("\x01\x02"), HF_L7_OTHER);
    /* a method that never ends, a line that never ends */
    char *long_text = hf_xmalloc(HF_HELLO_MAX);
    memset(long_text, 'A', HF_HELLO_MAX);
    assert_int_equal(hf_l7_sniff(long_text, 64), HF_L7_OTHER);
    memcpy(long_text, "GET ", 4);
    assert_int_equal(hf_l7_sniff(long_text, HF_HELLO_MAX - 1), HF_L7_MORE);
    assert_int_equal(hf_l7_sniff(long_text, HF_HELLO_MAX), HF_L7_OTHER);
    free(long_text);
}

static void authorities(void **state)
{
    struct hf_l7_authority a;
    assert_int_equal(hf_l7_authority(HF_STR("Api.Test."), 443, &a), 0);
    assert_string_equal(a.host, "api.test");
    assert_int_equal(a.port, 443);
    assert_false(a.is_addr);
    assert_int_equal(hf_l7_authority(HF_STR("api.test:8443"), 443, &a), 0);
    assert_int_equal(a.port, 8443);
    assert_int_equal(hf_l7_authority(HF_STR("[2001:db8::A]:80"), 443, &a), 0);
    assert_string_equal(a.host, "2001:db8::a");
    assert_true(a.is_addr && a.addr.family == 6);
    assert_int_equal(hf_l7_authority(HF_STR("192.0.2.1"), 80, &a), 0);
    assert_true(a.is_addr && a.port == 80);
    static const char *const bad[] = {"",       ":80",    "x:",  "x:0",         "x:65536", "x:80:80",
                                      "x: 80",  "x:+80",  "u@x", "x/",          "x%00y",   "[::1",
                                      "[::1]x", "[::1]:", "::1", "[192.0.2.1]", "[x]",     "x y"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        if (hf_l7_authority(hf_str_c(bad[i]), 80, &a) == 0)
            fail_msg("\"%s\" was taken for %s port %u", bad[i], a.host, a.port);
    assert_int_equal(hf_l7_authority((struct hf_str){"a\0b", 3}, 80, &a), -EINVAL);
    assert_int_equal(hf_l7_authority((struct hf_str){NULL, 0}, 80, &a), -EINVAL);
}

static int expand(const char *format, const char *secret, const json_t *secrets, char out[256], char *missing)
{
    struct hf_inject in = {.format = hf_xstrdup(format), .secret = hf_xstrdup(secret)};
    struct hf_buf b = HF_BUF_INIT(HF_L7_SECRET_MAX + 1);
    int r = hf_l7_expand(&in, secrets, &b, missing);
    (void)snprintf(out, 256, "%.*s", (int)b.n, b.p ? b.p : "");
    if (r < 0)
        assert_null(b.p);
    hf_l7_wipe(&b);
    assert_null(b.p);
    free(in.format);
    free(in.secret);
    return r;
}

static void header_values(void **state)
{
    char out[256], missing[HF_L7_SECRET_NAME_MAX];
    json_t *s =
        json_pack("{s:s, s:s, s:s, s:s}", "A", "aaa", "B", "${A}", "CRLF", "x\r\nY: z", "TAB", "a\tb");
    assert_int_equal(expand("Bearer ${SECRET}!", "A", s, out, missing), 0);
    assert_string_equal(out, "Bearer aaa!");
    assert_int_equal(expand("${e2b.secrets.A}${holdfast.secrets.A}", "", s, out, missing), 0);
    assert_string_equal(out, "aaaaaa");
    assert_int_equal(expand("${SECRET}", "B", s, out, missing), 0);
    assert_string_equal(out, "${A}"); /* once */
    assert_int_equal(expand("$ {x} $$", "", s, out, missing), 0);
    assert_string_equal(out, "$ {x} $$");
    assert_int_equal(expand("${SECRET}", "TAB", s, out, missing), 0);
    assert_int_equal(expand("${SECRET}", "CRLF", s, out, missing), -EINVAL);
    assert_int_equal(expand("x${holdfast.secrets.NONE}", "", s, out, missing), -ENOENT);
    assert_string_equal(missing, "NONE");
    assert_int_equal(expand("${SECRET}", "A", NULL, out, missing), -ENOENT);
    assert_int_equal(expand("${other}", "A", s, out, missing), -EINVAL);
    json_t *nul = json_object();
    json_object_set_new(nul, "A", json_stringn("a\0b", 3));
    assert_int_equal(expand("${SECRET}", "A", nul, out, missing), -EINVAL);
    char *big = hf_xcalloc(1, HF_L7_SECRET_MAX + 2);
    memset(big, 'x', HF_L7_SECRET_MAX + 1);
    json_object_set_new(nul, "A", json_string(big));
    assert_int_equal(expand("${SECRET}", "A", nul, out, missing), -EMSGSIZE);
    free(big);
    json_decref(nul);
    json_decref(s);
}

/* ---- the talk with a proxy ---- */

/* Feeds one byte at a time; the result of the last. sent: everything that was sent, in hex. */
static int feed(struct hf_l7_proxy *x, const char *p, size_t n, struct hf_buf *sent, struct hf_err *err)
{
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        assert_true(hf_l7_proxy_want(x) >= 1);
        r = hf_l7_proxy_feed(x, p + i, 1, sent, err);
        if (r == 1)
            assert_int_equal(i, n - 1);
    }
    return r;
}

static void socks(void **state)
{
    char user[] = "user", password[] = "qqqq", none[] = "";
    struct hf_egress_proxy cfg = {.username = none, .password = none};
    struct hf_l7_proxy *x = hf_new(struct hf_l7_proxy);
    struct hf_buf sent = HF_BUF_INIT(4096);
    struct hf_err err = {0};
    assert_int_equal(hf_l7_proxy_start(x, &cfg, "api.test", 443, &sent), 0);
    assert_memory_equal(sent.p, "\5\1\0", 3);
    assert_int_equal(feed(x, "\5\0", 2, &sent, &err), 0);
    assert_memory_equal(sent.p + 3, "\5\1\0\3\10api.test\1\273", 15);
    assert_int_equal(sent.n, 18);
    assert_int_equal(feed(x, "\5\0\0\1\1\2\3\4\5\6", 10, &sent, &err), 1);
    assert_true(hf_l7_proxy_feed(x, "x", 1, &sent, &err) < 0); /* what follows is the origin's */

    cfg.username = user;
    cfg.password = password;
    hf_buf_clear(&sent);
    assert_int_equal(hf_l7_proxy_start(x, &cfg, "192.0.2.7", 80, &sent), 0);
    assert_int_equal(feed(x, "\5\2", 2, &sent, &err), 0);
    assert_int_equal(feed(x, "\1\0", 2, &sent, &err), 0);
    assert_int_equal(feed(x, "\5\0\0\3\3abc\0\0", 10, &sent, &err), 1);
    assert_memory_equal(sent.p, "\5\2\0\2\1\4user\4qqqq\5\1\0\1\300\0\2\7\0\120", 25);

    static const struct {
        const char *p;
        size_t n;
    } bad[] = {{"\4\0", 2},           {"\5\377", 2},         {"HT", 2},
               {"\5\1", 2},           {"\5\2\1\1", 4},       {"\5\0\5\5\0\1\0", 7},
               {"\5\0\4\0\0\1\0", 7}, {"\5\0\5\0\0\2\0", 7}, {"\5\0\5\177\0\1\0", 7}};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        hf_buf_clear(&sent);
        assert_int_equal(hf_l7_proxy_start(x, &cfg, "api.test", 80, &sent), 0);
        err.msg[0] = '\0';
        if (feed(x, bad[i].p, bad[i].n, &sent, &err) >= 0 || !err.msg[0])
            fail_msg("case %zu was taken", i);
        assert_null(strstr(err.msg, password));
    }
    hf_buf_done(&sent);
    free(x);
}

static int connect_answer(const char *answer, struct hf_err *err)
{
    char user[] = "u", password[] = "p";
    struct hf_egress_proxy cfg = {.http = true, .username = user, .password = password};
    struct hf_l7_proxy *x = hf_new(struct hf_l7_proxy);
    struct hf_buf sent = HF_BUF_INIT(4096);
    assert_int_equal(hf_l7_proxy_start(x, &cfg, "2001:db8::1", 443, &sent), 0);
    assert_string_equal(sent.p, "CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n"
                                "Proxy-Authorization: Basic dTpw\r\n\r\n");
    int r = feed(x, answer, strlen(answer), &sent, err);
    hf_buf_done(&sent);
    free(x);
    return r;
}

static void http_connect(void **state)
{
    struct hf_err err = {0};
    assert_int_equal(connect_answer("HTTP/1.1 200 OK\r\n\r\n", &err), 1);
    assert_int_equal(connect_answer("HTTP/1.0 200 Connection established\r\nVia: x\r\n\r\n", &err), 1);
    assert_int_equal(connect_answer("HTTP/1.1 200 OK\r\nVia", &err), 0);
    assert_int_equal(connect_answer("HTTP/1.1 407 no\r\n\r\n", &err), -EACCES);
    assert_int_equal(connect_answer("HTTP/1.1 503 no\r\n\r\n", &err), -ECONNREFUSED);
    assert_int_equal(connect_answer("SSH-2.0-x y z zz\r\n\r\n", &err), -EPROTO);
    assert_int_equal(connect_answer("HTTP/1.1 2x0 OK\r\n\r\n", &err), -EPROTO);
    char *endless = hf_xcalloc(1, HF_L7_PROXY_HEAD_MAX + 64);
    memset(endless, 'x', HF_L7_PROXY_HEAD_MAX + 10);
    assert_int_equal(connect_answer(endless, &err), -EMSGSIZE);
    free(endless);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_bytes), cmocka_unit_test(authorities),  cmocka_unit_test(header_values),
        cmocka_unit_test(socks),       cmocka_unit_test(http_connect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
