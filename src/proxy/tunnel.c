/* Raw tunnels after a 101: bytes both ways, each direction with its own backpressure and its own end. */
#include <sys/socket.h>

#include "proxy/proxy_int.h"
#include "wire/tls.h"

struct side {
    struct hf_tunnel *tunnel;
    struct side *other;
    uv_stream_t *stream;
    struct hf_tls *tls; /* NULL = plain */
    struct hf_outq out;
    bool reading, eof, shut; /* eof: it said its last; shut: the other's last was passed on to it */
};

struct hf_tunnel {
    struct hf_list node; /* in box->tunnels */
    struct hf_proxy *proxy;
    struct hf_box *box; /* until it closes */
    struct side side[2];
    uint64_t last_ms;
    int open;
    uint16_t port;
    bool closing;
};

static void on_closed(uv_handle_t *h)
{
    struct side *s = h->data;
    struct hf_tunnel *t = s->tunnel;
    struct hf_proxy *p = t->proxy;
    hf_outq_done(&s->out);
    hf_tls_free(s->tls);
    free(h);
    if (--t->open)
        return;
    free(t);
    p->stats.tunnels--;
    hf_proxy_unref(p);
}

static void close_tunnel(struct hf_tunnel *t, bool reset)
{
    if (t->closing)
        return;
    t->closing = true;
    hf_list_del(&t->node);
    hf_box_count(t->box, t->port, -1);
    for (int i = 0; i < 2; i++) {
        if (reset)
            hf_stream_linger0(t->side[i].stream);
        uv_close((uv_handle_t *)t->side[i].stream, on_closed);
    }
}

/* Passes the end of one side on to the other once all its bytes are out; both ended: done. */
static void pass_end(struct side *to)
{
    uv_os_fd_t fd;
    if (!to->other->eof || to->shut || hf_outq_len(&to->out))
        return;
    to->shut = true;
    /* On TLS close_notify tells the end; the socket's own end follows when both are done. */
    int r = to->tls ? hf_outq_tls_close(&to->out) : 0;
    if (r < 0 || (to->eof && to->other->shut))
        close_tunnel(to->tunnel, r < 0);
    else if (!to->tls && uv_fileno((uv_handle_t *)to->stream, &fd) == 0)
        (void)shutdown(fd, SHUT_WR);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct side *s = h->data;
    *buf = hf_proxy_read_buf(s->tunnel->proxy);
}

static void set_reading(struct side *s, bool on);

static void send_to(struct side *to, const char *p, size_t n)
{
    uv_buf_t b = uv_buf_init((char *)p, (unsigned)n);
    if (!n)
        return;
    if (hf_outq_writev(&to->out, &b, 1) < 0)
        close_tunnel(to->tunnel, true);
    else if (hf_outq_len(&to->out) > hf_proxy_queue_high(to->tunnel->proxy))
        set_reading(to->other, false);
}

static void at_eof(struct side *s)
{
    s->eof = true;
    set_reading(s, false);
    pass_end(s->other);
}

static void read_tls(struct side *s, const char *p, size_t n)
{
    struct hf_buf *plain = &s->tunnel->proxy->plain;
    hf_buf_clear(plain);
    int r = hf_outq_tls_feed(&s->out, p, n, plain);
    send_to(s->other, plain->p, plain->n);
    if (r < 0)
        close_tunnel(s->tunnel, true);
    else if (r == 1 && !s->tunnel->closing)
        at_eof(s);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct side *s = stream->data;
    struct hf_tunnel *t = s->tunnel;
    t->last_ms = uv_now(t->proxy->loop);
    if (n > 0 && s->tls) {
        read_tls(s, buf->base, (size_t)n);
    } else if (n > 0) {
        send_to(s->other, buf->base, (size_t)n);
    } else if (n == UV_EOF && !s->tls) {
        at_eof(s);
    } else if (n < 0) { /* an end without close_notify is a cut */
        close_tunnel(t, true);
    }
}

static void set_reading(struct side *s, bool on)
{
    if (s->reading == on || s->tunnel->closing || (on && s->eof))
        return;
    s->reading = on;
    if (on)
        (void)uv_read_start(s->stream, on_alloc, on_read);
    else
        (void)uv_read_stop(s->stream);
}

static void on_written(void *owner, int status)
{
    struct side *s = owner;
    if (s->tunnel->closing)
        return;
    if (status < 0) {
        close_tunnel(s->tunnel, true);
        return;
    }
    s->tunnel->last_ms = uv_now(s->tunnel->proxy->loop);
    if (hf_outq_len(&s->out) <= HF_PROXY_QUEUE_LOW)
        set_reading(s->other, true);
    pass_end(s);
}

void hf_tunnel_start(struct hf_pool *pool, struct hf_proxy *p, const struct hf_end *client,
                     const struct hf_end *up)
{
    struct hf_tunnel *t = hf_new(struct hf_tunnel);
    const struct hf_end *ends[2] = {client, up};
    t->proxy = p;
    t->box = pool->box;
    t->port = pool->port;
    t->open = 2;
    t->last_ms = uv_now(p->loop);
    for (int i = 0; i < 2; i++) {
        struct side *s = &t->side[i];
        s->tunnel = t;
        s->other = &t->side[1 - i];
        s->stream = ends[i]->stream;
        s->stream->data = s;
        s->tls = ends[i]->tls;
        hf_outq_init(&s->out, s->stream, on_written, s);
        if (s->tls)
            hf_outq_set_tls(&s->out, s->tls);
        s->reading = false;
    }
    hf_list_add_tail(&t->box->tunnels, &t->node);
    hf_box_count(t->box, t->port, 1);
    hf_proxy_ref(p);
    p->stats.tunnels++;
    for (int i = 0; i < 2; i++)
        set_reading(&t->side[i], true);
    for (int i = 0; i < 2 && !t->closing; i++)
        send_to(&t->side[i], ends[i]->first.p, ends[i]->first.n);
}

void hf_tunnel_cut_all(struct hf_box *box)
{
    hf_list_foreach_safe(it, &box->tunnels)
    {
        close_tunnel(hf_list_entry(it, struct hf_tunnel, node), true);
    }
}

void hf_tunnel_sweep(struct hf_box *box, uint64_t now, uint64_t idle_ms)
{
    hf_list_foreach_safe(it, &box->tunnels)
    {
        struct hf_tunnel *t = hf_list_entry(it, struct hf_tunnel, node);
        if (now - t->last_ms > idle_ms)
            close_tunnel(t, true);
    }
}
