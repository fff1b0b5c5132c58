/* Talking to CRIU: `criu swrk FD`, one request over a seqpacket socket. The messages are CRIU's
 * images/rpc.proto (MIT), encoded by hand: there are a handful of fields. */
#pragma once

#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"

#define HF_CRIU_TIMEOUT_MS 120000 /* of one step: nothing heard for that long is a failure */
#define HF_CRIU_MSG_MAX 65536u
#define HF_CRIU_FDS_MAX 8
#define HF_CRIU_FD_FIRST 10 /* inherited descriptors are placed from here on in CRIU's process */

/* Fields of criu_opts. */
enum hf_criu_opt {
    CRIU_IMAGES_DIR_FD = 1,
    CRIU_PID = 2,
    CRIU_LEAVE_RUNNING = 3,
    CRIU_FILE_LOCKS = 8,
    CRIU_LOG_LEVEL = 9,
    CRIU_LOG_FILE = 10,
    CRIU_NOTIFY_SCRIPTS = 12,
    CRIU_ROOT = 13,
    CRIU_WORK_DIR_FD = 17,
    CRIU_LINK_REMAP = 18,
    CRIU_FORCE_IRMAP = 21,
    CRIU_RST_SIBLING = 26,
    CRIU_INHERIT_FD = 27,
    CRIU_MANAGE_CGROUPS_MODE = 34, /* 0 = ignore */
    CRIU_GHOST_LIMIT = 35,
    CRIU_IRMAP_SCAN_PATH = 36,
    CRIU_EXTERNAL = 37,
    CRIU_EMPTY_NS = 38,
    CRIU_FREEZE_CGROUP = 44,
    CRIU_TCP_CLOSE = 52,
    CRIU_NETWORK_LOCK = 64, /* 3 = skip */
    CRIU_IMAGES_DIR = 68,   /* with CRIU_IMAGES_DIR_FD -1 */
};

enum hf_criu_type { CRIU_DUMP = 1, CRIU_RESTORE = 2, CRIU_NOTIFY = 6 };

struct hf_criu_request {
    enum hf_criu_type type;
    struct hf_buf opts; /* encoded criu_opts */
    int fds[HF_CRIU_FDS_MAX];
    size_t n_fds;
    /* In the child, before execve: the place to join a cgroup. May be NULL. */
    int (*before_exec)(void *arg);
    /* A stage of a restore was reached; pid of the root task or 0. */
    int (*notify)(void *arg, struct hf_str stage, pid_t pid, struct hf_err *err);
    void *arg;
};

void hf_criu_opt_int(struct hf_criu_request *q, enum hf_criu_opt field, uint64_t v);
void hf_criu_opt_text(struct hf_criu_request *q, enum hf_criu_opt field, const char *s);
/* The restored task gets fd for what the image calls key. */
void hf_criu_opt_inherit(struct hf_criu_request *q, const char *key, int fd);
/* Runs it to its end. log_dir_fd has log_name, whose last error is told. -EIO when CRIU says no. */
int hf_criu_run(const char *criu, struct hf_criu_request *q, int log_dir_fd, const char *log_name,
                struct hf_err *err) HF_MUST_USE;
void hf_criu_request_done(struct hf_criu_request *q);

/* Parses a criu_resp. Pure. -EBADMSG. */
struct hf_criu_answer {
    uint64_t type, success, pid, cr_errno;
    struct hf_str stage, msg; /* views */
};
int hf_criu_parse(struct hf_str text, struct hf_criu_answer *ret) HF_MUST_USE;
