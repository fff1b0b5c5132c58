/* The table of commands: parsing, --help, `holdfast help` and shell completion all read it. */
#include "cli/cli.h"

static const struct hf_verb *const verbs[] = {
    &hf_verb_serve,      &hf_verb_sandbox,
    &hf_verb_session,    &hf_verb_template,
    &hf_verb_snapshot,   &hf_verb_policy,
    &hf_verb_key,        &hf_verb_secret,
    &hf_verb_cert,       &hf_verb_doctor,
    &hf_verb_completion, &hf_verb_version,
    &hf_verb_help,       NULL,
};

const struct hf_verb hf_verb_root = {
    .name = "holdfast",
    .summary = "a persistent sandbox runtime for AI agents",
    .details = "The daemon is `holdfast serve`; every other command talks to it, except `key`, `cert` and\n"
               "`doctor`, which work on this machine directly.",
    .examples = "holdfast doctor                                  # can this machine run sandboxes?\n"
                "holdfast serve --data /var/lib/holdfast          # the daemon, in the foreground\n"
                "export HOLDFAST_API_KEY=$(holdfast key create --quiet)\n"
                "holdfast template import base rootfs.tar.zst\n"
                "holdfast session exec agent:alice:1 -- python3 -V",
    .sub = verbs,
};
