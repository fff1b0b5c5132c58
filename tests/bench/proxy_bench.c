/* One server with the proxy and one static route, to be compared with nginx by the same load:
 *
 *   proxy-bench LISTEN_PORT UPSTREAM_PORT
 *   wrk -t1 -c32 -H 'Host: 8000-bench.localhost' http://127.0.0.1:LISTEN_PORT/
 *
 * Sandbox "bench", port 8000, is 127.0.0.1:UPSTREAM_PORT. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>

#include "proxy/proxy.h"

struct bench {
    struct hf_proxy *proxy;
    uint16_t upstream;
};

static void lookup(void *self, struct hf_str id, struct hf_route *ret)
{
    *ret = (struct hf_route){.state = hf_str_eq(id, "bench") ? HF_ROUTE_RUNNING : HF_ROUTE_NOT_FOUND};
}

static void dial(void *self, void *handle, uint16_t port, void (*cb)(void *arg, int fd), void *arg)
{
    struct bench *b = self;
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(b->upstream), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    hf_auto_close int fd = port == 8000 ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        cb(arg, -ECONNREFUSED);
    else
        cb(arg, hf_take_fd(&fd));
}

static const struct hf_proxy_ops ops = {lookup, dial};

static void on_request(void *self, struct hf_req *req)
{
    struct bench *b = self;
    if (hf_proxy_match(b->proxy, req))
        hf_proxy_handle(b->proxy, req);
    else
        hf_res_error(req, 404, "not a sandbox");
}

static const struct hf_http_handler handler = {on_request};

static int parse_port(const char *s, uint16_t *ret)
{
    uint64_t v;
    if (hf_parse_u64(hf_str_c(s), UINT16_MAX, &v) < 0)
        return -EINVAL;
    *ret = (uint16_t)v;
    return 0;
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    struct hf_err err;
    uint16_t port;
    if (argc != 3 || parse_port(argv[1], &port) < 0 || parse_port(argv[2], &b.upstream) < 0) {
        fprintf(stderr, "usage: proxy-bench LISTEN_PORT UPSTREAM_PORT\n");
        return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    uv_loop_t *loop = uv_default_loop();
    struct hf_http_server *s = hf_http_server_new(loop, &handler, &b);
    b.proxy = hf_proxy_new(loop, "localhost", &ops, &b);
    if (hf_http_server_listen_tcp(s, "127.0.0.1", port, &err) < 0) {
        fprintf(stderr, "proxy-bench: %s\n", err.msg);
        return 1;
    }
    printf("%u\n", hf_http_server_port(s));
    (void)fflush(stdout);
    return uv_run(loop, UV_RUN_DEFAULT);
}
