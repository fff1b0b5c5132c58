/* What a connection's first bytes are, and what host they name. Pure. */
#include "egress/l7_int.h"

#define METHOD_MAX 32u
#define TLS_HANDSHAKE 0x16

static bool is_token_char(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool has(const char *p, size_t n, const char *word)
{
    return p && memmem(p, n, word, strlen(word)) != NULL;
}

/* "METHOD target HTTP/1.1", in any spelling that some parser might take for it. */
static enum hf_l7_kind sniff_line(const char *p, size_t n)
{
    size_t m = 0;
    while (m < n && m <= METHOD_MAX && is_token_char((unsigned char)p[m]))
        m++;
    if (m == n)
        return m <= METHOD_MAX ? HF_L7_MORE : HF_L7_OTHER;
    if (!m || m > METHOD_MAX || (p[m] != ' ' && p[m] != '\t'))
        return HF_L7_OTHER;
    const char *nl = memchr(p, '\n', n);
    size_t line = nl ? (size_t)(nl - p) : n;
    if (has(p, line, "HTTP/") || has(p, line, "http://"))
        return HF_L7_PLAIN_HTTP;
    if (!nl)
        return n < HF_HELLO_MAX ? HF_L7_MORE : HF_L7_OTHER;
    return HF_L7_OTHER;
}

enum hf_l7_kind hf_l7_sniff(const char *p, size_t n)
{
    if (!p || !n)
        return HF_L7_MORE;
    if ((unsigned char)p[0] == TLS_HANDSHAKE)
        return HF_L7_TLS;
    size_t skip = 0; /* servers skip empty lines before a request */
    while (skip < n && (p[skip] == '\r' || p[skip] == '\n'))
        skip++;
    return skip == n ? (n < HF_HELLO_MAX ? HF_L7_MORE : HF_L7_OTHER) : sniff_line(p + skip, n - skip);
}

static int parse_port(struct hf_str s, uint16_t *ret)
{
    uint64_t v;
    if (hf_parse_u64(s, 65535, &v) < 0 || v == 0)
        return -EINVAL;
    *ret = (uint16_t)v;
    return 0;
}

/* Splits "[v6]:port" and "host:port". */
static int split(struct hf_str s, struct hf_str *ret_host, struct hf_str *ret_port, bool *ret_v6)
{
    if (!s.p || !s.n)
        return -EINVAL;
    *ret_v6 = s.p[0] == '[';
    const char *end = *ret_v6 ? memchr(s.p, ']', s.n) : s.p;
    if (!end)
        return -EINVAL;
    const char *colon = memchr(end, ':', s.n - (size_t)(end - s.p));
    size_t host_n = colon ? (size_t)(colon - s.p) : s.n;
    if (*ret_v6 && end + 1 != s.p + host_n)
        return -EINVAL;
    *ret_host = *ret_v6 ? (struct hf_str){s.p + 1, (size_t)(end - s.p) - 1} : (struct hf_str){s.p, host_n};
    *ret_port = colon ? (struct hf_str){colon + 1, s.n - host_n - 1} : (struct hf_str){NULL, 0};
    return 0;
}

int hf_l7_authority(struct hf_str s, uint16_t default_port, struct hf_l7_authority *ret)
{
    struct hf_l7_authority a = {.port = default_port};
    struct hf_str host, port;
    bool v6;
    if (split(s, &host, &port, &v6) < 0 || (port.p && parse_port(port, &a.port) < 0))
        return -EINVAL;
    a.is_addr = hf_addr_parse(host, &a.addr) == 0;
    if (a.is_addr ? (a.addr.family == 6) != v6 : v6)
        return -EINVAL;
    if (a.is_addr)
        hf_addr_format(&a.addr, a.host);
    else if (hf_name_normal(host, a.host) < 0)
        return -EINVAL;
    *ret = a;
    return 0;
}
