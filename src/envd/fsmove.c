/* Move where rename(2) can't: to another file system, or a directory of the image's read-only layer. A copy
 * grows under a temporary name beside the destination and is renamed when it is whole, then the source goes.
 * Owner, mode, times, attributes, links and FIFOs are kept; hard links become separate files. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/xattr.h>

#include "base/id.h"
#include "base/path.h"
#include "envd/fsjob.h"
#include "envd/fswalk.h"

#define COPY_STEP (1u << 30)
#define COPY_CHUNK (256u * 1024u)
#define LINK_MAX_BYTES 4096u
#define XATTR_BYTES_MAX 65536u

struct copy {
    int to; /* directory of the copy that corresponds to the walk's */
};

static int copy_bytes(int from, int to)
{
    hf_auto_free char *p = NULL;
    for (;;) {
        ssize_t n = p ? read(from, p, COPY_CHUNK) : copy_file_range(from, NULL, to, NULL, COPY_STEP, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && !p && errno != ENOSPC && errno != EDQUOT && errno != EIO) {
            p = hf_xmalloc(COPY_CHUNK); /* not between these file systems */
            continue;
        }
        if (n <= 0)
            return n < 0 ? -errno : 0;
        int r = p ? hf_write_all(to, p, (size_t)n) : 0;
        if (r < 0)
            return r;
    }
}

/* Attributes that can't be kept (other file systems, other namespaces) are left behind. */
static void copy_xattrs(int from, int to)
{
    if (flistxattr(from, NULL, 0) <= 0)
        return;
    hf_auto_free char *names = hf_xmalloc(XATTR_BYTES_MAX), *value = hf_xmalloc(XATTR_BYTES_MAX);
    ssize_t n = flistxattr(from, names, XATTR_BYTES_MAX);
    for (ssize_t i = 0; i < n;) {
        const char *name = names + i;
        i += (ssize_t)strlen(name) + 1;
        ssize_t len = fgetxattr(from, name, value, XATTR_BYTES_MAX);
        if (len >= 0)
            (void)fsetxattr(to, name, value, (size_t)len, 0);
    }
}

/* Owner first: chown clears the set-id bits. */
static int copy_attributes(int from, int to)
{
    struct stat st;
    if (fstat(from, &st) < 0 || fchown(to, st.st_uid, st.st_gid) < 0 || fchmod(to, st.st_mode & 07777) < 0)
        return -errno;
    copy_xattrs(from, to);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    return futimens(to, times) < 0 ? -errno : 0;
}

static int copy_file(int from_dir, const char *name, int to_dir, const char *to_name)
{
    hf_auto_close int from = openat(from_dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (from < 0)
        return -errno;
    hf_auto_close int to =
        openat(to_dir, to_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0)
        return -errno;
    int r = copy_bytes(from, to);
    if (r == 0)
        r = copy_attributes(from, to);
    return r == 0 && close(hf_take_fd(&to)) < 0 ? -errno : r;
}

static int copy_link(int from_dir, const char *name, int to_dir, const char *to_name)
{
    char target[LINK_MAX_BYTES];
    ssize_t n = readlinkat(from_dir, name, target, sizeof(target) - 1);
    if (n < 0)
        return -errno;
    target[n] = '\0';
    return symlinkat(target, to_dir, to_name) < 0 ? -errno : 0;
}

/* Everything but directories. */
static int copy_leaf(int from_dir, const char *name, int to_dir, const char *to_name)
{
    struct stat st;
    if (fstatat(from_dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (S_ISREG(st.st_mode))
        return copy_file(from_dir, name, to_dir, to_name);
    int r;
    if (S_ISLNK(st.st_mode))
        r = copy_link(from_dir, name, to_dir, to_name);
    else
        r = mknodat(to_dir, to_name, st.st_mode, st.st_rdev) < 0 ? -errno : 0;
    if (r < 0)
        return r;
    if (fchownat(to_dir, to_name, st.st_uid, st.st_gid, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    return utimensat(to_dir, to_name, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

/* ---- trees ---- */

static int copy_entry(void *self, struct fs_walk *w, const char *name, unsigned char d_type)
{
    struct copy *c = self;
    if (fs_walk_type(w, name, d_type) != DT_DIR) {
        int r = copy_leaf(w->fd, name, c->to, name);
        return r == -ENOENT ? FS_WALK_NEXT : r; /* gone meanwhile */
    }
    return mkdirat(c->to, name, 0700) < 0 ? -errno : FS_WALK_DESCEND;
}

static int change_dir(struct copy *c, const char *name)
{
    int fd = openat(c->to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    (void)hf_close(c->to);
    c->to = fd;
    return 0;
}

static int copy_enter(void *self, struct fs_walk *w, const char *name)
{
    return change_dir(self, name);
}

static int copy_leave(void *self, struct fs_walk *w, const char *name)
{
    struct copy *c = self;
    int r = change_dir(c, "..");
    if (r < 0)
        return r;
    hf_auto_close int from = openat(w->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    hf_auto_close int to = openat(c->to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return from < 0 || to < 0 ? -errno : copy_attributes(from, to);
}

static int copy_dir(const char *from, const char *to)
{
    static const struct fs_walk_ops ops = {copy_entry, copy_enter, copy_leave};
    hf_auto_close int src = open(from, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (src < 0 || mkdir(to, 0700) < 0)
        return -errno;
    struct copy c = {.to = open(to, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
    if (c.to < 0)
        return -errno;
    hf_auto_close int top = fcntl(c.to, F_DUPFD_CLOEXEC, 0);
    int r = top < 0 ? -errno : fs_walk(src, false, NULL, &ops, &c);
    if (r == 0)
        r = copy_attributes(src, top);
    (void)hf_close(c.to);
    return r;
}

int fs_move_run(struct fs_job *j)
{
    char id[17];
    struct stat st;
    hf_random_id(id, sizeof(id) - 1);
    hf_auto_free char *dir = path_dir(j->dest);
    hf_auto_free char *name = hf_xasprintf(".holdfast-move-%s", id);
    hf_auto_free char *tmp = path_join(dir, name);
    int r = fstatat(AT_FDCWD, j->path, &st, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
    if (r == 0)
        r = S_ISDIR(st.st_mode) ? copy_dir(j->path, tmp) : copy_leaf(AT_FDCWD, j->path, AT_FDCWD, tmp);
    if (r == 0 && rename(tmp, j->dest) < 0)
        r = -errno;
    if (r < 0) {
        (void)!fs_remove_tree(tmp, NULL);
        return fs_job_fail(j, r, fs_code(r), "error renaming: rename %s %s: %s", j->path, j->dest,
                           strerror(-r));
    }
    r = fs_remove_tree(j->path, &j->err);
    j->code = fs_code(r);
    return r < 0 ? r : fs_entry_reply(j->dest, &j->reply, &j->code, &j->err);
}
