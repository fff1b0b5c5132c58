/* Interception: the origin first, then a certificate for the box. */
#include "egress/l7_int.h"

#include "base/log.h"

#include <stdio.h>

#define KEY_MAX (HF_L7_HOST_MAX + 48u)

/* A tenant's authority. Another certificate makes another one, with a new number; leaves of the old one are
 * never found again and fall out of the cache. */
struct authority {
    struct hf_minter *minter;
    char *cert;
    uint64_t number;
};

struct leaf {
    struct hf_list node;
    struct hf_tls_ctx *ctx;
    char key[KEY_MAX];
};

static void authority_free(struct authority *a)
{
    hf_minter_free(a->minter);
    free(a->cert);
    free(a);
}

static void leaf_free(struct hf_l7 *l, struct leaf *e)
{
    (void)hf_map_del(&l->leaves, hf_str_c(e->key));
    hf_list_del(&e->node);
    hf_tls_ctx_unref(e->ctx);
    free(e);
}

void hf_l7_mitm_done(struct hf_l7 *l)
{
    while (!hf_list_empty(&l->leaf_order))
        leaf_free(l, hf_list_entry(l->leaf_order.next, struct leaf, node));
    size_t pos = 0;
    struct authority *a;
    while ((a = hf_map_next(&l->minters, &pos, NULL)))
        authority_free(a);
    hf_map_done(&l->minters);
    hf_map_done(&l->leaves);
}

static struct authority *authority_of(struct hf_l7 *l, const struct hf_netd_tenant *t, struct hf_err *err)
{
    struct authority *a = hf_map_get(&l->minters, hf_str_c(t->name));
    if (a && strcmp(a->cert, t->ca_cert) == 0)
        return a;
    struct hf_minter *m;
    if (hf_minter_new(t->ca_cert, t->ca_key, &m, err) < 0)
        return NULL;
    a = hf_new(struct authority);
    *a = (struct authority){.minter = m, .cert = hf_xstrdup(t->ca_cert), .number = ++l->authorities};
    struct authority *old = hf_map_put(&l->minters, hf_str_c(t->name), a);
    if (old)
        authority_free(old);
    return a;
}

/* Borrowed; NULL with err filled. */
static struct hf_tls_ctx *leaf_for(struct hf_l7_conn *c, unsigned alpn, struct hf_err *err)
{
    struct hf_l7 *l = c->l7;
    const struct hf_netd_tenant *t = hf_netd_tenant(l->d, c->box->tenant);
    if (!t || !t->ca_cert || !*t->ca_cert) {
        (void)hf_err_set(err, -ENOENT, "the tenant has no certificate authority");
        return NULL;
    }
    struct authority *a = authority_of(l, t, err);
    char key[KEY_MAX];
    if (!a)
        return NULL;
    (void)snprintf(key, sizeof key, "%llu %u %s", (unsigned long long)a->number, alpn, c->host);
    struct leaf *e = hf_map_get(&l->leaves, hf_str_c(key));
    if (e) {
        hf_list_del(&e->node);
        hf_list_add_tail(&l->leaf_order, &e->node);
        return e->ctx;
    }
    struct hf_tls_ctx *ctx;
    if (hf_minter_ctx(a->minter, c->host, alpn, &ctx, err) < 0)
        return NULL;
    l->minted++;
    e = hf_new(struct leaf);
    e->ctx = ctx;
    memcpy(e->key, key, sizeof key);
    (void)hf_map_put(&l->leaves, hf_str_c(key), e);
    hf_list_add_tail(&l->leaf_order, &e->node);
    while (l->leaves.len > HF_L7_LEAVES_MAX)
        leaf_free(l, hf_list_entry(l->leaf_order.next, struct leaf, node));
    return ctx;
}

/* reason: for the record, static; the whole story is in the log. */
static void failed(struct hf_l7_conn *c, const char *reason, const struct hf_err *err, unsigned alert)
{
    hf_log_warn("an intercepted connection failed", "sandbox=%s host=%s reason=%s error=%s", c->box->sandbox,
                c->host, reason, hf_log_quote(err->msg));
    hf_record_denial(c->box, "connection", c->host, &c->dst, c->port, "tls", reason);
    hf_l7_alert(c, alert);
}

static void on_origin(void *arg, struct hf_l7_link *link, const struct hf_err *err)
{
    struct hf_l7_conn *c = arg;
    struct hf_l7_ruling r;
    struct hf_err e = {0};
    c->up = NULL;
    if (!link->stream) {
        if (err->r == -EPROTO)
            failed(c, "origin-certificate", err, HF_L7_ALERT_BAD_CERT);
        else
            failed(c, "origin-unreachable", err, HF_L7_ALERT_ORIGIN);
        return;
    }
    bool is_addr = hf_addr_parse(hf_str_c(c->host), &(struct hf_addr){0}) == 0;
    hf_l7_judge_host(c->box->policy, "https", c->host, is_addr, &c->dst, c->port, &r);
    if (r.way == HF_L7_REFUSE || (r.bind && !c->bound)) {
        hf_l7_link_close(link, true);
        hf_l7_refuse(c, r.way == HF_L7_REFUSE ? r.reason : "address");
        return;
    }
    c->h2 = link->h2;
    struct hf_tls_ctx *ctx = leaf_for(c, c->h2 ? HF_ALPN_H2 : HF_ALPN_HTTP1, &e);
    if (!ctx) {
        hf_l7_link_close(link, true);
        failed(c, "no-authority", &e, HF_L7_ALERT_ORIGIN);
        return;
    }
    c->tls = true;
    hf_l7_http_start(c, hf_tls_accept(ctx), link);
}

void hf_l7_mitm_start(struct hf_l7_conn *c)
{
    struct hf_hello h;
    bool known = hf_hello_parse(c->first.p, c->first.n, &h) == 1;
    struct hf_l7_up_req q = {.host = c->host,
                             .tls = true,
                             .h2 = known && h.alpn_h2,
                             .h1 = !known || h.alpn_http1 || !h.alpn_h2,
                             .bound = c->bound};
    c->state = HF_L7_OPENING;
    c->up = hf_l7_up(c, &q, on_origin, c);
}
