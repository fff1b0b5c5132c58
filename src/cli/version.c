#include "cli/cli.h"

static int run(struct hf_cli *cli, const struct hf_args *args)
{
    (void)args;
    (void)printf(cli->json ? "{\"version\":\"%s\"}\n" : "holdfast %s\n", HOLDFAST_VERSION);
    return HF_EXIT_OK;
}

const struct hf_verb hf_verb_version = {
    .name = "version",
    .summary = "print the version",
    .examples = "holdfast version --json",
    .run = run,
};
