/* What the L7 proxy makes of connections, by policy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "egress/l7_int.h"

static struct hf_policy *policy(const char *text, int internet)
{
    struct hf_err err = {0};
    json_t *request = json_loads(text, 0, NULL), *doc = NULL;
    struct hf_policy *p = NULL;
    assert_non_null(request);
    if (hf_policy_resolve(request, internet, &doc, &err) < 0 || hf_policy_parse(doc, &p, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    json_decref(request);
    json_decref(doc);
    return p;
}

static struct hf_addr addr(const char *s)
{
    struct hf_addr a;
    assert_int_equal(hf_addr_parse(hf_str_c(s), &a), 0);
    return a;
}

static struct hf_l7_ruling host(const struct hf_policy *p, const char *scheme, const char *name,
                                const char *dst, uint16_t port)
{
    struct hf_l7_ruling r;
    struct hf_addr a = addr(dst), literal;
    hf_l7_judge_host(p, scheme, name, hf_addr_parse(hf_str_c(name), &literal) == 0, &a, port, &r);
    return r;
}

#define NAMES "{\"allowOut\":[\"api.test\",\"192.0.2.9\",\"10.1.2.3\"],\"denyOut\":[\"0.0.0.0/0\"]}"
#define RULE                                                                                              \
    "{\"denyOut\":[\"0.0.0.0/0\"],\"rules\":[{\"host\":\"api.test\",\"action\":\"allow\",\"path\":\"/v1/" \
    "*\"},"                                                                                               \
    "{\"host\":\"no.test\",\"action\":\"deny\"}]}"

static void names_mode(void **state)
{
    struct hf_policy *p = policy(NAMES, -1);
    struct hf_l7_ruling r = host(p, "https", "api.test", "192.0.2.1", 443);
    assert_int_equal(r.way, HF_L7_PASS);
    assert_true(r.bind); /* only at an address that was answered for it */
    r = host(p, "https", "api.test", "192.0.2.9", 443);
    assert_true(r.way == HF_L7_PASS && !r.bind);
    r = host(p, "https", "other.test", "192.0.2.1", 443);
    assert_int_equal(r.way, HF_L7_REFUSE);
    assert_string_equal(r.reason, "name");
    assert_int_equal(host(p, "https", "other.test", "192.0.2.9", 443).way, HF_L7_PASS);
    assert_string_equal(host(p, "http", "api.test", "169.254.169.254", 80).reason, "never");
    assert_string_equal(host(p, "http", "api.test", "127.0.0.1", 80).reason, "never");
    assert_int_equal(host(p, "http", "192.0.2.1", "192.0.2.1", 80).way, HF_L7_REFUSE);
    hf_policy_unref(p);
}

static void rules(void **state)
{
    struct hf_policy *p = policy(RULE, -1);
    struct hf_l7_ruling r = host(p, "https", "api.test", "192.0.2.1", 443);
    assert_int_equal(r.way, HF_L7_INTERCEPT);
    assert_true(r.bind);
    assert_int_equal(host(p, "https", "no.test", "192.0.2.1", 443).way, HF_L7_REFUSE);
    /* A rule opens its host at its own ports, not everywhere. */
    assert_int_equal(host(p, "https", "api.test", "192.0.2.1", 8443).way, HF_L7_REFUSE);
    assert_false(hf_l7_opens_everywhere(p, "api.test"));
    hf_policy_unref(p);
    p = policy(NAMES, -1);
    assert_true(hf_l7_opens_everywhere(p, "api.test"));
    assert_false(hf_l7_opens_everywhere(p, "x.api.test"));
    hf_policy_unref(p);
}

static struct hf_l7_ruling hello(const struct hf_policy *p, const struct hf_hello *h, const char *dst,
                                 char name[HF_L7_HOST_MAX])
{
    struct hf_l7_ruling r;
    struct hf_addr a = addr(dst);
    hf_l7_judge_hello(p, h, &a, 443, name, &r);
    return r;
}

static void hellos(void **state)
{
    char name[HF_L7_HOST_MAX];
    struct hf_hello plain = {.sni = "api.test"}, ech = {.sni = "api.test", .ech = true}, none = {0},
                    bad = {.sni = "api.test", .sni_bad = true}, literal = {.sni = "192.0.2.1"};
    struct hf_policy *p = policy(NAMES, -1);
    assert_int_equal(hello(p, &plain, "192.0.2.1", name).way, HF_L7_PASS);
    assert_string_equal(name, "api.test");
    assert_string_equal(hello(p, &ech, "192.0.2.1", name).reason, "ech");
    assert_string_equal(hello(p, &none, "192.0.2.1", name).reason, "no-sni");
    assert_string_equal(hello(p, &bad, "192.0.2.1", name).reason, "bad-sni");
    assert_string_equal(hello(p, &literal, "192.0.2.1", name).reason, "bad-sni");
    assert_string_equal(name, "");
    assert_int_equal(hello(p, &none, "192.0.2.9", name).way, HF_L7_PASS); /* the address itself is allowed */
    assert_int_equal(hello(p, &ech, "192.0.2.9", name).way, HF_L7_PASS);
    hf_policy_unref(p);
    p = policy("{\"rules\":[{\"host\":\"api.test\",\"action\":\"deny\"}]}", 1);
    assert_int_equal(hello(p, &ech, "192.0.2.1", name).way, HF_L7_REFUSE);
    assert_int_equal(hello(p, &none, "192.0.2.1", name).way, HF_L7_REFUSE);
    hf_policy_unref(p);
    p = policy("{}", 1);
    assert_int_equal(hello(p, &ech, "192.0.2.1", name).way, HF_L7_PASS);
    assert_int_equal(hello(p, &none, "10.0.0.1", name).way, HF_L7_REFUSE);
    hf_policy_unref(p);
    p = policy("{\"denyOut\":[\"0.0.0.0/0\"],\"rules\":[{\"host\":\"192.0.2.1\",\"action\":\"allow\"}]}", -1);
    assert_int_equal(hello(p, &none, "192.0.2.1", name).way, HF_L7_INTERCEPT);
    assert_string_equal(name, "192.0.2.1");
    assert_int_equal(hello(p, &none, "192.0.2.2", name).way, HF_L7_REFUSE);
    hf_policy_unref(p);
}

static void dial_flags(void **state)
{
    struct hf_policy *p = policy("{\"allowOut\":[\"10.1.2.3\",\"10.9.0.0/16\",\"0.0.0.0/0\"]}", 1);
    struct hf_addr one = addr("10.1.2.3"), range = addr("10.9.1.1"), other = addr("10.8.0.1"),
                   pub = addr("192.0.2.1");
    assert_int_equal(hf_l7_dial_flags(p, &one, false), HF_DIAL_PRIVATE | HF_DIAL_LOCAL);
    assert_int_equal(hf_l7_dial_flags(p, &range, false), HF_DIAL_PRIVATE);
    assert_int_equal(hf_l7_dial_flags(p, &other, false), 0);
    assert_int_equal(hf_l7_dial_flags(p, &other, true), HF_DIAL_PRIVATE); /* the resolver may answer it */
    assert_false(hf_l7_dial_flags(p, &pub, false) & HF_DIAL_LOCAL);
    hf_policy_unref(p);
}

static void inspected_ports(void **state)
{
    struct hf_policy *p = policy(
        "{\"rules\":[{\"host\":\"api.test\",\"action\":\"allow\",\"scheme\":\"https\",\"ports\":[8443]}]}",
        1);
    assert_true(hf_l7_port_inspected(p, 80));
    assert_true(hf_l7_port_inspected(p, 443));
    assert_true(hf_l7_port_inspected(p, 8443));
    assert_false(hf_l7_port_inspected(p, 22));
    hf_policy_unref(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_mode), cmocka_unit_test(rules),           cmocka_unit_test(hellos),
        cmocka_unit_test(dial_flags), cmocka_unit_test(inspected_ports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
