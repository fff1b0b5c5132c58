/* The client's side of SOCKS5 (RFC 1928, RFC 1929) and of HTTP CONNECT: push parsers, no I/O. */
#include "egress/l7_int.h"

#include <stdio.h>

#include "base/id.h"

#define SOCKS_VERSION 5
#define SOCKS_NO_AUTH 0
#define SOCKS_PASSWORD 2
#define SOCKS_CONNECT 1
#define SOCKS_IPV4 1
#define SOCKS_NAME 3
#define SOCKS_IPV6 4
#define SOCKS_REPLY_HEAD 5 /* version, reply, reserved, type, and the address's first byte */

enum { METHOD, AUTH, REPLY, REPLY_REST, HTTP_HEAD, DONE };

static int add_byte(struct hf_buf *out, unsigned v)
{
    unsigned char ch = (unsigned char)v;
    return hf_buf_add(out, &ch, 1);
}

static int add_counted(struct hf_buf *out, const char *s)
{
    size_t n = strlen(s);
    if (n > 255)
        return -EMSGSIZE;
    int r = add_byte(out, (unsigned)n);
    return r < 0 ? r : hf_buf_add(out, s, n);
}

static int add_credentials(const struct hf_egress_proxy *cfg, struct hf_buf *out)
{
    struct hf_buf pair = HF_BUF_INIT(1024);
    int r = hf_buf_reserve(&pair, strlen(cfg->username) + strlen(cfg->password) + 2);
    if (r == 0)
        r = hf_buf_addf(&pair, "%s:%s", cfg->username, cfg->password);
    if (r == 0)
        r = hf_buf_adds(out, "Proxy-Authorization: Basic ");
    if (r == 0)
        r = hf_base64_add(out, pair.p, pair.n);
    if (r == 0)
        r = hf_buf_adds(out, "\r\n");
    hf_l7_wipe(&pair);
    return r;
}

static int http_start(struct hf_l7_proxy *x, struct hf_buf *out)
{
    bool v6 = x->is_addr && x->addr.family == 6;
    char to[HF_L7_HOST_MAX + 16];
    (void)snprintf(to, sizeof to, v6 ? "[%s]:%u" : "%s:%u", x->host, x->port);
    x->state = HTTP_HEAD;
    x->want = sizeof x->in;
    int r = hf_buf_addf(out, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n", to, to);
    if (r == 0 && x->cfg->username && *x->cfg->username)
        r = add_credentials(x->cfg, out);
    return r < 0 ? r : hf_buf_adds(out, "\r\n");
}

static int socks_start(struct hf_l7_proxy *x, struct hf_buf *out)
{
    static const unsigned char open[] = {SOCKS_VERSION, 1, SOCKS_NO_AUTH};
    static const unsigned char both[] = {SOCKS_VERSION, 2, SOCKS_NO_AUTH, SOCKS_PASSWORD};
    bool has_user = x->cfg->username && *x->cfg->username;
    x->state = METHOD;
    x->want = 2;
    return has_user ? hf_buf_add(out, both, sizeof both) : hf_buf_add(out, open, sizeof open);
}

int hf_l7_proxy_start(struct hf_l7_proxy *x, const struct hf_egress_proxy *cfg, const char *host,
                      uint16_t port, struct hf_buf *out)
{
    size_t n = strnlen(host, HF_L7_HOST_MAX);
    if (!n || n >= HF_L7_HOST_MAX)
        return -EINVAL;
    *x = (struct hf_l7_proxy){.cfg = cfg, .port = port};
    memcpy(x->host, host, n);
    x->is_addr = hf_addr_parse(hf_str_c(host), &x->addr) == 0;
    return cfg->http ? http_start(x, out) : socks_start(x, out);
}

size_t hf_l7_proxy_want(const struct hf_l7_proxy *x)
{
    return x->state == HTTP_HEAD || x->state == DONE ? 1 : x->want - x->n;
}

static int socks_request(struct hf_l7_proxy *x, struct hf_buf *out)
{
    static const unsigned char head[] = {SOCKS_VERSION, SOCKS_CONNECT, 0};
    x->state = REPLY;
    x->want = SOCKS_REPLY_HEAD;
    int r = hf_buf_add(out, head, sizeof head);
    if (r == 0)
        r = add_byte(out, x->is_addr ? (x->addr.family == 4 ? SOCKS_IPV4 : SOCKS_IPV6) : SOCKS_NAME);
    if (r == 0)
        r = x->is_addr ? hf_buf_add(out, x->addr.b, x->addr.family == 4 ? 4 : 16) : add_counted(out, x->host);
    if (r == 0)
        r = add_byte(out, x->port >> 8);
    return r < 0 ? r : add_byte(out, x->port & 0xff);
}

static int socks_method(struct hf_l7_proxy *x, struct hf_buf *out, struct hf_err *err)
{
    bool has_user = x->cfg->username && *x->cfg->username;
    if (x->in[0] != SOCKS_VERSION)
        return hf_err_set(err, -EPROTO, "the egress proxy does not speak SOCKS5");
    if (x->in[1] == SOCKS_NO_AUTH)
        return socks_request(x, out);
    if (x->in[1] != SOCKS_PASSWORD || !has_user)
        return hf_err_set(err, -EACCES, "the egress proxy wants another way to sign in");
    x->state = AUTH;
    x->want = 2;
    int r = add_byte(out, 1);
    if (r == 0)
        r = add_counted(out, x->cfg->username);
    return r < 0 ? r : add_counted(out, x->cfg->password);
}

static int socks_reply(struct hf_l7_proxy *x, struct hf_err *err)
{
    static const char *const words[] = {"",
                                        "it failed",
                                        "its rules do not allow it",
                                        "the network is unreachable",
                                        "the host is unreachable",
                                        "the connection was refused",
                                        "the time to live expired",
                                        "it can't do that",
                                        "it can't use that kind of address"};
    if (x->in[0] != SOCKS_VERSION)
        return hf_err_set(err, -EPROTO, "the egress proxy does not speak SOCKS5");
    if (x->in[1])
        return hf_err_set(err, -ECONNREFUSED, "the egress proxy says: %s",
                          x->in[1] < HF_ARRAY_LEN(words) ? words[x->in[1]] : "an unknown error");
    size_t addr_n = x->in[3] == SOCKS_IPV4   ? 4
                    : x->in[3] == SOCKS_IPV6 ? 16
                    : x->in[3] == SOCKS_NAME ? (size_t)x->in[4] + 1
                                             : 0;
    if (!addr_n)
        return hf_err_set(err, -EPROTO, "the egress proxy's answer can't be read");
    x->state = REPLY_REST;
    x->want = SOCKS_REPLY_HEAD - 1 + addr_n + 2;
    return 0;
}

static int socks_step(struct hf_l7_proxy *x, struct hf_buf *out, struct hf_err *err)
{
    switch (x->state) {
    case METHOD:
        x->n = 0;
        return socks_method(x, out, err);
    case AUTH:
        x->n = 0;
        if (x->in[1])
            return hf_err_set(err, -EACCES, "the egress proxy does not accept the username and password");
        return socks_request(x, out);
    case REPLY:
        return socks_reply(x, err);
    default:
        x->state = DONE;
        return 1;
    }
}

/* "HTTP/1.x 2xx" and a complete head. */
static int http_step(struct hf_l7_proxy *x, struct hf_err *err)
{
    const char *p = (const char *)x->in;
    if (x->n < 4 || memcmp(p + x->n - 4, "\r\n\r\n", 4) != 0)
        return x->n < sizeof x->in ? 0 : hf_err_set(err, -EMSGSIZE, "the egress proxy's answer is too long");
    bool http1 = x->n > 13 && memcmp(p, "HTTP/1.", 7) == 0 && (p[7] == '0' || p[7] == '1') && p[8] == ' ';
    uint64_t status = 0;
    if (!http1 || hf_parse_u64((struct hf_str){p + 9, 3}, 999, &status) < 0)
        return hf_err_set(err, -EPROTO, "the egress proxy does not speak HTTP");
    if (status < 200 || status > 299)
        return hf_err_set(err, status == 407 ? -EACCES : -ECONNREFUSED,
                          "the egress proxy answers CONNECT with %u", (unsigned)status);
    x->state = DONE;
    return 1;
}

int hf_l7_proxy_feed(struct hf_l7_proxy *x, const void *p, size_t n, struct hf_buf *out, struct hf_err *err)
{
    if (x->state == DONE || n > hf_l7_proxy_want(x))
        return hf_err_set(err, -EINVAL, "the egress proxy said more than it was asked");
    memcpy(x->in + x->n, p, n);
    x->n += n;
    if (x->state == HTTP_HEAD)
        return http_step(x, err);
    return x->n < x->want ? 0 : socks_step(x, out, err);
}
