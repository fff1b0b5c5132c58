/* The elements of boxes. What was applied is kept in memory, so that a change writes the difference only; a
 * new process reads it from the kernel. One transaction a change: a packet sees the old policy or the new
 * one. */
#include <linux/netlink.h>

#include "base/clock.h"
#include "base/id.h"
#include "engine/net/fabric.h"
#include "engine/net/prefix.h"

#define LEARNED_MAX 4096u /* learned addresses of one box at once */
#define DNS_RATE 500u     /* questions a second and box that reach the resolver's socket, which all share */
#define GENERATION_MAX 0x7fffffffu /* 0 and 0xffffffff have meanings as connection marks */
#define SWITCHES 4

static const char *const switch_sets[SWITCHES] = {HF_SET_OPEN, HF_SET_DNS, HF_SET_L7_ALL, HF_SET_NO_QUIC};

struct learned {
    struct hf_addr addr;
    uint64_t until_ms; /* monotonic; 0 = not known */
};

struct hf_net_box {
    uint32_t key, generation;
    bool switches[SWITCHES];
    size_t n_ports;
    uint16_t ports[HF_NET_PORTS_MAX];
    uint32_t conns, rate;
    struct hf_ranges trees[HF_TREES];
    struct hf_ranges singles; /* both families, lo == hi, sorted */
    struct learned *learned;
    size_t n_learned;
};

static struct hf_str key_text(const uint32_t *key)
{
    return (struct hf_str){(const char *)key, sizeof(*key)};
}

static struct hf_net_box *find(const struct hf_net *n, uint32_t key)
{
    return hf_map_get(&n->boxes, key_text(&key));
}

static void box_free(struct hf_net_box *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < HF_TREES; i++)
        hf_ranges_done(&b->trees[i]);
    hf_ranges_done(&b->singles);
    free(b->learned);
    free(b);
}

void hf_net_free_boxes(struct hf_net *n)
{
    struct hf_net_box *b;
    for (size_t pos = 0; (b = hf_map_next(&n->boxes, &pos, NULL));)
        box_free(b);
    hf_map_done(&n->boxes);
    n->boxes = (struct hf_map){0};
}

/* ---- elements ---- */

static struct hf_nft_elem mark_elem(uint32_t key)
{
    struct hf_nft_elem e = {0};
    hf_nft_key_u32(&e, key);
    return e;
}

static void put(struct hf_nft *t, bool add, const char *set, const struct hf_nft_elem *e)
{
    if (add)
        hf_nft_add(t, set, e);
    else
        hf_nft_del(t, set, e);
}

static void put_limit(struct hf_nft *t, bool add, const char *set, uint32_t key, unsigned kind,
                      uint32_t limit)
{
    struct hf_nft_elem e = mark_elem(key);
    e.kind = kind;
    e.limit = limit;
    put(t, add, set, &e);
}

static void put_address(struct hf_nft *t, bool add, const char *set, uint32_t key, const struct hf_addr *a)
{
    struct hf_nft_elem e = mark_elem(key);
    hf_nft_key_addr(&e, a);
    put(t, add, set, &e);
}

/* What every box has for as long as it has a policy. */
static void put_base(struct hf_nft *t, bool add, const struct hf_net_config *cfg, uint32_t key)
{
    static const char *const counters[] = {HF_SET_OUT, HF_SET_IN, HF_SET_OPENED, HF_SET_DENIED};
    struct hf_net_addrs a;
    if (hf_net_addrs(cfg, key, &a) < 0)
        return; /* not with a configuration that hf_net_open took */
    for (size_t i = 0; i < HF_ARRAY_LEN(counters); i++) {
        struct hf_nft_elem e = mark_elem(key);
        put(t, add, counters[i], &e);
    }
    put_limit(t, add, HF_SET_LOGS, key, HF_NFT_LIMIT, HF_NET_LOG_RATE);
    put_limit(t, add, HF_SET_DNS_RATES, key, HF_NFT_LIMIT_OVER, DNS_RATE);
    struct hf_nft_elem e = {.has_data = true, .data = key};
    hf_nft_key_ifname(&e, a.ifname);
    put(t, add, HF_SET_BOXES, &e);
    hf_nft_key_addr(&e, &a.box4);
    put(t, add, HF_SET_SRC4, &e);
    e.key_n = 16;
    hf_nft_key_addr(&e, &a.box6);
    put(t, add, HF_SET_SRC6, &e);
}

static void put_generation(struct hf_nft *t, bool add, const struct hf_net_box *b)
{
    struct hf_nft_elem gen = mark_elem(b->key), fresh = mark_elem(b->key);
    gen.has_data = true;
    gen.data = b->generation;
    hf_nft_key_u32(&fresh, b->generation);
    put(t, add, HF_SET_GEN, &gen);
    put(t, add, HF_SET_FRESH, &fresh);
}

/* The address after a, seen as part of the whole key: the last one carries into the mark, and whatever bytes
 * come out are the next key in the tree's order. */
static void end_key(struct hf_nft_elem *e)
{
    for (size_t i = e->key_n; i-- > 0;)
        if (++e->key[i])
            break;
    e->end = true;
}

static void put_range(struct hf_nft *t, bool add, const char *set, uint32_t key, const struct hf_range *r)
{
    put_address(t, add, set, key, &r->lo);
    struct hf_nft_elem e = mark_elem(key);
    hf_nft_key_addr(&e, &r->hi);
    end_key(&e);
    put(t, add, set, &e);
}

static void put_single(struct hf_nft *t, bool add, const char *set, uint32_t key, const struct hf_range *r)
{
    put_address(t, add, r->lo.family == 6 ? HF_SET_SINGLE6 : HF_SET_SINGLE4, key, &r->lo);
}

/* Calls put for what only `a` has. */
static void put_missing(struct hf_nft *t, bool add, const char *set, uint32_t key, const struct hf_ranges *a,
                        const struct hf_ranges *b,
                        void (*one)(struct hf_nft *, bool, const char *, uint32_t, const struct hf_range *))
{
    for (size_t i = 0, j = 0; i < a->n; i++) {
        while (j < b->n && hf_addr_cmp(&b->v[j].lo, &a->v[i].lo) < 0)
            j++;
        bool same =
            j < b->n && hf_addr_equal(&b->v[j].lo, &a->v[i].lo) && hf_addr_equal(&b->v[j].hi, &a->v[i].hi);
        if (!same)
            one(t, add, set, key, &a->v[i]);
    }
}

static bool has_port(const struct hf_net_box *b, uint16_t port)
{
    for (size_t i = 0; i < b->n_ports; i++)
        if (b->ports[i] == port)
            return true;
    return false;
}

static void put_ports(struct hf_nft *t, bool add, const struct hf_net_box *a, const struct hf_net_box *b)
{
    for (size_t i = 0; i < a->n_ports; i++) {
        struct hf_nft_elem e = mark_elem(a->key);
        hf_nft_key_port(&e, a->ports[i]);
        if (!has_port(b, a->ports[i]))
            put(t, add, HF_SET_L7_PORTS, &e);
    }
}

/* Half of a change: takes away what only `a` has (add false), or adds it (add true). */
static void put_difference(struct hf_nft *t, bool add, const struct hf_net_box *a, const struct hf_net_box *b)
{
    for (size_t i = 0; i < SWITCHES; i++) {
        struct hf_nft_elem e = mark_elem(a->key);
        if (a->switches[i] && !b->switches[i])
            put(t, add, switch_sets[i], &e);
    }
    if (a->rate && a->rate != b->rate)
        put_limit(t, add, HF_SET_RATES, a->key, HF_NFT_LIMIT_OVER, a->rate);
    if (a->conns && a->conns != b->conns)
        put_limit(t, add, HF_SET_CONNS, a->key, HF_NFT_CONNS_OVER, a->conns);
    if (a->generation)
        put_generation(t, add, a);
    put_ports(t, add, a, b);
    put_missing(t, add, NULL, a->key, &a->singles, &b->singles, put_single);
    for (size_t i = 0; i < HF_TREES; i++)
        put_missing(t, add, hf_tree_set(i, a->key), a->key, &a->trees[i], &b->trees[i], put_range);
}

/* An element may have expired or not: it is made sure of, then taken away. */
static void drop_learned(struct hf_nft *t, const struct hf_net_box *b)
{
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < b->n_learned; i++) {
            const struct hf_addr *a = &b->learned[i].addr;
            put_address(t, pass == 0, a->family == 6 ? HF_SET_LEARNED6 : HF_SET_LEARNED4, b->key, a);
        }
}

/* ---- policies ---- */

static int by_address(const void *a, const void *b)
{
    return hf_addr_cmp(&((const struct hf_range *)a)->lo, &((const struct hf_range *)b)->lo);
}

static void find_singles(const struct hf_net_policy *p, struct hf_ranges *ret)
{
    struct hf_ranges s = {.v = hf_xcalloc(p->n_allow + 1, sizeof(*s.v))};
    for (size_t i = 0; i < p->n_allow; i++)
        if (p->allow[i].bits == (p->allow[i].addr.family == 6 ? 128 : 32))
            s.v[s.n++] = (struct hf_range){p->allow[i].addr, p->allow[i].addr};
    qsort(s.v, s.n, sizeof(*s.v), by_address);
    size_t kept = 0;
    for (size_t i = 0; i < s.n; i++)
        if (!kept || !hf_addr_equal(&s.v[kept - 1].lo, &s.v[i].lo))
            s.v[kept++] = s.v[i];
    s.n = kept;
    *ret = s;
}

static struct hf_net_box *box_of(const struct hf_net_policy *p, const struct hf_net_box *old)
{
    struct hf_net_box *b = hf_new(struct hf_net_box);
    uint32_t start;
    hf_random(&start, sizeof(start));
    b->key = p->key;
    b->generation = (old ? old->generation : start) % GENERATION_MAX + 1;
    const bool switches[SWITCHES] = {p->open, p->dns, p->l7_all, p->no_quic};
    memcpy(b->switches, switches, sizeof(switches));
    for (size_t i = 0; i < p->n_l7_ports; i++)
        if (!has_port(b, p->l7_ports[i]))
            b->ports[b->n_ports++] = p->l7_ports[i];
    b->conns = p->conns_max ? p->conns_max : HF_NET_CONNS_DEFAULT;
    b->rate = p->conns_rate ? p->conns_rate : HF_NET_RATE_DEFAULT;
    hf_ranges_make(p->allow, p->n_allow, 4, hf_private4, &b->trees[0]);
    hf_ranges_make(p->allow, p->n_allow, 6, hf_private6, &b->trees[1]);
    hf_ranges_make(p->deny, p->n_deny, 4, NULL, &b->trees[2]);
    hf_ranges_make(p->deny, p->n_deny, 6, NULL, &b->trees[3]);
    find_singles(p, &b->singles);
    return b;
}

static int check(const struct hf_net_policy *p, struct hf_err *err)
{
    size_t entries[2] = {0};
    for (size_t i = 0; i < p->n_allow + p->n_deny; i++)
        entries[(i < p->n_allow ? p->allow[i] : p->deny[i - p->n_allow]).addr.family == 6]++;
    if (HF_MAX(entries[0], entries[1]) > HF_NET_ENTRIES_MAX)
        return hf_err_set(err, -E2BIG, "a sandbox may have at most %u prefixes of one family",
                          HF_NET_ENTRIES_MAX);
    if (p->n_l7_ports > HF_NET_PORTS_MAX)
        return hf_err_set(err, -E2BIG, "a sandbox may have at most %u intercepted ports", HF_NET_PORTS_MAX);
    return p->key ? 0 : hf_err_set(err, -EINVAL, "a sandbox's key in the network is never 0");
}

static int change(struct hf_net *n, uint32_t key, const struct hf_net_box *new, struct hf_err *err)
{
    static const struct hf_net_box none;
    const struct hf_net_box *old = find(n, key);
    struct hf_nft *t = &n->batch;
    hf_nft_begin(t, HF_NFT_TABLE);
    if (!old && new)
        put_base(t, true, &n->cfg, key);
    if (old)
        put_difference(t, false, old, new ? new : &none);
    if (new)
        put_difference(t, true, new, old ? old : &none);
    if (old && !new) {
        drop_learned(t, old);
        put_base(t, false, &n->cfg, key);
    }
    return t->n ? hf_nft_commit(t, n->nfnl_fd, err) : 0;
}

static int learn_again(struct hf_net *n, struct hf_err *err)
{
    hf_net_free_boxes(n);
    return hf_net_learn_boxes(n, err);
}

/* A box that this process does not know may be another's work: its elements are learned first, or they would
 * stay beside the new ones. */
static int learn_missing(struct hf_net *n, uint32_t key, struct hf_err *err)
{
    struct hf_net_addrs a;
    struct hf_nft_elem e = {0};
    struct hf_nft_found f;
    if (find(n, key) || hf_net_addrs(&n->cfg, key, &a) < 0)
        return 0;
    hf_nft_key_ifname(&e, a.ifname);
    return hf_nft_get(n->nfnl_fd, HF_NFT_TABLE, HF_SET_BOXES, &e, &f) == 0 ? learn_again(n, err) : 0;
}

/* Memory and kernel differ only if somebody else wrote to the table: read it again, then once more. */
static int change_twice(struct hf_net *n, uint32_t key, const struct hf_net_box *new, struct hf_err *err)
{
    struct hf_err why = {0};
    int r = change(n, key, new, &why);
    if (r == -ENOENT || r == -EEXIST) {
        r = learn_again(n, err);
        return r < 0 ? r : change(n, key, new, err);
    }
    return r < 0 ? hf_err_set(err, r, "%s", why.msg) : 0;
}

int hf_net_apply(struct hf_net *n, const struct hf_net_policy *p, struct hf_err *err)
{
    int r = check(p, err);
    r = r < 0 ? r : learn_missing(n, p->key, err);
    if (r < 0)
        return r;
    struct hf_net_box *b = box_of(p, find(n, p->key));
    r = change_twice(n, p->key, b, err);
    if (r < 0) {
        box_free(b);
        return hf_err_wrap(err, "the network policy of sandbox network %u", p->key);
    }
    struct hf_net_box *old = hf_map_put(&n->boxes, key_text(&p->key), b);
    if (old) {
        b->learned = hf_take_ptr(old->learned);
        b->n_learned = old->n_learned;
        box_free(old);
    }
    return 0;
}

int hf_net_forget(struct hf_net *n, uint32_t key, struct hf_err *err)
{
    int r = learn_missing(n, key, err);
    if (r < 0 || !find(n, key))
        return r;
    r = change_twice(n, key, NULL, err);
    if (r < 0)
        return hf_err_wrap(err, "closing sandbox network %u", key);
    box_free(hf_map_del(&n->boxes, key_text(&key)));
    return 0;
}

/* ---- learned addresses ---- */

static struct learned *find_learned(struct hf_net_box *b, const struct hf_addr *a)
{
    for (size_t i = 0; i < b->n_learned; i++)
        if (hf_addr_equal(&b->learned[i].addr, a))
            return &b->learned[i];
    return NULL;
}

static struct learned *new_learned(struct hf_net_box *b, const struct hf_addr *a, uint64_t now_ms)
{
    size_t kept = 0;
    if (b->n_learned == LEARNED_MAX) {
        for (size_t i = 0; i < b->n_learned; i++)
            if (b->learned[i].until_ms > now_ms)
                b->learned[kept++] = b->learned[i];
        b->n_learned = kept;
    }
    if (b->n_learned == LEARNED_MAX)
        return NULL;
    if ((b->n_learned & (b->n_learned - 1)) == 0) /* doubles */
        b->learned = hf_xrealloc(b->learned, HF_MAX(b->n_learned * 2, (size_t)1) * sizeof(*b->learned));
    b->learned[b->n_learned] = (struct learned){.addr = *a};
    return &b->learned[b->n_learned++];
}

int hf_net_learn(struct hf_net *n, uint32_t key, const struct hf_addr *a, uint32_t ttl_s)
{
    struct hf_net_box *b = find(n, key);
    uint64_t now = hf_mono_ms(), until = now + (uint64_t)ttl_s * 1000;
    if (!b)
        return -ENOENT;
    if (!ttl_s)
        return 0;
    struct learned *l = find_learned(b, a);
    if (l && l->until_ms >= until)
        return 0; /* another name holds the address for longer */
    if (!l && !(l = new_learned(b, a, now)))
        return -ENOSPC;
    const char *set = a->family == 6 ? HF_SET_LEARNED6 : HF_SET_LEARNED4;
    struct hf_nft_elem e = mark_elem(key);
    hf_nft_key_addr(&e, a);
    e.timeout_ms = (uint64_t)ttl_s * 1000;
    /* An element that is there keeps its old end: it goes and comes again. */
    hf_nft_begin(&n->batch, HF_NFT_TABLE);
    hf_nft_add(&n->batch, set, &e);
    hf_nft_del(&n->batch, set, &e);
    hf_nft_add(&n->batch, set, &e);
    int r = hf_nft_commit(&n->batch, n->nfnl_fd, NULL);
    if (r == 0)
        l->until_ms = until;
    return r;
}

int hf_net_unlearn(struct hf_net *n, uint32_t key)
{
    struct hf_net_box *b = find(n, key);
    if (!b || !b->n_learned)
        return 0;
    hf_nft_begin(&n->batch, HF_NFT_TABLE);
    drop_learned(&n->batch, b);
    int r = hf_nft_commit(&n->batch, n->nfnl_fd, NULL);
    if (r == 0)
        b->n_learned = 0;
    return r;
}

/* ---- figures ---- */

int hf_net_counters(struct hf_net *n, uint32_t key, struct hf_net_counters *ret)
{
    static const char *const sets[] = {HF_SET_OUT, HF_SET_IN, HF_SET_OPENED, HF_SET_DENIED};
    struct hf_nft_found f[HF_ARRAY_LEN(sets)];
    struct hf_nft_elem e = mark_elem(key);
    for (size_t i = 0; i < HF_ARRAY_LEN(sets); i++) {
        int r = hf_nft_get(n->nfnl_fd, HF_NFT_TABLE, sets[i], &e, &f[i]);
        if (r < 0)
            return r;
    }
    *ret = (struct hf_net_counters){
        .bytes_out = f[0].bytes,
        .packets_out = f[0].packets,
        .bytes_in = f[1].bytes,
        .packets_in = f[1].packets,
        .connections = f[2].packets,
        .denied = f[3].packets,
    };
    return 0;
}

/* ---- what the kernel holds ---- */

struct learning {
    struct hf_net *n;
    size_t which; /* index of the switch or tree */
    uint8_t family;
};

static struct hf_net_box *box_of_mark(const struct learning *l, const struct hf_nft_found *f)
{
    uint32_t key;
    memcpy(&key, f->e.key, sizeof(key));
    return f->e.key_n >= sizeof(key) ? find(l->n, key) : NULL;
}

static struct hf_addr address_of(const struct learning *l, const uint8_t *key)
{
    struct hf_addr a = {.family = l->family};
    memcpy(a.b, key + 4, l->family == 6 ? 16 : 4);
    return a;
}

struct keys {
    uint32_t *v;
    size_t n;
};

static void note_key(void *arg, const struct hf_nft_found *f)
{
    struct keys *k = arg;
    if ((k->n & (k->n - 1)) == 0) /* doubles */
        k->v = hf_xrealloc(k->v, HF_MAX(k->n * 2, (size_t)1) * sizeof(*k->v));
    k->v[k->n++] = f->e.data;
}

/* From the kernel: another process may be the one that writes. */
int hf_net_keys(struct hf_net *n, uint32_t **ret, size_t *ret_n)
{
    struct keys k = {0};
    int r, tries = 0;
    do {
        k.n = 0;
        r = hf_nft_dump(n->nfnl_fd, HF_NFT_TABLE, HF_SET_BOXES, note_key, &k);
    } while (r == -EINTR && ++tries < 3);
    if (r < 0) {
        free(k.v);
        return r;
    }
    *ret = k.v ? k.v : hf_xmalloc(sizeof(*k.v));
    *ret_n = k.n;
    return 0;
}

static void note_box(void *arg, const struct hf_nft_found *f)
{
    struct learning *l = arg;
    struct hf_net_box *b = hf_new(struct hf_net_box);
    b->key = f->e.data;
    box_free(hf_map_put(&l->n->boxes, key_text(&b->key), b));
}

static void note_generation(void *arg, const struct hf_nft_found *f)
{
    struct hf_net_box *b = box_of_mark(arg, f);
    if (b)
        b->generation = f->e.data;
}

static void note_rate(void *arg, const struct hf_nft_found *f)
{
    struct hf_net_box *b = box_of_mark(arg, f);
    if (b)
        b->rate = f->e.limit;
}

static void note_conns(void *arg, const struct hf_nft_found *f)
{
    struct hf_net_box *b = box_of_mark(arg, f);
    if (b)
        b->conns = f->e.limit;
}

static void note_switch(void *arg, const struct hf_nft_found *f)
{
    struct learning *l = arg;
    struct hf_net_box *b = box_of_mark(l, f);
    if (b)
        b->switches[l->which] = true;
}

static void note_port(void *arg, const struct hf_nft_found *f)
{
    struct hf_net_box *b = box_of_mark(arg, f);
    if (b && b->n_ports < HF_NET_PORTS_MAX && f->e.key_n >= 6)
        b->ports[b->n_ports++] = (uint16_t)(f->e.key[4] << 8 | f->e.key[5]);
}

static void push(struct hf_ranges *rs, const struct hf_range *r)
{
    if (rs->n == rs->cap) {
        rs->cap = rs->cap ? rs->cap * 2 : 16;
        rs->v = hf_xrealloc(rs->v, rs->cap * sizeof(*rs->v));
    }
    rs->v[rs->n++] = *r;
}

static void note_single(void *arg, const struct hf_nft_found *f)
{
    struct learning *l = arg;
    struct hf_net_box *b = box_of_mark(l, f);
    struct hf_addr a = address_of(l, f->e.key);
    if (b)
        push(&b->singles, &(struct hf_range){a, a});
}

static void note_learned(void *arg, const struct hf_nft_found *f)
{
    struct learning *l = arg;
    struct hf_net_box *b = box_of_mark(l, f);
    struct hf_addr a = address_of(l, f->e.key);
    if (b)
        (void)new_learned(b, &a, UINT64_MAX);
}

/* Starts and ends come in any order: kept apart here, paired when all are there. An end is turned back into
 * the last address inside. */
static void note_bound(void *arg, const struct hf_nft_found *f)
{
    struct learning *l = arg;
    struct hf_nft_found back = *f;
    for (size_t i = f->e.key_n; f->e.end && i-- > 0;)
        if (back.e.key[i]--)
            break;
    struct hf_net_box *b = box_of_mark(l, &back);
    if (!b)
        return;
    struct hf_range r = {0};
    *(f->e.end ? &r.hi : &r.lo) = address_of(l, back.e.key);
    push(&b->trees[l->which], &r);
}

static int by_bound(const void *a, const void *b)
{
    const struct hf_range *x = a, *y = b;
    const struct hf_addr *p = x->lo.family ? &x->lo : &x->hi, *q = y->lo.family ? &y->lo : &y->hi;
    int c = hf_addr_cmp(p, q);
    return c ? c : (int)(x->lo.family == 0) - (int)(y->lo.family == 0);
}

static void pair_bounds(struct hf_ranges *rs)
{
    size_t kept = 0;
    if (rs->n)
        qsort(rs->v, rs->n, sizeof(*rs->v), by_bound);
    for (size_t i = 0; i + 1 < rs->n; i++)
        if (rs->v[i].lo.family && rs->v[i + 1].hi.family)
            rs->v[kept++] = (struct hf_range){rs->v[i].lo, rs->v[i + 1].hi};
    rs->n = kept;
}

static int read_set(struct learning *l, const char *set, void (*note)(void *, const struct hf_nft_found *))
{
    int r;
    unsigned tries = 0;
    do /* -EINTR: the set changed while it was read; nobody else writes, so this ends */
        r = hf_nft_dump(l->n->nfnl_fd, HF_NFT_TABLE, set, note, l);
    while (r == -EINTR && ++tries < 3);
    return r;
}

static int read_lists(struct learning *l)
{
    int r = 0;
    for (l->which = 0; r == 0 && l->which < SWITCHES; l->which++)
        r = read_set(l, switch_sets[l->which], note_switch);
    for (l->which = 0; r == 0 && l->which < HF_TREES; l->which++) {
        l->family = l->which % 2 ? 6 : 4;
        for (uint32_t shard = 0; r == 0 && shard < HF_TREE_SHARDS; shard++)
            r = read_set(l, hf_tree_set(l->which, shard), note_bound);
    }
    l->family = 4;
    r = r < 0 ? r : read_set(l, HF_SET_SINGLE4, note_single);
    r = r < 0 ? r : read_set(l, HF_SET_LEARNED4, note_learned);
    l->family = 6;
    r = r < 0 ? r : read_set(l, HF_SET_SINGLE6, note_single);
    return r < 0 ? r : read_set(l, HF_SET_LEARNED6, note_learned);
}

int hf_net_learn_boxes(struct hf_net *n, struct hf_err *err)
{
    struct learning l = {.n = n};
    int r = read_set(&l, HF_SET_BOXES, note_box);
    if (r == 0 && !n->boxes.len)
        return 0;
    r = r < 0 ? r : read_set(&l, HF_SET_GEN, note_generation);
    r = r < 0 ? r : read_set(&l, HF_SET_RATES, note_rate);
    r = r < 0 ? r : read_set(&l, HF_SET_CONNS, note_conns);
    r = r < 0 ? r : read_set(&l, HF_SET_L7_PORTS, note_port);
    r = r < 0 ? r : read_lists(&l);
    if (r < 0)
        return hf_err_set(err, r, "reading the sandbox network's sets: %s", strerror(-r));
    struct hf_net_box *b;
    for (size_t pos = 0; (b = hf_map_next(&n->boxes, &pos, NULL));) {
        for (size_t i = 0; i < HF_TREES; i++)
            pair_bounds(&b->trees[i]);
        if (b->singles.n)
            qsort(b->singles.v, b->singles.n, sizeof(*b->singles.v), by_address);
    }
    return 0;
}
