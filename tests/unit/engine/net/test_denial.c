#include "engine/net/denial.h"

#include <linux/netfilter/nfnetlink_log.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "engine/net/nl.h"

static int read_one(const char *prefix, const void *packet, size_t n, uint32_t in, struct hf_net_denial *d)
{
    hf_auto_nl struct hf_nl nl = {0};
    hf_nl_put_be32(&nl, NFULA_MARK, 42);
    hf_nl_put_be32(&nl, NFULA_IFINDEX_INDEV, in);
    hf_nl_put_str(&nl, NFULA_PREFIX, prefix);
    hf_nl_put(&nl, NFULA_PAYLOAD, packet, n);
    return hf_denial_read(nl.p, nl.n, 9, d);
}

static const uint8_t tcp4[] = {0x45, 0,   0, 40, 0,   0, 0, 0, 64,   6,    0,    0,
                               10,   117, 0, 3,  192, 0, 2, 1, 0x12, 0x34, 0x01, 0xbb};

static void ipv4(void **state)
{
    struct hf_net_denial d;
    struct hf_addr box, far;
    assert_int_equal(hf_addr_parse(HF_STR("10.117.0.3"), &box), 0);
    assert_int_equal(hf_addr_parse(HF_STR("192.0.2.1"), &far), 0);
    assert_int_equal(read_one("deny", tcp4, sizeof(tcp4), 5, &d), 0);
    assert_string_equal(d.reason, "deny");
    assert_int_equal(d.key, 42);
    assert_int_equal(d.protocol, 6);
    assert_true(hf_addr_equal(&d.src, &box) && hf_addr_equal(&d.dst, &far));
    assert_int_equal(d.src_port, 0x1234);
    assert_int_equal(d.dst_port, 443);
    /* an answer: told as the box sees it */
    assert_int_equal(read_one("deny", tcp4, sizeof(tcp4), 9, &d), 0);
    assert_true(hf_addr_equal(&d.src, &far) && hf_addr_equal(&d.dst, &box));
    assert_int_equal(d.dst_port, 0x1234);
    /* a later fragment has no ports */
    uint8_t fragment[sizeof(tcp4)];
    memcpy(fragment, tcp4, sizeof(tcp4));
    fragment[7] = 8;
    assert_int_equal(read_one("deny", fragment, sizeof(fragment), 5, &d), 0);
    assert_int_equal(d.dst_port, 0);
}

static void ipv6_with_extensions(void **state)
{
    uint8_t p[40 + 8 + 4] = {0x60,     0,           0,    0,    0,    12,       60,        64,          0xfd,
                             [23] = 1, [24] = 0x20, 0x01, 0x0d, 0xb8, [39] = 1, [40] = 17, [50] = 0x01, 0xbb};
    struct hf_net_denial d;
    assert_int_equal(read_one("quic", p, sizeof(p), 5, &d), 0);
    assert_int_equal(d.protocol, 17);
    assert_int_equal(d.dst_port, 443);
    assert_int_equal(d.dst.family, 6);
    p[41] = 200; /* an extension longer than what was logged */
    assert_int_equal(read_one("quic", p, sizeof(p), 5, &d), 0);
    assert_int_equal(d.dst_port, 0);
}

static void not_ours(void **state)
{
    struct hf_net_denial d = {.key = 1};
    assert_int_equal(read_one("somebody", tcp4, sizeof(tcp4), 5, &d), -EINVAL);
    assert_int_equal(read_one("deny", tcp4, 19, 5, &d), -EINVAL);
    assert_int_equal(read_one("deny", tcp4, 0, 5, &d), -EINVAL);
    assert_int_equal(read_one("deny", "\x75", 1, 5, &d), -EINVAL);
    assert_int_equal(hf_denial_read("", 0, 9, &d), -EINVAL);
    assert_int_equal(d.key, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ipv4), cmocka_unit_test(ipv6_with_extensions),
                                       cmocka_unit_test(not_ours)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
