/* The daemon's side of shim.sock: requests with numbered answers, and events. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/clock.h"
#include "engine/cell/cell.h"
#include "engine/shim/criu.h"

#define INFO_TIMEOUT_MS 5000
#define SAVING_TIMEOUT_MS (2u * HF_CRIU_TIMEOUT_MS) /* of a supervisor that says that it saves */
#define CONNECT_TRIES 200
#define CONNECT_PAUSE_MS 5

struct request {
    struct hf_list link;
    uint64_t id;
    cell_answer_cb cb;
    void *arg;
    struct hf_err err; /* for one that could not be sent */
};

static int send_text(int fd, const struct hf_buf *b)
{
    ssize_t n;
    do
        n = send(fd, b->p, b->n, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

static int build_request(struct hf_buf *b, const char *op, uint64_t id, const struct hf_buf *more)
{
    int r = hf_kv_add(b, "op", op);
    if (r == 0)
        r = hf_kv_add_u64(b, "id", id);
    return r == 0 && more ? hf_buf_add(b, more->p, more->n) : r;
}

static void refuse(void *arg)
{
    struct request *q = arg;
    q->cb(q->arg, &q->err, (struct hf_str){"", 0}, -1);
    free(q);
}

void cell_request(struct hf_box *box, const char *op, const struct hf_buf *more, cell_answer_cb cb, void *arg)
{
    struct request *q = hf_new(struct request);
    hf_list_init(&q->link);
    q->id = ++box->last_request;
    q->cb = cb;
    q->arg = arg;
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    int r = box->fd < 0 ? -ECONNRESET : build_request(&b, op, q->id, more);
    if (r == 0)
        r = send_text(box->fd, &b);
    if (r == 0) {
        hf_list_add_tail(&box->requests, &q->link);
        return;
    }
    (void)hf_err_set(&q->err, r, "cannot reach the supervisor of sandbox %s: %s", box->spec.sandbox_id,
                     strerror(-r));
    cell_defer(box->d->base.loop, refuse, q);
}

void cell_fail_requests(struct hf_box *box, const struct hf_err *err)
{
    hf_list_foreach_safe(it, &box->requests)
    {
        struct request *q = hf_list_entry(it, struct request, link);
        hf_list_del(&q->link);
        q->err = *err;
        cell_defer(box->d->base.loop, refuse, q);
    }
}

int cell_send_kill(struct hf_box *box)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    int r = build_request(&b, "kill", 0, NULL);
    return r == 0 ? send_text(box->fd, &b) : r;
}

static void dispatch_answer(struct hf_box *box, struct hf_str text, int fd)
{
    uint64_t id = hf_kv_u64(text, "id", 0);
    hf_list_foreach(it, &box->requests)
    {
        struct request *q = hf_list_entry(it, struct request, link);
        if (q->id != id)
            continue;
        hf_list_del(&q->link);
        struct hf_err err = {.r = -(int)hf_kv_u64(text, "errno", 0)};
        struct hf_str msg = hf_kv_get(text, "msg");
        (void)snprintf(err.msg, sizeof(err.msg), "%.*s", (int)msg.n, msg.p ? msg.p : "");
        q->cb(q->arg, err.r ? &err : NULL, text, fd);
        free(q);
        return;
    }
    (void)hf_close(fd); /* nobody asked */
}

static void dispatch(struct hf_box *box, struct hf_str text, int fd)
{
    struct hf_str event = hf_kv_get(text, "event");
    if (!event.p) {
        dispatch_answer(box, text, fd);
        return;
    }
    (void)hf_close(fd);
    if (hf_str_eq(event, "ready"))
        cell_on_ready(box, text);
    else if (hf_str_eq(event, "failed"))
        cell_on_failed(box, text);
    else if (hf_str_eq(event, "exit"))
        cell_on_exit(box, text);
}

/* One packet: its length, 0 at the end, -errno. */
static ssize_t receive(int fd, char *buf, size_t cap, int *ret_fd)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {buf, cap};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.space)};
    ssize_t n;
    do
        n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    *ret_fd = -1;
    if (n < 0)
        return -errno;
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS &&
        h->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(ret_fd, CMSG_DATA(h), sizeof(int));
    return n;
}

void cell_conn_read(struct hf_box *box)
{
    static char buf[HF_SHIM_MSG_MAX]; /* loop thread only; a callback does not read another box */
    while (box->fd >= 0) {
        int fd;
        ssize_t n = receive(box->fd, buf, sizeof(buf), &fd);
        if (n == -EAGAIN)
            return;
        if (n <= 0) { /* its process' end is reported by the pidfd */
            cell_watch_free(box->watch, box->fd);
            box->watch = NULL;
            box->fd = -1;
            return;
        }
        dispatch(box, (struct hf_str){buf, (size_t)n}, fd);
    }
}

/* ---- blocking, on a worker thread ---- */

static int connect_to(const char *dir)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int n = snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/shim.sock", dir);
    if (n < 0 || (size_t)n >= sizeof(addr.sun_path))
        return -ENAMETOOLONG;
    hf_auto_close int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    for (int i = 0;; i++) {
        if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0)
            return hf_take_fd(&fd);
        /* A supervisor that was just started has no socket yet. */
        if ((errno != ENOENT && errno != ECONNREFUSED && errno != EAGAIN) || i == CONNECT_TRIES)
            return -errno;
        (void)poll(NULL, 0, CONNECT_PAUSE_MS);
    }
}

static int peer_pid(int fd, pid_t *ret)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return -errno;
    *ret = peer.pid;
    return 0;
}

void cell_kill_supervisor(const char *dir)
{
    hf_auto_close int fd = connect_to(dir); /* works with a stopped process as well */
    pid_t pid = 0;
    if (fd >= 0 && peer_pid(fd, &pid) == 0 && pid > 1)
        (void)kill(pid, SIGKILL);
}

/* Waits for a packet. One that saves is waited for, since it is as alive as its box. */
static int wait_for_info(int fd, const char *dir)
{
    char saving[HF_CELL_PATH_MAX + 16];
    (void)snprintf(saving, sizeof(saving), "%s/%s", dir, HF_CELL_SAVING);
    for (uint64_t end = hf_mono_ms() + SAVING_TIMEOUT_MS;;) {
        struct pollfd p = {fd, POLLIN, 0};
        int n = poll(&p, 1, INFO_TIMEOUT_MS);
        if (n == 1)
            return 0;
        if (n == 0 && (access(saving, F_OK) < 0 || hf_mono_ms() >= end))
            return -ETIMEDOUT;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
}

int cell_ask_info(const char *dir, int *ret_fd, pid_t *ret_pid, struct hf_cell_spec *spec, bool *ret_frozen,
                  int *ret_disk_fd)
{
    hf_auto_close int fd = connect_to(dir);
    if (fd < 0)
        return fd;
    pid_t pid = 0;
    int r = peer_pid(fd, &pid);
    if (r < 0)
        return r;
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    r = build_request(&b, "info", 1, NULL);
    if (r == 0)
        r = send_text(fd, &b);
    hf_auto_free char *buf = hf_xmalloc(HF_SHIM_MSG_MAX);
    for (;;) {
        if (r == 0)
            r = wait_for_info(fd, dir);
        if (r < 0)
            return r;
        int passed;
        ssize_t n = receive(fd, buf, HF_SHIM_MSG_MAX, &passed);
        (void)hf_close(passed);
        if (n <= 0)
            return n < 0 ? (int)n : -ECONNRESET;
        struct hf_str text = {buf, (size_t)n};
        if (hf_kv_get(text, "event").p)
            continue;
        r = hf_cell_spec_read(text, spec);
        if (r < 0)
            return r;
        *ret_frozen = hf_kv_u64(text, "frozen", 0) != 0;
        *ret_disk_fd = (int)hf_kv_int(text, "disk_fd", -1);
        *ret_pid = pid;
        *ret_fd = hf_take_fd(&fd);
        return 0;
    }
}
