/* The contents of the box's memory file systems as a tar stream: ustar headers, with a pax header in front
 * for names that do not fit. Written for a box that stands still; read by the box's own root in its own
 * namespaces, so that an archive from elsewhere can do no more than that root can. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/path.h"
#include "engine/shim/memory.h"

#define BLOCK 512
#define DEPTH_MAX 64
#define PATH_BYTES_MAX 4096
#define PIECE_MAX (4ll << 30) /* what the size in a ustar header can tell, and less */

static const char *const saved_dirs[] = {"run", "dev/shm"};

struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
    char magic[6], version[2], uname[32], gname[32], major[8], minor[8], prefix[155], pad[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a tar header is one block");

struct writer {
    int fd;
    uint32_t uid_base;
    struct hf_err *err;
};

static int put(struct writer *w, const void *p, size_t n)
{
    int r = hf_write_all(w->fd, p, n);
    return r < 0 ? hf_err_set(w->err, r, "cannot write the memory file systems: %s", strerror(-r)) : 0;
}

static int put_padding(struct writer *w, uint64_t size)
{
    static const char zeros[BLOCK];
    size_t rest = (size_t)(size % BLOCK);
    return rest ? put(w, zeros, BLOCK - rest) : 0;
}

static void octal(char *out, size_t n, uint64_t v)
{
    for (size_t i = n - 1; i-- > 0; v >>= 3)
        out[i] = (char)('0' + (v & 7));
    out[n - 1] = '\0';
}

static int put_header(struct writer *w, const char *name, const struct stat *st, char type, uint64_t size,
                      const char *link)
{
    struct header h = {.type = type, .magic = "ustar", .version = "00"};
    (void)snprintf(h.name, sizeof(h.name), "%s", name);
    if (link)
        (void)snprintf(h.link, sizeof(h.link), "%s", link);
    octal(h.mode, sizeof(h.mode), st->st_mode & 07777);
    octal(h.uid, sizeof(h.uid), st->st_uid - w->uid_base);
    octal(h.gid, sizeof(h.gid), st->st_gid - w->uid_base);
    octal(h.size, sizeof(h.size), size);
    octal(h.mtime, sizeof(h.mtime), (uint64_t)HF_MAX(st->st_mtime, (time_t)0));
    memset(h.sum, ' ', sizeof(h.sum));
    unsigned sum = 0;
    for (size_t i = 0; i < sizeof(h); i++)
        sum += ((const unsigned char *)&h)[i];
    octal(h.sum, 7, sum);
    h.sum[7] = ' ';
    return put(w, &h, sizeof(h));
}

/* "<length> path=<value>\n", where the length counts itself. */
static size_t pax_line(char *out, size_t cap, const char *key, const char *value)
{
    size_t n = strlen(key) + strlen(value) + 3, digits = 1;
    while (snprintf(NULL, 0, "%zu", n + digits) > (int)digits)
        digits++;
    (void)snprintf(out, cap, "%zu %s=%s\n", n + digits, key, value);
    return n + digits;
}

/* Where the bytes of an entry belong, for a file with holes: it is put back piece by piece. */
struct piece {
    uint64_t offset, bytes, file_bytes;
};

static int put_entry(struct writer *w, const char *name, const struct stat *st, char type, const char *link,
                     const struct piece *piece)
{
    char pax[PATH_BYTES_MAX * 2 + 256], number[24];
    uint64_t bytes = piece ? piece->bytes : 0;
    size_t n = 0;
    if (strlen(name) >= sizeof(((struct header *)0)->name))
        n += pax_line(pax, sizeof(pax), "path", name);
    if (link && strlen(link) >= sizeof(((struct header *)0)->link))
        n += pax_line(pax + n, sizeof(pax) - n, "linkpath", link);
    if (piece && bytes != piece->file_bytes) {
        (void)snprintf(number, sizeof(number), "%" PRIu64, piece->offset);
        n += pax_line(pax + n, sizeof(pax) - n, "HOLDFAST.offset", number);
        (void)snprintf(number, sizeof(number), "%" PRIu64, piece->file_bytes);
        n += pax_line(pax + n, sizeof(pax) - n, "HOLDFAST.size", number);
    }
    int r = n ? put_header(w, "pax", st, 'x', n, NULL) : 0;
    if (r == 0 && n)
        r = put(w, pax, n);
    if (r == 0 && n)
        r = put_padding(w, n);
    return r == 0 ? put_header(w, name, st, type, bytes, link) : r;
}

static int put_piece(struct writer *w, int fd, const char *name, const struct stat *st,
                     const struct piece *piece)
{
    char chunk[65536];
    int r = put_entry(w, name, st, '0', NULL, piece);
    for (uint64_t done = 0; r == 0 && done < piece->bytes;) {
        ssize_t n = pread(fd, chunk, (size_t)HF_MIN((uint64_t)sizeof(chunk), piece->bytes - done),
                          (off_t)(piece->offset + done));
        if (n <= 0)
            return hf_err_set(w->err, n < 0 ? -errno : -EIO, "cannot read /%s", name);
        r = put(w, chunk, (size_t)n);
        done += (uint64_t)n;
    }
    return r == 0 ? put_padding(w, piece->bytes) : r;
}

/* Holes are not written: a file of a terabyte without a byte in it costs the box nothing, and so it must
 * here.
 */
static int put_file(struct writer *w, int dir_fd, const char *base, const char *name, const struct stat *st)
{
    hf_auto_close int fd = openat(dir_fd, base, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return hf_err_set(w->err, -errno, "cannot read /%s: %s", name, strerror(errno));
    struct piece piece = {.file_bytes = (uint64_t)st->st_size};
    int r = 0;
    bool any = false;
    for (off_t at = 0; r == 0 && at < st->st_size; any = true) {
        off_t data = lseek(fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break; /* a hole up to the end */
        off_t end = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
        if (end < 0)
            return hf_err_set(w->err, -errno, "cannot read /%s: %s", name, strerror(errno));
        piece.offset = (uint64_t)data;
        piece.bytes = (uint64_t)HF_MIN(HF_MIN(end, st->st_size) - data, (off_t)PIECE_MAX);
        r = put_piece(w, fd, name, st, &piece);
        at = data + (off_t)piece.bytes;
    }
    piece.offset = piece.bytes = 0;
    return r == 0 && !any ? put_entry(w, name, st, '0', NULL, &piece) : r;
}

static int put_dir(struct writer *w, int dir_fd, const char *name, dev_t dev, unsigned depth);

/* Sockets are bound again by whoever restores their owners; what is mounted below is not of this file system.
 */
static int put_node(struct writer *w, int dir_fd, const char *base, const char *parent, dev_t dev,
                    unsigned depth)
{
    struct stat st;
    char name[PATH_BYTES_MAX], link[PATH_BYTES_MAX];
    if (snprintf(name, sizeof(name), "%s/%s", parent, base) >= (int)sizeof(name))
        return hf_err_set(w->err, -ENAMETOOLONG, "a name below /%s is too long", parent);
    if (fstatat(dir_fd, base, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_dev != dev)
        return 0;
    if (S_ISREG(st.st_mode))
        return put_file(w, dir_fd, base, name, &st);
    if (S_ISFIFO(st.st_mode))
        return put_entry(w, name, &st, '6', NULL, NULL);
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlinkat(dir_fd, base, link, sizeof(link) - 1);
        link[HF_MAX(n, (ssize_t)0)] = '\0';
        return n < 0 ? 0 : put_entry(w, name, &st, '2', link, NULL);
    }
    if (!S_ISDIR(st.st_mode))
        return 0;
    int r = put_entry(w, name, &st, '5', NULL, NULL);
    hf_auto_close int fd = openat(dir_fd, base, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (r < 0 || fd < 0)
        return r < 0 ? r : hf_err_set(w->err, -errno, "cannot read /%s: %s", name, strerror(errno));
    return put_dir(w, fd, name, dev, depth + 1);
}

static int put_dir(struct writer *w, int dir_fd, const char *name, dev_t dev, unsigned depth)
{
    if (depth > DEPTH_MAX)
        return hf_err_set(w->err, -ELOOP, "/%s is more than %d directories deep", name, DEPTH_MAX);
    DIR *d = fdopendir(fcntl(dir_fd, F_DUPFD_CLOEXEC, 0));
    if (!d)
        return hf_err_set(w->err, -errno, "cannot read /%s: %s", name, strerror(errno));
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            r = put_node(w, dir_fd, e->d_name, name, dev, depth);
    (void)closedir(d);
    return r;
}

int shim_tmpfs_save(struct shim *s, int dir_fd, struct hf_err *err)
{
    static const char end[BLOCK * 2];
    char path[48];
    (void)snprintf(path, sizeof(path), "/proc/%d/root", (int)s->pid);
    hf_auto_close int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    hf_auto_close int out =
        openat(dir_fd, "tmpfs.tar", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (root < 0 || out < 0)
        return hf_err_set(err, -errno, "cannot save the memory file systems: %s", strerror(errno));
    struct writer w = {out, s->uid_base, err};
    int r = 0;
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(saved_dirs); i++) {
        struct stat st;
        hf_auto_close int fd = hf_open_in_root_nolink(root, saved_dirs[i], O_RDONLY | O_DIRECTORY, 0);
        if (fd < 0 || fstat(fd, &st) < 0)
            return hf_err_set(err, fd < 0 ? fd : -errno, "cannot open /%s in the sandbox", saved_dirs[i]);
        r = put_dir(&w, fd, saved_dirs[i], st.st_dev, 0);
    }
    return r == 0 ? put(&w, end, sizeof(end)) : r;
}

/* ---- reading ---- */

struct entry {
    struct header h;
    char name[PATH_BYTES_MAX], link[PATH_BYTES_MAX];
    uint64_t size, offset, file_size;
    bool in_pieces;
    uint32_t mode, uid, gid;
};

static int from_octal(const char *p, size_t n, uint64_t *ret)
{
    *ret = 0;
    for (size_t i = 0; i < n && p[i] && p[i] != ' '; i++) {
        if (p[i] < '0' || p[i] > '7')
            return -EBADMSG;
        *ret = *ret << 3 | (uint64_t)(p[i] - '0');
    }
    return 0;
}

static int read_exact(int fd, void *p, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = read(fd, (char *)p + done, n - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -EBADMSG;
        done += (size_t)got;
    }
    return 0;
}

/* "<length> <key>=<value>\n": by the length, since a value may have any byte but NUL. */
static int read_pax(int fd, uint64_t size, struct entry *e)
{
    char text[PATH_BYTES_MAX * 2 + 256 + BLOCK];
    uint64_t padded = (size + BLOCK - 1) / BLOCK * BLOCK;
    if (padded > sizeof(text))
        return -EBADMSG;
    int r = read_exact(fd, text, (size_t)padded);
    for (struct hf_str rest = {text, (size_t)size}; r == 0 && rest.n;) {
        uint64_t n;
        const char *space = memchr(rest.p, ' ', rest.n);
        size_t digits = space ? (size_t)(space - rest.p) : 0;
        if (hf_parse_u64((struct hf_str){rest.p, digits}, rest.n, &n) < 0 || n < digits + 4 ||
            rest.p[n - 1] != '\n')
            return -EBADMSG;
        struct hf_str key = {rest.p + digits + 1, (size_t)n - digits - 2}, value = {0};
        const char *eq = memchr(key.p, '=', key.n);
        if (!eq)
            return -EBADMSG;
        value = (struct hf_str){eq + 1, (size_t)(key.p + key.n - eq - 1)};
        key.n = (size_t)(eq - key.p);
        if (value.n >= PATH_BYTES_MAX)
            return -EBADMSG;
        if (hf_str_eq(key, "path"))
            (void)snprintf(e->name, sizeof(e->name), "%.*s", (int)value.n, value.p);
        else if (hf_str_eq(key, "linkpath"))
            (void)snprintf(e->link, sizeof(e->link), "%.*s", (int)value.n, value.p);
        else if (hf_str_eq(key, "HOLDFAST.offset"))
            r = hf_parse_u64(value, INT64_MAX, &e->offset);
        else if (hf_str_eq(key, "HOLDFAST.size"))
            r = hf_parse_u64(value, INT64_MAX, &e->file_size);
        e->in_pieces |= hf_str_eq(key, "HOLDFAST.size");
        rest = (struct hf_str){rest.p + n, rest.n - (size_t)n};
    }
    return r;
}

/* 1: an entry, 0: the end. */
static int read_header(int fd, struct entry *e)
{
    uint64_t mode, uid, gid;
    e->name[0] = e->link[0] = '\0';
    e->offset = e->file_size = 0;
    e->in_pieces = false;
    for (;;) {
        int r = read_exact(fd, &e->h, sizeof(e->h));
        if (r < 0)
            return r;
        if (!e->h.name[0])
            return 0;
        if (memcmp(e->h.magic, "ustar", 5) != 0 || from_octal(e->h.size, sizeof(e->h.size), &e->size) < 0 ||
            from_octal(e->h.mode, sizeof(e->h.mode), &mode) < 0 ||
            from_octal(e->h.uid, sizeof(e->h.uid), &uid) < 0 ||
            from_octal(e->h.gid, sizeof(e->h.gid), &gid) < 0)
            return -EBADMSG;
        if (e->h.type != 'x')
            break;
        r = read_pax(fd, e->size, e);
        if (r < 0)
            return r;
    }
    e->mode = (uint32_t)mode & 07777;
    e->uid = (uint32_t)uid;
    e->gid = (uint32_t)gid;
    if (!e->name[0])
        (void)snprintf(e->name, sizeof(e->name), "%.100s", e->h.name);
    if (!e->link[0])
        (void)snprintf(e->link, sizeof(e->link), "%.100s", e->h.link);
    return 1;
}

static int load_file(int tar_fd, int root_fd, const struct entry *e)
{
    int truncate = e->offset ? 0 : O_TRUNC; /* the first piece may be further on, in a new file */
    hf_auto_close int fd =
        hf_open_in_root_nolink(root_fd, e->name, O_WRONLY | O_CREAT | O_NONBLOCK | truncate, 0600);
    char chunk[65536];
    uint64_t padded = (e->size + BLOCK - 1) / BLOCK * BLOCK, left = e->size;
    int r = fd < 0 ? fd : 0;
    if (r == 0 && e->in_pieces &&
        (ftruncate(fd, (off_t)e->file_size) < 0 || lseek(fd, (off_t)e->offset, SEEK_SET) < 0))
        r = -errno;
    for (uint64_t done = 0; done < padded && r >= 0;) {
        size_t n = HF_MIN(sizeof(chunk), (size_t)(padded - done));
        r = read_exact(tar_fd, chunk, n);
        if (r == 0)
            r = hf_write_all(fd, chunk, (size_t)HF_MIN((uint64_t)n, left));
        left -= HF_MIN((uint64_t)n, left);
        done += n;
    }
    if (r == 0 && (fchown(fd, e->uid, e->gid) < 0 || fchmod(fd, (mode_t)e->mode) < 0))
        r = -errno;
    return r;
}

/* Everything but a regular file: made in its parent, which is opened without following links. */
static int load_other(int root_fd, struct entry *e)
{
    char *slash = strrchr(e->name, '/');
    if (!slash || !slash[1])
        return -EBADMSG;
    *slash = '\0';
    hf_auto_close int dir = hf_open_in_root_nolink(root_fd, e->name, O_PATH | O_DIRECTORY, 0);
    const char *base = slash + 1;
    if (dir < 0)
        return dir;
    int r = 0;
    if (e->h.type == '5')
        r = mkdirat(dir, base, 0700) < 0 && errno != EEXIST ? -errno : 0;
    else if (e->h.type == '2')
        r = symlinkat(e->link, dir, base) < 0 && errno != EEXIST ? -errno : 0;
    else if (e->h.type == '6')
        r = mkfifoat(dir, base, 0600) < 0 && errno != EEXIST ? -errno : 0;
    else
        return -EBADMSG;
    if (r == 0 && fchownat(dir, base, e->uid, e->gid, AT_SYMLINK_NOFOLLOW) < 0)
        r = -errno;
    if (r == 0 && e->h.type != '2' && fchmodat(dir, base, (mode_t)e->mode, 0) < 0)
        r = -errno;
    return r;
}

int shim_tmpfs_load(int tar_fd, int root_fd, struct hf_err *err)
{
    struct entry *e = hf_new(struct entry);
    int r;
    while ((r = read_header(tar_fd, e)) == 1) {
        r = e->h.type == '0' ? load_file(tar_fd, root_fd, e) : load_other(root_fd, e);
        if (r < 0)
            break;
    }
    if (r < 0)
        (void)hf_err_set(err, r, "cannot put the memory file systems back: %s", strerror(-r));
    free(e);
    return r;
}
