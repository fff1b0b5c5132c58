/* Both cgroup layouts on plain directories that look like cgroupfs: which file gets what. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cmocka.h>

#include "base/path.h"
#include "engine/shim/cgroup.h"

static char root[64];

static void put(const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    *strrchr(path, '/') = '\0';
    assert_int_equal(hf_mkdir_p(path, 0755), 0);
    path[strlen(path)] = '/';
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(hf_write_all(fd, text, strlen(text)), 0);
    (void)close(fd);
}

static void has(const char *name, const char *text)
{
    char path[256];
    hf_auto_free char *got = NULL;
    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    assert_int_equal(hf_read_file(path, 4096, &got, NULL), 0);
    assert_string_equal(got, text);
}

static int setup(void **state)
{
    (void)snprintf(root, sizeof(root), "/tmp/hf-engine-cg-XXXXXX");
    assert_non_null(mkdtemp(root));
    return 0;
}

static int teardown(void **state)
{
    return hf_remove_tree(root);
}

static const struct hf_cg_limits limits = {1500, 64u << 20, 100, 1000000};

static void test_none(void **state)
{
    struct hf_cg cg;
    hf_cg_probe(root, "holdfast/x", &cg);
    assert_int_equal(cg.version, 0);
    assert_int_equal(hf_cg_prepare(&cg, NULL), 0);
    assert_int_equal(hf_cg_create(&cg, 1, NULL), 0);
    assert_int_equal(hf_cg_limit(&cg, 1, &limits, 0, NULL), 0);
    assert_int_equal(hf_cg_remove(&cg, 1), 0);
}

static void test_v2(void **state)
{
    struct hf_cg cg;
    put("cgroup.controllers", "cpuset cpu io memory pids\n");
    put("cgroup.subtree_control", "");
    put("holdfast/cgroup.subtree_control", "");
    put("holdfast/x/cgroup.subtree_control", "");
    hf_cg_probe(root, "holdfast/x", &cg);
    assert_int_equal(cg.version, 2);
    for (int c = 0; c < HF_CG_CTL_N; c++)
        assert_true(hf_cg_has(&cg, (enum hf_cg_ctl)c));
    assert_int_equal(hf_cg_prepare(&cg, NULL), 0);
    assert_true(hf_cg_has(&cg, HF_CG_IO));
    put("holdfast/x/7/cgroup.subtree_control", "");
    put("holdfast/x/7/user/cgroup.type", "domain\n");
    assert_int_equal(hf_cg_create(&cg, 7, NULL), 0);
    has("holdfast/x/7/cgroup.subtree_control", "+pids");
    has("holdfast/x/7/user/cgroup.type", "threaded");
    put("holdfast/x/7/cpu.max", "");
    put("holdfast/x/7/memory.max", "");
    put("holdfast/x/7/memory.swap.max", "");
    put("holdfast/x/7/pids.max", "");
    put("holdfast/x/7/user/pids.max", "");
    put("holdfast/x/7/io.max", "");
    assert_int_equal(hf_cg_limit(&cg, 7, &limits, makedev(7, 3), NULL), 0);
    has("holdfast/x/7/cpu.max", "150000 100000");
    has("holdfast/x/7/memory.max", "67108864");
    has("holdfast/x/7/memory.swap.max", "0");
    has("holdfast/x/7/pids.max", "164");
    has("holdfast/x/7/user/pids.max", "100");
    has("holdfast/x/7/io.max", "7:3 rbps=1000000 wbps=1000000");
    put("holdfast/x/7/cpu.stat", "usage_usec 5\nuser_usec 4\n");
    put("holdfast/x/7/memory.current", "3000\n");
    put("holdfast/x/7/memory.stat", "anon 1\nfile 1000\nfile_mapped 9\n");
    put("holdfast/x/7/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n");
    put("holdfast/x/7/pids.current", "12\n");
    struct hf_cg_stats st;
    hf_cg_read_stats(&cg, 7, &st);
    assert_int_equal(st.cpu_ns, 5000);
    assert_int_equal(st.mem_used, 2000);
    assert_int_equal(st.mem_cache, 1000);
    assert_int_equal(st.oom_kills, 2);
    assert_int_equal(st.pids, 12);
    put("holdfast/x/7/cgroup.kill", "");
    hf_cg_kill(&cg, 7);
    has("holdfast/x/7/cgroup.kill", "1");
}

/* A controller that the parent can't hand down is missing, and the rest goes on. */
static void test_v2_missing(void **state)
{
    struct hf_cg cg;
    put("cgroup.controllers", "cpu pids\n");
    hf_cg_probe(root, "holdfast/x", &cg);
    assert_false(hf_cg_has(&cg, HF_CG_MEMORY));
    assert_true(hf_cg_has(&cg, HF_CG_CPU));
    assert_int_equal(hf_cg_prepare(&cg, NULL), 0); /* no subtree_control file: nothing can be enabled */
    assert_false(hf_cg_has(&cg, HF_CG_CPU));
    assert_int_equal(cg.version, 2);
}

static void test_v1(void **state)
{
    struct hf_cg cg;
    put("memory/cgroup.procs", "");
    put("pids/cgroup.procs", "");
    put("cpuacct/cgroup.procs", "");
    hf_cg_probe(root, "holdfast/x", &cg);
    assert_int_equal(cg.version, 1);
    assert_false(hf_cg_has(&cg, HF_CG_CPU));
    assert_int_equal(hf_cg_prepare(&cg, NULL), 0);
    assert_int_equal(hf_cg_create(&cg, 3, NULL), 0);
    put("memory/holdfast/x/3/memory.limit_in_bytes", "");
    put("memory/holdfast/x/3/memory.memsw.limit_in_bytes", "");
    put("pids/holdfast/x/3/pids.max", "");
    put("pids/holdfast/x/3/user/pids.max", "");
    assert_int_equal(hf_cg_limit(&cg, 3, &limits, 0, NULL), 0);
    has("memory/holdfast/x/3/memory.limit_in_bytes", "67108864");
    has("memory/holdfast/x/3/memory.memsw.limit_in_bytes", "67108864");
    has("pids/holdfast/x/3/user/pids.max", "100");
    put("memory/holdfast/x/3/cgroup.procs", "");
    put("pids/holdfast/x/3/cgroup.procs", "");
    put("cpuacct/holdfast/x/3/cgroup.procs", "");
    assert_int_equal(hf_cg_enter(&cg, 3, 4711, NULL), 0);
    has("memory/holdfast/x/3/cgroup.procs", "4711");
    put("memory/holdfast/x/3/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
    assert_int_equal(hf_cg_oom_kills(&cg, 3), 4);
}

static unsigned seen;

static void note(void *arg, uint32_t n)
{
    seen |= 1u << n;
}

static void test_each(void **state)
{
    struct hf_cg cg;
    put("cgroup.controllers", "pids\n");
    put("holdfast/x/3/a", "");
    put("holdfast/x/5/a", "");
    put("holdfast/x/notes", "");
    hf_cg_probe(root, "holdfast/x", &cg);
    seen = 0;
    hf_cg_each(&cg, note, NULL);
    assert_int_equal(seen, 1u << 3 | 1u << 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_none, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v2, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v2_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v1, setup, teardown),
        cmocka_unit_test_setup_teardown(test_each, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
