/* The life of a snapshot's directory. See snapshot.h for the files and their order. */
#include "engine/disk/snapshot.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/parts.h"
#include "engine/disk/pool.h"

static int failed(struct hf_err *err, int r, const char *what, const char *id)
{
    return hf_err_set(err, r, "cannot %s snapshot %s: %s", what, id, strerror(-r));
}

static int sync_snapshots(const char *data_dir)
{
    hf_auto_free char *dir = hf_xasprintf("%s/pool/snapshots", data_dir);
    return hf_disk_sync_path(dir);
}

int hf_snapshot_begin(const char *data_dir, const char *id, char **ret_dir, struct hf_err *err)
{
    int r = hf_disk_check_name("snapshot", id, err);
    if (r < 0)
        return r;
    hf_auto_free char *dir = hf_parts_path(data_dir, id);
    hf_auto_free char *manifest = hf_xasprintf("%s/manifest.json", dir);
    if (access(manifest, F_OK) == 0)
        return hf_err_set(err, -EEXIST, "there is a snapshot %s already", id);
    r = hf_remove_tree(dir);
    if (r == 0)
        r = hf_mkdir_p(dir, 0700);
    if (r < 0)
        return failed(err, r, "make the directory of", id);
    hf_killpoint("snapshot.begun");
    *ret_dir = hf_take_ptr(dir);
    return 0;
}

/* The number of the image format stands in mem/inventory.img: two 32-bit magic numbers, the length of a
 * protobuf message, and that message, whose first field it is. For people only: CRIU checks by itself. */
static uint32_t criu_image_version(int dir_fd)
{
    unsigned char head[14];
    hf_auto_close int fd = hf_open_in_root_nolink(dir_fd, "mem/inventory.img", O_RDONLY, 0);
    if (fd < 0 || pread(fd, head, sizeof(head), 0) != (ssize_t)sizeof(head))
        return 0;
    return head[12] == 0x08 && head[13] < 0x80 ? head[13] : 0;
}

/* Only what the parent's disk does not share is read; its leaves are kept for the next one. */
static int hash_disk(const char *data_dir, const struct hf_snapshot_meta *meta, int dir_fd, int fd,
                     const bool *stop, char ret_hex[HF_HASH_HEX])
{
    struct hf_leaves_base base = {.fd = -1};
    hf_auto_leaves struct hf_leaves leaves = {0};
    bool known = hf_leaves_base_open(data_dir, meta->parent, &base) == 0;
    int r = hf_leaves_read(fd, known ? &base : NULL, stop, &leaves);
    hf_leaves_base_done(&base);
    if (r == 0)
        r = hf_leaves_hash(&leaves, ret_hex);
    if (r == 0)
        hf_leaves_save(dir_fd, &leaves);
    return r;
}

/* Hashes the parts that lack it, small ones only when small_only, and stamps them. */
static int hash_parts(const char *data_dir, int dir_fd, struct hf_manifest *m, json_t *stamps,
                      bool small_only, const bool *stop, struct hf_err *err)
{
    for (size_t i = 0; i < m->n_parts; i++) {
        struct hf_snapshot_part *p = &m->parts[i];
        if (p->sha256[0] || (small_only && p->bytes > HF_SNAPSHOT_HASH_AT_ONCE))
            continue;
        hf_auto_close int fd = hf_parts_open_sized(dir_fd, p, err);
        if (fd < 0)
            return fd;
        int r = strcmp(p->name, "disk.img") == 0 ? hash_disk(data_dir, &m->meta, dir_fd, fd, stop, p->sha256)
                                                 : hf_hash_data(fd, stop, p->sha256);
        if (r < 0)
            return hf_err_set(err, r, "cannot hash the part %s: %s", p->name, strerror(-r));
        hf_stamps_take(stamps, p, fd);
    }
    return 0;
}

static int fill_manifest(const char *data_dir, int dir_fd, const struct hf_snapshot_meta *meta,
                         struct hf_manifest *m, struct hf_err *err)
{
    m->meta = *meta;
    m->meta.config = meta->config ? json_incref(meta->config) : json_object();
    int r = hf_host_read(&m->host, err);
    if (r == 0)
        r = hf_disk_template_hash(data_dir, meta->template_id, m->meta.template_sha256, err);
    if (r == 0)
        r = hf_parts_list(dir_fd, m, err);
    if (r < 0)
        return r;
    bool disk = false, memory = false;
    for (size_t i = 0; i < m->n_parts; i++) {
        memory |= strncmp(m->parts[i].name, "mem/", 4) == 0;
        if (strcmp(m->parts[i].name, "disk.img") != 0)
            continue;
        disk = true;
        m->meta.disk_bytes = m->parts[i].bytes;
    }
    if (!disk || memory != meta->memory)
        return hf_err_set(err, -EINVAL, "snapshot %s has %s", meta->id,
                          !disk    ? "no disk.img"
                          : memory ? "images of processes, and shall be of the disk only"
                                   : "no images of processes");
    m->host.criu_image = meta->memory ? criu_image_version(dir_fd) : 0;
    return 0;
}

int hf_snapshot_commit(const char *data_dir, const struct hf_snapshot_meta *meta, struct hf_err *err)
{
    int r = hf_disk_check_name("snapshot", meta->id, err);
    if (r < 0)
        return r;
    hf_auto_manifest struct hf_manifest m = {0};
    hf_auto_close int dir_fd = hf_parts_open_dir(data_dir, meta->id);
    if (dir_fd < 0)
        return failed(err, dir_fd, "open the directory of", meta->id);
    if (faccessat(dir_fd, "manifest.json", F_OK, 0) == 0)
        return 0;
    hf_auto_json json_t *stamps = json_object();
    r = fill_manifest(data_dir, dir_fd, meta, &m, err);
    if (r == 0)
        r = hash_parts(data_dir, dir_fd, &m, stamps, true, NULL, err);
    return r < 0 ? r : hf_parts_publish(data_dir, dir_fd, &m, stamps, err);
}

/* Under the lock: what is hashed in `from` goes into the manifest as it is now. */
static int merge_hashes(int dir_fd, const struct hf_manifest *from, const json_t *stamps, struct hf_err *err)
{
    int r = hf_parts_lock(dir_fd);
    if (r < 0)
        return failed(err, r, "lock", from->meta.id);
    hf_auto_manifest struct hf_manifest now = {0};
    r = hf_parts_read_manifest(dir_fd, from->meta.id, &now, err);
    if (r < 0)
        return r;
    if (now.n_parts != from->n_parts)
        return hf_err_set(err, -EUCLEAN, "the manifest of snapshot %s was replaced", from->meta.id);
    for (size_t i = 0; i < now.n_parts; i++)
        if (!now.parts[i].sha256[0] && strcmp(now.parts[i].name, from->parts[i].name) == 0)
            memcpy(now.parts[i].sha256, from->parts[i].sha256, HF_HASH_HEX);
    r = hf_parts_write_manifest(dir_fd, &now, err);
    if (r == 0)
        hf_stamps_write(dir_fd, stamps);
    return r;
}

static bool is_sealed(const struct hf_manifest *m)
{
    for (size_t i = 0; i < m->n_parts; i++)
        if (!m->parts[i].sha256[0])
            return false;
    return true;
}

int hf_snapshot_seal(const char *data_dir, const char *id, const bool *stop, struct hf_err *err)
{
    hf_auto_manifest struct hf_manifest m = {0};
    hf_auto_close int dir_fd = -1;
    int r = hf_parts_load(data_dir, id, &dir_fd, &m, err);
    if (r < 0 || is_sealed(&m))
        return r;
    hf_auto_json json_t *stamps = hf_stamps_read(dir_fd);
    struct hf_err why = {0};
    int stopped = hash_parts(data_dir, dir_fd, &m, stamps, false, stop, &why);
    hf_killpoint("snapshot.hashed");
    /* What was done before it was stopped is kept. */
    if (stopped == 0 || stopped == -ECANCELED)
        r = merge_hashes(dir_fd, &m, stamps, err);
    if (r < 0)
        return r;
    if (stopped == 0)
        return 0;
    return hf_err_set(err, stopped, "snapshot %s: %s", id, why.msg);
}

/* rehash: even where the stamp fits. */
static int check_part(int dir_fd, const struct hf_snapshot_part *p, json_t *stamps, bool rehash,
                      bool *ret_changed, struct hf_err *err)
{
    hf_auto_close int fd = hf_parts_open_sized(dir_fd, p, err);
    if (fd < 0)
        return fd;
    if (!p->sha256[0] || (!rehash && hf_stamps_fit(stamps, p, fd)))
        return 0;
    char have[HF_HASH_HEX];
    int r = hf_hash_data(fd, NULL, have);
    if (r < 0)
        return hf_err_set(err, r, "cannot read the part %s: %s", p->name, strerror(-r));
    if (strcmp(have, p->sha256) != 0)
        return hf_err_set(err, -EUCLEAN, "the part %s is damaged: its SHA-256 is %.12s… instead of %.12s…",
                          p->name, have, p->sha256);
    hf_stamps_take(stamps, p, fd);
    *ret_changed = true;
    return 0;
}

static int check_parts(int dir_fd, const struct hf_manifest *m, bool rehash, struct hf_err *err)
{
    bool changed = false;
    hf_auto_json json_t *stamps = hf_stamps_read(dir_fd);
    for (size_t i = 0; i < m->n_parts; i++) {
        int r = check_part(dir_fd, &m->parts[i], stamps, rehash, &changed, err);
        if (r < 0)
            return hf_err_wrap(err, "snapshot %s is refused", m->meta.id);
    }
    if (changed)
        hf_stamps_write(dir_fd, stamps);
    return 0;
}

int hf_parts_check_host(const struct hf_manifest *m, struct hf_err *err)
{
    struct hf_snapshot_host here = {0};
    int r = hf_host_read(&here, err);
    if (r == 0 && hf_host_check(&m->host, &here, m->meta.memory, err) < 0)
        r = hf_err_wrap(err, "snapshot %s is refused", m->meta.id);
    json_decref(here.cpu);
    return r;
}

int hf_parts_check_template(const struct hf_manifest *m, const char *have, const char *why,
                            struct hf_err *err)
{
    if (!have)
        return hf_err_set(err, -EXDEV,
                          "snapshot %s is refused: it needs the template %s (SHA-256 %.12s…): %s", m->meta.id,
                          m->meta.template_id, m->meta.template_sha256, why);
    if (strcmp(have, m->meta.template_sha256) != 0)
        return hf_err_set(err, -EXDEV,
                          "snapshot %s is refused: it needs the template %s with SHA-256 %.12s…, and the one "
                          "here has %.12s…",
                          m->meta.id, m->meta.template_id, m->meta.template_sha256, have);
    return 0;
}

static int check_foreign(const char *data_dir, const struct hf_manifest *m, struct hf_err *err)
{
    char have[HF_HASH_HEX];
    struct hf_err why = {0};
    int r = hf_parts_check_host(m, err);
    if (r < 0)
        return r;
    bool here = hf_disk_template_hash(data_dir, m->meta.template_id, have, &why) == 0;
    return hf_parts_check_template(m, here ? have : NULL, why.msg, err);
}

int hf_snapshot_open(const char *data_dir, const char *id, struct hf_snapshot_meta *ret, struct hf_err *err)
{
    hf_auto_manifest struct hf_manifest m = {0};
    hf_auto_close int dir_fd = -1;
    int r = hf_parts_load(data_dir, id, &dir_fd, &m, err);
    if (r == 0)
        r = check_foreign(data_dir, &m, err);
    if (r == 0)
        r = check_parts(dir_fd, &m, false, err);
    if (r == 0 && ret) {
        *ret = m.meta;
        m.meta.config = NULL;
    }
    return r;
}

int hf_snapshot_verify(const char *data_dir, const char *id, unsigned *ret_unsealed, struct hf_err *err)
{
    hf_auto_manifest struct hf_manifest m = {0};
    hf_auto_close int dir_fd = -1;
    int r = hf_parts_load(data_dir, id, &dir_fd, &m, err);
    if (r == 0)
        r = check_foreign(data_dir, &m, err);
    if (r == 0)
        r = check_parts(dir_fd, &m, true, err);
    if (r < 0)
        return r;
    unsigned unsealed = 0;
    for (size_t i = 0; i < m.n_parts; i++)
        unsealed += !m.parts[i].sha256[0];
    *ret_unsealed = unsealed;
    return 0;
}

int hf_snapshot_remove(const char *data_dir, const char *id, struct hf_err *err)
{
    int r = hf_disk_check_name("snapshot", id, err);
    if (r < 0)
        return r;
    hf_auto_free char *dir = hf_parts_path(data_dir, id);
    hf_auto_close int dir_fd = hf_parts_open_dir(data_dir, id);
    if (dir_fd == -ENOENT)
        return 0;
    r = dir_fd < 0 ? dir_fd : hf_parts_lock(dir_fd);
    if (r == 0 && unlinkat(dir_fd, "manifest.json", 0) < 0 && errno != ENOENT)
        r = -errno;
    if (r == 0 && fsync(dir_fd) < 0)
        r = -errno;
    hf_killpoint("snapshot.unlisted");
    if (r == 0)
        r = hf_remove_tree(dir);
    if (r == 0)
        r = sync_snapshots(data_dir);
    return r < 0 ? failed(err, r, "remove", id) : 0;
}

int hf_snapshot_each(const char *data_dir, void (*fn)(void *arg, const char *id, bool complete), void *arg,
                     struct hf_err *err)
{
    hf_auto_free char *path = hf_xasprintf("%s/pool/snapshots", data_dir);
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOENT ? 0 : hf_err_set(err, -errno, "cannot read %s: %s", path, strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        if (hf_disk_check_name("snapshot", e->d_name, NULL) < 0)
            continue;
        hf_auto_free char *manifest = hf_xasprintf("%s/manifest.json", e->d_name);
        fn(arg, e->d_name, faccessat(dirfd(d), manifest, F_OK, AT_SYMLINK_NOFOLLOW) == 0);
    }
    (void)closedir(d);
    return 0;
}

void hf_parts_give_up(const char *data_dir, const char *id)
{
    /* What can't be removed now is no snapshot; the next begin or a collection removes it. */
    struct hf_err ignored;
    int r = hf_snapshot_remove(data_dir, id, &ignored);
    (void)r;
}
