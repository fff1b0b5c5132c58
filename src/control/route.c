#include "control/route.h"

/* The segment at *at without its leading slash; moves *at to the next slash or the end. */
static struct hf_str next_segment(struct hf_str s, size_t *at)
{
    size_t begin = *at + 1, end = begin;
    while (end < s.n && s.p[end] != '/')
        end++;
    *at = end;
    return (struct hf_str){s.p + begin, end - begin};
}

bool hf_route_match(const char *pattern, struct hf_str path, struct hf_str params[HF_ROUTE_PARAMS_MAX],
                    size_t *ret_n)
{
    struct hf_str pat = hf_str_c(pattern);
    size_t i = 0, j = 0, n = 0;
    while (i < pat.n && j < path.n) {
        if (path.p[j] != '/')
            return false;
        struct hf_str want = next_segment(pat, &i), have = next_segment(path, &j);
        if (want.n && want.p[0] == '{') {
            if (!have.n || n == HF_ROUTE_PARAMS_MAX)
                return false;
            params[n++] = have;
        } else if (want.n != have.n || (want.n && memcmp(want.p, have.p, want.n) != 0)) {
            return false;
        }
    }
    if (i < pat.n || j < path.n)
        return false;
    *ret_n = n;
    return true;
}
