/* Store: rows of the network part; migration from the first schema. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "env.h"
#include "store/net.h"

#define TEXT(s) ((char *)(uintptr_t)(s))

static void put_policy(struct env *e, const char *tenant, const char *name, const char *doc, int64_t version)
{
    struct hf_policy_row p = {
        .doc = TEXT(doc), .version = version, .created_ms = 10 * version, .updated_ms = 10 * version};
    (void)snprintf(p.tenant, sizeof(p.tenant), "%s", tenant);
    (void)snprintf(p.name, sizeof(p.name), "%s", name);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_policy(b, &p);
    now(e, b);
}

struct seen {
    int n, stop_at;
    char names[256];
};

static bool see_policy(void *arg, const struct hf_policy_row *p)
{
    struct seen *s = arg;
    s->n++;
    (void)snprintf(s->names + strlen(s->names), sizeof(s->names) - strlen(s->names), "%s,", p->name);
    return s->n != s->stop_at;
}

static void test_policies(void **state)
{
    struct env *e = *state;
    put_policy(e, "a", "search", "{\"x\":1}", 1);
    put_policy(e, "a", "crawl", "{}", 1);
    put_policy(e, "b", "crawl", "{}", 1);
    put_policy(e, "a", "search", "{\"x\":2}", 2);
    struct hf_policy_row p = {0};
    assert_int_equal(hf_get_policy(e->m, "a", "search", &p), 1);
    assert_string_equal(p.doc, "{\"x\":2}");
    assert_int_equal(p.version, 2);
    assert_int_equal(p.created_ms, 10); /* the first one's */
    assert_int_equal(p.updated_ms, 20);
    hf_policy_row_done(&p);
    assert_int_equal(hf_get_policy(e->m, "b", "search", &p), 0);
    struct seen s = {0};
    assert_int_equal(hf_each_policy(e->m, "a", see_policy, &s), 0);
    assert_string_equal(s.names, "crawl,search,");
    s = (struct seen){.stop_at = 1};
    assert_int_equal(hf_each_policy(e->m, "a", see_policy, &s), 0);
    assert_int_equal(s.n, 1);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_del_policy(b, "a", "crawl");
    now(e, b);
    assert_int_equal(hf_get_policy(e->m, "a", "crawl", &p), 0);
    assert_int_equal(hf_get_policy(e->m, "b", "crawl", &p), 1);
    hf_policy_row_done(&p);
}

static void put_secret(struct env *e, const char *id, const char *tenant, const char *name, int64_t version)
{
    unsigned char sealed[] = {1, 0, 2, 0, (unsigned char)version};
    struct hf_secret_row s = {.metadata = TEXT("{\"k\":\"v\"}"),
                              .sealed = sealed,
                              .sealed_n = sizeof(sealed),
                              .version = version,
                              .created_ms = version,
                              .updated_ms = version};
    (void)snprintf(s.id, sizeof(s.id), "%s", id);
    (void)snprintf(s.tenant, sizeof(s.tenant), "%s", tenant);
    (void)snprintf(s.name, sizeof(s.name), "%s", name);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_secret(b, &s);
    now(e, b);
}

static bool count_secret(void *arg, const struct hf_secret_row *s)
{
    (*(int *)arg)++;
    assert_string_equal(s->tenant, "a");
    return true;
}

static void test_secrets(void **state)
{
    struct env *e = *state;
    put_secret(e, "sec_1", "a", "openai", 1);
    put_secret(e, "sec_2", "b", "openai", 1);
    put_secret(e, "sec_1", "a", "openai", 2);
    struct hf_secret_row s = {0};
    assert_int_equal(hf_get_secret(e->m, "a", "sec_1", &s), 1);
    assert_string_equal(s.name, "openai");
    assert_string_equal(s.metadata, "{\"k\":\"v\"}");
    assert_int_equal(s.sealed_n, 5);
    assert_memory_equal(s.sealed, "\1\0\2\0\2", 5);
    assert_int_equal(s.version, 2);
    assert_int_equal(s.created_ms, 1);
    hf_secret_row_done(&s);
    /* another tenant's, by id and by name */
    assert_int_equal(hf_get_secret(e->m, "b", "sec_1", &s), 0);
    assert_int_equal(hf_get_secret(e->m, "c", "openai", &s), 0);
    int n = 0;
    assert_int_equal(hf_each_secret(e->m, "a", count_secret, &n), 0);
    assert_int_equal(n, 1);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_del_secret(b, "a", "openai");
    now(e, b);
    assert_int_equal(hf_get_secret(e->m, "a", "openai", &s), 0);
    assert_int_equal(hf_get_secret(e->m, "b", "openai", &s), 1);
    hf_secret_row_done(&s);
}

static void test_authority(void **state)
{
    struct env *e = *state;
    unsigned char key[] = {9, 0, 8};
    struct hf_ca_row c = {.tenant = "a", .cert = TEXT("PEM"), .sealed_key = key, .sealed_key_n = 3};
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_ca(b, &c);
    now(e, b);
    /* a second one would break what boxes trust already */
    b = hf_meta_batch_new();
    hf_put_ca(b, &c);
    struct hf_err err = {0};
    assert_int_equal(hf_meta_commit_now(e->m, b, &err), -EEXIST);
    struct hf_ca_row got = {0};
    assert_int_equal(hf_get_ca(e->m, "a", &got), 1);
    assert_string_equal(got.cert, "PEM");
    assert_int_equal(got.sealed_key_n, 3);
    assert_memory_equal(got.sealed_key, key, 3);
    hf_ca_row_done(&got);
    assert_int_equal(hf_get_ca(e->m, "b", &got), 0);
}

static void put_outbound(struct hf_meta_batch *b, const char *tenant, const char *sandbox,
                         const char *session, int64_t time_ms)
{
    struct hf_outbound_row o = {.time_ms = time_ms, .kind = "request", .denied = true, .doc = TEXT("{}")};
    (void)snprintf(o.tenant, sizeof(o.tenant), "%s", tenant);
    (void)snprintf(o.sandbox_id, sizeof(o.sandbox_id), "%s", sandbox);
    (void)snprintf(o.session_id, sizeof(o.session_id), "%s", session);
    hf_put_outbound(b, &o);
}

struct rows {
    int n;
    int64_t first, last;
};

static bool see_outbound(void *arg, const struct hf_outbound_row *o)
{
    struct rows *r = arg;
    assert_true(o->denied);
    assert_true(o->time_ms > r->last);
    if (r->n++ == 0)
        r->first = o->time_ms;
    r->last = o->time_ms;
    return true;
}

static struct rows each(struct env *e, const char *tenant, const char *sandbox, const char *session,
                        int64_t after, int limit)
{
    struct rows r = {0};
    assert_int_equal(hf_each_outbound(e->m, tenant, sandbox, session, after, limit, see_outbound, &r), 0);
    return r;
}

static void test_outbound(void **state)
{
    struct env *e = *state;
    char file[HF_ROW_ID];
    int64_t offset = 0;
    assert_int_equal(hf_get_outbound_cursor(e->m, file, &offset), 0);
    struct hf_meta_batch *b = hf_meta_batch_new();
    for (int64_t i = 1; i <= 10; i++)
        put_outbound(b, i > 8 ? "b" : "a", i % 2 ? "i1" : "i2", i == 4 ? "s1" : "", i);
    hf_set_outbound_cursor(b, "records-1.jsonl", 100);
    now(e, b);
    assert_int_equal(hf_get_outbound_cursor(e->m, file, &offset), 1);
    assert_string_equal(file, "records-1.jsonl");
    assert_int_equal(offset, 100);
    assert_int_equal(each(e, "a", NULL, NULL, 0, 100).n, 8);
    assert_int_equal(each(e, "a", "i1", NULL, 0, 100).n, 4);
    assert_int_equal(each(e, "a", NULL, "s1", 0, 100).n, 1);
    assert_int_equal(each(e, "a", NULL, NULL, 5, 100).n, 3);
    assert_int_equal(each(e, "a", NULL, NULL, 0, 3).last, 3);
    assert_int_equal(each(e, "a", NULL, NULL, -1, 3).first, 6); /* the newest three, in order */
    b = hf_meta_batch_new();
    hf_prune_outbound(b, 4, 1000);
    hf_set_outbound_cursor(b, "records-2.jsonl", 0);
    now(e, b);
    assert_int_equal(each(e, "a", NULL, NULL, 0, 100).first, 4);
    assert_int_equal(hf_get_outbound_cursor(e->m, file, &offset), 1);
    assert_string_equal(file, "records-2.jsonl");
    b = hf_meta_batch_new();
    hf_prune_outbound(b, 0, 3);
    now(e, b);
    assert_int_equal(each(e, "a", NULL, NULL, 0, 100).n + each(e, "b", NULL, NULL, 0, 100).n, 3);
}

/* A database of the release before this one: its rows stay, the new tables come. */
static void test_migrates(void **state)
{
    struct env *e = *state;
    char path[128];
    hf_meta_close(e->m, NULL, NULL);
    (void)snprintf(path, sizeof(path), "%s/%s", e->dir, HF_META_DB_NAME);
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db,
                     "DROP TABLE policies; DROP TABLE secrets; DROP TABLE authorities; DROP TABLE outbound;"
                     "DROP TABLE outbound_cursor; DROP TABLE snapshots; DROP TABLE snapshot_names;"
                     "DROP TABLE snapshot_policies;"
                     "DROP TABLE builds; DROP TABLE build_logs; DROP TABLE layers;"
                     "ALTER TABLE sandboxes DROP COLUMN generation;"
                     "ALTER TABLE sandboxes DROP COLUMN pause_depth;"
                     "ALTER TABLE sandboxes DROP COLUMN pause_id;"
                     "ALTER TABLE sandboxes DROP COLUMN paused_ms;"
                     "ALTER TABLE sandboxes DROP COLUMN snapshot_id;"
                     "ALTER TABLE sandboxes DROP COLUMN env_sealed;"
                     "ALTER TABLE templates DROP COLUMN meta; ALTER TABLE templates DROP COLUMN build_id;"
                     "ALTER TABLE template_names DROP COLUMN created_ms;"
                     "ALTER TABLE volumes DROP COLUMN kind; INSERT INTO tenants VALUES('old', 5);"
                     "PRAGMA user_version = 1",
                     NULL, NULL, NULL),
        SQLITE_OK);
    (void)sqlite3_close(db);
    open_meta(e);
    put_policy(e, "old", "search", "{}", 1);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_key(b, &(struct hf_key_row){.id = "key_1", .tenant = "old", .name = "n"});
    now(e, b); /* the tenant is still there, or the foreign key would refuse it */
}

static void test_sandbox_network(void **state)
{
    struct env *e = *state;
    struct hf_sandbox_row s = {.id = "i1", .tenant = "a", .state = "running", .network = TEXT("{}")};
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_sandbox(b, &s);
    hf_set_sandbox_network(b, "i1", "{\"a\":1}");
    now(e, b);
    hf_auto_sandbox_row struct hf_sandbox_row got = {0};
    assert_int_equal(hf_get_sandbox(e->m, "i1", &got), 1);
    assert_string_equal(got.network, "{\"a\":1}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_policies, setup, teardown),
        cmocka_unit_test_setup_teardown(test_secrets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_authority, setup, teardown),
        cmocka_unit_test_setup_teardown(test_outbound, setup, teardown),
        cmocka_unit_test_setup_teardown(test_migrates, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sandbox_network, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
