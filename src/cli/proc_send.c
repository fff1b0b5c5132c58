/* What goes to a followed process beside its stream: input, signals, window size, signs of life. At most one
 * request of input and one of the rest is in flight, so that input keeps its order and a signal never waits
 * for a process that does not read. */
#include <errno.h>
#include <signal.h>

#include "base/clock.h"
#include "base/id.h"
#include "cli/proc_int.h"
#include "cli/term.h"

#define REFRESH_EVERY_MS 30000u
#define REFRESH_FOR_S 90

static void slot_free(struct proc *p, struct proc_slot *s)
{
    if (s->easy) {
        if (s->busy)
            (void)curl_multi_remove_handle(p->multi, s->easy);
        curl_easy_cleanup(s->easy);
    }
    curl_slist_free_all(s->headers);
    free(s->body);
    hf_buf_done(&s->out);
    *s = (struct proc_slot){0};
}

void proc_send_free(struct proc *p)
{
    slot_free(p, &p->input_slot);
    slot_free(p, &p->control_slot);
    hf_buf_done(&p->pending);
}

/* Takes msg. */
static void slot_post(struct proc *p, struct proc_slot *s, const char *base, const char *path,
                      struct curl_slist *headers, json_t *msg)
{
    hf_auto_free char *url = hf_xasprintf("%s%s", base, path);
    if (s->easy)
        curl_easy_cleanup(s->easy);
    s->easy = hf_client_easy(p->cli, url, s->errbuf);
    curl_slist_free_all(s->headers);
    s->headers = hf_client_header(headers, "Content-Type", "application/json");
    free(s->body);
    s->body = json_dumps(msg, JSON_COMPACT);
    json_decref(msg);
    hf_buf_done(&s->out);
    s->out = HF_BUF_INIT(64 * 1024);
    curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, s->headers);
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE, (long)(s->body ? strlen(s->body) : 0));
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, s->body ? s->body : "");
    curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, hf_client_collect);
    curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, &s->out);
    s->busy = curl_multi_add_handle(p->multi, s->easy) == CURLM_OK;
}

static void call(struct proc *p, struct proc_slot *s, const char *method, json_t *msg)
{
    slot_post(p, s, p->cli->sandbox_url, method, hf_box_headers(p->box, true), msg);
}

static json_t *selector(const struct proc *p)
{
    return json_pack("{s:I}", "pid", (json_int_t)p->ret->pid);
}

static void send_input(struct proc *p)
{
    size_t n = HF_MIN(p->pending.n, (size_t)HF_PROC_INPUT_BATCH);
    hf_auto_buf struct hf_buf b64 = HF_BUF_INIT(2 * HF_PROC_INPUT_BATCH);
    if (hf_base64_add(&b64, p->pending.p, n) < 0)
        return;
    call(p, &p->input_slot, "/process.Process/SendInput",
         json_pack("{s:o, s:{s:s}}", "process", selector(p), "input", p->spec->pty ? "pty" : "stdin", b64.p));
    hf_buf_consume(&p->pending, n);
}

static void send_input_slot(struct proc *p)
{
    if (p->input_slot.busy)
        return;
    if (p->pending.n && p->input != INPUT_CLOSED) {
        send_input(p);
    } else if (p->input == INPUT_EOF) {
        p->input = INPUT_CLOSED;
        if (!p->spec->pty)
            call(p, &p->input_slot, "/process.Process/CloseStdin",
                 json_pack("{s:o}", "process", selector(p)));
    }
}

static void send_refresh(struct proc *p)
{
    hf_auto_free char *path = hf_xasprintf("/sandboxes/%s/refreshes", p->box->id);
    struct curl_slist *headers = NULL;
    if (p->cli->api_key)
        headers = hf_client_header(headers, "X-API-KEY", p->cli->api_key);
    p->refresh_ms = hf_mono_ms() + REFRESH_EVERY_MS;
    slot_post(p, &p->control_slot, p->cli->url, path, headers, json_pack("{s:i}", "duration", REFRESH_FOR_S));
}

static void send_control_slot(struct proc *p)
{
    unsigned cols, rows;
    if (p->control_slot.busy)
        return;
    if (p->want_signal) {
        const char *name = p->want_signal == SIGKILL ? "SIGNAL_SIGKILL" : "SIGNAL_SIGTERM";
        p->want_signal = 0;
        call(p, &p->control_slot, "/process.Process/SendSignal",
             json_pack("{s:o, s:s}", "process", selector(p), "signal", name));
    } else if (p->want_resize) {
        p->want_resize = false;
        hf_term_size(STDIN_FILENO, &cols, &rows);
        call(p, &p->control_slot, "/process.Process/Update",
             json_pack("{s:o, s:{s:{s:i, s:i}}}", "process", selector(p), "pty", "size", "cols", (int)cols,
                       "rows", (int)rows));
    } else if (p->spec->keep_alive && hf_mono_ms() >= p->refresh_ms) {
        send_refresh(p);
    }
}

void proc_send(struct proc *p)
{
    if (!p->ret->pid || p->ret->ended)
        return;
    send_input_slot(p);
    send_control_slot(p);
}

bool proc_send_done(struct proc *p, CURL *easy, CURLcode code)
{
    struct proc_slot *s = easy == p->input_slot.easy ? &p->input_slot : &p->control_slot;
    long status = 0;
    if (easy != s->easy)
        return false;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    (void)curl_multi_remove_handle(p->multi, easy);
    s->busy = false;
    if (s != &p->input_slot || (code == CURLE_OK && status == 200))
        return true;
    /* The process closed its stdin or is gone: reading on would only throw the input away. The end of the
     * process itself is told by its stream. */
    if (code != CURLE_OK && p->input != INPUT_CLOSED && !p->spec->pty)
        hf_cli_say(p->cli, "holdfast: the connection broke; part of the input may not have arrived");
    p->input = INPUT_CLOSED;
    hf_buf_clear(&p->pending);
    if (p->spec->pty && code != CURLE_OK)
        p->input = INPUT_OPEN; /* a terminal goes on: only these keys are lost */
    return true;
}

bool proc_wants_input(const struct proc *p)
{
    return p->input == INPUT_OPEN && p->ret->pid && p->pending.n < HF_PROC_INPUT_MAX;
}

/* "Enter ~ ." leaves, as in ssh: the way out when nothing answers any more. The keys are sent all the same.
 */
static bool leaves(struct proc *p, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p->leave_state == 2 && s[i] == '.')
            return true;
        p->leave_state = s[i] == '\r' || s[i] == '\n' ? 1 : p->leave_state == 1 && s[i] == '~' ? 2 : 0;
    }
    return false;
}

void proc_read_input(struct proc *p)
{
    if (hf_buf_reserve(&p->pending, 16384) < 0)
        return;
    ssize_t n = read(STDIN_FILENO, p->pending.p + p->pending.n, 16384);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) {
        p->input = INPUT_EOF;
        return;
    }
    if (p->spec->pty && leaves(p, p->pending.p + p->pending.n, (size_t)n))
        p->ret->left = true;
    p->pending.n += (size_t)n;
}
