#include "harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/path.h"

static char *text(const char *s)
{
    return hf_xstrdup(s);
}

void hf_harness_init(struct hf_harness *h)
{
    memset(h, 0, sizeof(*h));
    (void)snprintf(h->dir, sizeof(h->dir), "/tmp/hf-control-XXXXXX");
    assert_non_null(mkdtemp(h->dir));
    (void)snprintf(h->run_dir, sizeof(h->run_dir), "%s/run", h->dir);
    assert_int_equal(hf_mkdir_p(h->run_dir, 0700), 0);
}

static void fill_config(struct hf_harness *h)
{
    h->cfg = (struct hf_config){.data_dir = text(h->dir),
                                .run_dir = text(h->run_dir),
                                .listen_host = text("127.0.0.1"),
                                .domain = text("localhost"),
                                .warm_template = text("base"),
                                .warm_pool = 2,
                                .cgroup_root = text("/nonexistent"),
                                .shim_path = text(""),
                                .envd_path = text(""),
                                .max_timeout_s = 24 * 3600,
                                .default_memory = 512u << 20,
                                .default_disk = 1u << 30,
                                .default_volume = 1u << 30,
                                .template_max = 1u << 30,
                                .default_cpu_millis = 2000,
                                .default_pids = 1024,
                                .max_sandboxes = 200};
}

static void clear_config(struct hf_config *c)
{
    char *texts[] = {c->data_dir,      c->run_dir,     c->listen_host, c->domain,
                     c->warm_template, c->cgroup_root, c->shim_path,   c->envd_path};
    for (size_t i = 0; i < HF_ARRAY_LEN(texts); i++)
        free(texts[i]);
    memset(c, 0, sizeof(*c));
}

static void on_drop(void *self, const char *sandbox_id)
{
    ((struct hf_harness *)self)->dropped++;
}

void hf_harness_on_done(void *arg, const struct hf_err *err)
{
    if (err && err->r < 0)
        fail_msg("%s", err->msg);
    ++*(int *)arg;
}

static void count(void *arg)
{
    ++*(int *)arg;
}

void hf_harness_up(struct hf_harness *h)
{
    struct hf_err err = {0};
    fill_config(h);
    assert_int_equal(uv_loop_init(&h->loop), 0);
    if (hf_meta_open(h->dir, &h->loop, &h->meta, &err) < 0)
        fail_msg("%s", err.msg);
    h->fake = hf_fake_new(&h->loop, h->run_dir);
    h->c = hf_control_new(&h->loop, &h->cfg, h->meta, &h->fake->base);
    h->c->hooks.drop = on_drop;
    h->c->hooks_self = h;
    int ready = 0;
    if (hf_control_reconcile(h->c, hf_harness_on_done, &ready, &err) < 0)
        fail_msg("%s", err.msg);
    hf_harness_wait(h, &ready);
}

void hf_harness_down(struct hf_harness *h)
{
    int closed = 0, gone = 0, freed = 0;
    h->c->stopping = true;
    hf_meta_close(h->meta, count, &closed);
    hf_harness_wait(h, &closed);
    h->fake->base.ops->close(&h->fake->base, true, hf_harness_on_done, &gone);
    hf_harness_wait(h, &gone);
    hf_control_free(h->c, count, &freed);
    hf_harness_wait(h, &freed);
    (void)uv_run(&h->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&h->loop), 0);
    clear_config(&h->cfg);
}

void hf_harness_done(struct hf_harness *h)
{
    assert_int_equal(hf_remove_tree(h->dir), 0);
}

static void on_guard(uv_timer_t *t)
{
    *(bool *)t->data = true;
}

/* Runs the loop until the flag is set or the time is over; true when the flag was set. */
static bool run_until(struct hf_harness *h, const int *flag, unsigned ms)
{
    bool late = false;
    uv_timer_t *guard = hf_new(uv_timer_t);
    (void)uv_timer_init(&h->loop, guard);
    guard->data = &late;
    uv_update_time(&h->loop);
    (void)uv_timer_start(guard, on_guard, ms, 0);
    while (!*flag && !late)
        (void)uv_run(&h->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)guard, (uv_close_cb)free);
    (void)uv_run(&h->loop, UV_RUN_NOWAIT);
    return *flag != 0;
}

void hf_harness_wait(struct hf_harness *h, const int *flag)
{
    if (!run_until(h, flag, 5000))
        fail_msg("nothing happened for five seconds");
}

void hf_harness_run_ms(struct hf_harness *h, unsigned ms)
{
    int never = 0;
    (void)run_until(h, &never, ms);
}

struct hf_create_req hf_harness_req(void)
{
    return (struct hf_create_req){.tenant = "default", .template_id = "t", .timeout_s = 3600};
}

void hf_harness_on_created(void *arg, struct hf_sandbox *sb, const struct hf_err *err)
{
    struct hf_created *cr = arg;
    cr->done++;
    if (sb)
        (void)snprintf(cr->id, sizeof(cr->id), "%s", sb->row.id);
    else
        cr->err = *err;
}

struct hf_sandbox *hf_harness_create(struct hf_harness *h)
{
    struct hf_created cr = {0};
    struct hf_create_req req = hf_harness_req();
    hf_sandbox_create(h->c, &req, hf_harness_on_created, &cr, NULL);
    hf_harness_wait(h, &cr.done);
    if (!*cr.id)
        fail_msg("%s", cr.err.msg);
    return hf_sandbox_find(h->c, "default", cr.id);
}

int hf_harness_setup(void **state)
{
    struct hf_harness *h = hf_new(struct hf_harness);
    hf_harness_init(h);
    hf_harness_up(h);
    *state = h;
    return 0;
}

int hf_harness_teardown(void **state)
{
    struct hf_harness *h = *state;
    (void)unsetenv("HF_FAKE_NO_SPACE");
    for (int i = 0; i < 200 && h->c->busy; i++)
        hf_harness_run_ms(h, 10);
    hf_harness_down(h);
    hf_harness_done(h);
    free(h);
    return 0;
}

void hf_harness_on_outcome(void *arg, const struct hf_err *err)
{
    struct hf_outcome *o = arg;
    o->done++;
    if (err)
        o->err = *err;
}
