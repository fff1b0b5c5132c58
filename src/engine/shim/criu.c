#include "engine/shim/criu.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/path.h"

#define SOCKET_FD 3
#define LOG_MAX (256u << 10) /* of its end, bytes */

/* ---- protobuf: varints and length-delimited fields are all that is used ---- */

static void put_varint(struct hf_buf *b, uint64_t v)
{
    unsigned char out[10];
    size_t n = 0;
    do {
        out[n] = (unsigned char)(v & 0x7f);
        v >>= 7;
        out[n++] |= v ? 0x80 : 0;
    } while (v);
    (void)!hf_buf_add(b, out, n);
}

static void put_int(struct hf_buf *b, unsigned field, uint64_t v)
{
    put_varint(b, (uint64_t)field << 3);
    put_varint(b, v);
}

static void put_bytes(struct hf_buf *b, unsigned field, const void *p, size_t n)
{
    put_varint(b, (uint64_t)field << 3 | 2);
    put_varint(b, n);
    (void)!hf_buf_add(b, p, n);
}

static bool get_varint(struct hf_str *s, uint64_t *ret)
{
    *ret = 0;
    for (unsigned shift = 0; s->n && shift < 64; shift += 7) {
        unsigned char c = (unsigned char)*s->p++;
        s->n--;
        *ret |= (uint64_t)(c & 0x7f) << shift;
        if (!(c & 0x80))
            return true;
    }
    return false;
}

/* The next field: its number, and its value as a number or as bytes. */
static bool next_field(struct hf_str *s, unsigned *ret_field, uint64_t *ret_v, struct hf_str *ret_bytes)
{
    uint64_t tag, n;
    if (!get_varint(s, &tag) || !get_varint(s, &n))
        return false;
    *ret_field = (unsigned)(tag >> 3);
    *ret_v = n;
    *ret_bytes = (struct hf_str){0};
    if ((tag & 7) == 0)
        return true;
    if ((tag & 7) != 2 || n > s->n)
        return false;
    *ret_bytes = (struct hf_str){s->p, (size_t)n};
    s->p += n;
    s->n -= (size_t)n;
    return true;
}

static int parse_inner(struct hf_str text, struct hf_criu_answer *ret, bool notify)
{
    unsigned field;
    uint64_t v;
    struct hf_str bytes;
    while (text.n) {
        if (!next_field(&text, &field, &v, &bytes))
            return -EBADMSG;
        if (notify && field == 1)
            ret->stage = bytes;
        if (field == (notify ? 2u : 1u))
            ret->pid = v;
    }
    return 0;
}

int hf_criu_parse(struct hf_str text, struct hf_criu_answer *ret)
{
    unsigned field;
    uint64_t v;
    struct hf_str bytes;
    memset(ret, 0, sizeof(*ret));
    while (text.n) {
        if (!next_field(&text, &field, &v, &bytes))
            return -EBADMSG;
        if (field == 1)
            ret->type = v;
        else if (field == 2)
            ret->success = v;
        else if (field == 7)
            ret->cr_errno = v;
        else if (field == 9)
            ret->msg = bytes;
        else if ((field == 4 || field == 5) && parse_inner(bytes, ret, field == 5) < 0)
            return -EBADMSG;
    }
    return 0;
}

void hf_criu_opt_int(struct hf_criu_request *q, enum hf_criu_opt field, uint64_t v)
{
    put_int(&q->opts, field, v);
}

void hf_criu_opt_text(struct hf_criu_request *q, enum hf_criu_opt field, const char *s)
{
    put_bytes(&q->opts, field, s, strlen(s));
}

void hf_criu_opt_inherit(struct hf_criu_request *q, const char *key, int fd)
{
    if (fd < 0 || q->n_fds == HF_CRIU_FDS_MAX)
        return;
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(512);
    put_bytes(&b, 1, key, strlen(key));
    put_int(&b, 2, HF_CRIU_FD_FIRST + q->n_fds);
    put_bytes(&q->opts, CRIU_INHERIT_FD, b.p, b.n);
    q->fds[q->n_fds++] = fd;
}

void hf_criu_request_done(struct hf_criu_request *q)
{
    hf_buf_done(&q->opts);
}

/* ---- the process ---- */

/* All descriptors are first moved out of the way of those that are placed. */
HF_NORETURN static void become_criu(const char *criu, const struct hf_criu_request *q, int sock)
{
    int fds[HF_CRIU_FDS_MAX], high = HF_CRIU_FD_FIRST + HF_CRIU_FDS_MAX;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGHUP, SIG_DFL);
    sock = fcntl(sock, F_DUPFD_CLOEXEC, high);
    for (size_t i = 0; i < q->n_fds; i++)
        fds[i] = fcntl(q->fds[i], F_DUPFD_CLOEXEC, high);
    for (size_t i = 0; i < q->n_fds; i++)
        (void)dup2(fds[i], HF_CRIU_FD_FIRST + (int)i);
    (void)dup2(sock, SOCKET_FD);
    (void)syscall(SYS_close_range, SOCKET_FD + 1, HF_CRIU_FD_FIRST - 1, 0);
    (void)syscall(SYS_close_range, HF_CRIU_FD_FIRST + q->n_fds, ~0u, 0);
    if (q->before_exec && q->before_exec(q->arg) < 0)
        _exit(126);
    char arg0[] = "criu", arg1[] = "swrk", arg2[] = "3", path[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    char *argv[] = {arg0, arg1, arg2, NULL}, *envp[] = {path, NULL};
    (void)execve(criu, argv, envp);
    _exit(127);
}

static int send_request(int fd, enum hf_criu_type type, const struct hf_buf *opts)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_CRIU_MSG_MAX);
    put_int(&b, 1, type);
    if (opts)
        put_bytes(&b, 2, opts->p, opts->n);
    else
        put_int(&b, 3, 1); /* notify_success */
    return send(fd, b.p, b.n, MSG_NOSIGNAL) == (ssize_t)b.n ? 0 : -EPIPE;
}

static int hear(int fd, char *buf, size_t cap, struct hf_criu_answer *ret)
{
    struct pollfd p = {fd, POLLIN, 0};
    int n;
    do
        n = poll(&p, 1, HF_CRIU_TIMEOUT_MS);
    while (n < 0 && errno == EINTR);
    if (n == 0)
        return -ETIMEDOUT;
    ssize_t got = recv(fd, buf, cap, 0);
    return got <= 0 ? -EPIPE : hf_criu_parse((struct hf_str){buf, (size_t)got}, ret);
}

static int talk(int fd, struct hf_criu_request *q, struct hf_err *err)
{
    hf_auto_free char *buf = hf_xmalloc(HF_CRIU_MSG_MAX);
    struct hf_criu_answer a;
    int r = send_request(fd, q->type, &q->opts);
    while (r == 0) {
        r = hear(fd, buf, HF_CRIU_MSG_MAX, &a);
        if (r == 0 && a.type != CRIU_NOTIFY)
            return a.success ? 0 : -EIO;
        if (r == 0 && q->notify)
            r = q->notify(q->arg, a.stage, (pid_t)a.pid, err);
        if (r == 0)
            r = send_request(fd, CRIU_NOTIFY, NULL);
    }
    return r;
}

/* The last line of the log that tells an error which is not only a warning of CRIU about itself. */
static void last_error(int dir_fd, const char *name, char *out, size_t cap)
{
    hf_auto_close int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    hf_auto_free char *text = hf_xmalloc(LOG_MAX + 1);
    off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t n = fd < 0 ? 0 : pread(fd, text, LOG_MAX, HF_MAX(size - (off_t)LOG_MAX, (off_t)0));
    text[HF_MAX(n, (ssize_t)0)] = '\0';
    out[0] = '\0';
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *at = strstr(line, "Error (");
        char *said = at ? strstr(at, "): ") : NULL;
        if (said && !strstr(said, "RLIMIT_NOFILE") && !out[0]) /* the first one is the cause */
            (void)snprintf(out, cap, "%s", said + 3);
    }
}

int hf_criu_run(const char *criu, struct hf_criu_request *q, int log_dir_fd, const char *log_name,
                struct hf_err *err)
{
    int pair[2];
    if (q->opts.n + 64 > HF_CRIU_MSG_MAX)
        return hf_err_set(err, -E2BIG, "the request to CRIU is too long");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return hf_err_set(err, -errno, "cannot make a socket pair: %s", strerror(errno));
    hf_auto_close int mine = pair[0];
    pid_t pid = fork();
    if (pid == 0)
        become_criu(criu, q, pair[1]);
    (void)close(pair[1]);
    if (pid < 0)
        return hf_err_set(err, -errno, "cannot start CRIU: %s", strerror(errno));
    int r = talk(mine, q, err);
    if (r == -ETIMEDOUT)
        (void)kill(pid, SIGKILL);
    mine = hf_close(mine);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (r == 0)
        return 0;
    char said[160];
    last_error(log_dir_fd, log_name, said, sizeof(said));
    if (err && err->r)
        return r; /* a step of ours failed */
    if (WIFEXITED(status) && WEXITSTATUS(status) >= 126)
        return hf_err_set(err, -ENOENT, "cannot execute CRIU at %s", criu);
    return hf_err_set(err, r, "CRIU failed: %s", said[0] ? said : strerror(-r));
}
