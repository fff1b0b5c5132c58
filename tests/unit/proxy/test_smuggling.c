/* Requests that two parsers could read in two ways. Each is refused and its connection closed, so that what
 * follows is never read as a request, or it is made into something that can be read in one way only. */
#include "rig.h"

#define SECOND "GET /smuggled HTTP/1.1\r\n" RIG_HOST "\r\n"
#define POST(more) "POST / HTTP/1.1\r\n" RIG_HOST more
#define OK "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

static const struct {
    const char *name, *bytes;
    int status;
} refused[] = {
    {"CL.TE", POST("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG") SECOND, 400},
    {"TE.CL", POST("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n") SECOND "0\r\n\r\n", 400},
    {"TE.TE, repeated", POST("Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n") SECOND,
     400},
    {"TE, a list", POST("Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n") SECOND, 400},
    {"TE, unknown", POST("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n") SECOND, 400},
    {"TE, quoted", POST("Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n") SECOND, 400},
    {"TE, identity", POST("Transfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc") SECOND, 400},
    {"TE, vertical tab", POST("Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n") SECOND, 400},
    {"TE, space before the colon", POST("Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n") SECOND, 400},
    {"TE, folded", POST("Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n") SECOND, 400},
    {"TE in a folded line", POST("X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n") SECOND, 400},
    {"TE behind a bare LF", POST("X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n") SECOND, 400},
    {"TE behind a bare CR", POST("X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n") SECOND, 400},
    {"TE in HTTP/1.0", "POST / HTTP/1.0\r\n" RIG_HOST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SECOND,
     400},
    {"CL, two that differ", POST("Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd") SECOND, 400},
    {"CL, repeated", POST("Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc") SECOND, 400},
    {"CL, a list", POST("Content-Length: 3, 3\r\n\r\nabc") SECOND, 400},
    {"CL, sign", POST("Content-Length: +3\r\n\r\nabc") SECOND, 400},
    {"CL, minus", POST("Content-Length: -1\r\n\r\nabc") SECOND, 400},
    {"CL, hex", POST("Content-Length: 0x3\r\n\r\nabc") SECOND, 400},
    {"CL, inner blank", POST("Content-Length: 1 0\r\n\r\nabcdefghij") SECOND, 400},
    {"CL, too large", POST("Content-Length: 18446744073709551619\r\n\r\nabc") SECOND, 400},
    {"CL, space before the colon", POST("Content-Length : 3\r\n\r\nabc") SECOND, 400},
    {"CL, empty", POST("Content-Length:\r\n\r\nabc") SECOND, 400},
    {"chunk size, sign", POST("Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n") SECOND, 400},
    {"chunk size, 0x", POST("Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n") SECOND, 400},
    {"chunk size, too large",
     POST("Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\na\r\n0\r\n\r\n") SECOND, 400},
    {"chunk, bare LF", POST("Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n") SECOND, 400},
    {"chunk, longer than said", POST("Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n") SECOND, 400},
    {"head ends with LF LF", "GET / HTTP/1.1\n" RIG_HOST "\n" SECOND, 400},
    {"bare LF in the request line", "GET / HTTP/1.1\n" RIG_HOST "\r\n" SECOND, 400},
    {"obs-fold", POST("X: a\r\n b\r\nContent-Length: 0\r\n\r\n") SECOND, 400},
    {"a fold before any header", "GET / HTTP/1.1\r\n X: y\r\n" RIG_HOST "\r\n" SECOND, 400},
    {"two Hosts", "GET / HTTP/1.1\r\n" RIG_HOST "Host: 8000-other.localhost\r\n\r\n" SECOND, 400},
    {"two Hosts alike", "GET / HTTP/1.1\r\n" RIG_HOST RIG_HOST "\r\n" SECOND, 400},
    {"no Host", "GET / HTTP/1.1\r\nX: y\r\n\r\n" SECOND, 400},
    {"Host with a blank", "GET / HTTP/1.1\r\nHost: 8000-box.localhost 8000-other.localhost\r\n\r\n" SECOND,
     400},
    {"Host with a slash", "GET / HTTP/1.1\r\nHost: 8000-box.localhost/8000-other.localhost\r\n\r\n" SECOND,
     400},
    {"Host with @", "GET / HTTP/1.1\r\nHost: x@8000-box.localhost\r\n\r\n" SECOND, 400},
    {"absolute-form against Host", "GET http://8000-other.localhost/ HTTP/1.1\r\n" RIG_HOST "\r\n" SECOND,
     400},
    {"absolute-form with user", "GET http://8000-box.localhost@evil/ HTTP/1.1\r\n" RIG_HOST "\r\n" SECOND,
     400},
    {"authority-form", "CONNECT 8000-box.localhost:80 HTTP/1.1\r\n" RIG_HOST "\r\n" SECOND, 501},
    {"two routing headers",
     "GET / HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: box\r\nE2b-Sandbox-Id: other\r\n"
     "E2b-Sandbox-Port: 80\r\n\r\n" SECOND,
     400},
    {"blank in the target", "GET /a b HTTP/1.1\r\n" RIG_HOST "\r\n" SECOND, 400},
    {"fragment in the target", "GET /a#b HTTP/1.1\r\n" RIG_HOST "\r\n" SECOND, 400},
    {"HTTP/1.2", "GET / HTTP/1.2\r\n" RIG_HOST "\r\n" SECOND, 505},
    {"HTTP/0.9", "GET /\r\n" SECOND, 400},
    {"header without colon", "GET / HTTP/1.1\r\n" RIG_HOST "nocolon\r\n\r\n" SECOND, 400},
    {"header with an empty name", "GET / HTTP/1.1\r\n" RIG_HOST ": x\r\n\r\n" SECOND, 400},
    {"name with a non-ASCII byte", "GET / HTTP/1.1\r\n" RIG_HOST "Content\xadLength: 3\r\n\r\nabc" SECOND,
     400},
};

/* The application answers everything with a 4xx-free OK and keeps what it got. */
static int app_fds[8];
static size_t app_n;

static void app_turn(void)
{
    int fd = accept4(rig.app, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        assert_true(app_n < HF_ARRAY_LEN(app_fds));
        app_fds[app_n++] = fd;
    }
    for (size_t i = 0; i < app_n; i++)
        (void)net_recv(app_fds[i], &rig.up);
}

static void app_done(void)
{
    while (app_n)
        hf_close(app_fds[--app_n]);
    net_pump(&rig.loop, 2);
}

/* A chunked body that turns out malformed has begun to flow: the sandbox sees a request that never ends. */
static void test_refused(void **state)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(refused); i++) {
        char want[32];
        hf_buf_clear(&rig.up);
        int fd = rig_client();
        rig_send(fd, refused[i].bytes);
        for (int k = 0; k < 12; k++) {
            net_pump(&rig.loop, 1);
            app_turn();
        }
        int end = rig_end(fd);
        (void)snprintf(want, sizeof(want), "HTTP/1.1 %d ", refused[i].status);
        if (strncmp(rig.in.p ? rig.in.p : "", want, strlen(want)) != 0 ||
            net_count(&rig.in, "\r\nConnection: close\r\n") != 1)
            fail_msg("%s: %d %s", refused[i].name, end, rig.in.p ? rig.in.p : "nothing");
        if (net_has(&rig.up, "smuggled") || net_has(&rig.up, "0\r\n\r\n"))
            fail_msg("%s reached the sandbox: %s", refused[i].name, rig.up.p);
        hf_close(fd);
        app_done();
    }
}

static const struct {
    const char *name, *bytes, *head, *body;
} harmless[] = {
    {"chunk extensions", POST("Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n"),
     "Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"},
    {"chunk sizes with zeros", POST("transfer-encoding:  Chunked \r\n\r\n003\r\nabc\r\n000\r\n\r\n"),
     "Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"},
    {"trailers that would be headers",
     POST("Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nContent-Length: 9\r\nHost: x\r\n\r\n"),
     "Transfer-Encoding: chunked\r\n", "1\r\na\r\n0\r\n\r\n"},
    {"a request as a body", POST("Content-Length: 52\r\n\r\n") SECOND, "Content-Length: 52\r\n",
     "\r\n\r\n" SECOND},
    {"Connection names the length", POST("Connection: Content-Length, Host\r\nContent-Length: 3\r\n\r\nabc"),
     "Content-Length: 3\r\n", "\r\n\r\nabc"},
    {"GET with a body", "GET / HTTP/1.1\r\n" RIG_HOST "Content-Length: 3\r\n\r\nabc", "Content-Length: 3\r\n",
     "\r\n\r\nabc"},
    {"absolute-form that agrees",
     "POST http://8000-BOX.localhost/ HTTP/1.1\r\n" RIG_HOST "Content-Length: 0\r\n\r\n",
     "POST / HTTP/1.1\r\n" RIG_HOST, "\r\n\r\n"},
    {"an upgrade to h2c",
     POST("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
          "Content-Length: 0\r\n\r\n"),
     "Content-Length: 0\r\nX-Forwarded-For:", "\r\n\r\n"},
};

static void test_harmless(void **state)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(harmless); i++) {
        int fd = rig_client();
        rig_send(fd, harmless[i].bytes);
        int up = rig_accept(harmless[i].body);
        bool ends = rig.up.n >= strlen(harmless[i].body) &&
                    strcmp(rig.up.p + rig.up.n - strlen(harmless[i].body), harmless[i].body) == 0;
        if (!ends || !net_has(&rig.up, harmless[i].head) || net_count(&rig.up, "HTTP2-Settings") ||
            net_count(&rig.up, "Upgrade"))
            fail_msg("%s: %s", harmless[i].name, rig.up.p);
        rig_send(up, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
        rig_expect(fd, "\r\n\r\nok");
        assert_int_equal(net_count(&rig.in, "HTTP/1.1 "), 1);
        hf_close(fd);
        hf_close(up);
        net_pump(&rig.loop, 2);
    }
}

/* A keep-alive connection whose second request names another sandbox goes there, over another connection. */
static void test_host_changes(void **state)
{
    int fd = rig_client();
    rig_send(fd, RIG_GET("/1"));
    int a = rig_accept("GET /1 ");
    rig_send(a, OK);
    rig_expect(fd, "\r\n\r\nok");
    rig_send(fd, "GET /2 HTTP/1.1\r\nHost: 8000-other.localhost\r\n\r\n");
    int b = rig_accept("GET /2 ");
    assert_true(net_has(&rig.up, "Host: 8000-other.localhost\r\n"));
    hf_buf_clear(&rig.up);
    assert_int_equal(net_recv(a, &rig.up), -EAGAIN);
    hf_close(fd);
    hf_close(a);
    hf_close(b);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {RIG_TEST(test_refused), RIG_TEST(test_harmless),
                                       RIG_TEST(test_host_changes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
