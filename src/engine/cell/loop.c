#include "engine/cell/cell.h"

struct cell_watch {
    uv_poll_t poll;
    cell_watch_cb cb;
    void *arg;
    int close_fd;
};

static void on_poll(uv_poll_t *p, int status, int events)
{
    struct cell_watch *w = p->data;
    w->cb(w->arg, status < 0 ? UV_READABLE | UV_WRITABLE : events);
}

struct cell_watch *cell_watch_new(uv_loop_t *loop, int fd, int events, cell_watch_cb cb, void *arg)
{
    struct cell_watch *w = hf_new(struct cell_watch);
    w->cb = cb;
    w->arg = arg;
    w->close_fd = -1;
    w->poll.data = w;
    /* Fails for descriptors that epoll refuses, and none of ours are such. */
    if (uv_poll_init(loop, &w->poll, fd) < 0 || uv_poll_start(&w->poll, events, on_poll) < 0)
        abort();
    return w;
}

static void on_watch_closed(uv_handle_t *h)
{
    struct cell_watch *w = h->data;
    (void)hf_close(w->close_fd);
    free(w);
}

void cell_watch_free(struct cell_watch *w, int fd)
{
    if (!w) {
        (void)hf_close(fd);
        return;
    }
    w->close_fd = fd;
    uv_close((uv_handle_t *)&w->poll, on_watch_closed);
}

struct timer {
    uv_timer_t t; /* first */
    void (*fn)(void *arg);
    void *arg;
    bool once;
};

static void on_timer_closed(uv_handle_t *h)
{
    free(h);
}

static void on_timer(uv_timer_t *t)
{
    struct timer *w = (struct timer *)t;
    if (w->once)
        uv_close((uv_handle_t *)t, on_timer_closed);
    w->fn(w->arg);
}

uv_timer_t *cell_timer_new(uv_loop_t *loop, uint64_t ms, void (*fn)(void *arg), void *arg)
{
    struct timer *w = hf_new(struct timer);
    w->fn = fn;
    w->arg = arg;
    (void)uv_timer_init(loop, &w->t);
    uv_update_time(loop);
    (void)uv_timer_start(&w->t, on_timer, ms, 0);
    return &w->t;
}

void cell_timer_free(uv_timer_t **t)
{
    if (*t)
        uv_close((uv_handle_t *)*t, on_timer_closed);
    *t = NULL;
}

void cell_defer(uv_loop_t *loop, void (*fn)(void *arg), void *arg)
{
    struct timer *w = (struct timer *)cell_timer_new(loop, 0, fn, arg);
    w->once = true;
}

struct job {
    uv_work_t req;
    struct cell_driver *d;
    void (*work)(void *job);
    void (*done)(void *job);
    void *arg;
};

static void job_work(uv_work_t *req)
{
    struct job *j = req->data;
    j->work(j->arg);
}

static void job_done(uv_work_t *req, int status)
{
    struct job *j = req->data;
    struct cell_driver *d = j->d;
    d->jobs--;
    j->done(j->arg);
    free(j);
    cell_close_if_idle(d);
}

void cell_job(struct cell_driver *d, void (*work)(void *job), void (*done)(void *job), void *job)
{
    struct job *j = hf_new(struct job);
    j->d = d;
    j->work = work;
    j->done = done;
    j->arg = job;
    j->req.data = j;
    d->jobs++;
    if (uv_queue_work(d->base.loop, &j->req, job_work, job_done) < 0)
        abort(); /* only for a missing work function */
}
