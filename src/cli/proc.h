/* A process in a sandbox, followed from here: its output comes out, our input, signals and window size go in.
 * One thread, one poll loop over libcurl's sockets, stdin and a signalfd. */
#pragma once

#include <jansson.h>

#include "cli/client.h"

#define HF_PROC_KEEPALIVE_S 30u           /* the sandbox sends a sign of life this often */
#define HF_PROC_SILENCE_S 100L            /* without one for this long the connection counts as lost */
#define HF_PROC_RECONNECT_MS 20000u       /* how long a daemon may be away before we give up */
#define HF_PROC_INPUT_MAX (256u * 1024u)  /* bytes of input read ahead */
#define HF_PROC_INPUT_BATCH (48u * 1024u) /* bytes of one SendInput */
#define HF_PROC_MESSAGE_MAX (16u * 1024u * 1024u)

enum hf_proc_stream { HF_PROC_STDOUT, HF_PROC_STDERR, HF_PROC_PTY };

struct hf_proc_spec {
    const char *cmd;
    char *const *args; /* after cmd */
    size_t n_args;
    const json_t *envs;  /* string map; NULL = none */
    const char *cwd;     /* NULL = the user's home */
    uint64_t timeout_ms; /* 0 = none */
    bool pty;
    bool forward_stdin; /* fd 0 goes to the process */
    bool detach;        /* return as soon as it runs */
    bool keep_alive;    /* prolong the sandbox's life while we are here */
    /* Output as it comes; NULL = to our stdout and stderr. Negative ends the process (SIGTERM) and drops what
     * follows. */
    int (*output)(void *arg, enum hf_proc_stream which, const char *p, size_t n);
    void *arg;
};

struct hf_proc_result {
    uint32_t pid; /* inside the sandbox; 0 = never started */
    bool ended;   /* the members below are true */
    bool exited;  /* by itself, exit_code tells; else by a signal */
    int exit_code;
    int signal;         /* number, 0 = none or not known */
    bool timed_out;     /* spec->timeout_ms ran out */
    bool left;          /* the person left the terminal with ~. */
    int interrupted;    /* signal that made us give up before an end was known; 0 = none */
    bool output_closed; /* nobody reads our output any more */
    uint64_t missed;    /* bytes of output that never reached us */
};

/* 0 when the result is known (look at it); negative when not: err says why. */
int hf_proc_run(struct hf_cli *cli, const struct hf_box *box, const struct hf_proc_spec *spec,
                struct hf_proc_result *ret, struct hf_err *err) HF_MUST_USE;

/* "signal: killed" -> 9; 0 when it names no signal. */
int hf_proc_signal_of(const char *status);
