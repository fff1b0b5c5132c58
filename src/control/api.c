/* The dispatcher: who asks, for what, with which body. */
#include "control/api.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "control/key.h"

struct table {
    const struct hf_api_route *routes;
    void *module;
};

struct hf_api {
    struct hf_control *c;
    struct table tables[24];
    size_t n;
    struct hf_map running; /* tenant NUL Idempotency-Key of requests in flight */
    unsigned keeping;      /* answers that wait for their row */
    bool closed;
};

struct hf_api *hf_api_new(struct hf_control *c)
{
    struct hf_api *api = hf_new(struct hf_api);
    api->c = c;
    return api;
}

void hf_api_add(struct hf_api *api, const struct hf_api_route *routes, void *module)
{
    if (api->n == HF_ARRAY_LEN(api->tables))
        abort(); /* a programming error */
    api->tables[api->n++] = (struct table){routes, module};
}

void hf_api_add_all(struct hf_api *api)
{
    hf_api_add(api, hf_api_missing_routes, NULL); /* first: /templates/tags is not a template's id */
    hf_api_add(api, hf_api_list_routes, NULL);
    hf_api_add(api, hf_api_observe_routes, NULL);
    hf_api_add(api, hf_api_sandbox_routes, NULL);
    hf_api_add(api, hf_api_ingress_routes, NULL);
    hf_api_add(api, hf_api_network_routes, NULL);
    hf_api_add(api, hf_api_policy_routes, NULL);
    hf_api_add(api, hf_api_secret_routes, NULL);
    hf_api_add(api, hf_api_snapshot_routes, NULL);
    hf_api_add(api, hf_api_template_routes, NULL);
    hf_api_add(api, hf_api_node_routes, NULL);
}

static void delete_api(struct hf_api *api)
{
    hf_map_done(&api->running);
    free(api);
}

void hf_api_free(struct hf_api *api)
{
    if (!api)
        return;
    api->closed = true;
    if (!api->keeping) /* else the last of them does it: the rows are committed after us */
        delete_api(api);
}

static void unref(struct hf_call *call)
{
    if (--call->refs)
        return;
    for (size_t i = 0; i < HF_ARRAY_LEN(call->param); i++)
        free(call->param[i]);
    json_decref(call->body);
    hf_buf_done(&call->raw);
    free(call);
}

/* ---- answers ---- */

static struct hf_str idem_name(const struct hf_call *call, struct hf_buf *b)
{
    if (hf_buf_addf(b, "%s", call->tenant) < 0 || hf_buf_add(b, "", 1) < 0 ||
        hf_buf_adds(b, call->idem_key) < 0)
        return (struct hf_str){NULL, 0};
    return (struct hf_str){b->p, b->n};
}

static void cors(struct hf_req *req)
{
    hf_res_header(req, "Access-Control-Allow-Origin", "*");
    hf_res_header(req, "Access-Control-Expose-Headers", "X-Next-Token, X-Total-Running, Retry-After");
}

static void send_answer(struct hf_call *call, int status, const char *ctype, const char *text)
{
    if (call->req && !hf_res_started(call->req)) {
        cors(call->req);
        hf_res_send(call->req, status, *text ? ctype : NULL, text, strlen(text));
    }
    unref(call); /* the handler's */
}

static void no_longer_running(const struct hf_call *call)
{
    hf_auto_buf struct hf_buf name = HF_BUF_INIT(512);
    (void)hf_map_del(&call->api->running, idem_name(call, &name));
}

struct kept {
    struct hf_call *call;
    int status;
    const char *ctype;
    char *text;
};

static void on_kept(void *arg, int r, const struct hf_err *err)
{
    struct kept *k = arg;
    struct hf_api *api = k->call->api;
    no_longer_running(k->call);
    send_answer(k->call, k->status, k->ctype, k->text);
    free(k->text);
    free(k);
    if (--api->keeping == 0 && api->closed)
        delete_api(api);
}

/* The answer of a finished request is kept, so that a client that lost it may ask again. It is sent once it
 * is kept: a repetition that comes at once must find it. */
static void keep_answer(struct hf_call *call, int status, const char *ctype, const char *text)
{
    struct hf_answer_row a = {.status = status, .body = (char *)(uintptr_t)text, .created_ms = hf_real_ms()};
    (void)snprintf(a.tenant, sizeof(a.tenant), "%s", call->tenant);
    (void)snprintf(a.key, sizeof(a.key), "%s", call->idem_key);
    memcpy(a.request_hash, call->idem_hash, sizeof(a.request_hash));
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_answer(b, &a);
    struct kept *k = hf_new(struct kept);
    *k = (struct kept){call, status, ctype, hf_xstrdup(text)};
    call->api->keeping++;
    hf_meta_commit(call->c->meta, b, HF_META_LAZY, on_kept, k);
}

static void answer(struct hf_call *call, int status, const char *ctype, const char *text)
{
    call->answered = true;
    if (*call->idem_key && status < 500 && strlen(text) <= HF_API_IDEMPOTENCY_BODY_MAX) {
        keep_answer(call, status, ctype, text);
        return;
    }
    if (*call->idem_key)
        no_longer_running(call);
    send_answer(call, status, ctype, text);
}

void hf_call_json(struct hf_call *call, int status, json_t *v)
{
    hf_auto_free char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    json_decref(v);
    answer(call, status, "application/json; charset=utf-8", text ? text : "");
}

void hf_call_empty(struct hf_call *call, int status)
{
    answer(call, status, NULL, "");
}

void hf_call_text(struct hf_call *call, int status, const char *text)
{
    answer(call, status, "text/plain; charset=utf-8", text);
}

void hf_call_begin(struct hf_call *call, int status, const char *ctype)
{
    cors(call->req);
    hf_res_header(call->req, "Content-Type", ctype);
    hf_res_begin(call->req, status, -1);
}

void hf_call_end(struct hf_call *call)
{
    call->answered = true;
    if (call->req)
        hf_res_end(call->req);
    unref(call); /* the handler's */
}

void hf_call_header(struct hf_call *call, const char *name, const char *value)
{
    if (call->req)
        hf_res_header(call->req, name, value);
}

void hf_call_hint(struct hf_call *call, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(call->hint, sizeof(call->hint), fmt, ap);
    va_end(ap);
}

static const char *default_hint(int status)
{
    switch (status) {
    case 400:
        return "correct the request; docs/api/openapi.yaml describes it";
    case 401:
        return "send a key of `holdfast key create` in the header X-API-Key";
    case 404:
        return "check the id; things of other tenants do not exist for this key";
    case 405:
        return "use one of the methods in the header Allow";
    case 409:
        return "read its state, then try again";
    case 413:
        return "send less";
    case 429:
        return "end something first, or raise the limit in holdfast.toml";
    case 501:
        return "this version does not have it; GET /v1/info lists what it has";
    case 507:
        return "free space in the data directory, or ask for less";
    default:
        return status >= 500 ? "see the daemon's log" : "";
    }
}

static void fail_text(struct hf_call *call, int status, const char *msg)
{
    /* Text that came from outside may not be UTF-8: jansson refuses it, so it is replaced. */
    json_t *v = json_pack("{s:i, s:s}", "code", status, "message", msg);
    if (!v)
        v = json_pack("{s:i, s:s}", "code", status, "message", "the request has text that is not UTF-8");
    if (call->v1)
        (void)json_object_set_new(v, "hint", json_string(*call->hint ? call->hint : default_hint(status)));
    if (status == 503 || status == 429)
        hf_call_header(call, "Retry-After", "1");
    hf_call_json(call, status, v);
}

void hf_call_fail(struct hf_call *call, int status, const char *fmt, ...)
{
    char msg[HF_ERR_MSG_MAX];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    fail_text(call, status, msg);
}

void hf_call_err(struct hf_call *call, const struct hf_err *err)
{
    int status = hf_err_http_status(err);
    if (status >= 500)
        hf_log_error("request failed", "path=%s error=%s", call->route ? call->route->pattern : "",
                     hf_log_quote(err->msg));
    fail_text(call, status, err->msg);
}

/* ---- query ---- */

int hf_call_query(struct hf_call *call, const char *name, struct hf_buf *out)
{
    if (!call->req)
        return 0;
    int r = hf_query_get(hf_req_query(call->req), name, out);
    if (r < 0)
        hf_call_fail(call, 400, "validation error: query parameter \"%s\" is not valid percent-encoding",
                     name);
    return r;
}

int hf_call_query_int(struct hf_call *call, const char *name, int64_t min, int64_t max, int64_t *ret)
{
    hf_auto_buf struct hf_buf text = HF_BUF_INIT(64);
    int r = hf_call_query(call, name, &text);
    if (r <= 0)
        return r;
    uint64_t v = 0;
    r = hf_parse_u64((struct hf_str){text.p, text.n}, (uint64_t)max, &v);
    if (r < 0 || (int64_t)v < min) {
        hf_call_fail(call, 400, "validation error: query parameter \"%s\" must be a number from %lld to %lld",
                     name, (long long)min, (long long)max);
        return -EINVAL;
    }
    *ret = (int64_t)v;
    return 0;
}

/* ---- who ---- */

static bool key_shape(struct hf_str text)
{
    size_t prefix = sizeof(HF_KEY_PREFIX) - 1;
    if (text.n != prefix + HF_KEY_HEX || !hf_str_starts(text, HF_KEY_PREFIX))
        return false;
    for (size_t i = prefix; i < text.n; i++) {
        char ch = text.p[i];
        if (!((ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'f')))
            return false;
    }
    return true;
}

static void touch_key(struct hf_call *call, const struct hf_key_row *k)
{
    int64_t now = hf_real_ms();
    if (now - k->last_used_ms < HF_API_KEY_TOUCH_MS)
        return;
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_set_key_used(b, k->id, now);
    hf_meta_commit(call->c->meta, b, HF_META_LAZY, NULL, NULL);
}

/* The lookup is by SHA-256, so its timing tells nothing about keys that are nearly right. */
static bool authenticate(struct hf_call *call)
{
    struct hf_str text = hf_req_header(call->req, "x-api-key");
    if (!text.p) {
        text = hf_req_header(call->req, "authorization");
        if (text.n > 7 && hf_str_caseeq((struct hf_str){text.p, 7}, "bearer "))
            text = (struct hf_str){text.p + 7, text.n - 7};
    }
    if (!text.n) {
        hf_call_fail(call, 401, "an API key is required: set the header X-API-Key");
        return false;
    }
    if (!key_shape(text)) {
        hf_call_fail(call, 401, "the API key is malformed: expected \"%s\" and %u lower-case hex characters",
                     HF_KEY_PREFIX, HF_KEY_HEX);
        return false;
    }
    unsigned char hash[HF_SHA256_LEN];
    hf_sha256_of(text.p, text.n, hash);
    struct hf_key_row k;
    int r = hf_get_key(call->c->meta, hash, &k);
    if (r < 0) {
        hf_call_fail(call, 500, "the database can't be read");
        return false;
    }
    if (r == 0) {
        hf_call_fail(call, 401, "the API key is unknown or was revoked");
        return false;
    }
    (void)snprintf(call->tenant, sizeof(call->tenant), "%s", k.tenant);
    touch_key(call, &k);
    return true;
}

/* ---- what ---- */

struct lookup {
    const struct hf_api_route *route;
    void *module;
    char allow[96]; /* methods that the path has */
    struct hf_str params[HF_ROUTE_PARAMS_MAX];
    size_t n_params;
};

static void add_allow(struct lookup *l, const char *method)
{
    size_t n = strlen(l->allow);
    if (!strstr(l->allow, method))
        (void)snprintf(l->allow + n, sizeof(l->allow) - n, "%s%s", n ? ", " : "", method);
}

static void find_route(const struct hf_api *api, struct hf_str method, struct hf_str path, struct lookup *l)
{
    for (size_t t = 0; t < api->n; t++) {
        for (const struct hf_api_route *r = api->tables[t].routes; r->method; r++) {
            struct hf_str params[HF_ROUTE_PARAMS_MAX];
            size_t n = 0;
            if (!hf_route_match(r->pattern, path, params, &n))
                continue;
            add_allow(l, r->method);
            if (l->route || !hf_str_eq(method, r->method))
                continue;
            l->route = r;
            l->module = api->tables[t].module;
            memcpy(l->params, params, sizeof(params));
            l->n_params = n;
        }
    }
}

static bool take_params(struct hf_call *call, const struct lookup *l)
{
    for (size_t i = 0; i < l->n_params; i++) {
        hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_ROUTE_PARAM_BYTES);
        if (hf_percent_decode(l->params[i], false, &b) < 0) {
            hf_call_fail(call, 400, "validation error: the path is too long or not valid percent-encoding");
            return false;
        }
        for (size_t k = 0; k < b.n; k++) {
            if ((unsigned char)b.p[k] < 0x20 || b.p[k] == 0x7f) {
                hf_call_fail(call, 400, "validation error: the path has control characters");
                return false;
            }
        }
        call->param[i] = hf_buf_take(&b);
    }
    return true;
}

/* ---- body ---- */

static bool parse_body(struct hf_call *call)
{
    if (!call->raw.n) {
        if (!(call->route->flags & HF_API_BODY))
            return true;
        hf_call_fail(call, 400, "validation error: a JSON object is required as the body");
        return false;
    }
    json_error_t e;
    call->body = json_loadb(call->raw.p, call->raw.n, JSON_REJECT_DUPLICATES, &e);
    if (!call->body) {
        hf_call_fail(call, 400, "validation error: the body is not JSON: %s (line %d, column %d)", e.text,
                     e.line, e.column);
        return false;
    }
    if (!json_is_object(call->body)) {
        hf_call_fail(call, 400, "validation error: the body must be a JSON object");
        return false;
    }
    return true;
}

/* 1: go on; 0: answered from the store, or refused. */
static int check_idempotency(struct hf_call *call)
{
    struct hf_str key = hf_req_header(call->req, "idempotency-key");
    if (!(call->route->flags & HF_API_RERUNS) || !key.p)
        return 1;
    if (!key.n || key.n > HF_API_IDEMPOTENCY_KEY_MAX) {
        hf_call_fail(call, 400, "Idempotency-Key must have 1 to %u characters", HF_API_IDEMPOTENCY_KEY_MAX);
        return 0;
    }
    hf_auto_free char *text = hf_str_dup(key);
    struct hf_sha256 sha;
    struct hf_str target = hf_req_target(call->req);
    hf_sha256_init(&sha);
    hf_sha256_add(&sha, target.p, target.n);
    hf_sha256_add(&sha, "\n", 1);
    hf_sha256_add(&sha, call->raw.p, call->raw.n);
    hf_sha256_done(&sha, call->idem_hash);
    hf_auto_answer_row struct hf_answer_row a = {0};
    int r = hf_get_answer(call->c->meta, call->tenant, text, &a);
    if (r == 1 && a.created_ms >= hf_real_ms() - HF_CONTROL_KEEP_ANSWERS_MS) {
        if (memcmp(a.request_hash, call->idem_hash, sizeof(a.request_hash)) != 0) {
            hf_call_hint(call, "use a new Idempotency-Key for a new request");
            hf_call_fail(call, 409, "this Idempotency-Key was used for another request");
            return 0;
        }
        hf_call_header(call, "Idempotency-Replayed", "true");
        answer(call, a.status, "application/json; charset=utf-8", a.body);
        return 0;
    }
    (void)snprintf(call->idem_key, sizeof(call->idem_key), "%s", text);
    hf_auto_buf struct hf_buf name = HF_BUF_INIT(512);
    struct hf_str n = idem_name(call, &name);
    if (hf_map_get(&call->api->running, n)) {
        call->idem_key[0] = '\0'; /* the other one's */
        hf_call_hint(call, "wait for the first request, then repeat it");
        hf_call_fail(call, 409, "a request with this Idempotency-Key is running");
        return 0;
    }
    (void)hf_map_put(&call->api->running, n, call);
    return 1;
}

static void run(struct hf_call *call)
{
    if (!parse_body(call) || !check_idempotency(call))
        return;
    call->handed = true;
    call->route->fn(call);
}

static void on_data(struct hf_req *req, const char *p, size_t n)
{
    struct hf_call *call = hf_req_data(req);
    if (call->answered)
        return;
    if (call->route->flags & HF_API_STREAM) {
        call->on_data(call, p, n);
        return;
    }
    if (hf_buf_add(&call->raw, p, n) < 0)
        hf_call_fail(call, 413, "the request body is larger than %u bytes", HF_API_BODY_MAX);
}

static void on_end(struct hf_req *req)
{
    struct hf_call *call = hf_req_data(req);
    if (call->answered)
        return;
    if (call->route->flags & HF_API_STREAM)
        call->on_end(call);
    else
        run(call);
}

static void on_drain(struct hf_req *req)
{
    struct hf_call *call = hf_req_data(req);
    if (call->on_drain && !call->answered)
        call->on_drain(call);
}

static void on_close(struct hf_req *req)
{
    struct hf_call *call = hf_req_data(req);
    call->req = NULL;
    if (!call->answered) {
        if (call->gone)
            call->gone(call);
        else if (!call->handed)
            answer(call, 499, NULL, ""); /* its body never came: no handler owes an answer */
    }
    unref(call); /* the request's */
}

static const struct hf_req_ops call_ops = {
    .on_data = on_data, .on_end = on_end, .on_drain = on_drain, .on_close = on_close};

static void preflight(struct hf_req *req)
{
    cors(req);
    hf_res_header(req, "Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE, OPTIONS");
    struct hf_str asked = hf_req_header(req, "access-control-request-headers");
    hf_auto_free char *names = asked.n ? hf_str_dup(asked) : NULL;
    hf_res_header(req, "Access-Control-Allow-Headers",
                  names ? names : "Authorization, Content-Type, X-API-Key");
    hf_res_header(req, "Access-Control-Max-Age", "7200");
    hf_res_send(req, 204, NULL, NULL, 0);
}

static bool under_v1(struct hf_str path)
{
    return hf_str_starts(path, "/v1/") || hf_str_eq(path, "/v1");
}

static void refuse_unknown(struct hf_call *call, const struct lookup *l)
{
    struct hf_str method = hf_req_method(call->req), path = hf_req_path(call->req);
    if (*l->allow) {
        hf_call_header(call, "Allow", l->allow);
        hf_call_fail(call, 405, "%.*s is not a method of this path; it has %s", (int)method.n, method.p,
                     l->allow);
        return;
    }
    hf_call_fail(call, 404, "there is no route %.*s %.*s", (int)method.n, method.p,
                 (int)HF_MIN(path.n, (size_t)120), path.p);
}

void hf_api_handle(struct hf_api *api, struct hf_req *req)
{
    struct hf_str method = hf_req_method(req);
    if (hf_str_eq(method, "OPTIONS")) {
        preflight(req);
        return;
    }
    struct hf_call *call = hf_new(struct hf_call);
    call->c = api->c;
    call->api = api;
    call->req = req;
    call->refs = 2; /* the handler's answer, and the request */
    call->raw = HF_BUF_INIT(HF_API_BODY_MAX);
    call->v1 = under_v1(hf_req_path(req));
    hf_req_set_ops(req, &call_ops, call);
    struct lookup l = {0};
    find_route(api, method, hf_req_path(req), &l);
    if (!(l.route && (l.route->flags & HF_API_PUBLIC)) && !authenticate(call))
        return;
    if (!l.route) {
        refuse_unknown(call, &l);
        return;
    }
    call->route = l.route;
    call->module = l.module;
    if (!take_params(call, &l))
        return;
    if (call->route->flags & HF_API_STREAM) {
        call->handed = true;
        call->route->fn(call);
    }
}
