/* The cgroups of cells, v1 and v2 behind one face. Used by the shim (make, enter, limit, remove) and by the
 * daemon (probe, read figures, remove what a dead shim left). Paths: <root>/[controller/]<group>/<n>.
 *
 * PID 1 (envd) is apart from the user's processes, so that it can still start a process under a fork bomb:
 * <n> holds PID 1 and HF_CG_PIDS_RESERVE tasks more than <n>/user (v1: of the pids hierarchy only; v2: a
 * threaded cgroup), where the user's processes are. Moving a process costs an RCU grace period, 5 to 20 ms on
 * an idle host, so envd does not move each child: one thread of it is moved once, and what that thread forks
 * is in <n>/user from the start.
 * Everything blocks for as long as the kernel takes (microseconds to a few milliseconds). */
#pragma once

#include <sys/types.h>

#include "base/err.h"

enum hf_cg_ctl {
    HF_CG_MEMORY,
    HF_CG_CPU,
    HF_CG_CPUACCT,
    HF_CG_PIDS,
    HF_CG_FREEZER,
    HF_CG_IO,
    HF_CG_CTL_N,
};

#define HF_CG_PIDS_RESERVE 64
#define HF_CG_ROOT_MAX 256
#define HF_CG_GROUP_MAX 64

struct hf_cg {
    int version;      /* 1, 2; 0 = this host has none that we can use */
    uint32_t present; /* bits 1u << enum hf_cg_ctl */
    char root[HF_CG_ROOT_MAX];
    char group[HF_CG_GROUP_MAX];
};

struct hf_cg_limits {
    uint32_t cpu_millis; /* 1000 = one core */
    uint64_t memory_bytes;
    uint32_t pids_max;
    uint64_t io_bps; /* bytes a second on the writable layer, each way; 0 = no limit */
};

/* Descriptors for envd: read-only figures, and the user group's file of threads ("tasks" or
 * "cgroup.threads"), to which a thread writes "0" to move itself. -1 = absent. */
struct hf_cg_fds {
    int mem_current, mem_max, mem_stat, cpu, user_threads;
};

struct hf_cg_stats {
    uint64_t cpu_ns, mem_used, mem_cache, oom_kills;
    uint32_t pids;
};

/* Which hierarchy is below root. */
void hf_cg_probe(const char *root, const char *group, struct hf_cg *ret);
static inline bool hf_cg_has(const struct hf_cg *cg, enum hf_cg_ctl c)
{
    return cg->present & 1u << c;
}
/* Makes <group> (v2: hands the controllers down to it). Daemon, once at start. May clear bits of present. */
int hf_cg_prepare(struct hf_cg *cg, struct hf_err *err) HF_MUST_USE;
/* Removes <group> if no cell is left in it. */
void hf_cg_unprepare(const struct hf_cg *cg);

int hf_cg_create(const struct hf_cg *cg, uint32_t n, struct hf_err *err) HF_MUST_USE;
/* disk_dev: the block device of the writable layer for io_bps. */
int hf_cg_limit(const struct hf_cg *cg, uint32_t n, const struct hf_cg_limits *l, dev_t disk_dev,
                struct hf_err *err) HF_MUST_USE;
/* Moves a process (0 = the caller) to where PID 1 belongs. */
int hf_cg_enter(const struct hf_cg *cg, uint32_t n, pid_t pid, struct hf_err *err) HF_MUST_USE;
/* Moves it on to where the user's processes belong. */
int hf_cg_enter_user(const struct hf_cg *cg, uint32_t n, pid_t pid, struct hf_err *err) HF_MUST_USE;
/* v2: descriptor for CLONE_INTO_CGROUP; -1 with v1. */
int hf_cg_clone_fd(const struct hf_cg *cg, uint32_t n);
void hf_cg_open(const struct hf_cg *cg, uint32_t n, struct hf_cg_fds *ret);
void hf_cg_close(struct hf_cg_fds *fds);
/* A descriptor that polls ready (v1: POLLIN, read 8 bytes; v2: POLLPRI, read it whole) when memory ran out;
 * -1 where that is not known. */
int hf_cg_oom_watch(const struct hf_cg *cg, uint32_t n);
/* How long the kernel may take to stop every process; one in an uninterruptible wait holds it up. */
#define HF_CG_FREEZE_TIMEOUT_MS 5000u
/* Stops every process in it where it is, or lets them go on. Idempotent. -ETIMEDOUT: some did not stop, all
 * go on again. */
int hf_cg_freeze(const struct hf_cg *cg, uint32_t n, bool frozen, struct hf_err *err) HF_MUST_USE;
/* Whether it was stopped by us. */
bool hf_cg_frozen(const struct hf_cg *cg, uint32_t n);
/* The directory that CRIU's freezer uses: <root>/[freezer/]<group>/<n>. */
void hf_cg_freezer_path(const struct hf_cg *cg, uint32_t n, char *out, size_t cap);
/* The process ids in it, a line each (heap); NULL when that is not known. */
char *hf_cg_procs(const struct hf_cg *cg, uint32_t n);
/* SIGKILL to every process in it. A stopped one has to go on to die of it: thaws. */
void hf_cg_kill(const struct hf_cg *cg, uint32_t n);
/* Removes the directories; missing is success; -EBUSY while processes are left. */
int hf_cg_remove(const struct hf_cg *cg, uint32_t n) HF_MUST_USE;
void hf_cg_read_stats(const struct hf_cg *cg, uint32_t n, struct hf_cg_stats *ret);
uint64_t hf_cg_oom_kills(const struct hf_cg *cg, uint32_t n);
/* Calls fn for the number of every cell that has a cgroup. */
void hf_cg_each(const struct hf_cg *cg, void (*fn)(void *arg, uint32_t n), void *arg);
