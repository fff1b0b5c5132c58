#include "engine/disk/parts.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/path.h"
#include "engine/disk/pool.h"

#define STAMPS_MAX (1u << 20)

char *hf_parts_path(const char *data_dir, const char *id)
{
    return hf_xasprintf("%s/pool/snapshots/%s", data_dir, id);
}

int hf_parts_open_dir(const char *data_dir, const char *id)
{
    hf_auto_free char *path = hf_parts_path(data_dir, id);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int hf_parts_lock(int dir_fd)
{
    int r;
    do
        r = flock(dir_fd, LOCK_EX) < 0 ? -errno : 0;
    while (r == -EINTR);
    return r;
}

static bool is_own_file(const char *name)
{
    static const char *const own[] = {"manifest.json", "manifest.tmp", "stamps",
                                      "stamps.tmp",    "leaves",       "leaves.tmp"};
    for (size_t i = 0; i < HF_ARRAY_LEN(own); i++)
        if (strcmp(name, own[i]) == 0)
            return true;
    return false;
}

static int add_part(struct hf_manifest *m, const char *name, uint64_t bytes, struct hf_err *err)
{
    if (m->n_parts == HF_SNAPSHOT_PART_MAX)
        return hf_err_set(err, -EMSGSIZE, "a snapshot has %u parts at most", HF_SNAPSHOT_PART_MAX);
    m->parts = hf_xrealloc(m->parts, (m->n_parts + 1) * sizeof(*m->parts));
    struct hf_snapshot_part *p = &m->parts[m->n_parts++];
    *p = (struct hf_snapshot_part){.bytes = bytes};
    (void)snprintf(p->name, sizeof(p->name), "%s", name);
    return 0;
}

static int list_dir(int dir_fd, const char *prefix, struct hf_manifest *m, struct hf_err *err);

static int list_entry(int dir_fd, const char *prefix, const char *name, struct hf_manifest *m,
                      struct hf_err *err)
{
    hf_auto_free char *full = hf_xasprintf("%s%s", prefix, name);
    struct stat st;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return hf_err_set(err, -errno, "cannot read the part %s: %s", full, strerror(errno));
    if (!hf_part_name_good(full) || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
        return hf_err_set(err, -EINVAL, "%s can't be a part of a snapshot", full);
    if (S_ISREG(st.st_mode))
        return add_part(m, full, (uint64_t)st.st_size, err);
    int sub = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (sub < 0)
        return hf_err_set(err, -errno, "cannot read the directory %s: %s", full, strerror(errno));
    hf_auto_free char *below = hf_xasprintf("%s/", full);
    return list_dir(sub, below, m, err);
}

/* Takes dir_fd. */
static int list_dir(int dir_fd, const char *prefix, struct hf_manifest *m, struct hf_err *err)
{
    DIR *d = fdopendir(dir_fd);
    if (!d) {
        (void)hf_close(dir_fd);
        return hf_err_set(err, -ENOMEM, "out of memory");
    }
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(d));) {
        bool skip = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
                    (!*prefix && is_own_file(e->d_name));
        if (!skip)
            r = list_entry(dirfd(d), prefix, e->d_name, m, err);
    }
    (void)closedir(d);
    return r;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hf_snapshot_part *)a)->name, ((const struct hf_snapshot_part *)b)->name);
}

int hf_parts_list(int dir_fd, struct hf_manifest *m, struct hf_err *err)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return hf_err_set(err, -errno, "cannot read the snapshot's directory: %s", strerror(errno));
    int r = list_dir(fd, "", m, err);
    if (r == 0 && m->n_parts)
        qsort(m->parts, m->n_parts, sizeof(*m->parts), by_name);
    return r;
}

int hf_parts_open(int dir_fd, const struct hf_snapshot_part *p, uint64_t *ret_bytes, struct hf_err *err)
{
    hf_auto_close int fd = hf_open_in_root_nolink(dir_fd, p->name, O_RDONLY | O_NONBLOCK, 0);
    if (fd == -ENOENT)
        return hf_err_set(err, -EUCLEAN, "the part %s is missing", p->name);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return hf_err_set(err, fd < 0 ? fd : -errno, "cannot open the part %s: %s", p->name,
                          strerror(fd < 0 ? -fd : errno));
    if (!S_ISREG(st.st_mode))
        return hf_err_set(err, -EUCLEAN, "the part %s is no file", p->name);
    if (ret_bytes)
        *ret_bytes = (uint64_t)st.st_size;
    return hf_take_fd(&fd);
}

int hf_parts_open_sized(int dir_fd, const struct hf_snapshot_part *p, struct hf_err *err)
{
    uint64_t bytes = 0;
    hf_auto_close int fd = hf_parts_open(dir_fd, p, &bytes, err);
    if (fd >= 0 && bytes != p->bytes)
        return hf_err_set(err, -EUCLEAN, "the part %s is damaged: it has %llu bytes instead of %llu", p->name,
                          (unsigned long long)bytes, (unsigned long long)p->bytes);
    return hf_take_fd(&fd);
}

/* The directories below the snapshot's own that have parts. */
static int sync_dirs(int dir_fd, const struct hf_manifest *m)
{
    char last[HF_SNAPSHOT_PART_NAME_MAX + 1] = "";
    for (size_t i = 0; i < m->n_parts; i++) {
        char dir[HF_SNAPSHOT_PART_NAME_MAX + 1];
        (void)snprintf(dir, sizeof(dir), "%s", m->parts[i].name);
        for (char *slash; (slash = strrchr(dir, '/'));) {
            *slash = '\0';
            if (strcmp(dir, last) == 0)
                break;
            (void)snprintf(last, sizeof(last), "%s", dir);
            hf_auto_close int fd = hf_open_in_root_nolink(dir_fd, dir, O_RDONLY | O_DIRECTORY, 0);
            if (fd < 0 || fsync(fd) < 0)
                return fd < 0 ? fd : -errno;
        }
    }
    return 0;
}

int hf_parts_sync(int dir_fd, const struct hf_manifest *m, struct hf_err *err)
{
    /* First everything is on its way, then each is waited for: a fifth of the time when there are many. */
    for (size_t i = 0; i < m->n_parts; i++) {
        hf_auto_close int fd = hf_parts_open(dir_fd, &m->parts[i], NULL, err);
        if (fd < 0)
            return fd;
        (void)sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    for (size_t i = 0; i < m->n_parts; i++) {
        hf_auto_close int fd = hf_parts_open(dir_fd, &m->parts[i], NULL, err);
        if (fd < 0)
            return fd;
        if (fsync(fd) < 0)
            return hf_err_set(err, -errno, "cannot write the part %s to the disk: %s", m->parts[i].name,
                              strerror(errno));
    }
    int r = sync_dirs(dir_fd, m);
    return r < 0 ? hf_err_set(err, r, "cannot write the snapshot to the disk: %s", strerror(-r)) : 0;
}

int hf_parts_read_manifest(int dir_fd, const char *id, struct hf_manifest *ret, struct hf_err *err)
{
    hf_auto_free char *text = NULL;
    size_t n;
    int r = hf_read_file_at(dir_fd, "manifest.json", HF_SNAPSHOT_MANIFEST_MAX, &text, &n);
    if (r == -ENOENT)
        return hf_err_set(err, r, "there is no snapshot %s", id);
    if (r < 0)
        return hf_err_set(err, r, "cannot read the manifest of snapshot %s: %s", id, strerror(-r));
    hf_auto_manifest struct hf_manifest m = {0};
    r = hf_manifest_parse(text, n, &m, err);
    if (r == 0 && strcmp(m.meta.id, id) != 0)
        r = hf_err_set(err, -EUCLEAN, "the manifest is that of %s", m.meta.id);
    if (r < 0)
        return r;
    *ret = m;
    m = (struct hf_manifest){0};
    return 0;
}

static int write_at(int dir_fd, const char *name, const char *text, bool sync)
{
    hf_auto_close int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = hf_write_all(fd, text, strlen(text));
    return r == 0 && sync && fsync(fd) < 0 ? -errno : r;
}

int hf_parts_write_manifest(int dir_fd, const struct hf_manifest *m, struct hf_err *err)
{
    hf_auto_free char *text = hf_manifest_text(m);
    if (!text)
        return hf_err_set(err, -EINVAL,
                          "cannot write the manifest of snapshot %s: its config is no JSON object",
                          m->meta.id);
    if (strlen(text) > HF_SNAPSHOT_MANIFEST_MAX)
        return hf_err_set(err, -EMSGSIZE, "the manifest of snapshot %s would be too large", m->meta.id);
    int r = write_at(dir_fd, "manifest.tmp", text, true);
    hf_killpoint("snapshot.written");
    if (r == 0 && renameat(dir_fd, "manifest.tmp", dir_fd, "manifest.json") < 0)
        r = -errno;
    hf_killpoint("snapshot.renamed");
    if (r == 0 && fsync(dir_fd) < 0)
        r = -errno;
    return r < 0
               ? hf_err_set(err, r, "cannot write the manifest of snapshot %s: %s", m->meta.id, strerror(-r))
               : 0;
}

json_t *hf_stamps_read(int dir_fd)
{
    hf_auto_free char *text = NULL;
    size_t n;
    if (hf_read_file_at(dir_fd, "stamps", STAMPS_MAX, &text, &n) < 0)
        return json_object();
    json_t *j = json_loadb(text, n, 0, NULL);
    if (json_is_object(j))
        return j;
    json_decref(j);
    return json_object();
}

static json_t *stamp_of(int part_fd)
{
    struct stat st;
    if (fstat(part_fd, &st) < 0)
        return NULL;
    return json_pack("[I, I, I]", (json_int_t)st.st_size,
                     (json_int_t)st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec, (json_int_t)st.st_ino);
}

bool hf_stamps_fit(const json_t *stamps, const struct hf_snapshot_part *p, int part_fd)
{
    hf_auto_json json_t *now = stamp_of(part_fd);
    return now && json_equal(json_object_get(stamps, p->name), now);
}

void hf_stamps_take(json_t *stamps, const struct hf_snapshot_part *p, int part_fd)
{
    (void)json_object_set_new(stamps, p->name, stamp_of(part_fd));
}

void hf_stamps_write(int dir_fd, const json_t *stamps)
{
    hf_auto_free char *text = json_dumps(stamps, JSON_COMPACT);
    if (text && write_at(dir_fd, "stamps.tmp", text, false) == 0)
        (void)renameat(dir_fd, "stamps.tmp", dir_fd, "stamps");
}

int hf_parts_load(const char *data_dir, const char *id, int *ret_dir_fd, struct hf_manifest *ret,
                  struct hf_err *err)
{
    int r = hf_disk_check_name("snapshot", id, err);
    if (r < 0)
        return r;
    hf_auto_close int dir_fd = hf_parts_open_dir(data_dir, id);
    if (dir_fd == -ENOENT)
        return hf_err_set(err, dir_fd, "there is no snapshot %s", id);
    if (dir_fd < 0)
        return hf_err_set(err, dir_fd, "cannot open snapshot %s: %s", id, strerror(-dir_fd));
    r = hf_parts_read_manifest(dir_fd, id, ret, err);
    if (r < 0)
        return r == -ENOENT ? r : hf_err_wrap(err, "snapshot %s is refused", id);
    *ret_dir_fd = hf_take_fd(&dir_fd);
    return 0;
}

int hf_parts_publish(const char *data_dir, int dir_fd, const struct hf_manifest *m, const json_t *stamps,
                     struct hf_err *err)
{
    int r = hf_parts_sync(dir_fd, m, err);
    hf_killpoint("snapshot.synced");
    if (r == 0)
        r = hf_parts_write_manifest(dir_fd, m, err);
    if (r < 0)
        return r;
    hf_auto_free char *parent = hf_xasprintf("%s/pool/snapshots", data_dir);
    r = hf_disk_sync_path(parent);
    if (r < 0)
        return hf_err_set(err, r, "cannot write %s to the disk: %s", parent, strerror(-r));
    hf_killpoint("snapshot.committed");
    hf_stamps_write(dir_fd, stamps);
    return 0;
}
