/* Which process of the box has a TCP socket. */
#pragma once

#include <sys/types.h>

#include "base/addr.h"

#define OWNER_MS 500u           /* a search gives up after this */
#define OWNER_LINES_MAX 131072u /* sockets of one table that are looked at */
#define OWNER_CHAIN_MAX 64u     /* entries of a process's line of descent */

/* Ends of a connection, as the box sees it. Address family 0 and remote port 0: any. */
struct owner_ends {
    struct hf_addr local, remote;
    uint16_t local_port, remote_port;
};

struct owner {
    pid_t pid;
    /* It, its session's leader, its parent, that one's session … up to envd: an exec is known by its leader.
     */
    pid_t chain[OWNER_CHAIN_MAX];
    size_t n_chain;
};

/* A line of /proc/net/tcp or tcp6: the inode of a connected socket with these ends. Pure. */
bool owner_match_line(struct hf_str line, const struct owner_ends *want, uint64_t *ret_inode);
/* Blocking, for a worker thread. -ENOENT: no such socket, or nobody's any more; -ENOTUNIQ: several, name the
 * remote end; -ETIMEDOUT. */
int owner_find(const struct owner_ends *want, struct owner *ret) HF_MUST_USE;
