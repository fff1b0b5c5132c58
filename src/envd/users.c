/* Users and groups of the box, read from its own files: a static binary has no NSS, and envd must not load
 * code from the image anyway. Loop thread or a worker; nothing is cached. */
#include "envd/users.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define PASSWD_PATH "/etc/passwd"
#define GROUP_PATH "/etc/group"
#define PASSWD_FIELDS 7
#define GROUP_FIELDS 4
#define ID_MAX 0xfffffffeu /* 2^32-1 means "no id" to the kernel */

/* The image owns these files: a FIFO in their place must not hang the daemon. */
static int read_db(const char *path, struct hf_buf *out)
{
    hf_auto_close int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    for (;;) {
        int r = hf_buf_reserve(out, 4096);
        if (r < 0)
            return r;
        ssize_t n = read(fd, out->p + out->n, 4096);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return 0;
        out->n += (size_t)n;
    }
}

/* Next line without its newline; false at the end. */
static bool next_line(struct hf_str *rest, struct hf_str *ret)
{
    if (!rest->n)
        return false;
    const char *nl = memchr(rest->p, '\n', rest->n);
    size_t n = nl ? (size_t)(nl - rest->p) : rest->n;
    *ret = (struct hf_str){rest->p, n};
    size_t skip = nl ? n + 1 : n;
    *rest = (struct hf_str){rest->p + skip, rest->n - skip};
    return true;
}

/* Splits at ':' into exactly n fields. */
static bool split_line(struct hf_str line, struct hf_str *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *colon = line.n ? memchr(line.p, ':', line.n) : NULL;
        if (!colon && i + 1 < n)
            return false;
        size_t len = colon ? (size_t)(colon - line.p) : line.n;
        fields[i] = (struct hf_str){line.p, len};
        size_t skip = colon ? len + 1 : len;
        line = (struct hf_str){line.p + skip, line.n - skip};
    }
    return line.n == 0;
}

static bool str_same(struct hf_str a, struct hf_str b)
{
    return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

static int copy_field(struct hf_str s, char *out, size_t cap)
{
    if (s.n >= cap || memchr(s.p, '\0', s.n))
        return -EINVAL;
    memcpy(out, s.p, s.n);
    out[s.n] = '\0';
    return 0;
}

static int fill_user(const struct hf_str f[PASSWD_FIELDS], struct envd_user *u)
{
    uint64_t uid, gid;
    if (hf_parse_u64(f[2], ID_MAX, &uid) < 0 || hf_parse_u64(f[3], ID_MAX, &gid) < 0)
        return -EINVAL;
    u->uid = (uid_t)uid;
    u->gid = (gid_t)gid;
    if (copy_field(f[0], u->name, sizeof(u->name)) < 0 || copy_field(f[5], u->home, sizeof(u->home)) < 0 ||
        copy_field(f[6], u->shell, sizeof(u->shell)) < 0)
        return -EINVAL;
    if (!u->home[0])
        (void)snprintf(u->home, sizeof(u->home), "/");
    if (!u->shell[0])
        (void)snprintf(u->shell, sizeof(u->shell), "/bin/sh");
    return 0;
}

/* A name wins over a number: a user may be called "1000". */
static int find_user(struct hf_str db, const char *name, bool by_id, struct envd_user *ret)
{
    struct hf_str want = hf_str_c(name), line;
    while (next_line(&db, &line)) {
        struct hf_str f[PASSWD_FIELDS];
        if (!split_line(line, f, PASSWD_FIELDS))
            continue;
        if (str_same(by_id ? f[2] : f[0], want))
            return fill_user(f, ret);
    }
    return -ENOENT;
}

static bool member_of(struct hf_str members, const char *name)
{
    size_t n = strlen(name);
    while (members.n) {
        const char *comma = memchr(members.p, ',', members.n);
        size_t len = comma ? (size_t)(comma - members.p) : members.n;
        if (len == n && memcmp(members.p, name, n) == 0)
            return true;
        size_t skip = comma ? len + 1 : len;
        members = (struct hf_str){members.p + skip, members.n - skip};
    }
    return false;
}

static void add_groups(struct hf_str db, struct envd_user *u)
{
    u->groups[0] = u->gid;
    u->n_groups = 1;
    struct hf_str line;
    while (next_line(&db, &line) && u->n_groups < ENVD_GROUPS_MAX) {
        struct hf_str f[GROUP_FIELDS];
        uint64_t gid;
        if (!split_line(line, f, GROUP_FIELDS) || hf_parse_u64(f[2], ID_MAX, &gid) < 0)
            continue;
        if ((gid_t)gid != u->gid && member_of(f[3], u->name))
            u->groups[u->n_groups++] = (gid_t)gid;
    }
}

int users_lookup(const char *passwd, const char *group, const char *name, struct envd_user *ret,
                 struct hf_err *err)
{
    hf_auto_buf struct hf_buf db = HF_BUF_INIT(USERS_FILE_MAX), groups = HF_BUF_INIT(USERS_FILE_MAX);
    struct envd_user u = {0};
    int r = read_db(passwd, &db);
    if (r == -EMFILE || r == -ENFILE || r == -ENOMEM || r == -EIO) /* that says nothing of the name */
        return hf_err_http(err, r, 503, "can't read %s: %s; try again", passwd, strerror(-r));
    if (r == 0)
        r = find_user((struct hf_str){db.p, db.n}, name, false, &u);
    if (r == -ENOENT)
        r = find_user((struct hf_str){db.p, db.n}, name, true, &u);
    if (r < 0)
        return hf_err_http(err, -ENOENT, 401, "invalid username: '%s'", name);
    /* Without a group file the user has its own group only. */
    (void)!read_db(group, &groups);
    add_groups((struct hf_str){groups.p, groups.n}, &u);
    *ret = u;
    return 0;
}

int envd_user_lookup(const struct envd *e, const char *name, struct envd_user *ret, struct hf_err *err)
{
    if (!name || !*name)
        name = e->default_user ? e->default_user : "user";
    return users_lookup(PASSWD_PATH, GROUP_PATH, name, ret, err);
}

/* Both files have the name in the first field and the id in the third. */
static void name_of_id(const char *path, size_t n_fields, uint32_t id, char *out, size_t n)
{
    char want[16];
    (void)snprintf(want, sizeof(want), "%u", id);
    hf_auto_buf struct hf_buf db = HF_BUF_INIT(USERS_FILE_MAX);
    (void)!read_db(path, &db);
    struct hf_str rest = {db.p, db.n}, line;
    while (next_line(&rest, &line)) {
        struct hf_str f[PASSWD_FIELDS];
        if (split_line(line, f, n_fields) && hf_str_eq(f[2], want) && copy_field(f[0], out, n) == 0)
            return;
    }
    (void)snprintf(out, n, "%s", want);
}

void envd_user_name(uid_t uid, char *out, size_t n)
{
    name_of_id(PASSWD_PATH, PASSWD_FIELDS, uid, out, n);
}

void envd_group_name(gid_t gid, char *out, size_t n)
{
    name_of_id(GROUP_PATH, GROUP_FIELDS, gid, out, n);
}

const char *users_name(struct users_names *n, uid_t uid)
{
    size_t i = uid % USERS_MEMO_MAX;
    if (!n->user[i].set || n->user[i].id != uid) {
        n->user[i].id = uid;
        n->user[i].set = true;
        envd_user_name(uid, n->user[i].name, sizeof(n->user[i].name));
    }
    return n->user[i].name;
}

const char *users_group(struct users_names *n, gid_t gid)
{
    size_t i = gid % USERS_MEMO_MAX;
    if (!n->group[i].set || n->group[i].id != gid) {
        n->group[i].id = gid;
        n->group[i].set = true;
        envd_group_name(gid, n->group[i].name, sizeof(n->group[i].name));
    }
    return n->group[i].name;
}
