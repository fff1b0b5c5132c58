/* The shim's loop: requests of daemons, PID 1's end, its stderr, memory running out. */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/path.h"
#include "engine/shim/shim.h"

int shim_listen(const char *dir, const char *name, int type, int *ret, struct hf_err *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int n = snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof(addr.sun_path))
        return hf_err_set(err, -ENAMETOOLONG, "the socket path %s/%s is too long", dir, name);
    hf_auto_close int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || listen(fd, SOMAXCONN) < 0)
        return hf_err_set(err, -errno, "cannot listen on %s: %s", addr.sun_path, strerror(errno));
    *ret = hf_take_fd(&fd);
    return 0;
}

int shim_write_file(const struct shim *s, const char *name, const void *p, size_t n)
{
    char tmp[HF_CELL_PATH_MAX + 32], path[HF_CELL_PATH_MAX + 32];
    (void)snprintf(path, sizeof(path), "%s/%s", s->spec.dir, name);
    (void)snprintf(tmp, sizeof(tmp), "%s/%s.tmp", s->spec.dir, name);
    /* No fsync: the directory is gone after a power cut, and so is what it describes. */
    hf_auto_close int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = hf_write_all(fd, p, n);
    if (r == 0 && rename(tmp, path) < 0)
        r = -errno;
    return r;
}

/* ---- clients ---- */

static void drop_client(struct shim_client *c)
{
    c->fd = hf_close(c->fd);
    c->kill_box = false;
}

/* A client that does not read is dropped: the shim never waits for anybody. */
static void send_to(struct shim_client *c, const struct hf_buf *b, int pass_fd)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {b->p, b->n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (pass_fd >= 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof(control.space);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(h), &pass_fd, sizeof(int));
    }
    if (sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        drop_client(c);
}

static void broadcast(struct shim *s, const struct hf_buf *b)
{
    for (size_t i = 0; i < SHIM_CLIENTS_MAX; i++)
        if (s->clients[i].fd >= 0)
            send_to(&s->clients[i], b, -1);
}

static void answer(struct shim_client *c, uint64_t id, const struct hf_err *err, struct hf_buf *more, int fd)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    int r = hf_kv_add_u64(&b, "id", id);
    if (r == 0)
        r = hf_kv_add_int(&b, "errno", err ? -err->r : 0);
    if (r == 0 && err && err->r)
        r = hf_kv_add(&b, "msg", err->msg);
    if (r == 0 && more && more->n)
        r = hf_buf_add(&b, more->p, more->n);
    if (r == 0)
        send_to(c, &b, fd);
    else
        drop_client(c);
}

static int info(const struct shim *s, struct hf_buf *b)
{
    int r = hf_kv_add_u64(b, "version", 1);
    if (r == 0)
        r = hf_kv_add_int(b, "pid", s->pid);
    if (r == 0)
        r = hf_kv_add_u64(b, "uid_base", s->uid_base);
    if (r == 0)
        r = hf_kv_add_int(b, "disk_fd", s->disk_fd);
    if (r == 0)
        r = hf_kv_add_u64(b, "frozen", s->frozen);
    return r == 0 ? hf_cell_spec_write(&s->spec, b) : r;
}

static int disk_space(const struct shim *s, struct hf_buf *b, struct hf_err *err)
{
    struct statfs st;
    if (fstatfs(s->disk_fd, &st) < 0)
        return hf_err_set(err, -errno, "cannot ask the writable layer: %s", strerror(errno));
    uint64_t block = (uint64_t)st.f_bsize;
    int r = hf_kv_add_u64(b, "total", (uint64_t)st.f_blocks * block);
    return r == 0 ? hf_kv_add_u64(b, "used", (uint64_t)(st.f_blocks - st.f_bfree) * block) : r;
}

/* A TCP socket of the box's network namespace, which this process has joined. */
static int box_socket(struct hf_str text, struct hf_err *err)
{
    int family = hf_str_eq(hf_kv_get(text, "family"), "inet6") ? AF_INET6 : AF_INET;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd < 0 ? hf_err_set(err, -errno, "cannot make a socket in the sandbox: %s", strerror(errno)) : fd;
}

static void handle(struct shim *s, struct shim_client *c, struct hf_str text)
{
    struct hf_str op = hf_kv_get(text, "op");
    uint64_t id = hf_kv_u64(text, "id", 0);
    hf_auto_buf struct hf_buf more = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    hf_auto_close int fd = -1;
    struct hf_err err = {0};
    int r = 0;
    if (hf_str_eq(op, "kill")) {
        s->kill_asked = true;
        c->kill_box = true;
        shim_kill(s);
        return; /* the exit event is the answer */
    }
    if (hf_str_eq(op, "socket"))
        r = fd = box_socket(text, &err);
    else if (hf_str_eq(op, "info"))
        r = info(s, &more);
    else if (hf_str_eq(op, "statfs"))
        r = disk_space(s, &more, &err);
    else if (hf_str_eq(op, "claim"))
        r = shim_claim(s, text, &err);
    else if (hf_str_eq(op, "net"))
        r = shim_wire_request(s, text, &err);
    else if (hf_str_eq(op, "freeze"))
        r = shim_freeze_request(s, text, &err);
    else if (hf_str_eq(op, "save"))
        r = shim_save(s, text, &more, &err);
    else
        r = hf_err_set(&err, -ENOSYS, "this supervisor does not know the request");
    if (r < 0 && !err.r)
        (void)hf_err_set(&err, r, "%s", strerror(-r));
    answer(c, id, &err, &more, fd);
    /* A box that was warmed with a wire and shall have none: nobody waits for that, since a wire without a
     * policy carries nothing. */
    if (hf_str_eq(op, "claim") && r == 0 && s->wired && !s->spec.network)
        (void)!shim_wire(s, false, &err);
}

static void read_client(struct shim *s, struct shim_client *c)
{
    static char buf[HF_SHIM_MSG_MAX];
    ssize_t n = recv(c->fd, buf, sizeof(buf), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        drop_client(c);
        return;
    }
    handle(s, c, (struct hf_str){buf, (size_t)n});
}

static void accept_client(struct shim *s)
{
    hf_auto_close int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct ucred peer;
    socklen_t n = sizeof(peer);
    if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
        return;
    if (peer.uid != 0 && peer.uid != geteuid())
        return;
    for (size_t i = 0; i < SHIM_CLIENTS_MAX; i++) {
        if (s->clients[i].fd >= 0)
            continue;
        s->clients[i].fd = hf_take_fd(&fd);
        return;
    }
}

/* ---- PID 1 ---- */

/* Keeps the last bytes; the rest is dropped, so a chatty PID 1 costs nothing but its own time. */
static void read_stderr(struct shim *s)
{
    char buf[SHIM_STDERR_TAIL];
    ssize_t n = read(s->stderr_fd, buf, sizeof(buf));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        s->stderr_fd = hf_close(s->stderr_fd);
        return;
    }
    size_t keep = HF_MIN(s->stderr_n, sizeof(s->stderr_tail) - (size_t)n);
    memmove(s->stderr_tail, s->stderr_tail + s->stderr_n - keep, keep);
    memcpy(s->stderr_tail + keep, buf, (size_t)n);
    s->stderr_n = keep + (size_t)n;
}

static void note_oom(struct shim *s)
{
    uint64_t kills = hf_cg_oom_kills(&s->cg, s->spec.n);
    if (kills > s->oom_kills) {
        s->oom_kills = kills;
        s->oom_at_ms = hf_mono_ms();
    }
}

static void read_oom(struct shim *s)
{
    char drain[512];
    if (s->cg.version == 2)
        (void)!pread(s->oom_fd, drain, sizeof(drain), 0);
    else
        (void)!read(s->oom_fd, drain, sizeof(uint64_t));
    note_oom(s);
}

/* The last line that PID 1 wrote, printable. */
static void last_words(struct shim *s, char *out, size_t cap)
{
    while (s->stderr_fd >= 0) {
        struct pollfd p = {s->stderr_fd, POLLIN, 0};
        if (poll(&p, 1, 0) != 1)
            break;
        read_stderr(s);
    }
    size_t end = s->stderr_n;
    while (end && s->stderr_tail[end - 1] == '\n')
        end--;
    size_t start = end;
    while (start && s->stderr_tail[start - 1] != '\n')
        start--;
    size_t n = HF_MIN(end - start, cap - 1);
    for (size_t i = 0; i < n; i++) {
        char c = s->stderr_tail[start + i];
        out[i] = c >= ' ' && c <= '~' ? c : '?';
    }
    out[n] = '\0';
}

static void judge_exit(struct shim *s, const siginfo_t *si, struct hf_cell_exit *e)
{
    char words[100];
    note_oom(s);
    last_words(s, words, sizeof(words));
    bool signalled = si->si_code == CLD_KILLED || si->si_code == CLD_DUMPED;
    bool oom = s->oom_at_ms && hf_mono_ms() - s->oom_at_ms <= SHIM_OOM_WINDOW_MS;
    e->code = signalled ? -si->si_status : si->si_status;
    if (signalled && si->si_status == SIGKILL && oom && !s->kill_asked) {
        e->cause = HF_CELL_OOM;
        (void)snprintf(e->detail, sizeof(e->detail),
                       "the kernel killed its init: memory limit of %" PRIu64 " MiB",
                       s->spec.limits.memory_bytes >> 20);
    } else if (signalled && si->si_status == SIGKILL) {
        e->cause = HF_CELL_KILLED;
        (void)snprintf(e->detail, sizeof(e->detail), "%s",
                       s->kill_asked ? "killed on request" : "its init was killed from outside");
    } else {
        e->cause = HF_CELL_EXITED;
        (void)snprintf(e->detail, sizeof(e->detail), "its init ended with %s %d%s%s",
                       signalled ? "signal" : "status", si->si_status, words[0] ? ": " : "", words);
    }
}

static void publish_exit(struct shim *s, const struct hf_cell_exit *e)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    int r = hf_kv_add(&b, "event", "exit");
    if (r == 0)
        r = hf_cell_exit_write(e, &b);
    if (r < 0)
        return;
    if (!s->kill_asked)
        (void)!shim_write_file(s, "exit", b.p, b.n);
    broadcast(s, &b);
}

/* True when PID 1 has ended; everything of the box but its files is gone then. */
static bool reap(struct shim *s)
{
    siginfo_t si = {0};
    if (waitid(P_PIDFD, (id_t)s->pidfd, &si, WEXITED | WNOHANG) < 0 || !si.si_pid)
        return false;
    s->pid = 0;
    struct hf_cell_exit e = {0};
    judge_exit(s, &si, &e);
    shim_cleanup(s);
    publish_exit(s, &e);
    return true;
}

void shim_tell_failed(struct shim *s, const struct hf_err *err)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    int r = hf_kv_add(&b, "event", "failed");
    if (r == 0)
        r = hf_kv_add_int(&b, "errno", -err->r);
    if (r == 0)
        r = hf_kv_add(&b, "msg", err->msg);
    if (r == 0)
        broadcast(s, &b);
}

void shim_serve(struct shim *s)
{
    enum { LISTEN, PIDFD, WORDS, OOM, CLIENTS };
    hf_auto_buf struct hf_buf ready = HF_BUF_INIT(64);
    if (hf_kv_add(&ready, "event", "ready") == 0 && hf_kv_add_int(&ready, "disk_fd", s->disk_fd) == 0)
        broadcast(s, &ready);
    for (;;) {
        struct pollfd p[CLIENTS + SHIM_CLIENTS_MAX] = {
            {s->listen_fd, POLLIN, 0},
            {s->pidfd, POLLIN, 0},
            {s->stderr_fd, POLLIN, 0},
            {s->oom_fd, s->cg.version == 2 ? POLLPRI : POLLIN, 0},
        };
        for (size_t i = 0; i < SHIM_CLIENTS_MAX; i++)
            p[CLIENTS + i] = (struct pollfd){s->clients[i].fd, POLLIN, 0};
        if (poll(p, HF_ARRAY_LEN(p), -1) < 0)
            continue;
        if (p[OOM].revents)
            read_oom(s);
        if (p[WORDS].revents)
            read_stderr(s);
        if (p[PIDFD].revents && reap(s))
            return;
        for (size_t i = 0; i < SHIM_CLIENTS_MAX; i++)
            if (p[CLIENTS + i].revents && s->clients[i].fd == p[CLIENTS + i].fd)
                read_client(s, &s->clients[i]);
        if (p[LISTEN].revents)
            accept_client(s);
    }
}
