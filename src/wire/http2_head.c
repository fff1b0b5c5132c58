/* A request's head: from HTTP/2 fields to the text that the scanner judges. nghttp2 has already refused bad
 * field names, connection-level fields and pseudo-headers out of place. */
#include "wire/http2.h"

static const struct hf_req_ops no_ops;

static int put(struct hf_buf *b, struct hf_str s)
{
    return hf_buf_add(b, s.p, s.n);
}

static int put_line(struct hf_buf *b, struct hf_str name, struct hf_str value)
{
    int r = put(b, name);
    r = r < 0 ? r : put(b, HF_STR(": "));
    r = r < 0 ? r : put(b, value);
    return r < 0 ? r : put(b, HF_STR("\r\n"));
}

/* RFC 9113 section 8.2.3: crumbs make one field again. */
static int put_cookie(struct hf_buf *b, struct hf_str value)
{
    int r = b->n ? put(b, HF_STR("; ")) : 0;
    return r < 0 ? r : put(b, value);
}

int hf_h2_head_field(struct hf_h2_stream *st, struct hf_str name, struct hf_str value)
{
    st->head_n += name.n + value.n + 4;
    if (st->head_n > HF_HTTP_HEAD_MAX || ++st->field_n > HF_HTTP_HEADERS_MAX + 4) {
        st->too_large = true; /* told with 431, once the block is complete */
        return st->head_n > 4 * HF_HTTP_HEAD_MAX ? -EMSGSIZE : 0;
    }
    if (hf_str_eq(name, ":method"))
        return put(&st->method, value);
    if (hf_str_eq(name, ":path"))
        return put(&st->path, value);
    if (hf_str_eq(name, ":authority"))
        return put(&st->authority, value);
    if (name.n && name.p[0] == ':')
        return 0;
    if (hf_str_eq(name, "host")) {
        st->two_hosts |= st->host.n > 0;
        return put(&st->host, value);
    }
    if (hf_str_eq(name, "cookie"))
        return put_cookie(&st->cookie, value);
    return put_line(&st->fields, name, value);
}

static struct hf_str view(const struct hf_buf *b)
{
    return (struct hf_str){b->p ? b->p : "", b->n};
}

static bool same_host(const struct hf_h2_stream *st)
{
    return st->host.n == st->authority.n && hf_str_caseeq(view(&st->host), st->authority.p);
}

/* The reason for a refusal, or NULL. */
static const char *check(const struct hf_h2_stream *st)
{
    if (st->two_hosts)
        return "more than one Host header";
    if (st->host.n && st->authority.n && !same_host(st))
        return ":authority and the Host header name different hosts";
    bool connect = hf_str_eq(view(&st->method), "CONNECT");
    if (!connect && (!st->path.n || (st->path.p[0] != '/' && !hf_str_eq(view(&st->path), "*"))))
        return "malformed :path";
    return NULL;
}

static int write_head(const struct hf_h2_stream *st, struct hf_buf *b)
{
    struct hf_str target = st->path.n ? view(&st->path) : view(&st->authority);
    struct hf_str host = st->authority.n ? view(&st->authority) : view(&st->host);
    int r = put(b, view(&st->method));
    r = r < 0 ? r : put(b, HF_STR(" "));
    r = r < 0 ? r : put(b, target);
    r = r < 0 ? r : put(b, HF_STR(" HTTP/1.1\r\n"));
    if (r == 0 && host.n)
        r = put_line(b, HF_STR("host"), host);
    r = r < 0 ? r : put(b, view(&st->fields));
    if (r == 0 && st->cookie.n)
        r = put_line(b, HF_STR("cookie"), view(&st->cookie));
    return r < 0 ? r : put(b, HF_STR("\r\n"));
}

static void drop_parts(struct hf_h2_stream *st)
{
    struct hf_buf *parts[] = {&st->method, &st->path, &st->authority, &st->host, &st->cookie, &st->fields};
    for (size_t i = 0; i < HF_ARRAY_LEN(parts); i++)
        hf_buf_done(parts[i]);
}

static void reject(struct hf_req *r, int status, const char *why)
{
    r->ops = &no_ops;
    hf_res_error(r, status, "%s", why);
}

static int on_message_complete(llhttp_t *p)
{
    return HPE_PAUSED;
}

/* As for HTTP/1.1, a second parser must agree, which also tells which methods are known. */
static int second_opinion(struct hf_req *r)
{
    static const llhttp_settings_t settings = {.on_message_complete = on_message_complete};
    llhttp_init(&r->parser, HTTP_REQUEST, &settings);
    r->parser.data = r;
    llhttp_errno_t e = llhttp_execute(&r->parser, r->head_p, r->head_n);
    if (e == HPE_INVALID_METHOD)
        return 501;
    return e == HPE_OK || e == HPE_PAUSED || e == HPE_PAUSED_UPGRADE ? 0 : 400;
}

/* 0, or the status to answer with *ret_why. */
static int scan(struct hf_h2_stream *st, struct hf_req *r, const char **ret_why)
{
    size_t used;
    enum hf_head_result res = hf_head_feed(&r->head, r->head_p, r->head_n, &used);
    if (res != HF_HEAD_DONE || used != r->head_n) {
        *ret_why = res == HF_HEAD_BAD ? r->head.why : "malformed request head";
        return res == HF_HEAD_BAD ? r->head.bad_status : 400;
    }
    if (hf_head_check_request(&r->head, r->head_p) < 0) {
        *ret_why = r->head.why;
        return r->head.bad_status;
    }
    int status = second_opinion(r);
    *ret_why = status == 501 ? "this method is not known" : "malformed request head";
    /* A length that was not told. */
    if (!st->fin && !r->head.first[HF_H_CONTENT_LENGTH])
        r->head.length = HF_BODY_CHUNKED;
    r->head.keep_alive = true;
    r->head.upgrade = false;
    return status;
}

void hf_h2_head_done(struct hf_h2_stream *st)
{
    struct hf_conn *c = st->h2->conn;
    struct hf_http_server *s = c->server;
    struct hf_buf text = HF_BUF_INIT(2 * HF_HTTP_HEAD_MAX);
    const char *why = check(st);
    int status = st->too_large ? 431 : why ? 400 : 0;
    struct hf_req *r = hf_server_req_get(c);
    st->req = r;
    r->stream = st;
    r->ops = &no_ops;
    r->keep_alive = true;
    c->fresh = false;
    if (!status && write_head(st, &text) < 0)
        status = 431;
    drop_parts(st);
    if (!status) {
        r->head_n = r->head_cap = text.n;
        r->head_p = hf_buf_take(&text);
        status = scan(st, r, &why);
    }
    hf_buf_done(&text);
    if (status) {
        reject(r, status, status == 431 ? "the request head is too large" : why);
        return;
    }
    r->expect = r->head.expect && !st->fin;
    s->handler->on_request(s->self, r);
}

bool hf_h2_req_trailer(const struct hf_req *r, size_t i, struct hf_str *ret_name, struct hf_str *ret_value)
{
    const struct hf_buf *b = &r->stream->trailers;
    for (size_t at = 0; at < b->n;) {
        struct hf_str name = hf_str_c(b->p + at);
        struct hf_str value = hf_str_c(b->p + at + name.n + 1);
        at += name.n + value.n + 2;
        if (i--)
            continue;
        *ret_name = name;
        *ret_value = value;
        return true;
    }
    return false;
}
