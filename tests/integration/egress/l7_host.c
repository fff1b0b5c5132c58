/* The L7 proxy alone, with a fabric and a resolver that do what standard input says: one JSON object a line
 * in, answers and records as lines out.
 *
 *   l7-host CA-FILE           the proxy; listens on HF_NET_L7_PORT of the present network namespace
 *   l7-host --ca DIR          writes DIR/ca.pem and DIR/ca.key
 *   l7-host --leaf DIR NAME…  writes a certificate of that authority for the names, DIR/<first name>.pem +
 * .key
 *
 * A client says by its source port what it was redirected from (command "orig"; source 0: whoever says
 * nothing). */
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

#include "base/log.h"
#include "egress/l7_int.h"

#define LINE_MAX_BYTES (8u << 20)
#define NAMES_MAX 2048u

struct orig {
    struct hf_addr addr;
    uint16_t port;
};
struct dns_name {
    char name[254];
    struct hf_addr addr;
    bool learned;
};

static struct hf_netd netd;
static struct orig origs[65536];
static struct dns_name names[NAMES_MAX];
static size_t n_names;
static struct hf_buf input;
static char in_buf[65536];

/* ---- the fabric ---- */

int hf_net_socket(struct hf_net *n, int domain, int type, int protocol)
{
    int fd = socket(domain, type | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
    return fd < 0 ? -errno : fd;
}

int hf_net_original_dst(int fd, struct hf_addr *ret, uint16_t *ret_port)
{
    struct sockaddr_storage ss;
    socklen_t n = sizeof ss;
    struct hf_addr a;
    uint16_t port;
    if (getpeername(fd, (struct sockaddr *)&ss, &n) < 0)
        return -errno;
    if (hf_addr_from_sockaddr((struct sockaddr *)&ss, &a, &port) < 0)
        return -ENOENT;
    const struct orig *o = origs[port].port ? &origs[port] : &origs[0];
    *ret = o->addr;
    *ret_port = o->port;
    return o->port ? 0 : -ENOENT;
}

/* ---- the resolver ---- */

static bool answers(const char *name, const struct hf_addr *a, bool learned)
{
    for (size_t i = 0; i < n_names; i++)
        if (strcmp(names[i].name, name) == 0 && hf_addr_equal(&names[i].addr, a) &&
            (!learned || names[i].learned))
            return true;
    return false;
}

bool hf_netd_learned(struct hf_netd_box *b, const char *name, const struct hf_addr *a)
{
    return answers(name, a, true);
}

bool hf_netd_learned_for(struct hf_netd_box *b, const struct hf_addr *a,
                         bool (*wanted)(const struct hf_policy *p, const char *name), char ret_name[254])
{
    for (size_t i = 0; i < n_names; i++)
        if (names[i].learned && hf_addr_equal(&names[i].addr, a) && wanted(b->policy, names[i].name)) {
            memcpy(ret_name, names[i].name, sizeof names[i].name);
            return true;
        }
    return false;
}

struct resolving {
    uv_timer_t timer;
    char name[254];
    hf_resolve_cb cb;
    void *arg;
};

static void resolving_closed(uv_handle_t *h)
{
    free(h->data);
}

static void on_resolved(uv_timer_t *t)
{
    struct resolving *r = t->data;
    struct hf_addr found[8];
    size_t n = 0;
    for (size_t i = 0; i < n_names && n < HF_ARRAY_LEN(found); i++)
        if (strcmp(names[i].name, r->name) == 0)
            found[n++] = names[i].addr;
    r->cb(r->arg, n ? 0 : -ENOENT, found, n);
    uv_close((uv_handle_t *)t, resolving_closed);
}

void hf_netd_resolve(struct hf_netd_box *b, const char *name, hf_resolve_cb cb, void *arg)
{
    struct resolving *r = hf_new(struct resolving);
    (void)snprintf(r->name, sizeof r->name, "%s", name);
    r->cb = cb;
    r->arg = arg;
    (void)uv_timer_init(netd.loop, &r->timer);
    r->timer.data = r;
    (void)uv_timer_start(&r->timer, on_resolved, 5, 0);
}

/* ---- boxes and tenants ---- */

struct hf_netd_box *hf_netd_box_by_addr(struct hf_netd *d, const struct hf_addr *a)
{
    return hf_map_get(&d->by_addr, (struct hf_str){(const char *)a, sizeof *a});
}

struct hf_netd_box *hf_netd_box_ref(struct hf_netd_box *b)
{
    b->refs++;
    return b;
}

void hf_netd_box_unref(struct hf_netd_box *b)
{
    if (--b->refs == 0) {
        hf_policy_unref(b->policy);
        free(b->envd_ctl);
        free(b);
    }
}

struct hf_netd_tenant *hf_netd_tenant(struct hf_netd *d, const char *name)
{
    return hf_map_get(&d->tenants, hf_str_c(name));
}

/* ---- records ---- */

static void say(json_t *v)
{
    hf_auto_free char *s = json_dumps(v, JSON_COMPACT);
    json_decref(v);
    printf("%s\n", s ? s : "{}");
    (void)fflush(stdout);
}

void hf_record_request(struct hf_netd_box *b, const struct hf_request_record *r)
{
    char addr[HF_ADDR_TEXT];
    hf_addr_format(&r->addr, addr);
    say(json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:i,s:i,s:b,s:I,s:I,s:s,s:s}", "event", "request",
                  "sandbox", b->sandbox, "rule", r->rule, "scheme", r->scheme, "method", r->method, "host",
                  r->host, "path", r->path, "reason", r->reason, "addr", addr, "port", r->port, "status",
                  r->status, "denied", r->denied, "bytes_out", (json_int_t)r->bytes_out, "bytes_in",
                  (json_int_t)r->bytes_in, "audit", r->audit, "exec", r->exec));
}

void hf_record_denial(struct hf_netd_box *b, const char *what, const char *name, const struct hf_addr *addr,
                      uint16_t port, const char *protocol, const char *reason)
{
    say(json_pack("{s:s,s:s,s:s,s:s,s:i,s:s,s:s}", "event", "denial", "sandbox", b->sandbox, "what", what,
                  "name", name, "port", port, "protocol", protocol, "reason", reason));
}

/* ---- commands ---- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static int addr_of(const json_t *o, const char *key, struct hf_addr *ret)
{
    return hf_addr_parse(hf_str_c(text_of(o, key)), ret);
}

static int policy_of(const json_t *o, struct hf_policy **ret, struct hf_err *err)
{
    const json_t *internet = json_object_get(o, "internet");
    json_t *doc = NULL;
    int r =
        hf_policy_resolve(json_object_get(o, "network"), internet ? json_is_true(internet) : -1, &doc, err);
    if (r == 0)
        r = hf_policy_parse(doc, ret, err);
    json_decref(doc);
    return r;
}

static int cmd_box(const json_t *o, struct hf_err *err)
{
    struct hf_policy *p;
    struct hf_addr a;
    int r = policy_of(o, &p, err);
    if (r < 0 || addr_of(o, "addr", &a) < 0)
        return r < 0 ? r : -EINVAL;
    struct hf_netd_box *b = hf_netd_box_by_addr(&netd, &a);
    if (!b) {
        b = hf_new(struct hf_netd_box);
        b->refs = 1;
        b->d = &netd;
        hf_list_init(&b->l7);
        (void)hf_map_put(&netd.by_addr, (struct hf_str){(const char *)&a, sizeof a}, b);
        (void)hf_map_put(&netd.boxes, hf_str_c(text_of(o, "addr")), b);
    }
    (void)snprintf(b->sandbox, sizeof b->sandbox, "%s", text_of(o, "sandbox"));
    (void)snprintf(b->tenant, sizeof b->tenant, "%s", text_of(o, "tenant"));
    free(b->envd_ctl);
    b->envd_ctl = hf_xstrdup(text_of(o, "envd_ctl"));
    hf_policy_unref(b->policy);
    b->policy = p;
    b->policy_generation++;
    b->gone = json_is_true(json_object_get(o, "gone"));
    hf_l7_rejudge(b);
    return 0;
}

static int cmd_tenant(const json_t *o, struct hf_err *err)
{
    struct hf_netd_tenant *t = hf_netd_tenant(&netd, text_of(o, "name"));
    if (!t) {
        t = hf_new(struct hf_netd_tenant);
        (void)snprintf(t->name, sizeof t->name, "%s", text_of(o, "name"));
        (void)hf_map_put(&netd.tenants, hf_str_c(t->name), t);
    }
    json_decref(t->secrets);
    t->secrets = json_incref(json_object_get(o, "secrets"));
    free(t->ca_cert);
    free(t->ca_key);
    t->ca_cert = hf_xstrdup(text_of(o, "ca_cert"));
    t->ca_key = hf_xstrdup(text_of(o, "ca_key"));
    t->generation++;
    hf_l7_tenant_changed(t);
    return 0;
}

static int cmd_orig(const json_t *o, struct hf_err *err)
{
    uint16_t source = (uint16_t)json_integer_value(json_object_get(o, "source"));
    origs[source].port = (uint16_t)json_integer_value(json_object_get(o, "port"));
    return addr_of(o, "addr", &origs[source].addr);
}

static int cmd_name(const json_t *o, struct hf_err *err)
{
    if (n_names == NAMES_MAX)
        return -ENOSPC;
    struct dns_name *n = &names[n_names++];
    (void)snprintf(n->name, sizeof n->name, "%s", text_of(o, "name"));
    n->learned = json_is_true(json_object_get(o, "learned"));
    return addr_of(o, "addr", &n->addr);
}

static int cmd_stats(const json_t *o, struct hf_err *err)
{
    const struct hf_l7 *l = netd.l7;
    struct hf_addr a;
    const struct hf_netd_box *b = addr_of(o, "addr", &a) == 0 ? hf_netd_box_by_addr(&netd, &a) : NULL;
    say(json_pack("{s:s,s:I,s:I,s:I,s:I}", "event", "stats", "minted", (json_int_t)l->minted, "conns",
                  (json_int_t)l->n_conns, "open", (json_int_t)(b ? b->counts.l7_open : 0), "denied",
                  (json_int_t)(b ? b->counts.l7_denied : 0)));
    return 0;
}

static int cmd_quit(const json_t *o, struct hf_err *err)
{
    hf_l7_stop(&netd);
    return 0;
}

static void command(const char *line)
{
    static const struct {
        const char *name;
        int (*fn)(const json_t *o, struct hf_err *err);
    } commands[] = {{"box", cmd_box},   {"tenant", cmd_tenant}, {"orig", cmd_orig},
                    {"name", cmd_name}, {"stats", cmd_stats},   {"quit", cmd_quit}};
    struct hf_err err = {0};
    json_t *o = json_loads(line, 0, NULL);
    int r = -ENOENT;
    for (size_t i = 0; i < HF_ARRAY_LEN(commands); i++)
        if (strcmp(text_of(o, "do"), commands[i].name) == 0)
            r = commands[i].fn(o, &err);
    say(json_pack("{s:s,s:i,s:s,s:I}", "event", "done", "r", r, "error", err.msg, "id",
                  json_integer_value(json_object_get(o, "id"))));
    json_decref(o);
}

static void boxes_free(void)
{
    size_t pos = 0;
    struct hf_netd_box *b;
    struct hf_netd_tenant *t;
    while ((b = hf_map_next(&netd.boxes, &pos, NULL)))
        hf_netd_box_unref(b);
    pos = 0;
    while ((t = hf_map_next(&netd.tenants, &pos, NULL))) {
        json_decref(t->secrets);
        free(t->ca_cert);
        free(t->ca_key);
        free(t);
    }
    hf_map_done(&netd.boxes);
    hf_map_done(&netd.by_addr);
    hf_map_done(&netd.tenants);
    hf_buf_done(&input);
}

static void alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf)
{
    *buf = uv_buf_init(in_buf, sizeof in_buf);
}

static void on_stdin(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    if (n < 0) {
        uv_close((uv_handle_t *)s, NULL);
        hf_l7_stop(&netd);
        return;
    }
    if (hf_buf_add(&input, buf->base, (size_t)n) < 0)
        abort();
    char *nl;
    while (input.n && (nl = memchr(input.p, '\n', input.n))) {
        *nl = '\0';
        command(input.p);
        hf_buf_consume(&input, (size_t)(nl - input.p) + 1);
    }
}

/* ---- certificates ---- */

static int write_file(const char *dir, const char *name, const char *suffix, const char *text)
{
    hf_auto_free char *path = hf_xasprintf("%s/%s%s", dir, name, suffix);
    FILE *f = fopen(path, "we");
    if (!f)
        return 1;
    int bad = fputs(text, f) < 0;
    return fclose(f) != 0 || bad;
}

static char *read_file(const char *dir, const char *name)
{
    hf_auto_free char *path = hf_xasprintf("%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    char *text = hf_xcalloc(1, 65536);
    size_t n = f ? fread(text, 1, 65535, f) : 0;
    text[n] = '\0';
    if (f)
        (void)fclose(f);
    return text;
}

static int make_ca(const char *dir)
{
    hf_auto_free char *cert = NULL, *key = NULL;
    struct hf_err err = {0};
    if (hf_cert_ca("test authority", 30, &cert, &key, &err) < 0)
        return 1;
    return write_file(dir, "ca", ".pem", cert) || write_file(dir, "ca", ".key", key);
}

static int make_leaf(const char *dir, const char *const *list, size_t n)
{
    hf_auto_free char *ca = read_file(dir, "ca.pem"), *ca_key = read_file(dir, "ca.key");
    hf_auto_free char *cert = NULL, *key = NULL;
    struct hf_err err = {0};
    if (hf_cert_leaf(ca, ca_key, list, n, 30, &cert, &key, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    return write_file(dir, list[0], ".pem", cert) || write_file(dir, list[0], ".key", key);
}

int main(int argc, char **argv)
{
    struct hf_err err = {0};
    uv_pipe_t in;
    uv_loop_t loop;
    struct rlimit lim = {50000, 50000};
    if (argc == 3 && strcmp(argv[1], "--ca") == 0)
        return make_ca(argv[2]);
    if (argc >= 4 && strcmp(argv[1], "--leaf") == 0)
        return make_leaf(argv[2], (const char *const *)argv + 3, (size_t)argc - 3);
    if (argc != 2)
        return 2;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)setrlimit(RLIMIT_NOFILE, &lim);
    input = HF_BUF_INIT(LINE_MAX_BYTES);
    (void)uv_loop_init(&loop);
    netd.loop = &loop;
    netd.ca_file = argv[1];
    netd.cfg.ipv6 = true;
    if (hf_l7_start(&netd, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    (void)uv_pipe_init(&loop, &in, 0);
    if (uv_pipe_open(&in, STDIN_FILENO) < 0 || uv_read_start((uv_stream_t *)&in, alloc, on_stdin) < 0)
        return 1;
    say(json_pack("{s:s}", "event", "ready"));
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    boxes_free();
    return uv_loop_close(&loop) == 0 ? 0 : 3;
}
