/* Two TLS sessions that talk through buffers, and certificates for tests. */
#pragma once

#include "wire/tls.h"

#define PAIR_MAX (4u << 20)

struct end {
    struct hf_tls *t;
    struct hf_buf out, plain;
    int r; /* of its last hf_tls_feed */
};

static inline void end_done(struct end *e)
{
    hf_tls_free(e->t);
    hf_buf_done(&e->out);
    hf_buf_done(&e->plain);
}

/* Carries what a has to say to b in pieces. */
static inline bool carry(struct end *a, struct end *b, size_t piece)
{
    struct hf_buf wire = a->out;
    a->out = HF_BUF_INIT(PAIR_MAX);
    for (size_t i = 0; i < wire.n; i += piece)
        b->r = hf_tls_feed(b->t, wire.p + i, HF_MIN(piece, wire.n - i), &b->plain, &b->out);
    bool any = wire.n > 0;
    hf_buf_done(&wire);
    return any;
}

static inline void talk(struct end *a, struct end *b, size_t piece)
{
    bool more = true;
    while (more) {
        more = carry(a, b, piece);
        more |= carry(b, a, piece);
    }
}

static inline void pair_init(struct end *client, struct end *server, struct hf_tls_ctx *cc, const char *name,
                             struct hf_tls_ctx *sc)
{
    *client = (struct end){hf_tls_connect(cc, name, 0), HF_BUF_INIT(PAIR_MAX), HF_BUF_INIT(PAIR_MAX), 0};
    *server = (struct end){hf_tls_accept(sc), HF_BUF_INIT(PAIR_MAX), HF_BUF_INIT(PAIR_MAX), 0};
    client->r = hf_tls_start(client->t, &client->out);
}

/* A file with this text; unlink it. */
static inline void temp_file(const char *text, char path[64])
{
    (void)snprintf(path, 64, "/tmp/hf-wire-XXXXXX");
    int fd = mkostemp(path, O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    hf_close(fd);
}
