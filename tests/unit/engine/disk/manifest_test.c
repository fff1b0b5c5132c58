/* Manifests of snapshots: what is written is read again; anything else is refused. Needs no rights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "engine/disk/manifest.h"

#define HEX64 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static void sample(struct hf_manifest *m)
{
    static const char *const names[] = {"box", "disk.img", "mem/core-1.img", "mem/pages-1.img", "tmpfs.tar"};
    *m = (struct hf_manifest){
        .meta = {.id = "snap1",
                 .memory = true,
                 .template_id = "base",
                 .template_sha256 = HEX64,
                 .parent = "snap0",
                 .sandbox_id = "sb1",
                 .generation = 3,
                 .disk_bytes = 1 << 30,
                 .created_ms = 1234},
        .host = {.machine = "x86_64", .kernel = "6.1", .page_size = 4096, .criu_image = 1}};
    m->meta.config = json_pack("{s:s, s:f, s:n}", "a", "ü", "b", 0.1, "c");
    m->host.cpu = json_pack("[s, s]", "avx2", "sse2");
    m->n_parts = HF_ARRAY_LEN(names);
    m->parts = hf_xcalloc(m->n_parts, sizeof(*m->parts));
    for (size_t i = 0; i < m->n_parts; i++) {
        (void)snprintf(m->parts[i].name, sizeof(m->parts[i].name), "%s", names[i]);
        m->parts[i].bytes = i == 1 ? m->meta.disk_bytes : i;
        if (i != 1)
            (void)snprintf(m->parts[i].sha256, sizeof(m->parts[i].sha256), "%s", HEX64);
    }
}

static void what_is_written_is_read(void **state)
{
    struct hf_err err = {0};
    hf_auto_manifest struct hf_manifest m = {0}, back = {0};
    sample(&m);
    hf_auto_free char *text = hf_manifest_text(&m);
    assert_non_null(text);
    if (hf_manifest_parse(text, strlen(text), &back, &err) < 0)
        fail_msg("%s", err.msg);
    assert_string_equal(back.meta.id, "snap1");
    assert_true(back.meta.memory);
    assert_string_equal(back.meta.parent, "snap0");
    assert_int_equal(back.meta.generation, 3);
    assert_int_equal(back.host.criu_image, 1);
    assert_int_equal(back.n_parts, 5);
    assert_string_equal(back.parts[1].sha256, "");
    assert_string_equal(back.parts[4].sha256, HEX64);
    assert_true(json_equal(back.meta.config, m.meta.config));
    hf_auto_free char *again = hf_manifest_text(&back);
    assert_string_equal(text, again);
}

/* No single changed character makes another manifest. */
static void every_changed_byte_is_noticed(void **state)
{
    hf_auto_manifest struct hf_manifest m = {0};
    sample(&m);
    hf_auto_free char *text = hf_manifest_text(&m);
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ' ' || text[i] == '\n')
            continue; /* between tokens it means nothing */
        hf_auto_manifest struct hf_manifest back = {0};
        char kept = text[i];
        text[i] = kept == 'b' ? 'c' : 'b';
        if (hf_manifest_parse(text, n, &back, NULL) == 0)
            fail_msg("byte %zu (%c) was not missed", i, kept);
        text[i] = kept;
        assert_true(hf_manifest_parse(text, i, &back, NULL) < 0); /* cut off there */
    }
}

/* Writes a changed sample with an honest checksum and expects it to be refused. */
static void refused(void (*change)(struct hf_manifest *m), int want, const char *text)
{
    struct hf_err err = {0};
    hf_auto_manifest struct hf_manifest m = {0}, back = {0};
    sample(&m);
    change(&m);
    hf_auto_free char *t = hf_manifest_text(&m);
    assert_non_null(t);
    int r = hf_manifest_parse(t, strlen(t), &back, &err);
    if (r != want || !strstr(err.msg, text))
        fail_msg("%d \"%s\", expected \"%s\"", r, err.msg, text);
}

#define SET(to, text) ((void)snprintf(to, sizeof(to), "%s", text))
static void upward(struct hf_manifest *m)
{
    SET(m->parts[4].name, "z/../../etc/passwd");
}
static void absolute(struct hf_manifest *m)
{
    SET(m->parts[0].name, "/etc/passwd");
}
static void own_name(struct hf_manifest *m)
{
    SET(m->parts[4].name, "stamps");
}
static void twice(struct hf_manifest *m)
{
    SET(m->parts[3].name, "mem/core-1.img");
}
static void unordered(struct hf_manifest *m)
{
    SET(m->parts[0].name, "zbox");
}
static void huge(struct hf_manifest *m)
{
    m->parts[0].bytes = HF_SNAPSHOT_PART_BYTES_MAX + 1;
}
static void other_disk(struct hf_manifest *m)
{
    m->meta.disk_bytes++;
}
static void no_memory(struct hf_manifest *m)
{
    m->meta.memory = false;
}
static void no_disk(struct hf_manifest *m)
{
    SET(m->parts[1].name, "disk2.img");
}
static void odd_hash(struct hf_manifest *m)
{
    m->parts[0].sha256[3] = 'A';
}
static void short_hash(struct hf_manifest *m)
{
    m->parts[0].sha256[63] = '\0';
}
static void odd_id(struct hf_manifest *m)
{
    SET(m->meta.id, "../x");
}
static void no_template(struct hf_manifest *m)
{
    m->meta.template_id[0] = '\0';
}
static void no_hash(struct hf_manifest *m)
{
    m->meta.template_sha256[0] = '\0';
}
static void odd_machine(struct hf_manifest *m)
{
    SET(m->host.machine, "x86\n64");
}
static void odd_page(struct hf_manifest *m)
{
    m->host.page_size = 1;
}
static void odd_cpu(struct hf_manifest *m)
{
    (void)json_array_append_new(m->host.cpu, json_integer(1));
}
static void empty(struct hf_manifest *m)
{
    m->n_parts = 0;
}
static void list_config(struct hf_manifest *m)
{
    json_decref(m->meta.config);
    m->meta.config = json_array();
}
static void many_cpu(struct hf_manifest *m)
{
    for (unsigned i = 0; i < HF_SNAPSHOT_CPU_MAX; i++)
        (void)json_array_append_new(m->host.cpu, json_string("x"));
}
static void many_parts(struct hf_manifest *m)
{
    m->n_parts = HF_SNAPSHOT_PART_MAX + 1;
    m->parts = hf_xrealloc(m->parts, m->n_parts * sizeof(*m->parts));
    for (size_t i = 5; i < m->n_parts; i++) {
        m->parts[i] = (struct hf_snapshot_part){0};
        (void)snprintf(m->parts[i].name, sizeof(m->parts[i].name), "x%05zu", i);
    }
}

static void lies_are_refused(void **state)
{
    refused(upward, -EUCLEAN, "a name that is refused");
    refused(absolute, -EUCLEAN, "a name that is refused");
    refused(own_name, -EUCLEAN, "a name that is refused");
    refused(twice, -EUCLEAN, "mem/core-1.img is there twice");
    refused(unordered, -EUCLEAN, "out of order");
    refused(huge, -EUCLEAN, "the size of part box");
    refused(other_disk, -EUCLEAN, "disk.img");
    refused(no_memory, -EUCLEAN, "kind");
    refused(no_disk, -EUCLEAN, "no disk.img");
    refused(odd_hash, -EUCLEAN, "the hash of part box");
    refused(short_hash, -EUCLEAN, "the hash of part box");
    refused(odd_id, -EUCLEAN, "an id");
    refused(no_template, -EUCLEAN, "an id");
    refused(no_hash, -EUCLEAN, "hash of the template");
    refused(odd_machine, -EUCLEAN, "host");
    refused(odd_page, -EUCLEAN, "host");
    refused(odd_cpu, -EUCLEAN, "processor feature");
    refused(many_cpu, -EUCLEAN, "processor features");
    refused(list_config, -EUCLEAN, "config");
    refused(empty, -EUCLEAN, "no parts");
    refused(many_parts, -EUCLEAN, "too many");
}

static void part_names_are_checked(void **state)
{
    static const char *const good[] = {"box", "mem/pages-1.img",   "a/b/c/d", "..a", "a..b",
                                       ".x",  "tmpfs-dev-3.tar.gz"};
    static const char *const bad[] = {"",
                                      "/",
                                      "a/",
                                      "/a",
                                      "a//b",
                                      ".",
                                      "..",
                                      "a/..",
                                      "../a",
                                      "a/./b",
                                      "a b",
                                      "a\n",
                                      "\303\244",
                                      "a/b/c/d/e",
                                      "stamps",
                                      "manifest.json",
                                      "template.img",
                                      "manifest.tmp",
                                      "a\\b"};
    for (size_t i = 0; i < HF_ARRAY_LEN(good); i++)
        assert_true(hf_part_name_good(good[i]));
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        if (hf_part_name_good(bad[i]))
            fail_msg("\"%s\" was taken", bad[i]);
    char name[HF_SNAPSHOT_PART_NAME_MAX + 2];
    memset(name, 'x', sizeof(name));
    name[HF_SNAPSHOT_PART_NAME_MAX] = '\0';
    assert_true(hf_part_name_good(name));
    name[HF_SNAPSHOT_PART_NAME_MAX] = 'x';
    name[HF_SNAPSHOT_PART_NAME_MAX + 1] = '\0';
    assert_false(hf_part_name_good(name));
}

static void processors_are_compared(void **state)
{
    struct hf_err err = {0};
    struct hf_snapshot_host want = {.machine = "x86_64", .page_size = 4096}, have = want;
    want.cpu =
        hf_host_cpu("processor\t: 0\nflags\t\t: fpu sse2 avx512f constant_tsc amx_tile\nbugs\t\t: x\n");
    have.cpu = hf_host_cpu("flags\t\t: fpu sse2 pti avx2\n");
    assert_int_equal(json_array_size(want.cpu), 4); /* constant_tsc is none of a process's business */
    assert_int_equal(hf_host_check(&want, &have, false, &err), 0);
    assert_int_equal(hf_host_check(&want, &have, true, &err), -EXDEV);
    assert_non_null(strstr(err.msg, "amx_tile avx512f"));
    assert_int_equal(hf_host_check(&want, &want, true, &err), 0);
    have.page_size = 65536;
    assert_int_equal(hf_host_check(&want, &have, true, &err), -EXDEV);
    (void)snprintf(have.machine, sizeof(have.machine), "aarch64");
    assert_int_equal(hf_host_check(&want, &have, false, &err), -EXDEV);
    assert_non_null(strstr(err.msg, "aarch64"));
    json_decref(want.cpu);
    json_decref(have.cpu);
    json_t *arm = hf_host_cpu("processor\t: 0\nFeatures\t: fp asimd sha3\n");
    assert_int_equal(json_array_size(arm), 3);
    json_decref(arm);
}

static void hash_of(int fd, char hex[HF_HASH_HEX])
{
    assert_int_equal(hf_hash_data(fd, NULL, hex), 0);
}

/* The hash is of what is there, not of how the file system stores it. */
static void zeros_and_holes_hash_alike(void **state)
{
    char a[HF_HASH_HEX], b[HF_HASH_HEX];
    hf_auto_close int holes = memfd_create("holes", MFD_CLOEXEC), zeros = memfd_create("zeros", MFD_CLOEXEC);
    static const char block[HF_HASH_REGION];
    assert_int_equal(ftruncate(holes, 5 * HF_HASH_REGION + 10), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(write(zeros, block, sizeof(block)), sizeof(block));
    assert_int_equal(write(zeros, block, 10), 10);
    hash_of(holes, a);
    hash_of(zeros, b);
    assert_string_equal(a, b);
    assert_int_equal(pwrite(holes, "x", 1, 5 * HF_HASH_REGION + 9), 1);
    hash_of(holes, b);
    assert_string_not_equal(a, b);
    assert_int_equal(pwrite(zeros, "x", 1, 5 * HF_HASH_REGION + 9), 1);
    hash_of(zeros, a);
    assert_string_equal(a, b);
    /* The same bytes elsewhere are something else. */
    assert_int_equal(pwrite(zeros, "\0", 1, 5 * HF_HASH_REGION + 9), 1);
    assert_int_equal(pwrite(zeros, "x", 1, 9), 1);
    hash_of(zeros, a);
    assert_string_not_equal(a, b);
}

int main(void)
{
    const struct CMUnitTest list[] = {
        cmocka_unit_test(what_is_written_is_read), cmocka_unit_test(every_changed_byte_is_noticed),
        cmocka_unit_test(lies_are_refused),        cmocka_unit_test(part_names_are_checked),
        cmocka_unit_test(processors_are_compared), cmocka_unit_test(zeros_and_holes_hash_alike),
    };
    return cmocka_run_group_tests_name("snapshot manifests", list, NULL, NULL);
}
