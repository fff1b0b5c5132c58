/* The control plane's side of the network: opening and closing, and putting policies in force. */
#include "control/net.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "base/path.h"
#include "control/envd_client.h"
#include "control/net_int.h"
#include "control/network.h"
#include "store/net.h"

/* ---- opening ---- */

static const char * or (const char *s, const char *otherwise)
{
    return s && *s ? s : otherwise;
}

/* "" when everything is fine. */
static void find_missing(struct hf_cnet *n)
{
    struct hf_net_caps caps = {0};
    struct hf_err err = {0};
    if (n->cfg->network == HF_NETWORK_OFF) {
        (void)snprintf(n->missing, sizeof(n->missing), "the setting network is off");
        return;
    }
    hf_net_probe(&caps);
    n->net.ipv6 = n->cfg->network_ipv6 != HF_IPV6_OFF && caps.ipv6;
    if (!caps.ok)
        (void)snprintf(n->missing, sizeof(n->missing), "%s",
                       *caps.missing ? caps.missing : "this host can't filter sandboxes' packets");
    else if (n->cfg->network_ipv6 == HF_IPV6_ON && !caps.ipv6)
        (void)snprintf(n->missing, sizeof(n->missing), "network_ipv6 is on and this host has no IPv6");
    else if (hf_mkdir_p(n->run, 0700) < 0 || hf_mkdir_p(n->records, 0700) < 0)
        (void)snprintf(n->missing, sizeof(n->missing), "%.100s or %.100s can't be made", n->run, n->records);
    else if (access(n->netd_path, X_OK) < 0)
        (void)snprintf(n->missing, sizeof(n->missing), "%.180s is not there or can't be run", n->netd_path);
    else if (hf_net_open(&n->net, &n->fabric, &err) < 0)
        (void)snprintf(n->missing, sizeof(n->missing), "%.230s", err.msg);
}

struct hf_cnet *hf_cnet_open(uv_loop_t *loop, const struct hf_config *cfg, const char *run_dir,
                             const char *netd_path)
{
    struct hf_cnet *n = hf_new(struct hf_cnet);
    unsigned char digest[HF_SHA256_LEN];
    n->loop = loop;
    n->cfg = cfg;
    n->run = hf_xasprintf("%s/net", run_dir);
    n->records = hf_xasprintf("%s/net", cfg->data_dir);
    n->netd_path = hf_xstrdup(netd_path);
    hf_sha256_of(cfg->data_dir, strlen(cfg->data_dir), digest);
    hf_hex(digest, 4, n->id);
    n->net = (struct hf_net_config){.id = n->id,
                                    .subnet4 = or (cfg->network_subnet4, "10.117.0.0/16"),
                                    .subnet6 = or (cfg->network_subnet6, "fd68:6f6c:6466:1::/64"),
                                    .uplink4 = or (cfg->network_uplink4, "10.118.0.0/16"),
                                    .uplink6 = or (cfg->network_uplink6, "fd68:6f6c:6466:ff00::/56")};
    hf_list_init(&n->waits);
    uv_timer_t *timers[] = {&n->timer, &n->tail};
    for (size_t i = 0; i < HF_ARRAY_LEN(timers); i++) {
        (void)uv_timer_init(loop, timers[i]);
        timers[i]->data = n;
        n->open_handles++;
    }
    find_missing(n);
    if (*n->missing)
        hf_log_warn("sandboxes have no network", "reason=%s", hf_log_quote(n->missing));
    return n;
}

const struct hf_net_config *hf_cnet_config(const struct hf_cnet *n)
{
    return n && n->fabric ? &n->net : NULL;
}

const char *hf_cnet_missing(const struct hf_cnet *n)
{
    return n ? n->missing : "this daemon was started without it";
}

static void on_tail(uv_timer_t *t)
{
    struct hf_cnet *n = t->data;
    hf_cnet_beat(n);
    hf_cnet_cap_log(n);
    hf_cnet_tail(n);
}

void hf_cnet_start(struct hf_cnet *n, struct hf_control *c)
{
    n->c = c;
    if (n->fabric)
        hf_cnet_netd_init(n);
    /* Also without a fabric: what an earlier daemon's sandboxes did is still to be taken in. */
    (void)uv_timer_start(&n->tail, on_tail, HF_CNET_RECORDS_MS, HF_CNET_RECORDS_MS);
}

/* ---- closing ---- */

static void finish_close(struct hf_cnet *n)
{
    if (n->open_handles || n->tailing)
        return;
    struct hf_err err = {0};
    if (n->fabric)
        hf_net_free(n->fabric);
    if (n->remove_fabric && n->fabric && hf_net_remove(&n->net, &err) < 0)
        hf_err_wrap(&err, "the fabric stays");
    hf_done_cb cb = n->closed;
    void *arg = n->closed_arg;
    hf_cnet_tenants_done(n);
    free(n->gone);
    hf_sealer_free(n->sealer);
    free(n->run);
    free(n->records);
    free(n->netd_path);
    free(n);
    if (cb)
        cb(arg, err.r ? &err : NULL);
}

static void on_handle_closed(uv_handle_t *h)
{
    struct hf_cnet *n = h->data;
    n->open_handles--;
    finish_close(n);
}

static void on_client_closed(void *arg)
{
    struct hf_cnet *n = arg;
    n->open_handles--;
    finish_close(n);
}

void hf_cnet_close(struct hf_cnet *n, bool remove_fabric, hf_done_cb cb, void *arg)
{
    n->closing = true;
    n->remove_fabric = remove_fabric;
    n->closed = cb;
    n->closed_arg = arg;
    struct hf_err err = {0};
    (void)hf_err_http(&err, -ESHUTDOWN, 503, "the daemon is going down; try again in a moment");
    hf_cnet_fail_waits(n, UINT64_MAX, &err);
    if (remove_fabric && n->client)
        hf_cnet_netd_stop(n);
    hf_cnet_forget_child(n);
    if (n->client) {
        n->open_handles++;
        hf_netc_free(n->client, on_client_closed, n);
    }
    uv_close((uv_handle_t *)&n->timer, on_handle_closed);
    uv_close((uv_handle_t *)&n->tail, on_handle_closed);
}

/* ---- later ---- */

struct soon {
    uv_timer_t timer;
    hf_done_cb cb;
    void *arg;
};

static void on_soon_closed(uv_handle_t *h)
{
    struct soon *s = h->data;
    s->cb(s->arg, NULL);
    free(s);
}

static void on_soon(uv_timer_t *t)
{
    uv_close((uv_handle_t *)t, on_soon_closed);
}

void hf_cnet_soon(uv_loop_t *loop, hf_done_cb cb, void *arg)
{
    struct soon *s = hf_new(struct soon);
    s->cb = cb;
    s->arg = arg;
    (void)uv_timer_init(loop, &s->timer);
    s->timer.data = s;
    (void)uv_timer_start(&s->timer, on_soon, 0, 0);
}

/* ---- telling netd ---- */

void hf_cnet_put(struct hf_cnet *n, const char *path, json_t *v, hf_netc_cb cb, void *arg)
{
    /* Dumped into a buffer of the right size: growing would leave copies of secrets behind. */
    size_t len = json_dumpb(v, NULL, 0, JSON_COMPACT);
    char *text = hf_xmalloc(len + 1);
    (void)json_dumpb(v, text, len, JSON_COMPACT);
    hf_wipe_json(v);
    json_decref(v);
    hf_netc_send(n->client, "PUT", path, text, len, cb, arg);
}

struct sent {
    struct hf_cnet *n;
    char tenant[HF_ROW_ID];
    hf_done_cb cb;
    void *arg;
};

static void on_box(void *arg, const json_t *body, const struct hf_err *err)
{
    struct sent *s = arg;
    const struct cnet_tenant *t = hf_cnet_tenant(s->n, s->tenant);
    /* Without its secrets the box would run and its calls fail: better not at all. */
    if (!err && !t->pushed && t->push_err.r)
        err = &t->push_err;
    s->cb(s->arg, err);
    free(s);
}

static void on_synced_box(void *arg, const struct hf_err *err)
{
    struct hf_sandbox *sb = arg;
    if (err)
        hf_log_warn("a sandbox's policy was not renewed; the one before stays", "sandbox=%s error=%s",
                    sb->row.id, hf_log_quote(err->msg));
    hf_sandbox_unref(sb);
}

/* The document as netd gets it: merged, the proxy's password in clear. */
static int document(struct hf_cnet *n, const struct hf_sandbox *sb, json_t **ret, struct hf_err *err)
{
    json_auto_t *doc = NULL, *merged = NULL;
    int r = hf_network_doc(sb, &doc, err);
    if (r == 0)
        r = hf_network_merge(sb->c, sb->row.tenant, doc, &merged, err);
    if (r == 0)
        r = hf_cnet_unseal_doc(n, sb->row.tenant, merged, err);
    if (r == 0)
        *ret = hf_take_ptr(merged);
    return r;
}

/* Sends now; merged is stolen. */
static void send_box(struct hf_cnet *n, const struct hf_sandbox *sb, json_t *merged, hf_done_cb cb, void *arg)
{
    char path[32];
    hf_cnet_push_tenant(n, sb->row.tenant);
    struct sent *s = hf_new(struct sent);
    *s = (struct sent){.n = n, .cb = cb, .arg = arg};
    (void)snprintf(s->tenant, sizeof(s->tenant), "%s", sb->row.tenant);
    (void)snprintf(path, sizeof(path), "/boxes/%u", hf_box_net_key(sb->box));
    hf_cnet_put(n, path,
                json_pack("{s:s, s:s, s:s, s:s, s:o}", "sandbox", sb->row.id, "tenant", sb->row.tenant,
                          "session", sb->row.session_id, "envd_ctl", hf_box_control_socket(sb->box),
                          "network", merged),
                on_box, s);
}

static void fail_soon_done(void *arg, const struct hf_err *err)
{
    struct cnet_wait *w = arg;
    w->cb(w->arg, &w->err);
    free(w);
}

static void fail_soon(struct hf_cnet *n, const struct hf_err *err, hf_done_cb cb, void *arg)
{
    struct cnet_wait *w = hf_new(struct cnet_wait);
    w->cb = cb;
    w->arg = arg;
    w->err = *err;
    hf_cnet_soon(n->loop, fail_soon_done, w);
}

static void send_or_fail(struct hf_cnet *n, struct hf_sandbox *sb, hf_done_cb cb, void *arg)
{
    json_t *merged = NULL;
    struct hf_err err = {0};
    if (!sb->box)
        (void)hf_err_http(&err, -ESRCH, 409, "Sandbox %s has ended", sb->row.id);
    if (err.r || document(n, sb, &merged, &err) < 0)
        fail_soon(n, &err, cb, arg);
    else
        send_box(n, sb, merged, cb, arg);
}

/* ---- waiting for netd ---- */

static void wait_for_netd(struct hf_cnet *n, struct hf_sandbox *sb, hf_done_cb cb, void *arg)
{
    struct cnet_wait *w = hf_new(struct cnet_wait);
    w->sb = hf_sandbox_ref(sb);
    w->until_ms = hf_mono_ms() + HF_CNET_WAIT_MS;
    w->cb = cb;
    w->arg = arg;
    hf_list_add_tail(&n->waits, &w->node);
}

static struct cnet_wait *take_wait(struct hf_cnet *n, uint64_t due_ms)
{
    hf_list_foreach(it, &n->waits)
    {
        struct cnet_wait *w = hf_list_entry(it, struct cnet_wait, node);
        if (w->until_ms > due_ms)
            continue;
        hf_list_del(&w->node);
        return w;
    }
    return NULL;
}

void hf_cnet_fail_waits(struct hf_cnet *n, uint64_t now_ms, const struct hf_err *err)
{
    for (struct cnet_wait *w; (w = take_wait(n, now_ms));) {
        w->cb(w->arg, err);
        hf_sandbox_unref(w->sb);
        free(w);
    }
}

void hf_cnet_flush_waits(struct hf_cnet *n)
{
    for (struct cnet_wait *w; n->told && (w = take_wait(n, UINT64_MAX));) {
        send_or_fail(n, w->sb, w->cb, w->arg);
        hf_sandbox_unref(w->sb);
        free(w);
    }
}

/* ---- a box of its own ---- */

/* ---- what the box trusts ---- */

/* An apply that first has the box trust its tenant's authority. */
struct trust {
    struct hf_cnet *n;
    struct hf_sandbox *sb;
    hf_done_cb cb;
    void *arg;
};

static void put_in_force(struct hf_cnet *n, struct hf_sandbox *sb, hf_done_cb cb, void *arg);

static void on_trusted(void *arg, const char *version, const struct hf_err *err)
{
    struct trust *t = arg;
    if (err) {
        t->cb(t->arg, err);
    } else {
        t->sb->ca_sent = true;
        put_in_force(t->n, t->sb, t->cb, t->arg);
    }
    hf_sandbox_unref(t->sb);
    free(t);
}

/* A running box whose policy has begun to need interception. True: under way, cb comes. While it is made, the
 * certificate goes along with /init. */
static bool trust_first(struct hf_cnet *n, struct hf_sandbox *sb, hf_done_cb cb, void *arg)
{
    json_auto_t *doc = NULL, *merged = NULL;
    if (sb->ca_sent || sb->state != HF_RUNNING || !sb->box || hf_network_doc(sb, &doc, NULL) < 0 ||
        hf_network_merge(sb->c, sb->row.tenant, doc, &merged, NULL) < 0 || !hf_cnet_needs_ca(merged))
        return false;
    struct hf_err err = {0};
    const char *pem = hf_cnet_ca(n, sb->row.tenant, &err);
    if (!pem) {
        fail_soon(n, &err, cb, arg);
        return true;
    }
    struct trust *t = hf_new(struct trust);
    *t = (struct trust){n, hf_sandbox_ref(sb), cb, arg};
    (void)!hf_envd_ca(n->loop, hf_box_control_socket(sb->box), pem, HF_CNET_WAIT_MS, on_trusted, t);
    return true;
}

static void put_in_force(struct hf_cnet *n, struct hf_sandbox *sb, hf_done_cb cb, void *arg)
{
    if (n->told)
        send_or_fail(n, sb, cb, arg);
    else
        wait_for_netd(n, sb, cb, arg);
}

void hf_cnet_apply(struct hf_cnet *n, struct hf_sandbox *sb, hf_done_cb cb, void *arg)
{
    if (!n || !n->fabric || !sb->wired)
        hf_cnet_soon(sb->c->loop, cb, arg);
    else if (!trust_first(n, sb, cb, arg))
        put_in_force(n, sb, cb, arg);
}

struct gone {
    struct hf_cnet *n;
    uint32_t key;
};

static void remember_gone(struct hf_cnet *n, uint32_t key)
{
    n->gone = hf_xrealloc(n->gone, (n->n_gone + 1) * sizeof(*n->gone));
    n->gone[n->n_gone++] = key;
}

static void on_forgotten(void *arg, const json_t *body, const struct hf_err *err)
{
    struct gone *g = arg;
    if (err && !g->n->closing)
        remember_gone(g->n, g->key);
    free(g);
}

void hf_cnet_forget(struct hf_cnet *n, uint32_t key)
{
    char path[32];
    if (!n || !n->fabric || key == 0)
        return;
    if (!n->told) {
        remember_gone(n, key);
        return;
    }
    struct gone *g = hf_new(struct gone);
    *g = (struct gone){n, key};
    (void)snprintf(path, sizeof(path), "/boxes/%u", key);
    hf_netc_send(n->client, "DELETE", path, NULL, 0, on_forgotten, g);
}

/* ---- everything again ---- */

static const json_t *servers(const struct hf_config_zone *z, json_t *into)
{
    for (size_t i = 0; i < z->n; i++)
        (void)json_array_append_new(into, json_string(z->servers[i]));
    return into;
}

static void add_zone(void *arg, const struct hf_config_zone *z)
{
    json_t *list = json_array();
    (void)servers(z, list);
    (void)json_array_append_new(
        arg, json_pack("{s:s, s:o, s:b}", "zone", z->zone, "upstreams", list, "private", z->is_private));
}

static json_t *settings(const struct hf_cnet *n)
{
    struct hf_config_zone root = {0};
    json_t *upstreams = json_array(), *zones = json_array();
    /* Both were checked when they were set. */
    if (*n->cfg->dns_upstreams && hf_config_parse_servers(n->cfg->dns_upstreams, &root, NULL) == 0)
        (void)servers(&root, upstreams);
    (void)!hf_config_each_zone(n->cfg->dns_zones, add_zone, zones, NULL);
    const char *ca = n->cfg->egress_ca_file;
    return json_pack("{s:{s:o, s:o}, s:s?}", "dns", "upstreams", upstreams, "zones", zones, "ca_file",
                     *ca ? ca : NULL);
}

static void on_config(void *arg, const json_t *body, const struct hf_err *err)
{
    struct hf_cnet *n = arg;
    if (err && !n->closing)
        hf_log_error("the network helper does not take the settings", "error=%s", hf_log_quote(err->msg));
}

static bool has_key(const struct hf_cnet *n, uint32_t key)
{
    hf_list_foreach(it, &n->c->list)
    {
        const struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (sb->box && sb->wired && hf_box_net_key(sb->box) == key)
            return true;
    }
    return false;
}

/* Keys that the kernel or netd know and no sandbox has. */
static void drop_unknown(struct hf_cnet *n, uint32_t key)
{
    if (key == 0 || has_key(n, key))
        return;
    hf_log_info("a key without a sandbox is taken from the fabric", "key=%u", key);
    hf_cnet_forget(n, key);
}

static void on_boxes(void *arg, const json_t *body, const struct hf_err *err)
{
    struct hf_cnet *n = arg;
    size_t i;
    const json_t *v;
    if (err || n->closing)
        return;
    json_array_foreach(body, i, v) drop_unknown(n, (uint32_t)json_integer_value(json_object_get(v, "key")));
    uint32_t *keys = NULL;
    size_t n_keys = 0;
    if (n->keys_checked || hf_net_keys(n->fabric, &keys, &n_keys) < 0)
        return;
    n->keys_checked = true; /* from here on every end is told to netd */
    for (i = 0; i < n_keys; i++)
        drop_unknown(n, keys[i]);
    free(keys);
}

/* After a restart it is not known whether the box has an interface; a document that lets something out tells
 * that it has. */
static void learn_wire(struct hf_sandbox *sb)
{
    json_auto_t *doc = NULL, *merged = NULL;
    if (sb->wired || sb->state != HF_RUNNING || hf_network_doc(sb, &doc, NULL) < 0 ||
        hf_network_merge(sb->c, sb->row.tenant, doc, &merged, NULL) < 0)
        return;
    sb->wired = hf_network_needs_wire(merged);
}

void hf_cnet_sync(struct hf_cnet *n)
{
    size_t pos = 0;
    for (struct cnet_tenant *t; (t = hf_map_next(&n->tenants, &pos, NULL));)
        t->pushed = false;
    hf_cnet_put(n, "/config", settings(n), on_config, n);
    hf_list_foreach(it, &n->c->list)
    {
        struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (!sb->box || sb->state != HF_RUNNING)
            continue;
        learn_wire(sb);
        if (sb->wired)
            send_or_fail(n, hf_sandbox_ref(sb), on_synced_box, sb);
    }
    size_t n_gone = n->n_gone;
    hf_auto_free uint32_t *gone = hf_take_ptr(n->gone);
    n->n_gone = 0;
    for (size_t i = 0; i < n_gone; i++)
        drop_unknown(n, gone[i]);
    hf_netc_send(n->client, "GET", "/boxes", NULL, 0, on_boxes, n);
}

/* ---- many at once ---- */

struct fan {
    unsigned left;
    struct hf_err err;
    hf_done_cb cb;
    void *arg;
};

static void on_fan(void *arg, const struct hf_err *err)
{
    struct fan *f = arg;
    if (err && !f->err.r)
        f->err = *err;
    if (--f->left)
        return;
    if (f->cb)
        f->cb(f->arg, f->err.r ? &f->err : NULL);
    free(f);
}

void hf_cnet_group_changed(struct hf_cnet *n, const char *tenant, const char *group, hf_done_cb cb, void *arg)
{
    struct fan *f = hf_new(struct fan);
    f->cb = cb;
    f->arg = arg;
    f->left = 1;
    hf_list_foreach(it, &n->c->list)
    {
        struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        if (strcmp(sb->row.tenant, tenant) != 0 || !sb->box || sb->state != HF_RUNNING ||
            !hf_network_bound(sb, group))
            continue;
        f->left++;
        hf_cnet_apply(n, sb, on_fan, f);
    }
    hf_cnet_soon(n->loop, on_fan, f); /* the one that was counted in front */
}

/* ---- counters ---- */

struct ask {
    void (*cb)(void *arg, const json_t *v);
    void *arg;
};

static void on_counters(void *arg, const json_t *body, const struct hf_err *err)
{
    struct ask *a = arg;
    a->cb(a->arg, err ? NULL : body);
    free(a);
}

static void on_no_counters(void *arg, const struct hf_err *err)
{
    on_counters(arg, NULL, NULL);
}

void hf_cnet_counters(struct hf_cnet *n, uint32_t key, void (*cb)(void *arg, const json_t *v), void *arg)
{
    struct ask *a = hf_new(struct ask);
    char path[32];
    a->cb = cb;
    a->arg = arg;
    if (!n->told) {
        hf_cnet_soon(n->loop, on_no_counters, a);
        return;
    }
    (void)snprintf(path, sizeof(path), "/boxes/%u", key);
    hf_netc_send(n->client, "GET", path, NULL, 0, on_counters, a);
}
