/* Parts of the supervisor. One thread, no event library; everything up to "ready" blocks, since a shim has
 * nothing else to do meanwhile. It must stay small: one runs for every sandbox. */
#pragma once

#include <poll.h>
#include <sys/types.h>

#include "engine/shim/spec.h"

#define SHIM_CLIENTS_MAX 8
#define SHIM_STDERR_TAIL 512 /* bytes of PID 1's last words that are kept */
/* An OOM kill this long before PID 1's end by SIGKILL counts as its cause. */
#define SHIM_OOM_WINDOW_MS 2000

struct shim_client {
    int fd;        /* -1 = free */
    bool kill_box; /* asked for the end */
};

struct shim {
    struct hf_cell_spec spec;
    struct hf_cg cg;
    int listen_fd, ctl_fd, envd_sock_fd;
    int range_fd; /* abstract socket that holds the uid range */
    uint32_t uid_base;
    int template_fd, upper_fd, envd_fd; /* detached mounts, until PID 1 has placed them */
    int reseed_fd;                      /* likewise; -1 = there is no such library beside envd */
    int volume_fd[HF_CELL_MOUNTS_MAX];
    int disk_fd; /* root directory of the writable image: statfs, shutdown */
    dev_t disk_dev;
    struct hf_cg_fds cg_fds;
    bool cg_made;
    bool wired; /* the interface into the fabric is there */
    bool frozen;
    bool saved; /* with end: it never goes on */
    pid_t pid;
    int pidfd, userns_fd;
    int stderr_fd; /* read end */
    char stderr_tail[SHIM_STDERR_TAIL];
    size_t stderr_n;
    int oom_fd; /* v1: eventfd of memory.oom_control; v2: memory.events */
    uint64_t oom_kills, oom_at_ms;
    bool kill_asked;
    struct shim_client clients[SHIM_CLIENTS_MAX];
};

/* What PID 1 reports on its sync socket when it can't go on. */
struct shim_report {
    int r;
    char msg[240];
};

/* restore.c: PID 1 and everything below it come out of spec.from instead of being started. */
int shim_restore(struct shim *s, struct hf_err *err) HF_MUST_USE;
/* start.c, also for restore.c: the box's own user namespace maps the mounts that are not placed yet. */
int shim_map_mounts(struct shim *s, struct hf_err *err) HF_MUST_USE;
/* start.c: joins the box's network and uts namespaces. */
int shim_join(struct shim *s, struct hf_err *err) HF_MUST_USE;
/* inside.c: brings the loopback interface of this network namespace up. */
int shim_loopback_up(struct hf_err *err) HF_MUST_USE;
/* start.c: makes everything and starts PID 1; after an error call shim_cleanup. */
int shim_start(struct shim *s, struct hf_err *err) HF_MUST_USE;
/* Ends what is left of the box: processes, mounts, cgroup. PID 1 must be dead or never started. */
void shim_cleanup(struct shim *s);
/* Throws the writable image's dirty pages away and kills PID 1. */
void shim_kill(struct shim *s);
/* disk.c: the writable image and volumes as detached mounts. */
int shim_disk_open(struct shim *s, struct hf_err *err) HF_MUST_USE;
int shim_volume_open(const struct hf_cell_mount *m, struct hf_err *err) HF_MUST_USE;
/* Maps a detached mount's owners into the box's uid range. */
int shim_idmap(int mount_fd, int userns_fd, struct hf_err *err) HF_MUST_USE;

/* inside.c: the life of PID 1 from clone3 to execve. Never returns. */
HF_NORETURN void shim_inside(const struct shim *s, int sync_fd, int stderr_fd);
/* root.c: builds the box's root and pivots into it; leaves cwd at "/". cell_dir_fd: RUN/<n>, opened in this
 * mount namespace. */
int shim_root_build(const struct shim *s, int cell_dir_fd, struct hf_err *err) HF_MUST_USE;
/* Builds the same tree at <place>/root and its bare root file system once more at <place>/plain, and stays
 * outside of it. place_fd: a directory of this mount namespace that is covered. The descriptor of root. */
int shim_root_stage(const struct shim *s, int place_fd, struct hf_err *err) HF_MUST_USE;
/* Places a mount at path below root_fd, making missing directories with the owner 1000. */
int shim_place_volume(int root_fd, int mount_fd, const char *path, struct hf_err *err) HF_MUST_USE;
/* /etc/hostname and /etc/hosts below root_fd. Callers act as the box's root. */
void shim_write_names(int root_fd, const char *name);
/* /etc/resolv.conf below root_fd: the fabric's resolver when wired. Callers act as the box's root. */
void shim_write_resolver(int root_fd, const struct hf_cell_spec *spec, bool wired);
/* /run/holdfast/generation, in place: processes may have the file mapped. */
void shim_write_generation(int root_fd, uint64_t generation);
/* A new one, in place; /proc/sys/kernel/random/boot_id shows the file. */
void shim_write_boot_id(int root_fd);
/* confine.c: limits, capabilities, seccomp. */
int shim_limit_resources(struct hf_err *err) HF_MUST_USE;
int shim_drop_privileges(struct hf_err *err) HF_MUST_USE;

/* serve.c: the event loop; returns when the box has ended and everybody was told. */
void shim_serve(struct shim *s);
void shim_tell_failed(struct shim *s, const struct hf_err *err);
int shim_listen(const char *dir, const char *name, int type, int *ret, struct hf_err *err) HF_MUST_USE;
/* Writes RUN/<n>/name at once or not at all. */
int shim_write_file(const struct shim *s, const char *name, const void *p, size_t n) HF_MUST_USE;
/* wire.c: the box's interface into the fabric and its resolver come or go; the shim has joined the box's
 * network namespace. Idempotent. */
int shim_wire(struct shim *s, bool up, struct hf_err *err) HF_MUST_USE;
/* The same without the resolver: PID 1, which writes the first one, may still be building its root. */
int shim_plug(struct shim *s, bool up, struct hf_err *err) HF_MUST_USE;
/* The net_* keys of a request replace the fabric. */
int shim_wire_request(struct shim *s, struct hf_str text, struct hf_err *err) HF_MUST_USE;
/* Runs fn as the box's root as far as files go, with the box's root directory. */
int shim_as_box_root(struct shim *s, void (*fn)(struct shim *s, int root_fd, const void *arg),
                     const void *arg, struct hf_err *err) HF_MUST_USE;
/* save.c: the requests freeze and save. */
int shim_freeze(struct shim *s, bool frozen, struct hf_err *err) HF_MUST_USE;
int shim_freeze_request(struct shim *s, struct hf_str text, struct hf_err *err) HF_MUST_USE;
int shim_save(struct shim *s, struct hf_str text, struct hf_buf *more, struct hf_err *err) HF_MUST_USE;
/* memory.c: dumps the stopped processes into dir/mem. -EOPNOTSUPP when one of them can't be, err says which.
 */
int shim_memory_dump(struct shim *s, int dir_fd, struct hf_err *err) HF_MUST_USE;
/* What a restore must know of this life: lines for dir/box. */
int shim_memory_facts(const struct shim *s, struct hf_buf *b) HF_MUST_USE;
/* claim.c: gives a warm box its sandbox. */
int shim_claim(struct shim *s, struct hf_str text, struct hf_err *err) HF_MUST_USE;
