#include "engine/disk/disk.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/path.h"
#include "engine/disk/ext4.h"
#include "engine/disk/pool.h"

#define MIB (1ull << 20)

int hf_disk_sync_path(const char *path)
{
    hf_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        return -errno;
    return 0;
}

/* The tree that a cell's blank starts with. */
static int make_cell_tree(const char *dir, struct hf_err *err)
{
    hf_auto_free char *upper = hf_xasprintf("%s/upper", dir);
    hf_auto_free char *work = hf_xasprintf("%s/work", dir);
    /* chmod, since a umask must not decide the modes in the image. */
    if (mkdir(dir, 0755) < 0 || mkdir(upper, 0755) < 0 || mkdir(work, 0755) < 0 || chmod(dir, 0755) < 0 ||
        chmod(upper, 0755) < 0 || chmod(work, 0755) < 0)
        return hf_err_set(err, -errno, "cannot make %s: %s", dir, strerror(errno));
    return 0;
}

static int make_blank(const char *data_dir, const char *path, uint64_t bytes, bool volume, struct hf_err *err)
{
    hf_auto_staging struct hf_staging st = HF_STAGING_INIT;
    hf_auto_free char *blanks = hf_xasprintf("%s/pool/blank", data_dir);
    int r = hf_mkdir_p(blanks, 0700);
    if (r < 0)
        return hf_err_set(err, r, "cannot make %s: %s", blanks, strerror(-r));
    r = hf_staging_begin(&st, data_dir, err);
    if (r == 0 && !volume)
        r = make_cell_tree(st.tree, err);
    if (r == 0)
        r = hf_ext4_make(st.image, bytes, volume ? HF_EXT4_VOLUME : HF_EXT4_CELL, volume ? NULL : st.tree, 0,
                         err);
    if (r < 0)
        return r;
    hf_killpoint("disk.blank.made");
    r = hf_disk_sync_path(st.image);
    /* Two processes may do this at once: the images are equal, the last rename stays. */
    if (r == 0 && rename(st.image, path) < 0)
        r = -errno;
    return r < 0 ? hf_err_set(err, r, "cannot make the image %s: %s", path, strerror(-r)) : 0;
}

int hf_disk_blank_of(const char *data_dir, uint64_t bytes, bool volume, char **ret_path, struct hf_err *err)
{
    if (bytes < HF_DISK_BLANK_MIN || bytes > HF_DISK_BLANK_MAX)
        return hf_err_set(err, -EINVAL,
                          "a disk of %" PRIu64 " bytes is refused: from %llu MiB to %llu GiB are possible",
                          bytes, HF_DISK_BLANK_MIN >> 20, HF_DISK_BLANK_MAX >> 30);
    bytes = (bytes + MIB - 1) / MIB * MIB;
    hf_auto_free char *path =
        hf_xasprintf("%s/pool/blank/%s%" PRIu64 ".img", data_dir, volume ? "volume-" : "", bytes);
    if (access(path, F_OK) < 0) {
        int r = make_blank(data_dir, path, bytes, volume, err);
        if (r < 0)
            return r;
    }
    *ret_path = hf_take_ptr(path);
    return 0;
}

int hf_disk_blank(const char *data_dir, uint64_t bytes, char **ret_path, struct hf_err *err)
{
    return hf_disk_blank_of(data_dir, bytes, false, ret_path, err);
}
