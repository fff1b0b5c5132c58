/* Numbers of cells. A number is the box's key in the network fabric, which must never see one twice: an old
 * flow or an element that is still on its way out would be the new box's. So RUN/number says where the next
 * daemon goes on; it is written ahead by a block, and exactly at a clean end. RUN and the fabric both end
 * with the host's uptime. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/path.h"
#include "engine/cell/cell.h"

#define NUMBERS_AHEAD 64u

static void keep(struct cell_driver *d, uint32_t n)
{
    char path[HF_CELL_PATH_MAX + 16], tmp[HF_CELL_PATH_MAX + 16], text[16];
    (void)snprintf(path, sizeof(path), "%s/number", d->run_dir);
    (void)snprintf(tmp, sizeof(tmp), "%s/number.tmp", d->run_dir);
    int len = snprintf(text, sizeof(text), "%u\n", n);
    hf_auto_close int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int r = fd < 0 ? -errno : hf_write_all(fd, text, (size_t)len);
    if (r == 0 && rename(tmp, path) < 0)
        r = -errno;
    if (r < 0)
        hf_log_warn("cannot keep the last cell's number", "path=%s err=%s", path, hf_log_quote(strerror(-r)));
    d->kept_n = n;
}

void cell_numbers_open(struct cell_driver *d)
{
    char path[HF_CELL_PATH_MAX + 16];
    hf_auto_free char *text = NULL;
    size_t n = 0;
    uint64_t next = 0;
    (void)snprintf(path, sizeof(path), "%s/number", d->run_dir);
    if (hf_read_file(path, 16, &text, &n) == 0 && n > 1 &&
        hf_parse_u64((struct hf_str){text, n - 1}, UINT32_MAX, &next) < 0)
        next = 0;
    d->next_n = next ? (uint32_t)next : 1;
}

void cell_numbers_close(struct cell_driver *d)
{
    if (d->kept_n)
        keep(d, d->next_n);
}

uint32_t cell_number_next(struct cell_driver *d)
{
    uint32_t n = d->next_n;
    cell_number_used(d, n);
    return n;
}

void cell_number_used(struct cell_driver *d, uint32_t n)
{
    if (n < d->next_n)
        return;
    d->next_n = n + 1;
    if (d->next_n >= d->kept_n)
        keep(d, d->next_n + NUMBERS_AHEAD);
}

/* Addresses repeat when the numbers have gone once around the fabric's subnet. Every living or half-removed
 * box has a directory, so nobody who is seen here can be missed. */
static bool address_taken(const struct cell_driver *d, uint32_t n)
{
    struct hf_net_config cfg;
    struct hf_net_addrs mine, other;
    hf_cell_net_config(&d->fabric, &cfg);
    if (!d->fabric.ns[0] || hf_net_addrs(&cfg, n, &mine) < 0)
        return false;
    DIR *dir = opendir(d->run_dir);
    if (!dir)
        return false; /* what comes next says why */
    bool taken = false;
    for (struct dirent *e; !taken && (e = readdir(dir));) {
        uint64_t m;
        taken = hf_parse_u64(hf_str_c(e->d_name), UINT32_MAX, &m) == 0 && m && m != n &&
                hf_net_addrs(&cfg, (uint32_t)m, &other) == 0 && hf_addr_equal(&mine.box4, &other.box4);
    }
    (void)closedir(dir);
    return taken;
}

int cell_number_take(const struct cell_driver *d, uint32_t from, struct hf_cell_spec *spec,
                     struct hf_err *err)
{
    for (uint32_t n = from; n < UINT32_MAX; n++) {
        (void)snprintf(spec->dir, sizeof(spec->dir), "%s/%u", d->run_dir, n);
        if (mkdir(spec->dir, 0700) < 0) {
            if (errno == EEXIST)
                continue;
            return hf_err_set(err, -errno, "cannot make %s: %s", spec->dir, strerror(errno));
        }
        if (!address_taken(d, n)) {
            spec->n = n;
            return 0;
        }
        (void)rmdir(spec->dir);
    }
    return hf_err_set(err, -EAGAIN, "no cell number is free");
}
