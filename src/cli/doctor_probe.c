/* Children for the doctor's probes. */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/path.h"
#include "cli/doctor.h"

/* Uids of the probe's namespace, outside: any range will do, nothing on disk gets them. */
#define MAP_BASE 0x70000000u
#define MAP_COUNT 65536u

void hf_check_set(struct hf_check_result *r, enum hf_check_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    r->status = status;
    (void)vsnprintf(r->detail, sizeof(r->detail), fmt, ap);
    va_end(ap);
}

void hf_check_cost(struct hf_check_result *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(r->cost, sizeof(r->cost), fmt, ap);
    va_end(ap);
}

void hf_check_fix(struct hf_check_result *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(r->fix, sizeof(r->fix), fmt, ap);
    va_end(ap);
}

int hf_probe_run(const char *program, const char *const argv[], struct hf_buf *out)
{
    extern char **environ;
    posix_spawn_file_actions_t acts;
    int fds[2];
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    hf_auto_close int from = fds[0], to = fds[1];
    if (posix_spawn_file_actions_init(&acts) != 0)
        return -ENOMEM;
    int r = posix_spawn_file_actions_adddup2(&acts, to, 1);
    if (r == 0)
        r = posix_spawn_file_actions_addopen(&acts, 2, "/dev/null", O_WRONLY, 0);
    if (r == 0)
        r = posix_spawn(&pid, program, &acts, NULL, (char *const *)(uintptr_t)argv, environ);
    (void)posix_spawn_file_actions_destroy(&acts);
    if (r)
        return -r;
    to = hf_close(to);
    for (ssize_t n = 1; r == 0 && n > 0;) {
        r = hf_buf_reserve(out, 65536);
        n = r < 0 ? 0 : read(from, out->p + out->n, 65535);
        out->n += (size_t)HF_MAX(n, (ssize_t)0);
    }
    from = hf_close(from);
    int status = 0;
    if (waitpid(pid, &status, 0) < 0 || status)
        return -EIO;
    return r;
}

long long hf_probe_number(const char *path)
{
    hf_auto_free char *text = NULL;
    size_t n = 0;
    char *end;
    if (hf_read_file(path, 256, &text, &n) < 0)
        return -1;
    long long v = strtoll(text, &end, 10);
    return end == text ? -1 : v;
}

static HF_NORETURN void child(int pipe_w, int (*fn)(void *arg, struct hf_err *err), void *arg)
{
    struct hf_err err = {0};
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* A tool that complains on stderr would break the table. */
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null >= 0 && fd <= 2; fd++)
        (void)dup2(null, fd);
    int r = fn(arg, &err);
    err.r = r;
    ssize_t w = write(pipe_w, &err, sizeof(err)); /* smaller than PIPE_BUF: whole or not at all */
    _exit(w == (ssize_t)sizeof(err) ? 0 : 1);
}

/* Waits for the child's words. */
static int listen_to(int fd, unsigned timeout_ms, struct hf_err *err)
{
    struct hf_err said;
    struct pollfd pfd = {.fd = fd, .events = POLLIN};
    uint64_t until = hf_mono_ms() + timeout_ms;
    for (;;) {
        uint64_t now = hf_mono_ms();
        int n = poll(&pfd, 1, now < until ? (int)(until - now) : 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            return hf_err_set(err, -ETIMEDOUT, "no end after %u s", timeout_ms / 1000);
        break;
    }
    if (read(fd, &said, sizeof(said)) != (ssize_t)sizeof(said))
        return hf_err_set(err, -EIO, "the probe died");
    if (said.r < 0)
        *err = said;
    return said.r;
}

int hf_probe(int (*fn)(void *arg, struct hf_err *err), void *arg, unsigned timeout_ms, struct hf_err *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return hf_err_set(err, -errno, "pipe: %s", strerror(errno));
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(ends[0]);
        child(ends[1], fn, arg);
    }
    (void)close(ends[1]);
    int r =
        pid < 0 ? hf_err_set(err, -errno, "fork: %s", strerror(errno)) : listen_to(ends[0], timeout_ms, err);
    (void)close(ends[0]);
    if (pid > 0) {
        /* Both ways to name it: the child may not have made its group yet. */
        (void)kill(-pid, SIGKILL);
        (void)kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    return r;
}

static int write_map(pid_t pid, const char *file, const char *text, struct hf_err *err)
{
    hf_auto_free char *path = hf_xasprintf("/proc/%d/%s", pid, file);
    int r = hf_write_existing(path, text);
    return r < 0 ? hf_err_set(err, r, "writing %s: %s", file, strerror(-r)) : 0;
}

static int map_ids(pid_t pid, struct hf_err *err)
{
    hf_auto_free char *uids = NULL, *gids = NULL;
    int r = 0;
    if (geteuid() == 0) {
        uids = hf_xasprintf("0 %u %u\n", MAP_BASE, MAP_COUNT);
        gids = hf_xstrdup(uids);
    } else {
        uids = hf_xasprintf("0 %u 1\n", geteuid());
        gids = hf_xasprintf("0 %u 1\n", getegid());
        r = write_map(pid, "setgroups", "deny", err);
    }
    if (r == 0)
        r = write_map(pid, "uid_map", uids, err);
    return r < 0 ? r : write_map(pid, "gid_map", gids, err);
}

struct inner {
    int go_r, say_w;
    int (*fn)(void *arg, struct hf_err *err);
    void *arg;
};

static HF_NORETURN void inner_main(const struct inner *in)
{
    char go;
    struct hf_err err = {0};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(in->go_r, &go, 1) != 1)
        _exit(1);
    /* Become root of the namespace: before the map was written we were nobody. */
    if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        err.r = hf_err_set(&err, -errno, "becoming root in the namespace: %s", strerror(errno));
    else
        err.r = in->fn(in->arg, &err);
    ssize_t w = write(in->say_w, &err, sizeof(err));
    _exit(w == (ssize_t)sizeof(err) ? 0 : 1);
}

/* ret_fd (may be NULL) gets the user namespace. */
static int in_userns(int flags, const struct inner *in, int go_w, int say_r, int *ret_fd, struct hf_err *err)
{
    pid_t pid = (pid_t)syscall(SYS_clone, (long)(flags | CLONE_NEWUSER | SIGCHLD), 0L, 0L, 0L, 0L);
    if (pid == 0)
        inner_main(in);
    if (pid < 0)
        return hf_err_set(err, -errno, "clone: %s", strerror(errno));
    int r = map_ids(pid, err);
    if (r == 0 && ret_fd) {
        hf_auto_free char *path = hf_xasprintf("/proc/%d/ns/user", pid);
        *ret_fd = open(path, O_RDONLY | O_CLOEXEC);
        r = *ret_fd < 0 ? hf_err_set(err, -errno, "opening the namespace: %s", strerror(errno)) : 0;
    }
    if (r == 0 && write(go_w, "g", 1) != 1)
        r = hf_err_set(err, -EIO, "the process in the namespace died");
    if (r == 0)
        r = listen_to(say_r, HF_PROBE_MS, err);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    return r;
}

static int run_inner(int flags, int (*fn)(void *arg, struct hf_err *err), void *arg, int *ret_fd,
                     struct hf_err *err)
{
    int go[2] = {-1, -1}, say[2] = {-1, -1};
    int r = -EIO;
    if (pipe2(go, O_CLOEXEC) == 0 && pipe2(say, O_CLOEXEC) == 0) {
        struct inner in = {go[0], say[1], fn, arg};
        r = in_userns(flags, &in, go[1], say[0], ret_fd, err);
    }
    for (size_t i = 0; i < 2; i++) {
        (void)hf_close(go[i]);
        (void)hf_close(say[i]);
    }
    return r;
}

int hf_probe_in_userns(int flags, int (*fn)(void *arg, struct hf_err *err), void *arg, struct hf_err *err)
{
    return run_inner(flags, fn, arg, NULL, err);
}

static int nothing(void *arg, struct hf_err *err)
{
    (void)arg;
    (void)err;
    return 0;
}

int hf_probe_userns_fd(int *ret_fd, struct hf_err *err)
{
    return run_inner(0, nothing, NULL, ret_fd, err);
}
