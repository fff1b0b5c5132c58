/* Text of `key=value` lines: specs, claims and the messages between the daemon and a shim. Text, because a
 * daemon talks to shims of an older build after an upgrade: unknown keys are ignored, missing ones have a
 * default. Keys are [a-z_]+; values are any bytes but NUL and newline. */
#pragma once

#include "base/buf.h"

/* Add a line. -EINVAL when the value holds a newline, -EMSGSIZE over b->max. */
int hf_kv_add(struct hf_buf *b, const char *key, const char *value) HF_MUST_USE;
int hf_kv_add_u64(struct hf_buf *b, const char *key, uint64_t value) HF_MUST_USE;
int hf_kv_add_int(struct hf_buf *b, const char *key, int64_t value) HF_MUST_USE;

/* First value of key; {NULL, 0} when absent. */
struct hf_str hf_kv_get(struct hf_str text, const char *key);
/* The next line, from *pos = 0 on; false at the end. A line without '=' yields the whole line as its key. */
bool hf_kv_next(struct hf_str text, size_t *pos, struct hf_str *ret_key, struct hf_str *ret_value);
/* fallback when absent or not a number. */
uint64_t hf_kv_u64(struct hf_str text, const char *key, uint64_t fallback);
int64_t hf_kv_int(struct hf_str text, const char *key, int64_t fallback);
/* Copies the value with a NUL ("" when absent); -ENAMETOOLONG when it does not fit, out is then "". */
int hf_kv_copy(struct hf_str text, const char *key, char *out, size_t cap) HF_MUST_USE;
