/* Shared by the parts of engine/disk; not for others. */
#pragma once

#include "base/err.h"

/* A new path DATA/pool/staging/<random> (heap). Everything below staging/ is removed when the pool opens. */
char *hf_disk_staging_path(const char *data_dir) HF_MUST_USE;
int hf_disk_sync_path(const char *path) HF_MUST_USE; /* fsync of a file or directory */
/* As hf_disk_blank; volume: the kind of blank that volumes are cloned from. */
int hf_disk_blank_of(const char *data_dir, uint64_t bytes, bool volume, char **ret_path,
                     struct hf_err *err) HF_MUST_USE;
