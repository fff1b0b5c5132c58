/* From a judged request to the origin, and its answer back to the box. */
#include "egress/l7_http.h"

#include "base/log.h"
#include "wire/head.h"

#include <stdio.h>

#define FIELDS_MAX (HF_HTTP_HEADERS_MAX + HF_POLICY_INJECT_MAX + 1u)
#define HEAD_MAX (HF_HTTP_HEAD_MAX + HF_POLICY_INJECT_MAX * (HF_L7_SECRET_MAX + 128u))

/* ---- the request's fields ---- */

struct fields {
    struct hf_field f[FIELDS_MAX];
    size_t n;
    struct hf_buf names;                        /* lower case */
    struct hf_buf values[HF_POLICY_INJECT_MAX]; /* with secrets in them */
    size_t n_values;
};

static void fields_done(struct fields *fs)
{
    for (size_t i = 0; i < fs->n_values; i++)
        hf_l7_wipe(&fs->values[i]);
    hf_buf_done(&fs->names);
}

static bool is_framing(struct hf_str name)
{
    static const char *const names[] = {"host",       "content-length", "transfer-encoding",
                                        "connection", "keep-alive",     "proxy-connection",
                                        "upgrade",    "expect",         "te",
                                        "trailer",    "http2-settings", "proxy-authorization"};
    for (size_t i = 0; i < HF_ARRAY_LEN(names); i++)
        if (hf_str_caseeq(name, names[i]))
            return true;
    return false;
}

static bool is_injected(const struct hf_rule *rule, struct hf_str name)
{
    for (size_t i = 0; rule && i < rule->n_inject; i++)
        if (hf_str_caseeq(name, rule->inject[i].header))
            return true;
    return false;
}

/* names has room for all of them: what points into it stays. */
static void add_field(struct fields *fs, struct hf_str name, struct hf_str value)
{
    char *at = fs->names.p + fs->names.n;
    for (size_t i = 0; i < name.n; i++)
        at[i] = name.p[i] >= 'A' && name.p[i] <= 'Z' ? (char)(name.p[i] | 0x20) : name.p[i];
    fs->names.n += name.n;
    fs->f[fs->n++] = (struct hf_field){{at, name.n}, value};
}

static bool listed(struct hf_str connection, struct hf_str name)
{
    char token[128];
    if (!connection.n || name.n >= sizeof token)
        return false;
    for (size_t i = 0; i < name.n; i++)
        token[i] = name.p[i] >= 'A' && name.p[i] <= 'Z' ? (char)(name.p[i] | 0x20) : name.p[i];
    token[name.n] = '\0';
    return hf_token_list_has(connection, token);
}

static int copy_fields(struct fields *fs, const struct hf_l7_xchg *x)
{
    struct hf_str connection = hf_req_header(x->req, "connection");
    size_t n = HF_MIN(hf_req_header_count(x->req), (size_t)HF_HTTP_HEADERS_MAX), total = 1;
    struct hf_str name, value;
    for (size_t i = 0; i < n; i++) {
        hf_req_header_at(x->req, i, &name, &value);
        total += name.n;
    }
    int r = hf_buf_reserve(&fs->names, total);
    for (size_t i = 0; r == 0 && i < n; i++) {
        hf_req_header_at(x->req, i, &name, &value);
        if (!name.n || name.p[0] == ':' || is_framing(name) || listed(connection, name) ||
            is_injected(x->rule, name))
            continue;
        add_field(fs, name, value);
    }
    if (r == 0 && hf_token_list_has(hf_req_header(x->req, "te"), "trailers"))
        fs->f[fs->n++] = (struct hf_field){HF_STR("te"), HF_STR("trailers")}; /* gRPC asks for them */
    return r;
}

/* The rule's headers, from what the tenant's secrets are now. */
static int inject(struct fields *fs, struct hf_l7_xchg *x)
{
    const struct hf_l7_conn *c = x->c;
    const struct hf_netd_tenant *t = hf_netd_tenant(c->l7->d, c->box->tenant);
    char missing[HF_L7_SECRET_NAME_MAX], text[2 * HF_L7_SECRET_NAME_MAX + 128];
    for (size_t i = 0; x->rule && i < x->rule->n_inject; i++) {
        const struct hf_inject *in = &x->rule->inject[i];
        struct hf_buf *v = &fs->values[fs->n_values++];
        *v = HF_BUF_INIT(HF_L7_SECRET_MAX + 1);
        int r =
            is_framing(hf_str_c(in->header)) ? -EINVAL : hf_l7_expand(in, t ? t->secrets : NULL, v, missing);
        if (r == 0) {
            fs->f[fs->n++] = (struct hf_field){hf_str_c(in->header), {v->p, v->n}};
            continue;
        }
        if (r == -ENOENT)
            (void)snprintf(text, sizeof text, "there is no secret named \"%s\" (holdfast secret set %s)",
                           missing, missing);
        else
            (void)snprintf(text, sizeof text, "the value of the header \"%s\" can't stand in a request",
                           in->header);
        hf_l7_deny(x, 502, "secret", x->rule->name, text);
        return r;
    }
    return 0;
}

/* ---- sending ---- */

static bool wants_websocket(struct hf_req *req)
{
    return hf_req_version(req) == 11 && !hf_req_has_body(req) &&
           hf_token_list_has(hf_req_header(req, "connection"), "upgrade") &&
           hf_str_caseeq(hf_req_header(req, "upgrade"), "websocket");
}

/* "host" or "host:port", as it will be read by the origin. */
static struct hf_str authority_of(const struct hf_l7_xchg *x, char out[HF_L7_HOST_MAX + 16])
{
    const struct hf_l7_conn *c = x->c;
    bool v6 = x->to.is_addr && x->to.addr.family == 6;
    int n = snprintf(out, HF_L7_HOST_MAX + 16, v6 ? "[%s]" : "%s", x->to.host);
    if (c->port != (c->tls ? 443 : 80))
        n += snprintf(out + n, 16, ":%u", c->port);
    return (struct hf_str){out, (size_t)n};
}

static bool start(struct hf_l7_xchg *x, struct fields *fs)
{
    char authority[HF_L7_HOST_MAX + 16];
    struct hf_cx_req q = {.method = hf_req_method(x->req),
                          .scheme = hf_str_c(hf_l7_scheme(x->c)),
                          .authority = authority_of(x, authority),
                          .path = hf_l7_path(x->req),
                          .fields = fs->f,
                          .n_fields = fs->n,
                          .length = hf_req_has_body(x->req) ? hf_req_content_length(x->req) : 0,
                          .upgrade = wants_websocket(x->req) ? "websocket" : NULL};
    x->cx = hf_cx_new(x->client->cl, &q, &hf_l7_cx_ops, x);
    return x->cx != NULL;
}

void hf_l7_send(struct hf_l7_xchg *x)
{
    struct fields *fs = hf_new(struct fields);
    fs->names = HF_BUF_INIT(HEAD_MAX);
    bool ready = copy_fields(fs, x) == 0 && inject(fs, x) == 0;
    bool sent = ready && start(x, fs);
    fields_done(fs);
    free(fs);
    if (sent) {
        if (x->body_over && hf_req_has_body(x->req))
            hf_cx_end(x->cx);
        hf_req_resume(x->req);
        return;
    }
    hf_l7_origin_put(x);
    if (!x->status)
        hf_l7_bad_gateway(x, "the request can't be put on the connection");
}

/* ---- the answer ---- */

/* NUL-terminated copies for the server's calls. */
static void answer_field(struct hf_l7_xchg *x, const struct hf_field *f)
{
    hf_auto_free char *name = hf_str_dup(f->name), *value = hf_str_dup(f->value);
    hf_res_header(x->req, name, value);
}

static void on_head(struct hf_cx *cx, int status, const struct hf_field *f, size_t n, int64_t length)
{
    struct hf_l7_xchg *x = hf_cx_data(cx);
    x->status = status;
    for (size_t i = 0; i < n; i++)
        answer_field(x, &f[i]);
    hf_res_begin(x->req, status, length);
}

static void on_data(struct hf_cx *cx, const char *p, size_t n)
{
    struct hf_l7_xchg *x = hf_cx_data(cx);
    x->bytes_in += n;
    if (hf_res_write(x->req, p, n) == 1)
        hf_cx_pause(cx);
}

static void on_trailers(struct hf_cx *cx, const struct hf_field *f, size_t n)
{
    struct hf_l7_xchg *x = hf_cx_data(cx);
    for (size_t i = 0; i < n && x->n_trailers < HF_HTTP_HEADERS_MAX; i++) {
        size_t before = x->trailers.n;
        int r = hf_buf_add(&x->trailers, f[i].name.p, f[i].name.n);
        r = r < 0 ? r : hf_buf_add(&x->trailers, "", 1);
        r = r < 0 ? r : hf_buf_add(&x->trailers, f[i].value.p, f[i].value.n);
        r = r < 0 ? r : hf_buf_add(&x->trailers, "", 1);
        if (r < 0) {
            x->trailers.n = before;
            return;
        }
        x->n_trailers++;
    }
}

static void on_drain(struct hf_cx *cx)
{
    struct hf_l7_xchg *x = hf_cx_data(cx);
    hf_req_resume(x->req);
}

static void on_end(struct hf_cx *cx)
{
    struct hf_l7_xchg *x = hf_cx_data(cx);
    const char *pairs[2 * HF_HTTP_HEADERS_MAX];
    hf_l7_origin_put(x);
    if (!x->n_trailers) {
        hf_res_end(x->req);
        return;
    }
    const char *p = x->trailers.p;
    for (size_t i = 0; i < 2 * x->n_trailers; i++) {
        pairs[i] = p;
        p += strlen(p) + 1;
    }
    hf_res_end_trailers(x->req, pairs, x->n_trailers);
}

static bool idempotent(struct hf_str m)
{
    return hf_str_eq(m, "GET") || hf_str_eq(m, "HEAD") || hf_str_eq(m, "OPTIONS");
}

/* An origin may close a connection just when the next request is put on it. */
static bool may_retry(const struct hf_l7_xchg *x, bool reused, bool unsent)
{
    if (x->retried || !reused || x->body_taken || x->c->state != HF_L7_HTTP)
        return false;
    return unsent || (idempotent(hf_req_method(x->req)) && !hf_req_has_body(x->req));
}

static void on_fail(struct hf_cx *cx, int r, bool answered, bool unsent)
{
    struct hf_l7_xchg *x = hf_cx_data(cx);
    bool reused = x->client && x->client->served > 0;
    if (x->client)
        x->client->gone = true;
    hf_l7_origin_put(x);
    if (answered || hf_res_started(x->req) || x->c->state != HF_L7_HTTP) {
        hf_res_abort(x->req);
    } else if (may_retry(x, reused, unsent)) {
        x->retried = true;
        hf_l7_origin_get(x);
    } else {
        hf_l7_bad_gateway(x, strerror(-r));
    }
}

/* ---- tunnels ---- */

static int tunnel_head(struct hf_buf *out, int status, const struct hf_field *f, size_t n)
{
    int r = hf_buf_addf(
        out, "HTTP/1.1 %d Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n", status);
    for (size_t i = 0; i < n && r == 0; i++)
        r = hf_buf_addf(out, "%.*s: %.*s\r\n", (int)f[i].name.n, f[i].name.p, (int)f[i].value.n,
                        f[i].value.p);
    return r < 0 ? r : hf_buf_adds(out, "\r\n");
}

static void on_upgrade(struct hf_cx *cx, int status, const struct hf_field *f, size_t n)
{
    struct hf_l7_xchg *x = hf_cx_data(cx);
    struct hf_l7_conn *c = x->c;
    struct hf_buf head = HF_BUF_INIT(HF_CLIENT_HEAD_MAX + HF_L7_READ_SIZE), early = HF_BUF_INIT(0),
                  sent = early;
    struct hf_l7_pipe_req q = {0};
    int r = tunnel_head(&head, status, f, n);
    q.origin.stream = hf_cx_take(cx, &q.origin.tls, &early);
    x->cx = NULL;
    x->status = status;
    x->client->cl = NULL; /* taken */
    x->client->gone = true;
    hf_l7_origin_put(x);
    if (r == 0)
        r = hf_buf_add(&head, early.p, early.n);
    hf_buf_done(&early);
    c->tunnel_method = hf_str_dup(hf_req_method(x->req));
    c->tunnel_path = hf_str_dup(hf_l7_path(x->req));
    memcpy(c->tunnel_host, x->to.host, sizeof c->tunnel_host);
    c->hijacked = r == 0;
    q.client.stream = r == 0 ? hf_req_hijack(x->req, &q.client.tls, &sent) : NULL;
    if (q.client.stream) {
        hf_l7_origin_end(c);
        q.to_client = (struct hf_str){head.p, head.n};
        q.to_origin = (struct hf_str){sent.p, sent.n};
        hf_l7_pipe_start(c, &q);
    } else {
        c->hijacked = false;
        hf_l7_link_close(&q.origin, true);
        hf_l7_end(c, true);
    }
    hf_buf_done(&head);
    hf_buf_done(&sent);
}

const struct hf_cx_ops hf_l7_cx_ops = {.on_head = on_head,
                                       .on_upgrade = on_upgrade,
                                       .on_data = on_data,
                                       .on_trailers = on_trailers,
                                       .on_drain = on_drain,
                                       .on_end = on_end,
                                       .on_fail = on_fail};
