/* A TLS client over a socket, for tests that run the server in the same thread. Include after net.h. */
#pragma once

#include "tlspair.h"

struct tls_fd {
    int fd;
    struct hf_tls *t;
    struct hf_buf out, plain, wire;
    int end; /* 1: close_notify came; -1: the stream ended without it; < -1: broken */
};

static inline struct tls_fd tls_dial_fd(int fd, struct hf_tls_ctx *c, const char *name, unsigned alpn)
{
    struct tls_fd x = {fd,
                       hf_tls_connect(c, name, alpn),
                       HF_BUF_INIT(NET_BUF_MAX),
                       HF_BUF_INIT(NET_BUF_MAX),
                       HF_BUF_INIT(NET_BUF_MAX),
                       0};
    assert_int_equal(hf_tls_start(x.t, &x.out), 0);
    return x;
}

static inline void tls_flush(uv_loop_t *loop, struct tls_fd *x)
{
    if (x->out.n)
        net_send_n(loop, x->fd, x->out.p, x->out.n);
    hf_buf_clear(&x->out);
}

/* Takes what is there. */
static inline void tls_turn(uv_loop_t *loop, struct tls_fd *x)
{
    tls_flush(loop, x);
    hf_buf_clear(&x->wire);
    int r = net_recv(x->fd, &x->wire);
    if (r == 1) {
        int k = hf_tls_feed(x->t, x->wire.p, x->wire.n, &x->plain, &x->out);
        x->end = k == 1 ? 1 : k < 0 ? k : 0;
        tls_flush(loop, x);
    } else if (r != -EAGAIN && !x->end) {
        x->end = -1;
    }
    net_turn(loop);
}

static inline void tls_shake(uv_loop_t *loop, struct tls_fd *x)
{
    uint64_t end = hf_mono_ms() + NET_TIMEOUT_MS;
    while (!hf_tls_ready(x->t) && !x->end && hf_mono_ms() < end)
        tls_turn(loop, x);
    if (!hf_tls_ready(x->t))
        fail_msg("no handshake (%d): %s", x->end, hf_tls_error(x->t));
}

static inline void tls_send(uv_loop_t *loop, struct tls_fd *x, const char *s)
{
    assert_int_equal(hf_tls_write(x->t, s, strlen(s), &x->out), 0);
    tls_flush(loop, x);
}

static inline void tls_expect(uv_loop_t *loop, struct tls_fd *x, const char *needle)
{
    uint64_t end = hf_mono_ms() + NET_TIMEOUT_MS;
    while (!net_has(&x->plain, needle)) {
        if (x->end || hf_mono_ms() > end)
            fail_msg("ended (%d) before \"%s\"; got \"%.300s\"", x->end, needle,
                     x->plain.p ? x->plain.p : "");
        tls_turn(loop, x);
    }
}

static inline void tls_read_end(uv_loop_t *loop, struct tls_fd *x)
{
    uint64_t end = hf_mono_ms() + NET_TIMEOUT_MS;
    while (!x->end && hf_mono_ms() < end)
        tls_turn(loop, x);
}

static inline void tls_fd_done(struct tls_fd *x)
{
    hf_close(x->fd);
    hf_tls_free(x->t);
    hf_buf_done(&x->out);
    hf_buf_done(&x->plain);
    hf_buf_done(&x->wire);
}

/* A CA, a certificate for a.test, and contexts. */
struct tls_world {
    char *ca_cert, *ca_key, *cert, *key;
    char ca_path[64];
    struct hf_tls_ctx *server, *client;
};

static inline void tls_world_init(struct tls_world *w, unsigned alpn)
{
    struct hf_err err;
    const char *names[] = {"a.test", "127.0.0.1", "localhost"};
    assert_int_equal(hf_cert_ca("test CA", 30, &w->ca_cert, &w->ca_key, &err), 0);
    assert_int_equal(hf_cert_leaf(w->ca_cert, w->ca_key, names, 3, 30, &w->cert, &w->key, &err), 0);
    temp_file(w->ca_cert, w->ca_path);
    assert_int_equal(hf_tls_server_ctx(w->cert, w->key, alpn, &w->server, &err), 0);
    assert_int_equal(hf_tls_client_ctx(w->ca_path, true, alpn, &w->client, &err), 0);
}

static inline void tls_world_done(struct tls_world *w)
{
    (void)unlink(w->ca_path);
    hf_tls_ctx_unref(w->server);
    hf_tls_ctx_unref(w->client);
    free(w->ca_cert);
    free(w->ca_key);
    free(w->cert);
    free(w->key);
}
