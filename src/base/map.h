/* Map from a byte string (copied) to a pointer (borrowed). Keyed hash, so input can't choose collisions. */
#pragma once

#include "base/base.h"

struct hf_map_slot {
    char *key;
    size_t n;
    uint64_t hash;
    void *value;
};

struct hf_map {
    struct hf_map_slot *slots;
    size_t cap, len, used; /* used counts tombstones as well */
};

void hf_map_done(struct hf_map *m); /* frees the keys; the values are the caller's */
void *hf_map_get(const struct hf_map *m, struct hf_str key);
/* Adds or replaces; returns the value that was there before, or NULL. value must not be NULL. */
void *hf_map_put(struct hf_map *m, struct hf_str key, void *value);
void *hf_map_del(struct hf_map *m, struct hf_str key); /* returns the value that was there, or NULL */
/* Iteration: start with *pos = 0; NULL at the end. The map must not be changed meanwhile. */
void *hf_map_next(const struct hf_map *m, size_t *pos, struct hf_str *ret_key);
