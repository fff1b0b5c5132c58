/* Whose connection is it: asks the sandbox's envd which exec has its socket. Records do without the answer
 * when it does not come in time, so nothing waits for it. */
#include "egress/l7_int.h"

#include <stdio.h>
#include <sys/un.h>

#define ANSWER_MAX 1024u
#define EXEC_MAX 64u

struct hf_l7_owner {
    struct hf_list node;  /* in l7->owners */
    struct hf_l7_conn *c; /* keeps a reference */
    uv_timer_t timer;     /* the time is up, or it is over and everything can be freed */
    uv_connect_t connect;
    uv_stream_t *pipe; /* while it is being connected */
    struct hf_client *cl;
    struct hf_cx *cx;
    struct hf_buf answer;
    bool ok;
};

static void freed(uv_handle_t *h)
{
    struct hf_l7_owner *o = h->data;
    struct hf_l7_conn *c = o->c;
    hf_buf_done(&o->answer);
    free(o);
    hf_l7_unref(c);
}

static void pipe_closed(uv_handle_t *h)
{
    struct hf_l7_owner *o = h->data;
    free(h);
    uv_close((uv_handle_t *)&o->timer, freed);
}

static void on_timer(uv_timer_t *t)
{
    struct hf_l7_owner *o = t->data;
    hf_list_del(&o->node);
    o->c->owner = NULL;
    hf_l7_record_held(o->c);
    if (o->cl)
        hf_client_close(hf_take_ptr(o->cl)); /* on_fail of what is open comes at once */
    uv_stream_t *s = hf_take_ptr(o->pipe);
    if (s)
        uv_close((uv_handle_t *)s, pipe_closed);
    else
        uv_close((uv_handle_t *)t, freed);
}

void hf_l7_owners_end(struct hf_l7 *l)
{
    while (!hf_list_empty(&l->owners))
        on_timer(&hf_list_entry(l->owners.next, struct hf_l7_owner, node)->timer);
}

static void over(struct hf_l7_owner *o)
{
    o->cx = NULL;
    if (!uv_is_closing((uv_handle_t *)&o->timer))
        (void)uv_timer_start(&o->timer, on_timer, 0, 0);
}

static void on_head(struct hf_cx *cx, int status, const struct hf_field *f, size_t n, int64_t length)
{
    struct hf_l7_owner *o = hf_cx_data(cx);
    o->ok = status == 200;
}

static void on_data(struct hf_cx *cx, const char *p, size_t n)
{
    struct hf_l7_owner *o = hf_cx_data(cx);
    if (hf_buf_add(&o->answer, p, n) < 0)
        o->ok = false;
}

static void on_end(struct hf_cx *cx)
{
    struct hf_l7_owner *o = hf_cx_data(cx);
    json_t *v = o->ok ? json_loadb(o->answer.p ? o->answer.p : "", o->answer.n, 0, NULL) : NULL;
    const char *exec = json_string_value(json_object_get(v, "exec"));
    if (exec && *exec && strlen(exec) < EXEC_MAX && !o->c->exec)
        o->c->exec = hf_xstrdup(exec);
    json_decref(v);
    over(o);
}

static void on_fail(struct hf_cx *cx, int r, bool answered, bool unsent)
{
    over(hf_cx_data(cx));
}

static void ask(struct hf_l7_owner *o)
{
    static const struct hf_cx_ops ops = {
        .on_head = on_head, .on_data = on_data, .on_end = on_end, .on_fail = on_fail};
    static const struct hf_field type = {HF_STR("content-type"), HF_STR("application/json")};
    const struct hf_l7_conn *c = o->c;
    char local[HF_ADDR_TEXT], remote[HF_ADDR_TEXT], body[256];
    hf_addr_format(&c->src, local);
    hf_addr_format(&c->dst, remote);
    int n = snprintf(body, sizeof body,
                     "{\"address\":\"%s\",\"port\":%u,\"remote_address\":\"%s\",\"remote_port\":%u}", local,
                     c->src_port, remote, c->port);
    struct hf_cx_req q = {.method = HF_STR("POST"),
                          .scheme = HF_STR("http"),
                          .authority = HF_STR("envd"),
                          .path = HF_STR("/owner"),
                          .fields = &type,
                          .n_fields = 1,
                          .length = n};
    o->cx = hf_cx_new(o->cl, &q, &ops, o);
    if (!o->cx) {
        over(o);
        return;
    }
    (void)hf_cx_write(o->cx, body, (size_t)n);
    hf_cx_end(o->cx);
}

static void on_connected(uv_connect_t *req, int status)
{
    struct hf_l7_owner *o = HF_CONTAINER_OF(req, struct hf_l7_owner, connect);
    if (!o->pipe)
        return; /* given up */
    if (status < 0) {
        over(o);
        return;
    }
    o->cl = hf_client_new(o->c->l7->d->loop, hf_take_ptr(o->pipe), NULL, false, NULL, NULL);
    ask(o);
}

static bool crowded(const struct hf_netd_box *b)
{
    unsigned n = 0;
    hf_list_foreach(it, &b->l7) n += hf_list_entry(it, struct hf_l7_conn, node)->owner != NULL;
    return n >= HF_L7_OWNERS_MAX;
}

void hf_l7_owner_ask(struct hf_l7_conn *c)
{
    const char *path = c->box->envd_ctl;
    if (!path || !*path || strlen(path) >= sizeof((struct sockaddr_un *)NULL)->sun_path || crowded(c->box))
        return;
    struct hf_l7_owner *o = hf_new(struct hf_l7_owner);
    uv_pipe_t *p = hf_new(uv_pipe_t);
    o->c = c;
    o->answer = HF_BUF_INIT(ANSWER_MAX);
    o->pipe = (uv_stream_t *)p;
    c->owner = o;
    hf_list_init(&o->node);
    hf_list_add_tail(&c->l7->owners, &o->node);
    c->handles++;
    (void)uv_timer_init(c->l7->d->loop, &o->timer);
    o->timer.data = o;
    (void)uv_timer_start(&o->timer, on_timer, HF_L7_OWNER_MS, 0);
    (void)uv_pipe_init(c->l7->d->loop, p, 0);
    p->data = o;
    uv_pipe_connect(&o->connect, p, path, on_connected);
}
