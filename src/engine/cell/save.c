/* freeze and save, as the daemon asks a supervisor for them. */
#include <stdio.h>

#include "base/fault.h"
#include "base/log.h"
#include "engine/cell/cell.h"
#include "engine/disk/disk.h"

struct saving {
    struct hf_list link; /* box.savings */
    struct hf_box *box;  /* NULL once it may be gone */
    bool freeze, frozen, end;
    hf_done_cb done; /* of freeze */
    hf_box_save_cb saved;
    void *arg;
    struct hf_err err;
};

/* Whoever asked for the save flushes it now, and shall have the disk for himself. */
#define TIDY_AFTER_MS 100

/* After a save the box shares its disk with it, and falls to pieces by writing on; see hf_disk_compact. */
struct tidying {
    struct cell_driver *d;
    uv_timer_t *timer;
    char *image;
};

static void tidy(void *arg)
{
    struct tidying *t = arg;
    struct hf_disk_compacted done = {0};
    struct hf_err err = {0};
    int r = hf_disk_compact(t->d->data_dir, t->image, &t->d->closing, &done, &err);
    /* The box may be gone by now, or the pool nearly full: snapshots take longer then, and that is all. */
    if (r < 0)
        hf_log_debug("a disk stays in pieces", "image=%s cause=%s", t->image, hf_log_quote(err.msg));
}

static void tidied(void *arg)
{
    struct tidying *t = arg;
    free(t->image);
    free(t);
}

static void tidy_now(void *arg)
{
    struct tidying *t = arg;
    cell_timer_free(&t->timer);
    cell_job(t->d, tidy, tidied, t);
    t->d->jobs--; /* the one that kept the driver */
}

static void tidy_later(struct hf_box *box)
{
    struct tidying *t = hf_new(struct tidying);
    t->d = box->d;
    t->d->jobs++;
    t->image = hf_xstrdup(box->spec.image);
    t->timer = cell_timer_new(box->d->base.loop, TIDY_AFTER_MS, tidy_now, t);
}

static void tell(struct saving *s, const struct hf_box_saved *saved, const struct hf_err *err)
{
    hf_list_del(&s->link);
    if (s->freeze)
        s->done(s->arg, err);
    else
        s->saved(s->arg, err ? NULL : saved, err);
    free(s);
}

static void on_answer(void *arg, const struct hf_err *err, struct hf_str text, int fd)
{
    struct saving *s = arg;
    (void)hf_close(fd);
    if (s->box && !err && s->freeze)
        s->box->frozen = s->frozen;
    hf_killpoint("cell.saved");
    if (s->box && !err && !s->freeze && !s->end && !s->box->d->closing)
        tidy_later(s->box);
    struct hf_box_saved saved = {.frozen_us = hf_kv_u64(text, "frozen_us", 0),
                                 .total_us = hf_kv_u64(text, "total_us", 0),
                                 .cpu_ns = hf_kv_u64(text, "cpu_ns", 0),
                                 .disk_writes = hf_kv_u64(text, "disk_writes", UINT64_MAX)};
    tell(s, &saved, err);
}

static void refuse(void *arg)
{
    struct saving *s = arg;
    tell(s, NULL, &s->err);
}

static void request(struct saving *s, const char *op, struct hf_buf *more, int r)
{
    if (r < 0) {
        (void)hf_err_set(&s->err, r, "the request is too long");
        cell_defer(s->box->d->base.loop, refuse, s);
        return;
    }
    hf_list_add_tail(&s->box->savings, &s->link);
    cell_request(s->box, op, more, on_answer, s);
}

static struct saving *saving_new(struct hf_box *box, void *arg)
{
    struct saving *s = hf_new(struct saving);
    hf_list_init(&s->link);
    s->box = box;
    s->arg = arg;
    return s;
}

void cell_freeze(struct hf_driver *base, struct hf_box *box, bool frozen, hf_done_cb cb, void *arg)
{
    hf_auto_buf struct hf_buf more = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    struct saving *s = saving_new(box, arg);
    (void)base;
    s->freeze = true;
    s->frozen = frozen;
    s->done = cb;
    request(s, "freeze", &more, hf_kv_add(&more, "state", frozen ? "frozen" : "thawed"));
}

void cell_save(struct hf_driver *base, struct hf_box *box, const struct hf_box_save *save, hf_box_save_cb cb,
               void *arg)
{
    hf_auto_buf struct hf_buf more = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    struct saving *s = saving_new(box, arg);
    (void)base;
    s->saved = cb;
    s->end = save->end;
    int r = hf_kv_add(&more, "dir", save->dir);
    if (r == 0)
        r = hf_kv_add_u64(&more, "memory", save->memory);
    if (r == 0)
        r = hf_kv_add_u64(&more, "end", save->end);
    request(s, "save", &more, r);
}

void cell_savings_orphan(struct hf_box *box)
{
    hf_list_foreach_safe(it, &box->savings)
    {
        struct saving *s = hf_list_entry(it, struct saving, link);
        s->box = NULL;
        hf_list_del(&s->link);
    }
}
