/* Policy: requests to canonical documents, limits, merging, what is shown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "egress/policy_int.h"

static json_t *resolve_ok(const char *text, int internet)
{
    struct hf_err err = {0};
    json_auto_t *request = json_loads(text, 0, NULL);
    json_t *doc = NULL;
    assert_non_null(request);
    if (hf_policy_resolve(request, internet, &doc, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return doc;
}

static void refused(const json_t *request, const char *part)
{
    struct hf_err err = {0};
    json_t *doc = NULL;
    assert_int_equal(hf_policy_resolve(request, -1, &doc, &err), -EINVAL);
    assert_null(doc);
    assert_int_equal(err.status, 400);
    if (!strstr(err.msg, part))
        fail_msg("\"%s\" is not in: %s", part, err.msg);
}

static void same(const json_t *doc, const char *key, const char *text)
{
    hf_auto_free char *got = json_dumps(json_object_get(doc, key), JSON_COMPACT | JSON_ENCODE_ANY);
    assert_string_equal(got, text);
}

/* ---- what is said ---- */

static void test_every_member_has_a_value(void **state)
{
    json_t *doc = NULL;
    assert_int_equal(hf_policy_resolve(NULL, -1, &doc, NULL), 0);
    static const char *const values[][2] = {{"allow_internet_access", "true"},
                                            {"allow_public_traffic", "true"},
                                            {"allow_out", "[]"},
                                            {"deny_out", "[]"},
                                            {"rules", "[]"},
                                            {"egress_proxy", "null"},
                                            {"mask_request_host", "\"\""},
                                            {"https_ports", "[]"},
                                            {"policies", "[]"},
                                            {"token_version", "0"}};
    assert_int_equal(json_object_size(doc), HF_ARRAY_LEN(values));
    for (size_t i = 0; i < HF_ARRAY_LEN(values); i++)
        same(doc, values[i][0], values[i][1]);
    json_decref(doc);
}

static void test_internet(void **state)
{
    static const struct {
        const char *request;
        int internet;
        const char *want;
    } cases[] = {
        {"{}", -1, "true"},
        {"{}", 0, "false"},
        {"{}", 1, "true"},
        {"{\"allowInternetAccess\":false}", -1, "false"},
        {"{\"allow_internet_access\":false}", -1, "false"},
        {"{\"allowInternetAccess\":false}", 1, "true"}, /* the top level says it last */
        {"{\"policies\":[\"a\"]}", -1, "false"},        /* bound means restricted */
        {"{\"policies\":[\"a\"]}", 1, "true"},
        {"{\"policies\":[]}", -1, "true"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        json_auto_t *doc = resolve_ok(cases[i].request, cases[i].internet);
        same(doc, "allow_internet_access", cases[i].want);
    }
}

static void test_lists_are_canonical(void **state)
{
    json_auto_t *doc =
        resolve_ok("{\"allowOut\":[\"API.Example.\",\"api.example\",\"*.X.example\",\"1.2.3.4\","
                   "\"1.2.3.4/32\",\"10.1.2.3/8\",\"2001:DB8:0::1\"],"
                   "\"denyOut\":[\"0.0.0.0/0\",\"9.9.9.9/32\",\"::/0\",\"0.0.0.0/0\"]}",
                   -1);
    same(doc, "allow_out", "[\"api.example\",\"*.x.example\",\"1.2.3.4\",\"10.0.0.0/8\",\"2001:db8::1\"]");
    same(doc, "deny_out", "[\"0.0.0.0/0\",\"9.9.9.9\",\"::/0\"]");
    json_auto_t *snake =
        resolve_ok("{\"allow_out\":[\"1.1.1.1\"],\"deny_out\":[\"2.2.2.2\"],\"https_ports\":[1],"
                   "\"mask_request_host\":\"h\",\"allow_public_traffic\":false}",
                   -1);
    same(snake, "allow_out", "[\"1.1.1.1\"]");
    same(snake, "allow_public_traffic", "false");
}

static void test_refusals(void **state)
{
    static const struct {
        const char *request, *part;
    } cases[] = {
        {"[]", "must be an object"},
        {"{\"denyout\":[]}", "unknown field \"denyout\""},
        {"{\"denyOut\":[\"evil.com\"]}", "invalid denied CIDR evil.com"},
        {"{\"denyOut\":[\"1.2.3.4/33\"]}", "invalid denied CIDR 1.2.3.4/33"},
        {"{\"denyOut\":[\"010.0.0.1\"]}", "invalid denied CIDR 010.0.0.1"},
        {"{\"denyOut\":\"0.0.0.0/0\"}", "list of strings"},
        {"{\"denyOut\":[1]}", "list of strings"},
        {"{\"allowOut\":[\"a.example\"]}", "you must include 'ALL_TRAFFIC' in deny out"},
        {"{\"allowOut\":[\"a.example\"],\"denyOut\":[\"::/0\"]}",
         "you must include 'ALL_TRAFFIC' in deny out"},
        {"{\"allowOut\":[\"*\"]}", "invalid allowed address or domain *"},
        {"{\"allowOut\":[\"a.*.example\"]}", "invalid allowed"},
        {"{\"allowOut\":[\"b\xc3\xbc"
         "cher.example\"]}",
         "xn--"},
        {"{\"allowOut\":[\"http://a.example\"]}", "invalid allowed"},
        {"{\"allowOut\":[\"1.2.3.4/33\"]}", "invalid allowed"},
        {"{\"allowOut\":[\"0x7f.1\"]}", "invalid allowed"},
        {"{\"allowOut\":[\"127.0.0.1\"]}", "loopback address, which no policy opens"},
        {"{\"allowOut\":[\"127.0.0.0/8\"]}", "loopback"},
        {"{\"allowOut\":[\"169.254.169.254\"]}", "which no policy opens"},
        {"{\"allowOut\":[\"100.100.100.200\"]}", "metadata"},
        {"{\"allowOut\":[\"fe80::/10\"]}", "link-local"},
        {"{\"allowOut\":[\"::ffff:127.0.0.1\"]}", "which no policy opens"},
        {"{\"allowOut\":[\"224.0.0.0/4\"]}", "which no policy opens"},
        {"{\"allowPublicTraffic\":1}", "must be a boolean"},
        {"{\"allowInternetAccess\":\"no\"}", "must be a boolean"},
        {"{\"policies\":[\"Upper\"]}", "not a policy's name"},
        {"{\"policies\":[\"a/b\"]}", "not a policy's name"},
        {"{\"httpsPorts\":[0]}", "1 to 65535"},
        {"{\"httpsPorts\":[49983]}", "the sandbox's own"},
        {"{\"httpsPorts\":8443}", "list of ports"},
        {"{\"maskRequestHost\":\"b\xc3\xbc"
         "cher\"}",
         "is not ASCII. Please use ASCII characters only."},
        {"{\"maskRequestHost\":\"a b\"}", "mask request host is invalid"},
        {"{\"maskRequestHost\":\"a/b\"}", "mask request host is invalid"},
        {"{\"maskRequestHost\":\"a:99999\"}", "mask request host is invalid"},
        {"{\"maskRequestHost\":\"u@a\"}", "mask request host is invalid"},
        {"{\"egressProxy\":\"x:1\"}", "must be an object"},
        {"{\"egressProxy\":{}}", "host:port"},
        {"{\"egressProxy\":{\"address\":\"x\"}}", "host:port"},
        {"{\"egressProxy\":{\"address\":\"x:0\"}}", "host:port"},
        {"{\"egressProxy\":{\"address\":\"*.x:1\"}}", "host:port"},
        {"{\"egressProxy\":{\"address\":\"127.0.0.1:1\"}}", "loopback"},
        {"{\"egressProxy\":{\"address\":\"[::1]:1\"}}", "loopback"},
        {"{\"egressProxy\":{\"address\":\"x:1\",\"type\":\"ftp\"}}", "socks5"},
        {"{\"egressProxy\":{\"address\":\"x:1\",\"user\":\"a\"}}", "unknown field"},
        {"{\"egressProxy\":{\"address\":\"x:1\",\"username\":1}}", "must be a string"},
        {"{\"rules\":\"x\"}", "must be a list"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        json_auto_t *request = json_loads(cases[i].request, 0, NULL);
        assert_non_null(request);
        refused(request, cases[i].part);
    }
}

static void test_domains_with_the_internet_off(void **state)
{
    json_auto_t *a = resolve_ok("{\"allowOut\":[\"a.example\"]}", 0);
    same(a, "allow_out", "[\"a.example\"]");
    json_auto_t *b = resolve_ok("{\"allowOut\":[\"a.example\"],\"policies\":[\"g\"]}", -1);
    same(b, "allow_internet_access", "false");
}

static void test_masks_and_proxies(void **state)
{
    static const char *const masks[] = {"app.example",    "localhost:${PORT}", "app.example:8080",
                                        "127.0.0.1:3000", "[2001:db8::1]:80",  "${PORT}-app.example"};
    for (size_t i = 0; i < HF_ARRAY_LEN(masks); i++) {
        hf_auto_free char *text = hf_xasprintf("{\"maskRequestHost\":\"%s\"}", masks[i]);
        json_auto_t *doc = resolve_ok(text, -1);
        assert_string_equal(json_string_value(json_object_get(doc, "mask_request_host")), masks[i]);
    }
    json_auto_t *doc = resolve_ok("{\"egressProxy\":{\"address\":\"Proxy.Example:1080\"}}", -1);
    same(doc, "egress_proxy",
         "{\"address\":\"proxy.example:1080\",\"type\":\"socks5\",\"username\":\"\",\"password\":\"\"}");
    json_auto_t *v6 = resolve_ok("{\"egressProxy\":{\"address\":\"[2001:db8::5]:3128\",\"type\":\"http\","
                                 "\"username\":\"u\",\"password\":\"p\"}}",
                                 -1);
    struct hf_policy *p;
    assert_int_equal(hf_policy_parse(v6, &p, NULL), 0);
    assert_true(p->has_proxy && p->proxy.http);
    assert_string_equal(p->proxy.host, "2001:db8::5");
    assert_int_equal(p->proxy.port, 3128);
    assert_string_equal(p->proxy.password, "p");
    hf_policy_unref(p);
}

/* ---- limits ---- */

/* A request with n entries: before, two numbers, after. */
static json_t *many(const char *key, const char *before, const char *after, unsigned n)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < n; i++)
        (void)json_array_append_new(list, json_sprintf("%s%u%c%u%s", before, i / 256,
                                                       strchr(before, '.') ? '.' : '-', i % 256, after));
    return json_pack("{s:o, s:[s]}", key, list, strcmp(key, "denyOut") == 0 ? "deny_out" : "denyOut",
                     "0.0.0.0/0");
}

static void limit(const char *key, const char *before, const char *after, unsigned max, const char *part)
{
    json_auto_t *fits = many(key, before, after, max), *more = many(key, before, after, max + 1), *doc = NULL;
    assert_int_equal(hf_policy_resolve(fits, -1, &doc, NULL), 0);
    refused(more, part);
}

static void test_list_limits(void **state)
{
    limit("allowOut", "198.51.", "", HF_POLICY_CIDRS_MAX, "too many allowed CIDRs: the limit is 8192");
    limit("denyOut", "198.51.", "", HF_POLICY_CIDRS_MAX, "too many denied CIDRs: the limit is 8192");
    limit("allowOut", "n", ".example", HF_POLICY_NAMES_MAX, "too many allowed domains: the limit is 1024");
    limit("policies", "p", "", HF_POLICY_GROUPS_MAX, "policies: more than 16");
}

static json_t *rules_of(json_t *rule, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append(list, rule);
    json_decref(rule);
    return json_pack("{s:o}", "rules", list);
}

static json_t *repeated(const char *fmt, unsigned n)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < n; i++)
        (void)json_array_append_new(list, strcmp(fmt, "port") == 0
                                              ? json_integer(1000 + i)
                                              : json_sprintf("%s%c", fmt, (int)('a' + i)));
    return list;
}

static void rule_limit(json_t *fits, json_t *more, const char *part)
{
    json_auto_t *a = rules_of(fits, 1), *b = rules_of(more, 1), *doc = NULL;
    struct hf_err err = {0};
    if (hf_policy_resolve(a, -1, &doc, &err) < 0)
        fail_msg("%s", err.msg);
    refused(b, part);
}

static json_t *injecting(unsigned n, size_t name_n, size_t value_n)
{
    json_t *list = json_array();
    hf_auto_free char *value = hf_xcalloc(1, value_n + 1), *name = hf_xcalloc(1, name_n + 1);
    memset(value, 'v', value_n);
    memset(name, 'n', name_n);
    for (unsigned i = 0; i < n; i++) {
        name[0] = (char)('a' + i);
        (void)json_array_append_new(list, json_pack("{s:s, s:s}", "header", name, "format", value));
    }
    return json_pack("{s:s, s:o}", "host", "a.example", "inject", list);
}

static void test_rule_limits(void **state)
{
    json_auto_t *fits = rules_of(json_pack("{s:s}", "host", "a.example"), HF_POLICY_RULES_MAX);
    json_auto_t *more = rules_of(json_pack("{s:s}", "host", "a.example"), HF_POLICY_RULES_MAX + 1),
                *doc = NULL;
    assert_int_equal(hf_policy_resolve(fits, -1, &doc, NULL), 0);
    refused(more, "more than 128 rules");
#define RULE(key, n, what) json_pack("{s:s, s:s, s:o}", "host", "h", "scheme", "http", key, repeated(what, n))
    rule_limit(RULE("ports", HF_POLICY_PORTS_MAX, "port"), RULE("ports", HF_POLICY_PORTS_MAX + 1, "port"),
               "more than 8 ports");
    rule_limit(RULE("methods", HF_POLICY_METHODS_MAX, "GET"),
               RULE("methods", HF_POLICY_METHODS_MAX + 1, "GET"), "more than 16 methods");
    rule_limit(injecting(HF_POLICY_INJECT_MAX, 2, 1), injecting(HF_POLICY_INJECT_MAX + 1, 2, 1),
               "more than 20 headers");
    rule_limit(injecting(1, HF_POLICY_HEADER_NAME_MAX, 1), injecting(1, HF_POLICY_HEADER_NAME_MAX + 1, 1),
               "1 to 64 characters");
    rule_limit(injecting(1, 2, HF_POLICY_HEADER_VALUE_MAX), injecting(1, 2, HF_POLICY_HEADER_VALUE_MAX + 1),
               "longer than 2048 bytes");
}

static void test_port_limit(void **state)
{
    for (unsigned n = HF_POLICY_L7_PORTS_MAX; n <= HF_POLICY_L7_PORTS_MAX + 1; n++) {
        json_auto_t *list = json_array(), *doc = NULL;
        for (unsigned i = 0; i < n; i++)
            (void)json_array_append_new(
                list, json_pack("{s:s, s:s, s:[i]}", "host", "h", "scheme", "http", "ports", 1000 + (int)i));
        json_auto_t *request = json_pack("{s:O}", "rules", list);
        struct hf_policy *p = NULL;
        struct hf_err err = {0};
        assert_int_equal(hf_policy_resolve(request, -1, &doc, &err), 0);
        assert_int_equal(hf_policy_parse(doc, &p, &err), n > HF_POLICY_L7_PORTS_MAX ? -EINVAL : 0);
        assert_int_equal(err.status, n > HF_POLICY_L7_PORTS_MAX ? 400 : 0);
        hf_policy_unref(p);
    }
}

/* ---- rules ---- */

static void test_rule_refusals(void **state)
{
    static const struct {
        const char *rule, *part;
    } cases[] = {
        {"{}", "\"host\" (or \"sni\") is required"},
        {"1", "must be an object"},
        {"{\"host\":\"a\",\"hots\":1}", "unknown field"},
        {"{\"host\":\"a\",\"sni\":\"b\"}", "same name"},
        {"{\"host\":\"*\"}", "is not a host"},
        {"{\"host\":\"10.0.0.0/8\"}", "is not a host"},
        {"{\"host\":\"a\",\"scheme\":\"ftp\"}", "can't be \"ftp\""},
        {"{\"host\":\"a\",\"action\":\"maybe\"}", "can't be"},
        {"{\"host\":\"a\",\"audit\":\"all\"}", "can't be"},
        {"{\"host\":\"a\",\"ports\":[8080]}", "needs \"scheme\""},
        {"{\"host\":\"a\",\"scheme\":\"http\",\"ports\":[0]}", "1 to 65535"},
        {"{\"host\":\"a\",\"scheme\":\"http\",\"port\":1,\"ports\":[2]}", "not both"},
        {"{\"host\":\"a\",\"methods\":[\"G ET\"]}", "is not a method"},
        {"{\"host\":\"a\",\"path\":\"v1\"}", "must begin with '/'"},
        {"{\"host\":\"a\",\"path\":\"/a*b\"}", "may end with '*'"},
        {"{\"host\":\"a\",\"path\":\"/a?b\"}", "no query"},
        {"{\"host\":\"a\",\"path\":\"/a%00\"}", "must begin"},
        {"{\"host\":\"a\",\"name\":\"x\\ny\"}", "control characters"},
        {"{\"host\":\"a\",\"action\":\"deny\",\"inject\":[{\"header\":\"x\",\"format\":\"y\"}]}", "denies"},
        {"{\"host\":\"a\",\"scheme\":\"http\",\"inject\":[{\"header\":\"x\",\"format\":\"y\"}]}",
         "verified TLS"},
        {"{\"host\":\"a\",\"plain_http\":true}", "verified TLS"},
        {"{\"host\":\"a\",\"inject\":[{\"format\":\"y\"}]}", "needs \"header\""},
        {"{\"host\":\"a\",\"inject\":[{\"header\":\"x\"}]}", "names none"},
        {"{\"host\":\"a\",\"inject\":[{\"header\":\"x\",\"secret\":\"S\",\"format\":\"y\"}]}",
         "has no ${SECRET}"},
        {"{\"host\":\"a\",\"inject\":[{\"header\":\"x\",\"secret\":\"a b\"}]}", "not a secret's name"},
        {"{\"host\":\"a\",\"inject\":[{\"header\":\"Host\",\"format\":\"y\"}]}", "frames the message"},
        {"{\"host\":\"a\",\"inject\":[{\"header\":\"content-length\",\"format\":\"1\"}]}", "frames"},
        {"{\"host\":\"a\",\"inject\":[{\"header\":\":path\",\"format\":\"y\"}]}", "not a header name"},
        {"{\"host\":\"a\",\"inject\":[{\"header\":\"x\",\"format\":\"a\\r\\nb: c\"}]}", "control characters"},
        {"{\"host\":\"a\",\"inject\":[{\"header\":\"x\",\"format\":\"${OTHER}\"}]}", "unknown placeholder"},
        {"{\"host\":\"a\",\"inject\":[{\"header\":\"x\",\"format\":\"${e2b.identity.tokens.A}\"}]}",
         "identity"},
        {"{\"host\":\"a\",\"inject\":[{\"header\":\"x\",\"format\":\"${holdfast.secrets.\"}]}", "its end"},
        {"{\"host\":\"a\",\"inject\":[{\"header\":\"x\",\"format\":\"y\"},{\"header\":\"X\",\"format\":\"z\"}"
         "]}",
         "set twice"},
        {"{\"host\":\"a\",\"action\":{\"allow\":true,\"deny\":1}}", "unknown field"},
        {"{\"match\":{\"host\":\"a\"},\"path\":\"/x\"}", "unknown field"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        hf_auto_free char *text = hf_xasprintf("{\"rules\":[%s]}", cases[i].rule);
        json_auto_t *request = json_loads(text, 0, NULL);
        assert_non_null(request);
        refused(request, cases[i].part);
    }
    json_auto_t *mixed = json_loads("{\"rules\":[{\"host\":\"a\",\"scheme\":\"http\",\"port\":8080},"
                                    "{\"host\":\"a\",\"scheme\":\"https\",\"port\":8080}]}",
                                    0, NULL);
    refused(mixed, "must agree on \"scheme\"");
}

static void test_rule_forms(void **state)
{
    /* Flat, and Cube's with match and action. */
    json_auto_t *flat =
        resolve_ok("{\"rules\":[{\"name\":\"r\",\"host\":\"A.example\",\"method\":\"get\","
                   "\"path\":\"/v1/*\",\"action\":\"allow\",\"audit\":\"full\",\"inject\":"
                   "[{\"header\":\"X-Key\",\"secret\":\"K\",\"format\":\"Bearer ${SECRET}\"}]}]}",
                   0);
    json_auto_t *cube =
        resolve_ok("{\"rules\":[{\"name\":\"r\",\"match\":{\"sni\":\"a.example\",\"method\":[\"GET\"],"
                   "\"path\":\"/v1/*\"},\"action\":{\"allow\":true,\"audit\":\"full\",\"inject\":"
                   "[{\"header\":\"x-key\",\"secret\":\"K\",\"format\":\"Bearer ${SECRET}\"}]}}]}",
                   0);
    assert_true(json_equal(flat, cube));
    same(flat, "rules",
         "[{\"name\":\"r\",\"host\":\"a.example\",\"scheme\":\"https\",\"ports\":[],\"methods\":[\"GET\"],"
         "\"path\":\"/v1/*\",\"action\":\"allow\",\"audit\":\"full\",\"inject\":[{\"header\":\"x-key\","
         "\"secret\":\"K\",\"format\":\"Bearer ${SECRET}\"}],\"opens\":true}]");
    /* What is shown can be sent again. */
    json_auto_t *shown = hf_policy_present(flat), *again = NULL;
    assert_int_equal(hf_policy_resolve(shown, -1, &again, NULL), 0);
    assert_true(json_equal(flat, again));
}

static void test_names_of_secrets(void **state)
{
    json_auto_t *doc =
        resolve_ok("{\"rules\":[{\"host\":\"a\",\"inject\":[{\"header\":\"x\",\"secret\":\"MY_Key\","
                   "\"format\":\"Bearer ${SECRET} ${e2b.secrets.OTHER} Z\"}]}]}",
                   -1);
    hf_auto_free char *text = json_dumps(doc, 0);
    assert_non_null(strstr(text, "MY_Key")); /* shown as it was written */
    struct hf_policy *p;
    assert_int_equal(hf_policy_parse(doc, &p, NULL), 0);
    assert_string_equal(p->rules[0].inject[0].secret, "my_key");
    assert_string_equal(p->rules[0].inject[0].format, "Bearer ${SECRET} ${e2b.secrets.other} Z");
    hf_policy_unref(p);
}

static void test_transforms(void **state)
{
    static const char e2b[] = "{\"*.example\":[{\"transform\":{\"headers\":{\"x\":\"1\"}}}],"
                              "\"*.b.example\":[{\"transform\":{\"headers\":{\"x\":\"2\"}}}],"
                              "\"a.b.example\":[{\"transform\":{\"headers\":{\"x\":\"${e2b.secrets.K}\"}}}]}";
    hf_auto_free char *text = hf_xasprintf("{\"rules\":%s}", e2b);
    json_auto_t *doc = resolve_ok(text, -1);
    const json_t *rules = json_object_get(doc, "rules");
    static const char *const hosts[] = {"a.b.example", "*.b.example", "*.example"}; /* exact, then longest */
    for (size_t i = 0; i < HF_ARRAY_LEN(hosts); i++) {
        const json_t *r = json_array_get(rules, i);
        assert_string_equal(json_string_value(json_object_get(r, "host")), hosts[i]);
        assert_string_equal(json_string_value(json_object_get(r, "scheme")), "https");
        assert_true(json_is_false(json_object_get(r, "opens")));
    }
    json_auto_t *shown = hf_policy_present(doc), *want = json_loads(e2b, 0, NULL);
    assert_true(json_equal(json_object_get(shown, "rules"), want));
    static const char *const bad[] = {
        "{\"a\":[{}]}",
        "{\"a\":{}}",
        "{\"a\":[{\"transform\":{}}]}",
        "{\"a\":[{\"transform\":{\"headers\":{\"x\":1}}}]}",
        "{\"a b\":[{\"transform\":{\"headers\":{}}}]}",
        "{\"a\":[{\"transform\":{\"headers\":{}}},{\"transform\":{\"headers\":{}}}]}"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        hf_auto_free char *t = hf_xasprintf("{\"rules\":%s}", bad[i]);
        json_auto_t *request = json_loads(t, 0, NULL);
        refused(request, "transform");
    }
}

/* ---- groups ---- */

static void test_merge(void **state)
{
    json_auto_t *doc = resolve_ok("{\"policies\":[\"one\",\"two\"],\"allowOut\":[\"1.1.1.1\",\"a.example\"],"
                                  "\"rules\":[{\"host\":\"own.example\",\"name\":\"own\"}]}",
                                  -1);
    json_auto_t *one = NULL, *two = NULL;
    json_auto_t *r1 = json_loads(
        "{\"allow_out\":[\"b.example\",\"1.1.1.1\"],\"rules\":[{\"host\":\"r.example\"}]}", 0, NULL);
    json_auto_t *r2 = json_loads("{\"allowOut\":[\"b.example\"],\"deny_out\":[\"9.9.9.9\"]}", 0, NULL);
    assert_int_equal(hf_policy_resolve_group(r1, &one, NULL), 0);
    assert_int_equal(hf_policy_resolve_group(r2, &two, NULL), 0);
    hf_auto_free char *before = json_dumps(doc, 0);
    const json_t *groups[] = {one, two};
    json_auto_t *merged = hf_policy_merge(doc, groups, 2);
    same(merged, "allow_out", "[\"1.1.1.1\",\"a.example\",\"b.example\"]");
    same(merged, "deny_out", "[\"9.9.9.9\"]");
    same(merged, "policies", "[\"one\",\"two\"]");
    const json_t *rules = json_object_get(merged, "rules");
    assert_int_equal(json_array_size(rules), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(rules, 0), "name")), "own");
    assert_string_equal(json_string_value(json_object_get(json_array_get(rules, 1), "name")), "one/rule 1");
    hf_auto_free char *after = json_dumps(doc, 0);
    assert_string_equal(before, after); /* the sandbox's own document is untouched */
    struct hf_policy *p;
    assert_int_equal(hf_policy_parse(merged, &p, NULL), 0);
    assert_string_equal(p->label, "one,two");
    hf_policy_unref(p);
}

static void test_group_members(void **state)
{
    static const char *const bad[] = {
        "{\"allowPublicTraffic\":true}",    "{\"egressProxy\":null}",        "{\"policies\":[]}",
        "{\"allow_internet_access\":true}", "{\"deny_out\":[\"x\"]}",        "[]",
        "{\"templates\":\"base\"}",         "{\"templates\":[\"base:tag\"]}"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        json_auto_t *request = json_loads(bad[i], 0, NULL);
        json_t *doc = NULL;
        struct hf_err err = {0};
        assert_int_equal(hf_policy_resolve_group(request, &doc, &err), -EINVAL);
        assert_int_equal(err.status, 400);
    }
    /* A group may name domains: who is bound has no internet of its own. */
    json_auto_t *request = json_loads("{\"allow_out\":[\"a.example\"]}", 0, NULL), *doc = NULL;
    assert_int_equal(hf_policy_resolve_group(request, &doc, NULL), 0);
}

static void test_group_templates(void **state)
{
    for (unsigned n = HF_POLICY_TEMPLATES_MAX; n <= HF_POLICY_TEMPLATES_MAX + 1; n++) {
        json_auto_t *list = json_array(), *doc = NULL;
        for (unsigned i = 0; i < n; i++)
            (void)json_array_append_new(list, json_sprintf("t%u", i));
        json_auto_t *request = json_pack("{s:O}", "templates", list);
        assert_int_equal(hf_policy_resolve_group(request, &doc, NULL),
                         n > HF_POLICY_TEMPLATES_MAX ? -EINVAL : 0);
    }
}

static void test_shown(void **state)
{
    json_auto_t *doc =
        resolve_ok("{\"allowOut\":[\"8.8.8.8\"],\"egressProxy\":{\"address\":\"p:1\",\"username\":\"u\","
                   "\"password\":\"hush\"},\"maskRequestHost\":\"h\"}",
                   -1);
    json_auto_t *shown = hf_policy_present(doc);
    hf_auto_free char *text = json_dumps(shown, 0);
    assert_null(strstr(text, "hush"));
    assert_null(strstr(text, "password"));
    same(shown, "allowOut", "[\"8.8.8.8\"]");
    same(shown, "maskRequestHost", "\"h\"");
    assert_non_null(json_object_get(doc, "egress_proxy"));
    assert_string_equal(json_string_value(json_object_get(json_object_get(doc, "egress_proxy"), "password")),
                        "hush");
}

static void test_parse_wants_canonical(void **state)
{
    static const char *const bad[] = {
        "{}",
        "{\"allow_internet_access\":true}",
        "{\"allow_internet_access\":true,\"allow_public_traffic\":true}",
        "{\"allow_internet_access\":true,\"allow_public_traffic\":true,\"allow_out\":[\"A.example\"],"
        "\"deny_out\":[],\"rules\":[]}",
        "{\"allow_internet_access\":true,\"allow_public_traffic\":true,\"allow_out\":[],\"deny_out\":[\"x\"],"
        "\"rules\":[]}",
        "{\"allow_internet_access\":true,\"allow_public_traffic\":true,\"allow_out\":[],\"deny_out\":[],"
        "\"rules\":[{\"host\":\"a\"}]}",
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        json_auto_t *doc = json_loads(bad[i], 0, NULL);
        struct hf_policy *p = NULL;
        struct hf_err err = {0};
        assert_int_equal(hf_policy_parse(doc, &p, &err), -EINVAL);
        assert_null(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member_has_a_value),
        cmocka_unit_test(test_internet),
        cmocka_unit_test(test_lists_are_canonical),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_domains_with_the_internet_off),
        cmocka_unit_test(test_masks_and_proxies),
        cmocka_unit_test(test_list_limits),
        cmocka_unit_test(test_rule_limits),
        cmocka_unit_test(test_port_limit),
        cmocka_unit_test(test_rule_refusals),
        cmocka_unit_test(test_rule_forms),
        cmocka_unit_test(test_names_of_secrets),
        cmocka_unit_test(test_transforms),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_group_members),
        cmocka_unit_test(test_group_templates),
        cmocka_unit_test(test_shown),
        cmocka_unit_test(test_parse_wants_canonical),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
