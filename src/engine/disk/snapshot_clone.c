#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/parts.h"

int hf_parts_make_dirs(const char *dir, const char *part_name)
{
    hf_auto_free char *path = hf_xasprintf("%s/%s", dir, part_name);
    *strrchr(path, '/') = '\0';
    /* A restore reads the images of the processes from within the box's user namespace. */
    return hf_mkdir_p(path, 0755);
}

/* A part that no longer fits its hash by its stamp gets none in the clone: it is hashed when that is opened.
 */
static int clone_part(const char *from_dir, int from_fd, const char *to_dir, const struct hf_snapshot_part *p,
                      const json_t *from_stamps, json_t *stamps, struct hf_err *err)
{
    hf_auto_close int src = hf_parts_open_sized(from_fd, p, err);
    if (src < 0)
        return src;
    hf_auto_free char *from = hf_xasprintf("%s/%s", from_dir, p->name);
    hf_auto_free char *to = hf_xasprintf("%s/%s", to_dir, p->name);
    int r = hf_parts_make_dirs(to_dir, p->name);
    if (r < 0)
        return hf_err_set(err, r, "cannot make the directory of %s: %s", to, strerror(-r));
    r = hf_disk_clone(from, to, err);
    if (r == 0 && strchr(p->name, '/') && chmod(to, 0644) < 0)
        r = hf_err_set(err, -errno, "cannot open up %s: %s", to, strerror(errno));
    if (r < 0)
        return r;
    hf_auto_close int dst = open(to, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (dst >= 0 && p->sha256[0] && hf_stamps_fit(from_stamps, p, src))
        hf_stamps_take(stamps, p, dst);
    return 0;
}

static int clone_parts(const char *data_dir, int from_fd, const struct hf_manifest *m, const char *to_dir,
                       json_t *stamps, struct hf_err *err)
{
    hf_auto_free char *from_dir = hf_parts_path(data_dir, m->meta.id);
    hf_auto_json json_t *from_stamps = hf_stamps_read(from_fd);
    for (size_t i = 0; i < m->n_parts; i++) {
        int r = clone_part(from_dir, from_fd, to_dir, &m->parts[i], from_stamps, stamps, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Without them the next snapshot's hash takes longer, and that is all. */
static void clone_leaves(const char *data_dir, const char *from_id, const char *to_dir)
{
    hf_auto_free char *from = hf_xasprintf("%s/pool/snapshots/%s/leaves", data_dir, from_id);
    hf_auto_free char *to = hf_xasprintf("%s/leaves", to_dir);
    struct hf_err ignored;
    int r = hf_disk_clone(from, to, &ignored);
    (void)r;
}

int hf_snapshot_clone(const char *data_dir, const char *from, const char *to, struct hf_err *err)
{
    hf_auto_manifest struct hf_manifest m = {0};
    hf_auto_close int from_fd = -1;
    hf_auto_free char *dir = NULL;
    int r = hf_parts_load(data_dir, from, &from_fd, &m, err);
    if (r == 0)
        r = hf_snapshot_begin(data_dir, to, &dir, err);
    if (r < 0)
        return r;
    hf_auto_json json_t *stamps = json_object();
    hf_auto_close int dir_fd = hf_parts_open_dir(data_dir, to);
    r = dir_fd < 0 ? hf_err_set(err, dir_fd, "cannot open %s: %s", dir, strerror(-dir_fd))
                   : clone_parts(data_dir, from_fd, &m, dir, stamps, err);
    hf_killpoint("snapshot.cloned");
    if (r == 0)
        clone_leaves(data_dir, m.meta.id, dir);
    if (r == 0) {
        (void)snprintf(m.meta.parent, sizeof(m.meta.parent), "%s", m.meta.id);
        (void)snprintf(m.meta.id, sizeof(m.meta.id), "%s", to);
        r = hf_parts_publish(data_dir, dir_fd, &m, stamps, err);
    }
    if (r < 0)
        hf_parts_give_up(data_dir, to);
    return r;
}
