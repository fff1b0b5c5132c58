/* The doctor's checks of rights, cgroups, addresses and what is for later. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/kvm.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>

#include "base/path.h"
#include "cli/doctor.h"

/* The longest name below the run directory: "/<10 digits>/envd.sock". */
#define RUN_DIR_TAIL 21u
#define NOFILE_WANTED 65536u

/* ---- rights ---- */

struct cap {
    int number;
    const char *name, *cost;
};

static const struct cap needed_caps[] = {
    {CAP_SYS_ADMIN, "CAP_SYS_ADMIN", ""},
    {CAP_SETUID, "CAP_SETUID", ""},
    {CAP_SETGID, "CAP_SETGID", ""},
    {CAP_CHOWN, "CAP_CHOWN", ""},
    {CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE", ""},
    {CAP_FOWNER, "CAP_FOWNER", ""},
    {CAP_KILL, "CAP_KILL", ""},
    {CAP_SYS_CHROOT, "CAP_SYS_CHROOT", ""},
};
static const struct cap useful_caps[] = {
    {CAP_SYS_RESOURCE, "CAP_SYS_RESOURCE", "limits such as open files can't be raised above ours"},
    {CAP_NET_ADMIN, "CAP_NET_ADMIN", "no network for sandboxes: no wire, no policy"},
    {CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "no memory images: CRIU needs it"},
};

static uint64_t effective_caps(void)
{
    hf_auto_free char *status = NULL;
    size_t n = 0;
    if (hf_read_file("/proc/self/status", 64 * 1024, &status, &n) < 0)
        return 0;
    const char *line = strstr(status, "\nCapEff:");
    return line ? strtoull(line + 8, NULL, 16) : 0;
}

/* Capabilities say nothing about the host when a user namespace gave them. */
static bool in_first_userns(void)
{
    hf_auto_free char *map = NULL;
    size_t n = 0;
    unsigned long inside = 1, outside = 1, count = 0;
    if (hf_read_file("/proc/self/uid_map", 4096, &map, &n) < 0)
        return true;
    return sscanf(map, "%lu %lu %lu", &inside, &outside, &count) == 3 && inside == 0 && outside == 0 &&
           count == UINT32_MAX;
}

static void check_root(const struct hf_doctor *d, struct hf_check_result *ret)
{
    uint64_t have = effective_caps();
    char missing[160] = "";
    for (size_t i = 0; i < HF_ARRAY_LEN(needed_caps); i++) {
        size_t n = strlen(missing);
        if (!(have >> needed_caps[i].number & 1))
            (void)snprintf(missing + n, sizeof(missing) - n, "%s%s", n ? ", " : "", needed_caps[i].name);
    }
    if (!*missing && !in_first_userns()) {
        hf_check_set(ret, HF_CHECK_FAIL, "root of a user namespace only, not of the host");
        hf_check_cost(ret, "no sandbox: such a root can't mount disk images");
        hf_check_fix(ret, "run it as the host's root; in a rootless container: use a privileged one");
        return;
    }
    if (!*missing) {
        hf_check_set(ret, HF_CHECK_OK, "%s, with every capability the engine needs",
                     d->root ? "root" : "not root");
        return;
    }
    hf_check_set(ret, HF_CHECK_FAIL, "%smissing: %s", d->root ? "" : "not root; ", missing);
    hf_check_cost(ret, "no sandbox: mounts, loop devices and id maps need them");
    hf_check_fix(ret, "%s",
                 d->root ? "in a container: run it privileged, or add these capabilities"
                         : "sudo holdfast doctor, and run `holdfast serve` as root");
}

static void check_useful(const struct hf_doctor *d, struct hf_check_result *ret)
{
    uint64_t have = effective_caps();
    char missing[120] = "";
    (void)d;
    for (size_t i = 0; i < HF_ARRAY_LEN(useful_caps); i++) {
        if (have >> useful_caps[i].number & 1)
            continue;
        size_t n = strlen(missing), c = strlen(ret->cost);
        (void)snprintf(missing + n, sizeof(missing) - n, "%s%s", n ? ", " : "", useful_caps[i].name);
        (void)snprintf(ret->cost + c, sizeof(ret->cost) - c, "%s%s", c ? "; " : "", useful_caps[i].cost);
    }
    if (!*missing) {
        hf_check_set(ret, HF_CHECK_OK, "CAP_SYS_RESOURCE, CAP_NET_ADMIN, CAP_SYS_PTRACE");
        return;
    }
    hf_check_set(ret, HF_CHECK_WARN, "missing: %s", missing);
    hf_check_fix(ret, "a service manager or container around us drops them: give them back there");
}

static void check_nofile(const struct hf_doctor *d, struct hf_check_result *ret)
{
    struct rlimit l;
    (void)d;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0)
        return;
    bool enough = l.rlim_max == RLIM_INFINITY || l.rlim_max >= NOFILE_WANTED;
    hf_check_set(ret, enough ? HF_CHECK_OK : HF_CHECK_WARN, "at most %llu", (unsigned long long)l.rlim_max);
    if (enough)
        return;
    hf_check_cost(ret, "fewer connections and sandboxes at once");
    hf_check_fix(ret, "ulimit -Hn %u, or LimitNOFILE=%u in the unit", NOFILE_WANTED, NOFILE_WANTED);
}

/* ---- cgroups ---- */

static bool is_cgroup2(const char *path)
{
    struct statfs s;
    return statfs(path, &s) == 0 && (unsigned long)s.f_type == CGROUP2_SUPER_MAGIC;
}

/* Whether a group can be made in dir; tried. */
static bool group_works(const char *dir)
{
    hf_auto_free char *path = hf_xasprintf("%s/holdfast-doctor-%d", dir, (int)getpid());
    if (mkdir(path, 0755) < 0)
        return false;
    (void)rmdir(path);
    return true;
}

static const char *const controllers[][2] = {
    {"memory", "no memory limit and no report of what used it"},
    {"cpu", "no processor share"},
    {"pids", "a fork bomb takes the host's process table"},
    {"freezer", "no pauses and no snapshots; a sandbox is killed process by process"},
    {"blkio", "no disk bandwidth limit"},
};

static bool has_v2(const char *root, const char *name)
{
    hf_auto_free char *path = hf_xasprintf("%s/cgroup.controllers", root), *text = NULL;
    size_t n = 0;
    if (strcmp(name, "freezer") == 0) /* in every group of v2 */
        return true;
    if (strcmp(name, "blkio") == 0)
        name = "io";
    if (hf_read_file(path, 4096, &text, &n) < 0)
        return false;
    for (char *p = text; *p;) {
        size_t len = strcspn(p, " \n");
        if (hf_str_eq((struct hf_str){p, len}, name))
            return true;
        p += len + (p[len] != '\0');
    }
    return false;
}

static bool has_v1(const char *root, const char *name)
{
    hf_auto_free char *path = hf_xasprintf("%s/%s", root, name);
    return access(path, F_OK) == 0 && group_works(path);
}

static void check_cgroup(const struct hf_doctor *d, struct hf_check_result *ret)
{
    const char *root = d->cfg->cgroup_root;
    bool v2 = is_cgroup2(root), writable = v2 && group_works(root);
    char have[80] = "", lack[80] = "";
    for (size_t i = 0; i < HF_ARRAY_LEN(controllers); i++) {
        bool has = v2 ? writable && has_v2(root, controllers[i][0]) : has_v1(root, controllers[i][0]);
        char *list = has ? have : lack;
        size_t n = strlen(list), c = strlen(ret->cost);
        (void)snprintf(list + n, 80 - n, "%s%s", n ? " " : "", controllers[i][0]);
        if (!has)
            (void)snprintf(ret->cost + c, sizeof(ret->cost) - c, "%s%s", c ? "; " : "", controllers[i][1]);
    }
    hf_auto_free char *unified = hf_xasprintf("%s/unified", root);
    const char *layout = v2 ? "v2" : is_cgroup2(unified) ? "hybrid (v1 used)" : "v1";
    if (!*lack) {
        hf_check_set(ret, HF_CHECK_OK, "%s, writable: %s", layout, have);
        return;
    }
    hf_check_set(ret, HF_CHECK_WARN, "%s, missing or not writable: %s", *have ? layout : "none usable", lack);
    hf_check_fix(ret, "%s",
                 d->root ? "mount the controllers below the cgroup root; in a container: delegate its "
                           "cgroup (Delegate=yes, or --cgroupns=host)"
                         : "run as root");
}

/* ---- addresses and paths ---- */

static int bind_to(const struct hf_config *cfg)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(cfg->listen_port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(cfg->listen_port)};
    bool is_v4 = inet_pton(AF_INET, cfg->listen_host, &v4.sin_addr) == 1;
    if (!is_v4 && inet_pton(AF_INET6, cfg->listen_host, &v6.sin6_addr) != 1)
        return -EINVAL;
    hf_auto_close int fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    int r =
        is_v4 ? bind(fd, (struct sockaddr *)&v4, sizeof(v4)) : bind(fd, (struct sockaddr *)&v6, sizeof(v6));
    return r < 0 ? -errno : 0;
}

static void check_port(const struct hf_doctor *d, struct hf_check_result *ret)
{
    int r = bind_to(d->cfg);
    if (r == 0) {
        hf_check_set(ret, HF_CHECK_OK, "%s:%u is free", d->cfg->listen_host, d->cfg->listen_port);
        return;
    }
    hf_check_set(ret, HF_CHECK_WARN, "%s:%u: %s", d->cfg->listen_host, d->cfg->listen_port,
                 r == -EADDRINUSE ? "somebody listens there already, perhaps a holdfast daemon"
                                  : strerror(-r));
    hf_check_cost(ret, "`holdfast serve` can't listen there now");
    hf_check_fix(ret, "ss -ltnp 'sport = :%u' shows who it is; --listen takes another address",
                 d->cfg->listen_port);
}

static void check_run_dir(const struct hf_doctor *d, struct hf_check_result *ret)
{
    size_t room = sizeof(((struct sockaddr_un *)0)->sun_path) - 1,
           longest = strlen(d->run_dir) + RUN_DIR_TAIL;
    if (longest <= room) {
        hf_check_set(ret, HF_CHECK_OK, "%s; the longest socket path has %zu of %zu bytes", d->run_dir,
                     longest, room);
        return;
    }
    hf_check_set(ret, HF_CHECK_FAIL, "%s is too long: a socket's path would have %zu bytes, %zu are allowed",
                 d->run_dir, longest, room);
    hf_check_cost(ret, "the daemon can't reach its supervisors");
    hf_check_fix(ret, "holdfast serve --run-dir /run/holdfast/1");
}

char *hf_doctor_program(const char *setting, const char *name)
{
    char self[4096];
    if (*setting)
        return hf_xstrdup(setting);
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[HF_MAX(n, (ssize_t)0)] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    return hf_xasprintf("%s/%s", self, name);
}

static void check_programs(const struct hf_doctor *d, struct hf_check_result *ret)
{
    static const char *const names[] = {"holdfast-shim", "holdfast-envd"};
    const char *const set[] = {d->cfg->shim_path, d->cfg->envd_path};
    for (size_t i = 0; i < HF_ARRAY_LEN(names); i++) {
        hf_auto_free char *path = hf_doctor_program(set[i], names[i]);
        if (access(path, X_OK) == 0)
            continue;
        hf_check_set(ret, HF_CHECK_FAIL, "%s: %s", path, strerror(errno));
        hf_check_cost(ret, "no sandbox");
        hf_check_fix(ret, "install it beside `holdfast`, or name it: --set %s=PATH",
                     i ? "envd_path" : "shim_path");
        return;
    }
    hf_check_set(ret, HF_CHECK_OK, "holdfast-shim and holdfast-envd are there");
}

/* ---- other security modules, and what is for later ---- */

static void check_lsm(const struct hf_doctor *d, struct hf_check_result *ret)
{
    hf_auto_free char *label = NULL;
    size_t n = 0;
    (void)d;
    if (hf_probe_number("/sys/fs/selinux/enforce") == 1) {
        hf_check_set(ret, HF_CHECK_WARN, "SELinux enforces");
        hf_check_cost(ret, "a policy that confines the daemon may refuse its mounts");
        hf_check_fix(ret, "look for denials: ausearch -m avc -c holdfast");
        return;
    }
    if (hf_read_file("/proc/self/attr/current", 512, &label, &n) == 0 && n &&
        strncmp(label, "unconfined", 10) != 0) {
        label[strcspn(label, "\n")] = '\0';
        hf_check_set(ret, HF_CHECK_WARN, "this process is confined by the profile \"%s\"", label);
        hf_check_cost(ret, "the profile may refuse mounts and namespaces");
        hf_check_fix(ret, "in a container: run it with apparmor=unconfined");
        return;
    }
    hf_check_set(ret, HF_CHECK_OK, "nothing confines this process");
}

static void check_kvm(const struct hf_doctor *d, struct hf_check_result *ret)
{
    hf_auto_close int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    (void)d;
    if (fd >= 0 && ioctl(fd, KVM_GET_API_VERSION, 0) == KVM_API_VERSION) {
        hf_check_set(ret, HF_CHECK_OK, "/dev/kvm works; the micro VM driver that wants it is a later part");
        return;
    }
    hf_check_set(ret, HF_CHECK_INFO,
                 "no usable /dev/kvm; nothing needs it yet, sandboxes share the host's kernel");
}

const struct hf_check hf_doctor_rights[] = {
    {"root", "root's rights", check_root},
    {"caps", "useful capabilities", check_useful},
    {0},
};

const struct hf_check hf_doctor_host[] = {
    {"cgroup", "cgroups", check_cgroup},         {"programs", "helper programs", check_programs},
    {"run_dir", "run directory", check_run_dir}, {"listen", "address", check_port},
    {"nofile", "open files", check_nofile},      {"lsm", "AppArmor, SELinux", check_lsm},
    {"kvm", "KVM (later)", check_kvm},           {0},
};
