/* Time. Monotonic for durations and deadlines, real time for people; units are in the names. */
#pragma once

#include "base/base.h"

uint64_t hf_mono_ns(void); /* CLOCK_MONOTONIC */
static inline uint64_t hf_mono_ms(void)
{
    return hf_mono_ns() / 1000000u;
}
uint64_t hf_boot_ms(void); /* CLOCK_BOOTTIME: goes on during suspend */
int64_t hf_real_ns(void);  /* CLOCK_REALTIME since 1970 */
static inline int64_t hf_real_ms(void)
{
    return hf_real_ns() / 1000000;
}

#define HF_RFC3339_MAX 40
/* "2026-11-30T21:29:37.123Z", always UTC, with 3 (ms) or 9 (ns) fraction digits. */
void hf_rfc3339_ms(int64_t real_ms, char out[HF_RFC3339_MAX]);
void hf_rfc3339_ns(int64_t real_ns, char out[HF_RFC3339_MAX]);
/* Accepts RFC 3339 with optional fraction and any offset; -EINVAL otherwise. */
int hf_rfc3339_parse(struct hf_str s, int64_t *ret_real_ns) HF_MUST_USE;
