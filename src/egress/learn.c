/* Which address was answered for which name, per box: the firewall's and the L7 proxy's knowledge. */
#include "egress/dns_int.h"

#include "base/log.h"

#define KEY_MAX (HF_DNS_NAME_MAX + sizeof(struct hf_addr))

struct learned {
    struct hf_list node; /* in learned_order */
    uint64_t expires_ms;
    struct hf_addr addr;
    bool private_ok;
    size_t key_n;
    char key[]; /* address bytes, then the name and NUL */
};

static struct hf_str make_key(char out[KEY_MAX], const char *name, const struct hf_addr *a)
{
    size_t n = strnlen(name, HF_DNS_NAME_MAX - 1);
    out[0] = (char)a->family;
    memcpy(out + 1, a->b, sizeof a->b);
    memcpy(out + 1 + sizeof a->b, name, n);
    return (struct hf_str){out, 1 + sizeof a->b + n};
}

static void drop(struct hf_netd_box *b, struct learned *l)
{
    (void)hf_map_del(&b->learned, (struct hf_str){l->key, l->key_n});
    hf_list_del(&l->node);
    free(l);
}

void hf_netd_learned_clear(struct hf_netd_box *b)
{
    while (!hf_list_empty(&b->learned_order))
        drop(b, hf_list_entry(b->learned_order.next, struct learned, node));
    hf_map_done(&b->learned);
}

size_t hf_netd_learned_count(const struct hf_netd_box *b)
{
    return b->learned.len;
}

static struct learned *entry_of(struct hf_netd_box *b, const char *name, const struct hf_addr *a)
{
    char text[KEY_MAX];
    struct hf_str key = make_key(text, name, a);
    struct learned *l = hf_map_get(&b->learned, key);
    if (l) {
        hf_list_del(&l->node);
    } else {
        l = hf_xcalloc(1, sizeof *l + key.n + 1);
        memcpy(l->key, key.p, key.n);
        l->key_n = key.n;
        (void)hf_map_put(&b->learned, key, l);
    }
    hf_list_add_tail(&b->learned_order, &l->node);
    return l;
}

int hf_netd_learn(struct hf_netd_box *b, const char *name, const struct hf_addr *a, uint32_t ttl_s,
                  bool private_ok)
{
    if (!hf_dns_checks_names(b->policy))
        return 0;
    uint32_t open_s = HF_MAX(ttl_s, HF_DNS_LEARN_MIN_S) + HF_DNS_LEARN_EXTRA_S;
    uint64_t expires = uv_now(b->d->loop) + (uint64_t)open_s * 1000u;
    int r = hf_net_learn(b->d->net, b->key, a, open_s);
    if (r < 0)
        return r;
    struct learned *l = entry_of(b, name, a);
    l->addr = *a;
    l->private_ok = private_ok;
    l->expires_ms = HF_MAX(l->expires_ms, expires);
    while (b->learned.len > HF_DNS_LEARNED_MAX)
        drop(b, hf_list_entry(b->learned_order.next, struct learned, node));
    return 0;
}

bool hf_netd_learned(struct hf_netd_box *b, const char *name, const struct hf_addr *a)
{
    char text[KEY_MAX];
    struct learned *l = hf_map_get(&b->learned, make_key(text, name, a));
    if (l && l->expires_ms <= uv_now(b->d->loop)) {
        drop(b, l);
        l = NULL;
    }
    return l != NULL;
}

bool hf_netd_learned_for(struct hf_netd_box *b, const struct hf_addr *a,
                         bool (*wanted)(const struct hf_policy *p, const char *name), char ret_name[254])
{
    uint64_t now = uv_now(b->d->loop);
    hf_list_foreach(it, &b->learned_order)
    {
        const struct learned *l = hf_list_entry(it, struct learned, node);
        const char *name = l->key + 1 + sizeof l->addr.b;
        if (l->expires_ms <= now || !hf_addr_equal(&l->addr, a) || !wanted(b->policy, name))
            continue;
        memcpy(ret_name, name, strlen(name) + 1); /* names are shorter than HF_DNS_NAME_MAX */
        return true;
    }
    return false;
}

static bool still_answered(const struct hf_policy *p, const struct learned *l, uint64_t now)
{
    const char *name = l->key + 1 + sizeof l->addr.b;
    return hf_dns_checks_names(p) && l->expires_ms > now && hf_policy_may_resolve(p, name) &&
           hf_dns_addr_ok(p, &l->addr, l->private_ok);
}

void hf_netd_relearn(struct hf_netd_box *b)
{
    uint64_t now = uv_now(b->d->loop);
    size_t before = b->learned.len;
    hf_list_foreach_safe(it, &b->learned_order)
    {
        struct learned *l = hf_list_entry(it, struct learned, node);
        if (!still_answered(b->policy, l, now))
            drop(b, l);
    }
    if (b->learned.len == before)
        return;
    /* The kernel knows addresses, not names: all are taken away, and what is still answered is put back. */
    if (hf_net_unlearn(b->d->net, b->key) < 0)
        hf_log_warn("learned addresses could not be taken from the kernel", "sandbox=%s", b->sandbox);
    hf_list_foreach(it, &b->learned_order)
    {
        struct learned *l = hf_list_entry(it, struct learned, node);
        (void)!hf_net_learn(b->d->net, b->key, &l->addr, (uint32_t)((l->expires_ms - now) / 1000u + 1));
    }
}
