#include "envd/content.h"

#include <stdio.h>
#include <strings.h>
#include <time.h>

static struct hf_str trim(struct hf_str s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t')) {
        s.p++;
        s.n--;
    }
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s.n--;
    return s;
}

/* Cuts the next piece up to sep off *rest, trimmed; false at the end. */
static bool next_piece(struct hf_str *rest, char sep, struct hf_str *ret)
{
    if (!rest->p)
        return false;
    const char *end = rest->n ? memchr(rest->p, sep, rest->n) : NULL;
    size_t n = end ? (size_t)(end - rest->p) : rest->n;
    *ret = trim((struct hf_str){rest->p, n});
    *rest = end ? (struct hf_str){end + 1, rest->n - n - 1} : (struct hf_str){0};
    return true;
}

enum content_range content_range(struct hf_str header, uint64_t size, uint64_t *ret_first, uint64_t *ret_n)
{
    header = trim(header);
    if (!header.n || header.n > CONTENT_RANGE_HEADER_MAX || header.n < 6 ||
        strncasecmp(header.p, "bytes=", 6) != 0)
        return CONTENT_RANGE_NONE;
    struct hf_str spec = trim((struct hf_str){header.p + 6, header.n - 6});
    /* Several ranges would be multipart/byteranges; a server may send the whole instead. */
    if (!spec.n || memchr(spec.p, ',', spec.n))
        return CONTENT_RANGE_NONE;
    const char *dash = memchr(spec.p, '-', spec.n);
    if (!dash)
        return CONTENT_RANGE_NONE;
    struct hf_str a = trim((struct hf_str){spec.p, (size_t)(dash - spec.p)});
    struct hf_str b = trim((struct hf_str){dash + 1, spec.n - (size_t)(dash - spec.p) - 1});
    uint64_t first = 0, last = UINT64_MAX;
    int ra = a.n ? hf_parse_u64(a, UINT64_MAX, &first) : 0, rb = b.n ? hf_parse_u64(b, UINT64_MAX, &last) : 0;
    if (ra == -EINVAL || rb == -EINVAL || (!a.n && !b.n))
        return CONTENT_RANGE_NONE;
    if (!a.n) { /* the last b bytes */
        uint64_t n = rb == -ERANGE ? size : HF_MIN(last, size);
        if (!n)
            return CONTENT_RANGE_BAD;
        *ret_first = size - n;
        *ret_n = n;
        return CONTENT_RANGE_ONE;
    }
    if (ra == 0 && rb == 0 && last < first)
        return CONTENT_RANGE_NONE;
    if (ra == -ERANGE || first >= size)
        return CONTENT_RANGE_BAD;
    if (rb == -ERANGE || last >= size)
        last = size - 1;
    *ret_first = first;
    *ret_n = last - first + 1;
    return CONTENT_RANGE_ONE;
}

/* Quality of `name;q=0.5` in thousandths; 1000 when there is none or it is not understood. */
static unsigned quality(struct hf_str params)
{
    struct hf_str p;
    while (next_piece(&params, ';', &p)) {
        if (p.n < 3 || (p.p[0] != 'q' && p.p[0] != 'Q') || p.p[1] != '=')
            continue;
        unsigned q = 0, scale = 1000;
        for (size_t i = 2; i < p.n; i++) {
            if (p.p[i] == '.')
                continue;
            if (p.p[i] < '0' || p.p[i] > '9')
                return 1000;
            q += (unsigned)(p.p[i] - '0') * scale;
            scale /= 10;
        }
        return HF_MIN(q, 1000u);
    }
    return 1000;
}

enum content_coding content_accept(struct hf_str header)
{
    int gzip = -1, identity = -1, any = -1;
    bool others = false;
    struct hf_str piece;
    while (next_piece(&header, ',', &piece)) {
        const char *semi = piece.n ? memchr(piece.p, ';', piece.n) : NULL;
        size_t n = semi ? (size_t)(semi - piece.p) : piece.n;
        struct hf_str name = trim((struct hf_str){piece.p, n});
        int q = semi ? (int)quality((struct hf_str){semi + 1, piece.n - n - 1}) : 1000;
        if (hf_str_caseeq(name, "gzip") || hf_str_caseeq(name, "x-gzip"))
            gzip = q;
        else if (hf_str_caseeq(name, "identity"))
            identity = q;
        else if (hf_str_eq(name, "*"))
            any = q;
        else if (name.n && q)
            others = true;
    }
    bool identity_ok = identity > 0 || (identity < 0 && any != 0);
    if (gzip < 0 && any > 0 && !identity_ok)
        gzip = any;
    if (gzip <= 0)
        return identity_ok ? CONTENT_IDENTITY : CONTENT_NONE;
    if (!identity_ok)
        return CONTENT_GZIP;
    if (identity > gzip)
        return CONTENT_IDENTITY;
    return others ? CONTENT_GZIP_MAYBE : CONTENT_GZIP;
}

int content_encoding(struct hf_str header, struct hf_err *err)
{
    header = trim(header);
    if (!header.n || hf_str_caseeq(header, "identity"))
        return 0;
    if (hf_str_caseeq(header, "gzip") || hf_str_caseeq(header, "x-gzip"))
        return 1;
    return hf_err_http(
        err, -EINVAL, 400,
        "error decompressing request body: unsupported Content-Encoding: %.*s, supported: [gzip]",
        (int)HF_MIN(header.n, (size_t)64), header.p);
}

void content_etag(const struct stat *st, char out[CONTENT_ETAG_MAX])
{
    unsigned long long ns =
        (unsigned long long)st->st_mtim.tv_sec * 1000000000ull + (unsigned long long)st->st_mtim.tv_nsec;
    (void)snprintf(out, CONTENT_ETAG_MAX, "\"%llx-%llx-%llx\"", ns, (unsigned long long)st->st_size,
                   (unsigned long long)(st->st_ino & 0xffffffffu));
}

void content_date(time_t t, char out[CONTENT_DATE_MAX])
{
    struct tm tm;
    if (!gmtime_r(&t, &tm) || !strftime(out, CONTENT_DATE_MAX, "%a, %d %b %Y %H:%M:%S GMT", &tm))
        out[0] = '\0';
}

int content_date_parse(struct hf_str s, time_t *ret)
{
    char text[CONTENT_DATE_MAX], again[CONTENT_DATE_MAX];
    s = trim(s);
    if (s.n != 29)
        return -EINVAL;
    memcpy(text, s.p, s.n);
    text[s.n] = '\0';
    struct tm tm = {0};
    const char *end = strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    if (!end || *end)
        return -EINVAL;
    time_t t = timegm(&tm);
    content_date(t, again); /* strptime takes 31 Feb and a wrong day of the week */
    if (strcmp(text, again) != 0)
        return -EINVAL;
    *ret = t;
    return 0;
}

/* Weak comparison against a list of tags. */
static bool etag_listed(struct hf_str list, const char *etag)
{
    struct hf_str tag;
    while (next_piece(&list, ',', &tag)) {
        if (hf_str_eq(tag, "*"))
            return true;
        if (hf_str_starts(tag, "W/")) {
            tag.p += 2;
            tag.n -= 2;
        }
        if (hf_str_eq(tag, etag))
            return true;
    }
    return false;
}

bool content_not_modified(struct hf_str if_none_match, struct hf_str if_modified_since, const char *etag,
                          time_t mtime)
{
    if (if_none_match.p)
        return etag_listed(if_none_match, etag);
    time_t since;
    return if_modified_since.p && content_date_parse(if_modified_since, &since) == 0 && mtime <= since;
}

bool content_if_range(struct hf_str if_range, const char *etag, time_t mtime)
{
    if (!if_range.p)
        return true;
    time_t t;
    if (content_date_parse(if_range, &t) == 0)
        return t == mtime;
    return hf_str_eq(trim(if_range), etag); /* strong comparison: W/ never matches */
}

static const struct {
    const char *ext, *type;
} types[] = {
    {"avif", "image/avif"},
    {"bz2", "application/x-bzip2"},
    {"c", "text/plain; charset=utf-8"},
    {"css", "text/css; charset=utf-8"},
    {"csv", "text/csv; charset=utf-8"},
    {"docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"},
    {"gif", "image/gif"},
    {"gz", "application/gzip"},
    {"h", "text/plain; charset=utf-8"},
    {"htm", "text/html; charset=utf-8"},
    {"html", "text/html; charset=utf-8"},
    {"ico", "image/x-icon"},
    {"jpeg", "image/jpeg"},
    {"jpg", "image/jpeg"},
    {"js", "text/javascript; charset=utf-8"},
    {"json", "application/json"},
    {"log", "text/plain; charset=utf-8"},
    {"md", "text/markdown; charset=utf-8"},
    {"mjs", "text/javascript; charset=utf-8"},
    {"mp3", "audio/mpeg"},
    {"mp4", "video/mp4"},
    {"pdf", "application/pdf"},
    {"png", "image/png"},
    {"pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"},
    {"py", "text/x-python; charset=utf-8"},
    {"sh", "application/x-sh"},
    {"svg", "image/svg+xml"},
    {"tar", "application/x-tar"},
    {"toml", "application/toml"},
    {"txt", "text/plain; charset=utf-8"},
    {"wasm", "application/wasm"},
    {"wav", "audio/wav"},
    {"webm", "video/webm"},
    {"webp", "image/webp"},
    {"woff2", "font/woff2"},
    {"xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"},
    {"xml", "text/xml; charset=utf-8"},
    {"yaml", "application/yaml"},
    {"yml", "application/yaml"},
    {"zip", "application/zip"},
};

/* The start of the WHATWG "MIME Sniffing" tables that matters without an extension. */
static const char *sniff(const unsigned char *p, size_t n)
{
    static const struct {
        const char *magic, *type;
        size_t n;
    } magics[] = {
        {"\x89PNG\r\n\x1a\n", "image/png", 8},    {"GIF8", "image/gif", 4},
        {"\xff\xd8\xff", "image/jpeg", 3},        {"%PDF-", "application/pdf", 5},
        {"PK\x03\x04", "application/zip", 4},     {"\x1f\x8b\x08", "application/x-gzip", 3},
        {"\0asm", "application/wasm", 4},         {"<!DOCTYPE HTML", "text/html; charset=utf-8", 14},
        {"<html", "text/html; charset=utf-8", 5}, {"<?xml", "text/xml; charset=utf-8", 5},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(magics); i++) {
        if (n >= magics[i].n &&
            (memcmp(p, magics[i].magic, magics[i].n) == 0 ||
             (p[0] == '<' && strncasecmp((const char *)p, magics[i].magic, magics[i].n) == 0)))
            return magics[i].type;
    }
    n = HF_MIN(n, (size_t)CONTENT_SNIFF_MAX);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = p[i];
        if (c <= 0x08 || c == 0x0b || (c >= 0x0e && c <= 0x1a) || (c >= 0x1c && c <= 0x1f))
            return "application/octet-stream";
    }
    return "text/plain; charset=utf-8";
}

const char *content_type(const char *name, const void *head, size_t n)
{
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < HF_ARRAY_LEN(types); i++) {
        if (strcasecmp(dot + 1, types[i].ext) == 0)
            return types[i].type;
    }
    return sniff(head, n);
}

static bool is_token(const char *s)
{
    for (const char *p = s; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c <= 0x20 || c >= 0x7f || strchr("()<>@,;:\\\"/[]?=", c))
            return false;
    }
    return *s;
}

int content_disposition(const char *name, struct hf_buf *out)
{
    if (is_token(name))
        return hf_buf_addf(out, "inline; filename=%s", name);
    bool plain = true;
    for (const char *p = name; *p; p++)
        plain = plain && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x7f;
    int r = hf_buf_adds(out, plain ? "inline; filename=\"" : "inline; filename*=utf-8''");
    for (const char *p = name; r == 0 && *p; p++) {
        char one[2] = {*p, '\0'};
        if (plain)
            r = hf_buf_addf(out, "%s%c", *p == '"' || *p == '\\' ? "\\" : "", *p);
        else if (is_token(one) && *p != '%' && *p != '*' && *p != '\'')
            r = hf_buf_add(out, p, 1);
        else
            r = hf_buf_addf(out, "%%%02X", (unsigned char)*p);
    }
    return r == 0 && plain ? hf_buf_adds(out, "\"") : r;
}
