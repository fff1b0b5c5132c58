/* The network fabric of one data directory: a network namespace of its own in which every sandbox's veth
 * ends, with one static nftables ruleset whose maps and sets hold the sandboxes.
 *
 *   box netns                fabric netns  /run/netns/holdfast-<id>            host netns
 *   eth0 10.117.a.b/31 ───── hf<key>   forward chain: policy per box           hf-<id>  table inet
 * holdfast-<id> default via the other    lo: resolver address ◄─ DNS listener (netd)       masquerade, input
 * closed address of the /31       REDIRECT ◄─ L7 listener (netd)   hfup ─────────── uplink /29 + IPv6
 *
 * Why a namespace between box and host: the host's own firewall and sysctls neither weaken nor break a
 * policy, the host gets one small table and one interface, boxes can't reach the host's listeners even if a
 * rule is wrong, and removing the fabric is removing one namespace. Nothing of it needs the daemon to go on
 * working.
 *
 * Keys: a box is known by its key, the cell's number: a positive number that is never used again while the
 * fabric lives. Its interface is hf<key>; addresses are a pure function of the key (hf_net_addrs), and the
 * cell driver never has two living boxes whose addresses are equal.
 *
 * Default: an interface without elements may do nothing at all. All functions are synchronous (netlink
 * answers in microseconds) and called from one thread. */
#pragma once

#include <uv.h>

#include "base/addr.h"
#include "base/err.h"

#define HF_NET_DNS_PORT 53u
#define HF_NET_L7_PORT 15001u      /* where redirected TCP arrives, in the fabric */
#define HF_NET_BOXES_MAX 32000u    /* address pairs of a fabric */
#define HF_NET_ENTRIES_MAX 16384u  /* allow + deny prefixes of one box, per family */
#define HF_NET_PORTS_MAX 16u       /* L7 ports of one box */
#define HF_NET_CONNS_DEFAULT 4096u /* tracked connections of one box at once … */
#define HF_NET_RATE_DEFAULT 1000u  /* … and new ones a second */
#define HF_NET_LOG_GROUP 7u        /* NFLOG group of denials */
#define HF_NET_LOG_RATE 20u        /* denials logged a second and box; all are counted */

struct hf_net_config {
    const char *id; /* 8 hex: of the data directory */
    const char
        *subnet4; /* of boxes, seen inside the fabric only; default "10.117.0.0/16", at least /16 … /20 */
    const char *subnet6; /* default "fd68:6f6c:6466:1::/64" */
    const char *uplink4; /* pool of which a free /29 is taken for the uplink; default "10.118.0.0/16" */
    const char *uplink6; /* likewise a /64 of it; default "fd68:6f6c:6466:ff00::/56" */
    bool ipv6;           /* false: boxes have IPv4 only */
};

/* ---- pure ---- */
struct hf_net_addrs {
    struct hf_addr box4, gw4, box6, gw6; /* /31 and /127 */
    struct hf_addr dns4, dns6;           /* the resolver, the same for all boxes */
    char ifname[16];                     /* "hf<key>" */
};
int hf_net_addrs(const struct hf_net_config *cfg, uint32_t key, struct hf_net_addrs *ret) HF_MUST_USE;
/* "/run/netns/holdfast-<id>" */
void hf_net_ns_path(const char *id, char out[64]);

/* ---- one box's wire (link.c; used by the shim, needs nothing of nftables) ---- */

/* Makes the veth pair, hf<key> in the fabric and eth0 in the caller's current network namespace, with
 * addresses and default routes on both ends (IPv6 without duplicate detection, link-local addresses and
 * router advertisements). Idempotent. lo is not touched. */
int hf_net_link_up(const struct hf_net_config *cfg, int fabric_ns_fd, uint32_t key,
                   struct hf_err *err) HF_MUST_USE;
/* Removes the pair; missing is success. */
int hf_net_link_down(int fabric_ns_fd, uint32_t key, struct hf_err *err) HF_MUST_USE;

/* ---- the fabric (fabric.c, ruleset.c, nft.c) ---- */
struct hf_net;

/* What this host can do; "" in missing when everything. Never fails: `ok` says it. */
struct hf_net_caps {
    bool ok, ipv4, ipv6;
    char missing[200]; /* for people: "nft is not installed (apt install nftables)" … */
};
void hf_net_probe(struct hf_net_caps *ret);

/* Finds or makes the fabric: namespace, sysctls, ruleset, uplink, the host's table and forwarding.
 * Idempotent; a half-made one is finished; a ruleset of another version is replaced atomically while boxes'
 * elements stay. May take some tens of milliseconds. */
int hf_net_open(const struct hf_net_config *cfg, struct hf_net **ret, struct hf_err *err) HF_MUST_USE;
/* Lets go of it; the fabric stays. */
void hf_net_free(struct hf_net *n);
/* Removes everything of it from the host (namespace, uplink, table, forwarding if it was ours). Missing is
 * success. Blocking. */
int hf_net_remove(const struct hf_net_config *cfg, struct hf_err *err) HF_MUST_USE;
/* A socket inside the fabric's namespace (SOCK_CLOEXEC | SOCK_NONBLOCK added); the caller owns it. */
int hf_net_socket(struct hf_net *n, int domain, int type, int protocol) HF_MUST_USE;
int hf_net_ns_fd(const struct hf_net *n); /* borrowed */

/* The kernel's part of a box's policy. Order of decisions for a packet of the box, first match:
 *   source address is not the box's                               drop, counted
 *   destination: never (loopback, link-local, metadata, reserved, the fabric itself, other boxes)   deny
 *   to the resolver, port 53, dns on                              the DNS listener
 *   TCP to l7 ports (or any TCP with l7_all)                      the L7 listener
 *   destination in allow (prefixes; private parts only where the prefix itself is private)   accept
 *   TCP to a learned address                                      the L7 listener
 *   UDP 443 with no_quic; TCP 853/UDP 853 with no_quic            deny
 *   destination private                                           deny
 *   destination in deny                                           deny
 *   open                                                          accept, else deny
 * A packet of an answer (from the uplink) is judged by the same chain by its flow's original destination, so
 * a changed policy holds for open flows from their next packet in either direction. Denied TCP gets a reset,
 * everything else ICMP "administratively prohibited"; both counted, and logged to HF_NET_LOG_GROUP.
 * The host's own addresses are closed unless allow holds them as single addresses. */
struct hf_net_policy {
    uint32_t key;
    bool open;    /* default verdict */
    bool dns;     /* may ask the resolver */
    bool l7_all;  /* all TCP (but to never) goes to the L7 listener */
    bool no_quic; /* names are checked, so what hides them is denied */
    size_t n_l7_ports;
    uint16_t l7_ports[HF_NET_PORTS_MAX];
    const struct hf_cidr *allow, *deny; /* any order, may overlap, both families */
    size_t n_allow, n_deny;
    uint32_t conns_max, conns_rate; /* 0 = default */
};
/* Replaces the box's policy in one transaction: every packet sees the old or the new one. */
int hf_net_apply(struct hf_net *n, const struct hf_net_policy *p, struct hf_err *err) HF_MUST_USE;
/* Takes all elements of the box away (it may do nothing then). Missing is success. */
int hf_net_forget(struct hf_net *n, uint32_t key, struct hf_err *err) HF_MUST_USE;
/* The resolver answered: TCP of the box to that address goes to the L7 listener for ttl_s seconds, or for as
 * long as an earlier answer said if that is longer. -ENOENT: the box has no policy; -ENOSPC: 4096 addresses
 * are known. */
int hf_net_learn(struct hf_net *n, uint32_t key, const struct hf_addr *a, uint32_t ttl_s) HF_MUST_USE;
/* Forgets learned addresses of the box. */
int hf_net_unlearn(struct hf_net *n, uint32_t key) HF_MUST_USE;

struct hf_net_counters {
    uint64_t bytes_out, packets_out, bytes_in,
        packets_in;       /* through the fabric's forward path and listeners */
    uint64_t connections; /* tracked, new ones so far */
    uint64_t denied;      /* packets */
};
int hf_net_counters(struct hf_net *n, uint32_t key, struct hf_net_counters *ret) HF_MUST_USE;
/* Keys that have elements in the kernel, whoever made them: for the reconciler. malloc'ed. */
int hf_net_keys(struct hf_net *n, uint32_t **ret, size_t *ret_n) HF_MUST_USE;

struct hf_net_denial {
    uint32_t key;     /* 0 when it can't be told */
    uint8_t protocol; /* IPPROTO_* */
    struct hf_addr src, dst;
    uint16_t src_port, dst_port;
    const char *reason; /* "spoofed" "never" "private" "deny" "default" "quic" "connections" "rate" */
};
/* Reads denials on the loop until the watcher is freed. */
struct hf_net_watch;
int hf_net_watch(struct hf_net *n, uv_loop_t *loop, void (*cb)(void *arg, const struct hf_net_denial *d),
                 void *arg, struct hf_net_watch **ret, struct hf_err *err) HF_MUST_USE;
void hf_net_watch_free(struct hf_net_watch *w);
/* The destination that a redirected connection was meant for (SO_ORIGINAL_DST, both families). */
int hf_net_original_dst(int fd, struct hf_addr *ret, uint16_t *ret_port) HF_MUST_USE;
