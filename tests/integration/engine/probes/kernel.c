/* Statements about the kernel's surface: 22 to 30, 33, 36 to 39. */
#include "probes.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include <netinet/in.h>
#include <sys/uio.h>

static bool empty_or_absent(const char *path)
{
    char c;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return true;
    struct stat st;
    bool ok = fstat(fd, &st) == 0 && (S_ISDIR(st.st_mode) || read(fd, &c, 1) <= 0);
    if (ok && S_ISDIR(st.st_mode)) {
        char buf[4096];
        ok = syscall(SYS_getdents64, fd, buf, sizeof(buf)) <= 48; /* "." and ".." */
    }
    (void)close(fd);
    return ok || no("%s has content", path);
}

static bool p23_proc(void)
{
    static const char *const masked[] = {
        "/proc/kcore",
        "/proc/keys",
        "/proc/timer_list",
        "/proc/kmsg",
        "/proc/kallsyms",
        "/proc/interrupts",
        "/proc/acpi",
        "/proc/scsi",
        "/proc/bus",
        "/sys/firmware",
        "/sys/kernel",
        "/sys/module",
        "/sys/fs",
        "/sys/devices/virtual/block",
        "/sys/devices/virtual/dmi",
        "/sys/power",
        "/proc/iomem",
    };
    static const char *const read_only[] = {
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/irq/default_smp_affinity",
    };
    for (size_t i = 0; i < sizeof(masked) / sizeof(masked[0]); i++)
        if (!empty_or_absent(masked[i]))
            return false;
    for (size_t i = 0; i < sizeof(read_only) / sizeof(read_only[0]); i++)
        if (!refused(open(read_only[i], O_WRONLY), read_only[i], EROFS, EACCES, ENOENT, 0))
            return false;
    struct stat st;
    if (stat("/proc/sysrq-trigger", &st) == 0 && !(S_ISCHR(st.st_mode) && st.st_rdev == 0x103))
        return no("/proc/sysrq-trigger is not masked");
    return true;
}

static long new_user_namespace_by_clone(unsigned long flags)
{
    long pid = syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0)
        _exit(0);
    if (pid > 0)
        (void)waitpid((pid_t)pid, NULL, 0);
    return pid;
}

static bool p25_namespaces(void)
{
    char args[88] = {0};
    static const unsigned long flags[] = {CLONE_NEWUSER, CLONE_NEWNS,  CLONE_NEWPID,   CLONE_NEWNET,
                                          CLONE_NEWIPC,  CLONE_NEWUTS, CLONE_NEWCGROUP};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (!denied(unshare((int)flags[i]), "unshare") ||
            !denied(new_user_namespace_by_clone(flags[i]), "clone"))
            return false;
    int ns = open("/proc/1/ns/user", O_RDONLY | O_CLOEXEC);
    return denied(setns(ns < 0 ? 0 : ns, 0), "setns") &&
           refused(syscall(SYS_clone3, args, sizeof(args)), "clone3", ENOSYS, 0);
}

static bool p25_calls(void)
{
    static const struct {
        const char *name;
        long number;
    } calls[] = {
        {"bpf", SYS_bpf},
        {"perf_event_open", SYS_perf_event_open},
        {"userfaultfd", SYS_userfaultfd},
        {"io_uring_setup", SYS_io_uring_setup},
        {"io_uring_enter", SYS_io_uring_enter},
        {"io_uring_register", SYS_io_uring_register},
        {"keyctl", SYS_keyctl},
        {"add_key", SYS_add_key},
        {"request_key", SYS_request_key},
        {"kexec_load", SYS_kexec_load},
        {"init_module", SYS_init_module},
        {"finit_module", SYS_finit_module},
        {"delete_module", SYS_delete_module},
        {"open_by_handle_at", SYS_open_by_handle_at},
        {"name_to_handle_at", SYS_name_to_handle_at},
        {"acct", SYS_acct},
        {"swapon", SYS_swapon},
        {"swapoff", SYS_swapoff},
        {"quotactl", SYS_quotactl},
        {"fanotify_init", SYS_fanotify_init},
        {"reboot", SYS_reboot},
        {"syslog", SYS_syslog},
        {"vhangup", SYS_vhangup},
        {"mbind", SYS_mbind},
        {"move_pages", SYS_move_pages},
        {"pidfd_getfd", SYS_pidfd_getfd},
        {"kcmp", SYS_kcmp},
        {"process_madvise", SYS_process_madvise},
        {"statmount", 457},
        {"listmount", 458},
        {"lsm_list_modules", 461},
        {"open_tree_attr", 467},
#ifdef __x86_64__
        {"kexec_file_load", SYS_kexec_file_load},
        {"iopl", SYS_iopl},
        {"ioperm", SYS_ioperm},
        {"modify_ldt", SYS_modify_ldt},
        {"uselib", SYS_uselib},
        {"ustat", SYS_ustat},
        {"sysfs", SYS_sysfs},
#endif
    };
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (!denied(syscall(calls[i].number, 0, 0, 0, 0, 0, 0), calls[i].name))
            return false;
    return refused(syscall(1000), "a call that no kernel has", ENOSYS, 0);
}

#ifdef __x86_64__
static int call_i386(void)
{
    long r;
    __asm__ volatile("int $0x80" : "=a"(r) : "a"(20L) : "memory"); /* getpid */
    return r > 0 ? 0 : 1;
}

static int call_x32(void)
{
    return syscall(0x40000000 | SYS_getpid) > 0 ? 0 : 1;
}

static bool killed_by_sigsys(int (*fn)(void), const char *what)
{
    int status = in_child(fn);
    return (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS) || no("%s ended with status %x", what, status);
}

static bool p26_abis(void)
{
    return killed_by_sigsys(call_i386, "an i386 call") && killed_by_sigsys(call_x32, "an x32 call");
}
#else
static bool p26_abis(void)
{
    return true; /* arm64: the filter's architecture check is the same; no second ABI to call from here */
}
#endif

static int add_allow_all_filter(void)
{
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog prog = {1, &allow};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
        return 2;
    return denied(mount("none", "/tmp", "tmpfs", 0, NULL), "mount") ? 0 : 1;
}

static bool p27_filter_stays(void)
{
    return in_child(add_allow_all_filter) == 0 || no("a second filter changed the first");
}

static bool p28_personality(void)
{
    return denied(personality(ADDR_NO_RANDOMIZE), "ADDR_NO_RANDOMIZE") &&
           denied(personality(READ_IMPLIES_EXEC), "READ_IMPLIES_EXEC") &&
           (personality(0xffffffff) >= 0 || no("asking for the personality failed"));
}

static bool p29_tty(void)
{
    int fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    char c = 'x';
    int disc = 21; /* N_GSM0710 */
    if (fd < 0)
        return no("no pty: %s", strerror(errno));
    bool ok = denied(ioctl(fd, TIOCSTI, &c), "TIOCSTI") && denied(ioctl(fd, TIOCLINUX, &c), "TIOCLINUX") &&
              denied(ioctl(fd, TIOCSETD, &disc), "TIOCSETD") &&
              denied(syscall(SYS_ioctl, (long)fd, 0x100000000L | TIOCSTI, &c), "TIOCSTI with high bits") &&
              (grantpt(fd) == 0 || no("grantpt: %s", strerror(errno))) &&
              (unlockpt(fd) == 0 || no("unlockpt: %s", strerror(errno)));
    (void)close(fd);
    return ok;
}

static bool p30_kernel_hooks(void)
{
    static const char *const paths[] = {
        "/proc/sys/kernel/core_pattern",       "/proc/sys/kernel/modprobe",   "/proc/sys/kernel/hotplug",
        "/proc/sys/fs/binfmt_misc/register",   "/sys/kernel/uevent_helper",   "/sys/fs/cgroup/release_agent",
        "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/cgroup.procs",
    };
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (!refused(open(paths[i], O_WRONLY), paths[i], EROFS, EACCES, ENOENT, 0))
            return false;
    return true;
}

static bool p33_kernel_log(void)
{
    return denied(syscall(SYS_syslog, 3, NULL, 0), "syslog") &&
           refused(open("/dev/kmsg", O_RDONLY), "/dev/kmsg", ENOENT, EACCES, EPERM, 0);
}

static bool p36_clocks(void)
{
    struct timespec ts = {1000000000, 0};
    struct timeval tv = {1000000000, 0};
    struct timex tx = {.modes = ADJ_FREQUENCY, .freq = 1};
    return denied(clock_settime(CLOCK_REALTIME, &ts), "clock_settime") &&
           denied(settimeofday(&tv, NULL), "settimeofday") && denied(adjtimex(&tx), "adjtimex") &&
           denied(sethostname("evil", 4), "sethostname") && denied(setdomainname("evil", 4), "setdomainname");
}

static int try_priorities(void)
{
    struct sched_param rt = {.sched_priority = 1};
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(1000, &set);
    bool ok =
        denied(sched_setscheduler(0, SCHED_FIFO, &rt), "SCHED_FIFO") &&
        denied(sched_setscheduler(0, SCHED_RR, &rt), "SCHED_RR") &&
        refused(setpriority(PRIO_PROCESS, 0, -5), "nice -5", EPERM, EACCES, 0) &&
        refused(sched_setaffinity(0, sizeof(set), &set), "affinity to a CPU that is not ours", EINVAL, 0);
    return ok ? 0 : 1;
}

static bool p37_scheduling(void)
{
    return in_child(try_priorities) == 0 || no("scheduling could be changed");
}

static bool p39_sockets(void)
{
    static const int families[] = {AF_PACKET, AF_VSOCK, AF_ALG, AF_BLUETOOTH, AF_CAN,
                                   AF_KEY,    AF_TIPC,  AF_XDP, AF_RDS};
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (!refused(socket(families[i], SOCK_RAW, 0), "a socket of an odd family", EAFNOSUPPORT, 0) ||
            !refused(socket(families[i], SOCK_DGRAM, 0), "a socket of an odd family", EAFNOSUPPORT, 0))
            return false;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(53), .sin_addr = {htonl(0x08080808)}};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return refused(connect(fd, (struct sockaddr *)&a, sizeof(a)), "a route", ENETUNREACH, 0) &&
           refused(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), "a raw socket", EPERM, EACCES, 0) &&
           refused(socket(AF_NETLINK, SOCK_RAW, 12), "netfilter's netlink", EAFNOSUPPORT, 0) &&
           refused(socket(AF_NETLINK, SOCK_RAW, 9), "audit's netlink", EAFNOSUPPORT, 0);
}

const struct probe kernel_probes[] = {
    {23, p23_proc},   {25, p25_namespaces},   {25, p25_calls},
    {26, p26_abis},   {27, p27_filter_stays}, {28, p28_personality},
    {29, p29_tty},    {30, p30_kernel_hooks}, {33, p33_kernel_log},
    {36, p36_clocks}, {37, p37_scheduling},   {39, p39_sockets},
    {0, NULL},
};
