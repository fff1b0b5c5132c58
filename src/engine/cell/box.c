/* A box's life on the daemon's side, from its supervisor's first word to its removal. */
#include "engine/cell/cell.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/fault.h"
#include "base/path.h"

struct hf_box *cell_box_new(struct cell_driver *d, uint32_t n)
{
    struct hf_box *box = hf_new(struct hf_box);
    box->d = d;
    box->fd = box->pidfd = box->disk_fd_in_shim = -1;
    hf_list_init(&box->turn);
    hf_list_init(&box->requests);
    hf_list_init(&box->dials);
    hf_list_init(&box->wirings);
    hf_list_init(&box->savings);
    hf_list_add_tail(&d->boxes, &box->link);
    if (n)
        cell_box_number(box, n);
    return box;
}

void cell_box_number(struct hf_box *box, uint32_t n)
{
    const struct cell_driver *d = box->d;
    struct hf_cell_spec *s = &box->spec;
    s->n = n;
    (void)snprintf(s->dir, sizeof(s->dir), "%s/%u", d->run_dir, n);
    (void)snprintf(s->image, sizeof(s->image), "%s/pool/cells/%u.img", d->data_dir, n);
    (void)snprintf(box->ctl_path, sizeof(box->ctl_path), "%s/ctl.sock", s->dir);
    (void)snprintf(box->envd_path, sizeof(box->envd_path), "%s/envd.sock", s->dir);
}

static void disconnect(struct hf_box *box)
{
    cell_watch_free(box->watch, box->fd);
    cell_watch_free(box->pid_watch, box->pidfd);
    box->watch = box->pid_watch = NULL;
    box->fd = box->pidfd = -1;
}

void cell_box_free(struct hf_box *box)
{
    const struct hf_err err = {.r = -ECONNRESET, .msg = "the daemon lets go of the sandbox"};
    disconnect(box);
    cell_fail_requests(box, &err);
    cell_dials_orphan(box);
    cell_wirings_orphan(box);
    cell_savings_orphan(box);
    cell_timer_free(&box->kill_timer);
    cell_pool_drop(box);
    hf_list_del(&box->turn);
    hf_list_del(&box->link);
    free(box);
}

/* ---- removal ---- */

struct removal {
    struct hf_box *box;
    const struct cell_driver *d;
    struct hf_cell_spec spec;
    struct hf_err err;
};

static void removal_work(void *job)
{
    struct removal *r = job;
    if (r->spec.n && cell_remains_remove(r->d, &r->spec, &r->err) == 0)
        r->err.r = 0;
}

static void removal_done(void *job)
{
    hf_auto_free struct removal *r = job;
    struct hf_box *box = r->box;
    struct cell_driver *d = box->d;
    struct hf_err start_err = box->start_err;
    hf_box_cb create_cb = box->create_cb;
    hf_done_cb remove_cb = box->remove_cb;
    void *create_arg = box->create_arg, *remove_arg = box->remove_arg;
    cell_box_free(box);
    if (create_cb)
        create_cb(create_arg, NULL, &start_err);
    if (remove_cb)
        remove_cb(remove_arg, r->err.r ? &r->err : NULL);
    cell_pool_fill(d);
}

static void remove_remains(struct hf_box *box)
{
    struct removal *r = hf_new(struct removal);
    r->box = box;
    r->d = box->d;
    r->spec = box->spec;
    disconnect(box);
    cell_timer_free(&box->kill_timer);
    cell_job(box->d, removal_work, removal_done, r);
}

static void kill_shim(void *arg)
{
    struct hf_box *box = arg;
    cell_timer_free(&box->kill_timer);
    if (box->pidfd >= 0)
        (void)syscall(SYS_pidfd_send_signal, box->pidfd, SIGKILL, NULL, 0);
}

void cell_box_remove(struct hf_box *box, hf_done_cb cb, void *arg)
{
    bool again = box->state == CELL_REMOVING;
    if (cb) {
        box->remove_cb = cb;
        box->remove_arg = arg;
    }
    if (again)
        return;
    hf_killpoint("destroy.begin");
    const struct hf_err err = {.r = -ECONNRESET, .msg = "the sandbox was destroyed"};
    cell_start_over(box);
    cell_pool_drop(box);
    hf_list_del(&box->turn);
    box->state = CELL_REMOVING;
    cell_fail_requests(box, &err);
    if (box->pidfd < 0) {
        remove_remains(box);
        return;
    }
    if (box->fd < 0 || cell_send_kill(box) < 0)
        kill_shim(box);
    else
        box->kill_timer = cell_timer_new(box->d->base.loop, CELL_KILL_TIMEOUT_MS, kill_shim, box);
}

/* ---- what the supervisor says, and its end ---- */

void cell_report_end(struct hf_box *box)
{
    box->state = CELL_ENDED;
    cell_pool_drop(box);
    const struct hf_err err = {.r = -ECONNRESET, .msg = "the sandbox has ended"};
    cell_fail_requests(box, &err);
    if (box->warm) { /* should they all end so, then not in a tight circle */
        cell_pool_failed(box->d);
        cell_box_remove(box, NULL, NULL);
        return;
    }
    if (!box->ours)
        return; /* found by scan: adopt reports it */
    struct hf_box_exit e = {.cause = (enum hf_box_cause)box->exit.cause, .code = box->exit.code};
    (void)snprintf(e.detail, sizeof(e.detail), "%s", box->exit.detail);
    if (box->d->base.on_exit)
        box->d->base.on_exit(box->d->base.on_exit_arg, box, &e);
}

void cell_box_fail(struct hf_box *box, const struct hf_err *err)
{
    box->start_err = *err;
    if (box->warm)
        cell_pool_failed(box->d);
    cell_box_remove(box, NULL, NULL);
}

void cell_on_ready(struct hf_box *box, struct hf_str text)
{
    if (box->state != CELL_STARTING)
        return;
    box->disk_fd_in_shim = (int)hf_kv_int(text, "disk_fd", -1);
    box->state = CELL_RUNNING;
    if (box->warm) /* first: else the pool looks one short and starts another */
        cell_pool_add(box);
    cell_start_over(box);
    if (box->warm)
        return;
    hf_killpoint("cell.ready");
    hf_box_cb cb = box->create_cb;
    box->create_cb = NULL;
    cb(box->create_arg, box, NULL);
}

void cell_on_failed(struct hf_box *box, struct hf_str text)
{
    if (box->state != CELL_STARTING)
        return;
    struct hf_str msg = hf_kv_get(text, "msg");
    struct hf_err err;
    (void)hf_err_set(&err, -(int)hf_kv_u64(text, "errno", EIO), "%.*s", (int)msg.n, msg.p ? msg.p : "");
    cell_box_fail(box, &err);
}

void cell_on_exit(struct hf_box *box, struct hf_str text)
{
    if (hf_cell_exit_read(text, &box->exit) < 0)
        return;
    box->exit_known = true;
    if (box->state == CELL_RUNNING)
        cell_report_end(box);
}

static void read_exit_file(struct hf_box *box)
{
    char path[HF_CELL_PATH_MAX + 8];
    hf_auto_free char *text = NULL;
    size_t n;
    (void)snprintf(path, sizeof(path), "%s/exit", box->spec.dir);
    if (hf_read_file(path, HF_SHIM_MSG_MAX, &text, &n) == 0 &&
        hf_cell_exit_read((struct hf_str){text, n}, &box->exit) == 0)
        return;
    box->exit = (struct hf_cell_exit){.cause = HF_CELL_LOST, .detail = "its supervisor was killed"};
}

/* The supervisor's process has ended. Its last words may still be in the socket. */
static void on_shim_gone(void *arg, int events)
{
    struct hf_box *box = arg;
    cell_conn_read(box);
    siginfo_t si;
    /* Ours after create; a stranger's child (ECHILD) after a restart of the daemon. */
    (void)waitid(P_PIDFD, (id_t)box->pidfd, &si, WEXITED | WNOHANG);
    disconnect(box);
    struct hf_err err;
    switch (box->state) {
    case CELL_STARTING:
        (void)hf_err_set(&err, -ECONNRESET, "the supervisor of cell %u ended while it started", box->spec.n);
        cell_box_fail(box, &err);
        return;
    case CELL_RUNNING:
        read_exit_file(box);
        cell_report_end(box);
        return;
    case CELL_REMOVING:
        remove_remains(box);
        return;
    case CELL_QUEUED:
    case CELL_ENDED:
        return;
    }
}

static void on_readable(void *arg, int events)
{
    cell_conn_read(arg);
}

void cell_box_connect(struct hf_box *box, int fd, int pidfd, pid_t pid)
{
    box->fd = fd;
    box->pidfd = pidfd;
    box->shim_pid = pid;
    box->watch = cell_watch_new(box->d->base.loop, fd, UV_READABLE, on_readable, box);
    box->pid_watch = cell_watch_new(box->d->base.loop, pidfd, UV_READABLE, on_shim_gone, box);
}
