/* holdfast policy ls | show | set | rm | test */
#include "base/text.h"
#include "cli/args.h"
#include "cli/network.h"
#include "cli/show.h"
#include "cli/url.h"

static int call(struct hf_cli *cli, const char *method, const char *fmt, const char *name, const json_t *body,
                struct hf_answer *ret, struct hf_err *err)
{
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    if (hf_url_path(&path, fmt, name) < 0)
        return hf_err_set(err, -EINVAL, "the name is too long");
    int r = hf_api(cli, method, path.p, body, ret, err);
    if (r == -ENOENT && strncmp(fmt, "/v1/policies", 12) == 0)
        hf_cli_hint(cli, "`holdfast policy ls` lists the policies, `holdfast policy set` makes one");
    return r;
}

/* ---- ls ---- */

static int list(struct hf_cli *cli, json_t *into, struct hf_err *err)
{
    char cursor[256] = "";
    do {
        hf_auto_answer struct hf_answer a = {0};
        hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
        int r = hf_buf_adds(&path, "/v1/policies");
        if (r == 0)
            r = hf_url_query(&path, "cursor", *cursor ? cursor : NULL);
        if (r == 0)
            r = hf_api(cli, "GET", path.p, NULL, &a, err);
        if (r < 0)
            return r;
        json_t *page = json_object_get(a.body, "policies");
        if (!json_is_array(page))
            return hf_err_set(err, -EBADMSG, "%s answered no list of policies", cli->url);
        (void)json_array_extend(into, page);
        (void)snprintf(cursor, sizeof(cursor), "%s", hf_show_str(a.body, "next_cursor"));
    } while (*cursor);
    return 0;
}

static void print_list(const struct hf_cli *cli, const json_t *all)
{
    static const char *const heads[] = {"NAME",   "VERSION", "SANDBOXES", "ALLOWED",
                                        "DENIED", "RULES",   "CHANGED",   NULL};
    static const char *const lists[] = {"allow_out", "deny_out", "rules"};
    struct hf_table t;
    size_t i;
    json_t *p;
    char text[HF_HUMAN_MAX];
    hf_table_init(&t, heads);
    for (size_t k = 1; k < 6; k++)
        hf_table_flag(&t, k, HF_TABLE_RIGHT);
    json_array_foreach((json_t *)(uintptr_t)all, i, p)
    {
        const json_t *doc = json_object_get(p, "policy");
        hf_table_cell_color(&t, hf_show_str(p, "name"), hf_color(cli, "bold"));
        (void)snprintf(text, sizeof(text), "%lld",
                       (long long)json_integer_value(json_object_get(p, "version")));
        hf_table_cell(&t, text);
        (void)snprintf(text, sizeof(text), "%lld",
                       (long long)json_integer_value(json_object_get(p, "sandboxes")));
        hf_table_cell(&t, text);
        for (size_t k = 0; k < HF_ARRAY_LEN(lists); k++) {
            (void)snprintf(text, sizeof(text), "%zu", json_array_size(json_object_get(doc, lists[k])));
            hf_table_cell(&t, text);
        }
        hf_auto_free char *ago = hf_xasprintf("%s ago", hf_show_since(p, "updated_at", text));
        hf_table_cell(&t, *text ? ago : "");
    }
    hf_show_table(cli, &t);
    hf_table_done(&t);
}

static int run_ls(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    json_auto_t *all = json_array();
    if (list(cli, all, &err) < 0)
        return hf_cli_fail(cli, &err);
    hf_show_list(cli, all, "name", "no policies; `holdfast policy set NAME --allow HOST` makes one",
                 print_list);
    return HF_EXIT_OK;
}

static const struct hf_verb ls_verb = {
    .name = "ls",
    .alias = "list",
    .summary = "list the policies and how many sandboxes they hold for",
    .examples = "holdfast policy ls",
    .run = run_ls,
};

/* ---- show ---- */

static void print_policy(const struct hf_cli *cli, const json_t *p)
{
    hf_show_field(cli, "Name", "%s", hf_show_str(p, "name"));
    hf_show_field(cli, "Version", "%lld", (long long)json_integer_value(json_object_get(p, "version")));
    hf_show_field(cli, "Sandboxes", "%lld", (long long)json_integer_value(json_object_get(p, "sandboxes")));
    hf_show_field(cli, "Changed", "%s", hf_show_str(p, "updated_at"));
    hf_network_show_policy(cli, json_object_get(p, "policy"));
}

static int run_show(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    if (call(cli, "GET", "/v1/policies/%s", args->v[0], NULL, &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json)
        hf_show_json(json_object_get(a.body, "policy"));
    else
        print_policy(cli, a.body);
    return HF_EXIT_OK;
}

static const struct hf_verb show_verb = {
    .name = "show",
    .summary = "show one policy",
    .args = "NAME",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_POLICY,
    .details = "--json prints the document alone, as `policy set NAME -` takes it.",
    .examples = "holdfast policy show models\n"
                "holdfast policy show models --json | jq '.allow_out += [\"x.example\"]' | holdfast policy "
                "set models -",
    .run = run_show,
};

/* ---- set ---- */

static const struct hf_opt set_opts[] = {
    {"allow", 0, "HOST", "an address, CIDR, domain or *.domain; may be repeated", NULL},
    {"deny", 0, "CIDR", "an address or CIDR; may be repeated", NULL},
    {0},
};

static int set_body(const struct hf_args *a, json_t **ret, struct hf_err *err)
{
    json_t *allow = hf_network_list(a, "allow"), *deny = hf_network_list(a, "deny");
    bool options = allow || deny;
    if (!options && a->n == 2)
        return hf_network_file(a->v[1], ret, err);
    *ret = json_object();
    if (allow)
        (void)json_object_set_new(*ret, "allow_out", allow);
    if (deny)
        (void)json_object_set_new(*ret, "deny_out", deny);
    if (options && a->n == 1)
        return 0;
    return hf_err_set(err, -EINVAL,
                      options ? "either FILE or --allow and --deny, not both"
                              : "say what is in it: FILE (- for stdin), or --allow and --deny");
}

static int run_set(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    json_auto_t *body = NULL;
    if (set_body(args, &body, &err) < 0)
        return hf_cli_usage(cli, args->verb, "%s", err.msg);
    if (call(cli, "PUT", "/v1/policies/%s", args->v[0], body, &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json)
        hf_show_json(a.body);
    else
        hf_cli_say(cli, "policy %s is version %lld, in force for %lld sandboxes", args->v[0],
                   (long long)json_integer_value(json_object_get(a.body, "version")),
                   (long long)json_integer_value(json_object_get(a.body, "sandboxes")));
    return HF_EXIT_OK;
}

static const struct hf_verb set_verb = {
    .name = "set",
    .summary = "make or replace a policy; all its sandboxes follow at once",
    .args = "NAME [FILE]",
    .min_args = 1,
    .max_args = 2,
    .complete = HF_COMPLETE_POLICY,
    .opts = set_opts,
    .details =
        "FILE is a JSON object with allow_out, deny_out and rules (docs/network.md); - reads stdin. The\n"
        "policy is replaced as a whole, for the sandboxes that are bound to it as well, open connections\n"
        "included. Nothing is changed when it can't be put in force everywhere.",
    .examples = "holdfast policy set models --allow api.model.example\n"
                "holdfast policy set crawl crawl.json",
    .run = run_set,
};

/* ---- rm ---- */

static int run_rm(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    if (call(cli, "DELETE", "/v1/policies/%s", args->v[0], NULL, &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    return HF_EXIT_OK;
}

static const struct hf_verb rm_verb = {
    .name = "rm",
    .alias = "delete",
    .summary = "remove a policy that no sandbox is bound to",
    .args = "NAME",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_POLICY,
    .examples = "holdfast policy rm crawl",
    .run = run_rm,
};

/* ---- test ---- */

static const struct hf_opt test_opts[] = {
    {"sandbox", 0, "ID", "ask the policy that is in force for this sandbox", NULL},
    {"method", 'X', "METHOD", "the request's method (default GET)", NULL},
    {0},
};

static int run_test(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    const char *sandbox = hf_arg(args, "sandbox"), *method = hf_arg(args, "method");
    if ((sandbox != NULL) == (args->n == 2))
        return hf_cli_usage(cli, args->verb, "give a policy's NAME and a URL, or --sandbox ID and a URL");
    json_auto_t *body =
        json_pack("{s:s, s:s}", "url", args->v[args->n - 1], "method", method ? method : "GET");
    if (!body)
        return hf_cli_usage(cli, args->verb, "the URL is not UTF-8");
    int r = sandbox ? call(cli, "POST", "/v1/sandboxes/%s/network/test", sandbox, body, &a, &err)
                    : call(cli, "POST", "/v1/policies/%s/test", args->v[0], body, &a, &err);
    if (r < 0)
        return hf_cli_fail(cli, &err);
    return hf_network_show_verdict(cli, a.body);
}

static const struct hf_verb test_verb = {
    .name = "test",
    .summary = "what would happen to a URL, and which rule decides",
    .args = "[NAME] URL",
    .min_args = 1,
    .max_args = 2,
    .complete = HF_COMPLETE_POLICY,
    .opts = test_opts,
    .details =
        "Nothing is sent and no name is resolved. A policy is judged as for a sandbox that is bound to it\n"
        "alone. Ends with 0 for allow and 1 for deny.",
    .examples = "holdfast policy test models https://api.model.example/v1/chat -X POST\n"
                "holdfast policy test --sandbox $id http://169.254.169.254/",
    .run = run_test,
};

static const struct hf_verb *const subs[] = {&ls_verb, &show_verb, &set_verb, &rm_verb, &test_verb, NULL};

const struct hf_verb hf_verb_policy = {
    .name = "policy",
    .summary = "named network policies that many sandboxes share",
    .details =
        "A policy is a list of what may be reached. Sandboxes are bound to policies when they are made\n"
        "(`sandbox create --policy NAME`), and follow every later change.",
    .examples = "holdfast policy set models --allow api.model.example\n"
                "holdfast sandbox create --policy models",
    .sub = subs,
};
