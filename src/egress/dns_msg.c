/* Parsing of queries and replies. */
#include "egress/dns_msg.h"

#include <stdio.h>
#include <strings.h>

#define HEADER 12u
#define FLAG_QR 0x8000u
#define FLAG_TC 0x0200u
#define FLAG_RD 0x0100u
#define OPCODE(flags) (((flags) >> 11) & 15u)

struct reader {
    const uint8_t *p;
    size_t n, at;
};

static bool get16(struct reader *r, uint16_t *ret)
{
    if (r->n - r->at < 2)
        return false;
    *ret = (uint16_t)(r->p[r->at] << 8 | r->p[r->at + 1]);
    r->at += 2;
    return true;
}

static bool get32(struct reader *r, uint32_t *ret)
{
    uint16_t hi, lo;
    if (!get16(r, &hi) || !get16(r, &lo))
        return false;
    *ret = (uint32_t)hi << 16 | lo;
    return true;
}

/* One label of len bytes, appended to out as lower-case text. */
static bool add_label(const uint8_t *p, size_t len, char out[HF_DNS_NAME_MAX], size_t *n)
{
    size_t dot = *n > 0;
    if (*n + dot + len >= HF_DNS_NAME_MAX)
        return false;
    if (dot)
        out[(*n)++] = '.';
    for (size_t i = 0; i < len; i++) {
        uint8_t c = p[i];
        if (c <= ' ' || c >= 0x7f || c == '.' || c == '\\' || c == '"')
            return false;
        out[(*n)++] = (char)(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
    }
    return true;
}

/* Reads a name at r->at and leaves r->at behind it. Pointers go strictly backwards, so there is no loop. */
static bool get_name(struct reader *r, bool pointers, char out[HF_DNS_NAME_MAX])
{
    size_t at = r->at, end = 0, low = r->at, n = 0;
    unsigned jumps = 0;
    for (;;) {
        if (at >= r->n)
            return false;
        uint8_t len = r->p[at];
        if (len == 0)
            break;
        if (len < 64) {
            if (r->n - at < (size_t)len + 1 || !add_label(r->p + at + 1, len, out, &n))
                return false;
            at += (size_t)len + 1;
            continue;
        }
        if (len < 192 || !pointers || r->n - at < 2 || ++jumps > HF_DNS_JUMPS_MAX)
            return false;
        size_t to = (size_t)(len & 63u) << 8 | r->p[at + 1];
        if (to >= low)
            return false;
        end = end ? end : at + 2;
        low = at = to;
    }
    out[n] = 0;
    r->at = end ? end : at + 1;
    return true;
}

/* ---- queries ---- */

static bool read_opt(struct reader *r, struct hf_dns_query *q)
{
    uint16_t type, size, len;
    uint32_t ttl;
    if (r->n == r->at || r->p[r->at++] != 0 || !get16(r, &type) || type != HF_DNS_OPT || !get16(r, &size) ||
        !get32(r, &ttl) || !get16(r, &len) || r->n - r->at < len)
        return false;
    r->at += len;
    q->edns = true;
    q->edns_version = (uint8_t)(ttl >> 16);
    q->udp_size = (uint16_t)HF_MAX(HF_DNS_PLAIN_SIZE, HF_MIN(size, HF_DNS_EDNS_SIZE));
    return true;
}

int hf_dns_parse_query(const void *p, size_t n, struct hf_dns_query *ret)
{
    struct reader r = {p, n, 0};
    uint16_t flags, qd, an, ns, ar;
    memset(ret, 0, sizeof *ret);
    ret->udp_size = HF_DNS_PLAIN_SIZE;
    if (n < HEADER || n > HF_DNS_MSG_MAX || !get16(&r, &ret->id) || !get16(&r, &flags) || (flags & FLAG_QR))
        return -EPROTO;
    ret->rd = flags & FLAG_RD;
    if (OPCODE(flags) != 0)
        return -EOPNOTSUPP;
    if (!get16(&r, &qd) || !get16(&r, &an) || !get16(&r, &ns) || !get16(&r, &ar))
        return -EBADMSG;
    if ((flags & FLAG_TC) || qd != 1 || an || ns || ar > 1)
        return -EBADMSG;
    size_t start = r.at;
    if (!get_name(&r, false, ret->name))
        return -EBADMSG;
    size_t wire_n = r.at - start;
    if (wire_n > HF_DNS_WIRE_NAME_MAX || !get16(&r, &ret->type) || !get16(&r, &ret->class))
        return -EBADMSG;
    memcpy(ret->wire, r.p + start, wire_n);
    ret->wire_n = (uint8_t)wire_n;
    if (ar && !read_opt(&r, ret))
        return -EBADMSG;
    return r.at == n ? 0 : -EBADMSG;
}

/* ---- replies ---- */

static bool add_text(struct hf_buf *pool, const char *s, uint32_t *ret)
{
    *ret = (uint32_t)pool->n;
    return hf_buf_add(pool, s, strlen(s) + 1) == 0;
}

/* A name as wire bytes without compression. */
static bool add_wire_name(struct hf_buf *pool, const char *name)
{
    while (*name) {
        size_t len = strcspn(name, ".");
        uint8_t byte = (uint8_t)len;
        if (len == 0 || len > 63 || hf_buf_add(pool, &byte, 1) < 0 || hf_buf_add(pool, name, len) < 0)
            return false;
        name += len + (name[len] == '.');
    }
    return hf_buf_add(pool, "", 1) == 0;
}

static bool copy_bytes(struct reader *r, size_t n, struct hf_buf *pool)
{
    if (r->n - r->at < n || hf_buf_add(pool, r->p + r->at, n) < 0)
        return false;
    r->at += n;
    return true;
}

static bool copy_name(struct reader *r, struct hf_buf *pool)
{
    char name[HF_DNS_NAME_MAX];
    return get_name(r, true, name) && add_wire_name(pool, name);
}

/* NAPTR: order, preference, then three character strings and a name. */
static bool copy_naptr(struct reader *r, struct hf_buf *pool)
{
    if (!copy_bytes(r, 4, pool))
        return false;
    for (int i = 0; i < 3; i++)
        if (r->n == r->at || !copy_bytes(r, (size_t)r->p[r->at] + 1, pool))
            return false;
    return copy_name(r, pool);
}

/* Data with its names uncompressed, so that it means the same in another message. */
static bool copy_data(struct reader *r, uint16_t type, struct hf_buf *pool)
{
    switch (type) {
    case HF_DNS_A:
        return r->n - r->at == 4 && copy_bytes(r, 4, pool);
    case HF_DNS_AAAA:
        return r->n - r->at == 16 && copy_bytes(r, 16, pool);
    case HF_DNS_CNAME:
    case HF_DNS_NS:
    case HF_DNS_PTR:
        return copy_name(r, pool);
    case HF_DNS_MX:
        return copy_bytes(r, 2, pool) && copy_name(r, pool);
    case HF_DNS_SRV:
        return copy_bytes(r, 6, pool) && copy_name(r, pool);
    case HF_DNS_SOA:
        return copy_name(r, pool) && copy_name(r, pool) && copy_bytes(r, 20, pool);
    case HF_DNS_NAPTR:
        return copy_naptr(r, pool);
    default:
        return copy_bytes(r, r->n - r->at, pool);
    }
}

struct raw {
    struct hf_dns_rr rr;
    uint32_t ttl_s;
};

struct scan {
    struct reader r;
    uint16_t type;
    struct hf_buf pool;
    struct raw *raw;
    size_t n;
};

/* One record; kept when it is of the type or a CNAME (authority: a SOA). false: malformed. */
static bool scan_record(struct scan *s, bool authority)
{
    char name[HF_DNS_NAME_MAX];
    uint16_t type, class, len;
    uint32_t ttl;
    if (!get_name(&s->r, true, name) || !get16(&s->r, &type) || !get16(&s->r, &class) ||
        !get32(&s->r, &ttl) || !get16(&s->r, &len) || s->r.n - s->r.at < len)
        return false;
    /* Names in the data may point backwards outside of it, but the data itself ends with it. */
    struct reader data = {s->r.p, s->r.at + len, s->r.at};
    s->r.at += len;
    bool wanted = authority ? type == HF_DNS_SOA : type == s->type || type == HF_DNS_CNAME;
    if (!wanted || class != HF_DNS_IN)
        return true;
    struct raw raw = {{.type = type, .authority = authority}, ttl > INT32_MAX ? 0 : ttl};
    size_t before = s->pool.n;
    bool room = s->pool.max - before > HF_DNS_NAME_MAX + 2u * HF_DNS_WIRE_NAME_MAX + len;
    if (!room)
        return true;
    if (!add_text(&s->pool, name, &raw.rr.name))
        return false;
    raw.rr.data = (uint32_t)s->pool.n;
    if (!copy_data(&data, type, &s->pool) || data.at != data.n)
        return false;
    raw.rr.data_n = (uint16_t)(s->pool.n - raw.rr.data);
    s->raw[s->n++] = raw;
    return true;
}

static bool scan_section(struct scan *s, unsigned count, bool authority)
{
    for (unsigned i = 0; i < count; i++)
        if (s->n == HF_DNS_SCANNED_MAX || !scan_record(s, authority))
            return false;
    return true;
}

static bool owner_is(const struct scan *s, const struct raw *raw, const char *name)
{
    return strcmp(s->pool.p + raw->rr.name, name) == 0;
}

static void keep(struct hf_dns_answer *a, const struct raw *raw)
{
    a->ttl_s = HF_MIN(a->ttl_s, raw->ttl_s);
    a->rr[a->n++] = raw->rr;
}

/* The text of the name that a CNAME record points to. */
static bool target_of(const struct scan *s, const struct raw *raw, char out[HF_DNS_NAME_MAX])
{
    struct reader r = {(const uint8_t *)s->pool.p + raw->rr.data, raw->rr.data_n, 0};
    return get_name(&r, false, out);
}

/* Follows the chain from name; *cur is its end. false when it is longer than allowed (or a loop). */
static bool follow(struct scan *s, struct hf_dns_answer *a, char cur[HF_DNS_NAME_MAX])
{
    for (unsigned hops = 0; s->type != HF_DNS_CNAME; hops++) {
        const struct raw *next = NULL;
        for (size_t i = 0; i < s->n && !next; i++)
            if (s->raw[i].rr.type == HF_DNS_CNAME && owner_is(s, &s->raw[i], cur))
                next = &s->raw[i];
        if (!next)
            break;
        if (hops == HF_DNS_CHAIN_MAX || !target_of(s, next, cur))
            return false;
        keep(a, next);
    }
    return true;
}

/* RFC 2308: a negative answer lives as long as the smaller of the SOA's TTL and its last field. */
static void keep_soa(struct scan *s, struct hf_dns_answer *a)
{
    for (size_t i = 0; i < s->n; i++) {
        struct raw raw = s->raw[i];
        if (!raw.rr.authority)
            continue;
        struct reader r = {(const uint8_t *)s->pool.p + raw.rr.data, raw.rr.data_n, raw.rr.data_n - 4u};
        uint32_t minimum = 0;
        (void)get32(&r, &minimum);
        raw.ttl_s = HF_MIN(raw.ttl_s, minimum);
        keep(a, &raw);
        return;
    }
    a->ttl_s = 0;
}

static bool collect(struct scan *s, const char *name, struct hf_dns_answer *a)
{
    char cur[HF_DNS_NAME_MAX];
    memcpy(cur, name, strlen(name) + 1);
    a->ttl_s = UINT32_MAX;
    if (!follow(s, a, cur))
        return false;
    size_t chain = a->n;
    for (size_t i = 0; i < s->n && a->n - chain < HF_DNS_RECORDS_MAX; i++)
        if (!s->raw[i].rr.authority && s->raw[i].rr.type == s->type && owner_is(s, &s->raw[i], cur))
            keep(a, &s->raw[i]);
    a->negative = a->n == chain;
    if (a->negative)
        keep_soa(s, a);
    return true;
}

/* Header and question are those of our query. *flags, *counts for what follows. */
static bool is_reply(struct reader *r, uint16_t id, const char *name, uint16_t type, uint16_t *flags,
                     uint16_t counts[3])
{
    uint16_t got_id, qd, got_type, got_class;
    char got[HF_DNS_NAME_MAX];
    return get16(r, &got_id) && got_id == id && get16(r, flags) && (*flags & FLAG_QR) &&
           OPCODE(*flags) == 0 && get16(r, &qd) && qd == 1 && get16(r, &counts[0]) && get16(r, &counts[1]) &&
           get16(r, &counts[2]) && get_name(r, false, got) && get16(r, &got_type) && get16(r, &got_class) &&
           strcmp(got, name) == 0 && got_type == type && got_class == HF_DNS_IN;
}

int hf_dns_parse_reply(const void *p, size_t n, uint16_t id, const char *name, uint16_t type,
                       struct hf_dns_answer **ret)
{
    struct scan s = {.r = {p, n, 0}, .type = type, .pool = HF_BUF_INIT(HF_DNS_ANSWER_MAX)};
    uint16_t flags, counts[3];
    if (n > HF_DNS_MSG_MAX || !is_reply(&s.r, id, name, type, &flags, counts))
        return -EPROTO;
    if (flags & FLAG_TC)
        return 0;
    s.raw = hf_xcalloc(HF_DNS_SCANNED_MAX, sizeof *s.raw);
    struct hf_dns_answer *a = hf_new(struct hf_dns_answer);
    a->refs = 1;
    a->rcode = flags & 15u;
    bool ok = scan_section(&s, counts[0], false) && scan_section(&s, counts[1], true) && collect(&s, name, a);
    free(s.raw);
    a->pool_n = s.pool.n;
    a->pool = hf_buf_take(&s.pool);
    if (!ok) {
        hf_dns_answer_unref(a);
        return -EBADMSG;
    }
    *ret = a;
    return 1;
}

struct hf_dns_answer *hf_dns_answer_ref(struct hf_dns_answer *a)
{
    a->refs++;
    return a;
}

void hf_dns_answer_unref(struct hf_dns_answer *a)
{
    if (!a || --a->refs)
        return;
    free(a->pool);
    free(a);
}

bool hf_dns_rr_addr(const struct hf_dns_answer *a, const struct hf_dns_rr *rr, struct hf_addr *ret)
{
    if (rr->authority || (rr->type != HF_DNS_A && rr->type != HF_DNS_AAAA))
        return false;
    memset(ret, 0, sizeof *ret);
    ret->family = rr->type == HF_DNS_A ? 4 : 6;
    memcpy(ret->b, a->pool + rr->data, rr->data_n);
    return true;
}

/* ---- names of things ---- */

void hf_dns_type_name(uint16_t type, char out[16])
{
    static const struct {
        uint16_t type;
        const char *name;
    } known[] = {{HF_DNS_A, "A"},         {HF_DNS_NS, "NS"},     {HF_DNS_CNAME, "CNAME"},
                 {HF_DNS_SOA, "SOA"},     {HF_DNS_PTR, "PTR"},   {HF_DNS_MX, "MX"},
                 {HF_DNS_TXT, "TXT"},     {HF_DNS_AAAA, "AAAA"}, {HF_DNS_SRV, "SRV"},
                 {HF_DNS_NAPTR, "NAPTR"}, {HF_DNS_SVCB, "SVCB"}, {HF_DNS_HTTPS, "HTTPS"},
                 {HF_DNS_CAA, "CAA"},     {252, "AXFR"},         {255, "ANY"}};
    for (size_t i = 0; i < HF_ARRAY_LEN(known); i++)
        if (known[i].type == type) {
            (void)snprintf(out, 16, "%s", known[i].name);
            return;
        }
    (void)snprintf(out, 16, "TYPE%u", type);
}

static bool reverse4(const char *name, size_t n, struct hf_addr *ret)
{
    char text[HF_ADDR_TEXT] = "";
    size_t used = 0, parts = 0;
    while (n && ++parts <= 4) { /* the parts, last one first */
        size_t start = n;
        while (start && name[start - 1] != '.')
            start--;
        size_t len = n - start;
        if (len == 0 || len > 3)
            return false;
        int w = snprintf(text + used, sizeof text - used, "%s%.*s", used ? "." : "", (int)len, name + start);
        used += (size_t)w;
        n = start ? start - 1 : 0;
    }
    return parts == 4 && n == 0 && hf_addr_parse(hf_str_c(text), ret) == 0;
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool reverse6(const char *name, size_t n, struct hf_addr *ret)
{
    if (n != 63)
        return false;
    memset(ret, 0, sizeof *ret);
    ret->family = 6;
    for (size_t i = 0; i < 32; i++) { /* nibbles, the lowest one first */
        int v = nibble(name[2 * i]);
        if (v < 0 || (i < 31 && name[2 * i + 1] != '.'))
            return false;
        ret->b[15 - i / 2] |= (uint8_t)(i % 2 ? v << 4 : v);
    }
    return true;
}

bool hf_dns_reverse(const char *name, struct hf_addr *ret)
{
    static const char v4[] = ".in-addr.arpa", v6[] = ".ip6.arpa";
    size_t n = strlen(name);
    if (n > sizeof v4 - 1 && strcmp(name + n - (sizeof v4 - 1), v4) == 0)
        return reverse4(name, n - (sizeof v4 - 1), ret);
    if (n > sizeof v6 - 1 && strcmp(name + n - (sizeof v6 - 1), v6) == 0)
        return reverse6(name, n - (sizeof v6 - 1), ret);
    return false;
}
