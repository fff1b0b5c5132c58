/* Query values of the lists: metadata filter, states, cursors. The first byte chooses the parser. */
#include <jansson.h>

#include "control/filter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void cursor(struct hf_str s, bool asc)
{
    struct hf_cursor c, again;
    struct hf_err err = {0};
    if (hf_cursor_parse(s, asc, &c, &err) < 0)
        return;
    /* What was accepted says the same after a round trip. */
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(1024);
    if (hf_cursor_add(&b, &c) < 0)
        return;
    if (hf_cursor_parse((struct hf_str){b.p, b.n}, asc, &again, &err) < 0 || again.time_ms != c.time_ms ||
        strcmp(again.id, c.id) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    struct hf_str s = {(const char *)data + 1, size - 1};
    struct hf_err err = {0};
    json_t *filter = NULL;
    unsigned states;
    switch (data[0] % 4) {
    case 0:
        if (hf_filter_metadata(s, &filter, &err) == 0 && !hf_filter_matches(filter, filter))
            abort();
        json_decref(filter);
        break;
    case 1:
        if (hf_filter_states(s, &states, &err) == 0 && (!states || states > 3))
            abort();
        break;
    default:
        cursor(s, data[0] % 4 == 3);
        break;
    }
    return 0;
}
