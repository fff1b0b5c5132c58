/* Requests for a sandbox that sleeps: held until it is awake, and then served as if it had been all the time.
 */
#include "base/log.h"
#include "proxy/proxy_int.h"

struct hold {
    struct hf_proxy *p;
    struct hf_req *req; /* NULL once the client has left */
    char id[sizeof(((struct hf_target *)0)->id)];
};

static void on_client_left(struct hf_req *req)
{
    ((struct hold *)hf_req_data(req))->req = NULL;
}

static const struct hf_req_ops hold_ops = {.on_close = on_client_left};
static const struct hf_req_ops no_ops = {.on_close = NULL};

static void on_awake(void *arg, int status, const char *message)
{
    struct hold *h = arg;
    struct hf_req *req = h->req;
    if (req) {
        hf_req_set_ops(req, &no_ops, NULL);
        hf_req_resume(req);
        if (h->p->freed)
            hf_route_answer(req, 503, h->id, "The daemon is going down", 0);
        else if (status)
            hf_route_answer(req, status, h->id, message, 0);
        else
            hf_proxy_handle(h->p, req);
    }
    hf_proxy_unref(h->p);
    free(h);
}

void hf_hold_start(struct hf_proxy *p, struct hf_req *req, const struct hf_target *t)
{
    struct hold *h = hf_new(struct hold);
    h->p = p;
    h->req = req;
    memcpy(h->id, t->id, sizeof(h->id));
    hf_proxy_ref(p);
    hf_req_set_ops(req, &hold_ops, h);
    hf_req_pause(req);
    hf_log_debug("a request wakes a sandbox", "sandbox=%s port=%u path=%.*s", t->id, (unsigned)t->port,
                 (int)HF_MIN(hf_req_path(req).n, (size_t)80), hf_req_path(req).p);
    p->ops->wake(p->self, h->id, on_awake, h);
}
