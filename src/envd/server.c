/* The router of envd. */
#include "envd/server.h"

#include "envd/rpc.h"

#define CORS_MAX_AGE_S "7200"

static void health(struct envd *e, struct hf_req *req)
{
    hf_res_header(req, "Cache-Control", "no-store");
    hf_res_send(req, 204, NULL, NULL, 0);
}

enum { ANYONE = 1u << 0, CONTROL = 1u << 1, BELOW = 1u << 2 };

static const struct route {
    const char *path;
    const char *methods; /* as the Allow header has them */
    unsigned flags;      /* ANYONE: the handler checks the token itself, or none is needed; CONTROL: exists on
                            the control socket only; BELOW: also for every path below */
    void (*fn)(struct envd *e, struct hf_req *req);
} routes[] = {
    {"/health", "GET, HEAD", ANYONE, health},
    {"/metrics", "GET", 0, metrics_handle},
    {"/envs", "GET", 0, envs_handle},
    {"/init", "POST", ANYONE | CONTROL, init_handle},
    {"/owner", "POST", ANYONE | CONTROL, owner_handle},
    {"/files", "GET, HEAD, POST, PUT", ANYONE, files_handle},
    {"/files/compose", "POST", 0, files_handle},
    {EXEC_HTTP_PREFIX, "GET", BELOW, exec_http_handle},
};

static bool allows(const char *methods, struct hf_str method)
{
    for (const char *p = methods; *p;) {
        size_t n = strcspn(p, ",");
        if (n == method.n && memcmp(p, method.p, n) == 0)
            return true;
        p += n;
        p += strspn(p, ", ");
    }
    return false;
}

static void refuse_method(struct hf_req *req, const char *methods)
{
    hf_res_header(req, "Allow", methods);
    hf_res_error(req, 405, "method not allowed; use %s", methods);
}

static bool matches(const struct route *r, struct hf_str path)
{
    size_t n = strlen(r->path);
    if (path.n < n || memcmp(path.p, r->path, n) != 0)
        return false;
    return path.n == n || ((r->flags & BELOW) && path.p[n] == '/');
}

static const struct rpc_method *find_rpc(struct hf_str path)
{
    static const struct rpc_method *const services[] = {process_methods, filesystem_methods};
    for (size_t i = 0; i < HF_ARRAY_LEN(services); i++)
        for (const struct rpc_method *m = services[i]; m->path; m++)
            if (hf_str_eq(path, m->path))
                return m;
    return NULL;
}

/* Any origin may use the box's API: the token is what protects it, and it is never a cookie. */
static void cors(struct hf_req *req)
{
    if (!hf_req_header(req, "origin").p)
        return;
    hf_res_header(req, "Access-Control-Allow-Origin", "*");
    hf_res_header(req, "Access-Control-Expose-Headers", "*");
}

static void preflight(struct hf_req *req)
{
    struct hf_str wanted = hf_req_header(req, "access-control-request-headers");
    hf_auto_free char *headers = wanted.n ? hf_str_dup(wanted) : hf_xstrdup("*");
    hf_res_header(req, "Access-Control-Allow-Origin", "*");
    hf_res_header(req, "Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    hf_res_header(req, "Access-Control-Allow-Headers", headers);
    hf_res_header(req, "Access-Control-Max-Age", CORS_MAX_AGE_S);
    hf_res_send(req, 204, NULL, NULL, 0);
}

static const struct route *find_route(struct hf_req *req)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(routes); i++) {
        const struct route *r = &routes[i];
        bool visible = !(r->flags & CONTROL) || hf_req_listener_tag(req) == ENVD_TAG_CONTROL;
        if (visible && matches(r, hf_req_path(req)))
            return r;
    }
    return NULL;
}

static void on_request(void *self, struct hf_req *req)
{
    struct envd *e = self;
    struct hf_str method = hf_req_method(req);
    if (hf_str_eq(method, "OPTIONS")) {
        preflight(req);
        return;
    }
    cors(req);
    const struct route *r = find_route(req);
    const struct rpc_method *m = r ? NULL : find_rpc(hf_req_path(req));
    if (!(r && (r->flags & ANYONE)) && !envd_authorize(e, req))
        return;
    if (!r && !m)
        hf_res_error(req, 404, "not found");
    else if (!allows(r ? r->methods : "POST", method))
        refuse_method(req, r ? r->methods : "POST");
    else if (r)
        r->fn(e, req);
    else
        rpc_handle(e, m, req);
}

const struct hf_http_handler envd_http_handler = {.on_request = on_request};
