/* A client's network object -> the canonical document, every switch with a value. */
#include <stdio.h>

#include "egress/policy_int.h"

#define BAD HF_POLICY_BAD
#define ALL4 "0.0.0.0/0"

const json_t *hf_policy_member(const json_t *o, const char *camel, const char *snake)
{
    const json_t *v = json_object_get(o, camel);
    if (!v || json_is_null(v))
        v = json_object_get(o, snake);
    return v && !json_is_null(v) ? v : NULL;
}

int hf_policy_host(const char *text, char out[256])
{
    struct hf_addr a;
    char name[254];
    if (hf_addr_parse(hf_str_c(text), &a) == 0) {
        hf_addr_format(&a, out);
        return 0;
    }
    bool wild = text[0] == '*' && text[1] == '.';
    if (hf_name_normal(hf_str_c(wild ? text + 2 : text), name) < 0)
        return -EINVAL;
    (void)snprintf(out, 256, "%s%s", wild ? "*." : "", name);
    return 0;
}

int hf_policy_cidr(const char *text, struct hf_cidr *ret, char out[HF_CIDR_TEXT])
{
    int r = hf_cidr_parse(hf_str_c(text), ret);
    if (r < 0)
        return r;
    if (ret->bits == (ret->addr.family == 4 ? 32 : 128))
        hf_addr_format(&ret->addr, out);
    else
        hf_cidr_format(ret, out);
    return 0;
}

bool hf_policy_is_group_name(const char *s)
{
    size_t n = strlen(s);
    if (n == 0 || n > HF_POLICY_NAME_MAX - 1 || s[0] == '-' || s[0] == '_')
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') || s[i] == '-' || s[i] == '_'))
            return false;
    }
    return true;
}

/* ---- lists ---- */

static int list_of(const json_t *request, const char *camel, const char *snake, const json_t **ret,
                   struct hf_err *err)
{
    const json_t *v = hf_policy_member(request, camel, snake);
    if (v && !json_is_array(v))
        return BAD("network: \"%s\" must be a list of strings", camel);
    for (size_t i = 0; i < json_array_size(v); i++) {
        if (!json_is_string(json_array_get(v, i)))
            return BAD("network: \"%s\" must be a list of strings", camel);
    }
    *ret = v;
    return 0;
}

/* Every address of the prefix is one that no policy opens. */
static bool all_never(const struct hf_cidr *c)
{
    if (!hf_addr_never(&c->addr))
        return false;
    unsigned whole = c->addr.family == 4 ? (c->addr.b[0] >= 224 ? 4 : 8) : 10;
    return c->bits >= whole;
}

static int add_allowed(const char *text, json_t *list, struct hf_map *seen, size_t *cidrs, size_t *names,
                       struct hf_err *err)
{
    struct hf_cidr c;
    char out[256];
    bool is_cidr = hf_policy_cidr(text, &c, out) == 0;
    if (is_cidr && all_never(&c))
        return BAD("allowOut: %s is a %s address, which no policy opens", text,
                   hf_addr_class_name(hf_addr_class_of(&c.addr)));
    if (!is_cidr && hf_policy_host(text, out) < 0)
        return BAD("invalid allowed address or domain %.200s: write an IP, a CIDR, a domain or *.domain "
                   "(names outside ASCII as A-labels, xn--…)",
                   text);
    if (hf_map_put(seen, hf_str_c(out), list))
        return 0;
    size_t *n = is_cidr ? cidrs : names;
    if (++*n > (is_cidr ? HF_POLICY_CIDRS_MAX : HF_POLICY_NAMES_MAX))
        return BAD("allowOut: too many allowed %s: the limit is %u", is_cidr ? "CIDRs" : "domains",
                   is_cidr ? HF_POLICY_CIDRS_MAX : HF_POLICY_NAMES_MAX);
    (void)json_array_append_new(list, json_string(out));
    return 0;
}

static int allowed(const json_t *request, json_t *list, size_t *ret_names, struct hf_err *err)
{
    const json_t *v = NULL;
    struct hf_map seen = {0};
    size_t cidrs = 0;
    int r = list_of(request, "allowOut", "allow_out", &v, err);
    for (size_t i = 0; r == 0 && i < json_array_size(v); i++)
        r = add_allowed(json_string_value(json_array_get(v, i)), list, &seen, &cidrs, ret_names, err);
    hf_map_done(&seen);
    return r;
}

static int add_denied(const char *text, json_t *list, struct hf_map *seen, bool *ret_all, struct hf_err *err)
{
    struct hf_cidr c;
    char out[HF_CIDR_TEXT];
    if (hf_policy_cidr(text, &c, out) < 0)
        return BAD("invalid denied CIDR %.200s", text);
    *ret_all |= strcmp(out, ALL4) == 0;
    if (hf_map_put(seen, hf_str_c(out), list))
        return 0;
    if (json_array_size(list) >= HF_POLICY_CIDRS_MAX)
        return BAD("denyOut: too many denied CIDRs: the limit is %u", HF_POLICY_CIDRS_MAX);
    (void)json_array_append_new(list, json_string(out));
    return 0;
}

static int denied(const json_t *request, json_t *list, bool *ret_all, struct hf_err *err)
{
    const json_t *v = NULL;
    struct hf_map seen = {0};
    int r = list_of(request, "denyOut", "deny_out", &v, err);
    for (size_t i = 0; r == 0 && i < json_array_size(v); i++)
        r = add_denied(json_string_value(json_array_get(v, i)), list, &seen, ret_all, err);
    hf_map_done(&seen);
    return r;
}

static int policies(const json_t *request, json_t *list, struct hf_err *err)
{
    const json_t *v = NULL;
    int r = list_of(request, "policies", "policies", &v, err);
    for (size_t i = 0; r == 0 && i < json_array_size(v); i++) {
        const char *name = json_string_value(json_array_get(v, i));
        bool twice = false;
        if (!hf_policy_is_group_name(name))
            return BAD("policies: \"%.80s\" is not a policy's name (lower-case letters, digits, '-', '_')",
                       name);
        for (size_t k = 0; k < json_array_size(list); k++)
            twice |= strcmp(json_string_value(json_array_get(list, k)), name) == 0;
        if (twice)
            continue;
        if (json_array_size(list) >= HF_POLICY_GROUPS_MAX)
            return BAD("policies: more than %u", HF_POLICY_GROUPS_MAX);
        (void)json_array_append_new(list, json_string(name));
    }
    return r;
}

/* ---- the rest ---- */

static int flag(const json_t *request, const char *camel, const char *snake, int *ret, struct hf_err *err)
{
    const json_t *v = hf_policy_member(request, camel, snake);
    if (v && !json_is_boolean(v))
        return BAD("network: \"%s\" must be a boolean", camel);
    if (v)
        *ret = json_is_true(v);
    return 0;
}

static int ports(const json_t *request, json_t *list, struct hf_err *err)
{
    const json_t *v = hf_policy_member(request, "httpsPorts", "https_ports");
    if (v && !json_is_array(v))
        return BAD("network: \"httpsPorts\" must be a list of ports");
    if (json_array_size(v) > HF_POLICY_HTTPS_PORTS_MAX)
        return BAD("network: \"httpsPorts\" has more than %u entries", HF_POLICY_HTTPS_PORTS_MAX);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *p = json_array_get(v, i);
        json_int_t n = json_integer_value(p);
        if (!json_is_integer(p) || n < 1 || n > UINT16_MAX)
            return BAD("network: a port in \"httpsPorts\" must be a number from 1 to 65535");
        if (n == HF_POLICY_ENVD_PORT)
            return BAD("network: port %d can't be in \"httpsPorts\": it is the sandbox's own",
                       HF_POLICY_ENVD_PORT);
        (void)json_array_append_new(list, json_integer(n));
    }
    return 0;
}

static int split_port(const char *text, char host[256], uint64_t *ret_port)
{
    const char *colon = strrchr(text, ':');
    if (!colon || colon == text || (size_t)(colon - text) > 255)
        return -EINVAL;
    (void)snprintf(host, 256, "%.*s", (int)(colon - text), text);
    int r = hf_parse_u64(hf_str_c(colon + 1), UINT16_MAX, ret_port);
    return r < 0 || *ret_port == 0 ? -EINVAL : 0;
}

static int mask(const json_t *request, const char **ret, struct hf_err *err)
{
    const json_t *v = hf_policy_member(request, "maskRequestHost", "mask_request_host");
    if (v && !json_is_string(v))
        return BAD("network: \"maskRequestHost\" must be a string");
    const char *s = v ? json_string_value(v) : "";
    *ret = s;
    if (!*s)
        return 0;
    for (size_t i = 0; s[i]; i++) {
        if ((unsigned char)s[i] >= 0x80)
            return BAD("mask request host '%.200s' is not ASCII. Please use ASCII characters only.", s);
    }
    char host[256], name[254];
    struct hf_addr a;
    uint64_t port = 0;
    size_t n = strlen(s), k = sizeof(":${PORT}") - 1;
    if (n > HF_POLICY_MASK_MAX)
        return BAD("mask request host is invalid: %.200s", s);
    (void)snprintf(host, sizeof(host), "%s", s);
    if (n > k && strcmp(s + n - k, ":${PORT}") == 0)
        host[n - k] = '\0';
    else if (strchr(s, ':') && split_port(s, host, &port) < 0)
        return BAD("mask request host is invalid: %.200s", s);
    n = strlen(host);
    bool bracketed = n > 2 && host[0] == '[' && host[n - 1] == ']' &&
                     hf_addr_parse((struct hf_str){host + 1, n - 2}, &a) == 0;
    /* "${PORT}-name": the port may be part of the name */
    char *mark = strstr(host, "${PORT}");
    if (mark)
        memmove(mark + 1, mark + 7, strlen(mark + 7) + 1), *mark = '1';
    if (!bracketed && hf_addr_parse(hf_str_c(host), &a) < 0 && hf_name_normal(hf_str_c(host), name) < 0)
        return BAD("mask request host is invalid: %.200s", s);
    return 0;
}

static int proxy_text(const json_t *o, const char *field, const char **ret, struct hf_err *err)
{
    const json_t *v = hf_policy_member(o, field, field);
    *ret = v ? json_string_value(v) : "";
    if (!*ret || strlen(*ret) > HF_POLICY_PROXY_TEXT_MAX)
        return BAD("egressProxy: \"%s\" must be a string of at most %u bytes", field,
                   HF_POLICY_PROXY_TEXT_MAX);
    for (const char *s = *ret; *s; s++) {
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return BAD("egressProxy: \"%s\" has control characters", field);
    }
    return 0;
}

static int proxy_address(const char *text, char host[256], uint64_t *ret_port, struct hf_err *err)
{
    char raw[256];
    struct hf_addr a;
    size_t n;
    int r = split_port(text, raw, ret_port);
    n = r < 0 ? 0 : strlen(raw);
    if (n > 2 && raw[0] == '[' && raw[n - 1] == ']') {
        memmove(raw, raw + 1, n - 2);
        raw[n - 2] = '\0';
        r = hf_addr_parse(hf_str_c(raw), &a) == 0 && a.family == 6 ? 0 : -EINVAL;
    } else if (r == 0 && strchr(raw, ':')) {
        r = -EINVAL;
    }
    if (r < 0 || raw[0] == '*' || hf_policy_host(raw, host) < 0)
        return BAD("egressProxy: \"address\" must be host:port, not \"%.200s\"", text);
    if (hf_addr_parse(hf_str_c(host), &a) == 0 && hf_addr_never(&a))
        return BAD("egressProxy: %s is a %s address", host, hf_addr_class_name(hf_addr_class_of(&a)));
    return 0;
}

static int proxy(const json_t *request, json_t **ret, struct hf_err *err)
{
    static const char *const names[] = {"address", "type", "username", "password"};
    const json_t *v = hf_policy_member(request, "egressProxy", "egress_proxy");
    const char *address = NULL, *type = NULL, *user = NULL, *password = NULL, *key;
    char host[256];
    uint64_t port = 0;
    json_t *member;
    if (!v)
        return 0;
    if (!json_is_object(v))
        return BAD("network: \"egressProxy\" must be an object with \"address\"");
    json_object_foreach((json_t *)(uintptr_t)v, key, member)
    {
        bool known = false;
        for (size_t i = 0; i < HF_ARRAY_LEN(names); i++)
            known |= strcmp(names[i], key) == 0;
        if (!known)
            return BAD("egressProxy: unknown field \"%.64s\"", key);
    }
    int r = proxy_text(v, "address", &address, err);
    if (r == 0)
        r = proxy_address(address, host, &port, err);
    if (r == 0)
        r = proxy_text(v, "type", &type, err);
    if (r == 0 && *type && strcmp(type, "socks5") != 0 && strcmp(type, "http") != 0)
        return BAD("egressProxy: \"type\" must be \"socks5\" or \"http\"");
    if (r == 0)
        r = proxy_text(v, "username", &user, err);
    if (r == 0)
        r = proxy_text(v, "password", &password, err);
    if (r < 0)
        return r;
    hf_auto_free char *canonical =
        hf_xasprintf(strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, (unsigned)port);
    *ret = json_pack("{s:s, s:s, s:s, s:s}", "address", canonical, "type", *type ? type : "socks5",
                     "username", user, "password", password);
    return 0;
}

static int known_only(const json_t *request, const char *const *names, struct hf_err *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)request, key, v)
    {
        size_t i = 0;
        while (names[i] && strcmp(names[i], key) != 0)
            i++;
        if (!names[i])
            return BAD("network: unknown field \"%.64s\"", key);
    }
    return 0;
}

int hf_policy_resolve(const json_t *request, int internet, json_t **ret, struct hf_err *err)
{
    static const char *const names[] = {"allowOut",
                                        "denyOut",
                                        "allowPublicTraffic",
                                        "allowInternetAccess",
                                        "maskRequestHost",
                                        "httpsPorts",
                                        "egressProxy",
                                        "rules",
                                        "policies",
                                        "allow_out",
                                        "deny_out",
                                        "allow_public_traffic",
                                        "allow_internet_access",
                                        "mask_request_host",
                                        "https_ports",
                                        "egress_proxy",
                                        NULL};
    json_auto_t *allow = json_array(), *deny = json_array(), *groups = json_array(), *https = json_array();
    json_auto_t *rules = NULL, *egress = NULL;
    const char *masked = "";
    size_t n_names = 0;
    bool deny_all = false;
    int public_traffic = 1, nested = -1;
    if (request && !json_is_object(request))
        return BAD("network: must be an object");
    int r = known_only(request, names, err);
    if (r == 0)
        r = allowed(request, allow, &n_names, err);
    if (r == 0)
        r = denied(request, deny, &deny_all, err);
    if (r == 0)
        r = policies(request, groups, err);
    if (r == 0)
        r = flag(request, "allowInternetAccess", "allow_internet_access", &nested, err);
    if (r == 0)
        r = flag(request, "allowPublicTraffic", "allow_public_traffic", &public_traffic, err);
    if (r == 0)
        r = ports(request, https, err);
    if (r == 0)
        r = mask(request, &masked, err);
    if (r == 0)
        r = proxy(request, &egress, err);
    if (r == 0)
        r = hf_policy_rules(hf_policy_member(request, "rules", "rules"), &rules, err);
    if (r < 0)
        return r;
    internet = internet >= 0 ? internet : nested;
    if (internet < 0)
        internet = json_array_size(groups) == 0;
    if (n_names && !deny_all && internet)
        return BAD("When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out "
                   "to block all other traffic.");
    *ret = json_pack("{s:b, s:b, s:O, s:O, s:O, s:O?, s:s, s:O, s:O, s:i}", "allow_internet_access", internet,
                     "allow_public_traffic", public_traffic, "allow_out", allow, "deny_out", deny, "rules",
                     rules, "egress_proxy", egress, "mask_request_host", masked, "https_ports", https,
                     "policies", groups, "token_version", 0);
    return *ret ? 0 : BAD("network: a text is not UTF-8");
}

/* Ids or names, as sandboxes are made of them; whether they exist is not asked. */
static int templates(const json_t *request, json_t *list, struct hf_err *err)
{
    const json_t *v = NULL;
    int r = list_of(request, "templates", "templates", &v, err);
    if (r == 0 && json_array_size(v) > HF_POLICY_TEMPLATES_MAX)
        return BAD("policy: more than %u templates", HF_POLICY_TEMPLATES_MAX);
    for (size_t i = 0; r == 0 && i < json_array_size(v); i++) {
        const char *s = json_string_value(json_array_get(v, i));
        size_t n = strlen(s);
        if (n == 0 || n > HF_POLICY_TEMPLATE_NAME_MAX ||
            strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-_./") != n)
            return BAD("policy: \"%.80s\" is not the id or name of a template (without a tag)", s);
        (void)json_array_append_new(list, json_string(s));
    }
    return r;
}

int hf_policy_resolve_group(const json_t *request, json_t **ret, struct hf_err *err)
{
    static const char *const names[] = {"allowOut",  "denyOut",  "rules", "templates",
                                        "allow_out", "deny_out", NULL};
    json_auto_t *allow = json_array(), *deny = json_array(), *rules = NULL, *bound = json_array();
    size_t n_names = 0;
    bool deny_all = false;
    if (!json_is_object(request))
        return BAD("policy: must be an object");
    int r = known_only(request, names, err);
    if (r == 0)
        r = allowed(request, allow, &n_names, err);
    if (r == 0)
        r = denied(request, deny, &deny_all, err);
    if (r == 0)
        r = templates(request, bound, err);
    if (r == 0)
        r = hf_policy_rules(hf_policy_member(request, "rules", "rules"), &rules, err);
    if (r < 0)
        return r;
    *ret = json_pack("{s:O, s:O, s:O}", "allow_out", allow, "deny_out", deny, "rules", rules);
    if (*ret && json_array_size(bound))
        (void)json_object_set(*ret, "templates", bound);
    return *ret ? 0 : BAD("policy: a text is not UTF-8");
}
