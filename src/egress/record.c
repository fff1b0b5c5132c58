/* Outbound records: JSON lines in files that the daemon reads and removes (netd.h). A line is written whole
 * by one write(2) to a file opened with O_APPEND, so a reader sees whole lines but for the last. */
#include "egress/netd_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/path.h"

struct pending {
    struct hf_netd_box *box;
    char *name;
    const char *what, *protocol, *reason; /* static */
    struct hf_addr addr;
    uint16_t port;
    uint64_t count;
    int64_t time_ms;
};

struct records {
    struct hf_netd *d;
    char *dir;
    int fd;
    uint64_t seq;
    uint64_t written; /* bytes of the current file */
    bool failing;     /* said once */
    struct hf_buf buf;
    struct hf_map pending; /* denials of this second */
    uv_timer_t flush, window;
    unsigned open_handles;
};

/* ---- files ---- */

static bool seq_of(const char *name, uint64_t *ret)
{
    static const char before[] = "records-", behind[] = ".jsonl";
    struct hf_str s = hf_str_c(name);
    size_t fixed = sizeof(before) - 1 + sizeof(behind) - 1;
    return s.n > fixed && hf_str_starts(s, before) &&
           strcmp(name + s.n - (sizeof(behind) - 1), behind) == 0 &&
           hf_parse_u64((struct hf_str){s.p + sizeof(before) - 1, s.n - fixed}, UINT64_MAX, ret) == 0;
}

struct range {
    uint64_t oldest, newest;
    size_t n;
};

static struct range look(const char *dir)
{
    struct range r = {.oldest = UINT64_MAX};
    DIR *d = opendir(dir);
    if (!d)
        return r;
    uint64_t seq;
    for (const struct dirent *e; (e = readdir(d));) {
        if (!seq_of(e->d_name, &seq))
            continue;
        r.n++;
        r.oldest = HF_MIN(r.oldest, seq);
        r.newest = HF_MAX(r.newest, seq);
    }
    (void)closedir(d);
    return r;
}

static int open_next(struct records *r)
{
    hf_auto_free char *path = hf_xasprintf("%s/records-%012" PRIu64 ".jsonl", r->dir, r->seq + 1);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_EXCL, 0600);
    if (fd < 0)
        return -errno;
    (void)hf_close(r->fd);
    r->fd = fd;
    r->seq++;
    r->written = 0;
    return 0;
}

/* Nobody reads: what is oldest goes, and the next line says so. */
static void make_room(struct records *r)
{
    struct range have = look(r->dir);
    if (have.n < HF_RECORD_FILES_MAX)
        return;
    hf_auto_free char *path = hf_xasprintf("%s/records-%012" PRIu64 ".jsonl", r->dir, have.oldest);
    if (unlink(path) < 0)
        return;
    hf_log_error("outbound records are lost: nobody reads them", "file=%s", hf_log_quote(path));
    (void)!hf_buf_addf(&r->buf, "{\"kind\":\"lost\",\"time_ms\":%" PRId64 ",\"file\":%" PRIu64 "}\n",
                       hf_real_ms(), have.oldest);
}

static void flush(struct records *r)
{
    if (r->buf.n == 0)
        return;
    if (r->written >= HF_RECORD_FILE_MAX) {
        make_room(r);
        (void)!open_next(r);
    }
    ssize_t n = write(r->fd, r->buf.p, r->buf.n);
    if (n != (ssize_t)r->buf.n && !r->failing)
        hf_log_error("outbound records can't be written", "error=%s", n < 0 ? strerror(errno) : "no space");
    r->failing = n != (ssize_t)r->buf.n;
    if (n > 0 && r->failing) /* a torn line: ended, so that it costs no other one */
        (void)!write(r->fd, "\n", 1);
    r->written += n > 0 ? (uint64_t)n : 0;
    hf_buf_clear(&r->buf);
}

static void on_flush(uv_timer_t *t)
{
    flush(t->data);
}

static void add_line(struct records *r, json_t *v)
{
    hf_auto_free char *line = json_dumps(v, JSON_COMPACT);
    json_decref(v);
    if (!line || hf_buf_reserve(&r->buf, strlen(line) + 1) < 0)
        return;
    (void)!hf_buf_adds(&r->buf, line);
    (void)!hf_buf_adds(&r->buf, "\n");
    if (r->buf.n >= 65536)
        flush(r);
    else if (!uv_is_active((uv_handle_t *)&r->flush))
        (void)uv_timer_start(&r->flush, on_flush, HF_RECORD_FLUSH_MS, 0);
}

/* ---- lines ---- */

/* A text of a stranger: bytes that are no UTF-8 are replaced, so that the line is JSON. */
static json_t *text(const char *s)
{
    json_t *v = json_string(s ? s : "");
    if (v)
        return v;
    hf_auto_free char *copy = hf_xstrdup(s);
    for (char *p = copy; *p; p++)
        if ((unsigned char)*p >= 0x80)
            *p = '?';
    return json_string(copy);
}

static json_t *begin(const struct hf_netd_box *b, const char *kind, int64_t time_ms)
{
    json_t *v = json_object();
    (void)json_object_set_new(v, "kind", json_string(kind));
    (void)json_object_set_new(v, "time_ms", json_integer(time_ms));
    (void)json_object_set_new(v, "sandbox", text(b->sandbox));
    (void)json_object_set_new(v, "tenant", text(b->tenant));
    (void)json_object_set_new(v, "session", text(b->session));
    (void)json_object_set_new(v, "policy", text(b->policy->label));
    return v;
}

static void set_addr(json_t *v, const struct hf_addr *a, uint16_t port)
{
    char out[HF_ADDR_TEXT] = "";
    if (a && a->family)
        hf_addr_format(a, out);
    (void)json_object_set_new(v, "addr", json_string(out));
    (void)json_object_set_new(v, "port", json_integer(port));
}

void hf_record_request(struct hf_netd_box *b, const struct hf_request_record *q)
{
    struct records *r = b->d->records;
    json_t *v = begin(b, "request", hf_real_ms());
    const struct {
        const char *name, *value;
    } texts[] = {{"exec", q->exec},     {"rule", q->rule},   {"scheme", q->scheme},
                 {"method", q->method}, {"host", q->host},   {"path", q->path},
                 {"reason", q->reason}, {"audit", q->audit}, {"decision", q->denied ? "deny" : "allow"}};
    for (size_t i = 0; i < HF_ARRAY_LEN(texts); i++)
        (void)json_object_set_new(v, texts[i].name, text(texts[i].value));
    set_addr(v, &q->addr, q->port);
    (void)json_object_set_new(v, "status", json_integer(q->status));
    (void)json_object_set_new(v, "bytes_out", json_integer((json_int_t)q->bytes_out));
    (void)json_object_set_new(v, "bytes_in", json_integer((json_int_t)q->bytes_in));
    (void)json_object_set_new(v, "duration_ms", json_integer((json_int_t)q->duration_ms));
    add_line(r, v);
}

static void write_pending(struct records *r, struct pending *p)
{
    json_t *v = begin(p->box, "denial", p->time_ms);
    (void)json_object_set_new(v, "what", json_string(p->what));
    (void)json_object_set_new(v, "name", text(p->name));
    (void)json_object_set_new(v, "protocol", json_string(p->protocol));
    (void)json_object_set_new(v, "reason", json_string(p->reason));
    (void)json_object_set_new(v, "count", json_integer((json_int_t)p->count));
    set_addr(v, &p->addr, p->port);
    add_line(r, v);
    hf_netd_box_unref(p->box);
    free(p->name);
    free(p);
}

static void close_window(struct records *r)
{
    size_t pos = 0;
    for (struct pending *p; (p = hf_map_next(&r->pending, &pos, NULL));)
        write_pending(r, p);
    hf_map_done(&r->pending);
    r->pending = (struct hf_map){0};
}

static void on_window(uv_timer_t *t)
{
    close_window(t->data);
}

void hf_record_denial(struct hf_netd_box *b, const char *what, const char *name, const struct hf_addr *addr,
                      uint16_t port, const char *protocol, const char *reason)
{
    struct records *r = b->d->records;
    char at[HF_ADDR_TEXT] = "";
    if (addr && addr->family)
        hf_addr_format(addr, at);
    hf_auto_free char *key =
        hf_xasprintf("%u|%s|%s|%s|%u|%s|%s", b->key, what, name, at, port, protocol, reason);
    struct pending *p = hf_map_get(&r->pending, hf_str_c(key));
    if (p) {
        p->count++;
        return;
    }
    hf_log_info("denied",
                "policy=%s sandbox=%s session=%s what=%s name=%s addr=%s port=%u protocol=%s reason=%s",
                hf_log_quote(b->policy->label), b->sandbox, hf_log_quote(b->session), what,
                hf_log_quote(name), at, port, protocol, reason);
    p = hf_new(struct pending);
    *p = (struct pending){hf_netd_box_ref(b), hf_xstrdup(name), what, protocol, reason, {0}, port, 1,
                          hf_real_ms()};
    if (addr)
        p->addr = *addr;
    (void)hf_map_put(&r->pending, hf_str_c(key), p);
    if (r->pending.len >= HF_DENIAL_PENDING_MAX)
        close_window(r);
    else if (!uv_is_active((uv_handle_t *)&r->window))
        (void)uv_timer_start(&r->window, on_window, HF_DENIAL_WINDOW_MS, 0);
}

int hf_record_start(struct hf_netd *d, const char *dir, struct hf_err *err)
{
    int e = hf_mkdir_p(dir, 0700);
    if (e < 0)
        return hf_err_set(err, e, "cannot make the directory %s: %s", dir, strerror(-e));
    struct records *r = hf_new(struct records);
    r->d = d;
    r->dir = hf_xstrdup(dir);
    r->fd = -1;
    struct range have = look(dir);
    r->seq = have.n ? have.newest : 0;
    r->buf = (struct hf_buf)HF_BUF_INIT(4u << 20);
    (void)uv_timer_init(d->loop, &r->flush);
    (void)uv_timer_init(d->loop, &r->window);
    r->flush.data = r->window.data = r;
    r->open_handles = 2;
    d->records = r;
    e = open_next(r);
    return e < 0 ? hf_err_set(err, e, "cannot write records in %s: %s", dir, strerror(-e)) : 0;
}

static void on_closed(uv_handle_t *h)
{
    struct records *r = h->data;
    if (--r->open_handles)
        return;
    hf_buf_done(&r->buf);
    (void)hf_close(r->fd);
    free(r->dir);
    free(r);
}

void hf_record_stop(struct hf_netd *d)
{
    struct records *r = d->records;
    if (!r)
        return;
    close_window(r);
    flush(r);
    uv_close((uv_handle_t *)&r->flush, on_closed);
    uv_close((uv_handle_t *)&r->window, on_closed);
}
