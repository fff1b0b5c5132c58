/* A connection from its first byte to its way: pipe, http or intercept. */
#include "egress/l7_int.h"

#include "base/log.h"

static void classify(struct hf_l7_conn *c, bool late);

/* ---- refusals ---- */

void hf_l7_alert(struct hf_l7_conn *c, unsigned alert)
{
    unsigned char bytes[] = {0x15, 3, 3, 0, 2, 2, (unsigned char)alert};
    bool tls = c->kind == HF_L7_TLS && c->client;
    if (tls) {
        uv_buf_t b = uv_buf_init((char *)bytes, sizeof bytes);
        (void)uv_try_write((uv_stream_t *)c->client, &b, 1);
    }
    hf_l7_end(c, !tls);
}

void hf_l7_refuse(struct hf_l7_conn *c, const char *reason)
{
    c->box->counts.l7_denied++;
    hf_record_denial(c->box, "connection", c->host, &c->dst, c->port, c->kind == HF_L7_TLS ? "tls" : "tcp",
                     reason);
    hf_l7_alert(c, HF_L7_ALERT_DENIED);
}

/* False: more bytes are needed. A hello that can't be read is one whose name is bad. */
static bool parse_hello(const struct hf_l7_conn *c, struct hf_hello *ret)
{
    int r = hf_hello_parse(c->first.p, c->first.n, ret);
    if (r < 0)
        *ret = (struct hf_hello){.sni_bad = true};
    return r != 0;
}

/* ---- pipes ---- */

/* What the present policy makes of what the connection is known to be. */
static void judge(struct hf_l7_conn *c, struct hf_l7_ruling *ret)
{
    const struct hf_policy *p = c->box->policy;
    struct hf_hello h;
    struct hf_verdict at;
    char text[HF_L7_HOST_MAX];
    if (c->kind == HF_L7_TLS && c->host[0]) {
        hf_l7_judge_host(p, "https", c->host, false, &c->dst, c->port, ret);
        return;
    }
    if (c->kind == HF_L7_TLS && c->first.n && parse_hello(c, &h)) {
        hf_l7_judge_hello(p, &h, &c->dst, c->port, text, ret);
        return;
    }
    hf_policy_judge_addr(p, &c->dst, &at);
    *ret = (struct hf_l7_ruling){.way = at.decision == HF_ALLOW ? HF_L7_PASS : HF_L7_REFUSE,
                                 .reason = at.reason};
    if (ret->way == HF_L7_PASS || hf_addr_never(&c->dst))
        return;
    if (hf_l7_port_inspected(p, c->port))
        ret->reason = "protocol";
    else if (c->host[0] ? hf_l7_opens_everywhere(p, c->host)
                        : hf_netd_learned_for(c->box, &c->dst, hf_l7_opens_everywhere, c->host))
        *ret = (struct hf_l7_ruling){.way = HF_L7_PASS, .bind = true, .reason = "name"};
}

/* The same where the resolver can't be waited for: bound once, or known to be. */
static bool may_pass(struct hf_l7_conn *c, struct hf_l7_ruling *ret)
{
    judge(c, ret);
    if (ret->way == HF_L7_PASS && ret->bind && !c->bound && !hf_netd_learned(c->box, c->host, &c->dst))
        *ret = (struct hf_l7_ruling){.way = HF_L7_REFUSE, .reason = "address"};
    return ret->way == HF_L7_PASS;
}

static enum hf_l7_inspected inspect_late(struct hf_l7_conn *c);

static void on_pipe_origin(void *arg, struct hf_l7_link *link, const struct hf_err *err)
{
    struct hf_l7_conn *c = arg;
    struct hf_l7_ruling r;
    c->up = NULL;
    if (!link->stream) {
        hf_log_debug("no connection to the origin", "sandbox=%s error=%s", c->box->sandbox,
                     hf_log_quote(err->msg));
        hf_l7_record_pipe(c, 0, 0);
        hf_l7_alert(c, HF_L7_ALERT_ORIGIN);
        return;
    }
    if (!may_pass(c, &r)) { /* the policy may be another one by now */
        hf_l7_link_close(link, true);
        hf_l7_refuse(c, r.way == HF_L7_INTERCEPT ? "policy" : r.reason);
        return;
    }
    struct hf_l7_pipe_req q = {.client = {.stream = (uv_stream_t *)hf_take_ptr(c->client)},
                               .origin = *link,
                               .inspect = c->server_first ? inspect_late : NULL,
                               .to_origin = {c->first.p, c->server_first ? 0 : c->first.n}};
    hf_l7_pipe_start(c, &q);
    if (c->host[0])
        hf_buf_done(&c->first); /* else the hello is all that is known of it */
}

static void pipe_open(struct hf_l7_conn *c)
{
    struct hf_l7_up_req q = {.host = c->host, .bound = c->bound};
    c->state = HF_L7_OPENING;
    c->up = hf_l7_up(c, &q, on_pipe_origin, c);
}

/* ---- TLS ---- */

static void tls_go(struct hf_l7_conn *c)
{
    struct hf_l7_ruling r;
    judge(c, &r);
    if (r.way == HF_L7_REFUSE)
        hf_l7_refuse(c, r.reason);
    else if (r.way == HF_L7_PASS)
        pipe_open(c);
    else
        hf_l7_mitm_start(c);
}

static void on_bound(void *arg, bool yes)
{
    struct hf_l7_conn *c = arg;
    c->bind = NULL;
    c->bound = yes;
    if (yes)
        tls_go(c);
    else
        hf_l7_refuse(c, "address");
}

static void tls_first(struct hf_l7_conn *c, const struct hf_hello *h)
{
    struct hf_l7_ruling r;
    hf_l7_judge_hello(c->box->policy, h, &c->dst, c->port, c->host, &r);
    if (r.way == HF_L7_REFUSE) {
        hf_l7_refuse(c, r.reason);
        return;
    }
    c->state = HF_L7_OPENING;
    if (!r.bind) {
        if (r.way == HF_L7_PASS)
            pipe_open(c);
        else
            hf_l7_mitm_start(c);
        return;
    }
    if (hf_l7_bind(c, c->host, on_bound, c, &c->bind) == 1)
        on_bound(c, true);
}

/* ---- the first bytes ---- */

static void raw_first(struct hf_l7_conn *c)
{
    struct hf_l7_ruling r;
    judge(c, &r);
    c->bound = r.bind;
    if (r.way == HF_L7_PASS)
        pipe_open(c);
    else
        hf_l7_refuse(c, r.reason);
}

/* The client of a server that speaks first has said something. */
static enum hf_l7_inspected inspect_late(struct hf_l7_conn *c)
{
    struct hf_hello h;
    enum hf_l7_kind kind = hf_l7_sniff(c->first.p, c->first.n);
    bool more = kind == HF_L7_MORE || (kind == HF_L7_TLS && !parse_hello(c, &h));
    if (more)
        return HF_L7_HOLD;
    if (kind == HF_L7_OTHER)
        return HF_L7_SEND;
    c->kind = kind;
    uv_stream_t *s = hf_l7_pipe_undo(c);
    if (!s) {
        /* STARTTLS and the like: in a protocol of another kind from its first line on */
        struct hf_l7_ruling r = {.way = HF_L7_REFUSE, .reason = "protocol"};
        if (kind == HF_L7_TLS)
            hf_l7_judge_hello(c->box->policy, &h, &c->dst, c->port, c->host, &r);
        if (r.way == HF_L7_PASS && (!r.bind || hf_netd_learned(c->box, c->host, &c->dst)))
            return HF_L7_SEND;
        hf_l7_refuse(c, r.way == HF_L7_REFUSE ? r.reason : "protocol");
        return HF_L7_GONE;
    }
    c->client = (uv_tcp_t *)s;
    c->client->data = c;
    c->server_first = false;
    c->state = HF_L7_FIRST;
    classify(c, false);
    return HF_L7_GONE;
}

static void spoke(struct hf_l7_conn *c)
{
    if (!c->waiting)
        return;
    c->waiting = false;
    hf_list_del(&c->node);
    hf_list_add_tail(&c->box->l7, &c->node);
}

/* The connection's way, once its first bytes say it. late: no more will be waited for. */
static void classify(struct hf_l7_conn *c, bool late)
{
    struct hf_hello h;
    c->kind = hf_l7_sniff(c->first.p, c->first.n);
    if (c->kind == HF_L7_MORE && late && !hf_l7_port_inspected(c->box->policy, c->port))
        c->kind = HF_L7_OTHER;
    bool more = c->kind == HF_L7_MORE || (c->kind == HF_L7_TLS && !parse_hello(c, &h));
    if (more && !late)
        return;
    (void)uv_timer_stop(&c->timer);
    if (c->client)
        uv_read_stop((uv_stream_t *)c->client);
    struct hf_l7_link none = {0};
    if (more)
        hf_l7_end(c, true);
    else if (c->kind == HF_L7_TLS)
        tls_first(c, &h);
    else if (c->kind == HF_L7_PLAIN_HTTP)
        hf_l7_http_start(c, NULL, &none);
    else
        raw_first(c);
}

static void alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf)
{
    struct hf_l7_conn *c = h->data;
    *buf = uv_buf_init(c->l7->read_buf, (unsigned)HF_MIN(HF_L7_READ_SIZE, c->first.max - c->first.n));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct hf_l7_conn *c = s->data;
    if (n == 0)
        return;
    if (n < 0 || hf_buf_add(&c->first, buf->base, (size_t)n) < 0) {
        hf_l7_end(c, n != UV_EOF);
        return;
    }
    spoke(c);
    classify(c, c->first.n >= c->first.max);
}

static void on_late(uv_timer_t *t)
{
    struct hf_l7_conn *c = t->data;
    if (c->first.n)
        classify(c, true);
    else
        hf_l7_end(c, true);
}

static void on_silence(uv_timer_t *t)
{
    struct hf_l7_conn *c = t->data;
    if (c->first.n) {
        (void)uv_timer_start(t, on_late, HF_L7_FIRST_MS - HF_L7_SERVER_FIRST_MS, 0);
        return;
    }
    spoke(c);
    uv_read_stop((uv_stream_t *)c->client);
    c->server_first = true;
    c->kind = HF_L7_OTHER;
    raw_first(c);
}

void hf_l7_begin(struct hf_l7_conn *c)
{
    bool inspected = hf_l7_port_inspected(c->box->policy, c->port);
    c->state = HF_L7_FIRST;
    c->started_ms = uv_now(c->l7->d->loop);
    hf_l7_owner_ask(c); /* at once: a short request's socket is gone soon */
    if (inspected)
        (void)uv_timer_start(&c->timer, on_late, HF_L7_FIRST_MS, 0);
    else
        (void)uv_timer_start(&c->timer, on_silence, HF_L7_SERVER_FIRST_MS, 0);
    if (uv_read_start((uv_stream_t *)c->client, alloc, on_read) < 0)
        hf_l7_end(c, true);
}

/* ---- another policy ---- */

static bool tunnel_allowed(struct hf_l7_conn *c)
{
    struct hf_l7_ruling r;
    struct hf_verdict v;
    const char *scheme = c->tls ? "https" : "http";
    struct hf_addr a;
    bool is_addr = hf_addr_parse(hf_str_c(c->tunnel_host), &a) == 0;
    hf_l7_judge_host(c->box->policy, scheme, c->tunnel_host, is_addr, &c->dst, c->port, &r);
    if (r.bind && !c->bound && !hf_netd_learned(c->box, c->tunnel_host, &c->dst))
        return false;
    if (r.way != HF_L7_INTERCEPT)
        return r.way == HF_L7_PASS;
    struct hf_judge_req q = {.scheme = scheme,
                             .host = c->tunnel_host,
                             .port = c->port,
                             .method = hf_str_c(c->tunnel_method),
                             .path = hf_str_c(c->tunnel_path),
                             .learned = !is_addr};
    hf_policy_judge(c->box->policy, &q, &c->dst, &v);
    return v.decision == HF_ALLOW;
}

void hf_l7_conn_rejudge(struct hf_l7_conn *c)
{
    struct hf_l7_ruling r;
    if (c->state == HF_L7_HTTP) {
        hf_l7_http_rejudge(c);
        return;
    }
    if (c->state != HF_L7_PIPE)
        return; /* judged when it goes on */
    if (c->tunnel_path) {
        if (!tunnel_allowed(c))
            hf_l7_refuse(c, "policy");
        return;
    }
    if (!may_pass(c, &r))
        hf_l7_refuse(c, r.way == HF_L7_INTERCEPT ? "policy" : r.reason);
}
