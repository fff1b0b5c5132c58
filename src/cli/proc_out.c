/* Output of a followed process on its way to our own stdout or stderr. A slow reader there must neither stop
 * the stream (the sandbox would throw away what it can't deliver) nor our handling of signals: what does not
 * fit is kept, first in memory, then in a file without a name. */
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include "cli/proc_int.h"

#define MEMORY_MAX (8u * 1024u * 1024u)
#define REFILL (1024u * 1024u) /* bytes read back from the file at once */
/* A pipe that polls writable takes this much without blocking (PIPE_BUF). */
#define CHUNK_PIPE 4096u
#define CHUNK_FILE (256u * 1024u)

void proc_out_init(struct proc_out *o, int fd)
{
    struct stat st;
    *o = (struct proc_out){.fd = fd, .spill = -1, .chunk = CHUNK_PIPE};
    o->mem = HF_BUF_INIT(MEMORY_MAX + HF_PROC_MESSAGE_MAX);
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        o->chunk = CHUNK_FILE;
}

void proc_out_done(struct proc_out *o)
{
    hf_buf_done(&o->mem);
    o->spill = hf_close(o->spill);
}

static int spill(struct proc_out *o, const char *p, size_t n)
{
    const char *dir = getenv("TMPDIR");
    if (o->spill < 0)
        o->spill = open(dir && *dir ? dir : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (o->spill < 0)
        return -errno;
    while (n) {
        ssize_t w = pwrite(o->spill, p, n, (off_t)o->spill_w);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -errno;
        o->spill_w += (uint64_t)w;
        p += w;
        n -= (size_t)w;
    }
    return 0;
}

int proc_out_push(struct proc_out *o, const char *p, size_t n)
{
    if (o->spill_w == o->spill_r && o->mem.n - o->mem_r + n <= MEMORY_MAX)
        return hf_buf_add(&o->mem, p, n);
    return spill(o, p, n);
}

bool proc_out_pending(const struct proc_out *o)
{
    return o->mem_r < o->mem.n || o->spill_r < o->spill_w;
}

/* The memory is empty: takes the next part of the file. */
static int refill(struct proc_out *o)
{
    size_t want = (size_t)HF_MIN(o->spill_w - o->spill_r, (uint64_t)REFILL);
    hf_buf_clear(&o->mem);
    o->mem_r = 0;
    int r = hf_buf_reserve(&o->mem, want);
    ssize_t n = r < 0 ? r : pread(o->spill, o->mem.p, want, (off_t)o->spill_r);
    if (n <= 0)
        return n < 0 ? -errno : -EIO;
    o->mem.n = (size_t)n;
    o->spill_r += (uint64_t)n;
    if (o->spill_r == o->spill_w) {
        o->spill_r = o->spill_w = 0;
        if (ftruncate(o->spill, 0) < 0)
            return -errno;
    }
    return 0;
}

int proc_out_pump(struct proc_out *o)
{
    struct pollfd pfd = {.fd = o->fd, .events = POLLOUT};
    while (proc_out_pending(o)) {
        if (o->mem_r == o->mem.n) {
            int r = refill(o);
            if (r < 0)
                return r;
        }
        int ready = poll(&pfd, 1, 0);
        if (ready <= 0)
            return ready < 0 && errno != EINTR ? -errno : 0;
        ssize_t w = write(o->fd, o->mem.p + o->mem_r, HF_MIN(o->mem.n - o->mem_r, o->chunk));
        if (w < 0 && errno != EINTR && errno != EAGAIN)
            return -errno;
        o->mem_r += (size_t)HF_MAX(w, (ssize_t)0);
        if (o->mem_r == o->mem.n) {
            hf_buf_clear(&o->mem);
            o->mem_r = 0;
        }
    }
    return 0;
}
