/* Reads a snapshot from a stream of another machine. Nothing in it is trusted: the manifest comes first and
 * says what may follow, each file once and of the size that it says, and nothing is a snapshot before every
 * hash was compared. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/pool.h"
#include "engine/disk/stream.h"

#define READ_BLOCK (256u << 10)
/* Zeros in the stream become holes again in pieces of this size, whatever packed them. */
#define HOLE_BLOCK 4096u

struct job {
    const char *data_dir, *id;
    char *dir;
    struct archive *a;
    struct hf_manifest m;
    bool *seen; /* by part */
    bool have_template;
    struct hf_staging staging; /* for the template's image */
    uint64_t since_room;
};

static int refuse(struct job *j, struct hf_err *err, const char *name, const char *why)
{
    return hf_err_set(err, -EUCLEAN, "the snapshot file is refused: %s%s%s", name, *name ? ": " : "", why);
}

static int broken(struct job *j, struct hf_err *err)
{
    const char *why = archive_error_string(j->a);
    return refuse(j, err, "", why ? why : "it ends early");
}

/* Names come from elsewhere: for messages without control characters. */
static const char *shown(const char *name, char out[96])
{
    (void)snprintf(out, 96, "%s", name ? name : "(no name)");
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
            *c = '?';
    return out;
}

static int take_manifest(struct job *j, struct archive_entry *e, struct hf_err *err)
{
    char name[96];
    const char *given = archive_entry_pathname(e);
    if (!given || strcmp(given, HF_STREAM_MANIFEST) != 0 || archive_entry_filetype(e) != AE_IFREG)
        return refuse(j, err, shown(given, name), "the first entry must be manifest.json");
    la_int64_t size = archive_entry_size(e);
    if (size <= 0 || size > (la_int64_t)HF_SNAPSHOT_MANIFEST_MAX)
        return refuse(j, err, HF_STREAM_MANIFEST, "it is empty or too large");
    hf_auto_free char *text = hf_xmalloc((size_t)size);
    for (la_int64_t have = 0; have < size;) {
        la_ssize_t n = archive_read_data(j->a, text + have, (size_t)(size - have));
        if (n <= 0)
            return broken(j, err);
        have += n;
    }
    int r = hf_manifest_parse(text, (size_t)size, &j->m, err);
    if (r < 0)
        return hf_err_wrap(err, "the snapshot file is refused");
    for (size_t i = 0; i < j->m.n_parts; i++)
        if (!j->m.parts[i].sha256[0])
            return refuse(j, err, j->m.parts[i].name, "its hash is missing");
    j->seen = hf_xcalloc(j->m.n_parts, sizeof(*j->seen));
    return 0;
}

static int find_part(const struct hf_manifest *m, const char *name)
{
    for (size_t i = 0; i < m->n_parts; i++)
        if (strcmp(m->parts[i].name, name) == 0)
            return (int)i;
    return -1;
}

static int check_room(struct job *j, size_t n, struct hf_err *err)
{
    j->since_room += n;
    if (j->since_room < HF_STREAM_ROOM_EVERY)
        return 0;
    j->since_room = 0;
    return hf_disk_pool_room(j->data_dir, 0, 0, err);
}

/* A piece of a part. Zeros are left out. */
static int put_piece(int fd, const char *p, size_t n, off_t at)
{
    while (n) {
        size_t len = HF_MIN(n, (size_t)HOLE_BLOCK - (size_t)at % HOLE_BLOCK);
        bool zero = hf_is_zero(p, len);
        while (!zero && len < n) { /* as much as can be written in one go */
            size_t more = HF_MIN(n - len, (size_t)HOLE_BLOCK);
            if (hf_is_zero(p + len, more))
                break;
            len += more;
        }
        for (size_t done = 0; !zero && done < len;) {
            ssize_t w = pwrite(fd, p + done, len - done, at + (off_t)done);
            if (w < 0 && errno != EINTR)
                return -errno;
            done += w > 0 ? (size_t)w : 0;
        }
        p += len;
        n -= len;
        at += (off_t)len;
    }
    return 0;
}

static int put_content(struct job *j, int fd, const char *name, uint64_t size, struct hf_err *err)
{
    for (;;) {
        const void *p;
        size_t n;
        la_int64_t at;
        int ar = archive_read_data_block(j->a, &p, &n, &at);
        if (ar == ARCHIVE_EOF)
            break;
        if (ar < ARCHIVE_WARN)
            return broken(j, err);
        if (at < 0 || (uint64_t)at > size || n > size - (uint64_t)at)
            return refuse(j, err, name, "it is larger than it says");
        int r = check_room(j, n, err);
        if (r < 0)
            return r;
        r = put_piece(fd, p, n, at);
        if (r < 0)
            return hf_err_set(err, r, "cannot write the part %s: %s", name, strerror(-r));
    }
    if (ftruncate(fd, (off_t)size) < 0)
        return hf_err_set(err, -errno, "cannot write the part %s: %s", name, strerror(errno));
    return 0;
}

static int take_template(struct job *j, struct archive_entry *e, struct hf_err *err)
{
    la_int64_t size = archive_entry_size(e);
    if (j->have_template || size < 0 || (uint64_t)size > HF_SNAPSHOT_PART_BYTES_MAX)
        return refuse(j, err, HF_STREAM_TEMPLATE, "it is there twice, or too large");
    j->have_template = true;
    int r = hf_staging_begin(&j->staging, j->data_dir, err);
    if (r < 0)
        return r;
    hf_auto_close int fd = open(j->staging.image, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return hf_err_set(err, -errno, "cannot make %s: %s", j->staging.image, strerror(errno));
    return put_content(j, fd, HF_STREAM_TEMPLATE, (uint64_t)size, err);
}

static int take_entry(struct job *j, struct archive_entry *e, struct hf_err *err)
{
    char buf[96];
    const char *name = archive_entry_pathname(e);
    if (!name || archive_entry_filetype(e) != AE_IFREG || archive_entry_hardlink(e))
        return refuse(j, err, shown(name, buf), "only files may be in it");
    if (strcmp(name, HF_STREAM_TEMPLATE) == 0)
        return take_template(j, e, err);
    int i = find_part(&j->m, name);
    if (i < 0 || j->seen[i])
        return refuse(j, err, shown(name, buf),
                      i < 0 ? "the manifest knows no such part" : "it is there twice");
    const struct hf_snapshot_part *p = &j->m.parts[i];
    j->seen[i] = true;
    if (archive_entry_size(e) != (la_int64_t)p->bytes)
        return refuse(j, err, p->name, "its size is not that of the manifest");
    hf_auto_free char *path = hf_xasprintf("%s/%s", j->dir, p->name);
    int r = hf_parts_make_dirs(j->dir, p->name);
    mode_t mode = strchr(p->name, '/') ? 0644 : 0600; /* as a clone has them */
    hf_auto_close int fd = r < 0 ? r : open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return hf_err_set(err, r < 0 ? r : -errno, "cannot make the part %s: %s", p->name,
                          strerror(r < 0 ? -r : errno));
    return put_content(j, fd, p->name, p->bytes, err);
}

static int open_stream(struct job *j, int in_fd, struct hf_err *err)
{
    if (archive_read_support_format_tar(j->a) != ARCHIVE_OK ||
        archive_read_support_filter_zstd(j->a) != ARCHIVE_OK)
        return hf_err_set(err, -ENOSYS, "cannot import: libarchive was built without zstd");
    return archive_read_open_fd(j->a, in_fd, READ_BLOCK) == ARCHIVE_OK ? 0 : broken(j, err);
}

static int read_all(struct job *j, struct hf_err *err)
{
    struct archive_entry *e;
    if (archive_read_next_header(j->a, &e) < ARCHIVE_WARN)
        return broken(j, err);
    int r = take_manifest(j, e, err);
    if (r == 0)
        r = hf_parts_check_host(&j->m, err);
    if (r == 0)
        r = hf_snapshot_begin(j->data_dir, j->id, &j->dir, err);
    while (r == 0) {
        int ar = archive_read_next_header(j->a, &e);
        if (ar == ARCHIVE_EOF)
            break;
        r = ar < ARCHIVE_WARN ? broken(j, err) : take_entry(j, e, err);
    }
    for (size_t i = 0; r == 0 && i < j->m.n_parts; i++)
        if (!j->seen[i])
            r = refuse(j, err, j->m.parts[i].name, "this part is missing");
    return r;
}

static int check_hashes(struct job *j, int dir_fd, json_t *stamps, struct hf_err *err)
{
    for (size_t i = 0; i < j->m.n_parts; i++) {
        const struct hf_snapshot_part *p = &j->m.parts[i];
        char have[HF_HASH_HEX];
        hf_auto_close int fd = hf_parts_open_sized(dir_fd, p, err);
        if (fd < 0)
            return fd;
        int r = hf_hash_data(fd, NULL, have);
        if (r < 0)
            return hf_err_set(err, r, "cannot read the part %s: %s", p->name, strerror(-r));
        if (strcmp(have, p->sha256) != 0)
            return refuse(j, err, p->name, "this part is damaged: its SHA-256 differs");
        hf_stamps_take(stamps, p, fd);
    }
    return 0;
}

/* The template must be here in the end, and be the same. */
static int settle_template(struct job *j, struct hf_err *err)
{
    const struct hf_snapshot_meta *t = &j->m.meta;
    struct hf_err why = {0};
    char have[HF_HASH_HEX];
    int r = hf_disk_template_hash(j->data_dir, t->template_id, have, &why);
    if (r == -ENOENT && j->have_template) {
        r = hf_disk_template_install(j->data_dir, t->template_id, j->staging.image, t->template_sha256, err);
        if (r != -EEXIST)
            return r < 0 ? hf_err_wrap(err, "the snapshot file is refused") : 0;
        r = hf_disk_template_hash(j->data_dir, t->template_id, have, &why);
    }
    return hf_parts_check_template(&j->m, r < 0 ? NULL : have, why.msg, err);
}

static int import(struct job *j, int in_fd, struct hf_err *err)
{
    int r = open_stream(j, in_fd, err);
    if (r == 0)
        r = read_all(j, err);
    hf_killpoint("snapshot.unpacked");
    if (r < 0)
        return r;
    hf_auto_json json_t *stamps = json_object();
    hf_auto_close int dir_fd = hf_parts_open_dir(j->data_dir, j->id);
    if (dir_fd < 0)
        return hf_err_set(err, dir_fd, "cannot open %s: %s", j->dir, strerror(-dir_fd));
    r = check_hashes(j, dir_fd, stamps, err);
    if (r == 0)
        r = settle_template(j, err);
    hf_killpoint("snapshot.settled");
    (void)snprintf(j->m.meta.id, sizeof(j->m.meta.id), "%s", j->id);
    return r < 0 ? r : hf_parts_publish(j->data_dir, dir_fd, &j->m, stamps, err);
}

int hf_snapshot_import(const char *data_dir, const char *id, int in_fd, struct hf_snapshot_meta *ret,
                       struct hf_err *err)
{
    int r = hf_disk_check_name("snapshot", id, err);
    if (r < 0)
        return r;
    struct job j = {.data_dir = data_dir, .id = id, .staging = HF_STAGING_INIT};
    j.a = archive_read_new();
    r = import(&j, in_fd, err);
    if (r == 0 && ret) {
        *ret = j.m.meta;
        j.m.meta.config = NULL;
    }
    if (r < 0 && j.dir)
        hf_parts_give_up(data_dir, id);
    (void)archive_read_free(j.a);
    hf_staging_end(&j.staging);
    hf_manifest_done(&j.m);
    free(j.seen);
    free(j.dir);
    return r;
}
