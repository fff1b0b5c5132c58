/* Saving the box into a directory: processes and writable layer, cut at one barrier. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/path.h"
#include "engine/disk/loop.h"
#include "engine/shim/shim.h"

struct save {
    char dir[HF_CELL_PATH_MAX];
    bool memory, end;
    int dir_fd;
    uint64_t frozen_at_us;
    uint64_t cpu_ns,
        disk_writes; /* while it stood still: by them it is told later whether anything happened */
};

static uint64_t now_us(void)
{
    return hf_mono_ns() / 1000;
}

int shim_freeze(struct shim *s, bool frozen, struct hf_err *err)
{
    if (s->frozen == frozen)
        return 0;
    int r = hf_cg_freeze(&s->cg, s->spec.n, frozen, err);
    if (r == 0)
        s->frozen = frozen;
    return r;
}

int shim_freeze_request(struct shim *s, struct hf_str text, struct hf_err *err)
{
    struct hf_str state = hf_kv_get(text, "state");
    if (!hf_str_eq(state, "frozen") && !hf_str_eq(state, "thawed"))
        return hf_err_set(err, -EINVAL, "the request is malformed");
    return shim_freeze(s, hf_str_eq(state, "frozen"), err);
}

/* All who could write stand still, and the file system is flushed a second time, which is short. The image is
 * then one with a journal to replay, a matter of a millisecond at its start. FIFREEZE would leave one
 * without, but waits for several grace periods of the kernel: 30 to 45 ms that the box feels. */
static int save_disk(struct shim *s, const struct save *job, struct hf_err *err)
{
    char path[HF_CELL_PATH_MAX + 16];
    (void)snprintf(path, sizeof(path), "%s/disk.img", job->dir);
    if (unlink(path) < 0 && errno != ENOENT)
        return hf_err_set(err, -errno, "cannot remove %s: %s", path, strerror(errno));
    if (syncfs(s->disk_fd) < 0)
        return hf_err_set(err, -errno, "cannot flush the writable layer: %s", strerror(errno));
    int r = hf_disk_clone(s->spec.image, path, err);
    if (r < 0)
        return r;
    hf_killpoint("shim.save-disk");
    return 0;
}

/* What a start from here needs to know, for shims of this and of later builds. */
static int save_facts(const struct shim *s, const struct save *job, struct hf_err *err)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    int r = hf_kv_add_u64(&b, "version", 1);
    if (r == 0)
        r = hf_cell_spec_write(&s->spec, &b);
    if (r == 0 && job->memory)
        r = shim_memory_facts(s, &b);
    hf_auto_close int fd =
        r < 0 ? r : openat(job->dir_fd, "box", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (r == 0)
        r = fd < 0 ? -errno : hf_write_all(fd, b.p, b.n);
    return r < 0 ? hf_err_set(err, r, "cannot write %s/box: %s", job->dir, strerror(-r)) : 0;
}

static int save_stopped(struct shim *s, const struct save *job, struct hf_err *err)
{
    int r = 0;
    if (job->memory)
        r = shim_memory_dump(s, job->dir_fd, err);
    if (r == 0)
        r = save_disk(s, job, err);
    return r == 0 ? save_facts(s, job, err) : r;
}

static int run(struct shim *s, struct save *job, struct hf_err *err)
{
    /* What is dirty is written out before anybody has to wait for it. */
    if (syncfs(s->disk_fd) < 0)
        return hf_err_set(err, -errno, "cannot flush the writable layer: %s", strerror(errno));
    int r = hf_disk_flush(s->spec.image, err);
    if (r < 0)
        return r;
    bool was = s->frozen;
    hf_killpoint("shim.save-begin");
    job->frozen_at_us = now_us();
    r = shim_freeze(s, true, err);
    if (r == 0)
        r = save_stopped(s, job, err);
    if (r == 0) {
        struct hf_cg_stats st;
        hf_cg_read_stats(&s->cg, s->spec.n, &st);
        job->cpu_ns = st.cpu_ns;
        job->disk_writes = hf_block_writes(s->disk_dev);
    }
    if (r == 0 && job->end) {
        s->saved = true;
        hf_killpoint("shim.save-end");
        return 0; /* it stays stopped until the daemon has made the save durable, and destroys it */
    }
    struct hf_err thaw = {0};
    if (!was && shim_freeze(s, false, &thaw) < 0 && r == 0)
        r = hf_err_set(err, thaw.r, "%s", thaw.msg);
    return r;
}

/* A daemon that starts meanwhile shall not take us for dead. */
static int mark(const struct shim *s, bool saving, struct hf_err *err)
{
    if (saving) {
        int r = shim_write_file(s, HF_CELL_SAVING, "", 0);
        return r < 0 ? hf_err_set(err, r, "cannot write in %s: %s", s->spec.dir, strerror(-r)) : 0;
    }
    char path[HF_CELL_PATH_MAX + 16];
    (void)snprintf(path, sizeof(path), "%s/%s", s->spec.dir, HF_CELL_SAVING);
    (void)unlink(path);
    return 0;
}

int shim_save(struct shim *s, struct hf_str text, struct hf_buf *more, struct hf_err *err)
{
    struct save job = {
        .dir_fd = -1, .memory = hf_kv_u64(text, "memory", 0) != 0, .end = hf_kv_u64(text, "end", 0) != 0};
    uint64_t begin = now_us();
    int r = hf_kv_copy(text, "dir", job.dir, sizeof(job.dir));
    if (r < 0 || job.dir[0] != '/')
        return hf_err_set(err, r < 0 ? r : -EINVAL, "the request is malformed");
    hf_auto_close int dir = open(job.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dir < 0)
        return hf_err_set(err, -errno, "cannot open %s: %s", job.dir, strerror(errno));
    job.dir_fd = dir;
    r = mark(s, true, err);
    if (r < 0)
        return r;
    r = run(s, &job, err);
    (void)mark(s, false, NULL);
    if (r < 0)
        return r;
    uint64_t end = now_us();
    const struct {
        const char *name;
        uint64_t value;
    } facts[] = {{"frozen_us", end - job.frozen_at_us},
                 {"total_us", end - begin},
                 {"cpu_ns", job.cpu_ns},
                 {"disk_writes", job.disk_writes}};
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(facts); i++)
        r = hf_kv_add_u64(more, facts[i].name, facts[i].value);
    return r;
}
