/* The server's connection parser without sockets. The first byte chooses the sizes of the pieces; however
 * the bytes are cut, the same requests and the same body bytes must come out. */
#include "wire/http_int.h"

struct seen {
    unsigned requests, ends;
    uint64_t body;
    uint32_t sum;
    bool closing;
};

static struct seen seen;
static uv_loop_t loop;
static struct hf_http_server *server;

static void on_data(struct hf_req *req, const char *p, size_t n)
{
    seen.body += n;
    for (size_t i = 0; i < n; i++)
        seen.sum = seen.sum * 31 + (unsigned char)p[i];
}

static void on_end(struct hf_req *req)
{
    seen.ends++;
    hf_res_send(req, 200, NULL, "ok", 2);
}

static const struct hf_req_ops ops = {.on_data = on_data, .on_end = on_end};

static void on_request(void *self, struct hf_req *req)
{
    struct hf_str name, value;
    seen.requests++;
    for (size_t i = 0; i < hf_req_header_count(req); i++) {
        hf_req_header_at(req, i, &name, &value);
        seen.sum = seen.sum * 31 + (uint32_t)name.n + (uint32_t)value.n;
        if (!hf_is_token(name) || !hf_is_header_value(value))
            abort();
    }
    hf_req_set_ops(req, &ops, NULL);
}

static const struct hf_http_handler handler = {on_request};

static struct seen run(const char *p, size_t n, size_t piece)
{
    struct hf_conn *c = hf_conn_new(server, NULL, 0, true);
    memset(&seen, 0, sizeof(seen));
    for (size_t i = 0; i < n && !c->closing; i += piece) {
        hf_conn_input(c, p + i, HF_MIN(piece, n - i));
        if (!c->closing)
            hf_conn_settle(c);
    }
    seen.closing = c->closing || c->phase == HF_CONN_LINGER;
    struct seen s = seen;
    hf_conn_free(c);
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!server) {
        (void)uv_loop_init(&loop);
        server = hf_http_server_new(&loop, &handler, NULL);
    }
    if (size < 1)
        return 0;
    const char *p = (const char *)data + 1;
    struct seen whole = run(p, size - 1, size);
    struct seen cut = run(p, size - 1, 1u + data[0] % 61u);
    if (whole.requests != cut.requests || whole.ends != cut.ends || whole.body != cut.body ||
        whole.closing != cut.closing)
        abort();
    return 0;
}
