/* Responses on a stream. */
#include <stdio.h>

#include "base/log.h"
#include "wire/http2.h"

#define FIELDS_MAX 256u

size_t hf_h2_queued(const struct hf_h2_stream *st)
{
    return st->out.n - st->out_off;
}

size_t hf_h2_res_queued(const struct hf_req *r)
{
    return hf_h2_queued(r->stream);
}

size_t hf_h2_res_high(const struct hf_req *r)
{
    size_t share = HF_HTTP_WRITE_HIGH / HF_MAX(r->stream->h2->stream_n, 1u);
    return HF_MAX(share, (size_t)HF_H2_STREAM_QUEUE_MIN);
}

static nghttp2_nv nv(struct hf_str name, struct hf_str value)
{
    return (nghttp2_nv){(uint8_t *)name.p, (uint8_t *)value.p, name.n, value.n, NGHTTP2_NV_FLAG_NONE};
}

static void lower(char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] >= 'A' && p[i] <= 'Z')
            p[i] |= 0x20;
}

static bool hop(struct hf_str name)
{
    static const char *const names[] = {"connection", "keep-alive", "proxy-connection", "transfer-encoding",
                                        "upgrade"};
    for (size_t i = 0; i < HF_ARRAY_LEN(names); i++)
        if (hf_str_eq(name, names[i]))
            return true;
    return false;
}

/* Only now: trailers that are submitted earlier overtake the body. */
static bool submit_trailers(nghttp2_session *s, const struct hf_h2_stream *st)
{
    nghttp2_nv v[FIELDS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < st->out_trailers.n && n < FIELDS_MAX; n++) {
        struct hf_str name = hf_str_c(st->out_trailers.p + i);
        struct hf_str value = hf_str_c(name.p + name.n + 1);
        v[n] = nv(name, value);
        i += name.n + value.n + 2;
    }
    return n && nghttp2_submit_trailer(s, st->id, v, n) == 0;
}

static ssize_t read_body(nghttp2_session *s, int32_t id, uint8_t *buf, size_t len, uint32_t *flags,
                         nghttp2_data_source *source, void *user)
{
    struct hf_h2_stream *st = nghttp2_session_get_stream_user_data(s, id);
    if (!st)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    size_t n = HF_MIN(len, hf_h2_queued(st));
    if (n)
        memcpy(buf, st->out.p + st->out_off, n);
    st->out_off += n;
    if (st->out_off == st->out.n) {
        hf_buf_done(&st->out);
        st->out_off = 0;
        if (st->out_end)
            *flags |= NGHTTP2_DATA_FLAG_EOF | (submit_trailers(s, st) ? NGHTTP2_DATA_FLAG_NO_END_STREAM : 0u);
        else if (!n)
            return NGHTTP2_ERR_DEFERRED;
    } else if (st->out_off > HF_HTTP_WRITE_HIGH) {
        hf_buf_consume(&st->out, st->out_off);
        st->out_off = 0;
    }
    return (ssize_t)n;
}

/* The lines of hf_res_header; their names become lower case in place. */
static size_t add_extra(nghttp2_nv *v, size_t n, struct hf_buf *extra)
{
    char *p = extra->p, *end = extra->n ? extra->p + extra->n : p;
    while (p < end && n < FIELDS_MAX) {
        char *colon = memchr(p, ':', (size_t)(end - p));
        char *eol = memmem(p, (size_t)(end - p), "\r\n", 2);
        if (!colon || !eol)
            break;
        struct hf_str name = {p, (size_t)(colon - p)};
        lower(p, name.n);
        if (!hop(name))
            v[n++] = nv(name, (struct hf_str){colon + 2, (size_t)(eol - colon - 2)});
        p = eol + 2;
    }
    return n;
}

/* Without a body the stream is closed by its head; a failure ends it. */
static void submitted(struct hf_req *r, int e)
{
    struct hf_h2_stream *st = r->stream;
    if (e != 0)
        (void)nghttp2_submit_rst_stream(st->h2->session, NGHTTP2_FLAG_NONE, st->id, NGHTTP2_INTERNAL_ERROR);
    hf_conn_mark(r->conn);
}

static void submit_head(struct hf_req *r, int status, const char *ctype, int64_t length, bool body)
{
    struct hf_h2_stream *st = r->stream;
    nghttp2_nv v[FIELDS_MAX + 4];
    char code[16], len[24];
    int k = snprintf(code, sizeof(code), "%d", status);
    size_t n = 0;
    v[n++] = nv(HF_STR(":status"), (struct hf_str){code, (size_t)k});
    if (ctype)
        v[n++] = nv(HF_STR("content-type"), hf_str_c(ctype));
    if (length >= 0) {
        k = snprintf(len, sizeof(len), "%lld", (long long)length);
        v[n++] = nv(HF_STR("content-length"), (struct hf_str){len, (size_t)k});
    }
    n = add_extra(v, n, &r->extra);
    nghttp2_data_provider data = {.read_callback = read_body};
    st->has_body = body;
    submitted(r, nghttp2_submit_response(st->h2->session, st->id, v, n, body ? &data : NULL));
    hf_buf_clear(&r->extra);
}

void hf_h2_res_head(struct hf_req *r, int status, const char *ctype, int64_t length, bool body)
{
    r->res_started = true;
    r->status = status;
    r->expect = false;
    /* Nothing but trailers can follow: hf_h2_res_end knows. Without them the head ends the stream, which is
     * how gRPC tells a failure. */
    r->stream->head_waits = body && length == 0;
    if (!r->stream->head_waits)
        submit_head(r, status, ctype, length, body);
}

void hf_h2_res_interim(struct hf_req *r, int status)
{
    struct hf_h2_stream *st = r->stream;
    char code[16];
    int k = snprintf(code, sizeof(code), "%d", status);
    nghttp2_nv v = nv(HF_STR(":status"), (struct hf_str){code, (size_t)k});
    submitted(r, nghttp2_submit_headers(st->h2->session, NGHTTP2_FLAG_NONE, st->id, NULL, &v, 1, NULL) < 0);
}

void hf_h2_res_write(struct hf_req *r, const void *p, size_t n)
{
    struct hf_h2_stream *st = r->stream;
    if (hf_buf_add(&st->out, p, n) < 0) {
        hf_log_warn("response queue over its limit, stream cut", "queued=%zu", hf_h2_queued(st));
        hf_h2_res_abort(r);
        return;
    }
    st->last_ms = uv_now(r->conn->server->loop);
    (void)nghttp2_session_resume_data(st->h2->session, st->id);
    hf_conn_mark(r->conn);
}

static int keep_trailer(struct hf_buf *b, const char *name, const char *value)
{
    struct hf_str n = hf_str_c(name);
    size_t at = b->n;
    if (!hf_is_token(n) || !hf_is_header_value(hf_str_c(value)))
        return 0;
    int r = hf_buf_add(b, name, n.n + 1);
    if (r < 0)
        return r;
    lower(b->p + at, n.n);
    if (hop(hf_str_c(b->p + at))) {
        b->n = at;
        return 0;
    }
    r = hf_buf_add(b, value, strlen(value) + 1);
    if (r < 0)
        b->n = at;
    return r;
}

void hf_h2_res_end(struct hf_req *r, const char *const *pairs, size_t n)
{
    struct hf_h2_stream *st = r->stream;
    if (st->head_waits)
        submit_head(r, r->status, NULL, 0, n > 0);
    st->head_waits = false;
    for (size_t i = 0; st->has_body && i < n; i++)
        if (keep_trailer(&st->out_trailers, pairs[2 * i], pairs[2 * i + 1]) < 0)
            hf_log_warn("trailer dropped: too many bytes", "name=%s", hf_log_quote(pairs[2 * i]));
    st->out_end = true;
    if (st->has_body)
        (void)nghttp2_session_resume_data(st->h2->session, st->id);
    hf_conn_mark(r->conn);
}

void hf_h2_res_abort(struct hf_req *r)
{
    struct hf_h2_stream *st = r->stream;
    r->aborted = true;
    (void)nghttp2_submit_rst_stream(st->h2->session, NGHTTP2_FLAG_NONE, st->id, NGHTTP2_INTERNAL_ERROR);
    hf_conn_mark(r->conn);
}
