/* What takes PID 1's privileges away: see docs/security.md for the why of each choice. */
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "engine/shim/shim.h"
#include "seccomp_filter.h"

#define NOFILE_SOFT 65536u
#define NOFILE_HARD 1048576u
#define MEMLOCK_MAX (8u << 20)

#define CAP(c) (1ull << (c))

/* Root's capabilities in the box: Docker's default without MKNOD (devices are refused in a user namespace),
 * NET_RAW (no network) and AUDIT_WRITE (no audit socket). */
static const uint64_t kept_caps = CAP(CAP_CHOWN) | CAP(CAP_DAC_OVERRIDE) | CAP(CAP_FOWNER) | CAP(CAP_FSETID) |
                                  CAP(CAP_KILL) | CAP(CAP_SETGID) | CAP(CAP_SETUID) | CAP(CAP_SETPCAP) |
                                  CAP(CAP_NET_BIND_SERVICE) | CAP(CAP_SYS_CHROOT) | CAP(CAP_SETFCAP);

static int cap_limit(int resource, rlim_t soft, rlim_t hard)
{
    struct rlimit now;
    if (getrlimit(resource, &now) < 0)
        return -errno;
    /* Without CAP_SYS_RESOURCE a hard limit can only sink. */
    struct rlimit want = {.rlim_max = HF_MIN(hard, now.rlim_max)};
    want.rlim_cur = HF_MIN(soft, want.rlim_max);
    return setrlimit(resource, &want) < 0 ? -errno : 0;
}

int shim_limit_resources(struct hf_err *err)
{
    static const struct {
        int resource;
        rlim_t soft, hard;
    } limits[] = {
        {RLIMIT_NOFILE, NOFILE_SOFT, NOFILE_HARD},  {RLIMIT_CORE, 0, 0}, /* core_pattern is the host's: a dump
                                                                            could run a program there */
        {RLIMIT_MEMLOCK, MEMLOCK_MAX, MEMLOCK_MAX}, {RLIMIT_NICE, 0, 0}, {RLIMIT_RTPRIO, 0, 0},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(limits); i++) {
        int r = cap_limit(limits[i].resource, limits[i].soft, limits[i].hard);
        if (r < 0)
            return hf_err_set(err, r, "cannot set resource limit %d: %s", limits[i].resource, strerror(-r));
    }
    return 0;
}

static int set_caps(uint64_t caps)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {
        {(uint32_t)caps, (uint32_t)caps, 0},
        {(uint32_t)(caps >> 32), (uint32_t)(caps >> 32), 0},
    };
    return syscall(SYS_capset, &head, data) < 0 ? -errno : 0;
}

int shim_drop_privileges(struct hf_err *err)
{
    for (int c = 0; prctl(PR_CAPBSET_READ, c, 0, 0, 0) >= 0; c++)
        if (!(kept_caps & CAP(c)) && prctl(PR_CAPBSET_DROP, c, 0, 0, 0) < 0)
            return hf_err_set(err, -errno, "cannot drop capability %d: %s", c, strerror(errno));
    /* The filter goes in while CAP_SYS_ADMIN is still there: without it the kernel wants no_new_privs, with
     * which sudo could not work (docs/adr/0007). */
    struct sock_fprog prog = {
        .len = (unsigned short)HF_ARRAY_LEN(hf_seccomp_filter),
        .filter = (struct sock_filter *)hf_seccomp_filter,
    };
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) < 0)
        return hf_err_set(err, -errno, "cannot install the seccomp filter: %s", strerror(errno));
    int r = set_caps(kept_caps);
    return r < 0 ? hf_err_set(err, r, "cannot drop capabilities: %s", strerror(-r)) : 0;
}
