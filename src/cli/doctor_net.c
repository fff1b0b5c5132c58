/* The doctor's checks of the network: what the fabric needs (engine/net), what the host's own settings do to
 * it. */
#include <fcntl.h>
#include <jansson.h>
#include <sched.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/path.h"
#include "cli/doctor.h"
#include "engine/net/net.h"
#include "engine/net/ns.h"

#define NO_NETWORK "sandboxes have loopback only: no egress, no names"
#define CONNTRACK_WANTED 65536
#define NFT_OUTPUT_MAX (4u << 20)

/* Without a network sandboxes still run, unless the settings want one. */
static enum hf_check_status without(const struct hf_doctor *d)
{
    return d->cfg->network == HF_NETWORK_REQUIRED ? HF_CHECK_FAIL
           : d->cfg->network == HF_NETWORK_OFF    ? HF_CHECK_INFO
                                                  : HF_CHECK_WARN;
}

/* True: nothing to look at. */
static bool not_wanted(const struct hf_doctor *d, struct hf_check_result *ret)
{
    if (d->cfg->network == HF_NETWORK_OFF)
        hf_check_set(ret, HF_CHECK_INFO, "the setting network is off: %s", NO_NETWORK);
    else if (!d->root)
        hf_check_set(ret, HF_CHECK_SKIP, "needs root to be tried");
    return ret->status != HF_CHECK_OK;
}

/* ---- namespaces, nftables, veth ---- */

static int probe_fabric(void *arg, struct hf_err *err)
{
    struct hf_net_caps caps;
    (void)arg;
    hf_net_probe(&caps);
    return caps.ok ? caps.ipv6 : hf_err_set(err, -ENOSYS, "%s", caps.missing);
}

static void check_fabric(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct hf_err err = {0};
    if (not_wanted(d, ret))
        return;
    if (hf_probe(probe_fabric, NULL, HF_PROBE_MS, &err) >= 0) {
        hf_check_set(ret, HF_CHECK_OK,
                     "a namespace with tables, maps and sets was made: policies hold in the kernel");
        return;
    }
    hf_check_set(ret, without(d), "%s", err.msg);
    hf_check_cost(ret, NO_NETWORK);
    hf_check_fix(ret, "%s",
                 hf_nft_program()
                     ? "modprobe nf_tables; a kernel with CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET, "
                       "CONFIG_NFT_CT and CONFIG_NFT_NAT"
                     : "apt install nftables");
}

/* The whole wire of a box, between two namespaces that go with the process. */
static int probe_veth(void *arg, struct hf_err *err)
{
    const struct hf_net_config cfg = {
        .id = "", .subnet4 = "10.117.0.0/16", .subnet6 = "fd68:6f6c:6466:1::/64", .ipv6 = false};
    (void)arg;
    if (unshare(CLONE_NEWNET) < 0)
        return hf_err_set(err, -errno, "a network namespace: %s", strerror(errno));
    hf_auto_close int fabric = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (fabric < 0 || unshare(CLONE_NEWNET) < 0)
        return hf_err_set(err, -errno, "a second network namespace: %s", strerror(errno));
    return hf_net_link_up(&cfg, fabric, 1, err);
}

static void check_veth(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct hf_err err = {0};
    if (not_wanted(d, ret))
        return;
    if (hf_probe(probe_veth, NULL, HF_PROBE_MS, &err) >= 0) {
        hf_check_set(ret, HF_CHECK_OK,
                     "a pair was made, with addresses and routes: each sandbox has a wire of its own");
        return;
    }
    hf_check_set(ret, without(d), "%s", err.msg);
    hf_check_cost(ret, NO_NETWORK);
    hf_check_fix(ret, "modprobe veth; in a container: run it privileged");
}

static void check_netd(const struct hf_doctor *d, struct hf_check_result *ret)
{
    hf_auto_free char *path = hf_doctor_program(d->cfg->netd_path, "holdfast-netd");
    if (d->cfg->network == HF_NETWORK_OFF || access(path, X_OK) == 0) {
        hf_check_set(ret, HF_CHECK_OK, "holdfast-netd %s",
                     d->cfg->network == HF_NETWORK_OFF ? "is not needed" : "is there");
        return;
    }
    hf_check_set(ret, without(d), "%s: %s", path, strerror(errno));
    hf_check_cost(ret, NO_NETWORK);
    hf_check_fix(ret, "install it beside `holdfast`, or name it: --set netd_path=PATH");
}

/* ---- IPv6 ---- */

static void check_ipv6(const struct hf_doctor *d, struct hf_check_result *ret)
{
    long long off = hf_probe_number("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    if (not_wanted(d, ret))
        return;
    if (d->cfg->network_ipv6 == HF_IPV6_OFF) {
        hf_check_set(ret, HF_CHECK_INFO, "the setting network_ipv6 is off: sandboxes have IPv4 only");
    } else if (off == 0) {
        hf_check_set(ret, HF_CHECK_OK, "on: sandboxes have both families, judged by the same policy");
    } else {
        bool must = d->cfg->network_ipv6 == HF_IPV6_ON;
        hf_check_set(ret, must ? HF_CHECK_FAIL : HF_CHECK_WARN,
                     off < 0 ? "the kernel has none" : "switched off here");
        hf_check_cost(ret, "sandboxes have IPv4 only%s", must ? ", and the setting network_ipv6 is on" : "");
        hf_check_fix(ret, "%s",
                     off < 0 ? "boot without ipv6.disable=1, or set network_ipv6 = \"off\""
                             : "sysctl -w net.ipv6.conf.all.disable_ipv6=0, or set network_ipv6 = \"off\"");
    }
}

/* ---- the host's own firewall ---- */

/* A chain of somebody else's that sees forwarded packets and drops what it does not know: every one of them
 * must accept a packet, ours can't overrule it. Its name, or "". */
static void find_dropper(const json_t *all, char *out, size_t n)
{
    size_t i;
    json_t *o;
    out[0] = '\0';
    json_array_foreach(json_object_get(all, "nftables"), i, o)
    {
        const json_t *c = json_object_get(o, "chain");
        const char *hook = json_string_value(json_object_get(c, "hook"));
        const char *policy = json_string_value(json_object_get(c, "policy"));
        const char *table = json_string_value(json_object_get(c, "table"));
        if (!hook || !policy || !table || strcmp(hook, "forward") != 0 || strcmp(policy, "drop") != 0 ||
            strncmp(table, "holdfast-", 9) == 0)
            continue;
        (void)snprintf(out, n, "%s %s %s", json_string_value(json_object_get(c, "family")), table,
                       json_string_value(json_object_get(c, "name")));
        return;
    }
}

/* Ends with 1 and the name as its error text when there is one. */
static int probe_firewall(void *arg, struct hf_err *err)
{
    static const char *const argv[] = {"nft", "-j", "list", "chains", NULL};
    hf_auto_buf struct hf_buf out = HF_BUF_INIT(NFT_OUTPUT_MAX);
    char name[160];
    (void)arg;
    const char *nft = hf_nft_program();
    int r = nft ? hf_probe_run(nft, argv, &out) : -ENOENT;
    if (r < 0)
        return hf_err_set(err, r, "the host's rules can't be read");
    json_auto_t *all = json_loadb(out.p ? out.p : "", out.n, 0, NULL);
    find_dropper(all, name, sizeof(name));
    return name[0] ? hf_err_set(err, -EPERM, "%s", name) : 0;
}

static void check_firewall(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct hf_err err = {0};
    if (not_wanted(d, ret))
        return;
    int r = hf_probe(probe_firewall, NULL, HF_PROBE_MS, &err);
    if (r == -EPERM) {
        hf_check_set(ret, HF_CHECK_WARN, "the chain \"%s\" drops what it does not know of forwarded packets",
                     err.msg);
        hf_check_cost(ret, "what a policy allows may still not get out (what it denies stays denied)");
        hf_check_fix(ret,
                     "nft insert rule %s iifname \"hf-*\" accept; nft insert rule %s oifname \"hf-*\" accept",
                     err.msg, err.msg);
    } else if (r < 0) {
        hf_check_set(ret, HF_CHECK_SKIP, "%s", err.msg);
    } else {
        hf_check_set(ret, HF_CHECK_OK, "no chain of the host stands in the way of forwarded packets");
    }
}

static void check_forwarding(const struct hf_doctor *d, struct hf_check_result *ret)
{
    long long v4 = hf_probe_number("/proc/sys/net/ipv4/ip_forward");
    long long v6 = hf_probe_number("/proc/sys/net/ipv6/conf/all/forwarding");
    if (not_wanted(d, ret))
        return;
    if (access("/proc/sys/net/ipv4/ip_forward", W_OK) < 0 && v4 != 1) {
        hf_check_set(ret, without(d), "off, and /proc/sys can't be written here");
        hf_check_cost(ret, "no packet of a sandbox leaves the host");
        hf_check_fix(
            ret, "sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 outside of the container");
        return;
    }
    hf_check_set(ret, HF_CHECK_OK, "IPv4 %s, IPv6 %s%s", v4 == 1 ? "on" : "off", v6 == 1 ? "on" : "off",
                 v4 == 1 && (v6 == 1 || v6 < 0)
                     ? ""
                     : "; the daemon switches it on for sandboxes' packets alone, and off again at its end");
}

static void check_conntrack(const struct hf_doctor *d, struct hf_check_result *ret)
{
    long long max = hf_probe_number("/proc/sys/net/netfilter/nf_conntrack_max");
    if (not_wanted(d, ret))
        return;
    if (max < 0) { /* the module comes with the first rule that needs it */
        hf_check_set(ret, HF_CHECK_OK, "not in use yet; limits of connections per sandbox come with it");
        return;
    }
    hf_check_set(ret, max >= CONNTRACK_WANTED ? HF_CHECK_OK : HF_CHECK_WARN,
                 "at most %lld connections are tracked; each sandbox may have %u", max, HF_NET_CONNS_DEFAULT);
    hf_check_cost(ret, "%lld sandboxes at their limit fill it: new connections of all fail",
                  max / HF_NET_CONNS_DEFAULT);
    hf_check_fix(
        ret, "sysctl -w net.netfilter.nf_conntrack_max=262144; keep it in /etc/sysctl.d/90-holdfast.conf");
}

const struct hf_check hf_doctor_net[] = {
    {"nftables", "network policies", check_fabric},
    {"veth", "virtual wires", check_veth},
    {"netd", "network helper", check_netd},
    {"ipv6", "IPv6", check_ipv6},
    {"forwarding", "forwarding", check_forwarding},
    {"firewall", "the host's own firewall", check_firewall},
    {"conntrack", "connection tracking", check_conntrack},
    {0},
};
