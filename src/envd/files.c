/* /files: routing, who may do it (token or signed URL), and for whom. */
#include "envd/files.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/id.h"

void files_query_done(struct files_query *q)
{
    free(q->raw_path);
    free(q->workdir);
    *q = (struct files_query){0};
}

int files_signature(struct hf_str path, const char *operation, struct hf_str user, const char *token,
                    int64_t expires, struct hf_buf *out)
{
    char tail[32] = "";
    if (expires >= 0)
        (void)snprintf(tail, sizeof(tail), ":%lld", (long long)expires);
    const struct hf_str parts[] = {path, HF_STR(":"), hf_str_c(operation), HF_STR(":"),
                                   user, HF_STR(":"), hf_str_c(token),     hf_str_c(tail)};
    struct hf_sha256 s;
    hf_sha256_init(&s);
    for (size_t i = 0; i < HF_ARRAY_LEN(parts); i++) {
        if (parts[i].n)
            hf_sha256_add(&s, parts[i].p, parts[i].n);
    }
    unsigned char sum[HF_SHA256_LEN];
    hf_sha256_done(&s, sum);
    int r = hf_buf_adds(out, "v1_");
    if (r == 0)
        r = hf_base64_add(out, sum, sizeof(sum));
    while (r == 0 && out->n && out->p[out->n - 1] == '=')
        out->p[--out->n] = '\0';
    return r;
}

/* One query parameter. 1 found, 0 absent, negative after 400 was answered. */
static int query_value(struct hf_req *req, const char *name, struct hf_buf *out)
{
    int r = hf_query_get(hf_req_query(req), name, out);
    if (r < 0)
        hf_res_error(req, 400,
                     r == -EMSGSIZE ? "query parameter '%s' is too long"
                                    : "query parameter '%s' is malformed or has a NUL byte",
                     name);
    return r;
}

/* 1 proceed, 0 after a 401 or 400. */
static int check_signature(const struct envd *e, struct hf_req *req, struct hf_str path, struct hf_str user,
                           const char *operation)
{
    hf_auto_buf struct hf_buf sig = HF_BUF_INIT(256), exp = HF_BUF_INIT(32), want = HF_BUF_INIT(256);
    int has_sig = query_value(req, "signature", &sig);
    int has_exp = has_sig < 0 ? has_sig : query_value(req, "signature_expiration", &exp);
    if (has_sig < 0 || has_exp < 0)
        return 0;
    uint64_t expires = 0;
    if (has_exp && hf_parse_u64((struct hf_str){exp.p, exp.n}, INT64_MAX, &expires) < 0) {
        hf_res_error(req, 400, "signature_expiration is not a number of seconds since 1970");
        return 0;
    }
    if (!has_sig) {
        hf_res_error(req, 401, "missing signature query parameter");
        return 0;
    }
    if (files_signature(path, operation, user, e->token, has_exp ? (int64_t)expires : -1, &want) < 0 ||
        !hf_str_eq_consttime((struct hf_str){sig.p, sig.n}, (struct hf_str){want.p, want.n})) {
        hf_res_error(req, 401, "invalid signature");
        return 0;
    }
    if (has_exp && (int64_t)expires < hf_real_ms() / 1000) {
        hf_res_error(req, 401, "signature is already expired");
        return 0;
    }
    return 1;
}

static int authorize(const struct envd *e, struct hf_req *req, struct hf_str path, struct hf_str user,
                     const char *operation)
{
    if (!e->token || hf_req_listener_tag(req) == ENVD_TAG_CONTROL)
        return 1;
    struct hf_str given = hf_req_header(req, "x-access-token");
    if (!given.n)
        return check_signature(e, req, path, user, operation);
    if (hf_str_eq_consttime(given, hf_str_c(e->token)))
        return 1;
    hf_res_error(req, 401, "access token present in header but does not match");
    return 0;
}

/* Fills q; false after an error was answered. */
static bool read_query(struct envd *e, struct hf_req *req, const char *operation, struct files_query *q)
{
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(FILES_QUERY_MAX), user = HF_BUF_INIT(FILES_QUERY_MAX);
    int has_path = query_value(req, "path", &path);
    if (has_path < 0 || query_value(req, "username", &user) < 0)
        return false;
    if (!authorize(e, req, (struct hf_str){path.p, path.n}, (struct hf_str){user.p, user.n}, operation))
        return false;
    const char *name = user.n ? user.p : e->default_user;
    struct hf_err err = {0};
    int r = envd_user_lookup(e, name, &q->user, &err);
    if (r < 0) {
        if (r == -ENOENT)
            hf_res_error(req, 401, "error looking up user '%s': user: unknown user %s", name, name);
        else
            hf_res_err(req, &err);
        return false;
    }
    q->has_path = has_path;
    q->raw_path_n = path.n;
    q->raw_path = path.n ? hf_buf_take(&path) : hf_xstrdup("");
    q->workdir = e->default_workdir ? hf_xstrdup(e->default_workdir) : NULL;
    return true;
}

static void method_not_allowed(struct hf_req *req, const char *allow)
{
    hf_res_header(req, "Allow", allow);
    hf_res_error(req, 405, "method not allowed here; allowed: %s", allow);
}

void files_handle(struct envd *e, struct hf_req *req)
{
    struct hf_str method = hf_req_method(req);
    bool post = hf_str_eq(method, "POST"), put = hf_str_eq(method, "PUT");
    if (hf_str_eq(hf_req_path(req), "/files/compose")) {
        if (!post)
            method_not_allowed(req, "POST");
        else if (envd_authorize(e, req))
            files_compose(e, req);
        return;
    }
    if (!post && !put && !hf_str_eq(method, "GET") && !hf_str_eq(method, "HEAD")) {
        method_not_allowed(req, "GET, HEAD, POST, PUT");
        return;
    }
    struct files_query q = {0};
    if (read_query(e, req, post || put ? "write" : "read", &q))
        (post || put ? files_post : files_get)(e, req, &q);
    files_query_done(&q);
}

json_t *files_written_json(const char *path)
{
    json_t *o = json_object();
    const char *base = path_base(path);
    fs_set_text(o, "path", path, strlen(path));
    fs_set_text(o, "name", base, strlen(base));
    json_object_set_new(o, "type", json_string("file"));
    return o;
}
