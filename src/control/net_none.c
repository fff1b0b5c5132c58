/* Until control/net.c exists. */
#include "control/net.h"
const char *hf_cnet_missing(const struct hf_cnet *n)
{
    return "this build has no network part";
}
void hf_cnet_apply(struct hf_cnet *n, struct hf_sandbox *sb, hf_done_cb cb, void *arg)
{
    cb(arg, NULL);
}
void hf_cnet_forget(struct hf_cnet *n, uint32_t key)
{
}
void hf_cnet_group_changed(struct hf_cnet *n, const char *tenant, const char *group, hf_done_cb cb, void *arg)
{
    cb(arg, NULL);
}
const char *hf_cnet_ca(struct hf_cnet *n, const char *tenant, struct hf_err *err)
{
    return NULL;
}
bool hf_cnet_needs_ca(const json_t *merged_doc)
{
    return false;
}
void hf_cnet_counters(struct hf_cnet *n, uint32_t key, void (*cb)(void *arg, const json_t *v), void *arg)
{
    cb(arg, NULL);
}
int hf_cnet_seal_doc(struct hf_cnet *n, const char *tenant, json_t *doc, struct hf_err *err)
{
    return 0;
}
