/* SHA-256 of files. Internal to engine/disk.
 *
 * By OpenSSL, which uses the processor's instructions for it: 64 MiB in 60 ms where the one in base, which
 * static programs need, takes 210. */
#pragma once

#include "base/err.h"
#include "base/id.h"

#define HF_HASH_HEX (2 * HF_SHA256_LEN + 1)
/* What hf_hash_data looks at as a whole. A part of the snapshot format: never change it. */
#define HF_HASH_BLOCK (64u << 10)

/* Of the bytes as they are. */
int hf_hash_file(int fd, char ret_hex[HF_HASH_HEX], uint64_t *ret_bytes) HF_MUST_USE;
/* Of a file with holes, at the cost of what is used: over its HF_HASH_BLOCK-sized, aligned blocks that are
 * not all zero, each preceded by its offset and its length (two 64-bit little-endian numbers). So it does not
 * depend on which zeros the file system stores. -ECANCELED when *stop (may be NULL) became true. */
int hf_hash_data(int fd, const bool *stop, char ret_hex[HF_HASH_HEX]) HF_MUST_USE;
bool hf_is_zero(const void *p, size_t n);
