/* A control plane on a temporary directory with the fake driver, run by hand. */
#pragma once

#include "control/control.h"
#include "fake_driver.h"

struct hf_harness {
    char dir[64], run_dir[96];
    uv_loop_t loop;
    struct hf_config cfg;
    struct hf_meta *meta;
    struct hf_fake *fake;
    struct hf_control *c;
    unsigned dropped;
};

/* New directory. */
void hf_harness_init(struct hf_harness *h);
/* Store, driver, control plane, reconciled. */
void hf_harness_up(struct hf_harness *h);
/* Everything down in order, the files stay. */
void hf_harness_down(struct hf_harness *h);
void hf_harness_done(struct hf_harness *h);

/* cmocka's: one that is up as *state; the end waits for what is under way, as the daemon does. */
int hf_harness_setup(void **state);
int hf_harness_teardown(void **state);

/* Runs the loop until *flag is not 0; fails the test after five seconds. */
void hf_harness_wait(struct hf_harness *h, const int *flag);
void hf_harness_run_ms(struct hf_harness *h, unsigned ms);

/* A request for the template "t" of the tenant "default", one hour. */
struct hf_create_req hf_harness_req(void);

struct hf_created {
    int done;
    char id[HF_ROW_ID];
    struct hf_err err;
};
void hf_harness_on_created(void *arg, struct hf_sandbox *sb, const struct hf_err *err);
/* Creates one and waits. */
struct hf_sandbox *hf_harness_create(struct hf_harness *h);
struct hf_outcome {
    int done;
    struct hf_err err;
};
void hf_harness_on_outcome(void *arg, const struct hf_err *err); /* of a struct hf_outcome */
void hf_harness_on_done(void *arg, const struct hf_err *err);    /* ++*(int *)arg */
