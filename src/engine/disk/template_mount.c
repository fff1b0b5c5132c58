/* Template images as mounts: RUN/templates/<id>, read-only, once a node. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/pool.h"
#include "engine/driver.h"

/* A device that lost its last mount detaches itself a few milliseconds later. */
#define DETACH_WAIT_MS 1000

/* Opens RUN/templates and locks it, so that a mount is made, or taken away, by one process at a time. */
static int lock_mounts(const char *dir, struct hf_err *err)
{
    hf_auto_close int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return hf_err_set(err, -errno, "cannot open %s: %s", dir, strerror(errno));
    int r;
    do
        r = flock(fd, LOCK_EX) < 0 ? -errno : 0;
    while (r == -EINTR);
    return r < 0 ? hf_err_set(err, r, "cannot lock %s: %s", dir, strerror(-r)) : hf_take_fd(&fd);
}

/* RUN/templates becomes a shared mount of its own. Every supervisor has a copy of the host's mounts; only
 * below a shared mount does an umount here reach those copies, so that an image is free again when no box
 * uses it, and not when the last supervisor ends. */
static int share_mounts(const char *dir, struct hf_err *err)
{
    if (hf_disk_is_mount(dir))
        return 0;
    if (mount(dir, dir, NULL, MS_BIND, NULL) < 0 || mount(NULL, dir, NULL, MS_SHARED, NULL) < 0)
        return hf_err_set(err, -errno, "cannot make %s a shared mount: %s", dir, strerror(errno));
    return 0;
}

static int mount_image_at(const char *image, const char *id, const char *point, struct hf_err *err)
{
    hf_auto_close int image_fd = open(image, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (image_fd < 0 && errno == ENOENT)
        return hf_err_set(err, -ENOENT, "there is no template %s", id);
    if (image_fd < 0)
        return hf_err_set(err, -errno, "cannot open the template %s: %s", image, strerror(errno));
    if (mkdir(point, 0755) < 0 && errno != EEXIST)
        return hf_err_set(err, -errno, "cannot make %s: %s", point, strerror(errno));
    hf_auto_close int fd = hf_image_mount(image_fd, true, MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME, NULL, err);
    return fd < 0 ? fd : hf_mount_place(fd, point, err);
}

int hf_disk_template_mount(const char *data_dir, const char *run_dir, const char *template_id,
                           struct hf_err *err)
{
    int r = hf_disk_check_name("template", template_id, err);
    if (r < 0)
        return r;
    hf_auto_free char *dir = hf_xasprintf("%s/templates", run_dir);
    hf_auto_free char *point = hf_xasprintf("%s/%s", dir, template_id);
    if (hf_disk_is_mount(point))
        return 0;
    r = hf_mkdir_p(dir, 0755);
    if (r < 0)
        return hf_err_set(err, r, "cannot make %s: %s", dir, strerror(-r));
    hf_auto_close int lock_fd = lock_mounts(dir, err);
    if (lock_fd < 0)
        return lock_fd;
    r = share_mounts(dir, err);
    if (r < 0)
        return r;
    if (hf_disk_is_mount(point)) /* somebody was faster */
        return 0;
    hf_auto_free char *image = hf_xasprintf("%s/pool/templates/%s.img", data_dir, template_id);
    return mount_image_at(image, template_id, point, err);
}

/* ---- removal ---- */

struct unmounted {
    char *point; /* the place where the image was mounted, to mount it again */
};

static int unmount_one(void *arg, const char *mount_point)
{
    struct unmounted *u = arg;
    if (umount2(mount_point, UMOUNT_NOFOLLOW) < 0)
        return -errno;
    free(u->point);
    u->point = hf_xstrdup(mount_point);
    return 0;
}

static bool wait_detached(const char *image)
{
    uint64_t deadline = hf_mono_ms() + DETACH_WAIT_MS;
    while (hf_disk_image_attached(image)) {
        if (hf_mono_ms() >= deadline)
            return false;
        struct timespec ts = {0, 2000000};
        (void)nanosleep(&ts, NULL);
    }
    return true;
}

/* Takes the node's mount of the image away. Boxes hold mounts of their own on the same device: when it is
 * still attached afterwards, a box uses it, and the node's mount is put back. */
static int release_image(const char *image, const char *id, struct hf_err *err)
{
    struct unmounted u = {NULL};
    int r = hf_disk_each_mount(image, unmount_one, &u);
    hf_auto_free char *point = u.point;
    if (r == -EBUSY || (r == 0 && !wait_detached(image))) {
        struct hf_err again = {0};
        if (point && mount_image_at(image, id, point, &again) < 0)
            return hf_err_set(err, again.r, "template %s is in use, and: %s", id, again.msg);
        return hf_err_set(err, -EBUSY, "the template %s is used by a sandbox; end that sandbox first", id);
    }
    if (r < 0)
        return hf_err_set(err, r, "cannot unmount the template %s: %s", id, strerror(-r));
    if (point)
        (void)rmdir(point);
    return 0;
}

int hf_disk_template_remove(const char *data_dir, const char *template_id, struct hf_err *err)
{
    int r = hf_disk_check_name("template", template_id, err);
    if (r < 0)
        return r;
    hf_auto_free char *dir = hf_xasprintf("%s/pool/templates", data_dir);
    hf_auto_free char *image = hf_xasprintf("%s/%s.img", dir, template_id);
    hf_auto_free char *manifest = hf_xasprintf("%s/%s.json", dir, template_id);
    /* The kernel knows the image by its path without symbolic links. */
    hf_auto_free char *real = realpath(image, NULL);
    r = real ? release_image(real, template_id, err) : 0;
    if (r < 0)
        return r;
    /* The image first: what has a manifest only is no template. */
    if ((unlink(image) < 0 && errno != ENOENT) || (unlink(manifest) < 0 && errno != ENOENT))
        return hf_err_set(err, -errno, "cannot remove the template %s: %s", template_id, strerror(errno));
    r = real ? hf_disk_sync_path(dir) : 0;
    return r < 0 ? hf_err_set(err, r, "cannot sync %s: %s", dir, strerror(-r)) : 0;
}

/* ---- close ---- */

static int close_mount(const char *path, struct hf_err *err)
{
    if (umount2(path, UMOUNT_NOFOLLOW) < 0 && errno != EBUSY && errno != EINVAL && errno != ENOENT)
        return hf_err_set(err, -errno, "cannot unmount %s: %s", path, strerror(errno));
    return 0;
}

static int close_templates(const char *dir, struct hf_err *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return errno == ENOENT ? 0 : hf_err_set(err, -errno, "cannot read %s: %s", dir, strerror(errno));
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        hf_auto_free char *point = hf_xasprintf("%s/%s", dir, e->d_name);
        r = close_mount(point, err);
        (void)rmdir(point); /* what is still mounted stays */
    }
    (void)closedir(d);
    if (r == 0)
        r = close_mount(dir, err);
    (void)rmdir(dir);
    return r;
}

int hf_disk_pool_close(const char *data_dir, const char *run_dir, struct hf_err *err)
{
    hf_auto_free char *templates = hf_xasprintf("%s/templates", run_dir);
    hf_auto_free char *pool = hf_xasprintf("%s/pool", data_dir);
    int r = close_templates(templates, err);
    if (r < 0)
        return r;
    (void)rmdir(run_dir); /* stays while a box is in it */
    /* A loop device lets go of its image some time after the unmount; until then the pool is busy. */
    uint64_t deadline = hf_mono_ms() + DETACH_WAIT_MS;
    while (umount2(pool, UMOUNT_NOFOLLOW) < 0 && errno == EBUSY && hf_mono_ms() < deadline) {
        struct timespec ts = {0, 2000000};
        (void)nanosleep(&ts, NULL);
    }
    return close_mount(pool, err);
}
