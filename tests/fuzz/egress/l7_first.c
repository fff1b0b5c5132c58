/* First bytes of a connection, and hosts as requests name them. */
#include "egress/l7_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct hf_l7_authority a;
    const char *s = (const char *)p;
    enum hf_l7_kind whole = hf_l7_sniff(s, n);
    /* What was known of a part stays true of the whole. */
    for (size_t k = 1; k < n && k < 64; k++) {
        enum hf_l7_kind part = hf_l7_sniff(s, k);
        if (part != HF_L7_MORE && part != whole)
            abort();
    }
    if (hf_l7_authority((struct hf_str){s, n}, 443, &a) == 0) {
        size_t len = strnlen(a.host, sizeof a.host);
        if (!len || len >= sizeof a.host || !a.port || strpbrk(a.host, " \r\n/@[]%"))
            abort();
    }
    return 0;
}
