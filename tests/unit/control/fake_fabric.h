/* Knobs of the fake fabric. */
#pragma once

#include "engine/net/net.h"

struct hf_fake_fabric {
    bool ok; /* the host can do it */
    unsigned opened, removed;
    uint32_t keys[8]; /* that the kernel has elements of */
    size_t n_keys;
};
extern struct hf_fake_fabric hf_fake_fabric;
