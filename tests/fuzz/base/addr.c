/* Address and prefix text: what parses must print and parse to itself, and be classified the same way. */
#include "base/addr.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hf_str s = {(const char *)data, size};
    struct hf_addr a, b;
    if (hf_addr_parse(s, &a) == 0) {
        char text[HF_ADDR_TEXT];
        hf_addr_format(&a, text);
        check(hf_addr_parse(hf_str_c(text), &b) == 0 && hf_addr_equal(&a, &b));
        check(hf_addr_class_of(&a) == hf_addr_class_of(&b));
        struct sockaddr_storage ss;
        (void)hf_addr_to_sockaddr(&a, 80, &ss);
        check(hf_addr_from_sockaddr((struct sockaddr *)&ss, &b, NULL) == 0);
        check(hf_addr_class_of(&a) == hf_addr_class_of(&b));
    }
    struct hf_cidr c, d;
    if (hf_cidr_parse(s, &c) == 0) {
        char text[HF_CIDR_TEXT];
        hf_cidr_format(&c, text);
        check(hf_cidr_parse(hf_str_c(text), &d) == 0 && hf_addr_equal(&c.addr, &d.addr) && c.bits == d.bits);
        check(hf_cidr_has(&c, &c.addr));
        if (hf_cidr_private(&c)) /* the first address of a private prefix opens nothing public */
            check(hf_addr_class_of(&c.addr) != HF_ADDR_PUBLIC);
    }
    return 0;
}
