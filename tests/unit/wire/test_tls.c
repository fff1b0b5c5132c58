/* TLS sessions against each other through buffers: handshakes, names, refusals and ends. */
#include "net.h"
#include "tlspair.h"

#include <openssl/ssl.h>

static char *ca_cert, *ca_key, *leaf_cert, *leaf_key;
static char ca_path[64];
static struct hf_tls_ctx *server_ctx, *client_ctx;
static const char *const names[] = {"a.test", "*.w.test", "192.0.2.7", "2001:db8::7"};

static int setup_all(void **state)
{
    struct hf_err err;
    assert_int_equal(hf_cert_ca("holdfast test CA", 30, &ca_cert, &ca_key, &err), 0);
    assert_int_equal(hf_cert_leaf(ca_cert, ca_key, names, 4, 30, &leaf_cert, &leaf_key, &err), 0);
    temp_file(ca_cert, ca_path);
    assert_int_equal(hf_tls_server_ctx(leaf_cert, leaf_key, HF_ALPN_HTTP1 | HF_ALPN_H2, &server_ctx, &err),
                     0);
    assert_int_equal(hf_tls_client_ctx(ca_path, true, HF_ALPN_HTTP1 | HF_ALPN_H2, &client_ctx, &err), 0);
    return 0;
}

static int teardown_all(void **state)
{
    (void)unlink(ca_path);
    hf_tls_ctx_unref(server_ctx);
    hf_tls_ctx_unref(client_ctx);
    free(ca_cert);
    free(ca_key);
    free(leaf_cert);
    free(leaf_key);
    return 0;
}

static void shake(size_t piece, const char *name)
{
    struct end c, s;
    pair_init(&c, &s, client_ctx, name, server_ctx);
    assert_int_equal(hf_tls_write(c.t, "x", 1, &c.out), -EAGAIN);
    talk(&c, &s, piece);
    assert_true(hf_tls_ready(c.t) && hf_tls_ready(s.t));
    assert_string_equal(hf_tls_error(c.t), "");
    assert_int_equal(hf_tls_alpn(c.t), HF_ALPN_H2);
    assert_int_equal(hf_tls_alpn(s.t), HF_ALPN_H2);
    const char *sni = strcmp(name, "a.test.") == 0 ? "a.test" : strchr("0123456789", name[0]) ? "" : name;
    assert_string_equal(hf_tls_sni(s.t), sni);
    assert_int_equal(hf_tls_write(c.t, "hello", 5, &c.out), 0);
    assert_int_equal(hf_tls_write(s.t, "welcome", 7, &s.out), 0);
    talk(&c, &s, piece);
    assert_string_equal(s.plain.p, "hello");
    assert_string_equal(c.plain.p, "welcome");
    end_done(&c);
    end_done(&s);
}

static void test_handshake(void **state)
{
    shake(1, "a.test");
    shake(7, "a.test");
    shake(PAIR_MAX, "a.test");
    shake(PAIR_MAX, "b.w.test");
    shake(PAIR_MAX, "a.test.");
    shake(PAIR_MAX, "192.0.2.7");
    shake(PAIR_MAX, "2001:db8::7");
}

static void test_large(void **state)
{
    struct end c, s;
    size_t n = 1u << 20;
    char *p = hf_xmalloc(n);
    for (size_t i = 0; i < n; i++)
        p[i] = (char)(i * 31);
    pair_init(&c, &s, client_ctx, "a.test", server_ctx);
    talk(&c, &s, PAIR_MAX);
    assert_int_equal(hf_tls_write(c.t, p, n, &c.out), 0);
    talk(&c, &s, 1000);
    assert_int_equal(s.plain.n, n);
    assert_memory_equal(s.plain.p, p, n);
    /* A receiver's limit holds. */
    s.plain.max = n + 100;
    assert_int_equal(hf_tls_write(c.t, p, 101, &c.out), 0);
    talk(&c, &s, PAIR_MAX);
    assert_int_equal(s.r, -EMSGSIZE);
    /* And a sender's. */
    c.out.max = 1000;
    assert_int_equal(hf_tls_write(c.t, p, 2000, &c.out), -EMSGSIZE);
    free(p);
    end_done(&c);
    end_done(&s);
}

/* The client must refuse and say why; the server hears an alert. */
static void refuse(struct hf_tls_ctx *cc, const char *name, struct hf_tls_ctx *sc, const char *why)
{
    struct end c, s;
    pair_init(&c, &s, cc, name, sc);
    talk(&c, &s, PAIR_MAX);
    assert_int_equal(c.r, -EPROTO);
    assert_false(hf_tls_ready(c.t));
    if (!strstr(hf_tls_error(c.t), why))
        fail_msg("\"%s\" lacks \"%s\"", hf_tls_error(c.t), why);
    assert_true(s.r < 0);
    assert_non_null(strstr(hf_tls_error(s.t), "alert"));
    assert_int_equal(hf_tls_feed(c.t, "x", 1, &c.plain, &c.out), -EPROTO); /* it stays so */
    end_done(&c);
    end_done(&s);
}

static void test_names(void **state)
{
    refuse(client_ctx, "b.test", server_ctx, "ostname mismatch");
    refuse(client_ctx, "w.test", server_ctx, "ostname mismatch");
    refuse(client_ctx, "a.b.w.test", server_ctx, "ostname mismatch");
    refuse(client_ctx, "192.0.2.8", server_ctx, "IP address mismatch");
    refuse(client_ctx, "2001:db8::8", server_ctx, "IP address mismatch");
    struct hf_tls *t = hf_tls_connect(client_ctx, "", 0);
    struct hf_buf out = HF_BUF_INIT(PAIR_MAX);
    assert_int_equal(hf_tls_start(t, &out), -EINVAL); /* no name: nothing could be verified */
    assert_int_equal(out.n, 0);
    hf_tls_free(t);
}

static void test_unknown_ca(void **state)
{
    struct hf_err err;
    char *cert, *key;
    struct hf_tls_ctx *sc, *system;
    assert_int_equal(hf_cert_ca("a.test", 30, &cert, &key, &err), 0);
    assert_int_equal(hf_tls_server_ctx(cert, key, 0, &sc, &err), 0);
    refuse(client_ctx, "a.test", sc, "self-signed");
    hf_tls_ctx_unref(sc);
    assert_int_equal(hf_tls_client_ctx(NULL, true, 0, &system, &err), 0);
    refuse(system, "a.test", server_ctx, "unable to get local issuer");
    hf_tls_ctx_unref(system);
    free(cert);
    free(key);
}

static void test_no_verify(void **state)
{
    struct hf_err err;
    struct hf_tls_ctx *cc;
    struct end c, s;
    assert_int_equal(hf_tls_client_ctx(NULL, false, HF_ALPN_HTTP1, &cc, &err), 0);
    pair_init(&c, &s, cc, "any.where", server_ctx);
    talk(&c, &s, PAIR_MAX);
    assert_true(hf_tls_ready(c.t));
    assert_int_equal(hf_tls_alpn(c.t), HF_ALPN_HTTP1);
    end_done(&c);
    end_done(&s);
    hf_tls_ctx_unref(cc);
}

static void test_alpn(void **state)
{
    struct hf_err err;
    struct hf_tls_ctx *sc;
    struct end c, s;
    /* A server that knows HTTP/1.1 only. */
    assert_int_equal(hf_tls_server_ctx(leaf_cert, leaf_key, HF_ALPN_HTTP1, &sc, &err), 0);
    pair_init(&c, &s, client_ctx, "a.test", sc);
    talk(&c, &s, 100);
    assert_int_equal(hf_tls_alpn(c.t), HF_ALPN_HTTP1);
    end_done(&c);
    end_done(&s);
    /* A session that wants h2 only meets it: no protocol in common. */
    pair_init(&c, &s, client_ctx, "a.test", sc);
    end_done(&c);
    c = (struct end){hf_tls_connect(client_ctx, "a.test", HF_ALPN_H2), HF_BUF_INIT(PAIR_MAX),
                     HF_BUF_INIT(PAIR_MAX), 0};
    assert_int_equal(hf_tls_start(c.t, &c.out), 0);
    talk(&c, &s, 100);
    assert_int_equal(s.r, -EPROTO);
    assert_non_null(strstr(hf_tls_error(c.t), "no application protocol"));
    end_done(&c);
    end_done(&s);
    hf_tls_ctx_unref(sc);
}

static void test_close(void **state)
{
    struct end c, s;
    pair_init(&c, &s, client_ctx, "a.test", server_ctx);
    talk(&c, &s, PAIR_MAX);
    assert_int_equal(hf_tls_write(c.t, "last", 4, &c.out), 0);
    assert_int_equal(hf_tls_close(c.t, &c.out), 0);
    assert_false(hf_tls_closed(s.t)); /* an end of the stream here would be a truncation */
    talk(&c, &s, 1);
    assert_string_equal(s.plain.p, "last");
    assert_int_equal(s.r, 1);
    assert_true(hf_tls_closed(s.t));
    assert_int_equal(hf_tls_write(s.t, "answer", 6, &s.out), 0); /* the other half is still open */
    talk(&c, &s, 1);
    end_done(&c);
    end_done(&s);
}

static void test_broken(void **state)
{
    struct end c, s;
    pair_init(&c, &s, client_ctx, "a.test", server_ctx);
    talk(&c, &s, PAIR_MAX);
    assert_int_equal(hf_tls_write(c.t, "secret", 6, &c.out), 0);
    c.out.p[c.out.n - 1] ^= 1; /* on the way */
    talk(&c, &s, PAIR_MAX);
    assert_int_equal(s.r, -EPROTO);
    assert_int_equal(s.plain.n, 0);
    assert_true(c.r < 0); /* the alert came */
    end_done(&c);
    end_done(&s);

    s = (struct end){hf_tls_accept(server_ctx), HF_BUF_INIT(PAIR_MAX), HF_BUF_INIT(PAIR_MAX), 0};
    const char *http = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_int_equal(hf_tls_feed(s.t, http, strlen(http), &s.plain, &s.out), -EPROTO);
    assert_true(strlen(hf_tls_error(s.t)) > 0);
    end_done(&s);
}

/* An old client is told, by an alert, that its version is not spoken. */
static void test_old_version(void **state)
{
    SSL_CTX *x = SSL_CTX_new(TLS_client_method());
    assert_int_equal(SSL_CTX_set_max_proto_version(x, TLS1_1_VERSION), 1);
    (void)SSL_CTX_set_min_proto_version(x, 0);
    SSL_CTX_set_security_level(x, 0);
    (void)SSL_CTX_set_cipher_list(x, "ALL:@SECLEVEL=0");
    SSL *ssl = SSL_new(x);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl, in, out);
    SSL_set_connect_state(ssl);
    (void)SSL_do_handshake(ssl);
    char *p;
    long n = BIO_get_mem_data(out, &p);
    assert_true(n > 0);
    struct end s = {hf_tls_accept(server_ctx), HF_BUF_INIT(PAIR_MAX), HF_BUF_INIT(PAIR_MAX), 0};
    assert_int_equal(hf_tls_feed(s.t, p, (size_t)n, &s.plain, &s.out), -EPROTO);
    assert_non_null(strstr(hf_tls_error(s.t), "unsupported protocol"));
    assert_int_equal(s.out.p[0], 21); /* alert */
    end_done(&s);
    SSL_free(ssl);
    SSL_CTX_free(x);
}

/* A client that comes back with its ticket is known again, without a certificate being sent. */
static size_t visit(SSL_CTX *x, SSL_SESSION **session, bool *ret_reused)
{
    SSL *ssl = SSL_new(x);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    struct end s = {hf_tls_accept(server_ctx), HF_BUF_INIT(PAIR_MAX), HF_BUF_INIT(PAIR_MAX), 0};
    size_t sent = 0;
    char *p, byte;
    SSL_set_bio(ssl, in, out);
    SSL_set_connect_state(ssl);
    if (*session)
        (void)SSL_set_session(ssl, *session);
    for (int i = 0; i < 6; i++) {
        (void)SSL_do_handshake(ssl);
        (void)SSL_read(ssl, &byte, 1); /* takes the ticket */
        long n = BIO_get_mem_data(out, &p);
        assert_int_equal(hf_tls_feed(s.t, p, (size_t)n, &s.plain, &s.out), 0);
        (void)BIO_reset(out);
        if (s.out.n)
            assert_int_equal(BIO_write(in, s.out.p, (int)s.out.n), (int)s.out.n);
        sent += s.out.n;
        hf_buf_clear(&s.out);
    }
    assert_true(hf_tls_ready(s.t));
    *ret_reused = SSL_session_reused(ssl);
    SSL_SESSION_free(*session);
    *session = SSL_get1_session(ssl);
    SSL_set_shutdown(ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN); /* else the session counts as spoilt */
    SSL_free(ssl);
    end_done(&s);
    return sent;
}

static void test_tickets(void **state)
{
    for (int version = TLS1_2_VERSION; version <= TLS1_3_VERSION; version++) {
        SSL_CTX *x = SSL_CTX_new(TLS_client_method());
        SSL_SESSION *session = NULL;
        bool reused;
        assert_int_equal(SSL_CTX_set_max_proto_version(x, version), 1);
        size_t whole = visit(x, &session, &reused);
        assert_false(reused);
        size_t again = visit(x, &session, &reused);
        assert_true(reused);
        assert_true(again < whole);
        SSL_SESSION_free(session);
        SSL_CTX_free(x);
    }
}

static void test_bad_pem(void **state)
{
    struct hf_err err;
    struct hf_tls_ctx *x = NULL;
    char *cert, *key;
    assert_int_equal(hf_tls_server_ctx("junk", leaf_key, 0, &x, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "certificate"));
    assert_int_equal(hf_tls_server_ctx(leaf_cert, "junk", 0, &x, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "private key"));
    assert_int_equal(hf_tls_server_ctx(leaf_cert, ca_key, 0, &x, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "does not belong"));
    assert_int_equal(hf_tls_client_ctx("/nonexistent.pem", true, 0, &x, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "/nonexistent.pem"));
    assert_null(x);
    /* A chain is kept; junk in it is not overlooked. */
    char *chain = hf_xasprintf("%s%s", leaf_cert, ca_cert);
    assert_int_equal(hf_tls_server_ctx(chain, leaf_key, 0, &x, &err), 0);
    hf_tls_ctx_unref(x);
    free(chain);
    chain = hf_xasprintf("%s-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", leaf_cert);
    assert_int_equal(hf_tls_server_ctx(chain, leaf_key, 0, &x, &err), -EINVAL);
    free(chain);
    const char *bad[] = {"a b"}, *nul[] = {""}, *dots[] = {"a..b"};
    assert_int_equal(hf_cert_leaf(ca_cert, ca_key, bad, 1, 1, &cert, &key, &err), -EINVAL);
    assert_int_equal(hf_cert_leaf(ca_cert, ca_key, nul, 1, 1, &cert, &key, &err), -EINVAL);
    assert_int_equal(hf_cert_leaf(ca_cert, ca_key, dots, 1, 1, &cert, &key, &err), -EINVAL);
    assert_int_equal(hf_cert_leaf(ca_cert, ca_key, names, 0, 1, &cert, &key, &err), -EINVAL);
    assert_int_equal(hf_cert_leaf(ca_cert, ca_key, names, 1, 0, &cert, &key, &err), -EINVAL);
    assert_int_equal(hf_cert_leaf(leaf_cert, leaf_key, names, 1, 1, &cert, &key, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "CA"));
}

static void test_minter(void **state)
{
    struct hf_err err;
    struct hf_minter *m;
    struct hf_tls_ctx *x;
    struct end c, s;
    assert_int_equal(hf_minter_new(ca_cert, ca_key, &m, &err), 0);
    assert_int_equal(hf_minter_ctx(m, "api.example.test", HF_ALPN_HTTP1, &x, &err), 0);
    pair_init(&c, &s, client_ctx, "api.example.test", x);
    talk(&c, &s, PAIR_MAX);
    assert_true(hf_tls_ready(c.t));
    end_done(&c);
    end_done(&s);
    refuse(client_ctx, "other.example.test", x, "ostname mismatch");
    hf_tls_ctx_unref(x);
    assert_int_equal(hf_minter_ctx(m, "bad name", HF_ALPN_HTTP1, &x, &err), -EINVAL);
    hf_minter_free(m);
    assert_int_equal(hf_minter_new(leaf_cert, leaf_key, &m, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake),   cmocka_unit_test(test_large),  cmocka_unit_test(test_names),
        cmocka_unit_test(test_unknown_ca),  cmocka_unit_test(test_alpn),   cmocka_unit_test(test_no_verify),
        cmocka_unit_test(test_close),       cmocka_unit_test(test_broken), cmocka_unit_test(test_bad_pem),
        cmocka_unit_test(test_old_version), cmocka_unit_test(test_minter), cmocka_unit_test(test_tickets),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
