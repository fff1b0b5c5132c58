/* The way back: what the upstream says, checked, re-framed and passed on with one write per read. */
#include <stdio.h>

#include "proxy/proxy_int.h"

#define MSG_BAD "The sandbox answered with something that is not HTTP/1.1"
#define MSG_CLOSED "The sandbox closed the connection without an answer"

static void gather_reset(struct hf_gather *g)
{
    g->n = 0;
    g->total = 0;
}

/* Makes one piece of several small ones: a plain write is cheaper than a gathered one. Returns the number of
 * pieces left in v. */
static unsigned join(struct hf_buf *b, uv_buf_t *v, unsigned n)
{
    bool has_head = v[0].base == b->p; /* there already */
    size_t more = 0;
    for (unsigned i = has_head; i < n; i++)
        more += v[i].len;
    if (!has_head)
        hf_buf_clear(b);
    int r = hf_buf_reserve(b, more);
    if (has_head)
        v[0].base = b->p;
    for (unsigned i = has_head; r == 0 && i < n; i++)
        r = hf_buf_add(b, v[i].base, v[i].len);
    if (r < 0)
        return n;
    v[0] = uv_buf_init(b->p, (unsigned)b->n);
    return 1;
}

/* HTTP/2: the server frames. */
static void emit_stream(struct hf_px *px)
{
    struct hf_gather *g = &px->proxy->gather;
    for (unsigned i = 0; i < g->n; i++)
        (void)hf_res_write(px->req, g->v[i].base, g->v[i].len);
    gather_reset(g);
}

/* Writes head (if it is due), what was gathered, and the end. */
static void emit(struct hf_px *px, bool complete)
{
    if (px->req->stream) {
        emit_stream(px);
        return;
    }
    struct hf_proxy *p = px->proxy;
    struct hf_gather *g = &p->gather;
    uv_buf_t v[HF_PROXY_GATHER + 3];
    char line[32];
    unsigned n = 0;
    if (px->head_pending)
        v[n++] = uv_buf_init(p->scratch.p, (unsigned)p->scratch.n);
    px->head_pending = false;
    if (px->client_chunked && g->total) {
        int len = snprintf(line, sizeof(line), "%zx\r\n", g->total);
        v[n++] = uv_buf_init(line, (unsigned)len);
    }
    memcpy(v + n, g->v, g->n * sizeof(*g->v));
    n += g->n;
    if (px->client_chunked && (g->total || complete)) {
        static const char end[] = "\r\n0\r\n\r\n";
        const char *from = g->total ? end : end + 2;
        v[n++] = uv_buf_init((char *)from, (unsigned)((g->total ? 2u : 0u) + (complete ? 5u : 0u)));
    }
    size_t total = g->total;
    gather_reset(g);
    if (n > 1 && total <= HF_PROXY_COPY_MAX)
        n = join(&p->scratch, v, n);
    if (!n)
        return;
    /* A stream that only flows one way is alive, even if its request never ends. */
    px->req->conn->last_ms = uv_now(p->loop);
    hf_conn_writev(px->req->conn, v, n);
}

static void gather(struct hf_px *px, const char *p, size_t n)
{
    struct hf_gather *g = &px->proxy->gather;
    if (!n)
        return;
    if (g->n == HF_PROXY_GATHER)
        emit(px, false);
    g->v[g->n++] = uv_buf_init((char *)p, (unsigned)n);
    g->total += n;
}

static int on_body(llhttp_t *parser, const char *at, size_t n)
{
    gather(parser->data, at, n);
    return 0;
}

static int on_message_complete(llhttp_t *parser)
{
    struct hf_px *px = parser->data;
    px->mode = HF_PX_DONE;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {.on_body = on_body, .on_message_complete = on_message_complete};

/* The client has left, or was cut. */
static bool gone(const struct hf_req *req)
{
    return req->conn->closing || req->aborted;
}

/* The response is complete: the client's connection and the upstream's go their own ways. */
static void complete(struct hf_px *px)
{
    struct hf_upstream *up = px->up;
    struct hf_req *req = px->req;
    struct hf_conn *c = req->conn;
    px->up = NULL;
    up->px = NULL;
    if (px->head.keep_alive && px->ended && !px->reset && !hf_outq_len(&up->out))
        hf_upstream_put(up);
    else
        hf_upstream_close(up);
    if (gone(req))
        return;
    req->paused = false;
    if (req->stream) {
        hf_res_end(req);
        return;
    }
    req->res_ended = true;
    /* px is gone after this, unless bytes still wait for the client. */
    if (!hf_conn_try_finish(c) || c->in.n || !c->reading)
        hf_conn_mark(c);
}

/* Between two reads: the client may be slow or gone. */
static void slow_down(struct hf_px *px)
{
    if (gone(px->req) || hf_res_queued(px->req) <= hf_proxy_queue_high(px->proxy))
        return;
    hf_res_want_drain(px->req);
    hf_upstream_read(px->up, false);
}

static void after_piece(struct hf_px *px)
{
    if (px->mode == HF_PX_DONE)
        complete(px);
    else
        slow_down(px);
}

static void begin_tunnel(struct hf_px *px, const char *base, const char *rest, size_t n)
{
    struct hf_proxy *p = px->proxy;
    struct hf_upstream *up = px->up;
    struct hf_pool *pool = px->pool;
    hf_auto_buf struct hf_buf early = {0};
    hf_auto_buf struct hf_buf first = HF_BUF_INIT(HF_PROXY_RESPONSE_HEAD_MAX + 1024 + HF_PROXY_READ_SIZE);
    if (!px->req->head.upgrade || !px->ended || !hf_outq_idle(&up->out)) {
        hf_px_fail(px, 502, "The sandbox switched protocols without being asked");
        return;
    }
    int r = hf_put_interim_head(p, px, base);
    r = r < 0 ? r : hf_buf_add(&first, p->scratch.p, p->scratch.n);
    r = r < 0 ? r : hf_buf_add(&first, rest, n);
    if (r < 0) {
        hf_px_fail(px, 502, MSG_BAD);
        return;
    }
    px->up = NULL;
    up->px = NULL;
    struct hf_tls *tls;
    uv_stream_t *client = hf_req_hijack(px->req, &tls, &early); /* px is gone after this */
    if (!client) {
        hf_upstream_close(up);
        return;
    }
    struct hf_end ends[2] = {{client, tls, {first.p, first.n}}, {NULL, NULL, {early.p, early.n}}};
    ends[1].stream = hf_upstream_release(up, &ends[1].tls);
    hf_tunnel_start(pool, p, &ends[0], &ends[1]);
}

/* 100 and 103 go through to clients that can read them. */
static int interim(struct hf_px *px, const char *base)
{
    struct hf_req *req = px->req;
    if (px->head.status == 100) {
        if (!px->expect)
            return 0;
        px->expect = false;
    }
    if (req->stream) {
        req->expect = px->head.status == 100;
        hf_res_continue(req); /* what is not 100 is dropped */
        return 0;
    }
    if (req->head.minor == 0)
        return 0;
    int r = hf_put_interim_head(px->proxy, px, base);
    if (r < 0)
        return r;
    uv_buf_t b = uv_buf_init(px->proxy->scratch.p, (unsigned)px->proxy->scratch.n);
    hf_conn_writev(req->conn, &b, 1);
    return 0;
}

/* A second parser must agree with ours about the framing. */
static int start_llhttp(struct hf_px *px, const char *base)
{
    llhttp_init(&px->parser, HTTP_RESPONSE, &settings);
    px->parser.data = px;
    llhttp_errno_t e = llhttp_execute(&px->parser, base, px->head.pos);
    return e == HPE_OK && px->mode == HF_PX_CHUNKED ? 0 : -EPROTO;
}

/* HTTP/2: the lines become fields. */
static int begin_stream(struct hf_px *px, const char *base)
{
    struct hf_buf *b = &px->proxy->scratch;
    const struct hf_head *h = &px->head;
    uint64_t length = 0;
    int64_t told = h->length >= 0 ? h->length : -1;
    int r = 0;
    struct hf_str text = hf_head_value(h, base, HF_H_CONTENT_LENGTH);
    if (px->for_head) /* the length of what is not sent */
        told = text.p && hf_parse_u64(text, INT64_MAX, &length) == 0 ? (int64_t)length : -1;
    for (uint16_t i = 0; r == 0 && i < h->n; i++) {
        if (hf_put_drops(h, base, &h->hdr[i]))
            continue;
        hf_buf_clear(b);
        r = hf_buf_add(b, base + h->hdr[i].name, h->hdr[i].name_n);
        r = r < 0 ? r : hf_buf_add(b, "", 1);
        r = r < 0 ? r : hf_buf_add(b, base + h->hdr[i].value, h->hdr[i].value_n);
        if (r == 0)
            hf_res_header(px->req, b->p, b->p + h->hdr[i].name_n + 1);
    }
    if (r == 0)
        hf_res_begin(px->req, h->status, told);
    px->answered = r == 0;
    return r;
}

static int final_head(struct hf_px *px, const char *base)
{
    struct hf_head *h = &px->head;
    struct hf_req *req = px->req;
    px->mode = h->length == HF_BODY_CHUNKED     ? HF_PX_CHUNKED
               : h->length == HF_BODY_UNTIL_EOF ? HF_PX_EOF
               : h->length == 0                 ? HF_PX_DONE
                                                : HF_PX_LENGTH;
    px->left = h->length;
    if (px->mode == HF_PX_CHUNKED && start_llhttp(px, base) < 0)
        return -EPROTO;
    if (req->stream)
        return begin_stream(px, base);
    bool no_length = px->mode == HF_PX_CHUNKED || px->mode == HF_PX_EOF;
    px->client_chunked = no_length && req->head.minor == 1;
    /* Without chunks only the close tells where the body ends; and a body that the upstream never asked for
     * may or may not come. */
    if ((no_length && !px->client_chunked) || (px->expect && !px->ended) || req->conn->server->stopping)
        req->keep_alive = false;
    int r = hf_put_response_head(px->proxy, px, base);
    if (r < 0)
        return r;
    px->answered = true;
    px->head_pending = true;
    req->res_started = true;
    return 0;
}

static void body(struct hf_px *px, const char *p, size_t n)
{
    size_t used = 0;
    if (px->mode == HF_PX_LENGTH) {
        used = (size_t)HF_MIN((uint64_t)px->left, n);
        px->left -= (int64_t)used;
        gather(px, p, used);
        if (!px->left)
            px->mode = HF_PX_DONE;
    } else if (px->mode == HF_PX_EOF) {
        used = n;
        gather(px, p, n);
    } else if (px->mode == HF_PX_CHUNKED && n) {
        llhttp_errno_t e = llhttp_execute(&px->parser, p, n);
        used = e == HPE_PAUSED ? (size_t)(llhttp_get_error_pos(&px->parser) - p) : n;
        if (e != HPE_OK && e != HPE_PAUSED) {
            gather_reset(&px->proxy->gather);
            hf_px_fail(px, 502, MSG_BAD);
            return;
        }
    }
    if (used < n)
        px->reset = true; /* more than was asked for */
    if (gone(px->req)) {
        gather_reset(&px->proxy->gather);
        return;
    }
    emit(px, px->mode == HF_PX_DONE);
    after_piece(px);
}

/* Feeds the head scanner. Returns the head's bytes when it is complete, else NULL. */
static const char *feed_head(struct hf_px *px, const char *p, size_t n, size_t *ret_used, int *ret_r)
{
    enum hf_head_result res = hf_head_feed(&px->head, p, n, ret_used);
    *ret_r = res == HF_HEAD_BAD ? -EPROTO : 0;
    if (res == HF_HEAD_DONE && !px->head_buf.n)
        return p;
    if (res != HF_HEAD_BAD)
        *ret_r = hf_buf_add(&px->head_buf, p, *ret_used);
    return res == HF_HEAD_DONE && *ret_r == 0 ? px->head_buf.p : NULL;
}

void hf_px_response(struct hf_px *px, const char *p, size_t n)
{
    px->last_ms = uv_now(px->proxy->loop);
    while (px->mode == HF_PX_HEAD) {
        size_t used;
        int r;
        const char *base = feed_head(px, p, n, &used, &r);
        p += used;
        n -= used;
        if (base && r == 0)
            r = hf_head_check_response(&px->head, base, px->for_head);
        if (base && r == 0 && px->head.status == 101) {
            begin_tunnel(px, base, p, n);
            return;
        }
        if (base && r == 0)
            r = px->head.status < 200 ? interim(px, base) : final_head(px, base);
        if (r < 0) {
            px->head_pending = false;
            hf_px_fail(px, 502, MSG_BAD);
            return;
        }
        if (base && px->mode == HF_PX_HEAD) {
            hf_head_init(&px->head, true);
            hf_buf_clear(&px->head_buf);
        }
        if (!base || (px->mode == HF_PX_HEAD && (!n || gone(px->req)))) {
            slow_down(px); /* interim responses count as well */
            return;
        }
    }
    body(px, p, n);
}

void hf_px_response_end(struct hf_px *px, int status)
{
    if (px->mode == HF_PX_EOF && status == UV_EOF) {
        px->mode = HF_PX_DONE;
        px->reset = true;
        emit(px, true);
        complete(px);
        return;
    }
    if (px->answered)
        hf_px_fail(px, 502, MSG_CLOSED); /* a cut, never a clean end */
    else
        hf_px_upstream_failed(px, MSG_CLOSED);
}
