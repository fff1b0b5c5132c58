#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/args.h"

static int run_nothing(struct hf_cli *cli, const struct hf_args *args)
{
    (void)cli;
    (void)args;
    return 0;
}

static const struct hf_opt ls_opts[] = {
    {"state", 's', "STATE", "", NULL},
    {"metadata", 'm', "KEY=VALUE", "", NULL},
    {"all", 'a', NULL, "", NULL},
    {0},
};
static const struct hf_opt exec_opts[] = {{"user", 'u', "NAME", "", NULL}, {0}};
static const struct hf_verb ls = {.name = "ls", .alias = "list", .opts = ls_opts, .run = run_nothing};
static const struct hf_verb exec = {.name = "exec",
                                    .args = "ID [--] COMMAND",
                                    .min_args = 1,
                                    .max_args = 1,
                                    .flags = HF_VERB_COMMAND,
                                    .opts = exec_opts,
                                    .run = run_nothing};
static const struct hf_verb cp = {
    .name = "cp", .args = "FROM TO", .min_args = 2, .max_args = 2, .opts = exec_opts, .run = run_nothing};
static const struct hf_verb *const box_subs[] = {&ls, &exec, &cp, NULL};
static const struct hf_verb box = {.name = "sandbox", .alias = "sbx", .sub = box_subs};
static const struct hf_verb *const root_subs[] = {&box, NULL};
static const struct hf_verb root = {.name = "holdfast", .sub = root_subs};

#define WORDS_MAX 16

/* Splits a line at blanks and parses it. Words live until the next call. */
static int parse(const char *line, struct hf_parsed *p, struct hf_err *err)
{
    static char text[512];
    static char *argv[WORDS_MAX + 1];
    int argc = 0;
    char *save = NULL;
    (void)snprintf(text, sizeof(text), "holdfast %s", line);
    for (char *w = strtok_r(text, " ", &save); w && argc < WORDS_MAX; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    argv[argc] = NULL;
    *err = (struct hf_err){0};
    return hf_args_parse(&root, argc, argv, p, err);
}

static void options_and_globals(void **state)
{
    (void)state;
    struct hf_parsed p;
    struct hf_err err;
    assert_int_equal(parse("--json sbx list -s running -m a=1 --metadata=b=2 -qa", &p, &err), 0);
    assert_int_equal(p.depth, 3);
    assert_ptr_equal(p.path[2], &ls);
    assert_string_equal(hf_arg(&p.args, "state"), "running");
    assert_string_equal(hf_arg_nth(&p.args, "metadata", 0), "a=1");
    assert_string_equal(hf_arg_nth(&p.args, "metadata", 1), "b=2");
    assert_null(hf_arg_nth(&p.args, "metadata", 2));
    assert_string_equal(hf_arg(&p.args, "metadata"), "b=2");
    assert_non_null(hf_arg(&p.args, "json"));
    assert_non_null(hf_arg(&p.args, "quiet"));
    assert_non_null(hf_arg(&p.args, "all"));
    assert_null(hf_arg(&p.args, "url"));
    assert_false(p.help);
    hf_parsed_done(&p);
}

static void globals_between_words(void **state)
{
    (void)state;
    struct hf_parsed p;
    struct hf_err err;
    assert_int_equal(parse("--url http://a sandbox --api-key k ls", &p, &err), 0);
    assert_string_equal(hf_arg(&p.args, "url"), "http://a");
    assert_string_equal(hf_arg(&p.args, "api-key"), "k");
    hf_parsed_done(&p);
}

static void command_keeps_its_options(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "sandbox exec -u root ID -- ls -l --user x",
        "sandbox exec ID --user root ls -l --user x",
        "sandbox exec ID -u root -- ls -l --user x",
        "sandbox exec -u root -- ID ls -l --user x",
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(lines); i++) {
        struct hf_parsed p;
        struct hf_err err;
        assert_int_equal(parse(lines[i], &p, &err), 0);
        assert_int_equal(p.args.n, 1);
        assert_string_equal(p.args.v[0], "ID");
        assert_string_equal(hf_arg(&p.args, "user"), "root");
        assert_int_equal(p.args.n_command, 4);
        assert_string_equal(p.args.command[0], "ls");
        assert_string_equal(p.args.command[3], "x");
        hf_parsed_done(&p);
    }
}

static void command_may_be_absent(void **state)
{
    (void)state;
    struct hf_parsed p;
    struct hf_err err;
    assert_int_equal(parse("sandbox exec ID", &p, &err), 0);
    assert_int_equal(p.args.n_command, 0);
    hf_parsed_done(&p);
    assert_int_equal(parse("sandbox exec", &p, &err), -EINVAL);
    assert_string_equal(err.msg, "'exec' needs ID [--] COMMAND");
    hf_parsed_done(&p);
}

static void mistakes(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"sandbx ls", "unknown command 'sandbx'; did you mean 'sandbox'?"},
        {"sandbox lst", "unknown command 'sandbox lst'; did you mean 'sandbox ls'?"},
        {"sandbox frobnicate", "unknown command 'sandbox frobnicate'"},
        {"sandbox ls --metdata a=b", "unknown option '--metdata'; did you mean '--metadata'?"},
        {"sandbox ls --nonsense-here", "unknown option '--nonsense-here'"},
        {"sandbox ls --metadata", "option '--metadata' needs a value: --metadata KEY=VALUE"},
        {"sandbox ls -m", "option '--metadata' needs a value: --metadata KEY=VALUE"},
        {"sandbox ls --all=3", "option '--all' takes no value"},
        {"sandbox ls -z", "unknown option '-z'"},
        {"sandbox ls extra", "unexpected argument 'extra'"},
        {"sandbox cp one", "'cp' needs FROM TO"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        struct hf_parsed p;
        struct hf_err err;
        assert_int_equal(parse(cases[i][0], &p, &err), -EINVAL);
        assert_string_equal(err.msg, cases[i][1]);
        hf_parsed_done(&p);
    }
}

static void help_needs_no_arguments(void **state)
{
    (void)state;
    struct hf_parsed p;
    struct hf_err err;
    assert_int_equal(parse("sandbox cp --help", &p, &err), 0);
    assert_true(p.help);
    assert_ptr_equal(p.path[2], &cp);
    hf_parsed_done(&p);
    assert_int_equal(parse("sandbox", &p, &err), 0);
    assert_true(p.help);
    assert_null(hf_arg(&p.args, "help"));
    hf_parsed_done(&p);
    /* After the command's first word --help belongs to the command. */
    assert_int_equal(parse("sandbox exec ID ls --help", &p, &err), 0);
    assert_false(p.help);
    hf_parsed_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_and_globals),
        cmocka_unit_test(globals_between_words),
        cmocka_unit_test(command_keeps_its_options),
        cmocka_unit_test(command_may_be_absent),
        cmocka_unit_test(mistakes),
        cmocka_unit_test(help_needs_no_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
