/* holdfast sandbox create | ls | info | timeout | kill */
#include "cli/sandbox.h"

#include "base/text.h"
#include "cli/args.h"
#include "cli/network.h"
#include "cli/show.h"
#include "cli/term.h"
#include "cli/url.h"

#define PAGE 100 /* entries of one page of a list; the API's maximum */

/* ---- create ---- */

static const struct hf_opt create_opts[] = {
    {"timeout", 't', "TIME", "how long it lives, as in 90s, 10m, 24h (default 5m)", NULL},
    {"metadata", 'm', "KEY=VALUE", "a label to find it by; may be repeated", NULL},
    {"env", 'e', "NAME=VALUE", "an environment variable of every process; may be repeated", NULL},
    {"cpu", 0, "CORES", "processor share, as in 0.5 or 2", NULL},
    {"memory", 0, "SIZE", "memory limit, as in 512M or 2G", NULL},
    {"disk", 0, "SIZE", "size of the writable layer, as in 1G", NULL},
    HF_NETWORK_OPTS,
    {0},
};

static int add_size(json_t *body, const struct hf_args *a, const char *opt, const char *member,
                    struct hf_err *err)
{
    const char *text = hf_arg(a, opt);
    uint64_t bytes = 0;
    if (!text)
        return 0;
    if (hf_parse_size(text, &bytes) < 0 || bytes < (1u << 20) || bytes > (uint64_t)INT64_MAX)
        return hf_err_set(err, -EINVAL, "--%s takes a size such as 512M or 2G, not '%s'", opt, text);
    return json_object_set_new(body, member, json_integer((json_int_t)(bytes >> 20)));
}

static int add_cpu(json_t *body, const struct hf_args *a, struct hf_err *err)
{
    const char *text = hf_arg(a, "cpu");
    char *end = NULL;
    double cores = text ? strtod(text, &end) : 0;
    if (!text)
        return 0;
    if (end == text || *end || !(cores >= 0.01 && cores <= 1024))
        return hf_err_set(err, -EINVAL, "--cpu takes a number of cores such as 0.5 or 2, not '%s'", text);
    bool whole = cores == (double)(int)cores;
    return json_object_set_new(body, "cpuCount", whole ? json_integer((int)cores) : json_real(cores));
}

static int add_timeout(json_t *body, const char *text, const char *what, struct hf_err *err)
{
    uint64_t s = 0;
    if (!text)
        return 0;
    if (hf_parse_seconds(text, &s) < 0 || s > INT32_MAX)
        return hf_err_set(err, -EINVAL, "%s takes a time such as 90s, 10m or 24h, not '%s'", what, text);
    return json_object_set_new(body, "timeout", json_integer((json_int_t)s));
}

static int create_body(const struct hf_args *a, json_t *body, struct hf_err *err)
{
    json_t *metadata = NULL, *env = NULL;
    int r = json_object_set_new(body, "templateID", json_string(a->n ? a->v[0] : "base"));
    if (r == 0)
        r = add_timeout(body, hf_arg(a, "timeout"), "--timeout", err);
    if (r == 0)
        r = add_cpu(body, a, err);
    if (r == 0)
        r = add_size(body, a, "memory", "memoryMB", err);
    if (r == 0)
        r = add_size(body, a, "disk", "diskSizeMB", err);
    if (r == 0)
        r = hf_show_pairs(a, "metadata", &metadata, err);
    if (r == 0 && metadata)
        r = json_object_set_new(body, "metadata", metadata);
    if (r == 0)
        r = hf_show_pairs(a, "env", &env, err);
    if (r == 0 && env)
        r = json_object_set_new(body, "envVars", env);
    return r == 0 ? hf_network_body(a, body, err) : r;
}

static int run_create(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    json_t *body = json_object();
    if (create_body(args, body, &err) < 0) {
        json_decref(body);
        return hf_cli_usage(cli, args->verb, "%s", *err.msg ? err.msg : "the template's name is not UTF-8");
    }
    int r = hf_api(cli, "POST", "/v2/sandboxes", body, &a, &err);
    json_decref(body);
    if (r == -ENOENT && !*cli->hint)
        hf_cli_hint(cli, "`holdfast template ls` lists the templates, `holdfast template import` makes one");
    if (r == -EINVAL && strstr(err.msg, "ALL_TRAFFIC"))
        hf_cli_hint(cli, "add --no-internet: names have a meaning only where everything else is denied");
    if (r < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json) {
        hf_show_json(a.body);
        return HF_EXIT_OK;
    }
    const char *id = hf_show_str(a.body, "sandboxID");
    (void)puts(id);
    if (isatty(STDERR_FILENO))
        hf_cli_say(cli, "a shell in it: holdfast sandbox shell %s", id);
    return HF_EXIT_OK;
}

static const struct hf_verb create_verb = {
    .name = "create",
    .summary = "make a sandbox and print its id",
    .args = "[TEMPLATE]",
    .max_args = 1,
    .complete = HF_COMPLETE_TEMPLATE,
    .opts = create_opts,
    .details =
        "TEMPLATE is an id or a name; without it `base` is taken. --json prints the API's answer, with\n"
        "the access token of the sandbox.",
    .examples = "holdfast sandbox create\n"
                "holdfast sandbox create base --timeout 1h --memory 2G --metadata owner=alice\n"
                "holdfast sandbox create --no-internet --allow-out api.example.com\n"
                "id=$(holdfast sandbox create --env LANG=C.UTF-8)",
    .run = run_create,
};

/* ---- ls ---- */

static const struct hf_opt ls_opts[] = {
    {"state", 's', "STATE", "running, paused, or both separated by a comma (default both)", "running paused"},
    {"metadata", 'm', "KEY=VALUE", "only those with this label; may be repeated", NULL},
    {"template", 0, "NAME", "only those made of this template", NULL},
    {"all", 'a', NULL, "all of them; without it the first 100", NULL},
    {0},
};

static int list_path(const struct hf_args *a, const char *token, struct hf_buf *path, struct hf_err *err)
{
    hf_auto_buf struct hf_buf filter = HF_BUF_INIT(HF_URL_MAX);
    const char *pair;
    for (size_t i = 0; (pair = hf_arg_nth(a, "metadata", i)); i++)
        if (hf_url_metadata(&filter, pair) < 0)
            return hf_err_set(err, -EINVAL, "--metadata takes KEY=VALUE, not '%s'", pair);
    hf_auto_free char *limit = hf_xasprintf("%d", PAGE);
    hf_buf_clear(path);
    int r = hf_buf_adds(path, "/v2/sandboxes");
    if (r == 0)
        r = hf_url_query(path, "limit", limit);
    if (r == 0)
        r = hf_url_query(path, "state", hf_arg(a, "state"));
    if (r == 0)
        r = hf_url_query(path, "template", hf_arg(a, "template"));
    if (r == 0)
        r = hf_url_query(path, "metadata", filter.n ? filter.p : NULL);
    if (r == 0)
        r = hf_url_query(path, "nextToken", *token ? token : NULL);
    return r < 0 ? hf_err_set(err, r, "the filters are too long") : 0;
}

/* Pages into one array; *ret_more tells whether there are others. */
static int list(struct hf_cli *cli, const struct hf_args *args, bool all, json_t *into, bool *ret_more,
                struct hf_err *err)
{
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    struct hf_answer a = {0};
    char token[sizeof(a.next_token)] = "";
    do {
        int r = list_path(args, token, &path, err);
        if (r == 0)
            r = hf_api(cli, "GET", path.p, NULL, &a, err);
        if (r == 0 && !json_is_array(a.body))
            r = hf_err_set(err, -EBADMSG, "%s answered no list", cli->url);
        if (r == 0)
            (void)json_array_extend(into, a.body);
        memcpy(token, a.next_token, sizeof(token));
        hf_answer_done(&a);
        if (r < 0)
            return r;
    } while (all && *token);
    *ret_more = *token != '\0';
    return 0;
}

static void print_list(const struct hf_cli *cli, const json_t *sandboxes)
{
    static const char *const heads[] = {"ID",  "STATE",  "TEMPLATE", "STARTED", "ENDS IN",
                                        "CPU", "MEMORY", "METADATA", NULL};
    struct hf_table t;
    size_t i;
    json_t *s;
    char text[HF_HUMAN_MAX];
    hf_table_init(&t, heads);
    hf_table_flag(&t, 5, HF_TABLE_RIGHT);
    hf_table_flag(&t, 6, HF_TABLE_RIGHT);
    hf_table_flag(&t, 7, HF_TABLE_FLEX);
    json_array_foreach(sandboxes, i, s)
    {
        const char *state = hf_show_str(s, "state"), *alias = hf_show_str(s, "alias");
        hf_auto_free char *metadata = hf_show_map(json_object_get(s, "metadata"));
        hf_table_cell_color(&t, hf_show_str(s, "sandboxID"), hf_color(cli, "bold"));
        hf_table_cell_color(&t, state, hf_show_state_color(cli, state));
        hf_table_cell(&t, *alias ? alias : hf_show_str(s, "templateID"));
        hf_auto_free char *ago = hf_xasprintf("%s ago", hf_show_since(s, "startedAt", text));
        hf_table_cell(&t, *text ? ago : "");
        hf_table_cell(&t, strcmp(state, "running") == 0 ? hf_show_until(s, "endAt", text) : "");
        (void)snprintf(text, sizeof(text), "%.4g", json_number_value(json_object_get(s, "cpuCount")));
        hf_table_cell(&t, text);
        json_int_t mb = json_integer_value(json_object_get(s, "memoryMB"));
        hf_table_cell(&t, hf_human_size((uint64_t)HF_MAX(mb, 0) << 20, text));
        hf_table_cell(&t, metadata);
    }
    hf_show_table(cli, &t);
    hf_table_done(&t);
}

static int run_ls(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    bool more = false;
    json_t *all = json_array();
    int r = list(cli, args, hf_arg(args, "all") != NULL, all, &more, &err);
    if (r < 0) {
        json_decref(all);
        return hf_cli_fail(cli, &err);
    }
    hf_show_list(cli, all, "sandboxID", "no sandboxes; `holdfast sandbox create` makes one", print_list);
    if (more)
        hf_cli_say(cli, "there are more; --all lists every one");
    json_decref(all);
    return HF_EXIT_OK;
}

static const struct hf_verb ls_verb = {
    .name = "ls",
    .alias = "list",
    .summary = "list the sandboxes that exist",
    .opts = ls_opts,
    .examples = "holdfast sandbox ls\n"
                "holdfast sandbox ls --state running --metadata owner=alice\n"
                "holdfast sandbox ls --all --json | jq -r '.[].sandboxID'",
    .run = run_ls,
};

/* ---- info ---- */

static void print_info(const struct hf_cli *cli, const json_t *s)
{
    char a[HF_HUMAN_MAX];
    const char *state = hf_show_str(s, "state");
    hf_auto_free char *metadata = hf_show_map(json_object_get(s, "metadata"));
    const json_t *cpu = json_object_get(s, "cpuCount");
    hf_show_field(cli, "ID", "%s", hf_show_str(s, "sandboxID"));
    hf_show_field(cli, "State", "%s", state);
    hf_show_field(cli, "Template", "%s", hf_show_str(s, "templateID"));
    hf_show_field(cli, "Template name", "%s", hf_show_str(s, "alias"));
    hf_show_field(cli, "Started", "%s", hf_show_str(s, "startedAt"));
    hf_show_field(cli, strcmp(state, "running") == 0 ? "Ends" : "Ended", "%s", hf_show_str(s, "endAt"));
    if (strcmp(state, "running") == 0)
        hf_show_field(cli, "Ends in", "%s", hf_show_until(s, "endAt", a));
    if (cpu)
        hf_show_field(cli, "CPU", "%.4g cores", json_number_value(cpu));
    json_int_t mb = json_integer_value(json_object_get(s, "memoryMB"));
    if (mb > 0)
        hf_show_field(cli, "Memory", "%s", hf_human_size((uint64_t)mb << 20, a));
    mb = json_integer_value(json_object_get(s, "diskSizeMB"));
    if (mb > 0)
        hf_show_field(cli, "Disk", "%s", hf_human_size((uint64_t)mb << 20, a));
    hf_show_field(cli, "Metadata", "%s", metadata);
}

static int run_info(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    if (hf_box_detail(cli, args->v[0], &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json)
        hf_show_json(a.body);
    else
        print_info(cli, a.body);
    return HF_EXIT_OK;
}

static const struct hf_verb info_verb = {
    .name = "info",
    .summary = "show one sandbox",
    .details = "Of a sandbox that has ended it tells how, and ends with 1.",
    .args = "ID",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SANDBOX,
    .examples = "holdfast sandbox info i4f0c2k9d7m1q8s3v6x5z",
    .run = run_info,
};

/* ---- timeout ---- */

static int run_timeout(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    json_t *body = json_object();
    int r = hf_url_path(&path, "/sandboxes/%s/timeout", args->v[0]);
    if (r == 0)
        r = add_timeout(body, args->v[1], "timeout", &err);
    if (r < 0) {
        json_decref(body);
        return hf_cli_usage(cli, args->verb, "%s", *err.msg ? err.msg : "the sandbox id is too long");
    }
    r = hf_api(cli, "POST", path.p, body, &a, &err);
    json_decref(body);
    return r < 0 ? hf_cli_fail(cli, &err) : HF_EXIT_OK;
}

static const struct hf_verb timeout_verb = {
    .name = "timeout",
    .summary = "set how long a sandbox lives from now on",
    .args = "ID TIME",
    .min_args = 2,
    .max_args = 2,
    .complete = HF_COMPLETE_SANDBOX,
    .examples = "holdfast sandbox timeout i4f0c2k9d7m1q8s3v6x5z 2h",
    .run = run_timeout,
};

/* ---- kill ---- */

static const struct hf_opt kill_opts[] = {
    {"all", 'a', NULL, "every sandbox that the filters leave", NULL},
    {"state", 's', "STATE", "with --all: running or paused", "running paused"},
    {"metadata", 'm', "KEY=VALUE", "with --all: only those with this label; may be repeated", NULL},
    {"template", 0, "NAME", "with --all: only those made of this template", NULL},
    {"yes", 'y', NULL, "with --all: do not ask", NULL},
    {0},
};

static int kill_one(struct hf_cli *cli, const char *id, json_t *killed, struct hf_err *err)
{
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    int r = hf_url_path(&path, "/sandboxes/%s", id);
    if (r == 0)
        r = hf_api(cli, "DELETE", path.p, NULL, &a, err);
    else
        (void)hf_err_set(err, r, "the sandbox id is too long");
    if (r < 0)
        return r;
    (void)json_array_append_new(killed, json_string(id));
    if (!cli->json && !cli->quiet)
        (void)puts(id);
    return 0;
}

/* Goes on after a failure, so that one bad id does not save the others; the exit code tells. */
static int kill_ids(struct hf_cli *cli, const json_t *ids)
{
    json_t *killed = json_array(), *id;
    size_t i;
    int code = HF_EXIT_OK;
    json_array_foreach(ids, i, id)
    {
        struct hf_err err = {0};
        cli->hint[0] = '\0';
        if (kill_one(cli, json_string_value(id), killed, &err) < 0)
            code = hf_cli_fail(cli, &err);
    }
    if (cli->json)
        hf_show_json(killed);
    json_decref(killed);
    return code;
}

static int kill_all(struct hf_cli *cli, const struct hf_args *args, json_t *ids)
{
    struct hf_err err = {0};
    bool more;
    json_t *found = json_array(), *s;
    size_t i;
    int r = list(cli, args, true, found, &more, &err);
    json_array_foreach(found, i, s)(void) json_array_append(ids, json_object_get(s, "sandboxID"));
    json_decref(found);
    if (r < 0)
        return hf_cli_fail(cli, &err);
    if (json_array_size(ids) == 0)
        return HF_EXIT_OK;
    hf_auto_free char *question =
        hf_xasprintf("Kill %zu sandboxes and everything in them?", json_array_size(ids));
    if (!hf_arg(args, "yes") && !hf_term_confirm(question))
        return hf_cli_usage(cli, args->verb, "nothing was killed; --yes does it without asking");
    return HF_EXIT_OK;
}

static int run_kill(struct hf_cli *cli, const struct hf_args *args)
{
    bool all = hf_arg(args, "all") != NULL;
    if (all == (args->n > 0))
        return hf_cli_usage(cli, args->verb,
                            all ? "either ids or --all, not both" : "'kill' needs an ID or --all");
    json_t *ids = json_array();
    for (size_t i = 0; i < args->n; i++)
        (void)json_array_append_new(ids, json_string(args->v[i]));
    int code = all ? kill_all(cli, args, ids) : HF_EXIT_OK;
    if (code == HF_EXIT_OK)
        code = kill_ids(cli, ids);
    json_decref(ids);
    return code;
}

static const struct hf_verb kill_verb = {
    .name = "kill",
    .alias = "rm",
    .summary = "end sandboxes and everything in them",
    .args = "ID... | --all",
    .max_args = 1000,
    .complete = HF_COMPLETE_SANDBOX,
    .opts = kill_opts,
    .details = "Prints the id of every sandbox that was ended.",
    .examples = "holdfast sandbox kill i4f0c2k9d7m1q8s3v6x5z\n"
                "holdfast sandbox kill --all --metadata owner=alice --yes",
    .run = run_kill,
};

static const struct hf_verb *const subs[] = {
    &create_verb,
    &ls_verb,
    &info_verb,
    &hf_verb_sandbox_exec,
    &hf_verb_sandbox_shell,
    &hf_verb_sandbox_cp,
    &hf_verb_sandbox_logs,
    &hf_verb_sandbox_open,
    &hf_verb_sandbox_network,
    &hf_verb_sandbox_outbound,
    &timeout_verb,
    &hf_verb_sandbox_fork,
    &hf_verb_sandbox_rollback,
    &hf_verb_sandbox_pause,
    &hf_verb_sandbox_resume,
    &kill_verb,
    NULL,
};

const struct hf_verb hf_verb_sandbox = {
    .name = "sandbox",
    .alias = "sbx",
    .summary = "make, use and end sandboxes",
    .examples = "id=$(holdfast sbx create) && holdfast sbx exec $id -- uname -a && holdfast sbx kill $id",
    .sub = subs,
};
