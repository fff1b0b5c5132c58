/* Store: schema, batches, group commit, reads, cursors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "base/clock.h"
#include "base/id.h"
#include "base/path.h"
#include "store/meta.h"

struct env {
    char dir[64];
    uv_loop_t loop;
    struct hf_meta *m;
    int called, failed;
    int last_r;
    int order[512];
};

static int setup(void **state)
{
    struct env *e = hf_new(struct env);
    (void)snprintf(e->dir, sizeof(e->dir), "/tmp/hf-store-XXXXXX");
    assert_non_null(mkdtemp(e->dir));
    assert_int_equal(uv_loop_init(&e->loop), 0);
    struct hf_err err = {0};
    if (hf_meta_open(e->dir, &e->loop, &e->m, &err) < 0)
        fail_msg("%s", err.msg);
    *state = e;
    return 0;
}

static void reopen(struct env *e)
{
    if (e->m)
        hf_meta_close(e->m, NULL, NULL);
    (void)uv_run(&e->loop, UV_RUN_DEFAULT);
    struct hf_err err = {0};
    if (hf_meta_open(e->dir, &e->loop, &e->m, &err) < 0)
        fail_msg("%s", err.msg);
}

static int teardown(void **state)
{
    struct env *e = *state;
    if (e->m)
        hf_meta_close(e->m, NULL, NULL);
    (void)uv_run(&e->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&e->loop), 0);
    assert_int_equal(hf_remove_tree(e->dir), 0);
    free(e);
    return 0;
}

static void on_done(void *arg, int r, const struct hf_err *err)
{
    struct env *e = arg;
    e->called++;
    e->last_r = r;
    if (r < 0)
        e->failed++;
}

static void wait_for(struct env *e, int n)
{
    while (e->called < n)
        (void)uv_run(&e->loop, UV_RUN_ONCE);
}

static int commit(struct env *e, struct hf_meta_batch *b)
{
    int n = e->called + 1;
    hf_meta_commit(e->m, b, 0, on_done, e);
    wait_for(e, n);
    return e->last_r;
}

static struct hf_sandbox_row sandbox(const char *id, int64_t created)
{
    struct hf_sandbox_row s = {.created_ms = created, .cpu_millis = 2000, .timeout_s = 15, .epoch = 3};
    (void)snprintf(s.id, sizeof(s.id), "%s", id);
    (void)snprintf(s.tenant, sizeof(s.tenant), "default");
    (void)snprintf(s.state, sizeof(s.state), "creating");
    s.metadata = (char *)(uintptr_t) "{\"a\":\"b\"}";
    return s;
}

static void test_private_and_reopen(void **state)
{
    struct env *e = *state;
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", e->dir, HF_META_DB_NAME);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    unsigned char a[HF_META_SEED_LEN], b[HF_META_SEED_LEN];
    hf_meta_seed(e->m, a);
    reopen(e);
    hf_meta_seed(e->m, b);
    assert_memory_equal(a, b, sizeof(a));
}

static void test_newer_schema_is_refused(void **state)
{
    struct env *e = *state;
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", e->dir, HF_META_DB_NAME);
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 99", NULL, NULL, NULL), SQLITE_OK);
    (void)sqlite3_close(db);
    struct hf_meta *m = NULL;
    struct hf_err err = {0};
    assert_int_equal(hf_meta_open(e->dir, NULL, &m, &err), -EPROTO);
    assert_non_null(strstr(err.msg, "newer holdfast"));
    assert_null(m);
}

static void test_sandbox_round_trip(void **state)
{
    struct env *e = *state;
    struct hf_meta_batch *b = hf_meta_batch_new();
    struct hf_sandbox_row s = sandbox("i1", 5);
    hf_put_sandbox(b, &s);
    assert_int_equal(commit(e, b), 0);
    hf_auto_sandbox_row struct hf_sandbox_row got = {0};
    assert_int_equal(hf_get_sandbox(e->m, "i1", &got), 1);
    assert_string_equal(got.state, "creating");
    assert_string_equal(got.metadata, "{\"a\":\"b\"}");
    assert_int_equal(got.cpu_millis, 2000);
    assert_int_equal(got.epoch, 3);
    assert_int_equal(got.ended_ms, 0);
    assert_int_equal(hf_get_sandbox(e->m, "nope", &got), 0);

    b = hf_meta_batch_new();
    hf_set_sandbox_state(b, "i1", "running", "killing", "api", "", 9);
    assert_int_equal(commit(e, b), -ESTALE);
    b = hf_meta_batch_new();
    hf_set_sandbox_state(b, "i1", "creating", "failed", "create-failed", "why", 9);
    assert_int_equal(commit(e, b), 0);
    hf_sandbox_row_done(&got);
    assert_int_equal(hf_get_sandbox(e->m, "i1", &got), 1);
    assert_string_equal(got.cause, "create-failed");
    assert_int_equal(got.ended_ms, 9);
}

static void test_batch_is_atomic(void **state)
{
    struct env *e = *state;
    struct hf_sandbox_row s = sandbox("i1", 5);
    struct hf_event_row ev = {.kind = "sandbox", .tenant = "default", .sandbox_id = "i1"};
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_sandbox(b, &s);
    hf_put_event(b, &ev);
    hf_put_sandbox(b, &s); /* the same id twice */
    assert_int_equal(commit(e, b), -EEXIST);
    hf_auto_sandbox_row struct hf_sandbox_row got = {0};
    assert_int_equal(hf_get_sandbox(e->m, "i1", &got), 0);
    /* One bad batch leaves the others of its group alone. */
    for (int i = 0; i < 20; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "j%d", i / 2);
        s = sandbox(id, i);
        b = hf_meta_batch_new();
        hf_put_sandbox(b, &s);
        hf_meta_commit(e->m, b, i % 3 ? HF_META_LAZY : 0, on_done, e);
    }
    e->failed = 0;
    wait_for(e, 21);
    assert_int_equal(e->failed, 10);
}

struct order {
    int *next, mine;
};

static void in_order(void *arg, int r, const struct hf_err *err)
{
    struct order *o = arg;
    assert_int_equal(r, 0);
    assert_int_equal(*o->next, o->mine);
    (*o->next)++;
}

static void test_callbacks_in_order(void **state)
{
    struct env *e = *state;
    enum { N = 500 };
    static struct order orders[N];
    int next = 0;
    for (int i = 0; i < N; i++) {
        orders[i] = (struct order){&next, i};
        struct hf_meta_batch *b = hf_meta_batch_new();
        hf_put_tenant(b, "t", i);
        hf_meta_commit(e->m, b, 0, in_order, &orders[i]);
    }
    while (next < N)
        (void)uv_run(&e->loop, UV_RUN_ONCE);
}

static void test_close_drains(void **state)
{
    struct env *e = *state;
    for (int i = 0; i < 50; i++) {
        struct hf_meta_batch *b = hf_meta_batch_new();
        hf_put_tenant(b, "drain", i);
        hf_meta_commit(e->m, b, 0, on_done, e);
    }
    hf_meta_close(e->m, NULL, NULL);
    e->m = NULL;
    assert_int_equal(e->called, 50);
    assert_int_equal(e->failed, 0);
}

static void count_event(void *arg, const struct hf_event_row *ev)
{
    struct env *e = arg;
    e->order[e->called++ % 512] = (int)ev->time_ms;
}

static void test_events(void **state)
{
    struct env *e = *state;
    struct hf_meta_batch *b = hf_meta_batch_new();
    for (int i = 1; i <= 10; i++) {
        struct hf_event_row ev = {.kind = "k", .tenant = "default", .time_ms = i};
        (void)snprintf(ev.sandbox_id, sizeof(ev.sandbox_id), "i%d", i % 2);
        hf_put_event(b, &ev);
    }
    struct hf_event_row other = {.kind = "k", .tenant = "other", .sandbox_id = "i1", .time_ms = 99};
    hf_put_event(b, &other);
    assert_int_equal(commit(e, b), 0);
    e->called = 0;
    assert_int_equal(hf_each_event(e->m, "default", NULL, -1, 3, count_event, e), 0);
    assert_int_equal(e->called, 3);
    assert_int_equal(e->order[0], 8);
    assert_int_equal(e->order[2], 10);
    e->called = 0;
    assert_int_equal(hf_each_event(e->m, "default", "i1", 0, 100, count_event, e), 0);
    assert_int_equal(e->called, 5);
    e->called = 0;
    assert_int_equal(hf_each_event(e->m, "default", "i1", 5, 100, count_event, e), 0);
    assert_int_equal(e->called, 2);
}

static void count_sandbox(void *arg, const struct hf_sandbox_row *s)
{
    struct env *e = arg;
    e->order[e->called++ % 512] = (int)strtol(s->id + 1, NULL, 10);
}

static void test_pages_and_prune(void **state)
{
    struct env *e = *state;
    struct hf_meta_batch *b = hf_meta_batch_new();
    for (int i = 1; i <= 9; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "i%d", i);
        struct hf_sandbox_row s = sandbox(id, i / 2); /* pairs share a time */
        hf_put_sandbox(b, &s);
        if (i <= 4)
            hf_set_sandbox_state(b, id, "creating", "killed", "api", "", i);
    }
    assert_int_equal(commit(e, b), 0);
    e->called = 0;
    assert_int_equal(hf_each_sandbox(e->m, "default", 0, "", 3, count_sandbox, e), 0);
    assert_int_equal(e->called, 3);
    assert_int_equal(e->order[0], 8);
    assert_int_equal(e->order[2], 6);
    e->called = 0;
    assert_int_equal(hf_each_sandbox(e->m, "default", 3, "i6", 100, count_sandbox, e), 0);
    assert_int_equal(e->order[0], 7);
    assert_int_equal(e->called, 6);
    e->called = 0;
    assert_int_equal(hf_each_live_sandbox(e->m, count_sandbox, e), 0);
    assert_int_equal(e->called, 5);
    b = hf_meta_batch_new();
    hf_prune(b, 4, 0);
    assert_int_equal(commit(e, b), 0);
    e->called = 0;
    assert_int_equal(hf_each_sandbox(e->m, "default", 0, "", 100, count_sandbox, e), 0);
    assert_int_equal(e->called, 6);
}

static void test_keys(void **state)
{
    struct env *e = *state;
    struct hf_key_row k = {.id = "key_1", .tenant = "acme", .name = "ci", .prefix = "e2b_12345678"};
    memset(k.hash, 7, sizeof(k.hash));
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_tenant(b, "acme", 1);
    hf_put_key(b, &k);
    assert_int_equal(commit(e, b), 0);
    struct hf_key_row got;
    assert_int_equal(hf_get_key(e->m, k.hash, &got), 1);
    assert_string_equal(got.tenant, "acme");
    b = hf_meta_batch_new();
    hf_set_key_revoked(b, "key_1", 5);
    assert_int_equal(commit(e, b), 0);
    assert_int_equal(hf_get_key(e->m, k.hash, &got), 0);
}

/* A second process (the CLI) writes beside the daemon. */
static void test_second_writer(void **state)
{
    struct env *e = *state;
    struct hf_meta *cli = NULL;
    struct hf_err err = {0};
    assert_int_equal(hf_meta_open(e->dir, NULL, &cli, &err), 0);
    struct hf_key_row k = {.id = "key_2", .tenant = "acme", .name = "x", .prefix = "e2b_"};
    memset(k.hash, 9, sizeof(k.hash));
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_tenant(b, "acme", 1);
    hf_put_key(b, &k);
    assert_int_equal(hf_meta_commit_now(cli, b, &err), 0);
    hf_meta_close(cli, NULL, NULL);
    struct hf_key_row got;
    assert_int_equal(hf_get_key(e->m, k.hash, &got), 1);
}

static void test_sessions(void **state)
{
    struct env *e = *state;
    struct hf_session_row s = {.id = "ses_1", .tenant = "default", .key = "a:b:c", .state = "open"};
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_session(b, &s);
    assert_int_equal(commit(e, b), 0);
    (void)snprintf(s.id, sizeof(s.id), "ses_2");
    b = hf_meta_batch_new();
    hf_put_session(b, &s);
    assert_int_equal(commit(e, b), -EEXIST);
    b = hf_meta_batch_new();
    hf_bind_session(b, "ses_1", 0, "i5", 10);
    assert_int_equal(commit(e, b), 0);
    b = hf_meta_batch_new();
    hf_bind_session(b, "ses_1", 0, "i6", 10); /* somebody else bound meanwhile */
    assert_int_equal(commit(e, b), -ESTALE);
    hf_auto_session_row struct hf_session_row got = {0};
    assert_int_equal(hf_get_session(e->m, "default", "a:b:c", &got), 1);
    assert_string_equal(got.sandbox_id, "i5");
    assert_int_equal(got.epoch, 1);
    hf_session_row_done(&got);
    assert_int_equal(hf_get_session(e->m, "other", "a:b:c", &got), 0);
    assert_int_equal(hf_get_session(e->m, "other", "ses_1", &got), 0);
}

static void test_template_names(void **state)
{
    struct env *e = *state;
    struct hf_meta_batch *b = hf_meta_batch_new();
    struct hf_template_row t = {
        .id = "t1", .tenant = "default", .name = "base", .state = "ready", .is_public = true};
    hf_put_template(b, &t);
    hf_put_template_name(b, "default", "base", "default", "t1");
    (void)snprintf(t.id, sizeof(t.id), "t2");
    hf_put_template(b, &t);
    hf_put_template_name(b, "default", "base", "v2", "t2");
    assert_int_equal(commit(e, b), 0);
    struct hf_template_row got;
    assert_int_equal(hf_get_template_by_name(e->m, "default", "base", "v2", &got), 1);
    assert_string_equal(got.id, "t2");
    assert_int_equal(hf_get_template_by_name(e->m, "default", "base", "v3", &got), 0);
    assert_int_equal(hf_get_template_by_name(e->m, "other", "base", NULL, &got), 0);
    assert_int_equal(hf_get_public_template_by_name(e->m, "base", "default", &got), 1);
    b = hf_meta_batch_new();
    hf_set_template_deleting(b, "t2");
    assert_int_equal(commit(e, b), 0);
    assert_int_equal(hf_get_template_by_name(e->m, "default", "base", "v2", &got), 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_private_and_reopen),
        T(test_newer_schema_is_refused),
        T(test_sandbox_round_trip),
        T(test_batch_is_atomic),
        T(test_callbacks_in_order),
        T(test_close_drains),
        T(test_events),
        T(test_pages_and_prune),
        T(test_keys),
        T(test_second_writer),
        T(test_sessions),
        T(test_template_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
