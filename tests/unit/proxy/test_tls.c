/* TLS on either side of the proxy: clients that come by https, and ports that speak it inside the sandbox. */
#include "rig.h"

#include "../wire/tlsnet.h"

#define WS "Connection: Upgrade\r\nUpgrade: websocket\r\n"
#define SWITCH "HTTP/1.1 101 Switching Protocols\r\n" WS "\r\n"
#define OK "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

static struct tls_world world;
static const uint16_t https_ports[] = {8000};
static uint16_t tls_port;

static int setup(void **state)
{
    struct hf_err err;
    (void)rig_setup(state);
    tls_world_init(&world, HF_ALPN_HTTP1);
    assert_int_equal(hf_http_server_listen_tls(rig.server, "127.0.0.1", 0, world.server, &err), 0);
    tls_port = hf_http_server_tls_port(rig.server);
    assert_true(tls_port && tls_port != hf_http_server_port(rig.server));
    rig.policy.https_ports = https_ports;
    rig.policy.n_https_ports = 1;
    return 0;
}

static int teardown(void **state)
{
    (void)rig_teardown(state);
    tls_world_done(&world);
    return 0;
}

#define TLS_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

static struct tls_fd app_accept(void)
{
    struct tls_fd x = {net_accept(&rig.loop, rig.app), hf_tls_accept(world.server), HF_BUF_INIT(NET_BUF_MAX),
                       HF_BUF_INIT(NET_BUF_MAX),       HF_BUF_INIT(NET_BUF_MAX),    0};
    tls_shake(&rig.loop, &x);
    return x;
}

static struct tls_fd client(void)
{
    struct tls_fd x = tls_dial_fd(net_connect(tls_port), world.client, "a.test", HF_ALPN_HTTP1);
    tls_shake(&rig.loop, &x);
    return x;
}

static void test_https_port(void **state)
{
    int fd = rig_client();
    rig_send(fd, RIG_GET("/1"));
    struct tls_fd up = app_accept();
    tls_expect(&rig.loop, &up, "GET /1 HTTP/1.1\r\n" RIG_HOST);
    tls_send(&rig.loop, &up, OK);
    rig_expect(fd, "\r\n\r\nok");
    hf_buf_clear(&rig.in);
    rig_send(fd, RIG_GET("/2")); /* over the same session */
    tls_expect(&rig.loop, &up, "GET /2 ");
    tls_send(&rig.loop, &up, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    rig_expect(fd, "3\r\nabc\r\n0\r\n\r\n");
    assert_int_equal(rig.dials, 1);
    /* Another port of the same sandbox is plain. */
    rig_send(fd, "GET /3 HTTP/1.1\r\nHost: 8001-box.localhost\r\n\r\n");
    hf_close(rig_accept("GET /3 "));
    tls_fd_done(&up);
    hf_close(fd);
}

static void test_https_port_ends(void **state)
{
    /* An answer that lasts until the end is complete after close_notify … */
    struct hf_buf *out;
    int fd = rig_client();
    rig_send(fd, RIG_GET("/1"));
    struct tls_fd up = app_accept();
    out = &up.out;
    tls_expect(&rig.loop, &up, "GET /1 ");
    tls_send(&rig.loop, &up, "HTTP/1.1 200 OK\r\n\r\nall");
    (void)hf_tls_close(up.t, out);
    tls_flush(&rig.loop, &up);
    rig_expect(fd, "3\r\nall\r\n");
    rig_expect(fd, "0\r\n\r\n");
    tls_fd_done(&up);
    /* … and cut without. */
    hf_buf_clear(&rig.in);
    rig_send(fd, RIG_GET("/2"));
    up = app_accept();
    tls_expect(&rig.loop, &up, "GET /2 ");
    tls_send(&rig.loop, &up, "HTTP/1.1 200 OK\r\n\r\npart");
    rig_expect(fd, "part");
    tls_fd_done(&up);
    assert_int_equal(rig_end(fd), -ECONNRESET);
    hf_close(fd);
}

static void test_https_port_is_plain(void **state)
{
    int fd = rig_client();
    rig_send(fd, RIG_GET("/"));
    int up = net_accept(&rig.loop, rig.app);
    rig_send(up, "HTTP/1.1 400 Bad Request\r\n\r\n");
    rig_expect(
        fd, "\"message\":\"The sandbox is running but port does not speak TLS\",\"port\":8000,\"code\":502}");
    hf_close(up);
    hf_buf_clear(&rig.in);
    rig_send(fd, RIG_GET("/"));
    hf_close(net_accept(&rig.loop, rig.app));
    rig_expect(fd, "does not speak TLS");
    hf_proxy_set_timeouts(rig.proxy, 80, 0, 0);
    hf_buf_clear(&rig.in);
    rig_send(fd, RIG_GET("/")); /* a handshake that never ends */
    up = net_accept(&rig.loop, rig.app);
    rig_expect(fd, "\"code\":502}");
    hf_close(up);
    hf_close(fd);
}

static void test_https_client(void **state)
{
    rig.policy.n_https_ports = 0;
    struct tls_fd c = client();
    tls_send(&rig.loop, &c, "GET / HTTP/1.1\r\n" RIG_HOST "X-Forwarded-Proto: http\r\n\r\n");
    int up = rig_accept("\r\n\r\n");
    assert_true(net_has(&rig.up, "X-Forwarded-Proto: https\r\n"));
    assert_int_equal(net_count(&rig.up, "X-Forwarded-Proto"), 1);
    rig_send(up, OK);
    tls_expect(&rig.loop, &c, "\r\n\r\nok");
    hf_close(up);
    tls_fd_done(&c);
}

static void test_cookie_is_secure(void **state)
{
    char value[72], req[256];
    rig.policy.private_traffic = true;
    hf_preview_sign(rig.policy.preview_key, "box", 8000, hf_real_ms() / 1000 + 60, value);
    (void)snprintf(req, sizeof(req), "GET /?hf_preview=%s HTTP/1.1\r\n" RIG_HOST "\r\n", value);
    struct tls_fd c = client();
    tls_send(&rig.loop, &c, req);
    tls_expect(&rig.loop, &c, "; HttpOnly; SameSite=Lax; Secure\r\n");
    tls_fd_done(&c);
}

/* A WebSocket through two sessions, with both halves of the end. */
static void test_tunnel_both_sides(void **state)
{
    struct hf_proxy_stats st;
    struct tls_fd c = client();
    tls_send(&rig.loop, &c, "GET /ws HTTP/1.1\r\n" RIG_HOST WS "\r\nearly");
    struct tls_fd up = app_accept();
    tls_expect(&rig.loop, &up, "GET /ws ");
    tls_send(&rig.loop, &up, SWITCH "hello");
    tls_expect(&rig.loop, &c, "\r\n\r\nhello");
    tls_expect(&rig.loop, &up, "early");
    for (int i = 0; i < 3; i++) {
        char text[32];
        (void)snprintf(text, sizeof(text), "round %d.", i);
        tls_send(&rig.loop, &c, text);
        tls_expect(&rig.loop, &up, text);
        tls_send(&rig.loop, &up, text);
        tls_expect(&rig.loop, &c, text);
    }
    (void)hf_tls_close(up.t, &up.out);
    tls_flush(&rig.loop, &up);
    tls_read_end(&rig.loop, &c);
    assert_int_equal(c.end, 1);
    tls_fd_done(&c);
    tls_read_end(&rig.loop, &up);
    tls_fd_done(&up);
    for (uint64_t end = hf_mono_ms() + NET_TIMEOUT_MS; hf_mono_ms() < end;) {
        hf_proxy_stats(rig.proxy, &st);
        if (!st.tunnels)
            break;
        net_turn(&rig.loop);
    }
    assert_int_equal(st.tunnels, 0);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {TLS_TEST(test_https_port),          TLS_TEST(test_https_port_ends),
                                       TLS_TEST(test_https_port_is_plain), TLS_TEST(test_https_client),
                                       TLS_TEST(test_cookie_is_secure),    TLS_TEST(test_tunnel_both_sides)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
