#include "control/front.h"

#include <sys/stat.h>

#include "base/log.h"
#include "base/path.h"
#include "wire/tls.h"

/* What is compared to notice a change. */
struct stamp {
    struct timespec mtime[2];
    ino_t ino[2];
    off_t size[2];
};

struct hf_front {
    struct hf_http_server *server;
    char *cert, *key;
    uv_timer_t timer;
    struct stamp loaded, seen;
};

void hf_front_paths(const struct hf_config *cfg, char **ret_cert, char **ret_key)
{
    *ret_cert = *cfg->tls_cert ? hf_xstrdup(cfg->tls_cert) : hf_xasprintf("%s/tls/cert.pem", cfg->data_dir);
    *ret_key = *cfg->tls_key ? hf_xstrdup(cfg->tls_key) : hf_xasprintf("%s/tls/key.pem", cfg->data_dir);
}

static struct stamp stamp_of(const struct hf_front *f)
{
    const char *paths[2] = {f->cert, f->key};
    struct stamp s = {0};
    for (int i = 0; i < 2; i++) {
        struct stat st;
        if (stat(paths[i], &st) < 0)
            continue;
        s.mtime[i] = st.st_mtim;
        s.ino[i] = st.st_ino;
        s.size[i] = st.st_size;
    }
    return s;
}

static bool same(const struct stamp *a, const struct stamp *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static int read_pem(const char *path, char **ret, struct hf_err *err)
{
    size_t n;
    int r = hf_read_file(path, HF_FRONT_PEM_MAX, ret, &n);
    if (r == -ENOENT)
        return hf_err_set(err, r, "%s does not exist; `holdfast cert init` makes a certificate", path);
    return r < 0 ? hf_err_set(err, r, "cannot read %s: %s", path, strerror(-r)) : 0;
}

static int load(struct hf_front *f, struct hf_tls_ctx **ret, struct hf_err *err)
{
    hf_auto_free char *cert = NULL, *key = NULL;
    f->loaded = f->seen = stamp_of(f);
    int r = read_pem(f->cert, &cert, err);
    r = r < 0 ? r : read_pem(f->key, &key, err);
    if (r == 0) {
        r = hf_tls_server_ctx(cert, key, HF_ALPN_HTTP1 | HF_ALPN_H2, ret, err);
        if (r < 0)
            hf_err_wrap(err, "%s and %s", f->cert, f->key);
    }
    if (key)
        explicit_bzero(key, strlen(key));
    return r;
}

void hf_front_reload(struct hf_front *f)
{
    struct hf_err err = {0};
    struct hf_tls_ctx *ctx = NULL;
    if (!f)
        return;
    if (load(f, &ctx, &err) < 0) {
        hf_log_error("the new certificate is not used, the old one stays", "error=%s", hf_log_quote(err.msg));
        return;
    }
    hf_http_server_set_tls(f->server, ctx);
    hf_tls_ctx_unref(ctx);
    hf_log_info("certificate loaded", "cert=%s", hf_log_quote(f->cert));
}

/* Certificate and key are two files, written one after the other: only once they rest are they a pair. */
static void on_watch(uv_timer_t *t)
{
    struct hf_front *f = t->data;
    struct stamp now = stamp_of(f);
    bool rests = same(&now, &f->seen);
    f->seen = now;
    if (rests && !same(&now, &f->loaded))
        hf_front_reload(f);
}

static void on_closed(uv_handle_t *h)
{
    struct hf_front *f = h->data;
    free(f->cert);
    free(f->key);
    free(f);
}

void hf_front_close(struct hf_front *f)
{
    if (f)
        uv_close((uv_handle_t *)&f->timer, on_closed);
}

int hf_front_open(uv_loop_t *loop, const struct hf_config *cfg, struct hf_http_server *server,
                  struct hf_front **ret, struct hf_err *err)
{
    struct hf_tls_ctx *ctx = NULL;
    if (!*cfg->tls_host)
        return 0;
    struct hf_front *f = hf_new(struct hf_front);
    f->server = server;
    hf_front_paths(cfg, &f->cert, &f->key);
    (void)uv_timer_init(loop, &f->timer);
    f->timer.data = f;
    int r = load(f, &ctx, err);
    if (r == 0)
        r = hf_http_server_listen_tls(server, cfg->tls_host, cfg->tls_port, ctx, err);
    hf_tls_ctx_unref(ctx);
    if (r < 0) {
        hf_front_close(f);
        return r;
    }
    (void)uv_timer_start(&f->timer, on_watch, HF_FRONT_WATCH_MS, HF_FRONT_WATCH_MS);
    uv_unref((uv_handle_t *)&f->timer);
    *ret = f;
    return 0;
}
