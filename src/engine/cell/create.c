/* create: from the pool when a member fits, else a cold start. */
#include <stdio.h>

#include "base/fault.h"
#include "engine/cell/cell.h"

/* A box that is being claimed, or a request that was refused at once. */
struct claim {
    struct cell_driver *d;
    struct hf_box *box;
    struct hf_cell_spec want;
    hf_box_cb cb;
    void *arg;
    struct hf_err err;
};

static bool is_name(const char *s, size_t max, const char *accept)
{
    size_t n = s ? strlen(s) : 0;
    return n > 0 && n <= max && strspn(s, accept) == n && s[0] != '.';
}

static int copy_mounts(const struct hf_box_spec *spec, struct hf_cell_spec *want, struct hf_err *err)
{
    if (spec->n_mounts > HF_CELL_MOUNTS_MAX)
        return hf_err_set(err, -E2BIG, "a sandbox takes at most %d mounts", HF_CELL_MOUNTS_MAX);
    for (size_t i = 0; i < spec->n_mounts; i++) {
        const struct hf_box_mount *m = &spec->mounts[i];
        struct hf_cell_mount *to = &want->mounts[i];
        const char *image = m->image ? m->image : "";
        if (m->path[0] != '/' || !m->path[1] || strchr(m->path, '\n') || strchr(image, '\n'))
            return hf_err_set(err, -EINVAL, "a mount needs an absolute path below /");
        if ((size_t)snprintf(to->path, sizeof(to->path), "%s", m->path) >= sizeof(to->path) ||
            (size_t)snprintf(to->image, sizeof(to->image), "%s", image) >= sizeof(to->image))
            return hf_err_set(err, -ENAMETOOLONG, "the mount path %.80s is too long", m->path);
        to->kind = (enum hf_cell_mount_kind)m->kind;
        to->bytes = m->bytes;
        to->read_only = m->read_only;
    }
    want->n_mounts = spec->n_mounts;
    return 0;
}

static int copy_spec(const struct cell_driver *d, const struct hf_box_spec *spec, struct hf_cell_spec *want,
                     struct hf_err *err)
{
    static const char lower[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    static const char wide[] = "abcdefghijklmnopqrstuvwxyz0123456789-_.ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    memset(want, 0, sizeof(*want));
    if (!is_name(spec->sandbox_id, HF_CELL_ID_MAX - 1, lower))
        return hf_err_set(err, -EINVAL, "a sandbox id is 1 to 63 of a-z, 0-9 and -");
    if (!is_name(spec->template_id, HF_CELL_ID_MAX - 1, wide))
        return hf_err_set(err, -EINVAL, "the template id is malformed");
    (void)snprintf(want->sandbox_id, sizeof(want->sandbox_id), "%s", spec->sandbox_id);
    (void)snprintf(want->template_id, sizeof(want->template_id), "%s", spec->template_id);
    (void)snprintf(want->envd, sizeof(want->envd), "%s", d->envd_path);
    (void)snprintf(want->cgroup_root, sizeof(want->cgroup_root), "%s", d->cg.root);
    (void)snprintf(want->cgroup_group, sizeof(want->cgroup_group), "%s", d->cg.group);
    want->limits.cpu_millis = spec->cpu_millis ? spec->cpu_millis : CELL_DEFAULT_CPU_MILLIS;
    want->limits.memory_bytes = spec->memory_bytes ? spec->memory_bytes : CELL_DEFAULT_MEMORY;
    want->limits.pids_max = spec->pids_max ? spec->pids_max : CELL_DEFAULT_PIDS;
    want->limits.io_bps = spec->io_bps;
    want->disk_bytes = spec->disk_bytes ? spec->disk_bytes : CELL_DEFAULT_DISK;
    want->generation = spec->generation ? spec->generation : 1;
    want->from_memory = spec->from && spec->from_memory;
    want->clone = spec->clone;
    if (spec->from && (spec->from[0] != '/' || (size_t)snprintf(want->from, sizeof(want->from), "%s",
                                                                spec->from) >= sizeof(want->from)))
        return hf_err_set(err, -EINVAL, "a start needs the absolute path of what was saved");
    want->fabric = d->fabric;
    want->network = spec->network && d->fabric.ns[0];
    if (want->limits.memory_bytes < CELL_MEMORY_MIN)
        return hf_err_set(err, -EINVAL, "a sandbox needs at least %llu MiB of memory", CELL_MEMORY_MIN >> 20);
    return copy_mounts(spec, want, err);
}

static void start_cold(struct cell_driver *d, const struct hf_cell_spec *want, hf_box_cb cb, void *arg)
{
    struct hf_box *box = cell_box_new(d, 0);
    box->spec = *want;
    box->ours = true;
    box->create_cb = cb;
    box->create_arg = arg;
    cell_start(box);
}

static void on_claimed(void *arg, const struct hf_err *err, struct hf_str text, int fd)
{
    hf_auto_free struct claim *c = arg;
    (void)hf_close(fd);
    if (!err) {
        struct hf_cell_spec *s = &c->box->spec;
        memcpy(s->sandbox_id, c->want.sandbox_id, sizeof(s->sandbox_id));
        memcpy(s->mounts, c->want.mounts, sizeof(s->mounts));
        s->n_mounts = c->want.n_mounts;
        s->limits = c->want.limits;
        s->network = c->want.network;
        s->generation = c->want.generation;
        c->box->warm = false;
        c->box->ours = true;
        hf_killpoint("cell.claimed");
        c->cb(c->arg, c->box, NULL);
        cell_pool_fill(c->d);
        return;
    }
    if (err->r != -ECONNRESET) { /* it said no: part of the claim may have happened */
        c->box->create_cb = c->cb;
        c->box->create_arg = c->arg;
        c->box->start_err = *err;
        cell_box_remove(c->box, NULL, NULL);
        return;
    }
    /* It died under us, and is being removed; the handle may be gone already. */
    if (c->d->closing)
        c->cb(c->arg, NULL, err);
    else
        start_cold(c->d, &c->want, c->cb, c->arg);
}

static void refuse(void *arg)
{
    hf_auto_free struct claim *c = arg;
    c->cb(c->arg, NULL, &c->err);
}

void cell_create(struct hf_driver *base, const struct hf_box_spec *spec, hf_box_cb cb, void *arg)
{
    struct cell_driver *d = cell_of(base);
    struct claim *c = hf_new(struct claim);
    c->d = d;
    c->cb = cb;
    c->arg = arg;
    hf_auto_buf struct hf_buf more = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    int r = d->closing ? hf_err_set(&c->err, -ECANCELED, "the daemon is stopping")
                       : copy_spec(d, spec, &c->want, &c->err);
    if (r == 0)
        r = hf_cell_claim_write(&c->want, &more);
    if (r < 0) {
        if (!c->err.r)
            (void)hf_err_set(&c->err, r, "the sandbox's description is too long");
        cell_defer(base->loop, refuse, c);
        return;
    }
    c->box = c->want.from[0] ? NULL : cell_pool_take(d, &c->want);
    if (c->box) {
        cell_request(c->box, "claim", &more, on_claimed, c);
        return;
    }
    start_cold(d, &c->want, cb, arg);
    free(c);
}
