/* The ClientHello, read before anything is promised to the client. No TLS state, no allocation: what decides
 * where a connection may go must not depend on a library's mood. RFC 8446 section 4.1.2, RFC 6066, RFC 7301.
 */
#include "wire/tls.h"

#define RECORD_HEAD 5u
#define RECORD_HANDSHAKE 22
#define MESSAGE_HEAD 4u
#define MESSAGE_CLIENT_HELLO 1
#define HELLO_FIXED 34u /* version and random */
#define SESSION_ID_MAX 32u

enum {
    EXT_SERVER_NAME = 0,
    EXT_ALPN = 16,
    EXT_SUPPORTED_VERSIONS = 43,
    EXT_ECH_FIRST = 0xfe08, /* drafts 8 … */
    EXT_ECH_LAST = 0xfe0d,  /* … 13 and RFC 9849 */
    EXT_ESNI = 0xffce,
};

struct view {
    const uint8_t *p;
    size_t n;
    bool bad; /* sticky: something was asked for that is not there */
};

static unsigned take_int(struct view *v, size_t bytes)
{
    unsigned x = 0;
    if (v->bad || v->n < bytes) {
        v->bad = true;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++)
        x = x << 8 | v->p[i];
    v->p += bytes;
    v->n -= bytes;
    return x;
}

static struct view take(struct view *v, size_t n)
{
    struct view r = {v->p, n, false};
    if (v->bad || v->n < n) {
        v->bad = true;
        return (struct view){NULL, 0, true};
    }
    v->p += n;
    v->n -= n;
    return r;
}

/* A vector with a length of that many bytes in front. */
static struct view take_vector(struct view *v, size_t bytes)
{
    return take(v, take_int(v, bytes));
}

static bool view_is(struct view v, const char *s)
{
    return v.n == strlen(s) && memcmp(v.p, s, v.n) == 0;
}

/* Copies the name in lower case; false when no host name looks like that. */
static bool copy_name(char *out, struct view name)
{
    if (!name.n || name.n > 255 || name.p[0] == '.' || name.p[name.n - 1] == '.')
        return false;
    for (size_t i = 0; i < name.n; i++) {
        char c = (char)name.p[i];
        if (c >= 'A' && c <= 'Z')
            c = (char)(c | 0x20);
        bool ok = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                  (c == '.' && name.p[i - 1] != '.');
        if (!ok)
            return false;
        out[i] = c;
    }
    out[name.n] = '\0';
    return true;
}

static bool parse_sni(struct view v, struct hf_hello *h)
{
    struct view list = take_vector(&v, 2);
    if (v.bad || v.n || !list.n)
        return false;
    unsigned names = 0;
    while (list.n) {
        unsigned type = take_int(&list, 1);
        struct view name = take_vector(&list, 2);
        if (list.bad)
            return false;
        if (names++ || type != 0 || !copy_name(h->sni, name))
            h->sni_bad = true;
    }
    return true;
}

static bool parse_alpn(struct view v, struct hf_hello *h)
{
    struct view list = take_vector(&v, 2);
    if (v.bad || v.n || !list.n)
        return false;
    while (list.n) {
        struct view name = take_vector(&list, 1);
        if (list.bad || !name.n)
            return false;
        if (view_is(name, "h2"))
            h->alpn_h2 = true;
        else if (view_is(name, "http/1.1"))
            h->alpn_http1 = true;
        else
            h->alpn_other = true;
    }
    return true;
}

static bool parse_versions(struct view v, struct hf_hello *h)
{
    struct view list = take_vector(&v, 1);
    if (v.bad || v.n || !list.n || list.n % 2)
        return false;
    while (list.n)
        if (take_int(&list, 2) == 0x0304)
            h->tls13 = true;
    return true;
}

static bool parse_extensions(struct view v, struct hf_hello *h)
{
    bool sni = false, alpn = false, versions = false;
    while (v.n) {
        unsigned type = take_int(&v, 2);
        struct view data = take_vector(&v, 2);
        bool ok = !v.bad;
        if (ok && type == EXT_SERVER_NAME) {
            h->sni_bad |= sni; /* two of them: nobody can say which counts */
            sni = true;
            ok = parse_sni(data, h);
        } else if (ok && type == EXT_ALPN) {
            ok = !alpn && parse_alpn(data, h);
            alpn = true;
        } else if (ok && type == EXT_SUPPORTED_VERSIONS) {
            ok = !versions && parse_versions(data, h);
            versions = true;
        } else if (ok && ((type >= EXT_ECH_FIRST && type <= EXT_ECH_LAST) || type == EXT_ESNI)) {
            h->ech = true;
        }
        if (!ok)
            return false;
    }
    return true;
}

static bool parse_message(struct view v, struct hf_hello *h)
{
    unsigned version = take_int(&v, 2);
    (void)take(&v, HELLO_FIXED - 2);
    struct view session = take_vector(&v, 1);
    struct view ciphers = take_vector(&v, 2);
    struct view compression = take_vector(&v, 1);
    if (v.bad || version < 0x0300 || version > 0x03ff || session.n > SESSION_ID_MAX || !ciphers.n ||
        ciphers.n % 2 || !compression.n)
        return false;
    if (!v.n)
        return true; /* no extensions at all: allowed before TLS 1.3 */
    struct view ext = take_vector(&v, 2);
    return !v.bad && !v.n && parse_extensions(ext, h);
}

/* Puts the message together from its records. 1 complete, 0 more, or an error. */
static int collect(const uint8_t *p, size_t n, uint8_t msg[HF_HELLO_MAX], size_t *ret_n)
{
    size_t have = 0, want = MESSAGE_HEAD;
    while (n) {
        if (p[0] != RECORD_HANDSHAKE || (n > 1 && p[1] != 3))
            return -EPROTO;
        if (n < RECORD_HEAD)
            return 0;
        size_t len = (size_t)p[3] << 8 | p[4];
        if (!len || len > HF_HELLO_MAX)
            return -EPROTO;
        p += RECORD_HEAD;
        n -= RECORD_HEAD;
        size_t k = HF_MIN(HF_MIN(len, n), HF_HELLO_MAX - have);
        memcpy(msg + have, p, k);
        have += k;
        if (have && msg[0] != MESSAGE_CLIENT_HELLO)
            return -EPROTO;
        if (have >= MESSAGE_HEAD)
            want = MESSAGE_HEAD + ((size_t)msg[1] << 16 | (size_t)msg[2] << 8 | msg[3]);
        if (want > HF_HELLO_MAX)
            return -EMSGSIZE;
        if (have > want)
            return -EPROTO; /* nothing may follow a ClientHello in its record */
        if (have == want && have > MESSAGE_HEAD) {
            *ret_n = have;
            return k == len ? 1 : -EPROTO;
        }
        p += k;
        n -= k;
    }
    return 0;
}

int hf_hello_parse(const void *p, size_t n, struct hf_hello *ret)
{
    uint8_t msg[HF_HELLO_MAX];
    size_t have = 0;
    int r = collect(p, n, msg, &have);
    if (r == 0 && n >= HF_HELLO_MAX)
        return -EMSGSIZE;
    if (r != 1)
        return r;
    struct hf_hello h = {0};
    if (!parse_message((struct view){msg + MESSAGE_HEAD, have - MESSAGE_HEAD, false}, &h))
        return -EPROTO;
    if (h.sni_bad)
        h.sni[0] = '\0';
    *ret = h;
    return 1;
}
