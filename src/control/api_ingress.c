/* Traffic into sandboxes: preview links. */
#include "base/clock.h"
#include "control/ingress.h"
#include "control/present.h"
#include "control/validate.h"
#include "proxy/proxy.h"

#define ENVD_PORT 49983
#define EXPIRES_DEFAULT_S 3600

static void preview(struct hf_call *call)
{
    struct hf_err err = {0};
    int64_t port = 0, expires_s = EXPIRES_DEFAULT_S;
    int r = hf_validate_int(call->body, "port", 1, UINT16_MAX, &port, &err);
    if (r == 0)
        r = hf_err_http(&err, -EINVAL, 400, "validation error: \"port\" is required");
    if (r > 0 && port == ENVD_PORT)
        r = hf_err_http(&err, -EINVAL, 400, "validation error: port %d is the sandbox's own, it has no links",
                        ENVD_PORT);
    if (r > 0)
        r = hf_validate_int(call->body, "expires_in", 1, HF_PREVIEW_MAX_S, &expires_s, &err);
    if (r < 0) {
        hf_call_err(call, &err);
        return;
    }
    struct hf_sandbox *sb = hf_call_sandbox(call, true);
    if (!sb)
        return;
    int64_t expiry_s = hf_real_ms() / 1000 + expires_s;
    hf_auto_free char *url = hf_sandbox_preview_url(sb, (uint16_t)port, expiry_s);
    hf_call_json(call, 200,
                 json_pack("{s:s, s:o}", "url", url, "expires_at", hf_present_time(expiry_s * 1000)));
}

const struct hf_api_route hf_api_ingress_routes[] = {
    {"POST", "/v1/sandboxes/{sandboxID}/preview", preview, HF_API_BODY},
    {NULL, NULL, NULL, 0},
};
