/* SIGKILL of daemon and supervisor at every named point and at random times: afterwards a new daemon finds
 * what there is and removes it, and nothing is left. Also: 100 creates at once. Needs root.
 *
 * The victim is this program again: test_faults SHIM GUEST PROBES OP DATA RUN FABRIC. */
#include "harness.h"

#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/id.h"

#define ALL_AT_ONCE 100
#define RANDOM_ROUNDS 16
#define RANDOM_MAX_MS 40u

static struct h_host host;
static char **args;

static int setup(void **state)
{
    h_setup(&host);
    h_fabric_open(&host, NULL);
    *state = &host;
    return 0;
}

static int teardown(void **state)
{
    h_fabric_close(&host);
    h_teardown(&host);
    return 0;
}

/* ---- the victim ---- */

static int victim(const char *op)
{
    struct hf_err err;
    struct hf_box_spec spec = {.sandbox_id = "victim", .template_id = H_TEMPLATE, .network = true};
    bool warm = strncmp(op, "claim", 5) == 0;
    if (strcmp(op, "claim-without") == 0)
        spec.network = false;
    h_open(&host, warm);
    if (warm)
        h_spin(&host, 300);
    struct hf_box *box = h_create_spec(&host, &spec, &err);
    if (!box)
        return 3;
    if (strcmp(op, "create-many") == 0)
        for (int i = 0; i < 100; i++)
            (void)h_create_spec(&host, &spec, &err);
    if (strcmp(op, "claim-without") == 0)
        h_spin(&host, 300); /* the wire goes after the answer */
    if (strcmp(op, "unplug") == 0)
        return h_network(&host, box, false, &err) < 0 ? 5 : 0;
    if (strcmp(op, "destroy") == 0)
        return h_destroy(&host, box, &err) < 0 ? 4 : 0;
    return 0;
}

static pid_t start_victim(const char *op, const char *point)
{
    char env[96];
    char op_copy[16];
    (void)snprintf(op_copy, sizeof(op_copy), "%s", op);
    (void)snprintf(env, sizeof(env), "HOLDFAST_KILLPOINT=%s", point);
    char *argv[] = {args[0], args[1], args[2], args[3], op_copy, host.data, host.run, host.fabric_id, NULL};
    char *envp[] = {env, NULL};
    pid_t pid;
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, envp), 0);
    return pid;
}

static int wait_for(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* ---- after the fault ---- */

static size_t recover(void)
{
    static unsigned last;
    h_open(&host, 0);
    size_t n = h_sweep(&host);
    h_assert_clean(&host);
    struct hf_box *box = h_create(&host, "after");
    h_expect(box, "echo fine", "fine\n");
    assert_true(h_box_number(box) > last); /* a number is a key in the fabric: never used twice */
    last = h_box_number(box);
    assert_int_equal(h_destroy(&host, box, NULL), 0);
    h_close(&host, true);
    h_assert_clean(&host);
    return n;
}

static void test_points_of_create(void **state)
{
    static const struct {
        const char *op, *point;
        bool daemon_dies;
    } points[] = {
        {"create", "cell.mkdir", true},
        {"create", "cell.disk", true},
        {"create", "cell.spec", true},
        {"create", "cell.shim-started", true},
        {"create", "shim.loop", false},
        {"create", "shim.mounted", false},
        {"create", "shim.cgroup", false},
        {"create", "shim.cloned", false},
        {"create", "shim.mapped", false},
        {"create", "shim.ready", false},
        {"create", "cell.ready", true},
        {"claim", "shim.claimed", false},
        {"claim", "cell.claimed", true},
        {"create", "shim.net-plug", false},
        {"create", "net.link.made", false},
        {"create", "shim.net-plugged", false},
        {"claim-without", "shim.net-unplug", false},
        {"claim-without", "shim.net-unplugged", false},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        int status = wait_for(start_victim(points[i].op, points[i].point));
        bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (died != points[i].daemon_dies)
            fail_msg("%s: the daemon ended with status %x", points[i].point, status);
        size_t n = recover();
        print_message("%-18s %zu found\n", points[i].point, n);
    }
}

static void test_points_of_destroy(void **state)
{
    static const char *const points[] = {"destroy.begin",  "destroy.killed", "destroy.unplugged",
                                         "destroy.cgroup", "destroy.image",  "destroy.dir"};
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        int status = wait_for(start_victim("destroy", points[i]));
        if (!WIFSIGNALED(status))
            fail_msg("%s: the daemon ended with status %x", points[i], status);
        size_t n = recover();
        print_message("%-18s %zu found\n", points[i], n);
        assert_true(n <= 1);
    }
}

/* The supervisor dies while it removes the interface at run time. */
static void test_points_of_the_wire(void **state)
{
    static const struct {
        const char *op, *point;
        int status;
    } points[] = {{"unplug", "shim.net-unplug", 5}, {"unplug", "shim.net-unplugged", 5}};
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        int status = wait_for(start_victim(points[i].op, points[i].point));
        if (!WIFEXITED(status) || WEXITSTATUS(status) != points[i].status)
            fail_msg("%s: the daemon ended with status %x", points[i].point, status);
        (void)recover();
    }
}

/* Whose box it was survives the daemon, and the box goes on. */
static void test_daemon_killed(void **state)
{
    struct h_found found[H_FOUND_MAX];
    int status = wait_for(start_victim("create", "cell.ready"));
    assert_true(WIFSIGNALED(status));
    h_open(&host, 0);
    assert_int_equal(h_scan(&host, found), 1);
    assert_true(found[0].alive);
    assert_string_equal(found[0].sandbox_id, "victim");
    host.driver->ops->adopt(host.driver, found[0].box);
    h_expect(found[0].box, "hostname", "victim\n");
    assert_int_equal(h_destroy(&host, found[0].box, NULL), 0);
    h_close(&host, true);
}

static void test_daemon_and_supervisor_killed(void **state)
{
    struct h_found found[H_FOUND_MAX];
    int status = wait_for(start_victim("create", "cell.ready"));
    assert_true(WIFSIGNALED(status));
    pid_t shim = h_shim_pid(&host, 0);
    assert_true(shim > 0);
    assert_int_equal(kill(shim, SIGKILL), 0);
    h_open(&host, 0);
    assert_int_equal(h_scan(&host, found), 1);
    assert_false(found[0].alive);
    assert_string_equal(found[0].sandbox_id, "victim");
    assert_int_equal(found[0].exit.cause, HF_BOX_LOST);
    assert_int_equal(h_destroy(&host, found[0].box, NULL), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

/* A supervisor that answers nobody is removed all the same. */
static void test_supervisor_stopped(void **state)
{
    struct h_found found[H_FOUND_MAX];
    h_open(&host, 0);
    (void)h_create(&host, "stopped");
    pid_t shim = h_shim_pid(&host, 0);
    assert_true(shim > 0);
    assert_int_equal(kill(shim, SIGSTOP), 0);
    h_close(&host, false);
    h_open(&host, 0);
    assert_int_equal(h_scan(&host, found), 1);
    assert_false(found[0].alive);
    assert_string_equal(found[0].sandbox_id, "stopped");
    assert_int_equal(h_destroy(&host, found[0].box, NULL), 0);
    h_assert_clean(&host);
    struct hf_box *box = h_create(&host, "stopped2");
    shim = h_shim_pid(&host, h_box_number(box));
    assert_true(shim > 0);
    assert_int_equal(kill(shim, SIGSTOP), 0);
    assert_int_equal(h_destroy(&host, box, NULL), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_random_times(void **state)
{
    for (int i = 0; i < RANDOM_ROUNDS; i++) {
        unsigned char r;
        hf_random(&r, 1);
        pid_t pid = start_victim(i % 2 ? "create-many" : "destroy", "none");
        (void)usleep((r % RANDOM_MAX_MS + 5) * 1000);
        (void)kill(pid, SIGKILL);
        (void)wait_for(pid);
        pid_t shim = i % 3 == 0 ? h_shim_pid(&host, 0) : 0;
        if (shim)
            (void)kill(shim, SIGKILL);
        (void)recover();
    }
}

/* ---- many at once ---- */

struct many {
    struct hf_box *box[ALL_AT_ONCE];
    unsigned done, failed, destroyed;
    bool all_done, all_destroyed;
    char first_error[200];
};

static void on_created(void *arg, struct hf_box *box, const struct hf_err *err)
{
    struct many *m = arg;
    if (err) {
        m->failed++;
        (void)snprintf(m->first_error, sizeof(m->first_error), "%.190s", err->msg);
    } else {
        m->box[m->done] = box;
    }
    m->all_done = ++m->done == ALL_AT_ONCE;
}

static void on_destroyed(void *arg, const struct hf_err *err)
{
    struct many *m = arg;
    m->failed += err != NULL;
    m->all_destroyed = ++m->destroyed == ALL_AT_ONCE;
}

static void test_hundred_at_once(void **state)
{
    static struct many m;
    char id[32];
    h_open(&host, 0);
    uint64_t t0 = hf_mono_ms();
    for (unsigned i = 0; i < ALL_AT_ONCE; i++) {
        (void)snprintf(id, sizeof(id), "box%u", i);
        struct hf_box_spec spec = {.sandbox_id = id, .template_id = H_TEMPLATE, .network = true};
        host.driver->ops->create(host.driver, &spec, on_created, &m);
    }
    assert_true(h_until(&host, &m.all_done, 60000));
    uint64_t t1 = hf_mono_ms();
    if (m.failed)
        fail_msg("%u of %d failed: %s", m.failed, ALL_AT_ONCE, m.first_error);
    for (unsigned i = 0; i < ALL_AT_ONCE; i += 10) {
        (void)snprintf(id, sizeof(id), "%s\n", hf_box_sandbox_id(m.box[i]));
        h_expect(m.box[i], "hostname", id);
    }
    uint64_t t2 = hf_mono_ms();
    for (unsigned i = 0; i < ALL_AT_ONCE; i++)
        host.driver->ops->destroy(host.driver, m.box[i], on_destroyed, &m);
    assert_true(h_until(&host, &m.all_destroyed, 60000));
    print_message("%d creates: %u ms, destroys: %u ms\n", ALL_AT_ONCE, (unsigned)(t1 - t0),
                  (unsigned)(hf_mono_ms() - t2));
    assert_int_equal(m.failed, 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

int main(int argc, char **argv)
{
    h_require(argc, argv);
    args = argv;
    if (argc == 8) {
        host.shim = argv[1];
        host.guest = argv[2];
        host.probes = argv[3];
        (void)snprintf(host.data, sizeof(host.data), "%s", argv[5]);
        (void)snprintf(host.run, sizeof(host.run), "%s", argv[6]);
        h_fabric_open(&host, argv[7]);
        return victim(argv[4]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_points_of_create, h_reset),
        cmocka_unit_test_teardown(test_points_of_destroy, h_reset),
        cmocka_unit_test_teardown(test_points_of_the_wire, h_reset),
        cmocka_unit_test_teardown(test_daemon_killed, h_reset),
        cmocka_unit_test_teardown(test_daemon_and_supervisor_killed, h_reset),
        cmocka_unit_test_teardown(test_supervisor_stopped, h_reset),
        cmocka_unit_test_teardown(test_random_times, h_reset),
        cmocka_unit_test_teardown(test_hundred_at_once, h_reset),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
