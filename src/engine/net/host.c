#include "engine/net/host.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/netlink.h>
#include <stdio.h>

#include "base/fault.h"
#include "base/id.h"
#include "base/path.h"
#include "engine/net/nft.h"
#include "engine/net/ns.h"
#include "engine/net/rtnl.h"

#define UPLINK4_BITS 29u /* three addresses: host, and two of the fabric */
#define UPLINK6_BITS 64u
#define FABRIC_LINK "hfup"
/* Forwarding was off before the first fabric of this host came: the table of this name says so, holds what
 * has to be put back, and lets nothing but fabrics' packets through. */
#define FORWARD_TABLE "holdfast-forward"
#define SET_FAMILIES "families" /* 4, 6: forwarding was switched on by us */
#define SET_RA "accept_ra"      /* interfaces whose accept_ra was 1 */

int hf_host_open(struct hf_host *h, const struct hf_net_config *cfg, struct hf_err *err)
{
    *h = (struct hf_host){.cfg = cfg, .route_fd = -1, .nfnl_fd = -1, .ipv6 = cfg->ipv6};
    (void)snprintf(h->link, sizeof(h->link), "hf-%s", cfg->id);
    (void)snprintf(h->table, sizeof(h->table), "holdfast-%s", cfg->id);
    h->route_fd = hf_nl_open(NETLINK_ROUTE);
    h->nfnl_fd = hf_nl_open(NETLINK_NETFILTER);
    int r = h->route_fd < 0 ? h->route_fd : h->nfnl_fd;
    return r < 0 ? hf_err_set(err, r, "opening netlink: %s", strerror(-r)) : 0;
}

void hf_host_done(struct hf_host *h)
{
    h->route_fd = hf_close(h->route_fd);
    h->nfnl_fd = hf_close(h->nfnl_fd);
}

/* ---- which subnet ---- */

struct taken {
    const struct hf_cidr *net;
    uint8_t at_least; /* broader routes than this don't count */
    bool hit;
};

static bool overlap(const struct hf_cidr *a, const struct hf_cidr *b)
{
    return a->bits < b->bits ? hf_cidr_has(a, &b->addr) : hf_cidr_has(b, &a->addr);
}

static void note_taken(void *arg, const struct hf_cidr *net)
{
    struct taken *t = arg;
    t->hit |= net->bits >= t->at_least && overlap(net, t->net);
}

/* Subnet number n of the pool. */
static struct hf_cidr subnet_of(const struct hf_cidr *pool, uint8_t bits, uint32_t n)
{
    struct hf_cidr c = {pool->addr, bits};
    uint8_t *word = c.addr.b + (bits > 32 ? 4 : 0);
    uint32_t v;
    memcpy(&v, word, sizeof(v));
    v = htonl(ntohl(v) | n << (bits > 32 ? 64 - bits : 32 - bits));
    memcpy(word, &v, sizeof(v));
    return c;
}

static struct hf_addr host_number(const struct hf_cidr *net, uint8_t n)
{
    struct hf_addr a = net->addr;
    a.b[a.family == 6 ? 15 : 3] |= n;
    return a;
}

static int choose(struct hf_host *h, const struct hf_cidr *pool, uint8_t bits, struct hf_cidr *ret,
                  struct hf_err *err)
{
    unsigned char sum[HF_SHA256_LEN];
    uint32_t seed, count = 1u << (bits - pool->bits);
    hf_sha256_of(h->cfg->id, strlen(h->cfg->id), sum);
    memcpy(&seed, sum, sizeof(seed));
    /* First without any overlap; then beside broader routes (a VPN's 10.0.0.0/8, of which this takes little).
     */
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < count; i++) {
            struct hf_cidr c = subnet_of(pool, bits, (seed + i) % count);
            struct taken t = {&c, pass ? pool->bits : 1, false};
            int r = hf_rtnl_nets(h->route_fd, note_taken, &t);
            if (r < 0)
                return hf_err_set(err, r, "reading the host's routes: %s", strerror(-r));
            if (t.hit)
                continue;
            *ret = c;
            return 0;
        }
    char text[HF_CIDR_TEXT];
    hf_cidr_format(pool, text);
    return hf_err_set(err, -EADDRINUSE, "every subnet of %s is in use on this host: set another uplink pool",
                      text);
}

struct own {
    const struct hf_cidr *pool4, *pool6;
    struct hf_cidr net4, net6;
};

static void note_own(void *arg, const struct hf_cidr *net)
{
    struct own *o = arg;
    bool v6 = net->addr.family == 6;
    if (net->bits != (v6 ? UPLINK6_BITS : UPLINK4_BITS) || !hf_cidr_has(v6 ? o->pool6 : o->pool4, &net->addr))
        return;
    struct hf_cidr cut = *net;
    if (v6)
        memset(cut.addr.b + 8, 0, 8);
    else
        cut.addr.b[3] &= 0xf8;
    *(v6 ? &o->net6 : &o->net4) = cut;
}

int hf_host_uplink(struct hf_host *h, struct hf_uplink *ret, struct hf_err *err)
{
    struct hf_cidr pool4, pool6;
    if (hf_cidr_parse(hf_str_c(h->cfg->uplink4), &pool4) < 0 || pool4.addr.family != 4 || pool4.bits < 8 ||
        pool4.bits > UPLINK4_BITS || hf_cidr_parse(hf_str_c(h->cfg->uplink6), &pool6) < 0 ||
        pool6.addr.family != 6 || pool6.bits < 40 || pool6.bits > UPLINK6_BITS)
        return hf_err_set(err, -EINVAL,
                          "the uplink pools are not valid: %s (an IPv4 /8 … /29), %s (an IPv6 /40 … /64)",
                          h->cfg->uplink4, h->cfg->uplink6);
    struct own o = {.pool4 = &pool4, .pool6 = &pool6};
    struct hf_link l;
    int r = hf_rtnl_link(h->route_fd, h->link, &l);
    r = r < 0 ? r : hf_rtnl_addrs(h->route_fd, l.index, note_own, &o);
    if (r < 0 && r != -ENODEV)
        return hf_err_set(err, r, "reading the addresses of %s: %s", h->link, strerror(-r));
    if (!o.net4.bits && (r = choose(h, &pool4, UPLINK4_BITS, &o.net4, err)) < 0)
        return r;
    if (!o.net6.bits && (r = choose(h, &pool6, UPLINK6_BITS, &o.net6, err)) < 0)
        return r;
    *ret = (struct hf_uplink){
        .net4 = o.net4,
        .net6 = o.net6,
        .host4 = host_number(&o.net4, 1),
        .many4 = host_number(&o.net4, 2),
        .single4 = host_number(&o.net4, 3),
        .host6 = host_number(&o.net6, 1),
        .many6 = host_number(&o.net6, 2),
        .single6 = host_number(&o.net6, 3),
    };
    return 0;
}

/* ---- table ---- */

static bool has_version(int fd, const char *table, uint32_t version)
{
    struct hf_nft_elem key = {0};
    struct hf_nft_found f;
    hf_nft_key_u32(&key, version);
    return hf_nft_get(fd, table, HF_SET_VERSION, &key, &f) == 0;
}

int hf_host_table(struct hf_host *h, const struct hf_uplink *u, struct hf_err *err)
{
    hf_auto_buf struct hf_buf text = HF_BUF_INIT(HF_RULESET_MAX);
    uint32_t version;
    int r = hf_host_text(h->cfg->id, u, &text, &version, err);
    if (r < 0 || has_version(h->nfnl_fd, h->table, version))
        return r;
    return hf_nft_load(-1, text.p, text.n, err);
}

/* ---- wire ---- */

static void end_add(struct hf_end *e, const struct hf_addr *a, uint8_t bits)
{
    e->addrs[e->n_addrs++] = (struct hf_cidr){*a, bits};
}

int hf_host_wire(struct hf_host *h, const struct hf_uplink *u, int fabric_fd, struct hf_err *err)
{
    hf_auto_close int there = hf_ns_socket(fabric_fd, AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    if (there < 0)
        return hf_err_set(err, there, "opening netlink in the sandbox network: %s", strerror(-there));
    unsigned char sum[HF_SHA256_LEN];
    hf_sha256_of(h->cfg->id, strlen(h->cfg->id), sum);
    struct hf_veth v = {h->link,
                        FABRIC_LINK,
                        {0x0a, 'h', sum[0], sum[1], sum[2], sum[3]},
                        {0x0e, 'h', sum[0], sum[1], sum[2], sum[3]},
                        h->route_fd,
                        there,
                        fabric_fd};
    struct hf_end host = {.fd = h->route_fd}, fabric = {.fd = there, .group = HF_UPLINK_GROUP};
    int r = hf_rtnl_veth(&v, &host.index, &fabric.index, err);
    if (r < 0)
        return r;
    hf_killpoint("net.uplink.made");
    memcpy(host.neighbour_mac, v.peer_mac, 6);
    memcpy(fabric.neighbour_mac, v.mac, 6);
    end_add(&host, &u->host4, UPLINK4_BITS);
    end_add(&fabric, &u->many4, UPLINK4_BITS);
    end_add(&fabric, &u->single4, UPLINK4_BITS);
    host.neighbours[host.n_neighbours++] = u->many4;
    host.neighbours[host.n_neighbours++] = u->single4;
    fabric.neighbours[fabric.n_neighbours++] = u->host4;
    fabric.gateways[fabric.n_gateways++] = u->host4;
    if (h->ipv6) {
        end_add(&host, &u->host6, UPLINK6_BITS);
        end_add(&fabric, &u->many6, UPLINK6_BITS);
        end_add(&fabric, &u->single6, UPLINK6_BITS);
        host.neighbours[host.n_neighbours++] = u->many6;
        host.neighbours[host.n_neighbours++] = u->single6;
        fabric.neighbours[fabric.n_neighbours++] = u->host6;
        fabric.gateways[fabric.n_gateways++] = u->host6;
    }
    r = hf_rtnl_end(&host, err);
    r = r < 0 ? r : hf_rtnl_end(&fabric, err);
    if (r < 0)
        return hf_err_wrap(err, "setting up the uplink %s", h->link);
    hf_rtnl_wait(&host);
    hf_rtnl_wait(&fabric);
    return 0;
}

/* ---- forwarding ---- */

#define IP4_FORWARD "/proc/sys/net/ipv4/ip_forward"
#define IP6_CONF "/proc/sys/net/ipv6/conf"
#define IP6_FORWARD IP6_CONF "/all/forwarding"

static int read_switch(const char *path)
{
    hf_auto_free char *text = NULL;
    size_t n;
    if (hf_read_file(path, 16, &text, &n) < 0 || !n)
        return -1;
    return text[0] - '0';
}

static int write_switch(const char *path, const char *value, struct hf_err *err)
{
    int r = hf_write_existing(path, value);
    return r < 0 ? hf_err_set(err, r, "writing %s to %s: %s", value, path, strerror(-r)) : 0;
}

/* Interfaces that take router advertisements would stop to once the host forwards. */
static int ra_interfaces(int (*each)(void *arg, const char *name), void *arg)
{
    DIR *d = opendir(IP6_CONF);
    int r = 0;
    for (struct dirent *e; d && r == 0 && (e = readdir(d));) {
        hf_auto_free char *path = hf_xasprintf(IP6_CONF "/%s/accept_ra", e->d_name);
        if (e->d_name[0] == '.' || strlen(e->d_name) > 15 || strcmp(e->d_name, "all") == 0 ||
            read_switch(path) != 1)
            continue;
        r = each(arg, e->d_name);
    }
    if (d)
        (void)closedir(d);
    return r;
}

static int text_ra(void *arg, const char *name)
{
    return hf_buf_addf(arg, "add element inet " FORWARD_TABLE " " SET_RA " { \"%s\" }\n", name);
}

static int raise_ra(void *arg, const char *name)
{
    hf_auto_free char *path = hf_xasprintf(IP6_CONF "/%s/accept_ra", name);
    (void)!hf_write_existing(path, "2"); /* an interface that went away meanwhile needs nothing */
    return 0;
}

/* Loaded before anything is switched: a crash in between leaves a host that forwards nothing. */
static int forward_table(bool v4, bool v6, struct hf_err *err)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_RULESET_MAX);
    int r = hf_buf_adds(&b, "table inet " FORWARD_TABLE " {\n"
                            " set " SET_FAMILIES " { type nf_proto; }\n"
                            " set " SET_RA " { type ifname; }\n"
                            " chain forward { type filter hook forward priority 0; policy accept; }\n}\n"
                            "flush chain inet " FORWARD_TABLE " forward\n"
                            "table inet " FORWARD_TABLE " { chain forward {\n"
                            " iifname \"hf-*\" accept\n oifname \"hf-*\" accept\n"
                            " meta nfproto @" SET_FAMILIES " drop\n }\n}\n");
    if (r == 0 && v4)
        r = hf_buf_adds(&b, "add element inet " FORWARD_TABLE " " SET_FAMILIES " { ipv4 }\n");
    if (r == 0 && v6)
        r = hf_buf_adds(&b, "add element inet " FORWARD_TABLE " " SET_FAMILIES " { ipv6 }\n");
    if (r == 0 && v6)
        r = ra_interfaces(text_ra, &b);
    return r < 0 ? hf_err_set(err, r, "writing the forwarding table: %s", strerror(-r))
                 : hf_nft_load(-1, b.p, b.n, err);
}

int hf_host_forward(struct hf_host *h, struct hf_err *err)
{
    bool v4 = read_switch(IP4_FORWARD) == 0, v6 = h->ipv6 && read_switch(IP6_FORWARD) == 0;
    if (!v4 && !v6)
        return 0;
    int r = forward_table(v4, v6, err);
    hf_killpoint("net.forward.table");
    if (r == 0 && v4)
        r = write_switch(IP4_FORWARD, "1", err);
    hf_killpoint("net.forward.ipv4");
    if (r == 0 && v6) {
        (void)ra_interfaces(raise_ra, NULL);
        r = write_switch(IP6_FORWARD, "1", err);
    }
    return r;
}

/* ---- removal ---- */

struct others {
    const char *own;
    bool forward, fabric;
};

static void note_table(void *arg, const char *name)
{
    struct others *o = arg;
    if (strcmp(name, FORWARD_TABLE) == 0)
        o->forward = true;
    else if (strncmp(name, "holdfast-", 9) == 0 && strcmp(name, o->own) != 0)
        o->fabric = true;
}

#define NFPROTO_V4 2
#define NFPROTO_V6 10

static void switch_off(void *arg, const struct hf_nft_found *f)
{
    int *r = arg;
    uint8_t family = f->e.key[0];
    if (*r == 0 && (family == NFPROTO_V4 || family == NFPROTO_V6))
        *r = write_switch(family == NFPROTO_V4 ? IP4_FORWARD : IP6_FORWARD, "0", NULL);
}

static void lower_ra(void *arg, const struct hf_nft_found *f)
{
    char name[17] = {0};
    memcpy(name, f->e.key, HF_MIN(f->e.key_n, sizeof(name) - 1));
    if (!*name || strchr(name, '/') || name[0] == '.')
        return;
    hf_auto_free char *path = hf_xasprintf(IP6_CONF "/%s/accept_ra", name);
    if (read_switch(path) == 2)
        (void)!hf_write_existing(path, "1");
}

static int forward_off(struct hf_host *h, struct hf_err *err)
{
    int failed = 0, r = hf_nft_dump(h->nfnl_fd, FORWARD_TABLE, SET_FAMILIES, switch_off, &failed);
    r = r < 0 ? r : failed;
    r = r < 0 ? r : hf_nft_dump(h->nfnl_fd, FORWARD_TABLE, SET_RA, lower_ra, NULL);
    if (r < 0)
        return hf_err_set(err, r, "switching the host's forwarding off again: %s", strerror(-r));
    return hf_nft_table_del(h->nfnl_fd, FORWARD_TABLE, err);
}

int hf_host_remove(struct hf_host *h, struct hf_err *err)
{
    int r = hf_rtnl_link_del(h->route_fd, h->link, err);
    if (r < 0)
        return r;
    hf_killpoint("net.remove.uplink");
    struct hf_err why = {0};
    r = hf_nft_table_del(h->nfnl_fd, h->table, &why);
    if (r < 0 && r != -ENOENT)
        return hf_err_set(err, r, "removing the table %s: %s", h->table, why.msg);
    hf_killpoint("net.remove.table");
    struct others o = {.own = h->table};
    r = hf_nft_tables(h->nfnl_fd, note_table, &o);
    if (r < 0)
        return hf_err_set(err, r, "reading the host's tables: %s", strerror(-r));
    return o.forward && !o.fabric ? forward_off(h, err) : 0;
}
