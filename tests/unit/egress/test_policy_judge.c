/* Policy: what is decided, in which order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "egress/policy_int.h"

static struct hf_policy *policy(const char *request, int internet)
{
    struct hf_err err = {0};
    json_auto_t *v = json_loads(request, 0, NULL), *doc = NULL;
    struct hf_policy *p = NULL;
    assert_non_null(v);
    if (hf_policy_resolve(v, internet, &doc, &err) < 0 || hf_policy_parse(doc, &p, &err) < 0)
        fail_msg("%s: %s", request, err.msg);
    return p;
}

static struct hf_addr addr(const char *text)
{
    struct hf_addr a;
    assert_int_equal(hf_addr_parse(hf_str_c(text), &a), 0);
    return a;
}

static void test_order_of_addresses(void **state)
{
    static const struct {
        const char *request, *addr, *reason;
        bool allow;
    } cases[] = {
        {"{}", "198.51.100.1", "default", true},
        {"{}", "2001:db8::1", "default", true},
        {"{\"allowInternetAccess\":false}", "198.51.100.1", "default", false},
        {"{\"denyOut\":[\"0.0.0.0/0\"]}", "198.51.100.1", "default", false},
        {"{\"denyOut\":[\"0.0.0.0/0\"]}", "2001:db8::1", "default", false}, /* all means both families */
        {"{\"denyOut\":[\"::/0\"]}", "2001:db8::1", "deny", false},
        {"{\"denyOut\":[\"::/0\"]}", "198.51.100.1", "default", true},
        {"{\"denyOut\":[\"198.51.100.0/24\"]}", "198.51.100.1", "deny", false},
        {"{\"denyOut\":[\"198.51.100.0/24\"]}", "203.0.113.1", "default", true},
        {"{\"denyOut\":[\"198.51.100.0/24\"],\"allowOut\":[\"198.51.100.1\"]}", "198.51.100.1", "allow",
         true},
        {"{\"denyOut\":[\"198.51.100.0/24\"],\"allowOut\":[\"198.51.100.1\"]}", "198.51.100.2", "deny",
         false},
        {"{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"203.0.113.0/24\"]}", "203.0.113.9", "allow", true},
        /* private: closed by default, in the open mode too, and not opened by a wide prefix */
        {"{}", "10.0.0.1", "private", false},
        {"{}", "172.31.255.255", "private", false},
        {"{}", "192.168.1.1", "private", false},
        {"{}", "100.64.0.1", "private", false},
        {"{}", "fd00::1", "private", false},
        {"{\"allowOut\":[\"0.0.0.0/0\"]}", "10.0.0.1", "private", false},
        {"{\"allowOut\":[\"8.0.0.0/5\"]}", "10.0.0.1", "private", false},
        {"{\"allowOut\":[\"10.0.0.5\"]}", "10.0.0.5", "allow", true},
        {"{\"allowOut\":[\"10.0.0.0/8\"]}", "10.9.9.9", "allow", true},
        {"{\"allowOut\":[\"10.0.0.5\"]}", "10.0.0.6", "private", false},
        {"{\"allowOut\":[\"10.0.0.5\"],\"denyOut\":[\"0.0.0.0/0\"]}", "10.0.0.5", "allow", true},
        {"{\"allowOut\":[\"fd00:1::/32\"]}", "fd00:1::7", "allow", true},
        /* never, whatever is allowed, in every spelling */
        {"{\"allowOut\":[\"0.0.0.0/0\",\"::/0\"]}", "169.254.169.254", "never", false},
        {"{\"allowOut\":[\"0.0.0.0/0\",\"::/0\"]}", "127.0.0.1", "never", false},
        {"{\"allowOut\":[\"0.0.0.0/0\",\"::/0\"]}", "::1", "never", false},
        {"{\"allowOut\":[\"0.0.0.0/0\",\"::/0\"]}", "fe80::1", "never", false},
        {"{\"allowOut\":[\"100.64.0.0/10\"]}", "100.100.100.200", "never", false},
        {"{\"allowOut\":[\"fd00::/16\"]}", "fd00:ec2::254", "never", false},
        {"{\"allowOut\":[\"0.0.0.0/0\",\"::/0\"]}", "::ffff:169.254.169.254", "never", false},
        {"{\"allowOut\":[\"0.0.0.0/0\",\"::/0\"]}", "64:ff9b::a9fe:a9fe", "never", false},
        {"{\"allowOut\":[\"0.0.0.0/0\",\"::/0\"]}", "224.0.0.1", "never", false},
        {"{\"allowOut\":[\"0.0.0.0/0\",\"::/0\"]}", "0.0.0.0", "never", false},
        {"{}", "::ffff:10.0.0.1", "private", false},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        struct hf_policy *p = policy(cases[i].request, -1);
        struct hf_addr a = addr(cases[i].addr);
        struct hf_verdict v;
        hf_policy_judge_addr(p, &a, &v);
        if (v.decision != (cases[i].allow ? HF_ALLOW : HF_DENY) || strcmp(v.reason, cases[i].reason) != 0 ||
            !*v.by)
            fail_msg("%s, %s: %d %s by %s", cases[i].request, cases[i].addr, v.decision, v.reason, v.by);
        hf_policy_unref(p);
    }
}

static void test_names(void **state)
{
    struct hf_policy *p =
        policy("{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"allowed.com\",\"*.wild.org\","
               "\"xn--bcher-kva.example\"],\"rules\":[{\"name\":\"r\",\"host\":\"rule.example\"},"
               "{\"host\":\"no.example\",\"action\":\"deny\"},"
               "{\"host\":\"closed.example\",\"opens\":false}]}",
               -1);
    static const struct {
        const char *name;
        bool opens, resolves;
    } cases[] = {
        {"allowed.com", true, true},
        {"www.allowed.com", false, false},
        {"allowed.com.evil.com", false, false},
        {"evilallowed.com", false, false},
        {"a.wild.org", true, true},
        {"b.a.wild.org", true, true},
        {"wild.org", false, false},
        {"xwild.org", false, false},
        {"xn--bcher-kva.example", true, true},
        {"rule.example", true, true},
        {"no.example", false,
         false}, /* a rule that denies opens nothing, and gives no reason to ask for it */
        {"closed.example", false, true}, /* a transform opens nothing, but its name has to be known */
        {"com", false, false},
        {"other.example", false, false},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        const char *why = NULL;
        if (hf_policy_opens_name(p, cases[i].name, &why) != cases[i].opens ||
            hf_policy_may_resolve(p, cases[i].name) != cases[i].resolves || (why != NULL) != cases[i].opens)
            fail_msg("%s", cases[i].name);
    }
    assert_true(hf_policy_names_mode(p));
    hf_policy_unref(p);
    p = policy("{}", -1);
    assert_true(hf_policy_may_resolve(p, "any.example"));
    assert_false(hf_policy_opens_name(p, "any.example", NULL));
    assert_false(hf_policy_names_mode(p));
    hf_policy_unref(p);
    p = policy("{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"198.51.100.1\"]}", -1);
    assert_false(hf_policy_may_resolve(p, "any.example"));
    assert_false(hf_policy_names_mode(p));
    hf_policy_unref(p);
}

struct ask {
    const char *scheme, *host;
    uint16_t port;
    const char *method, *path, *addr;
    bool learned;
    const char *reason;
    bool allow;
};

static void judge(const struct hf_policy *p, const struct ask *q)
{
    struct hf_verdict v;
    struct hf_addr a;
    if (q->addr)
        a = addr(q->addr);
    struct hf_judge_req r = {.scheme = q->scheme,
                             .host = q->host,
                             .port = q->port,
                             .method = hf_str_c(q->method),
                             .path = hf_str_c(q->path),
                             .learned = q->learned};
    hf_policy_judge(p, &r, q->addr ? &a : NULL, &v);
    if (v.decision != (q->allow ? HF_ALLOW : HF_DENY) || strcmp(v.reason, q->reason) != 0 || !*v.by)
        fail_msg("%s %s://%s:%u%s at %s: %d %s by %s", q->method ? q->method : "-", q->scheme, q->host,
                 q->port, q->path ? q->path : "", q->addr ? q->addr : "-", v.decision, v.reason, v.by);
}

static void test_requests_by_name(void **state)
{
    struct hf_policy *p =
        policy("{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"allowed.com\",\"10.0.0.5\"]}", -1);
    static const struct ask asks[] = {
        {"http", "allowed.com", 80, "GET", "/", NULL, false, "name", true},
        {"https", "allowed.com", 8443, "GET", "/", "198.51.100.1", true, "name", true},
        {"https", "allowed.com", 443, NULL, NULL, "198.51.100.1", true, "name", true},
        {"http", "evil.com", 80, "GET", "/", NULL, false, "default", false},
        {"http", "allowed.com", 80, "GET", "/", "169.254.169.254", true, "never", false},
        {"http", "allowed.com", 80, "GET", "/", "127.0.0.1", true, "never", false},
        {"http", "allowed.com", 80, "GET", "/", "10.0.0.6", false, "private", false}, /* not resolved by us */
        {"http", "allowed.com", 80, "GET", "/", "10.0.0.6", true, "name", true},      /* a private zone */
        {"http", "evil.com", 80, "GET", "/", "10.0.0.6", true, "private", false},
        {"http", "10.0.0.5", 80, "GET", "/", NULL, false, "allow", true},
        {"http", "169.254.169.254", 80, "GET", "/", NULL, false, "never", false},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(asks); i++)
        judge(p, &asks[i]);
    hf_policy_unref(p);
}

static void test_rules_in_order(void **state)
{
    struct hf_policy *p = policy(
        "{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"plain.example\",\"listed.example\"],\"rules\":["
        "{\"name\":\"no-admin\",\"host\":\"api.example\",\"path\":\"/admin/*\",\"action\":\"deny\"},"
        "{\"name\":\"v1\",\"host\":\"api.example\",\"methods\":[\"GET\",\"POST\"],\"path\":\"/v1/*\","
        "\"scheme\":\"https\"},"
        "{\"name\":\"alt\",\"host\":\"api.example\",\"scheme\":\"http\",\"ports\":[8080]},"
        "{\"name\":\"no-posts\",\"host\":\"plain.example\",\"methods\":[\"POST\"],\"action\":\"deny\"},"
        "{\"name\":\"wild\",\"host\":\"*.wild.example\"},"
        "{\"name\":\"closed\",\"host\":\"closed.example\",\"opens\":false},"
        "{\"name\":\"listed\",\"host\":\"listed.example\",\"opens\":false}]}",
        -1);
    static const struct ask asks[] = {
        {"https", "api.example", 443, "GET", "/v1/x", NULL, false, "rule", true},
        {"https", "api.example", 443, "POST", "/v1/", NULL, false, "rule", true},
        {"https", "api.example", 443, "GET", "/v1/x?path=/admin/", NULL, false, "rule", true},
        {"https", "api.example", 443, "DELETE", "/v1/x", NULL, false, "no-rule", false},
        {"https", "api.example", 443, "get", "/v1/x", NULL, false, "no-rule", false},
        {"https", "api.example", 443, "GET", "/v2", NULL, false, "no-rule", false},
        {"https", "api.example", 443, "GET", "/V1/x", NULL, false, "no-rule", false},
        {"https", "api.example", 443, "GET", "/admin/x", NULL, false, "rule", false},
        {"https", "api.example", 443, "GET", "/v1/../admin/x", NULL, false, "rule", false},
        {"https", "api.example", 443, "GET", "/v1/%2e%2e/admin/x", NULL, false, "rule", false},
        {"https", "api.example", 443, "GET", "/v1/..%2fadmin/x", NULL, false, "rule", false},
        {"https", "api.example", 443, "GET", "//admin/x", NULL, false, "rule", false},
        {"https", "api.example", 443, "GET", "/v1/..;/admin/x", NULL, false, "rule", false},
        {"https", "api.example", 443, "GET", "/v1/..%2fv2", NULL, false, "no-rule",
         false}, /* allow wants both */
        {"https", "api.example", 443, "GET", "/v1/%00", NULL, false, "no-rule", false},
        {"https", "api.example", 443, "GET", "*", NULL, false, "no-rule", false},
        {"https", "api.example", 443, NULL, NULL, NULL, false, "rule", true}, /* some request could pass */
        {"http", "api.example", 80, "GET", "/v1/x", NULL, false, "default", false},
        {"http", "api.example", 8080, "GET", "/v1/x", NULL, false, "rule", true},
        {"https", "api.example", 8080, "GET", "/v1/x", NULL, false, "default", false},
        {"https", "api.example", 443, "GET", "/v1/x", "10.1.1.1", false, "private", false},
        {"https", "api.example", 443, "GET", "/v1/x", "169.254.169.254", true, "never", false},
        /* only rules that deny: what they don't match goes on as without rules */
        {"http", "plain.example", 80, "GET", "/", NULL, false, "name", true},
        {"http", "plain.example", 80, "POST", "/", NULL, false, "rule", false},
        {"http", "plain.example", 80, "post", "/", NULL, false, "rule", false},
        {"http", "plain.example", 80, NULL, NULL, NULL, false, "name", true},
        {"https", "a.wild.example", 443, "GET", "/", NULL, false, "rule", true},
        {"https", "wild.example", 443, "GET", "/", NULL, false, "default", false},
        /* a transform opens nothing by itself */
        {"https", "closed.example", 443, "GET", "/", NULL, false, "default", false},
        {"https", "listed.example", 443, "GET", "/", NULL, false, "name", true},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(asks); i++)
        judge(p, &asks[i]);
    struct hf_verdict v;
    struct hf_judge_req q = {.scheme = "https",
                             .host = "listed.example",
                             .port = 443,
                             .method = HF_STR("GET"),
                             .path = HF_STR("/")};
    hf_policy_judge(p, &q, NULL, &v);
    assert_non_null(v.rule); /* its headers are added all the same */
    assert_string_equal(v.rule->name, "listed");
    hf_policy_unref(p);
}

static void test_open_with_rules(void **state)
{
    struct hf_policy *p = policy("{\"rules\":[{\"host\":\"bad.example\",\"action\":\"deny\"},"
                                 "{\"host\":\"192.0.2.7\",\"scheme\":\"http\",\"path\":\"/ok\"}]}",
                                 -1);
    static const struct ask asks[] = {
        {"https", "good.example", 443, "GET", "/", "198.51.100.1", true, "default", true},
        {"https", "bad.example", 443, "GET", "/", "198.51.100.1", true, "rule", false},
        {"https", "bad.example", 443, NULL, NULL, "198.51.100.1", true, "rule", false},
        {"http", "192.0.2.7", 80, "GET", "/ok", NULL, false, "rule", true},
        {"http", "192.0.2.7", 80, "GET", "/no", NULL, false, "no-rule", false},
        {"https", "good.example", 443, "GET", "/", "10.0.0.1", true, "private", false},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(asks); i++)
        judge(p, &asks[i]);
    assert_true(hf_policy_intercepts(p, "https", "bad.example", 443));
    assert_false(hf_policy_intercepts(p, "https", "bad.example", 8443));
    assert_false(hf_policy_intercepts(p, "https", "good.example", 443));
    hf_policy_unref(p);
}

static void expect_ports(const char *request, const uint16_t *want, size_t n)
{
    struct hf_policy *p = policy(request, -1);
    uint16_t got[16];
    assert_int_equal(hf_policy_l7_ports(p, got, HF_ARRAY_LEN(got)), n);
    if (n)
        assert_memory_equal(got, want, n * sizeof(*want));
    hf_policy_unref(p);
}

static void test_l7_ports(void **state)
{
    static const uint16_t web[] = {80, 443}, tls[] = {443}, custom[] = {8080};
    expect_ports("{}", NULL, 0);
    expect_ports("{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"1.1.1.1\"]}", NULL, 0);
    expect_ports("{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"a.example\"]}", web, 2);
    expect_ports("{\"rules\":[{\"host\":\"a.example\"}]}", web, 2);
    expect_ports("{\"rules\":{\"a.example\":[{\"transform\":{\"headers\":{\"x\":\"y\"}}}]}}", tls, 1);
    expect_ports("{\"rules\":[{\"host\":\"a\",\"scheme\":\"http\",\"port\":8080},"
                 "{\"host\":\"b\",\"scheme\":\"http\",\"port\":8080}]}",
                 custom, 1);
    struct hf_policy *p = policy("{\"rules\":[{\"host\":\"a.example\"}]}", -1);
    uint16_t one[1];
    assert_int_equal(hf_policy_l7_ports(p, one, 1), 1); /* never beyond what there is room for */
    hf_policy_unref(p);
}

static void test_long_lists(void **state)
{
    json_auto_t *allow = json_array();
    for (unsigned i = 0; i < HF_POLICY_NAMES_MAX; i++)
        (void)json_array_append_new(allow, json_sprintf("%sn%u.example", i % 2 ? "*." : "", i));
    json_auto_t *request = json_pack("{s:O, s:[s]}", "allowOut", allow, "denyOut", "0.0.0.0/0"), *doc = NULL;
    struct hf_policy *p;
    assert_int_equal(hf_policy_resolve(request, -1, &doc, NULL), 0);
    assert_int_equal(hf_policy_parse(doc, &p, NULL), 0);
    for (unsigned i = 0; i < HF_POLICY_NAMES_MAX; i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "%sn%u.example", i % 2 ? "x." : "", i);
        assert_true(hf_policy_opens_name(p, name, NULL));
        (void)snprintf(name, sizeof(name), "%sn%u.example", i % 2 ? "" : "x.", i);
        assert_false(hf_policy_opens_name(p, name, NULL));
    }
    struct hf_policy *q = hf_policy_ref(p);
    hf_policy_unref(p);
    assert_true(hf_policy_opens_name(q, "n0.example", NULL));
    hf_policy_unref(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_of_addresses), cmocka_unit_test(test_names),
        cmocka_unit_test(test_requests_by_name),   cmocka_unit_test(test_rules_in_order),
        cmocka_unit_test(test_open_with_rules),    cmocka_unit_test(test_l7_ports),
        cmocka_unit_test(test_long_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
