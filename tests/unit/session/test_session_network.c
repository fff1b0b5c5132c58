/* A session's network: kept for the sandboxes to come. The fabric is a fake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/path.h"
#include "client.h"
#include "served_modules.h"
#include "session/session.h"

const struct hf_module *const hf_served_modules[] = {&hf_session_module, NULL};

static struct hf_served srv;

static int group_up(void **state)
{
    hf_served_init(&srv);
    return 0;
}

static int group_down(void **state)
{
    hf_served_done(&srv);
    return 0;
}

/* The answer's body, status checked. New reference. */
static json_t *call(const char *method, const char *path, const char *body, int status)
{
    hf_auto_reply struct hf_reply r = {0};
    hf_http(&srv, srv.key, method, path, NULL, body, &r);
    if (r.status != status)
        fail_msg("%s %s: expected %d, got %d: %s", method, path, status, r.status, r.body ? r.body : "");
    return json_incref(r.json);
}

static json_t *open_key(const char *key, const char *more, int status)
{
    hf_auto_free char *body = hf_xasprintf("{\"key\":\"%s\"%s%s}", key, *more ? "," : "", more);
    return call("POST", "/v1/sessions", body, status);
}

static const char *sandbox_of(const json_t *opened)
{
    return json_string_value(json_object_get(json_object_get(opened, "sandbox"), "id"));
}

/* Ends the sandbox and returns the first entry of its allowOut, "" for none; malloc'ed. */
static char *reached_and_killed(const json_t *opened, bool *ret_internet)
{
    hf_auto_free char *path = hf_xasprintf("/sandboxes/%s", sandbox_of(opened));
    json_auto_t *detail = call("GET", path, NULL, 200);
    const json_t *out = json_object_get(json_object_get(detail, "network"), "allowOut");
    const char *first = json_string_value(json_array_get(out, 0));
    *ret_internet = json_is_true(json_object_get(detail, "allowInternetAccess"));
    json_decref(call("DELETE", path, NULL, 204));
    return hf_xstrdup(first ? first : "");
}

static void expect_open(const char *key, const char *more, const char *first, bool internet)
{
    bool got_internet;
    json_auto_t *opened = open_key(key, more, 201);
    hf_auto_free char *got = reached_and_killed(opened, &got_internet);
    assert_string_equal(got, first);
    assert_int_equal(got_internet, internet);
}

#define CLOSED \
    "\"network\":{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"a.example\"]},\"allow_internet_access\":false"

static void test_kept(void **state)
{
    expect_open("a:b:kept", "\"metadata\":{\"m\":\"1\"}," CLOSED, "a.example", false);
    expect_open("a:b:kept", "", "a.example", false); /* silence is not more */
    json_auto_t *v = call("GET", "/v1/sessions/a:b:kept", NULL, 200);
    const json_t *s = json_object_get(v, "session"), *m = json_object_get(s, "metadata");
    assert_int_equal(json_object_size(m), 1); /* ours is not shown among theirs */
    assert_string_equal(json_string_value(json_object_get(m, "m")), "1");
    assert_int_equal(json_array_size(json_object_get(json_object_get(s, "network"), "allowOut")), 1);
    expect_open("a:b:kept", "\"network\":{\"allowOut\":[\"192.0.2.1\"]}", "192.0.2.1", true);
    expect_open("a:b:kept", "", "192.0.2.1", true);
}

static void test_a_change_is_kept(void **state)
{
    bool internet;
    json_auto_t *opened = open_key("a:b:changed", "", 201);
    hf_auto_free char *path = hf_xasprintf("/sandboxes/%s/network", sandbox_of(opened));
    json_decref(call("PUT", path, "{\"allow_internet_access\":false,\"allowOut\":[\"192.0.2.9\"]}", 204));
    free(reached_and_killed(opened, &internet));
    expect_open("a:b:changed", "", "192.0.2.9", false); /* the next one has not more than this one had */
    json_auto_t *again = open_key("a:b:changed", "", 201);
    hf_auto_free char *refuse = hf_xasprintf("%s/refuse", srv.run_dir);
    hf_auto_free char *other = hf_xasprintf("/sandboxes/%s/network", sandbox_of(again));
    assert_int_equal(hf_write_file_atomic(refuse, "", 0, 0600), 0);
    json_decref(call("PUT", other, "{\"allow_internet_access\":true}", 503));
    assert_int_equal(unlink(refuse), 0);
    free(reached_and_killed(again, &internet));
    expect_open("a:b:changed", "", "192.0.2.9", false); /* what was taken back is not kept */
}

static void test_default(void **state)
{
    expect_open("a:b:default", "", "", true);
}

static void test_policies(void **state)
{
    json_decref(call("PUT", "/v1/policies/models", "{\"allow_out\":[\"api.example\"]}", 201));
    json_auto_t *opened = open_key("a:b:bound", "\"policies\":[\"models\"]", 201);
    hf_auto_free char *path = hf_xasprintf("/v1/sandboxes/%s/network", sandbox_of(opened));
    json_auto_t *network = call("GET", path, NULL, 200);
    const json_t *all = json_object_get(json_object_get(network, "effective"), "allowOut");
    assert_string_equal(json_string_value(json_array_get(all, 0)), "api.example");
    bool internet;
    free(reached_and_killed(opened, &internet));
    assert_false(internet);
    /* The policy is gone: the session does not open without it. */
    json_decref(call("DELETE", "/v1/policies/models", NULL, 204));
    json_decref(open_key("a:b:bound", "", 400));
    expect_open("a:b:bound", "\"policies\":[],\"allow_internet_access\":false", "", false);
}

static void test_templates(void **state)
{
    json_decref(call("PUT", "/v1/policies/of-base", "{\"templates\":[\"base\"]}", 201));
    expect_open("a:b:template", "", "", false); /* bound means restricted */
    json_decref(call("PUT", "/v1/policies/of-base", "{}", 200));
    expect_open("a:b:template", "", "", false); /* … and it is kept */
    expect_open("a:b:free", "", "", true);
}

static void test_refusals(void **state)
{
    static const char *const bad[] = {"\"network\":1",
                                      "\"policies\":\"x\"",
                                      "\"policies\":[\"nobody\"]",
                                      "\"allow_internet_access\":1",
                                      "\"network\":{\"denyOut\":[\"x\"]}",
                                      "\"policies\":[],\"network\":{\"policies\":[]}"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        json_decref(open_key("a:b:bad", bad[i], 400));
    json_decref(call("GET", "/v1/sessions/a:b:bad", NULL, 404)); /* a typing error makes no session */
}

int main(int argc, char **argv)
{
    hf_serve_if_asked(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),      cmocka_unit_test(test_a_change_is_kept),
        cmocka_unit_test(test_default),   cmocka_unit_test(test_policies),
        cmocka_unit_test(test_templates), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, group_up, group_down);
}
