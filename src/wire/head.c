#include "wire/head.h"

enum {
    S_START,
    S_START_LF,
    S_METHOD,
    S_TARGET,
    S_VERSION,
    S_LINE_CR,
    S_LINE_LF,
    S_STATUS_SP,
    S_STATUS,
    S_REASON_SP,
    S_REASON,
    S_HDR,
    S_NAME,
    S_VALUE_PRE,
    S_VALUE,
    S_VALUE_LF,
    S_END_LF,
    S_DONE,
    S_BAD,
};

#define C_TOKEN 1u  /* RFC 9110 tchar */
#define C_VALUE 2u  /* may stand in a field value */
#define C_TARGET 4u /* may stand in a request target */

#define T_ (C_VALUE | C_TARGET)
#define A_ (C_TOKEN | C_VALUE | C_TARGET)
/* clang-format off */
static const uint8_t class_of[256] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, C_VALUE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    /*      !   "   #        $   %   &   '   (   )   *   +   ,   -   .   / */
    C_VALUE, A_, T_, C_TOKEN | C_VALUE, A_, A_, A_, A_, T_, T_, A_, A_, T_, A_, A_, T_,
    A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, T_, T_, T_, T_, T_, T_,             /* 0-9 : ; < = > ? */
    T_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_,             /* @ A-O */
    A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, T_, T_, T_, A_, A_,             /* P-Z [ \ ] ^ _ */
    A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_,             /* ` a-o */
    A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, A_, T_, A_, T_, A_, 0,              /* p-z { | } ~ DEL */
    [128 ... 255] = C_VALUE,
};
/* clang-format on */

static inline bool is(char c, unsigned cls)
{
    return class_of[(unsigned char)c] & cls;
}

bool hf_is_token(struct hf_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!is(s.p[i], C_TOKEN))
            return false;
    return s.n > 0;
}

bool hf_is_header_value(struct hf_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!is(s.p[i], C_VALUE))
            return false;
    return true;
}

void hf_head_init(struct hf_head *h, bool response)
{
    memset(h, 0, offsetof(struct hf_head, hdr));
    h->response = response;
    h->state = response ? S_VERSION : S_START;
}

static enum hf_head_result bad(struct hf_head *h, int status, const char *why)
{
    h->state = S_BAD;
    h->bad_status = (uint16_t)status;
    h->why = why;
    return HF_HEAD_BAD;
}

/* Runs over bytes of a class; returns the number. */
static inline size_t span(const char *p, size_t n, unsigned cls)
{
    size_t i = 0;
    while (i < n && is(p[i], cls))
        i++;
    return i;
}

static int step_version(struct hf_head *h, char c)
{
    static const char want[] = "HTTP/1.";
    uint32_t i = h->pos - h->mark;
    if (i < sizeof(want) - 1) {
        if (c == want[i])
            return 0;
        if (i == 5 && c >= '0' && c <= '9')
            return (int)bad(h, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
        return (int)bad(h, 400, "malformed protocol version");
    }
    if (c != '0' && c != '1')
        return (int)bad(h, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    h->minor = (uint8_t)(c - '0');
    h->state = h->response ? S_STATUS_SP : S_LINE_CR;
    return 0;
}

/* Method, target and version of a request; status line of a response. One byte a call: at a border. */
static int step_first_line(struct hf_head *h, char c)
{
    switch (h->state) {
    case S_START:
        if (c == '\r' && !h->lead++) {
            h->state = S_START_LF;
            return 0;
        }
        if (!is(c, C_TOKEN))
            return (int)bad(h, 400, "a request line must begin with a method");
        h->mark = h->method = (uint16_t)h->pos;
        h->state = S_METHOD;
        return 0;
    case S_START_LF:
        h->state = S_START;
        return c == '\n' ? 0 : (int)bad(h, 400, "carriage return without line feed");
    case S_METHOD:
        if (c != ' ' || h->pos - h->mark > 32)
            return (int)bad(h, 400, "malformed method");
        h->method_n = (uint16_t)(h->pos - h->mark);
        h->mark = h->target = (uint16_t)(h->pos + 1);
        h->state = S_TARGET;
        return 0;
    case S_TARGET:
        h->target_n = (uint16_t)(h->pos - h->mark);
        if (c != ' ' || h->target_n == 0)
            return (int)bad(h, 400, "malformed request target");
        h->mark = h->pos + 1;
        h->state = S_VERSION;
        return 0;
    case S_VERSION:
        return step_version(h, c);
    case S_STATUS_SP:
        h->state = S_STATUS;
        h->mark = h->pos + 1;
        return c == ' ' ? 0 : (int)bad(h, 400, "malformed status line");
    case S_STATUS:
        if (c < '0' || c > '9')
            return (int)bad(h, 400, "malformed status code");
        h->status = (uint16_t)(h->status * 10 + (c - '0'));
        if (h->pos - h->mark == 2)
            h->state = S_REASON_SP;
        return 0;
    case S_REASON_SP:
        h->state = c == '\r' ? S_LINE_LF : S_REASON;
        return c == '\r' || c == ' ' ? 0 : (int)bad(h, 400, "malformed status line");
    case S_REASON:
    case S_LINE_CR:
        h->state = S_LINE_LF;
        return c == '\r' ? 0 : (int)bad(h, 400, "a line must end with CR LF");
    default: /* S_LINE_LF */
        h->state = S_HDR;
        return c == '\n' ? 0 : (int)bad(h, 400, "carriage return without line feed");
    }
}

static int step_header(struct hf_head *h, char c)
{
    struct hf_hdr *e = &h->hdr[h->n];
    switch (h->state) {
    case S_HDR:
        if (c == '\r') {
            h->state = S_END_LF;
            return 0;
        }
        if (c == ' ' || c == '\t')
            return (int)bad(h, 400, "folded header lines are refused");
        if (!is(c, C_TOKEN))
            return (int)bad(h, 400, "malformed header name");
        if (h->n == HF_HTTP_HEADERS_MAX)
            return (int)bad(h, 431, "too many header lines");
        e->name = (uint16_t)h->pos;
        h->state = S_NAME;
        return 0;
    case S_NAME:
        if (c != ':')
            return (int)bad(h, 400, "malformed header name");
        e->name_n = (uint16_t)(h->pos - e->name);
        h->state = S_VALUE_PRE;
        return 0;
    case S_VALUE_PRE:
        if (c == ' ' || c == '\t')
            return 0;
        e->value = (uint16_t)h->pos;
        h->value_end = h->pos;
        h->state = S_VALUE;
        if (is(c, C_VALUE)) {
            h->value_end = h->pos + 1;
            return 0;
        }
        return step_header(h, c);
    case S_VALUE:
        if (c != '\r')
            return (int)bad(h, 400, "control character in a header value");
        e->value_n = (uint16_t)(h->value_end - e->value);
        h->state = S_VALUE_LF;
        return 0;
    case S_VALUE_LF:
        h->n++;
        h->state = S_HDR;
        return c == '\n' ? 0 : (int)bad(h, 400, "carriage return without line feed");
    default: /* S_END_LF */
        h->state = S_DONE;
        return c == '\n' ? 0 : (int)bad(h, 400, "carriage return without line feed");
    }
}

/* The long runs of a head: method, target, names, values. Returns the bytes that need no decision. */
static inline size_t run(struct hf_head *h, const char *p, size_t n)
{
    size_t k;
    switch (h->state) {
    case S_METHOD:
    case S_NAME:
        return span(p, n, C_TOKEN);
    case S_TARGET:
        return span(p, n, C_TARGET);
    case S_REASON:
        return span(p, n, C_VALUE);
    case S_VALUE:
        k = span(p, n, C_VALUE);
        for (size_t i = k; i > 0; i--) {
            if (p[i - 1] == ' ' || p[i - 1] == '\t')
                continue;
            h->value_end = h->pos + (uint32_t)i;
            break;
        }
        return k;
    default:
        return 0;
    }
}

enum hf_head_result hf_head_feed(struct hf_head *h, const char *p, size_t n, size_t *ret_used)
{
    size_t i = 0;
    *ret_used = 0;
    if (h->state >= S_DONE)
        return h->state == S_DONE ? HF_HEAD_DONE : HF_HEAD_BAD;
    size_t room = HF_HTTP_HEAD_MAX - h->pos;
    size_t limit = HF_MIN(n, room);
    while (i < limit) {
        size_t k = run(h, p + i, limit - i);
        i += k;
        h->pos += (uint32_t)k;
        if (h->state == S_TARGET && h->pos - h->mark > HF_HTTP_TARGET_MAX)
            return bad(h, 414, "the request target is too long");
        if (i == limit)
            break;
        int r = h->state >= S_HDR ? step_header(h, p[i]) : step_first_line(h, p[i]);
        if (r)
            return HF_HEAD_BAD;
        i++;
        h->pos++;
        if (h->state == S_DONE) {
            *ret_used = i;
            return HF_HEAD_DONE;
        }
    }
    *ret_used = i;
    if (h->pos == HF_HTTP_HEAD_MAX)
        return bad(h, 431, "the request head is too large");
    return HF_HEAD_MORE;
}
