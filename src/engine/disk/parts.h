/* A snapshot's directory: its parts, manifest and stamps as files. Internal to engine/disk. */
#pragma once

#include "engine/disk/manifest.h"

/* The directory's descriptor, or -ENOENT. */
int hf_parts_open_dir(const char *data_dir, const char *id) HF_MUST_USE;
char *hf_parts_path(const char *data_dir, const char *id) HF_MUST_USE;
/* Fills m->parts with every file below the directory, without hashes. -EINVAL for one that is no regular
 * file, or has a name that is refused. */
int hf_parts_list(int dir_fd, struct hf_manifest *m, struct hf_err *err) HF_MUST_USE;
/* A descriptor of the part for reading, and its size; -EUCLEAN when it is missing or no regular file. */
int hf_parts_open(int dir_fd, const struct hf_snapshot_part *p, uint64_t *ret_bytes,
                  struct hf_err *err) HF_MUST_USE;
/* The same, which has to be of the size that the manifest says. */
int hf_parts_open_sized(int dir_fd, const struct hf_snapshot_part *p, struct hf_err *err) HF_MUST_USE;
/* All parts and the directories in which they are reach the disk. */
int hf_parts_sync(int dir_fd, const struct hf_manifest *m, struct hf_err *err) HF_MUST_USE;

/* -ENOENT when there is none. */
int hf_parts_read_manifest(int dir_fd, const char *id, struct hf_manifest *ret,
                           struct hf_err *err) HF_MUST_USE;
/* The directory and its manifest; the error names the snapshot. */
int hf_parts_load(const char *data_dir, const char *id, int *ret_dir_fd, struct hf_manifest *ret,
                  struct hf_err *err) HF_MUST_USE;
/* Flushes all parts, then writes the manifest, durably with the directory's own entry, then the stamps (those
 * of the parts hashed so far). */
int hf_parts_publish(const char *data_dir, int dir_fd, const struct hf_manifest *m, const json_t *stamps,
                     struct hf_err *err) HF_MUST_USE;
/* The directories below `dir` that the part is in. */
int hf_parts_make_dirs(const char *dir, const char *part_name) HF_MUST_USE;
/* Durable and atomic. The caller has the lock of hf_parts_lock, or nobody else knows the directory yet. */
int hf_parts_write_manifest(int dir_fd, const struct hf_manifest *m, struct hf_err *err) HF_MUST_USE;
/* Keeps a seal from bringing the manifest of a snapshot back that is being removed. Until dir_fd is closed.
 */
int hf_parts_lock(int dir_fd) HF_MUST_USE;

/* -EXDEV when this host can't start it. */
int hf_parts_check_host(const struct hf_manifest *m, struct hf_err *err) HF_MUST_USE;
/* -EXDEV unless `have`, the hash of the template here, is the one that it needs; NULL: `why` there is none.
 */
int hf_parts_check_template(const struct hf_manifest *m, const char *have, const char *why,
                            struct hf_err *err) HF_MUST_USE;
/* Removes what a failed import or clone has made so far. */
void hf_parts_give_up(const char *data_dir, const char *id);

/* The stamps: part name -> [bytes, ctime_ns, inode]. Always an object; empty when there are none. */
json_t *hf_stamps_read(int dir_fd) HF_MUST_USE;
bool hf_stamps_fit(const json_t *stamps, const struct hf_snapshot_part *p, int part_fd);
void hf_stamps_take(json_t *stamps, const struct hf_snapshot_part *p, int part_fd);
/* Not flushed, and a failure is none: without a stamp the part is hashed once more. */
void hf_stamps_write(int dir_fd, const json_t *stamps);

/* The leaves of disk.img. Not flushed, and a failure is none: the next snapshot's hash takes longer then. */
void hf_leaves_save(int dir_fd, const struct hf_leaves *l);
/* Those of another snapshot, when it is sealed and its disk unchanged; a negative errno otherwise. */
int hf_leaves_base_open(const char *data_dir, const char *id, struct hf_leaves_base *ret) HF_MUST_USE;
void hf_leaves_base_done(struct hf_leaves_base *b);

static inline void hf_jsonp(json_t **j)
{
    json_decref(*j);
}
#define hf_auto_json hf_cleanup(hf_jsonp)
