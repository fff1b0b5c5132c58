#include "fake_netd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cmocka.h>

#include "base/path.h"

static void forget(struct hf_fake_netd *f)
{
    json_decref(f->config);
    json_decref(f->tenants);
    json_decref(f->boxes);
    f->config = NULL;
    f->tenants = json_object();
    f->boxes = json_object();
}

static void answer_status(struct hf_fake_netd *f, struct hf_req *req)
{
    f->statuses++;
    hf_auto_free char *text =
        hf_xasprintf("{\"pid\":1,\"version\":\"%s\"}", f->version ? f->version : HOLDFAST_VERSION);
    hf_res_send(req, 200, "application/json", text, strlen(text));
}

static void answer_boxes(struct hf_fake_netd *f, struct hf_req *req)
{
    json_auto_t *list = json_array();
    const char *key;
    json_t *v;
    json_object_foreach(f->boxes, key, v)(void)
        json_array_append_new(list, json_pack("{s:i}", "key", (int)strtol(key, NULL, 10)));
    hf_auto_free char *text = json_dumps(list, 0);
    hf_res_send(req, 200, "application/json", text, strlen(text));
}

static void take(struct hf_fake_netd *f, struct hf_req *req, const char *path, json_t *v)
{
    f->puts++;
    if (strcmp(path, "/config") == 0) {
        json_decref(f->config);
        f->config = json_incref(v);
    } else if (strncmp(path, "/tenants/", 9) == 0) {
        (void)json_object_set(f->tenants, path + 9, v);
    } else if (f->refuse) {
        hf_res_error(req, 400, "told to refuse");
        return;
    } else {
        (void)json_object_set(f->boxes, path + 7, v);
    }
    hf_res_send(req, 204, NULL, NULL, 0);
}

static void on_body(struct hf_req *req, struct hf_str body, void *arg)
{
    struct hf_fake_netd *f = arg;
    hf_auto_free char *path = hf_str_dup(hf_req_path(req));
    struct hf_str method = hf_req_method(req);
    if (f->silent)
        return;
    if (hf_str_eq(method, "PUT")) {
        json_auto_t *v = json_loadb(body.p, body.n, 0, NULL);
        assert_non_null(v);
        take(f, req, path, v);
    } else if (hf_str_eq(method, "DELETE")) {
        f->deletes++;
        (void)json_object_del(f->boxes, path + 7);
        hf_res_send(req, 204, NULL, NULL, 0);
    } else if (strcmp(path, "/status") == 0) {
        answer_status(f, req);
    } else {
        answer_boxes(f, req);
    }
}

static void on_request(void *self, struct hf_req *req)
{
    hf_req_collect(req, 4u << 20, on_body, NULL, self);
}

static const struct hf_http_handler handler = {on_request};

void hf_fake_netd_init(struct hf_fake_netd *f, uv_loop_t *loop, const char *run_dir)
{
    *f = (struct hf_fake_netd){.loop = loop};
    hf_auto_free char *dir = hf_xasprintf("%s/net", run_dir);
    assert_int_equal(hf_mkdir_p(dir, 0700), 0);
    (void)snprintf(f->path, sizeof(f->path), "%s/netd.sock", dir);
    forget(f);
}

void hf_fake_netd_up(struct hf_fake_netd *f)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct hf_err err = {0};
    (void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%.100s", f->path);
    (void)unlink(f->path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(fd, 16), 0);
    f->server = hf_http_server_new(f->loop, &handler, f);
    if (hf_http_server_listen_fd(f->server, fd, 0, &err) < 0)
        fail_msg("%s", err.msg);
}

void hf_fake_netd_down(struct hf_fake_netd *f)
{
    if (!f->server)
        return;
    (void)unlink(f->path);
    hf_http_server_free(f->server, NULL, NULL);
    f->server = NULL;
    forget(f);
}

void hf_fake_netd_done(struct hf_fake_netd *f)
{
    hf_fake_netd_down(f);
    json_decref(f->config);
    json_decref(f->tenants);
    json_decref(f->boxes);
}
