/* The host's side of a fabric: uplink, one table, forwarding. Works in the calling thread's network
 * namespace, which is "the host". */
#pragma once

#include "engine/net/ruleset.h"

struct hf_host {
    const struct hf_net_config *cfg;
    int route_fd, nfnl_fd; /* netlink in the host's namespace */
    char link[16];         /* "hf-<id>" */
    char table[32];        /* "holdfast-<id>" */
    bool ipv6;
};

int hf_host_open(struct hf_host *h, const struct hf_net_config *cfg, struct hf_err *err) HF_MUST_USE;
void hf_host_done(struct hf_host *h);
/* Which subnets the uplink has, or will have: a stable choice that avoids the host's addresses and routes. */
int hf_host_uplink(struct hf_host *h, struct hf_uplink *ret, struct hf_err *err) HF_MUST_USE;
/* The table; loaded when it is missing or of another version. */
int hf_host_table(struct hf_host *h, const struct hf_uplink *u, struct hf_err *err) HF_MUST_USE;
/* The veth pair, with addresses and the fabric's default routes. */
int hf_host_wire(struct hf_host *h, const struct hf_uplink *u, int fabric_fd, struct hf_err *err) HF_MUST_USE;
/* Switches forwarding on; where it was off, nothing but fabrics' packets is forwarded. */
int hf_host_forward(struct hf_host *h, struct hf_err *err) HF_MUST_USE;
/* Takes away table and uplink, and forwarding when no fabric is left that needs it. Missing is success. */
int hf_host_remove(struct hf_host *h, struct hf_err *err) HF_MUST_USE;
