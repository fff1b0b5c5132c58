/* The doctor's checks of disks: images, loop devices, id-mapped mounts, reflink. */
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "base/id.h"
#include "base/path.h"
#include "base/text.h"
#include "cli/doctor.h"
#include "engine/disk/loop.h"
#include "engine/disk/tool.h"

#define IMAGE_BYTES (16ll << 20)
#define XFS_BYTES (320ll << 20) /* mkfs.xfs refuses less than 300 MiB; the file is sparse */
#define SPACE_WARN (10ull << 30)
#define SPACE_FAIL (1ull << 30)
#define DISK_PROBE_MS 20000u

/* A file without a name that stays after a crash: made under one, for the tools that need it, and unlinked
 * by the caller as soon as they ran. */
static int make_image(const char *dir, long long bytes, char **ret_path, struct hf_err *err)
{
    char id[9];
    hf_random_id(id, sizeof(id) - 1);
    hf_auto_free char *path = hf_xasprintf("%s/.holdfast-doctor-%s", dir, id);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return hf_err_set(err, -errno, "writing in %s: %s", dir, strerror(errno));
    if (ftruncate(fd, bytes) < 0) {
        int r = hf_err_set(err, -errno, "a file of %lld MiB in %s: %s", bytes >> 20, dir, strerror(errno));
        (void)unlink(path);
        (void)close(fd);
        return r;
    }
    *ret_path = hf_take_ptr(path);
    return fd;
}

static int idmap(int mount_fd, struct hf_err *err)
{
    hf_auto_close int ns = -1;
    int r = hf_probe_userns_fd(&ns, err);
    if (r < 0)
        return r;
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)ns};
    if (syscall(SYS_mount_setattr, mount_fd, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0)
        return hf_err_set(err, -errno, "id-mapping the mount: %s", strerror(errno));
    return 0;
}

/* The whole way of a sandbox's disk: an ext4 image, a loop device, a detached mount, an id map. */
static int probe_image(void *arg, struct hf_err *err)
{
    const struct hf_doctor *d = arg;
    hf_auto_free char *path = NULL;
    hf_auto_close int fd = make_image(d->data_dir, IMAGE_BYTES, &path, err);
    if (fd < 0)
        return fd;
    const char *argv[] = {"mke2fs", "-q", "-F", "-t", "ext4", path, NULL};
    int r = hf_tool_run("e2fsprogs", argv, NULL, err);
    (void)unlink(path);
    if (r < 0)
        return r;
    hf_auto_close int mount_fd = hf_image_mount(fd, false, 0, NULL, err);
    return mount_fd < 0 ? mount_fd : idmap(mount_fd, err);
}

static void check_image(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct hf_err err = {0};
    if (!d->root) {
        hf_check_set(ret, HF_CHECK_SKIP, "needs root to be tried");
        return;
    }
    if (hf_probe(probe_image, (void *)d, DISK_PROBE_MS, &err) == 0) {
        hf_check_set(ret, HF_CHECK_OK,
                     "an ext4 image was made, attached to a loop device, mounted and id-mapped");
        return;
    }
    hf_check_set(ret, HF_CHECK_FAIL, "%s", err.msg);
    hf_check_cost(ret, "no disk for a sandbox");
    if (access("/dev/loop-control", R_OK | W_OK) < 0)
        hf_check_fix(ret, "modprobe loop; in a container: give it /dev/loop-control and loop devices");
    else if (!hf_tool_present("mke2fs"))
        hf_check_fix(ret, "apt-get install e2fsprogs");
    else
        hf_check_fix(ret,
                     "a kernel with CONFIG_EXT4_FS and of at least 5.19; in a container: run it privileged");
}

/* ---- reflink ---- */

static int probe_reflink(void *arg, struct hf_err *err)
{
    const struct hf_doctor *d = arg;
    hf_auto_free char *a = NULL, *b = NULL;
    hf_auto_close int from = make_image(d->data_dir, 1 << 20, &a, err);
    hf_auto_close int to = from < 0 ? -1 : make_image(d->data_dir, 0, &b, err);
    int r = from < 0 ? from : to < 0 ? to : 0;
    if (r == 0 && ioctl(to, FICLONE, from) < 0)
        r = hf_err_set(err, -errno, "%s", strerror(errno));
    if (a)
        (void)unlink(a);
    if (b)
        (void)unlink(b);
    return r;
}

static int probe_xfs(void *arg, struct hf_err *err)
{
    const struct hf_doctor *d = arg;
    hf_auto_free char *path = NULL;
    char dev[HF_LOOP_DEV_MAX];
    hf_auto_close int fd = make_image(d->data_dir, XFS_BYTES, &path, err);
    if (fd < 0)
        return fd;
    const char *argv[] = {"mkfs.xfs", "-q", "-K", "-m", "reflink=1", path, NULL};
    int r = hf_tool_run("xfsprogs", argv, NULL, err);
    (void)unlink(path);
    if (r < 0)
        return r;
    hf_auto_close int loop = hf_loop_attach(fd, false, dev, err);
    if (loop < 0)
        return loop;
    hf_auto_close int mount_fd = hf_mount_detached("xfs", dev, false, 0, NULL, err);
    return mount_fd < 0 ? mount_fd : 0;
}

static void check_reflink(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct hf_err err = {0};
    int r = hf_probe(probe_reflink, (void *)d, HF_PROBE_MS, &err);
    if (r == 0) {
        hf_check_set(ret, HF_CHECK_OK, "the file system of %s clones files", d->data_dir);
        return;
    }
    if (r == -EACCES || r == -EROFS || !d->root) {
        hf_check_set(ret, HF_CHECK_SKIP, "needs root and a writable data directory to be tried");
        return;
    }
    if (hf_probe(probe_xfs, (void *)d, DISK_PROBE_MS, &err) == 0) {
        hf_check_set(ret, HF_CHECK_OK, "by an XFS image on a loop device, which the daemon makes by itself");
        return;
    }
    hf_check_set(ret, HF_CHECK_WARN, "neither here nor by an XFS image: %s", err.msg);
    hf_check_cost(ret, "every sandbox copies its disk: creating one takes longer and more room");
    hf_check_fix(ret, "%s",
                 hf_tool_present("mkfs.xfs") ? "modprobe xfs, or a data directory on XFS or Btrfs"
                                             : "apt-get install xfsprogs");
}

/* ---- tools and room ---- */

static void check_tools(const struct hf_doctor *d, struct hf_check_result *ret)
{
    static const char *const needed[] = {"mke2fs", "tune2fs", "debugfs", "e2fsck"};
    (void)d;
    for (size_t i = 0; i < HF_ARRAY_LEN(needed); i++) {
        if (hf_tool_present(needed[i]))
            continue;
        hf_check_set(ret, HF_CHECK_FAIL, "%s is missing", needed[i]);
        hf_check_cost(ret, "no disk images, so no sandbox");
        hf_check_fix(ret, "apt-get install e2fsprogs");
        return;
    }
    hf_check_set(ret, HF_CHECK_OK, "mke2fs, tune2fs, debugfs, e2fsck%s",
                 hf_tool_present("mkfs.xfs") ? ", mkfs.xfs" : "; mkfs.xfs is missing");
}

static void check_space(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct statvfs v;
    char free_text[HF_HUMAN_MAX], total[HF_HUMAN_MAX];
    if (statvfs(d->data_dir, &v) < 0) {
        hf_check_set(ret, HF_CHECK_WARN, "%s: %s", d->data_dir, strerror(errno));
        return;
    }
    uint64_t bytes = (uint64_t)v.f_bavail * v.f_frsize;
    hf_check_set(ret,
                 bytes < SPACE_FAIL   ? HF_CHECK_FAIL
                 : bytes < SPACE_WARN ? HF_CHECK_WARN
                                      : HF_CHECK_OK,
                 "%s free of %s at %s", hf_human_size(bytes, free_text),
                 hf_human_size((uint64_t)v.f_blocks * v.f_frsize, total), d->data_dir);
    if (ret->status == HF_CHECK_OK)
        return;
    hf_check_cost(ret, "a template takes about 1 GiB, and every sandbox what it writes");
    hf_check_fix(ret, "make room, or `holdfast serve --data DIR` on a larger disk");
}

const struct hf_check hf_doctor_disk[] = {
    {"image", "disk images", check_image},
    {"reflink", "copies without copying", check_reflink},
    {"tools", "file system tools", check_tools},
    {"space", "free space", check_space},
    {0},
};
