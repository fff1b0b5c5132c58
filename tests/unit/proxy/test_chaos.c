/* Everything at once, at random: clients and applications that stop, reset, send garbage or half of
 * something, dials that end late, sandboxes that vanish. Nothing may be used after it is gone (sanitizers),
 * nothing may be left behind (uv_loop_close), and an honest exchange works afterwards. CHAOS_SEED and
 * CHAOS_MS repeat and prolong a run. */
#include "rig.h"

#define CLIENTS 24
#define APPS 32
#define CHAOS_MS 1500u

static const char *const requests[] = {
    RIG_GET("/"),
    RIG_GET("/1") RIG_GET("/2") "GET /front HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HEAD / HTTP/1.1\r\n" RIG_HOST "\r\n",
    "GET / HTTP/1.0\r\n" RIG_HOST "Connection: keep-alive\r\n\r\n",
    "GET / HTTP/1.1\r\n" RIG_HOST "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly bytes",
    "POST / HTTP/1.1\r\n" RIG_HOST "Content-Length: 100000\r\n\r\nbegin",
    "POST / HTTP/1.1\r\n" RIG_HOST "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    "POST / HTTP/1.1\r\n" RIG_HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "5\r\nworld\r\n0\r\n\r\n",
    "PUT / HTTP/1.1\r\nHost: 9000-other.localhost\r\nContent-Length: 3\r\n\r\nabc",
    "GET / HTTP/1.1\r\nHost: 49983-box.localhost\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: 8000-gone.localhost\r\n\r\n",
    "garbage\r\n\r\n",
    "0123456789abcdef",
};

static const char *const answers[] = {
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\npart",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
    "0\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\r\nuntil the end",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nframes",
    "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig",
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "HTTP/1.1 200",
    "garbage\r\n",
    "ok",
};

/* Dials that have not ended. */
static struct {
    void (*cb)(void *arg, int fd);
    void *arg;
} dials[16];
static unsigned n_dials;
static unsigned seed;

static unsigned dice(unsigned n)
{
    seed = seed * 1103515245u + 12345u;
    return (seed >> 16) % n;
}

static void end_dial(void)
{
    n_dials--;
    int fd = dice(4) ? net_connect(rig.app_port) : -ECONNREFUSED;
    dials[n_dials].cb(dials[n_dials].arg, fd);
}

static void start_dial(void *self, void *handle, uint16_t port, void (*cb)(void *arg, int fd), void *arg)
{
    dials[n_dials].cb = cb;
    dials[n_dials++].arg = arg;
    if (dice(2) || n_dials == HF_ARRAY_LEN(dials))
        end_dial();
}

static const struct hf_proxy_ops chaos_ops = {rig_lookup, start_dial, NULL};

static void shut(int *fd, bool reset)
{
    struct linger l = {1, 0};
    if (*fd >= 0 && reset)
        (void)setsockopt(*fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
    *fd = hf_close(*fd);
}

static void say(int fd, const char *text)
{
    static char bulk[100000];
    size_t n = strlen(text);
    if (dice(20) == 0)
        (void)!send(fd, bulk, sizeof(bulk), MSG_NOSIGNAL | MSG_DONTWAIT);
    else
        (void)!send(fd, text, dice(4) ? n : dice((unsigned)n + 1), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void listen_in(int fd)
{
    static char sink[65536];
    (void)!recv(fd, sink, 1u + dice(sizeof(sink)), MSG_DONTWAIT);
}

/* One step of one end of a connection. */
static void act(int *fd, const char *const *lines, unsigned n)
{
    switch (dice(12)) {
    case 0:
        shut(fd, false);
        break;
    case 1:
        shut(fd, true);
        break;
    case 2:
        (void)shutdown(*fd, SHUT_WR);
        break;
    case 3:
    case 4:
    case 5:
        listen_in(*fd);
        break;
    default:
        say(*fd, lines[dice(n)]);
    }
}

static void act_world(void)
{
    unsigned d = dice(80);
    if (d < 2)
        hf_proxy_drop(rig.proxy, d ? "box" : "other");
    if (n_dials && dice(4) == 0)
        end_dial();
}

static void chaos(uint64_t ms, int clients[CLIENTS], int apps[APPS])
{
    for (uint64_t end = hf_mono_ms() + ms; hf_mono_ms() < end;) {
        int *c = &clients[dice(CLIENTS)], *a = &apps[dice(APPS)];
        if (*c < 0)
            *c = net_connect_rcvbuf(hf_http_server_port(rig.server), dice(2) ? 4096 : 0);
        else
            act(c, requests, HF_ARRAY_LEN(requests));
        if (*a < 0)
            *a = accept4(rig.app, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        else
            act(a, answers, HF_ARRAY_LEN(answers));
        act_world();
        for (unsigned i = dice(3); i > 0; i--)
            (void)uv_run(&rig.loop, UV_RUN_NOWAIT);
    }
}

static void test_chaos(void **state)
{
    int clients[CLIENTS], apps[APPS];
    const char *seed_text = getenv("CHAOS_SEED"), *ms_text = getenv("CHAOS_MS");
    seed = seed_text ? (unsigned)strtoul(seed_text, NULL, 10) : (unsigned)hf_mono_ns();
    print_message("CHAOS_SEED=%u\n", seed);
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = -1;
    for (int i = 0; i < APPS; i++)
        apps[i] = -1;
    hf_http_server_set_timeouts(rig.server, 300, 500);
    hf_proxy_set_timeouts(rig.proxy, 200, 500, 300);
    rig.proxy->ops = &chaos_ops;
    chaos(ms_text ? strtoull(ms_text, NULL, 10) : CHAOS_MS, clients, apps);
    print_message("%llu requests, %llu connections to applications\n",
                  (unsigned long long)rig.proxy->stats.requests,
                  (unsigned long long)rig.proxy->stats.upstream_connects);
    while (n_dials)
        end_dial();
    rig.proxy->ops = &rig_ops;
    for (int i = 0; i < CLIENTS; i++)
        shut(&clients[i], false);
    for (int i = 0; i < APPS; i++)
        shut(&apps[i], false);
    hf_proxy_drop(rig.proxy, "box");
    net_pump(&rig.loop, 50);
    for (int fd; (fd = accept4(rig.app, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        hf_close(fd);
    /* Peace. */
    int fd = rig_client();
    rig_send(fd, RIG_GET("/honest"));
    int up = rig_accept("GET /honest ");
    rig_send(up, answers[0]);
    rig_expect(fd, "\r\n\r\nok");
    hf_close(up);
    hf_close(fd);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {RIG_TEST(test_chaos)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
