/* Internals of the L7 egress proxy: only src/egress/l7*.c and its tests include this. Loop thread only.
 *
 * A connection of a box is redirected here by the fabric and becomes a struct hf_l7_conn. Its first bytes
 * decide its way (l7_sniff.c):
 *   pipe       TLS to a name without a rule, and protocols that are neither TLS nor HTTP: bytes are carried
 * to the connection's own destination (l7_pipe.c) http       plain HTTP: each request is judged (l7_http.c)
 *   intercept  TLS to a name that a rule speaks of: verified upstream first, then a leaf of the tenant's CA
 *              (l7_mitm.c), then as http
 * Connections out are made by l7_up.c: to the connection's original destination and no other, or through the
 * policy's own proxy.
 *
 * Lifetime: a connection is freed when its owner state is ended (hf_l7_end) and its last handle is closed. */
#pragma once

#include <uv.h>

#include "egress/netd.h"
#include "wire/client.h"
#include "wire/guard.h"
#include "wire/http.h"
#include "wire/outq.h"
#include "wire/tls.h"

/* Limits. Each has a test. */
#define HF_L7_CONNS_MAX 8192u      /* connections of all boxes */
#define HF_L7_BOX_CONNS_MAX 1024u  /* of one box */
#define HF_L7_BOX_WAITING_MAX 64u  /* of one box, that have not said their first byte */
#define HF_L7_FIRST_MS 10000u      /* for a client that speaks first to say what it wants */
#define HF_L7_SERVER_FIRST_MS 300u /* silence after which the server is taken to speak first */
#define HF_L7_IDLE_MS 620000u      /* a tunnel without a byte in either direction */
#define HF_L7_PIPE_HIGH 262144u /* bytes queued to a slow reader above which the other side isn't read … */
#define HF_L7_PIPE_LOW 65536u   /* … until it is down to this */
#define HF_L7_UPSTREAMS_MAX 16u /* connections to the origin for one connection of a box */
#define HF_L7_LEAVES_MAX 1024u  /* leaf certificates kept, of all tenants */
#define HF_L7_READ_SIZE 65536u

enum hf_l7_state {
    HF_L7_FIRST,   /* waits for the client's first bytes */
    HF_L7_JUDGING, /* waits for the resolver */
    HF_L7_DIALING,
    HF_L7_PIPE,
    HF_L7_HTTP, /* the HTTP server has the client's stream */
    HF_L7_ENDED,
};

struct hf_l7_conn {
    struct hf_list node; /* in box->l7 */
    struct hf_l7 *l7;
    struct hf_netd_box *box; /* a reference */
    enum hf_l7_state state;
    bool waiting;     /* counted among the box's half-open ones */
    uv_tcp_t *client; /* NULL once somebody else has it */
    struct hf_addr dst;
    uint16_t src_port, port;
    uv_timer_t timer;
    struct hf_buf first; /* what the client said so far */
    unsigned handles;    /* not closed yet */
};

struct hf_l7 {
    struct hf_netd *d;
    uv_tcp_t listeners[2];
    unsigned n_listeners, handles;
    size_t n_conns;
    char read_buf[HF_L7_READ_SIZE]; /* one for all: bytes are used before the next read */
};

/* ---- l7.c ---- */
/* Ends the connection, now and once; reset: with RST, else FIN. */
void hf_l7_end(struct hf_l7_conn *c, bool reset);
/* Closes and frees a malloc'ed stream. NULL is fine. */
void hf_l7_close_stream(uv_stream_t *s, bool reset);
