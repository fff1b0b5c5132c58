/* Runs a program of the system (mke2fs, mkfs.xfs …) and explains its failure. Internal to engine/disk. */
#pragma once

#include "base/err.h"

/* argv[0] is the bare name; it is looked for in the system's directories, sbin included, whatever PATH says.
 * package: what to install when it is missing. 0, or a negative errno: -ENOENT the program is missing,
 * -ENOSPC it said that there was no room, -EIO any other failure; err has the end of what it printed.
 * ret_code (may be NULL) gets the exit code; with it, a code other than 0 is no error. */
int hf_tool_run(const char *package, const char *const argv[], int *ret_code, struct hf_err *err) HF_MUST_USE;
bool hf_tool_present(const char *name);
