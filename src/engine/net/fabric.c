#include "engine/net/fabric.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdio.h>

#include "base/fault.h"
#include "base/id.h"
#include "base/path.h"
#include "engine/net/host.h"
#include "engine/net/ns.h"
#include "engine/net/rtnl.h"

/* ---- what the host can do ---- */

static bool have_ipv6(void)
{
    char text[4] = {0};
    hf_auto_close int fd = open("/proc/sys/net/ipv6/conf/all/disable_ipv6", O_RDONLY | O_CLOEXEC);
    return fd >= 0 && read(fd, text, 1) == 1 && text[0] == '0';
}

/* In a namespace of its own, which goes again: netfilter tables, and a pair of interfaces. */
static int try_all(void *arg)
{
    hf_auto_close int nfnl = hf_nl_open(NETLINK_NETFILTER), route = hf_nl_open(NETLINK_ROUTE);
    hf_auto_close int self = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (nfnl < 0 || route < 0 || self < 0)
        return hf_err_set(arg, -EPROTONOSUPPORT, "the kernel has no netlink for netfilter");
    int r = hf_ruleset_trees(nfnl, arg);
    if (r < 0)
        return r;
    struct hf_veth v = {"probe0", "probe1", {0x02, 'h'}, {0x06, 'h'}, route, route, self};
    int here, there;
    return hf_rtnl_veth(&v, &here, &there, arg);
}

void hf_net_probe(struct hf_net_caps *ret)
{
    *ret = (struct hf_net_caps){0};
    if (!hf_nft_program()) {
        (void)snprintf(ret->missing, sizeof(ret->missing), "nft is not installed (apt install nftables)");
        return;
    }
    struct hf_err err = {0};
    int r = hf_ns_run(-1, try_all, &err);
    if (r < 0) {
        (void)snprintf(ret->missing, sizeof(ret->missing),
                       "network namespaces with nf_tables and veth don't work here: %.120s",
                       *err.msg ? err.msg : strerror(-r));
        return;
    }
    ret->ok = ret->ipv4 = true;
    ret->ipv6 = have_ipv6();
    if (!ret->ipv6)
        (void)snprintf(ret->missing, sizeof(ret->missing),
                       "IPv6 is switched off on this host: sandboxes have IPv4 only");
}

/* ---- inside the namespace ---- */

struct inside {
    const struct hf_net_config *cfg;
    struct hf_err *err;
};

/* The last member of `all` counts for interfaces that are there, of `default` for those that come. */
static const char *const sysctls4[][2] = {
    {"net/ipv4/conf/all/rp_filter", "1"},
    {"net/ipv4/conf/default/rp_filter", "1"},
    {"net/ipv4/conf/all/accept_redirects", "0"},
    {"net/ipv4/conf/default/accept_redirects", "0"},
    {"net/ipv4/conf/all/send_redirects", "0"},
    {"net/ipv4/conf/default/send_redirects", "0"},
    {"net/ipv4/conf/all/accept_source_route", "0"},
    {"net/ipv4/conf/default/accept_source_route", "0"},
    {"net/ipv4/conf/all/route_localnet", "0"},
    {"net/ipv4/conf/default/route_localnet", "0"},
    {"net/ipv4/conf/all/arp_ignore", "1"},
    {"net/ipv4/conf/default/arp_ignore", "1"},
    {"net/ipv4/icmp_ratelimit", "10"}, /* ms: a denial is told at once, also the tenth in a second */
    {"net/ipv4/ip_forward", "1"},
};
static const char *const sysctls6[][2] = {
    {"net/ipv6/conf/all/disable_ipv6", "0"},
    {"net/ipv6/conf/default/disable_ipv6", "0"},
    {"net/ipv6/conf/all/accept_ra", "0"},
    {"net/ipv6/conf/default/accept_ra", "0"},
    {"net/ipv6/conf/all/accept_redirects", "0"},
    {"net/ipv6/conf/default/accept_redirects", "0"},
    {"net/ipv6/conf/all/accept_source_route", "0"},
    {"net/ipv6/conf/default/accept_source_route", "0"},
    {"net/ipv6/icmp/ratelimit", "10"},
    {"net/ipv6/conf/all/forwarding", "1"},
};
/* A packet in the middle of an unknown connection must not found a new one: it would pass by the listeners.
 * Connections that say nothing for long go, so that they don't hold the box's places. These files exist once
 * connection tracking is in use: after the ruleset. */
static const char *const sysctls_tracking[][2] = {
    {"net/netfilter/nf_conntrack_tcp_loose", "0"},
    {"net/netfilter/nf_conntrack_tcp_timeout_established", "7440"}, /* RFC 5382: at least 2 h 4 min */
    {"net/netfilter/nf_conntrack_udp_timeout", "30"},
};

static int write_sysctls(const char *const (*list)[2], size_t n, struct hf_err *err)
{
    for (size_t i = 0; i < n; i++) {
        hf_auto_free char *path = hf_xasprintf("/proc/sys/%s", list[i][0]);
        int r = hf_write_existing(path, list[i][1]);
        if (r < 0)
            return hf_err_set(err, r, "the sandbox network's %s can't be set to %s: %s", list[i][0],
                              list[i][1], strerror(-r));
    }
    return 0;
}

static int loopback(const struct hf_net_config *cfg, struct hf_err *err)
{
    hf_auto_close int fd = hf_nl_open(NETLINK_ROUTE);
    struct hf_net_addrs a;
    struct hf_link lo;
    int r = fd < 0 ? fd : hf_rtnl_link(fd, "lo", &lo);
    r = r < 0 ? r : hf_net_addrs(cfg, 1, &a);
    if (r < 0)
        return hf_err_set(err, r, "the sandbox network's loopback: %s", strerror(-r));
    struct hf_end e = {
        .fd = fd, .index = lo.index, .n_addrs = cfg->ipv6 ? 2 : 1, .addrs = {{a.dns4, 32}, {a.dns6, 128}}};
    r = hf_rtnl_end(&e, err);
    if (r == 0)
        hf_rtnl_wait(&e);
    return r;
}

static int set_up_inside(void *arg)
{
    struct inside *in = arg;
    int r = loopback(in->cfg, in->err);
    r = r < 0 ? r : write_sysctls(sysctls4, HF_ARRAY_LEN(sysctls4), in->err);
    if (r == 0 && in->cfg->ipv6)
        r = write_sysctls(sysctls6, HF_ARRAY_LEN(sysctls6), in->err);
    return r;
}

static int set_up_tracking(void *arg)
{
    struct inside *in = arg;
    return write_sysctls(sysctls_tracking, HF_ARRAY_LEN(sysctls_tracking), in->err);
}

static int load_ruleset(const struct hf_net_config *cfg, const struct hf_uplink *u, int ns_fd, int nfnl_fd,
                        struct hf_err *err)
{
    hf_auto_buf struct hf_buf text = HF_BUF_INIT(HF_RULESET_MAX);
    struct hf_nft_elem key = {0};
    struct hf_nft_found f;
    uint32_t version;
    int r = hf_ruleset_text(cfg, u, &text, &version, err);
    if (r < 0)
        return r;
    hf_nft_key_u32(&key, version);
    if (hf_nft_get(nfnl_fd, HF_NFT_TABLE, HF_SET_VERSION, &key, &f) == 0)
        return 0;
    r = hf_ruleset_trees(nfnl_fd, err);
    if (r < 0)
        return r;
    hf_killpoint("net.ruleset.trees");
    return hf_nft_load(ns_fd, text.p, text.n, err);
}

/* ---- open ---- */

static void copy_config(struct hf_net *n, const struct hf_net_config *cfg)
{
    const char *const from[] = {cfg->id, cfg->subnet4, cfg->subnet6, cfg->uplink4, cfg->uplink6};
    for (size_t i = 0; i < HF_ARRAY_LEN(from); i++)
        n->strings[i] = hf_xstrdup(from[i]);
    n->cfg = (struct hf_net_config){n->strings[0], n->strings[1], n->strings[2],
                                    n->strings[3], n->strings[4], cfg->ipv6};
}

static int check_config(const struct hf_net_config *cfg, struct hf_err *err)
{
    struct hf_net_addrs a;
    uint8_t id[4];
    if (hf_unhex(hf_str_c(cfg->id), id, sizeof(id)) < 0)
        return hf_err_set(err, -EINVAL, "the id of a sandbox network is 8 hexadecimal digits");
    if (hf_net_addrs(cfg, 1, &a) < 0)
        return hf_err_set(
            err, -EINVAL,
            "the sandbox network's subnets are not valid: %s (an IPv4 /16 … /20), %s (an IPv6 /8 … /96)",
            cfg->subnet4, cfg->subnet6);
    return 0;
}

/* The rules are in force before a packet can come: forwarding, the uplink and the host's forwarding follow.
 */
static int make(struct hf_net *n, struct hf_host *host, struct hf_err *err)
{
    char path[64];
    bool made;
    struct hf_uplink u;
    struct inside in = {&n->cfg, err};
    hf_net_ns_path(n->cfg.id, path);
    int r = hf_host_uplink(host, &u, err);
    r = r < 0 ? r : hf_ns_pin(path, &n->ns_fd, &made, err);
    if (r < 0)
        return r;
    n->nfnl_fd = hf_ns_socket(n->ns_fd, AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);
    if (n->nfnl_fd < 0)
        return hf_err_set(err, n->nfnl_fd, "opening netlink in the sandbox network: %s",
                          strerror(-n->nfnl_fd));
    r = load_ruleset(&n->cfg, &u, n->ns_fd, n->nfnl_fd, err);
    hf_killpoint("net.ruleset");
    r = r < 0 ? r : hf_ns_run(n->ns_fd, set_up_tracking, &in);
    r = r < 0 ? r : hf_ns_run(n->ns_fd, set_up_inside, &in);
    hf_killpoint("net.inside");
    r = r < 0 ? r : hf_host_table(host, &u, err);
    hf_killpoint("net.host.table");
    r = r < 0 ? r : hf_host_wire(host, &u, n->ns_fd, err);
    hf_killpoint("net.uplink");
    r = r < 0 ? r : hf_host_forward(host, err);
    hf_killpoint("net.forward");
    return r;
}

int hf_net_open(const struct hf_net_config *cfg, struct hf_net **ret, struct hf_err *err)
{
    int r = check_config(cfg, err);
    hf_auto_close int lock = r < 0 ? -1 : hf_ns_lock(cfg->id, err);
    if (r < 0 || lock < 0)
        return r < 0 ? r : lock;
    struct hf_net *n = hf_new(struct hf_net);
    n->ns_fd = n->nfnl_fd = -1;
    copy_config(n, cfg);
    n->cfg.ipv6 = cfg->ipv6 && have_ipv6();
    struct hf_host host;
    r = hf_host_open(&host, &n->cfg, err);
    r = r < 0 ? r : make(n, &host, err);
    r = r < 0 ? r : hf_net_learn_boxes(n, err);
    hf_host_done(&host);
    if (r < 0) {
        hf_net_free(n);
        return hf_err_wrap(err, "setting up the sandbox network");
    }
    *ret = n;
    return 0;
}

void hf_net_free(struct hf_net *n)
{
    if (!n)
        return;
    hf_net_free_boxes(n);
    hf_nft_done(&n->batch);
    n->nfnl_fd = hf_close(n->nfnl_fd);
    n->ns_fd = hf_close(n->ns_fd);
    for (size_t i = 0; i < HF_ARRAY_LEN(n->strings); i++)
        free(n->strings[i]);
    free(n);
}

int hf_net_remove(const struct hf_net_config *cfg, struct hf_err *err)
{
    char path[64];
    int r = check_config(cfg, err);
    hf_auto_close int lock = r < 0 ? -1 : hf_ns_lock(cfg->id, err);
    if (r < 0 || lock < 0)
        return r < 0 ? r : lock;
    struct hf_host host;
    r = hf_host_open(&host, cfg, err);
    r = r < 0 ? r : hf_host_remove(&host, err);
    hf_host_done(&host);
    hf_net_ns_path(cfg->id, path);
    r = r < 0 ? r : hf_ns_unpin(path, err);
    if (r == 0)
        hf_ns_lock_remove(cfg->id);
    return r;
}

int hf_net_socket(struct hf_net *n, int domain, int type, int protocol)
{
    return hf_ns_socket(n->ns_fd, domain, type | SOCK_NONBLOCK, protocol);
}

int hf_net_ns_fd(const struct hf_net *n)
{
    return n->ns_fd;
}
