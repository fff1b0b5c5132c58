/* Which sandbox and port a request is for. */
#include <stdio.h>

#include "proxy/proxy_int.h"

#define RESERVED_PATH_MAX HF_HTTP_TARGET_MAX

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The label in front of ".domain", or {NULL, 0}. */
static struct hf_str label_of(const struct hf_proxy *p, struct hf_str host)
{
    const struct hf_str none = {NULL, 0};
    const char *colon = host.n ? memrchr(host.p, ':', host.n) : NULL;
    if (colon)
        host.n = (size_t)(colon - host.p);
    if (host.n <= p->domain_n + 1 || host.p[host.n - p->domain_n - 1] != '.')
        return none;
    struct hf_str tail = {host.p + host.n - p->domain_n, p->domain_n};
    if (!hf_str_caseeq(tail, p->domain))
        return none;
    struct hf_str label = {host.p, host.n - p->domain_n - 1};
    return memchr(label.p, '.', label.n) ? none : label;
}

/* "<digits>-…" is meant for a sandbox, right or wrong. */
static bool is_sandbox_label(struct hf_str label)
{
    size_t i = 0;
    while (i < label.n && digit(label.p[i]))
        i++;
    return i > 0 && i < label.n && label.p[i] == '-';
}

static int parse_port(struct hf_str s, struct hf_target *ret, const char **why)
{
    uint64_t v;
    if (hf_parse_u64(s, UINT16_MAX, &v) < 0 || v == 0) {
        *why = "Invalid sandbox port";
        return -EINVAL;
    }
    ret->port = (uint16_t)v;
    return 0;
}

/* "id" or "id-clientid"; the client id is of no meaning any more. */
static int parse_id(struct hf_str s, struct hf_target *ret, const char **why)
{
    size_t n = 0;
    while (n < s.n && s.p[n] != '-')
        n++;
    bool ok = n > 0 && n <= HF_PROXY_SANDBOX_ID_MAX;
    for (size_t i = 0; ok && i < n; i++) {
        char c = s.p[i];
        ret->id[i] = c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
        ok = digit(ret->id[i]) || (ret->id[i] >= 'a' && ret->id[i] <= 'z');
    }
    if (!ok) {
        *why = "Invalid sandbox ID";
        return -EINVAL;
    }
    ret->id[n] = '\0';
    return 0;
}

bool hf_proxy_match(const struct hf_proxy *p, const struct hf_req *req)
{
    return req->head.first[HF_H_E2B_ID] || req->head.first[HF_H_E2B_PORT] ||
           is_sandbox_label(label_of(p, req->head.host));
}

int hf_route_parse(const struct hf_proxy *p, const struct hf_req *req, struct hf_target *ret,
                   const char **why)
{
    struct hf_str label = label_of(p, req->head.host);
    struct hf_str id, port;
    if (is_sandbox_label(label)) {
        const char *dash = memchr(label.p, '-', label.n);
        port = (struct hf_str){label.p, (size_t)(dash - label.p)};
        id = (struct hf_str){dash + 1, label.n - port.n - 1};
    } else {
        id = hf_head_value(&req->head, req->head_p, HF_H_E2B_ID);
        port = hf_head_value(&req->head, req->head_p, HF_H_E2B_PORT);
        *why = id.p || port.p ? !id.p ? "missing header E2b-Sandbox-Id" : "missing header E2b-Sandbox-Port"
                              : "Invalid host";
        if (!id.p || !port.p)
            return -EINVAL;
    }
    int r = parse_port(port, ret, why);
    return r < 0 ? r : parse_id(id, ret, why);
}

/* ---- envd's control routes ---- */

/* The first segment that a server sees after decoding, collapsing slashes and resolving dots. */
static struct hf_str first_segment(struct hf_str path)
{
    struct hf_str stack = {NULL, 0};
    size_t depth = 0, i = 0;
    while (i < path.n) {
        while (i < path.n && (path.p[i] == '/' || path.p[i] == '\\'))
            i++;
        size_t start = i;
        while (i < path.n && path.p[i] != '/' && path.p[i] != '\\')
            i++;
        struct hf_str seg = {path.p + start, i - start};
        if (!seg.n || hf_str_eq(seg, "."))
            continue;
        if (hf_str_eq(seg, "..")) {
            depth -= depth > 0;
            continue;
        }
        if (depth++ == 0)
            stack = seg;
    }
    return depth ? stack : (struct hf_str){NULL, 0};
}

int hf_route_reserved(struct hf_str path)
{
    static const char *const names[] = {"init",     "freeze", "unfreeze", "collapse",
                                        "fsfreeze", "fsthaw", "upgrade"};
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(RESERVED_PATH_MAX);
    struct hf_str plain = path;
    if (memchr(path.p, '%', path.n)) {
        int r = hf_percent_decode(path, false, &b);
        if (r < 0)
            return -EINVAL;
        plain = (struct hf_str){b.p, b.n};
    }
    struct hf_str seg = first_segment(plain);
    /* "/init;x" and "/init?x" after decoding */
    for (size_t i = 0; i < seg.n; i++)
        if (seg.p[i] == ';' || seg.p[i] == '?')
            seg.n = i;
    for (size_t i = 0; i < HF_ARRAY_LEN(names); i++)
        if (hf_str_caseeq(seg, names[i]))
            return 1;
    return 0;
}

/* ---- answers ---- */

/* Programs in browsers must be able to read what went wrong, and when to come back. */
static void allow_origins(struct hf_req *req)
{
    hf_res_header(req, "Access-Control-Allow-Origin", "*");
    hf_res_header(req, "Access-Control-Expose-Headers", "Retry-After");
}

/* A preflight carries no credentials, and what it grants needs them still. */
static bool answer_preflight(struct hf_req *req)
{
    struct hf_str asked = hf_req_header(req, "access-control-request-headers");
    if (!hf_str_eq(hf_req_method(req), "OPTIONS") || !hf_req_header(req, "origin").p ||
        !hf_req_header(req, "access-control-request-method").p)
        return false;
    hf_auto_free char *names = asked.n ? hf_str_dup(asked) : NULL;
    allow_origins(req);
    hf_res_header(req, "Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    if (names)
        hf_res_header(req, "Access-Control-Allow-Headers", names);
    hf_res_header(req, "Vary", "Access-Control-Request-Headers");
    hf_res_send(req, 204, NULL, NULL, 0);
    return true;
}

void hf_route_refuse(struct hf_req *req, const char *why)
{
    allow_origins(req);
    hf_res_error(req, 400, "%s", why);
}

/* A person looks at it: a browser follows a link or a form, and no script asked for JSON. */
static bool is_navigation(const struct hf_req *req)
{
    struct hf_str agent = hf_req_header(req, "user-agent"), accept = hf_req_header(req, "accept");
    return accept.p && hf_str_starts(agent, "Mozilla") && memmem(accept.p, accept.n, "text/html", 9) &&
           !memmem(accept.p, accept.n, "application/json", 16) &&
           !hf_str_caseeq(hf_req_header(req, "sec-fetch-mode"), "cors");
}

static void answer_page(struct hf_req *req, int status, const char *id, const char *message, int port)
{
    char body[1024], at_port[32] = "";
    if (port > 0)
        (void)snprintf(at_port, sizeof(at_port), ", port %d", port);
    int n = snprintf(body, sizeof(body),
                     "<html lang=\"en\"><head><meta charset=\"utf-8\"><title>%d %s</title></head>\n"
                     "<body style=\"font-family: sans-serif; margin: 4em\"><h1>%s</h1>\n"
                     "<p>Sandbox <code>%s</code>%s</p></body></html>\n",
                     status, message, message, id, at_port);
    hf_res_send(req, status, "text/html; charset=utf-8", body, (size_t)n);
}

/* Neither the id (letters and digits) nor our messages need escaping. */
void hf_route_answer(struct hf_req *req, int status, const char *id, const char *message, int port)
{
    char body[512], port_member[32] = "";
    if (answer_preflight(req))
        return;
    allow_origins(req);
    if (is_navigation(req)) {
        answer_page(req, status, id, message, port);
        return;
    }
    if (port > 0)
        (void)snprintf(port_member, sizeof(port_member), "\"port\":%d,", port);
    int n = snprintf(body, sizeof(body), "{\"sandboxId\":\"%s\",\"message\":\"%s\",%s\"code\":%d}", id,
                     message, port_member, status);
    hf_res_send(req, status, "application/json; charset=utf-8", body, (size_t)n);
}

void hf_route_answer_reserved(struct hf_req *req)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(8 * HF_HTTP_TARGET_MAX);
    allow_origins(req);
    int r = hf_buf_adds(&b, "{\"message\":\"This endpoint is reserved for the E2B control plane and can't be "
                            "called from outside\",\"path\":");
    r = r < 0 ? r : hf_json_string_add(&b, hf_req_path(req));
    r = r < 0 ? r : hf_buf_adds(&b, ",\"code\":404}");
    if (r < 0)
        hf_res_error(req, 404, "This endpoint is reserved for the E2B control plane");
    else
        hf_res_send(req, 404, "application/json; charset=utf-8", b.p, b.n);
}
