/* What dumps and restores of processes share. */
#pragma once

#include "engine/shim/shim.h"

#define SHIM_DUMP_LOG "dump.log"       /* in RUN/<n> */
#define SHIM_RESTORE_LOG "restore.log" /* likewise */

/* Descriptors of PID 1 that come from outside the box. */
enum shim_outside {
    SHIM_OUTSIDE_STDERR,
    SHIM_OUTSIDE_CTL,
    SHIM_OUTSIDE_ENVD,
    SHIM_OUTSIDE_CG, /* and four more */
    SHIM_OUTSIDE_N = SHIM_OUTSIDE_CG + 5,
};
extern const char *const shim_outside_roles[SHIM_OUTSIDE_N]; /* keys of dir/box */

#define SHIM_LISTENERS_NONBLOCK "listeners_nonblock" /* likewise */

/* Calls fn for each mount point of the process but its root, in the order of its mount table. */
int shim_each_mount(pid_t pid, int (*fn)(void *arg, const char *path), void *arg) HF_MUST_USE;

/* tmpfs.c: what is in the box's memory file systems, as a tar (ustar with pax names) in dir/tmpfs.tar. */
int shim_tmpfs_save(struct shim *s, int dir_fd, struct hf_err *err) HF_MUST_USE;
/* Puts it below root_fd. The caller acts as the box's root inside its namespaces; the archive is not trusted.
 */
int shim_tmpfs_load(int tar_fd, int root_fd, struct hf_err *err) HF_MUST_USE;
