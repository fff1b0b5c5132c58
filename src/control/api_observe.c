/* What can be seen of a sandbox: metrics, and its history as log lines. */
#include <stdio.h>

#include "base/clock.h"
#include "control/present.h"
#include "control/validate.h"

#define LOG_LIMIT 1000                  /* lines of one answer */
#define METRICS_IDS_MAX 100u            /* sandboxes of one question */
#define UNIX_SECONDS_MAX 253402300799ll /* the end of the year 9999 */

/* ---- metrics ---- */

static const struct hf_sample *sample_at(const struct hf_sandbox *sb, uint32_t i)
{
    return &sb->samples[(sb->samples_at + i) % sb->samples_n];
}

static void metrics(struct hf_call *call)
{
    int64_t start = 0, end = UNIX_SECONDS_MAX;
    if (hf_call_query_int(call, "start", 0, UNIX_SECONDS_MAX, &start) < 0 ||
        hf_call_query_int(call, "end", 0, UNIX_SECONDS_MAX, &end) < 0)
        return;
    const struct hf_sandbox *sb = hf_call_sandbox(call, false);
    if (!sb)
        return;
    json_t *list = json_array();
    for (uint32_t i = 0; i < sb->samples_n; i++) {
        const struct hf_sample *s = sample_at(sb, i);
        if (s->time_ms / 1000 >= start && s->time_ms / 1000 <= end)
            (void)json_array_append_new(list, hf_present_sample(s));
    }
    hf_call_json(call, 200, list);
}

static void add_latest(struct hf_call *call, struct hf_str id, json_t *out)
{
    char text[HF_ROW_ID];
    if (!id.n || id.n >= sizeof(text))
        return;
    (void)snprintf(text, sizeof(text), "%.*s", (int)id.n, id.p);
    const struct hf_sandbox *sb = hf_sandbox_find(call->c, call->tenant, text);
    if (sb && sb->samples_n)
        (void)json_object_set_new(out, text, hf_present_sample(sample_at(sb, sb->samples_n - 1)));
}

static void metrics_of_many(struct hf_call *call)
{
    hf_auto_buf struct hf_buf ids = HF_BUF_INIT(METRICS_IDS_MAX * HF_ROW_ID);
    int r = hf_call_query(call, "sandbox_ids", &ids);
    if (r < 0)
        return;
    if (r == 0) {
        hf_call_fail(call, 400, "validation error: query parameter \"sandbox_ids\" is required");
        return;
    }
    json_t *out = json_object();
    unsigned n = 0;
    for (const char *p = ids.p; p && n <= METRICS_IDS_MAX; n++) {
        const char *comma = strchr(p, ',');
        add_latest(call, (struct hf_str){p, comma ? (size_t)(comma - p) : strlen(p)}, out);
        p = comma ? comma + 1 : NULL;
    }
    if (n > METRICS_IDS_MAX) {
        json_decref(out);
        hf_call_fail(call, 400, "validation error: at most %u sandbox_ids", METRICS_IDS_MAX);
        return;
    }
    hf_call_json(call, 200, json_pack("{s:o}", "sandboxes", out));
}

/* ---- logs ---- */

struct logs {
    json_t *lines, *entries;
    int64_t from_ms;
    int64_t limit;
    bool backward;
    const char *level, *search; /* NULL = any */
};

static const char *level_of(const struct hf_event_row *e)
{
    if (strcmp(e->to, "failed") == 0)
        return "error";
    if (strcmp(e->cause, HF_CAUSE_OOM) == 0 || strcmp(e->cause, HF_CAUSE_KILLED) == 0 ||
        strcmp(e->cause, HF_CAUSE_LOST) == 0)
        return "warn";
    return "info";
}

static void add_log(void *arg, const struct hf_event_row *e)
{
    struct logs *l = arg;
    char message[2 * HF_ROW_TEXT];
    if (*e->to)
        (void)snprintf(message, sizeof(message), "%s%s%s (%s)%s%s", e->from, *e->from ? " -> " : "", e->to,
                       e->cause, *e->detail ? ": " : "", e->detail);
    else
        (void)snprintf(message, sizeof(message), "%s%s%s", e->kind, *e->detail ? ": " : "", e->detail);
    const char *level = level_of(e);
    if (e->time_ms < l->from_ms || (l->level && strcmp(level, l->level) != 0) ||
        (l->search && !strstr(message, l->search)))
        return;
    json_auto_t *line = json_pack("{s:s, s:s, s:s, s:s, s:s}", "level", level, "logger", "holdfast",
                                  "message", message, "event", e->kind, "cause", e->cause);
    if (!line)
        return; /* not UTF-8 */
    hf_auto_free char *text = json_dumps(line, JSON_COMPACT);
    json_t *a = json_pack("{s:o, s:s}", "timestamp", hf_present_time(e->time_ms), "line", text ? text : "");
    json_t *b = json_pack("{s:o, s:s, s:s, s:{s:s, s:s}}", "timestamp", hf_present_time(e->time_ms),
                          "message", message, "level", level, "fields", "event", e->kind, "cause", e->cause);
    (void)json_array_insert_new(l->lines, l->backward ? 0 : json_array_size(l->lines), a);
    (void)json_array_insert_new(l->entries, l->backward ? 0 : json_array_size(l->entries), b);
}

/* A sandbox's history can be read after its end as well. */
static bool known_sandbox(struct hf_call *call, char id[HF_ROW_ID])
{
    struct hf_err err = {0};
    if (hf_validate_sandbox_id(call->param[0], id, &err) < 0) {
        hf_call_err(call, &err);
        return false;
    }
    if (hf_sandbox_find(call->c, call->tenant, id))
        return true;
    hf_auto_sandbox_row struct hf_sandbox_row row = {0};
    if (hf_get_sandbox(call->c->meta, id, &row) == 1 && strcmp(row.tenant, call->tenant) == 0)
        return true;
    hf_call_no_sandbox(call, id);
    return false;
}

static void trim(json_t *list, int64_t limit)
{
    while ((int64_t)json_array_size(list) > limit)
        (void)json_array_remove(list, json_array_size(list) - 1);
}

static bool read_logs(struct hf_call *call, const char *id, struct logs *l)
{
    l->lines = json_array();
    l->entries = json_array();
    if (hf_each_event(call->c->meta, call->tenant, id, l->backward ? -1 : 0, LOG_LIMIT, add_log, l) < 0) {
        json_decref(l->lines);
        json_decref(l->entries);
        hf_call_fail(call, 500, "the history can't be read");
        return false;
    }
    trim(l->lines, l->limit);
    trim(l->entries, l->limit);
    return true;
}

static void logs_v1(struct hf_call *call)
{
    char id[HF_ROW_ID];
    struct logs l = {.limit = LOG_LIMIT};
    if (hf_call_query_int(call, "start", 0, INT64_MAX, &l.from_ms) < 0 ||
        hf_call_query_int(call, "limit", 0, LOG_LIMIT, &l.limit) < 0 || !known_sandbox(call, id) ||
        !read_logs(call, id, &l))
        return;
    hf_call_json(call, 200, json_pack("{s:o, s:o}", "logs", l.lines, "logEntries", l.entries));
}

static void logs_v2(struct hf_call *call)
{
    char id[HF_ROW_ID];
    struct logs l = {.limit = LOG_LIMIT};
    hf_auto_buf struct hf_buf direction = HF_BUF_INIT(32), level = HF_BUF_INIT(32), search = HF_BUF_INIT(512);
    if (hf_call_query_int(call, "cursor", 0, INT64_MAX, &l.from_ms) < 0 ||
        hf_call_query_int(call, "limit", 0, LOG_LIMIT, &l.limit) < 0 ||
        hf_call_query(call, "direction", &direction) < 0 || hf_call_query(call, "level", &level) < 0 ||
        hf_call_query(call, "search", &search) < 0)
        return;
    if (direction.n && strcmp(direction.p, "forward") != 0 && strcmp(direction.p, "backward") != 0) {
        hf_call_fail(call, 400, "validation error: \"direction\" must be forward or backward");
        return;
    }
    l.backward = direction.n && strcmp(direction.p, "backward") == 0;
    l.level = level.n ? level.p : NULL;
    l.search = search.n ? search.p : NULL;
    if (!known_sandbox(call, id) || !read_logs(call, id, &l))
        return;
    json_decref(l.lines);
    hf_call_json(call, 200, json_pack("{s:o}", "logs", l.entries));
}

const struct hf_api_route hf_api_observe_routes[] = {
    {"GET", "/sandboxes/metrics", metrics_of_many, 0},
    {"GET", "/sandboxes/{sandboxID}/metrics", metrics, 0},
    {"GET", "/sandboxes/{sandboxID}/logs", logs_v1, 0},
    {"GET", "/v2/sandboxes/{sandboxID}/logs", logs_v2, 0},
    {NULL, NULL, NULL, 0},
};
