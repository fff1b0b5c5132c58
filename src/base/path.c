#include "base/path.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static int openat2_in_root(int root_fd, const char *rel, int flags, mode_t mode, uint64_t resolve)
{
    struct open_how how = {
        .flags = (uint64_t)(flags | O_CLOEXEC),
        .mode = flags & (O_CREAT | O_TMPFILE) ? mode : 0,
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | resolve,
    };
    for (;;) {
        long fd = syscall(SYS_openat2, root_fd, rel, &how, sizeof(how));
        if (fd >= 0)
            return (int)fd;
        /* EAGAIN: the kernel saw a concurrent rename or mount and can't vouch for "..". */
        if (errno != EINTR && errno != EAGAIN)
            return -errno;
    }
}

int hf_open_in_root(int root_fd, const char *rel, int flags, mode_t mode)
{
    return openat2_in_root(root_fd, rel, flags, mode, 0);
}

int hf_open_in_root_nolink(int root_fd, const char *rel, int flags, mode_t mode)
{
    return openat2_in_root(root_fd, rel, flags, mode, RESOLVE_NO_SYMLINKS);
}

int hf_read_file_at(int dir_fd, const char *path, size_t max, char **ret, size_t *ret_n)
{
    hf_auto_close int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    size_t cap = HF_MIN(max, (size_t)4096), n = 0;
    hf_auto_free char *p = hf_xmalloc(cap + 1);
    for (;;) {
        if (n == cap) {
            if (cap == max) { /* full: only end of file is acceptable now */
                char more;
                ssize_t r = read(fd, &more, 1);
                if (r == 0)
                    break;
                if (r < 0 && errno == EINTR)
                    continue;
                return r < 0 ? -errno : -EMSGSIZE;
            }
            cap = HF_MIN(max, cap * 2);
            p = hf_xrealloc(p, cap + 1);
        }
        ssize_t r = read(fd, p + n, cap - n);
        if (r < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        if (r == 0)
            break;
        n += (size_t)r;
    }
    p[n] = '\0';
    *ret = hf_take_ptr(p);
    if (ret_n)
        *ret_n = n;
    return 0;
}

int hf_read_file(const char *path, size_t max, char **ret, size_t *ret_n)
{
    return hf_read_file_at(AT_FDCWD, path, max, ret, ret_n);
}

int hf_write_all(int fd, const void *p, size_t n)
{
    const char *c = p;
    while (n) {
        ssize_t r = write(fd, c, n);
        if (r < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        c += r;
        n -= (size_t)r;
    }
    return 0;
}

static int sync_parent(const char *path)
{
    hf_auto_free char *dir = hf_xstrdup(path);
    char *slash = strrchr(dir, '/');
    if (slash == dir)
        slash[1] = '\0';
    else if (slash)
        *slash = '\0';
    hf_auto_close int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        return -errno;
    return 0;
}

int hf_write_file_atomic(const char *path, const void *p, size_t n, mode_t mode)
{
    hf_auto_free char *tmp = hf_xasprintf("%s.tmp.%d", path, (int)getpid());
    hf_auto_close int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return -errno;
    int r = hf_write_all(fd, p, n);
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    if (r == 0 && rename(tmp, path) < 0)
        r = -errno;
    if (r < 0) {
        (void)unlink(tmp);
        return r;
    }
    return sync_parent(path);
}

int hf_write_existing_at(int dir_fd, const char *path, const char *s)
{
    hf_auto_close int fd = openat(dir_fd, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    size_t n = strlen(s);
    ssize_t r;
    do
        r = write(fd, s, n);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return -errno;
    return (size_t)r == n ? 0 : -EIO;
}

int hf_write_existing(const char *path, const char *s)
{
    return hf_write_existing_at(AT_FDCWD, path, s);
}

int hf_mkdir_p(const char *path, mode_t mode)
{
    hf_auto_free char *p = hf_xstrdup(path);
    for (char *c = p + 1;; c++) {
        if (*c != '/' && *c != '\0')
            continue;
        char saved = *c;
        *c = '\0';
        if (mkdir(p, mode) < 0 && errno != EEXIST)
            return -errno;
        *c = saved;
        if (!saved)
            return 0;
    }
}

static int remove_at(int dir_fd, const char *name, dev_t dev)
{
    struct stat st;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISDIR(st.st_mode))
        return unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT ? -errno : 0;
    if (st.st_dev != dev)
        return -EXDEV;
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    DIR *d = fdopendir(fd);
    if (!d) {
        (void)hf_close(fd);
        return -ENOMEM;
    }
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            r = remove_at(dirfd(d), e->d_name, dev);
    (void)closedir(d);
    if (r == 0 && unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        r = -errno;
    return r;
}

int hf_remove_tree(const char *path)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : -errno;
    return remove_at(AT_FDCWD, path, st.st_dev);
}
