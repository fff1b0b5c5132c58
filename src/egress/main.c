/* holdfast-netd: see netd.h. Started by `holdfast serve`; outlives it. */
#include <fcntl.h>
#include <getopt.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/path.h"
#include "egress/netd_int.h"

#define FDS_WANTED 65536u

struct args {
    struct hf_net_config net;
    const char *run, *records;
    int ready_fd;
};

static void usage(void)
{
    (void)fputs(
        "holdfast-netd answers DNS and carries L7 traffic for sandboxes; `holdfast serve` starts it.\n\n"
        "  holdfast-netd --id HEX8 --run DIR --records DIR [--subnet4 NET] [--subnet6 NET] [--uplink4 NET]\n"
        "                [--uplink6 NET] [--no-ipv6] [--log-level LEVEL] [--ready-fd N]\n",
        stderr);
}

static int parse(int argc, char **argv, struct args *a)
{
    enum { NO_IPV6 = 256, READY, LEVEL };
    static const struct option options[] = {
        {"id", required_argument, NULL, 'i'},
        {"run", required_argument, NULL, 'r'},
        {"records", required_argument, NULL, 'R'},
        {"subnet4", required_argument, NULL, '4'},
        {"subnet6", required_argument, NULL, '6'},
        {"uplink4", required_argument, NULL, 'u'},
        {"uplink6", required_argument, NULL, 'U'},
        {"no-ipv6", no_argument, NULL, NO_IPV6},
        {"ready-fd", required_argument, NULL, READY},
        {"log-level", required_argument, NULL, LEVEL},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    *a = (struct args){.net = {.ipv6 = true}, .ready_fd = -1};
    enum hf_log_level level;
    uint64_t n;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'i':
            a->net.id = optarg;
            break;
        case 'r':
            a->run = optarg;
            break;
        case 'R':
            a->records = optarg;
            break;
        case '4':
            a->net.subnet4 = optarg;
            break;
        case '6':
            a->net.subnet6 = optarg;
            break;
        case 'u':
            a->net.uplink4 = optarg;
            break;
        case 'U':
            a->net.uplink6 = optarg;
            break;
        case NO_IPV6:
            a->net.ipv6 = false;
            break;
        case READY:
            if (hf_parse_u64(hf_str_c(optarg), 1024, &n) < 0)
                return -EINVAL;
            a->ready_fd = (int)n;
            break;
        case LEVEL:
            if (hf_log_level_parse(optarg, &level) < 0)
                return -EINVAL;
            hf_log_set_level(level);
            break;
        default:
            return -EINVAL;
        }
    }
    return a->net.id && a->run && a->records && optind == argc ? 0 : -EINVAL;
}

/* Held for life: one netd a data directory. */
static int take_lock(const char *run, struct hf_err *err)
{
    int r = hf_mkdir_p(run, 0700);
    if (r < 0)
        return hf_err_set(err, r, "cannot make the directory %s: %s", run, strerror(-r));
    hf_auto_free char *path = hf_xasprintf("%s/lock", run);
    hf_auto_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return hf_err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return hf_err_set(err, -EBUSY, "another holdfast-netd serves %s", run);
    return hf_take_fd(&fd);
}

static void raise_limits(void)
{
    struct rlimit fds;
    const struct rlimit no_core = {0, 0};
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0) {
        fds.rlim_cur = HF_MIN(fds.rlim_max, (rlim_t)FDS_WANTED);
        (void)setrlimit(RLIMIT_NOFILE, &fds);
    }
    (void)setrlimit(RLIMIT_CORE, &no_core);
}

/* From here on: no core, no other process of the same user looks in, pages with secrets don't reach a swap,
 * and of root's powers only nfnetlink's is left. */
static int harden(struct hf_err *err)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};
    data[CAP_NET_ADMIN / 32].effective = data[CAP_NET_ADMIN / 32].permitted = 1u << (CAP_NET_ADMIN % 32);
    if (mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) < 0)
        hf_log_warn("memory can't be locked: secrets could be swapped out", "error=%s", strerror(errno));
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return hf_err_set(err, -errno, "cannot close the process to others: %s", strerror(errno));
    for (unsigned cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (cap != CAP_NET_ADMIN)
            (void)prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    if (syscall(SYS_capset, &head, data) < 0)
        return hf_err_set(err, -errno, "cannot drop capabilities: %s", strerror(errno));
    return 0;
}

struct netd {
    struct hf_netd d;
    struct hf_ctl *ctl;
    struct hf_net_watch *watch;
    uv_signal_t signals[2];
    bool stopping;
};

static void on_signal(uv_signal_t *s, int signum)
{
    struct netd *n = s->data;
    if (n->stopping)
        return;
    n->stopping = true;
    hf_log_info("stopping; the kernel keeps every policy", "signal=%d", signum);
    for (size_t i = 0; i < HF_ARRAY_LEN(n->signals); i++)
        uv_close((uv_handle_t *)&n->signals[i], NULL);
    hf_ctl_stop(n->ctl);
    hf_l7_stop(&n->d);
    hf_dns_stop(&n->d);
    hf_net_watch_free(n->watch);
    hf_record_stop(&n->d);
}

static int start(struct netd *n, const struct args *a, struct hf_err *err)
{
    struct hf_netd *d = &n->d;
    int r = hf_net_open(&a->net, &d->net, err);
    if (r == 0)
        r = hf_record_start(d, a->records, err);
    if (r == 0)
        r = hf_dns_start(d, err);
    if (r == 0)
        r = hf_l7_start(d, err);
    if (r == 0)
        r = hf_net_watch(d->net, d->loop, hf_netd_on_denial, d, &n->watch, err);
    if (r == 0)
        r = harden(err);
    hf_killpoint("netd.started");
    if (r == 0)
        r = hf_ctl_start(d, a->run, &n->ctl, err);
    return r;
}

static void tell_ready(int fd)
{
    if (fd < 0)
        return;
    (void)!write(fd, "", 1);
    (void)hf_close(fd);
}

int main(int argc, char **argv)
{
    static struct netd n;
    static const int signums[] = {SIGTERM, SIGINT};
    struct args a;
    struct hf_err err = {0};
    if (parse(argc, argv, &a) < 0) {
        usage();
        return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    raise_limits();
    uv_loop_t loop;
    hf_auto_close int lock = take_lock(a.run, &err);
    if (lock < 0 || uv_loop_init(&loop) < 0)
        goto failed;
    n.d.loop = &loop;
    n.d.cfg = a.net;
    if (start(&n, &a, &err) < 0)
        goto failed;
    for (size_t i = 0; i < HF_ARRAY_LEN(signums); i++) {
        (void)uv_signal_init(&loop, &n.signals[i]);
        n.signals[i].data = &n;
        (void)uv_signal_start(&n.signals[i], on_signal, signums[i]);
    }
    tell_ready(a.ready_fd);
    hf_log_info("serving", "run=%s version=%s", hf_log_quote(a.run), HOLDFAST_VERSION);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    hf_net_free(n.d.net);
    return 0;
failed:
    hf_log_error("holdfast-netd can't start", "error=%s", hf_log_quote(err.msg));
    return 1;
}
