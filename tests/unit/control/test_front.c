/* The certificate of the HTTPS listener: loaded, loaded again, refused. */
#include "../wire/net.h"

#include "../wire/tlsnet.h"

#include <sys/stat.h>

#include "base/path.h"
#include "control/front.h"

static uv_loop_t loop;
static struct hf_http_server *server;
static struct hf_config cfg;
static struct hf_front *front;
static char dir[] = "/tmp/hf-front-XXXXXX";
static char *ca, *ca_key, ca_path[64];
static struct hf_tls_ctx *client;

static void on_request(void *self, struct hf_req *req)
{
    hf_res_send(req, 200, NULL, hf_req_tls(req) ? "tls" : "plain", hf_req_tls(req) ? 3 : 5);
}

static const struct hf_http_handler handler = {on_request};

static void put(const char *name, const char *text)
{
    hf_auto_free char *path = hf_xasprintf("%s/tls/%s", dir, name);
    assert_int_equal(hf_write_file_atomic(path, text, strlen(text), 0600), 0);
}

/* A pair for the name; the key can be left out, so that it does not fit. */
static void put_pair(const char *name, bool with_key)
{
    struct hf_err err;
    char *cert, *key;
    assert_int_equal(hf_cert_leaf(ca, ca_key, &name, 1, 30, &cert, &key, &err), 0);
    put("cert.pem", cert);
    if (with_key)
        put("key.pem", key);
    free(cert);
    free(key);
}

/* Does a new connection get a certificate for this name? */
static bool serves(const char *name)
{
    struct tls_fd x = tls_dial_fd(net_connect(hf_http_server_tls_port(server)), client, name, HF_ALPN_HTTP1);
    uint64_t end = hf_mono_ms() + NET_TIMEOUT_MS;
    while (!hf_tls_ready(x.t) && !x.end && hf_mono_ms() < end)
        tls_turn(&loop, &x);
    bool ok = hf_tls_ready(x.t);
    tls_fd_done(&x);
    return ok;
}

static void wait_for(const char *name)
{
    uint64_t end = hf_mono_ms() + 4 * HF_FRONT_WATCH_MS;
    while (!serves(name)) {
        if (hf_mono_ms() > end)
            fail_msg("%s is not served", name);
        net_pump(&loop, 100);
    }
}

static void test_not_asked_for(void **state)
{
    struct hf_front *none = NULL;
    struct hf_err err;
    assert_int_equal(hf_front_open(&loop, &cfg, server, &none, &err), 0);
    assert_null(none);
    assert_int_equal(hf_config_set(&cfg, "tls_listen", "127.0.0.1:0", &err), 0);
    assert_int_equal(hf_front_open(&loop, &cfg, server, &none, &err), -ENOENT);
    assert_non_null(strstr(err.msg, "holdfast cert init"));
    put_pair("a.test", true);
    put("key.pem", "x");
    assert_int_equal(hf_front_open(&loop, &cfg, server, &none, &err), -EINVAL);
    put_pair("a.test", true);
    assert_int_equal(hf_front_open(&loop, &cfg, server, &front, &err), 0);
    assert_true(serves("a.test"));
    assert_false(serves("b.test"));
}

static void test_reload(void **state)
{
    struct tls_fd old =
        tls_dial_fd(net_connect(hf_http_server_tls_port(server)), client, "a.test", HF_ALPN_HTTP1);
    tls_shake(&loop, &old);
    put_pair("b.test", true);
    hf_front_reload(front); /* SIGHUP */
    assert_true(serves("b.test"));
    assert_false(serves("a.test"));
    /* The connection that was open goes on with what it has. */
    tls_send(&loop, &old, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    tls_expect(&loop, &old, "\r\n\r\ntls");
    put_pair("c.test", true);
    wait_for("c.test"); /* by itself */
    put_pair("d.test", false);
    hf_front_reload(front);
    assert_true(serves("c.test")); /* the new one is refused, the old one stays */
    put("cert.pem", "not a certificate");
    hf_front_reload(front);
    assert_true(serves("c.test"));
    put_pair("e.test", true); /* and a good one later is taken */
    wait_for("e.test");
    hf_buf_clear(&old.plain);
    tls_send(&loop, &old, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    tls_expect(&loop, &old, "\r\n\r\ntls");
    tls_fd_done(&old);
}

static int setup(void **state)
{
    struct hf_err err;
    assert_non_null(mkdtemp(dir));
    hf_auto_free char *tls = hf_xasprintf("%s/tls", dir);
    assert_int_equal(mkdir(tls, 0700), 0);
    hf_config_defaults(&cfg);
    assert_int_equal(hf_config_set(&cfg, "data", dir, &err), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    server = hf_http_server_new(&loop, &handler, NULL);
    assert_int_equal(hf_http_server_listen_tcp(server, "127.0.0.1", 0, &err), 0);
    assert_int_equal(hf_cert_ca("test CA", 30, &ca, &ca_key, &err), 0);
    temp_file(ca, ca_path);
    return hf_tls_client_ctx(ca_path, true, HF_ALPN_HTTP1, &client, &err);
}

static int teardown(void **state)
{
    hf_front_close(front);
    hf_http_server_free(server, NULL, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    hf_tls_ctx_unref(client);
    (void)unlink(ca_path);
    free(ca);
    free(ca_key);
    hf_config_done(&cfg);
    return hf_remove_tree(dir);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_not_asked_for), cmocka_unit_test(test_reload)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
