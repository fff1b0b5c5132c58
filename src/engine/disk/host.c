/* What a snapshot needs of the host that starts it. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/utsname.h>

#include "engine/disk/manifest.h"

/* Enough for the first processor; a large host has hundreds, and writing all of them costs milliseconds. */
#define CPUINFO_MAX 8192u

/* Flags of /proc/cpuinfo on x86 that stand for instructions or registers. A restored process has chosen its
 * code by them long ago (the C library's string functions, OpenSSL, numpy …). Others, such as constant_tsc or
 * those for the kernel only, make no difference to it. */
static const char x86_isa[] =
    " 3dnow 3dnowext 3dnowprefetch abm adx aes amx_bf16 amx_complex amx_fp16 amx_int8 amx_tile avx "
    "avx2 avx512_4fmaps avx512_4vnniw avx512_bf16 avx512_bitalg avx512_fp16 avx512_vbmi2 avx512_vnni "
    "avx512_vp2intersect avx512_vpopcntdq avx512bw avx512cd avx512dq avx512er avx512f avx512ifma "
    "avx512pf avx512vbmi avx512vl avx_ifma avx_ne_convert avx_vnni avx_vnni_int8 bmi1 bmi2 cldemote "
    "clflush clflushopt clwb clzero cmov cmpccxadd cx16 cx8 enqcmd f16c fma fma4 fpu fsgsbase fxsr "
    "gfni hle lahf_lm lm lwp mmx mmxext movbe movdir64b movdiri mwaitx nx ospke pclmulqdq pku pni "
    "popcnt prefetchi prefetchwt1 rdpid rdpru rdrand rdseed rdtscp rtm serialize sha_ni sse sse2 "
    "sse4_1 sse4_2 sse4a ssse3 syscall tbm tsc tsxldtrk user_shstk vaes vpclmulqdq waitpkg xgetbv1 "
    "xop xsave xsavec xsaveopt ";

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool is_isa(const char *flag)
{
    hf_auto_free char *word = hf_xasprintf(" %s ", flag);
    return strstr(x86_isa, word) != NULL;
}

/* The list of the first processor: "flags" on x86; "Features" on ARM, all of which are for processes. */
static char *flags_line(const char *text, bool *ret_x86)
{
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        bool x86 = strncmp(line, "flags\t", 6) == 0;
        if (!x86 && strncmp(line, "Features\t", 9) != 0)
            continue;
        size_t n = strcspn(line, "\n"), colon = strcspn(line, ":\n");
        *ret_x86 = x86;
        return colon < n ? hf_xstrndup(line + colon + 1, n - colon - 1) : NULL;
    }
    return NULL;
}

json_t *hf_host_cpu(const char *text)
{
    json_t *list = json_array();
    bool x86 = false;
    hf_auto_free char *line = flags_line(text, &x86);
    const char *names[HF_SNAPSHOT_CPU_MAX];
    size_t n = 0;
    char *rest = line;
    for (char *one; rest && (one = strsep(&rest, " \t"));)
        if (*one && strlen(one) < 64 && n < HF_SNAPSHOT_CPU_MAX && (!x86 || is_isa(one)))
            names[n++] = one;
    qsort(names, n, sizeof(*names), by_name);
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(list, json_string(names[i]));
    return list;
}

/* Read once: some kernels sleep 10 ms and more to tell the current frequencies that stand in it as well. */
static char cpuinfo[CPUINFO_MAX];
static int cpuinfo_r;

static void read_cpuinfo(void)
{
    hf_auto_close int fd = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    cpuinfo_r = fd < 0 ? -errno : 0;
    for (size_t have = 0; fd >= 0 && have < CPUINFO_MAX - 1;) {
        ssize_t n = read(fd, cpuinfo + have, CPUINFO_MAX - 1 - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        have += (size_t)n;
    }
}

int hf_host_read(struct hf_snapshot_host *ret, struct hf_err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct utsname u;
    (void)pthread_once(&once, read_cpuinfo);
    int r = uname(&u) < 0 ? -errno : cpuinfo_r;
    if (r < 0)
        return hf_err_set(err, r, "cannot read what this host is: %s", strerror(-r));
    *ret = (struct hf_snapshot_host){.page_size = (uint32_t)sysconf(_SC_PAGESIZE)};
    (void)snprintf(ret->machine, sizeof(ret->machine), "%.31s", u.machine);
    (void)snprintf(ret->kernel, sizeof(ret->kernel), "%.95s", u.release);
    ret->cpu = hf_host_cpu(cpuinfo);
    return 0;
}

static bool has(const json_t *list, const char *name)
{
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one) if (strcmp(json_string_value(one), name) == 0) return true;
    return false;
}

int hf_host_check(const struct hf_snapshot_host *want, const struct hf_snapshot_host *have, bool memory,
                  struct hf_err *err)
{
    if (strcmp(want->machine, have->machine) != 0)
        return hf_err_set(err, -EXDEV, "the snapshot is of a %s machine, and this is %s", want->machine,
                          have->machine);
    if (!memory)
        return 0;
    if (want->page_size != have->page_size)
        return hf_err_set(err, -EXDEV, "the snapshot has memory pages of %u bytes, and this host of %u",
                          want->page_size, have->page_size);
    char missing[160] = "";
    size_t i, n = 0, count = 0;
    json_t *one;
    json_array_foreach(want->cpu, i, one)
    {
        const char *name = json_string_value(one);
        if (has(have->cpu, name))
            continue;
        count++;
        if (n + strlen(name) + 2 < sizeof(missing))
            n += (size_t)snprintf(missing + n, sizeof(missing) - n, " %s", name);
    }
    if (count)
        return hf_err_set(err, -EXDEV,
                          "the snapshot's processes use what this processor lacks (%zu features):%s", count,
                          missing);
    return 0;
}
