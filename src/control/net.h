/* The control plane's side of the network: starts and watches holdfast-netd, gives it every sandbox's policy,
 * keeps secrets, certificate authorities and policy groups, and takes outbound records in. Loop thread only.
 *
 * Crash contract: rows hold policies, secrets and groups; netd and the kernel hold copies. After any restart
 * of the daemon or of netd everything is pushed again (idempotent) and what has no row is taken away. A
 * sandbox whose policy could not be put in force is not running: its create fails, its update answers 503 and
 * the old policy stays. */
#pragma once

#include "control/control.h"
#include "engine/net/net.h"

struct hf_cnet;

/* Probes the host, makes the fabric and starts (or finds) netd; blocking, before the driver exists. Always
 * succeeds: where the host can't do it, hf_cnet_config is NULL, hf_cnet_missing says why, and sandboxes have
 * loopback only. */
struct hf_cnet *hf_cnet_open(uv_loop_t *loop, const struct hf_config *cfg, const char *run_dir,
                             const char *netd_path) HF_MUST_USE;
const struct hf_net_config *hf_cnet_config(const struct hf_cnet *n); /* for the driver */
const char *hf_cnet_missing(const struct hf_cnet *n);                /* "" when it works */
/* After the control plane exists; reads rows, connects, begins to watch. */
void hf_cnet_start(struct hf_cnet *n, struct hf_control *c);
/* remove_fabric: no box is left, so netd ends and the fabric goes from the host. */
void hf_cnet_close(struct hf_cnet *n, bool remove_fabric, hf_done_cb cb, void *arg);

/* A box without an interface (sb->wired) has nothing to be judged: success. n may be NULL.
 * Puts the sandbox's policy (own document merged with its groups) in force for its box. cb later, exactly
 * once; with err, what was in force before still is. */
void hf_cnet_apply(struct hf_cnet *n, struct hf_sandbox *sb, hf_done_cb cb, void *arg);
/* The box is gone. */
void hf_cnet_forget(struct hf_cnet *n, uint32_t key);
/* A group changed: every running sandbox bound to it is put in force again. cb when all are (err: the first
 * failure). */
void hf_cnet_group_changed(struct hf_cnet *n, const char *tenant, const char *group, hf_done_cb cb,
                           void *arg);
/* Secrets or the CA of a tenant changed (and were committed): netd gets the new set. */
void hf_cnet_tenant_changed(struct hf_cnet *n, const char *tenant, hf_done_cb cb, void *arg);
/* PEM of the tenant's CA, made (and stored) at the first use; valid until the loop's next turn. NULL with
 * err. */
const char *hf_cnet_ca(struct hf_cnet *n, const char *tenant, struct hf_err *err);
/* The policy of this document needs TLS interception: some rule speaks of a host on https and does not simply
 * deny it. */
bool hf_cnet_needs_ca(const json_t *merged_doc);
/* Counters of a box from netd, as its GET /boxes/<key>: cb(arg, object or NULL). */
void hf_cnet_counters(struct hf_cnet *n, uint32_t key, void (*cb)(void *arg, const json_t *v), void *arg);

/* A row never holds a proxy's password in clear: hf_cnet_seal_doc replaces egress_proxy.password of a
 * canonical document, in place, before it becomes a row (done by hf_network_resolve). It comes back in clear
 * only on its way to netd. n NULL: -ENOTSUP where there is a password. */
int hf_cnet_seal_doc(struct hf_cnet *n, const char *tenant, json_t *doc, struct hf_err *err) HF_MUST_USE;
int hf_cnet_unseal_doc(struct hf_cnet *n, const char *tenant, json_t *doc, struct hf_err *err) HF_MUST_USE;

/* ---- secrets (control/api_secret.c) ---- */

#define HF_SECRET_VALUE_MAX 65536u      /* bytes */
#define HF_SECRETS_MAX 1000u            /* of a tenant */
#define HF_SECRETS_BYTES_MAX (2u << 20) /* of all values of a tenant: netd gets them at once */
/* Seals a value for its row. 0 or negative errno with err. */
int hf_cnet_seal_secret(struct hf_cnet *n, const char *tenant, const char *name, const char *value,
                        size_t value_n, unsigned char **ret, size_t *ret_n, struct hf_err *err) HF_MUST_USE;

/* The node's key, opened at the first use; NULL with err. */
struct hf_sealer;
struct hf_sealer *hf_cnet_sealer(struct hf_cnet *n, struct hf_err *err);
