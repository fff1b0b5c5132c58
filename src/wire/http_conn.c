/* One connection: input, the order of its exchanges, timeouts and its end. */
#include "wire/http_int.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/log.h"

static const struct hf_req_ops no_ops;

/* ---- output ---- */

static void output_failed(struct hf_conn *c, int r)
{
    if (r == -EMSGSIZE)
        hf_log_warn("response queue over its limit, connection cut", "queued=%zu", hf_conn_queued(c));
    hf_conn_close(c, r == -EMSGSIZE);
}

void hf_conn_append(struct hf_conn *c, const void *p, size_t n)
{
    int r = c->closing ? 0 : hf_outq_add(&c->out, p, n);
    if (r < 0)
        output_failed(c, r);
    hf_conn_mark(c);
}

void hf_conn_flush(struct hf_conn *c)
{
    int r = c->closing ? 0 : hf_outq_flush(&c->out);
    if (r < 0)
        output_failed(c, r);
}

void hf_conn_writev(struct hf_conn *c, const uv_buf_t *bufs, unsigned n)
{
    int r = c->closing ? 0 : hf_outq_writev(&c->out, bufs, n);
    if (r < 0)
        output_failed(c, r);
}

void hf_conn_write_take(struct hf_conn *c, char *p, size_t n)
{
    if (c->closing) {
        free(p);
        return;
    }
    int r = hf_outq_take(&c->out, p, n);
    if (r < 0)
        output_failed(c, r);
}

static void on_written(void *owner, int status)
{
    struct hf_conn *c = owner;
    if (c->closing)
        return;
    if (status < 0) {
        output_failed(c, status);
        return;
    }
    hf_conn_enter(c);
    c->last_ms = uv_now(c->server->loop);
    struct hf_req *r = c->req;
    if (r && r->want_drain && !r->closed && hf_conn_queued(c) <= HF_HTTP_WRITE_LOW) {
        r->want_drain = false;
        if (r->ops->on_drain)
            r->ops->on_drain(r);
    }
    if (!c->closing)
        hf_conn_settle(c);
    hf_conn_leave(c);
}

/* ---- life ---- */

struct hf_conn *hf_conn_new(struct hf_http_server *s, uv_stream_t *stream, int tag, bool is_tcp)
{
    struct hf_conn *c = hf_new(struct hf_conn);
    c->server = s;
    c->stream = stream;
    c->tag = tag;
    c->is_tcp = is_tcp;
    c->fresh = true;
    c->in.max = HF_HTTP_PIPELINE_MAX + 2 * HF_HTTP_READ_SIZE;
    hf_outq_init(&c->out, stream, on_written, c);
    c->last_ms = uv_now(s->loop);
    hf_list_init(&c->dirty);
    hf_list_add_tail(&s->conns, &c->node);
    s->conn_n++;
    if (stream)
        stream->data = c;
    return c;
}

void hf_conn_free(struct hf_conn *c)
{
    if (c->req) {
        hf_req_finish(c->req);
        hf_server_req_put(c->req);
    }
    if (c->h2)
        c->server->more->h2_free(c);
    hf_list_del(&c->dirty);
    hf_list_del(&c->node);
    c->server->conn_n--;
    if (c->phase == HF_CONN_SHAKE)
        c->server->shaking_n--;
    hf_buf_done(&c->in);
    hf_outq_done(&c->out);
    if (c->tls)
        c->server->more->tls_free(c->tls);
    if (c->on_gone)
        c->on_gone(c->data);
    free(c->peer);
    free(c);
}

static void on_closed(uv_handle_t *h)
{
    struct hf_conn *c = h->data;
    struct hf_http_server *s = c->server;
    hf_conn_free(c);
    free(h);
    hf_server_handle_closed(s);
}

void hf_conn_close(struct hf_conn *c, bool reset)
{
    if (c->closing)
        return;
    if (c->req)
        c->req->aborted = !c->req->res_ended || hf_conn_queued(c);
    if (c->h2)
        c->server->more->h2_aborted(c);
    c->closing = true;
    hf_list_del(&c->dirty);
    if (!c->stream)
        return;
    if (c->tls && !reset)
        c->server->more->tls_bye(c);
    if (reset && c->is_tcp) {
        struct linger l = {1, 0};
        uv_os_fd_t fd;
        if (uv_fileno((uv_handle_t *)c->stream, &fd) == 0)
            (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
    }
    uv_close((uv_handle_t *)c->stream, on_closed);
}

void hf_conn_enter(struct hf_conn *c)
{
    c->depth++;
}

void hf_conn_leave(struct hf_conn *c)
{
    if (--c->depth || !c->orphan)
        return;
    struct hf_http_server *s = c->server;
    hf_conn_free(c);
    hf_server_handle_closed(s);
}

const char *hf_conn_peer(struct hf_conn *c)
{
    if (c->peer)
        return c->peer;
    char text[INET6_ADDRSTRLEN] = "?";
    struct sockaddr_storage a;
    int len = sizeof(a);
    if (!c->is_tcp)
        (void)snprintf(text, sizeof(text), "unix");
    else if (c->stream && uv_tcp_getpeername((uv_tcp_t *)c->stream, (struct sockaddr *)&a, &len) == 0)
        (void)uv_ip_name((struct sockaddr *)&a, text, sizeof(text));
    bool mapped = hf_str_starts(hf_str_c(text), "::ffff:") && strchr(text, '.');
    c->peer = hf_xstrdup(mapped ? text + 7 : text);
    return c->peer;
}

void hf_req_finish(struct hf_req *r)
{
    if (r->closed)
        return;
    r->closed = true;
    const struct hf_req_ops *ops = r->ops;
    r->ops = &no_ops;
    if (ops && ops->on_close)
        ops->on_close(r);
}

/* ---- the end of an exchange ---- */

static void linger(struct hf_conn *c)
{
    uv_os_fd_t fd;
    if (c->tls)
        c->server->more->tls_bye(c);
    if (c->stream && uv_fileno((uv_handle_t *)c->stream, &fd) == 0)
        (void)shutdown(fd, SHUT_WR);
    c->phase = HF_CONN_LINGER;
    c->last_ms = uv_now(c->server->loop);
    hf_buf_done(&c->in);
}

/* The request object goes; the connection goes on, lingers or closes. */
static void release(struct hf_conn *c)
{
    struct hf_req *r = c->req;
    bool keep = r->keep_alive && !c->server->stopping;
    bool unread = c->phase != HF_CONN_WAIT || c->in.n || c->cur_n;
    c->req = NULL;
    hf_server_req_put(r);
    hf_outq_done(&c->out);
    c->last_ms = uv_now(c->server->loop);
    if (keep) {
        c->phase = HF_CONN_IDLE;
        hf_list_del(&c->node); /* the list is in the order of idleness, as far as it matters */
        hf_list_add_tail(&c->server->conns, &c->node);
    } else if (unread)
        linger(c); /* closing with unread input would reset the connection and lose the response */
    else
        hf_conn_close(c, false);
}

bool hf_conn_try_finish(struct hf_conn *c)
{
    struct hf_req *r = c->req;
    if (!r || c->closing || !r->res_ended || hf_conn_queued(c))
        return false;
    bool first = !r->closed;
    hf_req_finish(r);
    if (c->closing)
        return false;
    /* A body that is still coming is read to its end, within limits, so that the connection can be used
     * again. */
    if (c->phase == HF_CONN_BODY && r->keep_alive) {
        r->paused = false;
        c->last_ms = first ? uv_now(c->server->loop) : c->last_ms;
        return first;
    }
    release(c);
    return true;
}

/* ---- input ---- */

static void reject(struct hf_conn *c, struct hf_req *r, int status, const char *why)
{
    r->keep_alive = false;
    r->aborted = false;
    r->ops = &no_ops;
    c->phase = HF_CONN_LINGER;
    hf_res_error(r, status, "%s", why);
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
    struct hf_req *r = p->data;
    struct hf_conn *c = r->conn;
    if (!n)
        return 0;
    r->body_n += n;
    if (r->closed) {
        c->swallowed += n;
        return c->swallowed > HF_HTTP_LINGER_BYTES ? HPE_USER : 0;
    }
    if (r->ops->on_data)
        r->ops->on_data(r, at, n);
    if (c->closing)
        return HPE_USER;
    r->held = r->paused;
    return r->paused ? HPE_PAUSED : 0;
}

static int on_message_complete(llhttp_t *p)
{
    struct hf_req *r = p->data;
    r->body_done = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {.on_body = on_body, .on_message_complete = on_message_complete};

/* What is due once the handler takes input: 100 Continue, the end of the body. */
static void proceed(struct hf_conn *c, struct hf_req *r)
{
    if (c->closing || r->paused || r->closed)
        return;
    if (c->phase == HF_CONN_BODY)
        hf_res_continue(r);
    if (c->phase != HF_CONN_WAIT || r->end_called)
        return;
    r->end_called = true;
    if (r->ops->on_end)
        r->ops->on_end(r);
}

/* Decodes body bytes. Returns how many were used. */
static size_t feed_body(struct hf_conn *c, struct hf_req *r, const char *p, size_t n)
{
    r->held = false;
    llhttp_errno_t e = llhttp_execute(&r->parser, p, n);
    size_t used = n;
    if (e == HPE_PAUSED || e == HPE_PAUSED_UPGRADE) {
        used = (size_t)(llhttp_get_error_pos(&r->parser) - p);
        llhttp_resume(&r->parser);
        e = HPE_OK;
    }
    r->wire_n += used;
    c->cur = p + used;
    c->cur_n = n - used;
    if (c->closing)
        return used;
    if (e == HPE_OK && r->wire_n - r->body_n > HF_HTTP_CHUNK_OVERHEAD_MAX + 16 * r->body_n)
        e = HPE_USER;
    if (e != HPE_OK) {
        if (r->res_started || r->closed)
            hf_conn_close(c, true);
        else {
            /* on_close tells the handler; the error is answered in its place. */
            r->aborted = true;
            hf_req_finish(r);
            if (!c->closing)
                reject(c, r, 400, "malformed request body");
        }
        return n;
    }
    if (r->body_done) {
        c->phase = HF_CONN_WAIT;
        proceed(c, r);
    }
    return used;
}

static void begin_request(struct hf_conn *c, struct hf_req *r)
{
    struct hf_head *h = &r->head;
    if (hf_head_check_request(h, r->head_p) < 0) {
        reject(c, r, h->bad_status, h->why);
        return;
    }
    llhttp_init(&r->parser, HTTP_REQUEST, &settings);
    r->parser.data = r;
    llhttp_errno_t e = llhttp_execute(&r->parser, r->head_p, r->head_n);
    bool complete = e == HPE_PAUSED || e == HPE_PAUSED_UPGRADE;
    if (e == HPE_INVALID_METHOD) {
        reject(c, r, 501, "this method is not known");
        return;
    }
    /* Two parsers must agree about where the head and the message end. */
    if ((e != HPE_OK && !complete) || r->body_done != (h->length == 0)) {
        reject(c, r, 400, "malformed request head");
        return;
    }
    llhttp_resume(&r->parser);
    c->phase = r->body_done ? HF_CONN_WAIT : HF_CONN_BODY;
    c->fresh = false;
    r->keep_alive = h->keep_alive;
    r->expect = h->expect;
    r->ops = &no_ops;
    c->server->handler->on_request(c->server->self, r);
    if (c->req == r)
        proceed(c, r);
}

static void keep_head(struct hf_req *r, const char *p, size_t n)
{
    if (r->head_n + n > r->head_cap) {
        size_t cap = r->head_cap;
        while (cap < r->head_n + n)
            cap *= 2;
        char *q = hf_xmalloc(cap);
        memcpy(q, r->head_p, r->head_n);
        if (r->head_p != r->inline_head)
            free(r->head_p);
        r->head_p = q;
        r->head_cap = cap;
    }
    memcpy(r->head_p + r->head_n, p, n);
    r->head_n += n;
}

/* The first bytes of a connection that speaks HTTP/2 without having asked, of which the scanner has refused
 * the version (RFC 9113 section 3.3). */
static bool is_preface(const struct hf_conn *c, const char *p, size_t n)
{
    static const char begin[] = "PRI * HTTP/2";
    size_t kept = c->req->head_n, len = sizeof(begin) - 1;
    if (!c->server->more || c->tls || !c->fresh || kept >= len || kept + n < len)
        return false;
    return memcmp(c->req->head_p, begin, kept) == 0 && memcmp(p, begin + kept, len - kept) == 0;
}

static void switch_to_h2(struct hf_conn *c, const char *p, size_t n)
{
    const struct hf_conn_more *more = c->server->more;
    struct hf_req *r = hf_take_ptr(c->req);
    more->h2_start(c);
    if (!c->closing && r->head_n)
        more->h2_input(c, r->head_p, r->head_n);
    if (!c->closing)
        more->h2_input(c, p, n);
    hf_server_req_put(r);
}

static size_t feed_head(struct hf_conn *c, const char *p, size_t n)
{
    if (!c->req) {
        c->req = hf_server_req_get(c);
        c->phase = HF_CONN_HEAD;
        c->head_ms = uv_now(c->server->loop);
        c->swallowed = 0;
    }
    struct hf_req *r = c->req;
    size_t used;
    enum hf_head_result res = hf_head_feed(&r->head, p, n, &used);
    if (res == HF_HEAD_BAD && is_preface(c, p, n)) {
        switch_to_h2(c, p, n);
        return n;
    }
    if (res == HF_HEAD_BAD) {
        reject(c, r, r->head.bad_status, r->head.why);
        return n;
    }
    keep_head(r, p, used);
    c->cur = p + used;
    c->cur_n = n - used;
    if (res == HF_HEAD_DONE)
        begin_request(c, r);
    return used;
}

/* Returns the bytes used; 0 when nothing more can be taken now. */
static size_t step(struct hf_conn *c, const char *p, size_t n)
{
    switch (c->phase) {
    case HF_CONN_IDLE:
    case HF_CONN_HEAD:
        return feed_head(c, p, n);
    case HF_CONN_BODY:
        return c->req->paused ? 0 : feed_body(c, c->req, p, n);
    case HF_CONN_H2:
        c->server->more->h2_input(c, p, n);
        return n;
    case HF_CONN_LINGER:
        c->swallowed += n;
        if (c->swallowed > HF_HTTP_LINGER_BYTES)
            hf_conn_close(c, false);
        return n;
    default:
        return 0;
    }
}

static size_t feed(struct hf_conn *c, const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && !c->closing) {
        size_t used = step(c, p + i, n - i);
        i += used;
        c->cur = p + i;
        c->cur_n = n - i;
        if (!hf_conn_try_finish(c) && !used)
            break;
    }
    c->cur_n = 0;
    return i;
}

void hf_conn_input(struct hf_conn *c, const char *p, size_t n)
{
    hf_conn_enter(c);
    c->last_ms = c->phase == HF_CONN_LINGER ? c->last_ms : uv_now(c->server->loop);
    size_t used = c->in.n ? 0 : feed(c, p, n);
    if (used < n && !c->closing && hf_buf_add(&c->in, p + used, n - used) < 0)
        hf_conn_close(c, true);
    if (!c->closing)
        hf_conn_update_reading(c);
    hf_conn_leave(c);
}

void hf_conn_received(struct hf_conn *c, const char *p, size_t n)
{
    if (c->tls)
        c->server->more->tls_input(c, p, n);
    else
        hf_conn_input(c, p, n);
}

/* Input that had to wait. */
static void feed_kept(struct hf_conn *c)
{
    struct hf_buf in = c->in;
    c->in = HF_BUF_INIT(in.max);
    if (c->early) {
        c->early = false;
        hf_conn_received(c, in.p, in.n);
        hf_buf_done(&in);
        return;
    }
    size_t used = feed(c, in.p, in.n);
    if (c->closing || used == in.n) {
        hf_buf_done(&in);
        return;
    }
    hf_buf_consume(&in, used);
    hf_buf_done(&c->in);
    c->in = in;
}

void hf_conn_mark(struct hf_conn *c)
{
    if (!c->closing && hf_list_empty(&c->dirty))
        hf_list_add_tail(&c->server->dirty, &c->dirty);
}

void hf_conn_settle(struct hf_conn *c)
{
    hf_conn_enter(c);
    hf_list_del(&c->dirty);
    hf_conn_flush(c);
    if (c->h2 && !c->closing)
        c->server->more->h2_settle(c);
    if (c->req && !c->closing && c->phase == HF_CONN_BODY && c->req->held && !c->req->paused)
        (void)feed_body(c, c->req, "", 0); /* the body's end may have been held back by a pause */
    if (c->req && !c->closing && c->phase >= HF_CONN_BODY)
        proceed(c, c->req);
    (void)hf_conn_try_finish(c);
    if (!c->closing && c->in.n)
        feed_kept(c);
    if (!c->closing)
        hf_conn_update_reading(c);
    hf_conn_leave(c);
}

/* ---- reading ---- */

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct hf_conn *c = h->data;
    *buf = uv_buf_init(c->server->read_buf, HF_HTTP_READ_SIZE);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct hf_conn *c = stream->data;
    if (n > 0)
        hf_conn_received(c, buf->base, (size_t)n);
    else if (n < 0)
        hf_conn_close(c, false);
}

void hf_conn_update_reading(struct hf_conn *c)
{
    if (!c->stream)
        return;
    bool held = c->req && c->req->paused && c->phase == HF_CONN_BODY;
    bool want = !held && c->in.n < HF_HTTP_PIPELINE_MAX;
    if (c->h2 && hf_conn_queued(c) > HF_HTTP_H2_UNREAD_MAX)
        want = false; /* it asks and asks, and takes no answer */
    if (want == c->reading)
        return;
    c->reading = want;
    if (want)
        (void)uv_read_start(c->stream, on_alloc, on_read);
    else
        (void)uv_read_stop(c->stream);
}

void hf_conn_start(struct hf_conn *c)
{
    hf_conn_update_reading(c);
}

/* ---- timeouts ---- */

/* A connection that is not being read says nothing of its end: ask. */
static bool peer_gone(struct hf_conn *c)
{
    uv_os_fd_t fd;
    if (uv_fileno((uv_handle_t *)c->stream, &fd) < 0)
        return true;
    struct pollfd p = {fd, POLLRDHUP, 0};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

static void sweep_exchange(struct hf_conn *c, uint64_t now)
{
    struct hf_http_server *s = c->server;
    struct hf_req *r = c->req;
    size_t queued = hf_conn_queued(c);
    if (queued != c->write_left) {
        c->write_left = queued;
        c->last_ms = now;
    }
    uint64_t quiet = now - c->last_ms;
    if (r->closed && quiet > HF_HTTP_LINGER_MS)
        hf_conn_close(c, false);
    else if ((queued || r->res_left > 0) && quiet > s->idle_ms)
        hf_conn_close(c, true); /* res_left: a worker may be sending past the queue (hf_res_dup_fd) */
    else if (c->phase == HF_CONN_BODY && !r->paused && quiet > HF_MIN(s->idle_ms, HF_HTTP_BODY_IDLE_MS)) {
        if (r->res_started)
            hf_conn_close(c, true);
        else {
            r->aborted = true;
            hf_req_finish(r);
            reject(c, r, 408, "the request body did not arrive in time");
        }
    }
}

void hf_conn_sweep(struct hf_conn *c, uint64_t now)
{
    struct hf_http_server *s = c->server;
    if (c->closing || !c->stream)
        return;
    hf_conn_enter(c);
    if (!c->reading && peer_gone(c))
        hf_conn_close(c, false);
    else if (c->phase == HF_CONN_IDLE &&
             now - c->last_ms > (c->fresh ? HF_MIN(s->idle_ms, HF_HTTP_FRESH_TIMEOUT_MS) : s->idle_ms))
        hf_conn_close(c, false);
    else if (c->phase == HF_CONN_SHAKE && now - c->head_ms > s->shake_ms)
        hf_conn_close(c, false);
    else if (c->phase == HF_CONN_HEAD && now - c->head_ms > s->head_ms)
        reject(c, c->req, 408, "the request head did not arrive in time");
    else if (c->phase == HF_CONN_H2)
        s->more->h2_sweep(c, now);
    else if (c->phase == HF_CONN_LINGER && now - c->last_ms > HF_HTTP_LINGER_MS)
        hf_conn_close(c, false);
    else if (c->phase == HF_CONN_BODY || c->phase == HF_CONN_WAIT)
        sweep_exchange(c, now);
    hf_conn_leave(c);
}
