/* Snapshots on the disk: DATA/pool/snapshots/<id>/, one directory each.
 *
 *   disk.img       the writable layer, a reflink
 *   box            what the driver needs to start from it (opaque here)
 *   mem/           images of the processes, kind "full" only
 *   tmpfs.tar      what was in the box's memory file systems, kind "full" only
 *   manifest.json  written last, by rename: a directory without one is no snapshot
 *   stamps         size, ctime and inode of each part when its hash was taken
 *   leaves         the hashes that the hash of disk.img was made from; this and stamps are of this machine,
 *                  and never exported
 *
 * The manifest is versioned JSON (docs/snapshots.md): kind, ids, lineage, limits, what the host must have,
 * and for each part its name, size and SHA-256. A commit writes it with the hashes of small parts; the hashes
 * of the large ones (disk, pages) are null until hf_snapshot_seal has filled them in, in the background. A
 * hash is taken over the SHA-256 of each region of 1 MiB that is not all zero, preceded by its offset, so it
 * costs what is used and not what is promised; and of a disk that shares blocks with its parent's, what has
 * changed.
 *
 * All calls block: worker threads only. */
#pragma once

#include <jansson.h>

#include "base/err.h"

#define HF_SNAPSHOT_VERSION 1
#define HF_SNAPSHOT_PART_MAX 4096u /* parts of one snapshot (files below mem/ are parts) */
#define HF_SNAPSHOT_MANIFEST_MAX (4u << 20)
#define HF_SNAPSHOT_HASH_AT_ONCE (1u << 20) /* parts up to this size are hashed by the commit */

struct hf_snapshot_meta {
    char id[64];
    bool memory;              /* kind "full", else "disk" */
    char template_id[64];     /* the image under the writable layer */
    char template_sha256[65]; /* of that image; a foreign pool must have the same one. The commit fills it in,
                               * and disk_bytes, whatever the caller's say */
    char parent[64], sandbox_id[64];
    uint64_t generation;
    uint64_t disk_bytes; /* size of the writable layer, disk.img */
    int64_t created_ms;
    json_t
        *config; /* object: what the control plane wants back (limits, mounts, metadata, network …); owned */
};
void hf_snapshot_meta_done(struct hf_snapshot_meta *m);

/* Makes the empty directory; one without a manifest is emptied first. *ret_dir is heap. -EEXIST when there is
 * a snapshot of that id. id: [a-z0-9-]{1,63}. */
int hf_snapshot_begin(const char *data_dir, const char *id, char **ret_dir, struct hf_err *err) HF_MUST_USE;
/* Flushes the parts and writes the manifest: from here on it is a snapshot. Idempotent. Every file below the
 * directory is a part; -EINVAL for anything else in it, without disk.img, or when there is something below
 * mem/ and the kind is not "full" (or the reverse). -ENOENT: the pool has no such template. */
int hf_snapshot_commit(const char *data_dir, const struct hf_snapshot_meta *m,
                       struct hf_err *err) HF_MUST_USE;
/* Takes the hashes that are missing. Idempotent; -ECANCELED when *stop became true. */
int hf_snapshot_seal(const char *data_dir, const char *id, const bool *stop, struct hf_err *err) HF_MUST_USE;
/* Reads the manifest and checks every part: there, of the right size, unchanged since it was hashed (by its
 * stamp; hashed again when that differs), and that this host can start it. -ENOENT no such snapshot; -EUCLEAN
 * damaged, with the part's name; -EPROTONOSUPPORT another version; -EXDEV for another kind of host (machine
 * type, missing processor feature, template image of another hash), with what is missing. ret may be NULL. */
int hf_snapshot_open(const char *data_dir, const char *id, struct hf_snapshot_meta *ret,
                     struct hf_err *err) HF_MUST_USE;
/* The same, every part hashed; those without a hash so far are named in *ret_unsealed (a count). */
int hf_snapshot_verify(const char *data_dir, const char *id, unsigned *ret_unsealed,
                       struct hf_err *err) HF_MUST_USE;
/* Missing is success. The manifest goes first. */
int hf_snapshot_remove(const char *data_dir, const char *id, struct hf_err *err) HF_MUST_USE;
/* A second snapshot of the same content, all parts by reflink; its parent is the first one. What was begun
 * under the id `to` and not committed is replaced. */
int hf_snapshot_clone(const char *data_dir, const char *from, const char *to, struct hf_err *err) HF_MUST_USE;
/* Bytes on the disk that only this snapshot has, and those that it shares with others (reflinks). */
int hf_snapshot_usage(const char *data_dir, const char *id, uint64_t *ret_exclusive, uint64_t *ret_shared,
                      struct hf_err *err) HF_MUST_USE;
/* Calls fn for each directory; complete: it has a manifest. */
int hf_snapshot_each(const char *data_dir, void (*fn)(void *arg, const char *id, bool complete), void *arg,
                     struct hf_err *err) HF_MUST_USE;

/* One stream: a tar (pax, sparse files as such) compressed with zstd; manifest.json is its first entry, so a
 * reader can refuse early. Seals first. with_template: the template's image goes along, as a part. */
int hf_snapshot_export(const char *data_dir, const char *id, bool with_template, int out_fd,
                       struct hf_err *err) HF_MUST_USE;
/* Reads such a stream from in_fd into the snapshot `id` (a new id, whatever the stream says); every hash is
 * checked before the manifest is written. The template's image is installed when the pool lacks it; -EXDEV
 * when it is neither here nor in the stream. */
int hf_snapshot_import(const char *data_dir, const char *id, int in_fd, struct hf_snapshot_meta *ret,
                       struct hf_err *err) HF_MUST_USE;
