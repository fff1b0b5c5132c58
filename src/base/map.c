#include "base/map.h"

#include "base/id.h"

static char tombstone[1];

static uint64_t seed(void)
{
    static uint64_t s;
    while (!s)
        hf_random(&s, sizeof(s));
    return s;
}

/* FNV-1a over a secret seed, finished by the 64-bit mixer of SplitMix64. */
static uint64_t hash_of(struct hf_str k)
{
    uint64_t h = seed() ^ 0xcbf29ce484222325u;
    for (size_t i = 0; i < k.n; i++)
        h = (h ^ (unsigned char)k.p[i]) * 0x100000001b3u;
    h ^= h >> 30;
    h *= 0xbf58476d1ce4e5b9u;
    h ^= h >> 27;
    h *= 0x94d049bb133111ebu;
    return h ^ (h >> 31);
}

void hf_map_done(struct hf_map *m)
{
    for (size_t i = 0; i < m->cap; i++)
        if (m->slots[i].key != tombstone)
            free(m->slots[i].key);
    free(m->slots);
    *m = (struct hf_map){0};
}

static struct hf_map_slot *find(const struct hf_map *m, struct hf_str key, uint64_t h)
{
    if (!m->cap)
        return NULL;
    for (size_t i = h & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
        struct hf_map_slot *s = &m->slots[i];
        if (!s->key)
            return NULL;
        if (s->key != tombstone && s->hash == h && s->n == key.n && memcmp(s->key, key.p, key.n) == 0)
            return s;
    }
}

void *hf_map_get(const struct hf_map *m, struct hf_str key)
{
    struct hf_map_slot *s = find(m, key, hash_of(key));
    return s ? s->value : NULL;
}

static void insert(struct hf_map *m, struct hf_map_slot slot)
{
    size_t i = slot.hash & (m->cap - 1);
    while (m->slots[i].key)
        i = (i + 1) & (m->cap - 1);
    m->slots[i] = slot;
    m->used++;
    m->len++;
}

static void rehash(struct hf_map *m)
{
    struct hf_map old = *m;
    m->cap = 16;
    while (m->cap < old.len * 4)
        m->cap *= 2;
    m->slots = hf_xcalloc(m->cap, sizeof(*m->slots));
    m->len = m->used = 0;
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i].key && old.slots[i].key != tombstone)
            insert(m, old.slots[i]);
    free(old.slots);
}

void *hf_map_put(struct hf_map *m, struct hf_str key, void *value)
{
    uint64_t h = hash_of(key);
    struct hf_map_slot *s = find(m, key, h);
    if (s) {
        void *before = s->value;
        s->value = value;
        return before;
    }
    if ((m->used + 1) * 4 > m->cap * 3)
        rehash(m);
    insert(m, (struct hf_map_slot){hf_xstrndup(key.p, key.n), key.n, h, value});
    return NULL;
}

void *hf_map_del(struct hf_map *m, struct hf_str key)
{
    struct hf_map_slot *s = find(m, key, hash_of(key));
    if (!s)
        return NULL;
    free(s->key);
    s->key = tombstone;
    m->len--;
    return s->value;
}

void *hf_map_next(const struct hf_map *m, size_t *pos, struct hf_str *ret_key)
{
    for (; *pos < m->cap; (*pos)++) {
        struct hf_map_slot *s = &m->slots[*pos];
        if (s->key && s->key != tombstone) {
            (*pos)++;
            if (ret_key)
                *ret_key = (struct hf_str){s->key, s->n};
            return s->value;
        }
    }
    return NULL;
}
