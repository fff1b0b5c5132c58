/* holdfast-netd for tests of the control plane: a small HTTP server on RUN/net/netd.sock, on the test's own
 * loop, that keeps what it is told. */
#pragma once

#include <jansson.h>
#include <uv.h>

#include "wire/http.h"

struct hf_fake_netd {
    uv_loop_t *loop;
    char path[160];
    struct hf_http_server *server;    /* NULL: not running */
    json_t *config, *tenants, *boxes; /* bodies of PUT, by name or key */
    unsigned puts, deletes, statuses;
    bool refuse;         /* PUT /boxes answers 400 */
    bool silent;         /* nothing is answered */
    const char *version; /* default HOLDFAST_VERSION */
};

void hf_fake_netd_init(struct hf_fake_netd *f, uv_loop_t *loop, const char *run_dir);
void hf_fake_netd_up(struct hf_fake_netd *f);
/* It dies: connections are cut, what it was told is forgotten. */
void hf_fake_netd_down(struct hf_fake_netd *f);
void hf_fake_netd_done(struct hf_fake_netd *f);
