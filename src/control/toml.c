#include "control/toml.h"

#include <stdio.h>

#include "base/buf.h"
#include "base/map.h"

struct parser {
    const char *p, *end;
    unsigned line;
    char table[HF_TOML_KEY_MAX + 1]; /* of the last [header], "" at the top */
    struct hf_map seen;              /* full keys and "[table]" headers */
    struct hf_buf value;
    hf_toml_fn fn;
    void *arg;
    struct hf_err *err;
};

#define fail(t, r, ...) hf_err_set((t)->err, (r), __VA_ARGS__)

static bool at_end_of_line(const struct parser *t)
{
    return t->p == t->end || *t->p == '\n' || (*t->p == '\r' && t->p + 1 < t->end && t->p[1] == '\n');
}

static void skip_blanks(struct parser *t)
{
    while (t->p < t->end && (*t->p == ' ' || *t->p == '\t'))
        t->p++;
}

static bool is_control(char c)
{
    return ((unsigned char)c < 0x20 && c != '\t') || c == 0x7f;
}

/* After a value or header: blanks, a comment, and the end of the line. */
static int end_line(struct parser *t)
{
    skip_blanks(t);
    if (t->p < t->end && *t->p == '#')
        while (!at_end_of_line(t)) {
            if (is_control(*t->p))
                return fail(t, -EINVAL, "line %u: control character in a comment", t->line);
            t->p++;
        }
    if (!at_end_of_line(t))
        return fail(t, -EINVAL, "line %u: unexpected text after the value; one setting a line", t->line);
    if (t->p < t->end && *t->p == '\r')
        t->p++;
    if (t->p < t->end)
        t->p++;
    t->line++;
    return 0;
}

static bool is_bare(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* Appends a dotted key to what out holds already (the table's name). */
static int parse_key(struct parser *t, char out[HF_TOML_KEY_MAX + 1])
{
    size_t n = strlen(out);
    for (;;) {
        skip_blanks(t);
        const char *start = t->p;
        while (t->p < t->end && is_bare(*t->p))
            t->p++;
        size_t len = (size_t)(t->p - start);
        if (!len)
            return fail(t, -EINVAL, "line %u: expected a key of letters, digits, '_' or '-'", t->line);
        if (n + (n > 0) + len > HF_TOML_KEY_MAX)
            return fail(t, -EMSGSIZE, "line %u: key longer than %u bytes", t->line, HF_TOML_KEY_MAX);
        if (n)
            out[n++] = '.';
        memcpy(out + n, start, len);
        n += len;
        out[n] = '\0';
        skip_blanks(t);
        if (t->p == t->end || *t->p != '.')
            return 0;
        t->p++;
    }
}

static int remember(struct parser *t, const char *name)
{
    if (hf_map_put(&t->seen, hf_str_c(name), t))
        return fail(t, -EINVAL, "line %u: %s is given twice", t->line, name);
    return 0;
}

static int parse_header(struct parser *t)
{
    char name[HF_TOML_KEY_MAX + 3];
    t->p++;
    if (t->p < t->end && *t->p == '[')
        return fail(t, -EINVAL, "line %u: arrays of tables are not supported", t->line);
    t->table[0] = '\0';
    int r = parse_key(t, t->table);
    if (r < 0)
        return r;
    if (t->p == t->end || *t->p != ']')
        return fail(t, -EINVAL, "line %u: expected ']' after the table's name", t->line);
    t->p++;
    (void)snprintf(name, sizeof(name), "[%s]", t->table);
    r = remember(t, name);
    return r < 0 ? r : end_line(t);
}

static int add_utf8(struct parser *t, uint32_t c)
{
    char u[4];
    size_t n;
    if (c == 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return fail(t, -EINVAL, "line %u: that escape is no character a setting may hold", t->line);
    if (c < 0x80) {
        u[0] = (char)c;
        n = 1;
    } else if (c < 0x800) {
        u[0] = (char)(0xc0 | (c >> 6));
        n = 2;
    } else if (c < 0x10000) {
        u[0] = (char)(0xe0 | (c >> 12));
        n = 3;
    } else {
        u[0] = (char)(0xf0 | (c >> 18));
        n = 4;
    }
    for (size_t i = 1; i < n; i++)
        u[i] = (char)(0x80 | ((c >> (6 * (n - 1 - i))) & 0x3f));
    return hf_buf_add(&t->value, u, n);
}

static int parse_unicode(struct parser *t, size_t digits)
{
    uint32_t c = 0;
    for (size_t i = 0; i < digits; i++, t->p++) {
        char d = t->p < t->end ? *t->p : '\0';
        uint32_t v;
        if (d >= '0' && d <= '9')
            v = (uint32_t)(d - '0');
        else if ((d | 0x20) >= 'a' && (d | 0x20) <= 'f')
            v = (uint32_t)((d | 0x20) - 'a' + 10);
        else
            return fail(t, -EINVAL, "line %u: \\u takes 4 and \\U takes 8 hex digits", t->line);
        c = c << 4 | v;
    }
    return add_utf8(t, c);
}

static int parse_escape(struct parser *t)
{
    static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
    t->p++;
    char c = t->p < t->end ? *t->p : '\0';
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        t->p++;
        return hf_buf_add(&t->value, &to[at - from], 1);
    }
    if (c != 'u' && c != 'U')
        return fail(t, -EINVAL, "line %u: unknown escape; write \\\\ for a backslash", t->line);
    t->p++;
    return parse_unicode(t, c == 'u' ? 4 : 8);
}

static int parse_string(struct parser *t)
{
    char quote = *t->p;
    if (t->end - t->p >= 3 && t->p[1] == quote && t->p[2] == quote)
        return fail(t, -EINVAL, "line %u: multi-line strings are not supported", t->line);
    for (t->p++; t->p < t->end && *t->p != quote;) {
        int r;
        if (*t->p == '\\' && quote == '"') {
            r = parse_escape(t);
        } else if (is_control(*t->p)) {
            return fail(t, -EINVAL, "line %u: %s", t->line,
                        at_end_of_line(t) ? "the string does not end on its line"
                                          : "control character in a string; write it as an escape");
        } else {
            r = hf_buf_add(&t->value, t->p++, 1);
        }
        if (r == -EMSGSIZE)
            return fail(t, r, "line %u: string longer than %u bytes", t->line, HF_TOML_STRING_MAX);
        if (r < 0)
            return r;
    }
    if (t->p == t->end)
        return fail(t, -EINVAL, "line %u: the string does not end", t->line);
    t->p++;
    return hf_buf_add(&t->value, "", 0);
}

/* Sign, digits with single underscores between them, no leading zero. */
static bool parse_integer(struct hf_str s, int64_t *ret)
{
    bool negative = s.p[0] == '-';
    size_t i = s.p[0] == '-' || s.p[0] == '+';
    int64_t v = 0;
    if (i == s.n || (s.p[i] == '0' && s.n > i + 1))
        return false;
    for (bool digit = false; i < s.n; i++) {
        if (s.p[i] == '_' && digit && i + 1 < s.n) {
            digit = false;
            continue;
        }
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        digit = true;
        int d = s.p[i] - '0';
        if (__builtin_mul_overflow(v, (int64_t)10, &v) ||
            (negative ? __builtin_sub_overflow(v, (int64_t)d, &v)
                      : __builtin_add_overflow(v, (int64_t)d, &v)))
            return false;
    }
    *ret = v;
    return true;
}

static int parse_plain(struct parser *t, struct hf_toml_value *v)
{
    struct hf_str s = {t->p, 0};
    while (t->p < t->end && (is_bare(*t->p) || *t->p == '+' || *t->p == '.' || *t->p == ':'))
        t->p++;
    s.n = (size_t)(t->p - s.p);
    if (hf_str_eq(s, "true") || hf_str_eq(s, "false")) {
        v->type = HF_TOML_BOOLEAN;
        v->boolean = s.p[0] == 't';
        return hf_buf_add(&t->value, s.p, s.n);
    }
    if (s.n && parse_integer(s, &v->integer)) {
        v->type = HF_TOML_INTEGER;
        return hf_buf_addf(&t->value, "%lld", (long long)v->integer);
    }
    return fail(t, -EINVAL, "line %u: %.*s%s is no value here; write \"text\", a whole number, true or false",
                t->line, (int)HF_MIN(s.n, (size_t)40), s.p, s.n ? "" : "that");
}

static int parse_value(struct parser *t, struct hf_toml_value *v)
{
    char c = t->p < t->end ? *t->p : '\n';
    hf_buf_clear(&t->value);
    if (c == '"' || c == '\'') {
        v->type = HF_TOML_STRING;
        return parse_string(t);
    }
    if (c == '[' || c == '{')
        return fail(t, -EINVAL, "line %u: %s are not supported here", t->line,
                    c == '[' ? "arrays" : "inline tables");
    if (at_end_of_line(t) || c == '#')
        return fail(t, -EINVAL, "line %u: the value is missing after '='", t->line);
    return parse_plain(t, v);
}

static int parse_pair(struct parser *t)
{
    char key[HF_TOML_KEY_MAX + 1];
    struct hf_toml_value v = {.line = t->line};
    (void)snprintf(key, sizeof(key), "%s", t->table);
    int r = parse_key(t, key);
    if (r < 0)
        return r;
    if (t->p == t->end || *t->p != '=')
        return fail(t, -EINVAL, "line %u: expected '=' after the key '%s'", t->line, key);
    t->p++;
    skip_blanks(t);
    r = remember(t, key);
    if (r == 0)
        r = parse_value(t, &v);
    if (r == 0)
        r = end_line(t);
    if (r < 0)
        return r;
    v.text = t->value.p;
    return t->fn(t->arg, key, &v, t->err);
}

int hf_toml_parse(struct hf_str text, hf_toml_fn fn, void *arg, struct hf_err *err)
{
    struct parser t = {.p = text.p, .end = text.p + text.n, .line = 1, .fn = fn, .arg = arg, .err = err};
    int r = 0;
    t.value = HF_BUF_INIT(HF_TOML_STRING_MAX);
    if (text.n > HF_TOML_SIZE_MAX)
        return hf_err_set(err, -EMSGSIZE, "the file is larger than %u bytes", HF_TOML_SIZE_MAX);
    while (r == 0 && t.p < t.end) {
        skip_blanks(&t);
        if (t.p < t.end && *t.p == '[')
            r = parse_header(&t);
        else if (at_end_of_line(&t) || *t.p == '#')
            r = end_line(&t);
        else
            r = parse_pair(&t);
    }
    hf_map_done(&t.seen);
    hf_buf_done(&t.value);
    return r;
}
