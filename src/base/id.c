#include "base/id.h"

#include <sys/random.h>

void hf_random(void *p, size_t n)
{
    char *c = p;
    while (n) {
        ssize_t r = getrandom(c, n, 0);
        if (r < 0) {
            if (errno == EINTR)
                continue;
            abort();
        }
        c += r;
        n -= (size_t)r;
    }
}

void hf_random_id(char *out, size_t n)
{
    static const char set[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    for (size_t i = 0; i < n;) {
        unsigned char c;
        hf_random(&c, 1);
        if (c >= 252) /* 7 * 36: keeps the choice uniform */
            continue;
        out[i++] = set[c % 36];
    }
    out[n] = '\0';
}

void hf_hex(const void *p, size_t n, char *out)
{
    static const char set[] = "0123456789abcdef";
    const unsigned char *c = p;
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = set[c[i] >> 4];
        out[2 * i + 1] = set[c[i] & 15];
    }
    out[2 * n] = '\0';
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int hf_unhex(struct hf_str s, void *out, size_t n)
{
    if (!s.p || s.n != 2 * n)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        int hi = hex_digit(s.p[2 * i]), lo = hex_digit(s.p[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return -EINVAL;
        ((unsigned char *)out)[i] = (unsigned char)(hi << 4 | lo);
    }
    return 0;
}

int hf_base64_add(struct hf_buf *b, const void *p, size_t n)
{
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *c = p;
    int r = hf_buf_reserve(b, (n + 2) / 3 * 4);
    if (r < 0)
        return r;
    char *o = b->p + b->n;
    size_t i = 0;
    for (; i + 3 <= n; i += 3) {
        uint32_t v = (uint32_t)c[i] << 16 | (uint32_t)c[i + 1] << 8 | c[i + 2];
        *o++ = set[v >> 18];
        *o++ = set[v >> 12 & 63];
        *o++ = set[v >> 6 & 63];
        *o++ = set[v & 63];
    }
    if (i < n) {
        uint32_t v = (uint32_t)c[i] << 16 | (i + 1 < n ? (uint32_t)c[i + 1] << 8 : 0);
        *o++ = set[v >> 18];
        *o++ = set[v >> 12 & 63];
        *o++ = i + 1 < n ? set[v >> 6 & 63] : '=';
        *o++ = '=';
    }
    b->n = (size_t)(o - b->p);
    *o = '\0';
    return 0;
}

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == '+' || c == '-')
        return 62;
    if (c == '/' || c == '_')
        return 63;
    return -1;
}

int hf_unbase64_add(struct hf_buf *b, struct hf_str s)
{
    while (s.n && s.p[s.n - 1] == '=')
        s.n--;
    if (s.n % 4 == 1)
        return -EINVAL;
    size_t start = b->n;
    int r = hf_buf_reserve(b, s.n / 4 * 3 + 3);
    if (r < 0)
        return r;
    uint32_t v = 0;
    char *o = b->p + b->n;
    for (size_t i = 0; i < s.n; i++) {
        int d = base64_digit(s.p[i]);
        if (d < 0) {
            b->n = start;
            b->p[start] = '\0';
            return -EINVAL;
        }
        v = v << 6 | (uint32_t)d;
        if (i % 4 == 3) {
            *o++ = (char)(v >> 16);
            *o++ = (char)(v >> 8);
            *o++ = (char)v;
        }
    }
    if (s.n % 4 == 2) {
        *o++ = (char)(v >> 4);
    } else if (s.n % 4 == 3) {
        *o++ = (char)(v >> 10);
        *o++ = (char)(v >> 2);
    }
    b->n = (size_t)(o - b->p);
    *o = '\0';
    return 0;
}
