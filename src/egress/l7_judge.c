/* What the policy makes of a connection that says where it goes. Pure. */
#include "egress/l7_int.h"

#include <stdio.h>

static void rule_on(struct hf_l7_ruling *r, enum hf_l7_way way, bool bind, const char *reason, const char *by)
{
    *r = (struct hf_l7_ruling){.way = way, .bind = bind, .reason = reason};
    (void)snprintf(r->by, sizeof r->by, "%s", by);
}

/* An entry of allow_out names the address itself: what is spoken there is not asked about. */
static bool by_entry(const struct hf_verdict *v)
{
    return v->decision == HF_ALLOW && strcmp(v->reason, "allow") == 0;
}

/* The entry of allow_out that opens the name at every port. A rule opens its host at its ports only, and
 * there it intercepts. */
static const char *entry_of(const struct hf_policy *p, const char *name)
{
    for (size_t i = 0; i < p->n_names; i++)
        if (hf_name_match(p->names[i], name))
            return p->names[i];
    return NULL;
}

bool hf_l7_opens_everywhere(const struct hf_policy *p, const char *name)
{
    return entry_of(p, name) != NULL;
}

void hf_l7_judge_host(const struct hf_policy *p, const char *scheme, const char *host, bool is_addr,
                      const struct hf_addr *dst, uint16_t port, struct hf_l7_ruling *ret)
{
    struct hf_verdict at, v;
    hf_policy_judge_addr(p, dst, &at);
    if (hf_addr_never(dst)) {
        rule_on(ret, HF_L7_REFUSE, false, "never", at.by);
        return;
    }
    if (hf_policy_intercepts(p, scheme, host, port)) {
        /* learned: whether it really was is asked next (bind) */
        struct hf_judge_req q = {.scheme = scheme, .host = host, .port = port, .learned = !is_addr};
        hf_policy_judge(p, &q, dst, &v);
        rule_on(ret, v.decision == HF_ALLOW ? HF_L7_INTERCEPT : HF_L7_REFUSE, !is_addr, v.reason, v.by);
        return;
    }
    if (at.decision == HF_ALLOW) {
        rule_on(ret, HF_L7_PASS, false, at.reason, at.by);
        return;
    }
    const char *entry = is_addr ? NULL : entry_of(p, host);
    if (entry) {
        rule_on(ret, HF_L7_PASS, true, "name", entry);
        return;
    }
    bool named = !is_addr && hf_policy_names_mode(p);
    rule_on(ret, HF_L7_REFUSE, false, named ? "name" : at.reason, named ? "no entry opens this name" : at.by);
}

void hf_l7_judge_hello(const struct hf_policy *p, const struct hf_hello *h, const struct hf_addr *dst,
                       uint16_t port, char ret_host[HF_L7_HOST_MAX], struct hf_l7_ruling *ret)
{
    struct hf_verdict at;
    hf_policy_judge_addr(p, dst, &at);
    bool checks = hf_policy_names_mode(p) || p->n_rules || p->n_names;
    bool named = h->sni[0] && !h->sni_bad && hf_name_normal(hf_str_c(h->sni), ret_host) == 0;
    if (!named)
        ret_host[0] = '\0';
    if (named && !h->ech) {
        hf_l7_judge_host(p, "https", ret_host, false, dst, port, ret);
        return;
    }
    if (hf_addr_never(dst) || at.decision != HF_ALLOW || (checks && !by_entry(&at))) {
        const char *hidden = h->ech ? "ech" : h->sni[0] || h->sni_bad ? "bad-sni" : "no-sni";
        bool at_fault = at.decision == HF_ALLOW || checks;
        rule_on(ret, HF_L7_REFUSE, false, at_fault && !hf_addr_never(dst) ? hidden : at.reason, at.by);
        /* A rule may speak of the address itself; then there is no name to send. */
        char text[HF_ADDR_TEXT];
        hf_addr_format(dst, text);
        if (strcmp(ret->reason, "no-sni") == 0 && hf_policy_intercepts(p, "https", text, port)) {
            (void)snprintf(ret_host, HF_L7_HOST_MAX, "%s", text);
            hf_l7_judge_host(p, "https", text, true, dst, port, ret);
        }
        return;
    }
    rule_on(ret, HF_L7_PASS, false, at.reason, at.by);
}

bool hf_l7_port_inspected(const struct hf_policy *p, uint16_t port)
{
    uint16_t ports[HF_NET_PORTS_MAX];
    size_t n = hf_policy_l7_ports(p, ports, HF_ARRAY_LEN(ports));
    for (size_t i = 0; i < HF_MIN(n, HF_ARRAY_LEN(ports)); i++)
        if (ports[i] == port)
            return true;
    return port == 80 || port == 443;
}

static bool named_alone(const struct hf_policy *p, const struct hf_addr *a)
{
    for (size_t i = 0; i < p->n_allow; i++)
        if (p->allow[i].bits == (a->family == 4 ? 32 : 128) && hf_addr_equal(&p->allow[i].addr, a))
            return true;
    return false;
}

unsigned hf_l7_dial_flags(const struct hf_policy *p, const struct hf_addr *dst, bool bound)
{
    struct hf_verdict at;
    hf_policy_judge_addr(p, dst, &at);
    unsigned flags = bound || by_entry(&at) ? HF_DIAL_PRIVATE : 0;
    return named_alone(p, dst) ? flags | HF_DIAL_PRIVATE | HF_DIAL_LOCAL : flags;
}
