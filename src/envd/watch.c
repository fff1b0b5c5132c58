#include "envd/watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include "base/list.h"
#include "base/map.h"

#define EVENT_MASK                                                                                  \
    (IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_DELETE_SELF | \
     IN_MOVE_SELF)
#define READ_SIZE 65536u
#define READS_PER_TURN 8 /* then the loop's other work has its turn */

/* One watched directory. */
struct wdir {
    int wd;
    char *rel;          /* below the root: "" or "a/b" */
    struct hf_map seen; /* names that the scan reported; a queued event of their creation is not news */
};

/* Something that a scan found in a directory that is new. */
struct found {
    struct hf_list node;
    bool content; /* a file that is not empty */
    char name[];
};

struct watcher {
    uv_loop_t *loop;
    uv_poll_t poll;
    uv_work_t work;
    const struct watcher_ops *ops;
    void *self;
    int fd;
    char *path;
    bool recursive, ready, paused, polling, scanning, freed, closed;
    bool has_seen;        /* some wdir.seen is not empty */
    struct hf_map dirs;   /* wd -> struct wdir; the scan's while one runs */
    struct hf_map todo;   /* rel -> itself: directories to scan next */
    struct hf_list found; /* what a scan saw, until it is told */
    size_t found_bytes;
    struct hf_err scan_err;
};

static struct hf_str wd_key(const int *wd)
{
    return (struct hf_str){(const char *)wd, sizeof(*wd)};
}

static void wdir_free(struct wdir *d)
{
    hf_map_done(&d->seen);
    free(d->rel);
    free(d);
}

static char *join(const char *a, const char *b)
{
    return *a && *b ? hf_xasprintf("%s/%s", a, b) : hf_xstrdup(*a ? a : b);
}

static void add_todo(struct watcher *w, const char *rel)
{
    (void)hf_map_put(&w->todo, hf_str_c(rel), w);
}

/* ---- scan: worker ---- */

static void too_many_dirs(struct watcher *w, const char *rel)
{
    (void)hf_err_set(&w->scan_err, -ENOSPC,
                     "no more directories can be watched: '%s/%s' is over the limit of %u for one watcher",
                     w->path, rel, WATCH_DIRS_MAX);
}

static bool report(struct watcher *w, const char *rel, bool content)
{
    size_t n = strlen(rel) + 1;
    w->found_bytes += sizeof(struct found) + n;
    if (w->found_bytes > WATCH_FOUND_MAX) {
        (void)hf_err_set(&w->scan_err, -EOVERFLOW,
                         "watcher error: more new files at once than can be told, from '%s/%s' on", w->path,
                         rel);
        return false;
    }
    struct found *f = hf_xmalloc(sizeof(*f) + n);
    f->content = content;
    memcpy(f->name, rel, n);
    hf_list_add_tail(&w->found, &f->node);
    return true;
}

/* NULL: not watched (gone, or watched already). */
static struct wdir *add_watch(struct watcher *w, const char *rel)
{
    if (w->dirs.len >= WATCH_DIRS_MAX) {
        too_many_dirs(w, rel);
        return NULL;
    }
    hf_auto_free char *full = hf_xasprintf("%s/%s", w->path, rel);
    uint32_t flags = IN_ONLYDIR | (*rel ? IN_DONT_FOLLOW : 0);
    int wd = inotify_add_watch(w->fd, full, EVENT_MASK | flags);
    if (wd < 0) {
        bool gone = errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
        if (errno == ENOSPC)
            (void)hf_err_set(
                &w->scan_err, -ENOSPC,
                "no more directories can be watched: '%s' is over the limit fs.inotify.max_user_watches",
                full);
        else if (!gone || !*rel)
            (void)hf_err_set(&w->scan_err, -errno, "error adding path %s to watcher: %s", full,
                             strerror(errno));
        return NULL;
    }
    if (hf_map_get(&w->dirs, wd_key(&wd)))
        return NULL;
    struct wdir *d = hf_new(struct wdir);
    d->wd = wd;
    d->rel = hf_xstrdup(rel);
    (void)hf_map_put(&w->dirs, wd_key(&wd), d);
    return d;
}

static bool has_content(int dir_fd, const struct dirent *e)
{
    struct stat st;
    return fstatat(dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
}

static bool is_dir(int dir_fd, const struct dirent *e)
{
    struct stat st;
    if (e->d_type != DT_UNKNOWN)
        return e->d_type == DT_DIR;
    return fstatat(dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* Reads a directory that has just been watched. */
static void look_into(struct watcher *w, struct wdir *d)
{
    hf_auto_free char *full = hf_xasprintf("%s/%s", w->path, d->rel);
    DIR *dir = opendir(full);
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        hf_auto_free char *rel = join(d->rel, e->d_name);
        bool sub = is_dir(dirfd(dir), e);
        if (sub && w->dirs.len + w->todo.len >= WATCH_DIRS_MAX)
            too_many_dirs(w, rel);
        else if (sub)
            add_todo(w, rel);
        if (!w->ready)
            continue; /* it was there before the watch began */
        if (!report(w, rel, !sub && has_content(dirfd(dir), e)))
            break;
        (void)hf_map_put(&d->seen, hf_str_c(e->d_name), d);
        w->has_seen = true;
    }
    (void)closedir(dir);
}

static void scan_work(uv_work_t *work)
{
    struct watcher *w = HF_CONTAINER_OF(work, struct watcher, work);
    while (w->todo.len) {
        struct hf_map batch = w->todo;
        w->todo = (struct hf_map){0};
        size_t pos = 0;
        struct hf_str rel;
        while (hf_map_next(&batch, &pos, &rel)) {
            hf_auto_free char *name = hf_str_dup(rel);
            struct wdir *d = add_watch(w, name);
            if (d && w->recursive)
                look_into(w, d);
        }
        hf_map_done(&batch);
    }
}

/* ---- life ---- */

static void destroy(struct watcher *w)
{
    size_t pos = 0;
    for (struct wdir *d; (d = hf_map_next(&w->dirs, &pos, NULL));)
        wdir_free(d);
    hf_map_done(&w->dirs);
    hf_map_done(&w->todo);
    hf_list_foreach_safe(it, &w->found)
    {
        hf_list_del(it);
        free(hf_list_entry(it, struct found, node));
    }
    (void)hf_close(w->fd);
    free(w->path);
    free(w);
}

static void poll_closed(uv_handle_t *h)
{
    struct watcher *w = h->data;
    w->closed = true;
    if (!w->scanning)
        destroy(w);
}

void watcher_free(struct watcher *w)
{
    w->freed = true;
    uv_close((uv_handle_t *)&w->poll, poll_closed);
}

static void on_readable(uv_poll_t *p, int status, int events);

/* Starts a scan if one is due, else reads events, unless somebody said stop. */
static void settle(struct watcher *w);

static void emit(struct watcher *w, const char *name, enum watch_type type)
{
    if (!w->freed)
        w->ops->on_event(w->self, name, type);
}

static void scan_after(uv_work_t *work, int status)
{
    struct watcher *w = HF_CONTAINER_OF(work, struct watcher, work);
    w->scanning = false;
    if (w->closed) {
        destroy(w);
        return;
    }
    struct hf_err err = w->scan_err;
    w->scan_err = (struct hf_err){0};
    if (!w->freed && err.r)
        w->ops->on_lost(w->self, &err);
    bool first = !w->ready;
    w->ready = true;
    if (!w->freed && first && !err.r)
        w->ops->on_ready(w->self);
    settle(w);
}

/* Tells what the last scan saw. True when all of it is told. */
static bool tell_found(struct watcher *w)
{
    while (!w->freed && !w->paused && !hf_list_empty(&w->found)) {
        struct found *f = hf_list_entry(w->found.next, struct found, node);
        hf_list_del(&f->node);
        emit(w, f->name, WATCH_CREATE);
        if (f->content)
            emit(w, f->name, WATCH_WRITE);
        free(f);
    }
    bool all = hf_list_empty(&w->found);
    w->found_bytes = all ? 0 : w->found_bytes;
    return all;
}

static void settle(struct watcher *w)
{
    if (w->freed || w->scanning)
        return;
    bool told = tell_found(w);
    if (w->freed)
        return;
    if (told && w->todo.len) {
        if (w->polling)
            (void)uv_poll_stop(&w->poll);
        w->polling = false;
        w->scanning = true;
        if (uv_queue_work(w->loop, &w->work, scan_work, scan_after) < 0)
            abort(); /* only for a NULL callback */
        return;
    }
    if (w->paused == !w->polling)
        return;
    w->polling = !w->paused;
    if (w->polling)
        (void)uv_poll_start(&w->poll, UV_READABLE, on_readable);
    else
        (void)uv_poll_stop(&w->poll);
}

void watcher_pause(struct watcher *w)
{
    w->paused = true;
    settle(w);
}

void watcher_resume(struct watcher *w)
{
    w->paused = false;
    settle(w);
}

/* ---- events ---- */

/* A directory was renamed or left the tree: the watches below it go (of a removed one the kernel drops them).
 */
static void drop_tree(struct watcher *w, const char *rel)
{
    size_t n = strlen(rel), pos = 0;
    struct hf_map keep = {0};
    for (struct wdir *d; (d = hf_map_next(&w->dirs, &pos, NULL));) {
        bool below = strncmp(d->rel, rel, n) == 0 && (d->rel[n] == '/' || !d->rel[n]);
        if (!below) {
            (void)hf_map_put(&keep, wd_key(&d->wd), d);
            continue;
        }
        (void)inotify_rm_watch(w->fd, d->wd);
        wdir_free(d);
    }
    hf_map_done(&w->dirs);
    w->dirs = keep;
}

/* The events of creation that a scan has told already are not told twice. */
static bool told_already(struct wdir *d, const struct inotify_event *ev)
{
    if (!d->seen.len || !(ev->mask & (IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_MOVED_FROM)))
        return false;
    bool seen = hf_map_del(&d->seen, hf_str_c(ev->name));
    return seen && (ev->mask & (IN_CREATE | IN_MOVED_TO));
}

static void handle_child(struct watcher *w, struct wdir *d, const struct inotify_event *ev)
{
    static const struct {
        uint32_t mask;
        enum watch_type type;
    } types[] = {{IN_CREATE | IN_MOVED_TO, WATCH_CREATE},
                 {IN_MOVED_FROM, WATCH_RENAME},
                 {IN_ATTRIB, WATCH_CHMOD},
                 {IN_MODIFY, WATCH_WRITE},
                 {IN_DELETE, WATCH_REMOVE}};
    if (told_already(d, ev))
        return;
    hf_auto_free char *rel = join(d->rel, ev->name);
    bool tree = w->recursive && (ev->mask & IN_ISDIR);
    if (tree && (ev->mask & IN_MOVED_FROM))
        drop_tree(w, rel);
    if (tree && (ev->mask & (IN_CREATE | IN_MOVED_TO)))
        add_todo(w, rel);
    for (size_t i = 0; i < HF_ARRAY_LEN(types); i++) {
        if (ev->mask & types[i].mask)
            emit(w, rel, types[i].type);
    }
}

/* Of directories below the root the parent tells. */
static void handle_self(struct watcher *w, struct wdir *d, const struct inotify_event *ev)
{
    if (!*d->rel && (ev->mask & IN_MOVE_SELF))
        emit(w, ".", WATCH_RENAME);
    if (!*d->rel && (ev->mask & IN_ATTRIB))
        emit(w, ".", WATCH_CHMOD);
    if (!*d->rel && (ev->mask & IN_DELETE_SELF))
        emit(w, ".", WATCH_REMOVE);
    if (ev->mask & IN_IGNORED) {
        int wd = ev->wd;
        (void)hf_map_del(&w->dirs, wd_key(&wd));
        wdir_free(d);
    }
}

static void handle(struct watcher *w, const struct inotify_event *ev)
{
    if (ev->mask & IN_Q_OVERFLOW) {
        struct hf_err err = {0};
        (void)hf_err_set(&err, -EOVERFLOW, "watcher error: fsnotify: queue or buffer overflow");
        if (!w->freed)
            w->ops->on_lost(w->self, &err);
        return;
    }
    struct wdir *d = hf_map_get(&w->dirs, wd_key(&ev->wd));
    if (d && ev->len)
        handle_child(w, d, ev);
    else if (d)
        handle_self(w, d, ev);
}

static void forget_seen(struct watcher *w)
{
    size_t pos = 0;
    for (struct wdir *d; w->has_seen && (d = hf_map_next(&w->dirs, &pos, NULL));) {
        hf_map_done(&d->seen);
        d->seen = (struct hf_map){0};
    }
    w->has_seen = false;
}

static void on_readable(uv_poll_t *p, int status, int events)
{
    struct watcher *w = p->data;
    hf_auto_free char *buf = hf_xmalloc(READ_SIZE);
    for (int turn = 0; turn < READS_PER_TURN && !w->freed && !w->paused && !w->todo.len; turn++) {
        ssize_t n = read(w->fd, buf, READ_SIZE);
        if (n <= 0) {
            /* The queue is empty, so nothing from before the last scan is in it any more. */
            forget_seen(w);
            break;
        }
        for (ssize_t i = 0; i < n;) {
            const struct inotify_event *ev = (const void *)(buf + i);
            i += (ssize_t)(sizeof(*ev) + ev->len);
            handle(w, ev);
        }
    }
    settle(w);
}

int watcher_new(uv_loop_t *loop, const char *path, bool recursive, const struct watcher_ops *ops, void *self,
                struct watcher **ret, struct hf_err *err)
{
    hf_auto_close int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (fd < 0 && errno == EMFILE)
        return hf_err_set(err, -EMFILE,
                          "error creating watcher: too many watchers: the limit is "
                          "fs.inotify.max_user_instances; remove one first");
    if (fd < 0)
        return hf_err_set(err, -errno, "error creating watcher: %s", strerror(errno));
    struct watcher *w = hf_new(struct watcher);
    w->loop = loop;
    w->path = hf_xstrdup(path);
    w->recursive = recursive;
    w->ops = ops;
    w->self = self;
    hf_list_init(&w->found);
    int r = uv_poll_init(loop, &w->poll, fd);
    if (r < 0) {
        free(w->path);
        free(w);
        return hf_err_set(err, r, "error creating watcher: %s", uv_strerror(r));
    }
    w->poll.data = w;
    w->fd = hf_take_fd(&fd);
    add_todo(w, "");
    settle(w);
    *ret = w;
    return 0;
}
