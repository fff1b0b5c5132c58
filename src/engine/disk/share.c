/* Which blocks of a file are its own: extents and their reference counts, as the file system tells them. */
#include <dirent.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "engine/disk/disk.h"
#include "engine/disk/parts.h"
#include "engine/disk/pool.h"

#define EXTENTS_AT_ONCE 256u

struct sums {
    uint64_t exclusive, shared;
};

static int add_extents(int fd, struct sums *s)
{
    hf_auto_free struct fiemap *map =
        hf_xcalloc(1, sizeof(*map) + EXTENTS_AT_ONCE * sizeof(struct fiemap_extent));
    for (uint64_t at = 0;;) {
        map->fm_start = at;
        map->fm_length = FIEMAP_MAX_OFFSET - at;
        map->fm_extent_count = EXTENTS_AT_ONCE;
        map->fm_flags = map->fm_mapped_extents = 0;
        if (ioctl(fd, FS_IOC_FIEMAP, map) < 0)
            return -errno;
        for (uint32_t i = 0; i < map->fm_mapped_extents; i++) {
            const struct fiemap_extent *e = &map->fm_extents[i];
            *(e->fe_flags & FIEMAP_EXTENT_SHARED ? &s->shared : &s->exclusive) += e->fe_length;
            at = e->fe_logical + e->fe_length;
            if (e->fe_flags & FIEMAP_EXTENT_LAST)
                return 0;
        }
        if (map->fm_mapped_extents == 0)
            return 0;
    }
}

static int add_file(int fd, const struct stat *st, struct sums *s)
{
    int r = add_extents(fd, s);
    if (r != -EOPNOTSUPP && r != -ENOTTY)
        return r;
    s->exclusive += (uint64_t)st->st_blocks * 512; /* a file system without FIEMAP has no reflink */
    return 0;
}

/* Takes fd. Entries that vanish meanwhile are skipped. */
static int add_tree(int fd, struct sums *s)
{
    DIR *d = fdopendir(fd);
    if (!d) {
        (void)hf_close(fd);
        return -ENOMEM;
    }
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(d));) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        hf_auto_close int sub = openat(dirfd(d), e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (sub < 0 || fstat(sub, &st) < 0)
            continue;
        if (S_ISDIR(st.st_mode))
            r = add_tree(hf_take_fd(&sub), s);
        else if (S_ISREG(st.st_mode))
            r = add_file(sub, &st, s);
    }
    (void)closedir(d);
    return r;
}

int hf_disk_object_usage(const char *path, uint64_t *ret_exclusive, uint64_t *ret_shared)
{
    struct sums s = {0};
    struct stat st;
    hf_auto_close int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    int r = S_ISDIR(st.st_mode) ? add_tree(hf_take_fd(&fd), &s) : add_file(fd, &st, &s);
    if (r < 0)
        return r;
    *ret_exclusive = s.exclusive;
    *ret_shared = s.shared;
    return 0;
}

int hf_snapshot_usage(const char *data_dir, const char *id, uint64_t *ret_exclusive, uint64_t *ret_shared,
                      struct hf_err *err)
{
    int r = hf_disk_check_name("snapshot", id, err);
    if (r < 0)
        return r;
    hf_auto_free char *dir = hf_parts_path(data_dir, id);
    r = hf_disk_object_usage(dir, ret_exclusive, ret_shared);
    if (r == -ENOENT)
        return hf_err_set(err, r, "there is no snapshot %s", id);
    return r < 0 ? hf_err_set(err, r, "cannot measure snapshot %s: %s", id, strerror(-r)) : 0;
}
