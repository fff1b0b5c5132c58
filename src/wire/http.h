/* HTTP/1.1 and HTTP/2 server on libuv, llhttp and nghttp2: the one server of the daemon and of envd.
 *
 * The process must ignore SIGPIPE (libuv writes with write(2)) and reset it in its children.
 *
 * Everything runs on the loop's thread. A request is an exchange: handler.on_request is called once its head
 * is complete and must arrange exactly one response (now or later). Bodies stream both ways with
 * backpressure; nothing is buffered without a limit.
 *
 * Strictness (the server is a tenant-isolation boundary): bare LF, obs-fold, space before a colon, NUL or
 * control bytes in values, Content-Length together with Transfer-Encoding, differing or repeated
 * Content-Length, a Transfer-Encoding other than exactly "chunked", a missing or repeated Host in HTTP/1.1,
 * an absolute-form target whose authority differs from Host: 400 and close. Oversized head: 431. A head that
 * does not arrive in time: 408 and close. Expect: 100-continue is answered when the handler starts to read
 * the body; any other expectation is 417. */
#pragma once

#include <uv.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/list.h"

/* Limits. Each has a test. */
#define HF_HTTP_HEAD_MAX 65536u           /* bytes of request line + headers */
#define HF_HTTP_HEADERS_MAX 128u          /* header lines */
#define HF_HTTP_TARGET_MAX 16384u         /* bytes of the request target */
#define HF_HTTP_HEAD_TIMEOUT_MS 10000u    /* from the first byte of a head to its end (slow-loris) */
#define HF_HTTP_FRESH_TIMEOUT_MS 60000u   /* connection that has not made a request yet */
#define HF_HTTP_IDLE_TIMEOUT_MS 620000u   /* keep-alive connection without a request */
#define HF_HTTP_BODY_IDLE_MS 620000u      /* no byte of an unfinished request body */
#define HF_HTTP_WRITE_HIGH (256u * 1024u) /* queued response bytes above which hf_res_write returns 1 */
#define HF_HTTP_WRITE_LOW (64u * 1024u)   /* on_drain is called at or below this */
#define HF_HTTP_CONNS_MAX                                                         \
    16384u /* connections per server; for one more the longest idle one goes, and \
              where none is idle it is accepted and closed */
#define HF_HTTP_FDS_PER_CONN                                                      \
    3u /* … and no more than RLIMIT_NOFILE leaves: a proxied exchange takes two \
          descriptors, and the process needs some for its own work */

struct hf_http_server;
struct hf_req;
struct hf_tls; /* wire/tls.h */
struct hf_tls_ctx;

struct hf_http_handler {
    /* The head is complete. self is the pointer given at hf_http_server_new. */
    void (*on_request)(void *self, struct hf_req *req);
};

/* How a handler follows one exchange. Any member may be NULL. Set with hf_req_set_ops inside on_request. */
struct hf_req_ops {
    /* A piece of the request body. Not called while paused. */
    void (*on_data)(struct hf_req *req, const char *p, size_t n);
    /* The request body is complete (called for empty bodies too). */
    void (*on_end)(struct hf_req *req);
    /* The response queue fell to HF_HTTP_WRITE_LOW after hf_res_write returned 1. */
    void (*on_drain)(struct hf_req *req);
    /* Last call: the response was flushed, or the client went away (hf_req_aborted). req is freed after it.
     * Always called exactly once when ops were set. */
    void (*on_close)(struct hf_req *req);
};

/* ---- server ---- */

struct hf_http_server *hf_http_server_new(uv_loop_t *loop, const struct hf_http_handler *handler,
                                          void *self) HF_MUST_USE;
/* host is an IPv4/IPv6 literal; port 0 takes a free one (hf_http_server_port tells). May be called again
 * for more listeners. */
int hf_http_server_listen_tcp(struct hf_http_server *s, const char *host, uint16_t port,
                              struct hf_err *err) HF_MUST_USE;
/* Serves a listening socket that somebody else made (TCP or unix). Takes the fd on success. tag comes back
 * from hf_req_listener_tag: envd tells its control socket from its public one by it. */
int hf_http_server_listen_fd(struct hf_http_server *s, int fd, int tag, struct hf_err *err) HF_MUST_USE;
/* As listen_tcp, with TLS and HTTP/2 by ALPN. The context may be replaced at any time
 * (hf_http_server_set_tls): connections that are open keep theirs. */
int hf_http_server_listen_tls(struct hf_http_server *s, const char *host, uint16_t port,
                              struct hf_tls_ctx *ctx, struct hf_err *err) HF_MUST_USE;
void hf_http_server_set_tls(struct hf_http_server *s, struct hf_tls_ctx *ctx);
/* Serves one connection that somebody else accepted. 0, or with nothing taken -EMFILE (no room), -ECANCELED
 * (stopped), -EMSGSIZE (n). No handler runs inside the call; nobody may be reading stream. closed is called
 * at hf_req_hijack too. Takes stream (malloc'ed) and tls (NULL = plain; its handshake may still be going on),
 * begins with the n bytes at p (as the peer sent them). conn_data comes back from hf_req_conn_data;
 * closed(conn_data) is called when the connection is gone. HTTP/2 is spoken when TLS agreed on it or a plain
 * connection begins with its preface. */
int hf_http_server_adopt(struct hf_http_server *s, uv_stream_t *stream, struct hf_tls *tls, const void *p,
                         size_t n, int tag, void *conn_data, void (*closed)(void *conn_data)) HF_MUST_USE;
/* Closes, with a reset, the connections for which match(conn_data) is true. */
void hf_http_server_cut(struct hf_http_server *s, bool (*match)(void *conn_data, void *arg), void *arg);
/* Plain connections may begin with the preface of HTTP/2 as well (listen_tls and adopt imply it). */
void hf_http_server_http2(struct hf_http_server *s);
uint16_t hf_http_server_port(const struct hf_http_server *s);
uint16_t hf_http_server_tls_port(const struct hf_http_server *s); /* of the first TLS listener; 0 = none */
/* Stops accepting; open exchanges go on. */
void hf_http_server_stop(struct hf_http_server *s);
/* Closes everything; on_closed runs once all handles are gone, then the server is freed. */
void hf_http_server_free(struct hf_http_server *s, void (*on_closed)(void *arg), void *arg);
/* Overrides of the timeouts above, for tests; 0 keeps a default. */
void hf_http_server_set_timeouts(struct hf_http_server *s, uint64_t head_ms, uint64_t idle_ms);

/* ---- request; views are valid until on_close ---- */

struct hf_str hf_req_method(const struct hf_req *req);
struct hf_str hf_req_target(const struct hf_req *req); /* raw, as sent */
struct hf_str hf_req_path(const struct hf_req *req);   /* raw, before '?'; percent-encoding kept */
struct hf_str hf_req_query(const struct hf_req *req);  /* raw, after '?'; {NULL,0} when none */
/* First header of that name (ASCII case-insensitive); {NULL,0} when absent. Names given in lower case. */
struct hf_str hf_req_header(const struct hf_req *req, const char *name);
size_t hf_req_header_count(const struct hf_req *req);
void hf_req_header_at(const struct hf_req *req, size_t i, struct hf_str *ret_name, struct hf_str *ret_value);
/* The i-th trailer of an HTTP/2 request, from on_end on; false when there is none (HTTP/1.1 trailers are
 * dropped). */
bool hf_req_trailer_at(const struct hf_req *req, size_t i, struct hf_str *ret_name, struct hf_str *ret_value);
bool hf_req_has_body(const struct hf_req *req);
/* Content-Length, or -1 when chunked. 0 without body. */
int64_t hf_req_content_length(const struct hf_req *req);
bool hf_req_aborted(const struct hf_req *req);
int hf_req_listener_tag(const struct hf_req *req); /* 0 for hf_http_server_listen_tcp */
uv_loop_t *hf_req_loop(const struct hf_req *req);
int hf_req_version(const struct hf_req *req); /* 10, 11 or 20 */
bool hf_req_tls(const struct hf_req *req);
const char *hf_req_sni(const struct hf_req *req); /* "" when none */
void *hf_req_conn_data(const struct hf_req *req); /* of hf_http_server_adopt, else NULL */
/* Peer address as text without port, "unix" for unix sockets. */
const char *hf_req_peer(const struct hf_req *req);

void hf_req_set_ops(struct hf_req *req, const struct hf_req_ops *ops, void *data);
void *hf_req_data(const struct hf_req *req);

/* Stops and restarts the delivery of body bytes (and reading from the socket). */
void hf_req_pause(struct hf_req *req);
void hf_req_resume(struct hf_req *req);

/* Convenience: collects the whole body (at most max bytes, else it answers 413 itself) and calls cb once.
 * Replaces the ops. If the client goes away first, gone(arg) is called instead (may be NULL). The body is
 * NUL-terminated and valid during cb only. */
void hf_req_collect(struct hf_req *req, size_t max,
                    void (*cb)(struct hf_req *req, struct hf_str body, void *arg), void (*gone)(void *arg),
                    void *arg);

/* Percent-decoded value of query parameter `name` ('+' is a space), appended to out.
 * 1 found, 0 absent, -EINVAL for bad encoding or an encoded NUL, -EMSGSIZE. */
int hf_query_get(struct hf_str query, const char *name, struct hf_buf *out) HF_MUST_USE;
/* Percent-decoding; plus_is_space as in queries. -EINVAL for bad encoding or an encoded NUL. */
int hf_percent_decode(struct hf_str s, bool plus_is_space, struct hf_buf *out) HF_MUST_USE;

/* ---- response ---- */

/* Extra header for the response to come. Name and value are copied; a value with CR, LF or NUL is dropped
 * and logged (header injection). Content-Length and Transfer-Encoding are the server's own and ignored here;
 * "Connection: close" ends the connection after this response, other values of Connection are ignored. */
void hf_res_header(struct hf_req *req, const char *name, const char *value);
/* Whole response at once: sets Content-Length and, when ctype is not NULL, Content-Type. status 204/304
 * have no body. p is copied. */
void hf_res_send(struct hf_req *req, int status, const char *ctype, const void *p, size_t n);
/* {"code":status,"message":"…"} as E2B answers errors. */
void hf_res_error(struct hf_req *req, int status, const char *fmt, ...) HF_PRINTF(3, 4);
/* hf_res_error from an error object. */
void hf_res_err(struct hf_req *req, const struct hf_err *err);
/* Streaming response: content_length or -1 for chunked (identity + close for HTTP/1.0). */
void hf_res_begin(struct hf_req *req, int status, int64_t content_length);
/* p is copied. 0, or 1 when more than HF_HTTP_WRITE_HIGH bytes wait: stop until on_drain. After the client
 * went away it is a no-op that returns 0. */
int hf_res_write(struct hf_req *req, const void *p, size_t n);
/* As above but takes ownership of malloc'ed p. */
int hf_res_write_take(struct hf_req *req, void *p, size_t n);
size_t hf_res_queued(const struct hf_req *req);
/* Calls on_drain at HF_HTTP_WRITE_LOW as if hf_res_write had returned 1: for handlers with a limit of their
 * own. Only while something is queued. */
void hf_res_want_drain(struct hf_req *req);
/* A duplicate of the connection's socket, for a worker that sends a part of the body itself (sendfile(2)).
 * Only after hf_res_begin with a Content-Length; non-blocking; the caller closes it, and until the bytes are
 * told with hf_res_sent nothing else may be written. -EAGAIN while output is queued, -EOPNOTSUPP where it
 * can't be. */
int hf_res_dup_fd(struct hf_req *req) HF_MUST_USE;
/* n bytes of the body were sent through that descriptor. */
void hf_res_sent(struct hf_req *req, uint64_t n);
bool hf_res_started(const struct hf_req *req);
void hf_res_end(struct hf_req *req);
/* As hf_res_end, with trailers (HTTP/2, or chunked HTTP/1.1; else dropped). Pairs of name and value. */
void hf_res_end_trailers(struct hf_req *req, const char *const *pairs, size_t n_pairs);
/* Cuts the connection with a reset (RST; RST_STREAM on HTTP/2), in the middle of whatever it was doing. */
void hf_res_abort(struct hf_req *req);

/* Turns the connection into a raw tunnel: the stream is handed over with the bytes that were already read
 * past the head (the caller frees them with hf_buf_done). Only once the request body is complete and before
 * a response has begun. on_close of the request is called before this returns. The caller owns the stream
 * (uv_close + free(stream)), and *ret_tls, the session that its bytes go through (NULL = plain; leftover is
 * plaintext). NULL when the client is already gone, or on HTTP/2. */
uv_stream_t *hf_req_hijack(struct hf_req *req, struct hf_tls **ret_tls,
                           struct hf_buf *ret_leftover) HF_MUST_USE;
