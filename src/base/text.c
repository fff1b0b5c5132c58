#include "base/text.h"

#include <stdio.h>
#include <strings.h>

/* Digits with at most three decimals, as thousandths: fixed point, so that no rounding depends on a locale.
 */
static int parse_milli(const char **s, uint64_t *ret)
{
    const char *p = *s;
    uint64_t v = 0;
    if (*p < '0' || *p > '9')
        return -EINVAL;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
            return -ERANGE;
    if (__builtin_mul_overflow(v, (uint64_t)1000, &v))
        return -ERANGE;
    if (*p == '.') {
        uint64_t unit = 100;
        if (p[1] < '0' || p[1] > '9')
            return -EINVAL;
        for (p++; *p >= '0' && *p <= '9'; p++, unit /= 10)
            if (__builtin_add_overflow(v, unit * (uint64_t)(*p - '0'), &v))
                return -ERANGE;
    }
    *s = p;
    *ret = v;
    return 0;
}

static int size_shift(const char *suffix, unsigned *ret)
{
    static const char units[] = "KMGT";
    if (!*suffix || strcasecmp(suffix, "B") == 0) {
        *ret = 0;
        return 0;
    }
    for (unsigned i = 0; units[i]; i++) {
        if ((suffix[0] & ~0x20) != units[i])
            continue;
        if (suffix[1] && strcasecmp(suffix + 1, "B") != 0 && strcasecmp(suffix + 1, "iB") != 0)
            return -EINVAL;
        *ret = (i + 1) * 10;
        return 0;
    }
    return -EINVAL;
}

int hf_parse_size(const char *s, uint64_t *ret_bytes)
{
    unsigned shift = 0;
    uint64_t whole = 0;
    /* Plain bytes use the full 64-bit range, which thousandths do not have. */
    if (hf_parse_u64(hf_str_c(s), UINT64_MAX, &whole) == 0) {
        *ret_bytes = whole;
        return 0;
    }
    uint64_t milli = 0;
    int r = parse_milli(&s, &milli);
    if (r < 0)
        return r;
    r = size_shift(s, &shift);
    if (r < 0)
        return r;
    unsigned __int128 bytes = ((unsigned __int128)milli << shift) / 1000;
    if (bytes > UINT64_MAX)
        return -ERANGE;
    *ret_bytes = (uint64_t)bytes;
    return 0;
}

static uint64_t unit_seconds(char c)
{
    switch (c) {
    case 's':
        return 1;
    case 'm':
        return 60;
    case 'h':
        return 3600;
    case 'd':
        return 86400;
    default:
        return 0;
    }
}

int hf_parse_seconds(const char *s, uint64_t *ret_seconds)
{
    uint64_t total = 0;
    if (hf_parse_u64(hf_str_c(s), UINT64_MAX, ret_seconds) == 0)
        return 0;
    if (!*s)
        return -EINVAL;
    while (*s) {
        size_t digits = strspn(s, "0123456789");
        uint64_t v = 0, unit = unit_seconds(s[digits]);
        int r = hf_parse_u64((struct hf_str){s, digits}, UINT64_MAX, &v);
        if (r < 0)
            return r;
        if (!unit)
            return -EINVAL;
        if (__builtin_mul_overflow(v, unit, &v) || __builtin_add_overflow(total, v, &total))
            return -ERANGE;
        s += digits + 1;
    }
    *ret_seconds = total;
    return 0;
}

char *hf_human_size(uint64_t bytes, char out[HF_HUMAN_MAX])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        (void)snprintf(out, HF_HUMAN_MAX, "%u B", (unsigned)bytes);
        return out;
    }
    size_t i = 0;
    double v = (double)bytes / 1024.0;
    while (v >= 1023.95 && i + 1 < HF_ARRAY_LEN(units)) {
        v /= 1024.0;
        i++;
    }
    /* Whole numbers without ".0": "64 GiB", but "1.5 GiB". */
    bool whole = v >= 99.95 || (v - (double)(uint64_t)v) < 0.05;
    (void)snprintf(out, HF_HUMAN_MAX, whole ? "%.0f %s" : "%.1f %s", v, units[i]);
    return out;
}

char *hf_human_seconds(uint64_t seconds, char out[HF_HUMAN_MAX])
{
    unsigned long long s = seconds;
    if (s < 60)
        (void)snprintf(out, HF_HUMAN_MAX, "%llus", s);
    else if (s < 3600)
        (void)snprintf(out, HF_HUMAN_MAX, s % 60 ? "%llum %llus" : "%llum", s / 60, s % 60);
    else if (s < 86400)
        (void)snprintf(out, HF_HUMAN_MAX, s % 3600 >= 60 ? "%lluh %llum" : "%lluh", s / 3600, s % 3600 / 60);
    else
        (void)snprintf(out, HF_HUMAN_MAX, s % 86400 >= 3600 ? "%llud %lluh" : "%llud", s / 86400,
                       s % 86400 / 3600);
    return out;
}

#define WORD_MAX 48u

/* Optimal string alignment distance; words beyond WORD_MAX are never near. */
static size_t distance(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    unsigned char d[3][WORD_MAX + 1] = {{0}};
    if (na > WORD_MAX || nb > WORD_MAX)
        return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++)
        d[0][j] = (unsigned char)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned char *now = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];
        now[0] = (unsigned char)i;
        for (size_t j = 1; j <= nb; j++) {
            unsigned v = up[j - 1] + (a[i - 1] != b[j - 1]);
            v = HF_MIN(v, up[j] + 1u);
            v = HF_MIN(v, now[j - 1] + 1u);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                v = HF_MIN(v, up2[j - 2] + 1u);
            now[j] = (unsigned char)v;
        }
    }
    return d[na % 3][nb];
}

const char *hf_nearest(const char *word, const char *const *list)
{
    const char *best = NULL;
    size_t best_d = HF_MAX(strlen(word) / 3, (size_t)1) + 1;
    for (; *list; list++) {
        size_t d = distance(word, *list);
        if (d < best_d) {
            best_d = d;
            best = *list;
        }
    }
    return best;
}
