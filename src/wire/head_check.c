/* The part of the strictness that needs the whole head: framing, Host, target. */
#include "wire/head.h"

static int bad(struct hf_head *h, int status, const char *why)
{
    h->bad_status = (uint16_t)status;
    h->why = why;
    return -EINVAL;
}

static inline char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

/* lit is in lower case and as long as p. */
static bool same(const char *p, const char *lit, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (lower(p[i]) != lit[i])
            return false;
    return true;
}

static const struct {
    const char *name;
    uint8_t n, id;
} known[] = {
    {"te", 2, HF_H_TE},
    {"host", 4, HF_H_HOST},
    {"cookie", 6, HF_H_COOKIE},
    {"expect", 6, HF_H_EXPECT},
    {"upgrade", 7, HF_H_UPGRADE},
    {"trailer", 7, HF_H_TRAILER},
    {"forwarded", 9, HF_H_FORWARDED_OTHER},
    {"x-real-ip", 9, HF_H_FORWARDED_OTHER},
    {"connection", 10, HF_H_CONNECTION},
    {"hf-preview", 10, HF_H_PREVIEW},
    {"keep-alive", 10, HF_H_KEEP_ALIVE},
    {"content-length", 14, HF_H_CONTENT_LENGTH},
    {"e2b-sandbox-id", 14, HF_H_E2B_ID},
    {"x-forwarded-for", 15, HF_H_FORWARDED_FOR},
    {"proxy-connection", 16, HF_H_PROXY_CONNECTION},
    {"e2b-sandbox-port", 16, HF_H_E2B_PORT},
    {"x-forwarded-host", 16, HF_H_FORWARDED_HOST},
    {"x-forwarded-port", 16, HF_H_FORWARDED_OTHER},
    {"x-forwarded-proto", 17, HF_H_FORWARDED_PROTO},
    {"transfer-encoding", 17, HF_H_TRANSFER_ENCODING},
    {"e2b-traffic-access-token", 24, HF_H_TRAFFIC_TOKEN},
    {"cube-traffic-access-token", 25, HF_H_CUBE_TOKEN},
};

/* Index of the first known name of that length. */
static const uint8_t by_length[26] = {[2] = 1,   [4] = 2,   [6] = 3,   [7] = 5,   [9] = 7,   [10] = 9,
                                      [14] = 12, [15] = 14, [16] = 15, [17] = 19, [24] = 21, [25] = 22};

static uint8_t id_of(const char *p, size_t n)
{
    if (n >= HF_ARRAY_LEN(by_length) || !by_length[n])
        return HF_H_OTHER;
    for (size_t i = by_length[n] - 1u; i < HF_ARRAY_LEN(known) && known[i].n == n; i++)
        if (lower(p[0]) == known[i].name[0] && same(p, known[i].name, n))
            return known[i].id;
    return HF_H_OTHER;
}

bool hf_token_list_has(struct hf_str list, const char *token)
{
    size_t tn = strlen(token), i = 0;
    while (i < list.n) {
        while (i < list.n && (list.p[i] == ' ' || list.p[i] == '\t' || list.p[i] == ','))
            i++;
        size_t start = i;
        while (i < list.n && list.p[i] != ',')
            i++;
        size_t end = i;
        while (end > start && (list.p[end - 1] == ' ' || list.p[end - 1] == '\t'))
            end--;
        if (end - start == tn && same(list.p + start, token, tn))
            return true;
    }
    return false;
}

/* Names the headers and finds the ones that may stand only once. */
static int index_headers(struct hf_head *h, const char *base)
{
    for (uint16_t i = 0; i < h->n; i++) {
        struct hf_hdr *e = &h->hdr[i];
        e->id = id_of(base + e->name, e->name_n);
        if (e->id == HF_H_OTHER)
            continue;
        if (!h->first[e->id]) {
            h->first[e->id] = (uint8_t)(i + 1);
            continue;
        }
        switch (e->id) {
        case HF_H_HOST:
            return bad(h, 400, "more than one Host header");
        case HF_H_CONTENT_LENGTH:
            return bad(h, 400, "more than one Content-Length header");
        case HF_H_TRANSFER_ENCODING:
            return bad(h, 400, "more than one Transfer-Encoding header");
        case HF_H_E2B_ID:
        case HF_H_E2B_PORT:
            return bad(h, 400, "a routing header is repeated");
        default:
            break;
        }
    }
    return 0;
}

/* Several Connection lines count as one list. */
static bool connection_has(const struct hf_head *h, const char *base, const char *token)
{
    if (!h->first[HF_H_CONNECTION])
        return false;
    for (uint16_t i = (uint16_t)(h->first[HF_H_CONNECTION] - 1); i < h->n; i++) {
        const struct hf_hdr *e = &h->hdr[i];
        if (e->id == HF_H_CONNECTION &&
            hf_token_list_has((struct hf_str){base + e->value, e->value_n}, token))
            return true;
    }
    return false;
}

static int check_framing(struct hf_head *h, const char *base)
{
    struct hf_str te = hf_head_value(h, base, HF_H_TRANSFER_ENCODING);
    struct hf_str cl = hf_head_value(h, base, HF_H_CONTENT_LENGTH);
    h->length = h->response ? HF_BODY_UNTIL_EOF : 0;
    if (te.p) {
        if (cl.p)
            return bad(h, 400, "Content-Length together with Transfer-Encoding");
        if (h->minor == 0)
            return bad(h, 400, "Transfer-Encoding in HTTP/1.0");
        if (!hf_str_caseeq(te, "chunked"))
            return bad(h, 400, "the only Transfer-Encoding accepted is chunked");
        h->length = HF_BODY_CHUNKED;
    } else if (cl.p) {
        uint64_t v;
        if (hf_parse_u64(cl, INT64_MAX, &v) < 0)
            return bad(h, 400, "malformed Content-Length");
        h->length = (int64_t)v;
    }
    h->keep_alive = h->minor == 1;
    if (!h->first[HF_H_CONNECTION])
        return 0;
    if (connection_has(h, base, "close"))
        h->keep_alive = false;
    else if (h->minor == 0 && connection_has(h, base, "keep-alive"))
        h->keep_alive = true;
    h->upgrade = h->minor == 1 && h->first[HF_H_UPGRADE] && connection_has(h, base, "upgrade");
    return 0;
}

/* Letters, digits and what names, IPv6 literals and a port are made of. */
static bool host_ok(struct hf_str s)
{
    for (size_t i = 0; i < s.n; i++) {
        char c = lower(s.p[i]);
        bool ok = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (!ok && !strchr("-._~:[]%!$&'()*+;=", c))
            return false;
    }
    return true;
}

static bool ends_with_port(struct hf_str s, const char *port)
{
    size_t n = strlen(port);
    return s.n > n && memcmp(s.p + s.n - n, port, n) == 0;
}

/* "a.b" and "a.b:80" are the same authority. */
static bool same_authority(struct hf_str a, struct hf_str b, const char *port)
{
    if (ends_with_port(a, port))
        a.n -= strlen(port);
    if (ends_with_port(b, port))
        b.n -= strlen(port);
    if (a.n != b.n)
        return false;
    for (size_t i = 0; i < a.n; i++)
        if (lower(a.p[i]) != lower(b.p[i]))
            return false;
    return true;
}

/* Takes "scheme://authority" off an absolute-form target. */
static int strip_absolute(struct hf_head *h, struct hf_str *t)
{
    static const struct {
        const char *scheme, *port;
    } schemes[] = {{"http://", ":80"}, {"https://", ":443"}, {"ws://", ":80"}, {"wss://", ":443"}};
    for (size_t i = 0; i < HF_ARRAY_LEN(schemes); i++) {
        size_t n = strlen(schemes[i].scheme);
        if (t->n <= n || !same(t->p, schemes[i].scheme, n))
            continue;
        struct hf_str auth = {t->p + n, 0};
        while (n + auth.n < t->n && !strchr("/?#", auth.p[auth.n]))
            auth.n++;
        if (!auth.n || !host_ok(auth))
            return bad(h, 400, "malformed authority in the request target");
        if (h->host.p && !same_authority(auth, h->host, schemes[i].port))
            return bad(h, 400, "the request target and the Host header name different hosts");
        if (!h->host.p)
            h->host = auth;
        t->p = auth.p + auth.n;
        t->n -= n + auth.n;
        return 0;
    }
    return bad(h, 400, "malformed request target");
}

static int check_target(struct hf_head *h, const char *base)
{
    struct hf_str t = {base + h->target, h->target_n};
    struct hf_str m = {base + h->method, h->method_n};
    if (hf_str_eq(m, "CONNECT"))
        return bad(h, 501, "CONNECT is not supported");
    if (t.p[0] != '/' && !(t.n == 1 && t.p[0] == '*' && hf_str_eq(m, "OPTIONS"))) {
        int r = strip_absolute(h, &t);
        if (r < 0)
            return r;
    }
    if (memchr(t.p, '#', t.n))
        return bad(h, 400, "a request target has no fragment");
    const char *q = memchr(t.p, '?', t.n);
    h->path = (struct hf_str){t.p, q ? (size_t)(q - t.p) : t.n};
    if (q)
        h->query = (struct hf_str){q + 1, t.n - h->path.n - 1};
    if (!h->path.n)
        h->path = HF_STR("/");
    return 0;
}

int hf_head_check_request(struct hf_head *h, const char *base)
{
    int r = index_headers(h, base);
    if (r < 0)
        return r;
    struct hf_str host = hf_head_value(h, base, HF_H_HOST);
    if (!host.p && h->minor == 1)
        return bad(h, 400, "the Host header is missing");
    if (!host_ok(host))
        return bad(h, 400, "malformed Host header");
    h->host = host;
    r = check_target(h, base);
    if (r < 0)
        return r;
    r = check_framing(h, base);
    if (r < 0)
        return r;
    struct hf_str expect = hf_head_value(h, base, HF_H_EXPECT);
    if (!expect.p || h->minor == 0)
        return 0;
    if (!hf_str_caseeq(expect, "100-continue"))
        return bad(h, 417, "the only expectation known is 100-continue");
    h->expect = h->length != 0;
    return 0;
}

int hf_head_check_response(struct hf_head *h, const char *base, bool for_head)
{
    int r = index_headers(h, base);
    if (r < 0)
        return r;
    r = check_framing(h, base);
    if (r < 0)
        return r;
    if (h->status < 100)
        return bad(h, 400, "malformed status code");
    if (for_head || h->status < 200 || h->status == 204 || h->status == 304)
        h->length = 0;
    if (h->length == HF_BODY_UNTIL_EOF)
        h->keep_alive = false;
    return 0;
}
