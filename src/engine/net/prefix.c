#include "engine/net/prefix.h"

static size_t width(const struct hf_addr *a)
{
    return a->family == 6 ? 16 : 4;
}

/* false when it would leave the family's space */
static bool step(struct hf_addr *a, int by)
{
    for (size_t i = width(a); i-- > 0;) {
        a->b[i] = (uint8_t)(a->b[i] + by);
        if (a->b[i] != (by > 0 ? 0 : 0xff))
            return true;
    }
    return false;
}

static struct hf_range range_of(const struct hf_cidr *c)
{
    struct hf_range r = {c->addr, c->addr};
    for (unsigned i = 0; i < width(&c->addr); i++) {
        unsigned keep = c->bits > i * 8 ? HF_MIN(c->bits - i * 8, 8u) : 0;
        r.hi.b[i] |= (uint8_t)(0xffu >> keep);
    }
    return r;
}

static void add(struct hf_ranges *rs, const struct hf_range *r)
{
    if (rs->n == rs->cap) {
        rs->cap = rs->cap ? rs->cap * 2 : 16;
        rs->v = hf_xrealloc(rs->v, rs->cap * sizeof(*rs->v));
    }
    rs->v[rs->n++] = *r;
}

void hf_ranges_done(struct hf_ranges *r)
{
    free(r->v);
    *r = (struct hf_ranges){0};
}

static int by_start(const void *a, const void *b)
{
    return hf_addr_cmp(&((const struct hf_range *)a)->lo, &((const struct hf_range *)b)->lo);
}

static void sort_and_merge(struct hf_ranges *rs)
{
    size_t kept = 0;
    if (!rs->n)
        return;
    qsort(rs->v, rs->n, sizeof(*rs->v), by_start);
    for (size_t i = 1; i < rs->n; i++) {
        struct hf_range *last = &rs->v[kept];
        struct hf_addr after = last->hi;
        bool touches = !step(&after, 1) || hf_addr_cmp(&rs->v[i].lo, &after) <= 0;
        if (!touches)
            rs->v[++kept] = rs->v[i];
        else if (hf_addr_cmp(&rs->v[i].hi, &last->hi) > 0)
            last->hi = rs->v[i].hi;
    }
    rs->n = kept + 1;
}

/* r without the ranges of closed, which are sorted. */
static void add_without(struct hf_ranges *rs, struct hf_range r, const struct hf_ranges *closed)
{
    for (size_t i = 0; i < closed->n; i++) {
        const struct hf_range *c = &closed->v[i];
        if (hf_addr_cmp(&c->hi, &r.lo) < 0 || hf_addr_cmp(&c->lo, &r.hi) > 0)
            continue;
        struct hf_range before = {r.lo, c->lo};
        if (hf_addr_cmp(&c->lo, &r.lo) > 0) {
            (void)step(&before.hi, -1);
            add(rs, &before);
        }
        r.lo = c->hi;
        if (hf_addr_cmp(&c->hi, &r.hi) >= 0 || !step(&r.lo, 1))
            return;
    }
    add(rs, &r);
}

void hf_ranges_make(const struct hf_cidr *c, size_t n, uint8_t family, const char *const *closed,
                    struct hf_ranges *ret)
{
    struct hf_ranges rs = {0}, cut = {0};
    for (; closed && *closed; closed++) {
        struct hf_cidr p;
        if (hf_cidr_parse(hf_str_c(*closed), &p) == 0) {
            struct hf_range r = range_of(&p);
            add(&cut, &r);
        }
    }
    sort_and_merge(&cut);
    for (size_t i = 0; i < n; i++) {
        if (c[i].addr.family != family)
            continue;
        struct hf_range r = range_of(&c[i]);
        if (hf_cidr_private(&c[i]))
            add(&rs, &r);
        else
            add_without(&rs, r, &cut);
    }
    hf_ranges_done(&cut);
    sort_and_merge(&rs);
    *ret = rs;
}
