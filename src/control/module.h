/* How a part above the control plane joins the daemon. */
#pragma once

#include "base/base.h"

struct hf_call;
struct hf_control;

struct hf_api_route {
    const char *method, *pattern; /* "POST", "/v1/sessions/{session}/close" */
    void (*fn)(struct hf_call *call);
    unsigned flags; /* HF_API_* */
};

struct hf_module {
    const char *name;
    const struct hf_api_route *routes; /* ends with a method of NULL */
    /* After the reconciler, before the first request. The result is call->module of its routes. */
    void *(*start)(struct hf_control *c);
    /* No request is open any more. */
    void (*stop)(void *self);
};
