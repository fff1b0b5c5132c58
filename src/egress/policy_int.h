/* Shared by the files of the policy library. */
#pragma once

#include "base/buf.h"
#include "base/map.h"
#include "egress/policy.h"

#define HF_POLICY_PATH_MAX 1024u     /* bytes of a rule's path */
#define HF_POLICY_REQ_PATH_MAX 8192u /* longer request paths match no rule */
#define HF_POLICY_TEMPLATE_NAME_MAX 159u
#define HF_POLICY_METHODS_MAX 16u
#define HF_POLICY_METHOD_MAX 32u
#define HF_POLICY_RULE_NAME_MAX 64u
#define HF_POLICY_SECRET_NAME_MAX 128u
#define HF_POLICY_HTTPS_PORTS_MAX 64u
#define HF_POLICY_MASK_MAX 255u
#define HF_POLICY_PROXY_TEXT_MAX 255u /* bytes of the proxy's username and password, each */
#define HF_POLICY_ENVD_PORT 49983

#define HF_POLICY_BAD(...) hf_err_http(err, -EINVAL, 400, __VA_ARGS__)

/* Both forms in which an origin may read a path; without the query. strict: unreserved characters decoded,
 * dot segments removed. loose: everything decoded (repeatedly), backslashes as slashes, runs of slashes
 * merged, ";parameters" dropped, then dot segments. An allow rule must match both, a deny rule either.
 * -EINVAL for control bytes, broken percent-encoding, and paths that don't begin with a slash; -EMSGSIZE. */
struct hf_path_forms {
    struct hf_buf strict, loose;
};
int hf_path_forms(struct hf_str path, struct hf_path_forms *ret) HF_MUST_USE;
void hf_path_forms_done(struct hf_path_forms *f);
/* pattern: exact, or a prefix that ends with '*'. */
bool hf_path_match(struct hf_str pattern, struct hf_str path);
/* The forms of a rule's path; "" in both = any. */
int hf_path_pattern(const char *text, char **ret_strict, char **ret_loose) HF_MUST_USE;

/* The JSON member under either of its names; null counts as absent. */
const json_t *hf_policy_member(const json_t *o, const char *camel, const char *snake);
/* "an address, *.domain or domain" of a rule or list -> its canonical text. -EINVAL without a message. */
int hf_policy_host(const char *text, char out[256]) HF_MUST_USE;
/* A single address or prefix -> canonical text; addresses without "/32". */
int hf_policy_cidr(const char *text, struct hf_cidr *ret, char out[HF_CIDR_TEXT]) HF_MUST_USE;
/* [a-z0-9][a-z0-9-_]{0,63} */
bool hf_policy_is_group_name(const char *s);

/* policy_rules.c: the list (Cube's form or ours) or E2B's map -> canonical list. */
int hf_policy_rules(const json_t *v, json_t **ret, struct hf_err *err) HF_MUST_USE;
/* E2B's map again when every rule came from one; otherwise the list. New reference. */
json_t *hf_policy_rules_present(const json_t *rules);
/* policy_headers.c: name -> value pairs that a rule adds; appends to `inject`. */
int hf_policy_inject(const char *rule, const char *header, const char *secret, const char *format,
                     json_t *inject, struct hf_err *err) HF_MUST_USE;
