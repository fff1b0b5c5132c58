/* Files by path: small whole-file reads and writes, and resolution under a root (openat2). */
#pragma once

#include <sys/types.h>

#include "base/err.h"

/* Opens rel below root_fd; no component, symlink or magic link can lead outside (RESOLVE_IN_ROOT |
 * RESOLVE_NO_MAGICLINKS). flags as open(2), O_CLOEXEC is added. The fd or -errno. */
int hf_open_in_root(int root_fd, const char *rel, int flags, mode_t mode) HF_MUST_USE;
/* As above and refuses symbolic links altogether (-ELOOP). */
int hf_open_in_root_nolink(int root_fd, const char *rel, int flags, mode_t mode) HF_MUST_USE;

/* Whole file as a NUL-terminated string of at most max bytes; -EMSGSIZE beyond. */
int hf_read_file(const char *path, size_t max, char **ret, size_t *ret_n) HF_MUST_USE;
int hf_read_file_at(int dir_fd, const char *path, size_t max, char **ret, size_t *ret_n) HF_MUST_USE;
/* Writes through a temporary name, fsync and rename: the old or the new content, never a part. */
int hf_write_file_atomic(const char *path, const void *p, size_t n, mode_t mode) HF_MUST_USE;
/* One write(2) to an existing file (procfs, cgroupfs). */
int hf_write_existing(const char *path, const char *s) HF_MUST_USE;
int hf_write_existing_at(int dir_fd, const char *path, const char *s) HF_MUST_USE;
/* mkdir -p; existing directories are fine. */
int hf_mkdir_p(const char *path, mode_t mode) HF_MUST_USE;
/* rm -r, stays on one file system, does not follow links; missing is success. */
int hf_remove_tree(const char *path) HF_MUST_USE;
/* All of n bytes, EINTR and short writes handled. */
int hf_write_all(int fd, const void *p, size_t n) HF_MUST_USE;
