/* A box's wire into the fabric, as the daemon asks its supervisor for it. */
#include <fcntl.h>
#include <net/if.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/cell/cell.h"
#include "engine/net/nl.h"

/* The kernel takes the interface away with the box's namespace, many at a time, which is far cheaper than one
 * by one. It can't as long as a socket that was dialled into the box is open: then we do. */
#define UNPLUG_WAIT_MS 200u
#define UNPLUG_PAUSE_NS 1000000

struct wiring {
    struct hf_list link; /* box.wirings */
    struct hf_box *box;  /* NULL once it may be gone */
    bool up;
    hf_done_cb cb;
    void *arg;
    struct hf_err err;
};

uint32_t hf_box_net_key(const struct hf_box *box)
{
    return box->spec.n;
}

static void on_wired(void *arg, const struct hf_err *err, struct hf_str text, int fd)
{
    hf_auto_free struct wiring *w = arg;
    (void)hf_close(fd);
    if (w->box && !err)
        w->box->spec.network = w->up;
    hf_list_del(&w->link);
    w->cb(w->arg, err);
}

static void refuse(void *arg)
{
    hf_auto_free struct wiring *w = arg;
    w->cb(w->arg, &w->err);
}

void cell_network(struct hf_driver *base, struct hf_box *box, bool up, hf_done_cb cb, void *arg)
{
    struct cell_driver *d = cell_of(base);
    struct wiring *w = hf_new(struct wiring);
    hf_auto_buf struct hf_buf more = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    hf_list_init(&w->link);
    w->box = box;
    w->up = up;
    w->cb = cb;
    w->arg = arg;
    int r = 0;
    if (up && !d->fabric.ns[0])
        r = hf_err_set(&w->err, -ENOTSUP, "this host has no network for sandboxes (see holdfast doctor)");
    if (r == 0)
        r = hf_kv_add(&more, "state", up ? "up" : "down");
    if (r == 0)
        r = hf_cell_fabric_write(&d->fabric, &more);
    if (r < 0) {
        if (!w->err.r)
            (void)hf_err_set(&w->err, r, "the network's description is too long");
        cell_defer(base->loop, refuse, w);
        return;
    }
    hf_list_add_tail(&box->wirings, &w->link);
    cell_request(box, "net", &more, on_wired, w);
}

void cell_wirings_orphan(struct hf_box *box)
{
    hf_list_foreach_safe(it, &box->wirings)
    {
        struct wiring *w = hf_list_entry(it, struct wiring, link);
        w->box = NULL;
        hf_list_del(&w->link);
    }
}

static bool is_plugged(int fd, uint32_t key)
{
    struct ifreq ifr = {0};
    (void)snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "hf%u", key);
    return fd >= 0 && ioctl(fd, SIOCGIFINDEX, &ifr) == 0;
}

void cell_unplug(const struct hf_cell_spec *spec)
{
    struct hf_err err = {0};
    hf_auto_close int ns = spec->fabric.ns[0] ? open(spec->fabric.ns, O_RDONLY | O_CLOEXEC) : -1;
    hf_auto_close int fd = ns < 0 ? -1 : hf_ns_socket(ns, AF_INET, SOCK_DGRAM, 0);
    const struct timespec pause = {0, UNPLUG_PAUSE_NS};
    for (uint64_t end = hf_mono_ms() + UNPLUG_WAIT_MS; is_plugged(fd, spec->n) && hf_mono_ms() < end;)
        (void)nanosleep(&pause, NULL);
    if (is_plugged(fd, spec->n) && hf_net_link_down(ns, spec->n, &err) < 0)
        hf_log_warn("cannot remove a sandbox's interface", "cell=%u cause=%s", spec->n,
                    hf_log_quote(err.msg));
}
