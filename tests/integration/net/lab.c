#include "lab.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/id.h"

extern char **environ;
struct lab lab;
static char lab_boxes[64];

/* ---- commands ---- */

struct command {
    const char *text;
    pid_t pid;
};

static int spawn_sh(void *arg)
{
    struct command *c = arg;
    char *const argv[] = {(char *)"sh", (char *)"-ec", (char *)c->text, NULL};
    return -posix_spawn(&c->pid, "/bin/sh", NULL, NULL, argv, environ);
}

int lab_sh(int ns_fd, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    assert_true(n > 0);
    struct command c = {text, 0};
    int r = ns_fd < 0 ? spawn_sh(&c) : hf_ns_run(ns_fd, spawn_sh, &c), status = 0;
    assert_int_equal(r, 0);
    assert_int_equal(waitpid(c.pid, &status, 0), c.pid);
    free(text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- the internet ---- */

#define SOCKETS_MAX 512

static void serve(struct pollfd *p, size_t *n, size_t i)
{
    char buf[65536];
    int type;
    socklen_t type_n = sizeof(type), from_n;
    struct sockaddr_storage from;
    (void)getsockopt(p[i].fd, SOL_SOCKET, SO_TYPE, &type, &type_n);
    int listening = 0;
    (void)getsockopt(p[i].fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &type_n);
    if (listening) {
        int fd = accept4(p[i].fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && *n < SOCKETS_MAX)
            p[(*n)++] = (struct pollfd){fd, POLLIN, 0};
        return;
    }
    from_n = sizeof(from);
    ssize_t got = recvfrom(p[i].fd, buf, sizeof(buf), MSG_DONTWAIT, (struct sockaddr *)&from, &from_n);
    if (type == SOCK_DGRAM) {
        if (got >= 0)
            (void)!sendto(p[i].fd, buf, (size_t)got, MSG_DONTWAIT, (struct sockaddr *)&from, from_n);
        return;
    }
    if (got > 0 && buf[0] == '!') { /* a burst later: a download that the other side only waits for */
        usleep(300000);
        (void)!send(p[i].fd, buf, (size_t)got, MSG_NOSIGNAL);
    } else if (got > 0) {
        (void)!send(p[i].fd, buf, (size_t)got, MSG_NOSIGNAL);
    } else if (got == 0 || errno != EAGAIN) {
        (void)close(p[i].fd);
        p[i] = p[--*n];
    }
}

static void *servers(void *arg)
{
    static struct pollfd p[SOCKETS_MAX];
    size_t n = 0;
    for (int *fd = arg; *fd >= 0; fd++)
        p[n++] = (struct pollfd){*fd, POLLIN, 0};
    for (;;) {
        (void)poll(p, n, -1);
        for (size_t i = n; i-- > 0;)
            if (p[i].revents)
                serve(p, &n, i);
    }
    return NULL;
}

int lab_listen(int fd, const char *addr, uint16_t port)
{
    struct sockaddr_storage ss;
    struct hf_addr a = lab_addr(addr);
    int on = 1;
    assert_true(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    (void)setsockopt(fd, SOL_IP, IP_FREEBIND, &on, sizeof(on));
    if (a.family == 6)
        (void)setsockopt(fd, SOL_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    socklen_t n = hf_addr_to_sockaddr(&a, port, &ss);
    assert_int_equal(bind(fd, (struct sockaddr *)&ss, n), 0);
    (void)listen(fd, 128);
    return fd;
}

static void start_servers(int host_fd)
{
    static int fds[8];
    int in = lab.internet_fd;
    fds[0] = lab_listen(hf_ns_socket(in, AF_INET, SOCK_STREAM, 0), "0.0.0.0", LAB_PORT);
    fds[1] = lab_listen(hf_ns_socket(in, AF_INET6, SOCK_STREAM, 0), "::", LAB_PORT);
    fds[2] = lab_listen(hf_ns_socket(in, AF_INET, SOCK_DGRAM, 0), LAB_V4, LAB_PORT);
    fds[3] = lab_listen(hf_ns_socket(in, AF_INET6, SOCK_DGRAM, 0), LAB_V6, LAB_PORT);
    fds[4] = lab_listen(hf_ns_socket(host_fd, AF_INET, SOCK_STREAM, 0), "0.0.0.0", LAB_PORT);
    fds[5] = lab_listen(hf_ns_socket(in, AF_INET, SOCK_DGRAM, 0), LAB_V4, 443);
    fds[6] = -1;
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, servers, fds), 0);
    (void)pthread_detach(t);
}

int lab_open(int *ret)
{
    struct hf_net_caps caps;
    hf_net_probe(&caps);
    if (geteuid() != 0 || !caps.ok) {
        (void)fprintf(stderr, "skipped: needs root and nf_tables (%s)\n", caps.missing);
        *ret = 77;
        return -1;
    }
    uint32_t id = (uint32_t)getpid();
    (void)snprintf(lab.id, sizeof(lab.id), "7e%06x", id & 0xffffff);
    (void)snprintf(lab.host_path, sizeof(lab.host_path), "/run/netns/hf-net-%d-host", getpid());
    (void)snprintf(lab.internet_path, sizeof(lab.internet_path), "/run/netns/hf-net-%d-inet", getpid());
    (void)snprintf(lab_boxes, sizeof(lab_boxes), "/run/netns/hf-net-%d-b", getpid());
    lab.cfg = (struct hf_net_config){
        lab.id, "10.117.0.0/16", "fd68:6f6c:6466:1::/64", "10.118.0.0/16", "fd68:6f6c:6466:ff00::/56", true};
    struct hf_err err = {0};
    bool made;
    int host_fd;
    if (hf_ns_pin(lab.host_path, &host_fd, &made, &err) < 0 ||
        hf_ns_pin(lab.internet_path, &lab.internet_fd, &made, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.msg);
        *ret = 1;
        return -1;
    }
    if (setns(host_fd, CLONE_NEWNET) < 0)
        abort();
    const char *inside =
        "ip link set lo up\nip addr add 203.0.113.2/24 dev up0\nip addr add 2001:db8:ffff::2/64 dev up0 "
        "nodad\n"
        "ip link set up0 up\n"
        "for a in 192.0.2.0/24 198.51.100.0/24 10.9.9.0/24 169.254.169.254/32 100.100.100.200/32; do ip "
        "route add local $a dev lo; done\n"
        "for a in 2001:db8:1::/48 fd12::/64 64:ff9b::/96; do ip -6 route add local $a dev lo; done\n"
        "ip route add default via 203.0.113.1\nip -6 route add default via 2001:db8:ffff::1\n";
    assert_int_equal(
        lab_sh(-1,
               "ip link set lo up\n"
               "ip link add inet0 type veth peer name up0 netns hf-net-%d-inet\n"
               "ip addr add 203.0.113.1/24 dev inet0\nip addr add 2001:db8:ffff::1/64 dev inet0 nodad\n"
               "ip link set inet0 up\nip route add default via 203.0.113.2\nip -6 route add default via "
               "2001:db8:ffff::2\n",
               getpid()),
        0);
    assert_int_equal(lab_sh(lab.internet_fd, "%s", inside), 0);
    start_servers(host_fd);
    return 0;
}

void lab_close(void)
{
    (void)!hf_ns_unpin(lab.internet_path, NULL);
    (void)!hf_ns_unpin(lab.host_path, NULL);
}

/* ---- boxes ---- */

int lab_box(struct hf_net *n, uint32_t key)
{
    char path[96];
    bool made;
    int fd;
    struct hf_err err = {0};
    (void)snprintf(path, sizeof(path), "%s%u", lab_boxes, key);
    assert_int_equal(hf_ns_pin(path, &fd, &made, &err), 0);
    int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    assert_int_equal(setns(fd, CLONE_NEWNET), 0);
    int r = hf_net_link_up(&lab.cfg, hf_net_ns_fd(n), key, &err);
    assert_int_equal(setns(home, CLONE_NEWNET), 0);
    (void)close(home);
    if (r < 0)
        fail_msg("%s", err.msg);
    return fd;
}

void lab_box_end(struct hf_net *n, uint32_t key, int fd)
{
    char path[96];
    (void)snprintf(path, sizeof(path), "%s%u", lab_boxes, key);
    assert_int_equal(hf_net_forget(n, key, NULL), 0);
    assert_int_equal(hf_net_link_down(hf_net_ns_fd(n), key, NULL), 0);
    (void)close(fd);
    assert_int_equal(hf_ns_unpin(path, NULL), 0);
}

/* ---- traffic ---- */

struct hf_addr lab_addr(const char *text)
{
    struct hf_addr a = {0};
    if (hf_addr_parse(hf_str_c(text), &a) < 0)
        fail_msg("%s", text);
    return a;
}

struct hf_cidr lab_cidr(const char *text)
{
    struct hf_cidr c = {0};
    if (hf_cidr_parse(hf_str_c(text), &c) < 0)
        fail_msg("%s", text);
    return c;
}

static int wait_for(int fd, short events, int ms)
{
    struct pollfd p = {fd, events, 0};
    int r = poll(&p, 1, ms);
    if (r == 0)
        return -ETIMEDOUT;
    int error = 0;
    socklen_t n = sizeof(error);
    if (r < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) < 0)
        return -errno;
    return -error;
}

static int open_to(int ns_fd, const char *addr, uint16_t port, int type)
{
    struct sockaddr_storage ss;
    struct hf_addr a = lab_addr(addr);
    hf_auto_close int fd = hf_ns_socket(ns_fd, a.family == 6 ? AF_INET6 : AF_INET, type | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fd;
    socklen_t n = hf_addr_to_sockaddr(&a, port, &ss);
    if (connect(fd, (struct sockaddr *)&ss, n) < 0 && errno != EINPROGRESS)
        return -errno;
    return hf_take_fd(&fd);
}

int lab_dial(int ns_fd, const char *addr, uint16_t port, int ms)
{
    hf_auto_close int fd = open_to(ns_fd, addr, port, SOCK_STREAM);
    if (fd < 0)
        return fd;
    int r = wait_for(fd, POLLOUT, ms);
    return r < 0 ? r : hf_take_fd(&fd);
}

int lab_echo(int fd, int ms)
{
    char c = 'x';
    if (send(fd, &c, 1, MSG_NOSIGNAL) < 0)
        return -errno;
    int r = wait_for(fd, POLLIN, ms);
    if (r < 0)
        return r;
    ssize_t n = recv(fd, &c, 1, 0);
    return n < 0 ? -errno : n == 0 ? -EPIPE : 0;
}

int lab_udp(int ns_fd, const char *addr, uint16_t port, int ms)
{
    hf_auto_close int fd = open_to(ns_fd, addr, port, SOCK_DGRAM);
    return fd < 0 ? fd : lab_echo(fd, ms);
}
