/* The DNS settings: which servers answer for which names. */
#include <stdio.h>

#include "base/addr.h"
#include "control/config.h"

static struct hf_str trim(struct hf_str s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t'))
        s = (struct hf_str){s.p + 1, s.n - 1};
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s.n--;
    return s;
}

/* What is before the separator; *rest is what is behind it, {NULL, 0} at the end. */
static struct hf_str cut(struct hf_str s, char separator, struct hf_str *rest)
{
    const char *at = s.n ? memchr(s.p, separator, s.n) : NULL;
    if (!at) {
        *rest = (struct hf_str){NULL, 0};
        return trim(s);
    }
    size_t n = (size_t)(at - s.p);
    *rest = (struct hf_str){at + 1, s.n - n - 1};
    return trim((struct hf_str){s.p, n});
}

static bool server_ok(struct hf_str s)
{
    struct hf_addr addr;
    uint64_t port;
    if (hf_addr_parse(s, &addr) == 0)
        return true;
    const char *colon = memrchr(s.p, ':', s.n);
    if (!colon)
        return false;
    size_t n = (size_t)(colon - s.p);
    if (hf_parse_u64((struct hf_str){colon + 1, s.n - n - 1}, UINT16_MAX, &port) < 0 || port == 0)
        return false;
    if (n >= 2 && s.p[0] == '[' && s.p[n - 1] == ']')
        return hf_addr_parse((struct hf_str){s.p + 1, n - 2}, &addr) == 0 && addr.family == 6;
    return hf_addr_parse((struct hf_str){s.p, n}, &addr) == 0 && addr.family == 4;
}

static int parse_servers(struct hf_str text, struct hf_config_zone *z, struct hf_err *err)
{
    z->n = 0;
    for (struct hf_str rest = text; rest.p;) {
        struct hf_str one = cut(rest, ',', &rest);
        if (one.n == 0 || one.n >= sizeof(z->servers[0]) || !server_ok(one))
            return hf_err_set(err, -EINVAL,
                              "'%.*s' is not the address of a DNS server, as in 192.0.2.53, 192.0.2.53:5353 "
                              "or [2001:db8::53]:5353",
                              (int)HF_MIN(one.n, (size_t)64), one.n ? one.p : "");
        if (z->n == HF_CONFIG_DNS_SERVERS_MAX)
            return hf_err_set(err, -EINVAL, "more than %u DNS servers", HF_CONFIG_DNS_SERVERS_MAX);
        (void)snprintf(z->servers[z->n++], sizeof(z->servers[0]), "%.*s", (int)one.n, one.p);
    }
    return 0;
}

int hf_config_parse_servers(const char *text, struct hf_config_zone *ret, struct hf_err *err)
{
    struct hf_config_zone z = {0};
    int r = parse_servers(hf_str_c(text), &z, err);
    if (r == 0)
        *ret = z;
    return r;
}

static bool zone_ok(struct hf_str s)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
    if (s.n == 0 || s.n >= 254 || s.p[0] == '.' || s.p[s.n - 1] == '.')
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (!memchr(allowed, s.p[i], sizeof(allowed) - 1))
            return false;
    return true;
}

static int parse_zone(struct hf_str text, struct hf_config_zone *z, struct hf_err *err)
{
    struct hf_str servers;
    struct hf_str name = cut(text, '=', &servers);
    if (!servers.p || !zone_ok(name))
        return hf_err_set(err, -EINVAL,
                          "'%.*s' is not ZONE=SERVER,… with a zone in lower case, as in "
                          "corp.example=10.0.0.53 private",
                          (int)HF_MIN(text.n, (size_t)64), text.n ? text.p : "");
    (void)snprintf(z->zone, sizeof(z->zone), "%.*s", (int)name.n, name.p);
    servers = trim(servers);
    static const char word[] = " private";
    size_t n = sizeof(word) - 1;
    if (servers.n > n && memcmp(servers.p + servers.n - n, word, n) == 0) {
        z->is_private = true;
        servers.n -= n;
    }
    int r = parse_servers(trim(servers), z, err);
    return r < 0 ? hf_err_wrap(err, "zone %s", z->zone) : 0;
}

int hf_config_each_zone(const char *text, void (*cb)(void *arg, const struct hf_config_zone *z), void *arg,
                        struct hf_err *err)
{
    size_t n = 0;
    for (struct hf_str rest = hf_str_c(text); rest.p;) {
        struct hf_str one = cut(rest, ';', &rest);
        if (one.n == 0)
            continue; /* a separator at the end */
        struct hf_config_zone z = {0};
        if (++n > HF_CONFIG_DNS_ZONES_MAX)
            return hf_err_set(err, -EINVAL, "more than %u zones", HF_CONFIG_DNS_ZONES_MAX);
        int r = parse_zone(one, &z, err);
        if (r < 0)
            return r;
        if (cb)
            cb(arg, &z);
    }
    return 0;
}
