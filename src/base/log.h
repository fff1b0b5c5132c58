/* Logging: one line an event, logfmt, to stderr.
 *
 *   time=2026-11-30T21:29:37.123Z level=info msg="sandbox started" sandbox=i… took_ms=4
 *
 * A function either logs or returns its error, never both; library code logs at debug only. */
#pragma once

#include "base/base.h"

enum hf_log_level { HF_LOG_DEBUG, HF_LOG_INFO, HF_LOG_WARN, HF_LOG_ERROR };

void hf_log_set_level(enum hf_log_level level);
/* "debug" … "error"; -EINVAL otherwise. */
int hf_log_level_parse(const char *s, enum hf_log_level *ret) HF_MUST_USE;

/* msg is a constant. fields is a printf format that yields `key=value` pairs ("" for none); put text that
 * came from outside through hf_log_quote. */
void hf_log(enum hf_log_level level, const char *msg, const char *fields, ...) HF_PRINTF(3, 4);

#define hf_log_debug(msg, ...) hf_log(HF_LOG_DEBUG, msg, __VA_ARGS__)
#define hf_log_info(msg, ...) hf_log(HF_LOG_INFO, msg, __VA_ARGS__)
#define hf_log_warn(msg, ...) hf_log(HF_LOG_WARN, msg, __VA_ARGS__)
#define hf_log_error(msg, ...) hf_log(HF_LOG_ERROR, msg, __VA_ARGS__)

/* s in double quotes with control characters, quotes and backslashes escaped, cut at 200 bytes.
 * The result lives in one of eight rotating thread-local buffers. */
const char *hf_log_quote(const char *s);
