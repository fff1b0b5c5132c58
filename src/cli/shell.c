/* holdfast sandbox shell: a terminal in a sandbox. */
#include <signal.h>

#include "cli/args.h"
#include "cli/proc.h"
#include "cli/sandbox.h"
#include "cli/show.h"
#include "cli/term.h"

const struct hf_opt hf_shell_opts[] = {
    {"user", 'u', "NAME", "log in as this user (default: the template's, usually `user`)", NULL},
    {"cwd", 'w', "DIR", "where it starts (default: the user's home)", NULL},
    {"env", 'e', "NAME=VALUE", "an environment variable; may be repeated", NULL},
    {"no-keep-alive", 0, NULL, "let the sandbox's timeout end it under the open shell", NULL},
    {0},
};

/* What makes full-screen programs work; the caller's --env wins. */
static json_t *environment(json_t *given)
{
    const char *term = getenv("TERM"), *color = getenv("COLORTERM");
    json_t *env = json_object();
    (void)json_object_set_new(env, "TERM", json_string(term && *term ? term : "xterm-256color"));
    (void)json_object_set_new(env, "LANG", json_string("C.UTF-8"));
    (void)json_object_set_new(env, "LC_ALL", json_string("C.UTF-8"));
    if (color && *color)
        (void)json_object_set_new(env, "COLORTERM", json_string(color));
    if (given)
        (void)json_object_update(env, given);
    return env;
}

static int code_of(const struct hf_proc_result *res)
{
    if (res->left)
        return HF_EXIT_OK;
    if (res->output_closed)
        return HF_EXIT_SIGNAL + SIGPIPE;
    if (!res->ended)
        return res->interrupted ? HF_EXIT_SIGNAL + res->interrupted : HF_EXIT_INFRA;
    return res->exited ? res->exit_code & 0xff : HF_EXIT_SIGNAL + (res->signal ? res->signal : SIGKILL);
}

static int run_terminal(struct hf_cli *cli, const struct hf_box *box, const struct hf_proc_spec *spec)
{
    struct hf_err err = {0};
    struct hf_proc_result res;
    int r = hf_term_raw(STDIN_FILENO);
    if (r < 0)
        return hf_cli_fail(cli, (hf_err_set(&err, r, "cannot use the terminal: %s", strerror(-r)), &err));
    r = hf_proc_run(cli, box, spec, &res, &err);
    hf_term_restore();
    if (r < 0) {
        (void)fputc('\n', stderr);
        return hf_exec_fail(cli, &err);
    }
    if (res.left)
        hf_cli_say(cli, "\nleft; the shell still runs: `holdfast sandbox exec %s -- kill %u` ends it",
                   box->id, res.pid);
    return code_of(&res);
}

int hf_shell_in(struct hf_cli *cli, const struct hf_args *args, const char *id)
{
    static char interactive[] = "-i", login[] = "-l";
    char *bash_args[] = {interactive, login};
    struct hf_err err = {0};
    json_t *given = NULL;
    hf_auto_box struct hf_box box = {0};
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return hf_cli_usage(cli, args->verb, "a shell needs a terminal; scripts use `exec`");
    if (hf_show_pairs(args, "env", &given, &err) < 0)
        return hf_cli_usage(cli, args->verb, "%s", err.msg);
    json_t *env = environment(given);
    json_decref(given);
    struct hf_proc_spec spec = {
        .cmd = args->n_command ? args->command[0] : "/bin/bash",
        .args = args->n_command ? args->command + 1 : bash_args,
        .n_args = args->n_command ? args->n_command - 1 : HF_ARRAY_LEN(bash_args),
        .envs = env,
        .cwd = hf_arg(args, "cwd"),
        .pty = true,
        .forward_stdin = true,
        .keep_alive = !hf_arg(args, "no-keep-alive"),
    };
    int code;
    if (hf_box_open(cli, id, &box, &err) < 0) {
        code = hf_exec_fail(cli, &err);
    } else {
        box.user = hf_arg(args, "user");
        code = run_terminal(cli, &box, &spec);
    }
    json_decref(env);
    return code;
}

static int run(struct hf_cli *cli, const struct hf_args *args)
{
    return hf_shell_in(cli, args, args->v[0]);
}

const struct hf_verb hf_verb_sandbox_shell = {
    .name = "shell",
    .summary = "open a terminal in a sandbox",
    .args = "ID [--] [COMMAND [ARG...]]",
    .min_args = 1,
    .max_args = 1,
    .flags = HF_VERB_COMMAND,
    .complete = HF_COMPLETE_SANDBOX,
    .opts = hf_shell_opts,
    .details =
        "COMMAND is `/bin/bash -i -l` when not given. While the terminal is open the sandbox does not time\n"
        "out. Enter ~ . leaves it when nothing answers any more. Exit code: as of exec.",
    .examples = "holdfast sandbox shell $id\n"
                "holdfast sandbox shell $id --user root -- top",
    .run = run,
};
