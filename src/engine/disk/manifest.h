/* The manifest of a snapshot: text to struct and back, without I/O. Internal to engine/disk.
 *
 *   {"version": 1, "id": …, "kind": "disk" | "full", "template": {"id", "sha256"}, "parent", "sandbox",
 *    "generation", "disk_bytes", "created_ms",
 *    "host": {"machine", "kernel", "page_size", "criu_image", "cpu": […]},
 *    "config": {…},
 *    "parts": [{"name", "bytes", "sha256": hex | null}, … ascending by name],
 *    "check": SHA-256 of the same object without "check", dumped compact with sorted keys}
 *
 * The text may come from another machine: everything in it is checked. */
#pragma once

#include "engine/disk/hash.h"
#include "engine/disk/snapshot.h"

#define HF_SNAPSHOT_PART_NAME_MAX 200u
#define HF_SNAPSHOT_PART_DEPTH_MAX 4u
#define HF_SNAPSHOT_PART_BYTES_MAX (1ull << 40)
#define HF_SNAPSHOT_CPU_MAX 256u /* names of processor features */

struct hf_snapshot_part {
    char name[HF_SNAPSHOT_PART_NAME_MAX + 1];
    uint64_t bytes;
    char sha256[HF_HASH_HEX]; /* of hf_hash_data; "" = not taken so far */
};

/* What the host was. A disk needs the machine type; processes need the rest too, except that kernel and
 * criu_image are for people. */
struct hf_snapshot_host {
    char machine[32], kernel[96];
    uint32_t page_size, criu_image;
    json_t *cpu; /* array of strings, sorted; owned */
};

struct hf_manifest {
    struct hf_snapshot_meta meta;
    struct hf_snapshot_host host;
    struct hf_snapshot_part *parts; /* ascending by name */
    size_t n_parts;
};
#define hf_auto_manifest hf_cleanup(hf_manifest_done)

void hf_manifest_done(struct hf_manifest *m);
/* -EPROTONOSUPPORT another version, else -EUCLEAN; err says what is wrong. */
int hf_manifest_parse(const char *text, size_t n, struct hf_manifest *ret, struct hf_err *err) HF_MUST_USE;
/* Heap (free); NULL when something in it is not UTF-8 or memory is out. */
char *hf_manifest_text(const struct hf_manifest *m) HF_MUST_USE;
/* [A-Za-z0-9._+-] in 1 to HF_SNAPSHOT_PART_DEPTH_MAX components, none "." or ".."; not one of the names that
 * the directory itself uses. */
bool hf_part_name_good(const char *name);

/* Fills in this host; criu_image stays 0. cpu: what a process may have seen and come to rely on. */
int hf_host_read(struct hf_snapshot_host *ret, struct hf_err *err) HF_MUST_USE;
/* The same from the text of /proc/cpuinfo: a sorted array. */
json_t *hf_host_cpu(const char *text) HF_MUST_USE;
/* -EXDEV and what is missing when something of `want` can't run on `have`. */
int hf_host_check(const struct hf_snapshot_host *want, const struct hf_snapshot_host *have, bool memory,
                  struct hf_err *err) HF_MUST_USE;
