/* What the daemon tells a shim about its cell, and what a shim tells about itself. Both sides link this.
 *
 *   RUN/<n>/spec     struct hf_cell_spec, written by the daemon before the shim starts. Its flock is held by
 *                    the daemon until then, and by the shim for life
 *   RUN/<n>/claim    the same keys, written by the shim when a warm cell gets its sandbox
 *   RUN/<n>/exit     struct hf_cell_exit, written by the shim when PID 1 has ended
 *   RUN/<n>/saving   exists while the shim saves: it answers nobody then, for as long as that takes
 *   RUN/<n>/shim.sock, ctl.sock, envd.sock
 *
 * Messages on shim.sock (SOCK_SEQPACKET, one message a packet, at most HF_SHIM_MSG_MAX bytes):
 *   request   op=<op> id=<number> …        op: info claim net socket statfs kill freeze save
 *             (net: state=up|down, and the net_* keys of the fabric to plug into; freeze:
 * state=frozen|thawed; save: dir=<directory> memory=0|1 end=0|1, answered with frozen_us, total_us, cpu_ns,
 * disk_writes, or with EOPNOTSUPP when the processes can't be dumped) answer    id=<number> errno=<0 or
 * errno> msg=… … (socket: the descriptor by SCM_RIGHTS) event     event=ready | event=failed errno= msg= |
 * event=exit cause= code= detail= */
#pragma once

#include "base/err.h"
#include "engine/net/net.h"
#include "engine/shim/cgroup.h"
#include "engine/shim/kv.h"

#define HF_SHIM_MSG_MAX 16384
#define HF_SHIM_CLIENT_FD 3 /* the daemon's end is the first client */
#define HF_SHIM_LOCK_FD 4

#define HF_CELL_SAVING "saving"
#define HF_CELL_PATH_MAX 256
#define HF_CELL_MOUNT_PATH_MAX 512
#define HF_CELL_ID_MAX 64
#define HF_CELL_MOUNTS_MAX 16
#define HF_CELL_UIDS 65536u /* ids of one cell's range */
#define HF_CELL_NS_MAX 64
#define HF_CELL_SUBNET_MAX 50

/* As enum hf_box_mount_kind of driver.h; a static assertion in the driver holds them together. */
enum hf_cell_mount_kind { HF_CELL_MOUNT_IMAGE, HF_CELL_MOUNT_DIR, HF_CELL_MOUNT_TMPFS };

struct hf_cell_mount {
    enum hf_cell_mount_kind kind;
    char image[HF_CELL_PATH_MAX]; /* of an image or a directory of the pool */
    char path[HF_CELL_MOUNT_PATH_MAX];
    uint64_t bytes; /* size of a tmpfs */
    bool read_only;
};

/* The fabric that boxes of this daemon plug into; what engine/net needs for one wire. */
struct hf_cell_fabric {
    char ns[HF_CELL_NS_MAX]; /* path of its network namespace; "" = this host has none */
    char subnet4[HF_CELL_SUBNET_MAX], subnet6[HF_CELL_SUBNET_MAX];
    bool ipv6;
};

struct hf_cell_spec {
    uint32_t n;                      /* the cell's number */
    char sandbox_id[HF_CELL_ID_MAX]; /* "" = a warm cell */
    char template_id[HF_CELL_ID_MAX];
    char dir[HF_CELL_PATH_MAX];          /* RUN/<n> */
    char template_dir[HF_CELL_PATH_MAX]; /* RUN/templates/<id> */
    char blank[HF_CELL_PATH_MAX];        /* cloned to image when that is missing */
    char image[HF_CELL_PATH_MAX];        /* the writable layer */
    char envd[HF_CELL_PATH_MAX];
    char cgroup_root[HF_CELL_PATH_MAX];
    char cgroup_group[HF_CELL_ID_MAX]; /* "holdfast/<8 hex>" */
    uint64_t disk_bytes;
    char from[HF_CELL_PATH_MAX]; /* directory that a save filled; "" = starts afresh (blank is then its
                                    disk.img) */
    bool from_memory;            /* its processes go on */
    bool clone;                  /* as somebody else than the one that was saved */
    uint64_t generation;         /* of the sandbox: /run/holdfast/generation */
    char criu[HF_CELL_PATH_MAX]; /* program for saves and starts with memory; "" = none */
    struct hf_cg_limits limits;
    struct hf_cell_fabric fabric;
    bool network; /* has an interface into the fabric; a warm cell always, where there is one */
    size_t n_mounts;
    struct hf_cell_mount mounts[HF_CELL_MOUNTS_MAX];
};

/* -EINVAL when a text holds a newline. */
int hf_cell_spec_write(const struct hf_cell_spec *s, struct hf_buf *b) HF_MUST_USE;
/* -EINVAL or -ENAMETOOLONG for what no daemon of ours wrote. */
int hf_cell_spec_read(struct hf_str text, struct hf_cell_spec *ret) HF_MUST_USE;
/* The part of a spec that a claim brings: sandbox_id, generation, limits, network (absent: none), mounts.
 * Other fields of s are kept. */
int hf_cell_claim_write(const struct hf_cell_spec *s, struct hf_buf *b) HF_MUST_USE;
int hf_cell_claim_read(struct hf_str text, struct hf_cell_spec *s) HF_MUST_USE;
/* The fabric's keys; nothing is written for a host without one, and what is absent reads as none. */
int hf_cell_fabric_write(const struct hf_cell_fabric *f, struct hf_buf *b) HF_MUST_USE;
int hf_cell_fabric_read(struct hf_str text, struct hf_cell_fabric *ret) HF_MUST_USE;
/* As engine/net takes it; ret points into f. */
void hf_cell_net_config(const struct hf_cell_fabric *f, struct hf_net_config *ret);

/* Values as enum hf_box_cause of driver.h; a static assertion in the driver holds them together. */
enum hf_cell_cause { HF_CELL_EXITED, HF_CELL_OOM, HF_CELL_KILLED, HF_CELL_LOST };

struct hf_cell_exit {
    enum hf_cell_cause cause;
    int code; /* exit status, or -signal */
    char detail[160];
};

int hf_cell_exit_write(const struct hf_cell_exit *e, struct hf_buf *b) HF_MUST_USE;
int hf_cell_exit_read(struct hf_str text, struct hf_cell_exit *ret) HF_MUST_USE;
