/* A snapshot file that somebody sends. Plain tar is read as well as zstd, so the fuzzer need not compress. */
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/path.h"
#include "engine/disk/snapshot.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char top[] = "/tmp/hf-fuzz-XXXXXX";

static void remove_top(void)
{
    int r = hf_remove_tree(top);
    (void)r;
}

/* A pool in a plain directory, with a canary beside the snapshots. */
static void make_pool(void)
{
    static const char *const dirs[] = {"pool/snapshots", "pool/staging", "pool/templates"};
    if (!mkdtemp(top))
        abort();
    (void)atexit(remove_top);
    for (size_t i = 0; i < HF_ARRAY_LEN(dirs); i++) {
        hf_auto_free char *path = hf_xasprintf("%s/%s", top, dirs[i]);
        if (hf_mkdir_p(path, 0700) < 0)
            abort();
    }
}

static void count(void *arg, const char *id, bool complete)
{
    ++*(unsigned *)arg;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    if (!ready)
        make_pool();
    ready = true;
    hf_auto_close int fd = memfd_create("stream", MFD_CLOEXEC);
    if (fd < 0 || hf_write_all(fd, data, size) < 0 || lseek(fd, 0, SEEK_SET) != 0)
        abort();
    struct hf_err err = {0};
    unsigned n = 0;
    int r = hf_snapshot_import(top, "one", fd, NULL, &err);
    /* It is either a whole snapshot, or nothing is left and there is a reason. */
    if (r == 0 && (hf_snapshot_open(top, "one", NULL, &err) < 0 || hf_snapshot_remove(top, "one", &err) < 0))
        abort();
    if (r < 0 && !err.msg[0])
        abort();
    if (hf_snapshot_each(top, count, &n, &err) < 0 || n)
        abort();
    return 0;
}
