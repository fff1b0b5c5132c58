/* Host names and paths as policies compare them. */
#include "egress/policy_int.h"

/* ---- names ---- */

static bool is_label_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static bool label_ok(const char *p, size_t n)
{
    if (n == 0 || n > 63 || p[0] == '-' || p[n - 1] == '-')
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!is_label_char(p[i]))
            return false;
    }
    return true;
}

/* URL parsers read a host whose last label is a number as an IPv4 address ("0x7f.1", "2130706433"): such a
 * text must never pass as a name. */
static bool is_number(const char *p, size_t n)
{
    size_t i = n > 1 && p[0] == '0' && p[1] == 'x' ? 2 : 0;
    bool hex = i == 2;
    for (; i < n; i++) {
        if (!((p[i] >= '0' && p[i] <= '9') || (hex && p[i] >= 'a' && p[i] <= 'f')))
            return false;
    }
    return true;
}

int hf_name_normal(struct hf_str host, char out[254])
{
    char name[254];
    if (host.n && host.p[host.n - 1] == '.')
        host.n--;
    if (host.n == 0 || host.n > 253)
        return -EINVAL;
    for (size_t i = 0; i < host.n; i++) {
        char c = host.p[i];
        name[i] = (char)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    }
    name[host.n] = '\0';
    size_t at = 0, last = 0;
    while (at <= host.n) {
        const char *dot = memchr(name + at, '.', host.n - at);
        size_t n = (dot ? (size_t)(dot - name) : host.n) - at;
        if (!label_ok(name + at, n))
            return -EINVAL;
        last = at;
        at += n + 1;
    }
    if (is_number(name + last, host.n - last))
        return -EINVAL;
    memcpy(out, name, host.n + 1);
    return 0;
}

bool hf_name_match(const char *pattern, const char *name)
{
    if (pattern[0] != '*' || pattern[1] != '.')
        return strcmp(pattern, name) == 0;
    size_t suffix = strlen(pattern + 1), n = strlen(name);
    return n > suffix && strcmp(name + (n - suffix), pattern + 1) == 0;
}

/* ---- paths ---- */

#define DECODE_PASSES 4 /* origins behind proxies may decode more than once */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte of "%XX" at p[i], or -1. */
static int escape_at(const char *p, size_t n, size_t i)
{
    if (i + 2 >= n || p[i] != '%')
        return -1;
    int hi = hex_digit(p[i + 1]), lo = hex_digit(p[i + 2]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

static bool unreserved(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

static bool control(int c)
{
    return c < 0x20 || c == 0x7f;
}

static int decode_unreserved(struct hf_str in, struct hf_buf *out)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < in.n; i++) {
        int c = (unsigned char)in.p[i];
        if (control(c))
            return -EINVAL;
        if (c != '%') {
            r = hf_buf_add(out, &in.p[i], 1);
            continue;
        }
        c = escape_at(in.p, in.n, i);
        if (c < 0 || control(c))
            return -EINVAL;
        r = unreserved(c) ? hf_buf_addf(out, "%c", c) : hf_buf_addf(out, "%%%02X", c);
        i += 2;
    }
    return r;
}

/* In place; false when nothing was left to decode. A '%' that begins no escape stays. */
static bool decode_once(struct hf_buf *b)
{
    size_t w = 0;
    for (size_t i = 0; i < b->n; i++) {
        int c = escape_at(b->p, b->n, i);
        if (c >= 0)
            i += 2;
        else
            c = (unsigned char)b->p[i];
        b->p[w++] = (char)c;
    }
    bool changed = w != b->n;
    b->n = w;
    return changed;
}

/* RFC 3986 5.2.4 on a path that begins with '/'; in place. merge: empty segments go as well. */
static void remove_dots(struct hf_buf *b, bool merge)
{
    size_t w = 0, i = 0;
    while (i < b->n) { /* at a '/' */
        size_t end = i + 1;
        while (end < b->n && b->p[end] != '/')
            end++;
        size_t n = end - i - 1;
        const char *seg = b->p + i + 1;
        bool last = end == b->n;
        bool one = n == 1 && seg[0] == '.', two = n == 2 && seg[0] == '.' && seg[1] == '.';
        if (two) {
            while (w > 0 && b->p[--w] != '/')
                ;
        }
        if ((one || two || (merge && n == 0)) && last)
            b->p[w++] = '/';
        else if (!one && !two && !(merge && n == 0)) {
            memmove(b->p + w, b->p + i, end - i);
            w += end - i;
        }
        i = end;
    }
    b->n = w;
}

/* "/a;v=1/b" -> "/a/b": some servers drop parameters before they resolve dots. */
static void drop_parameters(struct hf_buf *b)
{
    size_t w = 0;
    bool dropping = false;
    for (size_t i = 0; i < b->n; i++) {
        char c = b->p[i] == '\\' ? '/' : b->p[i];
        dropping = c != '/' && (dropping || c == ';');
        if (!dropping)
            b->p[w++] = c;
    }
    b->n = w;
}

static int loosen(struct hf_str path, struct hf_buf *out)
{
    int r = hf_buf_add(out, path.p, path.n);
    if (r < 0)
        return r;
    for (int i = 0; i < DECODE_PASSES && decode_once(out); i++)
        ;
    for (size_t i = 0; i < out->n; i++) {
        if (control((unsigned char)out->p[i]))
            return -EINVAL;
    }
    drop_parameters(out);
    remove_dots(out, true);
    return 0;
}

void hf_path_forms_done(struct hf_path_forms *f)
{
    hf_buf_done(&f->strict);
    hf_buf_done(&f->loose);
}

int hf_path_forms(struct hf_str path, struct hf_path_forms *ret)
{
    *ret = (struct hf_path_forms){HF_BUF_INIT(HF_POLICY_REQ_PATH_MAX), HF_BUF_INIT(HF_POLICY_REQ_PATH_MAX)};
    for (size_t i = 0; i < path.n; i++) {
        if (path.p[i] == '?' || path.p[i] == '#')
            path.n = i;
    }
    int r = path.n == 0 || path.p[0] != '/' ? -EINVAL : decode_unreserved(path, &ret->strict);
    if (r == 0) {
        remove_dots(&ret->strict, false);
        r = loosen(path, &ret->loose);
    }
    if (r < 0)
        hf_path_forms_done(ret);
    return r;
}

bool hf_path_match(struct hf_str pattern, struct hf_str path)
{
    if (pattern.n && pattern.p[pattern.n - 1] == '*')
        return path.n >= pattern.n - 1 && memcmp(path.p, pattern.p, pattern.n - 1) == 0;
    return path.n == pattern.n && memcmp(path.p, pattern.p, path.n) == 0;
}

int hf_path_pattern(const char *text, char **ret_strict, char **ret_loose)
{
    struct hf_path_forms f;
    size_t n = strlen(text);
    if (n > HF_POLICY_PATH_MAX || (n && memchr(text, '*', n - 1)) || strpbrk(text, "?#"))
        return -EINVAL;
    if (n == 0) {
        *ret_strict = hf_xstrdup("");
        *ret_loose = hf_xstrdup("");
        return 0;
    }
    int r = hf_path_forms((struct hf_str){text, n}, &f);
    if (r < 0)
        return r;
    *ret_strict = hf_xstrndup(f.strict.p, f.strict.n);
    *ret_loose = hf_xstrndup(f.loose.p, f.loose.n);
    hf_path_forms_done(&f);
    return 0;
}
