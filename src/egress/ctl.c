/* The control API of netd (netd.h): the daemon is its only client, over a unix socket that only root opens.
 */
#include "egress/netd_int.h"

#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "wire/http.h"

struct hf_ctl {
    struct hf_netd *d;
    struct hf_http_server *server;
    char *path;
    int64_t started_ms;
};

static void send_json(struct hf_req *req, json_t *v)
{
    hf_auto_free char *text = json_dumps(v, JSON_COMPACT);
    json_decref(v);
    hf_res_send(req, 200, "application/json", text, strlen(text));
}

static void done(struct hf_req *req, int r, const struct hf_err *err)
{
    if (r < 0)
        hf_res_err(req, err);
    else
        hf_res_send(req, 204, NULL, NULL, 0);
}

/* "/boxes/17" -> 17 */
static bool key_of(struct hf_str path, uint32_t *ret)
{
    static const char before[] = "/boxes/";
    uint64_t n;
    if (!hf_str_starts(path, before) ||
        hf_parse_u64((struct hf_str){path.p + sizeof(before) - 1, path.n - (sizeof(before) - 1)}, UINT32_MAX,
                     &n) < 0 ||
        n == 0)
        return false;
    *ret = (uint32_t)n;
    return true;
}

static bool tenant_of(struct hf_str path, char out[HF_TENANT_MAX])
{
    static const char before[] = "/tenants/";
    size_t n = path.n - HF_MIN(path.n, sizeof(before) - 1);
    if (!hf_str_starts(path, before) || n == 0 || n >= HF_TENANT_MAX)
        return false;
    memcpy(out, path.p + sizeof(before) - 1, n);
    out[n] = '\0';
    return true;
}

static int put_config(struct hf_netd *d, const json_t *v, struct hf_err *err)
{
    int r = hf_dns_configure(d, json_object_get(v, "dns"), err);
    if (r < 0)
        return r;
    const char *file = json_string_value(json_object_get(v, "ca_file"));
    const char *old = d->ca_file ? d->ca_file : "";
    if (strcmp(old, file ? file : "") == 0)
        return 0;
    free((char *)(uintptr_t)d->ca_file);
    d->ca_file = file ? hf_xstrdup(file) : NULL;
    return 0;
}

static void on_put(struct hf_req *req, struct hf_str body, void *arg)
{
    struct hf_ctl *c = arg;
    struct hf_err err = {0};
    json_error_t why;
    char tenant[HF_TENANT_MAX];
    uint32_t key;
    json_auto_t *v = json_loadb(body.p, body.n, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(v)) {
        hf_res_error(req, 400, "the body is not a JSON object");
        return;
    }
    int r;
    struct hf_str path = hf_req_path(req);
    if (hf_str_eq(path, "/config")) {
        r = put_config(c->d, v, &err);
    } else if (key_of(path, &key)) {
        r = hf_netd_box_put(c->d, key, v, &err);
    } else if (tenant_of(path, tenant)) {
        r = hf_netd_tenant_put(c->d, tenant, v, &err);
    } else {
        hf_res_error(req, 404, "no such thing");
        return;
    }
    done(req, r, &err);
}

static void on_delete(struct hf_ctl *c, struct hf_req *req)
{
    struct hf_err err = {0};
    char tenant[HF_TENANT_MAX];
    uint32_t key;
    if (key_of(hf_req_path(req), &key)) {
        done(req, hf_netd_box_delete(c->d, key, &err), &err);
    } else if (tenant_of(hf_req_path(req), tenant)) {
        hf_netd_tenant_delete(c->d, tenant);
        done(req, 0, NULL);
    } else {
        hf_res_error(req, 404, "no such thing");
    }
}

/* Boxes that this process was told of, and keys that only the kernel has (of a netd before this one). */
static json_t *all_boxes(struct hf_netd *d)
{
    json_t *list = json_array();
    size_t pos = 0, n = 0;
    for (struct hf_netd_box *b; (b = hf_map_next(&d->boxes, &pos, NULL));)
        (void)json_array_append_new(list, hf_netd_box_show(b));
    hf_auto_free uint32_t *keys = NULL;
    if (hf_net_keys(d->net, &keys, &n) < 0)
        n = 0;
    for (size_t i = 0; i < n; i++)
        if (!hf_netd_box(d, keys[i]))
            (void)json_array_append_new(list,
                                        json_pack("{s:I, s:s}", "key", (json_int_t)keys[i], "sandbox", ""));
    return list;
}

static void on_get(struct hf_ctl *c, struct hf_req *req)
{
    uint32_t key;
    struct hf_str path = hf_req_path(req);
    if (hf_str_eq(path, "/status")) {
        send_json(req,
                  json_pack("{s:i, s:s, s:I, s:I}", "pid", (int)getpid(), "version", HOLDFAST_VERSION,
                            "boxes", (json_int_t)c->d->boxes.len, "started_ms", (json_int_t)c->started_ms));
    } else if (hf_str_eq(path, "/boxes")) {
        send_json(req, all_boxes(c->d));
    } else if (key_of(path, &key)) {
        struct hf_netd_box *b = hf_netd_box(c->d, key);
        if (b)
            send_json(req, hf_netd_box_show(b));
        else
            hf_res_error(req, 404, "no box has the key %u", key);
    } else {
        hf_res_error(req, 404, "no such thing");
    }
}

static void on_request(void *self, struct hf_req *req)
{
    struct hf_ctl *c = self;
    struct hf_str method = hf_req_method(req);
    if (hf_str_eq(method, "PUT"))
        hf_req_collect(req, HF_NETD_BODY_MAX, on_put, NULL, c);
    else if (hf_str_eq(method, "DELETE"))
        on_delete(c, req);
    else if (hf_str_eq(method, "GET"))
        on_get(c, req);
    else
        hf_res_error(req, 405, "GET, PUT or DELETE");
}

static const struct hf_http_handler handler = {on_request};

/* The lock is ours, so a socket that is there is of a process that died. */
static int listen_on(const char *path, struct hf_err *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(addr.sun_path))
        return hf_err_set(err, -ENAMETOOLONG, "the path of the socket is too long: %s", path);
    memcpy(addr.sun_path, path, strlen(path) + 1);
    hf_auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)unlink(path);
    mode_t old = umask(0177);
    int r = fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || listen(fd, 64) < 0 ? -errno : 0;
    (void)umask(old);
    if (r < 0)
        return hf_err_set(err, r, "cannot listen on %s: %s", path, strerror(-r));
    return hf_take_fd(&fd);
}

int hf_ctl_start(struct hf_netd *d, const char *run, struct hf_ctl **ret, struct hf_err *err)
{
    struct hf_ctl *c = hf_new(struct hf_ctl);
    c->d = d;
    c->started_ms = hf_real_ms();
    c->path = hf_xasprintf("%s/netd.sock", run);
    c->server = hf_http_server_new(d->loop, &handler, c);
    int fd = listen_on(c->path, err);
    int r = fd < 0 ? fd : hf_http_server_listen_fd(c->server, fd, 0, err);
    if (r < 0)
        (void)hf_close(fd);
    *ret = c;
    return r;
}

static void closed(void *arg)
{
    struct hf_ctl *c = arg;
    free(c->path);
    free(c);
}

void hf_ctl_stop(struct hf_ctl *c)
{
    (void)unlink(c->path);
    hf_http_server_free(c->server, closed, c);
}
