/* Core of the control plane: create, kill, timeouts, the reconciler, crashes at every named point. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "control/daemon.h"
#include "control/envd_client.h"
#include "control/reconcile.h"
#include "harness.h"

static void row_is(struct hf_harness *h, const char *id, const char *state, const char *cause)
{
    hf_auto_sandbox_row struct hf_sandbox_row row = {0};
    assert_int_equal(hf_get_sandbox(h->meta, id, &row), 1);
    assert_string_equal(row.state, state);
    assert_string_equal(row.cause, cause);
    assert_true(!hf_state_ended(HF_KILLED) || row.ended_ms > 0 || strcmp(state, "running") == 0);
}

/* The row may be written a little after the answer: slow machines need the wait. */
static void row_becomes(struct hf_harness *h, const char *id, const char *state, const char *cause)
{
    for (int i = 0; i < 100; i++) {
        hf_auto_sandbox_row struct hf_sandbox_row row = {0};
        if (hf_get_sandbox(h->meta, id, &row) == 1 && strcmp(row.state, state) == 0)
            break;
        hf_harness_run_ms(h, 30);
    }
    row_is(h, id, state, cause);
}

/* ---- states ---- */

static void test_transitions(void **state)
{
    (void)state;
    static const char *const legal[] = {
        "creating>running", "creating>killing", "creating>failed",  "running>pausing", "running>killing",
        "pausing>paused",   "pausing>running",  "pausing>killing",  "paused>resuming", "paused>killing",
        "resuming>running", "resuming>paused",  "resuming>killing", "killing>killed",  "killing>failed",
    };
    size_t n = 0;
    for (int from = 0; from < HF_STATES; from++) {
        for (int to = 0; to < HF_STATES; to++) {
            char pair[40];
            (void)snprintf(pair, sizeof(pair), "%s>%s", hf_state_name((enum hf_state)from),
                           hf_state_name((enum hf_state)to));
            bool listed = false;
            for (size_t i = 0; i < HF_ARRAY_LEN(legal); i++)
                listed |= strcmp(legal[i], pair) == 0;
            assert_int_equal(hf_state_may((enum hf_state)from, (enum hf_state)to), listed);
            n += listed;
        }
    }
    assert_int_equal(n, HF_ARRAY_LEN(legal));
    enum hf_state s;
    assert_true(hf_state_parse(HF_STR("paused"), &s));
    assert_int_equal(s, HF_PAUSED);
    assert_false(hf_state_parse(HF_STR("dead"), &s));
}

/* ---- create ---- */

static void test_create_and_kill(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    char id[HF_ROW_ID];
    (void)snprintf(id, sizeof(id), "%s", sb->row.id);
    assert_int_equal(strlen(id), HF_SANDBOX_ID_LEN);
    assert_int_equal(strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789"), HF_SANDBOX_ID_LEN);
    assert_int_equal(sb->state, HF_RUNNING);
    assert_string_equal(sb->row.envd_version, "0.6.13");
    assert_null(hf_sandbox_find(h->c, "other", id));
    assert_int_equal(hf_fake_count(h->run_dir), 1);
    char token[65];
    hf_sandbox_token(h->c, id, token);
    assert_non_null(strstr(h->fake->last_init, token));
    row_is(h, id, "running", "api");

    int done = 0;
    hf_sandbox_kill(sb, HF_CAUSE_API, "", hf_harness_on_done, &done);
    hf_sandbox_kill(sb, HF_CAUSE_TIMEOUT, "", hf_harness_on_done, &done); /* joins */
    assert_int_equal(done, 0);
    hf_harness_wait(h, &done);
    assert_int_equal(done, 2);
    assert_null(hf_sandbox_find(h->c, NULL, id));
    assert_int_equal(hf_fake_count(h->run_dir), 0);
    assert_int_equal(h->dropped, 1);
    row_is(h, id, "killed", "api");
}

static void test_env_reaches_envd_only(void **state)
{
    struct hf_harness *h = *state;
    struct hf_created cr = {0};
    struct hf_create_req req = hf_harness_req();
    json_auto_t *env = json_pack("{s:s}", "SECRET", "hunter2-value");
    req.env = env;
    hf_sandbox_create(h->c, &req, hf_harness_on_created, &cr, NULL);
    hf_harness_wait(h, &cr.done);
    assert_non_null(strstr(h->fake->last_init, "hunter2-value"));
    hf_harness_down(h);
    char cmd[256];
    (void)snprintf(cmd, sizeof(cmd), "%s/%s", h->dir, HF_META_DB_NAME);
    FILE *f = fopen(cmd, "re");
    assert_non_null(f);
    static char all[1 << 20];
    size_t n = fread(all, 1, sizeof(all), f);
    (void)fclose(f);
    assert_true(n > 0);
    assert_null(memmem(all, n, "hunter2-value", 13));
    hf_harness_up(h);
}

static void test_driver_failure(void **state)
{
    struct hf_harness *h = *state;
    struct hf_created cr = {0};
    struct hf_create_req req = hf_harness_req();
    char id[HF_ROW_ID];
    h->fake->fail_create = -ENOSPC;
    hf_sandbox_create(h->c, &req, hf_harness_on_created, &cr, id);
    hf_harness_wait(h, &cr.done);
    assert_int_equal(hf_err_http_status(&cr.err), 507);
    assert_null(hf_sandbox_find(h->c, NULL, id));
    hf_harness_run_ms(h, 20);
    row_is(h, id, "failed", "create-failed");
}

static void check_init_failure(struct hf_harness *h, int status)
{
    struct hf_created cr = {0};
    struct hf_create_req req = hf_harness_req();
    char id[HF_ROW_ID];
    h->fake->init_status = status;
    hf_sandbox_create(h->c, &req, hf_harness_on_created, &cr, id);
    hf_harness_wait(h, &cr.done);
    assert_true(cr.err.r < 0);
    assert_int_equal(hf_fake_count(h->run_dir), 0); /* undone before the answer */
    row_is(h, id, "failed", "create-failed");
}

static void test_init_failures(void **state)
{
    check_init_failure(*state, 500);
    check_init_failure(*state, -1);
    ((struct hf_harness *)*state)->fake->other_generation = true;
    check_init_failure(*state, 204);
}

static void test_kill_during_create(void **state)
{
    struct hf_harness *h = *state;
    h->fake->create_ms = 60;
    /* 0: the row is not written yet; 30: the driver works; 70: envd does not answer */
    static const unsigned moments[] = {0, 30, 70};
    for (size_t i = 0; i < HF_ARRAY_LEN(moments); i++) {
        h->fake->init_status = moments[i] == 70 ? 0 : 204;
        struct hf_created cr = {0};
        struct hf_create_req req = hf_harness_req();
        char id[HF_ROW_ID];
        hf_sandbox_create(h->c, &req, hf_harness_on_created, &cr, id);
        if (moments[i])
            hf_harness_run_ms(h, moments[i]);
        int done = 0;
        hf_sandbox_kill(hf_sandbox_find(h->c, NULL, id), HF_CAUSE_API, "", hf_harness_on_done, &done);
        hf_harness_wait(h, &done);
        hf_harness_wait(h, &cr.done);
        assert_int_equal(cr.done, 1);
        assert_int_equal(hf_err_http_status(&cr.err), 409);
        assert_int_equal(hf_fake_count(h->run_dir), 0);
        row_is(h, id, "killed", "api");
    }
}

static void test_box_dies_during_create(void **state)
{
    struct hf_harness *h = *state;
    struct hf_created cr = {0};
    struct hf_create_req req = hf_harness_req();
    char id[HF_ROW_ID];
    h->fake->init_status = 0; /* envd does not answer */
    hf_sandbox_create(h->c, &req, hf_harness_on_created, &cr, id);
    hf_harness_run_ms(h, 30);
    hf_fake_end(h->fake, id, HF_BOX_OOM, "its memory was too small");
    hf_harness_wait(h, &cr.done);
    assert_int_equal(hf_err_http_status(&cr.err), 500);
    assert_non_null(strstr(cr.err.msg, "its memory was too small"));
    row_becomes(h, id, "failed", "create-failed");
    assert_int_equal(hf_fake_count(h->run_dir), 0);
}

static void test_hundred_at_once(void **state)
{
    struct hf_harness *h = *state;
    enum { N = 100 };
    static struct hf_created cr[N];
    memset(cr, 0, sizeof(cr));
    struct hf_create_req req = hf_harness_req();
    for (int i = 0; i < N; i++)
        hf_sandbox_create(h->c, &req, hf_harness_on_created, &cr[i], NULL);
    for (int i = 0; i < N; i++)
        hf_harness_wait(h, &cr[i].done);
    assert_int_equal(hf_control_count(h->c, "default", HF_RUNNING), N);
    assert_int_equal(hf_fake_count(h->run_dir), N);
    int done = 0;
    for (int i = 0; i < N; i++)
        hf_sandbox_kill(hf_sandbox_find(h->c, NULL, cr[i].id), HF_CAUSE_API, "", hf_harness_on_done, &done);
    while (done < N)
        (void)uv_run(&h->loop, UV_RUN_ONCE);
    assert_int_equal(hf_fake_count(h->run_dir), 0);
}

/* ---- ends ---- */

static void test_box_dies(void **state)
{
    struct hf_harness *h = *state;
    static const struct {
        enum hf_box_cause cause;
        const char *name;
    } cases[] = {{HF_BOX_OOM, "oom"},
                 {HF_BOX_EXITED, "exited"},
                 {HF_BOX_KILLED, "killed-outside"},
                 {HF_BOX_LOST, "supervisor-lost"}};
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        struct hf_sandbox *sb = hf_harness_create(h);
        char id[HF_ROW_ID];
        (void)snprintf(id, sizeof(id), "%s", sb->row.id);
        hf_fake_end(h->fake, id, cases[i].cause, "it was seen to end");
        hf_harness_run_ms(h, 50);
        assert_null(hf_sandbox_find(h->c, NULL, id));
        assert_int_equal(hf_fake_count(h->run_dir), 0);
        row_is(h, id, "killed", cases[i].name);
    }
}

static void test_timeout(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    char id[HF_ROW_ID];
    (void)snprintf(id, sizeof(id), "%s", sb->row.id);
    int64_t end = sb->row.end_ms;
    assert_false(hf_sandbox_set_timeout(sb, 10, true)); /* would shorten */
    assert_int_equal(sb->row.end_ms, end);
    assert_true(hf_sandbox_set_timeout(sb, 7200, true));
    assert_true(sb->row.end_ms > end);
    assert_true(hf_sandbox_set_timeout(sb, 1, false));
    uint64_t begin = hf_mono_ms();
    hf_harness_run_ms(h, 900);
    assert_non_null(hf_sandbox_find(h->c, NULL, id));
    while (hf_sandbox_find(h->c, NULL, id))
        (void)uv_run(&h->loop, UV_RUN_ONCE);
    uint64_t took = hf_mono_ms() - begin;
    assert_true(took >= 990 && took < 1300);
    hf_harness_run_ms(h, 20);
    row_is(h, id, "killed", "timeout");
}

static void test_timeout_survives_restart(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    char id[HF_ROW_ID];
    (void)snprintf(id, sizeof(id), "%s", sb->row.id);
    (void)hf_sandbox_set_timeout(sb, 1, false);
    hf_harness_run_ms(h, 20);
    hf_harness_down(h);
    hf_harness_up(h);
    sb = hf_sandbox_find(h->c, "default", id);
    assert_non_null(sb);
    assert_int_equal(sb->state, HF_RUNNING);
    hf_harness_run_ms(h, 1200);
    assert_null(hf_sandbox_find(h->c, NULL, id));
    row_is(h, id, "killed", "timeout");
}

static void test_samples(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    for (uint32_t i = 0; i < HF_CONTROL_SAMPLES_MAX + 10; i++)
        hf_sample_now(sb);
    assert_int_equal(sb->samples_n, HF_CONTROL_SAMPLES_MAX);
    assert_int_equal(sb->samples_at, 10);
}

/* ---- reconciler ---- */

static void test_decide(void **state)
{
    (void)state;
    static const struct {
        enum hf_state row;
        bool cold;
        enum hf_found_box box;
        bool same_boot;
        enum hf_settle want;
        const char *cause;
    } table[] = {
        {HF_CREATING, false, HF_BOX_NONE, true, HF_SETTLE_KILL, "interrupted"},
        {HF_CREATING, false, HF_BOX_ALIVE, true, HF_SETTLE_KILL, "interrupted"},
        {HF_CREATING, false, HF_BOX_DEAD, true, HF_SETTLE_KILL, "interrupted"},
        {HF_RUNNING, false, HF_BOX_ALIVE, true, HF_SETTLE_ADOPT, ""},
        {HF_RUNNING, false, HF_BOX_DEAD, true, HF_SETTLE_KILL, "oom"},
        {HF_RUNNING, false, HF_BOX_NONE, true, HF_SETTLE_KILL, "supervisor-lost"},
        {HF_RUNNING, false, HF_BOX_NONE, false, HF_SETTLE_KILL, "host-reboot"},
        {HF_PAUSING, false, HF_BOX_ALIVE, true, HF_SETTLE_FROZEN, ""},
        {HF_PAUSING, false, HF_BOX_NONE, false, HF_SETTLE_KILL, "host-reboot"},
        {HF_PAUSED, false, HF_BOX_ALIVE, true, HF_SETTLE_FROZEN, ""},
        {HF_PAUSED, false, HF_BOX_NONE, false, HF_SETTLE_KILL, "host-reboot"},
        {HF_PAUSED, false, HF_BOX_DEAD, true, HF_SETTLE_KILL, "oom"},
        {HF_PAUSED, true, HF_BOX_NONE, false, HF_SETTLE_COLD, ""},
        {HF_PAUSED, true, HF_BOX_ALIVE, true, HF_SETTLE_COLD, ""},
        {HF_RESUMING, false, HF_BOX_ALIVE, true, HF_SETTLE_THAWED, ""},
        {HF_RESUMING, true, HF_BOX_ALIVE, true, HF_SETTLE_COLD, ""},
        {HF_RESUMING, true, HF_BOX_NONE, false, HF_SETTLE_COLD, ""},
        {HF_RESUMING, false, HF_BOX_NONE, false, HF_SETTLE_KILL, "host-reboot"},
        {HF_KILLING, false, HF_BOX_NONE, true, HF_SETTLE_CONTINUE, ""},
        {HF_KILLING, false, HF_BOX_ALIVE, true, HF_SETTLE_CONTINUE, ""},
        {HF_KILLING, false, HF_BOX_DEAD, false, HF_SETTLE_CONTINUE, ""},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(table); i++) {
        const char *cause = "", *detail = NULL;
        assert_int_equal(hf_reconcile_decide(table[i].row, table[i].cold, table[i].box, HF_BOX_OOM,
                                             table[i].same_boot, &cause, &detail),
                         table[i].want);
        assert_string_equal(cause, table[i].cause);
    }
}

static void test_restart_adopts(void **state)
{
    struct hf_harness *h = *state;
    struct hf_sandbox *sb = hf_harness_create(h);
    char id[HF_ROW_ID], token[65], again[65];
    (void)snprintf(id, sizeof(id), "%s", sb->row.id);
    hf_sandbox_token(h->c, id, token);
    struct hf_sandbox *oom = hf_harness_create(h), *lost = hf_harness_create(h);
    char oom_id[HF_ROW_ID], lost_id[HF_ROW_ID];
    (void)snprintf(oom_id, sizeof(oom_id), "%s", oom->row.id);
    (void)snprintf(lost_id, sizeof(lost_id), "%s", lost->row.id);
    hf_harness_down(h);
    hf_fake_end_offline(h->run_dir, oom_id, HF_BOX_OOM);
    hf_fake_end_offline(h->run_dir, lost_id, HF_BOX_LOST);
    hf_fake_plant(h->run_dir, "inobody");
    hf_fake_plant(h->run_dir, "");
    hf_fake_plant(h->run_dir, id); /* a second box for the same sandbox */
    hf_harness_up(h);
    hf_harness_run_ms(h, 50);
    assert_non_null(hf_sandbox_find(h->c, "default", id));
    hf_sandbox_token(h->c, id, again);
    assert_string_equal(token, again);
    assert_int_equal(hf_fake_count(h->run_dir), 1);
    row_is(h, oom_id, "killed", "oom");
    row_is(h, lost_id, "killed", "supervisor-lost");
    row_is(h, id, "running", "api");
}

/* ---- crashes ---- */

/* The child plays the daemon: creates, kills, and dies at the point. It is a program of its own because a
 * process reads the name of its kill point once. Returns only when the point was never reached. */
static int play_daemon(const char *dir)
{
    struct hf_harness h = {0};
    (void)snprintf(h.dir, sizeof(h.dir), "%s", dir);
    (void)snprintf(h.run_dir, sizeof(h.run_dir), "%s/run", dir);
    hf_harness_up(&h);
    struct hf_sandbox *sb = hf_harness_create(&h);
    int done = 0;
    hf_sandbox_kill(sb, HF_CAUSE_API, "", hf_harness_on_done, &done);
    hf_harness_wait(&h, &done);
    return 0;
}

static int run_child(const char *dir, const char *point)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)setenv("HOLDFAST_KILLPOINT", point, 1);
        (void)execl("/proc/self/exe", "test-core", "--daemon", dir, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

struct seen {
    unsigned live, running, wrong;
};

static void look(void *arg, const struct hf_sandbox_row *row)
{
    struct seen *s = arg;
    s->live++;
    s->running += strcmp(row->state, "running") == 0;
    s->wrong += strcmp(row->state, "running") != 0;
}

/* A rollback that was killed before it removed the former box, in whatever order the boxes are found. */
static void test_restart_takes_the_running_box(void **state)
{
    struct hf_harness *h = *state;
    char id[HF_ROW_ID], dir[128], now[128];
    struct hf_sandbox *sb = hf_harness_create(h);
    (void)snprintf(id, sizeof(id), "%s", sb->row.id);
    (void)snprintf(dir, sizeof(dir), "%s", hf_box_control_socket(sb->box));
    hf_harness_down(h);
    for (int i = 0; i < 8; i++)
        hf_fake_plant_frozen(h->run_dir, id);
    hf_harness_up(h);
    hf_harness_run_ms(h, 50);
    sb = hf_sandbox_find(h->c, "default", id);
    assert_non_null(sb);
    (void)snprintf(now, sizeof(now), "%s", hf_box_control_socket(sb->box));
    assert_string_equal(now, dir);
    assert_int_equal(hf_fake_count(h->run_dir), 1);
    row_is(h, id, "running", "api");
}

static void test_crash_at_every_point(void **state)
{
    (void)state;
    static const struct {
        const char *point;
        unsigned left; /* running sandboxes that the next daemon must find */
    } points[] = {
        {"create.validated", 0},   {"create.row-written", 0}, {"create.box-made", 0},
        {"create.envd-init", 0},   {"create.running-row", 1}, {"kill.row-written", 0},
        {"kill.box-destroyed", 0}, {"kill.killed-row", 0},    {"reconcile.begin", 0},
        {"reconcile.scanned", 0},  {"reconcile.adopted", 0},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        struct hf_harness h;
        hf_harness_init(&h);
        int status = run_child(h.dir, points[i].point);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        hf_harness_up(&h);
        hf_harness_run_ms(&h, 50);
        struct seen seen = {0};
        assert_int_equal(hf_each_live_sandbox(h.meta, look, &seen), 0);
        if (seen.running != points[i].left || seen.wrong || hf_fake_count(h.run_dir) != points[i].left)
            fail_msg("after a crash at %s: %u running, %u in a third state, %u boxes", points[i].point,
                     seen.running, seen.wrong, hf_fake_count(h.run_dir));
        hf_harness_down(&h);
        hf_harness_done(&h);
    }
}

/* ---- daemon ---- */

static void test_bind_rule(void **state)
{
    (void)state;
    static const char *const hosts[] = {"0.0.0.0", "192.0.2.1", "::", "2001:db8::1", "localhost"};
    for (size_t i = 0; i < HF_ARRAY_LEN(hosts); i++) {
        struct hf_config cfg = {.listen_host = (char *)(uintptr_t)hosts[i]};
        struct hf_err err = {0};
        assert_int_equal(hf_daemon_run(&cfg, NULL, &err), -EPERM);
        assert_non_null(strstr(err.msg, "--insecure-listen"));
    }
}

/* ---- envd client ---- */

static void test_parse_head(void **state)
{
    (void)state;
    int status = 0;
    char version[24] = "", generation[24] = "";
#define PARSE(s) \
    hf_envd_parse_head(HF_STR(s), &status, version, sizeof(version), generation, sizeof(generation))
    assert_int_equal(PARSE("HTTP/1.1 204 No Content\r\nX-ENVD-Version:  1.2.3\r\n\r\n"), 1);
    assert_int_equal(status, 204);
    assert_string_equal(version, "1.2.3");
    assert_int_equal(PARSE("HTTP/1.1 204 X\r\nX-Holdfast-Generation: 7\r\n\r\n"), 1);
    assert_string_equal(generation, "7");
    assert_int_equal(PARSE("HTTP/1.1 401 \r\nA: b\r\n\r\nbody"), 1);
    assert_int_equal(status, 401);
    assert_int_equal(PARSE("HTTP/1.1 204 No"), 0);
    assert_int_equal(PARSE("HTTP/1.0 204 X\r\n\r\n"), -EBADMSG);
    assert_int_equal(PARSE("\r\n\r\n"), -EBADMSG);
    assert_int_equal(PARSE("HTTP/1.1 2x4 X\r\n\r\n"), -EBADMSG);
}

int main(int argc, char **argv)
{
    hf_log_set_level(HF_LOG_ERROR);
    if (argc == 3 && strcmp(argv[1], "--daemon") == 0)
        return play_daemon(argv[2]);
#define T(f) cmocka_unit_test_setup_teardown(f, hf_harness_setup, hf_harness_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transitions),
        T(test_create_and_kill),
        T(test_env_reaches_envd_only),
        T(test_driver_failure),
        T(test_init_failures),
        T(test_kill_during_create),
        T(test_box_dies_during_create),
        T(test_hundred_at_once),
        T(test_box_dies),
        T(test_timeout),
        T(test_timeout_survives_restart),
        T(test_samples),
        cmocka_unit_test(test_decide),
        T(test_restart_adopts),
        T(test_restart_takes_the_running_box),
        cmocka_unit_test(test_crash_at_every_point),
        cmocka_unit_test(test_bind_rule),
        cmocka_unit_test(test_parse_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
