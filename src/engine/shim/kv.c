#include "engine/shim/kv.h"

#include <inttypes.h>

int hf_kv_add(struct hf_buf *b, const char *key, const char *value)
{
    if (strchr(value, '\n'))
        return -EINVAL;
    return hf_buf_addf(b, "%s=%s\n", key, value);
}

int hf_kv_add_u64(struct hf_buf *b, const char *key, uint64_t value)
{
    return hf_buf_addf(b, "%s=%" PRIu64 "\n", key, value);
}

int hf_kv_add_int(struct hf_buf *b, const char *key, int64_t value)
{
    return hf_buf_addf(b, "%s=%" PRId64 "\n", key, value);
}

bool hf_kv_next(struct hf_str text, size_t *pos, struct hf_str *ret_key, struct hf_str *ret_value)
{
    if (*pos >= text.n)
        return false;
    const char *line = text.p + *pos;
    size_t left = text.n - *pos;
    const char *end = memchr(line, '\n', left);
    size_t n = end ? (size_t)(end - line) : left;
    *pos += end ? n + 1 : n;
    const char *eq = memchr(line, '=', n);
    *ret_key = (struct hf_str){line, eq ? (size_t)(eq - line) : n};
    *ret_value = eq ? (struct hf_str){eq + 1, n - (size_t)(eq - line) - 1} : (struct hf_str){NULL, 0};
    return true;
}

struct hf_str hf_kv_get(struct hf_str text, const char *key)
{
    struct hf_str k, v;
    for (size_t pos = 0; hf_kv_next(text, &pos, &k, &v);)
        if (v.p && hf_str_eq(k, key))
            return v;
    return (struct hf_str){NULL, 0};
}

uint64_t hf_kv_u64(struct hf_str text, const char *key, uint64_t fallback)
{
    uint64_t v;
    return hf_parse_u64(hf_kv_get(text, key), UINT64_MAX, &v) < 0 ? fallback : v;
}

int64_t hf_kv_int(struct hf_str text, const char *key, int64_t fallback)
{
    struct hf_str s = hf_kv_get(text, key);
    bool minus = s.n && s.p[0] == '-';
    if (minus)
        s = (struct hf_str){s.p + 1, s.n - 1};
    uint64_t v;
    if (hf_parse_u64(s, INT64_MAX, &v) < 0)
        return fallback;
    return minus ? -(int64_t)v : (int64_t)v;
}

int hf_kv_copy(struct hf_str text, const char *key, char *out, size_t cap)
{
    struct hf_str s = hf_kv_get(text, key);
    out[0] = '\0';
    if (s.n >= cap)
        return -ENAMETOOLONG;
    if (s.n)
        memcpy(out, s.p, s.n);
    out[s.n] = '\0';
    return 0;
}
