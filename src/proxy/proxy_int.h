/* Internals of the data-plane proxy.
 *
 * Ownership. A box (one per sandbox id that has traffic) owns its pools and lists; it goes at a sweep when
 * nothing is left in it. An exchange (hf_px) lives from hf_proxy_handle to the request's on_close. An
 * upstream belongs to its exchange, or to its pool while idle, and is freed by its stream's close callback.
 * A tunnel owns both its streams. The proxy itself stays until everything that may call back into it is gone
 * (refs). All on the loop's thread. */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "proxy/proxy.h"
#include "wire/http_int.h"

#define HF_PROXY_ENVD_PORT 49983u
#define HF_PROXY_SANDBOX_ID_MAX 64u
#define HF_PROXY_READ_SIZE 65536u
#define HF_PROXY_QUEUE_LOW (64u * 1024u)
#define HF_PROXY_SWEEP_MS 1000u
#define HF_PROXY_FREE_PX 64u
/* Pieces of a response body that one write to the client can carry, beside head and framing. */
#define HF_PROXY_GATHER 16u

/* Body bytes up to this many are copied behind the head. */
#define HF_PROXY_COPY_MAX 4096u

struct hf_pool {
    struct hf_list node, idle; /* idle: most recently used first */
    struct hf_list links;      /* HTTP/2 connections, see h2c.c */
    struct hf_box *box;
    size_t idle_n, users; /* users: exchanges */
    uint16_t port;
    bool h2c; /* it has answered in HTTP/2 */
};

/* Open exchanges and tunnels. Those to envd count apart: a flooded application must not lock out the SDK that
 * could help. */
enum { HF_OPEN_PORTS, HF_OPEN_ENVD, HF_OPEN_KINDS };

struct hf_tenant_count {
    char *name;
    size_t boxes; /* that point here */
    size_t open[HF_OPEN_KINDS];
};

struct hf_box {
    struct hf_list pools, exchanges, tunnels;
    struct hf_list streams; /* exchanges over HTTP/2, see h2c.c */
    struct hf_tenant_count *tenant;
    size_t idle_n; /* of all pools */
    size_t open[HF_OPEN_KINDS];
    char id[HF_PROXY_SANDBOX_ID_MAX + 1];
};

struct hf_gather {
    uv_buf_t v[HF_PROXY_GATHER];
    unsigned n;
    size_t total;
};

struct hf_proxy {
    uv_loop_t *loop;
    char *domain;
    size_t domain_n;
    const struct hf_proxy_ops *ops;
    void *self;
    struct hf_map boxes, tenants;
    struct hf_tls_ctx *tls_ctx; /* towards https ports; NULL until one is needed */
    struct hf_px *free_px;
    size_t free_n;
    struct hf_buf scratch; /* a head being written */
    struct hf_buf plain;   /* what a TLS session yields */
    struct hf_gather gather;
    char *read_buf;
    uv_timer_t sweep;
    bool sweeping, freed;
    size_t refs, idle_n;
    uint64_t connect_ms, idle_ms, upstream_idle_ms;
    size_t box_max, tenant_max;
    struct hf_proxy_stats stats;
};

struct hf_upstream {
    struct hf_list node; /* in pool->idle */
    struct hf_proxy *proxy;
    struct hf_pool *pool; /* NULL after hf_proxy_drop */
    struct hf_px *px;     /* NULL while idle */
    uv_stream_t *stream;
    struct hf_tls *tls; /* NULL = plain */
    bool *gone;         /* set when the upstream is freed inside a callback */
    struct hf_outq out;
    uint64_t idle_since_ms;
    bool reading, closing, used; /* used: it has carried an exchange before */
    bool shaking;                /* the TLS handshake goes on */
};

enum hf_px_mode { HF_PX_HEAD, HF_PX_LENGTH, HF_PX_CHUNKED, HF_PX_EOF, HF_PX_DONE };

struct hf_dial {
    struct hf_proxy *proxy;
    struct hf_px *px; /* NULL once nobody waits any more */
};

struct hf_px {
    struct hf_list node; /* in box->exchanges */
    struct hf_proxy *proxy;
    struct hf_box *box; /* NULL after hf_proxy_drop */
    struct hf_pool *pool;
    struct hf_req *req;
    struct hf_upstream *up;
    struct hf_dial *dial;
    struct hf_px *next_free;
    void *handle;      /* route.handle, for a second dial */
    char *envd_socket; /* for a second connect, only while connecting */
    char *host;        /* Host for the sandbox when it is masked, else NULL */
    uint64_t last_ms, connect_since_ms;
    int64_t left; /* of a response body with a length */
    uint8_t mode; /* enum hf_px_mode */
    bool connecting, body_sent, ended, retried, expect, answered, for_head, head_pending, client_chunked;
    bool reset;             /* the upstream said something of its own accord or broke: don't reuse */
    bool tls;               /* the port speaks TLS */
    bool write_failed;      /* the upstream takes no more of the request */
    bool unsent;            /* … and has not had a byte of it */
    struct hf_buf head_buf; /* a response head that came in pieces */
    llhttp_t parser;
    struct hf_head head; /* of the response */
};

/* ---- proxy.c ---- */
struct hf_pool *hf_proxy_pool(struct hf_proxy *p, struct hf_str id, uint16_t port, const char *tenant);
static inline unsigned hf_open_kind(uint16_t port)
{
    return port == HF_PROXY_ENVD_PORT ? HF_OPEN_ENVD : HF_OPEN_PORTS;
}
static inline void hf_box_count(struct hf_box *box, uint16_t port, int by)
{
    box->open[hf_open_kind(port)] += (size_t)by;
    box->tenant->open[hf_open_kind(port)] += (size_t)by;
}
void hf_proxy_ref(struct hf_proxy *p);
void hf_proxy_unref(struct hf_proxy *p);
/* Overrides of the timeouts, for tests; 0 keeps a default. */
void hf_proxy_set_timeouts(struct hf_proxy *p, uint64_t connect_ms, uint64_t idle_ms,
                           uint64_t upstream_idle_ms);
void hf_stream_linger0(uv_stream_t *s);
/* Bytes that one direction may keep waiting now: thousands of clients that do not read must not fill the
 * memory. */
static inline size_t hf_proxy_queue_high(const struct hf_proxy *p)
{
    uint64_t share = HF_PROXY_QUEUE_TOTAL / (p->stats.active + p->stats.tunnels + 1);
    return (size_t)HF_MAX(HF_MIN(share, (uint64_t)HF_PROXY_QUEUE_HIGH), (uint64_t)HF_PROXY_QUEUE_MIN);
}
/* Room for one read: no more than that. */
static inline uv_buf_t hf_proxy_read_buf(const struct hf_proxy *p)
{
    return uv_buf_init(p->read_buf, (unsigned)HF_MIN(hf_proxy_queue_high(p), (size_t)HF_PROXY_READ_SIZE));
}

/* ---- route.c ---- */
struct hf_target {
    char id[HF_PROXY_SANDBOX_ID_MAX + 1];
    uint16_t port;
};
/* 0, or -EINVAL with the reason for a 400. */
int hf_route_parse(const struct hf_proxy *p, const struct hf_req *req, struct hf_target *ret,
                   const char **why);
/* Path of envd that belongs to the control plane, in whatever spelling. 1, 0, -EINVAL for bad encoding. */
int hf_route_reserved(struct hf_str path);
/* JSON, or a page for a browser's navigation; scripts of any origin may read it. A CORS preflight is granted
 * instead: the browser shows the answer of the request itself, and that has no credentials either. */
void hf_route_answer(struct hf_req *req, int status, const char *id, const char *message, int port);
void hf_route_answer_reserved(struct hf_req *req);
void hf_route_refuse(struct hf_req *req, const char *why); /* 400 */

/* ---- access.c ---- */
/* The ingress policy: 0 let in, 1 answered. */
int hf_access_check(struct hf_req *req, const struct hf_target *t, const struct hf_route *route);
/* The query may hold a preview link's value. */
bool hf_access_query_has(struct hf_str query);
/* "?" and the query without it; nothing when that is empty. */
int hf_access_put_query(struct hf_buf *b, struct hf_str query) HF_MUST_USE;
/* The Cookie lines can't be passed on as they are. */
bool hf_access_cookies_change(const struct hf_head *h, const char *base);
/* One line with all cookies but the preview link's. */
int hf_access_put_cookies(struct hf_buf *b, const struct hf_head *h, const char *base) HF_MUST_USE;

/* ---- head_out.c: heads as they go out, in p->scratch ---- */
int hf_put_request_head(struct hf_proxy *p, const struct hf_px *px) HF_MUST_USE;
/* base: the bytes of px->head. */
int hf_put_response_head(struct hf_proxy *p, const struct hf_px *px, const char *base) HF_MUST_USE;
/* 101 and other 1xx. */
int hf_put_interim_head(struct hf_proxy *p, const struct hf_px *px, const char *base) HF_MUST_USE;

/* The header of a request goes to the sandbox (HTTP/2; on HTTP/1.1 Connection may name others). */
bool hf_put_forwards(const struct hf_hdr *e);
/* The header of a response is the connection's, not the message's; its length counts as such. */
bool hf_put_drops(const struct hf_head *h, const char *base, const struct hf_hdr *e);

/* ---- exchange.c ---- */
void hf_px_start(struct hf_proxy *p, struct hf_req *req, struct hf_pool *pool, const struct hf_route *route);
/* Answers 502/504, or cuts the connection when the response has begun. */
void hf_px_fail(struct hf_px *px, int status, const char *message);
void hf_px_upstream_failed(struct hf_px *px, const char *message);
/* Its sandbox or the proxy goes: a begun answer is cut. With tell, a request that has no answer yet gets the
 * 502 that one a moment later would get. */
void hf_px_cut(struct hf_px *px, bool tell);
void hf_px_sweep(struct hf_px *px, uint64_t now);
void hf_px_attach(struct hf_px *px, struct hf_upstream *up);

/* The Host that maskRequestHost means; malloc'ed, NULL = as it came. */
char *hf_proxy_masked_host(const char *mask, uint16_t port);

/* ---- h2c.c ---- */
/* The request should be spoken to the port in HTTP/2. */
bool hf_gx_wanted(const struct hf_req *req, const struct hf_pool *pool, const struct hf_route *route);
void hf_gx_start(struct hf_proxy *p, struct hf_req *req, struct hf_pool *pool, const struct hf_route *route);
void hf_gx_cut_all(struct hf_box *box, bool tell); /* as hf_px_cut */
void hf_gx_sweep(struct hf_box *box, uint64_t now);
void hf_link_sweep(struct hf_pool *pool, uint64_t now, uint64_t idle_ms);
void hf_link_close_all(struct hf_pool *pool);

/* ---- upstream.c ---- */
struct hf_upstream *hf_upstream_take(struct hf_pool *pool, bool tls, bool check);
void hf_upstream_put(struct hf_upstream *up);
void hf_upstream_close(struct hf_upstream *up);
void hf_upstream_connect(struct hf_px *px);
void hf_upstream_read(struct hf_upstream *up, bool on);
/* Takes the stream and its session (NULL = plain) out; the upstream is freed. */
uv_stream_t *hf_upstream_release(struct hf_upstream *up, struct hf_tls **ret_tls);

/* ---- response.c ---- */
void hf_px_response(struct hf_px *px, const char *p, size_t n);
/* The upstream's stream ended (status UV_EOF) or failed. */
void hf_px_response_end(struct hf_px *px, int status);

/* ---- tunnel.c ---- */
struct hf_tunnel;
struct hf_end {
    uv_stream_t *stream;
    struct hf_tls *tls;  /* NULL = plain */
    struct hf_str first; /* to be sent to it before anything else */
};
/* Takes both streams and their sessions. */
void hf_tunnel_start(struct hf_pool *pool, struct hf_proxy *p, const struct hf_end *client,
                     const struct hf_end *up);
void hf_tunnel_cut_all(struct hf_box *box);
void hf_tunnel_sweep(struct hf_box *box, uint64_t now, uint64_t idle_ms);

/* ---- hold.c ---- */

void hf_hold_start(struct hf_proxy *p, struct hf_req *req, const struct hf_target *t);
