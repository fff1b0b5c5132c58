/* Records of connections whose requests nobody reads. */
#include "egress/l7_int.h"

void hf_l7_record_pipe(struct hf_l7_conn *c, uint64_t bytes_out, uint64_t bytes_in)
{
    const char *scheme = c->kind == HF_L7_TLS ? "https" : c->tunnel_path ? (c->tls ? "wss" : "ws") : "tcp";
    struct hf_request_record r = {.exec = c->exec ? c->exec : "",
                                  .rule = "",
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
    hf_record_request(c->box, &r);
}
