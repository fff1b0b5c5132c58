/* Building of queries and answers. */
#include "egress/dns_msg.h"

#include <stdio.h>

#define FLAG_QR 0x8000u
#define FLAG_TC 0x0200u
#define FLAG_RD 0x0100u
#define FLAG_RA 0x0080u
#define QUESTION_AT 12u
#define NAMES_MAX (HF_DNS_CHAIN_MAX + 2)

/* Writes behind a limit are not done but remembered in over. */
struct writer {
    uint8_t *p;
    size_t n, max;
    bool over;
    /* Names that a pointer may stand for: owner texts and where they are. */
    const char *names[NAMES_MAX];
    size_t at[NAMES_MAX], n_names;
};

static void put(struct writer *w, const void *p, size_t n)
{
    if (w->over || w->max - w->n < n) {
        w->over = true;
        return;
    }
    memcpy(w->p + w->n, p, n);
    w->n += n;
}

static void put16(struct writer *w, uint16_t v)
{
    uint8_t b[2] = {(uint8_t)(v >> 8), (uint8_t)v};
    put(w, b, 2);
}

static void put32(struct writer *w, uint32_t v)
{
    put16(w, (uint16_t)(v >> 16));
    put16(w, (uint16_t)v);
}

static bool put_name(struct writer *w, const char *name)
{
    while (*name) {
        size_t len = strcspn(name, ".");
        uint8_t byte = (uint8_t)len;
        if (len == 0 || len > 63)
            return false;
        put(w, &byte, 1);
        put(w, name, len);
        name += len;
        if (*name == '.' && !*++name)
            return false;
    }
    put(w, "", 1);
    return true;
}

/* A name that was written before becomes a pointer. */
static void put_owner(struct writer *w, const char *name)
{
    for (size_t i = 0; i < w->n_names; i++)
        if (strcmp(w->names[i], name) == 0) {
            put16(w, (uint16_t)(0xc000u | w->at[i]));
            return;
        }
    if (w->n_names < NAMES_MAX && w->n < 0x3fff) {
        w->names[w->n_names] = name;
        w->at[w->n_names++] = w->n;
    }
    (void)put_name(w, name);
}

static void put_opt(struct writer *w, uint8_t ext_rcode, uint16_t ede, const char *text)
{
    size_t text_n = ede == HF_DNS_EDE_NONE || !text ? 0 : strnlen(text, HF_DNS_EDE_TEXT_MAX);
    put(w, "", 1);
    put16(w, HF_DNS_OPT);
    put16(w, HF_DNS_EDNS_SIZE);
    put32(w, (uint32_t)ext_rcode << 24);
    if (ede == HF_DNS_EDE_NONE) {
        put16(w, 0);
        return;
    }
    put16(w, (uint16_t)(6 + text_n));
    put16(w, 15); /* the option's code happens to be 15, too */
    put16(w, (uint16_t)(2 + text_n));
    put16(w, ede);
    put(w, text, text_n);
}

int hf_dns_build_query(uint16_t id, const char *name, uint16_t type, bool edns, uint8_t *out, size_t max)
{
    struct writer w = {.p = out, .max = max};
    put16(&w, id);
    put16(&w, FLAG_RD);
    put16(&w, 1);
    put32(&w, 0);
    put16(&w, edns);
    size_t start = w.n;
    if (!put_name(&w, name) || w.n - start > HF_DNS_WIRE_NAME_MAX)
        return -EINVAL;
    put16(&w, type);
    put16(&w, HF_DNS_IN);
    if (edns)
        put_opt(&w, 0, HF_DNS_EDE_NONE, NULL);
    return w.over ? -EMSGSIZE : (int)w.n;
}

static void patch16(struct writer *w, size_t at, uint16_t v)
{
    w->p[at] = (uint8_t)(v >> 8);
    w->p[at + 1] = (uint8_t)v;
}

static void put_head(struct writer *w, const struct hf_dns_query *q, uint8_t rcode)
{
    put16(w, q->id);
    put16(w, (uint16_t)(FLAG_QR | FLAG_RA | (q->rd ? FLAG_RD : 0) | (rcode & 15u)));
    put16(w, q->wire_n ? 1 : 0);
    put32(w, 0);
    put16(w, 0);
    if (q->wire_n) {
        put(w, q->wire, q->wire_n);
        put16(w, q->type);
        put16(w, q->class);
        w->names[0] = q->name;
        w->at[0] = QUESTION_AT;
        w->n_names = 1;
    }
}

static void put_record(struct writer *w, const struct hf_dns_answer *a, const struct hf_dns_rr *rr,
                       uint32_t ttl_s)
{
    put_owner(w, a->pool + rr->name);
    put16(w, rr->type);
    put16(w, HF_DNS_IN);
    put32(w, ttl_s);
    put16(w, rr->data_n);
    put(w, a->pool + rr->data, rr->data_n);
}

size_t hf_dns_build(const struct hf_dns_query *q, const struct hf_dns_response *r, uint8_t *out, size_t max)
{
    struct writer w = {.p = out, .max = max};
    put_head(&w, q, r->rcode);
    size_t head = w.n, opt = q->edns ? 17 + HF_DNS_EDE_TEXT_MAX : 0;
    uint16_t counts[2] = {0, 0};
    w.max -= HF_MIN(opt, w.max - w.n); /* the OPT record has its place in any case */
    const struct hf_dns_answer *a = r->answer;
    for (size_t i = 0; a && i < a->n; i++) {
        if (r->skip && r->skip[i])
            continue;
        put_record(&w, a, &a->rr[i], r->ttl_s);
        counts[a->rr[i].authority]++;
    }
    bool truncated = w.over;
    w.max = max;
    if (truncated) {
        w.n = head;
        w.over = false;
        w.p[2] |= FLAG_TC >> 8;
    } else {
        patch16(&w, 6, counts[0]);
        patch16(&w, 8, counts[1]);
    }
    if (q->edns) {
        patch16(&w, 10, 1);
        put_opt(&w, r->rcode >> 4, r->ede, r->ede_text);
    }
    return w.n;
}
