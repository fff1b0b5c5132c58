/* What netd must know of a tenant: its secrets and its certificate authority. Rows hold both sealed; in clear
 * they exist here only while they are on their way to netd. */
#include <stdio.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "control/net_int.h"
#include "store/net.h"
#include "wire/tls.h"

#define CA_DAYS 3650u
#define SEALED_PREFIX "sealed:"
#define PASSWORD_MAX 65536u

/* ---- sealing ---- */

struct hf_sealer *hf_cnet_sealer(struct hf_cnet *n, struct hf_err *err)
{
    if (n->sealer)
        return n->sealer;
    if (hf_sealer_open(n->cfg->data_dir, &n->sealer, err) < 0) {
        hf_err_wrap(err, "secrets can't be read or kept");
        return NULL;
    }
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* from here on a core of this process would hold the key */
    return n->sealer;
}

static void label(char out[320], const char *tenant, const char *kind, const char *name)
{
    (void)snprintf(out, 320, "%s/%s/%s", tenant, kind, name);
}

int hf_cnet_seal_secret(struct hf_cnet *n, const char *tenant, const char *name, const char *value,
                        size_t value_n, unsigned char **ret, size_t *ret_n, struct hf_err *err)
{
    char l[320];
    if (!n)
        return hf_err_http(err, -ENOTSUP, 501, "this daemon keeps no secrets");
    struct hf_sealer *s = hf_cnet_sealer(n, err);
    if (!s)
        return err && err->r ? err->r : -EIO;
    label(l, tenant, "secret", name);
    int r = hf_seal(s, l, value, value_n, ret, ret_n);
    return r < 0 ? hf_err_set(err, r, "the secret can't be sealed: %s", strerror(-r)) : 0;
}

static int seal_password(struct hf_sealer *s, const char *tenant, json_t *proxy, const char *password)
{
    char l[320];
    unsigned char *sealed = NULL;
    size_t sealed_n = 0;
    label(l, tenant, "egress-proxy", "password");
    int r = hf_seal(s, l, password, strlen(password), &sealed, &sealed_n);
    if (r < 0)
        return r;
    hf_auto_buf struct hf_buf text = HF_BUF_INIT(2 * PASSWORD_MAX);
    r = hf_buf_adds(&text, SEALED_PREFIX);
    if (r == 0)
        r = hf_base64_add(&text, sealed, sealed_n);
    free(sealed);
    if (r == 0)
        (void)json_object_set_new(proxy, "password", json_stringn(text.p, text.n));
    return r;
}

int hf_cnet_seal_doc(struct hf_cnet *n, const char *tenant, json_t *doc, struct hf_err *err)
{
    json_t *proxy = json_object_get(doc, "egress_proxy");
    json_t *member = json_incref(json_object_get(proxy, "password"));
    const char *password = json_string_value(member);
    int r = 0;
    if (!password || !*password) {
        r = 0;
    } else if (!n) {
        r = hf_err_http(err, -ENOTSUP, 501, "this daemon can't keep the password of an egress proxy");
    } else {
        struct hf_sealer *s = hf_cnet_sealer(n, err);
        r = s ? seal_password(s, tenant, proxy, password) : -EIO;
        if (s && r < 0)
            (void)hf_err_set(err, r, "the proxy's password can't be sealed: %s", strerror(-r));
        hf_wipe_json(member);
    }
    json_decref(member);
    return r;
}

int hf_cnet_unseal_doc(struct hf_cnet *n, const char *tenant, json_t *doc, struct hf_err *err)
{
    json_t *proxy = json_object_get(doc, "egress_proxy");
    const char *password = json_string_value(json_object_get(proxy, "password"));
    if (!password || strncmp(password, SEALED_PREFIX, sizeof(SEALED_PREFIX) - 1) != 0)
        return 0;
    struct hf_sealer *s = n ? hf_cnet_sealer(n, err) : NULL;
    if (!s)
        return n ? -EIO : hf_err_set(err, -ENOTSUP, "this daemon can't read the password of an egress proxy");
    char l[320];
    char *clear = NULL;
    size_t clear_n = 0;
    hf_auto_buf struct hf_buf sealed = HF_BUF_INIT(2 * PASSWORD_MAX);
    label(l, tenant, "egress-proxy", "password");
    int r = hf_unbase64_add(&sealed, hf_str_c(password + sizeof(SEALED_PREFIX) - 1));
    if (r == 0)
        r = hf_unseal(s, l, sealed.p, sealed.n, &clear, &clear_n);
    if (r < 0)
        return hf_err_set(err, r, "the proxy's password in the row can't be opened with this node's key");
    (void)json_object_set_new(proxy, "password", json_stringn(clear, clear_n));
    explicit_bzero(clear, clear_n);
    free(clear);
    return 0;
}

/* ---- tenants ---- */

struct cnet_tenant *hf_cnet_tenant(struct hf_cnet *n, const char *name)
{
    struct cnet_tenant *t = hf_map_get(&n->tenants, hf_str_c(name));
    if (t)
        return t;
    t = hf_new(struct cnet_tenant);
    memcpy(t->name, name, strnlen(name, sizeof(t->name) - 1));
    (void)hf_map_put(&n->tenants, hf_str_c(name), t);
    return t;
}

static void drop_ca(struct cnet_tenant *t)
{
    if (t->ca_key)
        explicit_bzero(t->ca_key, strlen(t->ca_key));
    free(t->ca_key);
    free(t->ca_cert);
    t->ca_key = t->ca_cert = NULL;
}

void hf_cnet_tenants_done(struct hf_cnet *n)
{
    size_t pos = 0;
    for (struct cnet_tenant *t; (t = hf_map_next(&n->tenants, &pos, NULL));) {
        drop_ca(t);
        free(t);
    }
    hf_map_done(&n->tenants);
}

/* 1 loaded, 0 the tenant has none, or an error. */
static int load_ca(struct hf_cnet *n, struct cnet_tenant *t, struct hf_err *err)
{
    struct hf_ca_row row = {0};
    if (t->ca_cert)
        return 1;
    int r = hf_get_ca(n->c->meta, t->name, &row);
    if (r <= 0)
        return r < 0 ? hf_err_set(err, r, "the database can't be read") : 0;
    char l[320], *key = NULL;
    size_t key_n = 0;
    label(l, t->name, "ca", "key");
    struct hf_sealer *s = hf_cnet_sealer(n, err);
    r = s ? hf_unseal(s, l, row.sealed_key, row.sealed_key_n, &key, &key_n) : -EIO;
    if (s && r < 0)
        (void)hf_err_set(err, r,
                         "the key of the tenant's certificate authority can't be opened with this "
                         "node's key");
    if (r == 0) {
        t->ca_cert = hf_take_ptr(row.cert);
        t->ca_key = key;
    }
    hf_ca_row_done(&row);
    return r < 0 ? r : 1;
}

static void on_ca_row(void *arg, int r, const struct hf_err *err)
{
    if (r < 0)
        hf_log_error(
            "a certificate authority was not recorded; sandboxes made now will not trust the next one",
            "error=%s", hf_log_quote(err->msg));
}

static int make_ca(struct hf_cnet *n, struct cnet_tenant *t, struct hf_err *err)
{
    struct hf_sealer *s = hf_cnet_sealer(n, err);
    if (!s)
        return -EIO;
    char name[96], l[320];
    (void)snprintf(name, sizeof(name), "holdfast sandboxes of %.60s", t->name);
    int r = hf_cert_ca(name, CA_DAYS, &t->ca_cert, &t->ca_key, err);
    if (r < 0)
        return r;
    struct hf_ca_row row = {.cert = t->ca_cert, .created_ms = hf_real_ms()};
    (void)snprintf(row.tenant, sizeof(row.tenant), "%s", t->name);
    label(l, t->name, "ca", "key");
    r = hf_seal(s, l, t->ca_key, strlen(t->ca_key), &row.sealed_key, &row.sealed_key_n);
    if (r < 0) {
        drop_ca(t);
        return hf_err_set(err, r, "the authority's key can't be sealed: %s", strerror(-r));
    }
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_ca(b, &row);
    free(row.sealed_key);
    /* Ordered before any later row of a sandbox that trusts it. */
    hf_meta_commit(n->c->meta, b, 0, on_ca_row, NULL);
    t->pushed = false;
    return 0;
}

const char *hf_cnet_ca(struct hf_cnet *n, const char *tenant, struct hf_err *err)
{
    if (!n || !n->c) {
        (void)hf_err_http(err, -ENOTSUP, 501, "this host has no network for sandboxes");
        return NULL;
    }
    struct cnet_tenant *t = hf_cnet_tenant(n, tenant);
    int r = load_ca(n, t, err);
    if (r == 0)
        r = make_ca(n, t, err);
    if (r < 0)
        return NULL;
    if (!t->pushed && n->told)
        hf_cnet_push_tenant(n, tenant);
    return t->ca_cert;
}

/* As the proxy does it: every host that a rule speaks of is intercepted on https, but one that is denied
 * whatever is asked of it never gets to see a certificate. */
bool hf_cnet_needs_ca(const json_t *merged_doc)
{
    const json_t *rule;
    size_t i;
    json_array_foreach(json_object_get(merged_doc, "rules"), i, rule)
    {
        const char *scheme = json_string_value(json_object_get(rule, "scheme"));
        const char *path = json_string_value(json_object_get(rule, "path"));
        const char *action = json_string_value(json_object_get(rule, "action"));
        bool plain = scheme && strcmp(scheme, "http") == 0;
        bool whole = !(path && *path) && json_array_size(json_object_get(rule, "methods")) == 0;
        if (!plain && !(whole && action && strcmp(action, "deny") == 0))
            return true;
    }
    return false;
}

/* ---- to netd ---- */

struct collect {
    struct hf_cnet *n;
    json_t *secrets;
    struct hf_err err;
};

static bool add_secret(void *arg, const struct hf_secret_row *s)
{
    struct collect *k = arg;
    char l[320], *value = NULL;
    size_t value_n = 0;
    struct hf_sealer *sealer = hf_cnet_sealer(k->n, &k->err);
    if (!sealer)
        return false;
    label(l, s->tenant, "secret", s->name);
    int r = hf_unseal(sealer, l, s->sealed, s->sealed_n, &value, &value_n);
    if (r < 0) {
        (void)hf_err_set(&k->err, r, "the secret %s can't be opened with this node's key: set it again",
                         s->name);
        hf_log_error("a secret can't be opened with this node's key", "tenant=%s secret=%s",
                     hf_log_quote(s->tenant), hf_log_quote(s->name));
        return true; /* the others can */
    }
    (void)json_object_set_new(k->secrets, s->name, json_stringn(value, value_n));
    explicit_bzero(value, value_n);
    free(value);
    return true;
}

struct push {
    struct hf_cnet *n;
    char tenant[HF_ROW_ID];
    hf_done_cb cb;
    void *arg;
};

static void on_pushed(void *arg, const json_t *body, const struct hf_err *err)
{
    struct push *p = arg;
    struct cnet_tenant *t = hf_cnet_tenant(p->n, p->tenant);
    if (err) {
        t->pushed = false;
        t->push_err = *err;
        if (!p->n->closing)
            hf_log_warn("a tenant's secrets did not reach the network helper", "tenant=%s error=%s",
                        hf_log_quote(p->tenant), hf_log_quote(err->msg));
    }
    if (p->cb)
        p->cb(p->arg, err);
    free(p);
}

static void push(struct hf_cnet *n, struct cnet_tenant *t, hf_done_cb cb, void *arg)
{
    struct collect k = {.n = n, .secrets = json_object()};
    struct hf_err err = {0};
    if (hf_each_secret(n->c->meta, t->name, add_secret, &k) < 0)
        (void)hf_err_set(&k.err, -EIO, "the database can't be read");
    int r = load_ca(n, t, &err);
    if (r < 0)
        hf_log_error("a tenant's certificate authority can't be used", "tenant=%s error=%s",
                     hf_log_quote(t->name), hf_log_quote(err.msg));
    json_t *ca = r > 0 ? json_pack("{s:s, s:s}", "cert", t->ca_cert, "key", t->ca_key) : json_null();
    struct push *p = hf_new(struct push);
    p->n = n;
    (void)snprintf(p->tenant, sizeof(p->tenant), "%s", t->name);
    p->cb = cb;
    p->arg = arg;
    t->pushed = true;
    t->push_err = (struct hf_err){0};
    char path[HF_ROW_ID + 16];
    (void)snprintf(path, sizeof(path), "/tenants/%s", t->name);
    hf_cnet_put(n, path, json_pack("{s:o, s:o}", "secrets", k.secrets, "ca", ca), on_pushed, p);
}

void hf_cnet_push_tenant(struct hf_cnet *n, const char *name)
{
    struct cnet_tenant *t = hf_cnet_tenant(n, name);
    if (!t->pushed)
        push(n, t, NULL, NULL);
}

void hf_cnet_tenant_changed(struct hf_cnet *n, const char *tenant, hf_done_cb cb, void *arg)
{
    struct cnet_tenant *t = n ? hf_map_get(&n->tenants, hf_str_c(tenant)) : NULL;
    if (t && n->told && t->pushed) {
        push(n, t, cb, arg);
        return;
    }
    /* netd does not know the tenant, or is not there: it gets the rows as they are when it needs them. */
    if (cb)
        hf_cnet_soon(n->loop, cb, arg);
}
