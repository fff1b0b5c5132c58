/* TLS contexts: what is common to many sessions. */
#include <openssl/err.h>
#include <openssl/pem.h>

#include "wire/tls_int.h"

/* TLS 1.2 with forward secrecy and AEAD only; TLS 1.3 has nothing else. */
#define CIPHERS "ECDHE+AESGCM:ECDHE+CHACHA20"
#define GROUPS "X25519:P-256"

const char *hf_tls_reason(void)
{
    unsigned long e = ERR_peek_last_error();
    const char *text = e ? ERR_reason_error_string(e) : NULL;
    ERR_clear_error();
    return text ? text : "unknown error";
}

int hf_pem_no_password(char *buf, int size, int writing, void *arg)
{
    return -1;
}

X509 *hf_pem_cert(const char *pem, struct hf_err *err)
{
    hf_cleanup(hf_bio_freep) BIO *b = BIO_new_mem_buf(pem, -1);
    X509 *x = b ? PEM_read_bio_X509(b, NULL, hf_pem_no_password, NULL) : NULL;
    if (!x)
        (void)hf_err_set(err, -EINVAL, "the certificate can't be read as PEM: %s", hf_tls_reason());
    return x;
}

EVP_PKEY *hf_pem_key(const char *pem, struct hf_err *err)
{
    hf_cleanup(hf_bio_freep) BIO *b = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *k = b ? PEM_read_bio_PrivateKey(b, NULL, hf_pem_no_password, NULL) : NULL;
    if (!k)
        (void)hf_err_set(err, -EINVAL,
                         "the private key can't be read as PEM (a key with a password is not accepted): %s",
                         hf_tls_reason());
    return k;
}

/* The best protocol that both sides know. A client that offers only others is refused (RFC 7301). */
static int select_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_n, const unsigned char *in,
                       unsigned in_n, void *arg)
{
    const struct hf_tls_ctx *c = arg;
    static const struct {
        unsigned bit;
        struct hf_str name;
    } known[] = {{HF_ALPN_H2, {"h2", 2}}, {HF_ALPN_HTTP1, {"http/1.1", 8}}};
    for (size_t k = 0; k < HF_ARRAY_LEN(known); k++) {
        for (unsigned i = 0; (c->alpn & known[k].bit) && i < in_n; i += 1u + in[i]) {
            if (in[i] != known[k].name.n || memcmp(in + i + 1, known[k].name.p, in[i]) != 0)
                continue;
            *out = in + i + 1;
            *out_n = in[i];
            return SSL_TLSEXT_ERR_OK;
        }
    }
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

static struct hf_tls_ctx *ctx_new(bool server, unsigned alpn, struct hf_err *err)
{
    SSL_CTX *ssl = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    if (!ssl || SSL_CTX_set_min_proto_version(ssl, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_cipher_list(ssl, CIPHERS) != 1 || SSL_CTX_set1_groups_list(ssl, GROUPS) != 1) {
        SSL_CTX_free(ssl);
        (void)hf_err_set(err, -EIO, "can't set up TLS: %s", hf_tls_reason());
        return NULL;
    }
    SSL_CTX_set_options(ssl, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
    /* An idle session keeps no record buffers. */
    SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    /* The state is in the ticket, at the client. */
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_timeout(ssl, HF_TLS_SESSION_LIFETIME_S);
    struct hf_tls_ctx *c = hf_new(struct hf_tls_ctx);
    *c = (struct hf_tls_ctx){ssl, 1, alpn, server, false};
    if (!server)
        return c;
    (void)SSL_CTX_set_num_tickets(ssl, 1);
    (void)SSL_CTX_set_session_id_context(ssl, (const unsigned char *)"holdfast", 8);
    if (alpn)
        SSL_CTX_set_alpn_select_cb(ssl, select_alpn, c);
    return c;
}

int hf_tls_ctx_from(X509 *cert, EVP_PKEY *key, unsigned alpn, struct hf_tls_ctx **ret, struct hf_err *err)
{
    if (X509_check_private_key(cert, key) != 1) {
        ERR_clear_error();
        return hf_err_set(err, -EINVAL, "the private key does not belong to the certificate");
    }
    if (X509_cmp_current_time(X509_get0_notAfter(cert)) <= 0)
        return hf_err_set(err, -EINVAL, "the certificate has expired");
    struct hf_tls_ctx *c = ctx_new(true, alpn, err);
    if (!c)
        return -EIO;
    if (SSL_CTX_use_certificate(c->ssl, cert) != 1 || SSL_CTX_use_PrivateKey(c->ssl, key) != 1) {
        hf_tls_ctx_unref(c);
        return hf_err_set(err, -EINVAL, "the certificate can't be used: %s", hf_tls_reason());
    }
    *ret = c;
    return 0;
}

/* What follows the leaf. */
static int add_chain(SSL_CTX *ssl, const char *pem, struct hf_err *err)
{
    hf_cleanup(hf_bio_freep) BIO *b = BIO_new_mem_buf(pem, -1);
    X509_free(PEM_read_bio_X509(b, NULL, hf_pem_no_password, NULL)); /* the leaf itself */
    for (;;) {
        X509 *x = PEM_read_bio_X509(b, NULL, hf_pem_no_password, NULL);
        if (!x)
            break;
        if (SSL_CTX_add0_chain_cert(ssl, x) != 1) {
            X509_free(x);
            return hf_err_set(err, -EINVAL, "the certificate's chain can't be used: %s", hf_tls_reason());
        }
    }
    unsigned long e = ERR_peek_last_error();
    bool end = ERR_GET_LIB(e) == ERR_LIB_PEM && ERR_GET_REASON(e) == PEM_R_NO_START_LINE;
    const char *why = hf_tls_reason();
    return end ? 0 : hf_err_set(err, -EINVAL, "the certificate's chain can't be read as PEM: %s", why);
}

int hf_tls_server_ctx(const char *cert_pem, const char *key_pem, unsigned alpn, struct hf_tls_ctx **ret,
                      struct hf_err *err)
{
    hf_cleanup(hf_x509_freep) X509 *cert = hf_pem_cert(cert_pem, err);
    hf_cleanup(hf_pkey_freep) EVP_PKEY *key = cert ? hf_pem_key(key_pem, err) : NULL;
    if (!key)
        return -EINVAL;
    struct hf_tls_ctx *c = NULL;
    int r = hf_tls_ctx_from(cert, key, alpn, &c, err);
    if (r == 0)
        r = add_chain(c->ssl, cert_pem, err);
    if (r < 0) {
        hf_tls_ctx_unref(c);
        return r;
    }
    *ret = c;
    return 0;
}

int hf_tls_client_ctx(const char *ca_file, bool verify, unsigned alpn, struct hf_tls_ctx **ret,
                      struct hf_err *err)
{
    struct hf_tls_ctx *c = ctx_new(false, alpn, err);
    if (!c)
        return -EIO;
    int ok = 1;
    c->verify = verify;
    if (verify) {
        SSL_CTX_set_verify(c->ssl, SSL_VERIFY_PEER, NULL);
        ok = ca_file ? SSL_CTX_load_verify_file(c->ssl, ca_file) : SSL_CTX_set_default_verify_paths(c->ssl);
    }
    if (ok != 1) {
        const char *why = hf_tls_reason();
        hf_tls_ctx_unref(c);
        return hf_err_set(err, -EINVAL, "can't read the certificates of %s: %s",
                          ca_file ? ca_file : "the system's trust store", why);
    }
    *ret = c;
    return 0;
}

struct hf_tls_ctx *hf_tls_ctx_ref(struct hf_tls_ctx *c)
{
    c->refs++;
    return c;
}

void hf_tls_ctx_unref(struct hf_tls_ctx *c)
{
    if (!c || --c->refs)
        return;
    SSL_CTX_free(c->ssl);
    free(c);
}
