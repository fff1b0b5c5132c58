/* Completion scripts, written from the table of commands, so that they can't drift from it. Identifiers are
 * asked from the daemon at the moment of the key press. */
#include "cli/cli.h"

typedef void (*visit_fn)(const struct hf_verb *const *path, size_t n);

static void walk(const struct hf_verb **path, size_t n, visit_fn fn)
{
    fn(path, n);
    for (const struct hf_verb *const *v = path[n - 1]->sub; v && *v; v++) {
        path[n] = *v;
        if (!((*v)->flags & HF_VERB_HIDDEN))
            walk(path, n + 1, fn);
    }
}

static void walk_all(visit_fn fn)
{
    const struct hf_verb *path[4] = {&hf_verb_root};
    walk(path, 1, fn);
}

/* The words of a path below the program, joined. */
static void put_path(const struct hf_verb *const *path, size_t n, const char *sep)
{
    for (size_t i = 1; i < n; i++)
        (void)printf("%s%s", i > 1 ? sep : "", path[i]->name);
}

static void put_subs(const struct hf_verb *verb)
{
    for (const struct hf_verb *const *v = verb->sub; v && *v; v++)
        if (!((*v)->flags & HF_VERB_HIDDEN))
            (void)printf(" %s", (*v)->name);
}

static void put_options(const struct hf_opt *opts)
{
    for (; opts && opts->name; opts++) {
        (void)printf(" --%s", opts->name);
        if (opts->letter)
            (void)printf(" -%c", opts->letter);
    }
}

/* The command that prints candidates for a verb's positional arguments; NULL when there is none. */
static const char *lister(enum hf_complete c)
{
    switch (c) {
    case HF_COMPLETE_SANDBOX:
        return "holdfast sandbox ls --quiet";
    case HF_COMPLETE_SESSION:
        return "holdfast session ls --quiet";
    case HF_COMPLETE_TEMPLATE:
        return "holdfast template ls --quiet";
    case HF_COMPLETE_SNAPSHOT:
        return "holdfast snapshot ls --quiet";
    case HF_COMPLETE_POLICY:
        return "holdfast policy ls --quiet";
    case HF_COMPLETE_KEY:
        return "holdfast key ls --quiet";
    case HF_COMPLETE_SHELL:
        return "echo bash zsh fish";
    case HF_COMPLETE_VERB:
    case HF_COMPLETE_FILE:
    case HF_COMPLETE_NONE:
        break;
    }
    return NULL;
}

/* ---- bash; zsh reads the same script through bashcompinit, where `path` and `words` are special ---- */

static void bash_case(const struct hf_verb *const *path, size_t n)
{
    const struct hf_verb *verb = path[n - 1];
    (void)printf("        '");
    put_path(path, n, " ");
    (void)printf("') cand='");
    put_subs(verb);
    if (verb->complete == HF_COMPLETE_VERB)
        put_subs(&hf_verb_root);
    put_options(verb->opts);
    put_options(hf_global_opts);
    (void)printf("'");
    const char *list = lister(verb->complete);
    if (list)
        (void)printf("; list='%s'", list);
    if (verb->complete == HF_COMPLETE_FILE || strcmp(verb->name, "cp") == 0)
        (void)printf("; files=1");
    (void)printf(" ;;\n");
}

/* Values of options: known words, or files for everything else that takes one. */
static void bash_values(const struct hf_verb *const *path, size_t n)
{
    for (const struct hf_opt *o = path[n - 1]->opts; o && o->name; o++) {
        if (!o->metavar)
            continue;
        (void)printf("        '");
        put_path(path, n, " ");
        (void)printf(" --%s') values='%s' ;;\n", o->name, o->choices ? o->choices : "");
    }
}

/* An alias is one in its group only: what is `info` in one may be an alias of `show` in another. */
static void bash_aliases(const struct hf_verb *const *path, size_t n)
{
    if (!path[n - 1]->alias)
        return;
    (void)printf("            '");
    put_path(path, n - 1, " ");
    (void)printf("%s%s') word=%s ;;\n", n > 2 ? " " : "", path[n - 1]->alias, path[n - 1]->name);
}

static void bash_groups(const struct hf_verb *const *path, size_t n)
{
    for (const struct hf_verb *const *v = path[n - 1]->sub; v && *v; v++) {
        (void)printf("            '");
        put_path(path, n, " ");
        (void)printf("%s%s') at=\"${at:+$at }$word\" ;;\n", n > 1 ? " " : "", (*v)->name);
    }
}

static void put_bash(void)
{
    (void)puts(
        "# holdfast: completion for bash. `holdfast completion bash > /etc/bash_completion.d/holdfast`\n"
        "_holdfast() {\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
        "    local at='' word cand='' list='' files='' values='' i\n"
        "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
        "        word=${COMP_WORDS[i]}\n"
        "        case \"${at:+$at }$word\" in");
    walk_all(bash_aliases);
    (void)puts("        esac\n"
               "        case \"${at:+$at }$word\" in");
    walk_all(bash_groups);
    (void)puts("        esac\n"
               "    done\n"
               "    values=none\n"
               "    case \"$at $prev\" in");
    walk_all(bash_values);
    (void)puts("    esac\n"
               "    if [ \"$values\" != none ]; then\n"
               "        if [ -n \"$values\" ]; then COMPREPLY=($(compgen -W \"$values\" -- \"$cur\"))\n"
               "        else COMPREPLY=($(compgen -f -- \"$cur\")); fi\n"
               "        return\n"
               "    fi\n"
               "    case $at in");
    walk_all(bash_case);
    (void)puts("    esac\n"
               "    if [ -n \"$list\" ] && [ \"${cur:0:1}\" != - ]; then\n"
               "        cand=\"$cand $(eval \"$list\" 2>/dev/null)\"\n"
               "    fi\n"
               "    COMPREPLY=($(compgen -W \"$cand\" -- \"$cur\"))\n"
               "    if [ -n \"$files\" ]; then COMPREPLY+=($(compgen -f -- \"$cur\")); fi\n"
               "}\n"
               "complete -o filenames -F _holdfast holdfast");
}

/* ---- fish ---- */

static void fish_quoted(const char *s)
{
    (void)putchar('\'');
    for (; *s; s++)
        (void)printf(*s == '\'' || *s == '\\' ? "\\%c" : "%c", *s);
    (void)putchar('\'');
}

/* "holdfast is at this path": the group words were seen, and no further command word of the group. */
static void fish_condition(const struct hf_verb *const *path, size_t n)
{
    (void)printf("complete -c holdfast -n '__holdfast_at");
    for (size_t i = 1; i < n; i++)
        (void)printf(" %s", path[i]->name);
    (void)printf("'");
}

static void fish_verb(const struct hf_verb *const *path, size_t n)
{
    const struct hf_verb *verb = path[n - 1];
    for (const struct hf_verb *const *v = verb->sub; v && *v; v++) {
        fish_condition(path, n);
        (void)printf(" -f -a %s -d ", (*v)->name);
        fish_quoted((*v)->summary);
        (void)putchar('\n');
    }
    for (const struct hf_opt *o = verb->opts; o && o->name; o++) {
        fish_condition(path, n);
        (void)printf(" -l %s", o->name);
        if (o->letter)
            (void)printf(" -s %c", o->letter);
        if (o->choices)
            (void)printf(" -x -a '%s'", o->choices);
        else if (o->metavar)
            (void)printf(" -r");
        (void)printf(" -d ");
        fish_quoted(o->help);
        (void)putchar('\n');
    }
    const char *list = lister(verb->complete);
    if (!list)
        return;
    fish_condition(path, n);
    (void)printf(" %s-a '(%s 2>/dev/null | string split \" \")'\n",
                 strcmp(verb->name, "cp") == 0 ? "" : "-f ", list);
}

static void put_fish(void)
{
    (void)puts("# holdfast: completion for fish. `holdfast completion fish > "
               "~/.config/fish/completions/holdfast.fish`\n"
               "function __holdfast_at\n"
               "    set -l words (commandline -opc | string match -v -- '-*')\n"
               "    set -e words[1]\n"
               "    set words (string replace -r '^sbx$' sandbox -- $words)\n"
               "    test (count $words) -ge (count $argv); or return 1\n"
               "    for i in (seq (count $argv))\n"
               "        test \"$words[$i]\" = \"$argv[$i]\"; or return 1\n"
               "    end\n"
               "    switch \"$argv\"\n"
               "        case '' sandbox session template key\n"
               "            test (count $words) -eq (count $argv)\n"
               "    end\n"
               "end");
    for (const struct hf_opt *o = hf_global_opts; o->name; o++) {
        (void)printf("complete -c holdfast -l %s%s -d ", o->name, o->metavar ? " -x" : "");
        fish_quoted(o->help);
        (void)putchar('\n');
    }
    walk_all(fish_verb);
}

static int run(struct hf_cli *cli, const struct hf_args *args)
{
    const char *shell = args->v[0];
    if (strcmp(shell, "bash") == 0) {
        put_bash();
    } else if (strcmp(shell, "zsh") == 0) {
        (void)puts("# holdfast: completion for zsh. In .zshrc, after compinit: source <(holdfast completion "
                   "zsh)\nautoload -U +X bashcompinit && bashcompinit");
        put_bash();
    } else if (strcmp(shell, "fish") == 0) {
        put_fish();
    } else {
        return hf_cli_usage(cli, args->verb, "no completion for '%s'; there is one for bash, zsh and fish",
                            shell);
    }
    return HF_EXIT_OK;
}

const struct hf_verb hf_verb_completion = {
    .name = "completion",
    .summary = "print a completion script for a shell",
    .args = "bash|zsh|fish",
    .min_args = 1,
    .max_args = 1,
    .complete = HF_COMPLETE_SHELL,
    .details = "The script is made from the table of commands of this very program; print it again after an\n"
               "upgrade.",
    .examples = "source <(holdfast completion bash)\n"
                "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
    .run = run,
};
