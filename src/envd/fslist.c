/* ListDir. The answer is encoded entry by entry as the walk goes: 100,000 entries take some 25 MB here, an
 * object tree of them would take six times that. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>

#include "envd/fsjob.h"
#include "envd/fswalk.h"

struct list {
    struct fs_job *j;
    struct users_names *names;
    const char *real;    /* the directory itself */
    struct hf_buf below; /* path of the current directory below it: "" or "/a/b" */
    bool any;
};

static int append(struct list *l, json_t *entry)
{
    struct hf_buf *out = &l->j->out;
    if (!l->j->json) {
        /* ListDirResponse.entries and StatResponse.entry are both field 1: one after the other is a list. */
        json_auto_t *one = json_object();
        json_object_set(one, "entry", entry);
        return pb_from_json(&pb_fs_stat_response, one, out, NULL);
    }
    hf_auto_free char *text = json_dumps(entry, JSON_COMPACT);
    if (!text)
        return -ENOMEM;
    int r = hf_buf_adds(out, l->any ? "," : "{\"entries\":[");
    l->any = true;
    return r < 0 ? r : hf_buf_adds(out, text);
}

static int list_entry(void *self, struct fs_walk *w, const char *name, unsigned char d_type)
{
    struct list *l = self;
    const char *below = l->below.n ? l->below.p : "";
    bool root = strcmp(l->j->path, "/") == 0, real_root = strcmp(l->real, "/") == 0;
    hf_auto_free char *shown = hf_xasprintf("%s%s/%s", root ? "" : l->j->path, below, name);
    hf_auto_free char *real = hf_xasprintf("%s%s/%s", real_root ? "" : l->real, below, name);
    json_auto_t *entry = NULL;
    int r = fs_entry(w->fd, name, shown, real, l->names, &entry);
    if (r == -ENOENT)
        return FS_WALK_NEXT; /* gone meanwhile */
    if (r == 0)
        r = append(l, entry);
    if (r < 0)
        return r;
    bool dir = w->depth < l->j->depth && fs_walk_type(w, name, d_type) == DT_DIR;
    return dir ? FS_WALK_DESCEND : FS_WALK_NEXT;
}

static int list_enter(void *self, struct fs_walk *w, const char *name)
{
    struct list *l = self;
    return hf_buf_addf(&l->below, "/%s", name);
}

static int list_leave(void *self, struct fs_walk *w, const char *name)
{
    struct list *l = self;
    l->below.n -= strlen(name) + 1;
    l->below.p[l->below.n] = '\0';
    return FS_WALK_NEXT;
}

/* Links in the requested path are followed, as the entries' paths keep the client's prefix. */
static int open_root(struct fs_job *j, char **ret_real)
{
    *ret_real = realpath(j->path, NULL);
    if (!*ret_real && (errno == ENOENT || errno == ENOTDIR))
        return fs_job_fail(j, -ENOENT, RPC_NOT_FOUND, "path not found: lstat %s: no such file or directory",
                           j->path);
    if (!*ret_real && errno == ELOOP)
        return fs_job_fail(j, -ELOOP, RPC_FAILED_PRECONDITION, "cyclic symlink or chain >255 links at \"%s\"",
                           j->path);
    if (!*ret_real)
        return fs_job_fail(j, -errno, fs_code(-errno), "error resolving symlink: %s: %s", j->path,
                           strerror(errno));
    int fd = fs_openat(AT_FDCWD, *ret_real, O_RDONLY | O_DIRECTORY, 0);
    if (fd == -ENOTDIR)
        return fs_job_fail(j, fd, RPC_INVALID_ARGUMENT, "path is not a directory: %s", *ret_real);
    if (fd == -ENOENT)
        return fs_job_fail(j, fd, RPC_NOT_FOUND, "directory not found: stat %s: no such file or directory",
                           j->path);
    if (fd < 0)
        return fs_job_fail(j, fd, fs_code(fd), "error reading directory %s: %s", j->path, strerror(-fd));
    return fd;
}

int fs_list_run(struct fs_job *j)
{
    static const struct fs_walk_ops ops = {list_entry, list_enter, list_leave};
    hf_auto_free char *real = NULL;
    hf_auto_close int fd = open_root(j, &real);
    if (fd < 0)
        return fd;
    hf_auto_free struct users_names *names = hf_new(struct users_names);
    struct list l = {.j = j, .names = names, .real = real, .below = HF_BUF_INIT(FS_LIST_BYTES_MAX)};
    int r = fs_walk(fd, true, &j->cancelled, &ops, &l);
    hf_buf_done(&l.below);
    if (r == 0 && j->json)
        r = hf_buf_adds(&j->out, l.any ? "]}" : "{}");
    if (r == -EMSGSIZE)
        return fs_job_fail(j, r, RPC_RESOURCE_EXHAUSTED,
                           "the list of %s is larger than %u MiB: ask for a smaller depth or a subdirectory",
                           j->path, FS_LIST_BYTES_MAX >> 20);
    if (r < 0)
        return fs_job_fail(j, r, RPC_INTERNAL, "error reading directory %s: %s", j->path, strerror(-r));
    return 0;
}
