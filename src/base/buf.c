#include "base/buf.h"

#include <stdio.h>

void hf_buf_done(struct hf_buf *b)
{
    free(b->p);
    b->p = NULL;
    b->n = b->cap = 0;
}

void hf_buf_clear(struct hf_buf *b)
{
    b->n = 0;
    if (b->p)
        b->p[0] = '\0';
}

int hf_buf_reserve(struct hf_buf *b, size_t n)
{
    size_t need;
    if (__builtin_add_overflow(b->n, n, &need) || need > b->max)
        return -EMSGSIZE;
    if (need + 1 <= b->cap)
        return 0;
    size_t cap = b->cap ? b->cap : 128;
    while (cap < need + 1)
        cap *= 2;
    b->p = hf_xrealloc(b->p, cap);
    b->cap = cap;
    return 0;
}

int hf_buf_add(struct hf_buf *b, const void *p, size_t n)
{
    int r = hf_buf_reserve(b, n);
    if (r < 0)
        return r;
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
    b->p[b->n] = '\0';
    return 0;
}

int hf_buf_adds(struct hf_buf *b, const char *s)
{
    return hf_buf_add(b, s, strlen(s));
}

int hf_buf_vaddf(struct hf_buf *b, const char *fmt, va_list ap)
{
    va_list ap2;
    va_copy(ap2, ap);
    int len = vsnprintf(NULL, 0, fmt, ap2);
    va_end(ap2);
    if (len < 0)
        return -EINVAL;
    int r = hf_buf_reserve(b, (size_t)len);
    if (r < 0)
        return r;
    (void)vsnprintf(b->p + b->n, (size_t)len + 1, fmt, ap);
    b->n += (size_t)len;
    return 0;
}

int hf_buf_addf(struct hf_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int r = hf_buf_vaddf(b, fmt, ap);
    va_end(ap);
    return r;
}

void hf_buf_consume(struct hf_buf *b, size_t n)
{
    if (n >= b->n) {
        hf_buf_clear(b);
        return;
    }
    memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
    b->p[b->n] = '\0';
}

char *hf_buf_take(struct hf_buf *b)
{
    char *p = b->p ? b->p : hf_xstrdup("");
    b->p = NULL;
    b->n = b->cap = 0;
    return p;
}
