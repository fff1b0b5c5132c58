/* WebSockets as a load: opens COUNT connections, upgrades each, and then either sends a small frame on every
 * one again and again, waiting for its echo, for SECONDS; or, with SECONDS 0, is silent until stdin ends.
 * Prints "open" once all are open, at the end the number of echoes.
 * Usage: wsload PORT HOST COUNT SECONDS [HEADER] */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS_MAX 256
/* A masked text frame of 32 bytes, as a client sends it. */
#define FRAME_N (2 + 4 + 32)

static char frame[FRAME_N] = {(char)0x81, (char)(0x80 | 32), 1, 2, 3, 4};
static unsigned char got[1 << 20]; /* bytes of the present echo, by fd */

static void die(const char *what)
{
    fprintf(stderr, "wsload: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int dial(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        die("connect");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

static void upgrade(int fd, const char *host, const char *header)
{
    char buf[2048];
    size_t n = 0;
    int len = snprintf(buf, sizeof(buf),
                       "GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                       "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s%s\r\n",
                       host, header, *header ? "\r\n" : "");
    if (send(fd, buf, (size_t)len, MSG_NOSIGNAL) != len)
        die("send");
    do {
        ssize_t k = recv(fd, buf + n, sizeof(buf) - 1 - n, 0);
        if (k <= 0)
            die("upgrade");
        n += (size_t)k;
        buf[n] = '\0';
    } while (!strstr(buf, "\r\n\r\n"));
    if (strncmp(buf, "HTTP/1.1 101", 12) != 0) {
        fprintf(stderr, "wsload: %s\n", buf);
        exit(1);
    }
}

static void put_frame(int fd)
{
    got[fd] = 0;
    if (send(fd, frame, FRAME_N, MSG_NOSIGNAL) != FRAME_N)
        die("send");
}

static uint64_t echo(int ep, double seconds)
{
    struct epoll_event events[EVENTS_MAX];
    uint64_t echoes = 0;
    for (double end = now_s() + seconds; now_s() < end;) {
        int n = epoll_wait(ep, events, EVENTS_MAX, 100);
        for (int i = 0; i < n; i++) {
            char buf[FRAME_N];
            int fd = events[i].data.fd;
            ssize_t k = recv(fd, buf, sizeof(buf) - got[fd], 0);
            if (k <= 0)
                die("recv");
            got[fd] = (unsigned char)(got[fd] + k);
            if (got[fd] < FRAME_N)
                continue;
            echoes++;
            put_frame(fd);
        }
    }
    return echoes;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: wsload PORT HOST COUNT SECONDS [HEADER]\n");
        return 2;
    }
    long port = strtol(argv[1], NULL, 10), count = strtol(argv[3], NULL, 10);
    double seconds = strtod(argv[4], NULL);
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0) {
        l.rlim_cur = l.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &l);
    }
    int ep = epoll_create1(EPOLL_CLOEXEC);
    int *fds = calloc((size_t)count, sizeof(*fds));
    for (long i = 0; i < count; i++) {
        fds[i] = dial((int)port);
        upgrade(fds[i], argv[2], argc > 5 ? argv[5] : "");
        struct epoll_event ev = {.events = EPOLLIN, .data.fd = fds[i]};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &ev) < 0)
            die("epoll");
    }
    printf("open\n");
    (void)fflush(stdout);
    if (seconds <= 0) {
        char c;
        while (read(STDIN_FILENO, &c, 1) > 0)
            ;
        return 0;
    }
    for (long i = 0; i < count; i++)
        put_frame(fds[i]);
    printf("%llu\n", (unsigned long long)echo(ep, seconds));
    free(fds);
    return 0;
}
