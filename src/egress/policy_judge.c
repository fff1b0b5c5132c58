/* What a policy says about names, addresses and requests. */
#include <stdio.h>

#include "egress/policy_int.h"

static bool is_exact(const struct hf_policy *p, const char *name, const char **ret)
{
    size_t lo = 0, hi = p->n_names;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, p->names[mid]);
        if (c == 0) {
            *ret = p->names[mid];
            return true;
        }
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return false;
}

/* The entry of allow_out that names it. */
static const char *listed(const struct hf_policy *p, const char *name)
{
    const char *entry = NULL;
    char wild[256];
    if (is_exact(p, name, &entry))
        return entry;
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        (void)snprintf(wild, sizeof(wild), "*%s", dot);
        if (is_exact(p, wild, &entry))
            return entry;
    }
    return NULL;
}

bool hf_policy_opens_name(const struct hf_policy *p, const char *name, const char **ret_why)
{
    const char *why = listed(p, name);
    for (size_t i = 0; !why && i < p->n_rules; i++) {
        const struct hf_rule *r = &p->rules[i];
        if (r->opens && hf_name_match(r->host, name))
            why = r->name;
    }
    if (why && ret_why)
        *ret_why = why;
    return why != NULL;
}

bool hf_policy_may_resolve(const struct hf_policy *p, const char *name)
{
    if (!p->deny_all || listed(p, name))
        return true;
    for (size_t i = 0; i < p->n_rules; i++) {
        /* a rule that only denies gives no reason to let the name leave the host */
        if (!p->rules[i].deny && hf_name_match(p->rules[i].host, name))
            return true;
    }
    return false;
}

bool hf_policy_names_mode(const struct hf_policy *p)
{
    return p->deny_all && (p->n_names || p->n_rules);
}

/* ---- addresses ---- */

static const struct hf_cidr *find(const struct hf_cidr *list, size_t n, const struct hf_addr *a, bool private)
{
    for (size_t i = 0; i < n; i++) {
        if (hf_cidr_has(&list[i], a) && (!private || hf_cidr_private(&list[i])))
            return &list[i];
    }
    return NULL;
}

static void say(struct hf_verdict *v, enum hf_decision d, const char *reason, const char *prefix,
                const char *what)
{
    v->decision = d;
    v->reason = reason;
    (void)snprintf(v->by, sizeof(v->by), "%s%s", prefix, what);
}

static void say_default(const struct hf_policy *p, struct hf_verdict *v)
{
    if (!p->deny_all)
        say(v, HF_ALLOW, "default", "allow_internet_access", " is true");
    else if (!p->internet)
        say(v, HF_DENY, "default", "allow_internet_access", " is false");
    else
        say(v, HF_DENY, "default", "deny_out ", "0.0.0.0/0");
}

void hf_policy_judge_addr(const struct hf_policy *p, const struct hf_addr *a, struct hf_verdict *ret)
{
    char text[HF_CIDR_TEXT];
    enum hf_addr_class class = hf_addr_class_of(a);
    const struct hf_cidr *c;
    *ret = (struct hf_verdict){0};
    if (hf_addr_never(a)) {
        say(ret, HF_DENY, "never", hf_addr_class_name(class), " addresses are never reachable");
    } else if ((c = find(p->allow, p->n_allow, a, class == HF_ADDR_PRIVATE))) {
        hf_cidr_format(c, text);
        say(ret, HF_ALLOW, "allow", "allow_out ", text);
    } else if (class == HF_ADDR_PRIVATE) {
        say(ret, HF_DENY, "private", "private addresses need an entry of their own in ", "allow_out");
    } else if ((c = find(p->deny, p->n_deny, a, false)) && c->bits) {
        hf_cidr_format(c, text);
        say(ret, HF_DENY, "deny", "deny_out ", text);
    } else {
        say_default(p, ret);
        if (c && !p->deny_all) /* ::/0 alone */
            say(ret, HF_DENY, "deny", "deny_out ", "::/0");
    }
}

/* ---- requests ---- */

static bool speaks_of(const struct hf_rule *r, const char *scheme, const char *host, uint16_t port)
{
    if (*r->scheme && strcmp(r->scheme, scheme) != 0)
        return false;
    if (!hf_name_match(r->host, host))
        return false;
    for (size_t i = 0; i < r->n_ports; i++) {
        if (r->ports[i] == port)
            return true;
    }
    return r->n_ports == 0 && port == (strcmp(scheme, "https") == 0 ? 443 : 80);
}

bool hf_policy_intercepts(const struct hf_policy *p, const char *scheme, const char *host, uint16_t port)
{
    for (size_t i = 0; i < p->n_rules; i++) {
        if (speaks_of(&p->rules[i], scheme, host, port))
            return true;
    }
    return false;
}

/* A rule that allows wants the method as written; one that denies is not fooled by "post". */
static bool method_matches(const struct hf_rule *r, struct hf_str method)
{
    for (size_t i = 0; i < r->n_methods; i++) {
        if (r->deny ? hf_str_caseeq(method, r->methods[i]) : hf_str_eq(method, r->methods[i]))
            return true;
    }
    return r->n_methods == 0;
}

static bool path_matches(const struct hf_rule *r, const struct hf_path_forms *f)
{
    if (!*r->path)
        return true;
    bool strict = hf_path_match(hf_str_c(r->path), (struct hf_str){f->strict.p, f->strict.n});
    bool loose = hf_path_match(hf_str_c(r->path_loose), (struct hf_str){f->loose.p, f->loose.n});
    return r->deny ? strict || loose : strict && loose;
}

/* The verdict without rules: the name, else the address, else the default. */
static void judge_place(const struct hf_policy *p, const struct hf_judge_req *q, const struct hf_addr *addr,
                        bool by_rule, const struct hf_rule *rule, struct hf_verdict *ret)
{
    const char *entry = listed(p, q->host);
    *ret = (struct hf_verdict){0};
    if (addr)
        hf_policy_judge_addr(p, addr, ret);
    else
        say_default(p, ret);
    bool closed = addr && ret->decision == HF_DENY &&
                  (strcmp(ret->reason, "never") == 0 || (strcmp(ret->reason, "private") == 0 && !q->learned));
    if (closed)
        return;
    if (by_rule)
        say(ret, HF_ALLOW, "rule", "rule ", rule->name);
    else if (entry && ret->decision == HF_DENY)
        say(ret, HF_ALLOW, "name", "allow_out ", entry);
    if (ret->decision == HF_ALLOW)
        ret->rule = rule;
}

struct search {
    const struct hf_rule *rule; /* the first that matches */
    bool guarded;               /* rules that allow speak of the host: what they don't match is denied */
    bool unclear;               /* the path can't be read, and rules look at paths */
};

static void search_rules(const struct hf_policy *p, const struct hf_judge_req *q, struct search *s)
{
    struct hf_path_forms forms = {0};
    bool known = q->path.p != NULL;
    bool readable = known && hf_path_forms(q->path, &forms) == 0;
    for (size_t i = 0; i < p->n_rules && !s->rule; i++) {
        const struct hf_rule *r = &p->rules[i];
        if (!speaks_of(r, q->scheme, q->host, q->port))
            continue;
        s->guarded |= !r->deny;
        if (!known) {
            /* a denial under conditions leaves requests that could pass */
            s->rule = r->deny && (*r->path || r->n_methods) ? NULL : r;
            continue;
        }
        if (*r->path && !readable) {
            s->unclear = true;
            break;
        }
        if (method_matches(r, q->method) && (!*r->path || path_matches(r, &forms)))
            s->rule = r;
    }
    if (readable)
        hf_path_forms_done(&forms);
}

void hf_policy_judge(const struct hf_policy *p, const struct hf_judge_req *q, const struct hf_addr *addr,
                     struct hf_verdict *ret)
{
    struct search s = {0};
    struct hf_addr literal;
    if (!addr && hf_addr_parse(hf_str_c(q->host), &literal) == 0)
        addr = &literal;
    search_rules(p, q, &s);
    *ret = (struct hf_verdict){0};
    if (s.unclear)
        say(ret, HF_DENY, "no-rule", "the path can't be read, and rules look at paths of ", q->host);
    else if (s.rule && s.rule->deny)
        say(ret, HF_DENY, "rule", "rule ", s.rule->name);
    else if (!s.rule && s.guarded)
        say(ret, HF_DENY, "no-rule", "no rule matches, and there are rules for ", q->host);
    else
        judge_place(p, q, addr, s.rule && s.rule->opens, s.rule, ret);
    if (ret->decision == HF_DENY && s.rule && s.rule->deny)
        ret->rule = s.rule;
}

/* ---- ports ---- */

static size_t add_port(uint16_t *list, size_t n, size_t max, uint16_t port)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i] == port)
            return n;
    }
    if (n < max)
        list[n++] = port;
    return n;
}

size_t hf_policy_l7_ports(const struct hf_policy *p, uint16_t *ret, size_t max)
{
    size_t n = 0;
    if (p->deny_all && p->n_names) {
        n = add_port(ret, n, max, 80);
        n = add_port(ret, n, max, 443);
    }
    for (size_t i = 0; i < p->n_rules; i++) {
        const struct hf_rule *r = &p->rules[i];
        for (size_t k = 0; k < r->n_ports; k++)
            n = add_port(ret, n, max, r->ports[k]);
        if (r->n_ports == 0 && strcmp(r->scheme, "https") != 0)
            n = add_port(ret, n, max, 80);
        if (r->n_ports == 0 && strcmp(r->scheme, "http") != 0)
            n = add_port(ret, n, max, 443);
    }
    return n;
}
