/* A warm box gets its sandbox: name, limits, volumes. Everything else was done when it was warmed. */
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/wait.h>

#include "base/fault.h"
#include "base/path.h"
#include "engine/shim/shim.h"

/* Files are written as the box's root, so that whatever the template has in /etc is reached with no more
 * right than it gives that root. */
int shim_as_box_root(struct shim *s, void (*fn)(struct shim *s, int root_fd, const void *arg),
                     const void *arg, struct hf_err *err)
{
    char path[48];
    (void)snprintf(path, sizeof(path), "/proc/%d/root", (int)s->pid);
    hf_auto_close int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return hf_err_set(err, -errno, "cannot open the sandbox's root: %s", strerror(errno));
    (void)setfsgid(s->uid_base);
    (void)setfsuid(s->uid_base);
    fn(s, root, arg);
    (void)setfsuid(0);
    (void)setfsgid(0);
    return 0;
}

static void write_names(struct shim *s, int root_fd, const void *name)
{
    (void)s;
    shim_write_names(root_fd, name);
}

static void write_generation(struct shim *s, int root_fd, const void *generation)
{
    (void)s;
    shim_write_generation(root_fd, *(const uint64_t *)generation);
}

/* We are in the box's uts namespace already. */
static int set_name(struct shim *s, const char *name, struct hf_err *err)
{
    if (sethostname(name, strlen(name)) < 0)
        return hf_err_set(err, -errno, "cannot set the host name: %s", strerror(errno));
    return shim_as_box_root(s, write_names, name, err);
}

/* In a child: becomes the box's root inside its mount namespace. It is in no pid namespace of the box, so
 * nothing there can see it. */
static int place_as_box_root(struct shim *s, const struct hf_cell_spec *want, struct hf_err *err)
{
    if (setns(s->pidfd, CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return hf_err_set(err, -errno, "cannot enter the sandbox: %s", strerror(errno));
    if (setresgid(0, 0, 0) < 0 || setgroups(0, NULL) < 0 || setresuid(0, 0, 0) < 0)
        return hf_err_set(err, -errno, "cannot become root of the sandbox: %s", strerror(errno));
    hf_auto_close int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = root < 0 ? hf_err_set(err, -errno, "cannot open the sandbox's root: %s", strerror(errno)) : 0;
    for (size_t i = 0; r == 0 && i < want->n_mounts; i++)
        r = shim_place_volume(root, s->volume_fd[i], want->mounts[i].path, err);
    return r;
}

static int place_volumes(struct shim *s, const struct hf_cell_spec *want, struct hf_err *err)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return hf_err_set(err, -errno, "cannot make a pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        struct hf_err e = {0};
        (void)place_as_box_root(s, want, &e);
        _exit(e.r && hf_write_all(fds[1], &e, sizeof(e)) < 0);
    }
    (void)close(fds[1]);
    struct hf_err said;
    ssize_t n = pid < 0 ? -1 : read(fds[0], &said, sizeof(said));
    (void)close(fds[0]);
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return hf_err_set(err, -EAGAIN, "cannot start a process: %s", strerror(errno));
    if (n == (ssize_t)sizeof(said))
        return hf_err_set(err, said.r, "%s", said.msg);
    return status ? hf_err_set(err, -EIO, "mounting volumes ended with status %d", status) : 0;
}

static int attach_volumes(struct shim *s, const struct hf_cell_spec *want, struct hf_err *err)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < want->n_mounts; i++) {
        s->volume_fd[i] = shim_volume_open(&want->mounts[i], err);
        r = s->volume_fd[i] < 0 ? s->volume_fd[i] : shim_idmap(s->volume_fd[i], s->userns_fd, err);
    }
    if (r == 0)
        r = place_volumes(s, want, err);
    for (size_t i = 0; i < want->n_mounts; i++)
        s->volume_fd[i] = hf_close(s->volume_fd[i]); /* the box holds what was placed */
    return r;
}

static int remember(const struct shim *s, const struct hf_cell_spec *want, struct hf_err *err)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    int r = hf_cell_claim_write(want, &b);
    if (r == 0)
        r = shim_write_file(s, "claim", b.p, b.n);
    return r < 0 ? hf_err_set(err, r, "cannot write the claim: %s", strerror(-r)) : 0;
}

int shim_claim(struct shim *s, struct hf_str text, struct hf_err *err)
{
    if (s->spec.sandbox_id[0])
        return hf_err_set(err, -EBUSY, "this box belongs to sandbox %s", s->spec.sandbox_id);
    struct hf_cell_spec want = s->spec;
    int r = hf_cell_claim_read(text, &want);
    if (r < 0 || !want.sandbox_id[0])
        return hf_err_set(err, r < 0 ? r : -EINVAL, "the claim is malformed");
    if (memcmp(&want.limits, &s->spec.limits, sizeof(want.limits)) != 0 && s->cg.version)
        r = hf_cg_limit(&s->cg, s->spec.n, &want.limits, s->disk_dev, err);
    if (r == 0)
        r = set_name(s, want.sandbox_id, err);
    if (r == 0 && want.generation != s->spec.generation)
        r = shim_as_box_root(s, write_generation, &want.generation, err);
    if (r == 0 && want.n_mounts)
        r = attach_volumes(s, &want, err);
    if (r == 0 && want.network && !s->wired) /* the rule is that a warm box is wired; serve.c unplugs */
        r = shim_wire(s, true, err);
    if (r == 0)
        r = remember(s, &want, err);
    if (r < 0)
        return r;
    s->spec = want;
    hf_killpoint("shim.claimed");
    return 0;
}
