/* holdfast sandbox logs: what a sandbox reported. */
#include <time.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/client.h"
#include "cli/show.h"
#include "cli/url.h"

#define PAGE 1000 /* entries of one page; the API's maximum */
#define FOLLOW_MS 1000

static const struct hf_opt opts[] = {
    {"follow", 'f', NULL, "show more as it comes, until the sandbox has ended", NULL},
    {"since", 0, "TIME", "only the last TIME, as in 5m", NULL},
    {"level", 'l', "LEVEL", "at least this level", "debug info warn error"},
    {"search", 's', "TEXT", "only entries that contain TEXT", NULL},
    {0},
};

/* Where a read goes on: entries of the last millisecond are asked for again and told apart by count. */
struct cursor {
    int64_t ms;
    size_t seen_at_ms;
};

static int fetch(struct hf_cli *cli, const struct hf_args *a, const struct cursor *at, struct hf_answer *ret,
                 struct hf_err *err)
{
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    hf_auto_free char *cursor = hf_xasprintf("%lld", (long long)at->ms), *limit = hf_xasprintf("%d", PAGE);
    int r = hf_url_path(&path, "/v2/sandboxes/%s/logs", a->v[0]);
    if (r == 0)
        r = hf_url_query(&path, "cursor", at->ms ? cursor : NULL);
    if (r == 0)
        r = hf_url_query(&path, "limit", limit);
    if (r == 0)
        r = hf_url_query(&path, "direction", "forward");
    if (r == 0)
        r = hf_url_query(&path, "search", hf_arg(a, "search"));
    return r < 0 ? hf_err_set(err, r, "the filters are too long")
                 : hf_api(cli, "GET", path.p, NULL, ret, err);
}

static void print_entry(const struct hf_cli *cli, const json_t *e)
{
    const char *level = hf_show_str(e, "level");
    const char *color = strcmp(level, "error") == 0 ? "red" : strcmp(level, "warn") == 0 ? "yellow" : "dim";
    hf_auto_free char *message = hf_text_printable(hf_show_str(e, "message"));
    hf_auto_free char *fields = hf_show_map(json_object_get(e, "fields")), *safe = hf_text_printable(fields);
    (void)printf("%s%s %-5s%s %s%s%s\n", hf_color(cli, color), hf_show_str(e, "timestamp"), level,
                 hf_color(cli, "reset"), message, *safe ? "  " : "", safe);
}

static int rank(const char *level)
{
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    for (size_t i = 0; i < HF_ARRAY_LEN(levels); i++)
        if (strcmp(level, levels[i]) == 0)
            return (int)i;
    return -1;
}

/* Prints what is new of a page and moves the cursor; the number of entries that were new. */
static size_t show_page(const struct hf_cli *cli, const json_t *logs, int least, struct cursor *at)
{
    size_t i, fresh = 0, skip = at->seen_at_ms;
    json_t *e;
    int64_t from = at->ms;
    json_array_foreach(logs, i, e)
    {
        int64_t ns = 0;
        bool dated = hf_rfc3339_parse(hf_str_c(hf_show_str(e, "timestamp")), &ns) == 0;
        int64_t ms = dated ? ns / 1000000 : at->ms;
        if (ms < from || (ms == from && skip && skip--))
            continue;
        at->seen_at_ms = ms == at->ms ? at->seen_at_ms + 1 : 1;
        at->ms = HF_MAX(at->ms, ms);
        fresh++;
        int level = rank(hf_show_str(e, "level"));
        if (level >= 0 && level < least)
            continue;
        if (cli->json)
            hf_show_json(e);
        else
            print_entry(cli, e);
    }
    (void)fflush(stdout);
    return fresh;
}

/* True once the sandbox has ended: nothing more will come. */
static bool is_over(struct hf_cli *cli, const char *id)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    return hf_box_detail(cli, id, &a, &err) == -ENOENT;
}

/* Pages until there is nothing new; negative with err. */
static int show_all(struct hf_cli *cli, const struct hf_args *args, int least, struct cursor *at,
                    struct hf_err *err)
{
    for (;;) {
        hf_auto_answer struct hf_answer a = {0};
        int r = fetch(cli, args, at, &a, err);
        if (r < 0)
            return r;
        const json_t *logs = json_object_get(a.body, "logs");
        size_t fresh = show_page(cli, logs, least, at);
        if (!fresh || json_array_size(logs) < PAGE)
            return 0;
    }
}

static int run(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    struct cursor at = {0};
    const char *since = hf_arg(args, "since"), *level = hf_arg(args, "level");
    bool follow = hf_arg(args, "follow") != NULL;
    uint64_t s = 0;
    if (since && (hf_parse_seconds(since, &s) < 0 || s > INT32_MAX))
        return hf_cli_usage(cli, args->verb, "--since takes a time such as 5m, not '%s'", since);
    if (level && rank(level) < 0)
        return hf_cli_usage(cli, args->verb, "--level takes debug, info, warn or error, not '%s'", level);
    if (since)
        at.ms = hf_real_ms() - (int64_t)s * 1000;
    for (;;) {
        /* Asked before the lines are read, so that the last ones are not missed. */
        bool over = !follow || is_over(cli, args->v[0]);
        if (show_all(cli, args, level ? rank(level) : 0, &at, &err) < 0)
            return hf_cli_fail(cli, &err);
        if (over)
            return HF_EXIT_OK;
        struct timespec pause = {.tv_sec = FOLLOW_MS / 1000, .tv_nsec = FOLLOW_MS % 1000 * 1000000L};
        (void)nanosleep(&pause, NULL);
    }
}

const struct hf_verb hf_verb_sandbox_logs = {
    .name = "logs",
    .summary = "show what a sandbox reported",
    .args = "ID",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SANDBOX,
    .opts = opts,
    .details = "--json prints one object a line.",
    .examples = "holdfast sandbox logs $id --follow\n"
                "holdfast sandbox logs $id --since 10m --level warn",
    .run = run,
};
