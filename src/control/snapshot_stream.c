/* Snapshots as one file, out and in: a worker makes or reads the archive at one end of a pipe, the loop moves
 * its bytes at the other. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "control/snapshot_int.h"
#include "control/snapshot_stream.h"
#include "control/validate.h"

struct hf_snapshot_stream {
    struct hf_control *c;
    const struct hf_snapshot_stream_ops *ops;
    void *arg;
    struct hf_snapshot_row row;
    char name[HF_ROW_NAME];
    char *data_dir;
    bool in, with_template;
    bool row_written, client_ended, cancelled, worked, closed, open;
    int worker_fd;  /* the worker's end of the pipe */
    uv_pipe_t pipe; /* the loop's */
    size_t queued;  /* bytes of writes under way */
    bool held_back;
    struct hf_snapshot_meta meta; /* the worker's while working */
    uint64_t exclusive, shared;   /* likewise */
    int64_t template_bytes;       /* likewise */
    struct hf_err err;            /* likewise */
    char chunk[65536];
};

/* ---- the pipe ---- */

static int make_pipe(struct hf_snapshot_stream *s, struct hf_err *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return hf_err_set(err, -errno, "cannot make a pipe: %s", strerror(errno));
    int mine = s->in ? ends[1] : ends[0];
    s->worker_fd = s->in ? ends[0] : ends[1];
    (void)uv_pipe_init(s->c->loop, &s->pipe, 0);
    s->pipe.data = s;
    s->open = true;
    int r = uv_pipe_open(&s->pipe, mine); /* makes it non-blocking, which concerns this end only */
    if (r < 0) {
        (void)hf_close(mine);
        return hf_err_set(err, r, "cannot use a pipe: %s", uv_strerror(r));
    }
    return 0;
}

static void maybe_over(struct hf_snapshot_stream *s);

static void on_pipe_closed(uv_handle_t *h)
{
    struct hf_snapshot_stream *s = h->data;
    s->closed = true;
    maybe_over(s);
}

static void close_pipe(struct hf_snapshot_stream *s)
{
    if (s->open && !uv_is_closing((uv_handle_t *)&s->pipe))
        uv_close((uv_handle_t *)&s->pipe, on_pipe_closed);
}

static void free_stream(struct hf_snapshot_stream *s)
{
    s->c->snapshots->streams--;
    s->c->busy--;
    hf_snapshot_row_done(&s->row);
    hf_snapshot_meta_done(&s->meta);
    free(s->data_dir);
    free(s);
}

static void tell_end(struct hf_snapshot_stream *s)
{
    s->ops->done(s->arg, s->err.r ? NULL : &s->row, s->err.r ? &s->err : NULL);
    free_stream(s);
}

static struct hf_snapshot_stream *stream_new(struct hf_control *c, const struct hf_snapshot_stream_ops *ops,
                                             void *arg, struct hf_err *err)
{
    if (c->snapshots->streams >= HF_SNAPSHOT_STREAMS_MAX) {
        (void)hf_err_http(err, -EAGAIN, 503,
                          "%u exports or imports are running already; try again when one is done",
                          HF_SNAPSHOT_STREAMS_MAX);
        return NULL;
    }
    c->snapshots->streams++;
    c->busy++;
    struct hf_snapshot_stream *s = hf_new(struct hf_snapshot_stream);
    s->c = c;
    s->ops = ops;
    s->arg = arg;
    s->worker_fd = -1;
    s->data_dir = hf_xstrdup(c->cfg->data_dir);
    return s;
}

/* ---- out ---- */

static void on_alloc(uv_handle_t *h, size_t n, uv_buf_t *buf)
{
    struct hf_snapshot_stream *s = h->data;
    *buf = uv_buf_init(s->chunk, sizeof(s->chunk));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct hf_snapshot_stream *s = stream->data;
    if (n < 0)
        close_pipe(s); /* the worker's end is closed: all is read */
    else if (n > 0 && s->ops->data(s->arg, buf->base, (size_t)n) > 0)
        (void)uv_read_stop(stream);
}

void hf_snapshot_stream_more(struct hf_snapshot_stream *s)
{
    if (s->open && !uv_is_closing((uv_handle_t *)&s->pipe))
        (void)uv_read_start((uv_stream_t *)&s->pipe, on_alloc, on_read);
}

static void export_work(void *arg)
{
    struct hf_snapshot_stream *s = arg;
    int r = hf_snapshot_export(s->data_dir, s->row.id, s->with_template, s->worker_fd, &s->err);
    if (r < 0 && !s->err.r)
        (void)hf_err_set(&s->err, r, "the snapshot can't be exported: %s", strerror(-r));
    s->worker_fd = hf_close(s->worker_fd);
}

static void on_exported(void *arg)
{
    struct hf_snapshot_stream *s = arg;
    s->worked = true;
    maybe_over(s);
}

struct hf_snapshot_stream *hf_snapshot_export_begin(struct hf_control *c, const struct hf_snapshot_row *row,
                                                    bool with_template,
                                                    const struct hf_snapshot_stream_ops *ops, void *arg,
                                                    struct hf_err *err)
{
    struct hf_snapshot_stream *s = stream_new(c, ops, arg, err);
    if (!s)
        return NULL;
    s->with_template = with_template;
    if (hf_get_snapshot(c->meta, row->id, &s->row) != 1 || make_pipe(s, err) < 0) {
        (void)hf_close(s->worker_fd);
        free_stream(s);
        (void)(err->r ? 0 : hf_err_set(err, -EIO, "the database can't be read"));
        return NULL;
    }
    hf_snapshot_stream_more(s);
    hf_snapshots_work(c, export_work, on_exported, s);
    return s;
}

/* ---- in ---- */

static void on_undone(void *arg, const struct hf_err *err)
{
    tell_end(arg);
}

static void on_ready(void *arg, int r, const struct hf_err *err)
{
    struct hf_snapshot_stream *s = arg;
    hf_killpoint("snapshot.imported-row");
    if (r < 0) {
        s->err = *err;
        hf_snapshot_erase(s->c, s->row.id, on_undone, s);
        return;
    }
    hf_log_info("snapshot imported", "snapshot=%s bytes=%lld", s->row.id, (long long)s->row.bytes);
    tell_end(s);
}

/* What the manifest says of the sandbox came from outside: only what is within our own limits is taken. */
static json_t *imported_config(const struct hf_snapshot_meta *m)
{
    static const struct {
        const char *name;
        json_int_t min, max;
    } limits[] = {{"cpu_millis", 10, HF_CONFIG_CPU_MILLIS_MAX},
                  {"memory_bytes", (json_int_t)HF_CONFIG_MEMORY_MIN, (json_int_t)HF_CONFIG_MEMORY_MAX},
                  {"pids_max", HF_CONFIG_PIDS_MIN, HF_CONFIG_PIDS_MAX}};
    json_t *v = json_pack("{s:I}", "disk_bytes", (json_int_t)m->disk_bytes);
    for (size_t i = 0; i < HF_ARRAY_LEN(limits); i++) {
        const json_t *n = json_object_get(m->config, limits[i].name);
        if (json_is_integer(n) && json_integer_value(n) >= limits[i].min &&
            json_integer_value(n) <= limits[i].max)
            (void)json_object_set_new(v, limits[i].name, json_integer(json_integer_value(n)));
    }
    json_t *metadata = json_object_get(m->config, "metadata");
    if (metadata && hf_validate_metadata(metadata, "metadata", NULL) == 0)
        (void)json_object_set(v, "metadata", metadata);
    return v;
}

/* The template's image that came along needs a row, or nobody could remove it. */
static void add_template(struct hf_snapshot_stream *s, struct hf_meta_batch *b)
{
    struct hf_template_row t;
    if (hf_get_template(s->c->meta, s->meta.template_id, &t) != 0)
        return;
    t = (struct hf_template_row){
        .created_ms = s->row.created_ms, .updated_ms = s->row.created_ms, .bytes = s->template_bytes};
    (void)snprintf(t.id, sizeof(t.id), "%s", s->meta.template_id);
    (void)snprintf(t.tenant, sizeof(t.tenant), "%s", s->row.tenant);
    (void)snprintf(t.name, sizeof(t.name), "imported-%s", s->meta.template_id);
    (void)snprintf(t.sha256, sizeof(t.sha256), "%s", s->meta.template_sha256);
    (void)snprintf(t.state, sizeof(t.state), "ready");
    hf_put_template(b, &t);
    hf_put_template_name(b, t.tenant, t.name, "default", t.id);
}

static void publish(struct hf_snapshot_stream *s)
{
    struct hf_snapshot_row *row = &s->row;
    json_auto_t *config = imported_config(&s->meta);
    (void)snprintf(row->state, sizeof(row->state), "ready");
    (void)snprintf(row->kind, sizeof(row->kind), "%s", s->meta.memory ? "full" : "disk");
    (void)snprintf(row->template_id, sizeof(row->template_id), "%s", s->meta.template_id);
    row->generation = (int64_t)s->meta.generation;
    row->bytes = (int64_t)(s->exclusive + s->shared);
    row->exclusive_bytes = (int64_t)s->exclusive;
    row->meta = json_dumps(config, JSON_COMPACT);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_del_snapshot(b, row->id); /* what it is was not known when the first row was written */
    hf_put_snapshot(b, row);
    if (*s->name)
        hf_put_snapshot_name(b, row->tenant, s->name, row->id);
    add_template(s, b);
    hf_meta_commit(s->c->meta, b, 0, on_ready, s);
}

static void import_work(void *arg)
{
    struct hf_snapshot_stream *s = arg;
    struct stat st;
    int r = hf_snapshot_import(s->data_dir, s->row.id, s->worker_fd, &s->meta, &s->err);
    hf_killpoint("snapshot.imported");
    hf_auto_free char *image = hf_xasprintf("%s/pool/templates/%s.img", s->data_dir, s->meta.template_id);
    s->template_bytes = stat(image, &st) == 0 ? (int64_t)st.st_size : 0;
    if (r == 0)
        r = hf_snapshot_usage(s->data_dir, s->row.id, &s->exclusive, &s->shared, &s->err);
    if (r < 0 && !s->err.r)
        (void)hf_err_set(&s->err, r, "the file can't be imported: %s", strerror(-r));
    if (r < 0 && !s->err.status) /* what is wrong is mostly the file */
        s->err.status = r == -ENOSPC ? 507 : r == -EXDEV ? 409 : r == -EIO || r == -ENOMEM ? 500 : 400;
    s->worker_fd = hf_close(s->worker_fd); /* what still comes of it finds nobody */
}

static void on_imported(void *arg)
{
    struct hf_snapshot_stream *s = arg;
    s->worked = true;
    close_pipe(s);
    maybe_over(s);
}

static void on_import_row(void *arg, int r, const struct hf_err *err)
{
    struct hf_snapshot_stream *s = arg;
    if (r < 0) {
        s->err = *err;
        s->worked = true;
        s->worker_fd = hf_close(s->worker_fd);
        close_pipe(s);
        maybe_over(s); /* the client may have left before */
        return;
    }
    hf_killpoint("snapshot.import-row");
    s->row_written = true;
    hf_snapshots_work(s->c, import_work, on_imported, s);
}

/* Both ends are done with it. */
static void maybe_over(struct hf_snapshot_stream *s)
{
    if (!s->worked || !s->closed)
        return;
    if (s->cancelled && (!s->in || !s->err.r))
        (void)hf_err_http(&s->err, -ECANCELED, 499, "the client left before the file was complete");
    if (!s->in || !s->row_written)
        tell_end(s);
    else if (s->err.r)
        hf_snapshot_erase(s->c, s->row.id, on_undone, s);
    else
        publish(s);
}

struct hf_snapshot_stream *hf_snapshot_import_begin(struct hf_control *c, const char *tenant,
                                                    const char *name,
                                                    const struct hf_snapshot_stream_ops *ops, void *arg,
                                                    struct hf_err *err)
{
    char full[HF_ROW_NAME] = "";
    if (*name && hf_snapshot_name(tenant, name, full, err) < 0)
        return NULL;
    struct hf_snapshot_stream *s = stream_new(c, ops, arg, err);
    if (!s)
        return NULL;
    s->in = true;
    memcpy(s->name, full, sizeof(s->name));
    hf_snapshot_id_new(s->row.id);
    s->row.created_ms = hf_real_ms();
    (void)snprintf(s->row.tenant, sizeof(s->row.tenant), "%s", tenant);
    (void)snprintf(s->row.purpose, sizeof(s->row.purpose), "user");
    (void)snprintf(s->row.state, sizeof(s->row.state), "creating");
    if (make_pipe(s, err) < 0) {
        (void)hf_close(s->worker_fd);
        free_stream(s);
        return NULL;
    }
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_snapshot(b, &s->row);
    hf_meta_commit(c->meta, b, 0, on_import_row, s);
    return s;
}

struct piece {
    uv_write_t w;
    struct hf_snapshot_stream *s;
    size_t n;
    char bytes[];
};

static void on_written(uv_write_t *w, int status)
{
    struct piece *p = w->data;
    struct hf_snapshot_stream *s = p->s;
    s->queued -= p->n;
    free(p);
    if (status < 0)
        return; /* the worker refused it: it says why */
    if (s->held_back && s->queued <= HF_SNAPSHOT_QUEUE_LOW) {
        s->held_back = false;
        s->ops->want_more(s->arg);
    }
    if (s->client_ended && !s->queued)
        close_pipe(s);
}

int hf_snapshot_stream_feed(struct hf_snapshot_stream *s, const char *bytes, size_t n)
{
    if (!s->open || uv_is_closing((uv_handle_t *)&s->pipe))
        return 0;
    struct piece *p = hf_xmalloc(sizeof(*p) + n);
    p->s = s;
    p->n = n;
    p->w.data = p;
    memcpy(p->bytes, bytes, n);
    uv_buf_t buf = uv_buf_init(p->bytes, (unsigned)n);
    s->queued += n;
    if (uv_write(&p->w, (uv_stream_t *)&s->pipe, &buf, 1, on_written) < 0) {
        s->queued -= n;
        free(p);
    }
    s->held_back = s->held_back || s->queued > HF_SNAPSHOT_QUEUE_HIGH;
    return s->held_back;
}

void hf_snapshot_stream_end(struct hf_snapshot_stream *s)
{
    s->client_ended = true;
    if (!s->queued)
        close_pipe(s);
}

void hf_snapshot_stream_cancel(struct hf_snapshot_stream *s)
{
    s->cancelled = true;
    close_pipe(s); /* the worker finds half a file, or nobody who reads it */
}
