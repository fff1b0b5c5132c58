/* The answers of SOCKS5 and HTTP proxies. The first byte picks what is asked; the rest is the proxy's, in
 * pieces of what the parser wants. */
#include "egress/l7_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char *const hosts[] = {"api.test", "192.0.2.1", "2001:db8::1"};
    static char user[] = "user", password[] = "pass", none[] = "";
    if (!n)
        return 0;
    bool named = p[0] & 2;
    struct hf_egress_proxy cfg = {
        .http = p[0] & 1, .username = named ? user : none, .password = named ? password : none};
    struct hf_l7_proxy *x = hf_new(struct hf_l7_proxy);
    struct hf_buf out = HF_BUF_INIT(65536);
    struct hf_err err = {0};
    int r = hf_l7_proxy_start(x, &cfg, hosts[(p[0] >> 2) % 3], 443, &out);
    for (size_t at = 1; r == 0 && at < n;) {
        size_t want = hf_l7_proxy_want(x);
        if (want < 1 || want > HF_L7_PROXY_HEAD_MAX)
            abort();
        size_t k = HF_MIN(want, n - at);
        r = hf_l7_proxy_feed(x, p + at, k, &out, &err);
        at += k;
    }
    if (r < 0 && !err.msg[0])
        abort();
    hf_buf_done(&out);
    free(x);
    return 0;
}
