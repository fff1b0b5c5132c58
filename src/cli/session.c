/* holdfast session open | ls | info | exec | shell | close | rm */
#include "base/text.h"
#include "cli/args.h"
#include "cli/network.h"
#include "cli/sandbox.h"
#include "cli/show.h"
#include "cli/term.h"
#include "cli/url.h"

#define PAGE "100"

/* ---- lookup ---- */

/* Opens the session of a key: get or create, always with a living sandbox. Takes extra (may be NULL). */
static int open_session(struct hf_cli *cli, const char *key, json_t *extra, struct hf_answer *ret,
                        struct hf_err *err)
{
    json_t *body = extra ? extra : json_object();
    int r = json_object_set_new(body, "key", json_string(key));
    if (r < 0)
        r = hf_err_set(err, -EINVAL, "the session's key is no valid UTF-8 text");
    else
        r = hf_api(cli, "POST", "/v1/sessions", body, ret, err);
    json_decref(body);
    if (r == -EINVAL)
        hf_cli_hint(cli, "a session's key is AGENT:USER:CONVERSATION, as in coder:alice:42");
    if (r == 0 && !json_is_object(json_object_get(ret->body, "session")))
        r = hf_err_set(err, -EBADMSG, "%s answered without a session", cli->url);
    return r;
}

/* One page of the list, appended to into; next gets the cursor of the following one, "" at the end. */
static int list_page(struct hf_cli *cli, char next[1024], json_t *into, struct hf_err *err)
{
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    int r = hf_buf_adds(&path, "/v1/sessions");
    if (r == 0)
        r = hf_url_query(&path, "limit", PAGE);
    if (r == 0)
        r = hf_url_query(&path, "cursor", *next ? next : NULL);
    if (r < 0)
        return hf_err_set(err, r, "the cursor is too long");
    r = hf_api(cli, "GET", path.p, NULL, &a, err);
    if (r < 0)
        return r;
    const json_t *items = json_object_get(a.body, "sessions");
    if (!json_is_array(items))
        return hf_err_set(err, -EBADMSG, "%s answered no list of sessions", cli->url);
    (void)json_array_extend(into, (json_t *)items);
    (void)snprintf(next, 1024, "%s", hf_show_str(a.body, "next_cursor"));
    return 0;
}

/* One call on /v1/sessions/{id}{suffix}. */
static int call_on(struct hf_cli *cli, const char *name, const char *method, const char *suffix,
                   struct hf_answer *ret, struct hf_err *err)
{
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    int r = hf_url_path(&path, "/v1/sessions/%s", name);
    if (r == 0)
        r = hf_buf_adds(&path, suffix);
    if (r < 0)
        return hf_err_set(err, r, "the session's name is too long");
    r = hf_api(cli, method, path.p, NULL, ret, err);
    if (r == -ENOENT && !*cli->hint)
        hf_cli_hint(cli,
                    "a key has the form AGENT:USER:CONVERSATION; `holdfast session ls` lists the sessions");
    return r;
}

/* The key of a session that is named by key or id; malloc'ed. */
static int find_key(struct hf_cli *cli, const char *name, char **ret, struct hf_err *err)
{
    hf_auto_answer struct hf_answer a = {0};
    if (strchr(name, ':')) {
        *ret = hf_xstrdup(name);
        return 0;
    }
    int r = call_on(cli, name, "GET", "", &a, err);
    if (r == 0)
        *ret = hf_xstrdup(hf_show_str(json_object_get(a.body, "session"), "key"));
    return r;
}

/* ---- open ---- */

static const struct hf_opt open_opts[] = {
    {"template", 0, "NAME", "template of its sandboxes (default base)", NULL},
    {"timeout", 't', "TIME", "how long its sandbox lives, as in 90s, 10m, 24h", NULL},
    {"metadata", 'm', "KEY=VALUE", "a label; may be repeated", NULL},
    HF_NETWORK_OPTS,
    {0},
};

/* sandbox: the living one, or the last with what ended it; NULL or null when there was none. */
static void print_session(const struct hf_cli *cli, const json_t *s, const json_t *sandbox)
{
    char left[HF_HUMAN_MAX];
    hf_auto_free char *metadata = hf_show_map(json_object_get(s, "metadata"));
    const char *state = hf_show_str(sandbox, "state"), *cause = hf_show_str(sandbox, "cause");
    hf_show_field(cli, "Session", "%s", hf_show_str(s, "id"));
    hf_show_field(cli, "Key", "%s", hf_show_str(s, "key"));
    hf_show_field(cli, "State", "%s", hf_show_str(s, "state"));
    hf_show_field(cli, "Sandbox", "%s", hf_show_str(sandbox, "id"));
    if (*cause && strcmp(state, "running") != 0)
        hf_show_field(cli, "Sandbox state", "%s (%s)", state, cause);
    else
        hf_show_field(cli, "Sandbox state", "%s", state);
    if (strcmp(state, "running") == 0)
        hf_show_field(cli, "Ends in", "%s", hf_show_until(sandbox, "end_at", left));
    hf_show_field(cli, "Template", "%s", hf_show_str(s, "template"));
    hf_show_field(cli, "Workspace", "%s", hf_show_str(s, "workspace_volume"));
    hf_show_field(cli, "Created", "%s", hf_show_str(s, "created_at"));
    hf_show_field(cli, "Opened", "%s", hf_show_str(s, "opened_at"));
    hf_show_field(cli, "Closed", "%s", hf_show_str(s, "closed_at"));
    hf_show_field(cli, "Metadata", "%s", metadata);
}

static int run_open(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    json_t *body = json_object(), *metadata = NULL;
    const char *timeout = hf_arg(args, "timeout"), *template = hf_arg(args, "template");
    uint64_t s = 0;
    int r = hf_show_pairs(args, "metadata", &metadata, &err);
    if (r == 0 && timeout && (hf_parse_seconds(timeout, &s) < 0 || s > INT32_MAX))
        r = hf_err_set(&err, -EINVAL, "--timeout takes a time such as 90s, 10m or 24h, not '%s'", timeout);
    if (metadata)
        (void)json_object_set_new(body, "metadata", metadata);
    if (template)
        (void)json_object_set_new(body, "template", json_string(template));
    if (timeout)
        (void)json_object_set_new(body, "timeout", json_integer((json_int_t)s));
    if (r == 0)
        r = hf_network_body(args, body, &err);
    if (r < 0) {
        json_decref(body);
        return hf_cli_usage(cli, args->verb, "%s", err.msg);
    }
    if (open_session(cli, args->v[0], body, &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    const json_t *sandbox = json_object_get(a.body, "sandbox");
    if (cli->json)
        hf_show_json(a.body);
    else if (cli->quiet)
        (void)puts(hf_show_str(sandbox, "id"));
    else
        print_session(cli, json_object_get(a.body, "session"), sandbox);
    return HF_EXIT_OK;
}

static const struct hf_verb open_verb = {
    .name = "open",
    .summary = "get or make a session, with a living sandbox",
    .args = "KEY",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SESSION,
    .opts = open_opts,
    .details =
        "KEY is AGENT:USER:CONVERSATION. The session's workspace (/workspace in its sandbox) outlives\n"
        "every sandbox: open the same key again after a sandbox was lost, and the files are there.\n"
        "--quiet prints the id of the sandbox only. What is said about the network counts for a sandbox "
        "that\n"
        "is made now, and is kept for those to come.",
    .examples = "holdfast session open coder:alice:42\n"
                "id=$(holdfast session open coder:alice:42 --quiet)",
    .run = run_open,
};

/* ---- ls, info ---- */

static const struct hf_opt ls_opts[] = {
    {"all", 'a', NULL, "all of them; without it the first " PAGE, NULL},
    {0},
};

static void print_list(const struct hf_cli *cli, const json_t *sessions)
{
    static const char *const heads[] = {"ID", "KEY", "STATE", "SANDBOX", "OPENED", "METADATA", NULL};
    struct hf_table t;
    size_t i;
    json_t *s;
    char text[HF_HUMAN_MAX];
    hf_table_init(&t, heads);
    hf_table_flag(&t, 1, HF_TABLE_FLEX);
    hf_table_flag(&t, 5, HF_TABLE_FLEX);
    json_array_foreach(sessions, i, s)
    {
        const char *state = hf_show_str(s, "state");
        hf_auto_free char *metadata = hf_show_map(json_object_get(s, "metadata"));
        hf_table_cell_color(&t, hf_show_str(s, "id"), hf_color(cli, "bold"));
        hf_table_cell(&t, hf_show_str(s, "key"));
        hf_table_cell_color(&t, state, hf_show_state_color(cli, state));
        hf_table_cell(&t, hf_show_str(s, "sandbox_id"));
        hf_auto_free char *ago = hf_xasprintf("%s ago", hf_show_since(s, "opened_at", text));
        hf_table_cell(&t, *text ? ago : "");
        hf_table_cell(&t, metadata);
    }
    hf_show_table(cli, &t);
    hf_table_done(&t);
}

static int run_ls(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    char next[1024] = "";
    json_t *all = json_array();
    int r;
    do
        r = list_page(cli, next, all, &err);
    while (r == 0 && *next && hf_arg(args, "all"));
    if (r == 0)
        hf_show_list(cli, all, "key",
                     "no sessions; `holdfast session open AGENT:USER:CONVERSATION` makes one", print_list);
    if (r == 0 && *next)
        hf_cli_say(cli, "there are more; --all lists every one");
    json_decref(all);
    return r < 0 ? hf_cli_fail(cli, &err) : HF_EXIT_OK;
}

static const struct hf_verb ls_verb = {
    .name = "ls",
    .alias = "list",
    .summary = "list the sessions",
    .opts = ls_opts,
    .details = "--quiet prints the keys only.",
    .examples = "holdfast session ls",
    .run = run_ls,
};

static int run_info(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    if (call_on(cli, args->v[0], "GET", "", &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json)
        hf_show_json(a.body);
    else
        print_session(cli, json_object_get(a.body, "session"), json_object_get(a.body, "sandbox"));
    return HF_EXIT_OK;
}

static const struct hf_verb info_verb = {
    .name = "info",
    .summary = "show one session; does not open it",
    .args = "KEY|ID",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SESSION,
    .examples = "holdfast session info coder:alice:42",
    .run = run_info,
};

/* ---- exec, shell ---- */

/* The session's sandbox, a new one when the last is gone; malloc'ed. */
static int living_sandbox(struct hf_cli *cli, const char *name, char **ret, struct hf_err *err)
{
    hf_auto_free char *key = NULL;
    hf_auto_answer struct hf_answer a = {0};
    int r = find_key(cli, name, &key, err);
    if (r == 0)
        r = open_session(cli, key, NULL, &a, err);
    if (r < 0)
        return r;
    const char *id = hf_show_str(json_object_get(a.body, "sandbox"), "id");
    if (!*id)
        return hf_err_set(err, -EBADMSG, "the session has no sandbox");
    *ret = hf_xstrdup(id);
    return 0;
}

static int run_exec(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_free char *id = NULL;
    if (living_sandbox(cli, args->v[0], &id, &err) < 0)
        return hf_exec_fail(cli, &err);
    return hf_exec_in(cli, args, id);
}

static const struct hf_verb exec_verb = {
    .name = "exec",
    .summary = "run a command in the session's sandbox, a new one if need be",
    .args = "KEY|ID [--] COMMAND [ARG...]",
    .min_args = 1,
    .max_args = 1,
    .flags = HF_VERB_COMMAND,
    .complete = HF_COMPLETE_SESSION,
    .opts = hf_exec_opts,
    .details =
        "Opens the session first (see `session open`); then as `sandbox exec`, with the same exit codes.",
    .examples = "holdfast session exec coder:alice:42 -- python3 /workspace/agent.py\n"
                "holdfast session exec coder:alice:42 --cwd /workspace -c 'git log --oneline | head'",
    .run = run_exec,
};

static int run_shell(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_free char *id = NULL;
    if (living_sandbox(cli, args->v[0], &id, &err) < 0)
        return hf_exec_fail(cli, &err);
    return hf_shell_in(cli, args, id);
}

static const struct hf_verb shell_verb = {
    .name = "shell",
    .summary = "open a terminal in the session's sandbox, a new one if need be",
    .args = "KEY|ID [--] [COMMAND [ARG...]]",
    .min_args = 1,
    .max_args = 1,
    .flags = HF_VERB_COMMAND,
    .complete = HF_COMPLETE_SESSION,
    .opts = hf_shell_opts,
    .details = "Opens the session first (see `session open`); then as `sandbox shell`.",
    .examples = "holdfast session shell coder:alice:42 --cwd /workspace",
    .run = run_shell,
};

/* ---- close, rm ---- */

static int run_close(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    if (call_on(cli, args->v[0], "POST", "/close", &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json && a.body)
        hf_show_json(a.body);
    return HF_EXIT_OK;
}

static const struct hf_verb close_verb = {
    .name = "close",
    .summary = "end the session's sandbox; the workspace stays",
    .args = "KEY|ID",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SESSION,
    .examples = "holdfast session close coder:alice:42",
    .run = run_close,
};

static const struct hf_opt rm_opts[] = {
    {"yes", 'y', NULL, "do not ask", NULL},
    {0},
};

static int run_rm(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_free char *question =
        hf_xasprintf("Delete session %s and everything in its workspace?", args->v[0]);
    if (!hf_arg(args, "yes") && !hf_term_confirm(question))
        return hf_cli_usage(cli, args->verb, "nothing was deleted; --yes does it without asking");
    if (call_on(cli, args->v[0], "DELETE", "", &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    return HF_EXIT_OK;
}

static const struct hf_verb rm_verb = {
    .name = "rm",
    .alias = "delete",
    .summary = "delete a session with its sandbox and workspace",
    .args = "KEY|ID",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SESSION,
    .opts = rm_opts,
    .examples = "holdfast session rm coder:alice:42 --yes",
    .run = run_rm,
};

static const struct hf_verb *const subs[] = {
    &open_verb, &ls_verb, &info_verb, &exec_verb, &shell_verb, &close_verb, &rm_verb, NULL,
};

const struct hf_verb hf_verb_session = {
    .name = "session",
    .summary = "sessions: what outlives the sandboxes it works in",
    .examples = "holdfast session exec coder:alice:42 -- python3 -V",
    .sub = subs,
};
