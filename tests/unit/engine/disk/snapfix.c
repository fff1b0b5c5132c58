#include "snapfix.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/disk/hash.h"
#include "engine/disk/snapshot.h"
#include "engine/driver.h"

void snapfix_template(const char *id, const char *content)
{
    unsigned char sum[HF_SHA256_LEN];
    char hex[HF_HASH_HEX];
    hf_sha256_of(content, strlen(content), sum);
    hf_hex(sum, sizeof(sum), hex);
    hf_auto_free char *image = hf_xasprintf("%s/pool/templates/%s.img", fixture_data, id);
    hf_auto_free char *json = hf_xasprintf("%s/pool/templates/%s.json", fixture_data, id);
    hf_auto_free char *text =
        hf_xasprintf("{\"id\": \"%s\", \"bytes\": %zu, \"sha256\": \"%s\"}", id, strlen(content), hex);
    fixture_write(image, content, strlen(content), 0600);
    fixture_write(json, text, strlen(text), 0600);
}

int snapfix_setup(void **state)
{
    struct hf_err err = {0};
    bool reflink = false;
    assert_ok(hf_disk_pool_open(fixture_data, FIXTURE_POOL_BYTES, &reflink, &err), &err);
    snapfix_template("base", "not really an image");
    return 0;
}

static void put(int fd, unsigned char c, size_t n, off_t at)
{
    hf_auto_free char *p = hf_xmalloc(n);
    memset(p, c, n);
    assert_int_equal(pwrite(fd, p, n, at), (ssize_t)n);
}

void snapfix_fill(const char *dir, unsigned char seed)
{
    hf_auto_free char *disk = hf_xasprintf("%s/disk.img", dir);
    hf_auto_free char *box = hf_xasprintf("%s/box", dir);
    hf_auto_close int fd = open(disk, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, SNAPFIX_DISK), 0);
    put(fd, (unsigned char)(seed + 1), 100000, 4096);
    put(fd, (unsigned char)(seed + 2), 4096, SNAPFIX_DISK - 4096);
    fixture_write(box, "{}", 2, 0600);
}

void snapfix_fill_memory(const char *dir, unsigned char seed)
{
    hf_auto_free char *mem = hf_xasprintf("%s/mem", dir);
    hf_auto_free char *pages = hf_xasprintf("%s/mem/pages-1.img", dir);
    hf_auto_free char *core = hf_xasprintf("%s/mem/core-1.img", dir);
    hf_auto_free char *tar = hf_xasprintf("%s/tmpfs.tar", dir);
    assert_int_equal(mkdir(mem, 0700), 0);
    hf_auto_close int fd = open(pages, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    put(fd, (unsigned char)(seed + 3), 3u << 20, 0);
    fixture_write(core, "core", 4, 0600);
    fixture_write(tar, "", 0, 0600);
}

void snapfix_commit(const char *id, bool memory)
{
    struct hf_err err = {0};
    hf_cleanup(hf_snapshot_meta_done) struct hf_snapshot_meta m = {
        .memory = memory, .template_id = "base", .sandbox_id = "sb1", .generation = 7, .created_ms = 1234567};
    (void)snprintf(m.id, sizeof(m.id), "%s", id);
    m.config =
        json_pack("{s:s, s:f, s:{s:[i, b]}}", "note", "ä \"quoted\"", "real", 0.1, "deep", "list", -1, 1);
    assert_ok(hf_snapshot_commit(fixture_data, &m, &err), &err);
}

void snapfix_make(const char *id, bool memory, unsigned char seed)
{
    struct hf_err err = {0};
    hf_auto_free char *dir = NULL;
    assert_ok(hf_snapshot_begin(fixture_data, id, &dir, &err), &err);
    snapfix_fill(dir, seed);
    if (memory)
        snapfix_fill_memory(dir, seed);
    snapfix_commit(id, memory);
}

void snapfix_damage(const char *id, const char *part, long at)
{
    hf_auto_free char *path = hf_xasprintf("%s/pool/snapshots/%s/%s", fixture_data, id, part);
    hf_auto_close int fd = open(path, O_RDWR | O_CLOEXEC);
    char c;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= 1;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
}

int snapfix_teardown(void **state)
{
    struct hf_err err = {0};
    return hf_disk_pool_close(fixture_data, fixture_run, &err);
}
