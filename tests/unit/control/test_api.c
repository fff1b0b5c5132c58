/* REST over real HTTP against the daemon with the fake driver. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/id.h"
#include "client.h"
#include "control/api.h"
#include "control/key.h"
#include "control/validate.h"
#include "fake_driver.h"

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

#define GET(path, r) hf_http(&srv, srv.key, "GET", (path), NULL, NULL, (r))
#define POST(path, body, r) hf_http(&srv, srv.key, "POST", (path), NULL, (body), (r))
#define DEL(path, r) hf_http(&srv, srv.key, "DELETE", (path), NULL, NULL, (r))
#define TEXT(r, name) json_string_value(json_object_get((r).json, (name)))

static void expect(const struct hf_reply *r, int status)
{
    if (r->status != status)
        fail_msg("expected %d, got %d: %s", status, r->status, r->body ? r->body : "");
}

/* An error as E2B's SDK reads it: the same number in the body. */
static void expect_error(const struct hf_reply *r, int status, const char *part)
{
    expect(r, status);
    assert_int_equal(json_integer_value(json_object_get(r->json, "code")), status);
    const char *message = json_string_value(json_object_get(r->json, "message"));
    assert_non_null(message);
    if (part && !strstr(message, part))
        fail_msg("\"%s\" is not in: %s", part, message);
}

static void make(const char *body, char id[HF_ROW_ID])
{
    hf_auto_reply struct hf_reply r = {0};
    POST("/v2/sandboxes", body, &r);
    expect(&r, 201);
    (void)snprintf(id, HF_ROW_ID, "%s", TEXT(r, "sandboxID"));
}

static void end(const char *id)
{
    hf_auto_reply struct hf_reply r = {0};
    hf_auto_free char *path = hf_xasprintf("/sandboxes/%s", id);
    DEL(path, &r);
    expect(&r, 204);
    assert_string_equal(r.body, "");
}

/* ---- create, get, kill ---- */

static void test_life(void **state)
{
    hf_auto_reply struct hf_reply r = {0}, got = {0}, again = {0}, row = {0};
    POST("/v2/sandboxes", "{\"templateID\":\"base\",\"metadata\":{\"a\":\"b\"},\"future\":[1]}", &r);
    expect(&r, 201);
    const char *id = TEXT(r, "sandboxID");
    assert_int_equal(strlen(TEXT(r, "envdAccessToken")), 64);
    assert_string_equal(TEXT(r, "clientID"), "holdfast");
    assert_string_equal(TEXT(r, "envdVersion"), "0.6.13");
    assert_true(json_is_null(json_object_get(r.json, "trafficAccessToken")));
    assert_non_null(strstr(TEXT(r, "domain"), "localhost:"));
    hf_auto_free char *path = hf_xasprintf("/sandboxes/%s", id),
                      *old = hf_xasprintf("/sandboxes/%s-holdfast", id),
                      *v1 = hf_xasprintf("/v1/sandboxes/%s", id);
    GET(path, &got);
    expect(&got, 200);
    assert_string_equal(TEXT(got, "state"), "running");
    assert_string_equal(TEXT(got, "envdAccessToken"), TEXT(r, "envdAccessToken"));
    assert_true(json_is_false(json_object_get(got.json, "allowInternetAccess")));
    assert_int_equal(json_integer_value(json_object_get(got.json, "cpuCount")), 2);
    assert_int_equal(json_integer_value(json_object_get(got.json, "memoryMB")), 512);
    assert_int_equal(json_integer_value(json_object_get(got.json, "diskSizeMB")), 1024);
    hf_reply_done(&got);
    GET(old, &got);
    expect(&got, 200);
    end(id);
    DEL(path, &again);
    expect_error(&again, 404, NULL);
    hf_reply_done(&got);
    GET(path, &got);
    expect_error(&got, 404, id);
    GET(v1, &row);
    expect(&row, 200);
    assert_string_equal(TEXT(row, "state"), "killed");
    assert_string_equal(TEXT(row, "cause"), "api");
    assert_int_equal(hf_fake_count(srv.run_dir), 0);
}

static void test_extensions_and_defaults(void **state)
{
    char id[HF_ROW_ID];
    hf_auto_reply struct hf_reply got = {0}, v1 = {0};
    make("{\"templateID\":\"base:default\",\"cpuCount\":0.5,\"memoryMB\":128,\"diskSizeMB\":256,\"pidsMax\":"
         "64,"
         "\"allow_internet_access\":true,\"secure\":false,\"autoPause\":false,\"autoResume\":{\"enabled\":"
         "false},"
         "\"volumeMounts\":[],\"mcp\":null,\"network\":{\"denyOut\":[\"0.0.0.0/"
         "0\"],\"allowPublicTraffic\":true}}",
         id);
    hf_auto_free char *path = hf_xasprintf("/sandboxes/%s", id), *own = hf_xasprintf("/v1/sandboxes/%s", id);
    GET(path, &got);
    assert_int_equal(json_integer_value(json_object_get(got.json, "cpuCount")), 1);
    assert_int_equal(json_integer_value(json_object_get(got.json, "memoryMB")), 128);
    assert_int_equal(json_integer_value(json_object_get(got.json, "diskSizeMB")), 256);
    GET(own, &v1);
    assert_int_equal(json_integer_value(json_object_get(v1.json, "cpu_millis")), 500);
    assert_int_equal(json_integer_value(json_object_get(v1.json, "pids_max")), 64);
    int64_t start, stop;
    assert_int_equal(hf_rfc3339_parse(hf_str_c(TEXT(got, "startedAt")), &start), 0);
    assert_int_equal(hf_rfc3339_parse(hf_str_c(TEXT(got, "endAt")), &stop), 0);
    assert_int_equal((stop - start) / 1000000000, HF_TIMEOUT_V2_DEFAULT);
    end(id);
    hf_auto_reply struct hf_reply old = {0}, detail = {0};
    POST("/sandboxes", "{\"templateID\":\"base\"}", &old);
    expect(&old, 201);
    hf_auto_free char *old_path = hf_xasprintf("/sandboxes/%s", TEXT(old, "sandboxID"));
    GET(old_path, &detail);
    assert_int_equal(hf_rfc3339_parse(hf_str_c(TEXT(detail, "startedAt")), &start), 0);
    assert_int_equal(hf_rfc3339_parse(hf_str_c(TEXT(detail, "endAt")), &stop), 0);
    assert_int_equal((stop - start) / 1000000000, HF_TIMEOUT_V1_DEFAULT);
    end(TEXT(old, "sandboxID"));
}

static void test_bad_creates(void **state)
{
    static const struct {
        const char *body;
        int status;
        const char *part;
    } cases[] = {
        {"{", 400, "line 1"},
        {"", 400, "required"},
        {"[]", 400, "JSON object"},
        {"\"x\"", 400, NULL},
        {"{\"templateID\":\"base\"} x", 400, "not JSON"},
        {"{\"templateID\":\"base\",\"templateID\":\"base\"}", 400, "duplicate"},
        {"{}", 400, "templateID"},
        {"{\"templateID\":7}", 400, "templateID"},
        {"{\"templateID\":\"\"}", 400, NULL},
        {"{\"templateID\":\"a b\"}", 400, NULL},
        {"{\"templateID\":\"base\\r\\nX: y\"}", 400, "control characters"},
        {"{\"templateID\":\"base\\u0000\"}", 400, NULL},
        {"{\"templateID\":\"nope\"}", 404, "template 'nope' not found"},
        {"{\"templateID\":\"base:v9\"}", 404, "tag 'v9' does not exist for template 'base'"},
        {"{\"templateID\":\"base\",\"timeout\":\"soon\"}", 400, "timeout"},
        {"{\"templateID\":\"base\",\"timeout\":1.5}", 400, "timeout"},
        {"{\"templateID\":\"base\",\"timeout\":0}", 400, "Timeout must be greater than 0"},
        {"{\"templateID\":\"base\",\"timeout\":-1}", 400, "Timeout must be greater than 0"},
        {"{\"templateID\":\"base\",\"timeout\":86401}", 400, "Timeout cannot be greater than 24 hours"},
        {"{\"templateID\":\"base\",\"timeout\":99999999999999999999}", 400, NULL},
        {"{\"templateID\":\"base\",\"metadata\":[]}", 400, "metadata"},
        {"{\"templateID\":\"base\",\"metadata\":{\"a\":1}}", 400, "\"a\""},
        {"{\"templateID\":\"base\",\"metadata\":{\"a\":\"x\\ny\"}}", 400, "control characters"},
        {"{\"templateID\":\"base\",\"metadata\":{\"holdfast.session\":\"x\"}}", 400, "reserved"},
        {"{\"templateID\":\"base\",\"envVars\":{\"a=b\":\"x\"}}", 400, "envVars"},
        {"{\"templateID\":\"base\",\"envVars\":{\"\":\"x\"}}", 400, "envVars"},
        {"{\"templateID\":\"base\",\"cpuCount\":0}", 400, "cpuCount"},
        {"{\"templateID\":\"base\",\"cpuCount\":\"2\"}", 400, "cpuCount"},
        {"{\"templateID\":\"base\",\"memoryMB\":1}", 400, "memoryMB"},
        {"{\"templateID\":\"base\",\"diskSizeMB\":-5}", 400, "diskSizeMB"},
        {"{\"templateID\":\"base\",\"pidsMax\":1}", 400, "pidsMax"},
        {"{\"templateID\":\"base\",\"secure\":\"yes\"}", 400, "secure"},
        {"{\"templateID\":\"base\",\"autoPause\":1}", 400, "autoPause"},
        {"{\"templateID\":\"base\",\"autoPause\":true,\"autoPauseMemory\":false,"
         "\"autoResume\":{\"enabled\":true}}",
         400, "autoResume"},
        {"{\"templateID\":\"base\",\"autoPauseMemory\":false}", 400, "autoPauseMemory"},
        {"{\"templateID\":\"base\",\"autoResume\":true}", 400, "autoResume"},
        {"{\"templateID\":\"base\",\"mcp\":{\"x\":{}}}", 501, "mcp"},
        {"{\"templateID\":\"base\",\"iam\":{\"tokens\":[{}]}}", 501, "iam"},
        {"{\"templateID\":\"base\",\"volumeMounts\":[{\"name\":\"v\",\"path\":\"/m\"}]}", 501,
         "volumeMounts"},
        {"{\"templateID\":\"base\",\"network\":{\"allowOut\":[\"1.1.1.1\"]}}", 501, "network.allowOut"},
        {"{\"templateID\":\"base\",\"network\":{\"denyOut\":[\"1.1.1.1\"]}}", 501, "network.denyOut"},
        {"{\"templateID\":\"base\",\"network\":{\"policies\":[\"x\"]}}", 501, "network.policies"},
        {"{\"templateID\":\"base\",\"network\":{\"allowPublicTraffic\":0}}", 400, "allowPublicTraffic"},
        {"{\"templateID\":\"base\",\"network\":{\"egressProxy\":{\"address\":\"x:1\"}}}", 501, "egressProxy"},
        {"{\"templateID\":\"base\",\"network\":[]}", 400, "network"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        hf_auto_reply struct hf_reply r = {0};
        POST("/v2/sandboxes", cases[i].body, &r);
        if (r.status != cases[i].status)
            fail_msg("%s: %d %s", cases[i].body, r.status, r.body);
        expect_error(&r, cases[i].status, cases[i].part);
    }
    assert_int_equal(hf_fake_count(srv.run_dir), 0);
}

static void test_limits_of_bodies(void **state)
{
    hf_auto_reply struct hf_reply r = {0}, many = {0}, big = {0};
    hf_auto_free char *huge = hf_xmalloc(HF_API_BODY_MAX + 100);
    memset(huge, 'x', HF_API_BODY_MAX + 99);
    huge[HF_API_BODY_MAX + 99] = '\0';
    POST("/v2/sandboxes", huge, &r);
    expect_error(&r, 413, NULL);
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(1u << 20);
    assert_int_equal(hf_buf_adds(&b, "{\"templateID\":\"base\",\"metadata\":{\"k\":\"v\""), 0);
    for (unsigned i = 0; i < HF_METADATA_ENTRIES_MAX; i++)
        assert_int_equal(hf_buf_addf(&b, ",\"k%u\":\"v\"", i), 0);
    assert_int_equal(hf_buf_adds(&b, "}}"), 0);
    POST("/v2/sandboxes", b.p, &many);
    expect_error(&many, 400, "entries");
    hf_buf_clear(&b);
    huge[HF_METADATA_BYTES_MAX] = '\0';
    assert_int_equal(hf_buf_addf(&b, "{\"templateID\":\"base\",\"metadata\":{\"k\":\"%s\"}}", huge), 0);
    POST("/v2/sandboxes", b.p, &big);
    expect_error(&big, 400, "larger");
}

/* ---- who ---- */

static void test_auth(void **state)
{
    hf_auto_free char *unknown = hf_xasprintf("e2b_%040d", 0);
    const char *bad[] = {NULL, "", "nonsense", "e2b_XYZ", unknown};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        hf_auto_reply struct hf_reply r = {0}, body = {0}, none = {0};
        hf_http(&srv, bad[i], "GET", "/v2/sandboxes", NULL, NULL, &r);
        expect_error(&r, 401, "API key");
        hf_http(&srv, bad[i], "POST", "/v2/sandboxes", NULL, "{", &body); /* before the body is looked at */
        expect_error(&body, 401, NULL);
        hf_http(&srv, bad[i], "GET", "/nope", NULL, NULL, &none);
        expect_error(&none, 401, NULL);
    }
    hf_auto_reply struct hf_reply bearer = {0}, health = {0}, version = {0};
    hf_auto_free char *header = hf_xasprintf("Authorization: Bearer %s\r\n", srv.key);
    hf_http(&srv, NULL, "GET", "/v2/sandboxes", header, NULL, &bearer);
    expect(&bearer, 200);
    hf_http(&srv, NULL, "GET", "/health", NULL, NULL, &health);
    expect(&health, 200);
    assert_string_equal(health.body, "Health check successful");
    hf_http(&srv, NULL, "GET", "/v1/version", NULL, NULL, &version);
    expect(&version, 200);
}

static void test_keys_beside_the_daemon(void **state)
{
    char text[HF_KEY_TEXT_MAX];
    struct hf_key_info info, *list = NULL;
    struct hf_err err = {0};
    size_t n = 0;
    assert_int_equal(hf_key_create(srv.dir, "other", "ci", text, &info, &err), 0);
    hf_auto_reply struct hf_reply r = {0}, gone = {0};
    hf_http(&srv, text, "GET", "/v2/sandboxes", NULL, NULL, &r);
    expect(&r, 200);
    assert_int_equal(hf_key_list(srv.dir, &list, &n, &err), 0);
    assert_int_equal(n, 3);
    assert_null(strstr(list[0].prefix, text));
    free(list);
    assert_int_equal(hf_key_revoke(srv.dir, info.id, &err), 0);
    assert_int_equal(hf_key_revoke(srv.dir, info.id, &err), 0);
    hf_http(&srv, text, "GET", "/v2/sandboxes", NULL, NULL, &gone);
    expect_error(&gone, 401, "revoked");
    assert_int_equal(hf_key_revoke(srv.dir, "key_none", &err), -ENOENT);
    assert_int_equal(hf_key_revoke(srv.dir, "e2b_", &err), -ENOENT);
    assert_int_equal(hf_key_create(srv.dir, "Not Allowed", "x", text, &info, &err), -EINVAL);
    assert_int_equal(hf_key_create(srv.dir, NULL, "a\nb", text, &info, &err), -EINVAL);
}

static void test_tenants_apart(void **state)
{
    char id[HF_ROW_ID];
    make("{\"templateID\":\"base\"}", id);
    static const struct {
        const char *method, *prefix, *suffix, *body;
    } calls[] = {
        {"GET", "/sandboxes/", "", NULL},
        {"DELETE", "/sandboxes/", "", NULL},
        {"POST", "/sandboxes/", "/connect", "{\"timeout\":5}"},
        {"POST", "/v2/sandboxes/", "/connect", "{}"},
        {"POST", "/sandboxes/", "/timeout", "{\"timeout\":5}"},
        {"POST", "/sandboxes/", "/refreshes", "{}"},
        {"POST", "/sandboxes/", "/resume", "{}"},
        {"GET", "/sandboxes/", "/metrics", NULL},
        {"GET", "/sandboxes/", "/logs", NULL},
        {"GET", "/v2/sandboxes/", "/logs", NULL},
        {"GET", "/v1/sandboxes/", "", NULL},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(calls); i++) {
        char theirs[128], unknown[128], fake[HF_ROW_ID] = "i";
        hf_random_id(fake + 1, HF_SANDBOX_ID_LEN - 1);
        (void)snprintf(theirs, sizeof(theirs), "%s%s%s", calls[i].prefix, id, calls[i].suffix);
        (void)snprintf(unknown, sizeof(unknown), "%s%s%s", calls[i].prefix, fake, calls[i].suffix);
        hf_auto_reply struct hf_reply a = {0}, b = {0};
        hf_http(&srv, srv.other_key, calls[i].method, theirs, NULL, calls[i].body, &a);
        hf_http(&srv, srv.other_key, calls[i].method, unknown, NULL, calls[i].body, &b);
        expect_error(&a, 404, NULL);
        expect_error(&b, 404, NULL);
        /* The same words about both. */
        char *at = strstr(a.body, id), *bt = strstr(b.body, fake);
        assert_non_null(at);
        assert_non_null(bt);
        memset(at, '?', strlen(id));
        memset(bt, '?', strlen(fake));
        assert_string_equal(a.body, b.body);
    }
    hf_auto_reply struct hf_reply list = {0}, events = {0};
    hf_http(&srv, srv.other_key, "GET", "/v2/sandboxes", NULL, NULL, &list);
    assert_int_equal(json_array_size(list.json), 0);
    hf_auto_free char *path = hf_xasprintf("/v1/events?sandbox=%s", id);
    hf_http(&srv, srv.other_key, "GET", path, NULL, NULL, &events);
    assert_int_equal(json_array_size(json_object_get(events.json, "events")), 0);
    end(id);
}

/* ---- routes ---- */

static void test_routes(void **state)
{
    hf_auto_reply struct hf_reply none = {0}, method = {0}, v1 = {0}, options = {0}, bad = {0}, slash = {0};
    GET("/nope", &none);
    expect_error(&none, 404, "/nope");
    hf_http(&srv, srv.key, "PATCH", "/v2/sandboxes", NULL, NULL, &method);
    expect_error(&method, 405, "PATCH");
    assert_string_equal(hf_reply_header(&method, "allow"), "GET, POST");
    GET("/v1/nope", &v1);
    expect_error(&v1, 404, NULL);
    assert_true(strlen(TEXT(v1, "hint")) > 5);
    hf_http(&srv, NULL, "OPTIONS", "/v2/sandboxes", "Access-Control-Request-Headers: x-api-key\r\n", NULL,
            &options);
    expect(&options, 204);
    assert_string_equal(hf_reply_header(&options, "access-control-allow-origin"), "*");
    assert_string_equal(hf_reply_header(&options, "access-control-allow-headers"), "x-api-key");
    GET("/sandboxes/i%zz", &bad);
    expect_error(&bad, 400, NULL);
    GET("/sandboxes/i0%0d%0ax", &slash);
    expect_error(&slash, 400, NULL);
    hf_auto_reply struct hf_reply dashes = {0};
    GET("/sandboxes/iabc-x-y", &dashes);
    expect_error(&dashes, 400, "Invalid sandbox ID");
}

static void test_missing_parts(void **state)
{
    static const struct {
        const char *method, *path, *body, *part;
    } calls[] = {
        {"GET", "/volumes", NULL, "volume"},
        {"POST", "/volumes", "{\"name\":\"x\"}", "volume"},
        {"POST", "/v3/templates", "{\"name\":\"x\"}", "template"},
        {"POST", "/v2/templates/a/builds/b", "{}", "template"},
        {"GET", "/templates/a/builds/b/status", NULL, "template"},
        {"PATCH", "/v2/templates/a", "{\"public\":true}", "template"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(calls); i++) {
        hf_auto_reply struct hf_reply r = {0};
        hf_http(&srv, srv.key, calls[i].method, calls[i].path, NULL, calls[i].body, &r);
        expect_error(&r, 501, calls[i].part);
    }
}

/* ---- lists ---- */

static void ids_of(const struct hf_reply *r, char out[512])
{
    size_t i;
    json_t *v;
    out[0] = '\0';
    json_array_foreach(r->json, i, v)
    {
        size_t n = strlen(out);
        const json_t *name = json_object_get(json_object_get(v, "metadata"), "n");
        (void)snprintf(out + n, 512 - n, "%s", name ? json_string_value(name) : "?");
    }
}

static void list_is(const char *query, const char *want, int status)
{
    hf_auto_reply struct hf_reply r = {0};
    hf_auto_free char *path = hf_xasprintf("/v2/sandboxes%s", query);
    char got[512];
    GET(path, &r);
    expect(&r, status);
    if (status != 200)
        return;
    ids_of(&r, got);
    if (strcmp(got, want) != 0)
        fail_msg("%s: expected %s, got %s", query, want, got);
}

static void check_filters(void)
{
    list_is("", "43210", 200);
    list_is("?order=asc", "01234", 200);
    list_is("?state=running", "43210", 200);
    list_is("?state=paused", "", 200);
    list_is("?state=running,paused&limit=2", "43", 200);
    list_is("?metadata=n%3D3", "3", 200);
    list_is("?metadata=a%252520b%3Dc%252526d%25253D%2525C3%2525A9", "31", 200); /* as the SDK sends it */
    list_is("?metadata=a%252520b%3Dc%252526d%25253D%25252B", "420", 200);
    list_is("?metadata=n%3D3%26a%252520b%3Dx", "", 200);
    list_is("?template=base", "43210", 200);
    list_is("?template=no-such", "", 200);
    list_is("?startedAfter=1970-01-01T00%3A00%3A00.000Z", "43210", 200);
    list_is("?startedAfter=2200-01-01T00%3A00%3A00Z", "", 200);
    static const char *const bad[] = {"?limit=0",
                                      "?limit=101",
                                      "?limit=x",
                                      "?nextToken=garbage",
                                      "?state=flying",
                                      "?order=sideways",
                                      "?metadata=novalue",
                                      "?template=b:c",
                                      "?startedAfter=yesterday",
                                      "?metadata=a%3Db%3Dc",
                                      "?nextToken=",
                                      "?metadata=%25zz"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        list_is(bad[i], "", 400);
}

static void check_pages(void)
{
    static const char *const orders[] = {"desc", "asc"};
    for (int o = 0; o < 2; o++) {
        char token[600] = "", seen[64] = "";
        int pages = 0;
        do {
            hf_auto_reply struct hf_reply r = {0};
            char got[512];
            hf_auto_free char *path = hf_xasprintf("/v2/sandboxes?limit=2&order=%s%s%s", orders[o],
                                                   *token ? "&nextToken=" : "", token);
            GET(path, &r);
            expect(&r, 200);
            assert_string_equal(hf_reply_header(&r, "x-total-running"), "5");
            ids_of(&r, got);
            size_t n = strlen(seen);
            (void)snprintf(seen + n, sizeof(seen) - n, "%.10s", got);
            const char *next = hf_reply_header(&r, "x-next-token");
            (void)snprintf(token, sizeof(token), "%s", next ? next : "");
            pages++;
        } while (*token);
        assert_int_equal(pages, 3);
        assert_string_equal(seen, o ? "01234" : "43210");
    }
}

static void test_lists(void **state)
{
    char ids[5][HF_ROW_ID];
    for (int i = 0; i < 5; i++) {
        hf_auto_free char *body = hf_xasprintf(
            "{\"templateID\":\"base\",\"metadata\":{\"n\":\"%d\",\"a b\":\"c&d=%s\"}}", i, i % 2 ? "é" : "+");
        make(body, ids[i]);
        (void)usleep(2000);
    }
    check_filters();
    check_pages();
    hf_auto_reply struct hf_reply first = {0}, wrong = {0}, v1 = {0};
    GET("/v2/sandboxes?limit=2&order=asc", &first);
    hf_auto_free char *other =
        hf_xasprintf("/v2/sandboxes?order=desc&nextToken=%s", hf_reply_header(&first, "x-next-token"));
    GET(other, &wrong);
    expect_error(&wrong, 400, "Invalid next token");
    GET("/sandboxes?metadata=n%3D1", &v1);
    expect(&v1, 200);
    assert_int_equal(json_array_size(v1.json), 1);
    end(ids[2]);
    list_is("", "4310", 200);
    for (int i = 0; i < 5; i++) {
        if (i != 2)
            end(ids[i]);
    }
}

/* ---- timeouts ---- */

static int64_t end_of(const char *id)
{
    hf_auto_reply struct hf_reply r = {0};
    hf_auto_free char *path = hf_xasprintf("/sandboxes/%s", id);
    int64_t ns = 0;
    GET(path, &r);
    expect(&r, 200);
    assert_int_equal(hf_rfc3339_parse(hf_str_c(TEXT(r, "endAt")), &ns), 0);
    return ns / 1000000;
}

static void post_to(const char *id, const char *what, const char *body, int status)
{
    hf_auto_reply struct hf_reply r = {0};
    hf_auto_free char *path =
        hf_xasprintf("%s/sandboxes/%s/%s", *what == '2' ? "/v2" : "", id, what + (*what == '2'));
    POST(path, body, &r);
    if (r.status != status)
        fail_msg("%s %s: expected %d, got %d %s", path, body ? body : "", status, r.status, r.body);
}

static void test_timeouts(void **state)
{
    char id[HF_ROW_ID];
    make("{\"templateID\":\"base\",\"timeout\":600}", id);
    int64_t at = end_of(id);
    post_to(id, "connect", "{\"timeout\":10}", 200);
    assert_int_equal(end_of(id), at);
    post_to(id, "2connect", NULL, 200); /* 300 by default */
    assert_int_equal(end_of(id), at);
    post_to(id, "2connect", "{\"timeout\":0}", 200);
    assert_int_equal(end_of(id), at);
    post_to(id, "2connect", "{\"timeout\":1200,\"memory\":false}", 200);
    assert_true(end_of(id) > at + 500000);
    post_to(id, "connect", "{}", 400);
    post_to(id, "connect", "{\"timeout\":999999}", 400);
    at = end_of(id);
    post_to(id, "refreshes", "{\"duration\":3600}", 204);
    assert_true(end_of(id) > at);
    at = end_of(id);
    post_to(id, "refreshes", NULL, 204);
    assert_int_equal(end_of(id), at);
    post_to(id, "refreshes", "{\"duration\":3601}", 400);
    post_to(id, "timeout", "{}", 400);
    post_to(id, "timeout", "{\"timeout\":\"5\"}", 400);
    post_to(id, "timeout", "{\"timeout\":86402}", 400);
    post_to(id, "timeout", "{\"timeout\":60}", 204); /* may shorten */
    assert_true(end_of(id) < at);
    post_to(id, "resume", "{}", 409);
    post_to(id, "timeout", "{\"timeout\":-7}", 204); /* now */
    (void)usleep(200000);
    post_to(id, "timeout", "{\"timeout\":5}", 404);
    hf_auto_reply struct hf_reply row = {0};
    hf_auto_free char *path = hf_xasprintf("/v1/sandboxes/%s", id);
    GET(path, &row);
    assert_string_equal(TEXT(row, "cause"), "timeout");
}

/* ---- metrics, logs, events ---- */

static void test_observe(void **state)
{
    char id[HF_ROW_ID];
    make("{\"templateID\":\"base\"}", id);
    (void)usleep(700000); /* the first sample comes within half a second */
    hf_auto_free char *m = hf_xasprintf("/sandboxes/%s/metrics", id),
                      *early = hf_xasprintf("/sandboxes/%s/metrics?start=0&end=1", id),
                      *many = hf_xasprintf("/sandboxes/metrics?sandbox_ids=%s,inope", id),
                      *l1 = hf_xasprintf("/sandboxes/%s/logs?limit=10", id),
                      *l2 = hf_xasprintf("/v2/sandboxes/%s/logs?direction=backward&level=info&search=running",
                                         id),
                      *bad = hf_xasprintf("/v2/sandboxes/%s/logs?direction=up", id),
                      *ev = hf_xasprintf("/v1/events?sandbox=%s", id);
    hf_auto_reply struct hf_reply r = {0}, none = {0}, all = {0}, v1 = {0}, v2 = {0}, wrong = {0},
                                  events = {0};
    GET(m, &r);
    expect(&r, 200);
    assert_true(json_array_size(r.json) >= 1);
    const json_t *s = json_array_get(r.json, 0);
    assert_int_equal(json_integer_value(json_object_get(s, "memTotal")), 2000);
    assert_true(json_is_real(json_object_get(s, "cpuUsedPct")));
    GET(early, &none);
    assert_int_equal(json_array_size(none.json), 0);
    GET(many, &all);
    assert_int_equal(json_object_size(json_object_get(all.json, "sandboxes")), 1);
    GET(l1, &v1);
    expect(&v1, 200);
    assert_int_equal(json_array_size(json_object_get(v1.json, "logs")), 2);
    const char *line =
        json_string_value(json_object_get(json_array_get(json_object_get(v1.json, "logs"), 0), "line"));
    json_auto_t *parsed = json_loads(line, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(parsed, "logger")), "holdfast");
    GET(l2, &v2);
    assert_int_equal(json_array_size(json_object_get(v2.json, "logs")), 1);
    GET(bad, &wrong);
    expect_error(&wrong, 400, NULL);
    end(id);
    GET(ev, &events);
    const json_t *list = json_object_get(events.json, "events");
    static const char *const states[] = {"creating", "running", "killing", "killed"};
    assert_int_equal(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(json_string_value(json_object_get(json_array_get(list, i), "to")), states[i]);
    hf_auto_reply struct hf_reply rows = {0}, info = {0}, teams = {0}, after = {0};
    GET("/v1/sandboxes?limit=1", &rows);
    assert_int_equal(json_array_size(json_object_get(rows.json, "sandboxes")), 1);
    assert_true(json_is_string(json_object_get(rows.json, "next_cursor")));
    GET("/v1/info", &info);
    assert_string_equal(TEXT(info, "driver"), "fake");
    GET("/teams", &teams);
    assert_int_equal(json_array_size(teams.json), 1);
    hf_auto_free char *tail =
        hf_xasprintf("/v1/events?sandbox=%s&after=%lld&limit=1", id,
                     (long long)json_integer_value(json_object_get(json_array_get(list, 1), "seq")));
    GET(tail, &after);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(after.json, "events"), 0), "to")),
        "killing");
}

static void test_box_dies(void **state)
{
    char id[HF_ROW_ID];
    make("{\"templateID\":\"base\"}", id);
    hf_fake_end_offline(srv.run_dir, id, HF_BOX_OOM);
    (void)usleep(200000);
    hf_auto_reply struct hf_reply r = {0}, row = {0};
    hf_auto_free char *path = hf_xasprintf("/sandboxes/%s", id), *own = hf_xasprintf("/v1/sandboxes/%s", id);
    GET(path, &r);
    expect_error(&r, 404, NULL);
    GET(own, &row);
    assert_string_equal(TEXT(row, "state"), "killed");
    assert_string_equal(TEXT(row, "cause"), "oom");
    assert_int_equal(hf_fake_count(srv.run_dir), 0);
}

/* ---- templates ---- */

static void test_templates(void **state)
{
    hf_auto_reply struct hf_reply up = {0}, list = {0}, one = {0}, alias = {0}, theirs = {0}, no = {0},
                                  gone = {0};
    hf_http(&srv, srv.key, "POST", "/v1/templates?name=Mine:v2&public=false", NULL, "tar bytes", &up);
    expect(&up, 201);
    assert_string_equal(TEXT(up, "name"), "mine");
    assert_int_equal(json_integer_value(json_object_get(up.json, "bytes")), 9);
    char hex[65];
    unsigned char sum[HF_SHA256_LEN];
    hf_sha256_of("tar bytes", 9, sum);
    hf_hex(sum, sizeof(sum), hex);
    assert_string_equal(TEXT(up, "sha256"), hex);
    GET("/templates?teamID=x", &list);
    assert_int_equal(json_array_size(list.json), 2);
    GET("/templates/mine%3Av2", &one);
    expect(&one, 200);
    assert_string_equal(TEXT(one, "buildStatus"), "ready");
    assert_string_equal(TEXT(one, "templateID"), TEXT(up, "template_id"));
    GET("/templates/aliases/mine%3Av2", &alias);
    assert_true(json_is_false(json_object_get(alias.json, "public")));
    hf_http(&srv, srv.other_key, "GET", "/templates/mine%3Av2", NULL, NULL, &theirs);
    expect_error(&theirs, 404, NULL);
    hf_http(&srv, srv.other_key, "DELETE", "/templates/base", NULL, NULL, &no);
    expect_error(&no, 404, NULL);
    char id[HF_ROW_ID];
    make("{\"templateID\":\"mine:v2\"}", id);
    hf_auto_reply struct hf_reply used = {0};
    DEL("/templates/mine%3Av2", &used);
    expect_error(&used, 400, "in use");
    end(id);
    DEL("/templates/mine%3Av2", &gone);
    expect(&gone, 204);
    hf_auto_reply struct hf_reply twice = {0};
    DEL("/templates/mine%3Av2", &twice);
    expect_error(&twice, 404, NULL);
    hf_auto_free char *image = hf_xasprintf("%s/pool/templates/%s.img", srv.dir, TEXT(up, "template_id"));
    struct stat st;
    assert_int_equal(stat(image, &st), -1);
}

static void test_bad_imports(void **state)
{
    static const struct {
        const char *path, *body;
        int status;
    } cases[] = {
        {"/v1/templates", "x", 400},
        {"/v1/templates?name=", "x", 400},
        {"/v1/templates?name=a%20b", "x", 400},
        {"/v1/templates?name=a%2Fb", "x", 400},
        {"/v1/templates?name=ok&public=maybe", "x", 400},
        {"/v1/templates?name=ok", "BAD tar", 400},
        {"/v1/templates?name=ok", "", 400},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        hf_auto_reply struct hf_reply r = {0};
        POST(cases[i].path, cases[i].body, &r);
        if (r.status != cases[i].status)
            fail_msg("%s: %d %s", cases[i].path, r.status, r.body);
    }
    hf_auto_reply struct hf_reply no = {0}, list = {0};
    hf_http(&srv, srv.other_key, "POST", "/v1/templates?name=x&public=true", NULL, "x", &no);
    expect_error(&no, 403, NULL);
    GET("/templates", &list);
    assert_int_equal(json_array_size(list.json), 1); /* base */
    /* A client that leaves in the middle leaves nothing. */
    int fd = hf_http_send(&srv, srv.key, "POST", "/v1/templates?name=half", "Content-Length: 1000\r\n", NULL);
    assert_int_equal(write(fd, "some", 4), 4);
    (void)usleep(100000);
    (void)close(fd);
    (void)usleep(200000);
    hf_auto_reply struct hf_reply after = {0};
    GET("/templates/half", &after);
    expect_error(&after, 404, NULL);
}

static void test_big_import(void **state)
{
    size_t n = 20u << 20; /* beyond the mark at which the sender is held back */
    hf_auto_free char *body = hf_xmalloc(n + 1);
    memset(body, 'r', n);
    body[n] = '\0';
    hf_auto_reply struct hf_reply r = {0}, gone = {0};
    POST("/v1/templates?name=big", body, &r);
    expect(&r, 201);
    assert_int_equal(json_integer_value(json_object_get(r.json, "bytes")), n);
    DEL("/templates/big", &gone);
    expect(&gone, 204);
}

/* ---- many at once ---- */

static void test_hundred_creates(void **state)
{
    enum { N = 100 };
    int fds[N];
    char ids[N][HF_ROW_ID];
    for (int i = 0; i < N; i++)
        fds[i] = hf_http_send(&srv, srv.key, "POST", "/v2/sandboxes", NULL, "{\"templateID\":\"base\"}");
    for (int i = 0; i < N; i++) {
        hf_auto_reply struct hf_reply r = {0};
        hf_http_receive(fds[i], &r);
        expect(&r, 201);
        (void)snprintf(ids[i], HF_ROW_ID, "%s", TEXT(r, "sandboxID"));
    }
    assert_int_equal(hf_fake_count(srv.run_dir), N);
    for (int i = 0; i < N; i++) {
        hf_auto_free char *path = hf_xasprintf("/sandboxes/%s", ids[i]);
        fds[i] = hf_http_send(&srv, srv.key, "DELETE", path, NULL, NULL);
    }
    for (int i = 0; i < N; i++) {
        hf_auto_reply struct hf_reply r = {0};
        hf_http_receive(fds[i], &r);
        expect(&r, 204);
    }
    assert_int_equal(hf_fake_count(srv.run_dir), 0);
}

int main(int argc, char **argv)
{
    hf_serve_if_asked(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_extensions_and_defaults),
        cmocka_unit_test(test_bad_creates),
        cmocka_unit_test(test_limits_of_bodies),
        cmocka_unit_test(test_auth),
        cmocka_unit_test(test_keys_beside_the_daemon),
        cmocka_unit_test(test_tenants_apart),
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_missing_parts),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_timeouts),
        cmocka_unit_test(test_observe),
        cmocka_unit_test(test_box_dies),
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_bad_imports),
        cmocka_unit_test(test_big_import),
        cmocka_unit_test(test_hundred_creates),
    };
    return cmocka_run_group_tests(tests, group_up, group_down);
}
