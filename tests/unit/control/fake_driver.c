#include "fake_driver.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/id.h"
#include "base/path.h"

struct hf_box {
    struct hf_fake *f;
    struct hf_box *next;
    char sandbox_id[HF_SANDBOX_ID_MAX];
    char dir[160], ctl[200];
    uint64_t disk_bytes;
    uv_pipe_t server;
    bool listening, reported;
};

/* A call that is answered later. */
struct later {
    uv_timer_t timer;
    struct hf_fake *f;
    void (*run)(struct later *l);
    struct hf_box *box;
    hf_box_cb box_cb;
    hf_done_cb done_cb;
    void (*found)(void *arg, const struct hf_box_found *f);
    hf_fd_cb fd_cb;
    hf_box_save_cb save_cb;
    struct hf_box_exit exit;
    void *arg;
    int r;
};

const char *hf_box_sandbox_id(const struct hf_box *box)
{
    return box->sandbox_id;
}

const char *hf_box_control_socket(const struct hf_box *box)
{
    return box->ctl;
}

const char *hf_box_envd_socket(const struct hf_box *box)
{
    return box->ctl;
}

uint64_t hf_box_disk_bytes(const struct hf_box *box)
{
    return box->disk_bytes;
}

uint32_t hf_box_net_key(const struct hf_box *box)
{
    return (uint32_t)strtoul(strrchr(box->dir, '/') + 1, NULL, 10) + 1;
}

const char *hf_box_cause_name(enum hf_box_cause cause)
{
    static const char *const names[] = {"exited", "oom", "killed", "supervisor lost"};
    return names[cause];
}

static void maybe_closed(struct hf_fake *f)
{
    if (f->open_handles || !f->closed)
        return;
    hf_done_cb closed = f->closed;
    void *arg = f->closed_arg;
    while (f->boxes) {
        struct hf_box *box = f->boxes;
        f->boxes = box->next;
        free(box);
    }
    free(f->run_dir);
    free(f);
    closed(arg, NULL);
}

static void on_later_closed(uv_handle_t *h)
{
    struct later *l = h->data;
    struct hf_fake *f = l->f;
    free(l);
    f->open_handles--;
    maybe_closed(f);
}

static void on_later(uv_timer_t *t)
{
    struct later *l = t->data;
    l->run(l);
    uv_close((uv_handle_t *)t, on_later_closed);
}

static struct later *later(struct hf_fake *f, unsigned ms, void (*run)(struct later *l))
{
    struct later *l = hf_new(struct later);
    l->f = f;
    l->run = run;
    (void)uv_timer_init(f->base.loop, &l->timer);
    l->timer.data = l;
    f->open_handles++;
    (void)uv_timer_start(&l->timer, on_later, ms, 0);
    return l;
}

/* ---- envd ---- */

struct conn {
    uv_pipe_t pipe;
    struct hf_fake *f;
    struct hf_buf in;
    uv_write_t write;
    char out[256];
    char chunk[4096];
};

static void on_conn_closed(uv_handle_t *h)
{
    struct conn *c = h->data;
    struct hf_fake *f = c->f;
    hf_buf_done(&c->in);
    free(c);
    f->open_handles--;
    maybe_closed(f);
}

static void close_conn(struct conn *c)
{
    if (!uv_is_closing((uv_handle_t *)&c->pipe))
        uv_close((uv_handle_t *)&c->pipe, on_conn_closed);
}

static void on_conn_written(uv_write_t *w, int status)
{
    close_conn(w->data);
}

static void on_conn_alloc(uv_handle_t *h, size_t n, uv_buf_t *buf)
{
    struct conn *c = h->data;
    *buf = uv_buf_init(c->chunk, sizeof(c->chunk));
}

static void answer(struct conn *c, int status)
{
    const char *told = strstr(c->f->last_init, "\"generation\":");
    unsigned long long generation = told ? strtoull(told + 13, NULL, 10) : 0;
    (void)snprintf(c->out, sizeof(c->out),
                   "HTTP/1.1 %d X\r\nX-Envd-Version: 0.6.13\r\nX-Holdfast-Generation: %llu\r\n"
                   "Content-Length: 0\r\n\r\n",
                   status, generation + (c->f->other_generation ? 1 : 0));
    uv_buf_t buf = uv_buf_init(c->out, (unsigned)strlen(c->out));
    c->write.data = c;
    (void)uv_write(&c->write, (uv_stream_t *)&c->pipe, &buf, 1, on_conn_written);
}

static void answer_init(struct conn *c, const char *body)
{
    struct hf_fake *f = c->f;
    f->inits++;
    (void)snprintf(f->last_init, sizeof(f->last_init), "%s", body);
    if (f->init_status < 0) {
        close_conn(c);
        return;
    }
    if (f->init_status != 0)
        answer(c, f->init_status);
}

static void on_conn_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct conn *c = s->data;
    if (n < 0 || (n > 0 && hf_buf_add(&c->in, buf->base, (size_t)n) < 0)) {
        close_conn(c);
        return;
    }
    char *body = c->in.n ? strstr(c->in.p, "\r\n\r\n") : NULL;
    char *length = c->in.n ? strstr(c->in.p, "Content-Length: ") : NULL;
    if (body && strncmp(c->in.p, "GET /health ", 12) == 0)
        answer(c, 204);
    if (!body || !length)
        return;
    body += 4;
    if (strlen(body) >= (size_t)strtoul(length + 16, NULL, 10))
        answer_init(c, body);
}

static void on_connection(uv_stream_t *server, int status)
{
    struct hf_box *box = server->data;
    struct conn *c = hf_new(struct conn);
    c->f = box->f;
    c->in = HF_BUF_INIT(1u << 20);
    (void)uv_pipe_init(server->loop, &c->pipe, 0);
    c->pipe.data = c;
    c->f->open_handles++;
    if (uv_accept(server, (uv_stream_t *)&c->pipe) < 0 ||
        uv_read_start((uv_stream_t *)&c->pipe, on_conn_alloc, on_conn_read) < 0)
        close_conn(c);
}

static void on_server_closed(uv_handle_t *h)
{
    struct hf_fake *f = ((struct hf_box *)h->data)->f;
    f->open_handles--;
    maybe_closed(f);
}

static void listen_box(struct hf_box *box)
{
    (void)unlink(box->ctl);
    (void)uv_pipe_init(box->f->base.loop, &box->server, 0);
    box->server.data = box;
    box->f->open_handles++;
    if (uv_pipe_bind(&box->server, box->ctl) < 0 ||
        uv_listen((uv_stream_t *)&box->server, 8, on_connection) < 0)
        abort();
    box->listening = true;
    box->f->living++;
    box->f->most_living = HF_MAX(box->f->most_living, box->f->living);
}

static void unlisten_box(struct hf_box *box)
{
    if (!box->listening)
        return;
    box->listening = false;
    box->f->living--;
    uv_close((uv_handle_t *)&box->server, on_server_closed);
}

/* ---- files ---- */

static void write_text(const char *dir, const char *name, const char *text)
{
    hf_auto_free char *path = hf_xasprintf("%s/%s", dir, name);
    if (hf_write_file_atomic(path, text, strlen(text), 0600) < 0)
        abort();
}

static char *read_text(const char *dir, const char *name)
{
    hf_auto_free char *path = hf_xasprintf("%s/%s", dir, name);
    char *text = NULL;
    size_t n;
    return hf_read_file(path, 4096, &text, &n) < 0 ? NULL : text;
}

static void each_dir(const char *run_dir, void (*fn)(void *arg, const char *dir), void *arg)
{
    hf_auto_free char *boxes = hf_xasprintf("%s/boxes", run_dir);
    DIR *d = opendir(boxes);
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        hf_auto_free char *dir = hf_xasprintf("%s/%s", boxes, e->d_name);
        fn(arg, dir);
    }
    (void)closedir(d);
}

static void count_dir(void *arg, const char *dir)
{
    ++*(unsigned *)arg;
}

unsigned hf_fake_count(const char *run_dir)
{
    unsigned n = 0;
    each_dir(run_dir, count_dir, &n);
    return n;
}

static char *new_dir(const char *run_dir)
{
    uint32_t rnd; /* a number: the box's key in the fabric comes from it */
    hf_random(&rnd, sizeof(rnd));
    char *dir = hf_xasprintf("%s/boxes/%u", run_dir, 10000000 + rnd % 90000000);
    if (hf_mkdir_p(dir, 0700) < 0)
        abort();
    return dir;
}

void hf_fake_plant(const char *run_dir, const char *sandbox_id)
{
    hf_auto_free char *dir = new_dir(run_dir);
    write_text(dir, "id", sandbox_id);
}

void hf_fake_plant_frozen(const char *run_dir, const char *sandbox_id)
{
    hf_auto_free char *dir = new_dir(run_dir);
    write_text(dir, "id", sandbox_id);
    write_text(dir, "frozen", "1");
}

struct offline {
    const char *sandbox_id;
    enum hf_box_cause cause;
};

static void end_dir(void *arg, const char *dir)
{
    struct offline *o = arg;
    hf_auto_free char *id = read_text(dir, "id");
    char cause[8];
    (void)snprintf(cause, sizeof(cause), "%d", (int)o->cause);
    if (id && strcmp(id, o->sandbox_id) == 0)
        write_text(dir, "exit", cause);
}

void hf_fake_end_offline(const char *run_dir, const char *sandbox_id, enum hf_box_cause cause)
{
    each_dir(run_dir, end_dir, &(struct offline){sandbox_id, cause});
}

/* ---- driver ---- */

static void fake_caps(struct hf_driver *d, struct hf_driver_caps *ret)
{
    *ret = (struct hf_driver_caps){.memory_limit = true,
                                   .disk_quota = true,
                                   .pause = true,
                                   .snapshot_memory = true,
                                   .isolation = "shared-kernel"};
}

static struct hf_box *add_box(struct hf_fake *f, const char *dir, const char *sandbox_id)
{
    struct hf_box *box = hf_new(struct hf_box);
    box->f = f;
    (void)snprintf(box->sandbox_id, sizeof(box->sandbox_id), "%s", sandbox_id);
    (void)snprintf(box->dir, sizeof(box->dir), "%s", dir);
    (void)snprintf(box->ctl, sizeof(box->ctl), "%s/ctl.sock", dir);
    box->next = f->boxes;
    f->boxes = box;
    return box;
}

struct scan {
    struct hf_fake *f;
    struct later *l;
};

static void scan_dir(void *arg, const char *dir)
{
    struct scan *s = arg;
    hf_auto_free char *id = read_text(dir, "id"), *exit = read_text(dir, "exit"),
                      *frozen = read_text(dir, "frozen");
    struct hf_box_found found = {.alive = id && !exit, .frozen = frozen, .sandbox_id = id ? id : ""};
    if (exit)
        found.exit = (struct hf_box_exit){.cause = (enum hf_box_cause)(int)strtol(exit, NULL, 10),
                                          .detail = "ended offline"};
    found.box = add_box(s->f, dir, found.sandbox_id);
    if (found.alive)
        listen_box(found.box);
    s->l->found(s->l->arg, &found);
}

static void run_scan(struct later *l)
{
    each_dir(l->f->run_dir, scan_dir, &(struct scan){l->f, l});
    l->done_cb(l->arg, NULL);
}

static void fake_scan(struct hf_driver *d, void (*found)(void *arg, const struct hf_box_found *f),
                      hf_done_cb done, void *arg)
{
    struct later *l = later((struct hf_fake *)d, 0, run_scan);
    l->found = found;
    l->done_cb = done;
    l->arg = arg;
}

static void fake_adopt(struct hf_driver *d, struct hf_box *box)
{
}

static void run_create(struct later *l)
{
    if (l->r == 0) {
        l->box_cb(l->arg, l->box, NULL);
        return;
    }
    struct hf_err err = {0};
    (void)hf_err_set(&err, l->r, "the fake driver was told to fail");
    l->box_cb(l->arg, NULL, &err);
}

struct image {
    const char *path;
    bool used;
};

static void look_for_image(void *arg, const char *dir)
{
    struct image *i = arg;
    hf_auto_free char *image = read_text(dir, "image");
    i->used |= image && strcmp(image, i->path) == 0;
}

/* As the engine does: a writable image has one user at a time. */
static bool image_in_use(struct hf_fake *f, const struct hf_box_spec *spec)
{
    struct image i = {spec->n_mounts ? spec->mounts[0].image : "", false};
    if (spec->n_mounts)
        each_dir(f->run_dir, look_for_image, &i);
    return i.used;
}

/* The box's directory has the file `wire` while it is plugged in. */
static void set_wire(const struct hf_box *box, bool up)
{
    hf_auto_free char *path = hf_xasprintf("%s/wire", box->dir);
    if (up)
        write_text(box->dir, "wire", "");
    else
        (void)unlink(path);
}

static void fake_create(struct hf_driver *d, const struct hf_box_spec *spec, hf_box_cb cb, void *arg)
{
    struct hf_fake *f = (struct hf_fake *)d;
    struct later *l = later(f, f->create_ms, run_create);
    l->box_cb = cb;
    l->arg = arg;
    l->r = image_in_use(f, spec) ? -EBUSY : f->fail_create;
    f->creates++;
    if (l->r)
        return;
    hf_auto_free char *dir = new_dir(f->run_dir);
    l->box = add_box(f, dir, spec->sandbox_id);
    l->box->disk_bytes = spec->disk_bytes;
    if (spec->n_mounts)
        write_text(dir, "image", spec->mounts[0].image);
    write_text(dir, "id", spec->sandbox_id);
    set_wire(l->box, spec->network);
    listen_box(l->box);
}

static void run_destroy(struct later *l)
{
    struct hf_fake *f = l->f;
    if (hf_remove_tree(l->box->dir) < 0)
        abort();
    unlisten_box(l->box);
    f->destroys++;
    l->done_cb(l->arg, NULL); /* the box is freed with the driver: its server may still be closing */
}

static void fake_destroy(struct hf_driver *d, struct hf_box *box, hf_done_cb cb, void *arg)
{
    struct hf_fake *f = (struct hf_fake *)d;
    struct later *l = later(f, f->destroy_ms, run_destroy);
    box->reported = true;
    l->box = box;
    l->done_cb = cb;
    l->arg = arg;
}

static void run_dial(struct later *l)
{
    l->fd_cb(l->arg, -ECONNREFUSED, NULL);
}

static void fake_dial(struct hf_driver *d, struct hf_box *box, uint16_t port, hf_fd_cb cb, void *arg)
{
    struct later *l = later((struct hf_fake *)d, 0, run_dial);
    l->fd_cb = cb;
    l->arg = arg;
}

static int fake_stats(struct hf_driver *d, struct hf_box *box, struct hf_box_stats *ret)
{
    *ret = (struct hf_box_stats){.cpu_count = 2,
                                 .cpu_usage_ns = ((struct hf_fake *)d)->cpu_ns,
                                 .disk_writes = ((struct hf_fake *)d)->disk_writes,
                                 .cpu_used_pct = 12.5,
                                 .mem_used = 1000,
                                 .mem_total = 2000,
                                 .disk_total = box->disk_bytes};
    return 0;
}

static void on_watch_closed(uv_handle_t *h)
{
    struct hf_fake *f = h->data;
    f->open_handles--;
    maybe_closed(f);
}

static void run_close(struct later *l)
{
    if (l->f->watching)
        uv_close((uv_handle_t *)&l->f->watch, on_watch_closed);
    for (struct hf_box *box = l->f->boxes; box; box = box->next)
        unlisten_box(box);
    l->f->closed = l->done_cb;
    l->f->closed_arg = l->arg;
}

static void fake_close(struct hf_driver *d, bool kill_pool, hf_done_cb cb, void *arg)
{
    struct later *l = later((struct hf_fake *)d, 0, run_close);
    l->done_cb = cb;
    l->arg = arg;
}

static void run_done(struct later *l)
{
    l->done_cb(l->arg, NULL);
}

static void fake_network(struct hf_driver *d, struct hf_box *box, bool up, hf_done_cb cb, void *arg)
{
    struct later *l = later((struct hf_fake *)d, 0, run_done);
    set_wire(box, up);
    l->done_cb = cb;
    l->arg = arg;
}

/* The box's directory has the file `frozen` while it stands still. */
static void set_frozen(const struct hf_box *box, bool frozen)
{
    hf_auto_free char *path = hf_xasprintf("%s/frozen", box->dir);
    if (frozen)
        write_text(box->dir, "frozen", "");
    else
        (void)unlink(path);
}

static void run_freeze(struct later *l)
{
    struct hf_err err = {.r = l->r, .msg = "the fake does not stop"};
    l->done_cb(l->arg, l->r ? &err : NULL);
}

static void fake_freeze(struct hf_driver *d, struct hf_box *box, bool frozen, hf_done_cb cb, void *arg)
{
    struct hf_fake *f = (struct hf_fake *)d;
    struct later *l = later(f, f->freeze_ms, run_freeze);
    l->r = frozen ? f->fail_freeze : 0;
    if (!l->r)
        set_frozen(box, frozen);
    l->done_cb = cb;
    l->arg = arg;
}

static void run_save(struct later *l)
{
    struct hf_err err = {.r = l->r, .msg = "the processes can't be saved: the fake says so"};
    const struct hf_box_saved saved = {
        .frozen_us = 100, .total_us = 200, .cpu_ns = l->f->cpu_ns, .disk_writes = l->f->disk_writes};
    l->save_cb(l->arg, l->r ? NULL : &saved, l->r ? &err : NULL);
}

static void fake_save(struct hf_driver *d, struct hf_box *box, const struct hf_box_save *save,
                      hf_box_save_cb cb, void *arg)
{
    struct hf_fake *f = (struct hf_fake *)d;
    struct later *l = later(f, f->save_ms, run_save);
    l->r = save->memory ? f->fail_save : 0;
    f->saves++;
    if (!l->r)
        write_text(save->dir, "disk.img", box->sandbox_id);
    l->save_cb = cb;
    l->arg = arg;
}

static void fake_set_warm(struct hf_driver *d, const char *template_id, uint32_t count)
{
    struct hf_fake *f = (struct hf_fake *)d;
    (void)snprintf(f->warm_id, sizeof(f->warm_id), "%s", template_id);
    f->warm_count = count;
}

static const struct hf_driver_ops fake_ops = {
    .name = "fake",
    .caps = fake_caps,
    .scan = fake_scan,
    .adopt = fake_adopt,
    .create = fake_create,
    .destroy = fake_destroy,
    .dial = fake_dial,
    .stats = fake_stats,
    .close = fake_close,
    .network = fake_network,
    .freeze = fake_freeze,
    .save = fake_save,
    .set_warm = fake_set_warm,
};

struct hf_fake *hf_fake_new(uv_loop_t *loop, const char *run_dir)
{
    struct hf_fake *f = hf_new(struct hf_fake);
    f->base.ops = &fake_ops;
    f->base.loop = loop;
    f->run_dir = hf_xstrdup(run_dir);
    f->init_status = 204;
    return f;
}

static void run_end(struct later *l)
{
    if (l->box->reported)
        return;
    l->box->reported = true;
    l->f->base.on_exit(l->f->base.on_exit_arg, l->box, &l->exit);
}

void hf_fake_end(struct hf_fake *f, const char *sandbox_id, enum hf_box_cause cause, const char *detail)
{
    for (struct hf_box *box = f->boxes; box; box = box->next) {
        if (strcmp(box->sandbox_id, sandbox_id) != 0 || box->reported)
            continue;
        struct later *l = later(f, 0, run_end);
        l->box = box;
        l->exit.cause = cause;
        (void)snprintf(l->exit.detail, sizeof(l->exit.detail), "%s", detail);
    }
}

static void on_watch(uv_timer_t *t)
{
    struct hf_fake *f = t->data;
    for (struct hf_box *box = f->boxes; box; box = box->next) {
        hf_auto_free char *exit = box->reported || !box->listening ? NULL : read_text(box->dir, "exit");
        if (exit)
            hf_fake_end(f, box->sandbox_id, (enum hf_box_cause)(int)strtol(exit, NULL, 10),
                        "it was seen to end");
    }
}

void hf_fake_watch(struct hf_fake *f)
{
    (void)uv_timer_init(f->base.loop, &f->watch);
    f->watch.data = f;
    f->watching = true;
    f->open_handles++;
    (void)uv_timer_start(&f->watch, on_watch, 10, 10);
}
