/* A root file system on its way to the daemon: a tar as it is, a folder as a tar that is made on the fly. */
#pragma once

#include "cli/client.h"

/* path "-" = a tar on stdin. The daemon's answer in ret. */
int hf_import(struct hf_cli *cli, const char *name, const char *path, bool is_private, struct hf_answer *ret,
              struct hf_err *err) HF_MUST_USE;

/* Posts a file (path "-" = stdin; a folder goes as a tar) to a URL, with a progress line that names it. */
int hf_upload(struct hf_cli *cli, const char *url, const char *name, const char *path, struct hf_answer *ret,
              struct hf_err *err) HF_MUST_USE;

/* Writes the tree below dir_fd to out_fd as a pax tar with relative names, numeric owners, hard links, ACLs
 * and extended attributes; other file systems mounted in it are left out. Changes the working directory to
 * it. 0 or -errno with the cause in err. */
int hf_import_tar(int dir_fd, int out_fd, struct hf_err *err) HF_MUST_USE;
