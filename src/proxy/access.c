/* Who may come in: traffic tokens and preview links, and what of them must not reach the sandbox. */
#include <stdio.h>

#include "base/clock.h"
#include "base/id.h"
#include "proxy/proxy_int.h"

#define PARAM "hf_preview"
#define SIGNATURE_N 43u /* base64url of 32 bytes, without padding */
#define EXPIRY_DIGITS 20u
#define VALUE_MAX 72u

#define MSG_NO_TOKEN \
    "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"
#define MSG_BAD_TOKEN "Sandbox is secured with traffic access token. Provided token in header '%s' is invalid"
#define MSG_BAD_LINK "The preview link is not valid for this sandbox and port"
#define MSG_OLD_LINK "The preview link has expired, ask for a new one"

/* ---- preview values ---- */

void hf_preview_sign(const unsigned char key[32], const char *sandbox_id, uint16_t port, int64_t expiry_s,
                     char out[72])
{
    unsigned char mac[HF_SHA256_LEN];
    char text[HF_PROXY_SANDBOX_ID_MAX + 40];
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(64);
    int n = snprintf(text, sizeof(text), "%.64s\n%u\n%lld", sandbox_id, port, (long long)expiry_s);
    hf_hmac_sha256(key, 32, text, (size_t)n, mac);
    int r = hf_base64_add(&b, mac, sizeof(mac));
    for (size_t i = 0; r == 0 && i < b.n; i++)
        b.p[i] = b.p[i] == '+' ? '-' : b.p[i] == '/' ? '_' : b.p[i];
    (void)snprintf(out, VALUE_MAX, "%lld.%.43s", (long long)expiry_s, r == 0 ? b.p : "");
}

enum verdict { LINK_GOOD, LINK_BAD, LINK_OLD };

/* A forged value is bad whatever its date says: only a true one is told that it is too old. */
static enum verdict judge(const struct hf_route *route, const struct hf_target *t, struct hf_str value,
                          int64_t *ret_expiry)
{
    char good[VALUE_MAX];
    uint64_t expiry = 0;
    const char *dot = value.n ? memchr(value.p, '.', HF_MIN(value.n, (size_t)EXPIRY_DIGITS)) : NULL;
    if (!dot || value.n - (size_t)(dot - value.p) - 1 != SIGNATURE_N ||
        hf_parse_u64((struct hf_str){value.p, (size_t)(dot - value.p)}, INT64_MAX, &expiry) < 0)
        return LINK_BAD;
    hf_preview_sign(route->preview_key, t->id, t->port, (int64_t)expiry, good);
    bool same = hf_str_eq_consttime(value, hf_str_c(good));
    explicit_bzero(good, sizeof(good));
    if (!same)
        return LINK_BAD;
    *ret_expiry = (int64_t)expiry;
    return (int64_t)expiry > hf_real_ms() / 1000 ? LINK_GOOD : LINK_OLD;
}

/* The next of "a=b; hf_preview=v" in a Cookie header; advances *rest. {NULL, 0} at the end. */
static struct hf_str next_cookie(struct hf_str *rest)
{
    while (rest->n && (*rest->p == ' ' || *rest->p == ';' || *rest->p == '\t'))
        rest->p++, rest->n--;
    if (!rest->n)
        return (struct hf_str){NULL, 0};
    const char *end = memchr(rest->p, ';', rest->n);
    struct hf_str pair = {rest->p, end ? (size_t)(end - rest->p) : rest->n};
    rest->p += pair.n;
    rest->n -= pair.n;
    while (pair.n && (pair.p[pair.n - 1] == ' ' || pair.p[pair.n - 1] == '\t'))
        pair.n--;
    return pair;
}

/* The value of "hf_preview=value", or {NULL, 0}. */
static struct hf_str preview_value(struct hf_str pair)
{
    size_t n = sizeof(PARAM); /* with the '=' in place of the NUL */
    if (pair.n < n || memcmp(pair.p, PARAM "=", n) != 0)
        return (struct hf_str){NULL, 0};
    return (struct hf_str){pair.p + n, pair.n - n};
}

static struct hf_str param_of(struct hf_str query)
{
    while (query.n) {
        const char *amp = memchr(query.p, '&', query.n);
        struct hf_str pair = {query.p, amp ? (size_t)(amp - query.p) : query.n};
        struct hf_str v = preview_value(pair);
        if (v.p)
            return v;
        size_t skip = pair.n + (amp ? 1 : 0);
        query.p += skip;
        query.n -= skip;
    }
    return (struct hf_str){NULL, 0};
}

/* ---- what must not reach the sandbox ---- */

bool hf_access_query_has(struct hf_str query)
{
    return query.n && memmem(query.p, query.n, PARAM, sizeof(PARAM) - 1);
}

int hf_access_put_query(struct hf_buf *b, struct hf_str query)
{
    bool first = true;
    while (query.n) {
        const char *amp = memchr(query.p, '&', query.n);
        struct hf_str pair = {query.p, amp ? (size_t)(amp - query.p) : query.n};
        size_t skip = pair.n + (amp ? 1 : 0);
        query.p += skip;
        query.n -= skip;
        if (preview_value(pair).p || hf_str_eq(pair, PARAM))
            continue;
        int r = hf_buf_add(b, first ? "?" : "&", 1);
        r = r < 0 ? r : hf_buf_add(b, pair.p, pair.n);
        if (r < 0)
            return r;
        first = false;
    }
    return 0;
}

bool hf_access_cookies_change(const struct hf_head *h, const char *base)
{
    unsigned lines = 0;
    for (uint16_t i = 0; h->first[HF_H_COOKIE] && i < h->n; i++) {
        const struct hf_hdr *e = &h->hdr[i];
        if (e->id != HF_H_COOKIE)
            continue;
        if (++lines > 1 || memmem(base + e->value, e->value_n, PARAM, sizeof(PARAM) - 1))
            return true;
    }
    return false;
}

int hf_access_put_cookies(struct hf_buf *b, const struct hf_head *h, const char *base)
{
    const char *lead = "Cookie: ";
    for (uint16_t i = 0; i < h->n; i++) {
        const struct hf_hdr *e = &h->hdr[i];
        struct hf_str rest = {base + e->value, e->value_n}, pair;
        while (e->id == HF_H_COOKIE && (pair = next_cookie(&rest)).p) {
            if (preview_value(pair).p)
                continue;
            int r = hf_buf_adds(b, lead);
            r = r < 0 ? r : hf_buf_add(b, pair.p, pair.n);
            if (r < 0)
                return r;
            lead = "; ";
        }
    }
    return *lead == ';' ? hf_buf_add(b, "\r\n", 2) : 0;
}

/* ---- the decision ---- */

static void refuse(struct hf_req *req, const struct hf_target *t, const char *message)
{
    /* A browser must ask again once it has the cookie. */
    hf_res_header(req, "Cache-Control", "no-store");
    hf_route_answer(req, 403, t->id, message, 0);
}

static int refuse_link(struct hf_req *req, const struct hf_target *t, enum verdict v)
{
    refuse(req, t, v == LINK_OLD ? MSG_OLD_LINK : MSG_BAD_LINK);
    return 1;
}

/* The link's value moves into a cookie: it must not stay in the address bar, in Referer and in logs. */
static void redirect(struct hf_req *req, struct hf_str value, int64_t expiry)
{
    char cookie[VALUE_MAX + 128];
    struct hf_str path = hf_req_path(req);
    hf_auto_buf struct hf_buf to = HF_BUF_INIT(HF_HTTP_TARGET_MAX + 8);
    /* "//host" would name another site; behind "/." it is a path (RFC 3986 section 4.2). */
    bool two = path.n > 1 && (path.p[1] == '/' || path.p[1] == '\\');
    int r = two ? hf_buf_adds(&to, "/.") : 0;
    r = r < 0 ? r : hf_buf_add(&to, path.p, path.n);
    r = r < 0 ? r : hf_access_put_query(&to, hf_req_query(req));
    if (r < 0) {
        hf_res_error(req, 400, "the request target is too long");
        return;
    }
    (void)snprintf(cookie, sizeof(cookie), PARAM "=%.*s; Path=/; Max-Age=%lld; HttpOnly; SameSite=Lax%s",
                   (int)value.n, value.p, (long long)(expiry - hf_real_ms() / 1000),
                   hf_req_tls(req) ? "; Secure" : "");
    hf_res_header(req, "Set-Cookie", cookie);
    hf_res_header(req, "Location", to.p);
    hf_res_header(req, "Cache-Control", "no-store");
    hf_res_header(req, "Referrer-Policy", "no-referrer");
    hf_res_send(req, 303, NULL, NULL, 0);
}

/* 1 a good one, 0 none, -1 answered. */
static int by_token(struct hf_req *req, const struct hf_target *t, const struct hf_route *route)
{
    static const struct {
        enum hf_header_id id;
        const char *name;
    } headers[] = {{HF_H_TRAFFIC_TOKEN, "e2b-traffic-access-token"},
                   {HF_H_CUBE_TOKEN, "cube-traffic-access-token"}};
    for (size_t i = 0; i < HF_ARRAY_LEN(headers); i++) {
        struct hf_str v = hf_head_value(&req->head, req->head_p, headers[i].id);
        char message[160];
        if (!v.p)
            continue;
        if (*route->traffic_token && hf_str_eq_consttime(v, hf_str_c(route->traffic_token)))
            return 1;
        (void)snprintf(message, sizeof(message), MSG_BAD_TOKEN, headers[i].name);
        refuse(req, t, message);
        return -1;
    }
    return 0;
}

static bool safe_method(const struct hf_req *req)
{
    struct hf_str m = hf_req_method(req);
    return hf_str_eq(m, "GET") || hf_str_eq(m, "HEAD");
}

/* 0 let in; 1 answered. */
static int by_param(struct hf_req *req, const struct hf_target *t, const struct hf_route *route,
                    struct hf_str value)
{
    int64_t expiry = 0;
    enum verdict v = judge(route, t, value, &expiry);
    if (v != LINK_GOOD)
        return refuse_link(req, t, v);
    /* WebSocket clients don't follow redirects, and a redirected POST would lose its body. */
    if (!safe_method(req) || req->head.upgrade)
        return 0;
    redirect(req, value, expiry);
    return 1;
}

static int by_cookie(struct hf_req *req, const struct hf_target *t, const struct hf_route *route)
{
    const struct hf_head *h = &req->head;
    bool seen = false, old = false;
    for (uint16_t i = 0; h->first[HF_H_COOKIE] && i < h->n; i++) {
        struct hf_str rest = {req->head_p + h->hdr[i].value, h->hdr[i].value_n}, pair;
        while (h->hdr[i].id == HF_H_COOKIE && (pair = next_cookie(&rest)).p) {
            struct hf_str v = preview_value(pair);
            int64_t expiry = 0;
            enum verdict verdict = v.p ? judge(route, t, v, &expiry) : LINK_BAD;
            if (verdict == LINK_GOOD)
                return 0;
            seen = seen || v.p;
            old = old || verdict == LINK_OLD;
        }
    }
    if (seen)
        return refuse_link(req, t, old ? LINK_OLD : LINK_BAD);
    refuse(req, t, MSG_NO_TOKEN);
    return 1;
}

int hf_access_check(struct hf_req *req, const struct hf_target *t, const struct hf_route *route)
{
    int64_t expiry = 0;
    if (!route->private_traffic || t->port == HF_PROXY_ENVD_PORT)
        return 0;
    int r = by_token(req, t, route);
    if (r)
        return r > 0 ? 0 : 1;
    struct hf_str v = hf_head_value(&req->head, req->head_p, HF_H_PREVIEW);
    if (v.p) {
        enum verdict verdict = judge(route, t, v, &expiry);
        return verdict == LINK_GOOD ? 0 : refuse_link(req, t, verdict);
    }
    v = param_of(hf_req_query(req));
    return v.p ? by_param(req, t, route, v) : by_cookie(req, t, route);
}
