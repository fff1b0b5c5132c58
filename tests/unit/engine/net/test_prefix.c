#include "engine/net/prefix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/id.h"
#include "engine/net/ruleset.h"

static struct hf_cidr cidr(const char *s)
{
    struct hf_cidr c;
    if (hf_cidr_parse(hf_str_c(s), &c) < 0)
        fail_msg("%s", s);
    return c;
}

static void expect(const char *const *in, uint8_t family, const char *const *closed, const char *want)
{
    struct hf_cidr c[8];
    size_t n = 0;
    for (; in[n]; n++)
        c[n] = cidr(in[n]);
    struct hf_ranges r;
    hf_ranges_make(c, n, family, closed, &r);
    char got[1024] = "";
    for (size_t i = 0; i < r.n; i++) {
        char lo[HF_ADDR_TEXT], hi[HF_ADDR_TEXT];
        hf_addr_format(&r.v[i].lo, lo);
        hf_addr_format(&r.v[i].hi, hi);
        size_t at = strlen(got);
        (void)snprintf(got + at, sizeof(got) - at, "%s%s-%s", at ? " " : "", lo, hi);
    }
    hf_ranges_done(&r);
    assert_string_equal(got, want);
}

#define IN(...) ((const char *const[]){__VA_ARGS__, NULL})

static void merges(void **state)
{
    expect(IN("192.0.2.0/25", "192.0.2.128/25"), 4, NULL, "192.0.2.0-192.0.2.255");
    expect(IN("192.0.2.7", "192.0.2.0/24", "192.0.2.0/30"), 4, NULL, "192.0.2.0-192.0.2.255");
    expect(IN("198.51.100.1", "192.0.2.1", "192.0.2.3"), 4, NULL,
           "192.0.2.1-192.0.2.1 192.0.2.3-192.0.2.3 198.51.100.1-198.51.100.1");
    expect(IN("255.255.255.255", "0.0.0.0/0", "255.0.0.0/8"), 4, NULL, "0.0.0.0-255.255.255.255");
    expect(IN("2001:db8::/33", "192.0.2.1", "2001:db8:8000::/33"), 6, NULL,
           "2001:db8::-2001:db8:ffff:ffff:ffff:ffff:ffff:ffff");
    expect(IN("192.0.2.1"), 6, NULL, "");
}

static void private_parts_are_taken_out(void **state)
{
    expect(IN("8.0.0.0/6"), 4, hf_private4, "8.0.0.0-9.255.255.255 11.0.0.0-11.255.255.255");
    expect(IN("10.1.0.0/16"), 4, hf_private4, "10.1.0.0-10.1.255.255");
    expect(IN("8.0.0.0/6", "10.0.0.5"), 4, hf_private4,
           "8.0.0.0-9.255.255.255 10.0.0.5-10.0.0.5 11.0.0.0-11.255.255.255");
    expect(
        IN("0.0.0.0/0"), 4, hf_private4,
        "0.0.0.0-9.255.255.255 11.0.0.0-100.63.255.255 100.128.0.0-172.15.255.255 172.32.0.0-192.167.255.255 "
        "192.169.0.0-198.17.255.255 198.20.0.0-255.255.255.255");
    expect(IN("fc00::/6"), 6, hf_private6,
           "fe00::-febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff ff00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    expect(IN("fd00::/8"), 6, hf_private6, "fd00::-fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
}

/* ---- the ruleset's lists against the classes of addresses ---- */

static bool in_list(const char *const *list, const struct hf_addr *a)
{
    for (; *list; list++) {
        struct hf_cidr c = cidr(*list);
        if (hf_cidr_has(&c, a))
            return true;
    }
    return false;
}

/* What the kernel says must be at least as strict as what the policy says. */
static void check_address(const struct hf_addr *a)
{
    char text[HF_ADDR_TEXT];
    bool six = a->family == 6;
    enum hf_addr_class c = hf_addr_class_of(a);
    bool never = in_list(six ? hf_never6 : hf_never4, a),
         private = in_list(six ? hf_private6 : hf_private4, a);
    hf_addr_format(a, text);
    if (hf_addr_never(a) && !never)
        fail_msg("%s is %s, and the ruleset lets it through", text, hf_addr_class_name(c));
    if (c == HF_ADDR_PRIVATE && !private && !never)
        fail_msg("%s is private, and not for the ruleset", text);
    if (!six && c == HF_ADDR_PUBLIC && (never || private))
        fail_msg("%s is public, and not for the ruleset", text);
}

static void check_edges(const char *const *list)
{
    for (; *list; list++) {
        struct hf_cidr c = cidr(*list);
        struct hf_ranges r;
        hf_ranges_make(&c, 1, c.addr.family, NULL, &r);
        struct hf_addr edges[] = {r.v[0].lo, r.v[0].hi, r.v[0].lo, r.v[0].hi};
        size_t last = c.addr.family == 6 ? 15 : 3;
        edges[2].b[last]--;
        edges[3].b[last]++;
        for (size_t i = 0; i < HF_ARRAY_LEN(edges); i++)
            check_address(&edges[i]);
        hf_ranges_done(&r);
    }
}

static void ruleset_agrees_with_classes(void **state)
{
    check_edges(hf_never4);
    check_edges(hf_private4);
    check_edges(hf_never6);
    check_edges(hf_private6);
    /* every /16 of IPv4, also inside NAT64 and 6to4, and random places */
    for (uint32_t i = 0; i < 0x10000; i++) {
        struct hf_addr a = {.family = 4, .b = {(uint8_t)(i >> 8), (uint8_t)i, 0, (uint8_t)i}};
        struct hf_addr nat64 = {.family = 6, .b = {0, 0x64, 0xff, 0x9b}},
                       six = {.family = 6, .b = {0x20, 0x02}};
        memcpy(nat64.b + 12, a.b, 4);
        memcpy(six.b + 2, a.b, 4);
        check_address(&a);
        check_address(&nat64);
        check_address(&six);
    }
    for (int i = 0; i < 20000; i++) {
        struct hf_addr a = {.family = 6};
        hf_random(a.b, sizeof(a.b));
        if (i % 2)
            a.b[0] |= 0xfc;
        check_address(&a);
    }
}

static void addresses_of_boxes(void **state)
{
    struct hf_net_config cfg = {
        "00000000", "10.117.0.0/16", "fd68:6f6c:6466:1::/64", "10.118.0.0/16", "fd68:6f6c:6466:ff00::/56",
        true};
    struct hf_net_addrs a, b;
    char text[HF_ADDR_TEXT];
    assert_int_equal(hf_net_addrs(&cfg, 0, &a), -EINVAL);
    assert_int_equal(hf_net_addrs(&cfg, 7, &a), 0);
    assert_string_equal(a.ifname, "hf7");
    hf_addr_format(&a.box4, text);
    assert_string_equal(text, "10.117.0.17");
    hf_addr_format(&a.gw6, text);
    assert_string_equal(text, "fd68:6f6c:6466:1::10");
    hf_addr_format(&a.dns4, text);
    assert_string_equal(text, "10.117.255.254");
    hf_addr_format(&a.dns6, text);
    assert_string_equal(text, "fd68:6f6c:6466:1::fffe");
    for (uint32_t key = 1; key < HF_NET_BOXES_MAX; key += 97) { /* distinct, and never the resolver's */
        assert_int_equal(hf_net_addrs(&cfg, key, &a), 0);
        assert_int_equal(hf_net_addrs(&cfg, key + 1, &b), 0);
        assert_false(hf_addr_equal(&a.box4, &b.box4) || hf_addr_equal(&a.gw4, &b.gw4));
        assert_false(hf_addr_equal(&a.box4, &a.dns4) || hf_addr_equal(&a.gw4, &a.dns4));
    }
    cfg.subnet4 = "10.117.0.0/21";
    assert_int_equal(hf_net_addrs(&cfg, 1, &a), -EINVAL);
    cfg.subnet4 = "10.117.0.0/20";
    assert_int_equal(hf_net_addrs(&cfg, UINT32_MAX, &a), 0);
    assert_string_equal(a.ifname, "hf4294967295");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges),
        cmocka_unit_test(private_parts_are_taken_out),
        cmocka_unit_test(ruleset_agrees_with_classes),
        cmocka_unit_test(addresses_of_boxes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
