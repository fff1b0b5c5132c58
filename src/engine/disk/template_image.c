/* Template images: built once from a tree, verified, mounted once a node, removed. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/ext4.h"
#include "engine/disk/hash.h"
#include "engine/disk/pool.h"
#include "engine/disk/stream.h"
#include "engine/disk/treesize.h"
#include "engine/driver.h"

#define MIB (1ull << 20)
/* Tries with a larger image when the estimate was short; each adds an eighth. */
#define BUILD_TRIES 6
#define MANIFEST_MAX 65536

static char *template_path(const char *data_dir, const char *id, const char *suffix)
{
    return hf_xasprintf("%s/pool/templates/%s.%s", data_dir, id, suffix);
}

static int hash_path(const char *path, char hex[HF_HASH_HEX], uint64_t *ret_bytes)
{
    hf_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : hf_hash_file(fd, hex, ret_bytes);
}

static int write_manifest(const char *data_dir, const char *id, uint64_t bytes, const char *sha256)
{
    char now[HF_RFC3339_MAX];
    hf_rfc3339_ms(hf_real_ms(), now);
    json_t *j = json_pack("{s:s, s:I, s:s, s:s}", "id", id, "bytes", (json_int_t)bytes, "sha256", sha256,
                          "created_at", now);
    char *text = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    json_decref(j);
    if (!text)
        return -ENOMEM;
    hf_auto_free char *path = template_path(data_dir, id, "json");
    int r = hf_write_file_atomic(path, text, strlen(text), 0644);
    free(text);
    return r;
}

/* Makes the image in staging: sized by an estimate, larger when that was too small. */
static int make_image(const struct hf_staging *st, const char *rootfs_dir, struct hf_err *err)
{
    struct hf_tree_size size;
    int r = hf_tree_size(rootfs_dir, &size);
    if (r < 0)
        return hf_err_set(err, r, "cannot read the root file system %s: %s", rootfs_dir, strerror(-r));
    uint64_t bytes = hf_tree_image_bytes(&size);
    for (int try = 0;; try++) {
        r = hf_ext4_make(st->image, bytes, HF_EXT4_TEMPLATE, rootfs_dir, size.inodes, err);
        if (r != -ENOSPC || try == BUILD_TRIES)
            return r;
        bytes = (bytes + bytes / 8 + MIB - 1) / MIB * MIB;
    }
}

/* The manifest first: an image under its final name is complete by that. want (may be NULL): the hash that
 * the image must have. */
static int publish(const char *data_dir, const char *id, const char *image, const char *want,
                   uint64_t *ret_bytes, struct hf_err *err)
{
    char sha256[HF_HASH_HEX];
    uint64_t bytes = 0;
    hf_auto_free char *path = template_path(data_dir, id, "img");
    hf_auto_free char *dir = hf_xasprintf("%s/pool/templates", data_dir);
    int r = hash_path(image, sha256, &bytes);
    if (r == 0 && want && strcmp(sha256, want) != 0)
        return hf_err_set(err, -EUCLEAN, "the image of template %s is damaged (SHA-256 %s, expected %s)", id,
                          sha256, want);
    if (r == 0)
        r = hf_disk_sync_path(image);
    if (r == 0)
        r = write_manifest(data_dir, id, bytes, sha256);
    hf_killpoint("disk.template.manifest");
    if (r == 0 && renameat2(AT_FDCWD, image, AT_FDCWD, path, RENAME_NOREPLACE) < 0)
        r = -errno;
    if (r == 0)
        r = hf_disk_sync_path(dir);
    if (r < 0)
        return hf_err_set(err, r, "cannot store the template %s: %s", path, strerror(-r));
    *ret_bytes = bytes;
    return 0;
}

int hf_disk_template_build(const char *data_dir, const char *template_id, const char *rootfs_dir,
                           uint64_t *ret_bytes, struct hf_err *err)
{
    int r = hf_disk_check_name("template", template_id, err);
    if (r < 0)
        return r;
    hf_auto_free char *path = template_path(data_dir, template_id, "img");
    if (access(path, F_OK) == 0)
        return hf_err_set(err, -EEXIST, "the template %s exists already; remove it first", template_id);
    hf_auto_staging struct hf_staging st = HF_STAGING_INIT;
    r = hf_staging_begin(&st, data_dir, err);
    if (r == 0)
        r = make_image(&st, rootfs_dir, err);
    if (r == -ENOSPC)
        return hf_err_set(err, r, "the disk pool has no room for the image of template %s", template_id);
    if (r == 0)
        r = hf_ext4_check(st.image, err);
    hf_killpoint("disk.template.made");
    if (r == 0)
        r = publish(data_dir, template_id, st.image, NULL, ret_bytes, err);
    return r;
}

static int read_manifest(const char *data_dir, const char *id, uint64_t *ret_bytes,
                         char ret_sha256[HF_HASH_HEX], struct hf_err *err)
{
    hf_auto_free char *path = template_path(data_dir, id, "json");
    hf_auto_free char *text = NULL;
    int r = hf_read_file(path, MANIFEST_MAX, &text, NULL);
    if (r < 0)
        return hf_err_set(err, r, "cannot read the template's manifest %s: %s", path, strerror(-r));
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    json_int_t bytes = -1;
    const char *sha256 = NULL;
    bool good = j && json_unpack(j, "{s:I, s:s}", "bytes", &bytes, "sha256", &sha256) == 0 && bytes >= 0 &&
                strlen(sha256) == HF_HASH_HEX - 1;
    if (good) {
        *ret_bytes = (uint64_t)bytes;
        memcpy(ret_sha256, sha256, HF_HASH_HEX);
    }
    json_decref(j);
    return good ? 0 : hf_err_set(err, -EUCLEAN, "the template's manifest %s is damaged", path);
}

int hf_disk_template_install(const char *data_dir, const char *template_id, const char *image,
                             const char *sha256, struct hf_err *err)
{
    uint64_t bytes;
    hf_auto_free char *path = template_path(data_dir, template_id, "img");
    if (access(path, F_OK) == 0)
        return hf_err_set(err, -EEXIST, "the template %s exists already", template_id);
    return publish(data_dir, template_id, image, sha256, &bytes, err);
}

int hf_disk_template_open(const char *data_dir, const char *template_id, uint64_t *ret_bytes,
                          struct hf_err *err)
{
    struct stat st;
    hf_auto_free char *path = template_path(data_dir, template_id, "img");
    hf_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0)
        return hf_err_set(err, -errno, "cannot open the image of template %s: %s", template_id,
                          strerror(errno));
    *ret_bytes = (uint64_t)st.st_size;
    return hf_take_fd(&fd);
}

int hf_disk_template_hash(const char *data_dir, const char *template_id, char ret_hex[HF_HASH_HEX],
                          struct hf_err *err)
{
    int r = hf_disk_check_name("template", template_id, err);
    if (r < 0)
        return r;
    uint64_t bytes;
    hf_auto_free char *path = template_path(data_dir, template_id, "img");
    if (access(path, F_OK) < 0)
        return hf_err_set(err, -errno, "there is no template %s", template_id);
    return read_manifest(data_dir, template_id, &bytes, ret_hex, err);
}

int hf_disk_template_verify(const char *data_dir, const char *template_id, struct hf_err *err)
{
    int r = hf_disk_check_name("template", template_id, err);
    if (r < 0)
        return r;
    char want[HF_HASH_HEX], have[HF_HASH_HEX];
    uint64_t want_bytes = 0, bytes = 0;
    hf_auto_free char *path = template_path(data_dir, template_id, "img");
    if (access(path, F_OK) < 0)
        return hf_err_set(err, -errno, "there is no template %s", template_id);
    r = read_manifest(data_dir, template_id, &want_bytes, want, err);
    if (r < 0)
        return r;
    r = hash_path(path, have, &bytes);
    if (r < 0)
        return hf_err_set(err, r, "cannot read the template %s: %s", path, strerror(-r));
    if (bytes != want_bytes || strcmp(want, have) != 0)
        return hf_err_set(err, -EUCLEAN,
                          "the image of template %s is damaged (SHA-256 %s, expected %s); import it again",
                          template_id, have, want);
    return 0;
}
