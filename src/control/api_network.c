/* A sandbox's network: what it may reach, what it reached, and its traffic token. */
#include <stdio.h>

#include "control/ingress.h"
#include "control/net.h"
#include "control/network.h"
#include "control/present.h"
#include "control/validate.h"
#include "egress/policy.h"
#include "store/net.h"

#define OUTBOUND_DEFAULT 100
#define OUTBOUND_MAX 1000 /* records of one answer */

/* ---- replacing ---- */

static void on_replaced(void *arg, const struct hf_err *err)
{
    if (err)
        hf_call_err(arg, err);
    else
        hf_call_empty(arg, 204);
}

static const json_t *either(const json_t *body, const char *camel, const char *snake)
{
    const json_t *v = json_object_get(body, camel);
    return v ? v : json_object_get(body, snake);
}

/* PUT speaks of egress only, with the fields at the top level: what it leaves out is as create without it.
 * What create said of ingress stays; so do the policy groups, unless the request names others: a client that
 * knows nothing of them can't lift them. */
static json_t *put_request(const json_t *body, const json_t *old)
{
    static const char *const kept[] = {"allow_public_traffic", "mask_request_host", "https_ports"};
    json_t *request = json_copy((json_t *)(uintptr_t)body);
    (void)json_object_del(request, "allow_internet_access");
    (void)json_object_del(request, "allowInternetAccess");
    for (size_t i = 0; i < HF_ARRAY_LEN(kept); i++)
        (void)json_object_set(request, kept[i], json_object_get(old, kept[i]));
    const json_t *policies = json_object_get(body, "policies");
    if (!policies || json_is_null(policies))
        (void)json_object_set(request, "policies", json_object_get(old, "policies"));
    return request;
}

static int check_put(const json_t *body, int *ret_internet, struct hf_err *err)
{
    static const char *const fixed[] = {"allowPublicTraffic",   "maskRequestHost",   "httpsPorts",
                                        "allow_public_traffic", "mask_request_host", "https_ports"};
    for (size_t i = 0; i < HF_ARRAY_LEN(fixed); i++) {
        if (json_object_get(body, fixed[i]))
            return hf_err_http(err, -EINVAL, 400, "network: \"%s\" is set when the sandbox is created",
                               fixed[i]);
    }
    const json_t *internet = either(body, "allow_internet_access", "allowInternetAccess");
    if (internet && !json_is_null(internet) && !json_is_boolean(internet))
        return hf_err_http(err, -EINVAL, 400, "network: \"allow_internet_access\" must be a boolean");
    *ret_internet = json_is_boolean(internet) ? json_is_true(internet) : -1;
    return 0;
}

static void put_network(struct hf_call *call)
{
    struct hf_err err = {0};
    struct hf_sandbox *sb = hf_call_sandbox(call, true);
    json_auto_t *empty = json_object(), *old = NULL, *request = NULL, *doc = NULL;
    const json_t *body = call->body ? call->body : empty;
    int internet = -1;
    if (!sb)
        return;
    int r = check_put(body, &internet, &err);
    if (r == 0)
        r = hf_network_doc(sb, &old, &err);
    if (r == 0) {
        request = put_request(body, old);
        r = hf_network_resolve(call->c, call->tenant, request, internet, &doc, &err);
    }
    if (r == 0) {
        (void)json_object_set(doc, "token_version", json_object_get(old, "token_version"));
        r = hf_network_replace(sb, doc, on_replaced, call, &err);
    }
    if (r < 0)
        hf_call_err(call, &err);
}

/* ---- reading ---- */

/* The sandbox's merged document, or answered. */
static json_t *merged_of(struct hf_call *call, struct hf_sandbox *sb, json_t **ret_own)
{
    struct hf_err err = {0};
    json_t *doc = NULL, *merged = NULL;
    int r = hf_network_doc(sb, &doc, &err);
    if (r == 0)
        r = hf_network_merge(call->c, call->tenant, doc, &merged, &err);
    if (r < 0)
        hf_call_err(call, &err);
    if (r == 0 && ret_own)
        *ret_own = json_incref(doc);
    json_decref(doc);
    return merged;
}

struct show {
    struct hf_call *call;
    json_t *answer;
};

static void on_counters(void *arg, const json_t *v)
{
    struct show s = *(struct show *)arg;
    free(arg);
    (void)json_object_set_new(s.answer, "counters", v ? json_deep_copy(v) : json_null());
    hf_call_json(s.call, 200, s.answer);
}

static void get_network(struct hf_call *call)
{
    struct hf_sandbox *sb = hf_call_sandbox(call, false);
    json_auto_t *own = NULL;
    json_auto_t *merged = sb ? merged_of(call, sb, &own) : NULL;
    if (!merged)
        return;
    bool ready = hf_network_ready(call->c);
    json_t *answer = json_pack("{s:o, s:o, s:b}", "network", hf_policy_present(own), "effective",
                               hf_policy_present(merged), "available", (int)ready);
    (void)json_object_set_new(answer, "missing",
                              ready ? json_null() : json_string(hf_network_missing(call->c)));
    struct show *s = hf_new(struct show);
    *s = (struct show){call, answer};
    if (ready)
        hf_cnet_counters(call->c->net, hf_box_net_key(sb->box), on_counters, s);
    else
        on_counters(s, NULL);
}

static void test_network(struct hf_call *call)
{
    struct hf_err err = {0};
    struct hf_sandbox *sb = hf_call_sandbox(call, false);
    json_auto_t *merged = sb ? merged_of(call, sb, NULL) : NULL;
    json_t *answer;
    if (!merged)
        return;
    if (hf_network_test(merged, call->body, &answer, &err) < 0)
        hf_call_err(call, &err);
    else
        hf_call_json(call, 200, answer);
}

/* ---- what went out ---- */

struct page {
    json_t *list;
    int64_t limit, last;
    bool more;
};

static bool add_record(void *arg, const struct hf_outbound_row *o)
{
    struct page *p = arg;
    if ((int64_t)json_array_size(p->list) == p->limit) {
        p->more = true;
        return false;
    }
    json_t *v = json_loads(o->doc, 0, NULL);
    if (!json_is_object(v)) {
        json_decref(v);
        v = json_object();
    }
    (void)json_object_set_new(v, "seq", json_integer(o->seq));
    (void)json_object_set_new(v, "time", hf_present_time(o->time_ms));
    (void)json_array_append_new(p->list, v);
    p->last = o->seq;
    return true;
}

static void answer_outbound(struct hf_call *call, const char *sandbox_id, const char *session_id)
{
    struct page p = {.limit = OUTBOUND_DEFAULT};
    int64_t after = 0;
    if (hf_call_query_int(call, "limit", 1, OUTBOUND_MAX, &p.limit) < 0 ||
        hf_call_query_int(call, "cursor", 0, INT64_MAX, &after) < 0)
        return;
    p.list = json_array();
    p.last = after;
    if (hf_each_outbound(call->c->meta, call->tenant, sandbox_id, session_id, after, (int)p.limit + 1,
                         add_record, &p) < 0) {
        json_decref(p.list);
        hf_call_fail(call, 500, "the records can't be read");
        return;
    }
    json_t *v = json_pack("{s:o}", "outbound", p.list);
    (void)json_object_set_new(v, "next_cursor",
                              p.more ? json_sprintf("%lld", (long long)p.last) : json_null());
    hf_call_json(call, 200, v);
}

/* Records outlive their sandbox. */
static void sandbox_outbound(struct hf_call *call)
{
    char id[HF_ROW_ID];
    struct hf_err err = {0};
    if (hf_validate_sandbox_id(call->param[0], id, &err) < 0) {
        hf_call_err(call, &err);
        return;
    }
    hf_auto_sandbox_row struct hf_sandbox_row row = {0};
    bool known = hf_sandbox_find(call->c, call->tenant, id) ||
                 (hf_get_sandbox(call->c->meta, id, &row) == 1 && strcmp(row.tenant, call->tenant) == 0);
    if (known)
        answer_outbound(call, id, NULL);
    else
        hf_call_no_sandbox(call, id);
}

static void session_outbound(struct hf_call *call)
{
    hf_auto_session_row struct hf_session_row row = {0};
    int r = hf_get_session(call->c->meta, call->tenant, call->param[0], &row);
    if (r < 0)
        hf_call_fail(call, 500, "the database can't be read");
    else if (r == 0)
        hf_call_fail(call, 404, "there is no session \"%.160s\"", call->param[0]);
    else
        answer_outbound(call, NULL, row.id);
}

/* ---- the traffic token ---- */

struct rotation {
    struct hf_call *call;
    struct hf_sandbox *sb;
};

static void on_rotated(void *arg, const struct hf_err *err)
{
    struct rotation r = *(struct rotation *)arg;
    char token[HF_INGRESS_TOKEN];
    free(arg);
    if (err) {
        hf_call_err(r.call, err);
    } else {
        hf_sandbox_traffic_token(r.sb, token);
        hf_call_json(r.call, 200, json_pack("{s:s}", "traffic_access_token", token));
        explicit_bzero(token, sizeof(token));
    }
    hf_sandbox_unref(r.sb);
}

static void rotate_token(struct hf_call *call)
{
    struct hf_err err = {0};
    struct hf_sandbox *sb = hf_call_sandbox(call, true);
    json_auto_t *doc = NULL;
    if (!sb)
        return;
    int r = hf_network_doc(sb, &doc, &err);
    if (r == 0) {
        json_int_t version = json_integer_value(json_object_get(doc, "token_version"));
        (void)json_object_set_new(doc, "token_version", json_integer(version + 1));
        struct rotation *rot = hf_new(struct rotation);
        *rot = (struct rotation){call, hf_sandbox_ref(sb)};
        r = hf_network_replace(sb, doc, on_rotated, rot, &err);
        if (r < 0) {
            hf_sandbox_unref(sb);
            free(rot);
        }
    }
    if (r < 0)
        hf_call_err(call, &err);
}

const struct hf_api_route hf_api_network_routes[] = {
    {"PUT", "/sandboxes/{sandboxID}/network", put_network, HF_API_BODY_OPT},
    {"GET", "/v1/sandboxes/{sandboxID}/network", get_network, 0},
    {"POST", "/v1/sandboxes/{sandboxID}/network/test", test_network, HF_API_BODY},
    {"GET", "/v1/sandboxes/{sandboxID}/outbound", sandbox_outbound, 0},
    {"POST", "/v1/sandboxes/{sandboxID}/traffic-token/rotate", rotate_token, HF_API_BODY_OPT},
    {"GET", "/v1/sessions/{session}/outbound", session_outbound, 0},
    {NULL, NULL, NULL, 0},
};
