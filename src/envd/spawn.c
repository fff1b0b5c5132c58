#include "envd/spawn.h"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>

#include "base/path.h"
#include "envd/forker.h"
#include "envd/proc.h"

#define CANDIDATE_MAX 4096 /* bytes of one PATH entry joined with the command */

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static struct rlimit nofile_limit;
static bool raise_oom;

void spawn_setup(void)
{
    hf_auto_free char *text = NULL;
    size_t n;
    raise_oom = hf_read_file("/proc/self/oom_score_adj", 64, &text, &n) == 0 &&
                strtol(text, NULL, 10) < PROC_OOM_SCORE_ADJ;
    struct rlimit own;
    if (getrlimit(RLIMIT_NOFILE, &nofile_limit) < 0)
        return;
    own = nofile_limit; /* envd itself holds several descriptors a process; children get back the old limit */
    own.rlim_cur = own.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &own);
}

const char *spawn_stage_text(int stage)
{
    switch (stage) {
    case SPAWN_CGROUP:
        return "can't enter the user cgroup";
    case SPAWN_SESSION:
        return "can't make a session";
    case SPAWN_CREDS:
        return "can't take the user's identity";
    case SPAWN_CWD:
        return "can't enter the working directory";
    default:
        return "can't execute the command";
    }
}

/* ---- in the child: async-signal-safe only, no allocation ---- */

struct child {
    const struct spawn_req *q;
    int in, out, err; /* become 0, 1, 2 */
    int status;
    bool in_cgroup; /* forked there */
};

static HF_NORETURN void child_fail(const struct child *c, int stage, int err)
{
    struct spawn_failure f = {stage, err};
    (void)!write(c->status, &f, sizeof(f));
    _exit(127);
}

static void child_write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!write(fd, text, strlen(text));
        (void)close(fd);
    }
}

static void child_signals(void)
{
    struct sigaction dfl = {.sa_handler = SIG_DFL};
    for (int sig = 1; sig < NSIG; sig++)
        (void)sigaction(sig, &dfl, NULL);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* The libc wrappers of these calls signal all threads of the process; a fork of a process that may have
 * threads needs the bare system calls. */
static int child_creds(const struct envd_user *u)
{
    gid_t groups[ENVD_GROUPS_MAX + 1];
    size_t n = 0;
    groups[n++] = u->gid;
    for (int i = 0; i < u->n_groups; i++)
        if (u->groups[i] != u->gid)
            groups[n++] = u->groups[i];
    if (syscall(SYS_setgroups, n, groups) < 0)
        return -errno;
    if (syscall(SYS_setresgid, u->gid, u->gid, u->gid) < 0)
        return -errno;
    return syscall(SYS_setresuid, u->uid, u->uid, u->uid) < 0 ? -errno : 0;
}

static void child_stdio(const struct child *c)
{
    /* The status pipe goes to a number above the three, so that dup2 can't hit it. */
    (void)dup2(c->in, 0);
    (void)dup2(c->out, 1);
    (void)dup2(c->err, 2);
    (void)syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
}

static void child_complain(const char *cmd, const char *why)
{
    (void)!write(2, "/bin/sh: 1: exec: ", 18);
    (void)!write(2, cmd, strlen(cmd));
    (void)!write(2, why, strlen(why));
}

/* A file without #! is a script for the shell, as execvp(3) and every shell treat it. */
static void child_exec_script(const struct spawn_req *q, char *file)
{
    static char sh[] = "sh";
    q->argv[0] = sh;
    q->argv[1] = file;
    (void)execve("/bin/sh", q->argv, q->envp);
    errno = ENOEXEC;
}

static void child_try(const struct spawn_req *q, char *file)
{
    (void)execve(file, q->argv + 1, q->envp);
    if (errno == ENOEXEC)
        child_exec_script(q, file);
}

/* errno of the best failure: EACCES is kept over the ENOENT of later directories. */
static int child_search(const struct spawn_req *q)
{
    char file[CANDIDATE_MAX];
    size_t cmd_n = strlen(q->cmd);
    int seen = ENOENT;
    for (const char *dir = q->path; *dir;) {
        const char *end = strchrnul(dir, ':');
        size_t n = (size_t)(end - dir);
        if (n + 1 + cmd_n + 1 <= sizeof(file)) {
            memcpy(file, n ? dir : ".", n ? n : 1);
            n = n ? n : 1;
            file[n] = '/';
            memcpy(file + n + 1, q->cmd, cmd_n + 1);
            child_try(q, file);
            if (errno == EACCES ||
                (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG && seen == ENOENT))
                seen = errno;
        }
        dir = *end ? end + 1 : end;
    }
    return seen;
}

/* What a shell's `exec` does: look the command up, and say on stderr why it can't be executed. */
static HF_NORETURN void child_exec(const struct child *c)
{
    const struct spawn_req *q = c->q;
    int err;
    if (strchr(q->cmd, '/')) {
        child_try(q, q->argv[1]);
        err = errno;
    } else {
        err = child_search(q);
    }
    switch (err) {
    case ENOENT:
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP:
        child_complain(q->cmd, ": not found\n");
        _exit(127);
    case E2BIG:
    case ENOMEM:
    case EAGAIN:
        child_fail(c, SPAWN_EXEC, err);
    default:
        child_complain(q->cmd, err == ENOEXEC ? ": Exec format error\n" : ": Permission denied\n");
        _exit(126);
    }
}

/* fd is the file of a cgroup's processes or threads or, on cgroup v2, its directory. */
static bool enter_cgroup(int fd)
{
    if (write(fd, "0", 1) == 1)
        return true;
    if (errno != EISDIR && errno != EBADF) /* a directory is not open for writing */
        return false;
    int procs = openat(fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    return procs >= 0 && write(procs, "0", 1) == 1;
}

static HF_NORETURN void child_main(const struct child *c)
{
    const struct spawn_req *q = c->q;
    child_signals();
    if (q->cgroup_fd >= 0 && !c->in_cgroup && !enter_cgroup(q->cgroup_fd))
        child_fail(c, SPAWN_CGROUP, errno);
    /* envd is not dumpable, which closes files of /proc/self as well; exec(2) would set this anyway. */
    (void)prctl(PR_SET_DUMPABLE, 1);
    if (raise_oom)
        child_write_file("/proc/self/oom_score_adj", TEXT(PROC_OOM_SCORE_ADJ));
    if (setsid() < 0 || (q->pty && ioctl(c->in, TIOCSCTTY, 0) < 0))
        child_fail(c, SPAWN_SESSION, errno);
    (void)setrlimit(RLIMIT_NOFILE, &nofile_limit);
    (void)umask(022);
    int r = child_creds(q->user);
    if (r < 0)
        child_fail(c, SPAWN_CREDS, -r);
    if (chdir(q->cwd) < 0 && !(q->cwd_optional && chdir("/") == 0))
        child_fail(c, SPAWN_CWD, errno);
    child_stdio(c);
    child_exec(c);
}

static void child_of_forker(void *arg)
{
    child_main(arg);
}

/* ---- in envd ---- */

/* fork(2) without the C library's handlers. A box's seccomp filter answers clone3 with ENOSYS. */
static pid_t raw_fork(void)
{
    return (pid_t)syscall(SYS_clone, (unsigned long)SIGCHLD, 0UL, 0UL, 0UL, 0UL);
}

/* The forker's child is in the user cgroup already. When that is full (a fork bomb) or there is no forker,
 * envd forks itself, from its own reserve, and the child moves: a move is not refused for want of room. */
static pid_t fork_child(struct child *c)
{
    if (c->q->cgroup_fd >= 0) {
        c->in_cgroup = true;
        pid_t pid = forker_fork(child_of_forker, c);
        if (pid > 0)
            return pid;
        c->in_cgroup = false;
    }
    pid_t pid = raw_fork();
    if (pid == 0)
        child_main(c);
    return pid < 0 ? -errno : pid;
}

/* pair[0] is the reading end. Never below 3: the child puts its own on 0, 1 and 2. */
static int make_pipe(int pair[2])
{
    if (pipe2(pair, O_CLOEXEC) < 0)
        return -errno;
    for (int i = 0; i < 2; i++) {
        if (pair[i] > 2)
            continue;
        int fd = fcntl(pair[i], F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
            return -errno;
        (void)close(pair[i]);
        pair[i] = fd;
    }
    return 0;
}

static int open_pty(const struct spawn_req *q, int *ret_master, int *ret_slave)
{
    hf_auto_close int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    int unlock = 0;
    if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return -errno;
    hf_auto_close int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0)
        return -errno;
    struct winsize size = {.ws_col = q->cols, .ws_row = q->rows};
    if (ioctl(master, TIOCSWINSZ, &size) < 0)
        return -errno;
    /* As grantpt(3) would: the user owns its terminal, also when opened by name. */
    (void)!fchown(slave, q->user->uid, (gid_t)-1);
    (void)fchmod(slave, 0620);
    *ret_master = hf_take_fd(&master);
    *ret_slave = hf_take_fd(&slave);
    return 0;
}

struct channels {
    int ours[4], theirs[4]; /* stdin, stdout, stderr, status; with a PTY ours[1] is the master */
};

static void channels_close(struct channels *ch)
{
    for (int i = 0; i < 4; i++) {
        ch->ours[i] = hf_close(ch->ours[i]);
        ch->theirs[i] = hf_close(ch->theirs[i]);
    }
}

static int open_pair(struct channels *ch, int i, bool child_reads)
{
    int pair[2] = {-1, -1};
    int r = make_pipe(pair);
    ch->ours[i] = pair[child_reads ? 1 : 0];
    ch->theirs[i] = pair[child_reads ? 0 : 1];
    return r;
}

static int open_pty_channels(const struct spawn_req *q, struct channels *ch)
{
    int r = open_pty(q, &ch->ours[1], &ch->theirs[0]);
    if (r < 0)
        return r;
    /* A second descriptor for writing: each is polled on its own. */
    ch->ours[0] = fcntl(ch->ours[1], F_DUPFD_CLOEXEC, 3);
    ch->theirs[1] = fcntl(ch->theirs[0], F_DUPFD_CLOEXEC, 3);
    ch->theirs[2] = fcntl(ch->theirs[0], F_DUPFD_CLOEXEC, 3);
    return ch->ours[0] < 0 || ch->theirs[1] < 0 || ch->theirs[2] < 0 ? -errno : 0;
}

static int open_channels(const struct spawn_req *q, struct channels *ch)
{
    int r = open_pair(ch, 3, false);
    if (r < 0)
        return r;
    if (q->pty)
        return open_pty_channels(q, ch);
    if (q->in == SPAWN_STDIN_PIPE) {
        r = open_pair(ch, 0, true);
    } else {
        int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        ch->theirs[0] = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
        r = ch->theirs[0] < 0 ? -errno : 0;
        (void)hf_close(fd);
    }
    if (r == 0)
        r = open_pair(ch, 1, false);
    return r == 0 ? open_pair(ch, 2, false) : r;
}

int spawn_child(const struct spawn_req *q, struct spawned *ret)
{
    struct channels ch = {{-1, -1, -1, -1}, {-1, -1, -1, -1}};
    int r = open_channels(q, &ch);
    if (r < 0) {
        channels_close(&ch);
        return r;
    }
    struct child c = {
        .q = q, .in = ch.theirs[0], .out = ch.theirs[1], .err = ch.theirs[2], .status = ch.theirs[3]};
    /* No handler of envd may run in the child: libuv's would write into the loop's own pipe. */
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &old);
    pid_t pid = fork_child(&c);
    r = pid < 0 ? (int)pid : 0;
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    if (r == 0) {
        *ret = (struct spawned){.pid = pid,
                                .in = hf_take_fd(&ch.ours[0]),
                                .out = q->pty ? -1 : hf_take_fd(&ch.ours[1]),
                                .err = hf_take_fd(&ch.ours[2]),
                                .pty = q->pty ? hf_take_fd(&ch.ours[1]) : -1,
                                .status_fd = hf_take_fd(&ch.ours[3])};
    }
    channels_close(&ch);
    return r;
}
