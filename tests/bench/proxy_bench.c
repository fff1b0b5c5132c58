/* One server with the proxy and one static route, to be compared with nginx by the same load:
 *
 *   proxy-bench LISTEN_PORT UPSTREAM_PORT [TLS_PORT CERT KEY]
 *   wrk -t1 -c32 -H 'Host: 8000-bench.localhost' http://127.0.0.1:LISTEN_PORT/
 *
 * Sandbox "bench", port 8000, is 127.0.0.1:UPSTREAM_PORT, open to all. Sandbox "private" is the same with all
 * of the ingress policy on: traffic token (64 times "a"), masked host, limits. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/path.h"
#include "proxy/proxy.h"
#include "wire/tls.h"

#define PEM_MAX (1u << 20)

struct bench {
    struct hf_proxy *proxy;
    uint16_t upstream;
};

static void lookup(void *self, struct hf_str id, struct hf_route *ret)
{
    bool is_private = hf_str_eq(id, "private");
    *ret = (struct hf_route){.state =
                                 is_private || hf_str_eq(id, "bench") ? HF_ROUTE_RUNNING : HF_ROUTE_NOT_FOUND,
                             .tenant = "bench",
                             .private_traffic = is_private,
                             .mask_host = is_private ? "app:${PORT}" : ""};
    memset(ret->traffic_token, 'a', is_private ? sizeof(ret->traffic_token) - 1 : 0);
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

static const struct hf_proxy_ops ops = {lookup, dial, NULL};

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

static int listen_tls(struct hf_http_server *s, uint16_t port, const char *cert_path, const char *key_path,
                      struct hf_err *err)
{
    hf_auto_free char *cert = NULL, *key = NULL;
    struct hf_tls_ctx *ctx = NULL;
    size_t n;
    int r = hf_read_file(cert_path, PEM_MAX, &cert, &n);
    r = r < 0 ? r : hf_read_file(key_path, PEM_MAX, &key, &n);
    if (r < 0)
        return hf_err_set(err, r, "cannot read %s and %s", cert_path, key_path);
    r = hf_tls_server_ctx(cert, key, HF_ALPN_HTTP1, &ctx, err);
    r = r < 0 ? r : hf_http_server_listen_tls(s, "127.0.0.1", port, ctx, err);
    hf_tls_ctx_unref(ctx);
    return r;
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    struct hf_err err;
    uint16_t port, tls_port = 0;
    bool args_ok = argc == 3 || (argc == 6 && parse_port(argv[3], &tls_port) == 0);
    if (!args_ok || parse_port(argv[1], &port) < 0 || parse_port(argv[2], &b.upstream) < 0) {
        fprintf(stderr, "usage: proxy-bench LISTEN_PORT UPSTREAM_PORT [TLS_PORT CERT KEY]\n");
        return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    uv_loop_t *loop = uv_default_loop();
    struct hf_http_server *s = hf_http_server_new(loop, &handler, &b);
    b.proxy = hf_proxy_new(loop, "localhost", &ops, &b);
    hf_proxy_set_limits(b.proxy, 4096, 0);
    if (hf_http_server_listen_tcp(s, "127.0.0.1", port, &err) < 0 ||
        (tls_port && listen_tls(s, tls_port, argv[4], argv[5], &err) < 0)) {
        fprintf(stderr, "proxy-bench: %s\n", err.msg);
        return 1;
    }
    printf("%u\n", hf_http_server_port(s));
    (void)fflush(stdout);
    return uv_run(loop, UV_RUN_DEFAULT);
}
