/* Command lines: the verb, its options and what is left, by the tables of cli.h. */
#pragma once

#include "cli/cli.h"

#define HF_VERB_DEPTH 3 /* root, group, verb */

struct hf_parsed {
    const struct hf_verb *path[HF_VERB_DEPTH]; /* path[0] is the root */
    size_t depth;
    struct hf_args args; /* of path[depth - 1]; given holds the global options as well */
    bool help;           /* --help was given, or a group without a verb */
};

/* Walks the words. argv may be reordered. 0; -EINVAL with a sentence for people in err: path and depth then
 * tell how far it came. Release with hf_parsed_done in either case. */
int hf_args_parse(const struct hf_verb *root, int argc, char **argv, struct hf_parsed *ret,
                  struct hf_err *err) HF_MUST_USE;
void hf_parsed_done(struct hf_parsed *p);

/* The last value given for an option, "" for a switch; NULL when it was not given. */
const char *hf_arg(const struct hf_args *a, const char *name);
/* The i-th value given for it, NULL at the end. */
const char *hf_arg_nth(const struct hf_args *a, const char *name, size_t i);
