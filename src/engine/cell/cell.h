/* Parts of the cell driver. Everything runs on the loop's thread, except functions named *_work, which run
 * on a worker thread and touch only what their job holds.
 *
 * A box goes QUEUED → STARTING → RUNNING → ENDED → REMOVING; from any state to REMOVING. */
#pragma once

#include <uv.h>

#include "base/list.h"
#include "engine/driver.h"
#include "engine/shim/spec.h"

/* Supervisors that start at the same time; further creates wait their turn. */
#define CELL_STARTS_PER_CPU 2u
#define CELL_STARTS_MIN 2u
#define CELL_STARTS_MAX 16u
/* Warm boxes that start at the same time: one, so that refilling does not fight with requests. */
#define CELL_WARM_STARTS 1u
#define CELL_WARM_QUIET_MS 25u   /* after a claim, see cell_pool_fill */
#define CELL_WARM_RETRY_MS 5000u /* after a warm box failed to start */
/* A supervisor that has not ended its box this long after being asked is killed. */
#define CELL_KILL_TIMEOUT_MS 5000u
#define CELL_DIAL_TIMEOUT_MS 10000u

#define CELL_DEFAULT_CPU_MILLIS 2000u
#define CELL_DEFAULT_MEMORY (512ull << 20)
#define CELL_DEFAULT_PIDS 1024u
#define CELL_DEFAULT_DISK (1ull << 30)
#define CELL_MEMORY_MIN (16ull << 20)

enum cell_state { CELL_QUEUED, CELL_STARTING, CELL_RUNNING, CELL_ENDED, CELL_REMOVING };

struct cell_watch;
typedef void (*cell_watch_cb)(void *arg, int events);

struct hf_box {
    struct hf_list link; /* cell_driver.boxes */
    struct hf_list turn; /* cell_driver.queue or cell_driver.warm */
    struct cell_driver *d;
    enum cell_state state;
    struct hf_cell_spec spec;
    bool warm;    /* nobody's yet */
    bool ours;    /* created or adopted: its end is reported */
    bool counted; /* in cell_driver.starting (and warm_starting) */
    char ctl_path[HF_CELL_PATH_MAX + 16], envd_path[HF_CELL_PATH_MAX + 16];

    int fd;                   /* to the shim; -1 = none */
    struct cell_watch *watch; /* of fd */
    int pidfd;                /* of the shim; -1 = it is gone */
    struct cell_watch *pid_watch;
    pid_t shim_pid;
    int disk_fd_in_shim; /* number of its descriptor of the writable layer; -1 = unknown */
    struct hf_list requests, dials, wirings, savings;
    bool frozen;
    uint64_t last_request;

    bool exit_known;
    struct hf_cell_exit exit;
    struct hf_err start_err; /* what made the start fail */
    hf_box_cb create_cb;
    void *create_arg;
    hf_done_cb remove_cb;
    void *remove_arg;
    uv_timer_t *kill_timer;

    uint64_t stats_cpu_ns, stats_at_ns;
};

struct cell_driver {
    struct hf_driver base; /* first */
    char *data_dir, *run_dir, *shim_path, *envd_path;
    char *criu_path;              /* "" = none: processes can't be saved */
    struct hf_cell_fabric fabric; /* ns "": none */
    struct hf_cg cg;
    bool reflink;
    struct hf_list boxes;
    struct hf_list queue; /* boxes that wait for their turn to start */
    unsigned starting, starts_max;
    uint32_t next_n; /* the next cell's number; none is used twice (see numbers.c) */
    uint32_t kept_n; /* RUN/number on disk: a later daemon goes on from there */

    struct hf_list warm; /* running, unclaimed */
    char warm_template[HF_CELL_ID_MAX];
    uint32_t warm_target;
    unsigned warm_ready, warm_starting;
    uv_timer_t *warm_retry, *warm_quiet;
    uint64_t last_claim_ms;

    unsigned jobs; /* on worker threads */
    bool closing, close_kill_pool, closed;
    hf_done_cb close_cb;
    void *close_arg;
};

static inline struct cell_driver *cell_of(struct hf_driver *d)
{
    return (struct cell_driver *)d;
}

/* ---- loop.c: small tools on top of libuv ---- */

/* Calls cb(arg, UV_READABLE | UV_WRITABLE …) until freed; does not own fd. Never NULL. */
struct cell_watch *cell_watch_new(uv_loop_t *loop, int fd, int events, cell_watch_cb cb, void *arg);
/* No callback comes afterwards. Then fd is closed (fd < 0: not). */
void cell_watch_free(struct cell_watch *w, int fd);
/* fn(arg) on the next turn of the loop. */
void cell_defer(uv_loop_t *loop, void (*fn)(void *arg), void *arg);
uv_timer_t *cell_timer_new(uv_loop_t *loop, uint64_t ms, void (*fn)(void *arg), void *arg);
void cell_timer_free(uv_timer_t **t);
/* Runs work(job) on a worker thread and done(job) on the loop; counts in d->jobs. */
void cell_job(struct cell_driver *d, void (*work)(void *job), void (*done)(void *job), void *job);

/* ---- box.c ---- */

struct hf_box *cell_box_new(struct cell_driver *d, uint32_t n);
void cell_box_free(struct hf_box *box); /* closes everything of it on our side */
/* Sets the number and every path that follows from it. */
void cell_box_number(struct hf_box *box, uint32_t n);
/* The supervisor is there: fd and pidfd are the box's from now on. */
void cell_box_connect(struct hf_box *box, int fd, int pidfd, pid_t pid);
/* Ends it and removes everything; cb (may be NULL) when nothing is left; the handle is freed before. */
void cell_box_remove(struct hf_box *box, hf_done_cb cb, void *arg);
void cell_report_end(struct hf_box *box);
void cell_box_fail(struct hf_box *box, const struct hf_err *err); /* a start that failed */

/* ---- conn.c ---- */

/* The answer: its text, and the descriptor that came with it (the callback's; -1 = none); err for failures,
 * text is empty then. */
typedef void (*cell_answer_cb)(void *arg, const struct hf_err *err, struct hf_str text, int fd);
/* more: further lines, may be NULL. cb comes later, in any case once. */
void cell_request(struct hf_box *box, const char *op, const struct hf_buf *more, cell_answer_cb cb,
                  void *arg);
void cell_fail_requests(struct hf_box *box, const struct hf_err *err);
/* Reads what is there; events go to cell_box_*. */
void cell_conn_read(struct hf_box *box);
int cell_send_kill(struct hf_box *box) HF_MUST_USE;
/* Blocking: SIGKILL to the process that listens on dir's shim.sock. Call while its lock is held. */
void cell_kill_supervisor(const char *dir);
/* Blocking, for scan: asks a shim for its info. */
int cell_ask_info(const char *dir, int *ret_fd, pid_t *ret_pid, struct hf_cell_spec *spec, bool *ret_frozen,
                  int *ret_disk_fd) HF_MUST_USE;

/* box.c: what the supervisor said */
void cell_on_ready(struct hf_box *box, struct hf_str text);
void cell_on_failed(struct hf_box *box, struct hf_str text);
void cell_on_exit(struct hf_box *box, struct hf_str text);

/* ---- numbers.c ---- */

void cell_numbers_open(struct cell_driver *d);
void cell_numbers_close(struct cell_driver *d);
uint32_t cell_number_next(struct cell_driver *d);
void cell_number_used(struct cell_driver *d, uint32_t n);
/* Blocking: the first free number from `from` on whose addresses no living box has; makes its directory,
 * which is the reservation, and sets n and dir. */
int cell_number_take(const struct cell_driver *d, uint32_t from, struct hf_cell_spec *spec,
                     struct hf_err *err) HF_MUST_USE;

/* ---- start.c ---- */

void cell_start(struct hf_box *box); /* queues it */
void cell_start_pump(struct cell_driver *d);
void cell_start_over(struct hf_box *box); /* it no longer starts, for better or worse */

/* ---- remove.c: blocking ---- */

/* Removes what is left of a cell whose supervisor is dead or about to die. Idempotent. */
int cell_remains_remove(const struct cell_driver *d, const struct hf_cell_spec *spec,
                        struct hf_err *err) HF_MUST_USE;

/* ---- pool.c ---- */

void cell_pool_fill(struct cell_driver *d);
bool cell_pool_fits(const struct hf_box *box); /* a found member is what we would make now */
void cell_pool_add(struct hf_box *box);        /* it became ready */
void cell_pool_drop(struct hf_box *box);       /* it is no member any more */
struct hf_box *cell_pool_take(struct cell_driver *d, const struct hf_cell_spec *want);
void cell_pool_set(struct cell_driver *d, const char *template_id, uint32_t count);
void cell_pool_empty(struct cell_driver *d);
void cell_pool_failed(struct cell_driver *d); /* a warm box did not start */

/* ---- driver.c and the other operations ---- */

void cell_close_if_idle(struct cell_driver *d);
void cell_close_soon(void *d); /* for cell_defer */
void cell_create(struct hf_driver *base, const struct hf_box_spec *spec, hf_box_cb cb, void *arg);
void cell_scan(struct hf_driver *base, void (*found)(void *arg, const struct hf_box_found *f),
               hf_done_cb done, void *arg);
void cell_dial(struct hf_driver *base, struct hf_box *box, uint16_t port, hf_fd_cb cb, void *arg);
void cell_network(struct hf_driver *base, struct hf_box *box, bool up, hf_done_cb cb, void *arg);
void cell_freeze(struct hf_driver *base, struct hf_box *box, bool frozen, hf_done_cb cb, void *arg);
void cell_save(struct hf_driver *base, struct hf_box *box, const struct hf_box_save *save, hf_box_save_cb cb,
               void *arg);
void cell_savings_orphan(struct hf_box *box);
void cell_dials_orphan(struct hf_box *box); /* dials under way may no longer use the box */
void cell_wirings_orphan(struct hf_box *box);
/* Blocking: takes the interface of a dead cell out of the fabric. Missing is success; what fails is logged:
 * the interface goes with its namespace sooner or later, and carries nothing once its policy is gone. */
void cell_unplug(const struct hf_cell_spec *spec);
int cell_stats(struct hf_driver *base, struct hf_box *box, struct hf_box_stats *ret);
