/* Statements 1 to 16: files. */
#include "probes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

/* Host paths do not exist here. */
static bool p1_host_paths(void)
{
    static const char *const paths[] = {"/etc/shadow", "/var/lib/holdfast", "/boot", "/lib/systemd",
                                        "/sys/fs/cgroup/memory"};
    if (!refused(access(facts.path, F_OK), "access to a path of the host", ENOENT, 0))
        return false;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (!refused(open(paths[i], O_RDONLY), paths[i], ENOENT, EACCES, 0))
            return false;
    return true;
}

/* No way up leaves the root. */
static bool p2_dot_dot(void)
{
    static const char *const paths[] = {
        "/..",
        "/../../../../../../..",
        "/proc/self/root",
        "/proc/self/root/..",
        "/proc/self/cwd/../../../../..",
    };
    struct stat root, st;
    if (stat("/", &root) < 0)
        return no("stat of / failed");
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (stat(paths[i], &st) < 0 || st.st_dev != root.st_dev || st.st_ino != root.st_ino)
            return no("%s is not the root", paths[i]);
    /* PID 1's root is ours, or not to be read. */
    if (stat("/proc/1/root/..", &st) == 0 && (st.st_dev != root.st_dev || st.st_ino != root.st_ino))
        return no("/proc/1/root/.. is not the root");
    FILE *f = fopen("/proc/self/mountinfo", "re");
    char line[1024];
    while (f && fgets(line, sizeof(line), f))
        if (strstr(line, "hf-engine") || strstr(line, "/var/lib/holdfast") || strstr(line, "lowerdir=/"))
            return no("mountinfo tells about the host: %s", line);
    return f ? fclose(f) == 0 : no("no mountinfo");
}

/* chroot does not lead out either. */
static int escape_by_chroot(void)
{
    struct stat root, st;
    (void)mkdir("/tmp/jail", 0700);
    if (stat("/", &root) < 0)
        return 2;
    int fd = open("/", O_RDONLY | O_DIRECTORY);
    if (fd < 0 || chroot("/tmp/jail") < 0)
        return 0; /* not root: refused */
    if (fchdir(fd) < 0)
        return 2;
    for (int i = 0; i < 64; i++)
        if (chdir("..") < 0)
            return 2;
    if (chroot(".") < 0 || stat("/", &st) < 0)
        return 2;
    return st.st_dev != root.st_dev || st.st_ino != root.st_ino;
}

static bool p2_chroot(void)
{
    return in_child(escape_by_chroot) == 0 || no("a chroot led out of the root");
}

static bool p5_hard_links(void)
{
    return refused(link("/run/holdfast/envd", "/tmp/envd-link"), "a hard link to envd", EXDEV, EPERM, 0) &&
           refused(link("/dev/null", "/tmp/null-link"), "a hard link to a device", EXDEV, EPERM, 0);
}

static bool p8_launcher(void)
{
    static const char *const paths[] = {"/run/holdfast/envd", "/run/holdfast/reseed.so", "/proc/1/exe"};
    static const char *const ours[] = {".", "..", "boot_id", "envd", "generation", "reseed.so"};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (!refused(open(paths[i], O_WRONLY), paths[i], EROFS, EACCES, ETXTBSY, ENOENT, EPERM, 0) ||
            !refused(truncate(paths[i], 0), paths[i], EROFS, EACCES, ETXTBSY, ENOENT, EPERM, 0))
            return false;
    if (!refused(chmod("/run/holdfast/envd", 0777), "chmod of envd", EROFS, EPERM, EACCES, 0) ||
        !refused(unlink("/run/holdfast/envd"), "unlink of envd", EBUSY, EACCES, EPERM, 0) ||
        !refused(rename("/run/holdfast/envd", "/run/holdfast/x"), "rename of envd", EBUSY, EACCES, EPERM, 0))
        return false;
    DIR *d = opendir("/run/holdfast");
    for (struct dirent *e; d && (e = readdir(d));) {
        bool known = false;
        for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
            known |= strcmp(e->d_name, ours[i]) == 0;
        if (!known)
            return no("/run/holdfast/%s is visible", e->d_name);
    }
    return d ? closedir(d) == 0 : no("no /run/holdfast");
}

static bool p9_mounts(void)
{
    return denied(mount("none", "/tmp", "tmpfs", 0, NULL), "mount of a tmpfs") &&
           denied(mount("/", "/tmp", NULL, MS_BIND, NULL), "a bind mount") &&
           denied(mount(NULL, "/proc/sys", NULL, MS_REMOUNT | MS_BIND, NULL), "remount of /proc/sys") &&
           denied(mount(NULL, "/", NULL, MS_REMOUNT, NULL), "remount of /") &&
           denied(umount2("/proc/kcore", MNT_DETACH), "umount of a mask") &&
           denied(umount2("/sys/kernel", MNT_DETACH), "umount of a mask") &&
           denied(syscall(SYS_pivot_root, "/", "/"), "pivot_root") &&
           denied(syscall(SYS_move_mount, -1, "/proc", -1, "/tmp", 0), "move_mount") &&
           denied(syscall(SYS_open_tree, AT_FDCWD, "/", 1), "open_tree") &&
           denied(syscall(SYS_fsopen, "tmpfs", 0), "fsopen") &&
           denied(syscall(SYS_fspick, AT_FDCWD, "/", 0), "fspick") &&
           denied(syscall(SYS_fsmount, 0, 0, 0), "fsmount") &&
           denied(syscall(SYS_fsconfig, 0, 0, NULL, NULL, 0), "fsconfig") &&
           denied(syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, NULL, 0), "mount_setattr");
}

static bool p10_devices(void)
{
    static const char *const allowed[] = {"null", "zero", "full", "random", "urandom", "tty",   "ptmx",
                                          "pts",  "shm",  "fd",   "stdin",  "stdout",  "stderr"};
    if (!refused(mknod("/tmp/sda", S_IFBLK | 0666, makedev(8, 0)), "mknod of a block device", EPERM, 0) ||
        !refused(mknod("/tmp/mem", S_IFCHR | 0666, makedev(1, 1)), "mknod of a character device", EPERM, 0) ||
        !refused(mknod("/dev/mem", S_IFCHR | 0666, makedev(1, 1)), "mknod in /dev", EPERM, EACCES, 0))
        return false;
    DIR *d = opendir("/dev");
    for (struct dirent *e; d && (e = readdir(d));) {
        bool known = e->d_name[0] == '.';
        for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
            known |= strcmp(e->d_name, allowed[i]) == 0;
        if (!known)
            return no("/dev/%s exists", e->d_name);
    }
    return d ? closedir(d) == 0 : no("no /dev");
}

/* set-uid works in the box (docs/adr/0007) and gains what root has here, which is nothing outside. */
static int capable_of_nothing(void)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    unsigned long long bad =
        1ull << 21 | 1ull << 19 | 1ull << 12 | 1ull << 16 | 1ull << 17 | 1ull << 2 | 1ull << 27;
    while (f && fgets(line, sizeof(line), f)) {
        unsigned long long caps;
        if (sscanf(line, "CapBnd: %llx", &caps) == 1)
            return (caps & bad) != 0;
    }
    return 2;
}

static bool p11_setuid(void)
{
    return in_child(capable_of_nothing) == 0 ||
           no("the bounding set holds SYS_ADMIN, SYS_PTRACE or the like");
}

static bool p14_sparse(void)
{
    int fd = open("/tmp/sparse", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return no("cannot make /tmp/sparse: %s", strerror(errno));
    bool ok = refused(ftruncate(fd, 1ll << 50), "a file of 1 PiB", EFBIG, EINVAL, 0) &&
              refused(fallocate(fd, 0, 0, 1ll << 42), "fallocate of 4 TiB", ENOSPC, EFBIG, 0);
    (void)close(fd);
    (void)unlink("/tmp/sparse");
    return ok;
}

static bool p16_names(void)
{
    char longest[256];
    memset(longest, 'n', 255);
    longest[255] = '\0';
    const char *names[] = {"with\nnewline", "\xff\xfe not utf-8", longest};
    (void)mkdir("/tmp/names", 0700);
    int dir = open("/tmp/names", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < 3; i++) {
        int fd = openat(dir, names[i], O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            return no("name %zu: %s", i, strerror(errno));
        (void)close(fd);
        if (unlinkat(dir, names[i], 0) < 0)
            return no("name %zu did not come back", i);
    }
    (void)close(dir);
    (void)rmdir("/tmp/names");
    return true;
}

const struct probe file_probes[] = {
    {1, p1_host_paths}, {2, p2_dot_dot}, {2, p2_chroot},    {5, p5_hard_links},
    {8, p8_launcher},   {9, p9_mounts},  {10, p10_devices}, {11, p11_setuid},
    {14, p14_sparse},   {16, p16_names}, {0, NULL},
};
