/* Internals of an open fabric, shared by fabric.c (making) and box.c (elements). */
#pragma once

#include "base/map.h"
#include "engine/net/net.h"
#include "engine/net/nft.h"
#include "engine/net/ruleset.h"

struct hf_net {
    struct hf_net_config cfg; /* its strings are copies */
    char *strings[5];
    int ns_fd, nfnl_fd; /* the fabric's namespace; nf_tables inside */
    struct hf_nft batch;
    struct hf_map boxes; /* key (4 bytes) -> struct hf_net_box: what was applied */
};

/* Reads what the kernel holds, after a restart of the process. */
int hf_net_learn_boxes(struct hf_net *n, struct hf_err *err) HF_MUST_USE;
void hf_net_free_boxes(struct hf_net *n);
