/* Pause, resume, snapshots: the operations of the control plane that make a sandbox outlive its processes.
 * Loop thread only; every callback comes later than the call that was given it.
 *
 * A pause is warm first (frozen, memory kept, pause_depth "warm") and becomes cold (saved, processes gone,
 * pause_depth "cold", or "disk" where only its disk was, pause_id = the snapshot that it is in) after the
 * sandbox's delay, under memory pressure, when asked for, or when the host shuts down. Order of the rows:
 * pausing (durable) -> freeze -> paused/warm; snapshot row "creating" (durable) -> save -> commit -> snapshot
 * "ready" and paused/cold in one batch -> box destroyed. Resume: resuming (durable) -> box -> policy -> envd
 * confirms its generation -> running; the pause image is removed only after the row says running. */
#pragma once

#include "control/control.h"
#include "store/persist.h"

struct hf_pause_ask {
    bool memory; /* false: the disk only; its processes end, the resume is a boot */
    bool cold;   /* at once, not after the delay */
    bool hold;   /* stays warm: the caller resumes it himself in a moment (rollback) */
    const char *cause, *detail;
};

/* running -> paused. cb: err NULL and the row is durable. Already pausing: joins. -EALREADY (409) when
 * paused; 409 in another transition. When the processes can't be dumped the sandbox stays paused warm and an
 * event and its detail say why. */
void hf_sandbox_pause(struct hf_sandbox *sb, const struct hf_pause_ask *ask, hf_done_cb cb, void *arg);
/* paused -> running, once for all callers that come meanwhile; a pause under way is waited for. timeout_s:
 * its new life. At failure it is paused as before, and err says why. Running already: cb gets it at once
 * (later, with err NULL). */
void hf_sandbox_resume(struct hf_sandbox *sb, int64_t timeout_s, const char *cause, hf_sandbox_cb cb,
                       void *arg);
/* Makes a warm pause cold; without memory its disk is saved and the processes end. */
void hf_sandbox_freeze_out(struct hf_sandbox *sb, bool memory, const char *cause, hf_done_cb cb, void *arg);

#define HF_DRAIN_AT_ONCE 4u
/* The host goes down. Saves every sandbox with its memory, or where that can't be, its disk, so many at once;
 * nothing is created or resumed from now on. done comes when nothing is left in memory. */
void hf_control_drain(struct hf_control *c, hf_done_cb done, void *arg);
/* 503 while that is so. */
int hf_control_not_draining(const struct hf_control *c, struct hf_err *err) HF_MUST_USE;

struct hf_snapshot_ask {
    const char *name;    /* "" or NULL = none; of hf_snapshot_name_valid */
    const char *purpose; /* "user", "pause", "fork", "policy", "template" */
    bool memory;
    bool end;        /* the box does not go on (pause); after a failure it stands still and may be thawed */
    bool skip_clean; /* nothing changed since its newest snapshot of the same kind: none is taken, ret says so
                      */
    /* Adds statements to the batch that makes the snapshot ready; may be NULL. */
    void (*with_ready)(void *arg, struct hf_meta_batch *b, const char *snapshot_id);
    void *with_ready_arg;
};
/* s is borrowed; NULL with err, or NULL with err NULL when nothing had changed (skip_clean). */
typedef void (*hf_snapshot_cb)(void *arg, const struct hf_snapshot_row *s, const struct hf_err *err);
/* Of a running or a warm-paused sandbox; of a cold one the pause image is cloned. One at a time per sandbox:
 * the others wait. */
void hf_snapshot_take(struct hf_sandbox *sb, const struct hf_snapshot_ask *ask, hf_snapshot_cb cb, void *arg);
/* Missing is success; -EBUSY (409) while something needs it, err says what. */
void hf_snapshot_delete(struct hf_control *c, const char *tenant, const char *id, hf_done_cb cb, void *arg);
/* A step of whoever works with the sandbox is over: where its policy asks for it, a snapshot is taken unless
 * nothing changed. False (and no cb): it does not. */
bool hf_snapshot_step(struct hf_sandbox *sb, hf_snapshot_cb cb, void *arg);
/* At start, before the reconciler lets anybody in: half-made ones are removed, deletions finished, seals
 * continued. */
void hf_snapshot_recover(struct hf_control *c);
/* By id, name or name:tag; 1, 0, -EIO. The tenant's own, purpose "user", "policy" or "template". */
int hf_snapshot_resolve(struct hf_control *c, const char *tenant, const char *ref,
                        struct hf_snapshot_row *ret, struct hf_err *err) HF_MUST_USE;
/* What a create from a snapshot borrows. */
struct hf_snapshot_fill {
    char *dir;
    json_t *meta, *env; /* env was opened with the node's key and is wiped at the end */
};
void hf_snapshot_fill_done(struct hf_snapshot_fill *f);
/* Fills what a create from that snapshot needs: req->from_*, template, disk and, where the request says
 * nothing, limits, network and environment of the sandbox that was saved; a "full" one brings its volumes
 * along, because its processes have them. What req points at lives in row and own. */
int hf_snapshot_fill(struct hf_control *c, const struct hf_snapshot_row *row, struct hf_create_req *req,
                     struct hf_snapshot_fill *own, struct hf_err *err) HF_MUST_USE;
/* Reads its manifest on a worker: err when it is damaged, of another version, or not for this host. To be
 * asked before every start from it. */
void hf_snapshot_check(struct hf_control *c, const char *id, hf_done_cb cb, void *arg);
/* A second row and directory of the same content (purpose "pause", same sandbox): what a rollback resumes
 * from. with_ready as in the ask. */
void hf_snapshot_copy(struct hf_control *c, const struct hf_snapshot_row *from,
                      const struct hf_snapshot_ask *ask, hf_snapshot_cb cb, void *arg);
/* The first snapshot that stands on this template: 1, 0, -EIO. */
int hf_snapshot_of_template(struct hf_control *c, const char *template_id,
                            struct hf_snapshot_row *ret) HF_MUST_USE;

/* ---- mounts as a row tells them: {"name","path","kind","read_only"} ---- */

enum hf_box_mount_kind hf_mount_kind(const json_t *mount);
/* Where its content is; malloc'ed, "" for a tmpfs. */
char *hf_mount_image(const struct hf_control *c, const json_t *mount) HF_MUST_USE;
/* The name of a volume among them that one box at a time can have, for writing; NULL = none. */
const char *hf_mounts_exclusive(const json_t *mounts);
