/* Named policy groups: edited once, in force for every sandbox that is bound to them. */
#include <stdio.h>

#include "base/clock.h"
#include "control/net.h"
#include "control/network.h"
#include "control/present.h"
#include "egress/policy.h"
#include "store/net.h"

#define PAGE_MAX 100

static bool group_name(struct hf_call *call)
{
    const char *s = call->param[0];
    size_t n = strlen(s);
    bool ok = n >= 1 && n < HF_POLICY_NAME_MAX && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-_") == n &&
              s[0] != '-' && s[0] != '_';
    if (!ok)
        hf_call_fail(call, 400,
                     "validation error: a policy's name has 1 to %u lower-case letters, digits, '-' and '_', "
                     "and begins with a letter or digit",
                     HF_POLICY_NAME_MAX - 1);
    return ok;
}

static unsigned bound_to(struct hf_control *c, const char *tenant, const char *name)
{
    unsigned n = 0;
    hf_list_foreach(it, &c->list)
    {
        const struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        n += !hf_state_ended(sb->state) && strcmp(sb->row.tenant, tenant) == 0 && hf_network_bound(sb, name);
    }
    return n;
}

static json_t *present(struct hf_control *c, const struct hf_policy_row *row)
{
    json_t *doc = json_loads(row->doc, 0, NULL);
    json_t *v =
        json_pack("{s:s, s:o, s:I, s:I}", "name", row->name, "policy", doc ? doc : json_object(), "version",
                  (json_int_t)row->version, "sandboxes", (json_int_t)bound_to(c, row->tenant, row->name));
    (void)json_object_set_new(v, "created_at", hf_present_time(row->created_ms));
    (void)json_object_set_new(v, "updated_at", hf_present_time(row->updated_ms));
    return v;
}

/* ---- reading ---- */

struct page {
    struct hf_control *c;
    json_t *list;
    const char *after;
    int64_t limit;
    char last[HF_ROW_ID];
    bool more;
};

static bool add_policy(void *arg, const struct hf_policy_row *row)
{
    struct page *p = arg;
    if (strcmp(row->name, p->after) <= 0)
        return true;
    p->more = (int64_t)json_array_size(p->list) == p->limit;
    if (p->more)
        return false;
    (void)json_array_append_new(p->list, present(p->c, row));
    (void)snprintf(p->last, sizeof(p->last), "%s", row->name);
    return true;
}

static void list_policies(struct hf_call *call)
{
    hf_auto_buf struct hf_buf cursor = HF_BUF_INIT(HF_ROW_ID);
    struct page p = {.c = call->c, .limit = PAGE_MAX};
    if (hf_call_query_int(call, "limit", 1, PAGE_MAX, &p.limit) < 0 ||
        hf_call_query(call, "cursor", &cursor) < 0)
        return;
    p.after = cursor.n ? cursor.p : "";
    p.list = json_array();
    if (hf_each_policy(call->c->meta, call->tenant, add_policy, &p) < 0) {
        json_decref(p.list);
        hf_call_fail(call, 500, "the database can't be read");
        return;
    }
    json_t *v = json_pack("{s:o}", "policies", p.list);
    (void)json_object_set_new(v, "next_cursor", p.more ? json_string(p.last) : json_null());
    hf_call_json(call, 200, v);
}

/* The row that parameter 0 names, or answered. */
static bool named(struct hf_call *call, struct hf_policy_row *ret)
{
    int r = group_name(call) ? hf_get_policy(call->c->meta, call->tenant, call->param[0], ret) : -EINVAL;
    if (r == 0)
        hf_call_fail(call, 404, "there is no policy \"%s\"", call->param[0]);
    else if (r < 0 && r != -EINVAL)
        hf_call_fail(call, 500, "the database can't be read");
    return r == 1;
}

static void get_policy(struct hf_call *call)
{
    struct hf_policy_row row = {0};
    if (!named(call, &row))
        return;
    hf_call_json(call, 200, present(call->c, &row));
    hf_policy_row_done(&row);
}

/* As a sandbox that is bound to this policy alone would be judged. */
static void test_policy(struct hf_call *call)
{
    struct hf_policy_row row = {0};
    struct hf_err err = {0};
    if (!named(call, &row))
        return;
    hf_policy_row_done(&row);
    json_auto_t *request = json_pack("{s:[s]}", "policies", call->param[0]), *doc = NULL, *merged = NULL;
    json_t *answer;
    int r = hf_policy_resolve(request, -1, &doc, &err);
    if (r == 0)
        r = hf_network_merge(call->c, call->tenant, doc, &merged, &err);
    if (r == 0)
        r = hf_network_test(merged, call->body, &answer, &err);
    if (r < 0)
        hf_call_err(call, &err);
    else
        hf_call_json(call, 200, answer);
}

/* ---- changing ---- */

struct edit {
    struct hf_call *call;
    struct hf_policy_row row, old; /* old.doc NULL: there was none */
    struct hf_err err;
};

static char *edit_key(const char *tenant, const char *name)
{
    return hf_xasprintf("%s/%s", tenant, name);
}

static void end_edit(struct edit *e)
{
    hf_auto_free char *key = edit_key(e->row.tenant, e->row.name);
    (void)hf_map_del(&e->call->c->policies_changing, hf_str_c(key));
    e->call->c->busy--;
    if (e->err.r)
        hf_call_err(e->call, &e->err);
    else
        hf_call_json(e->call, e->old.doc ? 200 : 201, present(e->call->c, &e->row));
    hf_policy_row_done(&e->row);
    hf_policy_row_done(&e->old);
    free(e);
}

static void on_old_in_force(void *arg, const struct hf_err *err)
{
    end_edit(arg);
}

static void on_old_row(void *arg, int r, const struct hf_err *err)
{
    struct edit *e = arg;
    if (r < 0)
        (void)hf_err_wrap(&e->err, "and its old form could not be written back");
    /* Some sandboxes took the new form already. */
    hf_cnet_group_changed(e->call->c->net, e->row.tenant, e->row.name, on_old_in_force, e);
}

static void on_in_force(void *arg, const struct hf_err *err)
{
    struct edit *e = arg;
    if (!err) {
        end_edit(e);
        return;
    }
    (void)hf_err_http(&e->err, err->r ? err->r : -EIO, 503, "the policy was not changed: %.200s", err->msg);
    struct hf_meta_batch *b = hf_meta_batch_new();
    if (e->old.doc)
        hf_put_policy(b, &e->old);
    else
        hf_del_policy(b, e->row.tenant, e->row.name);
    hf_meta_commit(e->call->c->meta, b, 0, on_old_row, e);
}

static void on_row(void *arg, int r, const struct hf_err *err)
{
    struct edit *e = arg;
    if (r < 0)
        e->err = *err;
    if (r < 0 || !hf_network_ready(e->call->c))
        end_edit(e);
    else
        hf_cnet_group_changed(e->call->c->net, e->row.tenant, e->row.name, on_in_force, e);
}

/* A change that is taken back must not take back another one. */
static bool changing(struct hf_call *call)
{
    hf_auto_free char *key = edit_key(call->tenant, call->param[0]);
    if (!hf_map_get(&call->c->policies_changing, hf_str_c(key)))
        return false;
    hf_call_fail(call, 409, "the policy \"%s\" is being changed; try again in a moment", call->param[0]);
    return true;
}

static void put_policy(struct hf_call *call)
{
    struct hf_err err = {0};
    json_auto_t *doc = NULL;
    struct hf_policy_row old = {0};
    if (!group_name(call) || changing(call))
        return;
    int r = hf_policy_resolve_group(call->body, &doc, &err);
    if (r == 0) {
        r = hf_get_policy(call->c->meta, call->tenant, call->param[0], &old);
        if (r < 0)
            (void)hf_err_set(&err, r, "the database can't be read");
    }
    if (r < 0) {
        hf_call_err(call, &err);
        return;
    }
    struct edit *e = hf_new(struct edit);
    e->call = call;
    e->old = old;
    (void)snprintf(e->row.tenant, sizeof(e->row.tenant), "%s", call->tenant);
    (void)snprintf(e->row.name, sizeof(e->row.name), "%s", call->param[0]);
    e->row.doc = json_dumps(doc, JSON_COMPACT);
    e->row.version = old.version + 1;
    e->row.updated_ms = hf_real_ms();
    e->row.created_ms = old.doc ? old.created_ms : e->row.updated_ms;
    hf_auto_free char *key = edit_key(call->tenant, call->param[0]);
    (void)hf_map_put(&call->c->policies_changing, hf_str_c(key), e);
    call->c->busy++;
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_policy(b, &e->row);
    hf_meta_commit(call->c->meta, b, 0, on_row, e);
}

static void on_deleted(void *arg, int r, const struct hf_err *err)
{
    if (r < 0)
        hf_call_err(arg, err);
    else
        hf_call_empty(arg, 204);
}

static void delete_policy(struct hf_call *call)
{
    struct hf_policy_row row = {0};
    if (!named(call, &row))
        return;
    hf_policy_row_done(&row);
    if (changing(call))
        return;
    unsigned n = bound_to(call->c, call->tenant, call->param[0]);
    if (n) {
        hf_call_hint(call, "PUT {\"policies\":[]} to /sandboxes/{id}/network unbinds a sandbox");
        hf_call_fail(call, 409, "the policy \"%s\" is bound to %u sandbox%s", call->param[0], n,
                     n == 1 ? "" : "es");
        return;
    }
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_del_policy(b, call->tenant, call->param[0]);
    hf_meta_commit(call->c->meta, b, 0, on_deleted, call);
}

const struct hf_api_route hf_api_policy_routes[] = {
    {"GET", "/v1/policies", list_policies, 0},
    {"GET", "/v1/policies/{policy}", get_policy, 0},
    {"PUT", "/v1/policies/{policy}", put_policy, HF_API_BODY},
    {"DELETE", "/v1/policies/{policy}", delete_policy, 0},
    {"POST", "/v1/policies/{policy}/test", test_policy, HF_API_BODY},
    {NULL, NULL, NULL, 0},
};
