/* Requests of boxes: each is judged for itself before anything of it leaves. */
#include "egress/l7_http.h"

#include "base/log.h"

#include <stdio.h>

const char *hf_l7_scheme(const struct hf_l7_conn *c)
{
    return c->tls ? "https" : "http";
}

/* ---- answers of our own ---- */

static void answer(struct hf_l7_xchg *x, int status, json_t *body)
{
    hf_auto_free char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    x->status = status;
    x->waiting = false;
    hf_req_resume(x->req); /* what still comes of the body is thrown away */
    hf_res_send(x->req, status, "application/json", text ? text : "{}", text ? strlen(text) : 2);
}

void hf_l7_deny(struct hf_l7_xchg *x, int status, const char *reason, const char *by, const char *message)
{
    const struct hf_policy *p = x->policy;
    x->denied = true;
    x->reason = reason;
    x->c->box->counts.l7_denied++;
    hf_res_header(x->req, "x-holdfast-denied", reason);
    answer(x, status,
           json_pack("{s:i, s:s, s:s, s:s, s:s}", "code", status, "message", message, "policy",
                     p->label ? p->label : "", "rule", x->rule ? x->rule->name : by, "reason", reason));
}

void hf_l7_bad_gateway(struct hf_l7_xchg *x, const char *message)
{
    char text[HF_ERR_MSG_MAX + 64];
    (void)snprintf(text, sizeof text, "the origin can't be reached: %s", message);
    x->reason = "origin";
    answer(x, 502, json_pack("{s:i, s:s}", "code", 502, "message", text));
}

/* ---- the end of an exchange ---- */

static void record(struct hf_l7_xchg *x)
{
    struct hf_l7_conn *c = x->c;
    struct hf_str path = hf_req_path(x->req), method = hf_req_method(x->req);
    enum hf_audit audit = x->rule ? x->rule->audit : HF_AUDIT_METADATA;
    if (audit == HF_AUDIT_NONE && !x->denied)
        return;
    if (audit == HF_AUDIT_FULL)
        path = hf_req_target(x->req);
    hf_auto_free char *m = hf_str_dup(method), *p = hf_str_dup(path);
    struct hf_request_record r = {.rule = x->rule ? x->rule->name : "",
                                  .scheme = hf_l7_scheme(c),
                                  .method = m,
                                  .host = x->to.host,
                                  .path = p,
                                  .reason = x->reason ? x->reason : "",
                                  .audit = audit == HF_AUDIT_FULL ? "full" : "metadata",
                                  .addr = c->dst,
                                  .port = c->port,
                                  .status = x->status,
                                  .denied = x->denied,
                                  .bytes_out = x->bytes_out,
                                  .bytes_in = x->bytes_in,
                                  .duration_ms = uv_now(c->l7->d->loop) - x->started_ms};
    hf_l7_record(c, &r);
}

static void on_close(struct hf_req *req)
{
    struct hf_l7_xchg *x = hf_req_data(req);
    hf_l7_bind_cancel(x->bind);
    if (x->cx) {
        struct hf_cx *cx = x->cx;
        hf_l7_origin_put(x);
        hf_cx_cancel(cx);
    }
    record(x);
    hf_list_del(&x->node);
    hf_policy_unref(x->policy);
    hf_buf_done(&x->trailers);
    free(x);
}

/* ---- the request's body ---- */

static void on_data(struct hf_req *req, const char *p, size_t n)
{
    struct hf_l7_xchg *x = hf_req_data(req);
    if (!x->cx)
        return; /* answered already */
    x->body_taken = true;
    x->bytes_out += n;
    if (hf_cx_write(x->cx, p, n) == 1)
        hf_req_pause(req);
}

static void on_end(struct hf_req *req)
{
    struct hf_l7_xchg *x = hf_req_data(req);
    x->body_over = true;
    if (x->cx && hf_req_has_body(req))
        hf_cx_end(x->cx);
}

static void on_drain(struct hf_req *req)
{
    struct hf_l7_xchg *x = hf_req_data(req);
    if (x->cx)
        hf_cx_resume(x->cx);
}

static const struct hf_req_ops req_ops = {
    .on_data = on_data, .on_end = on_end, .on_drain = on_drain, .on_close = on_close};

/* ---- judging ---- */

/* The host that the request names is the one that the connection was made for. */
static bool agrees(const struct hf_l7_xchg *x)
{
    const struct hf_l7_conn *c = x->c;
    if (x->to.port != c->port)
        return false;
    if (x->to.is_addr && !hf_addr_equal(&x->to.addr, &c->dst))
        return false;
    return !c->tls || strcmp(x->to.host, c->host) == 0;
}

struct hf_str hf_l7_path(struct hf_req *req)
{
    struct hf_str path = hf_req_path(req), query = hf_req_query(req), target = hf_req_target(req);
    if (!path.p || !path.n || (target.n && target.p[0] == '/'))
        return target;
    /* both lie in the target, behind its authority */
    return query.p ? (struct hf_str){path.p, (size_t)(query.p - path.p) + query.n} : path;
}

struct judgement {
    bool allowed, bind;
    const struct hf_rule *rule;
    const char *reason;
    char by[300];
};

static void judge(const struct hf_policy *p, struct hf_l7_xchg *x, struct judgement *ret)
{
    struct hf_l7_conn *c = x->c;
    struct hf_l7_ruling r;
    struct hf_verdict v;
    hf_l7_judge_host(p, hf_l7_scheme(c), x->to.host, x->to.is_addr, &c->dst, c->port, &r);
    *ret = (struct judgement){.allowed = r.way != HF_L7_REFUSE, .bind = r.bind, .reason = r.reason};
    memcpy(ret->by, r.by, sizeof ret->by);
    if (!hf_policy_intercepts(p, hf_l7_scheme(c), x->to.host, c->port))
        return;
    struct hf_judge_req q = {.scheme = hf_l7_scheme(c),
                             .host = x->to.host,
                             .port = c->port,
                             .method = hf_req_method(x->req),
                             .path = hf_l7_path(x->req),
                             .learned = r.bind};
    hf_policy_judge(p, &q, &c->dst, &v);
    ret->allowed = v.decision == HF_ALLOW;
    ret->rule = v.rule;
    ret->reason = v.reason;
    memcpy(ret->by, v.by, sizeof ret->by);
}

static void deny_by(struct hf_l7_xchg *x, const char *reason, const char *by)
{
    char text[512];
    (void)snprintf(text, sizeof text, "the sandbox's network policy does not allow this request (%s: %s)",
                   reason, by);
    hf_l7_deny(x, 403, reason, by, text);
}

static void go(struct hf_l7_xchg *x)
{
    if (x->rule && x->rule->n_inject && !x->c->tls)
        hf_l7_deny(x, 403, "plaintext", x->rule->name,
                   "a rule that adds credentials works over https only; use an https URL");
    else
        hf_l7_origin_get(x);
}

static void on_bound(void *arg, bool yes)
{
    struct hf_l7_xchg *x = arg;
    struct judgement j;
    x->bind = NULL;
    hf_policy_unref(x->policy); /* it may be another one by now */
    x->policy = hf_policy_ref(x->c->box->policy);
    judge(x->policy, x, &j);
    x->rule = j.rule;
    x->bound = yes;
    x->c->bound |= yes;
    if (!yes)
        hf_l7_deny(x, 403, "address", "the name has other addresses",
                   "the connection goes to an address that the name does not have");
    else if (!j.allowed)
        deny_by(x, j.reason, j.by);
    else
        go(x);
}

static void judge_request(struct hf_l7_xchg *x)
{
    struct judgement j;
    judge(x->policy, x, &j);
    x->rule = j.rule;
    x->reason = j.reason;
    if (!j.allowed) {
        deny_by(x, j.reason, j.by);
        return;
    }
    bool known = x->c->tls && x->c->bound; /* the same host: it was asked at the connection's begin */
    if (!j.bind || known) {
        x->bound = known;
        go(x);
        return;
    }
    if (hf_l7_bind(x->c, x->to.host, on_bound, x, &x->bind) == 1) {
        x->bound = x->c->bound = true;
        go(x);
    }
}

static void on_request(void *self, struct hf_req *req)
{
    struct hf_l7_conn *c = hf_req_conn_data(req);
    struct hf_l7_xchg *x = hf_new(struct hf_l7_xchg);
    x->c = c;
    x->req = req;
    x->policy = hf_policy_ref(c->box->policy);
    x->started_ms = uv_now(c->l7->d->loop);
    x->trailers = HF_BUF_INIT(HF_CLIENT_HEAD_MAX);
    hf_list_init(&x->node);
    hf_list_add_tail(&c->xchgs, &x->node);
    hf_req_set_ops(req, &req_ops, x);
    hf_req_pause(req);
    c->box->counts.l7_requests++;
    if (!c->tls && hf_req_version(req) == 20)
        c->h2 = true;
    int r = hf_l7_authority(hf_req_header(req, "host"), c->port, &x->to);
    if (c->state != HF_L7_HTTP)
        hf_res_abort(req);
    else if (hf_str_eq(hf_req_method(req), "CONNECT"))
        hf_l7_deny(x, 403, "connect", "", "CONNECT is not carried: connect to the host itself");
    else if (r < 0)
        hf_l7_deny(x, 400, "bad-host", "", "the Host header is not a name or an address");
    else if (!agrees(x))
        hf_l7_deny(x, 421, "misdirected", "",
                   "the Host header names another host than the one that the connection was made to");
    else
        judge_request(x);
}

const struct hf_http_handler hf_l7_handler = {.on_request = on_request};

/* ---- the connection ---- */

static void on_gone(void *conn_data)
{
    struct hf_l7_conn *c = conn_data;
    if (!c->hijacked)
        hf_l7_end(c, true);
    hf_l7_unref(c);
}

void hf_l7_http_start(struct hf_l7_conn *c, struct hf_tls *tls, struct hf_l7_link *link)
{
    uv_stream_t *s = (uv_stream_t *)hf_take_ptr(c->client);
    c->state = HF_L7_HTTP;
    (void)uv_timer_stop(&c->timer);
    if (link->stream)
        hf_l7_origin_add(c, link);
    c->handles++;
    int r = hf_http_server_adopt(c->l7->http, s, tls, c->first.p, c->first.n, 0, c, on_gone);
    hf_buf_done(&c->first);
    if (r < 0) {
        hf_tls_free(tls);
        hf_l7_close_stream(s, true);
        on_gone(c);
    }
}

static bool is_conn(void *conn_data, void *arg)
{
    return conn_data == arg;
}

void hf_l7_http_end(struct hf_l7_conn *c, bool reset)
{
    hf_http_server_cut(c->l7->http, is_conn, c);
    hf_l7_origin_end(c);
}

void hf_l7_http_rejudge(struct hf_l7_conn *c)
{
    struct judgement j;
    hf_list_foreach_safe(it, &c->xchgs)
    {
        struct hf_l7_xchg *x = hf_list_entry(it, struct hf_l7_xchg, node);
        if (x->denied || !x->to.host[0])
            continue;
        judge(c->box->policy, x, &j);
        bool bound = !j.bind || x->bound || x->bind || hf_netd_learned(c->box, x->to.host, &c->dst);
        if (j.allowed && bound)
            continue;
        x->denied = true;
        x->reason = "policy";
        c->box->counts.l7_denied++;
        hf_res_abort(x->req);
    }
}
