/* Timers that count only while the box runs. A pause stops the processes, not the kernel's clock, so a plain
 * timer would fire at the resume; and where the kernel has no time namespaces, that clock begins anew with
 * the host, and a plain timer would wait for as long as the old host had been up. Loop thread only. */
#pragma once

#include <uv.h>

#include "base/list.h"

#define AWAKE_SLICE_MS 1000u /* looked at that often: of a pause at most … */
#define AWAKE_SLACK_MS 500u  /* … this and a slice are counted */

struct awake_timer {
    uv_timer_t uv;       /* data: the owner's */
    struct hf_list link; /* of those that run */
    uint64_t left_ms, since_ms;
    void (*fn)(struct awake_timer *t);
};

void awake_init(uv_loop_t *loop, struct awake_timer *t);
/* Once. */
void awake_start(struct awake_timer *t, uint64_t ms, void (*fn)(struct awake_timer *t));
void awake_close(struct awake_timer *t, uv_close_cb closed);
/* Another life of the box has begun: whatever the clock says now, what was left is left. */
void awake_again(void);
/* What counts of a slice, by the clock's two readings (pure). */
uint64_t awake_counted(uint64_t since_ms, uint64_t now_ms);
