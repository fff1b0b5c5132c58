/* AES-256-GCM with the node's key (docs/adr/0015). */
#include "control/seal.h"

#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/id.h"
#include "base/path.h"

enum { KEY_LEN = 32, NONCE_LEN = 12, TAG_LEN = 16, SEAL_VERSION = 1 };
_Static_assert(1 + NONCE_LEN + TAG_LEN == HF_SEAL_OVERHEAD, "HF_SEAL_OVERHEAD");

struct hf_sealer {
    unsigned char key[KEY_LEN];
};

static EVP_CIPHER_CTX *cipher(void)
{
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    if (!c)
        abort(); /* out of memory */
    return c;
}

/* A file that others can read is no place for a key; whoever made it so has to choose a new one. */
static int check_file(int fd, const char *path, struct hf_err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return hf_err_set(err, -errno, "cannot look at the key file %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return hf_err_set(err, -EINVAL, "the key file %s is not a regular file", path);
    if ((st.st_mode & 077) != 0 || (st.st_uid != geteuid() && st.st_uid != 0))
        return hf_err_set(err, -EACCES,
                          "the key file %s may be read by others (mode %04o): make it 0600 and, if somebody "
                          "could have read it, set every secret again with a new key",
                          path, (unsigned)st.st_mode & 07777u);
    if (st.st_size != KEY_LEN)
        return hf_err_set(err, -EINVAL, "the key file %s holds %lld bytes, not %d", path,
                          (long long)st.st_size, KEY_LEN);
    return 0;
}

static int load(const char *path, unsigned char key[KEY_LEN], struct hf_err *err)
{
    hf_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        int r = -errno;
        return hf_err_set(err, r, "cannot open the key file %s: %s", path, strerror(-r));
    }
    int r = check_file(fd, path, err);
    if (r < 0)
        return r;
    if (pread(fd, key, KEY_LEN, 0) != KEY_LEN)
        return hf_err_set(err, -EIO, "cannot read the key file %s", path);
    return 0;
}

/* The key must be on the disk before anything is sealed with it, and a second starter must not replace it. */
static int make(const char *path, struct hf_err *err)
{
    unsigned char key[KEY_LEN];
    char suffix[13];
    hf_random(key, sizeof(key));
    hf_random_id(suffix, sizeof(suffix) - 1);
    hf_auto_free char *temporary = hf_xasprintf("%s.%s", path, suffix);
    int r = hf_write_file_atomic(temporary, key, sizeof(key), 0600);
    explicit_bzero(key, sizeof(key));
    if (r == 0 && link(temporary, path) < 0 && errno != EEXIST)
        r = -errno;
    (void)unlink(temporary);
    if (r == 0) {
        hf_auto_free char *dir = hf_xstrdup(path);
        *strrchr(dir, '/') = '\0';
        hf_auto_close int fd = open(*dir ? dir : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || fsync(fd) < 0)
            r = -errno;
    }
    return r < 0 ? hf_err_set(err, r, "cannot make the key file %s: %s", path, strerror(-r)) : 0;
}

int hf_sealer_open(const char *data_dir, struct hf_sealer **ret, struct hf_err *err)
{
    const char *given = getenv("HOLDFAST_SECRET_KEY_FILE");
    hf_auto_free char *path = given && *given ? hf_xstrdup(given) : hf_xasprintf("%s/secret.key", data_dir);
    if (*path != '/')
        return hf_err_set(err, -EINVAL, "HOLDFAST_SECRET_KEY_FILE: %s is not an absolute path", path);
    struct hf_sealer *s = hf_new(struct hf_sealer);
    (void)mlock(s, sizeof(*s)); /* not in swap; where that is forbidden it still works */
    int r = load(path, s->key, err);
    if (r == -ENOENT && !(given && *given)) {
        r = make(path, err);
        if (r == 0)
            r = load(path, s->key, err);
    }
    if (r < 0) {
        hf_sealer_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

void hf_sealer_free(struct hf_sealer *s)
{
    if (!s)
        return;
    explicit_bzero(s, sizeof(*s));
    (void)munlock(s, sizeof(*s));
    free(s);
}

static bool seal_with(EVP_CIPHER_CTX *c, const struct hf_sealer *s, const char *label, const void *p, int n,
                      unsigned char *out)
{
    int len = 0, tail = 0;
    return EVP_EncryptInit_ex(c, EVP_aes_256_gcm(), NULL, s->key, out + 1) == 1 &&
           EVP_EncryptUpdate(c, NULL, &len, (const unsigned char *)label, (int)strlen(label)) == 1 &&
           EVP_EncryptUpdate(c, out + 1 + NONCE_LEN, &len, p, n) == 1 &&
           EVP_EncryptFinal_ex(c, out + 1 + NONCE_LEN + len, &tail) == 1 &&
           EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, TAG_LEN, out + 1 + NONCE_LEN + n) == 1;
}

int hf_seal(const struct hf_sealer *s, const char *label, const void *p, size_t n, unsigned char **ret,
            size_t *ret_n)
{
    if (n > (size_t)INT_MAX - HF_SEAL_OVERHEAD)
        return -EMSGSIZE;
    unsigned char *out = hf_xmalloc(n + HF_SEAL_OVERHEAD);
    out[0] = SEAL_VERSION;
    hf_random(out + 1, NONCE_LEN);
    EVP_CIPHER_CTX *c = cipher();
    bool ok = seal_with(c, s, label, p, (int)n, out);
    EVP_CIPHER_CTX_free(c);
    if (!ok) {
        free(out);
        return -EIO;
    }
    *ret = out;
    *ret_n = n + HF_SEAL_OVERHEAD;
    return 0;
}

static bool unseal_with(EVP_CIPHER_CTX *c, const struct hf_sealer *s, const char *label,
                        const unsigned char *in, int n, unsigned char *out)
{
    int len = 0, tail = 0;
    unsigned char tag[TAG_LEN];
    memcpy(tag, in + 1 + NONCE_LEN + n, TAG_LEN);
    return EVP_DecryptInit_ex(c, EVP_aes_256_gcm(), NULL, s->key, in + 1) == 1 &&
           EVP_DecryptUpdate(c, NULL, &len, (const unsigned char *)label, (int)strlen(label)) == 1 &&
           EVP_DecryptUpdate(c, out, &len, in + 1 + NONCE_LEN, n) == 1 &&
           EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, TAG_LEN, tag) == 1 &&
           EVP_DecryptFinal_ex(c, out + len, &tail) == 1;
}

int hf_unseal(const struct hf_sealer *s, const char *label, const void *p, size_t n, char **ret,
              size_t *ret_n)
{
    const unsigned char *in = p;
    if (n < HF_SEAL_OVERHEAD || n > INT_MAX || in[0] != SEAL_VERSION)
        return -EBADMSG;
    size_t text_n = n - HF_SEAL_OVERHEAD;
    char *out = hf_xmalloc(text_n + 1);
    EVP_CIPHER_CTX *c = cipher();
    bool ok = unseal_with(c, s, label, in, (int)text_n, (unsigned char *)out);
    EVP_CIPHER_CTX_free(c);
    if (!ok) {
        explicit_bzero(out, text_n); /* the cipher writes before it knows */
        free(out);
        return -EBADMSG;
    }
    out[text_n] = '\0';
    *ret = out;
    *ret_n = text_n;
    return 0;
}

void hf_wipe_json(json_t *v)
{
    const char *text = json_string_value(v), *key;
    json_t *member;
    if (text)
        explicit_bzero((char *)(uintptr_t)text, json_string_length(v));
    json_object_foreach(v, key, member)
    {
        hf_wipe_json(member);
    }
}
