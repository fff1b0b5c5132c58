/* JSON text -> checked request -> protobuf bytes: a request that passes the check can be encoded, except for
 * base64 text, which is looked at only when it is needed. */
#include "messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    const struct pb_msg *m = messages[data[0] % HF_ARRAY_LEN(messages)];
    json_auto_t *v = json_loadb((const char *)data + 1, size - 1, 0, NULL);
    if (!v)
        return 0;
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(1u << 24);
    struct hf_err err = {0};
    bool good = pb_normalise(m, v, &err) == 0;
    int r = pb_from_json(m, v, &b, &err);
    if (good && r < 0 && !strstr(err.msg, "base64"))
        abort();
    if (r < 0)
        return 0;
    json_auto_t *back = pb_to_json(m, b.p, b.n);
    if (good && !back)
        abort();
    return 0;
}
