/* The cell driver as a whole: making, describing and closing it. */
#include <stdio.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/id.h"
#include "base/log.h"
#include "base/path.h"
#include "engine/cell/cell.h"

_Static_assert((int)HF_BOX_EXITED == (int)HF_CELL_EXITED && (int)HF_BOX_OOM == (int)HF_CELL_OOM &&
                   (int)HF_BOX_KILLED == (int)HF_CELL_KILLED && (int)HF_BOX_LOST == (int)HF_CELL_LOST,
               "causes travel as numbers");
_Static_assert((int)HF_MOUNT_IMAGE == (int)HF_CELL_MOUNT_IMAGE &&
                   (int)HF_MOUNT_DIR == (int)HF_CELL_MOUNT_DIR &&
                   (int)HF_MOUNT_TMPFS == (int)HF_CELL_MOUNT_TMPFS,
               "kinds of mounts travel as numbers");
_Static_assert(HF_BOX_MOUNTS_MAX <= HF_CELL_MOUNTS_MAX, "a cell takes every mount that a spec can hold");

/* The longest name below RUN: "/4294967295/envd.sock". */
#define RUN_SUFFIX_MAX 22

const char *hf_box_cause_name(enum hf_box_cause cause)
{
    switch (cause) {
    case HF_BOX_EXITED:
        return "exited";
    case HF_BOX_OOM:
        return "oom";
    case HF_BOX_KILLED:
        return "killed";
    case HF_BOX_LOST:
        return "supervisor lost";
    }
    return "unknown";
}

const char *hf_box_sandbox_id(const struct hf_box *box)
{
    return box->spec.sandbox_id;
}

const char *hf_box_control_socket(const struct hf_box *box)
{
    return box->ctl_path;
}

const char *hf_box_envd_socket(const struct hf_box *box)
{
    return box->envd_path;
}

uint64_t hf_box_disk_bytes(const struct hf_box *box)
{
    return box->spec.disk_bytes;
}

static void caps(struct hf_driver *base, struct hf_driver_caps *ret)
{
    const struct cell_driver *d = cell_of(base);
    memset(ret, 0, sizeof(*ret));
    ret->memory_limit = hf_cg_has(&d->cg, HF_CG_MEMORY);
    ret->cpu_limit = hf_cg_has(&d->cg, HF_CG_CPU);
    ret->pids_limit = hf_cg_has(&d->cg, HF_CG_PIDS);
    ret->io_limit = hf_cg_has(&d->cg, HF_CG_IO);
    ret->disk_quota = true;
    ret->reflink = d->reflink;
    ret->warm_pool = true;
    ret->network = d->fabric.ns[0] != '\0';
    ret->pause = hf_cg_has(&d->cg, HF_CG_FREEZER);
    ret->snapshot_memory = ret->pause && d->criu_path[0];
    ret->isolation = "shared-kernel";
    const struct {
        bool present;
        const char *text;
    } parts[] = {
        {ret->memory_limit, "memory limits (cgroup controller memory)"},
        {ret->cpu_limit, "cpu limits (cgroup controller cpu)"},
        {ret->pids_limit, "process limits (cgroup controller pids)"},
        {ret->io_limit, "io limits (cgroup controller io or blkio)"},
        {ret->reflink, "reflink in the disk pool"},
        {ret->pause, "pauses (cgroup freezer)"},
        {ret->snapshot_memory, "memory images (CRIU, see holdfast doctor)"},
        {ret->network, "a network for sandboxes (see holdfast doctor)"},
    };
    size_t n = 0;
    for (size_t i = 0; i < HF_ARRAY_LEN(parts); i++)
        if (!parts[i].present && n < sizeof(ret->missing))
            n += (size_t)snprintf(ret->missing + n, sizeof(ret->missing) - n, "%s%s", n ? "; " : "",
                                  parts[i].text);
}

static void report_late(void *arg)
{
    cell_report_end(arg);
}

static void replugged(void *arg, const struct hf_err *err)
{
    (void)arg;
    if (err)
        hf_log_warn("an adopted sandbox has no network", "cause=%s", hf_log_quote(err->msg));
}

static void adopt(struct hf_driver *base, struct hf_box *box)
{
    struct cell_driver *d = cell_of(base);
    /* Nothing happens, unless somebody took the fabric away while no daemon was there. */
    if (box->state == CELL_RUNNING && box->spec.network && d->fabric.ns[0])
        cell_network(base, box, true, replugged, NULL);
    if (!box->spec.sandbox_id[0]) { /* a member of the last daemon's pool */
        box->warm = true;
        if (cell_pool_fits(box))
            cell_pool_add(box);
        else
            cell_box_remove(box, NULL, NULL);
        return;
    }
    box->ours = true;
    if (box->state == CELL_ENDED)
        cell_defer(d->base.loop, report_late, box);
}

static void destroy(struct hf_driver *base, struct hf_box *box, hf_done_cb cb, void *arg)
{
    cell_box_remove(box, cb, arg);
}

static void set_warm(struct hf_driver *base, const char *template_id, uint32_t count)
{
    cell_pool_set(cell_of(base), template_id, count);
}

/* ---- close ---- */

static void free_driver(struct cell_driver *d)
{
    free(d->data_dir);
    free(d->run_dir);
    free(d->shim_path);
    free(d->envd_path);
    free(d->criu_path);
    free(d);
}

static void close_final(void *arg)
{
    struct cell_driver *d = arg;
    hf_done_cb cb = d->close_cb;
    void *cb_arg = d->close_arg;
    free_driver(d);
    cb(cb_arg, NULL);
}

void cell_close_if_idle(struct cell_driver *d)
{
    if (!d->closing || d->closed || d->jobs || d->starting)
        return;
    hf_list_foreach(it, &d->boxes)
    {
        if (hf_list_entry(it, struct hf_box, link)->state == CELL_REMOVING)
            return;
    }
    d->closed = true;
    while (!hf_list_empty(&d->boxes))
        cell_box_free(hf_list_entry(d->boxes.next, struct hf_box, link));
    hf_cg_unprepare(&d->cg); /* stays while a cell is in it */
    cell_numbers_close(d);
    /* After the callbacks of requests that were just failed: they may look at the driver. */
    cell_defer(d->base.loop, close_final, d);
}

void cell_close_soon(void *arg)
{
    cell_close_if_idle(arg);
}

static void close_driver(struct hf_driver *base, bool kill_pool, hf_done_cb cb, void *arg)
{
    struct cell_driver *d = cell_of(base);
    const struct hf_err err = {.r = -ECANCELED, .msg = "the daemon is stopping"};
    d->closing = true;
    d->close_kill_pool = kill_pool;
    d->close_cb = cb;
    d->close_arg = arg;
    cell_timer_free(&d->warm_retry);
    cell_timer_free(&d->warm_quiet);
    while (!hf_list_empty(&d->queue)) {
        struct hf_box *box = hf_list_entry(d->queue.next, struct hf_box, turn);
        hf_list_del(&box->turn);
        cell_box_fail(box, &err);
    }
    if (kill_pool)
        cell_pool_empty(d);
    cell_defer(base->loop, cell_close_soon, d);
}

/* ---- new ---- */

/* "holdfast/" and the 8 hex characters that RUN ends with, or such of its path. */
static void name_group(const char *run_dir, char *out, size_t cap)
{
    const char *slash = strrchr(run_dir, '/');
    const char *last = slash ? slash + 1 : run_dir;
    unsigned char sum[HF_SHA256_LEN];
    char hex[9];
    if (strlen(last) == 8 && strspn(last, "0123456789abcdef") == 8) {
        memcpy(hex, last, sizeof(hex));
    } else {
        hf_sha256_of(run_dir, strlen(run_dir), sum);
        hf_hex(sum, 4, hex);
    }
    (void)snprintf(out, cap, "holdfast/%s", hex);
}

static int check_program(const char *path, const char *what, struct hf_err *err)
{
    if (path[0] != '/' || access(path, X_OK) < 0)
        return hf_err_set(err, -ENOENT, "cannot execute %s at %s", what, path);
    return 0;
}

static int check_config(const struct hf_driver_config *cfg, struct hf_err *err)
{
    if (geteuid() != 0)
        return hf_err_set(err, -EPERM, "the cell driver needs root: start holdfast serve as root");
    if (cfg->run_dir[0] != '/' || cfg->data_dir[0] != '/')
        return hf_err_set(err, -EINVAL, "the data and run directories must be absolute paths");
    struct sockaddr_un addr;
    if (strlen(cfg->run_dir) + RUN_SUFFIX_MAX >= sizeof(addr.sun_path) ||
        strlen(cfg->data_dir) + RUN_SUFFIX_MAX + sizeof("/pool/blank") >= HF_CELL_PATH_MAX ||
        strlen(cfg->cgroup_root) >= HF_CG_ROOT_MAX || strlen(cfg->envd_path) >= HF_CELL_PATH_MAX ||
        (cfg->criu_path && strlen(cfg->criu_path) >= HF_CELL_PATH_MAX))
        return hf_err_set(err, -ENAMETOOLONG, "the directory names are too long (run directory: at most %zu)",
                          sizeof(addr.sun_path) - RUN_SUFFIX_MAX - 1);
    int r = check_program(cfg->shim_path, "holdfast-shim", err);
    return r == 0 ? check_program(cfg->envd_path, "holdfast-envd", err) : r;
}

static int prepare(struct cell_driver *d, const struct hf_driver_config *cfg, struct hf_err *err)
{
    char group[HF_CG_GROUP_MAX];
    hf_auto_free char *cells = hf_xasprintf("%s/pool/cells", cfg->data_dir);
    int r = hf_mkdir_p(cfg->run_dir, 0755);
    if (r == 0 && chmod(cfg->run_dir, 0700) < 0)
        r = -errno;
    if (r < 0)
        return hf_err_set(err, r, "cannot make %s: %s", cfg->run_dir, strerror(-r));
    r = hf_disk_pool_open(cfg->data_dir, cfg->pool_bytes, &d->reflink, err);
    if (r < 0)
        return r;
    r = hf_mkdir_p(cells, 0700);
    if (r < 0)
        return hf_err_set(err, r, "cannot make %s: %s", cells, strerror(-r));
    cell_numbers_open(d);
    name_group(cfg->run_dir, group, sizeof(group));
    hf_cg_probe(cfg->cgroup_root, group, &d->cg);
    return hf_cg_prepare(&d->cg, err);
}

static int set_fabric(struct cell_driver *d, const struct hf_net_config *net, struct hf_err *err)
{
    struct hf_cell_fabric *f = &d->fabric;
    if (!net)
        return 0;
    struct hf_net_addrs probe;
    if (hf_net_addrs(net, 1, &probe) < 0)
        return hf_err_set(err, -EINVAL, "the subnets of the network are not valid: %s, %s", net->subnet4,
                          net->subnet6);
    (void)snprintf(f->subnet4, sizeof(f->subnet4), "%s", net->subnet4);
    (void)snprintf(f->subnet6, sizeof(f->subnet6), "%s", net->subnet6);
    f->ipv6 = net->ipv6;
    hf_net_ns_path(net->id, f->ns);
    return 0;
}

static unsigned starts_max(void)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned n = (unsigned)(cpus > 0 ? cpus : 1) * CELL_STARTS_PER_CPU;
    return HF_MAX(CELL_STARTS_MIN, HF_MIN(n, CELL_STARTS_MAX));
}

static const struct hf_driver_ops cell_ops = {
    .name = "cell",
    .caps = caps,
    .scan = cell_scan,
    .adopt = adopt,
    .create = cell_create,
    .destroy = destroy,
    .dial = cell_dial,
    .stats = cell_stats,
    .network = cell_network,
    .freeze = cell_freeze,
    .save = cell_save,
    .close = close_driver,
    .set_warm = set_warm,
};

static void first_fill(void *arg)
{
    cell_pool_fill(arg);
}

int hf_cell_driver_new(uv_loop_t *loop, const struct hf_driver_config *cfg, struct hf_driver **ret,
                       struct hf_err *err)
{
    int r = check_config(cfg, err);
    if (r < 0)
        return r;
    struct cell_driver *d = hf_new(struct cell_driver);
    d->base.ops = &cell_ops;
    d->base.loop = loop;
    hf_list_init(&d->boxes);
    hf_list_init(&d->queue);
    hf_list_init(&d->warm);
    d->data_dir = hf_xstrdup(cfg->data_dir);
    d->run_dir = hf_xstrdup(cfg->run_dir);
    d->shim_path = hf_xstrdup(cfg->shim_path);
    d->envd_path = hf_xstrdup(cfg->envd_path);
    d->criu_path = hf_xstrdup(cfg->criu_path && access(cfg->criu_path, X_OK) == 0 ? cfg->criu_path : "");
    d->starts_max = starts_max();
    d->warm_target = cfg->warm_pool;
    (void)snprintf(d->warm_template, sizeof(d->warm_template), "%s",
                   cfg->warm_template ? cfg->warm_template : "");
    r = set_fabric(d, cfg->net, err);
    if (r == 0)
        r = prepare(d, cfg, err);
    if (r < 0) {
        free_driver(d);
        return r;
    }
    cell_defer(loop, first_fill, d);
    *ret = &d->base;
    return 0;
}
