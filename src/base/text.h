/* Words of people: sizes and durations as they write them, and the word they probably meant. */
#pragma once

#include "base/base.h"

/* "1048576", "512M", "1.5G", "64GiB": bytes; suffixes K M G T (optionally followed by B or iB) are binary,
 * in either case. -EINVAL for anything else, -ERANGE beyond UINT64_MAX. */
int hf_parse_size(const char *s, uint64_t *ret_bytes) HF_MUST_USE;
/* "90", "90s", "5m", "2h", "1d", "1h30m": seconds; a number without a unit is seconds. */
int hf_parse_seconds(const char *s, uint64_t *ret_seconds) HF_MUST_USE;

#define HF_HUMAN_MAX 32
/* "512 B", "1.5 KiB", "64 GiB". Returns out. */
char *hf_human_size(uint64_t bytes, char out[HF_HUMAN_MAX]);
/* "45s", "12m", "3h 5m", "2d 4h": the two largest units. Returns out. */
char *hf_human_seconds(uint64_t seconds, char out[HF_HUMAN_MAX]);

/* The member of a NULL-terminated list that is at most a few slips (insert, delete, replace, swap) away from
 * word, or NULL when none is near enough to be what was meant. */
const char *hf_nearest(const char *word, const char *const *list);
