#include "envd/bulk.h"

#include <poll.h>
#include <sys/sendfile.h>

#define CALL_MAX (2u * 1024u * 1024u) /* bytes of one sendfile */
#define JOB_MAX (64u * 1024u * 1024u) /* bytes after which a job lets others have the worker */
#define WAIT_MS 2                     /* a fast reader makes room at once; for others the loop waits */

struct bulk {
    /* loop */
    struct hf_req *req;
    bool busy, closed;
    uv_poll_t poll;
    uv_work_t work;
    /* worker while busy */
    int file, sock; /* sock: a duplicate of the connection's */
    uint64_t offset, left, sent;
    int r; /* negative: the connection must be broken */
};

/* ---- worker ---- */

/* 1 there is room, 0 not soon, or -errno. */
static int wait_room(int sock)
{
    struct pollfd p = {sock, POLLOUT, 0};
    int r = poll(&p, 1, WAIT_MS);
    return r < 0 && errno != EINTR ? -errno : r > 0;
}

static void work_send(uv_work_t *w)
{
    struct bulk *b = HF_CONTAINER_OF(w, struct bulk, work);
    b->sent = 0;
    while (b->left && b->sent < JOB_MAX) {
        off_t at = (off_t)b->offset;
        ssize_t n = sendfile(b->sock, b->file, &at, (size_t)HF_MIN(b->left, (uint64_t)CALL_MAX));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            int room = wait_room(b->sock);
            if (room > 0)
                continue;
            b->r = room;
            return;
        }
        if (n <= 0) { /* 0: the file became shorter */
            b->r = n < 0 ? -errno : -EIO;
            return;
        }
        b->offset += (uint64_t)n;
        b->left -= (uint64_t)n;
        b->sent += (uint64_t)n;
    }
}

/* ---- loop ---- */

static void poll_closed(uv_handle_t *h)
{
    struct bulk *b = h->data;
    (void)hf_close(b->sock);
    (void)hf_close(b->file);
    free(b);
}

static void bulk_free(struct bulk *b)
{
    uv_close((uv_handle_t *)&b->poll, poll_closed);
}

static void after_send(uv_work_t *w, int status);

static void queue(struct bulk *b)
{
    b->busy = true;
    if (uv_queue_work(hf_req_loop(b->req), &b->work, work_send, after_send) < 0)
        abort(); /* only for a NULL callback */
}

/* Room again, or an error that the next sendfile tells. */
static void on_writable(uv_poll_t *p, int status, int events)
{
    struct bulk *b = p->data;
    (void)uv_poll_stop(p);
    queue(b);
}

/* busy stays set while the server may call back: it keeps b alive. */
static void after_send(uv_work_t *w, int status)
{
    struct bulk *b = HF_CONTAINER_OF(w, struct bulk, work);
    bool more = false;
    if (!b->closed) {
        hf_res_sent(b->req, b->sent);
        more = b->r == 0 && b->left;
        if (b->r < 0)
            hf_res_abort(b->req);
        else if (!more)
            hf_res_end(b->req);
    }
    b->busy = false;
    if (b->closed)
        bulk_free(b);
    else if (more && b->sent >= JOB_MAX)
        queue(b);
    else if (more && uv_poll_start(&b->poll, UV_WRITABLE, on_writable) < 0)
        hf_res_abort(b->req);
}

static void on_close(struct hf_req *req)
{
    struct bulk *b = hf_req_data(req);
    b->closed = true;
    if (!b->busy)
        bulk_free(b);
}

int bulk_send(struct hf_req *req, int fd, uint64_t offset, uint64_t n)
{
    static const struct hf_req_ops ops = {.on_close = on_close};
    hf_auto_close int sock = hf_res_dup_fd(req);
    if (sock < 0)
        return sock;
    struct bulk *b = hf_new(struct bulk);
    int r = uv_poll_init(hf_req_loop(req), &b->poll, sock);
    if (r < 0) {
        free(b);
        return r;
    }
    b->poll.data = b;
    b->req = req;
    b->file = fd;
    b->sock = hf_take_fd(&sock);
    b->offset = offset;
    b->left = n;
    hf_req_set_ops(req, &ops, b);
    queue(b);
    return 0;
}
