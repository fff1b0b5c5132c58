/* scan: what exists on this node for this data directory, from three sources: RUN/<n>, DATA/pool/cells and
 * the cgroups. A cell that lost its directory (a reboot empties RUN) still has an image to remove. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/syscall.h>

#include "base/path.h"
#include "engine/cell/cell.h"

struct found {
    struct hf_cell_spec spec;
    bool alive, frozen;
    struct hf_cell_exit exit;
    int fd, pidfd, disk_fd;
    pid_t pid;
};

struct scan {
    struct cell_driver *d;
    struct found *cells;
    size_t n, cap;
    void (*found)(void *arg, const struct hf_box_found *f);
    hf_done_cb done;
    void *arg;
    struct hf_err err;
};

static void add(void *arg, uint32_t n)
{
    struct scan *s = arg;
    for (size_t i = 0; i < s->n; i++)
        if (s->cells[i].spec.n == n)
            return;
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 16;
        s->cells = hf_xrealloc(s->cells, s->cap * sizeof(*s->cells));
    }
    struct found *f = &s->cells[s->n++];
    memset(f, 0, sizeof(*f));
    f->fd = f->pidfd = f->disk_fd = -1;
    f->spec.n = n;
    (void)snprintf(f->spec.dir, sizeof(f->spec.dir), "%s/%u", s->d->run_dir, n);
    (void)snprintf(f->spec.image, sizeof(f->spec.image), "%s/pool/cells/%u.img", s->d->data_dir, n);
}

/* Every entry of dir that is a number with the suffix. */
static int list_numbers(struct scan *s, const char *dir, const char *suffix)
{
    DIR *d = opendir(dir);
    if (!d)
        return errno == ENOENT ? 0 : hf_err_set(&s->err, -errno, "cannot read %s: %s", dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name), m = strlen(suffix);
        uint64_t number;
        if (n > m && strcmp(e->d_name + n - m, suffix) == 0 &&
            hf_parse_u64((struct hf_str){e->d_name, n - m}, UINT32_MAX, &number) == 0 && number)
            add(s, (uint32_t)number);
    }
    (void)closedir(d);
    return 0;
}

static bool supervisor_lives(const char *dir)
{
    char path[HF_CELL_PATH_MAX + 8];
    (void)snprintf(path, sizeof(path), "%s/spec", dir);
    hf_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

static bool read_text(const char *dir, const char *name, char **ret, struct hf_str *text)
{
    char path[HF_CELL_PATH_MAX + 16];
    size_t n;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (hf_read_file(path, HF_SHIM_MSG_MAX, ret, &n) < 0)
        return false;
    *text = (struct hf_str){*ret, n};
    return true;
}

/* The supervisor is dead: its files say whose cell it was. A spec that is cut short belonged to nobody yet.
 */
static void read_remains(struct found *f)
{
    struct hf_cell_spec spec;
    hf_auto_free char *spec_text = NULL, *claim_text = NULL, *exit_text = NULL;
    struct hf_str t;
    f->exit = (struct hf_cell_exit){.cause = HF_CELL_LOST, .detail = "its supervisor was killed"};
    if (read_text(f->spec.dir, "spec", &spec_text, &t) && hf_cell_spec_read(t, &spec) == 0 &&
        spec.n == f->spec.n && strcmp(spec.dir, f->spec.dir) == 0 && strcmp(spec.image, f->spec.image) == 0)
        f->spec = spec;
    if (read_text(f->spec.dir, "claim", &claim_text, &t) && hf_cell_claim_read(t, &f->spec) < 0)
        f->spec.sandbox_id[0] = '\0';
    if (read_text(f->spec.dir, "exit", &exit_text, &t) && hf_cell_exit_read(t, &f->exit) < 0)
        f->exit.cause = HF_CELL_LOST;
}

static void look_at(struct found *f)
{
    struct hf_cell_spec spec;
    if (supervisor_lives(f->spec.dir) &&
        cell_ask_info(f->spec.dir, &f->fd, &f->pid, &spec, &f->frozen, &f->disk_fd) == 0 &&
        spec.n == f->spec.n) {
        f->pidfd = (int)syscall(SYS_pidfd_open, f->pid, 0);
        f->alive = f->pidfd >= 0;
        if (f->alive)
            f->spec = spec;
    }
    if (!f->alive) {
        f->fd = hf_close(f->fd);
        read_remains(f);
    }
}

static void scan_work(void *job)
{
    struct scan *s = job;
    hf_auto_free char *cells = hf_xasprintf("%s/pool/cells", s->d->data_dir);
    if (list_numbers(s, s->d->run_dir, "") < 0 || list_numbers(s, cells, ".img") < 0)
        return;
    hf_cg_each(&s->d->cg, add, s);
    for (size_t i = 0; i < s->n; i++)
        look_at(&s->cells[i]);
}

static void tell(struct scan *s, struct found *f)
{
    struct hf_box *box = cell_box_new(s->d, f->spec.n);
    cell_number_used(s->d, f->spec.n);
    box->spec = f->spec;
    box->state = f->alive ? CELL_RUNNING : CELL_ENDED;
    box->exit = f->exit;
    box->disk_fd_in_shim = f->disk_fd;
    box->frozen = f->frozen;
    if (f->alive) /* an end before adopt is reported by adopt */
        cell_box_connect(box, f->fd, f->pidfd, f->pid);
    struct hf_box_found out = {
        .box = box,
        .sandbox_id = box->spec.sandbox_id,
        .alive = f->alive,
        .frozen = f->frozen,
        .exit = {.cause = (enum hf_box_cause)f->exit.cause, .code = f->exit.code},
    };
    (void)snprintf(out.exit.detail, sizeof(out.exit.detail), "%s", f->exit.detail);
    s->found(s->arg, &out);
}

static void scan_done(void *job)
{
    struct scan *s = job;
    for (size_t i = 0; !s->err.r && i < s->n; i++)
        tell(s, &s->cells[i]);
    s->done(s->arg, s->err.r ? &s->err : NULL);
    free(s->cells);
    free(s);
}

void cell_scan(struct hf_driver *base, void (*found)(void *arg, const struct hf_box_found *f),
               hf_done_cb done, void *arg)
{
    struct scan *s = hf_new(struct scan);
    s->d = cell_of(base);
    s->found = found;
    s->done = done;
    s->arg = arg;
    cell_job(s->d, scan_work, scan_done, s);
}
