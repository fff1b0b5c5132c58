/* POST and PUT /files: one or many files, streamed to disk. PUT takes a body of any type as the one file.
 *
 * The loop only collects bytes; unpacking, parsing, opening and writing happen in the worker pool on one
 * piece (about FILES_PIECE) at a time, while the next piece arrives. One job of an upload runs at any moment,
 * so its state needs no lock: fields under "loop" are the loop's, those under "worker" belong to the running
 * job. */
#include <stdio.h>
#include <zlib.h>

#include "base/path.h"
#include "envd/content.h"
#include "envd/files.h"
#include "envd/multipart.h"

#define FILL_MAX                                                                              \
    (FILES_PIECE + 16u * 1024u * 1024u) /* one piece is at most what the server reads at once \
                                         */
#define INFLATE_CHUNK (128u * 1024u)
#define GZIP_WINDOW (16 + MAX_WBITS) /* zlib: gzip framing only */

struct upload {
    struct files_query q;
    bool gzip, is_multipart;
    uint64_t expected; /* bytes of the whole body, 0 = unknown */
    json_t *metadata;  /* of every file of this request */

    /* loop */
    struct hf_req *req;
    struct hf_buf fill;
    bool busy, paused, ended, failed, answered;
    bool closed; /* req is gone */
    uint64_t drained;
    uv_work_t work;

    /* worker */
    struct hf_buf piece;
    bool last; /* the piece is the body's end */
    struct hf_err err;
    struct multipart mp;
    bool mp_on, z_on, z_end;
    z_stream z;
    unsigned char *plain; /* INFLATE_CHUNK bytes */
    struct fs_target target;
    char *path;      /* of target */
    bool skip;       /* the part is not called "file" */
    json_t *written; /* the answer */
    char **paths;    /* of the files so far, to refuse doubles */
    size_t n_paths;
};

/* ---- worker ---- */

static int target_open(struct upload *u, struct hf_str raw, struct hf_err *err)
{
    int r = path_resolve(u->q.user.home, u->q.workdir, raw, &u->path, err);
    if (r < 0)
        return hf_err_wrap(err, "error resolving path");
    for (size_t i = 0; i < u->n_paths; i++) {
        if (strcmp(u->paths[i], u->path) == 0)
            return hf_err_http(
                err, -EINVAL, 400,
                "you cannot upload multiple files to the same path '%s' in one upload request, only "
                "the first specified file was uploaded",
                u->path);
    }
    /* What is known is the length of the whole body, so it tells about the first file only. */
    uint64_t want = u->gzip || u->n_paths ? 0 : u->expected;
    return fs_open_write(u->path, &u->q.user, want, &u->target, err);
}

static int target_write(struct upload *u, const char *p, size_t n, struct hf_err *err)
{
    int r = hf_write_all(u->target.fd, p, n);
    return r < 0 ? fs_err(err, r, "writing file", u->path) : 0;
}

static int target_done(struct upload *u, struct hf_err *err)
{
    int r = fs_metadata_write(u->target.fd, u->metadata, u->path, err);
    if (r < 0)
        return r;
    r = fs_target_close(&u->target, u->path, false);
    if (r < 0)
        return fs_err(err, r, "closing file", u->path);
    json_t *entry = files_written_json(u->path);
    if (json_object_size(u->metadata))
        json_object_set(entry, "metadata", u->metadata);
    json_array_append_new(u->written, entry);
    u->paths = hf_xrealloc(u->paths, (u->n_paths + 1) * sizeof(*u->paths));
    u->paths[u->n_paths++] = hf_take_ptr(u->path);
    return 0;
}

static int part_begin(void *self, struct hf_str name, struct hf_str filename, struct hf_err *err)
{
    struct upload *u = self;
    u->skip = !hf_str_eq(name, "file");
    if (u->skip)
        return 0;
    if (u->q.has_path)
        return target_open(u, (struct hf_str){u->q.raw_path, u->q.raw_path_n}, err);
    if (!filename.n)
        return hf_err_http(
            err, -EINVAL, 400,
            "error getting multipart custom part file name: a part called \"file\" needs a filename, "
            "or the request the query parameter path");
    return target_open(u, filename, err);
}

static int part_data(void *self, const char *p, size_t n, struct hf_err *err)
{
    struct upload *u = self;
    return u->skip ? 0 : target_write(u, p, n, err);
}

static int part_end(void *self, struct hf_err *err)
{
    struct upload *u = self;
    return u->skip ? 0 : target_done(u, err);
}

static const struct multipart_events part_events = {part_begin, part_data, part_end};

/* Takes body bytes after Content-Encoding. */
static int take_plain(struct upload *u, const char *p, size_t n, struct hf_err *err)
{
    if (!n)
        return 0;
    if (u->is_multipart)
        return multipart_feed(&u->mp, p, n, err);
    return target_write(u, p, n, err);
}

static int gzip_error(struct hf_err *err, const char *why)
{
    return hf_err_http(err, -EINVAL, 400, "error decompressing request body: %s", why);
}

/* A gzip body may have several members (RFC 1952, 2.2). */
static int next_member(struct upload *u, struct hf_err *err)
{
    if (!u->z_end || !u->z.avail_in)
        return 0;
    u->z_end = false;
    return inflateReset(&u->z) == Z_OK ? 0 : gzip_error(err, "gzip: internal error");
}

static int take_gzip(struct upload *u, struct hf_err *err)
{
    u->z.next_in = (unsigned char *)u->piece.p;
    u->z.avail_in = (unsigned)u->piece.n;
    while (u->z.avail_in) {
        int r = next_member(u, err);
        if (r < 0)
            return r;
        do {
            u->z.next_out = u->plain;
            u->z.avail_out = INFLATE_CHUNK;
            int zr = inflate(&u->z, Z_NO_FLUSH);
            if (zr != Z_OK && zr != Z_STREAM_END && zr != Z_BUF_ERROR)
                return gzip_error(err, u->z.msg ? u->z.msg : "gzip: invalid data");
            r = take_plain(u, (const char *)u->plain, INFLATE_CHUNK - u->z.avail_out, err);
            if (r < 0)
                return r;
            u->z_end = zr == Z_STREAM_END;
        } while (!u->z_end && u->z.avail_out == 0);
    }
    return 0;
}

static int begin(struct upload *u, struct hf_err *err)
{
    if (u->gzip && !u->z_on) {
        u->plain = hf_xmalloc(INFLATE_CHUNK);
        if (inflateInit2(&u->z, GZIP_WINDOW) != Z_OK)
            return hf_err_http(err, -ENOMEM, 500, "error decompressing request body: out of memory");
        u->z_on = true;
    }
    if (u->is_multipart || u->target.fd >= 0)
        return 0;
    return target_open(u, (struct hf_str){u->q.raw_path, u->q.raw_path_n}, err);
}

static int finish(struct upload *u, struct hf_err *err)
{
    if (u->gzip && !u->z_end)
        return gzip_error(err, "unexpected EOF");
    return u->is_multipart ? multipart_finish(&u->mp, err) : target_done(u, err);
}

static void work(uv_work_t *w)
{
    struct upload *u = HF_CONTAINER_OF(w, struct upload, work);
    int r = begin(u, &u->err);
    if (r == 0)
        r = u->gzip ? take_gzip(u, &u->err) : take_plain(u, u->piece.p, u->piece.n, &u->err);
    if (r == 0 && u->last)
        r = finish(u, &u->err);
    if (r < 0 && !u->err.r)
        (void)hf_err_set(&u->err, r, "upload failed: %s", strerror(-r));
    hf_buf_clear(&u->piece);
}

/* ---- loop ---- */

static void upload_free(struct upload *u)
{
    /* A target that is still open here was not completed. */
    (void)!fs_target_close(&u->target, u->path ? u->path : "", true);
    if (u->z_on)
        (void)inflateEnd(&u->z);
    if (u->mp_on)
        multipart_done(&u->mp);
    for (size_t i = 0; i < u->n_paths; i++)
        free(u->paths[i]);
    free(u->paths);
    free(u->path);
    free(u->plain);
    hf_buf_done(&u->fill);
    hf_buf_done(&u->piece);
    json_decref(u->metadata);
    json_decref(u->written);
    files_query_done(&u->q);
    free(u);
}

/* A failed upload is answered when the client has sent everything, or much: a client that is still sending
 * would see a broken connection in place of the reason. */
static void answer_failure(struct upload *u)
{
    if (u->answered || (!u->ended && u->drained < FILES_DRAIN_MAX))
        return;
    u->answered = true;
    hf_res_err(u->req, &u->err);
}

static void answer(struct upload *u)
{
    hf_auto_free char *text = json_dumps(u->written, JSON_COMPACT);
    u->answered = true;
    if (text)
        hf_res_send(u->req, 200, "application/json", text, strlen(text));
    else
        hf_res_error(u->req, 500, "the answer can't be encoded as JSON");
}

static void fail(struct upload *u)
{
    u->failed = true;
    u->drained += u->fill.n;
    hf_buf_clear(&u->fill);
    (void)!fs_target_close(&u->target, u->path ? u->path : "", true);
    if (u->paused) {
        u->paused = false;
        hf_req_resume(u->req);
    }
    answer_failure(u);
}

static void kick(struct upload *u);

/* busy stays set while the server may call back: it keeps u alive. */
static void after_work(uv_work_t *w, int status)
{
    struct upload *u = HF_CONTAINER_OF(w, struct upload, work);
    if (!u->closed && u->err.r)
        fail(u);
    else if (!u->closed && u->last)
        answer(u);
    u->busy = false;
    if (u->closed)
        upload_free(u);
    else
        kick(u);
}

/* Starts the next job when there is enough to do. */
static void kick(struct upload *u)
{
    if (u->busy || u->failed || u->answered || (u->fill.n < FILES_PIECE && !u->ended))
        return;
    struct hf_buf empty = u->piece;
    u->piece = u->fill;
    u->fill = empty;
    u->last = u->ended;
    u->busy = true;
    if (uv_queue_work(hf_req_loop(u->req), &u->work, work, after_work) < 0)
        abort(); /* only for a NULL callback */
    if (u->paused) {
        u->paused = false;
        hf_req_resume(u->req);
    }
}

static void on_data(struct hf_req *req, const char *p, size_t n)
{
    struct upload *u = hf_req_data(req);
    if (u->failed) {
        u->drained += n;
        answer_failure(u);
        return;
    }
    if (hf_buf_add(&u->fill, p, n) < 0) {
        u->failed = true;
        (void)hf_err_http(&u->err, -EMSGSIZE, 500, "upload failed: a piece of the body is too large");
        return;
    }
    kick(u);
    if (u->busy && !u->paused && u->fill.n >= FILES_PIECE) {
        u->paused = true;
        hf_req_pause(req);
    }
}

static void on_end(struct hf_req *req)
{
    struct upload *u = hf_req_data(req);
    u->ended = true;
    if (u->failed)
        answer_failure(u);
    else
        kick(u);
}

static void on_close(struct hf_req *req)
{
    struct upload *u = hf_req_data(req);
    u->closed = true;
    if (!u->busy)
        upload_free(u);
}

/* X-Metadata-<key>: value. A repeated key keeps its last value. */
static json_t *read_metadata(struct hf_req *req)
{
    static const char prefix[] = "x-metadata-";
    const size_t prefix_n = sizeof(prefix) - 1;
    json_t *meta = json_object();
    for (size_t i = 0; i < hf_req_header_count(req); i++) {
        struct hf_str name, value;
        hf_req_header_at(req, i, &name, &value);
        if (name.n < prefix_n || strncasecmp(name.p, prefix, prefix_n) != 0)
            continue;
        hf_auto_free char *key = hf_str_dup((struct hf_str){name.p + prefix_n, name.n - prefix_n});
        for (char *c = key; *c; c++)
            *c = (char)(*c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
        json_t *text = json_stringn(value.n ? value.p : "", value.n);
        if (!text) /* not UTF-8: a byte that the check refuses */
            text = json_string("\x7f");
        json_object_set_new(meta, key, text);
    }
    return meta;
}

static bool media_type_is(struct hf_str type, const char *want)
{
    size_t n = 0;
    while (n < type.n && type.p[n] != ';' && type.p[n] != ' ')
        n++;
    return hf_str_caseeq((struct hf_str){type.p, n}, want);
}

/* 0, or negative with err. */
static int prepare(struct upload *u, struct hf_req *req, struct hf_err *err)
{
    struct hf_str type = hf_req_header(req, "content-type");
    int r = content_encoding(hf_req_header(req, "content-encoding"), err);
    if (r < 0)
        return r;
    u->gzip = r;
    r = fs_metadata_check(u->metadata, err);
    if (r < 0)
        return r;
    int64_t n = hf_req_content_length(req);
    u->expected = n > 0 ? (uint64_t)n : 0;
    bool put = hf_str_eq(hf_req_method(req), "PUT");
    u->is_multipart = !put && type.n > 10 && strncasecmp(type.p, "multipart/", 10) == 0;
    if (u->is_multipart) {
        r = multipart_init(&u->mp, type, &part_events, u, err);
        u->mp_on = r == 0;
        return r;
    }
    if (!put && !media_type_is(type, "application/octet-stream"))
        return hf_err_http(
            err, -EINVAL, 400,
            "unsupported content type: %.*s, expected multipart/form-data or application/octet-stream",
            (int)HF_MIN(type.n, (size_t)128), type.n ? type.p : "");
    if (!u->q.has_path)
        return hf_err_http(err, -EINVAL, 400, "path query parameter is required for raw body upload");
    return 0;
}

void files_post(struct envd *e, struct hf_req *req, struct files_query *q)
{
    static const struct hf_req_ops ops = {.on_data = on_data, .on_end = on_end, .on_close = on_close};
    struct upload *u = hf_new(struct upload);
    u->q = *q;
    *q = (struct files_query){0};
    u->target = FS_TARGET_NONE;
    u->fill = u->piece = HF_BUF_INIT(FILL_MAX);
    u->written = json_array();
    u->metadata = read_metadata(req);
    u->req = req;
    u->failed = prepare(u, req, &u->err) < 0;
    hf_req_set_ops(req, &ops, u);
    /* A client that waits for 100 Continue is spared the upload; one that sends too much is not heard out. */
    if (u->failed && (hf_req_header(req, "expect").p || u->expected > FILES_DRAIN_MAX)) {
        u->drained = FILES_DRAIN_MAX;
        answer_failure(u);
    }
}
