/* The parts of envd's HTTP side that main.c and the tests put together. */
#pragma once

#include "envd/envd.h"

/* server.c: the router; the handler of every listener. */
extern const struct hf_http_handler envd_http_handler;

/* init.c */
#define INIT_BODY_MAX (1024u * 1024u)
#define INIT_CLOCK_BEHIND_NS                                                         \
    (50 * INT64_C(1000000)) /* the box's clock is set when it is later than this … \
                             */
#define INIT_CLOCK_AHEAD_NS (5000 * INT64_C(1000000)) /* … or further ahead than this */
#define INIT_RUN_DIR "/run/e2b"
#define INIT_GENERATION "/run/holdfast/generation"    /* in a box: written by the supervisor */
void init_handle(struct envd *e, struct hf_req *req); /* POST /init */
void envs_handle(struct envd *e, struct hf_req *req); /* GET /envs */
void init_defaults(struct envd *e);
/* Frees what /init brought. */
void init_done(struct envd *e);

/* metrics.c: GET /metrics */
void metrics_handle(struct envd *e, struct hf_req *req);
/* Text of a cgroup file -> bytes / ns; pure. */
struct metrics_usage {
    uint64_t mem_used, mem_total, mem_cache, cpu_ns;
};
bool metrics_parse_number(struct hf_str text, uint64_t *ret); /* "max" is UINT64_MAX */
/* "usage_usec N" of cgroup v2's cpu.stat, or the one number of v1's cpuacct.usage. */
bool metrics_parse_cpu(struct hf_str text, uint64_t *ret_ns);
/* Value of a "key value" line. */
bool metrics_parse_field(struct hf_str text, const char *key, uint64_t *ret);

/* ownerhttp.c: POST /owner */
void owner_handle(struct envd *e, struct hf_req *req);

/* exechttp.c: GET /holdfast/exec… */
#define EXEC_HTTP_PREFIX "/holdfast/exec"
void exec_http_handle(struct envd *e, struct hf_req *req);
