#include "cli/url.h"

#include <stdarg.h>

static bool unreserved(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

int hf_url_escape(struct hf_buf *b, const char *s)
{
    int r = 0;
    for (; *s && r == 0; s++)
        r = unreserved((unsigned char)*s) ? hf_buf_add(b, s, 1) : hf_buf_addf(b, "%%%02X", (unsigned char)*s);
    return r;
}

int hf_url_query(struct hf_buf *b, const char *name, const char *value)
{
    if (!value)
        return 0;
    int r = hf_buf_addf(b, "%c%s=", b->p && strchr(b->p, '?') ? '&' : '?', name);
    return r < 0 ? r : hf_url_escape(b, value);
}

int hf_url_path(struct hf_buf *b, const char *fmt, ...)
{
    va_list ap;
    int r = 0;
    va_start(ap, fmt);
    for (; *fmt && r == 0; fmt++) {
        if (fmt[0] == '%' && fmt[1] == 's') {
            r = hf_url_escape(b, va_arg(ap, const char *));
            fmt++;
        } else {
            r = hf_buf_add(b, fmt, 1);
        }
    }
    va_end(ap);
    return r;
}

static int escape_twice(struct hf_buf *b, const char *s)
{
    hf_auto_buf struct hf_buf once = HF_BUF_INIT(b->max);
    int r = hf_url_escape(&once, s);
    return r < 0 ? r : hf_url_escape(b, once.p ? once.p : "");
}

int hf_url_metadata(struct hf_buf *b, const char *pair)
{
    const char *eq = strchr(pair, '=');
    if (!eq || eq == pair)
        return -EINVAL;
    hf_auto_free char *key = hf_xstrndup(pair, (size_t)(eq - pair));
    int r = b->n ? hf_buf_adds(b, "&") : 0;
    if (r == 0)
        r = escape_twice(b, key);
    if (r == 0)
        r = hf_buf_adds(b, "=");
    return r < 0 ? r : escape_twice(b, eq + 1);
}

int hf_url_base(const char *s, char **ret, struct hf_err *err)
{
    size_t n = strlen(s), scheme = 0;
    if (strncmp(s, "http://", 7) == 0)
        scheme = 7;
    else if (strncmp(s, "https://", 8) == 0)
        scheme = 8;
    while (n > scheme && s[n - 1] == '/')
        n--;
    if (!scheme || n == scheme || s[scheme] == ':' || s[scheme] == '/')
        return hf_err_set(err, -EINVAL, "'%s' is no address of a daemon; write it as http://127.0.0.1:3000",
                          s);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] <= ' ' || s[i] == '?' || s[i] == '#' || s[i] == 0x7f)
            return hf_err_set(err, -EINVAL, "'%s' must end after the host, port and path", s);
    *ret = hf_xstrndup(s, n);
    return 0;
}
