/* TLS 1.2 and 1.3 (OpenSSL 3) as a filter without I/O: ciphertext goes in and comes out of buffers, so that
 * the same object serves the HTTP server, the proxies' tunnels and tests. A context is shared and
 * reference-counted; a session belongs to one connection. Loop thread only. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#define HF_TLS_HANDSHAKE_MS 10000u      /* a handshake must be over within */
#define HF_TLS_SESSION_LIFETIME_S 7200u /* of tickets */

enum { HF_ALPN_HTTP1 = 1, HF_ALPN_H2 = 2 }; /* offered or accepted; h2 is preferred */

struct hf_tls_ctx;
struct hf_tls;

/* PEM texts; the chain's leaf comes first. -EINVAL with the reason (bad PEM, key does not fit, expired). */
int hf_tls_server_ctx(const char *cert_pem, const char *key_pem, unsigned alpn, struct hf_tls_ctx **ret,
                      struct hf_err *err) HF_MUST_USE;
/* Verifies the peer's certificate and name. ca_file: PEM bundle instead of the system's store (NULL =
 * system's). verify false: for ports inside a sandbox only (httpsPorts). */
int hf_tls_client_ctx(const char *ca_file, bool verify, unsigned alpn, struct hf_tls_ctx **ret,
                      struct hf_err *err) HF_MUST_USE;
struct hf_tls_ctx *hf_tls_ctx_ref(struct hf_tls_ctx *c);
void hf_tls_ctx_unref(struct hf_tls_ctx *c); /* NULL is fine */

struct hf_tls *hf_tls_accept(struct hf_tls_ctx *c) HF_MUST_USE;
/* name: SNI and the name that the certificate must hold; an IP literal is checked as such and sent as no SNI.
 * alpn: 0 = as the context. */
struct hf_tls *hf_tls_connect(struct hf_tls_ctx *c, const char *name, unsigned alpn) HF_MUST_USE;
void hf_tls_free(struct hf_tls *t); /* NULL is fine */

/* Takes n bytes from the peer; plaintext is appended to plain, bytes to send to the peer to out.
 * 0; 1: the peer closed cleanly (close_notify); -EPROTO and others: broken, hf_tls_error says why, out may
 * hold an alert to send. */
int hf_tls_feed(struct hf_tls *t, const void *p, size_t n, struct hf_buf *plain,
                struct hf_buf *out) HF_MUST_USE;
/* Begins a client's handshake: the first flight. */
int hf_tls_start(struct hf_tls *t, struct hf_buf *out) HF_MUST_USE;
/* Encrypts; -EAGAIN before the handshake is done. */
int hf_tls_write(struct hf_tls *t, const void *p, size_t n, struct hf_buf *out) HF_MUST_USE;
int hf_tls_close(struct hf_tls *t, struct hf_buf *out); /* close_notify */
bool hf_tls_ready(const struct hf_tls *t);              /* handshake done */
bool hf_tls_closed(const struct hf_tls *t);       /* the peer said close_notify: its end is no truncation */
unsigned hf_tls_alpn(const struct hf_tls *t);     /* HF_ALPN_*, 0 = none was agreed */
const char *hf_tls_error(const struct hf_tls *t); /* for people; "" when fine */
const char *hf_tls_sni(const struct hf_tls *t);   /* server side; "" when none */

/* ---- ClientHello, before any TLS state exists (push parser, no allocation, fuzzed) ---- */
struct hf_hello {
    char sni[256]; /* lower case as sent in ASCII; "" = none */
    bool sni_bad;  /* more than one name, NUL or a character that no host name has */
    bool ech;      /* encrypted_client_hello or the older ESNI is present */
    bool alpn_h2, alpn_http1, alpn_other, tls13;
};
/* 1 complete, 0 more bytes needed, -EPROTO not TLS, -EMSGSIZE more than HF_HELLO_MAX. Handles a hello split
 * over records. */
#define HF_HELLO_MAX 16384u
int hf_hello_parse(const void *p, size_t n, struct hf_hello *ret) HF_MUST_USE;

/* ---- certificates ---- */
/* A new key (P-256) and a self-signed CA certificate, PEM. */
int hf_cert_ca(const char *common_name, unsigned days, char **ret_cert, char **ret_key,
               struct hf_err *err) HF_MUST_USE;
/* A leaf for these names (DNS names, "*.x" and IP texts) signed by that CA; with a new P-256 key. */
int hf_cert_leaf(const char *ca_cert, const char *ca_key, const char *const *names, size_t n, unsigned days,
                 char **ret_cert, char **ret_key, struct hf_err *err) HF_MUST_USE;
/* Parsed CA for minting many leaves quickly: one key shared by all leaves of this minter. */
struct hf_minter;
int hf_minter_new(const char *ca_cert, const char *ca_key, struct hf_minter **ret,
                  struct hf_err *err) HF_MUST_USE;
int hf_minter_ctx(struct hf_minter *m, const char *name, unsigned alpn, struct hf_tls_ctx **ret,
                  struct hf_err *err) HF_MUST_USE;
void hf_minter_free(struct hf_minter *m);
