/* SHA-256 of files. Internal to engine/disk.
 *
 * By OpenSSL, which uses the processor's instructions for it: 64 MiB in 60 ms where the one in base, which
 * static programs need, takes 210. */
#pragma once

#include "base/err.h"
#include "base/id.h"

#define HF_HASH_HEX (2 * HF_SHA256_LEN + 1)
/* What is hashed as a whole. A part of the snapshot format: never change it. */
#define HF_HASH_REGION (1u << 20)

/* Of the bytes as they are. */
int hf_hash_file(int fd, char ret_hex[HF_HASH_HEX], uint64_t *ret_bytes) HF_MUST_USE;

/* The hashes of a file's aligned regions that are not all zero, ascending. */
struct hf_leaves {
    struct hf_leaf {
        uint64_t at;
        unsigned char sum[HF_SHA256_LEN];
    } * v;
    size_t n;
};
#define hf_auto_leaves hf_cleanup(hf_leaves_done)
void hf_leaves_done(struct hf_leaves *l);
/* A file whose leaves are known. Where the other file has the same blocks of the disk (reflinks), nothing is
 * read. */
struct hf_leaves_base {
    int fd;
    struct hf_leaves leaves;
};
/* base may be NULL. -ECANCELED when *stop (may be NULL) became true. */
int hf_leaves_read(int fd, const struct hf_leaves_base *base, const bool *stop,
                   struct hf_leaves *ret) HF_MUST_USE;
/* SHA-256 over all leaves, each preceded by its offset (64 bits, little-endian). */
int hf_leaves_hash(const struct hf_leaves *l, char ret_hex[HF_HASH_HEX]) HF_MUST_USE;

/* Both in one: the hash of a file with holes, at the cost of what is used; it does not depend on which zeros
 * the file system stores. */
int hf_hash_data(int fd, const bool *stop, char ret_hex[HF_HASH_HEX]) HF_MUST_USE;
bool hf_is_zero(const void *p, size_t n);
