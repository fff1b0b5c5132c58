/* The resolver's parts without I/O: messages, settings, cache, what a policy says, and each of their limits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "egress/dns_int.h"

static uint8_t msg[HF_DNS_MSG_MAX];

static size_t query(const char *name, uint16_t type)
{
    int n = hf_dns_build_query(7, name, type, true, msg, sizeof(msg));
    assert_true(n > 0);
    return (size_t)n;
}

static void test_query_round(void **state)
{
    struct hf_dns_query q;
    size_t n = query("www.example.org", HF_DNS_AAAA);
    assert_int_equal(hf_dns_parse_query(msg, n, &q), 0);
    assert_string_equal(q.name, "www.example.org");
    assert_int_equal(q.type, HF_DNS_AAAA);
    assert_true(q.edns);
    assert_int_equal(q.udp_size, HF_DNS_EDNS_SIZE);
    for (size_t cut = 0; cut < n - 11; cut++) /* without its OPT record it is whole again */
        assert_true(hf_dns_parse_query(msg, cut, &q) < 0);
    msg[2] |= 0x80; /* an answer is no question */
    assert_int_equal(hf_dns_parse_query(msg, n, &q), -EPROTO);
}

static void test_query_bad(void **state)
{
    static const uint8_t two[] = {0, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1, 'a', 0, 0, 1, 0, 1};
    static const uint8_t pointer[] = {0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1};
    static const uint8_t update[] = {0, 1, 0x29, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 'a', 0, 0, 1, 0, 1};
    struct hf_dns_query q;
    assert_int_equal(hf_dns_parse_query(two, sizeof(two), &q), -EBADMSG);
    assert_int_equal(hf_dns_parse_query(pointer, sizeof(pointer), &q), -EBADMSG);
    assert_int_equal(hf_dns_parse_query(update, sizeof(update), &q), -EOPNOTSUPP);
    char name[300];
    memset(name, 'a', sizeof(name));
    name[64] = '\0'; /* a label has at most 63 bytes */
    assert_true(hf_dns_build_query(1, name, HF_DNS_A, false, msg, sizeof(msg)) < 0);
}

static void put16(uint8_t *p, unsigned v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

/* The reply to query("a.example", A) with n A records. */
static size_t reply(unsigned n, uint32_t ttl)
{
    size_t at = query("a.example", HF_DNS_A) - 11;
    msg[2] = 0x81;
    msg[3] = 0x80;
    put16(msg + 6, n);
    put16(msg + 10, 0);
    for (unsigned i = 0; i < n; i++) {
        uint8_t rr[16] = {0xc0,         12, 0, 1,   0, 1, 0,         0, (uint8_t)(ttl >> 8),
                          (uint8_t)ttl, 0,  4, 192, 0, 2, (uint8_t)i};
        memcpy(msg + at, rr, sizeof(rr));
        at += sizeof(rr);
    }
    return at;
}

static void test_reply(void **state)
{
    struct hf_dns_answer *a;
    size_t n = reply(2, 300);
    assert_int_equal(hf_dns_parse_reply(msg, n, 7, "a.example", HF_DNS_A, &a), 1);
    assert_int_equal(a->n, 2);
    assert_int_equal(a->ttl_s, 300);
    struct hf_addr addr;
    assert_true(hf_dns_rr_addr(a, &a->rr[1], &addr));
    assert_int_equal(addr.b[3], 1);
    hf_dns_answer_unref(a);
    /* Whoever guesses must guess all of it. */
    assert_int_equal(hf_dns_parse_reply(msg, n, 8, "a.example", HF_DNS_A, &a), -EPROTO);
    assert_int_equal(hf_dns_parse_reply(msg, n, 7, "b.example", HF_DNS_A, &a), -EPROTO);
    assert_int_equal(hf_dns_parse_reply(msg, n, 7, "a.example", HF_DNS_AAAA, &a), -EPROTO);
    assert_true(hf_dns_parse_reply(msg, n - 1, 7, "a.example", HF_DNS_A, &a) < 0);
    msg[2] |= 2; /* truncated */
    assert_int_equal(hf_dns_parse_reply(msg, n, 7, "a.example", HF_DNS_A, &a), 0);
    n = reply(HF_DNS_RECORDS_MAX + 6, 60);
    assert_int_equal(hf_dns_parse_reply(msg, n, 7, "a.example", HF_DNS_A, &a), 1);
    assert_int_equal(a->n, HF_DNS_RECORDS_MAX);
    hf_dns_answer_unref(a);
}

static void test_build_limits(void **state)
{
    struct hf_dns_answer *a;
    struct hf_dns_query q;
    static uint8_t out[HF_DNS_MSG_MAX];
    size_t n = reply(60, 60);
    assert_int_equal(hf_dns_parse_reply(msg, n, 7, "a.example", HF_DNS_A, &a), 1);
    n = query("a.example", HF_DNS_A);
    assert_int_equal(hf_dns_parse_query(msg, n, &q), 0);
    struct hf_dns_response r = {.answer = a, .ttl_s = 9, .ede = HF_DNS_EDE_NONE};
    n = hf_dns_build(&q, &r, out, HF_DNS_PLAIN_SIZE);
    assert_true(n <= HF_DNS_PLAIN_SIZE);
    assert_true(out[2] & 2); /* TC, and no half of an answer */
    assert_int_equal(out[6] << 8 | out[7], 0);
    n = hf_dns_build(&q, &r, out, sizeof(out));
    assert_int_equal(out[6] << 8 | out[7], 60);
    bool skip[HF_DNS_KEPT_MAX] = {true, true};
    r.skip = skip;
    n = hf_dns_build(&q, &r, out, sizeof(out));
    assert_int_equal(out[6] << 8 | out[7], 58);
    hf_dns_answer_unref(a);
}

static void test_config(void **state)
{
    struct hf_dns_config c;
    struct hf_err err = {0};
    json_auto_t *v =
        json_loads("{\"upstreams\":[\"192.0.2.1\",\"[2001:db8::1]:5353\"],\"zones\":[{\"zone\":\"corp.test\","
                   "\"upstreams\":[\"10.0.0.53:54\"],\"private\":true},{\"zone\":\"a.corp.test\","
                   "\"upstreams\":[\"10.0.0.54\"]}]}",
                   0, NULL);
    assert_int_equal(hf_dns_config_parse(v, &c, &err), 0);
    assert_int_equal(c.root.n, 2);
    assert_int_equal(c.root.servers[1].port, 5353);
    assert_string_equal(hf_dns_zone_of(&c, "x.corp.test")->name, "corp.test");
    assert_string_equal(hf_dns_zone_of(&c, "x.a.corp.test")->name, "a.corp.test");
    assert_string_equal(hf_dns_zone_of(&c, "evilcorp.test")->name, "");
    hf_dns_config_done(&c);
    json_auto_t *bad = json_loads("{\"upstreams\":[\"resolver.example\"]}", 0, NULL);
    assert_true(hf_dns_config_parse(bad, &c, &err) < 0);
    json_auto_t *many = json_object();
    json_t *list = json_array();
    for (unsigned i = 0; i <= HF_DNS_SERVERS_MAX; i++)
        (void)json_array_append_new(list, json_string("192.0.2.1"));
    (void)json_object_set_new(many, "upstreams", list);
    assert_true(hf_dns_config_parse(many, &c, &err) < 0);
    struct hf_dns_zone z = {0};
    hf_dns_resolv_parse(
        hf_str_c("# x\nsearch a.b\nnameserver 192.0.2.7\nnameserver nonsense\nnameserver\t2001:db8::7 # y\n"),
        &z);
    assert_int_equal(z.n, 2);
}

static void test_cache(void **state)
{
    struct hf_dns_cache c;
    struct hf_dns_answer *a;
    char name[32];
    size_t n = reply(1, 60);
    assert_int_equal(hf_dns_parse_reply(msg, n, 7, "a.example", HF_DNS_A, &a), 1);
    a->expires_ms = 1000;
    hf_dns_cache_init(&c);
    hf_dns_cache_put(&c, "a.example", HF_DNS_A, a);
    assert_ptr_equal(hf_dns_cache_get(&c, "a.example", HF_DNS_A, 999), a);
    assert_null(hf_dns_cache_get(&c, "a.example", HF_DNS_AAAA, 999));
    assert_null(hf_dns_cache_get(&c, "a.example", HF_DNS_A, 1000));
    for (unsigned i = 0; i < HF_DNS_CACHE_ENTRIES + 10; i++) {
        (void)snprintf(name, sizeof(name), "n%u.example", i);
        hf_dns_cache_put(&c, name, HF_DNS_A, a);
    }
    assert_true(c.n <= HF_DNS_CACHE_ENTRIES && c.bytes <= HF_DNS_CACHE_BYTES);
    assert_null(hf_dns_cache_get(&c, "n0.example", HF_DNS_A, 0)); /* the oldest went */
    assert_non_null(hf_dns_cache_get(&c, name, HF_DNS_A, 0));
    hf_dns_cache_clear(&c);
    hf_dns_answer_unref(a);
}

static void test_tokens(void **state)
{
    struct hf_dns_box x = {.tokens_m = HF_DNS_BURST * 1000u, .filled_ms = 1000};
    unsigned got = 0;
    while (hf_dns_take_token(&x, 1000))
        got++;
    assert_int_equal(got, HF_DNS_BURST);
    for (got = 0; hf_dns_take_token(&x, 1500);)
        got++;
    assert_int_equal(got, HF_DNS_QPS / 2);
    for (got = 0; hf_dns_take_token(&x, 1000000);)
        got++;
    assert_int_equal(got, HF_DNS_BURST);
}

static struct hf_policy *policy(const char *request)
{
    struct hf_err err = {0};
    struct hf_policy *p = NULL;
    json_auto_t *v = json_loads(request, 0, NULL), *doc = NULL;
    if (hf_policy_resolve(v, -1, &doc, &err) < 0 || hf_policy_parse(doc, &p, &err) < 0)
        fail_msg("%s", err.msg);
    return p;
}

static void judge(struct hf_policy *p, const char *name, uint16_t type, enum hf_dns_verdict want)
{
    struct hf_dns_query q = {.type = type, .class = HF_DNS_IN};
    struct hf_dns_judgement j;
    (void)snprintf(q.name, sizeof(q.name), "%s", name);
    hf_dns_judge(p, &q, true, false, &j);
    if (j.verdict != want)
        fail_msg("%s type %u: verdict %d, not %d (%s)", name, type, j.verdict, want, j.reason);
}

static void test_judge(void **state)
{
    struct hf_policy *names =
        policy("{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"ok.example\",\"*.wild.example\"]}");
    struct hf_policy *open = policy("{}");
    struct hf_policy *rules = policy("{\"rules\":[{\"host\":\"api.example\",\"action\":\"allow\"}]}");
    judge(names, "ok.example", HF_DNS_A, HF_DNS_ASK);
    judge(names, "no.example", HF_DNS_A, HF_DNS_REFUSE);
    judge(names, "ok.example", HF_DNS_TXT, HF_DNS_REFUSE);
    judge(names, "ok.example", HF_DNS_HTTPS, HF_DNS_EMPTY); /* no ECH keys */
    judge(names, "ok.example", 255, HF_DNS_REFUSE);
    judge(names, "wild.example", HF_DNS_A, HF_DNS_REFUSE);
    judge(names, "a.b.c.d.wild.example", HF_DNS_A, HF_DNS_ASK);
    judge(names, "a.b.c.d.e.wild.example", HF_DNS_A, HF_DNS_REFUSE); /* HF_DNS_WILD_LABELS_MAX */
    judge(names, "aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd.wild.example", HF_DNS_A, HF_DNS_ASK);
    judge(names, "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddx.wild.example", HF_DNS_A, HF_DNS_REFUSE);
    judge(open, "any.example", HF_DNS_TXT, HF_DNS_ASK);
    judge(open, "any.example", HF_DNS_HTTPS, HF_DNS_ASK);
    judge(open, "any.example", 252, HF_DNS_REFUSE); /* a zone transfer */
    judge(open, "4.3.2.10.in-addr.arpa", HF_DNS_PTR, HF_DNS_UNKNOWN);
    judge(rules, "api.example", HF_DNS_HTTPS, HF_DNS_EMPTY);
    judge(rules, "other.example", HF_DNS_A, HF_DNS_ASK);
    hf_policy_unref(names);
    hf_policy_unref(open);
    hf_policy_unref(rules);
}

static void test_addresses(void **state)
{
    struct hf_policy *p = policy("{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"ok.example\",\"10.1.2.3\"]}");
    static const struct {
        const char *text;
        bool ok, ok_private; /* … in a zone whose private answers are wanted */
    } cases[] = {
        {"192.0.2.1", true, true},
        {"10.0.0.1", false, true},
        {"10.1.2.3", true, true},
        {"127.0.0.1", false, false},
        {"169.254.169.254", false, false},
        {"fd00::1", false, true},
        {"::1", false, false},
        {"64:ff9b::a9fe:a9fe", false, false},
        {"0.0.0.0", false, false},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        struct hf_addr a;
        assert_int_equal(hf_addr_parse(hf_str_c(cases[i].text), &a), 0);
        if (hf_dns_addr_ok(p, &a, false) != cases[i].ok || hf_dns_addr_ok(p, &a, true) != cases[i].ok_private)
            fail_msg("%s", cases[i].text);
    }
    hf_policy_unref(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_query_round), cmocka_unit_test(test_query_bad),
        cmocka_unit_test(test_reply),       cmocka_unit_test(test_build_limits),
        cmocka_unit_test(test_config),      cmocka_unit_test(test_cache),
        cmocka_unit_test(test_tokens),      cmocka_unit_test(test_judge),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
