/* The HTTP/2 server without sockets: what follows the preface, cut in two ways (the first byte says how).
 * No way of cutting makes more requests of it, and each exchange ends exactly once. */
#include "wire/http2.h"

struct seen {
    unsigned requests, ends, closes;
    uint64_t body;
};

static struct seen seen;
static uv_loop_t loop;
static struct hf_http_server *server;

static void on_data(struct hf_req *req, const char *p, size_t n)
{
    seen.body += n;
}

static void on_end(struct hf_req *req)
{
    static const char *const trailers[] = {"x-t", "1"};
    struct hf_str name, value;
    for (size_t i = 0; hf_req_trailer_at(req, i, &name, &value); i++)
        if (!hf_is_header_value(value))
            abort();
    seen.ends++;
    hf_res_begin(req, 200, -1);
    (void)hf_res_write(req, "ok", 2);
    hf_res_end_trailers(req, trailers, 1);
}

static void on_close(struct hf_req *req)
{
    seen.closes++;
}

static const struct hf_req_ops ops = {.on_data = on_data, .on_end = on_end, .on_close = on_close};

static void on_request(void *self, struct hf_req *req)
{
    struct hf_str name, value;
    seen.requests++;
    if (!hf_req_header(req, "host").p || hf_req_path(req).n == 0)
        abort();
    for (size_t i = 0; i < hf_req_header_count(req); i++) {
        hf_req_header_at(req, i, &name, &value);
        if (!hf_is_token(name) || !hf_is_header_value(value))
            abort();
    }
    hf_req_set_ops(req, &ops, NULL);
}

static const struct hf_http_handler handler = {on_request};

static struct seen run(const char *p, size_t n, size_t piece)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    struct hf_conn *c = hf_conn_new(server, NULL, 0, true);
    memset(&seen, 0, sizeof(seen));
    hf_conn_input(c, preface, sizeof(preface) - 1);
    for (size_t i = 0; i < n && !c->closing; i += piece)
        hf_conn_input(c, p + i, HF_MIN(piece, n - i));
    if (!c->closing)
        hf_conn_settle(c);
    hf_conn_free(c);
    if (seen.requests != seen.closes)
        abort(); /* each exchange ends exactly once */
    return seen;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!server) {
        (void)uv_loop_init(&loop);
        server = hf_http_server_new(&loop, &handler, NULL);
        hf_http_server_http2(server);
    }
    if (size < 1)
        return 0;
    const char *p = (const char *)data + 1;
    struct seen whole = run(p, size - 1, size);
    struct seen cut = run(p, size - 1, 1u + data[0] % 61u);
    /* In pieces a connection may be over earlier: after a GOAWAY with no stream open. */
    if (cut.requests > whole.requests || cut.ends > whole.ends)
        abort();
    return 0;
}
