/* From a spec to a running PID 1, and back to nothing. */
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>

#include "base/fault.h"
#include "base/path.h"
#include "engine/shim/shim.h"

/* Where uid ranges lie: above those of systemd-nspawn (0x80000-0x6fffffff), below 2^31, short of systemd's
 * foreign range (0x7ffe0000). */
#define RANGE_FIRST 0x7000u
#define RANGE_COUNT 4094u

#define CGROUP_REMOVE_TRIES 2000
#define CGROUP_REMOVE_PAUSE_NS 500000

/* _IOR('X', 125, __u32): drop the file system without writing anything back. */
#define EXT4_IOC_SHUTDOWN _IOR('X', 125, uint32_t)
#define EXT4_SHUTDOWN_NOLOGFLUSH 2u
#define SHUTDOWN_MIN_BYTES (64ull << 20)

/* An abstract socket is a host-wide lock that the kernel drops with the process. */
static int reserve_range(struct shim *s, struct hf_err *err)
{
    hf_auto_close int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return hf_err_set(err, -errno, "cannot make a socket: %s", strerror(errno));
    for (uint32_t i = 0; i < RANGE_COUNT; i++) {
        uint32_t range = (s->spec.n - 1 + i) % RANGE_COUNT;
        struct sockaddr_un addr = {.sun_family = AF_UNIX};
        int len = snprintf(addr.sun_path + 1, sizeof(addr.sun_path) - 1, "holdfast/range/%u", range);
        socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
        if (bind(fd, (struct sockaddr *)&addr, size) == 0) {
            s->range_fd = hf_take_fd(&fd);
            s->uid_base = (RANGE_FIRST + range) * HF_CELL_UIDS;
            return 0;
        }
        if (errno != EADDRINUSE)
            return hf_err_set(err, -errno, "cannot reserve an uid range: %s", strerror(errno));
    }
    return hf_err_set(err, -EAGAIN, "all %u uid ranges of this host are in use", RANGE_COUNT);
}

static int write_map(pid_t pid, const char *file, uint32_t base, struct hf_err *err)
{
    char path[48], text[48];
    (void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    (void)snprintf(text, sizeof(text), "0 %u %u", base, HF_CELL_UIDS);
    int r = hf_write_existing(path, text);
    return r < 0 ? hf_err_set(err, r, "cannot write %s: %s", path, strerror(-r)) : 0;
}

static int open_userns(struct shim *s, struct hf_err *err)
{
    char path[48];
    (void)snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)s->pid);
    s->userns_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (s->userns_fd < 0)
        return hf_err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
    return 0;
}

int shim_map_mounts(struct shim *s, struct hf_err *err)
{
    int r = open_userns(s, err);
    if (r == 0)
        r = shim_idmap(s->template_fd, s->userns_fd, err);
    if (r == 0)
        r = shim_idmap(s->upper_fd, s->userns_fd, err);
    for (size_t i = 0; r == 0 && i < s->spec.n_mounts; i++)
        r = shim_idmap(s->volume_fd[i], s->userns_fd, err);
    return r;
}

static int map_ids(struct shim *s, struct hf_err *err)
{
    int r = write_map(s->pid, "uid_map", s->uid_base, err);
    if (r == 0)
        r = write_map(s->pid, "gid_map", s->uid_base, err);
    return r == 0 ? shim_map_mounts(s, err) : r;
}

/* From here on sockets made by the shim, and the host name that it sets, are the box's. The shim needs no
 * network and no host name of its own. */
int shim_join(struct shim *s, struct hf_err *err)
{
    if (setns(s->pidfd, CLONE_NEWNET | CLONE_NEWUTS) < 0)
        return hf_err_set(err, -errno, "cannot join the sandbox's network: %s", strerror(errno));
    return 0;
}

static int make_cgroup(struct shim *s, struct hf_err *err)
{
    s->cg_made = true;
    int r = hf_cg_create(&s->cg, s->spec.n, err);
    if (r == 0)
        r = hf_cg_limit(&s->cg, s->spec.n, &s->spec.limits, s->disk_dev, err);
    if (r < 0)
        return r;
    hf_cg_open(&s->cg, s->spec.n, &s->cg_fds);
    s->oom_fd = hf_cg_oom_watch(&s->cg, s->spec.n);
    hf_killpoint("shim.cgroup");
    return 0;
}

static pid_t clone_box(struct shim *s, int cgroup_fd)
{
    struct clone_args args = {
        .flags = CLONE_PIDFD | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC |
                 CLONE_NEWUTS,
        .pidfd = (uint64_t)(uintptr_t)&s->pidfd,
        .exit_signal = SIGCHLD,
    };
    if (cgroup_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)cgroup_fd;
    }
    return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

/* The child's next word: 0 for 'p' (tied to us), 1 when it executed envd, -errno with its own report. */
static int hear(int sync_fd, struct hf_err *err)
{
    struct shim_report report;
    ssize_t n;
    do
        n = recv(sync_fd, &report, sizeof(report), 0);
    while (n < 0 && errno == EINTR);
    if (n == 1)
        return 0;
    if (n == 0)
        return 1;
    if (n == (ssize_t)sizeof(report)) {
        report.msg[sizeof(report.msg) - 1] = '\0';
        return hf_err_set(err, report.r < 0 ? report.r : -EIO, "%s", report.msg);
    }
    return hf_err_set(err, -EIO, "the sandbox's first process sent nonsense while it started");
}

/* Joining a cgroup costs a grace period of the kernel (milliseconds on v1), so it happens while the child
 * builds its root. The second word goes out when the child is where it is limited. */
static int escort(struct shim *s, int sync_fd, struct hf_err *err)
{
    hf_killpoint("shim.cloned");
    int r = map_ids(s, err);
    if (r < 0)
        return r;
    hf_killpoint("shim.mapped");
    (void)send(sync_fd, "g", 1, MSG_NOSIGNAL);
    if (s->cg.version == 1)
        r = hf_cg_enter(&s->cg, s->spec.n, s->pid, err);
    if (r == 0)
        r = shim_join(s, err);
    if (r < 0)
        return r;
    r = hear(sync_fd, err);
    if (r == 0) {
        (void)send(sync_fd, "g", 1, MSG_NOSIGNAL);
        if (s->spec.network) /* while the child executes envd, which waits for nobody's packets yet */
            r = shim_plug(s, true, err);
        if (r == 0)
            r = hear(sync_fd, err);
    }
    if (r < 0)
        return r;
    siginfo_t si = {0};
    if (waitid(P_PIDFD, (id_t)s->pidfd, &si, WEXITED | WNOHANG | WNOWAIT) == 0 && si.si_pid)
        return hf_err_set(err, -ECHILD, "the sandbox's first process died while it started");
    return 0;
}

static void close_mount_fds(struct shim *s)
{
    s->template_fd = hf_close(s->template_fd);
    s->upper_fd = hf_close(s->upper_fd);
    s->envd_fd = hf_close(s->envd_fd);
    s->reseed_fd = hf_close(s->reseed_fd);
    for (size_t i = 0; i < HF_CELL_MOUNTS_MAX; i++)
        s->volume_fd[i] = hf_close(s->volume_fd[i]);
}

static int start_init(struct shim *s, struct hf_err *err)
{
    hf_auto_close int mine = -1, childs = -1, words = -1;
    int pair[2], pipe_fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return hf_err_set(err, -errno, "cannot make a socket pair: %s", strerror(errno));
    mine = pair[0];
    childs = pair[1];
    if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return hf_err_set(err, -errno, "cannot make a pipe: %s", strerror(errno));
    s->stderr_fd = pipe_fds[0];
    words = pipe_fds[1];
    hf_auto_close int cgroup_fd = hf_cg_clone_fd(&s->cg, s->spec.n);
    s->pid = clone_box(s, cgroup_fd);
    if (s->pid < 0)
        return hf_err_set(err, -errno, "cannot make namespaces: %s%s", strerror(errno),
                          errno == EPERM || errno == ENOSPC ? " (see holdfast doctor: user namespaces)" : "");
    if (s->pid == 0) {
        (void)close(mine);
        shim_inside(s, childs, words);
    }
    childs = hf_close(childs);
    return escort(s, mine, err);
}

int shim_start(struct shim *s, struct hf_err *err)
{
    int r = reserve_range(s, err);
    if (r == 0)
        r = shim_disk_open(s, err);
    if (r == 0 && s->cg.version)
        r = make_cgroup(s, err);
    if (r == 0)
        r = s->spec.from_memory ? shim_restore(s, err) : start_init(s, err);
    if (r < 0)
        return r;
    close_mount_fds(s);
    /* envd holds these now; ours would keep a dead box's clients waiting. */
    s->ctl_fd = hf_close(s->ctl_fd);
    s->envd_sock_fd = hf_close(s->envd_sock_fd);
    hf_cg_close(&s->cg_fds);
    hf_killpoint("shim.ready");
    return 0;
}

/* A removed layer need not be written back. The kernel logs this as an error, so it is kept for layers whose
 * write-back could take long. */
static void forget_dirty_pages(const struct shim *s)
{
    uint32_t how = EXT4_SHUTDOWN_NOLOGFLUSH;
    struct statfs st;
    if (s->disk_fd >= 0 && fstatfs(s->disk_fd, &st) == 0 &&
        (uint64_t)(st.f_blocks - st.f_bfree) * (uint64_t)st.f_bsize >= SHUTDOWN_MIN_BYTES)
        (void)ioctl(s->disk_fd, EXT4_IOC_SHUTDOWN, &how);
}

void shim_kill(struct shim *s)
{
    if (s->frozen) /* a stopped process does not die */
        (void)!hf_cg_freeze(&s->cg, s->spec.n, false, &(struct hf_err){0});
    if (s->pidfd >= 0)
        (void)syscall(SYS_pidfd_send_signal, s->pidfd, SIGKILL, NULL, 0);
    if (s->kill_asked)
        forget_dirty_pages(s);
}

static void remove_cgroup(struct shim *s)
{
    const struct timespec pause = {0, CGROUP_REMOVE_PAUSE_NS};
    for (int i = 0; i < CGROUP_REMOVE_TRIES; i++) {
        if (hf_cg_remove(&s->cg, s->spec.n) != -EBUSY)
            return;
        hf_cg_kill(&s->cg, s->spec.n);
        (void)nanosleep(&pause, NULL);
    }
}

void shim_cleanup(struct shim *s)
{
    if (s->pid > 0) { /* a failed start: it may still live */
        (void)syscall(SYS_pidfd_send_signal, s->pidfd, SIGKILL, NULL, 0);
        while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
            ;
        s->pid = 0;
    }
    s->userns_fd = hf_close(s->userns_fd);
    s->pidfd = hf_close(s->pidfd);
    s->oom_fd = hf_close(s->oom_fd);
    close_mount_fds(s);
    s->disk_fd = hf_close(s->disk_fd); /* the last user: unmounts, and the loop device goes */
    if (s->cg_made)
        remove_cgroup(s);
}
