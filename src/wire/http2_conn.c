/* An HTTP/2 connection: what it hears, its streams, floods and its end. */
#include "base/log.h"
#include "wire/http2.h"

static struct hf_h2_stream *stream_of(nghttp2_session *s, int32_t id)
{
    return id ? nghttp2_session_get_stream_user_data(s, id) : NULL;
}

static uint64_t now_of(const struct hf_h2 *h2)
{
    return uv_now(h2->conn->server->loop);
}

/* ---- streams ---- */

static struct hf_h2_stream *stream_new(struct hf_h2 *h2, int32_t id)
{
    struct hf_h2_stream *st = hf_new(struct hf_h2_stream);
    st->h2 = h2;
    st->id = id;
    struct hf_buf *parts[] = {&st->method, &st->path, &st->authority, &st->host, &st->cookie, &st->fields};
    for (size_t i = 0; i < HF_ARRAY_LEN(parts); i++)
        parts[i]->max = 2 * HF_HTTP_HEAD_MAX;
    st->held.max = 2 * HF_H2_WINDOW;
    st->trailers.max = HF_H2_TRAILERS_MAX;
    st->out.max = HF_OUTQ_MAX;
    st->out_trailers.max = HF_H2_TRAILERS_MAX;
    st->last_ms = now_of(h2);
    hf_list_add_tail(&h2->streams, &st->node);
    h2->conn->h2_streams = ++h2->stream_n;
    return st;
}

static void stream_free(struct hf_h2_stream *st)
{
    struct hf_h2 *h2 = st->h2;
    struct hf_conn *c = h2->conn;
    hf_list_del(&st->node);
    if (st->req) {
        hf_req_finish(st->req);
        hf_server_req_put(st->req);
    }
    struct hf_buf *parts[] = {&st->method, &st->path, &st->authority, &st->host, &st->cookie,
                              &st->fields, &st->held, &st->trailers,  &st->out,  &st->out_trailers};
    for (size_t i = 0; i < HF_ARRAY_LEN(parts); i++)
        hf_buf_done(parts[i]);
    free(st);
    c->h2_streams = --h2->stream_n;
    if (h2->stream_n || c->closing)
        return;
    c->last_ms = now_of(h2); /* idle from here: the list is in the order of idleness */
    hf_list_del(&c->node);
    hf_list_add_tail(&c->server->conns, &c->node);
}

static bool still_there(const struct hf_h2 *h2, const struct hf_h2_stream *st)
{
    hf_list_foreach(it, &h2->streams)
    {
        if (hf_list_entry(it, struct hf_h2_stream, node) == st)
            return true;
    }
    return false;
}

/* The end of the request's body, once the handler takes it. */
static void proceed(struct hf_h2_stream *st)
{
    struct hf_req *r = st->req;
    if (r->paused || r->closed || r->aborted)
        return;
    if (!st->fin)
        hf_res_continue(r);
    if (!st->fin || st->held.n || r->end_called)
        return;
    r->body_done = r->end_called = true;
    if (r->ops->on_end)
        r->ops->on_end(r);
}

/* ---- floods ---- */

static bool take_token(struct hf_h2 *h2, struct hf_h2_bucket *b, uint64_t burst, uint64_t rate)
{
    uint64_t now = now_of(h2);
    b->milli = HF_MIN(burst * 1000, b->milli + (now - b->at_ms) * rate);
    b->at_ms = now;
    if (b->milli < 1000)
        return false;
    b->milli -= 1000;
    return true;
}

static void calm_down(struct hf_h2 *h2, const char *what)
{
    if (h2->calm)
        return;
    h2->calm = true;
    hf_log_info("HTTP/2 connection ended: it floods", "peer=%s with=%s", hf_conn_peer(h2->conn), what);
    (void)nghttp2_session_terminate_session(h2->session, NGHTTP2_ENHANCE_YOUR_CALM);
}

static void count_reset(struct hf_h2 *h2)
{
    if (!take_token(h2, &h2->resets, HF_H2_RESET_BURST, HF_H2_RESET_RATE))
        calm_down(h2, "resets");
}

static void count_frame(struct hf_h2 *h2, const nghttp2_frame *frame)
{
    uint8_t t = frame->hd.type;
    bool empty_data = t == NGHTTP2_DATA && !frame->hd.length && !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM);
    bool control = t == NGHTTP2_PING || t == NGHTTP2_SETTINGS || t == NGHTTP2_PRIORITY || empty_data;
    if (t == NGHTTP2_RST_STREAM)
        count_reset(h2);
    else if (control && !take_token(h2, &h2->control, HF_H2_CONTROL_BURST, HF_H2_CONTROL_RATE))
        calm_down(h2, "control frames");
}

/* ---- callbacks of nghttp2 ---- */

/* A header block is over when another frame begins. */
static int on_begin_frame(nghttp2_session *s, const nghttp2_frame_hd *hd, void *user)
{
    struct hf_h2 *h2 = user;
    if (hd->type != NGHTTP2_CONTINUATION)
        h2->in_block = false;
    return 0;
}

static int on_begin_headers(nghttp2_session *s, const nghttp2_frame *frame, void *user)
{
    struct hf_h2 *h2 = user;
    h2->in_block = true;
    h2->block_ms = now_of(h2);
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST || h2->conn->closing || h2->calm)
        return 0;
    struct hf_h2_stream *st = stream_new(h2, frame->hd.stream_id);
    (void)nghttp2_session_set_stream_user_data(s, st->id, st);
    return 0;
}

static int add_trailer(struct hf_h2_stream *st, struct hf_str name, struct hf_str value)
{
    int r = hf_buf_add(&st->trailers, name.p, name.n);
    r = r < 0 ? r : hf_buf_add(&st->trailers, "", 1);
    r = r < 0 ? r : hf_buf_add(&st->trailers, value.p, value.n);
    return r < 0 ? r : hf_buf_add(&st->trailers, "", 1);
}

static int on_header(nghttp2_session *s, const nghttp2_frame *frame, const uint8_t *name, size_t name_n,
                     const uint8_t *value, size_t value_n, uint8_t flags, void *user)
{
    struct hf_h2_stream *st = stream_of(s, frame->hd.stream_id);
    struct hf_str n = {(const char *)name, name_n}, v = {(const char *)value, value_n};
    if (!st)
        return 0;
    int r = -EINVAL;
    if (hf_is_header_value(v))
        r = st->req ? add_trailer(st, n, v) : hf_h2_head_field(st, n, v);
    if (r == 0)
        return 0;
    count_reset(st->h2);
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* RST_STREAM */
}

static int on_frame_recv(nghttp2_session *s, const nghttp2_frame *frame, void *user)
{
    struct hf_h2 *h2 = user;
    int32_t id = frame->hd.stream_id;
    uint8_t type = frame->hd.type;
    count_frame(h2, frame);
    if (type == NGHTTP2_HEADERS)
        h2->in_block = false;
    struct hf_h2_stream *st = stream_of(s, id);
    if (!st || h2->conn->closing || h2->calm || (type != NGHTTP2_HEADERS && type != NGHTTP2_DATA))
        return 0;
    st->last_ms = now_of(h2);
    if (frame->hd.flags & NGHTTP2_FLAG_END_STREAM)
        st->fin = true;
    if (!st->req)
        hf_h2_head_done(st);
    if (!h2->conn->closing && stream_of(s, id) == st)
        proceed(st);
    return 0;
}

static int on_data_chunk(nghttp2_session *s, uint8_t flags, int32_t id, const uint8_t *p, size_t n,
                         void *user)
{
    struct hf_h2 *h2 = user;
    struct hf_h2_stream *st = stream_of(s, id);
    struct hf_req *r = st ? st->req : NULL;
    if (!r || h2->conn->closing) {
        (void)nghttp2_session_consume(s, id, n);
        return 0;
    }
    st->last_ms = now_of(h2);
    r->body_n += n;
    if (r->paused || st->held.n)
        return hf_buf_add(&st->held, p, n) < 0 ? NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE : 0;
    (void)nghttp2_session_consume(s, id, n);
    if (r->ops->on_data && !r->closed && !r->aborted)
        r->ops->on_data(r, (const char *)p, n);
    return 0;
}

static int on_stream_close(nghttp2_session *s, int32_t id, uint32_t error, void *user)
{
    struct hf_h2 *h2 = user;
    struct hf_h2_stream *st = stream_of(s, id);
    if (!st)
        return 0;
    h2->in_block = h2->in_block && st->req; /* its head was refused */
    (void)nghttp2_session_set_stream_user_data(s, id, NULL);
    /* What its handler had not taken still counts against the connection. */
    if (st->held.n)
        (void)nghttp2_session_consume_connection(s, st->held.n);
    if (st->req)
        st->req->aborted = !st->sent_end;
    stream_free(st);
    return 0;
}

static int on_frame_send(nghttp2_session *s, const nghttp2_frame *frame, void *user)
{
    struct hf_h2_stream *st = stream_of(s, frame->hd.stream_id);
    if (!st || !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM) ||
        (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA))
        return 0;
    st->sent_end = true;
    if (!st->fin) /* the rest of the body is not wanted; RFC 9113 section 8.1 */
        (void)nghttp2_submit_rst_stream(s, NGHTTP2_FLAG_NONE, st->id, NGHTTP2_NO_ERROR);
    return 0;
}

static int on_invalid_frame(nghttp2_session *s, const nghttp2_frame *frame, int error, void *user)
{
    count_reset(user);
    return 0;
}

/* ---- the session ---- */

static int make_session(struct hf_h2 *h2)
{
    static const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, HF_H2_STREAMS_MAX},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, HF_H2_WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HF_HTTP_HEAD_MAX},
    };
    nghttp2_session_callbacks *cb;
    nghttp2_option *o;
    if (nghttp2_session_callbacks_new(&cb) != 0 || nghttp2_option_new(&o) != 0)
        abort(); /* memory is out */
    nghttp2_session_callbacks_set_on_begin_frame_callback(cb, on_begin_frame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame_recv);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data_chunk);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
    nghttp2_session_callbacks_set_on_frame_send_callback(cb, on_frame_send);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(cb, on_invalid_frame);
    nghttp2_option_set_no_auto_window_update(o, 1);
    int r = nghttp2_session_server_new2(&h2->session, cb, h2, o);
    nghttp2_option_del(o);
    nghttp2_session_callbacks_del(cb);
    if (r == 0)
        r = nghttp2_submit_settings(h2->session, NGHTTP2_FLAG_NONE, settings, HF_ARRAY_LEN(settings));
    if (r == 0)
        r = nghttp2_session_set_local_window_size(h2->session, NGHTTP2_FLAG_NONE, 0, HF_H2_CONN_WINDOW);
    return r;
}

void hf_h2_start(struct hf_conn *c)
{
    struct hf_h2 *h2 = hf_new(struct hf_h2);
    h2->conn = c;
    hf_list_init(&h2->streams);
    uint64_t now = now_of(h2);
    h2->resets = (struct hf_h2_bucket){now, HF_H2_RESET_BURST * 1000};
    h2->control = (struct hf_h2_bucket){now, HF_H2_CONTROL_BURST * 1000};
    h2->in_block = true; /* until its SETTINGS come */
    h2->block_ms = now;
    c->h2 = h2;
    c->phase = HF_CONN_H2;
    if (make_session(h2) != 0)
        hf_conn_close(c, true);
    else
        hf_conn_mark(c);
}

static void send_all(struct hf_h2 *h2)
{
    struct hf_conn *c = h2->conn;
    if (h2->receiving || h2->sending || c->closing)
        return;
    h2->sending = true;
    while (!c->closing && hf_conn_queued(c) < HF_H2_OUT_HIGH) {
        const uint8_t *p;
        ssize_t n = nghttp2_session_mem_send(h2->session, &p);
        if (n < 0)
            hf_conn_close(c, true);
        if (n <= 0)
            break;
        hf_conn_append(c, p, (size_t)n);
        if (hf_conn_queued(c) >= HF_H2_OUT_HIGH)
            hf_conn_flush(c);
    }
    h2->sending = false;
    hf_conn_flush(c);
    bool over = !nghttp2_session_want_read(h2->session) && !nghttp2_session_want_write(h2->session);
    if (!c->closing && over && !hf_conn_queued(c))
        hf_conn_close(c, false);
}

static void release_held(struct hf_h2_stream *st)
{
    struct hf_req *r = st->req;
    struct hf_buf held = st->held;
    st->held = HF_BUF_INIT(held.max);
    (void)nghttp2_session_consume(st->h2->session, st->id, held.n);
    if (r->ops->on_data && !r->closed && !r->aborted)
        r->ops->on_data(r, held.p, held.n);
    hf_buf_done(&held);
}

static bool drained(const struct hf_h2_stream *st)
{
    const struct hf_req *r = st->req;
    return r->want_drain && hf_h2_queued(st) <= HF_MIN(HF_HTTP_WRITE_LOW, hf_h2_res_high(r) / 2);
}

static bool has_turn(const struct hf_h2_stream *st)
{
    const struct hf_req *r = st->req;
    if (!r || r->closed || r->aborted)
        return false;
    bool ends = st->fin && !r->end_called;
    return drained(st) || (!r->paused && (st->held.n || ends || r->expect));
}

/* One stream's turn; it may be gone afterwards. */
static void turn(struct hf_h2 *h2, struct hf_h2_stream *st)
{
    struct hf_req *r = st->req;
    if (drained(st)) {
        r->want_drain = false;
        if (r->ops->on_drain && !r->closed)
            r->ops->on_drain(r);
        if (h2->conn->closing || !still_there(h2, st))
            return;
    }
    if (!r->paused && st->held.n) {
        release_held(st);
        if (h2->conn->closing || !still_there(h2, st))
            return;
    }
    proceed(st);
}

void hf_h2_settle(struct hf_conn *c)
{
    struct hf_h2 *h2 = c->h2;
    if (h2->receiving || h2->sending)
        return;
    if (c->server->stopping && !h2->leaving) {
        h2->leaving = true; /* what is open may end, nothing new begins */
        (void)nghttp2_submit_goaway(h2->session, NGHTTP2_FLAG_NONE,
                                    nghttp2_session_get_last_proc_stream_id(h2->session), NGHTTP2_NO_ERROR,
                                    NULL, 0);
    }
    send_all(h2);
    struct hf_h2_stream *all[HF_H2_STREAMS_MAX];
    size_t n = 0;
    hf_list_foreach(it, &h2->streams)
    {
        struct hf_h2_stream *st = hf_list_entry(it, struct hf_h2_stream, node);
        if (n < HF_H2_STREAMS_MAX && has_turn(st))
            all[n++] = st;
    }
    for (size_t i = 0; i < n && !c->closing; i++)
        if (still_there(h2, all[i]))
            turn(h2, all[i]);
    send_all(h2);
    if (!c->closing && h2->leaving && !h2->stream_n && !hf_conn_queued(c))
        hf_conn_close(c, false);
}

void hf_h2_input(struct hf_conn *c, const char *p, size_t n)
{
    struct hf_h2 *h2 = c->h2;
    h2->receiving = true;
    ssize_t r = nghttp2_session_mem_recv(h2->session, (const uint8_t *)p, n);
    h2->receiving = false;
    if (c->closing)
        return;
    if (r < 0) {
        hf_log_debug("HTTP/2 connection ended", "peer=%s reason=%s", hf_conn_peer(c),
                     nghttp2_strerror((int)r));
        send_all(h2); /* GOAWAY, if it got so far */
        hf_conn_close(c, false);
        return;
    }
    hf_h2_settle(c);
}

/* ---- timeouts and the end ---- */

static void sweep_stream(struct hf_h2_stream *st, uint64_t now)
{
    struct hf_req *r = st->req;
    size_t queued = hf_h2_queued(st);
    if (!r)
        return;
    if (queued != st->seen_queue)
        st->last_ms = now;
    st->seen_queue = queued;
    uint64_t quiet = now - st->last_ms, limit = st->h2->conn->server->idle_ms;
    bool owed = queued || st->out_end; /* the client does not take it */
    bool body = !st->fin && !r->paused && !r->res_ended;
    if ((owed && quiet > limit) || (body && quiet > HF_MIN(limit, HF_HTTP_BODY_IDLE_MS)))
        hf_h2_res_abort(r);
}

void hf_h2_sweep(struct hf_conn *c, uint64_t now)
{
    struct hf_h2 *h2 = c->h2;
    if (h2->in_block && now - h2->block_ms > c->server->head_ms) {
        hf_conn_close(c, true);
        return;
    }
    if (!h2->stream_n && now - c->last_ms > c->server->idle_ms) {
        (void)nghttp2_session_terminate_session(h2->session, NGHTTP2_NO_ERROR);
        send_all(h2);
        hf_conn_close(c, false);
        return;
    }
    hf_list_foreach_safe(it, &h2->streams)
    {
        sweep_stream(hf_list_entry(it, struct hf_h2_stream, node), now);
    }
}

void hf_h2_aborted(struct hf_conn *c)
{
    hf_list_foreach(it, &c->h2->streams)
    {
        struct hf_h2_stream *st = hf_list_entry(it, struct hf_h2_stream, node);
        if (st->req)
            st->req->aborted = !st->sent_end || hf_conn_queued(c);
    }
}

void hf_h2_free(struct hf_conn *c)
{
    struct hf_h2 *h2 = c->h2;
    while (!hf_list_empty(&h2->streams))
        stream_free(hf_list_entry(h2->streams.next, struct hf_h2_stream, node));
    nghttp2_session_del(h2->session);
    free(h2);
}
