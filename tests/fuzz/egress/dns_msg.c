/* Fuzz: DNS messages, as a box's question and as an upstream's reply. What is parsed can be built, within its
 * limits. */
#include "egress/dns_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_query(const uint8_t *data, size_t size)
{
    struct hf_dns_query q;
    uint8_t out[HF_DNS_MSG_MAX];
    int r = hf_dns_parse_query(data, size, &q);
    if (r == -EPROTO)
        return;
    if (r == 0 && (strlen(q.name) >= HF_DNS_NAME_MAX || q.udp_size < HF_DNS_PLAIN_SIZE ||
                   q.udp_size > HF_DNS_EDNS_SIZE))
        abort();
    const struct hf_dns_response refusal = {
        .rcode = HF_DNS_REFUSED, .ede = HF_DNS_EDE_BLOCKED, .ede_text = "no"};
    size_t n = hf_dns_build(&q, &refusal, out, HF_DNS_PLAIN_SIZE);
    if (n < 12 || n > HF_DNS_PLAIN_SIZE || !(out[2] & 0x80))
        abort();
}

static void check_reply(const uint8_t *data, size_t size, uint16_t type)
{
    struct hf_dns_answer *a = NULL;
    struct hf_dns_query q = {0};
    uint8_t msg[HF_DNS_PLAIN_SIZE], out[HF_DNS_MSG_MAX];
    int built = hf_dns_build_query(7, "a.example", type, true, msg, sizeof(msg));
    if (built < 0 || hf_dns_parse_query(msg, (size_t)built, &q) < 0)
        abort();
    if (hf_dns_parse_reply(data, size, 7, "a.example", type, &a) != 1)
        return;
    if (a->n > HF_DNS_KEPT_MAX || a->pool_n > HF_DNS_ANSWER_MAX)
        abort();
    for (size_t i = 0; i < a->n; i++)
        if ((size_t)a->rr[i].data + a->rr[i].data_n > a->pool_n || a->rr[i].name >= a->pool_n)
            abort();
    const struct hf_dns_response r = {.rcode = a->rcode, .answer = a, .ttl_s = 60, .ede = HF_DNS_EDE_NONE};
    size_t n = hf_dns_build(&q, &r, out, sizeof(out));
    struct hf_dns_answer *again = NULL;
    /* What we say is what we would understand. */
    if (hf_dns_parse_reply(out, n, 7, "a.example", type, &again) != 1 || again->rcode != a->rcode ||
        again->n != a->n)
        abort();
    hf_dns_answer_unref(again);
    n = hf_dns_build(&q, &r, out, HF_DNS_PLAIN_SIZE);
    if (n > HF_DNS_PLAIN_SIZE)
        abort();
    hf_dns_answer_unref(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_query(data, size);
    check_reply(data, size, HF_DNS_A);
    check_reply(data, size, HF_DNS_AAAA);
    check_reply(data, size, HF_DNS_MX);
    return 0;
}
