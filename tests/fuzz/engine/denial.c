/* What the kernel logs of a packet that a box made: attributes, then headers of the box's choice. */
#include "engine/net/denial.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hf_net_denial d;
    /* attributes are aligned, as in a netlink message */
    uint8_t *copy = hf_xmalloc(size + 1);
    memcpy(copy, data, size);
    if (hf_denial_read(copy, size, 9, &d) == 0 &&
        (!d.reason || !d.src.family || d.src.family != d.dst.family))
        abort();
    free(copy);
    return 0;
}
