/* Snapshots that travel: export, and import into the pool of another host. */
#include "fixture.h"

#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/manifest.h"
#include "engine/disk/snapshot.h"
#include "engine/driver.h"
#include "snapfix.h"
#include "tarball.h"

static char other_data[80]; /* the other host */

static int setup(void **state)
{
    struct hf_err err = {0};
    bool reflink;
    (void)snprintf(other_data, sizeof(other_data), "%s/other", fixture_top);
    if (snapfix_setup(state) != 0)
        return 1;
    snapfix_make("full", true, 5);
    assert_ok(hf_disk_pool_open(other_data, FIXTURE_POOL_BYTES, &reflink, &err), &err);
    return 0;
}

static int teardown(void **state)
{
    struct hf_err err = {0};
    (void)snapfix_teardown(state);
    return hf_disk_pool_close(other_data, fixture_run, &err);
}

static int export_of(const char *id, bool with_template)
{
    struct hf_err err = {0};
    int fd = memfd_create("export", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_ok(hf_snapshot_export(fixture_data, id, with_template, fd, &err), &err);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    return fd;
}

static void assert_no_trace(const char *id)
{
    hf_auto_free char *dir = hf_xasprintf("%s/pool/snapshots/%s", other_data, id);
    assert_false(fixture_exists(dir));
    struct hf_disk_usage usage;
    struct hf_err err = {0};
    assert_ok(hf_disk_pool_usage(other_data, &usage, &err), &err);
    assert_int_equal(usage.staging, 0);
}

static void assert_refused(int fd, int want, const char *text)
{
    struct hf_err err = {0};
    int r = hf_snapshot_import(other_data, "bad", fd, NULL, &err);
    if (r != want || !strstr(err.msg, text))
        fail_msg("%d \"%s\", expected %d with \"%s\"", r, err.msg, want, text);
    assert_no_trace("bad");
    (void)close(fd);
}

static void travels_with_its_template(void **state)
{
    struct hf_err err = {0};
    hf_cleanup(hf_snapshot_meta_done) struct hf_snapshot_meta meta = {0};
    unsigned unsealed = 9;
    assert_refused(export_of("full", false), -EXDEV, "template base");
    hf_auto_close int fd = export_of("full", true);
    assert_ok(hf_snapshot_import(other_data, "new", fd, &meta, &err), &err);
    assert_string_equal(meta.id, "new");
    assert_true(meta.memory);
    assert_int_equal(meta.generation, 7);
    assert_string_equal(json_string_value(json_object_get(meta.config, "note")), "ä \"quoted\"");
    assert_ok(hf_disk_template_verify(other_data, "base", &err), &err);
    assert_ok(hf_snapshot_verify(other_data, "new", &unsealed, &err), &err);
    assert_int_equal(unsealed, 0);
    /* The holes are holes again. */
    struct stat st;
    hf_auto_free char *disk = hf_xasprintf("%s/pool/snapshots/new/disk.img", other_data);
    assert_int_equal(stat(disk, &st), 0);
    assert_int_equal(st.st_size, SNAPFIX_DISK);
    assert_true(st.st_blocks * 512 < 1 << 20);
    /* Now that the template is there, it need not come along. */
    hf_auto_close int again = export_of("full", false);
    assert_ok(hf_snapshot_import(other_data, "new2", again, NULL, &err), &err);
    hf_auto_close int twice = export_of("full", false);
    assert_int_equal(hf_snapshot_import(other_data, "new2", twice, NULL, &err), -EEXIST);
    assert_ok(hf_snapshot_open(other_data, "new2", NULL, &err), &err);
}

/* The imported one can be exported again, and is what it was. */
static void an_empty_disk_travels(void **state)
{
    struct hf_err err = {0};
    hf_auto_free char *dir = NULL;
    assert_ok(hf_snapshot_begin(fixture_data, "hole", &dir, &err), &err);
    hf_auto_free char *disk = hf_xasprintf("%s/disk.img", dir);
    fixture_write(disk, "", 0, 0600);
    assert_int_equal(truncate(disk, 3ll << 30), 0);
    snapfix_commit("hole", false);
    hf_auto_close int fd = export_of("hole", false);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_true(st.st_size < 65536);
    hf_cleanup(hf_snapshot_meta_done) struct hf_snapshot_meta meta = {0};
    assert_ok(hf_snapshot_import(other_data, "hole", fd, &meta, &err), &err);
    assert_int_equal(meta.disk_bytes, 3ll << 30);
}

static void another_template_of_that_name_is_not_taken(void **state)
{
    struct hf_err err = {0};
    hf_auto_close int fd = export_of("full", true);
    hf_auto_free char *json = hf_xasprintf("%s/pool/templates/base.json", other_data);
    hf_auto_free char *text = NULL;
    assert_int_equal(hf_read_file(json, 4096, &text, NULL), 0);
    char *hash = strstr(text, "sha256");
    hash[10] = hash[10] == '0' ? '1' : '0';
    fixture_write(json, text, strlen(text), 0600);
    assert_refused(hf_take_fd(&fd), -EXDEV, "the one here has");
    hash[10] = 'x';
    assert_ok(hf_disk_template_remove(other_data, "base", &err), &err);
}

static void a_damaged_stream_is_refused(void **state)
{
    hf_auto_close int good = export_of("full", true);
    off_t size = lseek(good, 0, SEEK_END);
    hf_auto_free char *copy = hf_xmalloc((size_t)size);
    for (int i = 1; i < 12; i++) {
        /* Cut off. */
        int fd = memfd_create("cut", MFD_CLOEXEC);
        size_t n = (size_t)(size * i / 12);
        assert_int_equal(pread(good, copy, (size_t)size, 0), size);
        assert_int_equal(write(fd, copy, n), (ssize_t)n);
        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        struct hf_err err = {0};
        int r = hf_snapshot_import(other_data, "bad", fd, NULL, &err);
        if (r != -EUCLEAN)
            fail_msg("cut at %zu of %ld: %d %s", n, (long)size, r, err.msg);
        assert_no_trace("bad");
        (void)close(fd);
        /* One bit. zstd notices or a hash does. */
        fd = memfd_create("bit", MFD_CLOEXEC);
        copy[n] ^= 4;
        assert_int_equal(write(fd, copy, (size_t)size), size);
        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        r = hf_snapshot_import(other_data, "bad", fd, NULL, &err);
        if (r >= 0)
            fail_msg("a bit at %zu of %ld was not noticed", n, (long)size);
        assert_no_trace("bad");
        (void)close(fd);
    }
    assert_refused(open("/dev/null", O_RDONLY | O_CLOEXEC), -EUCLEAN, "refused");
}

/* A stream with an honest manifest for disk.img (4096 bytes of 'd') and box, followed by whatever `more`
 * packs. */
static int forged(void (*more)(struct tarball *t), bool sealed)
{
    char hex[HF_HASH_HEX], page[4097];
    memset(page, 'd', 4096);
    page[4096] = '\0';
    hf_auto_manifest struct hf_manifest m = {.meta = {.id = "x", .template_id = "base", .disk_bytes = 4096}};
    struct hf_err err = {0};
    int fd = memfd_create("page", MFD_CLOEXEC);
    assert_int_equal(write(fd, page, 4096), 4096);
    assert_int_equal(hf_hash_data(fd, NULL, hex), 0);
    (void)close(fd);
    assert_ok(hf_host_read(&m.host, &err), &err);
    memset(m.meta.template_sha256, 'a', 64);
    m.meta.config = json_object();
    m.parts = hf_xcalloc(2, sizeof(*m.parts));
    m.n_parts = 2;
    m.parts[0] = (struct hf_snapshot_part){.name = "box", .bytes = 0};
    m.parts[1] = (struct hf_snapshot_part){.name = "disk.img", .bytes = 4096};
    fd = memfd_create("empty", MFD_CLOEXEC);
    assert_int_equal(hf_hash_data(fd, NULL, m.parts[0].sha256), 0);
    (void)close(fd);
    if (sealed)
        memcpy(m.parts[1].sha256, hex, sizeof(hex));
    hf_auto_free char *text = hf_manifest_text(&m);
    struct tarball t;
    tarball_open(&t, ARCHIVE_FILTER_ZSTD);
    tarball_add(&t, "manifest.json", AE_IFREG, 0600, text);
    more(&t);
    return tarball_close(&t);
}

static void put_disk(struct tarball *t, char c)
{
    char page[4097];
    memset(page, c, 4096);
    page[4096] = '\0';
    tarball_add(t, "disk.img", AE_IFREG, 0600, page);
}

static void honest(struct tarball *t)
{
    tarball_add(t, "box", AE_IFREG, 0600, "");
    put_disk(t, 'd');
}
static void unknown_part(struct tarball *t)
{
    tarball_add(t, "../../../etc/cron.d/x", AE_IFREG, 0600, "evil");
}
static void twice(struct tarball *t)
{
    put_disk(t, 'd');
    put_disk(t, 'd');
}
static void linked(struct tarball *t)
{
    tarball_add(t, "disk.img", AE_IFLNK, 0777, "/etc/passwd");
}
static void hard_linked(struct tarball *t)
{
    tarball_add(t, "box", AE_IFREG, 0600, "");
    tarball_add_hardlink(t, "disk.img", "box");
}
static void short_part(struct tarball *t)
{
    tarball_add(t, "disk.img", AE_IFREG, 0600, "d");
}
static void other_bytes(struct tarball *t)
{
    tarball_add(t, "box", AE_IFREG, 0600, "");
    put_disk(t, 'e');
}
static void without_disk(struct tarball *t)
{
    tarball_add(t, "box", AE_IFREG, 0600, "");
}
static void with_wrong_template(struct tarball *t)
{
    honest(t);
    tarball_add(t, "template.img", AE_IFREG, 0600, "not what the hash says");
}
static void second_manifest(struct tarball *t)
{
    tarball_add(t, "manifest.json", AE_IFREG, 0600, "{}");
}

static void a_forged_stream_is_refused(void **state)
{
    static const struct {
        void (*more)(struct tarball *t);
        int r;
        const char *text;
    } cases[] = {
        {unknown_part, -EUCLEAN, "knows no such part"},
        {twice, -EUCLEAN, "disk.img: it is there twice"},
        {linked, -EUCLEAN, "only files"},
        {hard_linked, -EUCLEAN, "only files"},
        {short_part, -EUCLEAN, "its size is not"},
        {other_bytes, -EUCLEAN, "disk.img: this part is damaged"},
        {without_disk, -EUCLEAN, "disk.img: this part is missing"},
        {honest, -EXDEV, "template base"},
        {with_wrong_template, -EUCLEAN, "the image of template base"},
        {second_manifest, -EUCLEAN, "knows no such part"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++)
        assert_refused(forged(cases[i].more, true), cases[i].r, cases[i].text);
    assert_refused(forged(honest, false), -EUCLEAN, "hash is missing");
    struct tarball t;
    tarball_open(&t, ARCHIVE_FILTER_ZSTD);
    tarball_add(&t, "disk.img", AE_IFREG, 0600, "x");
    assert_refused(tarball_close(&t), -EUCLEAN, "first entry");
}

/* Takes what is left of the other pool, to the last block. */
static void fill_pool(const char *path)
{
    hf_auto_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    off_t at = 0;
    for (off_t step = 256 << 20; step >= 4096;) {
        if (fallocate(fd, 0, at, step) == 0)
            at += step;
        else if (errno == ENOSPC)
            step /= 2;
        else
            fail_msg("fallocate: %s", strerror(errno));
    }
}

static void a_full_disk_leaves_nothing(void **state)
{
    struct hf_err err = {0};
    struct hf_disk_pool_info info;
    hf_disk_pool_info(other_data, &info);
    if (!info.on_image)
        skip(); /* it would be the host's disk that fills up */
    hf_auto_free char *filler = hf_xasprintf("%s/pool/filler", other_data);
    fill_pool(filler);
    hf_auto_close int fd = export_of("full", true);
    int r = hf_snapshot_import(other_data, "bad", fd, NULL, &err);
    assert_int_equal(unlink(filler), 0);
    if (r != -ENOSPC)
        fail_msg("%d %s", r, err.msg);
    assert_no_trace("bad");
    hf_auto_close int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_int_equal(hf_snapshot_export(fixture_data, "full", false, full, &err), -ENOSPC);
    assert_ok(hf_snapshot_open(fixture_data, "full", NULL, &err), &err);
}

/* ---- kill points ---- */

static int step(const char *what)
{
    struct hf_err err = {0};
    (void)snprintf(other_data, sizeof(other_data), "%s/other", fixture_top);
    hf_auto_free char *path = hf_xasprintf("%s/stream", fixture_top);
    hf_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 || hf_snapshot_import(other_data, "killed", fd, NULL, &err) < 0;
}

static void a_killed_import_leaves_nothing_or_a_snapshot(void **state)
{
    static const char *const points[] = {"snapshot.begun",   "snapshot.unpacked", "disk.template.manifest",
                                         "snapshot.settled", "snapshot.synced",   "snapshot.written",
                                         "snapshot.renamed", "snapshot.committed"};
    hf_auto_free char *path = hf_xasprintf("%s/stream", fixture_top);
    hf_auto_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct hf_err err = {0};
    assert_ok(hf_snapshot_export(fixture_data, "full", true, fd, &err), &err);
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        fixture_kill_at("import", points[i]);
        int r = hf_snapshot_open(other_data, "killed", NULL, &err);
        if (r != (i >= 6 ? 0 : -ENOENT))
            fail_msg("after %s: %d %s", points[i], r, err.msg);
        assert_int_equal(fixture_in_child("import", NULL), r == 0 ? 256 : 0);
        assert_ok(hf_snapshot_open(other_data, "killed", NULL, &err), &err);
        assert_ok(hf_snapshot_remove(other_data, "killed", &err), &err);
        assert_ok(hf_disk_template_remove(other_data, "base", &err), &err);
    }
}

static int tests(void)
{
    const struct CMUnitTest list[] = {
        cmocka_unit_test(travels_with_its_template),
        cmocka_unit_test(an_empty_disk_travels),
        cmocka_unit_test(another_template_of_that_name_is_not_taken),
        cmocka_unit_test(a_damaged_stream_is_refused),
        cmocka_unit_test(a_forged_stream_is_refused),
        cmocka_unit_test(a_full_disk_leaves_nothing),
        cmocka_unit_test(a_killed_import_leaves_nothing_or_a_snapshot),
    };
    return cmocka_run_group_tests_name("snapshot streams", list, setup, teardown);
}

int main(int argc, char **argv)
{
    return fixture_main(argc, argv, tests, step);
}
