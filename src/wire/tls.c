/* TLS sessions. OpenSSL reads and writes through a BIO of ours that looks at the caller's buffers directly:
 * nothing is copied on the way, and an idle session owns no buffer. */
#include <arpa/inet.h>

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "wire/tls_int.h"

#define RECORD_MAX 16384u   /* plaintext bytes of one record */
#define RECORD_OVERHEAD 64u /* more than any cipher of ours adds to one */
#define READ_RESERVE_MIN 512u

struct hf_tls {
    struct hf_tls_ctx *ctx;
    SSL *ssl;
    const unsigned char *in; /* valid during hf_tls_feed */
    size_t in_n;
    struct hf_buf *out; /* valid during a call */
    char *error;
    int failed;
    bool ready, closed, out_full;
    uint8_t alpn;
};

/* ---- the BIO ---- */

static int bio_read(BIO *b, char *p, size_t n, size_t *ret_n)
{
    struct hf_tls *t = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    if (!t->in_n) {
        BIO_set_retry_read(b);
        return 0;
    }
    *ret_n = HF_MIN(n, t->in_n);
    memcpy(p, t->in, *ret_n);
    t->in += *ret_n;
    t->in_n -= *ret_n;
    return 1;
}

static int bio_write(BIO *b, const char *p, size_t n, size_t *ret_n)
{
    struct hf_tls *t = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    if (!t->out || hf_buf_add(t->out, p, n) < 0) {
        t->out_full = true;
        return 0;
    }
    *ret_n = n;
    return 1;
}

static long bio_ctrl(BIO *b, int cmd, long n, void *p)
{
    return cmd == BIO_CTRL_FLUSH;
}

static int bio_create(BIO *b)
{
    BIO_set_init(b, 1);
    return 1;
}

static BIO_METHOD *bio_method(void)
{
    static BIO_METHOD *m; /* one for the process */
    if (m)
        return m;
    m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "holdfast");
    if (!m)
        abort();
    (void)BIO_meth_set_read_ex(m, bio_read);
    (void)BIO_meth_set_write_ex(m, bio_write);
    (void)BIO_meth_set_ctrl(m, bio_ctrl);
    (void)BIO_meth_set_create(m, bio_create);
    return m;
}

/* ---- life ---- */

static struct hf_tls *session_new(struct hf_tls_ctx *c)
{
    struct hf_tls *t = hf_new(struct hf_tls);
    BIO *b = BIO_new(bio_method());
    t->ssl = SSL_new(c->ssl);
    if (!b || !t->ssl)
        abort(); /* memory is out */
    BIO_set_data(b, t);
    SSL_set_bio(t->ssl, b, b);
    t->ctx = hf_tls_ctx_ref(c);
    return t;
}

struct hf_tls *hf_tls_accept(struct hf_tls_ctx *c)
{
    struct hf_tls *t = session_new(c);
    SSL_set_accept_state(t->ssl);
    return t;
}

static void offer(SSL *ssl, unsigned alpn)
{
    static const unsigned char both[] = "\x02h2\x08http/1.1";
    const unsigned char *p = alpn & HF_ALPN_H2 ? both : both + 3;
    unsigned n = (alpn & HF_ALPN_H2 ? 3u : 0u) + (alpn & HF_ALPN_HTTP1 ? 9u : 0u);
    (void)SSL_set_alpn_protos(ssl, p, n);
}

/* Without a name to look for nothing could be verified: such a session fails at its start. */
static bool expect_name(struct hf_tls *t, const char *given)
{
    /* A name with the root's dot is the same name, and stands without it in SNI and certificates. */
    size_t n = strlen(given);
    hf_auto_free char *name = hf_xstrndup(given, n - (n > 1 && given[n - 1] == '.'));
    unsigned char addr[16];
    bool ip = inet_pton(AF_INET, name, addr) == 1 || inet_pton(AF_INET6, name, addr) == 1;
    if (!ip && *name && SSL_set_tlsext_host_name(t->ssl, name) != 1)
        return false;
    if (!t->ctx->verify)
        return true;
    SSL_set_hostflags(t->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    if (ip)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(t->ssl), name) == 1;
    return *name && SSL_set1_host(t->ssl, name) == 1;
}

struct hf_tls *hf_tls_connect(struct hf_tls_ctx *c, const char *name, unsigned alpn)
{
    struct hf_tls *t = session_new(c);
    SSL_set_connect_state(t->ssl);
    alpn = alpn ? alpn : c->alpn;
    if (alpn)
        offer(t->ssl, alpn);
    if (!expect_name(t, name)) {
        t->failed = -EINVAL;
        t->error = hf_xstrdup("the server's name can't be verified: it is not a host name");
        ERR_clear_error();
    }
    return t;
}

void hf_tls_free(struct hf_tls *t)
{
    if (!t)
        return;
    SSL_free(t->ssl);
    hf_tls_ctx_unref(t->ctx);
    free(t->error);
    free(t);
}

/* ---- bytes ---- */

static int fail(struct hf_tls *t)
{
    long v = SSL_get_verify_result(t->ssl);
    t->failed = t->out_full ? -EMSGSIZE : -EPROTO;
    free(t->error);
    if (t->out_full)
        t->error = hf_xstrdup("too much is waiting to be sent");
    else if (t->ctx->verify && v != X509_V_OK)
        t->error =
            hf_xasprintf("the server's certificate is not accepted: %s", X509_verify_cert_error_string(v));
    else
        t->error = hf_xasprintf("TLS: %s", hf_tls_reason());
    ERR_clear_error();
    return t->failed;
}

static void became_ready(struct hf_tls *t)
{
    const unsigned char *p;
    unsigned n;
    SSL_get0_alpn_selected(t->ssl, &p, &n);
    t->ready = true;
    t->alpn = n == 2 && memcmp(p, "h2", 2) == 0         ? HF_ALPN_H2
              : n == 8 && memcmp(p, "http/1.1", 8) == 0 ? HF_ALPN_HTTP1
                                                        : 0;
}

/* 1 done, 0 more is needed. */
static int handshake(struct hf_tls *t)
{
    int r = SSL_do_handshake(t->ssl);
    if (r == 1) {
        became_ready(t);
        return 1;
    }
    return SSL_get_error(t->ssl, r) == SSL_ERROR_WANT_READ ? 0 : fail(t);
}

static int read_plain(struct hf_tls *t, struct hf_buf *plain)
{
    for (;;) {
        size_t room = plain->max - plain->n;
        size_t want = HF_MIN(HF_MAX((size_t)t->in_n, (size_t)READ_RESERVE_MIN), (size_t)RECORD_MAX);
        size_t got;
        want = HF_MIN(want, room);
        if (!want || hf_buf_reserve(plain, want) < 0) {
            t->error = hf_xstrdup("too much was received at once");
            return t->failed = -EMSGSIZE;
        }
        int r = SSL_read_ex(t->ssl, plain->p + plain->n, want, &got);
        if (r == 1) {
            plain->n += got;
            plain->p[plain->n] = '\0';
            continue;
        }
        switch (SSL_get_error(t->ssl, r)) {
        case SSL_ERROR_WANT_READ:
            return 0;
        case SSL_ERROR_ZERO_RETURN:
            t->closed = true;
            return 1;
        default:
            return fail(t);
        }
    }
}

int hf_tls_feed(struct hf_tls *t, const void *p, size_t n, struct hf_buf *plain, struct hf_buf *out)
{
    if (t->failed)
        return t->failed;
    if (t->closed)
        return 1;
    ERR_clear_error();
    t->in = p;
    t->in_n = n;
    t->out = out;
    int r = t->ready ? 1 : handshake(t);
    if (r == 1)
        r = t->in_n || SSL_has_pending(t->ssl) ? read_plain(t, plain) : 0;
    t->in = NULL;
    t->in_n = 0;
    t->out = NULL;
    return r;
}

int hf_tls_start(struct hf_tls *t, struct hf_buf *out)
{
    if (t->failed)
        return t->failed;
    ERR_clear_error();
    t->out = out;
    int r = handshake(t);
    t->out = NULL;
    return r < 0 ? r : 0;
}

int hf_tls_write(struct hf_tls *t, const void *p, size_t n, struct hf_buf *out)
{
    size_t done;
    if (t->failed)
        return t->failed;
    if (!t->ready)
        return -EAGAIN;
    if (!n)
        return 0;
    if (hf_buf_reserve(out, n + (n / RECORD_MAX + 1) * RECORD_OVERHEAD) < 0)
        return -EMSGSIZE;
    ERR_clear_error();
    t->out = out;
    int r = SSL_write_ex(t->ssl, p, n, &done) == 1 ? 0 : fail(t);
    t->out = NULL;
    return r;
}

int hf_tls_close(struct hf_tls *t, struct hf_buf *out)
{
    if (t->failed || !t->ready)
        return 0;
    ERR_clear_error();
    t->out = out;
    int r = SSL_shutdown(t->ssl) < 0 ? fail(t) : 0;
    t->out = NULL;
    return r;
}

bool hf_tls_ready(const struct hf_tls *t)
{
    return t->ready;
}

bool hf_tls_closed(const struct hf_tls *t)
{
    return t->closed;
}

unsigned hf_tls_alpn(const struct hf_tls *t)
{
    return t->alpn;
}

const char *hf_tls_error(const struct hf_tls *t)
{
    return t->error ? t->error : "";
}

const char *hf_tls_sni(const struct hf_tls *t)
{
    const char *s = SSL_get_servername(t->ssl, TLSEXT_NAMETYPE_host_name);
    return s ? s : "";
}
