/* Encryption at rest: AES-256-GCM with the node's key (DATA/secret.key, 0600, 32 random bytes, made at the
 * first use; HOLDFAST_SECRET_KEY_FILE names another place, e.g. a systemd credential). Sealed = version byte,
 * 12-byte nonce, ciphertext, 16-byte tag; the label (tenant, kind and name) is authenticated, so a row can't
 * be moved. */
#pragma once

#include <jansson.h>

#include "base/err.h"

#define HF_SEAL_OVERHEAD 29u

struct hf_sealer;
int hf_sealer_open(const char *data_dir, struct hf_sealer **ret, struct hf_err *err) HF_MUST_USE;
void hf_sealer_free(struct hf_sealer *s); /* wipes the key */
/* malloc'ed result of n + HF_SEAL_OVERHEAD bytes. */
int hf_seal(const struct hf_sealer *s, const char *label, const void *p, size_t n, unsigned char **ret,
            size_t *ret_n) HF_MUST_USE;
/* malloc'ed, NUL-terminated; the caller wipes it. -EBADMSG: another key, another label or damage. */
int hf_unseal(const struct hf_sealer *s, const char *label, const void *p, size_t n, char **ret,
              size_t *ret_n) HF_MUST_USE;
/* Overwrites the string v, or every string below the object v. NULL is fine. */
void hf_wipe_json(json_t *v);
