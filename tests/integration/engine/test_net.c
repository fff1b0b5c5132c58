/* A box's wire into the fabric: from the start, from the pool, at run time, and gone with the box. The fabric
 * is a namespace of this test without rules; who may say what is tested with the fabric itself. Needs root.
 */
#include "harness.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/path.h"

#define PAIRS_OF_20 2046u /* address pairs of the harness's /20 */
#define WIRE "ls /sys/class/net | tr '\\n' ' '; ip route | wc -l; cat /etc/resolv.conf"
#define UNWIRED "lo 0\n# this sandbox has no network\n"

static struct h_host host;

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

static int reset(void **state)
{
    host.net = &host.fabric;
    return h_reset(state);
}

static struct hf_box *create(const char *id, bool network)
{
    struct hf_box_spec spec = {.sandbox_id = id, .template_id = H_TEMPLATE, .network = network};
    struct hf_err err;
    struct hf_box *box = h_create_spec(&host, &spec, &err);
    if (!box)
        fail_msg("create: %s", err.msg);
    return box;
}

/* Interfaces, addresses, default routes and resolver are those of the box's key. */
static void expect_wired(struct hf_box *box)
{
    struct hf_net_addrs a;
    char b4[HF_ADDR_TEXT], g4[HF_ADDR_TEXT], d4[HF_ADDR_TEXT], b6[HF_ADDR_TEXT], g6[HF_ADDR_TEXT],
        d6[HF_ADDR_TEXT];
    assert_int_equal(hf_net_addrs(&host.fabric, hf_box_net_key(box), &a), 0);
    hf_addr_format(&a.box4, b4);
    hf_addr_format(&a.gw4, g4);
    hf_addr_format(&a.dns4, d4);
    hf_addr_format(&a.box6, b6);
    hf_addr_format(&a.gw6, g6);
    hf_addr_format(&a.dns6, d6);
    hf_auto_free char *want = hf_xasprintf("eth0 lo %s/31 %s/127 default via %s default via %s nameserver %s "
                                           "nameserver %s ",
                                           b4, b6, g4, g6, d4, d6);
    hf_auto_free char *got = h_exec(
        box, "ls /sys/class/net | tr '\\n' ' '; ip addr show eth0 | grep -v fe80 | grep -o 'inet6* [^ ]*' | "
             "cut -d' ' -f2 | tr '\\n' ' '; ip route | grep -o 'default via [^ ]*' | tr '\\n' ' '; "
             "ip -6 route | grep -o 'default via [^ ]*' | tr '\\n' ' '; tr '\\n' ' ' < /etc/resolv.conf");
    assert_non_null(got);
    assert_string_equal(got, want);
    assert_true(h_fabric_has(&host, hf_box_net_key(box)));
}

static void expect_unwired(struct hf_box *box)
{
    h_expect(box, WIRE, UNWIRED);
    assert_false(h_fabric_has(&host, hf_box_net_key(box)));
}

/* ---- from the start ---- */

static void test_with_and_without(void **state)
{
    struct hf_driver_caps caps;
    h_open(&host, 0);
    host.driver->ops->caps(host.driver, &caps);
    assert_true(caps.network);
    struct hf_box *with = create("with", true), *without = create("without", false);
    expect_wired(with);
    expect_unwired(without);
    /* Nothing of it is the box's to change, and there are neither raw nor ping sockets. */
    h_expect(with,
             "for who in root user; do su $who -c 'busybox ping -c1 -w1 127.0.0.1' >/dev/null 2>&1 || echo "
             "no; done; "
             "ip link set eth0 down 2>/dev/null || echo no; "
             "ip addr add 10.117.0.9/31 dev eth0 2>/dev/null || echo no; "
             "(echo 1 > /proc/sys/net/ipv4/ip_forward) 2>/dev/null || echo no",
             "no\nno\nno\nno\nno\n");
    uint32_t key = hf_box_net_key(with);
    assert_int_equal(h_destroy(&host, with, NULL), 0);
    assert_false(h_fabric_has(&host, key));
    assert_int_equal(h_destroy(&host, without, NULL), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

/* A host without a fabric: loopback only, whatever was asked for, and it says so. */
static void test_no_fabric(void **state)
{
    struct hf_driver_caps caps;
    struct hf_err err;
    host.net = NULL;
    h_open(&host, 0);
    host.driver->ops->caps(host.driver, &caps);
    assert_false(caps.network);
    assert_non_null(strstr(caps.missing, "network"));
    struct hf_box *box = create("none", true);
    h_expect(box, WIRE, UNWIRED);
    assert_int_equal(h_network(&host, box, true, &err), -ENOTSUP);
    assert_int_equal(h_network(&host, box, false, &err), 0);
    assert_int_equal(h_destroy(&host, box, NULL), 0);
    h_close(&host, true);
}

static void test_fabric_is_missing(void **state)
{
    struct hf_net_config gone = host.fabric;
    struct hf_err err;
    struct hf_box_spec spec = {.sandbox_id = "lost", .template_id = H_TEMPLATE, .network = true};
    gone.id = "00000000";
    host.net = &gone;
    h_open(&host, 0);
    assert_null(h_create_spec(&host, &spec, &err));
    assert_int_equal(err.r, -ENOENT);
    assert_non_null(strstr(err.msg, "network fabric"));
    h_assert_clean(&host);
    h_close(&host, true);
}

/* ---- from the pool ---- */

static void wait_for_links(unsigned n)
{
    for (uint64_t end = hf_mono_ms() + 5000; h_fabric_count(&host) < n && hf_mono_ms() < end;)
        h_spin(&host, 20);
    assert_int_equal(h_fabric_count(&host), n);
}

static void test_pool(void **state)
{
    h_open(&host, 2);
    wait_for_links(2); /* made before anybody asked */
    h_spin(&host, 100);
    struct hf_box *with = create("with", true);
    assert_true(hf_box_net_key(with) <= 2 + 1000);
    expect_wired(with);
    wait_for_links(3);
    h_spin(&host, 100);
    struct hf_box *without = create("without", false);
    bool gone = false; /* soon after the answer */
    for (uint64_t end = hf_mono_ms() + 2000; !gone && hf_mono_ms() < end;) {
        hf_auto_free char *now = h_exec(without, WIRE);
        gone = now && strcmp(now, UNWIRED) == 0;
    }
    expect_unwired(without);
    expect_wired(with);
    assert_int_equal(h_destroy(&host, with, NULL), 0);
    assert_int_equal(h_destroy(&host, without, NULL), 0);
    h_close(&host, true);
    h_assert_clean(&host);
}

/* Members of a pool that was made without a fabric, or for another one, are not handed out. */
static void test_pool_of_an_older_daemon(void **state)
{
    static struct h_found found[H_FOUND_MAX];
    host.net = NULL;
    h_open(&host, 1);
    h_spin(&host, 1000);
    h_close(&host, false);
    host.net = &host.fabric;
    h_open(&host, 1);
    assert_in_range(h_scan(&host, found), 1, 2);
    for (size_t i = 0; i < 1; i++)
        host.driver->ops->adopt(host.driver, found[i].box);
    wait_for_links(1);
    h_spin(&host, 200);
    expect_wired(create("fresh", true));
    (void)h_close(&host, true);
}

/* ---- at run time ---- */

static void switch_to(struct hf_box *box, bool up)
{
    struct hf_err err;
    if (h_network(&host, box, up, &err) < 0)
        fail_msg("network %s: %s", up ? "up" : "down", err.msg);
}

static void test_up_and_down(void **state)
{
    struct hf_err err;
    h_open(&host, 0);
    struct hf_box *box = create("switch", false);
    for (int i = 0; i < 2; i++) {
        switch_to(box, true);
        expect_wired(box);
        switch_to(box, true);
        expect_wired(box);
        switch_to(box, false);
        expect_unwired(box);
        switch_to(box, false);
        expect_unwired(box);
    }
    /* The template's owner of that file is the box's root; a link there is not followed. */
    h_expect(box, "rm /etc/resolv.conf; ln -s /etc/marker /etc/resolv.conf; echo ok", "ok\n");
    assert_int_equal(h_network(&host, box, true, &err), 0);
    h_expect(box, "cat /etc/marker; ls /sys/class/net | wc -l", "template\n2\n");
    assert_int_equal(h_destroy(&host, box, NULL), 0);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_restart_keeps_it(void **state)
{
    static struct h_found found[H_FOUND_MAX];
    struct hf_err err;
    h_open(&host, 0);
    uint32_t key = hf_box_net_key(create("kept", true));
    h_abandon(&host);
    h_open(&host, 0);
    assert_int_equal(h_scan(&host, found), 1);
    host.driver->ops->adopt(host.driver, found[0].box);
    assert_int_equal(hf_box_net_key(found[0].box), key);
    expect_wired(found[0].box);
    assert_int_equal(h_network(&host, found[0].box, false, &err), 0);
    expect_unwired(found[0].box);
    assert_int_equal(h_destroy(&host, found[0].box, NULL), 0);
    h_close(&host, true);
}

/* Somebody removed the namespace while no daemon was there: a new fabric gets the wires again. */
static void test_fabric_was_replaced(void **state)
{
    static struct h_found found[H_FOUND_MAX];
    h_open(&host, 0);
    (void)create("moved", true);
    h_abandon(&host);
    h_fabric_close(&host);
    h_fabric_open(&host, NULL);
    h_open(&host, 0);
    assert_int_equal(h_scan(&host, found), 1);
    host.driver->ops->adopt(host.driver, found[0].box);
    h_spin(&host, 200);
    expect_wired(found[0].box);
    assert_int_equal(h_destroy(&host, found[0].box, NULL), 0);
    h_close(&host, true);
}

/* ---- its end ---- */

/* A socket into the box keeps its network namespace alive; the interface goes all the same. */
static void test_open_socket(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = create("dialled", true);
    uint32_t key = hf_box_net_key(box);
    free(h_exec(box, "(nc -l -p 80 -e /bin/sleep 60 >/dev/null 2>&1 &) ; sleep 0.2"));
    int fd = h_dial(&host, box, 80);
    assert_true(fd >= 0);
    assert_int_equal(h_destroy(&host, box, NULL), 0);
    assert_false(h_fabric_has(&host, key));
    (void)close(fd);
    h_close(&host, true);
}

static void test_supervisor_killed(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = create("orphan", true);
    uint32_t key = hf_box_net_key(box);
    free(h_exec(box, "(nc -l -p 80 -e /bin/sleep 60 >/dev/null 2>&1 &) ; sleep 0.2"));
    int fd = h_dial(&host, box, 80);
    pid_t shim = h_shim_pid(&host, h_box_number(box));
    assert_int_equal(kill(shim, SIGKILL), 0);
    assert_true(h_until(&host, &host.exited, 5000));
    assert_int_equal(h_destroy(&host, box, NULL), 0);
    assert_false(h_fabric_has(&host, key));
    (void)close(fd);
    h_assert_clean(&host);
    h_close(&host, true);
}

static void test_box_killed(void **state)
{
    h_open(&host, 0);
    struct hf_box *box = create("dies", true);
    uint32_t key = hf_box_net_key(box);
    free(h_exec(box, "#exit 3"));
    assert_true(h_until(&host, &host.exited, 5000));
    assert_int_equal(h_destroy(&host, box, NULL), 0);
    assert_false(h_fabric_has(&host, key));
    h_close(&host, true);
}

/* ---- numbers ---- */

static void test_numbers_go_on(void **state)
{
    uint32_t last = 0;
    for (int i = 0; i < 3; i++) {
        h_open(&host, 0);
        struct hf_box *box = create("n", false);
        assert_true(hf_box_net_key(box) > last);
        last = hf_box_net_key(box);
        assert_int_equal(h_destroy(&host, box, NULL), 0);
        h_close(&host, true);
    }
}

/* Once around the subnet: the number whose addresses somebody still has is left out. */
static void test_addresses_are_unique(void **state)
{
    char path[128];
    h_open(&host, 0);
    struct hf_box *old = create("old", true);
    uint32_t n = hf_box_net_key(old);
    h_abandon(&host);
    (void)snprintf(path, sizeof(path), "%s/number", host.run);
    hf_auto_free char *text = hf_xasprintf("%u\n", n + PAIRS_OF_20);
    assert_int_equal(hf_write_file_atomic(path, text, strlen(text), 0600), 0);
    h_open(&host, 0);
    struct hf_box *young = create("young", true);
    assert_int_equal(hf_box_net_key(young), n + PAIRS_OF_20 + 1);
    expect_wired(young);
    h_close(&host, false);
}

int main(int argc, char **argv)
{
    h_require(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_with_and_without, reset),
        cmocka_unit_test_teardown(test_no_fabric, reset),
        cmocka_unit_test_teardown(test_fabric_is_missing, reset),
        cmocka_unit_test_teardown(test_pool, reset),
        cmocka_unit_test_teardown(test_pool_of_an_older_daemon, reset),
        cmocka_unit_test_teardown(test_up_and_down, reset),
        cmocka_unit_test_teardown(test_restart_keeps_it, reset),
        cmocka_unit_test_teardown(test_fabric_was_replaced, reset),
        cmocka_unit_test_teardown(test_open_socket, reset),
        cmocka_unit_test_teardown(test_supervisor_killed, reset),
        cmocka_unit_test_teardown(test_box_killed, reset),
        cmocka_unit_test_teardown(test_numbers_go_on, reset),
        cmocka_unit_test_teardown(test_addresses_are_unique, reset),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
