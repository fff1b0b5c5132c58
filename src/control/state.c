#include "control/state.h"

static const char *const names[HF_STATES] = {
    [HF_CREATING] = "creating", [HF_RUNNING] = "running", [HF_PAUSING] = "pausing", [HF_PAUSED] = "paused",
    [HF_RESUMING] = "resuming", [HF_KILLING] = "killing", [HF_KILLED] = "killed",   [HF_FAILED] = "failed",
};

#define TO(s) (1u << (s))
/* Killing is reachable from every state that has not ended: a force-kill always works. */
static const unsigned allowed[HF_STATES] = {
    [HF_CREATING] = TO(HF_RUNNING) | TO(HF_KILLING) | TO(HF_FAILED),
    [HF_RUNNING] = TO(HF_PAUSING) | TO(HF_KILLING),
    [HF_PAUSING] = TO(HF_PAUSED) | TO(HF_RUNNING) | TO(HF_KILLING),
    [HF_PAUSED] = TO(HF_RESUMING) | TO(HF_KILLING),
    [HF_RESUMING] = TO(HF_RUNNING) | TO(HF_PAUSED) | TO(HF_KILLING),
    [HF_KILLING] = TO(HF_KILLED) | TO(HF_FAILED),
    [HF_KILLED] = 0,
    [HF_FAILED] = 0,
};

const char *hf_state_name(enum hf_state s)
{
    return (unsigned)s < HF_STATES ? names[s] : "unknown";
}

bool hf_state_parse(struct hf_str s, enum hf_state *ret)
{
    for (unsigned i = 0; i < HF_STATES; i++) {
        if (hf_str_eq(s, names[i])) {
            *ret = (enum hf_state)i;
            return true;
        }
    }
    return false;
}

bool hf_state_may(enum hf_state from, enum hf_state to)
{
    return (unsigned)from < HF_STATES && (unsigned)to < HF_STATES && (allowed[from] & TO(to)) != 0;
}
