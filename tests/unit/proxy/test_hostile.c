/* Applications and clients that mean harm: the proxy's memory stays bounded and nobody else notices. */
#include "rig.h"

#define KIB 1024u

/* The only client connection of the test. */
static struct hf_conn *the_conn(void)
{
    assert_int_equal(rig.server->conn_n, 1);
    return hf_list_entry(rig.server->conns.next, struct hf_conn, node);
}

/* An endless stream of the same bytes. */
struct source {
    const char *p;
    size_t n, off;
};

static bool pour(int up, struct source *s)
{
    ssize_t k = send(up, s->p + s->off, s->n - s->off, MSG_NOSIGNAL);
    s->off = k > 0 ? (s->off + (size_t)k) % s->n : s->off;
    return k > 0;
}

/* Pours until the proxy takes no more. Returns the most that waited for the client. */
static size_t flood(int up, struct source *s)
{
    size_t most = 0;
    for (uint64_t last = hf_mono_ms(); hf_mono_ms() - last < 200 && most < 8192 * KIB;) {
        if (pour(up, s))
            last = hf_mono_ms();
        (void)uv_run(&rig.loop, UV_RUN_NOWAIT);
        most = HF_MAX(most, hf_conn_queued(the_conn()));
    }
    return most;
}

/* Interim responses without end to a client that does not read; when it reads again, all goes on. */
static void test_interim_flood(void **state)
{
    static char piece[8 * KIB + 64];
    int n = snprintf(piece, sizeof(piece), "HTTP/1.1 103 Early Hints\r\nLink: %08191d\r\n\r\n", 1);
    struct source hints = {piece, (size_t)n, 0};
    const char *answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlast";
    struct source last = {answer, strlen(answer), 0};
    hf_buf_clear(&rig.in);
    int fd = net_connect_rcvbuf(hf_http_server_port(rig.server), 4096);
    rig_send(fd, RIG_GET("/"));
    int up = rig_accept("\r\n\r\n");
    size_t most = flood(up, &hints);
    assert_in_range(most, 1, HF_PROXY_QUEUE_HIGH + 2 * HF_PROXY_READ_SIZE);
    bool done = false;
    for (uint64_t end = hf_mono_ms() + NET_TIMEOUT_MS; !net_has(&rig.in, "\r\n\r\nlast");) {
        if (hints.off)
            (void)pour(up, &hints);
        else if (!done)
            done = pour(up, &last) && last.off == 0;
        hf_buf_consume(&rig.in, rig.in.n > 8 ? rig.in.n - 8 : 0);
        assert_true(net_recv(fd, &rig.in) != 0);
        (void)uv_run(&rig.loop, UV_RUN_NOWAIT);
        assert_true(hf_mono_ms() < end);
    }
    hf_close(up);
    hf_close(fd);
}

/* Where thousands of clients do not read, each gets a small share of the memory. */
static void test_queues_shrink_when_many(void **state)
{
    static char piece[256 * KIB];
    struct source body = {piece, sizeof(piece), 0};
    hf_buf_clear(&rig.in);
    int fd = net_connect_rcvbuf(hf_http_server_port(rig.server), 4096);
    rig_send(fd, RIG_GET("/"));
    int up = rig_accept("\r\n\r\n");
    rig_send(up, "HTTP/1.1 200 OK\r\n\r\n");
    rig.proxy->stats.active += 10000;
    size_t most = flood(up, &body);
    rig.proxy->stats.active -= 10000;
    assert_in_range(most, 1, 4 * HF_PROXY_QUEUE_MIN);
    hf_close(up);
    hf_close(fd);
}

static int visit(int fd, int port)
{
    char request[128];
    (void)snprintf(request, sizeof(request), "GET / HTTP/1.1\r\nHost: %d-box.localhost\r\n\r\n", port);
    rig_send(fd, request);
    int up = rig_accept("\r\n\r\n");
    hf_buf_clear(&rig.in);
    rig_send(up, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    rig_expect(fd, "\r\n\r\nok");
    return up;
}

/* One client, one request a port: no collection of idle connections. */
static void test_port_walk(void **state)
{
    enum { EXTRA = 4, N = HF_PROXY_IDLE_UPSTREAMS_PER_BOX + EXTRA };
    int up[N], fd = rig_client();
    for (int i = 0; i < N; i++)
        up[i] = visit(fd, 1000 + i);
    assert_int_equal(rig.proxy->idle_n, HF_PROXY_IDLE_UPSTREAMS_PER_BOX);
    for (int i = 0; i < N; i++)
        hf_close(up[i]);
    NET_WAIT(&rig.loop, rig.proxy->idle_n == 0);
    rig.proxy->idle_n += HF_PROXY_IDLE_UPSTREAMS_MAX; /* other sandboxes' */
    int last = visit(fd, 999);
    assert_int_equal(net_read_end(&rig.loop, last, &rig.up), 0);
    rig.proxy->idle_n -= HF_PROXY_IDLE_UPSTREAMS_MAX;
    hf_close(last);
    hf_close(fd);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_interim_flood),
        RIG_TEST(test_queues_shrink_when_many),
        RIG_TEST(test_port_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
