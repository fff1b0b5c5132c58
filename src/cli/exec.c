/* holdfast sandbox exec: a command in a sandbox as if it ran here. */
#include <signal.h>
#include <sys/stat.h>

#include "base/text.h"
#include "cli/args.h"
#include "cli/proc.h"
#include "cli/sandbox.h"
#include "cli/show.h"

#define COLLECT_MAX (64u * 1024u * 1024u) /* --json: bytes of each stream that are kept */

const struct hf_opt hf_exec_opts[] = {
    {"command", 'c', "TEXT", "run TEXT by `/bin/bash -l -c` in place of COMMAND", NULL},
    {"user", 'u', "NAME", "run it as this user (default: the template's, usually `user`)", NULL},
    {"cwd", 'w', "DIR", "where it starts (default: the user's home)", NULL},
    {"env", 'e', "NAME=VALUE", "an environment variable; may be repeated", NULL},
    {"timeout", 't', "TIME", "end it after this time, as in 30s or 5m (default: none)", NULL},
    {"stdin", 'i', NULL, "forward stdin even when it is a terminal", NULL},
    {"no-stdin", 'n', NULL, "do not read stdin (for loops in scripts)", NULL},
    {"keep-alive", 'k', NULL, "the sandbox does not time out while the command runs", NULL},
    {"detach", 'd', NULL, "print the process's number and leave it running", NULL},
    {0},
};

struct sink {
    struct hf_buf out, err;
    bool cut;
};

static int on_output(void *arg, enum hf_proc_stream which, const char *p, size_t n)
{
    struct sink *s = arg;
    struct hf_buf *b = which == HF_PROC_STDERR ? &s->err : &s->out;
    size_t room = b->max - b->n;
    s->cut |= n > room;
    return hf_buf_add(b, p, HF_MIN(n, room));
}

int hf_exec_fail(struct hf_cli *cli, const struct hf_err *err)
{
    (void)hf_cli_fail(cli, err);
    return HF_EXIT_INFRA;
}

/* Bytes as JSON text; what is no UTF-8 is replaced, since the reader asked for text. */
static json_t *text_of(const struct hf_buf *b)
{
    json_t *j = json_stringn(b->p ? b->p : "", b->n);
    if (j)
        return j;
    hf_auto_buf struct hf_buf clean = HF_BUF_INIT(3 * (size_t)COLLECT_MAX);
    for (size_t i = 0; i < b->n;) {
        size_t len = 1;
        unsigned char c = (unsigned char)b->p[i];
        size_t want = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
        json_t *one = want <= b->n - i ? json_stringn(b->p + i, want) : NULL;
        if (one)
            len = want;
        if ((one ? hf_buf_add(&clean, b->p + i, len) : hf_buf_adds(&clean, "\xef\xbf\xbd")) < 0)
            break;
        json_decref(one);
        i += len;
    }
    return json_stringn(clean.p ? clean.p : "", clean.n);
}

static void print_json(const struct hf_proc_result *res, const struct sink *s, int code)
{
    json_t *j = json_pack("{s:I, s:i, s:o?, s:b, s:o, s:o, s:b}", "pid", (json_int_t)res->pid, "exit_code",
                          code, "signal", res->signal ? json_integer(res->signal) : json_null(), "timed_out",
                          (int)res->timed_out, "stdout", text_of(&s->out), "stderr", text_of(&s->err),
                          "truncated", (int)(s->cut || res->missed));
    hf_show_json(j);
    json_decref(j);
}

/* The code that this program ends with; docs/cli.md. */
static int code_of(struct hf_cli *cli, const struct hf_proc_result *res)
{
    if (res->output_closed)
        return HF_EXIT_SIGNAL + SIGPIPE;
    if (res->timed_out) {
        hf_cli_say(cli, "holdfast: the command was ended, its --timeout is over");
        return HF_EXIT_TIMEOUT;
    }
    if (!res->ended)
        return res->interrupted ? HF_EXIT_SIGNAL + res->interrupted : HF_EXIT_INFRA;
    if (res->missed) {
        hf_cli_say(cli, "holdfast: %llu bytes of output were lost on the way",
                   (unsigned long long)res->missed);
        if (res->exited && res->exit_code == 0)
            return HF_EXIT_INFRA; /* whoever reads the output must not take it for whole */
    }
    if (res->exited)
        return res->exit_code & 0xff;
    return HF_EXIT_SIGNAL + (res->signal ? res->signal : SIGKILL);
}

/* Pipes and files are input that somebody meant for the command; a terminal only with --stdin. */
static bool stdin_is_input(const struct hf_args *a)
{
    struct stat st;
    if (hf_arg(a, "no-stdin") || hf_arg(a, "detach"))
        return false;
    if (hf_arg(a, "stdin"))
        return true;
    return fstat(STDIN_FILENO, &st) == 0 &&
           (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode) || S_ISSOCK(st.st_mode));
}

static int fill_spec(const struct hf_args *a, struct hf_proc_spec *spec, json_t **envs, char *bash_args[3],
                     struct hf_err *err)
{
    static char login[] = "-l", command[] = "-c";
    const char *text = hf_arg(a, "command"), *timeout = hf_arg(a, "timeout");
    uint64_t s = 0;
    if ((text != NULL) == (a->n_command > 0))
        return hf_err_set(err, -EINVAL,
                          text ? "either COMMAND or --command, not both" : "'exec' needs a COMMAND");
    if (timeout && (hf_parse_seconds(timeout, &s) < 0 || !s || s > INT32_MAX))
        return hf_err_set(err, -EINVAL, "--timeout takes a time such as 30s or 5m, not '%s'", timeout);
    if (timeout && hf_arg(a, "detach"))
        return hf_err_set(err, -EINVAL, "--timeout needs somebody who waits; it does not go with --detach");
    if (text) {
        bash_args[0] = login;
        bash_args[1] = command;
        bash_args[2] = (char *)text; /* the array is only read */
    }
    spec->cmd = text ? "/bin/bash" : a->command[0];
    spec->args = text ? bash_args : a->command + 1;
    spec->n_args = text ? 3 : a->n_command - 1;
    spec->cwd = hf_arg(a, "cwd");
    spec->timeout_ms = s * 1000;
    spec->detach = hf_arg(a, "detach") != NULL;
    spec->keep_alive = hf_arg(a, "keep-alive") != NULL;
    spec->forward_stdin = stdin_is_input(a);
    return hf_show_pairs(a, "env", envs, err);
}

static int run_in_box(struct hf_cli *cli, const struct hf_box *box, struct hf_proc_spec *spec)
{
    struct hf_err err = {0};
    struct hf_proc_result res;
    struct sink sink = {0};
    bool collect = cli->json && !spec->detach;
    sink.out = sink.err = HF_BUF_INIT(COLLECT_MAX);
    spec->output = collect ? on_output : NULL;
    spec->arg = &sink;
    int code, r = hf_proc_run(cli, box, spec, &res, &err);
    if (r < 0) {
        code = hf_exec_fail(cli, &err);
    } else if (spec->detach && res.pid) {
        (void)printf(cli->json ? "{\"pid\":%u}\n" : "%u\n", res.pid);
        code = HF_EXIT_OK;
    } else {
        code = code_of(cli, &res);
        if (collect)
            print_json(&res, &sink, code);
    }
    hf_buf_done(&sink.out);
    hf_buf_done(&sink.err);
    return code;
}

int hf_exec_in(struct hf_cli *cli, const struct hf_args *args, const char *id)
{
    struct hf_err err = {0};
    struct hf_proc_spec spec = {0};
    char *bash_args[3];
    json_t *envs = NULL;
    hf_auto_box struct hf_box box = {0};
    if (fill_spec(args, &spec, &envs, bash_args, &err) < 0)
        return hf_cli_usage(cli, args->verb, "%s", err.msg);
    spec.envs = envs;
    int code;
    if (hf_box_open(cli, id, &box, &err) < 0) {
        code = hf_exec_fail(cli, &err);
    } else {
        box.user = hf_arg(args, "user");
        code = run_in_box(cli, &box, &spec);
    }
    json_decref(envs);
    return code;
}

static int run(struct hf_cli *cli, const struct hf_args *args)
{
    return hf_exec_in(cli, args, args->v[0]);
}

const struct hf_verb hf_verb_sandbox_exec = {
    .name = "exec",
    .summary = "run a command in a sandbox; ends with the command's exit code",
    .args = "ID [--] COMMAND [ARG...]",
    .min_args = 1,
    .max_args = 1,
    .flags = HF_VERB_COMMAND,
    .complete = HF_COMPLETE_SANDBOX,
    .opts = hf_exec_opts,
    .details =
        "COMMAND runs without a shell; --command runs a line of shell. stdin is forwarded when it is a pipe\n"
        "or a file. Ctrl-C sends SIGTERM to the command, a second one SIGKILL. If the connection breaks "
        "while\n"
        "the sandbox lives (the daemon was restarted, say), exec attaches to the command again.\n"
        "Exit code: the command's; 128 + n when signal n ended it; 124 when --timeout did; 125 when it "
        "could\n"
        "not be run or its sandbox ended meanwhile; 2 for wrong usage.",
    .examples = "holdfast sandbox exec $id -- python3 -c 'print(6 * 7)'\n"
                "holdfast sandbox exec $id -c 'cd /tmp && ls -l | wc -l'\n"
                "tar c src | holdfast sandbox exec $id -- tar x -C /home/user\n"
                "holdfast sandbox exec $id --user root -- apt-get update\n"
                "holdfast sandbox exec $id --json -- uname -r",
    .run = run,
};
