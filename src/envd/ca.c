#include "envd/ca.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/path.h"
#include "envd/fs.h"

#define MARK_BEGIN "# holdfast: this sandbox's certificate authority\n"
#define MARK_END "# holdfast: end\n"
#define PEM_BEGIN "-----BEGIN CERTIFICATE-----"
#define PEM_END "-----END CERTIFICATE-----"
#define STORE_MODE 0644

/* In the order in which programs are pointed at them. The first is made where there is none of them. */
static const char *const stores[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                     "/etc/ssl/cert.pem"};

const char *const ca_variables[] = {
    "SSL_CERT_FILE",  "REQUESTS_CA_BUNDLE", "PIP_CERT",      "NODE_EXTRA_CA_CERTS",
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",     "AWS_CA_BUNDLE", NULL};

const char *ca_variable_value(const char *name, const char *bundle)
{
    return strcmp(name, "NODE_EXTRA_CA_CERTS") == 0 ? CA_FILE : bundle;
}

/* ---- PEM ---- */

static bool next_line(struct hf_str *text, struct hf_str *ret)
{
    if (!text->n)
        return false;
    const char *end = memchr(text->p, '\n', text->n);
    size_t n = end ? (size_t)(end - text->p) : text->n, taken = end ? n + 1 : n;
    *ret = (struct hf_str){text->p, n && text->p[n - 1] == '\r' ? n - 1 : n};
    *text = (struct hf_str){text->p + taken, text->n - taken};
    return true;
}

static bool is_base64(struct hf_str s)
{
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        bool ok = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
                  c == '/' || c == '=';
        if (!ok)
            return false;
    }
    return s.n > 0;
}

static int bad_pem(struct hf_err *err, const char *what)
{
    return hf_err_http(err, -EINVAL, 400, "caBundle must be certificates in PEM: %s", what);
}

/* The certificates alone, one line end: what goes into files has no text of somebody else's choice around
 * it, such as our marker lines or a private key. */
static int normal_pem(struct hf_str pem, struct hf_buf *out, struct hf_err *err)
{
    struct hf_str line;
    bool inside = false;
    while (next_line(&pem, &line)) {
        bool begin = hf_str_eq(line, PEM_BEGIN), end = hf_str_eq(line, PEM_END);
        if (inside ? begin || !(end || is_base64(line)) : !begin && hf_str_starts(line, "-----"))
            return bad_pem(err, inside ? "one is damaged" : "it holds something else");
        inside = inside || begin;
        if (inside && (hf_buf_add(out, line.p, line.n) < 0 || hf_buf_add(out, "\n", 1) < 0))
            return hf_err_http(err, -EMSGSIZE, 400, "caBundle is larger than %u bytes", CA_PEM_MAX);
        inside = inside && !end;
    }
    if (inside || !out->n)
        return bad_pem(err, inside ? "the last one has no end" : "there is none");
    return 0;
}

/* ---- files ---- */

/* All of a regular file; -ENOENT when it is missing, -EMSGSIZE beyond CA_STORE_MAX, -EINVAL for what is no
 * file.
 */
static int read_store(const char *path, int *ret_fd, struct stat *st, struct hf_buf *out)
{
    hf_auto_close int fd = fs_openat(AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0)
        return fd;
    if (fstat(fd, st) < 0)
        return -errno;
    if (!S_ISREG(st->st_mode))
        return -EINVAL;
    for (;;) {
        if (hf_buf_reserve(out, 65536) < 0)
            return -EMSGSIZE;
        ssize_t n = read(fd, out->p + out->n, 65536);
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        out->n += (size_t)n;
    }
    *ret_fd = hf_take_fd(&fd);
    return 0;
}

/* Replaces name in dir_fd at once. st: whose owner and mode it gets. */
static int put_file(int dir_fd, const char *name, const struct stat *st, const struct hf_buf *b)
{
    hf_auto_free char *tmp = hf_xasprintf(".%s.holdfast", name);
    (void)unlinkat(dir_fd, tmp, 0);
    hf_auto_close int fd = openat(dir_fd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = hf_write_all(fd, b->p, b->n);
    if (r == 0 && (fchown(fd, st->st_uid, st->st_gid) < 0 || fchmod(fd, st->st_mode & 07777) < 0 ||
                   renameat(dir_fd, tmp, dir_fd, name) < 0))
        r = -errno;
    if (r < 0)
        (void)unlinkat(dir_fd, tmp, 0);
    return r;
}

/* The directory that really holds the open file: a store may be a symbolic link, which stays one. */
static int open_parent(int fd, char *real, size_t cap, const char **ret_name)
{
    char link[40];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, real, cap - 1);
    if (n <= 0)
        return n < 0 ? -errno : -ENOENT;
    real[n] = '\0';
    char *slash = strrchr(real, '/');
    if (real[0] != '/' || !slash || !slash[1])
        return -ENOENT;
    *slash = '\0';
    *ret_name = slash + 1;
    return fs_openat(AT_FDCWD, slash == real ? "/" : real, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0);
}

static int make_file(const char *path, const struct hf_buf *b, struct hf_err *err)
{
    const struct envd_user root = {.name = "root"};
    const struct stat st = {.st_mode = STORE_MODE};
    hf_auto_free char *dir = path_dir(path);
    int r = fs_mkdirs(dir, &root, err);
    if (r < 0)
        return r;
    hf_auto_close int fd = fs_openat(AT_FDCWD, dir, O_PATH | O_DIRECTORY, 0);
    r = fd < 0 ? fd : put_file(fd, strrchr(path, '/') + 1, &st, b);
    return r < 0 ? fs_err(err, r, "writing", path) : 0;
}

/* ---- stores ---- */

/* A trust store without what is ours: the marked part, and copies of the old certificates. */
static int without_ours(const struct hf_buf *in, const struct hf_buf *old, struct hf_buf *out)
{
    const size_t begin_n = strlen(MARK_BEGIN), end_n = strlen(MARK_END);
    int r = 0;
    for (size_t at = 0; r == 0 && at < in->n;) {
        const char *p = in->p + at;
        size_t left = in->n - at;
        const char *end =
            left >= begin_n && memcmp(p, MARK_BEGIN, begin_n) == 0 ? memmem(p, left, MARK_END, end_n) : NULL;
        if (end) {
            at += (size_t)(end - p) + end_n;
        } else if (old->n && left >= old->n && memcmp(p, old->p, old->n) == 0) {
            at += old->n;
        } else { /* ours begins at the start of a line */
            const char *nl = memchr(p, '\n', left);
            size_t n = nl ? (size_t)(nl - p) + 1 : left;
            r = hf_buf_add(out, p, n);
            at += n;
        }
    }
    return r;
}

static int add_ours(struct hf_buf *out, const struct hf_buf *pem)
{
    int r = 0;
    if (out->n && out->p[out->n - 1] != '\n')
        r = hf_buf_add(out, "\n", 1);
    if (r == 0)
        r = hf_buf_adds(out, MARK_BEGIN);
    if (r == 0)
        r = hf_buf_add(out, pem->p, pem->n);
    return r == 0 ? hf_buf_adds(out, MARK_END) : r;
}

/* 1: the store is there (and holds pem now); 0: there is none that we could keep. */
static int update_store(const char *path, const struct hf_buf *old, const struct hf_buf *pem,
                        struct hf_err *err)
{
    hf_auto_buf struct hf_buf in = HF_BUF_INIT(CA_STORE_MAX),
                              out = HF_BUF_INIT(CA_STORE_MAX + 2 * CA_PEM_MAX);
    char real[PATH_MAX];
    const char *name = NULL;
    struct stat st;
    hf_auto_close int fd = -1;
    int r = read_store(path, &fd, &st, &in);
    if (r == -ENOENT || r == -ENOTDIR || r == -ELOOP || r == -EINVAL || r == -EMSGSIZE)
        return 0;
    if (r == 0)
        r = without_ours(&in, old, &out);
    if (r == 0 && pem->n)
        r = add_ours(&out, pem);
    if (r < 0)
        return fs_err(err, r, "reading", path);
    if (in.n == out.n && (!in.n || memcmp(in.p, out.p, in.n) == 0))
        return 1;
    hf_auto_close int dir = open_parent(fd, real, sizeof(real), &name);
    r = dir;
    if (dir >= 0 && !out.n) /* it was ours alone */
        return unlinkat(dir, name, 0) < 0 ? fs_err(err, -errno, "removing", path) : 0;
    if (dir >= 0)
        r = put_file(dir, name, &st, &out);
    return r < 0 ? fs_err(err, r, "writing", path) : 1;
}

static int update_stores(const char *root, const struct hf_buf *old, const struct hf_buf *pem,
                         const char **ret, struct hf_err *err)
{
    const char *first = NULL;
    for (size_t i = 0; i < HF_ARRAY_LEN(stores); i++) {
        hf_auto_free char *path = hf_xasprintf("%s%s", root, stores[i]);
        int r = update_store(path, old, pem, err);
        if (r < 0)
            return r;
        if (r > 0 && !first)
            first = stores[i];
    }
    if (!first && pem->n) {
        hf_auto_buf struct hf_buf out = HF_BUF_INIT(2 * CA_PEM_MAX);
        hf_auto_free char *path = hf_xasprintf("%s%s", root, stores[0]);
        int r = add_ours(&out, pem);
        r = r < 0 ? fs_err(err, r, "writing", path) : make_file(path, &out, err);
        if (r < 0)
            return r;
        first = stores[0];
    }
    *ret = pem->n ? first : NULL;
    return 0;
}

int ca_install(const char *root, struct hf_str pem, const char **ret, struct hf_err *err)
{
    hf_auto_buf struct hf_buf new = HF_BUF_INIT(CA_PEM_MAX), old = HF_BUF_INIT(CA_STORE_MAX);
    hf_auto_free char *file = hf_xasprintf("%s%s", root, CA_FILE);
    struct stat st;
    hf_auto_close int fd = -1;
    int r = pem.n ? normal_pem(pem, &new, err) : 0;
    if (r < 0)
        return r;
    if (read_store(file, &fd, &st, &old) < 0)
        hf_buf_clear(&old);
    r = update_stores(root, &old, &new, ret, err);
    if (r < 0)
        return r;
    /* Last: as long as it is there, the next call knows what the stores may hold. */
    if (new.n)
        return make_file(file, &new, err);
    return unlink(file) < 0 && errno != ENOENT && errno != ENOTDIR ? fs_err(err, -errno, "removing", file)
                                                                   : 0;
}
