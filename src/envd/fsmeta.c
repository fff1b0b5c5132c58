/* Metadata of files: extended attributes user.e2b.<key>. */
#include <stdio.h>
#include <sys/xattr.h>

#include "envd/fs.h"

#define XATTR_NAMES_MAX 65536u /* the kernel's own limit of a list (XATTR_LIST_MAX) */
#define XATTR_VALUE_MAX 65536u /* XATTR_SIZE_MAX */

static bool unsupported(int e)
{
    return e == ENOTSUP || e == EOPNOTSUPP || e == EPERM || e == ENOSYS;
}

int fs_metadata_check(const json_t *meta, struct hf_err *err)
{
    size_t total = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)meta, key, value)
    {
        const char *v = json_string_value(value);
        size_t key_n = strlen(key), value_n = json_string_length(value);
        if (!key_n)
            return hf_err_http(err, -EINVAL, 400, "invalid metadata: a key is empty");
        if (key_n > FS_METADATA_KEY_MAX)
            return hf_err_http(err, -EINVAL, 400, "invalid metadata: key '%.32s...' is longer than %u bytes",
                               key, FS_METADATA_KEY_MAX);
        for (size_t i = 0; i < key_n; i++) {
            if (key[i] < 0x20 || key[i] > 0x7e)
                return hf_err_http(err, -EINVAL, 400,
                                   "invalid metadata: key has characters other than printable ASCII");
        }
        for (size_t i = 0; i < value_n; i++) {
            if (v[i] < 0x20 || v[i] > 0x7e)
                return hf_err_http(
                    err, -EINVAL, 400,
                    "invalid metadata: value of '%s' has characters other than printable ASCII", key);
        }
        total += key_n + value_n;
    }
    if (total > FS_METADATA_TOTAL_MAX)
        return hf_err_http(err, -EINVAL, 400, "invalid metadata: %zu bytes in total, at most %u are kept",
                           total, FS_METADATA_TOTAL_MAX);
    return 0;
}

/* Removes the attributes that the new set does not have. */
static void drop_old(int fd, const json_t *meta)
{
    hf_auto_free char *names = hf_xmalloc(XATTR_NAMES_MAX);
    ssize_t n = flistxattr(fd, names, XATTR_NAMES_MAX);
    for (ssize_t i = 0; i < n;) {
        const char *name = names + i;
        i += (ssize_t)strlen(name) + 1;
        if (strncmp(name, FS_METADATA_PREFIX, strlen(FS_METADATA_PREFIX)) != 0)
            continue;
        if (!json_object_get(meta, name + strlen(FS_METADATA_PREFIX)))
            (void)fremovexattr(fd, name);
    }
}

int fs_metadata_write(int fd, const json_t *meta, const char *path, struct hf_err *err)
{
    if (flistxattr(fd, NULL, 0) > 0)
        drop_old(fd, meta);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)meta, key, value)
    {
        char name[sizeof(FS_METADATA_PREFIX) + FS_METADATA_KEY_MAX];
        (void)snprintf(name, sizeof(name), FS_METADATA_PREFIX "%s", key);
        if (fsetxattr(fd, name, json_string_value(value), json_string_length(value), 0) == 0)
            continue;
        if (unsupported(errno))
            return hf_err_http(err, -EOPNOTSUPP, 400,
                               "invalid metadata: the file system of '%s' keeps no user attributes", path);
        return fs_err(err, -errno, "writing metadata of", path);
    }
    return 0;
}

json_t *fs_metadata_read(const char *path)
{
    char small[1024];
    hf_auto_free char *big = NULL;
    char *names = small;
    ssize_t n = listxattr(path, small, sizeof(small));
    if (n < 0 && errno == ERANGE) {
        names = big = hf_xmalloc(XATTR_NAMES_MAX);
        n = listxattr(path, big, XATTR_NAMES_MAX);
    }
    json_t *meta = NULL;
    hf_auto_free char *value = NULL;
    for (ssize_t i = 0; i < n;) {
        const char *name = names + i;
        i += (ssize_t)strlen(name) + 1;
        if (strncmp(name, FS_METADATA_PREFIX, strlen(FS_METADATA_PREFIX)) != 0)
            continue;
        if (!value)
            value = hf_xmalloc(XATTR_VALUE_MAX);
        ssize_t len = getxattr(path, name, value, XATTR_VALUE_MAX);
        if (len < 0)
            continue;
        if (!meta)
            meta = json_object();
        const char *key = name + strlen(FS_METADATA_PREFIX);
        json_t *text = json_stringn(value, (size_t)len);
        /* Somebody else may have stored bytes that JSON can't carry; those are not shown. */
        if (text)
            (void)json_object_set_new(meta, key, text);
    }
    return meta;
}
