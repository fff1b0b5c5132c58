#include "envd/awake.h"

#include "base/clock.h"

static struct hf_list running = {&running, &running};

uint64_t awake_counted(uint64_t since_ms, uint64_t now_ms)
{
    return now_ms < since_ms ? 0 : HF_MIN(now_ms - since_ms, (uint64_t)AWAKE_SLICE_MS + AWAKE_SLACK_MS);
}

static void slice_over(uv_timer_t *uv);

static void arm(struct awake_timer *t)
{
    uv_update_time(t->uv.loop);
    t->since_ms = hf_mono_ms();
    (void)uv_timer_start(&t->uv, slice_over, HF_MIN(t->left_ms, (uint64_t)AWAKE_SLICE_MS), 0);
}

static void slice_over(uv_timer_t *uv)
{
    struct awake_timer *t = HF_CONTAINER_OF(uv, struct awake_timer, uv);
    t->left_ms -= HF_MIN(t->left_ms, awake_counted(t->since_ms, hf_mono_ms()));
    if (t->left_ms) {
        arm(t);
        return;
    }
    hf_list_del(&t->link);
    t->fn(t);
}

void awake_init(uv_loop_t *loop, struct awake_timer *t)
{
    hf_list_init(&t->link);
    (void)uv_timer_init(loop, &t->uv); /* can't fail */
}

void awake_start(struct awake_timer *t, uint64_t ms, void (*fn)(struct awake_timer *t))
{
    t->left_ms = ms;
    t->fn = fn;
    hf_list_add_tail(&running, &t->link);
    arm(t);
}

void awake_close(struct awake_timer *t, uv_close_cb closed)
{
    hf_list_del(&t->link);
    uv_close((uv_handle_t *)&t->uv, closed);
}

void awake_again(void)
{
    hf_list_foreach(it, &running) arm(hf_list_entry(it, struct awake_timer, link));
}
