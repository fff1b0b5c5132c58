#include "control/envd_client.h"

#include <stdio.h>

#include "base/buf.h"
#include "base/clock.h"

struct hf_envd_call {
    uv_pipe_t pipe;
    uv_timer_t timer;
    uv_connect_t connect;
    uv_write_t write;
    char *request;
    const char *path; /* for messages */
    struct hf_buf in;
    char chunk[4096];
    hf_envd_cb cb;
    void *arg;
    bool finished;
    unsigned open_handles;
    struct hf_err err;
    char version[24], generation[24];
    int64_t want_generation; /* 0 = any */
};

static void on_closed(uv_handle_t *h)
{
    struct hf_envd_call *call = h->data;
    if (--call->open_handles)
        return;
    call->cb(call->arg, call->version, call->err.r ? &call->err : NULL);
    hf_buf_done(&call->in);
    if (call->request) /* it holds the token and the user's variables */
        explicit_bzero(call->request, strlen(call->request));
    free(call->request);
    free(call);
}

static void finish(struct hf_envd_call *call)
{
    if (call->finished)
        return;
    call->finished = true;
    uv_close((uv_handle_t *)&call->pipe, on_closed);
    uv_close((uv_handle_t *)&call->timer, on_closed);
}

static void fail(struct hf_envd_call *call, int r, const char *what)
{
    if (!call->finished)
        (void)hf_err_http(&call->err, r, 500, "the sandbox's daemon did not answer %s: %s", call->path, what);
    finish(call);
}

static bool line_value(struct hf_str line, const char *name, char *out, size_t n)
{
    size_t name_n = strlen(name);
    if (line.n <= name_n || line.p[name_n] != ':')
        return false;
    if (!hf_str_caseeq((struct hf_str){line.p, name_n}, name))
        return false;
    const char *p = line.p + name_n + 1, *end = line.p + line.n;
    while (p < end && *p == ' ')
        p++;
    (void)snprintf(out, n, "%.*s", (int)HF_MIN((size_t)(end - p), n - 1), p);
    return true;
}

int hf_envd_parse_head(struct hf_str s, int *ret_status, char *version, size_t version_n, char *generation,
                       size_t generation_n)
{
    const char *end = s.n ? memmem(s.p, s.n, "\r\n\r\n", 4) : NULL;
    if (!end)
        return s.n >= HF_ENVD_HEAD_MAX ? -EBADMSG : 0;
    struct hf_str head = {s.p, (size_t)(end - s.p) + 2};
    uint64_t status;
    if (head.n < 14 || !hf_str_starts(head, "HTTP/1.1 ") ||
        hf_parse_u64((struct hf_str){head.p + 9, 3}, 599, &status) < 0 || status < 100)
        return -EBADMSG;
    *ret_status = (int)status;
    for (const char *p = head.p; p < head.p + head.n;) {
        const char *eol = memmem(p, (size_t)(head.p + head.n - p), "\r\n", 2);
        if (!eol)
            break;
        struct hf_str line = {p, (size_t)(eol - p)};
        (void)line_value(line, "x-envd-version", version, version_n);
        (void)line_value(line, "x-holdfast-generation", generation, generation_n);
        p = eol + 2;
    }
    return 1;
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct hf_envd_call *call = h->data;
    *buf = uv_buf_init(call->chunk, sizeof(call->chunk));
}

/* What the box shows to its programs is what it was given: nothing runs on as somebody else. */
static bool confirmed(const struct hf_envd_call *call)
{
    uint64_t told;
    return !call->want_generation || (hf_parse_u64(hf_str_c(call->generation), INT64_MAX, &told) == 0 &&
                                      (int64_t)told == call->want_generation);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct hf_envd_call *call = stream->data;
    if (n == 0)
        return;
    if (n < 0) {
        fail(call, n == UV_EOF ? -ECONNRESET : (int)n, "it closed the connection without an answer");
        return;
    }
    if (hf_buf_add(&call->in, buf->base, (size_t)n) < 0) {
        fail(call, -EBADMSG, "its answer is too long");
        return;
    }
    int status = 0;
    int r = hf_envd_parse_head((struct hf_str){call->in.p, call->in.n}, &status, call->version,
                               sizeof(call->version), call->generation, sizeof(call->generation));
    if (r == 0)
        return;
    if (r < 0) {
        fail(call, r, "its answer is not HTTP");
    } else if (status / 100 != 2) {
        char what[32];
        (void)snprintf(what, sizeof(what), "status %d", status);
        fail(call, -EPROTO, what);
    } else if (!confirmed(call)) {
        fail(call, -EPROTO, "it does not confirm the generation of the sandbox");
    } else {
        finish(call);
    }
}

static void on_written(uv_write_t *w, int status)
{
    struct hf_envd_call *call = w->data;
    if (status < 0 && status != UV_ECANCELED)
        fail(call, status, uv_strerror(status));
}

static void on_connected(uv_connect_t *connect, int status)
{
    struct hf_envd_call *call = connect->data;
    if (call->finished)
        return;
    if (status < 0) {
        fail(call, status, uv_strerror(status));
        return;
    }
    uv_buf_t buf = uv_buf_init(call->request, (unsigned)strlen(call->request));
    call->write.data = call;
    int r = uv_write(&call->write, (uv_stream_t *)&call->pipe, &buf, 1, on_written);
    if (r == 0)
        r = uv_read_start((uv_stream_t *)&call->pipe, on_alloc, on_read);
    if (r < 0)
        fail(call, r, uv_strerror(r));
}

static void on_timeout(uv_timer_t *t)
{
    fail(t->data, -ETIMEDOUT, "not in time");
}

/* NULL for a body that could not be made or is not UTF-8. */
static char *build_init(const json_t *body)
{
    hf_auto_free char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    if (!text)
        return NULL;
    return hf_xasprintf("POST /init HTTP/1.1\r\nHost: envd\r\nContent-Type: application/json\r\n"
                        "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                        strlen(text), text);
}

static char *build_request(const struct hf_envd_init *init)
{
    char now[HF_RFC3339_MAX];
    hf_rfc3339_ns(hf_real_ns(), now);
    json_auto_t *body =
        json_pack("{s:s, s:s, s:s, s:s, s:s}", "accessToken", init->token, "timestamp", now, "defaultUser",
                  init->default_user, "sandboxId", init->sandbox_id, "templateId", init->template_id);
    if (!body)
        return NULL;
    if (init->env) /* else a restored one keeps what it has */
        (void)json_object_set_new(body, "envVars", json_deep_copy(init->env));
    if (init->ca_bundle)
        (void)json_object_set_new(body, "caBundle", json_string(init->ca_bundle));
    (void)json_object_set_new(body, "generation", json_integer(init->generation));
    if (init->clone) {
        (void)json_object_set_new(body, "clone", json_true());
        (void)json_object_set_new(body, "replaceAccessToken", json_true());
    }
    return build_init(body);
}
/* Takes request. */
static struct hf_envd_call *start(uv_loop_t *loop, const char *socket_path, const char *path, char *request,
                                  uint64_t timeout_ms, hf_envd_cb cb, void *arg)
{
    struct hf_envd_call *call = hf_new(struct hf_envd_call);
    call->cb = cb;
    call->arg = arg;
    call->path = path;
    call->in = HF_BUF_INIT(HF_ENVD_HEAD_MAX);
    (void)uv_pipe_init(loop, &call->pipe, 0);
    (void)uv_timer_init(loop, &call->timer);
    call->pipe.data = call->timer.data = call;
    call->open_handles = 2;
    call->request = request;
    if (!call->request) {
        fail(call, -EINVAL, "the environment is not valid UTF-8");
        return call;
    }
    (void)uv_timer_start(&call->timer, on_timeout, timeout_ms, 0);
    call->connect.data = call;
    uv_pipe_connect(&call->connect, &call->pipe, socket_path, on_connected);
    return call;
}

struct hf_envd_call *hf_envd_init(uv_loop_t *loop, const char *socket_path, const struct hf_envd_init *init,
                                  uint64_t timeout_ms, hf_envd_cb cb, void *arg)
{
    struct hf_envd_call *call = start(loop, socket_path, "/init", build_request(init), timeout_ms, cb, arg);
    call->want_generation = init->generation;
    return call;
}

struct hf_envd_call *hf_envd_ca(uv_loop_t *loop, const char *socket_path, const char *pem,
                                uint64_t timeout_ms, hf_envd_cb cb, void *arg)
{
    json_auto_t *body = json_pack("{s:s}", "caBundle", pem);
    return start(loop, socket_path, "/init", build_init(body), timeout_ms, cb, arg);
}

struct hf_envd_call *hf_envd_health(uv_loop_t *loop, const char *socket_path, uint64_t timeout_ms,
                                    hf_envd_cb cb, void *arg)
{
    char *request = hf_xstrdup("GET /health HTTP/1.1\r\nHost: envd\r\nConnection: close\r\n\r\n");
    return start(loop, socket_path, "/health", request, timeout_ms, cb, arg);
}

void hf_envd_cancel(struct hf_envd_call *call)
{
    fail(call, -ECANCELED, "cancelled");
}
