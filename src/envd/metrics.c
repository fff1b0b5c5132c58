#include <stdio.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/path.h"
#include "envd/server.h"

#define SAMPLE_MIN_NS (200 * UINT64_C(1000000)) /* CPU load is measured over at least this long */
#define CGROUP_FILE_MAX 16384

static struct {
    uint64_t at_ns, cpu_ns;
    double pct;
} last;

static struct hf_str line_of(struct hf_str *rest)
{
    const char *nl = rest->n ? memchr(rest->p, '\n', rest->n) : NULL;
    struct hf_str line = {rest->p, nl ? (size_t)(nl - rest->p) : rest->n};
    size_t used = line.n + (nl != NULL);
    *rest = (struct hf_str){rest->p + used, rest->n - used};
    return line;
}

bool metrics_parse_number(struct hf_str text, uint64_t *ret)
{
    struct hf_str line = line_of(&text);
    if (hf_str_eq(line, "max")) {
        *ret = UINT64_MAX;
        return true;
    }
    return hf_parse_u64(line, UINT64_MAX, ret) == 0;
}

bool metrics_parse_field(struct hf_str text, const char *key, uint64_t *ret)
{
    size_t n = strlen(key);
    while (text.n) {
        struct hf_str line = line_of(&text);
        if (line.n > n + 1 && line.p[n] == ' ' && memcmp(line.p, key, n) == 0)
            return hf_parse_u64((struct hf_str){line.p + n + 1, line.n - n - 1}, UINT64_MAX, ret) == 0;
    }
    return false;
}

bool metrics_parse_cpu(struct hf_str text, uint64_t *ret_ns)
{
    uint64_t usec;
    if (metrics_parse_number(text, ret_ns)) /* cgroup v1: cpuacct.usage */
        return true;
    if (!metrics_parse_field(text, "usage_usec", &usec))
        return false;
    *ret_ns = usec * 1000;
    return true;
}

/* Files of the cgroup are read through descriptors that the shim opened outside. */
static struct hf_str read_fd(int fd, char *buf, size_t n)
{
    ssize_t got = fd >= 0 ? pread(fd, buf, n, 0) : -1;
    return (struct hf_str){buf, got > 0 ? (size_t)got : 0};
}

static uint64_t meminfo(struct hf_str text, const char *key)
{
    size_t n = strlen(key);
    while (text.n) {
        struct hf_str line = line_of(&text);
        if (line.n <= n || memcmp(line.p, key, n) != 0)
            continue;
        size_t i = n;
        while (i < line.n && line.p[i] == ' ')
            i++;
        size_t end = i;
        while (end < line.n && line.p[end] >= '0' && line.p[end] <= '9')
            end++;
        uint64_t kib;
        return hf_parse_u64((struct hf_str){line.p + i, end - i}, UINT64_MAX >> 10, &kib) == 0 ? kib << 10
                                                                                               : 0;
    }
    return 0;
}

static void host_memory(struct metrics_usage *u)
{
    hf_auto_free char *text = NULL;
    size_t n;
    if (hf_read_file("/proc/meminfo", CGROUP_FILE_MAX, &text, &n) < 0)
        return;
    struct hf_str s = {text, n};
    uint64_t free_bytes = meminfo(s, "MemFree:");
    u->mem_total = meminfo(s, "MemTotal:");
    u->mem_cache = meminfo(s, "Cached:") + meminfo(s, "Buffers:");
    u->mem_used = u->mem_total - HF_MIN(u->mem_total, free_bytes + u->mem_cache);
}

/* user + nice + system + irq + softirq of all CPUs. */
static uint64_t host_cpu_ns(void)
{
    hf_auto_free char *text = NULL;
    size_t n;
    unsigned long long v[7];
    if (hf_read_file("/proc/stat", 1024 * 1024, &text, &n) < 0 ||
        sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
               &v[6]) != 7)
        return 0;
    return (v[0] + v[1] + v[2] + v[5] + v[6]) * (UINT64_C(1000000000) / (uint64_t)sysconf(_SC_CLK_TCK));
}

static void measure(const struct envd *e, struct metrics_usage *u)
{
    char buf[CGROUP_FILE_MAX];
    uint64_t current, max;
    host_memory(u);
    if (metrics_parse_number(read_fd(e->fd_mem_current, buf, sizeof(buf)), &current)) {
        struct hf_str stat = read_fd(e->fd_mem_stat, buf, sizeof(buf));
        u->mem_cache = 0;
        if (!metrics_parse_field(stat, "file", &u->mem_cache)) /* v2, then v1 */
            (void)metrics_parse_field(stat, "total_cache", &u->mem_cache);
        u->mem_used = current - HF_MIN(current, u->mem_cache);
        if (metrics_parse_number(read_fd(e->fd_mem_max, buf, sizeof(buf)), &max) && max < u->mem_total)
            u->mem_total = max;
    }
    if (!metrics_parse_cpu(read_fd(e->fd_cpu_usage, buf, sizeof(buf)), &u->cpu_ns))
        u->cpu_ns = host_cpu_ns();
}

/* Load since the last look, in per cent of all the box's CPUs. */
static double cpu_pct(uint64_t cpu_ns, uint32_t cpus)
{
    uint64_t now = hf_mono_ns();
    if (last.at_ns && now - last.at_ns < SAMPLE_MIN_NS)
        return last.pct;
    if (last.at_ns && cpu_ns >= last.cpu_ns)
        last.pct = 100.0 * (double)(cpu_ns - last.cpu_ns) / (double)(now - last.at_ns) / (cpus ? cpus : 1);
    last.at_ns = now;
    last.cpu_ns = cpu_ns;
    return last.pct;
}

void metrics_handle(struct envd *e, struct hf_req *req)
{
    struct metrics_usage u = {0};
    struct statvfs fs = {0};
    measure(e, &u);
    (void)statvfs("/", &fs);
    double pct = cpu_pct(u.cpu_ns, e->cpu_count);
    json_auto_t *m = json_pack(
        "{s:I,s:i,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "ts", (json_int_t)(hf_real_ms() / 1000), "cpu_count",
        (int)e->cpu_count, "cpu_used_pct", (double)(int64_t)(pct * 100 + 0.5) / 100, "mem_total",
        (json_int_t)u.mem_total, "mem_used", (json_int_t)u.mem_used, "mem_cache", (json_int_t)u.mem_cache,
        "mem_total_mib", (json_int_t)(u.mem_total >> 20), "mem_used_mib", (json_int_t)(u.mem_used >> 20),
        "disk_used", (json_int_t)((fs.f_blocks - fs.f_bfree) * fs.f_frsize), "disk_total",
        (json_int_t)(fs.f_blocks * fs.f_frsize));
    hf_auto_free char *text = json_dumps(m, JSON_COMPACT | JSON_REAL_PRECISION(6));
    hf_res_header(req, "Cache-Control", "no-store");
    hf_res_send(req, 200, "application/json", text, text ? strlen(text) : 0);
}
