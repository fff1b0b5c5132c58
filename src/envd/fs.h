/* Files of the box as envd sees them: safe opening, directories made for a user, EntryInfo, metadata.
 *
 * envd works as root of the box and its own descriptors must stay its own: every open refuses the kernel's
 * magic links (/proc/self/fd/N), devices, FIFOs and sockets. Ownership is set on opened descriptors only.
 * No function here depends on the loop; all are safe in worker threads. */
#pragma once

#include <sys/stat.h>

#include "base/buf.h"
#include "envd/users.h"

#define FS_METADATA_PREFIX "user.e2b."
#define FS_METADATA_KEY_MAX 246u    /* 255 (kernel limit of a name) less the prefix */
#define FS_METADATA_TOTAL_MAX 4096u /* bytes of all keys and values of one file */
#define FS_MODE_STRING_MAX 24

/* openat2 without magic links; O_CLOEXEC is added. The fd or -errno. */
int fs_openat(int dir_fd, const char *path, int flags, mode_t mode) HF_MUST_USE;
/* Opens a regular file for reading; err has the text and status for /files. The fd. */
int fs_open_read(const char *path, struct stat *ret_st, struct hf_err *err) HF_MUST_USE;

struct fs_target {
    int fd;
    bool created; /* this call made the file: a failed upload takes it away again */
    dev_t dev;
    ino_t ino;
};
#define FS_TARGET_NONE ((struct fs_target){.fd = -1})

/* Opens path for writing from its start: missing parents are made (0755) and a new file is 0644, both owned
 * by u; an existing file keeps its inode, is emptied and given to u. Follows symbolic links as open(2) does.
 * want is the number of bytes that will be written, 0 if unknown: 507 when the file system can't hold them.
 */
int fs_open_write(const char *path, const struct envd_user *u, uint64_t want, struct fs_target *ret,
                  struct hf_err *err) HF_MUST_USE;
/* Closes t; when undo is set and this upload created the file, the file is removed (if it is still it). */
int fs_target_close(struct fs_target *t, const char *path, bool undo) HF_MUST_USE;

/* mkdir -p, component by component; new directories belong to u. -ENOTDIR when a file is in the way. */
int fs_mkdirs(const char *path, const struct envd_user *u, struct hf_err *err) HF_MUST_USE;

/* err for a failed file operation, with the HTTP status that fits (ENOSPC 507 …). what: "writing". Returns r.
 */
int fs_err(struct hf_err *err, int r, const char *what, const char *path);

/* As Go prints os.FileMode: "-rw-r--r--", "drwxr-xr-x", "Lrwxrwxrwx", "Dcrw-rw-rw-", "ugrwxr-xr-x". */
void fs_mode_string(mode_t mode, char out[FS_MODE_STRING_MAX]);

/* EntryInfo as proto3 JSON of the entry `name` in dir_fd (as fstatat(2)). shown is its path in the answer,
 * real the same entry's path for xattrs and link targets. memo may be NULL. 0 or -errno. */
int fs_entry(int dir_fd, const char *name, const char *shown, const char *real, struct users_names *memo,
             json_t **ret) HF_MUST_USE;

/* Sets key to the text. Bytes that are not UTF-8 become U+FFFD, and key + "Base64" has the exact bytes. */
void fs_set_text(json_t *obj, const char *key, const char *p, size_t n);

/* Metadata (user.e2b.* attributes). -EINVAL with err "invalid metadata: …". meta is an object of strings. */
int fs_metadata_check(const json_t *meta, struct hf_err *err) HF_MUST_USE;
/* Replaces all metadata of the file. Without metadata a file system that has no attributes is fine. */
int fs_metadata_write(int fd, const json_t *meta, const char *path, struct hf_err *err) HF_MUST_USE;
/* New object, or NULL when there is none. */
json_t *fs_metadata_read(const char *path);
