/* The L7 listener: accepts what the fabric redirects, says whose it is and where it was going. */
#include "egress/l7_int.h"

#include <netinet/tcp.h>

#include "base/log.h"

#define BACKLOG 1024

/* ---- a connection's end ---- */

void hf_l7_unref(struct hf_l7_conn *c)
{
    if (--c->handles)
        return;
    hf_netd_box_unref(c->box);
    hf_buf_done(&c->first);
    free(c->exec);
    free(c->tunnel_method);
    free(c->tunnel_path);
    free(c);
}

static void timer_closed(uv_handle_t *h)
{
    hf_l7_unref(h->data);
}

static void stream_closed(uv_handle_t *h)
{
    free(h);
}

void hf_l7_close_stream(uv_stream_t *s, bool reset)
{
    if (!s || uv_is_closing((uv_handle_t *)s))
        return;
    if (reset && s->type == UV_TCP && uv_tcp_close_reset((uv_tcp_t *)s, stream_closed) == 0)
        return;
    uv_close((uv_handle_t *)s, stream_closed);
}

void hf_l7_link_close(struct hf_l7_link *k, bool reset)
{
    hf_tls_free(hf_take_ptr(k->tls));
    hf_l7_close_stream(hf_take_ptr(k->stream), reset);
}

void hf_l7_end(struct hf_l7_conn *c, bool reset)
{
    enum hf_l7_state was = c->state;
    if (was == HF_L7_ENDED)
        return;
    c->state = HF_L7_ENDED;
    hf_list_del(&c->node);
    c->box->counts.l7_open--;
    c->l7->n_conns--;
    hf_l7_bind_cancel(hf_take_ptr(c->bind));
    hf_l7_up_cancel(hf_take_ptr(c->up));
    if (was == HF_L7_HTTP)
        hf_l7_http_end(c, reset);
    if (c->pipe)
        hf_l7_pipe_end(hf_take_ptr(c->pipe), reset);
    hf_l7_close_stream((uv_stream_t *)hf_take_ptr(c->client), reset);
    uv_close((uv_handle_t *)&c->timer, timer_closed);
}

/* ---- accept ---- */

static int peer_of(uv_tcp_t *t, struct hf_addr *ret, uint16_t *ret_port)
{
    struct sockaddr_storage ss;
    int n = sizeof ss;
    int r = uv_tcp_getpeername(t, (struct sockaddr *)&ss, &n);
    return r < 0 ? r : hf_addr_from_sockaddr((struct sockaddr *)&ss, ret, ret_port);
}

static int original_of(uv_tcp_t *t, struct hf_addr *ret, uint16_t *ret_port)
{
    uv_os_fd_t fd;
    int r = uv_fileno((uv_handle_t *)t, &fd);
    return r < 0 ? r : hf_net_original_dst(fd, ret, ret_port);
}

/* Connections that have not said a byte stand at the list's front, so this looks at few. */
static unsigned waiting_of(const struct hf_netd_box *b)
{
    unsigned n = 0;
    hf_list_foreach(it, &b->l7)
    {
        if (!hf_list_entry(it, struct hf_l7_conn, node)->waiting)
            break;
        n++;
    }
    return n;
}

static const char *no_room(const struct hf_l7 *l, const struct hf_netd_box *b)
{
    if (l->n_conns >= HF_L7_CONNS_MAX)
        return "limit: connections of all sandboxes";
    if (b->counts.l7_open >= HF_L7_BOX_CONNS_MAX)
        return "limit: connections of a sandbox";
    if (waiting_of(b) >= HF_L7_BOX_WAITING_MAX)
        return "limit: silent connections of a sandbox";
    return NULL;
}

static struct hf_l7_conn *conn_new(struct hf_l7 *l, struct hf_netd_box *b, uv_tcp_t *client)
{
    struct hf_l7_conn *c = hf_new(struct hf_l7_conn);
    c->l7 = l;
    c->box = hf_netd_box_ref(b);
    c->client = client;
    c->waiting = true;
    c->first = HF_BUF_INIT(HF_HELLO_MAX);
    c->handles = 1;
    client->data = c;
    hf_list_init(&c->xchgs);
    hf_list_init(&c->clients);
    hf_list_init(&c->held);
    (void)uv_timer_init(l->d->loop, &c->timer);
    c->timer.data = c;
    hf_list_add_head(&b->l7, &c->node);
    b->counts.l7_open++;
    l->n_conns++;
    return c;
}

/* False: the stream was not taken. */
static bool admit(struct hf_l7 *l, uv_tcp_t *t)
{
    struct hf_addr peer, dst;
    uint16_t src_port, port;
    if (peer_of(t, &peer, &src_port) < 0)
        return false;
    struct hf_netd_box *b = hf_netd_box_by_addr(l->d, &peer);
    /* Who connects to the listener itself was not redirected: there is no destination. */
    if (!b || original_of(t, &dst, &port) < 0)
        return false;
    const char *why = hf_addr_never(&dst) ? "never" : no_room(l, b);
    if (why) {
        b->counts.l7_denied++;
        hf_record_denial(b, "connection", "", &dst, port, "tcp", why);
        return false;
    }
    struct hf_l7_conn *c = conn_new(l, b, t);
    c->src = peer;
    c->dst = dst;
    c->port = port;
    c->src_port = src_port;
    (void)uv_tcp_nodelay(t, 1);
    hf_l7_begin(c);
    return true;
}

static void on_connection(uv_stream_t *s, int status)
{
    struct hf_l7 *l = s->data;
    if (status < 0)
        return;
    uv_tcp_t *t = hf_new(uv_tcp_t);
    (void)uv_tcp_init(l->d->loop, t);
    if (uv_accept(s, (uv_stream_t *)t) < 0 || !admit(l, t))
        hf_l7_close_stream((uv_stream_t *)t, true);
}

static int listen_on(struct hf_l7 *l, int domain)
{
    hf_auto_close int fd = hf_net_socket(l->d->net, domain, SOCK_STREAM, 0);
    if (fd < 0)
        return fd;
    int one = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (domain == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    struct sockaddr_storage ss;
    struct hf_addr any = {.family = domain == AF_INET6 ? 6 : 4};
    socklen_t n = hf_addr_to_sockaddr(&any, HF_NET_L7_PORT, &ss);
    if (bind(fd, (struct sockaddr *)&ss, n) < 0)
        return -errno;
    uv_tcp_t *t = &l->listeners[l->n_listeners];
    int r = uv_tcp_init(l->d->loop, t);
    if (r < 0)
        return r;
    l->n_listeners++;
    l->handles++;
    t->data = l;
    r = uv_tcp_open(t, fd);
    if (r < 0)
        return r;
    (void)hf_take_fd(&fd);
    return uv_listen((uv_stream_t *)t, BACKLOG, on_connection);
}

static void handle_closed(struct hf_l7 *l)
{
    if (--l->handles)
        return;
    hf_l7_mitm_done(l);
    hf_tls_ctx_unref(l->up_ctx);
    free(l->up_ca);
    free(l);
}

static void listener_closed(uv_handle_t *h)
{
    handle_closed(h->data);
}

static void server_closed(void *arg)
{
    handle_closed(arg);
}

int hf_l7_start(struct hf_netd *d, struct hf_err *err)
{
    struct hf_l7 *l = hf_new(struct hf_l7);
    l->d = d;
    hf_list_init(&l->leaf_order);
    hf_list_init(&l->dead);
    hf_list_init(&l->owners);
    l->http = hf_http_server_new(d->loop, &hf_l7_handler, l);
    (void)uv_timer_init(d->loop, &l->reaper);
    l->reaper.data = l;
    l->handles = 2; /* the server and the reaper */
    d->l7 = l;
    int r = listen_on(l, AF_INET);
    if (r == 0 && d->cfg.ipv6)
        r = listen_on(l, AF_INET6);
    if (r < 0) {
        hf_l7_stop(d);
        return hf_err_set(err, r, "the L7 listener can't use TCP port %u in the fabric: %s", HF_NET_L7_PORT,
                          strerror(-r));
    }
    return 0;
}

static void end_all(struct hf_netd_box *b)
{
    hf_list_foreach_safe(it, &b->l7) hf_l7_end(hf_list_entry(it, struct hf_l7_conn, node), true);
}

void hf_l7_stop(struct hf_netd *d)
{
    struct hf_l7 *l = d->l7;
    if (!l)
        return;
    size_t pos = 0;
    struct hf_netd_box *b;
    while ((b = hf_map_next(&d->boxes, &pos, NULL)))
        end_all(b);
    hf_l7_owners_end(l);
    hf_l7_reap(l);
    d->l7 = NULL;
    for (unsigned i = 0; i < l->n_listeners; i++)
        uv_close((uv_handle_t *)&l->listeners[i], listener_closed);
    uv_close((uv_handle_t *)&l->reaper, listener_closed);
    hf_http_server_free(l->http, server_closed, l);
}

void hf_l7_rejudge(struct hf_netd_box *b)
{
    if (b->gone) {
        end_all(b);
        return;
    }
    hf_list_foreach_safe(it, &b->l7) hf_l7_conn_rejudge(hf_list_entry(it, struct hf_l7_conn, node));
}

void hf_l7_tenant_changed(struct hf_netd_tenant *t)
{
    /* Secrets are looked up at each request, and leaves belong to the authority that signed them. */
    hf_log_debug("a tenant's secrets or authority changed", "tenant=%s", t->name);
}
