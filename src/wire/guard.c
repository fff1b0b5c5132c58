/* The guarded dialer: URLs, addresses, and connections to addresses that were checked. */
#include "wire/guard.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

#include "wire/url.h"

#define NAME_MAX_BYTES 253u
#define ATTEMPT_MIN_MS 1000u /* of one address, when there are many */

/* ---- URLs ---- */

static bool scheme_listed(struct hf_str scheme, const char *schemes)
{
    const char *p = schemes;
    while (*p) {
        size_t n = strcspn(p, ",");
        if (n == scheme.n && memcmp(p, scheme.p, n) == 0)
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}

static bool is_number(struct hf_str label)
{
    bool hex = label.n > 1 && label.p[0] == '0' && (label.p[1] | 0x20) == 'x';
    for (size_t i = hex ? 2 : 0; i < label.n; i++) {
        char c = label.p[i];
        bool digit = c >= '0' && c <= '9';
        if (!digit && !(hex && (c | 0x20) >= 'a' && (c | 0x20) <= 'f'))
            return false;
    }
    return label.n > 0;
}

/* A host that ends in a number would be read as an address by some resolver: 127.1, 0x7f000001, 017700000001,
 * 2130706433. Only the one form that everybody reads alike is an address here. */
int hf_host_kind(struct hf_str host, struct hf_addr *ret)
{
    if (host.n && host.p[host.n - 1] == '.')
        host.n--;
    if (hf_addr_parse(host, ret) == 0)
        return 1;
    if (!host.n || host.n > NAME_MAX_BYTES)
        return -EINVAL;
    size_t start = 0;
    for (size_t i = 0; i <= host.n; i++) {
        char c = i < host.n ? (char)host.p[i] : '.';
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                  c == '_';
        if (c != '.' && !ok)
            return -EINVAL;
        if (c != '.')
            continue;
        struct hf_str label = {host.p + start, i - start};
        if (!label.n || label.n > 63 || (i == host.n && is_number(label)))
            return -EINVAL;
        start = i + 1;
    }
    return 0;
}

/* host[:port] or [v6][:port]. */
static int split_authority(struct hf_str a, struct hf_url *u)
{
    struct hf_str port = {NULL, 0};
    if (a.n && a.p[0] == '[') {
        const char *end = memchr(a.p, ']', a.n);
        if (!end)
            return -EINVAL;
        u->host = (struct hf_str){a.p + 1, (size_t)(end - a.p - 1)};
        u->bracket = true;
        size_t rest = a.n - u->host.n - 2;
        if (rest && end[1] != ':')
            return -EINVAL;
        port = rest ? (struct hf_str){end + 2, rest - 1} : port;
        if (!memchr(u->host.p, ':', u->host.n))
            return -EINVAL;
    } else {
        const char *colon = memchr(a.p, ':', a.n);
        u->host = (struct hf_str){a.p, colon ? (size_t)(colon - a.p) : a.n};
        port = colon ? (struct hf_str){colon + 1, a.n - u->host.n - 1} : port;
    }
    uint64_t v = u->port;
    if (port.p && (hf_parse_u64(port, 65535, &v) < 0 || !v))
        return -EINVAL;
    u->port = (uint16_t)v;
    return 0;
}

int hf_url_split(struct hf_str url, struct hf_url *ret)
{
    struct hf_url u = {0};
    for (size_t i = 0; i < url.n; i++)
        if ((unsigned char)url.p[i] <= ' ' || (unsigned char)url.p[i] >= 0x7f || url.p[i] == '\\')
            return -EINVAL;
    const char *sep = url.n > HF_URL_MAX ? NULL : memmem(url.p, url.n, "://", 3);
    if (!sep)
        return -EINVAL;
    u.scheme = (struct hf_str){url.p, (size_t)(sep - url.p)};
    u.tls = hf_str_eq(u.scheme, "https") || hf_str_eq(u.scheme, "wss");
    u.port = u.tls ? 443 : 80;
    struct hf_str rest = {sep + 3, url.n - u.scheme.n - 3};
    size_t n = 0;
    while (n < rest.n && !strchr("/?#", rest.p[n]))
        n++;
    u.authority = (struct hf_str){rest.p, n};
    u.path = (struct hf_str){rest.p + n, rest.n - n};
    const char *hash = memchr(u.path.p, '#', u.path.n);
    if (hash)
        u.path.n = (size_t)(hash - u.path.p);
    if (memchr(u.authority.p, '@', n) || split_authority(u.authority, &u) < 0)
        return -EINVAL;
    u.kind = hf_host_kind(u.host, &u.addr);
    if (u.kind < 0 || (u.bracket && u.kind != 1))
        return -EINVAL;
    *ret = u;
    return 0;
}

static bool local_name(struct hf_str host)
{
    static const char suffix[] = ".localhost";
    size_t n = sizeof(suffix) - 1;
    if (host.n && host.p[host.n - 1] == '.')
        host.n--;
    return hf_str_caseeq(host, "localhost") ||
           (host.n > n && hf_str_caseeq((struct hf_str){host.p + host.n - n, n}, suffix));
}

int hf_url_check(struct hf_str url, const char *schemes, unsigned flags, struct hf_err *err)
{
    struct hf_url u;
    if (hf_url_split(url, &u) < 0)
        return hf_err_set(
            err, -EINVAL,
            "the URL is malformed: write scheme://host[:port]/path, without user name, blanks or "
            "unusual forms of addresses");
    if (!scheme_listed(u.scheme, schemes))
        return hf_err_set(err, -EINVAL, "the URL's scheme is not one of these: %s", schemes);
    if (u.kind == 1)
        return hf_dial_check(&u.addr, flags, err);
    if (local_name(u.host) && !(flags & HF_DIAL_LOCAL))
        return hf_err_set(err, -EACCES, "the URL names this host itself, which is not allowed");
    return 0;
}

/* ---- addresses ---- */

struct route_request {
    struct nlmsghdr h;
    struct rtmsg m;
    struct rtattr a;
    uint8_t dst[16];
};

static int ask_kernel(int fd, const struct hf_addr *a, unsigned char *ret_type)
{
    size_t n = a->family == 4 ? 4 : 16;
    struct route_request q = {
        .h = {(uint32_t)(offsetof(struct route_request, dst) + n), RTM_GETROUTE, NLM_F_REQUEST, 1, 0},
        .m = {.rtm_family = a->family == 4 ? AF_INET : AF_INET6, .rtm_dst_len = (unsigned char)(8 * n)},
        .a = {(unsigned short)RTA_LENGTH(n), RTA_DST}};
    union {
        struct nlmsghdr h;
        char b[8192];
    } r;
    memcpy(q.dst, a->b, n);
    if (send(fd, &q, q.h.nlmsg_len, 0) < 0)
        return -errno;
    ssize_t k = recv(fd, &r, sizeof(r), 0);
    if (k < 0)
        return -errno;
    if (!NLMSG_OK(&r.h, (size_t)k))
        return -EBADMSG;
    if (r.h.nlmsg_type == RTM_NEWROUTE && r.h.nlmsg_len >= NLMSG_LENGTH(sizeof(struct rtmsg))) {
        *ret_type = ((struct rtmsg *)NLMSG_DATA(&r.h))->rtm_type;
        return 0;
    }
    if (r.h.nlmsg_type == NLMSG_ERROR && r.h.nlmsg_len >= NLMSG_LENGTH(sizeof(struct nlmsgerr)))
        return ((struct nlmsgerr *)NLMSG_DATA(&r.h))->error;
    return -EBADMSG;
}

/* What the routing tables say of it; unroutable ones are RTN_UNREACHABLE. */
static int route_type(const struct hf_addr *a, unsigned char *ret_type)
{
    hf_auto_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    struct timeval t = {1, 0};
    if (fd < 0)
        return -errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
    int r = ask_kernel(fd, a, ret_type);
    bool unroutable = r == -ENETUNREACH || r == -EHOSTUNREACH || r == -EACCES || r == -EINVAL || r == -ENODEV;
    if (unroutable)
        *ret_type = RTN_UNREACHABLE;
    return unroutable ? 0 : r;
}

/* The IPv4 address that a packet to a translated or mapped one ends at, else the address itself. */
static struct hf_addr innermost(const struct hf_addr *a)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    static const uint8_t nat64[12] = {0x00, 0x64, 0xff, 0x9b};
    struct hf_addr v4 = {4, {0}};
    if (a->family != 6 || (memcmp(a->b, mapped, 12) != 0 && memcmp(a->b, nat64, 12) != 0))
        return *a;
    memcpy(v4.b, a->b + 12, 4);
    return v4;
}

int hf_dial_check(const struct hf_addr *a, unsigned flags, struct hf_err *err)
{
    char text[HF_ADDR_TEXT];
    unsigned char type = RTN_UNSPEC;
    enum hf_addr_class cls = hf_addr_class_of(a);
    hf_addr_format(a, text);
    bool loopback = cls == HF_ADDR_LOOPBACK;
    if (hf_addr_never(a) && !(loopback && (flags & HF_DIAL_LOCAL)))
        return hf_err_set(err, -EACCES, "%s is a %s address, which is never dialled", text,
                          hf_addr_class_name(cls));
    struct hf_addr in = innermost(a);
    int r = route_type(&in, &type);
    if (r < 0)
        return hf_err_set(err, -EACCES, "can't find out whether %s is this host's own address: %s", text,
                          strerror(-r));
    if (type == RTN_LOCAL || loopback) {
        if (flags & HF_DIAL_LOCAL)
            return 0;
        return hf_err_set(err, -EACCES, "%s is an address of this host, which is not allowed", text);
    }
    if (type == RTN_BROADCAST || type == RTN_MULTICAST || type == RTN_ANYCAST)
        return hf_err_set(err, -EACCES, "%s is not the address of one host", text);
    if (cls == HF_ADDR_PRIVATE && !(flags & HF_DIAL_PRIVATE))
        return hf_err_set(err, -EACCES, "%s is a private address, which is not allowed", text);
    return 0;
}

/* ---- the dialer ---- */

struct hf_guard_dial {
    uv_loop_t *loop;
    struct hf_addr addrs[HF_DIAL_ADDRS_MAX];
    size_t n, i;
    uint16_t port;
    unsigned flags;
    hf_dial_cb cb; /* NULL once it was called or cancelled */
    void *arg;
    uv_timer_t timer;
    uv_getaddrinfo_t lookup;
    uv_connect_t connect;
    uv_tcp_t *tcp; /* being connected */
    char *host;
    struct hf_err err; /* of the last address */
    bool looking, connecting, timer_gone;
};

static void next(struct hf_guard_dial *d);

static void maybe_free(struct hf_guard_dial *d)
{
    if (!d->timer_gone || d->looking || d->connecting)
        return;
    free(d->host);
    free(d);
}

static void on_timer_closed(uv_handle_t *h)
{
    struct hf_guard_dial *d = h->data;
    d->timer_gone = true;
    maybe_free(d);
}

static void free_handle(uv_handle_t *h)
{
    free(h);
}

/* Nothing more is tried. */
static void retire(struct hf_guard_dial *d)
{
    d->cb = NULL;
    if (d->tcp)
        uv_close((uv_handle_t *)hf_take_ptr(d->tcp), free_handle);
    if (d->looking)
        (void)uv_cancel((uv_req_t *)&d->lookup);
    uv_close((uv_handle_t *)&d->timer, on_timer_closed);
}

static void finish(struct hf_guard_dial *d, uv_stream_t *stream)
{
    hf_dial_cb cb = d->cb;
    struct hf_addr addr = d->addrs[d->i < d->n ? d->i : 0];
    struct hf_err err = d->err;
    void *arg = d->arg;
    if (!stream && !err.r)
        (void)hf_err_set(&err, -ENOENT, "%s has no address", d->host ? d->host : "the host");
    retire(d);
    cb(arg, stream, &addr, stream ? NULL : &err);
}

static void on_connect(uv_connect_t *c, int status)
{
    struct hf_guard_dial *d = c->data;
    char text[HF_ADDR_TEXT];
    d->connecting = false;
    if (!d->cb) {
        maybe_free(d);
        return;
    }
    if (!d->tcp) { /* timed out before */
        next(d);
        return;
    }
    if (status == 0) {
        (void)uv_tcp_nodelay(d->tcp, 1);
        finish(d, (uv_stream_t *)hf_take_ptr(d->tcp));
        return;
    }
    hf_addr_format(&d->addrs[d->i], text);
    (void)hf_err_set(&d->err, status, "can't connect to %s port %u: %s", text, d->port, uv_strerror(status));
    uv_close((uv_handle_t *)hf_take_ptr(d->tcp), free_handle);
    d->i++;
    next(d);
}

static void on_attempt_timeout(uv_timer_t *t)
{
    struct hf_guard_dial *d = t->data;
    char text[HF_ADDR_TEXT];
    hf_addr_format(&d->addrs[d->i], text);
    (void)hf_err_set(&d->err, -ETIMEDOUT, "%s port %u does not answer", text, d->port);
    d->i++;
    uv_close((uv_handle_t *)hf_take_ptr(d->tcp), free_handle); /* on_connect goes on */
}

static int try_one(struct hf_guard_dial *d)
{
    struct sockaddr_storage sa;
    struct hf_addr a = innermost(&d->addrs[d->i]);
    /* Mapped addresses are dialled as what they are; translated ones go to the translator. */
    bool mapped =
        a.family == 4 && d->addrs[d->i].family == 6 && d->addrs[d->i].b[0] == 0 && d->addrs[d->i].b[1] == 0;
    if (mapped)
        d->addrs[d->i] = a;
    int r = hf_dial_check(&d->addrs[d->i], d->flags, &d->err);
    if (r < 0)
        return r;
    (void)hf_addr_to_sockaddr(&d->addrs[d->i], d->port, &sa);
    d->tcp = hf_new(uv_tcp_t);
    r = uv_tcp_init(d->loop, d->tcp);
    if (r < 0) {
        free(hf_take_ptr(d->tcp));
        return hf_err_set(&d->err, r, "can't make a socket: %s", uv_strerror(r));
    }
    d->connect.data = d;
    r = uv_tcp_connect(&d->connect, d->tcp, (struct sockaddr *)&sa, on_connect);
    if (r < 0) {
        uv_close((uv_handle_t *)hf_take_ptr(d->tcp), free_handle);
        return hf_err_set(&d->err, r, "can't connect: %s", uv_strerror(r));
    }
    d->connecting = true;
    uint64_t ms = HF_MAX(HF_DIAL_TIMEOUT_MS / (d->n - d->i), (size_t)ATTEMPT_MIN_MS);
    (void)uv_timer_start(&d->timer, on_attempt_timeout, ms, 0);
    return 0;
}

static void next(struct hf_guard_dial *d)
{
    (void)uv_timer_stop(&d->timer);
    while (d->i < d->n) {
        if (try_one(d) == 0)
            return;
        d->i++;
    }
    finish(d, NULL);
}

static void on_start(uv_timer_t *t)
{
    next(t->data);
}

static struct hf_guard_dial *dial_new(uv_loop_t *loop, uint16_t port, unsigned flags, hf_dial_cb cb,
                                      void *arg)
{
    struct hf_guard_dial *d = hf_new(struct hf_guard_dial);
    d->loop = loop;
    d->port = port;
    d->flags = flags;
    d->cb = cb;
    d->arg = arg;
    (void)uv_timer_init(loop, &d->timer);
    d->timer.data = d;
    return d;
}

struct hf_guard_dial *hf_dial_addrs(uv_loop_t *loop, const struct hf_addr *addrs, size_t n, uint16_t port,
                                    unsigned flags, hf_dial_cb cb, void *arg)
{
    struct hf_guard_dial *d = dial_new(loop, port, flags, cb, arg);
    d->n = HF_MIN(n, (size_t)HF_DIAL_ADDRS_MAX);
    if (d->n)
        memcpy(d->addrs, addrs, d->n * sizeof(*addrs));
    (void)uv_timer_start(&d->timer, on_start, 0, 0); /* never called back from inside this call */
    return d;
}

static void keep_addrs(struct hf_guard_dial *d, const struct addrinfo *list)
{
    for (const struct addrinfo *ai = list; ai && d->n < HF_DIAL_ADDRS_MAX; ai = ai->ai_next) {
        uint16_t port;
        bool known = hf_addr_from_sockaddr(ai->ai_addr, &d->addrs[d->n], &port) < 0;
        for (size_t i = 0; i < d->n && !known; i++)
            known = hf_addr_equal(&d->addrs[i], &d->addrs[d->n]);
        d->n += !known;
    }
}

static void on_resolved(uv_getaddrinfo_t *q, int status, struct addrinfo *list)
{
    struct hf_guard_dial *d = q->data;
    d->looking = false;
    if (!d->cb) {
        uv_freeaddrinfo(list);
        maybe_free(d);
        return;
    }
    if (status == 0)
        keep_addrs(d, list);
    else
        (void)hf_err_set(&d->err, status == UV_EAI_AGAIN ? -EAGAIN : -ENOENT, "can't resolve %s: %s", d->host,
                         uv_strerror(status));
    uv_freeaddrinfo(list);
    next(d);
}

static void on_resolve_timeout(uv_timer_t *t)
{
    struct hf_guard_dial *d = t->data;
    (void)hf_err_set(&d->err, -ETIMEDOUT, "can't resolve %s: no answer in time", d->host);
    finish(d, NULL);
}

struct hf_guard_dial *hf_dial_host(uv_loop_t *loop, const char *host, uint16_t port, unsigned flags,
                                   hf_dial_cb cb, void *arg)
{
    struct hf_addr a;
    int kind = hf_host_kind(hf_str_c(host), &a);
    if (kind == 1)
        return hf_dial_addrs(loop, &a, 1, port, flags, cb, arg);
    struct hf_guard_dial *d = hf_dial_addrs(loop, NULL, 0, port, flags, cb, arg);
    d->host = hf_xstrdup(host);
    static const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    d->lookup.data = d;
    int r = kind < 0 ? kind : uv_getaddrinfo(loop, &d->lookup, on_resolved, host, NULL, &hints);
    if (r < 0) {
        (void)hf_err_set(&d->err, kind < 0 ? -EINVAL : r, "\"%.100s\" is not a host name", host);
        return d; /* told from the loop */
    }
    d->looking = true;
    (void)uv_timer_start(&d->timer, on_resolve_timeout, HF_DIAL_TIMEOUT_MS, 0);
    return d;
}

void hf_dial_cancel(struct hf_guard_dial *d)
{
    if (d->cb)
        retire(d);
}
