#include "engine/disk/ext4.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

#include "engine/disk/tool.h"

#define E2FS "e2fsprogs"

/* Spelled out, so that neither the host's mke2fs.conf nor a newer mke2fs changes what we make. Without
 * resize_inode: images do not grow in place. Without 64bit: no image needs 16 TiB. */
#define EXT4_FEATURES                                                                                     \
    "none,extent,flex_bg,huge_file,dir_nlink,extra_isize,sparse_super,large_file,filetype,dir_index,ext_" \
    "attr"

/* lazy_itable_init=0 marks the inode tables as zeroed, which a new sparse file is: with it no ext4lazyinit
 * thread wakes in every mounted clone and writes 16 MiB of zeros. mke2fs punches holes first (its discard),
 * so that neither inode tables nor journal take space. */
#define EXT4_EXTENDED "lazy_itable_init=0,lazy_journal_init=1,packed_meta_blocks=1"

#define MIB (1ull << 20)
#define BYTES_PER_INODE 16384u /* 65,536 inodes in 1 GiB: a million files end at the inode limit */

static unsigned journal_mib(uint64_t bytes)
{
    if (bytes < 256 * MIB)
        return 4; /* the least that mke2fs makes with 4 KiB blocks */
    return bytes < 8192 * MIB ? 8 : 32;
}

static int make_fs(const char *path, enum hf_ext4_kind kind, const char *tree, uint64_t inodes,
                   uint64_t bytes, struct hf_err *err)
{
    char journal[32], inode_arg[32], extended[160], features[200];
    (void)snprintf(journal, sizeof(journal), "size=%u", journal_mib(bytes));
    (void)snprintf(inode_arg, sizeof(inode_arg), "%" PRIu64, inodes ? inodes : (uint64_t)BYTES_PER_INODE);
    (void)snprintf(extended, sizeof(extended), "%s%s", EXT4_EXTENDED,
                   kind == HF_EXT4_VOLUME ? ",root_owner=1000:1000" : "");
    (void)snprintf(features, sizeof(features), "%s,metadata_csum%s", EXT4_FEATURES,
                   kind == HF_EXT4_TEMPLATE ? "" : ",has_journal");
    const char *argv[24];
    size_t n = 0;
    argv[n++] = "mke2fs";
    argv[n++] = "-q";
    argv[n++] = "-F";
    argv[n++] = "-b4096";
    argv[n++] = "-I256";
    argv[n++] = "-m0";
    argv[n++] = "-O";
    argv[n++] = features;
    argv[n++] = "-E";
    argv[n++] = extended;
    argv[n++] = inodes ? "-N" : "-i";
    argv[n++] = inode_arg;
    if (kind != HF_EXT4_TEMPLATE) {
        argv[n++] = "-J";
        argv[n++] = journal;
    }
    if (tree) {
        argv[n++] = "-d";
        argv[n++] = tree;
    }
    argv[n++] = path;
    argv[n] = NULL;
    return hf_tool_run(E2FS, argv, NULL, err);
}

/* Mount options that travel in the super block, so that whoever mounts the image gets them.
 * A cell's layer is gone after a power cut anyway, since its processes are: without barriers a mount costs
 * half (0.6 against 1.3 ms) and an fsync in the box does not wait for the host's disk. Volumes keep barriers.
 */
static int set_defaults(const char *path, enum hf_ext4_kind kind, struct hf_err *err)
{
    if (kind != HF_EXT4_CELL)
        return 0;
    const char *argv[] = {"tune2fs", "-o", "user_xattr,acl,nobarrier,journal_data_writeback", path, NULL};
    return hf_tool_run(E2FS, argv, NULL, err);
}

static int drop_lost_found(const char *path, struct hf_err *err)
{
    const char *argv[] = {"debugfs", "-w", "-R", "rmdir lost+found", path, NULL};
    return hf_tool_run(E2FS, argv, NULL, err);
}

int hf_ext4_check(const char *path, struct hf_err *err)
{
    const char *argv[] = {"e2fsck", "-fn", path, NULL};
    int code = 0;
    int r = hf_tool_run(E2FS, argv, &code, err);
    if (r < 0)
        return r;
    return code == 0 ? 0 : hf_err_set(err, -EUCLEAN, "the image %s is damaged (e2fsck code %d)", path, code);
}

int hf_ext4_make(const char *path, uint64_t bytes, enum hf_ext4_kind kind, const char *tree, uint64_t inodes,
                 struct hf_err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return hf_err_set(err, -errno, "cannot make the image %s: %s", path, strerror(errno));
    int r = ftruncate(fd, (off_t)bytes) < 0 ? -errno : 0;
    (void)hf_close(fd);
    if (r < 0)
        (void)hf_err_set(err, r, "cannot make an image of %" PRIu64 " bytes at %s: %s", bytes, path,
                         strerror(-r));
    if (r == 0)
        r = make_fs(path, kind, tree, inodes, bytes, err);
    if (r == 0)
        r = drop_lost_found(path, err);
    if (r == 0)
        r = set_defaults(path, kind, err);
    if (r < 0)
        (void)unlink(path);
    return r;
}
