#include <stdio.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "base/clock.h"
#include "engine/cell/cell.h"
#include "engine/disk/loop.h"

/* The writable layer is mounted nowhere that we could name; the supervisor has its root directory open. */
static void read_disk(const struct hf_box *box, struct hf_box_stats *ret)
{
    char path[64];
    struct statfs st;
    if (box->pidfd < 0 || box->disk_fd_in_shim < 0)
        return;
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)box->shim_pid, box->disk_fd_in_shim);
    struct stat root;
    if (statfs(path, &st) < 0)
        return;
    ret->disk_writes = stat(path, &root) < 0 ? UINT64_MAX : hf_block_writes(root.st_dev);
    ret->disk_total = (uint64_t)st.f_blocks * (uint64_t)st.f_bsize;
    ret->disk_used = (uint64_t)(st.f_blocks - st.f_bfree) * (uint64_t)st.f_bsize;
}

int cell_stats(struct hf_driver *base, struct hf_box *box, struct hf_box_stats *ret)
{
    struct hf_cg_stats cg;
    if (box->state != CELL_RUNNING)
        return -ESRCH;
    hf_cg_read_stats(&box->d->cg, box->spec.n, &cg);
    memset(ret, 0, sizeof(*ret));
    uint64_t now = hf_mono_ns();
    if (box->stats_at_ns && now > box->stats_at_ns && cg.cpu_ns >= box->stats_cpu_ns)
        ret->cpu_used_pct =
            100.0 * (double)(cg.cpu_ns - box->stats_cpu_ns) / (double)(now - box->stats_at_ns);
    box->stats_at_ns = now;
    box->stats_cpu_ns = cg.cpu_ns;
    ret->cpu_count = (box->spec.limits.cpu_millis + 999u) / 1000u;
    ret->cpu_usage_ns = cg.cpu_ns;
    ret->mem_used = cg.mem_used;
    ret->mem_cache = cg.mem_cache;
    ret->mem_total = box->spec.limits.memory_bytes;
    ret->pids = cg.pids;
    ret->oom_kills = cg.oom_kills;
    ret->disk_writes = UINT64_MAX;
    read_disk(box, ret);
    return 0;
}
