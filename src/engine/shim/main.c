/* holdfast-shim SPEC: the supervisor of one sandbox. Started by the daemon with one end of a seqpacket
 * socket pair as descriptor 3 and the cell's locked spec as descriptor 4; outlives the daemon. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/path.h"
#include "engine/shim/shim.h"

static void init(struct shim *s)
{
    memset(s, 0, sizeof(*s));
    s->listen_fd = s->ctl_fd = s->envd_sock_fd = s->range_fd = -1;
    s->template_fd = s->upper_fd = s->envd_fd = s->reseed_fd = s->disk_fd = -1;
    s->pidfd = s->userns_fd = s->stderr_fd = s->oom_fd = -1;
    s->cg_fds = (struct hf_cg_fds){-1, -1, -1, -1, -1};
    for (size_t i = 0; i < HF_CELL_MOUNTS_MAX; i++)
        s->volume_fd[i] = -1;
    for (size_t i = 0; i < SHIM_CLIENTS_MAX; i++)
        s->clients[i].fd = -1;
}

static int read_spec(struct shim *s, const char *path, struct hf_err *err)
{
    hf_auto_free char *text = NULL;
    size_t n = 0;
    int r = hf_read_file(path, HF_SHIM_MSG_MAX, &text, &n);
    if (r < 0)
        return hf_err_set(err, r, "cannot read %s: %s", path, strerror(-r));
    r = hf_cell_spec_read((struct hf_str){text, n}, &s->spec);
    return r < 0 ? hf_err_set(err, r, "%s is not a cell's spec", path) : 0;
}

/* The sockets exist before anything slow happens, so that a daemon that restarts meanwhile finds us. */
static int open_sockets(struct shim *s, struct hf_err *err)
{
    (void)umask(077);
    int r = shim_listen(s->spec.dir, "shim.sock", SOCK_SEQPACKET, &s->listen_fd, err);
    if (r == 0)
        r = shim_listen(s->spec.dir, "ctl.sock", SOCK_STREAM, &s->ctl_fd, err);
    return r == 0 ? shim_listen(s->spec.dir, "envd.sock", SOCK_STREAM, &s->envd_sock_fd, err) : r;
}

static int start(struct shim *s, const char *spec_path, struct hf_err *err)
{
    int r = read_spec(s, spec_path, err);
    if (r == 0)
        r = open_sockets(s, err);
    if (r < 0)
        return r;
    hf_cg_probe(s->spec.cgroup_root, s->spec.cgroup_group, &s->cg);
    return shim_start(s, err);
}

int main(int argc, char **argv)
{
    static struct shim s;
    struct hf_err err = {0};
    struct stat st;
    if (argc != 2 || fstat(HF_SHIM_CLIENT_FD, &st) < 0 || !S_ISSOCK(st.st_mode)) {
        (void)fprintf(stderr, "holdfast-shim supervises one sandbox; `holdfast serve` starts it.\n");
        return 2;
    }
    init(&s);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    (void)fcntl(HF_SHIM_CLIENT_FD, F_SETFD, FD_CLOEXEC);
    (void)fcntl(HF_SHIM_LOCK_FD, F_SETFD, FD_CLOEXEC);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    if (chdir("/") < 0)
        return 2;
    s.clients[0].fd = HF_SHIM_CLIENT_FD;
    if (start(&s, argv[1], &err) < 0) {
        shim_cleanup(&s);
        shim_tell_failed(&s, &err);
        return 1;
    }
    shim_serve(&s);
    return 0;
}
