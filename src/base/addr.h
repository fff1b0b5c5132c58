/* IP addresses and prefixes: text, order, and what kind of place an address is. Pure functions, no I/O. */
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/base.h"

#define HF_ADDR_TEXT 46u /* INET6_ADDRSTRLEN, with NUL */
#define HF_CIDR_TEXT 50u

struct hf_addr {
    uint8_t family; /* 4 or 6; 0 = none */
    uint8_t b[16];  /* network order; IPv4 in the first four, the rest zero */
};

struct hf_cidr {
    struct hf_addr addr; /* bits past the prefix are zero */
    uint8_t bits;        /* 0…32 or 0…128 */
};

/* What an address is, after every wrapping was taken off (IPv4-mapped, IPv4-compatible, NAT64 64:ff9b::/96
 * and 64:ff9b:1::/48, 6to4 2002::/16, Teredo 2001::/32 are judged by the IPv4 address inside). Ranges: RFC
 * 6890 and the IANA special-purpose registries. Documentation prefixes count as public: they are ordinary
 * addresses to a router, and a test's stand-in for the internet. */
enum hf_addr_class {
    HF_ADDR_PUBLIC,
    HF_ADDR_PRIVATE,    /* 10/8 172.16/12 192.168/16 100.64/10 fc00::/7 198.18/15 fec0::/10 */
    HF_ADDR_LOOPBACK,   /* 127/8 ::1 */
    HF_ADDR_LINK_LOCAL, /* 169.254/16 fe80::/10 */
    HF_ADDR_METADATA,   /* cloud metadata outside link-local: 100.100.100.200 168.63.129.16 192.0.0.192
                           fd00:ec2::254 fd20:ce::254 … */
    HF_ADDR_RESERVED,   /* 0/8 192.0.0/24 240/4 multicast broadcast :: ff00::/8 … */
};
const char *hf_addr_class_name(enum hf_addr_class c); /* "public" "private" "loopback" … */

/* Strict text: dotted quad of four decimal parts without leading zeros, or RFC 4291 text without a zone.
 * -EINVAL for anything else (octal, hex, one-number forms, brackets). */
int hf_addr_parse(struct hf_str s, struct hf_addr *ret) HF_MUST_USE;
/* "addr" or "addr/bits"; bits past the prefix are cleared. */
int hf_cidr_parse(struct hf_str s, struct hf_cidr *ret) HF_MUST_USE;
void hf_addr_format(const struct hf_addr *a, char out[HF_ADDR_TEXT]);
void hf_cidr_format(const struct hf_cidr *c, char out[HF_CIDR_TEXT]);

enum hf_addr_class hf_addr_class_of(const struct hf_addr *a);
/* No policy opens it: everything but public and private. */
bool hf_addr_never(const struct hf_addr *a);
bool hf_addr_equal(const struct hf_addr *a, const struct hf_addr *b);
int hf_addr_cmp(const struct hf_addr *a, const struct hf_addr *b); /* family, then bytes */
bool hf_cidr_has(const struct hf_cidr *c, const struct hf_addr *a);
/* Every address of the prefix is private (so that naming it is a wish for a private place). */
bool hf_cidr_private(const struct hf_cidr *c);

/* IPv4-mapped IPv6 socket addresses become IPv4. -EAFNOSUPPORT for other families. */
int hf_addr_from_sockaddr(const struct sockaddr *sa, struct hf_addr *ret, uint16_t *ret_port) HF_MUST_USE;
socklen_t hf_addr_to_sockaddr(const struct hf_addr *a, uint16_t port, struct sockaddr_storage *ret);
