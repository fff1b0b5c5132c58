/* The output queue of a stream: what the socket does not take at once waits here. At most one libuv write
 * is in flight; everything behind it is gathered in one buffer, so that a slow reader costs one system call
 * per readiness and no allocation per piece. */
#pragma once

#include <uv.h>

#include "base/buf.h"

struct hf_tls;

#define HF_OUTQ_PIECES_MAX 24u   /* pieces of one hf_outq_writev */
#define HF_OUTQ_RECORD 16384u    /* with TLS, pieces from this size on are encrypted without a copy */
#define HF_OUTQ_MAX (256u << 20) /* bytes; a backstop, the users stop far below */

struct hf_outq {
    uv_stream_t *stream; /* NULL: everything is taken and forgotten (fuzzing) */
    struct hf_buf buf;   /* behind what is in flight */
    struct hf_outq_write *wr;
    /* A write ended; what waited has already been passed on. status < 0: the stream failed, or is closing
     * (UV_ECANCELED). Not called for writes that the socket takes at once. */
    void (*on_written)(void *owner, int status);
    void *owner;
    /* With TLS, buf is plaintext, encrypted when it can be written: so that what came in small pieces leaves
     * in large records. seal is hf_tls_write, by pointer: the in-sandbox daemon does without TLS. */
    struct hf_tls *tls; /* NULL = plain; borrowed */
    int (*seal)(struct hf_tls *t, const void *p, size_t n, struct hf_buf *out);
    struct hf_buf raw; /* ciphertext in front of buf: handshake, alerts */
};

/* All functions: 0, or a negative errno after which the stream should be closed. */
void hf_outq_init(struct hf_outq *q, uv_stream_t *stream, void (*on_written)(void *owner, int status),
                  void *owner);
void hf_outq_done(struct hf_outq *q); /* only after the stream's close callback, or with nothing in flight */
size_t hf_outq_len(const struct hf_outq *q);
/* Nothing waits and no write is in flight. Length 0 is not enough to give the stream away: libuv tells of a
 * write that it could finish at once only in the loop's next turn. */
bool hf_outq_idle(const struct hf_outq *q);
/* Adds without writing; hf_outq_flush writes it. */
int hf_outq_add(struct hf_outq *q, const void *p, size_t n) HF_MUST_USE;
/* Writes the pieces in order, now if nothing waits; what the socket does not take is copied. */
int hf_outq_writev(struct hf_outq *q, const uv_buf_t *bufs, unsigned n) HF_MUST_USE;
/* Writes malloc'ed p, which is taken in every case. */
int hf_outq_take(struct hf_outq *q, char *p, size_t n) HF_MUST_USE;
int hf_outq_flush(struct hf_outq *q) HF_MUST_USE;

/* With TLS: encrypts what waits; -EAGAIN before the end of the handshake. */
int hf_outq_seal(struct hf_outq *q) HF_MUST_USE;

/* ---- outq_tls.c ---- */
void hf_outq_set_tls(struct hf_outq *q, struct hf_tls *t);
/* hf_tls_feed; what the session has to say in return is written. */
int hf_outq_tls_feed(struct hf_outq *q, const void *p, size_t n, struct hf_buf *plain) HF_MUST_USE;
/* Writes what waits and close_notify. */
int hf_outq_tls_close(struct hf_outq *q);
