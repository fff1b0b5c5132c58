/* URLs of the API: pure text building. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#define HF_URL_MAX 16384u /* bytes of a URL we build; the server's limit for a target is the same */

/* Appends s percent-encoded: everything but RFC 3986 unreserved characters. */
int hf_url_escape(struct hf_buf *b, const char *s) HF_MUST_USE;
/* Appends "?name=value" or "&name=value" (by whether b holds a '?' yet), the value encoded. NULL = nothing.
 */
int hf_url_query(struct hf_buf *b, const char *name, const char *value) HF_MUST_USE;
/* Appends printf-like text in which every %s is a percent-encoded path segment and every other character is
 * kept; no other conversion exists. */
int hf_url_path(struct hf_buf *b, const char *fmt, ...) HF_MUST_USE;
/* Adds one "key=value" of a metadata filter to b, in the doubly encoded form of the E2B clients; the whole is
 * then given to hf_url_query, which makes it the triple encoding that E2B servers undo. -EINVAL without '='.
 */
int hf_url_metadata(struct hf_buf *b, const char *pair) HF_MUST_USE;
/* Checks a base URL (http:// or https://, a host, no query) and removes trailing slashes; malloc'ed. */
int hf_url_base(const char *s, char **ret, struct hf_err *err) HF_MUST_USE;
