/* The one state machine of a sandbox. */
#pragma once

#include "base/base.h"

enum hf_state {
    HF_CREATING,
    HF_RUNNING,
    HF_PAUSING,
    HF_PAUSED,
    HF_RESUMING,
    HF_KILLING,
    HF_KILLED, /* it ran, and is gone */
    HF_FAILED, /* it never ran */
    HF_STATES,
};

const char *hf_state_name(enum hf_state s);
bool hf_state_parse(struct hf_str s, enum hf_state *ret);
/* The table of allowed transitions. */
bool hf_state_may(enum hf_state from, enum hf_state to);
static inline bool hf_state_ended(enum hf_state s)
{
    return s == HF_KILLED || s == HF_FAILED;
}
/* Pausing, paused or resuming: paused, to whoever asks from outside. */
static inline bool hf_state_asleep(enum hf_state s)
{
    return s == HF_PAUSING || s == HF_PAUSED || s == HF_RESUMING;
}
