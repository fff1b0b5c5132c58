/* Connections to origins: the guarded dial, the policy's proxy if it has one, TLS.
 *
 * A handshake reads no byte further than its own records: what the origin says next belongs to the client
 * that takes the connection. */
#include "egress/l7_int.h"

#define RECORD_HEAD 5u
#define RECORD_MAX (16384u + 256u) /* of ciphertext, RFC 8446 5.2 */

enum phase { UP_DIAL, UP_PROXY, UP_TLS, UP_DONE };

struct hf_l7_up {
    struct hf_l7_conn *c; /* keeps a reference */
    hf_l7_up_cb cb;       /* NULL: cancelled */
    void *arg;
    enum phase phase;
    struct hf_policy *policy; /* a reference: of the proxy's settings */
    struct hf_guard_dial *dial;
    uv_stream_t *stream;
    struct hf_tls *tls;
    bool want_tls, h2;
    bool ready; /* only what is still to be written is missing */
    unsigned alpn;
    char host[HF_L7_HOST_MAX];
    struct hf_l7_proxy *proxy;
    struct hf_outq out;
    uv_timer_t timer;
    size_t n, want; /* of record */
    unsigned char record[RECORD_HEAD + RECORD_MAX];
};

static void freed(uv_handle_t *h)
{
    struct hf_l7_up *u = h->data;
    struct hf_l7_conn *c = u->c;
    hf_outq_done(&u->out);
    hf_tls_free(u->tls);
    hf_policy_unref(u->policy);
    if (u->proxy)
        explicit_bzero(u->proxy, sizeof *u->proxy);
    free(u->proxy);
    free(u);
    hf_l7_unref(c);
}

static void timer_end(struct hf_l7_up *u)
{
    uv_close((uv_handle_t *)&u->timer, freed);
}

static void stream_closed(uv_handle_t *h)
{
    struct hf_l7_up *u = h->data;
    free(h);
    timer_end(u);
}

/* Ends it without telling. */
static void dispose(struct hf_l7_up *u)
{
    u->phase = UP_DONE;
    u->cb = NULL;
    if (u->dial)
        hf_dial_cancel(hf_take_ptr(u->dial));
    (void)uv_timer_stop(&u->timer);
    uv_stream_t *s = hf_take_ptr(u->stream);
    if (!s) {
        timer_end(u);
        return;
    }
    s->data = u;
    if (s->type != UV_TCP || uv_tcp_close_reset((uv_tcp_t *)s, stream_closed) < 0)
        uv_close((uv_handle_t *)s, stream_closed);
}

void hf_l7_up_cancel(struct hf_l7_up *u)
{
    if (u && u->phase != UP_DONE)
        dispose(u);
}

static void fail(struct hf_l7_up *u, const struct hf_err *err)
{
    struct hf_l7_link none = {0};
    hf_l7_up_cb cb = u->cb;
    void *arg = u->arg;
    dispose(u);
    if (cb)
        cb(arg, &none, err);
}

static void fail_with(struct hf_l7_up *u, int r, const char *what)
{
    struct hf_err err = {0};
    (void)hf_err_set(&err, r, "%s", what);
    fail(u, &err);
}

static void finish(struct hf_l7_up *u)
{
    uv_read_stop(u->stream);
    u->ready = true;
    if (!hf_outq_idle(&u->out))
        return; /* on_written comes here again */
    struct hf_l7_link k = {.stream = hf_take_ptr(u->stream), .tls = hf_take_ptr(u->tls)};
    k.h2 = k.tls ? hf_tls_alpn(k.tls) == HF_ALPN_H2 : u->h2;
    hf_l7_up_cb cb = u->cb;
    void *arg = u->arg;
    dispose(u);
    cb(arg, &k, NULL);
}

static void on_written(void *owner, int status)
{
    struct hf_l7_up *u = owner;
    if (u->phase == UP_DONE)
        return;
    if (status < 0)
        fail_with(u, status, "the origin closed the connection during the handshake");
    else if (u->ready)
        finish(u);
}

/* ---- TLS ---- */

static struct hf_tls_ctx *client_ctx(struct hf_l7 *l, struct hf_err *err)
{
    const char *ca = l->d->ca_file ? l->d->ca_file : "";
    if (l->up_ctx && strcmp(l->up_ca, ca) == 0)
        return l->up_ctx;
    struct hf_tls_ctx *ctx;
    if (hf_tls_client_ctx(*ca ? ca : NULL, true, HF_ALPN_H2 | HF_ALPN_HTTP1, &ctx, err) < 0)
        return NULL;
    hf_tls_ctx_unref(l->up_ctx);
    free(l->up_ca);
    l->up_ctx = ctx;
    l->up_ca = hf_xstrdup(ca);
    return ctx;
}

static int send_buf(struct hf_l7_up *u, struct hf_buf *b)
{
    uv_buf_t v = uv_buf_init(b->p, (unsigned)b->n);
    int r = b->n ? hf_outq_writev(&u->out, &v, 1) : 0;
    hf_l7_wipe(b);
    return r;
}

static void tls_begin(struct hf_l7_up *u)
{
    struct hf_err err = {0};
    struct hf_buf out = HF_BUF_INIT(65536);
    struct hf_tls_ctx *ctx = client_ctx(u->c->l7, &err);
    if (!ctx) {
        fail(u, &err);
        return;
    }
    u->phase = UP_TLS;
    u->n = 0;
    u->want = RECORD_HEAD;
    u->tls = hf_tls_connect(ctx, u->host, u->alpn);
    int r = hf_tls_start(u->tls, &out);
    if (r == 0)
        r = send_buf(u, &out);
    hf_buf_done(&out);
    if (r < 0)
        fail_with(u, r, "the handshake with the origin could not begin");
}

/* One whole record is there. */
static void tls_record(struct hf_l7_up *u)
{
    struct hf_buf plain = HF_BUF_INIT(65536), out = HF_BUF_INIT(65536);
    int r = hf_tls_feed(u->tls, u->record, u->n, &plain, &out);
    int w = send_buf(u, &out);
    bool odd = plain.n > 0; /* cannot be: data has records of its own */
    hf_buf_done(&plain);
    u->n = 0;
    u->want = RECORD_HEAD;
    struct hf_err err = {0};
    if (r != 0 || odd) {
        const char *why = hf_tls_error(u->tls);
        (void)hf_err_set(&err, r < 0 ? r : -EPROTO, "TLS with the origin failed: %s",
                         *why ? why : "it closed the connection");
        fail(u, &err);
    } else if (w < 0) {
        fail_with(u, w, "the origin closed the connection during the handshake");
    } else if (hf_tls_ready(u->tls)) {
        finish(u);
    }
}

static void tls_bytes(struct hf_l7_up *u, size_t n)
{
    u->n += n;
    if (u->n == RECORD_HEAD && u->want == RECORD_HEAD) {
        u->want += (size_t)u->record[3] << 8 | u->record[4];
        if (u->want > sizeof u->record) {
            fail_with(u, -EPROTO, "TLS with the origin failed: it does not speak TLS");
            return;
        }
    }
    if (u->n == u->want && u->n >= RECORD_HEAD)
        tls_record(u);
}

/* ---- the proxy ---- */

static void next_step(struct hf_l7_up *u)
{
    if (u->want_tls)
        tls_begin(u);
    else
        finish(u);
}

static void proxy_bytes(struct hf_l7_up *u, const void *p, size_t n)
{
    struct hf_buf out = HF_BUF_INIT(4096);
    struct hf_err err = {0};
    int r = hf_l7_proxy_feed(u->proxy, p, n, &out, &err);
    int w = send_buf(u, &out);
    hf_buf_done(&out);
    if (r < 0)
        fail(u, &err);
    else if (w < 0)
        fail_with(u, w, "the egress proxy closed the connection");
    else if (r == 1)
        next_step(u);
}

/* ---- the socket ---- */

static void alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf)
{
    struct hf_l7_up *u = h->data;
    if (u->phase == UP_PROXY)
        *buf = uv_buf_init(u->c->l7->read_buf, (unsigned)hf_l7_proxy_want(u->proxy));
    else
        *buf = uv_buf_init((char *)u->record + u->n, (unsigned)(u->want - u->n));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct hf_l7_up *u = s->data;
    if (n == 0)
        return;
    if (n < 0)
        fail_with(u, n == UV_EOF ? -ECONNRESET : (int)n,
                  u->phase == UP_PROXY ? "the egress proxy closed the connection"
                                       : "the origin closed the connection during the handshake");
    else if (u->phase == UP_PROXY)
        proxy_bytes(u, buf->base, (size_t)n);
    else if (u->phase == UP_TLS)
        tls_bytes(u, (size_t)n);
}

static void proxy_begin(struct hf_l7_up *u)
{
    struct hf_buf out = HF_BUF_INIT(4096);
    char text[HF_ADDR_TEXT];
    hf_addr_format(&u->c->dst, text);
    u->phase = UP_PROXY;
    u->proxy = hf_new(struct hf_l7_proxy);
    int r = hf_l7_proxy_start(u->proxy, &u->policy->proxy, u->host[0] ? u->host : text, u->c->port, &out);
    if (r == 0)
        r = send_buf(u, &out);
    hf_l7_wipe(&out);
    if (r < 0)
        fail_with(u, r, "the egress proxy could not be asked");
}

static void on_timeout(uv_timer_t *t)
{
    fail_with(t->data, -ETIMEDOUT, "the origin did not answer in time");
}

static void on_dialed(void *arg, uv_stream_t *stream, const struct hf_addr *addr, const struct hf_err *err)
{
    struct hf_l7_up *u = arg;
    u->dial = NULL;
    if (!stream) {
        fail(u, err);
        return;
    }
    u->stream = stream;
    stream->data = u;
    hf_outq_init(&u->out, stream, on_written, u);
    bool proxied = u->policy->has_proxy;
    if (!proxied && !u->want_tls) {
        finish(u);
        return;
    }
    (void)uv_timer_start(&u->timer, on_timeout, HF_L7_UP_MS, 0);
    int r = uv_read_start(stream, alloc, on_read);
    if (r < 0)
        fail_with(u, r, "the connection to the origin can't be read");
    else if (proxied)
        proxy_begin(u);
    else
        tls_begin(u);
}

/* A proxy that was given as a private address is dialled if allow_out covers it too. */
static void dial_proxy(struct hf_l7_up *u)
{
    const struct hf_egress_proxy *x = &u->policy->proxy;
    struct hf_addr a;
    unsigned flags = 0;
    if (hf_addr_parse(hf_str_c(x->host), &a) == 0)
        flags = hf_l7_dial_flags(u->policy, &a, false);
    u->dial = hf_dial_host(u->c->l7->d->loop, x->host, x->port, flags, on_dialed, u);
}

struct hf_l7_up *hf_l7_up(struct hf_l7_conn *c, const struct hf_l7_up_req *q, hf_l7_up_cb cb, void *arg)
{
    struct hf_l7_up *u = hf_new(struct hf_l7_up);
    u->c = c;
    u->cb = cb;
    u->arg = arg;
    u->want_tls = q->tls;
    u->h2 = q->h2;
    u->alpn = (q->h2 ? HF_ALPN_H2 : 0u) | (q->h1 ? HF_ALPN_HTTP1 : 0u);
    memcpy(u->host, q->host, strnlen(q->host, sizeof u->host - 1));
    u->policy = hf_policy_ref(c->box->policy);
    c->handles++;
    (void)uv_timer_init(c->l7->d->loop, &u->timer);
    u->timer.data = u;
    hf_outq_init(&u->out, NULL, on_written, u);
    if (u->policy->has_proxy)
        dial_proxy(u);
    else
        u->dial = hf_dial_addrs(c->l7->d->loop, &c->dst, 1, c->port,
                                hf_l7_dial_flags(u->policy, &c->dst, q->bound), on_dialed, u);
    return u;
}
