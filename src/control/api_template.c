/* Templates: list, get, alias, delete, and the import of a root file system as a stream. */
#include "base/log.h"
#include "control/present.h"
#include "control/snapshot_int.h"
#include "control/template.h"
#include "control/validate.h"

/* ---- reading ---- */

struct names {
    json_t *aliases, *names;
};

static void add_name(void *arg, const char *name, const char *tag)
{
    struct names *n = arg;
    size_t i;
    json_t *v;
    if (strcmp(tag, "default") != 0)
        (void)json_array_append_new(n->names, json_sprintf("%s:%s", name, tag));
    json_array_foreach(n->aliases, i, v)
    {
        if (strcmp(json_string_value(v), name) == 0)
            return;
    }
    (void)json_array_append_new(n->aliases, json_string(name));
    if (strcmp(tag, "default") == 0)
        (void)json_array_append_new(n->names, json_string(name));
}

static json_t *present(struct hf_control *c, const struct hf_template_row *t)
{
    struct names n = {json_array(), json_array()};
    if (hf_each_template_name(c->meta, t->id, add_name, &n) < 0)
        hf_log_error("a template's names can't be read", "template=%s", t->id);
    json_t *v = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:b, s:o, s:o, s:n, s:I, s:I, s:s, s:s}", "templateID", t->id, "buildID",
        t->id, "cpuCount", (json_int_t)((c->cfg->default_cpu_millis + 999) / 1000), "memoryMB",
        (json_int_t)(c->cfg->default_memory >> 20), "diskSizeMB", (json_int_t)(t->bytes >> 20), "public",
        (int)t->is_public, "aliases", n.aliases, "names", n.names, "createdBy", "spawnCount",
        (json_int_t)t->spawn_count, "buildCount", (json_int_t)1, "envdVersion", "", "buildStatus", "ready");
    (void)json_object_set_new(v, "createdAt", hf_present_time(t->created_ms));
    (void)json_object_set_new(v, "updatedAt", hf_present_time(t->updated_ms));
    (void)json_object_set_new(v, "lastSpawnedAt", hf_present_time(t->last_spawned_ms));
    return v;
}

struct listing {
    struct hf_control *c;
    json_t *list;
};

static void add_template(void *arg, const struct hf_template_row *t)
{
    struct listing *l = arg;
    if (strcmp(t->state, "ready") == 0)
        (void)json_array_append_new(l->list, present(l->c, t));
}

static void list_templates(struct hf_call *call)
{
    struct listing l = {call->c, json_array()};
    if (hf_each_template(call->c->meta, call->tenant, add_template, &l) < 0) {
        json_decref(l.list);
        hf_call_fail(call, 500, "the database can't be read");
        return;
    }
    hf_call_json(call, 200, l.list);
}

/* The template of parameter 0, or answered. */
static bool named(struct hf_call *call, struct hf_template_row *t)
{
    char alias[HF_ROW_NAME];
    struct hf_err err = {0};
    if (hf_template_resolve(call->c, call->tenant, call->param[0], t, alias, &err) == 0)
        return true;
    hf_call_err(call, &err);
    return false;
}

static void get_template(struct hf_call *call)
{
    struct hf_template_row t;
    if (named(call, &t))
        hf_call_json(call, 200, present(call->c, &t));
}

static void get_alias(struct hf_call *call)
{
    struct hf_template_row t;
    if (named(call, &t))
        hf_call_json(call, 200, json_pack("{s:s, s:b}", "templateID", t.id, "public", (int)t.is_public));
}

/* ---- delete ---- */

static void on_deleted(void *arg, const struct hf_err *err)
{
    struct hf_call *call = arg;
    if (err)
        hf_call_err(call, err);
    else
        hf_call_empty(call, 204);
}

/* E2B's clients delete snapshots by this route. */
static bool deleted_snapshot(struct hf_call *call)
{
    struct hf_template_row t;
    char alias[HF_ROW_NAME];
    hf_auto_snapshot_row struct hf_snapshot_row s = {0};
    if (hf_template_resolve(call->c, call->tenant, call->param[0], &t, alias, NULL) != -ENOENT ||
        hf_snapshot_resolve(call->c, call->tenant, call->param[0], &s, NULL) != 1)
        return false;
    hf_call_delete_snapshot(call, &s);
    return true;
}

static bool carries_snapshot(struct hf_call *call, const struct hf_template_row *t)
{
    hf_auto_snapshot_row struct hf_snapshot_row s = {0};
    if (hf_snapshot_of_template(call->c, t->id, &s) != 1)
        return false;
    hf_call_fail(call, 409, "template '%s' is what snapshot %s stands on: delete the snapshot first",
                 call->param[0], strcmp(s.tenant, call->tenant) == 0 ? s.id : "of another tenant");
    return true;
}

static void delete_template(struct hf_call *call)
{
    struct hf_template_row t;
    if (deleted_snapshot(call) || !named(call, &t))
        return;
    if (strcmp(t.tenant, call->tenant) != 0) { /* public, but not ours */
        hf_call_fail(call, 404, "template '%s' not found", call->param[0]);
        return;
    }
    hf_list_foreach(it, &call->c->list)
    {
        const struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (!hf_state_ended(sb->state) && strcmp(sb->row.template_id, t.id) == 0) {
            hf_call_fail(call, 400, "template '%s' is in use by sandbox %s: end it first", call->param[0],
                         strcmp(sb->row.tenant, call->tenant) == 0 ? sb->row.id : "of another tenant");
            return;
        }
    }
    if (!carries_snapshot(call, &t))
        hf_template_delete(call->c, &t, on_deleted, call);
}

/* ---- import ---- */

static void want_more(void *arg)
{
    struct hf_call *call = arg;
    if (call->req)
        hf_req_resume(call->req);
}

static void on_imported(void *arg, const struct hf_template_row *t, const struct hf_err *err)
{
    struct hf_call *call = arg;
    call->gone = NULL;
    call->data = NULL;
    if (call->req)
        hf_req_resume(call->req); /* what still comes of a refused archive is thrown away */
    if (!t) {
        hf_call_err(call, err);
        return;
    }
    hf_call_json(call, 201,
                 json_pack("{s:s, s:s, s:I, s:s, s:b}", "template_id", t->id, "name", t->name, "bytes",
                           (json_int_t)t->bytes, "sha256", t->sha256, "public", (int)t->is_public));
}

static const struct hf_import_ops import_ops = {want_more, on_imported};

static void on_archive(struct hf_call *call, const char *p, size_t n)
{
    if (call->data && hf_import_feed(call->data, p, n) > 0)
        hf_req_pause(call->req);
}

static void on_archive_end(struct hf_call *call)
{
    if (call->data)
        hf_import_end(call->data);
}

static void on_archive_gone(struct hf_call *call)
{
    if (call->data)
        hf_import_cancel(call->data);
}

/* Templates of the tenant "default", the operator's, are for everybody unless it says otherwise. */
static int ask_public(struct hf_call *call, bool *ret)
{
    bool operator= strcmp(call->tenant, "default") == 0;
    hf_auto_buf struct hf_buf text = HF_BUF_INIT(16);
    int r = hf_call_query(call, "public", &text);
    if (r < 0)
        return r;
    *ret = r > 0 ? strcmp(text.p, "true") == 0 : operator;
    if (r > 0 && !*ret && strcmp(text.p, "false") != 0) {
        hf_call_fail(call, 400, "validation error: query parameter \"public\" must be true or false");
        return -EINVAL;
    }
    if (*ret && !operator) {
        hf_call_fail(call, 403, "only the tenant \"default\" may make templates public");
        return -EPERM;
    }
    return 0;
}

static void import_template(struct hf_call *call)
{
    char name[HF_ROW_NAME], tag[HF_ROW_NAME];
    struct hf_err err = {0};
    bool is_public = false;
    hf_auto_buf struct hf_buf text = HF_BUF_INIT(HF_ROW_NAME);
    int r = hf_call_query(call, "name", &text);
    if (r < 0 || ask_public(call, &is_public) < 0)
        return;
    if (r == 0 || !text.n) {
        hf_call_fail(call, 400, "validation error: query parameter \"name\" is required");
        return;
    }
    r = hf_validate_template_ref(text.p, name, tag, &err);
    if (r == 0 && strchr(name, '/'))
        r = hf_err_http(&err, -EINVAL, 400, "validation error: a template's own name has no '/'");
    if (r == 0) {
        call->on_data = on_archive;
        call->on_end = on_archive_end;
        call->gone = on_archive_gone;
        call->data = hf_import_begin(call->c, call->tenant, name, *tag ? tag : "default", is_public,
                                     &import_ops, call, &err);
        r = call->data ? 0 : err.r;
    }
    if (r < 0)
        hf_call_err(call, &err);
}

const struct hf_api_route hf_api_template_routes[] = {
    {"GET", "/templates", list_templates, 0},
    {"GET", "/templates/aliases/{alias}", get_alias, 0},
    {"GET", "/templates/{templateID}", get_template, 0},
    {"DELETE", "/templates/{templateID}", delete_template, 0},
    {"POST", "/v1/templates", import_template, HF_API_STREAM},
    {NULL, NULL, NULL, 0},
};
