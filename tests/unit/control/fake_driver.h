/* A driver without boxes, for tests of the control plane.
 *
 * A box is a directory RUN/boxes/<n> with the file `id` (the sandbox) and, once its init has ended, `exit`;
 * it survives the process like a shim does, so restarts and crashes can be played. A small HTTP server in
 * this process stands for envd: it answers POST /init. */
#pragma once

#include "engine/driver.h"

struct hf_fake {
    struct hf_driver base; /* give &fake->base to the control plane */
    char *run_dir;
    /* knobs */
    unsigned create_ms, destroy_ms; /* how long the driver takes */
    int fail_create;                /* -errno of the creates to come; 0 = they work */
    bool other_generation;          /* envd tells another one than it was told */
    int init_status;                /* what envd answers; 0 = it never does; -1 = it closes the connection */
    unsigned freeze_ms, save_ms;
    int fail_freeze, fail_save;   /* -errno; fail_save: of those with memory */
    uint64_t cpu_ns, disk_writes; /* of every box, in its stats and its saves */
    /* what was seen */
    unsigned saves;
    unsigned creates, destroys, inits, living, most_living;
    char last_init[4096]; /* body of the last /init */
    char warm_id[64];
    unsigned warm_count;
    unsigned next;
    unsigned open_handles;
    struct hf_box *boxes;
    uv_timer_t watch;
    bool watching;
    hf_done_cb closed;
    void *closed_arg;
};

struct hf_fake *hf_fake_new(uv_loop_t *loop, const char *run_dir);
/* Its init ends by itself; the driver reports it. */
void hf_fake_end(struct hf_fake *f, const char *sandbox_id, enum hf_box_cause cause, const char *detail);
/* As above while no daemon runs: works on the files. */
void hf_fake_end_offline(const char *run_dir, const char *sandbox_id, enum hf_box_cause cause);
/* Looks for `exit` files of living boxes every few milliseconds and reports them. */
void hf_fake_watch(struct hf_fake *f);
/* Number of boxes that the files know. */
unsigned hf_fake_count(const char *run_dir);
/* Makes a box that nobody has a row for. */
void hf_fake_plant(const char *run_dir, const char *sandbox_id);
void hf_fake_plant_frozen(const char *run_dir, const char *sandbox_id);
