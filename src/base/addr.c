#include "base/addr.h"

#include <arpa/inet.h>
#include <stdio.h>

#define V4_BITS 32u
#define V6_BITS 128u

/* One row of a table of places: IPv4 in host order, or the first 16 bytes of an IPv6 prefix. */
struct range4 {
    uint32_t start;
    uint8_t bits;
    uint8_t class;
};

struct range6 {
    uint8_t start[16];
    uint8_t bits;
    uint8_t class;
};

#define IP4(a, b, c, d) ((uint32_t)(a) << 24 | (uint32_t)(b) << 16 | (uint32_t)(c) << 8 | (uint32_t)(d))

/* First match wins: metadata addresses lie inside private and reserved ranges. */
static const struct range4 ranges4[] = {
    {IP4(100, 100, 100, 200), 32, HF_ADDR_METADATA}, /* Alibaba Cloud */
    {IP4(168, 63, 129, 16), 32, HF_ADDR_METADATA},   /* Azure's WireServer: a public-looking address */
    {IP4(192, 0, 0, 192), 32, HF_ADDR_METADATA},     /* Oracle Cloud classic */
    {IP4(127, 0, 0, 0), 8, HF_ADDR_LOOPBACK},        {IP4(169, 254, 0, 0), 16, HF_ADDR_LINK_LOCAL},
    {IP4(0, 0, 0, 0), 8, HF_ADDR_RESERVED},          {IP4(192, 0, 0, 0), 24, HF_ADDR_RESERVED},
    {IP4(192, 88, 99, 0), 24, HF_ADDR_RESERVED}, /* the 6to4 relay anycast of old */
    {IP4(224, 0, 0, 0), 4, HF_ADDR_RESERVED},        {IP4(240, 0, 0, 0), 4, HF_ADDR_RESERVED},
    {IP4(10, 0, 0, 0), 8, HF_ADDR_PRIVATE},          {IP4(172, 16, 0, 0), 12, HF_ADDR_PRIVATE},
    {IP4(192, 168, 0, 0), 16, HF_ADDR_PRIVATE},      {IP4(100, 64, 0, 0), 10, HF_ADDR_PRIVATE},
    {IP4(198, 18, 0, 0), 15, HF_ADDR_PRIVATE},
};

static const struct range6 ranges6[] = {
    {{0xfd, 0x00, 0x0e, 0xc2}, 32, HF_ADDR_METADATA}, /* Amazon: ::254, and ::23 hands out credentials */
    {{0xfd, 0x20, 0x00, 0xce}, 64, HF_ADDR_METADATA}, /* Google */
    {{0xfd, 0x00, 0x00, 0x42, [15] = 0x42}, 128, HF_ADDR_METADATA}, /* Scaleway */
    {{[15] = 1}, 128, HF_ADDR_LOOPBACK},
    {{0xfe, 0x80}, 10, HF_ADDR_LINK_LOCAL},
    {{0xfe, 0xc0}, 10, HF_ADDR_PRIVATE},
    {{0xfc}, 7, HF_ADDR_PRIVATE},
    {{0}, 128, HF_ADDR_RESERVED},
    {{0xff}, 8, HF_ADDR_RESERVED},
    {{0x01, 0x00}, 64, HF_ADDR_RESERVED},             /* 100::/64: discard only */
    {{0x00, 0x64, 0xff, 0x9b}, 32, HF_ADDR_RESERVED}, /* NAT64 in forms whose IPv4 address can't be told */
    {{0x5f, 0x00}, 16, HF_ADDR_RESERVED},             /* segment routing identifiers */
};

const char *hf_addr_class_name(enum hf_addr_class c)
{
    static const char *const names[] = {"public",     "private",  "loopback",
                                        "link-local", "metadata", "reserved"};
    return (size_t)c < HF_ARRAY_LEN(names) ? names[c] : "unknown";
}

/* ---- text ---- */

static int parse4(struct hf_str s, uint8_t b[4])
{
    size_t pos = 0;
    for (unsigned part = 0; part < 4; part++) {
        if (part && (pos >= s.n || s.p[pos++] != '.'))
            return -EINVAL;
        unsigned v = 0;
        size_t start = pos;
        while (pos < s.n && pos - start < 3 && s.p[pos] >= '0' && s.p[pos] <= '9')
            v = v * 10 + (unsigned)(s.p[pos++] - '0');
        bool leading_zero = pos - start > 1 && s.p[start] == '0';
        if (pos == start || leading_zero || v > 255)
            return -EINVAL;
        b[part] = (uint8_t)v;
    }
    return pos == s.n ? 0 : -EINVAL;
}

static int parse6(struct hf_str s, uint8_t b[16])
{
    char text[HF_ADDR_TEXT];
    if (s.n >= sizeof(text) || memchr(s.p, 0, s.n))
        return -EINVAL;
    memcpy(text, s.p, s.n);
    text[s.n] = 0;
    return inet_pton(AF_INET6, text, b) == 1 ? 0 : -EINVAL;
}

int hf_addr_parse(struct hf_str s, struct hf_addr *ret)
{
    struct hf_addr a = {0};
    if (!s.p || !s.n)
        return -EINVAL;
    a.family = memchr(s.p, ':', s.n) ? 6 : 4;
    int r = a.family == 6 ? parse6(s, a.b) : parse4(s, a.b);
    if (r < 0)
        return r;
    *ret = a;
    return 0;
}

static unsigned family_bits(uint8_t family)
{
    return family == 6 ? V6_BITS : V4_BITS;
}

static void clear_host_bits(struct hf_cidr *c)
{
    for (unsigned i = 0; i < sizeof(c->addr.b); i++) {
        unsigned keep = c->bits > i * 8 ? HF_MIN(c->bits - i * 8, 8u) : 0;
        c->addr.b[i] &= (uint8_t)(0xff00u >> keep);
    }
}

int hf_cidr_parse(struct hf_str s, struct hf_cidr *ret)
{
    if (!s.p)
        return -EINVAL;
    const char *slash = memchr(s.p, '/', s.n);
    struct hf_str addr = {s.p, slash ? (size_t)(slash - s.p) : s.n};
    struct hf_cidr c = {0};
    int r = hf_addr_parse(addr, &c.addr);
    if (r < 0)
        return r;
    uint64_t bits = family_bits(c.addr.family);
    if (slash) {
        struct hf_str text = {slash + 1, s.n - addr.n - 1};
        bool leading_zero = text.n > 1 && text.p[0] == '0';
        if (leading_zero || hf_parse_u64(text, bits, &bits) < 0)
            return -EINVAL;
    }
    c.bits = (uint8_t)bits;
    clear_host_bits(&c);
    *ret = c;
    return 0;
}

void hf_addr_format(const struct hf_addr *a, char out[HF_ADDR_TEXT])
{
    if (!a->family || !inet_ntop(a->family == 6 ? AF_INET6 : AF_INET, a->b, out, HF_ADDR_TEXT))
        out[0] = 0;
}

void hf_cidr_format(const struct hf_cidr *c, char out[HF_CIDR_TEXT])
{
    char addr[HF_ADDR_TEXT];
    hf_addr_format(&c->addr, addr);
    (void)snprintf(out, HF_CIDR_TEXT, "%s/%u", addr, c->bits);
}

/* ---- order ---- */

int hf_addr_cmp(const struct hf_addr *a, const struct hf_addr *b)
{
    if (a->family != b->family)
        return a->family < b->family ? -1 : 1;
    return memcmp(a->b, b->b, sizeof(a->b));
}

bool hf_addr_equal(const struct hf_addr *a, const struct hf_addr *b)
{
    return hf_addr_cmp(a, b) == 0;
}

static bool same_bits(const uint8_t *a, const uint8_t *b, unsigned bits)
{
    if (memcmp(a, b, bits / 8) != 0)
        return false;
    unsigned rest = bits % 8;
    return !rest || ((a[bits / 8] ^ b[bits / 8]) & (0xff00u >> rest) & 0xff) == 0;
}

bool hf_cidr_has(const struct hf_cidr *c, const struct hf_addr *a)
{
    return c->addr.family == a->family && same_bits(c->addr.b, a->b, c->bits);
}

/* ---- class ---- */

/* Where an IPv6 prefix holds an IPv4 address: `at` is the byte it starts at. */
struct wrapping {
    uint8_t prefix[12];
    uint8_t bits, at;
};

static const struct wrapping wrappings[] = {
    {{[10] = 0xff, [11] = 0xff}, 96, 12},           /* ::ffff:0:0/96 mapped */
    {{[8] = 0xff, [9] = 0xff}, 96, 12},             /* ::ffff:0:0:0/96 translated (RFC 2765) */
    {{0x00, 0x64, 0xff, 0x9b}, 96, 12},             /* NAT64 */
    {{0x00, 0x64, 0xff, 0x9b, 0x00, 0x01}, 96, 12}, /* NAT64 of local use, its /96 form */
    {{0x20, 0x02}, 16, 2},                          /* 6to4 */
    {{0}, 96, 12},                                  /* compatible; not :: and ::1 */
};

/* The wrapping of the first `bits` bits of b, or NULL. */
static const struct wrapping *wrapping_of(const uint8_t *b, unsigned bits)
{
    static const uint8_t zero[15];
    bool unspecified = memcmp(b, zero, sizeof(zero)) == 0 && b[15] <= 1;
    for (size_t i = 0; !unspecified && i < HF_ARRAY_LEN(wrappings); i++)
        if (bits >= wrappings[i].bits && same_bits(b, wrappings[i].prefix, wrappings[i].bits))
            return &wrappings[i];
    return NULL;
}

static enum hf_addr_class class4(const uint8_t *b)
{
    uint32_t v = IP4(b[0], b[1], b[2], b[3]);
    for (size_t i = 0; i < HF_ARRAY_LEN(ranges4); i++)
        if (((v ^ ranges4[i].start) & (uint32_t)(~(uint64_t)0 << (V4_BITS - ranges4[i].bits))) == 0)
            return ranges4[i].class;
    return HF_ADDR_PUBLIC;
}

/* Teredo holds two: the server, and the client with all bits inverted. The stricter one counts. */
static enum hf_addr_class class_teredo(const uint8_t *b)
{
    uint8_t client[4];
    for (unsigned i = 0; i < 4; i++)
        client[i] = b[12 + i] ^ 0xff;
    return HF_MAX(class4(b + 4), class4(client));
}

static enum hf_addr_class class6(const uint8_t *b)
{
    static const uint8_t teredo[4] = {0x20, 0x01};
    const struct wrapping *w = wrapping_of(b, V6_BITS);
    if (w)
        return class4(b + w->at);
    if (same_bits(b, teredo, 32))
        return class_teredo(b);
    for (size_t i = 0; i < HF_ARRAY_LEN(ranges6); i++)
        if (same_bits(b, ranges6[i].start, ranges6[i].bits))
            return ranges6[i].class;
    return HF_ADDR_PUBLIC;
}

enum hf_addr_class hf_addr_class_of(const struct hf_addr *a)
{
    if (a->family == 4)
        return class4(a->b);
    return a->family == 6 ? class6(a->b) : HF_ADDR_RESERVED;
}

bool hf_addr_never(const struct hf_addr *a)
{
    enum hf_addr_class c = hf_addr_class_of(a);
    return c != HF_ADDR_PUBLIC && c != HF_ADDR_PRIVATE;
}

static bool cidr4_private(const uint8_t *b, unsigned bits)
{
    struct hf_addr first = {.family = 4};
    memcpy(first.b, b, 4);
    if (bits == V4_BITS)
        return class4(b) == HF_ADDR_PRIVATE;
    for (size_t i = 0; i < HF_ARRAY_LEN(ranges4); i++) {
        uint8_t start[4] = {(uint8_t)(ranges4[i].start >> 24), (uint8_t)(ranges4[i].start >> 16),
                            (uint8_t)(ranges4[i].start >> 8), (uint8_t)ranges4[i].start};
        if (ranges4[i].class == HF_ADDR_PRIVATE && bits >= ranges4[i].bits &&
            same_bits(b, start, ranges4[i].bits))
            return true;
    }
    return false;
}

bool hf_cidr_private(const struct hf_cidr *c)
{
    const uint8_t *b = c->addr.b;
    if (c->addr.family == 4)
        return cidr4_private(b, c->bits);
    const struct wrapping *w = wrapping_of(b, c->bits);
    if (w)
        return cidr4_private(b + w->at, HF_MIN(c->bits - w->at * 8u, V4_BITS));
    if (c->bits == V6_BITS)
        return class6(b) == HF_ADDR_PRIVATE;
    for (size_t i = 0; i < HF_ARRAY_LEN(ranges6); i++)
        if (ranges6[i].class == HF_ADDR_PRIVATE && c->bits >= ranges6[i].bits &&
            same_bits(b, ranges6[i].start, ranges6[i].bits))
            return true;
    return false;
}

/* ---- sockets ---- */

static const uint8_t mapped_prefix[12] = {[10] = 0xff, [11] = 0xff};

int hf_addr_from_sockaddr(const struct sockaddr *sa, struct hf_addr *ret, uint16_t *ret_port)
{
    struct hf_addr a = {0};
    uint16_t port;
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, sa, sizeof(in));
        a.family = 4;
        memcpy(a.b, &in.sin_addr, 4);
        port = ntohs(in.sin_port);
    } else if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, sa, sizeof(in6));
        bool mapped = memcmp(&in6.sin6_addr, mapped_prefix, sizeof(mapped_prefix)) == 0;
        a.family = mapped ? 4 : 6;
        memcpy(a.b, (const uint8_t *)&in6.sin6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
        port = ntohs(in6.sin6_port);
    } else {
        return -EAFNOSUPPORT;
    }
    *ret = a;
    if (ret_port)
        *ret_port = port;
    return 0;
}

socklen_t hf_addr_to_sockaddr(const struct hf_addr *a, uint16_t port, struct sockaddr_storage *ret)
{
    memset(ret, 0, sizeof(*ret));
    if (a->family == 6) {
        struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
        memcpy(&in6.sin6_addr, a->b, 16);
        memcpy(ret, &in6, sizeof(in6));
        return sizeof(in6);
    }
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port)};
    memcpy(&in.sin_addr, a->b, 4);
    memcpy(ret, &in, sizeof(in));
    return sizeof(in);
}
