/* Inside of the resolver: limits, configuration, cache, questions to upstream servers, and what a policy says
 * about a question and its answer. Loop thread only. */
#pragma once

#include "egress/dns_msg.h"
#include "egress/netd.h"

/* Limits; each has a test. */
#define HF_DNS_QPS 200u              /* questions a second of one box … */
#define HF_DNS_BURST 400u            /* … and at once; what is more gets no answer and is counted */
#define HF_DNS_TCP_CONNS_MAX 16u     /* connections of one box */
#define HF_DNS_TCP_IDLE_MS 10000u    /* without a whole question */
#define HF_DNS_TCP_PENDING_MAX 16u   /* unanswered questions of one connection; more are not read */
#define HF_DNS_TCP_QUEUE_MAX 262144u /* unsent bytes of one connection; beyond it is closed */
#define HF_DNS_QUERY_MAX 2048u       /* bytes of a question over TCP */
#define HF_DNS_FLIGHTS_MAX 1024u     /* different questions at upstream servers */
#define HF_DNS_BOX_ASKS_MAX 64u      /* unanswered questions of one box */
#define HF_DNS_TRIES 2u              /* a server */
#define HF_DNS_TOTAL_MS 3000u        /* for all tries at all servers */
#define HF_DNS_TRY_MS 1000u          /* at most, for one try */
#define HF_DNS_TTL_MIN_S 5u          /* what clients are told, and how long the cache holds */
#define HF_DNS_TTL_MAX_S 3600u
#define HF_DNS_NEGATIVE_MAX_S 300u
#define HF_DNS_LEARN_MIN_S \
    90u /* an answered address stays open for at least so long (clients cache: curl a minute) … */
#define HF_DNS_LEARN_EXTRA_S 5u  /* … and so much longer than its TTL */
#define HF_DNS_LEARNED_MAX 4096u /* name and address pairs of one box; the oldest goes */
#define HF_DNS_CACHE_ENTRIES 8192u
#define HF_DNS_CACHE_BYTES (32u << 20)
#define HF_DNS_WILD_LABEL_MAX 40u /* bytes of a label under a wildcard's domain: data in names … */
#define HF_DNS_WILD_LABELS_MAX 4u /* … and how many of them */
#define HF_DNS_SERVERS_MAX 8u     /* of a zone */
#define HF_DNS_ZONES_MAX 64u
#define HF_DNS_RESOLV_MAX 65536u /* bytes of resolv.conf */

/* ---- configuration (dns_config.c) ---- */

struct hf_dns_server {
    struct hf_addr addr;
    uint16_t port;
};

struct hf_dns_zone {
    char name[HF_DNS_NAME_MAX]; /* "": everything */
    bool private_ok;            /* answers may be private addresses */
    size_t n;
    struct hf_dns_server servers[HF_DNS_SERVERS_MAX];
};

struct hf_dns_config {
    struct hf_dns_zone root;
    bool from_host; /* root's servers are those of resolv.conf */
    struct hf_dns_zone *zones;
    size_t n_zones;
};
/* "ip", "ip:port", "[ip6]:port". */
int hf_dns_server_parse(struct hf_str s, struct hf_dns_server *ret) HF_MUST_USE;
/* {"upstreams":[…],"zones":[{"zone","upstreams","private"}]}; NULL, null or no upstreams: the host's. */
int hf_dns_config_parse(const json_t *v, struct hf_dns_config *ret, struct hf_err *err) HF_MUST_USE;
void hf_dns_config_done(struct hf_dns_config *c);
/* Nameservers of a resolv.conf; lines that say nothing here are passed over. */
void hf_dns_resolv_parse(struct hf_str text, struct hf_dns_zone *ret);
/* The zone with the longest name that the name lies in; root when there is none. */
const struct hf_dns_zone *hf_dns_zone_of(const struct hf_dns_config *c, const char *name);

/* ---- cache (dns_cache.c): answers by type and name, for all boxes; policies are asked before it ---- */

struct hf_dns_cache {
    struct hf_map map;
    struct hf_list order; /* least recently used first */
    size_t n, bytes;
};
void hf_dns_cache_init(struct hf_dns_cache *c);
void hf_dns_cache_clear(struct hf_dns_cache *c);
/* Borrowed; NULL when there is none or it has expired. */
struct hf_dns_answer *hf_dns_cache_get(struct hf_dns_cache *c, const char *name, uint16_t type,
                                       uint64_t now_ms);
/* Takes a reference of its own. a->expires_ms is set. */
void hf_dns_cache_put(struct hf_dns_cache *c, const char *name, uint16_t type, struct hf_dns_answer *a);

/* ---- what the policy says (dns_judge.c); pure ---- */

enum hf_dns_verdict {
    HF_DNS_ASK,     /* goes to the cache and upstream */
    HF_DNS_EMPTY,   /* answered here: there is no such record */
    HF_DNS_UNKNOWN, /* answered here: there is no such name */
    HF_DNS_REFUSE,  /* answered here: not open */
};
struct hf_dns_judgement {
    enum hf_dns_verdict verdict;
    uint16_t ede;
    const char *reason; /* of a refusal, for records: "name" "label" "type" "malformed"; static */
    char text[HF_DNS_EDE_TEXT_MAX];
};
/* private_zone: the question would go to a zone with private_ok. */
void hf_dns_judge(const struct hf_policy *p, const struct hf_dns_query *q, bool ipv6, bool private_zone,
                  struct hf_dns_judgement *ret);
/* Names are checked, so answers are learned and what would hide a name is not given. */
bool hf_dns_checks_names(const struct hf_policy *p);
/* The name is not too long a string of data under a wildcard. */
bool hf_dns_labels_ok(const struct hf_policy *p, const char *name);
bool hf_dns_addr_ok(const struct hf_policy *p, const struct hf_addr *a, bool private_ok);

/* ---- questions to upstream servers (dns_flight.c) ---- */

struct hf_dns_waiter {
    struct hf_list node;
    struct hf_netd_box *box; /* the waiter's owner holds the reference */
    /* r 0: a is the answer (borrowed; NOERROR or NXDOMAIN). -ETIMEDOUT; -EIO: no server gave a usable answer;
     * -ECANCELED: netd ends. */
    void (*cb)(struct hf_dns_waiter *w, int r, struct hf_dns_answer *a);
};

struct hf_dns {
    struct hf_netd *d;
    struct hf_dns_config cfg;
    unsigned generation; /* of cfg; answers to questions of an older one are not kept */
    const char *resolv_path;
    uint64_t resolv_checked_ms;
    int64_t resolv_stamp; /* of the file that was read */
    bool warned;          /* no servers: said once */
    struct hf_dns_cache cache;
    struct hf_map flights;
    struct hf_list flight_list;
    size_t n_flights;
    struct hf_dns_listener *listeners[4]; /* UDP and TCP of two families */
    struct hf_list conns;
};

/* 1: *ret is a cached answer (a reference of the caller's). 0: w->cb comes later. -EBUSY: a limit; -EIO: no
 * server is known. The policy was asked before. */
int hf_dns_lookup(struct hf_dns *dns, const char *name, uint16_t type, struct hf_dns_waiter *w,
                  struct hf_dns_answer **ret) HF_MUST_USE;
void hf_dns_flights_cancel(struct hf_dns *dns); /* waiters get -ECANCELED */
/* Reads resolv.conf again when it changed; at most once a second. */
void hf_dns_refresh(struct hf_dns *dns);

/* ---- a box's part (dns_box.c) ---- */

struct hf_dns_box {
    uint64_t tokens_m; /* thousandths of a question */
    uint64_t filled_ms;
    unsigned asks, conns;
};
struct hf_dns_box *hf_dns_box(struct hf_netd_box *b); /* made at the first use */
void hf_dns_box_free(struct hf_netd_box *b);
/* May the box ask one more question now? */
bool hf_dns_take_token(struct hf_dns_box *x, uint64_t now_ms);

/* ---- learn.c ---- */

/* The resolver answers this address for this name: the kernel and hf_netd_learned know it before the client
 * does. Does nothing for boxes whose names are not checked. */
int hf_netd_learn(struct hf_netd_box *b, const char *name, const struct hf_addr *a, uint32_t ttl_s,
                  bool private_ok) HF_MUST_USE;
/* The policy changed: what it would not answer any more is forgotten, here and in the kernel. */
void hf_netd_relearn(struct hf_netd_box *b);
void hf_netd_learned_clear(struct hf_netd_box *b); /* user space only; when the box goes */
size_t hf_netd_learned_count(const struct hf_netd_box *b);
