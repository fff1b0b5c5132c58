/* The few rtnetlink requests that the fabric needs. fd is a NETLINK_ROUTE socket; it decides in which network
 * namespace a request works. */
#pragma once

#include "base/addr.h"
#include "engine/net/nl.h"

struct hf_link {
    int index;
    int peer; /* index of the other end of a veth; 0 = none */
    bool up, loopback;
    bool carrier; /* it really works by now */
};

/* -ENODEV when there is none of that name. */
int hf_rtnl_link(int fd, const char *name, struct hf_link *ret) HF_MUST_USE;
/* Missing is success. */
int hf_rtnl_link_del(int fd, const char *name, struct hf_err *err) HF_MUST_USE;

/* A veth pair: `name` where here_fd works, `peer` in peer_ns_fd, where there_fd works. */
struct hf_veth {
    const char *name, *peer;
    uint8_t mac[6], peer_mac[6];
    int here_fd, there_fd, peer_ns_fd;
};
/* Finds the pair or makes it; a half one, or two ends that don't belong together, is made anew. Both
 * ends are up then, without addresses that the kernel would make up itself. */
int hf_rtnl_veth(const struct hf_veth *v, int *ret_here, int *ret_there, struct hf_err *err) HF_MUST_USE;

/* One end's configuration. Everything is set whether or not it is there already. */
#define HF_END_ADDRS 4
struct hf_end {
    int fd, index;
    uint32_t group; /* of the interface; 0 = the default one */
    size_t n_addrs;
    struct hf_cidr addrs[HF_END_ADDRS]; /* the interface's own; bits: of the link's prefix, not cut */
    size_t n_neighbours;
    struct hf_addr neighbours[HF_END_ADDRS]; /* permanent: no ARP and no neighbour discovery is needed */
    uint8_t neighbour_mac[6];
    size_t n_gateways; /* of default routes */
    struct hf_addr gateways[2];
};
/* Up, without addresses that the kernel would make up itself. */
int hf_rtnl_end(const struct hf_end *e, struct hf_err *err) HF_MUST_USE;
/* Waits (a millisecond, at most two seconds) until the kernel has it all working. */
void hf_rtnl_wait(const struct hf_end *e);

/* Calls each for every address of one interface (bits = prefix of its link). */
int hf_rtnl_addrs(int fd, int index, void (*each)(void *arg, const struct hf_cidr *net),
                  void *arg) HF_MUST_USE;
/* … of all interfaces, and for every route but defaults. */
int hf_rtnl_nets(int fd, void (*each)(void *arg, const struct hf_cidr *net), void *arg) HF_MUST_USE;
