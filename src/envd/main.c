/* holdfast-envd: PID 1 of a box, and its API.
 *
 * Started by the shim with fd 3 = listening control socket, fd 4 = listening public socket, and
 * HOLDFAST_CGROUP_FDS, HOLDFAST_CPU_COUNT in the environment. Outside a box (tests): --listen-ctl, --listen,
 * --port. One loop thread; libuv's pool starts with the first slow file operation. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <getopt.h>
#include <malloc.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/log.h"
#include "envd/forker.h"
#include "envd/proc.h"
#include "envd/server.h"
#include "envd/spawn.h"

#define FD_CONTROL 3
#define FD_PUBLIC 4
#define PORT_DEFAULT 49983
#define LISTEN_BACKLOG 1024
#define TERM_GRACE_MS 3000u /* between SIGTERM and SIGKILL to everything, when envd is told to end */

struct options {
    const char *listen_ctl, *listen, *host, *spool_dir;
    bool no_tcp, inherited;
    uint16_t port;
};

static uv_loop_t loop;
static struct envd envd;
static uv_signal_t on_chld, on_term;
static uv_timer_t grace;

/* ---- listening ---- */

static int listen_unix(const char *path, int *ret, struct hf_err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(a.sun_path))
        return hf_err_set(err, -ENAMETOOLONG, "socket path is too long: %s", path);
    memcpy(a.sun_path, path, strlen(path) + 1);
    (void)unlink(path);
    hf_auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, LISTEN_BACKLOG) < 0)
        return hf_err_set(err, -errno, "can't listen on %s: %s", path, strerror(errno));
    *ret = hf_take_fd(&fd);
    return 0;
}

static int bind_tcp(int family, const void *addr, socklen_t n, int *ret)
{
    int one = 1, zero = 0;
    hf_auto_close int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (family == AF_INET6) /* one socket for both families */
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
    if (bind(fd, addr, n) < 0 || listen(fd, LISTEN_BACKLOG) < 0)
        return -errno;
    *ret = hf_take_fd(&fd);
    return 0;
}

static int listen_tcp(const char *host, uint16_t port, int *ret, struct hf_err *err)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    int r;
    if (host && inet_pton(AF_INET, host, &four.sin_addr) != 1)
        return hf_err_set(err, -EINVAL, "--host must be an IPv4 address, not %s", host);
    r = host ? -EAFNOSUPPORT : bind_tcp(AF_INET6, &six, sizeof(six), ret);
    if (r < 0) /* no IPv6 here */
        r = bind_tcp(AF_INET, &four, sizeof(four), ret);
    return r < 0 ? hf_err_set(err, r, "can't listen on TCP port %u: %s", port, strerror(-r)) : 0;
}

static int serve_fd(struct hf_http_server *s, int fd, int tag, struct hf_err *err)
{
    int r = hf_http_server_listen_fd(s, fd, tag, err);
    if (r < 0)
        (void)hf_close(fd);
    return r;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_in6 a;
    socklen_t n = sizeof(a);
    return getsockname(fd, (struct sockaddr *)&a, &n) == 0 ? ntohs(a.sin6_port) : 0;
}

static int serve_inherited(struct hf_http_server *s, struct hf_err *err)
{
    static const int fds[] = {FD_CONTROL, FD_PUBLIC};
    static const int tags[] = {ENVD_TAG_CONTROL, ENVD_TAG_PUBLIC};
    for (size_t i = 0; i < HF_ARRAY_LEN(fds); i++) {
        struct stat st;
        if (fstat(fds[i], &st) < 0 || !S_ISSOCK(st.st_mode))
            return hf_err_set(err, -EBADF, "descriptor %d is not a listening socket; the shim passes it",
                              fds[i]);
        (void)fcntl(fds[i], F_SETFD, FD_CLOEXEC);
        (void)fcntl(fds[i], F_SETFL, O_NONBLOCK);
        int r = serve_fd(s, fds[i], tags[i], err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int serve_all(struct hf_http_server *s, const struct options *o, struct hf_err *err)
{
    int fd, r = o->inherited ? serve_inherited(s, err) : 0;
    if (r == 0 && o->listen_ctl && (r = listen_unix(o->listen_ctl, &fd, err)) == 0)
        r = serve_fd(s, fd, ENVD_TAG_CONTROL, err);
    if (r == 0 && o->listen && (r = listen_unix(o->listen, &fd, err)) == 0)
        r = serve_fd(s, fd, ENVD_TAG_PUBLIC, err);
    if (r < 0 || o->no_tcp)
        return r;
    r = listen_tcp(o->host, o->port, &fd, err);
    if (r < 0)
        return r;
    uint16_t port = port_of(fd);
    r = serve_fd(s, fd, ENVD_TAG_TCP, err);
    if (r == 0)
        hf_log_info("listening", "port=%u version=%s", port, HOLDFAST_VERSION);
    return r;
}

/* ---- signals ---- */

static void chld(uv_signal_t *s, int sig)
{
    proc_reap();
}

static HF_NORETURN void leave(void)
{
    if (envd.is_init)
        (void)kill(-1, SIGKILL);
    else
        proc_kill_all(SIGKILL);
    init_done(&envd);
    exit(0);
}

static bool anything_runs(void)
{
    hf_list_foreach(it, proc_table())
    {
        if (!hf_list_entry(it, struct proc, link)->leader_dead)
            return true;
    }
    return false;
}

static void grace_tick(uv_timer_t *t)
{
    static unsigned waited_ms;
    waited_ms += 50;
    if (waited_ms >= TERM_GRACE_MS || !anything_runs())
        leave();
}

static void term(uv_signal_t *s, int sig)
{
    (void)uv_signal_stop(s);
    if (envd.is_init)
        (void)kill(-1, SIGTERM);
    else
        proc_kill_all(SIGTERM);
    (void)uv_timer_init(&loop, &grace);
    (void)uv_timer_start(&grace, grace_tick, 50, 50);
}

static void signals(void)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGPIPE, &ignore, NULL);
    (void)uv_signal_init(&loop, &on_chld);
    (void)uv_signal_start(&on_chld, chld, SIGCHLD);
    (void)uv_signal_init(&loop, &on_term);
    (void)uv_signal_start(&on_term, term, SIGTERM);
}

/* ---- start ---- */

/* Descriptors from the shim: "memcur,memmax,memstat,cpu,userprocs", -1 = absent. */
static void take_cgroup_fds(struct envd *e)
{
    int *const to[] = {&e->fd_mem_current, &e->fd_mem_max, &e->fd_mem_stat, &e->fd_cpu_usage,
                       &e->fd_user_procs};
    const char *p = getenv("HOLDFAST_CGROUP_FDS");
    for (size_t i = 0; i < HF_ARRAY_LEN(to); i++) {
        char *end = NULL;
        long fd = p && *p ? strtol(p, &end, 10) : -1;
        *to[i] =
            end != p && fd >= 3 && fd < INT32_MAX && fcntl((int)fd, F_SETFD, FD_CLOEXEC) == 0 ? (int)fd : -1;
        p = end && *end == ',' ? end + 1 : NULL;
    }
    const char *cpus = getenv("HOLDFAST_CPU_COUNT");
    uint64_t n;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    e->cpu_count = cpus && hf_parse_u64(hf_str_c(cpus), 65536, &n) == 0 && n > 0 ? (uint32_t)n
                   : online > 0                                                  ? (uint32_t)online
                                                                                 : 1;
}

/* Everything in the box pays for envd's memory: one arena, freed memory goes back, few pool threads. */
static void be_small(void)
{
    (void)mallopt(M_ARENA_MAX, 1);
    (void)mallopt(M_TRIM_THRESHOLD, 128 * 1024);
    (void)mallopt(M_TOP_PAD, 64 * 1024);
    (void)mallopt(M_MMAP_THRESHOLD, 256 * 1024);
    (void)setenv("UV_THREADPOOL_SIZE", "2", 0);
}

static void open_std_fds(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0 && fd < 3) /* found a hole below 3: keep it */
        (void)fcntl(fd, F_SETFD, 0);
    (void)hf_close(fd);
}

static int parse(int argc, char **argv, struct options *o)
{
    enum { CTL = 1, PUBLIC, HOST, PORT, NO_TCP, SPOOL, VERSION };
    static const struct option longs[] = {
        {"listen-ctl", required_argument, NULL, CTL}, {"listen", required_argument, NULL, PUBLIC},
        {"host", required_argument, NULL, HOST},      {"port", required_argument, NULL, PORT},
        {"no-tcp", no_argument, NULL, NO_TCP},        {"spool-dir", required_argument, NULL, SPOOL},
        {"version", no_argument, NULL, VERSION},      {0},
    };
    *o = (struct options){.port = PORT_DEFAULT, .spool_dir = SPOOL_DIR, .inherited = argc == 1};
    uint64_t port;
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (c) {
        case CTL:
            o->listen_ctl = optarg;
            break;
        case PUBLIC:
            o->listen = optarg;
            break;
        case HOST:
            o->host = optarg;
            break;
        case PORT:
            if (hf_parse_u64(hf_str_c(optarg), UINT16_MAX, &port) < 0)
                return -EINVAL;
            o->port = (uint16_t)port;
            break;
        case NO_TCP:
            o->no_tcp = true;
            break;
        case SPOOL:
            o->spool_dir = optarg;
            break;
        case VERSION:
            printf("holdfast-envd %s (envd %s)\n", HOLDFAST_VERSION, ENVD_VERSION);
            exit(0);
        default:
            return -EINVAL;
        }
    }
    return optind == argc ? 0 : -EINVAL;
}

int main(int argc, char **argv)
{
    struct options o;
    struct hf_err err = {0};
    if (parse(argc, argv, &o) < 0) {
        fprintf(stderr,
                "usage: holdfast-envd [--listen-ctl PATH] [--listen PATH] [--host IPV4] [--port N]\n"
                "                     [--no-tcp] [--spool-dir DIR] [--version]\n"
                "Without options the listening sockets are taken from the shim (descriptors 3 and 4).\n");
        return 2;
    }
    be_small();
    envd = (struct envd){.loop = &loop, .spool_dir = o.spool_dir, .is_init = getpid() == 1};
    take_cgroup_fds(&envd);
    open_std_fds();
    spawn_setup();
    forker_start(envd.fd_user_procs);
    init_defaults(&envd);
    /* Root in the box must not trace PID 1, read its memory (the access token) or stop it. */
    if (envd.is_init)
        (void)prctl(PR_SET_DUMPABLE, 0);
    if (!envd.is_init) /* orphans of the processes come here all the same */
        (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    int r = spool_prepare(o.spool_dir);
    if (r < 0) {
        hf_log_warn("process output is kept in memory only", "dir=%s err=%s", o.spool_dir,
                    hf_log_quote(strerror(-r)));
        envd.spool_dir = NULL;
    }
    if (uv_loop_init(&loop) < 0)
        return 1;
    signals();
    struct hf_http_server *server = hf_http_server_new(&loop, &envd_http_handler, &envd);
    if (serve_all(server, &o, &err) < 0) {
        hf_log_error("envd can't start", "cause=%s", hf_log_quote(err.msg));
        return 1;
    }
    return uv_run(&loop, UV_RUN_DEFAULT) == 0 ? 0 : 1;
}
