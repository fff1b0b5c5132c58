/* holdfast snapshot create | ls | show | rm | verify | export | import | policy */
#include "base/text.h"
#include "cli/args.h"
#include "cli/client.h"
#include "cli/show.h"
#include "cli/term.h"
#include "cli/url.h"

/* ---- create ---- */

static const struct hf_opt create_opts[] = {
    {"name", 'n', "NAME", "NAME or NAME:TAG to find it by; an older one of that name loses it", NULL},
    {"kind", 'k', "KIND", "full (disk and memory, the default) or disk", "full disk"},
    {"if-changed", 0, NULL, "take none when nothing happened since the newest one of the kind", NULL},
    {0},
};

static int run_create(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    const char *kind = hf_arg(args, "kind"), *name = hf_arg(args, "name");
    json_auto_t *body =
        json_pack("{s:s, s:s, s:s, s:b}", "sandbox_id", args->v[0], "kind", kind ? kind : "full", "name",
                  name ? name : "", "if_changed", hf_arg(args, "if-changed") != NULL);
    if (!body)
        return hf_cli_usage(cli, args->verb, "the name is not UTF-8");
    int r = hf_api(cli, "POST", "/v1/snapshots", body, &a, &err);
    if (r == -EOPNOTSUPP && !*cli->hint)
        hf_cli_hint(cli, "--kind disk saves its files without its processes");
    if (r < 0)
        return hf_cli_fail(cli, &err);
    const json_t *s = json_object_get(a.body, "snapshot");
    if (cli->json)
        hf_show_json(a.body);
    else if (json_is_null(s))
        hf_cli_say(cli, "none: %s", hf_show_str(a.body, "none"));
    else
        (void)puts(hf_show_str(s, "id"));
    return HF_EXIT_OK;
}

static const struct hf_verb create_verb = {
    .name = "create",
    .summary = "save a running or paused sandbox, and print the snapshot's id",
    .args = "SANDBOX",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SANDBOX,
    .opts = create_opts,
    .details =
        "The sandbox stands still for some milliseconds and goes on. `holdfast sandbox create SNAPSHOT`\n"
        "makes a new one from it, `holdfast sandbox rollback` brings this one back to it.",
    .examples = "holdfast snapshot create $id --name before-upgrade\n"
                "holdfast snapshot create $id --kind disk --if-changed",
    .run = run_create,
};

/* ---- ls ---- */

static const struct hf_opt ls_opts[] = {
    {"sandbox", 's', "ID", "those of this sandbox only", NULL},
    {0},
};

static const char *name_of(const json_t *s)
{
    const char *name = json_string_value(json_array_get(json_object_get(s, "names"), 0));
    return name ? name : "-";
}

static const char *bytes_of(const json_t *s, const char *key, char text[HF_HUMAN_MAX])
{
    return hf_human_size((uint64_t)HF_MAX(json_integer_value(json_object_get(s, key)), 0), text);
}

static int fetch_all(struct hf_cli *cli, const char *sandbox, json_t *all, struct hf_err *err)
{
    hf_auto_free char *cursor = NULL;
    do {
        hf_auto_answer struct hf_answer a = {0};
        hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
        int r = hf_buf_adds(&path, "/v1/snapshots");
        if (r == 0)
            r = hf_url_query(&path, "sandbox_id", sandbox);
        if (r == 0)
            r = hf_url_query(&path, "cursor", cursor);
        r = r < 0 ? hf_err_set(err, r, "the sandbox id is too long")
                  : hf_api(cli, "GET", path.p, NULL, &a, err);
        if (r < 0)
            return r;
        (void)json_array_extend(all, json_object_get(a.body, "snapshots"));
        const char *next = json_string_value(json_object_get(a.body, "next_cursor"));
        free(cursor);
        cursor = next ? hf_xstrdup(next) : NULL;
    } while (cursor);
    return 0;
}

static void print_list(const struct hf_cli *cli, const json_t *all)
{
    static const char *const heads[] = {"ID",  "NAME", "KIND",  "SANDBOX", "SIZE",
                                        "OWN", "FELT", "TAKEN", NULL};
    struct hf_table t;
    size_t i;
    json_t *s;
    char text[HF_HUMAN_MAX];
    hf_table_init(&t, heads);
    hf_table_flag(&t, 1, HF_TABLE_FLEX);
    for (unsigned col = 4; col <= 6; col++)
        hf_table_flag(&t, col, HF_TABLE_RIGHT);
    json_array_foreach(all, i, s)
    {
        hf_table_cell_color(&t, hf_show_str(s, "id"), hf_color(cli, "bold"));
        hf_table_cell(&t, name_of(s));
        hf_table_cell(&t, hf_show_str(s, "kind"));
        hf_table_cell(&t, hf_show_str(s, "sandbox_id"));
        hf_table_cell(&t, bytes_of(s, "bytes", text));
        hf_table_cell(&t, bytes_of(s, "exclusive_bytes", text));
        (void)snprintf(text, sizeof(text), "%.1f ms",
                       (double)json_integer_value(json_object_get(s, "frozen_us")) / 1000.0);
        hf_table_cell(&t, text);
        hf_auto_free char *ago = hf_xasprintf("%s ago", hf_show_since(s, "created_at", text));
        hf_table_cell(&t, ago);
    }
    hf_show_table(cli, &t);
    hf_table_done(&t);
}

static int run_ls(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    json_auto_t *all = json_array();
    if (fetch_all(cli, hf_arg(args, "sandbox"), all, &err) < 0)
        return hf_cli_fail(cli, &err);
    hf_show_list(cli, all, "id", "no snapshots; `holdfast snapshot create SANDBOX` takes one", print_list);
    return HF_EXIT_OK;
}

static const struct hf_verb ls_verb = {
    .name = "ls",
    .alias = "list",
    .summary = "list the snapshots, newest first",
    .opts = ls_opts,
    .details =
        "SIZE is what a snapshot occupies, OWN the part that no other snapshot and no sandbox shares:\n"
        "what its deletion would free. FELT is how long its sandbox stood still. --quiet prints ids.",
    .examples = "holdfast snapshot ls --sandbox $id",
    .run = run_ls,
};

/* ---- show, verify ---- */

/* /v1/snapshots/<ref><rest>; 0 or answered. */
static int ask(struct hf_cli *cli, const struct hf_args *args, const char *method, const char *ref,
               const char *rest, struct hf_answer *ret)
{
    struct hf_err err = {0};
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    int r = hf_url_path(&path, "/v1/snapshots/%s", ref);
    if (r == 0)
        r = hf_buf_adds(&path, rest);
    if (r < 0)
        return hf_cli_usage(cli, args->verb, "the snapshot's name is too long");
    r = hf_api(cli, method, path.p, NULL, ret, &err);
    if (r == -ENOENT)
        hf_cli_hint(cli, "`holdfast snapshot ls` lists the snapshots");
    return r < 0 ? hf_cli_fail(cli, &err) : 0;
}

static void print_one(const struct hf_cli *cli, const json_t *s)
{
    char text[HF_HUMAN_MAX];
    hf_show_field(cli, "ID", "%s", hf_show_str(s, "id"));
    hf_show_field(cli, "Name", "%s", name_of(s));
    hf_show_field(cli, "Kind", "%s", hf_show_str(s, "kind"));
    hf_show_field(cli, "Taken", "%s (%s)", hf_show_str(s, "created_at"), hf_show_str(s, "purpose"));
    hf_show_field(cli, "Sandbox", "%s", hf_show_str(s, "sandbox_id"));
    hf_show_field(cli, "Session", "%s", hf_show_str(s, "session_id"));
    hf_show_field(cli, "Template", "%s", hf_show_str(s, "template_id"));
    hf_show_field(cli, "Parent", "%s", hf_show_str(s, "parent_id"));
    hf_show_field(cli, "Size", "%s", bytes_of(s, "bytes", text));
    hf_show_field(cli, "Own", "%s", bytes_of(s, "exclusive_bytes", text));
    hf_show_field(cli, "Felt", "%.1f ms",
                  (double)json_integer_value(json_object_get(s, "frozen_us")) / 1000.0);
}

static int run_show(struct hf_cli *cli, const struct hf_args *args)
{
    hf_auto_answer struct hf_answer a = {0};
    int code = ask(cli, args, "GET", args->v[0], "", &a);
    if (code)
        return code;
    if (cli->json)
        hf_show_json(a.body);
    else
        print_one(cli, a.body);
    return HF_EXIT_OK;
}

static const struct hf_verb show_verb = {
    .name = "show",
    .alias = "info",
    .summary = "show one snapshot, its sizes measured now",
    .args = "NAME|ID",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SNAPSHOT,
    .examples = "holdfast snapshot show before-upgrade",
    .run = run_show,
};

static int run_verify(struct hf_cli *cli, const struct hf_args *args)
{
    int code = HF_EXIT_OK;
    for (size_t i = 0; i < args->n; i++) {
        hf_auto_answer struct hf_answer a = {0};
        int r = ask(cli, args, "POST", args->v[i], "/verify", &a);
        bool ok = r == 0 && json_is_true(json_object_get(a.body, "ok"));
        json_int_t open = json_integer_value(json_object_get(a.body, "unsealed"));
        code = ok ? code : HF_EXIT_ERROR;
        if (r)
            continue;
        if (cli->json)
            hf_show_json(a.body);
        else if (!ok)
            (void)printf("%s: damaged: %s\n", args->v[i], hf_show_str(a.body, "detail"));
        else if (open)
            (void)printf("%s: good; %lld parts have no hash yet\n", args->v[i], (long long)open);
        else
            (void)printf("%s: good\n", args->v[i]);
    }
    return code;
}

static const struct hf_verb verify_verb = {
    .name = "verify",
    .summary = "read snapshots whole and compare them with their hashes",
    .args = "NAME|ID...",
    .min_args = 1,
    .max_args = 1000,
    .complete = HF_COMPLETE_SNAPSHOT,
    .details = "Exits with 1 when one is damaged.",
    .examples = "holdfast snapshot verify $(holdfast snapshot ls --quiet)",
    .run = run_verify,
};

/* ---- rm ---- */

static int run_rm(struct hf_cli *cli, const struct hf_args *args)
{
    int code = HF_EXIT_OK;
    for (size_t i = 0; i < args->n; i++) {
        hf_auto_answer struct hf_answer a = {0};
        cli->hint[0] = '\0';
        if (ask(cli, args, "DELETE", args->v[i], "", &a))
            code = HF_EXIT_ERROR;
    }
    return code;
}

static const struct hf_verb rm_verb = {
    .name = "rm",
    .alias = "delete",
    .summary = "delete snapshots; sandboxes that were made from them go on",
    .args = "NAME|ID...",
    .min_args = 1,
    .max_args = 1000,
    .complete = HF_COMPLETE_SNAPSHOT,
    .details = "One that is gone already is no error.",
    .examples = "holdfast snapshot rm before-upgrade",
    .run = run_rm,
};

/* ---- policy ---- */

static const struct hf_opt policy_opts[] = {
    {"every", 0, "TIME", "take one this often while it runs (default 30m; 0 = not by time)", NULL},
    {"after-step", 0, NULL, "take one when a step is reported over", NULL},
    {"kind", 'k', "KIND", "full (the default) or disk", "full disk"},
    {"keep", 0, "N", "keep so many of them (default 10)", NULL},
    {"keep-age", 0, "TIME", "… none older than this", NULL},
    {"keep-size", 0, "SIZE", "… no more than this together", NULL},
    {"off", 0, NULL, "remove the policy; its snapshots stay", NULL},
    {0},
};

static int policy_number(const struct hf_args *a, const char *opt, const char *member,
                         int (*parse)(const char *s, uint64_t *ret), json_t *body, struct hf_err *err)
{
    const char *text = hf_arg(a, opt);
    uint64_t v = 0;
    if (!text)
        return 0;
    if (strcmp(text, "0") != 0 && (parse(text, &v) < 0 || v > INT64_MAX / 1000))
        return hf_err_set(err, -EINVAL, "--%s can't be '%s'", opt, text);
    return json_object_set_new(body, member, json_integer((json_int_t)v));
}

static int parse_count(const char *s, uint64_t *ret)
{
    return hf_parse_u64(hf_str_c(s), 1000000, ret);
}

static json_t *policy_body(const struct hf_args *a, struct hf_err *err)
{
    json_t *body = json_object();
    int r = policy_number(a, "every", "every_s", hf_parse_seconds, body, err);
    if (r == 0)
        r = policy_number(a, "keep", "keep_count", parse_count, body, err);
    if (r == 0)
        r = policy_number(a, "keep-age", "keep_age_s", hf_parse_seconds, body, err);
    if (r == 0)
        r = policy_number(a, "keep-size", "keep_bytes", hf_parse_size, body, err);
    if (r == 0 && hf_arg(a, "kind"))
        r = json_object_set_new(body, "kind", json_string(hf_arg(a, "kind")));
    if (r == 0)
        r = json_object_set_new(body, "after_step", json_boolean(hf_arg(a, "after-step") != NULL));
    if (r == 0)
        return body;
    json_decref(body);
    return NULL;
}

static void print_policy(const struct hf_cli *cli, const json_t *p)
{
    char text[HF_HUMAN_MAX];
    json_int_t every = json_integer_value(json_object_get(p, "every_s"));
    json_int_t age = json_integer_value(json_object_get(p, "keep_age_s"));
    json_int_t bytes = json_integer_value(json_object_get(p, "keep_bytes"));
    if (every)
        hf_show_field(cli, "Every", "%lld s", (long long)every);
    else
        hf_show_field(cli, "Every", "-");
    hf_show_field(cli, "After a step", "%s", json_is_true(json_object_get(p, "after_step")) ? "yes" : "no");
    hf_show_field(cli, "Kind", "%s", hf_show_str(p, "kind"));
    hf_show_field(cli, "Keeps", "%lld", (long long)json_integer_value(json_object_get(p, "keep_count")));
    if (age)
        hf_show_field(cli, "None older than", "%lld s", (long long)age);
    if (bytes)
        hf_show_field(cli, "No more than", "%s", hf_human_size((uint64_t)bytes, text));
}

static int run_policy(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    bool off = hf_arg(args, "off") != NULL, set = args->n_given > 0;
    const char *method = off ? "DELETE" : "GET";
    json_auto_t *body = NULL;
    for (size_t i = 0; i < args->n_given; i++)
        set = set && (args->given[i].opt >= policy_opts &&
                      args->given[i].opt < policy_opts + HF_ARRAY_LEN(policy_opts));
    if (!off && set) {
        method = "PUT";
        body = policy_body(args, &err);
        if (!body)
            return hf_cli_usage(cli, args->verb, "%s", err.msg);
    }
    if (hf_url_path(&path, "/v1/sandboxes/%s/snapshot-policy", args->v[0]) < 0)
        return hf_cli_usage(cli, args->verb, "the sandbox id is too long");
    if (hf_api(cli, method, path.p, body, &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (off)
        return HF_EXIT_OK;
    if (cli->json)
        hf_show_json(a.body);
    else
        print_policy(cli, a.body);
    return HF_EXIT_OK;
}

static const struct hf_verb policy_verb = {
    .name = "policy",
    .summary = "take snapshots of a sandbox by themselves, and keep some of them",
    .args = "SANDBOX",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SANDBOX,
    .opts = policy_opts,
    .details = "Without options it shows the policy; any option sets it whole. None is taken when nothing\n"
               "happened since the newest one. Only snapshots of the policy are deleted by it.",
    .examples = "holdfast snapshot policy $id --every 10m --keep 5\n"
                "holdfast snapshot policy $id --off",
    .run = run_policy,
};

static const struct hf_verb *const subs[] = {&create_verb,
                                             &ls_verb,
                                             &show_verb,
                                             &rm_verb,
                                             &verify_verb,
                                             &hf_verb_snapshot_export,
                                             &hf_verb_snapshot_import,
                                             &policy_verb,
                                             NULL};

const struct hf_verb hf_verb_snapshot = {
    .name = "snapshot",
    .alias = "snap",
    .summary = "saved states of sandboxes",
    .examples = "holdfast snapshot create $id --name before-upgrade && holdfast snapshot ls",
    .sub = subs,
};
