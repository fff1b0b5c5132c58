#include "envd/fswalk.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

unsigned char fs_walk_type(const struct fs_walk *w, const char *name, unsigned char d_type)
{
    struct stat st;
    if (d_type != DT_UNKNOWN || fstatat(w->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return d_type;
    return (unsigned char)IFTODT(st.st_mode);
}

static int add_name(struct fs_walk_frame *f, const struct dirent *e)
{
    size_t at = f->list.n;
    int r = hf_buf_add(&f->list, &e->d_type, 1);
    if (r == 0)
        r = hf_buf_add(&f->list, e->d_name, strlen(e->d_name) + 1);
    if (r < 0)
        return r;
    if (f->n == f->cap) {
        f->cap = f->cap ? f->cap * 2 : 16;
        f->at = hf_xrealloc(f->at, f->cap * sizeof(*f->at));
    }
    f->at[f->n++] = at;
    return 0;
}

static int by_name(const void *a, const void *b, void *list)
{
    const char *p = list;
    return strcmp(p + *(const size_t *)a + 1, p + *(const size_t *)b + 1);
}

static int load(struct fs_walk *w, struct fs_walk_frame *f)
{
    struct stat st;
    if (fstat(w->fd, &st) < 0)
        return -errno;
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    f->list = HF_BUF_INIT(FS_WALK_NAMES_MAX);
    int fd = openat(w->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    DIR *d = fdopendir(fd);
    if (!d) {
        int r = -errno;
        (void)hf_close(fd);
        return r;
    }
    int r = 0;
    errno = 0;
    for (struct dirent *e; r == 0 && (e = readdir(d)); errno = 0) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            r = add_name(f, e);
    }
    if (r == 0 && errno && errno != ENOENT) /* ENOENT: the directory was removed meanwhile */
        r = -errno;
    (void)closedir(d);
    if (r == 0 && w->sorted && f->n > 1)
        qsort_r(f->at, f->n, sizeof(*f->at), by_name, f->list.p);
    return r;
}

static void drop_list(struct fs_walk_frame *f)
{
    free(hf_take_ptr(f->at));
    hf_buf_done(&f->list);
}

static void frame_done(struct fs_walk_frame *f)
{
    free(f->name);
    drop_list(f);
}

/* Makes w->fd, just opened, the top of the walk. */
static int push(struct fs_walk *w, const char *name)
{
    if (w->depth == w->cap) {
        w->cap = w->cap ? w->cap * 2 : 16;
        w->frames = hf_xrealloc(w->frames, w->cap * sizeof(*w->frames));
    }
    struct fs_walk_frame *f = &w->frames[w->depth++];
    *f = (struct fs_walk_frame){.name = name ? hf_xstrdup(name) : NULL};
    return load(w, f);
}

/* 1 entered, 0 it is gone or is no directory any more. */
static int descend(struct fs_walk *w, const char *name)
{
    int fd = openat(w->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -errno;
    (void)hf_close(w->fd);
    w->fd = fd;
    int r = push(w, name);
    return r < 0 ? r : 1;
}

/* Back to the parent; *ret_name is the name of the directory that was left (caller frees). */
static int ascend(struct fs_walk *w, char **ret_name)
{
    struct fs_walk_frame *child = &w->frames[w->depth - 1], *parent = child - 1;
    struct stat st;
    int fd = openat(w->fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ESTALE : -errno;
    (void)hf_close(w->fd);
    w->fd = fd;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_dev != parent->dev || st.st_ino != parent->ino)
        return -ESTALE;
    *ret_name = hf_take_ptr(child->name);
    frame_done(child);
    w->depth--;
    return 0;
}

static int enter(struct fs_walk *w, const struct fs_walk_ops *ops, void *self, const char *name)
{
    size_t parent = w->depth - 1;
    int r = descend(w, name);
    if (r == 1)
        r = ops->enter ? ops->enter(self, w, name) : 0;
    /* A long chain of directories must not keep a list for each of them. name may be in this one. */
    struct fs_walk_frame *f = &w->frames[parent];
    if (f->i == f->n)
        drop_list(f);
    return r;
}

static int step(struct fs_walk *w, const struct fs_walk_ops *ops, void *self)
{
    struct fs_walk_frame *f = &w->frames[w->depth - 1];
    if (w->cancelled && atomic_load_explicit(w->cancelled, memory_order_relaxed))
        return -ECANCELED;
    if (f->i == f->n && w->depth == 1) {
        frame_done(f);
        w->depth = 0;
        return 0;
    }
    if (f->i == f->n) {
        hf_auto_free char *name = NULL;
        int r = ascend(w, &name);
        if (r == 0 && ops->leave)
            r = ops->leave(self, w, name);
        return r == FS_WALK_DESCEND ? enter(w, ops, self, name) : r;
    }
    /* Entering may move the frames, not the list that the name is in. */
    const char *rec = f->list.p + f->at[f->i++];
    int r = ops->entry(self, w, rec + 1, (unsigned char)rec[0]);
    return r == FS_WALK_DESCEND ? enter(w, ops, self, rec + 1) : r;
}

int fs_walk(int root_fd, bool sorted, const atomic_bool *cancelled, const struct fs_walk_ops *ops, void *self)
{
    struct fs_walk w = {.fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 0), .sorted = sorted, .cancelled = cancelled};
    if (w.fd < 0)
        return -errno;
    int r = push(&w, NULL);
    while (r == 0 && w.depth)
        r = step(&w, ops, self);
    while (w.depth)
        frame_done(&w.frames[--w.depth]);
    free(w.frames);
    (void)hf_close(w.fd);
    return r;
}
