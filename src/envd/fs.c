#include "envd/fs.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "base/id.h"

#define FILE_MODE 0644
#define DIR_MODE 0755
#define NO_SPACE_TEXT "not enough disk space available"

int fs_openat(int dir_fd, const char *path, int flags, mode_t mode)
{
    struct open_how how = {
        .flags = (uint64_t)(flags | O_CLOEXEC),
        .mode = flags & O_CREAT ? mode : 0,
        .resolve = RESOLVE_NO_MAGICLINKS,
    };
    for (;;) {
        long fd = syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));
        if (fd >= 0)
            return (int)fd;
        if (errno != EINTR)
            return -errno;
    }
}

int fs_err(struct hf_err *err, int r, const char *what, const char *path)
{
    switch (-r) {
    case ENOSPC:
    case EDQUOT:
        return hf_err_http(err, r, 507, NO_SPACE_TEXT);
    case ENOENT:
        return hf_err_http(err, r, 404, "path '%s' does not exist", path);
    case EISDIR:
        return hf_err_http(err, r, 400, "path is a directory: %s", path);
    case ENOTDIR:
        return hf_err_http(err, r, 400, "error %s: a part of the path is a file, not a directory: %s", what,
                           path);
    case ELOOP:
        return hf_err_http(err, r, 400,
                           "error %s: too many symbolic links, or a link of /proc that only the kernel "
                           "resolves: %s",
                           what, path);
    case ENAMETOOLONG:
    case EINVAL:
        return hf_err_http(err, r, 400, "error %s: %s: %s", what, strerror(-r), path);
    case EACCES:
    case EPERM:
    case EROFS:
        return hf_err_http(err, r, 403, "error %s: %s: %s", what, strerror(-r), path);
    case ETXTBSY:
        return hf_err_http(err, r, 409, "error %s: the program is running: %s", what, path);
    default:
        return hf_err_http(err, r, 500, "error %s: %s: %s", what, strerror(-r), path);
    }
}

static int refuse_special(struct hf_err *err, const char *path)
{
    return hf_err_http(err, -EINVAL, 400,
                       "path '%s' is not a regular file: FIFOs, sockets and devices can't be read or written "
                       "here",
                       path);
}

/* Opening a FIFO or a device has effects already, so look first; the check on the descriptor decides. */
static int refuse_before_open(const char *path, struct hf_err *err)
{
    struct stat st;
    if (fstatat(AT_FDCWD, path, &st, 0) < 0)
        return 0; /* the open tells */
    if (S_ISDIR(st.st_mode))
        return -EISDIR; /* the caller has its own words for it */
    return S_ISREG(st.st_mode) ? 0 : refuse_special(err, path);
}

int fs_open_read(const char *path, struct stat *ret_st, struct hf_err *err)
{
    int r = refuse_before_open(path, err);
    if (r == -EISDIR)
        return hf_err_http(err, r, 400, "path '%s' is a directory", path);
    if (r < 0)
        return r;
    hf_auto_close int fd = fs_openat(AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (fd == -ENOTDIR)
        return hf_err_http(err, fd, 404, "path '%s' does not exist", path);
    if (fd < 0)
        return fs_err(err, fd, "opening file", path);
    if (fstat(fd, ret_st) < 0)
        return fs_err(err, -errno, "checking file", path);
    if (S_ISDIR(ret_st->st_mode))
        return hf_err_http(err, -EISDIR, 400, "path '%s' is a directory", path);
    if (!S_ISREG(ret_st->st_mode))
        return refuse_special(err, path);
    return hf_take_fd(&fd);
}

/* Opens or creates; *ret_created is true only when the name certainly did not exist. */
static int open_or_create(const char *path, const struct envd_user *u, bool *ret_created, struct hf_err *err)
{
    const int flags = O_WRONLY | O_NONBLOCK | O_NOCTTY;
    *ret_created = false;
    int fd = fs_openat(AT_FDCWD, path, flags, 0);
    if (fd != -ENOENT)
        return fd;
    hf_auto_free char *dir = path_dir(path);
    int r = fs_mkdirs(dir, u, err);
    if (r < 0)
        return r;
    fd = fs_openat(AT_FDCWD, path, flags | O_CREAT | O_EXCL, FILE_MODE);
    if (fd >= 0)
        *ret_created = true;
    if (fd != -EEXIST)
        return fd;
    /* A symbolic link to nothing: its target is made, as any program would do it. */
    return fs_openat(AT_FDCWD, path, flags | O_CREAT, FILE_MODE);
}

static int check_space(int fd, const struct stat *st, uint64_t want, const char *path, struct hf_err *err)
{
    struct statvfs v;
    if (!want || fstatvfs(fd, &v) < 0 || !v.f_blocks)
        return 0; /* unknown: writing tells */
    uint64_t avail = (uint64_t)v.f_bavail * v.f_frsize + (uint64_t)st->st_blocks * 512;
    if (want <= avail)
        return 0;
    return hf_err_http(err, -ENOSPC, 507, NO_SPACE_TEXT ": %s needs %llu bytes, %llu are free", path,
                       (unsigned long long)want, (unsigned long long)avail);
}

int fs_open_write(const char *path, const struct envd_user *u, uint64_t want, struct fs_target *ret,
                  struct hf_err *err)
{
    int r = refuse_before_open(path, err);
    if (r < 0)
        return r == -EISDIR ? fs_err(err, r, "opening file", path) : r;
    struct hf_err sub = {0};
    struct fs_target t = FS_TARGET_NONE;
    t.fd = open_or_create(path, u, &t.created, &sub);
    if (t.fd == -ENXIO)
        return refuse_special(err, path);
    if (t.fd < 0 && sub.r) {
        if (err)
            *err = sub;
        return t.fd;
    }
    if (t.fd < 0)
        return fs_err(err, t.fd, "opening file", path);
    struct stat st;
    if (fstat(t.fd, &st) < 0) {
        r = fs_err(err, -errno, "checking file", path);
    } else if (!S_ISREG(st.st_mode)) {
        r = refuse_special(err, path);
    } else {
        t.dev = st.st_dev;
        t.ino = st.st_ino;
        r = check_space(t.fd, &st, want, path, err);
    }
    /* Only what changes something: each of these is an event for whoever watches the directory. */
    if (r == 0 && (st.st_uid != u->uid || st.st_gid != u->gid) && fchown(t.fd, u->uid, u->gid) < 0)
        r = fs_err(err, -errno, "changing file ownership of", path);
    if (r == 0 && st.st_size && ftruncate(t.fd, 0) < 0)
        r = fs_err(err, -errno, "emptying", path);
    if (r < 0) {
        (void)!fs_target_close(&t, path, true);
        return r;
    }
    *ret = t;
    return 0;
}

int fs_target_close(struct fs_target *t, const char *path, bool undo)
{
    if (t->fd < 0)
        return 0;
    struct stat st;
    if (undo && t->created && fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_dev == t->dev &&
        st.st_ino == t->ino)
        (void)unlink(path);
    int r = close(t->fd) < 0 && errno != EINTR ? -errno : 0;
    t->fd = -1;
    return r;
}

/* Makes or enters one component below dir_fd. */
static int enter_dir(int dir_fd, const char *name, const struct envd_user *u)
{
    bool made = mkdirat(dir_fd, name, DIR_MODE) == 0;
    if (!made && errno != EEXIST)
        return -errno;
    /* What was just made is entered without following: nobody can slip a link under the chown. */
    int fd = fs_openat(dir_fd, name, O_PATH | O_DIRECTORY | (made ? O_NOFOLLOW : 0), 0);
    if (fd == -ENOENT && !made)
        return -ENOTDIR; /* a symbolic link to nothing */
    if (fd >= 0 && made && fchownat(fd, "", u->uid, u->gid, AT_EMPTY_PATH) < 0) {
        int r = -errno;
        (void)hf_close(fd);
        return r;
    }
    return fd;
}

int fs_mkdirs(const char *path, const struct envd_user *u, struct hf_err *err)
{
    hf_auto_close int whole = fs_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY, 0);
    if (whole >= 0)
        return 0;
    hf_auto_close int fd = fs_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY, 0);
    if (fd < 0)
        return fs_err(err, fd, "opening", "/");
    hf_auto_free char *copy = hf_xstrdup(path);
    char *save = copy;
    for (char *name; (name = strsep(&save, "/"));) {
        if (!*name)
            continue;
        int next = enter_dir(fd, name, u);
        if (next < 0)
            return fs_err(err, next, "making directory", path);
        (void)hf_close(fd);
        fd = next;
    }
    return 0;
}

void fs_mode_string(mode_t mode, char out[FS_MODE_STRING_MAX])
{
    static const struct {
        mode_t type;
        const char *text;
    } types[] = {{S_IFDIR, "d"}, {S_IFLNK, "L"}, {S_IFBLK, "D"},
                 {S_IFCHR, "D"}, {S_IFIFO, "p"}, {S_IFSOCK, "S"}};
    char *p = out;
    for (size_t i = 0; i < HF_ARRAY_LEN(types); i++) {
        if ((mode & S_IFMT) == types[i].type)
            *p++ = types[i].text[0];
    }
    /* Go's order of the bits: …, S(ocket), u, g, c(har), t. */
    if (mode & S_ISUID)
        *p++ = 'u';
    if (mode & S_ISGID)
        *p++ = 'g';
    if (S_ISCHR(mode))
        *p++ = 'c';
    if (mode & S_ISVTX)
        *p++ = 't';
    if (p == out)
        *p++ = '-';
    for (int i = 8; i >= 0; i--)
        *p++ = mode & (1u << i) ? "xwr"[i % 3] : '-';
    *p = '\0';
}

/* Length of the valid UTF-8 sequence at p, 0 if there is none (RFC 3629: no surrogates, no overlong forms).
 */
static size_t utf8_len(const unsigned char *p, size_t n)
{
    if (p[0] < 0x80)
        return 1;
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    bool bad = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
               (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f);
    return bad ? 0 : len;
}

/* Every byte that is not part of valid UTF-8 becomes U+FFFD. */
static char *replace_invalid(const char *s, size_t n, size_t *ret_n)
{
    const unsigned char *p = (const unsigned char *)s;
    char *out = hf_xmalloc(n * 3 + 1), *o = out;
    for (size_t i = 0; i < n;) {
        size_t len = utf8_len(p + i, n - i);
        memcpy(o, len ? s + i : "\xef\xbf\xbd", len ? len : 3);
        o += len ? len : 3;
        i += len ? len : 1;
    }
    *ret_n = (size_t)(o - out);
    return out;
}

void fs_set_text(json_t *obj, const char *key, const char *p, size_t n)
{
    json_t *s = json_stringn(p, n);
    if (s) {
        json_object_set_new(obj, key, s);
        return;
    }
    size_t clean_n;
    hf_auto_free char *clean = replace_invalid(p, n, &clean_n);
    json_object_set_new(obj, key, json_stringn(clean, clean_n));
    hf_auto_buf struct hf_buf b64 = HF_BUF_INIT(n * 2 + 8);
    hf_auto_free char *b64_key = hf_xasprintf("%sBase64", key);
    if (hf_base64_add(&b64, p, n) == 0)
        json_object_set_new(obj, b64_key, json_stringn(b64.p, b64.n));
}

static const char *type_name(mode_t mode)
{
    if (S_ISREG(mode))
        return "FILE_TYPE_FILE";
    return S_ISDIR(mode) ? "FILE_TYPE_DIRECTORY" : NULL;
}

/* Type and mode come from the final target; a broken link has neither. */
static void set_link(json_t *o, int dir_fd, const char *name, const char *shown, const char *real)
{
    struct stat st;
    bool ok = fstatat(dir_fd, name, &st, 0) == 0;
    hf_auto_free char *target = ok ? realpath(real, NULL) : NULL;
    const char *type = ok ? type_name(st.st_mode) : NULL;
    if (type)
        json_object_set_new(o, "type", json_string(type));
    json_object_set_new(o, "mode", json_integer(ok ? st.st_mode & 0777 : 0));
    const char *text = target ? target : shown;
    fs_set_text(o, "symlinkTarget", text, strlen(text));
}

static int64_t time_ns(struct timespec t)
{
    const int64_t max_s = INT64_MAX / 1000000000 - 1;
    int64_t s = HF_MAX(HF_MIN((int64_t)t.tv_sec, max_s), -max_s);
    return s * 1000000000 + t.tv_nsec;
}

int fs_entry(int dir_fd, const char *name, const char *shown, const char *real, struct users_names *memo,
             json_t **ret)
{
    struct stat st;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    hf_auto_free struct users_names *own = memo ? NULL : hf_new(struct users_names);
    struct users_names *names = memo ? memo : own;
    char mode[FS_MODE_STRING_MAX], mtime[HF_RFC3339_MAX], size[24];
    fs_mode_string(st.st_mode, mode);
    hf_rfc3339_ns(time_ns(st.st_mtim), mtime);
    (void)snprintf(size, sizeof(size), "%lld", (long long)st.st_size);

    json_t *o = json_object();
    const char *base = path_base(shown);
    fs_set_text(o, "name", base, strlen(base));
    if (S_ISLNK(st.st_mode)) {
        set_link(o, dir_fd, name, shown, real);
    } else {
        if (type_name(st.st_mode))
            json_object_set_new(o, "type", json_string(type_name(st.st_mode)));
        json_object_set_new(o, "mode", json_integer(st.st_mode & 0777));
    }
    fs_set_text(o, "path", shown, strlen(shown));
    json_object_set_new(o, "size", json_string(size));
    json_object_set_new(o, "permissions", json_string(mode));
    json_object_set_new(o, "owner", json_string(users_name(names, st.st_uid)));
    json_object_set_new(o, "group", json_string(users_group(names, st.st_gid)));
    json_object_set_new(o, "modifiedTime", json_string(mtime));
    json_t *meta = fs_metadata_read(real);
    if (meta)
        json_object_set_new(o, "metadata", meta);
    *ret = o;
    return 0;
}
