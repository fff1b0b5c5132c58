/* nf_tables over nfnetlink: what changes while boxes come and go. The static ruleset is text that `nft` loads
 * once (ruleset.c); elements are written here, because starting `nft` costs 5 ms and a policy may cost 1. */
#pragma once

#include "base/addr.h"
#include "engine/net/nl.h"

#define HF_NFT_TABLE "holdfast"
#define HF_NFT_KEY_MAX 32u /* bytes of an element's key: interface name (16) and IPv6 address (16) */

/* One transaction. Zero-initialise, hf_nft_begin, …, hf_nft_commit; reusable. */
struct hf_nft {
    struct hf_nl nl;
    const char *table;
    const char *set; /* of the open element message; NULL = none is open */
    bool del;
    size_t list; /* offsets of the open message's nested attribute */
    size_t n;    /* elements in the whole transaction */
};

void hf_nft_begin(struct hf_nft *b, const char *table);
/* Sends the transaction. All of it or nothing takes effect. fd: NETLINK_NETFILTER. */
int hf_nft_commit(struct hf_nft *b, int fd, struct hf_err *err) HF_MUST_USE;
void hf_nft_done(struct hf_nft *b);

struct hf_nft_elem {
    uint8_t key[HF_NFT_KEY_MAX];
    size_t key_n;
    bool end; /* of an interval, exclusive */
    bool has_data;
    uint32_t data;       /* of a map */
    uint64_t timeout_ms; /* 0 = none */
    enum { HF_NFT_PLAIN, HF_NFT_LIMIT, HF_NFT_LIMIT_OVER, HF_NFT_CONNS_OVER } kind;
    uint32_t limit; /* packets a second, or connections */
};
void hf_nft_add(struct hf_nft *b, const char *set, const struct hf_nft_elem *e);
void hf_nft_del(struct hf_nft *b, const char *set, const struct hf_nft_elem *e);

/* Keys: parts one after the other, each padded to 4 bytes. */
void hf_nft_key_u32(struct hf_nft_elem *e, uint32_t host_order); /* marks */
void hf_nft_key_port(struct hf_nft_elem *e, uint16_t port);
void hf_nft_key_addr(struct hf_nft_elem *e, const struct hf_addr *a);
void hf_nft_key_ifname(struct hf_nft_elem *e, const char *name);

/* What the kernel tells about an element. */
struct hf_nft_found {
    struct hf_nft_elem e; /* key, end, data, limit */
    uint64_t packets, bytes;
};
/* Calls each for every element; -ENOENT when table or set is missing. */
int hf_nft_dump(int fd, const char *table, const char *set,
                void (*each)(void *arg, const struct hf_nft_found *f), void *arg) HF_MUST_USE;
/* One element by key; -ENOENT. */
int hf_nft_get(int fd, const char *table, const char *set, const struct hf_nft_elem *key,
               struct hf_nft_found *ret) HF_MUST_USE;

/* ---- tables, chains, sets and the few rules that `nft` can't write ---- */
void hf_nft_table(struct hf_nft *b); /* made when missing */
void hf_nft_chain(struct hf_nft *b, const char *chain);
void hf_nft_flush_chain(struct hf_nft *b, const char *chain);
/* An interval set whose key is `bytes` long and compared as one string of bytes: a red-black tree. */
void hf_nft_tree_set(struct hf_nft *b, const char *set, uint32_t id, uint32_t bytes);
/* "meta mark . ct original <family> daddr @set accept", or "goto target" when target is not NULL. */
void hf_nft_flow_rule(struct hf_nft *b, const char *chain, uint8_t family, const char *set,
                      const char *target);
/* "ct mark set meta priority; goto target" with the priority set to 0 again. */
void hf_nft_note_rule(struct hf_nft *b, const char *chain, const char *target);
/* -ENOENT when missing. */
int hf_nft_table_del(int fd, const char *table, struct hf_err *err) HF_MUST_USE;
/* Calls each with the name of every table of the inet family. */
int hf_nft_tables(int fd, void (*each)(void *arg, const char *name), void *arg) HF_MUST_USE;
