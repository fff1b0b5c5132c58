/* Internals of the HTTP/1.1 server. Only src/wire and src/proxy (which works below the hf_req API to save
 * copies and allocations) may include this.
 *
 * Lifetimes. A connection (struct hf_conn) lives from accept until its stream's close callback; nothing frees
 * it earlier, so a pointer to it stays valid through any callback. A request (struct hf_req) is taken from
 * the server's free list at the first byte of a head and goes back when its exchange is over: an idle
 * keep-alive connection holds neither a request nor a buffer. Bytes are read into one buffer per server. */
#pragma once

#include <llhttp.h>

#include "wire/head.h"
#include "wire/http.h"
#include "wire/outq.h"

#define HF_HTTP_READ_SIZE 65536u        /* the server's shared read buffer */
#define HF_HTTP_PIPELINE_MAX 16384u     /* bytes kept of later requests while one is being answered */
#define HF_HTTP_DIRECT_WRITE 16384u     /* body pieces from this size on are not copied if it can be helped */
#define HF_HTTP_FREE_REQS 64u           /* requests kept for reuse per server */
#define HF_HTTP_LINGER_MS 2000u         /* how long input is thrown away after an early response */
#define HF_HTTP_LINGER_BYTES (1u << 20) /* … and how much of it */
#define HF_HTTP_CHUNK_OVERHEAD_MAX \
    16384u                       /* chunk heads, extensions and trailers, beyond 16 bytes a body byte */
#define HF_HTTP_EXTRA_MAX 32768u /* bytes of headers added by hf_res_header */
#define HF_HTTP_SHAKING_SHARE                                                                              \
    4u /* of all connections, unfinished handshakes may hold one in this many before they are the first to \
          go */
#define HF_HTTP_PLAIN_MAX (2 * HF_HTTP_READ_SIZE) /* plaintext of one read */
#define HF_HTTP_H2_UNREAD_MAX (1u << 20)          /* bytes that an HTTP/2 client has not taken */
#define HF_REQ_INLINE 2048u                       /* heads up to this size need no allocation */

enum hf_conn_phase {
    HF_CONN_IDLE,   /* between requests */
    HF_CONN_SHAKE,  /* the TLS handshake goes on */
    HF_CONN_HEAD,   /* a head has begun */
    HF_CONN_BODY,   /* the handler has the request, its body is arriving */
    HF_CONN_WAIT,   /* the body is complete, the response is not */
    HF_CONN_H2,     /* HTTP/2: its streams have the exchanges */
    HF_CONN_LINGER, /* the response is out, whatever still comes is thrown away, then close */
};

struct hf_conn;

/* What a connection can do beyond plain HTTP/1.1: by pointers, so that the in-sandbox daemon links neither
 * OpenSSL nor nghttp2. */
struct hf_conn_more {
    /* TLS (http_tls.c) */
    void (*tls_accept)(struct hf_conn *c, struct hf_tls_ctx *ctx);
    void (*tls_ctx_unref)(struct hf_tls_ctx *ctx);
    /* p: what the socket said */
    void (*tls_input)(struct hf_conn *c, const char *p, size_t n);
    void (*tls_bye)(struct hf_conn *c); /* close_notify, as far as it can be sent at once */
    void (*tls_free)(struct hf_tls *t);
    const char *(*tls_sni)(const struct hf_tls *t);
    /* HTTP/2 (http2.h) */
    void (*h2_start)(struct hf_conn *c);
    void (*h2_input)(struct hf_conn *c, const char *p, size_t n);
    void (*h2_settle)(struct hf_conn *c);
    void (*h2_sweep)(struct hf_conn *c, uint64_t now);
    void (*h2_aborted)(struct hf_conn *c);
    void (*h2_free)(struct hf_conn *c);
    void (*res_head)(struct hf_req *r, int status, const char *ctype, int64_t length, bool body);
    void (*res_interim)(struct hf_req *r, int status);
    void (*res_write)(struct hf_req *r, const void *p, size_t n);
    void (*res_end)(struct hf_req *r, const char *const *pairs, size_t n);
    void (*res_abort)(struct hf_req *r);
    size_t (*res_queued)(const struct hf_req *r);
    size_t (*res_high)(const struct hf_req *r);
    bool (*req_trailer)(const struct hf_req *r, size_t i, struct hf_str *ret_name, struct hf_str *ret_value);
};

struct hf_http_server {
    uv_loop_t *loop;
    const struct hf_http_handler *handler;
    void *self;
    struct hf_list listeners, conns;
    struct hf_list shaking; /* connections whose TLS handshake goes on, the oldest first */
    size_t shaking_n;
    const struct hf_conn_more *more; /* NULL: plain HTTP/1.1 only */
    struct hf_buf plain;             /* what a TLS session yields */
    struct hf_list dirty; /* connections with output to flush, input to go on with or an exchange to end */
    struct hf_req *free_reqs;
    size_t free_n, conn_n, conns_max;
    size_t handle_n; /* uv handles not closed yet */
    uv_prepare_t prepare;
    uv_timer_t sweep;
    bool sweeping, stopping, freeing;
    char *read_buf;
    uint64_t head_ms, idle_ms, shake_ms;
    uint16_t port;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

struct hf_listener {
    struct hf_list node;
    struct hf_http_server *server;
    int tag;
    bool is_tcp;
    struct hf_tls_ctx *tls; /* NULL = plain */
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } u;
};

struct hf_conn {
    struct hf_http_server *server;
    struct hf_list node, dirty;
    uv_stream_t *stream;
    struct hf_req *req;
    struct hf_buf in; /* read but not yet consumed */
    struct hf_outq out;
    char *peer;        /* lazily */
    uint64_t last_ms;  /* of the last progress, or when the present phase began */
    uint64_t head_ms;  /* when the head began */
    size_t swallowed;  /* input thrown away */
    size_t write_left; /* of the write in flight at the last sweep */
    const char *cur;   /* what follows the piece being processed, for hf_req_hijack */
    size_t cur_n;
    struct hf_tls *tls; /* NULL = plain */
    struct hf_h2 *h2;
    size_t h2_streams;
    void *data; /* of hf_http_server_adopt */
    void (*on_gone)(void *data);
    int tag;
    uint8_t phase; /* enum hf_conn_phase */
    bool is_tcp, closing, reading;
    bool orphan;   /* hijacked: free it when depth is 0 */
    bool fresh;    /* it has not made a request yet */
    bool early;    /* in holds what the socket said before it was adopted */
    uint8_t depth; /* > 0 while callbacks of the handler may be running */
};

struct hf_req {
    struct hf_conn *conn;
    const struct hf_req_ops *ops;
    void *data;
    struct hf_h2_stream *stream; /* HTTP/2 */
    struct hf_head head;
    llhttp_t parser;
    char *head_p; /* the head's bytes: inline_head or malloc'ed */
    size_t head_n, head_cap;
    struct hf_buf extra; /* header lines for the response */
    uint64_t body_n;     /* decoded body bytes so far */
    uint64_t wire_n;     /* body bytes as they came */
    int64_t res_left;    /* bytes still owed of a response with Content-Length, else -1 */
    struct hf_req *next_free;
    int status;
    bool paused, held, body_done, end_called, aborted, closed;
    bool keep_alive; /* the connection can go on after this exchange */
    bool expect;     /* 100 Continue is still owed */
    bool res_started, res_chunked, res_nobody, res_ended, want_drain;
    char inline_head[HF_REQ_INLINE];
};

/* ---- http_server.c ---- */
/* A TCP listener that accepts already; NULL with err filled. */
struct hf_listener *hf_server_listen(struct hf_http_server *s, const char *host, uint16_t port,
                                     struct hf_err *err) HF_MUST_USE;
/* A connection for a connected stream, counted; NULL when there is no room for it, and no idle one that
 * could go. */
struct hf_conn *hf_server_open(struct hf_http_server *s, uv_stream_t *stream, int tag,
                               bool is_tcp) HF_MUST_USE;
void hf_server_handle_closed(struct hf_http_server *s);
struct hf_req *hf_server_req_get(struct hf_conn *c);
void hf_server_req_put(struct hf_req *r);

/* ---- http_conn.c ---- */
/* A connection without a socket behind it (stream NULL), for the fuzzer: hf_conn_input feeds it. */
struct hf_conn *hf_conn_new(struct hf_http_server *s, uv_stream_t *stream, int tag, bool is_tcp);
void hf_conn_start(struct hf_conn *c);
void hf_conn_input(struct hf_conn *c, const char *p, size_t n);    /* plaintext */
void hf_conn_received(struct hf_conn *c, const char *p, size_t n); /* as the socket says it */
/* Closes; reset: with RST. on_close of a running exchange follows from the loop. */
void hf_conn_close(struct hf_conn *c, bool reset);
void hf_conn_mark(struct hf_conn *c); /* settle it before the loop sleeps */
void hf_conn_settle(struct hf_conn *c);
void hf_conn_sweep(struct hf_conn *c, uint64_t now);
void hf_conn_update_reading(struct hf_conn *c);
void hf_conn_free(struct hf_conn *c);
/* Bracket for everything that may call the handler. */
void hf_conn_enter(struct hf_conn *c);
void hf_conn_leave(struct hf_conn *c);
/* Ends the exchange if its response is out; true when it did. */
bool hf_conn_try_finish(struct hf_conn *c);
const char *hf_conn_peer(struct hf_conn *c);
/* Calls on_close once. */
void hf_req_finish(struct hf_req *r);

/* ---- output; a failed stream is closed ---- */
static inline size_t hf_conn_queued(const struct hf_conn *c)
{
    return hf_outq_len(&c->out);
}
/* Queues without writing; hf_conn_flush or the next settle writes it. */
void hf_conn_append(struct hf_conn *c, const void *p, size_t n);
void hf_conn_writev(struct hf_conn *c, const uv_buf_t *bufs, unsigned n);
void hf_conn_write_take(struct hf_conn *c, char *p, size_t n);
void hf_conn_flush(struct hf_conn *c);

/* ---- http_res.c ---- */
const char *hf_status_text(int status);
/* The response is complete as far as the caller is concerned; the exchange ends once it is flushed. */
void hf_res_finish(struct hf_req *r);
/* 100 Continue if it is still owed. */
void hf_res_continue(struct hf_req *r);
/* s as a JSON string with quotes; bytes that are not UTF-8 become '?'. */
int hf_json_string_add(struct hf_buf *b, struct hf_str s) HF_MUST_USE;
