/* The HTTP/1.1 client against an origin that the test plays byte by byte. */
#include "net.h"
#include "tlsnet.h"

#include "wire/client.h"

static uv_loop_t loop;
static struct hf_client *client;
static int origin; /* the origin's end */
static struct hf_buf in = {NULL, 0, 0, NET_BUF_MAX};
static struct {
    int status, heads, ends, fails, fail_r, drains, trailers, interims, upgrades, gones;
    bool answered, unsent;
    int64_t length;
    struct hf_buf body, fields;
} got = {.body = {NULL, 0, 0, NET_BUF_MAX}, .fields = {NULL, 0, 0, NET_BUF_MAX}};
static bool pause_on_data, cancel_on_data, close_on_data, again_on_end;
static uv_stream_t *taken;
static struct hf_tls *taken_tls;
static struct hf_buf leftover;

static void add_fields(const struct hf_field *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(hf_buf_addf(&got.fields, "[%.*s=%.*s]", (int)f[i].name.n, f[i].name.p,
                                     (int)f[i].value.n, f[i].value.p),
                         0);
}

static void on_head(struct hf_cx *cx, int status, const struct hf_field *f, size_t n, int64_t length)
{
    got.status = status;
    got.heads++;
    got.length = length;
    add_fields(f, n);
}

static void on_interim(struct hf_cx *cx, int status, const struct hf_field *f, size_t n)
{
    got.interims++;
}

static void on_upgrade(struct hf_cx *cx, int status, const struct hf_field *f, size_t n)
{
    got.upgrades++;
    got.status = status;
    taken = hf_cx_take(cx, &taken_tls, &leftover);
    client = NULL;
}

static void on_data(struct hf_cx *cx, const char *p, size_t n)
{
    assert_int_equal(hf_buf_add(&got.body, p, n), 0);
    if (pause_on_data)
        hf_cx_pause(cx);
    if (cancel_on_data)
        hf_cx_cancel(cx);
    if (close_on_data)
        hf_client_close(hf_take_ptr(client));
}

static void on_trailers(struct hf_cx *cx, const struct hf_field *f, size_t n)
{
    got.trailers++;
    add_fields(f, n);
}

static void on_drain(struct hf_cx *cx)
{
    got.drains++;
}

static const struct hf_cx_ops ops;
static struct hf_cx *last;

static struct hf_cx *get(const char *path)
{
    struct hf_cx_req req = {HF_STR("GET"), HF_STR("http"), HF_STR("a.test"), hf_str_c(path), NULL, 0, 0,
                            NULL};
    return hf_cx_new(client, &req, &ops, NULL);
}

static void on_end(struct hf_cx *cx)
{
    got.ends++;
    if (again_on_end) {
        again_on_end = false;
        last = get("/again");
        assert_non_null(last);
    }
}

static void on_fail(struct hf_cx *cx, int r, bool answered, bool unsent)
{
    got.fails++;
    got.fail_r = r;
    got.answered = answered;
    got.unsent = unsent;
}

static const struct hf_cx_ops ops = {on_head,     on_interim, on_upgrade, on_data,
                                     on_trailers, on_drain,   on_end,     on_fail};

static void on_gone(void *arg)
{
    got.gones++;
}

static void free_stream(uv_handle_t *h)
{
    free(h);
}

static int setup(void **state)
{
    int fds[2];
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    uv_pipe_t *p = hf_new(uv_pipe_t);
    assert_int_equal(uv_pipe_init(&loop, p, 0), 0);
    assert_int_equal(uv_pipe_open(p, fds[0]), 0);
    origin = fds[1];
    client = hf_client_new(&loop, (uv_stream_t *)p, NULL, false, on_gone, NULL);
    hf_buf_done(&got.body);
    hf_buf_done(&got.fields);
    memset(&got, 0, sizeof(got));
    got.body.max = got.fields.max = NET_BUF_MAX;
    pause_on_data = cancel_on_data = close_on_data = again_on_end = false;
    hf_buf_clear(&in);
    return 0;
}

static int teardown(void **state)
{
    if (client)
        hf_client_close(client);
    client = NULL;
    origin = hf_close(origin);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    hf_buf_done(&got.body);
    hf_buf_done(&got.fields);
    hf_buf_done(&in);
    return 0;
}

static void say(const char *s)
{
    net_send(&loop, origin, s);
}

static void test_get(void **state)
{
    struct hf_field f[] = {{HF_STR("X-A"), HF_STR("1")},
                           {HF_STR("Connection"), HF_STR("close")},
                           {HF_STR("Transfer-Encoding"), HF_STR("chunked")},
                           {HF_STR("Content-Length"), HF_STR("7")},
                           {HF_STR("Host"), HF_STR("evil")}};
    struct hf_cx_req req = {
        HF_STR("GET"), HF_STR("http"), HF_STR("a.test:81"), HF_STR("/x?y"), f, HF_ARRAY_LEN(f), 0, NULL};
    assert_non_null(hf_cx_new(client, &req, &ops, NULL));
    assert_false(hf_client_free_slot(client));
    assert_null(get("/second"));
    net_expect(&loop, origin, &in, "\r\n\r\n");
    assert_string_equal(in.p, "GET /x?y HTTP/1.1\r\nHost: a.test:81\r\nX-A: 1\r\n\r\n");
    say("HTTP/1.1 200 OK\r\nContent-Le");
    net_pump(&loop, 5);
    say("ngth: 5\r\nX-B: 2\r\nKeep-Alive: a\r\nX-Hop: 1\r\nConnection: x-hop\r\n\r\nhel");
    net_pump(&loop, 5);
    say("lo");
    NET_WAIT(&loop, got.ends);
    assert_int_equal(got.status, 200);
    assert_int_equal(got.length, 5);
    assert_string_equal(got.body.p, "hello");
    assert_string_equal(got.fields.p, "[content-length=5][x-b=2]");
    assert_true(hf_client_free_slot(client));
    /* And once more on the same connection, begun inside on_end. */
    again_on_end = true;
    assert_non_null(get("/next"));
    hf_buf_clear(&in);
    net_expect(&loop, origin, &in, "GET /next");
    say("HTTP/1.1 204 No Content\r\n\r\n");
    net_expect(&loop, origin, &in, "GET /again");
    say("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n");
    NET_WAIT(&loop, got.ends == 3);
    assert_int_equal(got.gones, 0);
    /* The origin goes: told, once. */
    origin = hf_close(origin);
    NET_WAIT(&loop, got.gones);
    assert_false(hf_client_free_slot(client));
}

static void test_bodies(void **state)
{
    struct hf_cx_req req = {HF_STR("POST"), HF_STR("http"), HF_STR("a"), HF_STR("/"), NULL, 0, 4, NULL};
    struct hf_cx *cx = hf_cx_new(client, &req, &ops, NULL);
    assert_int_equal(hf_cx_write(cx, "ab", 2), 0);
    assert_int_equal(hf_cx_write(cx, "cdef", 4), 0); /* more than was said */
    hf_cx_end(cx);
    net_expect(&loop, origin, &in, "Content-Length: 4\r\n\r\nabcd");
    net_pump(&loop, 5);
    (void)net_recv(origin, &in);
    assert_false(net_has(&in, "abcde"));
    say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-t\r\n\r\n3\r\nabc\r\n0\r\nX-T: "
        "1\r\nX-Empty:\r\n"
        "Transfer-Encoding: x\r\nX-U: 2\r\n\r\n");
    NET_WAIT(&loop, got.ends);
    assert_int_equal(got.length, -1);
    assert_string_equal(got.body.p, "abc");
    assert_int_equal(got.trailers, 1);
    assert_string_equal(got.fields.p, "[trailer=x-t][x-t=1][x-empty=][x-u=2]");
    req.length = -1;
    cx = hf_cx_new(client, &req, &ops, NULL);
    assert_non_null(cx);
    (void)hf_cx_write(cx, "hello", 5);
    struct hf_field t[] = {{HF_STR("x-sum"), HF_STR("9")}, {HF_STR("host"), HF_STR("evil")}};
    hf_cx_trailers(cx, t, 2);
    hf_buf_clear(&in);
    net_expect(&loop, origin, &in, "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 9\r\n\r\n");
    say("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 "
        "OK\r\n\r\nuntil");
    NET_WAIT(&loop, got.heads == 2);
    assert_int_equal(got.interims, 2);
    say(" the end");
    (void)shutdown(origin, SHUT_WR);
    NET_WAIT(&loop, got.ends == 2);
    assert_string_equal(got.body.p, "abcuntil the end");
    NET_WAIT(&loop, got.gones);
    assert_int_equal(got.fails, 0);
}

static void test_short_body_is_no_body(void **state)
{
    struct hf_cx_req req = {HF_STR("PUT"), HF_STR("http"), HF_STR("a"), HF_STR("/"), NULL, 0, 4, NULL};
    struct hf_cx *cx = hf_cx_new(client, &req, &ops, NULL);
    (void)hf_cx_write(cx, "ab", 2);
    hf_cx_end(cx);
    NET_WAIT(&loop, got.fails);
    assert_int_equal(got.ends, 0);
}

/* A response that two readers could read in two ways is none. */
static void refuse(const char *response)
{
    assert_non_null(get("/"));
    say(response);
    NET_WAIT(&loop, got.fails);
    assert_true(got.fail_r < 0);
    assert_int_equal(got.ends, 0);
    NET_WAIT(&loop, got.gones);
    (void)teardown(NULL);
    (void)setup(NULL);
}

static void test_hostile(void **state)
{
    static const char *const bad[] = {
        "junk\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\na",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\na",
        "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na",
        "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\x01\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\na\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", /* not asked for */
        "HTTP/1.1 099 X\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        refuse(bad[i]);
    /* Endless interim answers. */
    assert_non_null(get("/"));
    for (int i = 0; i < 40; i++)
        say("HTTP/1.1 102 Processing\r\n\r\n");
    NET_WAIT(&loop, got.fails);
}

static void test_bad_requests(void **state)
{
    struct hf_field f[] = {{HF_STR("x-a"), HF_STR("1\r\nx-b: 2")}};
    struct hf_cx_req req = {HF_STR("GET"), HF_STR("http"), HF_STR("a"), HF_STR("/"), f, 1, 0, NULL};
    assert_null(hf_cx_new(client, &req, &ops, NULL));
    f[0] = (struct hf_field){HF_STR("x a"), HF_STR("1")};
    assert_null(hf_cx_new(client, &req, &ops, NULL));
    req.n_fields = 0;
    req.path = HF_STR("/a b");
    assert_null(hf_cx_new(client, &req, &ops, NULL));
    req.path = HF_STR("http://b/");
    assert_null(hf_cx_new(client, &req, &ops, NULL));
    req.path = HF_STR("/");
    req.authority = HF_STR("a\r\nb");
    assert_null(hf_cx_new(client, &req, &ops, NULL));
    req.authority = HF_STR("a");
    req.method = HF_STR("GE T");
    assert_null(hf_cx_new(client, &req, &ops, NULL));
    assert_true(hf_client_free_slot(client)); /* the connection is none the worse */
}

static void test_cuts(void **state)
{
    assert_non_null(get("/"));
    say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    NET_WAIT(&loop, got.body.n);
    origin = hf_close(origin);
    NET_WAIT(&loop, got.fails);
    assert_true(got.answered);
    assert_false(got.unsent);
    assert_int_equal(got.ends, 0);
}

/* A connection that the origin has closed while it was idle: nothing of the request was taken. */
static void test_unsent(void **state)
{
    origin = hf_close(origin);
    struct hf_cx *cx = get("/");
    if (cx) {
        NET_WAIT(&loop, got.fails);
        assert_true(got.unsent);
        assert_false(got.answered);
    }
    NET_WAIT(&loop, got.gones);
}

static void test_answer_before_the_body(void **state)
{
    struct hf_cx_req req = {HF_STR("POST"), HF_STR("http"), HF_STR("a"), HF_STR("/"), NULL, 0, -1, NULL};
    struct hf_cx *cx = hf_cx_new(client, &req, &ops, NULL);
    say("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig");
    origin = hf_close(origin);
    char *p = hf_xcalloc(1, 1 << 20);
    (void)hf_cx_write(cx, p, 1 << 20); /* fails; the answer is there all the same */
    free(p);
    NET_WAIT(&loop, got.ends || got.fails);
    assert_int_equal(got.status, 413);
    assert_int_equal(got.ends, 1);
}

static void test_backpressure(void **state)
{
    struct hf_cx_req req = {HF_STR("POST"), HF_STR("http"), HF_STR("a"), HF_STR("/"), NULL, 0, -1, NULL};
    struct hf_cx *cx = hf_cx_new(client, &req, &ops, NULL);
    char *p = hf_xcalloc(1, 65536);
    int r = 0;
    for (int i = 0; i < 1000 && !r; i++)
        r = hf_cx_write(cx, p, 65536);
    assert_int_equal(r, 1);
    assert_int_equal(got.drains, 0);
    while (!got.drains) {
        hf_buf_clear(&in);
        (void)net_recv(origin, &in);
        net_turn(&loop);
    }
    free(p);
    /* The other way: a paused exchange takes no more than the buffers hold. */
    hf_cx_end(cx);
    net_pump(&loop, 20);
    while (net_recv(origin, &in) == 1)
        hf_buf_clear(&in);
    pause_on_data = true;
    say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n");
    NET_WAIT(&loop, got.body.n);
    net_pump(&loop, 10);
    assert_string_equal(got.body.p, "a");
    hf_cx_resume(cx);
    NET_WAIT(&loop, got.body.n == 2);
    pause_on_data = false;
    hf_cx_resume(cx);
    NET_WAIT(&loop, got.ends);
    assert_string_equal(got.body.p, "ab");
    assert_true(hf_client_free_slot(client));
}

static void test_end_of_stream_while_paused(void **state)
{
    struct hf_cx *cx = get("/");
    net_expect(&loop, origin, &in, "\r\n\r\n"); /* unread bytes would make a reset of the end */
    pause_on_data = true;
    say("HTTP/1.0 200 OK\r\n\r\nabc");
    NET_WAIT(&loop, got.body.n);
    origin = hf_close(origin);
    net_pump(&loop, 10);
    assert_int_equal(got.ends, 0);
    pause_on_data = false;
    hf_cx_resume(cx);
    NET_WAIT(&loop, got.ends);
}

static void test_cancel_and_close_inside(void **state)
{
    cancel_on_data = true;
    assert_non_null(get("/"));
    say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n");
    NET_WAIT(&loop, got.gones);
    assert_string_equal(got.body.p, "a");
    assert_int_equal(got.ends + got.fails, 0);
    (void)teardown(NULL);
    (void)setup(NULL);
    close_on_data = true;
    assert_non_null(get("/"));
    say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n");
    NET_WAIT(&loop, got.fails);
    assert_int_equal(got.fail_r, -ECANCELED);
    assert_int_equal(got.gones, 0);
}

static void test_upgrade(void **state)
{
    struct hf_cx_req req = {HF_STR("GET"), HF_STR("http"), HF_STR("a"), HF_STR("/"), NULL, 0, 0, "websocket"};
    assert_non_null(hf_cx_new(client, &req, &ops, NULL));
    net_expect(&loop, origin, &in, "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nframe");
    NET_WAIT(&loop, got.upgrades);
    assert_string_equal(leftover.p, "frame");
    assert_null(taken_tls);
    hf_buf_done(&leftover);
    uv_close((uv_handle_t *)taken, free_stream);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    (void)teardown(NULL);
    (void)setup(NULL);
    /* CONNECT */
    req = (struct hf_cx_req){HF_STR("CONNECT"), {NULL, 0}, HF_STR("b:443"), {NULL, 0}, NULL, 0, 0, NULL};
    assert_non_null(hf_cx_new(client, &req, &ops, NULL));
    net_expect(&loop, origin, &in, "CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n");
    say("HTTP/1.1 200 OK\r\n\r\n");
    NET_WAIT(&loop, got.upgrades);
    hf_buf_done(&leftover);
    uv_close((uv_handle_t *)taken, free_stream);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
}

static void test_unasked_bytes(void **state)
{
    net_pump(&loop, 2);
    say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); /* for a request to come: poison */
    NET_WAIT(&loop, got.gones);
    assert_null(get("/"));
    (void)teardown(NULL);
    (void)setup(NULL);
    assert_non_null(get("/"));
    say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    NET_WAIT(&loop, got.ends);
    assert_false(hf_client_free_slot(client));
    NET_WAIT(&loop, got.gones);
}

static void test_head_and_large(void **state)
{
    struct hf_cx_req req = {HF_STR("HEAD"), HF_STR("http"), HF_STR("a"), HF_STR("/"), NULL, 0, 0, NULL};
    assert_non_null(hf_cx_new(client, &req, &ops, NULL));
    say("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
    NET_WAIT(&loop, got.ends);
    assert_int_equal(got.length, 0);
    assert_string_equal(got.fields.p, "[content-length=1000]");
    /* A head beyond the limit. */
    assert_non_null(get("/"));
    say("HTTP/1.1 200 OK\r\nX: ");
    char *p = hf_xmalloc(70001);
    memset(p, 'a', 70000);
    p[70000] = '\0';
    say(p);
    free(p);
    NET_WAIT(&loop, got.fails);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_get),
        T(test_bodies),
        T(test_short_body_is_no_body),
        T(test_hostile),
        T(test_bad_requests),
        T(test_cuts),
        T(test_unsent),
        T(test_answer_before_the_body),
        T(test_backpressure),
        T(test_end_of_stream_while_paused),
        T(test_cancel_and_close_inside),
        T(test_upgrade),
        T(test_unasked_bytes),
        T(test_head_and_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
