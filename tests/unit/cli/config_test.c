#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/path.h"
#include "base/text.h"
#include "control/config.h"

static char dir[64];

static int setup(void **state)
{
    (void)state;
    (void)clearenv();
    (void)snprintf(dir, sizeof(dir), "/tmp/hf-cli-config-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return hf_remove_tree(dir);
}

static char *write_toml(const char *text)
{
    char *path = hf_xasprintf("%s/holdfast.toml", dir);
    assert_int_equal(hf_write_file_atomic(path, text, strlen(text), 0600), 0);
    return path;
}

static void defaults(void **state)
{
    (void)state;
    struct hf_config c;
    hf_config_defaults(&c);
    assert_string_equal(c.data_dir, "/var/lib/holdfast");
    assert_string_equal(c.listen_host, "127.0.0.1");
    assert_int_equal(c.listen_port, 3000);
    assert_int_equal(c.warm_pool, 4);
    assert_false(c.insecure_listen);
    assert_int_equal(hf_config_check(&c, NULL), 0);
    hf_config_done(&c);
}

/* flags > environment > file > defaults, setting by setting. */
static void precedence(void **state)
{
    (void)state;
    struct hf_config c;
    struct hf_err err = {0};
    free(write_toml("warm_pool = 1\ndomain = \"file.test\"\nlog_level = \"debug\"\n"));
    setenv("HOLDFAST_WARM_POOL", "2", 1);
    setenv("HOLDFAST_DOMAIN", "env.test", 1);
    setenv("HOLDFAST_MAX_SANDBOXES", "", 1); /* empty = unset */
    hf_config_defaults(&c);
    assert_int_equal(hf_config_set(&c, "data", dir, &err), 0);
    assert_int_equal(hf_config_load(&c, NULL, &err), 0);
    assert_int_equal(hf_config_set(&c, "warm_pool", "3", &err), 0);
    assert_int_equal(c.warm_pool, 3);
    assert_string_equal(c.domain, "env.test");
    assert_int_equal(c.log_level, HF_LOG_DEBUG);
    assert_int_equal(c.max_sandboxes, 1000);
    hf_config_done(&c);
}

static void data_of_the_environment_has_the_file(void **state)
{
    (void)state;
    struct hf_config c;
    struct hf_err err = {0};
    free(write_toml("max_sandboxes = 7\n"));
    setenv("HOLDFAST_DATA", dir, 1);
    hf_config_defaults(&c);
    assert_int_equal(hf_config_load(&c, NULL, &err), 0);
    assert_string_equal(c.data_dir, dir);
    assert_int_equal(c.max_sandboxes, 7);
    hf_config_done(&c);
}

static void bad_files(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"warm_pol = 1", "line 1: unknown setting 'warm_pol'; did you mean 'warm_pool'?"},
        {"\nwarm_pool = \"many\"", "line 2: warm_pool: 'many' is not a whole number"},
        {"warm_pool = 5000", "line 1: warm_pool: 5000 is out of range; allowed: 0 to 1024"},
        {"default_memory = \"1K\"", "line 1: default_memory: 1K is out of range; allowed: 64 MiB to 4 TiB"},
        {"insecure_listen = \"maybe\"", "line 1: insecure_listen: 'maybe' is neither true nor false"},
        {"listen = 3000", "line 1: listen: '3000' is not HOST:PORT, as in 127.0.0.1:3000 or [::1]:3000"},
        {"log_level = \"loud\"", "line 1: log_level: 'loud' is not debug, info, warn or error"},
        {"[serve]\nlisten = \"127.0.0.1:1\"",
         "line 2: unknown setting 'serve.listen'; docs/cli.md lists all of them"},
        {"a = ", "line 1: the value is missing after '='"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        struct hf_config c;
        struct hf_err err = {0};
        hf_auto_free char *path = write_toml(cases[i][0]);
        hf_auto_free char *want = hf_xasprintf("%s: %s", path, cases[i][1]);
        hf_config_defaults(&c);
        assert_int_equal(hf_config_load(&c, path, &err), -EINVAL);
        assert_string_equal(err.msg, want);
        hf_config_done(&c);
    }
}

static void missing_file(void **state)
{
    (void)state;
    struct hf_config c;
    struct hf_err err = {0};
    hf_config_defaults(&c);
    assert_int_equal(hf_config_load(&c, "/nonexistent/holdfast.toml", &err), -ENOENT);
    assert_non_null(strstr(err.msg, "does not exist"));
    hf_config_done(&c);
}

static void bad_environment(void **state)
{
    (void)state;
    struct hf_config c;
    struct hf_err err = {0};
    setenv("HOLDFAST_DATA", dir, 1);
    setenv("HOLDFAST_LOG_LEVEL", "loud", 1);
    hf_config_defaults(&c);
    assert_int_equal(hf_config_load(&c, NULL, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "HOLDFAST_LOG_LEVEL"));
    hf_config_done(&c);
}

static void listen_addresses(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",           ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "example.com:80", "127.0.0.1:-1",
        "300.0.0.1:1"};
    struct hf_config c;
    hf_config_defaults(&c);
    assert_int_equal(hf_config_set(&c, "listen", "[::1]:0", NULL), 0);
    assert_string_equal(c.listen_host, "::1");
    assert_int_equal(c.listen_port, 0);
    assert_int_equal(hf_config_set(&c, "listen", "localhost:65535", NULL), 0);
    assert_string_equal(c.listen_host, "127.0.0.1");
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        struct hf_err err = {0};
        assert_int_equal(hf_config_set(&c, "listen", bad[i], &err), -EINVAL);
        assert_non_null(strstr(err.msg, "127.0.0.1:3000"));
    }
    assert_string_equal(c.listen_host, "127.0.0.1");
    assert_int_equal(c.listen_port, 65535);
    hf_config_done(&c);
}

static void paths_are_absolute(void **state)
{
    (void)state;
    struct hf_config c;
    struct hf_err err = {0};
    hf_config_defaults(&c);
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(hf_config_set(&c, "data", ".//d/./e/", &err), 0);
    assert_int_equal(hf_config_check(&c, &err), 0);
    hf_auto_free char *want = hf_xasprintf("%s/d/e", dir);
    assert_string_equal(c.data_dir, want);
    assert_int_equal(hf_config_set(&c, "data", "/", &err), 0);
    assert_int_equal(hf_config_check(&c, &err), 0);
    assert_string_equal(c.data_dir, "/");
    assert_int_equal(hf_config_set(&c, "data", "", &err), 0);
    assert_int_equal(hf_config_check(&c, &err), -EINVAL);
    hf_config_done(&c);
    assert_int_equal(chdir("/"), 0);
}

static void run_dir(void **state)
{
    (void)state;
    struct hf_config c;
    hf_config_defaults(&c);
    hf_auto_free char *a = hf_config_run_dir(&c);
    /* printf /var/lib/holdfast | sha256sum */
    assert_string_equal(a, "/run/holdfast/ae7fc4f3");
    assert_int_equal(hf_config_set(&c, "run_dir", "/run/x", NULL), 0);
    hf_auto_free char *b = hf_config_run_dir(&c);
    assert_string_equal(b, "/run/x");
    hf_config_done(&c);
}

static void sizes_and_times(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int r;
        uint64_t value;
    } sizes[] = {{"0", 0, 0},
                 {"512", 0, 512},
                 {"1K", 0, 1024},
                 {"1.5G", 0, 1610612736},
                 {"64GiB", 0, 64ull << 30},
                 {"2mb", 0, 2ull << 20},
                 {"18446744073709551615", 0, UINT64_MAX},
                 {"18446744073709551616", -EINVAL, 0},
                 {"99999999T", -ERANGE, 0},
                 {"", -EINVAL, 0},
                 {"-1", -EINVAL, 0},
                 {"1X", -EINVAL, 0},
                 {"1.", -EINVAL, 0},
                 {"1 G", -EINVAL, 0},
                 {"1GG", -EINVAL, 0}};
    static const struct {
        const char *text;
        int r;
        uint64_t value;
    } times[] = {{"90", 0, 90},        {"90s", 0, 90},      {"5m", 0, 300},      {"1h30m", 0, 5400},
                 {"2d", 0, 172800},    {"", -EINVAL, 0},    {"5x", -EINVAL, 0},  {"m", -EINVAL, 0},
                 {"1h30", -EINVAL, 0}, {"-5m", -EINVAL, 0}, {"1.5h", -EINVAL, 0}};
    for (size_t i = 0; i < HF_ARRAY_LEN(sizes); i++) {
        uint64_t v = 0;
        int r = hf_parse_size(sizes[i].text, &v);
        assert_true(sizes[i].r == 0 ? r == 0 : r < 0);
        assert_true(v == sizes[i].value);
    }
    for (size_t i = 0; i < HF_ARRAY_LEN(times); i++) {
        uint64_t v = 0;
        assert_int_equal(hf_parse_seconds(times[i].text, &v), times[i].r);
        assert_true(v == times[i].value);
    }
}

static void for_people(void **state)
{
    (void)state;
    char out[HF_HUMAN_MAX];
    assert_string_equal(hf_human_size(0, out), "0 B");
    assert_string_equal(hf_human_size(1023, out), "1023 B");
    assert_string_equal(hf_human_size(1536, out), "1.5 KiB");
    assert_string_equal(hf_human_size(64ull << 30, out), "64 GiB");
    assert_string_equal(hf_human_size(UINT64_MAX, out), "16 EiB");
    assert_string_equal(hf_human_seconds(59, out), "59s");
    assert_string_equal(hf_human_seconds(60, out), "1m");
    assert_string_equal(hf_human_seconds(11100, out), "3h 5m");
    assert_string_equal(hf_human_seconds(187200, out), "2d 4h");
    static const char *const words[] = {"sandbox", "session", "serve", NULL};
    assert_string_equal(hf_nearest("sandobx", words), "sandbox");
    assert_string_equal(hf_nearest("srve", words), "serve");
    assert_null(hf_nearest("zzz", words));
    assert_null(hf_nearest("", words));
}

static void take_zone(void *arg, const struct hf_config_zone *z)
{
    struct hf_config_zone *at = arg;
    at[z->zone[0] == 'c' ? 0 : 1] = *z;
}

static void network_settings(void **state)
{
    (void)state;
    struct hf_config c;
    struct hf_err err = {0};
    hf_config_defaults(&c);
    assert_int_equal(c.network, HF_NETWORK_AUTO);
    assert_int_equal(c.outbound_keep, 7 * 24 * 3600);
    static const char *const good[][2] = {{"network", "required"},
                                          {"network_ipv6", "off"},
                                          {"network_subnet4", "10.9.0.0/16"},
                                          {"network_uplink6", "fd00:1::/56"},
                                          {"network_uplink6", ""},
                                          {"dns_upstreams", "192.0.2.53, [2001:db8::53]:5353,2001:db8::1"},
                                          {"dns_zones", "corp.test=10.0.0.53,10.0.0.54:54 private; "
                                                        "other.test = 192.0.2.53;"},
                                          {"outbound_keep", "1d"}};
    static const char *const bad[][2] = {{"network", "maybe"},
                                         {"network_ipv6", "required"},
                                         {"network_subnet4", "fd00::/64"},
                                         {"network_subnet4", "10.9"},
                                         {"network_uplink6", "10.0.0.0/8"},
                                         {"dns_upstreams", "dns.test"},
                                         {"dns_upstreams", "1.2.3.4,"},
                                         {"dns_upstreams", "1.2.3.4:0"},
                                         {"dns_upstreams", "[1.2.3.4]:5"},
                                         {"dns_zones", "corp.test"},
                                         {"dns_zones", "corp.test="},
                                         {"dns_zones", "Corp.test=10.0.0.1"},
                                         {"dns_zones", ".test=10.0.0.1"},
                                         {"dns_zones", "a.test=10.0.0.1 secret"},
                                         {"outbound_keep", "1s"}};
    for (size_t i = 0; i < HF_ARRAY_LEN(good); i++)
        if (hf_config_set(&c, good[i][0], good[i][1], &err) < 0)
            fail_msg("%s=%s: %s", good[i][0], good[i][1], err.msg);
    assert_int_equal(c.network, HF_NETWORK_REQUIRED);
    assert_int_equal(c.network_ipv6, HF_IPV6_OFF);
    assert_string_equal(c.network_uplink6, "");
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        err = (struct hf_err){0};
        if (hf_config_set(&c, bad[i][0], bad[i][1], &err) != -EINVAL)
            fail_msg("%s=%s was taken", bad[i][0], bad[i][1]);
        assert_non_null(strstr(err.msg, bad[i][0])); /* the message names the setting */
    }
    struct hf_config_zone z[2] = {0};
    assert_int_equal(hf_config_each_zone(c.dns_zones, take_zone, z, &err), 0);
    assert_string_equal(z[0].zone, "corp.test");
    assert_true(z[0].is_private);
    assert_int_equal(z[0].n, 2);
    assert_string_equal(z[0].servers[1], "10.0.0.54:54");
    assert_string_equal(z[1].zone, "other.test");
    assert_false(z[1].is_private);
    hf_config_done(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(defaults, setup, teardown),
        cmocka_unit_test_setup_teardown(precedence, setup, teardown),
        cmocka_unit_test_setup_teardown(data_of_the_environment_has_the_file, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_files, setup, teardown),
        cmocka_unit_test_setup_teardown(missing_file, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_environment, setup, teardown),
        cmocka_unit_test_setup_teardown(listen_addresses, setup, teardown),
        cmocka_unit_test_setup_teardown(paths_are_absolute, setup, teardown),
        cmocka_unit_test_setup_teardown(run_dir, setup, teardown),
        cmocka_unit_test_setup_teardown(network_settings, setup, teardown),
        cmocka_unit_test(sizes_and_times),
        cmocka_unit_test(for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
