/* What the tests of engine/disk share: a data directory of their own below /tmp, and a clean-up that also
 * works when a test crashes. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/err.h"

#define FIXTURE_POOL_BYTES (2ull << 30)

/* /tmp/hf-disk-<pid>/{data,run}; valid inside fixture_main's test function. */
extern char fixture_data[64], fixture_run[64], fixture_top[48];

/* Runs tests() in a child process, then unmounts and removes everything below fixture_top whatever became of
 * the child. Ends with 77 and a reason where the host lets nobody mount. step (may be NULL): what
 * fixture_in_child makes a process of its own do; its result is the exit code. */
int fixture_main(int argc, char **argv, int (*tests)(void), int (*step)(const char *what));

/* Runs step(what) in a new process of this program; the pid. killpoint (may be NULL): HOLDFAST_KILLPOINT. */
int fixture_start(const char *what, const char *killpoint);
/* As above and waits for it; the wait status. */
int fixture_in_child(const char *what, const char *killpoint);
int fixture_wait(int pid);
/* Runs step(what) with that kill point, and fails the test unless it was reached. */
void fixture_kill_at(const char *what, const char *killpoint);

void fixture_write(const char *path, const void *p, size_t n, unsigned mode);
bool fixture_exists(const char *path);

#define assert_ok(call, err)                                     \
    do {                                                         \
        int assert_r_ = (call);                                  \
        if (assert_r_ < 0)                                       \
            fail_msg("%s: %d %s", #call, assert_r_, (err)->msg); \
    } while (0)
