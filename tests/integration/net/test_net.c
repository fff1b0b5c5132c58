/* The fabric, in a lab of namespaces. Every rule of engine/net/net.h has a test that fails without it. */
#include <fcntl.h>
#include <netinet/ip.h>
#include <poll.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "lab.h"

#define SOON 1500 /* ms: an answer comes, or a refusal does */
#define BRIEF 250 /* ms: silence that is expected */

static struct hf_net *fabric;

static struct hf_net *open_fabric(void)
{
    struct hf_err err = {0};
    struct hf_net *n = NULL;
    if (hf_net_open(&lab.cfg, &n, &err) < 0)
        fail_msg("%s", err.msg);
    return n;
}

static void apply(const struct hf_net_policy *p)
{
    struct hf_err err = {0};
    if (hf_net_apply(fabric, p, &err) < 0)
        fail_msg("%s", err.msg);
}

static void reaches(int box, const char *addr)
{
    hf_auto_close int fd = lab_dial(box, addr, LAB_PORT, SOON);
    if (fd < 0)
        fail_msg("%s is not reachable: %s", addr, strerror(-fd));
    int r = lab_echo(fd, SOON);
    if (r < 0)
        fail_msg("%s does not answer: %s", addr, strerror(-r));
}

/* Denied: refused at once, by a reset. */
static void refused(int box, const char *addr)
{
    hf_auto_close int fd = lab_dial(box, addr, LAB_PORT, SOON);
    if (fd != -ECONNREFUSED)
        fail_msg("%s: %s", addr, fd < 0 ? strerror(-fd) : "reachable");
}

static uint64_t denied(uint32_t key)
{
    struct hf_net_counters c;
    assert_int_equal(hf_net_counters(fabric, key, &c), 0);
    return c.denied;
}

static void nothing_without_policy(void **state)
{
    int box = lab_box(fabric, 1);
    assert_int_equal(lab_dial(box, LAB_V4, LAB_PORT, BRIEF), -ETIMEDOUT);
    assert_int_equal(lab_dial(box, LAB_V6, LAB_PORT, BRIEF), -ETIMEDOUT);
    assert_int_equal(lab_dial(box, "10.117.255.254", 53, BRIEF), -ETIMEDOUT);
    apply(&(struct hf_net_policy){.key = 1});
    refused(box, LAB_V4);
    refused(box, LAB_V6);
    assert_int_equal(lab_udp(box, LAB_V4, LAB_PORT, SOON), -EHOSTUNREACH);
    assert_true(denied(1) >= 3);
    struct hf_net_counters c;
    assert_int_equal(hf_net_counters(fabric, 2, &c), -ENOENT);
    lab_box_end(fabric, 1, box);
}

static void open_policy(void **state)
{
    int box = lab_box(fabric, 2);
    apply(&(struct hf_net_policy){.key = 2, .open = true});
    reaches(box, LAB_V4);
    reaches(box, LAB_V6);
    assert_int_equal(lab_udp(box, LAB_V4, LAB_PORT, SOON), 0);
    assert_int_equal(lab_udp(box, LAB_V6, LAB_PORT, SOON), 0);
    refused(box, "10.9.9.9");
    refused(box, "fd12::9");
    refused(box, "64:ff9b::10.9.9.9");
    reaches(box, "64:ff9b::198.51.100.7");
    struct hf_net_counters c;
    assert_int_equal(hf_net_counters(fabric, 2, &c), 0);
    assert_int_equal(c.connections, 5); /* tcp and udp, v4 and v6, and the one of NAT64 */
    assert_true(c.packets_out >= 15 && c.packets_in >= 12 && c.bytes_out > 600 && c.bytes_in > 500);
    assert_true(c.denied >= 3);
    lab_box_end(fabric, 2, box);
}

static void allow_and_deny(void **state)
{
    int box = lab_box(fabric, 3);
    const struct hf_cidr allow[] = {lab_cidr("198.51.100.0/25"), lab_cidr("10.9.9.9"), lab_cidr("fd12::9"),
                                    lab_cidr("2001:db8:1::/64"), lab_cidr("0.0.0.0/1")};
    const struct hf_cidr deny[] = {lab_cidr("198.51.100.0/24"), lab_cidr("192.0.2.0/25"),
                                   lab_cidr("2001:db8:1:1::/64")};
    struct hf_net_policy p = {
        .key = 3, .allow = allow, .n_allow = 4, .deny = deny, .n_deny = 3, .open = true};
    apply(&p);
    reaches(box, LAB_V4);
    refused(box, "198.51.100.200");
    refused(box, "192.0.2.1");
    reaches(box, "192.0.2.129");
    reaches(box, "10.9.9.9");
    refused(box, "10.9.9.8");
    reaches(box, "fd12::9");
    refused(box, "fd12::8");
    reaches(box, LAB_V6);
    refused(box, "2001:db8:1:1::1");
    p.open = false;
    p.n_deny = 0;
    apply(&p);
    reaches(box, LAB_V4);
    refused(box, "192.0.2.129");
    /* a wide prefix opens no private address */
    p.allow = &allow[4];
    p.n_allow = 1;
    apply(&p);
    refused(box, "10.9.9.9");
    lab_box_end(fabric, 3, box);
}

static void never(void **state)
{
    int box = lab_box(fabric, 4), other = lab_box(fabric, 5);
    struct hf_net_addrs mine, theirs;
    assert_int_equal(hf_net_addrs(&lab.cfg, 4, &mine), 0);
    assert_int_equal(hf_net_addrs(&lab.cfg, 5, &theirs), 0);
    const struct hf_cidr allow[] = {lab_cidr("0.0.0.0/0"),       lab_cidr("::/0"),
                                    lab_cidr("169.254.169.254"), lab_cidr("100.100.100.200"),
                                    lab_cidr("10.0.0.0/8"),      lab_cidr("fd00::/8"),
                                    {theirs.box4, 32},           {theirs.box6, 128}};
    apply(&(struct hf_net_policy){.key = 4, .open = true, .allow = allow, .n_allow = HF_ARRAY_LEN(allow)});
    apply(&(struct hf_net_policy){.key = 5, .open = true});
    int there4 = lab_listen(hf_ns_socket(other, AF_INET, SOCK_STREAM, 0), "0.0.0.0", LAB_PORT);
    int there6 = lab_listen(hf_ns_socket(other, AF_INET6, SOCK_STREAM, 0), "::", LAB_PORT);
    refused(box, "169.254.169.254");
    refused(box, "100.100.100.200");
    refused(box, "64:ff9b::169.254.169.254");
    const struct hf_addr *closed[] = {&theirs.box4, &theirs.box6, &theirs.gw4, &theirs.gw6,
                                      &mine.gw4,    &mine.gw6,    &mine.dns4,  &mine.dns6};
    for (size_t i = 0; i < HF_ARRAY_LEN(closed); i++) {
        char text[HF_ADDR_TEXT];
        hf_addr_format(closed[i], text);
        refused(box, text);
    }
    /* the listener's port of the gateway is for redirected connections only */
    char gw[HF_ADDR_TEXT];
    hf_addr_format(&mine.gw4, gw);
    int l7 = lab_listen(hf_net_socket(fabric, AF_INET, SOCK_STREAM, 0), "0.0.0.0", HF_NET_L7_PORT);
    assert_int_equal(lab_dial(box, gw, HF_NET_L7_PORT, SOON), -ECONNREFUSED);
    (void)close(l7);
    (void)close(there4);
    (void)close(there6);
    lab_box_end(fabric, 4, box);
    lab_box_end(fabric, 5, other);
}

static void the_host_itself(void **state)
{
    int box = lab_box(fabric, 6);
    const struct hf_cidr allow[] = {lab_cidr(LAB_HOST4), lab_cidr("203.0.113.0/24"),
                                    lab_cidr("198.51.100.0/24")};
    struct hf_net_policy p = {.key = 6, .open = true, .allow = allow + 1, .n_allow = 2};
    apply(&p);
    refused(box, LAB_HOST4); /* a prefix does not name it */
    reaches(box, LAB_V4);
    p.allow = allow;
    p.n_allow = 1;
    apply(&p);
    reaches(box, LAB_HOST4);
    reaches(box, LAB_V4);
    /* nobody outside can reach in */
    struct hf_net_addrs a;
    assert_int_equal(hf_net_addrs(&lab.cfg, 6, &a), 0);
    char text[HF_ADDR_TEXT];
    hf_addr_format(&a.box4, text);
    int r = lab_dial(lab.internet_fd, text, LAB_PORT, BRIEF);
    assert_true(r == -ETIMEDOUT || r == -ENETUNREACH || r == -EHOSTUNREACH);
    lab_box_end(fabric, 6, box);
}

struct spoof {
    const char *src, *dst;
};

/* A raw UDP datagram with any source. */
static int send_spoofed(void *arg)
{
    const struct spoof *s = arg;
    struct {
        struct iphdr ip;
        uint16_t udp[4];
    } pkt = {.ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP},
             .udp = {htons(999), htons(LAB_PORT), htons(8), 0}};
    struct hf_addr src = lab_addr(s->src), dst = lab_addr(s->dst);
    struct sockaddr_storage ss;
    memcpy(&pkt.ip.saddr, src.b, 4);
    memcpy(&pkt.ip.daddr, dst.b, 4);
    pkt.ip.tot_len = htons(sizeof(pkt));
    hf_auto_close int fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
    socklen_t n = hf_addr_to_sockaddr(&dst, 0, &ss);
    return sendto(fd, &pkt, sizeof(pkt), 0, (struct sockaddr *)&ss, n) < 0 ? -errno : 0;
}

static void spoofed_sources(void **state)
{
    int box = lab_box(fabric, 7), other = lab_box(fabric, 8);
    apply(&(struct hf_net_policy){.key = 7, .open = true});
    apply(&(struct hf_net_policy){.key = 8, .open = true});
    struct hf_net_addrs theirs;
    struct hf_net_counters c;
    char text[HF_ADDR_TEXT];
    assert_int_equal(hf_net_addrs(&lab.cfg, 8, &theirs), 0);
    hf_addr_format(&theirs.box4, text);
    struct spoof s[] = {{text, LAB_V4}, {"203.0.113.77", LAB_V4}, {"127.0.0.1", LAB_V4}};
    for (size_t i = 0; i < HF_ARRAY_LEN(s); i++) {
        uint64_t before = denied(7);
        assert_int_equal(hf_ns_run(box, send_spoofed, &s[i]), 0);
        if (i < 2) /* the box's own kernel does not send the last one */
            assert_int_equal(denied(7), before + 1);
    }
    assert_int_equal(hf_net_counters(fabric, 7, &c), 0);
    assert_int_equal(c.packets_out, 0);
    assert_int_equal(denied(8), 0);
    lab_box_end(fabric, 7, box);
    lab_box_end(fabric, 8, other);
}

static void change_under_open_flows(void **state)
{
    int box = lab_box(fabric, 9);
    struct hf_net_policy p = {.key = 9, .open = true};
    apply(&p);
    hf_auto_close int talking = lab_dial(box, LAB_V4, LAB_PORT, SOON),
                      six = lab_dial(box, LAB_V6, LAB_PORT, SOON);
    hf_auto_close int waiting = lab_dial(box, "198.51.100.8", LAB_PORT, SOON),
                      kept = lab_dial(box, "192.0.2.1", LAB_PORT, SOON);
    assert_int_equal(lab_echo(talking, SOON), 0);
    assert_int_equal(lab_echo(six, SOON), 0);
    assert_int_equal(lab_echo(waiting, SOON), 0);
    assert_int_equal(lab_echo(kept, SOON), 0);
    assert_int_equal(send(waiting, "!", 1, 0), 1); /* its answer comes after the change */
    usleep(50000);
    const struct hf_cidr keep = lab_cidr("192.0.2.0/24");
    p = (struct hf_net_policy){.key = 9, .allow = &keep, .n_allow = 1};
    apply(&p);
    int r = lab_echo(talking, SOON);
    assert_true(r == -ECONNRESET || r == -EPIPE);
    r = lab_echo(six, SOON);
    assert_true(r == -ECONNRESET || r == -EPIPE);
    struct pollfd w = {waiting, POLLIN, 0};
    char c;
    assert_int_equal(poll(&w, 1, SOON), 1);
    assert_int_equal(recv(waiting, &c, 1, 0), -1);
    assert_int_equal(errno, ECONNRESET);
    assert_int_equal(lab_echo(kept, SOON), 0);
    /* forgotten: silence */
    assert_int_equal(hf_net_forget(fabric, 9, NULL), 0);
    assert_int_equal(lab_echo(kept, BRIEF), -ETIMEDOUT);
    lab_box_end(fabric, 9, box);
}

static void quic_is_hidden(void **state)
{
    int box = lab_box(fabric, 10);
    apply(&(struct hf_net_policy){.key = 10, .open = true});
    assert_int_equal(lab_udp(box, LAB_V4, 443, SOON), 0);
    apply(&(struct hf_net_policy){.key = 10, .open = true, .no_quic = true});
    assert_int_equal(lab_udp(box, LAB_V4, 443, SOON), -EHOSTUNREACH);
    assert_int_equal(lab_dial(box, LAB_V4, 853, SOON), -ECONNREFUSED);
    reaches(box, LAB_V4);
    lab_box_end(fabric, 10, box);
}

/* Accepts one connection at the L7 listener and checks what it was meant for. */
static void expect_redirect(int listener, int box, const char *addr, uint16_t port)
{
    hf_auto_close int fd = lab_dial(box, addr, port, SOON);
    if (fd < 0)
        fail_msg("%s port %u: %s", addr, port, strerror(-fd));
    struct pollfd p = {listener, POLLIN, 0};
    assert_int_equal(poll(&p, 1, SOON), 1);
    hf_auto_close int got = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct hf_addr dst, want = lab_addr(addr);
    uint16_t dst_port;
    assert_int_equal(hf_net_original_dst(got, &dst, &dst_port), 0);
    assert_true(hf_addr_equal(&dst, &want));
    assert_int_equal(dst_port, port);
    assert_int_equal(send(got, "y", 1, 0), 1);
    assert_int_equal(lab_echo(fd, SOON), 0);
}

static void l7_listener(void **state)
{
    int box = lab_box(fabric, 11);
    int l4 = lab_listen(hf_net_socket(fabric, AF_INET, SOCK_STREAM, 0), "0.0.0.0", HF_NET_L7_PORT);
    int l6 = lab_listen(hf_net_socket(fabric, AF_INET6, SOCK_STREAM, 0), "::", HF_NET_L7_PORT);
    struct hf_net_policy p = {.key = 11};
    apply(&p);
    struct hf_addr a4 = lab_addr("192.0.2.44"), a6 = lab_addr("2001:db8:1::44");
    refused(box, "192.0.2.44");
    assert_int_equal(hf_net_learn(fabric, 11, &a4, 2), 0);
    assert_int_equal(hf_net_learn(fabric, 11, &a6, 300), 0);
    expect_redirect(l4, box, "192.0.2.44", 443);
    expect_redirect(l6, box, "2001:db8:1::44", 8080);
    refused(box, "192.0.2.45");
    usleep(2300000);
    refused(box, "192.0.2.44"); /* it expired */
    assert_int_equal(hf_net_learn(fabric, 11, &a4, 1), 0);
    assert_int_equal(hf_net_learn(fabric, 11, &a4, 60), 0); /* longer */
    usleep(1200000);
    expect_redirect(l4, box, "192.0.2.44", 80);
    assert_int_equal(hf_net_unlearn(fabric, 11), 0);
    refused(box, "192.0.2.44");
    assert_int_equal(hf_net_learn(fabric, 12, &a4, 60), -ENOENT);
    /* by port, and all */
    p.n_l7_ports = 1;
    p.l7_ports[0] = 8443;
    p.open = true;
    apply(&p);
    expect_redirect(l4, box, LAB_V4, 8443);
    expect_redirect(l6, box, LAB_V6, 8443);
    reaches(box, LAB_V4);
    hf_auto_close int direct = lab_dial(box, LAB_V4, LAB_PORT, SOON);
    p.l7_all = true;
    apply(&p);
    expect_redirect(l4, box, LAB_V4, 8080);
    int r = lab_echo(direct, SOON); /* a connection that went by it ends */
    assert_true(r == -ECONNRESET || r == -EPIPE);
    assert_int_equal(lab_udp(box, LAB_V4, LAB_PORT, SOON), 0);
    refused(box, "169.254.169.254");
    (void)close(l4);
    (void)close(l6);
    lab_box_end(fabric, 11, box);
}

static void resolver(void **state)
{
    int box = lab_box(fabric, 13);
    int u4 = lab_listen(hf_net_socket(fabric, AF_INET, SOCK_DGRAM, 0), "10.117.255.254", 53);
    int t6 = lab_listen(hf_net_socket(fabric, AF_INET6, SOCK_STREAM, 0), "fd68:6f6c:6466:1::fffe", 53);
    hf_auto_close int q = hf_ns_socket(box, AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_storage ss, from;
    struct hf_addr dns = lab_addr("10.117.255.254"), src;
    struct hf_net_addrs a;
    socklen_t n = hf_addr_to_sockaddr(&dns, 53, &ss), from_n = sizeof(from);
    char buf[8];
    apply(&(struct hf_net_policy){.key = 13, .open = true});
    assert_int_equal(lab_udp(box, "10.117.255.254", 53, SOON), -EHOSTUNREACH);
    assert_int_equal(lab_dial(box, "fd68:6f6c:6466:1::fffe", 53, SOON), -ECONNREFUSED);
    apply(&(struct hf_net_policy){.key = 13, .dns = true});
    assert_int_equal(sendto(q, "q", 1, 0, (struct sockaddr *)&ss, n), 1);
    struct pollfd p = {u4, POLLIN, 0};
    assert_int_equal(poll(&p, 1, SOON), 1);
    assert_int_equal(recvfrom(u4, buf, sizeof(buf), 0, (struct sockaddr *)&from, &from_n), 1);
    assert_int_equal(hf_addr_from_sockaddr((struct sockaddr *)&from, &src, NULL), 0);
    assert_int_equal(hf_net_addrs(&lab.cfg, 13, &a), 0);
    assert_true(hf_addr_equal(&src, &a.box4)); /* the source tells the box */
    assert_int_equal(sendto(u4, "a", 1, 0, (struct sockaddr *)&from, from_n), 1);
    p = (struct pollfd){q, POLLIN, 0};
    assert_int_equal(poll(&p, 1, SOON), 1);
    hf_auto_close int tcp = lab_dial(box, "fd68:6f6c:6466:1::fffe", 53, SOON);
    assert_true(tcp >= 0);
    /* a flood reaches the listener at a limited rate */
    uint64_t before = denied(13);
    for (int i = 0; i < 3000; i++)
        (void)!sendto(q, "q", 1, 0, (struct sockaddr *)&ss, n);
    assert_true(denied(13) - before > 1000);
    (void)close(u4);
    (void)close(t6);
    lab_box_end(fabric, 13, box);
}

static void connection_caps(void **state)
{
    int box = lab_box(fabric, 14), fds[30], made = 0;
    apply(&(struct hf_net_policy){.key = 14, .open = true, .conns_max = 20});
    for (int i = 0; i < 30; i++) {
        fds[i] = lab_dial(box, LAB_V4, LAB_PORT, SOON);
        made += fds[i] >= 0;
    }
    assert_true(made >= 19 && made <= 21);
    assert_int_equal(lab_echo(fds[0], SOON), 0); /* those that are there go on */
    for (int i = 0; i < 30; i++)
        (void)hf_close(fds[i]);
    apply(&(struct hf_net_policy){.key = 14, .open = true, .conns_rate = 1});
    int refusals = 0;
    for (int i = 0; i < 40; i++) {
        int fd = lab_dial(box, LAB_V4, LAB_PORT, SOON);
        refusals += fd == -ECONNREFUSED;
        (void)hf_close(fd);
    }
    assert_true(refusals >= 20);
    lab_box_end(fabric, 14, box);
}

/* ---- the log ---- */

struct seen {
    struct hf_net_denial d[64];
    size_t n;
};

static void on_denial(void *arg, const struct hf_net_denial *d)
{
    struct seen *s = arg;
    if (s->n < HF_ARRAY_LEN(s->d))
        s->d[s->n++] = *d;
}

static void denials_are_told(void **state)
{
    int box = lab_box(fabric, 15);
    struct seen s = {.n = 0};
    struct hf_net_watch *w;
    struct hf_err err = {0};
    uv_loop_t loop;
    const struct hf_cidr deny = lab_cidr("192.0.2.0/24");
    assert_int_equal(uv_loop_init(&loop), 0);
    if (hf_net_watch(fabric, &loop, on_denial, &s, &w, &err) < 0)
        fail_msg("%s", err.msg);
    apply(&(struct hf_net_policy){.key = 15, .open = true, .no_quic = true, .deny = &deny, .n_deny = 1});
    refused(box, "169.254.169.254");
    refused(box, "10.9.9.9");
    refused(box, "192.0.2.1");
    (void)lab_udp(box, LAB_V4, 443, SOON);
    apply(&(struct hf_net_policy){.key = 15});
    refused(box, LAB_V6);
    for (int i = 0; i < 20; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    static const char *const reasons[] = {"never", "private", "deny", "quic", "default"};
    static const char *const where[] = {"169.254.169.254", "10.9.9.9", "192.0.2.1", LAB_V4, LAB_V6};
    for (size_t i = 0; s.n != HF_ARRAY_LEN(reasons) && i < s.n; i++)
        (void)fprintf(stderr, "%s protocol %u, port %u to %u\n", s.d[i].reason, s.d[i].protocol,
                      s.d[i].src_port, s.d[i].dst_port);
    assert_int_equal(s.n, HF_ARRAY_LEN(reasons));
    for (size_t i = 0; i < s.n; i++) {
        struct hf_addr dst = lab_addr(where[i]);
        assert_string_equal(s.d[i].reason, reasons[i]);
        assert_true(hf_addr_equal(&s.d[i].dst, &dst));
        assert_int_equal(s.d[i].key, 15);
        assert_int_equal(s.d[i].dst_port, i == 3 ? 443 : LAB_PORT);
        assert_int_equal(s.d[i].protocol, i == 3 ? IPPROTO_UDP : IPPROTO_TCP);
    }
    /* a flood is counted whole and logged in part */
    uint64_t before = denied(15);
    for (int i = 0; i < 100; i++)
        (void)lab_udp(box, LAB_V4, LAB_PORT, 0);
    for (int i = 0; i < 20; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    assert_int_equal(denied(15), before + 100);
    assert_true(s.n < HF_ARRAY_LEN(reasons) + 50);
    hf_net_watch_free(w);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    lab_box_end(fabric, 15, box);
}

/* ---- size and time ---- */

static void many_entries(void **state)
{
    int box = lab_box(fabric, 16);
    static struct hf_cidr allow[1000];
    for (unsigned i = 0; i < HF_ARRAY_LEN(allow); i++)
        allow[i] = (struct hf_cidr){{.family = 4, .b = {11, (uint8_t)(i >> 7), (uint8_t)(i << 1), 0}}, 24};
    allow[999] = lab_cidr("198.51.100.0/24");
    struct hf_net_policy p = {.key = 16, .allow = allow, .n_allow = HF_ARRAY_LEN(allow)};
    uint64_t t0 = hf_mono_ns();
    apply(&p);
    uint64_t first = hf_mono_ns() - t0;
    reaches(box, LAB_V4);
    refused(box, "192.0.2.1");
    t0 = hf_mono_ns();
    apply(&p);
    uint64_t same = hf_mono_ns() - t0;
    t0 = hf_mono_ns();
    apply(&(struct hf_net_policy){.key = 16, .open = true});
    uint64_t gone = hf_mono_ns() - t0;
    (void)printf("1,000 entries: applied in %llu us, again in %llu us, taken away in %llu us\n",
                 (unsigned long long)first / 1000, (unsigned long long)same / 1000,
                 (unsigned long long)gone / 1000);
    reaches(box, "192.0.2.1");
    lab_box_end(fabric, 16, box);
}

/* A new process knows what the old one applied. */
static void restart(void **state)
{
    int box = lab_box(fabric, 17);
    const struct hf_cidr allow[] = {lab_cidr("198.51.100.0/24"), lab_cidr("10.9.9.9"),
                                    lab_cidr("2001:db8:1::/48"), lab_cidr("255.255.255.0/24"),
                                    lab_cidr("ffff::/16")};
    struct hf_net_policy p = {.key = 17,
                              .dns = true,
                              .no_quic = true,
                              .allow = allow,
                              .n_allow = HF_ARRAY_LEN(allow),
                              .n_l7_ports = 1,
                              .l7_ports = {8443}};
    apply(&p);
    struct hf_addr a = lab_addr("192.0.2.44");
    assert_int_equal(hf_net_learn(fabric, 17, &a, 300), 0);
    hf_auto_close int fd = lab_dial(box, LAB_V4, LAB_PORT, SOON);
    hf_net_free(fabric);
    assert_int_equal(lab_echo(fd, SOON), 0);
    fabric = open_fabric();
    assert_int_equal(lab_echo(fd, SOON), 0);
    hf_auto_free uint32_t *keys = NULL;
    size_t n = 0;
    assert_int_equal(hf_net_keys(fabric, &keys, &n), 0);
    assert_int_equal(n, 1);
    assert_int_equal(keys[0], 17);
    const struct hf_cidr other = lab_cidr("192.0.2.0/24");
    apply(&(struct hf_net_policy){.key = 17, .allow = &other, .n_allow = 1});
    int r = lab_echo(fd, SOON);
    assert_true(r == -ECONNRESET || r == -EPIPE);
    reaches(box, "192.0.2.1");
    refused(box, "10.9.9.9");
    refused(box, LAB_V6);
    lab_box_end(fabric, 17, box);
    /* nothing of it is left */
    char path[64];
    hf_net_ns_path(lab.id, path);
    assert_int_equal(
        lab_sh(hf_net_ns_fd(fabric), "! nft list table inet holdfast | grep -E '0x00000011|hf17'"), 0);
}

/* Two processes have the fabric open; the one that did not make a box's elements still replaces all of them.
 */
static void two_openers(void **state)
{
    int box = lab_box(fabric, 18);
    struct hf_net *other = open_fabric(), *first = fabric;
    const struct hf_cidr allow = lab_cidr("192.0.2.0/24"), deny = lab_cidr("198.51.100.0/24");
    apply(&(struct hf_net_policy){.key = 18, .open = true, .dns = true, .allow = &allow, .n_allow = 1});
    hf_auto_free uint32_t *keys = NULL;
    size_t n = 0;
    assert_int_equal(hf_net_keys(other, &keys, &n), 0);
    assert_int_equal(n, 1);
    assert_int_equal(keys[0], 18);
    fabric = other;
    apply(&(struct hf_net_policy){.key = 18, .open = true, .deny = &deny, .n_deny = 1});
    refused(box, LAB_V4);
    apply(&(struct hf_net_policy){.key = 18});
    refused(box, "192.0.2.1");
    fabric = first;
    apply(&(struct hf_net_policy){.key = 18, .open = true});
    reaches(box, LAB_V4);
    assert_int_equal(hf_net_forget(other, 18, NULL), 0);
    assert_int_equal(lab_dial(box, LAB_V4, LAB_PORT, BRIEF), -ETIMEDOUT);
    hf_net_free(other);
    lab_box_end(fabric, 18, box);
}

/* IPv6 with somebody else's source: a socket bound to an address that its host does not have. */
static void spoofed_ipv6(void **state)
{
    int box = lab_box(fabric, 19), on = 1;
    apply(&(struct hf_net_policy){.key = 19, .open = true});
    hf_auto_close int fd = hf_ns_socket(box, AF_INET6, SOCK_DGRAM, 0);
    struct sockaddr_storage self, to;
    struct hf_addr forged = lab_addr("fd68:6f6c:6466:1::99"), dst = lab_addr(LAB_V6);
    assert_int_equal(setsockopt(fd, SOL_IPV6, IPV6_FREEBIND, &on, sizeof(on)), 0);
    socklen_t n = hf_addr_to_sockaddr(&forged, 0, &self);
    assert_int_equal(bind(fd, (struct sockaddr *)&self, n), 0);
    n = hf_addr_to_sockaddr(&dst, LAB_PORT, &to);
    assert_int_equal(sendto(fd, "x", 1, 0, (struct sockaddr *)&to, n), 1);
    struct hf_net_counters c;
    assert_int_equal(hf_net_counters(fabric, 19, &c), 0);
    assert_int_equal(c.denied, 1);
    assert_int_equal(c.packets_out, 0);
    lab_box_end(fabric, 19, box);
}

static int set_up(void **state)
{
    fabric = open_fabric();
    return 0;
}

static int tear_down(void **state)
{
    struct hf_err err = {0};
    hf_net_free(fabric);
    if (hf_net_remove(&lab.cfg, &err) < 0)
        fail_msg("%s", err.msg);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_without_policy),
        cmocka_unit_test(open_policy),
        cmocka_unit_test(allow_and_deny),
        cmocka_unit_test(never),
        cmocka_unit_test(the_host_itself),
        cmocka_unit_test(spoofed_sources),
        cmocka_unit_test(change_under_open_flows),
        cmocka_unit_test(quic_is_hidden),
        cmocka_unit_test(l7_listener),
        cmocka_unit_test(resolver),
        cmocka_unit_test(connection_caps),
        cmocka_unit_test(denials_are_told),
        cmocka_unit_test(many_entries),
        cmocka_unit_test(restart),
        cmocka_unit_test(two_openers),
        cmocka_unit_test(spoofed_ipv6),
    };
    int r = 1;
    if (lab_open(&r) < 0)
        return r;
    r = cmocka_run_group_tests(tests, set_up, tear_down);
    lab_close();
    return r;
}
