/* Fuzz: a client's network object. What is taken can be parsed, shown, taken again, merged and asked. */
#include "egress/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ask(const json_t *doc)
{
    static const char *const hosts[] = {"a.example", "x.wild.example", "198.51.100.1"};
    static const char *const addrs[] = {"169.254.169.254", "127.0.0.1", "::1", "::ffff:169.254.1.1"};
    struct hf_policy *p;
    struct hf_verdict v;
    uint16_t ports[4];
    struct hf_err err = {0};
    if (hf_policy_parse(doc, &p, &err) < 0) {
        if (err.status != 400) /* too many ports */
            abort();
        return;
    }
    (void)hf_policy_l7_ports(p, ports, HF_ARRAY_LEN(ports));
    for (size_t i = 0; i < HF_ARRAY_LEN(hosts); i++) {
        struct hf_judge_req q = {.scheme = "https",
                                 .host = hosts[i],
                                 .port = 443,
                                 .method = HF_STR("GET"),
                                 .path = HF_STR("/v1/../x")};
        hf_policy_judge(p, &q, NULL, &v);
        for (size_t k = 0; k < HF_ARRAY_LEN(addrs); k++) {
            struct hf_addr a;
            if (hf_addr_parse(hf_str_c(addrs[k]), &a) < 0)
                abort();
            q.learned = true;
            hf_policy_judge(p, &q, &a, &v);
            if (v.decision == HF_ALLOW)
                abort(); /* nothing opens these */
        }
    }
    hf_policy_unref(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_auto_t *request = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL), *doc = NULL;
    json_auto_t *group = NULL;
    struct hf_err err = {0};
    if (!request)
        return 0;
    if (hf_policy_resolve(request, -1, &doc, &err) == 0) {
        json_auto_t *shown = hf_policy_present(doc), *again = NULL;
        ask(doc);
        if (hf_policy_resolve(shown, -1, &again, &err) < 0)
            abort();
    }
    if (hf_policy_resolve_group(request, &group, &err) == 0) {
        json_auto_t *base = json_pack("{s:[s]}", "policies", "g"), *own = NULL;
        if (hf_policy_resolve(base, -1, &own, &err) < 0)
            abort();
        const json_t *groups[] = {group};
        json_auto_t *merged = hf_policy_merge(own, groups, 1);
        ask(merged);
    }
    return 0;
}
