/* How many exchanges and tunnels a sandbox and a tenant may have, and which idle streams live. */
#include "rig.h"

#include <sys/resource.h>

#define OK "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
#define GET(host, more) "GET / HTTP/1.1\r\nHost: " host ".localhost\r\n" more "\r\n"
#define WS "Connection: Upgrade\r\nUpgrade: websocket\r\n"

static void too_many(const char *request, const char *what)
{
    int fd = rig_client();
    rig_send(fd, request);
    rig_expect(fd, "\"code\":429}");
    assert_int_equal(strncmp(rig.in.p, "HTTP/1.1 429 ", 13), 0);
    assert_true(net_has(&rig.in, "Retry-After: 1\r\n"));
    assert_true(net_has(&rig.in, what));
    hf_close(fd);
}

static int begin(const char *request, int *ret_up)
{
    int fd = rig_client();
    rig_send(fd, request);
    *ret_up = rig_accept("\r\n\r\n");
    return fd;
}

static uint64_t open_n(void)
{
    struct hf_proxy_stats st;
    hf_proxy_stats(rig.proxy, &st);
    return st.active + st.tunnels;
}

static void test_per_sandbox(void **state)
{
    hf_proxy_set_limits(rig.proxy, 2, 100);
    int up[3], fd[3];
    fd[0] = begin(GET("1-box", ""), &up[0]);
    fd[1] = begin(GET("2-box", WS), &up[1]);
    rig_send(up[1], "HTTP/1.1 101 Switching Protocols\r\n" WS "\r\n");
    rig_expect(fd[1], "\r\n\r\n"); /* a tunnel counts as long as it is open */
    too_many(GET("3-box", ""), "to this sandbox (the limit is 2)");
    fd[2] = begin(GET("1-other", ""), &up[2]); /* another sandbox is not concerned … */
    hf_buf_clear(&rig.in);
    int envd = rig_client(); /* … nor is envd */
    rig_send(envd, GET("49983-box", ""));
    rig_expect(envd, "\"port\":49983,\"code\":502}");
    rig_send(up[0], OK);
    rig_expect(fd[0], "\r\n\r\nok"); /* an end makes room … */
    hf_buf_clear(&rig.in);
    rig_send(fd[0], GET("1-box", ""));
    rig_up_expect(up[0], "\r\n\r\n");
    too_many(GET("3-box", ""), "to this sandbox");
    hf_close(fd[1]); /* … that of a tunnel as well */
    hf_close(up[1]);
    NET_WAIT(&rig.loop, open_n() == 2);
    fd[1] = begin(GET("3-box", ""), &up[1]);
    hf_proxy_drop(rig.proxy, "box"); /* nothing stays counted */
    hf_close(fd[0]);
    hf_close(fd[1]);
    fd[0] = begin(GET("1-box", ""), &up[0]);
    fd[1] = begin(GET("1-box", ""), &up[1]);
    too_many(GET("3-box", ""), "to this sandbox");
    for (int i = 0; i < 3; i++) {
        hf_close(fd[i]);
        hf_close(up[i]);
    }
    hf_close(envd);
}

static void test_per_tenant(void **state)
{
    hf_proxy_set_limits(rig.proxy, 100, 2);
    int up[3], fd[3];
    rig.policy.tenant = "a";
    fd[0] = begin(GET("1-box", ""), &up[0]);
    fd[1] = begin(GET("1-other", ""), &up[1]);
    too_many(GET("2-box", ""), "to the sandboxes of this tenant (the limit is 2)");
    hf_proxy_drop(rig.proxy, "other");
    rig.policy.tenant = "b";
    fd[2] = begin(GET("1-other", ""), &up[2]);
    struct hf_tenant_count *a = hf_map_get(&rig.proxy->tenants, HF_STR("a"));
    struct hf_tenant_count *b = hf_map_get(&rig.proxy->tenants, HF_STR("b"));
    assert_int_equal(a->open[HF_OPEN_PORTS], 1);
    assert_int_equal(b->open[HF_OPEN_PORTS], 1);
    hf_proxy_drop(rig.proxy, "box");
    hf_proxy_drop(rig.proxy, "other");
    assert_int_equal(rig.proxy->tenants.len, 0);
    for (int i = 0; i < 3; i++) {
        hf_close(fd[i]);
        hf_close(up[i]);
    }
}

/* Events from the server keep a stream alive whose request never ends, and the other way round. */
static void test_one_way_streams_live(void **state)
{
    hf_proxy_set_timeouts(rig.proxy, 0, 200, 0);
    hf_http_server_set_timeouts(rig.server, 0, 200);
    int up, fd = begin("POST / HTTP/1.1\r\n" RIG_HOST "Transfer-Encoding: chunked\r\n\r\n", &up);
    rig_send(up, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
    for (int i = 0; i < 6; i++) {
        net_pump(&rig.loop, 100);
        rig_send(up, "data: x\n\n");
    }
    rig_expect(fd, "data: x\n\n");
    for (int i = 0; i < 6; i++) {
        net_pump(&rig.loop, 100);
        rig_send(fd, "1\r\ny\r\n");
    }
    rig_up_expect(up, "1\r\ny\r\n");
    assert_int_equal(open_n(), 1);
    NET_WAIT(&rig.loop, open_n() == 0); /* silence both ways */
    hf_close(fd);
    hf_close(up);
}

/* One side has said its last and the other is silent: it goes as well. */
static void test_half_dead_tunnel(void **state)
{
    hf_proxy_set_timeouts(rig.proxy, 0, 150, 0);
    int up, fd = begin(GET("8000-box", WS), &up);
    rig_send(up, "HTTP/1.1 101 Switching Protocols\r\n" WS "\r\n");
    rig_expect(fd, "\r\n\r\n");
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    net_pump(&rig.loop, 20);
    assert_int_equal(open_n(), 1);
    NET_WAIT(&rig.loop, open_n() == 0);
    hf_close(fd);
    hf_close(up);
}

/* Thousands that send nothing, half a head, or half a handshake: others are served meanwhile, also new ones.
 */
static void test_half_open_flood(void **state)
{
    enum { N = 5000, LIMIT = 1000 };
    static int fds[N];
    struct rlimit l;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &l), 0);
    l.rlim_cur = HF_MIN(l.rlim_max, (rlim_t)2 * N + 100);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &l), 0);
    size_t n = HF_MIN((size_t)N, (size_t)(l.rlim_cur - 100) / 2);
    rig.server->conns_max = HF_MIN((size_t)LIMIT, n / 2);
    int up, living = begin(RIG_GET("/stream"), &up);
    rig_send(up, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
    uint64_t worst = 0;
    for (size_t i = 0; i < n; i++) {
        fds[i] = net_connect(hf_http_server_port(rig.server));
        if (i % 2)
            rig_send(fds[i], "GET / HTTP/1.1\r\n" RIG_HOST "X: ");
        net_turn(&rig.loop);
        if (i % 250)
            continue;
        uint64_t since = hf_mono_ms();
        rig_send(up, "data: x\n\n");
        rig_expect(living, "data: x\n\n");
        int fd = rig_client(); /* a new one */
        rig_send(fd, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        rig_expect(fd, "front");
        hf_close(fd);
        hf_buf_clear(&rig.in);
        worst = HF_MAX(worst, hf_mono_ms() - since);
    }
    assert_true(rig.server->conn_n <= rig.server->conns_max);
    assert_in_range(worst, 0, 2000);
    for (size_t i = 0; i < n; i++)
        hf_close(fds[i]);
    hf_close(living);
    hf_close(up);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {RIG_TEST(test_per_sandbox), RIG_TEST(test_per_tenant),
                                       RIG_TEST(test_one_way_streams_live), RIG_TEST(test_half_dead_tunnel),
                                       RIG_TEST(test_half_open_flood)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
