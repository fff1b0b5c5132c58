/* API keys. Usable by the CLI on a data directory with or without a running daemon: keys live in the
 * database only, and the daemon looks every presented key up there (cached per database version). */
#pragma once

#include "base/err.h"

#define HF_KEY_PREFIX "e2b_"
#define HF_KEY_HEX 40u       /* hex characters after the prefix */
#define HF_KEY_TEXT_MAX 48u  /* "e2b_" + 40 hex + NUL, rounded */
#define HF_KEY_NAME_MAX 128u /* bytes of a key's name */
#define HF_TENANT_DEFAULT "default"

struct hf_key_info {
    char id[32];     /* key_… */
    char tenant[64]; /* tenant name */
    char name[HF_KEY_NAME_MAX + 1];
    char prefix[16]; /* "e2b_1a2b3c4d": enough to recognise it, too little to use it */
    int64_t created_ms, last_used_ms, revoked_ms; /* real time; 0 = never */
};

/* Creates a key; the text is returned this once and stored as a hash. tenant NULL or "" = "default" (made on
 * demand). -EINVAL for a bad name, -EBUSY when the database stays locked. */
int hf_key_create(const char *data_dir, const char *tenant, const char *name, char ret_text[HF_KEY_TEXT_MAX],
                  struct hf_key_info *ret, struct hf_err *err) HF_MUST_USE;
/* All keys, newest first; *ret is malloc'ed. */
int hf_key_list(const char *data_dir, struct hf_key_info **ret, size_t *ret_n,
                struct hf_err *err) HF_MUST_USE;
/* id, or a prefix that names exactly one key. Takes effect at the next request. -ENOENT, -EEXIST (ambiguous);
 * revoking twice is success. */
int hf_key_revoke(const char *data_dir, const char *id, struct hf_err *err) HF_MUST_USE;
