/* HTTP/2 behind the server's hf_req API, on nghttp2. http2_conn.c: a connection and what it hears;
 * http2_head.c: a request's head; http2_res.c: what a stream says. Only these may include it.
 *
 * A stream is an exchange: its hf_req lives from the end of its head to the stream's end. The head is written
 * out as HTTP/1.1 and goes through the same scanner and checks as every other head does, so that whatever
 * stands behind the server sees one kind of request. nghttp2 must not be entered from its own callbacks: what
 * has to be sent leaves in hf_h2_settle. */
#pragma once

#include <nghttp2/nghttp2.h>

#include "wire/http_int.h"

#define HF_H2_STREAMS_MAX 256u
#define HF_H2_WINDOW (256 * 1024)            /* bytes of one body that may wait for its handler … */
#define HF_H2_CONN_WINDOW (4 * 1024 * 1024)  /* … and of all bodies of a connection */
#define HF_H2_OUT_HIGH (256u * 1024u)        /* frames that wait for the socket */
#define HF_H2_STREAM_QUEUE_MIN (16u * 1024u) /* of a response, when many share the connection */
#define HF_H2_TRAILERS_MAX 16384u
/* Floods: tokens that a connection has at first, and that it gets back each second. */
#define HF_H2_RESET_BURST 500u
#define HF_H2_RESET_RATE 50u
#define HF_H2_CONTROL_BURST 4000u
#define HF_H2_CONTROL_RATE 1000u

struct hf_h2_bucket {
    uint64_t at_ms;
    uint64_t milli; /* tokens left, in thousandths */
};

struct hf_h2 {
    struct hf_conn *conn;
    nghttp2_session *session;
    struct hf_list streams;
    size_t stream_n;
    struct hf_h2_bucket resets, control;
    uint64_t block_ms; /* when the header block that is coming began, or the connection without SETTINGS */
    bool in_block, receiving, sending, leaving;
    bool calm; /* a flood was seen: the session is being ended */
};

struct hf_h2_stream {
    struct hf_list node;
    struct hf_h2 *h2;
    struct hf_req *req; /* NULL until the head is complete */
    int32_t id;
    /* the head as it comes */
    struct hf_buf method, path, authority, host, cookie, fields;
    size_t head_n, field_n; /* bytes and fields counted */
    bool too_large, two_hosts;
    /* the request's body and trailers */
    struct hf_buf held, trailers;
    bool fin; /* END_STREAM came */
    /* the response */
    struct hf_buf out, out_trailers;
    size_t out_off;
    bool has_body, head_waits, out_end, sent_end;
    uint64_t last_ms; /* of progress in either direction */
    size_t seen_queue;
};

/* ---- http2_conn.c ---- */
void hf_h2_start(struct hf_conn *c);
void hf_h2_input(struct hf_conn *c, const char *p, size_t n);
void hf_h2_settle(struct hf_conn *c);
void hf_h2_sweep(struct hf_conn *c, uint64_t now);
void hf_h2_aborted(struct hf_conn *c); /* the connection closes */
void hf_h2_free(struct hf_conn *c);
size_t hf_h2_queued(const struct hf_h2_stream *st);

/* ---- http2_head.c ---- */
int hf_h2_head_field(struct hf_h2_stream *st, struct hf_str name, struct hf_str value) HF_MUST_USE;
/* The head is complete: hands it to the handler, or answers why not. */
void hf_h2_head_done(struct hf_h2_stream *st);
bool hf_h2_req_trailer(const struct hf_req *r, size_t i, struct hf_str *ret_name, struct hf_str *ret_value);

/* ---- http2_res.c ---- */
void hf_h2_res_head(struct hf_req *r, int status, const char *ctype, int64_t length, bool body);
void hf_h2_res_interim(struct hf_req *r, int status);
void hf_h2_res_write(struct hf_req *r, const void *p, size_t n);
void hf_h2_res_end(struct hf_req *r, const char *const *pairs, size_t n);
void hf_h2_res_abort(struct hf_req *r);
size_t hf_h2_res_queued(const struct hf_req *r);
size_t hf_h2_res_high(const struct hf_req *r); /* hf_res_write returns 1 above it */
