/* An import in progress: a socket pair to a thread that unpacks. */
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "engine/disk/pool.h"
#include "engine/disk/template.h"
#include "engine/driver.h"

struct hf_template_import {
    char *data_dir, *template_id;
    struct hf_staging staging;
    int feed_fd; /* our end; -1 once the archive is complete */
    int read_fd; /* the thread's end, closed by the thread */
    pthread_t thread;
    bool running;
    int r; /* the thread's result, valid after the join */
    struct hf_err err;
};

static void *unpack(void *arg)
{
    struct hf_template_import *imp = arg;
    imp->r = hf_template_extract(imp->read_fd, imp->staging.tree, NULL, NULL, &imp->err);
    /* After a success libarchive may not have read what follows the archive's end: drain it, so that the
     * feeder does not fail on padding. After a failure the feeder shall notice at once. */
    char rest[4096];
    while (imp->r == 0 && recv(imp->read_fd, rest, sizeof(rest), 0) > 0)
        continue;
    imp->read_fd = hf_close(imp->read_fd);
    return NULL;
}

static void join(struct hf_template_import *imp)
{
    imp->feed_fd = hf_close(imp->feed_fd);
    if (imp->running)
        (void)pthread_join(imp->thread, NULL);
    imp->running = false;
}

static void import_free(struct hf_template_import *imp)
{
    (void)hf_close(imp->read_fd);
    hf_staging_end(&imp->staging);
    free(imp->data_dir);
    free(imp->template_id);
    free(imp);
}

static int start(struct hf_template_import *imp, struct hf_err *err)
{
    if (mkdir(imp->staging.tree, 0755) < 0 || chmod(imp->staging.tree, 0755) < 0)
        return hf_err_set(err, -errno, "cannot make %s: %s", imp->staging.tree, strerror(errno));
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return hf_err_set(err, -errno, "cannot make a socket pair: %s", strerror(errno));
    imp->feed_fd = fds[0];
    imp->read_fd = fds[1];
    int r = pthread_create(&imp->thread, NULL, unpack, imp);
    imp->running = r == 0;
    return r == 0 ? 0 : hf_err_set(err, -r, "cannot start a thread: %s", strerror(r));
}

struct hf_template_import *hf_template_import_begin(const char *data_dir, const char *template_id,
                                                    struct hf_err *err)
{
    if (hf_disk_check_name("template", template_id, err) < 0)
        return NULL;
    hf_auto_free char *image = hf_xasprintf("%s/pool/templates/%s.img", data_dir, template_id);
    if (access(image, F_OK) == 0) {
        (void)hf_err_set(err, -EEXIST, "the template %s exists already; remove it first", template_id);
        return NULL;
    }
    struct hf_template_import *imp = hf_new(struct hf_template_import);
    imp->data_dir = hf_xstrdup(data_dir);
    imp->template_id = hf_xstrdup(template_id);
    imp->staging = HF_STAGING_INIT;
    imp->feed_fd = imp->read_fd = -1;
    int r = hf_staging_begin(&imp->staging, data_dir, err);
    if (r == 0)
        r = start(imp, err);
    if (r < 0) {
        hf_template_import_abort(imp);
        return NULL;
    }
    return imp;
}

/* Why the unpacking ended early. */
static int early_end(struct hf_template_import *imp, struct hf_err *err)
{
    join(imp);
    if (imp->r == 0)
        imp->r = hf_err_set(&imp->err, -EPIPE, "the unpacking ended before the archive did");
    if (err)
        *err = imp->err;
    return imp->r;
}

int hf_template_import_feed(struct hf_template_import *imp, const void *p, size_t n, struct hf_err *err)
{
    const char *c = p;
    if (imp->feed_fd < 0)
        return early_end(imp, err);
    while (n) {
        ssize_t sent = send(imp->feed_fd, c, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return early_end(imp, err);
        c += sent;
        n -= (size_t)sent;
    }
    return 0;
}

int hf_template_import_finish(struct hf_template_import *imp, uint64_t *ret_bytes, struct hf_err *err)
{
    join(imp);
    int r = imp->r;
    if (r < 0 && err)
        *err = imp->err;
    hf_killpoint("disk.import.unpacked");
    if (r == 0)
        r = hf_template_prepare(imp->staging.tree, err);
    if (r == 0)
        r = hf_disk_template_build(imp->data_dir, imp->template_id, imp->staging.tree, ret_bytes, err);
    import_free(imp);
    return r;
}

void hf_template_import_abort(struct hf_template_import *imp)
{
    if (!imp)
        return;
    join(imp);
    import_free(imp);
}
