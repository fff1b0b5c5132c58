/* Probes of field experience: what an attacker tries inside a box. Each prints "ok N" or "not ok N reason".
 * Run as root and as the user of the box, who both must fail to get anywhere. */
#pragma once

#include <stdbool.h>

/* Facts of the host that the test passes in: a path, a pid and an abstract socket that exist outside. */
struct host_facts {
    const char *path;
    int pid;
    const char *abstract;
};
extern struct host_facts facts;

/* A failed statement: remembers the reason and returns false. */
bool no(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* True when r < 0 and errno is one of the given numbers (0-terminated); otherwise a failure named what. */
bool refused(long r, const char *what, ...);
/* As refused, for EPERM alone. */
bool denied(long r, const char *what);
/* Runs fn in a child; its wait status. */
int in_child(int (*fn)(void));

struct probe {
    int number;
    bool (*fn)(void);
};
extern const struct probe file_probes[], kernel_probes[], process_probes[]; /* end with number 0 */

/* modes.c: helpers that a test runs as programs; -1 = no such mode. */
int run_mode(int argc, char **argv);
