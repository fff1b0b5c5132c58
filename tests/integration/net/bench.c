/* Figures of the fabric, on one line each: times of policies, and iperf3 through it against a bare veth pair.
 * Not a test; `net-bench` is run by hand or by the bench script, as root. */
#include <stdio.h>
#include <time.h>

#include "base/path.h"
#include "lab.h"

#define BOXES 200u
#define ENTRIES 1000u
#define SECONDS 1
#define ROUNDS 7

static struct hf_cidr entries[ENTRIES];

static void fill_entries(unsigned seed)
{
    for (unsigned i = 0; i < ENTRIES; i++)
        entries[i] = (struct hf_cidr){
            {.family = 4, .b = {(uint8_t)(11 + seed % 80), (uint8_t)(i >> 7), (uint8_t)(i << 1), 0}}, 24};
    entries[ENTRIES - 1] = lab_cidr("198.51.100.0/24");
}

/* Processor time of this thread, in which the kernel does all of it: other programs don't disturb it. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t apply_us(struct hf_net *n, const struct hf_net_policy *p)
{
    struct hf_err err = {0};
    uint64_t t0 = cpu_ns();
    if (hf_net_apply(n, p, &err) < 0)
        fail_msg("%s", err.msg);
    return (cpu_ns() - t0) / 1000;
}

static void policies(struct hf_net *n)
{
    uint64_t small = 0, large = 0, learn = 0, worst = 0;
    for (uint32_t key = 1; key <= 100; key++)
        small += apply_us(n, &(struct hf_net_policy){.key = 10000 + key, .open = true, .dns = true});
    struct hf_addr a = lab_addr("192.0.2.1");
    for (uint32_t i = 0; i < 100; i++) {
        a.b[3] = (uint8_t)i;
        uint64_t t0 = cpu_ns();
        (void)!hf_net_learn(n, 10001, &a, 60);
        learn += (cpu_ns() - t0) / 1000;
    }
    for (uint32_t key = 1; key <= BOXES; key++) {
        fill_entries(key);
        uint64_t us = apply_us(n, &(struct hf_net_policy){.key = key, .allow = entries, .n_allow = ENTRIES});
        large += us;
        worst = HF_MAX(worst, us);
    }
    uint64_t t0 = cpu_ns();
    struct hf_net *again = NULL;
    if (hf_net_open(&lab.cfg, &again, NULL) == 0)
        hf_net_free(again);
    (void)printf("small policy: %llu us; learned address: %llu us; %u entries for each of %u boxes: %llu us, "
                 "at most %llu us; "
                 "reading all of it back: %llu ms\n",
                 (unsigned long long)small / 100, (unsigned long long)learn / 100, ENTRIES, BOXES,
                 (unsigned long long)large / BOXES, (unsigned long long)worst,
                 (unsigned long long)(cpu_ns() - t0) / 1000000);
    (void)fflush(stdout);
}

/* Gbit/s of one iperf3 run from the namespace; 0 when it failed. */
static double run_iperf(int ns_fd, const char *to)
{
    char path[64];
    hf_auto_free char *text = NULL;
    size_t n;
    (void)snprintf(path, sizeof(path), "/tmp/hf-net-iperf-%d.json", getpid());
    (void)lab_sh(ns_fd, "iperf3 -c %s -t %d -J >%s || true", to, SECONDS, path);
    int r = hf_read_file(path, 1u << 20, &text, &n);
    (void)unlink(path);
    const char *at = r < 0 ? NULL : strstr(text, "\"sum_received\"");
    at = at ? strstr(at, "\"bits_per_second\":") : NULL;
    return at ? strtod(at + strlen("\"bits_per_second\":"), NULL) / 1e9 : 0;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v)
{
    qsort(v, ROUNDS, sizeof(*v), by_size);
    return v[ROUNDS / 2];
}

/* Turn about, since a machine has other things to do: medians. */
static void throughput(struct hf_net *n, int box)
{
    static double bare[ROUNDS], bare6[ROUNDS], open4[ROUNDS], open6[ROUNDS], many[ROUNDS];
    fill_entries(1);
    for (size_t i = 0; i < ROUNDS; i++) {
        bare[i] = run_iperf(-1, "203.0.113.2");
        bare6[i] = run_iperf(-1, "2001:db8:ffff::2");
        (void)apply_us(n, &(struct hf_net_policy){.key = 20000, .open = true});
        open4[i] = run_iperf(box, LAB_V4);
        open6[i] = run_iperf(box, LAB_V6);
        (void)apply_us(n, &(struct hf_net_policy){.key = 20000, .allow = entries, .n_allow = ENTRIES});
        many[i] = run_iperf(box, LAB_V4);
    }
    double b4 = median(bare), b6 = median(bare6), o4 = median(open4), o6 = median(open6), m = median(many);
    (void)printf("bare veth pair %.1f Gbit/s; sandbox %.1f (%.2f), with 1,000 entries %.1f (%.2f); IPv6: "
                 "bare %.1f, sandbox %.1f (%.2f)\n",
                 b4, o4, o4 / b4, m, m / b4, b6, o6, o6 / b6);
}

int main(int argc, char **argv)
{
    int r = 1;
    if (lab_open(&r) < 0)
        return r;
    struct hf_net *n = NULL;
    struct hf_err err = {0};
    if (hf_net_open(&lab.cfg, &n, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    int box = lab_box(n, 20000);
    if (argc > 1) {
        policies(n);
        goto out;
    }
    (void)lab_sh(lab.internet_fd, "iperf3 -s -D --pidfile /tmp/hf-net-iperf.pid; sleep 0.3");
    throughput(n, box);
    policies(n);
    struct hf_net_counters c;
    if (hf_net_counters(n, 20000, &c) == 0 && c.packets_out && c.packets_in)
        (void)printf("bytes a packet: %llu out, %llu in; %llu packets out for one in\n",
                     (unsigned long long)(c.bytes_out / c.packets_out),
                     (unsigned long long)(c.bytes_in / c.packets_in),
                     (unsigned long long)(c.packets_out / c.packets_in));
    (void)lab_sh(lab.internet_fd, "kill $(tr -d '\\0' </tmp/hf-net-iperf.pid); rm -f /tmp/hf-net-iperf.pid");
out:
    lab_box_end(n, 20000, box);
    hf_net_free(n);
    r = hf_net_remove(&lab.cfg, NULL);
    lab_close();
    return r < 0;
}
