/* The `holdfast` program: what every verb gets and how a verb is described. */
#pragma once

#include <stdio.h>

#include "base/err.h"

/* Exit codes. docs/cli.md holds the same table. */
#define HF_EXIT_OK 0
#define HF_EXIT_ERROR 1     /* the operation failed; for exec and shell see HF_EXIT_INFRA */
#define HF_EXIT_USAGE 2     /* wrong words on the command line */
#define HF_EXIT_TIMEOUT 124 /* exec: --timeout ran out and the command was ended, as timeout(1) */
#define HF_EXIT_INFRA 125   /* exec, shell: no daemon, no sandbox, or the sandbox ended meanwhile */
#define HF_EXIT_SIGNAL 128  /* exec, shell: + number of the signal that ended the command */

struct hf_verb;

/* One option of a verb. A table of them ends with a NULL name. */
struct hf_opt {
    const char *name;
    char letter;         /* 0 = long form only */
    const char *metavar; /* NULL = a switch */
    const char *help;
    const char *choices; /* words separated by blanks, for completion; NULL = anything */
};

/* What a command line said. Strings are argv's. */
struct hf_given {
    const struct hf_opt *opt;
    const char *value;
};
struct hf_args {
    const struct hf_verb *verb;
    char **v; /* positional arguments */
    size_t n;
    char **command; /* HF_VERB_COMMAND: what follows them */
    size_t n_command;
    struct hf_given *given;
    size_t n_given;
};

/* State of one run, filled from global options and the environment. */
struct hf_cli {
    bool json, quiet;
    const char *url;         /* base of the REST API, without a trailing slash */
    const char *sandbox_url; /* base of the data plane */
    const char *api_key;     /* NULL when none was given */
    bool color;              /* stdout is a terminal that wants colours */
    char *owned_url, *owned_sandbox_url;
    char hint[HF_ERR_MSG_MAX]; /* what to do about the error, "" when nothing is known */
    void *curl;                /* one easy handle that keeps its connection; see client.c */
};

#define HF_VERB_COMMAND (1u << 0) /* after min_args positional arguments comes a foreign command line */
#define HF_VERB_HIDDEN (1u << 1)

/* What the positional arguments are, for completion. */
enum hf_complete {
    HF_COMPLETE_NONE,
    HF_COMPLETE_FILE,
    HF_COMPLETE_SANDBOX,
    HF_COMPLETE_SESSION,
    HF_COMPLETE_TEMPLATE,
    HF_COMPLETE_SNAPSHOT,
    HF_COMPLETE_KEY,
    HF_COMPLETE_POLICY,
    HF_COMPLETE_SHELL,
    HF_COMPLETE_VERB
};

struct hf_verb {
    const char *name, *alias; /* alias may be NULL */
    const char *summary;      /* one line */
    const char *args;         /* "ID [--] COMMAND [ARG...]"; NULL = none */
    size_t min_args, max_args;
    unsigned flags;
    enum hf_complete complete;
    const struct hf_opt *opts;        /* NULL = none */
    const char *details, *examples;   /* paragraphs for --help; may be NULL */
    const struct hf_verb *const *sub; /* NULL-terminated; a verb has either sub or run */
    /* Returns the exit code. Errors were already reported. */
    int (*run)(struct hf_cli *cli, const struct hf_args *args);
};

extern const struct hf_verb hf_verb_root; /* verbs.c */
extern const struct hf_opt hf_global_opts[];

/* ---- one file a verb ---- */
extern const struct hf_verb hf_verb_serve, hf_verb_sandbox, hf_verb_session, hf_verb_template,
    hf_verb_snapshot, hf_verb_policy, hf_verb_key, hf_verb_secret, hf_verb_cert, hf_verb_doctor,
    hf_verb_completion, hf_verb_version, hf_verb_help;
extern const struct hf_verb hf_verb_snapshot_export, hf_verb_snapshot_import;
extern const struct hf_verb hf_verb_sandbox_exec, hf_verb_sandbox_shell, hf_verb_sandbox_cp,
    hf_verb_sandbox_logs, hf_verb_sandbox_open, hf_verb_sandbox_fork, hf_verb_sandbox_rollback,
    hf_verb_sandbox_pause, hf_verb_sandbox_resume, hf_verb_sandbox_network, hf_verb_sandbox_outbound;

/* ---- output ---- */

/* Reports err on stderr ("holdfast: …" and a hint, or one JSON object with --json); returns HF_EXIT_ERROR. */
int hf_cli_fail(struct hf_cli *cli, const struct hf_err *err);
/* As above for words that the caller got wrong; returns HF_EXIT_USAGE. */
int hf_cli_usage(struct hf_cli *cli, const struct hf_verb *verb, const char *fmt, ...) HF_PRINTF(3, 4);
void hf_cli_hint(struct hf_cli *cli, const char *fmt, ...) HF_PRINTF(2, 3);
/* A line for people on stderr; silent with --quiet or --json. */
void hf_cli_say(const struct hf_cli *cli, const char *fmt, ...) HF_PRINTF(2, 3);
/* `name` inside stdout's colour, or plain: "green" "yellow" "red" "bold" "dim". Writes to stdout. */
const char *hf_color(const struct hf_cli *cli, const char *name);

/* help.c */
void hf_help_print(FILE *out, const struct hf_verb *const *path, size_t n);
