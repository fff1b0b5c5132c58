/* One-shot HTTP client for envd's control socket: POST /init when a sandbox starts, GET /health to learn
 * whether it still lives. */
#pragma once

#include <jansson.h>
#include <uv.h>

#include "base/err.h"

struct hf_envd_init {
    const char *token, *sandbox_id, *template_id;
    const char *default_user; /* "user" */
    const json_t *env;        /* object of strings; may be NULL */
    const char *ca_bundle;    /* PEM that the sandbox is to trust; NULL = none */
    int64_t generation; /* of the sandbox: 1, and one more at each restore; the answer must confirm it */
    bool clone;         /* its memory was somebody else's: token and ids are replaced */
};

/* envd answered 2xx: err is NULL and version is its X-Envd-Version ("" when it has none). Comes later than
 * the call, always exactly once. */
typedef void (*hf_envd_cb)(void *arg, const char *version, const struct hf_err *err);

struct hf_envd_call;
struct hf_envd_call *hf_envd_init(uv_loop_t *loop, const char *socket_path, const struct hf_envd_init *init,
                                  uint64_t timeout_ms, hf_envd_cb cb, void *arg) HF_MUST_USE;
/* The certificate authorities of a running sandbox, and nothing else of it: PEM that it is to trust from now
 * on, "" for none. */
struct hf_envd_call *hf_envd_ca(uv_loop_t *loop, const char *socket_path, const char *pem,
                                uint64_t timeout_ms, hf_envd_cb cb, void *arg) HF_MUST_USE;
/* cb comes soon with -ECANCELED. */
void hf_envd_cancel(struct hf_envd_call *call);
/* A process with a pending SIGKILL runs no more code, so an answer proves that the sandbox lived when it was
 * asked, even if the news of its end is still on the way. -ETIMEDOUT: alive or not, it is too busy. */
struct hf_envd_call *hf_envd_health(uv_loop_t *loop, const char *socket_path, uint64_t timeout_ms,
                                    hf_envd_cb cb, void *arg);

#define HF_ENVD_HEAD_MAX 16384u /* bytes of an answer that are looked at */
/* Parses an HTTP/1.1 answer's head: 1 complete (ret_status set; version and generation copied if there), 0
 * more needed, -EBADMSG. */
int hf_envd_parse_head(struct hf_str s, int *ret_status, char *version, size_t version_n, char *generation,
                       size_t generation_n) HF_MUST_USE;
