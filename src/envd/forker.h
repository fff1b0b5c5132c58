/* A thread that lives in the cgroup of the user's processes and forks for envd. What it forks is in that
 * cgroup from the start: moving a child there afterwards costs a grace period of the kernel, 5 to 20 ms on an
 * idle host, at every exec. */
#pragma once

#include <sys/types.h>

#include "base/base.h"

/* threads_fd: the cgroup's "tasks" (v1) or "cgroup.threads" (v2), open for writing; anything else is left
 * alone, and forker_fork then answers -ENOSYS. Call before other threads exist. */
void forker_start(int threads_fd);
/* Forks on that thread, with all signals blocked; the child runs fn(arg), which must not return and may only
 * use what is async-signal-safe. The pid; -ENOSYS without the thread, or fork's errno: -EAGAIN when the
 * cgroup is full. Loop thread only. */
pid_t forker_fork(void (*fn)(void *arg), void *arg);
