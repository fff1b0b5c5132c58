/* Network namespaces that outlive their processes, and work inside them. Everything that has to run inside
 * another namespace runs in a helper thread, so that the caller's never changes. */
#pragma once

#include "base/err.h"

/* Runs fn(arg) in a thread whose network namespace is ns_fd's; -1: a new one that goes with the thread. Its
 * return value, or -errno. */
int hf_ns_run(int ns_fd, int (*fn)(void *arg), void *arg) HF_MUST_USE;
/* Finds or makes the pinned namespace, as `ip netns add` does (so that `ip netns exec` finds it). A file that
 * is not a mounted namespace (half-made, or of before a reboot) is finished. *ret_made: it is new. */
int hf_ns_pin(const char *path, int *ret_fd, bool *ret_made, struct hf_err *err) HF_MUST_USE;
/* Takes the pin away; missing is success. The namespace goes with its last user. */
int hf_ns_unpin(const char *path, struct hf_err *err) HF_MUST_USE;
/* -ENOENT when it is not pinned. */
int hf_ns_open(const char *path) HF_MUST_USE;
/* The program's path, or NULL. */
const char *hf_nft_program(void);
/* Loads text with `nft -f -` in the namespace (-1: the caller's). Blocking: 5 … 50 ms. */
int hf_nft_load(int ns_fd, const char *text, size_t n, struct hf_err *err) HF_MUST_USE;
/* Exclusive lock that lives with the returned fd: one maker of fabric `id` at a time. */
int hf_ns_lock(const char *id, struct hf_err *err) HF_MUST_USE;
/* Removes the lock's file; the caller holds the lock. */
void hf_ns_lock_remove(const char *id);
