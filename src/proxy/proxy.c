/* The proxy's life, its boxes and pools, and the sweep of timeouts. */
#include "proxy/proxy_int.h"
#include "wire/tls.h"

#include <stdio.h>
#include <sys/socket.h>

void hf_proxy_ref(struct hf_proxy *p)
{
    p->refs++;
}

void hf_proxy_unref(struct hf_proxy *p)
{
    if (--p->refs)
        return;
    while (p->free_px) {
        struct hf_px *px = p->free_px;
        p->free_px = px->next_free;
        free(px);
    }
    hf_map_done(&p->boxes);
    hf_map_done(&p->tenants);
    hf_buf_done(&p->scratch);
    hf_buf_done(&p->plain);
    hf_tls_ctx_unref(p->tls_ctx);
    free(p->read_buf);
    free(p->domain);
    free(p);
}

void hf_stream_linger0(uv_stream_t *s)
{
    struct linger l = {1, 0};
    uv_os_fd_t fd;
    if (s->type == UV_TCP && uv_fileno((uv_handle_t *)s, &fd) == 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
}

struct hf_proxy *hf_proxy_new(uv_loop_t *loop, const char *domain, const struct hf_proxy_ops *ops, void *self)
{
    struct hf_proxy *p = hf_new(struct hf_proxy);
    const char *d = domain ? domain : "localhost";
    const char *colon = strrchr(d, ':'); /* "sbx.test:8443": ports do not matter in a Host */
    p->loop = loop;
    p->domain_n = colon ? (size_t)(colon - d) : strlen(d);
    p->domain = hf_xstrndup(d, p->domain_n);
    for (char *c = p->domain; *c; c++)
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c | 0x20);
    p->ops = ops;
    p->self = self;
    p->scratch.max = 2 * HF_HTTP_HEAD_MAX;
    p->plain.max = 2 * HF_PROXY_READ_SIZE;
    p->read_buf = hf_xmalloc(HF_PROXY_READ_SIZE);
    hf_proxy_set_timeouts(p, 0, 0, 0);
    hf_proxy_set_limits(p, 0, 0);
    (void)uv_timer_init(loop, &p->sweep);
    p->sweep.data = p;
    p->refs = 1; /* the timer */
    return p;
}

void hf_proxy_set_timeouts(struct hf_proxy *p, uint64_t connect_ms, uint64_t idle_ms,
                           uint64_t upstream_idle_ms)
{
    p->connect_ms = connect_ms ? connect_ms : HF_PROXY_CONNECT_TIMEOUT_MS;
    p->idle_ms = idle_ms ? idle_ms : HF_PROXY_IDLE_TIMEOUT_MS;
    p->upstream_idle_ms = upstream_idle_ms ? upstream_idle_ms : HF_PROXY_UPSTREAM_IDLE_MS;
}

void hf_proxy_set_limits(struct hf_proxy *p, size_t per_box, size_t per_tenant)
{
    p->box_max = per_box ? per_box : HF_PROXY_OPEN_PER_BOX;
    p->tenant_max = per_tenant ? per_tenant : HF_PROXY_OPEN_PER_TENANT;
}

/* ---- boxes ---- */

static struct hf_tenant_count *join_tenant(struct hf_proxy *p, const char *name)
{
    struct hf_str key = hf_str_c(name ? name : "");
    struct hf_tenant_count *t = hf_map_get(&p->tenants, key);
    if (!t) {
        t = hf_new(struct hf_tenant_count);
        t->name = hf_str_dup(key);
        (void)hf_map_put(&p->tenants, key, t);
    }
    t->boxes++;
    return t;
}

static void leave_tenant(struct hf_proxy *p, struct hf_tenant_count *t)
{
    if (--t->boxes)
        return;
    (void)hf_map_del(&p->tenants, hf_str_c(t->name));
    free(t->name);
    free(t);
}

static void free_box(struct hf_proxy *p, struct hf_box *box)
{
    (void)hf_map_del(&p->boxes, hf_str_c(box->id));
    leave_tenant(p, box->tenant);
    hf_list_foreach_safe(it, &box->pools)
    {
        free(hf_list_entry(it, struct hf_pool, node));
    }
    free(box);
}

static void drop_box(struct hf_proxy *p, struct hf_box *box, bool tell)
{
    hf_list_foreach_safe(it, &box->exchanges)
    {
        hf_px_cut(hf_list_entry(it, struct hf_px, node), tell);
    }
    hf_tunnel_cut_all(box);
    hf_gx_cut_all(box, tell);
    hf_list_foreach(it, &box->pools)
    {
        struct hf_pool *pool = hf_list_entry(it, struct hf_pool, node);
        hf_link_close_all(pool);
        while (!hf_list_empty(&pool->idle))
            hf_upstream_close(hf_list_entry(pool->idle.next, struct hf_upstream, node));
    }
    free_box(p, box);
}

void hf_proxy_drop(struct hf_proxy *p, const char *sandbox_id)
{
    struct hf_box *box = hf_map_get(&p->boxes, hf_str_c(sandbox_id));
    if (box)
        drop_box(p, box, true);
}

static void sweep_pool(struct hf_proxy *p, struct hf_pool *pool, uint64_t now)
{
    /* The longest idle one is the last. */
    while (!hf_list_empty(&pool->idle)) {
        struct hf_upstream *up = hf_list_entry(pool->idle.prev, struct hf_upstream, node);
        if (now - up->idle_since_ms <= p->upstream_idle_ms)
            return;
        hf_upstream_close(up);
    }
}

/* True when nothing is left in it. */
static bool sweep_box(struct hf_proxy *p, struct hf_box *box, uint64_t now)
{
    hf_list_foreach_safe(it, &box->exchanges)
    {
        hf_px_sweep(hf_list_entry(it, struct hf_px, node), now);
    }
    hf_tunnel_sweep(box, now, p->idle_ms);
    hf_gx_sweep(box, now);
    hf_list_foreach_safe(it, &box->pools)
    {
        struct hf_pool *pool = hf_list_entry(it, struct hf_pool, node);
        sweep_pool(p, pool, now);
        hf_link_sweep(pool, now, p->upstream_idle_ms);
        if (pool->users || !hf_list_empty(&pool->links) || !hf_list_empty(&pool->idle))
            continue;
        hf_list_del(&pool->node);
        free(pool);
    }
    return hf_list_empty(&box->pools) && hf_list_empty(&box->tunnels);
}

static void on_sweep(uv_timer_t *timer)
{
    struct hf_proxy *p = timer->data;
    uint64_t now = uv_now(p->loop);
    size_t pos = 0;
    struct hf_box *box;
    while ((box = hf_map_next(&p->boxes, &pos, NULL))) {
        if (!sweep_box(p, box, now))
            continue;
        free_box(p, box);
        pos = 0; /* the map has changed */
    }
    if (p->boxes.len)
        return;
    (void)uv_timer_stop(&p->sweep);
    p->sweeping = false;
}

static void start_sweep(struct hf_proxy *p)
{
    uint64_t ms = HF_MIN(HF_MIN(p->connect_ms, p->idle_ms), p->upstream_idle_ms) / 4;
    ms = HF_MIN(HF_MAX(ms, 5u), HF_PROXY_SWEEP_MS);
    (void)uv_timer_start(&p->sweep, on_sweep, ms, ms);
    uv_unref((uv_handle_t *)&p->sweep);
    p->sweeping = true;
}

struct hf_pool *hf_proxy_pool(struct hf_proxy *p, struct hf_str id, uint16_t port, const char *tenant)
{
    struct hf_box *box = hf_map_get(&p->boxes, id);
    if (!box) {
        box = hf_new(struct hf_box);
        memcpy(box->id, id.p, id.n);
        hf_list_init(&box->pools);
        hf_list_init(&box->exchanges);
        hf_list_init(&box->tunnels);
        hf_list_init(&box->streams);
        box->tenant = join_tenant(p, tenant);
        (void)hf_map_put(&p->boxes, id, box);
        if (!p->sweeping)
            start_sweep(p);
    }
    hf_list_foreach(it, &box->pools)
    {
        struct hf_pool *pool = hf_list_entry(it, struct hf_pool, node);
        if (pool->port == port)
            return pool;
    }
    struct hf_pool *pool = hf_new(struct hf_pool);
    pool->box = box;
    pool->port = port;
    hf_list_init(&pool->idle);
    hf_list_init(&pool->links);
    hf_list_add_head(&box->pools, &pool->node);
    return pool;
}

/* ---- requests ---- */

/* True when the request was answered. */
static bool refuse_path(struct hf_req *req)
{
    int r = hf_route_reserved(hf_req_path(req));
    if (r < 0)
        hf_route_refuse(req, "the path has a malformed percent-encoding");
    else if (r > 0)
        hf_route_answer_reserved(req);
    return r != 0;
}

static void start(struct hf_proxy *p, struct hf_req *req, const struct hf_target *t,
                  const struct hf_route *route)
{
    char message[160];
    struct hf_pool *pool = hf_proxy_pool(p, hf_str_c(t->id), t->port, route->tenant);
    const struct hf_box *box = pool->box;
    unsigned kind = hf_open_kind(t->port);
    bool box_full = box->open[kind] >= p->box_max;
    if (!box_full && box->tenant->open[kind] < p->tenant_max) {
        if (hf_gx_wanted(req, pool, route))
            hf_gx_start(p, req, pool, route);
        else
            hf_px_start(p, req, pool, route);
        return;
    }
    (void)snprintf(message, sizeof(message),
                   "Too many open connections to %s (the limit is %zu), close some or try again in a moment",
                   box_full ? "this sandbox" : "the sandboxes of this tenant",
                   box_full ? p->box_max : p->tenant_max);
    hf_res_header(req, "Retry-After", "1");
    hf_route_answer(req, 429, t->id, message, 0);
}

/* Who may not talk to envd can't wake the sandbox by trying. The question whether it runs wakes it as all
 * does, but not when the pause itself has just cut a stream: the SDK asks it then. */
static bool may_wake(struct hf_req *req, const struct hf_target *t, const struct hf_route *route)
{
    struct hf_str given = hf_req_header(req, "x-access-token");
    bool probe = route->just_paused && hf_str_eq(hf_req_path(req), "/health");
    if (t->port != HF_PROXY_ENVD_PORT ||
        (!probe && given.p && hf_str_eq_consttime(given, hf_str_c(route->envd_token))))
        return true;
    hf_route_answer(req, 502, t->id, "The sandbox was not found", 0);
    return false;
}

void hf_proxy_handle(struct hf_proxy *p, struct hf_req *req)
{
    struct hf_target t;
    struct hf_route route = {0};
    const char *why = "";
    if (hf_route_parse(p, req, &t, &why) < 0) {
        hf_route_refuse(req, why);
        return;
    }
    if (t.port == HF_PROXY_ENVD_PORT && refuse_path(req))
        return;
    p->ops->lookup(p->self, hf_str_c(t.id), &route);
    switch (route.state) {
    case HF_ROUTE_NOT_FOUND:
        hf_route_answer(req, 502, t.id, "The sandbox was not found", 0);
        return;
    case HF_ROUTE_TRANSITION:
        hf_route_answer(req, 409, t.id, "The sandbox is changing its state, try again in a moment", 0);
        return;
    case HF_ROUTE_ASLEEP:
        if (may_wake(req, &t, &route) && hf_access_check(req, &t, &route) == 0)
            hf_hold_start(p, req, &t);
        return;
    default:
        if (hf_access_check(req, &t, &route) == 0)
            start(p, req, &t, &route);
    }
}

void hf_proxy_stats(const struct hf_proxy *p, struct hf_proxy_stats *ret)
{
    *ret = p->stats;
}

static void on_timer_closed(uv_handle_t *h)
{
    hf_proxy_unref(h->data);
}

void hf_proxy_free(struct hf_proxy *p)
{
    if (!p || p->freed)
        return;
    p->freed = true;
    size_t pos = 0;
    struct hf_box *box;
    while ((box = hf_map_next(&p->boxes, &pos, NULL))) {
        drop_box(p, box, false);
        pos = 0;
    }
    uv_close((uv_handle_t *)&p->sweep, on_timer_closed);
}
