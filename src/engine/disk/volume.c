#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "engine/disk/disk.h"
#include "engine/disk/pool.h"
#include "engine/driver.h"

static char *volume_path(const char *data_dir, const char *name)
{
    return hf_xasprintf("%s/pool/volumes/%s.img", data_dir, name);
}

static int sync_volumes(const char *data_dir, struct hf_err *err)
{
    hf_auto_free char *dir = hf_xasprintf("%s/pool/volumes", data_dir);
    int r = hf_disk_sync_path(dir);
    return r < 0 ? hf_err_set(err, r, "cannot sync %s: %s", dir, strerror(-r)) : 0;
}

int hf_disk_volume_create(const char *data_dir, const char *name, uint64_t bytes, char **ret_path,
                          struct hf_err *err)
{
    int r = hf_disk_check_name("volume", name, err);
    if (r < 0)
        return r;
    hf_auto_free char *path = volume_path(data_dir, name);
    if (access(path, F_OK) == 0) {
        *ret_path = hf_take_ptr(path);
        return 0;
    }
    hf_auto_free char *blank = NULL;
    hf_auto_staging struct hf_staging st = HF_STAGING_INIT;
    r = hf_disk_blank_of(data_dir, bytes, true, &blank, err);
    if (r == 0)
        r = hf_staging_begin(&st, data_dir, err);
    if (r == 0)
        r = hf_disk_clone(blank, st.image, err);
    if (r < 0)
        return r;
    r = hf_disk_sync_path(st.image);
    hf_killpoint("disk.volume.cloned");
    /* Not over an image that a racing call made: somebody may use that one already. */
    if (r == 0 && renameat2(AT_FDCWD, st.image, AT_FDCWD, path, RENAME_NOREPLACE) < 0 && errno != EEXIST)
        r = -errno;
    if (r < 0)
        return hf_err_set(err, r, "cannot make the volume %s: %s", path, strerror(-r));
    r = sync_volumes(data_dir, err);
    if (r == 0)
        *ret_path = hf_take_ptr(path);
    return r;
}

int hf_disk_volume_remove(const char *data_dir, const char *name, struct hf_err *err)
{
    int r = hf_disk_check_name("volume", name, err);
    if (r < 0)
        return r;
    hf_auto_free char *path = volume_path(data_dir, name);
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return 0;
    /* The exclusive lock is the proof that no loop device has the image. */
    struct hf_err why = {0};
    hf_auto_close int fd = hf_image_open_locked(path, false, &why);
    if (fd == -ENOENT)
        return 0;
    if (fd == -EBUSY)
        return hf_err_set(err, fd, "the volume %s is mounted in a sandbox; end that sandbox first", name);
    if (fd < 0)
        return hf_err_set(err, fd, "%s", why.msg);
    if (unlink(path) < 0 && errno != ENOENT)
        return hf_err_set(err, -errno, "cannot remove the volume %s: %s", path, strerror(errno));
    return sync_volumes(data_dir, err);
}
