/* Questions to upstream servers: one flight a name and type, however many boxes wait for it. Every try has a
 * socket of its own, so its source port is the kernel's random choice, and a random id; UDP first, TCP when
 * the answer was cut. */
#include "egress/dns_int.h"

#include <stdio.h>
#include <sys/random.h>

#include "base/log.h"

struct flight {
    struct hf_list node, waiters;
    struct hf_dns *dns;
    struct hf_dns_zone zone; /* as it was when the flight began */
    unsigned generation, tries;
    uint16_t type, id;
    uint64_t end_ms;
    uv_udp_t *udp;
    uv_tcp_t *tcp;
    uv_timer_t *timer;
    uint8_t query[2 + HF_DNS_PLAIN_SIZE]; /* with the length in front, for TCP */
    size_t query_n;
    struct hf_buf in; /* over TCP */
    char chunk[4096];
    char key[HF_DNS_NAME_MAX + 24];
    char name[HF_DNS_NAME_MAX];
};

static void free_handle(uv_handle_t *h)
{
    free(h);
}

/* A closed handle must not find the flight any more. */
static void drop_handle(void *p)
{
    uv_handle_t *h = p;
    if (!h)
        return;
    h->data = NULL;
    uv_close(h, free_handle);
}

static void drop_sockets(struct flight *f)
{
    drop_handle(f->udp);
    drop_handle(f->tcp);
    f->udp = NULL;
    f->tcp = NULL;
    hf_buf_clear(&f->in);
}

static void finish(struct flight *f, int r, struct hf_dns_answer *a)
{
    struct hf_dns *dns = f->dns;
    drop_sockets(f);
    drop_handle(f->timer);
    (void)hf_map_del(&dns->flights, hf_str_c(f->key));
    hf_list_del(&f->node);
    dns->n_flights--;
    if (r == 0 && f->generation == dns->generation)
        hf_dns_cache_put(&dns->cache, f->name, f->type, a);
    while (!hf_list_empty(&f->waiters)) {
        struct hf_dns_waiter *w = hf_list_entry(f->waiters.next, struct hf_dns_waiter, node);
        hf_list_del(&w->node);
        hf_dns_box(w->box)->asks--;
        w->cb(w, r, a);
    }
    hf_dns_answer_unref(a);
    hf_buf_done(&f->in);
    free(f);
}

static void accept_answer(struct flight *f, struct hf_dns_answer *a)
{
    uint32_t max = a->negative ? HF_DNS_NEGATIVE_MAX_S : HF_DNS_TTL_MAX_S;
    uint32_t ttl = HF_MAX(HF_MIN(a->ttl_s, max), HF_DNS_TTL_MIN_S);
    a->private_ok = f->zone.private_ok;
    a->expires_ms = uv_now(f->dns->d->loop) + (uint64_t)ttl * 1000u;
    finish(f, 0, a);
}

static void next_try(struct flight *f, int r);
static void try_tcp(struct flight *f);

/* A whole message from the server that was asked. */
static void on_message(struct flight *f, const void *p, size_t n, bool tcp)
{
    struct hf_dns_answer *a = NULL;
    int r = hf_dns_parse_reply(p, n, f->id, f->name, f->type, &a);
    if (r == 1)
        accept_answer(f, a);
    else if (r == 0 && !tcp)
        try_tcp(f);
    else if (r != -EPROTO || tcp)
        next_try(f, -EIO);
}

static void alloc_chunk(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    static char udp[HF_DNS_MSG_MAX];
    struct flight *f = h->data;
    *buf = h->type == UV_UDP ? uv_buf_init(udp, sizeof(udp)) : uv_buf_init(f->chunk, sizeof(f->chunk));
}

static void on_udp(uv_udp_t *u, ssize_t n, const uv_buf_t *buf, const struct sockaddr *from, unsigned flags)
{
    struct flight *f = u->data;
    if (!f || (n == 0 && !from))
        return;
    if (n < 0)
        next_try(f, -EIO);
    else if (!(flags & UV_UDP_PARTIAL))
        on_message(f, buf->base, (size_t)n, false);
}

static void on_tcp_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct flight *f = s->data;
    if (!f)
        return;
    if (n < 0 || (n > 0 && hf_buf_add(&f->in, buf->base, (size_t)n) < 0)) {
        next_try(f, -EIO);
        return;
    }
    const uint8_t *p = (const uint8_t *)f->in.p;
    if (f->in.n >= 2 && f->in.n >= 2 + (size_t)(p[0] << 8 | p[1]))
        on_message(f, p + 2, (size_t)(p[0] << 8 | p[1]), true);
}

static void on_tcp_connected(uv_connect_t *c, int status)
{
    struct flight *f = c->handle->data;
    free(c);
    if (!f || status == UV_ECANCELED)
        return;
    uv_buf_t b = uv_buf_init((char *)f->query, (unsigned)f->query_n + 2);
    if (status < 0 || uv_try_write((uv_stream_t *)f->tcp, &b, 1) != (int)b.len ||
        uv_read_start((uv_stream_t *)f->tcp, alloc_chunk, on_tcp_read) < 0)
        next_try(f, -EIO);
}

static socklen_t server_addr(const struct flight *f, struct sockaddr_storage *ss)
{
    const struct hf_dns_server *s = &f->zone.servers[(f->tries - 1) % f->zone.n];
    return hf_addr_to_sockaddr(&s->addr, s->port, ss);
}

static void try_tcp(struct flight *f)
{
    struct sockaddr_storage ss;
    (void)server_addr(f, &ss);
    drop_sockets(f);
    f->tcp = hf_new(uv_tcp_t);
    (void)uv_tcp_init(f->dns->d->loop, f->tcp);
    f->tcp->data = f;
    uv_connect_t *c = hf_new(uv_connect_t);
    if (uv_tcp_connect(c, f->tcp, (struct sockaddr *)&ss, on_tcp_connected) < 0) {
        free(c);
        next_try(f, -EIO);
    }
}

static int try_udp(struct flight *f)
{
    struct sockaddr_storage ss;
    (void)server_addr(f, &ss);
    drop_sockets(f);
    f->udp = hf_new(uv_udp_t);
    (void)uv_udp_init(f->dns->d->loop, f->udp);
    f->udp->data = f;
    uv_buf_t b = uv_buf_init((char *)f->query + 2, (unsigned)f->query_n);
    int r = uv_udp_connect(f->udp, (struct sockaddr *)&ss); /* answers of others don't arrive */
    if (r == 0)
        r = uv_udp_recv_start(f->udp, alloc_chunk, on_udp);
    if (r == 0)
        r = uv_udp_try_send(f->udp, &b, 1, NULL);
    return r < 0 ? r : 0;
}

static void on_timer(uv_timer_t *t)
{
    if (t->data)
        next_try(t->data, -ETIMEDOUT);
}

/* r: how the try before ended. */
static void next_try(struct flight *f, int r)
{
    for (;;) {
        uint64_t now = uv_now(f->dns->d->loop);
        if (f->tries == HF_DNS_TRIES * f->zone.n || now >= f->end_ms) {
            finish(f, r, NULL);
            return;
        }
        f->tries++;
        if (getrandom(&f->id, sizeof(f->id), 0) != sizeof(f->id)) {
            finish(f, -EIO, NULL);
            return;
        }
        int n = hf_dns_build_query(f->id, f->name, f->type, true, f->query + 2, HF_DNS_PLAIN_SIZE);
        if (n < 0) {
            finish(f, -EIO, NULL);
            return;
        }
        f->query_n = (size_t)n;
        f->query[0] = (uint8_t)(n >> 8);
        f->query[1] = (uint8_t)n;
        if (try_udp(f) == 0) {
            (void)uv_timer_start(f->timer, on_timer, HF_MIN((uint64_t)HF_DNS_TRY_MS, f->end_ms - now), 0);
            return;
        }
        r = -EIO;
    }
}

int hf_dns_lookup(struct hf_dns *dns, const char *name, uint16_t type, struct hf_dns_waiter *w,
                  struct hf_dns_answer **ret)
{
    hf_dns_refresh(dns);
    struct hf_dns_answer *have = hf_dns_cache_get(&dns->cache, name, type, uv_now(dns->d->loop));
    if (have) {
        *ret = hf_dns_answer_ref(have);
        return 1;
    }
    const struct hf_dns_zone *zone = hf_dns_zone_of(&dns->cfg, name);
    if (zone->n == 0)
        return -EIO;
    struct hf_dns_box *x = hf_dns_box(w->box);
    if (x->asks >= HF_DNS_BOX_ASKS_MAX)
        return -EBUSY;
    char key[sizeof(((struct flight *)0)->key)];
    (void)snprintf(key, sizeof(key), "%u/%u/%s", dns->generation, type, name);
    struct flight *f = hf_map_get(&dns->flights, hf_str_c(key));
    bool begun = !f;
    if (begun && dns->n_flights >= HF_DNS_FLIGHTS_MAX)
        return -EBUSY;
    if (begun) {
        f = hf_new(struct flight);
        f->dns = dns;
        f->zone = *zone;
        f->generation = dns->generation;
        f->type = type;
        f->end_ms = uv_now(dns->d->loop) + HF_DNS_TOTAL_MS;
        f->in = (struct hf_buf)HF_BUF_INIT(HF_DNS_MSG_MAX + 2);
        (void)snprintf(f->key, sizeof(f->key), "%s", key);
        (void)snprintf(f->name, sizeof(f->name), "%s", name);
        hf_list_init(&f->waiters);
        f->timer = hf_new(uv_timer_t);
        (void)uv_timer_init(dns->d->loop, f->timer);
        f->timer->data = f;
        (void)hf_map_put(&dns->flights, hf_str_c(f->key), f);
        hf_list_add_tail(&dns->flight_list, &f->node);
        dns->n_flights++;
    }
    hf_list_add_tail(&f->waiters, &w->node);
    x->asks++;
    /* By the timer, so that no callback comes inside this call, whatever the socket says. */
    if (begun)
        (void)uv_timer_start(f->timer, on_timer, 0, 0);
    return 0;
}

void hf_dns_flights_cancel(struct hf_dns *dns)
{
    while (!hf_list_empty(&dns->flight_list))
        finish(hf_list_entry(dns->flight_list.next, struct flight, node), -ECANCELED, NULL);
}
