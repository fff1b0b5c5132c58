/* URLs: what is accepted has a host that is either a name, which no resolver reads as a number, or an address
 * in its one form, and can be put together again. */
#include "wire/url.h"

#include <arpa/inet.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hf_str s = {(const char *)data, size};
    struct hf_url u;
    if (hf_url_split(s, &u) < 0)
        return 0;
    hf_auto_free char *host = hf_str_dup(u.host);
    struct in_addr a;
    if (!u.port || !u.host.n || strlen(host) != u.host.n || memchr(u.authority.p, '@', u.authority.n))
        abort();
    if (u.host.p[u.host.n - 1] == '.')
        host[u.host.n - 1] = '\0';
    /* inet_aton knows all the old forms. */
    if (u.kind == 0 && inet_aton(host, &a))
        abort();
    if (u.kind == 1 && u.addr.family == 4 && inet_pton(AF_INET, host, &a) != 1)
        abort();
    if (u.scheme.n + 3 + u.authority.n + u.path.n > size)
        abort();
    return 0;
}
