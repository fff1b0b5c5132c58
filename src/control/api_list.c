/* The lists of sandboxes, both generations. */
#include <stdio.h>

#include "base/clock.h"
#include "control/filter.h"
#include "control/present.h"
#include "control/validate.h"

#define LIST_LIMIT_MAX 100

struct query {
    json_t *metadata; /* NULL = any */
    unsigned states;
    bool asc, after_cursor;
    int64_t limit, started_after_ms;
    char template_id[HF_ROW_ID]; /* "" = any */
    bool nothing;                /* the filter can't match */
    struct hf_cursor cursor;
};

/* Each takes one parameter: 0, or <0 with err. */
static int take_metadata(struct query *q, struct hf_str value, struct hf_err *err)
{
    return hf_filter_metadata(value, &q->metadata, err);
}

static int take_states(struct query *q, struct hf_str value, struct hf_err *err)
{
    return hf_filter_states(value, &q->states, err);
}

static int take_order(struct query *q, struct hf_str value, struct hf_err *err)
{
    q->asc = hf_str_eq(value, "asc");
    if (!q->asc && !hf_str_eq(value, "desc"))
        return hf_err_http(err, -EINVAL, 400, "Invalid order: expected asc or desc");
    return 0;
}

static int take_after(struct query *q, struct hf_str value, struct hf_err *err)
{
    int64_t ns;
    if (hf_rfc3339_parse(value, &ns) < 0)
        return hf_err_http(err, -EINVAL, 400, "Invalid startedAfter: expected an RFC 3339 time");
    q->started_after_ms = ns / 1000000;
    return 0;
}

static int take_cursor(struct query *q, struct hf_str value, struct hf_err *err)
{
    q->after_cursor = true;
    return hf_cursor_parse(value, q->asc, &q->cursor, err);
}

static int take_param(struct hf_call *call, const char *name, struct query *q,
                      int (*take)(struct query *q, struct hf_str value, struct hf_err *err))
{
    hf_auto_buf struct hf_buf value = HF_BUF_INIT(HF_FILTER_BYTES_MAX);
    int r = hf_call_query(call, name, &value);
    if (r <= 0)
        return r;
    struct hf_err err = {0};
    r = take(q, (struct hf_str){value.p ? value.p : "", value.n}, &err);
    if (r < 0)
        hf_call_err(call, &err);
    return r;
}

static int take_template(struct hf_call *call, struct query *q)
{
    hf_auto_buf struct hf_buf value = HF_BUF_INIT(HF_ROW_NAME);
    int r = hf_call_query(call, "template", &value);
    if (r <= 0 || !value.n)
        return r;
    if (strchr(value.p, ':')) {
        hf_call_fail(call, 400, "Invalid template: a tag can't be filtered by");
        return -EINVAL;
    }
    struct hf_template_row t;
    char alias[HF_ROW_NAME];
    struct hf_err err = {0};
    r = hf_template_resolve(call->c, call->tenant, value.p, &t, alias, &err);
    if (r == 0) {
        memcpy(q->template_id, t.id, sizeof(q->template_id));
    } else if (r == -ENOENT) {
        q->nothing = true;
        r = 0;
    } else {
        hf_call_err(call, &err);
    }
    return r;
}

static int parse_v2(struct hf_call *call, struct query *q)
{
    int r = take_param(call, "metadata", q, take_metadata);
    if (r >= 0)
        r = take_param(call, "state", q, take_states);
    if (r >= 0)
        r = take_param(call, "order", q, take_order);
    if (r >= 0)
        r = take_param(call, "startedAfter", q, take_after);
    if (r >= 0)
        r = take_param(call, "nextToken", q, take_cursor); /* after order: it is checked against it */
    if (r >= 0)
        r = hf_call_query_int(call, "limit", 1, LIST_LIMIT_MAX, &q->limit);
    return r >= 0 ? take_template(call, q) : r;
}

/* Killing is hidden at once, creating until it runs. */
static bool selected(const struct hf_sandbox *sb, const char *tenant, const struct query *q)
{
    bool running = sb->state == HF_RUNNING;
    bool paused = hf_state_asleep(sb->state);
    if (q->nothing ||
        !((running && (q->states & HF_FILTER_RUNNING)) || (paused && (q->states & HF_FILTER_PAUSED))))
        return false;
    if (strcmp(sb->row.tenant, tenant) != 0)
        return false;
    if (*q->template_id && strcmp(sb->row.template_id, q->template_id) != 0)
        return false;
    if (q->started_after_ms && sb->row.started_ms < q->started_after_ms)
        return false;
    return !q->metadata || hf_filter_matches(q->metadata, sb->metadata);
}

static int compare(int64_t time_a, const char *id_a, int64_t time_b, const char *id_b, bool asc)
{
    if (time_a != time_b)
        return (time_a < time_b) == asc ? -1 : 1;
    return strcmp(id_a, id_b);
}

static int by_newest(const void *a, const void *b)
{
    const struct hf_sandbox *x = *(struct hf_sandbox *const *)a, *y = *(struct hf_sandbox *const *)b;
    return compare(x->row.started_ms, x->row.id, y->row.started_ms, y->row.id, false);
}

static int by_oldest(const void *a, const void *b)
{
    const struct hf_sandbox *x = *(struct hf_sandbox *const *)a, *y = *(struct hf_sandbox *const *)b;
    return compare(x->row.started_ms, x->row.id, y->row.started_ms, y->row.id, true);
}

static void add_next_token(struct hf_call *call, const struct hf_sandbox *last, bool asc)
{
    struct hf_cursor cur = {.time_ms = last->row.started_ms, .asc = asc};
    memcpy(cur.id, last->row.id, sizeof(cur.id));
    hf_auto_buf struct hf_buf token = HF_BUF_INIT(512);
    if (hf_cursor_add(&token, &cur) == 0)
        hf_call_header(call, "X-Next-Token", token.p);
}

static void answer_list(struct hf_call *call, const struct query *q, bool paged)
{
    size_t n = 0, cap = call->c->map.len + 1;
    hf_auto_free struct hf_sandbox **found = hf_xcalloc(cap, sizeof(*found));
    size_t running = 0;
    hf_list_foreach(it, &call->c->list)
    {
        struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (!selected(sb, call->tenant, q) || n == cap)
            continue;
        running += sb->state == HF_RUNNING;
        found[n++] = sb;
    }
    qsort(found, n, sizeof(*found), q->asc ? by_oldest : by_newest);
    size_t at = 0;
    while (q->after_cursor && at < n &&
           compare(found[at]->row.started_ms, found[at]->row.id, q->cursor.time_ms, q->cursor.id, q->asc) <=
               0)
        at++;
    size_t end = paged ? HF_MIN(n, at + (size_t)q->limit) : n;
    json_t *list = json_array();
    for (size_t i = at; i < end; i++)
        (void)json_array_append_new(list, hf_present_listed(found[i]));
    if (end < n)
        add_next_token(call, found[end - 1], q->asc);
    if (q->states & HF_FILTER_RUNNING) {
        char total[24];
        (void)snprintf(total, sizeof(total), "%zu", running);
        hf_call_header(call, "X-Total-Running", total);
    }
    hf_call_json(call, 200, list);
}

static void list_v2(struct hf_call *call)
{
    struct query q = {.states = HF_FILTER_RUNNING | HF_FILTER_PAUSED, .limit = LIST_LIMIT_MAX};
    if (parse_v2(call, &q) >= 0)
        answer_list(call, &q, true);
    json_decref(q.metadata);
}

static void list_v1(struct hf_call *call)
{
    struct query q = {.states = HF_FILTER_RUNNING};
    if (take_param(call, "metadata", &q, take_metadata) >= 0)
        answer_list(call, &q, false);
    json_decref(q.metadata);
}

const struct hf_api_route hf_api_list_routes[] = {
    {"GET", "/sandboxes", list_v1, 0},
    {"GET", "/v2/sandboxes", list_v2, 0},
    {NULL, NULL, NULL, 0},
};
