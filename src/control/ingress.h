/* What a sandbox's network document says about traffic into it, parsed once per change; and the secrets of
 * that traffic, which are derived from the node's seed and never stored (docs/adr/0014). */
#pragma once

#include "base/id.h"
#include "control/control.h"

#define HF_INGRESS_TOKEN 65u /* "<64 hex>" and NUL */

struct hf_ingress {
    bool is_private;
    char *mask_host; /* "" = none */
    uint16_t *https_ports;
    size_t n_https_ports;
    char token[HF_INGRESS_TOKEN]; /* when private */
    unsigned char preview_key[HF_SHA256_LEN];
};

/* Valid until the document changes or the sandbox goes. A document that can't be read lets nobody in. */
const struct hf_ingress *hf_sandbox_ingress(struct hf_sandbox *sb);
/* row.network was replaced: the next hf_sandbox_ingress reads it again. */
void hf_sandbox_network_changed(struct hf_sandbox *sb);
/* The traffic token, whether it is needed or not. Stable over pause and restore; another one after the
 * document's token_version has been counted up. */
void hf_sandbox_traffic_token(struct hf_sandbox *sb, char out[HF_INGRESS_TOKEN]);
/* https://<port>-<id>.<domain>/?hf_preview=…, malloc'ed; good for expires_in_s seconds from now. */
char *hf_sandbox_preview_url(struct hf_sandbox *sb, uint16_t port, int64_t expiry_s) HF_MUST_USE;
