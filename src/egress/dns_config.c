/* Where questions go: settings, and the host's resolv.conf. */
#include "egress/dns_int.h"

#include <sys/stat.h>

#include "base/log.h"
#include "base/path.h"

#define RESOLV_CHECK_MS 1000u

int hf_dns_server_parse(struct hf_str s, struct hf_dns_server *ret)
{
    struct hf_dns_server v = {.port = 53};
    struct hf_str port = {NULL, 0};
    if (s.n > 0 && s.p[0] == '[') {
        const char *end = memchr(s.p, ']', s.n);
        if (!end)
            return -EINVAL;
        size_t n = (size_t)(end - s.p);
        port = (struct hf_str){end + 1, s.n - n - 1};
        s = (struct hf_str){s.p + 1, n - 1};
    } else {
        const char *colon = memchr(s.p, ':', s.n);
        if (colon && !memchr(colon + 1, ':', s.n - (size_t)(colon + 1 - s.p))) {
            port = (struct hf_str){colon, s.n - (size_t)(colon - s.p)};
            s.n = (size_t)(colon - s.p);
        }
    }
    if (port.n > 0) {
        uint64_t n;
        if (port.p[0] != ':' || hf_parse_u64((struct hf_str){port.p + 1, port.n - 1}, 65535, &n) < 0 ||
            n == 0)
            return -EINVAL;
        v.port = (uint16_t)n;
    }
    int r = hf_addr_parse(s, &v.addr);
    if (r < 0)
        return r;
    *ret = v;
    return 0;
}

static int parse_servers(const json_t *v, struct hf_dns_zone *z, const char *whose, struct hf_err *err)
{
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v))
        return hf_err_set(err, -EINVAL, "%s: upstreams is a list of addresses", whose);
    size_t i;
    json_t *item;
    json_array_foreach(v, i, item)
    {
        const char *s = json_string_value(item);
        if (z->n == HF_DNS_SERVERS_MAX)
            return hf_err_set(err, -EINVAL, "%s: more than %u upstreams", whose, HF_DNS_SERVERS_MAX);
        if (!s || hf_dns_server_parse(hf_str_c(s), &z->servers[z->n]) < 0)
            return hf_err_set(err, -EINVAL, "%s: upstream %s is not \"address\" or \"address:port\"", whose,
                              s ? s : "");
        z->n++;
    }
    return 0;
}

static int parse_zone(const json_t *v, struct hf_dns_zone *z, struct hf_err *err)
{
    const char *name = json_string_value(json_object_get(v, "zone"));
    if (!name || hf_name_normal(hf_str_c(name), z->name) < 0)
        return hf_err_set(err, -EINVAL, "DNS zone %s is not a domain name", name ? name : "");
    z->private_ok = json_is_true(json_object_get(v, "private"));
    int r = parse_servers(json_object_get(v, "upstreams"), z, z->name, err);
    if (r < 0)
        return r;
    if (z->n == 0)
        return hf_err_set(err, -EINVAL, "DNS zone %s has no upstreams", z->name);
    return 0;
}

int hf_dns_config_parse(const json_t *v, struct hf_dns_config *ret, struct hf_err *err)
{
    struct hf_dns_config c = {0};
    const json_t *zones = json_object_get(v, "zones");
    size_t n = json_array_size(zones);
    if (v && !json_is_null(v) && !json_is_object(v))
        return hf_err_set(err, -EINVAL, "dns is an object");
    if (n > HF_DNS_ZONES_MAX)
        return hf_err_set(err, -EINVAL, "more than %u DNS zones", HF_DNS_ZONES_MAX);
    int r = parse_servers(json_object_get(v, "upstreams"), &c.root, "dns", err);
    c.from_host = c.root.n == 0;
    c.zones = n ? hf_xcalloc(n, sizeof *c.zones) : NULL;
    for (size_t i = 0; i < n && r == 0; i++) {
        r = parse_zone(json_array_get(zones, i), &c.zones[i], err);
        c.n_zones = i + 1;
    }
    if (r < 0) {
        hf_dns_config_done(&c);
        return r;
    }
    *ret = c;
    return 0;
}

void hf_dns_config_done(struct hf_dns_config *c)
{
    free(c->zones);
    memset(c, 0, sizeof *c);
}

static void resolv_line(struct hf_str line, struct hf_dns_zone *z)
{
    static const char word[] = "nameserver";
    size_t n = sizeof word - 1;
    if (!hf_str_starts(line, word) || z->n == HF_DNS_SERVERS_MAX)
        return;
    while (n < line.n && (line.p[n] == ' ' || line.p[n] == '\t'))
        n++;
    size_t end = n;
    while (end < line.n && !strchr(" \t\r#;", line.p[end]))
        end++;
    struct hf_dns_server s = {.port = 53};
    if (n == sizeof word - 1 || hf_addr_parse((struct hf_str){line.p + n, end - n}, &s.addr) < 0)
        return;
    z->servers[z->n++] = s;
}

void hf_dns_resolv_parse(struct hf_str text, struct hf_dns_zone *ret)
{
    ret->n = 0;
    while (text.n > 0) {
        const char *nl = memchr(text.p, '\n', text.n);
        size_t n = nl ? (size_t)(nl - text.p) : text.n;
        resolv_line((struct hf_str){text.p, n}, ret);
        n += nl ? 1 : 0;
        text.p += n;
        text.n -= n;
    }
}

/* The name is the zone's or below it. */
static bool in_zone(const char *zone, const char *name)
{
    size_t z = strlen(zone), n = strlen(name);
    return n >= z && strcmp(name + n - z, zone) == 0 && (n == z || name[n - z - 1] == '.');
}

const struct hf_dns_zone *hf_dns_zone_of(const struct hf_dns_config *c, const char *name)
{
    const struct hf_dns_zone *best = &c->root;
    for (size_t i = 0; i < c->n_zones; i++)
        if (strlen(c->zones[i].name) > strlen(best->name) && in_zone(c->zones[i].name, name))
            best = &c->zones[i];
    return best;
}

void hf_dns_refresh(struct hf_dns *dns)
{
    uint64_t now = uv_now(dns->d->loop);
    struct stat st;
    if (!dns->cfg.from_host || (dns->resolv_checked_ms && now - dns->resolv_checked_ms < RESOLV_CHECK_MS))
        return;
    dns->resolv_checked_ms = now ? now : 1;
    int64_t stamp = 0;
    if (stat(dns->resolv_path, &st) == 0)
        stamp = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec + (int64_t)st.st_ino;
    if (stamp == dns->resolv_stamp && dns->cfg.root.n > 0)
        return;
    dns->resolv_stamp = stamp;
    hf_auto_free char *text = NULL;
    size_t n = 0;
    if (hf_read_file(dns->resolv_path, HF_DNS_RESOLV_MAX, &text, &n) == 0)
        hf_dns_resolv_parse((struct hf_str){text, n}, &dns->cfg.root);
    if (dns->cfg.root.n == 0 && !dns->warned) {
        dns->warned = true;
        hf_log_warn("no DNS server is known: set [network] dns or a nameserver line", "file=%s",
                    hf_log_quote(dns->resolv_path));
    }
}
