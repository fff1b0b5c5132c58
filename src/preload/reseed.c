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
 * the handler asks the interpreter for a call at its next safe point (Py_AddPendingCall).
 *
 * Linked against nothing, so that it loads into programs of any libc. What it calls is looked up in the
 * program: syscall, sigaction and __errno_location, which every libc has. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "preload/reseed.h"

#define PAGE 4096u
#define PID_BITS 22 /* the largest pid of Linux has that many */
#define CALLERS 16u
#define AGAIN_MS 2u        /* after that long the interpreter is asked again, then after twice of it … */
#define AGAIN_MAX_MS 2000u /* … up to this */

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

static volatile int asked; /* for a call that did not come yet */
static int timer = -1;
static unsigned again_ms;

/* A main thread that waits for a lock goes back to waiting after the first signal, since it was taken out of
 * a system call that is made anew. A later one interrupts it (so no SA_RESTART), and Python then looks for
 * pending calls. */
static void ask_again(void)
{
    struct itimerspec at = {.it_value = {.tv_sec = again_ms / 1000, .tv_nsec = again_ms % 1000 * 1000000}};
    struct sigevent ev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = HF_RESEED_SIGNAL};
    if (syscall(SYS_timer_settime, timer, 0, &at, NULL) == 0)
        return;
    if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &ev, &timer) == 0)
        (void)syscall(SYS_timer_settime, timer, 0, &at, NULL);
}

static int reseed(void *arg)
{
    static const char text[] = "import sys\n"
                               "for _n in ('random', 'numpy.random'):\n"
                               "    _m = sys.modules.get(_n)\n"
                               "    if _m is not None: _m.seed()\n"
                               "del _n, _m\n";
    (void)arg;
    asked = 0; /* first: a clone that is made from here on has to do it again */
    (void)syscall(SYS_timer_delete, timer);
    timer = -1;
    if (PyRun_SimpleString)
        (void)PyRun_SimpleString(text);
    return 0;
}

static void on_clone(int sig)
{
    int saved = errno;
    (void)sig;
    again_ms = timer < 0 ? AGAIN_MS : again_ms < AGAIN_MAX_MS ? again_ms * 2 : again_ms;
    if (!asked)
        asked = Py_AddPendingCall(reseed, NULL) == 0;
    ask_again();
    errno = saved;
}

__attribute__((constructor)) static void begin(void)
{
    int saved = errno;
    long fd = syscall(SYS_openat, AT_FDCWD, HF_RESEED_GENERATION, O_RDONLY | O_CLOEXEC);
    long p = fd < 0 ? -1 : syscall(SYS_mmap, NULL, (size_t)PAGE, PROT_READ, MAP_SHARED, fd, 0L);
    if (fd >= 0)
        (void)syscall(SYS_close, fd);
    errno = saved;
    if (p == -1)
        return;
    page = (const volatile char *)p;
    first = read_generation();
    if (Py_AddPendingCall) {
        struct sigaction old, act = {.sa_handler = on_clone};
        if (sigaction(HF_RESEED_SIGNAL, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            (void)sigaction(HF_RESEED_SIGNAL, &act, NULL);
    }
}
