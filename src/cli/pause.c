/* holdfast sandbox pause|resume: stops sandboxes where they are, and lets them go on. */
#include "base/text.h"
#include "cli/args.h"
#include "cli/client.h"
#include "cli/show.h"
#include "cli/url.h"

static const struct hf_opt pause_opts[] = {
    {"cold", 'c', NULL, "save the memory to the disk at once and free it, instead of after a while", NULL},
    {"disk-only", 'd', NULL, "keep the files only: the processes end, a resume starts afresh", NULL},
    {0},
};

static const struct hf_opt resume_opts[] = {
    {"timeout", 't', "TIME", "how long it lives from now, as in 10m or 2h (default 5m)", NULL},
    {0},
};

/* POSTs body to /sandboxes/<id>/<what> for each id, and prints the ids that worked. */
static int post_all(struct hf_cli *cli, const struct hf_args *args, const char *what, json_t *body)
{
    json_auto_t *done = json_array();
    int code = HF_EXIT_OK;
    for (size_t i = 0; i < args->n; i++) {
        struct hf_err err = {0};
        hf_auto_answer struct hf_answer a = {0};
        hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
        int r = hf_url_path(&path, "/sandboxes/%s/", args->v[i]);
        if (r == 0)
            r = hf_buf_add(&path, what, strlen(what) + 1);
        if (r < 0)
            return hf_cli_usage(cli, args->verb, "the sandbox id is too long");
        if (hf_api(cli, "POST", path.p, body, &a, &err) < 0) {
            code = hf_cli_fail(cli, &err);
            continue;
        }
        (void)json_array_append_new(done, json_string(args->v[i]));
        if (!cli->json)
            (void)puts(args->v[i]);
    }
    if (cli->json)
        hf_show_json(done);
    return code;
}

static int run_pause(struct hf_cli *cli, const struct hf_args *args)
{
    bool cold = hf_arg(args, "cold") != NULL, disk = hf_arg(args, "disk-only") != NULL;
    if (cold && disk)
        return hf_cli_usage(cli, args->verb, "either --cold or --disk-only, not both");
    json_auto_t *body = json_pack("{s:b}", "memory", !disk);
    if (cold)
        (void)json_object_set_new(body, "depth", json_string("cold"));
    return post_all(cli, args, "pause", body);
}

static int run_resume(struct hf_cli *cli, const struct hf_args *args)
{
    const char *timeout = hf_arg(args, "timeout");
    uint64_t s = 300;
    if (timeout && (hf_parse_seconds(timeout, &s) < 0 || s == 0 || s > INT32_MAX))
        return hf_cli_usage(cli, args->verb, "--timeout takes a time such as 10m or 2h, not '%s'", timeout);
    json_auto_t *body = json_pack("{s:I}", "timeout", (json_int_t)s);
    return post_all(cli, args, "resume", body);
}

const struct hf_verb hf_verb_sandbox_pause = {
    .name = "pause",
    .summary = "stop sandboxes where they are; nothing in them is lost",
    .args = "ID...",
    .min_args = 1,
    .max_args = 1000,
    .complete = HF_COMPLETE_SANDBOX,
    .opts = pause_opts,
    .details =
        "A paused sandbox keeps its memory for a while (setting pause_warm, 60 s) and resumes at once;\n"
        "then its memory is saved to the disk and freed. Its timeout stands still. Prints the ids.",
    .examples = "holdfast sandbox pause $id\n"
                "holdfast sandbox pause $id --cold",
    .run = run_pause,
};

const struct hf_verb hf_verb_sandbox_resume = {
    .name = "resume",
    .summary = "let paused sandboxes go on",
    .args = "ID...",
    .min_args = 1,
    .max_args = 1000,
    .complete = HF_COMPLETE_SANDBOX,
    .opts = resume_opts,
    .details = "Its processes go on where they were; with --disk-only at the pause they start afresh.",
    .examples = "holdfast sandbox resume $id --timeout 2h",
    .run = run_resume,
};
