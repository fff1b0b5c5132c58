/* --help and `holdfast help [command]`. */
#include "cli/args.h"

#define LEFT_WIDTH 30

static void print_path(FILE *out, const struct hf_verb *const *path, size_t n)
{
    for (size_t i = 0; i < n; i++)
        (void)fprintf(out, "%s%s", i ? " " : "", path[i]->name);
}

static void print_left(FILE *out, const char *left, const char *right)
{
    int n = (int)strlen(left);
    if (n > LEFT_WIDTH - 2)
        (void)fprintf(out, "  %s\n  %*s%s\n", left, LEFT_WIDTH, "", right);
    else
        (void)fprintf(out, "  %-*s%s\n", LEFT_WIDTH, left, right);
}

static void print_opts(FILE *out, const char *title, const struct hf_opt *opts)
{
    if (!opts || !opts->name)
        return;
    (void)fprintf(out, "\n%s\n", title);
    for (; opts->name; opts++) {
        char letter[5] = "    ";
        if (opts->letter)
            (void)snprintf(letter, sizeof(letter), "-%c, ", opts->letter);
        hf_auto_free char *left = hf_xasprintf("%s--%s%s%s", letter, opts->name, opts->metavar ? " " : "",
                                               opts->metavar ? opts->metavar : "");
        print_left(out, left, opts->help);
    }
}

static void print_subs(FILE *out, const struct hf_verb *verb)
{
    (void)fputs("\nCommands:\n", out);
    for (const struct hf_verb *const *v = verb->sub; *v; v++) {
        if ((*v)->flags & HF_VERB_HIDDEN)
            continue;
        hf_auto_free char *left =
            (*v)->sub || !(*v)->args ? hf_xstrdup((*v)->name) : hf_xasprintf("%s %s", (*v)->name, (*v)->args);
        print_left(out, left, (*v)->summary);
    }
}

/* Every line of a paragraph, indented. */
static void print_block(FILE *out, const char *text, const char *indent)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        (void)fprintf(out, "%s%.*s\n", n ? indent : "", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

void hf_help_print(FILE *out, const struct hf_verb *const *path, size_t n)
{
    const struct hf_verb *verb = path[n - 1];
    print_path(out, path, n);
    (void)fprintf(out, ": %s\n\nUsage: ", verb->summary);
    print_path(out, path, n);
    if (verb->opts && verb->opts->name)
        (void)fputs(" [options]", out);
    if (verb->sub)
        (void)fputs(" COMMAND ...", out);
    else if (verb->args)
        (void)fprintf(out, " %s", verb->args);
    (void)fputc('\n', out);
    if (verb->alias)
        (void)fprintf(out, "Alias: %s\n", verb->alias);
    if (verb->details) {
        (void)fputc('\n', out);
        print_block(out, verb->details, "");
    }
    if (verb->sub)
        print_subs(out, verb);
    print_opts(out, "Options:", verb->opts);
    print_opts(out, "Options of every command:", hf_global_opts);
    if (verb->examples) {
        (void)fputs("\nExamples:\n", out);
        print_block(out, verb->examples, "  ");
    }
    if (verb->sub)
        (void)fprintf(out, "\n`holdfast help%s%s COMMAND` says more about one command.\n", n > 1 ? " " : "",
                      n > 1 ? verb->name : "");
}

static int run_help(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    struct hf_parsed p;
    /* Walk the words by the parser itself: aliases and "did you mean" come with it. */
    char *argv[HF_VERB_DEPTH + 2] = {NULL};
    char name[] = "holdfast", help[] = "--help";
    int argc = 0;
    argv[argc++] = name;
    for (size_t i = 0; i < args->n; i++)
        argv[argc++] = args->v[i];
    argv[argc++] = help;
    int r = hf_args_parse(&hf_verb_root, argc, argv, &p, &err);
    if (r == 0 || p.help)
        hf_help_print(stdout, p.path, p.depth);
    hf_parsed_done(&p);
    return r < 0 ? hf_cli_usage(cli, NULL, "%s", err.msg) : HF_EXIT_OK;
}

const struct hf_verb hf_verb_help = {
    .name = "help",
    .summary = "show how a command is used",
    .args = "[COMMAND [SUBCOMMAND]]",
    .max_args = HF_VERB_DEPTH - 1,
    .complete = HF_COMPLETE_VERB,
    .examples = "holdfast help sandbox exec",
    .run = run_help,
};
