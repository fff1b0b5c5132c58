/* Tunnels: bytes both ways, with backpressure, TLS on either side or none. */
#include "egress/l7_int.h"

#define PLAIN_MAX (2u * HF_L7_READ_SIZE)

struct side {
    struct hf_l7_pipe *p;
    struct side *other;
    uv_stream_t *s;
    struct hf_tls *tls;
    struct hf_outq out; /* towards this side's peer */
    bool eof;           /* it said its last */
    bool shut;          /* … and was told so of the other */
    bool paused;
    uint64_t bytes; /* that it said */
};

struct hf_l7_pipe {
    struct hf_l7_conn *c; /* keeps a reference */
    struct side client, origin;
    unsigned handles;
    bool ended;
    enum hf_l7_inspected (*inspect)(struct hf_l7_conn *c);
};

static void pipe_free(struct hf_l7_pipe *p)
{
    struct hf_l7_conn *c = p->c;
    hf_outq_done(&p->client.out);
    hf_outq_done(&p->origin.out);
    hf_tls_free(p->client.tls);
    hf_tls_free(p->origin.tls);
    free(p);
    hf_l7_unref(c);
}

static void on_closed(uv_handle_t *h)
{
    struct side *a = h->data;
    struct hf_l7_pipe *p = a->p;
    free(h);
    if (--p->handles == 0)
        pipe_free(p);
}

static void side_close(struct side *a, bool reset)
{
    uv_stream_t *s = hf_take_ptr(a->s);
    if (!s)
        return;
    if (reset && s->type == UV_TCP && uv_tcp_close_reset((uv_tcp_t *)s, on_closed) == 0)
        return;
    if (!uv_is_closing((uv_handle_t *)s))
        uv_close((uv_handle_t *)s, on_closed);
}

void hf_l7_pipe_end(struct hf_l7_pipe *p, bool reset)
{
    if (p->ended)
        return;
    p->ended = true;
    hf_l7_record_pipe(p->c, p->client.bytes, p->origin.bytes);
    side_close(&p->client, reset);
    side_close(&p->origin, reset);
    if (--p->handles == 0)
        pipe_free(p);
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    free(req);
}

/* Tells a side of the other one's end once everything is written to it. */
static void pass_eof(struct side *a)
{
    if (!a->other->eof || a->shut)
        return;
    if (a->tls && hf_outq_idle(&a->out))
        (void)hf_outq_tls_close(&a->out);
    if (!hf_outq_idle(&a->out))
        return;
    a->shut = true;
    uv_shutdown_t *req = hf_new(uv_shutdown_t);
    if (uv_shutdown(req, a->s, on_shutdown) < 0)
        free(req);
}

static void alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf)
{
    struct side *a = h->data;
    *buf = uv_buf_init(a->p->c->l7->read_buf, HF_L7_READ_SIZE);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf);

static void settle(struct hf_l7_pipe *p)
{
    struct side *sides[] = {&p->client, &p->origin};
    for (size_t i = 0; i < 2; i++) {
        struct side *a = sides[i];
        size_t queued = hf_outq_len(&a->other->out);
        if (a->paused && !a->eof && queued <= HF_L7_PIPE_LOW) {
            a->paused = false;
            (void)uv_read_start(a->s, alloc, on_read);
        } else if (!a->paused && queued > HF_L7_PIPE_HIGH) {
            a->paused = true;
            uv_read_stop(a->s);
        }
        pass_eof(a);
    }
    if (p->client.shut && p->origin.shut)
        hf_l7_end(p->c, false);
}

static void on_written(void *owner, int status)
{
    struct side *a = owner;
    if (a->p->ended)
        return;
    if (status < 0)
        hf_l7_end(a->p->c, true);
    else
        settle(a->p);
}

static int write_to(struct side *a, const char *p, size_t n)
{
    uv_buf_t b = uv_buf_init((char *)(uintptr_t)p, (unsigned)n);
    return n ? hf_outq_writev(&a->out, &b, 1) : 0;
}

/* False: the pipe may be no more. */
static bool inspected(struct side *a, const char *p, size_t n)
{
    struct hf_l7_pipe *pipe = a->p;
    struct hf_l7_conn *c = pipe->c;
    if (hf_buf_add(&c->first, p, n) < 0) {
        hf_l7_refuse(c, "protocol");
        return false;
    }
    if (pipe->inspect(c) != HF_L7_SEND)
        return false;
    pipe->inspect = NULL;
    int r = write_to(&pipe->origin, c->first.p, c->first.n);
    hf_buf_done(&c->first);
    if (r < 0)
        hf_l7_end(c, true);
    return r == 0;
}

static void said(struct side *a, const char *p, size_t n)
{
    struct hf_l7_pipe *pipe = a->p;
    a->bytes += n;
    pipe->c->last_ms = uv_now(pipe->c->l7->d->loop);
    if (a == &pipe->client && pipe->inspect) {
        if (inspected(a, p, n))
            settle(pipe);
        return;
    }
    if (write_to(a->other, p, n) < 0)
        hf_l7_end(pipe->c, true);
    else
        settle(pipe);
}

static void said_eof(struct side *a)
{
    a->eof = true;
    uv_read_stop(a->s);
    settle(a->p);
}

static void said_tls(struct side *a, const char *p, size_t n)
{
    struct hf_buf plain = HF_BUF_INIT(PLAIN_MAX);
    struct hf_l7_pipe *pipe = a->p;
    int r = hf_outq_tls_feed(&a->out, p, n, &plain);
    if (plain.n)
        said(a, plain.p, plain.n);
    hf_buf_done(&plain);
    if (pipe->ended)
        return;
    if (r < 0)
        hf_l7_end(pipe->c, true);
    else if (r == 1)
        said_eof(a);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct side *a = s->data;
    if (n == UV_EOF)
        said_eof(a);
    else if (n < 0)
        hf_l7_end(a->p->c, true);
    else if (n > 0 && a->tls)
        said_tls(a, buf->base, (size_t)n);
    else if (n > 0)
        said(a, buf->base, (size_t)n);
}

static void on_idle(uv_timer_t *t)
{
    struct hf_l7_conn *c = t->data;
    uint64_t quiet = uv_now(t->loop) - c->last_ms;
    if (quiet >= HF_L7_IDLE_MS)
        hf_l7_end(c, true);
    else
        (void)uv_timer_start(t, on_idle, HF_L7_IDLE_MS - quiet, 0);
}

static void side_init(struct side *a, struct hf_l7_pipe *p, struct side *other, const struct hf_l7_link *k)
{
    *a = (struct side){.p = p, .other = other, .s = k->stream, .tls = k->tls};
    a->s->data = a;
    hf_outq_init(&a->out, a->s, on_written, a);
    if (a->tls)
        hf_outq_set_tls(&a->out, a->tls);
}

void hf_l7_pipe_start(struct hf_l7_conn *c, const struct hf_l7_pipe_req *q)
{
    struct hf_l7_pipe *p = hf_new(struct hf_l7_pipe);
    p->c = c;
    p->handles = 3; /* two streams, and until its end */
    p->inspect = q->inspect;
    c->handles++;
    c->pipe = p;
    c->state = HF_L7_PIPE;
    side_init(&p->client, p, &p->origin, &q->client);
    side_init(&p->origin, p, &p->client, &q->origin);
    c->last_ms = uv_now(c->l7->d->loop);
    (void)uv_timer_start(&c->timer, on_idle, HF_L7_IDLE_MS, 0);
    p->client.bytes = q->to_origin.n;
    int r = write_to(&p->origin, q->to_origin.p, q->to_origin.n);
    if (r == 0)
        r = write_to(&p->client, q->to_client.p, q->to_client.n);
    if (r == 0)
        r = uv_read_start(p->client.s, alloc, on_read);
    if (r == 0)
        r = uv_read_start(p->origin.s, alloc, on_read);
    if (r < 0)
        hf_l7_end(c, true);
    else
        settle(p);
}

uv_stream_t *hf_l7_pipe_undo(struct hf_l7_conn *c)
{
    struct hf_l7_pipe *p = c->pipe;
    if (p->origin.bytes || p->client.eof || !hf_outq_idle(&p->client.out))
        return NULL;
    uv_stream_t *s = hf_take_ptr(p->client.s);
    uv_read_stop(s);
    c->pipe = NULL;
    p->ended = true; /* nothing was carried: there is nothing to record */
    p->handles--;    /* the client's stream */
    side_close(&p->origin, true);
    p->handles--; /* the origin's close callback is the last */
    return s;
}
