#include "fixture.h"
#include "tarball.h"

#include <sys/mman.h>

void tarball_open(struct tarball *t, int filter)
{
    t->fd = memfd_create("tar", MFD_CLOEXEC);
    t->a = archive_write_new();
    assert_true(t->fd >= 0 && t->a);
    assert_int_equal(archive_write_set_format_pax_restricted(t->a), ARCHIVE_OK);
    assert_int_equal(archive_write_add_filter(t->a, filter), ARCHIVE_OK);
    assert_int_equal(archive_write_open_fd(t->a, t->fd), ARCHIVE_OK);
}

static struct archive_entry *new_entry(const char *name, unsigned type, unsigned mode)
{
    struct archive_entry *e = archive_entry_new();
    assert_non_null(e);
    archive_entry_set_pathname(e, name);
    archive_entry_set_filetype(e, type);
    archive_entry_set_perm(e, mode);
    archive_entry_set_mtime(e, 1000000000, 0);
    return e;
}

static void put_entry(struct tarball *t, struct archive_entry *e, const char *content, size_t n)
{
    assert_true(archive_write_header(t->a, e) >= ARCHIVE_WARN);
    if (n)
        assert_int_equal(archive_write_data(t->a, content, n), n);
    archive_entry_free(e);
}

void tarball_add(struct tarball *t, const char *name, unsigned type, unsigned mode, const char *content)
{
    struct archive_entry *e = new_entry(name, type, mode);
    size_t n = type == AE_IFREG && content ? strlen(content) : 0;
    if (type == AE_IFLNK)
        archive_entry_set_symlink(e, content);
    if (type == AE_IFCHR || type == AE_IFBLK) {
        archive_entry_set_rdevmajor(e, 1);
        archive_entry_set_rdevminor(e, 3);
    }
    archive_entry_set_size(e, (la_int64_t)n);
    put_entry(t, e, content, n);
}

void tarball_add_hardlink(struct tarball *t, const char *name, const char *target)
{
    struct archive_entry *e = new_entry(name, AE_IFREG, 0644);
    archive_entry_set_hardlink(e, target);
    put_entry(t, e, NULL, 0);
}

void tarball_add_xattr(struct tarball *t, const char *name, const char *attr, const char *value)
{
    struct archive_entry *e = new_entry(name, AE_IFREG, 0644);
    archive_entry_set_uid(e, 1000);
    archive_entry_set_gid(e, 1000);
    archive_entry_set_size(e, 1);
    archive_entry_xattr_add_entry(e, attr, value, strlen(value));
    put_entry(t, e, "x", 1);
}

int tarball_close(struct tarball *t)
{
    assert_int_equal(archive_write_close(t->a), ARCHIVE_OK);
    (void)archive_write_free(t->a);
    assert_int_equal(lseek(t->fd, 0, SEEK_SET), 0);
    return t->fd;
}
