#include <fcntl.h>

#include "envd/proc.h"

static size_t total_bytes; /* of all processes' input_bytes */

static void account(struct proc *p, size_t add, size_t remove)
{
    p->input_bytes += add - remove;
    total_bytes += add - remove;
}

static void finish(struct proc_input *in, int r)
{
    hf_list_del(&in->link);
    void (*done)(void *, int) = in->done;
    void *arg = in->arg;
    free(in->data);
    free(in);
    if (done)
        done(arg, r);
}

static void poll_closed(uv_handle_t *h)
{
    proc_unref(h->data);
}

static void shut(struct proc *p)
{
    if (p->in_fd < 0)
        return;
    int fd = hf_take_fd(&p->in_fd);
    (void)uv_poll_stop(&p->in_poll);
    uv_close((uv_handle_t *)&p->in_poll, poll_closed);
    (void)hf_close(fd);
}

void input_abort(struct proc *p)
{
    proc_ref(p);
    shut(p);
    while (!hf_list_empty(&p->input)) {
        struct proc_input *in = hf_list_entry(p->input.next, struct proc_input, link);
        account(p, 0, in->n - in->off);
        finish(in, -EPIPE);
    }
    proc_unref(p);
}

static void on_writable(uv_poll_t *poll, int status, int events);

/* Writes what the pipe takes; polls for the rest. */
static void flush(struct proc *p)
{
    while (!hf_list_empty(&p->input)) {
        struct proc_input *in = hf_list_entry(p->input.next, struct proc_input, link);
        ssize_t w = in->n > in->off ? write(p->in_fd, in->data + in->off, in->n - in->off) : 0;
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0 && errno == EAGAIN) {
            (void)uv_poll_start(&p->in_poll, UV_WRITABLE, on_writable);
            return;
        }
        if (w < 0) {
            input_abort(p);
            return;
        }
        in->off += (size_t)w;
        account(p, 0, (size_t)w);
        if (in->off == in->n)
            finish(in, 0);
        if (p->in_fd < 0)
            return;
    }
    (void)uv_poll_stop(&p->in_poll);
    if (p->close_input)
        shut(p);
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
    struct proc *p = poll->data;
    proc_ref(p);
    if (status < 0) /* EPOLLERR: nobody reads any more */
        input_abort(p);
    else
        flush(p);
    proc_unref(p);
}

void input_init(struct proc *p, int fd)
{
    hf_list_init(&p->input);
    p->in_fd = -1;
    if (fd < 0)
        return;
    if (uv_poll_init(p->e->loop, &p->in_poll, fd) < 0) {
        (void)hf_close(fd);
        return;
    }
    p->in_fd = fd;
    p->in_poll.data = p;
    proc_ref(p);
}

void input_write(struct proc *p, const void *data, size_t n, void (*done)(void *arg, int r), void *arg)
{
    struct proc_input *in = hf_new(struct proc_input);
    hf_list_init(&in->link);
    in->done = done;
    in->arg = arg;
    bool full = p->input_bytes + n > PROC_INPUT_MAX || total_bytes + n > PROC_INPUTS_MAX;
    if (n == 0 || p->in_fd < 0 || p->close_input || full) {
        finish(in, n == 0 ? 0 : p->in_fd < 0 || p->close_input ? -EBADF : -ENOBUFS);
        return;
    }
    in->data = hf_xmalloc(n);
    in->n = n;
    memcpy(in->data, data, n);
    bool idle = hf_list_empty(&p->input);
    hf_list_add_tail(&p->input, &in->link);
    account(p, n, 0);
    proc_ref(p);
    if (idle)
        flush(p);
    proc_unref(p);
}

void input_close(struct proc *p)
{
    p->close_input = true;
    if (p->in_fd >= 0 && hf_list_empty(&p->input))
        shut(p);
}
