/* GET /holdfast/exec                     list of what is remembered
 * GET /holdfast/exec/{pid or exec id}    one process: state, exit code, cursors
 * GET /holdfast/exec/{…}/{output}?from=N bytes of its spool from cursor N on; docs/api/envd.md */
#include <stdio.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "envd/proc.h"
#include "envd/server.h"

#define DOWNLOAD_CHUNK 65536u

static json_t *describe(const struct proc *p)
{
    char started[HF_RFC3339_MAX], status[96];
    json_t *o = json_object(), *cursors = json_object(), *starts = json_object();
    hf_rfc3339_ms(p->started_ms, started);
    json_object_set_new(o, "exec_id", json_string(p->id));
    json_object_set_new(o, "pid", json_integer(p->pid));
    json_object_set_new(o, "tag", p->tag ? json_string(p->tag) : json_null());
    json_object_set(o, "cmd", json_object_get(p->config, "cmd"));
    json_object_set_new(o, "running", json_boolean(p->state == PROC_RUNNING));
    json_object_set_new(o, "exit_code", json_null());
    json_object_set_new(o, "status", json_null());
    if (p->state == PROC_ENDED) {
        proc_status_text(p->wait_status, status, sizeof(status));
        bool exited = WIFEXITED(p->wait_status);
        json_object_set_new(o, "exit_code", json_integer(exited ? WEXITSTATUS(p->wait_status) : -1));
        json_object_set_new(o, "status", json_string(status));
    }
    json_object_set_new(o, "timed_out", json_boolean(p->timed_out));
    json_object_set_new(o, "started_at", json_string(started));
    for (int s = 0; s < PROC_STREAMS; s++) {
        if ((s == PROC_PTY) != p->pty)
            continue;
        json_object_set_new(cursors, proc_stream_names[s], json_integer((json_int_t)p->out[s].spool.end));
        json_object_set_new(starts, proc_stream_names[s], json_integer((json_int_t)p->out[s].spool.start));
    }
    json_object_set_new(o, "cursors", cursors);
    json_object_set_new(o, "kept_from", starts);
    return o;
}

static void send_json(struct hf_req *req, json_t *v)
{
    hf_auto_free char *text = json_dumps(v, JSON_COMPACT);
    json_decref(v);
    hf_res_header(req, "Cache-Control", "no-store");
    hf_res_send(req, 200, "application/json", text, text ? strlen(text) : 0);
}

/* ---- bytes ---- */

struct download {
    struct proc *p; /* referenced */
    enum proc_stream s;
    uint64_t at, end;
};

static void pump(struct hf_req *req)
{
    struct download *d = hf_req_data(req);
    for (int full = 0; !full && d->at < d->end;) {
        char *chunk = hf_xmalloc(DOWNLOAD_CHUNK);
        ssize_t n = spool_read(&d->p->out[d->s].spool, d->at, chunk, HF_MIN(DOWNLOAD_CHUNK, d->end - d->at));
        if (n <= 0) { /* the window moved past the reader: a cut says so, a short body would lie */
            free(chunk);
            hf_res_abort(req);
            return;
        }
        d->at += (uint64_t)n;
        full = hf_res_write_take(req, chunk, (size_t)n);
        if (hf_req_aborted(req))
            return;
    }
    if (d->at == d->end)
        hf_res_end(req);
}

static void download_close(struct hf_req *req)
{
    struct download *d = hf_req_data(req);
    proc_unref(d->p);
    free(d);
}

static void download(struct hf_req *req, struct proc *p, enum proc_stream s, uint64_t from)
{
    static const struct hf_req_ops ops = {.on_drain = pump, .on_close = download_close};
    struct spool *spool = &p->out[s].spool;
    char text[64];
    if (from > spool->end) {
        hf_res_error(req, 416, "cursor %llu is beyond the end of the output at %llu",
                     (unsigned long long)from, (unsigned long long)spool->end);
        return;
    }
    uint64_t at = HF_MAX(from, spool->start);
    (void)snprintf(text, sizeof(text), "%llu-%llu", (unsigned long long)at, (unsigned long long)spool->end);
    hf_res_header(req, "Holdfast-Cursor", text);
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)(at - from));
    hf_res_header(req, "Holdfast-Missed", text);
    hf_res_header(req, "Content-Type", "application/octet-stream");
    hf_res_header(req, "Cache-Control", "no-store");
    struct download *d = hf_new(struct download);
    proc_ref(p);
    *d = (struct download){p, s, at, spool->end};
    hf_req_set_ops(req, &ops, d);
    hf_res_begin(req, 200, (int64_t)(d->end - d->at));
    pump(req);
}

static bool read_from(struct hf_req *req, uint64_t *ret)
{
    hf_auto_buf struct hf_buf text = HF_BUF_INIT(32);
    *ret = 0;
    int r = hf_query_get(hf_req_query(req), "from", &text);
    if (r > 0 && hf_parse_u64((struct hf_str){text.n ? text.p : "", text.n}, INT64_MAX, ret) == 0)
        return true;
    if (r == 0)
        return true;
    hf_res_error(req, 400, "the query parameter \"from\" must be a byte count");
    return false;
}

static int stream_named(struct hf_str name)
{
    for (int s = 0; s < PROC_STREAMS; s++)
        if (hf_str_eq(name, proc_stream_names[s]))
            return s;
    return -1;
}

static void list(struct hf_req *req)
{
    json_t *all = json_array();
    hf_list_foreach(it, proc_table())
    {
        const struct proc *p = hf_list_entry(it, struct proc, link);
        if (p->state != PROC_STARTING)
            json_array_append_new(all, describe(p));
    }
    send_json(req, all);
}

void exec_http_handle(struct envd *e, struct hf_req *req)
{
    struct hf_str rest = hf_req_path(req);
    rest = (struct hf_str){rest.p + strlen(EXEC_HTTP_PREFIX), rest.n - strlen(EXEC_HTTP_PREFIX)};
    if (!rest.n) {
        list(req);
        return;
    }
    rest = (struct hf_str){rest.p + 1, rest.n - 1}; /* the router looked for the slash */
    const char *slash = rest.n ? memchr(rest.p, '/', rest.n) : NULL;
    struct hf_str id = {rest.p, slash ? (size_t)(slash - rest.p) : rest.n};
    uint64_t pid, from;
    struct proc *p = hf_parse_u64(id, INT32_MAX, &pid) == 0 ? proc_by_pid((uint32_t)pid) : proc_by_id(id);
    if (!p) {
        hf_res_error(req, 404, "process with pid %.*s not found", (int)HF_MIN(id.n, 24), id.p);
        return;
    }
    if (!slash) {
        send_json(req, describe(p));
        return;
    }
    int s = stream_named((struct hf_str){slash + 1, rest.n - id.n - 1});
    if (s < 0 || (s == PROC_PTY) != p->pty) {
        hf_res_error(req, 404, "this process has no such output; it has %s",
                     p->pty ? "pty" : "stdout and stderr");
        return;
    }
    if (read_from(req, &from))
        download(req, p, (enum proc_stream)s, from);
}
