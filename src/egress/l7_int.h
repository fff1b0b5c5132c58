/* Internals of the L7 egress proxy: only src/egress/l7*.c and its tests include this. Loop thread only.
 *
 * A connection of a box is redirected here by the fabric and becomes a struct hf_l7_conn. Its first bytes
 * decide its way (l7_sniff.c, l7_conn.c):
 *   pipe       TLS to a name without a rule, and protocols that are neither TLS nor HTTP: bytes are carried
 * to the connection's own destination (l7_pipe.c) http       plain HTTP: each request is judged (l7_http.c)
 *   intercept  TLS to a name that a rule speaks of: verified upstream first, then a leaf of the tenant's CA
 *              (l7_mitm.c), then as http
 * Connections out are made by l7_up.c: to the connection's original destination and no other, or through the
 * policy's own proxy.
 *
 * Lifetime: hf_l7_end takes a connection out of its box's list; the memory goes with its last handle. */
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
#define HF_L7_UP_MS 10000u         /* for the proxy's and the origin's handshake, together */
#define HF_L7_IDLE_MS 620000u      /* a tunnel without a byte in either direction */
#define HF_L7_PIPE_HIGH 262144u /* bytes queued to a slow reader above which the other side isn't read … */
#define HF_L7_PIPE_LOW 65536u   /* … until it is down to this */
#define HF_L7_UPSTREAMS_MAX 16u /* connections to the origin for one connection of a box */
#define HF_L7_LEAVES_MAX 1024u  /* leaf certificates kept, of all tenants */
#define HF_L7_OWNERS_MAX 8u     /* questions to one envd at once; beyond, records have no exec */
#define HF_L7_OWNER_MS 1000u    /* an answer that comes later is not waited for */
#define HF_L7_HELD_MAX 64u      /* records of a connection that wait for it */
#define HF_L7_SECRET_MAX 16384u /* bytes of an injected header value with its secrets */
#define HF_L7_PROXY_HEAD_MAX 8192u /* bytes of an HTTP proxy's answer to CONNECT */
#define HF_L7_READ_SIZE 65536u
#define HF_L7_HOST_MAX 254u /* a normalised name or the text of an address, with NUL */

/* ---- l7_sniff.c: pure ---- */

enum hf_l7_kind { HF_L7_MORE, HF_L7_TLS, HF_L7_PLAIN_HTTP, HF_L7_OTHER };
/* What the first n bytes are. Lenient about what looks like HTTP: the strict parser refuses the rest. */
enum hf_l7_kind hf_l7_sniff(const char *p, size_t n);

/* "host", "host:port", "[v6]:port" -> normalised name or address text. The port is default_port when none is
 * given. -EINVAL for what is neither. */
struct hf_l7_authority {
    char host[HF_L7_HOST_MAX];
    bool is_addr;
    struct hf_addr addr; /* when is_addr */
    uint16_t port;
};
int hf_l7_authority(struct hf_str s, uint16_t default_port, struct hf_l7_authority *ret) HF_MUST_USE;

/* ---- l7_judge.c: pure ---- */

enum hf_l7_way { HF_L7_REFUSE, HF_L7_PASS, HF_L7_INTERCEPT };
struct hf_l7_ruling {
    enum hf_l7_way way;
    bool bind; /* only if the destination is an address that was answered for the name */
    const char *reason;
    char by[300];
};
/* What becomes of a connection that says it goes to this host. is_addr: host is an address's text. */
void hf_l7_judge_host(const struct hf_policy *p, const char *scheme, const char *host, bool is_addr,
                      const struct hf_addr *dst, uint16_t port, struct hf_l7_ruling *ret);
/* The same of TLS by its ClientHello; ret_host: the name that it goes to, "" when none. */
void hf_l7_judge_hello(const struct hf_policy *p, const struct hf_hello *h, const struct hf_addr *dst,
                       uint16_t port, char ret_host[HF_L7_HOST_MAX], struct hf_l7_ruling *ret);
/* allow_out names it: it is open at every port, not just where a rule speaks of it. */
bool hf_l7_opens_everywhere(const struct hf_policy *p, const char *name);
/* The port is one at which only TLS and HTTP are spoken as far as this policy goes. */
bool hf_l7_port_inspected(const struct hf_policy *p, uint16_t port);
/* HF_DIAL_* for the destination; bound: it was answered for an opened name. */
unsigned hf_l7_dial_flags(const struct hf_policy *p, const struct hf_addr *dst, bool bound);

/* ---- l7_secret.c: pure ---- */

/* The value of an injected header. secrets: name -> text. 0; -ENOENT: a secret is not known (its name in
 * ret_missing); -EINVAL: the value can't stand in a header; -EMSGSIZE. out is empty on failure; wipe it. */
#define HF_L7_SECRET_NAME_MAX 129u
int hf_l7_expand(const struct hf_inject *in, const json_t *secrets, struct hf_buf *out,
                 char ret_missing[HF_L7_SECRET_NAME_MAX]) HF_MUST_USE;
void hf_l7_wipe(struct hf_buf *b);

/* ---- l7_proxy.c: pure ---- */

/* The client's side of SOCKS5 (RFC 1928, 1929) and HTTP CONNECT. Never asks for a byte that belongs to what
 * comes after the proxy's answer. */
struct hf_l7_proxy {
    const struct hf_egress_proxy *cfg; /* must outlive it */
    char host[HF_L7_HOST_MAX];
    bool is_addr;
    struct hf_addr addr;
    uint16_t port;
    unsigned state;
    size_t n, want; /* of in */
    unsigned char in[HF_L7_PROXY_HEAD_MAX];
};
/* host: where to, a name or an address's text. out: what to send first. */
int hf_l7_proxy_start(struct hf_l7_proxy *x, const struct hf_egress_proxy *cfg, const char *host,
                      uint16_t port, struct hf_buf *out) HF_MUST_USE;
/* How many bytes may be read next; at least 1. */
size_t hf_l7_proxy_want(const struct hf_l7_proxy *x);
/* n <= want. 0: go on (out may hold something to send), 1: connected, negative: refused or broken, err says
 * it. */
int hf_l7_proxy_feed(struct hf_l7_proxy *x, const void *p, size_t n, struct hf_buf *out,
                     struct hf_err *err) HF_MUST_USE;

/* ---- connections ---- */

struct hf_l7_conn;
struct hf_l7_pipe;
struct hf_l7_up;
struct hf_l7_bind;
struct hf_l7_owner;

/* A connection to an origin, ready for use. */
struct hf_l7_link {
    uv_stream_t *stream; /* malloc'ed; NULL = none */
    struct hf_tls *tls;  /* NULL = plain */
    bool h2;
};

enum hf_l7_state {
    HF_L7_FIRST,   /* waits for the client's first bytes */
    HF_L7_OPENING, /* waits for the resolver or the origin */
    HF_L7_PIPE,
    HF_L7_HTTP, /* the HTTP server has the client's stream */
    HF_L7_ENDED,
};

struct hf_l7_conn {
    struct hf_list node; /* in box->l7 */
    struct hf_l7 *l7;
    struct hf_netd_box *box; /* a reference */
    enum hf_l7_state state;
    enum hf_l7_kind kind;
    bool waiting; /* counted among the box's silent ones */
    bool tls;     /* intercepted */
    bool bound;   /* dst was answered for host, which the policy opens */
    bool server_first, hijacked;
    bool h2;          /* what the origin agreed to speak, or the box began with */
    unsigned handles; /* not closed yet, and calls that will still come */
    uv_tcp_t *client; /* NULL once somebody else has it */
    struct hf_addr src, dst;
    uint16_t src_port, port;
    char host[HF_L7_HOST_MAX]; /* of the SNI; "" = none */
    uv_timer_t timer;
    uint64_t started_ms, last_ms;
    struct hf_buf first; /* what the client said so far */
    struct hf_l7_bind *bind;
    struct hf_l7_up *up;
    struct hf_l7_pipe *pipe;
    /* http and intercept */
    struct hf_list xchgs, clients;
    struct hf_l7_up *client_up; /* a further connection to the origin is being made */
    struct hf_l7_owner *owner;  /* while envd is asked */
    struct hf_list held;        /* records that wait for it */
    unsigned n_held;
    char *exec; /* malloc'ed; whose connection it is, once known */
    /* of a tunnel that began as a request, to judge it again */
    char *tunnel_method, *tunnel_path;
    char tunnel_host[HF_L7_HOST_MAX];
};

struct hf_l7 {
    struct hf_netd *d;
    uv_tcp_t listeners[2];
    unsigned n_listeners, handles;
    size_t n_conns;
    struct hf_http_server *http;
    struct hf_tls_ctx *up_ctx; /* of upstream TLS; made for up_ca */
    char *up_ca;
    struct hf_map minters, leaves; /* l7_mitm.c */
    struct hf_list leaf_order;     /* least recently used first */
    uint64_t minted, authorities;  /* so far */
    struct hf_list owners;         /* questions to envds */
    struct hf_list dead;           /* clients to be freed from the loop */
    uv_timer_t reaper;
    char read_buf[HF_L7_READ_SIZE]; /* one for all: bytes are used before the next read */
};

/* ---- l7.c ---- */
/* Ends the connection, now and once; reset: with RST, else FIN. */
void hf_l7_end(struct hf_l7_conn *c, bool reset);
void hf_l7_unref(struct hf_l7_conn *c);
/* Closes and frees a malloc'ed stream. NULL is fine. */
void hf_l7_close_stream(uv_stream_t *s, bool reset);
/* Frees clients that no exchange uses any more; from the loop. */
void hf_l7_reap(struct hf_l7 *l);
void hf_l7_link_close(struct hf_l7_link *k, bool reset);

/* ---- l7_conn.c: from the first byte to its way ---- */
void hf_l7_begin(struct hf_l7_conn *c);
/* Judges an open connection by the box's present policy; may end it. */
void hf_l7_conn_rejudge(struct hf_l7_conn *c);
/* Records the denial and ends the connection: TLS clients get an alert, others a reset. */
void hf_l7_refuse(struct hf_l7_conn *c, const char *reason);
/* The same without a record: the origin's fault, not the policy's. */
#define HF_L7_ALERT_DENIED 49   /* access_denied */
#define HF_L7_ALERT_ORIGIN 80   /* internal_error: the origin can't be reached */
#define HF_L7_ALERT_BAD_CERT 42 /* bad_certificate: the origin's is not what it should be */
void hf_l7_alert(struct hf_l7_conn *c, unsigned alert);

/* ---- l7_bind.c ---- */
/* Is c's destination an address that the resolver answers for the name? 1 yes, now; 0: cb comes later. */
typedef void (*hf_l7_bind_cb)(void *arg, bool yes);
int hf_l7_bind(struct hf_l7_conn *c, const char *name, hf_l7_bind_cb cb, void *arg,
               struct hf_l7_bind **ret) HF_MUST_USE;
void hf_l7_bind_cancel(struct hf_l7_bind *b); /* cb does not come; NULL is fine */

/* ---- l7_owner.c ---- */
/* Fills c->exec when envd answers. */
void hf_l7_owner_ask(struct hf_l7_conn *c);
void hf_l7_owners_end(struct hf_l7 *l); /* no answer will come */

/* ---- l7_up.c ---- */
/* link: the caller's; its stream is NULL on error. Never called before hf_l7_up returns. */
typedef void (*hf_l7_up_cb)(void *arg, struct hf_l7_link *link, const struct hf_err *err);
struct hf_l7_up_req {
    const char *host; /* name for SNI, certificate and proxy; "" = none */
    bool tls, h2;     /* h2: plain HTTP/2, or may be agreed on in TLS */
    bool h1;          /* may be agreed on in TLS */
    bool bound;
};
struct hf_l7_up *hf_l7_up(struct hf_l7_conn *c, const struct hf_l7_up_req *q, hf_l7_up_cb cb,
                          void *arg) HF_MUST_USE;
void hf_l7_up_cancel(struct hf_l7_up *u); /* cb does not come; NULL is fine */

/* ---- l7_pipe.c ---- */
/* Carries bytes both ways until both are at their end: takes the client's side and link. to_origin and
 * to_client are sent first. inspect (may be NULL): asked with what the client said so far (c->first), until
 * it says HF_L7_SEND. */
enum hf_l7_inspected {
    HF_L7_SEND, /* c->first goes to the origin, and everything after it */
    HF_L7_HOLD, /* more bytes are needed */
    HF_L7_GONE, /* the pipe is no more */
};
struct hf_l7_pipe_req {
    struct hf_l7_link client, origin;
    struct hf_str to_origin, to_client;
    enum hf_l7_inspected (*inspect)(struct hf_l7_conn *c);
};
void hf_l7_pipe_start(struct hf_l7_conn *c, const struct hf_l7_pipe_req *q);
void hf_l7_pipe_end(struct hf_l7_pipe *p, bool reset); /* by hf_l7_end */
/* Takes the pipe apart again: the origin's side is closed, the client's is given back. NULL when the origin
 * has said something already. */
uv_stream_t *hf_l7_pipe_undo(struct hf_l7_conn *c);

/* ---- l7_http.c, l7_origin.c, l7_answer.c ---- */
struct hf_l7_xchg;
extern const struct hf_http_handler hf_l7_handler;
/* Gives the client's stream to the HTTP server. tls: NULL = plain. link: the first connection to the origin,
 * or one without a stream. */
void hf_l7_http_start(struct hf_l7_conn *c, struct hf_tls *tls, struct hf_l7_link *link);
void hf_l7_http_end(struct hf_l7_conn *c, bool reset);
void hf_l7_http_rejudge(struct hf_l7_conn *c);

/* ---- l7_mitm.c ---- */
void hf_l7_mitm_start(struct hf_l7_conn *c);
void hf_l7_mitm_done(struct hf_l7 *l);

/* ---- l7_record.c ---- */
/* r->exec is filled in here; the record may be written later, so scheme and audit are static. */
void hf_l7_record(struct hf_l7_conn *c, const struct hf_request_record *r);
void hf_l7_record_held(struct hf_l7_conn *c); /* envd has answered, or will not */
void hf_l7_record_pipe(struct hf_l7_conn *c, uint64_t bytes_out, uint64_t bytes_in);
