/* What a sandbox's application may answer: the proxy's response parser. The first byte chooses the request
 * and the sizes of the pieces. Whatever reaches the client must itself be well-formed. */
#include <signal.h>
#include <sys/socket.h>

#include "proxy/proxy_int.h"

static uv_loop_t loop;
static struct hf_http_server *server;
static struct hf_proxy *proxy;
static int app = -1;

static void lookup(void *self, struct hf_str id, struct hf_route *ret)
{
    *ret = (struct hf_route){.state = HF_ROUTE_RUNNING};
}

static void dial(void *self, void *handle, uint16_t port, void (*cb)(void *arg, int fd), void *arg)
{
    int sv[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) < 0)
        abort();
    app = sv[1];
    cb(arg, sv[0]);
}

static const struct hf_proxy_ops ops = {lookup, dial, NULL};

static void on_request(void *self, struct hf_req *req)
{
    hf_proxy_handle(proxy, req);
}

static const struct hf_http_handler handler = {on_request};

static const char *const requests[] = {
    "GET / HTTP/1.1\r\nHost: 1-a.localhost\r\n\r\n",
    "HEAD / HTTP/1.1\r\nHost: 1-a.localhost\r\n\r\n",
    "GET / HTTP/1.0\r\nHost: 1-a.localhost\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: 1-a.localhost\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!server) {
        (void)signal(SIGPIPE, SIG_IGN);
        (void)uv_loop_init(&loop);
        server = hf_http_server_new(&loop, &handler, NULL);
        proxy = hf_proxy_new(&loop, "localhost", &ops, NULL);
    }
    if (size < 1)
        return 0;
    const char *request = requests[data[0] & 3];
    size_t piece = 1u + (data[0] >> 2);
    if (piece == 64)
        piece = size;
    struct hf_conn *c = hf_conn_new(server, NULL, 0, true);
    hf_conn_input(c, request, strlen(request));
    const char *p = (const char *)data + 1;
    size_t n = size - 1;
    for (size_t i = 0; i < n && c->req && !c->closing; i += piece) {
        struct hf_px *px = hf_req_data(c->req);
        if (c->req->closed || !px->up)
            break;
        hf_px_response(px, p + i, HF_MIN(piece, n - i));
    }
    if (c->req && !c->req->closed && !c->closing) {
        struct hf_px *px = hf_req_data(c->req);
        if (px->up)
            hf_px_response_end(px, UV_EOF);
    }
    hf_conn_free(c);
    hf_proxy_drop(proxy, "a");
    app = hf_close(app);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    return 0;
}
