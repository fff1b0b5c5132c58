/* Keeps a disk image that is snapshot again and again in few pieces.
 *
 * After a snapshot both files share all blocks; each scattered write then gets a block of its own, and the
 * map falls to pieces, two for a write. A reflink costs about 8 us for each piece, so 30,000 of them cost as
 * much as a copy, in the pause that the sandbox feels. Therefore the regions with the most pieces are copied
 * to a new file, where they are in one piece, and the image is told to share that one's blocks
 * (FIDEDUPERANGE). The kernel does so only when both have the same bytes, under its own lock: whoever writes
 * to the image meanwhile loses nothing, and the region stays as it was. */
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "engine/disk/disk.h"
#include "engine/disk/pool.h"
#include "engine/driver.h"

#define REGION (1u << 20)
#define EXTENTS_AT_ONCE 512u

struct job {
    const char *data_dir;
    int image_fd, dir_fd;
    uint64_t bytes;
    uint32_t *pieces; /* by region */
    size_t n;
    uint32_t total;
};

static int count_pieces(int fd, uint32_t *ret)
{
    struct fiemap map = {.fm_length = FIEMAP_MAX_OFFSET};
    if (ioctl(fd, FS_IOC_FIEMAP, &map) < 0)
        return -errno;
    *ret = map.fm_mapped_extents;
    return 0;
}

static int read_map(struct job *j)
{
    hf_auto_free struct fiemap *map =
        hf_xcalloc(1, sizeof(*map) + EXTENTS_AT_ONCE * sizeof(struct fiemap_extent));
    j->total = 0;
    for (uint64_t at = 0;;) {
        map->fm_start = at;
        map->fm_length = FIEMAP_MAX_OFFSET - at;
        map->fm_extent_count = EXTENTS_AT_ONCE;
        map->fm_flags = map->fm_mapped_extents = 0;
        if (ioctl(j->image_fd, FS_IOC_FIEMAP, map) < 0)
            return -errno;
        for (uint32_t i = 0; i < map->fm_mapped_extents; i++) {
            const struct fiemap_extent *e = &map->fm_extents[i];
            if (e->fe_logical / REGION < j->n)
                j->pieces[e->fe_logical / REGION]++;
            j->total++;
            at = e->fe_logical + e->fe_length;
            if (e->fe_flags & FIEMAP_EXTENT_LAST)
                return 0;
        }
        if (map->fm_mapped_extents == 0)
            return 0;
    }
}

static int copy_region(const struct job *j, int tmp_fd, uint64_t at, size_t n, char *chunk)
{
    ssize_t got = pread(j->image_fd, chunk, n, (off_t)at);
    if (got != (ssize_t)n)
        return got < 0 ? -errno : -EIO;
    if (fallocate(tmp_fd, 0, 0, (off_t)n) < 0) /* in one piece */
        return -errno;
    ssize_t put = pwrite(tmp_fd, chunk, n, 0);
    return put == (ssize_t)n ? 0 : put < 0 ? -errno : -EIO;
}

/* 1: now in one piece; 0: somebody wrote to it. */
static int mend_region(const struct job *j, size_t region, char *chunk)
{
    uint64_t at = (uint64_t)region * REGION;
    size_t n = (size_t)HF_MIN((uint64_t)REGION, j->bytes - at);
    hf_auto_close int tmp_fd = openat(j->dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (tmp_fd < 0)
        return -errno;
    int r = copy_region(j, tmp_fd, at, n, chunk);
    if (r < 0)
        return r;
    hf_auto_free struct file_dedupe_range *ask =
        hf_xcalloc(1, sizeof(*ask) + sizeof(struct file_dedupe_range_info));
    ask->src_length = n;
    ask->dest_count = 1;
    ask->info[0].dest_fd = j->image_fd;
    ask->info[0].dest_offset = at;
    if (ioctl(tmp_fd, FIDEDUPERANGE, ask) < 0)
        return -errno;
    int status = ask->info[0].status;
    return status < 0 ? status : status == FILE_DEDUPE_RANGE_SAME;
}

/* The regions with more pieces than the threshold; the threshold falls by halves, so the worst come first. */
static int mend_all(struct job *j, uint32_t want, const bool *stop, struct hf_disk_compacted *ret)
{
    hf_auto_free char *chunk = hf_xmalloc(REGION);
    for (uint32_t limit = REGION / 4096 / 2; limit >= 1; limit /= 2) {
        for (size_t i = 0; i < j->n; i++) {
            if (j->pieces[i] <= limit)
                continue;
            if (j->total <= want || ret->bytes >= HF_DISK_COMPACT_AT_ONCE)
                return 0;
            if (stop && __atomic_load_n(stop, __ATOMIC_RELAXED))
                return -ECANCELED;
            int r = mend_region(j, i, chunk);
            if (r < 0)
                return r;
            if (r > 0) {
                j->total -= j->pieces[i] - 1;
                ret->bytes += REGION;
            }
            j->pieces[i] = 0; /* done or busy: not again */
        }
    }
    return 0;
}

static int compact(struct job *j, const bool *stop, struct hf_disk_compacted *ret, struct hf_err *err)
{
    uint64_t left = 0, total = 0;
    int r = hf_disk_pool_space(j->data_dir, &left, &total);
    if (r == 0 && left < total / 4)
        r = -ENOSPC;
    if (r < 0)
        return hf_err_set(err, r, "a disk image is not put together: the pool has no room to spare");
    j->n = (size_t)((j->bytes + REGION - 1) / REGION);
    j->pieces = hf_xcalloc(j->n ? j->n : 1, sizeof(*j->pieces));
    r = read_map(j);
    if (r == 0)
        r = mend_all(j, HF_DISK_PIECES_MAX / 2, stop, ret);
    free(j->pieces);
    if (r == 0)
        r = count_pieces(j->image_fd, &ret->after);
    return r < 0 ? hf_err_set(err, r, "cannot put a disk image together: %s", strerror(-r)) : 0;
}

int hf_disk_compact(const char *data_dir, const char *image, const bool *stop, struct hf_disk_compacted *ret,
                    struct hf_err *err)
{
    struct stat st;
    struct hf_disk_compacted done = {0};
    hf_auto_free char *staging = hf_xasprintf("%s/pool/staging", data_dir);
    hf_auto_close int fd = open(image, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    hf_auto_close int dir_fd = open(staging, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || dir_fd < 0 || fstat(fd, &st) < 0)
        return hf_err_set(err, -errno, "cannot open the disk image %s: %s", image, strerror(errno));
    int r = count_pieces(fd, &done.before);
    if (r == -EOPNOTSUPP || r == -ENOTTY)
        r = 0; /* no reflinks here, so nothing falls to pieces */
    else if (r < 0)
        return hf_err_set(err, r, "cannot read the map of %s: %s", image, strerror(-r));
    done.after = done.before;
    struct job j = {.data_dir = data_dir, .image_fd = fd, .dir_fd = dir_fd, .bytes = (uint64_t)st.st_size};
    if (done.before > HF_DISK_PIECES_MAX)
        r = compact(&j, stop, &done, err);
    if (r == 0)
        *ret = done;
    return r;
}
