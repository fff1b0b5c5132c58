/* How large an ext4 image must be to hold a tree. Internal to engine/disk. */
#pragma once

#include "base/base.h"

struct hf_tree_size {
    uint64_t blocks; /* of 4 KiB: file contents, directories, long symbolic links, attribute blocks */
    uint64_t inodes; /* hard links counted once */
};

/* Walks the tree below dir (one file system, symbolic links not followed). */
int hf_tree_size(const char *dir, struct hf_tree_size *ret) HF_MUST_USE;
/* The image's size, a multiple of 1 MiB; an estimate that is almost always enough. Adjusts nothing. */
uint64_t hf_tree_image_bytes(const struct hf_tree_size *s);
