/* Percent-decoding and query lookup: never a NUL, never more than went in. */
#include "wire/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(4096);
    struct hf_str s = {(const char *)data, size};
    int r = hf_query_get(s, "path", &b);
    if (r == 1 && b.n > size)
        abort();
    for (int plus = 0; plus < 2; plus++) {
        hf_buf_clear(&b);
        r = hf_percent_decode(s, plus, &b);
        if (r == 0 && (b.n > size || (b.n && memchr(b.p, '\0', b.n))))
            abort();
        if (r < 0 && b.n)
            abort();
    }
    return 0;
}
