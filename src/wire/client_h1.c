/* HTTP/1.1, client side: one exchange at a time. */
#include <stdio.h>

#include "base/log.h"
#include "wire/client_int.h"

#define TRY(x)         \
    do {               \
        int r_ = (x);  \
        if (r_ < 0)    \
            return r_; \
    } while (0)

static struct hf_cx *current(const struct hf_client *c)
{
    return hf_list_empty(&c->exchanges) ? NULL : hf_list_entry(c->exchanges.next, struct hf_cx, node);
}

/* ---- request ---- */

static int put(struct hf_outq *q, struct hf_str s)
{
    return hf_outq_add(q, s.p, s.n);
}

static int put_field(struct hf_outq *q, struct hf_str name, struct hf_str value)
{
    TRY(put(q, name));
    TRY(put(q, HF_STR(": ")));
    TRY(put(q, value));
    return put(q, HF_STR("\r\n"));
}

/* Fields that are written here and nowhere else. */
static bool own_field(struct hf_str name)
{
    return hf_field_is_hop(name) || hf_str_caseeq(name, "host") || hf_str_caseeq(name, "content-length");
}

static bool body_expected(struct hf_str method)
{
    return hf_str_eq(method, "POST") || hf_str_eq(method, "PUT") || hf_str_eq(method, "PATCH");
}

static int put_request(struct hf_outq *q, const struct hf_cx_req *req)
{
    char line[64];
    TRY(put(q, req->method));
    TRY(put(q, HF_STR(" ")));
    TRY(put(q, hf_str_eq(req->method, "CONNECT") ? req->authority : req->path));
    TRY(put(q, HF_STR(" HTTP/1.1\r\n")));
    TRY(put_field(q, HF_STR("Host"), req->authority));
    for (size_t i = 0; i < req->n_fields; i++)
        if (!own_field(req->fields[i].name))
            TRY(put_field(q, req->fields[i].name, req->fields[i].value));
    if (req->length < 0) {
        TRY(put(q, HF_STR("Transfer-Encoding: chunked\r\n")));
    } else if (req->length || body_expected(req->method)) {
        int n = snprintf(line, sizeof(line), "Content-Length: %lld\r\n", (long long)req->length);
        TRY(hf_outq_add(q, line, (size_t)n));
    }
    if (req->upgrade) {
        TRY(put(q, HF_STR("Connection: Upgrade\r\n")));
        TRY(put_field(q, HF_STR("Upgrade"), hf_str_c(req->upgrade)));
    }
    return put(q, HF_STR("\r\n"));
}

/* Flushes; once that worked, something may have left (with TLS, once the handshake is done). */
static void flush(struct hf_cx *cx)
{
    struct hf_client *c = cx->client;
    hf_client_flush(c);
    if (!c->write_failed)
        cx->unsent = c->tls && !hf_tls_ready(c->tls);
}

int hf_h1_begin(struct hf_cx *cx, const struct hf_cx_req *req)
{
    int r = put_request(&cx->client->out, req);
    if (r < 0) {
        hf_client_die(cx->client, r);
        return r;
    }
    flush(cx);
    hf_client_update_reading(cx->client);
    return 0;
}

static void add(struct hf_client *c, const void *p, size_t n)
{
    int r = hf_outq_add(&c->out, p, n);
    if (r < 0)
        hf_client_die(c, r);
}

void hf_h1_write(struct hf_cx *cx, const void *p, size_t n)
{
    struct hf_client *c = cx->client;
    char line[32];
    bool chunked = cx->left < 0;
    uv_buf_t v[3] = {{0}, uv_buf_init((char *)p, (unsigned)n), uv_buf_init((char *)"\r\n", 2)};
    int len = snprintf(line, sizeof(line), "%zx\r\n", n);
    v[0] = uv_buf_init(line, (unsigned)len);
    int r = chunked ? hf_outq_writev(&c->out, v, 3) : hf_outq_writev(&c->out, v + 1, 1);
    if (r < 0)
        c->write_failed = c->going = true; /* reading tells what became of the exchange */
    else
        cx->unsent = c->tls && !hf_tls_ready(c->tls);
    if (r < 0 && !c->reading)
        hf_client_die(c, r);
}

void hf_h1_end(struct hf_cx *cx, const struct hf_field *f, size_t n)
{
    struct hf_client *c = cx->client;
    if (cx->left >= 0)
        return;
    add(c, "0\r\n", 3);
    for (size_t i = 0; i < n && !c->closing; i++) {
        if (own_field(f[i].name) || !hf_is_token(f[i].name) || !hf_is_header_value(f[i].value))
            continue;
        if (put_field(&c->out, f[i].name, f[i].value) < 0)
            hf_client_die(c, -EMSGSIZE);
    }
    add(c, "\r\n", 2);
    flush(cx);
}

/* ---- response ---- */

static bool nominated(const struct hf_head *h, const char *base, const char *name)
{
    for (uint16_t i = 0; i < h->n; i++)
        if (h->hdr[i].id == HF_H_CONNECTION &&
            hf_token_list_has((struct hf_str){base + h->hdr[i].value, h->hdr[i].value_n}, name))
            return true;
    return false;
}

static void lower(char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] >= 'A' && p[i] <= 'Z')
            p[i] |= 0x20;
}

/* The head's fields, names in lower case. base is ours to change. */
static size_t collect(const struct hf_head *h, char *base, struct hf_field out[HF_CLIENT_HEADERS_MAX])
{
    size_t n = 0;
    bool check = h->first[HF_H_CONNECTION];
    for (uint16_t i = 0; i < h->n && n < HF_CLIENT_HEADERS_MAX; i++) {
        const struct hf_hdr *e = &h->hdr[i];
        struct hf_field f = {{base + e->name, e->name_n}, {base + e->value, e->value_n}};
        lower(base + e->name, e->name_n);
        base[e->name + e->name_n] = '\0'; /* the colon */
        if (hf_field_is_hop(f.name) || (check && nominated(h, base, f.name.p)))
            continue;
        out[n++] = f;
    }
    return n;
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
    struct hf_cx *cx = p->data;
    struct hf_client *c = cx->client;
    cx->body_n += n;
    if (cx->ops->on_data)
        cx->ops->on_data(cx, at, n);
    if (c->closing || current(c) != cx)
        return HPE_USER;
    return cx->paused ? HPE_PAUSED : 0;
}

/* The head itself goes by as well; its fields were collected by the scanner. */
static int add_trailer(struct hf_cx *cx, const char *at, size_t n)
{
    if (cx->mode == HF_CX_HEAD)
        return 0;
    return hf_buf_add(&cx->trailers, at, n) < 0 || (n && memchr(at, '\0', n) && *at) ? HPE_USER : 0;
}

static int on_header_field(llhttp_t *p, const char *at, size_t n)
{
    struct hf_cx *cx = p->data;
    int r = add_trailer(cx, at, n);
    if (r == 0 && cx->mode != HF_CX_HEAD)
        lower(cx->trailers.p + cx->trailers.n - n, n);
    return r;
}

static int on_header_value(llhttp_t *p, const char *at, size_t n)
{
    return add_trailer(p->data, at, n);
}

static int on_header_part_complete(llhttp_t *p)
{
    return add_trailer(p->data, "", 1);
}

static int on_message_complete(llhttp_t *p)
{
    struct hf_cx *cx = p->data;
    cx->mode = HF_CX_DONE;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {.on_body = on_body,
                                           .on_header_field = on_header_field,
                                           .on_header_value = on_header_value,
                                           .on_header_field_complete = on_header_part_complete,
                                           .on_header_value_complete = on_header_part_complete,
                                           .on_message_complete = on_message_complete};

/* A second parser must agree with ours about the framing. */
static int start_llhttp(struct hf_cx *cx)
{
    llhttp_init(&cx->parser, HTTP_RESPONSE, &settings);
    cx->parser.data = cx;
    llhttp_errno_t e = llhttp_execute(&cx->parser, cx->head_buf.p, cx->head.pos);
    return e == HPE_OK && cx->mode == HF_CX_HEAD ? 0 : -EBADMSG;
}

static int final_head(struct hf_cx *cx)
{
    struct hf_head *h = &cx->head;
    struct hf_field f[HF_CLIENT_HEADERS_MAX];
    uint8_t mode = h->length == HF_BODY_CHUNKED     ? HF_CX_CHUNKED
                   : h->length == HF_BODY_UNTIL_EOF ? HF_CX_EOF
                   : h->length == 0                 ? HF_CX_DONE
                                                    : HF_CX_LENGTH;
    if (mode == HF_CX_CHUNKED && start_llhttp(cx) < 0)
        return -EBADMSG;
    cx->mode = mode;
    cx->res_left = h->length;
    cx->answered = true;
    size_t n = collect(h, cx->head_buf.p, f);
    if (cx->ops->on_head)
        cx->ops->on_head(cx, h->status, f, n, h->length < 0 ? -1 : h->length);
    return 0;
}

static int interim(struct hf_cx *cx)
{
    struct hf_field f[HF_CLIENT_HEADERS_MAX];
    if (++cx->interims > HF_CLIENT_INTERIM_MAX)
        return -EBADMSG;
    size_t n = collect(&cx->head, cx->head_buf.p, f);
    if (cx->ops->on_interim)
        cx->ops->on_interim(cx, cx->head.status, f, n);
    return 0;
}

/* From here on the connection is somebody else's: the rest goes with it. */
static int upgrade(struct hf_cx *cx, const char *rest, size_t n)
{
    struct hf_client *c = cx->client;
    struct hf_field f[HF_CLIENT_HEADERS_MAX];
    if ((cx->head.status == 101 && !cx->upgrade) || !cx->ended || !hf_outq_idle(&c->out))
        return -EBADMSG;
    TRY(hf_buf_add(&c->in, rest, n));
    cx->answered = true;
    size_t k = collect(&cx->head, cx->head_buf.p, f);
    if (cx->ops->on_upgrade)
        cx->ops->on_upgrade(cx, cx->head.status, f, k);
    if (!c->done && !c->closing)
        hf_client_die(c, -ECANCELED); /* nobody took it */
    return 0;
}

/* The bytes used; a failure is in *ret_r. */
static size_t feed_head(struct hf_cx *cx, const char *p, size_t n, int *ret_r)
{
    struct hf_client *c = cx->client;
    size_t used;
    enum hf_head_result res = hf_head_feed(&cx->head, p, n, &used);
    *ret_r = res == HF_HEAD_BAD ? -EBADMSG : hf_buf_add(&cx->head_buf, p, used);
    if (*ret_r < 0 || res != HF_HEAD_DONE)
        return used;
    if (hf_head_check_response(&cx->head, cx->head_buf.p, cx->for_head) < 0) {
        *ret_r = -EBADMSG;
        return used;
    }
    int status = cx->head.status;
    if (status == 101 || (cx->connect && status >= 200 && status < 300)) {
        *ret_r = upgrade(cx, p + used, n - used);
        return n;
    }
    if (status >= 200) {
        *ret_r = final_head(cx);
        return used;
    }
    *ret_r = interim(cx);
    if (*ret_r == 0 && !c->closing && current(c) == cx) {
        hf_head_init(&cx->head, true);
        hf_buf_clear(&cx->head_buf);
    }
    return used;
}

static size_t feed_chunked(struct hf_cx *cx, const char *p, size_t n, int *ret_r)
{
    struct hf_client *c = cx->client;
    llhttp_errno_t e = llhttp_execute(&cx->parser, p, n);
    if (c->closing || current(c) != cx)
        return n;
    size_t used = n;
    if (e == HPE_PAUSED) {
        used = (size_t)(llhttp_get_error_pos(&cx->parser) - p);
        llhttp_resume(&cx->parser);
        e = HPE_OK;
    }
    cx->wire_n += used;
    if (e != HPE_OK || cx->wire_n - cx->body_n > HF_CLIENT_CHUNK_OVERHEAD_MAX + 16 * cx->body_n)
        *ret_r = -EBADMSG;
    return used;
}

static size_t feed_plain(struct hf_cx *cx, const char *p, size_t n)
{
    size_t used = cx->mode == HF_CX_EOF ? n : (size_t)HF_MIN((uint64_t)cx->res_left, n);
    if (cx->mode == HF_CX_LENGTH) {
        cx->res_left -= (int64_t)used;
        if (!cx->res_left)
            cx->mode = HF_CX_DONE;
    }
    if (cx->ops->on_data)
        cx->ops->on_data(cx, p, used);
    return used;
}

/* llhttp is more lenient than we are. */
static bool fields_ok(const struct hf_field *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!hf_is_token(f[i].name) || !hf_is_header_value(f[i].value))
            return false;
    return true;
}

/* The response is complete. rest: more was said than asked for. */
static void complete(struct hf_cx *cx, bool rest)
{
    struct hf_client *c = cx->client;
    struct hf_field f[HF_CLIENT_HEADERS_MAX];
    bool reuse = cx->head.keep_alive && cx->ended && !rest && !c->write_failed && !c->eof;
    if (cx->trailers.n && cx->ops->on_trailers) {
        size_t n = hf_fields_unpack(&cx->trailers, f);
        if (!fields_ok(f, n)) {
            hf_client_die(c, -EBADMSG);
            return;
        }
        cx->ops->on_trailers(cx, f, n);
        if (c->closing || current(c) != cx)
            return;
    }
    hf_list_del(&cx->node);
    if (!reuse)
        c->going = true;
    /* The slot is free inside on_end. */
    c->exchange_n--;
    if (cx->ops->on_end)
        cx->ops->on_end(cx);
    c->exchange_n++;
    hf_cx_free(cx);
    if (!reuse && !c->done)
        hf_client_die(c, 0);
}

/* Returns the bytes used; less than n: the exchange is paused. */
static size_t feed(struct hf_client *c, const char *p, size_t n)
{
    size_t i = 0;
    for (;;) {
        struct hf_cx *cx = current(c);
        int r = 0;
        if (c->closing || !cx)
            return i;
        if (cx->mode == HF_CX_DONE && !cx->paused) {
            complete(cx, i < n);
            return n;
        }
        if (cx->paused || i == n)
            return i;
        if (cx->mode == HF_CX_HEAD)
            i += feed_head(cx, p + i, n - i, &r);
        else if (cx->mode == HF_CX_CHUNKED)
            i += feed_chunked(cx, p + i, n - i, &r);
        else
            i += feed_plain(cx, p + i, n - i);
        if (r < 0)
            hf_client_die(c, r);
    }
}

void hf_h1_input(struct hf_client *c, const char *p, size_t n)
{
    if (!current(c)) {
        hf_client_die(c, -EBADMSG); /* nobody asked */
        return;
    }
    size_t used = c->in.n ? 0 : feed(c, p, n);
    if (c->closing || c->done)
        return;
    int r = used < n ? hf_buf_add(&c->in, p + used, n - used) : 0;
    if (r < 0)
        hf_client_die(c, r);
    hf_client_update_reading(c);
}

void hf_h1_eof(struct hf_client *c)
{
    struct hf_cx *cx = current(c);
    if (!cx) {
        hf_client_die(c, 0);
        return;
    }
    if (c->in.n || cx->paused)
        return; /* looked at again once the exchange goes on */
    if (cx->mode == HF_CX_EOF) {
        cx->mode = HF_CX_DONE;
        complete(cx, false);
        return;
    }
    hf_client_die(c, -ECONNRESET);
}

static void drained(struct hf_client *c)
{
    struct hf_cx *cx = current(c);
    if (!cx || !cx->want_drain || hf_outq_len(&c->out) > HF_CLIENT_QUEUE_LOW)
        return;
    cx->want_drain = false;
    if (cx->ops->on_drain)
        cx->ops->on_drain(cx);
}

void hf_h1_kick(struct hf_client *c)
{
    drained(c);
    struct hf_cx *cx = current(c);
    if (c->closing || !cx || cx->paused)
        return;
    struct hf_buf in = c->in;
    c->in = HF_BUF_INIT(in.max);
    size_t used = feed(c, in.p ? in.p : "", in.n);
    if (!c->closing && !c->done && used < in.n) {
        hf_buf_consume(&in, used);
        c->in = in;
        in = HF_BUF_INIT(0);
    }
    hf_buf_done(&in);
    if (c->closing || c->done)
        return;
    if (c->eof)
        hf_h1_eof(c);
    hf_client_update_reading(c);
}
