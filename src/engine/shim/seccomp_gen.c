/* Build step: writes the seccomp programs for x86-64 and arm64 as C arrays to stdout, so that a starting
 * box pays one system call for its filter and no compilation. libseccomp resolves the names of both
 * architectures; the program is a binary search over the number (seven comparisons for any call). */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/shim/seccomp_table.h"

#define NR_MAX 512 /* numbers beyond are unknown to every kernel of today: ENOSYS */
#define PROG_MAX 4096
#define X32_BIT 0x40000000u

/* All CLONE_NEW* that clone(2) knows. */
#define CLONE_NEW_ANY 0x7e020000u
#define IOCTL_TIOCSTI 0x5412u
#define IOCTL_TIOCLINUX 0x541cu
#define IOCTL_TIOCSETD 0x5423u

enum action { ENOSYS_, EPERM_, ALLOW, CLONE, SOCKET, SOCKETPAIR, IOCTL, PERSONALITY };

struct prog {
    struct sock_filter op[PROG_MAX];
    size_t n;
};

static void emit(struct prog *p, uint16_t code, uint8_t jt, uint8_t jf, uint32_t k)
{
    if (p->n == PROG_MAX) {
        (void)fprintf(stderr, "seccomp_gen: program too long\n");
        exit(1);
    }
    p->op[p->n++] = (struct sock_filter){code, jt, jf, k};
}

static void ret(struct prog *p, uint32_t value)
{
    emit(p, BPF_RET | BPF_K, 0, 0, value);
}

static void ret_errno(struct prog *p, int e)
{
    ret(p, SECCOMP_RET_ERRNO | (uint32_t)e);
}

/* The low half of an argument: both architectures are little-endian, and the arguments that we look at are
 * 32 bits wide in the kernel, so that the upper half must not decide. */
static void load_arg(struct prog *p, unsigned i)
{
    emit(p, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)(offsetof(struct seccomp_data, args) + i * 8));
}

/* Answers `value` when the accumulator is one of the values. */
static void ret_if_any(struct prog *p, const uint32_t *values, size_t n, uint32_t value)
{
    for (size_t i = 0; i < n; i++) {
        emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, values[i]);
        ret(p, value);
    }
}

static void emit_socket(struct prog *p)
{
    static const uint32_t families[] = {1 /* AF_UNIX */, 2 /* AF_INET */, 10 /* AF_INET6 */};
    load_arg(p, 0);
    ret_if_any(p, families, sizeof(families) / sizeof(families[0]), SECCOMP_RET_ALLOW);
    /* AF_NETLINK for NETLINK_ROUTE alone: getifaddrs(3) and getaddrinfo(3) ask it. */
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 3, 16);
    load_arg(p, 2);
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
    ret(p, SECCOMP_RET_ALLOW);
    ret_errno(p, EAFNOSUPPORT);
}

static void emit_special(struct prog *p, enum action a)
{
    static const uint32_t ioctls[] = {IOCTL_TIOCSTI, IOCTL_TIOCLINUX, IOCTL_TIOCSETD};
    static const uint32_t unix_only[] = {1};
    /* PER_LINUX, PER_LINUX32, UNAME26 with both, and the query */
    static const uint32_t personalities[] = {0, 8, 0x20000, 0x20008, 0xffffffffu};
    switch (a) {
    case CLONE:
        load_arg(p, 0);
        emit(p, BPF_JMP | BPF_JSET | BPF_K, 0, 1, CLONE_NEW_ANY);
        ret_errno(p, EPERM);
        ret(p, SECCOMP_RET_ALLOW);
        return;
    case SOCKET:
        emit_socket(p);
        return;
    case SOCKETPAIR:
        load_arg(p, 0);
        ret_if_any(p, unix_only, 1, SECCOMP_RET_ALLOW);
        ret_errno(p, EAFNOSUPPORT);
        return;
    case IOCTL:
        load_arg(p, 1);
        ret_if_any(p, ioctls, sizeof(ioctls) / sizeof(ioctls[0]), SECCOMP_RET_ERRNO | EPERM);
        ret(p, SECCOMP_RET_ALLOW);
        return;
    case PERSONALITY:
        load_arg(p, 0);
        ret_if_any(p, personalities, sizeof(personalities) / sizeof(personalities[0]), SECCOMP_RET_ALLOW);
        ret_errno(p, EPERM);
        return;
    case ALLOW:
        ret(p, SECCOMP_RET_ALLOW);
        return;
    case EPERM_:
        ret_errno(p, EPERM);
        return;
    case ENOSYS_:
        ret_errno(p, ENOSYS);
        return;
    }
}

struct run {
    uint32_t first;
    enum action action;
};

static void emit_tree(struct prog *p, const struct run *runs, size_t n)
{
    if (n == 1) {
        emit_special(p, runs[0].action);
        return;
    }
    size_t half = n / 2;
    struct prog *left = calloc(1, sizeof(*left));
    if (!left)
        exit(1);
    emit_tree(left, runs, half);
    if (left->n <= UINT8_MAX) {
        emit(p, BPF_JMP | BPF_JGE | BPF_K, (uint8_t)left->n, 0, runs[half].first);
    } else {
        emit(p, BPF_JMP | BPF_JGE | BPF_K, 0, 1, runs[half].first);
        emit(p, BPF_JMP | BPF_JA, 0, 0, (uint32_t)left->n);
    }
    for (size_t i = 0; i < left->n; i++)
        emit(p, left->op[i].code, left->op[i].jt, left->op[i].jf, left->op[i].k);
    free(left);
    emit_tree(p, runs + half, n - half);
}

static void set_names(enum action *by_nr, uint32_t arch, const char *const *names, size_t n, enum action a)
{
    for (size_t i = 0; i < n; i++) {
        int nr = seccomp_syscall_resolve_name_arch(arch, names[i]);
        if (nr >= 0 && nr < NR_MAX) /* absent on this architecture otherwise */
            by_nr[nr] = a;
    }
}

static size_t build_runs(uint32_t arch, struct run *runs)
{
    enum action by_nr[NR_MAX] = {0};
    const struct {
        const char *name;
        enum action action;
    } special[] = {{"clone", CLONE}, {"socket", SOCKET},           {"socketpair", SOCKETPAIR},
                   {"ioctl", IOCTL}, {"personality", PERSONALITY}, {"clone3", ENOSYS_}};
    set_names(by_nr, arch, allowed, sizeof(allowed) / sizeof(allowed[0]), ALLOW);
    set_names(by_nr, arch, refused, sizeof(refused) / sizeof(refused[0]), EPERM_);
    for (size_t i = 0; i < sizeof(allowed_numbers) / sizeof(allowed_numbers[0]); i++)
        by_nr[allowed_numbers[i]] = ALLOW;
    for (size_t i = 0; i < sizeof(refused_numbers) / sizeof(refused_numbers[0]); i++)
        by_nr[refused_numbers[i]] = EPERM_;
    for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++)
        set_names(by_nr, arch, &special[i].name, 1, special[i].action);
    size_t n = 0;
    for (uint32_t nr = 0; nr < NR_MAX; nr++)
        if (n == 0 || runs[n - 1].action != by_nr[nr])
            runs[n++] = (struct run){nr, by_nr[nr]};
    if (runs[n - 1].action != ENOSYS_)
        runs[n++] = (struct run){NR_MAX, ENOSYS_};
    return n;
}

static void print_program(const char *guard, uint32_t arch, uint32_t audit_arch)
{
    static struct run runs[NR_MAX + 1];
    static struct prog p;
    p.n = 0;
    emit(&p, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offsetof(struct seccomp_data, arch));
    emit(&p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, audit_arch);
    ret(&p, SECCOMP_RET_KILL_PROCESS);
    emit(&p, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offsetof(struct seccomp_data, nr));
    /* x32 calls carry the same arch. -1 is a call that a tracer skips. */
    emit(&p, BPF_JMP | BPF_JGE | BPF_K, 0, 3, X32_BIT);
    emit(&p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, UINT32_MAX);
    ret_errno(&p, ENOSYS);
    ret(&p, SECCOMP_RET_KILL_PROCESS);
    emit_tree(&p, runs, build_runs(arch, runs));
    (void)printf("#if defined(%s)\nstatic const struct sock_filter hf_seccomp_filter[] = {\n", guard);
    for (size_t i = 0; i < p.n; i++)
        (void)printf("    {0x%02x, %u, %u, 0x%08x},\n", p.op[i].code, p.op[i].jt, p.op[i].jf, p.op[i].k);
    (void)printf("};\n#endif\n");
}

int main(void)
{
    (void)printf("/* Generated by seccomp_gen.c; do not edit. */\n#pragma once\n#include <linux/filter.h>\n");
    print_program("__x86_64__", SCMP_ARCH_X86_64, AUDIT_ARCH_X86_64);
    print_program("__aarch64__", SCMP_ARCH_AARCH64, AUDIT_ARCH_AARCH64);
    return 0;
}
