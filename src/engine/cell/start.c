/* Cold starts: a directory, a spec, a supervisor. A bounded number at a time, first come first served. */
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/fault.h"
#include "base/path.h"
#include "engine/cell/cell.h"
#include "engine/disk/disk.h"

#define FD_LOW 10 /* descriptors that posix_spawn moves must not sit where others go */

struct start {
    struct hf_box *box;
    const struct cell_driver *d;
    uint32_t from; /* the first number to try */
    struct hf_cell_spec spec;
    int fd, pidfd;
    pid_t pid;
    struct hf_err err;
};

static int prepare_disk(struct start *j)
{
    struct hf_cell_spec *s = &j->spec;
    struct statx st;
    (void)snprintf(s->template_dir, sizeof(s->template_dir), "%s/templates/%s", j->d->run_dir,
                   s->template_id);
    (void)snprintf(s->image, sizeof(s->image), "%s/pool/cells/%u.img", j->d->data_dir, s->n);
    bool mounted = statx(AT_FDCWD, s->template_dir, AT_SYMLINK_NOFOLLOW, STATX_INO, &st) == 0 &&
                   st.stx_attributes & STATX_ATTR_MOUNT_ROOT;
    int r = mounted ? 0 : hf_disk_template_mount(j->d->data_dir, j->d->run_dir, s->template_id, &j->err);
    hf_auto_free char *blank = NULL;
    struct stat from;
    if (r == 0 && s->from[0]) {
        blank = hf_xasprintf("%s/disk.img", s->from);
        if (stat(blank, &from) < 0)
            return hf_err_set(&j->err, -errno, "cannot open the saved disk %s: %s", blank, strerror(errno));
        s->disk_bytes = (uint64_t)from.st_size;
    } else if (r == 0)
        r = hf_disk_blank(j->d->data_dir, s->disk_bytes, &blank, &j->err);
    if (r == 0 && (size_t)snprintf(s->blank, sizeof(s->blank), "%s", blank) >= sizeof(s->blank))
        r = hf_err_set(&j->err, -ENAMETOOLONG, "the path %s is too long", blank);
    /* A remain of that name belongs to no directory any more. */
    if (r == 0 && unlink(s->image) < 0 && errno != ENOENT)
        r = hf_err_set(&j->err, -errno, "cannot remove the old image %s: %s", s->image, strerror(errno));
    return r;
}

/* The spec's file is locked until the supervisor, which inherits the lock, is dead: what finds it unlocked
 * finds remains. Returns the descriptor. */
static int write_spec(struct start *j)
{
    char path[HF_CELL_PATH_MAX + 8];
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    int r = hf_cell_spec_write(&j->spec, &b);
    if (r < 0)
        return hf_err_set(&j->err, r, "cannot describe the cell: %s", strerror(-r));
    (void)snprintf(path, sizeof(path), "%s/spec", j->spec.dir);
    hf_auto_close int low = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    hf_auto_close int fd = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, FD_LOW);
    r = fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : hf_write_all(fd, b.p, b.n);
    return r < 0 ? hf_err_set(&j->err, r, "cannot write %s: %s", path, strerror(-r)) : hf_take_fd(&fd);
}

static int spawn_with(struct start *j, posix_spawn_file_actions_t *acts, posix_spawnattr_t *attr, int sock,
                      int lock)
{
    char spec[HF_CELL_PATH_MAX + 8];
    (void)snprintf(spec, sizeof(spec), "%s/spec", j->spec.dir);
    sigset_t none, all;
    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    int r =
        posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (r == 0)
        r = posix_spawnattr_setsigmask(attr, &none);
    if (r == 0)
        r = posix_spawnattr_setsigdefault(attr, &all);
    if (r == 0)
        r = posix_spawn_file_actions_addopen(acts, 0, "/dev/null", O_RDWR, 0);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(acts, 0, 1);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(acts, 0, 2);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(acts, sock, HF_SHIM_CLIENT_FD);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(acts, lock, HF_SHIM_LOCK_FD);
    if (r)
        return r;
    /* Nothing of our environment but the tests' kill point goes into a process that lives next to a box. */
    const char *point = getenv("HOLDFAST_KILLPOINT");
    hf_auto_free char *point_env = point ? hf_xasprintf("HOLDFAST_KILLPOINT=%s", point) : NULL;
    char *envp[] = {point_env, NULL};
    char arg0[] = "holdfast-shim";
    char *argv[] = {arg0, spec, NULL};
    return posix_spawn(&j->pid, j->d->shim_path, acts, attr, argv, envp);
}

static int spawn_shim(struct start *j, int lock)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return hf_err_set(&j->err, -errno, "cannot make a socket pair: %s", strerror(errno));
    hf_auto_close int mine = pair[0], low = pair[1];
    hf_auto_close int theirs = fcntl(low, F_DUPFD_CLOEXEC, FD_LOW);
    posix_spawn_file_actions_t acts;
    posix_spawnattr_t attr;
    if (theirs < 0 || posix_spawn_file_actions_init(&acts) != 0)
        return hf_err_set(&j->err, -EMFILE, "cannot start a supervisor: too many open files");
    int r = posix_spawnattr_init(&attr);
    if (r == 0) {
        r = spawn_with(j, &acts, &attr, theirs, lock);
        (void)posix_spawnattr_destroy(&attr);
    }
    (void)posix_spawn_file_actions_destroy(&acts);
    if (r)
        return hf_err_set(&j->err, -r, "cannot start %s: %s", j->d->shim_path, strerror(r));
    j->pidfd = (int)syscall(SYS_pidfd_open, j->pid, 0);
    if (j->pidfd < 0) {
        r = -errno;
        (void)kill(j->pid, SIGKILL);
        (void)waitpid(j->pid, NULL, 0);
        return hf_err_set(&j->err, r, "cannot watch the supervisor: %s", strerror(-r));
    }
    j->fd = hf_take_fd(&mine);
    return 0;
}

static void start_work(void *job)
{
    struct start *j = job;
    if (cell_number_take(j->d, j->from, &j->spec, &j->err) < 0)
        return;
    hf_killpoint("cell.mkdir");
    if (prepare_disk(j) < 0)
        return;
    hf_killpoint("cell.disk");
    hf_auto_close int lock = write_spec(j);
    if (lock < 0)
        return;
    hf_killpoint("cell.spec");
    if (spawn_shim(j, lock) == 0)
        hf_killpoint("cell.shim-started");
}

static void start_done(void *job)
{
    hf_auto_free struct start *j = job;
    struct hf_box *box = j->box;
    if (j->spec.n) {
        cell_box_number(box, j->spec.n);
        box->spec = j->spec;
        cell_number_used(box->d, j->spec.n);
    }
    if (j->err.r)
        cell_box_fail(box, &j->err);
    else
        cell_box_connect(box, j->fd, j->pidfd, j->pid);
}

static void start_now(struct hf_box *box)
{
    struct cell_driver *d = box->d;
    struct start *j = hf_new(struct start);
    j->box = box;
    j->d = d;
    j->fd = j->pidfd = -1;
    j->from = cell_number_next(d);
    j->spec = box->spec;
    (void)snprintf(j->spec.criu, sizeof(j->spec.criu), "%s", d->criu_path);
    box->state = CELL_STARTING;
    box->counted = true;
    d->starting++;
    d->warm_starting += box->warm;
    cell_job(d, start_work, start_done, j);
}

void cell_start_pump(struct cell_driver *d)
{
    while (!hf_list_empty(&d->queue) && d->starting < d->starts_max) {
        struct hf_box *box = hf_list_entry(d->queue.next, struct hf_box, turn);
        hf_list_del(&box->turn);
        start_now(box);
    }
}

void cell_start(struct hf_box *box)
{
    struct cell_driver *d = box->d;
    hf_list_add_tail(&d->queue, &box->turn);
    cell_start_pump(d);
}

void cell_start_over(struct hf_box *box)
{
    struct cell_driver *d = box->d;
    if (!box->counted)
        return;
    box->counted = false;
    d->starting--;
    d->warm_starting -= box->warm;
    cell_start_pump(d);
    cell_pool_fill(d);
    if (d->closing)
        cell_defer(d->base.loop, cell_close_soon, d);
}
