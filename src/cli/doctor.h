/* `holdfast doctor`: what this machine has, what each missing thing costs, and the command that fixes it. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "control/config.h"

enum hf_check_status {
    HF_CHECK_OK,
    HF_CHECK_INFO, /* absent, and nothing needs it yet */
    HF_CHECK_WARN, /* sandboxes work, with less */
    HF_CHECK_FAIL, /* sandboxes do not work */
    HF_CHECK_SKIP, /* could not be tried */
};

struct hf_check_result {
    enum hf_check_status status;
    char detail[240]; /* what was found */
    char cost[240];   /* what is lost, "" when nothing */
    char fix[240];    /* a command or a sentence, "" when nothing */
};

/* What the checks look at. */
struct hf_doctor {
    const struct hf_config *cfg;
    char *data_dir; /* cfg's, or its nearest parent that exists */
    char *run_dir;
    bool root;
};

struct hf_check {
    const char *id, *title;
    /* Fills ret, which is HF_CHECK_OK and empty before. */
    void (*fn)(const struct hf_doctor *d, struct hf_check_result *ret);
};

/* Each ends with a NULL id. */
extern const struct hf_check hf_doctor_userns[]; /* doctor_kernel.c; first of all */
extern const struct hf_check hf_doctor_rights[]; /* doctor_host.c */
extern const struct hf_check hf_doctor_kernel[]; /* doctor_kernel.c */
extern const struct hf_check hf_doctor_disk[];   /* doctor_disk.c */
extern const struct hf_check hf_doctor_net[];    /* doctor_net.c */
extern const struct hf_check hf_doctor_memory[]; /* doctor_memory.c */
extern const struct hf_check hf_doctor_host[];   /* doctor_host.c */

/* Path of a program of ours: the setting, or beside the running one. malloc'ed. */
char *hf_doctor_program(const char *setting, const char *name) HF_MUST_USE;

/* Sets status and detail (and keeps cost and fix). */
void hf_check_set(struct hf_check_result *r, enum hf_check_status status, const char *fmt, ...)
    HF_PRINTF(3, 4);
void hf_check_cost(struct hf_check_result *r, const char *fmt, ...) HF_PRINTF(2, 3);
void hf_check_fix(struct hf_check_result *r, const char *fmt, ...) HF_PRINTF(2, 3);

/* ---- probes: really trying things, in a child that can't hurt or hang us ---- */

#define HF_PROBE_MS 5000u

/* Runs fn in a child process (and a process group of its own, killed at the end with all that it started).
 * What fn returns, with its err; -ETIMEDOUT after timeout_ms; -EIO when the child died. */
int hf_probe(int (*fn)(void *arg, struct hf_err *err), void *arg, unsigned timeout_ms, struct hf_err *err);

/* Inside a probe: a process in new namespaces (CLONE_NEWUSER is added), root there mapped to an unprivileged
 * range when we are root, else to ourselves; fn runs in it. */
int hf_probe_in_userns(int flags, int (*fn)(void *arg, struct hf_err *err), void *arg, struct hf_err *err);
/* As above, and gives the descriptor of the user namespace (the process is gone). */
int hf_probe_userns_fd(int *ret_fd, struct hf_err *err) HF_MUST_USE;

/* Inside a probe: the program's standard output, read 64 KiB at once; -EIO when it does not end with 0. */
int hf_probe_run(const char *program, const char *const argv[], struct hf_buf *out) HF_MUST_USE;

/* A number from a file of /proc; -1 when it is not there. */
long long hf_probe_number(const char *path);
