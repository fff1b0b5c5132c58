#include "engine/net/rtnl.h"

#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>

#define READY_MAX_US 2000000u
#define READY_STEP_US 100u
#define QUEUES 1u /* the kernel would make one a processor: memory and time for each box */

/* ---- links ---- */

static int note_link(void *arg, const struct nlmsghdr *h)
{
    struct hf_link *l = arg;
    const struct ifinfomsg *m = NLMSG_DATA(h);
    if (h->nlmsg_type != RTM_NEWLINK || h->nlmsg_len < NLMSG_LENGTH(sizeof(*m)))
        return 0;
    const struct nlattr *tb[IFLA_OPERSTATE + 1];
    hf_nl_parse(m + 1, h->nlmsg_len - NLMSG_LENGTH(sizeof(*m)), tb, IFLA_OPERSTATE);
    l->index = m->ifi_index;
    l->up = (m->ifi_flags & IFF_UP) != 0;
    l->loopback = (m->ifi_flags & IFF_LOOPBACK) != 0;
    l->carrier =
        hf_nl_len(tb[IFLA_OPERSTATE]) && *(const uint8_t *)hf_nl_data(tb[IFLA_OPERSTATE]) == IF_OPER_UP;
    l->peer = 0;
    if (hf_nl_len(tb[IFLA_LINK]) >= sizeof(l->peer))
        memcpy(&l->peer, hf_nl_data(tb[IFLA_LINK]), sizeof(l->peer));
    return 0;
}

/* By name, or by ret->index. */
static int get_link(int fd, const char *name, struct hf_link *ret)
{
    hf_auto_nl struct hf_nl nl = {0};
    struct ifinfomsg m = {.ifi_index = name ? 0 : ret->index};
    struct hf_link l = {0};
    hf_nl_begin(&nl, RTM_GETLINK, 0, &m, sizeof(m));
    if (name)
        hf_nl_put_str(&nl, IFLA_IFNAME, name);
    hf_nl_end(&nl);
    int r = hf_nl_dump(fd, &nl, note_link, &l);
    if (r < 0)
        return r;
    if (!l.index)
        return -ENODEV;
    *ret = l;
    return 0;
}

int hf_rtnl_link(int fd, const char *name, struct hf_link *ret)
{
    return get_link(fd, name, ret);
}

int hf_rtnl_link_del(int fd, const char *name, struct hf_err *err)
{
    hf_auto_nl struct hf_nl nl = {0};
    struct ifinfomsg m = {0};
    hf_nl_begin(&nl, RTM_DELLINK, NLM_F_ACK, &m, sizeof(m));
    hf_nl_put_str(&nl, IFLA_IFNAME, name);
    hf_nl_end(&nl);
    struct hf_err why = {0};
    int r = hf_nl_talk(fd, &nl, &why);
    return r < 0 && r != -ENODEV ? hf_err_set(err, r, "removing the interface %s: %s", name, why.msg) : 0;
}

static void put_group(struct hf_nl *nl, int index, uint32_t group)
{
    struct ifinfomsg m = {.ifi_index = index};
    hf_nl_begin(nl, RTM_NEWLINK, NLM_F_ACK, &m, sizeof(m));
    hf_nl_put_u32(nl, IFLA_GROUP, group);
    hf_nl_end(nl);
}

static void put_up(struct hf_nl *nl, int index)
{
    struct ifinfomsg m = {.ifi_index = index, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    hf_nl_begin(nl, RTM_NEWLINK, NLM_F_ACK, &m, sizeof(m));
    hf_nl_end(nl);
}

static void put_veth_end(struct hf_nl *nl, const char *name, const uint8_t mac[6])
{
    hf_nl_put_str(nl, IFLA_IFNAME, name);
    hf_nl_put(nl, IFLA_ADDRESS, mac, 6);
    hf_nl_put_u32(nl, IFLA_NUM_TX_QUEUES, QUEUES);
    hf_nl_put_u32(nl, IFLA_NUM_RX_QUEUES, QUEUES);
}

static int veth_make(const struct hf_veth *v, struct hf_err *err)
{
    hf_auto_nl struct hf_nl nl = {0};
    struct ifinfomsg m = {0};
    hf_nl_begin(&nl, RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, &m, sizeof(m));
    put_veth_end(&nl, v->name, v->mac);
    size_t info = hf_nl_nest(&nl, IFLA_LINKINFO);
    hf_nl_put_str(&nl, IFLA_INFO_KIND, "veth");
    size_t data = hf_nl_nest(&nl, IFLA_INFO_DATA);
    size_t peer = hf_nl_nest(&nl, VETH_INFO_PEER);
    hf_nl_raw(&nl, &m, sizeof(m));
    put_veth_end(&nl, v->peer, v->peer_mac);
    hf_nl_put_u32(&nl, IFLA_NET_NS_FD, (uint32_t)v->peer_ns_fd);
    hf_nl_nest_end(&nl, peer);
    hf_nl_nest_end(&nl, data);
    hf_nl_nest_end(&nl, info);
    hf_nl_end(&nl);
    int r = hf_nl_talk(v->here_fd, &nl, err);
    return r < 0 ? hf_err_wrap(err, "making the interfaces %s and %s", v->name, v->peer) : 0;
}

static void put_no_made_up_addresses(struct hf_nl *nl, int index)
{
    struct ifinfomsg m = {.ifi_index = index};
    hf_nl_begin(nl, RTM_NEWLINK, NLM_F_ACK, &m, sizeof(m));
    size_t spec = hf_nl_nest(nl, IFLA_AF_SPEC);
    size_t inet6 = hf_nl_nest(nl, AF_INET6);
    hf_nl_put_u8(nl, IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE);
    hf_nl_nest_end(nl, inet6);
    hf_nl_nest_end(nl, spec);
    hf_nl_end(nl);
}

static int start(int fd, int index, struct hf_err *err)
{
    hf_auto_nl struct hf_nl nl = {0};
    if (access("/proc/sys/net/ipv6", F_OK) == 0)
        put_no_made_up_addresses(&nl, index);
    put_up(&nl, index);
    return hf_nl_talk(fd, &nl, err);
}

static int both_up(const struct hf_veth *v, const struct hf_link *here, const struct hf_link *there,
                   struct hf_err *err)
{
    int r = there->up ? 0 : start(v->there_fd, there->index, err);
    r = r < 0 || here->up ? r : start(v->here_fd, here->index, err);
    if (r < 0)
        return hf_err_wrap(err, "starting the interfaces %s and %s", v->name, v->peer);
    return 0;
}

int hf_rtnl_veth(const struct hf_veth *v, int *ret_here, int *ret_there, struct hf_err *err)
{
    struct hf_link here = {0}, there = {0};
    bool paired = hf_rtnl_link(v->here_fd, v->name, &here) == 0 &&
                  hf_rtnl_link(v->there_fd, v->peer, &there) == 0 && here.peer == there.index &&
                  there.peer == here.index;
    if (!paired) {
        int r = hf_rtnl_link_del(v->here_fd, v->name, err);
        r = r < 0 ? r : hf_rtnl_link_del(v->there_fd, v->peer, err);
        r = r < 0 ? r : veth_make(v, err);
        if (r < 0)
            return r;
        r = hf_rtnl_link(v->here_fd, v->name, &here);
        r = r < 0 ? r : hf_rtnl_link(v->there_fd, v->peer, &there);
        if (r < 0)
            return hf_err_set(err, r, "the interfaces %s and %s went away while they were made", v->name,
                              v->peer);
    }
    *ret_here = here.index;
    *ret_there = there.index;
    return both_up(v, &here, &there, err);
}

/* ---- addresses, neighbours, routes ---- */

static uint8_t family_of(const struct hf_addr *a)
{
    return a->family == 6 ? AF_INET6 : AF_INET;
}

static size_t size_of(const struct hf_addr *a)
{
    return a->family == 6 ? 16 : 4;
}

static void put_address(struct hf_nl *nl, int index, const struct hf_cidr *c)
{
    struct ifaddrmsg m = {
        .ifa_family = family_of(&c->addr), .ifa_prefixlen = c->bits, .ifa_index = (unsigned)index};
    hf_nl_begin(nl, RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, &m, sizeof(m));
    hf_nl_put(nl, IFA_LOCAL, c->addr.b, size_of(&c->addr));
    hf_nl_put(nl, IFA_ADDRESS, c->addr.b, size_of(&c->addr));
    if (c->addr.family == 6)
        hf_nl_put_u32(nl, IFA_FLAGS, IFA_F_NODAD);
    hf_nl_end(nl);
}

static void put_neighbour(struct hf_nl *nl, int index, const struct hf_addr *a, const uint8_t mac[6])
{
    struct ndmsg m = {.ndm_family = family_of(a), .ndm_ifindex = index, .ndm_state = NUD_PERMANENT};
    hf_nl_begin(nl, RTM_NEWNEIGH, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, &m, sizeof(m));
    hf_nl_put(nl, NDA_DST, a->b, size_of(a));
    hf_nl_put(nl, NDA_LLADDR, mac, 6);
    hf_nl_end(nl);
}

static void put_default_route(struct hf_nl *nl, int index, const struct hf_addr *gateway)
{
    struct rtmsg m = {.rtm_family = family_of(gateway),
                      .rtm_table = RT_TABLE_MAIN,
                      .rtm_protocol = RTPROT_STATIC,
                      .rtm_scope = RT_SCOPE_UNIVERSE,
                      .rtm_type = RTN_UNICAST,
                      .rtm_flags = RTNH_F_ONLINK};
    hf_nl_begin(nl, RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, &m, sizeof(m));
    hf_nl_put(nl, RTA_GATEWAY, gateway->b, size_of(gateway));
    hf_nl_put_u32(nl, RTA_OIF, (uint32_t)index);
    hf_nl_end(nl);
}

static int note_type(void *arg, const struct nlmsghdr *h)
{
    const struct rtmsg *m = NLMSG_DATA(h);
    if (h->nlmsg_type == RTM_NEWROUTE && h->nlmsg_len >= NLMSG_LENGTH(sizeof(*m)))
        *(uint8_t *)arg = m->rtm_type;
    return 0;
}

static bool is_local(int fd, const struct hf_addr *a)
{
    hf_auto_nl struct hf_nl nl = {0};
    struct rtmsg m = {.rtm_family = AF_INET6, .rtm_dst_len = 128};
    uint8_t type = RTN_UNSPEC;
    hf_nl_begin(&nl, RTM_GETROUTE, 0, &m, sizeof(m));
    hf_nl_put(&nl, RTA_DST, a->b, 16);
    hf_nl_end(&nl);
    (void)!hf_nl_dump(fd, &nl, note_type, &type);
    return type == RTN_LOCAL;
}

int hf_rtnl_end(const struct hf_end *e, struct hf_err *err)
{
    hf_auto_nl struct hf_nl nl = {0};
    bool v6 = false;
    for (size_t i = 0; i < e->n_addrs; i++)
        v6 |= e->addrs[i].addr.family == 6;
    if (e->group)
        put_group(&nl, e->index, e->group);
    if (v6)
        put_no_made_up_addresses(&nl, e->index);
    put_up(&nl, e->index);
    for (size_t i = 0; i < e->n_addrs; i++)
        put_address(&nl, e->index, &e->addrs[i]);
    for (size_t i = 0; i < e->n_neighbours; i++)
        put_neighbour(&nl, e->index, &e->neighbours[i], e->neighbour_mac);
    for (size_t i = 0; i < e->n_gateways; i++)
        put_default_route(&nl, e->index, &e->gateways[i]);
    return hf_nl_talk(e->fd, &nl, err);
}

/* An interface drops what it should send until the kernel's link watcher got round to its carrier, and an
 * IPv6 address receives nothing before a work item made its local route: mostly within a millisecond, but
 * both need a lock that the whole host shares. A box must not lose its first packet. */
static bool is_ready(const struct hf_end *e)
{
    struct hf_link l = {.index = e->index};
    bool ready = get_link(e->fd, NULL, &l) < 0 || l.carrier || l.loopback;
    for (size_t i = 0; ready && i < e->n_addrs; i++)
        ready = e->addrs[i].addr.family == 4 || is_local(e->fd, &e->addrs[i].addr);
    return ready;
}

void hf_rtnl_wait(const struct hf_end *e)
{
    for (unsigned waited_us = 0; waited_us < READY_MAX_US && !is_ready(e); waited_us += READY_STEP_US)
        (void)usleep(READY_STEP_US);
}

/* ---- what is there ---- */

struct nets {
    void (*each)(void *arg, const struct hf_cidr *net);
    void *arg;
    unsigned index; /* 0 = all */
};

static void report(const struct nets *n, uint8_t family, const struct nlattr *a, uint8_t bits)
{
    struct hf_cidr c = {.addr.family = family == AF_INET6 ? 6 : 4, .bits = bits};
    if (hf_nl_len(a) != size_of(&c.addr))
        return;
    memcpy(c.addr.b, hf_nl_data(a), hf_nl_len(a));
    n->each(n->arg, &c);
}

static int note_address(void *arg, const struct nlmsghdr *h)
{
    const struct nets *n = arg;
    const struct ifaddrmsg *m = NLMSG_DATA(h);
    const struct nlattr *tb[IFA_LOCAL + 1];
    if (h->nlmsg_type != RTM_NEWADDR || h->nlmsg_len < NLMSG_LENGTH(sizeof(*m)) ||
        (n->index && m->ifa_index != n->index))
        return 0;
    hf_nl_parse(m + 1, h->nlmsg_len - NLMSG_LENGTH(sizeof(*m)), tb, IFA_LOCAL);
    report(n, m->ifa_family, tb[IFA_LOCAL] ? tb[IFA_LOCAL] : tb[IFA_ADDRESS], m->ifa_prefixlen);
    return 0;
}

static int note_route(void *arg, const struct nlmsghdr *h)
{
    const struct rtmsg *m = NLMSG_DATA(h);
    const struct nlattr *tb[RTA_DST + 1];
    if (h->nlmsg_type != RTM_NEWROUTE || h->nlmsg_len < NLMSG_LENGTH(sizeof(*m)) || !m->rtm_dst_len)
        return 0;
    hf_nl_parse(m + 1, h->nlmsg_len - NLMSG_LENGTH(sizeof(*m)), tb, RTA_DST);
    report(arg, m->rtm_family, tb[RTA_DST], m->rtm_dst_len);
    return 0;
}

int hf_rtnl_addrs(int fd, int index, void (*each)(void *arg, const struct hf_cidr *net), void *arg)
{
    hf_auto_nl struct hf_nl nl = {0};
    struct nets n = {each, arg, (unsigned)index};
    struct ifaddrmsg m = {0};
    hf_nl_begin(&nl, RTM_GETADDR, NLM_F_DUMP, &m, sizeof(m));
    hf_nl_end(&nl);
    int r = hf_nl_dump(fd, &nl, note_address, &n);
    return r == -EINTR ? 0 : r;
}

int hf_rtnl_nets(int fd, void (*each)(void *arg, const struct hf_cidr *net), void *arg)
{
    hf_auto_nl struct hf_nl nl = {0};
    struct nets n = {each, arg, 0};
    struct rtmsg m = {0};
    int r = hf_rtnl_addrs(fd, 0, each, arg);
    if (r < 0)
        return r;
    hf_nl_begin(&nl, RTM_GETROUTE, NLM_F_DUMP, &m, sizeof(m));
    hf_nl_end(&nl);
    r = hf_nl_dump(fd, &nl, note_route, &n);
    return r == -EINTR ? 0 : r;
}
