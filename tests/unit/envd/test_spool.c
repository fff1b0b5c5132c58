#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/path.h"
#include "envd/spool.h"

static char dir[] = "/tmp/hf-envd-spool-XXXXXX";

static char *path_of(const char *name)
{
    return hf_xasprintf("%s/%s", dir, name);
}

static void fill(char *p, size_t n, uint64_t cursor)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (char)((cursor + i) * 2654435761u >> 13);
}

static void add(struct spool *s, size_t n)
{
    hf_auto_free char *p = hf_xmalloc(n);
    fill(p, n, s->end);
    spool_add(s, p, n);
}

static void check(struct spool *s, uint64_t from, size_t n)
{
    hf_auto_free char *got = hf_xmalloc(n), *want = hf_xmalloc(n);
    assert_int_equal(spool_read(s, from, got, n), n);
    fill(want, n, from);
    assert_memory_equal(got, want, n);
}

static void small_output_stays_in_memory(void **state)
{
    struct spool s;
    spool_init(&s, path_of("small"));
    add(&s, 1000);
    add(&s, 1000);
    check(&s, 0, 2000);
    check(&s, 1500, 500);
    assert_int_equal(access(s.path, F_OK), -1);
    char c;
    assert_int_equal(spool_read(&s, 2000, &c, 1), 0);
    assert_int_equal(spool_read(&s, 2001, &c, 1), -ERANGE);
    add(&s, 1000);
    assert_int_equal(access(s.path, F_OK), 0);
    check(&s, 0, 3000);
    spool_rest(&s);
    check(&s, 100, 200);
    hf_auto_free char *path = hf_xstrdup(s.path);
    spool_done(&s);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(spool_total(), 0);
}

static void the_window_is_bounded(void **state)
{
    struct spool s;
    struct stat st;
    spool_init(&s, path_of("big"));
    for (int i = 0; i < 1000; i++)
        add(&s, 32768);
    assert_int_equal(s.end, 32768000);
    assert_true(s.end - s.start >= SPOOL_WINDOW);
    assert_true(s.end - s.start <= SPOOL_WINDOW + SPOOL_PUNCH_STEP + 32768);
    assert_int_equal(spool_total(), s.end - s.start);
    check(&s, s.start, 5000);
    check(&s, s.end - 5000, 5000);
    assert_int_equal(spool_read(&s, s.start - 1, &st, 1), -ERANGE);
    assert_int_equal(stat(s.path, &st), 0);
    assert_true((uint64_t)st.st_blocks * 512 <= SPOOL_WINDOW + 2 * SPOOL_PUNCH_STEP);
    assert_true(spool_slack(&s) > 0);
    spool_done(&s);
}

static void all_windows_together_are_bounded(void **state)
{
    enum { N = 12 };
    struct spool s[N];
    for (int i = 0; i < N; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "n%d", i);
        spool_init(&s[i], path_of(name));
        for (int j = 0; j < 300; j++)
            add(&s[i], 32768);
    }
    assert_true(spool_total() <=
                SPOOL_TOTAL_MAX + SPOOL_WINDOW + N * (uint64_t)(SPOOL_WINDOW_MIN + SPOOL_PUNCH_STEP));
    assert_true(s[N - 1].end - s[N - 1].start <= SPOOL_WINDOW_MIN + SPOOL_PUNCH_STEP + 32768);
    for (int i = 0; i < N; i++)
        spool_done(&s[i]);
    assert_int_equal(spool_total(), 0);
}

static void a_full_disk_loses_the_window_only(void **state)
{
    struct spool s;
    char c;
    spool_init(&s, hf_xstrdup("/dev/full"));
    add(&s, 1000);
    add(&s, 5000); /* neither the first piece nor this one can be written; the last one stays in memory */
    assert_int_equal(s.end, 6000);
    assert_int_equal(s.start, 1000);
    assert_int_equal(spool_slack(&s), 0);
    assert_int_equal(spool_read(&s, 0, &c, 1), -ERANGE);
    check(&s, 1000, 5000);
    add(&s, 4000);
    assert_int_equal(s.start, 6000);
    check(&s, 6000, 4000);
    spool_done(&s);
    assert_int_equal(spool_total(), 0);
}

static void a_disk_that_gets_full_keeps_what_it_has(void **state)
{
    struct spool s;
    struct rlimit old, small = {.rlim_cur = 20000};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    spool_init(&s, path_of("gets-full"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    add(&s, 10000);
    add(&s, 9000);
    add(&s, 8000); /* only a part of it fits */
    assert_int_equal(s.start, 0);
    assert_int_equal(spool_slack(&s), 0);
    check(&s, 0, 19000);
    check(&s, 19000, 8000);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    add(&s, 7000); /* there is room again */
    assert_int_equal(s.start, 0);
    assert_true(spool_slack(&s) > 0);
    check(&s, 0, 34000);
    spool_done(&s);
    assert_int_equal(spool_total(), 0);
}

static void without_a_path_memory_only(void **state)
{
    struct spool s;
    spool_init(&s, NULL);
    add(&s, 2000);
    check(&s, 0, 2000);
    add(&s, 2000);
    assert_int_equal(s.start, 2000);
    check(&s, 2000, 2000);
    assert_int_equal(spool_slack(&s), 0);
    spool_done(&s);
}

static void prepare_removes_leftovers(void **state)
{
    hf_auto_free char *sub = path_of("sub"), *file = path_of("sub/1-2.stdout");
    assert_int_equal(spool_prepare(sub), 0);
    FILE *f = fopen(file, "we");
    assert_non_null(f);
    (void)fclose(f);
    assert_int_equal(spool_prepare(sub), 0);
    assert_int_equal(access(file, F_OK), -1);
}

static int setup(void **state)
{
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    return hf_remove_tree(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_output_stays_in_memory),
        cmocka_unit_test(the_window_is_bounded),
        cmocka_unit_test(all_windows_together_are_bounded),
        cmocka_unit_test(a_full_disk_loses_the_window_only),
        cmocka_unit_test(a_disk_that_gets_full_keeps_what_it_has),
        cmocka_unit_test(without_a_path_memory_only),
        cmocka_unit_test(prepare_removes_leftovers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
