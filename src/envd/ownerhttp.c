/* POST /owner: the control socket's question which exec a connection belongs to; see docs/api/envd.md. */
#include <stdio.h>

#include "envd/owner.h"
#include "envd/proc.h"
#include "envd/server.h"

#define OWNER_BODY_MAX 1024u
#define OWNER_JOBS_MAX 8u /* searches at the same time; beyond: 503 */

struct owner_job {
    uv_work_t work;
    struct hf_req *req;
    struct hf_buf body;
    bool refused, busy, closed;
    struct owner_ends want;
    struct owner found;
    int r;
};

static unsigned jobs;

static void search(uv_work_t *work)
{
    struct owner_job *j = HF_CONTAINER_OF(work, struct owner_job, work);
    j->r = owner_find(&j->want, &j->found);
}

static const struct proc *exec_of(const struct owner *o)
{
    const struct proc *p = NULL;
    for (size_t i = 0; !p && i < o->n_chain; i++)
        p = proc_by_pid((uint32_t)o->chain[i]);
    return p;
}

static void answer(struct owner_job *j)
{
    if (j->r < 0) {
        hf_res_error(j->req, j->r == -ETIMEDOUT ? 504 : 404, "%s",
                     j->r == -ENOENT ? "no process of this box has such a connection"
                     : j->r == -ENOTUNIQ
                         ? "several connections have this local end: name the remote end as well"
                     : j->r == -ETIMEDOUT ? "the search took too long"
                                          : "the connections of this box can't be read");
        return;
    }
    const struct proc *p = exec_of(&j->found);
    char exec[16] = "";
    if (p)
        (void)snprintf(exec, sizeof(exec), "%d", (int)p->pid);
    json_auto_t *v =
        json_pack("{s:i,s:s,s:s?}", "pid", (int)j->found.pid, "exec", exec, "tag", p ? p->tag : NULL);
    hf_auto_free char *text = json_dumps(v, JSON_COMPACT);
    hf_res_header(j->req, "Cache-Control", "no-store");
    hf_res_send(j->req, 200, "application/json", text ? text : "{}", text ? strlen(text) : 2);
}

static void job_free(struct owner_job *j)
{
    hf_buf_done(&j->body);
    free(j);
}

static void searched(uv_work_t *work, int status)
{
    struct owner_job *j = HF_CONTAINER_OF(work, struct owner_job, work);
    jobs--;
    j->busy = false;
    if (j->closed)
        job_free(j);
    else
        answer(j);
}

static void on_close(struct hf_req *req)
{
    struct owner_job *j = hf_req_data(req);
    j->closed = true;
    if (!j->busy)
        job_free(j);
}

/* Address and port of one end; false when they are not what they should be. */
static bool read_end(const json_t *body, const char *address, const char *port, bool port_needed,
                     struct hf_addr *ret, uint16_t *ret_port)
{
    const json_t *a = json_object_get(body, address), *n = json_object_get(body, port);
    json_int_t v = json_integer_value(n);
    if (n ? !json_is_integer(n) || v < 1 || v > UINT16_MAX : port_needed)
        return false;
    *ret_port = (uint16_t)v;
    if (!a || json_is_null(a) || (json_is_string(a) && !json_string_length(a)))
        return true;
    return json_is_string(a) &&
           hf_addr_parse((struct hf_str){json_string_value(a), json_string_length(a)}, ret) == 0;
}

static void on_data(struct hf_req *req, const char *p, size_t n)
{
    struct owner_job *j = hf_req_data(req);
    if (!j->refused && hf_buf_add(&j->body, p, n) < 0) {
        j->refused = true;
        hf_res_error(req, 413, "the request body is larger than %u bytes", OWNER_BODY_MAX);
    }
}

static void on_end(struct hf_req *req)
{
    struct owner_job *j = hf_req_data(req);
    struct owner_ends *want = &j->want;
    if (j->refused)
        return;
    json_auto_t *body = json_loadb(j->body.n ? j->body.p : "", j->body.n, 0, NULL);
    if (!read_end(body, "address", "port", true, &want->local, &want->local_port) ||
        !read_end(body, "remote_address", "remote_port", false, &want->remote, &want->remote_port)) {
        hf_res_error(req, 400,
                     "the body must be {\"port\":1…65535,\"address\":IP}; remote_port and remote_address may "
                     "name the other end");
        return;
    }
    if (jobs >= OWNER_JOBS_MAX) {
        hf_res_error(req, 503, "%u searches are under way: ask again", jobs);
        return;
    }
    j->busy = true;
    jobs++;
    if (uv_queue_work(hf_req_loop(req), &j->work, search, searched) < 0)
        abort(); /* only for a NULL callback */
}

void owner_handle(struct envd *e, struct hf_req *req)
{
    static const struct hf_req_ops ops = {.on_data = on_data, .on_end = on_end, .on_close = on_close};
    struct owner_job *j = hf_new(struct owner_job);
    (void)e;
    j->req = req;
    j->body = HF_BUF_INIT(OWNER_BODY_MAX);
    hf_req_set_ops(req, &ops, j);
}
