/* process.Process: the methods. What a process is, is in proc.h. */
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include "base/id.h"
#include "base/map.h"
#include "envd/proc.h"
#include "envd/procenv.h"
#include "envd/spawn.h"

static const char *text_of(const json_t *obj, const char *key)
{
    return json_string_value(json_object_get(obj, key));
}

/* ---- selectors ---- */

/* NULL after the call was failed. ended: whether one that has ended will do. */
static struct proc *selected(struct rpc_call *c, const json_t *msg, bool ended)
{
    const json_t *sel = json_object_get(msg, "process");
    const json_t *pid = json_object_get(sel, "pid"), *tag = json_object_get(sel, "tag");
    struct proc *p = NULL;
    if (pid)
        p = proc_by_pid((uint32_t)json_integer_value(pid));
    else if (tag)
        p = proc_by_tag(json_string_value(tag));
    else {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "a process selector needs a pid or a tag");
        return NULL;
    }
    if (p && (p->state == PROC_RUNNING || ended))
        return p;
    if (pid)
        rpc_fail(c, RPC_NOT_FOUND, "process with pid %lld not found", (long long)json_integer_value(pid));
    else
        rpc_fail(c, RPC_NOT_FOUND, "process with tag %s not found", json_string_value(tag));
    return NULL;
}

/* ---- Start ---- */

/* argv[0] stays free: see spawn_req. NULL after the call was failed. */
static char **build_argv(struct rpc_call *c, const json_t *config)
{
    const json_t *cmd = json_object_get(config, "cmd"), *args = json_object_get(config, "args");
    size_t n = json_array_size(args);
    char **argv = hf_xcalloc(n + 3, sizeof(*argv));
    argv[1] = (char *)(uintptr_t)json_string_value(cmd);
    bool bad = strlen(argv[1]) != json_string_length(cmd);
    for (size_t i = 0; i < n; i++) {
        const json_t *arg = json_array_get(args, i);
        argv[i + 2] = (char *)(uintptr_t)json_string_value(arg);
        bad |= strlen(argv[i + 2]) != json_string_length(arg);
    }
    if (bad) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "the command and its arguments must not contain NUL bytes");
        free(argv);
        return NULL;
    }
    return argv;
}

static bool read_pty(struct rpc_call *c, const json_t *msg, uint16_t *ret_cols, uint16_t *ret_rows)
{
    const json_t *size = json_object_get(json_object_get(msg, "pty"), "size");
    json_int_t cols = json_integer_value(json_object_get(size, "cols"));
    json_int_t rows = json_integer_value(json_object_get(size, "rows"));
    if (cols > UINT16_MAX || rows > UINT16_MAX) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "the PTY size must be at most %d x %d", UINT16_MAX, UINT16_MAX);
        return false;
    }
    *ret_cols = (uint16_t)cols;
    *ret_rows = (uint16_t)rows;
    return true;
}

static bool read_cwd(struct rpc_call *c, const json_t *config, const struct envd_user *u, char **ret)
{
    struct envd *e = rpc_envd(c);
    const json_t *v = json_object_get(config, "cwd");
    struct hf_err err = {0};
    struct hf_str path = {v ? json_string_value(v) : "", json_string_length(v)};
    if (envd_resolve_path(e, u, path, ret, &err) == 0)
        return true;
    rpc_fail(c, RPC_INVALID_ARGUMENT, "%s", err.msg);
    return false;
}

static bool lookup_user(struct rpc_call *c, struct envd_user *u)
{
    struct hf_err err = {0};
    int r = envd_user_lookup(rpc_envd(c), rpc_user(c), u, &err);
    if (r < 0)
        rpc_fail(c, r == -ENOENT ? RPC_UNAUTHENTICATED : RPC_RESOURCE_EXHAUSTED, "%s", err.msg);
    return r == 0;
}

/* What List shows of a process: the fields that the protocol knows, and nothing that came along with them. */
static json_t *known_config(const json_t *given)
{
    static const char *const fields[] = {"cmd", "args", "envs", "cwd"};
    json_t *config = json_object();
    for (size_t i = 0; i < HF_ARRAY_LEN(fields); i++)
        if (json_object_get(given, fields[i]))
            json_object_set(config, fields[i], json_object_get(given, fields[i]));
    return config;
}

static void launch(struct rpc_call *c, json_t *msg, struct spawn_req *q)
{
    const json_t *tag = json_object_get(msg, "tag");
    struct spawned s;
    int r = spawn_child(q, &s);
    if (r < 0) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "error starting process '%s': %s", q->cmd, strerror(-r));
        return;
    }
    json_t *config = known_config(json_object_get(msg, "process"));
    (void)proc_new(rpc_envd(c), &s, config, json_string_value(tag), c, rpc_timeout_ms(c));
}

static void start(struct rpc_call *c, json_t *msg)
{
    struct envd *e = rpc_envd(c);
    const json_t *config = json_object_get(msg, "process"), *in = json_object_get(msg, "stdin");
    struct envd_user user;
    hf_auto_free char *cwd = NULL;
    hf_auto_free char **argv = NULL;
    struct spawn_req q = {.cmd = text_of(config, "cmd"), .user = &user, .cgroup_fd = e->fd_user_procs};
    if (!q.cmd || !q.cmd[0]) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "process.cmd is missing");
        return;
    }
    if (json_string_length(json_object_get(msg, "tag")) > PROC_TAG_MAX) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "the tag is longer than %u bytes", PROC_TAG_MAX);
        return;
    }
    if (!lookup_user(c, &user) || !read_cwd(c, config, &user, &cwd) || !read_pty(c, msg, &q.cols, &q.rows))
        return;
    argv = build_argv(c, config);
    if (!argv)
        return;
    struct procenv env = {0};
    struct hf_err err = {0};
    if (procenv_build(e, &user, json_object_get(config, "envs"), &env, &err) < 0) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "%s", err.msg);
    } else {
        const char *given = text_of(config, "cwd");
        q.argv = argv;
        q.envp = env.v;
        q.path = procenv_get(&env, "PATH");
        q.cwd = cwd;
        q.cwd_optional = !(given && given[0]) && !e->default_workdir;
        q.in = !in || json_is_true(in) ? SPAWN_STDIN_PIPE : SPAWN_STDIN_NULL;
        q.pty = json_object_get(msg, "pty") != NULL;
        launch(c, msg, &q);
    }
    procenv_done(&env);
}

/* ---- Connect, List ---- */

static void connect_(struct rpc_call *c, json_t *msg)
{
    struct hf_str header = rpc_header(c, "holdfast-cursor");
    struct rpc_cursor from;
    if (header.p && rpc_parse_cursor(header, &from) < 0) {
        rpc_fail(c, RPC_INVALID_ARGUMENT,
                 "Holdfast-Cursor must look like \"stdout=0,stderr=0\" or \"pty=0\"");
        return;
    }
    struct proc *p = selected(c, msg, true);
    if (!p)
        return;
    if (!header.p && !proc_attachable(p)) {
        rpc_fail(c, RPC_NOT_FOUND, "process with pid %d not found", (int)p->pid);
        return;
    }
    fan_attach(p, c, header.p ? &from : NULL, false);
}

static void list(struct rpc_call *c, json_t *msg)
{
    json_t *processes = json_array();
    hf_list_foreach(it, proc_table())
    {
        const struct proc *p = hf_list_entry(it, struct proc, link);
        if (p->state != PROC_RUNNING)
            continue;
        json_t *info = json_pack("{s:O,s:i}", "config", p->config, "pid", (int)p->pid);
        if (p->tag)
            json_object_set_new(info, "tag", json_string(p->tag));
        json_array_append_new(processes, info);
    }
    rpc_reply(c, json_pack("{s:o}", "processes", processes));
}

/* ---- Update, SendSignal, CloseStdin ---- */

static void update(struct rpc_call *c, json_t *msg)
{
    struct proc *p = selected(c, msg, false);
    struct winsize size = {0};
    if (!p)
        return;
    if (json_object_get(msg, "pty")) {
        if (!p->pty) {
            rpc_fail(c, RPC_INTERNAL, "tty not assigned to process");
            return;
        }
        if (!read_pty(c, msg, &size.ws_col, &size.ws_row))
            return;
        if (p->out[PROC_PTY].fd >= 0 && ioctl(p->out[PROC_PTY].fd, TIOCSWINSZ, &size) < 0) {
            rpc_fail(c, RPC_INTERNAL, "error resizing tty: %s", strerror(errno));
            return;
        }
    }
    rpc_reply(c, json_object());
}

static void send_signal(struct rpc_call *c, json_t *msg)
{
    const json_t *v = json_object_get(msg, "signal");
    const char *name = json_is_string(v) ? json_string_value(v) : "SIGNAL_UNSPECIFIED";
    int sig = strcmp(name, "SIGNAL_SIGKILL") == 0   ? SIGKILL
              : strcmp(name, "SIGNAL_SIGTERM") == 0 ? SIGTERM
                                                    : 0;
    struct proc *p = selected(c, msg, false);
    if (!p)
        return;
    if (sig == 0) {
        if (json_is_integer(v))
            rpc_fail(c, RPC_UNIMPLEMENTED, "invalid signal: %lld", (long long)json_integer_value(v));
        else
            rpc_fail(c, RPC_UNIMPLEMENTED, "invalid signal: %s", name);
        return;
    }
    int r = proc_signal(p, sig);
    if (r < 0)
        rpc_fail(c, RPC_INTERNAL, "error sending signal: %s", strerror(-r));
    else
        rpc_reply(c, json_object());
}

static void close_stdin(struct rpc_call *c, json_t *msg)
{
    /* One that has just ended will do: its stdin is closed, and closing twice is no error. */
    struct proc *p = selected(c, msg, true);
    if (!p)
        return;
    if (p->pty) {
        rpc_fail(c, RPC_UNKNOWN,
                 "error closing stdin: cannot close stdin for PTY process — send Ctrl+D (0x04) instead");
        return;
    }
    input_close(p);
    rpc_reply(c, json_object());
}

/* ---- input ---- */

/* Decodes the one field of a ProcessInput that is set; false after the call was failed. */
static bool read_input(struct rpc_call *c, const struct proc *p, const json_t *input, struct hf_buf *out)
{
    const json_t *in = json_object_get(input, "stdin"), *pty = json_object_get(input, "pty");
    const json_t *v = in ? in : pty;
    if (!v)
        return true; /* nothing to write */
    if (hf_unbase64_add(out, (struct hf_str){json_string_value(v), json_string_length(v)}) < 0) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "field \"%s\" must be base64 text", in ? "stdin" : "pty");
        return false;
    }
    if (out->n == 0)
        return true;
    if (in && p->pty) {
        rpc_fail(c, RPC_INTERNAL, "error writing to stdin: stdin not enabled or closed");
        return false;
    }
    if (!in && !p->pty) {
        rpc_fail(c, RPC_INTERNAL, "error writing to tty: tty not assigned to process");
        return false;
    }
    return true;
}

static void fail_input(struct rpc_call *c, int r)
{
    if (r == -EBADF)
        rpc_fail(c, RPC_INTERNAL, "error writing to stdin: stdin not enabled or closed");
    else if (r == -ENOBUFS)
        rpc_fail(c, RPC_RESOURCE_EXHAUSTED,
                 "too much input is waiting because it is not read: at most %u bytes can, and %u for all "
                 "processes",
                 PROC_INPUT_MAX, PROC_INPUTS_MAX);
    else
        rpc_fail(c, RPC_INTERNAL, "error writing to stdin: %s", strerror(-r));
}

/* One SendInput call: answered when the process's pipe has taken the bytes. */
struct sending {
    struct rpc_call *c; /* NULL = the client went away */
};

static void sender_gone(struct rpc_call *c)
{
    struct sending *s = rpc_data(c);
    s->c = NULL;
}

static void sent(void *arg, int r)
{
    struct sending *s = arg;
    struct rpc_call *c = s->c;
    if (c)
        rpc_set_ops(c, NULL, NULL);
    free(s);
    if (c && r < 0)
        fail_input(c, r);
    else if (c)
        rpc_reply(c, json_object());
}

static void send_input(struct rpc_call *c, json_t *msg)
{
    static const struct rpc_ops ops = {.on_close = sender_gone};
    hf_auto_buf struct hf_buf data = HF_BUF_INIT(RPC_MESSAGE_MAX);
    struct proc *p = selected(c, msg, false);
    if (!p || !read_input(c, p, json_object_get(msg, "input"), &data))
        return;
    struct sending *s = hf_new(struct sending);
    s->c = c;
    rpc_set_ops(c, &ops, s);
    input_write(p, data.p, data.n, sent, s);
}

/* One StreamInput call. It lives until its call and every piece of its input are gone. */
struct streaming {
    struct rpc_call *c; /* NULL = over */
    struct proc *p;     /* referenced; NULL until the start message */
    size_t waiting;     /* pieces in the process's queue */
    bool all;           /* every message has arrived */
    unsigned refs;
};

static void streaming_unref(struct streaming *s)
{
    if (--s->refs > 0)
        return;
    if (s->p)
        proc_unref(s->p);
    free(s);
}

static void piece_written(void *arg, int r)
{
    struct streaming *s = arg;
    s->waiting--;
    if (s->c && r < 0)
        fail_input(s->c, r);
    else if (s->c && s->all && s->waiting == 0)
        rpc_reply(s->c, json_object());
    else if (s->c && s->waiting == 0)
        rpc_resume_input(s->c);
    streaming_unref(s);
}

static void stream_message(struct rpc_call *c, json_t *msg)
{
    struct streaming *s = rpc_data(c);
    const json_t *begin = json_object_get(msg, "start"), *data = json_object_get(msg, "data");
    if (begin) {
        struct proc *p = selected(c, begin, false);
        if (!p)
            return;
        if (s->p)
            proc_unref(s->p);
        proc_ref(p);
        s->p = p;
        return;
    }
    if (!data)
        return; /* keepalive */
    if (!s->p) {
        rpc_fail(c, RPC_INVALID_ARGUMENT, "the first message of an input stream must be start");
        return;
    }
    hf_auto_buf struct hf_buf bytes = HF_BUF_INIT(RPC_MESSAGE_MAX);
    if (!read_input(c, s->p, json_object_get(data, "input"), &bytes))
        return;
    s->refs += 2; /* the piece, and this function */
    s->waiting++;
    input_write(s->p, bytes.p, bytes.n, piece_written, s);
    /* The client is slowed down to the pace at which the process reads. */
    if (s->c && s->waiting > 0)
        rpc_pause_input(c);
    streaming_unref(s);
}

static void stream_end(struct rpc_call *c)
{
    struct streaming *s = rpc_data(c);
    s->all = true;
    if (s->waiting == 0)
        rpc_reply(c, json_object());
}

static void stream_gone(struct rpc_call *c)
{
    struct streaming *s = rpc_data(c);
    s->c = NULL;
    streaming_unref(s);
}

static void stream_input(struct rpc_call *c, json_t *msg)
{
    static const struct rpc_ops ops = {
        .on_message = stream_message, .on_end = stream_end, .on_close = stream_gone};
    struct streaming *s = hf_new(struct streaming);
    s->c = c;
    s->refs = 1;
    rpc_set_ops(c, &ops, s);
}

const struct rpc_method process_methods[] = {
    {"/process.Process/Start", RPC_SERVER_STREAM, &pb_process_start_request, &pb_process_start_response,
     start},
    {"/process.Process/Connect", RPC_SERVER_STREAM, &pb_process_connect_request, &pb_process_connect_response,
     connect_},
    {"/process.Process/List", RPC_UNARY, &pb_process_list_request, &pb_process_list_response, list},
    {"/process.Process/Update", RPC_UNARY, &pb_process_update_request, &pb_empty, update},
    {"/process.Process/StreamInput", RPC_CLIENT_STREAM, &pb_process_stream_input_request, &pb_empty,
     stream_input},
    {"/process.Process/SendInput", RPC_UNARY, &pb_process_send_input_request, &pb_empty, send_input},
    {"/process.Process/SendSignal", RPC_UNARY, &pb_process_send_signal_request, &pb_empty, send_signal},
    {"/process.Process/CloseStdin", RPC_UNARY, &pb_process_close_stdin_request, &pb_empty, close_stdin},
    {.path = NULL},
};
