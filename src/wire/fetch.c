/* One-shot requests through the guard. Each hop is dialled by hf_dial_host, so what was checked is what is
 * connected to; the rest is the ordinary client. */
#include <stdio.h>

#include "wire/client.h"
#include "wire/guard.h"
#include "wire/url.h"

#define REDIRECTS_MAX 5u
#define FIELDS_MAX 32u
#define SCHEMES "http,https"

struct hf_fetch {
    uv_loop_t *loop;
    hf_fetch_cb cb;
    void *arg;
    unsigned flags, hops;
    char *url, *method, *ca_file;
    char *lines[FIELDS_MAX]; /* "Name: value" */
    size_t n_lines;
    struct hf_buf body, answer;
    int status;
    bool moved; /* location is where to go next */
    char *location;
    struct hf_tls_ctx *tls;
    struct hf_guard_dial *dial;
    struct hf_client *client;
    struct hf_cx *cx;
    uv_timer_t timer;
    uint64_t deadline_ms;
    struct hf_err err;
    bool over;
};

static void go(struct hf_fetch *f);

static void on_timer_closed(uv_handle_t *h)
{
    struct hf_fetch *f = h->data;
    hf_tls_ctx_unref(f->tls);
    for (size_t i = 0; i < f->n_lines; i++)
        free(f->lines[i]);
    hf_buf_done(&f->body);
    hf_buf_done(&f->answer);
    free(f->url);
    free(f->method);
    free(f->ca_file);
    free(f->location);
    free(f);
}

static void hang_up(struct hf_fetch *f)
{
    if (f->dial)
        hf_dial_cancel(hf_take_ptr(f->dial));
    if (f->cx)
        hf_cx_cancel(hf_take_ptr(f->cx));
    if (f->client)
        hf_client_close(hf_take_ptr(f->client));
}

void hf_fetch_cancel(struct hf_fetch *f)
{
    if (f->over)
        return;
    f->over = true;
    hang_up(f);
    uv_close((uv_handle_t *)&f->timer, on_timer_closed);
}

static void finish(struct hf_fetch *f)
{
    struct hf_str body = {f->answer.p ? f->answer.p : "", f->answer.n};
    bool ok = f->err.r == 0;
    hf_fetch_cancel(f);
    f->cb(f->arg, ok ? f->status : 0, ok ? body : (struct hf_str){"", 0}, ok ? NULL : &f->err);
}

static void fail(struct hf_fetch *f, int r, const char *what)
{
    (void)hf_err_set(&f->err, r, "%.200s: %s", f->url, what);
    finish(f);
}

static void on_timeout(uv_timer_t *t)
{
    fail(t->data, -ETIMEDOUT, "no answer in time");
}

/* ---- redirects ---- */

/* Where a Location leads from here: absolute, or a path of the same place. */
static char *resolve(const struct hf_url *from, struct hf_str to)
{
    struct hf_str base = from->path;
    const char *query = base.n ? memchr(base.p, '?', base.n) : NULL;
    size_t dir = query ? (size_t)(query - base.p) : base.n;
    if (memmem(to.p, to.n, "://", 3) && to.p[0] != '/' && to.p[0] != '?')
        return hf_str_dup(to);
    if (to.n > 1 && to.p[0] == '/' && to.p[1] == '/')
        return hf_xasprintf("%.*s:%.*s", (int)from->scheme.n, from->scheme.p, (int)to.n, to.p);
    while (dir && base.p[dir - 1] != '/')
        dir--;
    if (to.n && to.p[0] == '/')
        dir = 0;
    return hf_xasprintf("%.*s://%.*s%s%.*s%.*s", (int)from->scheme.n, from->scheme.p, (int)from->authority.n,
                        from->authority.p, dir || (to.n && to.p[0] == '/') ? "" : "/", (int)dir,
                        dir ? base.p : "", (int)to.n, to.p);
}

static bool same_place(const struct hf_url *a, const struct hf_url *b)
{
    if (a->port != b->port || a->tls != b->tls || a->host.n != b->host.n)
        return false;
    for (size_t i = 0; i < a->host.n; i++)
        if ((a->host.p[i] | 0x20) != (b->host.p[i] | 0x20))
            return false;
    return true;
}

/* What the caller sent along is for the place that it named. */
static void drop_headers(struct hf_fetch *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_lines; i++) {
        struct hf_str name = {f->lines[i], strcspn(f->lines[i], ":")};
        bool keep = hf_str_caseeq(name, "accept") || hf_str_caseeq(name, "content-type") ||
                    hf_str_caseeq(name, "user-agent");
        if (keep)
            f->lines[n++] = f->lines[i];
        else
            free(f->lines[i]);
    }
    f->n_lines = n;
}

static void become_get(struct hf_fetch *f)
{
    bool get = f->status == 303 || ((f->status == 301 || f->status == 302) && strcmp(f->method, "POST") == 0);
    if (!get || strcmp(f->method, "HEAD") == 0)
        return;
    free(f->method);
    f->method = hf_xstrdup("GET");
    hf_buf_done(&f->body);
}

static void follow(struct hf_fetch *f)
{
    struct hf_url from, to;
    if (++f->hops > REDIRECTS_MAX) {
        fail(f, -ELOOP, "too many redirects");
        return;
    }
    int r = hf_url_split(hf_str_c(f->url), &from);
    hf_auto_free char *next = r < 0 ? NULL : resolve(&from, hf_str_c(f->location));
    if (!next || hf_url_split(hf_str_c(next), &to) < 0) {
        fail(f, -EINVAL, "it redirects to something that is no URL");
        return;
    }
    if (from.tls && !to.tls) {
        fail(f, -EACCES, "it redirects from https to http");
        return;
    }
    if (!same_place(&from, &to))
        drop_headers(f);
    become_get(f);
    free(f->url);
    f->url = hf_take_ptr(next);
    go(f);
}

/* ---- the exchange ---- */

static void on_head(struct hf_cx *cx, int status, const struct hf_field *fields, size_t n, int64_t length)
{
    struct hf_fetch *f = hf_cx_data(cx);
    f->status = status;
    f->moved = false;
    bool redirect = status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
    for (size_t i = 0; redirect && i < n; i++) {
        if (!hf_str_eq(fields[i].name, "location"))
            continue;
        free(f->location);
        f->location = hf_str_dup(fields[i].value);
        f->moved = true;
    }
}

static void on_data(struct hf_cx *cx, const char *p, size_t n)
{
    struct hf_fetch *f = hf_cx_data(cx);
    size_t room = f->answer.max - f->answer.n;
    if (!f->moved)
        (void)!hf_buf_add(&f->answer, p, HF_MIN(n, room)); /* fits */
}

static void on_end(struct hf_cx *cx)
{
    struct hf_fetch *f = hf_cx_data(cx);
    f->cx = NULL;
    hang_up(f);
    if (f->moved)
        follow(f);
    else
        finish(f);
}

static void on_fail(struct hf_cx *cx, int r, bool answered, bool unsent)
{
    struct hf_fetch *f = hf_cx_data(cx);
    const char *why = hf_client_tls_error(hf_cx_client(cx));
    f->cx = NULL;
    (void)hf_err_set(&f->err, r, "%.200s: %s", f->url, *why ? why : strerror(-r));
    hang_up(f);
    finish(f);
}

static const struct hf_cx_ops ops = {
    .on_head = on_head, .on_data = on_data, .on_end = on_end, .on_fail = on_fail};

static void send_request(struct hf_fetch *f, const struct hf_url *u)
{
    struct hf_field fields[FIELDS_MAX];
    hf_auto_free char *path = hf_xasprintf("%s%.*s", u->path.n && u->path.p[0] == '/' ? "" : "/",
                                           (int)u->path.n, u->path.n ? u->path.p : "");
    for (size_t i = 0; i < f->n_lines; i++) {
        char *line = f->lines[i];
        size_t n = strcspn(line, ":");
        fields[i].name = (struct hf_str){line, n};
        fields[i].value = hf_str_c(line + n + 1 + strspn(line + n + 1, " "));
    }
    struct hf_cx_req req = {.method = hf_str_c(f->method),
                            .scheme = u->scheme,
                            .authority = u->authority,
                            .path = hf_str_c(path),
                            .fields = fields,
                            .n_fields = f->n_lines,
                            .length = (int64_t)f->body.n};
    f->cx = hf_cx_new(f->client, &req, &ops, f);
    if (!f->cx) {
        fail(f, -EINVAL, "the request has characters that can't stand in one, or the connection broke");
        return;
    }
    if (f->body.n) {
        (void)hf_cx_write(f->cx, f->body.p, f->body.n);
        hf_cx_end(f->cx);
    }
}

static void on_dialled(void *arg, uv_stream_t *stream, const struct hf_addr *addr, const struct hf_err *err)
{
    struct hf_fetch *f = arg;
    struct hf_url u;
    f->dial = NULL;
    if (!stream || hf_url_split(hf_str_c(f->url), &u) < 0) {
        fail(f, err ? err->r : -EINVAL, err ? err->msg : "malformed URL");
        return;
    }
    hf_auto_free char *name = hf_str_dup(u.host);
    if (u.kind == 0 && name[u.host.n - 1] == '.')
        name[u.host.n - 1] = '\0';
    struct hf_tls *t = u.tls ? hf_tls_connect(f->tls, name, HF_ALPN_HTTP1) : NULL;
    f->client = hf_client_new(f->loop, stream, t, false, NULL, NULL);
    send_request(f, &u);
}

static void go(struct hf_fetch *f)
{
    struct hf_url u;
    int r = hf_url_check(hf_str_c(f->url), SCHEMES, f->flags, &f->err);
    r = r < 0 ? r : hf_url_split(hf_str_c(f->url), &u);
    if (r == 0 && u.tls && !f->tls)
        r = hf_tls_client_ctx(f->ca_file, true, HF_ALPN_HTTP1, &f->tls, &f->err);
    if (r < 0) {
        (void)hf_err_wrap(&f->err, "%.200s", f->url);
        finish(f);
        return;
    }
    hf_auto_free char *host = hf_str_dup(u.host);
    hf_buf_clear(&f->answer);
    f->dial = hf_dial_host(f->loop, host, u.port, f->flags, on_dialled, f);
}

static void on_start(uv_timer_t *t)
{
    struct hf_fetch *f = t->data;
    uint64_t now = uv_now(f->loop);
    (void)uv_timer_start(&f->timer, on_timeout, f->deadline_ms > now ? f->deadline_ms - now : 0, 0);
    if (f->err.r)
        finish(f);
    else
        go(f);
}

static void keep_request(struct hf_fetch *f, const char *const *headers, struct hf_str body)
{
    for (; headers && *headers; headers++) {
        if (f->n_lines == FIELDS_MAX || !strchr(*headers, ':'))
            (void)hf_err_set(&f->err, -EINVAL, "more than %u headers, or one without a colon", FIELDS_MAX);
        else
            f->lines[f->n_lines++] = hf_xstrdup(*headers);
    }
    if (hf_buf_add(&f->body, body.p, body.n) < 0)
        (void)hf_err_set(&f->err, -EMSGSIZE, "the request body has more than %zu bytes", f->body.max);
}

struct hf_fetch *hf_fetch_start(uv_loop_t *loop, const char *method, const char *url,
                                const char *const *headers, struct hf_str body, unsigned flags,
                                const char *ca_file, size_t max_body, uint64_t timeout_ms, hf_fetch_cb cb,
                                void *arg)
{
    struct hf_fetch *f = hf_new(struct hf_fetch);
    f->loop = loop;
    f->cb = cb;
    f->arg = arg;
    f->flags = flags;
    f->method = hf_xstrdup(method);
    f->url = hf_xstrdup(url);
    f->body = HF_BUF_INIT(HF_FETCH_BODY_MAX);
    f->answer = HF_BUF_INIT(max_body);
    keep_request(f, headers, body);
    f->ca_file = ca_file ? hf_xstrdup(ca_file) : NULL;
    f->deadline_ms = uv_now(loop) + timeout_ms;
    (void)uv_timer_init(loop, &f->timer);
    f->timer.data = f;
    (void)uv_timer_start(&f->timer, on_start, 0, 0); /* never called back from inside this call */
    return f;
}
