/* ClientHellos: real ones in pieces and over records, and made-up ones that nobody should believe. */
#include "net.h"
#include "tlspair.h"

static struct hf_buf hello(const char *name, unsigned alpn)
{
    struct hf_err err;
    struct hf_tls_ctx *c;
    struct hf_buf out = HF_BUF_INIT(PAIR_MAX);
    assert_int_equal(hf_tls_client_ctx(NULL, false, 0, &c, &err), 0);
    struct hf_tls *t = hf_tls_connect(c, name, alpn);
    assert_int_equal(hf_tls_start(t, &out), 0);
    hf_tls_free(t);
    hf_tls_ctx_unref(c);
    return out;
}

static void test_real(void **state)
{
    struct hf_hello h;
    hf_auto_buf struct hf_buf b = hello("API.Example.test", HF_ALPN_H2 | HF_ALPN_HTTP1);
    for (size_t i = 0; i < b.n; i++)
        assert_int_equal(hf_hello_parse(b.p, i, &h), 0);
    assert_int_equal(hf_hello_parse(b.p, b.n, &h), 1);
    assert_string_equal(h.sni, "api.example.test");
    assert_true(h.alpn_h2 && h.alpn_http1 && !h.alpn_other && h.tls13 && !h.ech && !h.sni_bad);
    hf_auto_buf struct hf_buf ip = hello("192.0.2.1", 0);
    assert_int_equal(hf_hello_parse(ip.p, ip.n, &h), 1);
    assert_string_equal(h.sni, "");
    assert_false(h.alpn_h2 || h.alpn_http1 || h.sni_bad);
}

static void test_split_over_records(void **state)
{
    struct hf_hello h;
    hf_auto_buf struct hf_buf b = hello("a.test", HF_ALPN_HTTP1);
    for (size_t piece = 1; piece < 9; piece++) {
        hf_auto_buf struct hf_buf cut = HF_BUF_INIT(PAIR_MAX);
        for (size_t i = 5; i < b.n; i += piece) {
            size_t n = HF_MIN(piece, b.n - i);
            char head[5] = {22, 3, 1, 0, (char)n};
            assert_int_equal(hf_buf_add(&cut, head, 5), 0);
            assert_int_equal(hf_buf_add(&cut, b.p + i, n), 0);
        }
        assert_int_equal(hf_hello_parse(cut.p, cut.n - 1, &h), 0);
        assert_int_equal(hf_hello_parse(cut.p, cut.n, &h), 1);
        assert_string_equal(h.sni, "a.test");
    }
}

/* A hello with these extension bytes. */
static int parse_with(const char *ext, size_t n, struct hf_hello *h)
{
    unsigned char m[1024] = {22, 3, 1};
    size_t body = 2 + 32 + 1 + 4 + 2 + 2 + n, i = 9;
    m[3] = (unsigned char)((body + 4) >> 8);
    m[4] = (unsigned char)(body + 4);
    m[5] = 1;
    m[7] = (unsigned char)(body >> 8);
    m[8] = (unsigned char)body;
    m[i] = m[i + 1] = 3;
    i += 35;
    memcpy(m + i, "\0\2\x13\x01\1\0", 6);
    i += 6;
    m[i++] = (unsigned char)(n >> 8);
    m[i++] = (unsigned char)n;
    memcpy(m + i, ext, n);
    return hf_hello_parse(m, i + n, h);
}

#define PARSE(lit, h) parse_with("" lit, sizeof(lit) - 1, h)

static void test_names(void **state)
{
    struct hf_hello h;
    assert_int_equal(PARSE("\0\0\0\x8\0\6\0\0\3a.b", &h), 1);
    assert_string_equal(h.sni, "a.b");
    assert_false(h.tls13);
    /* two names, two extensions, NUL, a dot at the end, a blank, another type */
    static const struct {
        const char *p;
        size_t n;
    } bad[] = {
        {"\0\0\0\xe\0\xc\0\0\3a.b\0\0\3c.d", 18}, {"\0\0\0\x8\0\6\0\0\3a.b\0\0\0\x8\0\6\0\0\3a.b", 24},
        {"\0\0\0\x8\0\6\0\0\3a\0b", 12},          {"\0\0\0\x8\0\6\0\0\3ab.", 12},
        {"\0\0\0\x8\0\6\0\0\3a b", 12},           {"\0\0\0\x8\0\6\1\0\3a.b", 12},
        {"\0\0\0\x8\0\6\0\0\3..b", 12},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        assert_int_equal(parse_with(bad[i].p, bad[i].n, &h), 1);
        assert_true(h.sni_bad);
        assert_string_equal(h.sni, "");
    }
    assert_int_equal(PARSE("\xfe\x0d\0\0", &h), 1);
    assert_true(h.ech);
    assert_int_equal(PARSE("\xff\xce\0\0", &h), 1);
    assert_true(h.ech);
    assert_int_equal(PARSE("\0\x10\0\x5\0\3\2h3", &h), 1);
    assert_true(h.alpn_other && !h.alpn_h2);
}

static void test_malformed(void **state)
{
    struct hf_hello h;
    assert_int_equal(PARSE("\0\0\0\x9\0\6\0\0\3a.b", &h), -EPROTO); /* longer than it is */
    assert_int_equal(PARSE("\0\0\0\x8\0\5\0\0\3a.b", &h), -EPROTO); /* rest behind the list */
    assert_int_equal(PARSE("\0\0\0\x8\0\6\0\0\4a.b", &h), -EPROTO); /* name past its list */
    assert_int_equal(PARSE("\0\0\0\0", &h), -EPROTO);               /* empty */
    assert_int_equal(PARSE("\0\x10\0\3\0\1\0", &h), -EPROTO);       /* empty protocol */
    assert_int_equal(PARSE("\0\x2b\0\2\1\3", &h), -EPROTO);         /* half a version */
    assert_int_equal(PARSE("\0", &h), -EPROTO);
    assert_int_equal(hf_hello_parse("GET / HTTP/1.1\r\n", 16, &h), -EPROTO);
    assert_int_equal(hf_hello_parse("\x16\x02", 2, &h), -EPROTO);
    assert_int_equal(hf_hello_parse("\x16\x03\x01\0\0", 5, &h), -EPROTO);            /* empty record */
    assert_int_equal(hf_hello_parse("\x16\x03\x01\x41\0", 5, &h), -EPROTO);          /* too long a record */
    assert_int_equal(hf_hello_parse("\x16\x03\x01\0\x4\x02\0\0\0", 9, &h), -EPROTO); /* no ClientHello */
    assert_int_equal(hf_hello_parse("\x16\x03\x01\0\x4\x01\x01\0\0", 9, &h), -EMSGSIZE);
    assert_int_equal(hf_hello_parse("\x16\x03\x01\0\x5\x01\0\0\0\0", 10, &h), -EPROTO);
}

static void test_endless(void **state)
{
    struct hf_hello h;
    char *p = hf_xcalloc(1, HF_HELLO_MAX);
    /* One byte of payload a record: many record heads, little hello. */
    for (size_t i = 0; i + 6 <= HF_HELLO_MAX; i += 6)
        memcpy(p + i, "\x16\x03\x01\0\1\0", 6);
    p[5] = 1;
    p[17] = 0x3f; /* of 16 KiB */
    p[HF_HELLO_MAX - 4] = 22;
    p[HF_HELLO_MAX - 3] = 3;
    assert_int_equal(hf_hello_parse(p, HF_HELLO_MAX - 6, &h), 0);
    assert_int_equal(hf_hello_parse(p, HF_HELLO_MAX, &h), -EMSGSIZE);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real),    cmocka_unit_test(test_split_over_records),
        cmocka_unit_test(test_names),   cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_endless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
