/* The disk pool of one data directory, as the rest of the engine uses it. The calls that the control plane
 * makes (volumes, templates, pool open and close) are declared in engine/driver.h; the import of a root file
 * system in engine/disk/template.h.
 *
 * Everything here blocks and may start programs (mke2fs …): call it from a worker thread. The helpers that
 * the supervisor needs (clone, loop, mount) are in engine/disk/loop.h. */
#pragma once

#include "base/err.h"
#include "engine/disk/loop.h"

#define HF_DISK_BLANK_DEFAULT (1ull << 30) /* bytes */
#define HF_DISK_BLANK_MIN (16ull << 20)
#define HF_DISK_BLANK_MAX (1ull << 40)

/* The path (heap) of the preformatted ext4 image of exactly that size, DATA/pool/blank/<bytes>.img, which is
 * made at the first call. Clone it, never write it. It is an overlay's writable layer: its root has the
 * empty directories "upper" and "work" (root:root 0755) and nothing else. Sizes are rounded up to 1 MiB;
 * -EINVAL outside HF_DISK_BLANK_MIN … MAX. */
int hf_disk_blank(const char *data_dir, uint64_t bytes, char **ret_path, struct hf_err *err) HF_MUST_USE;

struct hf_disk_pool_info {
    bool reflink;   /* clones cost nothing */
    bool on_image;  /* DATA/pool is the mount of DATA/pool.img */
    char note[200]; /* what is missing for reflink and how to get it; "" when nothing */
};
void hf_disk_pool_info(const char *data_dir, struct hf_disk_pool_info *ret);

/* Bytes that the pool's files occupy, by kind. Blocks that reflinks share are counted in each file. */
struct hf_disk_usage {
    uint64_t templates, cells, volumes, snapshots, blanks, staging;
    uint32_t n_templates, n_cells, n_volumes, n_snapshots;
};
int hf_disk_pool_usage(const char *data_dir, struct hf_disk_usage *ret, struct hf_err *err) HF_MUST_USE;

/* Bytes on the disk that only this file, or these files below a directory, have, and those that others have
 * too (reflinks). What two files of one directory share is shared. Where the pool has no reflink all is
 * exclusive. -ENOENT. */
int hf_disk_object_usage(const char *path, uint64_t *ret_exclusive, uint64_t *ret_shared) HF_MUST_USE;

/* New work is refused when less than this would be left: a twentieth of the pool, within these bounds. Boxes
 * that run already still grow into it. */
#define HF_POOL_LOW_PART 20u
#define HF_POOL_LOW_MIN (64ull << 20)
#define HF_POOL_LOW_MAX (2ull << 30)
uint64_t hf_disk_pool_low(uint64_t total_bytes);
/* Whether the pool has room for `need` bytes more (0: for something small) above its low-water mark; -ENOSPC
 * (HTTP 507) with a sentence that says what is left. max_bytes: the setting of the pool's size, as
 * hf_disk_pool_open gets it; a pool image that may still grow is grown first. A few system calls; some tens
 * of milliseconds when the pool grows, which is rare. Any thread. */
int hf_disk_pool_room(const char *data_dir, uint64_t need, uint64_t max_bytes,
                      struct hf_err *err) HF_MUST_USE;

/* Puts an image that has more than HF_DISK_PIECES_MAX pieces together again, so that cloning it stays cheap
 * (compact.c says how), also while a box is writing to it. To be called after each snapshot, when nobody
 * waits: it rewrites HF_DISK_COMPACT_AT_ONCE bytes at most, which the image then no longer shares with its
 * snapshots; the rest is for the next call. -ENOSPC when the pool is nearly full, -ECANCELED when *stop (may
 * be NULL) became true. */
#define HF_DISK_PIECES_MAX 600u
#define HF_DISK_COMPACT_AT_ONCE (64ull << 20)
struct hf_disk_compacted {
    uint32_t before, after; /* pieces */
    uint64_t bytes;         /* rewritten */
};
int hf_disk_compact(const char *data_dir, const char *image, const bool *stop, struct hf_disk_compacted *ret,
                    struct hf_err *err) HF_MUST_USE;

/* One thing in the pool, whoever knows it. */
enum hf_disk_kind {
    HF_DISK_TEMPLATE,
    HF_DISK_CELL,
    HF_DISK_VOLUME,
    HF_DISK_SNAPSHOT,
    HF_DISK_BLANK,
    HF_DISK_STAGING, /* half-made */
    HF_DISK_KINDS,
};
const char *hf_disk_kind_name(enum hf_disk_kind kind); /* "template" "cell" … */
struct hf_disk_object {
    enum hf_disk_kind kind;
    char name[64];
    bool complete;              /* false: a snapshot without a manifest */
    int64_t changed_ms;         /* wall clock */
    uint64_t exclusive, shared; /* bytes, as of hf_disk_object_usage; 0 unless measured */
};
/* Calls fn for each. What has a name that the pool never gives is left out. Measuring asks for every extent.
 */
int hf_disk_each_object(const char *data_dir, bool measure,
                        void (*fn)(void *arg, const struct hf_disk_object *o), void *arg,
                        struct hf_err *err) HF_MUST_USE;
/* Removes one. Missing is success; -EBUSY while a box or an operation uses it. Whether a row still wants it
 * is the caller's business. */
int hf_disk_object_remove(const char *data_dir, enum hf_disk_kind kind, const char *name,
                          struct hf_err *err) HF_MUST_USE;

/* Compares a template's image with the SHA-256 in its manifest (DATA/pool/templates/<id>.json). -EUCLEAN when
 * they differ, -ENOENT when there is no such template. Reads the whole image. */
int hf_disk_template_verify(const char *data_dir, const char *template_id, struct hf_err *err) HF_MUST_USE;
