/* The daemon's side of the network against a fake netd: what is told, when, and what happens when nobody
 * listens. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/path.h"
#include "control/net.h"
#include "control/network.h"
#include "control/seal.h"
#include "egress/policy.h"
#include "fake_fabric.h"
#include "fake_netd.h"
#include "harness.h"
#include "store/net.h"

struct env {
    struct hf_harness h;
    struct hf_cnet *n;
    struct hf_fake_netd netd;
    char netd_path[128];
};

static void net_up(struct env *e)
{
    e->n = hf_cnet_open(&e->h.loop, &e->h.cfg, e->h.run_dir, e->netd_path);
    e->h.c->net = e->n;
    hf_cnet_start(e->n, e->h.c);
}

static char *text(const char *s)
{
    return hf_xstrdup(s);
}

static void set_config(struct hf_config *c)
{
    char **empty[] = {&c->network_subnet4, &c->network_subnet6, &c->network_uplink4,
                      &c->network_uplink6, &c->netd_path,       &c->egress_ca_file};
    for (size_t i = 0; i < HF_ARRAY_LEN(empty); i++)
        *empty[i] = text("");
    c->dns_upstreams = text("192.0.2.53");
    c->dns_zones = text("corp.test=10.0.0.53 private");
    c->outbound_keep = 3600;
}

static void free_config(struct hf_config *c)
{
    char *texts[] = {c->network_subnet4, c->network_subnet6, c->network_uplink4, c->network_uplink6,
                     c->netd_path,       c->egress_ca_file,  c->dns_upstreams,   c->dns_zones};
    for (size_t i = 0; i < HF_ARRAY_LEN(texts); i++)
        free(texts[i]);
}

static int setup(void **state)
{
    struct env *e = hf_new(struct env);
    hf_fake_fabric = (struct hf_fake_fabric){.ok = true};
    (void)unsetenv("HOLDFAST_SECRET_KEY_FILE");
    hf_harness_init(&e->h);
    /* A netd that can be run and ends at once: the fake one listens instead. */
    (void)snprintf(e->netd_path, sizeof(e->netd_path), "%s/netd", e->h.dir);
    assert_int_equal(hf_write_file_atomic(e->netd_path, "#!/bin/sh\nexit 3\n", 17, 0755), 0);
    hf_harness_up(&e->h);
    set_config(&e->h.cfg);
    hf_fake_netd_init(&e->netd, &e->h.loop, e->h.run_dir);
    hf_fake_netd_up(&e->netd);
    net_up(e);
    *state = e;
    return 0;
}

static void net_down(struct env *e)
{
    int closed = 0;
    hf_cnet_close(e->n, false, hf_harness_on_done, &closed);
    hf_harness_wait(&e->h, &closed);
    e->h.c->net = NULL;
}

static int teardown(void **state)
{
    struct env *e = *state;
    net_down(e);
    hf_fake_netd_done(&e->netd);
    struct hf_config cfg = e->h.cfg;
    hf_harness_down(&e->h);
    free_config(&cfg);
    hf_harness_done(&e->h);
    free(e);
    return 0;
}

/* Runs the loop until cond holds; fails after five seconds. */
#define UNTIL(cond)                                             \
    do {                                                        \
        uint64_t until_ = hf_mono_ms() + 5000;                  \
        while (!(cond)) {                                       \
            if (hf_mono_ms() > until_)                          \
                fail_msg("not within five seconds: %s", #cond); \
            hf_harness_run_ms(&e->h, 2);                        \
        }                                                       \
    } while (0)

#define OPEN "{\"allowOut\":[\"198.51.100.7\"]}"

static json_t *resolved(struct env *e, const char *request)
{
    json_auto_t *v = json_loads(request, 0, NULL);
    json_t *doc = NULL;
    struct hf_err err = {0};
    assert_non_null(v);
    if (hf_network_resolve(e->h.c, "default", v, -1, &doc, &err) < 0)
        fail_msg("%s", err.msg);
    return doc;
}

static struct hf_created create(struct env *e, const char *request)
{
    struct hf_created cr = {0};
    json_auto_t *doc = resolved(e, request);
    struct hf_create_req req = hf_harness_req();
    req.network = doc;
    hf_sandbox_create(e->h.c, &req, hf_harness_on_created, &cr, NULL);
    hf_harness_wait(&e->h, &cr.done);
    return cr;
}

static struct hf_sandbox *made(struct env *e, const char *request)
{
    struct hf_created cr = create(e, request);
    if (!*cr.id)
        fail_msg("%s", cr.err.msg);
    return hf_sandbox_find(e->h.c, "default", cr.id);
}

static const json_t *told(struct env *e, const struct hf_sandbox *sb)
{
    char key[16];
    (void)snprintf(key, sizeof(key), "%u", hf_box_net_key(sb->box));
    return json_object_get(e->netd.boxes, key);
}

static const json_t *told_doc(struct env *e, const struct hf_sandbox *sb)
{
    return json_object_get(told(e, sb), "network");
}

/* ---- policies ---- */

static void test_create_tells_all(void **state)
{
    struct env *e = *state;
    struct hf_sandbox *sb = made(e, OPEN);
    const json_t *box = told(e, sb);
    assert_non_null(box);
    assert_string_equal(json_string_value(json_object_get(box, "sandbox")), sb->row.id);
    assert_string_equal(json_string_value(json_object_get(box, "tenant")), "default");
    assert_string_equal(json_string_value(json_object_get(box, "envd_ctl")), hf_box_control_socket(sb->box));
    const json_t *allow = json_object_get(told_doc(e, sb), "allow_out");
    assert_string_equal(json_string_value(json_array_get(allow, 0)), "198.51.100.7");
    const json_t *zones = json_object_get(json_object_get(e->netd.config, "dns"), "zones");
    assert_true(json_is_true(json_object_get(json_array_get(zones, 0), "private")));
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(json_array_get(zones, 0), "upstreams"), 0)),
        "10.0.0.53");
    assert_string_equal(json_string_value(json_array_get(
                            json_object_get(json_object_get(e->netd.config, "dns"), "upstreams"), 0)),
                        "192.0.2.53");
    int gone = 0;
    hf_sandbox_kill(sb, HF_CAUSE_API, "", hf_harness_on_done, &gone);
    hf_harness_wait(&e->h, &gone);
    UNTIL(json_object_size(e->netd.boxes) == 0);
}

static void test_closed_box_is_not_told(void **state)
{
    struct env *e = *state;
    struct hf_created cr = {0};
    struct hf_create_req req = hf_harness_req();
    hf_sandbox_create(e->h.c, &req, hf_harness_on_created, &cr, NULL);
    hf_harness_wait(&e->h, &cr.done);
    assert_true(*cr.id);
    assert_int_equal(json_object_size(e->netd.boxes), 0);
}

static void test_refused_is_no_sandbox(void **state)
{
    struct env *e = *state;
    UNTIL(e->netd.config);
    e->netd.refuse = true;
    struct hf_created cr = create(e, OPEN);
    assert_false(*cr.id);
    assert_int_equal(hf_err_http_status(&cr.err), 503);
    assert_non_null(strstr(cr.err.msg, "told to refuse"));
    assert_int_equal(hf_fake_count(e->h.run_dir), 0); /* nothing of it is left */
}

static void test_nobody_listens(void **state)
{
    struct env *e = *state;
    UNTIL(e->netd.config);
    struct hf_sandbox *sb = made(e, OPEN);
    hf_fake_netd_down(&e->netd);
    hf_harness_run_ms(&e->h, 50);
    uint64_t begin = hf_mono_ms();
    struct hf_created cr = create(e, OPEN);
    assert_false(*cr.id);
    assert_int_equal(hf_err_http_status(&cr.err), 503);
    assert_true(hf_mono_ms() - begin < 2800);
    assert_int_equal(sb->state, HF_RUNNING); /* those that run are left alone */
}

static void test_told_again(void **state)
{
    struct env *e = *state;
    struct hf_sandbox *stays = made(e, OPEN), *ends = made(e, OPEN);
    hf_fake_netd_down(&e->netd);
    hf_harness_run_ms(&e->h, 50);
    /* one ends while netd is away, and a new one knows a key that nobody has */
    int gone = 0;
    hf_sandbox_kill(ends, HF_CAUSE_API, "", hf_harness_on_done, &gone);
    hf_harness_wait(&e->h, &gone);
    (void)json_object_set_new(e->netd.boxes, "77", json_object());
    hf_fake_netd_up(&e->netd);
    UNTIL(json_object_size(e->netd.boxes) == 1 && e->netd.deletes >= 2 && e->netd.config);
    assert_non_null(told_doc(e, stays));
}

/* A create that comes while netd is being replaced waits for it. */
static void test_waits_for_netd(void **state)
{
    struct env *e = *state;
    UNTIL(e->netd.config);
    hf_fake_netd_down(&e->netd);
    hf_harness_run_ms(&e->h, 50);
    struct hf_created cr = {0};
    json_auto_t *doc = resolved(e, OPEN);
    struct hf_create_req req = hf_harness_req();
    req.network = doc;
    hf_sandbox_create(e->h.c, &req, hf_harness_on_created, &cr, NULL);
    hf_harness_run_ms(&e->h, 300);
    assert_int_equal(cr.done, 0);
    hf_fake_netd_up(&e->netd);
    hf_harness_wait(&e->h, &cr.done);
    assert_true(*cr.id);
}

/* It is there and says nothing: the connection is given up, and so is the create. */
static void test_silent(void **state)
{
    struct env *e = *state;
    UNTIL(e->netd.config);
    e->netd.silent = true;
    uint64_t begin = hf_mono_ms();
    struct hf_created cr = create(e, OPEN);
    assert_false(*cr.id);
    assert_int_equal(hf_err_http_status(&cr.err), 503);
    assert_true(hf_mono_ms() - begin < 2800);
}

/* The daemon restarts (as after SIGKILL: nothing of the old one is told to netd): everything is there again.
 */
static void test_restart(void **state)
{
    struct env *e = *state;
    char id[HF_ROW_ID];
    struct hf_sandbox *sb = made(e, OPEN);
    (void)snprintf(id, sizeof(id), "%s", sb->row.id);
    uint32_t key = hf_box_net_key(sb->box);
    net_down(e);
    struct hf_config cfg = e->h.cfg;
    uv_loop_t *loop = &e->h.loop;
    hf_fake_netd_done(&e->netd); /* its loop goes with the harness */
    hf_harness_down(&e->h);
    free_config(&cfg);
    hf_fake_fabric.keys[0] = key;
    hf_fake_fabric.keys[1] = 4242; /* the kernel has elements that no row owns */
    hf_fake_fabric.n_keys = 2;
    hf_harness_up(&e->h);
    set_config(&e->h.cfg);
    hf_fake_netd_init(&e->netd, loop, e->h.run_dir);
    hf_fake_netd_up(&e->netd);
    net_up(e);
    UNTIL(e->netd.deletes == 1 && json_object_size(e->netd.boxes) == 1);
    sb = hf_sandbox_find(e->h.c, "default", id);
    assert_non_null(sb);
    assert_non_null(told_doc(e, sb));
    assert_true(sb->wired);
}

static void put_group(struct env *e, const char *allow, int64_t version)
{
    json_auto_t *request = json_pack("{s:[s]}", "allow_out", allow), *doc = NULL;
    struct hf_err err = {0};
    int done = 0;
    if (hf_policy_resolve_group(request, &doc, &err) < 0)
        fail_msg("%s", err.msg);
    struct hf_policy_row p = {.tenant = "default", .name = "search", .version = version};
    p.doc = json_dumps(doc, 0);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_policy(b, &p);
    hf_put_event(b, &(struct hf_event_row){.kind = "x"});
    hf_meta_commit(e->h.meta, b, 0, NULL, NULL);
    hf_policy_row_done(&p);
    UNTIL((hf_get_policy(e->h.meta, "default", "search", &p) == 1 && p.version == version) ||
          (hf_policy_row_done(&p), false));
    hf_policy_row_done(&p);
    hf_cnet_group_changed(e->n, "default", "search", hf_harness_on_done, &done);
    hf_harness_wait(&e->h, &done);
}

static bool allows(const json_t *doc, const char *what)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(doc, "allow_out"), i, v)
    {
        if (strcmp(json_string_value(v), what) == 0)
            return true;
    }
    return false;
}

static void test_group_fans_out(void **state)
{
    struct env *e = *state;
    put_group(e, "203.0.113.1", 1);
    struct hf_sandbox *a = made(e, "{\"policies\":[\"search\"]}"),
                      *b = made(e, "{\"policies\":[\"search\"]}"), *c = made(e, OPEN);
    assert_true(allows(told_doc(e, a), "203.0.113.1"));
    unsigned before = e->netd.puts;
    put_group(e, "203.0.113.2", 2);
    assert_int_equal(e->netd.puts - before, 2); /* the third is not bound */
    assert_true(allows(told_doc(e, a), "203.0.113.2"));
    assert_true(allows(told_doc(e, b), "203.0.113.2"));
    assert_false(allows(told_doc(e, b), "203.0.113.1"));
    assert_false(allows(told_doc(e, c), "203.0.113.2"));
}

/* A netd of another version is replaced once; this one is the test itself and can't be ended, so it is used.
 */
static void test_other_version(void **state)
{
    struct env *e = *state;
    UNTIL(e->netd.config);
    hf_fake_netd_down(&e->netd);
    e->netd.version = "0.0.1";
    hf_fake_netd_up(&e->netd);
    UNTIL(e->netd.statuses >= 3 && e->netd.config);
    (void)made(e, OPEN);
}

static void on_refused(void *arg, const struct hf_err *err)
{
    struct hf_created *cr = arg;
    cr->done++;
    if (err)
        cr->err = *err;
}

/* An update that netd refuses: 503, and the old document is what counts. */
static void test_refused_update(void **state)
{
    struct env *e = *state;
    struct hf_sandbox *sb = made(e, OPEN);
    json_auto_t *doc = resolved(e, "{\"allowOut\":[\"203.0.113.77\"]}");
    struct hf_created cr = {0};
    struct hf_err err = {0};
    e->netd.refuse = true;
    assert_int_equal(hf_network_replace(sb, doc, on_refused, &cr, &err), 0);
    hf_harness_wait(&e->h, &cr.done);
    assert_int_equal(hf_err_http_status(&cr.err), 503);
    assert_null(strstr(sb->row.network, "203.0.113.77"));
    assert_true(allows(told_doc(e, sb), "198.51.100.7"));
}

/* ---- secrets and authorities ---- */

static int put_secret(struct env *e, const char *name, const char *value, int64_t version)
{
    struct hf_secret_row s = {.version = version};
    struct hf_err err = {0};
    (void)snprintf(s.id, sizeof(s.id), "sec_%s", name);
    (void)snprintf(s.tenant, sizeof(s.tenant), "default");
    (void)snprintf(s.name, sizeof(s.name), "%s", name);
    if (hf_cnet_seal_secret(e->n, "default", name, value, strlen(value), &s.sealed, &s.sealed_n, &err) < 0)
        fail_msg("%s", err.msg);
    assert_null(memmem(s.sealed, s.sealed_n, value, strlen(value)));
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_secret(b, &s);
    hf_meta_commit(e->h.meta, b, 0, NULL, NULL);
    hf_secret_row_done(&s);
    int r = 0;
    UNTIL(((r = hf_get_secret(e->h.meta, "default", name, &s)) == 1 && s.version == version) ||
          (hf_secret_row_done(&s), false));
    hf_secret_row_done(&s);
    return r;
}

static const char *told_secret(struct env *e, const char *name)
{
    const json_t *tenant = json_object_get(e->netd.tenants, "default");
    return json_string_value(json_object_get(json_object_get(tenant, "secrets"), name));
}

static void test_rotation(void **state)
{
    struct env *e = *state;
    int done = 0;
    put_secret(e, "openai", "first-value", 1);
    assert_null(told_secret(e, "openai")); /* nobody needs it */
    struct hf_sandbox *sb = made(e, OPEN);
    assert_string_equal(told_secret(e, "openai"), "first-value");
    json_t *box = json_incref((json_t *)(uintptr_t)told(e, sb));
    put_secret(e, "openai", "second-value", 2);
    hf_cnet_tenant_changed(e->n, "default", hf_harness_on_done, &done);
    hf_harness_wait(&e->h, &done);
    assert_string_equal(told_secret(e, "openai"), "second-value");
    assert_ptr_equal(box, told(e, sb)); /* the sandbox was not touched */
    json_decref(box);
}

/* Another node's key, or a row that was moved: the secret is not there, the sandbox is not held up by it. */
static void test_secret_that_cannot_be_opened(void **state)
{
    struct env *e = *state;
    put_secret(e, "good", "value-1", 1);
    struct hf_secret_row s = {.id = "sec_moved", .tenant = "default", .name = "moved", .version = 1};
    struct hf_err err = {0};
    assert_int_equal(hf_cnet_seal_secret(e->n, "other", "moved", "x", 1, &s.sealed, &s.sealed_n, &err), 0);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_secret(b, &s);
    hf_meta_commit(e->h.meta, b, 0, NULL, NULL);
    hf_secret_row_done(&s);
    UNTIL(hf_get_secret(e->h.meta, "default", "moved", &s) == 1 || (hf_secret_row_done(&s), false));
    hf_secret_row_done(&s);
    (void)made(e, OPEN);
    assert_string_equal(told_secret(e, "good"), "value-1");
    assert_null(told_secret(e, "moved"));
}

#define INTERCEPTED "{\"rules\":[{\"host\":\"api.test\",\"path\":\"/v1/*\",\"action\":\"allow\"}]}"

static void test_authority(void **state)
{
    struct env *e = *state;
    (void)made(e, OPEN);
    assert_null(strstr(e->h.fake->last_init, "BEGIN CERTIFICATE")); /* not where nothing is intercepted */
    (void)made(e, INTERCEPTED);
    assert_non_null(strstr(e->h.fake->last_init, "BEGIN CERTIFICATE"));
    assert_null(strstr(e->h.fake->last_init, "PRIVATE KEY"));
    const json_t *ca = json_object_get(json_object_get(e->netd.tenants, "default"), "ca");
    const char *cert = json_string_value(json_object_get(ca, "cert"));
    assert_non_null(cert);
    assert_non_null(strstr(json_string_value(json_object_get(ca, "key")), "PRIVATE KEY"));
    hf_auto_free char *first = hf_xstrdup(cert);
    struct hf_ca_row row = {0};
    UNTIL(hf_get_ca(e->h.meta, "default", &row) == 1);
    assert_string_equal(row.cert, first);
    assert_null(memmem(row.sealed_key, row.sealed_key_n, "PRIVATE", 7));
    hf_ca_row_done(&row);
    /* stable over a restart of the daemon's part, another tenant has another */
    net_down(e);
    net_up(e);
    struct hf_err err = {0};
    assert_string_equal(hf_cnet_ca(e->n, "default", &err), first);
    assert_string_not_equal(hf_cnet_ca(e->n, "other", &err), first);
}

/* A running box whose policy begins to need interception trusts the authority before the policy is in force.
 */
static void test_authority_comes_later(void **state)
{
    struct env *e = *state;
    struct hf_sandbox *sb = made(e, OPEN);
    assert_null(strstr(e->h.fake->last_init, "BEGIN CERTIFICATE"));
    json_auto_t *doc = resolved(e, INTERCEPTED);
    struct hf_err err = {0};
    int done = 0;
    assert_int_equal(hf_network_replace(sb, doc, hf_harness_on_done, &done, &err), 0);
    hf_harness_wait(&e->h, &done);
    assert_non_null(strstr(e->h.fake->last_init, "BEGIN CERTIFICATE"));
    assert_null(strstr(e->h.fake->last_init, "accessToken")); /* nothing else of the box is set again */
    assert_int_equal(json_array_size(json_object_get(told_doc(e, sb), "rules")), 1);
    /* a box that can't be told stays with its old policy */
    struct hf_sandbox *other = made(e, OPEN);
    e->h.fake->init_status = 500;
    struct hf_created failed = {0};
    assert_int_equal(hf_network_replace(other, doc, on_refused, &failed, &err), 0);
    hf_harness_wait(&e->h, &failed.done);
    assert_int_equal(hf_err_http_status(&failed.err), 503);
    assert_int_equal(json_array_size(json_object_get(told_doc(e, other), "rules")), 0);
    assert_null(strstr(other->row.network, "api.test"));
}

static void test_proxy_password(void **state)
{
    struct env *e = *state;
    struct hf_sandbox *sb = made(e, "{\"allowOut\":[\"198.51.100.7\"],\"egressProxy\":{\"address\":"
                                    "\"203.0.113.9:1080\",\"username\":\"u\",\"password\":\"hunter-22\"}}");
    assert_null(strstr(sb->row.network, "hunter-22"));
    const json_t *proxy = json_object_get(told_doc(e, sb), "egress_proxy");
    assert_string_equal(json_string_value(json_object_get(proxy, "password")), "hunter-22");
    /* bound to the tenant */
    json_auto_t *doc = json_loads(sb->row.network, 0, NULL);
    struct hf_err err = {0};
    assert_int_equal(hf_cnet_unseal_doc(e->n, "other", doc, &err), -EBADMSG);
    assert_int_equal(hf_cnet_unseal_doc(NULL, "default", doc, &err), -ENOTSUP);
    assert_int_equal(hf_cnet_unseal_doc(e->n, "default", doc, &err), 0);
    assert_int_equal(hf_cnet_seal_doc(NULL, "default", doc, &err), -ENOTSUP);
}

/* ---- records ---- */

static void append(struct env *e, unsigned seq, const char *lines)
{
    hf_auto_free char *path = hf_xasprintf("%s/net/records-%u.jsonl", e->h.dir, seq);
    FILE *f = fopen(path, "ae");
    assert_non_null(f);
    assert_true(fputs(lines, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

#define REQUEST(ms, decision)                                                                                \
    "{\"kind\":\"request\",\"time_ms\":" ms ",\"sandbox\":\"i1\",\"tenant\":\"default\",\"session\":\"s1\"," \
    "\"host\":\"api.test\",\"decision\":\"" decision "\"}\n"
#define DENIAL(ms)                                                          \
    "{\"kind\":\"denial\",\"time_ms\":" ms                                  \
    ",\"sandbox\":\"i2\",\"tenant\":\"default\",\"session\":\"\",\"what\":" \
    "\"dns\"}\n"

struct seen {
    int rows, denied;
    int64_t last;
};

static bool see(void *arg, const struct hf_outbound_row *o)
{
    struct seen *s = arg;
    s->rows++;
    s->denied += o->denied;
    s->last = o->time_ms;
    return true;
}

static struct seen rows(struct env *e, const char *sandbox, const char *session)
{
    struct seen s = {0};
    assert_int_equal(hf_each_outbound(e->h.meta, "default", sandbox, session, 0, 1000, see, &s), 0);
    return s;
}

static bool there(struct env *e, unsigned seq)
{
    hf_auto_free char *path = hf_xasprintf("%s/net/records-%u.jsonl", e->h.dir, seq);
    return access(path, F_OK) == 0;
}

/* Times in the future: the age limit is an hour in this test. */
#define T1 "9000000000001"
#define T2 "9000000000002"
#define T3 "9000000000003"
#define T4 "9000000000004"

static void test_records(void **state)
{
    struct env *e = *state;
    append(e, 1, REQUEST(T1, "allow") REQUEST(T2, "deny") "{\"kind\":\"req");
    UNTIL(rows(e, NULL, NULL).rows == 2); /* the third line is not whole yet */
    append(e, 1, "uest\",\"time_ms\":" T3 ",\"sandbox\":\"i1\",\"tenant\":\"default\"}\n");
    UNTIL(rows(e, NULL, NULL).rows == 3);
    assert_int_equal(rows(e, "i1", NULL).rows, 3);
    assert_int_equal(rows(e, NULL, "s1").rows, 2);
    assert_int_equal(rows(e, "i1", NULL).denied, 1);
    assert_true(there(e, 1)); /* it may still grow */
    append(e, 1, "not json\n\n{\"kind\":\"other\"}\n{\"torn");
    append(e, 2, DENIAL(T4));
    UNTIL(rows(e, "i2", NULL).rows == 1);
    assert_int_equal(rows(e, "i2", NULL).denied, 1);
    assert_int_equal(rows(e, NULL, NULL).rows, 4);
    UNTIL(!there(e, 1)); /* finished, and its rows are durable */
    assert_true(there(e, 2));
}

/* The daemon comes back where it was: no line twice, none lost; and a file that is younger than the cursor
 * says (netd dropped some) is begun at its start. */
static void test_records_again(void **state)
{
    struct env *e = *state;
    append(e, 1, REQUEST(T1, "allow"));
    UNTIL(rows(e, NULL, NULL).rows == 1);
    net_down(e);
    append(e, 1, REQUEST(T2, "allow"));
    net_up(e);
    UNTIL(rows(e, NULL, NULL).rows == 2);
    hf_auto_free char *path = hf_xasprintf("%s/net/records-1.jsonl", e->h.dir);
    assert_int_equal(unlink(path), 0);
    append(e, 5, REQUEST(T3, "allow"));
    UNTIL(rows(e, NULL, NULL).rows == 3);
    hf_harness_run_ms(&e->h, 1200);
    assert_int_equal(rows(e, NULL, NULL).rows, 3);
}

static void test_old_records_go(void **state)
{
    struct env *e = *state;
    struct hf_outbound_row old = {.time_ms = 1000, .tenant = "default", .kind = "request"};
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_outbound(b, &old);
    hf_meta_commit(e->h.meta, b, 0, NULL, NULL);
    UNTIL(rows(e, NULL, NULL).rows == 1);
    append(e, 1, REQUEST(T1, "allow"));
    UNTIL(rows(e, NULL, NULL).last > 1000);
    assert_int_equal(rows(e, NULL, NULL).rows, 1);
}

/* ---- the host ---- */

static void test_host_cannot(void **state)
{
    struct env *e = *state;
    net_down(e);
    hf_fake_fabric.ok = false;
    net_up(e);
    assert_null(hf_cnet_config(e->n));
    assert_string_equal(hf_cnet_missing(e->n), "no nft");
    struct hf_created cr = {0};
    struct hf_create_req req = hf_harness_req();
    hf_sandbox_create(e->h.c, &req, hf_harness_on_created, &cr, NULL);
    hf_harness_wait(&e->h, &cr.done);
    assert_true(*cr.id); /* with loopback only */
    net_down(e);
    hf_fake_fabric.ok = true;
    e->h.cfg.network = HF_NETWORK_OFF;
    net_up(e);
    assert_null(hf_cnet_config(e->n));
    assert_non_null(strstr(hf_cnet_missing(e->n), "off"));
}

/* The last box is gone: so is the fabric. */
static void test_fabric_goes(void **state)
{
    struct env *e = *state;
    int closed = 0;
    UNTIL(e->netd.config);
    hf_fake_netd_down(&e->netd); /* this process is the fake netd and must not be ended */
    hf_harness_run_ms(&e->h, 20);
    hf_cnet_close(e->n, true, hf_harness_on_done, &closed);
    hf_harness_wait(&e->h, &closed);
    assert_int_equal(hf_fake_fabric.removed, 1);
    net_up(e);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN); /* as the daemon does: a netd that dies is an error of a write */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_create_tells_all, setup, teardown),
        cmocka_unit_test_setup_teardown(test_closed_box_is_not_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused_is_no_sandbox, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nobody_listens, setup, teardown),
        cmocka_unit_test_setup_teardown(test_told_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_waits_for_netd, setup, teardown),
        cmocka_unit_test_setup_teardown(test_silent, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_group_fans_out, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_version, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused_update, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rotation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_authority_comes_later, setup, teardown),
        cmocka_unit_test_setup_teardown(test_secret_that_cannot_be_opened, setup, teardown),
        cmocka_unit_test_setup_teardown(test_authority, setup, teardown),
        cmocka_unit_test_setup_teardown(test_proxy_password, setup, teardown),
        cmocka_unit_test_setup_teardown(test_records, setup, teardown),
        cmocka_unit_test_setup_teardown(test_records_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_old_records_go, setup, teardown),
        cmocka_unit_test_setup_teardown(test_host_cannot, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fabric_goes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
