/* One exchange: the request's way to the upstream, failures and timeouts. response.c is the way back. */
#include <stdio.h>

#include "proxy/proxy_int.h"

#define MSG_NOT_OPEN "The sandbox is running but port is not open"

static struct hf_px *px_get(struct hf_proxy *p)
{
    struct hf_px *px = p->free_px;
    if (px) {
        p->free_px = px->next_free;
        p->free_n--;
    } else {
        px = hf_xmalloc(sizeof(*px));
    }
    memset(px, 0, offsetof(struct hf_px, parser));
    hf_head_init(&px->head, true);
    px->head_buf.max = HF_PROXY_RESPONSE_HEAD_MAX;
    px->proxy = p;
    hf_proxy_ref(p);
    return px;
}

static void px_put(struct hf_px *px)
{
    struct hf_proxy *p = px->proxy;
    if (px->pool) {
        px->pool->users--;
        hf_box_count(px->box, px->pool->port, -1);
    }
    hf_list_del(&px->node);
    hf_buf_done(&px->head_buf);
    free(px->envd_socket);
    free(px->host);
    if (p->free_n < HF_PROXY_FREE_PX && !p->freed) {
        px->next_free = p->free_px;
        p->free_px = px;
        p->free_n++;
    } else {
        free(px);
    }
    p->stats.active--;
    hf_proxy_unref(p);
}

static void drop_upstream(struct hf_px *px)
{
    struct hf_upstream *up = px->up;
    px->up = NULL;
    if (px->dial)
        px->dial->px = NULL;
    px->dial = NULL;
    px->connecting = false;
    if (up) {
        up->px = NULL;
        hf_upstream_close(up);
    }
}

/* GET and its like may be sent twice; with a body that has begun to flow, nothing may. */
static bool replayable(const struct hf_px *px)
{
    static const char *const methods[] = {"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"};
    struct hf_str m = hf_req_method(px->req);
    for (size_t i = 0; i < HF_ARRAY_LEN(methods); i++)
        if (hf_str_eq(m, methods[i]))
            return !px->body_sent;
    return false;
}

void hf_px_fail(struct hf_px *px, int status, const char *message)
{
    struct hf_req *req = px->req;
    drop_upstream(px);
    if (px->answered || !px->box) {
        hf_res_abort(req);
        return;
    }
    px->answered = true;
    req->expect = px->expect; /* a body that was never asked for costs the connection */
    hf_route_answer(req, status, px->box->id, message, px->pool->port);
    hf_req_resume(req);
}

/* Out of its box, which goes. */
static void leave_box(struct hf_px *px)
{
    if (px->pool)
        hf_box_count(px->box, px->pool->port, -1);
    px->box = NULL;
    px->pool = NULL;
    hf_list_del(&px->node);
}

void hf_px_cut(struct hf_px *px, bool tell)
{
    drop_upstream(px);
    if (tell && !px->answered && px->box) {
        char id[HF_PROXY_SANDBOX_ID_MAX + 1];
        (void)snprintf(id, sizeof(id), "%s", px->box->id);
        px->answered = true;
        leave_box(px);
        px->req->expect = px->expect;
        hf_route_answer(px->req, 502, id, "The sandbox was not found", 0);
        hf_req_resume(px->req);
        return;
    }
    leave_box(px);
    hf_res_abort(px->req);
}

/* ---- to the upstream ---- */

/* A failed write is no verdict: an early answer (413, 401) may already be on its way back. The reading side
 * decides; until then the rest of the request is dropped. */
static void after_send(struct hf_px *px, int r)
{
    if (r < 0)
        px->write_failed = px->reset = true;
    else if (hf_outq_len(&px->up->out) > hf_proxy_queue_high(px->proxy))
        hf_req_pause(px->req);
}

static int send_end(struct hf_px *px)
{
    if (px->req->head.length != HF_BODY_CHUNKED)
        return 0;
    uv_buf_t end = uv_buf_init((char *)"0\r\n\r\n", 5);
    return hf_outq_writev(&px->up->out, &end, 1);
}

void hf_px_attach(struct hf_px *px, struct hf_upstream *up)
{
    struct hf_proxy *p = px->proxy;
    px->up = up;
    up->px = px;
    px->connecting = false;
    px->last_ms = uv_now(p->loop);
    int r = hf_put_request_head(p, px);
    if (r < 0) {
        hf_px_fail(px, 502, "The request head is too large to be passed on");
        return;
    }
    uv_buf_t head = uv_buf_init(p->scratch.p, (unsigned)p->scratch.n);
    r = hf_outq_writev(&up->out, &head, 1);
    if (r == 0 && px->ended)
        r = send_end(px);
    if (r < 0) {
        px->unsent = true; /* not a byte was taken */
        hf_px_upstream_failed(px, "The sandbox closed the connection");
        return;
    }
    hf_upstream_read(up, true);
    hf_req_resume(px->req);
}

static void on_data(struct hf_req *req, const char *p, size_t n)
{
    struct hf_px *px = hf_req_data(req);
    if (!px->up || px->write_failed)
        return;
    px->body_sent = true;
    px->last_ms = uv_now(px->proxy->loop);
    int r;
    if (req->head.length == HF_BODY_CHUNKED) {
        char line[32];
        int len = snprintf(line, sizeof(line), "%zx\r\n", n);
        uv_buf_t v[3] = {uv_buf_init(line, (unsigned)len), uv_buf_init((char *)p, (unsigned)n),
                         uv_buf_init((char *)"\r\n", 2)};
        r = hf_outq_writev(&px->up->out, v, 3);
    } else {
        uv_buf_t v = uv_buf_init((char *)p, (unsigned)n);
        r = hf_outq_writev(&px->up->out, &v, 1);
    }
    after_send(px, r);
}

static void on_end(struct hf_req *req)
{
    struct hf_px *px = hf_req_data(req);
    px->ended = true;
    if (px->up && !px->write_failed && req->head.length != 0)
        after_send(px, send_end(px));
}

static void on_drain(struct hf_req *req)
{
    struct hf_px *px = hf_req_data(req);
    px->last_ms = uv_now(px->proxy->loop);
    if (px->up)
        hf_upstream_read(px->up, true);
}

static void on_close(struct hf_req *req)
{
    struct hf_px *px = hf_req_data(req);
    /* The client is gone, or an answer came before the request was complete: the application sees it. */
    drop_upstream(px);
    px_put(px);
}

static const struct hf_req_ops px_ops = {
    .on_data = on_data, .on_end = on_end, .on_drain = on_drain, .on_close = on_close};

/* ---- connecting ---- */

static void connect_new(struct hf_px *px)
{
    px->connecting = true;
    px->connect_since_ms = uv_now(px->proxy->loop);
    hf_req_pause(px->req);
    hf_upstream_connect(px);
}

char *hf_proxy_masked_host(const char *mask, uint16_t port)
{
    static const char var[] = "${PORT}";
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_HTTP_HEAD_MAX);
    int r = 0;
    if (!mask || !*mask)
        return NULL;
    for (const char *at; r == 0 && (at = strstr(mask, var)); mask = at + sizeof(var) - 1)
        r = hf_buf_addf(&b, "%.*s%u", (int)(at - mask), mask, port);
    if (r == 0)
        r = hf_buf_adds(&b, mask);
    return r == 0 ? hf_buf_take(&b) : NULL;
}

void hf_px_start(struct hf_proxy *p, struct hf_req *req, struct hf_pool *pool, const struct hf_route *route)
{
    struct hf_px *px = px_get(p);
    px->box = pool->box;
    px->pool = pool;
    pool->users++;
    hf_box_count(pool->box, pool->port, 1);
    px->req = req;
    px->handle = route->handle;
    px->for_head = hf_str_eq(hf_req_method(req), "HEAD");
    /* A tunnel of HTTP/2 would carry requests that nobody looks at (RFC 9113 has dropped this upgrade). */
    if (req->head.upgrade && hf_token_list_has(hf_head_value(&req->head, req->head_p, HF_H_UPGRADE), "h2c"))
        req->head.upgrade = false;
    px->expect = req->expect; /* the upstream answers it */
    req->expect = false;
    px->ended = req->head.length == 0;
    px->last_ms = uv_now(p->loop);
    for (size_t i = 0; i < route->n_https_ports && pool->port != HF_PROXY_ENVD_PORT; i++)
        px->tls = px->tls || route->https_ports[i] == pool->port;
    hf_list_add_tail(&pool->box->exchanges, &px->node);
    p->stats.requests++;
    p->stats.active++;
    hf_req_set_ops(req, &px_ops, px);
    if (pool->port != HF_PROXY_ENVD_PORT)
        px->host = hf_proxy_masked_host(route->mask_host, pool->port);
    else if (route->envd_socket)
        px->envd_socket = hf_xstrdup(route->envd_socket);
    struct hf_upstream *up = hf_upstream_take(pool, px->tls, !replayable(px) || req->head.length != 0);
    if (up)
        hf_px_attach(px, up);
    else
        connect_new(px);
}

void hf_px_upstream_failed(struct hf_px *px, const char *message)
{
    bool retry = px->up && px->up->used && !px->retried && !px->answered && px->mode == HF_PX_HEAD &&
                 px->head.pos == 0 && px->box && (px->unsent || replayable(px));
    bool was_connecting = px->connecting;
    drop_upstream(px);
    if (retry) {
        px->retried = true;
        px->unsent = px->write_failed = px->reset = false;
        connect_new(px);
        return;
    }
    if (px->answered) {
        hf_res_abort(px->req);
        return;
    }
    hf_px_fail(px, 502, was_connecting ? MSG_NOT_OPEN : message);
}

void hf_px_sweep(struct hf_px *px, uint64_t now)
{
    struct hf_proxy *p = px->proxy;
    if (px->connecting && now - px->connect_since_ms > p->connect_ms)
        hf_px_fail(px, 502, MSG_NOT_OPEN);
    else if (!px->connecting && px->up && now - px->last_ms > p->idle_ms)
        hf_px_fail(px, 504, "The sandbox did not answer in time");
}
