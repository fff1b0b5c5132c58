/* Rows of persistence: pauses, snapshots, template builds, layers. Same rules as store/meta.h. */
#pragma once

#include "store/meta.h"

struct hf_snapshot_row {
    char id[HF_ROW_ID], tenant[HF_ROW_ID];
    char purpose[16]; /* user | pause | fork | policy | template */
    char kind[8];     /* disk | full */
    char state[16];   /* creating | ready | deleting */
    char sandbox_id[HF_ROW_ID], session_id[HF_ROW_ID], template_id[HF_ROW_ID], parent_id[HF_ROW_ID];
    char detail[HF_ROW_TEXT];
    char *meta; /* JSON object: limits, mounts, metadata, network, lifecycle of the sandbox that was saved */
    unsigned char *env_sealed;
    size_t env_sealed_n;
    int64_t generation, bytes, exclusive_bytes, frozen_us, total_us, created_ms;
};
void hf_snapshot_row_done(struct hf_snapshot_row *s);
#define hf_auto_snapshot_row hf_cleanup(hf_snapshot_row_done)

/* ---- pauses ---- */

/* generation, pause_depth, pause_id, paused_ms of a sandbox. */
void hf_set_sandbox_pause(struct hf_meta_batch *b, const char *id, int64_t generation, const char *depth,
                          const char *pause_id, int64_t paused_ms);

/* ---- snapshots ---- */

void hf_put_snapshot(struct hf_meta_batch *b, const struct hf_snapshot_row *s);
/* creating -> ready with its figures. */
void hf_set_snapshot_ready(struct hf_meta_batch *b, const char *id, const char *kind, int64_t bytes,
                           int64_t exclusive_bytes, int64_t frozen_us, int64_t total_us);
void hf_set_snapshot_meta(struct hf_meta_batch *b, const char *id, const char *meta);
void hf_set_snapshot_bytes(struct hf_meta_batch *b, const char *id, int64_t bytes, int64_t exclusive_bytes);
void hf_set_snapshot_deleting(struct hf_meta_batch *b, const char *id); /* its names go at once */
void hf_del_snapshot(struct hf_meta_batch *b, const char *id);
/* Points tenant's name at the snapshot, wherever it pointed before. */
void hf_put_snapshot_name(struct hf_meta_batch *b, const char *tenant, const char *name, const char *id);

int hf_get_snapshot(struct hf_meta *m, const char *id, struct hf_snapshot_row *ret) HF_MUST_USE;
int hf_get_snapshot_by_name(struct hf_meta *m, const char *tenant, const char *name,
                            struct hf_snapshot_row *ret) HF_MUST_USE;
/* Newest first, older than (before_ms, before_id); sandbox, purpose NULL: any; tenant NULL: all. */
int hf_each_snapshot(struct hf_meta *m, const char *tenant, const char *sandbox, const char *purpose,
                     int64_t before_ms, const char *before_id, int limit,
                     void (*fn)(void *arg, const struct hf_snapshot_row *s), void *arg) HF_MUST_USE;
int hf_each_snapshot_name(struct hf_meta *m, const char *id, void (*fn)(void *arg, const char *name),
                          void *arg) HF_MUST_USE;

/* ---- policies: when snapshots are taken of a sandbox by themselves, and how many stay ---- */

struct hf_snapshot_policy_row {
    char sandbox_id[HF_ROW_ID], tenant[HF_ROW_ID];
    char *policy;    /* JSON object, every switch resolved to a value */
    int64_t last_ms; /* when it was last looked whether one is due */
};
void hf_put_snapshot_policy(struct hf_meta_batch *b, const char *sandbox_id, const char *tenant,
                            const char *policy, int64_t last_ms);
void hf_set_snapshot_policy_last(struct hf_meta_batch *b, const char *sandbox_id, int64_t last_ms);
void hf_del_snapshot_policy(struct hf_meta_batch *b, const char *sandbox_id);
int hf_each_snapshot_policy(struct hf_meta *m, void (*fn)(void *arg, const struct hf_snapshot_policy_row *p),
                            void *arg) HF_MUST_USE;
