#include "base/addr.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct hf_addr addr(const char *s)
{
    struct hf_addr a = {0};
    if (hf_addr_parse(hf_str_c(s), &a) < 0)
        fail_msg("%s does not parse", s);
    return a;
}

static struct hf_cidr cidr(const char *s)
{
    struct hf_cidr c = {0};
    if (hf_cidr_parse(hf_str_c(s), &c) < 0)
        fail_msg("%s does not parse", s);
    return c;
}

static void text_is_strict(void **state)
{
    static const char *const bad[] = {
        "",
        "1",
        "1.2.3",
        "1.2.3.4.5",
        "01.2.3.4",
        "1.2.3.04",
        "0x7f.0.0.1",
        "2130706433",
        "1.2.3.256",
        "1.2.3.-4",
        " 1.2.3.4",
        "1.2.3.4 ",
        "1..2.3",
        "1.2.3.4\n",
        "[::1]",
        "fe80::1%lo",
        ":::",
        "1::2::3",
        "12345::",
        "::1 ",
        "::1.2.3",
        "::01.2.3.4",
        "1.2.3.4/8",
        "::ffff:1.2.3.400",
        "0000:0000:0000:0000:0000:0000:0000:0000:0",
    };
    struct hf_addr a = {.family = 9};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        if (hf_addr_parse(hf_str_c(bad[i]), &a) != -EINVAL)
            fail_msg("\"%s\" was taken", bad[i]);
    assert_int_equal(hf_addr_parse((struct hf_str){"::1\0", 4}, &a), -EINVAL);
    assert_int_equal(hf_addr_parse((struct hf_str){NULL, 0}, &a), -EINVAL);
    assert_int_equal(a.family, 9);
    static const char *const good[] = {"0.0.0.0",     "1.20.255.4",     "::",    "::1",
                                       "2001:db8::1", "::ffff:1.2.3.4", "fe80::"};
    for (size_t i = 0; i < HF_ARRAY_LEN(good); i++) {
        char out[HF_ADDR_TEXT];
        a = addr(good[i]);
        hf_addr_format(&a, out);
        assert_string_equal(out, good[i]);
    }
}

static void prefixes_are_cut(void **state)
{
    static const char *const pairs[][2] = {
        {"10.1.2.3/8", "10.0.0.0/8"},       {"10.1.2.3", "10.1.2.3/32"},
        {"255.255.255.255/0", "0.0.0.0/0"}, {"192.0.2.255/25", "192.0.2.128/25"},
        {"2001:db8::1", "2001:db8::1/128"}, {"2001:db8:ffff::1/33", "2001:db8:8000::/33"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(pairs); i++) {
        char out[HF_CIDR_TEXT];
        struct hf_cidr c = cidr(pairs[i][0]);
        hf_cidr_format(&c, out);
        assert_string_equal(out, pairs[i][1]);
    }
    static const char *const bad[] = {"1.2.3.4/33", "1.2.3.4/", "1.2.3.4/+1",  "1.2.3.4/08",
                                      "::/129",     "/8",       "1.2.3.4/8/8", "1.2.3.4/-1"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        struct hf_cidr c;
        if (hf_cidr_parse(hf_str_c(bad[i]), &c) != -EINVAL)
            fail_msg("\"%s\" was taken", bad[i]);
    }
}

static void classes(void **state)
{
    static const struct {
        const char *text;
        enum hf_addr_class class;
    } t[] = {
        {"8.8.8.8", HF_ADDR_PUBLIC},
        {"192.0.2.1", HF_ADDR_PUBLIC},
        {"198.51.100.1", HF_ADDR_PUBLIC},
        {"203.0.113.1", HF_ADDR_PUBLIC},
        {"2001:db8::1", HF_ADDR_PUBLIC},
        {"2606:4700::1", HF_ADDR_PUBLIC},
        {"172.15.255.255", HF_ADDR_PUBLIC},
        {"172.32.0.0", HF_ADDR_PUBLIC},
        {"100.63.255.255", HF_ADDR_PUBLIC},
        {"100.128.0.0", HF_ADDR_PUBLIC},
        {"10.0.0.0", HF_ADDR_PRIVATE},
        {"10.255.255.255", HF_ADDR_PRIVATE},
        {"172.16.0.1", HF_ADDR_PRIVATE},
        {"172.31.255.255", HF_ADDR_PRIVATE},
        {"192.168.1.1", HF_ADDR_PRIVATE},
        {"100.64.0.1", HF_ADDR_PRIVATE},
        {"198.19.0.1", HF_ADDR_PRIVATE},
        {"fd12::1", HF_ADDR_PRIVATE},
        {"fec0::1", HF_ADDR_PRIVATE},
        {"127.255.255.254", HF_ADDR_LOOPBACK},
        {"::1", HF_ADDR_LOOPBACK},
        {"169.254.169.254", HF_ADDR_LINK_LOCAL},
        {"169.254.170.2", HF_ADDR_LINK_LOCAL},
        {"fe80::1", HF_ADDR_LINK_LOCAL},
        {"febf::1", HF_ADDR_LINK_LOCAL},
        {"100.100.100.200", HF_ADDR_METADATA},
        {"168.63.129.16", HF_ADDR_METADATA},
        {"192.0.0.192", HF_ADDR_METADATA},
        {"fd00:ec2::254", HF_ADDR_METADATA},
        {"fd00:ec2::23", HF_ADDR_METADATA},
        {"fd20:ce::254", HF_ADDR_METADATA},
        {"fd00:42::42", HF_ADDR_METADATA},
        {"0.0.0.0", HF_ADDR_RESERVED},
        {"0.1.2.3", HF_ADDR_RESERVED},
        {"192.0.0.1", HF_ADDR_RESERVED},
        {"224.0.0.1", HF_ADDR_RESERVED},
        {"240.0.0.1", HF_ADDR_RESERVED},
        {"255.255.255.255", HF_ADDR_RESERVED},
        {"::", HF_ADDR_RESERVED},
        {"ff02::1", HF_ADDR_RESERVED},
        {"100::1", HF_ADDR_RESERVED},
        /* wrapped: judged by what is inside */
        {"::ffff:8.8.8.8", HF_ADDR_PUBLIC},
        {"::ffff:127.0.0.1", HF_ADDR_LOOPBACK},
        {"::ffff:10.0.0.1", HF_ADDR_PRIVATE},
        {"::ffff:169.254.169.254", HF_ADDR_LINK_LOCAL},
        {"::ffff:0:169.254.169.254", HF_ADDR_LINK_LOCAL},
        {"::169.254.169.254", HF_ADDR_LINK_LOCAL},
        {"::10.0.0.1", HF_ADDR_PRIVATE},
        {"64:ff9b::8.8.8.8", HF_ADDR_PUBLIC},
        {"64:ff9b::169.254.169.254", HF_ADDR_LINK_LOCAL},
        {"64:ff9b::100.100.100.200", HF_ADDR_METADATA},
        {"64:ff9b:1::10.0.0.1", HF_ADDR_PRIVATE},
        {"64:ff9b:1:a00:0:100::", HF_ADDR_RESERVED}, /* its /48 form */
        {"2002:a9fe:a9fe::1", HF_ADDR_LINK_LOCAL},
        {"2002:c0a8:101::", HF_ADDR_PRIVATE},
        {"2002:808:808::1", HF_ADDR_PUBLIC},
        {"2001:0:4136:e378:8000:63bf:3fff:fdd2", HF_ADDR_PUBLIC},
        {"2001:0:4136:e378:8000:63bf:5601:5601", HF_ADDR_LINK_LOCAL}, /* client 169.254.169.254 */
        {"2001:0:7f00:1:8000:63bf:3fff:fdd2", HF_ADDR_LOOPBACK},      /* server 127.0.0.1 */
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(t); i++) {
        struct hf_addr a = addr(t[i].text);
        enum hf_addr_class got = hf_addr_class_of(&a);
        if (got != t[i].class)
            fail_msg("%s is %s, not %s", t[i].text, hf_addr_class_name(got), hf_addr_class_name(t[i].class));
        assert_int_equal(hf_addr_never(&a), got != HF_ADDR_PUBLIC && got != HF_ADDR_PRIVATE);
    }
    struct hf_addr none = {0};
    assert_true(hf_addr_never(&none));
    assert_string_equal(hf_addr_class_name(HF_ADDR_LINK_LOCAL), "link-local");
}

static void private_prefixes(void **state)
{
    static const char *const yes[] = {
        "10.0.0.0/8",        "10.1.2.3",      "192.168.7.0/24", "100.64.0.0/10",
        "fc00::/7",          "fd12::/16",     "fd12::1",        "64:ff9b::10.0.0.0/104",
        "64:ff9b::10.0.0.1", "2002:a00::/24", "2002:a00:1::5"};
    static const char *const no[] = {
        "0.0.0.0/0",        "10.0.0.0/7",    "8.8.8.8",        "172.0.0.0/8",     "::/0",
        "fe80::/10",        "2001:db8::/32", "169.254.0.0/16", "100.100.100.200", "64:ff9b::/96",
        "64:ff9b::8.8.8.8", "2002::/16",     "fd00:ec2::254",  "fe00::/6"};
    for (size_t i = 0; i < HF_ARRAY_LEN(yes); i++) {
        struct hf_cidr c = cidr(yes[i]);
        if (!hf_cidr_private(&c))
            fail_msg("%s is not private", yes[i]);
    }
    for (size_t i = 0; i < HF_ARRAY_LEN(no); i++) {
        struct hf_cidr c = cidr(no[i]);
        if (hf_cidr_private(&c))
            fail_msg("%s is private", no[i]);
    }
}

static void membership_and_order(void **state)
{
    struct hf_cidr c = cidr("192.0.2.128/25"), all6 = cidr("::/0");
    struct hf_addr in = addr("192.0.2.200"), out = addr("192.0.2.127"), six = addr("2001:db8::1");
    assert_true(hf_cidr_has(&c, &in));
    assert_false(hf_cidr_has(&c, &out));
    assert_false(hf_cidr_has(&c, &six));
    assert_true(hf_cidr_has(&all6, &six));
    assert_false(hf_cidr_has(&all6, &in));
    assert_true(hf_addr_cmp(&out, &in) < 0);
    assert_true(hf_addr_cmp(&six, &in) > 0);
    assert_true(hf_addr_equal(&in, &in));
}

static void socket_addresses(void **state)
{
    struct sockaddr_storage ss;
    struct hf_addr a = addr("192.0.2.1"), b;
    uint16_t port = 0;
    assert_int_equal(hf_addr_to_sockaddr(&a, 443, &ss), sizeof(struct sockaddr_in));
    assert_int_equal(hf_addr_from_sockaddr((struct sockaddr *)&ss, &b, &port), 0);
    assert_true(hf_addr_equal(&a, &b));
    assert_int_equal(port, 443);
    a = addr("2001:db8::7");
    assert_int_equal(hf_addr_to_sockaddr(&a, 1, &ss), sizeof(struct sockaddr_in6));
    assert_int_equal(hf_addr_from_sockaddr((struct sockaddr *)&ss, &b, NULL), 0);
    assert_true(hf_addr_equal(&a, &b));
    a = addr("::ffff:192.0.2.1");
    (void)hf_addr_to_sockaddr(&a, 1, &ss);
    assert_int_equal(hf_addr_from_sockaddr((struct sockaddr *)&ss, &b, NULL), 0);
    assert_int_equal(b.family, 4);
    ss.ss_family = AF_UNIX;
    assert_int_equal(hf_addr_from_sockaddr((struct sockaddr *)&ss, &b, NULL), -EAFNOSUPPORT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_strict),
        cmocka_unit_test(prefixes_are_cut),
        cmocka_unit_test(classes),
        cmocka_unit_test(private_prefixes),
        cmocka_unit_test(membership_and_order),
        cmocka_unit_test(socket_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
