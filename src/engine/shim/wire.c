/* The box's wire into the fabric. A supervisor keeps no descriptor of the fabric's namespace: it would keep
 * the fabric alive after its removal. */
#include <fcntl.h>

#include "base/fault.h"
#include "engine/shim/shim.h"

static int open_fabric(const struct shim *s, struct hf_err *err)
{
    const char *ns = s->spec.fabric.ns;
    if (!ns[0])
        return hf_err_set(err, -ENOTSUP, "this host has no network for sandboxes (see holdfast doctor)");
    int fd = open(ns, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? hf_err_set(err, -errno, "cannot open the network fabric %s: %s", ns, strerror(errno))
                  : fd;
}

static int plug(struct shim *s, int ns, struct hf_err *err)
{
    struct hf_net_config cfg;
    hf_cell_net_config(&s->spec.fabric, &cfg);
    hf_killpoint("shim.net-plug");
    s->wired = true; /* a half-made one is removed as well */
    int r = hf_net_link_up(&cfg, ns, s->spec.n, err);
    if (r == 0)
        hf_killpoint("shim.net-plugged");
    return r;
}

static int unplug(struct shim *s, int ns, struct hf_err *err)
{
    hf_killpoint("shim.net-unplug");
    int r = hf_net_link_down(ns, s->spec.n, err);
    if (r < 0)
        return r;
    s->wired = false;
    hf_killpoint("shim.net-unplugged");
    return 0;
}

int shim_plug(struct shim *s, bool up, struct hf_err *err)
{
    hf_auto_close int ns = open_fabric(s, err);
    if (ns < 0)
        return ns;
    return up ? plug(s, ns, err) : unplug(s, ns, err);
}

static void write_resolver(struct shim *s, int root_fd, const void *arg)
{
    (void)arg;
    shim_write_resolver(root_fd, &s->spec, s->wired);
}

int shim_wire(struct shim *s, bool up, struct hf_err *err)
{
    bool was = s->wired;
    int r = up || was ? shim_plug(s, up, err) : 0;
    if (r < 0 || was == s->wired) /* what the box made of the file meanwhile stays */
        return r;
    return shim_as_box_root(s, write_resolver, NULL, err);
}

int shim_wire_request(struct shim *s, struct hf_str text, struct hf_err *err)
{
    bool up = hf_str_eq(hf_kv_get(text, "state"), "up");
    struct hf_cell_fabric fabric = {0};
    int r = hf_cell_fabric_read(text, &fabric);
    if (r < 0 || (!up && !hf_str_eq(hf_kv_get(text, "state"), "down")))
        return hf_err_set(err, r < 0 ? r : -EINVAL, "the request is malformed");
    if (fabric.ns[0] && !s->wired) /* a wire is taken out of the fabric that it was plugged into */
        s->spec.fabric = fabric;
    r = shim_wire(s, up, err);
    if (r == 0)
        s->spec.network = up;
    return r;
}
