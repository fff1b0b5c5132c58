/* Canonical document -> struct hf_policy. */
#include "egress/policy_int.h"

struct hf_policy *hf_policy_ref(struct hf_policy *p)
{
    p->refs++;
    return p;
}

static void rule_done(struct hf_rule *r)
{
    for (size_t i = 0; i < r->n_methods; i++)
        free(r->methods[i]);
    for (size_t i = 0; i < r->n_inject; i++) {
        free(r->inject[i].header);
        free(r->inject[i].format);
        free(r->inject[i].secret);
    }
    free(r->methods);
    free(r->inject);
    free(r->name);
    free(r->host);
    free(r->scheme);
    free(r->path);
    free(r->path_loose);
}

static void wipe(char *s)
{
    if (s)
        explicit_bzero(s, strlen(s));
    free(s);
}

void hf_policy_unref(struct hf_policy *p)
{
    if (!p || --p->refs)
        return;
    for (size_t i = 0; i < p->n_rules; i++)
        rule_done(&p->rules[i]);
    for (size_t i = 0; i < p->n_names; i++)
        free(p->names[i]);
    free(p->rules);
    free(p->names);
    free(p->allow);
    free(p->deny);
    free(p->proxy.host);
    free(p->proxy.username);
    wipe(p->proxy.password);
    free(p->label);
    free(p);
}

/* ---- members ---- */

static int bad(struct hf_err *err, const char *what)
{
    return hf_err_set(err, -EINVAL, "the network document is not canonical: %s", what);
}

static const char *text(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int parse_allow(struct hf_policy *p, const json_t *list, struct hf_err *err)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list))
        return bad(err, "allow_out");
    p->allow = hf_xcalloc(n + 1, sizeof(*p->allow));
    p->names = hf_xcalloc(n + 1, sizeof(*p->names));
    for (size_t i = 0; i < n; i++) {
        const char *s = json_string_value(json_array_get(list, i));
        char out[256];
        if (s && hf_cidr_parse(hf_str_c(s), &p->allow[p->n_allow]) == 0)
            p->n_allow++;
        else if (s && hf_policy_host(s, out) == 0 && strcmp(s, out) == 0)
            p->names[p->n_names++] = hf_xstrdup(s);
        else
            return bad(err, "allow_out");
    }
    qsort(p->names, p->n_names, sizeof(*p->names), by_text);
    return 0;
}

static int parse_deny(struct hf_policy *p, const json_t *list, struct hf_err *err)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list))
        return bad(err, "deny_out");
    p->deny = hf_xcalloc(n + 1, sizeof(*p->deny));
    for (size_t i = 0; i < n; i++) {
        const char *s = json_string_value(json_array_get(list, i));
        struct hf_cidr *c = &p->deny[p->n_deny];
        if (!s || hf_cidr_parse(hf_str_c(s), c) < 0)
            return bad(err, "deny_out");
        p->n_deny++;
        p->deny_all |= c->addr.family == 4 && c->bits == 0;
    }
    return 0;
}

static int parse_ports(struct hf_rule *r, const json_t *list)
{
    if (!json_is_array(list) || json_array_size(list) > HF_POLICY_PORTS_MAX)
        return -EINVAL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t port = json_integer_value(json_array_get(list, i));
        if (port < 1 || port > UINT16_MAX)
            return -EINVAL;
        r->ports[r->n_ports++] = (uint16_t)port;
    }
    return 0;
}

static int parse_methods(struct hf_rule *r, const json_t *list)
{
    if (!json_is_array(list) || json_array_size(list) > HF_POLICY_METHODS_MAX)
        return -EINVAL;
    r->methods = hf_xcalloc(json_array_size(list) + 1, sizeof(*r->methods));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (!s)
            return -EINVAL;
        r->methods[r->n_methods++] = hf_xstrdup(s);
    }
    return 0;
}

static char *lower(char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        s[i] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] + ('a' - 'A') : s[i]);
    return s;
}

/* Names of secrets are kept in lower case; the document shows them as they were written. */
static char *format_of(const char *text)
{
    char *format = hf_xstrdup(text);
    for (char *p = strstr(format, "${"); p; p = strstr(p + 2, "${")) {
        size_t n = strcspn(p, "}");
        if (strncmp(p, "${SECRET}", 9) != 0)
            (void)lower(p, n);
    }
    return format;
}

static int parse_inject(struct hf_rule *r, const json_t *list)
{
    if (!json_is_array(list) || json_array_size(list) > HF_POLICY_INJECT_MAX)
        return -EINVAL;
    r->inject = hf_xcalloc(json_array_size(list) + 1, sizeof(*r->inject));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const char *header = text(v, "header"), *format = text(v, "format"), *secret = text(v, "secret");
        if (!header || !format || !secret)
            return -EINVAL;
        struct hf_inject *in = &r->inject[r->n_inject++];
        *in = (struct hf_inject){
            .header = hf_xstrdup(header), .format = format_of(format), .secret = hf_xstrdup(secret)};
        (void)lower(in->secret, strlen(secret));
    }
    return r->n_inject && strcmp(r->scheme, "https") != 0 ? -EINVAL : 0;
}

static int parse_rule(struct hf_rule *r, const json_t *v)
{
    const char *name = text(v, "name"), *host = text(v, "host"), *scheme = text(v, "scheme");
    const char *path = text(v, "path"), *action = text(v, "action"), *audit = text(v, "audit");
    char normal[256];
    if (!name || !host || !scheme || !path || !action || !audit || hf_policy_host(host, normal) < 0)
        return -EINVAL;
    r->name = hf_xstrdup(name);
    r->host = hf_xstrdup(normal);
    r->scheme = hf_xstrdup(scheme);
    r->deny = strcmp(action, "allow") != 0;
    r->opens = !r->deny && json_is_true(json_object_get(v, "opens"));
    r->audit = strcmp(audit, "full") == 0   ? HF_AUDIT_FULL
               : strcmp(audit, "none") == 0 ? HF_AUDIT_NONE
                                            : HF_AUDIT_METADATA;
    int e = hf_path_pattern(path, &r->path, &r->path_loose);
    if (e == 0)
        e = parse_ports(r, json_object_get(v, "ports"));
    if (e == 0)
        e = parse_methods(r, json_object_get(v, "methods"));
    return e < 0 ? e : parse_inject(r, json_object_get(v, "inject"));
}

static int parse_rules(struct hf_policy *p, const json_t *list, struct hf_err *err)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list))
        return bad(err, "rules");
    p->rules = hf_xcalloc(n + 1, sizeof(*p->rules));
    for (size_t i = 0; i < n; i++) {
        p->n_rules++; /* also a half-made one is freed */
        if (parse_rule(&p->rules[i], json_array_get(list, i)) < 0)
            return bad(err, "rules");
    }
    return 0;
}

static int parse_proxy(struct hf_policy *p, const json_t *v, struct hf_err *err)
{
    if (!v || json_is_null(v))
        return 0;
    const char *address = text(v, "address"), *type = text(v, "type");
    const char *user = text(v, "username"), *password = text(v, "password");
    const char *colon = address ? strrchr(address, ':') : NULL;
    uint64_t port = 0;
    if (!colon || !type || hf_parse_u64(hf_str_c(colon + 1), UINT16_MAX, &port) < 0 || port == 0)
        return bad(err, "egress_proxy");
    bool brackets = address[0] == '[' && colon - address > 2;
    p->proxy.host = brackets ? hf_xstrndup(address + 1, (size_t)(colon - address) - 2)
                             : hf_xstrndup(address, (size_t)(colon - address));
    p->proxy.port = (uint16_t)port;
    p->proxy.http = strcmp(type, "http") == 0;
    p->proxy.username = hf_xstrdup(user ? user : "");
    p->proxy.password = hf_xstrdup(password ? password : "");
    p->has_proxy = true;
    return 0;
}

static char *label_of(const json_t *groups)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT((HF_POLICY_NAME_MAX + 2) * HF_POLICY_GROUPS_MAX);
    size_t i;
    json_t *v;
    json_array_foreach(groups, i, v)
    {
        const char *name = json_string_value(v);
        if (name && hf_buf_addf(&b, "%s%s", b.n ? "," : "", name) < 0)
            break;
    }
    return b.n ? hf_buf_take(&b) : hf_xstrdup("own");
}

static int check_ports(const struct hf_policy *p, struct hf_err *err)
{
    uint16_t ports[HF_POLICY_L7_PORTS_MAX + 1];
    if (hf_policy_l7_ports(p, ports, HF_ARRAY_LEN(ports)) <= HF_POLICY_L7_PORTS_MAX)
        return 0;
    return HF_POLICY_BAD("network: rules for more than %u different ports", HF_POLICY_L7_PORTS_MAX);
}

int hf_policy_parse(const json_t *doc, struct hf_policy **ret, struct hf_err *err)
{
    const json_t *internet = json_object_get(doc, "allow_internet_access");
    const json_t *public_traffic = json_object_get(doc, "allow_public_traffic");
    if (!json_is_boolean(internet) || !json_is_boolean(public_traffic))
        return bad(err, "allow_internet_access and allow_public_traffic must have values");
    struct hf_policy *p = hf_new(struct hf_policy);
    p->refs = 1;
    p->internet = json_is_true(internet);
    p->deny_all = !p->internet;
    p->public_traffic = json_is_true(public_traffic);
    p->label = label_of(json_object_get(doc, "policies"));
    int r = parse_allow(p, json_object_get(doc, "allow_out"), err);
    if (r == 0)
        r = parse_deny(p, json_object_get(doc, "deny_out"), err);
    if (r == 0)
        r = parse_rules(p, json_object_get(doc, "rules"), err);
    if (r == 0)
        r = parse_proxy(p, json_object_get(doc, "egress_proxy"), err);
    if (r == 0)
        r = check_ports(p, err);
    if (r < 0) {
        hf_policy_unref(p);
        return r;
    }
    *ret = p;
    return 0;
}
