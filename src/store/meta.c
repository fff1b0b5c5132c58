/* Opening, the writer thread with group commit, closing. */
#include <fcntl.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "store/meta_int.h"

static int pragma(sqlite3 *db, const char *sql, struct hf_err *err)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        return meta_sql_err(db, err, sql);
    return 0;
}

static int open_db(const char *path, sqlite3 **ret, struct hf_err *err)
{
    sqlite3 *db = NULL;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE;
    if (sqlite3_open_v2(path, &db, flags, NULL) != SQLITE_OK) {
        int r = db ? meta_sql_err(db, err, "cannot open the database") : -ENOMEM;
        (void)sqlite3_close(db);
        return r;
    }
    (void)sqlite3_busy_timeout(db, HF_META_BUSY_MS);
    (void)sqlite3_extended_result_codes(db, 1);
    int r = pragma(db, "PRAGMA journal_mode = WAL", err);
    if (r == 0)
        r = pragma(db, "PRAGMA synchronous = FULL", err);
    if (r == 0)
        r = pragma(db, "PRAGMA foreign_keys = ON", err);
    if (r < 0) {
        (void)sqlite3_close(db);
        return r;
    }
    *ret = db;
    return 0;
}

/* The database holds the node's secret: nobody else may read it, whatever the umask is. */
static int make_private(const char *path, struct hf_err *err)
{
    hf_auto_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || fchmod(fd, 0600) < 0) {
        int r = -errno;
        return hf_err_set(err, r, "cannot open %s: %s; the daemon and `holdfast key` need to write there",
                          path, strerror(-r));
    }
    return 0;
}

static void free_meta(struct hf_meta *m)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(m->w); i++)
        (void)sqlite3_finalize(m->w[i]);
    meta_read_done(m);
    (void)sqlite3_close(m->wdb);
    (void)sqlite3_close(m->rdb);
    free(m);
}

static int run_op(struct hf_meta *m, const struct meta_op *op, struct hf_err *err)
{
    sqlite3_stmt **s = &m->w[op->stmt];
    if (!*s && sqlite3_prepare_v3(m->wdb, meta_write_sql[op->stmt], -1, SQLITE_PREPARE_PERSISTENT, s, NULL) !=
                   SQLITE_OK)
        return meta_sql_err(m->wdb, err, "cannot prepare a statement");
    for (int i = 0; i < op->n; i++) {
        const struct meta_param *p = &op->params[i];
        if (p->type == P_INT)
            (void)sqlite3_bind_int64(*s, i + 1, p->i);
        else if (p->type == P_TEXT)
            (void)sqlite3_bind_text(*s, i + 1, p->p, (int)p->n, SQLITE_STATIC);
        else
            (void)sqlite3_bind_blob(*s, i + 1, p->p, (int)p->n, SQLITE_STATIC);
    }
    int r = 0;
    if (sqlite3_step(*s) != SQLITE_DONE)
        r = meta_sql_err(m->wdb, err, "cannot write to the database");
    else if (op->expect_change && sqlite3_changes(m->wdb) == 0)
        r = hf_err_set(err, -ESTALE, "the row is not in the expected state any more");
    (void)sqlite3_reset(*s);
    (void)sqlite3_clear_bindings(*s);
    return r;
}

static void run_batch(struct hf_meta *m, struct hf_meta_batch *b)
{
    b->r = pragma(m->wdb, "SAVEPOINT batch", &b->err);
    if (b->r < 0)
        return;
    for (const struct meta_op *op = b->first; op && b->r == 0; op = op->next)
        b->r = run_op(m, op, &b->err);
    if (b->r < 0)
        (void)sqlite3_exec(m->wdb, "ROLLBACK TO batch", NULL, NULL, NULL);
    struct hf_err err = {0};
    if (pragma(m->wdb, "RELEASE batch", &err) < 0 && b->r == 0) {
        b->r = err.r;
        b->err = err;
    }
}

static void fail_all(struct hf_list *group, const struct hf_err *err)
{
    hf_list_foreach(it, group)
    {
        struct hf_meta_batch *b = hf_list_entry(it, struct hf_meta_batch, node);
        b->r = err->r;
        b->err = *err;
    }
}

/* WAL with synchronous=NORMAL loses at most the last commits at a power cut, never at a crash of this
 * process; a lazy group is one whose facts a restart finds out again. */
static int set_sync(struct hf_meta *m, bool full, struct hf_err *err)
{
    if (m->full == full)
        return 0;
    int r = pragma(m->wdb, full ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL", err);
    if (r == 0)
        m->full = full;
    return r;
}

static void run_group(struct hf_meta *m, struct hf_list *group)
{
    bool full = false;
    hf_list_foreach(it, group)
    {
        if (!(hf_list_entry(it, struct hf_meta_batch, node)->flags & HF_META_LAZY))
            full = true;
    }
    struct hf_err err = {0};
    int r = set_sync(m, full, &err);
    if (r == 0)
        r = pragma(m->wdb, "BEGIN IMMEDIATE", &err);
    if (r < 0) {
        fail_all(group, &err);
        return;
    }
    hf_list_foreach(it, group)
    {
        run_batch(m, hf_list_entry(it, struct hf_meta_batch, node));
    }
    if (pragma(m->wdb, "COMMIT", &err) < 0) {
        (void)sqlite3_exec(m->wdb, "ROLLBACK", NULL, NULL, NULL);
        fail_all(group, &err);
    }
}

static void writer_main(void *arg)
{
    struct hf_meta *m = arg;
    uv_mutex_lock(&m->lock);
    for (;;) {
        while (hf_list_empty(&m->queue) && !m->stop)
            uv_cond_wait(&m->wake, &m->lock);
        if (hf_list_empty(&m->queue))
            break;
        struct hf_list group;
        hf_list_init(&group);
        for (unsigned n = 0; n < HF_META_GROUP_MAX && !hf_list_empty(&m->queue); n++) {
            struct hf_list *node = m->queue.next;
            hf_list_del(node);
            hf_list_add_tail(&group, node);
        }
        uv_mutex_unlock(&m->lock);
        run_group(m, &group);
        uv_mutex_lock(&m->lock);
        while (!hf_list_empty(&group)) {
            struct hf_list *node = group.next;
            hf_list_del(node);
            hf_list_add_tail(&m->done, node);
        }
        (void)uv_async_send(&m->async);
    }
    uv_mutex_unlock(&m->lock);
}

static void deliver(struct hf_meta *m)
{
    for (;;) {
        uv_mutex_lock(&m->lock);
        struct hf_list *node = hf_list_empty(&m->done) ? NULL : m->done.next;
        if (node)
            hf_list_del(node);
        uv_mutex_unlock(&m->lock);
        if (!node)
            return;
        struct hf_meta_batch *b = hf_list_entry(node, struct hf_meta_batch, node);
        if (b->cb)
            b->cb(b->arg, b->r, &b->err);
        hf_meta_batch_free(b);
    }
}

static void on_async(uv_async_t *async)
{
    deliver(async->data);
}

static int start_writer(struct hf_meta *m, struct hf_err *err)
{
    hf_list_init(&m->queue);
    hf_list_init(&m->done);
    int r = uv_async_init(m->loop, &m->async, on_async);
    if (r < 0)
        return hf_err_set(err, r, "cannot start the database writer: %s", uv_strerror(r));
    m->async.data = m;
    if (uv_mutex_init(&m->lock) < 0 || uv_cond_init(&m->wake) < 0)
        abort(); /* they fail for lack of memory only */
    r = uv_thread_create(&m->thread, writer_main, m);
    if (r < 0) {
        uv_close((uv_handle_t *)&m->async, NULL);
        return hf_err_set(err, r, "cannot start the database writer: %s", uv_strerror(r));
    }
    m->threaded = true;
    return 0;
}

int hf_meta_open(const char *data_dir, uv_loop_t *loop, struct hf_meta **ret, struct hf_err *err)
{
    hf_auto_free char *path = hf_xasprintf("%s/%s", data_dir, HF_META_DB_NAME);
    int r = make_private(path, err);
    if (r < 0)
        return r;
    struct hf_meta *m = hf_new(struct hf_meta);
    m->loop = loop;
    m->full = true;
    r = open_db(path, &m->wdb, err);
    if (r == 0)
        r = meta_migrate(m->wdb, err);
    if (r == 0)
        r = open_db(path, &m->rdb, err);
    if (r == 0)
        r = meta_read_seed(m, err);
    if (r == 0 && loop)
        r = start_writer(m, err);
    if (r < 0) {
        free_meta(m);
        return r;
    }
    *ret = m;
    return 0;
}

static void on_closed(uv_handle_t *h)
{
    struct hf_meta *m = h->data;
    void (*closed)(void *) = m->closed;
    void *arg = m->closed_arg;
    uv_mutex_destroy(&m->lock);
    uv_cond_destroy(&m->wake);
    free_meta(m);
    if (closed)
        closed(arg);
}

void hf_meta_close(struct hf_meta *m, void (*closed)(void *arg), void *arg)
{
    if (!m->threaded) {
        free_meta(m);
        if (closed)
            closed(arg);
        return;
    }
    m->closed = closed;
    m->closed_arg = arg;
    uv_mutex_lock(&m->lock);
    m->stop = true;
    uv_cond_signal(&m->wake);
    uv_mutex_unlock(&m->lock);
    (void)uv_thread_join(&m->thread);
    deliver(m);
    uv_close((uv_handle_t *)&m->async, on_closed);
}

void hf_meta_commit(struct hf_meta *m, struct hf_meta_batch *b, unsigned flags, hf_meta_cb cb, void *arg)
{
    b->flags = flags;
    b->cb = cb;
    b->arg = arg;
    uv_mutex_lock(&m->lock);
    if (m->stop) { /* a callback of the last delivery wants more: too late, say so in order */
        b->r = hf_err_set(&b->err, -ESHUTDOWN, "the daemon is going down");
        hf_list_add_tail(&m->done, &b->node);
    } else {
        hf_list_add_tail(&m->queue, &b->node);
        uv_cond_signal(&m->wake);
    }
    uv_mutex_unlock(&m->lock);
}

int hf_meta_commit_now(struct hf_meta *m, struct hf_meta_batch *b, struct hf_err *err)
{
    struct hf_list group;
    hf_list_init(&group);
    hf_list_add_tail(&group, &b->node);
    run_group(m, &group);
    int r = b->r;
    if (r < 0 && err)
        *err = b->err;
    hf_meta_batch_free(b);
    return r;
}
