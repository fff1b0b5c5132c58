#include "probes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK (1u << 20)

static __attribute__((noreturn)) void eat(void)
{
    for (;;) {
        char *p = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p != MAP_FAILED)
            memset(p, 1, CHUNK);
    }
}

static __attribute__((noreturn)) void forkbomb(void)
{
    for (;;)
        (void)!fork();
}

/* Sends text to the first connection of 127.0.0.1 or [::1]. */
static int listen_once(bool v6, int port, const char *text)
{
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    a4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a6.sin6_addr = in6addr_loopback;
    int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    int r = v6 ? bind(fd, (struct sockaddr *)&a6, sizeof(a6)) : bind(fd, (struct sockaddr *)&a4, sizeof(a4));
    if (r < 0 || listen(fd, 1) < 0) {
        perror("listen");
        return 1;
    }
    int c = accept(fd, NULL, NULL);
    return c < 0 || write(c, text, strlen(text)) < 0;
}

/* Makes empty files until the file system refuses; prints how many and why. */
static int inodes(const char *dir)
{
    char path[256];
    for (int i = 0;; i++) {
        (void)snprintf(path, sizeof(path), "%s/%d", dir, i);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (fd < 0) {
            perror(i > 1000 ? "many files" : "few files");
            return 0;
        }
        (void)close(fd);
    }
}

/* Directories inside each other until the file system refuses or the number is reached. */
static int deep(const char *dir, int levels)
{
    if (chdir(dir) < 0)
        return 1;
    int i = 0;
    while (i < levels && mkdir("d", 0700) == 0 && chdir("d") == 0)
        i++;
    printf("%s\n", i > 100 ? "deep" : "shallow");
    return 0;
}

/* Past the page cache, since cgroup v1 throttles only what a process itself submits. */
static int direct_write(const char *path, int mib)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    char *p = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < mib; i++)
        if (fd < 0 || p == MAP_FAILED || write(fd, p, CHUNK) != (ssize_t)CHUNK) {
            perror("direct write");
            return 1;
        }
    printf("written\n");
    return 0;
}

int run_mode(int argc, char **argv)
{
    if (argc < 2)
        return -1;
    if (strcmp(argv[1], "eat") == 0)
        eat();
    if (strcmp(argv[1], "forkbomb") == 0)
        forkbomb();
    if (strcmp(argv[1], "euid") == 0)
        return printf("%d\n", (int)geteuid()) < 0;
    if (argc == 4 && strcmp(argv[1], "listen4") == 0)
        return listen_once(false, (int)strtol(argv[2], NULL, 10), argv[3]);
    if (argc == 4 && strcmp(argv[1], "listen6") == 0)
        return listen_once(true, (int)strtol(argv[2], NULL, 10), argv[3]);
    if (argc == 3 && strcmp(argv[1], "inodes") == 0)
        return inodes(argv[2]);
    if (argc == 4 && strcmp(argv[1], "deep") == 0)
        return deep(argv[2], (int)strtol(argv[3], NULL, 10));
    if (argc == 4 && strcmp(argv[1], "directwrite") == 0)
        return direct_write(argv[2], (int)strtol(argv[3], NULL, 10));
    return -1;
}
