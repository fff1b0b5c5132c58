#include "engine/net/nl.h"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>

#define NL_ALIGN(n) (((n) + 3u) & ~(size_t)3u)
#define RECV_MAX                                                                               \
    (256u << 10) /* the kernel's dumps come in pieces of at most 32 KiB; NFLOG's may be larger \
                  */
#define SNDBUF (8 << 20)

/* ---- building ---- */

void hf_nl_done(struct hf_nl *nl)
{
    free(nl->p);
    *nl = (struct hf_nl){0};
}

void hf_nl_reset(struct hf_nl *nl)
{
    nl->n = nl->head = 0;
    nl->acks = 0;
}

static void *grow(struct hf_nl *nl, size_t n)
{
    size_t need = nl->n + NL_ALIGN(n);
    if (need > nl->cap) {
        nl->cap = HF_MAX(need, HF_MAX(nl->cap * 2, (size_t)4096));
        nl->p = hf_xrealloc(nl->p, nl->cap);
    }
    void *at = nl->p + nl->n;
    memset(at, 0, NL_ALIGN(n));
    nl->n = need;
    return at;
}

void hf_nl_raw(struct hf_nl *nl, const void *p, size_t n)
{
    memcpy(grow(nl, n), p, n);
}

void hf_nl_begin(struct hf_nl *nl, uint16_t type, uint16_t flags, const void *header, size_t header_n)
{
    nl->head = nl->n;
    struct nlmsghdr h = {.nlmsg_type = type, .nlmsg_flags = flags | NLM_F_REQUEST, .nlmsg_seq = ++nl->seq};
    nl->acks += (flags & NLM_F_ACK) != 0;
    hf_nl_raw(nl, &h, sizeof(h));
    hf_nl_raw(nl, header, header_n);
}

void hf_nl_end(struct hf_nl *nl)
{
    uint32_t len = (uint32_t)(nl->n - nl->head);
    memcpy(nl->p + nl->head + offsetof(struct nlmsghdr, nlmsg_len), &len, sizeof(len));
}

void hf_nl_put(struct hf_nl *nl, uint16_t type, const void *p, size_t n)
{
    uint8_t *at = grow(nl, sizeof(struct nlattr) + n);
    struct nlattr a = {.nla_len = (uint16_t)(sizeof(a) + n), .nla_type = type};
    memcpy(at, &a, sizeof(a));
    if (n)
        memcpy(at + sizeof(a), p, n);
}

void hf_nl_put_u8(struct hf_nl *nl, uint16_t type, uint8_t v)
{
    hf_nl_put(nl, type, &v, sizeof(v));
}

void hf_nl_put_u16(struct hf_nl *nl, uint16_t type, uint16_t v)
{
    hf_nl_put(nl, type, &v, sizeof(v));
}

void hf_nl_put_u32(struct hf_nl *nl, uint16_t type, uint32_t v)
{
    hf_nl_put(nl, type, &v, sizeof(v));
}

void hf_nl_put_be32(struct hf_nl *nl, uint16_t type, uint32_t v)
{
    hf_nl_put_u32(nl, type, htonl(v));
}

void hf_nl_put_be64(struct hf_nl *nl, uint16_t type, uint64_t v)
{
    uint64_t be = htobe64(v);
    hf_nl_put(nl, type, &be, sizeof(be));
}

void hf_nl_put_str(struct hf_nl *nl, uint16_t type, const char *s)
{
    hf_nl_put(nl, type, s, strlen(s) + 1);
}

size_t hf_nl_nest(struct hf_nl *nl, uint16_t type)
{
    size_t at = nl->n;
    hf_nl_put(nl, type | NLA_F_NESTED, NULL, 0);
    return at;
}

void hf_nl_nest_end(struct hf_nl *nl, size_t at)
{
    uint16_t len = (uint16_t)(nl->n - at);
    memcpy(nl->p + at + offsetof(struct nlattr, nla_len), &len, sizeof(len));
}

/* ---- talking ---- */

int hf_nl_open(int protocol)
{
    hf_auto_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    if (fd < 0)
        return -errno;
    struct sockaddr_nl self = {.nl_family = AF_NETLINK};
    if (bind(fd, (struct sockaddr *)&self, sizeof(self)) < 0)
        return -errno;
    int on = 1, size = SNDBUF; /* the words of an error, and room for a large batch: neither is essential */
    (void)setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof(on));
    (void)setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof(on));
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    return hf_take_fd(&fd);
}

static int send_all(int fd, const struct hf_nl *nl)
{
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    ssize_t n;
    do
        n = sendto(fd, nl->p, nl->n, 0, (struct sockaddr *)&kernel, sizeof(kernel));
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

/* One datagram from the kernel (others can't speak to us: checked by the sender's port). */
static ssize_t receive(int fd, void *buf, size_t max, int flags)
{
    for (;;) {
        struct sockaddr_nl from = {0};
        socklen_t from_n = sizeof(from);
        ssize_t n = recvfrom(fd, buf, max, MSG_TRUNC | flags, (struct sockaddr *)&from, &from_n);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (from.nl_pid == 0)
            return (size_t)n > max ? -EMSGSIZE : n;
    }
}

static const char *kernel_words(const struct nlmsghdr *h)
{
    const struct nlmsgerr *e = NLMSG_DATA(h);
    size_t skip = sizeof(*e);
    if (!(h->nlmsg_flags & NLM_F_ACK_TLVS))
        return "";
    if (!(h->nlmsg_flags & NLM_F_CAPPED))
        skip += NL_ALIGN(e->msg.nlmsg_len - sizeof(e->msg));
    size_t n = NLMSG_PAYLOAD(h, 0);
    if (n <= skip)
        return "";
    const struct nlattr *tb[NLMSGERR_ATTR_MSG + 1];
    hf_nl_parse((const char *)e + skip, n - skip, tb, NLMSGERR_ATTR_MSG);
    const struct nlattr *msg = tb[NLMSGERR_ATTR_MSG];
    return msg && hf_nl_len(msg) && ((const char *)hf_nl_data(msg))[hf_nl_len(msg) - 1] == 0 ? hf_nl_data(msg)
                                                                                             : "";
}

static int note_ack(const struct nlmsghdr *h, uint32_t *left, int first, struct hf_err *err)
{
    const struct nlmsgerr *e = NLMSG_DATA(h);
    if (h->nlmsg_len < NLMSG_LENGTH(sizeof(*e)))
        return first;
    (*left)--;
    if (e->error == 0 || first < 0)
        return first;
    const char *words = kernel_words(h);
    return hf_err_set(err, e->error, "netlink message %u of type %#x: %s%s%s", h->nlmsg_seq,
                      e->msg.nlmsg_type, strerror(-e->error), *words ? ": " : "", words);
}

int hf_nl_talk(int fd, const struct hf_nl *nl, struct hf_err *err)
{
    int r = send_all(fd, nl), first = 0;
    if (r < 0)
        return hf_err_set(err, r, "netlink: %s", strerror(-r));
    uint32_t left = nl->acks;
    hf_auto_free uint8_t *buf = hf_xmalloc(RECV_MAX);
    while (left > 0) {
        ssize_t n = receive(fd, buf, RECV_MAX, 0);
        if (n < 0)
            return hf_err_set(err, (int)n, "netlink: %s", strerror((int)-n));
        for (struct nlmsghdr *h = (struct nlmsghdr *)buf; left && NLMSG_OK(h, (size_t)n);
             h = NLMSG_NEXT(h, n))
            if (h->nlmsg_type == NLMSG_ERROR)
                first = note_ack(h, &left, first, err);
    }
    return first;
}

int hf_nl_talk_batch(int fd, const struct hf_nl *nl, struct hf_err *err)
{
    int r = send_all(fd, nl), first = 0;
    if (r < 0)
        return hf_err_set(err, r, "netlink: %s", strerror(-r));
    hf_auto_free uint8_t *buf = hf_xmalloc(RECV_MAX);
    uint32_t answers = UINT32_MAX;
    ssize_t n;
    while ((n = receive(fd, buf, RECV_MAX, MSG_DONTWAIT)) >= 0)
        for (struct nlmsghdr *h = (struct nlmsghdr *)buf; NLMSG_OK(h, (size_t)n); h = NLMSG_NEXT(h, n))
            if (h->nlmsg_type == NLMSG_ERROR)
                first = note_ack(h, &answers, first, err);
    if (n != -EAGAIN && first == 0)
        return hf_err_set(err, (int)n, "netlink: %s", strerror((int)-n));
    if (answers == UINT32_MAX)
        return hf_err_set(err, -EIO, "the kernel did not answer a netfilter transaction");
    return first;
}

/* One message of a dump. *done is set at the end. */
static int dump_message(const struct nlmsghdr *h, int (*each)(void *, const struct nlmsghdr *), void *arg,
                        bool *done)
{
    if (h->nlmsg_type == NLMSG_DONE) {
        *done = true;
        return 0;
    }
    if (h->nlmsg_type == NLMSG_ERROR) {
        const struct nlmsgerr *e = NLMSG_DATA(h);
        *done = true;
        return e->error;
    }
    *done = !(h->nlmsg_flags & NLM_F_MULTI);
    return each(arg, h);
}

int hf_nl_dump(int fd, const struct hf_nl *nl, int (*each)(void *arg, const struct nlmsghdr *h), void *arg)
{
    int r = send_all(fd, nl);
    if (r < 0)
        return r;
    hf_auto_free uint8_t *buf = hf_xmalloc(RECV_MAX);
    bool done = false, interrupted = false;
    while (!done) {
        ssize_t n = receive(fd, buf, RECV_MAX, 0);
        if (n < 0)
            return (int)n;
        for (struct nlmsghdr *h = (struct nlmsghdr *)buf; !done && NLMSG_OK(h, (size_t)n);
             h = NLMSG_NEXT(h, n)) {
            interrupted |= (h->nlmsg_flags & NLM_F_DUMP_INTR) != 0;
            int e = dump_message(h, each, arg, &done);
            r = r < 0 ? r : e;
        }
    }
    return interrupted && r == 0 ? -EINTR : r;
}

/* ---- attributes ---- */

const struct nlattr *hf_nl_next(const void *p, size_t n, const struct nlattr *at)
{
    const char *start = p, *next = at ? (const char *)at + NL_ALIGN(at->nla_len) : start;
    if (next > start + n || (size_t)(start + n - next) < sizeof(struct nlattr))
        return NULL;
    const struct nlattr *a = (const struct nlattr *)next;
    return a->nla_len >= sizeof(*a) && a->nla_len <= (size_t)(start + n - next) ? a : NULL;
}

void hf_nl_parse(const void *p, size_t n, const struct nlattr **tb, uint16_t max)
{
    memset(tb, 0, (max + 1u) * sizeof(*tb));
    for (const struct nlattr *a = NULL; (a = hf_nl_next(p, n, a));) {
        uint16_t type = a->nla_type & NLA_TYPE_MASK;
        if (type <= max)
            tb[type] = a;
    }
}

size_t hf_nl_len(const struct nlattr *a)
{
    return a ? a->nla_len - sizeof(*a) : 0;
}

uint32_t hf_nl_be32(const struct nlattr *a)
{
    uint32_t v = 0;
    if (hf_nl_len(a) >= sizeof(v))
        memcpy(&v, hf_nl_data(a), sizeof(v));
    return ntohl(v);
}

uint64_t hf_nl_be64(const struct nlattr *a)
{
    uint64_t v = 0;
    if (hf_nl_len(a) >= sizeof(v))
        memcpy(&v, hf_nl_data(a), sizeof(v));
    return be64toh(v);
}

/* ---- namespaces ---- */

int hf_ns_socket(int ns_fd, int domain, int type, int protocol)
{
    hf_auto_close int self = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (self < 0)
        return -errno;
    if (setns(ns_fd, CLONE_NEWNET) < 0)
        return -errno;
    int fd = socket(domain, type | SOCK_CLOEXEC, protocol);
    int saved = errno;
    if (setns(self, CLONE_NEWNET) < 0)
        abort();
    return fd < 0 ? -saved : fd;
}
