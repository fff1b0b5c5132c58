/* The data-plane proxy: carries HTTP/1.1 requests, WebSockets and raw upgrades to ports inside sandboxes.
 *
 * It shares the daemon's listener: the front handler asks hf_proxy_match for every request (a keep-alive
 * connection may carry requests for different places) and hands over those that are for a sandbox. */
#pragma once

#include "wire/http.h"

/* Limits. Each has a test. */
#define HF_PROXY_IDLE_UPSTREAMS_PER_PORT 128u /* idle keep-alive connections kept per sandbox port … */
#define HF_PROXY_IDLE_UPSTREAMS_PER_BOX 256u  /* … per sandbox … */
#define HF_PROXY_IDLE_UPSTREAMS_MAX 8192u     /* … and in all */
#define HF_PROXY_UPSTREAM_IDLE_MS 60000u      /* … and for how long */
#define HF_PROXY_CONNECT_TIMEOUT_MS 5000u
#define HF_PROXY_IDLE_TIMEOUT_MS 620000u /* no byte in either direction of an exchange or tunnel */
#define HF_PROXY_RESPONSE_HEAD_MAX 65536u
#define HF_PROXY_QUEUE_HIGH (256u * 1024u) /* bytes queued per direction before the source is paused … */
#define HF_PROXY_QUEUE_MIN (16u * 1024u)   /* … and when there are so many exchanges and tunnels that … */
#define HF_PROXY_QUEUE_TOTAL (64u << 20)   /* … all of them together would keep more than this */

#define HF_PROXY_OPEN_PER_BOX                                                       \
    1024u /* open exchanges and tunnels of a sandbox (defaults of the settings; … \
           */
#define HF_PROXY_OPEN_PER_TENANT 4096u /* … and of a tenant; those to port 49983 count apart) */

enum hf_route_state {
    HF_ROUTE_RUNNING,
    HF_ROUTE_NOT_FOUND,  /* unknown, killed, paused: 502 "The sandbox was not found" */
    HF_ROUTE_TRANSITION, /* creating, killing: 409 */
    HF_ROUTE_ASLEEP,     /* paused, and traffic wakes it: the request is held meanwhile */
};

/* What the proxy must know of a sandbox; filled by the control plane, valid during the call. */
struct hf_route {
    enum hf_route_state state;
    void *handle;            /* passed back to dial */
    const char *envd_socket; /* unix socket path: port 49983 goes there */
    /* Ingress policy; none of it applies to port 49983. */
    bool private_traffic;          /* a traffic token or a preview link is needed */
    char traffic_token[65];        /* when private_traffic */
    unsigned char preview_key[32]; /* HMAC-SHA256 key of preview links (per sandbox and rotation) */
    const char *mask_host;         /* maskRequestHost, "" = none; ${PORT} is replaced */
    const uint16_t *https_ports;   /* ports that speak TLS inside */
    size_t n_https_ports;
    const char *tenant;  /* for the tenant's connection limit */
    bool just_paused;    /* of one that is asleep: streams that were cut are looked into */
    char envd_token[65]; /* of one that is asleep: without it a request to port 49983 wakes nobody */
};

/* Preview links: https://<port>-<id>.<domain>/…?hf_preview=<expiry, unix seconds>.<43 base64url characters of
 * HMAC-SHA256(preview_key, "<id>\n<port>\n<expiry>")>. The first request with a good one is answered 303 with
 * a cookie of the same value (HttpOnly, SameSite=Lax, Path=/, until the expiry) to the same URL without the
 * parameter; programs that keep no cookies may send it as header hf-preview. Neither reaches the sandbox. */
#define HF_PREVIEW_MAX_S (7u * 24u * 3600u) /* longest life of a link */
void hf_preview_sign(const unsigned char key[32], const char *sandbox_id, uint16_t port, int64_t expiry_s,
                     char out[72]);

struct hf_proxy_ops {
    void (*lookup)(void *self, struct hf_str sandbox_id, struct hf_route *ret);
    /* A connected non-blocking socket to that port in the box: cb(arg, fd or -errno). */
    void (*dial)(void *self, void *handle, uint16_t port, void (*cb)(void *arg, int fd), void *arg);
    /* Wakes a sandbox that is asleep; cb comes later, with status 0 when it runs, else with what the request
     * is answered with. */
    void (*wake)(void *self, const char *sandbox_id, void (*cb)(void *arg, int status, const char *message),
                 void *arg);
};

struct hf_proxy;

/* domain: requests for Host <port>-<id>.<domain>[:port] are ours ("localhost" by default). */
struct hf_proxy *hf_proxy_new(uv_loop_t *loop, const char *domain, const struct hf_proxy_ops *ops,
                              void *self) HF_MUST_USE;
/* Beyond them: 429. 0 keeps a default. */
void hf_proxy_set_limits(struct hf_proxy *p, size_t per_box, size_t per_tenant);
/* Cuts everything; the memory goes once the loop has closed the handles. */
void hf_proxy_free(struct hf_proxy *p);

/* True when the request is for a sandbox: its Host parses as <port>-<id>.<domain>, or it carries an
 * E2b-Sandbox-Id / E2b-Sandbox-Port header. */
bool hf_proxy_match(const struct hf_proxy *p, const struct hf_req *req);
/* Takes the request over (call inside on_request). Answers every error itself, as JSON. */
void hf_proxy_handle(struct hf_proxy *p, struct hf_req *req);
/* The sandbox is gone: begun answers and tunnels are cut abruptly (RST), requests without an answer get the
 * 502 of an unknown sandbox, pooled connections are closed. */
void hf_proxy_drop(struct hf_proxy *p, const char *sandbox_id);

struct hf_proxy_stats {
    uint64_t requests, upstream_connects, active, tunnels;
};
void hf_proxy_stats(const struct hf_proxy *p, struct hf_proxy_stats *ret);
