/* Watches a directory, or with recursive the tree below it, by inotify. Loop thread; trees are scanned in the
 * worker pool while the kernel keeps the events.
 *
 * A directory that appears in a recursively watched tree is watched and then looked into: what is already in
 * it is reported as CREATE (and WRITE for files with content), once, whether or not the kernel reports it
 * too. */
#pragma once

#include <uv.h>

#include "base/err.h"

/* Limits of one watcher. A process of the box can make the tree, so it must not choose envd's memory. */
#define WATCH_DIRS_MAX 65536u                /* directories; beyond: on_lost(-ENOSPC) */
#define WATCH_FOUND_MAX (8u * 1024u * 1024u) /* bytes of names that wait after a scan; beyond: -EOVERFLOW */

/* Order in which the types of one kernel event are reported. */
enum watch_type { WATCH_CREATE, WATCH_RENAME, WATCH_CHMOD, WATCH_WRITE, WATCH_REMOVE };

struct watcher_ops {
    /* The watches are in place: what happens from now on is reported. */
    void (*on_ready)(void *self);
    /* name is relative to the watched directory; "." for itself. */
    void (*on_event)(void *self, const char *name, enum watch_type type);
    /* Events were lost (the kernel's queue ran over, or a new directory could not be watched). err says why.
     * Before on_ready it means that the watcher can't start. */
    void (*on_lost)(void *self, const struct hf_err *err);
};

struct watcher;
/* path: an existing directory. Nothing is called before this returns. */
int watcher_new(uv_loop_t *loop, const char *path, bool recursive, const struct watcher_ops *ops, void *self,
                struct watcher **ret, struct hf_err *err) HF_MUST_USE;
/* No callback comes after this. */
void watcher_free(struct watcher *w);
/* Stops and restarts the events, also from within on_event; meanwhile the kernel keeps them
 * (fs.inotify.max_queued_events). */
void watcher_pause(struct watcher *w);
void watcher_resume(struct watcher *w);
