/* SHA-256 after FIPS 180-4, HMAC after RFC 2104. */
#include "base/id.h"

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t ror(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

/* One round on the state words a … h; eight of them with rotated names move nothing around (images of
 * hundreds of MiB are hashed). */
#define ROUND(a, b, c, d, e, f, g, hh, i)                                                                    \
    do {                                                                                                     \
        uint32_t t1_ = s[hh] + (ror(s[e], 6) ^ ror(s[e], 11) ^ ror(s[e], 25)) +                              \
                       (s[g] ^ (s[e] & (s[f] ^ s[g]))) + K[i] + w[i];                                        \
        s[d] += t1_;                                                                                         \
        s[hh] =                                                                                              \
            t1_ + (ror(s[a], 2) ^ ror(s[a], 13) ^ ror(s[a], 22)) + ((s[a] & s[b]) | (s[c] & (s[a] | s[b]))); \
    } while (0)

static void compress(uint32_t h[8], const unsigned char *p)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 |
               p[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + (ror(w[i - 15], 7) ^ ror(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
               (ror(w[i - 2], 17) ^ ror(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, h, sizeof(s));
    for (int i = 0; i < 64; i += 8) {
        ROUND(0, 1, 2, 3, 4, 5, 6, 7, i);
        ROUND(7, 0, 1, 2, 3, 4, 5, 6, i + 1);
        ROUND(6, 7, 0, 1, 2, 3, 4, 5, i + 2);
        ROUND(5, 6, 7, 0, 1, 2, 3, 4, i + 3);
        ROUND(4, 5, 6, 7, 0, 1, 2, 3, i + 4);
        ROUND(3, 4, 5, 6, 7, 0, 1, 2, i + 5);
        ROUND(2, 3, 4, 5, 6, 7, 0, 1, i + 6);
        ROUND(1, 2, 3, 4, 5, 6, 7, 0, i + 7);
    }
    for (int i = 0; i < 8; i++)
        h[i] += s[i];
}

void hf_sha256_init(struct hf_sha256 *s)
{
    *s = (struct hf_sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                                  0x1f83d9ab, 0x5be0cd19}};
}

void hf_sha256_add(struct hf_sha256 *s, const void *p, size_t n)
{
    const unsigned char *c = p;
    s->total += n;
    while (n) {
        if (s->fill == 0 && n >= 64) {
            compress(s->h, c);
            c += 64;
            n -= 64;
            continue;
        }
        size_t take = HF_MIN(n, 64 - s->fill);
        memcpy(s->block + s->fill, c, take);
        s->fill += take;
        c += take;
        n -= take;
        if (s->fill == 64) {
            compress(s->h, s->block);
            s->fill = 0;
        }
    }
}

void hf_sha256_done(struct hf_sha256 *s, unsigned char out[HF_SHA256_LEN])
{
    uint64_t bits = s->total * 8;
    unsigned char tail[72] = {0x80};
    size_t pad = (s->fill < 56 ? 56 : 120) - s->fill;
    for (int i = 0; i < 8; i++)
        tail[pad + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
    hf_sha256_add(s, tail, pad + 8);
    for (int i = 0; i < 32; i++)
        out[i] = (unsigned char)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void hf_sha256_of(const void *p, size_t n, unsigned char out[HF_SHA256_LEN])
{
    struct hf_sha256 s;
    hf_sha256_init(&s);
    hf_sha256_add(&s, p, n);
    hf_sha256_done(&s, out);
}

void hf_hmac_sha256(const void *key, size_t key_n, const void *p, size_t n, unsigned char out[HF_SHA256_LEN])
{
    unsigned char k[64] = {0}, pad[64];
    struct hf_sha256 s;
    if (key_n > sizeof(k))
        hf_sha256_of(key, key_n, k);
    else
        memcpy(k, key, key_n);
    for (size_t i = 0; i < sizeof(k); i++)
        pad[i] = k[i] ^ 0x36;
    hf_sha256_init(&s);
    hf_sha256_add(&s, pad, sizeof(pad));
    hf_sha256_add(&s, p, n);
    hf_sha256_done(&s, out);
    for (size_t i = 0; i < sizeof(k); i++)
        pad[i] = k[i] ^ 0x5c;
    hf_sha256_init(&s);
    hf_sha256_add(&s, pad, sizeof(pad));
    hf_sha256_add(&s, out, HF_SHA256_LEN);
    hf_sha256_done(&s, out);
}
