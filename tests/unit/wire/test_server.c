/* The server over real sockets: exchanges, connection reuse, refusals, timeouts, resets. */
#include "net.h"

#include <sys/resource.h>

#include <sys/stat.h>
#include <sys/un.h>

#include "wire/http_int.h"

#define HOST "Host: a\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\n" HOST "\r\n"

static uv_loop_t loop;
static struct hf_http_server *server;
static struct hf_buf in = {NULL, 0, 0, NET_BUF_MAX};
static struct hf_req *held; /* of /hold and /stream */
static int closes, aborts, requests, drains;
static struct hf_buf body = {NULL, 0, 0, NET_BUF_MAX};

static void on_close(struct hf_req *req)
{
    closes++;
    aborts += hf_req_aborted(req);
    if (held == req)
        held = NULL;
}

static const struct hf_req_ops hold_ops = {.on_close = on_close};

static void echo(struct hf_req *req, struct hf_str b, void *arg)
{
    hf_res_send(req, 200, "text/plain", b.p, b.n);
}

static void gone(void *arg)
{
    aborts++;
}

static void inject(struct hf_req *req)
{
    hf_res_header(req, "X-Good", "1");
    hf_res_header(req, "X-Bad", "a\r\nX-Injected: 1");
    hf_res_header(req, "X-Bad\r\nX-Injected", "1");
    hf_res_header(req, "X-Bad", "\x01");
    hf_res_header(req, "Content-Length", "99");
    hf_res_header(req, "Transfer-Encoding", "chunked");
    hf_res_send(req, 200, NULL, "ok", 2);
}

static void describe(struct hf_req *req)
{
    char text[512];
    struct hf_str m = hf_req_method(req), p = hf_req_path(req), q = hf_req_query(req),
                  h = hf_req_header(req, "x-y");
    int n = snprintf(text, sizeof(text), "%.*s|%.*s|%.*s|%.*s|%s|%d|%zu", (int)m.n, m.p, (int)p.n, p.p,
                     (int)q.n, q.p ? q.p : "", (int)h.n, h.p ? h.p : "", hf_req_peer(req),
                     hf_req_listener_tag(req), hf_req_header_count(req));
    hf_res_send(req, 200, "text/plain", text, (size_t)n);
}

static void chunks(struct hf_req *req, int64_t length)
{
    hf_res_begin(req, 200, length);
    (void)hf_res_write(req, "hello", 5);
    (void)hf_res_write(req, "", 0);
    (void)hf_res_write(req, "world", 5);
    hf_res_end(req);
}

static void on_request(void *self, struct hf_req *req)
{
    struct hf_str p = hf_req_path(req);
    requests++;
    if (hf_str_eq(p, "/echo"))
        hf_req_collect(req, 100, echo, gone, NULL);
    else if (hf_str_eq(p, "/hold")) {
        held = req;
        hf_req_set_ops(req, &hold_ops, NULL);
    } else if (hf_str_eq(p, "/chunks"))
        chunks(req, -1);
    else if (hf_str_eq(p, "/length"))
        chunks(req, 10);
    else if (hf_str_eq(p, "/short"))
        chunks(req, 20);
    else if (hf_str_eq(p, "/long"))
        chunks(req, 7);
    else if (hf_str_eq(p, "/inject"))
        inject(req);
    else if (hf_str_eq(p, "/describe"))
        describe(req);
    else if (hf_str_eq(p, "/none"))
        hf_res_send(req, 204, NULL, NULL, 0);
    else if (hf_str_eq(p, "/error"))
        hf_res_error(req, 404, "no \"%s\"\n", "\xff\xc3\xa9");
    else
        hf_res_send(req, 200, "text/plain", "ok", 2);
}

static const struct hf_http_handler handler = {on_request};

static int setup(void **state)
{
    struct hf_err err;
    assert_int_equal(uv_loop_init(&loop), 0);
    server = hf_http_server_new(&loop, &handler, NULL);
    assert_int_equal(hf_http_server_listen_tcp(server, "127.0.0.1", 0, &err), 0);
    closes = aborts = requests = drains = 0;
    held = NULL;
    hf_buf_clear(&in);
    hf_buf_clear(&body);
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
    assert_int_equal(uv_loop_close(&loop), 0); /* no handle is left behind */
    hf_buf_done(&in);
    hf_buf_done(&body);
    return 0;
}

static int dial(void)
{
    hf_buf_clear(&in);
    return net_connect(hf_http_server_port(server));
}

/* One request on a connection of its own; the whole answer up to its end. */
static const char *ask(const char *request)
{
    int fd = dial();
    net_send(&loop, fd, request);
    (void)net_read_end(&loop, fd, &in);
    hf_close(fd);
    return in.p;
}

static void test_basics(void **state)
{
    assert_string_equal(
        ask("GET / HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"),
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    assert_string_equal(
        ask("HEAD / HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"),
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nConnection: close\r\n\r\n");
    assert_string_equal(ask("GET /none HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"),
                        "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
    assert_string_equal(ask("GET /chunks HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"),
                        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
                        "5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n");
    assert_string_equal(ask("HEAD /chunks HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"),
                        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
    assert_string_equal(ask("GET /length HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"),
                        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\nhelloworld");
    assert_non_null(
        strstr(ask("GET /long HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"), "\r\n\r\nhellowo"));
    assert_null(strstr(in.p, "hellowor"));
    assert_non_null(strstr(ask("GET /error HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"),
                           "{\"code\":404,\"message\":\"no \\\"?\xc3\xa9\\\"\\u000a\"}"));
}

static void test_http10(void **state)
{
    assert_string_equal(
        ask("GET / HTTP/1.0\r\n\r\n"),
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    /* No chunks for a client that does not know them. */
    assert_string_equal(ask("GET /chunks HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
                        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhelloworld");
    int fd = dial();
    net_send(&loop, fd, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    net_expect(&loop, fd, &in, "Connection: keep-alive\r\n\r\nok");
    net_send(&loop, fd, "GET /length HTTP/1.0\r\n\r\n");
    assert_int_equal(net_read_end(&loop, fd, &in), 0);
    assert_true(net_has(&in, "helloworld"));
    hf_close(fd);
}

static void test_request_views(void **state)
{
    int fd = dial();
    net_send(&loop, fd, "PUT /describe?a=b HTTP/1.1\r\n" HOST "X-Y:  v \r\nContent-Length: 0\r\n\r\n");
    net_expect(&loop, fd, &in, "PUT|/describe|a=b|v|127.0.0.1|0|3");
    hf_close(fd);
}

static void test_keep_alive_and_pipelining(void **state)
{
    int fd = dial();
    net_send(&loop, fd, GET("/1"));
    net_expect(&loop, fd, &in, "\r\n\r\nok");
    hf_buf_clear(&in);
    /* The second request waits until the first is answered. */
    net_send(&loop, fd, GET("/hold") GET("/length") GET("/chunks") "GET /1 HTTP/1.1\r\nHo");
    NET_WAIT(&loop, held);
    net_pump(&loop, 30);
    assert_int_equal(requests, 2);
    hf_res_send(held, 200, NULL, "first", 5);
    net_expect(&loop, fd, &in, "0\r\n\r\n");
    assert_true(strstr(in.p, "first") < strstr(in.p, "helloworld"));
    assert_int_equal(closes, 1);
    assert_int_equal(aborts, 0);
    hf_buf_clear(&in);
    net_send(&loop, fd, "st: a\r\n\r\n");
    net_expect(&loop, fd, &in, "\r\n\r\nok");
    hf_close(fd);
}

static void test_many_pipelined(void **state)
{
    hf_auto_buf struct hf_buf out = HF_BUF_INIT(NET_BUF_MAX);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(hf_buf_adds(&out, GET("/x")), 0);
    int fd = dial();
    /* Sent in turns with reading: the server does not read for ever what it can't answer. */
    size_t sent = 0;
    uint64_t end = hf_mono_ms() + NET_TIMEOUT_MS;
    while (net_count(&in, "\r\n\r\nok") < 3000) {
        ssize_t k = sent < out.n ? send(fd, out.p + sent, out.n - sent, MSG_NOSIGNAL) : 0;
        sent += k > 0 ? (size_t)k : 0;
        net_turn(&loop);
        (void)net_recv(fd, &in);
        assert_true(hf_mono_ms() < end);
    }
    assert_int_equal(requests, 3000);
    hf_close(fd);
}

static void test_header_injection(void **state)
{
    int fd = dial();
    net_send(&loop, fd, GET("/inject"));
    net_expect(&loop, fd, &in, "\r\n\r\nok");
    assert_string_equal(in.p, "HTTP/1.1 200 OK\r\nX-Good: 1\r\nContent-Length: 2\r\n\r\nok");
    hf_close(fd);
}

static void refuse(const char *request, const char *status)
{
    int before = requests;
    (void)ask(request);
    if (!in.p || strncmp(in.p, "HTTP/1.1 ", 9) != 0 || strncmp(in.p + 9, status, 3) != 0)
        fail_msg("expected %s for \"%s\", got \"%s\"", status, request, in.p ? in.p : "");
    assert_true(net_has(&in, "Connection: close\r\n"));
    assert_int_equal(net_count(&in, "Content-Length: "), 1); /* nothing after it is read as a request */
    assert_int_equal(requests, before);
}

static void test_smuggling(void **state)
{
#define POST "POST / HTTP/1.1\r\n" HOST
#define INNER "GET /smuggled HTTP/1.1\r\n" HOST "\r\n"
    refuse(POST "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" INNER, "400"); /* CL.TE */
    refuse(POST "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n" INNER "\r\n0\r\n\r\n",
           "400"); /* TE.CL */
    refuse(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n" INNER,
           "400"); /* TE.TE */
    refuse(POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" INNER, "400");
    refuse(POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" INNER, "400");
    refuse(POST "Transfer-Encoding:\x0b"
                "chunked\r\n\r\n0\r\n\r\n" INNER,
           "400");
    refuse(POST "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" INNER, "400");
    refuse(POST "Foo:\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" INNER, "400");
    refuse(POST "Content-Length: 0\r\nContent-Length: 44\r\n\r\n" INNER, "400"); /* CL.CL */
    refuse(POST "Content-Length: 0, 44\r\n\r\n" INNER, "400");
    refuse(POST "Content-Length: 00x\r\n\r\n" INNER, "400");
    refuse("GET / HTTP/1.1\n" HOST "\r\n" INNER, "400");
    refuse("GET http://b/ HTTP/1.1\r\n" HOST "\r\n", "400");
    refuse("GET / HTTP/1.1\r\n" HOST "Host: b\r\n\r\n", "400");
    refuse("GET / HTTP/1.1\r\n\r\n", "400");
    refuse("GET / HTTP/3.0\r\n" HOST "\r\n", "505");
    refuse("FROB / HTTP/1.1\r\n" HOST "\r\n", "501");
    refuse("CONNECT a:80 HTTP/1.1\r\n" HOST "\r\n", "501");
    refuse(POST "Content-Length: 1\r\nExpect: magic\r\n\r\n", "417");
}

/* A framing error inside a body ends the exchange with 400 and the connection with it. */
static void test_bad_chunks(void **state)
{
    static const char *const bodies[] = {
        "5\nhello\r\n0\r\n\r\n",    "5 \r\nhello\r\n0\r\n\r\n", "0x5\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n", "5\r\nhelloXX0\r\n\r\n",    "5\r\nhello\n0\r\n\r\n",
        "ffffffffffffffffff\r\n",   "5\rXhello\r\n0\r\n\r\n",   "5;a=b\nX\r\nhello\r\n0\r\n\r\n",
        "\r\n5\r\nhello\r\n",       "5\r\nhello\r\n0\r\n\rX"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bodies); i++) {
        char s[256];
        (void)snprintf(s, sizeof(s), "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n%s%s",
                       bodies[i], GET("/smuggled"));
        (void)ask(s);
        if (!in.p || strncmp(in.p, "HTTP/1.1 400", 12) != 0 || net_count(&in, "HTTP/1.1 ") != 1)
            fail_msg("body %zu: got \"%s\"", i, in.p ? in.p : "");
    }
    assert_int_equal(aborts, HF_ARRAY_LEN(bodies)); /* the handler was told, each time once */
    assert_int_equal(requests, HF_ARRAY_LEN(bodies));
}

static void test_head_limits(void **state)
{
    hf_auto_buf struct hf_buf big = HF_BUF_INIT(NET_BUF_MAX);
    assert_int_equal(hf_buf_adds(&big, "GET / HTTP/1.1\r\n" HOST "X: "), 0);
    while (big.n < 200000)
        assert_int_equal(hf_buf_adds(&big, "xxxxxxxxxxxxxxxx"), 0);
    refuse(big.p, "431");
    hf_buf_clear(&big);
    assert_int_equal(hf_buf_adds(&big, "GET /"), 0);
    while (big.n < 40000)
        assert_int_equal(hf_buf_adds(&big, "xxxxxxxxxxxxxxxx"), 0);
    refuse(big.p, "414");
    /* Just below the limit, in small pieces: it is kept whole. */
    hf_buf_clear(&big);
    assert_int_equal(hf_buf_adds(&big, "GET /describe HTTP/1.1\r\n" HOST "X: "), 0);
    while (big.n < HF_HTTP_HEAD_MAX - 64)
        assert_int_equal(hf_buf_adds(&big, "x"), 0);
    assert_int_equal(hf_buf_adds(&big, "\r\nX-Y: tail\r\n\r\n"), 0);
    int fd = dial();
    for (size_t i = 0; i < big.n; i += 5000) {
        net_send_n(&loop, fd, big.p + i, HF_MIN(5000, big.n - i));
        net_turn(&loop);
    }
    net_expect(&loop, fd, &in, "GET|/describe||tail|");
    hf_close(fd);
}

static void test_slow_loris(void **state)
{
    hf_http_server_set_timeouts(server, 120, 0);
    int fd = dial();
    net_send(&loop, fd, "GET / HTTP/1.1\r\n");
    for (int i = 0; i < 40 && !net_has(&in, "408"); i++) {
        net_send(&loop, fd, "X: y\r\n"); /* a byte now and then does not help */
        net_pump(&loop, 10);
        (void)net_recv(fd, &in);
    }
    assert_int_equal(strncmp(in.p, "HTTP/1.1 408", 12), 0);
    assert_true(net_has(&in, "Connection: close"));
    hf_close(fd);
    assert_int_equal(requests, 0);
}

static void test_idle_timeout(void **state)
{
    hf_http_server_set_timeouts(server, 0, 100);
    int fd = dial();
    net_send(&loop, fd, GET("/"));
    net_expect(&loop, fd, &in, "\r\n\r\nok");
    uint64_t t0 = hf_mono_ms();
    assert_int_equal(net_read_end(&loop, fd, &in), 0);
    assert_in_range(hf_mono_ms() - t0, 60, 2000);
    hf_close(fd);
    /* An exchange that takes long is not idle. */
    fd = dial();
    net_send(&loop, fd, GET("/hold"));
    NET_WAIT(&loop, held);
    net_pump(&loop, 300);
    assert_non_null(held);
    hf_res_send(held, 200, NULL, "late", 4);
    net_expect(&loop, fd, &in, "late");
    hf_close(fd);
}

static void test_body_timeout(void **state)
{
    hf_http_server_set_timeouts(server, 0, 100);
    int fd = dial();
    net_send(&loop, fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\nabc");
    net_expect(&loop, fd, &in, "HTTP/1.1 408");
    assert_int_equal(aborts, 1);
    hf_close(fd);
}

static void test_client_gone(void **state)
{
    for (int reset = 0; reset < 2; reset++) {
        int fd = dial();
        net_send(&loop, fd, GET("/hold"));
        NET_WAIT(&loop, held);
        struct linger l = {1, 0};
        if (reset)
            assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l)), 0);
        hf_close(fd);
        NET_WAIT(&loop, !held);
        assert_int_equal(closes, reset + 1);
        assert_int_equal(aborts, reset + 1);
    }
    /* Half-closed while a response streams: gone as well. */
    int fd = dial();
    net_send(&loop, fd, GET("/hold"));
    NET_WAIT(&loop, held);
    hf_res_begin(held, 200, -1);
    assert_int_equal(hf_res_write(held, "x", 1), 0);
    net_expect(&loop, fd, &in, "1\r\nx\r\n");
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    NET_WAIT(&loop, !held);
    assert_int_equal(aborts, 3);
    hf_close(fd);
}

/* A paused request is not read; its client's end is seen all the same. */
static void test_client_gone_while_paused(void **state)
{
    hf_http_server_set_timeouts(server, 100, 0);
    int fd = dial();
    net_send(&loop, fd, "POST /hold HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\n");
    NET_WAIT(&loop, held);
    hf_req_pause(held);
    net_send(&loop, fd, "abc");
    net_pump(&loop, 20);
    hf_close(fd);
    NET_WAIT(&loop, !held);
    assert_int_equal(aborts, 1);
}

static void test_abort(void **state)
{
    int fd = dial();
    net_send(&loop, fd, GET("/hold"));
    NET_WAIT(&loop, held);
    hf_res_begin(held, 200, -1);
    assert_int_equal(hf_res_write(held, "part", 4), 0);
    net_expect(&loop, fd, &in, "part");
    hf_res_abort(held);
    assert_true(hf_req_aborted(held));
    assert_int_equal(hf_res_write(held, "more", 4), 0); /* a no-op now */
    assert_int_equal(net_read_end(&loop, fd, &in), -ECONNRESET);
    NET_WAIT(&loop, closes == 1);
    hf_close(fd);
    /* A body shorter than announced is cut, not ended. */
    fd = dial();
    net_send(&loop, fd, GET("/short"));
    assert_int_equal(net_read_end(&loop, fd, &in), -ECONNRESET);
    hf_close(fd);
}

/* The response overtakes the body: small rest swallowed and the connection goes on, else closed in order. */
static void test_early_response(void **state)
{
    int fd = dial();
    net_send(&loop, fd, "POST /length HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\n01234");
    net_expect(&loop, fd, &in, "helloworld");
    net_send(&loop, fd, "56789" GET("/"));
    net_expect(&loop, fd, &in, "\r\n\r\nok");
    hf_close(fd);
    fd = dial();
    net_send(&loop, fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 101\r\n\r\n");
    net_expect(&loop, fd, &in, "HTTP/1.1 413");
    hf_close(fd);
    fd = dial();
    net_send(&loop, fd, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 20; i++)
        net_send(&loop, fd, "a\r\n0123456789\r\n");
    net_expect(&loop, fd, &in, "HTTP/1.1 413");
    net_send(&loop, fd, "0\r\n\r\n" GET("/"));
    net_expect(&loop, fd, &in, "\r\n\r\nok");
    hf_close(fd);
}

static void test_unix_and_tags(void **state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct hf_err err;
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "/tmp/hf-wire-%d.sock", getpid());
    (void)unlink(a.sun_path);
    int l = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(l, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(hf_http_server_listen_fd(server, l, 7, &err), 0);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    hf_buf_clear(&in);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    net_send(&loop, fd, GET("/describe"));
    net_expect(&loop, fd, &in, "GET|/describe|||unix|7|1");
    hf_close(fd);
    (void)unlink(a.sun_path);
    assert_int_equal(hf_http_server_listen_fd(server, STDIN_FILENO, 0, &err) < 0, 1);
    assert_int_equal(hf_http_server_listen_tcp(server, "localhost", 0, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "localhost"));
}

static void test_stop(void **state)
{
    int idle = dial(), busy = dial();
    net_send(&loop, busy, GET("/hold"));
    NET_WAIT(&loop, held);
    hf_http_server_stop(server);
    hf_res_send(held, 200, NULL, "bye", 3);
    assert_int_equal(net_read_end(&loop, busy, &in), 0);
    assert_true(net_has(&in, "Connection: close\r\n\r\nbye"));
    hf_close(busy);
    hf_close(idle);
}

static void test_idle_connection_is_small(void **state)
{
    int fd = dial();
    net_send(&loop, fd, GET("/"));
    net_expect(&loop, fd, &in, "\r\n\r\nok");
    struct hf_conn *c = hf_list_entry(server->conns.next, struct hf_conn, node);
    assert_null(c->req);
    assert_null(c->in.p);
    assert_null(c->out.buf.p);
    assert_true(sizeof(*c) + sizeof(uv_tcp_t) < 1024);
    hf_close(fd);
}

static void test_vanished_clients_are_noticed(void **state)
{
    int fd = dial(), on = 0;
    socklen_t len = sizeof(on);
    uv_os_fd_t accepted;
    NET_WAIT(&loop, server->conn_n == 1);
    struct hf_conn *c = hf_list_entry(server->conns.next, struct hf_conn, node);
    assert_int_equal(uv_fileno((uv_handle_t *)c->stream, &accepted), 0);
    assert_int_equal(getsockopt(accepted, SOL_SOCKET, SO_KEEPALIVE, &on, &len), 0);
    assert_int_equal(on, 1);
    hf_close(fd);
}

/* Beyond the maximum a connection is accepted and closed at once. */
static void test_connection_limit(void **state)
{
    size_t real = server->conns_max;
    assert_in_range(real, 1, HF_HTTP_CONNS_MAX);
    server->conns_max = 0;
    int fd = dial();
    assert_int_equal(net_read_end(&loop, fd, &in), 0);
    hf_close(fd);
    server->conns_max = real;
    fd = dial();
    net_send(&loop, fd, GET("/"));
    net_expect(&loop, fd, &in, "\r\n\r\nok");
    hf_close(fd);
}

/* Somebody who opens connections and says nothing locks nobody out. */
static void test_idle_connections_make_room(void **state)
{
    server->conns_max = 2;
    int idle = dial(), busy = dial();
    net_send(&loop, busy, GET("/hold"));
    NET_WAIT(&loop, held);
    int fd = dial();
    net_send(&loop, fd, GET("/hold"));
    assert_int_equal(net_read_end(&loop, idle, &in), 0);
    NET_WAIT(&loop, requests == 2);
    int refused = dial(); /* nobody is idle now */
    assert_int_equal(net_read_end(&loop, refused, &in), 0);
    assert_int_equal(aborts, 0);
    hf_close(refused);
    hf_close(idle);
    hf_close(busy);
    hf_close(fd);
}

/* Heads that never end go as well, and long streams in front of them do not hide them. */
static void test_slow_heads_make_room(void **state)
{
    enum { STREAMS = 300, SLOW = 20 };
    int fds[STREAMS + SLOW];
    server->conns_max = STREAMS + SLOW;
    for (int i = 0; i < STREAMS; i++) {
        fds[i] = dial();
        net_send(&loop, fds[i], GET("/hold"));
    }
    NET_WAIT(&loop, requests == STREAMS);
    for (int i = STREAMS; i < STREAMS + SLOW; i++) {
        fds[i] = dial();
        net_send(&loop, fds[i], "GET /slow HTTP/1.1\r\nX: ");
    }
    NET_WAIT(&loop, server->conn_n == STREAMS + SLOW);
    for (int i = 0; i < 5; i++) {
        int fd = -1;
        for (int attempt = 0; attempt < 3; attempt++) { /* the first may only have moved the long ones away */
            hf_close(fd);
            fd = dial();
            net_send(&loop, fd, GET("/"));
            net_pump(&loop, 10);
            if (net_recv(fd, &in) == 1)
                break;
        }
        assert_true(net_has(&in, "\r\n\r\nok"));
        hf_buf_clear(&in);
        hf_close(fd);
    }
    assert_int_equal(aborts, 0);
    for (size_t i = 0; i < HF_ARRAY_LEN(fds); i++)
        hf_close(fds[i]);
}

/* Connections alone can't use up the descriptors. */
static void test_descriptors_are_left(void **state)
{
    struct rlimit before, few = {90, 0};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    struct hf_http_server *s = hf_http_server_new(&loop, &handler, NULL);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(s->conns_max, 30);
    bool done = false;
    hf_http_server_free(s, server_gone, &done);
    NET_WAIT(&loop, done);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        T(test_basics),
        T(test_http10),
        T(test_request_views),
        T(test_keep_alive_and_pipelining),
        T(test_many_pipelined),
        T(test_header_injection),
        T(test_smuggling),
        T(test_bad_chunks),
        T(test_head_limits),
        T(test_slow_loris),
        T(test_idle_timeout),
        T(test_body_timeout),
        T(test_client_gone),
        T(test_client_gone_while_paused),
        T(test_abort),
        T(test_early_response),
        T(test_unix_and_tags),
        T(test_stop),
        T(test_idle_connection_is_small),
        T(test_vanished_clients_are_noticed),
        T(test_connection_limit),
        T(test_idle_connections_make_room),
        T(test_slow_heads_make_room),
        T(test_descriptors_are_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
