#include "engine/shim/spec.h"

static const char *const mount_kinds[] = {"image", "dir", "tmpfs"};

static int add_claim(const struct hf_cell_spec *s, struct hf_buf *b)
{
    int r = hf_kv_add(b, "sandbox_id", s->sandbox_id);
    if (r == 0)
        r = hf_kv_add_u64(b, "cpu_millis", s->limits.cpu_millis);
    if (r == 0)
        r = hf_kv_add_u64(b, "memory_bytes", s->limits.memory_bytes);
    if (r == 0)
        r = hf_kv_add_u64(b, "pids_max", s->limits.pids_max);
    if (r == 0)
        r = hf_kv_add_u64(b, "io_bps", s->limits.io_bps);
    if (r == 0)
        r = hf_kv_add_u64(b, "network", s->network);
    if (r == 0)
        r = hf_kv_add_u64(b, "generation", s->generation);
    for (size_t i = 0; r == 0 && i < s->n_mounts; i++) {
        const struct hf_cell_mount *m = &s->mounts[i];
        r = hf_kv_add(b, "mount_image", m->image);
        if (r == 0)
            r = hf_kv_add(b, "mount_path", m->path);
        if (r == 0)
            r = hf_kv_add(b, "mount_mode", m->read_only ? "ro" : "rw");
        if (r == 0 && m->kind != HF_CELL_MOUNT_IMAGE)
            r = hf_kv_add(b, "mount_kind", mount_kinds[m->kind]);
        if (r == 0 && m->bytes)
            r = hf_kv_add_u64(b, "mount_bytes", m->bytes);
    }
    return r;
}

int hf_cell_claim_write(const struct hf_cell_spec *s, struct hf_buf *b)
{
    return add_claim(s, b);
}

int hf_cell_fabric_write(const struct hf_cell_fabric *f, struct hf_buf *b)
{
    if (!f->ns[0])
        return 0;
    int r = hf_kv_add(b, "net_ns", f->ns);
    if (r == 0)
        r = hf_kv_add(b, "net_subnet4", f->subnet4);
    if (r == 0)
        r = hf_kv_add(b, "net_subnet6", f->subnet6);
    return r == 0 ? hf_kv_add_u64(b, "net_ipv6", f->ipv6) : r;
}

int hf_cell_fabric_read(struct hf_str text, struct hf_cell_fabric *ret)
{
    int r = hf_kv_copy(text, "net_ns", ret->ns, sizeof(ret->ns));
    if (r == 0)
        r = hf_kv_copy(text, "net_subnet4", ret->subnet4, sizeof(ret->subnet4));
    if (r == 0)
        r = hf_kv_copy(text, "net_subnet6", ret->subnet6, sizeof(ret->subnet6));
    ret->ipv6 = hf_kv_u64(text, "net_ipv6", 0) != 0;
    return r;
}

void hf_cell_net_config(const struct hf_cell_fabric *f, struct hf_net_config *ret)
{
    *ret = (struct hf_net_config){
        .id = "",
        .subnet4 = f->subnet4,
        .subnet6 = f->subnet6,
        .ipv6 = f->ipv6,
    };
}

int hf_cell_spec_write(const struct hf_cell_spec *s, struct hf_buf *b)
{
    const struct {
        const char *key, *value;
    } texts[] = {
        {"template_id", s->template_id},
        {"dir", s->dir},
        {"template_dir", s->template_dir},
        {"blank", s->blank},
        {"image", s->image},
        {"envd", s->envd},
        {"cgroup_root", s->cgroup_root},
        {"cgroup_group", s->cgroup_group},
        {"from", s->from},
        {"criu", s->criu},
    };
    int r = hf_kv_add_u64(b, "n", s->n);
    for (size_t i = 0; r == 0 && i < HF_ARRAY_LEN(texts); i++)
        r = hf_kv_add(b, texts[i].key, texts[i].value);
    if (r == 0)
        r = hf_kv_add_u64(b, "disk_bytes", s->disk_bytes);
    if (r == 0)
        r = hf_kv_add_u64(b, "from_memory", s->from_memory);
    if (r == 0)
        r = hf_kv_add_u64(b, "clone", s->clone);
    if (r == 0)
        r = hf_cell_fabric_write(&s->fabric, b);
    return r == 0 ? add_claim(s, b) : r;
}

static int copy_value(struct hf_str v, char *out, size_t cap)
{
    if (v.n >= cap)
        return -ENAMETOOLONG;
    memcpy(out, v.p, v.n);
    out[v.n] = '\0';
    return 0;
}

static int read_mount_kind(struct hf_str v, enum hf_cell_mount_kind *ret)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(mount_kinds); i++) {
        if (!hf_str_eq(v, mount_kinds[i]))
            continue;
        *ret = (enum hf_cell_mount_kind)i;
        return 0;
    }
    return -EINVAL;
}

/* mount_image starts a mount, the other keys complete the last one. */
static int read_mounts(struct hf_str text, struct hf_cell_spec *s)
{
    struct hf_str k, v;
    int r = 0;
    s->n_mounts = 0;
    for (size_t pos = 0; r == 0 && hf_kv_next(text, &pos, &k, &v);) {
        if (!v.p || !hf_str_starts(k, "mount_"))
            continue;
        struct hf_cell_mount *m = s->n_mounts ? &s->mounts[s->n_mounts - 1] : NULL;
        if (hf_str_eq(k, "mount_image")) {
            if (s->n_mounts == HF_CELL_MOUNTS_MAX)
                return -E2BIG;
            m = &s->mounts[s->n_mounts++];
            *m = (struct hf_cell_mount){0};
            r = copy_value(v, m->image, sizeof(m->image));
        } else if (m && hf_str_eq(k, "mount_path")) {
            r = copy_value(v, m->path, sizeof(m->path));
        } else if (m && hf_str_eq(k, "mount_mode")) {
            m->read_only = hf_str_eq(v, "ro");
        } else if (m && hf_str_eq(k, "mount_kind")) {
            r = read_mount_kind(v, &m->kind);
        } else if (m && hf_str_eq(k, "mount_bytes")) {
            r = hf_parse_u64(v, UINT64_MAX, &m->bytes);
        }
    }
    return r;
}

int hf_cell_claim_read(struct hf_str text, struct hf_cell_spec *s)
{
    int r = hf_kv_copy(text, "sandbox_id", s->sandbox_id, sizeof(s->sandbox_id));
    s->limits.cpu_millis = (uint32_t)hf_kv_u64(text, "cpu_millis", s->limits.cpu_millis);
    s->limits.memory_bytes = hf_kv_u64(text, "memory_bytes", s->limits.memory_bytes);
    s->limits.pids_max = (uint32_t)hf_kv_u64(text, "pids_max", s->limits.pids_max);
    s->limits.io_bps = hf_kv_u64(text, "io_bps", s->limits.io_bps);
    s->network = hf_kv_u64(text, "network", 0) != 0;
    s->generation = hf_kv_u64(text, "generation", 1);
    return r == 0 ? read_mounts(text, s) : r;
}

int hf_cell_spec_read(struct hf_str text, struct hf_cell_spec *ret)
{
    memset(ret, 0, sizeof(*ret));
    const struct {
        const char *key;
        char *out;
        size_t cap;
    } texts[] = {
        {"template_id", ret->template_id, sizeof(ret->template_id)},
        {"dir", ret->dir, sizeof(ret->dir)},
        {"template_dir", ret->template_dir, sizeof(ret->template_dir)},
        {"blank", ret->blank, sizeof(ret->blank)},
        {"image", ret->image, sizeof(ret->image)},
        {"envd", ret->envd, sizeof(ret->envd)},
        {"cgroup_root", ret->cgroup_root, sizeof(ret->cgroup_root)},
        {"cgroup_group", ret->cgroup_group, sizeof(ret->cgroup_group)},
        {"from", ret->from, sizeof(ret->from)},
        {"criu", ret->criu, sizeof(ret->criu)},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(texts); i++) {
        int r = hf_kv_copy(text, texts[i].key, texts[i].out, texts[i].cap);
        if (r < 0)
            return r;
    }
    ret->n = (uint32_t)hf_kv_u64(text, "n", 0);
    ret->disk_bytes = hf_kv_u64(text, "disk_bytes", 0);
    ret->from_memory = hf_kv_u64(text, "from_memory", 0) != 0;
    ret->clone = hf_kv_u64(text, "clone", 0) != 0;
    int r = hf_cell_fabric_read(text, &ret->fabric);
    if (r < 0)
        return r;
    if (!ret->n || !ret->dir[0] || !ret->image[0])
        return -EINVAL;
    return hf_cell_claim_read(text, ret);
}

static const char *const cause_names[] = {"exited", "oom", "killed", "lost"};

int hf_cell_exit_write(const struct hf_cell_exit *e, struct hf_buf *b)
{
    int r = hf_kv_add(b, "cause", cause_names[e->cause]);
    if (r == 0)
        r = hf_kv_add_int(b, "code", e->code);
    return r == 0 ? hf_kv_add(b, "detail", e->detail) : r;
}

int hf_cell_exit_read(struct hf_str text, struct hf_cell_exit *ret)
{
    struct hf_str cause = hf_kv_get(text, "cause");
    for (size_t i = 0; i < HF_ARRAY_LEN(cause_names); i++) {
        if (!hf_str_eq(cause, cause_names[i]))
            continue;
        ret->cause = (enum hf_cell_cause)i;
        ret->code = (int)hf_kv_int(text, "code", 0);
        return hf_kv_copy(text, "detail", ret->detail, sizeof(ret->detail));
    }
    return -EINVAL;
}
