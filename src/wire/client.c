/* The client's socket and life; what is the same in both versions of HTTP. */
#include "wire/client_int.h"

#include <sys/socket.h>

static void enter(struct hf_client *c)
{
    c->depth++;
}

static void maybe_free(struct hf_client *c)
{
    if (c->depth || c->handles || !c->done)
        return;
    nghttp2_session_del(c->h2);
    hf_tls_free(c->tls);
    hf_buf_done(&c->in);
    hf_buf_done(&c->plain);
    hf_outq_done(&c->out);
    free(c);
}

static void free_zombies(struct hf_client *c)
{
    while (!hf_list_empty(&c->zombies)) {
        struct hf_cx *cx = hf_list_entry(c->zombies.next, struct hf_cx, node);
        hf_list_del(&cx->node);
        free(cx);
    }
}

static void leave(struct hf_client *c)
{
    if (--c->depth)
        return;
    free_zombies(c);
    maybe_free(c);
}

void hf_client_going(struct hf_client *c)
{
    c->going = true;
    if (c->told || c->done)
        return;
    c->told = true;
    if (c->gone)
        c->gone(c->gone_arg);
}

static void on_kick_closed(uv_handle_t *h)
{
    struct hf_client *c = h->data;
    c->handles--;
    maybe_free(c);
}

/* An exchange that the end of the connection breaks: not one whose whole response waits for its user. */
static struct hf_cx *broken_one(const struct hf_client *c)
{
    hf_list_foreach(it, &c->exchanges)
    {
        struct hf_cx *cx = hf_list_entry(it, struct hf_cx, node);
        if (!cx->fin)
            return cx;
    }
    return NULL;
}

static void on_stream_closed(uv_handle_t *h)
{
    struct hf_client *c = h->data;
    free(h);
    c->stream = NULL;
    c->handles--;
    enter(c);
    bool unsent = c->write_failed || (c->tls && !hf_tls_ready(c->tls));
    for (struct hf_cx *cx = broken_one(c); cx; cx = broken_one(c))
        hf_cx_failed(cx, c->broken, unsent);
    hf_client_going(c);
    leave(c);
}

void hf_client_die(struct hf_client *c, int r)
{
    if (c->closing)
        return;
    c->closing = c->going = true;
    c->broken = r;
    if (c->tls && (r == 0 || r == -ECANCELED))
        (void)hf_outq_tls_close(&c->out);
    uv_close((uv_handle_t *)c->stream, on_stream_closed);
}

static void on_kick(uv_timer_t *t)
{
    struct hf_client *c = t->data;
    if (c->closing && !c->h2)
        return;
    enter(c);
    if (c->h2)
        hf_h2c_kick(c);
    else
        hf_h1_kick(c);
    leave(c);
}

void hf_client_kick(struct hf_client *c)
{
    if ((!c->closing || c->h2) && !c->done)
        (void)uv_timer_start(&c->kick, on_kick, 0, 0);
}

/* A peer that takes no more may still have an answer under way: reading tells. */
void hf_client_flush(struct hf_client *c)
{
    if (c->closing || c->write_failed)
        return;
    int r = hf_outq_flush(&c->out);
    if (r < 0) {
        c->write_failed = true;
        c->going = true;
        if (!c->reading)
            hf_client_die(c, r);
    }
}

static void on_written(void *owner, int status)
{
    struct hf_client *c = owner;
    if (c->closing)
        return;
    if (status < 0) {
        c->write_failed = c->going = true;
        if (!c->reading)
            hf_client_die(c, status);
        return;
    }
    enter(c);
    if (c->h2)
        hf_h2c_kick(c);
    else
        hf_h1_kick(c);
    leave(c);
}

/* ---- reading ---- */

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    *buf = uv_buf_init(hf_xmalloc(HF_CLIENT_READ_SIZE), HF_CLIENT_READ_SIZE);
}

static void input(struct hf_client *c, const char *p, size_t n)
{
    if (c->h2)
        hf_h2c_input(c, p, n);
    else
        hf_h1_input(c, p, n);
}

/* clean: it was told, or needs no telling. */
static void at_eof(struct hf_client *c, bool clean)
{
    c->eof = true;
    hf_client_update_reading(c);
    if (!clean)
        hf_client_die(c, -EPROTO);
    else if (c->h2)
        hf_client_die(c, -ECONNRESET);
    else
        hf_h1_eof(c);
}

static void input_tls(struct hf_client *c, const char *p, size_t n)
{
    hf_buf_clear(&c->plain);
    int r = hf_outq_tls_feed(&c->out, p, n, &c->plain);
    struct hf_buf plain = c->plain;
    c->plain = HF_BUF_INIT(plain.max);
    if (plain.n)
        input(c, plain.p, plain.n);
    hf_buf_done(&plain); /* an idle connection keeps none */
    if (c->closing || c->done)
        return;
    if (r < 0)
        hf_client_die(c, r);
    else if (r == 1)
        at_eof(c, true);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct hf_client *c = s->data;
    hf_auto_free char *base = buf->base;
    enter(c);
    if (n > 0 && c->tls)
        input_tls(c, base, (size_t)n);
    else if (n > 0)
        input(c, base, (size_t)n);
    else if (n == UV_EOF)
        at_eof(c, !c->tls); /* TLS ends with close_notify, or was cut */
    else if (n < 0)
        hf_client_die(c, (int)n);
    leave(c);
}

void hf_client_update_reading(struct hf_client *c)
{
    if (c->closing || !c->stream)
        return;
    bool want = !c->eof && !c->in.n;
    if (!c->h2 && !hf_list_empty(&c->exchanges))
        want = want && !hf_list_entry(c->exchanges.next, struct hf_cx, node)->paused;
    if (want == c->reading)
        return;
    c->reading = want;
    if (want)
        (void)uv_read_start(c->stream, on_alloc, on_read);
    else
        (void)uv_read_stop(c->stream);
}

/* ---- life ---- */

struct hf_client *hf_client_new(uv_loop_t *loop, uv_stream_t *stream, struct hf_tls *tls, bool h2,
                                void (*gone)(void *arg), void *arg)
{
    struct hf_client *c = hf_new(struct hf_client);
    c->loop = loop;
    c->stream = stream;
    c->tls = tls;
    c->gone = gone;
    c->gone_arg = arg;
    c->in = HF_BUF_INIT(2 * HF_CLIENT_READ_SIZE);
    c->plain = HF_BUF_INIT(2 * HF_CLIENT_READ_SIZE);
    hf_list_init(&c->exchanges);
    hf_list_init(&c->zombies);
    stream->data = c;
    hf_outq_init(&c->out, stream, on_written, c);
    if (tls)
        hf_outq_set_tls(&c->out, tls);
    (void)uv_timer_init(loop, &c->kick);
    c->kick.data = c;
    c->handles = 2;
    int r = h2 ? hf_h2c_start(c) : 0;
    if (r == 0 && tls && !hf_tls_ready(tls))
        r = hf_tls_start(tls, &c->out.raw);
    if (r < 0)
        hf_client_die(c, r);
    hf_client_flush(c);
    hf_client_update_reading(c);
    return c;
}

void hf_client_close(struct hf_client *c)
{
    if (c->done)
        return;
    c->done = true;
    enter(c);
    while (!hf_list_empty(&c->exchanges))
        hf_cx_failed(hf_list_entry(c->exchanges.next, struct hf_cx, node), -ECANCELED, false);
    if (c->h2 && !c->closing) {
        (void)nghttp2_session_terminate_session(c->h2, NGHTTP2_NO_ERROR);
        hf_h2c_kick(c);
    }
    hf_client_die(c, -ECANCELED);
    uv_close((uv_handle_t *)&c->kick, on_kick_closed);
    leave(c);
}

void hf_client_feed(struct hf_client *c, const void *p, size_t n)
{
    if (c->closing || c->done || !n)
        return;
    enter(c);
    input(c, p, n);
    leave(c);
}

const char *hf_client_tls_error(const struct hf_client *c)
{
    return c->tls ? hf_tls_error(c->tls) : "";
}

struct hf_client *hf_cx_client(const struct hf_cx *cx)
{
    return cx->client;
}

bool hf_client_free_slot(const struct hf_client *c)
{
    if (c->going || c->done || c->closing)
        return false;
    bool shaking = c->tls && !hf_tls_ready(c->tls);
    return c->h2 ? hf_h2c_free_slot(c) : !c->exchange_n && (shaking || hf_outq_idle(&c->out));
}

bool hf_client_h2(const struct hf_client *c)
{
    return c->h2;
}

/* ---- exchanges ---- */

bool hf_field_is_hop(struct hf_str name)
{
    static const char *const names[] = {"connection",        "keep-alive", "proxy-connection",
                                        "transfer-encoding", "upgrade",    "http2-settings"};
    for (size_t i = 0; i < HF_ARRAY_LEN(names); i++)
        if (hf_str_caseeq(name, names[i]))
            return true;
    return false;
}

static bool target_ok(struct hf_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] <= ' ' || (unsigned char)s.p[i] >= 0x7f || s.p[i] == '#')
            return false;
    return s.n > 0;
}

bool hf_cx_req_ok(const struct hf_cx_req *req)
{
    bool connect = hf_str_eq(req->method, "CONNECT");
    if (!hf_is_token(req->method) || !target_ok(req->authority) || (!connect && !target_ok(req->path)))
        return false;
    if (!connect && req->path.p[0] != '/' && !hf_str_eq(req->path, "*"))
        return false;
    if (req->upgrade && !hf_is_token(hf_str_c(req->upgrade)))
        return false;
    for (size_t i = 0; i < req->n_fields; i++)
        if (!hf_is_token(req->fields[i].name) || !hf_is_header_value(req->fields[i].value))
            return false;
    return true;
}

struct hf_cx *hf_cx_alloc(struct hf_client *c, const struct hf_cx_req *req, const struct hf_cx_ops *ops,
                          void *data)
{
    struct hf_cx *cx = hf_new(struct hf_cx);
    cx->client = c;
    cx->ops = ops;
    cx->data = data;
    cx->left = req->length;
    cx->unsent = true;
    cx->for_head = hf_str_eq(req->method, "HEAD");
    cx->connect = hf_str_eq(req->method, "CONNECT");
    cx->upgrade = req->upgrade;
    cx->head_buf = cx->fields = HF_BUF_INIT(HF_CLIENT_HEAD_MAX);
    cx->trailers = HF_BUF_INIT(HF_CLIENT_TRAILERS_MAX);
    cx->body = HF_BUF_INIT(HF_OUTQ_MAX);
    cx->held = HF_BUF_INIT(2 * HF_CLIENT_WINDOW);
    hf_head_init(&cx->head, true);
    hf_list_add_tail(&c->exchanges, &cx->node);
    c->exchange_n++;
    return cx;
}

void hf_cx_free(struct hf_cx *cx)
{
    hf_list_del(&cx->node);
    cx->client->exchange_n--;
    hf_buf_done(&cx->head_buf);
    hf_buf_done(&cx->trailers);
    hf_buf_done(&cx->fields);
    hf_buf_done(&cx->body);
    hf_buf_done(&cx->held);
    if (cx->client->depth)
        hf_list_add_tail(&cx->client->zombies, &cx->node); /* a parser inside it may be running */
    else
        free(cx);
}

void hf_cx_failed(struct hf_cx *cx, int r, bool unsent)
{
    struct hf_client *c = cx->client;
    hf_list_del(&cx->node);
    if (c->h2)
        hf_h2c_cancel(cx);
    if (cx->ops->on_fail)
        cx->ops->on_fail(cx, r ? r : -ECONNRESET, cx->answered, cx->unsent && unsent);
    hf_cx_free(cx);
}

size_t hf_fields_unpack(const struct hf_buf *b, struct hf_field out[HF_CLIENT_HEADERS_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < b->n && n < HF_CLIENT_HEADERS_MAX;) {
        out[n].name = hf_str_c(b->p + i);
        i += out[n].name.n + 1;
        out[n].value = i < b->n ? hf_str_c(b->p + i) : HF_STR("");
        i += out[n].value.n + 1;
        n += !hf_field_is_hop(out[n].name);
    }
    return n;
}

struct hf_cx *hf_cx_new(struct hf_client *c, const struct hf_cx_req *req, const struct hf_cx_ops *ops,
                        void *data)
{
    if (!hf_client_free_slot(c) || !hf_cx_req_ok(req))
        return NULL;
    struct hf_cx *cx = hf_cx_alloc(c, req, ops, data);
    cx->ended = req->length == 0;
    int r = c->h2 ? hf_h2c_begin(cx, req) : hf_h1_begin(cx, req);
    if (r == 0)
        return cx;
    hf_cx_free(cx);
    return NULL;
}

void *hf_cx_data(const struct hf_cx *cx)
{
    return cx->data;
}

int hf_cx_write(struct hf_cx *cx, const void *p, size_t n)
{
    struct hf_client *c = cx->client;
    if (cx->ended || c->closing || c->write_failed)
        return 0;
    if (cx->left >= 0) {
        n = (size_t)HF_MIN((uint64_t)cx->left, n);
        cx->left -= (int64_t)n;
    }
    if (!n)
        return 0;
    if (c->h2)
        hf_h2c_write(cx, p, n);
    else
        hf_h1_write(cx, p, n);
    size_t queued = c->h2 ? cx->body.n - cx->body_off : hf_outq_len(&c->out);
    cx->want_drain = queued > HF_CLIENT_QUEUE_HIGH;
    return cx->want_drain;
}

void hf_cx_trailers(struct hf_cx *cx, const struct hf_field *f, size_t n)
{
    struct hf_client *c = cx->client;
    if (cx->ended || c->closing)
        return;
    cx->ended = true;
    if (cx->left > 0) { /* a short body must not look complete */
        if (c->h2)
            nghttp2_submit_rst_stream(c->h2, NGHTTP2_FLAG_NONE, cx->id, NGHTTP2_CANCEL);
        else
            hf_client_die(c, -EPROTO);
        hf_client_kick(c);
        return;
    }
    if (c->h2)
        hf_h2c_end(cx, f, n);
    else
        hf_h1_end(cx, f, n);
}

void hf_cx_end(struct hf_cx *cx)
{
    hf_cx_trailers(cx, NULL, 0);
}

void hf_cx_pause(struct hf_cx *cx)
{
    cx->paused = true;
    if (!cx->client->h2 && !cx->client->depth)
        hf_client_update_reading(cx->client);
}

void hf_cx_resume(struct hf_cx *cx)
{
    if (!cx->paused)
        return;
    cx->paused = false;
    hf_client_kick(cx->client);
}

void hf_cx_cancel(struct hf_cx *cx)
{
    struct hf_client *c = cx->client;
    if (c->h2)
        hf_h2c_cancel(cx);
    hf_cx_free(cx);
    if (!c->h2)
        hf_client_die(c, -ECANCELED);
    else
        hf_client_kick(c);
}

uv_stream_t *hf_cx_take(struct hf_cx *cx, struct hf_tls **ret_tls, struct hf_buf *ret_leftover)
{
    struct hf_client *c = cx->client;
    uv_stream_t *s = c->stream;
    if (c->reading)
        (void)uv_read_stop(s);
    s->data = NULL;
    c->stream = NULL;
    c->reading = false;
    c->closing = c->done = true;
    c->handles--;
    *ret_tls = hf_take_ptr(c->tls);
    *ret_leftover = c->in;
    c->in = HF_BUF_INIT(0);
    hf_cx_free(cx);
    uv_close((uv_handle_t *)&c->kick, on_kick_closed);
    return s;
}
