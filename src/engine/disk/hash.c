#include "engine/disk/hash.h"

#include <endian.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <openssl/evp.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#define CHUNK HF_HASH_REGION
/* Pieces of a file beyond which its map is not compared: reading is no slower then. */
#define MAP_MAX (1u << 20)
#define MAP_AT_ONCE 512u

static void ctx_freep(EVP_MD_CTX **ctx)
{
    EVP_MD_CTX_free(*ctx);
}

static EVP_MD_CTX *ctx_new(void)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(ctx);
        return NULL;
    }
    return ctx;
}

static int finish(EVP_MD_CTX *ctx, char hex[HF_HASH_HEX])
{
    unsigned char out[EVP_MAX_MD_SIZE];
    if (EVP_DigestFinal_ex(ctx, out, NULL) != 1)
        return -EIO;
    hf_hex(out, HF_SHA256_LEN, hex);
    return 0;
}

/* Reads up to n bytes; fewer only at the end of the file. */
static ssize_t read_full(int fd, void *p, size_t n, off_t at)
{
    size_t done = 0;
    while (done < n) {
        ssize_t r = pread(fd, (char *)p + done, n - done, at + (off_t)done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -errno;
        if (r == 0)
            break;
        done += (size_t)r;
    }
    return (ssize_t)done;
}

int hf_hash_file(int fd, char ret_hex[HF_HASH_HEX], uint64_t *ret_bytes)
{
    hf_cleanup(ctx_freep) EVP_MD_CTX *ctx = ctx_new();
    if (!ctx)
        return -ENOMEM;
    hf_auto_free char *chunk = hf_xmalloc(CHUNK);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    off_t at = 0;
    for (;;) {
        ssize_t n = read_full(fd, chunk, CHUNK, at);
        if (n < 0)
            return (int)n;
        if (n == 0)
            break;
        if (EVP_DigestUpdate(ctx, chunk, (size_t)n) != 1)
            return -EIO;
        at += n;
    }
    int r = finish(ctx, ret_hex);
    if (r == 0)
        *ret_bytes = (uint64_t)at;
    return r;
}

bool hf_is_zero(const void *p, size_t n)
{
    const unsigned char *c = p;
    return n == 0 || (c[0] == 0 && memcmp(c, c + 1, n - 1) == 0);
}

void hf_leaves_done(struct hf_leaves *l)
{
    free(l->v);
    *l = (struct hf_leaves){0};
}

/* ---- which blocks of the disk a file has ---- */

struct map {
    struct fiemap_extent *v;
    size_t n;
};

static void map_done(struct map *m)
{
    free(m->v);
}

static int add_extents(struct map *m, const struct fiemap *got)
{
    if (m->n + got->fm_mapped_extents > MAP_MAX)
        return -E2BIG;
    m->v = hf_xrealloc(m->v, (m->n + got->fm_mapped_extents) * sizeof(*m->v));
    memcpy(m->v + m->n, got->fm_extents, got->fm_mapped_extents * sizeof(*m->v));
    m->n += got->fm_mapped_extents;
    return 0;
}

static int map_read(int fd, struct map *m)
{
    hf_auto_free struct fiemap *got =
        hf_xcalloc(1, sizeof(*got) + MAP_AT_ONCE * sizeof(struct fiemap_extent));
    for (;;) {
        const struct fiemap_extent *last = m->n ? &m->v[m->n - 1] : NULL;
        if (last && (last->fe_flags & FIEMAP_EXTENT_LAST))
            return 0;
        got->fm_start = last ? last->fe_logical + last->fe_length : 0;
        got->fm_length = FIEMAP_MAX_OFFSET - got->fm_start;
        got->fm_flags = FIEMAP_FLAG_SYNC;
        got->fm_extent_count = MAP_AT_ONCE;
        got->fm_mapped_extents = 0;
        if (ioctl(fd, FS_IOC_FIEMAP, got) < 0)
            return -errno;
        if (got->fm_mapped_extents == 0)
            return 0;
        int r = add_extents(m, got);
        if (r < 0)
            return r;
    }
}

/* Where the file has offset `at`: the byte of the disk, or 0 for a hole; -1 when that can't be told.
 * *ret_end: up to where this goes on. *from: the first extent that may matter, moves on with at. */
static int64_t place_of(const struct map *m, size_t *from, uint64_t at, uint64_t *ret_end)
{
    while (*from < m->n && m->v[*from].fe_logical + m->v[*from].fe_length <= at)
        ++*from;
    if (*from == m->n || m->v[*from].fe_logical > at) {
        *ret_end = *from == m->n ? UINT64_MAX : m->v[*from].fe_logical;
        return 0;
    }
    const struct fiemap_extent *e = &m->v[*from];
    *ret_end = e->fe_logical + e->fe_length;
    if (e->fe_flags & ~(uint32_t)(FIEMAP_EXTENT_SHARED | FIEMAP_EXTENT_LAST | FIEMAP_EXTENT_MERGED))
        return -1;
    return (int64_t)(e->fe_physical + (at - e->fe_logical));
}

struct pair {
    struct map a, b;
    size_t a_from, b_from;
};

/* Both have the same blocks from at to end; at never goes back. */
static bool is_same(struct pair *p, uint64_t at, uint64_t end)
{
    while (at < end) {
        uint64_t a_end, b_end;
        int64_t a = place_of(&p->a, &p->a_from, at, &a_end);
        int64_t b = place_of(&p->b, &p->b_from, at, &b_end);
        if (a < 0 || a != b)
            return false;
        at = HF_MIN(a_end, b_end);
    }
    return true;
}

/* ---- leaves ---- */

struct walk {
    int fd;
    const struct hf_leaves_base *base; /* NULL: everything is read */
    struct pair maps;
    size_t base_leaf;
    char *chunk;
    struct hf_leaves *out;
    size_t cap;
};

static struct hf_leaf *add_leaf(struct walk *w, uint64_t at)
{
    if (w->out->n == w->cap) {
        w->cap = w->cap ? 2 * w->cap : 64;
        w->out->v = hf_xrealloc(w->out->v, w->cap * sizeof(*w->out->v));
    }
    struct hf_leaf *leaf = &w->out->v[w->out->n++];
    leaf->at = at;
    return leaf;
}

static void take_known(struct walk *w, uint64_t at)
{
    const struct hf_leaves *l = &w->base->leaves;
    while (w->base_leaf < l->n && l->v[w->base_leaf].at < at)
        w->base_leaf++;
    if (w->base_leaf < l->n && l->v[w->base_leaf].at == at)
        memcpy(add_leaf(w, at)->sum, l->v[w->base_leaf].sum, HF_SHA256_LEN);
}

static int take_region(struct walk *w, uint64_t at, size_t n)
{
    if (w->base && is_same(&w->maps, at, at + n)) {
        take_known(w, at);
        return 0;
    }
    ssize_t got = read_full(w->fd, w->chunk, n, (off_t)at);
    if (got < 0)
        return (int)got;
    if ((size_t)got < n)
        return -EIO; /* it shrank meanwhile */
    if (hf_is_zero(w->chunk, n))
        return 0;
    return EVP_Digest(w->chunk, n, add_leaf(w, at)->sum, NULL, EVP_sha256(), NULL) == 1 ? 0 : -EIO;
}

static int take_all(struct walk *w, off_t size, const bool *stop)
{
    for (off_t pos = 0; pos < size;) {
        off_t data = lseek(w->fd, pos, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            return 0; /* only a hole is left */
        off_t hole = data < 0 ? data : lseek(w->fd, data, SEEK_HOLE);
        if (hole < 0)
            return -errno;
        for (pos = data - data % HF_HASH_REGION; pos < hole; pos += HF_HASH_REGION) {
            if (stop && __atomic_load_n(stop, __ATOMIC_RELAXED))
                return -ECANCELED;
            int r = take_region(w, (uint64_t)pos, (size_t)HF_MIN((off_t)HF_HASH_REGION, size - pos));
            if (r < 0)
                return r;
        }
    }
    return 0;
}

int hf_leaves_read(int fd, const struct hf_leaves_base *base, const bool *stop, struct hf_leaves *ret)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    hf_auto_leaves struct hf_leaves leaves = {0};
    hf_auto_free char *chunk = hf_xmalloc(HF_HASH_REGION);
    struct walk w = {.fd = fd, .base = base, .chunk = chunk, .out = &leaves};
    if (base && (map_read(fd, &w.maps.a) < 0 || map_read(base->fd, &w.maps.b) < 0))
        w.base = NULL;
    int r = take_all(&w, st.st_size, stop);
    map_done(&w.maps.a);
    map_done(&w.maps.b);
    if (r < 0)
        return r;
    *ret = leaves;
    leaves = (struct hf_leaves){0};
    return 0;
}

int hf_leaves_hash(const struct hf_leaves *l, char ret_hex[HF_HASH_HEX])
{
    hf_cleanup(ctx_freep) EVP_MD_CTX *ctx = ctx_new();
    if (!ctx)
        return -ENOMEM;
    for (size_t i = 0; i < l->n; i++) {
        uint64_t at = htole64(l->v[i].at);
        if (EVP_DigestUpdate(ctx, &at, sizeof(at)) != 1 ||
            EVP_DigestUpdate(ctx, l->v[i].sum, HF_SHA256_LEN) != 1)
            return -EIO;
    }
    return finish(ctx, ret_hex);
}

int hf_hash_data(int fd, const bool *stop, char ret_hex[HF_HASH_HEX])
{
    hf_auto_leaves struct hf_leaves leaves = {0};
    int r = hf_leaves_read(fd, NULL, stop, &leaves);
    return r < 0 ? r : hf_leaves_hash(&leaves, ret_hex);
}
