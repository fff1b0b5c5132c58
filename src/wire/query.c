/* Percent-encoding and query strings. */
#include "wire/http.h"

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte at s.p[*i]; moves *i past it. -EINVAL for bad encoding or NUL. */
static int decode_one(struct hf_str s, size_t *i, bool plus_is_space)
{
    unsigned char c = (unsigned char)s.p[(*i)++];
    if (c == '+' && plus_is_space)
        return ' ';
    if (c != '%')
        return c ? c : -EINVAL;
    if (s.n - *i < 2)
        return -EINVAL;
    int hi = hex(s.p[*i]), lo = hex(s.p[*i + 1]);
    *i += 2;
    if (hi < 0 || lo < 0 || (hi == 0 && lo == 0))
        return -EINVAL;
    return hi * 16 + lo;
}

int hf_percent_decode(struct hf_str s, bool plus_is_space, struct hf_buf *out)
{
    size_t before = out->n;
    for (size_t i = 0; i < s.n;) {
        int c = decode_one(s, &i, plus_is_space);
        char b = (char)c;
        int r = c < 0 ? c : hf_buf_add(out, &b, 1);
        if (r < 0) {
            out->n = before;
            return r;
        }
    }
    return hf_buf_add(out, "", 0);
}

/* Compares the encoded key with a plain name. 1 equal, 0 not, -EINVAL bad encoding. */
static int key_is(struct hf_str key, const char *name)
{
    size_t n = strlen(name), k = 0;
    bool equal = true;
    for (size_t i = 0; i < key.n; k++) {
        int c = decode_one(key, &i, true);
        if (c < 0)
            return c;
        equal = equal && k < n && (unsigned char)name[k] == c;
    }
    return equal && k == n;
}

int hf_query_get(struct hf_str query, const char *name, struct hf_buf *out)
{
    size_t i = 0;
    while (i < query.n) {
        const char *p = query.p + i;
        const char *amp = memchr(p, '&', query.n - i);
        size_t n = amp ? (size_t)(amp - p) : query.n - i;
        i += n + 1;
        const char *eq = memchr(p, '=', n);
        struct hf_str key = {p, eq ? (size_t)(eq - p) : n};
        int r = key_is(key, name);
        if (r < 0)
            return r;
        if (!r)
            continue;
        struct hf_str value = eq ? (struct hf_str){eq + 1, n - key.n - 1} : (struct hf_str){p + n, 0};
        r = hf_percent_decode(value, true, out);
        return r < 0 ? r : 1;
    }
    return 0;
}
