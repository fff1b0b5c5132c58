/* The sandbox object, its state changes and its creation. */
#include <stdio.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/id.h"
#include "base/log.h"
#include "control/control.h"
#include "control/envd_client.h"
#include "control/ingress.h"
#include "control/net.h"
#include "control/network.h"
#include "control/persist.h"
#include "control/seal.h"

/* ---- object ---- */

struct hf_sandbox *hf_sandbox_ref(struct hf_sandbox *sb)
{
    sb->refs++;
    return sb;
}

void hf_sandbox_unref(struct hf_sandbox *sb)
{
    if (--sb->refs)
        return;
    hf_list_del(&sb->node);
    hf_sandbox_network_changed(sb);
    json_decref(sb->metadata);
    hf_sandbox_row_done(&sb->row);
    free(sb->samples);
    free(sb);
}

static char *dup_or(const char *s, const char *otherwise)
{
    return hf_xstrdup(s && *s ? s : otherwise);
}

struct hf_sandbox *hf_sandbox_new(struct hf_control *c, const struct hf_sandbox_row *row, enum hf_state state)
{
    struct hf_sandbox *sb = hf_new(struct hf_sandbox);
    sb->c = c;
    sb->row = *row;
    sb->row.metadata = dup_or(row->metadata, "{}");
    sb->row.network = dup_or(row->network, "{}");
    sb->row.lifecycle = dup_or(row->lifecycle, "{}");
    sb->row.mounts = dup_or(row->mounts, "[]");
    sb->row.env_sealed = row->env_sealed_n ? hf_xmalloc(row->env_sealed_n) : NULL;
    if (row->env_sealed_n)
        memcpy(sb->row.env_sealed, row->env_sealed, row->env_sealed_n);
    sb->metadata = json_loads(sb->row.metadata, 0, NULL);
    if (!sb->metadata)
        sb->metadata = json_object();
    sb->state = state;
    sb->refs = 1;
    sb->deadline_boot_ms = row->deadline_boot_ms;
    hf_list_init(&sb->waiters);
    hf_list_init(&sb->pause.waiters);
    hf_list_init(&sb->pause.wakers);
    hf_list_add_tail(&c->list, &sb->node);
    (void)hf_map_put(&c->map, hf_str_c(sb->row.id), sb);
    return sb;
}

struct hf_sandbox *hf_sandbox_find(struct hf_control *c, const char *tenant, const char *id)
{
    struct hf_sandbox *sb = hf_map_get(&c->map, hf_str_c(id));
    return sb && (!tenant || strcmp(tenant, sb->row.tenant) == 0) ? sb : NULL;
}

size_t hf_control_count(const struct hf_control *c, const char *tenant, enum hf_state state)
{
    size_t n = 0;
    hf_list_foreach(it, &c->list)
    {
        const struct hf_sandbox *sb = hf_list_entry(it, struct hf_sandbox, node);
        n += sb->state == state && (!tenant || strcmp(tenant, sb->row.tenant) == 0);
    }
    return n;
}

void hf_sandbox_token(const struct hf_control *c, const char *sandbox_id, char out[65])
{
    unsigned char mac[HF_SHA256_LEN];
    hf_hmac_sha256(c->seed, sizeof(c->seed), sandbox_id, strlen(sandbox_id), mac);
    hf_hex(mac, sizeof(mac), out);
    explicit_bzero(mac, sizeof(mac));
}

/* ---- state and history ---- */

static void fill_event(struct hf_event_row *e, const char *tenant, const char *sandbox_id,
                       const char *session_id, const char *kind, const char *cause, const char *detail)
{
    *e = (struct hf_event_row){.time_ms = hf_real_ms()};
    (void)snprintf(e->tenant, sizeof(e->tenant), "%s", tenant);
    (void)snprintf(e->sandbox_id, sizeof(e->sandbox_id), "%s", sandbox_id ? sandbox_id : "");
    (void)snprintf(e->session_id, sizeof(e->session_id), "%s", session_id ? session_id : "");
    (void)snprintf(e->kind, sizeof(e->kind), "%s", kind);
    (void)snprintf(e->cause, sizeof(e->cause), "%s", cause ? cause : "");
    (void)snprintf(e->detail, sizeof(e->detail), "%s", detail ? detail : "");
}

void hf_control_event(struct hf_control *c, const char *tenant, const char *sandbox_id,
                      const char *session_id, const char *kind, const char *cause, const char *detail)
{
    struct hf_event_row e;
    fill_event(&e, tenant, sandbox_id, session_id, kind, cause, detail);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_event(b, &e);
    hf_meta_commit(c->meta, b, HF_META_LAZY, NULL, NULL);
}

static void add_state_event(struct hf_sandbox *sb, struct hf_meta_batch *b, const char *from, const char *to)
{
    struct hf_event_row e;
    fill_event(&e, sb->row.tenant, sb->row.id, sb->row.session_id, "sandbox.state", sb->row.cause,
               sb->row.detail);
    (void)snprintf(e.from, sizeof(e.from), "%s", from);
    (void)snprintf(e.to, sizeof(e.to), "%s", to);
    hf_put_event(b, &e);
}

void hf_sandbox_move(struct hf_sandbox *sb, struct hf_meta_batch *b, enum hf_state to, const char *cause,
                     const char *detail)
{
    if (!hf_state_may(sb->state, to)) {
        hf_log_error("forbidden state change", "sandbox=%s from=%s to=%s", sb->row.id,
                     hf_state_name(sb->state), hf_state_name(to));
        abort(); /* a programming error; the reconciler settles the rows at the next start */
    }
    const char *from = hf_state_name(sb->state);
    if (cause != sb->row.cause) /* its own ones are kept */
        (void)snprintf(sb->row.cause, sizeof(sb->row.cause), "%s", cause);
    if (detail != sb->row.detail)
        (void)snprintf(sb->row.detail, sizeof(sb->row.detail), "%s", detail ? detail : "");
    (void)snprintf(sb->row.state, sizeof(sb->row.state), "%s", hf_state_name(to));
    sb->state = to;
    hf_set_sandbox_state(b, sb->row.id, from, sb->row.state, sb->row.cause, sb->row.detail, hf_real_ms());
    add_state_event(sb, b, from, sb->row.state);
    hf_log_info("sandbox state", "sandbox=%s from=%s to=%s cause=%s detail=%s", sb->row.id, from,
                sb->row.state, cause, hf_log_quote(sb->row.detail));
}

/* ---- the lifecycle document ---- */

static bool lifecycle_flag(const struct hf_sandbox *sb, const char *key, const char *text)
{
    json_auto_t *v = json_loads(sb->row.lifecycle, 0, NULL);
    const json_t *m = json_object_get(v, key);
    return text ? json_is_string(m) && strcmp(json_string_value(m), text) == 0 : json_is_true(m);
}

bool hf_sandbox_pauses(const struct hf_sandbox *sb)
{
    return lifecycle_flag(sb, "on_timeout", "pause");
}

bool hf_sandbox_keeps_memory(const struct hf_sandbox *sb)
{
    return !lifecycle_flag(sb, "disk_only", NULL);
}

bool hf_sandbox_wakes(const struct hf_sandbox *sb)
{
    return lifecycle_flag(sb, "auto_resume", NULL);
}

/* ---- create, and coming back from a cold pause ---- */

struct hf_create {
    struct hf_sandbox *sb;
    enum hf_state during; /* creating or resuming: any other state means that it is being killed */
    json_t *env;
    struct hf_envd_call *envd;
    bool wire; /* the box gets an interface */
    int64_t generation;
    uint64_t begin_ms;
    size_t n_mounts;
    struct {
        char *image, *path;
        enum hf_box_mount_kind kind;
        bool read_only;
    } mounts[HF_CONTROL_MOUNTS_MAX];
    char *from_dir; /* NULL = from its template */
    bool from_memory;
    hf_sandbox_cb cb;
    void *arg;
};

/* Ends the create; with err NULL the sandbox runs. */
static void finish(struct hf_create *cr, const struct hf_err *err)
{
    struct hf_sandbox *sb = cr->sb;
    sb->create = NULL;
    if (cr->during == HF_CREATING && err)
        sb->c->counts.create_failed++;
    else if (cr->during == HF_CREATING)
        sb->c->counts.created++;
    cr->cb(cr->arg, err ? NULL : sb, err);
    for (size_t i = 0; i < cr->n_mounts; i++) {
        free(cr->mounts[i].image);
        free(cr->mounts[i].path);
    }
    json_decref(cr->env);
    free(cr->from_dir);
    free(cr);
    hf_sandbox_unref(sb);
}

static void killed_meanwhile(struct hf_create *cr)
{
    const struct hf_sandbox_row *row = &cr->sb->row;
    struct hf_err err = {0};
    if (strcmp(row->cause, HF_CAUSE_CREATE_FAILED) == 0)
        (void)hf_err_http(&err, -EIO, 500, "the sandbox ended while it was being created: %s", row->detail);
    else
        (void)hf_err_http(&err, -ECANCELED, 409, "Sandbox %s was killed while it was being %s (%s)", row->id,
                          cr->during == HF_CREATING ? "created" : "resumed", row->cause);
    finish(cr, &err);
}

struct undo {
    struct hf_create *cr;
    struct hf_err err;
};

static void undone(void *arg, const struct hf_err *err)
{
    struct undo *u = arg;
    finish(u->cr, &u->err);
    free(u);
}

/* It did not come back: what it was paused in is untouched, so it is paused as before. */
static void stay_paused(struct hf_create *cr, const struct hf_err *err)
{
    struct hf_sandbox *sb = cr->sb;
    hf_killpoint("resume.undone");
    if (sb->state != HF_RESUMING) {
        killed_meanwhile(cr);
        return;
    }
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_sandbox_move(sb, b, HF_PAUSED, HF_CAUSE_NOT_RESUMED, err->msg);
    hf_meta_commit(sb->c->meta, b, HF_META_LAZY, NULL, NULL);
    finish(cr, err);
}

static void not_back(void *arg, const struct hf_err *err)
{
    struct undo *u = arg;
    struct hf_sandbox *sb = u->cr->sb;
    (void)err; /* what is left of the box is logged by the driver and looked for at the next start */
    sb->driver_busy = false;
    if (sb->c->net && sb->net_key)
        hf_cnet_forget(sb->c->net, sb->net_key);
    if (sb->state == HF_KILLING)
        hf_sandbox_kill_step(sb);
    stay_paused(u->cr, &u->err);
    free(u);
}

/* The box exists but can't be used: takes it down and reports `err` once nothing is left of it. */
static void undo(struct hf_create *cr, const struct hf_err *err)
{
    struct undo *u = hf_new(struct undo);
    u->cr = cr;
    u->err = *err;
    if (cr->during == HF_RESUMING) {
        struct hf_box *box = cr->sb->box;
        cr->sb->box = NULL;
        cr->sb->driver_busy = true; /* a kill waits for it */
        cr->sb->c->driver->ops->destroy(cr->sb->c->driver, box, not_back, u);
        return;
    }
    hf_sandbox_kill(cr->sb, HF_CAUSE_CREATE_FAILED, err->msg, undone, u);
}

static void on_running_row(void *arg, int r, const struct hf_err *err)
{
    struct hf_create *cr = arg;
    hf_killpoint("create.running-row");
    if (cr->sb->state != HF_RUNNING || cr->sb->row.generation != cr->generation) {
        killed_meanwhile(cr);
    } else if (r < 0 && cr->during == HF_CREATING) {
        undo(cr, err);
    } else {
        hf_log_info(cr->during == HF_CREATING ? "sandbox created" : "sandbox resumed",
                    "sandbox=%s template=%s took_ms=%llu", cr->sb->row.id, cr->sb->row.template_id,
                    (unsigned long long)(hf_mono_ms() - cr->begin_ms));
        finish(cr, NULL);
    }
}

static void on_init(void *arg, const char *version, const struct hf_err *err)
{
    struct hf_create *cr = arg;
    struct hf_sandbox *sb = cr->sb;
    cr->envd = NULL;
    if (sb->state != cr->during) {
        killed_meanwhile(cr);
        return;
    }
    struct hf_err no_version = {0};
    if (!err && !*version) {
        (void)hf_err_http(&no_version, -EPROTO, 500, "the sandbox's daemon did not tell its version");
        err = &no_version;
    }
    if (err) {
        undo(cr, err);
        return;
    }
    hf_killpoint("create.envd-init");
    bool created = cr->during == HF_CREATING;
    struct hf_meta_batch *b = hf_meta_batch_new();
    (void)snprintf(sb->row.envd_version, sizeof(sb->row.envd_version), "%s", version);
    sb->row.started_ms = hf_real_ms();
    sb->row.end_ms = sb->row.started_ms + sb->row.timeout_s * 1000;
    sb->deadline_boot_ms = sb->row.deadline_boot_ms = (int64_t)hf_boot_ms() + sb->row.timeout_s * 1000;
    hf_set_sandbox_envd(b, sb->row.id, version);
    hf_set_sandbox_times(b, sb->row.id, sb->row.started_ms, sb->row.end_ms, sb->row.deadline_boot_ms);
    if (created)
        hf_set_template_spawned(b, sb->row.template_id, sb->row.started_ms);
    else
        hf_pause_over(sb, b, cr->generation);
    cr->generation = sb->row.generation;
    hf_sandbox_move(sb, b, HF_RUNNING, created ? HF_CAUSE_API : sb->row.cause, "");
    hf_deadline_arm(sb->c);
    /* Lazy: a living box whose row still says creating is settled by the reconciler. One whose row still says
     * resuming would be taken down, and what it wrote since then be lost. */
    hf_meta_commit(sb->c->meta, b, created ? HF_META_LAZY : 0, on_running_row, cr);
}

static void driver_failed(struct hf_create *cr, const struct hf_err *err)
{
    struct hf_sandbox *sb = cr->sb;
    struct hf_control *c = sb->c;
    if (cr->during == HF_RESUMING) {
        stay_paused(cr, err);
        return;
    }
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_sandbox_move(sb, b, HF_FAILED, HF_CAUSE_CREATE_FAILED, err->msg);
    hf_meta_commit(c->meta, b, HF_META_LAZY, NULL, NULL);
    (void)hf_map_del(&c->map, hf_str_c(sb->row.id));
    hf_sandbox_unref(sb); /* the map's; the create holds its own */
    finish(cr, err);
}

/* Certificate of the tenant's authority, where the policy needs connections to be opened up. */
static int trusted(const struct hf_sandbox *sb, const char **ret, struct hf_err *err)
{
    json_auto_t *doc = NULL, *merged = NULL;
    int r = hf_network_doc(sb, &doc, err);
    if (r == 0)
        r = hf_network_merge(sb->c, sb->row.tenant, doc, &merged, err);
    if (r < 0 || !hf_cnet_needs_ca(merged))
        return r;
    *ret = hf_cnet_ca(sb->c->net, sb->row.tenant, err);
    return *ret ? 0 : hf_err_wrap(err, "the tenant's certificate authority");
}

static void init_envd(struct hf_create *cr)
{
    struct hf_sandbox *sb = cr->sb;
    struct hf_err err = {0};
    const char *ca = NULL;
    if (cr->wire && trusted(sb, &ca, &err) < 0) {
        undo(cr, &err);
        return;
    }
    char token[65];
    hf_sandbox_token(sb->c, sb->row.id, token);
    struct hf_envd_init init = {.token = token,
                                .sandbox_id = sb->row.id,
                                .template_id = sb->row.template_id,
                                .default_user = "user",
                                .env = cr->env,
                                .ca_bundle = ca,
                                .generation = cr->generation,
                                .clone = cr->from_memory && cr->during == HF_CREATING};
    sb->ca_sent = ca != NULL;
    cr->envd = hf_envd_init(sb->c->loop, hf_box_control_socket(sb->box), &init, HF_CONTROL_INIT_TIMEOUT_MS,
                            on_init, cr);
    explicit_bzero(token, sizeof(token));
}

static void on_policy(void *arg, const struct hf_err *err)
{
    struct hf_create *cr = arg;
    if (cr->sb->state != cr->during) {
        killed_meanwhile(cr);
    } else if (err) {
        struct hf_err why = {0};
        (void)hf_err_http(&why, err->r ? err->r : -EIO, 503,
                          "the sandbox's network policy is not in force: %.200s", err->msg);
        undo(cr, &why);
    } else {
        hf_killpoint("create.policy-applied");
        init_envd(cr);
    }
}

static void on_box(void *arg, struct hf_box *box, const struct hf_err *err)
{
    struct hf_create *cr = arg;
    struct hf_sandbox *sb = cr->sb;
    sb->driver_busy = false;
    sb->box = box;
    if (sb->state != cr->during) {
        hf_sandbox_kill_step(sb);
        killed_meanwhile(cr);
        return;
    }
    if (err) {
        driver_failed(cr, err);
        return;
    }
    hf_killpoint("create.box-made");
    sb->net_key = hf_box_net_key(box);
    sb->wired = cr->wire;
    if (cr->wire) /* nothing may run before its policy is in force */
        hf_cnet_apply(sb->c->net, sb, on_policy, cr);
    else
        init_envd(cr);
}

static void on_row(void *arg, int r, const struct hf_err *err)
{
    struct hf_create *cr = arg;
    struct hf_sandbox *sb = cr->sb;
    struct hf_control *c = sb->c;
    if (r < 0 && sb->state == HF_RESUMING) {
        stay_paused(cr, err);
        return;
    }
    if (r < 0 && sb->state == HF_CREATING) {
        /* Nothing was written and nothing exists: forget it. */
        sb->state = HF_FAILED;
        (void)hf_map_del(&c->map, hf_str_c(sb->row.id));
        hf_sandbox_unref(sb);
        finish(cr, err);
        return;
    }
    if (sb->state != cr->during) {
        hf_sandbox_kill_step(sb);
        killed_meanwhile(cr);
        return;
    }
    if (c->stopping) {
        /* The row stays as it is: the next start undoes it. */
        struct hf_err stop = {0};
        (void)hf_err_http(&stop, -ESHUTDOWN, 503, "the daemon is going down; try again in a moment");
        finish(cr, &stop);
        return;
    }
    hf_killpoint("create.row-written");
    struct hf_box_spec spec = {.sandbox_id = sb->row.id,
                               .template_id = sb->row.template_id,
                               .cpu_millis = (uint32_t)sb->row.cpu_millis,
                               .memory_bytes = (uint64_t)sb->row.memory_bytes,
                               .pids_max = (uint32_t)sb->row.pids_max,
                               .disk_bytes = (uint64_t)sb->row.disk_bytes,
                               .network = cr->wire,
                               .n_mounts = cr->n_mounts,
                               .from = cr->from_dir,
                               .from_memory = cr->from_memory,
                               .generation = (uint64_t)cr->generation,
                               .clone = cr->from_dir && cr->during == HF_CREATING};
    for (size_t i = 0; i < cr->n_mounts; i++)
        spec.mounts[i] = (struct hf_box_mount){.kind = cr->mounts[i].kind,
                                               .image = cr->mounts[i].image,
                                               .path = cr->mounts[i].path,
                                               .read_only = cr->mounts[i].read_only};
    sb->driver_busy = true;
    c->driver->ops->create(c->driver, &spec, on_box, cr);
}

void hf_create_killed(struct hf_sandbox *sb)
{
    if (sb->create && sb->create->envd)
        hf_envd_cancel(sb->create->envd);
}

static const char *const mount_kinds[] = {
    [HF_MOUNT_IMAGE] = "image", [HF_MOUNT_DIR] = "dir", [HF_MOUNT_TMPFS] = "tmpfs"};

/* What envd is given again when the sandbox boots from its disk: in the row, and never in clear. */
static void seal_env(const struct hf_control *c, struct hf_sandbox_row *row, const json_t *env)
{
    struct hf_err err = {0};
    struct hf_sealer *sealer = c->net && json_object_size(env) ? hf_cnet_sealer(c->net, &err) : NULL;
    if (!sealer)
        return;
    char label[HF_ROW_ID + 32];
    (void)snprintf(label, sizeof(label), "env/%s", row->id);
    char *text = json_dumps(env, JSON_COMPACT);
    if (hf_seal(sealer, label, text, strlen(text), &row->env_sealed, &row->env_sealed_n) < 0)
        hf_log_warn("cannot keep the environment of a sandbox", "sandbox=%s", row->id);
    explicit_bzero(text, strlen(text));
    free(text);
}

static json_t *unseal_env(const struct hf_sandbox *sb)
{
    struct hf_err err = {0};
    struct hf_sealer *sealer = sb->c->net && sb->row.env_sealed_n ? hf_cnet_sealer(sb->c->net, &err) : NULL;
    char label[HF_ROW_ID + 32], *text = NULL;
    size_t n = 0;
    (void)snprintf(label, sizeof(label), "env/%s", sb->row.id);
    if (!sealer || hf_unseal(sealer, label, sb->row.env_sealed, sb->row.env_sealed_n, &text, &n) < 0)
        return NULL;
    json_t *env = json_loadb(text, n, 0, NULL);
    explicit_bzero(text, n);
    free(text);
    return env;
}

static void fill_row(struct hf_sandbox_row *row, const struct hf_control *c, const struct hf_create_req *req)
{
    row->id[0] = 'i';
    hf_random_id(row->id + 1, HF_SANDBOX_ID_LEN - 1);
    (void)snprintf(row->tenant, sizeof(row->tenant), "%s", req->tenant);
    (void)snprintf(row->template_id, sizeof(row->template_id), "%s", req->template_id);
    (void)snprintf(row->alias, sizeof(row->alias), "%s", req->alias ? req->alias : "");
    (void)snprintf(row->state, sizeof(row->state), "%s", hf_state_name(HF_CREATING));
    (void)snprintf(row->cause, sizeof(row->cause), "%s", HF_CAUSE_API);
    (void)snprintf(row->session_id, sizeof(row->session_id), "%s", req->session_id ? req->session_id : "");
    (void)snprintf(row->boot_id, sizeof(row->boot_id), "%s", c->boot_id);
    row->cpu_millis = req->cpu_millis ? req->cpu_millis : c->cfg->default_cpu_millis;
    row->memory_bytes = req->memory_bytes ? req->memory_bytes : (int64_t)c->cfg->default_memory;
    row->disk_bytes = req->disk_bytes ? req->disk_bytes : (int64_t)c->cfg->default_disk;
    row->pids_max = req->pids_max ? req->pids_max : c->cfg->default_pids;
    row->timeout_s = req->timeout_s;
    row->created_ms = hf_real_ms();
    row->epoch = req->epoch;
    row->generation = req->generation ? req->generation : 1;
    (void)snprintf(row->snapshot_id, sizeof(row->snapshot_id), "%s",
                   req->snapshot_id ? req->snapshot_id : "");
    row->metadata = req->metadata ? json_dumps(req->metadata, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    /* Every switch is resolved to a value: nothing absent may later be read as open. */
    row->network = req->network ? json_dumps(req->network, JSON_COMPACT)
                                : hf_xstrdup("{\"allow_internet_access\":false,\"allow_public_traffic\":true,"
                                             "\"allow_out\":[],\"deny_out\":[\"0.0.0.0/0\",\"::/0\"]}");
    row->lifecycle = req->lifecycle
                         ? json_dumps(req->lifecycle, JSON_COMPACT)
                         : hf_xstrdup("{\"on_timeout\":\"kill\",\"disk_only\":false,\"auto_resume\":false}");
    json_auto_t *mounts = json_array();
    for (size_t i = 0; i < req->n_mounts; i++)
        (void)json_array_append_new(mounts,
                                    json_pack("{s:s, s:s, s:s, s:b}", "name", req->mounts[i].name, "path",
                                              req->mounts[i].path, "kind", mount_kinds[req->mounts[i].kind],
                                              "read_only", req->mounts[i].read_only));
    row->mounts = json_dumps(mounts, JSON_COMPACT);
}

static bool wants_wire(const struct hf_sandbox *sb)
{
    json_auto_t *doc = NULL, *merged = NULL;
    return hf_network_ready(sb->c) && hf_network_doc(sb, &doc, NULL) == 0 &&
           hf_network_merge(sb->c, sb->row.tenant, doc, &merged, NULL) == 0 && hf_network_needs_wire(merged);
}

void hf_sandbox_create(struct hf_control *c, const struct hf_create_req *req, hf_sandbox_cb cb, void *arg,
                       char ret_id[HF_ROW_ID])
{
    hf_killpoint("create.validated");
    hf_auto_sandbox_row struct hf_sandbox_row row = {0};
    fill_row(&row, c, req);
    seal_env(c, &row, req->env);
    struct hf_sandbox *sb = hf_sandbox_new(c, &row, HF_CREATING);
    struct hf_create *cr = hf_new(struct hf_create);
    cr->sb = hf_sandbox_ref(sb);
    cr->during = HF_CREATING;
    cr->generation = row.generation;
    cr->env = req->env ? json_deep_copy(req->env) : NULL;
    cr->begin_ms = hf_mono_ms();
    cr->cb = cb;
    cr->arg = arg;
    cr->wire = wants_wire(sb);
    cr->from_dir = req->from_dir ? hf_xstrdup(req->from_dir) : NULL;
    cr->from_memory = req->from_memory;
    cr->n_mounts = HF_MIN(req->n_mounts, (size_t)HF_CONTROL_MOUNTS_MAX);
    for (size_t i = 0; i < cr->n_mounts; i++) {
        cr->mounts[i].image = hf_xstrdup(req->mounts[i].image ? req->mounts[i].image : "");
        cr->mounts[i].path = hf_xstrdup(req->mounts[i].path);
        cr->mounts[i].kind = req->mounts[i].kind;
        cr->mounts[i].read_only = req->mounts[i].read_only;
    }
    sb->create = cr;
    if (ret_id)
        (void)snprintf(ret_id, HF_ROW_ID, "%s", row.id);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_sandbox(b, &row);
    add_state_event(sb, b, "", row.state);
    if (req->with_row)
        req->with_row(req->with_row_arg, b, row.id);
    hf_meta_commit(c->meta, b, 0, on_row, cr);
}

enum hf_box_mount_kind hf_mount_kind(const json_t *mount)
{
    const char *kind = json_string_value(json_object_get(mount, "kind"));
    for (size_t k = 0; kind && k < HF_ARRAY_LEN(mount_kinds); k++) {
        if (strcmp(kind, mount_kinds[k]) == 0)
            return (enum hf_box_mount_kind)k;
    }
    return HF_MOUNT_IMAGE; /* rows of older versions do not say */
}

char *hf_mount_image(const struct hf_control *c, const json_t *mount)
{
    enum hf_box_mount_kind kind = hf_mount_kind(mount);
    return kind == HF_MOUNT_TMPFS ? hf_xstrdup("")
                                  : hf_xasprintf("%s/pool/volumes/%s.%s", c->cfg->data_dir,
                                                 json_string_value(json_object_get(mount, "name")),
                                                 kind == HF_MOUNT_DIR ? "d" : "img");
}

const char *hf_mounts_exclusive(const json_t *mounts)
{
    size_t i;
    json_t *m;
    json_array_foreach(mounts, i, m)
    {
        if (hf_mount_kind(m) == HF_MOUNT_IMAGE && !json_is_true(json_object_get(m, "read_only")))
            return json_string_value(json_object_get(m, "name"));
    }
    return NULL;
}

/* Its volumes as the row tells them. */
static void mounts_of_row(struct hf_create *cr)
{
    const struct hf_sandbox *sb = cr->sb;
    json_auto_t *all = json_loads(sb->row.mounts, 0, NULL);
    size_t i;
    json_t *m;
    json_array_foreach(all, i, m)
    {
        const char *name = json_string_value(json_object_get(m, "name"));
        const char *path = json_string_value(json_object_get(m, "path"));
        if (!name || !path || cr->n_mounts == HF_CONTROL_MOUNTS_MAX)
            continue;
        size_t n = cr->n_mounts++;
        cr->mounts[n].kind = hf_mount_kind(m);
        cr->mounts[n].path = hf_xstrdup(path);
        cr->mounts[n].read_only = json_is_true(json_object_get(m, "read_only"));
        cr->mounts[n].image = hf_mount_image(sb->c, m);
    }
}

void hf_sandbox_bring_back(struct hf_sandbox *sb, const char *from_dir, bool memory, int64_t timeout_s,
                           hf_sandbox_cb cb, void *arg)
{
    struct hf_create *cr = hf_new(struct hf_create);
    cr->sb = hf_sandbox_ref(sb);
    cr->during = HF_RESUMING;
    cr->generation = sb->row.generation + 1;
    cr->begin_ms = hf_mono_ms();
    cr->cb = cb;
    cr->arg = arg;
    cr->wire = wants_wire(sb);
    cr->from_dir = hf_xstrdup(from_dir);
    cr->from_memory = memory;
    cr->env = memory ? NULL : unseal_env(sb);
    mounts_of_row(cr);
    sb->row.timeout_s = timeout_s;
    sb->ca_sent = false;
    sb->create = cr;
    on_row(cr, 0, NULL);
}
