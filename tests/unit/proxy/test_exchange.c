/* HTTP exchanges through the proxy: heads, framing, reuse, retries, failures, drop. */
#include "rig.h"

#define OK "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

static void test_heads(void **state)
{
    int fd = rig_client();
    rig_send(fd, "GET /a//b?c=%2F HTTP/1.1\r\n" RIG_HOST
                 "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n"
                 "TE: trailers\r\nUpgrade: h2c\r\nProxy-Connection: x\r\nX-Kept:  a b \r\nCookie: c\r\n"
                 "e2b-Traffic-Access-Token: secret\r\n"
                 "X-Forwarded-For: 1.2.3.4\r\nE2b-Sandbox-Id: z\r\n\r\n");
    int up = rig_accept("\r\n\r\n");
    assert_string_equal(rig.up.p, "GET /a//b?c=%2F HTTP/1.1\r\n" RIG_HOST "X-Kept:  a b \r\nCookie: c\r\n"
                                  "E2b-Sandbox-Id: z\r\nX-Forwarded-For: 127.0.0.1\r\n"
                                  "X-Forwarded-Proto: http\r\nX-Forwarded-Host: 8000-box.localhost\r\n\r\n");
    assert_int_equal(rig.dialed_port, 8000);
    rig_send(up, "HTTP/1.1 203 My Reason\r\nServer: s\r\nConnection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: 1\r\n"
                 "Set-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 2\r\n\r\nok");
    rig_expect(fd, "ok");
    assert_string_equal(rig.in.p, "HTTP/1.1 203 My Reason\r\nServer: s\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"
                                  "Content-Length: 2\r\n\r\nok");
    hf_close(up);
    hf_close(fd);
}

static void test_absolute_form_and_http10(void **state)
{
    int fd = rig_client();
    rig_send(fd, "GET http://8000-box.localhost/x?y HTTP/1.0\r\n\r\n");
    int up = rig_accept("\r\n\r\n");
    assert_int_equal(strncmp(rig.up.p, "GET /x?y HTTP/1.1\r\nHost: 8000-box.localhost\r\n", 45), 0);
    rig_send(up, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    assert_int_equal(rig_end(fd), 0);
    assert_string_equal(rig.in.p, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcde");
    hf_close(up);
    hf_close(fd);
}

static void test_routes_per_request(void **state)
{
    int fd = rig_client();
    rig_send(fd, RIG_GET("/1"));
    int a = rig_accept("GET /1 ");
    rig_send(a, OK);
    rig_expect(fd, "\r\n\r\nok");
    hf_buf_clear(&rig.in);
    /* Same connection, other places: our own server, another sandbox, an unknown one, then the first again.
     */
    rig_send(fd, "GET /front HTTP/1.1\r\nHost: localhost\r\n\r\n");
    rig_expect(fd, "front");
    rig_send(fd, "GET /2 HTTP/1.1\r\nHost: 9000-other.localhost\r\n\r\n");
    int b = rig_accept("GET /2 ");
    assert_int_equal(rig.dialed_port, 9000);
    rig_send(b, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother");
    rig_expect(fd, "other");
    rig_send(fd, "GET /3 HTTP/1.1\r\nHost: 8000-nobody.localhost\r\n\r\n");
    rig_expect(fd, "{\"sandboxId\":\"nobody\",\"message\":\"The sandbox was not found\",\"code\":502}");
    rig_send(fd, RIG_GET("/4"));
    rig_up_expect(a, "GET /4 "); /* over the pooled connection */
    rig_send(a, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nagain");
    rig_expect(fd, "again");
    assert_int_equal(rig.dials, 2);
    hf_close(a);
    hf_close(b);
    hf_close(fd);
}

static void test_errors(void **state)
{
    int fd = rig_client();
    rig.dial_error = -ECONNREFUSED;
    rig_send(fd, RIG_GET("/"));
    rig_expect(
        fd,
        "{\"sandboxId\":\"box\",\"message\":\"The sandbox is running but port is not open\",\"port\":8000,"
        "\"code\":502}");
    assert_int_equal(strncmp(rig.in.p, "HTTP/1.1 502 ", 13), 0);
    assert_true(net_has(&rig.in, "Content-Type: application/json; charset=utf-8\r\n"));
    rig.state = HF_ROUTE_TRANSITION;
    rig_send(fd, RIG_GET("/"));
    rig_expect(fd, "\"code\":409}");
    rig.state = HF_ROUTE_NOT_FOUND;
    rig_send(fd, RIG_GET("/"));
    rig_expect(fd, "\"message\":\"The sandbox was not found\",\"code\":502}");
    rig.state = HF_ROUTE_RUNNING;
    rig_send(fd, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nE2b-Sandbox-Id: box\r\n\r\n");
    rig_expect(fd, "{\"code\":400,\"message\":\"missing header E2b-Sandbox-Port\"}");
    rig_send(fd, "POST //%69nit?x HTTP/1.1\r\nHost: 49983-box.localhost\r\nContent-Length: 0\r\n\r\n");
    rig_expect(fd, "{\"message\":\"This endpoint is reserved for the E2B control plane");
    rig_expect(fd, "\"path\":\"//%69nit\",\"code\":404}");
    /* The same path on another port is the application's own. */
    rig.dial_error = 0;
    rig_send(fd, RIG_GET("/init"));
    int up = rig_accept("GET /init ");
    rig_send(up, OK);
    rig_expect(fd, "\r\n\r\nok");
    /* No such envd. */
    rig_send(fd, "GET /health HTTP/1.1\r\nHost: 49983-box.localhost\r\n\r\n");
    rig_expect(fd,
               "\"message\":\"The sandbox is running but port is not open\",\"port\":49983,\"code\":502}");
    hf_close(up);
    hf_close(fd);
}

#define BROWSER \
    "User-Agent: Mozilla/5.0 (X11; Linux)\r\nAccept: text/html,application/xhtml+xml,*/*;q=0.8\r\n"

/* A person sees a page; every program, also one in a browser, gets JSON. */
static void test_error_page(void **state)
{
    static const char *const programs[] = {
        "User-Agent: curl/8\r\nAccept: text/html\r\n", "User-Agent: Mozilla/5.0\r\nAccept: */*\r\n",
        "User-Agent: Mozilla/5.0\r\nAccept: text/html, application/json\r\n",
        BROWSER "Sec-Fetch-Mode: cors\r\n", "User-Agent: Mozilla/5.0\r\n"};
    int fd = rig_client();
    rig.dial_error = -ECONNREFUSED;
    rig_send(fd, "GET / HTTP/1.1\r\n" RIG_HOST BROWSER "Sec-Fetch-Mode: navigate\r\n\r\n");
    rig_expect(fd, "</html>");
    assert_int_equal(strncmp(rig.in.p, "HTTP/1.1 502 ", 13), 0);
    assert_true(net_has(&rig.in, "Content-Type: text/html; charset=utf-8\r\n"));
    assert_true(net_has(&rig.in, "\r\n\r\n<html"));
    assert_true(net_has(&rig.in, "The sandbox is running but port is not open"));
    assert_true(net_has(&rig.in, "<code>box</code>, port 8000"));
    for (size_t i = 0; i < HF_ARRAY_LEN(programs); i++) {
        hf_buf_clear(&rig.in);
        rig_send(fd, "GET / HTTP/1.1\r\n" RIG_HOST);
        rig_send(fd, programs[i]);
        rig_send(fd, "\r\n");
        rig_expect(fd, "\"port\":8000,\"code\":502}");
    }
    hf_close(fd);
}

static void test_envd_socket(void **state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "/tmp/hf-proxy-%d.sock", getpid());
    (void)unlink(a.sun_path);
    int l = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(l, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(l, 8), 0);
    rig.envd_socket = a.sun_path;
    int fd = rig_client();
    for (int i = 0, up = -1; i < 2; i++) {
        rig_send(fd, "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nE2b-Sandbox-Id: box\r\nE2b-Sandbox-Port: "
                     "49983\r\n\r\n");
        if (i == 0)
            up = net_accept(&rig.loop, l);
        rig_up_expect(up, "\r\n\r\n");
        rig_send(up, "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n");
        rig_expect(fd, "HTTP/1.1 204 No Content\r\n\r\n");
        hf_buf_clear(&rig.in);
        if (i == 1)
            hf_close(up);
    }
    assert_int_equal(rig.dials, 0);
    (void)unlink(a.sun_path);
    hf_close(l);
    hf_close(fd);
}

static void test_bodies(void **state)
{
    int fd = rig_client();
    rig_send(fd, "POST /c HTTP/1.1\r\n" RIG_HOST "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n");
    int up = rig_accept("3\r\nabc\r\n");
    assert_true(net_has(&rig.up, "Transfer-Encoding: chunked\r\n"));
    rig_send(fd, "0\r\nT: x\r\n\r\n");
    rig_up_expect(up, "0\r\n\r\n");
    /* Several small chunks come in one write, as one chunk. */
    rig_send(up, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n");
    rig_expect(fd, "\r\n\r\n3\r\nabc\r\n");
    rig_send(up, "1\r\nd\r\n0\r\n\r\n");
    rig_expect(fd, "1\r\nd\r\n0\r\n\r\n");
    hf_buf_clear(&rig.in);
    rig_send(fd, "PUT /l HTTP/1.1\r\n" RIG_HOST "Content-Length: 5\r\n\r\nhe");
    rig_up_expect(up, "\r\n\r\nhe");
    assert_true(net_has(&rig.up, "Content-Length: 5\r\n"));
    rig_send(fd, "llo");
    rig_up_expect(up, "llo");
    rig_send(up, OK);
    rig_expect(fd, "\r\n\r\nok");
    assert_int_equal(rig.dials, 1);
    /* HEAD, 304: a length without a body. */
    hf_buf_clear(&rig.in);
    rig_send(fd, "HEAD /h HTTP/1.1\r\n" RIG_HOST "\r\n");
    rig_up_expect(up, "HEAD /h ");
    rig_send(up, "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n");
    rig_expect(fd, "Content-Length: 999\r\n\r\n");
    rig_send(fd, RIG_GET("/n"));
    rig_up_expect(up, "GET /n ");
    rig_send(up, "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n");
    rig_expect(fd, "Content-Length: 7\r\n\r\n");
    rig_send(fd, RIG_GET("/last"));
    rig_up_expect(up, "GET /last ");
    rig_send(up, OK);
    rig_expect(fd, "\r\n\r\nok");
    hf_close(up);
    hf_close(fd);
}

static void test_response_in_pieces(void **state)
{
    static const char res[] =
        "HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nT: t\r\n\r\n";
    int fd = rig_client();
    rig_send(fd, RIG_GET("/"));
    int up = rig_accept("\r\n\r\n");
    for (size_t i = 0; i < sizeof(res) - 1; i++) {
        net_send_n(&rig.loop, up, res + i, 1);
        net_pump(&rig.loop, 1);
    }
    rig_expect(fd, "\r\n0\r\n\r\n");
    assert_true(net_has(&rig.in, "HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n"));
    hf_close(up);
    hf_close(fd);
}

static void test_until_eof(void **state)
{
    int fd = rig_client();
    rig_send(fd, RIG_GET("/"));
    int up = rig_accept("\r\n\r\n");
    rig_send(up, "HTTP/1.0 200 OK\r\nServer: SimpleHTTP\r\n\r\nabc");
    rig_expect(fd, "\r\n\r\n3\r\nabc\r\n");
    rig_send(up, "de");
    rig_expect(fd, "2\r\nde\r\n");
    hf_close(up);
    rig_expect(fd, "0\r\n\r\n"); /* chunked, so that the client's connection goes on */
    rig_send(fd, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    rig_expect(fd, "front");
    hf_close(fd);
}

static void test_continue(void **state)
{
    int fd = rig_client();
    rig_send(fd, "POST / HTTP/1.1\r\n" RIG_HOST "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    int up = rig_accept("Expect: 100-continue\r\n");
    net_pump(&rig.loop, 20);
    assert_int_equal(net_recv(fd, &rig.in), -EAGAIN); /* not the proxy's to say */
    rig_send(up, "HTTP/1.1 100 Continue\r\n\r\n");
    rig_expect(fd, "HTTP/1.1 100 Continue\r\n\r\n");
    rig_send(fd, "hi");
    rig_up_expect(up, "hi");
    rig_send(up, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" OK);
    rig_expect(fd, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n");
    rig_expect(fd, "\r\n\r\nok");
    hf_close(fd);
    hf_close(up);
    /* A final answer instead: nobody can say whether the body will come, so the connection ends. */
    fd = rig_client();
    rig_send(fd, "POST / HTTP/1.1\r\n" RIG_HOST "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    up = rig_accept("Expect: 100-continue\r\n");
    rig_send(up, "HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n");
    assert_int_equal(rig_end(fd), 0);
    assert_string_equal(rig.in.p, "HTTP/1.1 401 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    hf_close(fd);
    hf_close(up);
}

static void test_retry(void **state)
{
    int fd = rig_client();
    rig_send(fd, RIG_GET("/1"));
    int up = rig_accept("GET /1 ");
    rig_send(up, OK);
    rig_expect(fd, "\r\n\r\nok");
    hf_buf_clear(&rig.in);
    /* The pooled connection takes the request and dies: a GET is sent again, once. */
    rig_send(fd, RIG_GET("/2"));
    rig_up_expect(up, "GET /2 ");
    hf_close(up);
    up = rig_accept("GET /2 ");
    rig_send(up, OK);
    rig_expect(fd, "\r\n\r\nok");
    hf_buf_clear(&rig.in);
    rig_send(fd, RIG_GET("/3"));
    rig_up_expect(up, "GET /3 ");
    hf_close(up);
    up = rig_accept("GET /3 ");
    hf_close(up);
    rig_expect(
        fd,
        "\"message\":\"The sandbox closed the connection without an answer\",\"port\":8000,\"code\":502}");
    /* A POST is not: it may have been done. */
    hf_buf_clear(&rig.in);
    rig_send(fd, RIG_GET("/4"));
    up = rig_accept("GET /4 ");
    rig_send(up, OK);
    rig_expect(fd, "\r\n\r\nok");
    rig_send(fd, "POST /5 HTTP/1.1\r\n" RIG_HOST "Content-Length: 2\r\n\r\nhi");
    rig_up_expect(up, "hi");
    hf_close(up);
    rig_expect(fd, "\"code\":502}");
    assert_true(rig_no_connection());
    hf_close(fd);
}

/* Closed while idle: noticed, and a POST gets a fresh connection. */
static void test_dead_in_pool(void **state)
{
    int fd = rig_client();
    rig_send(fd, RIG_GET("/1"));
    int up = rig_accept("GET /1 ");
    rig_send(up, OK);
    rig_expect(fd, "\r\n\r\nok");
    hf_close(up);
    rig_send(fd, "POST /2 HTTP/1.1\r\n" RIG_HOST "Content-Length: 2\r\n\r\nhi");
    up = rig_accept("hi");
    rig_send(up, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfresh");
    rig_expect(fd, "fresh");
    /* One that speaks unasked is not used either. */
    rig_send(up, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad");
    net_pump(&rig.loop, 10);
    rig_send(fd, RIG_GET("/3"));
    int up2 = rig_accept("GET /3 ");
    rig_send(up2, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood");
    rig_expect(fd, "good");
    assert_false(net_has(&rig.in, "bad"));
    hf_close(up);
    hf_close(up2);
    hf_close(fd);
}

static void test_extra_bytes_do_not_leak(void **state)
{
    int fd = rig_client();
    rig_send(fd, RIG_GET("/1"));
    int up = rig_accept("GET /1 ");
    rig_send(up, OK "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison");
    rig_expect(fd, "\r\n\r\nok");
    rig_send(fd, RIG_GET("/2"));
    int up2 = rig_accept("GET /2 "); /* the first one is not used again */
    rig_send(up2, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nclean");
    rig_expect(fd, "clean");
    assert_false(net_has(&rig.in, "poison"));
    hf_close(up);
    hf_close(up2);
    hf_close(fd);
}

static void test_upstream_dies(void **state)
{
    static const char *const begun[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(begun); i++) {
        int fd = rig_client();
        rig_send(fd, RIG_GET("/"));
        int up = rig_accept("\r\n\r\n");
        rig_send(up, begun[i]);
        if (i < 2)
            rig_expect(fd, "abc");
        hf_close(up);
        /* Cut, never a clean end. */
        assert_int_equal(rig_end(fd), -ECONNRESET);
        hf_close(fd);
    }
    /* Before any byte of the head, and with half a head. */
    for (int i = 0; i < 2; i++) {
        int fd = rig_client();
        rig_send(fd, RIG_GET("/"));
        int up = rig_accept("\r\n\r\n");
        if (i)
            rig_send(up, "HTTP/1.1 200 OK\r\nX:");
        hf_close(up);
        rig_expect(fd, "without an answer");
        hf_close(fd);
    }
}

static void test_bad_responses(void **state)
{
    static const char *const bad[] = {
        "hello\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        "HTTP/1.1 999999 OK\r\n\r\n",
    };
    int fd = rig_client();
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        hf_buf_clear(&rig.in);
        rig_send(fd, RIG_GET("/"));
        int up = rig_accept("\r\n\r\n");
        rig_send(up, bad[i]);
        rig_expect(fd, "\"code\":502}");
        hf_close(up);
    }
    hf_buf_clear(&rig.in);
    rig_send(fd, RIG_GET("/"));
    int up = rig_accept("\r\n\r\n");
    rig_send(up, "HTTP/1.1 200 OK\r\nX: ");
    for (int i = 0; i < 5000; i++)
        rig_send(up, "xxxxxxxxxxxxxxxx");
    rig_expect(fd, "\"code\":502}");
    hf_close(up);
    hf_close(fd);
}

/* The application must see that its client has left, at once. */
static void test_client_leaves(void **state)
{
    int fd = rig_client();
    rig_send(fd, RIG_GET("/wait"));
    int up = rig_accept("GET /wait ");
    hf_close(fd);
    hf_buf_clear(&rig.up);
    (void)net_read_end(&rig.loop, up, &rig.up);
    hf_close(up);
    fd = rig_client();
    rig_send(fd, RIG_GET("/stream"));
    up = rig_accept("GET /stream ");
    rig_send(up, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
    rig_expect(fd, "1\r\na\r\n");
    hf_close(fd);
    (void)net_read_end(&rig.loop, up, &rig.up);
    hf_close(up);
    /* While still connecting: the late socket is closed. */
    rig.dial_later = true;
    fd = rig_client();
    rig_send(fd, RIG_GET("/late"));
    NET_WAIT(&rig.loop, rig.dial_cb);
    hf_close(fd);
    struct hf_proxy_stats st;
    NET_WAIT(&rig.loop, (hf_proxy_stats(rig.proxy, &st), st.active == 0));
    rig_dial_now();
    up = net_accept(&rig.loop, rig.app);
    (void)net_read_end(&rig.loop, up, &rig.up);
    hf_close(up);
}

static void test_drop(void **state)
{
    int busy = rig_client(), idle_up, waiting, connecting, other;
    rig_send(busy, RIG_GET("/1"));
    idle_up = rig_accept("GET /1 ");
    rig_send(idle_up, OK);
    rig_expect(busy, "\r\n\r\nok");
    waiting = rig_client();
    rig_send(waiting, RIG_GET("/2"));
    rig_up_expect(idle_up, "GET /2 ");
    rig_send(busy, RIG_GET("/3"));
    int up = rig_accept("GET /3 ");
    rig_send(up, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart");
    rig_expect(busy, "part");
    other = rig_client();
    rig_send(other, "GET /o HTTP/1.1\r\nHost: 1-other.localhost\r\n\r\n");
    int other_up = rig_accept("GET /o ");
    rig.dial_later = true;
    connecting = rig_client();
    rig_send(connecting, RIG_GET("/4"));
    NET_WAIT(&rig.loop, rig.dial_cb);
    hf_proxy_drop(rig.proxy, "box");
    hf_proxy_drop(rig.proxy, "box");
    hf_proxy_drop(rig.proxy, "unknown");
    assert_int_equal(rig_end(busy), -ECONNRESET);
    rig_expect(waiting, "The sandbox was not found");
    rig_expect(connecting, "The sandbox was not found");
    (void)net_read_end(&rig.loop, up, &rig.up);
    (void)net_read_end(&rig.loop, idle_up, &rig.up);
    rig_dial_now();
    /* The others go on; the same id works again. */
    rig_send(other_up, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother");
    rig_expect(other, "other");
    struct hf_proxy_stats st;
    hf_proxy_stats(rig.proxy, &st);
    assert_int_equal(st.active, 0);
    rig.dial_later = false;
    hf_close(net_accept(&rig.loop, rig.app)); /* of the late dial */
    int fd = rig_client();
    rig_send(fd, RIG_GET("/5"));
    int again = rig_accept("GET /5 ");
    rig_send(again, OK);
    rig_expect(fd, "\r\n\r\nok");
    int all[] = {busy, waiting, connecting, other, up, idle_up, other_up, fd, again};
    for (size_t i = 0; i < HF_ARRAY_LEN(all); i++)
        hf_close(all[i]);
}

static void test_timeouts(void **state)
{
    hf_proxy_set_timeouts(rig.proxy, 80, 150, 100);
    int fd = rig_client();
    rig.dial_later = true;
    rig_send(fd, RIG_GET("/"));
    rig_expect(fd, "The sandbox is running but port is not open");
    rig_dial_now();
    hf_close(net_accept(&rig.loop, rig.app));
    rig.dial_later = false;
    rig_send(fd, RIG_GET("/slow"));
    int up = rig_accept("GET /slow ");
    rig_expect(fd, "HTTP/1.1 504 ");
    rig_expect(fd, "did not answer in time\",\"port\":8000,\"code\":504}");
    hf_close(up);
    /* Bytes keep an exchange alive; silence in the middle cuts it. */
    rig_send(fd, RIG_GET("/drip"));
    up = rig_accept("GET /drip ");
    rig_send(up, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n");
    for (int i = 0; i < 6; i++) {
        net_pump(&rig.loop, 60);
        rig_send(up, "x");
    }
    rig_expect(fd, "xxxxxx");
    assert_int_equal(rig_end(fd), -ECONNRESET);
    hf_close(up);
    hf_close(fd);
    /* An idle upstream is closed after its time. */
    fd = rig_client();
    rig_send(fd, RIG_GET("/"));
    up = rig_accept("GET / ");
    rig_send(up, OK);
    rig_expect(fd, "\r\n\r\nok");
    assert_int_equal(net_read_end(&rig.loop, up, &rig.up), 0);
    NET_WAIT(&rig.loop, rig.proxy->boxes.len == 0); /* and the box is forgotten */
    hf_close(up);
    hf_close(fd);
}

static void test_pool_limit(void **state)
{
    enum { N = HF_PROXY_IDLE_UPSTREAMS_PER_PORT + 4 };
    int fd[N], up[N];
    for (int i = 0; i < N; i++) {
        fd[i] = rig_client();
        rig_send(fd[i], RIG_GET("/"));
        up[i] = rig_accept("\r\n\r\n");
    }
    for (int i = 0; i < N; i++) {
        hf_buf_clear(&rig.in);
        rig_send(up[i], OK);
        rig_expect(fd[i], "\r\n\r\nok");
    }
    int closed = 0;
    net_pump(&rig.loop, 10);
    for (int i = 0; i < N; i++) {
        char c;
        closed += recv(up[i], &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
        hf_close(up[i]);
        hf_close(fd[i]);
    }
    assert_int_equal(closed, 4);
}

static void test_early_response(void **state)
{
    int fd = rig_client();
    rig_send(fd, "POST / HTTP/1.1\r\n" RIG_HOST "Content-Length: 10\r\n\r\nabc");
    int up = rig_accept("abc");
    rig_send(up, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig");
    hf_close(up);
    rig_expect(fd, "\r\n\r\nbig");
    rig_send(fd, "defghij" RIG_GET("/next"));
    up = rig_accept("GET /next ");
    rig_send(up, OK);
    rig_expect(fd, "\r\n\r\nok");
    hf_close(up);
    hf_close(fd);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_heads),
        RIG_TEST(test_absolute_form_and_http10),
        RIG_TEST(test_routes_per_request),
        RIG_TEST(test_errors),
        RIG_TEST(test_error_page),
        RIG_TEST(test_envd_socket),
        RIG_TEST(test_bodies),
        RIG_TEST(test_response_in_pieces),
        RIG_TEST(test_until_eof),
        RIG_TEST(test_continue),
        RIG_TEST(test_retry),
        RIG_TEST(test_dead_in_pool),
        RIG_TEST(test_extra_bytes_do_not_leak),
        RIG_TEST(test_upstream_dies),
        RIG_TEST(test_bad_responses),
        RIG_TEST(test_client_leaves),
        RIG_TEST(test_drop),
        RIG_TEST(test_timeouts),
        RIG_TEST(test_pool_limit),
        RIG_TEST(test_early_response),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
