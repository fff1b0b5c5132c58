/* The connections to the origin that one connection of a box uses. */
#include "egress/l7_http.h"

#include "base/log.h"

static size_t count(const struct hf_l7_conn *c)
{
    size_t n = 0;
    hf_list_foreach(it, &c->clients) n++;
    return n;
}

void hf_l7_reap(struct hf_l7 *l)
{
    while (!hf_list_empty(&l->dead)) {
        struct hf_l7_client *k = hf_list_entry(l->dead.next, struct hf_l7_client, node);
        hf_list_del(&k->node);
        if (k->cl)
            hf_client_close(k->cl);
        free(k);
    }
}

static void on_reap(uv_timer_t *t)
{
    hf_l7_reap(t->data);
}

/* Not at once: it may be a callback of the client that says so. */
static void bury(struct hf_l7_client *k)
{
    struct hf_l7 *l = k->c->l7;
    k->c = NULL;
    hf_list_del(&k->node);
    hf_list_add_tail(&l->dead, &k->node);
    (void)uv_timer_start(&l->reaper, on_reap, 0, 0);
}

static void on_gone(void *arg)
{
    struct hf_l7_client *k = arg;
    k->gone = true;
    if (k->c && !k->open)
        bury(k);
}

void hf_l7_origin_add(struct hf_l7_conn *c, struct hf_l7_link *link)
{
    struct hf_l7_client *k = hf_new(struct hf_l7_client);
    k->c = c;
    hf_list_init(&k->node);
    hf_list_add_tail(&c->clients, &k->node);
    k->cl = hf_client_new(c->l7->d->loop, hf_take_ptr(link->stream), hf_take_ptr(link->tls), link->h2,
                          on_gone, k);
}

static struct hf_l7_client *find(struct hf_l7_conn *c)
{
    hf_list_foreach(it, &c->clients)
    {
        struct hf_l7_client *k = hf_list_entry(it, struct hf_l7_client, node);
        if (!k->gone && k->cl && hf_client_free_slot(k->cl))
            return k;
    }
    return NULL;
}

static void assign(struct hf_l7_xchg *x, struct hf_l7_client *k)
{
    x->waiting = false;
    x->client = k;
    k->open++;
    hf_l7_send(x);
}

static void serve_waiting(struct hf_l7_conn *c);

static void on_origin(void *arg, struct hf_l7_link *link, const struct hf_err *err)
{
    struct hf_l7_conn *c = arg;
    c->client_up = NULL;
    if (link->stream) {
        hf_l7_origin_add(c, link);
        serve_waiting(c);
        return;
    }
    hf_log_debug("no connection to the origin", "sandbox=%s error=%s", c->box->sandbox,
                 hf_log_quote(err->msg));
    hf_list_foreach_safe(it, &c->xchgs)
    {
        struct hf_l7_xchg *x = hf_list_entry(it, struct hf_l7_xchg, node);
        if (x->waiting)
            hf_l7_bad_gateway(x, err->msg);
    }
}

static void open_another(struct hf_l7_conn *c, const char *host)
{
    if (c->client_up || count(c) >= HF_L7_UPSTREAMS_MAX)
        return;
    struct hf_l7_up_req q = {.host = host, .tls = c->tls, .h2 = c->h2, .h1 = !c->h2, .bound = c->bound};
    c->client_up = hf_l7_up(c, &q, on_origin, c);
}

/* The first that waits, for each free slot. */
static void serve_waiting(struct hf_l7_conn *c)
{
    hf_list_foreach_safe(it, &c->xchgs)
    {
        struct hf_l7_xchg *x = hf_list_entry(it, struct hf_l7_xchg, node);
        struct hf_l7_client *k = x->waiting ? find(c) : NULL;
        if (k)
            assign(x, k);
        else if (x->waiting)
            open_another(c, x->to.host);
    }
}

void hf_l7_origin_get(struct hf_l7_xchg *x)
{
    struct hf_l7_client *k = find(x->c);
    if (k) {
        assign(x, k);
        return;
    }
    x->waiting = true;
    open_another(x->c, x->to.host);
}

void hf_l7_origin_put(struct hf_l7_xchg *x)
{
    struct hf_l7_client *k = hf_take_ptr(x->client);
    x->cx = NULL;
    if (!k)
        return;
    k->open--;
    k->served++;
    if (!k->c)
        return;
    struct hf_l7_conn *c = k->c;
    if (k->gone && !k->open)
        bury(k);
    if (c->state == HF_L7_HTTP)
        serve_waiting(c);
}

void hf_l7_origin_end(struct hf_l7_conn *c)
{
    hf_l7_up_cancel(hf_take_ptr(c->client_up));
    while (!hf_list_empty(&c->clients))
        bury(hf_list_entry(c->clients.next, struct hf_l7_client, node));
}
