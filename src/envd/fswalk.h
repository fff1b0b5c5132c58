/* Walks a directory tree of any depth with one open descriptor and no recursion: children are entered by name
 * without following links, parents through ".." and only if that is still the directory that was left (nobody
 * can lead the walk elsewhere by moving a directory). Blocking: for worker threads. */
#pragma once

#include <stdatomic.h>
#include <sys/types.h>

#include "base/buf.h"

#define FS_WALK_NAMES_MAX (256u * 1024u * 1024u) /* bytes of the names of one directory */

struct fs_walk_frame {
    char *name;         /* in its parent; NULL for the root of the walk */
    struct hf_buf list; /* records: one byte d_type, name, NUL */
    size_t *at;         /* offsets of the records */
    size_t n, i, cap;
    dev_t dev;
    ino_t ino;
};

struct fs_walk {
    int fd;       /* the directory that holds the current entry */
    size_t depth; /* 1 in the root */
    struct fs_walk_frame *frames;
    size_t cap;
    bool sorted;
    const atomic_bool *cancelled; /* may be NULL */
};

enum { FS_WALK_NEXT = 0, FS_WALK_DESCEND = 1 };

/* Callbacks return one of the above or a negative errno, which ends the walk. */
struct fs_walk_ops {
    int (*entry)(void *self, struct fs_walk *w, const char *name, unsigned char d_type);
    /* w->fd is the directory `name`, just entered. May be NULL. */
    int (*enter)(void *self, struct fs_walk *w, const char *name);
    /* Back from the directory `name`, w->fd is its parent; FS_WALK_DESCEND enters it once more. May be NULL.
     */
    int (*leave)(void *self, struct fs_walk *w, const char *name);
};

/* root_fd stays the caller's. sorted: bytewise by name. 0, -ECANCELED, -ESTALE when a directory was moved
 * away meanwhile, or another negative errno. */
int fs_walk(int root_fd, bool sorted, const atomic_bool *cancelled, const struct fs_walk_ops *ops,
            void *self) HF_MUST_USE;
/* d_type, asking the file when the file system did not say. */
unsigned char fs_walk_type(const struct fs_walk *w, const char *name, unsigned char d_type);
