/* Streams through the proxy: big bodies with backpressure both ways, and raw tunnels. */
#include "rig.h"

#define BIG (32u << 20) /* more than the kernel buffers on the way */
#define UPGRADE                     \
    "GET /ws HTTP/1.1\r\n" RIG_HOST \
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"
#define SWITCH                                                             \
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " \
    "websocket\r\nSec-WebSocket-Accept: a\r\n\r\n"

static char piece[65536];

static void fill(uint64_t from)
{
    for (size_t i = 0; i < sizeof(piece); i++)
        piece[i] = (char)((from + i) * 31 + ((from + i) >> 12));
}

/* Sends as much as fits until it is blocked for a while or n is reached. */
static uint64_t push(int fd, uint64_t from, uint64_t n)
{
    for (int idle = 0; idle < 30 && from < n;) {
        fill(from);
        ssize_t k = send(fd, piece, (size_t)HF_MIN(sizeof(piece), n - from), MSG_NOSIGNAL);
        from += k > 0 ? (size_t)k : 0;
        idle = k > 0 ? 0 : idle + 1;
        net_turn(&rig.loop);
    }
    return from;
}

static size_t queued(void)
{
    size_t n = 0;
    hf_list_foreach(it, &rig.server->conns)
    {
        struct hf_conn *c = hf_list_entry(it, struct hf_conn, node);
        n += hf_conn_queued(c) + c->in.n;
    }
    return n;
}

/* Moves bytes from src (n of them, being sent) to dst until all have arrived; checks each. */
static void transfer(int src, uint64_t sent, int dst, uint64_t n, struct hf_buf *got, size_t skip)
{
    uint64_t end = hf_mono_ms() + 60000;
    while (got->n < skip + n) {
        if (sent < n) {
            fill(sent);
            ssize_t k = send(src, piece, (size_t)HF_MIN(sizeof(piece), n - sent), MSG_NOSIGNAL);
            sent += k > 0 ? (size_t)k : 0;
        }
        net_turn(&rig.loop);
        int r = net_recv(dst, got);
        if (r == 0 || (r < 0 && r != -EAGAIN))
            fail_msg("stream ended early: %d", r);
        assert_true(hf_mono_ms() < end);
    }
    assert_int_equal(got->n, skip + n);
    for (uint64_t i = 0; i < n; i++)
        if (got->p[skip + i] != (char)(i * 31 + (i >> 12)))
            fail_msg("byte %llu is wrong", (unsigned long long)i);
}

static void test_upload(void **state)
{
    char head[256];
    int fd = rig_client();
    (void)snprintf(head, sizeof(head), "PUT / HTTP/1.1\r\n" RIG_HOST "Content-Length: %u\r\n\r\n", BIG);
    rig_send(fd, head);
    int small = 65536;
    assert_int_equal(setsockopt(rig.app, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    int up = rig_accept("\r\n\r\n");
    /* The application does not read: the sender is stopped and the proxy holds little. */
    uint64_t sent = push(fd, 0, BIG);
    assert_true(sent < BIG);
    struct hf_px *px = hf_req_data(hf_list_entry(rig.server->conns.next, struct hf_conn, node)->req);
    assert_true(px->req->paused);
    assert_true(hf_outq_len(&px->up->out) <= HF_PROXY_QUEUE_HIGH + HF_HTTP_READ_SIZE);
    assert_true(queued() <= 4 * HF_HTTP_READ_SIZE);
    size_t skip = (size_t)(strstr(rig.up.p, "\r\n\r\n") + 4 - rig.up.p);
    transfer(fd, sent, up, BIG, &rig.up, skip);
    rig_send(up, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    rig_expect(fd, "\r\n\r\nok");
    hf_close(up);
    hf_close(fd);
}

static void test_download(void **state)
{
    char head[256];
    hf_buf_clear(&rig.in);
    int fd = net_connect_rcvbuf(hf_http_server_port(rig.server), 65536);
    rig_send(fd, RIG_GET("/"));
    int up = rig_accept("\r\n\r\n");
    (void)snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %u\r\n\r\n", BIG);
    rig_send(up, head);
    uint64_t sent = push(up, 0, BIG);
    assert_true(sent < BIG);
    assert_true(queued() <= HF_PROXY_QUEUE_HIGH + 2 * HF_PROXY_READ_SIZE);
    net_expect(&rig.loop, fd, &rig.in, "\r\n\r\n");
    size_t skip = (size_t)(strstr(rig.in.p, "\r\n\r\n") + 4 - rig.in.p);
    transfer(up, sent, fd, BIG, &rig.in, skip);
    hf_buf_clear(&rig.in);
    rig_send(fd, RIG_GET("/again")); /* the upstream is reused after all that */
    rig_up_expect(up, "GET /again ");
    rig_send(up, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    rig_expect(fd, "\r\n\r\nok");
    hf_close(up);
    hf_close(fd);
}

/* The client leaves while its download is held back. */
static void test_download_abandoned(void **state)
{
    hf_buf_clear(&rig.in);
    int fd = net_connect_rcvbuf(hf_http_server_port(rig.server), 65536);
    rig_send(fd, RIG_GET("/"));
    int up = rig_accept("\r\n\r\n");
    rig_send(up, "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
    (void)push(up, 0, BIG);
    hf_close(fd);
    hf_buf_clear(&rig.up);
    (void)net_read_end(&rig.loop, up, &rig.up);
    hf_close(up);
}

static int open_tunnel(int *ret_up)
{
    int fd = rig_client();
    rig_send(fd, UPGRADE);
    int up = rig_accept("\r\n\r\n");
    assert_true(net_has(&rig.up, "Connection: Upgrade\r\nUpgrade: websocket\r\n"));
    assert_true(net_has(&rig.up, "Sec-WebSocket-Key: k\r\n"));
    rig_send(up, SWITCH "hello");
    rig_expect(fd, "\r\n\r\nhello");
    assert_true(net_has(&rig.in, "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: a\r\nConnection: "
                                 "Upgrade\r\nUpgrade: websocket\r\n\r\nhello"));
    *ret_up = up;
    return fd;
}

static uint64_t tunnels(void)
{
    struct hf_proxy_stats st;
    hf_proxy_stats(rig.proxy, &st);
    return st.tunnels;
}

static void test_tunnel(void **state)
{
    int up, fd = open_tunnel(&up);
    assert_int_equal(tunnels(), 1);
    rig_send(fd, "from client");
    rig_up_expect(up, "from client");
    rig_send(up, "from app");
    rig_expect(fd, "from app");
    /* Half-close: one direction ends, the other goes on. */
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    hf_buf_clear(&rig.up);
    assert_int_equal(net_read_end(&rig.loop, up, &rig.up), 0);
    rig_send(up, "last words");
    rig_expect(fd, "last words");
    hf_close(up);
    assert_int_equal(rig_end(fd), 0);
    hf_close(fd);
    NET_WAIT(&rig.loop, tunnels() == 0);
}

static void test_tunnel_early_bytes(void **state)
{
    int fd = rig_client();
    rig_send(fd, UPGRADE "early");
    int up = rig_accept("\r\n\r\n");
    rig_send(up, SWITCH);
    rig_up_expect(up, "early");
    hf_close(up);
    assert_int_equal(rig_end(fd), 0);
    hf_close(fd);
}

static void test_tunnel_bulk(void **state)
{
    int up, fd = open_tunnel(&up);
    uint64_t sent = push(fd, 0, BIG);
    assert_true(sent < BIG); /* held back */
    hf_buf_clear(&rig.up);
    transfer(fd, sent, up, BIG, &rig.up, 0);
    hf_buf_clear(&rig.in);
    transfer(up, push(up, 0, BIG), fd, BIG, &rig.in, 0);
    hf_close(fd);
    hf_close(up);
    NET_WAIT(&rig.loop, tunnels() == 0);
}

static void test_tunnel_reset(void **state)
{
    struct linger l = {1, 0};
    int up, fd = open_tunnel(&up);
    assert_int_equal(setsockopt(up, SOL_SOCKET, SO_LINGER, &l, sizeof(l)), 0);
    hf_close(up);
    assert_int_equal(rig_end(fd), -ECONNRESET);
    hf_close(fd);
    fd = open_tunnel(&up);
    hf_proxy_drop(rig.proxy, "box");
    assert_int_equal(rig_end(fd), -ECONNRESET);
    hf_buf_clear(&rig.up);
    assert_int_equal(net_read_end(&rig.loop, up, &rig.up), -ECONNRESET);
    hf_close(up);
    hf_close(fd);
}

static void test_tunnel_idle(void **state)
{
    hf_proxy_set_timeouts(rig.proxy, 0, 150, 0);
    int up, fd = open_tunnel(&up);
    for (int i = 0; i < 5; i++) { /* bytes in either direction keep it */
        net_pump(&rig.loop, 80);
        rig_send(i % 2 ? fd : up, "x");
    }
    assert_int_equal(tunnels(), 1);
    NET_WAIT(&rig.loop, tunnels() == 0);
    hf_close(fd);
    hf_close(up);
}

/* Refused upgrades are ordinary responses and the connection goes on. */
static void test_upgrade_refused(void **state)
{
    int fd = rig_client();
    rig_send(fd, UPGRADE);
    int up = rig_accept("\r\n\r\n");
    rig_send(up, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
    rig_expect(fd, "\r\n\r\nno");
    rig_send(fd, RIG_GET("/next"));
    rig_up_expect(up, "GET /next ");
    rig_send(up, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    rig_expect(fd, "\r\n\r\nok");
    hf_close(up);
    hf_close(fd);
}

/* The proxy goes while everything is in use; its users are cut and nothing leaks (ASan, uv_loop_close). */
static void test_free_in_use(void **state)
{
    int up, fd = open_tunnel(&up), up2, fd2;
    fd2 = rig_client();
    rig_send(fd2, RIG_GET("/"));
    up2 = rig_accept("\r\n\r\n");
    rig.dial_later = true;
    int fd3 = rig_client();
    rig_send(fd3, RIG_GET("/"));
    NET_WAIT(&rig.loop, rig.dial_cb);
    hf_proxy_free(rig.proxy);
    assert_int_equal(rig_end(fd), -ECONNRESET);
    assert_int_equal(rig_end(fd2), -ECONNRESET);
    assert_int_equal(rig_end(fd3), -ECONNRESET);
    rig.dial_error = -ECONNREFUSED;
    rig_dial_now();
    rig.proxy = NULL;
    int all[] = {up, fd, up2, fd2, fd3};
    for (size_t i = 0; i < HF_ARRAY_LEN(all); i++)
        hf_close(all[i]);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_upload),       RIG_TEST(test_download),           RIG_TEST(test_download_abandoned),
        RIG_TEST(test_tunnel),       RIG_TEST(test_tunnel_early_bytes), RIG_TEST(test_tunnel_bulk),
        RIG_TEST(test_tunnel_reset), RIG_TEST(test_tunnel_idle),        RIG_TEST(test_upgrade_refused),
        RIG_TEST(test_free_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
