/* Random bytes, identifiers and text encodings of bytes. */
#pragma once

#include "base/base.h"
#include "base/buf.h"

void hf_random(void *p, size_t n); /* getrandom(2); never fails, aborts if the kernel refuses */
/* n characters of [a-z0-9] and a NUL. */
void hf_random_id(char *out, size_t n);
/* 2 * n lower-case hex characters and a NUL. */
void hf_hex(const void *p, size_t n, char *out);
/* -EINVAL unless exactly 2 * n hex characters. */
int hf_unhex(struct hf_str s, void *out, size_t n) HF_MUST_USE;

/* Base64 (RFC 4648 section 4, padded). */
int hf_base64_add(struct hf_buf *b, const void *p, size_t n) HF_MUST_USE;
/* Accepts both alphabets, with or without padding; -EINVAL otherwise, -EMSGSIZE over b->max. */
int hf_unbase64_add(struct hf_buf *b, struct hf_str s) HF_MUST_USE;

/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104). In base, because the static in-sandbox daemon needs it without
 * a crypto library; see docs/adr/0003. */
#define HF_SHA256_LEN 32
struct hf_sha256 {
    uint32_t h[8];
    uint64_t total;
    unsigned char block[64];
    size_t fill;
};
void hf_sha256_init(struct hf_sha256 *s);
void hf_sha256_add(struct hf_sha256 *s, const void *p, size_t n);
void hf_sha256_done(struct hf_sha256 *s, unsigned char out[HF_SHA256_LEN]);
void hf_sha256_of(const void *p, size_t n, unsigned char out[HF_SHA256_LEN]);
void hf_hmac_sha256(const void *key, size_t key_n, const void *p, size_t n, unsigned char out[HF_SHA256_LEN]);
