#include "engine/disk/loop.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#include "base/clock.h"
#include "base/path.h"

#define LOOP_MAJOR_NUMBER 7
#define COPY_CHUNK (1u << 20)

/* After this many lost races a device of our own is added, so that a burst of creates does not queue for
 * the lowest free number. */
#define LOOP_RACES_BEFORE_ADD 4

static void pause_us(unsigned us)
{
    struct timespec ts = {0, (long)us * 1000};
    (void)nanosleep(&ts, NULL);
}

/* Opens /dev/loop<n>; makes the node where nothing else does (a container's /dev is no devtmpfs). */
static int open_loop_node(int n, bool read_only, char dev[HF_LOOP_DEV_MAX])
{
    (void)snprintf(dev, HF_LOOP_DEV_MAX, "/dev/loop%d", n);
    int flags = (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC;
    int fd = open(dev, flags);
    if (fd >= 0)
        return fd;
    if (errno != ENOENT)
        return -errno;
    if (mknod(dev, S_IFBLK | 0660, makedev(LOOP_MAJOR_NUMBER, (unsigned)n)) < 0 && errno != EEXIST)
        return -errno;
    fd = open(dev, flags);
    return fd < 0 ? -errno : fd;
}

/* One attempt. The device's descriptor, or -errno; EBUSY, ENXIO and ENODEV mean that another process was
 * faster (it took the device, or is just detaching it). */
static int attach_once(int control_fd, int image_fd, uint32_t flags, bool add, char dev[HF_LOOP_DEV_MAX])
{
    bool read_only = flags & LO_FLAGS_READ_ONLY;
    int n = add ? ioctl(control_fd, LOOP_CTL_ADD, -1) : ioctl(control_fd, LOOP_CTL_GET_FREE);
    if (n < 0)
        return errno == EEXIST ? -EBUSY : -errno;
    hf_auto_close int fd = open_loop_node(n, read_only, dev);
    if (fd < 0)
        return fd;
    struct loop_config cfg = {
        .fd = (uint32_t)image_fd,
        .info.lo_flags = LO_FLAGS_AUTOCLEAR | flags,
    };
    if (ioctl(fd, LOOP_CONFIGURE, &cfg) < 0)
        return -errno;
    return hf_take_fd(&fd);
}

static int attach(int image_fd, uint32_t flags, char dev[HF_LOOP_DEV_MAX], struct hf_err *err)
{
    hf_auto_close int control_fd = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control_fd < 0)
        return hf_err_set(err, -errno, "cannot open /dev/loop-control: %s (is the loop module loaded?)",
                          strerror(errno));
    uint64_t deadline = hf_mono_ms() + HF_LOOP_ATTACH_TIMEOUT_MS;
    for (unsigned tries = 0;; tries++) {
        int fd = attach_once(control_fd, image_fd, flags, tries > LOOP_RACES_BEFORE_ADD, dev);
        if (fd >= 0)
            return fd;
        bool race = fd == -EBUSY || fd == -ENXIO || fd == -ENODEV || fd == -EINTR || fd == -EAGAIN;
        if (!race || hf_mono_ms() >= deadline)
            return hf_err_set(err, fd, "cannot attach an image to a loop device: %s", strerror(-fd));
        /* The pid spreads the competitors; no lock exists that all users of loop devices would respect. */
        pause_us(((unsigned)getpid() * 37u + tries * 211u) % 800u);
    }
}

int hf_loop_attach(int image_fd, bool read_only, char dev[HF_LOOP_DEV_MAX], struct hf_err *err)
{
    return attach(image_fd, read_only ? LO_FLAGS_READ_ONLY : 0, dev, err);
}

int hf_loop_attach_direct(int image_fd, char dev[HF_LOOP_DEV_MAX], struct hf_err *err)
{
    return attach(image_fd, LO_FLAGS_DIRECT_IO, dev, err);
}

/* The kernel explains a refused mount in the context's log; take its last line. */
static int fs_context_error(int fs_fd, int r, const char *dev, const char *what, struct hf_err *err)
{
    char line[200], last[200] = "";
    for (ssize_t n; (n = read(fs_fd, line, sizeof(line) - 1)) > 0;) {
        line[n] = '\0';
        (void)snprintf(last, sizeof(last), "%s", line);
    }
    last[strcspn(last, "\n")] = '\0';
    return hf_err_set(err, r, "cannot mount %s (%s): %s%s%s", dev, what, strerror(-r), last[0] ? ": " : "",
                      last);
}

static int set_options(int fs_fd, const char *options)
{
    hf_auto_free char *copy = hf_xstrdup(options);
    char *rest = copy;
    for (char *opt; (opt = strsep(&rest, ","));) {
        if (!*opt)
            continue;
        char *value = strchr(opt, '=');
        if (value)
            *value++ = '\0';
        if (fsconfig(fs_fd, value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, opt, value, 0) < 0)
            return -errno;
    }
    return 0;
}

int hf_mount_detached(const char *fs_type, const char *dev, bool read_only, uint64_t attr,
                      const char *options, struct hf_err *err)
{
    hf_auto_close int fs_fd = fsopen(fs_type, FSOPEN_CLOEXEC);
    if (fs_fd < 0)
        return hf_err_set(err, -errno, "the kernel has no %s file system: %s", fs_type, strerror(errno));
    if (fsconfig(fs_fd, FSCONFIG_SET_STRING, "source", dev, 0) < 0 ||
        (read_only && fsconfig(fs_fd, FSCONFIG_SET_FLAG, "ro", NULL, 0) < 0))
        return fs_context_error(fs_fd, -errno, dev, fs_type, err);
    int r = options ? set_options(fs_fd, options) : 0;
    if (r < 0)
        return fs_context_error(fs_fd, r, dev, fs_type, err);
    if (fsconfig(fs_fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return fs_context_error(fs_fd, -errno, dev, fs_type, err);
    if (read_only)
        attr |= MOUNT_ATTR_RDONLY;
    int fd = fsmount(fs_fd, FSMOUNT_CLOEXEC, (unsigned)attr);
    return fd < 0 ? fs_context_error(fs_fd, -errno, dev, fs_type, err) : fd;
}

int hf_mount_place(int mount_fd, const char *path, struct hf_err *err)
{
    if (move_mount(mount_fd, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return hf_err_set(err, -errno, "cannot mount at %s: %s", path, strerror(errno));
    return 0;
}

int hf_image_mount(int image_fd, bool read_only, uint64_t attr, const char *options, struct hf_err *err)
{
    char dev[HF_LOOP_DEV_MAX];
    hf_auto_close int loop_fd = hf_loop_attach(image_fd, read_only, dev, err);
    if (loop_fd < 0)
        return loop_fd;
    return hf_mount_detached("ext4", dev, read_only, attr, options, err);
}

static int lock_patiently(int fd, int how)
{
    uint64_t deadline = hf_mono_ms() + HF_IMAGE_LOCK_WAIT_MS;
    while (flock(fd, how | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (hf_mono_ms() >= deadline)
            return -EBUSY;
        pause_us(2000);
    }
    return 0;
}

int hf_image_open_locked(const char *path, bool read_only, struct hf_err *err)
{
    hf_auto_close int fd = open(path, (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return hf_err_set(err, -errno, "cannot open the image %s: %s", path, strerror(errno));
    int r = lock_patiently(fd, read_only ? LOCK_SH : LOCK_EX);
    if (r == -EBUSY)
        return hf_err_set(err, r, "the image %s is in use", path);
    struct stat st;
    if (r == 0 && fstat(fd, &st) < 0)
        r = -errno;
    if (r < 0)
        return hf_err_set(err, r, "cannot lock the image %s: %s", path, strerror(-r));
    if (st.st_nlink == 0)
        return hf_err_set(err, -ENOENT, "the image %s was removed", path);
    return hf_take_fd(&fd);
}

static int copy_range(int src, int dst, off_t from, off_t to, void *chunk)
{
    while (from < to) {
        size_t want = (size_t)HF_MIN((off_t)COPY_CHUNK, to - from);
        ssize_t n = pread(src, chunk, want, from);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO; /* the file shrank meanwhile */
        for (ssize_t done = 0; done < n;) {
            ssize_t w = pwrite(dst, (char *)chunk + done, (size_t)(n - done), from + done);
            if (w < 0 && errno != EINTR)
                return -errno;
            done += w > 0 ? w : 0;
        }
        from += n;
    }
    return 0;
}

static int copy_sparse(int src, int dst)
{
    struct stat st;
    if (fstat(src, &st) < 0 || ftruncate(dst, st.st_size) < 0)
        return -errno;
    hf_auto_free void *chunk = hf_xmalloc(COPY_CHUNK);
    for (off_t pos = 0; pos < st.st_size;) {
        off_t data = lseek(src, pos, SEEK_DATA);
        if (data < 0)
            return errno == ENXIO ? 0 : -errno; /* only a hole is left */
        off_t hole = lseek(src, data, SEEK_HOLE);
        if (hole < 0)
            return -errno;
        int r = copy_range(src, dst, data, hole, chunk);
        if (r < 0)
            return r;
        pos = hole;
    }
    return 0;
}

int hf_disk_clone(const char *src, const char *dst, struct hf_err *err)
{
    hf_auto_close int src_fd = open(src, O_RDONLY | O_CLOEXEC);
    if (src_fd < 0)
        return hf_err_set(err, -errno, "cannot open the image %s: %s", src, strerror(errno));
    hf_auto_close int dst_fd = open(dst, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (dst_fd < 0)
        return hf_err_set(err, -errno, "cannot make the image %s: %s", dst, strerror(errno));
    if (ioctl(dst_fd, FICLONE, src_fd) == 0)
        return 0;
    int r = -errno;
    if (r == -EOPNOTSUPP || r == -ENOTTY || r == -EXDEV || r == -EINVAL || r == -ENOSYS)
        r = copy_sparse(src_fd, dst_fd);
    if (r == 0)
        return 1;
    (void)unlink(dst);
    if (r == -ENOSPC)
        return hf_err_set(
            err, r, "the disk pool is full: no room for %s; remove sandboxes, volumes or templates", dst);
    return hf_err_set(err, r, "cannot copy the image %s to %s: %s", src, dst, strerror(-r));
}

uint64_t hf_block_writes(dev_t dev)
{
    char path[64], *text = NULL;
    size_t n = 0;
    (void)snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/stat", major(dev), minor(dev));
    if (hf_read_file(path, 1024, &text, &n) < 0)
        return UINT64_MAX;
    /* Reads, merged, sectors, ms, writes, merged, sectors … */
    unsigned long long sectors = 0;
    int found = sscanf(text, "%*u %*u %*u %*u %*u %*u %llu", &sectors);
    free(text);
    return found == 1 ? sectors : UINT64_MAX;
}

int hf_disk_flush(const char *path, struct hf_err *err)
{
    hf_auto_close int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fdatasync(fd) < 0)
        return hf_err_set(err, -errno, "cannot flush the image %s: %s", path, strerror(errno));
    return 0;
}
