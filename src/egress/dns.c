/* The resolver that sandboxes see: UDP and TCP on port 53 of the fabric's resolver address. Who asks is known
 * by the source address, which the fabric keeps true. */
#include "egress/dns_int.h"

#include <stdio.h>
#include <unistd.h>

#include "base/log.h"

struct hf_dns_listener {
    struct hf_dns *dns;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_udp_t udp;
        uv_tcp_t tcp;
    } u;
};

struct conn {
    struct hf_list node;
    struct hf_dns *dns;
    struct hf_netd_box *box;
    uv_tcp_t tcp;
    uv_timer_t idle;
    unsigned refs; /* handles and unanswered questions */
    unsigned pending;
    bool closing, reading, draining;
    struct hf_buf in;
    char chunk[2048];
};

/* One question under way. */
struct ask {
    struct hf_dns_waiter w;
    struct hf_dns *dns;
    struct hf_dns_query q;
    struct hf_dns_listener *udp; /* NULL: over conn */
    struct sockaddr_storage peer;
    struct conn *conn;
};

/* ---- answers go out ---- */

static void conn_unref(struct conn *c)
{
    if (--c->refs)
        return;
    hf_dns_box(c->box)->conns--;
    hf_netd_box_unref(c->box);
    hf_buf_done(&c->in);
    free(c);
}

static void conn_closed(uv_handle_t *h)
{
    conn_unref(h->data);
}

static void conn_close(struct conn *c)
{
    if (c->closing)
        return;
    c->closing = true;
    hf_list_del(&c->node);
    uv_close((uv_handle_t *)&c->tcp, conn_closed);
    uv_close((uv_handle_t *)&c->idle, conn_closed);
}

struct out {
    uv_write_t req;
    uv_buf_t buf;
};

static void on_written(uv_write_t *req, int status)
{
    struct out *o = HF_CONTAINER_OF(req, struct out, req);
    struct conn *c = req->handle->data;
    free(o->buf.base);
    free(o);
    if (status < 0)
        conn_close(c);
}

static void send_tcp(struct conn *c, const uint8_t *p, size_t n)
{
    if (c->closing)
        return;
    struct out *o = hf_new(struct out);
    char *copy = hf_xmalloc(n + 2);
    copy[0] = (char)(n >> 8);
    copy[1] = (char)n;
    memcpy(copy + 2, p, n);
    o->buf = uv_buf_init(copy, (unsigned)n + 2);
    if (uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp) > HF_DNS_TCP_QUEUE_MAX ||
        uv_write(&o->req, (uv_stream_t *)&c->tcp, &o->buf, 1, on_written) < 0) {
        free(copy);
        free(o);
        conn_close(c);
    }
}

static void reply(struct ask *a, const struct hf_dns_response *r)
{
    static uint8_t out[HF_DNS_MSG_MAX];
    size_t n = hf_dns_build(&a->q, r, out, a->udp ? a->q.udp_size : sizeof(out));
    if (a->conn) {
        send_tcp(a->conn, out, n);
    } else {
        uv_buf_t b = uv_buf_init((char *)out, (unsigned)n);
        (void)uv_udp_try_send(&a->udp->u.udp, &b, 1, (struct sockaddr *)&a->peer);
    }
}

static void drain(struct conn *c);

static void ask_free(struct ask *a)
{
    struct conn *c = a->conn;
    hf_netd_box_unref(a->w.box);
    free(a);
    if (!c)
        return;
    c->pending--;
    if (!c->draining)
        drain(c);
    conn_unref(c);
}

static void reply_code(struct ask *a, uint8_t rcode, uint16_t ede, const char *text)
{
    const struct hf_dns_response r = {.rcode = rcode, .ede = ede, .ede_text = text};
    reply(a, &r);
}

/* ---- a question ---- */

static void denied(struct ask *a, const char *reason, const struct hf_addr *addr)
{
    a->w.box->counts.dns_denied++;
    hf_record_denial(a->w.box, "dns", a->q.name, addr, 53, a->conn ? "tcp" : "udp", reason);
}

static void answer(struct ask *a, const struct hf_dns_answer *said)
{
    struct hf_netd_box *b = a->w.box;
    uint64_t now = uv_now(b->d->loop);
    uint32_t left = said->expires_ms > now ? (uint32_t)((said->expires_ms - now) / 1000u) : 0;
    struct hf_dns_response r = {
        .rcode = said->rcode, .answer = said, .ttl_s = HF_MAX(left, 1u), .ede = HF_DNS_EDE_NONE};
    bool skip[HF_DNS_KEPT_MAX] = {false};
    size_t told = 0, hidden = 0;
    struct hf_addr addr, last = {0};
    for (size_t i = 0; i < said->n; i++) {
        if (!hf_dns_rr_addr(said, &said->rr[i], &addr))
            continue;
        /* The kernel and the L7 proxy know an address before the client does. */
        skip[i] = !hf_dns_addr_ok(b->policy, &addr, said->private_ok) ||
                  hf_netd_learn(b, a->q.name, &addr, r.ttl_s, said->private_ok) < 0;
        last = skip[i] ? addr : last;
        told += !skip[i];
        hidden += skip[i];
    }
    r.skip = skip;
    if (hidden)
        denied(a, "private", &last);
    if (hidden && !told)
        r = (struct hf_dns_response){.rcode = HF_DNS_REFUSED,
                                     .ede = HF_DNS_EDE_BLOCKED,
                                     .ede_text = "holdfast: the name has only addresses that are not open"};
    reply(a, &r);
}

/* False when it was answered here. */
static bool judged(struct ask *a)
{
    struct hf_netd_box *b = a->w.box;
    struct hf_dns_judgement j;
    hf_dns_judge(b->policy, &a->q, b->d->cfg.ipv6, hf_dns_zone_of(&a->dns->cfg, a->q.name)->private_ok, &j);
    switch (j.verdict) {
    case HF_DNS_ASK:
        return true;
    case HF_DNS_EMPTY:
        reply_code(a, HF_DNS_NOERROR, HF_DNS_EDE_NONE, NULL);
        return false;
    case HF_DNS_UNKNOWN:
        reply_code(a, HF_DNS_NXDOMAIN, HF_DNS_EDE_NONE, NULL);
        return false;
    case HF_DNS_REFUSE:
        break;
    }
    denied(a, j.reason, NULL);
    reply_code(a, HF_DNS_REFUSED, j.ede, j.text);
    return false;
}

static void on_answer(struct hf_dns_waiter *w, int r, struct hf_dns_answer *said)
{
    struct ask *a = HF_CONTAINER_OF(w, struct ask, w);
    /* The policy may have changed while the question was under way. */
    if (r == -ECANCELED || w->box->gone)
        ;
    else if (r < 0)
        reply_code(a, HF_DNS_SERVFAIL, HF_DNS_EDE_NO_REACHABLE, "holdfast: no upstream server answered");
    else if (judged(a))
        answer(a, said);
    ask_free(a);
}

static bool parsed(struct ask *a, const void *p, size_t n)
{
    switch (hf_dns_parse_query(p, n, &a->q)) {
    case 0:
        if (a->q.edns_version == 0)
            return true;
        reply_code(a, HF_DNS_BADVERS, HF_DNS_EDE_NONE, NULL);
        return false;
    case -EBADMSG:
        reply_code(a, HF_DNS_FORMERR, HF_DNS_EDE_NONE, NULL);
        return false;
    case -EOPNOTSUPP:
        reply_code(a, HF_DNS_NOTIMP, HF_DNS_EDE_NONE, NULL);
        return false;
    default:
        return false;
    }
}

/* Takes a; it is freed here or when the answer comes. */
static void serve(struct ask *a, const void *p, size_t n)
{
    struct hf_netd_box *b = a->w.box;
    struct hf_dns_answer *said = NULL;
    b->counts.dns_queries++;
    if (!hf_dns_take_token(hf_dns_box(b), uv_now(b->d->loop))) {
        denied(a, "rate", NULL);
    } else if (parsed(a, p, n) && judged(a)) {
        int r = hf_dns_lookup(a->dns, a->q.name, a->q.type, &a->w, &said);
        if (r == 0)
            return;
        if (r == 1)
            answer(a, said);
        else
            reply_code(a, HF_DNS_SERVFAIL, HF_DNS_EDE_NO_REACHABLE,
                       r == -EBUSY ? "holdfast: too many questions are under way"
                                   : "holdfast: no upstream server is known");
        hf_dns_answer_unref(said);
    }
    ask_free(a);
}

static struct ask *new_ask(struct hf_dns *dns, struct hf_netd_box *b)
{
    struct ask *a = hf_new(struct ask);
    a->dns = dns;
    a->w.box = hf_netd_box_ref(b);
    a->w.cb = on_answer;
    return a;
}

static struct hf_netd_box *box_of(struct hf_dns *dns, const struct sockaddr *from)
{
    struct hf_addr addr;
    uint16_t port;
    return hf_addr_from_sockaddr(from, &addr, &port) == 0 ? hf_netd_box_by_addr(dns->d, &addr) : NULL;
}

/* ---- UDP ---- */

static void alloc_udp(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    static char room[HF_DNS_MSG_MAX];
    *buf = uv_buf_init(room, sizeof(room));
}

static void on_udp(uv_udp_t *u, ssize_t n, const uv_buf_t *buf, const struct sockaddr *from, unsigned flags)
{
    struct hf_dns_listener *l = u->data;
    if (n <= 0 || !from || (flags & UV_UDP_PARTIAL))
        return;
    struct hf_netd_box *b = box_of(l->dns, from);
    if (!b)
        return;
    struct ask *a = new_ask(l->dns, b);
    a->udp = l;
    memcpy(&a->peer, from,
           from->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    serve(a, buf->base, (size_t)n);
}

/* ---- TCP ---- */

static void on_idle(uv_timer_t *t)
{
    struct conn *c = t->data;
    if (c->pending == 0)
        conn_close(c);
}

static void alloc_tcp(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct conn *c = h->data;
    *buf = uv_buf_init(c->chunk, sizeof(c->chunk));
}

static void set_reading(struct conn *c);

/* Serves the whole questions that are there, as far as their number allows; the rest waits for answers. */
static void drain(struct conn *c)
{
    c->refs++; /* an answer may close it */
    c->draining = true;
    while (!c->closing && c->pending < HF_DNS_TCP_PENDING_MAX && c->in.n >= 2) {
        const uint8_t *p = (const uint8_t *)c->in.p;
        size_t n = (size_t)(p[0] << 8 | p[1]);
        if (n > HF_DNS_QUERY_MAX) {
            conn_close(c);
            break;
        }
        if (c->in.n < n + 2)
            break;
        uint8_t msg[HF_DNS_QUERY_MAX];
        memcpy(msg, p + 2, n);
        hf_buf_consume(&c->in, n + 2);
        struct ask *a = new_ask(c->dns, c->box);
        a->conn = c;
        c->refs++;
        c->pending++;
        (void)uv_timer_again(&c->idle);
        serve(a, msg, n);
    }
    c->draining = false;
    if (!c->closing)
        set_reading(c);
    conn_unref(c);
}

static void on_tcp(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct conn *c = s->data;
    if (n < 0 || (n > 0 && hf_buf_add(&c->in, buf->base, (size_t)n) < 0))
        conn_close(c);
    else
        drain(c);
}

/* Not while more than a question waits. */
static void set_reading(struct conn *c)
{
    bool on = c->in.n < HF_DNS_QUERY_MAX + 2;
    if (on == c->reading)
        return;
    c->reading = on;
    if (on)
        (void)uv_read_start((uv_stream_t *)&c->tcp, alloc_tcp, on_tcp);
    else
        (void)uv_read_stop((uv_stream_t *)&c->tcp);
}

static void stranger_closed(uv_handle_t *h)
{
    struct conn *c = h->data;
    if (--c->refs == 0)
        free(c);
}

static void on_conn(uv_stream_t *s, int status)
{
    struct hf_dns_listener *l = s->data;
    struct hf_dns *dns = l->dns;
    struct sockaddr_storage ss;
    int len = sizeof(ss);
    if (status < 0)
        return;
    struct conn *c = hf_new(struct conn);
    c->dns = dns;
    (void)uv_tcp_init(dns->d->loop, &c->tcp);
    (void)uv_timer_init(dns->d->loop, &c->idle);
    c->tcp.data = c->idle.data = c;
    c->refs = 2;
    c->in = (struct hf_buf)HF_BUF_INIT(2 * (HF_DNS_QUERY_MAX + 2) + sizeof(c->chunk));
    hf_list_add_tail(&dns->conns, &c->node);
    bool ok = uv_accept(s, (uv_stream_t *)&c->tcp) == 0 &&
              uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&ss, &len) == 0;
    struct hf_netd_box *b = ok ? box_of(dns, (struct sockaddr *)&ss) : NULL;
    if (!b) {
        /* Nobody's: there is no box to count it for. */
        hf_list_del(&c->node);
        c->closing = true;
        uv_close((uv_handle_t *)&c->idle, stranger_closed);
        uv_close((uv_handle_t *)&c->tcp, stranger_closed);
        return;
    }
    c->box = hf_netd_box_ref(b);
    if (hf_dns_box(b)->conns++ >= HF_DNS_TCP_CONNS_MAX) {
        b->counts.dns_denied++;
        hf_record_denial(b, "dns", "", NULL, 53, "tcp", "connections");
        conn_close(c);
        return;
    }
    (void)uv_timer_start(&c->idle, on_idle, HF_DNS_TCP_IDLE_MS, HF_DNS_TCP_IDLE_MS);
    set_reading(c);
}

/* ---- listeners ---- */

static void listener_closed(uv_handle_t *h)
{
    free(h->data);
}

static int open_udp(struct hf_dns_listener *l, int fd)
{
    int r = uv_udp_init(l->dns->d->loop, &l->u.udp);
    l->u.handle.data = l;
    if (r == 0)
        r = uv_udp_open(&l->u.udp, fd);
    if (r < 0)
        (void)hf_close(fd);
    return r < 0 ? r : uv_udp_recv_start(&l->u.udp, alloc_udp, on_udp);
}

static int open_tcp(struct hf_dns_listener *l, int fd)
{
    int r = uv_tcp_init(l->dns->d->loop, &l->u.tcp);
    l->u.handle.data = l;
    if (r == 0)
        r = uv_tcp_open(&l->u.tcp, fd);
    if (r < 0)
        (void)hf_close(fd);
    return r < 0 ? r : uv_listen(&l->u.stream, 256, on_conn);
}

static int listen_on(struct hf_dns *dns, const struct hf_addr *a, int type, struct hf_dns_listener **ret,
                     struct hf_err *err)
{
    struct sockaddr_storage ss;
    socklen_t len = hf_addr_to_sockaddr(a, HF_NET_DNS_PORT, &ss);
    const int on = 1;
    char text[HF_ADDR_TEXT];
    hf_addr_format(a, text);
    hf_auto_close int fd = hf_net_socket(dns->d->net, ss.ss_family, type, 0);
    if (fd < 0)
        return hf_err_set(err, fd, "no socket in the fabric: %s", strerror(-fd));
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)&ss, len) < 0)
        return hf_err_set(err, -errno, "cannot bind to %s port %u in the fabric: %s", text, HF_NET_DNS_PORT,
                          strerror(errno));
    struct hf_dns_listener *l = hf_new(struct hf_dns_listener);
    l->dns = dns;
    *ret = l;
    int r = type == SOCK_DGRAM ? open_udp(l, hf_take_fd(&fd)) : open_tcp(l, hf_take_fd(&fd));
    return r < 0 ? hf_err_set(err, r, "cannot listen on %s: %s", text, uv_strerror(r)) : 0;
}

int hf_dns_start(struct hf_netd *d, struct hf_err *err)
{
    struct hf_dns *dns = hf_new(struct hf_dns);
    struct hf_net_addrs addrs;
    dns->d = d;
    dns->resolv_path = "/etc/resolv.conf";
    dns->cfg.from_host = true;
    hf_list_init(&dns->flight_list);
    hf_list_init(&dns->conns);
    hf_dns_cache_init(&dns->cache);
    d->dns = dns;
    int r = hf_net_addrs(&d->cfg, 1, &addrs);
    if (r < 0)
        return hf_err_set(err, r, "the fabric's subnets are not usable");
    const struct hf_addr *at[] = {&addrs.dns4, &addrs.dns6};
    for (size_t i = 0; r == 0 && i < (d->cfg.ipv6 ? 2u : 1u); i++) {
        r = listen_on(dns, at[i], SOCK_DGRAM, &dns->listeners[2 * i], err);
        if (r == 0)
            r = listen_on(dns, at[i], SOCK_STREAM, &dns->listeners[2 * i + 1], err);
    }
    return r;
}

int hf_dns_configure(struct hf_netd *d, const json_t *v, struct hf_err *err)
{
    struct hf_dns *dns = d->dns;
    struct hf_dns_config c;
    int r = hf_dns_config_parse(v, &c, err);
    if (r < 0)
        return r;
    hf_dns_config_done(&dns->cfg);
    dns->cfg = c;
    dns->generation++;
    dns->resolv_checked_ms = 0;
    dns->resolv_stamp = 0;
    hf_dns_cache_clear(&dns->cache); /* another server may say something else */
    return 0;
}

void hf_dns_stop(struct hf_netd *d)
{
    struct hf_dns *dns = d->dns;
    for (size_t i = 0; i < HF_ARRAY_LEN(dns->listeners); i++)
        if (dns->listeners[i])
            uv_close(&dns->listeners[i]->u.handle, listener_closed);
    hf_dns_flights_cancel(dns);
    while (!hf_list_empty(&dns->conns))
        conn_close(hf_list_entry(dns->conns.next, struct conn, node));
    hf_dns_cache_clear(&dns->cache);
    hf_dns_config_done(&dns->cfg);
}
