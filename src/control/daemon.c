/* Puts the parts together and runs them until a signal. */
#include "control/daemon.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/path.h"
#include "control/api.h"
#include "control/front.h"
#include "control/ingress.h"
#include "control/net.h"
#include "control/persist.h"
#include "control/present.h"
#include "control/template.h"
#include "proxy/proxy.h"

#define MODULES_MAX 8
#define SETTLE_MS 5000u /* at a stop, for creates and kills that are under way */
#define SETTLE_STEP_MS 20u
#define PROBE_GRACE_MS 3000 /* after a pause, in which a question for its health does not wake a sandbox */

struct daemon {
    const struct hf_config *cfg;
    const struct hf_module *const *modules;
    void *module_self[MODULES_MAX];
    size_t started; /* modules */
    char *run_dir, *shim_path, *envd_path, *netd_path;
    int lock_fd;
    uv_loop_t loop;
    struct hf_meta *meta;
    struct hf_cnet *net;
    struct hf_driver *driver;
    struct hf_control *control;
    struct hf_api *api;
    struct hf_proxy *proxy;
    struct hf_http_server *server;
    struct hf_front *front;
    uv_signal_t signals[2], hangup, power;
    uv_timer_t settle;
    uint64_t settle_end_ms;
    bool have_handles, ready, stopping, abandoned;
    struct hf_err err;
};

/* ---- front: sandboxes' ports by host or headers, the rest is REST ---- */

static void on_request(void *self, struct hf_req *req)
{
    struct daemon *d = self;
    if (hf_proxy_match(d->proxy, req))
        hf_proxy_handle(d->proxy, req);
    else
        hf_api_handle(d->api, req);
}

static const struct hf_http_handler handler = {on_request};

static void fill_ingress(const struct hf_ingress *in, const struct hf_sandbox *sb, struct hf_route *ret)
{
    ret->private_traffic = in->is_private;
    if (in->is_private) {
        memcpy(ret->traffic_token, in->token, sizeof(ret->traffic_token));
        memcpy(ret->preview_key, in->preview_key, sizeof(ret->preview_key));
    }
    ret->mask_host = in->mask_host;
    ret->https_ports = in->https_ports;
    ret->n_https_ports = in->n_https_ports;
    ret->tenant = sb->row.tenant;
}

static void on_lookup(void *self, struct hf_str id, struct hf_route *ret)
{
    struct daemon *d = self;
    struct hf_sandbox *sb = hf_map_get(&d->control->map, id);
    ret->state = HF_ROUTE_NOT_FOUND;
    if (!sb)
        return;
    bool asleep = hf_state_asleep(sb->state);
    if (sb->state == HF_CREATING) {
        ret->state = HF_ROUTE_TRANSITION;
    } else if (asleep && hf_sandbox_wakes(sb) && !hf_pause_is_disk_only(sb)) {
        ret->state = HF_ROUTE_ASLEEP;
        ret->just_paused = hf_real_ms() - sb->row.paused_ms < PROBE_GRACE_MS;
        hf_sandbox_token(d->control, sb->row.id, ret->envd_token);
        fill_ingress(hf_sandbox_ingress(sb), sb, ret);
    } else if (sb->state == HF_RUNNING) {
        ret->state = HF_ROUTE_RUNNING;
        ret->handle = sb->box;
        ret->envd_socket = hf_box_envd_socket(sb->box);
        fill_ingress(hf_sandbox_ingress(sb), sb, ret);
    }
    /* Killing counts as gone: a client whose stream was just cut asks /health, and must read 502. */
}

struct dial {
    void (*cb)(void *arg, int fd);
    void *arg;
};

static void on_dialled(void *arg, int fd, const struct hf_err *err)
{
    struct dial dial = *(struct dial *)arg;
    free(arg);
    dial.cb(dial.arg, fd);
}

static void on_dial(void *self, void *handle, uint16_t port, void (*cb)(void *arg, int fd), void *arg)
{
    struct daemon *d = self;
    struct dial *dial = hf_new(struct dial);
    *dial = (struct dial){cb, arg};
    d->driver->ops->dial(d->driver, handle, port, on_dialled, dial);
}

struct waking {
    void (*cb)(void *arg, int status, const char *message);
    void *arg;
};

static void on_awake(void *arg, struct hf_sandbox *sb, const struct hf_err *err)
{
    struct waking w = *(struct waking *)arg;
    free(arg);
    if (sb)
        w.cb(w.arg, 0, "");
    else
        w.cb(w.arg, hf_err_http_status(err), err->msg);
}

static void on_wake(void *self, const char *sandbox_id,
                    void (*cb)(void *arg, int status, const char *message), void *arg)
{
    struct daemon *d = self;
    struct hf_sandbox *sb = hf_sandbox_find(d->control, NULL, sandbox_id);
    struct hf_err err = {0};
    int r =
        sb ? hf_control_admit_resume(sb, &err) : hf_err_http(&err, -ENOENT, 502, "The sandbox was not found");
    if (r < 0) {
        cb(arg, hf_err_http_status(&err), err.msg);
        return;
    }
    struct waking *w = hf_new(struct waking);
    *w = (struct waking){cb, arg};
    hf_sandbox_resume(sb, sb->row.timeout_s, HF_CAUSE_TRAFFIC, on_awake, w);
}

static const struct hf_proxy_ops proxy_ops = {on_lookup, on_dial, on_wake};

static void on_drop(void *self, const char *sandbox_id)
{
    hf_proxy_drop(((struct daemon *)self)->proxy, sandbox_id);
}

/* ---- before the loop ---- */

static bool is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static int check_bind(const struct hf_config *cfg, struct hf_err *err)
{
    if (is_loopback(cfg->listen_host) || cfg->insecure_listen)
        return 0;
    return hf_err_set(
        err, -EPERM,
        "refusing to listen on %s: without TLS keys and data would cross the network in clear. Speak HTTPS "
        "with --tls-listen (see `holdfast cert init`), or say --insecure-listen",
        cfg->listen_host);
}

static int take_lock(struct daemon *d, struct hf_err *err)
{
    hf_auto_free char *path = hf_xasprintf("%s/holdfast.lock", d->cfg->data_dir);
    hf_auto_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return hf_err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            return hf_err_set(err, -errno, "cannot lock %s: %s", path, strerror(errno));
        char pid[24] = "";
        ssize_t n = pread(fd, pid, sizeof(pid) - 1, 0);
        pid[n > 0 ? (size_t)n : 0] = '\0';
        pid[strcspn(pid, "\n")] = '\0';
        return hf_err_set(err, -EBUSY,
                          "another daemon (process %s) uses the data directory %s: stop it, or give "
                          "this one a directory of its own with --data",
                          *pid ? pid : "unknown", d->cfg->data_dir);
    }
    char pid[24];
    int n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, pid, (size_t)n, 0) != n)
        return hf_err_set(err, -EIO, "cannot write %s", path);
    d->lock_fd = hf_take_fd(&fd);
    return 0;
}

/* The given path, or `name` beside the running binary. */
static char *beside(const char *given, const char *name)
{
    char self[PATH_MAX];
    if (*given)
        return hf_xstrdup(given);
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[n > 0 ? (size_t)n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    return hf_xasprintf("%s/%s", self, name);
}

static int make_dirs(struct daemon *d, struct hf_err *err)
{
    const char *dirs[] = {d->cfg->data_dir, d->run_dir};
    for (size_t i = 0; i < HF_ARRAY_LEN(dirs); i++) {
        int r = hf_mkdir_p(dirs[i], 0700);
        if (r < 0)
            return hf_err_set(err, r, "cannot make the directory %s: %s", dirs[i], strerror(-r));
    }
    return 0;
}

static int open_parts(struct daemon *d, struct hf_err *err)
{
    const struct hf_config *cfg = d->cfg;
    int r = hf_meta_open(cfg->data_dir, &d->loop, &d->meta, err);
    if (r < 0)
        return r;
    d->net = hf_cnet_open(&d->loop, cfg, d->run_dir, d->netd_path);
    if (cfg->network == HF_NETWORK_REQUIRED && !hf_cnet_config(d->net))
        return hf_err_set(err, -ENOTSUP,
                          "the setting network is required, and sandboxes can't have one here: %s",
                          hf_cnet_missing(d->net));
    struct hf_driver_config dc = {.data_dir = cfg->data_dir,
                                  .run_dir = d->run_dir,
                                  .shim_path = d->shim_path,
                                  .envd_path = d->envd_path,
                                  .criu_path = *cfg->criu_path ? cfg->criu_path : HF_CRIU_PATH,
                                  .cgroup_root = cfg->cgroup_root,
                                  .pool_bytes = cfg->pool_bytes,
                                  .warm_pool = cfg->warm_pool,
                                  .warm_template = "",
                                  .net = hf_cnet_config(d->net)};
    r = hf_cell_driver_new(&d->loop, &dc, &d->driver, err);
    if (r < 0)
        return r;
    d->control = hf_control_new(&d->loop, cfg, d->meta, d->driver);
    d->control->net = d->net;
    d->proxy = hf_proxy_new(&d->loop, cfg->domain, &proxy_ops, d);
    hf_proxy_set_limits(d->proxy, cfg->max_connections_per_sandbox, cfg->max_connections_per_tenant);
    d->control->hooks.drop = on_drop;
    d->control->hooks_self = d;
    d->api = hf_api_new(d->control);
    d->server = hf_http_server_new(&d->loop, &handler, d);
    return 0;
}

/* ---- the end ---- */

static void close_handles(struct daemon *d)
{
    uv_close((uv_handle_t *)&d->settle, NULL);
    uv_close((uv_handle_t *)&d->hangup, NULL);
    uv_close((uv_handle_t *)&d->power, NULL);
    for (size_t i = 0; i < HF_ARRAY_LEN(d->signals); i++)
        uv_close((uv_handle_t *)&d->signals[i], NULL);
    d->have_handles = false;
}

static void on_control_gone(void *arg)
{
    ((struct daemon *)arg)->control = NULL;
}

/* When in doubt: some are. */
static bool boxes_left(const struct hf_config *cfg)
{
    hf_auto_free char *cells = hf_xasprintf("%s/pool/cells", cfg->data_dir);
    DIR *dir = opendir(cells);
    if (!dir)
        return true;
    bool used = false;
    for (struct dirent *e; !used && (e = readdir(dir));)
        used = e->d_name[0] != '.';
    (void)closedir(dir);
    return used;
}

static void after_net(void *arg, const struct hf_err *err)
{
    struct daemon *d = arg;
    d->net = NULL;
    if (err && err->r < 0)
        hf_log_warn("the network did not close cleanly", "error=%s", hf_log_quote(err->msg));
    if (d->control)
        hf_control_free(d->control, on_control_gone, d);
    if (d->have_handles)
        close_handles(d);
}

static void after_driver(void *arg, const struct hf_err *err)
{
    struct daemon *d = arg;
    d->driver = NULL;
    if (err && err->r < 0)
        hf_log_warn("the driver did not close cleanly", "error=%s", hf_log_quote(err->msg));
    if (d->proxy)
        hf_proxy_free(d->proxy);
    d->proxy = NULL;
    if (d->net)
        hf_cnet_close(d->net, !boxes_left(d->cfg), after_net, d);
    else
        after_net(d, NULL);
}

static void after_meta(void *arg)
{
    struct daemon *d = arg;
    d->meta = NULL;
    if (d->driver)
        d->driver->ops->close(d->driver, true, after_driver, d);
    else
        after_driver(d, NULL);
}

static void after_server(void *arg)
{
    struct daemon *d = arg;
    d->server = NULL;
    while (d->started) {
        d->started--;
        d->modules[d->started]->stop(d->module_self[d->started]);
    }
    hf_api_free(d->api);
    d->api = NULL;
    if (d->meta)
        hf_meta_close(d->meta, after_meta, d);
    else
        after_meta(d);
}

static bool busy(const struct daemon *d)
{
    if (!d->control)
        return false;
    hf_list_foreach(it, &d->control->list)
    {
        const struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (sb->create || sb->state == HF_KILLING)
            return true;
    }
    return d->control->busy > 0;
}

static void on_settle(uv_timer_t *t)
{
    struct daemon *d = t->data;
    if (busy(d)) {
        if (uv_now(&d->loop) < d->settle_end_ms)
            return;
        /* Whatever hangs is as if the daemon had crashed here: the next start settles it. */
        hf_log_warn("stopping with operations under way; the next start settles them", "%s", "");
        d->abandoned = true;
        uv_stop(&d->loop);
        return;
    }
    (void)uv_timer_stop(t);
    if (d->control)
        d->control->stopping = true;
    if (d->server)
        hf_http_server_free(d->server, after_server, d);
    else
        after_server(d);
}

static void begin_stop(struct daemon *d)
{
    if (d->stopping)
        return;
    d->stopping = true;
    hf_front_close(hf_take_ptr(d->front));
    if (d->server)
        hf_http_server_stop(d->server);
    d->settle_end_ms = uv_now(&d->loop) + SETTLE_MS;
    (void)uv_timer_start(&d->settle, on_settle, 0, SETTLE_STEP_MS);
}

static void on_signal(uv_signal_t *s, int signum)
{
    hf_log_info("stopping; sandboxes go on", "signal=%d", signum);
    begin_stop(s->data);
}

static void on_drained(void *arg, const struct hf_err *err)
{
    hf_log_info("everything is saved; stopping", "%s", "");
    begin_stop(arg);
}

/* systemd's unit sends it when the host goes down (tools/holdfast.service). */
static void on_power(uv_signal_t *s, int signum)
{
    struct daemon *d = s->data;
    if (d->stopping || !d->ready || d->control->draining)
        return;
    hf_log_info("the host goes down; sandboxes are saved", "signal=%d", signum);
    hf_control_drain(d->control, on_drained, d);
}

static void on_hangup(uv_signal_t *s, int signum)
{
    hf_front_reload(((struct daemon *)s->data)->front);
}

/* ---- the beginning ---- */

static void set_domain(struct daemon *d)
{
    const char *domain = d->cfg->domain;
    uint16_t port = hf_http_server_tls_port(d->server);
    /* SDKs reach sandboxes by https wherever there is a domain of its own. */
    d->control->https = port != 0;
    if (!port)
        port = hf_http_server_port(d->server);
    bool plain = strchr(domain, ':') || port == 80 || port == 443;
    if (plain)
        (void)snprintf(d->control->domain, sizeof(d->control->domain), "%s", domain);
    else
        (void)snprintf(d->control->domain, sizeof(d->control->domain), "%s:%u", domain, port);
}

static char *url_of(const char *scheme, const char *host, uint16_t port)
{
    bool v6 = strchr(host, ':') != NULL;
    return hf_xasprintf("%s://%s%s%s:%u", scheme, v6 ? "[" : "", host, v6 ? "]" : "", port);
}

static void log_listening(const struct daemon *d)
{
    hf_auto_free char *plain = url_of("http", d->cfg->listen_host, hf_http_server_port(d->server));
    hf_auto_free char *tls =
        d->front ? url_of(" https_url=https", d->cfg->tls_host, hf_http_server_tls_port(d->server))
                 : hf_xstrdup("");
    hf_log_info("listening", "url=%s%s data=%s version=%s", plain, tls, hf_log_quote(d->cfg->data_dir),
                HOLDFAST_VERSION);
}

static void on_ready(void *arg, const struct hf_err *err)
{
    struct daemon *d = arg;
    if (d->stopping)
        return;
    if (err) {
        d->err = *err;
        begin_stop(d);
        return;
    }
    for (; d->modules && d->modules[d->started] && d->started < MODULES_MAX; d->started++) {
        const struct hf_module *m = d->modules[d->started];
        d->module_self[d->started] = m->start(d->control);
        hf_api_add(d->api, m->routes, d->module_self[d->started]);
    }
    hf_api_add_all(d->api);
    hf_cnet_start(d->net, d->control);
    hf_template_recover(d->control);
    hf_snapshot_recover(d->control);
    hf_control_set_warm(d->control);
    if (hf_http_server_listen_tcp(d->server, d->cfg->listen_host, d->cfg->listen_port, &d->err) < 0 ||
        hf_front_open(&d->loop, d->cfg, d->server, &d->front, &d->err) < 0) {
        begin_stop(d);
        return;
    }
    set_domain(d);
    d->ready = true;
    log_listening(d);
}

static int run_loop(struct daemon *d, struct hf_err *err)
{
    static const int signums[] = {SIGTERM, SIGINT};
    int r = uv_loop_init(&d->loop);
    if (r < 0)
        return hf_err_set(err, r, "cannot make an event loop: %s", uv_strerror(r));
    (void)uv_timer_init(&d->loop, &d->settle);
    d->settle.data = d;
    for (size_t i = 0; i < HF_ARRAY_LEN(signums); i++) {
        (void)uv_signal_init(&d->loop, &d->signals[i]);
        d->signals[i].data = d;
        (void)uv_signal_start(&d->signals[i], on_signal, signums[i]);
    }
    (void)uv_signal_init(&d->loop, &d->hangup);
    d->hangup.data = d;
    (void)uv_signal_start(&d->hangup, on_hangup, SIGHUP);
    (void)uv_signal_init(&d->loop, &d->power);
    d->power.data = d;
    (void)uv_signal_start(&d->power, on_power, SIGPWR);
    d->have_handles = true;
    r = open_parts(d, &d->err);
    if (r == 0)
        r = hf_control_reconcile(d->control, on_ready, d, &d->err);
    if (r < 0)
        begin_stop(d);
    (void)uv_run(&d->loop, UV_RUN_DEFAULT);
    if (!d->abandoned)
        (void)uv_loop_close(&d->loop);
    if (d->err.r && err)
        *err = d->err;
    return d->err.r;
}

/* A node without sandboxes keeps nothing mounted; with some, the mounts stay for the next daemon. */
static void close_disk(const struct hf_config *cfg, const char *run_dir)
{
    struct hf_err err = {0};
    if (!boxes_left(cfg) && hf_disk_pool_close(cfg->data_dir, run_dir, &err) < 0)
        hf_log_warn("the disk pool stays mounted", "error=%s", hf_log_quote(err.msg));
}

int hf_daemon_run(const struct hf_config *cfg, const struct hf_module *const *modules, struct hf_err *err)
{
    struct daemon d = {.cfg = cfg, .modules = modules, .lock_fd = -1};
    int r = check_bind(cfg, err);
    if (r < 0)
        return r;
    (void)signal(SIGPIPE, SIG_IGN);
    d.run_dir = hf_config_run_dir(cfg);
    d.shim_path = beside(cfg->shim_path, "holdfast-shim");
    d.envd_path = beside(cfg->envd_path, "holdfast-envd");
    d.netd_path = beside(cfg->netd_path, "holdfast-netd");
    r = make_dirs(&d, err);
    if (r == 0)
        r = take_lock(&d, err);
    if (r == 0)
        r = run_loop(&d, err);
    if (d.lock_fd >= 0)
        close_disk(cfg, d.run_dir);
    (void)hf_close(d.lock_fd);
    free(d.run_dir);
    free(d.shim_path);
    free(d.envd_path);
    free(d.netd_path);
    return r;
}
