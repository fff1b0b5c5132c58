/* Internals of the client: client.c (life, socket), client_h1.c, client_h2.c. Only these may include it.
 *
 * Lifetimes. A client lives until its user closed it and its stream is gone. What breaks the connection only
 * marks it and closes the stream; the exchanges are told from the close callback, so that no call of the user
 * ever makes a callback of a failure. An exchange is freed right after its last callback. */
#pragma once

#include <llhttp.h>
#include <nghttp2/nghttp2.h>

#include "base/list.h"
#include "wire/client.h"
#include "wire/head.h"
#include "wire/outq.h"

#define HF_CLIENT_READ_SIZE 65536u
#define HF_CLIENT_INTERIM_MAX 32u     /* 1xx of one exchange */
#define HF_CLIENT_TRAILERS_MAX 16384u /* bytes */
#define HF_CLIENT_WINDOW (256 * 1024) /* bytes of a stream that may wait for its user (HTTP/2) */
#define HF_CLIENT_CONN_WINDOW (4 * 1024 * 1024)
#define HF_CLIENT_OUT_HIGH (256u * 1024u) /* HTTP/2 frames that wait for the socket */
#define HF_CLIENT_QUEUE_LOW (HF_CLIENT_QUEUE_HIGH / 4)
/* Chunk heads and extensions, beyond 16 bytes a body byte. */
#define HF_CLIENT_CHUNK_OVERHEAD_MAX 16384u

enum hf_cx_mode { HF_CX_HEAD, HF_CX_LENGTH, HF_CX_CHUNKED, HF_CX_EOF, HF_CX_DONE };

struct hf_cx {
    struct hf_client *client;
    const struct hf_cx_ops *ops;
    void *data;
    struct hf_list node; /* of client->exchanges */
    int64_t left;        /* bytes of the request body that are still owed, -1 unknown */
    bool ended;          /* the request is complete */
    bool answered;       /* a head has come */
    bool paused, want_drain, for_head, connect;
    bool unsent;  /* nothing of it has left */
    bool upgrade; /* … was asked for */
    uint8_t mode; /* enum hf_cx_mode: of the response */
    unsigned interims;
    /* HTTP/1.1 */
    struct hf_head head;
    struct hf_buf head_buf;
    llhttp_t parser;
    int64_t res_left;
    uint64_t wire_n, body_n;
    struct hf_buf trailers; /* name NUL value NUL …; HTTP/1.1: of the response, HTTP/2: of the request */
    /* HTTP/2 */
    int32_t id;
    struct hf_buf fields; /* of a head or trailers that are coming: as above */
    size_t n_fields;
    int status;
    int64_t length;
    struct hf_buf body; /* of the request, from body_off on */
    size_t body_off;
    struct hf_buf held; /* of the response, while paused */
    bool fin;           /* the response is complete */
    bool has_trailers;  /* … and fields are its trailers */
    uint32_t error;     /* why the stream was reset */
};

struct hf_client {
    uv_loop_t *loop;
    uv_stream_t *stream;
    struct hf_tls *tls;
    struct hf_outq out;
    struct hf_list exchanges; /* HTTP/1.1: at most one */
    struct hf_list zombies;   /* freed when no callback runs any more */
    size_t exchange_n;
    void (*gone)(void *arg);
    void *gone_arg;
    uv_timer_t kick; /* work that must not be done inside a call of the user */
    unsigned handles;
    int broken;   /* why it was closed */
    bool closing; /* the stream is being closed */
    bool done;    /* hf_client_close, or hf_cx_take */
    bool told;    /* gone was called */
    bool going;   /* no further exchange may begin */
    bool reading, write_failed;
    bool eof; /* the peer said its last */
    unsigned depth;
    struct hf_buf in;        /* HTTP/1.1: came while the exchange was paused */
    struct hf_buf plain;     /* what TLS yields, during a read */
    nghttp2_session *h2;     /* NULL = HTTP/1.1 */
    bool sending, receiving; /* inside nghttp2 */
};

/* ---- client.c ---- */
void hf_client_die(struct hf_client *c, int r); /* closes; the exchanges fail with r */
void hf_client_going(struct hf_client *c);      /* calls gone, once */
void hf_client_kick(struct hf_client *c);
void hf_client_flush(struct hf_client *c);
void hf_client_update_reading(struct hf_client *c);
struct hf_cx *hf_cx_alloc(struct hf_client *c, const struct hf_cx_req *req, const struct hf_cx_ops *ops,
                          void *data);
void hf_cx_free(struct hf_cx *cx);
void hf_cx_failed(struct hf_cx *cx, int r, bool unsent); /* on_fail, then freed */
/* Of a request or response field: the connection's business, not the message's. */
bool hf_field_is_hop(struct hf_str name);
bool hf_cx_req_ok(const struct hf_cx_req *req);
/* "name\0value\0…" as fields. */
size_t hf_fields_unpack(const struct hf_buf *b, struct hf_field out[HF_CLIENT_HEADERS_MAX]);

/* ---- client_h1.c ---- */
int hf_h1_begin(struct hf_cx *cx, const struct hf_cx_req *req) HF_MUST_USE;
void hf_h1_input(struct hf_client *c, const char *p, size_t n);
void hf_h1_eof(struct hf_client *c);
void hf_h1_write(struct hf_cx *cx, const void *p, size_t n);
void hf_h1_end(struct hf_cx *cx, const struct hf_field *f, size_t n);
void hf_h1_kick(struct hf_client *c);

/* ---- client_h2.c ---- */
int hf_h2c_start(struct hf_client *c) HF_MUST_USE;
int hf_h2c_begin(struct hf_cx *cx, const struct hf_cx_req *req) HF_MUST_USE;
void hf_h2c_input(struct hf_client *c, const char *p, size_t n);
void hf_h2c_write(struct hf_cx *cx, const void *p, size_t n);
void hf_h2c_end(struct hf_cx *cx, const struct hf_field *f, size_t n);
void hf_h2c_cancel(struct hf_cx *cx);
void hf_h2c_kick(struct hf_client *c);
bool hf_h2c_free_slot(const struct hf_client *c);
