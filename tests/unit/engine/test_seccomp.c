/* Interprets the generated filter for every number and the arguments that matter. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cmocka.h>

#include "base/base.h"
#include "seccomp_filter.h"

#ifdef __x86_64__
#define ARCH AUDIT_ARCH_X86_64
#else
#define ARCH AUDIT_ARCH_AARCH64
#endif
#define ALLOW SECCOMP_RET_ALLOW
#define E(n) (SECCOMP_RET_ERRNO | (uint32_t)(n))

static uint32_t run(const struct seccomp_data *d)
{
    uint32_t a = 0;
    for (size_t pc = 0; pc < HF_ARRAY_LEN(hf_seccomp_filter); pc++) {
        const struct sock_filter *op = &hf_seccomp_filter[pc];
        switch (op->code) {
        case BPF_LD | BPF_W | BPF_ABS:
            assert_true(op->k % 4 == 0 && op->k < sizeof(*d));
            memcpy(&a, (const char *)d + op->k, 4);
            break;
        case BPF_JMP | BPF_JEQ | BPF_K:
            pc += a == op->k ? op->jt : op->jf;
            break;
        case BPF_JMP | BPF_JGE | BPF_K:
            pc += a >= op->k ? op->jt : op->jf;
            break;
        case BPF_JMP | BPF_JSET | BPF_K:
            pc += a & op->k ? op->jt : op->jf;
            break;
        case BPF_JMP | BPF_JA:
            pc += op->k;
            break;
        case BPF_RET | BPF_K:
            return op->k;
        default:
            fail_msg("instruction %zu has the code %x", pc, op->code);
        }
    }
    fail_msg("the program ran off its end");
    return 0;
}

static uint32_t call(long nr, uint64_t a0, uint64_t a1, uint64_t a2)
{
    struct seccomp_data d = {.nr = (int)nr, .arch = ARCH, .args = {a0, a1, a2}};
    return run(&d);
}

static void test_plain_calls(void **state)
{
    static const long allowed[] = {SYS_read,
                                   SYS_write,
                                   SYS_openat,
                                   SYS_execve,
                                   SYS_exit_group,
                                   SYS_futex,
                                   SYS_mmap,
                                   SYS_statx,
                                   SYS_getrandom,
                                   SYS_close_range,
                                   SYS_openat2,
                                   SYS_rseq,
                                   SYS_ptrace,
                                   SYS_faccessat2,
                                   SYS_pidfd_open,
                                   SYS_chroot,
                                   SYS_seccomp,
                                   SYS_capset,
                                   452,
                                   462};
    static const long refused[] = {SYS_mount,
                                   SYS_umount2,
                                   SYS_pivot_root,
                                   SYS_unshare,
                                   SYS_setns,
                                   SYS_bpf,
                                   SYS_io_uring_setup,
                                   SYS_userfaultfd,
                                   SYS_perf_event_open,
                                   SYS_keyctl,
                                   SYS_add_key,
                                   SYS_request_key,
                                   SYS_kexec_load,
                                   SYS_init_module,
                                   SYS_open_tree,
                                   SYS_move_mount,
                                   SYS_fsopen,
                                   SYS_mount_setattr,
                                   SYS_open_by_handle_at,
                                   SYS_acct,
                                   SYS_swapon,
                                   SYS_quotactl,
                                   SYS_clock_settime,
                                   SYS_settimeofday,
                                   SYS_pidfd_getfd,
                                   SYS_reboot,
                                   SYS_syslog,
                                   SYS_sethostname,
                                   457,
                                   458,
                                   467};
    for (size_t i = 0; i < HF_ARRAY_LEN(allowed); i++)
        assert_int_equal(call(allowed[i], 0, 0, 0), ALLOW);
    for (size_t i = 0; i < HF_ARRAY_LEN(refused); i++)
        assert_int_equal(call(refused[i], 0, 0, 0), E(EPERM));
    assert_int_equal(call(SYS_clone3, 0, 0, 0), E(ENOSYS));
    /* Whatever the number: one of the four answers, and ENOSYS for what no kernel of today has. */
    for (long nr = 0; nr < 2000; nr++) {
        uint32_t r = call(nr, UINT32_MAX, UINT32_MAX, UINT32_MAX);
        assert_true(r == ALLOW || r == E(EPERM) || r == E(ENOSYS) || r == E(EAFNOSUPPORT));
        if (nr > 480)
            assert_int_equal(r, E(ENOSYS));
    }
}

static void test_other_abis(void **state)
{
    struct seccomp_data i386 = {.nr = 20, .arch = AUDIT_ARCH_I386}, arm = {.nr = 20, .arch = AUDIT_ARCH_ARM};
    assert_int_equal(run(&i386), SECCOMP_RET_KILL_PROCESS);
    assert_int_equal(run(&arm), SECCOMP_RET_KILL_PROCESS);
    assert_int_equal(call(0x40000000 | 39, 0, 0, 0), SECCOMP_RET_KILL_PROCESS);
    assert_int_equal(call(0x7fffffff, 0, 0, 0), SECCOMP_RET_KILL_PROCESS);
    assert_int_equal(call(-1, 0, 0, 0), E(ENOSYS));
}

static void test_arguments(void **state)
{
    static const uint64_t namespaces[] = {CLONE_NEWUSER, CLONE_NEWNS,  CLONE_NEWPID,   CLONE_NEWNET,
                                          CLONE_NEWIPC,  CLONE_NEWUTS, CLONE_NEWCGROUP};
    for (size_t i = 0; i < HF_ARRAY_LEN(namespaces); i++)
        assert_int_equal(call(SYS_clone, namespaces[i] | 17, 0, 0), E(EPERM));
    assert_int_equal(call(SYS_clone, CLONE_VM | CLONE_THREAD | CLONE_SIGHAND, 0, 0), ALLOW);
    assert_int_equal(call(SYS_socket, AF_UNIX, SOCK_STREAM, 0), ALLOW);
    assert_int_equal(call(SYS_socket, AF_INET, SOCK_STREAM, 0), ALLOW);
    assert_int_equal(call(SYS_socket, AF_INET6, SOCK_DGRAM, 0), ALLOW);
    assert_int_equal(call(SYS_socket, AF_NETLINK, SOCK_RAW, 0), ALLOW);
    assert_int_equal(call(SYS_socket, AF_NETLINK, SOCK_RAW, 12), E(EAFNOSUPPORT));
    assert_int_equal(call(SYS_socket, AF_PACKET, SOCK_RAW, 0), E(EAFNOSUPPORT));
    assert_int_equal(call(SYS_socket, AF_VSOCK, SOCK_STREAM, 0), E(EAFNOSUPPORT));
    assert_int_equal(call(SYS_socket, AF_ALG, SOCK_SEQPACKET, 0), E(EAFNOSUPPORT));
    assert_int_equal(call(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0), ALLOW);
    assert_int_equal(call(SYS_socketpair, AF_TIPC, SOCK_STREAM, 0), E(EAFNOSUPPORT));
    /* The kernel looks at the low half of these; so must the filter. */
    assert_int_equal(call(SYS_ioctl, 0, 0x5412, 0), E(EPERM));
    assert_int_equal(call(SYS_ioctl, 0, 0x100005412, 0), E(EPERM));
    assert_int_equal(call(SYS_ioctl, 0, 0x5401, 0), ALLOW);
    assert_int_equal(call(SYS_socket, 0x100000000 | AF_PACKET, SOCK_RAW, 0), E(EAFNOSUPPORT));
    assert_int_equal(call(SYS_personality, 0, 0, 0), ALLOW);
    assert_int_equal(call(SYS_personality, 0xffffffff, 0, 0), ALLOW);
    assert_int_equal(call(SYS_personality, 0x0040000, 0, 0), E(EPERM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_calls),
        cmocka_unit_test(test_other_abis),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
