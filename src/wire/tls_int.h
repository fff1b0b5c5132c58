/* Internals shared by tls.c (sessions), tls_ctx.c (contexts) and cert.c. Only these may include it. */
#pragma once

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "wire/tls.h"

struct hf_tls_ctx {
    SSL_CTX *ssl;
    unsigned refs, alpn;
    bool server, verify;
};

/* The last error of OpenSSL's queue in words; the queue is empty afterwards. */
const char *hf_tls_reason(void);
/* A context of a server with this certificate (a reference is taken of each). */
int hf_tls_ctx_from(X509 *cert, EVP_PKEY *key, unsigned alpn, struct hf_tls_ctx **ret,
                    struct hf_err *err) HF_MUST_USE;
/* PEM text to objects; NULL with err filled. Encrypted keys are refused, never asked for. */
X509 *hf_pem_cert(const char *pem, struct hf_err *err);
EVP_PKEY *hf_pem_key(const char *pem, struct hf_err *err);
int hf_pem_no_password(char *buf, int size, int writing, void *arg);

static inline void hf_x509_freep(X509 **x)
{
    X509_free(*x);
}
static inline void hf_pkey_freep(EVP_PKEY **k)
{
    EVP_PKEY_free(*k);
}
static inline void hf_bio_freep(BIO **b)
{
    (void)BIO_free(*b);
}
