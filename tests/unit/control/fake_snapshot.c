/* Snapshots as directories DATA/pool/snapshots/<id> with the file `manifest`: what the control plane's tests
 * need of engine/disk/snapshot.h. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/snapshot.h"

static char *file_of(const char *data_dir, const char *id, const char *name)
{
    return hf_xasprintf("%s/pool/snapshots/%s/%s", data_dir, id, name);
}

void hf_snapshot_meta_done(struct hf_snapshot_meta *m)
{
    json_decref(m->config);
    m->config = NULL;
}

int hf_disk_pool_room(const char *data_dir, uint64_t need, uint64_t max_bytes, struct hf_err *err)
{
    return getenv("HF_FAKE_NO_SPACE") ? hf_err_set(err, -ENOSPC, "the pool is full") : 0;
}

int hf_snapshot_begin(const char *data_dir, const char *id, char **ret_dir, struct hf_err *err)
{
    hf_auto_free char *manifest = file_of(data_dir, id, "manifest");
    hf_auto_free char *dir = file_of(data_dir, id, "");
    if (access(manifest, F_OK) == 0)
        return hf_err_set(err, -EEXIST, "there is a snapshot %s", id);
    if (hf_mkdir_p(dir, 0700) < 0)
        abort();
    *ret_dir = hf_take_ptr(dir);
    return 0;
}

int hf_snapshot_commit(const char *data_dir, const struct hf_snapshot_meta *m, struct hf_err *err)
{
    hf_auto_free char *manifest = file_of(data_dir, m->id, "manifest");
    const char *kind = m->memory ? "full" : "disk";
    int r = hf_write_file_atomic(manifest, kind, strlen(kind), 0600);
    return r < 0 ? hf_err_set(err, r, "cannot write %s", manifest) : 0;
}

int hf_snapshot_seal(const char *data_dir, const char *id, const bool *stop, struct hf_err *err)
{
    return *stop ? -ECANCELED : 0;
}

int hf_snapshot_open(const char *data_dir, const char *id, struct hf_snapshot_meta *ret, struct hf_err *err)
{
    hf_auto_free char *manifest = file_of(data_dir, id, "manifest");
    hf_auto_free char *text = NULL;
    size_t n = 0;
    if (hf_read_file(manifest, 64, &text, &n) < 0)
        return hf_err_set(err, -ENOENT, "there is no snapshot %s", id);
    if (strcmp(text, "damaged") == 0)
        return hf_err_set(err, -EUCLEAN, "the part disk.img of snapshot %s is damaged", id);
    if (ret) {
        *ret = (struct hf_snapshot_meta){.memory = strcmp(text, "full") == 0, .config = json_object()};
        (void)snprintf(ret->id, sizeof(ret->id), "%s", id);
    }
    return 0;
}

int hf_snapshot_verify(const char *data_dir, const char *id, unsigned *ret_unsealed, struct hf_err *err)
{
    *ret_unsealed = 0;
    return hf_snapshot_open(data_dir, id, NULL, err);
}

int hf_snapshot_remove(const char *data_dir, const char *id, struct hf_err *err)
{
    hf_auto_free char *dir = file_of(data_dir, id, "");
    int r = hf_remove_tree(dir);
    return r < 0 ? hf_err_set(err, r, "cannot remove %s", dir) : 0;
}

int hf_snapshot_clone(const char *data_dir, const char *from, const char *to, struct hf_err *err)
{
    hf_auto_free char *dir = NULL;
    struct hf_snapshot_meta m = {0};
    int r = hf_snapshot_open(data_dir, from, &m, err);
    if (r == 0)
        r = hf_snapshot_begin(data_dir, to, &dir, err);
    (void)snprintf(m.id, sizeof(m.id), "%s", to);
    if (r == 0)
        r = hf_snapshot_commit(data_dir, &m, err);
    hf_snapshot_meta_done(&m);
    return r;
}

int hf_snapshot_usage(const char *data_dir, const char *id, uint64_t *ret_exclusive, uint64_t *ret_shared,
                      struct hf_err *err)
{
    *ret_exclusive = 4096;
    *ret_shared = 8192;
    return 0;
}

int hf_snapshot_each(const char *data_dir, void (*fn)(void *arg, const char *id, bool complete), void *arg,
                     struct hf_err *err)
{
    hf_auto_free char *dir = hf_xasprintf("%s/pool/snapshots", data_dir);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        hf_auto_free char *manifest = file_of(data_dir, e->d_name, "manifest");
        if (e->d_name[0] != '.')
            fn(arg, e->d_name, access(manifest, F_OK) == 0);
    }
    if (d)
        (void)closedir(d);
    return 0;
}

int hf_snapshot_export(const char *data_dir, const char *id, bool with_template, int out_fd,
                       struct hf_err *err)
{
    int r = hf_snapshot_open(data_dir, id, NULL, err);
    return r == 0 ? hf_write_all(out_fd, id, strlen(id)) : r;
}

int hf_snapshot_import(const char *data_dir, const char *id, int in_fd, struct hf_snapshot_meta *ret,
                       struct hf_err *err)
{
    return hf_err_set(err, -EBADMSG, "the fake imports nothing");
}
