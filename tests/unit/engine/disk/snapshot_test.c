/* The life of snapshots in a pool. */
#include "fixture.h"

#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/disk/hash.h"
#include "engine/disk/snapshot.h"
#include "engine/driver.h"
#include "snapfix.h"

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
    assert_int_equal(meta.disk_bytes, SNAPFIX_DISK);
    assert_int_equal(meta.generation, 7);
    assert_string_equal(json_string_value(json_object_get(meta.config, "note")), "ä \"quoted\"");
    free(hf_take_ptr(dir));
    assert_int_equal(hf_snapshot_begin(fixture_data, "life", &dir, &err), -EEXIST);
    snapfix_commit("life", false); /* once more changes nothing */
    assert_ok(hf_snapshot_remove(fixture_data, "life", &err), &err);
    assert_int_equal(hf_snapshot_open(fixture_data, "life", NULL, &err), -ENOENT);
    assert_ok(hf_snapshot_remove(fixture_data, "life", &err), &err);
}

static int tests(void)
{
    const struct CMUnitTest list[] = {
        cmocka_unit_test(a_snapshot_is_one_after_its_commit),
    };
    return cmocka_run_group_tests(list, snapfix_setup, NULL);
}

int main(int argc, char **argv)
{
    return fixture_main(argc, argv, tests, NULL);
}
