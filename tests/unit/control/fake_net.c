#include "fake_net.h"

#include <stdio.h>

#include "base/path.h"
#include "control/network.h"

struct hf_cnet {
    uv_loop_t *loop;
    struct hf_control *c;
    char run_dir[128];
};

struct later {
    uv_timer_t timer;
    hf_done_cb cb;
    void *arg;
    struct hf_err err;
};

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

static void on_later(uv_timer_t *t)
{
    struct later *l = t->data;
    l->cb(l->arg, l->err.r ? &l->err : NULL);
    uv_close((uv_handle_t *)t, on_closed);
}

static void later(struct hf_cnet *n, const struct hf_err *err, hf_done_cb cb, void *arg)
{
    struct later *l = hf_new(struct later);
    l->cb = cb;
    l->arg = arg;
    l->err = *err;
    (void)uv_timer_init(n->loop, &l->timer);
    l->timer.data = l;
    (void)uv_timer_start(&l->timer, on_later, 1, 0);
}

struct hf_cnet *hf_cnet_open(uv_loop_t *loop, const struct hf_config *cfg, const char *run_dir,
                             const char *netd_path)
{
    struct hf_cnet *n = hf_new(struct hf_cnet);
    n->loop = loop;
    (void)snprintf(n->run_dir, sizeof(n->run_dir), "%s", run_dir);
    return n;
}

struct hf_cnet *hf_fake_net_new(uv_loop_t *loop, const char *run_dir)
{
    return hf_cnet_open(loop, NULL, run_dir, "");
}

const struct hf_net_config *hf_cnet_config(const struct hf_cnet *n)
{
    return NULL;
}

const char *hf_cnet_missing(const struct hf_cnet *n)
{
    return "";
}

void hf_cnet_start(struct hf_cnet *n, struct hf_control *c)
{
    n->c = c;
    c->net = n;
}

void hf_cnet_close(struct hf_cnet *n, bool remove_fabric, hf_done_cb cb, void *arg)
{
    free(n);
    cb(arg, NULL);
}

static void put_in_force(struct hf_cnet *n, struct hf_sandbox *sb, struct hf_err *err)
{
    hf_auto_free char *refuse = hf_xasprintf("%s/refuse", n->run_dir);
    hf_auto_free char *path = hf_xasprintf("%s/policy-%u.json", n->run_dir, hf_box_net_key(sb->box));
    json_auto_t *doc = NULL, *merged = NULL;
    if (access(refuse, F_OK) == 0)
        (void)hf_err_set(err, -EIO, "told to refuse");
    else if (hf_network_doc(sb, &doc, err) == 0 &&
             hf_network_merge(sb->c, sb->row.tenant, doc, &merged, err) == 0 &&
             json_dump_file(merged, path, JSON_COMPACT) < 0)
        abort();
}

void hf_cnet_apply(struct hf_cnet *n, struct hf_sandbox *sb, hf_done_cb cb, void *arg)
{
    struct hf_err err = {0};
    put_in_force(n, sb, &err);
    later(n, &err, cb, arg);
}

void hf_cnet_forget(struct hf_cnet *n, uint32_t key)
{
    hf_auto_free char *path = hf_xasprintf("%s/policy-%u.json", n->run_dir, key);
    (void)unlink(path);
}

void hf_cnet_group_changed(struct hf_cnet *n, const char *tenant, const char *group, hf_done_cb cb, void *arg)
{
    struct hf_err err = {0};
    hf_list_foreach(it, &n->c->list)
    {
        struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (sb->state == HF_RUNNING && strcmp(sb->row.tenant, tenant) == 0 && hf_network_bound(sb, group))
            put_in_force(n, sb, &err);
    }
    later(n, &err, cb, arg);
}

void hf_cnet_tenant_changed(struct hf_cnet *n, const char *tenant, hf_done_cb cb, void *arg)
{
    later(n, &(struct hf_err){0}, cb, arg);
}

const char *hf_cnet_ca(struct hf_cnet *n, const char *tenant, struct hf_err *err)
{
    return "-----BEGIN CERTIFICATE-----\nfake\n-----END CERTIFICATE-----\n";
}

bool hf_cnet_needs_ca(const json_t *merged_doc)
{
    return json_array_size(json_object_get(merged_doc, "rules")) > 0;
}

void hf_cnet_counters(struct hf_cnet *n, uint32_t key, void (*cb)(void *arg, const json_t *v), void *arg)
{
    json_auto_t *v = json_pack("{s:i, s:i}", "key", (int)key, "denied", 3);
    cb(arg, v);
}

int hf_cnet_seal_doc(struct hf_cnet *n, const char *tenant, json_t *doc, struct hf_err *err)
{
    json_t *proxy = json_object_get(doc, "egress_proxy");
    if (json_is_object(proxy))
        (void)json_object_set_new(proxy, "password", json_string("sealed"));
    return 0;
}

int hf_cnet_unseal_doc(struct hf_cnet *n, const char *tenant, json_t *doc, struct hf_err *err)
{
    return 0;
}

int hf_cnet_seal_secret(struct hf_cnet *n, const char *tenant, const char *name, const char *value,
                        size_t value_n, unsigned char **ret, size_t *ret_n, struct hf_err *err)
{
    return hf_err_set(err, -ENOTSUP, "no secrets in this test");
}

struct hf_sealer *hf_cnet_sealer(struct hf_cnet *n, struct hf_err *err)
{
    (void)hf_err_set(err, -ENOTSUP, "the fake seals nothing");
    return NULL;
}
