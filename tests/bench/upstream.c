/* The app behind the proxies in ./dev bench: answers every request on a keep-alive connection with the same
 * small body, GET /mib with a MiB of zeros, and an upgrade with 101 and an echo of all that follows. One
 * thread, epoll, no parsing beyond the end of the head: it must cost as little as possible.
 * Usage: upstream PORT. Static, so that it also runs inside a sandbox. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS_MAX 256
#define READ_MAX 65536
#define FDS_MAX 65536

static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 27\r\n\r\n"
                             "{\"message\":\"hello, world\"}\n";

/* The answer to the one key that wsload sends. */
static const char switching[] =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
    "Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
static const char mib_head[] = "HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n";
static char mib[sizeof(mib_head) - 1 + 1048576];
static bool echoes[FDS_MAX];

/* Sockets are blocking: whoever does not read holds up the others, which no bench does. */
static void send_all(int fd, const char *p, size_t n)
{
    for (ssize_t k; n && (k = send(fd, p, n, MSG_NOSIGNAL)) > 0; p += k, n -= (size_t)k)
        ;
}

static void serve(int fd)
{
    static char buf[READ_MAX + 1];
    ssize_t n = recv(fd, buf, READ_MAX, 0);
    if (n <= 0) {
        echoes[fd] = false;
        (void)close(fd);
        return;
    }
    if (echoes[fd]) {
        send_all(fd, buf, (size_t)n);
        return;
    }
    buf[n] = '\0';
    if (strcasestr(buf, "\r\nUpgrade: ")) {
        echoes[fd] = true;
        send_all(fd, switching, sizeof(switching) - 1);
        return;
    }
    if (strncmp(buf, "GET /mib ", 9) == 0) {
        send_all(fd, mib, sizeof(mib));
        return;
    }
    /* Heads of GET requests arrive whole on loopback; one answer for each. */
    for (char *p = buf; (p = strstr(p, "\r\n\r\n")); p += 4)
        if (send(fd, answer, sizeof(answer) - 1, MSG_NOSIGNAL) < 0)
            break;
}

static int listen_on(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
        bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 1024)) {
        perror("upstream: listen");
        exit(1);
    }
    return fd;
}

int main(int argc, char **argv)
{
    long port = argc == 2 ? strtol(argv[1], NULL, 10) : 0;
    if (port <= 0 || port > 65535) {
        fprintf(stderr, "usage: upstream PORT\n");
        return 2;
    }
    int server = listen_on((int)port), ep = epoll_create1(EPOLL_CLOEXEC), one = 1;
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = server}, events[EVENTS_MAX];
    if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, server, &ev))
        return 1;
    memcpy(mib, mib_head, sizeof(mib_head) - 1);
    printf("listening\n");
    (void)fflush(stdout);
    for (;;) {
        int n = epoll_wait(ep, events, EVENTS_MAX, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd != server) {
                serve(events[i].data.fd);
                continue;
            }
            int c = accept4(server, NULL, NULL, SOCK_CLOEXEC);
            if (c < 0 || c >= FDS_MAX)
                continue;
            (void)setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
            ev = (struct epoll_event){.events = EPOLLIN, .data.fd = c};
            (void)epoll_ctl(ep, EPOLL_CTL_ADD, c, &ev);
        }
    }
}
