/* Snapshots that are taken by themselves, and how many of them stay. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "control/snapshot_int.h"
#include "control/validate.h"

#define RETAIN_TICKS 60u /* what became too old is looked for every so many ticks */

/* ---- the document ---- */

int hf_snapshot_policy_resolve(const json_t *body, json_t **ret, struct hf_err *err)
{
    int64_t every = HF_POLICY_EVERY_S, keep = HF_POLICY_KEEP, age = 0, bytes = 0;
    const char *kind = "full";
    const json_t *step = json_object_get(body, "after_step");
    int r = hf_validate_int(body, "every_s", 0, HF_POLICY_EVERY_MAX_S, &every, err);
    if (r > 0 && every > 0 && every < HF_POLICY_EVERY_MIN_S)
        return hf_err_http(err, -EINVAL, 400,
                           "validation error: \"every_s\" must be 0 (not by time) or at least %d",
                           HF_POLICY_EVERY_MIN_S);
    if (r >= 0)
        r = hf_validate_int(body, "keep_count", 1, HF_POLICY_KEEP_MAX, &keep, err);
    if (r >= 0)
        r = hf_validate_int(body, "keep_age_s", 0, INT64_MAX / 1000, &age, err);
    if (r >= 0)
        r = hf_validate_int(body, "keep_bytes", 0, INT64_MAX, &bytes, err);
    if (r >= 0)
        r = hf_validate_text(body, "kind", 8, &kind, err);
    if (r >= 0 && strcmp(kind, "full") != 0 && strcmp(kind, "disk") != 0)
        r = hf_err_http(err, -EINVAL, 400, "validation error: \"kind\" must be full or disk");
    if (r >= 0 && step && !json_is_boolean(step) && !json_is_null(step))
        r = hf_err_http(err, -EINVAL, 400, "validation error: \"after_step\" must be a boolean");
    if (r < 0)
        return r;
    *ret = json_pack("{s:I, s:b, s:s, s:I, s:I, s:I}", "every_s", (json_int_t)every, "after_step",
                     json_is_true(step), "kind", kind, "keep_count", (json_int_t)keep, "keep_age_s",
                     (json_int_t)age, "keep_bytes", (json_int_t)bytes);
    return 0;
}

struct search {
    const char *sandbox_id;
    json_t *policy;
};

static void match(void *arg, const struct hf_snapshot_policy_row *p)
{
    struct search *q = arg;
    if (!q->policy && strcmp(p->sandbox_id, q->sandbox_id) == 0)
        q->policy = json_loads(p->policy, 0, NULL);
}

json_t *hf_snapshot_policy_of(struct hf_control *c, const char *sandbox_id)
{
    struct search q = {sandbox_id, NULL};
    if (hf_each_snapshot_policy(c->meta, match, &q) < 0)
        hf_log_error("the snapshot policies can't be read", "%s", "");
    return q.policy;
}

/* ---- what stays ---- */

struct keep {
    int64_t count, age_ms, bytes, now;
    int64_t seen, seen_bytes;
    json_t *drop; /* ids */
};

/* Newest first; the newest always stays. */
static void judge(void *arg, const struct hf_snapshot_row *s)
{
    struct keep *k = arg;
    if (strcmp(s->state, "ready") != 0)
        return;
    k->seen++;
    k->seen_bytes += s->exclusive_bytes;
    bool too_many = k->seen > k->count;
    bool too_old = k->age_ms && k->now - s->created_ms > k->age_ms;
    bool too_big = k->bytes && k->seen_bytes > k->bytes;
    if (k->seen > 1 && (too_many || too_old || too_big))
        (void)json_array_append_new(k->drop, json_string(s->id));
}

/* Returns how many it had. */
static int64_t retain(struct hf_control *c, const char *tenant, const char *sandbox_id, const json_t *policy)
{
    struct keep k = {.count = json_integer_value(json_object_get(policy, "keep_count")),
                     .age_ms = json_integer_value(json_object_get(policy, "keep_age_s")) * 1000,
                     .bytes = json_integer_value(json_object_get(policy, "keep_bytes")),
                     .now = hf_real_ms(),
                     .drop = json_array()};
    size_t i;
    json_t *id;
    if (hf_each_snapshot(c->meta, tenant, sandbox_id, "policy", 0, "", INT32_MAX, judge, &k) < 0)
        hf_log_error("the snapshots' rows can't be read", "%s", "");
    json_array_foreach(k.drop, i, id)
    {
        hf_snapshot_delete(c, tenant, json_string_value(id), NULL, NULL);
    }
    json_decref(k.drop);
    return k.seen;
}

/* ---- by time ---- */

struct due {
    struct hf_list node;
    struct hf_snapshot_policy_row p;
};

struct timed {
    struct hf_control *c;
    char tenant[HF_ROW_ID], sandbox_id[HF_ROW_ID];
    hf_snapshot_cb cb; /* may be NULL */
    void *arg;
};

static void on_taken(void *arg, const struct hf_snapshot_row *s, const struct hf_err *err)
{
    struct timed *t = arg;
    json_auto_t *policy = s ? hf_snapshot_policy_of(t->c, t->sandbox_id) : NULL;
    if (err)
        hf_log_warn("a policy's snapshot was not taken", "sandbox=%s error=%s", t->sandbox_id,
                    hf_log_quote(err->msg));
    if (policy)
        (void)retain(t->c, t->tenant, t->sandbox_id, policy);
    if (t->cb)
        t->cb(t->arg, s, err);
    free(t);
}

static void take(struct hf_sandbox *sb, const json_t *policy, hf_snapshot_cb cb, void *arg)
{
    const char *kind = json_string_value(json_object_get(policy, "kind"));
    struct timed *t = hf_new(struct timed);
    *t = (struct timed){.c = sb->c, .cb = cb, .arg = arg};
    memcpy(t->tenant, sb->row.tenant, sizeof(t->tenant));
    memcpy(t->sandbox_id, sb->row.id, sizeof(t->sandbox_id));
    const struct hf_snapshot_ask ask = {
        .purpose = "policy", .memory = kind && strcmp(kind, "full") == 0, .skip_clean = true};
    hf_snapshot_take(sb, &ask, on_taken, t);
}

bool hf_snapshot_step(struct hf_sandbox *sb, hf_snapshot_cb cb, void *arg)
{
    json_auto_t *policy = hf_snapshot_policy_of(sb->c, sb->row.id);
    if (!json_is_true(json_object_get(policy, "after_step")))
        return false;
    take(sb, policy, cb, arg);
    return true;
}

static void collect(void *arg, const struct hf_snapshot_policy_row *p)
{
    struct due *d = hf_new(struct due);
    d->p = *p;
    d->p.policy = hf_xstrdup(p->policy);
    hf_list_add_tail(arg, &d->node);
}

static void apply(struct hf_control *c, const struct hf_snapshot_policy_row *p, bool retain_too)
{
    json_auto_t *policy = json_loads(p->policy, 0, NULL);
    struct hf_sandbox *sb = hf_sandbox_find(c, p->tenant, p->sandbox_id);
    int64_t every_ms = json_integer_value(json_object_get(policy, "every_s")) * 1000, now = hf_real_ms();
    int64_t left = retain_too ? retain(c, p->tenant, p->sandbox_id, policy) : 1;
    struct hf_meta_batch *b = hf_meta_batch_new();
    if (!sb && !left) {
        hf_del_snapshot_policy(b, p->sandbox_id); /* it outlives its sandbox until its snapshots are gone */
    } else if (sb && sb->state == HF_RUNNING && every_ms &&
               (now - p->last_ms >= every_ms || now < p->last_ms)) {
        hf_set_snapshot_policy_last(b, p->sandbox_id, now);
        take(sb, policy, NULL, NULL);
    } else {
        hf_meta_batch_free(b);
        return;
    }
    hf_meta_commit(c->meta, b, HF_META_LAZY, NULL, NULL);
}

static void on_timer(uv_timer_t *t)
{
    struct hf_control *c = t->data;
    struct hf_list rows;
    hf_list_init(&rows);
    bool retain_too = c->snapshots->ticks++ % RETAIN_TICKS == 0;
    if (c->stopping || hf_each_snapshot_policy(c->meta, collect, &rows) < 0)
        hf_list_init(&rows);
    hf_list_foreach_safe(it, &rows)
    {
        struct due *d = hf_list_entry(it, struct due, node);
        apply(c, &d->p, retain_too);
        hf_list_del(it);
        free(d->p.policy);
        free(d);
    }
}

void hf_snapshot_policies_start(struct hf_control *c)
{
    (void)uv_timer_start(&c->policies, on_timer, HF_POLICY_TICK_MS, HF_POLICY_TICK_MS);
}
