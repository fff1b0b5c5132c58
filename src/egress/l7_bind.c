/* Is the address that a connection goes to one that the resolver answers for the name it says? */
#include "egress/l7_int.h"

struct hf_l7_bind {
    struct hf_l7_conn *c; /* keeps a reference */
    hf_l7_bind_cb cb;     /* NULL: cancelled */
    void *arg;
};

static void on_resolved(void *arg, int r, const struct hf_addr *addrs, size_t n)
{
    struct hf_l7_bind *b = arg;
    struct hf_l7_conn *c = b->c;
    bool yes = false;
    for (size_t i = 0; r >= 0 && i < n; i++)
        yes |= hf_addr_equal(&addrs[i], &c->dst);
    if (b->cb)
        b->cb(b->arg, yes);
    free(b);
    hf_l7_unref(c);
}

int hf_l7_bind(struct hf_l7_conn *c, const char *name, hf_l7_bind_cb cb, void *arg, struct hf_l7_bind **ret)
{
    if (hf_netd_learned(c->box, name, &c->dst))
        return 1;
    struct hf_l7_bind *b = hf_new(struct hf_l7_bind);
    b->c = c;
    b->cb = cb;
    b->arg = arg;
    c->handles++;
    *ret = b;
    hf_netd_resolve(c->box, name, on_resolved, b);
    return 0;
}

void hf_l7_bind_cancel(struct hf_l7_bind *b)
{
    if (b)
        b->cb = NULL;
}
