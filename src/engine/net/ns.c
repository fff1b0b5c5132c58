#include "engine/net/ns.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "base/buf.h"
#include "base/fault.h"
#include "base/path.h"

#define NETNS_DIR "/run/netns"
#define LOCK_DIR "/run/holdfast"
#define NFT_ERRORS_MAX 4096u

extern char **environ;

/* ---- a thread elsewhere ---- */

struct job {
    int ns_fd, r;
    int (*fn)(void *arg);
    void *arg;
};

static void *job_main(void *arg)
{
    struct job *j = arg;
    int r = j->ns_fd < 0 ? unshare(CLONE_NEWNET) : setns(j->ns_fd, CLONE_NEWNET);
    j->r = r < 0 ? -errno : j->fn(j->arg);
    return NULL;
}

int hf_ns_run(int ns_fd, int (*fn)(void *arg), void *arg)
{
    struct job j = {ns_fd, 0, fn, arg};
    pthread_t t;
    int r = pthread_create(&t, NULL, job_main, &j);
    if (r)
        return -r;
    (void)pthread_join(t, NULL);
    return j.r;
}

/* ---- pins ---- */

int hf_ns_open(const char *path)
{
    hf_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    struct statfs fs;
    if (fstatfs(fd, &fs) < 0)
        return -errno;
    return fs.f_type == NSFS_MAGIC ? hf_take_fd(&fd) : -ENOENT;
}

/* As iproute2 does it: mounts below /run/netns must reach every mount namespace, or one could not unmount a
 * namespace that another still holds. */
static int share_netns_dir(struct hf_err *err)
{
    int r = hf_mkdir_p(NETNS_DIR, 0755);
    if (r < 0)
        return hf_err_set(err, r, "%s: %s", NETNS_DIR, strerror(-r));
    if (mount("", NETNS_DIR, "none", MS_SHARED | MS_REC, NULL) == 0)
        return 0;
    if (errno != EINVAL || mount(NETNS_DIR, NETNS_DIR, "none", MS_BIND | MS_REC, NULL) < 0 ||
        mount("", NETNS_DIR, "none", MS_SHARED | MS_REC, NULL) < 0)
        return hf_err_set(err, -errno, "%s: making the mount shared: %s", NETNS_DIR, strerror(errno));
    return 0;
}

static int pin_own(void *arg)
{
    return mount("/proc/thread-self/ns/net", arg, "none", MS_BIND, NULL) < 0 ? -errno : 0;
}

int hf_ns_pin(const char *path, int *ret_fd, bool *ret_made, struct hf_err *err)
{
    int fd = hf_ns_open(path);
    *ret_made = fd == -ENOENT;
    if (fd == -ENOENT) {
        int r = share_netns_dir(err);
        if (r < 0)
            return r;
        hf_auto_close int file = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0444);
        if (file < 0)
            return hf_err_set(err, -errno, "%s: %s", path, strerror(errno));
        hf_killpoint("net.ns.file");
        r = hf_ns_run(-1, pin_own, (void *)path);
        if (r < 0)
            return hf_err_set(err, r, "making the network namespace %s: %s", path, strerror(-r));
        hf_killpoint("net.ns.pinned");
        fd = hf_ns_open(path);
    }
    if (fd < 0)
        return hf_err_set(err, fd, "%s: %s", path, strerror(-fd));
    *ret_fd = fd;
    return 0;
}

int hf_ns_unpin(const char *path, struct hf_err *err)
{
    if (umount2(path, MNT_DETACH) < 0 && errno != EINVAL && errno != ENOENT)
        return hf_err_set(err, -errno, "unmounting %s: %s", path, strerror(errno));
    if (unlink(path) < 0 && errno != ENOENT)
        return hf_err_set(err, -errno, "removing %s: %s", path, strerror(errno));
    return 0;
}

/* ---- nft ---- */

const char *hf_nft_program(void)
{
    static const char *const paths[] = {"/usr/sbin/nft", "/sbin/nft", "/usr/local/sbin/nft", "/usr/bin/nft"};
    for (size_t i = 0; i < HF_ARRAY_LEN(paths); i++)
        if (access(paths[i], X_OK) == 0)
            return paths[i];
    return NULL;
}

struct load {
    const char *program;
    int in, out; /* the child's stdin and stderr */
    pid_t pid;
};

/* In the namespace's thread: the child is born there. */
static int spawn_nft(void *arg)
{
    struct load *l = arg;
    char *const argv[] = {(char *)"nft", (char *)"-f", (char *)"-", NULL};
    posix_spawn_file_actions_t fa;
    if (posix_spawn_file_actions_init(&fa) != 0)
        return -ENOMEM;
    int r = posix_spawn_file_actions_adddup2(&fa, l->in, STDIN_FILENO);
    r = r ? r : posix_spawn_file_actions_adddup2(&fa, l->out, STDOUT_FILENO);
    r = r ? r : posix_spawn_file_actions_adddup2(&fa, l->out, STDERR_FILENO);
    r = r ? r : posix_spawn(&l->pid, l->program, &fa, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&fa);
    return -r;
}

static int text_file(const char *text, size_t n)
{
    hf_auto_close int fd = memfd_create("holdfast-ruleset", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = hf_write_all(fd, text, n);
    if (r < 0)
        return r;
    return lseek(fd, 0, SEEK_SET) < 0 ? -errno : hf_take_fd(&fd);
}

/* What nft had to say, on one line. */
static void read_words(int fd, char *out, size_t max)
{
    ssize_t n = lseek(fd, 0, SEEK_SET) < 0 ? -1 : read(fd, out, max - 1);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\n")] = 0;
}

int hf_nft_load(int ns_fd, const char *text, size_t n, struct hf_err *err)
{
    struct load l = {.program = hf_nft_program()};
    if (!l.program)
        return hf_err_set(err, -ENOENT, "nft is not installed (apt install nftables)");
    hf_auto_close int in = text_file(text, n), out = memfd_create("holdfast-nft", MFD_CLOEXEC);
    if (in < 0 || out < 0)
        return hf_err_set(err, in < 0 ? in : -errno, "running nft: %s", strerror(in < 0 ? -in : errno));
    l.in = in;
    l.out = out;
    int r = ns_fd < 0 ? spawn_nft(&l) : hf_ns_run(ns_fd, spawn_nft, &l), status = 0;
    if (r < 0)
        return hf_err_set(err, r, "running %s: %s", l.program, strerror(-r));
    while (waitpid(l.pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    char words[NFT_ERRORS_MAX];
    read_words(out, words, sizeof(words));
    return hf_err_set(err, -EIO, "nft refused the ruleset: %s", words);
}

/* ---- lock ---- */

static char *lock_path(const char *id)
{
    return hf_xasprintf("%s/net-%s.lock", LOCK_DIR, id);
}

/* The file that was locked is still the one of that name: its last holder may have removed it. */
static bool is_current(int fd, const char *path)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

int hf_ns_lock(const char *id, struct hf_err *err)
{
    int r = hf_mkdir_p(LOCK_DIR, 0755);
    hf_auto_free char *path = lock_path(id);
    if (r < 0)
        return hf_err_set(err, r, "%s: %s", LOCK_DIR, strerror(-r));
    for (;;) {
        hf_auto_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            return hf_err_set(err, -errno, "%s: %s", path, strerror(errno));
        while (flock(fd, LOCK_EX) < 0)
            if (errno != EINTR)
                return hf_err_set(err, -errno, "locking %s: %s", path, strerror(errno));
        if (is_current(fd, path))
            return hf_take_fd(&fd);
    }
}

void hf_ns_lock_remove(const char *id)
{
    hf_auto_free char *path = lock_path(id);
    (void)unlink(path);
}
