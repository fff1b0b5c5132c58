/* What the pool's directories hold, for the collection of what nobody knows any more. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/pool.h"
#include "engine/disk/snapshot.h"
#include "engine/driver.h"

/* How the objects of a kind are stored: a file with that suffix, or a directory. */
static const struct {
    const char *dir, *suffix;
} kinds[HF_DISK_KINDS] = {
    [HF_DISK_TEMPLATE] = {"templates", ".img"}, [HF_DISK_CELL] = {"cells", ".img"},
    [HF_DISK_VOLUME] = {"volumes", ".img"},     [HF_DISK_SNAPSHOT] = {"snapshots", ""},
    [HF_DISK_BLANK] = {"blank", ".img"},        [HF_DISK_STAGING] = {"staging", ""},
};

const char *hf_disk_kind_name(enum hf_disk_kind kind)
{
    static const char *const names[HF_DISK_KINDS] = {"template", "cell",  "volume",
                                                     "snapshot", "blank", "staging"};
    return names[kind];
}

/* The name without the suffix; false for something that is no object of the kind. */
static bool name_of(enum hf_disk_kind kind, const char *file, char ret[HF_POOL_NAME_MAX + 1])
{
    size_t n = strlen(file), tail = strlen(kinds[kind].suffix);
    if (n <= tail || n - tail > HF_POOL_NAME_MAX || strcmp(file + n - tail, kinds[kind].suffix) != 0)
        return false;
    memcpy(ret, file, n - tail);
    ret[n - tail] = '\0';
    return hf_disk_check_name("object", ret, NULL) == 0;
}

static void show(const char *dir, const char *file, enum hf_disk_kind kind, bool measure,
                 void (*fn)(void *arg, const struct hf_disk_object *o), void *arg)
{
    struct stat st;
    struct hf_disk_object o = {.kind = kind, .complete = true};
    hf_auto_free char *path = hf_xasprintf("%s/%s", dir, file);
    if (!name_of(kind, file, o.name) || lstat(path, &st) < 0)
        return;
    o.changed_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
    if (kind == HF_DISK_SNAPSHOT) {
        hf_auto_free char *manifest = hf_xasprintf("%s/manifest.json", path);
        o.complete = access(manifest, F_OK) == 0;
    }
    if (measure && hf_disk_object_usage(path, &o.exclusive, &o.shared) < 0)
        return; /* it went away meanwhile */
    fn(arg, &o);
}

static int each_of(const char *data_dir, enum hf_disk_kind kind, bool measure,
                   void (*fn)(void *arg, const struct hf_disk_object *o), void *arg, struct hf_err *err)
{
    hf_auto_free char *dir = hf_xasprintf("%s/pool/%s", data_dir, kinds[kind].dir);
    DIR *d = opendir(dir);
    if (!d)
        return errno == ENOENT ? 0 : hf_err_set(err, -errno, "cannot read %s: %s", dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d));)
        show(dir, e->d_name, kind, measure, fn, arg);
    (void)closedir(d);
    return 0;
}

int hf_disk_each_object(const char *data_dir, bool measure,
                        void (*fn)(void *arg, const struct hf_disk_object *o), void *arg, struct hf_err *err)
{
    int r = 0;
    for (int kind = 0; r == 0 && kind < HF_DISK_KINDS; kind++)
        r = each_of(data_dir, (enum hf_disk_kind)kind, measure, fn, arg, err);
    return r;
}

/* The exclusive lock is the proof that no loop device has the image. */
static int remove_cell(const char *path, const char *name, struct hf_err *err)
{
    struct hf_err why = {0};
    hf_auto_close int fd = hf_image_open_locked(path, false, &why);
    if (fd == -ENOENT)
        return 0;
    if (fd == -EBUSY)
        return hf_err_set(err, fd, "the disk of cell %s is in use", name);
    if (fd < 0)
        return hf_err_set(err, fd, "%s", why.msg);
    return unlink(path) < 0 && errno != ENOENT
               ? hf_err_set(err, -errno, "cannot remove %s: %s", path, strerror(errno))
               : 0;
}

/* Only while nobody is in the middle of something: all that work in staging share its lock. */
static int remove_staging(const char *data_dir, const char *path, const char *name, struct hf_err *err)
{
    hf_auto_free char *lock = hf_xasprintf("%s/pool/staging.lock", data_dir);
    hf_auto_close int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
        return hf_err_set(err, errno == EWOULDBLOCK ? -EBUSY : -errno,
                          "the half-made object %s may be in use: %s", name, strerror(errno));
    int r = hf_remove_tree(path);
    return r < 0 ? hf_err_set(err, r, "cannot remove %s: %s", path, strerror(-r)) : 0;
}

int hf_disk_object_remove(const char *data_dir, enum hf_disk_kind kind, const char *name, struct hf_err *err)
{
    int r = hf_disk_check_name(hf_disk_kind_name(kind), name, err);
    if (r < 0)
        return r;
    hf_auto_free char *path =
        hf_xasprintf("%s/pool/%s/%s%s", data_dir, kinds[kind].dir, name, kinds[kind].suffix);
    switch (kind) {
    case HF_DISK_TEMPLATE:
        return hf_disk_template_remove(data_dir, name, err);
    case HF_DISK_VOLUME:
        return hf_disk_volume_remove(data_dir, name, err);
    case HF_DISK_SNAPSHOT:
        return hf_snapshot_remove(data_dir, name, err);
    case HF_DISK_STAGING:
        return remove_staging(data_dir, path, name, err);
    default:
        return remove_cell(path, name, err);
    }
}
