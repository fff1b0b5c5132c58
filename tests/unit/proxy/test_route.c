/* Routing decisions, without sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>

#include "proxy/proxy_int.h"

static uv_loop_t loop;
static struct hf_proxy *proxy;
static struct hf_http_server *server;
static bool matched, seen;
static int parsed;
static struct hf_target target;
static const char *why;

static void on_request(void *self, struct hf_req *req)
{
    seen = true;
    why = "";
    memset(&target, 0, sizeof(target));
    matched = hf_proxy_match(proxy, req);
    parsed = hf_route_parse(proxy, req, &target, &why);
    hf_res_send(req, 200, NULL, NULL, 0);
}

static const struct hf_http_handler handler = {on_request};

static void lookup(void *self, struct hf_str id, struct hf_route *ret)
{
}

static void dial(void *self, void *handle, uint16_t port, void (*cb)(void *arg, int fd), void *arg)
{
    cb(arg, -ECONNREFUSED);
}

static const struct hf_proxy_ops ops = {lookup, dial, NULL};

static void route(const char *host, const char *more)
{
    char s[1024];
    int n = snprintf(s, sizeof(s), "GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n", host, more);
    struct hf_conn *c = hf_conn_new(server, NULL, 0, true);
    seen = false;
    hf_conn_input(c, s, (size_t)n);
    assert_true(seen);
    hf_conn_free(c);
}

static void good(const char *host, const char *more, const char *id, uint16_t port)
{
    route(host, more);
    if (!matched || parsed || strcmp(target.id, id) != 0 || target.port != port)
        fail_msg("%s %s: matched %d parsed %d id %s port %u why %s", host, more, matched, parsed, target.id,
                 target.port, why);
}

static void bad(const char *host, const char *more, bool ours, const char *text)
{
    route(host, more);
    if (matched != ours || parsed != -EINVAL || strcmp(why, text) != 0)
        fail_msg("%s %s: matched %d parsed %d why %s", host, more, matched, parsed, why);
}

#define ID "E2b-Sandbox-Id: iabc\r\n"
#define PORT "e2b-sandbox-port: 49983\r\n"

static void test_hosts(void **state)
{
    good("8000-iabc.sbx.test", "", "iabc", 8000);
    good("8000-IABC.SBX.Test:3000", "", "iabc", 8000);
    good("8000-iabc-6532622b.sbx.test", "", "iabc", 8000);
    good("1-a.sbx.test", "", "a", 1);
    good("65535-a.sbx.test", "", "a", 65535);
    bad("0-a.sbx.test", "", true, "Invalid sandbox port");
    bad("65536-a.sbx.test", "", true, "Invalid sandbox port");
    bad("99999999999999999999-a.sbx.test", "", true, "Invalid sandbox port");
    bad("8000-.sbx.test", "", true, "Invalid sandbox ID");
    bad("8000--x.sbx.test", "", true, "Invalid sandbox ID");
    bad("8000-a_b.sbx.test", "", true, "Invalid sandbox ID");
    bad("8000-%61.sbx.test", "", true, "Invalid sandbox ID");
    bad("8000-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.sbx.test", "", true,
        "Invalid sandbox ID");
    /* Not ours: the front handler serves them. */
    bad("sbx.test", "", false, "Invalid host");
    bad("api.sbx.test", "", false, "Invalid host");
    bad("my-app.sbx.test", "", false, "Invalid host");
    bad("8000-a.b.sbx.test", "", false, "Invalid host");
    bad("8000-a.sbx.test.evil", "", false, "Invalid host");
    bad("8000-a.xsbx.test", "", false, "Invalid host");
    bad("8000-axsbx.test", "", false, "Invalid host");
    bad("", "", false, "Invalid host");
    bad("127.0.0.1:3000", "", false, "Invalid host");
    bad("[::1]:3000", "", false, "Invalid host");
}

static void test_headers(void **state)
{
    good("127.0.0.1:3000", ID PORT, "iabc", 49983);
    good("sandbox.e2b.app", ID PORT, "iabc", 49983);
    good("localhost", "E2b-Sandbox-Id: iabc-client\r\n" PORT, "iabc", 49983);
    bad("127.0.0.1", ID, true, "missing header E2b-Sandbox-Port");
    bad("127.0.0.1", PORT, true, "missing header E2b-Sandbox-Id");
    bad("127.0.0.1", ID "E2b-Sandbox-Port: x\r\n", true, "Invalid sandbox port");
    bad("127.0.0.1", "E2b-Sandbox-Id: a/b\r\n" PORT, true, "Invalid sandbox ID");
    bad("127.0.0.1", "E2b-Sandbox-Id:\r\n" PORT, true, "Invalid sandbox ID");
    /* A Host that names a sandbox wins over headers. */
    good("8000-ixyz.sbx.test", ID PORT, "ixyz", 8000);
}

static int reserved(const char *s)
{
    return hf_route_reserved(hf_str_c(s));
}

static void test_reserved(void **state)
{
    static const char *const yes[] = {
        "/init",          "//init",    "/./init",   "/x/../init",  "/%69nit",     "/%2finit",
        "/init/",         "/init/x",   "/Init",     "/init;a=b",   "/init%3fx",   "/freeze",
        "/unfreeze",      "/collapse", "/fsfreeze", "/fsthaw",     "/upgrade",    "/%2e/init",
        "/a/%2e%2e/init", "\\init",    "/%5cinit",  "/../../init", "///.//init//"};
    static const char *const no[] = {"/",        "/files",         "/health",   "/initx", "/x/init",
                                     "/init/..", "/init/../files", "/%2569nit", "*"};
    for (size_t i = 0; i < HF_ARRAY_LEN(yes); i++)
        if (reserved(yes[i]) != 1)
            fail_msg("let through: %s", yes[i]);
    for (size_t i = 0; i < HF_ARRAY_LEN(no); i++)
        if (reserved(no[i]) != 0)
            fail_msg("refused: %s", no[i]);
    assert_int_equal(reserved("/%zz"), -EINVAL);
    assert_int_equal(reserved("/init%00"), -EINVAL);
}

static int setup(void **state)
{
    assert_int_equal(uv_loop_init(&loop), 0);
    server = hf_http_server_new(&loop, &handler, NULL);
    proxy = hf_proxy_new(&loop, "SBX.test:8443", &ops, NULL);
    return 0;
}

static int teardown(void **state)
{
    hf_proxy_free(proxy);
    hf_http_server_free(server, NULL, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    return uv_loop_close(&loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hosts), cmocka_unit_test(test_headers),
                                       cmocka_unit_test(test_reserved)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
