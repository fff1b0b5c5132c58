#include "engine/shim/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#include "base/clock.h"
#include "base/path.h"

#define PATH_CAP (HF_CG_ROOT_MAX + HF_CG_GROUP_MAX + 96)
#define FILE_MAX 16384u
#define CPU_PERIOD_US 100000u

static const char *const v1_dirs[HF_CG_CTL_N] = {"memory", "cpu", "cpuacct", "pids", "freezer", "blkio"};
static const char *const v2_names[HF_CG_CTL_N] = {"memory", "cpu", NULL, "pids", NULL, "io"};

#define FREEZE_PAUSE_MIN_NS 20000
#define FREEZE_PAUSE_MAX_NS 2000000

/* <root>/[ctl/]<group>[/<n>][/leaf]; n = 0: the group itself. */
static void build_path(const struct hf_cg *cg, enum hf_cg_ctl c, uint32_t n, const char *leaf, char *out)
{
    char num[16] = "";
    if (n)
        (void)snprintf(num, sizeof(num), "/%" PRIu32, n);
    (void)snprintf(out, PATH_CAP, "%s%s%s/%s%s%s%s", cg->root, cg->version == 1 ? "/" : "",
                   cg->version == 1 ? v1_dirs[c] : "", cg->group, num, leaf ? "/" : "", leaf ? leaf : "");
}

static bool is_cgroup_dir(const char *root, const char *sub, const char *file)
{
    char path[PATH_CAP];
    (void)snprintf(path, sizeof(path), "%s/%s%s%s", root, sub, *sub ? "/" : "", file);
    return access(path, F_OK) == 0;
}

static bool has_word(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = text; (p = strstr(p, word)); p += n)
        if ((p == text || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\n' || p[n] == '\0'))
            return true;
    return false;
}

void hf_cg_probe(const char *root, const char *group, struct hf_cg *ret)
{
    memset(ret, 0, sizeof(*ret));
    (void)snprintf(ret->root, sizeof(ret->root), "%s", root);
    (void)snprintf(ret->group, sizeof(ret->group), "%s", group);
    char path[PATH_CAP];
    hf_auto_free char *names = NULL;
    (void)snprintf(path, sizeof(path), "%s/cgroup.controllers", root);
    if (hf_read_file(path, FILE_MAX, &names, NULL) == 0) {
        ret->version = 2;
        for (unsigned c = 0; c < HF_CG_CTL_N; c++)
            if (v2_names[c] && has_word(names, v2_names[c]))
                ret->present |= 1u << c;
        /* cpu.stat counts time on v2 whether or not a controller is on; freezing is built in. */
        ret->present |= 1u << HF_CG_CPUACCT | 1u << HF_CG_FREEZER;
        return;
    }
    for (unsigned c = 0; c < HF_CG_CTL_N; c++)
        if (is_cgroup_dir(root, v1_dirs[c], "cgroup.procs"))
            ret->present |= 1u << c;
    ret->version = ret->present ? 1 : 0;
}

/* mkdir of <group> and its parent below one hierarchy. */
static int make_group(const struct hf_cg *cg, enum hf_cg_ctl c)
{
    char path[PATH_CAP];
    build_path(cg, c, 0, NULL, path);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return -errno;
    *slash = '/';
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return -errno;
    return 0;
}

/* Each controller by itself: one that can't be handed down must not take the others with it. */
static void v2_enable(const struct hf_cg *cg, const char *dir, uint32_t *ok)
{
    char path[PATH_CAP + 32], word[16];
    (void)snprintf(path, sizeof(path), "%s/cgroup.subtree_control", dir);
    for (unsigned c = 0; c < HF_CG_CTL_N; c++) {
        if (!v2_names[c] || !hf_cg_has(cg, (enum hf_cg_ctl)c))
            continue;
        (void)snprintf(word, sizeof(word), "+%s", v2_names[c]);
        if (hf_write_existing(path, word) < 0)
            *ok &= ~(1u << c);
    }
}

static int v2_prepare(struct hf_cg *cg, struct hf_err *err)
{
    int r = make_group(cg, HF_CG_MEMORY);
    if (r < 0)
        return hf_err_set(err, r, "cannot make the cgroup %s/%s: %s", cg->root, cg->group, strerror(-r));
    char path[PATH_CAP];
    uint32_t ok = cg->present;
    v2_enable(cg, cg->root, &ok);
    cg->present = ok;
    build_path(cg, HF_CG_MEMORY, 0, NULL, path);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    v2_enable(cg, path, &ok);
    *slash = '/';
    v2_enable(cg, path, &ok);
    cg->present = ok;
    return 0;
}

int hf_cg_prepare(struct hf_cg *cg, struct hf_err *err)
{
    if (cg->version == 2)
        return v2_prepare(cg, err);
    for (unsigned c = 0; c < HF_CG_CTL_N; c++)
        if (hf_cg_has(cg, (enum hf_cg_ctl)c) && make_group(cg, (enum hf_cg_ctl)c) < 0)
            cg->present &= ~(1u << c);
    if (!cg->present)
        cg->version = 0;
    return 0;
}

void hf_cg_unprepare(const struct hf_cg *cg)
{
    char path[PATH_CAP];
    for (unsigned c = 0; cg->version && c < HF_CG_CTL_N; c++) {
        if (cg->version == 1 && !hf_cg_has(cg, (enum hf_cg_ctl)c))
            continue;
        build_path(cg, (enum hf_cg_ctl)c, 0, NULL, path);
        (void)rmdir(path);
        *strrchr(path, '/') = '\0';
        (void)rmdir(path); /* stays while another data directory uses it */
    }
}

static int make_dir(const struct hf_cg *cg, enum hf_cg_ctl c, uint32_t n, const char *leaf,
                    struct hf_err *err)
{
    char path[PATH_CAP];
    build_path(cg, c, n, leaf, path);
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return hf_err_set(err, -errno, "cannot make the cgroup %s: %s", path, strerror(errno));
    return 0;
}

static int write_file(const struct hf_cg *cg, enum hf_cg_ctl c, uint32_t n, const char *leaf,
                      const char *value, struct hf_err *err)
{
    char path[PATH_CAP];
    build_path(cg, c, n, leaf, path);
    int r = hf_write_existing(path, value);
    return r < 0 ? hf_err_set(err, r, "cannot write \"%s\" to %s: %s", value, path, strerror(-r)) : 0;
}

static int v2_create(const struct hf_cg *cg, uint32_t n, struct hf_err *err)
{
    int r = make_dir(cg, HF_CG_MEMORY, n, NULL, err);
    if (r < 0 || !hf_cg_has(cg, HF_CG_PIDS))
        return r;
    r = make_dir(cg, HF_CG_MEMORY, n, "user", err);
    if (r == 0)
        r = write_file(cg, HF_CG_MEMORY, n, "user/cgroup.type", "threaded", err);
    return r == 0 ? write_file(cg, HF_CG_MEMORY, n, "cgroup.subtree_control", "+pids", err) : r;
}

static int create_dirs(const struct hf_cg *cg, uint32_t n, struct hf_err *err)
{
    if (cg->version == 2)
        return v2_create(cg, n, err);
    int r = 0;
    for (unsigned c = 0; r == 0 && c < HF_CG_CTL_N; c++)
        if (hf_cg_has(cg, (enum hf_cg_ctl)c))
            r = make_dir(cg, (enum hf_cg_ctl)c, n, NULL, err);
    if (r == 0 && hf_cg_has(cg, HF_CG_PIDS))
        r = make_dir(cg, HF_CG_PIDS, n, "user", err);
    return r;
}

int hf_cg_create(const struct hf_cg *cg, uint32_t n, struct hf_err *err)
{
    int r = create_dirs(cg, n, err);
    if (r != -ENOENT)
        return r;
    /* Another daemon of this host has just removed the empty parent. */
    struct hf_cg again = *cg;
    r = hf_cg_prepare(&again, err);
    return r < 0 ? r : create_dirs(cg, n, err);
}

/* v1: the limit with swap may never be below the limit without, so the order depends on the direction. */
static int v1_memory(const struct hf_cg *cg, uint32_t n, const char *bytes, struct hf_err *err)
{
    (void)write_file(cg, HF_CG_MEMORY, n, "memory.memsw.limit_in_bytes", bytes, NULL);
    int r = write_file(cg, HF_CG_MEMORY, n, "memory.limit_in_bytes", bytes, err);
    if (r == 0) /* absent without swap accounting: then swap is the host's business */
        (void)write_file(cg, HF_CG_MEMORY, n, "memory.memsw.limit_in_bytes", bytes, NULL);
    return r;
}

static int v1_io(const struct hf_cg *cg, uint32_t n, uint64_t bps, dev_t dev, struct hf_err *err)
{
    char value[80];
    (void)snprintf(value, sizeof(value), "%u:%u %" PRIu64, major(dev), minor(dev), bps);
    int r = write_file(cg, HF_CG_IO, n, "blkio.throttle.read_bps_device", value, err);
    return r == 0 ? write_file(cg, HF_CG_IO, n, "blkio.throttle.write_bps_device", value, err) : r;
}

static int v2_io(const struct hf_cg *cg, uint32_t n, uint64_t bps, dev_t dev, struct hf_err *err)
{
    char value[120];
    (void)snprintf(value, sizeof(value), "%u:%u rbps=%" PRIu64 " wbps=%" PRIu64, major(dev), minor(dev), bps,
                   bps);
    return write_file(cg, HF_CG_IO, n, "io.max", value, err);
}

static int limit_pids(const struct hf_cg *cg, uint32_t n, uint32_t max, struct hf_err *err)
{
    char value[32];
    (void)snprintf(value, sizeof(value), "%" PRIu64, (uint64_t)max + HF_CG_PIDS_RESERVE);
    int r = write_file(cg, HF_CG_PIDS, n, "pids.max", value, err);
    if (r < 0)
        return r;
    (void)snprintf(value, sizeof(value), "%" PRIu32, max);
    return write_file(cg, HF_CG_PIDS, n, "user/pids.max", value, err);
}

static int limit_memory(const struct hf_cg *cg, uint32_t n, uint64_t max, struct hf_err *err)
{
    char value[32];
    (void)snprintf(value, sizeof(value), "%" PRIu64, max);
    if (cg->version == 1)
        return v1_memory(cg, n, value, err);
    (void)write_file(cg, HF_CG_MEMORY, n, "memory.swap.max", "0", NULL); /* absent without swap accounting */
    return write_file(cg, HF_CG_MEMORY, n, "memory.max", value, err);
}

static int limit_cpu(const struct hf_cg *cg, uint32_t n, uint32_t millis, struct hf_err *err)
{
    char value[48];
    uint64_t quota = (uint64_t)millis * (CPU_PERIOD_US / 1000);
    if (cg->version == 1) {
        (void)snprintf(value, sizeof(value), "%" PRIu64, quota);
        return write_file(cg, HF_CG_CPU, n, "cpu.cfs_quota_us", value,
                          err); /* the period's default is ours */
    }
    (void)snprintf(value, sizeof(value), "%" PRIu64 " %u", quota, CPU_PERIOD_US);
    return write_file(cg, HF_CG_CPU, n, "cpu.max", value, err);
}

int hf_cg_limit(const struct hf_cg *cg, uint32_t n, const struct hf_cg_limits *l, dev_t disk_dev,
                struct hf_err *err)
{
    int r = 0;
    if (hf_cg_has(cg, HF_CG_CPU))
        r = limit_cpu(cg, n, l->cpu_millis, err);
    if (r == 0 && hf_cg_has(cg, HF_CG_MEMORY))
        r = limit_memory(cg, n, l->memory_bytes, err);
    if (r == 0 && hf_cg_has(cg, HF_CG_PIDS))
        r = limit_pids(cg, n, l->pids_max, err);
    if (r == 0 && l->io_bps && hf_cg_has(cg, HF_CG_IO))
        r = cg->version == 1 ? v1_io(cg, n, l->io_bps, disk_dev, err)
                             : v2_io(cg, n, l->io_bps, disk_dev, err);
    return r;
}

int hf_cg_enter(const struct hf_cg *cg, uint32_t n, pid_t pid, struct hf_err *err)
{
    char value[16];
    (void)snprintf(value, sizeof(value), "%d", (int)pid);
    if (cg->version == 2)
        return write_file(cg, HF_CG_MEMORY, n, "cgroup.procs", value, err);
    int r = 0;
    for (unsigned c = 0; r == 0 && c < HF_CG_CTL_N; c++)
        if (hf_cg_has(cg, (enum hf_cg_ctl)c))
            r = write_file(cg, (enum hf_cg_ctl)c, n, "cgroup.procs", value, err);
    return r;
}

int hf_cg_enter_user(const struct hf_cg *cg, uint32_t n, pid_t pid, struct hf_err *err)
{
    char value[16];
    (void)snprintf(value, sizeof(value), "%d", (int)pid);
    return hf_cg_has(cg, HF_CG_PIDS) ? write_file(cg, HF_CG_PIDS, n, "user/cgroup.procs", value, err) : 0;
}

static int open_file(const struct hf_cg *cg, enum hf_cg_ctl c, uint32_t n, const char *leaf, int flags)
{
    char path[PATH_CAP];
    if (!hf_cg_has(cg, c))
        return -1;
    build_path(cg, c, n, leaf, path);
    return open(path, flags | O_CLOEXEC);
}

int hf_cg_clone_fd(const struct hf_cg *cg, uint32_t n)
{
    char path[PATH_CAP];
    if (cg->version != 2)
        return -1;
    build_path(cg, HF_CG_MEMORY, n, NULL, path);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

void hf_cg_open(const struct hf_cg *cg, uint32_t n, struct hf_cg_fds *ret)
{
    bool v1 = cg->version == 1;
    ret->mem_current =
        open_file(cg, HF_CG_MEMORY, n, v1 ? "memory.usage_in_bytes" : "memory.current", O_RDONLY);
    ret->mem_max = open_file(cg, HF_CG_MEMORY, n, v1 ? "memory.limit_in_bytes" : "memory.max", O_RDONLY);
    ret->mem_stat = open_file(cg, HF_CG_MEMORY, n, "memory.stat", O_RDONLY);
    ret->cpu = open_file(cg, HF_CG_CPUACCT, n, v1 ? "cpuacct.usage" : "cpu.stat", O_RDONLY);
    ret->user_threads = open_file(cg, HF_CG_PIDS, n, v1 ? "user/tasks" : "user/cgroup.threads", O_WRONLY);
}

void hf_cg_close(struct hf_cg_fds *fds)
{
    fds->mem_current = hf_close(fds->mem_current);
    fds->mem_max = hf_close(fds->mem_max);
    fds->mem_stat = hf_close(fds->mem_stat);
    fds->cpu = hf_close(fds->cpu);
    fds->user_threads = hf_close(fds->user_threads);
}

int hf_cg_oom_watch(const struct hf_cg *cg, uint32_t n)
{
    if (cg->version == 2)
        return open_file(cg, HF_CG_MEMORY, n, "memory.events", O_RDONLY);
    hf_auto_close int control = open_file(cg, HF_CG_MEMORY, n, "memory.oom_control", O_RDONLY);
    hf_auto_close int event = control < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    char text[32];
    if (event < 0)
        return -1;
    (void)snprintf(text, sizeof(text), "%d %d", event, control);
    if (write_file(cg, HF_CG_MEMORY, n, "cgroup.event_control", text, NULL) < 0)
        return -1;
    return hf_take_fd(&event);
}

static char *read_text(const struct hf_cg *cg, enum hf_cg_ctl c, uint32_t n, const char *leaf)
{
    char path[PATH_CAP], *text = NULL;
    if (!hf_cg_has(cg, c))
        return NULL;
    build_path(cg, c, n, leaf, path);
    return hf_read_file(path, FILE_MAX, &text, NULL) < 0 ? NULL : text;
}

static uint64_t leading_number(const char *p)
{
    uint64_t v = 0;
    size_t n = strspn(p, "0123456789");
    return hf_parse_u64((struct hf_str){p, n}, UINT64_MAX, &v) < 0 ? 0 : v;
}

static uint64_t read_number(const struct hf_cg *cg, enum hf_cg_ctl c, uint32_t n, const char *leaf)
{
    hf_auto_free char *text = read_text(cg, c, n, leaf);
    return text ? leading_number(text) : 0;
}

/* The number after "key " at the start of a line. */
static uint64_t read_field(const struct hf_cg *cg, enum hf_cg_ctl c, uint32_t n, const char *leaf,
                           const char *key)
{
    hf_auto_free char *text = read_text(cg, c, n, leaf);
    size_t len = strlen(key);
    for (const char *p = text; p; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, key, len) == 0 && p[len] == ' ')
            return leading_number(p + len + 1);
    }
    return 0;
}

/* v1 says FREEZING until the last one stopped; v2 in cgroup.events. */
static bool is_stopped(const struct hf_cg *cg, uint32_t n)
{
    if (cg->version == 2)
        return read_field(cg, HF_CG_FREEZER, n, "cgroup.events", "frozen") == 1;
    hf_auto_free char *text = read_text(cg, HF_CG_FREEZER, n, "freezer.state");
    return text && hf_str_starts(hf_str_c(text), "FROZEN");
}

bool hf_cg_frozen(const struct hf_cg *cg, uint32_t n)
{
    if (cg->version == 2)
        return read_number(cg, HF_CG_FREEZER, n, "cgroup.freeze") == 1;
    return read_number(cg, HF_CG_FREEZER, n, "freezer.self_freezing") == 1;
}

void hf_cg_freezer_path(const struct hf_cg *cg, uint32_t n, char *out, size_t cap)
{
    char path[PATH_CAP];
    build_path(cg, HF_CG_FREEZER, n, NULL, path);
    (void)snprintf(out, cap, "%s", path);
}

static int set_frozen(const struct hf_cg *cg, uint32_t n, bool frozen, struct hf_err *err)
{
    if (cg->version == 2)
        return write_file(cg, HF_CG_FREEZER, n, "cgroup.freeze", frozen ? "1" : "0", err);
    return write_file(cg, HF_CG_FREEZER, n, "freezer.state", frozen ? "FROZEN" : "THAWED", err);
}

int hf_cg_freeze(const struct hf_cg *cg, uint32_t n, bool frozen, struct hf_err *err)
{
    if (!hf_cg_has(cg, HF_CG_FREEZER))
        return hf_err_set(err, -EOPNOTSUPP, "this host has no cgroup freezer (see holdfast doctor)");
    int r = set_frozen(cg, n, frozen, err);
    if (r < 0 || !frozen)
        return r;
    uint64_t end = hf_mono_ms() + HF_CG_FREEZE_TIMEOUT_MS;
    struct timespec pause = {0, FREEZE_PAUSE_MIN_NS};
    while (!is_stopped(cg, n)) {
        if (hf_mono_ms() >= end) {
            (void)set_frozen(cg, n, false, NULL);
            return hf_err_set(err, -ETIMEDOUT,
                              "the sandbox did not stop within %u ms: a process of it is in an "
                              "uninterruptible wait",
                              HF_CG_FREEZE_TIMEOUT_MS);
        }
        (void)nanosleep(&pause, NULL);
        pause.tv_nsec = HF_MIN(pause.tv_nsec * 2, FREEZE_PAUSE_MAX_NS);
        if (cg->version == 1) /* tasks that were forked meanwhile */
            (void)set_frozen(cg, n, true, NULL);
    }
    return 0;
}

/* SIGKILL to the processes of one directory. */
static void kill_dir(const struct hf_cg *cg, enum hf_cg_ctl c, uint32_t n, const char *leaf)
{
    char path[PATH_CAP];
    build_path(cg, c, n, leaf, path);
    hf_auto_free char *text = NULL;
    size_t len = 0;
    if (hf_read_file(path, 1u << 20, &text, &len) < 0)
        return;
    for (char *p = text, *end; p && *p; p = end ? end + 1 : NULL) {
        end = strchr(p, '\n');
        uint64_t pid;
        struct hf_str s = {p, end ? (size_t)(end - p) : strlen(p)};
        if (hf_parse_u64(s, INT32_MAX, &pid) == 0 && pid > 1)
            (void)kill((pid_t)pid, SIGKILL);
    }
}

void hf_cg_kill(const struct hf_cg *cg, uint32_t n)
{
    if (hf_cg_has(cg, HF_CG_FREEZER))
        (void)set_frozen(cg, n, false, NULL);
    if (cg->version == 2) {
        if (write_file(cg, HF_CG_MEMORY, n, "cgroup.kill", "1", NULL) == 0)
            return;
        kill_dir(cg, HF_CG_MEMORY, n, "cgroup.procs");
        return;
    }
    for (unsigned c = 0; cg->version && c < HF_CG_CTL_N; c++) {
        if (!hf_cg_has(cg, (enum hf_cg_ctl)c))
            continue;
        kill_dir(cg, (enum hf_cg_ctl)c, n, "cgroup.procs");
        if (c == HF_CG_PIDS)
            kill_dir(cg, HF_CG_PIDS, n, "user/cgroup.procs");
    }
}

static int remove_dir(const struct hf_cg *cg, enum hf_cg_ctl c, uint32_t n, const char *leaf)
{
    char path[PATH_CAP];
    build_path(cg, c, n, leaf, path);
    return rmdir(path) < 0 && errno != ENOENT ? -errno : 0;
}

int hf_cg_remove(const struct hf_cg *cg, uint32_t n)
{
    int r = 0;
    if (cg->version == 2) {
        r = remove_dir(cg, HF_CG_MEMORY, n, "user");
        return r == 0 ? remove_dir(cg, HF_CG_MEMORY, n, NULL) : r;
    }
    for (unsigned c = 0; cg->version && c < HF_CG_CTL_N; c++) {
        if (!hf_cg_has(cg, (enum hf_cg_ctl)c))
            continue;
        int one = c == HF_CG_PIDS ? remove_dir(cg, HF_CG_PIDS, n, "user") : 0;
        if (one == 0)
            one = remove_dir(cg, (enum hf_cg_ctl)c, n, NULL);
        r = r < 0 ? r : one;
    }
    return r;
}

char *hf_cg_procs(const struct hf_cg *cg, uint32_t n)
{
    char path[PATH_CAP], *text = NULL;
    for (unsigned c = 0; cg->version && c < HF_CG_CTL_N; c++) {
        if (!hf_cg_has(cg, (enum hf_cg_ctl)c) || (cg->version == 1 && c == HF_CG_PIDS))
            continue; /* PIDS has them in two directories */
        build_path(cg, (enum hf_cg_ctl)c, n, "cgroup.procs", path);
        return hf_read_file(path, 1u << 20, &text, NULL) < 0 ? NULL : text;
    }
    return NULL;
}

uint64_t hf_cg_oom_kills(const struct hf_cg *cg, uint32_t n)
{
    return read_field(cg, HF_CG_MEMORY, n, cg->version == 1 ? "memory.oom_control" : "memory.events",
                      "oom_kill");
}

void hf_cg_read_stats(const struct hf_cg *cg, uint32_t n, struct hf_cg_stats *ret)
{
    bool v1 = cg->version == 1;
    memset(ret, 0, sizeof(*ret));
    if (!cg->version)
        return;
    ret->cpu_ns = v1 ? read_number(cg, HF_CG_CPUACCT, n, "cpuacct.usage")
                     : read_field(cg, HF_CG_CPUACCT, n, "cpu.stat", "usage_usec") * 1000;
    ret->mem_cache = read_field(cg, HF_CG_MEMORY, n, "memory.stat", v1 ? "total_cache" : "file");
    uint64_t all = read_number(cg, HF_CG_MEMORY, n, v1 ? "memory.usage_in_bytes" : "memory.current");
    ret->mem_used = all > ret->mem_cache ? all - ret->mem_cache : 0;
    ret->pids = (uint32_t)read_number(cg, HF_CG_PIDS, n, "pids.current");
    ret->oom_kills = hf_cg_oom_kills(cg, n);
}

void hf_cg_each(const struct hf_cg *cg, void (*fn)(void *arg, uint32_t n), void *arg)
{
    for (unsigned c = 0; cg->version && c < HF_CG_CTL_N; c++) {
        if (!hf_cg_has(cg, (enum hf_cg_ctl)c))
            continue;
        char path[PATH_CAP];
        build_path(cg, (enum hf_cg_ctl)c, 0, NULL, path);
        DIR *d = opendir(path);
        if (!d)
            continue;
        for (struct dirent *e; (e = readdir(d));) {
            uint64_t n;
            if (hf_parse_u64(hf_str_c(e->d_name), UINT32_MAX, &n) == 0 && n)
                fn(arg, (uint32_t)n);
        }
        (void)closedir(d);
        if (cg->version == 2)
            return;
    }
}
