#include "cli/proc.h"

#include <signal.h>
#include <sys/signalfd.h>

#include "base/clock.h"
#include "base/id.h"
#include "cli/proc_int.h"
#include "cli/term.h"
#include "cli/url.h"

#define POLL_MS 1000
#define END_GRACE_MS 2000u /* the stream should close right after the end event */
#define RECONNECTS_MAX 20u /* in a row without one event */
#define RECONNECT_PAUSE_MS 250

/* ---- what the stream says ---- */

int hf_proc_signal_of(const char *status)
{
    /* envd speaks as Go does: strsignal's words, in lower case. */
    static const struct {
        const char *name;
        int number;
    } names[] = {
        {"hangup", SIGHUP},
        {"interrupt", SIGINT},
        {"quit", SIGQUIT},
        {"illegal instruction", SIGILL},
        {"trace/breakpoint trap", SIGTRAP},
        {"aborted", SIGABRT},
        {"bus error", SIGBUS},
        {"floating point exception", SIGFPE},
        {"killed", SIGKILL},
        {"user defined signal 1", SIGUSR1},
        {"segmentation fault", SIGSEGV},
        {"user defined signal 2", SIGUSR2},
        {"broken pipe", SIGPIPE},
        {"alarm clock", SIGALRM},
        {"terminated", SIGTERM},
        {"cpu time limit exceeded", SIGXCPU},
        {"file size limit exceeded", SIGXFSZ},
        {"bad system call", SIGSYS},
    };
    static const char prefix[] = "signal: ";
    uint64_t number;
    if (strncmp(status, prefix, sizeof(prefix) - 1) != 0)
        return 0;
    status += sizeof(prefix) - 1;
    for (size_t i = 0; i < HF_ARRAY_LEN(names); i++)
        if (strncmp(status, names[i].name, strlen(names[i].name)) == 0)
            return names[i].number;
    if (strncmp(status, "signal ", 7) == 0 && hf_parse_u64(hf_str_c(status + 7), 64, &number) == 0)
        return (int)number;
    return 0;
}

static void on_start(struct proc *p, const json_t *start)
{
    p->ret->pid = (uint32_t)json_integer_value(json_object_get(start, "pid"));
    p->reconnects = 0;
    if (p->spec->detach)
        p->stream_done = true;
    if (p->spec->pty)
        p->want_resize = p->reattached;
}

static const char *const stream_names[PROC_STREAMS] = {
    [HF_PROC_STDOUT] = "stdout", [HF_PROC_STDERR] = "stderr", [HF_PROC_PTY] = "pty"};

static void output_is_closed(struct proc *p)
{
    p->ret->output_closed = true;
    p->want_signal = SIGTERM;
}

static int deliver(struct proc *p, enum hf_proc_stream which, const char *data, size_t n)
{
    if (p->spec->output)
        return p->spec->output(p->spec->arg, which, data, n);
    struct proc_out *o = &p->out[which == HF_PROC_STDERR];
    int r = proc_out_push(o, data, n);
    return r < 0 ? r : proc_out_pump(o);
}

/* data is {"stdout": base64}, {"stderr": …} or {"pty": …}; missed: bytes of it that were thrown away. */
static int on_data(struct proc *p, const json_t *data, uint64_t missed)
{
    p->ret->missed += missed;
    for (size_t i = 0; i < PROC_STREAMS; i++) {
        const json_t *text = json_object_get(data, stream_names[i]);
        hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_PROC_MESSAGE_MAX);
        if (!text)
            continue;
        if (hf_unbase64_add(&b, (struct hf_str){json_string_value(text), json_string_length(text)}) < 0)
            return hf_err_set(p->err, -EBADMSG, "the sandbox sent output that is not base64");
        p->cursor[i] += missed + b.n;
        if (!p->ret->output_closed && deliver(p, (enum hf_proc_stream)i, b.p ? b.p : "", b.n) < 0)
            output_is_closed(p);
    }
    return 0;
}

static void on_end(struct proc *p, const json_t *end)
{
    struct hf_proc_result *ret = p->ret;
    const char *status = json_string_value(json_object_get(end, "status"));
    ret->ended = true;
    ret->exit_code = (int)json_integer_value(json_object_get(end, "exitCode"));
    ret->signal = hf_proc_signal_of(status ? status : "");
    ret->exited = json_is_true(json_object_get(end, "exited")) || (!ret->signal && ret->exit_code >= 0);
    p->end_ms = hf_mono_ms();
}

/* The last envelope: {} or {"error":{"code","message"}}. */
static int on_end_stream(struct proc *p, struct hf_str payload)
{
    json_t *j = json_loadb(payload.p, payload.n, 0, NULL);
    const json_t *error = json_object_get(j, "error");
    const char *code = json_string_value(json_object_get(error, "code"));
    const char *message = json_string_value(json_object_get(error, "message"));
    p->end_seen = true;
    if (error && code && strcmp(code, "deadline_exceeded") == 0)
        p->ret->timed_out = true;
    else if (error)
        p->r = hf_err_http(p->err, code && strcmp(code, "not_found") == 0 ? -ENOENT : -EIO, 400, "%s",
                           message && *message ? message : "the sandbox refused to run the command");
    json_decref(j);
    return 0;
}

static int on_envelope(void *arg, unsigned flags, struct hf_str payload)
{
    struct proc *p = arg;
    if (flags & HF_CONNECT_FLAG_END)
        return on_end_stream(p, payload);
    json_t *j = json_loadb(payload.p, payload.n, 0, NULL);
    const json_t *event = json_object_get(j, "event"), *part;
    int r = 0;
    if (!j)
        r = hf_err_set(p->err, -EBADMSG, "the sandbox sent an event that is not JSON");
    if ((part = json_object_get(event, "start")))
        on_start(p, part);
    if ((part = json_object_get(event, "data")) && !p->spec->detach)
        r = on_data(p, part, (uint64_t)json_integer_value(json_object_get(event, "missed")));
    if ((part = json_object_get(event, "end")))
        on_end(p, part);
    json_decref(j);
    return r;
}

static size_t on_bytes(char *data, size_t size, size_t n, void *arg)
{
    struct proc *p = arg;
    long status = 0;
    curl_easy_getinfo(p->stream, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        return hf_client_collect(data, size, n, &p->refusal);
    int r = p->end_seen ? 0 : hf_connect_feed(&p->parser, data, size * n, on_envelope, p);
    if (r == 0)
        return size * n;
    p->r = r;
    if (!*p->err->msg)
        (void)hf_err_set(p->err, r, "the sandbox sent something that is no event");
    return 0;
}

/* ---- opening the stream ---- */

static void stream_close(struct proc *p)
{
    if (p->stream) {
        (void)curl_multi_remove_handle(p->multi, p->stream);
        curl_easy_cleanup(p->stream);
        p->stream = NULL;
    }
    curl_slist_free_all(p->stream_headers);
    p->stream_headers = NULL;
    free(p->stream_body);
    p->stream_body = NULL;
    hf_connect_done(&p->parser);
    hf_buf_done(&p->refusal);
}

static struct curl_slist *stream_headers(const struct proc *p)
{
    char text[128];
    struct curl_slist *h = hf_box_headers(p->box, true);
    h = hf_client_header(h, "Content-Type", "application/connect+json");
    (void)snprintf(text, sizeof(text), "%u", HF_PROC_KEEPALIVE_S);
    h = hf_client_header(h, "Keepalive-Ping-Interval", text);
    if (p->spec->timeout_ms && !p->reattached) {
        (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)p->spec->timeout_ms);
        h = hf_client_header(h, "Connect-Timeout-Ms", text);
    }
    if (!p->reattached)
        return h;
    /* Go on exactly where the broken stream ended; docs/api/envd.md. */
    if (p->spec->pty)
        (void)snprintf(text, sizeof(text), "pty=%llu", (unsigned long long)p->cursor[HF_PROC_PTY]);
    else
        (void)snprintf(text, sizeof(text), "stdout=%llu,stderr=%llu",
                       (unsigned long long)p->cursor[HF_PROC_STDOUT],
                       (unsigned long long)p->cursor[HF_PROC_STDERR]);
    return hf_client_header(h, "Holdfast-Cursor", text);
}

/* Takes msg. */
static int stream_open(struct proc *p, const char *method, json_t *msg)
{
    hf_auto_free char *url = hf_xasprintf("%s%s", p->cli->sandbox_url, method);
    hf_auto_free char *text = json_dumps(msg, JSON_COMPACT);
    hf_auto_buf struct hf_buf body = HF_BUF_INIT(HF_PROC_MESSAGE_MAX);
    json_decref(msg);
    if (!text)
        return hf_err_set(p->err, -EINVAL, "the command is no valid UTF-8 text");
    if (hf_connect_add(&body, 0, text, strlen(text)) < 0)
        return hf_err_set(p->err, -EMSGSIZE, "the command is too long");
    hf_connect_init(&p->parser, HF_PROC_MESSAGE_MAX);
    p->refusal = HF_BUF_INIT(256 * 1024);
    p->stream_done = p->end_seen = false;
    p->stream = hf_client_easy(p->cli, url, p->stream_errbuf);
    p->stream_headers = stream_headers(p);
    curl_easy_setopt(p->stream, CURLOPT_HTTPHEADER, p->stream_headers);
    curl_easy_setopt(p->stream, CURLOPT_POSTFIELDSIZE, (long)body.n);
    p->stream_body = hf_buf_take(&body);
    curl_easy_setopt(p->stream, CURLOPT_POSTFIELDS, p->stream_body);
    curl_easy_setopt(p->stream, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(p->stream, CURLOPT_WRITEDATA, p);
    curl_easy_setopt(p->stream, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(p->stream, CURLOPT_LOW_SPEED_TIME, HF_PROC_SILENCE_S);
    if (curl_multi_add_handle(p->multi, p->stream) != CURLM_OK)
        return hf_err_set(p->err, -EIO, "cannot start the request");
    return 0;
}

static json_t *start_message(const struct hf_proc_spec *spec)
{
    unsigned cols, rows;
    json_t *args = json_array(), *process = json_object(), *msg = json_object();
    for (size_t i = 0; i < spec->n_args; i++)
        (void)json_array_append_new(args, json_string(spec->args[i]));
    (void)json_object_set_new(process, "cmd", json_string(spec->cmd));
    (void)json_object_set_new(process, "args", args);
    if (spec->envs)
        (void)json_object_set(process, "envs", (json_t *)spec->envs);
    if (spec->cwd)
        (void)json_object_set_new(process, "cwd", json_string(spec->cwd));
    (void)json_object_set_new(msg, "process", process);
    if (spec->pty) {
        hf_term_size(STDIN_FILENO, &cols, &rows);
        (void)json_object_set_new(msg, "pty",
                                  json_pack("{s:{s:i, s:i}}", "size", "cols", (int)cols, "rows", (int)rows));
    } else {
        (void)json_object_set_new(msg, "stdin", json_boolean(spec->forward_stdin));
    }
    return msg;
}

/* ---- the loop ---- */

static void on_signal(struct proc *p, int sig)
{
    if (sig == SIGWINCH) {
        p->want_resize = p->spec->pty;
        return;
    }
    if (!p->ret->pid || p->ret->ended || sig == SIGHUP || ++p->interrupts > 2) {
        p->ret->interrupted = sig;
        return;
    }
    p->want_signal = p->interrupts == 1 ? SIGTERM : SIGKILL;
    if (p->interrupts == 1 && sig == SIGINT)
        hf_cli_say(p->cli, "\nholdfast: asked the command to end; Ctrl-C again kills it");
}

static void read_signals(struct proc *p)
{
    struct signalfd_siginfo info;
    while (read(p->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        on_signal(p, (int)info.ssi_signo);
}

static void collect_done(struct proc *p)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(p->multi, &left));) {
        if (m->msg != CURLMSG_DONE)
            continue;
        CURL *easy = m->easy_handle; /* m is gone once the handle is removed */
        CURLcode code = m->data.result;
        if (easy == p->stream) {
            p->stream_done = true;
            p->code = code;
        } else {
            (void)proc_send_done(p, easy, code);
        }
    }
}

static void pump_output(struct proc *p)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(p->out); i++)
        if (proc_out_pump(&p->out[i]) < 0) {
            /* What waits for a reader that is gone must not keep us. */
            hf_buf_clear(&p->out[i].mem);
            p->out[i].mem_r = 0;
            p->out[i].spill_r = p->out[i].spill_w;
            output_is_closed(p);
        }
}

/* Sleeps until something happens, and does it. */
static void wait_for_more(struct proc *p)
{
    struct curl_waitfd fds[4] = {{.fd = p->signal_fd, .events = CURL_WAIT_POLLIN}};
    unsigned n = 1, input = 0;
    if (proc_wants_input(p)) {
        input = n;
        fds[n++] = (struct curl_waitfd){.fd = STDIN_FILENO, .events = CURL_WAIT_POLLIN};
    }
    for (size_t i = 0; i < HF_ARRAY_LEN(p->out); i++)
        if (proc_out_pending(&p->out[i]))
            fds[n++] = (struct curl_waitfd){.fd = p->out[i].fd, .events = CURL_WAIT_POLLOUT};
    (void)curl_multi_poll(p->multi, fds, n, POLL_MS, NULL);
    if (fds[0].revents)
        read_signals(p);
    if (input && fds[input].revents)
        proc_read_input(p);
    pump_output(p);
}

/* Until the stream is over, or somebody wants to leave. */
static void pump(struct proc *p)
{
    while (!p->stream_done && !p->ret->interrupted && !p->ret->left) {
        int running;
        proc_send(p);
        (void)curl_multi_perform(p->multi, &running);
        collect_done(p);
        if (p->stream_done || (p->ret->ended && hf_mono_ms() - p->end_ms > END_GRACE_MS))
            break;
        proc_send(p);
        wait_for_more(p);
    }
}

/* What is still on its way to our own reader. */
static void drain(struct proc *p)
{
    while (!p->ret->interrupted && (proc_out_pending(&p->out[0]) || proc_out_pending(&p->out[1])))
        wait_for_more(p);
}

/* ---- when the connection breaks ---- */

/* 1 = the sandbox runs; 0 = it does not; negative = nobody could tell in time. */
static int ask_state(struct proc *p)
{
    uint64_t until = hf_mono_ms() + HF_PROC_RECONNECT_MS;
    for (;;) {
        struct hf_err err = {0};
        hf_auto_answer struct hf_answer a = {0};
        hf_auto_free char *path = hf_xasprintf("/sandboxes/%s", p->box->id);
        int r = hf_api(p->cli, "GET", path, NULL, &a, &err);
        const char *state = json_string_value(json_object_get(a.body, "state"));
        if (r == 0)
            return state && strcmp(state, "running") == 0;
        if (r == -ENOENT)
            return 0;
        if (hf_mono_ms() >= until || p->ret->interrupted || err.status == 401 || err.status == 403)
            return -EHOSTUNREACH;
        struct curl_waitfd fd = {.fd = p->signal_fd, .events = CURL_WAIT_POLLIN};
        (void)curl_multi_poll(p->multi, &fd, 1, RECONNECT_PAUSE_MS, NULL);
        if (fd.revents)
            read_signals(p);
    }
}

static int sandbox_ended(struct proc *p)
{
    char fate[HF_ERR_MSG_MAX / 2];
    bool known = hf_box_fate(p->cli, p->box->id, fate, sizeof(fate));
    if (known && strstr(fate, "(timeout)"))
        hf_cli_hint(p->cli,
                    "`exec --keep-alive` prolongs its life while a command runs; `sandbox timeout` sets it");
    return hf_err_set(p->err, -ESHUTDOWN, "the sandbox ended while the command ran%s%s", known ? ": " : "",
                      known ? fate : "");
}

/* The stream broke while the process ran. The process does not mind (it belongs to the sandbox, not to the
 * connection), so attach again when the sandbox lives. 0 when a new stream is open. */
static int reattach(struct proc *p)
{
    stream_close(p);
    int r = ++p->reconnects > RECONNECTS_MAX ? -EHOSTUNREACH : ask_state(p);
    if (p->ret->interrupted)
        return 0;
    p->cli->hint[0] = '\0';
    if (r == 0)
        return sandbox_ended(p);
    if (r < 0) {
        hf_cli_hint(p->cli, "the command may still run: process %u in sandbox %s", p->ret->pid, p->box->id);
        return hf_err_set(p->err, r, "lost the connection to sandbox %s", p->box->id);
    }
    hf_cli_say(p->cli, "%sholdfast: the connection broke; attached again%s", p->spec->pty ? "\r\n" : "",
               p->spec->pty ? "\r" : "");
    p->reattached = true;
    *p->err = (struct hf_err){0};
    return stream_open(p, "/process.Process/Connect",
                       json_pack("{s:{s:I}}", "process", "pid", (json_int_t)p->ret->pid));
}

/* What the end of the stream means. 1 = attach again, 0 = the result is known, negative = failed. */
static int judge(struct proc *p)
{
    long status = 0;
    struct hf_proc_result *ret = p->ret;
    if (ret->ended || ret->timed_out || ret->left || ret->interrupted || (p->spec->detach && ret->pid))
        return 0;
    if (p->stream)
        curl_easy_getinfo(p->stream, CURLINFO_RESPONSE_CODE, &status);
    if (p->r < 0)
        return p->r;
    if (status && status != 200 && !(ret->pid && status >= 502))
        return hf_client_answer_err(p->cli, status, (struct hf_str){p->refusal.p, p->refusal.n}, p->err);
    if (ret->pid)
        return 1;
    if (p->code != CURLE_OK)
        return hf_client_transport_err(p->cli, p->cli->sandbox_url, p->code, p->stream_errbuf, p->err);
    return hf_err_set(p->err, -EBADMSG, "the sandbox closed the connection before the command started");
}

static int follow(struct proc *p)
{
    int r = stream_open(p, "/process.Process/Start", start_message(p->spec));
    while (r == 0) {
        pump(p);
        r = judge(p);
        if (r <= 0)
            return r;
        r = reattach(p);
        if (r == 0 && p->ret->interrupted)
            return 0;
    }
    return r;
}

static int take_signals(sigset_t *before)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGHUP);
    (void)sigaddset(&set, SIGWINCH);
    (void)sigprocmask(SIG_BLOCK, &set, before);
    (void)signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int hf_proc_run(struct hf_cli *cli, const struct hf_box *box, const struct hf_proc_spec *spec,
                struct hf_proc_result *ret, struct hf_err *err)
{
    sigset_t before;
    struct proc p = {
        .cli = cli, .box = box, .spec = spec, .ret = ret, .err = err, .multi = curl_multi_init()};
    *ret = (struct hf_proc_result){0};
    *err = (struct hf_err){0};
    p.pending = HF_BUF_INIT(HF_PROC_INPUT_MAX + 16384);
    p.input = spec->forward_stdin ? INPUT_OPEN : INPUT_OFF;
    p.signal_fd = take_signals(&before);
    proc_out_init(&p.out[0], STDOUT_FILENO);
    proc_out_init(&p.out[1], STDERR_FILENO);
    int r = p.multi && p.signal_fd >= 0 ? 0 : hf_err_set(err, -ENOMEM, "cannot set up the connection");
    if (r == 0)
        r = follow(&p);
    drain(&p);
    proc_send_free(&p);
    stream_close(&p);
    proc_out_done(&p.out[0]);
    proc_out_done(&p.out[1]);
    (void)curl_multi_cleanup(p.multi);
    (void)hf_close(p.signal_fd);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return r;
}
