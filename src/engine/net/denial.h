/* Reading what the kernel logs of a denied packet. Pure: the packet's bytes come from a box. */
#pragma once

#include "engine/net/net.h"

/* One NFLOG message's attributes (behind struct nfgenmsg). uplink: index of the fabric's uplink interface; a
 * packet that came in there is an answer, and is told the way the box sees it. -EINVAL when it is none of the
 * ruleset's. ret->reason is static. */
int hf_denial_read(const void *attrs, size_t n, uint32_t uplink, struct hf_net_denial *ret) HF_MUST_USE;
