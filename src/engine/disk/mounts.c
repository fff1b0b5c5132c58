/* Facts about mounts and loop devices, from statx, /proc/self/mountinfo and sysfs. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/loop.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "base/path.h"
#include "engine/disk/pool.h"

#define MOUNTINFO_MAX (16u << 20)

bool hf_disk_is_mount(const char *path)
{
    struct statx st;
    if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &st) < 0)
        return false;
    return (st.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) && (st.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

/* Whether the loop device ("loop7") has image as its backing file. */
static bool loop_is_on(const char *device, const char *image)
{
    hf_auto_free char *path = hf_xasprintf("/sys/block/%s/loop/backing_file", device);
    hf_auto_free char *text = NULL;
    size_t n;
    if (hf_read_file(path, PATH_MAX, &text, &n) < 0)
        return false;
    text[strcspn(text, "\n")] = '\0';
    return strcmp(text, image) == 0;
}

bool hf_disk_image_attached(const char *image)
{
    DIR *d = opendir("/sys/block");
    if (!d)
        return false;
    bool found = false;
    for (struct dirent *e; !found && (e = readdir(d));)
        found = strncmp(e->d_name, "loop", 4) == 0 && loop_is_on(e->d_name, image);
    (void)closedir(d);
    return found;
}

static bool loop_is_of(const char *dev, const struct stat *image)
{
    struct loop_info64 info;
    hf_auto_close int fd = open(dev, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && ioctl(fd, LOOP_GET_STATUS64, &info) == 0 && info.lo_inode == image->st_ino &&
           info.lo_device == image->st_dev;
}

bool hf_disk_image_device(const char *image, char dev[HF_LOOP_DEV_MAX])
{
    struct stat st;
    DIR *d = stat(image, &st) == 0 ? opendir("/sys/block") : NULL;
    if (!d)
        return false;
    bool found = false;
    for (struct dirent *e; !found && (e = readdir(d));) {
        if (strncmp(e->d_name, "loop", 4) != 0)
            continue;
        (void)snprintf(dev, HF_LOOP_DEV_MAX, "/dev/%.*s", HF_LOOP_DEV_MAX - 6, e->d_name);
        found = loop_is_of(dev, &st);
    }
    (void)closedir(d);
    return found;
}

/* Undoes mountinfo's octal escapes (\040 for a blank …) in place. */
static void unescape(char *s)
{
    char *out = s;
    for (; *s; s++) {
        bool octal = s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
                     s[3] >= '0' && s[3] <= '7';
        if (octal) {
            *out++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 3;
        } else {
            *out++ = *s;
        }
    }
    *out = '\0';
}

/* Takes a line of mountinfo apart: field 5 is the mount point; the source is the second field after " - ". */
static bool parse_mount_line(char *line, char **ret_point, char **ret_source)
{
    char *tail = strstr(line, " - ");
    if (!tail)
        return false;
    *tail = '\0';
    char *rest = line, *field = NULL;
    for (int i = 0; i < 5; i++)
        if (!(field = strsep(&rest, " ")))
            return false;
    char *after = tail + 3;
    (void)strsep(&after, " "); /* the type */
    char *source = strsep(&after, " ");
    if (!source)
        return false;
    unescape(field);
    *ret_point = field;
    *ret_source = source;
    return true;
}

int hf_disk_each_mount(const char *image, int (*fn)(void *arg, const char *mount_point), void *arg)
{
    hf_auto_free char *text = NULL;
    int r = hf_read_file("/proc/self/mountinfo", MOUNTINFO_MAX, &text, NULL);
    if (r < 0)
        return r;
    char *rest = text;
    for (char *line; r >= 0 && (line = strsep(&rest, "\n"));) {
        char *point, *source;
        if (!parse_mount_line(line, &point, &source) || strncmp(source, "/dev/loop", 9) != 0)
            continue;
        if (loop_is_on(source + 5, image))
            r = fn(arg, point);
    }
    return r < 0 ? r : 0;
}
