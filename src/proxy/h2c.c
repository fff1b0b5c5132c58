/* Ports that speak HTTP/2 inside the sandbox (h2c by prior knowledge), as gRPC does: exchanges on shared
 * connections of their pool. Nothing is sent twice, except what the port has not seen at all. */
#include <stdio.h>
#include <sys/socket.h>

#include "proxy/proxy_int.h"
#include "wire/client.h"

#define MSG_NOT_OPEN "The sandbox is running but port is not open"
#define MSG_NO_H2 "The sandbox's port does not speak HTTP/2"
#define MSG_FAILED "The sandbox closed the connection without an answer"

/* A connection; in pool->links. */
struct hf_link {
    struct hf_list node;
    struct hf_proxy *proxy;
    struct hf_client *client;
    size_t open; /* exchanges */
    uint64_t idle_since_ms;
    bool gone; /* takes nothing new; closed at the next sweep without exchanges */
};

struct link_dial {
    struct hf_proxy *proxy;
    struct hf_gx *gx; /* NULL once nobody waits any more */
};

struct hf_gx {
    struct hf_list node; /* in box->streams */
    struct hf_proxy *proxy;
    struct hf_pool *pool; /* NULL after hf_proxy_drop */
    struct hf_req *req;
    struct hf_link *link;
    struct hf_cx *cx;
    struct link_dial *dial;
    void *handle;
    char *host; /* masked, else NULL */
    struct hf_buf trailers;
    size_t n_trailers;
    uint64_t last_ms, dial_ms;
    bool ended, answered, retried, sent;
};

/* ---- the end of an exchange ---- */

static void leave_link(struct hf_gx *gx)
{
    struct hf_link *l = gx->link;
    gx->cx = NULL;
    gx->link = NULL;
    if (!l)
        return;
    l->open--;
    l->idle_since_ms = uv_now(gx->proxy->loop);
}

static void leave_box(struct hf_gx *gx)
{
    if (!gx->pool)
        return;
    gx->pool->users--;
    hf_box_count(gx->pool->box, gx->pool->port, -1);
    gx->pool = NULL;
    hf_list_del(&gx->node);
}

static void stop(struct hf_gx *gx)
{
    if (gx->cx)
        hf_cx_cancel(gx->cx);
    leave_link(gx);
    if (gx->dial)
        gx->dial->gx = NULL;
    gx->dial = NULL;
}

static void fail(struct hf_gx *gx, int status, const char *message)
{
    stop(gx);
    if (gx->answered || !gx->pool) {
        hf_res_abort(gx->req);
        return;
    }
    gx->answered = true;
    hf_route_answer(gx->req, status, gx->pool->box->id, message, gx->pool->port);
    hf_req_resume(gx->req);
}

void hf_gx_cut_all(struct hf_box *box, bool tell)
{
    hf_list_foreach_safe(it, &box->streams)
    {
        struct hf_gx *gx = hf_list_entry(it, struct hf_gx, node);
        if (tell && !gx->answered)
            fail(gx, 502, "The sandbox was not found");
        else
            fail(gx, 0, "");
        leave_box(gx);
    }
}

/* ---- the way back ---- */

/* A field as two texts in b. */
static int put_field(struct hf_buf *b, const struct hf_field *f)
{
    int r = hf_buf_add(b, f->name.p, f->name.n);
    r = r < 0 ? r : hf_buf_add(b, "", 1);
    r = r < 0 ? r : hf_buf_add(b, f->value.p, f->value.n);
    return r < 0 ? r : hf_buf_add(b, "", 1);
}

static void on_head(struct hf_cx *cx, int status, const struct hf_field *f, size_t n, int64_t length)
{
    struct hf_gx *gx = hf_cx_data(cx);
    struct hf_buf *b = &gx->proxy->scratch;
    gx->last_ms = uv_now(gx->proxy->loop);
    gx->answered = true;
    gx->pool->h2c = true;
    for (size_t i = 0; i < n; i++) {
        hf_buf_clear(b);
        if (put_field(b, &f[i]) == 0)
            hf_res_header(gx->req, b->p, b->p + f[i].name.n + 1);
    }
    hf_res_begin(gx->req, status, length);
}

static void on_answer_data(struct hf_cx *cx, const char *p, size_t n)
{
    struct hf_gx *gx = hf_cx_data(cx);
    gx->last_ms = uv_now(gx->proxy->loop);
    if (hf_res_write(gx->req, p, n))
        hf_cx_pause(cx);
}

static void on_trailers(struct hf_cx *cx, const struct hf_field *f, size_t n)
{
    struct hf_gx *gx = hf_cx_data(cx);
    for (size_t i = 0; i < n && gx->n_trailers < HF_CLIENT_HEADERS_MAX; i++)
        if (put_field(&gx->trailers, &f[i]) == 0)
            gx->n_trailers++;
}

static void on_answer_end(struct hf_cx *cx)
{
    struct hf_gx *gx = hf_cx_data(cx);
    const char *pairs[2 * HF_CLIENT_HEADERS_MAX];
    const char *p = gx->trailers.p;
    leave_link(gx);
    for (size_t i = 0; i < 2 * gx->n_trailers; i++) {
        pairs[i] = p;
        p += strlen(p) + 1;
    }
    hf_res_end_trailers(gx->req, pairs, gx->n_trailers);
}

static void on_request_drain(struct hf_cx *cx)
{
    struct hf_gx *gx = hf_cx_data(cx);
    gx->last_ms = uv_now(gx->proxy->loop);
    hf_req_resume(gx->req);
}

static void start(struct hf_gx *gx);

static void on_fail(struct hf_cx *cx, int r, bool answered, bool unsent)
{
    struct hf_gx *gx = hf_cx_data(cx);
    if (gx->link)
        gx->link->gone = true;
    leave_link(gx);
    if (unsent && !answered && !gx->retried && !gx->sent && gx->pool) {
        gx->retried = true;
        hf_req_pause(gx->req);
        start(gx);
        return;
    }
    fail(gx, 502, r == -EPROTO ? MSG_NO_H2 : MSG_FAILED);
}

static const struct hf_cx_ops cx_ops = {.on_head = on_head,
                                        .on_data = on_answer_data,
                                        .on_trailers = on_trailers,
                                        .on_drain = on_request_drain,
                                        .on_end = on_answer_end,
                                        .on_fail = on_fail};

/* ---- the way there ---- */

static void send_end(struct hf_gx *gx)
{
    struct hf_field f[HF_CLIENT_HEADERS_MAX];
    size_t n = 0;
    while (n < HF_CLIENT_HEADERS_MAX && hf_req_trailer_at(gx->req, n, &f[n].name, &f[n].value))
        n++;
    if (n)
        hf_cx_trailers(gx->cx, f, n);
    else
        hf_cx_end(gx->cx);
}

struct out {
    struct hf_field f[HF_HTTP_HEADERS_MAX + 8];
    size_t n;
    struct hf_buf path, cookie;
};

static void add(struct out *o, const char *name, struct hf_str value)
{
    o->f[o->n++] = (struct hf_field){hf_str_c(name), value};
}

static void add_headers(struct hf_gx *gx, struct out *o, bool cookies)
{
    const struct hf_req *req = gx->req;
    const struct hf_head *h = &req->head;
    for (uint16_t i = 0; i < h->n; i++) {
        const struct hf_hdr *e = &h->hdr[i];
        if (!hf_put_forwards(e) || (cookies && e->id == HF_H_COOKIE))
            continue;
        o->f[o->n++] =
            (struct hf_field){{req->head_p + e->name, e->name_n}, {req->head_p + e->value, e->value_n}};
    }
    struct hf_str te = hf_head_value(h, req->head_p, HF_H_TE);
    if (te.p && hf_token_list_has(te, "trailers"))
        add(o, "te", HF_STR("trailers"));
    add(o, "x-forwarded-for", hf_str_c(hf_req_peer(req)));
    add(o, "x-forwarded-proto", hf_req_tls(req) ? HF_STR("https") : HF_STR("http"));
    add(o, "x-forwarded-host", h->host);
}

/* "Cookie: a; b\r\n" as a field. */
static int add_cookies(struct hf_gx *gx, struct out *o)
{
    static const char lead[] = "Cookie: ";
    int r = hf_access_put_cookies(&o->cookie, &gx->req->head, gx->req->head_p);
    size_t skip = sizeof(lead) - 1;
    if (r == 0 && o->cookie.n > skip + 2)
        add(o, "cookie", (struct hf_str){o->cookie.p + skip, o->cookie.n - skip - 2});
    return r;
}

static int put_path(const struct hf_head *h, struct hf_buf *b)
{
    int r = hf_buf_add(b, h->path.p, h->path.n);
    if (r < 0 || !h->query.p)
        return r;
    if (hf_access_query_has(h->query))
        return hf_access_put_query(b, h->query);
    r = hf_buf_adds(b, "?");
    return r < 0 ? r : hf_buf_add(b, h->query.p, h->query.n);
}

static int begin(struct hf_gx *gx, struct out *o)
{
    struct hf_req *req = gx->req;
    const struct hf_head *h = &req->head;
    bool cookies = h->first[HF_H_COOKIE] && hf_access_cookies_change(h, req->head_p);
    int r = put_path(h, &o->path);
    add_headers(gx, o, cookies);
    if (r == 0 && cookies)
        r = add_cookies(gx, o);
    if (r < 0)
        return r;
    struct hf_cx_req q = {.method = hf_req_method(req),
                          .scheme = HF_STR("http"),
                          .authority = gx->host ? hf_str_c(gx->host) : h->host,
                          .path = {o->path.p, o->path.n},
                          .fields = o->f,
                          .n_fields = o->n,
                          .length = h->length};
    gx->cx = hf_cx_new(gx->link->client, &q, &cx_ops, gx);
    return gx->cx ? 0 : -EPROTO;
}

static void go(struct hf_gx *gx, struct hf_link *l)
{
    struct out o = {.path = HF_BUF_INIT(HF_HTTP_TARGET_MAX + 16), .cookie = HF_BUF_INIT(HF_HTTP_HEAD_MAX)};
    gx->link = l;
    l->open++;
    gx->last_ms = uv_now(gx->proxy->loop);
    int r = begin(gx, &o);
    hf_buf_done(&o.path);
    hf_buf_done(&o.cookie);
    if (r < 0) {
        fail(gx, 502, MSG_FAILED);
        return;
    }
    if (gx->ended && gx->req->head.length != 0)
        send_end(gx);
    hf_req_resume(gx->req);
}

static void on_data(struct hf_req *req, const char *p, size_t n)
{
    struct hf_gx *gx = hf_req_data(req);
    gx->last_ms = uv_now(gx->proxy->loop);
    gx->sent = true;
    if (gx->cx && hf_cx_write(gx->cx, p, n))
        hf_req_pause(req);
}

static void on_end(struct hf_req *req)
{
    struct hf_gx *gx = hf_req_data(req);
    gx->ended = true;
    if (gx->cx && req->head.length != 0)
        send_end(gx);
}

static void on_client_drain(struct hf_req *req)
{
    struct hf_gx *gx = hf_req_data(req);
    gx->last_ms = uv_now(gx->proxy->loop);
    if (gx->cx)
        hf_cx_resume(gx->cx);
}

static void on_close(struct hf_req *req)
{
    struct hf_gx *gx = hf_req_data(req);
    struct hf_proxy *p = gx->proxy;
    stop(gx);
    leave_box(gx);
    hf_buf_done(&gx->trailers);
    free(gx->host);
    free(gx);
    p->stats.active--;
    hf_proxy_unref(p);
}

static const struct hf_req_ops req_ops = {
    .on_data = on_data, .on_end = on_end, .on_drain = on_client_drain, .on_close = on_close};

/* ---- links ---- */

static void on_gone(void *arg)
{
    ((struct hf_link *)arg)->gone = true;
}

static struct hf_link *link_new(struct hf_pool *pool, struct hf_proxy *p, uv_stream_t *s)
{
    struct hf_link *l = hf_new(struct hf_link);
    l->proxy = p;
    l->client = hf_client_new(p->loop, s, NULL, true, on_gone, l);
    l->idle_since_ms = uv_now(p->loop);
    hf_list_add_tail(&pool->links, &l->node);
    p->stats.upstream_connects++;
    return l;
}

static void link_close(struct hf_link *l)
{
    hf_list_del(&l->node);
    hf_client_close(l->client);
    free(l);
}

void hf_link_close_all(struct hf_pool *pool)
{
    while (!hf_list_empty(&pool->links))
        link_close(hf_list_entry(pool->links.next, struct hf_link, node));
}

static void free_handle(uv_handle_t *h)
{
    free(h);
}

/* Takes the descriptor. NULL when it can't be used. */
static uv_stream_t *stream_of(uv_loop_t *loop, int fd)
{
    uv_tcp_t *t = hf_new(uv_tcp_t);
    (void)uv_tcp_init(loop, t);
    if (uv_tcp_open(t, fd) < 0) {
        hf_close(fd);
        uv_close((uv_handle_t *)t, free_handle);
        return NULL;
    }
    (void)uv_tcp_nodelay(t, 1);
    return (uv_stream_t *)t;
}

static void on_dialed(void *arg, int fd)
{
    struct link_dial *d = arg;
    struct hf_gx *gx = d->gx;
    struct hf_proxy *p = d->proxy;
    free(d);
    uv_stream_t *s = gx && fd >= 0 ? stream_of(p->loop, fd) : NULL;
    if (gx)
        gx->dial = NULL;
    else
        hf_close(fd);
    if (s)
        go(gx, link_new(gx->pool, p, s));
    else if (gx)
        fail(gx, 502, MSG_NOT_OPEN);
    hf_proxy_unref(p);
}

static void start(struct hf_gx *gx)
{
    struct hf_proxy *p = gx->proxy;
    hf_list_foreach(it, &gx->pool->links)
    {
        struct hf_link *l = hf_list_entry(it, struct hf_link, node);
        if (l->gone || !hf_client_free_slot(l->client))
            continue;
        go(gx, l);
        return;
    }
    struct link_dial *d = hf_new(struct link_dial);
    d->proxy = p;
    d->gx = gx;
    gx->dial = d;
    gx->dial_ms = uv_now(p->loop);
    hf_proxy_ref(p);
    p->ops->dial(p->self, gx->handle, gx->pool->port, on_dialed, d);
}

/* "application/grpc", also with "+proto" and parameters; grpc-web is ordinary HTTP. */
static bool is_grpc(const struct hf_req *req)
{
    static const char type[] = "application/grpc";
    struct hf_str v = hf_req_header(req, "content-type");
    size_t n = sizeof(type) - 1;
    if (v.n < n || !hf_str_caseeq((struct hf_str){v.p, n}, type))
        return false;
    return v.n == n || v.p[n] == '+' || v.p[n] == ';' || v.p[n] == ' ';
}

bool hf_gx_wanted(const struct hf_req *req, const struct hf_pool *pool, const struct hf_route *route)
{
    for (size_t i = 0; i < route->n_https_ports; i++)
        if (route->https_ports[i] == pool->port)
            return false;
    return pool->port != HF_PROXY_ENVD_PORT && hf_req_version(req) == 20 && (pool->h2c || is_grpc(req));
}

void hf_gx_start(struct hf_proxy *p, struct hf_req *req, struct hf_pool *pool, const struct hf_route *route)
{
    struct hf_gx *gx = hf_new(struct hf_gx);
    gx->proxy = p;
    gx->pool = pool;
    gx->req = req;
    gx->handle = route->handle;
    gx->host = hf_proxy_masked_host(route->mask_host, pool->port);
    gx->ended = req->head.length == 0;
    gx->last_ms = uv_now(p->loop);
    gx->trailers.max = HF_PROXY_RESPONSE_HEAD_MAX;
    pool->users++;
    hf_box_count(pool->box, pool->port, 1);
    hf_list_add_tail(&pool->box->streams, &gx->node);
    hf_proxy_ref(p);
    p->stats.requests++;
    p->stats.active++;
    hf_req_set_ops(req, &req_ops, gx);
    hf_req_pause(req);
    start(gx);
}

void hf_gx_sweep(struct hf_box *box, uint64_t now)
{
    hf_list_foreach_safe(it, &box->streams)
    {
        struct hf_gx *gx = hf_list_entry(it, struct hf_gx, node);
        const struct hf_proxy *p = gx->proxy;
        if (gx->dial && now - gx->dial_ms > p->connect_ms)
            fail(gx, 502, MSG_NOT_OPEN);
        else if (gx->cx && now - gx->last_ms > p->idle_ms)
            fail(gx, 504, "The sandbox did not answer in time");
    }
}

void hf_link_sweep(struct hf_pool *pool, uint64_t now, uint64_t idle_ms)
{
    hf_list_foreach_safe(it, &pool->links)
    {
        struct hf_link *l = hf_list_entry(it, struct hf_link, node);
        if (!l->open && (l->gone || now - l->idle_since_ms > idle_ms))
            link_close(l);
    }
}
