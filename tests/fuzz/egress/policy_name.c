/* Fuzz: host names. What passes is what a name may be, and stays itself. */
#include "egress/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char out[254], again[254];
    struct hf_addr a;
    if (hf_name_normal((struct hf_str){(const char *)data, size}, out) < 0)
        return 0;
    size_t n = strlen(out);
    if (n == 0 || n > 253 || n > size)
        abort();
    if (strspn(out, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != n || strstr(out, ".."))
        abort();
    if (hf_name_normal(hf_str_c(out), again) < 0 || strcmp(out, again) != 0)
        abort();
    if (hf_addr_parse(hf_str_c(out), &a) == 0)
        abort(); /* an address must never pass as a name */
    if (!hf_name_match(out, out))
        abort();
    return 0;
}
