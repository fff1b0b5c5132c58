/* Protobuf bytes -> JSON -> bytes -> JSON: what was understood once must come through unchanged. */
#include "messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    const struct pb_msg *m = messages[data[0] % HF_ARRAY_LEN(messages)];
    json_auto_t *first = pb_to_json(m, data + 1, size - 1);
    if (!first)
        return 0;
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(1u << 24);
    struct hf_err err;
    if (pb_normalise(m, first, &err) < 0 || pb_from_json(m, first, &b, &err) < 0)
        abort();
    json_auto_t *second = pb_to_json(m, b.p, b.n);
    if (!second || !json_equal(first, second))
        abort();
    return 0;
}
