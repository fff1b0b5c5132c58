/* The box's root file system, built by PID 1 inside its own user and mount namespaces.
 *
 * Only descriptors lead to mount points: a template is somebody else's tree and may hold any symbolic link
 * under any name, so each target is opened with openat2 (in root, no links) and mounted by descriptor. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/id.h"
#include "base/path.h"
#include "engine/shim/shim.h"

#define BOX_USER 1000 /* owner of directories that we make for volumes */
#define QUIET (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)
#define RUN_SIZE "64m"
#define BOOT_ID "run/holdfast/boot_id"

struct option {
    const char *key, *value; /* value NULL: a flag */
};

static int new_fs(const char *type, const struct option *options, size_t n, unsigned attrs,
                  struct hf_err *err)
{
    hf_auto_close int fs = fsopen(type, FSOPEN_CLOEXEC);
    if (fs < 0)
        return hf_err_set(err, -errno, "cannot open the file system type %s: %s", type, strerror(errno));
    for (size_t i = 0; i < n; i++) {
        unsigned cmd = options[i].value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
        if (fsconfig(fs, cmd, options[i].key, options[i].value, 0) < 0)
            return hf_err_set(err, -errno, "%s refuses the option %s: %s", type, options[i].key,
                              strerror(errno));
    }
    if (fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return hf_err_set(err, -errno, "cannot make a %s file system: %s", type, strerror(errno));
    int fd = fsmount(fs, FSMOUNT_CLOEXEC, attrs);
    return fd < 0 ? hf_err_set(err, -errno, "cannot mount %s: %s", type, strerror(errno)) : fd;
}

static int attach(int mount_fd, int dir_fd, const char *rel, struct hf_err *err)
{
    hf_auto_close int target = hf_open_in_root_nolink(dir_fd, rel, O_PATH, 0);
    if (target < 0)
        return hf_err_set(err, target, "cannot mount at /%s: %s", rel, strerror(-target));
    if (move_mount(mount_fd, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return hf_err_set(err, -errno, "cannot mount at /%s: %s", rel, strerror(errno));
    return 0;
}

static int make_dir(int dir_fd, const char *name, mode_t mode, struct hf_err *err)
{
    if (mkdirat(dir_fd, name, mode) < 0 && errno != EEXIST)
        return hf_err_set(err, -errno, "cannot make /%s: %s", name, strerror(errno));
    return 0;
}

/* ---- overlay ---- */

/* A stage of our own, so that the overlay's layers have short names that say nothing about the host in
 * /proc/self/mountinfo. It covers the cell's directory in this namespace and goes away with the old root.
 * (On "/" it would end up on top of the old root after pivot_root, and be taken off in its place.) */
static int open_stage(int cell_dir_fd, struct hf_err *err)
{
    hf_auto_close int stage = new_fs("tmpfs", NULL, 0, QUIET, err);
    if (stage < 0)
        return stage;
    if (move_mount(stage, "", cell_dir_fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return hf_err_set(err, -errno, "cannot place the stage: %s", strerror(errno));
    static const char *const dirs[] = {"lower", "disk", "root", "plain"};
    for (size_t i = 0; i < HF_ARRAY_LEN(dirs); i++) {
        int r = make_dir(stage, dirs[i], 0700, err);
        if (r < 0)
            return r;
    }
    if (fchdir(stage) < 0)
        return hf_err_set(err, -errno, "cannot enter the stage: %s", strerror(errno));
    return hf_take_fd(&stage);
}

/* The overlay belongs to this user namespace (made by the host's root it would turn read-only without a
 * word). volatile: the layer ends with the box, so fsync in it need not wait for the host's disk; volumes are
 * file systems of their own and keep their fsync. */
static int open_overlay(const struct shim *s, int stage, struct hf_err *err)
{
    static const struct option options[] = {
        {"source", "overlay"},    {"lowerdir", "lower"}, {"upperdir", "disk/upper"},
        {"workdir", "disk/work"}, {"userxattr", NULL},   {"volatile", NULL},
    };
    int r = attach(s->template_fd, stage, "lower", err);
    if (r == 0)
        r = attach(s->upper_fd, stage, "disk", err);
    if (r < 0)
        return r;
    hf_auto_close int root = new_fs("overlay", options, HF_ARRAY_LEN(options), MOUNT_ATTR_NODEV, err);
    if (root < 0)
        return root;
    r = attach(root, stage, "root", err);
    return r < 0 ? r : hf_take_fd(&root);
}

/* ---- /dev ---- */

static int bind_device(int dev_fd, const char *name, struct hf_err *err)
{
    char host[32];
    (void)snprintf(host, sizeof(host), "/dev/%s", name);
    hf_auto_close int node = open_tree(AT_FDCWD, host, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (node < 0)
        return hf_err_set(err, -errno, "cannot open the host's %s: %s", host, strerror(errno));
    hf_auto_close int file = openat(dev_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0)
        return hf_err_set(err, -errno, "cannot make %s: %s", host, strerror(errno));
    return attach(node, dev_fd, name, err);
}

static int mount_pts_and_shm(const struct shim *s, int dev_fd, struct hf_err *err)
{
    char size[32];
    (void)snprintf(size, sizeof(size), "%llu", (unsigned long long)s->spec.limits.memory_bytes / 2);
    const struct option pts_options[] = {
        {"newinstance", NULL}, {"ptmxmode", "0666"}, {"mode", "0620"}, {"gid", "5"}};
    const struct option shm_options[] = {{"mode", "1777"}, {"size", size}};
    int r = make_dir(dev_fd, "pts", 0755, err);
    if (r == 0)
        r = make_dir(dev_fd, "shm", 0755, err);
    if (r < 0)
        return r;
    hf_auto_close int pts =
        new_fs("devpts", pts_options, HF_ARRAY_LEN(pts_options), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, err);
    if (pts < 0)
        return pts;
    hf_auto_close int shm = new_fs("tmpfs", shm_options, HF_ARRAY_LEN(shm_options), QUIET, err);
    if (shm < 0)
        return shm;
    r = attach(pts, dev_fd, "pts", err);
    return r == 0 ? attach(shm, dev_fd, "shm", err) : r;
}

static int build_dev(const struct shim *s, int root_fd, struct hf_err *err)
{
    static const struct option options[] = {{"mode", "0755"}, {"size", "64k"}, {"nr_inodes", "64"}};
    static const char *const devices[] = {"null", "zero", "full", "random", "urandom", "tty"};
    static const struct {
        const char *name, *target;
    } links[] = {
        {"ptmx", "pts/ptmx"},          {"fd", "/proc/self/fd"},       {"stdin", "/proc/self/fd/0"},
        {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"},
    };
    hf_auto_close int dev =
        new_fs("tmpfs", options, HF_ARRAY_LEN(options), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, err);
    if (dev < 0)
        return dev;
    int r = attach(dev, root_fd, "dev", err);
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(devices); i++)
        r = bind_device(dev, devices[i], err);
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(links); i++)
        if (symlinkat(links[i].target, dev, links[i].name) < 0)
            r = hf_err_set(err, -errno, "cannot make /dev/%s: %s", links[i].name, strerror(errno));
    return r == 0 ? mount_pts_and_shm(s, dev, err) : r;
}

/* ---- /proc and /sys ---- */

/* Puts an empty, read-only thing of the same kind over a path that exists. mask_fd: the mount with the
 * first directory's cover, which the others are cloned from. */
static int mask(int fs_fd, const char *rel, int null_fd, int *mask_fd, struct hf_err *err)
{
    static const struct option options[] = {{"size", "4k"}, {"nr_inodes", "2"}, {"mode", "0555"}};
    struct stat st;
    if (fstatat(fs_fd, rel, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : hf_err_set(err, -errno, "cannot look at %s: %s", rel, strerror(errno));
    bool dir = S_ISDIR(st.st_mode);
    hf_auto_close int cover = -1;
    if (dir && *mask_fd < 0)
        cover = new_fs("tmpfs", options, HF_ARRAY_LEN(options), QUIET | MOUNT_ATTR_RDONLY, err);
    else
        cover = open_tree(dir ? *mask_fd : null_fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    if (cover < 0)
        return hf_err_set(err, -errno, "cannot cover %s: %s", rel, strerror(errno));
    int r = attach(cover, fs_fd, rel, err);
    if (r == 0 && dir && *mask_fd < 0)
        *mask_fd = hf_take_fd(&cover);
    return r;
}

static int read_only(int fs_fd, const char *rel, struct hf_err *err)
{
    hf_auto_close int copy = open_tree(fs_fd, rel, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (copy < 0)
        return errno == ENOENT ? 0 : hf_err_set(err, -errno, "cannot open %s: %s", rel, strerror(errno));
    struct mount_attr a = {.attr_set = QUIET | MOUNT_ATTR_RDONLY};
    if (mount_setattr(copy, "", AT_EMPTY_PATH | AT_RECURSIVE, &a, sizeof(a)) < 0)
        return hf_err_set(err, -errno, "cannot make %s read-only: %s", rel, strerror(errno));
    return attach(copy, fs_fd, rel, err);
}

static int build_proc_and_sys(int root_fd, struct hf_err *err)
{
    /* The OCI default and what else tells about the host or other boxes. */
    static const char *const proc_masked[] = {
        "acpi",          "asound",    "bootconfig",  "bus",   "config.gz",     "interrupts", "kallsyms",
        "kcore",         "key-users", "keys",        "kmsg",  "kpagecgroup",   "kpagecount", "kpageflags",
        "latency_stats", "modules",   "sched_debug", "scsi",  "sysrq-trigger", "timer_list", "timer_stats",
        "vmallocinfo",   "driver",    "dma",         "iomem", "ioports",
    };
    static const char *const proc_read_only[] = {"fs", "irq", "sys"};
    /* devices/virtual/block names the image files of all boxes. */
    static const char *const sys_masked[] = {
        "firmware",
        "fs",
        "hypervisor",
        "kernel",
        "module",
        "power",
        "devices/virtual/block",
        "devices/virtual/dmi",
        "devices/virtual/powercap",
    };
    hf_auto_close int proc = new_fs("proc", NULL, 0, QUIET, err);
    if (proc < 0)
        return hf_err_wrap(err, "/proc (is it covered where the daemon runs?)");
    hf_auto_close int sys = new_fs("sysfs", NULL, 0, QUIET | MOUNT_ATTR_RDONLY, err);
    if (sys < 0)
        return hf_err_wrap(err, "/sys (is it covered where the daemon runs?)");
    int r = attach(proc, root_fd, "proc", err);
    if (r == 0)
        r = attach(sys, root_fd, "sys", err);
    hf_auto_close int null_fd = hf_open_in_root_nolink(root_fd, "dev/null", O_PATH, 0);
    hf_auto_close int mask_fd = -1;
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(proc_read_only); i++)
        r = read_only(proc, proc_read_only[i], err);
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(proc_masked); i++)
        r = mask(proc, proc_masked[i], null_fd, &mask_fd, err);
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(sys_masked); i++)
        r = mask(sys, sys_masked[i], null_fd, &mask_fd, err);
    return r;
}

/* ---- /run, volumes, /etc ---- */

static int place_file(int run_fd, const char *rel, int mount_fd, struct hf_err *err)
{
    hf_auto_close int file = openat(run_fd, rel, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    if (file < 0)
        return hf_err_set(err, -errno, "cannot make /run/%s: %s", rel, strerror(errno));
    return attach(mount_fd, run_fd, rel, err);
}

static int build_run(const struct shim *s, int root_fd, struct hf_err *err)
{
    static const struct option options[] = {{"mode", "0755"}, {"size", RUN_SIZE}};
    hf_auto_close int run =
        new_fs("tmpfs", options, HF_ARRAY_LEN(options), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, err);
    if (run < 0)
        return run;
    int r = attach(run, root_fd, "run", err);
    if (r == 0)
        r = make_dir(run, "holdfast", 0755, err);
    if (r == 0)
        r = make_dir(run, "lock", 01777, err);
    if (r < 0)
        return r;
    (void)!fchmodat(run, "lock", 01777, 0); /* the umask took a part away */
    r = place_file(run, "holdfast/envd", s->envd_fd, err);
    if (r == 0 && s->reseed_fd >= 0)
        r = place_file(run, "holdfast/reseed.so", s->reseed_fd, err);
    if (r == 0)
        shim_write_generation(root_fd, s->spec.generation);
    return r;
}

/* One component of a volume's path: opened, or made for the box's user. No link is followed. */
static int step_into(int dir_fd, const char *name, struct hf_err *err)
{
    int fd = openat(dir_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        if (mkdirat(dir_fd, name, 0755) < 0 ||
            fchownat(dir_fd, name, BOX_USER, BOX_USER, AT_SYMLINK_NOFOLLOW) < 0)
            return hf_err_set(err, -errno, "cannot make the directory %s: %s", name, strerror(errno));
        fd = openat(dir_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (fd < 0)
        return hf_err_set(err, -errno, "%s is not a directory of the template: %s", name, strerror(errno));
    return fd;
}

int shim_place_volume(int root_fd, int mount_fd, const char *path, struct hf_err *err)
{
    hf_auto_close int at = fcntl(root_fd, F_DUPFD_CLOEXEC, 0);
    hf_auto_free char *copy = hf_xstrdup(path);
    char *rest = copy;
    if (path[0] != '/' || !path[1])
        return hf_err_set(err, -EINVAL, "cannot mount a volume at \"%s\": not an absolute path", path);
    for (char *name; (name = strsep(&rest, "/"));) {
        if (!*name)
            continue;
        if (strcmp(name, "..") == 0 || strcmp(name, ".") == 0)
            return hf_err_set(err, -EINVAL, "cannot mount a volume at %s: not a normalised path", path);
        int next = step_into(at, name, err);
        if (next < 0)
            return hf_err_wrap(err, "cannot mount a volume at %s", path);
        (void)hf_close(at);
        at = next;
    }
    if (move_mount(mount_fd, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return hf_err_set(err, -errno, "cannot mount a volume at %s: %s", path, strerror(errno));
    return 0;
}

/* Best effort: a template may have a link or a directory there, which stays as it is. */
static void write_etc(int root_fd, const char *rel, const char *text)
{
    hf_auto_close int fd =
        hf_open_in_root_nolink(root_fd, rel, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK, 0644);
    if (fd >= 0)
        (void)!hf_write_all(fd, text, strlen(text));
}

void shim_write_generation(int root_fd, uint64_t generation)
{
    char text[24];
    int n = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)generation);
    hf_auto_close int fd =
        hf_open_in_root_nolink(root_fd, "run/holdfast/generation", O_WRONLY | O_CREAT | O_NONBLOCK, 0644);
    if (fd >= 0 && pwrite(fd, text, (size_t)n, 0) == n)
        (void)!ftruncate(fd, n);
}

void shim_write_boot_id(int root_fd)
{
    unsigned char id[16];
    char hex[33], text[40];
    hf_random(id, sizeof(id));
    id[6] = (unsigned char)((id[6] & 0x0f) | 0x40); /* a random UUID, RFC 9562 */
    id[8] = (unsigned char)((id[8] & 0x3f) | 0x80);
    hf_hex(id, sizeof(id), hex);
    int n = snprintf(text, sizeof(text), "%.8s-%.4s-%.4s-%.4s-%.12s\n", hex, hex + 8, hex + 12, hex + 16,
                     hex + 20);
    hf_auto_close int fd = hf_open_in_root_nolink(root_fd, BOOT_ID, O_WRONLY | O_CREAT | O_NONBLOCK, 0644);
    if (fd >= 0)
        (void)!pwrite(fd, text, (size_t)n, 0);
}

void shim_write_names(int root_fd, const char *name)
{
    char text[512];
    (void)snprintf(text, sizeof(text), "%s\n", name);
    write_etc(root_fd, "etc/hostname", text);
    (void)snprintf(text, sizeof(text),
                   "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 %s\n", name);
    write_etc(root_fd, "etc/hosts", text);
}

void shim_write_resolver(int root_fd, const struct hf_cell_spec *spec, bool wired)
{
    char text[256] = "# this sandbox has no network\n", dns[HF_ADDR_TEXT];
    struct hf_net_config cfg;
    struct hf_net_addrs a;
    hf_cell_net_config(&spec->fabric, &cfg);
    if (wired && hf_net_addrs(&cfg, spec->n, &a) == 0) {
        hf_addr_format(&a.dns4, dns);
        int n = snprintf(text, sizeof(text), "nameserver %s\n", dns);
        hf_addr_format(&a.dns6, dns);
        if (cfg.ipv6)
            (void)snprintf(text + n, sizeof(text) - (size_t)n, "nameserver %s\n", dns);
    }
    write_etc(root_fd, "etc/resolv.conf", text);
}

/* A box has a boot id of its own, which stays with its processes: the file travels with the rest of /run. */
static int place_boot_id(int root_fd, struct hf_err *err)
{
    shim_write_boot_id(root_fd);
    hf_auto_close int file = hf_open_in_root_nolink(root_fd, BOOT_ID, O_PATH, 0);
    hf_auto_close int copy =
        file < 0 ? -1 : open_tree(file, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    struct mount_attr a = {.attr_set = QUIET | MOUNT_ATTR_RDONLY};
    if (copy < 0 || mount_setattr(copy, "", AT_EMPTY_PATH, &a, sizeof(a)) < 0)
        return hf_err_set(err, -errno, "cannot give the sandbox a boot id: %s", strerror(errno));
    return attach(copy, root_fd, "proc/sys/kernel/random/boot_id", err);
}

/* ---- all of it ---- */

static int make_places(int root_fd, struct hf_err *err)
{
    static const char *const dirs[] = {"dev", "proc", "sys", "run", "etc"};
    int r = 0;
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(dirs); i++)
        r = make_dir(root_fd, dirs[i], 0755, err);
    if (r == 0 && mkdirat(root_fd, "tmp", 01777) == 0)
        (void)!fchmodat(root_fd, "tmp", 01777, 0);
    return r;
}

static int build_tree(const struct shim *s, int root_fd, struct hf_err *err)
{
    int r = make_places(root_fd, err);
    if (r == 0)
        r = build_dev(s, root_fd, err);
    if (r == 0)
        r = build_proc_and_sys(root_fd, err);
    if (r == 0)
        r = build_run(s, root_fd, err);
    if (r == 0)
        r = place_boot_id(root_fd, err);
    for (size_t i = 0; r == 0 && i < s->spec.n_mounts; i++)
        r = shim_place_volume(root_fd, s->volume_fd[i], s->spec.mounts[i].path, err);
    return r;
}

/* pivot_root(".", "."): the old root ends up on top of the new one and is taken off again. Checked, because
 * a root that can still be left upwards would look and work the same. */
static int change_root(int root_fd, struct hf_err *err)
{
    if (fchdir(root_fd) < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
        return hf_err_set(err, -errno, "cannot change the root: %s", strerror(errno));
    if (umount2(".", MNT_DETACH) < 0)
        return hf_err_set(err, -errno, "cannot leave the host's root: %s", strerror(errno));
    struct statx root, here, up;
    if (chdir("/") < 0 || statx(root_fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &root) < 0 ||
        statx(AT_FDCWD, "/", 0, STATX_MNT_ID, &here) < 0 || statx(AT_FDCWD, "/..", 0, STATX_MNT_ID, &up) < 0)
        return hf_err_set(err, -errno, "cannot enter the new root: %s", strerror(errno));
    if (here.stx_mnt_id != root.stx_mnt_id || up.stx_mnt_id != root.stx_mnt_id)
        return hf_err_set(err, -EXDEV, "the new root is not the sandbox's own");
    return 0;
}

/* The whole tree at <place>/root. The descriptor of its root. */
static int build_at(const struct shim *s, int place_fd, int *ret_stage, struct hf_err *err)
{
    int stage = *ret_stage = open_stage(place_fd, err);
    if (stage < 0)
        return stage;
    hf_auto_close int root = open_overlay(s, stage, err);
    if (root < 0)
        return root;
    int r = build_tree(s, root, err);
    if (r < 0)
        return r;
    shim_write_names(root, s->spec.sandbox_id[0] ? s->spec.sandbox_id : "sandbox");
    shim_write_resolver(root, &s->spec, s->spec.network);
    return hf_take_fd(&root);
}

int shim_root_build(const struct shim *s, int cell_dir_fd, struct hf_err *err)
{
    hf_auto_close int stage = -1;
    hf_auto_close int root = build_at(s, cell_dir_fd, &stage, err);
    return root < 0 ? root : change_root(root, err);
}

int shim_root_stage(const struct shim *s, int place_fd, struct hf_err *err)
{
    hf_auto_close int stage = -1;
    hf_auto_close int root = build_at(s, place_fd, &stage, err);
    if (root < 0)
        return root;
    hf_auto_close int plain = open_tree(root, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    if (plain < 0)
        return hf_err_set(err, -errno, "cannot clone the sandbox's root: %s", strerror(errno));
    int r = attach(plain, stage, "plain", err);
    return r < 0 ? r : hf_take_fd(&root);
}
