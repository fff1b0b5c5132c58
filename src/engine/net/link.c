/* One box's wire. Everything about it is fixed when it is made: addresses, hardware addresses and neighbour
 * entries follow from the key, so that no ARP, neighbour discovery, duplicate detection or router
 * advertisement is ever needed on it. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <stdio.h>

#include "base/fault.h"
#include "base/path.h"
#include "engine/net/net.h"
#include "engine/net/rtnl.h"

#define BOX_IFNAME "eth0"

/* Locally administered; the second byte is 'h'. */
static void mac_of(uint8_t first, uint32_t key, uint8_t mac[6])
{
    uint32_t be = htonl(key);
    mac[0] = first;
    mac[1] = 'h';
    memcpy(mac + 2, &be, sizeof(be));
}

static bool have_ipv6(void)
{
    return access("/proc/sys/net/ipv6", F_OK) == 0;
}

/* /proc/sys/net shows the reader's own network namespace. What can't be set is no harm: the other end sends
 * no advertisements, and an interface that must not have IPv6 says so when the address is added. */
static void box_sysctls(void)
{
    (void)!hf_write_existing("/proc/sys/net/ipv6/conf/" BOX_IFNAME "/disable_ipv6", "0");
    (void)!hf_write_existing("/proc/sys/net/ipv6/conf/" BOX_IFNAME "/accept_ra", "0");
    (void)!hf_write_existing("/proc/sys/net/ipv6/conf/" BOX_IFNAME "/accept_dad", "0");
}

static void end_add(struct hf_end *e, const struct hf_addr *own, const struct hf_addr *other, bool gateway)
{
    e->addrs[e->n_addrs++] = (struct hf_cidr){*own, own->family == 6 ? 127 : 31};
    e->neighbours[e->n_neighbours++] = *other;
    if (gateway)
        e->gateways[e->n_gateways++] = *other;
}

int hf_net_link_up(const struct hf_net_config *cfg, int fabric_ns_fd, uint32_t key, struct hf_err *err)
{
    struct hf_net_addrs a;
    int r = hf_net_addrs(cfg, key, &a);
    if (r < 0)
        return hf_err_set(err, r, "the sandbox network's subnets are not valid: %s, %s", cfg->subnet4,
                          cfg->subnet6);
    hf_auto_close int box = hf_nl_open(NETLINK_ROUTE);
    hf_auto_close int fabric = hf_ns_socket(fabric_ns_fd, AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    if (box < 0 || fabric < 0)
        return hf_err_set(err, box < 0 ? box : fabric, "opening netlink: %s",
                          strerror(box < 0 ? -box : -fabric));
    struct hf_veth v = {BOX_IFNAME, a.ifname, {0}, {0}, box, fabric, fabric_ns_fd};
    struct hf_end in = {.fd = box}, out = {.fd = fabric};
    mac_of(0x02, key, v.mac);
    mac_of(0x06, key, v.peer_mac);
    memcpy(in.neighbour_mac, v.peer_mac, 6);
    memcpy(out.neighbour_mac, v.mac, 6);
    r = hf_rtnl_veth(&v, &in.index, &out.index, err);
    if (r < 0)
        return r;
    hf_killpoint("net.link.made");
    box_sysctls();
    end_add(&in, &a.box4, &a.gw4, true);
    end_add(&out, &a.gw4, &a.box4, false);
    if (cfg->ipv6 && have_ipv6()) {
        end_add(&in, &a.box6, &a.gw6, true);
        end_add(&out, &a.gw6, &a.box6, false);
    }
    r = hf_rtnl_end(&out, err);
    if (r < 0)
        return hf_err_wrap(err, "setting up %s", a.ifname);
    r = hf_rtnl_end(&in, err);
    if (r < 0)
        return hf_err_wrap(err, "setting up %s of %s", BOX_IFNAME, a.ifname);
    hf_rtnl_wait(&out);
    hf_rtnl_wait(&in);
    return 0;
}

int hf_net_link_down(int fabric_ns_fd, uint32_t key, struct hf_err *err)
{
    char name[16];
    (void)snprintf(name, sizeof(name), "hf%u", key);
    hf_auto_close int fabric = hf_ns_socket(fabric_ns_fd, AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    if (fabric < 0)
        return hf_err_set(err, fabric, "opening netlink: %s", strerror(-fabric));
    return hf_rtnl_link_del(fabric, name, err);
}
