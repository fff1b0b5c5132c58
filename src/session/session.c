/* /v1/sessions: routes, what requests say, how sessions look. */
#include "session/session.h"

#include <stdio.h>

#include "base/log.h"
#include "control/filter.h"
#include "control/present.h"
#include "session/session_int.h"

#define PAGE_MAX 100

bool hf_session_key_valid(const char *key)
{
    for (unsigned part = 0; part < 3; part++) {
        size_t n = strspn(key, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-");
        if (n < 1 || n > HF_SESSION_PART_MAX)
            return false;
        key += n;
        if (*key != (part < 2 ? ':' : '\0'))
            return false;
        key += part < 2;
    }
    return true;
}

/* ---- how they look ---- */

static json_t *part_of(const char *key, unsigned part)
{
    for (; part; part--)
        key += strcspn(key, ":") + 1;
    return json_stringn(key, strcspn(key, ":"));
}

json_t *hf_session_present(const struct hf_session_row *row)
{
    json_t *v = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I}", "id", row->id, "key", row->key, "state",
                          row->state, "workspace_volume", row->volume_id, "template", row->template_ref,
                          "binding_epoch", (json_int_t)row->epoch);
    static const char *const parts[] = {"agent", "user", "conversation"};
    for (unsigned i = 0; i < HF_ARRAY_LEN(parts); i++)
        (void)json_object_set_new(v, parts[i], part_of(row->key, i));
    json_t *network = NULL;
    (void)json_object_set_new(v, "metadata", hf_session_metadata(row, &network));
    (void)json_object_set_new(v, "network", hf_session_present_network(network));
    (void)json_object_set_new(v, "sandbox_id", *row->sandbox_id ? json_string(row->sandbox_id) : json_null());
    (void)json_object_set_new(v, "created_at", hf_present_time(row->created_ms));
    (void)json_object_set_new(v, "updated_at", hf_present_time(row->updated_ms));
    (void)json_object_set_new(v, "opened_at", hf_present_time(row->opened_ms));
    (void)json_object_set_new(v, "closed_at", hf_present_time(row->closed_ms));
    return v;
}

json_t *hf_session_present_sandbox(const struct hf_sandbox *sb)
{
    char token[65];
    hf_sandbox_token(sb->c, sb->row.id, token);
    json_t *v = json_pack("{s:s, s:s, s:s, s:s}", "id", sb->row.id, "envd_access_token", token,
                          "envd_version", sb->row.envd_version, "state", hf_state_name(sb->state));
    (void)json_object_set_new(v, "domain", *sb->c->domain ? json_string(sb->c->domain) : json_null());
    (void)json_object_set_new(v, "end_at", hf_present_time(sb->row.end_ms));
    explicit_bzero(token, sizeof(token));
    return v;
}

/* The sandbox as the session's answer shows it: living, or the last one with what ended it. */
static json_t *sandbox_of(struct hf_control *c, const struct hf_session_row *row)
{
    if (!*row->sandbox_id)
        return json_null();
    const struct hf_sandbox *sb = hf_sandbox_find(c, row->tenant, row->sandbox_id);
    if (sb && sb->state == HF_RUNNING)
        return hf_session_present_sandbox(sb);
    if (sb)
        return hf_present_row(&sb->row);
    hf_auto_sandbox_row struct hf_sandbox_row old = {0};
    return hf_get_sandbox(c->meta, row->sandbox_id, &old) == 1 ? hf_present_row(&old) : json_null();
}

/* ---- open ---- */

/* Only a positive timeout within the limit. */
static int take_timeout(const json_t *body, const struct hf_config *cfg, int64_t *ret, struct hf_err *err)
{
    int64_t timeout_s = 0;
    int r = hf_validate_int(body, "timeout", INT64_MIN, INT64_MAX, &timeout_s, err);
    if (r > 0)
        r = hf_validate_timeout(timeout_s, cfg, err);
    if (r >= 0)
        *ret = timeout_s;
    return r;
}

static int take_maps(const json_t *body, struct session_ask *ask, struct hf_err *err)
{
    json_t *metadata = json_object_get(body, "metadata"), *env = json_object_get(body, "env");
    if (json_is_object(metadata) || (metadata && !json_is_null(metadata))) {
        int r = hf_validate_metadata(metadata, "metadata", err);
        if (r < 0)
            return r;
        ask->metadata = json_deep_copy(metadata);
    }
    if (env && !json_is_null(env)) {
        int r = hf_validate_env(env, "env", err);
        if (r < 0)
            return r;
        ask->env = json_deep_copy(env);
    }
    return 0;
}

static int take_ask(const json_t *body, const struct hf_config *cfg, struct session_ask *ask,
                    struct hf_err *err)
{
    const char *key = NULL, *ref = NULL;
    int r = hf_validate_text(body, "key", sizeof(ask->key) - 1, &key, err);
    if (r < 0)
        return r;
    if (r == 0 || !hf_session_key_valid(key))
        return hf_err_http(
            err, -EINVAL, 400,
            "validation error: \"key\" must be agent:user:conversation, each of 1 to %u letters, "
            "digits and . _ @ -",
            HF_SESSION_PART_MAX);
    (void)snprintf(ask->key, sizeof(ask->key), "%s", key);
    r = hf_validate_text(body, "template", sizeof(ask->template_ref) - 1, &ref, err);
    if (r > 0)
        (void)snprintf(ask->template_ref, sizeof(ask->template_ref), "%s", ref);
    if (r >= 0)
        r = take_timeout(body, cfg, &ask->timeout_s, err);
    if (r >= 0)
        r = hf_validate_int(body, "workspace_bytes", (int64_t)HF_CONFIG_DISK_MIN, (int64_t)HF_CONFIG_DISK_MAX,
                            &ask->workspace_bytes, err);
    if (r >= 0)
        r = hf_validate_limits(body, &ask->limits, err);
    return r < 0 ? r : take_maps(body, ask, err);
}

static void open_session(struct hf_call *call)
{
    struct session_ask ask = {0};
    struct hf_err err = {0};
    int r = take_ask(call->body, call->c->cfg, &ask, &err);
    if (r >= 0)
        r = hf_session_take_network(call->c, call->tenant, call->body, &ask, &err);
    if (r < 0) {
        json_decref(ask.metadata);
        json_decref(ask.env);
        hf_call_err(call, &err);
        return;
    }
    struct session_op *op = hf_session_op_new(call->tenant, ask.key, call, hf_session_open_run);
    op->ask = ask;
    hf_session_enter(call->module, op);
}

/* ---- the rest ---- */

/* The row that parameter 0 (id or key) names, or answered. */
static bool named(struct hf_call *call, struct hf_session_row *row)
{
    int r = hf_get_session(call->c->meta, call->tenant, call->param[0], row);
    if (r < 0)
        hf_call_fail(call, 500, "the database can't be read");
    else if (r == 0)
        hf_call_fail(call, 404, "there is no session \"%s\"", call->param[0]);
    return r == 1;
}

static void get_session(struct hf_call *call)
{
    hf_auto_session_row struct hf_session_row row = {0};
    if (named(call, &row))
        hf_call_json(call, 200,
                     json_pack("{s:o, s:o}", "session", hf_session_present(&row), "sandbox",
                               sandbox_of(call->c, &row)));
}

/* The operation reads the row again when its turn comes: another one may have deleted it meanwhile. */
static void enter_named(struct hf_call *call, void (*run)(struct session_op *op))
{
    hf_auto_session_row struct hf_session_row row = {0};
    if (named(call, &row))
        hf_session_enter(call->module, hf_session_op_new(call->tenant, row.key, call, run));
}

static void close_session(struct hf_call *call)
{
    enter_named(call, hf_session_close_run);
}

static void delete_session(struct hf_call *call)
{
    enter_named(call, hf_session_delete_run);
}

struct page {
    json_t *list;
    int64_t limit;
    bool more;
    struct hf_cursor last;
};

static void add_session(void *arg, const struct hf_session_row *row)
{
    struct page *p = arg;
    p->more = (int64_t)json_array_size(p->list) == p->limit;
    if (p->more)
        return;
    (void)json_array_append_new(p->list, hf_session_present(row));
    p->last.time_ms = row->created_ms;
    memcpy(p->last.id, row->id, sizeof(p->last.id));
}

static bool take_cursor(struct hf_call *call, struct hf_cursor *ret)
{
    hf_auto_buf struct hf_buf cursor = HF_BUF_INIT(512);
    struct hf_err err = {0};
    int r = hf_call_query(call, "cursor", &cursor);
    if (r > 0 && hf_cursor_parse((struct hf_str){cursor.p, cursor.n}, false, ret, &err) < 0) {
        hf_call_err(call, &err);
        return false;
    }
    return r >= 0;
}

static void list_sessions(struct hf_call *call)
{
    struct page p = {.limit = PAGE_MAX};
    struct hf_cursor from = {0};
    hf_auto_buf struct hf_buf key = HF_BUF_INIT(HF_ROW_TEXT), state = HF_BUF_INIT(32),
                              next = HF_BUF_INIT(512);
    if (hf_call_query_int(call, "limit", 1, PAGE_MAX, &p.limit) < 0 || !take_cursor(call, &from))
        return;
    int has_key = hf_call_query(call, "key", &key);
    if (has_key < 0 || hf_call_query(call, "state", &state) < 0)
        return;
    p.list = json_array();
    hf_auto_session_row struct hf_session_row one = {0};
    int r = has_key > 0 ? hf_get_session(call->c->meta, call->tenant, key.p, &one)
                        : hf_each_session(call->c->meta, call->tenant, state.p, from.time_ms, from.id,
                                          (int)p.limit + 1, add_session, &p);
    if (r < 0) {
        json_decref(p.list);
        hf_call_fail(call, 500, "the database can't be read");
        return;
    }
    if (has_key > 0 && r == 1)
        add_session(&p, &one);
    json_t *v = json_pack("{s:o}", "sessions", p.list);
    bool more = p.more && hf_cursor_add(&next, &p.last) == 0;
    (void)json_object_set_new(v, "next_cursor", more ? json_string(next.p) : json_null());
    hf_call_json(call, 200, v);
}

/* ---- module ---- */

struct recover {
    struct hf_sessions *s;
    struct hf_list ops;
};

static void collect_deleting(void *arg, const struct hf_session_row *row)
{
    struct recover *rec = arg;
    struct session_op *op = hf_session_op_new(row->tenant, row->key, NULL, hf_session_delete_run);
    hf_list_add_tail(&rec->ops, &op->node);
}

static void *start(struct hf_control *c)
{
    struct hf_sessions *s = hf_new(struct hf_sessions);
    s->c = c;
    struct recover rec = {.s = s};
    hf_list_init(&rec.ops);
    if (hf_each_session(c->meta, NULL, "deleting", 0, "", INT32_MAX, collect_deleting, &rec) < 0)
        hf_log_error("the sessions' rows can't be read", "%s", "");
    hf_list_foreach_safe(it, &rec.ops)
    {
        hf_list_del(it);
        hf_session_enter(s, hf_list_entry(it, struct session_op, node));
    }
    return s;
}

static void stop(void *self)
{
    struct hf_sessions *s = self;
    hf_map_done(&s->locks);
    free(s);
}

static const struct hf_api_route routes[] = {
    {"POST", "/v1/sessions", open_session, HF_API_BODY | HF_API_RERUNS},
    {"GET", "/v1/sessions", list_sessions, 0},
    {"GET", "/v1/sessions/{session}", get_session, 0},
    {"DELETE", "/v1/sessions/{session}", delete_session, 0},
    {"POST", "/v1/sessions/{session}/close", close_session, HF_API_BODY_OPT | HF_API_RERUNS},
    {NULL, NULL, NULL, 0},
};

const struct hf_module hf_session_module = {
    .name = "session", .routes = routes, .start = start, .stop = stop};
