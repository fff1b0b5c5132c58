/* Paths against the patterns of the router, ids, and the head of envd's answers. */
#include "control/envd_client.h"
#include "control/route.h"
#include "control/validate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const patterns[] = {"/sandboxes", "/sandboxes/{id}", "/v2/sandboxes/{id}/connect",
                                           "/templates/{t}/builds/{b}", "/"};
    struct hf_str s = {(const char *)data, size};
    struct hf_str params[HF_ROUTE_PARAMS_MAX];
    for (size_t i = 0; i < HF_ARRAY_LEN(patterns); i++) {
        size_t n = 0;
        if (!hf_route_match(patterns[i], s, params, &n))
            continue;
        for (size_t k = 0; k < n; k++) {
            if (!params[k].n || params[k].p < s.p || params[k].p + params[k].n > s.p + s.n ||
                memchr(params[k].p, '/', params[k].n))
                abort();
        }
    }
    hf_auto_free char *text = hf_str_dup(s);
    char id[HF_ROW_ID], version[24] = "", generation[24] = "";
    struct hf_err err = {0};
    int status = 0;
    if (hf_validate_sandbox_id(text, id, &err) == 0 && (!*id || strchr(id, '-')))
        abort();
    if (hf_envd_parse_head(s, &status, version, sizeof(version), generation, sizeof(generation)) == 1 &&
        (status < 100 || status > 599))
        abort();
    return 0;
}
