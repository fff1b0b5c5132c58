/* What a handler can ask of a request. */
#include "wire/http_int.h"

struct hf_str hf_req_method(const struct hf_req *r)
{
    return (struct hf_str){r->head_p + r->head.method, r->head.method_n};
}

struct hf_str hf_req_target(const struct hf_req *r)
{
    return (struct hf_str){r->head_p + r->head.target, r->head.target_n};
}

struct hf_str hf_req_path(const struct hf_req *r)
{
    return r->head.path;
}

struct hf_str hf_req_query(const struct hf_req *r)
{
    return r->head.query;
}

struct hf_str hf_req_header(const struct hf_req *r, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < r->head.n; i++) {
        const struct hf_hdr *e = &r->head.hdr[i];
        if (e->name_n == n && hf_str_caseeq((struct hf_str){r->head_p + e->name, n}, name))
            return (struct hf_str){r->head_p + e->value, e->value_n};
    }
    return (struct hf_str){NULL, 0};
}

size_t hf_req_header_count(const struct hf_req *r)
{
    return r->head.n;
}

void hf_req_header_at(const struct hf_req *r, size_t i, struct hf_str *ret_name, struct hf_str *ret_value)
{
    const struct hf_hdr *e = &r->head.hdr[i];
    *ret_name = (struct hf_str){r->head_p + e->name, e->name_n};
    *ret_value = (struct hf_str){r->head_p + e->value, e->value_n};
}

bool hf_req_trailer_at(const struct hf_req *r, size_t i, struct hf_str *ret_name, struct hf_str *ret_value)
{
    return r->stream && r->conn->server->more->req_trailer(r, i, ret_name, ret_value);
}

bool hf_req_has_body(const struct hf_req *r)
{
    return r->head.length != 0;
}

int64_t hf_req_content_length(const struct hf_req *r)
{
    return r->head.length;
}

bool hf_req_aborted(const struct hf_req *r)
{
    return r->aborted;
}

int hf_req_version(const struct hf_req *r)
{
    return r->stream ? 20 : 10 + r->head.minor;
}

bool hf_req_tls(const struct hf_req *r)
{
    return r->conn->tls;
}

const char *hf_req_sni(const struct hf_req *r)
{
    const struct hf_conn *c = r->conn;
    return c->tls ? c->server->more->tls_sni(c->tls) : "";
}

void *hf_req_conn_data(const struct hf_req *r)
{
    return r->conn->data;
}

int hf_req_listener_tag(const struct hf_req *r)
{
    return r->conn->tag;
}

uv_loop_t *hf_req_loop(const struct hf_req *r)
{
    return r->conn->server->loop;
}

const char *hf_req_peer(const struct hf_req *r)
{
    return hf_conn_peer(r->conn);
}

void hf_req_set_ops(struct hf_req *r, const struct hf_req_ops *ops, void *data)
{
    r->ops = ops;
    r->data = data;
}

void *hf_req_data(const struct hf_req *r)
{
    return r->data;
}

void hf_req_pause(struct hf_req *r)
{
    r->paused = true;
    if (!r->conn->closing && !r->conn->depth && !r->stream)
        hf_conn_update_reading(r->conn);
}

void hf_req_resume(struct hf_req *r)
{
    if (!r->paused)
        return;
    r->paused = false;
    hf_conn_mark(r->conn);
}

uv_stream_t *hf_req_hijack(struct hf_req *r, struct hf_tls **ret_tls, struct hf_buf *ret_leftover)
{
    *ret_tls = NULL;
    struct hf_conn *c = r->conn;
    if (c->closing || r->res_started || !r->body_done || !c->stream || r->stream)
        return NULL;
    hf_conn_flush(c);
    if (c->closing || !hf_outq_idle(&c->out)) {
        hf_conn_close(c, true); /* an interim response is stuck: the client does not read */
        return NULL;
    }
    *ret_leftover = HF_BUF_INIT(c->in.max);
    if (hf_buf_add(ret_leftover, c->in.p, c->in.n) < 0 || hf_buf_add(ret_leftover, c->cur, c->cur_n) < 0) {
        hf_buf_done(ret_leftover);
        hf_conn_close(c, true);
        return NULL;
    }
    hf_conn_enter(c);
    uv_stream_t *stream = c->stream;
    if (c->reading)
        (void)uv_read_stop(stream);
    stream->data = NULL;
    *ret_tls = hf_take_ptr(c->tls);
    c->stream = NULL;
    c->reading = false;
    c->closing = true;
    c->orphan = true;
    hf_req_finish(r);
    hf_conn_leave(c);
    return stream;
}

/* ---- collecting a body ---- */

struct collect {
    struct hf_buf body;
    void (*cb)(struct hf_req *req, struct hf_str body, void *arg);
    void (*gone)(void *arg);
    void *arg;
    bool done;
};

static void collect_too_large(struct hf_req *r, struct collect *k)
{
    k->done = true;
    hf_res_error(r, 413, "the request body is larger than %zu bytes", k->body.max);
    if (k->gone)
        k->gone(k->arg);
}

static void collect_data(struct hf_req *r, const char *p, size_t n)
{
    struct collect *k = r->data;
    if (!k->done && hf_buf_add(&k->body, p, n) < 0)
        collect_too_large(r, k);
}

static void collect_end(struct hf_req *r)
{
    struct collect *k = r->data;
    if (k->done)
        return;
    k->done = true;
    struct hf_buf body = k->body;
    k->body = HF_BUF_INIT(body.max);
    k->cb(r, (struct hf_str){body.p ? body.p : "", body.n}, k->arg);
    hf_buf_done(&body);
}

static void collect_close(struct hf_req *r)
{
    struct collect *k = r->data;
    if (!k->done && k->gone)
        k->gone(k->arg);
    hf_buf_done(&k->body);
    free(k);
}

static const struct hf_req_ops collect_ops = {
    .on_data = collect_data, .on_end = collect_end, .on_close = collect_close};

void hf_req_collect(struct hf_req *r, size_t max,
                    void (*cb)(struct hf_req *req, struct hf_str body, void *arg), void (*gone)(void *arg),
                    void *arg)
{
    struct collect *k = hf_new(struct collect);
    k->body = HF_BUF_INIT(max);
    k->cb = cb;
    k->gone = gone;
    k->arg = arg;
    hf_req_set_ops(r, &collect_ops, k);
    if (r->head.length > 0 && (uint64_t)r->head.length > max)
        collect_too_large(r, k);
}
