/* Connect envelopes, fed in two pieces: any split must give the same messages. The first input byte is the
 * place of the split. */
#include "wire/connect.h"

#define MESSAGE_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int digest(void *arg, unsigned flags, struct hf_str payload)
{
    uint64_t *h = arg;
    *h = *h * 31 + flags + 1;
    for (size_t i = 0; i < payload.n; i++)
        *h = *h * 31 + (unsigned char)payload.p[i];
    return 0;
}

static int feed(const uint8_t *p, size_t n, size_t split, uint64_t *h)
{
    struct hf_connect_parser c;
    hf_connect_init(&c, MESSAGE_MAX);
    int r = hf_connect_feed(&c, p, split, digest, h);
    if (r == 0)
        r = hf_connect_feed(&c, p + split, n - split, digest, h);
    hf_connect_done(&c);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t n = size - 1;
    uint64_t whole = 0, cut = 0;
    int a = feed(data + 1, n, n, &whole);
    int b = feed(data + 1, n, n ? data[0] % n : 0, &cut);
    if (a != b || whole != cut)
        abort();
    return 0;
}
