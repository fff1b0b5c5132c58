/* The server behind TLS, and connections that somebody else accepted. */
#include "net.h"
#include "tlsnet.h"

#include "wire/http_int.h"

#define HOST "Host: a.test\r\n"
#define LARGE (3u << 20)

static uv_loop_t loop;
static struct hf_http_server *server;
static struct tls_world world;
static struct hf_req *held;
static int requests, closes, aborts, drains, gones;
static uv_stream_t *hijacked;
static struct hf_tls *hijacked_tls;
static struct hf_buf leftover;
static char *large;

static void on_close(struct hf_req *req)
{
    closes++;
    aborts += hf_req_aborted(req);
    held = NULL;
}

static void on_drain(struct hf_req *req)
{
    drains++;
}

static const struct hf_req_ops hold_ops = {.on_close = on_close, .on_drain = on_drain};

static void echo(struct hf_req *req, struct hf_str b, void *arg)
{
    hf_res_send(req, 200, "text/plain", b.p, b.n);
}

static void describe(struct hf_req *req)
{
    char text[256];
    const char *data = hf_req_conn_data(req);
    int n = snprintf(text, sizeof(text), "tls=%d sni=%s version=%d data=%s dup=", hf_req_tls(req),
                     hf_req_sni(req), hf_req_version(req), data ? data : "none");
    hf_res_begin(req, 200, n + 4);
    (void)hf_res_write(req, text, (size_t)n);
    int copy = hf_res_dup_fd(req);
    (void)snprintf(text, sizeof(text), "%4d", copy);
    hf_close(copy);
    (void)hf_res_write(req, text, 4);
    hf_res_end(req);
}

static void on_request(void *self, struct hf_req *req)
{
    struct hf_str p = hf_req_path(req);
    requests++;
    if (hf_str_eq(p, "/echo"))
        hf_req_collect(req, LARGE, echo, NULL, NULL);
    else if (hf_str_eq(p, "/hold")) {
        held = req;
        hf_req_set_ops(req, &hold_ops, NULL);
    } else if (hf_str_eq(p, "/large"))
        hf_res_send(req, 200, NULL, large, LARGE);
    else if (hf_str_eq(p, "/describe"))
        describe(req);
    else if (hf_str_eq(p, "/hijack")) {
        leftover = (struct hf_buf){0};
        hijacked = hf_req_hijack(req, &hijacked_tls, &leftover);
    } else
        hf_res_send(req, 200, "text/plain", "ok", 2);
}

static const struct hf_http_handler handler = {on_request};

static int setup(void **state)
{
    struct hf_err err;
    assert_int_equal(uv_loop_init(&loop), 0);
    tls_world_init(&world, HF_ALPN_HTTP1);
    server = hf_http_server_new(&loop, &handler, NULL);
    assert_int_equal(hf_http_server_listen_tls(server, "127.0.0.1", 0, world.server, &err), 0);
    requests = closes = aborts = drains = gones = 0;
    held = NULL;
    large = hf_xmalloc(LARGE);
    for (size_t i = 0; i < LARGE; i++)
        large[i] = (char)('a' + i * 7 % 26);
    return 0;
}

static void server_gone(void *arg)
{
    *(bool *)arg = true;
}

static int teardown(void **state)
{
    bool done = false;
    hf_http_server_free(server, server_gone, &done);
    NET_WAIT(&loop, done);
    assert_int_equal(uv_loop_close(&loop), 0);
    tls_world_done(&world);
    free(large);
    return 0;
}

static struct tls_fd dial(void)
{
    struct tls_fd x =
        tls_dial_fd(net_connect(hf_http_server_port(server)), world.client, "a.test", HF_ALPN_HTTP1);
    tls_shake(&loop, &x);
    return x;
}

static void test_exchanges(void **state)
{
    struct tls_fd x = dial();
    tls_send(&loop, &x, "GET /describe HTTP/1.1\r\n" HOST "\r\n");
    tls_expect(&loop, &x, "tls=1 sni=a.test version=11 data=none dup= -95");
    hf_buf_clear(&x.plain);
    /* In pieces and pipelined, on the same connection. */
    tls_send(&loop, &x, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\n01234");
    net_pump(&loop, 5);
    tls_send(&loop, &x, "56789GET / HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    tls_expect(&loop, &x, "0123456789");
    tls_read_end(&loop, &x);
    assert_true(net_has(&x.plain, "Connection: close\r\n\r\nok"));
    assert_int_equal(x.end, 1); /* the end is told, not just cut */
    tls_fd_done(&x);
}

/* Head and body of an answer leave in one record. */
static void test_few_records(void **state)
{
    struct tls_fd x = dial();
    net_pump(&loop, 10);
    tls_turn(&loop, &x); /* the ticket */
    tls_send(&loop, &x, "GET / HTTP/1.1\r\n" HOST "\r\n");
    hf_buf_clear(&x.wire);
    NET_WAIT(&loop, net_recv(x.fd, &x.wire) == 1);
    size_t records = 0;
    for (size_t i = 0; i < x.wire.n; records++)
        i += 5 + ((size_t)(unsigned char)x.wire.p[i + 3] << 8 | (unsigned char)x.wire.p[i + 4]);
    assert_int_equal(records, 1);
    tls_fd_done(&x);
}

static void test_large_and_slow(void **state)
{
    struct tls_fd x = dial();
    tls_send(&loop, &x, "GET /large HTTP/1.1\r\n" HOST "\r\n");
    net_pump(&loop, 30); /* not a byte is taken: what the socket does not hold waits */
    uint64_t end = hf_mono_ms() + NET_TIMEOUT_MS;
    while (x.plain.n < LARGE && !x.end && hf_mono_ms() < end)
        tls_turn(&loop, &x);
    tls_send(&loop, &x, "GET / HTTP/1.1\r\n" HOST "\r\n");
    tls_expect(&loop, &x, "\r\n\r\nok");
    char *body = strstr(x.plain.p, "\r\n\r\n") + 4;
    assert_memory_equal(body, large, LARGE);
    tls_fd_done(&x);
}

static void test_backpressure(void **state)
{
    struct tls_fd x = dial();
    tls_send(&loop, &x, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    NET_WAIT(&loop, held);
    hf_res_begin(held, 200, -1);
    int r = 0;
    size_t n = 0;
    for (; !r && n < (64u << 20); n += 65536)
        r = hf_res_write(held, large, 65536);
    assert_int_equal(r, 1);
    while (!drains) {
        hf_buf_clear(&x.plain);
        tls_turn(&loop, &x);
    }
    hf_res_abort(held);
    NET_WAIT(&loop, closes);
    assert_int_equal(aborts, 1);
    tls_read_end(&loop, &x);
    assert_int_equal(x.end, -1); /* a cut is no clean end */
    tls_fd_done(&x);
}

static void test_client_goes(void **state)
{
    struct tls_fd x = dial();
    tls_send(&loop, &x, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    NET_WAIT(&loop, held);
    assert_int_equal(hf_tls_close(x.t, &x.out), 0);
    tls_flush(&loop, &x);
    NET_WAIT(&loop, closes);
    assert_int_equal(aborts, 1);
    tls_fd_done(&x);
}

static void test_not_tls(void **state)
{
    hf_auto_buf struct hf_buf in = HF_BUF_INIT(NET_BUF_MAX);
    int fd = net_connect(hf_http_server_port(server));
    net_send(&loop, fd, "GET / HTTP/1.1\r\n" HOST "\r\n");
    (void)net_read_end(&loop, fd, &in);
    assert_int_equal(requests, 0);
    assert_false(net_has(&in, "HTTP"));
    hf_close(fd);
}

static void test_bad_record(void **state)
{
    struct tls_fd x = dial();
    assert_int_equal(hf_tls_write(x.t, "GET / HTTP/1.1\r\n" HOST "\r\n", 32, &x.out), 0);
    x.out.p[x.out.n - 2] ^= 4;
    tls_flush(&loop, &x);
    tls_read_end(&loop, &x);
    assert_int_equal(requests, 0);
    assert_non_null(strstr(hf_tls_error(x.t), "alert"));
    tls_fd_done(&x);
}

static void test_handshake_timeout(void **state)
{
    hf_auto_buf struct hf_buf in = HF_BUF_INIT(NET_BUF_MAX);
    hf_http_server_set_timeouts(server, 60, 0);
    int silent = net_connect(hf_http_server_port(server)), half = net_connect(hf_http_server_port(server));
    net_send(&loop, half, "\x16\x03\x01");
    (void)net_read_end(&loop, silent, &in);
    (void)net_read_end(&loop, half, &in);
    struct tls_fd x = dial(); /* a finished one stays */
    net_pump(&loop, 150);
    tls_send(&loop, &x, "GET / HTTP/1.1\r\n" HOST "\r\n");
    tls_expect(&loop, &x, "ok");
    tls_fd_done(&x);
    hf_close(silent);
    hf_close(half);
    NET_WAIT(&loop, server->conn_n == 0);
    assert_int_equal(server->shaking_n, 0);
}

/* Connections that never finish a handshake go before those that have. */
static void test_half_open_flood(void **state)
{
    int fds[40];
    server->conns_max = 16;
    struct tls_fd x = dial();
    for (size_t i = 0; i < HF_ARRAY_LEN(fds); i++) {
        fds[i] = net_connect(hf_http_server_port(server));
        net_pump(&loop, 1);
    }
    NET_WAIT(&loop, server->conn_n <= 16);
    tls_send(&loop, &x, "GET / HTTP/1.1\r\n" HOST "\r\n");
    tls_expect(&loop, &x, "ok");
    struct tls_fd y = dial(); /* and a new client gets in */
    tls_send(&loop, &y, "GET / HTTP/1.1\r\n" HOST "\r\n");
    tls_expect(&loop, &y, "ok");
    for (size_t i = 0; i < HF_ARRAY_LEN(fds); i++)
        hf_close(fds[i]);
    tls_fd_done(&x);
    tls_fd_done(&y);
}

/* With a new certificate, open connections go on with the old one. */
static void test_reload(void **state)
{
    struct hf_err err;
    const char *names[] = {"b.test"};
    char *cert, *key;
    struct hf_tls_ctx *ctx;
    struct tls_fd x = dial();
    assert_int_equal(hf_cert_leaf(world.ca_cert, world.ca_key, names, 1, 30, &cert, &key, &err), 0);
    assert_int_equal(hf_tls_server_ctx(cert, key, HF_ALPN_HTTP1, &ctx, &err), 0);
    hf_http_server_set_tls(server, ctx);
    hf_tls_ctx_unref(ctx);
    struct tls_fd y =
        tls_dial_fd(net_connect(hf_http_server_port(server)), world.client, "b.test", HF_ALPN_HTTP1);
    tls_shake(&loop, &y);
    tls_send(&loop, &x, "GET /describe HTTP/1.1\r\n" HOST "\r\n");
    tls_expect(&loop, &x, "sni=a.test");
    tls_fd_done(&x);
    tls_fd_done(&y);
    free(cert);
    free(key);
}

static void free_stream(uv_handle_t *h)
{
    free(h);
}

static void test_hijack(void **state)
{
    struct tls_fd x = dial();
    tls_send(&loop, &x, "GET /hijack HTTP/1.1\r\n" HOST "Connection: Upgrade\r\nUpgrade: x\r\n\r\nearly");
    NET_WAIT(&loop, hijacked);
    assert_non_null(hijacked_tls);
    assert_string_equal(leftover.p, "early"); /* plaintext */
    hf_auto_buf struct hf_buf out = HF_BUF_INIT(PAIR_MAX);
    assert_int_equal(hf_tls_write(hijacked_tls, "raw", 3, &out), 0);
    uv_buf_t b = uv_buf_init(out.p, (unsigned)out.n);
    assert_int_equal(uv_try_write(hijacked, &b, 1), (int)out.n);
    tls_expect(&loop, &x, "raw");
    uv_close((uv_handle_t *)hijacked, free_stream);
    hf_tls_free(hijacked_tls);
    hf_buf_done(&leftover);
    tls_fd_done(&x);
}

/* ---- adopted connections ---- */

static uv_stream_t *accepted;

static void on_raw(uv_stream_t *l, int status)
{
    accepted = hf_xcalloc(1, sizeof(uv_tcp_t));
    assert_int_equal(uv_tcp_init(&loop, (uv_tcp_t *)accepted), 0);
    assert_int_equal(uv_accept(l, accepted), 0);
}

static uint16_t raw_listen(uv_tcp_t *l)
{
    struct sockaddr_in a;
    int len = sizeof(a);
    assert_int_equal(uv_ip4_addr("127.0.0.1", 0, &a), 0);
    assert_int_equal(uv_tcp_init(&loop, l), 0);
    assert_int_equal(uv_tcp_bind(l, (struct sockaddr *)&a, 0), 0);
    assert_int_equal(uv_listen((uv_stream_t *)l, 8, on_raw), 0);
    assert_int_equal(uv_tcp_getsockname(l, (struct sockaddr *)&a, &len), 0);
    accepted = NULL;
    return ntohs(a.sin_port);
}

static void gone(void *data)
{
    assert_string_equal(data, "mine");
    gones++;
}

static bool is_mine(void *data, void *arg)
{
    return data == arg;
}

static void test_adopt(void **state)
{
    static char mine[] = "mine";
    static uv_tcp_t l; /* closed by the teardown's loop */
    uint16_t port = raw_listen(&l);
    /* TLS that begins with bytes that were read before. */
    struct tls_fd x = tls_dial_fd(net_connect(port), world.client, "a.test", 0);
    NET_WAIT(&loop, accepted);
    assert_int_equal(
        hf_http_server_adopt(server, accepted, hf_tls_accept(world.server), x.out.p, x.out.n, 7, mine, gone),
        0);
    hf_buf_clear(&x.out);
    tls_shake(&loop, &x);
    tls_send(&loop, &x, "GET /describe HTTP/1.1\r\n" HOST "\r\n");
    tls_expect(&loop, &x, "tls=1 sni=a.test version=11 data=mine");
    assert_int_equal(gones, 0);
    tls_fd_done(&x);
    NET_WAIT(&loop, gones == 1);
    /* Plain, with the request already read; the handler does not run inside the call. */
    hf_auto_buf struct hf_buf in = HF_BUF_INIT(NET_BUF_MAX);
    int fd = net_connect(port);
    accepted = NULL;
    NET_WAIT(&loop, accepted);
    int before = requests;
    const char *req = "GET /describe HTTP/1.1\r\n" HOST "\r\n";
    assert_int_equal(hf_http_server_adopt(server, accepted, NULL, req, strlen(req), 7, mine, gone), 0);
    assert_int_equal(requests, before);
    net_expect(&loop, fd, &in, "tls=0 sni= version=11 data=mine");
    /* Cut with a reset, and only the one that is meant. */
    struct tls_fd y = dial();
    hf_http_server_cut(server, is_mine, mine);
    assert_int_equal(net_read_end(&loop, fd, &in), -ECONNRESET);
    NET_WAIT(&loop, gones == 2);
    tls_send(&loop, &y, "GET / HTTP/1.1\r\n" HOST "\r\n");
    tls_expect(&loop, &y, "ok");
    tls_fd_done(&y);
    hf_close(fd);
    uv_close((uv_handle_t *)&l, NULL);
}

/* What an idle connection costs beyond its socket (kept below half of what nginx needs for one). */
static void test_idle_is_lean(void **state)
{
    struct tls_fd x = dial();
    tls_send(&loop, &x, "GET / HTTP/1.1\r\n" HOST "\r\n");
    tls_expect(&loop, &x, "ok");
    hf_list_foreach(it, &server->conns)
    {
        struct hf_conn *c = hf_list_entry(it, struct hf_conn, node);
        assert_null(c->in.p);
        assert_null(c->out.buf.p);
        assert_null(c->out.raw.p);
        assert_null(c->req);
    }
    tls_fd_done(&x);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_exchanges),    T(test_few_records), T(test_large_and_slow),  T(test_backpressure),
        T(test_client_goes),  T(test_not_tls),     T(test_bad_record),      T(test_handshake_timeout),
        T(test_reload),       T(test_hijack),      T(test_half_open_flood), T(test_adopt),
        T(test_idle_is_lean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
