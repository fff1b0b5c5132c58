#include "base/fault.h"

#include <signal.h>

void hf_killpoint(const char *name)
{
    static const char *want = (const char *)-1;
    static uint64_t countdown = 1;
    static size_t want_n;
    if (want == (const char *)-1) {
        want = getenv("HOLDFAST_KILLPOINT");
        const char *colon = want ? strchr(want, ':') : NULL;
        if (colon && hf_parse_u64(hf_str_c(colon + 1), UINT32_MAX, &countdown) < 0)
            countdown = 1;
        want_n = want ? (colon ? (size_t)(colon - want) : strlen(want)) : 0;
    }
    if (!want || strlen(name) != want_n || strncmp(want, name, want_n) != 0 || --countdown)
        return;
    (void)kill(getpid(), SIGKILL);
    for (;;)
        (void)pause();
}
