/* PID 1's way from clone3 to envd. Runs in the box's namespaces, still with the host's root directory and
 * every capability over the new user namespace; ends in execve with neither. */
#include <fcntl.h>
#include <grp.h>
#include <linux/keyctl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/path.h"
#include "engine/shim/shim.h"

#define FD_CTL 3
#define FD_ENVD 4
#define FD_CGROUP 5 /* and the four after it */
#define FD_END 10   /* nothing from here on survives execve */

static int wait_for_parent(int sync_fd)
{
    char c;
    ssize_t n;
    do
        n = recv(sync_fd, &c, 1, 0);
    while (n < 0 && errno == EINTR);
    return n == 1 ? 0 : -EPIPE; /* the shim is dead */
}

static int become_root(struct hf_err *err)
{
    if (setresgid(0, 0, 0) < 0 || setgroups(0, NULL) < 0 || setresuid(0, 0, 0) < 0)
        return hf_err_set(err, -errno, "cannot become root of the sandbox: %s", strerror(errno));
    return 0;
}

int shim_loopback_up(struct hf_err *err)
{
    struct ifreq ifr = {.ifr_flags = IFF_UP | IFF_RUNNING};
    (void)snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "lo");
    hf_auto_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &ifr) < 0)
        return hf_err_set(err, -errno, "cannot bring the loopback interface up: %s", strerror(errno));
    return 0;
}

static int enter_namespaces(const struct shim *s, struct hf_err *err)
{
    const char *name = s->spec.sandbox_id[0] ? s->spec.sandbox_id : "sandbox";
    if (sethostname(name, strlen(name)) < 0)
        return hf_err_set(err, -errno, "cannot set the host name: %s", strerror(errno));
    if (setsid() < 0)
        return hf_err_set(err, -errno, "cannot start a session: %s", strerror(errno));
    (void)syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING,
                  NULL); /* not the daemon's; absent in some kernels */
    return shim_loopback_up(err);
}

/* What the shim ignores; the rest it got as defaults from the daemon. */
static void reset_signals(void)
{
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGHUP, SIG_DFL);
}

/* Arranges 0..FD_END-1 for envd. All sources are first moved out of that range. */
static int place_fds(const struct shim *s, int *sync_fd, int stderr_fd, struct hf_err *err)
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0)
        return hf_err_set(err, -errno, "cannot open /dev/null: %s", strerror(errno));
    int source[FD_END] = {
        null_fd,           null_fd,
        stderr_fd,         s->ctl_fd,
        s->envd_sock_fd,   s->cg_fds.mem_current,
        s->cg_fds.mem_max, s->cg_fds.mem_stat,
        s->cg_fds.cpu,     s->cg_fds.user_threads,
    };
    *sync_fd = fcntl(*sync_fd, F_DUPFD_CLOEXEC, FD_END);
    for (int i = 0; i < FD_END; i++)
        source[i] = source[i] < 0 ? -1 : fcntl(source[i], F_DUPFD_CLOEXEC, FD_END);
    for (int i = 0; i < FD_END; i++) {
        if (source[i] < 0)
            (void)close(i);
        else if (dup2(source[i], i) < 0)
            return hf_err_set(err, -errno, "cannot place a descriptor: %s", strerror(errno));
    }
    /* The sync socket tells the shim by its end that execve succeeded; everything else goes now. */
    if (dup3(*sync_fd, FD_END, O_CLOEXEC) < 0 && *sync_fd != FD_END)
        return hf_err_set(err, -errno, "cannot place a descriptor: %s", strerror(errno));
    *sync_fd = FD_END;
    if (syscall(SYS_close_range, FD_END + 1, ~0u, 0) < 0)
        return hf_err_set(err, -errno, "cannot close descriptors: %s", strerror(errno));
    return 0;
}

/* The shim's end kills PID 1, and with it the namespace. Set after the last change of ids, which clears it;
 * the answer proves that the shim was alive afterwards. */
static int tie_to_parent(int sync_fd, struct hf_err *err)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return hf_err_set(err, -errno, "cannot set the parent death signal: %s", strerror(errno));
    if (send(sync_fd, "p", 1, MSG_NOSIGNAL) != 1 || wait_for_parent(sync_fd) < 0)
        _exit(1);
    /* Only now: on cgroup v1 we have been moved meanwhile, and the namespace's root is where we are. */
    if (unshare(CLONE_NEWCGROUP) < 0)
        return hf_err_set(err, -errno, "cannot make a cgroup namespace: %s", strerror(errno));
    return 0;
}

static int prepare(const struct shim *s, int *sync_fd, int stderr_fd, struct hf_err *err)
{
    if (wait_for_parent(*sync_fd) < 0)
        _exit(1);
    reset_signals();
    /* While we still are the host's root to path permissions. */
    hf_auto_close int dir_fd = open(s->spec.dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        return hf_err_set(err, -errno, "cannot open %s: %s", s->spec.dir, strerror(errno));
    int r = become_root(err);
    if (r == 0)
        r = enter_namespaces(s, err);
    if (r == 0)
        r = shim_root_build(s, dir_fd, err);
    if (r == 0)
        r = place_fds(s, sync_fd, stderr_fd, err);
    if (r == 0)
        r = shim_limit_resources(err);
    if (r == 0)
        r = tie_to_parent(*sync_fd, err);
    return r == 0 ? shim_drop_privileges(err) : r;
}

void shim_inside(const struct shim *s, int sync_fd, int stderr_fd)
{
    static char path_env[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    static char fds_env[96], cpu_env[48];
    static char arg0[] = "/run/holdfast/envd";
    const struct hf_cg_fds *c = &s->cg_fds;
    (void)snprintf(fds_env, sizeof(fds_env), "HOLDFAST_CGROUP_FDS=%d,%d,%d,%d,%d",
                   c->mem_current < 0 ? -1 : FD_CGROUP, c->mem_max < 0 ? -1 : FD_CGROUP + 1,
                   c->mem_stat < 0 ? -1 : FD_CGROUP + 2, c->cpu < 0 ? -1 : FD_CGROUP + 3,
                   c->user_threads < 0 ? -1 : FD_CGROUP + 4);
    (void)snprintf(cpu_env, sizeof(cpu_env), "HOLDFAST_CPU_COUNT=%u",
                   (s->spec.limits.cpu_millis + 999u) / 1000u);
    char *argv[] = {arg0, NULL};
    char *envp[] = {path_env, fds_env, cpu_env, NULL};
    struct hf_err err = {0};
    (void)umask(022);
    int r = prepare(s, &sync_fd, stderr_fd, &err);
    if (r == 0) {
        (void)execve(arg0, argv, envp);
        r = hf_err_set(&err, -errno, "cannot execute envd in the sandbox: %s", strerror(errno));
    }
    struct shim_report report = {.r = r};
    (void)snprintf(report.msg, sizeof(report.msg), "%.*s", (int)sizeof(report.msg) - 1, err.msg);
    (void)send(sync_fd, &report, sizeof(report), MSG_NOSIGNAL);
    _exit(1);
}
