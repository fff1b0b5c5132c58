#include "wire/outq.h"

struct hf_outq_write {
    uv_write_t w;
    struct hf_outq *q;
    char *p; /* owned */
};

void hf_outq_init(struct hf_outq *q, uv_stream_t *stream, void (*on_written)(void *owner, int status),
                  void *owner)
{
    *q = (struct hf_outq){.stream = stream,
                          .buf = HF_BUF_INIT(HF_OUTQ_MAX),
                          .on_written = on_written,
                          .owner = owner,
                          .raw = HF_BUF_INIT(HF_OUTQ_MAX)};
}

void hf_outq_done(struct hf_outq *q)
{
    hf_buf_done(&q->buf);
    hf_buf_done(&q->raw);
}

size_t hf_outq_len(const struct hf_outq *q)
{
    return (q->wr ? uv_stream_get_write_queue_size(q->stream) : 0) + q->buf.n + q->raw.n;
}

bool hf_outq_idle(const struct hf_outq *q)
{
    return !q->wr && !q->buf.n && !q->raw.n;
}

int hf_outq_add(struct hf_outq *q, const void *p, size_t n)
{
    return hf_buf_add(&q->buf, p, n);
}

static void on_written(uv_write_t *w, int status)
{
    struct hf_outq_write *wr = HF_CONTAINER_OF(w, struct hf_outq_write, w);
    struct hf_outq *q = wr->q;
    free(wr->p);
    free(wr);
    q->wr = NULL;
    if (status == 0)
        status = hf_outq_flush(q);
    q->on_written(q->owner, status);
}

/* Hands p (owned, from offset on) to libuv. */
static int submit(struct hf_outq *q, char *p, size_t offset, size_t n)
{
    struct hf_outq_write *wr = hf_new(struct hf_outq_write);
    wr->q = q;
    wr->p = p;
    uv_buf_t b = uv_buf_init(p + offset, (unsigned)(n - offset));
    q->wr = wr;
    int r = uv_write(&wr->w, q->stream, &b, 1, on_written);
    if (r < 0) {
        q->wr = NULL;
        free(p);
        free(wr);
    }
    return r;
}

/* Writes what the socket takes now: the bytes written or a negative errno. */
static ssize_t try_write(struct hf_outq *q, const uv_buf_t *bufs, unsigned n)
{
    if (!q->stream) {
        size_t total = 0;
        for (unsigned i = 0; i < n; i++)
            total += bufs[i].len;
        return (ssize_t)total;
    }
    int r = uv_try_write(q->stream, bufs, n);
    return r == UV_EAGAIN ? 0 : r;
}

static int submit_rest(struct hf_outq *q)
{
    size_t n = q->buf.n;
    return submit(q, hf_buf_take(&q->buf), 0, n);
}

int hf_outq_seal(struct hf_outq *q)
{
    int r = q->buf.n ? q->seal(q->tls, q->buf.p, q->buf.n, &q->raw) : 0;
    if (r == 0)
        hf_buf_done(&q->buf);
    return r;
}

/* Writes raw: the one place where ciphertext leaves. */
static int flush_raw(struct hf_outq *q)
{
    if (q->wr || !q->raw.n)
        return 0;
    uv_buf_t b = uv_buf_init(q->raw.p, (unsigned)q->raw.n);
    ssize_t k = try_write(q, &b, 1);
    if (k < 0)
        return (int)k;
    size_t n = q->raw.n;
    if ((size_t)k < n)
        return submit(q, hf_buf_take(&q->raw), (size_t)k, n);
    hf_buf_done(&q->raw);
    return 0;
}

static int flush_tls(struct hf_outq *q)
{
    int r = q->wr ? 0 : hf_outq_seal(q);
    return r < 0 && r != -EAGAIN ? r : flush_raw(q); /* before the end of the handshake only raw goes out */
}

/* Small pieces are put together, large ones are encrypted where they are. */
static int writev_tls(struct hf_outq *q, const uv_buf_t *bufs, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        bool large = !q->wr && bufs[i].len >= HF_OUTQ_RECORD;
        int r = large ? hf_outq_seal(q) : -EAGAIN;
        if (r == 0)
            r = q->seal(q->tls, bufs[i].base, bufs[i].len, &q->raw);
        if (r == -EAGAIN)
            r = hf_buf_add(&q->buf, bufs[i].base, bufs[i].len);
        if (r < 0)
            return r;
    }
    return flush_tls(q);
}

int hf_outq_flush(struct hf_outq *q)
{
    if (q->tls)
        return flush_tls(q);
    if (q->wr || !q->buf.n)
        return 0;
    uv_buf_t b = uv_buf_init(q->buf.p, (unsigned)q->buf.n);
    ssize_t k = try_write(q, &b, 1);
    if (k < 0)
        return (int)k;
    hf_buf_consume(&q->buf, (size_t)k);
    return q->buf.n ? submit_rest(q) : 0;
}

static int add_all(struct hf_outq *q, const uv_buf_t *bufs, unsigned n, size_t skip)
{
    for (unsigned i = 0; i < n; i++) {
        size_t s = HF_MIN(skip, bufs[i].len);
        skip -= s;
        int r = s < bufs[i].len ? hf_buf_add(&q->buf, bufs[i].base + s, bufs[i].len - s) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

int hf_outq_writev(struct hf_outq *q, const uv_buf_t *bufs, unsigned n)
{
    uv_buf_t all[HF_OUTQ_PIECES_MAX + 1];
    const uv_buf_t *v = bufs;
    unsigned m = n;
    if (q->tls)
        return writev_tls(q, bufs, n);
    if (q->wr || n > HF_OUTQ_PIECES_MAX) {
        int r = add_all(q, bufs, n, 0);
        return r < 0 ? r : hf_outq_flush(q);
    }
    size_t old = q->buf.n;
    if (old) {
        all[0] = uv_buf_init(q->buf.p, (unsigned)old);
        memcpy(all + 1, bufs, n * sizeof(*bufs));
        v = all;
        m++;
    }
    ssize_t k = try_write(q, v, m);
    if (k < 0)
        return (int)k;
    size_t skip = (size_t)k;
    if (old) {
        size_t from_old = HF_MIN(skip, old);
        hf_buf_consume(&q->buf, from_old);
        skip -= from_old;
    }
    int r = add_all(q, bufs, n, skip);
    if (r < 0)
        return r;
    return q->buf.n ? submit_rest(q) : 0;
}

int hf_outq_take(struct hf_outq *q, char *p, size_t n)
{
    hf_auto_free char *owned = p;
    int r;
    if (q->tls && n <= UINT32_MAX) {
        uv_buf_t b = uv_buf_init(p, (unsigned)n);
        return writev_tls(q, &b, 1);
    }
    if (q->wr || n > UINT32_MAX) {
        r = hf_buf_add(&q->buf, p, n);
        return r < 0 ? r : hf_outq_flush(q);
    }
    size_t old = q->buf.n;
    uv_buf_t bufs[2] = {uv_buf_init(q->buf.p, (unsigned)old), uv_buf_init(p, (unsigned)n)};
    ssize_t k = try_write(q, old ? bufs : bufs + 1, old ? 2 : 1);
    if (k < 0)
        return (int)k;
    hf_buf_consume(&q->buf, HF_MIN((size_t)k, old));
    if ((size_t)k < old) {
        r = hf_buf_add(&q->buf, p, n);
        return r < 0 ? r : submit_rest(q);
    }
    size_t done = (size_t)k - old;
    return done < n ? submit(q, hf_take_ptr(owned), done, n) : 0;
}
