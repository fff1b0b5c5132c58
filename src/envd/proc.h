/* The processes of the box: table, output, input, readers. Loop thread only.
 *
 * A process belongs to the table, to its open handles and to its readers by reference count. Its life:
 * starting (the child has not executed its program yet) -> running -> ended (exit status known and output
 * complete) -> forgotten, when PROC_ENDED_MAX younger ones have ended. */
#pragma once

#include "base/list.h"
#include "envd/awake.h"
#include "envd/envd.h"
#include "envd/rpc.h"
#include "envd/rpcwire.h"
#include "envd/spool.h"

#define PROC_PIPE_CHUNK 32768u                /* bytes of one data event from a pipe */
#define PROC_PTY_CHUNK 16384u                 /* the same from a PTY */
#define PROC_READS_PER_WAKE 4                 /* chunks taken before other work gets its turn */
#define PROC_STALL_MS 2000u                   /* how long a full reader may hold its process up, once */
#define PROC_ID_LEN 21u                       /* "x" and 20 of [a-z0-9] */
#define PROC_TAG_MAX 4096u                    /* bytes of a tag */
#define PROC_ATTACH_MS 30000u                 /* how long an ended process can be connected to */
#define PROC_ENDED_MAX 64u                    /* ended processes that are remembered */
#define PROC_INPUT_MAX (32u * 1024u * 1024u)  /* bytes of input waiting for one process */
#define PROC_INPUTS_MAX (64u * 1024u * 1024u) /* … and for all of them */
#define PROC_LAST_DRAIN_MAX (1024u * 1024u)   /* output taken after a kill, before the end is told */
#define PROC_OOM_SCORE_ADJ 500                /* user processes go before envd when memory is out */

enum proc_stream { PROC_STDOUT, PROC_STDERR, PROC_PTY, PROC_STREAMS };
enum proc_state { PROC_STARTING, PROC_RUNNING, PROC_ENDED };
extern const char *const proc_stream_names[PROC_STREAMS];

struct proc;

struct proc_out {
    struct proc *p;
    uv_poll_t poll;
    int fd; /* -1 = closed or never there */
    struct spool spool;
};

/* One piece of input; done is called exactly once with 0 or -errno. */
struct proc_input {
    struct hf_list link;
    char *data;
    size_t n, off;
    void (*done)(void *arg, int r);
    void *arg;
};

struct proc {
    struct hf_list link; /* table: running first come, ended ones in the order of their end */
    unsigned refs;
    struct envd *e;
    char id[PROC_ID_LEN + 1]; /* exec id: unlike the pid never used twice */
    pid_t pid;
    enum proc_state state;
    char *tag;      /* may be NULL */
    json_t *config; /* as List shows it */
    bool pty;
    int64_t started_ms;                  /* real time */
    uint64_t ended_mono_ms;              /* when it ended */
    bool leader_dead, killed, timed_out; /* killed: a signal from us ends the wait for the output's end */
    int wait_status;
    struct proc_out out[PROC_STREAMS];
    bool held; /* reading is stopped for a full reader */
    uv_timer_t stall;
    struct awake_timer deadline;
    int in_fd; /* -1 = no stdin, or closed */
    uv_poll_t in_poll;
    struct hf_list input;
    size_t input_bytes;
    bool close_input; /* when the queue is empty */
    struct hf_list readers;
    uv_poll_t status_poll;
    int status_fd;
    struct rpc_call *starter; /* waits for the child's execve */
};

/* ---- proc.c: table and life ---- */

void proc_ref(struct proc *p);
void proc_unref(struct proc *p);
/* Takes the spawned child (fds of ret are taken); starter gets the start event or the error later. */
struct spawned;
struct proc *proc_new(struct envd *e, const struct spawned *s, json_t *config /* taken */, const char *tag,
                      struct rpc_call *starter, uint64_t timeout_ms);
/* NULL when unknown. By tag: the youngest running one, else the youngest ended one; an exec id is a tag, too.
 */
struct proc *proc_by_pid(uint32_t pid);
struct proc *proc_by_tag(const char *tag);
struct proc *proc_by_id(struct hf_str id);
/* The table, for reading. */
struct hf_list *proc_table(void);
/* The box goes on after a pause: what had ended before can be connected to for PROC_ATTACH_MS from now. */
void proc_resumed(void);
/* True while Connect without a cursor may attach. */
bool proc_attachable(const struct proc *p);
/* Signals the leader, with SIGKILL its process group too. 0 or -errno. */
int proc_signal(struct proc *p, int sig) HF_MUST_USE;
/* The starting call's deadline has passed: kills it. */
void proc_time_out(struct proc *p);
/* Reaps whatever has ended (SIGCHLD). */
void proc_reap(void);
/* Kills everything that runs (envd ends). */
void proc_kill_all(int sig);
/* Stops reading the output, for at most PROC_STALL_MS. */
void proc_hold(struct proc *p);
/* Readers caught up or gone: go on reading. */
void proc_release(struct proc *p);
/* "exit status 3", "signal: killed" */
void proc_status_text(int wait_status, char *out, size_t n);

/* ---- input.c ---- */

void input_init(struct proc *p, int fd);
/* data is copied. done may be called before this returns. */
void input_write(struct proc *p, const void *data, size_t n, void (*done)(void *arg, int r), void *arg);
/* After what is queued has been written. */
void input_close(struct proc *p);
/* At once; queued input fails with -EPIPE. */
void input_abort(struct proc *p);

/* ---- fanout.c ---- */

/* Makes c a reader of p. from NULL: live only; an absent cursor in from: live only for that output. Sends the
 * start event first. */
void fan_attach(struct proc *p, struct rpc_call *c, const struct rpc_cursor *from, bool starter);
/* n new bytes, already in the spool. */
void fan_data(struct proc *p, enum proc_stream s, const void *data, size_t n);
/* p has ended: readers that are at the end are told now, others when they get there. */
void fan_end(struct proc *p);
/* True while a reader that may still be waited for is so far behind that bytes would be lost. */
bool fan_must_hold(const struct proc *p);
/* Stops waiting for the readers that fan_must_hold waited for. */
void fan_give_up(struct proc *p);
