/* What the parts of envd share: settings that /init brought, users, path rules. Loop thread only. */
#pragma once

#include <jansson.h>
#include <sys/types.h>
#include <uv.h>

#include "base/err.h"
#include "wire/http.h"

#define ENVD_VERSION "0.6.13"
#define ENVD_GROUPS_MAX 64

/* Listener tags (hf_req_listener_tag): who can reach a request. */
#define ENVD_TAG_CONTROL 1 /* ctl.sock: the daemon; control routes allowed, no token needed */
#define ENVD_TAG_PUBLIC 2  /* envd.sock: the proxy */
#define ENVD_TAG_TCP 3     /* TCP 49983 inside the box */

struct envd {
    uv_loop_t *loop;
    char *token;           /* X-Access-Token; NULL = none set */
    json_t *env;           /* user env from /init: object of strings */
    char *default_user;    /* "user" */
    char *default_workdir; /* NULL = the user's home */
    char *sandbox_id, *template_id;
    int64_t generation;    /* of the newest /init that told it; 0 = none so far */
    const char *ca_bundle; /* path of the trust store that holds /init's authority (static); NULL = none */
    /* read-only fds from the shim for /metrics, -1 = absent (env HOLDFAST_CGROUP_FDS) */
    int fd_mem_current, fd_mem_max, fd_mem_stat, fd_cpu_usage;
    uint32_t cpu_count;
    int fd_user_procs; /* file of the user cgroup's threads ("tasks", "cgroup.threads"; see forker.h), of its
                          processes or its directory; -1 = none */
    const char *spool_dir; /* where process output is spooled; NULL = in memory only */
    bool is_init;          /* PID 1 of a box: may set its clock and host name */
};

struct envd_user {
    char name[64];
    uid_t uid;
    gid_t gid;
    char home[256], shell[256];
    gid_t groups[ENVD_GROUPS_MAX];
    int n_groups;
};

/* users.c: reads /etc/passwd and /etc/group of the box itself (no NSS). name "" or NULL = default user.
 * 0, or -ENOENT with err "invalid username: '%s'", or another errno when envd is out of descriptors or
 * memory. Names only, as upstream; numeric ids are accepted too. */
int envd_user_lookup(const struct envd *e, const char *name, struct envd_user *ret,
                     struct hf_err *err) HF_MUST_USE;
/* Name of a uid / gid, the number as text if unknown. */
void envd_user_name(uid_t uid, char *out, size_t n);
void envd_group_name(gid_t gid, char *out, size_t n);

/* path.c: "" -> default workdir or home; "~" and "~/x" -> home; relative -> below default workdir or home;
 * absolute as is; then cleaned lexically. -EINVAL for an embedded NUL, -ENAMETOOLONG. malloc'ed. */
int envd_resolve_path(const struct envd *e, const struct envd_user *u, struct hf_str path, char **ret,
                      struct hf_err *err) HF_MUST_USE;

/* files.c: GET and POST /files, POST /files/compose. */
void files_handle(struct envd *e, struct hf_req *req);
/* init.c: true when the request may proceed; otherwise it was answered (401). */
bool envd_authorize(struct envd *e, struct hf_req *req);
