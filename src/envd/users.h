/* The parts of users.c and path.c that take their inputs as arguments: for tests, fuzzers and worker threads.
 */
#pragma once

#include "envd/envd.h"

#define USERS_FILE_MAX (4u * 1024u * 1024u) /* bytes of /etc/passwd or /etc/group that are read */

/* envd_user_lookup on the given files. name is not empty. -ENOENT with err "invalid username: '%s'". */
int users_lookup(const char *passwd, const char *group, const char *name, struct envd_user *ret,
                 struct hf_err *err) HF_MUST_USE;

/* Remembers names of ids; zero-initialise, one owner. Listing 100,000 entries must not read /etc/passwd
 * 100,000 times. */
#define USERS_MEMO_MAX 16
struct users_names {
    struct {
        uint32_t id;
        char name[64];
        bool set;
    } user[USERS_MEMO_MAX], group[USERS_MEMO_MAX];
};
const char *users_name(struct users_names *n, uid_t uid);
const char *users_group(struct users_names *n, gid_t gid);

/* envd_resolve_path with the two settings it depends on; workdir NULL = home. Pure. */
int path_resolve(const char *home, const char *workdir, struct hf_str path, char **ret,
                 struct hf_err *err) HF_MUST_USE;
/* Last component of a cleaned absolute path; "/" for the root. Points into path. */
const char *path_base(const char *path);
/* Directory part of a cleaned absolute path, malloc'ed. */
char *path_dir(const char *path) HF_MUST_USE;
/* base "/" + name without a double slash, malloc'ed. */
char *path_join(const char *base, const char *name) HF_MUST_USE;
