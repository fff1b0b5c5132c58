#include "engine/disk/hash.h"

#include <endian.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>

#define CHUNK (1u << 20)
_Static_assert(CHUNK % HF_HASH_BLOCK == 0, "a chunk is whole blocks");

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

static int add_block(EVP_MD_CTX *ctx, const char *p, size_t n, uint64_t at)
{
    if (hf_is_zero(p, n))
        return 0;
    uint64_t head[2] = {htole64(at), htole64(n)};
    return EVP_DigestUpdate(ctx, head, sizeof(head)) == 1 && EVP_DigestUpdate(ctx, p, n) == 1 ? 0 : -EIO;
}

/* from is aligned. */
static int add_range(EVP_MD_CTX *ctx, int fd, off_t from, off_t to, char *chunk, const bool *stop)
{
    while (from < to) {
        if (stop && __atomic_load_n(stop, __ATOMIC_RELAXED))
            return -ECANCELED;
        size_t want = (size_t)HF_MIN((off_t)CHUNK, to - from);
        ssize_t n = read_full(fd, chunk, want, from);
        if (n < 0)
            return (int)n;
        if ((size_t)n < want)
            return -EIO; /* it shrank meanwhile */
        for (size_t i = 0; i < want; i += HF_HASH_BLOCK) {
            int r = add_block(ctx, chunk + i, HF_MIN((size_t)HF_HASH_BLOCK, want - i), (uint64_t)from + i);
            if (r < 0)
                return r;
        }
        from += n;
    }
    return 0;
}

int hf_hash_data(int fd, const bool *stop, char ret_hex[HF_HASH_HEX])
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    hf_cleanup(ctx_freep) EVP_MD_CTX *ctx = ctx_new();
    if (!ctx)
        return -ENOMEM;
    hf_auto_free char *chunk = hf_xmalloc(CHUNK);
    for (off_t pos = 0; pos < st.st_size;) {
        off_t data = lseek(fd, pos, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break; /* only a hole is left */
        off_t hole = data < 0 ? data : lseek(fd, data, SEEK_HOLE);
        if (hole < 0)
            return -errno;
        data -= data % HF_HASH_BLOCK;
        hole = HF_MIN(st.st_size, (hole + HF_HASH_BLOCK - 1) / HF_HASH_BLOCK * HF_HASH_BLOCK);
        int r = add_range(ctx, fd, data, hole, chunk, stop);
        if (r < 0)
            return r;
        pos = hole;
    }
    return finish(ctx, ret_hex);
}
