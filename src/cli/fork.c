/* holdfast sandbox fork | rollback */
#include "base/text.h"
#include "cli/args.h"
#include "cli/client.h"
#include "cli/show.h"
#include "cli/url.h"

#define CHILDREN_MAX 100 /* the API's */

static const struct hf_opt fork_opts[] = {
    {"count", 'n', "N", "how many children (1 to 100; default 1)", NULL},
    {"timeout", 't', "TIME", "how long each lives, as in 90s, 10m, 24h (default 5m)", NULL},
    {"no-volumes", 0, NULL, "children boot from its disk, without its volumes and processes", NULL},
    {0},
};

/* Prints the ids of those that run; the others' errors go to stderr. */
static int print_children(struct hf_cli *cli, const json_t *children)
{
    int code = HF_EXIT_OK;
    size_t i;
    json_t *c;
    json_array_foreach(children, i, c)
    {
        const json_t *sandbox = json_object_get(c, "sandbox"), *error = json_object_get(c, "error");
        if (sandbox) {
            (void)puts(hf_show_str(sandbox, "sandboxID"));
            continue;
        }
        struct hf_err err = {0};
        (void)hf_err_set(&err, -EIO, "child %zu: %s", i + 1, hf_show_str(error, "message"));
        code = hf_cli_fail(cli, &err);
    }
    return code;
}

static int run_fork(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    const char *count = hf_arg(args, "count"), *timeout = hf_arg(args, "timeout");
    uint64_t n = 1, s = 300;
    if (count && (hf_parse_u64(hf_str_c(count), CHILDREN_MAX, &n) < 0 || n == 0))
        return hf_cli_usage(cli, args->verb, "--count takes a number from 1 to %d, not '%s'", CHILDREN_MAX,
                            count);
    if (timeout && (hf_parse_seconds(timeout, &s) < 0 || s == 0 || s > INT32_MAX))
        return hf_cli_usage(cli, args->verb, "--timeout takes a time such as 90s, 10m or 24h, not '%s'",
                            timeout);
    if (hf_url_path(&path, "/sandboxes/%s/fork", args->v[0]) < 0)
        return hf_cli_usage(cli, args->verb, "the sandbox id is too long");
    json_auto_t *body = json_pack("{s:I, s:I, s:s}", "count", (json_int_t)n, "timeout", (json_int_t)s,
                                  "volumes", hf_arg(args, "no-volumes") ? "none" : "same");
    if (hf_api(cli, "POST", path.p, body, &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (!cli->json)
        return print_children(cli, a.body);
    hf_show_json(a.body);
    return HF_EXIT_OK;
}

const struct hf_verb hf_verb_sandbox_fork = {
    .name = "fork",
    .summary = "make copies of a running sandbox, processes and all, and print their ids",
    .args = "ID",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SANDBOX,
    .opts = fork_opts,
    .details = "The sandbox itself goes on. All children come from the same moment.",
    .examples = "holdfast sandbox fork $id --count 8 --timeout 1h",
    .run = run_fork,
};

static int run_rollback(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    json_auto_t *body = json_pack("{s:s}", "snapshot", args->v[1]);
    if (!body || hf_url_path(&path, "/v1/sandboxes/%s/rollback", args->v[0]) < 0)
        return hf_cli_usage(cli, args->verb, "the sandbox id or the snapshot's name can't be sent");
    if (hf_api(cli, "POST", path.p, body, &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json)
        hf_show_json(a.body);
    else
        (void)puts(hf_show_str(a.body, "sandbox_id"));
    return HF_EXIT_OK;
}

const struct hf_verb hf_verb_sandbox_rollback = {
    .name = "rollback",
    .summary = "bring a sandbox back to one of its snapshots, under the same id",
    .args = "ID SNAPSHOT",
    .min_args = 2,
    .max_args = 2,
    .complete = HF_COMPLETE_SANDBOX,
    .details =
        "What happened in it since is lost; its volumes are not brought back. When the snapshot can't be\n"
        "restored the sandbox goes on as it is.",
    .examples = "holdfast sandbox rollback $id before-upgrade",
    .run = run_rollback,
};
