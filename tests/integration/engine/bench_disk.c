/* Prints what disk-only snapshots of a running box cost, as one JSON object: by the amount of data on its
 * disk, and again and again of the same disk. Needs root. usage: disk-bench SHIM GUEST PROBES [SNAPSHOTS]
 * [MIB...] */
#include "harness.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/disk/disk.h"
#include "engine/disk/snapshot.h"

#define SNAPSHOTS_MAX 1000
#define SIZES_MAX 8
/* Between two snapshots: a new file, and single blocks of an old one in random places. */
#define NEW_FILE_MIB 1
#define SCATTERED 32
#define QUIET 10     /* in the end, with nothing written between them */
#define PAUSE_MS 500 /* the driver puts the disk together; snapshots come minutes apart */

static struct h_host host;

struct series {
    double ms[SNAPSHOTS_MAX];
    size_t n;
};

struct wait {
    bool done;
    struct hf_box_saved saved;
    struct hf_err err;
};

static void on_saved(void *arg, const struct hf_box_saved *saved, const struct hf_err *err)
{
    struct wait *w = arg;
    w->done = true;
    if (saved)
        w->saved = *saved;
    if (err)
        w->err = *err;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, struct series *s, const char *end)
{
    qsort(s->ms, s->n, sizeof(s->ms[0]), by_value);
    printf("\"%s\": {\"p50\": %.2f, \"p90\": %.2f, \"max\": %.2f}%s", name, s->ms[s->n / 2],
           s->ms[s->n * 9 / 10], s->ms[s->n - 1], end);
}

/* As the control plane does it: begin, save, commit. */
static void snapshot(struct hf_box *box, const char *id, struct series *felt, struct series *total)
{
    struct hf_err err = {0};
    struct wait w = {0};
    hf_auto_free char *dir = NULL;
    struct hf_snapshot_meta meta = {.template_id = H_TEMPLATE, .generation = 1};
    (void)snprintf(meta.id, sizeof(meta.id), "%s", id);
    uint64_t t0 = hf_mono_ns();
    int r = hf_snapshot_begin(host.data, id, &dir, &err);
    struct hf_box_save save = {.dir = dir};
    if (r == 0) {
        host.driver->ops->save(host.driver, box, &save, on_saved, &w);
        r = h_until(&host, &w.done, 60000) ? w.err.r : -ETIMEDOUT;
        err = w.err;
    }
    if (r == 0)
        r = hf_snapshot_commit(host.data, &meta, &err);
    if (r < 0)
        fail_msg("%s: %s", id, err.msg);
    felt->ms[felt->n++] = (double)w.saved.frozen_us / 1e3;
    total->ms[total->n++] = (double)(hf_mono_ns() - t0) / 1e6;
}

static unsigned pieces(const struct hf_box *box)
{
    struct fiemap map = {.fm_length = FIEMAP_MAX_OFFSET};
    hf_auto_free char *image = hf_xasprintf("%s/pool/cells/%u.img", host.data, h_box_number(box));
    hf_auto_close int fd = open(image, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && ioctl(fd, FS_IOC_FIEMAP, &map) == 0 ? map.fm_mapped_extents : 0;
}

static void scatter(struct hf_box *box, unsigned round, unsigned mib)
{
    hf_auto_free char *script = hf_xasprintf(
        "dd if=/dev/urandom of=/root/new%u bs=1M count=%d 2>/dev/null; i=0; while [ $i -lt %d ]; do "
        "dd if=/dev/urandom of=/root/data bs=4096 count=1 conv=notrunc seek=$(( (i * 7919 + %u * 104729) %% "
        "%u )) "
        "2>/dev/null; i=$((i + 1)); done; echo ok",
        round % 8, NEW_FILE_MIB, SCATTERED, round, mib * 256);
    h_expect(box, script, "ok\n");
}

static void measure(unsigned mib, size_t rounds, const char *end)
{
    static struct series felt, total;
    felt.n = total.n = 0;
    struct hf_err err = {0};
    struct hf_box_spec spec = {
        .sandbox_id = "disk", .template_id = H_TEMPLATE, .disk_bytes = ((uint64_t)mib + 512 + mib / 8) << 20};
    struct hf_box *box = h_create_spec(&host, &spec, &err);
    if (!box)
        fail_msg("%s", err.msg);
    hf_auto_free char *fill =
        hf_xasprintf("dd if=/dev/zero bs=1M count=%u 2>/dev/null | tr '\\0' x > /root/data; "
                     "echo ok",
                     mib);
    h_expect(box, fill, "ok\n");
    char id[32];
    struct series first_felt = {.n = 0}, first = {.n = 0};
    (void)snprintf(id, sizeof(id), "m%u-first", mib);
    snapshot(box, id, &first_felt, &first);
    unsigned most = 0;
    for (size_t i = 0; i < rounds; i++) {
        scatter(box, (unsigned)i, mib);
        (void)snprintf(id, sizeof(id), "m%u-%zu", mib, i);
        snapshot(box, id, &felt, &total);
        most = HF_MAX(most, pieces(box));
        h_spin(&host, PAUSE_MS);
    }
    static struct series quiet_felt, quiet;
    quiet_felt.n = quiet.n = 0;
    for (size_t i = 0; i < QUIET; i++) {
        (void)snprintf(id, sizeof(id), "m%u-quiet%zu", mib, i);
        snapshot(box, id, &quiet_felt, &quiet);
    }
    uint64_t exclusive = 0, shared = 0;
    assert_int_equal(hf_snapshot_usage(host.data, id, &exclusive, &shared, &err), 0);
    printf("  \"data_%u_mib\": {\"first_felt_ms\": %.2f, \"last_felt_ms\": %.2f, \"pieces_max\": %u, "
           "\"last_exclusive_mib\": %.1f, ",
           mib, first_felt.ms[0], felt.ms[felt.n - 1], most, (double)exclusive / 1048576);
    print("felt_ms", &felt, ", ");
    print("total_ms", &total, ", ");
    print("unchanged_felt_ms", &quiet_felt, ", ");
    print("unchanged_total_ms", &quiet, "}");
    printf("%s\n", end);
    assert_int_equal(h_destroy(&host, box, NULL), 0);
    for (size_t i = 0; i < rounds; i++) {
        (void)snprintf(id, sizeof(id), "m%u-%zu", mib, i);
        assert_int_equal(hf_snapshot_remove(host.data, id, &err), 0);
    }
}

int main(int argc, char **argv)
{
    unsigned sizes[SIZES_MAX] = {100, 1024, 5120};
    size_t n = 3;
    h_require(argc, argv);
    size_t rounds = argc > 4 ? (size_t)strtoul(argv[4], NULL, 10) : 20;
    rounds = HF_MAX((size_t)1, HF_MIN(rounds, (size_t)SNAPSHOTS_MAX));
    for (int i = 5; i < argc && i - 5 < SIZES_MAX; i++) {
        sizes[i - 5] = (unsigned)HF_MAX(1ul, strtoul(argv[i], NULL, 10));
        n = (size_t)i - 4;
    }
    h_setup(&host);
    h_open(&host, 0);
    printf("{\n  \"snapshots_each\": %zu, \"new_file_mib\": %d, \"scattered_blocks\": %d,\n", rounds,
           NEW_FILE_MIB, SCATTERED);
    for (size_t i = 0; i < n; i++)
        measure(sizes[i], rounds, i + 1 < n ? "," : "");
    printf("}\n");
    h_close(&host, true);
    h_teardown(&host);
    return 0;
}
