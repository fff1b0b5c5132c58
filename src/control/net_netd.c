/* holdfast-netd as a process: found by its socket, started when nobody answers, replaced when it is of
 * another version, killed when it hangs. It outlives the daemon. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/path.h"
#include "control/net_int.h"

/* ---- starting ---- */

static void on_child_closed(uv_handle_t *h)
{
    free(h);
}

static void on_child_exit(uv_process_t *p, int64_t status, int signum)
{
    struct hf_cnet *n = p->data;
    uv_close((uv_handle_t *)p, on_child_closed);
    if (!n || n->child != p)
        return;
    n->child = NULL;
    if (n->closing)
        return;
    /* The log file holds the reason. */
    hf_log_warn("the network helper ended; running sandboxes keep their policy", "status=%d signal=%d log=%s",
                (int)status, signum, hf_log_quote(n->run));
}

void hf_cnet_forget_child(struct hf_cnet *n)
{
    if (!n->child)
        return;
    n->child->data = NULL;
    uv_close((uv_handle_t *)n->child, on_child_closed);
    n->child = NULL;
}

enum { ARGS_MAX = 24 };

static char **arguments(const struct hf_cnet *n)
{
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    const char *pairs[][2] = {{"--id", n->id},
                              {"--run", n->run},
                              {"--records", n->records},
                              {"--subnet4", n->net.subnet4},
                              {"--subnet6", n->net.subnet6},
                              {"--uplink4", n->net.uplink4},
                              {"--uplink6", n->net.uplink6},
                              {"--log-level", levels[n->cfg->log_level]}};
    char **argv = hf_xcalloc(ARGS_MAX, sizeof(*argv));
    size_t k = 0;
    argv[k++] = hf_xstrdup("holdfast-netd");
    for (size_t i = 0; i < HF_ARRAY_LEN(pairs); i++) {
        if (!pairs[i][1])
            continue;
        argv[k++] = hf_xstrdup(pairs[i][0]);
        argv[k++] = hf_xstrdup(pairs[i][1]);
    }
    if (!n->net.ipv6)
        argv[k++] = hf_xstrdup("--no-ipv6");
    return argv;
}

static void spawn(struct hf_cnet *n)
{
    hf_auto_free char *log = hf_xasprintf("%s/netd.log", n->run);
    hf_auto_close int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (out < 0) {
        hf_log_error("cannot open the network helper's log", "file=%s error=%s", hf_log_quote(log),
                     strerror(errno));
        return;
    }
    /* Nothing of our environment but the tests' kill point goes along: it may hold keys. */
    const char *point = getenv("HOLDFAST_NETD_KILLPOINT");
    hf_auto_free char *point_env = point ? hf_xasprintf("HOLDFAST_KILLPOINT=%s", point) : NULL;
    char *env[] = {point_env, NULL};
    uv_stdio_container_t stdio[3] = {{.flags = UV_IGNORE},
                                     {.flags = UV_INHERIT_FD, .data.fd = out},
                                     {.flags = UV_INHERIT_FD, .data.fd = out}};
    char **argv = arguments(n);
    uv_process_options_t o = {.exit_cb = on_child_exit,
                              .file = n->netd_path,
                              .args = argv,
                              .env = env,
                              .cwd = "/",
                              .flags = UV_PROCESS_DETACHED,
                              .stdio_count = 3,
                              .stdio = stdio};
    uv_process_t *p = hf_new(uv_process_t);
    p->data = n;
    int r = uv_spawn(n->loop, p, &o);
    for (size_t i = 0; argv[i]; i++)
        free(argv[i]);
    free(argv);
    if (r < 0) {
        p->data = NULL;
        uv_close((uv_handle_t *)p, on_child_closed);
        hf_log_error("cannot start the network helper", "program=%s error=%s", hf_log_quote(n->netd_path),
                     uv_strerror(r));
        return;
    }
    n->child = p;
    hf_log_info("network helper started", "pid=%d", p->pid);
}

static void maybe_spawn(struct hf_cnet *n)
{
    uint64_t now = hf_mono_ms();
    if (n->child || now < n->spawn_at_ms)
        return;
    n->spawn_wait_ms = n->spawn_wait_ms ? HF_MIN(n->spawn_wait_ms * 2, HF_CNET_SPAWN_MAX_MS) : 200;
    n->spawn_at_ms = now + n->spawn_wait_ms;
    spawn(n);
}

/* ---- ending ---- */

/* The process at the other end, by the socket's own word; nothing else is ever signalled. */
static int end_peer(struct hf_cnet *n, int signum)
{
    int pid = hf_netc_peer(n->client);
    if (pid <= 1 || pid == getpid())
        return -1;
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    /* Asked again with the pid held: it can't have become another process's in between. */
    if (pidfd < 0 || hf_netc_peer(n->client) != pid ||
        syscall(SYS_pidfd_send_signal, pidfd, signum, NULL, 0) < 0)
        return hf_close(pidfd);
    return pidfd;
}

/* A child that is not reaped yet keeps its pid. */
static int end_child(struct hf_cnet *n, int signum)
{
    int pidfd = n->child ? (int)syscall(SYS_pidfd_open, n->child->pid, 0) : -1;
    if (pidfd >= 0 && syscall(SYS_pidfd_send_signal, pidfd, signum, NULL, 0) < 0)
        pidfd = hf_close(pidfd);
    return pidfd;
}

void hf_cnet_netd_stop(struct hf_cnet *n)
{
    hf_auto_close int pidfd = end_peer(n, SIGTERM);
    if (pidfd < 0) /* it was started a moment ago and does not listen yet */
        pidfd = end_child(n, SIGTERM);
    if (pidfd < 0)
        return;
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    if (poll(&p, 1, HF_CNET_STOP_MS) == 0) {
        (void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
        (void)poll(&p, 1, HF_CNET_STOP_MS);
    }
}

/* ---- the connection ---- */

static void on_status(void *arg, const json_t *body, const struct hf_err *err)
{
    struct hf_cnet *n = arg;
    if (n->closing || n->c->stopping)
        return;
    if (err) {
        hf_netc_drop(n->client, -ECONNRESET);
        return;
    }
    n->hung = 0;
    n->spawn_wait_ms = 0;
    const char *version = json_string_value(json_object_get(body, "version"));
    bool same = version && strcmp(version, HOLDFAST_VERSION) == 0;
    if (!same && !n->replaced) {
        /* The kernel keeps every policy while the new one starts. */
        hf_log_info("replacing a network helper of another version", "version=%s",
                    hf_log_quote(version ? version : ""));
        n->replaced = true;
        hf_close(end_peer(n, SIGTERM));
        hf_netc_drop(n->client, -ECONNRESET);
        return;
    }
    if (!same)
        hf_log_error("the network helper is of another version than the daemon", "version=%s program=%s",
                     hf_log_quote(version ? version : ""), hf_log_quote(n->netd_path));
    hf_log_info("network helper connected", "pid=%lld",
                (long long)json_integer_value(json_object_get(body, "pid")));
    n->told = true;
    hf_cnet_sync(n);
    hf_cnet_flush_waits(n);
}

static void on_up(void *self)
{
    struct hf_cnet *n = self;
    hf_netc_send(n->client, "GET", "/status", NULL, 0, on_status, n);
}

static void on_down(void *self, bool connected, int r)
{
    struct hf_cnet *n = self;
    if (n->told)
        hf_log_warn("the connection to the network helper is lost", "error=%s", strerror(-r));
    n->told = false;
    if (n->closing || n->c->stopping)
        return;
    if (!connected && (r == -ENOENT || r == -ECONNREFUSED))
        maybe_spawn(n);
}

static void kill_hung(struct hf_cnet *n)
{
    hf_log_error("the network helper does not answer and is ended", "pid=%d", hf_netc_peer(n->client));
    n->hung = 0;
    hf_close(end_peer(n, SIGKILL));
}

static void on_down_counted(void *self, bool connected, int r)
{
    struct hf_cnet *n = self;
    if (connected && r == -ETIMEDOUT)
        n->hung++;
    on_down(self, connected, r);
}

static void on_up_checked(void *self)
{
    struct hf_cnet *n = self;
    if (n->hung >= HF_CNET_HUNG_MAX)
        kill_hung(n);
    on_up(self);
}

static const struct hf_netc_ops ops = {on_up_checked, on_down_counted};

static void on_step(uv_timer_t *t)
{
    struct hf_cnet *n = t->data;
    if (!n->told && !n->c->stopping)
        hf_netc_connect(n->client);
    struct hf_err err = {0};
    (void)hf_err_http(
        &err, -EAGAIN, 503,
        "the network helper (holdfast-netd) is not running; it is being started, try again in a "
        "moment");
    hf_cnet_fail_waits(n, hf_mono_ms(), &err);
}

void hf_cnet_netd_init(struct hf_cnet *n)
{
    hf_auto_free char *socket = hf_xasprintf("%s/netd.sock", n->run);
    n->client = hf_netc_new(n->loop, socket, &ops, n);
    (void)uv_timer_start(&n->timer, on_step, 0, HF_CNET_STEP_MS);
}

static void on_beat(void *arg, const json_t *body, const struct hf_err *err)
{
    struct hf_cnet *n = arg;
    if (!err)
        n->hung = 0;
}

void hf_cnet_beat(struct hf_cnet *n)
{
    uint64_t now = hf_mono_ms();
    if (!n->told || now - n->beat_ms < HF_CNET_BEAT_MS)
        return;
    n->beat_ms = now;
    hf_netc_send(n->client, "GET", "/status", NULL, 0, on_beat, n);
}

/* ---- its log ---- */

void hf_cnet_cap_log(struct hf_cnet *n)
{
    hf_auto_free char *path = hf_xasprintf("%s/netd.log", n->run);
    hf_auto_free char *old = hf_xasprintf("%s/netd.log.1", n->run);
    struct stat st;
    if (stat(path, &st) < 0 || st.st_size <= (off_t)HF_CNET_LOG_MAX)
        return;
    hf_auto_close int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    hf_auto_free char *half = hf_xmalloc(HF_CNET_LOG_MAX / 2);
    ssize_t got =
        fd < 0 ? -1 : pread(fd, half, HF_CNET_LOG_MAX / 2, st.st_size - (off_t)(HF_CNET_LOG_MAX / 2));
    if (got > 0)
        (void)!hf_write_file_atomic(old, half, (size_t)got, 0600);
    if (fd >= 0)
        (void)!ftruncate(fd, 0); /* it writes with O_APPEND: the next line is the first */
}
