/* The doctor's checks of what pauses and snapshots need: the cgroup freezer, and CRIU for memory. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/path.h"
#include "cli/doctor.h"
#include "engine/driver.h"
#include "engine/shim/cgroup.h"
#include "engine/shim/criu.h"

#define FREEZE_MS (HF_CG_FREEZE_TIMEOUT_MS + HF_PROBE_MS)
#define MEMORY_MS 30000u
#define VERSION_MAX (1u << 20)
#define NO_PAUSE "no pause, no snapshot, no fork of a running sandbox"
#define NO_MEMORY "snapshots, forks and lasting pauses can keep files only, not running processes"

/* ---- the freezer ---- */

static int freeze_and_thaw(const struct hf_cg *cg, pid_t pid, struct hf_err *err)
{
    int r = hf_cg_create(cg, 1, err);
    if (r == 0)
        r = hf_cg_enter(cg, 1, pid, err);
    if (r == 0)
        r = hf_cg_freeze(cg, 1, true, err);
    if (r == 0 && !hf_cg_frozen(cg, 1))
        r = hf_err_set(err, -EIO, "the freezer says yes, and does nothing");
    return r == 0 ? hf_cg_freeze(cg, 1, false, err) : r;
}

/* In a cgroup of its own; only the freezer's hierarchy is touched. */
static int probe_freezer(void *arg, struct hf_err *err)
{
    const struct hf_doctor *d = arg;
    char group[HF_CG_GROUP_MAX];
    struct hf_cg cg;
    (void)snprintf(group, sizeof(group), "holdfast/doctor-%d", (int)getpid());
    hf_cg_probe(d->cfg->cgroup_root, group, &cg);
    if (!hf_cg_has(&cg, HF_CG_FREEZER))
        return hf_err_set(err, -EOPNOTSUPP, "%s has no freezer", d->cfg->cgroup_root);
    cg.present = 1u << HF_CG_FREEZER;
    int r = hf_cg_prepare(&cg, err);
    if (r < 0)
        return r;
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            (void)pause();
    }
    r = pid < 0 ? hf_err_set(err, -errno, "fork: %s", strerror(errno)) : freeze_and_thaw(&cg, pid, err);
    if (pid > 0) {
        hf_cg_kill(&cg, 1);
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
    (void)!hf_cg_remove(&cg, 1);
    hf_cg_unprepare(&cg);
    return r;
}

static void check_pause(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct hf_err err = {0};
    if (!d->root) {
        hf_check_set(ret, HF_CHECK_SKIP, "needs root to be tried");
        return;
    }
    if (hf_probe(probe_freezer, (void *)(uintptr_t)d, FREEZE_MS, &err) >= 0) {
        hf_check_set(ret, HF_CHECK_OK, "the cgroup freezer stopped a process and let it go on");
        return;
    }
    hf_check_set(ret, HF_CHECK_WARN, "%s", err.msg);
    hf_check_cost(ret, NO_PAUSE);
    hf_check_fix(ret, "mount the freezer below the cgroup root (v2 has it in every group), writable for us");
}

/* ---- memory images ---- */

struct trial {
    const char *criu, *dir;
    char version[32];
    struct hf_err said;
};

/* A process like a sandbox's: a session and a network namespace of its own, and an open socket whose other
 * end is outside (a CRIU without our patch can't save that). It executes something, so that what it has
 * mapped is of this mount namespace. */
HF_NORETURN static void become_patient(int outside)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (setsid() < 0 || unshare(CLONE_NEWNET) < 0 || null < 0)
        _exit(1);
    for (int fd = 0; fd <= 2; fd++)
        (void)dup2(null, fd);
    outside = fcntl(outside, F_DUPFD, 10);
    (void)dup2(outside, 3);
    (void)syscall(SYS_close_range, 4u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
    (void)execl("/bin/sleep", "sleep", "3600", (char *)NULL);
    _exit(1);
}

/* Its process id, once it has executed. */
static pid_t start_patient(int *ret_stream, struct hf_err *err)
{
    int pair[2], gate[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return hf_err_set(err, -errno, "a socket pair: %s", strerror(errno));
    hf_auto_close int mine = pair[0], theirs = pair[1];
    if (pipe2(gate, O_CLOEXEC) < 0)
        return hf_err_set(err, -errno, "pipe: %s", strerror(errno));
    hf_auto_close int executed = gate[0], closes = gate[1];
    pid_t pid = fork();
    if (pid == 0)
        become_patient(theirs);
    closes = hf_close(closes);
    char c;
    if (pid < 0 || read(executed, &c, 1) != 0 || waitpid(pid, NULL, WNOHANG) != 0)
        return hf_err_set(err, -EIO, "no process to be saved could be started");
    *ret_stream = hf_take_fd(&mine);
    return pid;
}

static int run_criu(const struct trial *t, enum hf_criu_type type, pid_t pid, struct hf_err *err)
{
    static const char *const logs[] = {[CRIU_DUMP] = "dump.log", [CRIU_RESTORE] = "restore.log"};
    hf_auto_close int dir = open(t->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct hf_criu_request q = {.type = type, .opts = HF_BUF_INIT(HF_CRIU_MSG_MAX)};
    if (dir < 0)
        return hf_err_set(err, -errno, "cannot open %s: %s", t->dir, strerror(errno));
    hf_criu_opt_int(&q, CRIU_IMAGES_DIR_FD, (uint64_t)dir);
    hf_criu_opt_int(&q, CRIU_WORK_DIR_FD, (uint64_t)dir);
    hf_criu_opt_int(&q, CRIU_LOG_LEVEL, 1);
    hf_criu_opt_text(&q, CRIU_LOG_FILE, logs[type]);
    hf_criu_opt_int(&q, CRIU_MANAGE_CGROUPS_MODE, 0);
    hf_criu_opt_int(&q, CRIU_EMPTY_NS, CLONE_NEWNET);
    hf_criu_opt_int(&q, CRIU_TCP_CLOSE, 1);
    hf_criu_opt_int(&q, CRIU_NETWORK_LOCK, 3);
    if (type == CRIU_DUMP)
        hf_criu_opt_int(&q, CRIU_PID, (uint64_t)pid);
    else
        hf_criu_opt_int(&q, CRIU_RST_SIBLING, 1);
    int r = hf_criu_run(t->criu, &q, dir, logs[type], err);
    hf_criu_request_done(&q);
    return r;
}

static int save_and_restore(const struct trial *t, struct hf_err *err)
{
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        return hf_err_set(err, -errno, "mounting /proc: %s", strerror(errno));
    hf_auto_close int stream = -1;
    pid_t pid = start_patient(&stream, err);
    if (pid < 0)
        return pid;
    int r = run_criu(t, CRIU_DUMP, pid, err);
    if (r < 0)
        return hf_err_wrap(err, "a process could not be saved");
    (void)waitpid(pid, NULL, 0);
    r = run_criu(t, CRIU_RESTORE, 0, err);
    if (r < 0)
        return hf_err_wrap(err, "a saved process could not be restored");
    return waitpid(pid, NULL, WNOHANG) == 0 ? 0 : hf_err_set(err, -EIO, "a restored process died at once");
}

static void read_version(struct trial *t)
{
    const char *const argv[] = {"criu", "--version", NULL};
    hf_auto_buf struct hf_buf out = HF_BUF_INIT(VERSION_MAX);
    if (hf_probe_run(t->criu, argv, &out) < 0 || hf_buf_add(&out, "", 1) < 0)
        return;
    const char *at = strstr(out.p, "Version: ");
    if (at)
        (void)snprintf(t->version, sizeof(t->version), "%.*s", (int)strcspn(at + 9, "\n"), at + 9);
}

/* The restored process gets the number that it had: in a process namespace of its own nobody else has it, and
 * whatever happens, all ends with its first process, which is of the probe's group. */
static int probe_memory(void *arg, struct hf_err *err)
{
    struct trial *t = arg;
    read_version(t);
    if (unshare(CLONE_NEWNS | CLONE_NEWPID) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return hf_err_set(err, -errno, "namespaces for a trial: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        t->said.r = save_and_restore(t, &t->said);
        _exit(0);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
        return hf_err_set(err, -EIO, "the trial died");
    *err = t->said;
    return t->said.r;
}

static void try_memory(struct trial *t, struct hf_check_result *ret)
{
    char dir[] = "/tmp/holdfast-doctor-XXXXXX";
    struct hf_err err = {0};
    t->dir = mkdtemp(dir);
    int r = t->dir ? hf_probe(probe_memory, t, MEMORY_MS, &err)
                   : hf_err_set(&err, -errno, "cannot make a directory in /tmp: %s", strerror(errno));
    if (t->dir)
        (void)!hf_remove_tree(dir);
    const char *version = *t->version ? t->version : "of no known version";
    if (r >= 0) {
        hf_check_set(ret, HF_CHECK_OK, "CRIU %s saved a process and restored it", version);
        return;
    }
    hf_check_set(ret, HF_CHECK_WARN, "CRIU %s at %s: %s", version, t->criu, err.msg);
    hf_check_cost(ret, NO_MEMORY);
    hf_check_fix(ret, "./dev setup builds the CRIU that is needed (the setting criu names another one)");
}

static void check_memory(const struct hf_doctor *d, struct hf_check_result *ret)
{
    const char *criu = *d->cfg->criu_path ? d->cfg->criu_path : HF_CRIU_PATH;
    if (access(criu, X_OK) < 0) {
        hf_check_set(ret, HF_CHECK_WARN, "no CRIU at %s: %s", criu, strerror(errno));
        hf_check_cost(ret, NO_MEMORY);
        hf_check_fix(ret, "./dev setup builds it there (the setting criu names another place)");
        return;
    }
    if (!d->root) {
        hf_check_set(ret, HF_CHECK_SKIP, "%s is there; needs root to be tried", criu);
        return;
    }
    struct trial *t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) {
        hf_check_set(ret, HF_CHECK_SKIP, "no memory to try it");
        return;
    }
    t->criu = criu;
    try_memory(t, ret);
    (void)munmap(t, sizeof(*t));
}

const struct hf_check hf_doctor_memory[] = {
    {"pause", "pauses (freezer)", check_pause},
    {"memory", "memory images (CRIU)", check_memory},
    {0},
};
