/* Starting a box from its memory image (docs/adr/0017).
 *
 * CRIU makes the new namespaces. When they exist and nothing else does (its stage setup-namespaces) the box's
 * tree is built in them by the code that builds a new box's; CRIU then takes each of its mounts from there.
 * Before the first instruction of a restored process (pre-resume) the generation, the names and the wire are
 * the new ones. */
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/fault.h"
#include "base/id.h"
#include "base/path.h"
#include "engine/shim/criu.h"
#include "engine/shim/memory.h"
#include "engine/shim/shim.h"
#include "preload/reseed.h"

#define PLACE "/run" /* covered by the stage, in the new mount namespace only: every uid can reach it */
#define USERNS_IMAGE_MAX 4096u
#define USERNS_FILE "userns.img" /* in RUN/<n> */
#define IMAGES_LINK "images"     /* likewise: CRIU wants to read where its directory of images leads */

struct restore {
    struct shim *s;
    struct hf_buf text; /* dir/box */
    int tar_fd;
    char userns[64]; /* name of its image */
};

static struct hf_str facts(const struct restore *r)
{
    return (struct hf_str){r->text.p, r->text.n};
}

/* ---- the images: the saved ones, with the user namespace's covered by one that has our range of ids ---- */

static void put_extent(struct hf_buf *b, unsigned field, uint32_t base)
{
    /* uid_gid_extent {1 first, 2 lower_first, 3 count} as varints */
    unsigned char in[24];
    size_t n = 0;
    const uint32_t values[] = {0, base, HF_CELL_UIDS};
    for (unsigned i = 0; i < 3; i++) {
        in[n++] = (unsigned char)((i + 1) << 3);
        uint32_t v = values[i];
        do {
            in[n] = (unsigned char)(v & 0x7f);
            v >>= 7;
            in[n++] |= v ? 0x80 : 0;
        } while (v);
    }
    unsigned char head[2] = {(unsigned char)(field << 3 | 2), (unsigned char)n};
    (void)!hf_buf_add(b, head, sizeof(head));
    (void)!hf_buf_add(b, in, n);
}

/* An image is two magic numbers, a length and a message. */
static int write_userns(const struct restore *r, int mem_fd, int work_fd)
{
    unsigned char magic[8];
    hf_auto_close int in = openat(mem_fd, r->userns, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (in < 0 || pread(in, magic, sizeof(magic), 0) != (ssize_t)sizeof(magic))
        return in < 0 ? -errno : -EBADMSG;
    hf_auto_buf struct hf_buf maps = HF_BUF_INIT(USERNS_IMAGE_MAX);
    put_extent(&maps, 1, r->s->uid_base);
    put_extent(&maps, 2, r->s->uid_base);
    uint32_t size = (uint32_t)maps.n;
    hf_auto_close int out = openat(work_fd, USERNS_FILE, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (out < 0 || fchmod(out, 0644) < 0)
        return -errno;
    int e = hf_write_all(out, magic, sizeof(magic));
    if (e == 0)
        e = hf_write_all(out, &size, sizeof(size));
    return e == 0 ? hf_write_all(out, maps.p, maps.n) : e;
}

/* The name of the image, "" when there is none: the processes were in no user namespace of their own. */
static int find_userns(int mem_fd, char *name, size_t cap)
{
    name[0] = '\0';
    DIR *d = fdopendir(fcntl(mem_fd, F_DUPFD_CLOEXEC, 0));
    if (!d)
        return -errno;
    for (struct dirent *e; (e = readdir(d));)
        if (hf_str_starts(hf_str_c(e->d_name), "userns-"))
            (void)snprintf(name, cap, "%s", e->d_name);
    (void)closedir(d);
    return name[0] ? 0 : -ENOENT;
}

static int open_images(struct restore *r, int work_fd, struct hf_err *err)
{
    const struct hf_cell_spec *spec = &r->s->spec;
    hf_auto_close int from = open(spec->from, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    hf_auto_close int mem =
        from < 0 ? -1 : openat(from, "mem", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    hf_auto_close int box = mem < 0 ? -1 : openat(from, "box", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    r->tar_fd = box < 0 ? -1 : openat(from, "tmpfs.tar", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (r->tar_fd < 0)
        return hf_err_set(err, -errno, "the memory image in %s is not complete: %s", spec->from,
                          strerror(errno));
    char chunk[4096];
    ssize_t n;
    while ((n = read(box, chunk, sizeof(chunk))) > 0)
        if (hf_buf_add(&r->text, chunk, (size_t)n) < 0)
            return hf_err_set(err, -EBADMSG, "%s/box is too long", spec->from);
    int e = find_userns(mem, r->userns, sizeof(r->userns));
    if (e == 0)
        e = write_userns(r, mem, work_fd);
    hf_auto_free char *images = hf_xasprintf("%s/mem", spec->from);
    if (e == 0 && symlinkat(images, work_fd, IMAGES_LINK) < 0)
        e = -errno;
    return e < 0 ? hf_err_set(err, e, "cannot prepare the memory image: %s", strerror(-e)) : 0;
}

/* ---- the tree, built in the new namespaces ---- */

/* In the box's pid namespace, which /proc needs; nothing of the box runs yet. */
static int build(const struct restore *r, int place_fd, struct hf_err *err)
{
    if (setresgid(0, 0, 0) < 0 || setgroups(0, NULL) < 0 || setresuid(0, 0, 0) < 0)
        return hf_err_set(err, -errno, "cannot become root of the sandbox: %s", strerror(errno));
    int e = shim_loopback_up(err);
    if (e < 0)
        return e;
    hf_auto_close int root = shim_root_stage(r->s, place_fd, err);
    if (root < 0)
        return root;
    return shim_tmpfs_load(r->tar_fd, root, err);
}

HF_NORETURN static void builder(const struct restore *r, int out)
{
    struct hf_err e = {0};
    hf_auto_close int place = -1;
    if (setns(r->s->pidfd, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET) < 0)
        (void)hf_err_set(&e, -errno, "cannot enter the new namespaces: %s", strerror(errno));
    else if ((place = open(PLACE, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
        (void)hf_err_set(&e, -errno, "cannot open %s: %s", PLACE, strerror(errno));
    pid_t pid = e.r ? -1 : fork();
    if (pid == 0) {
        if (build(r, place, &e) < 0)
            (void)!hf_write_all(out, &e, sizeof(e));
        _exit(e.r != 0);
    }
    if (e.r == 0 && pid < 0)
        (void)hf_err_set(&e, -errno, "cannot start a process: %s", strerror(errno));
    int status = 0;
    if (e.r == 0 && (waitpid(pid, &status, 0) < 0 || status))
        _exit(1);
    if (e.r)
        (void)!hf_write_all(out, &e, sizeof(e));
    _exit(e.r != 0);
}

static int build_tree(struct restore *r, struct hf_err *err)
{
    int fds[2], status = 0;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return hf_err_set(err, -errno, "cannot make a pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0)
        builder(r, fds[1]);
    (void)close(fds[1]);
    struct hf_err said;
    ssize_t n = pid < 0 ? -1 : read(fds[0], &said, sizeof(said));
    (void)close(fds[0]);
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return hf_err_set(err, -EAGAIN, "cannot start a process: %s", strerror(errno));
    if (n == (ssize_t)sizeof(said))
        return hf_err_set(err, said.r, "%s", said.msg);
    return status ? hf_err_set(err, -EIO, "building the root ended with status %d", status) : 0;
}

static int on_namespaces(struct restore *r, pid_t pid, struct hf_err *err)
{
    struct shim *s = r->s;
    hf_killpoint("shim.restore-namespaces");
    s->pid = pid;
    s->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pid <= 0 || s->pidfd < 0)
        return hf_err_set(err, -ESRCH, "the restored sandbox's first process is gone");
    int e = shim_map_mounts(s, err);
    if (e == 0)
        e = build_tree(r, err);
    if (e == 0)
        e = shim_join(s, err);
    hf_killpoint("shim.restore-built");
    return e == 0 && s->spec.network ? shim_plug(s, true, err) : e;
}

/* ---- the last moment before they run ---- */

static void write_identity(struct shim *s, int root_fd, const void *arg)
{
    (void)arg;
    shim_write_generation(root_fd, s->spec.generation);
    if (!s->spec.clone)
        return;
    shim_write_boot_id(root_fd);
    unsigned char id[16];
    char text[34];
    hf_auto_close int fd = hf_open_in_root_nolink(root_fd, "etc/machine-id", O_WRONLY | O_NONBLOCK, 0);
    hf_random(id, sizeof(id));
    hf_hex(id, sizeof(id), text);
    text[32] = '\n';
    if (fd >= 0 && pwrite(fd, text, 33, 0) == 33)
        (void)!ftruncate(fd, 33);
}

/* Whether a process catches the signal, by the library that we put there: who has it mapped, and no other
 * handler. */
static bool wants_reseed(pid_t pid)
{
    char path[48];
    hf_auto_free char *status = NULL, *maps = NULL;
    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    const char *at = hf_read_file(path, 65536, &status, NULL) == 0 ? strstr(status, "SigCgt:") : NULL;
    if (!at || !(strtoull(at + 7, NULL, 16) >> (HF_RESEED_SIGNAL - 1) & 1))
        return false;
    (void)snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    return hf_read_file(path, 4u << 20, &maps, NULL) == 0 && strstr(maps, HF_RESEED_PATH);
}

/* A pending signal is handled before the first instruction. */
static void reseed(const struct shim *s)
{
    hf_auto_free char *text = hf_cg_procs(&s->cg, s->spec.n);
    char *save = NULL;
    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        pid_t pid = (pid_t)strtol(line, NULL, 10);
        if (pid > 1 && pid != s->pid && wants_reseed(pid))
            (void)kill(pid, HF_RESEED_SIGNAL);
    }
}

static int on_complete(struct restore *r, struct hf_err *err)
{
    struct shim *s = r->s;
    hf_killpoint("shim.restore-complete");
    const char *name = s->spec.sandbox_id;
    if (sethostname(name, strlen(name)) < 0)
        return hf_err_set(err, -errno, "cannot set the host name: %s", strerror(errno));
    int e = shim_as_box_root(s, write_identity, NULL, err);
    if (e == 0 && s->spec.clone)
        reseed(s);
    return e;
}

static int on_stage(void *arg, struct hf_str stage, pid_t pid, struct hf_err *err)
{
    struct restore *r = arg;
    if (hf_str_eq(stage, "setup-namespaces"))
        return on_namespaces(r, pid, err);
    return hf_str_eq(stage, "pre-resume") ? on_complete(r, err) : 0;
}

/* ---- the request ---- */

/* CRIU and what it restores are where the box is limited; its own few processes end before that matters. */
static int prepare_criu(void *arg)
{
    const struct restore *r = arg;
    const struct hf_cell_spec *spec = &r->s->spec;
    struct hf_err err = {0};
    if (r->s->cg.version &&
        (hf_cg_enter(&r->s->cg, spec->n, 0, &err) < 0 || hf_cg_enter_user(&r->s->cg, spec->n, 0, &err) < 0))
        return err.r;
    hf_auto_free char *ours = hf_xasprintf("%s/" USERNS_FILE, spec->dir);
    hf_auto_free char *saved = hf_xasprintf("%s/mem/%s", spec->from, r->userns);
    if (unshare(CLONE_NEWCGROUP | CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0 ||
        mount(ours, saved, NULL, MS_BIND, NULL) < 0)
        return -errno;
    return 0;
}

static void inherit(struct restore *r, struct hf_criu_request *q, int role, int fd)
{
    char key[64];
    if (hf_kv_copy(facts(r), shim_outside_roles[role], key, sizeof(key)) < 0 || !key[0])
        return;
    /* By its whole key a file would be opened again, with the box's rights; by the name that CRIU makes of
     * the key, which lacks the first letter, the descriptor itself is taken. */
    hf_criu_opt_inherit(q, hf_str_starts(hf_str_c(key), "file[") ? key + 1 : key, fd);
}

static int fill_request(struct restore *r, struct hf_criu_request *q, int work_fd)
{
    const struct {
        enum hf_criu_opt opt;
        uint64_t value;
    } ints[] = {
        {CRIU_IMAGES_DIR_FD, (uint64_t)-1},
        {CRIU_WORK_DIR_FD, (uint64_t)work_fd},
        {CRIU_RST_SIBLING, 1},
        {CRIU_FILE_LOCKS, 1},
        {CRIU_LOG_LEVEL, 1},
        {CRIU_NOTIFY_SCRIPTS, 1},
        {CRIU_LINK_REMAP, 1},
        {CRIU_MANAGE_CGROUPS_MODE, 0},
        {CRIU_EMPTY_NS, CLONE_NEWNET},
        {CRIU_TCP_CLOSE, 1},
        {CRIU_NETWORK_LOCK, 3},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(ints); i++)
        hf_criu_opt_int(q, ints[i].opt, ints[i].value);
    hf_criu_opt_text(q, CRIU_LOG_FILE, SHIM_RESTORE_LOG);
    hf_criu_opt_text(q, CRIU_ROOT, PLACE "/plain");
    hf_auto_free char *images = hf_xasprintf("%s/" IMAGES_LINK, r->s->spec.dir);
    hf_criu_opt_text(q, CRIU_IMAGES_DIR, images);
    struct hf_str k, v;
    unsigned n = 0;
    for (size_t pos = 0; hf_kv_next(facts(r), &pos, &k, &v);) {
        if (!v.p || !hf_str_eq(k, "at"))
            continue;
        hf_auto_free char *text = hf_xasprintf("mnt[m%u]:" PLACE "/root%.*s", n++, (int)v.n, v.p);
        hf_criu_opt_text(q, CRIU_EXTERNAL, text);
    }
    return n ? 0 : -EBADMSG;
}

/* The descriptors that PID 1 gets from outside, anew. */
static int run(struct restore *r, int work_fd, struct hf_err *err)
{
    struct shim *s = r->s;
    hf_auto_close int words = -1;
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return hf_err_set(err, -errno, "cannot make a pipe: %s", strerror(errno));
    s->stderr_fd = pipe_fds[0];
    words = pipe_fds[1];
    /* As PID 1 had made them; the descriptors are taken as they are. */
    if (hf_kv_u64(facts(r), SHIM_LISTENERS_NONBLOCK, 0)) {
        (void)fcntl(s->ctl_fd, F_SETFL, O_NONBLOCK);
        (void)fcntl(s->envd_sock_fd, F_SETFL, O_NONBLOCK);
    }
    struct hf_criu_request q = {.type = CRIU_RESTORE,
                                .opts = HF_BUF_INIT(HF_CRIU_MSG_MAX),
                                .before_exec = prepare_criu,
                                .notify = on_stage,
                                .arg = r};
    int e = fill_request(r, &q, work_fd);
    if (e < 0)
        e = hf_err_set(err, e, "%s/box is not what a save writes", s->spec.from);
    const int fds[SHIM_OUTSIDE_N] = {words,
                                     s->ctl_fd,
                                     s->envd_sock_fd,
                                     s->cg_fds.mem_current,
                                     s->cg_fds.mem_max,
                                     s->cg_fds.mem_stat,
                                     s->cg_fds.cpu,
                                     s->cg_fds.user_threads};
    for (int role = 0; e == 0 && role < SHIM_OUTSIDE_N; role++)
        inherit(r, &q, role, fds[role]);
    if (e == 0)
        e = hf_criu_run(s->spec.criu, &q, work_fd, SHIM_RESTORE_LOG, err);
    hf_criu_request_done(&q);
    return e;
}

int shim_restore(struct shim *s, struct hf_err *err)
{
    struct restore r = {.s = s, .text = HF_BUF_INIT(HF_SHIM_MSG_MAX * 4), .tar_fd = -1};
    hf_auto_close int work = open(s->spec.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int e = work < 0 ? hf_err_set(err, -errno, "cannot open %s: %s", s->spec.dir, strerror(errno)) : 0;
    if (e == 0 && !s->spec.criu[0])
        e = hf_err_set(err, -EOPNOTSUPP, "this host has no CRIU: ./dev setup, or see holdfast doctor");
    if (e == 0)
        e = open_images(&r, work, err);
    hf_killpoint("shim.restore-begin");
    if (e == 0)
        e = run(&r, work, err);
    hf_killpoint("shim.restore-done");
    (void)hf_close(r.tar_fd);
    hf_buf_done(&r.text);
    return e;
}
