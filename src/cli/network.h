/* What verbs share about networks: options that describe one, and how it is shown. */
#pragma once

#include <jansson.h>

#include "cli/client.h"

/* For verbs that make a sandbox; put HF_NETWORK_OPTS into their table. */
#define HF_NETWORK_OPTS                                                                                     \
    {"allow-internet", 0, NULL, "it may reach the internet (the default, unless --policy is given)", NULL}, \
        {"no-internet", 0, NULL, "it may reach only what --allow-out and --policy name", NULL},             \
        {"allow-out", 0, "HOST", "an address, CIDR, domain or *.domain that it may reach; may be repeated", \
         NULL},                                                                                             \
        {"deny-out", 0, "CIDR", "an address or CIDR that it may not reach; may be repeated", NULL},         \
    {                                                                                                       \
        "policy", 0, "NAME", "a policy that holds for it; may be repeated", NULL                            \
    }

/* Adds "allow_internet_access" and "network" to the body of a create or open. -EINVAL with a sentence. */
int hf_network_body(const struct hf_args *a, json_t *body, struct hf_err *err) HF_MUST_USE;
/* [values] of a repeated option; NULL when it was not given. New reference. */
json_t *hf_network_list(const struct hf_args *a, const char *opt);
/* A JSON object from a file, "-" for stdin. New reference. */
int hf_network_file(const char *path, json_t **ret, struct hf_err *err) HF_MUST_USE;
/* The verdict of a test route, for people or as JSON; returns the exit code (1 for deny). */
int hf_network_show_verdict(const struct hf_cli *cli, const json_t *v);
/* Lists and rules of a policy, camelCase or snake_case. */
void hf_network_show_policy(const struct hf_cli *cli, const json_t *p);
