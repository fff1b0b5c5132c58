#include "cli/args.h"

#include <getopt.h>

#include "base/text.h"

const struct hf_opt hf_global_opts[] = {
    {"json", 0, NULL, "print JSON for programs", NULL},
    {"quiet", 'q', NULL, "print nothing but what was asked for; lists print identifiers only", NULL},
    {"url", 0, "URL", "the daemon's address (HOLDFAST_URL, E2B_API_URL; default http://127.0.0.1:3000)",
     NULL},
    {"api-key", 0, "KEY", "the API key (HOLDFAST_API_KEY, E2B_API_KEY)", NULL},
    {"help", 'h', NULL, "show how a command is used", NULL},
    {0},
};

/* getopt_long's values for long options start above every character. */
#define LONG_BASE 256
#define OPTS_MAX 48u

struct table {
    const struct hf_opt *opts[OPTS_MAX];
    struct option longs[OPTS_MAX + 1];
    char shorts[3 * OPTS_MAX + 3];
    size_t n;
};

static void add_opts(struct table *t, const struct hf_opt *opts)
{
    for (; opts && opts->name && t->n < OPTS_MAX; opts++) {
        t->opts[t->n] = opts;
        t->longs[t->n] = (struct option){opts->name, opts->metavar ? required_argument : no_argument, NULL,
                                         LONG_BASE + (int)t->n};
        t->n++;
    }
    t->longs[t->n] = (struct option){0};
}

static void make_table(struct table *t, const struct hf_verb *verb, bool stop_at_word)
{
    *t = (struct table){0};
    add_opts(t, hf_global_opts);
    add_opts(t, verb->opts);
    char *s = t->shorts;
    if (stop_at_word)
        *s++ = '+';
    *s++ = ':'; /* a missing value is told apart from an unknown option */
    for (size_t i = 0; i < t->n; i++)
        if (t->opts[i]->letter) {
            *s++ = t->opts[i]->letter;
            if (t->opts[i]->metavar)
                *s++ = ':';
        }
    *s = '\0';
}

static const struct hf_opt *opt_of(const struct table *t, int c)
{
    if (c >= LONG_BASE)
        return t->opts[c - LONG_BASE];
    for (size_t i = 0; i < t->n; i++)
        if (t->opts[i]->letter && t->opts[i]->letter == c)
            return t->opts[i];
    return NULL;
}

static int unknown_option(const struct table *t, const char *word, struct hf_err *err)
{
    const char *names[OPTS_MAX + 1] = {NULL};
    if (word[0] != '-' || word[1] != '-')
        return hf_err_set(err, -EINVAL, "unknown option '%s'", word);
    for (size_t i = 0; i < t->n; i++)
        names[i] = t->opts[i]->name;
    hf_auto_free char *name = hf_xstrndup(word + 2, strcspn(word + 2, "="));
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(name, names[i]) == 0)
            return hf_err_set(err, -EINVAL, "option '--%s' takes no value", name);
    const char *near = hf_nearest(name, names);
    if (near)
        return hf_err_set(err, -EINVAL, "unknown option '--%s'; did you mean '--%s'?", name, near);
    return hf_err_set(err, -EINVAL, "unknown option '--%s'", name);
}

static void remember(struct hf_parsed *p, const struct hf_opt *opt, const char *value)
{
    struct hf_args *a = &p->args;
    if (strcmp(opt->name, "help") == 0)
        p->help = true;
    a->given = hf_xrealloc(a->given, (a->n_given + 1) * sizeof(*a->given));
    a->given[a->n_given++] = (struct hf_given){opt, value ? value : ""};
}

/* Reads options until the first word that is none (or the end); optind is there afterwards. */
static int take_options(struct hf_parsed *p, const struct table *t, int argc, char **argv, struct hf_err *err)
{
    for (;;) {
        int at = optind ? optind : 1;
        int c = getopt_long(argc, argv, t->shorts, t->longs, NULL);
        if (c == -1)
            return 0;
        const char *word = at < argc ? argv[at] : "";
        char letter[3] = {'-', (char)optopt, '\0'};
        if (c == ':' || (c == '?' && optopt >= LONG_BASE)) {
            const struct hf_opt *opt = opt_of(t, optopt);
            if (c == '?')
                return hf_err_set(err, -EINVAL, "option '--%s' takes no value", opt ? opt->name : "");
            return hf_err_set(err, -EINVAL, "option '--%s' needs a value: --%s %s", opt->name, opt->name,
                              opt->metavar);
        }
        if (c == '?')
            return unknown_option(t, optopt ? letter : word, err);
        remember(p, opt_of(t, c), optarg);
    }
}

static const struct hf_verb *find_sub(const struct hf_verb *group, const char *word)
{
    for (const struct hf_verb *const *v = group->sub; *v; v++)
        if (strcmp((*v)->name, word) == 0 || ((*v)->alias && strcmp((*v)->alias, word) == 0))
            return *v;
    return NULL;
}

static int unknown_verb(const struct hf_verb *group, bool top, const char *word, struct hf_err *err)
{
    const char *names[33] = {NULL};
    size_t n = 0;
    for (const struct hf_verb *const *v = group->sub; *v && n < 32; v++)
        names[n++] = (*v)->name;
    const char *near = hf_nearest(word, names), *space = top ? "" : " ", *prefix = top ? "" : group->name;
    if (near)
        return hf_err_set(err, -EINVAL, "unknown command '%s%s%s'; did you mean '%s%s%s'?", prefix, space,
                          word, prefix, space, near);
    return hf_err_set(err, -EINVAL, "unknown command '%s%s%s'", prefix, space, word);
}

static int check_count(const struct hf_args *a, struct hf_err *err)
{
    const struct hf_verb *v = a->verb;
    if (a->n < v->min_args)
        return hf_err_set(err, -EINVAL, "'%s' needs %s", v->name, v->args);
    if (a->n > v->max_args)
        return hf_err_set(err, -EINVAL, "unexpected argument '%s'", a->v[v->max_args]);
    return 0;
}

/* ID [options] [--] COMMAND...: options may stand before and after ID, never after the command's first word.
 */
static int parse_command(struct hf_parsed *p, const struct table *t, int argc, char **argv,
                         struct hf_err *err)
{
    struct hf_args *a = &p->args;
    a->v = argv + argc;
    for (;;) {
        int r = take_options(p, t, argc, argv, err);
        if (r < 0)
            return r;
        bool dashes = optind > 1 && optind <= argc && strcmp(argv[optind - 1], "--") == 0;
        if (optind >= argc)
            break;
        if (a->n < a->verb->min_args) {
            if (a->n == 0)
                a->v = argv + optind;
            a->n++;
            optind++;
            if (!dashes)
                continue;
        }
        break;
    }
    a->command = argv + optind;
    a->n_command = optind < argc ? (size_t)(argc - optind) : 0;
    return p->help ? 0 : check_count(a, err);
}

static int parse_leaf(struct hf_parsed *p, int argc, char **argv, struct hf_err *err)
{
    struct table t;
    const struct hf_verb *verb = p->path[p->depth - 1];
    p->args.verb = verb;
    make_table(&t, verb, (verb->flags & HF_VERB_COMMAND) != 0);
    optind = 0; /* glibc: start over with the new option string */
    if (verb->flags & HF_VERB_COMMAND)
        return parse_command(p, &t, argc, argv, err);
    int r = take_options(p, &t, argc, argv, err);
    if (r < 0)
        return r;
    p->args.v = argv + optind;
    p->args.n = (size_t)(argc - optind);
    return p->help ? 0 : check_count(&p->args, err);
}

int hf_args_parse(const struct hf_verb *root, int argc, char **argv, struct hf_parsed *ret,
                  struct hf_err *err)
{
    *ret = (struct hf_parsed){.path = {root}, .depth = 1};
    opterr = 0;
    for (;;) {
        const struct hf_verb *verb = ret->path[ret->depth - 1];
        struct table t;
        if (!verb->sub)
            return parse_leaf(ret, argc, argv, err);
        make_table(&t, verb, true);
        optind = 0;
        int r = take_options(ret, &t, argc, argv, err);
        if (r < 0)
            return r;
        if (optind >= argc) {
            ret->help = true;
            ret->args.verb = verb;
            return 0;
        }
        const struct hf_verb *sub = find_sub(verb, argv[optind]);
        if (!sub)
            return unknown_verb(verb, ret->depth == 1, argv[optind], err);
        ret->path[ret->depth++] = sub;
        argc -= optind;
        argv += optind;
    }
}

void hf_parsed_done(struct hf_parsed *p)
{
    free(p->args.given);
    p->args.given = NULL;
    p->args.n_given = 0;
}

const char *hf_arg(const struct hf_args *a, const char *name)
{
    for (size_t i = a->n_given; i-- > 0;)
        if (strcmp(a->given[i].opt->name, name) == 0)
            return a->given[i].value;
    return NULL;
}

const char *hf_arg_nth(const struct hf_args *a, const char *name, size_t i)
{
    for (size_t k = 0; k < a->n_given; k++)
        if (strcmp(a->given[k].opt->name, name) == 0 && i-- == 0)
            return a->given[k].value;
    return NULL;
}
