/* The doctor's checks of the kernel: each thing is really tried. */
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#include "base/path.h"
#include "cli/doctor.h"

#define KERNEL_MAJOR 5
#define KERNEL_MINOR 19 /* id-mapped layers below overlayfs */

static void check_version(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct utsname u;
    unsigned major = 0, minor = 0;
    (void)d;
    if (uname(&u) < 0 || sscanf(u.release, "%u.%u", &major, &minor) != 2) {
        hf_check_set(ret, HF_CHECK_WARN, "the version can't be read");
        return;
    }
    bool ok = major > KERNEL_MAJOR || (major == KERNEL_MAJOR && minor >= KERNEL_MINOR);
    hf_check_set(ret, ok ? HF_CHECK_OK : HF_CHECK_FAIL, "Linux %s (%s)", u.release, u.machine);
    if (ok)
        return;
    hf_check_cost(ret, "no id-mapped layers below an overlay, so no root file system for a sandbox");
    hf_check_fix(ret, "install a kernel of at least %d.%d (Debian 12 has 6.1)", KERNEL_MAJOR, KERNEL_MINOR);
}

/* ---- user namespaces ---- */

static int try_nothing(void *arg, struct hf_err *err)
{
    (void)arg;
    (void)err;
    return 0;
}

static int probe_userns(void *arg, struct hf_err *err)
{
    (void)arg;
    return hf_probe_in_userns(0, try_nothing, NULL, err);
}

/* The switches that forbid them, by name: the error of clone(2) alone would not tell which it was. */
static bool userns_switch(const struct hf_doctor *d, struct hf_check_result *ret)
{
    if (hf_probe_number("/proc/sys/user/max_user_namespaces") == 0) {
        hf_check_set(ret, HF_CHECK_FAIL, "user.max_user_namespaces is 0");
        hf_check_fix(ret,
                     "sysctl -w user.max_user_namespaces=65536; keep it in /etc/sysctl.d/90-holdfast.conf");
        return true;
    }
    if (!d->root && hf_probe_number("/proc/sys/kernel/unprivileged_userns_clone") == 0) {
        hf_check_set(ret, HF_CHECK_FAIL, "kernel.unprivileged_userns_clone is 0 and we are not root");
        hf_check_fix(ret, "sudo sysctl -w kernel.unprivileged_userns_clone=1, or run holdfast as root");
        return true;
    }
    if (!d->root && hf_probe_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1) {
        hf_check_set(ret, HF_CHECK_FAIL,
                     "kernel.apparmor_restrict_unprivileged_userns is 1 and we are not root");
        hf_check_fix(
            ret, "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run holdfast as root");
        return true;
    }
    return false;
}

static void check_userns(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct hf_err err = {0};
    hf_check_cost(ret, "no sandbox at all: root inside must be nobody outside");
    if (userns_switch(d, ret))
        return;
    if (hf_probe(probe_userns, NULL, HF_PROBE_MS, &err) < 0) {
        hf_check_set(ret, HF_CHECK_FAIL, "%s", err.msg);
        hf_check_fix(ret, "%s",
                     err.r == -ENOSPC
                         ? "sysctl -w user.max_user_namespaces=65536"
                         : "outside a container: CONFIG_USER_NS=y; inside one: run it privileged");
        return;
    }
    long long max = hf_probe_number("/proc/sys/user/max_user_namespaces");
    hf_check_set(ret, HF_CHECK_OK, "one was made and mapped; at most %lld", max);
    ret->cost[0] = '\0';
    if (max >= 0 && max < 1024) {
        ret->status = HF_CHECK_WARN;
        hf_check_cost(ret, "at most %lld sandboxes", max);
        hf_check_fix(ret, "sysctl -w user.max_user_namespaces=65536");
    }
}

/* ---- the other namespaces ---- */

static int probe_namespaces(void *arg, struct hf_err *err)
{
    int flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
    (void)arg;
    return hf_probe_in_userns(flags, try_nothing, NULL, err);
}

static void check_namespaces(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct hf_err err = {0};
    (void)d;
    if (hf_probe(probe_namespaces, NULL, HF_PROBE_MS, &err) == 0) {
        hf_check_set(ret, HF_CHECK_OK, "pid, mount, network, ipc, uts and cgroup were made");
        return;
    }
    hf_check_set(ret, HF_CHECK_FAIL, "%s", err.msg);
    hf_check_cost(ret, "no sandbox at all");
    hf_check_fix(ret, "see the user.max_*_namespaces of `sysctl -a`, and CONFIG_*_NS of the kernel");
}

/* ---- single calls ---- */

static int probe_clone3(void *arg, struct hf_err *err)
{
    int pidfd = -1;
    struct clone_args args = {
        .flags = CLONE_PIDFD, .pidfd = (uint64_t)(uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    siginfo_t info = {0};
    (void)arg;
    long pid = syscall(SYS_clone3, &args, sizeof(args));
    if (pid == 0) {
        (void)pause();
        _exit(0);
    }
    if (pid < 0)
        return hf_err_set(err, -errno, "clone3: %s", strerror(errno));
    if (syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0) < 0) {
        (void)kill((pid_t)pid, SIGKILL);
        return hf_err_set(err, -errno, "pidfd_send_signal: %s", strerror(errno));
    }
    if (waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED) < 0)
        return hf_err_set(err, -errno, "waitid(P_PIDFD): %s", strerror(errno));
    return 0;
}

static int probe_openat2(void *arg, struct hf_err *err)
{
    hf_auto_close int root = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)arg;
    int fd = root < 0 ? -errno : hf_open_in_root(root, "../../status", O_RDONLY, 0);
    if (fd < 0)
        return hf_err_set(err, fd, "openat2(RESOLVE_IN_ROOT): %s", strerror(-fd));
    (void)close(fd);
    return 0;
}

static int probe_seccomp(void *arg, struct hf_err *err)
{
    (void)arg;
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
    int r = ctx ? seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EDOM), SCMP_SYS(getppid), 0) : -ENOMEM;
    if (r == 0)
        r = seccomp_load(ctx);
    seccomp_release(ctx);
    if (r < 0)
        return hf_err_set(err, r, "loading a filter: %s", strerror(-r));
    if (syscall(SYS_getppid) != -1 || errno != EDOM)
        return hf_err_set(err, -EIO, "a filter was loaded but does not act");
    return 0;
}

struct call {
    const char *what;
    int (*fn)(void *arg, struct hf_err *err);
};

static void check_calls(const struct hf_doctor *d, struct hf_check_result *ret)
{
    static const struct call calls[] = {{"clone3 and pidfd", probe_clone3}, {"openat2", probe_openat2}};
    (void)d;
    for (size_t i = 0; i < HF_ARRAY_LEN(calls); i++) {
        struct hf_err err = {0};
        if (hf_probe(calls[i].fn, NULL, HF_PROBE_MS, &err) < 0) {
            hf_check_set(ret, HF_CHECK_FAIL, "%s", err.msg);
            hf_check_cost(ret, "no sandbox at all");
            hf_check_fix(ret,
                         "a container around us may filter these calls: run it with another seccomp profile");
            return;
        }
    }
    hf_check_set(ret, HF_CHECK_OK, "clone3, pidfd and openat2 work");
}

static void check_seccomp(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct hf_err err = {0};
    (void)d;
    if (hf_probe(probe_seccomp, NULL, HF_PROBE_MS, &err) == 0) {
        hf_check_set(ret, HF_CHECK_OK, "a filter was loaded and acts");
        return;
    }
    hf_check_set(ret, HF_CHECK_FAIL, "%s", err.msg);
    hf_check_cost(ret, "no sandbox: without a filter the kernel's whole surface would be open");
    hf_check_fix(ret, "a kernel with CONFIG_SECCOMP_FILTER=y");
}

/* ---- overlay in a user namespace ---- */

static int mount_overlay(void *arg, struct hf_err *err)
{
    static const char *const dirs[] = {"/tmp/l", "/tmp/u", "/tmp/w", "/tmp/m"};
    (void)arg;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("tmpfs", "/tmp", "tmpfs", 0, NULL) < 0)
        return hf_err_set(err, -errno, "a tmpfs in a user namespace: %s", strerror(errno));
    for (size_t i = 0; i < HF_ARRAY_LEN(dirs); i++)
        if (mkdir(dirs[i], 0755) < 0)
            return hf_err_set(err, -errno, "mkdir: %s", strerror(errno));
    if (mount("overlay", "/tmp/m", "overlay", 0, "lowerdir=/tmp/l,upperdir=/tmp/u,workdir=/tmp/w,userxattr") <
        0)
        return hf_err_set(err, -errno, "mounting it: %s", strerror(errno));
    hf_auto_close int fd = open("/tmp/m/file", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    return fd < 0 ? hf_err_set(err, -errno, "writing to it: %s", strerror(errno)) : 0;
}

static int probe_overlay(void *arg, struct hf_err *err)
{
    return hf_probe_in_userns(CLONE_NEWNS, mount_overlay, arg, err);
}

static void check_overlay(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct hf_err err = {0};
    (void)d;
    if (hf_probe(probe_overlay, NULL, HF_PROBE_MS, &err) == 0) {
        hf_check_set(ret, HF_CHECK_OK, "one was mounted in a user namespace and written to");
        return;
    }
    hf_check_set(ret, HF_CHECK_FAIL, "%s", err.msg);
    hf_check_cost(ret, "no root file system for a sandbox");
    hf_check_fix(ret, "modprobe overlay; in a container: run it privileged");
}

const struct hf_check hf_doctor_kernel[] = {
    {"kernel", "kernel version", check_version},
    {"namespaces", "other namespaces", check_namespaces},
    {"syscalls", "system calls", check_calls},
    {"seccomp", "seccomp filters", check_seccomp},
    {"overlay", "overlay in a user namespace", check_overlay},
    {0},
};

const struct hf_check hf_doctor_userns[] = {
    {"userns", "user namespaces", check_userns},
    {0},
};
