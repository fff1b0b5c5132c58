/* A snapshot as one stream: tar (pax) in zstd, the manifest first. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "engine/disk/pool.h"
#include "engine/disk/stream.h"

#define CHUNK (1u << 20)
/* The archive wants to be handed a file's holes too, and does not read them: this many bytes at once. */
#define HOLE_CHUNK (1ull << 30)

struct job {
    struct archive *a;
    char *chunk;
    void *hole; /* HOLE_CHUNK bytes that nobody touches */
    const char *id;
};

static int archive_failed(struct job *j, const char *name, struct hf_err *err)
{
    int r = archive_errno(j->a);
    const char *why = archive_error_string(j->a);
    return hf_err_set(err, r > 0 && r < 4096 ? -r : -EIO, "cannot export snapshot %s: %s: %s", j->id, name,
                      why ? why : "unknown failure");
}

static int put_bytes(struct job *j, const char *name, const void *p, size_t n, struct hf_err *err)
{
    return archive_write_data(j->a, p, n) == (la_ssize_t)n ? 0 : archive_failed(j, name, err);
}

/* The next piece of data at or after pos; *ret_from = *ret_to = size when there is none. */
static int next_data(int fd, off_t pos, off_t size, off_t *ret_from, off_t *ret_to)
{
    off_t from = lseek(fd, pos, SEEK_DATA);
    if (from < 0 && errno == ENXIO) {
        *ret_from = *ret_to = size;
        return 0;
    }
    off_t to = from < 0 ? from : lseek(fd, from, SEEK_HOLE);
    if (to < 0)
        return -errno;
    *ret_from = HF_MIN(from, size);
    *ret_to = HF_MIN(to, size);
    return 0;
}

static int add_map(struct archive_entry *e, int fd, off_t size)
{
    for (off_t pos = 0; pos < size;) {
        off_t from, to;
        int r = next_data(fd, pos, size, &from, &to);
        if (r < 0)
            return r;
        if (from < to)
            archive_entry_sparse_add_entry(e, from, to - from);
        else if (pos == 0) /* nothing but a hole: without any entry it would count as full */
            archive_entry_sparse_add_entry(e, size, 0);
        pos = to;
    }
    return 0;
}

static int put_hole(struct job *j, const char *name, uint64_t n, struct hf_err *err)
{
    for (int r = 0; n; n -= HF_MIN(n, HOLE_CHUNK)) {
        r = put_bytes(j, name, j->hole, (size_t)HF_MIN(n, HOLE_CHUNK), err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int put_data(struct job *j, const char *name, int fd, off_t from, off_t to, struct hf_err *err)
{
    while (from < to) {
        ssize_t n = pread(fd, j->chunk, (size_t)HF_MIN((off_t)CHUNK, to - from), from);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return hf_err_set(err, n < 0 ? -errno : -EIO, "cannot read the part %s: %s", name,
                              n < 0 ? strerror(errno) : "it ended early");
        int r = put_bytes(j, name, j->chunk, (size_t)n, err);
        if (r < 0)
            return r;
        from += n;
    }
    return 0;
}

static int put_header(struct job *j, const char *name, off_t size, int sparse_fd, struct hf_err *err)
{
    hf_cleanup(hf_entry_freep) struct archive_entry *e = archive_entry_new();
    archive_entry_set_pathname(e, name);
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_perm(e, 0600);
    archive_entry_set_size(e, size);
    int r = sparse_fd >= 0 ? add_map(e, sparse_fd, size) : 0;
    if (r < 0)
        return hf_err_set(err, r, "cannot read the part %s: %s", name, strerror(-r));
    return archive_write_header(j->a, e) == ARCHIVE_OK ? 0 : archive_failed(j, name, err);
}

/* Nobody writes parts or template images, so the map that was just taken still holds. */
static int put_file(struct job *j, const char *name, int fd, uint64_t bytes, struct hf_err *err)
{
    off_t size = (off_t)bytes;
    int r = put_header(j, name, size, fd, err);
    for (off_t pos = 0; r == 0 && pos < size;) {
        off_t from = size, to = size;
        r = next_data(fd, pos, size, &from, &to);
        if (r < 0)
            return hf_err_set(err, r, "cannot read the part %s: %s", name, strerror(-r));
        r = put_hole(j, name, (uint64_t)(from - pos), err);
        if (r == 0)
            r = put_data(j, name, fd, from, to, err);
        pos = to;
    }
    if (r == 0 && archive_write_finish_entry(j->a) != ARCHIVE_OK)
        r = archive_failed(j, name, err);
    return r;
}

static int put_all(struct job *j, const char *data_dir, int dir_fd, const struct hf_manifest *m,
                   bool with_template, struct hf_err *err)
{
    hf_auto_free char *text = hf_manifest_text(m);
    if (!text)
        return hf_err_set(err, -ENOMEM, "cannot write the manifest of snapshot %s", j->id);
    int r = put_header(j, HF_STREAM_MANIFEST, (off_t)strlen(text), -1, err);
    if (r == 0)
        r = put_bytes(j, HF_STREAM_MANIFEST, text, strlen(text), err);
    for (size_t i = 0; r == 0 && i < m->n_parts; i++) {
        hf_auto_close int fd = hf_parts_open_sized(dir_fd, &m->parts[i], err);
        r = fd < 0 ? fd : put_file(j, m->parts[i].name, fd, m->parts[i].bytes, err);
    }
    if (r < 0 || !with_template)
        return r;
    uint64_t bytes = 0;
    hf_auto_close int fd = hf_disk_template_open(data_dir, m->meta.template_id, &bytes, err);
    return fd < 0 ? fd : put_file(j, HF_STREAM_TEMPLATE, fd, bytes, err);
}

static int open_stream(struct job *j, int out_fd, struct hf_err *err)
{
    if (archive_write_set_format_pax_restricted(j->a) != ARCHIVE_OK ||
        archive_write_add_filter_zstd(j->a) != ARCHIVE_OK)
        return hf_err_set(err, -ENOSYS, "cannot export: libarchive was built without zstd");
    /* Nothing behind the last frame: into a pipe libarchive would fill a block of 10 KiB with zeros. */
    (void)archive_write_set_bytes_in_last_block(j->a, 1);
    if (archive_write_open_fd(j->a, out_fd) != ARCHIVE_OK)
        return archive_failed(j, "the stream", err);
    return 0;
}

int hf_snapshot_export(const char *data_dir, const char *id, bool with_template, int out_fd,
                       struct hf_err *err)
{
    hf_auto_manifest struct hf_manifest m = {0};
    hf_auto_close int dir_fd = -1;
    hf_cleanup(hf_write_freep) struct archive *a = archive_write_new();
    hf_auto_free char *chunk = hf_xmalloc(CHUNK);
    int r = hf_snapshot_seal(data_dir, id, NULL, err);
    if (r == 0)
        r = hf_parts_load(data_dir, id, &dir_fd, &m, err);
    if (r < 0)
        return r;
    void *hole = mmap(NULL, HOLE_CHUNK, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hole == MAP_FAILED)
        return hf_err_set(err, -errno, "cannot export snapshot %s: %s", id, strerror(errno));
    struct job j = {.a = a, .chunk = chunk, .hole = hole, .id = id};
    r = open_stream(&j, out_fd, err);
    if (r == 0)
        r = put_all(&j, data_dir, dir_fd, &m, with_template, err);
    if (r == 0 && archive_write_close(a) != ARCHIVE_OK)
        r = archive_failed(&j, "the stream", err);
    (void)munmap(hole, HOLE_CHUNK);
    return r;
}
