/* The pure parts of the RPC layer: header values and error codes. No I/O; fuzzed by tests/fuzz/envd. */
#pragma once

#include "envd/rpc.h"

#define RPC_USER_MAX 64       /* bytes of a user name with its NUL */
#define RPC_TIMEOUT_DIGITS 10 /* Connect-Timeout-Ms, from the protocol */
#define RPC_KEEPALIVE_DEFAULT_S 90u
#define RPC_KEEPALIVE_MAX_S 3600u

/* "not_found"; "unknown" for a value outside the enum. */
const char *rpc_code_name(enum rpc_code code);
/* HTTP status of a unary error. */
int rpc_code_status(enum rpc_code code);

/* Content-Type of a request for that kind of method; parameters are ignored. 0 or -EOPNOTSUPP. */
int rpc_parse_content_type(struct hf_str v, enum rpc_kind kind, bool *ret_json) HF_MUST_USE;
/* Connect-Timeout-Ms: 0 or -EINVAL. 0 ms in the header means no deadline. */
int rpc_parse_timeout(struct hf_str v, uint64_t *ret_ms) HF_MUST_USE;
/* User of "Basic <base64 of user:password>"; 1 found, 0 when the scheme is another one or the user is empty,
 * -EINVAL when it can't be read. */
int rpc_parse_basic_user(struct hf_str v, char out[RPC_USER_MAX]) HF_MUST_USE;
/* Keepalive-Ping-Interval in seconds; the default for anything that is not a positive number. */
unsigned rpc_parse_keepalive(struct hf_str v);
/* Inflates a whole gzip member into out; -EINVAL for broken data, -EMSGSIZE over out->max. */
int rpc_gunzip(const void *p, size_t n, struct hf_buf *out) HF_MUST_USE;

#define RPC_CURSOR_ABSENT UINT64_MAX
struct rpc_cursor {
    uint64_t out, err, pty; /* RPC_CURSOR_ABSENT: that output was not named */
};
/* Holdfast-Cursor: "stdout=12,stderr=0" or "pty=7"; 0 or -EINVAL. */
int rpc_parse_cursor(struct hf_str v, struct rpc_cursor *ret) HF_MUST_USE;

/* Appends {"code":"…","message":"…"} as it stands in a unary error and in an end-stream envelope. */
int rpc_error_json(struct hf_buf *b, enum rpc_code code, const char *message) HF_MUST_USE;
