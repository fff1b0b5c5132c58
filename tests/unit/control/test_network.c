/* Networks of sandboxes and policy groups over real HTTP; the fabric is a fake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/path.h"
#include "client.h"
#include "control/api.h"
#include "egress/policy.h"
#include "store/net.h"

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

#define CALL(method, path, body, r) hf_http(&srv, srv.key, (method), (path), NULL, (body), (r))
#define TEXT(v, name) json_string_value(json_object_get((v), (name)))

static void expect(const struct hf_reply *r, int status, const char *part)
{
    if (r->status != status || (part && !strstr(r->body, part)))
        fail_msg("expected %d with \"%s\", got %d: %s", status, part ? part : "", r->status,
                 r->body ? r->body : "");
}

static void ask(const char *method, const char *path, const char *body, int status, const char *part)
{
    hf_auto_reply struct hf_reply r = {0};
    CALL(method, path, body, &r);
    expect(&r, status, part);
}

static void make(const char *network, char id[HF_ROW_ID])
{
    hf_auto_reply struct hf_reply r = {0};
    hf_auto_free char *body = hf_xasprintf("{\"templateID\":\"base\"%s%s}", *network ? "," : "", network);
    CALL("POST", "/v2/sandboxes", body, &r);
    expect(&r, 201, NULL);
    (void)snprintf(id, HF_ROW_ID, "%s", TEXT(r.json, "sandboxID"));
}

static char *path_of(const char *fmt, const char *id)
{
    static char path[200];
    const char *mark = strstr(fmt, "ID");
    (void)snprintf(path, sizeof(path), "%.*s%s%s", (int)(mark - fmt), fmt, id, mark + 2);
    return path;
}

static void end(const char *id)
{
    ask("DELETE", path_of("/sandboxes/ID", id), NULL, 204, NULL);
}

static json_t *get(const char *path)
{
    hf_auto_reply struct hf_reply r = {0};
    CALL("GET", path, NULL, &r);
    expect(&r, 200, NULL);
    return json_incref(r.json);
}

/* The policy in force for the sandbox, found by its id's box. NULL: none. */
static json_t *in_force(const char *id)
{
    json_auto_t *v = get(path_of("/v1/sandboxes/ID/network", id));
    json_int_t key = json_integer_value(json_object_get(json_object_get(v, "counters"), "key"));
    hf_auto_free char *file = hf_xasprintf("%s/policy-%lld.json", srv.run_dir, (long long)key);
    return json_load_file(file, 0, NULL);
}

static bool wired(const char *id)
{
    json_auto_t *v = get(path_of("/v1/sandboxes/ID/network", id));
    json_int_t key = json_integer_value(json_object_get(json_object_get(v, "counters"), "key"));
    hf_auto_free char *file = hf_xasprintf("%s/boxes/%lld/wire", srv.run_dir, (long long)key - 1);
    return access(file, F_OK) == 0;
}

static void refuse(bool on)
{
    hf_auto_free char *path = hf_xasprintf("%s/refuse", srv.run_dir);
    if (on)
        assert_int_equal(hf_write_file_atomic(path, "", 0, 0600), 0);
    else
        assert_int_equal(unlink(path), 0);
}

static bool lists(const json_t *doc, const char *key, const char *text)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(doc, key), i, v)
    {
        if (strcmp(json_string_value(v), text) == 0)
            return true;
    }
    return false;
}

/* ---- create ---- */

static void test_default_is_open_and_said(void **state)
{
    char id[HF_ROW_ID];
    make("", id);
    json_auto_t *detail = get(path_of("/sandboxes/ID", id)), *doc = in_force(id);
    assert_true(json_is_true(json_object_get(detail, "allowInternetAccess")));
    assert_true(json_is_true(json_object_get(json_object_get(detail, "network"), "allowPublicTraffic")));
    assert_true(json_is_true(json_object_get(doc, "allow_internet_access")));
    assert_true(wired(id));
    end(id);
}

static void test_no_internet_has_no_interface(void **state)
{
    static const char *const closed[] = {"\"allow_internet_access\":false",
                                         "\"network\":{\"denyOut\":[\"0.0.0.0/0\"]}",
                                         "\"network\":{\"allowInternetAccess\":false}"};
    for (size_t i = 0; i < HF_ARRAY_LEN(closed); i++) {
        char id[HF_ROW_ID];
        make(closed[i], id);
        assert_false(wired(id));
        json_auto_t *doc = in_force(id);
        assert_null(doc);
        end(id);
    }
}

static void test_refusals(void **state)
{
    static const struct {
        const char *network, *part;
    } bad[] = {
        {"\"network\":{\"denyOut\":[\"x.example\"]}", "invalid denied CIDR x.example"},
        {"\"network\":{\"allowOut\":[\"x.example\"]}", "you must include 'ALL_TRAFFIC' in deny out"},
        {"\"network\":{\"policies\":[\"nobody\"]}", "there is no policy"},
        {"\"network\":{\"allowout\":[]}", "unknown field"},
        {"\"network\":[]", "must be an object"},
        {"\"allow_internet_access\":\"yes\"", "must be a boolean"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        hf_auto_free char *body = hf_xasprintf("{\"templateID\":\"base\",%s}", bad[i].network);
        ask("POST", "/v2/sandboxes", body, 400, bad[i].part);
        ask("POST", "/sandboxes", body, 400, bad[i].part);
    }
}

static void test_policy_not_in_force_is_no_sandbox(void **state)
{
    refuse(true);
    ask("POST", "/v2/sandboxes", "{\"templateID\":\"base\"}", 503, "not in force");
    refuse(false);
    json_auto_t *list = get("/v2/sandboxes");
    assert_int_equal(json_array_size(list), 0);
}

static void test_certificate_only_where_needed(void **state)
{
    char id[HF_ROW_ID];
    make("\"network\":{\"denyOut\":[\"0.0.0.0/0\"],\"rules\":[{\"host\":\"a.example\",\"path\":\"/v1/*\"}]}",
         id);
    json_auto_t *doc = in_force(id);
    assert_int_equal(json_array_size(json_object_get(doc, "rules")), 1);
    end(id);
}

/* ---- replace ---- */

static void test_put(void **state)
{
    char id[HF_ROW_ID];
    make("\"network\":{\"denyOut\":[\"0.0.0.0/0\"],\"allowPublicTraffic\":false,\"httpsPorts\":[8443],"
         "\"maskRequestHost\":\"app.example\"}",
         id);
    assert_false(wired(id));
    const char *path = hf_xasprintf("/sandboxes/%s/network", id);
    ask("PUT", path, "{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"a.example\",\"192.0.2.1\"]}", 204, NULL);
    assert_true(wired(id));
    json_auto_t *doc = in_force(id), *detail = get(path_of("/sandboxes/ID", id));
    assert_true(lists(doc, "allow_out", "a.example"));
    const json_t *net = json_object_get(detail, "network");
    assert_true(json_is_false(json_object_get(net, "allowPublicTraffic"))); /* ingress stays */
    assert_int_equal(json_array_size(json_object_get(net, "httpsPorts")), 1);
    assert_string_equal(TEXT(net, "maskRequestHost"), "app.example");
    /* Full replacement: what is left out is as create without it. */
    ask("PUT", path, "{}", 204, NULL);
    json_auto_t *open = in_force(id);
    assert_int_equal(json_array_size(json_object_get(open, "allow_out")), 0);
    assert_true(json_is_true(json_object_get(open, "allow_internet_access")));
    ask("PUT", path, "{\"allow_internet_access\":false}", 204, NULL);
    json_auto_t *shut = in_force(id);
    assert_true(json_is_false(json_object_get(shut, "allow_internet_access")));
    ask("PUT", path, "{\"allowPublicTraffic\":true}", 400, "when the sandbox is created");
    ask("PUT", path, "{\"denyOut\":[\"x\"]}", 400, "invalid denied CIDR x");
    hf_auto_reply struct hf_reply other = {0};
    hf_http(&srv, srv.other_key, "PUT", path, NULL, "{}", &other);
    expect(&other, 404, NULL);
    end(id);
    ask("PUT", path, "{}", 404, NULL);
    free((char *)(uintptr_t)path);
}

static void test_put_rolls_back(void **state)
{
    char id[HF_ROW_ID];
    make("\"network\":{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"192.0.2.1\"]}", id);
    refuse(true);
    ask("PUT", path_of("/sandboxes/ID/network", id), "{\"allow_internet_access\":true}", 503,
        "the old policy");
    refuse(false);
    json_auto_t *detail = get(path_of("/sandboxes/ID", id)), *doc = in_force(id);
    assert_true(lists(json_object_get(detail, "network"), "allowOut", "192.0.2.1"));
    assert_true(lists(doc, "allow_out", "192.0.2.1"));
    end(id);
}

static void test_put_outlives_the_daemon(void **state)
{
    char id[HF_ROW_ID];
    make("", id);
    ask("PUT", path_of("/sandboxes/ID/network", id), "{\"denyOut\":[\"198.51.100.0/24\"]}", 204, NULL);
    hf_served_kill9(&srv);
    hf_served_start(&srv, NULL);
    json_auto_t *detail = get(path_of("/sandboxes/ID", id));
    assert_true(lists(json_object_get(detail, "network"), "denyOut", "198.51.100.0/24"));
    end(id);
}

static void test_proxy_password_is_not_shown(void **state)
{
    char id[HF_ROW_ID];
    make("\"network\":{\"egressProxy\":{\"address\":\"p.example:1080\",\"username\":\"u\","
         "\"password\":\"hush-hush\"}}",
         id);
    hf_auto_reply struct hf_reply a = {0}, b = {0};
    CALL("GET", path_of("/sandboxes/ID", id), NULL, &a);
    CALL("GET", path_of("/v1/sandboxes/ID/network", id), NULL, &b);
    expect(&a, 200, "p.example:1080");
    expect(&b, 200, "p.example:1080");
    assert_null(strstr(a.body, "password"));
    assert_null(strstr(b.body, "hush"));
    json_auto_t *doc = in_force(id);
    assert_string_equal(TEXT(json_object_get(doc, "egress_proxy"), "password"), "sealed");
    end(id);
}

/* ---- groups ---- */

#define MODELS                                                                                          \
    "{\"allow_out\":[\"api.model.example\"],\"rules\":[{\"host\":\"api.model.example\",\"path\":\"/v1/" \
    "*\"}]}"

static void test_groups(void **state)
{
    char id[HF_ROW_ID];
    ask("PUT", "/v1/policies/models", MODELS, 201, "\"version\":1");
    ask("PUT", "/v1/policies/Models", MODELS, 400, "lower-case");
    ask("PUT", "/v1/policies/models", "{\"egressProxy\":{}}", 400, "unknown field");
    make("\"network\":{\"policies\":[\"models\"]}", id);
    json_auto_t *doc = in_force(id);
    assert_true(json_is_false(json_object_get(doc, "allow_internet_access"))); /* bound means restricted */
    assert_true(lists(doc, "allow_out", "api.model.example"));
    ask("DELETE", "/v1/policies/models", NULL, 409, "bound to 1 sandbox");
    /* Edited once for all. */
    ask("PUT", "/v1/policies/models", "{\"allow_out\":[\"other.example\"]}", 200, "\"version\":2");
    json_auto_t *edited = in_force(id);
    assert_true(lists(edited, "allow_out", "other.example"));
    assert_false(lists(edited, "allow_out", "api.model.example"));
    /* A client that knows nothing of groups does not lift them. */
    ask("PUT", path_of("/sandboxes/ID/network", id), "{}", 204, NULL);
    json_auto_t *kept = in_force(id);
    assert_true(json_is_false(json_object_get(kept, "allow_internet_access")));
    assert_true(lists(kept, "allow_out", "other.example"));
    ask("PUT", path_of("/sandboxes/ID/network", id), "{\"policies\":[]}", 204, NULL);
    ask("DELETE", "/v1/policies/models", NULL, 204, NULL);
    ask("GET", "/v1/policies/models", NULL, 404, "there is no policy");
    end(id);
}

static void test_group_rolls_back(void **state)
{
    char id[HF_ROW_ID];
    ask("PUT", "/v1/policies/crawl", "{\"allow_out\":[\"one.example\"]}", 201, NULL);
    make("\"network\":{\"policies\":[\"crawl\"]}", id);
    refuse(true);
    ask("PUT", "/v1/policies/crawl", "{\"allow_out\":[\"two.example\"]}", 503, "was not changed");
    refuse(false);
    ask("GET", "/v1/policies/crawl", NULL, 200, "one.example");
    end(id);
    ask("DELETE", "/v1/policies/crawl", NULL, 204, NULL);
}

static void test_groups_are_the_tenants(void **state)
{
    hf_auto_reply struct hf_reply r = {0}, list = {0};
    ask("PUT", "/v1/policies/mine", "{}", 201, NULL);
    hf_http(&srv, srv.other_key, "GET", "/v1/policies/mine", NULL, NULL, &r);
    expect(&r, 404, NULL);
    hf_http(&srv, srv.other_key, "GET", "/v1/policies", NULL, NULL, &list);
    expect(&list, 200, "\"policies\":[]");
    ask("POST", "/v2/sandboxes", "{\"templateID\":\"base\",\"network\":{\"policies\":[\"mine\"]}}", 201,
        NULL);
    hf_auto_reply struct hf_reply other = {0};
    hf_http(&srv, srv.other_key, "POST", "/v2/sandboxes", NULL,
            "{\"templateID\":\"base\",\"network\":{\"policies\":[\"mine\"]}}", &other);
    expect(&other, 400, "there is no policy");
}

/* {"allow_out":[…]} of n addresses under a prefix; malloc'ed. */
static char *long_list(const char *prefix, unsigned n)
{
    json_auto_t *list = json_array();
    for (unsigned i = 0; i < n; i++)
        (void)json_array_append_new(list, json_sprintf("%s.%u.%u", prefix, i / 256, i % 256));
    json_auto_t *doc = json_pack("{s:O}", "allow_out", list);
    return json_dumps(doc, JSON_COMPACT);
}

static void test_together_too_long(void **state)
{
    static const char *const prefixes[] = {"198.18", "198.51", "203.0"};
    char name[] = "/v1/policies/long-0";
    for (unsigned i = 0; i < 3; i++, name[18]++) {
        hf_auto_free char *body = long_list(prefixes[i], HF_POLICY_CIDRS_MAX);
        ask("PUT", name, body, 201, NULL);
    }
    ask("POST", "/v2/sandboxes",
        "{\"templateID\":\"base\",\"network\":{\"policies\":[\"long-0\",\"long-1\"]}}", 201, NULL);
    ask("POST", "/v2/sandboxes",
        "{\"templateID\":\"base\",\"network\":{\"policies\":[\"long-0\",\"long-1\",\"long-2\"]}}", 400,
        "more than 16384 addresses");
}

static void test_templates_bind(void **state)
{
    char id[HF_ROW_ID], other[HF_ROW_ID];
    ask("PUT", "/v1/policies/of-base", "{\"allow_out\":[\"a.example\"],\"templates\":[\"base\"]}", 201,
        "templates");
    make("", id);
    make("\"network\":{\"policies\":[\"of-base\"],\"allowOut\":[\"192.0.2.1\"]}", other);
    json_auto_t *doc = in_force(id), *twice = in_force(other);
    assert_true(json_is_false(json_object_get(doc, "allow_internet_access")));
    assert_true(lists(doc, "allow_out", "a.example"));
    assert_int_equal(json_array_size(json_object_get(twice, "policies")), 1);
    end(id);
    end(other);
    ask("PUT", "/v1/policies/of-base", "{\"templates\":[\"another\"]}", 200, NULL);
    make("", id);
    json_auto_t *open = in_force(id);
    assert_true(json_is_true(json_object_get(open, "allow_internet_access")));
    end(id);
    ask("DELETE", "/v1/policies/of-base", NULL, 204, NULL);
}

static void test_group_pages(void **state)
{
    for (int i = 0; i < 5; i++) {
        hf_auto_free char *path = hf_xasprintf("/v1/policies/page-%d", i);
        ask("PUT", path, "{}", 201, NULL);
    }
    size_t seen = 0;
    hf_auto_free char *path = hf_xstrdup("/v1/policies?limit=2");
    for (int i = 0; path && i < 10; i++) {
        json_auto_t *v = get(path);
        seen += json_array_size(json_object_get(v, "policies"));
        const char *next = TEXT(v, "next_cursor");
        free(path);
        path = next ? hf_xasprintf("/v1/policies?limit=2&cursor=%s", next) : NULL;
    }
    assert_int_equal(seen, 6); /* with "mine" */
}

/* ---- what would happen ---- */

static void test_what_would_happen(void **state)
{
    char id[HF_ROW_ID];
    static const struct {
        const char *body;
        int status;
        const char *part;
    } cases[] = {
        {"{\"url\":\"https://api.model.example/v1/x\"}", 200, "\"decision\":\"allow\""},
        {"{\"url\":\"https://api.model.example/v2\"}", 200, "\"reason\":\"no-rule\""},
        {"{\"url\":\"https://api.model.example/v1/x\",\"method\":\"DELETE\"}", 200, "\"reason\":\"no-rule\""},
        {"{\"url\":\"https://API.model.example.:443/v1/x?q\"}", 200, "\"rule\":\"models\""},
        {"{\"url\":\"http://evil.example/\"}", 200, "\"reason\":\"default\""},
        {"{\"url\":\"http://169.254.169.254/latest\"}", 200, "\"reason\":\"never\""},
        {"{\"url\":\"http://[::ffff:10.0.0.1]:80/\"}", 200, "\"reason\":\"private\""},
        {"{\"url\":\"ftp://x/\"}", 400, "http"},
        {"{\"url\":\"http://u@x.example/\"}", 400, "user name"},
        {"{\"url\":\"http://x.example:0/\"}", 400, "port"},
        {"{\"url\":\"http://2130706433/\"}", 400, "not a host name"},
        {"{}", 400, "url"},
    };
    make("\"network\":{\"denyOut\":[\"0.0.0.0/"
         "0\"],\"rules\":[{\"name\":\"models\",\"host\":\"api.model.example\","
         "\"methods\":[\"GET\",\"POST\"],\"path\":\"/v1/*\"}]}",
         id);
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++)
        ask("POST", path_of("/v1/sandboxes/ID/network/test", id), cases[i].body, cases[i].status,
            cases[i].part);
    end(id);
    ask("PUT", "/v1/policies/tried", MODELS, 201, NULL);
    ask("POST", "/v1/policies/tried/test", "{\"url\":\"https://api.model.example/v1/x\"}", 200,
        "tried/rule 1");
    ask("POST", "/v1/policies/tried/test", "{\"url\":\"https://example.org/\"}", 200,
        "\"decision\":\"deny\"");
}

/* ---- tokens, records ---- */

static void test_preview(void **state)
{
    static const char *const bad[] = {"{}",
                                      "{\"port\":0}",
                                      "{\"port\":65536}",
                                      "{\"port\":49983}",
                                      "{\"port\":\"80\"}",
                                      "{\"port\":80,\"expires_in\":0}",
                                      "{\"port\":80,\"expires_in\":604801}"};
    char id[HF_ROW_ID];
    hf_auto_reply struct hf_reply r = {0}, other = {0}, gone = {0};
    make("", id);
    hf_auto_free char *path = hf_xasprintf("/v1/sandboxes/%s/preview", id);
    hf_auto_free char *begin = hf_xasprintf("http://8000-%s.localhost:%d/?hf_preview=", id, srv.port);
    CALL("POST", path, "{\"port\":8000,\"expires_in\":60}", &r);
    expect(&r, 200, NULL);
    if (strncmp(TEXT(r.json, "url"), begin, strlen(begin)) != 0)
        fail_msg("%s", TEXT(r.json, "url"));
    int64_t expires_ns, now_ms = hf_real_ms();
    assert_int_equal(hf_rfc3339_parse(hf_str_c(TEXT(r.json, "expires_at")), &expires_ns), 0);
    assert_in_range(expires_ns / 1000000, now_ms + 50000, now_ms + 61000);
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        hf_auto_reply struct hf_reply b = {0};
        CALL("POST", path, bad[i], &b);
        expect(&b, 400, NULL);
    }
    hf_http(&srv, srv.other_key, "POST", path, NULL, "{\"port\":8000}", &other);
    expect(&other, 404, NULL);
    end(id);
    CALL("POST", path, "{\"port\":8000}", &gone);
    expect(&gone, 404, NULL);
}

static void test_rotation(void **state)
{
    char id[HF_ROW_ID];
    make("\"network\":{\"allowPublicTraffic\":false}", id);
    json_auto_t *before = get(path_of("/sandboxes/ID", id));
    hf_auto_reply struct hf_reply r = {0};
    CALL("POST", path_of("/v1/sandboxes/ID/traffic-token/rotate", id), NULL, &r);
    expect(&r, 200, NULL);
    json_auto_t *after = get(path_of("/sandboxes/ID", id));
    assert_string_equal(TEXT(after, "trafficAccessToken"), TEXT(r.json, "traffic_access_token"));
    assert_string_not_equal(TEXT(after, "trafficAccessToken"), TEXT(before, "trafficAccessToken"));
    /* Another policy is no reason for another token. */
    ask("PUT", path_of("/sandboxes/ID/network", id), "{}", 204, NULL);
    json_auto_t *later = get(path_of("/sandboxes/ID", id));
    assert_string_equal(TEXT(later, "trafficAccessToken"), TEXT(after, "trafficAccessToken"));
    end(id);
}

static void test_outbound(void **state)
{
    char id[HF_ROW_ID];
    make("", id);
    json_auto_t *v = get(path_of("/v1/sandboxes/ID/outbound", id));
    assert_int_equal(json_array_size(json_object_get(v, "outbound")), 0);
    assert_true(json_is_null(json_object_get(v, "next_cursor")));
    hf_auto_reply struct hf_reply other = {0};
    hf_http(&srv, srv.other_key, "GET", path_of("/v1/sandboxes/ID/outbound", id), NULL, NULL, &other);
    expect(&other, 404, NULL);
    end(id);
    ask("GET", path_of("/v1/sandboxes/ID/outbound?limit=5", id), NULL, 200, NULL); /* they outlive it */
    ask("GET", path_of("/v1/sandboxes/ID/outbound?limit=0", id), NULL, 400, NULL);
    ask("GET", "/v1/sessions/a:b:c/outbound", NULL, 404, NULL);
}

int main(int argc, char **argv)
{
    hf_serve_if_asked(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_is_open_and_said),
        cmocka_unit_test(test_no_internet_has_no_interface),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_policy_not_in_force_is_no_sandbox),
        cmocka_unit_test(test_certificate_only_where_needed),
        cmocka_unit_test(test_put),
        cmocka_unit_test(test_put_rolls_back),
        cmocka_unit_test(test_put_outlives_the_daemon),
        cmocka_unit_test(test_proxy_password_is_not_shown),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_group_rolls_back),
        cmocka_unit_test(test_groups_are_the_tenants),
        cmocka_unit_test(test_templates_bind),
        cmocka_unit_test(test_group_pages),
        cmocka_unit_test(test_what_would_happen),
        cmocka_unit_test(test_preview),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_outbound),
        cmocka_unit_test(test_together_too_long),
    };
    return cmocka_run_group_tests(tests, group_up, group_down);
}
