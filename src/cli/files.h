/* Files of a sandbox, streamed both ways over GET and POST /files. */
#pragma once

#include "cli/client.h"
#include "cli/term.h"

/* One copy: the connection, the account of what was moved. */
struct hf_files {
    struct hf_cli *cli;
    const struct hf_box *box;
    const char *user; /* NULL = default */
    CURL *curl;       /* kept between files */
    struct hf_progress progress;
    uint64_t files, bytes, skipped;
};
#define HF_FILES_UNKNOWN (-1) /* size of a stream */

/* Sends size bytes of fd (HF_FILES_UNKNOWN: until its end) to a file; parents are made. */
int hf_files_put(struct hf_files *f, int fd, int64_t size, const char *path, struct hf_err *err) HF_MUST_USE;
/* Writes a file's content to fd. -ENOENT, -EISDIR. */
int hf_files_get(struct hf_files *f, const char *path, int fd, struct hf_err *err) HF_MUST_USE;
/* Entry of a path as the API gives it (owned by the caller); -ENOENT when there is none. */
int hf_files_stat(struct hf_files *f, const char *path, json_t **ret, struct hf_err *err) HF_MUST_USE;
/* Array of the entries of one directory (owned by the caller). */
int hf_files_list(struct hf_files *f, const char *path, json_t **ret, struct hf_err *err) HF_MUST_USE;
/* mkdir -p. */
int hf_files_mkdir(struct hf_files *f, const char *path, struct hf_err *err) HF_MUST_USE;
void hf_files_done(struct hf_files *f);
