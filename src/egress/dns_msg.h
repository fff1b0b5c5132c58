/* DNS messages (RFC 1035, EDNS RFC 6891, extended errors RFC 8914): parsed and built, without I/O, clock or
 * state. Everything here reads bytes of strangers (boxes, upstream servers, and whoever can spoof one), so it
 * is strict: one question, no pointer in it, pointers only backwards, names of printable bytes only. */
#pragma once

#include "base/addr.h"
#include "base/buf.h"

#define HF_DNS_NAME_MAX 254u /* a name's text with NUL; lower case, no final dot; "" is the root */
#define HF_DNS_WIRE_NAME_MAX 255u
#define HF_DNS_PLAIN_SIZE 512u /* a UDP answer to a client without EDNS */
#define HF_DNS_EDNS_SIZE 1232u /* … and the most with it; also what upstream servers are told */
#define HF_DNS_MSG_MAX 65535u
#define HF_DNS_RECORDS_MAX 64u   /* records of the asked type in one answer; the rest is left out */
#define HF_DNS_CHAIN_MAX 16u     /* CNAME records on the way; a longer chain is no answer */
#define HF_DNS_JUMPS_MAX 16u     /* compression pointers in one name */
#define HF_DNS_ANSWER_MAX 16384u /* bytes of names and data of one answer; the rest is left out */
#define HF_DNS_SCANNED_MAX 512u  /* records looked at in a reply */
#define HF_DNS_EDE_TEXT_MAX 160u /* bytes of an extended error's text */
#define HF_DNS_KEPT_MAX (HF_DNS_RECORDS_MAX + HF_DNS_CHAIN_MAX + 1)

enum {
    HF_DNS_A = 1,
    HF_DNS_NS = 2,
    HF_DNS_CNAME = 5,
    HF_DNS_SOA = 6,
    HF_DNS_PTR = 12,
    HF_DNS_MX = 15,
    HF_DNS_TXT = 16,
    HF_DNS_AAAA = 28,
    HF_DNS_SRV = 33,
    HF_DNS_NAPTR = 35,
    HF_DNS_OPT = 41,
    HF_DNS_SVCB = 64,
    HF_DNS_HTTPS = 65,
    HF_DNS_CAA = 257,
};
enum { HF_DNS_IN = 1 };

enum {
    HF_DNS_NOERROR = 0,
    HF_DNS_FORMERR = 1,
    HF_DNS_SERVFAIL = 2,
    HF_DNS_NXDOMAIN = 3,
    HF_DNS_NOTIMP = 4,
    HF_DNS_REFUSED = 5,
    HF_DNS_BADVERS = 16,
};

/* Extended errors, RFC 8914. */
enum {
    HF_DNS_EDE_NONE = 0xffff,
    HF_DNS_EDE_BLOCKED = 15,    /* the name or its address is not open to this sandbox */
    HF_DNS_EDE_PROHIBITED = 18, /* this kind of question is not open to this sandbox */
    HF_DNS_EDE_NO_REACHABLE = 22,
};

struct hf_dns_query {
    uint16_t id;
    bool rd, edns;
    uint8_t edns_version;
    uint16_t udp_size; /* of an answer over UDP: HF_DNS_PLAIN_SIZE … HF_DNS_EDNS_SIZE */
    char name[HF_DNS_NAME_MAX];
    uint16_t type, class;
    uint8_t wire[HF_DNS_WIRE_NAME_MAX]; /* the name as it was sent, for the echo (clients compare its case) */
    uint8_t wire_n;                     /* 0: no question was read */
};
/* 0; -EPROTO: not a query, give no answer; -EBADMSG: answer FORMERR; -EOPNOTSUPP: answer NOTIMP. */
int hf_dns_parse_query(const void *p, size_t n, struct hf_dns_query *ret) HF_MUST_USE;
/* A recursive query. The length, or -EMSGSIZE, or -EINVAL for a name that is none. */
int hf_dns_build_query(uint16_t id, const char *name, uint16_t type, bool edns, uint8_t *out,
                       size_t max) HF_MUST_USE;

/* One record of an answer. name and data are offsets into the answer's pool. Names inside data are
 * uncompressed. */
struct hf_dns_rr {
    uint32_t name, data;
    uint16_t type, data_n;
    bool authority; /* the SOA of a negative answer */
};

/* What an upstream server said: the CNAME chain from the asked name and the asked type's records at its end.
 * Nothing else of the reply is kept. Reference-counted. */
struct hf_dns_answer {
    unsigned refs;
    uint8_t rcode;
    bool negative;  /* no record of the asked type */
    uint32_t ttl_s; /* the smallest on the way; for negative answers by RFC 2308; not clamped */
    /* Set by the resolver. */
    bool private_ok;     /* from a zone whose private addresses are wanted */
    uint64_t expires_ms; /* of the loop's clock; by the clamped TTL */
    size_t n;
    struct hf_dns_rr rr[HF_DNS_KEPT_MAX];
    char *pool;
    size_t pool_n;
};
/* The reply to our query (id, name, type). 1: an answer (*ret, the caller's); 0: truncated, ask over TCP;
 * -EPROTO: not the reply to this query, go on waiting; -EBADMSG: its server is broken. */
int hf_dns_parse_reply(const void *p, size_t n, uint16_t id, const char *name, uint16_t type,
                       struct hf_dns_answer **ret) HF_MUST_USE;
struct hf_dns_answer *hf_dns_answer_ref(struct hf_dns_answer *a);
void hf_dns_answer_unref(struct hf_dns_answer *a); /* NULL is fine */
/* The address of an A or AAAA record; false for other types. */
bool hf_dns_rr_addr(const struct hf_dns_answer *a, const struct hf_dns_rr *rr, struct hf_addr *ret);

/* The answer to a client. */
struct hf_dns_response {
    uint8_t rcode;
    const struct hf_dns_answer *answer; /* NULL: no records */
    const bool *skip;                   /* records of answer that are left out; NULL = none */
    uint32_t ttl_s;                     /* of every record */
    uint16_t ede;                       /* HF_DNS_EDE_*; sent to clients with EDNS only */
    const char *ede_text;
};
/* The length. An answer that does not fit in max bytes has no records and the TC bit. max is at least
 * HF_DNS_PLAIN_SIZE. */
size_t hf_dns_build(const struct hf_dns_query *q, const struct hf_dns_response *r, uint8_t *out, size_t max);

/* "A", "AAAA" … or "TYPE123". */
void hf_dns_type_name(uint16_t type, char out[16]);
/* The address that a reverse name asks for; false when it is none. */
bool hf_dns_reverse(const char *name, struct hf_addr *ret);
