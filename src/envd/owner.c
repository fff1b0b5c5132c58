/* Looking up a socket's owner. The kernel tells a socket's inode by its addresses, and a process's inodes by
 * /proc/PID/fd, whose links only the process's own user may read: root of a box has no CAP_SYS_PTRACE. So the
 * worker thread takes each user's file system identity while it looks. */
#include "envd/owner.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/path.h"

#define LINE_MAX_BYTES 512
#define LISTENING "0A"
#define LOOK_AT_CLOCK 128u /* links between two looks at the clock */

/* ---- the socket ---- */

static bool read_hex(const char *p, size_t n, uint32_t *ret)
{
    char text[9] = "", *end;
    memcpy(text, p, n);
    *ret = (uint32_t)strtoul(text, &end, 16);
    return end == text + n;
}

/* "0100007F:1F90", or 32 hex digits: words of the address as the kernel has them in memory. */
static bool read_end(struct hf_str s, struct hf_addr *addr, uint16_t *port)
{
    uint32_t words[4], number;
    size_t n = s.n > 32 ? 4 : 1;
    uint16_t unused;
    if (s.n != n * 8 + 5 || s.p[n * 8] != ':' || !read_hex(s.p + n * 8 + 1, 4, &number))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!read_hex(s.p + i * 8, 8, &words[i]))
            return false;
    *port = (uint16_t)number;
    if (n == 1) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {words[0]}};
        return hf_addr_from_sockaddr((struct sockaddr *)&a, addr, &unused) == 0;
    }
    struct sockaddr_in6 a = {.sin6_family = AF_INET6};
    memcpy(&a.sin6_addr, words, sizeof(words));
    return hf_addr_from_sockaddr((struct sockaddr *)&a, addr, &unused) == 0;
}

static bool next_field(struct hf_str *line, struct hf_str *ret)
{
    size_t skip = 0, n = 0;
    while (skip < line->n && (line->p[skip] == ' ' || line->p[skip] == '\n'))
        skip++;
    while (skip + n < line->n && line->p[skip + n] != ' ' && line->p[skip + n] != '\n')
        n++;
    *ret = (struct hf_str){line->p + skip, n};
    *line = (struct hf_str){line->p + skip + n, line->n - skip - n};
    return n > 0;
}

/* sl local remote state queues timer retransmits uid timeout inode … */
bool owner_match_line(struct hf_str line, const struct owner_ends *want, uint64_t *ret_inode)
{
    struct hf_str f[10];
    struct owner_ends is;
    for (size_t i = 0; i < HF_ARRAY_LEN(f); i++)
        if (!next_field(&line, &f[i]))
            return false;
    return read_end(f[1], &is.local, &is.local_port) && read_end(f[2], &is.remote, &is.remote_port) &&
           !hf_str_eq(f[3], LISTENING) && is.local_port == want->local_port &&
           (!want->remote_port || is.remote_port == want->remote_port) &&
           (!want->local.family || hf_addr_equal(&is.local, &want->local)) &&
           (!want->remote.family || hf_addr_equal(&is.remote, &want->remote)) &&
           hf_parse_u64(f[9], UINT64_MAX, ret_inode) == 0 && *ret_inode;
}

static int search_table(const char *path, const struct owner_ends *want, uint64_t *inode)
{
    char line[LINE_MAX_BYTES];
    uint64_t found;
    FILE *f = fopen(path, "re");
    if (!f)
        return errno == ENOENT ? 0 : -errno; /* a box without IPv6 */
    int r = 0;
    for (unsigned i = 0; r == 0 && i < OWNER_LINES_MAX && fgets(line, sizeof(line), f); i++) {
        if (!owner_match_line(hf_str_c(line), want, &found))
            continue;
        r = *inode && *inode != found ? -ENOTUNIQ : 0;
        *inode = found;
    }
    (void)fclose(f);
    return r;
}

/* ---- the process ---- */

static bool holds(int fd_dir, const char *name, const char *link, unsigned *looked, uint64_t end_ms, int *ret)
{
    char text[64];
    ssize_t n = readlinkat(fd_dir, name, text, sizeof(text) - 1);
    if (++*looked % LOOK_AT_CLOCK == 0 && hf_mono_ms() > end_ms)
        *ret = -ETIMEDOUT;
    if (n <= 0)
        return false;
    text[n] = '\0';
    return strcmp(text, link) == 0;
}

/* 1: the process has it. */
static int search_process(int proc_fd, const char *pid, const char *link, unsigned *looked, uint64_t end_ms)
{
    struct stat st;
    hf_auto_close int dir = openat(proc_fd, pid, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || fstat(dir, &st) < 0)
        return 0; /* just ended */
    (void)setfsgid(st.st_gid);
    (void)setfsuid(st.st_uid);
    int fds = openat(dir, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fds < 0 ? NULL : fdopendir(fds);
    int r = 0;
    for (struct dirent *e; d && r == 0 && (e = readdir(d));)
        if (e->d_name[0] != '.' && holds(fds, e->d_name, link, looked, end_ms, &r))
            r = 1;
    (void)setfsuid(0);
    (void)setfsgid(0);
    if (d)
        (void)closedir(d);
    else
        (void)hf_close(fds);
    return r;
}

static int search_processes(uint64_t inode, pid_t *ret)
{
    char link[48];
    unsigned looked = 0;
    uint64_t pid = 0, end_ms = hf_mono_ms() + OWNER_MS;
    (void)snprintf(link, sizeof(link), "socket:[%llu]", (unsigned long long)inode);
    DIR *proc = opendir("/proc");
    if (!proc)
        return -errno;
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(proc));)
        if (hf_parse_u64(hf_str_c(e->d_name), INT32_MAX, &pid) == 0 && (pid_t)pid != getpid())
            r = search_process(dirfd(proc), e->d_name, link, &looked, end_ms);
    (void)closedir(proc);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    *ret = (pid_t)pid;
    return 0;
}

/* pid (comm) state ppid pgrp session …; comm may hold anything. */
static bool read_relations(pid_t pid, pid_t *ret_parent, pid_t *ret_session)
{
    char path[32];
    int parent, group, session;
    hf_auto_free char *text = NULL;
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (hf_read_file(path, 4096, &text, NULL) < 0)
        return false;
    const char *p = strrchr(text, ')');
    if (!p || sscanf(p + 1, " %*c %d %d %d", &parent, &group, &session) != 3)
        return false;
    *ret_parent = parent;
    *ret_session = session;
    return true;
}

static void trace_back(struct owner *o)
{
    pid_t parent = 0, session = 0;
    for (pid_t pid = o->pid; pid > 1 && pid != getpid() && o->n_chain + 2 <= OWNER_CHAIN_MAX; pid = parent) {
        o->chain[o->n_chain++] = pid;
        if (!read_relations(pid, &parent, &session))
            return;
        o->chain[o->n_chain++] = session;
    }
}

int owner_find(const struct owner_ends *want, struct owner *ret)
{
    uint64_t inode = 0;
    struct owner o = {0};
    int r = search_table("/proc/net/tcp", want, &inode);
    if (r == 0)
        r = search_table("/proc/net/tcp6", want, &inode);
    if (r == 0)
        r = inode ? search_processes(inode, &o.pid) : -ENOENT;
    if (r < 0)
        return r;
    trace_back(&o);
    *ret = o;
    return 0;
}
