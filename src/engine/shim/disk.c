/* The shim's mounts. All of them are detached: they are in no mount namespace of the host, nobody can see or
 * keep them, and they end with the last descriptor and the box's own namespace. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/path.h"
#include "engine/disk/loop.h"
#include "engine/shim/shim.h"

#define TMPFS_BYTES (1ull << 20)

static int clone_tree(const char *path, uint64_t attrs, const char *what, struct hf_err *err)
{
    hf_auto_close int fd = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (fd < 0)
        return hf_err_set(err, -errno, "cannot open %s %s: %s", what, path, strerror(errno));
    struct mount_attr a = {.attr_set = attrs};
    if (attrs && mount_setattr(fd, "", AT_EMPTY_PATH, &a, sizeof(a)) < 0)
        return hf_err_set(err, -errno, "cannot restrict %s %s: %s", what, path, strerror(errno));
    return hf_take_fd(&fd);
}

static int open_image(const struct hf_cell_spec *spec, struct hf_err *err)
{
    if (access(spec->image, F_OK) < 0) {
        int r = hf_disk_clone(spec->blank, spec->image, err);
        if (r < 0)
            return r;
    }
    return hf_image_open_locked(spec->image, false, err);
}

/* The template must be a mount of its own: an empty directory left by a crash is no template. */
static int check_template(int fd, const char *path, struct hf_err *err)
{
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st) < 0)
        return hf_err_set(err, -errno, "cannot look at the template %s: %s", path, strerror(errno));
    if (!(st.stx_attributes & STATX_ATTR_MOUNT_ROOT))
        return hf_err_set(err, -ENOENT, "the template's image is not mounted at %s", path);
    return 0;
}

/* The library that lies beside envd; without it clones share their programs' random numbers. */
static int open_reseed(struct shim *s, struct hf_err *err)
{
    const char *slash = strrchr(s->spec.envd, '/');
    hf_auto_free char *path =
        hf_xasprintf("%.*s/holdfast-reseed.so", slash ? (int)(slash - s->spec.envd) : 0, s->spec.envd);
    if (access(path, R_OK) < 0)
        return 0;
    s->reseed_fd =
        clone_tree(path, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID, "the library", err);
    return HF_MIN(s->reseed_fd, 0);
}

/* A layer that was mounted "volatile" is marked as perhaps unfinished. A saved one is not: it was flushed. */
static int forget_volatile(int upper_fd, struct hf_err *err)
{
    hf_auto_close int dir = hf_open_in_root_nolink(upper_fd, "work/work/incompat", O_PATH | O_DIRECTORY, 0);
    if (dir == -ENOENT)
        return 0;
    hf_auto_close int mark = dir < 0 ? dir : hf_open_in_root_nolink(dir, "volatile", O_PATH | O_DIRECTORY, 0);
    int r = mark == -ENOENT ? 0 : HF_MIN(mark, 0);
    if (mark >= 0 &&
        ((unlinkat(mark, "dirty", 0) < 0 && errno != ENOENT) || unlinkat(dir, "volatile", AT_REMOVEDIR) < 0))
        r = -errno;
    return r < 0 ? hf_err_set(err, r, "cannot take over the saved disk: %s", strerror(-r)) : 0;
}

int shim_disk_open(struct shim *s, struct hf_err *err)
{
    const struct hf_cell_spec *spec = &s->spec;
    hf_auto_close int real = open(spec->template_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (real < 0)
        return hf_err_set(err, -errno, "cannot open the template %s: %s", spec->template_dir,
                          strerror(errno));
    int r = check_template(real, spec->template_dir, err);
    if (r < 0)
        return r;
    s->template_fd = clone_tree(spec->template_dir, MOUNT_ATTR_NODEV, "the template", err);
    if (s->template_fd < 0)
        return s->template_fd;
    /* Read-only, and owned by an uid that has no name in the box: its root can't change what runs here. */
    s->envd_fd =
        clone_tree(spec->envd, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID, "envd", err);
    if (s->envd_fd < 0)
        return s->envd_fd;
    r = open_reseed(s, err);
    if (r < 0)
        return r;
    hf_auto_close int image_fd = open_image(spec, err);
    if (image_fd < 0)
        return image_fd;
    hf_killpoint("shim.loop");
    s->upper_fd = hf_image_mount(image_fd, false, MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME, NULL, err);
    if (s->upper_fd < 0)
        return s->upper_fd;
    hf_killpoint("shim.mounted");
    r = spec->from[0] ? forget_volatile(s->upper_fd, err) : 0;
    if (r < 0)
        return r;
    s->disk_fd = openat(s->upper_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat st;
    if (s->disk_fd < 0 || fstat(s->disk_fd, &st) < 0)
        return hf_err_set(err, -errno, "cannot open the writable layer: %s", strerror(errno));
    s->disk_dev = st.st_dev;
    for (size_t i = 0; i < spec->n_mounts; i++) {
        s->volume_fd[i] = shim_volume_open(&spec->mounts[i], err);
        if (s->volume_fd[i] < 0)
            return s->volume_fd[i];
    }
    return 0;
}

/* Detached, so it is empty whenever a box starts, and in no save. */
static int make_tmpfs(const struct hf_cell_mount *m, struct hf_err *err)
{
    char size[32];
    hf_auto_close int fs = fsopen("tmpfs", FSOPEN_CLOEXEC);
    (void)snprintf(size, sizeof(size), "%llu", (unsigned long long)(m->bytes ? m->bytes : TMPFS_BYTES));
    int fd = -1;
    if (fs >= 0 && fsconfig(fs, FSCONFIG_SET_STRING, "size", size, 0) == 0 &&
        fsconfig(fs, FSCONFIG_SET_STRING, "mode", "0755", 0) == 0 &&
        fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        fd = fsmount(fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    return fd < 0 ? hf_err_set(err, -errno, "cannot make a memory file system: %s", strerror(errno)) : fd;
}

int shim_volume_open(const struct hf_cell_mount *m, struct hf_err *err)
{
    if (m->kind == HF_CELL_MOUNT_TMPFS)
        return make_tmpfs(m, err);
    if (m->kind == HF_CELL_MOUNT_DIR)
        return clone_tree(m->image,
                          MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID | (m->read_only ? MOUNT_ATTR_RDONLY : 0),
                          "the volume", err);
    hf_auto_close int fd = hf_image_open_locked(m->image, m->read_only, err);
    if (fd < 0)
        return fd;
    return hf_image_mount(fd, m->read_only, MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID, NULL, err);
}

int shim_idmap(int mount_fd, int userns_fd, struct hf_err *err)
{
    struct mount_attr a = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns_fd};
    if (mount_setattr(mount_fd, "", AT_EMPTY_PATH, &a, sizeof(a)) < 0)
        return hf_err_set(err, -errno, "cannot map a mount's owners into the sandbox: %s%s", strerror(errno),
                          errno == EINVAL ? " (id-mapped ext4 needs Linux 5.12, with overlayfs 5.19)" : "");
    return 0;
}
