/* The fabric, for tests of the control plane: it can do everything and does nothing; keys are set by hand. */
#include "fake_fabric.h"

struct hf_net {
    int unused;
};

struct hf_fake_fabric hf_fake_fabric = {.ok = true};
static struct hf_net fabric;

void hf_net_probe(struct hf_net_caps *ret)
{
    *ret = (struct hf_net_caps){.ok = hf_fake_fabric.ok, .ipv4 = true, .ipv6 = true};
    if (!ret->ok)
        memcpy(ret->missing, "no nft", sizeof("no nft"));
}

int hf_net_open(const struct hf_net_config *cfg, struct hf_net **ret, struct hf_err *err)
{
    hf_fake_fabric.opened++;
    *ret = &fabric;
    return 0;
}

void hf_net_free(struct hf_net *n)
{
}

int hf_net_remove(const struct hf_net_config *cfg, struct hf_err *err)
{
    hf_fake_fabric.removed++;
    return 0;
}

int hf_net_keys(struct hf_net *n, uint32_t **ret, size_t *ret_n)
{
    *ret = hf_xcalloc(hf_fake_fabric.n_keys + 1, sizeof(**ret));
    memcpy(*ret, hf_fake_fabric.keys, hf_fake_fabric.n_keys * sizeof(**ret));
    *ret_n = hf_fake_fabric.n_keys;
    return 0;
}
