/* Remove: rm -rf of a tree of any depth and width. */
#include <dirent.h>
#include <fcntl.h>

#include "envd/fsjob.h"
#include "envd/fswalk.h"

/* How often a directory is emptied again because somebody puts files into it meanwhile. */
#define REMOVE_RETRIES 64

struct removal {
    int retries;
};

static int remove_entry(void *self, struct fs_walk *w, const char *name, unsigned char d_type)
{
    if (d_type != DT_DIR && unlinkat(w->fd, name, 0) == 0)
        return FS_WALK_NEXT;
    if (d_type == DT_DIR || errno == EISDIR || errno == EPERM) /* EPERM: POSIX's word for a directory */
        return fs_walk_type(w, name, DT_UNKNOWN) == DT_DIR ? FS_WALK_DESCEND : -EPERM;
    return errno == ENOENT ? FS_WALK_NEXT : -errno;
}

static int remove_leave(void *self, struct fs_walk *w, const char *name)
{
    struct removal *m = self;
    if (unlinkat(w->fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return FS_WALK_NEXT;
    if ((errno == ENOTEMPTY || errno == EEXIST) && m->retries-- > 0)
        return FS_WALK_DESCEND;
    return -errno;
}

static int remove_dir(const char *path)
{
    static const struct fs_walk_ops ops = {.entry = remove_entry, .leave = remove_leave};
    struct removal m = {.retries = REMOVE_RETRIES};
    for (;;) {
        hf_auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            return errno == ENOENT ? 0 : -errno;
        int r = fs_walk(fd, false, NULL, &ops, &m);
        if (r < 0)
            return r;
        if (rmdir(path) == 0 || errno == ENOENT)
            return 0;
        if ((errno != ENOTEMPTY && errno != EEXIST) || m.retries-- <= 0)
            return -errno;
    }
}

int fs_remove_tree(const char *path, struct hf_err *err)
{
    struct stat st;
    int r = 0;
    if (strcmp(path, "/") == 0)
        return hf_err_http(err, -EINVAL, 400, "the root directory can't be removed");
    if (unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        r = -errno;
    else if (fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        r = errno == ENOENT ? 0 : -errno;
    else
        r = S_ISDIR(st.st_mode) ? remove_dir(path) : -EPERM;
    return r < 0 ? hf_err_set(err, r, "error removing file or directory: %s: %s", path, strerror(-r)) : 0;
}

int fs_remove_run(struct fs_job *j)
{
    int r = fs_remove_tree(j->path, &j->err);
    j->code = fs_code(r);
    if (r == 0)
        j->reply = json_object();
    return r;
}
