/* The box's processes as images on the disk, by CRIU (docs/adr/0017). */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/path.h"
#include "engine/shim/criu.h"
#include "engine/shim/memory.h"
#include "engine/shim/shim.h"

#define GHOST_LIMIT (1u << 30) /* bytes of one deleted file that is still open */
#define MOUNTINFO_MAX (1u << 20)

/* /proc writes space, tab, newline and backslash of a path as octal numbers. */
static void unescape(char *s)
{
    char *out = s;
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] && s[3]) {
            *out++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 3;
        } else {
            *out++ = *s;
        }
    }
    *out = '\0';
}

int shim_each_mount(pid_t pid, int (*fn)(void *arg, const char *path), void *arg)
{
    char path[48];
    hf_auto_free char *text = NULL;
    (void)snprintf(path, sizeof(path), "/proc/%d/mountinfo", (int)pid);
    int r = hf_read_file(path, MOUNTINFO_MAX, &text, NULL);
    char *save = NULL;
    for (char *line = r == 0 ? strtok_r(text, "\n", &save) : NULL; line && r == 0;
         line = strtok_r(NULL, "\n", &save)) {
        char *field = line;
        for (int i = 0; field && i < 4; i++) {
            field = strchr(field, ' ');
            field = field ? field + 1 : NULL;
        }
        char *end = field ? strchr(field, ' ') : NULL;
        if (!end)
            continue;
        *end = '\0';
        unescape(field);
        if (strcmp(field, "/") != 0)
            r = fn(arg, field);
    }
    return r;
}

/* ---- what comes from outside: told to CRIU at the dump, given again at the restore ---- */

const char *const shim_outside_roles[SHIM_OUTSIDE_N] = {
    [SHIM_OUTSIDE_STDERR] = "fd_stderr", [SHIM_OUTSIDE_CTL] = "fd_ctl",
    [SHIM_OUTSIDE_ENVD] = "fd_envd",     [SHIM_OUTSIDE_CG] = "fd_cg_mem",
    [SHIM_OUTSIDE_CG + 1] = "fd_cg_max", [SHIM_OUTSIDE_CG + 2] = "fd_cg_stat",
    [SHIM_OUTSIDE_CG + 3] = "fd_cg_cpu", [SHIM_OUTSIDE_CG + 4] = "fd_cg_user",
};

static int read_link(pid_t pid, int fd, char *out, size_t cap)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
    ssize_t n = readlink(path, out, cap - 1);
    out[HF_MAX(n, (ssize_t)0)] = '\0';
    return n < 0 ? -errno : 0;
}

/* The key by which CRIU knows descriptor fd of PID 1; "" when it is not open. */
static void outside_key(pid_t pid, int fd, char *out, size_t cap)
{
    char path[64], link[256];
    struct stat st;
    out[0] = '\0';
    if (read_link(pid, fd, link, sizeof(link)) < 0)
        return;
    if (hf_str_starts(hf_str_c(link), "pipe:[") || hf_str_starts(hf_str_c(link), "socket:[")) {
        (void)snprintf(out, cap, "%s", link);
        return;
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
    if (stat(path, &st) < 0)
        return;
    hf_auto_free char *info = NULL;
    (void)snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", (int)pid, fd);
    if (hf_read_file(path, 4096, &info, NULL) < 0)
        return;
    char *at = strstr(info, "mnt_id:");
    if (at)
        (void)snprintf(out, cap, "file[%lx:%" PRIx64 "]", strtoul(at + 7, NULL, 10), (uint64_t)st.st_ino);
}

static int first_fd(int role)
{
    return 2 + role; /* inside.c places them: stderr 2, ctl 3, envd 4, cgroup 5 to 9 */
}

static int add_mount_fact(void *arg, const char *path)
{
    return hf_kv_add(arg, "at", path);
}

/* Whether the file behind a descriptor of PID 1 was made non-blocking: the one that it gets anew must be so
 * too. */
static bool is_nonblocking(pid_t pid, int fd)
{
    char path[64];
    hf_auto_free char *info = NULL;
    (void)snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", (int)pid, fd);
    const char *at = hf_read_file(path, 4096, &info, NULL) == 0 ? strstr(info, "flags:") : NULL;
    return at && (strtoul(at + 6, NULL, 8) & O_NONBLOCK);
}

int shim_memory_facts(const struct shim *s, struct hf_buf *b)
{
    int r = hf_kv_add_u64(b, SHIM_LISTENERS_NONBLOCK, is_nonblocking(s->pid, first_fd(SHIM_OUTSIDE_CTL)));
    for (int role = 0; r == 0 && role < SHIM_OUTSIDE_N; role++) {
        char key[64];
        outside_key(s->pid, first_fd(role), key, sizeof(key));
        if (key[0])
            r = hf_kv_add(b, shim_outside_roles[role], key);
    }
    return r == 0 ? shim_each_mount(s->pid, add_mount_fact, b) : r;
}

/* ---- dump ---- */

struct mounts {
    struct hf_criu_request *q;
    unsigned n;
};

static int add_mount(void *arg, const char *path)
{
    struct mounts *m = arg;
    hf_auto_free char *text = hf_xasprintf("mnt[%s]:m%u", path, m->n++);
    hf_criu_opt_text(m->q, CRIU_EXTERNAL, text);
    return 0;
}

static int fill_request(struct shim *s, struct hf_criu_request *q, int mem_fd, int work_fd)
{
    char cgroup[HF_CELL_PATH_MAX * 2];
    const struct {
        enum hf_criu_opt opt;
        uint64_t value;
    } ints[] = {
        {CRIU_IMAGES_DIR_FD, (uint64_t)mem_fd},
        {CRIU_WORK_DIR_FD, (uint64_t)work_fd},
        {CRIU_PID, (uint64_t)s->pid},
        {CRIU_LEAVE_RUNNING, 1},
        {CRIU_FILE_LOCKS, 1},
        {CRIU_LOG_LEVEL, 1},
        {CRIU_LINK_REMAP, 1},
        {CRIU_FORCE_IRMAP, 1},
        {CRIU_MANAGE_CGROUPS_MODE, 0},
        {CRIU_GHOST_LIMIT, GHOST_LIMIT},
        {CRIU_EMPTY_NS, CLONE_NEWNET},
        {CRIU_TCP_CLOSE, 1},
        {CRIU_NETWORK_LOCK, 3},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(ints); i++)
        hf_criu_opt_int(q, ints[i].opt, ints[i].value);
    /* Where files are looked for that are watched (inotify tells their numbers only, and an overlay opens
     * none by number). Nothing is searched when nothing is watched. */
    static const char *const watched[] = {"/home", "/workspace", "/root", "/tmp",
                                          "/srv",  "/opt",       "/var",  "/run"};
    for (size_t i = 0; i < HF_ARRAY_LEN(watched); i++)
        hf_criu_opt_text(q, CRIU_IRMAP_SCAN_PATH, watched[i]);
    hf_criu_opt_text(q, CRIU_LOG_FILE, SHIM_DUMP_LOG);
    hf_cg_freezer_path(&s->cg, s->spec.n, cgroup, sizeof(cgroup));
    hf_criu_opt_text(q, CRIU_FREEZE_CGROUP, cgroup);
    for (int role = SHIM_OUTSIDE_CG; role < SHIM_OUTSIDE_N; role++) {
        char key[64];
        outside_key(s->pid, first_fd(role), key, sizeof(key));
        if (key[0])
            hf_criu_opt_text(q, CRIU_EXTERNAL, key);
    }
    struct mounts m = {q, 0};
    return shim_each_mount(s->pid, add_mount, &m);
}

/* We have joined the box's network and uts namespaces. CRIU takes what it shares with the processes for what
 * the host has anyway, and would leave these two out. Its probes of the kernel want a loopback. */
static int leave_namespaces(void *arg)
{
    struct hf_err err;
    (void)arg;
    (void)umask(022); /* restores read the images as the box's root; the directories above keep others out */
    return unshare(CLONE_NEWNET | CLONE_NEWUTS) < 0 ? -errno : shim_loopback_up(&err);
}

static int make_mem_dir(int dir_fd, struct hf_err *err)
{
    if (mkdirat(dir_fd, "mem", 0755) < 0 && errno != EEXIST)
        return hf_err_set(err, -errno, "cannot make the directory of the images: %s", strerror(errno));
    hf_auto_close int fd = openat(dir_fd, "mem", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fchmod(fd, 0755) < 0)
        return hf_err_set(err, -errno, "cannot open the directory of the images: %s", strerror(errno));
    return hf_take_fd(&fd);
}

int shim_memory_dump(struct shim *s, int dir_fd, struct hf_err *err)
{
    if (!s->spec.criu[0])
        return hf_err_set(err, -EOPNOTSUPP, "this host has no CRIU: ./dev setup, or see holdfast doctor");
    hf_auto_close int mem = make_mem_dir(dir_fd, err);
    if (mem < 0)
        return mem;
    hf_auto_close int work = open(s->spec.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (work < 0)
        return hf_err_set(err, -errno, "cannot open %s: %s", s->spec.dir, strerror(errno));
    struct hf_criu_request q = {
        .type = CRIU_DUMP, .opts = HF_BUF_INIT(HF_CRIU_MSG_MAX), .before_exec = leave_namespaces};
    int r = fill_request(s, &q, mem, work);
    hf_killpoint("shim.save-dump");
    if (r == 0)
        r = hf_criu_run(s->spec.criu, &q, work, SHIM_DUMP_LOG, err);
    else
        r = hf_err_set(err, r, "cannot describe the sandbox to CRIU: %s", strerror(-r));
    hf_criu_request_done(&q);
    if (r == 0) {
        hf_killpoint("shim.save-dumped");
        return shim_tmpfs_save(s, dir_fd, err);
    }
    if (r != -EIO)
        return r;
    err->r = -EOPNOTSUPP;
    return hf_err_wrap(err, "the processes can't be saved");
}
