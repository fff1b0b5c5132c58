/* Pause, resume, snapshots: the operations of the control plane that make a sandbox outlive its processes.
 * Loop thread only; every callback comes later than the call that was given it.
 *
 * A pause is warm first (frozen, memory kept, pause_depth "warm") and becomes cold (saved, processes gone,
 * pause_depth "cold", pause_id = the snapshot that it is in) after the sandbox's delay, under memory
 * pressure, when asked for, or when the host shuts down. Order of the rows: pausing (durable) -> freeze ->
 * paused/warm; snapshot row "creating" (durable) -> save -> commit -> snapshot "ready" and paused/cold in one
 * batch -> box destroyed. Resume: resuming (durable) -> box -> policy -> envd confirms its generation ->
 * running; the pause image is removed only after the row says running. */
#pragma once

#include "control/control.h"
#include "store/persist.h"

struct hf_pause_ask {
    bool memory; /* false: the disk only; its processes end, the resume is a boot */
    bool cold;   /* at once, not after the delay */
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
/* Makes a warm pause cold. */
void hf_sandbox_freeze_out(struct hf_sandbox *sb, const char *cause, hf_done_cb cb, void *arg);

struct hf_snapshot_ask {
    const char *name;    /* "" or NULL = none; of hf_snapshot_name_valid */
    const char *purpose; /* "user", "pause", "fork", "policy", "template" */
    bool memory;
    bool end;        /* the box does not go on (pause) */
    bool skip_clean; /* nothing changed since its newest snapshot of the same kind: none is taken, ret says so
                      */
};
/* s is borrowed; NULL with err, or NULL with err NULL when nothing had changed (skip_clean). */
typedef void (*hf_snapshot_cb)(void *arg, const struct hf_snapshot_row *s, const struct hf_err *err);
/* Of a running or a warm-paused sandbox; of a cold one the pause image is cloned. One at a time per sandbox:
 * the others wait. */
void hf_snapshot_take(struct hf_sandbox *sb, const struct hf_snapshot_ask *ask, hf_snapshot_cb cb, void *arg);
/* Missing is success; -EBUSY (409) while something needs it, err says what. */
void hf_snapshot_delete(struct hf_control *c, const char *tenant, const char *id, hf_done_cb cb, void *arg);
/* At start, before the reconciler lets anybody in: half-made ones are removed, deletions finished, seals
 * continued. */
void hf_snapshot_recover(struct hf_control *c);
/* By id, name or name:tag; 1, 0, -EIO. The tenant's own, purpose "user", "policy" or "template". */
int hf_snapshot_resolve(struct hf_control *c, const char *tenant, const char *ref,
                        struct hf_snapshot_row *ret, struct hf_err *err) HF_MUST_USE;
/* Fills what a create from that snapshot needs: req->from_* and, where the request says nothing, limits,
 * mounts and network of the sandbox that was saved. Strings live as long as row does. */
int hf_snapshot_fill(struct hf_control *c, const struct hf_snapshot_row *row, struct hf_create_req *req,
                     struct hf_err *err) HF_MUST_USE;
