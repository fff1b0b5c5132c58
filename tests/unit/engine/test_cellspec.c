#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/shim/spec.h"

static struct hf_str text_of(const struct hf_buf *b)
{
    return (struct hf_str){b->p, b->n};
}

static void test_kv(void **state)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(256);
    assert_int_equal(hf_kv_add(&b, "name", "a=b c"), 0);
    assert_int_equal(hf_kv_add_u64(&b, "big", UINT64_MAX), 0);
    assert_int_equal(hf_kv_add_int(&b, "neg", -9), 0);
    assert_int_equal(hf_kv_add(&b, "bad", "two\nlines"), -EINVAL);
    struct hf_str t = text_of(&b);
    assert_true(hf_str_eq(hf_kv_get(t, "name"), "a=b c"));
    assert_int_equal(hf_kv_u64(t, "big", 0), UINT64_MAX);
    assert_int_equal(hf_kv_int(t, "neg", 0), -9);
    assert_int_equal(hf_kv_u64(t, "name", 7), 7);
    assert_null(hf_kv_get(t, "nam").p);
    char small[4] = "x";
    assert_int_equal(hf_kv_copy(t, "name", small, sizeof(small)), -ENAMETOOLONG);
    assert_string_equal(small, "");
    /* Text that nobody of ours wrote. */
    struct hf_str odd = HF_STR("no equals\n=empty key\nlast=unterminated");
    assert_true(hf_str_eq(hf_kv_get(odd, "last"), "unterminated"));
    assert_true(hf_str_eq(hf_kv_get(odd, ""), "empty key"));
    assert_int_equal(hf_kv_int(HF_STR("n=-"), "n", 3), 3);
}

static void fill(struct hf_cell_spec *s)
{
    *s = (struct hf_cell_spec){
        .n = 12,
        .sandbox_id = "sbx",
        .template_id = "base",
        .dir = "/run/holdfast/0123abcd/12",
        .template_dir = "/run/holdfast/0123abcd/templates/base",
        .blank = "/d/pool/blank/1.img",
        .image = "/d/pool/cells/12.img",
        .envd = "/usr/libexec/envd",
        .cgroup_root = "/sys/fs/cgroup",
        .cgroup_group = "holdfast/0123abcd",
        .disk_bytes = 1u << 30,
        .limits = {2000, 512u << 20, 1024, 77},
        .fabric = {"/run/netns/holdfast-0123abcd", "10.117.0.0/16", "fd68::/64", true},
        .network = true,
        .from = "/d/pool/snapshots/s1",
        .from_memory = true,
        .clone = true,
        .generation = 7,
        .criu = "/usr/sbin/criu",
        .n_mounts = 4,
        .mounts = {{.image = "/d/a.img", .path = "/workspace"},
                   {.image = "/d/b.img", .path = "/with space/x=y", .read_only = true},
                   {HF_CELL_MOUNT_DIR, "/d/c.d", "/shared", 0, true},
                   {HF_CELL_MOUNT_TMPFS, "", "/etc/agent-secrets", 65536, false}},
    };
}

static void test_spec_round_trip(void **state)
{
    struct hf_cell_spec a, b;
    hf_auto_buf struct hf_buf buf = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    fill(&a);
    assert_int_equal(hf_cell_spec_write(&a, &buf), 0);
    assert_int_equal(hf_cell_spec_read(text_of(&buf), &b), 0);
    assert_memory_equal(&a, &b, sizeof(a));
}

static void test_claim_keeps_the_rest(void **state)
{
    struct hf_cell_spec warm, claim;
    hf_auto_buf struct hf_buf buf = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    fill(&warm);
    fill(&claim);
    warm.sandbox_id[0] = '\0';
    warm.n_mounts = 0;
    warm.limits.memory_bytes = 1;
    claim.dir[0] = 'X';
    assert_int_equal(hf_cell_claim_write(&claim, &buf), 0);
    assert_int_equal(hf_cell_claim_read(text_of(&buf), &warm), 0);
    assert_string_equal(warm.sandbox_id, "sbx");
    assert_string_equal(warm.dir, "/run/holdfast/0123abcd/12");
    assert_int_equal(warm.limits.memory_bytes, 512u << 20);
    assert_int_equal(warm.n_mounts, 4);
    assert_int_equal(warm.generation, 7);
    assert_true(warm.mounts[1].read_only);
    assert_true(warm.network);
    assert_string_equal(warm.fabric.ns, "/run/netns/holdfast-0123abcd");
}

/* Absent is not open: a daemon that knows no networks gets a box without one. */
static void test_network_is_explicit(void **state)
{
    struct hf_cell_spec s;
    fill(&s);
    assert_int_equal(hf_cell_claim_read(HF_STR("sandbox_id=x\n"), &s), 0);
    assert_false(s.network);
    assert_int_equal(hf_cell_spec_read(HF_STR("n=1\ndir=/x\nimage=/y\n"), &s), 0);
    assert_false(s.network);
    assert_string_equal(s.fabric.ns, "");
}

static void test_spec_refuses(void **state)
{
    struct hf_cell_spec s;
    hf_auto_buf struct hf_buf buf = HF_BUF_INIT(HF_SHIM_MSG_MAX);
    assert_int_equal(hf_cell_spec_read(HF_STR(""), &s), -EINVAL);
    assert_int_equal(hf_cell_spec_read(HF_STR("n=1\ndir=/x\n"), &s), -EINVAL);
    for (int i = 0; i <= HF_CELL_MOUNTS_MAX; i++)
        assert_int_equal(hf_kv_add(&buf, "mount_image", "/i"), 0);
    assert_int_equal(hf_cell_claim_read(text_of(&buf), &s), -E2BIG);
    fill(&s);
    (void)memcpy(s.mounts[0].path, "/a\nb", 5);
    hf_buf_clear(&buf);
    assert_int_equal(hf_cell_spec_write(&s, &buf), -EINVAL);
}

static void test_exit_round_trip(void **state)
{
    struct hf_cell_exit a = {HF_CELL_OOM, -9, "the kernel killed its init"}, b = {0};
    hf_auto_buf struct hf_buf buf = HF_BUF_INIT(512);
    assert_int_equal(hf_cell_exit_write(&a, &buf), 0);
    assert_int_equal(hf_cell_exit_read(text_of(&buf), &b), 0);
    assert_int_equal(b.cause, HF_CELL_OOM);
    assert_int_equal(b.code, -9);
    assert_string_equal(a.detail, b.detail);
    assert_int_equal(hf_cell_exit_read(HF_STR("cause=bored\n"), &b), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv),
        cmocka_unit_test(test_spec_round_trip),
        cmocka_unit_test(test_claim_keeps_the_rest),
        cmocka_unit_test(test_network_is_explicit),
        cmocka_unit_test(test_spec_refuses),
        cmocka_unit_test(test_exit_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
