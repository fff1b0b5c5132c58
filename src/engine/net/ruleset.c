#include "engine/net/ruleset.h"

#include <stdio.h>

#include "base/id.h"
#include "engine/net/nft.h"

const char *const hf_never4[] = {"0.0.0.0/8",        "127.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24",
                                 "192.88.99.0/24",   "224.0.0.0/4", "240.0.0.0/4",    "100.100.100.200/32",
                                 "168.63.129.16/32", NULL};
const char *const hf_private4[] = {"10.0.0.0/8",    "172.16.0.0/12", "192.168.0.0/16",
                                   "100.64.0.0/10", "198.18.0.0/15", NULL};
/* Forms that no router carries (mapped, compatible, translated, Teredo) are closed as a whole. NAT64 and 6to4
 * are real routes: each IPv4 prefix above inside them. */
const char *const hf_never6[] = {"::/96",
                                 "::ffff:0:0/96",
                                 "::ffff:0:0:0/96",
                                 "2001::/32",
                                 "fe80::/10",
                                 "ff00::/8",
                                 "100::/64",
                                 "5f00::/16",
                                 "fd00:ec2::/32",
                                 "fd20:ce::/64",
                                 "fd00:42::42/128",
                                 "64:ff9b:1::/48",
                                 "64:ff9b::0.0.0.0/104",
                                 "64:ff9b::127.0.0.0/104",
                                 "64:ff9b::169.254.0.0/112",
                                 "64:ff9b::192.0.0.0/120",
                                 "64:ff9b::192.88.99.0/120",
                                 "64:ff9b::224.0.0.0/100",
                                 "64:ff9b::240.0.0.0/100",
                                 "64:ff9b::100.100.100.200/128",
                                 "64:ff9b::168.63.129.16/128",
                                 "2002::/24",
                                 "2002:7f00::/24",
                                 "2002:a9fe::/32",
                                 "2002:c000::/40",
                                 "2002:c058:6300::/40",
                                 "2002:e000::/20",
                                 "2002:f000::/20",
                                 "2002:6464:64c8::/48",
                                 "2002:a83f:8110::/48",
                                 NULL};
const char *const hf_private6[] = {"fc00::/7",
                                   "fec0::/10",
                                   "64:ff9b::10.0.0.0/104",
                                   "64:ff9b::172.16.0.0/108",
                                   "64:ff9b::192.168.0.0/112",
                                   "64:ff9b::100.64.0.0/106",
                                   "64:ff9b::198.18.0.0/111",
                                   "2002:a00::/24",
                                   "2002:ac10::/28",
                                   "2002:c0a8::/32",
                                   "2002:6440::/26",
                                   "2002:c612::/31",
                                   NULL};

/* ---- sets ---- */

static const char sets_text[] = "map src4 { typeof iifname . ip saddr : meta mark; }\n"
                                "map src6 { typeof iifname . ip6 saddr : meta mark; }\n"
                                "map boxes { typeof iifname : meta mark; }\n"
                                "map gen { type mark : classid; }\n"
                                "set fresh { typeof meta mark . ct mark; }\n"
                                "set open { type mark; }\n"
                                "set dns_on { type mark; }\n"
                                "set l7_all { type mark; }\n"
                                "set no_quic { type mark; }\n"
                                "set l7_ports { typeof meta mark . tcp dport; }\n"
                                "set single4 { typeof meta mark . ip daddr; }\n"
                                "set single6 { typeof meta mark . ip6 daddr; }\n"
                                "set learned4 { typeof meta mark . ip daddr; flags timeout; }\n"
                                "set learned6 { typeof meta mark . ip6 daddr; flags timeout; }\n"
                                "set rates { type mark; limit rate over 1000/second; }\n"
                                "set conns { type mark; ct count over 4096; }\n"
                                "set dns_rates { type mark; limit rate over 500/second; }\n"
                                "set logs { type mark; limit rate 20/second; }\n"
                                "set bytes_out { type mark; counter; }\n"
                                "set bytes_in { type mark; counter; }\n"
                                "set opened { type mark; counter; }\n"
                                "set denied { type mark; counter; }\n"
                                "set version { type mark; }\n"
                                "set never4 { type ipv4_addr; flags interval; auto-merge; }\n"
                                "set never6 { type ipv6_addr; flags interval; auto-merge; }\n"
                                "set private4 { type ipv4_addr; flags interval; auto-merge; }\n"
                                "set private6 { type ipv6_addr; flags interval; auto-merge; }\n";

/* ---- chains; $V the chain's shards, $U the uplink's group, $D4 $D6 resolver, $M4 $M6 $S4 $S6 source
 * addresses of the uplink ----
 */

struct chain {
    const char *name, *hook, *rules;
};

#define LOGGED(reason) " meta mark @denied\n meta mark @logs log prefix \"" reason "\" group 7 snaplen 128\n"
#define DENY(reason)                                        \
    {                                                       \
        "deny_" reason, "", LOGGED(reason) " goto refuse\n" \
    }

static const struct chain chains[] = {
    /* Who sends this? What no box may send ends here, before a connection is tracked for it. */
    {"raw_in", "type filter hook prerouting priority raw; policy drop;",
     " iifgroup $U accept\n"
     " iif lo accept\n"
     " meta mark set iifname . ip saddr map @src4\n"
     " meta mark set iifname . ip6 saddr map @src6\n"
     " meta mark 0 goto spoofed\n"
     " ip daddr $D4 udp dport 53 jump dns_in\n"
     " ip6 daddr $D6 udp dport 53 jump dns_in\n"
     " accept\n"},
    /* Questions to the resolver are not tracked: a flood of them can't fill the table. */
    {"dns_in", "", " meta mark @dns_rates goto dropped_rate\n notrack\n"},
    {"dropped_rate", "", LOGGED("rate") " drop\n"},
    {"spoofed", "",
     " ip6 saddr :: drop\n" /* a new interface's multicast reports */
     " meta mark set iifname map @boxes\n" LOGGED("spoofed") " drop\n"},
    {"raw_out", "type filter hook output priority raw; policy accept;",
     " ip saddr $D4 udp sport 53 notrack\n"
     " ip6 saddr $D6 udp sport 53 notrack\n"},
    /* Once a flow: may there be one more, and does it go to the L7 listener? */
    {"nat_in", "type nat hook prerouting priority dstnat; policy accept;",
     " meta mark 0 accept\n"
     " meta mark @rates goto deny_rate\n"
     " meta mark @conns goto deny_connections\n"
     " meta l4proto != tcp accept\n"
     " ip daddr @never4 accept\n"
     " ip6 daddr @never6 accept\n"
     " meta l4proto tcp meta mark @l7_all redirect to :15001\n"
     " meta mark . tcp dport @l7_ports redirect to :15001\n"
     " jump allow_nat\n"
     " meta l4proto tcp meta mark . ip daddr @learned4 redirect to :15001\n"
     " meta l4proto tcp meta mark . ip6 daddr @learned6 redirect to :15001\n"},
    /* Every packet. A flow that was judged by the policy in force carries its generation as connection mark:
     * one lookup. */
    {"forward", "type filter hook forward priority filter; policy drop;",
     " iifgroup $U goto back\n"
     " oifgroup != $U goto deny_never\n"
     " meta mark . ct mark @fresh goto pass_out\n"
     " ct state invalid drop\n"
     " goto judge\n"},
    {"back", "",
     " ct state != { established, related } drop\n"
     " meta mark set oifname map @boxes\n"
     " meta mark . ct mark @fresh goto pass_in\n"
     " goto judge\n"},
    /* The generation is read first and noted last: a policy that changes in between leaves the flow with the
     * old one, and its next packet is judged again. */
    {"judge", "",
     " meta priority set meta mark map @gen\n"
     " ct original ip daddr @never4 goto deny_never\n"
     " ct original ip6 daddr @never6 goto deny_never\n"
     " meta l4proto tcp meta mark @l7_all goto deny_default\n"
     " ct direction original meta mark . tcp dport @l7_ports goto deny_default\n"
     " ct direction reply meta mark . tcp sport @l7_ports goto deny_default\n"
     " jump allow_flow\n"
     " meta mark @no_quic jump hidden\n"
     " ct original ip daddr @private4 goto deny_private\n"
     " ct original ip6 daddr @private6 goto deny_private\n"
     " jump deny_flow\n"
     " meta mark @open goto judged\n"
     " goto deny_default\n"},
    /* What would hide names: DNS over TLS or QUIC, and HTTP/3. */
    {"hidden", "",
     " ct direction original meta l4proto { tcp, udp } th dport 853 goto deny_quic\n"
     " ct direction original udp dport 443 goto deny_quic\n"
     " ct direction reply meta l4proto { tcp, udp } th sport 853 goto deny_quic\n"
     " ct direction reply udp sport 443 goto deny_quic\n"},
    {"input", "type filter hook input priority filter; policy drop;",
     " iif lo accept\n"
     " meta mark 0 drop\n"
     " meta mark @dns_on ip daddr $D4 udp dport 53 goto listener\n"
     " meta mark @dns_on ip daddr $D4 tcp dport 53 goto listener\n"
     " meta mark @dns_on ip6 daddr $D6 udp dport 53 goto listener\n"
     " meta mark @dns_on ip6 daddr $D6 tcp dport 53 goto listener\n"
     " tcp dport 15001 ct status dnat goto listener\n"
     " goto deny_never\n"},
    {"allow_flow", "", " meta mark & 0xf vmap { $V }\n"},
    {"allow_nat", "", " meta mark & 0xf vmap { $V }\n"},
    {"deny_flow", "", " meta mark & 0xf vmap { $V }\n"},
    {"listener", "", " meta mark @bytes_out\n accept\n"},
    {"nat_local", "type nat hook input priority 100; policy accept;", " meta mark @opened\n"},
    {"nat_out", "type nat hook postrouting priority srcnat; policy accept;",
     " oifgroup != $U accept\n"
     " meta mark @opened\n"
     " meta mark . ct original ip daddr @single4 snat ip to $S4\n"
     " meta mark . ct original ip6 daddr @single6 snat ip6 to $S6\n"
     " meta nfproto ipv4 snat ip to $M4\n"
     " meta nfproto ipv6 snat ip6 to $M6\n"},
    {"passed", "", " iifgroup $U goto pass_in\n goto pass_out\n"},
    {"pass_out", "", " meta mark @bytes_out\n accept\n"},
    {"pass_in", "", " meta mark @bytes_in\n accept\n"},
    /* What the listeners answer. */
    {"count_own", "type filter hook output priority filter; policy accept;",
     " meta mark set oifname map @boxes\n"
     " meta mark @bytes_in\n"},
    /* A denied answer becomes a reset for the box, which may be waiting without a word; the next one resets
     * the other side. */
    {"refuse", "",
     " meta l4proto tcp ct direction reply ct mark != 0xffffffff ct mark set 0xffffffff goto reset_box\n"
     " meta l4proto tcp reject with tcp reset\n"
     " reject with icmpx type admin-prohibited\n"},
    {"reset_box", "", " tcp flags set rst | ack goto pass_in\n"},
    DENY("never"),
    DENY("private"),
    DENY("default"),
    DENY("quic"),
    DENY("connections"),
    DENY("rate"),
    {"deny_list", "", LOGGED("deny") " goto refuse\n"},
};

static int add_shards(struct hf_buf *b, const char *chain)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < HF_TREE_SHARDS; i++)
        r = hf_buf_addf(b, "%s%u : jump %s_%u", i ? ", " : "", i, chain, i);
    return r;
}

/* Adds a chain's rules with their $ names replaced. */
static int add_rules(struct hf_buf *b, const struct chain *c, const struct hf_net_addrs *a,
                     const struct hf_uplink *u)
{
    const char *rules = c->rules;
    const struct {
        const char *name;
        const struct hf_addr *addr;
    } names[] = {{"D4", &a->dns4},  {"D6", &a->dns6},    {"M4", &u->many4},
                 {"M6", &u->many6}, {"S4", &u->single4}, {"S6", &u->single6}};
    int r = 0;
    while (r == 0 && *rules) {
        size_t plain = strcspn(rules, "$");
        r = hf_buf_add(b, rules, plain);
        rules += plain;
        if (!*rules)
            break;
        if (rules[1] == 'V' || rules[1] == 'U') {
            if (r == 0)
                r = rules[1] == 'V' ? add_shards(b, c->name) : hf_buf_addf(b, "%u", HF_UPLINK_GROUP);
            rules += 2;
            continue;
        }
        for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(names); i++) {
            char text[HF_ADDR_TEXT];
            if (strncmp(rules + 1, names[i].name, 2) != 0)
                continue;
            hf_addr_format(names[i].addr, text);
            r = hf_buf_adds(b, text);
        }
        rules += 3;
    }
    return r;
}

/* Printed anew: nft does not read an IPv4 tail in an IPv6 address. */
static int add_element(struct hf_buf *b, const char *cidr, bool first)
{
    struct hf_cidr c;
    char text[HF_CIDR_TEXT];
    int r = hf_cidr_parse(hf_str_c(cidr), &c);
    if (r < 0)
        return r;
    hf_cidr_format(&c, text);
    return hf_buf_addf(b, "%s%s", first ? "" : ", ", text);
}

static int add_elements(struct hf_buf *b, const char *set, const char *const *list, const char *own1,
                        const char *own2)
{
    int r = hf_buf_addf(b, "flush set inet " HF_NFT_TABLE " %s\nadd element inet " HF_NFT_TABLE " %s { ", set,
                        set);
    for (size_t i = 0; r == 0 && list[i]; i++)
        r = add_element(b, list[i], i == 0);
    if (r == 0 && own1)
        r = add_element(b, own1, false);
    if (r == 0 && own2)
        r = add_element(b, own2, false);
    return r < 0 ? r : hf_buf_adds(b, " }\n");
}

static uint32_t version_of(const struct hf_buf *b)
{
    unsigned char sum[HF_SHA256_LEN];
    uint32_t v;
    hf_sha256_of(b->p, b->n, sum);
    memcpy(&v, sum, sizeof(v));
    return v ? v : 1;
}

static int add_version(struct hf_buf *b, const char *table, uint32_t *ret)
{
    uint32_t v = version_of(b);
    int r = hf_buf_addf(
        b, "flush set inet %s " HF_SET_VERSION "\nadd element inet %s " HF_SET_VERSION " { %#x }\n", table,
        table, v);
    if (r == 0)
        *ret = v;
    return r;
}

static int add_text(struct hf_buf *b, const struct hf_net_config *cfg, const struct hf_net_addrs *a,
                    const struct hf_uplink *u)
{
    int r =
        hf_buf_addf(b, "add table inet " HF_NFT_TABLE "\ntable inet " HF_NFT_TABLE " {\n%s}\n", sets_text);
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(chains); i++)
        r = hf_buf_addf(b,
                        "add chain inet " HF_NFT_TABLE " %s { %s }\nflush chain inet " HF_NFT_TABLE " %s\n",
                        chains[i].name, chains[i].hook, chains[i].name);
    r = r < 0 ? r : add_elements(b, "never4", hf_never4, cfg->subnet4, cfg->uplink4);
    r = r < 0 ? r : add_elements(b, "never6", hf_never6, cfg->subnet6, cfg->uplink6);
    r = r < 0 ? r : add_elements(b, "private4", hf_private4, NULL, NULL);
    r = r < 0 ? r : add_elements(b, "private6", hf_private6, NULL, NULL);
    r = r < 0 ? r : hf_buf_adds(b, "table inet " HF_NFT_TABLE " {\n");
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(chains); i++) {
        r = hf_buf_addf(b, "chain %s {\n", chains[i].name);
        r = r < 0 ? r : add_rules(b, &chains[i], a, u);
        r = r < 0 ? r : hf_buf_adds(b, "}\n");
    }
    return r < 0 ? r : hf_buf_adds(b, "}\n");
}

int hf_ruleset_text(const struct hf_net_config *cfg, const struct hf_uplink *u, struct hf_buf *ret,
                    uint32_t *ret_version, struct hf_err *err)
{
    struct hf_net_addrs a;
    int r = hf_net_addrs(cfg, 1, &a);
    r = r < 0 ? r : add_text(ret, cfg, &a, u);
    r = r < 0 ? r : add_version(ret, HF_NFT_TABLE, ret_version);
    return r < 0 ? hf_err_set(err, r, "the ruleset of the sandbox network can't be written: %s", strerror(-r))
                 : 0;
}

#define SHARDS(name)                                                                                       \
    {                                                                                                      \
        name "_0", name "_1", name "_2", name "_3", name "_4", name "_5", name "_6", name "_7", name "_8", \
            name "_9", name "_10", name "_11", name "_12", name "_13", name "_14", name "_15"              \
    }

const char *hf_tree_set(enum hf_tree tree, uint32_t key)
{
    static const char *const names[HF_TREES][HF_TREE_SHARDS] = {SHARDS("allow4"), SHARDS("allow6"),
                                                                SHARDS("deny4"), SHARDS("deny6")};
    return names[tree][key % HF_TREE_SHARDS];
}

/* One shard of a chain that looks into a box's list. */
static void add_lookup(struct hf_nft *b, const char *name, uint32_t shard, enum hf_tree tree4,
                       const char *target)
{
    char chain[32];
    (void)snprintf(chain, sizeof(chain), "%s_%u", name, shard);
    hf_nft_chain(b, chain);
    hf_nft_flush_chain(b, chain);
    hf_nft_flow_rule(b, chain, 4, hf_tree_set(tree4, shard), target);
    hf_nft_flow_rule(b, chain, 6, hf_tree_set(tree4 + 1, shard), target);
}

int hf_ruleset_trees(int nfnl_fd, struct hf_err *err)
{
    struct hf_nft b = {0};
    hf_nft_begin(&b, HF_NFT_TABLE);
    hf_nft_table(&b);
    hf_nft_chain(&b, "deny_list");
    hf_nft_chain(&b, "passed");
    hf_nft_chain(&b, "judged");
    hf_nft_flush_chain(&b, "judged");
    hf_nft_note_rule(&b, "judged", "passed");
    for (uint32_t shard = 0; shard < HF_TREE_SHARDS; shard++) {
        for (enum hf_tree tree = 0; tree < HF_TREES; tree++)
            hf_nft_tree_set(&b, hf_tree_set(tree, shard), shard * HF_TREES + tree + 1, tree % 2 ? 20 : 8);
        add_lookup(&b, "allow_flow", shard, HF_TREE_ALLOW4, "judged");
        add_lookup(&b, "allow_nat", shard, HF_TREE_ALLOW4, NULL);
        add_lookup(&b, "deny_flow", shard, HF_TREE_DENY4, "deny_list");
    }
    int r = hf_nft_commit(&b, nfnl_fd, err);
    hf_nft_done(&b);
    return r < 0 ? hf_err_wrap(err, "making the sandbox network's prefix sets") : 0;
}

/* ---- the host's side ---- */

/* Boxes reach the host's own addresses only where a policy names one: those flows come from `single`. */
static const char host_text[] = "add table inet holdfast-%1$s\n"
                                "table inet holdfast-%1$s { set version { type mark; }\n"
                                " chain post { type nat hook postrouting priority srcnat; policy accept; }\n"
                                " chain input { type filter hook input priority -1; policy accept; }\n"
                                " chain forward { type filter hook forward priority -1; policy accept; }\n}\n"
                                "flush table inet holdfast-%1$s\n"
                                "table inet holdfast-%1$s {\n"
                                " chain post {\n"
                                "  ip saddr %2$s oifname != \"hf-%1$s\" masquerade\n"
                                "  ip6 saddr %3$s oifname != \"hf-%1$s\" masquerade\n }\n"
                                " chain input {\n"
                                "  iifname != \"hf-%1$s\" accept\n"
                                "  ip saddr %4$s accept\n"
                                "  ip6 saddr %5$s accept\n"
                                "  ct state { established, related } accept\n"
                                "  meta l4proto tcp reject with tcp reset\n"
                                "  reject with icmpx type admin-prohibited\n }\n"
                                " chain forward {\n"
                                "  ct state { established, related } accept\n"
                                "  iifname \"hf-%1$s\" oifname \"hf-*\" drop\n"
                                "  iifname \"hf-%1$s\" ip saddr != %2$s drop\n"
                                "  iifname \"hf-%1$s\" ip6 saddr != %3$s drop\n"
                                "  oifname \"hf-%1$s\" drop\n }\n}\n";

int hf_host_text(const char *id, const struct hf_uplink *u, struct hf_buf *ret, uint32_t *ret_version,
                 struct hf_err *err)
{
    char net4[HF_CIDR_TEXT], net6[HF_CIDR_TEXT], single4[HF_ADDR_TEXT], single6[HF_ADDR_TEXT];
    hf_cidr_format(&u->net4, net4);
    hf_cidr_format(&u->net6, net6);
    hf_addr_format(&u->single4, single4);
    hf_addr_format(&u->single6, single6);
    hf_auto_free char *table = hf_xasprintf("holdfast-%s", id);
    int r = hf_buf_addf(ret, host_text, id, net4, net6, single4, single6);
    r = r < 0 ? r : add_version(ret, table, ret_version);
    return r < 0 ? hf_err_set(err, r, "the host's table can't be written: %s", strerror(-r)) : 0;
}
