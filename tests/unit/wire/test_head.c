/* The strict head scanner: what is refused and why, in one piece and byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>

#include "wire/head.h"

static struct hf_head head;

static int scan(const char *s, size_t n, size_t piece, bool response, size_t *ret_used)
{
    hf_head_init(&head, response);
    size_t i = 0;
    *ret_used = 0;
    while (i < n) {
        size_t used, k = HF_MIN(piece, n - i);
        enum hf_head_result r = hf_head_feed(&head, s + i, k, &used);
        i += used;
        *ret_used = i;
        if (r == HF_HEAD_BAD)
            return head.bad_status;
        if (r == HF_HEAD_DONE)
            return 0;
        assert_int_equal(used, k);
    }
    return -1; /* wants more */
}

/* 0 good, the status to answer, or -1 unfinished; the same in any pieces. */
static int request(const char *s, size_t n)
{
    size_t used[3];
    const size_t pieces[3] = {n ? n : 1, 1, 7};
    int r[3];
    for (int i = 0; i < 3; i++) {
        r[i] = scan(s, n, pieces[i], false, &used[i]);
        if (r[i] == 0 && hf_head_check_request(&head, s) < 0)
            r[i] = head.bad_status;
        assert_int_equal(r[i], r[0]);
    }
    return r[0];
}

#define REQ(s) request((s), sizeof(s) - 1)
#define GET "GET / HTTP/1.1\r\n"
#define HOST "Host: a\r\n"

static void test_good(void **state)
{
    assert_int_equal(REQ(GET HOST "\r\n"), 0);
    assert_int_equal(head.length, 0);
    assert_true(head.keep_alive);
    assert_int_equal(REQ("\r\n" GET HOST "\r\n"), 0); /* RFC 9112 2.2: one empty line in front */
    assert_int_equal(REQ("GET /a/b?c=d&e HTTP/1.1\r\n" HOST "X: \t v w \t\r\n\r\n"), 0);
    assert_true(hf_str_eq(head.path, "/a/b"));
    assert_true(hf_str_eq(head.query, "c=d&e"));
    assert_int_equal(head.n, 2);
    assert_int_equal(head.hdr[1].value_n, 3); /* "v w" */
    assert_int_equal(REQ("POST / HTTP/1.1\r\n" HOST "Content-Length: 12\r\n\r\n"), 0);
    assert_int_equal(head.length, 12);
    assert_int_equal(REQ("POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: CHUNKED\r\n\r\n"), 0);
    assert_int_equal(head.length, HF_BODY_CHUNKED);
    assert_int_equal(REQ("GET / HTTP/1.0\r\n\r\n"), 0);
    assert_false(head.keep_alive);
    assert_int_equal(REQ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), 0);
    assert_true(head.keep_alive);
    assert_int_equal(REQ(GET HOST "Connection: x, close\r\n\r\n"), 0);
    assert_false(head.keep_alive);
    assert_int_equal(
        REQ(GET HOST "Connection: keep-alive\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"), 0);
    assert_true(head.upgrade);
    assert_int_equal(REQ("OPTIONS * HTTP/1.1\r\n" HOST "\r\n"), 0);
    assert_int_equal(REQ(GET HOST "X:\r\n\r\n"), 0); /* an empty value */
    assert_int_equal(head.hdr[1].value_n, 0);
    assert_int_equal(REQ(GET HOST "X: h\xc3\xa9\r\n\r\n"), 0); /* obs-text */
}

static void test_lines(void **state)
{
    assert_int_equal(REQ("GET / HTTP/1.1\nHost: a\n\n"), 400); /* bare LF */
    assert_int_equal(REQ(GET "Host: a\n\r\n"), 400);
    assert_int_equal(REQ(GET HOST "\n"), 400);
    assert_int_equal(REQ(GET HOST "\rX"), 400);
    assert_int_equal(REQ(GET "Host: a\rX: b\r\n\r\n"), 400);   /* bare CR */
    assert_int_equal(REQ(GET HOST "X: a\r\n b\r\n\r\n"), 400); /* obs-fold */
    assert_int_equal(REQ(GET HOST "X: a\r\n\tb\r\n\r\n"), 400);
    assert_int_equal(REQ(GET " Host: a\r\n\r\n"), 400);
    assert_int_equal(REQ(GET HOST "X : a\r\n\r\n"), 400); /* space before the colon */
    assert_int_equal(REQ(GET HOST "X\t: a\r\n\r\n"), 400);
    assert_int_equal(REQ(GET HOST ": a\r\n\r\n"), 400);
    assert_int_equal(REQ(GET HOST "X\r\n\r\n"), 400);
    assert_int_equal(REQ(GET HOST "X(y): a\r\n\r\n"), 400);
    assert_int_equal(REQ(GET HOST "X\xc3\xa9: a\r\n\r\n"), 400);
    assert_int_equal(REQ(GET HOST "X: a\0b\r\n\r\n"), 400); /* NUL and controls */
    assert_int_equal(REQ(GET HOST "X\0: a\r\n\r\n"), 400);
    assert_int_equal(REQ(GET HOST "X: \x01\r\n\r\n"), 400);
    assert_int_equal(REQ(GET HOST "X: a\x7f\r\n\r\n"), 400);
    assert_int_equal(REQ("\r\n\r\n" GET HOST "\r\n"), 400);
    assert_int_equal(REQ("\n" GET HOST "\r\n"), 400);
}

static void test_request_line(void **state)
{
    assert_int_equal(REQ("GET  / HTTP/1.1\r\n" HOST "\r\n"), 400);
    assert_int_equal(REQ("GET /  HTTP/1.1\r\n" HOST "\r\n"), 400);
    assert_int_equal(REQ("GET\t/ HTTP/1.1\r\n" HOST "\r\n"), 400);
    assert_int_equal(REQ("GET / HTTP/1.1 \r\n" HOST "\r\n"), 400);
    assert_int_equal(REQ("GET /\0 HTTP/1.1\r\n" HOST "\r\n"), 400);
    assert_int_equal(REQ("GET /\xff HTTP/1.1\r\n" HOST "\r\n"), 400);
    assert_int_equal(REQ("GET /#f HTTP/1.1\r\n" HOST "\r\n"), 400);
    assert_int_equal(REQ("GET x HTTP/1.1\r\n" HOST "\r\n"), 400);
    assert_int_equal(REQ("GET * HTTP/1.1\r\n" HOST "\r\n"), 400);
    assert_int_equal(REQ("GET / http/1.1\r\n" HOST "\r\n"), 400);
    assert_int_equal(REQ("GET /\r\n" HOST "\r\n"), 400); /* HTTP/0.9 */
    assert_int_equal(REQ("GET / HTTP/1.2\r\n" HOST "\r\n"), 505);
    assert_int_equal(REQ("GET / HTTP/2.0\r\n" HOST "\r\n"), 505);
    assert_int_equal(REQ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
    assert_int_equal(REQ("CONNECT a:1 HTTP/1.1\r\n" HOST "\r\n"), 501);
    assert_int_equal(REQ(" / HTTP/1.1\r\n" HOST "\r\n"), 400);
    assert_int_equal(REQ("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA / HTTP/1.1\r\n" HOST "\r\n"), 400);
}

static void test_host(void **state)
{
    assert_int_equal(REQ(GET "\r\n"), 400);
    assert_int_equal(REQ(GET "Host: a\r\nHost: a\r\n\r\n"), 400);
    assert_int_equal(REQ(GET "Host: a\r\nHOST: b\r\n\r\n"), 400);
    assert_int_equal(REQ(GET "Host: a/b\r\n\r\n"), 400);
    assert_int_equal(REQ(GET "Host: a@b\r\n\r\n"), 400);
    assert_int_equal(REQ(GET "Host: a b\r\n\r\n"), 400);
    assert_int_equal(REQ(GET "Host: a, b\r\n\r\n"), 400);
    assert_int_equal(REQ(GET "Host: [::1]:80\r\n\r\n"), 0);
    assert_int_equal(REQ("GET http://a/x?y HTTP/1.1\r\nHost: A\r\n\r\n"), 0);
    assert_true(hf_str_eq(head.path, "/x"));
    assert_true(hf_str_eq(head.query, "y"));
    assert_int_equal(REQ("GET http://a HTTP/1.1\r\nHost: a:80\r\n\r\n"), 0);
    assert_true(hf_str_eq(head.path, "/"));
    assert_int_equal(REQ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
    assert_int_equal(REQ("GET http://a:81/ HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
    assert_int_equal(REQ("GET http://x@a/ HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
    assert_int_equal(REQ("GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
    assert_int_equal(REQ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
}

static void test_framing(void **state)
{
    static const char *const bad[] = {
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length:\r\n",
        "Content-Length: 9223372036854775808\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding:\r\n",
        "Transfer-Encoding : chunked\r\n",
        ("Transfer-Encoding: \x0b"
         "chunked\r\n"),
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        char s[512];
        int n = snprintf(s, sizeof(s), "POST / HTTP/1.1\r\nHost: a\r\n%s\r\n", bad[i]);
        if (request(s, (size_t)n) != 400)
            fail_msg("accepted: %s", bad[i]);
    }
    assert_int_equal(REQ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
    assert_int_equal(REQ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: 100-Continue\r\n\r\n"),
                     0);
    assert_true(head.expect);
    assert_int_equal(REQ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: x\r\n\r\n"), 417);
    assert_int_equal(REQ(GET HOST "E2b-Sandbox-Id: a\r\nE2b-Sandbox-Id: b\r\n\r\n"), 400);
}

static void test_limits(void **state)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(1u << 20);
    assert_int_equal(hf_buf_adds(&b, GET HOST), 0);
    for (unsigned i = 1; i < HF_HTTP_HEADERS_MAX; i++)
        assert_int_equal(hf_buf_addf(&b, "X%u: y\r\n", i), 0);
    size_t n = b.n;
    assert_int_equal(hf_buf_adds(&b, "\r\n"), 0);
    assert_int_equal(request(b.p, b.n), 0);
    b.n = n;
    assert_int_equal(hf_buf_adds(&b, "Y: z\r\n\r\n"), 0);
    assert_int_equal(request(b.p, b.n), 431);

    /* A head of exactly the maximum, and one byte more. */
    for (size_t extra = 0; extra < 2; extra++) {
        hf_buf_clear(&b);
        assert_int_equal(hf_buf_adds(&b, GET HOST "X: "), 0);
        while (b.n < HF_HTTP_HEAD_MAX - 4 + extra)
            assert_int_equal(hf_buf_adds(&b, "x"), 0);
        assert_int_equal(hf_buf_adds(&b, "\r\n\r\n"), 0);
        assert_int_equal(b.n, HF_HTTP_HEAD_MAX + extra);
        assert_int_equal(request(b.p, b.n), extra ? 431 : 0);
    }
    for (size_t extra = 0; extra < 2; extra++) {
        hf_buf_clear(&b);
        assert_int_equal(hf_buf_adds(&b, "GET /"), 0);
        for (size_t i = 1; i < HF_HTTP_TARGET_MAX + extra; i++)
            assert_int_equal(hf_buf_adds(&b, "x"), 0);
        assert_int_equal(hf_buf_adds(&b, " HTTP/1.1\r\n" HOST "\r\n"), 0);
        assert_int_equal(request(b.p, b.n), extra ? 414 : 0);
    }
}

static int response(const char *s, bool for_head)
{
    size_t used, n = strlen(s);
    int one = scan(s, n, n, true, &used);
    int r = scan(s, n, 1, true, &used);
    assert_int_equal(one, r);
    return r == 0 ? hf_head_check_response(&head, s, for_head) : r;
}

static void test_responses(void **state)
{
    assert_int_equal(response("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", false), 0);
    assert_int_equal(head.status, 200);
    assert_int_equal(head.length, 3);
    assert_true(head.keep_alive);
    assert_int_equal(response("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true), 0);
    assert_int_equal(head.length, 0);
    assert_int_equal(response("HTTP/1.0 200\r\n\r\n", false), 0);
    assert_int_equal(head.length, HF_BODY_UNTIL_EOF);
    assert_false(head.keep_alive);
    assert_int_equal(response("HTTP/1.1 204 No Content\r\n\r\n", false), 0);
    assert_int_equal(head.length, 0);
    assert_int_equal(response("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false), 0);
    assert_int_equal(head.length, HF_BODY_CHUNKED);
    assert_int_equal(
        response("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", false),
        -EINVAL);
    assert_int_equal(response("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", false),
                     -EINVAL);
    assert_int_equal(response("HTTP/1.1 200 OK\nX: y\n\n", false), 400);
    assert_int_equal(response("HTTP/1.1 20 OK\r\n\r\n", false), 400);
    assert_int_equal(response("HTTP/1.1 2000 OK\r\n\r\n", false), 400);
    assert_int_equal(response("HTTP/1.1 099 OK\r\n\r\n", false), -EINVAL);
    assert_int_equal(response("ICY 200 OK\r\n\r\n", false), 400);
    assert_int_equal(response("HTTP/2 200\r\n\r\n", false), 505);
    assert_int_equal(response("HTTP/1.1 200 OK\r\n X: y\r\n\r\n", false), 400);
}

static void test_token_list(void **state)
{
    assert_true(hf_token_list_has(HF_STR("a, Close ,b"), "close"));
    assert_true(hf_token_list_has(HF_STR(",,close"), "close"));
    assert_false(hf_token_list_has(HF_STR("closed"), "close"));
    assert_false(hf_token_list_has(HF_STR(""), "close"));
    assert_false(hf_token_list_has(HF_STR("a close"), "close"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),         cmocka_unit_test(test_lines),
        cmocka_unit_test(test_request_line), cmocka_unit_test(test_host),
        cmocka_unit_test(test_framing),      cmocka_unit_test(test_limits),
        cmocka_unit_test(test_responses),    cmocka_unit_test(test_token_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
