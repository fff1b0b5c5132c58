/* Inside the session layer: one operation at a time per session key. */
#pragma once

#include <jansson.h>

#include "control/api.h"
#include "control/validate.h"
#include "session/session.h"

/* Limits. Each has a test. */
#define HF_SESSION_PART_MAX 64u    /* characters of agent, user, conversation */
#define HF_SESSION_TIMEOUT_S 300   /* life of a session's sandbox when nothing is asked for */
#define HF_SESSION_TEMPLATE "base" /* of a session that names none */
#define HF_SESSION_MOUNT "/workspace"
#define HF_SESSION_REMOVE_TRIES 50u /* of the workspace while its last sandbox lets go of it */
#define HF_SESSION_REMOVE_RETRY_MS 200u
#define HF_SESSION_HEALTH_MS 2000u   /* a living sandbox that takes longer to answer is busy, not dead */
#define HF_SESSION_HEALTH_TRIES 100u /* of one that refuses, until its end is known */
#define HF_SESSION_HEALTH_RETRY_MS 20u
#define HF_SESSION_ROUNDS_MAX 8u /* sandboxes that one open waits to see gone */

struct hf_sessions {
    struct hf_control *c;
    struct hf_map locks; /* tenant NUL key -> struct session_lock */
};

struct session_lock {
    char *name;
    size_t name_n;
    bool held, dispatching;
    struct hf_list waiters;
};

/* What an open asks for. */
struct session_ask {
    char key[HF_ROW_TEXT];
    char template_ref[HF_ROW_NAME]; /* "" = the session's */
    int64_t timeout_s;              /* 0 = not asked */
    int64_t workspace_bytes;        /* 0 = default; counts when the session is made */
    json_t *metadata, *env;         /* owned; NULL = none */
    struct hf_limits limits;
    json_t *asked;   /* owned; what the open said of the network; NULL = nothing */
    int internet;    /* … and of allow_internet_access; -1 = nothing */
    json_t *network; /* owned; canonical; NULL = the session's, or the default */
};

struct session_op {
    struct hf_list node; /* lock waiters */
    struct hf_sessions *s;
    struct session_lock *lock;
    struct hf_call *call; /* NULL: recovery at start, nobody waits */
    void (*run)(struct session_op *op);
    char tenant[HF_ROW_ID];
    struct session_ask ask;
    struct hf_session_row row;
    struct hf_volume_row volume;
    char template_id[HF_ROW_ID], alias[HF_ROW_NAME];
    char *image; /* of the workspace */
    unsigned rounds, tries;
    uv_work_t work;
    uv_timer_t timer;
    struct hf_err err;
};

/* "agent:user:conversation" of allowed characters. */
bool hf_session_key_valid(const char *key);

/* Runs op->run as soon as no other operation on its key is under way. Takes op. */
void hf_session_enter(struct hf_sessions *s, struct session_op *op);
/* Ends op: releases the key, frees op. */
void hf_session_leave(struct session_op *op);
struct session_op *hf_session_op_new(const char *tenant, const char *key, struct hf_call *call,
                                     void (*run)(struct session_op *op));
/* Answers with err and leaves. */
void hf_session_fail(struct session_op *op, const struct hf_err *err);
/* Ends every sandbox of the session, one after the other, then calls next(op). */
void hf_session_end_all(struct session_op *op, const char *cause, void (*next)(struct session_op *op));
/* Reads the row under the lock: true, or answered (404) and left. */
bool hf_session_load(struct session_op *op);

void hf_session_open_run(struct session_op *op);   /* open.c */
void hf_session_close_run(struct session_op *op);  /* close.c */
void hf_session_delete_run(struct session_op *op); /* close.c */

/* network.c: "network", "policies" and "allow_internet_access" of an open. */
int hf_session_take_network(struct hf_control *c, const char *tenant, const json_t *body,
                            struct session_ask *ask, struct hf_err *err) HF_MUST_USE;
/* The row's metadata as people gave it; the network that was kept comes apart (NULL: none). New references.
 */
json_t *hf_session_metadata(const struct hf_session_row *row, json_t **ret_network);
char *hf_session_metadata_with(json_t *metadata, const json_t *network) HF_MUST_USE;
/* Fills op->ask.network for a sandbox that is to be made. */
int hf_session_pick_network(struct session_op *op, struct hf_err *err) HF_MUST_USE;
void hf_session_keep_network(struct session_op *op, struct hf_meta_batch *b);
json_t *hf_session_present_network(json_t *doc); /* takes doc */

json_t *hf_session_present(const struct hf_session_row *row);
json_t *hf_session_present_sandbox(const struct hf_sandbox *sb);
