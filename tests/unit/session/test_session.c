/* Sessions over real HTTP against the daemon with the fake driver, which refuses a second user of a
 * workspace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "client.h"
#include "fake_driver.h"
#include "served_modules.h"
#include "session/session_int.h"
#include "store/meta.h"

const struct hf_module *const hf_served_modules[] = {&hf_session_module, NULL};

static int setup(void **state)
{
    struct hf_served *s = hf_new(struct hf_served);
    hf_served_init(s);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    hf_served_done(*state);
    free(*state);
    return 0;
}

#define KEY "{\"key\":\"agent:alice:1\"}"

struct opened {
    int status;
    char session[HF_ROW_ID], sandbox[HF_ROW_ID];
    bool created;
};

static struct opened read_opened(const struct hf_reply *r)
{
    struct opened o = {.status = r->status};
    const json_t *s = json_object_get(r->json, "session"), *b = json_object_get(r->json, "sandbox");
    const char *sid = json_string_value(json_object_get(s, "id")),
               *bid = json_string_value(json_object_get(b, "id"));
    (void)snprintf(o.session, sizeof(o.session), "%s", sid ? sid : "");
    (void)snprintf(o.sandbox, sizeof(o.sandbox), "%s", bid ? bid : "");
    o.created = json_is_true(json_object_get(b, "created"));
    return o;
}

static struct opened open_as(struct hf_served *s, const char *key, const char *body)
{
    hf_auto_reply struct hf_reply r = {0};
    hf_http(s, key, "POST", "/v1/sessions", NULL, body, &r);
    if (r.status != 200 && r.status != 201)
        fail_msg("open: %d %s", r.status, r.body ? r.body : "");
    return read_opened(&r);
}

static int call(struct hf_served *s, const char *method, const char *path, struct hf_reply *r)
{
    hf_http(s, s->key, method, path, NULL, NULL, r);
    return r->status;
}

static int call_on(struct hf_served *s, const char *method, const char *id, const char *rest)
{
    hf_auto_reply struct hf_reply r = {0};
    hf_auto_free char *path = hf_xasprintf("/v1/sessions/%s%s", id, rest);
    return call(s, method, path, &r);
}

static void kill_box(struct hf_served *s, const char *id)
{
    hf_auto_reply struct hf_reply r = {0};
    hf_auto_free char *path = hf_xasprintf("/sandboxes/%s", id);
    assert_int_equal(call(s, "DELETE", path, &r), 204);
}

static bool has_volume(struct hf_served *s, const char *session)
{
    struct stat st;
    hf_auto_free char *path = hf_xasprintf("%s/pool/volumes/ws-%s.img", s->dir, session + 4);
    return stat(path, &st) == 0;
}

static void test_keys(void **state)
{
    assert_true(hf_session_key_valid("a:b:c"));
    assert_true(hf_session_key_valid("agent.v1:user@host.org:2026-01_x"));
    static const char *const bad[] = {"",     "a",       "a:b",     "a:b:",    ":b:c",
                                      "a::c", "a:b:c:d", "a b:c:d", "a:b:c\n", "a/b:c:d"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        assert_false(hf_session_key_valid(bad[i]));
    char part[HF_SESSION_PART_MAX + 2], key[256];
    memset(part, 'x', sizeof(part));
    part[HF_SESSION_PART_MAX] = '\0';
    (void)snprintf(key, sizeof(key), "%s:%s:%s", part, part, part);
    assert_true(hf_session_key_valid(key));
    (void)snprintf(key, sizeof(key), "%sx:b:c", part);
    assert_false(hf_session_key_valid(key));
}

static void test_open_is_get_or_create(void **state)
{
    struct hf_served *s = *state;
    hf_auto_reply struct hf_reply r = {0};
    hf_http(s, s->key, "POST", "/v1/sessions", NULL,
            "{\"key\":\"agent:alice:1\",\"metadata\":{\"team\":\"x\"},\"env\":{\"A\":\"b\"},\"timeout\":60,"
            "\"memoryMB\":256}",
            &r);
    struct opened a = read_opened(&r);
    assert_int_equal(a.status, 201);
    assert_true(a.created);
    const json_t *ses = json_object_get(r.json, "session"), *box = json_object_get(r.json, "sandbox");
    assert_string_equal(json_string_value(json_object_get(ses, "user")), "alice");
    assert_string_equal(json_string_value(json_object_get(ses, "state")), "open");
    assert_int_equal(json_integer_value(json_object_get(ses, "binding_epoch")), 1);
    assert_string_equal(json_string_value(json_object_get(ses, "sandbox_id")), a.sandbox);
    assert_int_equal(strlen(json_string_value(json_object_get(box, "envd_access_token"))), 64);
    assert_true(has_volume(s, a.session));

    struct opened b = open_as(s, s->key, KEY);
    assert_int_equal(b.status, 200);
    assert_false(b.created);
    assert_string_equal(b.sandbox, a.sandbox);

    hf_auto_reply struct hf_reply detail = {0};
    hf_auto_free char *path = hf_xasprintf("/sandboxes/%s", a.sandbox);
    (void)call(s, "GET", path, &detail);
    const json_t *meta = json_object_get(detail.json, "metadata");
    assert_string_equal(json_string_value(json_object_get(meta, "holdfast.session")), a.session);
    assert_string_equal(json_string_value(json_object_get(meta, "holdfast.binding-epoch")), "1");
    assert_string_equal(json_string_value(json_object_get(meta, "team")), "x");
    const json_t *mount = json_array_get(json_object_get(detail.json, "volumeMounts"), 0);
    assert_string_equal(json_string_value(json_object_get(mount, "path")), "/workspace");

    kill_box(s, a.sandbox);
    hf_auto_reply struct hf_reply got = {0};
    hf_auto_free char *own = hf_xasprintf("/v1/sessions/%s", a.session);
    assert_int_equal(call(s, "GET", own, &got), 200);
    assert_string_equal(json_string_value(json_object_get(json_object_get(got.json, "sandbox"), "state")),
                        "killed");
    struct opened c = open_as(s, s->key, KEY);
    assert_int_equal(c.status, 201);
    assert_string_not_equal(c.sandbox, a.sandbox);
    assert_string_equal(c.session, a.session);
    assert_int_equal(hf_fake_count(s->run_dir), 1);
}

static void test_bad_opens(void **state)
{
    struct hf_served *s = *state;
    static const struct {
        const char *body;
        int status;
    } cases[] = {
        {"{}", 400},
        {"{\"key\":7}", 400},
        {"{\"key\":null}", 400},
        {"{\"key\":\"a:b\"}", 400},
        {"{\"key\":\"a:b:c\",\"template\":\"nope\"}", 404},
        {"{\"key\":\"a:b:c\",\"timeout\":0}", 400},
        {"{\"key\":\"a:b:c\",\"timeout\":90000}", 400},
        {"{\"key\":\"a:b:c\",\"workspace_bytes\":1}", 400},
        {"{\"key\":\"a:b:c\",\"metadata\":{\"holdfast.session\":\"ses_x\"}}", 400},
        {"{\"key\":\"a:b:c\",\"metadata\":7}", 400},
        {"{\"key\":\"a:b:c\",\"env\":{\"=\":\"\"}}", 400},
        {"{\"key\":\"a:b:c\",\"cpuCount\":\"x\"}", 400},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        hf_auto_reply struct hf_reply r = {0};
        hf_http(s, s->key, "POST", "/v1/sessions", NULL, cases[i].body, &r);
        if (r.status != cases[i].status || !json_object_get(r.json, "hint"))
            fail_msg("%s: %d %s", cases[i].body, r.status, r.body);
    }
    hf_auto_reply struct hf_reply list = {0};
    (void)call(s, "GET", "/v1/sessions", &list);
    assert_int_equal(json_array_size(json_object_get(list.json, "sessions")), 0);
}

static void test_hundred_callers_one_sandbox(void **state)
{
    struct hf_served *s = *state;
    enum { N = 100 };
    int fds[N];
    struct opened first = {0};
    unsigned created = 0;
    for (int i = 0; i < N; i++)
        fds[i] = hf_http_send(s, s->key, "POST", "/v1/sessions", NULL, KEY);
    for (int i = 0; i < N; i++) {
        hf_auto_reply struct hf_reply r = {0};
        hf_http_receive(fds[i], &r);
        struct opened o = read_opened(&r);
        assert_true(o.status == 200 || o.status == 201);
        created += o.created;
        if (!*first.sandbox)
            first = o;
        assert_string_equal(o.sandbox, first.sandbox);
        assert_string_equal(o.session, first.session);
    }
    assert_int_equal(created, 1);
    assert_int_equal(hf_fake_count(s->run_dir), 1);
}

static void test_race_with_kill(void **state)
{
    struct hf_served *s = *state;
    for (int round = 0; round < 5; round++) {
        struct opened old = open_as(s, s->key, KEY);
        hf_auto_free char *path = hf_xasprintf("/sandboxes/%s", old.sandbox);
        int fds[9];
        fds[0] = hf_http_send(s, s->key, "DELETE", path, NULL, NULL);
        for (int i = 1; i < 9; i++)
            fds[i] = hf_http_send(s, s->key, "POST", "/v1/sessions", NULL, KEY);
        char seen[9][HF_ROW_ID];
        for (int i = 0; i < 9; i++) {
            hf_auto_reply struct hf_reply r = {0};
            hf_http_receive(fds[i], &r);
            assert_true(r.status == (i ? r.status == 200 ? 200 : 201 : 204));
            (void)snprintf(seen[i], HF_ROW_ID, "%s", i ? read_opened(&r).sandbox : old.sandbox);
        }
        struct opened last = open_as(s, s->key, KEY);
        for (int i = 1; i < 9; i++)
            assert_true(strcmp(seen[i], old.sandbox) == 0 || strcmp(seen[i], last.sandbox) == 0);
        assert_int_equal(hf_fake_count(s->run_dir), 1);
    }
}

static void test_close_and_delete(void **state)
{
    struct hf_served *s = *state;
    struct opened a = open_as(s, s->key, KEY);
    assert_int_equal(call_on(s, "POST", a.session, "/close"), 200);
    assert_int_equal(call_on(s, "POST", "agent%3Aalice%3A1", "/close"), 200); /* by key, and again */
    assert_int_equal(hf_fake_count(s->run_dir), 0);
    assert_true(has_volume(s, a.session));
    hf_auto_reply struct hf_reply got = {0}, row = {0};
    assert_int_equal(call(s, "GET", "/v1/sessions/agent:alice:1", &got), 200);
    assert_string_equal(json_string_value(json_object_get(json_object_get(got.json, "session"), "state")),
                        "closed");
    hf_auto_free char *old = hf_xasprintf("/v1/sandboxes/%s", a.sandbox);
    (void)call(s, "GET", old, &row);
    assert_string_equal(json_string_value(json_object_get(row.json, "cause")), "session-closed");
    struct opened b = open_as(s, s->key, KEY);
    assert_string_equal(b.session, a.session);
    assert_true(b.created);
    assert_int_equal(call_on(s, "DELETE", a.session, ""), 204);
    assert_int_equal(hf_fake_count(s->run_dir), 0);
    assert_false(has_volume(s, a.session));
    assert_int_equal(call_on(s, "GET", a.session, ""), 404);
    assert_int_equal(call_on(s, "DELETE", a.session, ""), 404);
    assert_int_equal(call_on(s, "POST", a.session, "/close"), 404);
    struct opened c = open_as(s, s->key, KEY);
    assert_string_not_equal(c.session, a.session);
}

/* Opens, closes and deletes of one key at the same time: every answer is whole, at most one sandbox lives. */
static void test_everything_races(void **state)
{
    struct hf_served *s = *state;
    int fds[60];
    struct opened first = open_as(s, s->key, KEY);
    hf_auto_free char *close_path = hf_xasprintf("/v1/sessions/%s/close", first.session);
    for (int i = 0; i < 60; i++) {
        const char *path = i % 3 == 0   ? "/v1/sessions"
                           : i % 3 == 1 ? close_path
                                        : "/v1/sessions/agent:alice:1";
        fds[i] = hf_http_send(s, s->key, i % 3 == 2 ? "DELETE" : "POST", path, NULL, i % 3 == 0 ? KEY : NULL);
    }
    for (int i = 0; i < 60; i++) {
        hf_auto_reply struct hf_reply r = {0};
        hf_http_receive(fds[i], &r);
        if (r.status != 200 && r.status != 201 && r.status != 204 && r.status != 404 && r.status != 409)
            fail_msg("%d: %s", r.status, r.body ? r.body : "no answer");
    }
    assert_true(hf_fake_count(s->run_dir) <= 1);
    struct opened last = open_as(s, s->key, KEY);
    assert_true(*last.sandbox);
    assert_int_equal(hf_fake_count(s->run_dir), 1);
}

static void test_tenants(void **state)
{
    struct hf_served *s = *state;
    struct opened mine = open_as(s, s->key, KEY), theirs = open_as(s, s->other_key, KEY);
    assert_string_not_equal(mine.session, theirs.session);
    assert_string_not_equal(mine.sandbox, theirs.sandbox);
    assert_int_equal(call_on(s, "GET", theirs.session, ""), 404);
    assert_int_equal(call_on(s, "DELETE", theirs.session, ""), 404);
    assert_int_equal(call_on(s, "POST", theirs.session, "/close"), 404);
    hf_auto_reply struct hf_reply list = {0};
    (void)call(s, "GET", "/v1/sessions", &list);
    assert_int_equal(json_array_size(json_object_get(list.json, "sessions")), 1);
}

static void test_list_pages(void **state)
{
    struct hf_served *s = *state;
    for (int i = 0; i < 5; i++) {
        hf_auto_free char *body = hf_xasprintf("{\"key\":\"a:b:%d\"}", i);
        (void)open_as(s, s->key, body);
    }
    char cursor[600] = "";
    unsigned seen = 0, pages = 0;
    do {
        hf_auto_reply struct hf_reply r = {0};
        hf_auto_free char *path = hf_xasprintf("/v1/sessions?limit=2%s%s", *cursor ? "&cursor=" : "", cursor);
        assert_int_equal(call(s, "GET", path, &r), 200);
        seen += (unsigned)json_array_size(json_object_get(r.json, "sessions"));
        const char *next = json_string_value(json_object_get(r.json, "next_cursor"));
        (void)snprintf(cursor, sizeof(cursor), "%s", next ? next : "");
        pages++;
    } while (*cursor);
    assert_int_equal(seen, 5);
    assert_int_equal(pages, 3);
    static const struct {
        const char *query;
        int status;
        size_t n;
    } cases[] = {
        {"?key=a%3Ab%3A3", 200, 1}, {"?key=a%3Ab%3A9", 200, 0}, {"?state=open", 200, 5},
        {"?state=closed", 200, 0},  {"?limit=0", 400, 0},       {"?cursor=zzz", 400, 0},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        hf_auto_reply struct hf_reply r = {0};
        hf_auto_free char *path = hf_xasprintf("/v1/sessions%s", cases[i].query);
        assert_int_equal(call(s, "GET", path, &r), cases[i].status);
        assert_int_equal(json_array_size(json_object_get(r.json, "sessions")), cases[i].n);
    }
}

static void test_idempotency(void **state)
{
    struct hf_served *s = *state;
    hf_auto_reply struct hf_reply a = {0}, b = {0}, c = {0}, d = {0}, theirs = {0}, empty = {0};
    static const char key[] = "Idempotency-Key: abc\r\n";
    hf_http(s, s->key, "POST", "/v1/sessions", key, KEY, &a);
    hf_http(s, s->key, "POST", "/v1/sessions", key, KEY, &b);
    assert_int_equal(a.status, 201);
    assert_int_equal(b.status, 201);
    assert_string_equal(a.body, b.body);
    assert_string_equal(hf_reply_header(&b, "idempotency-replayed"), "true");
    hf_http(s, s->key, "POST", "/v1/sessions", key, "{\"key\":\"agent:alice:2\"}", &c);
    assert_int_equal(c.status, 409);
    hf_http(s, s->other_key, "POST", "/v1/sessions", key, "{\"key\":\"agent:alice:2\"}", &theirs);
    assert_int_equal(theirs.status, 201); /* keys of tenants are apart */
    hf_http(s, s->key, "POST", "/v1/sessions", "Idempotency-Key: \r\n", KEY, &empty);
    assert_int_equal(empty.status, 400);
    hf_auto_free char *longest =
        hf_xasprintf("Idempotency-Key: %0*d\r\n", (int)HF_API_IDEMPOTENCY_KEY_MAX + 1, 0);
    hf_http(s, s->key, "POST", "/v1/sessions", longest, KEY, &d);
    assert_int_equal(d.status, 400);
    hf_served_kill9(s); /* the answer survives the daemon */
    hf_served_start(s, NULL);
    hf_auto_reply struct hf_reply again = {0};
    hf_http(s, s->key, "POST", "/v1/sessions", key, KEY, &again);
    assert_string_equal(a.body, again.body);
}

static void test_restart_keeps_the_sandbox(void **state)
{
    struct hf_served *s = *state;
    struct opened a = open_as(s, s->key, KEY);
    hf_served_kill9(s);
    hf_served_start(s, NULL);
    struct opened b = open_as(s, s->key, KEY);
    assert_false(b.created);
    assert_string_equal(a.sandbox, b.sandbox);
    hf_served_stop(s);
    assert_int_equal(hf_fake_count(s->run_dir), 1);
    hf_fake_end_offline(s->run_dir, a.sandbox, HF_BOX_LOST);
    hf_served_start(s, NULL);
    struct opened c = open_as(s, s->key, KEY);
    assert_true(c.created);
    assert_string_equal(c.session, a.session);
    assert_int_equal(hf_fake_count(s->run_dir), 1);
}

/* The row forgot its sandbox: the stamp finds it again, and no second one is made. */
static void test_claim(void **state)
{
    struct hf_served *s = *state;
    struct opened a = open_as(s, s->key, KEY);
    hf_served_stop(s);
    struct hf_meta *m = NULL;
    struct hf_err err = {0};
    assert_int_equal(hf_meta_open(s->dir, NULL, &m, &err), 0);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_bind_session(b, a.session, 1, "ilostandgone", 5);
    assert_int_equal(hf_meta_commit_now(m, b, &err), 0);
    hf_meta_close(m, NULL, NULL);
    hf_served_start(s, NULL);
    struct opened c = open_as(s, s->key, KEY);
    assert_string_equal(c.sandbox, a.sandbox);
    assert_false(c.created);
    hf_auto_reply struct hf_reply got = {0};
    assert_int_equal(call(s, "GET", "/v1/sessions/agent:alice:1", &got), 200);
    const json_t *ses = json_object_get(got.json, "session");
    assert_string_equal(json_string_value(json_object_get(ses, "sandbox_id")), a.sandbox);
    assert_int_equal(json_integer_value(json_object_get(ses, "binding_epoch")), 3);
}

static void test_full_pool(void **state)
{
    struct hf_served *s = *state;
    hf_served_stop(s);
    (void)setenv("HF_FAKE_NO_SPACE", "1", 1);
    hf_served_start(s, NULL);
    (void)unsetenv("HF_FAKE_NO_SPACE");
    hf_auto_reply struct hf_reply r = {0};
    hf_http(s, s->key, "POST", "/v1/sessions", NULL, KEY, &r);
    assert_int_equal(r.status, 507);
    hf_served_stop(s);
    hf_served_start(s, NULL);
    struct opened a = open_as(s, s->key, KEY); /* the same session goes on */
    assert_true(a.created);
}

static void restart_slow(struct hf_served *s)
{
    hf_served_stop(s);
    (void)setenv("HF_FAKE_CREATE_MS", "200", 1);
    hf_served_start(s, NULL);
    (void)unsetenv("HF_FAKE_CREATE_MS");
}

/* Nobody learned the id of a plain sandbox: it goes. A session's is wanted again by its key: it stays. */
static void test_client_leaves(void **state)
{
    struct hf_served *s = *state;
    restart_slow(s);
    int fd = hf_http_send(s, s->key, "POST", "/v2/sandboxes", NULL, "{\"templateID\":\"base\"}");
    (void)usleep(60000);
    (void)close(fd);
    (void)usleep(400000);
    hf_auto_reply struct hf_reply rows = {0};
    assert_int_equal(call(s, "GET", "/v1/sandboxes", &rows), 200);
    const json_t *row = json_array_get(json_object_get(rows.json, "sandboxes"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "state")), "killed");
    assert_string_equal(json_string_value(json_object_get(row, "cause")), "client-gone");
    assert_int_equal(hf_fake_count(s->run_dir), 0);
    fd = hf_http_send(s, s->key, "POST", "/v1/sessions", NULL, KEY);
    (void)usleep(60000);
    (void)close(fd);
    (void)usleep(400000);
    struct opened a = open_as(s, s->key, KEY);
    assert_false(a.created);
    assert_int_equal(hf_fake_count(s->run_dir), 1);
}

/* SIGTERM waits for what is under way and answers it. */
static void test_stop_waits(void **state)
{
    struct hf_served *s = *state;
    restart_slow(s);
    int fd = hf_http_send(s, s->key, "POST", "/v1/sessions", NULL, KEY);
    (void)usleep(60000);
    hf_served_stop(s);
    hf_auto_reply struct hf_reply r = {0};
    hf_http_receive(fd, &r);
    assert_int_equal(r.status, 201);
    hf_served_start(s, NULL);
    struct opened again = open_as(s, s->key, KEY);
    assert_string_equal(again.sandbox, read_opened(&r).sandbox);
}

static void test_limit_per_tenant(void **state)
{
    struct hf_served *s = *state;
    hf_served_stop(s);
    (void)setenv("HF_MAX_SANDBOXES", "1", 1);
    hf_served_start(s, NULL);
    (void)unsetenv("HF_MAX_SANDBOXES");
    (void)open_as(s, s->key, KEY);
    hf_auto_reply struct hf_reply r = {0}, box = {0};
    hf_http(s, s->key, "POST", "/v1/sessions", NULL, "{\"key\":\"a:b:2\"}", &r);
    assert_int_equal(r.status, 429);
    assert_non_null(hf_reply_header(&r, "retry-after"));
    hf_http(s, s->key, "POST", "/v2/sandboxes", NULL, "{\"templateID\":\"base\"}", &box);
    assert_int_equal(box.status, 429);
    assert_non_null(strstr(box.body, "maximum number of concurrent E2B sandboxes (1)"));
    (void)open_as(s, s->other_key, KEY);
}

/* SIGKILL at every named point of a whole life; the next daemon has the old or the new state and the session
 * still works. */
static void walk(struct hf_served *s)
{
    hf_auto_reply struct hf_reply a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0};
    hf_http(s, s->key, "POST", "/v2/sandboxes", NULL, "{\"templateID\":\"base\"}", &a);
    hf_http(s, s->key, "POST", "/v1/sessions", NULL, KEY, &b);
    hf_http(s, s->key, "POST", "/v1/sessions/agent:alice:1/close", NULL, NULL, &c);
    hf_http(s, s->key, "POST", "/v1/sessions", NULL, KEY, &d);
    hf_http(s, s->key, "DELETE", "/v1/sessions/agent:alice:1", NULL, NULL, &e);
    hf_http(s, s->key, "POST", "/v1/templates?name=new", NULL, "files", &f);
    const char *id = json_string_value(json_object_get(a.json, "sandboxID"));
    if (id) {
        hf_auto_reply struct hf_reply k = {0};
        hf_auto_free char *path = hf_xasprintf("/sandboxes/%s", id);
        hf_http(s, s->key, "DELETE", path, NULL, NULL, &k);
    }
}

static void count_live(void *arg, const struct hf_sandbox_row *row)
{
    unsigned *n = arg;
    n[0]++;
    n[1] += strcmp(row->state, "running") != 0;
}

static void test_crash_at_every_point(void **state)
{
    (void)state;
    static const char *const points[] = {
        "create.validated",       "create.row-written", "create.box-made",     "create.envd-init",
        "create.running-row",     "create.answered",    "kill.row-written",    "kill.box-destroyed",
        "kill.killed-row",        "kill.answered",      "session.row-written", "session.volume-made",
        "session.bound",          "session.answered",   "session.closed",      "session.deleting",
        "session.volume-removed", "session.deleted",    "import.row-written",  "import.built",
        "import.ready",           "reconcile.begin",    "reconcile.scanned",   "reconcile.adopted",
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        struct hf_served s;
        hf_served_init(&s);
        hf_served_stop(&s);
        hf_served_start(&s, points[i]);
        if (s.port)
            walk(&s);
        if (!hf_served_died(&s))
            fail_msg("the daemon did not pass %s", points[i]);
        hf_served_start(&s, NULL);
        assert_true(s.port > 0);
        (void)usleep(150000);
        struct hf_meta *m = NULL;
        struct hf_err err = {0};
        assert_int_equal(hf_meta_open(s.dir, NULL, &m, &err), 0);
        unsigned live[2] = {0};
        assert_int_equal(hf_each_live_sandbox(m, count_live, live), 0);
        hf_meta_close(m, NULL, NULL);
        if (live[1] || live[0] != hf_fake_count(s.run_dir))
            fail_msg("after %s: %u rows, %u in a third state, %u boxes", points[i], live[0], live[1],
                     hf_fake_count(s.run_dir));
        struct opened o = open_as(&s, s.key, KEY);
        assert_true(*o.sandbox && has_volume(&s, o.session));
        assert_int_equal(call_on(&s, "DELETE", o.session, ""), 204);
        hf_auto_reply struct hf_reply templates = {0};
        (void)call(&s, "GET", "/templates", &templates);
        size_t k;
        json_t *v;
        json_array_foreach(templates.json, k, v)
        {
            assert_int_equal(json_array_size(json_object_get(v, "names")), 1);
        }
        hf_served_done(&s);
    }
}

static void test_second_daemon_is_refused(void **state)
{
    struct hf_served *s = *state, second = *s;
    hf_served_start(&second, NULL);
    assert_int_equal(second.port, 0);
    hf_auto_reply struct hf_reply r = {0};
    assert_int_equal(call(s, "GET", "/health", &r), 200);
    assert_int_equal(hf_served_died(&second), false);
}

int main(int argc, char **argv)
{
    hf_serve_if_asked(argc, argv);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        T(test_open_is_get_or_create),
        T(test_bad_opens),
        T(test_hundred_callers_one_sandbox),
        T(test_race_with_kill),
        T(test_close_and_delete),
        T(test_everything_races),
        T(test_tenants),
        T(test_list_pages),
        T(test_idempotency),
        T(test_restart_keeps_the_sandbox),
        T(test_claim),
        T(test_full_pool),
        T(test_client_leaves),
        T(test_stop_waits),
        T(test_limit_per_tenant),
        T(test_second_daemon_is_refused),
        cmocka_unit_test(test_crash_at_every_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
