/* How much room the pool has, and when new work must be refused. */
#include <inttypes.h>
#include <stdio.h>
#include <sys/statvfs.h>

#include "engine/disk/disk.h"
#include "engine/disk/pool.h"
#include "engine/driver.h"

int hf_disk_pool_space(const char *data_dir, uint64_t *ret_free, uint64_t *ret_total)
{
    hf_auto_free char *pool = hf_xasprintf("%s/pool", data_dir);
    struct statvfs in, out;
    if (statvfs(pool, &in) < 0 || statvfs(data_dir, &out) < 0)
        return -errno;
    uint64_t free_bytes = (uint64_t)in.f_bavail * in.f_frsize;
    if (hf_disk_is_mount(pool)) {
        /* The pool image is sparse: it cannot grow beyond what the host's disk has left. */
        uint64_t host = (uint64_t)out.f_bavail * out.f_frsize;
        free_bytes = HF_MIN(free_bytes, host);
    }
    *ret_free = free_bytes;
    *ret_total = (uint64_t)in.f_blocks * in.f_frsize;
    return 0;
}

uint64_t hf_disk_pool_low(uint64_t total_bytes)
{
    uint64_t part = total_bytes / HF_POOL_LOW_PART;
    return HF_MAX(HF_POOL_LOW_MIN, HF_MIN(part, HF_POOL_LOW_MAX));
}

static bool is_enough(uint64_t free_bytes, uint64_t total, uint64_t need)
{
    uint64_t low = hf_disk_pool_low(total);
    return free_bytes >= low && free_bytes - low >= need;
}

int hf_disk_pool_room(const char *data_dir, uint64_t need, uint64_t max_bytes, struct hf_err *err)
{
    uint64_t free_bytes = 0, total = 0;
    int r = hf_disk_pool_space(data_dir, &free_bytes, &total);
    struct hf_err why = {0};
    if (r == 0 && !is_enough(free_bytes, total, need) && max_bytes &&
        hf_pool_grow(data_dir, max_bytes, &why) > 0)
        r = hf_disk_pool_space(data_dir, &free_bytes, &total);
    if (r < 0)
        return hf_err_set(err, r, "cannot ask the disk pool below %s for its free space: %s", data_dir,
                          strerror(-r));
    if (is_enough(free_bytes, total, need))
        return 0;
    return hf_err_http(err, -ENOSPC, 507,
                       "the disk pool is nearly full: %" PRIu64 " MiB of %" PRIu64 " MiB are free, %" PRIu64
                       " MiB are wanted and %" PRIu64
                       " MiB are kept for what runs; remove snapshots, volumes, templates or sandboxes",
                       free_bytes >> 20, total >> 20, need >> 20, hf_disk_pool_low(total) >> 20);
}
