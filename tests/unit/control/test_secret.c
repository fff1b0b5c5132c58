/* Secrets over real HTTP: E2B's shapes, limits, and a value that is never seen again. And outbound records
 * across crashes of the daemon. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/path.h"
#include "client.h"
#include "control/net.h"
#include "store/net.h"

#define VALUE "s3cret-VALUE-0123456789"

static struct hf_served srv;

static int setup(void **state)
{
    (void)unsetenv("HOLDFAST_SECRET_KEY_FILE");
    hf_served_init(&srv);
    return 0;
}

static int teardown(void **state)
{
    hf_served_done(&srv);
    return 0;
}

static json_t *ask_as(const char *key, const char *method, const char *path, const char *body, int status)
{
    hf_auto_reply struct hf_reply r = {0};
    hf_http(&srv, key, method, path, NULL, body, &r);
    if (r.status != status)
        fail_msg("%s %s: expected %d, got %d: %s", method, path, status, r.status, r.body ? r.body : "");
    if (r.body && strstr(r.body, VALUE))
        fail_msg("%s %s answers with the value", method, path);
    return json_incref(r.json);
}

static json_t *ask(const char *method, const char *path, const char *body, int status)
{
    return ask_as(srv.key, method, path, body, status);
}

static void quiet(const char *method, const char *path, const char *body, int status)
{
    json_decref(ask(method, path, body, status));
}

#define TEXT(v, name) json_string_value(json_object_get((v), (name)))
#define NUMBER(v, name) json_integer_value(json_object_get((v), (name)))

static void test_life(void **state)
{
    json_auto_t *made =
        ask("POST", "/secrets",
            "{\"name\":\"OpenAI_Key\",\"value\":\"" VALUE "\",\"metadata\":{\"team\":\"a\"}}", 201);
    assert_string_equal(TEXT(made, "name"), "openai_key");
    assert_memory_equal(TEXT(made, "secretID"), "sec_", 4);
    assert_int_equal(NUMBER(made, "currentVersion"), 1);
    assert_string_equal(TEXT(json_object_get(made, "metadata"), "team"), "a");
    assert_non_null(TEXT(made, "createdAt"));
    assert_non_null(TEXT(made, "updatedAt"));
    assert_null(json_object_get(made, "value"));
    hf_auto_free char *by_id = hf_xasprintf("/secrets/%s", TEXT(made, "secretID"));
    json_auto_t *got = ask("GET", by_id, NULL, 200), *named = ask("GET", "/secrets/OPENAI_key", NULL, 200);
    assert_true(json_equal(got, made));
    assert_true(json_equal(named, made));
    json_auto_t *next = ask("POST", by_id, "{\"value\":\"" VALUE "2\"}", 200);
    assert_int_equal(NUMBER(next, "currentVersion"), 2);
    assert_string_equal(TEXT(next, "secretID"), TEXT(made, "secretID"));
    assert_string_equal(TEXT(json_object_get(next, "metadata"), "team"), "a"); /* kept when not given */
    quiet("POST", "/secrets", "{\"name\":\"openai_key\",\"value\":\"x\"}", 409);
    /* another tenant's key sees none of it */
    json_decref(ask_as(srv.other_key, "GET", by_id, NULL, 404));
    json_decref(ask_as(srv.other_key, "POST", by_id, "{\"value\":\"x\"}", 404));
    json_decref(ask_as(srv.other_key, "DELETE", by_id, NULL, 404));
    json_auto_t *others = ask_as(srv.other_key, "GET", "/secrets", NULL, 200);
    assert_int_equal(json_array_size(others), 0);
    quiet("DELETE", by_id, NULL, 204);
    quiet("DELETE", by_id, NULL, 404);
    quiet("GET", by_id, NULL, 404);
}

static void test_refused(void **state)
{
    static const char *const bad[] = {
        "{}",
        "{\"name\":\"a\"}",
        "{\"name\":\"a\",\"value\":\"\"}",
        "{\"name\":\"a\",\"value\":7}",
        "{\"name\":\"\",\"value\":\"x\"}",
        "{\"name\":\"a b\",\"value\":\"x\"}",
        "{\"name\":\"a/b\",\"value\":\"x\"}",
        "{\"name\":\"\\u00e9\",\"value\":\"x\"}",
        "{\"name\":\"sec_a\",\"value\":\"x\"}",
        "{\"name\":\"SEC_a\",\"value\":\"x\"}",
        "{\"name\":\"a\",\"value\":\"x\",\"metadata\":{\"k\":1}}",
        "{\"name\":\"a\",\"value\":\"x\",\"metadata\":[]}",
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        quiet("POST", "/secrets", bad[i], 400);
    char name[160] = "{\"name\":\"";
    size_t n = strlen(name);
    memset(name + n, 'a', 129);
    (void)snprintf(name + n + 129, sizeof(name) - n - 129, "\",\"value\":\"x\"}");
    quiet("POST", "/secrets", name, 400);
    hf_auto_free char *big = hf_xmalloc(HF_SECRET_VALUE_MAX + 100);
    n = (size_t)snprintf(big, 64, "{\"name\":\"big\",\"value\":\"");
    memset(big + n, 'v', HF_SECRET_VALUE_MAX + 1);
    (void)snprintf(big + n + HF_SECRET_VALUE_MAX + 1, 8, "\"}");
    quiet("POST", "/secrets", big, 400);
    (void)snprintf(big + n + HF_SECRET_VALUE_MAX, 8, "\"}");
    quiet("POST", "/secrets", big, 201);
    json_auto_t *all = ask("GET", "/secrets", NULL, 200);
    assert_int_equal(json_array_size(all), 1);
    /* netd gets all of them at once: together they are limited as well */
    for (unsigned i = 0; i < HF_SECRETS_BYTES_MAX / (HF_SECRET_VALUE_MAX + 64); i++) {
        hf_auto_free char *body = hf_xasprintf("{\"name\":\"b%u\",%s", i, strstr(big, "\"value\""));
        hf_auto_reply struct hf_reply r = {0};
        hf_http(&srv, srv.key, "POST", "/secrets", NULL, body, &r);
        if (r.status == 429)
            return;
        assert_int_equal(r.status, 201);
    }
    fail_msg("no limit of all values together");
}

static void test_pages(void **state)
{
    for (int i = 0; i < 5; i++) {
        hf_auto_free char *body = hf_xasprintf("{\"name\":\"s%d\",\"value\":\"v\"}", i);
        quiet("POST", "/secrets", body, 201);
    }
    hf_auto_reply struct hf_reply first = {0}, last = {0};
    hf_http(&srv, srv.key, "GET", "/secrets?limit=3", NULL, NULL, &first);
    assert_int_equal(json_array_size(first.json), 3);
    hf_auto_free char *path =
        hf_xasprintf("/secrets?limit=3&nextToken=%s", hf_reply_header(&first, "x-next-token"));
    hf_http(&srv, srv.key, "GET", path, NULL, NULL, &last);
    assert_int_equal(json_array_size(last.json), 2);
    assert_null(hf_reply_header(&last, "x-next-token"));
    assert_string_equal(TEXT(json_array_get(last.json, 1), "name"), "s4");
}

static bool file_holds(const char *path, const char *what)
{
    hf_auto_free char *text = NULL;
    size_t n = 0;
    return hf_read_file(path, 64u << 20, &text, &n) == 0 && memmem(text, n, what, strlen(what)) != NULL;
}

/* Files directly below dir that hold the value. */
static unsigned count_files(const char *dir, const char *what)
{
    unsigned found = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        hf_auto_free char *path = hf_xasprintf("%s/%s", dir, e->d_name);
        found += e->d_type == DT_REG && file_holds(path, what);
    }
    (void)closedir(d);
    return found;
}

/* The whole data directory (database, its log, the daemon's log) is searched, after successes and failures.
 */
static void test_value_is_nowhere(void **state)
{
    hf_auto_reply struct hf_reply r = {0};
    quiet("POST", "/secrets", "{\"name\":\"a\",\"value\":\"" VALUE "\"}", 201);
    quiet("POST", "/secrets", "{\"name\":\"a\",\"value\":\"" VALUE "\"}", 409);
    quiet("POST", "/secrets", "{\"name\":\"a b\",\"value\":\"" VALUE "\"}", 400);
    quiet("POST", "/secrets/none", "{\"value\":\"" VALUE "\"}", 404);
    quiet("POST", "/secrets/a", "{\"value\":\"" VALUE "\"}", 200);
    hf_http(&srv, srv.key, "POST", "/secrets", "Idempotency-Key: k1\r\n",
            "{\"name\":\"b\",\"value\":\"" VALUE "\"}", &r);
    assert_int_equal(r.status, 201);
    json_auto_t *events = ask("GET", "/v1/events", NULL, 200);
    assert_non_null(events);
    assert_int_equal(count_files(srv.dir, VALUE), 0);
    assert_true(count_files(srv.dir, "sec_") > 0); /* the search does find what is there */
    hf_served_stop(&srv);
    assert_int_equal(count_files(srv.dir, VALUE), 0);
    hf_served_start(&srv, NULL);
    json_auto_t *again = ask("GET", "/secrets/a", NULL, 200);
    assert_int_equal(NUMBER(again, "currentVersion"), 2);
}

static void test_key_file_is_refused(void **state)
{
    quiet("POST", "/secrets", "{\"name\":\"a\",\"value\":\"v\"}", 201);
    hf_served_stop(&srv);
    hf_auto_free char *key = hf_xasprintf("%s/secret.key", srv.dir);
    assert_int_equal(chmod(key, 0644), 0);
    hf_served_start(&srv, NULL);
    json_auto_t *v = ask("POST", "/secrets", "{\"name\":\"b\",\"value\":\"v\"}", 403);
    assert_non_null(strstr(TEXT(v, "message"), "0600"));
}

/* ---- the host ---- */

/* No holdfast-netd lies beside this program, so there can be no network: whoever demands one gets no daemon.
 */
static void test_network_is_required(void **state)
{
    hf_served_stop(&srv);
    (void)setenv("HF_NETWORK", "required", 1);
    hf_served_start(&srv, NULL);
    (void)unsetenv("HF_NETWORK");
    assert_int_equal(srv.port, 0);
    assert_false(hf_served_died(&srv)); /* it ended by itself … */
    assert_int_equal(srv.pid, 0);
    hf_auto_free char *log = hf_xasprintf("%s/log", srv.dir);
    assert_true(file_holds(log, "holdfast-netd is not there")); /* … and says why */
    hf_served_start(&srv, NULL);                                /* auto: with loopback only */
    quiet("POST", "/v2/sandboxes", "{\"templateID\":\"base\"}", 201);
}

/* ---- records ---- */

static bool count_row(void *arg, const struct hf_outbound_row *o)
{
    ++*(int *)arg;
    return true;
}

static int rows(void)
{
    struct hf_meta *m = NULL;
    struct hf_err err = {0};
    int n = 0;
    if (hf_meta_open(srv.dir, NULL, &m, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(hf_each_outbound(m, "default", NULL, NULL, 0, 100000, count_row, &n), 0);
    hf_meta_close(m, NULL, NULL);
    return n;
}

#define LINES 12000

static void write_records(void)
{
    hf_auto_free char *dir = hf_xasprintf("%s/net", srv.dir);
    assert_int_equal(hf_mkdir_p(dir, 0700), 0);
    for (unsigned seq = 1; seq <= 2; seq++) {
        hf_auto_free char *path = hf_xasprintf("%s/records-%u.jsonl", dir, seq),
                          *part = hf_xasprintf("%s.tmp", path);
        FILE *f = fopen(part, "we");
        assert_non_null(f);
        for (int i = 0; i < LINES / 2; i++)
            (void)fprintf(
                f, "{\"kind\":\"request\",\"time_ms\":9000000000000,\"tenant\":\"default\",\"n\":%d}\n", i);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(rename(part, path), 0);
    }
}

/* Killed in the middle of taking records in, again and again: each line is one row in the end. */
static void test_records_survive_kills(void **state)
{
    static const char *const points[] = {"outbound.lines-read", "outbound.rows-written",
                                         "outbound.lines-read:3", "outbound.rows-written:2"};
    hf_served_stop(&srv);
    write_records();
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        hf_served_start(&srv, points[i]);
        assert_true(hf_served_died(&srv));
    }
    assert_true(rows() < LINES);
    hf_served_start(&srv, NULL);
    uint64_t until = hf_mono_ms() + 5000;
    while (rows() < LINES && hf_mono_ms() < until)
        (void)usleep(20000);
    (void)usleep(700000);
    assert_int_equal(rows(), LINES);
}

int main(int argc, char **argv)
{
    hf_serve_if_asked(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_life, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_value_is_nowhere, setup, teardown),
        cmocka_unit_test_setup_teardown(test_key_file_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_network_is_required, setup, teardown),
        cmocka_unit_test_setup_teardown(test_records_survive_kills, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
