/* Names for netd's own use, by the rules that the box's own questions have. */
#include "egress/dns_int.h"

#include <stdio.h>

struct part {
    struct hf_dns_waiter w;
    struct job *job;
    uint16_t type;
};

struct job {
    struct hf_netd_box *box;
    struct part part[2]; /* A, AAAA */
    unsigned open;
    bool refused; /* some address of it may not be told, or the name itself */
    int r;
    hf_resolve_cb cb;
    void *arg;
    char name[HF_DNS_NAME_MAX];
    size_t n;
    struct hf_addr addrs[2 * HF_DNS_RECORDS_MAX];
    uv_timer_t *soon;
};

static void free_timer(uv_handle_t *h)
{
    free(h);
}

static void end(struct job *j)
{
    int r = j->n > 0 ? 0 : j->refused ? -EPERM : j->r < 0 ? j->r : -ENOENT;
    uv_close((uv_handle_t *)j->soon, free_timer);
    j->cb(j->arg, r, j->addrs, j->n);
    hf_netd_box_unref(j->box);
    free(j);
}

static void part_done(struct job *j)
{
    if (--j->open == 0)
        end(j);
}

static void take(struct job *j, const struct hf_dns_answer *a)
{
    uint64_t now = uv_now(j->box->d->loop);
    uint32_t ttl = a->expires_ms > now ? (uint32_t)((a->expires_ms - now) / 1000u) : 0;
    for (size_t i = 0; i < a->n; i++) {
        struct hf_addr addr;
        if (!hf_dns_rr_addr(a, &a->rr[i], &addr) || j->n == HF_ARRAY_LEN(j->addrs))
            continue;
        if (!hf_dns_addr_ok(j->box->policy, &addr, a->private_ok))
            j->refused = true;
        else if (hf_netd_learn(j->box, j->name, &addr, ttl, a->private_ok) == 0)
            j->addrs[j->n++] = addr;
    }
}

static void on_answer(struct hf_dns_waiter *w, int r, struct hf_dns_answer *a)
{
    struct part *p = HF_CONTAINER_OF(w, struct part, w);
    if (r < 0)
        p->job->r = r;
    else
        take(p->job, a);
    part_done(p->job);
}

static void ask(struct job *j, struct part *p, uint16_t type)
{
    struct hf_dns *dns = j->box->d->dns;
    struct hf_dns_query q = {.type = type, .class = HF_DNS_IN};
    struct hf_dns_judgement judged;
    (void)snprintf(q.name, sizeof(q.name), "%s", j->name);
    p->job = j;
    p->type = type;
    p->w.box = j->box;
    p->w.cb = on_answer;
    hf_dns_judge(j->box->policy, &q, j->box->d->cfg.ipv6, hf_dns_zone_of(&dns->cfg, j->name)->private_ok,
                 &judged);
    struct hf_dns_answer *a = NULL;
    int r = judged.verdict == HF_DNS_ASK ? hf_dns_lookup(dns, j->name, type, &p->w, &a) : 1;
    j->refused |= judged.verdict == HF_DNS_REFUSE;
    if (r == 0)
        return;
    if (r < 0)
        j->r = r;
    if (a)
        take(j, a);
    hf_dns_answer_unref(a);
    part_done(j);
}

static void on_soon(uv_timer_t *t)
{
    struct job *j = t->data;
    j->open = 3; /* the third holds j while both are begun */
    ask(j, &j->part[0], HF_DNS_A);
    ask(j, &j->part[1], HF_DNS_AAAA);
    part_done(j);
}

void hf_netd_resolve(struct hf_netd_box *b, const char *name, hf_resolve_cb cb, void *arg)
{
    struct job *j = hf_new(struct job);
    j->box = hf_netd_box_ref(b);
    j->cb = cb;
    j->arg = arg;
    (void)snprintf(j->name, sizeof(j->name), "%s", name);
    j->soon = hf_new(uv_timer_t);
    (void)uv_timer_init(b->d->loop, j->soon);
    j->soon->data = j;
    (void)uv_timer_start(j->soon, on_soon, 0, 0);
}
