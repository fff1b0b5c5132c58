#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "engine/disk/disk.h"
#include "engine/disk/pool.h"
#include "engine/disk/snapshot.h"

/* Adds up the blocks of everything below dir_fd (which is consumed). Entries that vanish are skipped: cells
 * come and go meanwhile. */
static uint64_t tree_bytes(int dir_fd, uint32_t *ret_images)
{
    DIR *d = fdopendir(dir_fd);
    if (!d) {
        (void)hf_close(dir_fd);
        return 0;
    }
    uint64_t sum = 0;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        sum += (uint64_t)st.st_blocks * 512;
        size_t n = strlen(e->d_name);
        *ret_images += S_ISREG(st.st_mode) && n > 4 && strcmp(e->d_name + n - 4, ".img") == 0;
        int sub = S_ISDIR(st.st_mode)
                      ? openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                      : -1;
        if (sub >= 0)
            sum += tree_bytes(sub, ret_images);
    }
    (void)closedir(d);
    return sum;
}

static void count_snapshot(void *arg, const char *id, bool complete)
{
    *(uint32_t *)arg += complete;
}

int hf_disk_pool_usage(const char *data_dir, struct hf_disk_usage *ret, struct hf_err *err)
{
    struct hf_disk_usage u = {0};
    uint32_t ignored = 0;
    struct {
        const char *name;
        uint64_t *bytes;
        uint32_t *images;
    } kinds[] = {
        {"templates", &u.templates, &u.n_templates},
        {"cells", &u.cells, &u.n_cells},
        {"volumes", &u.volumes, &u.n_volumes},
        {"snapshots", &u.snapshots, &ignored},
        {"blank", &u.blanks, &ignored},
        {"staging", &u.staging, &ignored},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(kinds); i++) {
        hf_auto_free char *dir = hf_xasprintf("%s/pool/%s", data_dir, kinds[i].name);
        int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0)
            return hf_err_set(err, -errno, "cannot read %s: %s", dir, strerror(errno));
        *kinds[i].bytes = tree_bytes(fd, kinds[i].images);
    }
    int r = hf_snapshot_each(data_dir, count_snapshot, &u.n_snapshots, err);
    if (r < 0)
        return r;
    *ret = u;
    return 0;
}
