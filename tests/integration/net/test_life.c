/* Making and removing fabrics: twice, two on one host, and killed at every point half-way through. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/path.h"
#include "lab.h"

#define SOON 1500
#define BRIEF 250

static bool forwarding(const char *path)
{
    hf_auto_free char *text = NULL;
    size_t n;
    assert_int_equal(hf_read_file(path, 16, &text, &n), 0);
    return text[0] == '1';
}

static bool ipv4_forwarding(void)
{
    return forwarding("/proc/sys/net/ipv4/ip_forward");
}

static bool ipv6_forwarding(void)
{
    return forwarding("/proc/sys/net/ipv6/conf/all/forwarding");
}

static struct hf_net *open_one(const struct hf_net_config *cfg)
{
    struct hf_err err = {0};
    struct hf_net *n = NULL;
    if (hf_net_open(cfg, &n, &err) < 0)
        fail_msg("%s", err.msg);
    return n;
}

static void remove_one(const struct hf_net_config *cfg)
{
    struct hf_err err = {0};
    if (hf_net_remove(cfg, &err) < 0)
        fail_msg("%s", err.msg);
}

/* The host is as it was before any fabric. */
static void nothing_is_left(const char *id)
{
    assert_int_equal(lab_sh(-1, "test -z \"$(nft list tables)\""), 0);
    assert_int_equal(lab_sh(-1, "! ip link show hf-%s 2>/dev/null", id), 0);
    assert_int_equal(
        lab_sh(-1, "test ! -e /run/netns/holdfast-%s && test ! -e /run/holdfast/net-%s.lock", id, id), 0);
    assert_false(ipv4_forwarding());
    assert_false(ipv6_forwarding());
}

static void works(struct hf_net *n, uint32_t key)
{
    struct hf_err err = {0};
    int box = lab_box(n, key);
    assert_int_equal(lab_dial(box, LAB_V4, LAB_PORT, BRIEF), -ETIMEDOUT);
    if (hf_net_apply(n, &(struct hf_net_policy){.key = key, .open = true}, &err) < 0)
        fail_msg("%s", err.msg);
    hf_auto_close int four = lab_dial(box, LAB_V4, LAB_PORT, SOON),
                      six = lab_dial(box, LAB_V6, LAB_PORT, SOON);
    if (four < 0 || six < 0)
        fail_msg("%s, %s", strerror(-four), strerror(-six));
    assert_int_equal(lab_dial(box, LAB_HOST4, LAB_PORT, SOON), -ECONNREFUSED);
    lab_box_end(n, key, box);
}

static void twice(void **state)
{
    struct hf_net *n = open_one(&lab.cfg);
    assert_true(ipv4_forwarding());
    assert_true(ipv6_forwarding());
    uint64_t t0 = hf_mono_ns();
    struct hf_net *again = open_one(&lab.cfg);
    (void)printf("opened again in %llu us\n", (unsigned long long)(hf_mono_ns() - t0) / 1000);
    works(again, 1);
    /* people can look into it as into any other namespace */
    assert_int_equal(
        lab_sh(-1, "ip netns exec holdfast-%s nft list ruleset | grep -q 'table inet holdfast'", lab.id), 0);
    assert_int_equal(lab_sh(hf_net_ns_fd(n), "test \"$(cat /proc/sys/net/ipv4/conf/hfup/rp_filter)\" = 1"),
                     0);
    hf_net_free(n);
    hf_net_free(again);
    remove_one(&lab.cfg);
    nothing_is_left(lab.id);
    remove_one(&lab.cfg);
}

static void two_on_one_host(void **state)
{
    struct hf_net_config other = lab.cfg;
    char id[9];
    memcpy(id, lab.id, sizeof(id));
    id[0] = '0';
    other.id = id;
    struct hf_net *a = open_one(&lab.cfg), *b = open_one(&other);
    works(a, 1);
    works(b, 1);
    /* the same key and addresses in both: neither reaches the other, nor the other's uplink */
    int in_a = lab_box(a, 2);
    const struct hf_cidr all = lab_cidr("10.0.0.0/8");
    assert_int_equal(
        hf_net_apply(a, &(struct hf_net_policy){.key = 2, .open = true, .allow = &all, .n_allow = 1}, NULL),
        0);
    assert_int_equal(
        lab_sh(-1, "ip -4 -o addr show dev hf-%s | sed 's|.*inet ||; s|/.*||' >/tmp/hf-net-uplink-%d", id,
               getpid()),
        0);
    hf_auto_free char *path = hf_xasprintf("/tmp/hf-net-uplink-%d", getpid()), *uplink = NULL;
    size_t length;
    assert_int_equal(hf_read_file(path, 64, &uplink, &length), 0);
    (void)unlink(path);
    uplink[strcspn(uplink, "\n")] = 0;
    assert_int_equal(lab_dial(in_a, uplink, LAB_PORT, SOON), -ECONNREFUSED);
    lab_box_end(a, 2, in_a);
    hf_net_free(a);
    remove_one(&lab.cfg);
    assert_true(ipv4_forwarding()); /* the other one still needs it */
    works(b, 3);
    hf_net_free(b);
    remove_one(&other);
    nothing_is_left(id);
}

/* A host that forwarded before goes on to; one that did not forwards for fabrics only. */
static void forwarding_of_others(void **state)
{
    assert_int_equal(hf_write_existing("/proc/sys/net/ipv4/ip_forward", "1"), 0);
    struct hf_net *n = open_one(&lab.cfg);
    hf_net_free(n);
    remove_one(&lab.cfg);
    assert_true(ipv4_forwarding());
    assert_int_equal(hf_write_existing("/proc/sys/net/ipv4/ip_forward", "0"), 0);
    n = open_one(&lab.cfg);
    /* a neighbour that uses this host as its router */
    assert_int_equal(
        lab_sh(-1,
               "ip netns add hf-net-%d-lan\nip link add lan0 type veth peer name eth0 netns hf-net-%d-lan\n"
               "ip addr add 192.168.77.1/24 dev lan0\nip link set lan0 up\n"
               "ip -n hf-net-%d-lan addr add 192.168.77.2/24 dev eth0\nip -n hf-net-%d-lan link set eth0 up\n"
               "ip -n hf-net-%d-lan route add default via 192.168.77.1\n",
               getpid(), getpid(), getpid(), getpid(), getpid()),
        0);
    char path[64];
    (void)snprintf(path, sizeof(path), "/run/netns/hf-net-%d-lan", getpid());
    hf_auto_close int lan = hf_ns_open(path);
    usleep(300000);
    assert_int_equal(lab_dial(lan, LAB_V4, LAB_PORT, BRIEF), -ETIMEDOUT);
    assert_int_equal(lab_sh(-1, "ip link del lan0\nip netns del hf-net-%d-lan", getpid()), 0);
    works(n, 4);
    hf_net_free(n);
    remove_one(&lab.cfg);
    nothing_is_left(lab.id);
}

/* An uplink subnet that is in use is left alone. */
static void uplinks_avoid_what_is_there(void **state)
{
    struct hf_net_config small = lab.cfg;
    small.uplink4 = "10.118.0.0/28"; /* two subnets */
    assert_int_equal(lab_sh(-1, "ip route add 10.118.0.0/29 dev lo"), 0);
    struct hf_net *n = open_one(&small);
    assert_int_equal(lab_sh(-1, "ip -4 addr show dev hf-%s | grep -q 10.118.0.9/29", lab.id), 0);
    hf_net_free(n);
    remove_one(&small);
    assert_int_equal(lab_sh(-1, "ip addr add 10.118.0.12/29 dev lo"), 0);
    struct hf_err err = {0};
    assert_int_equal(hf_net_open(&small, &n, &err), -EADDRINUSE);
    assert_non_null(strstr(err.msg, "10.118.0.0/28"));
    remove_one(&small);
    assert_int_equal(lab_sh(-1, "ip route del 10.118.0.0/29 dev lo\nip addr del 10.118.0.12/29 dev lo"), 0);
}

static const char *const points[] = {"net.ns.file",      "net.ns.pinned", "net.ruleset.trees",
                                     "net.ruleset",      "net.inside",    "net.host.table",
                                     "net.uplink.made",  "net.uplink",    "net.forward.table",
                                     "net.forward.ipv4", "net.forward"};

/* Another process opens or removes the fabric and is killed there. */
static void do_until(const char *verb, const char *point)
{
    hf_auto_free char *kill = hf_xasprintf("HOLDFAST_KILLPOINT=%s", point);
    char *const argv[] = {(char *)"it-net-life", (char *)verb, lab.id, NULL}, *const env[] = {kill, NULL};
    pid_t pid;
    int status;
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, env), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status))
        fail_msg("%s was not reached", point);
}

static void killed_half_way(void **state)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        do_until("open", points[i]); /* finished by the next */
        struct hf_net *n = open_one(&lab.cfg);
        works(n, 5);
        hf_net_free(n);
        remove_one(&lab.cfg);
        do_until("open", points[i]); /* or removed */
        remove_one(&lab.cfg);
        nothing_is_left(lab.id);
    }
    static const char *const removals[] = {"net.remove.uplink", "net.remove.table"};
    for (size_t i = 0; i < HF_ARRAY_LEN(removals); i++) {
        hf_net_free(open_one(&lab.cfg));
        do_until("remove", removals[i]);
        remove_one(&lab.cfg);
        nothing_is_left(lab.id);
    }
}

static void without_ipv6(void **state)
{
    lab.cfg.ipv6 = false;
    struct hf_net *n = open_one(&lab.cfg);
    assert_true(ipv4_forwarding());
    assert_false(ipv6_forwarding());
    int box = lab_box(n, 6);
    assert_int_equal(hf_net_apply(n, &(struct hf_net_policy){.key = 6, .open = true}, NULL), 0);
    hf_auto_close int four = lab_dial(box, LAB_V4, LAB_PORT, SOON);
    assert_true(four >= 0);
    int six = lab_dial(box, LAB_V6, LAB_PORT, SOON);
    assert_true(six == -ENETUNREACH || six == -EADDRNOTAVAIL);
    lab_box_end(n, 6, box);
    hf_net_free(n);
    remove_one(&lab.cfg);
    nothing_is_left(lab.id);
    lab.cfg.ipv6 = true;
}

/* Router advertisements that the host took before are still taken while it forwards, and after. */
static void advertisements_of_the_host(void **state)
{
    const char *path = "/proc/sys/net/ipv6/conf/inet0/accept_ra";
    assert_int_equal(hf_write_existing(path, "1"), 0);
    hf_net_free(open_one(&lab.cfg));
    assert_int_equal(lab_sh(-1, "test \"$(cat %s)\" = 2", path), 0);
    remove_one(&lab.cfg);
    assert_int_equal(lab_sh(-1, "test \"$(cat %s)\" = 1", path), 0);
}

static void wrong_settings(void **state)
{
    struct hf_net *n;
    struct hf_err err = {0};
    struct hf_net_config c = lab.cfg;
    c.id = "../x";
    assert_int_equal(hf_net_open(&c, &n, &err), -EINVAL);
    c = lab.cfg;
    c.subnet4 = "10.117.0.0/24";
    assert_int_equal(hf_net_open(&c, &n, &err), -EINVAL);
    c = lab.cfg;
    c.uplink6 = "fd00::/8";
    assert_int_equal(hf_net_open(&c, &n, &err), -EINVAL);
}

static int do_only(const char *verb, const char *id)
{
    const struct hf_net_config cfg = {
        id, "10.117.0.0/16", "fd68:6f6c:6466:1::/64", "10.118.0.0/16", "fd68:6f6c:6466:ff00::/56", true};
    struct hf_net *n;
    int r = strcmp(verb, "open") == 0 ? hf_net_open(&cfg, &n, NULL) : hf_net_remove(&cfg, NULL);
    return r < 0;
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return do_only(argv[1], argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twice),
        cmocka_unit_test(two_on_one_host),
        cmocka_unit_test(forwarding_of_others),
        cmocka_unit_test(uplinks_avoid_what_is_there),
        cmocka_unit_test(killed_half_way),
        cmocka_unit_test(wrong_settings),
        cmocka_unit_test(without_ipv6),
        cmocka_unit_test(advertisements_of_the_host),
    };
    int r = 1;
    if (lab_open(&r) < 0)
        return r;
    r = cmocka_run_group_tests(tests, NULL, NULL);
    lab_close();
    return r;
}
