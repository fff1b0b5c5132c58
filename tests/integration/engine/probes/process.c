/* Statements about processes: 19, 22, 24, 31, 32, 34, 35. */
#include "probes.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static bool p19_memlock(void)
{
    struct rlimit l;
    return (getrlimit(RLIMIT_MEMLOCK, &l) == 0 && l.rlim_max <= (8u << 20)) ||
           no("memory can be locked without end");
}

static bool p22_others(void)
{
    char c;
    struct iovec mine = {&c, 1}, theirs = {(void *)0x1000, 1};
    return refused(ptrace(PTRACE_ATTACH, facts.pid, NULL, NULL), "ptrace of a host process", ESRCH, EPERM,
                   0) &&
           refused(process_vm_readv(facts.pid, &mine, 1, &theirs, 1, 0), "process_vm_readv", ESRCH, EPERM,
                   0) &&
           denied(syscall(SYS_pidfd_getfd, 0, 0, 0), "pidfd_getfd") &&
           refused(syscall(SYS_pidfd_open, facts.pid, 0), "pidfd_open of a host process", ESRCH, 0);
}

static bool p23_own_processes(void)
{
    DIR *d = opendir("/proc");
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        n += isdigit((unsigned char)e->d_name[0]) != 0;
    if (d)
        (void)closedir(d);
    return (n > 0 && n < 30) || no("%d processes are visible", n);
}

static bool p24_secrets(void)
{
    static const char *const known[] = {"PATH=", "HOLDFAST_CGROUP_FDS=", "HOLDFAST_CPU_COUNT="};
    char buf[4096];
    int fd = open("/proc/1/environ", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES || no("/proc/1/environ: %s", strerror(errno));
    ssize_t n = read(fd, buf, sizeof(buf) - 1);
    (void)close(fd);
    if (n < 0)
        return true;
    buf[n] = '\0';
    for (char *p = buf; p < buf + n; p += strlen(p) + 1) {
        bool ok = false;
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            ok |= strncmp(p, known[i], strlen(known[i])) == 0;
        if (!ok)
            return no("PID 1's environment holds %s", p);
    }
    return true;
}

static bool p31_abstract(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = strlen(facts.abstract);
    memcpy(a.sun_path + 1, facts.abstract, n);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return refused(
        connect(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)),
        "an abstract socket of the host", ECONNREFUSED, 0);
}

/* What PID 1 holds is what the shim gave it: sockets, a pipe, /dev/null and files of its own cgroup. */
static bool p31_descriptors(void)
{
    DIR *d = opendir("/proc/1/fd");
    if (!d)
        return errno == EACCES || no("/proc/1/fd: %s", strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        char link[512], path[300];
        (void)snprintf(path, sizeof(path), "/proc/1/fd/%s", e->d_name);
        ssize_t n = readlink(path, link, sizeof(link) - 1);
        if (n < 0)
            continue;
        link[n] = '\0';
        if (strncmp(link, "socket:", 7) != 0 && strncmp(link, "pipe:", 5) != 0 &&
            strncmp(link, "anon_inode:", 11) != 0 && strcmp(link, "/dev/null") != 0 &&
            strncmp(link, "/sys/fs/cgroup/", 15) != 0 && strstr(link, "/holdfast/") == NULL)
            return no("PID 1 holds %s", link);
    }
    return closedir(d) == 0;
}

static int crash(void)
{
    (void)kill(getpid(), SIGSEGV);
    return 0;
}

static bool p32_core(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_CORE, &l) < 0 || l.rlim_max > 1)
        return no("core dumps are allowed");
    int status = in_child(crash);
    return (WIFSIGNALED(status) && !WCOREDUMP(status)) || no("a crash ended with status %x", status);
}

static bool p34_signals(void)
{
    return refused(kill(facts.pid, 0), "a signal to a host pid", ESRCH, 0) &&
           refused(kill(-facts.pid, 0), "a signal to a host group", ESRCH, 0);
}

static int exhaust_descriptors(void)
{
    int fd = 0;
    for (int i = 0; i < 2000000 && fd >= 0; i++)
        fd = dup(2);
    return fd < 0 && errno == EMFILE ? 0 : 1;
}

static bool p35_limits(void)
{
    static const int resources[] = {RLIMIT_NOFILE, RLIMIT_CORE, RLIMIT_MEMLOCK, RLIMIT_NICE, RLIMIT_RTPRIO};
    for (size_t i = 0; i < sizeof(resources) / sizeof(resources[0]); i++) {
        struct rlimit l;
        if (getrlimit(resources[i], &l) < 0)
            return no("getrlimit failed");
        if (l.rlim_max == RLIM_INFINITY)
            return no("limit %d is infinite", resources[i]);
        l.rlim_max++;
        if (!denied(setrlimit(resources[i], &l), "raising a hard limit"))
            return false;
    }
    return in_child(exhaust_descriptors) == 0 || no("descriptors have no end");
}

const struct probe process_probes[] = {
    {19, p19_memlock},     {22, p22_others}, {23, p23_own_processes}, {24, p24_secrets}, {31, p31_abstract},
    {31, p31_descriptors}, {32, p32_core},   {34, p34_signals},       {35, p35_limits},  {0, NULL},
};
