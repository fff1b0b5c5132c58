#include "engine/net/nft.h"

#include <arpa/inet.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <sys/socket.h>

#define LIST_MAX 60000u /* an attribute's length is 16 bits wide */
#define MSG(type) (uint16_t)(NFNL_SUBSYS_NFTABLES << 8 | (type))
#define BURST_MIN 5u

/* ---- messages ---- */

static void begin(struct hf_nl *nl, uint16_t type, uint16_t flags)
{
    struct nfgenmsg g = {.nfgen_family = NFPROTO_INET, .version = NFNETLINK_V0};
    hf_nl_begin(nl, MSG(type), flags, &g, sizeof(g));
}

static void batch_mark(struct hf_nl *nl, uint16_t type)
{
    struct nfgenmsg g = {
        .nfgen_family = AF_UNSPEC, .version = NFNETLINK_V0, .res_id = htons(NFNL_SUBSYS_NFTABLES)};
    hf_nl_begin(nl, type, 0, &g, sizeof(g));
    hf_nl_end(nl);
}

void hf_nft_begin(struct hf_nft *b, const char *table)
{
    hf_nl_reset(&b->nl);
    b->table = table;
    b->set = NULL;
    b->n = 0;
    batch_mark(&b->nl, NFNL_MSG_BATCH_BEGIN);
}

static void close_elements(struct hf_nft *b)
{
    if (!b->set)
        return;
    hf_nl_nest_end(&b->nl, b->list);
    hf_nl_end(&b->nl);
    b->set = NULL;
}

static void open_elements(struct hf_nft *b, const char *set, bool del)
{
    close_elements(b);
    begin(&b->nl, del ? NFT_MSG_DELSETELEM : NFT_MSG_NEWSETELEM, del ? 0 : NLM_F_CREATE);
    hf_nl_put_str(&b->nl, NFTA_SET_ELEM_LIST_TABLE, b->table);
    hf_nl_put_str(&b->nl, NFTA_SET_ELEM_LIST_SET, set);
    b->list = hf_nl_nest(&b->nl, NFTA_SET_ELEM_LIST_ELEMENTS);
    b->set = set;
    b->del = del;
}

int hf_nft_commit(struct hf_nft *b, int fd, struct hf_err *err)
{
    close_elements(b);
    /* The last message of the transaction asks for an answer: the kernel works the whole batch off inside
     * the send, so that every error is there to be read when it returns. */
    struct nlmsghdr h;
    memcpy(&h, b->nl.p + b->nl.head, sizeof(h));
    h.nlmsg_flags |= NLM_F_ACK;
    memcpy(b->nl.p + b->nl.head, &h, sizeof(h));
    batch_mark(&b->nl, NFNL_MSG_BATCH_END);
    return hf_nl_talk_batch(fd, &b->nl, err);
}

void hf_nft_done(struct hf_nft *b)
{
    hf_nl_done(&b->nl);
    *b = (struct hf_nft){0};
}

/* ---- elements ---- */

static void put_value(struct hf_nl *nl, uint16_t type, const void *p, size_t n)
{
    size_t at = hf_nl_nest(nl, type);
    hf_nl_put(nl, NFTA_DATA_VALUE, p, n);
    hf_nl_nest_end(nl, at);
}

static void put_limit(struct hf_nl *nl, const struct hf_nft_elem *e)
{
    hf_nl_put_str(nl, NFTA_EXPR_NAME, "limit");
    size_t data = hf_nl_nest(nl, NFTA_EXPR_DATA);
    hf_nl_put_be64(nl, NFTA_LIMIT_RATE, e->limit);
    hf_nl_put_be64(nl, NFTA_LIMIT_UNIT, 1); /* seconds */
    hf_nl_put_be32(nl, NFTA_LIMIT_BURST, HF_MAX(e->limit, BURST_MIN));
    hf_nl_put_be32(nl, NFTA_LIMIT_TYPE, NFT_LIMIT_PKTS);
    hf_nl_put_be32(nl, NFTA_LIMIT_FLAGS, e->kind == HF_NFT_LIMIT_OVER ? NFT_LIMIT_F_INV : 0);
    hf_nl_nest_end(nl, data);
}

static void put_conns(struct hf_nl *nl, const struct hf_nft_elem *e)
{
    hf_nl_put_str(nl, NFTA_EXPR_NAME, "connlimit");
    size_t data = hf_nl_nest(nl, NFTA_EXPR_DATA);
    hf_nl_put_be32(nl, NFTA_CONNLIMIT_COUNT, e->limit);
    hf_nl_put_be32(nl, NFTA_CONNLIMIT_FLAGS, NFT_CONNLIMIT_F_INV);
    hf_nl_nest_end(nl, data);
}

static void put_elem(struct hf_nl *nl, const struct hf_nft_elem *e)
{
    size_t at = hf_nl_nest(nl, NFTA_LIST_ELEM);
    put_value(nl, NFTA_SET_ELEM_KEY, e->key, e->key_n);
    if (e->end)
        hf_nl_put_be32(nl, NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END);
    if (e->has_data)
        put_value(nl, NFTA_SET_ELEM_DATA, &e->data, sizeof(e->data));
    if (e->timeout_ms)
        hf_nl_put_be64(nl, NFTA_SET_ELEM_TIMEOUT, e->timeout_ms);
    if (e->kind != HF_NFT_PLAIN) {
        size_t expr = hf_nl_nest(nl, NFTA_SET_ELEM_EXPR);
        if (e->kind == HF_NFT_CONNS_OVER)
            put_conns(nl, e);
        else
            put_limit(nl, e);
        hf_nl_nest_end(nl, expr);
    }
    hf_nl_nest_end(nl, at);
}

static void element(struct hf_nft *b, const char *set, bool del, const struct hf_nft_elem *e)
{
    if (!b->set || b->del != del || strcmp(b->set, set) != 0 || b->nl.n - b->list > LIST_MAX)
        open_elements(b, set, del);
    put_elem(&b->nl, e);
    b->n++;
}

void hf_nft_add(struct hf_nft *b, const char *set, const struct hf_nft_elem *e)
{
    element(b, set, false, e);
}

void hf_nft_del(struct hf_nft *b, const char *set, const struct hf_nft_elem *e)
{
    struct hf_nft_elem only_key = {.key_n = e->key_n, .end = e->end};
    memcpy(only_key.key, e->key, e->key_n);
    element(b, set, true, &only_key);
}

static void key_part(struct hf_nft_elem *e, const void *p, size_t n)
{
    memcpy(e->key + e->key_n, p, n);
    e->key_n += (n + 3) & ~(size_t)3;
}

void hf_nft_key_u32(struct hf_nft_elem *e, uint32_t host_order)
{
    key_part(e, &host_order, sizeof(host_order));
}

void hf_nft_key_port(struct hf_nft_elem *e, uint16_t port)
{
    uint16_t be = htons(port);
    key_part(e, &be, sizeof(be));
}

void hf_nft_key_addr(struct hf_nft_elem *e, const struct hf_addr *a)
{
    key_part(e, a->b, a->family == 6 ? 16 : 4);
}

void hf_nft_key_ifname(struct hf_nft_elem *e, const char *name)
{
    key_part(e, name, strlen(name));
    e->key_n = IFNAMSIZ; /* zeroes behind the name */
}

/* ---- reading ---- */

struct reader {
    void (*each)(void *arg, const struct hf_nft_found *f);
    void *arg;
};

static void read_expr(const struct nlattr *expr, struct hf_nft_found *f)
{
    const struct nlattr *tb[NFTA_EXPR_DATA + 1], *c[NFTA_LIMIT_MAX + 1];
    hf_nl_parse(hf_nl_data(expr), hf_nl_len(expr), tb, NFTA_EXPR_DATA);
    const struct nlattr *name = tb[NFTA_EXPR_NAME], *data = tb[NFTA_EXPR_DATA];
    if (!hf_nl_len(name) || !data)
        return;
    struct hf_str text = {hf_nl_data(name), hf_nl_len(name) - 1};
    hf_nl_parse(hf_nl_data(data), hf_nl_len(data), c, NFTA_LIMIT_MAX);
    if (hf_str_eq(text, "counter")) {
        f->bytes = hf_nl_be64(c[NFTA_COUNTER_BYTES]);
        f->packets = hf_nl_be64(c[NFTA_COUNTER_PACKETS]);
    } else if (hf_str_eq(text, "limit")) {
        f->e.limit = (uint32_t)hf_nl_be64(c[NFTA_LIMIT_RATE]);
    } else if (hf_str_eq(text, "connlimit")) {
        f->e.limit = hf_nl_be32(c[NFTA_CONNLIMIT_COUNT]);
    }
}

static size_t read_value(const struct nlattr *a, void *to, size_t max)
{
    const struct nlattr *tb[NFTA_DATA_VALUE + 1] = {NULL};
    if (a)
        hf_nl_parse(hf_nl_data(a), hf_nl_len(a), tb, NFTA_DATA_VALUE);
    size_t n = hf_nl_len(tb[NFTA_DATA_VALUE]);
    if (!n || n > max)
        return 0;
    memcpy(to, hf_nl_data(tb[NFTA_DATA_VALUE]), n);
    return n;
}

static void read_elem(const struct reader *rd, const struct nlattr *a)
{
    const struct nlattr *tb[NFTA_SET_ELEM_EXPR + 1];
    struct hf_nft_found f = {0};
    hf_nl_parse(hf_nl_data(a), hf_nl_len(a), tb, NFTA_SET_ELEM_EXPR);
    f.e.key_n = read_value(tb[NFTA_SET_ELEM_KEY], f.e.key, sizeof(f.e.key));
    f.e.end = (hf_nl_be32(tb[NFTA_SET_ELEM_FLAGS]) & NFT_SET_ELEM_INTERVAL_END) != 0;
    f.e.has_data = read_value(tb[NFTA_SET_ELEM_DATA], &f.e.data, sizeof(f.e.data)) == sizeof(f.e.data);
    if (tb[NFTA_SET_ELEM_EXPR])
        read_expr(tb[NFTA_SET_ELEM_EXPR], &f);
    if (f.e.key_n)
        rd->each(rd->arg, &f);
}

static int read_elements(void *arg, const struct nlmsghdr *h)
{
    const size_t head = NLMSG_LENGTH(sizeof(struct nfgenmsg));
    if (h->nlmsg_type != MSG(NFT_MSG_NEWSETELEM) || h->nlmsg_len < head)
        return 0;
    const struct nlattr *tb[NFTA_SET_ELEM_LIST_ELEMENTS + 1];
    hf_nl_parse((const char *)h + head, h->nlmsg_len - head, tb, NFTA_SET_ELEM_LIST_ELEMENTS);
    const struct nlattr *list = tb[NFTA_SET_ELEM_LIST_ELEMENTS];
    if (!list)
        return 0;
    for (const struct nlattr *a = NULL; (a = hf_nl_next(hf_nl_data(list), hf_nl_len(list), a));)
        read_elem(arg, a);
    return 0;
}

static int ask(int fd, const char *table, const char *set, uint16_t flags, const struct hf_nft_elem *key,
               struct reader *rd)
{
    hf_auto_nl struct hf_nl nl = {0};
    begin(&nl, NFT_MSG_GETSETELEM, flags);
    hf_nl_put_str(&nl, NFTA_SET_ELEM_LIST_TABLE, table);
    hf_nl_put_str(&nl, NFTA_SET_ELEM_LIST_SET, set);
    if (key) {
        size_t list = hf_nl_nest(&nl, NFTA_SET_ELEM_LIST_ELEMENTS);
        put_elem(&nl, key);
        hf_nl_nest_end(&nl, list);
    }
    hf_nl_end(&nl);
    return hf_nl_dump(fd, &nl, read_elements, rd);
}

int hf_nft_dump(int fd, const char *table, const char *set,
                void (*each)(void *arg, const struct hf_nft_found *f), void *arg)
{
    struct reader rd = {each, arg};
    return ask(fd, table, set, NLM_F_DUMP, NULL, &rd);
}

static void keep_found(void *arg, const struct hf_nft_found *f)
{
    *(struct hf_nft_found *)arg = *f;
}

int hf_nft_get(int fd, const char *table, const char *set, const struct hf_nft_elem *key,
               struct hf_nft_found *ret)
{
    struct hf_nft_found f = {0};
    struct reader rd = {keep_found, &f};
    int r = ask(fd, table, set, 0, key, &rd);
    if (r < 0)
        return r;
    *ret = f;
    return 0;
}

/* ---- tables, chains, sets ---- */

void hf_nft_table(struct hf_nft *b)
{
    close_elements(b);
    begin(&b->nl, NFT_MSG_NEWTABLE, NLM_F_CREATE);
    hf_nl_put_str(&b->nl, NFTA_TABLE_NAME, b->table);
    hf_nl_end(&b->nl);
}

void hf_nft_chain(struct hf_nft *b, const char *chain)
{
    close_elements(b);
    begin(&b->nl, NFT_MSG_NEWCHAIN, NLM_F_CREATE);
    hf_nl_put_str(&b->nl, NFTA_CHAIN_TABLE, b->table);
    hf_nl_put_str(&b->nl, NFTA_CHAIN_NAME, chain);
    hf_nl_end(&b->nl);
}

void hf_nft_flush_chain(struct hf_nft *b, const char *chain)
{
    close_elements(b);
    begin(&b->nl, NFT_MSG_DELRULE, 0);
    hf_nl_put_str(&b->nl, NFTA_RULE_TABLE, b->table);
    hf_nl_put_str(&b->nl, NFTA_RULE_CHAIN, chain);
    hf_nl_end(&b->nl);
}

#define TYPE_INTEGER 4u /* nft's number for the type; only `nft list` reads it */

void hf_nft_tree_set(struct hf_nft *b, const char *set, uint32_t id, uint32_t bytes)
{
    close_elements(b);
    begin(&b->nl, NFT_MSG_NEWSET, NLM_F_CREATE);
    hf_nl_put_str(&b->nl, NFTA_SET_TABLE, b->table);
    hf_nl_put_str(&b->nl, NFTA_SET_NAME, set);
    hf_nl_put_be32(&b->nl, NFTA_SET_FLAGS, NFT_SET_INTERVAL);
    hf_nl_put_be32(&b->nl, NFTA_SET_KEY_TYPE, TYPE_INTEGER);
    hf_nl_put_be32(&b->nl, NFTA_SET_KEY_LEN, bytes);
    hf_nl_put_be32(&b->nl, NFTA_SET_ID, id);
    hf_nl_end(&b->nl);
}

/* ---- rules ---- */

static size_t expr_begin(struct hf_nl *nl, const char *name, size_t *ret_data)
{
    size_t at = hf_nl_nest(nl, NFTA_LIST_ELEM);
    hf_nl_put_str(nl, NFTA_EXPR_NAME, name);
    *ret_data = hf_nl_nest(nl, NFTA_EXPR_DATA);
    return at;
}

static void expr_end(struct hf_nl *nl, size_t at, size_t data)
{
    hf_nl_nest_end(nl, data);
    hf_nl_nest_end(nl, at);
}

static void meta(struct hf_nl *nl, uint32_t key, uint16_t direction, uint32_t reg)
{
    size_t data, at = expr_begin(nl, "meta", &data);
    hf_nl_put_be32(nl, NFTA_META_KEY, key);
    hf_nl_put_be32(nl, direction, reg);
    expr_end(nl, at, data);
}

static void ct_original(struct hf_nl *nl, uint32_t key, uint32_t reg)
{
    size_t data, at = expr_begin(nl, "ct", &data);
    hf_nl_put_be32(nl, NFTA_CT_KEY, key);
    hf_nl_put_be32(nl, NFTA_CT_DREG, reg);
    hf_nl_put_u8(nl, NFTA_CT_DIRECTION, 0);
    expr_end(nl, at, data);
}

static void verdict(struct hf_nl *nl, const char *target)
{
    size_t data, at = expr_begin(nl, "immediate", &data);
    hf_nl_put_be32(nl, NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
    size_t imm = hf_nl_nest(nl, NFTA_IMMEDIATE_DATA);
    size_t v = hf_nl_nest(nl, NFTA_DATA_VERDICT);
    hf_nl_put_be32(nl, NFTA_VERDICT_CODE, target ? (uint32_t)NFT_GOTO : NF_ACCEPT);
    if (target)
        hf_nl_put_str(nl, NFTA_VERDICT_CHAIN, target);
    hf_nl_nest_end(nl, v);
    hf_nl_nest_end(nl, imm);
    expr_end(nl, at, data);
}

static size_t rule_begin(struct hf_nft *b, const char *chain)
{
    close_elements(b);
    begin(&b->nl, NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND);
    hf_nl_put_str(&b->nl, NFTA_RULE_TABLE, b->table);
    hf_nl_put_str(&b->nl, NFTA_RULE_CHAIN, chain);
    return hf_nl_nest(&b->nl, NFTA_RULE_EXPRESSIONS);
}

void hf_nft_flow_rule(struct hf_nft *b, const char *chain, uint8_t family, const char *set,
                      const char *target)
{
    struct hf_nl *nl = &b->nl;
    size_t exprs = rule_begin(b, chain);
    /* The address first: this ends the rule for a flow of the other family. */
    ct_original(nl, family == 6 ? NFT_CT_DST_IP6 : NFT_CT_DST_IP, NFT_REG32_01);
    meta(nl, NFT_META_MARK, NFTA_META_DREG, NFT_REG32_00);
    size_t data, at = expr_begin(nl, "lookup", &data);
    hf_nl_put_str(nl, NFTA_LOOKUP_SET, set);
    hf_nl_put_be32(nl, NFTA_LOOKUP_SREG, NFT_REG32_00);
    expr_end(nl, at, data);
    verdict(nl, target);
    hf_nl_nest_end(nl, exprs);
    hf_nl_end(nl);
}

void hf_nft_note_rule(struct hf_nft *b, const char *chain, const char *target)
{
    struct hf_nl *nl = &b->nl;
    size_t exprs = rule_begin(b, chain);
    meta(nl, NFT_META_PRIORITY, NFTA_META_DREG, NFT_REG32_00);
    size_t data, at = expr_begin(nl, "ct", &data);
    hf_nl_put_be32(nl, NFTA_CT_KEY, NFT_CT_MARK);
    hf_nl_put_be32(nl, NFTA_CT_SREG, NFT_REG32_00);
    expr_end(nl, at, data);
    at = expr_begin(nl, "immediate", &data);
    const uint32_t zero = 0;
    hf_nl_put_be32(nl, NFTA_IMMEDIATE_DREG, NFT_REG32_00);
    put_value(nl, NFTA_IMMEDIATE_DATA, &zero, sizeof(zero));
    expr_end(nl, at, data);
    meta(nl, NFT_META_PRIORITY, NFTA_META_SREG, NFT_REG32_00);
    verdict(nl, target);
    hf_nl_nest_end(nl, exprs);
    hf_nl_end(nl);
}

int hf_nft_table_del(int fd, const char *table, struct hf_err *err)
{
    struct hf_nft b = {0};
    hf_nft_begin(&b, table);
    begin(&b.nl, NFT_MSG_DELTABLE, 0);
    hf_nl_put_str(&b.nl, NFTA_TABLE_NAME, table);
    hf_nl_end(&b.nl);
    int r = hf_nft_commit(&b, fd, err);
    hf_nft_done(&b);
    return r;
}

struct table_reader {
    void (*each)(void *arg, const char *name);
    void *arg;
};

static int read_table(void *arg, const struct nlmsghdr *h)
{
    const struct table_reader *rd = arg;
    const size_t head = NLMSG_LENGTH(sizeof(struct nfgenmsg));
    if (h->nlmsg_type != MSG(NFT_MSG_NEWTABLE) || h->nlmsg_len < head)
        return 0;
    const struct nlattr *tb[NFTA_TABLE_NAME + 1];
    hf_nl_parse((const char *)h + head, h->nlmsg_len - head, tb, NFTA_TABLE_NAME);
    const struct nlattr *name = tb[NFTA_TABLE_NAME];
    if (name && hf_nl_len(name) && ((const char *)hf_nl_data(name))[hf_nl_len(name) - 1] == 0)
        rd->each(rd->arg, hf_nl_data(name));
    return 0;
}

int hf_nft_tables(int fd, void (*each)(void *arg, const char *name), void *arg)
{
    hf_auto_nl struct hf_nl nl = {0};
    struct table_reader rd = {each, arg};
    begin(&nl, NFT_MSG_GETTABLE, NLM_F_DUMP);
    hf_nl_end(&nl);
    return hf_nl_dump(fd, &nl, read_table, &rd);
}
