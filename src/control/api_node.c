/* The node itself, and our own view of sandboxes under /v1. */
#include "base/clock.h"
#include "control/filter.h"
#include "control/present.h"
#include "control/validate.h"

#define PAGE_MAX 100
#define EVENTS_MAX 1000

static void health(struct hf_call *call)
{
    hf_call_text(call, 200, "Health check successful");
}

static void version(struct hf_call *call)
{
    hf_call_json(call, 200, json_pack("{s:s, s:s}", "name", "holdfast", "version", HOLDFAST_VERSION));
}

static void teams(struct hf_call *call)
{
    /* The key is shown once, at its creation; E2B's field is required and stays empty. */
    hf_call_json(call, 200,
                 json_pack("[{s:s, s:s, s:s, s:b}]", "teamID", call->tenant, "name", call->tenant, "apiKey",
                           "", "isDefault", 1));
}

static void info(struct hf_call *call)
{
    struct hf_control *c = call->c;
    struct hf_driver_caps caps = {0};
    c->driver->ops->caps(c->driver, &caps);
    json_t *v = json_pack("{s:s, s:s, s:s}", "version", HOLDFAST_VERSION, "driver", c->driver->ops->name,
                          "isolation", caps.isolation);
    (void)json_object_set_new(v, "domain", *c->domain ? json_string(c->domain) : json_null());
    (void)json_object_set_new(
        v, "capabilities",
        json_pack("{s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b}", "memory_limit", caps.memory_limit,
                  "cpu_limit", caps.cpu_limit, "pids_limit", caps.pids_limit, "io_limit", caps.io_limit,
                  "disk_quota", caps.disk_quota, "reflink", caps.reflink, "warm_pool", caps.warm_pool,
                  "pause", caps.pause, "snapshot_memory", caps.snapshot_memory, "network", caps.network));
    (void)json_object_set_new(v, "missing", json_string(caps.missing));
    json_t *counts = json_object();
    for (unsigned s = 0; s < HF_STATES; s++) {
        if (!hf_state_ended((enum hf_state)s))
            (void)json_object_set_new(
                counts, hf_state_name((enum hf_state)s),
                json_integer((json_int_t)hf_control_count(c, call->tenant, (enum hf_state)s)));
    }
    (void)json_object_set_new(v, "sandboxes", counts);
    (void)json_object_set_new(v, "limits",
                              json_pack("{s:I, s:I}", "max_sandboxes", (json_int_t)c->cfg->max_sandboxes,
                                        "max_timeout_s", (json_int_t)c->cfg->max_timeout_s));
    hf_call_json(call, 200, v);
}

/* ---- sandboxes, also those that have ended ---- */

static void get_row(struct hf_call *call)
{
    char id[HF_ROW_ID];
    struct hf_err err = {0};
    if (hf_validate_sandbox_id(call->param[0], id, &err) < 0) {
        hf_call_err(call, &err);
        return;
    }
    const struct hf_sandbox *sb = hf_sandbox_find(call->c, call->tenant, id);
    if (sb) { /* newer than its row */
        hf_call_json(call, 200, hf_present_row(&sb->row));
        return;
    }
    hf_auto_sandbox_row struct hf_sandbox_row row = {0};
    int r = hf_get_sandbox(call->c->meta, id, &row);
    if (r < 0)
        hf_call_fail(call, 500, "the database can't be read");
    else if (r == 0 || strcmp(row.tenant, call->tenant) != 0)
        hf_call_no_sandbox(call, id);
    else
        hf_call_json(call, 200, hf_present_row(&row));
}

struct page {
    json_t *list;
    int64_t limit;
    struct hf_cursor last;
};

static void add_row(void *arg, const struct hf_sandbox_row *row)
{
    struct page *p = arg;
    if ((int64_t)json_array_size(p->list) < p->limit) {
        (void)json_array_append_new(p->list, hf_present_row(row));
        p->last.time_ms = row->created_ms;
        memcpy(p->last.id, row->id, sizeof(p->last.id));
    } else {
        p->limit = -1; /* there is one more */
    }
}

static void list_rows(struct hf_call *call)
{
    struct page p = {.limit = PAGE_MAX};
    struct hf_cursor from = {0};
    hf_auto_buf struct hf_buf cursor = HF_BUF_INIT(512);
    struct hf_err err = {0};
    int r = hf_call_query_int(call, "limit", 1, PAGE_MAX, &p.limit);
    if (r < 0)
        return;
    r = hf_call_query(call, "cursor", &cursor);
    if (r < 0)
        return;
    if (r > 0 && hf_cursor_parse((struct hf_str){cursor.p, cursor.n}, false, &from, &err) < 0) {
        hf_call_err(call, &err);
        return;
    }
    p.list = json_array();
    r = hf_each_sandbox(call->c->meta, call->tenant, from.time_ms, from.id, (int)p.limit + 1, add_row, &p);
    if (r < 0) {
        json_decref(p.list);
        hf_call_fail(call, 500, "the database can't be read");
        return;
    }
    json_t *v = json_pack("{s:o}", "sandboxes", p.list);
    hf_auto_buf struct hf_buf next = HF_BUF_INIT(512);
    bool more = p.limit < 0 && hf_cursor_add(&next, &p.last) == 0;
    (void)json_object_set_new(v, "next_cursor", more ? json_string(next.p) : json_null());
    hf_call_json(call, 200, v);
}

/* ---- events ---- */

struct events {
    json_t *list;
    int64_t last;
};

static void add_event(void *arg, const struct hf_event_row *e)
{
    struct events *ev = arg;
    json_t *v = json_pack("{s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "seq", (json_int_t)e->seq, "kind",
                          e->kind, "sandbox_id", e->sandbox_id, "session_id", e->session_id, "from", e->from,
                          "to", e->to, "cause", e->cause, "detail", e->detail);
    ev->last = e->seq;
    if (!v) /* not UTF-8 */
        return;
    (void)json_object_set_new(v, "time", hf_present_time(e->time_ms));
    (void)json_array_append_new(ev->list, v);
}

static void list_events(struct hf_call *call)
{
    int64_t after = 0, limit = PAGE_MAX;
    hf_auto_buf struct hf_buf sandbox = HF_BUF_INIT(HF_ROW_ID);
    if (hf_call_query_int(call, "after", 0, INT64_MAX, &after) < 0 ||
        hf_call_query_int(call, "limit", 1, EVENTS_MAX, &limit) < 0 ||
        hf_call_query(call, "sandbox", &sandbox) < 0)
        return;
    struct events ev = {json_array(), after};
    int r = hf_each_event(call->c->meta, call->tenant, sandbox.p, after, (int)limit, add_event, &ev);
    if (r < 0) {
        json_decref(ev.list);
        hf_call_fail(call, 500, "the database can't be read");
        return;
    }
    hf_call_json(call, 200, json_pack("{s:o, s:I}", "events", ev.list, "last", (json_int_t)ev.last));
}

const struct hf_api_route hf_api_node_routes[] = {
    {"GET", "/health", health, HF_API_PUBLIC},      {"GET", "/teams", teams, 0},
    {"GET", "/v1/version", version, HF_API_PUBLIC}, {"GET", "/v1/info", info, 0},
    {"GET", "/v1/sandboxes", list_rows, 0},         {"GET", "/v1/sandboxes/{sandboxID}", get_row, 0},
    {"GET", "/v1/events", list_events, 0},          {NULL, NULL, NULL, 0},
};
