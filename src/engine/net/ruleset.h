/* The static ruleset of a fabric, and the names of the sets that hold the boxes. */
#pragma once

#include "base/addr.h"
#include "base/buf.h"
#include "engine/net/net.h"

#define HF_UPLINK_GROUP 7u /* interface group of the uplink in the fabric: cheaper to compare than a name */
#define HF_RULESET_MAX (64u << 10) /* bytes of text */

/* The uplink: one subnet of the pool. Two addresses at the fabric's end: flows to a destination that a policy
 * names as a single address leave from `single`, all others from `many`, so that the host can tell them
 * apart. */
struct hf_uplink {
    struct hf_cidr net4, net6; /* /29 and /64 */
    struct hf_addr host4, many4, single4;
    struct hf_addr host6, many6, single6;
};

/* Sets: key -> data. */
#define HF_SET_SRC4 "src4" /* interface . address -> mark: who may send from where */
#define HF_SET_SRC6 "src6"
#define HF_SET_BOXES "boxes" /* interface -> mark */
#define HF_SET_GEN "gen"     /* mark -> generation of the policy */
#define HF_SET_FRESH "fresh" /* mark . generation: flows judged by the policy in force */
#define HF_SET_OPEN "open"   /* mark: the switches */
#define HF_SET_DNS "dns_on"
#define HF_SET_L7_ALL "l7_all"
#define HF_SET_NO_QUIC "no_quic"
#define HF_SET_L7_PORTS "l7_ports" /* mark . port */
#define HF_SET_SINGLE4 "single4"   /* mark . address */
#define HF_SET_SINGLE6 "single6"
#define HF_SET_LEARNED4 "learned4" /* mark . address, with a timeout */
#define HF_SET_LEARNED6 "learned6"
#define HF_SET_RATES "rates" /* mark, with a limit of the box's own */
#define HF_SET_CONNS "conns"
#define HF_SET_DNS_RATES "dns_rates"
#define HF_SET_LOGS "logs"
#define HF_SET_OUT "bytes_out" /* mark, with a counter */
#define HF_SET_IN "bytes_in"
#define HF_SET_OPENED "opened"
#define HF_SET_DENIED "denied"
#define HF_SET_VERSION "version" /* one element: which text this is */

/* Prefixes of boxes, mark | address: intervals in trees. Boxes are spread over several, since the kernel
 * works through a whole tree when it changes or is read. */
#define HF_TREE_SHARDS 16u
enum hf_tree { HF_TREE_ALLOW4, HF_TREE_ALLOW6, HF_TREE_DENY4, HF_TREE_DENY6, HF_TREES };
/* Static text: the set of a box's list. */
const char *hf_tree_set(enum hf_tree tree, uint32_t key);

/* Prefixes that no policy opens, and those that are private; with everything that wraps an IPv4 address.
 * NULL-terminated. They agree with hf_addr_class_of (a test holds them to it). */
extern const char *const hf_never4[], *const hf_never6[], *const hf_private4[], *const hf_private6[];

/* Text for `nft -f` that makes or replaces everything but elements of boxes; *ret_version tells texts apart.
 */
int hf_ruleset_text(const struct hf_net_config *cfg, const struct hf_uplink *u, struct hf_buf *ret,
                    uint32_t *ret_version, struct hf_err *err) HF_MUST_USE;
/* The part that `nft` has no words for: trees of prefixes and the rules that look into them. Must be there
 * before the text. Idempotent. */
int hf_ruleset_trees(int nfnl_fd, struct hf_err *err) HF_MUST_USE;
/* The host's table of one fabric. */
int hf_host_text(const char *id, const struct hf_uplink *u, struct hf_buf *ret, uint32_t *ret_version,
                 struct hf_err *err) HF_MUST_USE;
