#include "envd/rpc.h"

#include <stdarg.h>
#include <stdio.h>

#include "envd/awake.h"
#include "envd/rpcwire.h"
#include "wire/connect.h"

/* The end-stream envelope and unary errors: a message of at most HF_ERR_MSG_MAX, escaped. */
#define ERROR_JSON_MAX 8192u

/* Owned by the exchange and by its timer handle; freed when both are gone. */
struct rpc_call {
    struct envd *e;
    const struct rpc_method *m;
    struct hf_req *req;
    const struct rpc_ops *ops;
    void *data;
    unsigned refs;
    bool json, gzip;   /* codec; the request body (unary) or its messages (streams) may be gzip */
    bool begun;        /* the stream's response head is out */
    bool finished;     /* the last byte of the answer is queued; nothing may follow */
    bool closed;       /* the exchange is gone */
    bool stopped;      /* rpc_send said stop */
    bool timer_active; /* the handle must be closed */
    char user[RPC_USER_MAX];
    unsigned keepalive_s;
    uint64_t timeout_ms;
    struct hf_buf body; /* unary request */
    struct hf_connect_parser parser;
    json_t *first;       /* server stream: its one request message */
    size_t first_n;      /* its size on the wire */
    size_t held, queued; /* this call's share of the totals below */
    struct awake_timer timer;
};

static const struct rpc_ops no_ops;

/* Bytes of requests that are arriving, and of streams' output that waits for its reader (as last seen). */
static size_t held_total, queued_total;

static void note_held(struct rpc_call *c, size_t n)
{
    held_total += n - c->held;
    c->held = n;
}

static void note_queued(struct rpc_call *c, size_t n)
{
    queued_total += n - c->queued;
    c->queued = n;
}

static void call_ref(struct rpc_call *c)
{
    c->refs++;
}

static void call_unref(struct rpc_call *c)
{
    if (--c->refs > 0)
        return;
    hf_buf_done(&c->body);
    hf_connect_done(&c->parser);
    json_decref(c->first);
    free(c);
}

void rpc_set_ops(struct rpc_call *c, const struct rpc_ops *ops, void *data)
{
    c->ops = ops ? ops : &no_ops;
    c->data = data;
}

void *rpc_data(const struct rpc_call *c)
{
    return c->data;
}

struct envd *rpc_envd(const struct rpc_call *c)
{
    return c->e;
}

const char *rpc_user(const struct rpc_call *c)
{
    return c->user[0] ? c->user : c->e->default_user;
}

struct hf_str rpc_header(const struct rpc_call *c, const char *name)
{
    return c->closed ? (struct hf_str){NULL, 0} : hf_req_header(c->req, name);
}

unsigned rpc_keepalive_s(const struct rpc_call *c)
{
    return c->keepalive_s;
}

void rpc_answer_header(struct rpc_call *c, const char *name, const char *value)
{
    if (!c->finished && !c->closed)
        hf_res_header(c->req, name, value);
}

uint64_t rpc_timeout_ms(const struct rpc_call *c)
{
    return c->timeout_ms;
}

bool rpc_is_json(const struct rpc_call *c)
{
    return c->json;
}

size_t rpc_queued(const struct rpc_call *c)
{
    return c->closed ? 0 : hf_res_queued(c->req);
}

void rpc_pause_input(struct rpc_call *c)
{
    if (!c->closed)
        hf_req_pause(c->req);
}

void rpc_resume_input(struct rpc_call *c)
{
    if (!c->closed)
        hf_req_resume(c->req);
}

/* ---- answers ---- */

static void begin_stream(struct rpc_call *c)
{
    if (c->begun)
        return;
    c->begun = true;
    hf_res_header(c->req, "Content-Type", c->json ? "application/connect+json" : "application/connect+proto");
    hf_res_begin(c->req, 200, -1);
}

static void write_envelope(struct rpc_call *c, unsigned flags, const void *p, size_t n)
{
    unsigned char *out = hf_xmalloc(HF_CONNECT_HEAD + n);
    hf_connect_head(out, flags, (uint32_t)n);
    if (n)
        memcpy(out + HF_CONNECT_HEAD, p, n);
    begin_stream(c);
    (void)hf_res_write_take(c->req, out, HF_CONNECT_HEAD + n);
}

int rpc_send_raw(struct rpc_call *c, const void *p, size_t n)
{
    if (c->finished || c->closed || n > UINT32_MAX)
        return 0;
    write_envelope(c, 0, p, n);
    note_queued(c, rpc_queued(c));
    c->stopped = c->queued > (queued_total > RPC_QUEUES_MAX ? RPC_QUEUE_SMALL : RPC_QUEUE_HIGH);
    if (c->stopped)
        hf_res_want_drain(c->req);
    return c->stopped;
}

/* msg in the call's codec; false (and the call failed) when it can't be encoded. */
static bool encode(struct rpc_call *c, const json_t *msg, struct hf_buf *out)
{
    if (c->json) {
        hf_auto_free char *text = json_dumps(msg, JSON_COMPACT);
        if (text && hf_buf_adds(out, text) == 0)
            return true;
        rpc_fail(c, RPC_INTERNAL, "the answer can't be encoded as JSON");
        return false;
    }
    struct hf_err err = {0};
    if (pb_from_json(c->m->out, msg, out, &err) == 0)
        return true;
    rpc_fail(c, RPC_INTERNAL, "the answer can't be encoded: %s", err.msg);
    return false;
}

int rpc_send(struct rpc_call *c, json_t *msg)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(UINT32_MAX);
    call_ref(c);
    int stop = !c->finished && !c->closed && encode(c, msg, &b) ? rpc_send_raw(c, b.p, b.n) : 0;
    json_decref(msg);
    call_unref(c);
    return stop;
}

void rpc_finish(struct rpc_call *c)
{
    if (c->finished || c->closed)
        return;
    c->finished = true;
    call_ref(c);
    write_envelope(c, HF_CONNECT_FLAG_END, "{}", 2);
    if (!c->closed)
        hf_res_end(c->req);
    call_unref(c);
}

static void send_unary(struct rpc_call *c, const void *p, size_t n)
{
    if (n > RPC_QUEUE_HIGH && queued_total + n > RPC_ANSWERS_MAX) {
        rpc_fail(c, RPC_RESOURCE_EXHAUSTED,
                 "too many large answers wait for clients that do not read them: ask again later");
        return;
    }
    c->finished = true;
    hf_res_send(c->req, 200, c->json ? "application/json" : "application/proto", n ? p : "", n);
    note_queued(c, hf_res_queued(c->req));
}

void rpc_reply(struct rpc_call *c, json_t *msg)
{
    if (c->m->kind != RPC_UNARY) {
        call_ref(c);
        (void)rpc_send(c, msg);
        rpc_finish(c);
        call_unref(c);
        return;
    }
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(UINT32_MAX);
    if (!c->finished && !c->closed && encode(c, msg, &b))
        send_unary(c, b.p, b.n);
    json_decref(msg);
}

void rpc_reply_raw(struct rpc_call *c, const void *p, size_t n)
{
    if (!c->finished && !c->closed)
        send_unary(c, p, n);
}

void rpc_fail(struct rpc_call *c, enum rpc_code code, const char *fmt, ...)
{
    if (c->finished || c->closed)
        return;
    char message[HF_ERR_MSG_MAX];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);
    hf_auto_buf struct hf_buf error = HF_BUF_INIT(ERROR_JSON_MAX), b = HF_BUF_INIT(ERROR_JSON_MAX);
    if (rpc_error_json(&error, code, message) < 0 || hf_buf_addf(&b, "{\"error\":%s}", error.p) < 0)
        abort(); /* the message is bounded far below the buffer */
    c->finished = true;
    if (c->m->kind == RPC_UNARY) {
        hf_res_send(c->req, rpc_code_status(code), "application/json", error.p, error.n);
        return;
    }
    call_ref(c);
    write_envelope(c, HF_CONNECT_FLAG_END, b.p, b.n);
    if (!c->closed)
        hf_res_end(c->req);
    call_unref(c);
}

void rpc_abort(struct rpc_call *c)
{
    if (c->closed)
        return;
    c->finished = true;
    hf_res_abort(c->req);
}

/* ---- requests ---- */

static json_t *parse_json(struct rpc_call *c, struct hf_str text)
{
    json_error_t je;
    json_t *msg = json_loadb(text.n ? text.p : "", text.n, 0, &je);
    if (!msg) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "the request is not valid JSON: %s (line %d, column %d)", je.text,
                 je.line, je.column);
        return NULL;
    }
    struct hf_err err = {0};
    if (pb_normalise(c->m->in, msg, &err) == 0)
        return msg;
    rpc_fail(c, RPC_INVALID_ARGUMENT, "%s", err.msg);
    json_decref(msg);
    return NULL;
}

/* New message object, or NULL after the call was failed. */
static json_t *decode(struct rpc_call *c, struct hf_str raw, bool compressed)
{
    hf_auto_buf struct hf_buf plain = HF_BUF_INIT(RPC_MESSAGE_MAX);
    if (compressed) {
        int r = rpc_gunzip(raw.p, raw.n, &plain);
        if (r == -EMSGSIZE)
            rpc_fail(c, RPC_RESOURCE_EXHAUSTED, "message is larger than %u bytes", RPC_MESSAGE_MAX);
        else if (r < 0)
            rpc_fail(c, RPC_INVALID_ARGUMENT, "the request is not valid gzip");
        if (r < 0)
            return NULL;
        raw = (struct hf_str){plain.n ? plain.p : "", plain.n};
    }
    if (c->json)
        return parse_json(c, raw);
    json_t *msg = pb_to_json(c->m->in, raw.p, raw.n);
    if (!msg)
        rpc_fail(c, RPC_INVALID_ARGUMENT, "the request is not a valid %s protobuf message", c->m->in->name);
    return msg;
}

static int on_envelope(void *arg, unsigned flags, struct hf_str payload)
{
    struct rpc_call *c = arg;
    if (flags & HF_CONNECT_FLAG_END) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "a request must not carry an end-stream envelope");
        return 1;
    }
    if ((flags & HF_CONNECT_FLAG_COMPRESSED) && !c->gzip) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "compressed envelope without Connect-Content-Encoding");
        return 1;
    }
    if (c->m->kind == RPC_SERVER_STREAM && c->first) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "this method takes exactly one request message");
        return 1;
    }
    json_t *msg = decode(c, payload, flags & HF_CONNECT_FLAG_COMPRESSED);
    if (!msg)
        return 1;
    if (c->m->kind == RPC_SERVER_STREAM) {
        c->first = msg;
        c->first_n = payload.n;
        return 0;
    }
    if (c->ops->on_message)
        c->ops->on_message(c, msg);
    json_decref(msg);
    return c->finished || c->closed;
}

static void feed_stream(struct rpc_call *c, const char *p, size_t n)
{
    int r = hf_connect_feed(&c->parser, p, n, on_envelope, c);
    if (r == -EMSGSIZE)
        rpc_fail(c, RPC_RESOURCE_EXHAUSTED, "message is larger than %u bytes", RPC_MESSAGE_MAX);
    else if (r < 0)
        rpc_fail(c, RPC_INVALID_ARGUMENT, "malformed envelope: unknown flags 0x%02x", c->parser.head[0]);
}

static void req_data(struct hf_req *req, const char *p, size_t n)
{
    struct rpc_call *c = hf_req_data(req);
    if (c->finished)
        return;
    call_ref(c);
    if (c->m->kind != RPC_UNARY)
        feed_stream(c, p, n);
    else if (hf_buf_add(&c->body, p, n) < 0)
        rpc_fail(c, RPC_RESOURCE_EXHAUSTED, "message is larger than %u bytes", RPC_MESSAGE_MAX);
    note_held(c, c->body.n + c->parser.payload.n + c->first_n);
    if (held_total > RPC_MESSAGES_MAX && c->held > RPC_MESSAGE_SMALL)
        rpc_fail(c, RPC_RESOURCE_EXHAUSTED,
                 "too many large requests at once, together they may have %u bytes: send it again later",
                 RPC_MESSAGES_MAX);
    if (c->finished) {
        hf_buf_done(&c->body);
        hf_connect_done(&c->parser);
        note_held(c, c->first_n);
    }
    call_unref(c);
}

static void end_unary(struct rpc_call *c)
{
    json_auto_t *msg = decode(c, (struct hf_str){c->body.n ? c->body.p : "", c->body.n}, c->gzip);
    hf_buf_done(&c->body);
    note_held(c, 0);
    if (msg)
        c->m->fn(c, msg);
}

static void end_stream(struct rpc_call *c)
{
    if (hf_connect_partial(&c->parser)) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "the request ends in the middle of an envelope");
        return;
    }
    if (c->m->kind == RPC_CLIENT_STREAM) {
        if (c->ops->on_end)
            c->ops->on_end(c);
        return;
    }
    if (!c->first) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "the request has no message");
        return;
    }
    json_auto_t *msg = hf_take_ptr(c->first);
    c->first_n = 0;
    note_held(c, 0);
    c->m->fn(c, msg);
}

static void req_end(struct hf_req *req)
{
    struct rpc_call *c = hf_req_data(req);
    if (c->finished)
        return;
    call_ref(c);
    if (c->m->kind == RPC_UNARY)
        end_unary(c);
    else
        end_stream(c);
    call_unref(c);
}

static void req_drain(struct hf_req *req)
{
    struct rpc_call *c = hf_req_data(req);
    if (!c->stopped || c->finished)
        return;
    c->stopped = false;
    note_queued(c, hf_res_queued(req));
    call_ref(c);
    if (c->ops->on_drain)
        c->ops->on_drain(c);
    call_unref(c);
}

static void timer_closed(uv_handle_t *h)
{
    call_unref(h->data);
}

static void req_close(struct hf_req *req)
{
    struct rpc_call *c = hf_req_data(req);
    c->closed = true;
    note_held(c, 0);
    note_queued(c, 0);
    if (c->timer_active)
        awake_close(&c->timer, timer_closed);
    if (c->ops->on_close)
        c->ops->on_close(c);
    call_unref(c);
}

static const struct hf_req_ops req_ops = {
    .on_data = req_data, .on_end = req_end, .on_drain = req_drain, .on_close = req_close};

static void timed_out(struct awake_timer *t)
{
    struct rpc_call *c = t->uv.data;
    if (c->finished)
        return;
    call_ref(c);
    if (c->ops->on_timeout)
        c->ops->on_timeout(c);
    rpc_fail(c, RPC_DEADLINE_EXCEEDED, "context deadline exceeded");
    call_unref(c);
}

static void arm_deadline(struct rpc_call *c, uint64_t ms)
{
    awake_init(c->e->loop, &c->timer);
    c->timer.uv.data = c;
    c->timer_active = true;
    call_ref(c);
    awake_start(&c->timer, ms, timed_out);
}

/* Reads the headers that every call shares; false after the call was failed. */
static bool read_headers(struct rpc_call *c)
{
    struct hf_str v = hf_req_header(c->req, "connect-protocol-version");
    if (v.p && !hf_str_eq(v, "1")) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "connect-protocol-version must be \"1\"");
        return false;
    }
    v = hf_req_header(c->req, c->m->kind == RPC_UNARY ? "content-encoding" : "connect-content-encoding");
    c->gzip = v.p && hf_str_caseeq(v, "gzip");
    if (v.n && !c->gzip && !hf_str_caseeq(v, "identity")) {
        rpc_fail(c, RPC_UNIMPLEMENTED, "unknown compression \"%.*s\": supported encodings are gzip, identity",
                 (int)HF_MIN(v.n, 32), v.p);
        return false;
    }
    v = hf_req_header(c->req, "authorization");
    if (v.p && rpc_parse_basic_user(v, c->user) < 0) {
        rpc_fail(c, RPC_UNAUTHENTICATED, "the Authorization header is not valid Basic authentication");
        return false;
    }
    c->keepalive_s = rpc_parse_keepalive(hf_req_header(c->req, "keepalive-ping-interval"));
    v = hf_req_header(c->req, "connect-timeout-ms");
    if (v.p && rpc_parse_timeout(v, &c->timeout_ms) < 0) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "Connect-Timeout-Ms must be a number of at most %d digits",
                 RPC_TIMEOUT_DIGITS);
        return false;
    }
    if (c->timeout_ms > 0)
        arm_deadline(c, c->timeout_ms);
    return true;
}

void rpc_handle(struct envd *e, const struct rpc_method *m, struct hf_req *req)
{
    bool json;
    if (rpc_parse_content_type(hf_req_header(req, "content-type"), m->kind, &json) < 0) {
        bool unary = m->kind == RPC_UNARY;
        const char *accepted = unary ? "application/json, application/proto"
                                     : "application/connect+json, application/connect+proto";
        hf_res_header(req, "Accept-Post", accepted);
        hf_res_error(req, 415, "unsupported content type; this method takes %s", accepted);
        return;
    }
    struct rpc_call *c = hf_new(struct rpc_call);
    c->e = e;
    c->m = m;
    c->req = req;
    c->json = json;
    c->ops = &no_ops;
    c->refs = 2; /* the exchange, and this function */
    c->body = HF_BUF_INIT(RPC_MESSAGE_MAX);
    hf_connect_init(&c->parser, RPC_MESSAGE_MAX);
    hf_req_set_ops(req, &req_ops, c);
    if (read_headers(c) && m->kind == RPC_CLIENT_STREAM)
        m->fn(c, NULL);
    call_unref(c);
}
