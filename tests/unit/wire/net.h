/* Sockets on loopback for tests that run a server on a uv loop in the same thread: every wait pumps the
 * loop. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>

#include <uv.h>

#include "base/buf.h"
#include "base/clock.h"

#define NET_TIMEOUT_MS 8000u
#define NET_BUF_MAX (64u << 20)

/* One turn of the loop; sleeps a little when there is nothing to do. */
static inline void net_turn(uv_loop_t *loop)
{
    struct pollfd p = {uv_backend_fd(loop), POLLIN, 0};
    (void)poll(&p, 1, 1);
    (void)uv_run(loop, UV_RUN_NOWAIT);
}

static inline void net_pump(uv_loop_t *loop, uint64_t ms)
{
    uint64_t end = hf_mono_ms() + ms;
    do
        net_turn(loop);
    while (hf_mono_ms() < end);
}

#define NET_WAIT(loop, cond)                                 \
    do {                                                     \
        uint64_t net_end_ = hf_mono_ms() + NET_TIMEOUT_MS;   \
        while (!(cond)) {                                    \
            if (hf_mono_ms() > net_end_)                     \
                fail_msg("timed out waiting for %s", #cond); \
            net_turn(loop);                                  \
        }                                                    \
    } while (0)

/* rcvbuf > 0 makes a client that takes little at a time. */
static inline int net_connect_rcvbuf(uint16_t port, int rcvbuf)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (rcvbuf)
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

static inline int net_connect(uint16_t port)
{
    return net_connect_rcvbuf(port, 0);
}

static inline void net_send_n(uv_loop_t *loop, int fd, const void *p, size_t n)
{
    uint64_t end = hf_mono_ms() + NET_TIMEOUT_MS;
    for (size_t i = 0; i < n;) {
        ssize_t k = send(fd, (const char *)p + i, n - i, MSG_NOSIGNAL);
        if (k < 0 && errno != EAGAIN)
            return; /* the other side has closed: the test looks at what it said */
        if (k > 0)
            i += (size_t)k;
        else
            net_turn(loop);
        if (hf_mono_ms() > end)
            fail_msg("timed out sending");
    }
}

static inline void net_send(uv_loop_t *loop, int fd, const char *s)
{
    net_send_n(loop, fd, s, strlen(s));
}

/* Adds what is there. 1 data, 0 end of file, -EAGAIN, or the socket's error. */
static inline int net_recv(int fd, struct hf_buf *b)
{
    assert_int_equal(hf_buf_reserve(b, 65536), 0);
    ssize_t k = recv(fd, b->p + b->n, 65536, 0);
    if (k < 0)
        return -errno;
    b->n += (size_t)k;
    b->p[b->n] = '\0';
    return k > 0;
}

static inline bool net_has(const struct hf_buf *b, const char *needle)
{
    return b->p && memmem(b->p, b->n, needle, strlen(needle));
}

static inline size_t net_count(const struct hf_buf *b, const char *needle)
{
    size_t n = 0;
    for (const char *p = b->p; p && (p = memmem(p, b->n - (size_t)(p - b->p), needle, strlen(needle))); p++)
        n++;
    return n;
}

/* Reads until the buffer contains needle; fails at the end of the stream. */
static inline void net_expect(uv_loop_t *loop, int fd, struct hf_buf *b, const char *needle)
{
    uint64_t end = hf_mono_ms() + NET_TIMEOUT_MS;
    while (!net_has(b, needle)) {
        int r = net_recv(fd, b);
        if (r == 0 || (r < 0 && r != -EAGAIN))
            fail_msg("stream ended (%d) before \"%s\"; got \"%s\"", r, needle, b->p);
        if (hf_mono_ms() > end)
            fail_msg("timed out before \"%s\"; got \"%s\"", needle, b->p ? b->p : "");
        net_turn(loop);
    }
}

/* Reads to the end: 0 for an orderly one, else the socket's error (-ECONNRESET). */
static inline int net_read_end(uv_loop_t *loop, int fd, struct hf_buf *b)
{
    uint64_t end = hf_mono_ms() + NET_TIMEOUT_MS;
    for (;;) {
        int r = net_recv(fd, b);
        if (r == 0 || (r < 0 && r != -EAGAIN))
            return r;
        if (hf_mono_ms() > end)
            fail_msg("timed out before the end; got \"%.200s\"", b->p ? b->p : "");
        net_turn(loop);
    }
}

/* A listening socket on a free port. */
static inline int net_listen(uint16_t *ret_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *ret_port = ntohs(a.sin_port);
    return fd;
}

static inline int net_accept(uv_loop_t *loop, int listener)
{
    int fd;
    NET_WAIT(loop, (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0);
    return fd;
}
