#include "envd/proc.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "envd/spawn.h"

const char *const proc_stream_names[PROC_STREAMS] = {"stdout", "stderr", "pty"};

/* Free bytes inside the heap that are given back when nothing runs any more. */
#define TRIM_AT (1024u * 1024u)

static struct hf_list table = {&table, &table};
static size_t ended_count, live_count;

struct hf_list *proc_table(void)
{
    return &table;
}

void proc_ref(struct proc *p)
{
    p->refs++;
}

void proc_unref(struct proc *p)
{
    if (--p->refs > 0)
        return;
    for (int i = 0; i < PROC_STREAMS; i++)
        spool_done(&p->out[i].spool);
    json_decref(p->config);
    free(p->tag);
    free(p);
}

static void handle_closed(uv_handle_t *h)
{
    proc_unref(h->data);
}

static void timer_init(struct proc *p, uv_timer_t *t)
{
    (void)uv_timer_init(p->e->loop, t); /* can't fail */
    t->data = p;
    proc_ref(p);
}

/* ---- looking up ---- */

bool proc_attachable(const struct proc *p)
{
    return p->state == PROC_RUNNING ||
           (p->state == PROC_ENDED && hf_mono_ms() - p->ended_mono_ms < PROC_ATTACH_MS);
}

struct proc *proc_by_pid(uint32_t pid)
{
    struct proc *found = NULL;
    hf_list_foreach(it, &table)
    {
        struct proc *p = hf_list_entry(it, struct proc, link);
        if ((uint32_t)p->pid != pid || p->state == PROC_STARTING)
            continue;
        if (p->state == PROC_RUNNING)
            return p;
        found = p; /* numbers come back: the youngest counts */
    }
    return found;
}

struct proc *proc_by_id(struct hf_str id)
{
    hf_list_foreach(it, &table)
    {
        struct proc *p = hf_list_entry(it, struct proc, link);
        if (p->state != PROC_STARTING && hf_str_eq(id, p->id))
            return p;
    }
    return NULL;
}

struct proc *proc_by_tag(const char *tag)
{
    struct proc *found = proc_by_id(hf_str_c(tag));
    if (found)
        return found;
    hf_list_foreach(it, &table)
    {
        struct proc *p = hf_list_entry(it, struct proc, link);
        if (!p->tag || strcmp(p->tag, tag) != 0 || p->state == PROC_STARTING)
            continue;
        if (!found || found->state == PROC_ENDED)
            found = p;
    }
    return found;
}

/* ---- the end ---- */

void proc_status_text(int wait_status, char *out, size_t n)
{
    if (WIFSIGNALED(wait_status)) {
        int sig = WTERMSIG(wait_status);
        const char *name = sig == SIGKILL ? "killed" : sig == SIGTERM ? "terminated" : strsignal(sig);
        char lower[64];
        (void)snprintf(lower, sizeof(lower), "%s", name ? name : "unknown signal");
        if (lower[0] >= 'A' && lower[0] <= 'Z')
            lower[0] = (char)(lower[0] - 'A' + 'a');
        (void)snprintf(out, n, "signal: %s%s", lower, WCOREDUMP(wait_status) ? " (core dumped)" : "");
        return;
    }
    (void)snprintf(out, n, "exit status %d", WEXITSTATUS(wait_status));
}

static void close_timers(struct proc *p)
{
    uv_close((uv_handle_t *)&p->stall, handle_closed);
    awake_close(&p->deadline, handle_closed);
}

static void forget(struct proc *p)
{
    hf_list_del(&p->link);
    proc_unref(p);
}

/* The child is gone, or never became one. A burst of processes leaves holes in the heap that the C library
 * would keep for ever. */
static void count_down(void)
{
    if (--live_count == 0 && mallinfo2().fordblks > TRIM_AT)
        (void)malloc_trim(0);
}

void proc_resumed(void)
{
    hf_list_foreach(it, &table)
    {
        struct proc *p = hf_list_entry(it, struct proc, link);
        if (p->state == PROC_ENDED)
            p->ended_mono_ms = hf_mono_ms();
    }
}

/* Remembers the youngest PROC_ENDED_MAX, and fewer when their output fills the spool. */
static void trim_ended(void)
{
    hf_list_foreach_safe(it, &table)
    {
        struct proc *p = hf_list_entry(it, struct proc, link);
        if (p->state != PROC_ENDED)
            continue;
        bool old = hf_mono_ms() - p->ended_mono_ms >= PROC_ATTACH_MS;
        if (ended_count <= PROC_ENDED_MAX && !(old && spool_total() > SPOOL_TOTAL_MAX))
            return;
        ended_count--;
        forget(p);
    }
}

static bool outputs_open(const struct proc *p)
{
    for (int i = 0; i < PROC_STREAMS; i++)
        if (p->out[i].fd >= 0)
            return true;
    return false;
}

static void out_close(struct proc_out *o)
{
    if (o->fd < 0)
        return;
    int fd = hf_take_fd(&o->fd);
    (void)uv_poll_stop(&o->poll);
    uv_close((uv_handle_t *)&o->poll, handle_closed);
    (void)hf_close(fd);
    spool_rest(&o->spool);
}

/* One read; > 0 bytes, 0 nothing now, -1 end of the output. */
static ssize_t out_read(struct proc_out *o, char *chunk)
{
    struct proc *p = o->p;
    enum proc_stream s = (enum proc_stream)(o - p->out);
    ssize_t n;
    do {
        n = read(o->fd, chunk, s == PROC_PTY ? PROC_PTY_CHUNK : PROC_PIPE_CHUNK);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN ? 0 : -1; /* EIO: the last slave of the PTY is closed */
    if (n == 0)
        return -1;
    if (p->state == PROC_ENDED) /* a grandchild kept the pipe: nobody waits for this any more */
        return n;
    spool_add(&o->spool, chunk, (size_t)n);
    fan_data(p, s, chunk, (size_t)n);
    return n;
}

/* The leader was killed: what it had written is told before its end, what others write later is not. */
static void last_drain(struct proc *p)
{
    hf_auto_free char *chunk = hf_xmalloc(PROC_PIPE_CHUNK);
    for (int i = 0; i < PROC_STREAMS; i++) {
        size_t left = PROC_LAST_DRAIN_MAX;
        ssize_t n = 0;
        while (p->out[i].fd >= 0 && left > 0 && (n = out_read(&p->out[i], chunk)) > 0)
            left -= HF_MIN(left, (size_t)n);
        if (n < 0)
            out_close(&p->out[i]);
    }
}

/* An ended process is not listed any more: its arguments and environment, up to 2 MiB, can go. */
static void shrink_config(struct proc *p)
{
    json_t *config = json_object();
    json_object_set(config, "cmd", json_object_get(p->config, "cmd"));
    json_decref(p->config);
    p->config = config;
}

static void check_end(struct proc *p)
{
    if (p->state != PROC_RUNNING || !p->leader_dead)
        return;
    if (p->killed)
        last_drain(p);
    else if (outputs_open(p))
        return;
    proc_ref(p);
    p->state = PROC_ENDED;
    p->ended_mono_ms = hf_mono_ms();
    shrink_config(p);
    hf_list_del(&p->link);
    hf_list_add_tail(&table, &p->link);
    ended_count++;
    close_timers(p);
    input_abort(p);
    fan_end(p);
    proc_release(p); /* outputs that are still open are read to their end */
    trim_ended();
    count_down();
    proc_unref(p);
}

/* ---- output ---- */

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct proc_out *o = HF_CONTAINER_OF(poll, struct proc_out, poll);
    struct proc *p = o->p;
    hf_auto_free char *chunk = hf_xmalloc(PROC_PIPE_CHUNK);
    proc_ref(p);
    ssize_t n = status < 0 ? -1 : 1;
    for (int i = 0; i < PROC_READS_PER_WAKE && n > 0 && !p->held; i++)
        n = out_read(o, chunk);
    if (n < 0) {
        out_close(o);
        check_end(p);
    }
    proc_unref(p);
}

static void set_reading(struct proc *p, bool on)
{
    for (int i = 0; i < PROC_STREAMS; i++) {
        if (p->out[i].fd < 0)
            continue;
        if (on)
            (void)uv_poll_start(&p->out[i].poll, UV_READABLE, on_readable);
        else
            (void)uv_poll_stop(&p->out[i].poll);
    }
}

static void stalled(uv_timer_t *t)
{
    struct proc *p = t->data;
    fan_give_up(p);
    proc_release(p);
}

void proc_hold(struct proc *p)
{
    if (p->held || p->state != PROC_RUNNING)
        return;
    p->held = true;
    set_reading(p, false);
    (void)uv_timer_start(&p->stall, stalled, PROC_STALL_MS, 0);
}

void proc_release(struct proc *p)
{
    if (!p->held || (p->state == PROC_RUNNING && fan_must_hold(p)))
        return;
    p->held = false;
    if (p->state == PROC_RUNNING)
        (void)uv_timer_stop(&p->stall);
    set_reading(p, true);
}

static char *spool_path(const struct proc *p, enum proc_stream s)
{
    return p->e->spool_dir ? hf_xasprintf("%s/%d-%lld.%s", p->e->spool_dir, (int)p->pid,
                                          (long long)p->started_ms, proc_stream_names[s])
                           : NULL;
}

static void out_init(struct proc *p, enum proc_stream s, int fd)
{
    struct proc_out *o = &p->out[s];
    o->p = p;
    o->fd = -1;
    spool_init(&o->spool, fd >= 0 ? spool_path(p, s) : NULL);
    if (fd < 0)
        return;
    if (uv_poll_init(p->e->loop, &o->poll, fd) < 0) {
        (void)hf_close(fd);
        return;
    }
    o->fd = fd;
    o->poll.data = p;
    proc_ref(p);
}

/* ---- the beginning ---- */

static void started(struct proc *p)
{
    struct rpc_call *c = hf_take_ptr(p->starter);
    p->state = PROC_RUNNING;
    if (c) {
        rpc_set_ops(c, NULL, NULL);
        fan_attach(p, c, NULL, true);
    }
    set_reading(p, true);
    check_end(p);
}

static void start_failed(struct proc *p, const struct spawn_failure *f)
{
    struct rpc_call *c = hf_take_ptr(p->starter);
    const char *cmd = json_string_value(json_object_get(p->config, "cmd"));
    const char *cwd = json_string_value(json_object_get(p->config, "cwd"));
    if (c)
        rpc_set_ops(c, NULL, NULL);
    if (c && f->stage == SPAWN_CWD && (f->err == ENOENT || f->err == ENOTDIR))
        rpc_fail(c, RPC_INVALID_ARGUMENT, "cwd '%s' does not exist", cwd ? cwd : "");
    else if (c)
        rpc_fail(c, RPC_INVALID_ARGUMENT, "error starting process '%s': %s: %s", cmd,
                 spawn_stage_text(f->stage), strerror(f->err));
    for (int i = 0; i < PROC_STREAMS; i++)
        out_close(&p->out[i]);
    input_abort(p);
    close_timers(p);
    forget(p);
    count_down();
}

static void on_status(uv_poll_t *poll, int status, int events)
{
    struct proc *p = poll->data;
    struct spawn_failure f;
    ssize_t n = read(p->status_fd, &f, sizeof(f));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    int fd = hf_take_fd(&p->status_fd);
    (void)uv_poll_stop(poll);
    uv_close((uv_handle_t *)poll, handle_closed); /* its reference lasts until the loop's next turn */
    (void)hf_close(fd);
    if (n == (ssize_t)sizeof(f))
        start_failed(p, &f);
    else
        started(p);
}

static void starter_gone(struct rpc_call *c)
{
    struct proc *p = rpc_data(c);
    p->starter = NULL;
}

void proc_time_out(struct proc *p)
{
    p->timed_out = true;
    if (proc_signal(p, SIGKILL) < 0)
        hf_log_debug("a process outran its deadline", "pid=%d", (int)p->pid);
}

static void past_deadline(struct awake_timer *t)
{
    proc_time_out(t->uv.data);
}

static void starter_timed_out(struct rpc_call *c)
{
    proc_time_out(rpc_data(c));
}

static const struct rpc_ops starter_ops = {.on_close = starter_gone, .on_timeout = starter_timed_out};

struct proc *proc_new(struct envd *e, const struct spawned *s, json_t *config, const char *tag,
                      struct rpc_call *starter, uint64_t timeout_ms)
{
    struct proc *p = hf_new(struct proc);
    p->refs = 1;
    p->e = e;
    p->id[0] = 'x';
    hf_random_id(p->id + 1, PROC_ID_LEN - 1);
    p->pid = s->pid;
    p->config = config;
    p->tag = tag ? hf_xstrdup(tag) : NULL;
    p->pty = s->pty >= 0;
    p->started_ms = hf_real_ms();
    p->status_fd = s->status_fd;
    hf_list_init(&p->readers);
    hf_list_add_head(&table, &p->link);
    live_count++;
    out_init(p, PROC_STDOUT, s->out);
    out_init(p, PROC_STDERR, s->err);
    out_init(p, PROC_PTY, s->pty);
    input_init(p, s->in);
    timer_init(p, &p->stall);
    awake_init(e->loop, &p->deadline);
    p->deadline.uv.data = p;
    proc_ref(p);
    if (timeout_ms > 0)
        awake_start(&p->deadline, timeout_ms, past_deadline);
    p->starter = starter;
    rpc_set_ops(starter, &starter_ops, p);
    if (uv_poll_init(e->loop, &p->status_poll, p->status_fd) < 0)
        abort(); /* a fresh pipe can always be polled */
    p->status_poll.data = p;
    proc_ref(p);
    (void)uv_poll_start(&p->status_poll, UV_READABLE, on_status);
    return p;
}

/* ---- signals ---- */

/* The number of a dead leader still names its group as long as the group has members, and can't be taken by a
 * new process meanwhile; only when the group is empty somebody else may own it. */
static void kill_group(const struct proc *p)
{
    if (!p->leader_dead || getpgid(p->pid) < 0)
        (void)kill(-p->pid, SIGKILL);
}

int proc_signal(struct proc *p, int sig)
{
    int r = 0;
    if (p->state == PROC_ENDED)
        return -ESRCH;
    p->killed = true;
    if (!p->leader_dead && kill(p->pid, sig) < 0)
        r = -errno;
    if (sig == SIGKILL)
        kill_group(p);
    proc_ref(p);
    check_end(p);
    proc_unref(p);
    return r;
}

void proc_kill_all(int sig)
{
    hf_list_foreach_safe(it, &table)
    {
        struct proc *p = hf_list_entry(it, struct proc, link);
        if (p->state != PROC_ENDED && !p->leader_dead) {
            (void)kill(-p->pid, sig);
            (void)kill(p->pid, sig);
        }
    }
}

void proc_reap(void)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        hf_list_foreach_safe(it, &table)
        {
            struct proc *p = hf_list_entry(it, struct proc, link);
            if (p->pid != pid || p->leader_dead || p->state == PROC_ENDED)
                continue;
            p->leader_dead = true;
            p->wait_status = status;
            check_end(p);
            break;
        }
    }
}
