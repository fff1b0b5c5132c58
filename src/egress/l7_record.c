/* Records of requests and connections: they wait for the exec's name, a while and not too many of them. */
#include "egress/l7_int.h"

struct held {
    struct hf_list node;
    struct hf_request_record r; /* its texts are in strings, but for those that are static */
    char *strings[5];
};

static const char *keep(struct held *h, size_t i, const char *s)
{
    h->strings[i] = hf_xstrdup(s ? s : "");
    return h->strings[i];
}

static void write_one(struct hf_l7_conn *c, const struct hf_request_record *r)
{
    struct hf_request_record named = *r;
    named.exec = c->exec ? c->exec : "";
    hf_record_request(c->box, &named);
}

void hf_l7_record(struct hf_l7_conn *c, const struct hf_request_record *r)
{
    if (!c->owner || c->n_held >= HF_L7_HELD_MAX) {
        write_one(c, r);
        return;
    }
    struct held *h = hf_new(struct held);
    h->r = *r;
    h->r.rule = keep(h, 0, r->rule);
    h->r.method = keep(h, 1, r->method);
    h->r.host = keep(h, 2, r->host);
    h->r.path = keep(h, 3, r->path);
    h->r.reason = keep(h, 4, r->reason);
    hf_list_init(&h->node);
    hf_list_add_tail(&c->held, &h->node);
    c->n_held++;
}

void hf_l7_record_held(struct hf_l7_conn *c)
{
    while (!hf_list_empty(&c->held)) {
        struct held *h = hf_list_entry(c->held.next, struct held, node);
        hf_list_del(&h->node);
        write_one(c, &h->r);
        for (size_t i = 0; i < HF_ARRAY_LEN(h->strings); i++)
            free(h->strings[i]);
        free(h);
    }
    c->n_held = 0;
}

void hf_l7_record_pipe(struct hf_l7_conn *c, uint64_t bytes_out, uint64_t bytes_in)
{
    const char *scheme = c->kind == HF_L7_TLS ? "https" : c->tunnel_path ? "http" : "tcp";
    struct hf_request_record r = {.rule = "",
                                  .scheme = scheme,
                                  .method = "",
                                  .host = c->tunnel_path ? c->tunnel_host : c->host,
                                  .path = "",
                                  .reason = "",
                                  .audit = "metadata",
                                  .addr = c->dst,
                                  .port = c->port,
                                  .bytes_out = bytes_out,
                                  .bytes_in = bytes_in,
                                  .duration_ms = uv_now(c->l7->d->loop) - c->started_ms};
    hf_l7_record(c, &r);
}
