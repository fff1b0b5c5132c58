/* The guarded dialer: how the daemon and netd open connections that a client, a tenant or a sandbox asked
 * for. A name is resolved once and the connection goes to an address that was checked; link-local and
 * metadata addresses never; private ones and the host's own only when opted in. */
#pragma once

#include <uv.h>

#include "base/addr.h"
#include "base/err.h"

#define HF_DIAL_TIMEOUT_MS 10000u
#define HF_DIAL_ADDRS_MAX 16u
#define HF_FETCH_BODY_MAX (16u << 20) /* bytes of a request body */

enum {
    HF_DIAL_PRIVATE = 1, /* private ranges are allowed */
    HF_DIAL_LOCAL =
        2, /* addresses of this host (loopback included) are allowed: tests and explicit settings */
};

/* Checked when a URL is saved, and again at every dial. 0; -EINVAL malformed (scheme other than those given,
 * user info, bad port, control bytes); -EACCES an address literal that may not be dialled. schemes:
 * "http,https". */
int hf_url_check(struct hf_str url, const char *schemes, unsigned flags, struct hf_err *err) HF_MUST_USE;
/* May this address be dialled? Asks the kernel whether it is the host's own (routing table: local). 0 or
 * -EACCES. */
int hf_dial_check(const struct hf_addr *a, unsigned flags, struct hf_err *err) HF_MUST_USE;

/* stream: a connected, malloc'ed uv_tcp_t (TCP_NODELAY), the caller's; NULL on error (-EACCES not allowed,
 * -ENOENT no such name, -ECONNREFUSED, -ETIMEDOUT …). addr: what was dialled. */
typedef void (*hf_dial_cb)(void *arg, uv_stream_t *stream, const struct hf_addr *addr,
                           const struct hf_err *err);
struct hf_guard_dial;
/* Tries the addresses in turn, each checked. */
struct hf_guard_dial *hf_dial_addrs(uv_loop_t *loop, const struct hf_addr *addrs, size_t n, uint16_t port,
                                    unsigned flags, hf_dial_cb cb, void *arg) HF_MUST_USE;
/* Resolves with the system's resolver (in the worker pool), then as above. host may be an address literal. */
struct hf_guard_dial *hf_dial_host(uv_loop_t *loop, const char *host, uint16_t port, unsigned flags,
                                   hf_dial_cb cb, void *arg) HF_MUST_USE;
void hf_dial_cancel(struct hf_guard_dial *d); /* cb does not come */

/* A one-shot HTTP(S) request through the guard: at most max_body bytes of answer are kept, the rest is thrown
 * away; up to 5 redirects, each checked like the first URL, never from https to http, and with the caller's
 * headers (but Accept, Content-Type, User-Agent) to the same scheme, host and port only; https verified
 * against ca_file (NULL = system's). headers: "Name: value", NULL-terminated, may be NULL. cb comes once,
 * never inside this call. status 0 on error. Webhooks, remote backends and image sources use this. */
struct hf_fetch;
typedef void (*hf_fetch_cb)(void *arg, int status, struct hf_str body, const struct hf_err *err);
struct hf_fetch *hf_fetch_start(uv_loop_t *loop, const char *method, const char *url,
                                const char *const *headers, struct hf_str body, unsigned flags,
                                const char *ca_file, size_t max_body, uint64_t timeout_ms, hf_fetch_cb cb,
                                void *arg) HF_MUST_USE;
void hf_fetch_cancel(struct hf_fetch *f);
