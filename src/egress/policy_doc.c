/* Canonical documents: merged with groups, and as the API shows them. */
#include <stdio.h>

#include "egress/policy_int.h"

static json_t *list_copy(const json_t *doc, const char *key)
{
    json_t *list = json_array();
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(doc, key), i, v)(void) json_array_append(list, v);
    return list;
}

/* Appends what is not there yet; texts only. */
static void append_texts(json_t *doc, const json_t *const *groups, size_t n, const char *key)
{
    struct hf_map seen = {0};
    json_t *list = json_object_get(doc, key), *v;
    size_t i;
    json_array_foreach(list, i, v)(void) hf_map_put(&seen, hf_str_c(json_string_value(v)), list);
    for (size_t g = 0; g < n; g++) {
        json_array_foreach(json_object_get(groups[g], key), i, v)
        {
            const char *text = json_string_value(v);
            if (text && !hf_map_put(&seen, hf_str_c(text), list))
                (void)json_array_append(list, v);
        }
    }
    hf_map_done(&seen);
}

/* A group's rules come under its name: "models/no-uploads". */
static void append_rules(json_t *doc, const json_t *group, const char *name)
{
    json_t *list = json_object_get(doc, "rules"), *rule;
    size_t i;
    json_array_foreach(json_object_get(group, "rules"), i, rule)
    {
        json_t *copy = json_copy(rule);
        const char *own = json_string_value(json_object_get(rule, "name"));
        hf_auto_free char *full = hf_xasprintf("%s/%s", name, own ? own : "");
        (void)json_object_set_new(copy, "name", json_string(full));
        (void)json_array_append_new(list, copy);
    }
}

json_t *hf_policy_merge(const json_t *doc, const json_t *const *groups, size_t n)
{
    static const char *const lists[] = {"allow_out", "deny_out"};
    const json_t *names = json_object_get(doc, "policies");
    json_t *merged = json_copy((json_t *)(uintptr_t)doc);
    (void)json_object_set_new(merged, "rules", list_copy(doc, "rules"));
    for (size_t i = 0; i < HF_ARRAY_LEN(lists); i++) {
        (void)json_object_set_new(merged, lists[i], list_copy(doc, lists[i]));
        append_texts(merged, groups, n, lists[i]);
    }
    for (size_t g = 0; g < n; g++) {
        const char *name = json_string_value(json_array_get(names, g));
        append_rules(merged, groups[g], name ? name : "policy");
    }
    return merged;
}

static void show(json_t *v, const char *name, const json_t *value)
{
    if (value && !json_is_null(value))
        (void)json_object_set_new(v, name, json_deep_copy(value));
}

json_t *hf_policy_present(const json_t *doc)
{
    json_t *v = json_object();
    const json_t *proxy = json_object_get(doc, "egress_proxy");
    const char *mask = json_string_value(json_object_get(doc, "mask_request_host"));
    show(v, "allowInternetAccess", json_object_get(doc, "allow_internet_access"));
    show(v, "allowPublicTraffic", json_object_get(doc, "allow_public_traffic"));
    show(v, "allowOut", json_object_get(doc, "allow_out"));
    show(v, "denyOut", json_object_get(doc, "deny_out"));
    (void)json_object_set_new(v, "rules", hf_policy_rules_present(json_object_get(doc, "rules")));
    show(v, "httpsPorts", json_object_get(doc, "https_ports"));
    show(v, "policies", json_object_get(doc, "policies"));
    if (mask && *mask)
        show(v, "maskRequestHost", json_object_get(doc, "mask_request_host"));
    if (json_is_object(proxy)) {
        json_t *shown = json_deep_copy(proxy);
        (void)json_object_del(shown, "password");
        const char *user = json_string_value(json_object_get(shown, "username"));
        if (user && !*user)
            (void)json_object_del(shown, "username");
        (void)json_object_set_new(v, "egressProxy", shown);
    }
    return v;
}
