/* Figures of the fabric, on one line each: times of policies, and iperf3 through it against a bare veth pair.
 * Not a test; `net-bench` is run by hand or by the bench script, as root. */
#include <stdio.h>
#include <time.h>

#include "lab.h"

#define BOXES 200u
#define ENTRIES 1000u
#define SECONDS 4

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

static void throughput(int ns_fd, const char *what, const char *to)
{
    (void)printf("%s: ", what);
    (void)fflush(stdout);
    (void)lab_sh(
        ns_fd,
        "iperf3 -c %s -t %d -J | grep -A30 '\"end\"' | grep bits_per_second | tail -1 | tr -d ' ,'; true", to,
        SECONDS);
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
    for (int round = 0; round < 3; round++) {
        throughput(-1, "bare veth pair", "203.0.113.2");
        (void)apply_us(n, &(struct hf_net_policy){.key = 20000, .open = true});
        throughput(box, "sandbox, open policy", LAB_V4);
        throughput(box, "sandbox, open policy, IPv6", LAB_V6);
        fill_entries(1);
        (void)apply_us(n, &(struct hf_net_policy){.key = 20000, .allow = entries, .n_allow = ENTRIES});
        throughput(box, "sandbox, 1,000 entries", LAB_V4);
    }
    policies(n);
    (void)apply_us(n, &(struct hf_net_policy){.key = 20000, .allow = entries, .n_allow = ENTRIES});
    throughput(box, "sandbox, 1,000 entries, beside 200 others", LAB_V4);
    (void)lab_sh(lab.internet_fd, "kill $(tr -d '\\0' </tmp/hf-net-iperf.pid); rm -f /tmp/hf-net-iperf.pid");
out:
    lab_box_end(n, 20000, box);
    hf_net_free(n);
    r = hf_net_remove(&lab.cfg, NULL);
    lab_close();
    return r < 0;
}
