/* Shared by the parts of engine/disk; not for others. */
#pragma once

#include "base/err.h"
#include "engine/disk/loop.h"

/* A place for something half-made: DATA/pool/staging/<random>/ with the (not yet existing) paths tree and
 * image. A shared lock keeps hf_disk_pool_open of another process from sweeping it away. */
struct hf_staging {
    char *dir, *tree, *image;
    int lock_fd;
};
#define HF_STAGING_INIT ((struct hf_staging){.lock_fd = -1})
#define hf_auto_staging hf_cleanup(hf_staging_end)
int hf_staging_begin(struct hf_staging *st, const char *data_dir, struct hf_err *err) HF_MUST_USE;
void hf_staging_end(struct hf_staging *st); /* removes everything in it; accepts HF_STAGING_INIT */

int hf_disk_sync_path(const char *path) HF_MUST_USE; /* fsync of a file or directory */
/* As hf_disk_blank; volume: the kind of blank that volumes are cloned from. */
int hf_disk_blank_of(const char *data_dir, uint64_t bytes, bool volume, char **ret_path,
                     struct hf_err *err) HF_MUST_USE;

/* The SHA-256 that the template's manifest says its image has; -ENOENT when the pool has no such template. */
int hf_disk_template_hash(const char *data_dir, const char *template_id, char ret_hex[65],
                          struct hf_err *err) HF_MUST_USE;

/* Room that is left to the host when the pool image is sized, and not counted as free space of the pool. */
#define HF_POOL_HOST_RESERVE (2ull << 30)
/* XFS refuses to be smaller than 300 MiB. */
#define HF_POOL_IMAGE_MIN (512ull << 20)
#define HF_POOL_NAME_MAX 63
/* A pool image grows by this much at least. */
#define HF_POOL_GROW_MIN (256ull << 20)

/* How large the image may be: what is wanted, bounded by what the host's disk can ever hold (used: what the
 * image occupies there now). */
uint64_t hf_pool_image_target(uint64_t max_bytes, uint64_t used, uint64_t host_free);
/* Makes the mounted pool image as large as it may be. 1: it has grown; 0: nothing to do, or no image. */
int hf_pool_grow(const char *data_dir, uint64_t max_bytes, struct hf_err *err) HF_MUST_USE;
/* The lock of those who make, mount or grow the pool; a descriptor to close. */
int hf_pool_lock(const char *data_dir, struct hf_err *err) HF_MUST_USE;

/* name: [a-z0-9-]{1,63}, not starting with '-'. what: "volume" or "template", for the message. */
int hf_disk_check_name(const char *what, const char *name, struct hf_err *err) HF_MUST_USE;
/* Whether path is the root of a mount. */
bool hf_disk_is_mount(const char *path);
/* Whether some loop device has the file image (a path without symbolic links) as its backing file. */
bool hf_disk_image_attached(const char *image);
/* The loop device of that very file (by inode, not by name alone): true and its path. */
bool hf_disk_image_device(const char *image, char dev[HF_LOOP_DEV_MAX]);
/* Calls fn for each mount point of this process's mount namespace whose device is a loop device on image;
 * stops at the first negative result and returns it. */
int hf_disk_each_mount(const char *image, int (*fn)(void *arg, const char *mount_point),
                       void *arg) HF_MUST_USE;
