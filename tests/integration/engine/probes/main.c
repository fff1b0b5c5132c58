#include "probes.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct host_facts facts;
static char reason[400];

bool no(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    return false;
}

bool refused(long r, const char *what, ...)
{
    int e = errno;
    if (r >= 0)
        return no("%s succeeded", what);
    va_list ap;
    va_start(ap, what);
    bool ok = false;
    for (int want; !ok && (want = va_arg(ap, int));)
        ok = e == want;
    va_end(ap);
    return ok || no("%s failed with %s", what, strerror(e));
}

bool denied(long r, const char *what)
{
    return refused(r, what, EPERM, 0);
}

int in_child(int (*fn)(void))
{
    (void)fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        _exit(fn());
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return -1;
    return status;
}

static int run(const struct probe *p)
{
    int bad = 0;
    for (; p->number; p++) {
        reason[0] = '\0';
        if (p->fn()) {
            printf("ok %d\n", p->number);
        } else {
            printf("not ok %d %s\n", p->number, reason);
            bad++;
        }
    }
    return bad;
}

int main(int argc, char **argv)
{
    int mode = run_mode(argc, argv);
    if (mode >= 0)
        return mode;
    if (argc != 4) {
        (void)fprintf(stderr, "usage: probes HOST-PATH HOST-PID ABSTRACT-SOCKET\n");
        return 2;
    }
    facts = (struct host_facts){argv[1], (int)strtol(argv[2], NULL, 10), argv[3]};
    (void)signal(SIGCHLD, SIG_DFL);
    int bad = run(file_probes) + run(kernel_probes) + run(process_probes);
    printf("%d failed\n", bad);
    return bad > 0;
}
