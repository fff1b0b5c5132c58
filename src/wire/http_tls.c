/* What the server needs for TLS, and connections that somebody else accepted. */
#include <netinet/in.h>

#include "base/log.h"
#include "wire/http2.h"
#include "wire/tls.h"

static void set_tls(struct hf_conn *c, struct hf_tls *t)
{
    struct hf_http_server *s = c->server;
    c->tls = t;
    hf_outq_set_tls(&c->out, t);
    if (hf_tls_ready(t)) {
        if (hf_tls_alpn(t) == HF_ALPN_H2)
            hf_h2_start(c);
        return;
    }
    c->phase = HF_CONN_SHAKE;
    c->head_ms = uv_now(s->loop);
    hf_list_del(&c->node);
    hf_list_add_tail(&s->shaking, &c->node);
    s->shaking_n++;
}

static void tls_accept(struct hf_conn *c, struct hf_tls_ctx *ctx)
{
    set_tls(c, hf_tls_accept(ctx));
}

static void shaken(struct hf_conn *c)
{
    struct hf_http_server *s = c->server;
    s->shaking_n--;
    c->phase = HF_CONN_IDLE;
    c->last_ms = uv_now(s->loop);
    hf_list_del(&c->node);
    hf_list_add_tail(&s->conns, &c->node);
    if (hf_tls_alpn(c->tls) == HF_ALPN_H2)
        hf_h2_start(c);
}

static void tls_input(struct hf_conn *c, const char *p, size_t n)
{
    struct hf_http_server *s = c->server;
    /* Taken out for the time: a handler may make another session yield something. */
    struct hf_buf plain = s->plain;
    s->plain = HF_BUF_INIT(plain.max);
    hf_buf_clear(&plain);
    hf_conn_enter(c);
    int r = hf_outq_tls_feed(&c->out, p, n, &plain);
    if (c->phase == HF_CONN_SHAKE && hf_tls_ready(c->tls))
        shaken(c);
    if (plain.n && !c->closing)
        hf_conn_input(c, plain.p, plain.n);
    if (r && !c->closing) {
        if (r < 0)
            hf_log_debug("TLS connection ended", "peer=%s reason=%s", hf_conn_peer(c),
                         hf_log_quote(c->tls ? hf_tls_error(c->tls) : ""));
        hf_conn_close(c, false);
    }
    hf_buf_done(&s->plain);
    s->plain = plain;
    hf_conn_leave(c);
}

static void tls_bye(struct hf_conn *c)
{
    (void)hf_outq_tls_close(&c->out); /* the connection ends in any case */
}

static const struct hf_conn_more more = {.tls_accept = tls_accept,
                                         .tls_ctx_unref = hf_tls_ctx_unref,
                                         .tls_input = tls_input,
                                         .tls_bye = tls_bye,
                                         .tls_free = hf_tls_free,
                                         .tls_sni = hf_tls_sni,
                                         .h2_start = hf_h2_start,
                                         .h2_input = hf_h2_input,
                                         .h2_settle = hf_h2_settle,
                                         .h2_sweep = hf_h2_sweep,
                                         .h2_aborted = hf_h2_aborted,
                                         .h2_free = hf_h2_free,
                                         .res_head = hf_h2_res_head,
                                         .res_interim = hf_h2_res_interim,
                                         .res_write = hf_h2_res_write,
                                         .res_end = hf_h2_res_end,
                                         .res_abort = hf_h2_res_abort,
                                         .res_queued = hf_h2_res_queued,
                                         .res_high = hf_h2_res_high,
                                         .req_trailer = hf_h2_req_trailer};

void hf_http_server_http2(struct hf_http_server *s)
{
    s->more = &more;
}

int hf_http_server_listen_tls(struct hf_http_server *s, const char *host, uint16_t port,
                              struct hf_tls_ctx *ctx, struct hf_err *err)
{
    struct hf_err e = {0};
    s->more = &more;
    struct hf_listener *l = hf_server_listen(s, host, port, &e);
    if (l) {
        l->tls = hf_tls_ctx_ref(ctx);
        return 0;
    }
    if (err)
        *err = e;
    return e.r;
}

uint16_t hf_http_server_tls_port(const struct hf_http_server *s)
{
    struct sockaddr_storage a = {0};
    int len = sizeof(a);
    hf_list_foreach(it, &s->listeners)
    {
        const struct hf_listener *l = hf_list_entry(it, struct hf_listener, node);
        if (!l->tls || uv_tcp_getsockname(&l->u.tcp, (struct sockaddr *)&a, &len) < 0)
            continue;
        return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                             : ((struct sockaddr_in *)&a)->sin_port);
    }
    return 0;
}

void hf_http_server_set_tls(struct hf_http_server *s, struct hf_tls_ctx *ctx)
{
    hf_list_foreach(it, &s->listeners)
    {
        struct hf_listener *l = hf_list_entry(it, struct hf_listener, node);
        if (!l->tls)
            continue;
        hf_tls_ctx_unref(l->tls);
        l->tls = hf_tls_ctx_ref(ctx);
    }
}

int hf_http_server_adopt(struct hf_http_server *s, uv_stream_t *stream, struct hf_tls *tls, const void *p,
                         size_t n, int tag, void *conn_data, void (*closed)(void *conn_data))
{
    if (s->stopping)
        return -ECANCELED;
    if (n > HF_HTTP_READ_SIZE)
        return -EMSGSIZE;
    s->more = &more;
    struct hf_conn *c = hf_server_open(s, stream, tag, stream->type == UV_TCP);
    if (!c)
        return -EMFILE;
    if (tls)
        set_tls(c, tls);
    c->data = conn_data;
    c->on_gone = closed;
    /* Handlers run from the loop, never inside this call. */
    c->early = n > 0;
    int r = hf_buf_add(&c->in, p, n);
    if (r == 0)
        hf_conn_mark(c);
    else
        hf_conn_close(c, true);
    hf_conn_start(c);
    return 0;
}

void hf_http_server_cut(struct hf_http_server *s, bool (*match)(void *conn_data, void *arg), void *arg)
{
    struct hf_list *lists[] = {&s->conns, &s->shaking};
    for (size_t i = 0; i < HF_ARRAY_LEN(lists); i++)
        hf_list_foreach_safe(it, lists[i])
        {
            struct hf_conn *c = hf_list_entry(it, struct hf_conn, node);
            if (!c->closing && match(c->data, arg))
                hf_conn_close(c, true);
        }
}
