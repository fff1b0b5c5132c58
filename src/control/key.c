#include "control/key.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/id.h"
#include "base/path.h"
#include "store/meta.h"

static void to_info(const struct hf_key_row *k, struct hf_key_info *out)
{
    memset(out, 0, sizeof(*out));
    (void)snprintf(out->id, sizeof(out->id), "%s", k->id);
    (void)snprintf(out->tenant, sizeof(out->tenant), "%s", k->tenant);
    (void)snprintf(out->name, sizeof(out->name), "%.*s", (int)HF_KEY_NAME_MAX, k->name);
    (void)snprintf(out->prefix, sizeof(out->prefix), "%s", k->prefix);
    out->created_ms = k->created_ms;
    out->last_used_ms = k->last_used_ms;
    out->revoked_ms = k->revoked_ms;
}

static int check_names(const char *tenant, const char *name, struct hf_err *err)
{
    size_t n = strlen(tenant);
    if (n >= HF_ROW_ID || strspn(tenant, "abcdefghijklmnopqrstuvwxyz0123456789-_") != n)
        return hf_err_set(err, -EINVAL,
                          "a tenant's name has 1 to %u characters: lower-case letters, digits, - and _",
                          HF_ROW_ID - 1);
    if (strlen(name) > HF_KEY_NAME_MAX)
        return hf_err_set(err, -EINVAL, "a key's name has at most %u bytes", HF_KEY_NAME_MAX);
    for (const char *p = name; *p; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return hf_err_set(err, -EINVAL, "a key's name can't have control characters");
    }
    return 0;
}

static int open_meta(const char *data_dir, struct hf_meta **ret, struct hf_err *err)
{
    int r = hf_mkdir_p(data_dir, 0700);
    if (r < 0)
        return hf_err_set(err, r, "cannot make the data directory %s: %s", data_dir, strerror(-r));
    return hf_meta_open(data_dir, NULL, ret, err);
}

int hf_key_create(const char *data_dir, const char *tenant, const char *name, char ret_text[HF_KEY_TEXT_MAX],
                  struct hf_key_info *ret, struct hf_err *err)
{
    tenant = tenant && *tenant ? tenant : HF_TENANT_DEFAULT;
    name = name ? name : "";
    int r = check_names(tenant, name, err);
    if (r < 0)
        return r;
    struct hf_meta *m = NULL;
    r = open_meta(data_dir, &m, err);
    if (r < 0)
        return r;
    unsigned char secret[HF_KEY_HEX / 2];
    char text[HF_KEY_TEXT_MAX] = HF_KEY_PREFIX;
    struct hf_key_row k = {.created_ms = hf_real_ms()};
    hf_random(secret, sizeof(secret));
    hf_hex(secret, sizeof(secret), text + sizeof(HF_KEY_PREFIX) - 1);
    hf_sha256_of(text, strlen(text), k.hash);
    (void)snprintf(k.id, sizeof(k.id), "key_");
    hf_random_id(k.id + 4, 16);
    (void)snprintf(k.tenant, sizeof(k.tenant), "%s", tenant);
    (void)snprintf(k.name, sizeof(k.name), "%s", name);
    (void)snprintf(k.prefix, sizeof(k.prefix), "%.12s", text);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_tenant(b, tenant, k.created_ms);
    hf_put_key(b, &k);
    r = hf_meta_commit_now(m, b, err);
    hf_meta_close(m, NULL, NULL);
    if (r == 0) {
        memcpy(ret_text, text, sizeof(text));
        if (ret)
            to_info(&k, ret);
    }
    explicit_bzero(secret, sizeof(secret));
    explicit_bzero(text, sizeof(text));
    return r;
}

struct collect {
    struct hf_key_info *keys;
    size_t n, cap;
};

static void collect_key(void *arg, const struct hf_key_row *k)
{
    struct collect *l = arg;
    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 16;
        l->keys = hf_xrealloc(l->keys, l->cap * sizeof(*l->keys));
    }
    to_info(k, &l->keys[l->n++]);
}

static int read_keys(struct hf_meta *m, struct collect *l, struct hf_err *err)
{
    int r = hf_each_key(m, collect_key, l);
    return r < 0 ? hf_err_set(err, r, "cannot read the API keys") : 0;
}

int hf_key_list(const char *data_dir, struct hf_key_info **ret, size_t *ret_n, struct hf_err *err)
{
    struct hf_meta *m = NULL;
    struct collect l = {0};
    int r = open_meta(data_dir, &m, err);
    if (r < 0)
        return r;
    r = read_keys(m, &l, err);
    hf_meta_close(m, NULL, NULL);
    if (r < 0) {
        free(l.keys);
        return r;
    }
    *ret = l.keys ? l.keys : hf_xcalloc(1, sizeof(*l.keys));
    *ret_n = l.n;
    return 0;
}

static const struct hf_key_info *pick(const struct collect *l, const char *id, int *ret, struct hf_err *err)
{
    const struct hf_key_info *found = NULL;
    size_t n = strlen(id);
    for (size_t i = 0; i < l->n; i++) {
        if (strcmp(l->keys[i].id, id) == 0)
            return &l->keys[i];
        bool begins =
            n >= 6 && (strncmp(l->keys[i].id, id, n) == 0 || strncmp(l->keys[i].prefix, id, n) == 0);
        if (begins && found) {
            *ret =
                hf_err_set(err, -EEXIST, "\"%s\" is the beginning of more than one key: give more of it", id);
            return NULL;
        }
        if (begins)
            found = &l->keys[i];
    }
    if (!found)
        *ret = hf_err_set(err, -ENOENT, "there is no key \"%s\"; `holdfast key ls` lists them", id);
    return found;
}

int hf_key_revoke(const char *data_dir, const char *id, struct hf_err *err)
{
    struct hf_meta *m = NULL;
    struct collect l = {0};
    int r = open_meta(data_dir, &m, err);
    if (r < 0)
        return r;
    r = read_keys(m, &l, err);
    const struct hf_key_info *k = r == 0 ? pick(&l, id, &r, err) : NULL;
    if (k) {
        struct hf_meta_batch *b = hf_meta_batch_new();
        hf_set_key_revoked(b, k->id, hf_real_ms());
        r = hf_meta_commit_now(m, b, err);
    }
    free(l.keys);
    hf_meta_close(m, NULL, NULL);
    return r;
}
