/* Sandboxes and templates as JSON, and how requests name them. Shared by the REST files and the modules. */
#pragma once

#include "control/api.h"

#define HF_CLIENT_ID "holdfast" /* a dead constant that old clients put behind the sandbox's id */

/* E2B's Sandbox: the answer of create, connect, resume. Has the access token. */
json_t *hf_present_handle(struct hf_sandbox *sb);
/* E2B's SandboxDetail, and the shorter ListedSandbox. */
json_t *hf_present_detail(struct hf_sandbox *sb);
json_t *hf_present_listed(const struct hf_sandbox *sb);
/* Our own view of a row, also of one that has ended: state and cause. */
json_t *hf_present_row(const struct hf_sandbox_row *row);
json_t *hf_present_sample(const struct hf_sample *s);
json_t *hf_present_time(int64_t real_ms); /* RFC 3339, null for 0 */

/* The sandbox that parameter 0 names, of the caller's tenant and running; otherwise NULL and answered (400,
 * 404, or 409 while it changes its state and want_settled is set). */
struct hf_sandbox *hf_call_sandbox(struct hf_call *call, bool want_settled);
void hf_call_no_sandbox(struct hf_call *call, const char *id);

/* The ready template that `ref` (id, name, name:tag, tenant/name) means for the tenant: its own, then public
 * ones. -ENOENT with E2B's text; ret_alias gets the name that was used ("" for an id). */
int hf_template_resolve(struct hf_control *c, const char *tenant, const char *ref,
                        struct hf_template_row *ret, char ret_alias[HF_ROW_NAME],
                        struct hf_err *err) HF_MUST_USE;
/* 429 when the tenant has as many sandboxes as it may. */
int hf_control_admit(struct hf_control *c, const char *tenant, struct hf_err *err) HF_MUST_USE;
/* The same for one that is paused: these do not count, until they are resumed. */
int hf_control_admit_resume(const struct hf_sandbox *sb, struct hf_err *err) HF_MUST_USE;
