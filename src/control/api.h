/* REST: one declarative table of routes a part, one dispatcher. Loop thread only.
 *
 * Order of every request: CORS preflight, authentication, route, body, handler. Errors are
 * {"code","message"} as E2B's; below /v1 they carry a "hint" as well. */
#pragma once

#include <jansson.h>

#include "base/id.h"
#include "control/control.h"
#include "control/module.h"
#include "control/route.h"
#include "wire/http.h"

/* Limits. Each has a test. */
#define HF_API_BODY_MAX (16u * 1024u * 1024u) /* bytes of a JSON body */
#define HF_API_KEY_TOUCH_MS 60000             /* last_used of a key is written at most this often */
#define HF_API_IDEMPOTENCY_KEY_MAX 200u       /* characters of an Idempotency-Key */
#define HF_API_IDEMPOTENCY_BODY_MAX 65536u    /* longer answers are not kept */

enum {
    HF_API_PUBLIC = 1u << 0,   /* no key needed */
    HF_API_BODY = 1u << 1,     /* a JSON object is required */
    HF_API_BODY_OPT = 1u << 2, /* a JSON object or nothing */
    HF_API_STREAM = 1u << 3,   /* the handler takes the body as it comes: set on_data and on_end */
    HF_API_RERUNS = 1u << 4,   /* a POST that an Idempotency-Key may repeat */
};

struct hf_api;

/* One request. The handler owes exactly one hf_call_* answer, now or later, also when the client is gone; it
 * must not touch the call after that. */
struct hf_call {
    struct hf_control *c;
    struct hf_api *api;
    struct hf_req *req; /* NULL once the client is gone or served */
    const struct hf_api_route *route;
    void *module; /* what the module's start returned */
    char tenant[HF_ROW_ID];
    bool v1;
    char *param[HF_ROUTE_PARAMS_MAX];   /* decoded path parameters, by position */
    json_t *body;                       /* object, or NULL */
    void (*gone)(struct hf_call *call); /* the client left before the answer; optional */
    void (*on_data)(struct hf_call *call, const char *p, size_t n);
    void (*on_end)(struct hf_call *call);
    void (*on_drain)(struct hf_call *call); /* of a streamed answer: hf_res_write may go on; optional */
    void *data;                             /* the handler's */

    /* the dispatcher's */
    unsigned refs;
    bool handed; /* the handler has it and owes the answer */
    bool answered;
    struct hf_buf raw;
    char hint[160];
    char idem_key[HF_API_IDEMPOTENCY_KEY_MAX + 1];
    unsigned char idem_hash[HF_SHA256_LEN];
};

struct hf_api *hf_api_new(struct hf_control *c) HF_MUST_USE;
/* Adds a table that ends with a method of NULL. Tables are asked in order, routes from first to last. */
void hf_api_add(struct hf_api *api, const struct hf_api_route *routes, void *module);
void hf_api_free(struct hf_api *api);
/* Takes the request over (call inside on_request). */
void hf_api_handle(struct hf_api *api, struct hf_req *req);

/* Answers. v is stolen; NULL sends an empty body. */
void hf_call_json(struct hf_call *call, int status, json_t *v);
void hf_call_empty(struct hf_call *call, int status);
void hf_call_text(struct hf_call *call, int status, const char *text);
void hf_call_fail(struct hf_call *call, int status, const char *fmt, ...) HF_PRINTF(3, 4);
void hf_call_err(struct hf_call *call, const struct hf_err *err);
/* For the error to come, below /v1. */
void hf_call_hint(struct hf_call *call, const char *fmt, ...) HF_PRINTF(2, 3);
/* An answer that is written with hf_res_write(call->req, …) while call->req is there; hf_call_end is the
 * handler's last word, also when the client is gone. */
void hf_call_begin(struct hf_call *call, int status, const char *ctype);
void hf_call_end(struct hf_call *call);
void hf_call_header(struct hf_call *call, const char *name, const char *value);

/* Decoded query parameter: 1 found (out is NUL-terminated), 0 absent, <0 answered with 400 already. */
int hf_call_query(struct hf_call *call, const char *name, struct hf_buf *out) HF_MUST_USE;
/* A decimal query parameter within [min, max]: 0 with *ret (otherwise untouched when absent), or <0 answered.
 */
int hf_call_query_int(struct hf_call *call, const char *name, int64_t min, int64_t max,
                      int64_t *ret) HF_MUST_USE;

/* The tables of the control plane itself; each ends with a method of NULL. */
extern const struct hf_api_route hf_api_sandbox_routes[];
extern const struct hf_api_route hf_api_list_routes[];
extern const struct hf_api_route hf_api_observe_routes[];
extern const struct hf_api_route hf_api_secret_routes[];
extern const struct hf_api_route hf_api_snapshot_routes[];
extern const struct hf_api_route hf_api_template_routes[];
extern const struct hf_api_route hf_api_node_routes[];
extern const struct hf_api_route hf_api_ingress_routes[];
extern const struct hf_api_route hf_api_network_routes[];
extern const struct hf_api_route hf_api_policy_routes[];
extern const struct hf_api_route hf_api_missing_routes[];
/* Adds them all. */
void hf_api_add_all(struct hf_api *api);
