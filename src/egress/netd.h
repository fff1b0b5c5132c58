/* holdfast-netd: the process that answers DNS and carries L7 traffic for the sandboxes of one data directory.
 * It outlives `holdfast serve`, as the shims do: policies, resolution and open connections go on while the
 * daemon is replaced. It owns the fabric's elements (engine/net/net.h); nobody else writes them.
 *
 *   holdfast-netd --id HEX8 --run RUN/net --records DATA/net [--subnet4 … --subnet6 … --uplink4 … --uplink6 …
 *                 --no-ipv6 --log-level L --ready-fd N]
 *
 * One per data directory: it holds a flock on RUN/net/lock. Listens on RUN/net/netd.sock (0600). Runs in the
 * host's network namespace (its own connections go out there, through the guard), with its listeners inside
 * the fabric. It drops every capability after start, is not dumpable, and its secrets are in locked memory.
 *
 * Control API (HTTP/1.1, JSON; the daemon is the only client; errors {"code","message"}):
 *   GET    /status            {"pid","version","boxes","started_ms","ruleset"}
 *   PUT    /config            {"dns":{"upstreams":["ip[:port]"],"zones":[{"zone":"corp.test","upstreams":[…],
 *                              "private":true}]},"ca_file":path or null}                               204
 *   PUT    /tenants/<tenant>  {"secrets":{name:value},"ca":{"cert":PEM,"key":PEM}}                     204
 *   DELETE /tenants/<tenant>                                                                           204
 *   PUT    /boxes/<key>       {"sandbox","tenant","session","envd_ctl":path or null,"network":{canonical,
 * merged}} 204 once kernel, DNS and L7 all judge by it. Open L7 connections are judged again: those that the
 * new policy would not allow are reset. DELETE /boxes/<key>       204; open connections are reset GET /boxes
 * [{"key","sandbox",…counters}] GET    /boxes/<key>
 * {"key","sandbox","bytes_out","bytes_in","packets_out","packets_in","connections","denied",
 *                              "dns_queries","dns_denied","l7_open","l7_requests","l7_denied"}
 *
 * Records: one JSON line each in DATA/net/records-<seq>.jsonl (0600). A file is closed at HF_RECORD_FILE_MAX
 * and the next one begun; the daemon moves lines into its store and removes finished files. Kinds:
 *   {"kind":"request","time_ms","sandbox","tenant","session","exec","policy","rule","scheme","method","host","port",
 *    "addr","path","status","bytes_out","bytes_in","duration_ms","decision":"allow|deny","reason","audit"}
 *   {"kind":"denial","time_ms","sandbox","tenant","session","policy","what":"dns|packet|connection","name","addr",
 *    "port","protocol","reason","count"}
 * Every denial is also one log line. A secret's value is in neither. */
#pragma once

#include <jansson.h>
#include <uv.h>

#include "base/list.h"
#include "base/map.h"
#include "egress/policy.h"
#include "engine/net/net.h"

#define HF_RECORD_FILE_MAX (8u << 20) /* bytes */
#define HF_RECORD_FILES_MAX 64u /* unread files kept; beyond: the oldest goes, and a record says how many */
#define HF_NETD_BODY_MAX (16u << 20) /* bytes of a control request */

struct hf_netd_tenant {
    char name[64];
    json_t *secrets;        /* name -> value; values are wiped when freed */
    char *ca_cert, *ca_key; /* PEM; "" = none */
    unsigned generation;    /* grows with each change: leaf caches go */
};

/* One sandbox, as DNS and L7 see it. Reference-counted: an exchange keeps the box it began with, and looks at
 * box->gone and box->policy again at every decision. */
struct hf_netd_box {
    unsigned refs;
    struct hf_netd *d;
    uint32_t key;
    bool gone; /* DELETEd */
    char sandbox[64], tenant[64], session[64];
    char *envd_ctl; /* "" = none */
    struct hf_net_addrs addrs;
    struct hf_policy *policy; /* replaced as a whole; take a ref over an asynchronous step */
    unsigned policy_generation;
    struct hf_list l7;            /* connections of src/egress/l7, its own node type */
    struct hf_map learned;        /* owned by learn.c, */
    struct hf_list learned_order; /* likewise, the oldest first */
    struct {
        uint64_t dns_queries, dns_denied, l7_open, l7_requests, l7_denied;
    } counts;
    void *dns; /* owned by the DNS part: token bucket … */
};

struct hf_netd {
    uv_loop_t *loop;
    struct hf_net *net;
    struct hf_net_config cfg;
    struct hf_map boxes;   /* text of key -> box */
    struct hf_map by_addr; /* struct hf_addr's bytes -> box */
    struct hf_map tenants;
    const char *ca_file;      /* trust store for upstreams; NULL = the system's */
    void *dns, *l7, *records; /* each part's own */
};

/* box.c. NULL when unknown. Source addresses are true: the fabric drops spoofed ones. */
struct hf_netd_box *hf_netd_box_by_addr(struct hf_netd *d, const struct hf_addr *a);
struct hf_netd_box *hf_netd_box_ref(struct hf_netd_box *b);
void hf_netd_box_unref(struct hf_netd_box *b);
struct hf_netd_tenant *hf_netd_tenant(struct hf_netd *d, const char *name); /* NULL when unknown */

/* dns.c, resolve.c */
int hf_dns_start(struct hf_netd *d, struct hf_err *err) HF_MUST_USE; /* listeners in the fabric */
void hf_dns_stop(struct hf_netd *d);
int hf_dns_configure(struct hf_netd *d, const json_t *dns, struct hf_err *err) HF_MUST_USE;
/* Resolves for netd itself on behalf of a box (A and AAAA, through the same upstreams, cache and
 * private-answer check as the box's own queries); cb later, exactly once. n 0 with r < 0: -ENOENT no such
 * name, -EPERM not allowed or only private answers, -ETIMEDOUT, -EIO. */
typedef void (*hf_resolve_cb)(void *arg, int r, const struct hf_addr *addrs, size_t n);
void hf_netd_resolve(struct hf_netd_box *b, const char *name, hf_resolve_cb cb, void *arg);
/* Did the resolver answer this address for this name to this box, and is that still valid? */
bool hf_netd_learned(struct hf_netd_box *b, const char *name, const struct hf_addr *a);
/* Did it answer it for some name of which wanted(box's policy, name) holds? ret_name: which. */
bool hf_netd_learned_for(struct hf_netd_box *b, const struct hf_addr *a,
                         bool (*wanted)(const struct hf_policy *p, const char *name), char ret_name[254]);

/* l7*.c */
int hf_l7_start(struct hf_netd *d, struct hf_err *err) HF_MUST_USE;
void hf_l7_stop(struct hf_netd *d);
/* The box's policy changed or it is gone: judge its open connections again. */
void hf_l7_rejudge(struct hf_netd_box *b);
void hf_l7_tenant_changed(struct hf_netd_tenant *t);

/* record.c */
struct hf_request_record {
    const char *exec, *rule, *scheme, *method, *host, *path, *reason, *audit;
    struct hf_addr addr;
    uint16_t port;
    int status; /* 0 = none came */
    bool denied;
    uint64_t bytes_out, bytes_in, duration_ms;
};
void hf_record_request(struct hf_netd_box *b, const struct hf_request_record *r);
/* what: "dns" "packet" "connection"; name may be "". Identical denials within a second are counted into one.
 */
void hf_record_denial(struct hf_netd_box *b, const char *what, const char *name, const struct hf_addr *addr,
                      uint16_t port, const char *protocol, const char *reason);
