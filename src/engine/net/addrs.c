/* Which addresses a box has: a pure function of the configuration and its key. */
#include <arpa/inet.h>
#include <stdio.h>

#include "engine/net/net.h"

#define SUBNET4_BITS_MIN 16u
#define SUBNET4_BITS_MAX 20u
#define SUBNET6_BITS_MAX 96u

void hf_net_ns_path(const char *id, char out[64])
{
    (void)snprintf(out, 64, "/run/netns/holdfast-%s", id);
}

static int parse_subnet(const char *text, uint8_t family, unsigned min, unsigned max, struct hf_cidr *ret)
{
    int r = hf_cidr_parse(hf_str_c(text), ret);
    if (r < 0)
        return r;
    return ret->addr.family == family && ret->bits >= min && ret->bits <= max ? 0 : -EINVAL;
}

/* The subnet's address number `host`; both families use the same number, so that people see the pair. */
static struct hf_addr nth(const struct hf_cidr *subnet, uint32_t host)
{
    struct hf_addr a = subnet->addr;
    uint8_t *low = a.b + (a.family == 6 ? 12 : 0);
    uint32_t v;
    memcpy(&v, low, sizeof(v));
    v = htonl(ntohl(v) | host);
    memcpy(low, &v, sizeof(v));
    return a;
}

int hf_net_addrs(const struct hf_net_config *cfg, uint32_t key, struct hf_net_addrs *ret)
{
    struct hf_cidr s4, s6;
    if (key == 0 || parse_subnet(cfg->subnet4, 4, SUBNET4_BITS_MIN, SUBNET4_BITS_MAX, &s4) < 0)
        return -EINVAL;
    if (parse_subnet(cfg->subnet6, 6, 8, SUBNET6_BITS_MAX, &s6) < 0)
        return -EINVAL;
    uint32_t hosts = 1u << (32 - s4.bits);
    /* The first pair holds the subnet's own address, the last one the resolver's. */
    uint32_t pairs = HF_MIN(hosts / 2 - 2, HF_NET_BOXES_MAX);
    uint32_t host = (key % pairs + 1) * 2;
    struct hf_net_addrs a = {
        .gw4 = nth(&s4, host),
        .box4 = nth(&s4, host + 1),
        .gw6 = nth(&s6, host),
        .box6 = nth(&s6, host + 1),
        .dns4 = nth(&s4, hosts - 2),
        .dns6 = nth(&s6, hosts - 2),
    };
    (void)snprintf(a.ifname, sizeof(a.ifname), "hf%u", key);
    *ret = a;
    return 0;
}
