/* A server with the proxy on a loop, a listener that plays the sandbox's application, and knobs. */
#pragma once

#include "../wire/net.h"

#include <sys/un.h>

#include "proxy/proxy_int.h"

#define RIG_HOST "Host: 8000-box.localhost\r\n"
#define RIG_GET(path) "GET " path " HTTP/1.1\r\n" RIG_HOST "\r\n"

struct rig {
    uv_loop_t loop;
    struct hf_http_server *server;
    struct hf_proxy *proxy;
    int app; /* the application's listener */
    uint16_t app_port, dialed_port;
    struct hf_buf in, up; /* what the client and the application received */
    enum hf_route_state state;
    const char *envd_socket;
    struct hf_route policy; /* its ingress fields go into every answer of lookup */
    int dial_error;         /* negative errno: dial fails */
    bool dial_later;        /* the callback waits for rig_dial_now */
    void (*dial_cb)(void *arg, int fd);
    void *dial_arg;
    int dials;
};

static struct rig rig;

static void rig_lookup(void *self, struct hf_str id, struct hf_route *ret)
{
    *ret = rig.policy;
    ret->state = hf_str_eq(id, "box") || hf_str_eq(id, "other") ? rig.state : HF_ROUTE_NOT_FOUND;
    ret->handle = &rig;
    ret->envd_socket = rig.envd_socket;
}

static inline void rig_dial_now(void)
{
    int fd = rig.dial_error ? rig.dial_error : net_connect(rig.app_port);
    rig.dial_cb(rig.dial_arg, fd);
    rig.dial_cb = NULL;
}

static void rig_dial(void *self, void *handle, uint16_t port, void (*cb)(void *arg, int fd), void *arg)
{
    assert_ptr_equal(handle, &rig);
    rig.dials++;
    rig.dialed_port = port;
    rig.dial_cb = cb;
    rig.dial_arg = arg;
    if (!rig.dial_later)
        rig_dial_now();
}

static const struct hf_proxy_ops rig_ops = {rig_lookup, rig_dial, NULL};

static void rig_on_request(void *self, struct hf_req *req)
{
    if (hf_proxy_match(rig.proxy, req))
        hf_proxy_handle(rig.proxy, req);
    else
        hf_res_send(req, 200, NULL, "front", 5);
}

static const struct hf_http_handler rig_handler = {rig_on_request};

static int rig_setup(void **state)
{
    struct hf_err err;
    memset(&rig, 0, sizeof(rig));
    rig.in.max = rig.up.max = NET_BUF_MAX;
    rig.state = HF_ROUTE_RUNNING;
    assert_int_equal(uv_loop_init(&rig.loop), 0);
    rig.server = hf_http_server_new(&rig.loop, &rig_handler, NULL);
    rig.proxy = hf_proxy_new(&rig.loop, "localhost", &rig_ops, NULL);
    assert_int_equal(hf_http_server_listen_tcp(rig.server, "127.0.0.1", 0, &err), 0);
    rig.app = net_listen(&rig.app_port);
    return 0;
}

static void rig_server_gone(void *arg)
{
    *(bool *)arg = true;
}

static int rig_teardown(void **state)
{
    bool done = false;
    hf_proxy_free(rig.proxy);
    hf_http_server_free(rig.server, rig_server_gone, &done);
    NET_WAIT(&rig.loop, done);
    net_pump(&rig.loop, 2);
    assert_int_equal(uv_loop_close(&rig.loop), 0); /* nothing left behind */
    hf_close(rig.app);
    hf_buf_done(&rig.in);
    hf_buf_done(&rig.up);
    return 0;
}

#define RIG_TEST(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)

static inline int rig_client(void)
{
    hf_buf_clear(&rig.in);
    return net_connect(hf_http_server_port(rig.server));
}

static inline void rig_send(int fd, const char *s)
{
    net_send(&rig.loop, fd, s);
}

static inline void rig_expect(int fd, const char *needle)
{
    net_expect(&rig.loop, fd, &rig.in, needle);
}

/* The application takes a connection and reads until needle. */
static inline int rig_accept(const char *needle)
{
    int fd = net_accept(&rig.loop, rig.app);
    hf_buf_clear(&rig.up);
    net_expect(&rig.loop, fd, &rig.up, needle);
    return fd;
}

static inline void rig_up_expect(int fd, const char *needle)
{
    hf_buf_clear(&rig.up);
    net_expect(&rig.loop, fd, &rig.up, needle);
}

static inline int rig_end(int fd)
{
    return net_read_end(&rig.loop, fd, &rig.in);
}

static inline bool rig_no_connection(void)
{
    net_pump(&rig.loop, 20);
    int fd = accept4(rig.app, NULL, NULL, SOCK_CLOEXEC);
    hf_close(fd);
    return fd < 0;
}
