/* What export and import of snapshots share. Internal to engine/disk. */
#pragma once

#include <archive.h>
#include <archive_entry.h>

#include "engine/disk/parts.h"

#define HF_STREAM_MANIFEST "manifest.json" /* the first entry */
#define HF_STREAM_TEMPLATE "template.img"  /* the last one, when the template goes along */
/* Bytes between two looks at the pool's room during an import. */
#define HF_STREAM_ROOM_EVERY (64ull << 20)

static inline void hf_write_freep(struct archive **a)
{
    (void)archive_write_free(*a);
}
static inline void hf_entry_freep(struct archive_entry **e)
{
    archive_entry_free(*e);
}

/* The template's image for reading, and its size; the caller compares the hash. */
int hf_disk_template_open(const char *data_dir, const char *template_id, uint64_t *ret_bytes,
                          struct hf_err *err) HF_MUST_USE;
/* Makes the file image, which must be of that hash, the template's image. Takes it (by rename). -EEXIST. */
int hf_disk_template_install(const char *data_dir, const char *template_id, const char *image,
                             const char *sha256, struct hf_err *err) HF_MUST_USE;
