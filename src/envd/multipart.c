#include "envd/multipart.h"

#include <stdio.h>

#define NO_BOUNDARY "multipart: Content-Type has no usable boundary parameter"
#define PARAM_MAX MULTIPART_HEAD_MAX

static bool is_token_char(unsigned char c)
{
    return c > 0x20 && c < 0x7f && !strchr("()<>@,;:\\\"/[]?=", c);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* A backslash escapes a quote or a backslash only: old browsers send "C:\dir\file" unescaped, and that is
 * what everybody else's parser makes of it as well. */
static int read_quoted(struct hf_str v, size_t *pos, struct hf_buf *out)
{
    size_t i = *pos + 1;
    for (; i < v.n && v.p[i] != '"'; i++) {
        bool escape = v.p[i] == '\\' && i + 1 < v.n && (v.p[i + 1] == '"' || v.p[i + 1] == '\\');
        if (escape)
            i++;
        int r = out ? hf_buf_add(out, v.p + i, 1) : 0;
        if (r < 0)
            return r;
    }
    if (i >= v.n)
        return -EINVAL;
    *pos = i + 1;
    return 0;
}

static int read_value(struct hf_str v, size_t *pos, struct hf_buf *out)
{
    if (*pos < v.n && v.p[*pos] == '"')
        return read_quoted(v, pos, out);
    size_t start = *pos;
    while (*pos < v.n && v.p[*pos] != ';' && !is_blank(v.p[*pos]))
        (*pos)++;
    return out && *pos > start ? hf_buf_add(out, v.p + start, *pos - start) : 0;
}

int header_param(struct hf_str v, const char *name, struct hf_buf *out)
{
    size_t pos = 0;
    while (pos < v.n && v.p[pos] != ';')
        pos++;
    while (pos < v.n) {
        while (pos < v.n && (v.p[pos] == ';' || is_blank(v.p[pos])))
            pos++;
        size_t start = pos;
        while (pos < v.n && is_token_char((unsigned char)v.p[pos]))
            pos++;
        struct hf_str key = {v.p + start, pos - start};
        if (pos >= v.n || v.p[pos] != '=')
            return pos >= v.n && !key.n ? 0 : -EINVAL;
        pos++;
        bool hit = hf_str_caseeq(key, name);
        int r = read_value(v, &pos, hit ? out : NULL);
        if (r < 0)
            return r;
        while (pos < v.n && is_blank(v.p[pos]))
            pos++;
        if (pos < v.n && v.p[pos] != ';')
            return -EINVAL;
        if (hit)
            return 1;
    }
    return 0;
}

int multipart_init(struct multipart *m, struct hf_str content_type, const struct multipart_events *events,
                   void *self, struct hf_err *err)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(MULTIPART_BOUNDARY_MAX);
    int r = header_param(content_type, "boundary", &b);
    if (r <= 0 || !b.n)
        return hf_err_http(err, -EINVAL, 400, NO_BOUNDARY);
    for (size_t i = 0; i < b.n; i++) {
        if (b.p[i] < 0x20 || b.p[i] > 0x7e)
            return hf_err_http(err, -EINVAL, 400, NO_BOUNDARY);
    }
    *m = (struct multipart){.events = events, .self = self, .line = HF_BUF_INIT(MULTIPART_HEAD_MAX)};
    m->delim_n = (size_t)snprintf(m->delim, sizeof(m->delim), "\r\n--%s", b.p);
    /* The first boundary needs no CRLF before it. */
    m->held = 2;
    m->held_start = true;
    return 0;
}

void multipart_done(struct multipart *m)
{
    hf_buf_done(&m->line);
}

static int emit(struct multipart *m, const char *p, size_t n, struct hf_err *err)
{
    if (!n)
        return 0;
    if (m->state == MP_DATA)
        return m->events->on_data(m->self, p, n, err);
    m->preamble += n;
    if (m->preamble > MULTIPART_PREAMBLE_MAX)
        return hf_err_http(err, -EINVAL, 400, "multipart: no boundary in the first %u bytes",
                           MULTIPART_PREAMBLE_MAX);
    return 0;
}

static int at_delim(struct multipart *m, struct hf_err *err)
{
    bool in_part = m->state == MP_DATA;
    m->held = 0;
    m->held_start = false;
    m->state = MP_AFTER_DELIM;
    hf_buf_clear(&m->line);
    return in_part ? m->events->on_part_end(m->self, err) : 0;
}

/* Goes on with a delimiter that began in an earlier piece. Only its first byte is a CR, so a mismatch can't
 * hide the start of another one. Returns the bytes used. */
static ssize_t match_held(struct multipart *m, const char *p, size_t n, struct hf_err *err)
{
    size_t used = 0;
    while (m->held && used < n && m->held < m->delim_n && p[used] == m->delim[m->held]) {
        m->held++;
        used++;
    }
    int r = 0;
    if (m->held == m->delim_n) {
        r = at_delim(m, err);
    } else if (used < n) {
        size_t skip = m->held_start ? 2 : 0, k = m->held - skip;
        m->held = 0;
        m->held_start = false;
        r = emit(m, m->delim + skip, k, err);
    }
    return r < 0 ? r : (ssize_t)used;
}

/* Length of the longest end of p that begins a delimiter. */
static size_t tail_match(const struct multipart *m, const char *p, size_t n)
{
    size_t max = HF_MIN(n, m->delim_n - 1);
    const char *from = p + n - max;
    for (const char *cr; max && (cr = memchr(from, '\r', max)); from = cr + 1, max = (size_t)(p + n - from)) {
        size_t len = (size_t)(p + n - cr);
        if (memcmp(cr, m->delim, len) == 0)
            return len;
    }
    return 0;
}

/* Preamble and part data: everything up to the next delimiter. Returns the bytes used. */
static ssize_t feed_body(struct multipart *m, const char *p, size_t n, struct hf_err *err)
{
    if (m->held)
        return match_held(m, p, n, err);
    const char *hit = memmem(p, n, m->delim, m->delim_n);
    size_t data = hit ? (size_t)(hit - p) : n;
    size_t tail = hit ? 0 : tail_match(m, p, n);
    int r = emit(m, p, data - tail, err);
    if (r == 0 && hit)
        r = at_delim(m, err);
    else if (r == 0)
        m->held = tail;
    if (r < 0)
        return r;
    return (ssize_t)(hit ? data + m->delim_n : n);
}

/* Behind a boundary: "--" ends the body, CRLF (after optional blanks) starts a part. */
static ssize_t feed_after_delim(struct multipart *m, const char *p, struct hf_err *err)
{
    if (hf_buf_add(&m->line, p, 1) < 0)
        return hf_err_http(err, -EINVAL, 400, "multipart: malformed boundary line");
    const char *l = m->line.p;
    size_t n = m->line.n;
    if (n == 2 && l[0] == '-' && l[1] == '-') {
        m->state = MP_EPILOGUE;
        return 1;
    }
    if (n >= 2 && l[n - 2] == '\r' && l[n - 1] == '\n') {
        hf_buf_clear(&m->line);
        m->state = MP_HEAD;
        return 1;
    }
    bool ok = is_blank(*p) || *p == '\r' || (n == 1 && *p == '-');
    if (!ok || (n >= 2 && (l[n - 2] == '\r' || l[0] == '-')))
        return hf_err_http(err, -EINVAL, 400, "multipart: malformed boundary line");
    return 1;
}

/* A browser's form encoding writes CR, LF and '"' in names as %0D, %0A and %22 (WHATWG HTML, 4.10.21.8), and
 * nothing else. */
static void decode_form_name(struct hf_buf *b)
{
    static const struct {
        const char *code;
        char c;
    } codes[] = {{"0D", '\r'}, {"0A", '\n'}, {"22", '"'}};
    size_t out = 0;
    for (size_t i = 0; i < b->n; i++) {
        char c = b->p[i];
        for (size_t k = 0; c == '%' && i + 2 < b->n && k < HF_ARRAY_LEN(codes); k++) {
            if (strncasecmp(b->p + i + 1, codes[k].code, 2) != 0)
                continue;
            c = codes[k].c;
            i += 2;
        }
        b->p[out++] = c;
    }
    b->n = out;
    if (b->p)
        b->p[out] = '\0';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* filename*=UTF-8''a%20b (RFC 8187). */
static int decode_extended(struct hf_buf *b)
{
    static const char prefix[] = "utf-8'";
    size_t n = sizeof(prefix) - 1;
    char *lang_end = b->n > n && strncasecmp(b->p, prefix, n) == 0 ? memchr(b->p + n, '\'', b->n - n) : NULL;
    if (!lang_end)
        return -EINVAL;
    size_t out = 0;
    for (size_t i = (size_t)(lang_end + 1 - b->p); i < b->n; i++) {
        if (b->p[i] != '%') {
            b->p[out++] = b->p[i];
            continue;
        }
        int hi = i + 2 < b->n ? hex_value(b->p[i + 1]) : -1, lo = hi >= 0 ? hex_value(b->p[i + 2]) : -1;
        if (lo < 0)
            return -EINVAL;
        b->p[out++] = (char)(hi << 4 | lo);
        i += 2;
    }
    b->n = out;
    b->p[out] = '\0';
    return memchr(b->p, '\0', out) ? -EINVAL : 0;
}

static int begin_part(struct multipart *m, struct hf_str disposition, struct hf_err *err)
{
    hf_auto_buf struct hf_buf name = HF_BUF_INIT(PARAM_MAX), file = HF_BUF_INIT(PARAM_MAX);
    int r_name = header_param(disposition, "name", &name);
    int r_file = header_param(disposition, "filename*", &file);
    if (r_file > 0 && decode_extended(&file) < 0)
        r_file = -EINVAL;
    if (r_file == 0) {
        r_file = header_param(disposition, "filename", &file);
        decode_form_name(&file);
    }
    decode_form_name(&name);
    if (r_name < 0 || r_file < 0)
        return hf_err_http(err, -EINVAL, 400, "multipart: malformed Content-Disposition of part %zu",
                           m->parts);
    return m->events->on_part(
        m->self, r_name ? (struct hf_str){name.p ? name.p : "", name.n} : (struct hf_str){0},
        r_file ? (struct hf_str){file.p ? file.p : "", file.n} : (struct hf_str){0}, err);
}

/* One header line of a part, without CRLF. */
static int check_header(struct hf_str line, struct hf_str *ret_disposition)
{
    size_t i = 0;
    while (i < line.n && is_token_char((unsigned char)line.p[i]))
        i++;
    if (!i || i >= line.n || line.p[i] != ':')
        return -EINVAL;
    struct hf_str value = {line.p + i + 1, line.n - i - 1};
    for (size_t k = 0; k < value.n; k++) {
        unsigned char c = (unsigned char)value.p[k];
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return -EINVAL;
    }
    while (value.n && is_blank(value.p[0])) {
        value.p++;
        value.n--;
    }
    if (hf_str_caseeq((struct hf_str){line.p, i}, "content-disposition"))
        *ret_disposition = value;
    return 0;
}

/* m->line has the whole head, each line with its CRLF, without the empty line. */
static int head_complete(struct multipart *m, struct hf_err *err)
{
    struct hf_str rest = {m->line.p, m->line.n}, disposition = {"", 0};
    size_t lines = 0;
    while (rest.n) {
        const char *end = memmem(rest.p, rest.n, "\r\n", 2);
        size_t n = end ? (size_t)(end - rest.p) : rest.n;
        if (++lines > MULTIPART_HEADERS_MAX)
            return hf_err_http(err, -EMSGSIZE, 400, "multipart: part has more than %u header lines",
                               MULTIPART_HEADERS_MAX);
        if (check_header((struct hf_str){rest.p, n}, &disposition) < 0)
            return hf_err_http(err, -EINVAL, 400, "multipart: malformed header line in part %zu",
                               m->parts + 1);
        rest = (struct hf_str){rest.p + n + 2, rest.n - n - 2};
    }
    if (++m->parts > MULTIPART_PARTS_MAX)
        return hf_err_http(err, -EMSGSIZE, 400, "multipart: more than %u parts in one body",
                           MULTIPART_PARTS_MAX);
    int r = begin_part(m, disposition, err);
    hf_buf_clear(&m->line);
    m->state = MP_DATA;
    /* The delimiter of an empty part may share its CRLF with the head (RFC 2046, 5.1.1). */
    m->held = 2;
    m->held_start = true;
    return r;
}

/* Takes the head up to its empty line. Returns the bytes used. */
static ssize_t feed_head(struct multipart *m, const char *p, size_t n, struct hf_err *err)
{
    const char *lf = memchr(p, '\n', n);
    size_t take = lf ? (size_t)(lf - p) + 1 : n;
    if (hf_buf_add(&m->line, p, take) < 0)
        return hf_err_http(err, -EMSGSIZE, 400, "multipart: head of a part is longer than %u bytes",
                           MULTIPART_HEAD_MAX);
    struct hf_buf *l = &m->line;
    if (!lf)
        return (ssize_t)take;
    if (l->n < 2 || l->p[l->n - 2] != '\r')
        return hf_err_http(err, -EINVAL, 400, "multipart: a header line does not end with CRLF");
    bool empty_line = l->n == 2 || (l->n >= 4 && l->p[l->n - 3] == '\n');
    if (!empty_line)
        return (ssize_t)take;
    l->n -= 2;
    int r = head_complete(m, err);
    return r < 0 ? r : (ssize_t)take;
}

int multipart_feed(struct multipart *m, const char *p, size_t n, struct hf_err *err)
{
    while (n) {
        ssize_t used;
        if (m->state == MP_EPILOGUE)
            return 0; /* whatever follows is ignored (RFC 2046) */
        if (m->state == MP_HEAD)
            used = feed_head(m, p, n, err);
        else if (m->state == MP_AFTER_DELIM)
            used = feed_after_delim(m, p, err);
        else
            used = feed_body(m, p, n, err);
        if (used < 0)
            return (int)used;
        p += used;
        n -= (size_t)used;
    }
    return 0;
}

int multipart_finish(struct multipart *m, struct hf_err *err)
{
    if (m->state == MP_EPILOGUE)
        return 0;
    return hf_err_http(err, -EINVAL, 400, "multipart: the body ends before its last boundary");
}
