/* Removing what is left of a cell. The kernel does most of it when the supervisor dies: PID 1 gets SIGKILL
 * and takes its namespace along, mounts and loop devices follow their last user. What remains is to wait for
 * that, and to remove the cgroup, the image and the directory. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/path.h"
#include "engine/cell/cell.h"

#define REMOVE_TIMEOUT_MS 10000u
#define SUPERVISOR_TIMEOUT_MS 1000u /* then it is killed */
#define VOLUME_TIMEOUT_MS 2000u
#define PAUSE_MIN_US 100u
#define PAUSE_MAX_US 5000u

/* Short at first: the usual wait is for a process that is just ending. */
static void pause_once(unsigned *us)
{
    struct timespec ts = {0, (long)*us * 1000};
    (void)nanosleep(&ts, NULL);
    *us = HF_MIN(*us * 2, PAUSE_MAX_US);
}

/* Waits until nobody holds the file's lock. 0 also when the file is missing; -EBUSY after the timeout. */
static int wait_unlocked(const char *path, uint64_t timeout_ms)
{
    hf_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    unsigned us = PAUSE_MIN_US;
    for (uint64_t end = hf_mono_ms() + timeout_ms;;) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return 0;
        if (errno != EWOULDBLOCK)
            return -errno;
        if (hf_mono_ms() >= end)
            return -EBUSY;
        pause_once(&us);
    }
}

static int remove_cgroup(const struct cell_driver *d, uint32_t n, struct hf_err *err)
{
    unsigned us = PAUSE_MIN_US;
    for (uint64_t end = hf_mono_ms() + REMOVE_TIMEOUT_MS;;) {
        int r = hf_cg_remove(&d->cg, n);
        if (r == 0)
            return 0;
        if (r != -EBUSY || hf_mono_ms() >= end)
            return hf_err_set(err, r, "cannot remove the cgroup of cell %u: %s", n, strerror(-r));
        hf_cg_kill(&d->cg, n);
        pause_once(&us);
    }
}

static int remove_image(const struct hf_cell_spec *s, struct hf_err *err)
{
    int r = wait_unlocked(s->image, REMOVE_TIMEOUT_MS);
    if (r < 0)
        return hf_err_set(err, r, "the image %s is still in use: %s", s->image, strerror(-r));
    if (unlink(s->image) < 0 && errno != ENOENT)
        return hf_err_set(err, -errno, "cannot remove %s: %s", s->image, strerror(errno));
    /* A new sandbox may mount the same workspace at once. Somebody else's lock is no failure of ours. */
    for (size_t i = 0; i < s->n_mounts; i++)
        if (!s->mounts[i].read_only)
            (void)!wait_unlocked(s->mounts[i].image, VOLUME_TIMEOUT_MS);
    return 0;
}

int cell_remains_remove(const struct cell_driver *d, const struct hf_cell_spec *spec, struct hf_err *err)
{
    char lock[HF_CELL_PATH_MAX + 8];
    (void)snprintf(lock, sizeof(lock), "%s/spec", spec->dir);
    int r = wait_unlocked(lock, SUPERVISOR_TIMEOUT_MS);
    if (r == -EBUSY) {
        cell_kill_supervisor(spec->dir);
        r = wait_unlocked(lock, REMOVE_TIMEOUT_MS);
    }
    if (r < 0)
        return hf_err_set(err, r, "the supervisor of cell %u does not end: %s", spec->n, strerror(-r));
    hf_killpoint("destroy.killed");
    r = remove_cgroup(d, spec->n, err);
    if (r < 0)
        return r;
    hf_killpoint("destroy.cgroup");
    r = remove_image(spec, err);
    if (r < 0)
        return r;
    hf_killpoint("destroy.image");
    cell_unplug(spec);
    hf_killpoint("destroy.unplugged");
    /* Last: while the directory exists, nobody else takes the number. */
    r = hf_remove_tree(spec->dir);
    if (r < 0)
        return hf_err_set(err, r, "cannot remove %s: %s", spec->dir, strerror(-r));
    hf_killpoint("destroy.dir");
    return 0;
}
