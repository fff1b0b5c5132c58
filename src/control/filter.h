/* Query values of the lists: the metadata filter, states, cursors. Pure; fuzzed by tests/fuzz/control. */
#pragma once

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"
#include "store/rows.h"

#define HF_FILTER_BYTES_MAX 16384u /* of a filter, before any decoding */

/* value: the parameter after the ordinary decoding of the query. The SDK encodes every key and value, then
 * the joined string, then the query: two decodings are left. An object of strings; -EINVAL with E2B's 400. */
int hf_filter_metadata(struct hf_str value, json_t **ret, struct hf_err *err) HF_MUST_USE;
/* Every pair of want is in have. */
bool hf_filter_matches(const json_t *want, const json_t *have);

#define HF_FILTER_RUNNING 1u
#define HF_FILTER_PAUSED 2u
/* "running,paused" -> bits. */
int hf_filter_states(struct hf_str value, unsigned *ret, struct hf_err *err) HF_MUST_USE;

/* A place in a list that is ordered by time and id. */
struct hf_cursor {
    int64_t time_ms;
    char id[HF_ROW_ID];
    bool asc;
};
/* base64url of "<RFC 3339>__<id>[__asc]". */
int hf_cursor_add(struct hf_buf *b, const struct hf_cursor *c) HF_MUST_USE;
/* -EINVAL "Invalid next token" also when its order is not `asc`. */
int hf_cursor_parse(struct hf_str text, bool asc, struct hf_cursor *ret, struct hf_err *err) HF_MUST_USE;
