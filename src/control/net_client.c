#include "control/net_client.h"

#include <llhttp.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/list.h"

struct request {
    struct hf_list node;
    char *text;
    size_t n;
    hf_netc_cb cb;
    void *arg;
};

struct conn {
    struct hf_netc *c; /* outlives it; c->conn is another once it was given up */
    uv_pipe_t pipe;
    uv_connect_t connect;
    uv_write_t write;
    char *out; /* what is being written */
    size_t out_n;
    llhttp_t parser;
    struct hf_buf body;
    bool complete;
    char chunk[16384];
};

struct hf_netc {
    uv_loop_t *loop;
    char *path;
    const struct hf_netc_ops *ops;
    void *self;
    struct conn *conn;
    bool up, freed;
    unsigned open_handles;
    uv_timer_t timer; /* of the exchange in flight */
    struct hf_list queue;
    struct request *flight;
    void (*closed)(void *arg);
    void *closed_arg;
};

static void wipe(char *p, size_t n)
{
    if (p)
        explicit_bzero(p, n);
    free(p);
}

static void maybe_gone(struct hf_netc *c)
{
    if (c->open_handles || !c->freed)
        return;
    void (*closed)(void *) = c->closed;
    void *arg = c->closed_arg;
    free(c->path);
    free(c);
    if (closed)
        closed(arg);
}

static void on_conn_closed(uv_handle_t *h)
{
    struct conn *k = h->data;
    struct hf_netc *c = k->c;
    wipe(k->out, k->out_n);
    hf_buf_done(&k->body);
    free(k);
    c->open_handles--;
    maybe_gone(c);
}

static void fail(struct request *q, const struct hf_err *err)
{
    if (!q)
        return;
    q->cb(q->arg, NULL, err);
    wipe(q->text, q->n);
    free(q);
}

void hf_netc_drop(struct hf_netc *c, int r)
{
    bool was_up = c->up;
    struct conn *k = hf_take_ptr(c->conn);
    if (!k)
        return;
    c->up = false;
    (void)uv_timer_stop(&c->timer);
    uv_close((uv_handle_t *)&k->pipe, on_conn_closed);
    struct hf_err err = {0};
    (void)hf_err_http(
        &err, r, 503,
        "the network helper (holdfast-netd) does not answer: %s; it is being started again, try "
        "again in a moment",
        r == -ETIMEDOUT ? "not in time" : strerror(-r));
    struct hf_list failed;
    hf_list_init(&failed);
    while (!hf_list_empty(&c->queue)) {
        struct hf_list *node = c->queue.next;
        hf_list_del(node);
        hf_list_add_tail(&failed, node);
    }
    fail(hf_take_ptr(c->flight), &err);
    while (!hf_list_empty(&failed)) {
        struct request *q = hf_list_entry(failed.next, struct request, node);
        hf_list_del(&q->node);
        fail(q, &err);
    }
    if (!c->freed)
        c->ops->down(c->self, was_up, r);
}

static void on_timeout(uv_timer_t *t)
{
    hf_netc_drop(t->data, -ETIMEDOUT);
}

static void next(struct hf_netc *c);

static void on_written(uv_write_t *w, int status)
{
    struct conn *k = w->data;
    wipe(hf_take_ptr(k->out), k->out_n);
    if (k->c->conn != k)
        return;
    if (status < 0)
        hf_netc_drop(k->c, status);
    else
        next(k->c);
}

static void next(struct hf_netc *c)
{
    struct conn *k = c->conn;
    /* out: an answer may overtake the news that its request was written, which then brings us here again. */
    if (!c->up || c->flight || k->out || hf_list_empty(&c->queue))
        return;
    struct request *q = hf_list_entry(c->queue.next, struct request, node);
    hf_list_del(&q->node);
    c->flight = q;
    k->out = hf_take_ptr(q->text);
    k->out_n = q->n;
    k->complete = false;
    hf_buf_clear(&k->body);
    uv_buf_t buf = uv_buf_init(k->out, (unsigned)k->out_n);
    k->write.data = k;
    (void)uv_timer_start(&c->timer, on_timeout, HF_NETC_ANSWER_MS, 0);
    /* When it fails the timer tells: a request never fails inside the call that made it. */
    (void)uv_write(&k->write, (uv_stream_t *)&k->pipe, &buf, 1, on_written);
}

static void answered(struct hf_netc *c, struct conn *k)
{
    struct request *q = hf_take_ptr(c->flight);
    int status = llhttp_get_status_code(&k->parser);
    json_auto_t *body = k->body.n ? json_loadb(k->body.p, k->body.n, 0, NULL) : NULL;
    struct hf_err err = {0};
    if (status / 100 != 2) {
        const char *msg = json_string_value(json_object_get(body, "message"));
        (void)hf_err_http(&err, status / 100 == 4 ? -EINVAL : -EIO, status / 100 == 4 ? 500 : 503,
                          "the network helper refused: %s", msg ? msg : "(no reason given)");
    }
    (void)uv_timer_stop(&c->timer);
    q->cb(q->arg, body, err.r ? &err : NULL);
    wipe(q->text, q->n);
    free(q);
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
    struct conn *k = p->data;
    return hf_buf_add(&k->body, at, n) < 0 ? HPE_USER : 0;
}

static int on_complete(llhttp_t *p)
{
    ((struct conn *)p->data)->complete = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t parser_settings = {.on_body = on_body, .on_message_complete = on_complete};

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct conn *k = h->data;
    *buf = uv_buf_init(k->chunk, sizeof(k->chunk));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct conn *k = stream->data;
    struct hf_netc *c = k->c;
    if (n == 0 || c->conn != k)
        return;
    if (n < 0) {
        hf_netc_drop(c, n == UV_EOF ? -ECONNRESET : (int)n);
        return;
    }
    /* One exchange at a time: nothing may come unasked or behind an answer. */
    enum llhttp_errno e = c->flight ? llhttp_execute(&k->parser, buf->base, (size_t)n) : HPE_USER;
    if ((e != HPE_OK && e != HPE_PAUSED) ||
        (k->complete && llhttp_get_error_pos(&k->parser) != buf->base + n)) {
        hf_netc_drop(c, -EBADMSG);
        return;
    }
    if (!k->complete)
        return;
    bool keep = llhttp_should_keep_alive(&k->parser) != 0;
    answered(c, k);
    if (c->conn != k)
        return;
    llhttp_init(&k->parser, HTTP_RESPONSE, &parser_settings);
    k->parser.data = k;
    if (keep)
        next(c);
    else
        hf_netc_drop(c, -ECONNRESET);
}

static void on_connected(uv_connect_t *connect, int status)
{
    struct conn *k = connect->data;
    struct hf_netc *c = k->c;
    if (c->conn != k)
        return;
    if (status == 0)
        status = uv_read_start((uv_stream_t *)&k->pipe, on_alloc, on_read);
    if (status < 0) {
        hf_netc_drop(c, status);
        return;
    }
    (void)uv_timer_stop(&c->timer);
    c->up = true;
    c->ops->up(c->self);
}

struct hf_netc *hf_netc_new(uv_loop_t *loop, const char *socket_path, const struct hf_netc_ops *ops,
                            void *self)
{
    struct hf_netc *c = hf_new(struct hf_netc);
    c->loop = loop;
    c->path = hf_xstrdup(socket_path);
    c->ops = ops;
    c->self = self;
    hf_list_init(&c->queue);
    (void)uv_timer_init(loop, &c->timer);
    c->timer.data = c;
    c->open_handles = 1;
    return c;
}

void hf_netc_connect(struct hf_netc *c)
{
    if (c->conn || c->freed)
        return;
    struct conn *k = hf_new(struct conn);
    k->c = c;
    k->body = HF_BUF_INIT(HF_NETC_ANSWER_MAX);
    llhttp_init(&k->parser, HTTP_RESPONSE, &parser_settings);
    k->parser.data = k;
    (void)uv_pipe_init(c->loop, &k->pipe, 0);
    k->pipe.data = k;
    k->connect.data = k;
    c->conn = k;
    c->open_handles++;
    (void)uv_timer_start(&c->timer, on_timeout, HF_NETC_ANSWER_MS, 0);
    uv_pipe_connect(&k->connect, &k->pipe, c->path, on_connected);
}

bool hf_netc_up(const struct hf_netc *c)
{
    return c->up;
}

int hf_netc_peer(const struct hf_netc *c)
{
    uv_os_fd_t fd;
    struct ucred cred;
    socklen_t n = sizeof(cred);
    if (!c->up || uv_fileno((const uv_handle_t *)&c->conn->pipe, &fd) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
        return 0;
    return cred.pid;
}

void hf_netc_send(struct hf_netc *c, const char *method, const char *path, char *body, size_t n,
                  hf_netc_cb cb, void *arg)
{
    struct request *q = hf_new(struct request);
    char head[256];
    int head_n = snprintf(head, sizeof(head),
                          "%s %s HTTP/1.1\r\nHost: netd\r\nContent-Type: application/json\r\n"
                          "Content-Length: %zu\r\n\r\n",
                          method, path, n);
    q->n = (size_t)head_n + n;
    q->text = hf_xmalloc(q->n + 1);
    memcpy(q->text, head, (size_t)head_n);
    if (n)
        memcpy(q->text + head_n, body, n);
    wipe(body, n);
    q->cb = cb;
    q->arg = arg;
    hf_list_add_tail(&c->queue, &q->node);
    next(c);
}

static void on_timer_closed(uv_handle_t *h)
{
    struct hf_netc *c = h->data;
    c->open_handles--;
    maybe_gone(c);
}

void hf_netc_free(struct hf_netc *c, void (*closed)(void *arg), void *arg)
{
    c->freed = true;
    c->closed = closed;
    c->closed_arg = arg;
    hf_netc_drop(c, -ECANCELED);
    uv_close((uv_handle_t *)&c->timer, on_timer_closed);
}
