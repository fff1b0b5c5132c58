/* Connections towards sandboxes and the pool of idle ones. */
#include <sys/socket.h>
#include <sys/un.h>

#include "proxy/proxy_int.h"
#include "wire/tls.h"

#define MSG_NO_TLS "The sandbox is running but port does not speak TLS"

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct hf_upstream *up = h->data;
    *buf = hf_proxy_read_buf(up->proxy);
}

static void ended(struct hf_upstream *up, int status)
{
    if (up->px)
        hf_px_response_end(up->px, status);
    else
        hf_upstream_close(up);
}

/* The end of the handshake, or one more step of it. */
static void shake(struct hf_upstream *up, int r)
{
    if (r == 0 && !hf_tls_ready(up->tls))
        return;
    if (r == 0) {
        up->shaking = false;
        hf_px_attach(up->px, up);
        return;
    }
    up->px->connecting = false;
    hf_px_upstream_failed(up->px, MSG_NO_TLS);
}

static void read_tls(struct hf_upstream *up, const char *p, size_t n)
{
    struct hf_buf *plain = &up->proxy->plain;
    bool gone = false;
    hf_buf_clear(plain);
    int r = hf_outq_tls_feed(&up->out, p, n, plain);
    if (up->shaking) {
        shake(up, r);
        return;
    }
    up->gone = &gone;
    if (plain->n && up->px)
        hf_px_response(up->px, plain->p, plain->n);
    else if (plain->n)
        hf_upstream_close(up); /* idle, and it speaks unasked */
    if (gone)
        return;
    up->gone = NULL;
    if (r && !up->closing)
        ended(up, r == 1 ? UV_EOF : UV_ECONNRESET);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct hf_upstream *up = s->data;
    if (n == 0)
        return;
    if (up->shaking && n < 0)
        shake(up, (int)n);
    else if (up->tls && n > 0)
        read_tls(up, buf->base, (size_t)n);
    else if (n < 0)
        ended(up, up->tls ? UV_ECONNRESET : (int)n); /* without close_notify it is a cut */
    else if (!up->px)
        hf_upstream_close(up); /* idle, and it speaks unasked */
    else
        hf_px_response(up->px, buf->base, (size_t)n);
}

void hf_upstream_read(struct hf_upstream *up, bool on)
{
    if (up->reading == on || up->closing)
        return;
    up->reading = on;
    if (on)
        (void)uv_read_start(up->stream, on_alloc, on_read);
    else
        (void)uv_read_stop(up->stream);
}

static void on_written(void *owner, int status)
{
    struct hf_upstream *up = owner;
    struct hf_px *px = up->px;
    if (up->closing || !px || (up->shaking && status == 0))
        return;
    if (up->shaking) {
        shake(up, status);
        return;
    }
    if (status < 0) {
        px->write_failed = px->reset = true; /* as in after_send of exchange.c */
        hf_req_resume(px->req);
        return;
    }
    px->last_ms = uv_now(up->proxy->loop);
    if (hf_outq_len(&up->out) <= HF_PROXY_QUEUE_LOW)
        hf_req_resume(px->req);
}

static void on_closed(uv_handle_t *h)
{
    struct hf_upstream *up = h->data;
    struct hf_proxy *p = up->proxy;
    hf_outq_done(&up->out);
    hf_tls_free(up->tls);
    free(h);
    free(up);
    hf_proxy_unref(p);
}

static void leave_idle(struct hf_upstream *up)
{
    hf_list_del(&up->node);
    up->pool->idle_n--;
    up->pool->box->idle_n--;
    up->proxy->idle_n--;
}

void hf_upstream_close(struct hf_upstream *up)
{
    if (up->closing)
        return;
    up->closing = true;
    if (!hf_list_empty(&up->node))
        leave_idle(up);
    uv_close((uv_handle_t *)up->stream, on_closed);
}

static struct hf_upstream *upstream_new(struct hf_pool *pool, struct hf_proxy *p, bool is_tcp)
{
    struct hf_upstream *up = hf_new(struct hf_upstream);
    hf_list_init(&up->node);
    up->proxy = p;
    up->pool = pool;
    up->stream = hf_xcalloc(1, is_tcp ? sizeof(uv_tcp_t) : sizeof(uv_pipe_t));
    if (is_tcp)
        (void)uv_tcp_init(p->loop, (uv_tcp_t *)up->stream);
    else
        (void)uv_pipe_init(p->loop, (uv_pipe_t *)up->stream, 0);
    up->stream->data = up;
    hf_outq_init(&up->out, up->stream, on_written, up);
    hf_proxy_ref(p);
    p->stats.upstream_connects++;
    return up;
}

uv_stream_t *hf_upstream_release(struct hf_upstream *up, struct hf_tls **ret_tls)
{
    struct hf_proxy *p = up->proxy;
    uv_stream_t *s = up->stream;
    hf_upstream_read(up, false);
    s->data = NULL;
    *ret_tls = up->tls;
    if (up->gone)
        *up->gone = true;
    hf_outq_done(&up->out);
    free(up);
    hf_proxy_unref(p);
    return s;
}

/* ---- pool ---- */

/* True when the peer has closed, which the loop may not have told yet. */
static bool is_dead(struct hf_upstream *up)
{
    uv_os_fd_t fd;
    char c;
    if (uv_fileno((uv_handle_t *)up->stream, &fd) < 0)
        return true;
    return recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

struct hf_upstream *hf_upstream_take(struct hf_pool *pool, bool tls, bool check)
{
    while (!hf_list_empty(&pool->idle)) {
        struct hf_upstream *up = hf_list_entry(pool->idle.next, struct hf_upstream, node);
        leave_idle(up);
        if (!up->tls == !tls && (!check || !is_dead(up)))
            return up;
        hf_upstream_close(up);
    }
    return NULL;
}

/* A client that visits every port of its sandbox in turn must not collect descriptors. */
static bool idle_full(const struct hf_proxy *p, const struct hf_pool *pool)
{
    return pool->idle_n >= HF_PROXY_IDLE_UPSTREAMS_PER_PORT ||
           pool->box->idle_n >= HF_PROXY_IDLE_UPSTREAMS_PER_BOX || p->idle_n >= HF_PROXY_IDLE_UPSTREAMS_MAX;
}

void hf_upstream_put(struct hf_upstream *up)
{
    struct hf_pool *pool = up->pool;
    up->px = NULL;
    if (up->closing)
        return;
    if (!pool || up->proxy->freed || idle_full(up->proxy, pool)) {
        hf_upstream_close(up);
        return;
    }
    up->used = true;
    up->idle_since_ms = uv_now(up->proxy->loop);
    hf_list_add_head(&pool->idle, &up->node);
    pool->idle_n++;
    pool->box->idle_n++;
    up->proxy->idle_n++;
    hf_upstream_read(up, true); /* to hear when it is closed */
}

/* ---- connecting ---- */

/* The sandbox's certificate is its own affair: the path to it is the host's, not a network. */
static int begin_tls(struct hf_px *px, struct hf_upstream *up)
{
    struct hf_proxy *p = px->proxy;
    int r = p->tls_ctx ? 0 : hf_tls_client_ctx(NULL, false, HF_ALPN_HTTP1, &p->tls_ctx, NULL);
    if (r < 0)
        return r;
    up->tls = hf_tls_connect(p->tls_ctx, "127.0.0.1", 0);
    hf_outq_set_tls(&up->out, up->tls);
    up->shaking = true;
    up->px = px;
    px->up = up;
    r = hf_tls_start(up->tls, &up->out.raw);
    r = r < 0 ? r : hf_outq_flush(&up->out);
    if (r == 0)
        hf_upstream_read(up, true);
    return r;
}

static void on_dialed(void *arg, int fd)
{
    struct hf_dial *d = arg;
    struct hf_px *px = d->px;
    struct hf_proxy *p = d->proxy;
    free(d);
    if (!px) {
        hf_close(fd);
        hf_proxy_unref(p);
        return;
    }
    px->dial = NULL;
    int domain = 0;
    socklen_t len = sizeof(domain);
    if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0) {
        hf_close(fd);
        hf_px_upstream_failed(px, "");
        hf_proxy_unref(p);
        return;
    }
    bool is_tcp = domain != AF_UNIX;
    struct hf_upstream *up = upstream_new(px->pool, p, is_tcp);
    int r = is_tcp ? uv_tcp_open((uv_tcp_t *)up->stream, fd) : uv_pipe_open((uv_pipe_t *)up->stream, fd);
    if (r < 0) {
        hf_close(fd);
        hf_upstream_close(up);
        hf_px_upstream_failed(px, "");
    } else {
        if (is_tcp)
            (void)uv_tcp_nodelay((uv_tcp_t *)up->stream, 1);
        if (!px->tls)
            hf_px_attach(px, up);
        else if (begin_tls(px, up) < 0)
            hf_px_upstream_failed(px, "");
    }
    hf_proxy_unref(p);
}

static void on_pipe_connected(uv_connect_t *c, int status)
{
    struct hf_upstream *up = c->data;
    struct hf_px *px = up->px;
    free(c);
    if (up->closing || !px)
        return;
    if (status < 0)
        hf_px_upstream_failed(px, "");
    else
        hf_px_attach(px, up);
}

static void connect_envd(struct hf_px *px)
{
    /* libuv would cut a longer path. */
    if (!px->envd_socket || strlen(px->envd_socket) >= sizeof(((struct sockaddr_un *)NULL)->sun_path)) {
        hf_px_upstream_failed(px, "");
        return;
    }
    struct hf_upstream *up = upstream_new(px->pool, px->proxy, false);
    up->px = px;
    px->up = up;
    uv_connect_t *c = hf_new(uv_connect_t);
    c->data = up;
    uv_pipe_connect(c, (uv_pipe_t *)up->stream, px->envd_socket, on_pipe_connected);
}

void hf_upstream_connect(struct hf_px *px)
{
    struct hf_proxy *p = px->proxy;
    if (px->pool->port == HF_PROXY_ENVD_PORT) {
        connect_envd(px);
        return;
    }
    struct hf_dial *d = hf_new(struct hf_dial);
    d->proxy = p;
    d->px = px;
    px->dial = d;
    hf_proxy_ref(p);
    p->ops->dial(p->self, px->handle, px->pool->port, on_dialed, d);
}
