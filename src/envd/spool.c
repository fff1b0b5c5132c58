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

static void empty_window(struct spool *s)
{
    if (s->on_disk)
        total -= s->end - s->start;
    s->start = s->end;
}

void spool_done(struct spool *s)
{
    empty_window(s);
    s->fd = hf_close(s->fd);
    if (s->on_disk)
        (void)unlink(s->path);
    hf_buf_done(&s->mem);
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

/* Gives blocks back and starts over: the file may hold nothing useful any more. */
static void restart(struct spool *s, uint64_t at)
{
    empty_window(s);
    s->start = s->end = s->base = at;
    if (s->fd >= 0 && ftruncate(s->fd, 0) < 0)
        s->fd = hf_close(s->fd);
}

static void cut_front(struct spool *s)
{
    uint64_t max = window_max();
    if (s->end - s->start <= max + SPOOL_PUNCH_STEP)
        return;
    uint64_t keep = s->end - max;
    if (fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)(keep - s->base)) < 0) {
        restart(s, s->end); /* a file system that can't punch */
        return;
    }
    total -= keep - s->start;
    s->start = keep;
}

/* Moves what memory holds to the file. */
static int spill(struct spool *s)
{
    int r = open_file(s, O_CREAT | O_TRUNC);
    if (r == 0)
        r = write_at(s, s->mem.p, s->mem.n, s->start);
    if (r < 0)
        return r;
    s->on_disk = true;
    total += s->end - s->start;
    hf_buf_done(&s->mem);
    return 0;
}

void spool_add(struct spool *s, const void *p, size_t n)
{
    if (!s->on_disk && hf_buf_add(&s->mem, p, n) == 0) {
        s->end += n;
        return;
    }
    int r = !s->path ? -ENOTSUP : s->on_disk ? open_file(s, 0) : spill(s);
    if (r == 0)
        r = write_at(s, p, n, s->end);
    s->failing = r < 0;
    if (r < 0) {
        hf_buf_clear(&s->mem);
        restart(s, s->end + n);
        return;
    }
    s->end += n;
    total += n;
    cut_front(s);
}

ssize_t spool_read(struct spool *s, uint64_t from, void *p, size_t n)
{
    if (from < s->start || from > s->end)
        return -ERANGE;
    n = HF_MIN(n, s->end - from);
    if (n == 0)
        return 0;
    if (!s->on_disk) {
        memcpy(p, s->mem.p + (from - s->start), n);
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
