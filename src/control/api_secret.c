/* Secrets, in E2B's shapes. A value comes in and never goes out again: it is sealed before it becomes a row
 * and overwritten in the request. */
#include <stdio.h>

#include "base/clock.h"
#include "base/id.h"
#include "control/net.h"
#include "control/present.h"
#include "control/seal.h"
#include "control/validate.h"
#include "store/net.h"

#define NAME_MAX_LEN 128u
#define ID_PREFIX "sec_"
#define ID_RANDOM 20u
#define LIST_MAX 100
#define META_ENTRIES_MAX 32u
#define META_KEY_MAX 128u
#define META_VALUE_MAX 1024u
#define META_BYTES_MAX 8192u

static json_t *present(const struct hf_secret_row *s)
{
    json_t *metadata = json_loads(s->metadata && *s->metadata ? s->metadata : "{}", 0, NULL);
    return json_pack("{s:s, s:s, s:I, s:o, s:o, s:o}", "secretID", s->id, "name", s->name, "currentVersion",
                     (json_int_t)s->version, "metadata", metadata ? metadata : json_object(), "createdAt",
                     hf_present_time(s->created_ms), "updatedAt", hf_present_time(s->updated_ms));
}

/* ---- what requests say ---- */

static int take_name(const json_t *body, char out[HF_ROW_NAME], struct hf_err *err)
{
    const json_t *v = json_object_get(body, "name");
    const char *name = json_string_value(v);
    if (!name)
        return hf_err_http(err, -EINVAL, 400, "validation error: \"name\" is required");
    size_t n = json_string_length(v);
    if (n == 0 || n > NAME_MAX_LEN || strlen(name) != n)
        return hf_err_http(err, -EINVAL, 400, "validation error: \"name\" must have 1 to %u characters",
                           NAME_MAX_LEN);
    for (size_t i = 0; i <= n; i++) {
        char ch = name[i];
        if (ch >= 'A' && ch <= 'Z')
            ch = (char)(ch - 'A' + 'a');
        if (ch && !strchr("abcdefghijklmnopqrstuvwxyz0123456789_-", ch))
            return hf_err_http(err, -EINVAL, 400,
                               "validation error: \"name\" may hold letters, digits, '-' and '_' only");
        out[i] = ch;
    }
    if (strncmp(out, ID_PREFIX, sizeof(ID_PREFIX) - 1) == 0)
        return hf_err_http(err, -EINVAL, 400, "validation error: names that begin with \"%s\" are reserved",
                           ID_PREFIX);
    return 0;
}

/* The errors speak of the value's size only. */
static int take_value(const json_t *body, const json_t **ret, struct hf_err *err)
{
    const json_t *v = json_object_get(body, "value");
    if (!json_is_string(v) || json_string_length(v) == 0)
        return hf_err_http(err, -EINVAL, 400, "validation error: \"value\" is required");
    if (json_string_length(v) > HF_SECRET_VALUE_MAX)
        return hf_err_http(err, -EMSGSIZE, 400, "validation error: \"value\" is longer than %u bytes",
                           HF_SECRET_VALUE_MAX);
    if (memchr(json_string_value(v), '\0', json_string_length(v)))
        return hf_err_http(err, -EINVAL, 400, "validation error: \"value\" holds a NUL");
    *ret = v;
    return 0;
}

/* 1 given, 0 not. */
static int take_metadata(const json_t *body, char **ret, struct hf_err *err)
{
    const json_t *v = json_object_get(body, "metadata");
    if (!v || json_is_null(v))
        return 0;
    int r = hf_validate_metadata(v, "metadata", err);
    if (r < 0)
        return r;
    size_t total = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        if (strlen(key) > META_KEY_MAX || json_string_length(value) > META_VALUE_MAX)
            return hf_err_http(err, -EINVAL, 400,
                               "validation error: \"metadata\": keys have at most %u and values %u bytes",
                               META_KEY_MAX, META_VALUE_MAX);
        total += strlen(key) + json_string_length(value);
    }
    if (json_object_size(v) > META_ENTRIES_MAX || total > META_BYTES_MAX)
        return hf_err_http(err, -EINVAL, 400,
                           "validation error: \"metadata\" has at most %u entries and %u bytes",
                           META_ENTRIES_MAX, META_BYTES_MAX);
    *ret = json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS);
    return 1;
}

static void forget_value(struct hf_call *call)
{
    hf_wipe_json(json_object_get(call->body, "value"));
    if (call->raw.p)
        explicit_bzero(call->raw.p, call->raw.n);
}

/* ---- writing ---- */

struct change {
    struct hf_call *call;
    struct hf_cnet *net;
    char tenant[HF_ROW_ID], name[HF_ROW_NAME];
    int status;
    json_t *answer; /* NULL: an empty one */
};

static char *change_key(const char *tenant, const char *name)
{
    return hf_xasprintf("%s/%s", tenant, name);
}

static void finish(struct change *ch, const struct hf_err *err)
{
    hf_auto_free char *key = change_key(ch->tenant, ch->name);
    (void)hf_map_del(&ch->call->c->secrets_changing, hf_str_c(key));
    ch->call->c->busy--;
    if (err)
        hf_call_err(ch->call, err);
    else if (ch->answer)
        hf_call_json(ch->call, ch->status, json_incref(ch->answer));
    else
        hf_call_empty(ch->call, ch->status);
    json_decref(ch->answer);
    free(ch);
}

/* The row counts: if netd could not be told, it is told when it is back. */
static void on_told(void *arg, const struct hf_err *err)
{
    finish(arg, NULL);
}

static void on_row(void *arg, int r, const struct hf_err *err)
{
    struct change *ch = arg;
    if (r < 0)
        finish(ch, err);
    else
        hf_cnet_tenant_changed(ch->net, ch->tenant, on_told, ch);
}

/* One change of a secret at a time: versions are counted from the row that is read. NULL: answered. */
static struct change *begin(struct hf_call *call, const char *name)
{
    hf_auto_free char *key = change_key(call->tenant, name);
    if (hf_map_get(&call->c->secrets_changing, hf_str_c(key))) {
        hf_call_fail(call, 409, "the secret %s is being changed; try again in a moment", name);
        return NULL;
    }
    struct change *ch = hf_new(struct change);
    ch->call = call;
    ch->net = call->c->net;
    (void)snprintf(ch->tenant, sizeof(ch->tenant), "%s", call->tenant);
    (void)snprintf(ch->name, sizeof(ch->name), "%s", name);
    (void)hf_map_put(&call->c->secrets_changing, hf_str_c(key), ch);
    call->c->busy++;
    return ch;
}

/* Seals the value and commits the row; what the row owns beyond that is the caller's. */
static void write_secret(struct change *ch, struct hf_secret_row *s, const json_t *value)
{
    struct hf_err err = {0};
    int r = hf_cnet_seal_secret(ch->net, s->tenant, s->name, json_string_value(value),
                                json_string_length(value), &s->sealed, &s->sealed_n, &err);
    forget_value(ch->call);
    if (r < 0) {
        finish(ch, &err);
        return;
    }
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_secret(b, s);
    ch->answer = present(s);
    hf_meta_commit(ch->call->c->meta, b, 0, on_row, ch);
}

static bool have_secrets(struct hf_call *call)
{
    if (call->c->net)
        return true;
    hf_call_fail(call, 501, "this daemon keeps no secrets");
    return false;
}

struct sum {
    const char *but; /* this one is about to be replaced */
    size_t n, bytes;
};

static bool add_up(void *arg, const struct hf_secret_row *s)
{
    struct sum *sum = arg;
    if (strcmp(s->name, sum->but) == 0)
        return true;
    sum->n++;
    sum->bytes += s->sealed_n;
    return true;
}

/* Is there room for a value of that many bytes under that name? */
static int check_room(struct hf_call *call, const char *name, size_t value_n, struct hf_err *err)
{
    struct sum sum = {.but = name};
    int r = hf_each_secret(call->c->meta, call->tenant, add_up, &sum);
    if (r < 0)
        return hf_err_set(err, r, "the database can't be read");
    if (sum.n >= HF_SECRETS_MAX)
        return hf_err_http(err, -EDQUOT, 429, "a tenant may have %u secrets; remove one first",
                           HF_SECRETS_MAX);
    if (sum.bytes + value_n + HF_SEAL_OVERHEAD > HF_SECRETS_BYTES_MAX)
        return hf_err_http(err, -EDQUOT, 429,
                           "the secrets of a tenant may have %u bytes together; remove one first",
                           HF_SECRETS_BYTES_MAX);
    return 0;
}

static int admit(struct hf_call *call, const char *name, size_t value_n, struct hf_err *err)
{
    struct hf_secret_row old = {0};
    int r = hf_get_secret(call->c->meta, call->tenant, name, &old);
    hf_secret_row_done(&old);
    if (r < 0)
        return hf_err_set(err, r, "the database can't be read");
    if (r > 0)
        return hf_err_http(err, -EEXIST, 409, "a secret named %s exists already; update it", name);
    return check_room(call, name, value_n, err);
}

static void create(struct hf_call *call)
{
    struct hf_err err = {0};
    struct hf_secret_row s = {.version = 1};
    const json_t *value = NULL;
    if (!have_secrets(call))
        return;
    int r = take_name(call->body, s.name, &err);
    if (r == 0)
        r = take_value(call->body, &value, &err);
    if (r == 0)
        r = take_metadata(call->body, &s.metadata, &err);
    if (r >= 0)
        r = admit(call, s.name, json_string_length(value), &err);
    struct change *ch = r < 0 ? NULL : begin(call, s.name);
    if (ch) {
        s.created_ms = s.updated_ms = hf_real_ms();
        (void)snprintf(s.tenant, sizeof(s.tenant), "%s", call->tenant);
        (void)snprintf(s.id, sizeof(s.id), "%s", ID_PREFIX);
        hf_random_id(s.id + sizeof(ID_PREFIX) - 1, ID_RANDOM);
        ch->status = 201;
        write_secret(ch, &s, value);
    } else {
        forget_value(call);
        if (r < 0)
            hf_call_err(call, &err);
    }
    hf_secret_row_done(&s);
}

/* Fills s from parameter 0; false: answered. Names come in any case, ids as they are. */
static bool find(struct hf_call *call, struct hf_secret_row *s)
{
    char want[HF_ROW_NAME];
    if (!have_secrets(call))
        return false;
    (void)snprintf(want, sizeof(want), "%s", call->param[0]);
    for (char *p = want; *p; p++)
        if (*p >= 'A' && *p <= 'Z')
            *p = (char)(*p - 'A' + 'a');
    int r = strlen(call->param[0]) < sizeof(want) ? hf_get_secret(call->c->meta, call->tenant, want, s) : 0;
    if (r < 0)
        hf_call_fail(call, 500, "the database can't be read");
    else if (r == 0)
        hf_call_fail(call, 404, "Secret %.*s not found", 140, call->param[0]);
    return r > 0;
}

static void update(struct hf_call *call)
{
    struct hf_err err = {0};
    struct hf_secret_row s = {0};
    const json_t *value = NULL;
    char *metadata = NULL;
    int r = take_value(call->body, &value, &err);
    if (r == 0)
        r = take_metadata(call->body, &metadata, &err);
    if (r < 0) {
        forget_value(call);
        hf_call_err(call, &err);
        return;
    }
    struct change *ch = NULL;
    if (find(call, &s)) {
        r = check_room(call, s.name, json_string_length(value), &err);
        ch = r == 0 ? begin(call, s.name) : NULL;
        if (r < 0)
            hf_call_err(call, &err);
    }
    if (ch) {
        free(s.sealed);
        s.sealed = NULL;
        if (metadata) {
            free(s.metadata);
            s.metadata = hf_take_ptr(metadata);
        }
        s.version++;
        s.updated_ms = hf_real_ms();
        ch->status = 200;
        write_secret(ch, &s, value);
    } else {
        forget_value(call);
    }
    free(metadata);
    hf_secret_row_done(&s);
}

static void remove_secret(struct hf_call *call)
{
    struct hf_secret_row s = {0};
    struct change *ch = find(call, &s) ? begin(call, s.name) : NULL;
    if (ch) {
        ch->status = 204;
        struct hf_meta_batch *b = hf_meta_batch_new();
        hf_del_secret(b, s.tenant, s.name);
        hf_meta_commit(call->c->meta, b, 0, on_row, ch);
    }
    hf_secret_row_done(&s);
}

/* ---- reading ---- */

static void get(struct hf_call *call)
{
    struct hf_secret_row s = {0};
    if (find(call, &s))
        hf_call_json(call, 200, present(&s));
    hf_secret_row_done(&s);
}

struct page {
    json_t *list;
    const char *after; /* "" = from the first */
    int64_t limit;
    char last[HF_ROW_NAME];
    bool more;
};

static bool add(void *arg, const struct hf_secret_row *s)
{
    struct page *p = arg;
    if (*p->after && strcmp(s->name, p->after) <= 0)
        return true;
    if ((int64_t)json_array_size(p->list) == p->limit) {
        p->more = true;
        return false;
    }
    (void)snprintf(p->last, sizeof(p->last), "%s", s->name);
    (void)json_array_append_new(p->list, present(s));
    return true;
}

static void list(struct hf_call *call)
{
    struct page p = {.after = "", .limit = LIST_MAX};
    hf_auto_buf struct hf_buf token = HF_BUF_INIT(HF_ROW_NAME);
    if (hf_call_query_int(call, "limit", 1, LIST_MAX, &p.limit) < 0 ||
        hf_call_query(call, "nextToken", &token) < 0)
        return;
    if (token.p)
        p.after = token.p;
    p.list = json_array();
    if (hf_each_secret(call->c->meta, call->tenant, add, &p) < 0) {
        json_decref(p.list);
        hf_call_fail(call, 500, "the database can't be read");
        return;
    }
    if (p.more)
        hf_call_header(call, "X-Next-Token", p.last);
    hf_call_json(call, 200, p.list);
}

const struct hf_api_route hf_api_secret_routes[] = {
    {"GET", "/secrets", list, 0},
    {"POST", "/secrets", create, HF_API_BODY},
    {"GET", "/secrets/{secretID}", get, 0},
    {"POST", "/secrets/{secretID}", update, HF_API_BODY},
    {"DELETE", "/secrets/{secretID}", remove_secret, 0},
    {NULL, NULL, NULL, 0},
};
