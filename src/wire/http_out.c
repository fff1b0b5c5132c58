/* The output queue of a connection: what the socket does not take at once waits here. At most one libuv
 * write is in flight; everything behind it is gathered in one buffer. */
#include "wire/http_int.h"

#include "base/log.h"

#define WRITE_PIECES_MAX 8u

size_t hf_conn_queued(const struct hf_conn *c)
{
    return (c->wr && c->stream ? uv_stream_get_write_queue_size(c->stream) : 0) + c->out.n;
}

static void keep_out(struct hf_conn *c, const void *p, size_t n)
{
    if (c->closing || hf_buf_add(&c->out, p, n) == 0)
        return;
    hf_log_warn("response queue over its limit, connection cut", "queued=%zu", hf_conn_queued(c));
    hf_conn_close(c, true);
}

void hf_conn_append(struct hf_conn *c, const void *p, size_t n)
{
    keep_out(c, p, n);
    hf_conn_mark(c);
}

static void on_written(uv_write_t *w, int status)
{
    struct hf_write *wr = HF_CONTAINER_OF(w, struct hf_write, w);
    struct hf_conn *c = wr->conn;
    free(wr->p);
    free(wr);
    c->wr = NULL;
    if (c->closing)
        return;
    if (status < 0) {
        hf_conn_close(c, false);
        return;
    }
    hf_conn_enter(c);
    c->last_ms = uv_now(c->server->loop);
    hf_conn_flush(c);
    struct hf_req *r = c->req;
    if (r && r->want_drain && !r->closed && !c->closing && hf_conn_queued(c) <= HF_HTTP_WRITE_LOW) {
        r->want_drain = false;
        if (r->ops->on_drain)
            r->ops->on_drain(r);
    }
    if (!c->closing)
        hf_conn_settle(c);
    hf_conn_leave(c);
}

/* Hands p (owned, from offset on) to libuv. */
static void submit(struct hf_conn *c, char *p, size_t offset, size_t n)
{
    struct hf_write *wr = hf_new(struct hf_write);
    wr->conn = c;
    wr->p = p;
    uv_buf_t b = uv_buf_init(p + offset, (unsigned)(n - offset));
    c->wr = wr;
    int r = uv_write(&wr->w, c->stream, &b, 1, on_written);
    if (r == 0)
        return;
    c->wr = NULL;
    free(p);
    free(wr);
    hf_conn_close(c, false);
}

/* Writes what it can. The bytes written, or -1 after a failure (the connection is then closing). */
static ssize_t try_write(struct hf_conn *c, const uv_buf_t *bufs, unsigned n)
{
    if (!c->stream) { /* the fuzzer's connection has no socket */
        size_t total = 0;
        for (unsigned i = 0; i < n; i++)
            total += bufs[i].len;
        return (ssize_t)total;
    }
    int r = uv_try_write(c->stream, bufs, n);
    if (r == UV_EAGAIN)
        return 0;
    if (r < 0) {
        hf_conn_close(c, false);
        return -1;
    }
    return r;
}

void hf_conn_flush(struct hf_conn *c)
{
    if (c->closing || c->wr || !c->out.n)
        return;
    uv_buf_t b = uv_buf_init(c->out.p, (unsigned)c->out.n);
    ssize_t k = try_write(c, &b, 1);
    if (k < 0)
        return;
    if ((size_t)k == c->out.n) {
        hf_buf_clear(&c->out);
        return;
    }
    size_t n = c->out.n;
    submit(c, hf_buf_take(&c->out), (size_t)k, n);
}

void hf_conn_writev(struct hf_conn *c, const uv_buf_t *bufs, unsigned n)
{
    uv_buf_t all[WRITE_PIECES_MAX];
    unsigned m = 0;
    if (c->closing)
        return;
    if (c->wr || n >= WRITE_PIECES_MAX) {
        for (unsigned i = 0; i < n; i++)
            keep_out(c, bufs[i].base, bufs[i].len);
        hf_conn_flush(c);
        return;
    }
    if (c->out.n)
        all[m++] = uv_buf_init(c->out.p, (unsigned)c->out.n);
    for (unsigned i = 0; i < n; i++)
        all[m++] = bufs[i];
    ssize_t k = try_write(c, all, m);
    if (k < 0)
        return;
    size_t skip = (size_t)k, old = c->out.n, from_old = HF_MIN(skip, old);
    hf_buf_consume(&c->out, from_old);
    skip -= from_old;
    for (unsigned i = 0; i < n; i++) {
        size_t s = HF_MIN(skip, bufs[i].len);
        skip -= s;
        if (s < bufs[i].len)
            keep_out(c, bufs[i].base + s, bufs[i].len - s);
    }
    /* The socket is full: let libuv wait for it. */
    if (c->out.n && !c->closing) {
        size_t len = c->out.n;
        submit(c, hf_buf_take(&c->out), 0, len);
    }
}

void hf_conn_write_take(struct hf_conn *c, char *p, size_t n)
{
    hf_auto_free char *owned = p;
    if (c->closing)
        return;
    if (c->wr || n > UINT32_MAX) {
        keep_out(c, p, n);
        hf_conn_flush(c);
        return;
    }
    uv_buf_t bufs[2] = {uv_buf_init(c->out.p, (unsigned)c->out.n), uv_buf_init(p, (unsigned)n)};
    ssize_t k = try_write(c, c->out.n ? bufs : bufs + 1, c->out.n ? 2 : 1);
    if (k < 0)
        return;
    if ((size_t)k < c->out.n) {
        hf_buf_consume(&c->out, (size_t)k);
        keep_out(c, p, n);
        hf_conn_flush(c);
        return;
    }
    size_t done = (size_t)k - c->out.n;
    hf_buf_clear(&c->out);
    if (done < n)
        submit(c, hf_take_ptr(owned), done, n);
}
