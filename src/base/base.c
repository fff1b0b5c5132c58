#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <strings.h>

static HF_NORETURN void oom(void)
{
    static const char msg[] = "holdfast: out of memory\n";
    ssize_t r = write(STDERR_FILENO, msg, sizeof(msg) - 1);
    (void)r;
    abort();
}

void *hf_xmalloc(size_t n)
{
    void *p = malloc(n ? n : 1);
    if (!p)
        oom();
    return p;
}

void *hf_xcalloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);
    if (!p)
        oom();
    return p;
}

void *hf_xrealloc(void *p, size_t n)
{
    p = realloc(p, n ? n : 1);
    if (!p)
        oom();
    return p;
}

char *hf_xstrdup(const char *s)
{
    return hf_xstrndup(s, strlen(s));
}

char *hf_xstrndup(const char *s, size_t n)
{
    char *p = hf_xmalloc(n + 1);
    memcpy(p, s, n);
    p[n] = '\0';
    return p;
}

char *hf_xasprintf(const char *fmt, ...)
{
    va_list ap;
    char *s = NULL;
    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0)
        oom();
    va_end(ap);
    return s;
}

bool hf_str_eq(struct hf_str a, const char *b)
{
    return a.p && strlen(b) == a.n && memcmp(a.p, b, a.n) == 0;
}

bool hf_str_caseeq(struct hf_str a, const char *b)
{
    return a.p && strlen(b) == a.n && strncasecmp(a.p, b, a.n) == 0;
}

bool hf_str_starts(struct hf_str a, const char *prefix)
{
    size_t n = strlen(prefix);
    return a.p && a.n >= n && memcmp(a.p, prefix, n) == 0;
}

char *hf_str_dup(struct hf_str s)
{
    return hf_xstrndup(s.p ? s.p : "", s.n);
}

bool hf_str_eq_consttime(struct hf_str a, struct hf_str b)
{
    if (!a.p || !b.p || a.n != b.n)
        return false;
    unsigned diff = 0;
    for (size_t i = 0; i < a.n; i++)
        diff |= (unsigned)((unsigned char)a.p[i] ^ (unsigned char)b.p[i]);
    return diff == 0;
}

int hf_parse_u64(struct hf_str s, uint64_t max, uint64_t *ret)
{
    uint64_t v = 0;
    if (!s.p || s.n == 0)
        return -EINVAL;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return -EINVAL;
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(s.p[i] - '0'), &v) || v > max)
            return -ERANGE;
    }
    *ret = v;
    return 0;
}
