/* The cache of answers, bounded by entries and bytes; the least recently used goes first. */
#include "egress/dns_int.h"

#include <stdio.h>

#define KEY_MAX (HF_DNS_NAME_MAX + 8)

struct entry {
    struct hf_list node;
    struct hf_dns_answer *answer;
    size_t bytes;
    char key[];
};

static struct hf_str make_key(char out[KEY_MAX], const char *name, uint16_t type)
{
    int n = snprintf(out, KEY_MAX, "%u/%s", type, name);
    return (struct hf_str){out, (size_t)n};
}

void hf_dns_cache_init(struct hf_dns_cache *c)
{
    memset(c, 0, sizeof *c);
    hf_list_init(&c->order);
}

static void drop(struct hf_dns_cache *c, struct entry *e)
{
    (void)hf_map_del(&c->map, hf_str_c(e->key));
    hf_list_del(&e->node);
    c->n--;
    c->bytes -= e->bytes;
    hf_dns_answer_unref(e->answer);
    free(e);
}

void hf_dns_cache_clear(struct hf_dns_cache *c)
{
    while (!hf_list_empty(&c->order))
        drop(c, hf_list_entry(c->order.next, struct entry, node));
    hf_map_done(&c->map);
    hf_dns_cache_init(c);
}

struct hf_dns_answer *hf_dns_cache_get(struct hf_dns_cache *c, const char *name, uint16_t type,
                                       uint64_t now_ms)
{
    char key[KEY_MAX];
    struct entry *e = hf_map_get(&c->map, make_key(key, name, type));
    if (!e)
        return NULL;
    if (e->answer->expires_ms <= now_ms) {
        drop(c, e);
        return NULL;
    }
    hf_list_del(&e->node);
    hf_list_add_tail(&c->order, &e->node);
    return e->answer;
}

void hf_dns_cache_put(struct hf_dns_cache *c, const char *name, uint16_t type, struct hf_dns_answer *a)
{
    char text[KEY_MAX];
    struct hf_str key = make_key(text, name, type);
    struct entry *old = hf_map_get(&c->map, key);
    if (old)
        drop(c, old);
    struct entry *e = hf_xcalloc(1, sizeof *e + key.n + 1);
    memcpy(e->key, key.p, key.n + 1);
    e->answer = hf_dns_answer_ref(a);
    e->bytes = sizeof *e + sizeof *a + 2 * key.n + a->pool_n;
    (void)hf_map_put(&c->map, key, e);
    hf_list_add_tail(&c->order, &e->node);
    c->n++;
    c->bytes += e->bytes;
    while (c->n > HF_DNS_CACHE_ENTRIES || c->bytes > HF_DNS_CACHE_BYTES)
        drop(c, hf_list_entry(c->order.next, struct entry, node));
}
