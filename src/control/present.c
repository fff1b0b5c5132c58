#include "control/present.h"

#include <stdio.h>

#include "base/clock.h"
#include "control/ingress.h"
#include "control/persist.h"
#include "control/validate.h"
#include "egress/policy.h"

json_t *hf_present_time(int64_t real_ms)
{
    if (!real_ms)
        return json_null();
    char text[HF_RFC3339_MAX];
    hf_rfc3339_ms(real_ms, text);
    return json_string(text);
}

/* The traffic token, null where none is needed. */
static json_t *traffic_token(struct hf_sandbox *sb)
{
    const struct hf_ingress *in = hf_sandbox_ingress(sb);
    return in->is_private ? json_string(in->token) : json_null();
}

json_t *hf_present_handle(struct hf_sandbox *sb)
{
    char token[65];
    hf_sandbox_token(sb->c, sb->row.id, token);
    json_t *v = json_pack("{s:s, s:s, s:s, s:s, s:s, s:o}", "templateID", sb->row.template_id, "sandboxID",
                          sb->row.id, "clientID", HF_CLIENT_ID, "envdVersion", sb->row.envd_version,
                          "envdAccessToken", token, "trafficAccessToken", traffic_token(sb));
    (void)json_object_set_new(v, "domain", *sb->c->domain ? json_string(sb->c->domain) : json_null());
    if (*sb->row.alias)
        (void)json_object_set_new(v, "alias", json_string(sb->row.alias));
    explicit_bzero(token, sizeof(token));
    return v;
}

/* Mounts as E2B shows them, from the row. */
static json_t *mounts_of(const struct hf_sandbox_row *row)
{
    json_t *v = row->mounts ? json_loads(row->mounts, 0, NULL) : NULL;
    return v ? v : json_array();
}

json_t *hf_present_listed(const struct hf_sandbox *sb)
{
    const struct hf_sandbox_row *row = &sb->row;
    json_t *v = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:O}", "templateID", row->template_id,
                          "sandboxID", row->id, "clientID", HF_CLIENT_ID, "envdVersion", row->envd_version,
                          "state", hf_state_asleep(sb->state) ? "paused" : "running", "cpuCount",
                          (json_int_t)HF_MAX((row->cpu_millis + 999) / 1000, (int64_t)1), "memoryMB",
                          (json_int_t)(row->memory_bytes >> 20), "diskSizeMB",
                          (json_int_t)(row->disk_bytes >> 20), "metadata", sb->metadata);
    if (*row->alias)
        (void)json_object_set_new(v, "alias", json_string(row->alias));
    (void)json_object_set_new(v, "startedAt", hf_present_time(row->started_ms));
    bool paused = hf_state_asleep(sb->state);
    (void)json_object_set_new(v, "endAt", hf_present_time(paused ? row->paused_ms : row->end_ms));
    (void)json_object_set_new(v, "volumeMounts", mounts_of(row));
    return v;
}

json_t *hf_present_detail(struct hf_sandbox *sb)
{
    json_t *v = hf_present_listed(sb);
    char token[65];
    hf_sandbox_token(sb->c, sb->row.id, token);
    (void)json_object_set_new(v, "envdAccessToken", json_string(token));
    (void)json_object_set_new(v, "trafficAccessToken", traffic_token(sb));
    explicit_bzero(token, sizeof(token));
    (void)json_object_set_new(v, "domain", *sb->c->domain ? json_string(sb->c->domain) : json_null());
    json_auto_t *doc = json_loads(sb->row.network, 0, NULL);
    (void)json_object_set_new(v, "allowInternetAccess",
                              json_boolean(json_is_true(json_object_get(doc, "allow_internet_access"))));
    (void)json_object_set_new(v, "network", hf_policy_present(doc));
    (void)json_object_set_new(v, "lifecycle",
                              json_pack("{s:b, s:s}", "autoResume", hf_sandbox_wakes(sb), "onTimeout",
                                        hf_sandbox_pauses(sb) ? "pause" : "kill"));
    return v;
}

json_t *hf_present_row(const struct hf_sandbox_row *row)
{
    json_t *v = json_pack("{s:s, s:s, s:s, s:s, s:s}", "id", row->id, "template_id", row->template_id,
                          "state", row->state, "cause", row->cause, "detail", row->detail);
    if (!v) /* detail is text from the host: not UTF-8 in rare cases */
        v = json_pack("{s:s, s:s, s:s, s:s, s:s}", "id", row->id, "template_id", row->template_id, "state",
                      row->state, "cause", row->cause, "detail", "");
    json_t *metadata = row->metadata ? json_loads(row->metadata, 0, NULL) : NULL;
    (void)json_object_set_new(v, "metadata", metadata ? metadata : json_object());
    (void)json_object_set_new(v, "session_id", *row->session_id ? json_string(row->session_id) : json_null());
    (void)json_object_set_new(v, "created_at", hf_present_time(row->created_ms));
    (void)json_object_set_new(v, "started_at", hf_present_time(row->started_ms));
    (void)json_object_set_new(v, "end_at", hf_present_time(row->end_ms));
    (void)json_object_set_new(v, "ended_at", hf_present_time(row->ended_ms));
    (void)json_object_set_new(v, "cpu_millis", json_integer(row->cpu_millis));
    (void)json_object_set_new(v, "memory_bytes", json_integer(row->memory_bytes));
    (void)json_object_set_new(v, "disk_bytes", json_integer(row->disk_bytes));
    (void)json_object_set_new(v, "pids_max", json_integer(row->pids_max));
    (void)json_object_set_new(v, "generation", json_integer(row->generation));
    (void)json_object_set_new(v, "pause", *row->pause_depth ? json_string(row->pause_depth) : json_null());
    (void)json_object_set_new(v, "paused_at", hf_present_time(row->paused_ms));
    (void)json_object_set_new(v, "snapshot_id",
                              *row->snapshot_id ? json_string(row->snapshot_id) : json_null());
    return v;
}

json_t *hf_present_sample(const struct hf_sample *s)
{
    const struct hf_box_stats *st = &s->stats;
    json_t *v = json_pack("{s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I}", "timestampUnix",
                          (json_int_t)(s->time_ms / 1000), "cpuCount", (json_int_t)st->cpu_count,
                          "cpuUsedPct", st->cpu_used_pct, "memUsed", (json_int_t)st->mem_used, "memTotal",
                          (json_int_t)st->mem_total, "memCache", (json_int_t)st->mem_cache, "diskUsed",
                          (json_int_t)st->disk_used, "diskTotal", (json_int_t)st->disk_total);
    (void)json_object_set_new(v, "timestamp", hf_present_time(s->time_ms));
    return v;
}

/* ---- how requests name things ---- */

void hf_call_no_sandbox(struct hf_call *call, const char *id)
{
    hf_call_fail(call, 404, "Sandbox \"%s\" doesn't exist or you don't have access to it", id);
}

struct hf_sandbox *hf_call_sandbox(struct hf_call *call, bool want_settled)
{
    char id[HF_ROW_ID];
    struct hf_err err = {0};
    if (hf_validate_sandbox_id(call->param[0], id, &err) < 0) {
        hf_call_err(call, &err);
        return NULL;
    }
    struct hf_sandbox *sb = hf_sandbox_find(call->c, call->tenant, id);
    if (sb && (sb->state == HF_RUNNING || (!want_settled && sb->state == HF_PAUSED)))
        return sb;
    if (sb && want_settled && !hf_state_ended(sb->state))
        hf_call_fail(call, 409, "Sandbox %s is %s; try again in a moment", id, hf_state_name(sb->state));
    else
        hf_call_no_sandbox(call, id);
    return NULL;
}

static bool visible(const struct hf_template_row *t, const char *tenant)
{
    return strcmp(t->state, "ready") == 0 && (t->is_public || strcmp(t->tenant, tenant) == 0);
}

static int lookup_name(struct hf_control *c, const char *tenant, const char *name, const char *tag,
                       struct hf_template_row *ret)
{
    int r = hf_get_template_by_name(c->meta, tenant, name, tag, ret);
    return r ? r : hf_get_public_template_by_name(c->meta, name, tag, ret);
}

int hf_template_resolve(struct hf_control *c, const char *tenant, const char *ref,
                        struct hf_template_row *ret, char ret_alias[HF_ROW_NAME], struct hf_err *err)
{
    char name[HF_ROW_NAME], tag[HF_ROW_NAME];
    int r = hf_validate_template_ref(ref, name, tag, err);
    if (r < 0)
        return r;
    struct hf_template_row t;
    r = *tag ? 0 : hf_get_template(c->meta, name, &t);
    if (r == 1 && visible(&t, tenant)) {
        *ret = t;
        (void)snprintf(ret_alias, HF_ROW_NAME, "%s", t.name);
        return 0;
    }
    size_t ns = strlen(tenant);
    const char *bare = strncmp(name, tenant, ns) == 0 && name[ns] == '/' ? name + ns + 1 : name;
    if (r >= 0)
        r = lookup_name(c, tenant, bare, *tag ? tag : "default", &t);
    if (r < 0)
        return hf_err_set(err, -EIO, "the database can't be read");
    if (r == 1) {
        *ret = t;
        (void)snprintf(ret_alias, HF_ROW_NAME, "%s", bare);
        return 0;
    }
    if (*tag && lookup_name(c, tenant, bare, NULL, &t) == 1)
        return hf_err_set(err, -ENOENT, "tag '%.80s' does not exist for template '%.80s'", tag, name);
    return hf_err_set(err, -ENOENT, "template '%.150s' not found", ref);
}

int hf_control_admit(struct hf_control *c, const char *tenant, struct hf_err *err)
{
    size_t n = 0;
    if (hf_control_not_draining(c, err) < 0)
        return err->r;
    hf_list_foreach(it, &c->list)
    {
        const struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        bool counts = !hf_state_ended(sb->state) && sb->state != HF_KILLING && sb->state != HF_PAUSED &&
                      sb->state != HF_PAUSING;
        n += counts && strcmp(sb->row.tenant, tenant) == 0;
    }
    if (n < c->cfg->max_sandboxes)
        return 0;
    return hf_err_http(err, -EAGAIN, 429,
                       "you have reached the maximum number of concurrent E2B sandboxes (%u)",
                       c->cfg->max_sandboxes);
}

int hf_control_admit_resume(const struct hf_sandbox *sb, struct hf_err *err)
{
    bool counted = sb->state != HF_PAUSED && sb->state != HF_PAUSING;
    return counted ? 0 : hf_control_admit(sb->c, sb->row.tenant, err);
}
