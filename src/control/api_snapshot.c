/* Snapshots: E2B's routes, our own, and forks and rollbacks of sandboxes. */
#include <stdio.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "control/filter.h"
#include "control/present.h"
#include "control/snapshot_int.h"
#include "control/snapshot_stream.h"
#include "control/validate.h"

#define PAGE_MAX 100
#define ROWS_AT_ONCE 256  /* rows that one read looks at */
#define FORK_TIMEOUT_S 15 /* E2B's default */

/* ---- as JSON ---- */

static void add_name(void *arg, const char *name)
{
    (void)json_array_append_new(arg, json_string(name));
}

/* "name:tag", as they are stored. */
static json_t *names_of(struct hf_control *c, const char *id)
{
    json_t *names = json_array();
    if (hf_each_snapshot_name(c->meta, id, add_name, names) < 0)
        hf_log_error("a snapshot's names can't be read", "snapshot=%s", id);
    return names;
}

static json_t *present(struct hf_control *c, const struct hf_snapshot_row *s)
{
    json_auto_t *meta = s->meta ? json_loads(s->meta, 0, NULL) : NULL;
    json_t *metadata = json_object_get(meta, "metadata");
    json_t *v = json_pack("{s:s, s:o, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "id", s->id, "names",
                          names_of(c, s->id), "kind", s->kind, "purpose", s->purpose, "template_id",
                          s->template_id, "generation", (json_int_t)s->generation, "bytes",
                          (json_int_t)s->bytes, "exclusive_bytes", (json_int_t)s->exclusive_bytes,
                          "frozen_us", (json_int_t)s->frozen_us, "total_us", (json_int_t)s->total_us);
    const struct {
        const char *key, *text;
    } ids[] = {{"sandbox_id", s->sandbox_id}, {"session_id", s->session_id}, {"parent_id", s->parent_id}};
    for (size_t i = 0; i < HF_ARRAY_LEN(ids); i++)
        (void)json_object_set_new(v, ids[i].key, *ids[i].text ? json_string(ids[i].text) : json_null());
    (void)json_object_set_new(v, "shared_bytes", json_integer((json_int_t)(s->bytes - s->exclusive_bytes)));
    (void)json_object_set_new(v, "metadata", metadata ? json_incref(metadata) : json_object());
    (void)json_object_set_new(v, "created_at", hf_present_time(s->created_ms));
    return v;
}

/* E2B's SnapshotInfo: a named one is told by "<tenant>/<name>:<tag>", one without a name by "<id>:default".
 */
static json_t *present_info(struct hf_control *c, const struct hf_snapshot_row *s)
{
    json_auto_t *stored = names_of(c, s->id);
    json_t *names = json_array();
    size_t i;
    json_t *name;
    json_array_foreach(stored, i, name)
    {
        (void)json_array_append_new(names, json_sprintf("%s/%s", s->tenant, json_string_value(name)));
    }
    json_t *id =
        json_array_size(names) ? json_incref(json_array_get(names, 0)) : json_sprintf("%s:default", s->id);
    return json_pack("{s:o, s:o}", "snapshotID", id, "names", names);
}

/* ---- who is meant ---- */

/* The sandbox of that id in any state but ended, or answered. */
static struct hf_sandbox *sandbox_of(struct hf_call *call, const char *text)
{
    char id[HF_ROW_ID];
    struct hf_err err = {0};
    if (hf_validate_sandbox_id(text, id, &err) < 0) {
        hf_call_err(call, &err);
        return NULL;
    }
    struct hf_sandbox *sb = hf_sandbox_find(call->c, call->tenant, id);
    if (sb && !hf_state_ended(sb->state) && sb->state != HF_KILLING)
        return sb;
    hf_call_no_sandbox(call, id);
    return NULL;
}

/* As above, running, or answered with 409. */
static struct hf_sandbox *running_of(struct hf_call *call)
{
    struct hf_sandbox *sb = sandbox_of(call, call->param[0]);
    if (!sb || sb->state == HF_RUNNING)
        return sb;
    hf_call_fail(call, 409, "Sandbox %s is %s: it must be running", sb->row.id, hf_state_name(sb->state));
    return NULL;
}

/* The caller's snapshot, or answered. */
static bool snapshot_of(struct hf_call *call, const char *ref, struct hf_snapshot_row *ret)
{
    struct hf_err err = {0};
    int r = hf_snapshot_resolve(call->c, call->tenant, ref, ret, &err);
    if (r == 0)
        hf_call_fail(call, 404, "snapshot '%.150s' not found", ref);
    else if (r < 0)
        hf_call_err(call, &err);
    return r == 1;
}

/* ---- take ---- */

static void on_taken_e2b(void *arg, const struct hf_snapshot_row *s, const struct hf_err *err)
{
    struct hf_call *call = arg;
    if (err)
        hf_call_err(call, err);
    else
        hf_call_json(call, 201, present_info(call->c, s));
    hf_killpoint("snapshot.answered");
}

/* A name that a template has would mean two things at a create. */
static int check_name(struct hf_call *call, const char *name, struct hf_err *err)
{
    char full[HF_ROW_NAME];
    struct hf_template_row t;
    int r = hf_snapshot_name(call->tenant, name, full, err);
    if (r < 0)
        return r;
    full[strcspn(full, ":")] = '\0';
    if (hf_get_template_by_name(call->c->meta, call->tenant, full, NULL, &t) == 1)
        return hf_err_http(err, -EEXIST, 409, "there is a template of the name '%.100s'", full);
    return 0;
}

static bool named_ask(struct hf_call *call, const char **name)
{
    struct hf_err err = {0};
    *name = "";
    int r = hf_validate_text(call->body, "name", HF_ROW_NAME - 1, name, &err);
    if (r >= 0 && **name)
        r = check_name(call, *name, &err);
    if (r < 0)
        hf_call_err(call, &err);
    return r >= 0;
}

static void take_e2b(struct hf_call *call)
{
    const char *name;
    struct hf_sandbox *sb = running_of(call);
    if (!sb || !named_ask(call, &name))
        return;
    const struct hf_snapshot_ask ask = {.name = name, .purpose = "user", .memory = true};
    hf_snapshot_take(sb, &ask, on_taken_e2b, call);
}

/* NULL and no error: nothing had changed. */
static void on_taken(void *arg, const struct hf_snapshot_row *s, const struct hf_err *err)
{
    struct hf_call *call = arg;
    if (err)
        hf_call_err(call, err);
    else if (!s)
        hf_call_json(call, 200, json_pack("{s:n, s:s}", "snapshot", "none", "clean"));
    else
        hf_call_json(call, 201, json_pack("{s:o}", "snapshot", present(call->c, s)));
}

static int flag(const json_t *body, const char *field, bool *ret, struct hf_err *err)
{
    const json_t *v = json_object_get(body, field);
    if (v && !json_is_boolean(v) && !json_is_null(v))
        return hf_err_http(err, -EINVAL, 400, "validation error: \"%s\" must be a boolean", field);
    *ret = json_is_true(v);
    return 0;
}

static void take(struct hf_call *call)
{
    struct hf_err err = {0};
    const char *id = NULL, *kind = "full", *name;
    bool if_changed = false;
    int r = hf_validate_text(call->body, "sandbox_id", HF_ROW_ID - 1, &id, &err);
    if (r == 0)
        r = hf_err_http(&err, -EINVAL, 400, "validation error: \"sandbox_id\" is required");
    if (r > 0)
        r = hf_validate_text(call->body, "kind", 8, &kind, &err);
    if (r >= 0 && strcmp(kind, "full") != 0 && strcmp(kind, "disk") != 0)
        r = hf_err_http(&err, -EINVAL, 400, "validation error: \"kind\" must be full or disk");
    if (r >= 0)
        r = flag(call->body, "if_changed", &if_changed, &err);
    if (r < 0) {
        hf_call_err(call, &err);
        return;
    }
    struct hf_sandbox *sb = sandbox_of(call, id);
    if (!sb || !named_ask(call, &name))
        return;
    const struct hf_snapshot_ask ask = {
        .name = name, .purpose = "user", .memory = strcmp(kind, "full") == 0, .skip_clean = if_changed};
    hf_snapshot_take(sb, &ask, on_taken, call);
}

/* ---- lists ---- */

struct page {
    struct hf_control *c;
    json_t *list;
    bool e2b;
    char sandbox[HF_ROW_ID];
    int64_t limit;
    bool more;
    struct hf_cursor last; /* on the page */
    struct hf_cursor read; /* of the rows, also of those that are not shown */
    int n_read;
};

static void add_snapshot(void *arg, const struct hf_snapshot_row *s)
{
    struct page *p = arg;
    p->n_read++;
    p->read.time_ms = s->created_ms;
    memcpy(p->read.id, s->id, sizeof(p->read.id));
    if (!hf_snapshot_is_listed(s) || (p->e2b && strcmp(s->purpose, "template") == 0))
        return;
    p->more = (int64_t)json_array_size(p->list) == p->limit;
    if (p->more)
        return;
    p->last.time_ms = s->created_ms;
    memcpy(p->last.id, s->id, sizeof(p->last.id));
    (void)json_array_append_new(p->list, p->e2b ? present_info(p->c, s) : present(p->c, s));
}

/* 1: the parameter is there. */
static int text_query(struct hf_call *call, const char *name, char *ret, size_t n)
{
    hf_auto_buf struct hf_buf text = HF_BUF_INIT(HF_ROW_NAME + 512);
    int r = hf_call_query(call, name, &text);
    if (r > 0 && text.n >= n) {
        hf_call_fail(call, 400, "validation error: query parameter \"%s\" is too long", name);
        return -EINVAL;
    }
    if (r > 0)
        (void)snprintf(ret, n, "%s", text.p ? text.p : "");
    return r;
}

static int fill_page(struct hf_call *call, struct page *p, const char *cursor_name, const char *name)
{
    char token[400] = "";
    struct hf_err err = {0};
    hf_auto_snapshot_row struct hf_snapshot_row row = {0};
    int r = text_query(call, cursor_name, token, sizeof(token));
    if (r >= 0)
        r = hf_call_query_int(call, "limit", 1, PAGE_MAX, &p->limit);
    if (r < 0)
        return r;
    if (*token && hf_cursor_parse(hf_str_c(token), false, &p->read, &err) < 0) {
        hf_call_err(call, &err);
        return -EINVAL;
    }
    if (*name) { /* a name means one at most */
        if (hf_snapshot_resolve(call->c, call->tenant, name, &row, NULL) == 1 && !*token &&
            (!*p->sandbox || strcmp(row.sandbox_id, p->sandbox) == 0))
            add_snapshot(p, &row);
        return 0;
    }
    do { /* those of a pause or a fork are not shown, so it may take more rows than fit on a page */
        struct hf_cursor from = p->read;
        p->n_read = 0;
        r = hf_each_snapshot(call->c->meta, call->tenant, p->sandbox, NULL, from.time_ms, from.id,
                             ROWS_AT_ONCE, add_snapshot, p);
    } while (r == 0 && !p->more && p->n_read == ROWS_AT_ONCE);
    if (r < 0)
        hf_call_fail(call, 500, "the database can't be read");
    return r;
}

static bool list_page(struct hf_call *call, struct page *p, const char *sandbox_name, const char *cursor_name)
{
    char name[HF_ROW_NAME] = "", sandbox[HF_ROW_NAME] = "";
    struct hf_err err = {0};
    p->c = call->c;
    p->limit = PAGE_MAX;
    p->list = json_array();
    int r = text_query(call, sandbox_name, sandbox, sizeof(sandbox));
    if (r > 0 && *sandbox && hf_validate_sandbox_id(sandbox, p->sandbox, &err) < 0) {
        hf_call_err(call, &err);
        r = -EINVAL;
    }
    if (r >= 0)
        r = text_query(call, "name", name, sizeof(name));
    if (r >= 0)
        r = fill_page(call, p, cursor_name, name);
    if (r < 0)
        json_decref(p->list);
    return r >= 0;
}

static void list_e2b(struct hf_call *call)
{
    struct page p = {.e2b = true};
    hf_auto_buf struct hf_buf next = HF_BUF_INIT(512);
    if (!list_page(call, &p, "sandboxID", "nextToken"))
        return;
    if (p.more && hf_cursor_add(&next, &p.last) == 0)
        hf_call_header(call, "X-Next-Token", next.p);
    hf_call_json(call, 200, p.list);
}

static void list(struct hf_call *call)
{
    struct page p = {0};
    hf_auto_buf struct hf_buf next = HF_BUF_INIT(512);
    if (!list_page(call, &p, "sandbox_id", "cursor"))
        return;
    bool more = p.more && hf_cursor_add(&next, &p.last) == 0;
    json_t *v = json_pack("{s:o}", "snapshots", p.list);
    (void)json_object_set_new(v, "next_cursor", more ? json_string(next.p) : json_null());
    hf_call_json(call, 200, v);
}

/* ---- one ---- */

struct measure {
    struct hf_call *call;
    struct hf_snapshot_row row;
    char *data_dir;
    bool verify;
    uint64_t exclusive, shared;
    unsigned unsealed;
    struct hf_err err;
};

static void measure_work(void *arg)
{
    struct measure *m = arg;
    int r = m->verify ? hf_snapshot_verify(m->data_dir, m->row.id, &m->unsealed, &m->err)
                      : hf_snapshot_usage(m->data_dir, m->row.id, &m->exclusive, &m->shared, &m->err);
    if (r < 0 && !m->err.r)
        (void)hf_err_set(&m->err, r, "snapshot %s can't be read: %s", m->row.id, strerror(-r));
}

static void on_measured(void *arg)
{
    struct measure *m = arg;
    struct hf_call *call = m->call;
    if (m->err.r && !m->verify) {
        hf_call_err(call, &m->err);
    } else if (m->verify) {
        hf_call_json(call, 200,
                     json_pack("{s:s, s:b, s:i, s:s}", "id", m->row.id, "ok", (int)!m->err.r, "unsealed",
                               (int)m->unsealed, "detail", m->err.msg));
    } else {
        m->row.bytes = (int64_t)(m->exclusive + m->shared);
        m->row.exclusive_bytes = (int64_t)m->exclusive;
        hf_call_json(call, 200, present(call->c, &m->row));
    }
    call->c->busy--;
    hf_snapshot_row_done(&m->row);
    free(m->data_dir);
    free(m);
}

static void measure(struct hf_call *call, bool verify)
{
    struct hf_snapshot_row row;
    if (!snapshot_of(call, call->param[0], &row))
        return;
    struct measure *m = hf_new(struct measure);
    m->call = call;
    m->row = row;
    m->verify = verify;
    m->data_dir = hf_xstrdup(call->c->cfg->data_dir);
    call->c->busy++;
    hf_snapshots_work(call->c, measure_work, on_measured, m);
}

static void get(struct hf_call *call)
{
    measure(call, false);
}

static void verify(struct hf_call *call)
{
    measure(call, true);
}

static void on_deleted(void *arg, const struct hf_err *err)
{
    if (err)
        hf_call_err(arg, err);
    else
        hf_call_empty(arg, 204);
}

void hf_call_delete_snapshot(struct hf_call *call, const struct hf_snapshot_row *row)
{
    if (strcmp(row->purpose, "template") == 0)
        hf_call_fail(call, 409, "snapshot %s is the started state of template %s: delete the template",
                     row->id, row->template_id);
    else
        hf_snapshot_delete(call->c, call->tenant, row->id, on_deleted, call);
}

/* What is gone already is what was asked for. */
static void delete_one(struct hf_call *call)
{
    hf_auto_snapshot_row struct hf_snapshot_row row = {0};
    struct hf_err err = {0};
    int r = hf_snapshot_resolve(call->c, call->tenant, call->param[0], &row, &err);
    if (r < 0)
        hf_call_err(call, &err);
    else if (r == 0) /* one that is not listed may still be there, and be in use */
        hf_snapshot_delete(call->c, call->tenant, call->param[0], on_deleted, call);
    else
        hf_call_delete_snapshot(call, &row);
}

/* ---- files ---- */

static int on_export_data(void *arg, const char *p, size_t n)
{
    struct hf_call *call = arg;
    if (!call->req)
        return 0;
    if (!hf_res_started(call->req))
        hf_call_begin(call, 200, "application/zstd");
    return hf_res_write(call->req, p, n);
}

static void on_exported(void *arg, const struct hf_snapshot_row *row, const struct hf_err *err)
{
    struct hf_call *call = arg;
    call->data = NULL;
    call->gone = NULL;
    call->on_drain = NULL;
    if (call->req && hf_res_started(call->req)) {
        if (err) /* half a file must not pass for a whole one */
            hf_res_abort(call->req);
        hf_call_end(call);
    } else if (err) {
        hf_call_err(call, err);
    } else {
        hf_call_empty(call, 204);
    }
}

static const struct hf_snapshot_stream_ops export_ops = {.data = on_export_data, .done = on_exported};

static void on_export_drain(struct hf_call *call)
{
    if (call->data)
        hf_snapshot_stream_more(call->data);
}

static void on_stream_gone(struct hf_call *call)
{
    if (call->data)
        hf_snapshot_stream_cancel(call->data);
}

static void export_one(struct hf_call *call)
{
    hf_auto_snapshot_row struct hf_snapshot_row row = {0};
    char with[8] = "";
    struct hf_err err = {0};
    if (text_query(call, "template", with, sizeof(with)) < 0 || !snapshot_of(call, call->param[0], &row))
        return;
    call->gone = on_stream_gone;
    call->on_drain = on_export_drain;
    call->data = hf_snapshot_export_begin(call->c, &row, strcmp(with, "true") == 0, &export_ops, call, &err);
    if (!call->data)
        hf_call_err(call, &err);
}

static void want_more(void *arg)
{
    struct hf_call *call = arg;
    if (call->req)
        hf_req_resume(call->req);
}

static void on_imported(void *arg, const struct hf_snapshot_row *row, const struct hf_err *err)
{
    struct hf_call *call = arg;
    call->gone = NULL;
    call->data = NULL;
    if (call->req)
        hf_req_resume(call->req); /* what still comes of a refused file is thrown away */
    if (err && err->r == -EXDEV)
        hf_call_hint(call,
                     "where its template is missing: holdfast snapshot export --template on the machine "
                     "that it comes from");
    if (err)
        hf_call_err(call, err);
    else
        hf_call_json(call, 201, json_pack("{s:o}", "snapshot", present(call->c, row)));
}

static const struct hf_snapshot_stream_ops import_ops = {.want_more = want_more, .done = on_imported};

static void on_file(struct hf_call *call, const char *p, size_t n)
{
    if (call->data && hf_snapshot_stream_feed(call->data, p, n) > 0)
        hf_req_pause(call->req);
}

static void on_file_end(struct hf_call *call)
{
    if (call->data)
        hf_snapshot_stream_end(call->data);
}

/* A file's disk is mounted and its processes are restored by the host's kernel as the file says: whoever may
 * bring one can do what the operator can. */
static void import_one(struct hf_call *call)
{
    char name[HF_ROW_NAME] = "";
    struct hf_err err = {0};
    if (text_query(call, "name", name, sizeof(name)) < 0)
        return;
    if (strcmp(call->tenant, "default") != 0) {
        hf_call_fail(call, 403, "only the tenant \"default\", the operator's, may import snapshots");
        return;
    }
    if (*name && check_name(call, name, &err) < 0) {
        hf_call_err(call, &err);
        return;
    }
    call->on_data = on_file;
    call->on_end = on_file_end;
    call->gone = on_stream_gone;
    call->data = hf_snapshot_import_begin(call->c, call->tenant, name, &import_ops, call, &err);
    if (!call->data)
        hf_call_err(call, &err);
}

/* ---- policies ---- */

static void get_policy(struct hf_call *call)
{
    struct hf_sandbox *sb = sandbox_of(call, call->param[0]);
    json_t *policy = sb ? hf_snapshot_policy_of(call->c, sb->row.id) : NULL;
    if (policy)
        hf_call_json(call, 200, policy);
    else if (sb)
        hf_call_fail(call, 404, "Sandbox %s has no snapshot policy", sb->row.id);
}

struct put {
    struct hf_call *call;
    json_t *policy;
};

static void on_policy_row(void *arg, int r, const struct hf_err *err)
{
    struct put *p = arg;
    if (r < 0) {
        json_decref(p->policy);
        hf_call_err(p->call, err);
    } else if (p->policy) {
        hf_call_json(p->call, 200, p->policy);
    } else {
        hf_call_empty(p->call, 204);
    }
    free(p);
}

static void put_policy(struct hf_call *call)
{
    struct hf_err err = {0};
    json_t *policy = NULL;
    struct hf_sandbox *sb = sandbox_of(call, call->param[0]);
    if (!sb)
        return;
    if (hf_snapshot_policy_resolve(call->body, &policy, &err) < 0) {
        hf_call_err(call, &err);
        return;
    }
    hf_auto_free char *text = json_dumps(policy, JSON_COMPACT);
    struct put *p = hf_new(struct put);
    *p = (struct put){call, policy};
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_snapshot_policy(b, sb->row.id, sb->row.tenant, text, hf_real_ms());
    hf_meta_commit(call->c->meta, b, 0, on_policy_row, p);
}

static void delete_policy(struct hf_call *call)
{
    struct hf_sandbox *sb = sandbox_of(call, call->param[0]);
    if (!sb)
        return;
    struct put *p = hf_new(struct put);
    *p = (struct put){call, NULL};
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_del_snapshot_policy(b, sb->row.id);
    hf_meta_commit(call->c->meta, b, 0, on_policy_row, p);
}

static void step(struct hf_call *call)
{
    struct hf_sandbox *sb = sandbox_of(call, call->param[0]);
    if (sb && !hf_snapshot_step(sb, on_taken, call))
        hf_call_json(call, 200, json_pack("{s:n, s:s}", "snapshot", "none", "no policy"));
}

/* ---- fork and rollback ---- */

static void on_forked(void *arg, const json_t *result, const struct hf_err *err)
{
    struct hf_call *call = arg;
    call->gone = NULL;
    call->data = NULL;
    if (err)
        hf_call_err(call, err);
    else
        hf_call_json(call, 201, json_incref((json_t *)(uintptr_t)result));
    hf_killpoint("fork.answered");
}

static void on_fork_gone(struct hf_call *call)
{
    if (call->data)
        hf_fork_abandon(call->data);
}

static int parse_fork(struct hf_call *call, struct hf_fork_ask *ask, struct hf_err *err)
{
    const char *volumes = "same";
    *ask = (struct hf_fork_ask){.count = 1, .timeout_s = FORK_TIMEOUT_S};
    int r = hf_validate_int(call->body, "count", 1, HF_FORK_MAX, &ask->count, err);
    if (r >= 0)
        r = hf_validate_int(call->body, "timeout", INT64_MIN, INT64_MAX, &ask->timeout_s, err);
    if (r > 0)
        r = hf_validate_timeout(ask->timeout_s, call->c->cfg, err);
    if (r >= 0)
        r = hf_validate_text(call->body, "volumes", 8, &volumes, err);
    if (r >= 0 && strcmp(volumes, "same") != 0 && strcmp(volumes, "none") != 0)
        r = hf_err_http(err, -EINVAL, 400, "validation error: \"volumes\" must be same or none");
    ask->memory = strcmp(volumes, "none") != 0;
    return r < 0 ? r : 0;
}

static void fork_sandbox(struct hf_call *call)
{
    struct hf_fork_ask ask;
    struct hf_err err = {0};
    struct hf_sandbox *sb = running_of(call);
    if (!sb)
        return;
    if (parse_fork(call, &ask, &err) < 0) {
        hf_call_err(call, &err);
        return;
    }
    call->gone = on_fork_gone;
    call->data = hf_fork_begin(sb, &ask, on_forked, call, &err);
    if (!call->data)
        hf_call_err(call, &err);
}

static void on_rolled_back(void *arg, struct hf_sandbox *sb, const struct hf_err *err)
{
    struct hf_call *call = arg;
    if (err)
        hf_call_err(call, err);
    else
        hf_call_json(
            call, 200,
            json_pack("{s:s, s:I}", "sandbox_id", sb->row.id, "generation", (json_int_t)sb->row.generation));
    hf_killpoint("rollback.answered");
}

static void rollback(struct hf_call *call)
{
    const char *ref = NULL;
    struct hf_err err = {0};
    hf_auto_snapshot_row struct hf_snapshot_row row = {0};
    int r = hf_validate_text(call->body, "snapshot", HF_ROW_NAME - 1, &ref, &err);
    if (r == 0)
        r = hf_err_http(&err, -EINVAL, 400, "validation error: \"snapshot\" is required");
    if (r < 0) {
        hf_call_err(call, &err);
        return;
    }
    struct hf_sandbox *sb = sandbox_of(call, call->param[0]);
    if (!sb || !snapshot_of(call, ref, &row))
        return;
    if (strcmp(row.sandbox_id, sb->row.id) != 0) {
        hf_call_fail(call, 409, "snapshot %s is not one of sandbox %s; a new sandbox can be made from it",
                     row.id, sb->row.id);
        return;
    }
    if (sb->state != HF_RUNNING && sb->state != HF_PAUSED) {
        hf_call_fail(call, 409, "Sandbox %s is %s; try again in a moment", sb->row.id,
                     hf_state_name(sb->state));
        return;
    }
    hf_rollback(sb, &row, on_rolled_back, call);
}

const struct hf_api_route hf_api_snapshot_routes[] = {
    {"POST", "/sandboxes/{sandboxID}/snapshots", take_e2b, HF_API_BODY_OPT},
    {"GET", "/snapshots", list_e2b, 0},
    {"POST", "/sandboxes/{sandboxID}/fork", fork_sandbox, HF_API_BODY_OPT},
    {"GET", "/v1/snapshots", list, 0},
    {"POST", "/v1/snapshots", take, HF_API_BODY | HF_API_RERUNS},
    {"POST", "/v1/snapshots/import", import_one, HF_API_STREAM},
    {"GET", "/v1/snapshots/{snapshot}", get, 0},
    {"DELETE", "/v1/snapshots/{snapshot}", delete_one, 0},
    {"POST", "/v1/snapshots/{snapshot}/verify", verify, HF_API_BODY_OPT},
    {"GET", "/v1/snapshots/{snapshot}/export", export_one, 0},
    {"GET", "/v1/sandboxes/{sandboxID}/snapshot-policy", get_policy, 0},
    {"PUT", "/v1/sandboxes/{sandboxID}/snapshot-policy", put_policy, HF_API_BODY},
    {"DELETE", "/v1/sandboxes/{sandboxID}/snapshot-policy", delete_policy, 0},
    {"POST", "/v1/sandboxes/{sandboxID}/snapshot-policy/step", step, HF_API_BODY_OPT},
    {"POST", "/v1/sandboxes/{sandboxID}/rollback", rollback, HF_API_BODY | HF_API_RERUNS},
    {NULL, NULL, NULL, 0},
};
