/* A cell driver on a loop of its own, with a small template made on the fly, and blocking calls for tests. */
#pragma once

#include <uv.h>

#include "engine/driver.h"
#include "engine/net/net.h"

#define H_TEMPLATE "tiny"

struct h_host {
    char base[64];                     /* /tmp/hf-engine-XXXXXX */
    char data[80], run[80], group[16]; /* RUN ends with the group's 8 hex characters */
    const char *shim, *guest, *probes;
    const char *cgroup_root;         /* NULL = /sys/fs/cgroup */
    bool no_criu;                    /* the driver is given none */
    const struct hf_net_config *net; /* of the driver; NULL = none */
    struct hf_net_config fabric;
    char fabric_id[16];
    uv_loop_t loop;
    struct hf_driver *driver;
    bool exited; /* on_exit came; the last one is in exit */
    struct hf_box *exited_box;
    struct hf_box_exit exit;
    unsigned exits;
};

/* Exit 77 with a reason when this host can't run cells. args: shim, guest, probes. */
void h_require(int argc, char **argv);
void h_setup(struct h_host *h); /* directories, template; no driver yet */
void h_teardown(struct h_host *h);
void h_open(struct h_host *h, uint32_t warm);
void h_close(struct h_host *h, bool kill_pool);
/* Frees nothing and tells nobody: as a SIGKILL of the daemon would, for adoption tests. */
void h_abandon(struct h_host *h);

/* A network namespace that plays the fabric: the driver is given it from the next h_open on. Without rules
 * and without a way out. id: of an existing one, for a child process; NULL makes a new one. */
void h_fabric_open(struct h_host *h, const char *id);
void h_fabric_close(struct h_host *h);
/* The boxes' interfaces in it: with this key, and all. */
bool h_fabric_has(const struct h_host *h, uint32_t key);
unsigned h_fabric_count(const struct h_host *h);
int h_network(struct h_host *h, struct hf_box *box, bool up, struct hf_err *err);

/* NULL and err on failure. */
struct hf_box *h_create_spec(struct h_host *h, const struct hf_box_spec *spec, struct hf_err *err);
struct hf_box *h_create(struct h_host *h, const char *id);
int h_destroy(struct h_host *h, struct hf_box *box, struct hf_err *err);
/* Output of a shell script in the box (heap, NUL-terminated); NULL when the connection broke. */
char *h_exec(struct hf_box *box, const char *script);
/* Asserts that the output is exactly this. */
void h_expect(struct hf_box *box, const char *script, const char *output);
int h_dial(struct h_host *h, struct hf_box *box, uint16_t port);
/* Runs the loop until *flag or the timeout. */
bool h_until(struct h_host *h, const bool *flag, unsigned timeout_ms);
void h_spin(struct h_host *h, unsigned ms);

#define H_FOUND_MAX 256
struct h_found {
    struct hf_box *box;
    char sandbox_id[64];
    bool alive, frozen;
    struct hf_box_exit exit;
};
size_t h_scan(struct h_host *h, struct h_found *out);
/* Scans and destroys all; the number that was found. */
size_t h_sweep(struct h_host *h);

/* cmocka teardown of one test (*state is the host): removes what a failed test left. */
int h_reset(void **state);

/* Asserts that nothing of this host's cells is left: processes, cgroups, mounts, loop devices, files,
 * interfaces. */
void h_assert_clean(const struct h_host *h);
/* Number of loop devices on images of cells. */
unsigned h_count_loops(const struct h_host *h);
pid_t h_shim_pid(const struct h_host *h, unsigned n); /* 0 = none */
unsigned h_box_number(const struct hf_box *box);
