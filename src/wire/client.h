/* One HTTP connection to an origin, HTTP/1.1 or HTTP/2, over a stream that somebody else connected: the
 * client side for the egress proxy, the ingress proxy's h2c ports and the daemon's outbound calls. Bodies
 * stream both ways with backpressure. Responses are parsed as strictly as requests are (http.h). Loop thread
 * only. */
#pragma once

#include <uv.h>

#include "base/buf.h"
#include "base/err.h"
#include "wire/tls.h"

#define HF_CLIENT_HEAD_MAX 65536u
#define HF_CLIENT_HEADERS_MAX 128u
#define HF_CLIENT_QUEUE_HIGH                                                                      \
    (256u * 1024u)                 /* hf_cx_write returns 1 above it, on_drain comes at a quarter \
                                    */
#define HF_CLIENT_STREAMS_MAX 100u /* open exchanges on one h2 connection (or fewer if the peer says so) */

struct hf_client;
struct hf_cx; /* one exchange */

struct hf_field {
    struct hf_str name, value; /* names lower case */
};

/* What the origin said. Any member may be NULL. fail or end is the last call, exactly once; after it cx is
 * gone. */
struct hf_cx_ops {
    /* status >= 200; fields without connection-level ones (Connection, Keep-Alive, Transfer-Encoding …).
     * length: of the body, -1 unknown. */
    void (*on_head)(struct hf_cx *cx, int status, const struct hf_field *f, size_t n, int64_t length);
    void (*on_interim)(struct hf_cx *cx, int status, const struct hf_field *f, size_t n); /* 1xx but 101 */
    /* 101, or 2xx to CONNECT, on HTTP/1.1: the connection is a raw stream from here, see hf_cx_take. */
    void (*on_upgrade)(struct hf_cx *cx, int status, const struct hf_field *f, size_t n);
    void (*on_data)(struct hf_cx *cx, const char *p, size_t n);
    void (*on_trailers)(struct hf_cx *cx, const struct hf_field *f, size_t n);
    void (*on_drain)(struct hf_cx *cx);
    void (*on_end)(struct hf_cx *cx);
    /* -ECONNRESET, -ETIMEDOUT, -EBADMSG, -ECANCELED, -EPROTO … answered: a head had come. unsent: not one
     * byte of the request was taken by the peer, so it may be tried again elsewhere. */
    void (*on_fail)(struct hf_cx *cx, int r, bool answered, bool unsent);
};

/* Takes stream (uv_tcp_t or uv_pipe_t, malloc'ed) and tls (NULL = plain). A session that is not ready shakes
 * hands here, exchanges may begin meanwhile; whether it agrees on h2 must then be known before. h2: speak
 * HTTP/2.
 * gone(arg) is called when the connection can take no further exchange (closed, GOAWAY); then call
 * hf_client_close once no exchange of yours is open. */
struct hf_client *hf_client_new(uv_loop_t *loop, uv_stream_t *stream, struct hf_tls *tls, bool h2,
                                void (*gone)(void *arg), void *arg) HF_MUST_USE;
void hf_client_close(struct hf_client *c); /* open exchanges fail with -ECANCELED, before it returns */
/* Plaintext that came with the end of a handshake which somebody else made (a server of HTTP/2 speaks first).
 */
void hf_client_feed(struct hf_client *c, const void *p, size_t n);
/* Why the TLS session broke, for people; "" when it did not. Valid inside on_fail. */
const char *hf_client_tls_error(const struct hf_client *c);
struct hf_client *hf_cx_client(const struct hf_cx *cx);
bool hf_client_free_slot(const struct hf_client *c); /* another exchange may begin now */
bool hf_client_h2(const struct hf_client *c);

struct hf_cx_req {
    struct hf_str method, scheme, authority, path; /* path with query; authority becomes Host on HTTP/1.1 */
    const struct hf_field *fields; /* without Host, Content-Length, Transfer-Encoding, Connection */
    size_t n_fields;
    int64_t length;      /* of the body; 0 none, -1 unknown (chunked on HTTP/1.1) */
    const char *upgrade; /* "websocket" …: HTTP/1.1 only; NULL = none */
};
/* NULL when no slot is free or the connection is going. */
struct hf_cx *hf_cx_new(struct hf_client *c, const struct hf_cx_req *req, const struct hf_cx_ops *ops,
                        void *data) HF_MUST_USE;
void *hf_cx_data(const struct hf_cx *cx);
/* Request body; 0, or 1: wait for on_drain. */
int hf_cx_write(struct hf_cx *cx, const void *p, size_t n);
void hf_cx_end(struct hf_cx *cx); /* the request body is complete */
void hf_cx_trailers(struct hf_cx *cx, const struct hf_field *f,
                    size_t n); /* and complete; h2 and chunked only */
void hf_cx_pause(struct hf_cx *cx);
void hf_cx_resume(struct hf_cx *cx);
/* Ends it now (RST_STREAM, or closes the HTTP/1.1 connection); no further call comes. */
void hf_cx_cancel(struct hf_cx *cx);
/* Inside on_upgrade: the raw stream, its TLS session (NULL = plain) and bytes already read past the head. cx
 * and the client are gone after it. */
uv_stream_t *hf_cx_take(struct hf_cx *cx, struct hf_tls **ret_tls, struct hf_buf *ret_leftover) HF_MUST_USE;
