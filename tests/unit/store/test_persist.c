/* Store: rows of snapshots, their names and policies, and of pauses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "env.h"
#include "store/persist.h"

#define SET(dst, text) (void)snprintf((dst), sizeof(dst), "%s", (text))

static void put(struct env *e, const char *id, const char *tenant, const char *sandbox, int64_t created_ms)
{
    unsigned char sealed[] = {1, 0, 2};
    struct hf_snapshot_row s = {.generation = 3,
                                .meta = (char *)(uintptr_t) "{\"a\":1}",
                                .env_sealed = sealed,
                                .env_sealed_n = sizeof(sealed),
                                .created_ms = created_ms};
    SET(s.id, id);
    SET(s.tenant, tenant);
    SET(s.purpose, "user");
    SET(s.kind, "full");
    SET(s.state, "creating");
    SET(s.sandbox_id, sandbox);
    SET(s.session_id, "ses_1");
    SET(s.template_id, "t1");
    SET(s.parent_id, "sparent");
    SET(s.detail, "why");
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_snapshot(b, &s);
    now(e, b);
}

static void test_whole(void **state)
{
    struct env *e = *state;
    put(e, "s1", "x", "i1", 5);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_set_snapshot_ready(b, "s1", "disk", 100, 40, 7, 9);
    hf_set_snapshot_meta(b, "s1", "{\"b\":2}");
    hf_put_snapshot_name(b, "x", "n:default", "s1");
    now(e, b);
    hf_meta_close(e->m, NULL, NULL);
    open_meta(e); /* all of it is on the disk */
    hf_auto_snapshot_row struct hf_snapshot_row s = {0};
    assert_int_equal(hf_get_snapshot_by_name(e->m, "x", "n:default", &s), 1);
    assert_string_equal(s.id, "s1");
    assert_string_equal(s.state, "ready");
    assert_string_equal(s.kind, "disk");
    assert_string_equal(s.session_id, "ses_1");
    assert_string_equal(s.template_id, "t1");
    assert_string_equal(s.parent_id, "sparent");
    assert_string_equal(s.detail, "why");
    assert_string_equal(s.meta, "{\"b\":2}");
    assert_int_equal(s.env_sealed_n, 3);
    assert_int_equal(s.env_sealed[2], 2);
    assert_int_equal(s.generation, 3);
    assert_true(s.bytes == 100 && s.exclusive_bytes == 40 && s.frozen_us == 7 && s.total_us == 9);
    hf_auto_snapshot_row struct hf_snapshot_row none = {0};
    assert_int_equal(hf_get_snapshot_by_name(e->m, "y", "n:default", &none), 0);
    assert_int_equal(hf_get_snapshot(e->m, "s2", &none), 0);
}

static void test_ready_only_once(void **state)
{
    struct env *e = *state;
    struct hf_err err = {0};
    put(e, "s1", "x", "i1", 5);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_set_snapshot_ready(b, "s1", "full", 1, 1, 1, 1);
    now(e, b);
    b = hf_meta_batch_new();
    hf_set_snapshot_ready(b, "s1", "full", 2, 2, 2, 2);
    hf_put_snapshot_name(b, "x", "n:default", "s1");
    assert_int_equal(hf_meta_commit_now(e->m, b, &err), -ESTALE);
    hf_auto_snapshot_row struct hf_snapshot_row none = {0};
    assert_int_equal(hf_get_snapshot_by_name(e->m, "x", "n:default", &none), 0); /* nothing of the batch */
}

static void add(void *arg, const char *name)
{
    char *out = arg;
    (void)snprintf(out + strlen(out), 100 - strlen(out), "%s,", name);
}

static void test_names_and_deletion(void **state)
{
    struct env *e = *state;
    char names[100] = "";
    put(e, "s1", "x", "i1", 5);
    put(e, "s2", "x", "i1", 6);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_snapshot_name(b, "x", "a:default", "s1");
    hf_put_snapshot_name(b, "x", "b:default", "s1");
    hf_put_snapshot_name(b, "x", "a:default", "s2"); /* moves */
    now(e, b);
    assert_int_equal(hf_each_snapshot_name(e->m, "s1", add, names), 0);
    assert_string_equal(names, "b:default,");
    b = hf_meta_batch_new();
    hf_set_snapshot_deleting(b, "s1");
    now(e, b);
    hf_auto_snapshot_row struct hf_snapshot_row s = {0}, none = {0};
    assert_int_equal(hf_get_snapshot_by_name(e->m, "x", "b:default", &none), 0); /* at once */
    assert_int_equal(hf_get_snapshot(e->m, "s1", &s), 1);
    assert_string_equal(s.state, "deleting");
    b = hf_meta_batch_new();
    hf_del_snapshot(b, "s1");
    hf_del_snapshot(b, "s2");
    now(e, b);
    assert_int_equal(hf_get_snapshot(e->m, "s1", &none), 0);
    assert_int_equal(hf_get_snapshot_by_name(e->m, "x", "a:default", &none), 0);
}

static void see(void *arg, const struct hf_snapshot_row *s)
{
    add(arg, s->id);
}

static void test_pages(void **state)
{
    struct env *e = *state;
    static const struct {
        const char *id, *tenant, *sandbox;
        int64_t at;
    } all[] = {{"s1", "x", "i1", 10},
               {"s2", "x", "i1", 20},
               {"s3", "x", "i2", 20},
               {"s4", "x", "i2", 30},
               {"s5", "y", "i3", 40}};
    for (size_t i = 0; i < HF_ARRAY_LEN(all); i++)
        put(e, all[i].id, all[i].tenant, all[i].sandbox, all[i].at);
    static const struct {
        const char *tenant, *sandbox, *purpose, *id;
        int64_t before;
        int limit;
        const char *want;
    } lists[] = {
        {"x", NULL, NULL, "", 0, 10, "s4,s2,s3,s1,"},
        {NULL, NULL, NULL, "", 0, 10, "s5,s4,s2,s3,s1,"},
        {"x", NULL, NULL, "", 0, 2, "s4,s2,"},
        {"x", NULL, NULL, "s2", 20, 10, "s3,s1,"}, /* of the same millisecond by their ids */
        {"x", "i1", NULL, "", 0, 10, "s2,s1,"},
        {"x", NULL, "policy", "", 0, 10, ""},
        {"x", "i3", NULL, "", 0, 10, ""}, /* another tenant's */
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(lists); i++) {
        char seen[100] = "";
        assert_int_equal(hf_each_snapshot(e->m, lists[i].tenant, lists[i].sandbox, lists[i].purpose,
                                          lists[i].before, lists[i].id, lists[i].limit, see, seen),
                         0);
        assert_string_equal(seen, lists[i].want);
    }
}

static void see_policy(void *arg, const struct hf_snapshot_policy_row *p)
{
    char text[400];
    (void)snprintf(text, sizeof(text), "%s %s %s %lld", p->sandbox_id, p->tenant, p->policy,
                   (long long)p->last_ms);
    add(arg, text);
}

static void test_policies(void **state)
{
    struct env *e = *state;
    char seen[100] = "";
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_snapshot_policy(b, "i1", "x", "{}", 1);
    hf_put_snapshot_policy(b, "i2", "x", "{}", 2);
    now(e, b);
    b = hf_meta_batch_new();
    hf_put_snapshot_policy(b, "i1", "x", "{\"k\":1}", 9); /* replaces what it says, not when it last looked */
    hf_set_snapshot_policy_last(b, "i1", 5);
    hf_del_snapshot_policy(b, "i2");
    now(e, b);
    assert_int_equal(hf_each_snapshot_policy(e->m, see_policy, seen), 0);
    assert_string_equal(seen, "i1 x {\"k\":1} 5,");
}

static void test_pause(void **state)
{
    struct env *e = *state;
    struct hf_sandbox_row row = {.created_ms = 1, .generation = 1};
    SET(row.id, "i1");
    SET(row.tenant, "x");
    SET(row.state, "running");
    SET(row.snapshot_id, "sfrom");
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_sandbox(b, &row);
    now(e, b);
    b = hf_meta_batch_new();
    hf_set_sandbox_pause(b, "i1", 4, "cold", "s9", 77);
    now(e, b);
    hf_auto_sandbox_row struct hf_sandbox_row got = {0};
    assert_int_equal(hf_get_sandbox(e->m, "i1", &got), 1);
    assert_int_equal(got.generation, 4);
    assert_string_equal(got.pause_depth, "cold");
    assert_string_equal(got.pause_id, "s9");
    assert_int_equal(got.paused_ms, 77);
    assert_string_equal(got.snapshot_id, "sfrom");
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_whole), T(test_ready_only_once), T(test_names_and_deletion),
        T(test_pages), T(test_policies),        T(test_pause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
