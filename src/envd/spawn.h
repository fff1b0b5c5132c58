/* Starts a child: fork by a raw clone3, then only async-signal-safe calls up to execve. Does not block: the
 * result of the child's own steps arrives on status_fd. */
#pragma once

#include <sys/resource.h>

#include "envd/envd.h"

#define SPAWN_PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

enum spawn_stdin { SPAWN_STDIN_NULL, SPAWN_STDIN_PIPE };

struct spawn_req {
    const char *cmd;
    char **argv;      /* argv[0] is a spare slot, argv[1] the command; ends with NULL */
    char **envp;      /* ends with NULL */
    const char *path; /* where cmd is looked up; "" = nowhere */
    const char *cwd;
    bool cwd_optional; /* "/" when cwd can't be entered */
    const struct envd_user *user;
    enum spawn_stdin in;
    bool pty;
    uint16_t cols, rows;
    int cgroup_fd; /* cgroup.procs, or the cgroup's directory; -1 = none */
};

struct spawned {
    pid_t pid;
    int in;        /* pipe or a duplicate of the PTY's master; -1 = none */
    int out, err;  /* pipes; -1 with a PTY */
    int pty;       /* master; -1 without */
    int status_fd; /* EOF: the program was executed; else one struct spawn_failure */
};

enum spawn_stage { SPAWN_CGROUP = 1, SPAWN_SESSION, SPAWN_CREDS, SPAWN_CWD, SPAWN_EXEC };
struct spawn_failure {
    int stage; /* enum spawn_stage */
    int err;   /* errno */
};

/* Reads what every child needs of envd itself: its limits and oom_score_adj. */
void spawn_setup(void);
/* 0 or -errno of making pipes, PTY or the process. Nothing is left behind on failure. */
int spawn_child(const struct spawn_req *q, struct spawned *ret) HF_MUST_USE;
/* One sentence for a failure, as the child's stage and errno tell it. */
const char *spawn_stage_text(int stage);
