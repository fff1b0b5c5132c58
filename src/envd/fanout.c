/* Readers of a process's output.
 *
 * A reader has a cursor per output into its spool. While it keeps up, chunks go to it straight from the read
 * buffer; when its connection is full it falls behind and is served from the spool as it drains. A reader
 * that falls so far behind that bytes would leave the window holds the process up for PROC_STALL_MS at most;
 * then it loses bytes and is told how many ("missed" in the next data event). */
#include "base/clock.h"
#include "base/id.h"
#include "envd/proc.h"

#include <sys/wait.h>

struct reader {
    struct hf_list link;
    struct proc *p;
    struct rpc_call *c; /* NULL = the call is over */
    uint64_t cursor[PROC_STREAMS], missed[PROC_STREAMS];
    bool starter;
    bool stopped; /* the connection is full */
    bool slow;    /* held the process up once; not waited for until it has caught up */
    bool ended;   /* the end was told */
    uint64_t last_ms;
    uv_timer_t keepalive;
};

/* ---- events ---- */

static json_t *event_msg(const char *kind, json_t *content)
{
    json_t *event = json_object(), *msg = json_object();
    json_object_set_new(event, kind, content);
    json_object_set_new(msg, "event", event);
    return msg;
}

static size_t put_varint(unsigned char *out, uint64_t v)
{
    size_t n = 0;
    for (; v >= 0x80; v >>= 7)
        out[n++] = (unsigned char)(v | 0x80);
    out[n++] = (unsigned char)v;
    return n;
}

/* Response{1 event{2 data{field bytes}, 100 missed}}, written by hand: it is the hot path. */
static int proto_data(struct hf_buf *b, enum proc_stream s, const void *p, size_t n, uint64_t missed)
{
    unsigned char output[16], data[16], tail[16], event[16];
    size_t tail_n = 0, output_n, data_n, event_n;
    output[0] = (unsigned char)((s + 1) << 3 | 2);
    output_n = 1 + put_varint(output + 1, n);
    data[0] = 2 << 3 | 2;
    data_n = 1 + put_varint(data + 1, output_n + n);
    if (missed) {
        tail_n = put_varint(tail, 100 << 3);
        tail_n += put_varint(tail + tail_n, missed);
    }
    event[0] = 1 << 3 | 2;
    event_n = 1 + put_varint(event + 1, data_n + output_n + n + tail_n);
    int r = hf_buf_add(b, event, event_n);
    if (r == 0)
        r = hf_buf_add(b, data, data_n);
    if (r == 0)
        r = hf_buf_add(b, output, output_n);
    if (r == 0)
        r = hf_buf_add(b, p, n);
    return r == 0 ? hf_buf_add(b, tail, tail_n) : r;
}

static int json_data(struct hf_buf *b, enum proc_stream s, const void *p, size_t n, uint64_t missed)
{
    int r = hf_buf_addf(b, "{\"event\":{\"data\":{\"%s\":\"", proc_stream_names[s]);
    if (r == 0)
        r = hf_base64_add(b, p, n);
    if (r == 0 && missed)
        return hf_buf_addf(b, "\"},\"missed\":%llu}}", (unsigned long long)missed);
    return r == 0 ? hf_buf_adds(b, "\"}}}") : r;
}

static void send_data(struct reader *r, enum proc_stream s, const void *p, size_t n)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(n / 3 * 4 + 256);
    int e = hf_buf_reserve(&b, b.max);
    if (e == 0)
        e = rpc_is_json(r->c) ? json_data(&b, s, p, n, r->missed[s]) : proto_data(&b, s, p, n, r->missed[s]);
    if (e < 0)
        abort(); /* the buffer is made for exactly this */
    r->cursor[s] += n;
    r->missed[s] = 0;
    r->last_ms = uv_now(r->p->e->loop);
    r->stopped = rpc_send_raw(r->c, b.p, b.n) != 0;
}

static json_t *end_content(const struct proc *p)
{
    char status[96];
    proc_status_text(p->wait_status, status, sizeof(status));
    bool exited = WIFEXITED(p->wait_status);
    int code = exited ? WEXITSTATUS(p->wait_status) : -1;
    json_t *end = json_object();
    json_object_set_new(end, "exitCode", json_integer(code));
    json_object_set_new(end, "exited", json_boolean(exited));
    json_object_set_new(end, "status", json_string(status));
    if (code != 0)
        json_object_set_new(end, "error", json_string(status));
    return end;
}

static void send_end(struct reader *r)
{
    if (r->ended)
        return;
    r->ended = true;
    for (int s = 0; s < PROC_STREAMS && r->c; s++)
        if (r->missed[s])
            send_data(r, (enum proc_stream)s, "", 0);
    if (r->c)
        (void)rpc_send(r->c, event_msg("end", end_content(r->p)));
    if (r->c)
        rpc_finish(r->c);
}

/* ---- serving from the spool ---- */

static void skip_to(struct reader *r, int s, uint64_t cursor)
{
    r->missed[s] += cursor - r->cursor[s];
    r->cursor[s] = cursor;
}

/* True when something was sent. */
static bool serve_stream(struct reader *r, int s, char *chunk)
{
    struct spool *spool = &r->p->out[s].spool;
    if (r->cursor[s] < spool->start)
        skip_to(r, s, spool->start);
    if (r->cursor[s] >= spool->end)
        return false;
    size_t max = s == PROC_PTY ? PROC_PTY_CHUNK : PROC_PIPE_CHUNK;
    ssize_t n = spool_read(spool, r->cursor[s], chunk, max);
    if (n <= 0) { /* the file is gone or can't be read */
        skip_to(r, s, spool->end);
        return false;
    }
    send_data(r, (enum proc_stream)s, chunk, (size_t)n);
    return true;
}

static bool caught_up(const struct reader *r)
{
    for (int s = 0; s < PROC_STREAMS; s++)
        if (r->cursor[s] < r->p->out[s].spool.end)
            return false;
    return true;
}

static void serve(struct reader *r)
{
    hf_auto_free char *chunk = caught_up(r) ? NULL : hf_xmalloc(PROC_PIPE_CHUNK);
    for (bool more = chunk != NULL; more && r->c && !r->stopped;) {
        more = false;
        for (int s = 0; s < PROC_STREAMS && r->c && !r->stopped; s++)
            more |= serve_stream(r, s, chunk);
    }
    if (!r->c || !caught_up(r))
        return;
    r->slow = false;
    if (r->p->state == PROC_ENDED && !r->stopped)
        send_end(r);
}

/* ---- the call ---- */

static void on_drain(struct rpc_call *c)
{
    struct reader *r = rpc_data(c);
    r->stopped = false;
    serve(r);
    proc_release(r->p);
}

static void on_timeout(struct rpc_call *c)
{
    struct reader *r = rpc_data(c);
    if (r->starter)
        proc_time_out(r->p);
}

static void timer_closed(uv_handle_t *h)
{
    struct reader *r = h->data;
    proc_unref(r->p);
    free(r);
}

static void on_close(struct rpc_call *c)
{
    struct reader *r = rpc_data(c);
    r->c = NULL;
    hf_list_del(&r->link);
    uv_close((uv_handle_t *)&r->keepalive, timer_closed);
    proc_release(r->p);
}

static const struct rpc_ops reader_ops = {
    .on_drain = on_drain, .on_timeout = on_timeout, .on_close = on_close};

static void keep_alive(uv_timer_t *t)
{
    struct reader *r = t->data;
    uint64_t interval = (uint64_t)rpc_keepalive_s(r->c) * 1000;
    uint64_t idle = uv_now(t->loop) - r->last_ms;
    if (idle >= interval) {
        r->last_ms = uv_now(t->loop);
        idle = 0;
        if (!r->stopped)
            (void)rpc_send(r->c, event_msg("keepalive", json_object()));
    }
    if (r->c)
        (void)uv_timer_start(t, keep_alive, interval - idle, 0);
}

/* False when a cursor lies beyond the end; the call was failed then. */
static bool set_cursors(struct reader *r, const struct rpc_cursor *from)
{
    const uint64_t want[PROC_STREAMS] = {from ? from->out : RPC_CURSOR_ABSENT,
                                         from ? from->err : RPC_CURSOR_ABSENT,
                                         from ? from->pty : RPC_CURSOR_ABSENT};
    for (int s = 0; s < PROC_STREAMS; s++) {
        uint64_t end = r->p->out[s].spool.end;
        if (want[s] != RPC_CURSOR_ABSENT && want[s] > end) {
            rpc_fail(r->c, RPC_OUT_OF_RANGE, "cursor %s=%llu is beyond the end of the output at %llu",
                     proc_stream_names[s], (unsigned long long)want[s], (unsigned long long)end);
            return false;
        }
        r->cursor[s] = want[s] == RPC_CURSOR_ABSENT ? end : want[s];
    }
    return true;
}

void fan_attach(struct proc *p, struct rpc_call *c, const struct rpc_cursor *from, bool starter)
{
    struct reader *r = hf_new(struct reader);
    r->p = p;
    r->c = c;
    r->starter = starter;
    if (!set_cursors(r, from)) {
        free(r);
        return;
    }
    proc_ref(p);
    (void)uv_timer_init(p->e->loop, &r->keepalive);
    r->keepalive.data = r;
    r->last_ms = uv_now(p->e->loop);
    hf_list_add_tail(&p->readers, &r->link);
    rpc_set_ops(c, &reader_ops, r);
    (void)uv_timer_start(&r->keepalive, keep_alive, (uint64_t)rpc_keepalive_s(c) * 1000, 0);
    rpc_answer_header(c, "Holdfast-Exec-Id", p->id);
    (void)rpc_send(c, event_msg("start", json_pack("{s:i}", "pid", (int)p->pid)));
    if (r->c)
        serve(r);
}

/* ---- the process's side ---- */

void fan_data(struct proc *p, enum proc_stream s, const void *data, size_t n)
{
    uint64_t before = p->out[s].spool.end - n;
    hf_list_foreach_safe(it, &p->readers)
    {
        struct reader *r = hf_list_entry(it, struct reader, link);
        if (!r->stopped && r->cursor[s] == before)
            send_data(r, s, data, n);
    }
    if (fan_must_hold(p))
        proc_hold(p);
}

void fan_end(struct proc *p)
{
    hf_list_foreach_safe(it, &p->readers)
    {
        struct reader *r = hf_list_entry(it, struct reader, link);
        if (!r->stopped)
            serve(r);
    }
}

static bool holds(const struct reader *r)
{
    if (!r->stopped || r->slow)
        return false;
    for (int s = 0; s < PROC_STREAMS; s++) {
        const struct spool *spool = &r->p->out[s].spool;
        uint64_t slack = spool_slack(spool);
        if (r->p->out[s].fd >= 0 && (slack == 0 || spool->end - r->cursor[s] > slack))
            return true;
    }
    return false;
}

bool fan_must_hold(const struct proc *p)
{
    hf_list_foreach(it, &p->readers)
    {
        if (holds(hf_list_entry(it, struct reader, link)))
            return true;
    }
    return false;
}

void fan_give_up(struct proc *p)
{
    hf_list_foreach(it, &p->readers)
    {
        struct reader *r = hf_list_entry(it, struct reader, link);
        if (holds(r))
            r->slow = true;
    }
}
