/* One call of filesystem.Filesystem that works in the worker pool, and what the methods share. */
#pragma once

#include <stdatomic.h>

#include "envd/fs.h"
#include "envd/rpc.h"

#define FS_LIST_BYTES_MAX (64u * 1024u * 1024u) /* encoded answer of one ListDir */

struct fs_job {
    /* loop */
    struct rpc_call *call; /* NULL: the client is gone */
    uv_work_t work;
    /* set before the start */
    int (*run)(struct fs_job *j); /* worker: 0, or negative with err and code */
    struct envd_user user;
    char *path, *dest;
    uint32_t depth;
    bool json;
    atomic_bool cancelled;
    /* worker */
    struct hf_buf out; /* the answer, encoded */
    json_t *reply;     /* or as an object */
    enum rpc_code code;
    struct hf_err err;
};

/* Takes j (malloc'ed); answers the call when run is done. */
void fs_job_start(struct fs_job *j);

/* Connect code for a failed file operation. */
enum rpc_code fs_code(int r);
/* Fills err and code of a failed job; returns r. */
int fs_job_fail(struct fs_job *j, int r, enum rpc_code code, const char *fmt, ...) HF_PRINTF(4, 5);

/* User of the call and the path under key (or, for names that are not UTF-8, key + "Base64"). False after the
 * call was failed. */
bool fs_call_user(struct rpc_call *c, struct envd_user *ret);
bool fs_call_path(struct rpc_call *c, const json_t *msg, const char *key, const struct envd_user *u,
                  char **ret);
/* {"entry": EntryInfo} of path. 0, or negative with err and code. */
int fs_entry_reply(const char *path, json_t **ret, enum rpc_code *code, struct hf_err *err) HF_MUST_USE;

/* The jobs. */
int fs_list_run(struct fs_job *j);   /* fslist.c: path, depth */
int fs_remove_run(struct fs_job *j); /* fsremove.c: path */
int fs_move_run(struct fs_job *j);   /* fsmove.c: path to dest, on another file system */

/* fsremove.c: rm -rf. Missing is success. */
int fs_remove_tree(const char *path, struct hf_err *err) HF_MUST_USE;

/* watchrpc.c */
void fs_watch_dir(struct rpc_call *c, json_t *msg);
void fs_create_watcher(struct rpc_call *c, json_t *msg);
void fs_get_watcher_events(struct rpc_call *c, json_t *msg);
void fs_remove_watcher(struct rpc_call *c, json_t *msg);
