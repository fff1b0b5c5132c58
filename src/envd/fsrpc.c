/* filesystem.Filesystem: Stat, MakeDir and Move at once; ListDir, Remove and moves between file systems in
 * the worker pool. Everything is done as root of the box, for the user of the call. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/id.h"
#include "envd/fsjob.h"

#define LIST_DEPTH_DEFAULT 1

/* ---- shared ---- */

enum rpc_code fs_code(int r)
{
    switch (-r) {
    case ENOENT:
        return RPC_NOT_FOUND;
    case EEXIST:
        return RPC_ALREADY_EXISTS;
    case EINVAL:
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
        return RPC_INVALID_ARGUMENT;
    case ELOOP:
    case ENOTEMPTY:
    case EBUSY:
        return RPC_FAILED_PRECONDITION;
    case EACCES:
    case EPERM:
    case EROFS:
        return RPC_PERMISSION_DENIED;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
        return RPC_RESOURCE_EXHAUSTED;
    default:
        return RPC_INTERNAL;
    }
}

int fs_job_fail(struct fs_job *j, int r, enum rpc_code code, const char *fmt, ...)
{
    va_list ap;
    char text[HF_ERR_MSG_MAX];
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    j->code = code;
    return hf_err_set(&j->err, r, "%s", text);
}

bool fs_call_user(struct rpc_call *c, struct envd_user *ret)
{
    struct hf_err err = {0};
    int r = envd_user_lookup(rpc_envd(c), rpc_user(c), ret, &err);
    if (r < 0)
        rpc_fail(c, r == -ENOENT ? RPC_UNAUTHENTICATED : RPC_RESOURCE_EXHAUSTED, "%s", err.msg);
    return r == 0;
}

bool fs_call_path(struct rpc_call *c, const json_t *msg, const char *key, const struct envd_user *u,
                  char **ret)
{
    hf_auto_free char *b64_key = hf_xasprintf("%sBase64", key);
    hf_auto_buf struct hf_buf bytes = HF_BUF_INIT(64u * 1024u);
    const json_t *text = json_object_get(msg, key), *b64 = json_object_get(msg, b64_key);
    struct hf_str path = {json_string_value(text), json_string_length(text)};
    struct hf_err err = {0};
    if (json_is_string(b64)) {
        struct hf_str in = {json_string_value(b64), json_string_length(b64)};
        if (hf_unbase64_add(&bytes, in) < 0) {
            rpc_fail(c, RPC_INVALID_ARGUMENT, "%s is not base64", b64_key);
            return false;
        }
        path = (struct hf_str){bytes.p, bytes.n};
    }
    if (envd_resolve_path(rpc_envd(c), u, path, ret, &err) == 0)
        return true;
    rpc_fail(c, RPC_INVALID_ARGUMENT, "%s", err.msg);
    return false;
}

int fs_entry_reply(const char *path, json_t **ret, enum rpc_code *code, struct hf_err *err)
{
    json_t *entry;
    int r = fs_entry(AT_FDCWD, path, path, path, NULL, &entry);
    if (r == -ENOENT || r == -ENOTDIR) {
        *code = RPC_NOT_FOUND;
        return hf_err_set(err, r, "file not found: lstat %s: no such file or directory", path);
    }
    if (r < 0) {
        *code = fs_code(r);
        return hf_err_set(err, r, "error getting file info: lstat %s: %s", path, strerror(-r));
    }
    *ret = json_object();
    json_object_set_new(*ret, "entry", entry);
    return 0;
}

static void reply_entry(struct rpc_call *c, const char *path)
{
    json_t *reply;
    enum rpc_code code;
    struct hf_err err = {0};
    if (fs_entry_reply(path, &reply, &code, &err) == 0)
        rpc_reply(c, reply);
    else
        rpc_fail(c, code, "%s", err.msg);
}

/* ---- jobs ---- */

static void job_free(struct fs_job *j)
{
    free(j->path);
    free(j->dest);
    hf_buf_done(&j->out);
    json_decref(j->reply);
    free(j);
}

static void job_closed(struct rpc_call *c)
{
    struct fs_job *j = rpc_data(c);
    j->call = NULL;
    atomic_store(&j->cancelled, true);
}

static void job_work(uv_work_t *w)
{
    struct fs_job *j = HF_CONTAINER_OF(w, struct fs_job, work);
    int r = j->run(j);
    if (r < 0 && !j->err.r)
        (void)fs_job_fail(j, r, RPC_INTERNAL, "%s", strerror(-r));
}

static void job_after(uv_work_t *w, int status)
{
    struct fs_job *j = HF_CONTAINER_OF(w, struct fs_job, work);
    struct rpc_call *c = j->call;
    if (c)
        rpc_set_ops(c, NULL, NULL);
    if (c && j->err.r)
        rpc_fail(c, j->code, "%s", j->err.msg);
    else if (c && j->reply)
        rpc_reply(c, hf_take_ptr(j->reply));
    else if (c)
        rpc_reply_raw(c, j->out.p, j->out.n);
    job_free(j);
}

void fs_job_start(struct fs_job *j)
{
    static const struct rpc_ops ops = {.on_close = job_closed};
    rpc_set_ops(j->call, &ops, j);
    if (uv_queue_work(rpc_envd(j->call)->loop, &j->work, job_work, job_after) < 0)
        abort(); /* only for a NULL callback */
}

static struct fs_job *job_new(struct rpc_call *c, int (*run)(struct fs_job *), const struct envd_user *u)
{
    struct fs_job *j = hf_new(struct fs_job);
    j->call = c;
    j->run = run;
    j->user = *u;
    j->json = rpc_is_json(c);
    j->out = HF_BUF_INIT(FS_LIST_BYTES_MAX);
    return j;
}

/* ---- methods ---- */

static void stat_(struct rpc_call *c, json_t *msg)
{
    struct envd_user u;
    hf_auto_free char *path = NULL;
    if (fs_call_user(c, &u) && fs_call_path(c, msg, "path", &u, &path))
        reply_entry(c, path);
}

static void make_dir(struct rpc_call *c, json_t *msg)
{
    struct envd_user u;
    struct stat st;
    struct hf_err err = {0};
    hf_auto_free char *path = NULL;
    if (!fs_call_user(c, &u) || !fs_call_path(c, msg, "path", &u, &path))
        return;
    if (fstatat(AT_FDCWD, path, &st, 0) == 0) {
        if (S_ISDIR(st.st_mode))
            rpc_fail(c, RPC_ALREADY_EXISTS, "directory already exists: %s", path);
        else
            rpc_fail(c, RPC_INVALID_ARGUMENT, "path already exists but it is not a directory: %s", path);
        return;
    }
    int r = fs_mkdirs(path, &u, &err);
    if (r < 0)
        rpc_fail(c, fs_code(r), "%s", err.msg);
    else
        reply_entry(c, path);
}

static void move_failed(struct rpc_call *c, int r, const char *from, const char *to)
{
    if (r == -ENOENT)
        rpc_fail(c, RPC_NOT_FOUND, "source file not found: rename %s %s: no such file or directory", from,
                 to);
    else
        rpc_fail(c, fs_code(r), "error renaming: rename %s %s: %s", from, to, strerror(-r));
}

static void move(struct rpc_call *c, json_t *msg)
{
    struct envd_user u;
    struct stat st;
    struct hf_err err = {0};
    hf_auto_free char *from = NULL, *to = NULL;
    if (!fs_call_user(c, &u) || !fs_call_path(c, msg, "source", &u, &from) ||
        !fs_call_path(c, msg, "destination", &u, &to))
        return;
    if (fstatat(AT_FDCWD, from, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        move_failed(c, errno == ENOTDIR ? -ENOENT : -errno, from, to);
        return;
    }
    hf_auto_free char *dir = path_dir(to);
    int r = fs_mkdirs(dir, &u, &err);
    if (r < 0) {
        rpc_fail(c, fs_code(r), "%s", err.msg);
    } else if (rename(from, to) == 0) {
        reply_entry(c, to);
    } else if (errno != EXDEV) {
        move_failed(c, -errno, from, to);
    } else {
        /* Another file system, or a directory of the image's read-only layer: copied and removed. */
        struct fs_job *j = job_new(c, fs_move_run, &u);
        j->path = hf_take_ptr(from);
        j->dest = hf_take_ptr(to);
        fs_job_start(j);
    }
}

static void list_dir(struct rpc_call *c, json_t *msg)
{
    struct envd_user u;
    hf_auto_free char *path = NULL;
    if (!fs_call_user(c, &u) || !fs_call_path(c, msg, "path", &u, &path))
        return;
    json_int_t depth = json_integer_value(json_object_get(msg, "depth"));
    struct fs_job *j = job_new(c, fs_list_run, &u);
    j->path = hf_take_ptr(path);
    j->depth = depth > 0 ? (uint32_t)HF_MIN(depth, (json_int_t)UINT32_MAX) : LIST_DEPTH_DEFAULT;
    fs_job_start(j);
}

static void remove_(struct rpc_call *c, json_t *msg)
{
    struct envd_user u;
    hf_auto_free char *path = NULL;
    if (!fs_call_user(c, &u) || !fs_call_path(c, msg, "path", &u, &path))
        return;
    struct fs_job *j = job_new(c, fs_remove_run, &u);
    j->path = hf_take_ptr(path);
    fs_job_start(j);
}

#define METHOD(name) "/filesystem.Filesystem/" name
const struct rpc_method filesystem_methods[] = {
    {METHOD("Stat"), RPC_UNARY, &pb_fs_stat_request, &pb_fs_stat_response, stat_},
    {METHOD("MakeDir"), RPC_UNARY, &pb_fs_make_dir_request, &pb_fs_make_dir_response, make_dir},
    {METHOD("Move"), RPC_UNARY, &pb_fs_move_request, &pb_fs_move_response, move},
    {METHOD("ListDir"), RPC_UNARY, &pb_fs_list_dir_request, &pb_fs_list_dir_response, list_dir},
    {METHOD("Remove"), RPC_UNARY, &pb_fs_remove_request, &pb_empty, remove_},
    {METHOD("WatchDir"), RPC_SERVER_STREAM, &pb_fs_watch_dir_request, &pb_fs_watch_dir_response,
     fs_watch_dir},
    {METHOD("CreateWatcher"), RPC_UNARY, &pb_fs_create_watcher_request, &pb_fs_create_watcher_response,
     fs_create_watcher},
    {METHOD("GetWatcherEvents"), RPC_UNARY, &pb_fs_get_watcher_events_request,
     &pb_fs_get_watcher_events_response, fs_get_watcher_events},
    {METHOD("RemoveWatcher"), RPC_UNARY, &pb_fs_remove_watcher_request, &pb_empty, fs_remove_watcher},
    {0},
};
