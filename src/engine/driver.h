/* The driver interface: how the control plane makes and ends sandboxes ("boxes") without knowing what they
 * are made of. First driver: cell (namespaces). A micro VM driver will follow, so nothing here may assume a
 * shared kernel, host pids or namespaces.
 *
 * All calls are made on, and all callbacks come back on, the loop's thread. Callbacks never run inside the
 * call that was given them. Blocking work is the driver's problem (shim processes, the worker pool).
 *
 * Crash contract: a box carries its sandbox id in state that outlives the daemon (the shim), so that after
 * a restart `scan` can tell which box belongs to which row. `destroy` is idempotent and works on any
 * half-made box, including one of which only remains are left. */
#pragma once

#include <uv.h>

#include "base/err.h"

#define HF_BOX_ENVD_PORT 49983
#define HF_CRIU_PATH "/usr/local/lib/holdfast/criu" /* where ./dev setup puts it (docs/adr/0017) */

#define HF_SANDBOX_ID_MAX 64
#define HF_BOX_MOUNTS_MAX 16

struct hf_net_config; /* engine/net/net.h */
struct hf_box;        /* a driver's handle for one box; owned by the driver, valid until destroy's callback */

enum hf_box_mount_kind {
    HF_MOUNT_IMAGE, /* an ext4 image of its own: one box at a time, unless read-only */
    HF_MOUNT_DIR,   /* a directory of the pool, which several boxes may have at once */
    HF_MOUNT_TMPFS, /* memory: empty at every start and restore, in no snapshot */
};

struct hf_box_mount {
    enum hf_box_mount_kind kind;
    const char *image; /* absolute path of the image or directory; NULL for a tmpfs */
    uint64_t bytes;    /* of a tmpfs: its size; 0 = 1 MiB */
    const char
        *path; /* absolute, normalised path in the box; created (0755, owner uid/gid 1000) if missing */
    bool read_only;
};

struct hf_box_spec {
    const char *sandbox_id;  /* [a-z0-9]{1,63}; also the host name in the box */
    const char *template_id; /* a template that hf_driver_template_* made known */
    uint32_t cpu_millis;     /* 1000 = one core; 0 = driver default (2000) */
    uint64_t memory_bytes;   /* 0 = default (512 MiB) */
    uint32_t pids_max;       /* 0 = default (1024) */
    uint64_t disk_bytes;     /* writable layer; 0 = default (1 GiB) */
    uint64_t io_bps;         /* bytes a second to and from the writable layer, each; 0 = no limit */
    bool network; /* an interface into the fabric; without it only loopback, no route, no resolver */
    size_t n_mounts;
    struct hf_box_mount mounts[HF_BOX_MOUNTS_MAX];
    /* Starting from what hf_driver_ops.save left: its directory (NULL = from the template alone). The disk is
     * a clone of the saved one, disk_bytes is ignored. from_memory: its processes go on where they were; the
     * box is then not from the warm pool, and envd answers on hf_box_control_socket as before the save. */
    const char *from;
    bool from_memory;
    /* Counts every life of the sandbox: 1 at its create, one more at each restore. The number stands in the
     * box in /run/holdfast/generation before any instruction of a restored process runs. */
    uint64_t generation;
    /* The box is somebody else than the one that was saved: new machine-id, boot id and host name. */
    bool clone;
};

/* Saving a box: its writable layer, and its processes when asked, cut at one barrier. */
struct hf_box_save {
    const char *dir; /* absolute: of hf_snapshot_begin (engine/disk/snapshot.h); disk.img, box and, with
                      * memory, mem/ and tmpfs.tar are put there. Nothing of it is flushed to the disk */
    bool memory;
    bool end; /* the box does not go on: after success its processes are gone; destroy it next */
};

struct hf_box_saved {
    uint64_t frozen_us; /* what the box felt */
    uint64_t total_us;
    /* hf_box_stats.cpu_usage_ns and .disk_writes at the end of the time that it stood still. */
    uint64_t cpu_ns, disk_writes;
};

/* What ended a box. */
enum hf_box_cause {
    HF_BOX_EXITED, /* its init ended by itself */
    HF_BOX_OOM,    /* the kernel killed its init for memory */
    HF_BOX_KILLED, /* its init (or the whole cgroup) got SIGKILL from outside */
    HF_BOX_LOST,   /* its supervisor is gone */
};
const char *hf_box_cause_name(enum hf_box_cause cause); /* "exited" "oom" "killed" "supervisor lost" */

struct hf_box_exit {
    enum hf_box_cause cause;
    int code;         /* exit status, or -signal */
    char detail[160]; /* a sentence for people */
};

struct hf_box_stats {
    double cpu_used_pct; /* of one core, since the previous call for this box; 0 at the first */
    uint32_t cpu_count;  /* cores granted, rounded up */
    uint64_t cpu_usage_ns;
    uint64_t mem_used, mem_total, mem_cache; /* bytes */
    uint64_t disk_used, disk_total;          /* bytes of the writable layer */
    uint64_t disk_writes;                    /* sectors that were written to it; UINT64_MAX = not known */
    uint32_t pids;
    uint64_t oom_kills; /* processes that the kernel killed in this box so far */
};

struct hf_driver_caps {
    bool memory_limit, cpu_limit, pids_limit, io_limit; /* cgroup controllers that are present */
    bool disk_quota, reflink, warm_pool, network;
    bool pause;            /* freeze works */
    bool snapshot_memory;  /* CRIU is there: save with memory is tried (holdfast doctor tries it) */
    const char *isolation; /* "shared-kernel" or "vm" */
    char missing[256];     /* what this host lacks, for people; "" when nothing */
};

struct hf_driver_config {
    const char *data_dir;            /* absolute */
    const char *run_dir;             /* absolute, short (socket paths): /run/holdfast/<8 hex> */
    const char *shim_path;           /* absolute path of holdfast-shim */
    const char *envd_path;           /* absolute path of holdfast-envd */
    const char *criu_path;           /* absolute path of criu; NULL or missing: processes can't be saved */
    const char *cgroup_root;         /* "/sys/fs/cgroup", or a fake one in tests */
    uint64_t pool_bytes;             /* size limit of the XFS pool image where the host has no reflink */
    uint32_t warm_pool;              /* boxes kept ready */
    const char *warm_template;       /* template id for them ("" = none yet; hf_driver_set_warm changes it) */
    const struct hf_net_config *net; /* NULL: this host has no fabric; boxes get loopback only. The fabric
                                      * exists already (hf_net_open) */
};

struct hf_driver;

typedef void (*hf_box_cb)(void *arg, struct hf_box *box, const struct hf_err *err);
typedef void (*hf_done_cb)(void *arg, const struct hf_err *err);
typedef void (*hf_fd_cb)(void *arg, int fd_or_errno, const struct hf_err *err);

typedef void (*hf_box_save_cb)(void *arg, const struct hf_box_saved *saved, const struct hf_err *err);

/* One box that scan found. */
struct hf_box_found {
    struct hf_box *box;      /* pass it to adopt or destroy; every found box must get one of the two */
    const char *sandbox_id;  /* "" for a pool member or an unclaimed remain */
    bool alive;              /* its supervisor answered and its init runs */
    bool frozen;             /* alive, but paused warm */
    struct hf_box_exit exit; /* when not alive */
};

struct hf_driver_ops {
    const char *name;
    void (*caps)(struct hf_driver *d, struct hf_driver_caps *ret);
    /* Finds every box that exists on this node for this data directory. Called once, before any create.
     * found(arg, …) is called for each, then done(arg, err). */
    void (*scan)(struct hf_driver *d, void (*found)(void *arg, const struct hf_box_found *f), hf_done_cb done,
                 void *arg);
    /* Takes a living found box over: exits are reported from now on. */
    void (*adopt)(struct hf_driver *d, struct hf_box *box);
    /* Makes a box, from the warm pool when the spec allows it. cb gets the running box, with envd reachable
     * on hf_box_control_socket, or an error after everything was undone. */
    void (*create)(struct hf_driver *d, const struct hf_box_spec *spec, hf_box_cb cb, void *arg);
    /* Kills and removes everything of the box: processes, cgroup, mounts, loop devices, files. Works in any
     * state; cb comes when nothing is left (err: what could not be removed). No exit is reported for it. */
    void (*destroy)(struct hf_driver *d, struct hf_box *box, hf_done_cb cb, void *arg);
    /* A connected, non-blocking socket to 127.0.0.1:port (then [::1]) inside the box; -ECONNREFUSED when
     * nothing listens. The caller owns the fd. */
    void (*dial)(struct hf_driver *d, struct hf_box *box, uint16_t port, hf_fd_cb cb, void *arg);
    int (*stats)(struct hf_driver *d, struct hf_box *box, struct hf_box_stats *ret);
    /* Stops the warm pool (destroying its members when kill_pool) and frees the driver; running boxes stay
     * under their shims. */
    void (*close)(struct hf_driver *d, bool kill_pool, hf_done_cb cb, void *arg);
    /* Plugs the box into the fabric or takes it out (its interface, routes and resolver come and go).
     * Idempotent. */
    void (*network)(struct hf_driver *d, struct hf_box *box, bool up, hf_done_cb cb, void *arg);
    /* Stops all processes of the box where they are, or lets them go on. Idempotent. destroy works on a
     * frozen box; envd does not answer in one. */
    void (*freeze)(struct hf_driver *d, struct hf_box *box, bool frozen, hf_done_cb cb, void *arg);
    /* Saves the box, running or frozen; afterwards it is as before (running, frozen), unless save->end. On
     * failure it is as before too. -EOPNOTSUPP: its processes can't be dumped, err says which and why, and a
     * save without memory would work. -ENOSPC. destroy during a save ends both. */
    void (*save)(struct hf_driver *d, struct hf_box *box, const struct hf_box_save *save, hf_box_save_cb cb,
                 void *arg);
    /* Sets the template that the warm pool is filled with ("" = empty the pool). */
    void (*set_warm)(struct hf_driver *d, const char *template_id, uint32_t count);
};

struct hf_driver {
    const struct hf_driver_ops *ops;
    uv_loop_t *loop;
    /* A box that nobody asked to destroy has ended; the handle stays valid, call destroy on it. */
    void (*on_exit)(void *arg, struct hf_box *box, const struct hf_box_exit *exit);
    void *on_exit_arg;
};

/* The cell driver. Prepares directories, the disk pool and cgroups (may block: called at start-up). */
int hf_cell_driver_new(uv_loop_t *loop, const struct hf_driver_config *cfg, struct hf_driver **ret,
                       struct hf_err *err) HF_MUST_USE;

/* Facts of a box; strings live as long as the handle. */
const char *hf_box_sandbox_id(const struct hf_box *box);
const char *hf_box_control_socket(const struct hf_box *box); /* unix socket: envd with control routes */
const char *hf_box_envd_socket(const struct hf_box *box);    /* unix socket: envd as the proxy may reach it */
uint64_t hf_box_disk_bytes(const struct hf_box *box);
/* The box's key in the fabric (engine/net/net.h); never 0. Its policy must be in force (hf_net) before it may
 * reach anything: an interface without a policy drops everything. */
uint32_t hf_box_net_key(const struct hf_box *box);

/* ---- disk: volumes and templates (src/engine/disk); blocking, call from a worker thread ---- */

/* Where the pool's parts live: DATA/pool/{templates,volumes,cells,blank}. */
/* Makes an ext4 volume image of that size (reflinked from a preformatted blank). Idempotent: an existing
 * image of that name is success. name: [a-z0-9-]{1,63}. */
int hf_disk_volume_create(const char *data_dir, const char *name, uint64_t bytes, char **ret_path,
                          struct hf_err *err) HF_MUST_USE;
/* Missing is success; -EBUSY while a box has it mounted. */
int hf_disk_volume_remove(const char *data_dir, const char *name, struct hf_err *err) HF_MUST_USE;
/* Builds the read-only image DATA/pool/templates/<template_id>.img from a root file system tree and
 * fsyncs it under its final name (atomic). ret_bytes: size of the image. -EEXIST when the template exists. A
 * tar stream is imported with engine/disk/template.h. */
int hf_disk_template_build(const char *data_dir, const char *template_id, const char *rootfs_dir,
                           uint64_t *ret_bytes, struct hf_err *err) HF_MUST_USE;
/* Missing is success; -EBUSY while a box uses it. Unmounts it first. */
int hf_disk_template_remove(const char *data_dir, const char *template_id, struct hf_err *err) HF_MUST_USE;
/* Mounts the template's image (once a node, read-only) at RUN/templates/<id>; idempotent. The cell driver
 * does this itself at create. */
int hf_disk_template_mount(const char *data_dir, const char *run_dir, const char *template_id,
                           struct hf_err *err) HF_MUST_USE;
/* Makes DATA/pool usable: plain directory when the host's file system has reflink, else an XFS image on a
 * loop device, mounted at DATA/pool; idempotent. */
int hf_disk_pool_open(const char *data_dir, uint64_t max_bytes, bool *ret_reflink,
                      struct hf_err *err) HF_MUST_USE;
/* Unmounts what is not in use (templates, pool); used by `holdfast serve` at a clean end and by tests. */
int hf_disk_pool_close(const char *data_dir, const char *run_dir, struct hf_err *err) HF_MUST_USE;
/* Bytes free and in total in the pool. */
int hf_disk_pool_space(const char *data_dir, uint64_t *ret_free, uint64_t *ret_total) HF_MUST_USE;
