/* Snapshots in the control plane: what its files share. Loop thread only. */
#pragma once

#include "control/persist.h"
#include "engine/disk/snapshot.h"

/* Limits. Each has a test. */
#define HF_SNAPSHOT_STREAMS_MAX 2u /* exports and imports at the same time; each keeps a worker busy */
#define HF_FORK_MAX 100            /* children of one fork */
#define HF_FORK_AT_ONCE 4u         /* of them being made at the same time */
#define HF_POLICY_EVERY_S 1800     /* seconds between two timed snapshots, where the policy says nothing */
#define HF_POLICY_EVERY_MIN_S 10   /* … and at least */
#define HF_POLICY_EVERY_MAX_S (365 * 24 * 3600)
#define HF_POLICY_KEEP_MAX 1000
#define HF_POLICY_KEEP 10          /* snapshots that a policy keeps, where it says nothing */
#define HF_POLICY_TICK_MS 1000u    /* granularity of the timed snapshots */
#define HF_CLEAN_CPU_NS 20000000ll /* processor time up to which a sandbox counts as idle since */
#define HF_SNAPSHOT_FORKED_FROM HF_RESERVED_METADATA "forked-from"

struct hf_snapshots {
    struct hf_control *c;    /* NULL once it is gone */
    struct hf_list takes;    /* of all sandboxes, running and waiting, in order */
    struct hf_list seals;    /* ids that wait for their hashes */
    struct hf_list removals; /* that wait for a seal to let go */
    char sealing[HF_ROW_ID]; /* "" = none */
    bool seal_stop;          /* read by the worker */
    unsigned streams;
    unsigned ticks; /* of the policies' timer */
};

struct hf_snapshots *hf_snapshots_new(struct hf_control *c) HF_MUST_USE;
void hf_snapshots_free(struct hf_snapshots *s);
/* work(arg) on a worker thread, then after(arg) on the loop. */
void hf_snapshots_work(struct hf_control *c, void (*work)(void *arg), void (*after)(void *arg), void *arg);

/* "s" + 20 of [a-z0-9]. */
void hf_snapshot_id_new(char id[HF_ROW_ID]);
/* "name", "name:tag", "tenant/name:tag" -> "name:tag" in lower case. */
int hf_snapshot_name(const char *tenant, const char *text, char ret[HF_ROW_NAME],
                     struct hf_err *err) HF_MUST_USE;
/* One whose client's request may name it: not a pause's or a fork's. */
bool hf_snapshot_is_listed(const struct hf_snapshot_row *row);

/* Takes its hashes in the background, one snapshot at a time. */
void hf_snapshot_seal_later(struct hf_control *c, const char *id);
/* Removes directory and row; the row says deleting already. cb may be NULL. */
void hf_snapshot_erase(struct hf_control *c, const char *id, hf_done_cb cb, void *arg);
/* The seal of this one was told to stop: fn runs when it has. False: nobody seals it. */
bool hf_snapshot_unseal_first(struct hf_control *c, const char *id, void (*fn)(void *arg), void *arg);
/* What keeps it: true with a sentence. */
bool hf_snapshot_pinned(struct hf_control *c, const struct hf_snapshot_row *row, struct hf_err *err);

/* ---- policies (snapshot_policy.c) ---- */

void hf_snapshot_policies_start(struct hf_control *c);
/* The document with every switch resolved; 400. New reference. */
int hf_snapshot_policy_resolve(const json_t *body, json_t **ret, struct hf_err *err) HF_MUST_USE;
/* NULL: it has none. New reference. */
json_t *hf_snapshot_policy_of(struct hf_control *c, const char *sandbox_id);

/* ---- forks and rollbacks (fork.c, rollback.c) ---- */

struct hf_fork_ask {
    int64_t count, timeout_s;
    bool memory; /* false: the children boot from the disk, without volumes */
};
/* result: array of {"sandbox"} and {"error"}, borrowed; NULL with err. ids of the children that run are
 * reported so that the caller may end them. */
typedef void (*hf_fork_cb)(void *arg, const json_t *result, const struct hf_err *err);
struct hf_fork;
struct hf_fork *hf_fork_begin(struct hf_sandbox *sb, const struct hf_fork_ask *ask, hf_fork_cb cb, void *arg,
                              struct hf_err *err) HF_MUST_USE;
/* Nobody waits for the answer any more: its children are ended. */
void hf_fork_abandon(struct hf_fork *f);
void hf_rollback(struct hf_sandbox *sb, const struct hf_snapshot_row *to, hf_sandbox_cb cb, void *arg);

/* ---- creates (create_from.c) ---- */

struct hf_create_body;
/* row is taken; what body points at must live until cb. */
void hf_create_from_snapshot(struct hf_control *c, const struct hf_create_body *body, const json_t *lifecycle,
                             struct hf_snapshot_row *row, hf_sandbox_cb cb, void *arg);

/* ---- answers (api_snapshot.c) ---- */

struct hf_call;
void hf_call_delete_snapshot(struct hf_call *call, const struct hf_snapshot_row *row);
