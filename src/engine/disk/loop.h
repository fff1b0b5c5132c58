/* Images as block devices: clone a file by reflink, attach it to a loop device, mount it detached.
 *
 * Depends on base and the kernel only, starts no thread and runs no program: the static, single-threaded
 * supervisor links this as well as the daemon. All calls block. */
#pragma once

#include <sys/types.h>

#include "base/err.h"

#define HF_LOOP_DEV_MAX 32
/* How long hf_loop_attach goes on after losing the race for a free device again and again. */
#define HF_LOOP_ATTACH_TIMEOUT_MS 10000

/* Attaches image_fd to a free loop device with autoclear and returns a descriptor of that device (dev gets
 * its path, "/dev/loop7"). The device detaches itself when the last user (this descriptor, a mount) is gone,
 * so close the descriptor after mounting. The device keeps the same open file description as image_fd: a
 * flock taken on image_fd lasts exactly as long as the device. Any number of processes may race. */
int hf_loop_attach(int image_fd, bool read_only, char dev[HF_LOOP_DEV_MAX], struct hf_err *err) HF_MUST_USE;

/* As above; direct: the device bypasses the page cache of the file system below it where that can (the pool
 * image: otherwise every page would be cached twice). */
int hf_loop_attach_direct(int image_fd, char dev[HF_LOOP_DEV_MAX], struct hf_err *err) HF_MUST_USE;

/* Mounts the file system on dev without attaching it to a directory and returns the mount's descriptor
 * (place it with move_mount, or let close(2) drop it). attr: MOUNT_ATTR_* of <sys/mount.h>; read_only adds
 * the read-only super block. options: "key=value,flag" or NULL. */
int hf_mount_detached(const char *fs_type, const char *dev, bool read_only, uint64_t attr,
                      const char *options, struct hf_err *err) HF_MUST_USE;
/* Attaches a detached mount at the existing directory path. */
int hf_mount_place(int mount_fd, const char *path, struct hf_err *err) HF_MUST_USE;
/* Sectors written to a block device since it exists; UINT64_MAX when that can't be told. */
uint64_t hf_block_writes(dev_t dev);
/* hf_loop_attach and hf_mount_detached of an ext4 image in one; the device goes away with the mount. */
int hf_image_mount(int image_fd, bool read_only, uint64_t attr, const char *options,
                   struct hf_err *err) HF_MUST_USE;

/* A device that detaches itself drops its file a few milliseconds after the umount; a lock waits that out. */
#define HF_IMAGE_LOCK_WAIT_MS 1000

/* Opens an image file and takes its lock: exclusive when it is going to be written, shared for readers.
 * The descriptor, or -EBUSY when somebody else still holds it after HF_IMAGE_LOCK_WAIT_MS, or -ENOENT (also
 * when the file was removed meanwhile). */
int hf_image_open_locked(const char *path, bool read_only, struct hf_err *err) HF_MUST_USE;

/* Makes dst (which must not exist; mode 0600) a copy of the file src: by reflink where the file system can
 * (returns 0), else a sparse copy (returns 1). Removes dst again on failure. Not fsynced. */
int hf_disk_clone(const char *src, const char *dst, struct hf_err *err) HF_MUST_USE;
/* What was written to the file reaches the disk. A reflink does this first as well: done before a barrier,
 * the clone inside of it takes under a millisecond instead of the time of all that writing. */
int hf_disk_flush(const char *path, struct hf_err *err) HF_MUST_USE;
