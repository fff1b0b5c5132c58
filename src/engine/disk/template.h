/* Import of a root file system that somebody sends as a tar stream.
 *
 *   begin -> feed … feed -> finish (or abort at any point)
 *
 * Formats: ustar, pax, GNU tar; plain or compressed with gzip, zstd or xz. All calls block and belong on a
 * worker thread, one at a time per import; a thread of the import itself unpacks. */
#pragma once

#include "base/err.h"

/* What one archive may unpack to. */
#define HF_TEMPLATE_BYTES_MAX (32ull << 30)
#define HF_TEMPLATE_ENTRIES_MAX 1000000u
#define HF_TEMPLATE_DEPTH_MAX 128u /* directories in one name */

struct hf_template_limits {
    uint64_t bytes; /* sum of the sizes of all files; 0 = HF_TEMPLATE_BYTES_MAX */
    uint32_t entries;
};

struct hf_template_stats {
    uint64_t bytes;
    uint32_t entries;
    uint32_t devices_skipped; /* entries below /dev that were left out: boxes get a /dev of their own */
};

/* Unpacks the archive that can be read from tar_fd (a pipe, socket or file) into the existing, empty
 * directory dest_dir, with owners, modes (set-uid included), times, capabilities and user attributes.
 *
 * Absolute names are taken relative to dest_dir. Refused, with the entry's name in err: "..", a name that
 * leads through a symbolic link, a hard link to something outside, device nodes outside /dev, more than the
 * limits (NULL = defaults). On failure dest_dir has a part of the archive: remove it. ret may be NULL.
 * -EINVAL bad archive, -EMSGSIZE over a limit, -ENOSPC. Starts a thread and joins it. */
int hf_template_extract(int tar_fd, const char *dest_dir, const struct hf_template_limits *limits,
                        struct hf_template_stats *ret, struct hf_err *err) HF_MUST_USE;

/* Makes an unpacked root file system fit for a box: refuses one without /bin/sh; adds the directories that a
 * box mounts over (/proc /sys /dev /run /tmp, /workspace owned by 1000:1000), and the user and group `user`
 * (uid 1000, /home/user, with sudo where sudo is installed) if there is none. */
int hf_template_prepare(const char *root_dir, struct hf_err *err) HF_MUST_USE;

struct hf_template_import;

/* NULL and err on failure; -EEXIST when the template exists. The pool must be open. */
struct hf_template_import *hf_template_import_begin(const char *data_dir, const char *template_id,
                                                    struct hf_err *err) HF_MUST_USE;
/* Bytes of the archive, in order. Blocks while the unpacking is behind. A failure is final: abort then. */
int hf_template_import_feed(struct hf_template_import *imp, const void *p, size_t n,
                            struct hf_err *err) HF_MUST_USE;
/* The archive is complete: unpacks the rest, prepares the tree, builds the image (see
 * hf_disk_template_build). Frees imp in any case. */
int hf_template_import_finish(struct hf_template_import *imp, uint64_t *ret_bytes,
                              struct hf_err *err) HF_MUST_USE;
/* Drops everything; imp may be NULL. */
void hf_template_import_abort(struct hf_template_import *imp);
