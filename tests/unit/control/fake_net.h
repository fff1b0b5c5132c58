/* The network part without a network: what was put in force for the box with key K is the file
 * RUN/policy-<K>.json; while the file RUN/refuse exists nothing is. Linked in place of control/net*.c. */
#pragma once

#include "control/net.h"

/* For control planes that are run by hand; hf_cnet_open is for the daemon. */
struct hf_cnet *hf_fake_net_new(uv_loop_t *loop, const char *run_dir);
