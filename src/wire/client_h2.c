/* HTTP/2, client side, on nghttp2: its session is fed what the socket says and asked what to say. */
#include "base/log.h"
#include "wire/client_int.h"

#define FIELD_MAX (HF_CLIENT_HEADERS_MAX + 8u)

static struct hf_cx *cx_of(nghttp2_session *s, int32_t id)
{
    return nghttp2_session_get_stream_user_data(s, id);
}

static bool same(const uint8_t *p, size_t n, const char *s)
{
    return n == strlen(s) && memcmp(p, s, n) == 0;
}

/* ---- what is said ---- */

static void send_all(struct hf_client *c)
{
    if (c->sending || c->receiving || c->closing)
        return; /* a session is not asked from inside its callbacks */
    c->sending = true;
    while (hf_outq_len(&c->out) < HF_CLIENT_OUT_HIGH) {
        const uint8_t *p;
        ssize_t n = nghttp2_session_mem_send(c->h2, &p);
        int r = n > 0 ? hf_outq_add(&c->out, p, (size_t)n) : (int)n;
        if (r < 0) {
            hf_client_die(c, -EPROTO);
            break;
        }
        if (n == 0)
            break;
    }
    c->sending = false;
    hf_client_flush(c);
    if (c->write_failed)
        hf_client_die(c, -ECONNRESET);
    else if (!nghttp2_session_want_read(c->h2) && !nghttp2_session_want_write(c->h2) && hf_outq_idle(&c->out))
        hf_client_die(c, -ECONNRESET);
}

static nghttp2_nv nv(struct hf_str name, struct hf_str value)
{
    return (nghttp2_nv){(uint8_t *)name.p, (uint8_t *)value.p, name.n, value.n, NGHTTP2_NV_FLAG_NONE};
}

/* Fields as HTTP/2 has them: names in lower case, in mem; no connection-level ones. */
static size_t add_fields(nghttp2_nv *out, size_t n, const struct hf_field *f, size_t n_fields,
                         struct hf_buf *mem)
{
    size_t total = 0;
    for (size_t i = 0; i < n_fields; i++)
        total += f[i].name.n;
    if (hf_buf_reserve(mem, total) < 0) /* once, so that it does not move */
        return n;
    for (size_t i = 0; i < n_fields && n < FIELD_MAX; i++) {
        struct hf_str name = f[i].name;
        bool te = hf_str_caseeq(name, "te") && !hf_str_caseeq(f[i].value, "trailers");
        if (te || hf_field_is_hop(name) || hf_str_caseeq(name, "host") ||
            hf_str_caseeq(name, "content-length"))
            continue;
        char *p = mem->p + mem->n;
        mem->n += name.n;
        for (size_t k = 0; k < name.n; k++)
            p[k] = name.p[k] >= 'A' && name.p[k] <= 'Z' ? (char)(name.p[k] | 0x20) : name.p[k];
        out[n++] = nv((struct hf_str){p, name.n}, f[i].value);
    }
    return n;
}

/* Only now: trailers that are submitted earlier overtake the body. */
static bool submit_trailers(nghttp2_session *s, const struct hf_cx *cx)
{
    struct hf_field f[HF_CLIENT_HEADERS_MAX];
    nghttp2_nv v[FIELD_MAX];
    hf_auto_buf struct hf_buf mem = HF_BUF_INIT(2 * HF_CLIENT_HEAD_MAX);
    size_t n = add_fields(v, 0, f, hf_fields_unpack(&cx->trailers, f), &mem);
    return n && nghttp2_submit_trailer(s, cx->id, v, n) == 0;
}

static ssize_t read_body(nghttp2_session *s, int32_t id, uint8_t *buf, size_t len, uint32_t *flags,
                         nghttp2_data_source *source, void *user)
{
    struct hf_cx *cx = cx_of(s, id);
    if (!cx)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* cancelled meanwhile */
    size_t n = HF_MIN(len, cx->body.n - cx->body_off);
    if (n)
        memcpy(buf, cx->body.p + cx->body_off, n);
    cx->body_off += n;
    if (cx->body_off == cx->body.n) {
        hf_buf_done(&cx->body);
        cx->body_off = 0;
        if (cx->ended) {
            *flags |= NGHTTP2_DATA_FLAG_EOF;
            if (submit_trailers(s, cx))
                *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        } else if (!n) {
            return NGHTTP2_ERR_DEFERRED;
        }
    } else if (cx->body_off > HF_CLIENT_QUEUE_HIGH) {
        hf_buf_consume(&cx->body, cx->body_off);
        cx->body_off = 0;
    }
    return (ssize_t)n;
}

int hf_h2c_begin(struct hf_cx *cx, const struct hf_cx_req *req)
{
    struct hf_client *c = cx->client;
    nghttp2_nv v[FIELD_MAX];
    hf_auto_buf struct hf_buf mem = HF_BUF_INIT(2 * HF_CLIENT_HEAD_MAX);
    char length[24];
    size_t n = 0;
    if (req->upgrade || req->n_fields > HF_CLIENT_HEADERS_MAX)
        return -EINVAL;
    v[n++] = nv(HF_STR(":method"), req->method);
    v[n++] = nv(HF_STR(":authority"), req->authority);
    if (!cx->connect) {
        v[n++] = nv(HF_STR(":scheme"), req->scheme.n ? req->scheme : HF_STR("https"));
        v[n++] = nv(HF_STR(":path"), req->path);
    }
    if (req->length > 0) {
        int k = snprintf(length, sizeof(length), "%lld", (long long)req->length);
        v[n++] = nv(HF_STR("content-length"), (struct hf_str){length, (size_t)k});
    }
    n = add_fields(v, n, req->fields, req->n_fields, &mem);
    nghttp2_data_provider body = {.read_callback = read_body};
    int32_t id = nghttp2_submit_request(c->h2, NULL, v, n, req->length ? &body : NULL, cx);
    if (id < 0)
        return -EPROTO;
    cx->id = id;
    cx->length = -1;
    hf_client_kick(c);
    return 0;
}

void hf_h2c_write(struct hf_cx *cx, const void *p, size_t n)
{
    struct hf_client *c = cx->client;
    if (hf_buf_add(&cx->body, p, n) < 0) {
        hf_client_die(c, -EMSGSIZE);
        return;
    }
    (void)nghttp2_session_resume_data(c->h2, cx->id);
    hf_client_kick(c);
}

void hf_h2c_end(struct hf_cx *cx, const struct hf_field *f, size_t n)
{
    struct hf_client *c = cx->client;
    struct hf_buf *b = &cx->trailers;
    for (size_t i = 0; i < n; i++) {
        size_t at = b->n;
        if (!hf_is_token(f[i].name) || !hf_is_header_value(f[i].value))
            continue;
        if (hf_buf_add(b, f[i].name.p, f[i].name.n) < 0 || hf_buf_add(b, "", 1) < 0 ||
            hf_buf_add(b, f[i].value.p, f[i].value.n) < 0 || hf_buf_add(b, "", 1) < 0)
            b->n = at;
    }
    (void)nghttp2_session_resume_data(c->h2, cx->id);
    hf_client_kick(c);
}

void hf_h2c_cancel(struct hf_cx *cx)
{
    nghttp2_session *s = cx->client->h2;
    if (cx_of(s, cx->id) != cx)
        return;
    (void)nghttp2_session_set_stream_user_data(s, cx->id, NULL);
    if (cx->held.n)
        (void)nghttp2_session_consume_stream(s, cx->id, cx->held.n);
    (void)nghttp2_submit_rst_stream(s, NGHTTP2_FLAG_NONE, cx->id, NGHTTP2_CANCEL);
}

/* ---- what is heard ---- */

static int reset(nghttp2_session *s, int32_t id)
{
    (void)nghttp2_submit_rst_stream(s, NGHTTP2_FLAG_NONE, id, NGHTTP2_PROTOCOL_ERROR);
    return 0;
}

static int on_begin_headers(nghttp2_session *s, const nghttp2_frame *frame, void *user)
{
    struct hf_cx *cx = cx_of(s, frame->hd.stream_id);
    if (cx) {
        hf_buf_clear(&cx->fields);
        cx->n_fields = 0;
    }
    return 0;
}

static int on_header(nghttp2_session *s, const nghttp2_frame *frame, const uint8_t *name, size_t name_n,
                     const uint8_t *value, size_t value_n, uint8_t flags, void *user)
{
    struct hf_cx *cx = cx_of(s, frame->hd.stream_id);
    uint64_t v;
    if (!cx)
        return 0;
    if (same(name, name_n, ":status")) {
        int r = hf_parse_u64((struct hf_str){(const char *)value, value_n}, 999, &v);
        cx->status = r < 0 ? 0 : (int)v;
        return 0;
    }
    if (same(name, name_n, "content-length") && !cx->answered &&
        hf_parse_u64((struct hf_str){(const char *)value, value_n}, INT64_MAX, &v) == 0)
        cx->length = (int64_t)v;
    bool bad = ++cx->n_fields > HF_CLIENT_HEADERS_MAX || memchr(value, '\0', value_n) ||
               hf_buf_add(&cx->fields, name, name_n) < 0 || hf_buf_add(&cx->fields, "", 1) < 0 ||
               hf_buf_add(&cx->fields, value, value_n) < 0 || hf_buf_add(&cx->fields, "", 1) < 0;
    return bad ? NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE : 0;
}

/* Freed exchanges keep their memory while callbacks run, so an address stands for one of them only. */
static bool still_there(const struct hf_client *c, const struct hf_cx *cx)
{
    hf_list_foreach(it, &c->exchanges)
    {
        if (hf_list_entry(it, struct hf_cx, node) == cx)
            return true;
    }
    return false;
}

/* The response is over for its user. */
static void complete(struct hf_cx *cx)
{
    struct hf_client *c = cx->client;
    struct hf_field f[HF_CLIENT_HEADERS_MAX];
    if (cx->has_trailers && cx->ops->on_trailers) {
        cx->has_trailers = false;
        cx->ops->on_trailers(cx, f, hf_fields_unpack(&cx->fields, f));
        if (!still_there(c, cx) || cx->paused)
            return;
    }
    if (!cx->ended || nghttp2_session_get_stream_local_close(c->h2, cx->id) == 0)
        hf_h2c_cancel(cx); /* the rest of the request is not wanted any more */
    else
        (void)nghttp2_session_set_stream_user_data(c->h2, cx->id, NULL);
    hf_list_del(&cx->node);
    if (cx->ops->on_end)
        cx->ops->on_end(cx);
    hf_cx_free(cx);
}

static int heard_head(struct hf_cx *cx, nghttp2_session *s, bool end)
{
    struct hf_field f[HF_CLIENT_HEADERS_MAX];
    size_t n = hf_fields_unpack(&cx->fields, f);
    if (cx->answered) {
        cx->has_trailers = n > 0; /* they follow the body, which may be waiting */
        return 0;
    }
    if (cx->status >= 200) {
        bool nobody = end || cx->for_head || cx->status == 204 || cx->status == 304;
        cx->answered = true;
        if (cx->ops->on_head)
            cx->ops->on_head(cx, cx->status, f, n, nobody ? 0 : cx->length);
        return 0;
    }
    if (cx->status < 100 || ++cx->interims > HF_CLIENT_INTERIM_MAX)
        return reset(s, cx->id);
    cx->length = -1;
    if (cx->ops->on_interim)
        cx->ops->on_interim(cx, cx->status, f, n);
    return 0;
}

static int on_frame_recv(nghttp2_session *s, const nghttp2_frame *frame, void *user)
{
    struct hf_client *c = user;
    int32_t id = frame->hd.stream_id;
    struct hf_cx *cx = id ? cx_of(s, id) : NULL;
    bool end = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (frame->hd.type == NGHTTP2_GOAWAY)
        hf_client_going(c);
    if (!cx)
        return 0;
    if (frame->hd.type == NGHTTP2_HEADERS)
        (void)heard_head(cx, s, end);
    else if (frame->hd.type != NGHTTP2_DATA)
        return 0;
    cx = cx_of(s, id); /* a callback may have ended it */
    if (!cx || !end)
        return 0;
    cx->fin = true;
    if (!cx->paused && !cx->held.n)
        complete(cx);
    return 0;
}

static int on_data_chunk(nghttp2_session *s, uint8_t flags, int32_t id, const uint8_t *p, size_t n,
                         void *user)
{
    struct hf_cx *cx = cx_of(s, id);
    (void)nghttp2_session_consume_connection(s, n);
    if (cx && (cx->paused || cx->held.n)) {
        if (hf_buf_add(&cx->held, p, n) < 0)
            return reset(s, id); /* cannot be: the window is smaller */
        return 0;
    }
    (void)nghttp2_session_consume_stream(s, id, n);
    if (cx && cx->ops->on_data)
        cx->ops->on_data(cx, (const char *)p, n);
    return 0;
}

static int on_stream_close(nghttp2_session *s, int32_t id, uint32_t error, void *user)
{
    struct hf_cx *cx = cx_of(s, id);
    if (!cx)
        return 0;
    (void)nghttp2_session_set_stream_user_data(s, id, NULL);
    if (cx->fin) { /* whole, and waiting for its user */
        cx->id = 0;
        return 0;
    }
    bool refused = error == NGHTTP2_REFUSED_STREAM || error == NGHTTP2_HTTP_1_1_REQUIRED;
    cx->unsent = refused;
    hf_cx_failed(cx, error == NGHTTP2_NO_ERROR || refused ? -ECONNRESET : -EPROTO, refused);
    return 0;
}

static int on_frame_send(nghttp2_session *s, const nghttp2_frame *frame, void *user)
{
    struct hf_cx *cx = frame->hd.type == NGHTTP2_HEADERS ? cx_of(s, frame->hd.stream_id) : NULL;
    const struct hf_client *c = user;
    if (cx)
        cx->unsent = c->tls && !hf_tls_ready(c->tls);
    return 0;
}

static int on_frame_not_send(nghttp2_session *s, const nghttp2_frame *frame, int error, void *user)
{
    struct hf_cx *cx = frame->hd.type == NGHTTP2_HEADERS ? cx_of(s, frame->hd.stream_id) : NULL;
    if (!cx || !cx->unsent)
        return 0;
    (void)nghttp2_session_set_stream_user_data(s, cx->id, NULL);
    cx->id = 0;
    hf_cx_failed(cx, -ECONNRESET, true);
    return 0;
}

static int make_session(struct hf_client *c)
{
    nghttp2_session_callbacks *cb;
    nghttp2_option *o;
    if (nghttp2_session_callbacks_new(&cb) != 0 || nghttp2_option_new(&o) != 0)
        abort(); /* memory is out */
    nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame_recv);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data_chunk);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
    nghttp2_session_callbacks_set_on_frame_send_callback(cb, on_frame_send);
    nghttp2_session_callbacks_set_on_frame_not_send_callback(cb, on_frame_not_send);
    nghttp2_option_set_no_auto_window_update(o, 1);
    nghttp2_option_set_peer_max_concurrent_streams(o, HF_CLIENT_STREAMS_MAX);
    nghttp2_option_set_max_reserved_remote_streams(o, 0);
    int r = nghttp2_session_client_new2(&c->h2, cb, c, o);
    nghttp2_option_del(o);
    nghttp2_session_callbacks_del(cb);
    return r;
}

int hf_h2c_start(struct hf_client *c)
{
    static const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, HF_CLIENT_WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HF_CLIENT_HEAD_MAX},
    };
    if (make_session(c) != 0 ||
        nghttp2_submit_settings(c->h2, NGHTTP2_FLAG_NONE, settings, HF_ARRAY_LEN(settings)) != 0 ||
        nghttp2_session_set_local_window_size(c->h2, NGHTTP2_FLAG_NONE, 0, HF_CLIENT_CONN_WINDOW) != 0)
        return -ENOMEM;
    hf_client_kick(c);
    return 0;
}

void hf_h2c_input(struct hf_client *c, const char *p, size_t n)
{
    c->receiving = true;
    ssize_t r = nghttp2_session_mem_recv(c->h2, (const uint8_t *)p, n);
    c->receiving = false;
    if (r < 0) {
        hf_client_die(c, -EBADMSG);
        return;
    }
    if (!c->done)
        hf_h2c_kick(c);
}

bool hf_h2c_free_slot(const struct hf_client *c)
{
    uint32_t peer = nghttp2_session_get_remote_settings(c->h2, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
    return c->exchange_n < HF_MIN(peer, HF_CLIENT_STREAMS_MAX) &&
           nghttp2_session_check_request_allowed(c->h2);
}

/* ---- work between the callbacks of nghttp2 ---- */

static void release_held(struct hf_cx *cx)
{
    struct hf_client *c = cx->client;
    struct hf_buf held = cx->held;
    int32_t id = cx->id;
    cx->held = HF_BUF_INIT(held.max);
    if (id)
        (void)nghttp2_session_consume_stream(c->h2, id, held.n);
    if (cx->ops->on_data)
        cx->ops->on_data(cx, held.p, held.n);
    hf_buf_done(&held);
}

/* One exchange's turn; it may be gone afterwards. */
static void turn(struct hf_client *c, struct hf_cx *cx)
{
    if (cx->want_drain && cx->body.n - cx->body_off <= HF_CLIENT_QUEUE_LOW) {
        cx->want_drain = false;
        if (cx->ops->on_drain)
            cx->ops->on_drain(cx);
        if (!still_there(c, cx))
            return;
    }
    if (!cx->paused && cx->held.n) {
        release_held(cx);
        if (!still_there(c, cx))
            return;
    }
    if (cx->fin && !cx->paused && !cx->held.n)
        complete(cx);
}

void hf_h2c_kick(struct hf_client *c)
{
    bool over = !c->stream; /* what has come whole is still handed on */
    if ((c->closing && !over) || c->receiving)
        return;
    send_all(c);
    struct hf_cx *all[HF_CLIENT_STREAMS_MAX];
    size_t n = 0;
    hf_list_foreach(it, &c->exchanges)
    {
        struct hf_cx *cx = hf_list_entry(it, struct hf_cx, node);
        if (n < HF_CLIENT_STREAMS_MAX && (cx->want_drain || cx->held.n || cx->fin))
            all[n++] = cx;
    }
    for (size_t i = 0; i < n && (!c->closing || over); i++)
        if (still_there(c, all[i]))
            turn(c, all[i]);
    if (n)
        send_all(c);
    if (!c->closing && !nghttp2_session_check_request_allowed(c->h2))
        hf_client_going(c);
}
