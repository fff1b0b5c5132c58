/* The leaves of a sealed disk.img, kept beside it: the next snapshot of the same disk then reads only what
 * has changed. A file of this machine; one that does not give the hash of the manifest is as good as none. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/path.h"
#include "engine/disk/parts.h"

#define LEAVES_MAX ((size_t)(HF_SNAPSHOT_PART_BYTES_MAX / HF_HASH_REGION))

void hf_leaves_save(int dir_fd, const struct hf_leaves *l)
{
    hf_auto_close int fd =
        openat(dir_fd, "leaves.tmp", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0 && hf_write_all(fd, l->v, l->n * sizeof(*l->v)) == 0)
        (void)renameat(dir_fd, "leaves.tmp", dir_fd, "leaves");
}

static int load(int dir_fd, const char *want, struct hf_leaves *ret)
{
    hf_auto_free char *bytes = NULL;
    size_t n = 0;
    char have[HF_HASH_HEX];
    int r = hf_read_file_at(dir_fd, "leaves", LEAVES_MAX * sizeof(struct hf_leaf), &bytes, &n);
    if (r < 0)
        return r;
    hf_auto_leaves struct hf_leaves l = {.n = n / sizeof(*l.v)};
    l.v = hf_xcalloc(l.n + 1, sizeof(*l.v));
    memcpy(l.v, bytes, l.n * sizeof(*l.v));
    r = n % sizeof(*l.v) ? -EUCLEAN : hf_leaves_hash(&l, have);
    if (r == 0 && strcmp(have, want) != 0)
        r = -EUCLEAN;
    if (r < 0)
        return r;
    *ret = l;
    l = (struct hf_leaves){0};
    return 0;
}

static const struct hf_snapshot_part *disk_of(const struct hf_manifest *m)
{
    for (size_t i = 0; i < m->n_parts; i++)
        if (strcmp(m->parts[i].name, "disk.img") == 0)
            return &m->parts[i];
    return NULL;
}

int hf_leaves_base_open(const char *data_dir, const char *parent, struct hf_leaves_base *ret)
{
    hf_auto_manifest struct hf_manifest m = {0};
    hf_auto_close int dir_fd = -1;
    struct hf_err why;
    int r = *parent ? hf_parts_load(data_dir, parent, &dir_fd, &m, &why) : -ENOENT;
    const struct hf_snapshot_part *disk = r < 0 ? NULL : disk_of(&m);
    if (!disk || !disk->sha256[0])
        return r < 0 ? r : -ENOENT;
    hf_auto_close int fd = hf_parts_open_sized(dir_fd, disk, &why);
    if (fd < 0)
        return fd;
    /* The leaves are of what the file was when it was hashed. */
    hf_auto_json json_t *stamps = hf_stamps_read(dir_fd);
    r = hf_stamps_fit(stamps, disk, fd) ? load(dir_fd, disk->sha256, &ret->leaves) : -ESTALE;
    if (r == 0)
        ret->fd = hf_take_fd(&fd);
    return r;
}

void hf_leaves_base_done(struct hf_leaves_base *b)
{
    b->fd = hf_close(b->fd);
    hf_leaves_done(&b->leaves);
}
