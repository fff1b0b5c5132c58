/* Routes: "/sandboxes/{sandboxID}/timeout" against a raw request path. Pure; fuzzed. */
#pragma once

#include "base/buf.h"

#define HF_ROUTE_PARAMS_MAX 2u
#define HF_ROUTE_PARAM_BYTES 512u /* of one decoded parameter */

/* Parameters match one non-empty segment of the raw path (so an encoded slash stays inside). True when the
 * whole path matches; params are raw views. */
bool hf_route_match(const char *pattern, struct hf_str path, struct hf_str params[HF_ROUTE_PARAMS_MAX],
                    size_t *ret_n);
