/* Inside of holdfast-netd: what its parts owe each other beyond netd.h. */
#pragma once

#include "egress/dns_int.h"
#include "egress/netd.h"

#define HF_DENIAL_PENDING_MAX 4096u /* different denials within a second; more are written at once */
#define HF_RECORD_FLUSH_MS 100u     /* a line waits at most so long */
#define HF_DENIAL_WINDOW_MS 1000u   /* identical denials within are counted into one */

/* box.c */
struct hf_netd_box *hf_netd_box(struct hf_netd *d, uint32_t key); /* NULL when unknown */
/* From the body of PUT /boxes/<key>; in force everywhere when it returns 0, nowhere otherwise. */
int hf_netd_box_put(struct hf_netd *d, uint32_t key, const json_t *v, struct hf_err *err) HF_MUST_USE;
int hf_netd_box_delete(struct hf_netd *d, uint32_t key, struct hf_err *err) HF_MUST_USE;
void hf_netd_box_remove(struct hf_netd_box *b); /* here only, not from the kernel */
json_t *hf_netd_box_show(struct hf_netd_box *b);
int hf_netd_tenant_put(struct hf_netd *d, const char *name, const json_t *v, struct hf_err *err) HF_MUST_USE;
void hf_netd_tenant_delete(struct hf_netd *d, const char *name);
void hf_netd_on_denial(void *arg, const struct hf_net_denial *n);

#define HF_TENANT_MAX 64u /* bytes of a tenant's name, with NUL */

/* ctl.c: the control API on RUN/net/netd.sock. */
struct hf_ctl;
int hf_ctl_start(struct hf_netd *d, const char *run, struct hf_ctl **ret, struct hf_err *err) HF_MUST_USE;
void hf_ctl_stop(struct hf_ctl *c);

/* record.c */
int hf_record_start(struct hf_netd *d, const char *dir, struct hf_err *err) HF_MUST_USE;
void hf_record_stop(struct hf_netd *d); /* writes what waits */
