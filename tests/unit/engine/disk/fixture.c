#include "fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/path.h"

#define MOUNTINFO_MAX (4u << 20)
#define SKIPPED 77

char fixture_data[64], fixture_run[64], fixture_top[48];

static bool can_mount(const char **ret_why)
{
    hf_auto_close int loop = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    hf_auto_close int fs = fsopen("ext4", FSOPEN_CLOEXEC);
    if (geteuid() != 0)
        *ret_why = "needs root";
    else if (loop < 0)
        *ret_why = "/dev/loop-control cannot be opened";
    else if (fs < 0)
        *ret_why = "mounting is not allowed here";
    else
        return true;
    return false;
}

/* Unmounts what is below fixture_top, last mounted first; true when there was anything. */
static bool unmount_last(void)
{
    hf_auto_free char *text = NULL;
    if (hf_read_file("/proc/self/mountinfo", MOUNTINFO_MAX, &text, NULL) < 0)
        return false;
    char last[4096] = "";
    size_t top_n = strlen(fixture_top);
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        char point[4096];
        if (sscanf(line, "%*s %*s %*s %*s %4095s", point) == 1 && strncmp(point, fixture_top, top_n) == 0 &&
            point[top_n] == '/')
            (void)snprintf(last, sizeof(last), "%s", point);
    }
    return last[0] && umount2(last, MNT_DETACH) == 0;
}

static void clean_up(void)
{
    while (unmount_last())
        continue;
    int r = hf_remove_tree(fixture_top);
    if (r < 0)
        print_error("left behind: %s: %s\n", fixture_top, strerror(-r));
}

static int set_paths(const char *top)
{
    int n = snprintf(fixture_top, sizeof(fixture_top), "%s", top);
    (void)snprintf(fixture_data, sizeof(fixture_data), "%s/data", fixture_top);
    (void)snprintf(fixture_run, sizeof(fixture_run), "%s/run", fixture_top);
    return n > 0 && (size_t)n < sizeof(fixture_top) ? 0 : -ENAMETOOLONG;
}

static int run_apart(int (*tests)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        int failed = tests();
        (void)fflush(NULL);
        _exit(failed ? 1 : 0);
    }
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    clean_up();
    if (pid > 0 && WIFSIGNALED(status))
        print_error("the tests were ended by signal %d\n", WTERMSIG(status));
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int fixture_main(int argc, char **argv, int (*tests)(void), int (*step)(const char *what))
{
    if (argc == 4 && strcmp(argv[1], "--step") == 0 && step)
        return set_paths(argv[2]) < 0 ? 1 : step(argv[3]);
    const char *why = "";
    if (!can_mount(&why)) {
        print_message("skipped: %s\n", why);
        return SKIPPED;
    }
    char top[sizeof(fixture_top)];
    (void)snprintf(top, sizeof(top), "/tmp/hf-disk-%d", (int)getpid());
    if (set_paths(top) < 0 || mkdir(fixture_top, 0700) < 0 || mkdir(fixture_data, 0700) < 0 ||
        mkdir(fixture_run, 0700) < 0) {
        print_error("cannot make %s: %s\n", top, strerror(errno));
        return 1;
    }
    return run_apart(tests);
}

int fixture_start(const char *what, const char *killpoint)
{
    (void)fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    if (killpoint && setenv("HOLDFAST_KILLPOINT", killpoint, 1) < 0)
        _exit(1);
    /* A new program: kill points are read once a process. */
    (void)execl("/proc/self/exe", "step", "--step", fixture_top, what, (char *)NULL);
    _exit(1);
}

int fixture_wait(int pid)
{
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

int fixture_in_child(const char *what, const char *killpoint)
{
    return fixture_wait(fixture_start(what, killpoint));
}

void fixture_kill_at(const char *what, const char *killpoint)
{
    int status = fixture_in_child(what, killpoint);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        fail_msg("%s was not reached (wait status %x)", killpoint, (unsigned)status);
}

void fixture_write(const char *path, const void *p, size_t n, unsigned mode)
{
    hf_auto_close int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(hf_write_all(fd, p, n), 0);
    assert_int_equal(fchmod(fd, mode), 0);
}

bool fixture_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}
