/* Headers about ranges, encodings and dates: the first byte chooses, then comes the header. */
#include "envd/content.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void range(struct hf_str s, uint64_t file_size)
{
    uint64_t first, n;
    if (content_range(s, file_size, &first, &n) == CONTENT_RANGE_ONE &&
        (!n || first >= file_size || n > file_size - first))
        abort();
}

static void disposition(struct hf_str s)
{
    hf_auto_free char *name = hf_str_dup(s);
    hf_auto_buf struct hf_buf out = HF_BUF_INIT(65536);
    if (content_disposition(name, &out) < 0)
        return;
    for (size_t i = 0; i < out.n; i++) { /* nothing may leave the header line */
        if ((unsigned char)out.p[i] < 0x20 || (unsigned char)out.p[i] > 0x7e)
            abort();
    }
    (void)content_type(name, s.p, s.n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    hf_auto_free char *copy = hf_xmalloc(size); /* exact size: reads past the end are caught */
    memcpy(copy, data + 1, size - 1);
    struct hf_str s = {copy, size - 1};
    time_t t;
    switch (data[0] % 5) {
    case 0:
        range(s, 0);
        range(s, 1000);
        range(s, UINT64_MAX);
        break;
    case 1:
        (void)content_accept(s);
        (void)!content_encoding(s, NULL);
        break;
    case 2:
        (void)!content_date_parse(s, &t);
        (void)content_if_range(s, "\"a\"", 1);
        break;
    case 3:
        (void)content_not_modified(s, (struct hf_str){0}, "\"a\"", 1);
        break;
    default:
        disposition(s);
    }
    return 0;
}
