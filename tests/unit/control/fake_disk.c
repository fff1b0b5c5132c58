/* Volumes and templates as plain files in DATA/pool, and the constructor that the daemon calls. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/path.h"
#include "engine/disk/template.h"
#include "fake_driver.h"

static char *pool_path(const char *data_dir, const char *kind, const char *name)
{
    return hf_xasprintf("%s/pool/%s/%s.img", data_dir, kind, name);
}

int hf_disk_volume_create(const char *data_dir, const char *name, uint64_t bytes, char **ret_path,
                          struct hf_err *err)
{
    hf_auto_free char *dir = hf_xasprintf("%s/pool/volumes", data_dir);
    hf_auto_free char *path = pool_path(data_dir, "volumes", name);
    if (getenv("HF_FAKE_NO_SPACE"))
        return hf_err_set(err, -ENOSPC, "the pool is full");
    if (hf_mkdir_p(dir, 0700) < 0)
        abort();
    hf_auto_close int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        abort();
    *ret_path = hf_take_ptr(path);
    return 0;
}

int hf_disk_volume_remove(const char *data_dir, const char *name, struct hf_err *err)
{
    hf_auto_free char *path = pool_path(data_dir, "volumes", name);
    (void)unlink(path);
    return 0;
}

int hf_disk_template_remove(const char *data_dir, const char *template_id, struct hf_err *err)
{
    hf_auto_free char *path = pool_path(data_dir, "templates", template_id);
    (void)unlink(path);
    return 0;
}

struct hf_template_import {
    char *path;
    int fd;
    uint64_t bytes;
};

struct hf_template_import *hf_template_import_begin(const char *data_dir, const char *template_id,
                                                    struct hf_err *err)
{
    hf_auto_free char *dir = hf_xasprintf("%s/pool/templates", data_dir);
    if (hf_mkdir_p(dir, 0700) < 0)
        abort();
    struct hf_template_import *imp = hf_new(struct hf_template_import);
    imp->path = pool_path(data_dir, "templates", template_id);
    imp->fd = open(imp->path, O_CREAT | O_RDWR | O_TRUNC | O_CLOEXEC, 0600);
    return imp;
}

int hf_template_import_feed(struct hf_template_import *imp, const void *p, size_t n, struct hf_err *err)
{
    if (n >= 3 && memcmp(p, "BAD", 3) == 0)
        return hf_err_set(err, -EINVAL, "this is not a tar archive");
    imp->bytes += n;
    return hf_write_all(imp->fd, p, n);
}

static void free_import(struct hf_template_import *imp)
{
    (void)hf_close(imp->fd);
    free(imp->path);
    free(imp);
}

int hf_template_import_finish(struct hf_template_import *imp, uint64_t *ret_bytes, struct hf_err *err)
{
    int r = imp->bytes ? 0 : hf_err_set(err, -EINVAL, "the archive is empty");
    *ret_bytes = imp->bytes;
    if (r < 0)
        (void)unlink(imp->path);
    free_import(imp);
    return r;
}

void hf_template_import_abort(struct hf_template_import *imp)
{
    if (!imp)
        return;
    (void)unlink(imp->path);
    free_import(imp);
}

static unsigned env_number(const char *name)
{
    const char *s = getenv(name);
    return s ? (unsigned)strtoul(s, NULL, 10) : 0;
}

int hf_cell_driver_new(uv_loop_t *loop, const struct hf_driver_config *cfg, struct hf_driver **ret,
                       struct hf_err *err)
{
    struct hf_fake *f = hf_fake_new(loop, cfg->run_dir);
    f->create_ms = env_number("HF_FAKE_CREATE_MS");
    f->destroy_ms = env_number("HF_FAKE_DESTROY_MS");
    hf_fake_watch(f);
    *ret = &f->base;
    return 0;
}

int hf_disk_pool_close(const char *data_dir, const char *run_dir, struct hf_err *err)
{
    return 0;
}
