#include "envd/forker.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>

#define STACK_SIZE (256u << 10) /* the child goes on with it up to execve */

enum state { OFF, IDLE, ASKED, DONE };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum state state;
    int threads_fd;
    void (*fn)(void *arg);
    void *arg;
    pid_t result;
} forker = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void set_state(enum state s)
{
    forker.state = s;
    (void)pthread_cond_broadcast(&forker.changed);
}

static void *run(void *unused)
{
    bool moved = write(forker.threads_fd, "0", 1) == 1;
    (void)pthread_mutex_lock(&forker.lock);
    set_state(moved ? IDLE : DONE);
    while (moved) {
        while (forker.state != ASKED)
            (void)pthread_cond_wait(&forker.changed, &forker.lock);
        /* Bare: the C library's fork would run handlers, and the filter of a box refuses clone3. */
        pid_t pid = (pid_t)syscall(SYS_clone, (unsigned long)SIGCHLD, 0UL, 0UL, 0UL, 0UL);
        if (pid == 0) {
            forker.fn(forker.arg);
            _exit(127);
        }
        forker.result = pid < 0 ? -errno : pid;
        set_state(DONE);
    }
    (void)pthread_mutex_unlock(&forker.lock);
    return NULL;
}

/* A write of "0" to cgroup.procs would move all of envd. */
static bool is_threads_file(int fd)
{
    char path[48], link[512];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, link, sizeof(link) - 1);
    if (n < 0)
        return false;
    link[n] = '\0';
    const char *name = strrchr(link, '/');
    return name && (strcmp(name, "/tasks") == 0 || strcmp(name, "/cgroup.threads") == 0);
}

void forker_start(int threads_fd)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    if (threads_fd < 0 || !is_threads_file(threads_fd) || pthread_attr_init(&attr) != 0)
        return;
    forker.threads_fd = threads_fd;
    (void)pthread_attr_setstacksize(&attr, STACK_SIZE);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(&thread, &attr, run, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    (void)pthread_attr_destroy(&attr);
    if (r)
        return;
    (void)pthread_mutex_lock(&forker.lock);
    while (forker.state == OFF)
        (void)pthread_cond_wait(&forker.changed, &forker.lock);
    if (forker.state == DONE) /* it could not move, and has ended */
        forker.state = OFF;
    (void)pthread_mutex_unlock(&forker.lock);
}

pid_t forker_fork(void (*fn)(void *arg), void *arg)
{
    if (forker.state == OFF)
        return -ENOSYS;
    (void)pthread_mutex_lock(&forker.lock);
    forker.fn = fn;
    forker.arg = arg;
    set_state(ASKED);
    while (forker.state != DONE)
        (void)pthread_cond_wait(&forker.changed, &forker.lock);
    pid_t pid = forker.result;
    forker.state = IDLE;
    (void)pthread_mutex_unlock(&forker.lock);
    return pid;
}
