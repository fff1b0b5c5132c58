/* Makes ext4 images in files. Internal to engine/disk; blocking, starts mke2fs, tune2fs, debugfs, e2fsck. */
#pragma once

#include "base/err.h"

/* What an image is for; decides its options. */
enum hf_ext4_kind {
    HF_EXT4_CELL,     /* an overlay's writable layer: upper/ and work/; lives no longer than its sandbox */
    HF_EXT4_VOLUME,   /* survives sandboxes: journal and barriers; root 1000:1000 */
    HF_EXT4_TEMPLATE, /* read-only: no journal */
};

/* Makes a new file `path` of that size (a multiple of 4096) with an ext4 file system. tree: a directory to
 * copy in with owners, modes, xattrs and hard links, or NULL. inodes: 0 = by size. Removes the file on
 * failure; -ENOSPC when the tree does not fit or the disk is full. Not fsynced. */
int hf_ext4_make(const char *path, uint64_t bytes, enum hf_ext4_kind kind, const char *tree, uint64_t inodes,
                 struct hf_err *err) HF_MUST_USE;
/* e2fsck -fn; -EUCLEAN when the image is damaged. */
int hf_ext4_check(const char *path, struct hf_err *err) HF_MUST_USE;
