/* ClientHellos: however many bytes are there, the answer for all of them is the answer for the last; what is
 * called a name looks like one. */
#include "wire/tls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hf_hello h, later;
    size_t n = HF_MIN(size, (size_t)HF_HELLO_MAX);
    int r = hf_hello_parse(data, n, &h);
    for (size_t i = 0; i < n; i += 1 + i / 8) {
        int k = hf_hello_parse(data, i, &later);
        if (k < 0 && r >= 0)
            abort(); /* a refusal is final */
    }
    if (r != 1)
        return 0;
    if (memchr(h.sni, '\0', sizeof(h.sni)) == NULL || (h.sni_bad && h.sni[0]))
        abort();
    for (const char *p = h.sni; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789-_.", *p))
            abort();
    return 0;
}
