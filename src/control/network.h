/* A sandbox's network document in the control plane: resolved at create, stored in its row, replaced as a
 * whole, merged with the tenant's policy groups. Loop thread only. */
#pragma once

#include "control/control.h"

/* Where a session's row keeps the document for its next sandbox: a member of its metadata, as text. */
#define HF_NETWORK_KEPT "holdfast.network"

/* This host has a fabric and the daemon plugs sandboxes into it. */
bool hf_network_ready(const struct hf_control *c);
/* Why it has not; "" when it has. */
const char *hf_network_missing(const struct hf_control *c);

/* The request with the groups that are bound to this template (by id or name) added to its policies: what is
 * then given to hf_network_resolve. New reference, NULL where request is and there are none. */
int hf_network_for_template(struct hf_control *c, const char *tenant, const char *id, const char *name,
                            const json_t *request, json_t **ret, struct hf_err *err) HF_MUST_USE;
/* From a client's network object (NULL: nothing said) to the document that the row keeps; internet as in
 * hf_policy_resolve. 400 for what is wrong or names a policy that does not exist; 501 where it needs a fabric
 * and there is none: the document then says that there is no internet. A proxy's password is sealed in it. */
int hf_network_resolve(struct hf_control *c, const char *tenant, const json_t *request, int internet,
                       json_t **ret, struct hf_err *err) HF_MUST_USE;
/* The canonical document of a sandbox; rows of older versions are completed. New reference. */
int hf_network_doc(const struct hf_sandbox *sb, json_t **ret, struct hf_err *err) HF_MUST_USE;
/* The document with the lists of its groups, as it is put in force. New reference. A group that is missing is
 * an error: less policy must not mean more network. */
int hf_network_merge(struct hf_control *c, const char *tenant, const json_t *doc, json_t **ret,
                     struct hf_err *err) HF_MUST_USE;
/* The merged policy lets something out, so the box needs an interface (otherwise it has loopback only). */
bool hf_network_needs_wire(const json_t *merged);
/* The sandbox's document names this group. */
bool hf_network_bound(const struct hf_sandbox *sb, const char *group);

/* Replaces the document of a running sandbox: durable row (and what its session keeps), then interface, then
 * policy. cb later, exactly
 * once; with err (503) the old document is back in the row and the old policy in force. -EBUSY (409, no cb)
 * while another change is under way. doc is borrowed. */
int hf_network_replace(struct hf_sandbox *sb, const json_t *doc, hf_done_cb cb, void *arg,
                       struct hf_err *err) HF_MUST_USE;

/* What would happen to {"url","method"} under a merged document, without asking DNS: the answer of the test
 * routes. New reference. */
int hf_network_test(const json_t *merged, const json_t *body, json_t **ret, struct hf_err *err) HF_MUST_USE;
