/* The life of snapshots in a pool: one from its commit on, refused when damaged, old or new after a kill. */
#include "fixture.h"

#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/path.h"
#include "engine/disk/disk.h"
#include "engine/disk/hash.h"
#include "engine/disk/snapshot.h"
#include "engine/driver.h"
#include "snapfix.h"

static char *file_of(const char *id, const char *name)
{
    return hf_xasprintf("%s/pool/snapshots/%s/%s", fixture_data, id, name);
}

static void seal(const char *id)
{
    struct hf_err err = {0};
    assert_ok(hf_snapshot_seal(fixture_data, id, NULL, &err), &err);
}

static unsigned unsealed(const char *id)
{
    unsigned n = 1000;
    struct hf_err err = {0};
    assert_ok(hf_snapshot_verify(fixture_data, id, &n, &err), &err);
    return n;
}

static void assert_refused(const char *id, int want, const char *text)
{
    struct hf_err err = {0};
    int r = hf_snapshot_open(fixture_data, id, NULL, &err);
    if (r != want || !strstr(err.msg, text))
        fail_msg("%s: %d \"%s\", expected %d with \"%s\"", id, r, err.msg, want, text);
}

static void a_snapshot_is_one_after_its_commit(void **state)
{
    struct hf_err err = {0};
    hf_auto_free char *dir = NULL;
    hf_cleanup(hf_snapshot_meta_done) struct hf_snapshot_meta meta = {0};
    assert_ok(hf_snapshot_begin(fixture_data, "life", &dir, &err), &err);
    snapfix_fill(dir, 0);
    assert_int_equal(hf_snapshot_open(fixture_data, "life", NULL, &err), -ENOENT);
    snapfix_commit("life", false);
    assert_ok(hf_snapshot_open(fixture_data, "life", &meta, &err), &err);
    assert_string_equal(meta.id, "life");
    assert_false(meta.memory);
    assert_string_equal(meta.template_id, "base");
    assert_int_equal(strlen(meta.template_sha256), 64);
    assert_int_equal(meta.disk_bytes, SNAPFIX_DISK);
    assert_int_equal(meta.generation, 7);
    assert_string_equal(json_string_value(json_object_get(meta.config, "note")), "ä \"quoted\"");
    free(hf_take_ptr(dir));
    assert_int_equal(hf_snapshot_begin(fixture_data, "life", &dir, &err), -EEXIST);
    snapfix_commit("life", false); /* once more changes nothing */
    assert_ok(hf_snapshot_remove(fixture_data, "life", &err), &err);
    assert_refused("life", -ENOENT, "no snapshot life");
    assert_ok(hf_snapshot_remove(fixture_data, "life", &err), &err);
}

static void what_is_no_snapshot_is_not_committed(void **state)
{
    struct hf_err err = {0};
    hf_auto_free char *dir = NULL, *again = NULL;
    struct hf_snapshot_meta m = {.id = "odd", .template_id = "base"};
    assert_ok(hf_snapshot_begin(fixture_data, "odd", &dir, &err), &err);
    assert_int_equal(hf_snapshot_commit(fixture_data, &m, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "no disk.img"));
    snapfix_fill(dir, 0);
    m.memory = true;
    assert_int_equal(hf_snapshot_commit(fixture_data, &m, &err), -EINVAL);
    m.memory = false;
    (void)snprintf(m.template_id, sizeof(m.template_id), "nowhere");
    assert_int_equal(hf_snapshot_commit(fixture_data, &m, &err), -ENOENT);
    (void)snprintf(m.template_id, sizeof(m.template_id), "base");
    hf_auto_free char *link = file_of("odd", "link");
    assert_int_equal(symlink("/etc/passwd", link), 0);
    assert_int_equal(hf_snapshot_commit(fixture_data, &m, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "link"));
    assert_int_equal(unlink(link), 0);
    hf_auto_free char *text = hf_xcalloc(1, HF_SNAPSHOT_MANIFEST_MAX + 1);
    memset(text, 'x', HF_SNAPSHOT_MANIFEST_MAX);
    m.config = json_pack("{s:s}", "large", text);
    assert_int_equal(hf_snapshot_commit(fixture_data, &m, &err), -EMSGSIZE);
    hf_snapshot_meta_done(&m);
    hf_auto_free char *many = file_of("odd", "many");
    assert_int_equal(mkdir(many, 0700), 0);
    for (unsigned i = 0; i < HF_SNAPSHOT_PART_MAX; i++) {
        hf_auto_free char *one = hf_xasprintf("%s/%u", many, i);
        fixture_write(one, "", 0, 0600);
    }
    assert_int_equal(hf_snapshot_commit(fixture_data, &m, &err), -EMSGSIZE);
    assert_int_equal(hf_snapshot_open(fixture_data, "odd", NULL, &err), -ENOENT);
    /* A new begin takes what was left away. */
    assert_ok(hf_snapshot_begin(fixture_data, "odd", &again, &err), &err);
    assert_false(fixture_exists(link));
    assert_int_equal(hf_snapshot_begin(fixture_data, "../odd", &again, &err), -EINVAL);
    assert_ok(hf_snapshot_remove(fixture_data, "odd", &err), &err);
}

static void large_parts_are_hashed_by_the_seal(void **state)
{
    struct hf_err err = {0};
    bool stop = true;
    snapfix_make("sealed", true, 0);
    assert_int_equal(unsealed("sealed"), 2); /* disk.img, mem/pages-1.img */
    assert_int_equal(hf_snapshot_seal(fixture_data, "sealed", &stop, &err), -ECANCELED);
    assert_int_equal(unsealed("sealed"), 2);
    seal("sealed");
    assert_int_equal(unsealed("sealed"), 0);
    seal("sealed");
    assert_int_equal(hf_snapshot_seal(fixture_data, "none", NULL, &err), -ENOENT);
}

static void damage_is_found_and_named(void **state)
{
    static const struct {
        const char *part;
        long at;
    } bits[] = {{"disk.img", 4096}, {"mem/pages-1.img", 3000000}, {"mem/core-1.img", 2}, {"box", 0}};
    for (size_t i = 0; i < HF_ARRAY_LEN(bits); i++) {
        struct hf_err err = {0};
        unsigned n;
        snapfix_make("bad", true, 0);
        seal("bad");
        snapfix_damage("bad", bits[i].part, bits[i].at);
        assert_refused("bad", -EUCLEAN, bits[i].part);
        assert_int_equal(hf_snapshot_verify(fixture_data, "bad", &n, &err), -EUCLEAN);
        snapfix_damage("bad", bits[i].part, bits[i].at);
        assert_ok(hf_snapshot_open(fixture_data, "bad", NULL, &err), &err); /* as it was: good again */
        assert_ok(hf_snapshot_remove(fixture_data, "bad", &err), &err);
    }
}

static void a_short_or_missing_part_is_named(void **state)
{
    struct hf_err err = {0};
    snapfix_make("short", true, 0);
    hf_auto_free char *pages = file_of("short", "mem/pages-1.img");
    hf_auto_free char *tar = file_of("short", "tmpfs.tar");
    assert_int_equal(truncate(pages, 4096), 0);
    assert_refused("short", -EUCLEAN, "mem/pages-1.img");
    assert_int_equal(truncate(pages, 3 << 20), 0);
    assert_int_equal(unlink(tar), 0);
    assert_refused("short", -EUCLEAN, "tmpfs.tar is missing");
    assert_int_equal(symlink("/etc/passwd", tar), 0);
    assert_int_equal(hf_snapshot_open(fixture_data, "short", NULL, &err), -ELOOP);
    assert_ok(hf_snapshot_remove(fixture_data, "short", &err), &err);
}

static void edit_manifest(const char *id, const char *from, const char *to)
{
    hf_auto_free char *path = file_of(id, "manifest.json");
    hf_auto_free char *text = NULL;
    assert_int_equal(hf_read_file(path, HF_SNAPSHOT_MANIFEST_MAX, &text, NULL), 0);
    char *at = strstr(text, from);
    assert_non_null(at);
    hf_auto_free char *changed = hf_xasprintf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fixture_write(path, changed, strlen(changed), 0600);
}

static void a_foreign_manifest_is_refused(void **state)
{
    struct hf_err err = {0};
    snapfix_make("mine", false, 0);
    hf_auto_free char *dir = file_of("mine", ""), *other = file_of("other", "");
    assert_int_equal(rename(dir, other), 0);
    assert_refused("other", -EUCLEAN, "that of mine");
    assert_ok(hf_snapshot_remove(fixture_data, "other", &err), &err);

    snapfix_make("newer", false, 0);
    edit_manifest("newer", "\"version\": 1", "\"version\": 2");
    assert_refused("newer", -EPROTONOSUPPORT, "version 2");
    assert_ok(hf_snapshot_remove(fixture_data, "newer", &err), &err);

    snapfix_make("bits", false, 0);
    edit_manifest("bits", "quoted", "quotec");
    assert_refused("bits", -EUCLEAN, "checksum");
    assert_ok(hf_snapshot_remove(fixture_data, "bits", &err), &err);
}

static void the_template_must_be_the_same(void **state)
{
    struct hf_err err = {0};
    snapfix_make("based", false, 0);
    snapfix_template("base", "another image");
    assert_refused("based", -EXDEV, "template base");
    hf_auto_free char *image = hf_xasprintf("%s/pool/templates/base.img", fixture_data);
    assert_int_equal(unlink(image), 0);
    assert_refused("based", -EXDEV, "no template base");
    snapfix_template("base", "not really an image");
    assert_ok(hf_snapshot_open(fixture_data, "based", NULL, &err), &err);
    assert_ok(hf_snapshot_remove(fixture_data, "based", &err), &err);
}

static void a_clone_stands_alone(void **state)
{
    struct hf_err err = {0};
    hf_cleanup(hf_snapshot_meta_done) struct hf_snapshot_meta meta = {0};
    uint64_t exclusive = 1, shared = 0;
    struct hf_disk_pool_info info;
    snapfix_make("first", true, 9);
    seal("first");
    assert_ok(hf_snapshot_clone(fixture_data, "first", "second", &err), &err);
    assert_int_equal(hf_snapshot_clone(fixture_data, "first", "second", &err), -EEXIST);
    assert_int_equal(hf_snapshot_clone(fixture_data, "none", "third", &err), -ENOENT);
    hf_disk_pool_info(fixture_data, &info);
    assert_ok(hf_snapshot_usage(fixture_data, "second", &exclusive, &shared, &err), &err);
    if (info.reflink) {
        assert_true(shared >= (3u << 20) + 100000);
        assert_true(exclusive < 65536); /* manifest and stamps */
    }
    assert_ok(hf_snapshot_remove(fixture_data, "first", &err), &err);
    assert_ok(hf_snapshot_open(fixture_data, "second", &meta, &err), &err);
    assert_string_equal(meta.parent, "first");
    assert_true(meta.memory);
    assert_int_equal(unsealed("second"), 0);
    /* XFS gives up the removed file's references a little later. */
    for (int i = 0; i < 1000 && shared; i++) {
        uint64_t left, total;
        assert_int_equal(hf_disk_pool_space(fixture_data, &left, &total), 0);
        (void)usleep(10000);
        assert_ok(hf_snapshot_usage(fixture_data, "second", &exclusive, &shared, &err), &err);
    }
    assert_int_equal(shared, 0);
    assert_true(exclusive >= (3u << 20) + 100000);
    assert_ok(hf_snapshot_remove(fixture_data, "second", &err), &err);
    assert_int_equal(hf_snapshot_usage(fixture_data, "second", &exclusive, &shared, &err), -ENOENT);
}

static void a_damaged_original_does_not_make_a_good_clone(void **state)
{
    struct hf_err err = {0};
    snapfix_make("rotten", true, 0);
    seal("rotten");
    snapfix_damage("rotten", "mem/core-1.img", 1);
    int r = hf_snapshot_clone(fixture_data, "rotten", "copy", &err);
    if (r == 0)
        assert_refused("copy", -EUCLEAN, "mem/core-1.img");
    assert_ok(hf_snapshot_remove(fixture_data, "copy", &err), &err);
    assert_ok(hf_snapshot_remove(fixture_data, "rotten", &err), &err);
}

/* A disk of several regions, all of them data. */
static void put_regions(const char *path, unsigned n)
{
    hf_auto_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    hf_auto_free char *p = hf_xmalloc(HF_HASH_REGION);
    for (unsigned i = 0; i < n; i++) {
        memset(p, (int)i + 1, HF_HASH_REGION);
        assert_int_equal(pwrite(fd, p, HF_HASH_REGION, (off_t)i * HF_HASH_REGION), HF_HASH_REGION);
    }
    assert_int_equal(fsync(fd), 0);
}

static void write_at(const char *path, off_t at)
{
    hf_auto_close int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "changed", 7, at), 7);
    assert_int_equal(fsync(fd), 0);
}

/* Leaves that are wrong come through where the blocks are the same, and only there: nothing was read. */
static void shared_blocks_are_not_read(void **state)
{
    struct hf_err err = {0};
    hf_auto_free char *one = hf_xasprintf("%s/pool/one", fixture_data);
    hf_auto_free char *two = hf_xasprintf("%s/pool/two", fixture_data);
    put_regions(one, 6);
    if (hf_disk_clone(one, two, &err) != 0)
        skip();
    write_at(two, 2 * HF_HASH_REGION + 5000);
    hf_auto_close int two_fd = open(two, O_RDWR | O_CLOEXEC);
    assert_int_equal(fallocate(two_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * HF_HASH_REGION, 4096),
                     0);
    assert_int_equal(ftruncate(two_fd, 7 * HF_HASH_REGION), 0);
    struct hf_leaves_base base = {.fd = open(one, O_RDONLY | O_CLOEXEC)};
    hf_auto_leaves struct hf_leaves full = {0}, quick = {0}, alone = {0};
    assert_int_equal(hf_leaves_read(base.fd, NULL, NULL, &base.leaves), 0);
    assert_int_equal(base.leaves.n, 6);
    assert_int_equal(hf_leaves_read(two_fd, NULL, NULL, &full), 0);
    assert_int_equal(hf_leaves_read(two_fd, &base, NULL, &alone), 0);
    assert_int_equal(full.n, 6);
    assert_int_equal(alone.n, 6);
    assert_memory_equal(alone.v, full.v, 6 * sizeof(*full.v));
    for (size_t i = 0; i < 6; i++)
        memset(base.leaves.v[i].sum, 0xee, HF_SHA256_LEN);
    assert_int_equal(hf_leaves_read(two_fd, &base, NULL, &quick), 0);
    assert_int_equal(quick.n, 6);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(quick.v[i].sum[0] == 0xee && quick.v[i].sum[31] == 0xee, i != 2 && i != 4);
    assert_memory_equal(&quick.v[2], &full.v[2], sizeof(*full.v));
    assert_memory_equal(&quick.v[4], &full.v[4], sizeof(*full.v));
    (void)close(base.fd);
    hf_leaves_done(&base.leaves);
    assert_int_equal(unlink(one) | unlink(two), 0);
}

/* A snapshot of what another one's disk became. */
static void make_child(const char *parent, const char *id, off_t change_at)
{
    struct hf_err err = {0};
    hf_auto_free char *dir = NULL;
    struct hf_snapshot_meta m = {.template_id = "base", .generation = 7};
    (void)snprintf(m.id, sizeof(m.id), "%s", id);
    (void)snprintf(m.parent, sizeof(m.parent), "%s", parent);
    assert_ok(hf_snapshot_begin(fixture_data, id, &dir, &err), &err);
    hf_auto_free char *from = file_of(parent, "disk.img"), *to = file_of(id, "disk.img");
    assert_ok(hf_disk_clone(from, to, &err), &err);
    write_at(to, change_at);
    assert_ok(hf_snapshot_commit(fixture_data, &m, &err), &err);
    seal(id);
}

static void a_child_has_the_hash_of_its_own_bytes(void **state)
{
    struct hf_err err = {0};
    snapfix_make("c0", false, 3);
    seal("c0");
    make_child("c0", "c1", 5000);
    assert_int_equal(unsealed("c1"), 0); /* reads all of it */
    make_child("c1", "c2", SNAPFIX_DISK / 2);
    assert_int_equal(unsealed("c2"), 0);
    /* A parent that was touched, or whose leaves are not its own, is no help and does no harm. */
    hf_auto_free char *disk = file_of("c2", "disk.img"), *leaves = file_of("c1", "leaves");
    write_at(disk, 9000);
    make_child("c2", "c3", 100);
    assert_int_equal(unsealed("c3"), 0);
    fixture_write(leaves, "garbage", 7, 0600);
    make_child("c1", "c4", 100);
    assert_int_equal(unsealed("c4"), 0);
    static const char *const all[] = {"c0", "c1", "c2", "c3", "c4"};
    for (size_t i = 0; i < HF_ARRAY_LEN(all); i++)
        assert_ok(hf_snapshot_remove(fixture_data, all[i], &err), &err);
}

struct seen {
    unsigned complete, half;
};

static void count(void *arg, const char *id, bool complete)
{
    struct seen *s = arg;
    *(complete ? &s->complete : &s->half) += strncmp(id, "each-", 5) == 0;
}

static void all_are_listed(void **state)
{
    struct hf_err err = {0};
    struct seen s = {0};
    hf_auto_free char *dir = NULL;
    snapfix_make("each-1", false, 0);
    snapfix_make("each-2", false, 0);
    assert_ok(hf_snapshot_begin(fixture_data, "each-3", &dir, &err), &err);
    assert_ok(hf_snapshot_each(fixture_data, count, &s, &err), &err);
    assert_int_equal(s.complete, 2);
    assert_int_equal(s.half, 1);
}

/* ---- kill points ---- */

static int step_commit(void)
{
    struct hf_err err = {0};
    hf_auto_free char *dir = NULL;
    if (hf_snapshot_begin(fixture_data, "killed", &dir, &err) < 0)
        return 1;
    snapfix_fill(dir, 0);
    snapfix_fill_memory(dir, 0);
    snapfix_commit("killed", true);
    return 0;
}

static int step(const char *what)
{
    struct hf_err err = {0};
    if (strcmp(what, "commit") == 0)
        return step_commit();
    if (strcmp(what, "seal") == 0)
        return hf_snapshot_seal(fixture_data, "killed", NULL, &err) < 0;
    if (strcmp(what, "clone") == 0)
        return hf_snapshot_clone(fixture_data, "killed", "killed2", &err) < 0;
    return hf_snapshot_remove(fixture_data, "killed", &err) < 0;
}

/* Nothing or a whole one; the same step without a kill makes it whole (or gone). */
static void assert_old_or_new(const char *id, const char *point)
{
    struct hf_err err = {0};
    int r = hf_snapshot_open(fixture_data, id, NULL, &err);
    if (r != 0 && r != -ENOENT)
        fail_msg("%s after %s: %d %s", id, point, r, err.msg);
}

static void a_killed_commit_leaves_nothing_or_a_snapshot(void **state)
{
    static const char *const points[] = {"snapshot.begun", "snapshot.synced", "snapshot.written",
                                         "snapshot.renamed", "snapshot.committed"};
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        struct hf_err err = {0};
        fixture_kill_at("commit", points[i]);
        assert_old_or_new("killed", points[i]);
        bool there = hf_snapshot_open(fixture_data, "killed", NULL, &err) == 0;
        assert_int_equal(there, i >= 3);
        assert_int_equal(fixture_in_child("commit", NULL), there ? 256 : 0); /* -EEXIST when it is there */
        assert_ok(hf_snapshot_open(fixture_data, "killed", NULL, &err), &err);
        assert_ok(hf_snapshot_remove(fixture_data, "killed", &err), &err);
    }
}

static void a_killed_seal_loses_nothing(void **state)
{
    static const char *const points[] = {"snapshot.hashed", "snapshot.written", "snapshot.renamed"};
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        struct hf_err err = {0};
        snapfix_make("killed", true, 0);
        fixture_kill_at("seal", points[i]);
        assert_ok(hf_snapshot_open(fixture_data, "killed", NULL, &err), &err);
        assert_int_equal(fixture_in_child("seal", NULL), 0);
        assert_int_equal(unsealed("killed"), 0);
        assert_ok(hf_snapshot_remove(fixture_data, "killed", &err), &err);
    }
}

static void a_killed_clone_leaves_nothing_or_a_snapshot(void **state)
{
    static const char *const points[] = {"snapshot.begun",   "snapshot.cloned",  "snapshot.synced",
                                         "snapshot.written", "snapshot.renamed", "snapshot.committed"};
    struct hf_err err = {0};
    snapfix_make("killed", true, 0);
    for (size_t i = 0; i < HF_ARRAY_LEN(points); i++) {
        fixture_kill_at("clone", points[i]);
        assert_old_or_new("killed2", points[i]);
        assert_ok(hf_snapshot_open(fixture_data, "killed", NULL, &err), &err);
        bool there = hf_snapshot_open(fixture_data, "killed2", NULL, &err) == 0;
        assert_int_equal(fixture_in_child("clone", NULL), there ? 256 : 0);
        assert_ok(hf_snapshot_open(fixture_data, "killed2", NULL, &err), &err);
        assert_ok(hf_snapshot_remove(fixture_data, "killed2", &err), &err);
    }
    assert_ok(hf_snapshot_remove(fixture_data, "killed", &err), &err);
}

static void a_killed_removal_is_finished_by_the_next(void **state)
{
    struct hf_err err = {0};
    snapfix_make("killed", true, 0);
    fixture_kill_at("remove", "snapshot.unlisted");
    assert_refused("killed", -ENOENT, "no snapshot killed");
    assert_int_equal(fixture_in_child("remove", NULL), 0);
    hf_auto_free char *dir = file_of("killed", "");
    assert_false(fixture_exists(dir));
    assert_int_equal(hf_snapshot_seal(fixture_data, "killed", NULL, &err), -ENOENT);
}

static int tests(void)
{
    const struct CMUnitTest list[] = {
        cmocka_unit_test(a_snapshot_is_one_after_its_commit),
        cmocka_unit_test(what_is_no_snapshot_is_not_committed),
        cmocka_unit_test(large_parts_are_hashed_by_the_seal),
        cmocka_unit_test(damage_is_found_and_named),
        cmocka_unit_test(a_short_or_missing_part_is_named),
        cmocka_unit_test(a_foreign_manifest_is_refused),
        cmocka_unit_test(the_template_must_be_the_same),
        cmocka_unit_test(a_clone_stands_alone),
        cmocka_unit_test(a_damaged_original_does_not_make_a_good_clone),
        cmocka_unit_test(shared_blocks_are_not_read),
        cmocka_unit_test(a_child_has_the_hash_of_its_own_bytes),
        cmocka_unit_test(all_are_listed),
        cmocka_unit_test(a_killed_commit_leaves_nothing_or_a_snapshot),
        cmocka_unit_test(a_killed_seal_loses_nothing),
        cmocka_unit_test(a_killed_clone_leaves_nothing_or_a_snapshot),
        cmocka_unit_test(a_killed_removal_is_finished_by_the_next),
    };
    return cmocka_run_group_tests_name("snapshots", list, snapfix_setup, snapfix_teardown);
}

int main(int argc, char **argv)
{
    return fixture_main(argc, argv, tests, step);
}
