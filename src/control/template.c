#include "control/template.h"

#include <stdio.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/id.h"
#include "base/log.h"
#include "engine/disk/template.h"

/* ---- import ---- */

struct hf_import {
    struct hf_control *c;
    const struct hf_import_ops *ops;
    void *arg;
    struct hf_template_row row;
    char tag[HF_ROW_NAME];
    struct hf_buf queue, batch; /* batch: what the worker has */
    bool row_written, ended, cancelled, held_back, working;
    uv_work_t work;
    struct hf_template_import *imp; /* the worker's while working */
    struct hf_sha256 sha;           /* likewise */
    uint64_t bytes;                 /* likewise */
    struct hf_err work_err;         /* likewise */
    bool image_left;                /* likewise: the row stays, so that the next start tries again */
    uint64_t received;
    struct hf_err err;
    enum { FEED, FINISH, ABORT, OVER } step;
};

static void free_import(struct hf_import *i)
{
    hf_buf_done(&i->queue);
    hf_buf_done(&i->batch);
    free(i);
}

static void finish_import(struct hf_import *i)
{
    i->c->imports--;
    i->c->busy--;
    i->ops->done(i->arg, i->err.r ? NULL : &i->row, i->err.r ? &i->err : NULL);
    free_import(i);
}

static void on_row_undone(void *arg, int r, const struct hf_err *err)
{
    finish_import(arg);
}

static void undo_import(struct hf_import *i)
{
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_del_template(b, i->row.id);
    hf_meta_commit(i->c->meta, b, 0, on_row_undone, i);
}

static void on_ready(void *arg, int r, const struct hf_err *err)
{
    struct hf_import *i = arg;
    hf_killpoint("import.ready");
    if (r < 0) {
        i->err = *err;
    } else {
        hf_log_info("template imported", "template=%s name=%s bytes=%lld", i->row.id, i->row.name,
                    (long long)i->row.bytes);
        hf_control_set_warm(i->c);
    }
    finish_import(i);
}

static void publish(struct hf_import *i)
{
    unsigned char hash[HF_SHA256_LEN];
    hf_killpoint("import.built");
    hf_sha256_done(&i->sha, hash);
    hf_hex(hash, sizeof(hash), i->row.sha256);
    i->row.bytes = (int64_t)i->bytes;
    i->row.updated_ms = hf_real_ms();
    (void)snprintf(i->row.state, sizeof(i->row.state), "ready");
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_set_template_ready(b, i->row.id, i->row.sha256, i->row.bytes, i->row.updated_ms);
    hf_put_template_name(b, i->row.tenant, i->row.name, i->tag, i->row.id);
    hf_meta_commit(i->c->meta, b, 0, on_ready, i);
}

static void import_work(uv_work_t *w)
{
    struct hf_import *i = w->data;
    const char *data_dir = i->c->cfg->data_dir;
    int r = 0;
    if (i->step == ABORT) {
        hf_template_import_abort(hf_take_ptr(i->imp));
        i->image_left = hf_disk_template_remove(data_dir, i->row.id, NULL) < 0;
        return;
    }
    if (!i->imp)
        i->imp = hf_template_import_begin(data_dir, i->row.id, &i->work_err);
    if (!i->imp)
        return;
    if (i->batch.n) {
        hf_sha256_add(&i->sha, i->batch.p, i->batch.n);
        r = hf_template_import_feed(i->imp, i->batch.p, i->batch.n, &i->work_err);
    }
    if (r == 0 && i->step == FINISH) {
        struct hf_template_import *imp = hf_take_ptr(i->imp);
        r = hf_template_import_finish(imp, &i->bytes, &i->work_err);
    }
    if (r < 0 && !i->work_err.r)
        (void)hf_err_set(&i->work_err, r, "the archive can't be unpacked: %s", strerror(-r));
}

static void pump(struct hf_import *i);

static void on_worked(uv_work_t *w, int status)
{
    struct hf_import *i = w->data;
    i->working = false;
    hf_buf_clear(&i->batch);
    if (!i->err.r)
        i->err = i->work_err;
    if (i->step == ABORT) {
        if (i->image_left)
            finish_import(i);
        else
            undo_import(i);
        return;
    }
    if (i->step == FINISH && !i->err.r) {
        i->step = OVER;
        publish(i);
        return;
    }
    pump(i);
    if (i->held_back && !i->err.r && !i->cancelled && i->queue.n <= HF_IMPORT_QUEUE_LOW) {
        i->held_back = false;
        i->ops->want_more(i->arg);
    }
}

/* Starts the next piece of work, if there is one. */
static void pump(struct hf_import *i)
{
    if (i->working || !i->row_written || i->step == OVER)
        return;
    if (i->err.r || i->cancelled)
        i->step = ABORT;
    else if (i->ended)
        i->step = FINISH;
    else if (!i->queue.n)
        return;
    struct hf_buf empty = i->batch;
    i->batch = i->queue;
    i->queue = empty;
    i->working = true;
    i->work.data = i;
    if (uv_queue_work(i->c->loop, &i->work, import_work, on_worked) < 0)
        abort(); /* fails for a NULL callback only */
}

static void on_row(void *arg, int r, const struct hf_err *err)
{
    struct hf_import *i = arg;
    if (r < 0) {
        i->err = *err;
        finish_import(i);
        return;
    }
    hf_killpoint("import.row-written");
    i->row_written = true;
    pump(i);
}

struct hf_import *hf_import_begin(struct hf_control *c, const char *tenant, const char *name, const char *tag,
                                  bool is_public, const struct hf_import_ops *ops, void *arg,
                                  struct hf_err *err)
{
    if (c->imports >= HF_IMPORTS_MAX) {
        (void)hf_err_http(err, -EAGAIN, 503, "%u imports are running already; try again when one is done",
                          HF_IMPORTS_MAX);
        return NULL;
    }
    c->imports++;
    c->busy++;
    struct hf_import *i = hf_new(struct hf_import);
    i->c = c;
    i->ops = ops;
    i->arg = arg;
    /* The queue has room for one more read beyond the mark at which the sender is held back. */
    i->queue = HF_BUF_INIT(4 * HF_IMPORT_QUEUE_HIGH);
    i->batch = HF_BUF_INIT(4 * HF_IMPORT_QUEUE_HIGH);
    hf_sha256_init(&i->sha);
    i->row.id[0] = 't';
    hf_random_id(i->row.id + 1, 20);
    i->row.is_public = is_public;
    i->row.created_ms = i->row.updated_ms = hf_real_ms();
    (void)snprintf(i->row.tenant, sizeof(i->row.tenant), "%s", tenant);
    (void)snprintf(i->row.name, sizeof(i->row.name), "%s", name);
    (void)snprintf(i->row.state, sizeof(i->row.state), "importing");
    (void)snprintf(i->tag, sizeof(i->tag), "%s", tag);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_put_template(b, &i->row);
    hf_meta_commit(c->meta, b, 0, on_row, i);
    return i;
}

int hf_import_feed(struct hf_import *i, const char *p, size_t n)
{
    if (i->err.r || i->cancelled)
        return 0; /* the end is under way */
    i->received += n;
    if (i->received > i->c->cfg->template_max)
        (void)hf_err_set(&i->err, -EMSGSIZE,
                         "the archive is larger than the limit of %llu bytes (template_max)",
                         (unsigned long long)i->c->cfg->template_max);
    else if (hf_buf_add(&i->queue, p, n) < 0)
        (void)hf_err_set(&i->err, -EMSGSIZE, "the archive arrives faster than it was asked for");
    pump(i);
    i->held_back = i->held_back || i->queue.n > HF_IMPORT_QUEUE_HIGH;
    return i->held_back;
}

void hf_import_end(struct hf_import *i)
{
    i->ended = true;
    pump(i);
}

void hf_import_cancel(struct hf_import *i)
{
    i->cancelled = true;
    if (!i->err.r)
        (void)hf_err_http(&i->err, -ECANCELED, 499, "the client left before the archive was complete");
    pump(i);
}

/* ---- removal ---- */

struct removal {
    struct hf_control *c;
    char id[HF_ROW_ID];
    unsigned tries;
    uv_work_t work;
    uv_timer_t timer;
    struct hf_err err;
    hf_done_cb cb;
    void *arg;
};

static void on_removal_closed(uv_handle_t *h)
{
    free(h->data);
}

static void finish_removal(struct removal *m)
{
    if (m->err.r)
        hf_log_warn("a template's image stays until the next start", "template=%s error=%s", m->id,
                    hf_log_quote(m->err.msg));
    m->c->busy--;
    if (m->cb)
        m->cb(m->arg, m->err.r ? &m->err : NULL);
    uv_close((uv_handle_t *)&m->timer, on_removal_closed);
}

static void on_template_row_gone(void *arg, int r, const struct hf_err *err)
{
    struct removal *m = arg;
    if (r < 0)
        m->err = *err;
    finish_removal(m);
}

static void removal_work(uv_work_t *w)
{
    struct removal *m = w->data;
    m->err = (struct hf_err){0};
    int r = hf_disk_template_remove(m->c->cfg->data_dir, m->id, &m->err);
    if (r < 0 && !m->err.r)
        (void)hf_err_set(&m->err, r, "the template's image can't be removed: %s", strerror(-r));
}

static void try_removal(struct removal *m);

static void on_retry(uv_timer_t *t)
{
    try_removal(t->data);
}

static void on_removed(uv_work_t *w, int status)
{
    struct removal *m = w->data;
    if (m->err.r == -EBUSY && ++m->tries < HF_TEMPLATE_REMOVE_TRIES && !m->c->stopping) {
        (void)uv_timer_start(&m->timer, on_retry, HF_TEMPLATE_REMOVE_RETRY_MS, 0);
        return;
    }
    if (m->err.r) {
        finish_removal(m);
        return;
    }
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_del_template(b, m->id);
    hf_meta_commit(m->c->meta, b, 0, on_template_row_gone, m);
}

static void try_removal(struct removal *m)
{
    m->work.data = m;
    if (uv_queue_work(m->c->loop, &m->work, removal_work, on_removed) < 0)
        abort(); /* fails for a NULL callback only */
}

static struct removal *new_removal(struct hf_control *c, const char *id, hf_done_cb cb, void *arg)
{
    struct removal *m = hf_new(struct removal);
    c->busy++;
    m->c = c;
    m->cb = cb;
    m->arg = arg;
    (void)snprintf(m->id, sizeof(m->id), "%s", id);
    (void)uv_timer_init(c->loop, &m->timer);
    m->timer.data = m;
    return m;
}

static void on_deleting_row(void *arg, int r, const struct hf_err *err)
{
    struct removal *m = arg;
    if (r < 0) {
        m->err = *err;
        finish_removal(m);
        return;
    }
    hf_control_set_warm(m->c); /* the pool lets go of it */
    try_removal(m);
}

void hf_template_delete(struct hf_control *c, const struct hf_template_row *t, hf_done_cb cb, void *arg)
{
    struct removal *m = new_removal(c, t->id, cb, arg);
    struct hf_meta_batch *b = hf_meta_batch_new();
    hf_set_template_deleting(b, t->id);
    hf_meta_commit(c->meta, b, 0, on_deleting_row, m);
}

static void recover_one(void *arg, const struct hf_template_row *t)
{
    struct hf_control *c = arg;
    if (strcmp(t->state, "ready") == 0)
        return;
    hf_log_info("removing what is left of a template", "template=%s state=%s", t->id, t->state);
    try_removal(new_removal(c, t->id, NULL, NULL));
}

void hf_template_recover(struct hf_control *c)
{
    if (hf_each_template(c->meta, NULL, recover_one, c) < 0)
        hf_log_error("the templates' rows can't be read", "%s", "");
}
