/* Unpacks an untrusted tar stream below one directory.
 *
 * The thread that unpacks has a working directory of its own (unshare(CLONE_FS)) and gives libarchive
 * relative names only. It does not chroot: character set conversion would then load code from the archive's
 * own libraries. Names are checked here first; libarchive's own refusal of "..", absolute names and symbolic
 * links on the way (ARCHIVE_EXTRACT_SECURE_*) stands behind that. */
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>

#include "engine/disk/template.h"

#define READ_BLOCK (256u << 10)
#define XATTRS_PER_ENTRY_MAX 64

#define EXTRACT_FLAGS                                                                              \
    (ARCHIVE_EXTRACT_OWNER | ARCHIVE_EXTRACT_PERM | ARCHIVE_EXTRACT_TIME | ARCHIVE_EXTRACT_XATTR | \
     ARCHIVE_EXTRACT_SECURE_SYMLINKS | ARCHIVE_EXTRACT_SECURE_NODOTDOT |                           \
     ARCHIVE_EXTRACT_SECURE_NOABSOLUTEPATHS)

struct job {
    int tar_fd;
    const char *dest_dir;
    struct hf_template_limits limits;
    struct hf_template_stats stats;
    struct archive *in, *out;
    int r;
    struct hf_err err;
};

/* The name without leading "/" and "./"; "" for the root itself. NULL: "..", too deep or too long. */
static const char *relative_name(const char *name)
{
    while (*name == '/' || (name[0] == '.' && (name[1] == '/' || name[1] == '\0')))
        name++;
    unsigned depth = 0;
    for (const char *c = name; *c;) {
        size_t n = strcspn(c, "/");
        if (n == 2 && c[0] == '.' && c[1] == '.')
            return NULL;
        if (n && ++depth > HF_TEMPLATE_DEPTH_MAX)
            return NULL;
        c += n;
        c += *c == '/';
    }
    return strlen(name) < 4096 ? name : NULL;
}

/* For messages: what the archive calls the entry, without control characters. */
static const char *shown(const char *name, char out[128])
{
    (void)snprintf(out, 128, "%s", name);
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    return out;
}

static int refuse(struct job *j, const char *name, const char *why)
{
    char buf[128];
    return hf_err_set(&j->err, -EINVAL, "the archive is refused: \"%s\" %s", shown(name, buf), why);
}

static bool is_below_dev(const char *name)
{
    return strcmp(name, "dev") == 0 || strncmp(name, "dev/", 4) == 0;
}

/* Keeps file capabilities and user attributes. Others are the host's business (trusted.*, security labels) or
 * would mean something to the overlay that the image becomes a layer of. */
static bool keep_xattr(const char *name)
{
    if (strcmp(name, "security.capability") == 0)
        return true;
    return strncmp(name, "user.", 5) == 0 && strncmp(name, "user.overlay.", 13) != 0;
}

static void filter_xattrs(struct archive_entry *e)
{
    if (archive_entry_xattr_count(e) == 0)
        return;
    struct {
        char *name;
        void *value;
        size_t n;
    } kept[XATTRS_PER_ENTRY_MAX];
    size_t n_kept = 0, n;
    const char *name;
    const void *value;
    archive_entry_xattr_reset(e);
    while (n_kept < XATTRS_PER_ENTRY_MAX && archive_entry_xattr_next(e, &name, &value, &n) == ARCHIVE_OK) {
        if (!name || !keep_xattr(name) || n > 65536)
            continue;
        kept[n_kept].name = hf_xstrdup(name);
        kept[n_kept].value = hf_xmalloc(n + 1);
        memcpy(kept[n_kept].value, value, n);
        kept[n_kept++].n = n;
    }
    archive_entry_xattr_clear(e);
    for (size_t i = 0; i < n_kept; i++) {
        archive_entry_xattr_add_entry(e, kept[i].name, kept[i].value, kept[i].n);
        free(kept[i].name);
        free(kept[i].value);
    }
}

static int archive_failure(struct job *j, struct archive *a, const char *name)
{
    char buf[128];
    int r = archive_errno(a);
    const char *text = archive_error_string(a);
    if (r == ENOSPC)
        return hf_err_set(&j->err, -ENOSPC, "the disk pool has no room to unpack the archive");
    return hf_err_set(&j->err, -EINVAL, "the archive is refused: %s%s%s%s", name ? "\"" : "",
                      name ? shown(name, buf) : "", name ? "\": " : "", text ? text : "unreadable");
}

static int copy_data(struct job *j, const char *name)
{
    const void *p;
    size_t n;
    la_int64_t offset;
    for (;;) {
        int r = archive_read_data_block(j->in, &p, &n, &offset);
        if (r == ARCHIVE_EOF)
            return 0;
        if (r < ARCHIVE_WARN)
            return archive_failure(j, j->in, name);
        if (archive_write_data_block(j->out, p, n, offset) < ARCHIVE_OK)
            return archive_failure(j, j->out, name);
    }
}

static int count_entry(struct job *j, struct archive_entry *e)
{
    if (++j->stats.entries > j->limits.entries)
        return hf_err_set(&j->err, -EMSGSIZE, "the archive is refused: it has more than %u entries",
                          j->limits.entries);
    la_int64_t size = archive_entry_size_is_set(e) ? archive_entry_size(e) : 0;
    if (size < 0 || (uint64_t)size > j->limits.bytes - j->stats.bytes)
        return hf_err_set(&j->err, -EMSGSIZE,
                          "the archive is refused: it unpacks to more than %" PRIu64 " MiB",
                          j->limits.bytes >> 20);
    j->stats.bytes += (uint64_t)size;
    return 0;
}

/* Checks the type. 1: leave the entry out. */
static int check_type(struct job *j, struct archive_entry *e, const char *name)
{
    if (archive_entry_hardlink(e))
        return 0;
    switch (archive_entry_filetype(e)) {
    case AE_IFREG:
    case AE_IFDIR:
    case AE_IFLNK:
    case AE_IFIFO:
        return 0;
    case AE_IFCHR:
    case AE_IFBLK:
        if (!is_below_dev(name))
            return refuse(j, name, "is a device node");
        j->stats.devices_skipped++;
        return 1;
    default:
        return refuse(j, name, "is of an unknown kind");
    }
}

/* Makes names relative. 1: leave the entry out. */
static int check_names(struct job *j, struct archive_entry *e, const char **ret_name)
{
    const char *given = archive_entry_pathname(e);
    if (!given)
        return hf_err_set(&j->err, -EINVAL, "the archive is refused: an entry has no name");
    const char *name = relative_name(given);
    if (!name)
        return refuse(j, given, "has \"..\" in it, or too many levels");
    if (!*name)
        return 1; /* the root directory itself */
    const char *link = archive_entry_hardlink(e);
    if (link) {
        const char *to = relative_name(link);
        if (!to || !*to)
            return refuse(j, given, "is a hard link to something outside");
        hf_auto_free char *copy = hf_xstrdup(to);
        archive_entry_set_hardlink(e, copy);
    }
    hf_auto_free char *copy = hf_xstrdup(name);
    archive_entry_set_pathname(e, copy);
    *ret_name = archive_entry_pathname(e);
    return 0;
}

static int extract_entry(struct job *j, struct archive_entry *e)
{
    const char *name = NULL;
    int r = count_entry(j, e);
    if (r == 0)
        r = check_names(j, e, &name);
    if (r == 0)
        r = check_type(j, e, name);
    if (r != 0)
        return r < 0 ? r : 0;
    filter_xattrs(e);
    /* A warning here is an attribute or time that the pool's file system refused: no reason to fail. But one
     * for an unsafe name comes as ARCHIVE_FAILED. */
    if (archive_write_header(j->out, e) < ARCHIVE_WARN)
        return archive_failure(j, j->out, name);
    /* In pax archives a hard link may carry the content. */
    if (archive_entry_size_is_set(e) && archive_entry_size(e) > 0) {
        r = copy_data(j, name);
        if (r < 0)
            return r;
    }
    if (archive_write_finish_entry(j->out) < ARCHIVE_WARN)
        return archive_failure(j, j->out, name);
    return 0;
}

static int open_archives(struct job *j)
{
    j->in = archive_read_new();
    j->out = archive_write_disk_new();
    if (!j->in || !j->out)
        return hf_err_set(&j->err, -ENOMEM, "out of memory");
    /* ARCHIVE_WARN would mean that an external program decompresses: not wanted. */
    if (archive_read_support_format_tar(j->in) != ARCHIVE_OK ||
        archive_read_support_filter_gzip(j->in) != ARCHIVE_OK ||
        archive_read_support_filter_xz(j->in) != ARCHIVE_OK ||
        archive_read_support_filter_zstd(j->in) != ARCHIVE_OK)
        return hf_err_set(&j->err, -ENOSYS, "libarchive was built without gzip, xz or zstd");
    (void)archive_write_disk_set_options(j->out, EXTRACT_FLAGS);
    if (archive_read_open_fd(j->in, j->tar_fd, READ_BLOCK) != ARCHIVE_OK)
        return archive_failure(j, j->in, NULL);
    return 0;
}

static int extract_all(struct job *j)
{
    if (unshare(CLONE_FS) < 0 || chdir(j->dest_dir) < 0)
        return hf_err_set(&j->err, -errno, "cannot enter %s: %s", j->dest_dir, strerror(errno));
    (void)umask(0); /* this thread's only, since CLONE_FS */
    int r = open_archives(j);
    while (r == 0) {
        struct archive_entry *e;
        int ar = archive_read_next_header(j->in, &e);
        if (ar == ARCHIVE_EOF)
            break;
        if (ar < ARCHIVE_WARN)
            return archive_failure(j, j->in, NULL);
        r = extract_entry(j, e);
    }
    if (r == 0 && j->stats.entries == 0)
        return hf_err_set(&j->err, -EINVAL, "the archive is empty; a tar of a root file system is wanted");
    /* Closing sets the directories' modes and times. */
    if (r == 0 && archive_write_close(j->out) < ARCHIVE_WARN)
        return archive_failure(j, j->out, NULL);
    return r;
}

static void *extract_thread(void *arg)
{
    struct job *j = arg;
    j->r = extract_all(j);
    (void)archive_read_free(j->in);
    (void)archive_write_free(j->out);
    return NULL;
}

int hf_template_extract(int tar_fd, const char *dest_dir, const struct hf_template_limits *limits,
                        struct hf_template_stats *ret, struct hf_err *err)
{
    struct job j = {.tar_fd = tar_fd, .dest_dir = dest_dir};
    j.limits.bytes = limits && limits->bytes ? limits->bytes : HF_TEMPLATE_BYTES_MAX;
    j.limits.entries = limits && limits->entries ? limits->entries : HF_TEMPLATE_ENTRIES_MAX;
    pthread_t thread;
    int r = pthread_create(&thread, NULL, extract_thread, &j);
    if (r != 0)
        return hf_err_set(err, -r, "cannot start a thread: %s", strerror(r));
    (void)pthread_join(thread, NULL);
    if (j.r < 0) {
        if (err)
            *err = j.err;
        return j.r;
    }
    if (ret)
        *ret = j.stats;
    return 0;
}
