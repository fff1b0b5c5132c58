/* Prefixes as sorted ranges that neither overlap nor touch: what an interval set wants. Pure. */
#pragma once

#include "base/addr.h"

struct hf_range {
    struct hf_addr lo, hi; /* both inside */
};

struct hf_ranges {
    struct hf_range *v;
    size_t n, cap;
};

void hf_ranges_done(struct hf_ranges *r);
/* The ranges of one family. closed: prefixes (text, NULL-terminated, of that family) that are taken out of
 * every entry that is not private itself; NULL = none. */
void hf_ranges_make(const struct hf_cidr *c, size_t n, uint8_t family, const char *const *closed,
                    struct hf_ranges *ret);
