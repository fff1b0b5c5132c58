/* What the sandbox and session verbs share. */
#pragma once

#include <jansson.h>

#include "cli/client.h"

/* Options of exec and shell, the same for sandboxes and sessions. */
extern const struct hf_opt hf_exec_opts[], hf_shell_opts[];
/* Runs args' command in a sandbox; returns the exit code of cli.h. id is the sandbox. */
int hf_exec_in(struct hf_cli *cli, const struct hf_args *args, const char *id);
int hf_shell_in(struct hf_cli *cli, const struct hf_args *args, const char *id);
/* hf_cli_fail for exec and shell: HF_EXIT_INFRA. */
int hf_exec_fail(struct hf_cli *cli, const struct hf_err *err);
