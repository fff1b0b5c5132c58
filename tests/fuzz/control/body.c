/* The body of a create, from bytes to a checked request. */
#include <jansson.h>

#include "control/validate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct hf_config cfg = {.max_timeout_s = 86400};
    json_error_t e;
    json_t *body = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, &e);
    struct hf_create_body out;
    struct hf_err err = {0};
    char name[HF_ROW_NAME], tag[HF_ROW_NAME];
    if (json_is_object(body)) {
        int r = hf_validate_create(body, size & 1, &cfg, &out, &err);
        if (r == 0 && (out.timeout_s < 1 || out.timeout_s > 86400 || !*out.template_ref))
            abort();
        if (r < 0 && (!*err.msg || hf_err_http_status(&err) < 400))
            abort(); /* a refusal says why */
        if (r == 0)
            (void)!hf_validate_template_ref(out.template_ref, name, tag, &err);
    }
    json_decref(body);
    return 0;
}
