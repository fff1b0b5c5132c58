/* Listeners, accept, the sweep of timeouts and the life of the server. */
#include "wire/http_int.h"
#include "wire/tls.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define LISTEN_BACKLOG 1024
#define SWEEP_MIN_MS 5u
#define SWEEP_MAX_MS 1000u
#define MAKE_ROOM_LOOKS 256u

static void on_prepare(uv_prepare_t *h)
{
    struct hf_http_server *s = h->data;
    while (!hf_list_empty(&s->dirty))
        hf_conn_settle(hf_list_entry(s->dirty.next, struct hf_conn, dirty));
}

static void on_sweep(uv_timer_t *t)
{
    struct hf_http_server *s = t->data;
    uint64_t now = uv_now(s->loop);
    hf_list_foreach_safe(it, &s->conns)
    {
        hf_conn_sweep(hf_list_entry(it, struct hf_conn, node), now);
    }
    hf_list_foreach_safe(it, &s->shaking)
    {
        hf_conn_sweep(hf_list_entry(it, struct hf_conn, node), now);
    }
    if (!s->conn_n) {
        (void)uv_timer_stop(t);
        s->sweeping = false;
    }
}

static void start_sweep(struct hf_http_server *s)
{
    uint64_t ms = HF_MIN(HF_MIN(s->head_ms, s->idle_ms), s->shake_ms) / 4;
    ms = HF_MIN(HF_MAX(ms, SWEEP_MIN_MS), SWEEP_MAX_MS);
    (void)uv_timer_start(&s->sweep, on_sweep, ms, ms);
    uv_unref((uv_handle_t *)&s->sweep);
    s->sweeping = true;
}

/* Clients must not be able to take the last descriptor. */
static size_t conns_max(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0)
        return HF_HTTP_CONNS_MAX;
    return (size_t)HF_MIN(l.rlim_cur / HF_HTTP_FDS_PER_CONN, (rlim_t)HF_HTTP_CONNS_MAX);
}

struct hf_http_server *hf_http_server_new(uv_loop_t *loop, const struct hf_http_handler *handler, void *self)
{
    struct hf_http_server *s = hf_new(struct hf_http_server);
    s->loop = loop;
    s->handler = handler;
    s->self = self;
    s->head_ms = HF_HTTP_HEAD_TIMEOUT_MS;
    s->idle_ms = HF_HTTP_IDLE_TIMEOUT_MS;
    s->shake_ms = HF_TLS_HANDSHAKE_MS;
    s->plain = HF_BUF_INIT(HF_HTTP_PLAIN_MAX);
    s->conns_max = conns_max();
    hf_list_init(&s->listeners);
    hf_list_init(&s->conns);
    hf_list_init(&s->shaking);
    hf_list_init(&s->dirty);
    (void)uv_prepare_init(loop, &s->prepare);
    s->prepare.data = s;
    (void)uv_prepare_start(&s->prepare, on_prepare);
    uv_unref((uv_handle_t *)&s->prepare);
    (void)uv_timer_init(loop, &s->sweep);
    s->sweep.data = s;
    s->handle_n = 2;
    return s;
}

void hf_http_server_set_timeouts(struct hf_http_server *s, uint64_t head_ms, uint64_t idle_ms)
{
    s->head_ms = head_ms ? head_ms : HF_HTTP_HEAD_TIMEOUT_MS;
    s->shake_ms = head_ms ? head_ms : HF_TLS_HANDSHAKE_MS;
    s->idle_ms = idle_ms ? idle_ms : HF_HTTP_IDLE_TIMEOUT_MS;
    if (s->sweeping)
        start_sweep(s);
}

static void free_handle(uv_handle_t *h)
{
    free(h);
}

static void close_extra(uv_handle_t *h)
{
    struct hf_http_server *s = h->data;
    free(h);
    hf_server_handle_closed(s);
}

enum victim { STRANGER, IDLE, SHAKING };

static bool fits(const struct hf_conn *c, enum victim v)
{
    bool quiet = c->phase == HF_CONN_IDLE || c->phase == HF_CONN_HEAD;
    if (v == STRANGER)
        return c->fresh && quiet;
    if (v == IDLE && c->phase == HF_CONN_H2)
        return !c->h2_streams;
    return c->phase == (v == IDLE ? HF_CONN_IDLE : HF_CONN_SHAKE);
}

/* Those that were looked at in vain go to the end, so that long streams in front do not hide the others. */
static bool drop_first(struct hf_list *list, enum victim v)
{
    size_t looked = 0;
    hf_list_foreach_safe(it, list)
    {
        struct hf_conn *c = hf_list_entry(it, struct hf_conn, node);
        if (!c->closing && fits(c, v)) {
            hf_conn_close(c, false);
            return true;
        }
        if (looked++ == MAKE_ROOM_LOOKS)
            return false;
        hf_list_del(&c->node);
        hf_list_add_tail(list, &c->node);
    }
    return false;
}

/* Half-open connections must not keep others out: unfinished handshakes go first when there are more of them
 * than honest clients have, then those that have not made a request yet, then idle ones; the oldest of each
 * before the others. */
static bool make_room(struct hf_http_server *s)
{
    if (s->shaking_n > s->conns_max / HF_HTTP_SHAKING_SHARE && drop_first(&s->shaking, SHAKING))
        return true;
    return drop_first(&s->conns, STRANGER) || drop_first(&s->conns, IDLE) || drop_first(&s->shaking, SHAKING);
}

struct hf_conn *hf_server_open(struct hf_http_server *s, uv_stream_t *stream, int tag, bool is_tcp)
{
    if (s->conn_n >= s->conns_max && !make_room(s))
        return NULL;
    s->handle_n++;
    if (is_tcp)
        (void)uv_tcp_nodelay((uv_tcp_t *)stream, 1);
    if (!s->read_buf)
        s->read_buf = hf_xmalloc(HF_HTTP_READ_SIZE);
    if (!s->sweeping)
        start_sweep(s);
    return hf_conn_new(s, stream, tag, is_tcp);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct hf_listener *l = listener->data;
    struct hf_http_server *s = l->server;
    if (status < 0 || s->stopping)
        return;
    uv_stream_t *stream = hf_xcalloc(1, l->is_tcp ? sizeof(uv_tcp_t) : sizeof(uv_pipe_t));
    int r =
        l->is_tcp ? uv_tcp_init(s->loop, (uv_tcp_t *)stream) : uv_pipe_init(s->loop, (uv_pipe_t *)stream, 0);
    if (r < 0) {
        free(stream);
        return;
    }
    r = uv_accept(listener, stream);
    if (r < 0) {
        uv_close((uv_handle_t *)stream, free_handle);
        return;
    }
    struct hf_conn *c = hf_server_open(s, stream, l->tag, l->is_tcp);
    if (!c) {
        s->handle_n++;
        stream->data = s;
        uv_close((uv_handle_t *)stream, close_extra);
        return;
    }
    if (l->tls)
        s->more->tls_accept(c, l->tls);
    hf_conn_start(c);
}

static void on_listener_closed(uv_handle_t *h)
{
    struct hf_listener *l = h->data;
    struct hf_http_server *s = l->server;
    if (l->tls)
        s->more->tls_ctx_unref(l->tls);
    free(l);
    hf_server_handle_closed(s);
}

static void close_listener(struct hf_listener *l)
{
    hf_list_del(&l->node);
    uv_close(&l->u.handle, on_listener_closed);
}

static struct hf_listener *new_listener(struct hf_http_server *s, int tag, bool is_tcp)
{
    struct hf_listener *l = hf_new(struct hf_listener);
    l->server = s;
    l->tag = tag;
    l->is_tcp = is_tcp;
    if (is_tcp)
        (void)uv_tcp_init(s->loop, &l->u.tcp);
    else
        (void)uv_pipe_init(s->loop, &l->u.pipe, 0);
    l->u.handle.data = l;
    hf_list_add_tail(&s->listeners, &l->node);
    s->handle_n++;
    return l;
}

/* A client that vanished without a word is noticed after two minutes, not when TCP gives up a write a quarter
 * of an hour later. Accepted sockets inherit it from the listener. */
static void keep_alive(const struct hf_listener *l)
{
    static const struct {
        int level, name, value;
    } options[] = {{SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, 60},
                   {IPPROTO_TCP, TCP_KEEPINTVL, 15},
                   {IPPROTO_TCP, TCP_KEEPCNT, 4}};
    uv_os_fd_t fd;
    if (!l->is_tcp || uv_fileno(&l->u.handle, &fd) < 0)
        return;
    for (size_t i = 0; i < HF_ARRAY_LEN(options); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
}

static void note_port(struct hf_http_server *s, const struct hf_listener *l)
{
    struct sockaddr_storage a;
    int len = sizeof(a);
    if (s->port || !l->is_tcp || uv_tcp_getsockname(&l->u.tcp, (struct sockaddr *)&a, &len) < 0)
        return;
    if (a.ss_family == AF_INET)
        s->port = ntohs(((struct sockaddr_in *)&a)->sin_port);
    else if (a.ss_family == AF_INET6)
        s->port = ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
}

struct hf_listener *hf_server_listen(struct hf_http_server *s, const char *host, uint16_t port,
                                     struct hf_err *err)
{
    union {
        struct sockaddr sa;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    } a;
    memset(&a, 0, sizeof(a));
    if (uv_ip4_addr(host, port, &a.in) < 0 && uv_ip6_addr(host, port, &a.in6) < 0) {
        (void)hf_err_set(err, -EINVAL, "listen address \"%s\" is not an IPv4 or IPv6 address", host);
        return NULL;
    }
    struct hf_listener *l = new_listener(s, 0, true);
    int r = uv_tcp_bind(&l->u.tcp, &a.sa, 0);
    if (!r)
        r = uv_listen(&l->u.stream, LISTEN_BACKLOG, on_connection);
    if (r < 0) {
        close_listener(l);
        (void)hf_err_set(err, r, "can't listen on %s port %u: %s", host, port, uv_strerror(r));
        return NULL;
    }
    keep_alive(l);
    note_port(s, l);
    return l;
}

int hf_http_server_listen_tcp(struct hf_http_server *s, const char *host, uint16_t port, struct hf_err *err)
{
    struct hf_err e = {0};
    if (hf_server_listen(s, host, port, &e))
        return 0;
    if (err)
        *err = e;
    return e.r;
}

int hf_http_server_listen_fd(struct hf_http_server *s, int fd, int tag, struct hf_err *err)
{
    int domain = 0;
    socklen_t len = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0)
        return hf_err_set(err, -errno, "fd %d is not a socket: %s", fd, strerror(errno));
    bool is_tcp = domain == AF_INET || domain == AF_INET6;
    if (!is_tcp && domain != AF_UNIX)
        return hf_err_set(err, -EINVAL, "fd %d is neither a TCP nor a unix socket", fd);
    /* Before the handle owns the fd, so that the caller keeps it when this fails. */
    if (listen(fd, LISTEN_BACKLOG) < 0)
        return hf_err_set(err, -errno, "can't listen on fd %d: %s", fd, strerror(errno));
    struct hf_listener *l = new_listener(s, tag, is_tcp);
    int r = is_tcp ? uv_tcp_open(&l->u.tcp, fd) : uv_pipe_open(&l->u.pipe, fd);
    if (r < 0) {
        close_listener(l);
        return hf_err_set(err, r, "can't serve fd %d: %s", fd, uv_strerror(r));
    }
    r = uv_listen(&l->u.stream, LISTEN_BACKLOG, on_connection);
    if (r < 0) {
        close_listener(l);
        return hf_err_set(err, r, "can't listen on fd %d: %s", fd, uv_strerror(r));
    }
    keep_alive(l);
    note_port(s, l);
    return 0;
}

uint16_t hf_http_server_port(const struct hf_http_server *s)
{
    return s->port;
}

void hf_http_server_stop(struct hf_http_server *s)
{
    s->stopping = true;
    hf_list_foreach_safe(it, &s->listeners)
    {
        close_listener(hf_list_entry(it, struct hf_listener, node));
    }
}

static void on_own_closed(uv_handle_t *h)
{
    hf_server_handle_closed(h->data);
}

void hf_http_server_free(struct hf_http_server *s, void (*on_closed)(void *arg), void *arg)
{
    if (!s || s->freeing)
        return;
    s->freeing = true;
    s->on_closed = on_closed;
    s->on_closed_arg = arg;
    hf_http_server_stop(s);
    struct hf_list *lists[] = {&s->conns, &s->shaking};
    for (size_t i = 0; i < HF_ARRAY_LEN(lists); i++)
        hf_list_foreach_safe(it, lists[i])
        {
            hf_conn_close(hf_list_entry(it, struct hf_conn, node), false);
        }
    uv_close((uv_handle_t *)&s->prepare, on_own_closed);
    uv_close((uv_handle_t *)&s->sweep, on_own_closed);
}

void hf_server_handle_closed(struct hf_http_server *s)
{
    if (--s->handle_n || !s->freeing)
        return;
    while (s->free_reqs) {
        struct hf_req *r = s->free_reqs;
        s->free_reqs = r->next_free;
        free(r);
    }
    void (*cb)(void *) = s->on_closed;
    void *arg = s->on_closed_arg;
    free(s->read_buf);
    hf_buf_done(&s->plain);
    free(s);
    if (cb)
        cb(arg);
}

struct hf_req *hf_server_req_get(struct hf_conn *c)
{
    struct hf_http_server *s = c->server;
    struct hf_req *r = s->free_reqs;
    if (r) {
        s->free_reqs = r->next_free;
        s->free_n--;
    } else {
        r = hf_xmalloc(sizeof(*r));
    }
    /* Neither the header table nor the inline head needs to be cleared. */
    memset(r, 0, offsetof(struct hf_req, head));
    memset((char *)r + offsetof(struct hf_req, head_p), 0,
           offsetof(struct hf_req, inline_head) - offsetof(struct hf_req, head_p));
    hf_head_init(&r->head, false);
    r->conn = c;
    r->head_p = r->inline_head;
    r->head_cap = sizeof(r->inline_head);
    r->extra.max = HF_HTTP_EXTRA_MAX;
    r->res_left = -1;
    return r;
}

void hf_server_req_put(struct hf_req *r)
{
    struct hf_http_server *s = r->conn->server;
    if (r->head_p != r->inline_head)
        free(r->head_p);
    hf_buf_done(&r->extra);
    if (s->free_n >= HF_HTTP_FREE_REQS || s->freeing) {
        free(r);
        return;
    }
    r->next_free = s->free_reqs;
    s->free_reqs = r;
    s->free_n++;
}
