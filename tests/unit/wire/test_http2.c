/* HTTP/2: the server and our own client over real sockets, and frames that no client sends. */
#include "net.h"
#include "tlsnet.h"

#include "wire/client.h"
#include "wire/http2.h"

static uv_loop_t loop;
static struct hf_http_server *server;
static struct tls_world world;
static struct hf_req *held;
static int requests, closes, aborts, drains, ends;
static size_t taken;
static char *large;

#define LARGE (2u << 20)

/* ---- the handler ---- */

static void on_close(struct hf_req *req)
{
    closes++;
    aborts += hf_req_aborted(req);
    if (held == req)
        held = NULL;
}

static void on_drain(struct hf_req *req)
{
    drains++;
}

static void on_data(struct hf_req *req, const char *p, size_t n)
{
    taken += n;
}

static void on_end(struct hf_req *req)
{
    ends++;
}

static const struct hf_req_ops hold_ops = {on_data, on_end, on_drain, on_close};

static void echo(struct hf_req *req, struct hf_str b, void *arg)
{
    struct hf_str name, value;
    hf_res_header(req, "X-Echo", "1");
    for (size_t i = 0; hf_req_trailer_at(req, i, &name, &value); i++)
        hf_res_header(req, "X-Trailer", value.p);
    hf_res_send(req, 200, "text/plain", b.p, b.n);
}

static void describe(struct hf_req *req)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(65536);
    struct hf_str n, v;
    int r = hf_buf_addf(&b, "version=%d tls=%d sni=%s length=%lld hijack=", hf_req_version(req),
                        hf_req_tls(req), hf_req_sni(req), (long long)hf_req_content_length(req));
    struct hf_tls *t;
    struct hf_buf rest = {0};
    r = r < 0 ? r : hf_buf_addf(&b, "%d", hf_req_hijack(req, &t, &rest) != NULL);
    for (size_t i = 0; r == 0 && i < hf_req_header_count(req); i++) {
        hf_req_header_at(req, i, &n, &v);
        r = hf_buf_addf(&b, "[%.*s=%.*s]", (int)n.n, n.p, (int)v.n, v.p);
    }
    assert_int_equal(r, 0);
    hf_res_send(req, 200, NULL, b.p, b.n);
}

static void stream(struct hf_req *req)
{
    const char *const trailers[] = {"X-Sum", "7", "X-Bad\r\n", "1", "Connection", "close"};
    hf_res_begin(req, 200, -1);
    assert_int_equal(hf_res_dup_fd(req), -EOPNOTSUPP);
    (void)hf_res_write(req, "hello ", 6);
    (void)hf_res_write(req, "world", 5);
    hf_res_end_trailers(req, trailers, 3);
}

static void on_request(void *self, struct hf_req *req)
{
    struct hf_str p = hf_req_path(req);
    requests++;
    if (hf_str_eq(p, "/echo"))
        hf_req_collect(req, LARGE, echo, NULL, NULL);
    else if (hf_str_eq(p, "/hold") || hf_str_eq(p, "/paused")) {
        held = req;
        hf_req_set_ops(req, &hold_ops, NULL);
        if (hf_str_eq(p, "/paused"))
            hf_req_pause(req);
    } else if (hf_str_eq(p, "/large"))
        hf_res_send(req, 200, NULL, large, LARGE);
    else if (hf_str_eq(p, "/describe"))
        describe(req);
    else if (hf_str_eq(p, "/stream"))
        stream(req);
    else if (hf_str_eq(p, "/none") || hf_str_eq(p, "/only")) {
        const char *const trailers[] = {"x-sum", "7"};
        hf_res_header(req, "X-Head", "1");
        hf_res_begin(req, 200, 0);
        hf_res_end_trailers(req, trailers, hf_str_eq(p, "/only"));
    } else if (hf_str_eq(p, "/short")) {
        hf_res_begin(req, 200, 10);
        (void)hf_res_write(req, "abc", 3);
        hf_res_end(req);
    } else
        hf_res_send(req, 200, "text/plain", "ok", 2);
}

static const struct hf_http_handler handler = {on_request};

/* ---- the client ---- */

struct answer {
    int status, r, trailers;
    bool end, failed, unsent, pause;
    int64_t length;
    struct hf_buf body, fields;
};

static struct hf_client *client;
static int gones, client_drains;

static void put_fields(struct answer *a, const struct hf_field *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(hf_buf_addf(&a->fields, "[%.*s=%.*s]", (int)f[i].name.n, f[i].name.p,
                                     (int)f[i].value.n, f[i].value.p),
                         0);
}

static void cx_head(struct hf_cx *cx, int status, const struct hf_field *f, size_t n, int64_t length)
{
    struct answer *a = hf_cx_data(cx);
    a->status = status;
    a->length = length;
    put_fields(a, f, n);
}

static void cx_data(struct hf_cx *cx, const char *p, size_t n)
{
    struct answer *a = hf_cx_data(cx);
    assert_int_equal(hf_buf_add(&a->body, p, n), 0);
    if (a->pause)
        hf_cx_pause(cx);
}

static void cx_trailers(struct hf_cx *cx, const struct hf_field *f, size_t n)
{
    struct answer *a = hf_cx_data(cx);
    a->trailers++;
    put_fields(a, f, n);
}

static void cx_drain(struct hf_cx *cx)
{
    client_drains++;
}

static void cx_end(struct hf_cx *cx)
{
    ((struct answer *)hf_cx_data(cx))->end = true;
}

static void cx_fail(struct hf_cx *cx, int r, bool answered, bool unsent)
{
    struct answer *a = hf_cx_data(cx);
    a->failed = true;
    a->r = r;
    a->unsent = unsent;
}

static const struct hf_cx_ops cx_ops = {.on_head = cx_head,
                                        .on_data = cx_data,
                                        .on_trailers = cx_trailers,
                                        .on_drain = cx_drain,
                                        .on_end = cx_end,
                                        .on_fail = cx_fail};

static void on_gone(void *arg)
{
    gones++;
}

static void answer_done(struct answer *a)
{
    hf_buf_done(&a->body);
    hf_buf_done(&a->fields);
    *a = (struct answer){.body = HF_BUF_INIT(NET_BUF_MAX), .fields = HF_BUF_INIT(NET_BUF_MAX)};
}

static struct answer ans;

static struct hf_cx *ask_with(const char *method, const char *path, int64_t length, struct answer *a)
{
    struct hf_cx_req req = {
        hf_str_c(method), HF_STR("http"), HF_STR("a.test"), hf_str_c(path), NULL, 0, length, NULL};
    return hf_cx_new(client, &req, &cx_ops, a);
}

static void get(const char *path)
{
    answer_done(&ans);
    assert_non_null(ask_with("GET", path, 0, &ans));
    NET_WAIT(&loop, ans.end || ans.failed);
}

static uv_stream_t *connect_stream(void)
{
    uv_tcp_t *t = hf_new(uv_tcp_t);
    assert_int_equal(uv_tcp_init(&loop, t), 0);
    assert_int_equal(uv_tcp_open(t, net_connect(hf_http_server_port(server))), 0);
    return (uv_stream_t *)t;
}

static int setup(void **state)
{
    struct hf_err err;
    assert_int_equal(uv_loop_init(&loop), 0);
    server = hf_http_server_new(&loop, &handler, NULL);
    hf_http_server_http2(server);
    assert_int_equal(hf_http_server_listen_tcp(server, "127.0.0.1", 0, &err), 0);
    requests = closes = aborts = drains = ends = gones = client_drains = 0;
    taken = 0;
    held = NULL;
    large = hf_xmalloc(LARGE);
    for (size_t i = 0; i < LARGE; i++)
        large[i] = (char)('a' + i * 7 % 26);
    client = hf_client_new(&loop, connect_stream(), NULL, true, on_gone, NULL);
    answer_done(&ans);
    return 0;
}

static void server_gone(void *arg)
{
    *(bool *)arg = true;
}

static int teardown(void **state)
{
    bool done = false;
    if (client)
        hf_client_close(hf_take_ptr(client));
    hf_http_server_free(server, server_gone, &done);
    NET_WAIT(&loop, done);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    answer_done(&ans);
    free(large);
    return 0;
}

static void test_exchanges(void **state)
{
    get("/");
    assert_int_equal(ans.status, 200);
    assert_int_equal(ans.length, 2);
    assert_string_equal(ans.body.p, "ok");
    assert_string_equal(ans.fields.p, "[content-type=text/plain][content-length=2]");
    get("/stream");
    assert_string_equal(ans.body.p, "hello world");
    assert_int_equal(ans.trailers, 1);
    assert_string_equal(ans.fields.p, "[x-sum=7]");
    get("/large");
    assert_int_equal(ans.body.n, LARGE);
    assert_memory_equal(ans.body.p, large, LARGE);
    get("/short"); /* a short body must not look complete */
    assert_true(ans.failed);
    answer_done(&ans);
    assert_non_null(ask_with("HEAD", "/", 0, &ans));
    NET_WAIT(&loop, ans.end);
    assert_int_equal(ans.body.n, 0);
    assert_true(net_has(&ans.fields, "[content-length=2]"));
    assert_true(hf_client_free_slot(client));
    assert_int_equal(gones, 0);
    assert_int_equal(server->conn_n, 1);
}

static void test_bodies(void **state)
{
    struct hf_cx *cx = ask_with("POST", "/echo", LARGE, &ans);
    for (size_t i = 0; i < LARGE; i += 65536)
        (void)hf_cx_write(cx, large + i, 65536);
    hf_cx_end(cx);
    NET_WAIT(&loop, ans.end || ans.failed);
    assert_memory_equal(ans.body.p, large, LARGE);
    assert_true(client_drains > 0);
    answer_done(&ans);
    cx = ask_with("POST", "/echo", -1, &ans);
    (void)hf_cx_write(cx, "abc", 3);
    struct hf_field t[] = {{HF_STR("X-T"), HF_STR("tail")}};
    hf_cx_trailers(cx, t, 1);
    NET_WAIT(&loop, ans.end || ans.failed);
    assert_string_equal(ans.body.p, "abc");
    assert_true(net_has(&ans.fields, "[x-trailer=tail]"));
}

static void test_many_at_once(void **state)
{
    struct answer many[100];
    memset(many, 0, sizeof(many));
    for (size_t i = 0; i < 100; i++) {
        answer_done(&many[i]);
        assert_non_null(ask_with("GET", i % 2 ? "/" : "/stream", 0, &many[i]));
    }
    assert_false(hf_client_free_slot(client));
    assert_null(ask_with("GET", "/", 0, &ans));
    for (size_t i = 0; i < 100; i++) {
        NET_WAIT(&loop, many[i].end);
        assert_string_equal(many[i].body.p, i % 2 ? "ok" : "hello world");
        answer_done(&many[i]);
    }
    assert_int_equal(requests, 100);
}

static void test_head_is_the_same(void **state)
{
    struct hf_field f[] = {{HF_STR("X-A"), HF_STR("1")},
                           {HF_STR("cookie"), HF_STR("a=1")},
                           {HF_STR("cookie"), HF_STR("b=2")},
                           {HF_STR("te"), HF_STR("trailers")},
                           {HF_STR("connection"), HF_STR("x-a")}};
    struct hf_cx_req req = {HF_STR("GET"), HF_STR("http"), HF_STR("a.test"), HF_STR("/describe?q"), f, 5, 0,
                            NULL};
    assert_non_null(hf_cx_new(client, &req, &cx_ops, &ans));
    NET_WAIT(&loop, ans.end);
    assert_string_equal(ans.body.p, "version=20 tls=0 sni= length=0 hijack=0[host=a.test][x-a=1][te=trailers]"
                                    "[cookie=a=1; b=2]");
    answer_done(&ans);
    req.method = HF_STR("BREW"); /* as on HTTP/1.1 */
    assert_non_null(hf_cx_new(client, &req, &cx_ops, &ans));
    NET_WAIT(&loop, ans.end);
    assert_int_equal(ans.status, 501);
}

static void test_backpressure(void **state)
{
    /* A response that nobody takes. */
    ans.pause = true;
    struct hf_cx *cx = ask_with("GET", "/hold", 0, &ans);
    NET_WAIT(&loop, held);
    hf_res_begin(held, 200, -1);
    int r = 0;
    for (int i = 0; i < 100 && !r; i++)
        r = hf_res_write(held, large, 65536);
    assert_int_equal(r, 1);
    net_pump(&loop, 30);
    size_t before = ans.body.n;
    assert_true(before <= HF_HTTP_WRITE_HIGH);
    /* Another stream of the same connection is not held up. */
    struct answer other = {0};
    answer_done(&other);
    assert_non_null(ask_with("GET", "/", 0, &other));
    NET_WAIT(&loop, other.end);
    answer_done(&other);
    ans.pause = false;
    hf_cx_resume(cx);
    NET_WAIT(&loop, drains);
    hf_res_end(held);
    NET_WAIT(&loop, ans.end);
    assert_int_equal(aborts, 0);
    /* A body that nobody takes: the sender is stopped by the window. */
    answer_done(&ans);
    ends = 0;
    cx = ask_with("POST", "/paused", -1, &ans);
    NET_WAIT(&loop, held);
    r = 0;
    size_t n = 0;
    for (; n < LARGE; n += 65536) {
        r = hf_cx_write(cx, large, 65536);
        net_pump(&loop, 1);
    }
    assert_int_equal(r, 1);
    assert_int_equal(taken, 0);
    assert_true(held->stream->held.n <= HF_H2_WINDOW);
    hf_req_resume(held);
    NET_WAIT(&loop, taken == n);
    assert_int_equal(ends, 0);
    hf_cx_end(cx);
    NET_WAIT(&loop, ends);
    hf_res_send(held, 200, NULL, "", 0);
    NET_WAIT(&loop, ans.end);
}

static void test_cancel(void **state)
{
    struct hf_cx *cx = ask_with("GET", "/hold", 0, &ans);
    NET_WAIT(&loop, held);
    hf_cx_cancel(cx);
    NET_WAIT(&loop, closes);
    assert_int_equal(aborts, 1);
    get("/"); /* the connection goes on */
    assert_string_equal(ans.body.p, "ok");
    answer_done(&ans);
    cx = ask_with("GET", "/hold", 0, &ans);
    NET_WAIT(&loop, held);
    hf_res_abort(held);
    NET_WAIT(&loop, ans.failed);
    assert_false(ans.end);
    answer_done(&ans);
    /* An answer before the body's end: complete for the client, whose rest is not wanted. */
    cx = ask_with("POST", "/early", -1, &ans);
    (void)hf_cx_write(cx, "abc", 3);
    NET_WAIT(&loop, ans.end || ans.failed);
    assert_true(ans.end);
    NET_WAIT(&loop, server->conns.next != &server->conns &&
                        hf_list_entry(server->conns.next, struct hf_conn, node)->h2_streams == 0);
}

static void test_server_goes(void **state)
{
    struct hf_cx *cx = ask_with("GET", "/hold", 0, &ans);
    assert_non_null(cx);
    NET_WAIT(&loop, held);
    hf_http_server_stop(server);
    hf_res_send(held, 200, NULL, "last", 4);
    NET_WAIT(&loop, ans.end);
    assert_string_equal(ans.body.p, "last");
    NET_WAIT(&loop, gones); /* GOAWAY */
    assert_null(ask_with("GET", "/", 0, &ans));
    NET_WAIT(&loop, server->conn_n == 0);
}

static void test_connection_lost(void **state)
{
    assert_non_null(ask_with("GET", "/hold", 0, &ans));
    NET_WAIT(&loop, held);
    hf_conn_close(held->conn, true);
    NET_WAIT(&loop, ans.failed && gones && closes);
    assert_int_equal(aborts, 1);
    hf_client_close(hf_take_ptr(client));
}

/* An answer that came whole is whole, even if the connection ended before its user took it. */
static void test_connection_ends_while_paused(void **state)
{
    ans.pause = true;
    struct hf_cx *cx = ask_with("GET", "/stream", 0, &ans);
    NET_WAIT(&loop, ans.body.n);
    net_pump(&loop, 20);
    hf_conn_close(hf_list_entry(server->conns.next, struct hf_conn, node), true);
    NET_WAIT(&loop, gones);
    assert_false(ans.end || ans.failed);
    assert_int_equal(ans.trailers, 0); /* they come behind the body */
    ans.pause = false;
    hf_cx_resume(cx);
    NET_WAIT(&loop, ans.end || ans.failed);
    assert_true(ans.end);
    assert_string_equal(ans.body.p, "hello world");
    assert_int_equal(ans.trailers, 1);
}

static void test_over_tls(void **state)
{
    struct hf_err err;
    tls_world_init(&world, HF_ALPN_HTTP1 | HF_ALPN_H2);
    struct hf_http_server *plain = server;
    server = hf_http_server_new(&loop, &handler, NULL);
    assert_int_equal(hf_http_server_listen_tls(server, "127.0.0.1", 0, world.server, &err), 0);
    struct tls_fd x = tls_dial_fd(net_connect(hf_http_server_port(server)), world.client, "a.test", 0);
    tls_shake(&loop, &x);
    assert_int_equal(hf_tls_alpn(x.t), HF_ALPN_H2);
    hf_client_close(client);
    uv_tcp_t *t = hf_new(uv_tcp_t);
    assert_int_equal(uv_tcp_init(&loop, t), 0);
    assert_int_equal(uv_tcp_open(t, x.fd), 0);
    client = hf_client_new(&loop, (uv_stream_t *)t, hf_take_ptr(x.t), true, on_gone, NULL);
    x.fd = -1;
    tls_fd_done(&x);
    get("/describe");
    assert_true(net_has(&ans.body, "version=20 tls=1 sni=a.test"));
    get("/large");
    assert_memory_equal(ans.body.p, large, LARGE);
    hf_client_close(hf_take_ptr(client));
    bool done = false;
    hf_http_server_free(server, server_gone, &done);
    NET_WAIT(&loop, done);
    server = plain;
    tls_world_done(&world);
}

/* ---- frames by hand ---- */

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

static struct hf_buf raw_in = {NULL, 0, 0, NET_BUF_MAX};

static void frame(struct hf_buf *b, uint8_t type, uint8_t flags, uint32_t id, const void *p, size_t n)
{
    unsigned char h[9] = {
        (unsigned char)(n >> 16), (unsigned char)(n >> 8), (unsigned char)n, type, flags, 0, 0,
        (unsigned char)(id >> 8), (unsigned char)id};
    assert_int_equal(hf_buf_add(b, h, 9), 0);
    assert_int_equal(hf_buf_add(b, p, n), 0);
}

static int raw_dial(struct hf_buf *b)
{
    *b = HF_BUF_INIT(NET_BUF_MAX);
    assert_int_equal(hf_buf_add(b, PREFACE, 24), 0);
    frame(b, NGHTTP2_SETTINGS, 0, 0, "", 0);
    hf_buf_clear(&raw_in);
    return net_connect(hf_http_server_port(server));
}

/* The error code of the GOAWAY frame in what came, -1 without one. */
static int goaway(void)
{
    for (size_t i = 0; i + 9 <= raw_in.n;) {
        const unsigned char *f = (const unsigned char *)raw_in.p + i;
        size_t n = (size_t)f[0] << 16 | (size_t)f[1] << 8 | f[2];
        if (f[3] == NGHTTP2_GOAWAY && i + 17 <= raw_in.n)
            return f[16];
        i += 9 + n;
    }
    return -1;
}

/* GET / on a.test: indexed fields, and a literal authority. */
static const char get_block[] = "\x82\x86\x84\x01\x06"
                                "a.test";

static int flood(void (*fill)(struct hf_buf *b))
{
    struct hf_buf b;
    int fd = raw_dial(&b);
    fill(&b);
    net_send_n(&loop, fd, b.p, b.n);
    (void)net_read_end(&loop, fd, &raw_in);
    hf_buf_done(&b);
    hf_close(fd);
    return goaway();
}

static void fill_resets(struct hf_buf *b)
{
    for (uint32_t i = 0; i < 2000; i++) {
        frame(b, NGHTTP2_HEADERS, 5, 1 + 2 * i, get_block, sizeof(get_block) - 1);
        frame(b, NGHTTP2_RST_STREAM, 0, 1 + 2 * i, "\0\0\0\x8", 4);
    }
}

static void fill_pings(struct hf_buf *b)
{
    for (int i = 0; i < 10000; i++)
        frame(b, NGHTTP2_PING, 1, 0, "12345678", 8);
}

static void fill_settings(struct hf_buf *b)
{
    for (int i = 0; i < 10000; i++)
        frame(b, NGHTTP2_SETTINGS, 0, 0, "\0\4\0\0\x40\0", 6);
}

static void fill_empty(struct hf_buf *b)
{
    static const char post[] = "\x83\x86\x44\x05/hold\x01\x06"
                               "a.test";
    frame(b, NGHTTP2_HEADERS, 4, 1, post, sizeof(post) - 1);
    for (int i = 0; i < 10000; i++)
        frame(b, NGHTTP2_DATA, 0, 1, "", 0);
}

static void test_floods(void **state)
{
    assert_int_equal(flood(fill_resets), NGHTTP2_ENHANCE_YOUR_CALM);
    assert_true(requests <= (int)HF_H2_RESET_BURST + 2);
    assert_int_equal(flood(fill_pings), NGHTTP2_ENHANCE_YOUR_CALM);
    int e = flood(fill_settings); /* nghttp2 may be first to see it */
    assert_true(e == NGHTTP2_ENHANCE_YOUR_CALM || e == -1);
    assert_int_equal(flood(fill_empty), NGHTTP2_ENHANCE_YOUR_CALM);
    get("/"); /* others are none the worse */
    assert_string_equal(ans.body.p, "ok");
}

static void test_too_many_streams(void **state)
{
    struct hf_buf b;
    int fd = raw_dial(&b);
    static const char hold[] = "\x82\x86\x44\x05/hold\x01\x06"
                               "a.test";
    for (uint32_t i = 0; i < 300; i++)
        frame(&b, NGHTTP2_HEADERS, 5, 1 + 2 * i, hold, sizeof(hold) - 1);
    net_send_n(&loop, fd, b.p, b.n);
    net_pump(&loop, 50);
    assert_true(requests <= (int)HF_H2_STREAMS_MAX);
    hf_buf_done(&b);
    hf_close(fd);
    NET_WAIT(&loop, closes == requests);
}

/* One request with this header block; the first frame that answers it: its type, and for HEADERS *ret_first
 * is the first byte of the block. */
static unsigned raw_flags; /* of that frame */

static int raw_request(const char *block, size_t n, unsigned *ret_first)
{
    struct hf_buf b;
    int fd = raw_dial(&b), type = -1;
    frame(&b, NGHTTP2_HEADERS, 5, 1, block, n);
    net_send_n(&loop, fd, b.p, b.n);
    uint64_t end = hf_mono_ms() + NET_TIMEOUT_MS;
    while (type < 0 && hf_mono_ms() < end) {
        int r = net_recv(fd, &raw_in);
        net_turn(&loop);
        for (size_t i = 0; i + 9 <= raw_in.n;) {
            const unsigned char *f = (const unsigned char *)raw_in.p + i;
            size_t len = (size_t)f[0] << 16 | (size_t)f[1] << 8 | f[2];
            if (f[8] == 1 && f[3] != NGHTTP2_WINDOW_UPDATE && i + 9 + len <= raw_in.n) {
                type = f[3];
                raw_flags = f[4];
                *ret_first = f[9];
                break;
            }
            i += 9 + len;
        }
        if (r == 0 || (r < 0 && r != -EAGAIN))
            break;
    }
    hf_buf_done(&b);
    hf_close(fd);
    return type;
}

#define RAW(lit) raw_request("" lit, sizeof(lit) - 1, &first)

static void test_strict_heads(void **state)
{
    unsigned first = 0;
    int before = requests;
    assert_int_equal(RAW("\x82\x86\x84\x01\x06"
                         "a.test"),
                     NGHTTP2_HEADERS);
    assert_int_equal(first, 0x88); /* :status 200 */
    assert_int_equal(requests, before + 1);
    /* host that agrees; that does not; twice; none at all */
    assert_int_equal(RAW("\x82\x86\x84\x01\x06"
                         "a.test\x0f\x17\x06"
                         "A.test"),
                     NGHTTP2_HEADERS);
    assert_int_equal(first, 0x88);
    assert_int_equal(RAW("\x82\x86\x84\x01\x06"
                         "a.test\x0f\x17\x06"
                         "b.test"),
                     NGHTTP2_HEADERS);
    assert_int_equal(first, 0x8c); /* 400 */
    /* Twice, or none: nghttp2 refuses the stream, or the check does. */
    int t = RAW("\x82\x86\x84\x0f\x17\x01"
                "a\x0f\x17\x01"
                "a");
    assert_true(t == NGHTTP2_RST_STREAM || (t == NGHTTP2_HEADERS && first == 0x8c));
    t = RAW("\x82\x86\x84");
    assert_true(t == NGHTTP2_RST_STREAM || (t == NGHTTP2_HEADERS && first == 0x8c));
    /* Connection-level fields, upper case, CR LF in a value, a second :path, pseudo after fields. */
    assert_int_equal(RAW("\x82\x86\x84\x01\x01"
                         "a\x00\x0a"
                         "connection\x01x"),
                     NGHTTP2_RST_STREAM);
    assert_int_equal(RAW("\x82\x86\x84\x01\x01"
                         "a\x00\x11transfer-encoding\x07"
                         "chunked"),
                     NGHTTP2_RST_STREAM);
    assert_int_equal(RAW("\x82\x86\x84\x01\x01"
                         "a\x00\x03X-a\x01x"),
                     NGHTTP2_RST_STREAM);
    assert_int_equal(RAW("\x82\x86\x84\x01\x01"
                         "a\x00\x03x-a\x05x\r\nyz"),
                     NGHTTP2_RST_STREAM);
    assert_int_equal(RAW("\x82\x86\x84\x84\x01\x01"
                         "a"),
                     NGHTTP2_RST_STREAM);
    assert_int_equal(RAW("\x82\x86\x00\x03x-a\x01x\x84\x01\x01"
                         "a"),
                     NGHTTP2_RST_STREAM);
    /* A path that is none, a fragment, a blank. */
    t = RAW("\x82\x86\x44\x02xy\x01\x01"
            "a");
    assert_true(t == NGHTTP2_RST_STREAM || first == 0x8c);
    assert_int_equal(RAW("\x82\x86\x44\x04/x#y\x01\x01"
                         "a"),
                     NGHTTP2_HEADERS);
    assert_int_equal(first, 0x8c);
    t = RAW("\x82\x86\x44\x04/x y\x01\x01"
            "a");
    assert_true(t == NGHTTP2_RST_STREAM || first == 0x8c);
    assert_int_equal(requests, before + 2); /* none of those reached the handler */
}

/* A head that ends the stream, and one that only trailers follow. */
static void test_empty_bodies(void **state)
{
    unsigned first;
    assert_int_equal(RAW("\x82\x86\x44\x05/none\x01\x01"
                         "a"),
                     NGHTTP2_HEADERS);
    assert_true(raw_flags & NGHTTP2_FLAG_END_STREAM);
    assert_int_equal(RAW("\x82\x86\x44\x05/only\x01\x01"
                         "a"),
                     NGHTTP2_HEADERS);
    assert_false(raw_flags & NGHTTP2_FLAG_END_STREAM);
    get("/none");
    assert_true(net_has(&ans.fields, "[x-head=1]") && !ans.trailers);
    get("/only");
    assert_true(net_has(&ans.fields, "[x-head=1]") && net_has(&ans.fields, "[x-sum=7]"));
    assert_int_equal(ans.trailers, 1);
}

static void test_large_head(void **state)
{
    struct hf_field f[20];
    char *value = hf_xmalloc(4000);
    memset(value, 'v', 4000);
    for (size_t i = 0; i < 20; i++)
        f[i] = (struct hf_field){HF_STR("x-large"), {value, 4000}};
    struct hf_cx_req req = {HF_STR("GET"), HF_STR("http"), HF_STR("a.test"), HF_STR("/"), f, 20, 0, NULL};
    assert_non_null(hf_cx_new(client, &req, &cx_ops, &ans));
    NET_WAIT(&loop, ans.end || ans.failed);
    assert_true(ans.failed || ans.status == 431);
    assert_int_equal(requests, 0);
    req.n_fields = 10;
    answer_done(&ans);
    if (gones == 0) {
        assert_non_null(hf_cx_new(client, &req, &cx_ops, &ans));
        NET_WAIT(&loop, ans.end);
        assert_int_equal(ans.status, 200);
    }
    free(value);
}

static void test_timeouts(void **state)
{
    struct hf_buf b;
    hf_http_server_set_timeouts(server, 60, 120);
    /* Only the preface; half a header block; idle. */
    int a = raw_dial(&b);
    net_send_n(&loop, a, PREFACE, 24);
    assert_true(net_read_end(&loop, a, &raw_in) <= 0);
    hf_buf_done(&b);
    int h = raw_dial(&b);
    frame(&b, NGHTTP2_HEADERS, 1, 1, get_block, sizeof(get_block) - 1);
    net_send_n(&loop, h, b.p, b.n);
    assert_true(net_read_end(&loop, h, &raw_in) <= 0);
    hf_buf_done(&b);
    int i = raw_dial(&b);
    net_send_n(&loop, i, b.p, b.n);
    assert_int_equal(net_read_end(&loop, i, &raw_in), 0);
    assert_int_equal(goaway(), NGHTTP2_NO_ERROR);
    hf_buf_done(&b);
    hf_close(a);
    hf_close(h);
    hf_close(i);
    assert_int_equal(requests, 0);
}

/* The preface counts as the first bytes of a connection only, however they are cut. */
static void test_preface(void **state)
{
    struct hf_buf b;
    int fd = raw_dial(&b);
    frame(&b, NGHTTP2_HEADERS, 5, 1, get_block, sizeof(get_block) - 1);
    for (size_t i = 0; i < b.n; i++) {
        net_send_n(&loop, fd, b.p + i, 1);
        net_turn(&loop);
    }
    NET_WAIT(&loop, requests == 1);
    hf_close(fd);
    hf_buf_done(&b);
    fd = net_connect(hf_http_server_port(server));
    hf_buf_clear(&raw_in);
    net_send(&loop, fd, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    net_expect(&loop, fd, &raw_in, "ok");
    net_send(&loop, fd, PREFACE);
    net_expect(&loop, fd, &raw_in, "505");
    hf_close(fd);
    fd = net_connect(hf_http_server_port(server));
    net_send(&loop, fd, "PRI / HTTP/2.0\r\n\r\n");
    hf_buf_clear(&raw_in);
    net_expect(&loop, fd, &raw_in, "505");
    hf_close(fd);
    hf_buf_done(&raw_in);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_exchanges),        T(test_bodies),
        T(test_many_at_once),     T(test_backpressure),
        T(test_head_is_the_same), T(test_cancel),
        T(test_server_goes),      T(test_connection_lost),
        T(test_over_tls),         T(test_connection_ends_while_paused),
        T(test_floods),           T(test_too_many_streams),
        T(test_strict_heads),     T(test_large_head),
        T(test_empty_bodies),     T(test_timeouts),
        T(test_preface),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
