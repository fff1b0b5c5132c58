/* Stands in for envd in the engine's tests: each connection on descriptor 3 brings a shell script (until its
 * sender's shutdown), runs it in the user cgroup and answers with its output. "#exit N" ends PID 1,
 * "#eat" makes PID 1 itself use memory without end. Static; needs /bin/sh in the image. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SCRIPT_MAX 65536
#define CHUNK (1u << 20)

static void join_user_group(void)
{
    const char *fds = getenv("HOLDFAST_CGROUP_FDS");
    const char *last = fds ? strrchr(fds, ',') : NULL;
    int fd = last ? (int)strtol(last + 1, NULL, 10) : -1;
    if (fd >= 0 && write(fd, "0", 1) != 1)
        perror("cannot join the user cgroup");
}

static void eat(void)
{
    for (;;) {
        char *p = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p != MAP_FAILED)
            memset(p, 1, CHUNK);
    }
}

static void serve(int c)
{
    static char script[SCRIPT_MAX];
    size_t n = 0;
    for (ssize_t r; n + 1 < sizeof(script) && (r = read(c, script + n, sizeof(script) - 1 - n)) > 0;)
        n += (size_t)r;
    script[n] = '\0';
    if (strncmp(script, "#exit ", 6) == 0) {
        fprintf(stderr, "the guest was told to end\n");
        exit((int)strtol(script + 6, NULL, 10));
    }
    if (strncmp(script, "#eat", 4) == 0)
        eat();
    pid_t pid = fork();
    if (pid == 0) {
        join_user_group();
        for (int fd = 3; fd < 32; fd++)
            if (fd != c)
                (void)close(fd);
        if (dup2(c, 1) < 0 || dup2(c, 2) < 0)
            _exit(126);
        (void)close(c);
        (void)signal(SIGPIPE, SIG_DFL);
        (void)execl("/bin/sh", "sh", "-c", script, (char *)NULL);
        _exit(127);
    }
    if (pid < 0)
        (void)!write(c, "fork failed\n", 12);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int c = accept4(3, NULL, NULL, SOCK_CLOEXEC);
        if (c < 0) {
            perror("accept");
            return 3;
        }
        serve(c);
        (void)close(c);
    }
}
