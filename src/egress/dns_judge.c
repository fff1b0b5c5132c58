/* What a policy says about a question, and about the addresses of its answer. */
#include "egress/dns_int.h"

#include <stdio.h>

bool hf_dns_checks_names(const struct hf_policy *p)
{
    return p->n_names > 0 || p->n_rules > 0;
}

static bool refuse(struct hf_dns_judgement *ret, uint16_t ede, const char *reason, const char *text)
{
    ret->verdict = HF_DNS_REFUSE;
    ret->ede = ede;
    ret->reason = reason;
    (void)snprintf(ret->text, sizeof ret->text, "%s", text);
    return false;
}

/* The labels of name before the wildcard's domain are few and short. */
static bool under_ok(const char *pattern, const char *name)
{
    size_t own = strlen(name) - strlen(pattern + 1); /* pattern + 1 is ".domain" */
    unsigned labels = 0;
    for (const char *p = name; p < name + own; labels++) {
        size_t len = strcspn(p, ".");
        if (len > HF_DNS_WILD_LABEL_MAX)
            return false;
        p += len + 1;
    }
    return labels <= HF_DNS_WILD_LABELS_MAX;
}

/* One entry's word: 1 the name stands in it, 0 it has nothing to say, -1 a wildcard that the name
 * overstrains.
 */
static int entry_says(const char *entry, const char *name)
{
    if (!hf_name_match(entry, name))
        return 0;
    return strncmp(entry, "*.", 2) != 0 || under_ok(entry, name) ? 1 : -1;
}

bool hf_dns_labels_ok(const struct hf_policy *p, const char *name)
{
    bool overstrained = false;
    for (size_t i = 0; i < p->n_names; i++) {
        int says = entry_says(p->names[i], name);
        if (says > 0)
            return true;
        overstrained |= says < 0;
    }
    for (size_t i = 0; i < p->n_rules; i++) {
        int says = entry_says(p->rules[i].host, name);
        if (says > 0)
            return true;
        overstrained |= says < 0;
    }
    return !overstrained;
}

static bool common_type(uint16_t type)
{
    static const uint16_t types[] = {HF_DNS_A,    HF_DNS_AAAA,  HF_DNS_MX,   HF_DNS_TXT, HF_DNS_SRV,
                                     HF_DNS_NS,   HF_DNS_SOA,   HF_DNS_CAA,  HF_DNS_PTR, HF_DNS_CNAME,
                                     HF_DNS_SVCB, HF_DNS_HTTPS, HF_DNS_NAPTR};
    for (size_t i = 0; i < HF_ARRAY_LEN(types); i++)
        if (types[i] == type)
            return true;
    return false;
}

static bool name_ok(const struct hf_policy *p, const struct hf_dns_query *q, bool names_mode,
                    struct hf_dns_judgement *ret)
{
    char normal[HF_DNS_NAME_MAX];
    if (hf_name_normal(hf_str_c(q->name), normal) < 0 || strcmp(normal, q->name) != 0)
        return refuse(ret, HF_DNS_EDE_BLOCKED, "malformed", "holdfast: this is no host name");
    if (!hf_policy_may_resolve(p, q->name))
        return refuse(ret, HF_DNS_EDE_BLOCKED, "name",
                      "holdfast: the sandbox's network policy does not open this name");
    if (names_mode && !hf_dns_labels_ok(p, q->name))
        return refuse(ret, HF_DNS_EDE_BLOCKED, "label",
                      "holdfast: too long or too many labels under a wildcard of the network policy");
    return true;
}

static bool type_ok(const struct hf_dns_query *q, bool names_mode, struct hf_dns_judgement *ret)
{
    bool hidden = q->type == HF_DNS_HTTPS || q->type == HF_DNS_SVCB; /* answered, if empty */
    bool address = q->type == HF_DNS_A || q->type == HF_DNS_AAAA;
    if (q->class == HF_DNS_IN && (address || hidden || (!names_mode && common_type(q->type))))
        return true;
    return refuse(ret, HF_DNS_EDE_PROHIBITED, "type",
                  names_mode ? "holdfast: only addresses are resolved under a policy of names"
                             : "holdfast: this type of question is not answered");
}

void hf_dns_judge(const struct hf_policy *p, const struct hf_dns_query *q, bool ipv6, bool private_zone,
                  struct hf_dns_judgement *ret)
{
    bool names_mode = hf_policy_names_mode(p);
    struct hf_addr reverse;
    *ret = (struct hf_dns_judgement){.verdict = HF_DNS_ASK, .ede = HF_DNS_EDE_NONE, .reason = ""};
    if (!name_ok(p, q, names_mode, ret) || !type_ok(q, names_mode, ret))
        return;
    if (q->type == HF_DNS_AAAA && !ipv6)
        ret->verdict = HF_DNS_EMPTY;
    if ((q->type == HF_DNS_HTTPS || q->type == HF_DNS_SVCB) && hf_dns_checks_names(p))
        ret->verdict = HF_DNS_EMPTY;
    /* RFC 6303: names of the operator's own machines are nobody's business. */
    if (q->type == HF_DNS_PTR && !private_zone && hf_dns_reverse(q->name, &reverse) &&
        hf_addr_class_of(&reverse) != HF_ADDR_PUBLIC)
        ret->verdict = HF_DNS_UNKNOWN;
}

bool hf_dns_addr_ok(const struct hf_policy *p, const struct hf_addr *a, bool private_ok)
{
    struct hf_verdict v;
    switch (hf_addr_class_of(a)) {
    case HF_ADDR_PUBLIC:
        return true;
    case HF_ADDR_PRIVATE:
        if (private_ok)
            return true;
        hf_policy_judge_addr(p, a, &v);
        return v.decision == HF_ALLOW && strcmp(v.reason, "allow") == 0;
    default:
        return false;
    }
}
