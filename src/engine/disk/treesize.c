#include "engine/disk/treesize.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "base/map.h"

#define BLOCK 4096u
#define MIB (1ull << 20)
#define INODE_BYTES 256u
#define FAST_SYMLINK_MAX 59 /* a longer target takes a block */
#define DIR_ENTRY_BYTES 8u
#define EXTENTS_PER_BLOCK 340u /* of at most 128 MiB each; fragmentation in a fresh image is rare */

struct walk {
    struct hf_tree_size size;
    struct hf_map links; /* inodes with several names that were counted */
    dev_t dev;
};

static bool seen_before(struct walk *w, const struct stat *st)
{
    char key[32];
    int n = snprintf(key, sizeof(key), "%llu", (unsigned long long)st->st_ino);
    struct hf_str k = {key, (size_t)n};
    if (hf_map_get(&w->links, k))
        return true;
    (void)hf_map_put(&w->links, k, w);
    return false;
}

/* Attributes beyond what fits into the inode take a block. */
static bool has_xattrs(int dir_fd, const char *name)
{
    hf_auto_free char *path = hf_xasprintf("/proc/self/fd/%d/%s", dir_fd, name);
    return llistxattr(path, NULL, 0) > 0;
}

static int walk_dir(struct walk *w, int dir_fd);

static int walk_entry(struct walk *w, int dir_fd, const char *name)
{
    struct stat st;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (st.st_dev != w->dev || (!S_ISDIR(st.st_mode) && st.st_nlink > 1 && seen_before(w, &st)))
        return 0;
    w->size.inodes++;
    w->size.blocks += has_xattrs(dir_fd, name);
    uint64_t bytes = (uint64_t)st.st_size;
    if (S_ISREG(st.st_mode))
        /* mke2fs keeps holes. */
        w->size.blocks += HF_MIN((bytes + BLOCK - 1) / BLOCK, ((uint64_t)st.st_blocks + 7) / 8 + 1) +
                          bytes / (128 * MIB) / EXTENTS_PER_BLOCK;
    else if (S_ISLNK(st.st_mode) && bytes > FAST_SYMLINK_MAX)
        w->size.blocks++;
    if (!S_ISDIR(st.st_mode))
        return 0;
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : walk_dir(w, fd);
}

/* Consumes dir_fd. */
static int walk_dir(struct walk *w, int dir_fd)
{
    DIR *d = fdopendir(dir_fd);
    if (!d) {
        (void)hf_close(dir_fd);
        return -ENOMEM;
    }
    int r = 0;
    uint64_t entry_bytes = 0;
    for (struct dirent *e; r == 0 && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        entry_bytes += DIR_ENTRY_BYTES + (strlen(e->d_name) + 3) / 4 * 4;
        r = walk_entry(w, dirfd(d), e->d_name);
    }
    /* Half-full blocks after splits, and an index. */
    w->size.blocks += 1 + entry_bytes * 2 / BLOCK;
    (void)closedir(d);
    return r;
}

int hf_tree_size(const char *dir, struct hf_tree_size *ret)
{
    struct walk w = {0};
    struct stat st;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0) {
        int r = -errno;
        (void)hf_close(fd);
        return r;
    }
    w.dev = st.st_dev;
    int r = walk_dir(&w, fd);
    hf_map_done(&w.links);
    if (r < 0)
        return r;
    w.size.inodes += 16; /* the reserved ones, lost+found while it exists, slack */
    *ret = w.size;
    return 0;
}

uint64_t hf_tree_image_bytes(const struct hf_tree_size *s)
{
    uint64_t bytes = s->blocks * BLOCK + s->inodes * INODE_BYTES;
    bytes += bytes / 64 + 2 * MIB; /* bitmaps, descriptors, rounding of the inode tables per group */
    return (bytes + MIB - 1) / MIB * MIB;
}
