/* The pool: where images live, on a file system that can reflink.
 *
 * DATA/pool is a plain directory when DATA's file system has reflink (XFS, btrfs); else DATA/pool.img, an XFS
 * file system in a sparse file, is mounted there. Each step leaves a state from which the next call goes on:
 * a half-made image has a temporary name, a finished one is only mounted, a mounted one is only used. */
#include "engine/disk/pool.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/fault.h"
#include "base/id.h"
#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/tool.h"
#include "engine/driver.h"

/* noatime: reading a template must not write. discard: what a removed image held goes back to the host. */
#define POOL_MOUNT_OPTIONS "discard,nouuid"

static const char *const pool_dirs[] = {"blank", "templates", "cells", "volumes", "snapshots", "staging"};

int hf_disk_check_name(const char *what, const char *name, struct hf_err *err)
{
    size_t n = strlen(name);
    bool good = n >= 1 && n <= HF_POOL_NAME_MAX && name[0] != '-' &&
                strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
    if (good)
        return 0;
    return hf_err_set(err, -EINVAL,
                      "%s name refused: use 1 to %d of a-z, 0-9 and '-', starting with a letter or digit",
                      what, HF_POOL_NAME_MAX);
}

/* Tries a real reflink in dir: what statfs says about the type does not tell (XFS may lack it). */
static bool can_reflink(const char *dir)
{
    hf_auto_close int a = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    hf_auto_close int b = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    static const char block[4096] = "holdfast";
    if (a < 0 || b < 0 || hf_write_all(a, block, sizeof(block)) < 0)
        return false;
    return ioctl(b, FICLONE, a) == 0;
}

int hf_pool_lock(const char *data_dir, struct hf_err *err)
{
    hf_auto_free char *path = hf_xasprintf("%s/pool.lock", data_dir);
    hf_auto_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return hf_err_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
    int r;
    do
        r = flock(fd, LOCK_EX) < 0 ? -errno : 0;
    while (r == -EINTR);
    return r < 0 ? hf_err_set(err, r, "cannot lock %s: %s", path, strerror(-r)) : hf_take_fd(&fd);
}

/* The size for a new pool image: what is wanted, bounded by what the host's disk can ever hold. */
static int image_size(const char *data_dir, uint64_t max_bytes, uint64_t *ret, struct hf_err *err)
{
    struct statvfs vfs;
    if (statvfs(data_dir, &vfs) < 0)
        return hf_err_set(err, -errno, "cannot ask %s for its free space: %s", data_dir, strerror(errno));
    uint64_t free_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    uint64_t bytes = hf_pool_image_target(max_bytes, 0, free_bytes);
    if (bytes < HF_POOL_IMAGE_MIN)
        return hf_err_set(err, max_bytes - bytes >= 1u << 20 ? -ENOSPC : -EINVAL,
                          "no room for a disk pool below %s: it needs %llu MiB at least and may have %" PRIu64
                          " MiB (%llu MiB are left to the host); free some space or give a larger pool size",
                          data_dir, HF_POOL_IMAGE_MIN >> 20, bytes >> 20, HF_POOL_HOST_RESERVE >> 20);
    *ret = bytes;
    return 0;
}

static int make_sparse(const char *path, uint64_t bytes, struct hf_err *err)
{
    /* What an earlier, interrupted attempt left is of no use. */
    if (unlink(path) < 0 && errno != ENOENT)
        return hf_err_set(err, -errno, "cannot remove %s: %s", path, strerror(errno));
    hf_auto_close int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
        return hf_err_set(err, -errno, "cannot make %s: %s", path, strerror(errno));
    return 0;
}

/* Makes DATA/pool.img. */
static int make_image(const char *data_dir, const char *image, uint64_t max_bytes, struct hf_err *err)
{
    uint64_t bytes = 0;
    int r = image_size(data_dir, max_bytes, &bytes, err);
    if (r < 0)
        return r;
    hf_auto_free char *tmp = hf_xasprintf("%s.tmp", image);
    r = make_sparse(tmp, bytes, err);
    if (r < 0)
        return r;
    hf_killpoint("disk.pool.sparse");
    /* The file is new and sparse, so nothing need be discarded (-K) or zeroed. No reverse map: it costs a
     * second index write for each extent and serves only online repair. */
    const char *argv[] = {"mkfs.xfs", "-q", "-K", "-m", "reflink=1,rmapbt=0", tmp, NULL};
    r = hf_tool_run("xfsprogs", argv, NULL, err);
    hf_killpoint("disk.pool.formatted");
    if (r == 0) {
        r = hf_disk_sync_path(tmp);
        if (r == 0 && rename(tmp, image) < 0)
            r = -errno;
        if (r == 0)
            r = hf_disk_sync_path(data_dir);
        if (r < 0)
            (void)hf_err_set(err, r, "cannot make the pool image %s: %s", image, strerror(-r));
    }
    if (r < 0)
        (void)unlink(tmp);
    return r;
}

static bool kernel_has_xfs(void)
{
    hf_auto_close int fd = fsopen("xfs", FSOPEN_CLOEXEC);
    return fd >= 0;
}

static int mount_device(const char *image, const char *dev, const char *pool, struct hf_err *err)
{
    hf_auto_close int mount_fd =
        hf_mount_detached("xfs", dev, false, MOUNT_ATTR_NOATIME | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID,
                          POOL_MOUNT_OPTIONS, err);
    if (mount_fd < 0)
        return hf_err_wrap(err, "the pool image %s (if it is damaged, repair it with xfs_repair)", image);
    return hf_mount_place(mount_fd, pool, err);
}

static int mount_image(const char *image, const char *pool, struct hf_err *err)
{
    /* The lock lives as long as the loop device: nobody attaches the same image twice, not even from another
     * mount namespace where DATA/pool does not look mounted. */
    char dev[HF_LOOP_DEV_MAX];
    struct hf_err why = {0};
    hf_auto_close int image_fd = hf_image_open_locked(image, false, &why);
    if (image_fd == -EBUSY && hf_disk_image_device(image, dev)) {
        /* A daemon that had a mount namespace of its own has died, and its sandboxes keep the file system:
         * the same device gives the same file system here. */
        return mount_device(image, dev, pool, err);
    }
    if (image_fd < 0)
        return hf_err_set(err, image_fd, "the disk pool: %s", why.msg);
    hf_auto_close int loop_fd = hf_loop_attach_direct(image_fd, dev, err);
    if (loop_fd < 0)
        return loop_fd;
    hf_killpoint("disk.pool.attached");
    return mount_device(image, dev, pool, err);
}

/* A pool of an earlier run in a plain directory: mounting something over it would hide it. */
static bool is_plain_pool(const char *pool)
{
    hf_auto_free char *blank = hf_xasprintf("%s/blank", pool);
    return access(blank, F_OK) == 0;
}

static int place_pool(const char *data_dir, const char *pool, uint64_t max_bytes, struct hf_err *err)
{
    hf_auto_free char *image = hf_xasprintf("%s/pool.img", data_dir);
    if (hf_disk_is_mount(pool))
        return 0;
    if (access(image, F_OK) == 0)
        return mount_image(image, pool, err);
    if (is_plain_pool(pool) || can_reflink(pool))
        return 0;
    /* Without XFS the pool works all the same, with full copies; hf_disk_pool_info says so. */
    if (!kernel_has_xfs() || !hf_tool_present("mkfs.xfs"))
        return 0;
    int r = make_image(data_dir, image, max_bytes, err);
    if (r < 0)
        return r;
    hf_killpoint("disk.pool.renamed");
    return mount_image(image, pool, err);
}

/* Removes what interrupted operations left, unless some other process is in the middle of one. */
static int clean_staging(const char *pool)
{
    hf_auto_free char *lock = hf_xasprintf("%s/staging.lock", pool);
    hf_auto_free char *staging = hf_xasprintf("%s/staging", pool);
    hf_auto_close int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? 0 : -errno;
    return hf_remove_tree(staging);
}

static int make_pool_dirs(const char *pool, struct hf_err *err)
{
    int r = clean_staging(pool);
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(pool_dirs); i++) {
        hf_auto_free char *dir = hf_xasprintf("%s/%s", pool, pool_dirs[i]);
        r = hf_mkdir_p(dir, 0700);
    }
    return r < 0 ? hf_err_set(err, r, "cannot prepare the disk pool %s: %s", pool, strerror(-r)) : 0;
}

int hf_staging_begin(struct hf_staging *st, const char *data_dir, struct hf_err *err)
{
    hf_auto_free char *lock = hf_xasprintf("%s/pool/staging.lock", data_dir);
    hf_auto_close int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || flock(fd, LOCK_SH) < 0)
        return hf_err_set(err, -errno, "cannot lock %s: %s (is the disk pool open?)", lock, strerror(errno));
    char id[17];
    hf_random_id(id, sizeof(id) - 1);
    hf_auto_free char *dir = hf_xasprintf("%s/pool/staging/%s", data_dir, id);
    int r = hf_mkdir_p(dir, 0700);
    if (r < 0)
        return hf_err_set(err, r, "cannot make %s: %s", dir, strerror(-r));
    st->image = hf_xasprintf("%s/image", dir);
    st->tree = hf_xasprintf("%s/tree", dir);
    st->dir = hf_take_ptr(dir);
    st->lock_fd = hf_take_fd(&fd);
    return 0;
}

void hf_staging_end(struct hf_staging *st)
{
    /* What can't be removed now is removed when the pool opens the next time. */
    int r = st->dir ? hf_remove_tree(st->dir) : 0;
    (void)r;
    free(st->dir);
    free(st->image);
    free(st->tree);
    st->dir = st->image = st->tree = NULL;
    st->lock_fd = hf_close(st->lock_fd);
}

int hf_disk_pool_open(const char *data_dir, uint64_t max_bytes, bool *ret_reflink, struct hf_err *err)
{
    hf_auto_free char *pool = hf_xasprintf("%s/pool", data_dir);
    int r = hf_mkdir_p(data_dir, 0700);
    if (r == 0)
        r = hf_mkdir_p(pool, 0700);
    if (r < 0)
        return hf_err_set(err, r, "cannot make %s: %s", pool, strerror(-r));
    hf_auto_close int lock_fd = hf_pool_lock(data_dir, err);
    if (lock_fd < 0)
        return lock_fd;
    r = place_pool(data_dir, pool, max_bytes, err);
    if (r < 0)
        return r;
    hf_killpoint("disk.pool.mounted");
    r = make_pool_dirs(pool, err);
    if (r < 0)
        return r;
    *ret_reflink = can_reflink(pool);
    lock_fd = hf_close(lock_fd);
    /* The setting may have risen since the image was made, or the host may have more room. */
    struct hf_err not_fatal;
    int grown = hf_pool_grow(data_dir, max_bytes, &not_fatal);
    (void)grown;
    return 0;
}

void hf_disk_pool_info(const char *data_dir, struct hf_disk_pool_info *ret)
{
    hf_auto_free char *pool = hf_xasprintf("%s/pool", data_dir);
    *ret = (struct hf_disk_pool_info){.reflink = can_reflink(pool), .on_image = hf_disk_is_mount(pool)};
    const char *why = "";
    if (ret->reflink)
        return;
    if (access(pool, F_OK) < 0)
        why = "the disk pool does not exist yet";
    else if (!kernel_has_xfs())
        why = "no reflink: this kernel has no XFS, so every sandbox copies its disk";
    else if (!hf_tool_present("mkfs.xfs"))
        why =
            "no reflink: mkfs.xfs is missing, so every sandbox copies its disk; install the package xfsprogs";
    else
        why =
            "no reflink: the pool is a plain directory of an earlier run; stop the daemon and move DATA/pool "
            "away to get a pool image";
    (void)snprintf(ret->note, sizeof(ret->note), "%s", why);
}
