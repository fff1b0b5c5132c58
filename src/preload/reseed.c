/* holdfast-reseed.so: makes random generators of programs in a box notice that they were cloned
 * (docs/adr/0023).
 *
 * envd puts it into LD_PRELOAD of what it starts. It does nothing until /run/holdfast/generation, a page of
 * which it has mapped, holds another number than at the program's start; the supervisor writes the new one
 * before a restored program runs its first instruction.
 *
 * OpenSSL's generators (also those built into node) ask getpid() at each use, to notice a fork, and then take
 * new entropy from the kernel. Here getpid() tells OpenSSL, and nobody else, another number in another
 * generation.
 *
 * Python's `random` can't be told that way. The supervisor sends HF_RESEED_SIGNAL to clones that catch it;
 * the handler asks the interpreter for a call at its next safe point (Py_AddPendingCall may be used in a
 * handler).
 *
 * Linked against nothing, so that it loads into programs of any libc; what it calls is looked up in the
 * program. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/reseed.h"

#define PAGE 4096u
#define PID_BITS 22 /* the largest pid of Linux has that many */
#define CALLERS 16u

#pragma GCC visibility push(default)
pid_t getpid(void);
#pragma GCC visibility pop

extern int Py_AddPendingCall(int (*fn)(void *arg), void *arg) __attribute__((weak));
extern int PyRun_SimpleString(const char *text) __attribute__((weak));
extern int dladdr(const void *at, Dl_info *ret) __attribute__((weak));

static const volatile char *page; /* NULL = no generation here */
static uint64_t first;

static uint64_t read_generation(void)
{
    uint64_t n = 0;
    for (unsigned i = 0; page && i < 20 && page[i] >= '0' && page[i] <= '9'; i++)
        n = n * 10 + (uint64_t)(page[i] - '0');
    return n;
}

static int starts(const char *s, const char *with)
{
    while (*with && *s == *with) {
        s++;
        with++;
    }
    return !*with;
}

static int holds(const char *s, const char *what)
{
    for (; *s; s++)
        if (starts(s, what))
            return 1;
    return 0;
}

/* By the library that the call came from, or, where OpenSSL is part of the program, by the function. */
static int is_openssl(const void *caller)
{
    static const char *const names[] = {"openssl_get_fork_id", "ossl_prov_drbg", "ossl_rand", "RAND_",
                                        "rand_drbg"};
    Dl_info info = {0};
    if (!dladdr || !dladdr(caller, &info))
        return 0;
    if (info.dli_fname && holds(info.dli_fname, "libcrypto"))
        return 1;
    for (unsigned i = 0; info.dli_sname && i < sizeof(names) / sizeof(names[0]); i++)
        if (starts(info.dli_sname, names[i]))
            return 1;
    return 0;
}

/* There are few places that call getpid; what was found out about one is remembered. Slots are written once,
 * by whoever comes first; a race costs a lookup. */
static int from_openssl(const void *caller)
{
    static struct {
        const void *volatile at;
        volatile int yes;
    } seen[CALLERS];
    unsigned slot = (unsigned)((uintptr_t)caller >> 4) % CALLERS;
    if (seen[slot].at == caller)
        return seen[slot].yes;
    int yes = is_openssl(caller);
    if (!seen[slot].at) {
        seen[slot].yes = yes;
        __atomic_thread_fence(__ATOMIC_RELEASE);
        seen[slot].at = caller;
    }
    return yes;
}

pid_t getpid(void)
{
    pid_t pid = (pid_t)syscall(SYS_getpid);
    uint64_t now = page ? read_generation() : first;
    if (now == first || !from_openssl(__builtin_return_address(0)))
        return pid;
    return (pid_t)((uint32_t)pid | ((uint32_t)(now - first) & 0x1ffu) << PID_BITS);
}

static int reseed(void *arg)
{
    static const char text[] = "import sys\n"
                               "for _n in ('random', 'numpy.random'):\n"
                               "    _m = sys.modules.get(_n)\n"
                               "    if _m is not None: _m.seed()\n"
                               "del _n, _m\n";
    (void)arg;
    if (PyRun_SimpleString)
        (void)PyRun_SimpleString(text);
    return 0;
}

static void on_clone(int sig)
{
    (void)sig;
    if (Py_AddPendingCall)
        (void)Py_AddPendingCall(reseed, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    int fd = open(HF_RESEED_GENERATION, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    void *p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (p == MAP_FAILED)
        return;
    page = p;
    first = read_generation();
    if (Py_AddPendingCall) {
        struct sigaction old, act = {.sa_handler = on_clone, .sa_flags = SA_RESTART};
        if (sigaction(HF_RESEED_SIGNAL, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            (void)sigaction(HF_RESEED_SIGNAL, &act, NULL);
    }
}
