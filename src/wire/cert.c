/* Certificates: a CA, leaves signed by it, and a minter that makes many of them. Keys are P-256. */
#include <arpa/inet.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include "wire/tls_int.h"

#define BACKDATE_S (-3600L) /* clocks of clients may be behind */
#define NAME_MAX_BYTES 253u
#define COMMON_NAME_MAX 64u /* RFC 5280 ub-common-name */
#define MINTED_DAYS 30u
#define DAYS_MAX 36500u

static int set_serial(X509 *x)
{
    unsigned char b[16];
    if (RAND_bytes(b, sizeof(b)) != 1)
        return -EIO;
    b[0] &= 0x7f; /* positive … */
    b[0] |= 0x40; /* … and never zero */
    BIGNUM *bn = BN_bin2bn(b, sizeof(b), NULL);
    bool ok = bn && BN_to_ASN1_INTEGER(bn, X509_get_serialNumber(x));
    BN_free(bn);
    return ok ? 0 : -EIO;
}

static int add_ext(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value); /* value: constants only */
    int ok = e && X509_add_ext(x, e, -1);
    X509_EXTENSION_free(e);
    return ok ? 0 : -EIO;
}

static int add_subject(X509 *x, const char *cn)
{
    X509_NAME *name = X509_get_subject_name(x);
    int ok =
        X509_NAME_add_entry_by_txt(name, "O", MBSTRING_ASC, (const unsigned char *)"holdfast", -1, -1, 0);
    if (ok && strlen(cn) <= COMMON_NAME_MAX)
        ok = X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)cn, -1, -1, 0);
    return ok ? 0 : -EINVAL;
}

/* Version, serial, times, subject and key: what every certificate has. */
static X509 *blank(const char *cn, EVP_PKEY *key, unsigned days)
{
    X509 *x = X509_new();
    bool ok = x && X509_set_version(x, X509_VERSION_3) && set_serial(x) == 0 &&
              X509_gmtime_adj(X509_getm_notBefore(x), BACKDATE_S) &&
              X509_time_adj_ex(X509_getm_notAfter(x), (int)days, 0, NULL) && X509_set_pubkey(x, key) &&
              add_subject(x, cn) == 0;
    if (ok)
        return x;
    X509_free(x);
    return NULL;
}

static int to_pem(X509 *x, EVP_PKEY *key, char **ret_cert, char **ret_key)
{
    hf_cleanup(hf_bio_freep) BIO *c = BIO_new(BIO_s_mem());
    hf_cleanup(hf_bio_freep) BIO *k = BIO_new(BIO_s_secmem());
    char *p, *q;
    if (!c || !k || !PEM_write_bio_X509(c, x) ||
        !PEM_write_bio_PKCS8PrivateKey(k, key, NULL, NULL, 0, NULL, NULL))
        return -EIO;
    long n = BIO_get_mem_data(c, &p), m = BIO_get_mem_data(k, &q);
    *ret_cert = hf_xstrndup(p, (size_t)n);
    *ret_key = hf_xstrndup(q, (size_t)m);
    return 0;
}

static int days_ok(unsigned days, struct hf_err *err)
{
    if (days && days <= DAYS_MAX)
        return 0;
    return hf_err_set(err, -EINVAL, "a certificate is valid for 1 to %u days", DAYS_MAX);
}

int hf_cert_ca(const char *common_name, unsigned days, char **ret_cert, char **ret_key, struct hf_err *err)
{
    if (days_ok(days, err) < 0)
        return -EINVAL;
    if (!*common_name || strlen(common_name) > COMMON_NAME_MAX)
        return hf_err_set(err, -EINVAL, "a CA's name has 1 to %u bytes", COMMON_NAME_MAX);
    hf_cleanup(hf_pkey_freep) EVP_PKEY *key = EVP_EC_gen("P-256");
    hf_cleanup(hf_x509_freep) X509 *x = key ? blank(common_name, key, days) : NULL;
    bool ok = x && X509_set_issuer_name(x, X509_get_subject_name(x)) &&
              add_ext(x, x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") == 0 &&
              add_ext(x, x, NID_key_usage, "critical,keyCertSign,cRLSign") == 0 &&
              add_ext(x, x, NID_subject_key_identifier, "hash") == 0 && X509_sign(x, key, EVP_sha256()) &&
              to_pem(x, key, ret_cert, ret_key) == 0;
    return ok ? 0 : hf_err_set(err, -EIO, "can't make the CA's certificate: %s", hf_tls_reason());
}

/* ---- leaves ---- */

static bool name_ok(const char *s)
{
    size_t n = strlen(s);
    if (s[0] == '*' && s[1] == '.')
        s += 2;
    if (!*s || n > NAME_MAX_BYTES || *s == '.')
        return false;
    for (; *s; s++) {
        bool ok = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') ||
                  *s == '-' || *s == '_' || (*s == '.' && s[1] != '.');
        if (!ok)
            return false;
    }
    return true;
}

static int push_name(GENERAL_NAMES *list, const char *text)
{
    unsigned char ip[16];
    int n = inet_pton(AF_INET, text, ip) == 1 ? 4 : inet_pton(AF_INET6, text, ip) == 1 ? 16 : 0;
    if (!n && !name_ok(text))
        return -EINVAL;
    GENERAL_NAME *g = GENERAL_NAME_new();
    ASN1_STRING *v = n ? ASN1_OCTET_STRING_new() : ASN1_IA5STRING_new();
    if (!g || !v || !ASN1_STRING_set(v, n ? (const void *)ip : text, n ? n : (int)strlen(text))) {
        GENERAL_NAME_free(g);
        ASN1_STRING_free(v);
        return -ENOMEM;
    }
    GENERAL_NAME_set0_value(g, n ? GEN_IPADD : GEN_DNS, v);
    if (sk_GENERAL_NAME_push(list, g) > 0)
        return 0;
    GENERAL_NAME_free(g);
    return -ENOMEM;
}

static int add_names(X509 *x, const char *const *names, size_t n, struct hf_err *err)
{
    GENERAL_NAMES *list = sk_GENERAL_NAME_new_null();
    int r = list && n ? 0 : -EINVAL;
    const char *bad = "";
    for (size_t i = 0; r == 0 && i < n; i++) {
        r = push_name(list, names[i]);
        bad = names[i];
    }
    if (r == 0 && !X509_add1_ext_i2d(x, NID_subject_alt_name, list, 0, X509V3_ADD_DEFAULT))
        r = -EIO;
    sk_GENERAL_NAME_pop_free(list, GENERAL_NAME_free);
    return r == 0 ? 0 : hf_err_set(err, r, "\"%.100s\" is neither a host name nor an IP address", bad);
}

/* A leaf does not outlive its CA. */
static int clip_to(X509 *x, const X509 *ca)
{
    if (ASN1_TIME_compare(X509_get0_notAfter(x), X509_get0_notAfter(ca)) <= 0)
        return 0;
    return X509_set1_notAfter(x, X509_get0_notAfter(ca)) ? 0 : -EIO;
}

static X509 *make_leaf(X509 *ca, EVP_PKEY *ca_key, EVP_PKEY *key, const char *const *names, size_t n,
                       unsigned days, struct hf_err *err)
{
    hf_cleanup(hf_x509_freep) X509 *x = blank(n ? names[0] : "", key, days);
    if (!x) {
        (void)hf_err_set(err, -EIO, "can't make a certificate: %s", hf_tls_reason());
        return NULL;
    }
    if (add_names(x, names, n, err) < 0)
        return NULL;
    bool ok = X509_set_issuer_name(x, X509_get_subject_name(ca)) && clip_to(x, ca) == 0 &&
              add_ext(x, ca, NID_basic_constraints, "critical,CA:FALSE") == 0 &&
              add_ext(x, ca, NID_key_usage, "critical,digitalSignature") == 0 &&
              add_ext(x, ca, NID_ext_key_usage, "serverAuth") == 0 &&
              add_ext(x, ca, NID_subject_key_identifier, "hash") == 0 &&
              add_ext(x, ca, NID_authority_key_identifier, "keyid:always") == 0 &&
              X509_sign(x, ca_key, EVP_sha256());
    if (!ok) {
        (void)hf_err_set(err, -EIO, "can't sign the certificate: %s", hf_tls_reason());
        return NULL;
    }
    return hf_take_ptr(x);
}

static int load_ca(const char *cert, const char *key, X509 **ret_ca, EVP_PKEY **ret_key, struct hf_err *err)
{
    hf_cleanup(hf_x509_freep) X509 *ca = hf_pem_cert(cert, err);
    hf_cleanup(hf_pkey_freep) EVP_PKEY *k = ca ? hf_pem_key(key, err) : NULL;
    if (!k)
        return -EINVAL;
    if (X509_check_private_key(ca, k) != 1 || X509_check_ca(ca) != 1) {
        ERR_clear_error();
        return hf_err_set(err, -EINVAL, "the certificate and its key are not those of a CA");
    }
    *ret_ca = hf_take_ptr(ca);
    *ret_key = hf_take_ptr(k);
    return 0;
}

int hf_cert_leaf(const char *ca_cert, const char *ca_key, const char *const *names, size_t n, unsigned days,
                 char **ret_cert, char **ret_key, struct hf_err *err)
{
    hf_cleanup(hf_x509_freep) X509 *ca = NULL;
    hf_cleanup(hf_pkey_freep) EVP_PKEY *sign = NULL;
    if (days_ok(days, err) < 0 || load_ca(ca_cert, ca_key, &ca, &sign, err) < 0)
        return -EINVAL;
    hf_cleanup(hf_pkey_freep) EVP_PKEY *key = EVP_EC_gen("P-256");
    if (!key)
        return hf_err_set(err, -EIO, "can't make a key: %s", hf_tls_reason());
    hf_cleanup(hf_x509_freep) X509 *x = make_leaf(ca, sign, key, names, n, days, err);
    if (!x)
        return -EINVAL;
    int r = to_pem(x, key, ret_cert, ret_key);
    return r < 0 ? hf_err_set(err, r, "can't write the certificate: %s", hf_tls_reason()) : 0;
}

/* ---- minter ---- */

struct hf_minter {
    X509 *ca;
    EVP_PKEY *ca_key, *key;
};

int hf_minter_new(const char *ca_cert, const char *ca_key, struct hf_minter **ret, struct hf_err *err)
{
    X509 *ca;
    EVP_PKEY *sign;
    int r = load_ca(ca_cert, ca_key, &ca, &sign, err);
    if (r < 0)
        return r;
    struct hf_minter *m = hf_new(struct hf_minter);
    *m = (struct hf_minter){ca, sign, EVP_EC_gen("P-256")};
    if (!m->key) {
        hf_minter_free(m);
        return hf_err_set(err, -EIO, "can't make a key: %s", hf_tls_reason());
    }
    *ret = m;
    return 0;
}

int hf_minter_ctx(struct hf_minter *m, const char *name, unsigned alpn, struct hf_tls_ctx **ret,
                  struct hf_err *err)
{
    hf_cleanup(hf_x509_freep) X509 *x = make_leaf(m->ca, m->ca_key, m->key, &name, 1, MINTED_DAYS, err);
    return x ? hf_tls_ctx_from(x, m->key, alpn, ret, err) : -EINVAL;
}

void hf_minter_free(struct hf_minter *m)
{
    if (!m)
        return;
    X509_free(m->ca);
    EVP_PKEY_free(m->ca_key);
    EVP_PKEY_free(m->key);
    free(m);
}
