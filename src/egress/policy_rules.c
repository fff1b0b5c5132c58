/* L7 rules of a request -> canonical rules. */
#include <stdio.h>

#include "egress/policy_int.h"

#define BAD HF_POLICY_BAD
#define TRANSFORM "transform" /* converted rules are called "transform <host>" */

/* One rule on its way. what: how errors call it. */
struct draft {
    char what[96];
    char host[256];
    const char *scheme, *action, *audit;
    const char *path;
    json_t *ports, *methods, *inject;
    bool opens;
    struct hf_err *err;
};

static int text_of(struct draft *d, const json_t *o, const char *field, const char **ret)
{
    struct hf_err *err = d->err;
    const json_t *v = hf_policy_member(o, field, field);
    if (!v)
        return 0;
    if (!json_is_string(v))
        return BAD("%s: \"%s\" must be a string", d->what, field);
    *ret = json_string_value(v);
    return 1;
}

static int one_of(struct draft *d, const json_t *o, const char *field, const char *const *words,
                  const char **ret)
{
    struct hf_err *err = d->err;
    const char *s = NULL;
    int r = text_of(d, o, field, &s);
    if (r <= 0)
        return r;
    for (size_t i = 0; words[i]; i++) {
        if (strcasecmp(words[i], s) == 0) {
            *ret = words[i];
            return 1;
        }
    }
    return BAD("%s: \"%s\" can't be \"%.40s\"", d->what, field, s);
}

/* Refuses members that this version does not know: a misspelt restriction must not be a missing one. */
static int known_only(struct draft *d, const json_t *o, const char *const *names)
{
    struct hf_err *err = d->err;
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        size_t i = 0;
        while (names[i] && strcmp(names[i], key) != 0)
            i++;
        if (!names[i])
            return BAD("%s: unknown field \"%.64s\"", d->what, key);
    }
    return 0;
}

static int take_host(struct draft *d, const json_t *o)
{
    struct hf_err *err = d->err;
    const char *host = NULL, *sni = NULL;
    char other[256];
    int r = text_of(d, o, "host", &host);
    if (r >= 0)
        r = text_of(d, o, "sni", &sni);
    if (r < 0)
        return r;
    if (!host && !sni)
        return BAD("%s: \"host\" (or \"sni\") is required", d->what);
    if (hf_policy_host(host ? host : sni, d->host) < 0)
        return BAD("%s: \"%.200s\" is not a host: write a domain, *.domain or an address (names outside "
                   "ASCII as A-labels, xn--…)",
                   d->what, host ? host : sni);
    if (host && sni && (hf_policy_host(sni, other) < 0 || strcmp(other, d->host) != 0))
        return BAD("%s: \"host\" and \"sni\" must be the same name", d->what);
    return 0;
}

static int add_port(struct draft *d, const json_t *v)
{
    struct hf_err *err = d->err;
    json_int_t port = json_integer_value(v);
    if (!json_is_integer(v) || port < 1 || port > UINT16_MAX)
        return BAD("%s: a port must be a number from 1 to 65535", d->what);
    if (json_array_size(d->ports) >= HF_POLICY_PORTS_MAX)
        return BAD("%s: more than %u ports", d->what, HF_POLICY_PORTS_MAX);
    (void)json_array_append_new(d->ports, json_integer(port));
    return 0;
}

static int add_method(struct draft *d, const json_t *v)
{
    struct hf_err *err = d->err;
    char text[HF_POLICY_METHOD_MAX + 1];
    const char *s = json_string_value(v);
    size_t n = s ? strlen(s) : 0;
    if (n == 0 || n > HF_POLICY_METHOD_MAX)
        return BAD("%s: a method must be a word of 1 to %u letters", d->what, HF_POLICY_METHOD_MAX);
    for (size_t i = 0; i <= n; i++) {
        char c = s[i];
        if (i < n && !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_'))
            return BAD("%s: \"%.32s\" is not a method", d->what, s);
        text[i] = (char)(c >= 'a' && c <= 'z' ? c - ('a' - 'A') : c);
    }
    if (json_array_size(d->methods) >= HF_POLICY_METHODS_MAX)
        return BAD("%s: more than %u methods", d->what, HF_POLICY_METHODS_MAX);
    (void)json_array_append_new(d->methods, json_string(text));
    return 0;
}

/* A list, or a single value under either name. */
static int take_list(struct draft *d, const json_t *o, const char *one, const char *many,
                     int (*add)(struct draft *d, const json_t *v))
{
    struct hf_err *err = d->err;
    const json_t *v = hf_policy_member(o, many, one);
    if (!v)
        return 0;
    if (hf_policy_member(o, many, many) && hf_policy_member(o, one, one))
        return BAD("%s: give \"%s\" or \"%s\", not both", d->what, one, many);
    if (!json_is_array(v))
        return add(d, v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        int r = add(d, json_array_get(v, i));
        if (r < 0)
            return r;
    }
    return 0;
}

static int take_inject(struct draft *d, const json_t *o)
{
    static const char *const names[] = {"header", "secret", "format", NULL};
    struct hf_err *err = d->err;
    const json_t *v = hf_policy_member(o, "inject", "inject");
    if (v && !json_is_array(v))
        return BAD("%s: \"inject\" must be a list of {\"header\", \"secret\", \"format\"}", d->what);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        const char *header = NULL, *secret = "", *format = NULL;
        if (!json_is_object(item))
            return BAD("%s: \"inject\" must be a list of {\"header\", \"secret\", \"format\"}", d->what);
        int r = known_only(d, item, names);
        if (r >= 0)
            r = text_of(d, item, "header", &header);
        if (r == 0)
            return BAD("%s: \"inject\" needs \"header\"", d->what);
        if (r > 0)
            r = text_of(d, item, "secret", &secret);
        if (r >= 0)
            r = text_of(d, item, "format", &format);
        if (r >= 0)
            r = hf_policy_inject(d->what, header, secret, format, d->inject, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int take_path(struct draft *d, const json_t *o)
{
    struct hf_err *err = d->err;
    hf_auto_free char *strict = NULL, *loose = NULL;
    int r = text_of(d, o, "path", &d->path);
    if (r > 0 && hf_path_pattern(d->path, &strict, &loose) < 0)
        return BAD("%s: \"path\" must begin with '/', may end with '*', and has at most %u bytes and no "
                   "query",
                   d->what, HF_POLICY_PATH_MAX);
    return r;
}

static int take_flag(struct draft *d, const json_t *o, const char *field, bool *ret)
{
    struct hf_err *err = d->err;
    const json_t *v = hf_policy_member(o, field, field);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return BAD("%s: \"%s\" must be a boolean", d->what, field);
    *ret = json_is_true(v);
    return 1;
}

static int take_match(struct draft *d, const json_t *o)
{
    static const char *const schemes[] = {"http", "https", "", NULL};
    int r = take_host(d, o);
    if (r >= 0)
        r = one_of(d, o, "scheme", schemes, &d->scheme);
    if (r >= 0)
        r = take_list(d, o, "port", "ports", add_port);
    if (r >= 0)
        r = take_list(d, o, "method", "methods", add_method);
    return r < 0 ? r : take_path(d, o);
}

/* "action" is a word, or Cube's object {"allow","audit","inject"}. */
static int take_action(struct draft *d, const json_t *rule)
{
    static const char *const actions[] = {"allow", "deny", NULL};
    static const char *const audits[] = {"none", "metadata", "full", NULL};
    static const char *const names[] = {"allow", "audit", "inject", NULL};
    const json_t *o = rule, *action = json_object_get(rule, "action");
    int r = 0;
    if (json_is_object(action)) {
        bool allow = true;
        o = action;
        r = known_only(d, action, names);
        if (r >= 0)
            r = take_flag(d, action, "allow", &allow);
        d->action = allow ? "allow" : "deny";
    } else {
        r = one_of(d, rule, "action", actions, &d->action);
    }
    if (r >= 0)
        r = one_of(d, o, "audit", audits, &d->audit);
    return r < 0 ? r : take_inject(d, o);
}

/* What only the whole rule shows. */
static int check_whole(struct draft *d, const json_t *o)
{
    struct hf_err *err = d->err;
    bool plain = false;
    int r = take_flag(d, o, "opens", &d->opens);
    if (r >= 0)
        r = take_flag(d, o, "plain_http", &plain);
    if (r < 0)
        return r;
    if (plain)
        return BAD("%s: headers are added over verified TLS only; \"plain_http\" can't be true", d->what);
    bool deny = strcmp(d->action, "deny") == 0;
    if (json_array_size(d->inject)) {
        if (deny)
            return BAD("%s: a rule that denies can't add headers", d->what);
        if (strcmp(d->scheme, "http") == 0)
            return BAD("%s: headers are added over verified TLS only; set \"scheme\" to \"https\"", d->what);
        d->scheme = "https";
    }
    if (json_array_size(d->ports) && !*d->scheme)
        return BAD("%s: \"ports\" needs \"scheme\"", d->what);
    if (deny)
        d->opens = false;
    return 0;
}

static bool has_control(const char *s)
{
    while ((unsigned char)*s >= 0x20 && *s != 0x7f)
        s++;
    return *s != '\0';
}

static int one_rule(const json_t *o, size_t number, json_t *list, struct hf_err *err)
{
    static const char *const flat[] = {"name",  "host",   "sni",     "scheme",     "port",
                                       "ports", "method", "methods", "path",       "action",
                                       "audit", "inject", "opens",   "plain_http", NULL};
    static const char *const nested[] = {"name", "match", "action", "opens", NULL};
    static const char *const in_match[] = {"host",   "sni",     "scheme", "port", "ports",
                                           "method", "methods", "path",   NULL};
    json_auto_t *ports = json_array(), *methods = json_array(), *inject = json_array();
    struct draft d = {.scheme = "",
                      .action = "allow",
                      .audit = "metadata",
                      .path = "",
                      .opens = true,
                      .ports = ports,
                      .methods = methods,
                      .inject = inject,
                      .err = err};
    const char *name = NULL;
    (void)snprintf(d.what, sizeof(d.what), "rule %zu", number);
    if (!json_is_object(o))
        return BAD("%s: a rule must be an object", d.what);
    const json_t *match = hf_policy_member(o, "match", "match");
    if (match && !json_is_object(match))
        return BAD("%s: \"match\" must be an object", d.what);
    int r = text_of(&d, o, "name", &name);
    if (r > 0 && (strlen(name) > HF_POLICY_RULE_NAME_MAX || has_control(name)))
        return BAD("%s: \"name\" has at most %u characters and no control characters", d.what,
                   HF_POLICY_RULE_NAME_MAX);
    if (r > 0 && *name)
        (void)snprintf(d.what, sizeof(d.what), "%s", name);
    if (r >= 0)
        r = known_only(&d, o, match ? nested : flat);
    if (r >= 0 && match)
        r = known_only(&d, match, in_match);
    if (r >= 0)
        r = take_match(&d, match ? match : o);
    if (r >= 0)
        r = take_action(&d, o);
    if (r >= 0)
        r = check_whole(&d, o);
    if (r < 0)
        return r;
    (void)json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:O, s:O, s:s, s:s, s:s, s:O, s:b}", "name",
                                                d.what, "host", d.host, "scheme", d.scheme, "ports", ports,
                                                "methods", methods, "path", d.path, "action", d.action,
                                                "audit", d.audit, "inject", inject, "opens", (int)d.opens));
    return 0;
}

/* ---- E2B's map ---- */

static int one_transform(const char *host, const json_t *transforms, json_t *list, struct hf_err *err)
{
    char what[80], normal[256];
    json_auto_t *inject = json_array();
    (void)snprintf(what, sizeof(what), TRANSFORM " %.60s", host);
    if (hf_policy_host(host, normal) < 0)
        return BAD("%s: not a host: write a domain, *.domain or an address", what);
    if (!json_is_array(transforms) || json_array_size(transforms) > 1)
        return BAD("%s: must be a list of one {\"transform\":{\"headers\":{…}}}", what);
    if (json_array_size(transforms) == 0)
        return 0;
    const json_t *rule = json_array_get(transforms, 0), *t = json_object_get(rule, "transform");
    const json_t *headers = json_object_get(t, "headers");
    if (!json_is_object(headers) || json_object_size(rule) != 1 || json_object_size(t) != 1)
        return BAD("%s: must be a list of one {\"transform\":{\"headers\":{…}}}", what);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)headers, key, v)
    {
        if (!json_is_string(v))
            return BAD("%s: the value of \"%.64s\" must be a string", what, key);
        int r = hf_policy_inject(what, key, "", json_string_value(v), inject, err);
        if (r < 0)
            return r;
    }
    (void)json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:[], s:[], s:s, s:s, s:s, s:O, s:b}",
                                                "name", what, "host", normal, "scheme", "https", "ports",
                                                "methods", "path", "", "action", "allow", "audit", "metadata",
                                                "inject", inject, "opens", 0));
    return 0;
}

/* Exact hosts first, then wildcards from the longest: the first match is E2B's best one. */
static int by_precision(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    if ((*x == '*') != (*y == '*'))
        return *x == '*' ? 1 : -1;
    size_t nx = strlen(x), ny = strlen(y);
    return nx != ny ? (nx > ny ? -1 : 1) : strcmp(x, y);
}

static int transforms(const json_t *map, json_t *list, struct hf_err *err)
{
    size_t n = json_object_size(map), i = 0;
    if (n > HF_POLICY_RULES_MAX)
        return BAD("network: more than %u rules", HF_POLICY_RULES_MAX);
    hf_auto_free const char **hosts = hf_xcalloc(n + 1, sizeof(*hosts));
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)map, key, v) hosts[i++] = key;
    qsort(hosts, n, sizeof(*hosts), by_precision);
    int r = 0;
    for (i = 0; r == 0 && i < n; i++)
        r = one_transform(hosts[i], json_object_get(map, hosts[i]), list, err);
    return r;
}

/* ---- all ---- */

static bool uses_port(const json_t *rule, json_int_t port)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(rule, "ports"), i, v)
    {
        if (json_integer_value(v) == port)
            return true;
    }
    return false;
}

/* A port of a host speaks one protocol. */
static int check_schemes(const json_t *rules, struct hf_err *err)
{
    for (size_t i = 0; i < json_array_size(rules); i++) {
        const json_t *a = json_array_get(rules, i), *b;
        const char *host = json_string_value(json_object_get(a, "host"));
        for (size_t k = 0; k < i; k++) {
            b = json_array_get(rules, k);
            if (strcmp(json_string_value(json_object_get(b, "host")), host) != 0 ||
                json_equal(json_object_get(a, "scheme"), json_object_get(b, "scheme")))
                continue;
            size_t p;
            json_t *port;
            json_array_foreach(json_object_get(a, "ports"), p, port)
            {
                if (uses_port(b, json_integer_value(port)))
                    return BAD("rules for %s port %lld must agree on \"scheme\"", host,
                               (long long)json_integer_value(port));
            }
        }
    }
    return 0;
}

int hf_policy_rules(const json_t *v, json_t **ret, struct hf_err *err)
{
    json_auto_t *list = json_array();
    int r = 0;
    if (json_is_object(v)) {
        r = transforms(v, list, err);
    } else if (json_is_array(v)) {
        if (json_array_size(v) > HF_POLICY_RULES_MAX)
            return BAD("network: more than %u rules", HF_POLICY_RULES_MAX);
        for (size_t i = 0; r == 0 && i < json_array_size(v); i++)
            r = one_rule(json_array_get(v, i), i + 1, list, err);
    } else if (v) {
        return BAD("network: \"rules\" must be a list of rules, or an object of hosts");
    }
    if (r == 0)
        r = check_schemes(list, err);
    if (r < 0)
        return r;
    *ret = hf_take_ptr(list);
    return 0;
}

json_t *hf_policy_rules_present(const json_t *rules)
{
    json_auto_t *map = json_object();
    size_t i, k;
    json_t *rule, *v;
    json_array_foreach((json_t *)(uintptr_t)rules, i, rule)
    {
        const char *host = json_string_value(json_object_get(rule, "host"));
        const char *name = json_string_value(json_object_get(rule, "name"));
        if (!host || !name || strncmp(name, TRANSFORM " ", sizeof(TRANSFORM)) != 0 ||
            json_is_true(json_object_get(rule, "opens")) || json_object_get(map, host))
            return json_deep_copy(rules);
        json_t *headers = json_object();
        json_array_foreach(json_object_get(rule, "inject"), k, v)(void) json_object_set(
            headers, json_string_value(json_object_get(v, "header")), json_object_get(v, "format"));
        (void)json_object_set_new(map, host, json_pack("[{s:{s:o}}]", "transform", "headers", headers));
    }
    return i ? json_incref(map) : json_array();
}
