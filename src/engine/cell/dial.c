/* dial: a TCP connection to a port inside the box. The supervisor makes the socket in the box's network
 * namespace; a socket stays in the namespace where it was made, so connecting it here reaches the box. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "engine/cell/cell.h"

struct dial {
    struct hf_list link;
    struct hf_box *box; /* NULL once the box may be gone */
    struct cell_driver *d;
    uint16_t port;
    bool v6;
    int fd;
    struct cell_watch *watch;
    uv_timer_t *timer;
    hf_fd_cb cb;
    void *arg;
};

static void finish(struct dial *q, int fd, const struct hf_err *err)
{
    hf_list_del(&q->link);
    cell_timer_free(&q->timer);
    hf_fd_cb cb = q->cb;
    void *arg = q->arg;
    free(q);
    cb(arg, fd, err);
}

static void fail(struct dial *q, int r)
{
    struct hf_err err;
    (void)hf_err_set(&err, r, "cannot connect to port %u in the sandbox: %s", q->port, strerror(-r));
    finish(q, r, &err);
}

static void on_socket(void *arg, const struct hf_err *err, struct hf_str text, int fd);

static void ask_socket(struct dial *q)
{
    hf_auto_buf struct hf_buf more = HF_BUF_INIT(64);
    if (!q->box || hf_kv_add(&more, "family", q->v6 ? "inet6" : "inet") < 0) {
        fail(q, -ECONNRESET);
        return;
    }
    cell_request(q->box, "socket", &more, on_socket, q);
}

/* The end of one attempt. Programs that listen on [::1] only are tried second. */
static void connected(struct dial *q, int r)
{
    if (r == 0) {
        int one = 1;
        (void)setsockopt(q->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        finish(q, q->fd, NULL);
        return;
    }
    q->fd = hf_close(q->fd);
    if (r == -ECONNREFUSED && !q->v6) {
        q->v6 = true;
        ask_socket(q);
        return;
    }
    fail(q, r == -EADDRNOTAVAIL || r == -ENETUNREACH ? -ECONNREFUSED : r); /* a box without IPv6 */
}

static void on_writable(void *arg, int events)
{
    struct dial *q = arg;
    int e = 0;
    socklen_t n = sizeof(e);
    (void)getsockopt(q->fd, SOL_SOCKET, SO_ERROR, &e, &n);
    cell_watch_free(q->watch, -1);
    q->watch = NULL;
    connected(q, -e);
}

static void on_timeout(void *arg)
{
    struct dial *q = arg;
    cell_timer_free(&q->timer);
    if (!q->watch)
        return; /* the supervisor owes us an answer, which always comes */
    cell_watch_free(q->watch, q->fd);
    q->watch = NULL;
    q->fd = -1;
    fail(q, -ETIMEDOUT);
}

static void on_socket(void *arg, const struct hf_err *err, struct hf_str text, int fd)
{
    struct dial *q = arg;
    if (err || fd < 0) {
        fail(q, err ? err->r : -EPROTO);
        return;
    }
    q->fd = fd;
    struct sockaddr_in a4 = {
        .sin_family = AF_INET, .sin_port = htons(q->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 a6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(q->port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int r = q->v6 ? connect(fd, (struct sockaddr *)&a6, sizeof(a6))
                  : connect(fd, (struct sockaddr *)&a4, sizeof(a4));
    if (r < 0 && errno == EINPROGRESS)
        q->watch = cell_watch_new(q->d->base.loop, fd, UV_WRITABLE, on_writable, q);
    else
        connected(q, r < 0 ? -errno : 0);
}

void cell_dial(struct hf_driver *base, struct hf_box *box, uint16_t port, hf_fd_cb cb, void *arg)
{
    struct dial *q = hf_new(struct dial);
    q->d = cell_of(base);
    q->box = box;
    q->port = port;
    q->fd = -1;
    q->cb = cb;
    q->arg = arg;
    hf_list_add_tail(&box->dials, &q->link);
    q->timer = cell_timer_new(base->loop, CELL_DIAL_TIMEOUT_MS, on_timeout, q);
    ask_socket(q);
}

void cell_dials_orphan(struct hf_box *box)
{
    hf_list_foreach_safe(it, &box->dials)
    {
        struct dial *q = hf_list_entry(it, struct dial, link);
        q->box = NULL;
        hf_list_del(&q->link);
    }
}
