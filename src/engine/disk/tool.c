#include "engine/disk/tool.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

/* A tool's last words that fit into an error message. */
#define TOOL_OUTPUT_KEPT 200

static const char *const tool_dirs[] = {"/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"};

/* Fixed environment: the host's mke2fs.conf or locale must not change what we make or how errors read. */
static char *const tool_env[] = {(char *)"PATH=/usr/sbin:/sbin:/usr/bin:/bin", (char *)"LC_ALL=C",
                                 (char *)"MKE2FS_CONFIG=/dev/null", NULL};

static char *find_tool(const char *name)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(tool_dirs); i++) {
        hf_auto_free char *path = hf_xasprintf("%s/%s", tool_dirs[i], name);
        if (access(path, X_OK) == 0)
            return hf_take_ptr(path);
    }
    return NULL;
}

bool hf_tool_present(const char *name)
{
    hf_auto_free char *path = find_tool(name);
    return path != NULL;
}

/* Reads fd to its end and keeps the last bytes, made one line. */
static void read_tail(int fd, char tail[TOOL_OUTPUT_KEPT + 1])
{
    char chunk[4096];
    size_t kept = 0;
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof(chunk));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        size_t add = HF_MIN((size_t)n, (size_t)TOOL_OUTPUT_KEPT);
        size_t old = HF_MIN(kept, TOOL_OUTPUT_KEPT - add);
        memmove(tail, tail + kept - old, old);
        memcpy(tail + old, chunk + n - add, add);
        kept = old + add;
    }
    while (kept && (tail[kept - 1] == '\n' || tail[kept - 1] == ' '))
        kept--;
    tail[kept] = '\0';
    for (size_t i = 0; i < kept; i++)
        if ((unsigned char)tail[i] < ' ')
            tail[i] = ' ';
}

static int spawn_tool(const char *path, const char *const argv[], int out_fd, pid_t *ret_pid)
{
    posix_spawn_file_actions_t fa;
    int r = posix_spawn_file_actions_init(&fa);
    if (r != 0)
        return -r;
    r = posix_spawn_file_actions_addopen(&fa, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(&fa, out_fd, STDOUT_FILENO);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(&fa, out_fd, STDERR_FILENO);
    if (r == 0)
        r = posix_spawn(ret_pid, path, &fa, NULL, (char *const *)argv, tool_env);
    (void)posix_spawn_file_actions_destroy(&fa);
    return -r;
}

int hf_tool_run(const char *package, const char *const argv[], int *ret_code, struct hf_err *err)
{
    hf_auto_free char *path = find_tool(argv[0]);
    if (!path)
        return hf_err_set(err, -ENOENT, "%s is missing; install the package %s", argv[0], package);
    int out[2];
    if (pipe2(out, O_CLOEXEC) < 0)
        return hf_err_set(err, -errno, "cannot make a pipe: %s", strerror(errno));
    hf_auto_close int rd = out[0];
    hf_auto_close int wr = out[1];
    pid_t pid;
    int r = spawn_tool(path, argv, wr, &pid);
    if (r < 0)
        return hf_err_set(err, r, "cannot start %s: %s", path, strerror(-r));
    wr = hf_close(wr);
    char tail[TOOL_OUTPUT_KEPT + 1] = "";
    read_tail(rd, tail);
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return hf_err_set(err, -errno, "lost track of %s: %s", argv[0], strerror(errno));
    if (WIFEXITED(status) && ret_code) {
        *ret_code = WEXITSTATUS(status);
        if (*ret_code != 0)
            (void)hf_err_set(err, -EIO, "%s ended with code %d: %s", argv[0], *ret_code, tail);
        return 0;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFSIGNALED(status))
        return hf_err_set(err, -EIO, "%s was ended by signal %d", argv[0], WTERMSIG(status));
    bool full = strstr(tail, "o space left") || strstr(tail, "ould not allocate block");
    return hf_err_set(err, full ? -ENOSPC : -EIO, "%s ended with code %d: %s", argv[0], WEXITSTATUS(status),
                      tail);
}
