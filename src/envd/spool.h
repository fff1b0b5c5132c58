/* The spooled output of one stream of one process: a window of its latest bytes, addressed by cursors that
 * count from the process's first byte. Loop thread only; writes and reads go to the page cache.
 *
 * Small outputs stay in memory; beyond SPOOL_MEMORY they go to a file in the box, so they count against the
 * box's disk quota. The file is linear (offset = cursor - base) and its old part is punched out. A piece that
 * can't be written (disk full) stays in memory until the next one comes; if it still can't be written then,
 * the window is emptied: late readers lose bytes, live ones never. */
#pragma once

#include <sys/types.h>

#include "base/buf.h"

#define SPOOL_DIR "/var/lib/holdfast/exec"
#define SPOOL_MEMORY 2048u                    /* bytes a stream keeps in memory before it gets a file */
#define SPOOL_WINDOW (8u * 1024u * 1024u)     /* bytes kept of one stream */
#define SPOOL_WINDOW_MIN (512u * 1024u)       /* the same while all windows together are over the total */
#define SPOOL_TOTAL_MAX (64u * 1024u * 1024u) /* bytes of all windows before new ones get the small size */
#define SPOOL_PUNCH_STEP (256u * 1024u)       /* the window may overshoot by this before it is cut */

struct spool {
    char *path;        /* of the file to be; NULL = memory only */
    struct hf_buf mem; /* the end of the window, not in the file (yet) */
    int fd;
    bool on_disk;              /* there is a file */
    bool failing;              /* the last write failed */
    uint64_t start, end, base; /* the window is [start, end) */
};

void spool_init(struct spool *s, char *path /* taken, may be NULL */);
/* Removes the file. */
void spool_done(struct spool *s);
/* Appends n bytes, n > 0; end always moves by n. */
void spool_add(struct spool *s, const void *p, size_t n);
/* Up to n bytes at the cursor `from`. The count (0 at the end), -ERANGE when `from` is outside the window, or
 * the errno of the read. */
ssize_t spool_read(struct spool *s, uint64_t from, void *p, size_t n) HF_MUST_USE;
/* Closes the descriptor of a finished stream; reading opens it again. */
void spool_rest(struct spool *s);
/* How far behind a reader may be without danger of losing bytes; 0 while nothing can be kept. */
uint64_t spool_slack(const struct spool *s);
/* Bytes of all windows. */
uint64_t spool_total(void);
/* Makes the directory and removes what an earlier run left in it. -errno: outputs stay in memory then. */
int spool_prepare(const char *dir) HF_MUST_USE;
