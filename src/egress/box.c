/* The boxes and tenants that the daemon told of, and their policy in the kernel, DNS and L7. */
#include "egress/netd_int.h"

#include <stdio.h>

#include "base/log.h"

static struct hf_str key_text(uint32_t key, char out[16])
{
    int n = snprintf(out, 16, "%u", key);
    return (struct hf_str){out, (size_t)n};
}

static struct hf_str addr_bytes(const struct hf_addr *a)
{
    return (struct hf_str){(const char *)a, sizeof(*a)};
}

struct hf_netd_box *hf_netd_box(struct hf_netd *d, uint32_t key)
{
    char text[16];
    return hf_map_get(&d->boxes, key_text(key, text));
}

struct hf_netd_box *hf_netd_box_by_addr(struct hf_netd *d, const struct hf_addr *a)
{
    struct hf_addr plain = *a; /* padding bytes, if any came along, must not matter */
    return hf_map_get(&d->by_addr, addr_bytes(&plain));
}

struct hf_netd_box *hf_netd_box_ref(struct hf_netd_box *b)
{
    b->refs++;
    return b;
}

void hf_netd_box_unref(struct hf_netd_box *b)
{
    if (--b->refs)
        return;
    hf_netd_learned_clear(b);
    hf_dns_box_free(b);
    hf_policy_unref(b->policy);
    free(b->envd_ctl);
    free(b);
}

static struct hf_netd_box *new_box(struct hf_netd *d, uint32_t key, struct hf_err *err)
{
    struct hf_netd_box *b = hf_new(struct hf_netd_box);
    b->d = d;
    b->key = key;
    b->refs = 1;
    hf_list_init(&b->l7);
    hf_list_init(&b->learned_order);
    b->envd_ctl = hf_xstrdup("");
    int r = hf_net_addrs(&d->cfg, key, &b->addrs);
    if (r < 0) {
        (void)hf_err_set(err, r, "box %u has no addresses: %s", key, strerror(-r));
        free(b->envd_ctl);
        free(b);
        return NULL;
    }
    return b;
}

/* Two keys with the same addresses never live at the same time; a stale one gives way. */
static void enter(struct hf_netd *d, struct hf_netd_box *b)
{
    char text[16];
    struct hf_netd_box *old = hf_netd_box_by_addr(d, &b->addrs.box4);
    if (old && old != b)
        hf_netd_box_remove(old);
    (void)hf_map_put(&d->boxes, key_text(b->key, text), b);
    (void)hf_map_put(&d->by_addr, addr_bytes(&b->addrs.box4), b);
    if (d->cfg.ipv6)
        (void)hf_map_put(&d->by_addr, addr_bytes(&b->addrs.box6), b);
}

void hf_netd_box_remove(struct hf_netd_box *b)
{
    struct hf_netd *d = b->d;
    char text[16];
    (void)hf_map_del(&d->boxes, key_text(b->key, text));
    (void)hf_map_del(&d->by_addr, addr_bytes(&b->addrs.box4));
    (void)hf_map_del(&d->by_addr, addr_bytes(&b->addrs.box6));
    b->gone = true;
    hf_l7_rejudge(b);
    hf_netd_box_unref(b);
}

/* ---- the kernel's part ---- */

/* Does the L7 listener get every connection to its ports, or those to learned addresses only? Where
 * everything but names is denied and no rule speaks of an address, an address that nobody resolved is refused
 * by the kernel: a connection that the listener took would look open. An allowed prefix may hold the
 * addresses of a rule's host: then the listener looks first. */
static bool l7_sees_all(const struct hf_policy *p)
{
    struct hf_addr a;
    if (!p->deny_all || p->has_proxy || (p->n_rules && p->n_allow))
        return true;
    for (size_t i = 0; i < p->n_rules; i++)
        if (hf_addr_parse(hf_str_c(p->rules[i].host), &a) == 0)
            return true;
    return false;
}

static int to_kernel(struct hf_netd *d, uint32_t key, const struct hf_policy *p, struct hf_err *err)
{
    bool checked = hf_dns_checks_names(p);
    struct hf_net_policy k = {
        .key = key,
        .open = p->internet && !p->deny_all,
        /* Whoever may reach nothing by name has no resolver. */
        .dns = (p->internet && !p->deny_all) || checked || p->n_allow > 0,
        .l7_all = p->has_proxy,
        .no_quic = checked,
        .allow = p->allow,
        .deny = p->deny,
        .n_allow = p->n_allow,
        .n_deny = p->n_deny,
    };
    if (l7_sees_all(p))
        k.n_l7_ports = hf_policy_l7_ports(p, k.l7_ports, HF_NET_PORTS_MAX);
    return hf_net_apply(d->net, &k, err);
}

static void take(char *to, size_t n, const json_t *v, const char *name)
{
    const char *s = json_string_value(json_object_get(v, name));
    (void)snprintf(to, n, "%s", s ? s : "");
}

int hf_netd_box_put(struct hf_netd *d, uint32_t key, const json_t *v, struct hf_err *err)
{
    struct hf_policy *p = NULL;
    int r = hf_policy_parse(json_object_get(v, "network"), &p, err);
    if (r < 0)
        return r;
    struct hf_netd_box *b = hf_netd_box(d, key), *made = NULL;
    if (!b)
        b = made = new_box(d, key, err);
    r = b ? to_kernel(d, key, p, err) : err ? err->r : -EINVAL;
    if (r < 0) {
        hf_policy_unref(p);
        if (made)
            hf_netd_box_unref(made);
        return r;
    }
    take(b->sandbox, sizeof(b->sandbox), v, "sandbox");
    take(b->tenant, sizeof(b->tenant), v, "tenant");
    take(b->session, sizeof(b->session), v, "session");
    const char *ctl = json_string_value(json_object_get(v, "envd_ctl"));
    free(b->envd_ctl);
    b->envd_ctl = hf_xstrdup(ctl ? ctl : "");
    hf_policy_unref(b->policy);
    b->policy = p;
    b->policy_generation++;
    if (made)
        enter(d, b);
    hf_netd_relearn(b);
    hf_l7_rejudge(b);
    return 0;
}

int hf_netd_box_delete(struct hf_netd *d, uint32_t key, struct hf_err *err)
{
    int r = hf_net_forget(d->net, key, err);
    if (r < 0)
        return r;
    struct hf_netd_box *b = hf_netd_box(d, key);
    if (b)
        hf_netd_box_remove(b);
    return 0;
}

json_t *hf_netd_box_show(struct hf_netd_box *b)
{
    struct hf_net_counters c = {0};
    if (hf_net_counters(b->d->net, b->key, &c) < 0)
        c = (struct hf_net_counters){0};
    json_t *v = json_object();
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"key", b->key},
        {"bytes_out", c.bytes_out},
        {"bytes_in", c.bytes_in},
        {"packets_out", c.packets_out},
        {"packets_in", c.packets_in},
        {"connections", c.connections},
        {"denied", c.denied},
        {"dns_queries", b->counts.dns_queries},
        {"dns_denied", b->counts.dns_denied},
        {"l7_open", b->counts.l7_open},
        {"l7_requests", b->counts.l7_requests},
        {"l7_denied", b->counts.l7_denied},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(numbers); i++)
        (void)json_object_set_new(v, numbers[i].name, json_integer((json_int_t)numbers[i].value));
    (void)json_object_set_new(v, "sandbox", json_string(b->sandbox));
    return v;
}

/* ---- tenants ---- */

struct hf_netd_tenant *hf_netd_tenant(struct hf_netd *d, const char *name)
{
    return hf_map_get(&d->tenants, hf_str_c(name));
}

static void wipe_text(char **s)
{
    if (*s)
        explicit_bzero(*s, strlen(*s));
    free(*s);
    *s = NULL;
}

/* jansson gives strings' own bytes; they are wiped in place before the object goes. */
static void wipe_secrets(struct hf_netd_tenant *t)
{
    const char *name;
    json_t *value;
    json_object_foreach(t->secrets, name, value)
    {
        union {
            const char *given;
            char *own;
        } s = {json_string_value(value)};
        if (s.given)
            explicit_bzero(s.own, json_string_length(value));
    }
    json_decref(t->secrets);
    t->secrets = NULL;
}

int hf_netd_tenant_put(struct hf_netd *d, const char *name, const json_t *v, struct hf_err *err)
{
    const json_t *secrets = json_object_get(v, "secrets"), *ca = json_object_get(v, "ca");
    const char *key;
    json_t *value;
    if (strnlen(name, sizeof(((struct hf_netd_tenant *)0)->name)) >=
        sizeof(((struct hf_netd_tenant *)0)->name))
        return hf_err_set(err, -EINVAL, "the tenant's name is too long");
    json_object_foreach((json_t *)(uintptr_t)secrets, key, value)
    {
        if (!json_is_string(value))
            return hf_err_set(err, -EINVAL, "secrets hold texts");
    }
    struct hf_netd_tenant *t = hf_netd_tenant(d, name);
    if (!t) {
        t = hf_new(struct hf_netd_tenant);
        (void)snprintf(t->name, sizeof(t->name), "%s", name);
        (void)hf_map_put(&d->tenants, hf_str_c(name), t);
    }
    wipe_secrets(t);
    wipe_text(&t->ca_cert);
    wipe_text(&t->ca_key);
    t->secrets = secrets ? json_deep_copy(secrets) : json_object();
    const char *cert = json_string_value(json_object_get(ca, "cert"));
    const char *ca_key = json_string_value(json_object_get(ca, "key"));
    t->ca_cert = hf_xstrdup(cert ? cert : "");
    t->ca_key = hf_xstrdup(ca_key ? ca_key : "");
    t->generation++;
    hf_l7_tenant_changed(t);
    return 0;
}

void hf_netd_tenant_delete(struct hf_netd *d, const char *name)
{
    struct hf_netd_tenant *t = hf_map_del(&d->tenants, hf_str_c(name));
    if (!t)
        return;
    wipe_secrets(t);
    wipe_text(&t->ca_cert);
    wipe_text(&t->ca_key);
    t->generation++;
    hf_l7_tenant_changed(t);
    free(t);
}

/* ---- denials of the kernel ---- */

void hf_netd_on_denial(void *arg, const struct hf_net_denial *n)
{
    struct hf_netd *d = arg;
    struct hf_netd_box *b = n->key ? hf_netd_box(d, n->key) : NULL;
    const char *protocol = n->protocol == IPPROTO_TCP                                     ? "tcp"
                           : n->protocol == IPPROTO_UDP                                   ? "udp"
                           : n->protocol == IPPROTO_ICMP || n->protocol == IPPROTO_ICMPV6 ? "icmp"
                                                                                          : "other";
    if (b)
        hf_record_denial(b, "packet", "", &n->dst, n->dst_port, protocol, n->reason);
}
