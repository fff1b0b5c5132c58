#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <net/if.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/path.h"

#define POOL_BYTES (8ull << 30)
#define CALL_TIMEOUT_MS 60000u
#define OUTPUT_MAX (4u << 20)

static const char *shim_path, *guest_path, *probes_path;

static HF_NORETURN void skip_all(const char *why)
{
    printf("1..0 # SKIP %s\n", why);
    exit(77);
}

void h_require(int argc, char **argv)
{
    if (argc < 4)
        skip_all("needs the paths of shim, guest and probes as arguments");
    for (int i = 1; i <= 3; i++) /* `meson test` gives paths below its own directory */
        argv[i] = realpath(argv[i], NULL);
    if (!argv[1] || !argv[2] || !argv[3])
        skip_all("shim, guest or probes are not built");
    shim_path = argv[1];
    guest_path = argv[2];
    probes_path = argv[3];
    if (geteuid() != 0)
        skip_all("needs root");
    if (access("/bin/busybox", X_OK) < 0)
        skip_all("needs /bin/busybox (package busybox-static)");
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(CLONE_NEWUSER) < 0);
    int status = 0;
    if (waitpid(pid, &status, 0) < 0 || status)
        skip_all("needs user namespaces");
    if (access("/dev/loop-control", R_OK | W_OK) < 0)
        skip_all("needs loop devices");
}

/* ---- template ---- */

static void copy_file(const char *from, const char *to, mode_t mode)
{
    char *p = NULL;
    size_t n = 0;
    assert_int_equal(hf_read_file(from, 64u << 20, &p, &n), 0);
    int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(hf_write_all(fd, p, n), 0);
    assert_int_equal(fchmod(fd, mode), 0);
    (void)close(fd);
    free(p);
}

static void put_text(const char *root, const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(hf_write_all(fd, text, strlen(text)), 0);
    (void)close(fd);
}

static void build_template(struct h_host *h)
{
    static const char *const dirs[] = {"bin", "etc", "home", "home/user", "tmp", "root", "usr", "var", "opt"};
    static const char *const applets[] = {
        "sh",     "ls",       "cat",  "id",    "ps",       "sleep", "nc",    "dd",   "mount",
        "umount", "hostname", "stat", "touch", "mkdir",    "mknod", "kill",  "true", "false",
        "head",   "wc",       "grep", "chown", "rm",       "echo",  "su",    "df",   "seq",
        "chmod",  "tr",       "od",   "ln",    "sync",     "test",  "env",   "find", "sort",
        "cut",    "setsid",   "yes",  "ip",    "ifconfig", "expr",  "nohup",
    };
    char root[128], path[256], to[256];
    (void)snprintf(root, sizeof(root), "%s/rootfs", h->base);
    assert_int_equal(hf_mkdir_p(root, 0755), 0);
    for (size_t i = 0; i < HF_ARRAY_LEN(dirs); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", root, dirs[i]);
        assert_int_equal(mkdir(path, 0755), 0);
    }
    (void)snprintf(path, sizeof(path), "%s/bin/busybox", root);
    copy_file("/bin/busybox", path, 0755);
    for (size_t i = 0; i < HF_ARRAY_LEN(applets); i++) {
        (void)snprintf(to, sizeof(to), "%s/bin/%s", root, applets[i]);
        assert_int_equal(symlink("busybox", to), 0);
    }
    /* A set-uid copy stands for sudo. */
    (void)snprintf(path, sizeof(path), "%s/bin/suid-probes", root);
    copy_file(h->probes, path, 0755);
    assert_int_equal(chmod(path, 04755), 0);
    (void)snprintf(path, sizeof(path), "%s/bin/probes", root);
    copy_file(h->probes, path, 0755);
    (void)snprintf(path, sizeof(path), "%s/tmp", root);
    assert_int_equal(chmod(path, 01777), 0);
    (void)snprintf(path, sizeof(path), "%s/home/user", root);
    assert_int_equal(chown(path, 1000, 1000), 0);
    put_text(root, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n");
    put_text(root, "etc/group", "root:x:0:\ntty:x:5:\nuser:x:1000:\n");
    put_text(root, "etc/marker", "template\n");
    struct hf_err err = {0};
    uint64_t bytes = 0;
    if (hf_disk_template_build(h->data, H_TEMPLATE, root, &bytes, &err) < 0)
        fail_msg("template: %s", err.msg);
    assert_int_equal(hf_remove_tree(root), 0);
}

void h_setup(struct h_host *h)
{
    memset(h, 0, sizeof(*h));
    h->shim = shim_path;
    h->guest = guest_path;
    h->probes = probes_path;
    (void)snprintf(h->base, sizeof(h->base), "/tmp/hf-engine-XXXXXX");
    assert_non_null(mkdtemp(h->base));
    (void)snprintf(h->data, sizeof(h->data), "%s/data", h->base);
    unsigned char random[4];
    hf_random(random, sizeof(random));
    hf_hex(random, sizeof(random), h->group);
    (void)snprintf(h->run, sizeof(h->run), "%s/%s", h->base, h->group);
    assert_int_equal(mkdir(h->data, 0700), 0);
    assert_int_equal(mkdir(h->run, 0700), 0);
    struct hf_err err = {0};
    bool reflink;
    if (hf_disk_pool_open(h->data, POOL_BYTES, &reflink, &err) < 0)
        fail_msg("pool: %s", err.msg);
    build_template(h);
}

void h_teardown(struct h_host *h)
{
    struct hf_err err = {0};
    if (hf_disk_pool_close(h->data, h->run, &err) < 0)
        fail_msg("pool close: %s", err.msg);
    (void)umount2(h->run, MNT_DETACH);
    assert_int_equal(hf_remove_tree(h->base), 0);
}

/* ---- fabric ---- */

static int in_fabric(const struct h_host *h, int (*fn)(const void *arg), const void *arg)
{
    char path[64];
    hf_net_ns_path(h->fabric_id, path);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        _exit(fd < 0 || setns(fd, CLONE_NEWNET) < 0 ? 255 : fn(arg));
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 255);
    return WEXITSTATUS(status);
}

static int is_there(const void *name)
{
    return if_nametoindex(name) != 0;
}

static int count_links(const void *arg)
{
    int n = 0;
    struct if_nameindex *all = if_nameindex();
    for (struct if_nameindex *i = all; i && i->if_index; i++)
        n += strncmp(i->if_name, "hf", 2) == 0;
    return HF_MIN(n, 254);
}

bool h_fabric_has(const struct h_host *h, uint32_t key)
{
    char name[16];
    (void)snprintf(name, sizeof(name), "hf%u", key);
    return in_fabric(h, is_there, name);
}

unsigned h_fabric_count(const struct h_host *h)
{
    return (unsigned)in_fabric(h, count_links, NULL);
}

static void make_namespace(const char *path)
{
    assert_int_equal(hf_mkdir_p("/run/netns", 0755), 0);
    int fd = open(path, O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    assert_true(fd >= 0);
    (void)close(fd);
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(CLONE_NEWNET) < 0 || mount("/proc/self/ns/net", path, "none", MS_BIND, NULL) < 0);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

void h_fabric_open(struct h_host *h, const char *id)
{
    char path[64];
    (void)snprintf(h->fabric_id, sizeof(h->fabric_id), "%s", id ? id : h->group);
    hf_net_ns_path(h->fabric_id, path);
    if (!id)
        make_namespace(path);
    h->fabric = (struct hf_net_config){
        .id = h->fabric_id, .subnet4 = "10.117.0.0/20", .subnet6 = "fd68:6f6c:6466:1::/64", .ipv6 = true};
    h->net = &h->fabric;
}

void h_fabric_close(struct h_host *h)
{
    char path[64];
    hf_net_ns_path(h->fabric_id, path);
    (void)umount2(path, MNT_DETACH);
    (void)unlink(path);
    h->net = NULL;
    h->fabric_id[0] = '\0';
}

/* ---- driver ---- */

static void on_exit_event(void *arg, struct hf_box *box, const struct hf_box_exit *e)
{
    struct h_host *h = arg;
    h->exited = true;
    h->exited_box = box;
    h->exit = *e;
    h->exits++;
}

void h_open(struct h_host *h, uint32_t warm)
{
    struct hf_driver_config cfg = {
        .data_dir = h->data,
        .run_dir = h->run,
        .shim_path = h->shim,
        .envd_path = h->guest,
        .criu_path = h->no_criu ? NULL : HF_CRIU_PATH,
        .cgroup_root = h->cgroup_root ? h->cgroup_root : "/sys/fs/cgroup",
        .pool_bytes = POOL_BYTES,
        .warm_pool = warm,
        .warm_template = H_TEMPLATE,
        .net = h->net,
    };
    struct hf_err err = {0};
    assert_int_equal(uv_loop_init(&h->loop), 0);
    if (hf_cell_driver_new(&h->loop, &cfg, &h->driver, &err) < 0)
        fail_msg("driver: %s", err.msg);
    h->driver->on_exit = on_exit_event;
    h->driver->on_exit_arg = h;
    h->exited = false;
}

bool h_until(struct h_host *h, const bool *flag, unsigned timeout_ms)
{
    uint64_t end = hf_mono_ms() + timeout_ms;
    while (!*flag && hf_mono_ms() < end) {
        if (!uv_run(&h->loop, UV_RUN_NOWAIT) || !*flag)
            (void)usleep(200);
    }
    return *flag;
}

void h_spin(struct h_host *h, unsigned ms)
{
    const bool never = false;
    (void)h_until(h, &never, ms);
}

struct call {
    bool done;
    struct hf_box *box;
    int fd;
    struct hf_err err;
};

static void take_err(struct call *c, const struct hf_err *err)
{
    c->done = true;
    c->err = err ? *err : (struct hf_err){0};
}

static void on_done(void *arg, const struct hf_err *err)
{
    take_err(arg, err);
}

static void on_box(void *arg, struct hf_box *box, const struct hf_err *err)
{
    struct call *c = arg;
    c->box = box;
    take_err(c, err);
}

static void on_fd(void *arg, int fd, const struct hf_err *err)
{
    struct call *c = arg;
    c->fd = fd;
    take_err(c, err);
}

void h_close(struct h_host *h, bool kill_pool)
{
    struct call c = {0};
    h->driver->ops->close(h->driver, kill_pool, on_done, &c);
    assert_true(h_until(h, &c.done, CALL_TIMEOUT_MS));
    (void)uv_run(&h->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&h->loop), 0);
    h->driver = NULL;
}

void h_abandon(struct h_host *h)
{
    h_close(h, false);
}

struct hf_box *h_create_spec(struct h_host *h, const struct hf_box_spec *spec, struct hf_err *err)
{
    struct call c = {0};
    h->driver->ops->create(h->driver, spec, on_box, &c);
    assert_true(h_until(h, &c.done, CALL_TIMEOUT_MS));
    if (err)
        *err = c.err;
    return c.box;
}

struct hf_box *h_create(struct h_host *h, const char *id)
{
    struct hf_box_spec spec = {.sandbox_id = id, .template_id = H_TEMPLATE};
    struct hf_err err;
    struct hf_box *box = h_create_spec(h, &spec, &err);
    if (!box)
        fail_msg("create: %s", err.msg);
    return box;
}

int h_destroy(struct h_host *h, struct hf_box *box, struct hf_err *err)
{
    struct call c = {0};
    h->driver->ops->destroy(h->driver, box, on_done, &c);
    assert_true(h_until(h, &c.done, CALL_TIMEOUT_MS));
    if (err)
        *err = c.err;
    return c.err.r;
}

int h_network(struct h_host *h, struct hf_box *box, bool up, struct hf_err *err)
{
    struct call c = {0};
    h->driver->ops->network(h->driver, box, up, on_done, &c);
    assert_true(h_until(h, &c.done, CALL_TIMEOUT_MS));
    if (err)
        *err = c.err;
    return c.err.r;
}

int h_dial(struct h_host *h, struct hf_box *box, uint16_t port)
{
    struct call c = {0};
    h->driver->ops->dial(h->driver, box, port, on_fd, &c);
    assert_true(h_until(h, &c.done, CALL_TIMEOUT_MS));
    return c.fd;
}

char *h_exec(struct hf_box *box, const char *script)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", hf_box_control_socket(box));
    hf_auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {60, 0};
    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
        return NULL;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (hf_write_all(fd, script, strlen(script)) < 0 || shutdown(fd, SHUT_WR) < 0)
        return NULL;
    struct hf_buf b = HF_BUF_INIT(OUTPUT_MAX);
    for (;;) {
        if (hf_buf_reserve(&b, 4097) < 0)
            break;
        ssize_t n = read(fd, b.p + b.n, 4096);
        if (n <= 0) {
            if (n < 0) {
                hf_buf_done(&b);
                return NULL;
            }
            break;
        }
        b.n += (size_t)n;
        b.p[b.n] = '\0';
    }
    return hf_buf_take(&b);
}

void h_expect(struct hf_box *box, const char *script, const char *output)
{
    hf_auto_free char *got = h_exec(box, script);
    if (!got || strcmp(got, output) != 0)
        fail_msg("script: %s\nexpected: %s\ngot: %s", script, output, got ? got : "(connection broke)");
}

/* ---- scan ---- */

struct scan_call {
    struct call c;
    struct h_found *out;
    size_t n;
};

static void on_found(void *arg, const struct hf_box_found *f)
{
    struct scan_call *s = arg;
    assert_true(s->n < H_FOUND_MAX);
    struct h_found *o = &s->out[s->n++];
    o->box = f->box;
    o->alive = f->alive;
    o->frozen = f->frozen;
    o->exit = f->exit;
    (void)snprintf(o->sandbox_id, sizeof(o->sandbox_id), "%s", f->sandbox_id);
}

static void on_scan_done(void *arg, const struct hf_err *err)
{
    struct scan_call *s = arg;
    take_err(&s->c, err);
}

size_t h_scan(struct h_host *h, struct h_found *out)
{
    struct scan_call s = {.out = out};
    h->driver->ops->scan(h->driver, on_found, on_scan_done, &s);
    assert_true(h_until(h, &s.c.done, CALL_TIMEOUT_MS));
    assert_int_equal(s.c.err.r, 0);
    return s.n;
}

size_t h_sweep(struct h_host *h)
{
    static struct h_found found[H_FOUND_MAX];
    size_t n = h_scan(h, found);
    for (size_t i = 0; i < n; i++) {
        struct hf_err err;
        if (h_destroy(h, found[i].box, &err) < 0)
            fail_msg("destroy of a remain: %s", err.msg);
    }
    return n;
}

int h_reset(void **state)
{
    struct h_host *h = *state;
    h->cgroup_root = NULL;
    h->no_criu = false;
    if (h->driver)
        h_close(h, true);
    h_open(h, 0);
    (void)h_sweep(h);
    h_close(h, true);
    h_assert_clean(h);
    return 0;
}

/* ---- what is left ---- */

static unsigned count_processes(const struct h_host *h, unsigned n, pid_t *ret_pid)
{
    char want[128], path[64];
    unsigned count = 0;
    (void)snprintf(want, sizeof(want), n ? "%s/%u/spec" : "%s/", h->run, n);
    DIR *d = opendir("/proc");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        uint64_t pid;
        if (hf_parse_u64(hf_str_c(e->d_name), INT32_MAX, &pid) < 0)
            continue;
        hf_auto_free char *cmd = NULL;
        size_t len = 0;
        (void)snprintf(path, sizeof(path), "/proc/%s/cmdline", e->d_name);
        if (hf_read_file(path, 4096, &cmd, &len) < 0 || len < 2)
            continue;
        for (size_t i = 0; i + 1 < len; i++)
            if (!cmd[i])
                cmd[i] = ' ';
        if (!strstr(cmd, want) || !strstr(cmd, "shim"))
            continue;
        count++;
        if (ret_pid)
            *ret_pid = (pid_t)pid;
    }
    (void)closedir(d);
    return count;
}

pid_t h_shim_pid(const struct h_host *h, unsigned n)
{
    pid_t pid = 0;
    (void)count_processes(h, n, &pid);
    return pid;
}

unsigned h_box_number(const struct hf_box *box)
{
    const char *p = hf_box_control_socket(box);
    const char *end = strrchr(p, '/');
    const char *start = end;
    while (start > p && start[-1] != '/')
        start--;
    uint64_t n = 0;
    assert_int_equal(hf_parse_u64((struct hf_str){start, (size_t)(end - start)}, UINT32_MAX, &n), 0);
    return (unsigned)n;
}

static unsigned count_loops(const char *part)
{
    unsigned count = 0;
    DIR *d = opendir("/sys/block");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[320];
        hf_auto_free char *file = NULL;
        if (strncmp(e->d_name, "loop", 4) != 0)
            continue;
        (void)snprintf(path, sizeof(path), "/sys/block/%s/loop/backing_file", e->d_name);
        if (hf_read_file(path, 4096, &file, NULL) == 0 && strstr(file, part))
            count++;
    }
    (void)closedir(d);
    return count;
}

unsigned h_count_loops(const struct h_host *h)
{
    char part[128];
    (void)snprintf(part, sizeof(part), "%s", h->base);
    char cells[160];
    (void)snprintf(cells, sizeof(cells), "%s/data/pool/cells/", part);
    char volumes[160];
    (void)snprintf(volumes, sizeof(volumes), "%s/data/pool/volumes/", part);
    /* Inside a mounted pool the path may be seen from the pool's root. */
    return count_loops(cells) + count_loops(volumes);
}

static unsigned count_dir(const char *path)
{
    unsigned n = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.' && strcmp(e->d_name, "templates") != 0 && strcmp(e->d_name, "number") != 0;
    if (d)
        (void)closedir(d);
    return n;
}

static void assert_no_cgroups(const struct h_host *h)
{
    static const char *const ctl[] = {"memory", "cpu", "cpuacct", "pids", "blkio", "freezer", "unified", "."};
    for (size_t i = 0; i < HF_ARRAY_LEN(ctl); i++) {
        char path[512];
        (void)snprintf(path, sizeof(path), "/sys/fs/cgroup/%s/holdfast/%s", ctl[i], h->group);
        DIR *d = opendir(path);
        for (struct dirent *e; d && (e = readdir(d));)
            if (e->d_name[0] >= '0' && e->d_name[0] <= '9')
                fail_msg("the cgroup %s/%s is left", path, e->d_name);
        if (d)
            (void)closedir(d);
    }
}

void h_assert_clean(const struct h_host *h)
{
    char path[256];
    pid_t pid = 0;
    unsigned n = count_processes(h, 0, &pid);
    if (n)
        fail_msg("%u supervisors are left (%d)", n, (int)pid);
    assert_int_equal(count_dir(h->run), 0);
    (void)snprintf(path, sizeof(path), "%s/pool/cells", h->data);
    assert_int_equal(count_dir(path), 0);
    if (h_count_loops(h))
        fail_msg("%u loop devices are left", h_count_loops(h));
    assert_no_cgroups(h);
    if (h->fabric_id[0] && h_fabric_count(h))
        fail_msg("%u interfaces are left in the fabric", h_fabric_count(h));
}
