/* GET and HEAD /files: one file, streamed from the worker pool with one piece read ahead.
 *
 * The first piece is read before the head goes out: it decides the type, finds out whether gzip pays, and
 * shows the true length of files that stat(2) is wrong about (procfs says 0, sysfs 4096). */
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/vfs.h>
#include <zlib.h>

#include "envd/bulk.h"
#include "envd/content.h"
#include "envd/files.h"

#define GZIP_WINDOW (16 + MAX_WBITS)
#define GZIP_MEMORY 8     /* zlib's default: 256 KiB for a stream */
#define GZIP_WORTH_OF_8 7 /* "maybe" packs only what shrinks below 7/8 */
#define GZIP_SAMPLE 65536u

struct download {
    char *path;
    char *range; /* Range header, when it is to be honoured as far as the headers alone tell */
    bool whole;  /* no Range: the first piece can be read at once */
    enum content_coding coding;

    /* loop */
    struct hf_req *req;
    bool busy, closed, stopped;
    char *ready; /* read but not yet written */
    size_t ready_n;
    uv_work_t work;

    /* worker while busy, else loop */
    int fd;
    struct stat st;
    struct hf_err err;
    uint64_t offset, left; /* of the file; left is meaningless with until_eof */
    bool until_eof;        /* the length is not known: chunked */
    bool eof, known;       /* known: the whole file is in ready, or was seen to its end */
    bool z_on;             /* the answer is gzip */
    z_stream z;
    char *out;
    size_t out_n;
    size_t first_n;   /* bytes of the file in the first piece */
    const char *type; /* media type */
};

/* ---- worker ---- */

/* Reads until n bytes or the end of file. O_NONBLOCK: a kernel file that would block has ended for us. */
static ssize_t read_full(int fd, char *p, size_t n, uint64_t offset)
{
    size_t got = 0;
    while (got < n) {
        ssize_t r = pread(fd, p + got, n - got, (off_t)(offset + got));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0 && errno == EAGAIN)
            break;
        if (r < 0)
            return got ? (ssize_t)got : -errno;
        if (r == 0)
            break;
        got += (size_t)r;
    }
    return (ssize_t)got;
}

/* Packs p into a new buffer; the last piece ends the stream. */
static int pack(struct download *d, char *p, size_t n, bool last)
{
    uLong cap = deflateBound(&d->z, n) + 64;
    hf_auto_free char *out = hf_xmalloc(cap);
    d->z.next_in = (unsigned char *)p;
    d->z.avail_in = (unsigned)n;
    d->z.next_out = (unsigned char *)out;
    d->z.avail_out = (unsigned)cap;
    int zr = deflate(&d->z, last ? Z_FINISH : Z_SYNC_FLUSH);
    if (zr != (last ? Z_STREAM_END : Z_OK))
        return hf_err_set(&d->err, -EIO, "gzip of '%s' failed", d->path);
    d->out_n = cap - d->z.avail_out;
    d->out = hf_take_ptr(out);
    return 0;
}

static int pack_begin(struct download *d)
{
    int zr = deflateInit2(&d->z, FILES_GZIP_LEVEL, Z_DEFLATED, GZIP_WINDOW, GZIP_MEMORY, Z_DEFAULT_STRATEGY);
    if (zr != Z_OK)
        return hf_err_set(&d->err, -ENOMEM, "gzip of '%s' failed: out of memory", d->path);
    d->z_on = true;
    return 0;
}

/* Is the start of the file worth packing? */
static bool shrinks(const char *p, size_t n)
{
    n = HF_MIN(n, (size_t)GZIP_SAMPLE);
    uLongf out_n = compressBound(n);
    hf_auto_free unsigned char *out = hf_xmalloc(out_n);
    return compress2(out, &out_n, (const unsigned char *)p, n, FILES_GZIP_LEVEL) == Z_OK &&
           out_n < n / 8 * GZIP_WORTH_OF_8;
}

/* The next piece into out, out_n. */
static void work_read(uv_work_t *w)
{
    struct download *d = HF_CONTAINER_OF(w, struct download, work);
    size_t want = d->until_eof ? FILES_CHUNK : (size_t)HF_MIN(d->left, (uint64_t)FILES_CHUNK);
    hf_auto_free char *p = hf_xmalloc(want);
    ssize_t n = read_full(d->fd, p, want, d->offset);
    if (n < 0) {
        (void)fs_err(&d->err, (int)n, "reading file", d->path);
        return;
    }
    d->offset += (uint64_t)n;
    d->left -= HF_MIN((uint64_t)n, d->left);
    d->eof = d->until_eof ? (size_t)n < want : d->left == 0;
    if (!d->until_eof && (size_t)n < want) {
        (void)hf_err_set(&d->err, -EIO, "file '%s' became shorter while it was read", d->path);
        return;
    }
    if (d->z_on) {
        (void)!pack(d, p, (size_t)n, d->eof);
        return;
    }
    d->out = hf_take_ptr(p);
    d->out_n = (size_t)n;
}

static bool is_virtual(int fd)
{
    struct statfs s;
    if (fstatfs(fd, &s) < 0)
        return false;
    switch ((unsigned long)s.f_type) {
    case PROC_SUPER_MAGIC:
    case SYSFS_MAGIC:
    case CGROUP_SUPER_MAGIC:
    case CGROUP2_SUPER_MAGIC:
    case DEBUGFS_MAGIC:
    case TRACEFS_MAGIC:
    case SECURITYFS_MAGIC:
        return true;
    default:
        return false;
    }
}

/* Opens the file, reads its first piece and learns its length. */
static void work_open(uv_work_t *w)
{
    struct download *d = HF_CONTAINER_OF(w, struct download, work);
    d->fd = fs_open_read(d->path, &d->st, &d->err);
    if (d->fd < 0)
        return;
    bool odd = d->st.st_size == 0 || is_virtual(d->fd);
    d->left = (uint64_t)d->st.st_size;
    /* Size and type are all that the head needs with Range, and of what is too large to be packed. */
    bool plain =
        d->coding == CONTENT_IDENTITY || (d->coding == CONTENT_GZIP_MAYBE && d->left > FILES_GZIP_MAYBE_MAX);
    bool head_only = !odd && (!d->whole || (plain && d->left > FILES_CHUNK));
    size_t max = head_only ? CONTENT_SNIFF_MAX : FILES_CHUNK;
    size_t cap = odd ? max : (size_t)HF_MIN(d->left, (uint64_t)max);
    hf_auto_free char *p = hf_xmalloc(cap);
    ssize_t n = read_full(d->fd, p, cap, 0);
    if (n < 0) {
        (void)fs_err(&d->err, (int)n, "reading file", d->path);
        return;
    }
    d->type = content_type(path_base(d->path), p, (size_t)n);
    d->known = (size_t)n < cap || (!odd && d->left == (uint64_t)n);
    if (d->known)
        d->left = (uint64_t)n;
    d->until_eof = !d->known && odd;
    d->eof = d->known;
    d->first_n = (size_t)n;
    bool maybe = n && d->left <= FILES_GZIP_MAYBE_MAX && !d->until_eof;
    if (d->coding == CONTENT_GZIP_MAYBE)
        d->coding = maybe && shrinks(p, (size_t)n) ? CONTENT_GZIP : CONTENT_IDENTITY;
    if (d->coding == CONTENT_GZIP && n) {
        (void)!(pack_begin(d) == 0 ? pack(d, p, (size_t)n, d->eof) : 0);
        return;
    }
    d->out = hf_take_ptr(p);
    d->out_n = (size_t)n;
}

/* ---- loop ---- */

static void download_free(struct download *d)
{
    if (d->z_on)
        (void)deflateEnd(&d->z);
    (void)hf_close(d->fd);
    free(d->out);
    free(d->ready);
    free(d->range);
    free(d->path);
    free(d);
}

static void after_open(uv_work_t *w, int status);
static void after_read(uv_work_t *w, int status);

static void queue(struct download *d, uv_work_cb work, uv_after_work_cb after)
{
    d->busy = true;
    if (uv_queue_work(hf_req_loop(d->req), &d->work, work, after) < 0)
        abort(); /* only for a NULL callback */
}

/* Moves pieces to the connection as long as it takes them, and keeps one read ahead. */
static void pump(struct download *d)
{
    if (d->ready && !d->stopped) {
        d->stopped = hf_res_write_take(d->req, hf_take_ptr(d->ready), d->ready_n) == 1;
        d->ready_n = 0;
    }
    if (d->busy || d->ready)
        return;
    if (d->eof)
        hf_res_end(d->req);
    else
        queue(d, work_read, after_read);
}

static void after_read(uv_work_t *w, int status)
{
    struct download *d = HF_CONTAINER_OF(w, struct download, work);
    d->busy = false;
    if (d->closed) {
        download_free(d);
        return;
    }
    if (d->err.r) {
        /* The head is out: only a broken connection can tell that the body is not whole. */
        hf_res_abort(d->req);
        return;
    }
    d->ready = hf_take_ptr(d->out);
    d->ready_n = d->out_n;
    pump(d);
}

static void set_headers(struct download *d, const char *etag)
{
    char date[CONTENT_DATE_MAX];
    hf_auto_buf struct hf_buf disposition = HF_BUF_INIT(4096);
    const char *name = path_base(d->path);
    hf_res_header(d->req, "Vary", "Accept-Encoding");
    content_date(d->st.st_mtim.tv_sec, date);
    if (date[0] && d->st.st_mtim.tv_sec)
        hf_res_header(d->req, "Last-Modified", date);
    hf_res_header(d->req, "ETag", etag);
    if (content_disposition(name, &disposition) == 0)
        hf_res_header(d->req, "Content-Disposition", disposition.p);
}

/* Large bodies that go out as they are on disk; true when d is gone. */
static bool send_bulk(struct download *d, int64_t length)
{
    if (d->z_on || d->known || length < (int64_t)FILES_CHUNK)
        return false;
    if (bulk_send(d->req, d->fd, d->offset - d->ready_n, (uint64_t)length) < 0)
        return false;
    d->fd = -1;
    download_free(d);
    return true;
}

static void begin_body(struct download *d, int status, int64_t length)
{
    hf_res_header(d->req, "Content-Type", d->type);
    if (d->z_on)
        hf_res_header(d->req, "Content-Encoding", "gzip");
    hf_res_begin(d->req, status, d->z_on ? -1 : length);
    if (length == 0 || hf_str_eq(hf_req_method(d->req), "HEAD"))
        hf_res_end(d->req);
    else if (!send_bulk(d, length))
        pump(d);
}

/* 206, 416, or false when the whole file is the answer. */
static bool answer_range(struct download *d, const char *etag)
{
    char text[96];
    uint64_t size = d->left, first, n;
    struct hf_str if_range = hf_req_header(d->req, "if-range");
    if (!d->range || d->until_eof || !content_if_range(if_range, etag, d->st.st_mtim.tv_sec))
        return false;
    switch (content_range(hf_str_c(d->range), size, &first, &n)) {
    case CONTENT_RANGE_NONE:
        return false;
    case CONTENT_RANGE_BAD:
        (void)snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)size);
        hf_res_header(d->req, "Content-Range", text);
        hf_res_error(d->req, 416, "range not satisfiable: the file has %llu bytes", (unsigned long long)size);
        return true;
    case CONTENT_RANGE_ONE:
        break;
    }
    (void)snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)first,
                   (unsigned long long)(first + n - 1), (unsigned long long)size);
    set_headers(d, etag);
    hf_res_header(d->req, "Content-Range", text);
    if (d->ready && d->known) { /* a kernel file: take the part of what was read */
        memmove(d->ready, d->ready + first, n);
        d->ready_n = n;
    } else {
        free(hf_take_ptr(d->ready));
        d->ready_n = 0;
        d->eof = false;
        d->offset = first;
        d->left = n;
    }
    begin_body(d, 206, (int64_t)n);
    return true;
}

static void answer_open(struct download *d)
{
    char etag[CONTENT_ETAG_MAX];
    content_etag(&d->st, etag);
    struct hf_str none_match = hf_req_header(d->req, "if-none-match");
    struct hf_str since = hf_req_header(d->req, "if-modified-since");
    if (!d->until_eof && content_not_modified(none_match, since, etag, d->st.st_mtim.tv_sec)) {
        set_headers(d, etag);
        hf_res_send(d->req, 304, NULL, NULL, 0);
        return;
    }
    if (!d->until_eof)
        hf_res_header(d->req, "Accept-Ranges", "bytes");
    if (answer_range(d, etag))
        return;
    set_headers(d, etag);
    int64_t size = d->until_eof ? -1 : (int64_t)d->left;
    d->offset = d->first_n;
    d->left -= HF_MIN(d->left, (uint64_t)d->first_n);
    begin_body(d, 200, size);
}

static void after_open(uv_work_t *w, int status)
{
    struct download *d = HF_CONTAINER_OF(w, struct download, work);
    d->busy = false;
    if (d->closed) {
        download_free(d);
        return;
    }
    d->ready = hf_take_ptr(d->out);
    d->ready_n = d->out_n;
    if (d->err.r)
        hf_res_err(d->req, &d->err);
    else if (d->coding == CONTENT_NONE)
        hf_res_error(d->req, 406,
                     "error parsing Accept-Encoding: no acceptable encoding found, supported: [gzip]");
    else
        answer_open(d);
}

static void on_drain(struct hf_req *req)
{
    struct download *d = hf_req_data(req);
    d->stopped = false;
    pump(d);
}

static void on_close(struct hf_req *req)
{
    struct download *d = hf_req_data(req);
    d->closed = true;
    if (!d->busy)
        download_free(d);
}

void files_get(struct envd *e, struct hf_req *req, struct files_query *q)
{
    static const struct hf_req_ops ops = {.on_drain = on_drain, .on_close = on_close};
    struct hf_err err = {0};
    hf_auto_free char *path = NULL;
    struct hf_str raw = {q->raw_path, q->raw_path_n};
    if (path_resolve(q->user.home, q->workdir, raw, &path, &err) < 0) {
        (void)hf_err_wrap(&err, "error expanding and resolving path");
        hf_res_err(req, &err);
        return;
    }
    struct download *d = hf_new(struct download);
    d->fd = -1;
    d->path = hf_take_ptr(path);
    d->req = req;
    struct hf_str range = hf_req_header(req, "range");
    d->range = range.p ? hf_str_dup(range) : NULL;
    d->whole = !range.p;
    bool conditional = range.p || hf_req_header(req, "if-modified-since").p ||
                       hf_req_header(req, "if-none-match").p || hf_req_header(req, "if-range").p;
    d->coding = content_accept(hf_req_header(req, "accept-encoding"));
    if (conditional) /* parts and validators are of the file itself */
        d->coding = CONTENT_IDENTITY;
    hf_req_set_ops(req, &ops, d);
    queue(d, work_open, after_open);
}
