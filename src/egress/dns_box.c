/* A box's share of the resolver. */
#include "egress/dns_int.h"

struct hf_dns_box *hf_dns_box(struct hf_netd_box *b)
{
    if (!b->dns) {
        struct hf_dns_box *x = hf_new(struct hf_dns_box);
        x->tokens_m = HF_DNS_BURST * 1000u;
        x->filled_ms = uv_now(b->d->loop);
        b->dns = x;
    }
    return b->dns;
}

void hf_dns_box_free(struct hf_netd_box *b)
{
    free(b->dns);
    b->dns = NULL;
}

bool hf_dns_take_token(struct hf_dns_box *x, uint64_t now_ms)
{
    uint64_t passed = now_ms > x->filled_ms ? now_ms - x->filled_ms : 0;
    /* A millisecond is worth HF_DNS_QPS thousandths; more than a burst's time changes nothing. */
    passed = HF_MIN(passed, (uint64_t)HF_DNS_BURST * 1000u / HF_DNS_QPS);
    x->tokens_m = HF_MIN(x->tokens_m + passed * HF_DNS_QPS, (uint64_t)HF_DNS_BURST * 1000u);
    x->filled_ms = now_ms;
    if (x->tokens_m < 1000)
        return false;
    x->tokens_m -= 1000;
    return true;
}
