/* Makes an unpacked root file system fit for a box. Every path is resolved inside the root (openat2), since
 * its symbolic links are the archive's. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/path.h"
#include "engine/disk/template.h"

#define USER_NAME "user"
#define USER_ID 1000
#define ACCOUNT_FILE_MAX (4u << 20)

static const struct {
    const char *name;
    mode_t mode;
    uid_t owner;
} mount_points[] = {
    {"proc", 0555, 0}, {"sys", 0555, 0},  {"dev", 0755, 0},
    {"run", 0755, 0},  {"tmp", 01777, 0}, {"workspace", 0755, USER_ID},
};

static int check_shell(int root, struct hf_err *err)
{
    hf_auto_close int fd = hf_open_in_root(root, "bin/sh", O_PATH, 0);
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 0111))
        return 0;
    return hf_err_set(
        err, -EINVAL,
        "the archive has no /bin/sh: it must be a root file system (its top level has bin, etc, usr …)");
}

/* A directory below dir_fd that is no symbolic link; made with that mode and owner when missing. */
static int ensure_dir(int dir_fd, const char *name, mode_t mode, uid_t owner, struct hf_err *err)
{
    if (mkdirat(dir_fd, name, mode) == 0) {
        hf_auto_close int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || fchown(fd, owner, owner) < 0 || fchmod(fd, mode) < 0)
            return hf_err_set(err, -errno, "cannot set up /%s: %s", name, strerror(errno));
        return 0;
    }
    int r = -errno;
    struct stat st;
    if (r == -EEXIST && fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
        return 0;
    if (r == -EEXIST)
        return hf_err_set(err, -EINVAL, "the archive is refused: /%s must be a directory", name);
    return hf_err_set(err, r, "cannot make /%s: %s", name, strerror(-r));
}

static int read_in_root(int root, const char *path, char **ret)
{
    hf_auto_close int fd = hf_open_in_root(root, path, O_RDONLY | O_NONBLOCK, 0);
    struct stat st;
    if (fd < 0)
        return fd;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return -EINVAL;
    hf_auto_free char *proc = hf_xasprintf("/proc/self/fd/%d", fd);
    return hf_read_file(proc, ACCOUNT_FILE_MAX, ret, NULL);
}

static bool has_account(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (strncmp(line, name, n) == 0 && line[n] == ':')
            return true;
    return false;
}

/* Adds line to an account file unless it has an account of that name; 1 when it was added. must_exist: do
 * nothing when the file is missing (shadow files are optional). */
static int add_account(int root, const char *path, bool must_exist, const char *line, struct hf_err *err)
{
    hf_auto_free char *text = NULL;
    int r = read_in_root(root, path, &text);
    if (r == -ENOENT && must_exist)
        return 0;
    if (r < 0 && r != -ENOENT)
        return hf_err_set(err, r, "the archive is refused: cannot read its /%s: %s", path, strerror(-r));
    if (text && has_account(text, USER_NAME))
        return 0;
    hf_auto_close int fd = hf_open_in_root(root, path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK, 0644);
    size_t n = text ? strlen(text) : 0;
    hf_auto_free char *add = hf_xasprintf("%s%s\n", n && text[n - 1] != '\n' ? "\n" : "", line);
    r = fd < 0 ? fd : hf_write_all(fd, add, strlen(add));
    return r < 0 ? hf_err_set(err, r, "cannot add the user to /%s: %s", path, strerror(-r)) : 1;
}

static bool exists(int root, const char *path)
{
    hf_auto_close int fd = hf_open_in_root(root, path, O_PATH, 0);
    return fd >= 0;
}

static int make_home(int root, struct hf_err *err)
{
    int r = ensure_dir(root, "home", 0755, 0, err);
    if (r < 0)
        return r;
    hf_auto_close int home = openat(root, "home", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (home < 0)
        return hf_err_set(err, -errno, "cannot open /home: %s", strerror(errno));
    return ensure_dir(home, USER_NAME, 0755, USER_ID, err);
}

/* `user` may become root with sudo, as in the base template; a box's root is nothing outside. */
static int allow_sudo(int root, struct hf_err *err)
{
    static const char rule[] = USER_NAME " ALL=(ALL:ALL) NOPASSWD: ALL\n";
    hf_auto_close int dir = hf_open_in_root(root, "etc/sudoers.d", O_RDONLY | O_DIRECTORY, 0);
    if (dir < 0)
        return 0;
    hf_auto_close int fd =
        openat(dir, "holdfast-user", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0440);
    if (fd < 0 && errno == EEXIST)
        return 0;
    int r = fd < 0 ? -errno : hf_write_all(fd, rule, sizeof(rule) - 1);
    if (r == 0 && fchmod(fd, 0440) < 0)
        r = -errno;
    return r < 0 ? hf_err_set(err, r, "cannot write /etc/sudoers.d/holdfast-user: %s", strerror(-r)) : 0;
}

static int add_user(int root, struct hf_err *err)
{
    const char *shell = exists(root, "bin/bash") ? "/bin/bash" : "/bin/sh";
    hf_auto_free char *line =
        hf_xasprintf("%s:x:%d:%d::/home/%s:%s", USER_NAME, USER_ID, USER_ID, USER_NAME, shell);
    hf_auto_free char *group = hf_xasprintf("%s:x:%d:", USER_NAME, USER_ID);
    int added = add_account(root, "etc/passwd", false, line, err);
    if (added <= 0)
        return added;
    int r = add_account(root, "etc/group", false, group, err);
    /* No password, but a valid account: PAM wants a line in shadow where there is such a file. */
    if (r >= 0)
        r = add_account(root, "etc/shadow", true, USER_NAME ":*:19000:0:99999:7:::", err);
    if (r >= 0)
        r = add_account(root, "etc/gshadow", true, USER_NAME ":*::", err);
    if (r >= 0)
        r = make_home(root, err);
    if (r >= 0)
        r = allow_sudo(root, err);
    return r;
}

int hf_template_prepare(const char *root_dir, struct hf_err *err)
{
    hf_auto_close int root = open(root_dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0)
        return hf_err_set(err, -errno, "cannot open %s: %s", root_dir, strerror(errno));
    int r = check_shell(root, err);
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(mount_points); i++)
        r = ensure_dir(root, mount_points[i].name, mount_points[i].mode, mount_points[i].owner, err);
    if (r == 0)
        r = ensure_dir(root, "etc", 0755, 0, err);
    return r < 0 ? r : add_user(root, err);
}
