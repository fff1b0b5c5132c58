/* Builds tar archives in memory files for the tests. */
#pragma once

#include <archive.h>
#include <archive_entry.h>

struct tarball {
    struct archive *a;
    int fd;
};

/* filter: ARCHIVE_FILTER_NONE, _GZIP, _XZ or _ZSTD. */
void tarball_open(struct tarball *t, int filter);
/* type: AE_IFREG (content = its bytes), AE_IFDIR, AE_IFLNK (content = target), AE_IFCHR, AE_IFBLK, AE_IFIFO.
 */
void tarball_add(struct tarball *t, const char *name, unsigned type, unsigned mode, const char *content);
void tarball_add_hardlink(struct tarball *t, const char *name, const char *target);
/* As tarball_add for a file of uid:gid 1000 with one extended attribute. */
void tarball_add_xattr(struct tarball *t, const char *name, const char *attr, const char *value);
/* Finishes and returns a descriptor at the archive's start. */
int tarball_close(struct tarball *t);
