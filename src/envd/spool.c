#include "envd/spool.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/path.h"

static uint64_t total; /* sum of all windows on disk */

uint64_t spool_total(void)
{
    return total;
}

void spool_init(struct spool *s, char *path)
{
    *s = (struct spool){.path = path, .fd = -1, .mem = HF_BUF_INIT(SPOOL_MEMORY)};
}

/* Where the part in the file ends and the part in memory begins. */
static uint64_t file_end(const struct spool *s)
{
    return s->end - s->mem.n;
}

/* Empties the window and gives its blocks back. */
static void drop(struct spool *s)
{
    total -= file_end(s) - s->start;
    hf_buf_done(&s->mem);
    s->start = s->base = s->end;
    if (s->fd >= 0 && ftruncate(s->fd, 0) < 0)
        s->fd = hf_close(s->fd);
}

void spool_done(struct spool *s)
{
    total -= file_end(s) - s->start;
    s->fd = hf_close(s->fd);
    if (s->on_disk)
        (void)unlink(s->path);
    hf_buf_done(&s->mem);
    s->start = s->end;
    free(hf_take_ptr(s->path));
}

void spool_rest(struct spool *s)
{
    s->fd = hf_close(s->fd);
}

static uint64_t window_max(void)
{
    return total > SPOOL_TOTAL_MAX ? SPOOL_WINDOW_MIN : SPOOL_WINDOW;
}

uint64_t spool_slack(const struct spool *s)
{
    return s->path && !s->failing ? window_max() / 2 : 0;
}

static int open_file(struct spool *s, int flags)
{
    if (!s->path)
        return -ENOTSUP;
    if (s->fd < 0)
        s->fd = open(s->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    return s->fd < 0 ? -errno : 0;
}

static int write_at(struct spool *s, const char *p, size_t n, uint64_t cursor)
{
    while (n > 0) {
        ssize_t w = pwrite(s->fd, p, n, (off_t)(cursor - s->base));
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return w < 0 ? -errno : -EIO;
        p += w;
        n -= (size_t)w;
        cursor += (uint64_t)w;
    }
    return 0;
}

static void cut_front(struct spool *s)
{
    uint64_t max = window_max();
    if (s->end - s->start <= max + SPOOL_PUNCH_STEP)
        return;
    uint64_t keep = s->end - max;
    if (fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)(keep - s->base)) < 0) {
        drop(s); /* a file system that can't punch */
        return;
    }
    total -= keep - s->start;
    s->start = keep;
}

/* Moves what memory holds to the file. */
static int flush(struct spool *s)
{
    int r = open_file(s, O_CREAT);
    if (r == 0)
        r = write_at(s, s->mem.p, s->mem.n, file_end(s));
    if (r < 0)
        return r;
    s->on_disk = true;
    total += s->mem.n;
    hf_buf_done(&s->mem);
    return 0;
}

static void keep_in_memory(struct spool *s, const void *p, size_t n)
{
    s->mem.max = HF_MAX((size_t)SPOOL_MEMORY, n);
    if (hf_buf_add(&s->mem, p, n) < 0)
        abort(); /* the callers look at the size */
    s->end += n;
}

void spool_add(struct spool *s, const void *p, size_t n)
{
    if (!s->on_disk && s->mem.n + n <= SPOOL_MEMORY) {
        keep_in_memory(s, p, n);
        return;
    }
    if (flush(s) < 0)
        drop(s);
    int r = open_file(s, O_CREAT);
    if (r == 0)
        r = write_at(s, p, n, s->end);
    s->failing = r < 0;
    if (r < 0) {
        keep_in_memory(s, p, n); /* readers that are behind can still have what the file holds, and this */
        return;
    }
    s->on_disk = true;
    s->end += n;
    total += n;
    cut_front(s);
}

ssize_t spool_read(struct spool *s, uint64_t from, void *p, size_t n)
{
    if (from < s->start || from > s->end)
        return -ERANGE;
    uint64_t border = file_end(s);
    n = HF_MIN(n, (from < border ? border : s->end) - from);
    if (n == 0)
        return 0;
    if (from >= border) {
        memcpy(p, s->mem.p + (from - border), n);
        return (ssize_t)n;
    }
    int r = open_file(s, 0);
    if (r < 0)
        return r;
    ssize_t got = pread(s->fd, p, n, (off_t)(from - s->base));
    return got < 0 ? -errno : got == 0 ? -EIO : got;
}

int spool_prepare(const char *dir)
{
    int r = hf_mkdir_p(dir, 0700);
    if (r < 0)
        return r;
    DIR *d = opendir(dir);
    if (!d)
        return -errno;
    for (struct dirent *entry; (entry = readdir(d));)
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(d), entry->d_name, 0);
    (void)closedir(d);
    return 0;
}
