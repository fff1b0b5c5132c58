/* Snapshots, forks, rollbacks and policies, with the fake driver and the fake disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/path.h"
#include "control/snapshot_int.h"
#include "control/validate.h"
#include "harness.h"

struct taken {
    int done;
    bool clean;
    struct hf_snapshot_row row; /* without its pointers */
    struct hf_err err;
};

static void on_taken(void *arg, const struct hf_snapshot_row *s, const struct hf_err *err)
{
    struct taken *t = arg;
    t->done++;
    if (err)
        t->err = *err;
    else if (!s)
        t->clean = true;
    else
        t->row = *s;
    t->row.meta = NULL;
    t->row.env_sealed = NULL;
}

static struct taken take(struct hf_harness *h, struct hf_sandbox *sb, const struct hf_snapshot_ask *ask)
{
    struct taken t = {0};
    hf_snapshot_take(sb, ask, on_taken, &t);
    assert_int_equal(t.done, 0); /* never inside the call */
    hf_harness_wait(h, &t.done);
    return t;
}

static const struct hf_snapshot_ask full = {.purpose = "user", .memory = true};
static const struct hf_snapshot_ask disk = {.purpose = "user"};

static struct taken good(struct hf_harness *h, struct hf_sandbox *sb, const struct hf_snapshot_ask *ask)
{
    struct taken t = take(h, sb, ask);
    if (t.err.r)
        fail_msg("%s", t.err.msg);
    assert_false(t.clean);
    return t;
}

static bool on_disk(struct hf_harness *h, const char *id)
{
    hf_auto_free char *path = hf_xasprintf("%s/pool/snapshots/%s", h->dir, id);
    return access(path, F_OK) == 0;
}

static bool has_row(struct hf_harness *h, const char *id)
{
    hf_auto_snapshot_row struct hf_snapshot_row row = {0};
    return hf_get_snapshot(h->meta, id, &row) == 1;
}

static void count_row(void *arg, const struct hf_snapshot_row *s)
{
    ++*(int *)arg;
}

static int rows(struct hf_harness *h)
{
    int n = 0;
    assert_int_equal(hf_each_snapshot(h->meta, NULL, NULL, NULL, 0, "", 1000, count_row, &n), 0);
    return n;
}

static struct hf_err drop(struct hf_harness *h, const char *tenant, const char *id)
{
    struct hf_outcome o = {0};
    hf_snapshot_delete(h->c, tenant, id, hf_harness_on_outcome, &o);
    hf_harness_wait(h, &o.done);
    return o.err;
}

/* ---- taking ---- */

static void test_take(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    struct taken a = good(h, sb, &full), b = good(h, sb, &disk);
    assert_string_equal(a.row.kind, "full");
    assert_string_equal(b.row.kind, "disk");
    assert_string_equal(a.row.state, "ready");
    assert_string_equal(b.row.sandbox_id, sb->row.id);
    assert_string_equal(a.row.template_id, "t");
    assert_int_equal(a.row.frozen_us, 100);
    assert_int_equal(a.row.bytes, 12288);
    assert_int_equal(a.row.exclusive_bytes, 4096);
    assert_string_equal(a.row.parent_id, "");
    assert_string_equal(b.row.parent_id, a.row.id); /* the newest before it */
    assert_true(on_disk(h, a.row.id) && on_disk(h, b.row.id));
    assert_int_equal(sb->state, HF_RUNNING);
}

static void test_one_at_a_time(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    struct taken t[3] = {{0}};
    h->fake->save_ms = 30;
    for (int i = 0; i < 3; i++)
        hf_snapshot_take(sb, &full, on_taken, &t[i]);
    hf_harness_wait(h, &t[0].done);
    assert_int_equal(h->fake->saves, 1);
    assert_int_equal(t[1].done, 0);
    hf_harness_wait(h, &t[2].done);
    assert_int_equal(h->fake->saves, 3);
    assert_string_equal(t[2].row.parent_id, t[1].row.id);
}

static void test_names_move(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    struct hf_snapshot_ask named = {.name = "Alpha", .purpose = "user", .memory = true};
    struct taken a = good(h, sb, &named), b = good(h, sb, &named);
    static const char *const refs[] = {"alpha", "ALPHA:default", "default/alpha", "default/alpha:default"};
    for (size_t i = 0; i < HF_ARRAY_LEN(refs); i++) {
        hf_auto_snapshot_row struct hf_snapshot_row row = {0};
        assert_int_equal(hf_snapshot_resolve(h->c, "default", refs[i], &row, NULL), 1);
        assert_string_equal(row.id, b.row.id);
    }
    char e2b[80];
    (void)snprintf(e2b, sizeof(e2b), "%s:default", a.row.id); /* how its clients write one without a name */
    hf_auto_snapshot_row struct hf_snapshot_row old = {0}, none = {0};
    assert_int_equal(hf_snapshot_resolve(h->c, "default", e2b, &old, NULL), 1);
    assert_int_equal(hf_snapshot_resolve(h->c, "other", a.row.id, &none, NULL), 0);
    assert_int_equal(hf_snapshot_resolve(h->c, "default", "alpha:v2", &none, NULL), 0);
    struct hf_snapshot_ask bad = {.name = "a/b/c", .purpose = "user"};
    struct taken t = take(h, sb, &bad);
    assert_int_equal(hf_err_http_status(&t.err), 400);
}

static void test_failures_leave_nothing(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    h->fake->fail_save = -EOPNOTSUPP;
    struct taken t = take(h, sb, &full);
    assert_int_equal(t.err.r, -EOPNOTSUPP);
    assert_int_equal(rows(h), 0);
    (void)good(h, sb, &disk); /* a save without memory works */
    assert_int_equal(setenv("HF_FAKE_NO_SPACE", "1", 1), 0);
    t = take(h, sb, &disk);
    assert_int_equal(hf_err_http_status(&t.err), 507);
    assert_int_equal(rows(h), 1);
    assert_int_equal(h->fake->saves, 2); /* it was not even asked */
    assert_int_equal(sb->state, HF_RUNNING);
}

static void test_killed_meanwhile(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_sandbox_ref(hf_harness_create(h));
    struct taken a = {0}, b = {0};
    struct hf_outcome killed = {0};
    h->fake->save_ms = 50;
    hf_snapshot_take(sb, &full, on_taken, &a);
    hf_snapshot_take(sb, &full, on_taken, &b);
    hf_sandbox_kill(sb, HF_CAUSE_API, "", hf_harness_on_outcome, &killed);
    hf_harness_wait(h, &b.done);
    assert_true(a.done == 1 && b.err.r != 0);
    hf_harness_wait(h, &killed.done);
    hf_sandbox_unref(sb);
}

static void test_clean(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    struct hf_snapshot_ask ask = {.purpose = "user", .memory = true, .skip_clean = true};
    (void)good(h, sb, &ask); /* there is none yet */
    assert_true(take(h, sb, &ask).clean);
    h->fake->cpu_ns = HF_CLEAN_CPU_NS; /* as good as idle */
    assert_true(take(h, sb, &ask).clean);
    h->fake->cpu_ns = HF_CLEAN_CPU_NS + 1;
    (void)good(h, sb, &ask);
    assert_true(take(h, sb, &ask).clean);
    h->fake->disk_writes++;
    (void)good(h, sb, &ask);
    struct hf_snapshot_ask other = ask;
    other.memory = false;
    (void)good(h, sb, &other);         /* the newest of that kind counts */
    h->fake->disk_writes = UINT64_MAX; /* not known: never clean */
    (void)good(h, sb, &ask);
    (void)good(h, sb, &ask);
}

/* ---- deleting ---- */

static void test_delete(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    struct taken a = good(h, sb, &full);
    assert_int_equal(drop(h, "other", a.row.id).r, 0); /* not theirs: nothing to delete */
    assert_true(has_row(h, a.row.id) && on_disk(h, a.row.id));
    assert_int_equal(drop(h, "default", a.row.id).r, 0);
    assert_false(has_row(h, a.row.id) || on_disk(h, a.row.id));
    assert_int_equal(drop(h, "default", a.row.id).r, 0); /* again */
    assert_int_equal(drop(h, "default", "snever").r, 0);
}

static void test_pins(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    const struct hf_pause_ask cold = {.memory = true, .cold = true, .cause = "api", .detail = ""};
    struct hf_outcome paused = {0};
    hf_sandbox_pause(sb, &cold, hf_harness_on_outcome, &paused);
    hf_harness_wait(h, &paused.done);
    assert_string_equal(sb->row.pause_depth, "cold");
    struct hf_err err = drop(h, "default", sb->row.pause_id);
    assert_int_equal(hf_err_http_status(&err), 409);
    assert_non_null(strstr(err.msg, sb->row.id));
    assert_true(on_disk(h, sb->row.pause_id));
    hf_auto_snapshot_row struct hf_snapshot_row hidden = {0}, carried = {0};
    assert_int_equal(hf_snapshot_resolve(h->c, "default", sb->row.pause_id, &hidden, NULL), 0);
    /* One of a cold sandbox is a copy of what it is paused in. */
    unsigned saves = h->fake->saves;
    struct taken copy = good(h, sb, &full);
    assert_int_equal(h->fake->saves, saves);
    assert_string_equal(copy.row.kind, "full");
    assert_true(on_disk(h, copy.row.id));
    assert_int_equal(hf_snapshot_of_template(h->c, "t", &carried), 1);
    assert_int_equal(hf_snapshot_of_template(h->c, "none", &carried), 0);
}

/* ---- after a restart ---- */

static void plant(struct hf_harness *h, const char *id, const char *purpose, const char *st, bool complete)
{
    hf_auto_free char *dir = hf_xasprintf("%s/pool/snapshots/%s", h->dir, id);
    hf_auto_free char *manifest = hf_xasprintf("%s/manifest", dir);
    assert_int_equal(hf_mkdir_p(dir, 0700), 0);
    if (complete)
        assert_int_equal(hf_write_file_atomic(manifest, "full", 4, 0600), 0);
    if (!st)
        return;
    struct hf_snapshot_row row = {.created_ms = 1};
    (void)snprintf(row.id, sizeof(row.id), "%s", id);
    (void)snprintf(row.tenant, sizeof(row.tenant), "default");
    (void)snprintf(row.purpose, sizeof(row.purpose), "%s", purpose);
    (void)snprintf(row.kind, sizeof(row.kind), "full");
    (void)snprintf(row.state, sizeof(row.state), "%s", st);
    (void)snprintf(row.sandbox_id, sizeof(row.sandbox_id), "igone");
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_snapshot(b, &row);
    hf_meta_commit(h->meta, b, 0, NULL, NULL);
}

static void test_recover(void **state)
{
    struct hf_harness *h = *state;
    plant(h, "shalf", "user", "creating", false);
    plant(h, "sgoing", "user", "deleting", true);
    plant(h, "sfork", "fork", "ready", true);
    plant(h, "spause", "pause", "ready", true); /* of a sandbox that is gone */
    plant(h, "sorphan", NULL, NULL, true);      /* no row */
    plant(h, "sgood", "user", "ready", true);
    hf_harness_run_ms(h, 50);
    hf_snapshot_recover(h->c);
    for (int i = 0; i < 100 && h->c->busy; i++)
        hf_harness_run_ms(h, 20);
    assert_int_equal(h->c->busy, 0);
    static const char *const gone[] = {"shalf", "sgoing", "sfork", "spause", "sorphan"};
    for (size_t i = 0; i < HF_ARRAY_LEN(gone); i++) {
        if (has_row(h, gone[i]) || on_disk(h, gone[i]))
            fail_msg("%s is still there", gone[i]);
    }
    assert_true(has_row(h, "sgood") && on_disk(h, "sgood"));
}

/* ---- starting ---- */

static void test_fill(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    struct taken a = good(h, sb, &full);
    hf_auto_snapshot_row struct hf_snapshot_row row = {0};
    assert_int_equal(hf_get_snapshot(h->meta, a.row.id, &row), 1);
    struct hf_snapshot_fill own = {0};
    struct hf_create_req req = {.tenant = "default", .cpu_millis = 500, .timeout_s = 60};
    struct hf_err err = {0};
    assert_int_equal(hf_snapshot_fill(h->c, &row, &req, &own, &err), 0);
    assert_true(req.from_memory);
    assert_int_equal(req.cpu_millis, 500);                    /* what was said stays */
    assert_int_equal(req.memory_bytes, sb->row.memory_bytes); /* the rest is the saved one's */
    assert_int_equal(req.disk_bytes, sb->row.disk_bytes);
    assert_non_null(req.network);
    struct hf_created cr = {0};
    hf_sandbox_create(h->c, &req, hf_harness_on_created, &cr, NULL);
    hf_harness_wait(h, &cr.done);
    hf_snapshot_fill_done(&own);
    struct hf_sandbox *child = hf_sandbox_find(h->c, "default", cr.id);
    assert_non_null(child);
    assert_string_equal(child->row.snapshot_id, a.row.id);
    struct taken b = good(h, child, &full);
    assert_string_equal(b.row.parent_id, a.row.id); /* lineage goes on through the create */
}

static void damage(struct hf_harness *h, const char *id)
{
    hf_auto_free char *manifest = hf_xasprintf("%s/pool/snapshots/%s/manifest", h->dir, id);
    assert_int_equal(hf_write_file_atomic(manifest, "damaged", 7, 0600), 0);
}

/* ---- fork ---- */

struct forked {
    int done;
    json_t *result;
    struct hf_err err;
};

static void on_forked(void *arg, const json_t *result, const struct hf_err *err)
{
    struct forked *f = arg;
    f->result = result ? json_deep_copy(result) : NULL;
    if (err)
        f->err = *err;
    f->done++;
}

static void test_fork(void **state)
{
    struct hf_harness *h = *state;
    json_auto_t *metadata = json_pack("{s:s, s:s}", "owner", "x", "holdfast.session", "ses_1");
    struct hf_create_req req = hf_harness_req();
    struct hf_created cr = {0};
    req.metadata = metadata;
    hf_sandbox_create(h->c, &req, hf_harness_on_created, &cr, NULL);
    hf_harness_wait(h, &cr.done);
    struct hf_sandbox *sb = hf_sandbox_find(h->c, "default", cr.id);
    struct forked f = {0};
    const struct hf_fork_ask ask = {.count = 9, .timeout_s = 60, .memory = true};
    h->fake->create_ms = 5;
    assert_non_null(hf_fork_begin(sb, &ask, on_forked, &f, NULL));
    hf_harness_wait(h, &f.done);
    assert_int_equal(json_array_size(f.result), 9);
    for (size_t i = 0; i < 9; i++) {
        const json_t *child = json_object_get(json_array_get(f.result, i), "sandbox");
        struct hf_sandbox *c =
            hf_sandbox_find(h->c, "default", json_string_value(json_object_get(child, "sandboxID")));
        assert_non_null(c);
        assert_string_not_equal(c->row.id, sb->row.id);
        assert_string_equal(json_string_value(json_object_get(c->metadata, "owner")), "x");
        assert_string_equal(json_string_value(json_object_get(c->metadata, "holdfast.forked-from")),
                            sb->row.id);
        assert_null(json_object_get(c->metadata, "holdfast.session"));
        assert_string_equal(c->row.session_id, "");
        assert_int_equal(c->row.timeout_s, 60);
    }
    json_decref(f.result);
    assert_int_equal(h->fake->saves, 1); /* one barrier */
    assert_int_equal(rows(h), 0);        /* and nothing of it is left */
    assert_int_equal(sb->state, HF_RUNNING);
}

static void test_fork_errors(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    struct forked f = {0};
    struct hf_err err = {0};
    const struct hf_fork_ask ask = {.count = 3, .timeout_s = 60, .memory = true};
    h->fake->fail_create = -ENOMEM;
    assert_non_null(hf_fork_begin(sb, &ask, on_forked, &f, NULL));
    hf_harness_wait(h, &f.done);
    assert_int_equal(json_array_size(f.result), 3);
    for (size_t i = 0; i < 3; i++)
        assert_non_null(json_object_get(json_object_get(json_array_get(f.result, i), "error"), "message"));
    json_decref(f.result);
    assert_int_equal(rows(h), 0);
    h->fake->fail_create = 0;
    h->fake->fail_save = -EOPNOTSUPP;
    f = (struct forked){0};
    assert_non_null(hf_fork_begin(sb, &ask, on_forked, &f, NULL));
    hf_harness_wait(h, &f.done);
    assert_int_equal(f.err.r, -EOPNOTSUPP);
    free(sb->row.mounts);
    sb->row.mounts = hf_xstrdup("[{\"name\":\"ws\",\"path\":\"/workspace\",\"kind\":\"image\"}]");
    assert_null(hf_fork_begin(sb, &ask, on_forked, &f, &err));
    assert_int_equal(hf_err_http_status(&err), 409);
    assert_non_null(strstr(err.msg, "\"ws\""));
    const struct hf_fork_ask none = {.count = 1, .timeout_s = 60};
    f = (struct forked){0};
    assert_non_null(hf_fork_begin(sb, &none, on_forked, &f, NULL));
    hf_harness_wait(h, &f.done);
    assert_non_null(json_object_get(json_array_get(f.result, 0), "sandbox"));
    json_decref(f.result);
}

static void test_fork_abandoned(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    struct forked f = {0};
    const struct hf_fork_ask ask = {.count = 8, .timeout_s = 60, .memory = true};
    h->fake->create_ms = 10;
    struct hf_fork *fork = hf_fork_begin(sb, &ask, on_forked, &f, NULL);
    for (int i = 0; i < 200 && h->fake->creates < 3; i++)
        hf_harness_run_ms(h, 5);
    hf_fork_abandon(fork);
    hf_harness_wait(h, &f.done);
    json_decref(f.result);
    for (int i = 0; i < 100 && h->c->map.len > 1; i++)
        hf_harness_run_ms(h, 20);
    assert_int_equal(h->c->map.len, 1); /* the parent */
    assert_true(h->fake->creates < 9);
}

/* ---- rollback ---- */

static struct hf_created roll_back(struct hf_harness *h, struct hf_sandbox *sb,
                                   const struct hf_snapshot_row *to)
{
    struct hf_created cr = {0};
    hf_rollback(sb, to, hf_harness_on_created, &cr);
    hf_harness_wait(h, &cr.done);
    for (int i = 0; i < 100 && h->c->busy; i++)
        hf_harness_run_ms(h, 20);
    return cr;
}

static void test_rollback(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    struct taken a = good(h, sb, &full);
    struct hf_box *before = sb->box;
    struct hf_created cr = roll_back(h, sb, &a.row);
    assert_string_equal(cr.id, sb->row.id);
    assert_int_equal(sb->state, HF_RUNNING);
    assert_int_equal(sb->row.generation, 2);
    assert_ptr_not_equal(sb->box, before);
    assert_int_equal(hf_fake_count(h->run_dir), 1);
    assert_int_equal(rows(h), 1); /* the snapshot; the copy is gone */
    assert_string_equal(sb->row.pause_id, "");
    assert_int_equal(h->fake->saves, 1); /* nothing was saved for it */
}

static void test_rollback_fails(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    struct taken a = good(h, sb, &full);
    struct hf_box *before = sb->box;
    h->fake->fail_create = -EIO;
    struct hf_created cr = roll_back(h, sb, &a.row);
    assert_int_equal(cr.err.r, -EIO);
    assert_int_equal(sb->state, HF_RUNNING);
    assert_int_equal(sb->row.generation, 1);
    assert_ptr_equal(sb->box, before);
    assert_int_equal(hf_fake_count(h->run_dir), 1);
    assert_int_equal(rows(h), 1);
    h->fake->fail_create = 0;
    damage(h, a.row.id);
    unsigned creates = h->fake->creates;
    cr = roll_back(h, sb, &a.row);
    assert_int_equal(cr.err.r, -EUCLEAN);
    assert_non_null(strstr(cr.err.msg, "disk.img")); /* the part */
    assert_int_equal(h->fake->creates, creates);     /* nothing was stopped or started */
    assert_int_equal(sb->state, HF_RUNNING);
}

/* A resume that comes between the failure and the way back gets the old state, not the new one again. */
static void test_rollback_fails_and_traffic_comes(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    struct taken a = good(h, sb, &full);
    struct hf_box *before = sb->box;
    struct hf_created cr = {0}, resumed = {0};
    h->fake->fail_create = -EIO;
    hf_rollback(sb, &a.row, hf_harness_on_created, &cr);
    while (!sb->driver_busy || sb->state != HF_PAUSED)
        (void)uv_run(&h->loop, UV_RUN_ONCE);
    h->fake->fail_create = 0;
    unsigned creates = h->fake->creates;
    hf_sandbox_resume(sb, 60, "traffic", hf_harness_on_created, &resumed);
    hf_harness_wait(h, &cr.done);
    hf_harness_wait(h, &resumed.done);
    assert_int_equal(cr.err.r, -EIO);
    assert_int_equal(resumed.err.r, 0);
    assert_ptr_equal(sb->box, before);
    assert_int_equal(sb->state, HF_RUNNING);
    assert_int_equal(h->fake->creates, creates);
}

/* Two boxes can't have the volume: the present state is saved first, and taken up again at a failure. */
static void test_rollback_with_volume(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    free(sb->row.mounts);
    sb->row.mounts = hf_xstrdup("[{\"name\":\"ws\",\"path\":\"/workspace\",\"kind\":\"image\"}]");
    struct taken a = good(h, sb, &full);
    struct hf_created cr = roll_back(h, sb, &a.row);
    assert_string_equal(cr.id, sb->row.id);
    assert_int_equal(sb->state, HF_RUNNING);
    assert_int_equal(h->fake->saves, 2);
    assert_int_equal(rows(h), 1);
    h->fake->fail_save = -EOPNOTSUPP; /* the present state can't be saved, so it is not left */
    cr = roll_back(h, sb, &a.row);
    assert_int_equal(hf_err_http_status(&cr.err), 409);
    assert_int_equal(sb->state, HF_RUNNING);
    assert_int_equal(hf_fake_count(h->run_dir), 1);
    assert_int_equal(rows(h), 1);
}

/* ---- policies ---- */

static void test_policy_document(void **state)
{
    static const struct {
        const char *body;
        int status;
    } cases[] = {
        {"{}", 0},
        {"{\"every_s\":0,\"after_step\":true}", 0},
        {"{\"every_s\":9}", 400},
        {"{\"every_s\":31536001}", 400},
        {"{\"keep_count\":0}", 400},
        {"{\"keep_count\":1001}", 400},
        {"{\"keep_age_s\":-1}", 400},
        {"{\"kind\":\"half\"}", 400},
        {"{\"after_step\":\"yes\"}", 400},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        json_auto_t *body = json_loads(cases[i].body, 0, NULL), *policy = NULL;
        struct hf_err err = {0};
        int r = hf_snapshot_policy_resolve(body, &policy, &err);
        assert_int_equal(r < 0 ? hf_err_http_status(&err) : 0, cases[i].status);
        if (i == 0) {
            assert_int_equal(json_integer_value(json_object_get(policy, "every_s")), HF_POLICY_EVERY_S);
            assert_int_equal(json_integer_value(json_object_get(policy, "keep_count")), HF_POLICY_KEEP);
            assert_false(json_is_true(json_object_get(policy, "after_step")));
        }
    }
}

static void set_policy(struct hf_harness *h, const char *sandbox_id, const char *policy, int64_t last_ms)
{
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_snapshot_policy(b, sandbox_id, "default", policy, last_ms);
    hf_meta_commit(h->meta, b, 0, NULL, NULL);
    hf_harness_run_ms(h, 30);
}

static void count_policy(void *arg, const struct hf_snapshot_row *s)
{
    *(int *)arg += strcmp(s->purpose, "policy") == 0;
}

static int policy_rows(struct hf_harness *h)
{
    int n = 0;
    assert_int_equal(hf_each_snapshot(h->meta, NULL, NULL, NULL, 0, "", 1000, count_policy, &n), 0);
    return n;
}

static void test_steps_and_retention(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    struct taken t = {0};
    assert_false(hf_snapshot_step(sb, on_taken, &t)); /* it has no policy */
    set_policy(h, sb->row.id, "{\"every_s\":0,\"after_step\":true,\"kind\":\"full\",\"keep_count\":2}", 0);
    struct taken mine = good(h, sb, &full);
    for (int i = 0; i < 4; i++) {
        h->fake->disk_writes++;
        t = (struct taken){0};
        assert_true(hf_snapshot_step(sb, on_taken, &t));
        hf_harness_wait(h, &t.done);
        assert_false(t.clean);
    }
    t = (struct taken){0};
    assert_true(hf_snapshot_step(sb, on_taken, &t));
    hf_harness_wait(h, &t.done);
    assert_true(t.clean);
    for (int i = 0; i < 100 && policy_rows(h) > 2; i++)
        hf_harness_run_ms(h, 20);
    assert_int_equal(policy_rows(h), 2);
    assert_true(has_row(h, mine.row.id)); /* not the policy's to delete */
}

static void test_timed(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    set_policy(h, sb->row.id, "{\"every_s\":10,\"kind\":\"disk\",\"keep_count\":5}", 1);
    hf_snapshot_policies_start(h->c);
    for (int i = 0; i < 100 && policy_rows(h) < 1; i++)
        hf_harness_run_ms(h, 50);
    assert_int_equal(policy_rows(h), 1);
    hf_harness_run_ms(h, 2 * HF_POLICY_TICK_MS);
    assert_int_equal(policy_rows(h), 1); /* the next one is not due */
}

#define T(name) cmocka_unit_test_setup_teardown(name, hf_harness_setup, hf_harness_teardown)

int main(void)
{
    hf_log_set_level(HF_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        T(test_take),
        T(test_one_at_a_time),
        T(test_names_move),
        T(test_failures_leave_nothing),
        T(test_killed_meanwhile),
        T(test_clean),
        T(test_delete),
        T(test_pins),
        T(test_recover),
        T(test_fill),
        T(test_fork),
        T(test_fork_errors),
        T(test_fork_abandoned),
        T(test_rollback),
        T(test_rollback_fails),
        T(test_rollback_fails_and_traffic_comes),
        T(test_rollback_with_volume),
        cmocka_unit_test(test_policy_document),
        T(test_steps_and_retention),
        T(test_timed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
