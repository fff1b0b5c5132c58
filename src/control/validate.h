/* What requests may say. Pure; fuzzed by tests/fuzz/control. */
#pragma once

#include <jansson.h>

#include "control/config.h"
#include "store/rows.h"

/* Limits. Each has a test. */
#define HF_METADATA_ENTRIES_MAX 256u
#define HF_METADATA_BYTES_MAX 65536u /* keys and values together */
#define HF_ENV_ENTRIES_MAX 1024u
#define HF_ENV_BYTES_MAX 262144u
#define HF_TIMEOUT_V1_DEFAULT 15         /* seconds */
#define HF_TIMEOUT_V2_DEFAULT 300        /* seconds */
#define HF_RESERVED_METADATA "holdfast." /* keys that only holdfast itself writes */

/* Sizes of a sandbox; 0 = the daemon's default. */
struct hf_limits {
    int64_t cpu_millis, memory_bytes, disk_bytes, pids_max;
};

struct hf_create_body {
    char template_ref[HF_ROW_NAME];
    int64_t timeout_s;
    const json_t *metadata, *env; /* borrowed from the body; NULL = none */
    const json_t *network;        /* likewise; only its type is checked: see control/network.h */
    int internet;                 /* allow_internet_access: 1, 0, -1 = not said */
    bool auto_pause;              /* at the timeout, instead of ending */
    bool pause_memory;            /* … with its processes */
    bool auto_resume;             /* when traffic comes */
    struct hf_limits limits;
};

/* The body of POST /sandboxes and /v2/sandboxes. What this version can't do is refused by name (501), never
 * taken and dropped; unknown fields are tolerated because newer SDKs send them. */
int hf_validate_create(const json_t *body, bool v2, const struct hf_config *cfg, struct hf_create_body *ret,
                       struct hf_err *err) HF_MUST_USE;
/* The members "network" and "allow_internet_access". */
int hf_validate_network(const json_t *body, const json_t **ret, int *ret_internet,
                        struct hf_err *err) HF_MUST_USE;
/* cpuCount, memoryMB, diskSizeMB, pidsMax. */
int hf_validate_limits(const json_t *body, struct hf_limits *ret, struct hf_err *err) HF_MUST_USE;
/* An object of strings without control characters; reserved keys refused unless allow_reserved. */
int hf_validate_metadata(const json_t *v, const char *field, struct hf_err *err) HF_MUST_USE;
/* An object of strings; names without '=' and NUL. */
int hf_validate_env(const json_t *v, const char *field, struct hf_err *err) HF_MUST_USE;
/* Integer member: 1 found, 0 absent or null, -EINVAL of another type or out of range. */
int hf_validate_int(const json_t *body, const char *field, int64_t min, int64_t max, int64_t *ret,
                    struct hf_err *err) HF_MUST_USE;
/* String member without control characters, at most max bytes: 1, 0, -EINVAL. */
int hf_validate_text(const json_t *body, const char *field, size_t max, const char **ret,
                     struct hf_err *err) HF_MUST_USE;
/* An explicit timeout: positive and at most the configured maximum, with E2B's texts. */
int hf_validate_timeout(int64_t timeout_s, const struct hf_config *cfg, struct hf_err *err) HF_MUST_USE;
/* "name", "name:tag", "ns/name", an id. Splits off the tag ("" when none). */
int hf_validate_template_ref(const char *text, char name[HF_ROW_NAME], char tag[HF_ROW_NAME],
                             struct hf_err *err) HF_MUST_USE;
/* "id" or "id-clientID" as old clients write it; -EINVAL "Invalid sandbox ID". */
int hf_validate_sandbox_id(const char *text, char id[HF_ROW_ID], struct hf_err *err) HF_MUST_USE;
