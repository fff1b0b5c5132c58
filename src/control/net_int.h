/* Internals of the control plane's side of the network, shared by net*.c. */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "control/net.h"
#include "control/net_client.h"
#include "control/seal.h"

#define HF_CNET_WAIT_MS 2000u        /* a change waits that long for netd to come (back) */
#define HF_CNET_STEP_MS 50u          /* between two attempts to reach it */
#define HF_CNET_SPAWN_MAX_MS 5000u   /* between two attempts to start it, at most */
#define HF_CNET_BEAT_MS 10000u       /* between two looks whether it answers */
#define HF_CNET_HUNG_MAX 3u          /* exchanges in a row without an answer: it is killed */
#define HF_CNET_STOP_MS 3000u        /* it must have ended within, when the fabric is taken down */
#define HF_CNET_LOG_MAX (4u << 20)   /* bytes of netd.log; beyond: the newest half goes to netd.log.1 */
#define HF_CNET_RECORDS_MS 500u      /* between two looks at the records */
#define HF_CNET_RECORDS_BATCH 65536u /* bytes of records in one batch; a longer line is broken */

/* What netd was told of a tenant. */
struct cnet_tenant {
    char name[HF_ROW_ID];
    bool pushed;            /* netd has its secrets, or will before anything that is sent from now on */
    char *ca_cert, *ca_key; /* once it was needed; the key is wiped when freed */
    struct hf_err push_err; /* why it has not */
};

/* An apply that waits for netd. */
struct cnet_wait {
    struct hf_list node;
    struct hf_sandbox *sb;
    uint64_t until_ms;
    struct hf_err err;
    hf_done_cb cb;
    void *arg;
};

struct hf_cnet {
    uv_loop_t *loop;
    const struct hf_config *cfg;
    struct hf_control *c; /* from hf_cnet_start on */
    char id[9];
    char *run, *records, *netd_path; /* RUN/net, DATA/net */
    char missing[240];
    struct hf_net_config net;
    struct hf_net *fabric; /* to look at; netd changes it. NULL: does not work here */
    struct hf_sealer *sealer;

    struct hf_netc *client;
    bool told;     /* the connection is up and everything was sent over it */
    bool replaced; /* a netd of another version was ended once */
    bool closing;
    unsigned hung;
    uint64_t beat_ms; /* of the last look */
    uv_timer_t timer, tail;
    unsigned open_handles;
    uv_process_t *child;
    uint64_t spawn_at_ms, spawn_wait_ms;
    struct hf_list waits;
    struct hf_map tenants;
    uint32_t *gone; /* keys of boxes that ended while netd could not be told */
    size_t n_gone;
    bool keys_checked; /* the kernel's keys were compared with the rows */

    char cursor_file[HF_ROW_ID];
    int64_t cursor;
    bool tailing, cursor_known;
    unsigned tail_batches;

    bool remove_fabric;
    hf_done_cb closed;
    void *closed_arg;
};

/* net.c */
void hf_cnet_sync(struct hf_cnet *n); /* the connection came up: tells netd everything */
void hf_cnet_flush_waits(struct hf_cnet *n);
void hf_cnet_fail_waits(struct hf_cnet *n, uint64_t now_ms,
                        const struct hf_err *err);            /* those that are due */
void hf_cnet_soon(uv_loop_t *loop, hf_done_cb cb, void *arg); /* success, in the loop's next turn */
/* PUT of v, which is stolen and wiped. Only while told. */
void hf_cnet_put(struct hf_cnet *n, const char *path, json_t *v, hf_netc_cb cb, void *arg);

/* net_tenant.c */
struct cnet_tenant *hf_cnet_tenant(struct hf_cnet *n, const char *name);
/* Sends the tenant's secrets and authority, if netd has not got them. */
void hf_cnet_push_tenant(struct hf_cnet *n, const char *name);
void hf_cnet_tenants_done(struct hf_cnet *n);

/* net_netd.c: the process */
void hf_cnet_netd_init(struct hf_cnet *n);
void hf_cnet_netd_stop(struct hf_cnet *n); /* ends it and waits, for the fabric's removal; blocking */
void hf_cnet_forget_child(struct hf_cnet *n);
/* Asks now and then whether it still answers; that also keeps the connection from being idle. */
void hf_cnet_beat(struct hf_cnet *n);
void hf_cnet_cap_log(struct hf_cnet *n);

/* net_records.c */
void hf_cnet_tail(struct hf_cnet *n);
