/* The pool image grows: the file, the loop device on it, the file system; each step leaves a state from which
 * the next call goes on. It never shrinks. */
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/fault.h"
#include "engine/disk/pool.h"
#include "engine/disk/tool.h"

#define MIB (1ull << 20)

/* XFS_IOC_FSGEOMETRY_V1 of the kernel's xfs_fs.h, whose header is in no common package. */
struct xfs_geometry {
    uint32_t blocksize, rtextsize, agblocks, agcount, logblocks, sectsize, inodesize, imaxpct;
    uint64_t datablocks, rtblocks, rtextents, logstart;
    unsigned char uuid[16];
    uint32_t sunit, swidth;
    int32_t version;
    uint32_t flags, logsectsize, rtsectsize, dirblocksize;
};
_Static_assert(sizeof(struct xfs_geometry) == 112, "as the kernel has it");
#define GET_GEOMETRY _IOR('X', 100, struct xfs_geometry)

/* What the file system spans now. */
static int fs_bytes(const char *pool, uint64_t *ret)
{
    struct xfs_geometry g;
    hf_auto_close int fd = open(pool, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, GET_GEOMETRY, &g) < 0)
        return -errno;
    *ret = g.datablocks * g.blocksize;
    return 0;
}

uint64_t hf_pool_image_target(uint64_t max_bytes, uint64_t used, uint64_t host_free)
{
    uint64_t room = host_free > HF_POOL_HOST_RESERVE ? host_free - HF_POOL_HOST_RESERVE : 0;
    return HF_MIN(max_bytes, used + room) & ~(MIB - 1);
}

static int target_of(const char *data_dir, const char *image, uint64_t max_bytes, uint64_t *ret)
{
    struct stat st;
    struct statvfs host;
    if (stat(image, &st) < 0 || statvfs(data_dir, &host) < 0)
        return -errno;
    *ret = hf_pool_image_target(max_bytes, (uint64_t)st.st_blocks * 512,
                                (uint64_t)host.f_bavail * host.f_frsize);
    return 0;
}

static int lengthen(const char *image, uint64_t bytes)
{
    struct stat st;
    hf_auto_close int fd = open(image, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if ((uint64_t)st.st_size < bytes && ftruncate(fd, (off_t)bytes) < 0)
        return -errno;
    return fsync(fd) < 0 ? -errno : 0;
}

static int tell_device(const char *image)
{
    char dev[HF_LOOP_DEV_MAX];
    if (!hf_disk_image_device(image, dev))
        return -ENODEV;
    hf_auto_close int fd = open(dev, O_RDWR | O_CLOEXEC);
    return fd < 0 || ioctl(fd, LOOP_SET_CAPACITY, 0) < 0 ? -errno : 0;
}

static int grow(const char *image, const char *pool, uint64_t bytes, struct hf_err *err)
{
    int r = lengthen(image, bytes);
    hf_killpoint("disk.grow.longer");
    if (r == 0)
        r = tell_device(image);
    hf_killpoint("disk.grow.device");
    if (r < 0)
        return hf_err_set(err, r, "cannot make the pool image %s larger: %s", image, strerror(-r));
    const char *argv[] = {"xfs_growfs", "-d", pool, NULL};
    return hf_tool_run("xfsprogs", argv, NULL, err);
}

int hf_pool_grow(const char *data_dir, uint64_t max_bytes, struct hf_err *err)
{
    hf_auto_free char *image = hf_xasprintf("%s/pool.img", data_dir);
    hf_auto_free char *pool = hf_xasprintf("%s/pool", data_dir);
    uint64_t have = 0, want = 0;
    if (!hf_disk_is_mount(pool) || access(image, F_OK) < 0)
        return 0;
    int r = fs_bytes(pool, &have);
    if (r == 0)
        r = target_of(data_dir, image, max_bytes, &want);
    if (r < 0)
        return hf_err_set(err, r, "cannot ask the pool image %s for its size: %s", image, strerror(-r));
    if (want < have + HF_POOL_GROW_MIN)
        return 0;
    hf_auto_close int lock_fd = hf_pool_lock(data_dir, err);
    if (lock_fd < 0)
        return lock_fd;
    r = grow(image, pool, want, err);
    return r < 0 ? r : 1;
}
