/* Prints what creates and destroys of boxes cost through the driver, as one JSON object. Needs root.
 * usage: engine-bench SHIM GUEST PROBES [ROUNDS] */
#include "harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/path.h"

#define ROUNDS_MAX 1000
#define POOL 4
#define POOL_TIMEOUT_MS 2000
#define PAUSE_MS 60 /* the pool refills, and the kernel is done with the last box's namespaces */

static struct h_host host;

struct series {
    double ms[ROUNDS_MAX];
    size_t n;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add(struct series *s, uint64_t since_ns)
{
    s->ms[s->n++] = (double)(hf_mono_ns() - since_ns) / 1e6;
}

static void print(const char *name, struct series *s, const char *end)
{
    qsort(s->ms, s->n, sizeof(s->ms[0]), by_value);
    printf("  \"%s\": {\"p50\": %.2f, \"p90\": %.2f, \"max\": %.2f}%s\n", name, s->ms[s->n / 2],
           s->ms[s->n * 9 / 10], s->ms[s->n - 1], end);
}

static uint64_t anonymous_kib(pid_t pid)
{
    char path[64];
    hf_auto_free char *text = NULL;
    (void)snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
    if (hf_read_file(path, 16384, &text, NULL) < 0)
        return 0;
    const char *p = strstr(text, "Anonymous:");
    return p ? strtoull(p + 10, NULL, 10) : 0;
}

struct figures {
    struct series create, first, gone;
};

/* with and without alternate, so that what else the machine does meets both alike. */
static void run(unsigned warm, size_t rounds, struct figures *with, struct figures *without,
                uint64_t *shim_kib)
{
    h_open(&host, warm);
    h_spin(&host, warm ? POOL_TIMEOUT_MS : 0);
    for (size_t i = 0; i < rounds * (with ? 2 : 1); i++) {
        bool network = with && i % 2 == 0;
        struct figures *f = network ? with : without;
        struct hf_box_spec spec = {.sandbox_id = "bench", .template_id = H_TEMPLATE, .network = network};
        uint64_t t0 = hf_mono_ns();
        struct hf_box *box = h_create_spec(&host, &spec, NULL);
        assert_non_null(box);
        add(&f->create, t0);
        free(h_exec(box, "true"));
        add(&f->first, t0);
        *shim_kib = anonymous_kib(h_shim_pid(&host, h_box_number(box)));
        t0 = hf_mono_ns();
        assert_int_equal(h_destroy(&host, box, NULL), 0);
        add(&f->gone, t0);
        h_spin(&host, PAUSE_MS);
    }
    h_close(&host, true);
}

int main(int argc, char **argv)
{
    static struct figures cold, net_cold, pool, net_pool, unplugged;
    h_require(argc, argv);
    size_t rounds = argc > 4 ? (size_t)strtoul(argv[4], NULL, 10) : 50;
    rounds = HF_MAX((size_t)1, HF_MIN(rounds, (size_t)ROUNDS_MAX));
    uint64_t shim_kib = 0;
    h_setup(&host);
    run(POOL, rounds, NULL, &pool, &shim_kib);
    /* A namespace plays the fabric: what is measured is the wire alone. */
    h_fabric_open(&host, NULL);
    run(POOL, rounds, &net_pool, &unplugged, &shim_kib);
    run(0, rounds, &net_cold, &cold, &shim_kib);
    h_fabric_close(&host);
    h_teardown(&host);
    printf("{\n");
    print("create_cold_ms", &cold.create, ",");
    print("create_cold_to_first_true_ms", &cold.first, ",");
    print("create_cold_net_ms", &net_cold.create, ",");
    print("create_pool_ms", &pool.create, ",");
    print("create_pool_to_first_true_ms", &pool.first, ",");
    print("create_pool_net_ms", &net_pool.create, ",");
    print("create_pool_net_to_first_true_ms", &net_pool.first, ",");
    print("create_pool_unplugged_ms", &unplugged.create, ",");
    print("destroy_ms", &pool.gone, ",");
    print("destroy_net_ms", &net_pool.gone, ",");
    printf("  \"shim_anonymous_kib\": %llu\n}\n", (unsigned long long)shim_kib);
    return 0;
}
