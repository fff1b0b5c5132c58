/* A create whose template is a snapshot. */
#include "control/network.h"
#include "control/snapshot_int.h"
#include "control/validate.h"

struct from {
    struct hf_control *c;
    char tenant[HF_ROW_ID];
    struct hf_create_body body;
    json_t *lifecycle;
    struct hf_snapshot_row row;
    hf_sandbox_cb cb;
    void *arg;
};

static void free_from(struct from *f)
{
    hf_snapshot_row_done(&f->row);
    json_decref(f->lifecycle);
    free(f);
}

/* What the request says of the network replaces what the saved sandbox had. */
static int pick_network(struct from *f, struct hf_create_req *req, json_t **ret, struct hf_err *err)
{
    bool said = f->body.network || f->body.internet >= 0;
    if (req->network && !said)
        return 0;
    int r = hf_network_resolve(f->c, f->tenant, f->body.network, f->body.internet, ret, err);
    if (r == 0)
        req->network = *ret;
    return r;
}

static void on_checked(void *arg, const struct hf_err *bad)
{
    struct from *f = arg;
    struct hf_snapshot_fill own = {0};
    struct hf_err err = {0};
    json_auto_t *network = NULL;
    hf_auto_snapshot_row struct hf_snapshot_row now = {0};
    struct hf_create_req req = {.tenant = f->tenant,
                                .cpu_millis = f->body.limits.cpu_millis,
                                .memory_bytes = f->body.limits.memory_bytes,
                                .pids_max = f->body.limits.pids_max,
                                .timeout_s = f->body.timeout_s,
                                .metadata = (json_t *)(uintptr_t)f->body.metadata,
                                .env = (json_t *)(uintptr_t)f->body.env,
                                .lifecycle = f->lifecycle};
    if (bad)
        err = *bad;
    else if (hf_get_snapshot(f->c->meta, f->row.id, &now) != 1 || strcmp(now.state, "ready") != 0)
        (void)hf_err_set(&err, -ENOENT, "snapshot '%s' was deleted meanwhile", f->row.id);
    if (!err.r && hf_snapshot_fill(f->c, &f->row, &req, &own, &err) == 0 &&
        pick_network(f, &req, &network, &err) == 0) {
        req.alias = json_string_value(json_object_get(own.meta, "alias"));
        hf_sandbox_create(f->c, &req, f->cb, f->arg, NULL);
    } else {
        f->cb(f->arg, NULL, &err);
    }
    hf_snapshot_fill_done(&own);
    free_from(f);
}

void hf_create_from_snapshot(struct hf_control *c, const struct hf_create_body *body, const json_t *lifecycle,
                             struct hf_snapshot_row *row, hf_sandbox_cb cb, void *arg)
{
    struct from *f = hf_new(struct from);
    *f = (struct from){.c = c, .body = *body, .row = *row, .cb = cb, .arg = arg};
    *row = (struct hf_snapshot_row){0}; /* taken */
    memcpy(f->tenant, f->row.tenant, sizeof(f->tenant));
    f->lifecycle = json_deep_copy(lifecycle);
    hf_snapshot_check(c, f->row.id, on_checked, f);
}
