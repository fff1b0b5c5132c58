/* The rows themselves. Short texts are arrays, long ones are malloc'ed ("" and NULL mean the same to
 * writers). Times are real time in milliseconds unless the name says otherwise; 0 = never. */
#pragma once

#include "base/base.h"

#define HF_ROW_ID 64u    /* ids and names of fixed shape, with NUL */
#define HF_ROW_NAME 160u /* names that people give, with NUL */
#define HF_ROW_TEXT 240u /* sentences for people, with NUL */

struct hf_key_row {
    char id[32], tenant[HF_ROW_ID], name[HF_ROW_NAME], prefix[16];
    unsigned char hash[32]; /* SHA-256 of the key's text */
    int64_t created_ms, last_used_ms, revoked_ms;
};

struct hf_sandbox_row {
    char id[HF_ROW_ID], tenant[HF_ROW_ID], template_id[HF_ROW_ID], alias[HF_ROW_NAME];
    char state[16], cause[24], detail[HF_ROW_TEXT];
    char session_id[HF_ROW_ID]; /* "" = nobody's */
    char envd_version[24], boot_id[40];
    char *metadata;  /* JSON object of strings */
    char *network;   /* JSON object, every switch resolved to a value */
    char *lifecycle; /* JSON object, likewise */
    char *mounts;    /* JSON array of {"name","path"} */
    int64_t cpu_millis, memory_bytes, disk_bytes, pids_max;
    int64_t timeout_s;
    int64_t created_ms, started_ms, end_ms, ended_ms;
    int64_t deadline_boot_ms; /* CLOCK_BOOTTIME of boot_id */
    int64_t epoch;            /* of the session's binding */
    int64_t generation;       /* 1 at the create, one more at each restore */
    char pause_depth[8];      /* "" | warm | cold | disk */
    char pause_id[HF_ROW_ID]; /* the snapshot that a cold pause is in */
    int64_t paused_ms;
    char snapshot_id[HF_ROW_ID]; /* that it was made from; "" = from its template */
    unsigned char *env_sealed;   /* environment that envd gets when it boots again; sealed (control/seal.h) */
    size_t env_sealed_n;
};
void hf_sandbox_row_done(struct hf_sandbox_row *s);
#define hf_auto_sandbox_row hf_cleanup(hf_sandbox_row_done)

struct hf_event_row {
    int64_t seq, time_ms;
    char tenant[HF_ROW_ID], sandbox_id[HF_ROW_ID], session_id[HF_ROW_ID];
    char kind[32], from[16], to[16], cause[24], detail[HF_ROW_TEXT];
};

/* meta: JSON object {"env","user","workdir","start_cmd","ready_cmd","cpu_count","memory_mb","mounts",
 * "snapshot_id" (the started template)…}; all optional. */
struct hf_template_row {
    char id[HF_ROW_ID], tenant[HF_ROW_ID], name[HF_ROW_NAME], sha256[65],
        state[16]; /* importing | ready | deleting */
    bool is_public;
    int64_t bytes, created_ms, updated_ms, last_spawned_ms, spawn_count;
};

struct hf_session_row {
    char id[HF_ROW_ID], tenant[HF_ROW_ID], key[HF_ROW_TEXT], state[16]; /* open | closed | deleting */
    char volume_id[HF_ROW_ID], sandbox_id[HF_ROW_ID], template_ref[HF_ROW_NAME];
    char *metadata;
    int64_t epoch, created_ms, updated_ms, opened_ms, closed_ms;
};
void hf_session_row_done(struct hf_session_row *s);
#define hf_auto_session_row hf_cleanup(hf_session_row_done)

struct hf_volume_row {
    char id[HF_ROW_ID], tenant[HF_ROW_ID], name[HF_ROW_NAME], session_id[HF_ROW_ID];
    char state[16]; /* creating | ready | deleting */
    int64_t bytes, created_ms;
};

/* A stored answer, for Idempotency-Key. */
struct hf_answer_row {
    char tenant[HF_ROW_ID], key[HF_ROW_TEXT];
    unsigned char request_hash[32];
    int status;
    char *body;
    int64_t created_ms;
};
void hf_answer_row_done(struct hf_answer_row *a);
#define hf_auto_answer_row hf_cleanup(hf_answer_row_done)
