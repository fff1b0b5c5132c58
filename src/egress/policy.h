/* A sandbox's network policy: parsed, checked, merged and asked. Pure: no I/O, no clock.
 *
 * The document (JSON object, snake_case, "canonical" once hf_policy_resolve made it: every member present):
 *   allow_internet_access  bool      default verdict for addresses outside private ranges
 *   allow_public_traffic   bool      ingress without a traffic token
 *   allow_out              [text]    IP, CIDR, domain, "*.domain" (the apex is not included)
 *   deny_out               [text]    IP or CIDR
 *   rules                  [object]  see struct hf_rule; E2B's {"host":[{"transform":{"headers":{…}}}]} is
 *                                    taken and converted (transform rules do not open a host: opens=false)
 *   egress_proxy           null or {"address":"host:port","type":"socks5"|"http","username","password"}
 *   mask_request_host      text, "" = none
 *   https_ports            [number]
 *   policies               [text]    names of policy groups that were merged in
 *   token_version          number    of the traffic token; the control plane counts it up
 *
 * Order, first match wins: never (link-local, metadata, loopback, reserved: no entry opens them) > allow_out
 * > private ranges are denied > deny_out > default. A prefix in allow_out opens private addresses only where
 * the prefix itself lies in a private range. A name in allow_out opens TCP to the addresses that holdfast's
 * own resolver answered for it, through the L7 listener that checks SNI or Host.
 *
 * Rules come before that order where they speak of a request's host, scheme and port: the first that matches
 * decides; when none matches and one of them allows, the request is denied ("no-rule"); when all of them only
 * deny, the order above goes on. A rule that allows opens its host (reason "rule") unless opens is false. */
#pragma once

#include <jansson.h>

#include "base/addr.h"
#include "base/err.h"

/* Limits; errors name the limit. Each has a test. */
#define HF_POLICY_CIDRS_MAX 8192u /* per list */
#define HF_POLICY_NAMES_MAX 1024u
#define HF_POLICY_RULES_MAX 128u
#define HF_POLICY_INJECT_MAX 20u /* headers of one rule */
#define HF_POLICY_HEADER_NAME_MAX 64u
#define HF_POLICY_HEADER_VALUE_MAX 2048u
#define HF_POLICY_PORTS_MAX 8u      /* custom ports per rule */
#define HF_POLICY_L7_PORTS_MAX 16u  /* different ports of all rules and names together */
#define HF_POLICY_TEMPLATES_MAX 64u /* that a group binds */
#define HF_POLICY_GROUPS_MAX 16u    /* policy groups bound to one sandbox */
#define HF_POLICY_NAME_MAX 64u      /* of a group, with NUL: [a-z0-9][a-z0-9-_]{0,62} */

enum hf_audit { HF_AUDIT_NONE, HF_AUDIT_METADATA, HF_AUDIT_FULL };

struct hf_inject {
    char *header; /* lower case */
    char *format; /* value with ${SECRET} or ${e2b.secrets.NAME} / ${holdfast.secrets.NAME} placeholders */
    char *secret; /* the name that ${SECRET} stands for; "" when the format names its own. Names of secrets
                     are in lower case here, as the store keeps them */
};

/* {"name","host","scheme":"https"|"http","ports":[…],"methods":[…],"path":"/v1/…","action":"allow"|"deny",
 *  "audit":"none"|"metadata"|"full","inject":[{"header","secret","format"}],"opens":bool,"plain_http":bool}
 * Conditions are ANDed; an absent one matches everything. "sni" is taken as another word for host. A rule
 * that injects is https only. path: exact, or a prefix that ends with '*'; matched on the path as the origin
 * will see it, dot segments and %-encoded unreserved characters normalised first. */
struct hf_rule {
    char *name;   /* for records and errors; "rule <n>" when not given */
    char *host;   /* lower case, A-labels; exact, "*.domain", or an IP address */
    char *scheme; /* "" = both */
    size_t n_ports;
    uint16_t ports[HF_POLICY_PORTS_MAX]; /* none: 80 for http and 443 for https */
    size_t n_methods;
    char **methods;
    char *path;       /* "" = any; unreserved characters decoded */
    char *path_loose; /* the same, everything decoded: see policy_int.h */
    bool deny;
    bool opens; /* an allow rule opens its host; a converted transform does not */
    enum hf_audit audit;
    size_t n_inject;
    struct hf_inject *inject;
};

struct hf_egress_proxy {
    bool http; /* HTTP CONNECT, else SOCKS5 */
    char *host;
    uint16_t port;
    char *username, *password; /* "" = none */
};

struct hf_policy {
    unsigned refs;
    bool internet; /* allow_internet_access */
    bool deny_all; /* deny_out holds 0.0.0.0/0 (or internet is false): names mode when there are names */
    bool public_traffic;
    struct hf_cidr *allow, *deny;
    size_t n_allow, n_deny;
    char **names; /* lower case A-labels; "*.x" wildcards; sorted */
    size_t n_names;
    struct hf_rule *rules;
    size_t n_rules;
    bool has_proxy;
    struct hf_egress_proxy proxy;
    char *label; /* names of its groups, or "own"; for records */
};

/* From a request to the canonical document. `request` is the network object as clients send it (camelCase of
 * E2B and Cube: allowOut denyOut allowPublicTraffic allowInternetAccess maskRequestHost httpsPorts
 * egressProxy rules policies; snake_case is taken too); NULL = nothing said. internet: the top-level
 * allow_internet_access: 1, 0, or -1 when not said (then true, but false when policy groups are bound: being
 * bound means being restricted). errors: HTTP 400 with the messages of E2B ("invalid denied CIDR %s" …) and
 * Cube. */
int hf_policy_resolve(const json_t *request, int internet, json_t **ret, struct hf_err *err) HF_MUST_USE;
/* A group's document: allow_out, deny_out, rules, and where there are any "templates" (ids or names:
 * sandboxes that are made of them are bound to the group). */
int hf_policy_resolve_group(const json_t *request, json_t **ret, struct hf_err *err) HF_MUST_USE;
/* The sandbox's canonical document with its groups' lists appended (own first, no duplicates). groups[i]
 * pairs with names in doc.policies. New reference. */
json_t *hf_policy_merge(const json_t *doc, const json_t *const *groups, size_t n) HF_MUST_USE;
/* As the API shows it (camelCase, without the proxy's password). New reference. */
json_t *hf_policy_present(const json_t *doc) HF_MUST_USE;

/* From a canonical (merged) document. -EINVAL for one that hf_policy_resolve did not make, and (HTTP 400) for
 * one whose rules need more ports than HF_POLICY_L7_PORTS_MAX: a port that is not inspected would be open. */
int hf_policy_parse(const json_t *doc, struct hf_policy **ret, struct hf_err *err) HF_MUST_USE;
struct hf_policy *hf_policy_ref(struct hf_policy *p);
void hf_policy_unref(struct hf_policy *p);

/* ---- names ---- */
/* Host name as it comes from a client -> lower case A-labels without the trailing dot, at most 253 bytes.
 * -EINVAL for NUL, control bytes, '%', empty or too long labels, anything that is not LDH, '_' or
 * IDNA-encodable text; and for IP literals (use hf_addr_parse). */
int hf_name_normal(struct hf_str host, char out[254]) HF_MUST_USE;
/* pattern "*.x" matches y.x and z.y.x, never x. */
bool hf_name_match(const char *pattern, const char *name);
/* Is the name opened by allow_out or by an opening rule? ret_why (may be NULL): the entry. */
bool hf_policy_opens_name(const struct hf_policy *p, const char *name, const char **ret_why);
/* May the name be resolved at all: opened, or everything may (open internet), or a rule speaks of it. */
bool hf_policy_may_resolve(const struct hf_policy *p, const char *name);
/* The policy works by names (deny-all plus names or rules): what can't be checked is denied. */
bool hf_policy_names_mode(const struct hf_policy *p);

/* ---- decisions ---- */
enum hf_decision { HF_ALLOW, HF_DENY };

struct hf_verdict {
    enum hf_decision decision;
    const char *reason; /* "never" "allow" "private" "deny" "default" "name" "rule" "no-rule"; static */
    char by[300];       /* the entry or rule that decided, for people */
    const struct hf_rule *rule; /* of a request; NULL when none */
};
/* What the firewall says about an address (without learned names). */
void hf_policy_judge_addr(const struct hf_policy *p, const struct hf_addr *a, struct hf_verdict *ret);

struct hf_judge_req {
    const char *scheme; /* "http" or "https" */
    const char *host;   /* normalised name, or an address's text */
    uint16_t port;
    struct hf_str method, path; /* path with query; .p NULL = not known yet (only the host is judged: the
                                   result is allow if some request could be allowed) */
    bool learned; /* addr is what holdfast's own resolver answered for host (hf_netd_learned): private
                     answers have passed its check, so a private addr is open to an opened name */
};
/* Some rule speaks of this host on this port: the connection has to be intercepted. */
bool hf_policy_intercepts(const struct hf_policy *p, const char *scheme, const char *host, uint16_t port);
/* Judges one request; addr is the address it would go to (NULL: not known, as in `policy test` without DNS).
 */
void hf_policy_judge(const struct hf_policy *p, const struct hf_judge_req *q, const struct hf_addr *addr,
                     struct hf_verdict *ret);
/* Ports that must reach the L7 listener (80 and 443 when any rule or name needs them, plus custom ones). */
size_t hf_policy_l7_ports(const struct hf_policy *p, uint16_t *ret, size_t max);
