/* Heads on their way out: hop-by-hop headers are replaced, everything else is copied as it came, in runs. */
#include <stdio.h>

#include "proxy/proxy_int.h"

#define BIT(id) (1u << (id))
#define HOP_BY_HOP                                                                             \
    (BIT(HF_H_CONNECTION) | BIT(HF_H_KEEP_ALIVE) | BIT(HF_H_PROXY_CONNECTION) | BIT(HF_H_TE) | \
     BIT(HF_H_TRAILER) | BIT(HF_H_UPGRADE) | BIT(HF_H_TRANSFER_ENCODING))
/* Of a request: written anew, a claim of the client that only the proxy can make, or a secret between the
 * client and the platform. */
#define NOT_FORWARDED                                                                                        \
    (HOP_BY_HOP | BIT(HF_H_EXPECT) | BIT(HF_H_FORWARDED_FOR) | BIT(HF_H_FORWARDED_PROTO) |                   \
     BIT(HF_H_FORWARDED_HOST) | BIT(HF_H_FORWARDED_OTHER) | BIT(HF_H_TRAFFIC_TOKEN) | BIT(HF_H_CUBE_TOKEN) | \
     BIT(HF_H_PREVIEW))

static struct hf_str value_of(const struct hf_hdr *e, const char *base)
{
    return (struct hf_str){base + e->value, e->value_n};
}

/* Does some Connection line name header e (RFC 9110 section 7.6.1)? */
static bool nominated(const struct hf_head *h, const char *base, const struct hf_hdr *e)
{
    char name[64];
    if (e->name_n >= sizeof(name) || e->id == HF_H_HOST || e->id == HF_H_CONTENT_LENGTH)
        return false;
    for (uint16_t i = 0; i < e->name_n; i++) {
        char c = base[e->name + i];
        name[i] = c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
    }
    name[e->name_n] = '\0';
    for (uint16_t i = 0; i < h->n; i++)
        if (h->hdr[i].id == HF_H_CONNECTION && hf_token_list_has(value_of(&h->hdr[i], base), name))
            return true;
    return false;
}

bool hf_put_drops(const struct hf_head *h, const char *base, const struct hf_hdr *e)
{
    return (HOP_BY_HOP | BIT(HF_H_CONTENT_LENGTH)) & BIT(e->id) ||
           (h->first[HF_H_CONNECTION] && nominated(h, base, e));
}

bool hf_put_forwards(const struct hf_hdr *e)
{
    return !((NOT_FORWARDED | BIT(HF_H_HOST) | BIT(HF_H_CONTENT_LENGTH)) & BIT(e->id));
}

/* Copies the header lines whose id is not in drop. */
static int put_headers(struct hf_buf *b, const struct hf_head *h, const char *base, unsigned drop)
{
    size_t from = 0, end = h->pos - 2; /* the empty line */
    bool open = false, check = h->first[HF_H_CONNECTION];
    for (uint16_t i = 0; i < h->n; i++) {
        const struct hf_hdr *e = &h->hdr[i];
        bool out = (drop & BIT(e->id)) || (check && nominated(h, base, e));
        if (!out && !open)
            from = e->name;
        int r = out && open ? hf_buf_add(b, base + from, e->name - from) : 0;
        if (r < 0)
            return r;
        open = !out;
    }
    return open ? hf_buf_add(b, base + from, end - from) : 0;
}

static int put_str(struct hf_buf *b, struct hf_str s)
{
    return hf_buf_add(b, s.p, s.n);
}

#define TRY(x)         \
    do {               \
        int r_ = (x);  \
        if (r_ < 0)    \
            return r_; \
    } while (0)

static int put_forwarded(struct hf_buf *b, const struct hf_req *req, const char *peer)
{
    const struct hf_head *h = &req->head;
    TRY(hf_buf_add(b, "X-Forwarded-For: ", 17));
    TRY(hf_buf_adds(b, peer));
    TRY(hf_buf_adds(b, hf_req_tls(req) ? "\r\nX-Forwarded-Proto: https" : "\r\nX-Forwarded-Proto: http"));
    if (h->host.p) {
        TRY(hf_buf_add(b, "\r\nX-Forwarded-Host: ", 20));
        TRY(put_str(b, h->host));
    }
    return hf_buf_add(b, "\r\n", 2);
}

/* Method and origin-form target; "*" stays. */
static int put_request_line(struct hf_buf *b, const struct hf_head *h, const char *base)
{
    TRY(hf_buf_add(b, base + h->method, h->method_n + 1u));
    TRY(put_str(b, h->path));
    if (hf_access_query_has(h->query)) {
        TRY(hf_access_put_query(b, h->query));
    } else if (h->query.p) {
        TRY(hf_buf_add(b, "?", 1));
        TRY(put_str(b, h->query));
    }
    return hf_buf_add(b, " HTTP/1.1\r\n", 11);
}

static int put_connection(struct hf_buf *b, const struct hf_px *px)
{
    const struct hf_head *h = &px->req->head;
    if (h->length == HF_BODY_CHUNKED)
        TRY(hf_buf_add(b, "Transfer-Encoding: chunked\r\n", 28));
    if (px->expect)
        TRY(hf_buf_add(b, "Expect: 100-continue\r\n", 22));
    if (h->upgrade) {
        TRY(hf_buf_add(b, "Connection: Upgrade\r\nUpgrade: ", 30));
        TRY(put_str(b, hf_head_value(h, px->req->head_p, HF_H_UPGRADE)));
        TRY(hf_buf_add(b, "\r\n", 2));
    }
    return hf_buf_add(b, "\r\n", 2);
}

int hf_put_request_head(struct hf_proxy *p, const struct hf_px *px)
{
    struct hf_buf *b = &p->scratch;
    const struct hf_head *h = &px->req->head;
    const char *base = px->req->head_p;
    bool cookies = h->first[HF_H_COOKIE] && hf_access_cookies_change(h, base);
    unsigned drop = NOT_FORWARDED | (px->host ? BIT(HF_H_HOST) : 0) | (cookies ? BIT(HF_H_COOKIE) : 0);
    hf_buf_clear(b);
    TRY(put_request_line(b, h, base));
    if (px->host)
        TRY(hf_buf_addf(b, "Host: %s\r\n", px->host));
    else if (!h->first[HF_H_HOST])
        TRY(hf_buf_addf(b, "Host: %u-%s.%s\r\n", px->pool->port, px->box->id, p->domain));
    TRY(put_headers(b, h, base, drop));
    if (cookies)
        TRY(hf_access_put_cookies(b, h, base));
    TRY(put_forwarded(b, px->req, hf_req_peer(px->req)));
    return put_connection(b, px);
}

/* "HTTP/1.x 200 Reason\r\n" with our version. */
static int put_status_line(struct hf_buf *b, const struct hf_head *h, const char *base)
{
    size_t first = h->n ? h->hdr[0].name : h->pos - 2;
    TRY(hf_buf_add(b, "HTTP/1.1", 8));
    return hf_buf_add(b, base + 8, first - 8);
}

int hf_put_response_head(struct hf_proxy *p, const struct hf_px *px, const char *base)
{
    struct hf_buf *b = &p->scratch;
    const struct hf_head *h = &px->head;
    hf_buf_clear(b);
    TRY(put_status_line(b, h, base));
    TRY(put_headers(b, h, base, h->status == 204 ? HOP_BY_HOP | BIT(HF_H_CONTENT_LENGTH) : HOP_BY_HOP));
    if (px->client_chunked)
        TRY(hf_buf_add(b, "Transfer-Encoding: chunked\r\n", 28));
    if (!px->req->keep_alive)
        TRY(hf_buf_add(b, "Connection: close\r\n", 19));
    else if (px->req->head.minor == 0)
        TRY(hf_buf_add(b, "Connection: keep-alive\r\n", 24));
    return hf_buf_add(b, "\r\n", 2);
}

int hf_put_interim_head(struct hf_proxy *p, const struct hf_px *px, const char *base)
{
    struct hf_buf *b = &p->scratch;
    const struct hf_head *h = &px->head;
    hf_buf_clear(b);
    TRY(put_status_line(b, h, base));
    TRY(put_headers(b, h, base, HOP_BY_HOP | BIT(HF_H_CONTENT_LENGTH)));
    if (h->status == 101) {
        TRY(hf_buf_add(b, "Connection: Upgrade\r\nUpgrade: ", 30));
        TRY(put_str(b, hf_head_value(h, base, HF_H_UPGRADE)));
        TRY(hf_buf_add(b, "\r\n", 2));
    }
    return hf_buf_add(b, "\r\n", 2);
}
