/* Denials, as the ruleset logs them to an NFLOG group of the fabric's namespace. */
#include <arpa/inet.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>

#include "engine/net/denial.h"
#include "engine/net/fabric.h"
#include "engine/net/rtnl.h"

#define COPY_BYTES 128u /* IPv6 header, some extensions and ports */
#define BUFFER (64u << 10)
#define READS_MAX 64u /* messages a turn of the loop: a flood does not hold it up */
#define EXTENSIONS_MAX 8u
#define ORIGINAL_DST 80 /* SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST; their headers clash with libc's */

/* ---- reading one ---- */

static void read_ports(const uint8_t *p, size_t n, struct hf_net_denial *d)
{
    bool ports = d->protocol == IPPROTO_TCP || d->protocol == IPPROTO_UDP || d->protocol == IPPROTO_UDPLITE ||
                 d->protocol == IPPROTO_SCTP;
    if (!ports || n < 4)
        return;
    d->src_port = (uint16_t)(p[0] << 8 | p[1]);
    d->dst_port = (uint16_t)(p[2] << 8 | p[3]);
}

static int read_ipv4(const uint8_t *p, size_t n, struct hf_net_denial *d)
{
    size_t head = n >= 20 ? (size_t)(p[0] & 0xf) * 4 : 0;
    if (head < 20)
        return -EINVAL;
    d->protocol = p[9];
    d->src.family = d->dst.family = 4;
    memcpy(d->src.b, p + 12, 4);
    memcpy(d->dst.b, p + 16, 4);
    bool first = ((p[6] & 0x1f) | p[7]) == 0; /* later fragments have no ports */
    if (first && head < n)
        read_ports(p + head, n - head, d);
    return 0;
}

static bool is_extension(uint8_t type)
{
    return type == IPPROTO_HOPOPTS || type == IPPROTO_ROUTING || type == IPPROTO_DSTOPTS;
}

static int read_ipv6(const uint8_t *p, size_t n, struct hf_net_denial *d)
{
    if (n < 40)
        return -EINVAL;
    d->protocol = p[6];
    d->src.family = d->dst.family = 6;
    memcpy(d->src.b, p + 8, 16);
    memcpy(d->dst.b, p + 24, 16);
    size_t at = 40;
    for (unsigned i = 0; i < EXTENSIONS_MAX && is_extension(d->protocol) && n - at >= 8; i++) {
        size_t length = ((size_t)p[at + 1] + 1) * 8;
        d->protocol = p[at];
        if (length > n - at)
            return 0;
        at += length;
    }
    read_ports(p + at, n - at, d);
    return 0;
}

static const char *reason_of(const struct nlattr *prefix)
{
    static const char *const reasons[] = {"spoofed", "never", "private",     "deny",
                                          "default", "quic",  "connections", "rate"};
    const char *text = prefix ? hf_nl_data(prefix) : NULL;
    for (size_t i = 0; prefix && i < HF_ARRAY_LEN(reasons); i++)
        if (hf_nl_len(prefix) == strlen(reasons[i]) + 1 && memcmp(text, reasons[i], hf_nl_len(prefix)) == 0)
            return reasons[i];
    return NULL;
}

static void turn_round(struct hf_net_denial *d)
{
    struct hf_addr a = d->src;
    uint16_t port = d->src_port;
    d->src = d->dst;
    d->src_port = d->dst_port;
    d->dst = a;
    d->dst_port = port;
}

int hf_denial_read(const void *attrs, size_t n, uint32_t uplink, struct hf_net_denial *ret)
{
    const struct nlattr *tb[NFULA_PREFIX + 1];
    hf_nl_parse(attrs, n, tb, NFULA_PREFIX);
    struct hf_net_denial d = {.key = hf_nl_be32(tb[NFULA_MARK]), .reason = reason_of(tb[NFULA_PREFIX])};
    const uint8_t *p = tb[NFULA_PAYLOAD] ? hf_nl_data(tb[NFULA_PAYLOAD]) : NULL;
    size_t len = hf_nl_len(tb[NFULA_PAYLOAD]);
    if (!d.reason || !len)
        return -EINVAL;
    int r = p[0] >> 4 == 4 ? read_ipv4(p, len, &d) : p[0] >> 4 == 6 ? read_ipv6(p, len, &d) : -EINVAL;
    if (r < 0)
        return r;
    if (uplink && hf_nl_be32(tb[NFULA_IFINDEX_INDEV]) == uplink)
        turn_round(&d);
    *ret = d;
    return 0;
}

/* ---- the watcher ---- */

struct hf_net_watch {
    uv_poll_t poll;
    int fd;
    uint32_t uplink;
    void (*cb)(void *arg, const struct hf_net_denial *d);
    void *arg;
    uint8_t buf[BUFFER];
};

static void messages(struct hf_net_watch *w, size_t n)
{
    const size_t head = NLMSG_LENGTH(sizeof(struct nfgenmsg));
    for (struct nlmsghdr *h = (struct nlmsghdr *)w->buf; NLMSG_OK(h, n) && w->cb; h = NLMSG_NEXT(h, n)) {
        struct hf_net_denial d;
        bool packet = h->nlmsg_type == (NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET) && h->nlmsg_len >= head;
        if (packet && hf_denial_read((const char *)h + head, h->nlmsg_len - head, w->uplink, &d) == 0)
            w->cb(w->arg, &d);
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct hf_net_watch *w = poll->data;
    (void)status;
    (void)events;
    for (unsigned i = 0; i < READS_MAX && w->cb; i++) {
        ssize_t n = recv(w->fd, w->buf, sizeof(w->buf), MSG_DONTWAIT);
        if (n < 0 && (errno == EINTR || errno == ENOBUFS))
            continue; /* ENOBUFS: some were lost; they are counted all the same */
        if (n <= 0)
            return;
        messages(w, (size_t)n);
    }
}

static int bind_group(int fd, struct hf_err *err)
{
    hf_auto_nl struct hf_nl nl = {0};
    struct nfgenmsg g = {
        .nfgen_family = AF_UNSPEC, .version = NFNETLINK_V0, .res_id = htons(HF_NET_LOG_GROUP)};
    struct nfulnl_msg_config_cmd bind = {.command = NFULNL_CFG_CMD_BIND};
    struct nfulnl_msg_config_mode mode = {.copy_range = htonl(COPY_BYTES), .copy_mode = NFULNL_COPY_PACKET};
    const uint16_t type = NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_CONFIG;
    hf_nl_begin(&nl, type, NLM_F_ACK, &g, sizeof(g));
    hf_nl_put(&nl, NFULA_CFG_CMD, &bind, sizeof(bind));
    hf_nl_put(&nl, NFULA_CFG_MODE, &mode, sizeof(mode));
    hf_nl_put_be32(&nl, NFULA_CFG_QTHRESH, 1); /* tell at once */
    hf_nl_end(&nl);
    return hf_nl_talk(fd, &nl, err);
}

int hf_net_watch(struct hf_net *n, uv_loop_t *loop, void (*cb)(void *arg, const struct hf_net_denial *d),
                 void *arg, struct hf_net_watch **ret, struct hf_err *err)
{
    hf_auto_close int fd = hf_ns_socket(n->ns_fd, AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);
    hf_auto_close int route = hf_ns_socket(n->ns_fd, AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    if (fd < 0 || route < 0)
        return hf_err_set(err, fd < 0 ? fd : route, "watching the sandbox network: %s",
                          strerror(fd < 0 ? -fd : -route));
    int r = bind_group(fd, err);
    if (r < 0)
        return hf_err_wrap(err, "watching the sandbox network's denials (group %u)", HF_NET_LOG_GROUP);
    struct hf_link up;
    r = hf_rtnl_link(route, "hfup", &up);
    if (r < 0)
        return hf_err_set(err, r, "the sandbox network has no uplink");
    struct hf_net_watch *w = hf_new(struct hf_net_watch);
    w->uplink = (uint32_t)up.index;
    w->cb = cb;
    w->arg = arg;
    r = uv_poll_init(loop, &w->poll, fd);
    if (r < 0) {
        free(w);
        return hf_err_set(err, r, "watching the sandbox network: %s", uv_strerror(r));
    }
    w->fd = hf_take_fd(&fd);
    w->poll.data = w;
    (void)uv_poll_start(&w->poll, UV_READABLE, on_readable);
    *ret = w;
    return 0;
}

static void on_closed(uv_handle_t *h)
{
    struct hf_net_watch *w = h->data;
    w->fd = hf_close(w->fd);
    free(w);
}

void hf_net_watch_free(struct hf_net_watch *w)
{
    if (!w)
        return;
    w->cb = NULL;
    (void)uv_poll_stop(&w->poll);
    uv_close((uv_handle_t *)&w->poll, on_closed);
}

/* ---- redirected connections ---- */

int hf_net_original_dst(int fd, struct hf_addr *ret, uint16_t *ret_port)
{
    struct sockaddr_storage self = {0}, dst = {0};
    socklen_t self_n = sizeof(self), dst_n = sizeof(dst);
    struct hf_addr a;
    if (getsockname(fd, (struct sockaddr *)&self, &self_n) < 0)
        return -errno;
    int r = hf_addr_from_sockaddr((struct sockaddr *)&self, &a, NULL);
    if (r < 0)
        return r;
    bool v6 = a.family == 6; /* a mapped address is an IPv4 flow on an IPv6 socket */
    r = getsockopt(fd, v6 ? SOL_IPV6 : SOL_IP, ORIGINAL_DST, &dst, &dst_n);
    return r < 0 ? -errno : hf_addr_from_sockaddr((struct sockaddr *)&dst, ret, ret_port);
}
