#include "control/network.h"

#include <stdio.h>

#include "base/log.h"
#include "control/ingress.h"
#include "control/net.h"
#include "egress/policy.h"
#include "store/net.h"

#define METHOD_MAX 32u
#define URL_MAX 8192u

const char *hf_network_missing(const struct hf_control *c)
{
    return c->net ? hf_cnet_missing(c->net) : "this daemon was started without it";
}

bool hf_network_ready(const struct hf_control *c)
{
    return !*hf_network_missing(c);
}

/* ---- groups ---- */

static int load_group(struct hf_control *c, const char *tenant, const char *name, json_t **ret,
                      struct hf_err *err)
{
    struct hf_policy_row row = {0};
    int r = hf_get_policy(c->meta, tenant, name, &row);
    if (r < 0)
        return hf_err_set(err, -EIO, "the database can't be read");
    if (r == 0)
        return hf_err_http(err, -ENOENT, 400, "there is no policy \"%s\"", name);
    json_t *doc = json_loads(row.doc, 0, NULL);
    hf_policy_row_done(&row);
    if (!json_is_object(doc)) {
        json_decref(doc);
        return hf_err_set(err, -EIO, "the policy \"%s\" can't be read", name);
    }
    *ret = doc;
    return 0;
}

int hf_network_merge(struct hf_control *c, const char *tenant, const json_t *doc, json_t **ret,
                     struct hf_err *err)
{
    const json_t *names = json_object_get(doc, "policies");
    json_t *groups[HF_POLICY_GROUPS_MAX];
    size_t n = 0, wanted = HF_MIN(json_array_size(names), (size_t)HF_POLICY_GROUPS_MAX);
    int r = 0;
    for (; r == 0 && n < wanted; n += r == 0) {
        const char *name = json_string_value(json_array_get(names, n));
        r = load_group(c, tenant, name ? name : "", &groups[n], err);
    }
    if (r == 0)
        *ret = hf_policy_merge(doc, (const json_t *const *)groups, n);
    for (size_t i = 0; i < n; i++)
        json_decref(groups[i]);
    return r;
}

bool hf_network_needs_wire(const json_t *merged)
{
    struct hf_policy *p;
    if (hf_policy_parse(merged, &p, NULL) < 0)
        return false;
    /* a group may be edited at any time, and then its sandboxes follow without a new interface */
    bool wants =
        json_array_size(json_object_get(merged, "policies")) || !p->deny_all || p->n_allow || p->n_names;
    for (size_t i = 0; !wants && i < p->n_rules; i++)
        wants = p->rules[i].opens;
    hf_policy_unref(p);
    return wants;
}

bool hf_network_bound(const struct hf_sandbox *sb, const char *group)
{
    json_auto_t *doc = json_loads(sb->row.network, 0, NULL);
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(doc, "policies"), i, v)
    {
        const char *name = json_string_value(v);
        if (name && strcmp(name, group) == 0)
            return true;
    }
    return false;
}

/* ---- templates ---- */

struct bound {
    const char *id, *name;
    json_t *groups;
};

static bool names_template(const json_t *doc, const struct bound *b)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(doc, "templates"), i, v)
    {
        const char *s = json_string_value(v);
        if (s && (strcmp(s, b->id) == 0 || strcmp(s, b->name) == 0))
            return true;
    }
    return false;
}

static bool add_bound(void *arg, const struct hf_policy_row *row)
{
    struct bound *b = arg;
    if (!strstr(row->doc, "\"templates\"")) /* lists may be long, and most groups bind none */
        return true;
    json_auto_t *doc = json_loads(row->doc, 0, NULL);
    if (names_template(doc, b))
        (void)json_array_append_new(b->groups, json_string(row->name));
    return true;
}

int hf_network_for_template(struct hf_control *c, const char *tenant, const char *id, const char *name,
                            const json_t *request, json_t **ret, struct hf_err *err)
{
    json_auto_t *groups = json_array();
    struct bound b = {.id = id, .name = name, .groups = groups};
    if (hf_each_policy(c->meta, tenant, add_bound, &b) < 0)
        return hf_err_set(err, -EIO, "the database can't be read");
    *ret = request ? json_copy((json_t *)(uintptr_t)request) : NULL;
    const json_t *said = json_object_get(request, "policies");
    if (json_array_size(groups) == 0 || (said && !json_is_array(said) && !json_is_null(said)))
        return 0; /* what is wrong with the request is told by who reads it */
    json_t *all = json_is_array(said) ? json_copy((json_t *)(uintptr_t)said) : json_array();
    (void)json_array_extend(all, groups); /* twice is once */
    if (!*ret)
        *ret = json_object();
    (void)json_object_set_new(*ret, "policies", all);
    return 0;
}

/* ---- documents ---- */

/* Without a fabric the only egress that exists is none: what asks for more is refused by name. */
static int refuse_without_fabric(struct hf_control *c, json_t *doc, struct hf_err *err)
{
    static const char *const lists[][2] = {
        {"allow_out", "allowOut"}, {"rules", "rules"}, {"policies", "policies"}};
    const char *what = NULL;
    json_t *deny = json_object_get(doc, "deny_out"), *v;
    bool all = false;
    size_t i;
    json_array_foreach(deny, i, v) all |= strcmp(json_string_value(v), "0.0.0.0/0") == 0;
    for (i = 0; !what && i < HF_ARRAY_LEN(lists); i++) {
        if (json_array_size(json_object_get(doc, lists[i][0])))
            what = lists[i][1];
    }
    if (!what && json_is_object(json_object_get(doc, "egress_proxy")))
        what = "egressProxy";
    if (!what && json_array_size(deny) && !all)
        what = "denyOut";
    if (what)
        return hf_err_http(err, -EOPNOTSUPP, 501,
                           "network.%s is not supported here: sandboxes have loopback only, because %s", what,
                           hf_network_missing(c));
    (void)json_object_set_new(doc, "allow_internet_access", json_false());
    if (!json_array_size(deny))
        (void)json_object_set_new(doc, "deny_out", json_pack("[s, s]", "0.0.0.0/0", "::/0"));
    return 0;
}

int hf_network_resolve(struct hf_control *c, const char *tenant, const json_t *request, int internet,
                       json_t **ret, struct hf_err *err)
{
    json_auto_t *doc = NULL, *merged = NULL;
    int r = hf_policy_resolve(request, internet, &doc, err);
    if (r == 0 && !hf_network_ready(c))
        r = refuse_without_fabric(c, doc, err);
    if (r == 0)
        r = hf_network_merge(c, tenant, doc, &merged, err);
    if (r == 0 && json_array_size(json_object_get(merged, "rules")) > HF_POLICY_RULES_MAX)
        r = hf_err_http(err, -EINVAL, 400, "network: more than %u rules with those of the policies",
                        HF_POLICY_RULES_MAX);
    struct hf_policy *p = NULL;
    if (r == 0)
        r = hf_policy_parse(merged, &p, err);
    if (r == 0 && p->n_allow + p->n_deny > HF_NET_ENTRIES_MAX)
        r = hf_err_http(err, -EINVAL, 400, "network: more than %u addresses with those of the policies",
                        HF_NET_ENTRIES_MAX);
    hf_policy_unref(p);
    if (r == 0)
        r = hf_cnet_seal_doc(c->net, tenant, doc, err);
    if (r == 0)
        *ret = hf_take_ptr(doc);
    return r;
}

int hf_network_doc(const struct hf_sandbox *sb, json_t **ret, struct hf_err *err)
{
    json_auto_t *doc = json_loads(sb->row.network, 0, NULL);
    if (!json_is_object(doc))
        return hf_err_set(err, -EIO, "the sandbox's network document can't be read");
    if (json_is_array(json_object_get(doc, "rules"))) {
        *ret = hf_take_ptr(doc);
        return 0;
    }
    return hf_policy_resolve(doc, json_is_true(json_object_get(doc, "allow_internet_access")), ret, err);
}

/* ---- replacing ---- */

struct change {
    struct hf_sandbox *sb;
    char *doc, *old;
    struct hf_err err;
    hf_done_cb cb;
    void *arg;
};

static void finish(struct change *ch)
{
    ch->sb->net_changing = false;
    ch->sb->c->busy--;
    ch->cb(ch->arg, ch->err.r ? &ch->err : NULL);
    hf_sandbox_unref(ch->sb);
    free(ch->doc);
    free(ch->old);
    free(ch);
}

static void set_row(struct hf_sandbox *sb, const char *doc)
{
    free(sb->row.network);
    sb->row.network = hf_xstrdup(doc);
    hf_sandbox_network_changed(sb);
}

/* The next sandbox of the session is to have what this one has now, not what it was made with. */
static void keep_for_session(struct hf_meta_batch *b, const struct hf_sandbox *sb, const char *doc)
{
    hf_auto_session_row struct hf_session_row row = {0};
    if (!*sb->row.session_id || hf_get_session(sb->c->meta, sb->row.tenant, sb->row.session_id, &row) != 1 ||
        strcmp(row.sandbox_id, sb->row.id) != 0)
        return;
    json_auto_t *metadata = row.metadata ? json_loads(row.metadata, 0, NULL) : NULL;
    json_auto_t *kept = json_is_object(metadata) ? json_incref(metadata) : json_object();
    (void)json_object_set_new(kept, HF_NETWORK_KEPT, json_string(doc));
    hf_auto_free char *text = json_dumps(kept, JSON_COMPACT);
    hf_set_session_metadata(b, row.id, text);
}

static void on_restored(void *arg, int r, const struct hf_err *err)
{
    struct change *ch = arg;
    if (r < 0)
        hf_log_error("a sandbox's old network document is not back in its row", "sandbox=%s error=%s",
                     ch->sb->row.id, hf_log_quote(err->msg));
    finish(ch);
}

static void roll_back(struct change *ch, const struct hf_err *why)
{
    (void)hf_err_http(&ch->err, why->r ? why->r : -EIO, 503,
                      "the sandbox's network was not changed, the old policy is in force: %.200s", why->msg);
    set_row(ch->sb, ch->old);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_set_sandbox_network(b, ch->sb->row.id, ch->old);
    keep_for_session(b, ch->sb, ch->old);
    hf_meta_commit(ch->sb->c->meta, b, 0, on_restored, ch);
}

/* It ended meanwhile: there is nothing to change and nothing to take back. */
static bool ended(struct change *ch)
{
    if (ch->sb->state == HF_RUNNING && ch->sb->box)
        return false;
    (void)hf_err_http(&ch->err, -ESRCH, 409, "Sandbox %s ended while its network was changed",
                      ch->sb->row.id);
    finish(ch);
    return true;
}

static void on_applied(void *arg, const struct hf_err *err)
{
    struct change *ch = arg;
    if (ended(ch))
        return;
    if (err) {
        roll_back(ch, err);
        return;
    }
    hf_control_event(ch->sb->c, ch->sb->row.tenant, ch->sb->row.id, ch->sb->row.session_id, "sandbox.network",
                     HF_CAUSE_API, "the network policy was replaced");
    finish(ch);
}

static void apply(struct change *ch)
{
    hf_cnet_apply(ch->sb->c->net, ch->sb, on_applied, ch);
}

static void on_wired(void *arg, const struct hf_err *err)
{
    struct change *ch = arg;
    if (ended(ch))
        return;
    if (err) {
        roll_back(ch, err);
        return;
    }
    ch->sb->wired = true;
    apply(ch);
}

static int needs_wire(struct hf_sandbox *sb, const char *text, struct hf_err *err)
{
    json_auto_t *doc = json_loads(text, 0, NULL), *merged = NULL;
    int r = hf_network_merge(sb->c, sb->row.tenant, doc, &merged, err);
    return r < 0 ? r : hf_network_needs_wire(merged);
}

static void on_row(void *arg, int r, const struct hf_err *err)
{
    struct change *ch = arg;
    struct hf_sandbox *sb = ch->sb;
    if (r < 0) {
        ch->err = *err;
        finish(ch);
        return;
    }
    if (ended(ch))
        return;
    set_row(sb, ch->doc);
    if (!hf_network_ready(sb->c)) {
        finish(ch);
        return;
    }
    struct hf_err bad = {0};
    int wire = needs_wire(sb, ch->doc, &bad);
    if (wire < 0)
        roll_back(ch, &bad);
    else if (!sb->wired && (wire || needs_wire(sb, ch->old, NULL) != 0))
        sb->c->driver->ops->network(sb->c->driver, sb->box, true, on_wired, ch);
    else
        apply(ch);
}

int hf_network_replace(struct hf_sandbox *sb, const json_t *doc, hf_done_cb cb, void *arg, struct hf_err *err)
{
    if (sb->net_changing)
        return hf_err_http(err, -EBUSY, 409,
                           "Sandbox %s: its network is being changed; try again in a moment", sb->row.id);
    struct change *ch = hf_new(struct change);
    ch->sb = hf_sandbox_ref(sb);
    ch->doc = json_dumps(doc, JSON_COMPACT);
    ch->old = hf_xstrdup(sb->row.network);
    ch->cb = cb;
    ch->arg = arg;
    sb->net_changing = true;
    sb->c->busy++;
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_set_sandbox_network(b, sb->row.id, ch->doc);
    keep_for_session(b, sb, ch->doc);
    hf_meta_commit(sb->c->meta, b, 0, on_row, ch);
    return 0;
}

/* ---- what would happen ---- */

struct url {
    const char *scheme;
    char host[254];
    uint64_t port;
    const char *path;
};

#define BAD(...) hf_err_http(err, -EINVAL, 400, __VA_ARGS__)

static int take_host(struct hf_str s, struct url *u, struct hf_err *err)
{
    struct hf_addr a;
    bool brackets = s.n > 2 && s.p[0] == '[' && s.p[s.n - 1] == ']';
    if (hf_addr_parse(brackets ? (struct hf_str){s.p + 1, s.n - 2} : s, &a) == 0)
        hf_addr_format(&a, u->host);
    else if (hf_name_normal(s, u->host) < 0)
        return BAD("\"url\": \"%.*s\" is not a host name or an address", (int)HF_MIN(s.n, (size_t)200), s.p);
    return 0;
}

static int parse_url(const char *text, struct url *u, struct hf_err *err)
{
    bool https = strncasecmp(text, "https://", 8) == 0;
    if (!https && strncasecmp(text, "http://", 7) != 0)
        return BAD("\"url\" must begin with http:// or https://");
    const char *p = text + (https ? 8 : 7);
    struct hf_str host = {p, strcspn(p, "/?#")};
    u->scheme = https ? "https" : "http";
    u->port = https ? 443 : 80;
    u->path = p[host.n] == '/' ? p + host.n : "/";
    if (memchr(host.p, '@', host.n))
        return BAD("\"url\" must not hold a user name");
    const char *colon = memrchr(host.p, ':', host.n), *bracket = memrchr(host.p, ']', host.n);
    if (colon && (!bracket || colon > bracket)) {
        struct hf_str port = {colon + 1, (size_t)(host.p + host.n - colon - 1)};
        if (hf_parse_u64(port, UINT16_MAX, &u->port) < 0 || u->port == 0)
            return BAD("\"url\" has a port that is not one");
        host.n = (size_t)(colon - host.p);
    }
    return take_host(host, u, err);
}

static json_t *present_verdict(const struct url *u, const char *method, const struct hf_verdict *v)
{
    json_t *out =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:s}", "decision",
                  v->decision == HF_ALLOW ? "allow" : "deny", "reason", v->reason, "by", v->by, "scheme",
                  u->scheme, "host", u->host, "port", (json_int_t)u->port, "method", method);
    (void)json_object_set_new(out, "rule", v->rule ? json_string(v->rule->name) : json_null());
    json_t *headers = json_array();
    for (size_t i = 0; v->rule && !v->rule->deny && i < v->rule->n_inject; i++)
        (void)json_array_append_new(headers, json_string(v->rule->inject[i].header));
    (void)json_object_set_new(out, "adds_headers", headers);
    return out;
}

int hf_network_test(const json_t *merged, const json_t *body, json_t **ret, struct hf_err *err)
{
    const char *text = json_string_value(json_object_get(body, "url"));
    const json_t *asked = json_object_get(body, "method");
    const char *method = asked && !json_is_null(asked) ? json_string_value(asked) : "GET";
    struct url u;
    struct hf_policy *p;
    struct hf_verdict v;
    if (!text || strlen(text) > URL_MAX)
        return BAD("\"url\" is required: http://… or https://… of at most %u bytes", URL_MAX);
    if (!method || !*method || strlen(method) > METHOD_MAX)
        return BAD("\"method\" must be a word of at most %u letters", METHOD_MAX);
    int r = parse_url(text, &u, err);
    if (r == 0)
        r = hf_policy_parse(merged, &p, err);
    if (r < 0)
        return r;
    struct hf_judge_req q = {.scheme = u.scheme,
                             .host = u.host,
                             .port = (uint16_t)u.port,
                             .method = hf_str_c(method),
                             .path = hf_str_c(u.path)};
    hf_policy_judge(p, &q, NULL, &v);
    *ret = present_verdict(&u, method, &v);
    hf_policy_unref(p);
    return *ret ? 0 : BAD("\"url\" is not UTF-8");
}
