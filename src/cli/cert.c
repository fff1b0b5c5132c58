/* holdfast cert init | show: a local certificate authority and a certificate for the daemon's domain. */
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/id.h"
#include "base/path.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/show.h"
#include "control/config.h"
#include "wire/tls.h"

#define DAYS_DEFAULT 397u /* what browsers accept of a leaf, and a little less */
#define DAYS_MAX 3650u
#define CA_DAYS 3650u
#define PEM_MAX (1u << 20)
#define STORE_DIR "/usr/local/share/ca-certificates"
#define NAMES_MAX 6u

extern char **environ;

#define DATA_OPT                                                                                         \
    {                                                                                                    \
        "data", 0, "DIR", "the daemon's data directory (HOLDFAST_DATA; default /var/lib/holdfast)", NULL \
    }

static const struct hf_opt init_opts[] = {
    DATA_OPT,
    {"domain", 0, "NAME", "for NAME and *.NAME (default: the daemon's setting `domain`)", NULL},
    {"days", 0, "N", "how long the certificate is good (default 397, at most 3650)", NULL},
    {"install", 0, NULL, "put the authority into this system's store, so that programs here trust it", NULL},
    {"new-ca", 0, NULL, "make a new authority as well; who trusts the old one does not trust this one", NULL},
    {0},
};

static const struct hf_opt show_opts[] = {
    DATA_OPT, {"ca", 0, NULL, "print the authority's certificate (PEM), for other machines", NULL}, {0}};

struct place {
    struct hf_config cfg;
    char *dir, *ca, *ca_key, *cert, *key;
};

static void place_done(struct place *p)
{
    hf_config_done(&p->cfg);
    free(p->dir);
    free(p->ca);
    free(p->ca_key);
    free(p->cert);
    free(p->key);
}

/* The data directory by the same rules as the daemon's. */
static int find_place(const struct hf_args *a, struct place *p, struct hf_err *err)
{
    const char *flag = hf_arg(a, "data");
    hf_config_defaults(&p->cfg);
    int r = flag ? hf_config_set(&p->cfg, "data", flag, err) : 0;
    r = r < 0 ? r : hf_config_load(&p->cfg, NULL, err);
    r = r < 0 ? r : hf_config_check(&p->cfg, err);
    if (r < 0)
        return r;
    p->dir = hf_xasprintf("%s/tls", p->cfg.data_dir);
    p->ca = hf_xasprintf("%s/ca.pem", p->dir);
    p->ca_key = hf_xasprintf("%s/ca-key.pem", p->dir);
    p->cert = hf_xasprintf("%s/cert.pem", p->dir);
    p->key = hf_xasprintf("%s/key.pem", p->dir);
    return 0;
}

static int fail(struct hf_cli *cli, const struct hf_err *err)
{
    if (err->r == -EACCES || err->r == -EPERM)
        hf_cli_hint(cli, "the certificate lives in the daemon's data directory; use its user or --data DIR");
    return hf_cli_fail(cli, err);
}

static int write_pem(const char *path, const char *pem, mode_t mode, struct hf_err *err)
{
    int r = hf_write_file_atomic(path, pem, strlen(pem), mode);
    return r < 0 ? hf_err_set(err, r, "cannot write %s: %s", path, strerror(-r)) : 0;
}

static void wipe(char **pem)
{
    if (*pem)
        explicit_bzero(*pem, strlen(*pem));
    free(*pem);
}

/* ---- init ---- */

static int take_ca(const struct place *p, bool renew, char **cert, char **key, struct hf_err *err)
{
    size_t n;
    int r = renew ? -ENOENT : hf_read_file(p->ca, PEM_MAX, cert, &n);
    if (r == 0)
        r = hf_read_file(p->ca_key, PEM_MAX, key, &n);
    if (r == 0)
        return 0;
    if (r != -ENOENT)
        return hf_err_set(err, r, "cannot read %s: %s", p->ca, strerror(-r));
    free(hf_take_ptr(*cert));
    char host[128] = "";
    (void)gethostname(host, sizeof(host) - 1);
    hf_auto_free char *name = hf_xasprintf("holdfast CA of %.40s", *host ? host : "this machine");
    r = hf_cert_ca(name, CA_DAYS, cert, key, err);
    r = r < 0 ? r : write_pem(p->ca_key, *key, 0600, err);
    return r < 0 ? r : write_pem(p->ca, *cert, 0600, err);
}

static int make_leaf(const struct place *p, const char *domain, unsigned days, const char *ca,
                     const char *ca_key, struct hf_err *err)
{
    hf_auto_free char *host = hf_xstrndup(domain, strcspn(domain, ":"));
    hf_auto_free char *wild = hf_xasprintf("*.%s", host);
    const char *names[NAMES_MAX] = {"localhost", "*.localhost", "127.0.0.1", "::1"};
    char *cert = NULL;
    hf_cleanup(wipe) char *key = NULL;
    size_t n = 4;
    if (strcmp(host, "localhost") != 0) {
        memmove(names + 2, names, n * sizeof(*names)); /* the first name is the one that people see */
        names[0] = host;
        names[1] = wild;
        n += 2;
    }
    int r = hf_cert_leaf(ca, ca_key, names, n, days, &cert, &key, err);
    r = r < 0 ? r : write_pem(p->key, key, 0600, err);
    r = r < 0 ? r : write_pem(p->cert, cert, 0600, err);
    free(cert);
    return r;
}

static int run_program(const char *const *argv, struct hf_err *err)
{
    pid_t pid;
    int status = 0;
    int r = posix_spawnp(&pid, argv[0], NULL, NULL, (char *const *)(uintptr_t)argv, environ);
    if (r != 0)
        return hf_err_set(err, -r, "cannot run %s: %s", argv[0], strerror(r));
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return hf_err_set(err, -EIO, "%s failed", argv[0]);
    return 0;
}

/* One file per data directory, so that several daemons of one machine do not replace each other's. */
static char *store_path(const struct place *p)
{
    unsigned char digest[HF_SHA256_LEN];
    char hex[9];
    hf_sha256_of(p->cfg.data_dir, strlen(p->cfg.data_dir), digest);
    hf_hex(digest, 4, hex);
    return hf_xasprintf(STORE_DIR "/holdfast-%s.crt", hex);
}

static int install(struct hf_cli *cli, const struct place *p, const char *ca, struct hf_err *err)
{
    static const char *const update[] = {"update-ca-certificates", NULL};
    hf_auto_free char *path = store_path(p);
    if (access(STORE_DIR, F_OK) < 0)
        return hf_err_set(err, -ENOENT,
                          "%s does not exist: this is no Debian-like system; add %s to its store", STORE_DIR,
                          p->ca);
    int r = write_pem(path, ca, 0644, err);
    /* Its report is for people and must not stand where a program reads ours. */
    int out = r < 0 ? -1 : dup(STDOUT_FILENO);
    if (out >= 0)
        (void)dup2(STDERR_FILENO, STDOUT_FILENO);
    r = r < 0 ? r : run_program(update, err);
    if (out >= 0)
        (void)dup2(out, STDOUT_FILENO);
    hf_close(out);
    if (r == 0)
        hf_cli_say(cli, "installed as %s", path);
    return r;
}

static int days_of(const struct hf_args *a, unsigned *ret, struct hf_err *err)
{
    const char *text = hf_arg(a, "days");
    uint64_t v = DAYS_DEFAULT;
    if (text && (hf_parse_u64(hf_str_c(text), DAYS_MAX, &v) < 0 || v == 0))
        return hf_err_set(err, -EINVAL, "--days takes a number from 1 to %u, not '%s'", DAYS_MAX, text);
    *ret = (unsigned)v;
    return 0;
}

static void tell(struct hf_cli *cli, const struct place *p, const char *domain)
{
    if (cli->json) {
        json_t *j =
            json_pack("{s:s, s:s, s:s, s:s}", "ca", p->ca, "cert", p->cert, "key", p->key, "domain", domain);
        hf_show_json(j);
        json_decref(j);
        return;
    }
    (void)puts(p->cert);
    hf_cli_say(cli, "serve with it: holdfast serve --domain %s --tls-listen 0.0.0.0:443", domain);
    hf_cli_say(cli, "Node.js trusts it with: export NODE_EXTRA_CA_CERTS=%s", p->ca);
}

static int run_init(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_cleanup(place_done) struct place p = {0};
    char *ca = NULL;
    hf_cleanup(wipe) char *ca_key = NULL;
    unsigned days = 0;
    const char *given = hf_arg(args, "domain");
    if (days_of(args, &days, &err) < 0)
        return hf_cli_usage(cli, args->verb, "%s", err.msg);
    int r = find_place(args, &p, &err);
    const char *domain = given ? given : p.cfg.domain;
    if (r == 0 && (r = hf_mkdir_p(p.dir, 0700)) < 0)
        (void)hf_err_set(&err, r, "cannot make the directory %s: %s", p.dir, strerror(-r));
    r = r < 0 ? r : take_ca(&p, hf_arg(args, "new-ca") != NULL, &ca, &ca_key, &err);
    r = r < 0 ? r : make_leaf(&p, domain, days, ca, ca_key, &err);
    if (r == 0 && hf_arg(args, "install"))
        r = install(cli, &p, ca, &err);
    free(ca);
    if (r < 0)
        return fail(cli, &err);
    tell(cli, &p, domain);
    return HF_EXIT_OK;
}

static const struct hf_verb init_verb = {
    .name = "init",
    .summary = "make a local authority and a certificate for the domain",
    .opts = init_opts,
    .details = "The certificate is for NAME, *.NAME, localhost, *.localhost and the loopback addresses. An\n"
               "authority that exists already signs again; a running daemon takes the new certificate by\n"
               "itself. With a certificate of your own, set tls_cert and tls_key instead.",
    .examples = "holdfast cert init --domain sbx.example --install\n"
                "holdfast cert show --ca > /tmp/holdfast-ca.pem",
    .run = run_init,
};

/* ---- show ---- */

static void add_names(json_t *into, const X509 *x)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(x, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *g = sk_GENERAL_NAME_value(names, i);
        if (g->type != GEN_DNS)
            continue;
        (void)json_array_append_new(into, json_stringn((const char *)ASN1_STRING_get0_data(g->d.dNSName),
                                                       (size_t)ASN1_STRING_length(g->d.dNSName)));
    }
    GENERAL_NAMES_free(names);
}

static json_t *describe(const char *pem)
{
    BIO *b = BIO_new_mem_buf(pem, -1);
    X509 *x = b ? PEM_read_bio_X509(b, NULL, NULL, NULL) : NULL;
    BIO_free(b);
    if (!x)
        return NULL;
    unsigned char digest[EVP_MAX_MD_SIZE];
    char hex[2 * EVP_MAX_MD_SIZE + 1], text[40] = "";
    unsigned n = 0;
    struct tm tm;
    json_t *names = json_array();
    add_names(names, x);
    if (X509_digest(x, EVP_sha256(), digest, &n) != 1)
        n = 0;
    hf_hex(digest, n, hex);
    if (ASN1_TIME_to_tm(X509_get0_notAfter(x), &tm) == 1)
        (void)strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
    X509_free(x);
    return json_pack("{s:o, s:s, s:s}", "names", names, "expires_at", text, "sha256", hex);
}

static void print_shown(const struct hf_cli *cli, const struct place *p, const char *cert_path, json_t *v)
{
    hf_auto_buf struct hf_buf names = HF_BUF_INIT(8192);
    char left[HF_HUMAN_MAX];
    size_t i;
    json_t *name;
    int r = 0;
    json_array_foreach(json_object_get(v, "names"), i, name)
    {
        r = r < 0 ? r : hf_buf_addf(&names, "%s%s", i ? " " : "", json_string_value(name));
    }
    hf_show_field(cli, "Certificate", "%s", cert_path);
    hf_show_field(cli, "Names", "%s", r == 0 && names.n ? names.p : "");
    hf_show_field(cli, "Expires", "%s", hf_show_str(v, "expires_at"));
    hf_show_field(cli, "Expires in", "%s", hf_show_until(v, "expires_at", left));
    hf_show_field(cli, "SHA-256", "%s", hf_show_str(v, "sha256"));
    if (access(p->ca, F_OK) < 0)
        return;
    hf_auto_free char *stored = store_path(p);
    hf_show_field(cli, "Authority", "%s", p->ca);
    hf_show_field(cli, "Installed", "%s", access(stored, F_OK) == 0 ? "yes" : "no");
    hf_show_field(cli, "Node.js", "NODE_EXTRA_CA_CERTS=%s", p->ca);
}

static int show_ca(struct hf_cli *cli, const struct place *p)
{
    struct hf_err err = {0};
    hf_auto_free char *pem = NULL;
    size_t n;
    int r = hf_read_file(p->ca, PEM_MAX, &pem, &n);
    if (r < 0) {
        (void)hf_err_set(&err, r, "cannot read %s: %s; `holdfast cert init` makes an authority", p->ca,
                         strerror(-r));
        return fail(cli, &err);
    }
    (void)fputs(pem, stdout);
    return HF_EXIT_OK;
}

static int run_show(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_cleanup(place_done) struct place p = {0};
    hf_auto_free char *pem = NULL;
    size_t n;
    int r = find_place(args, &p, &err);
    if (r < 0)
        return fail(cli, &err);
    if (hf_arg(args, "ca"))
        return show_ca(cli, &p);
    const char *path = *p.cfg.tls_cert ? p.cfg.tls_cert : p.cert;
    r = hf_read_file(path, PEM_MAX, &pem, &n);
    if (r < 0)
        r = hf_err_set(&err, r, "cannot read %s: %s; `holdfast cert init` makes a certificate", path,
                       strerror(-r));
    json_auto_t *v = r < 0 ? NULL : describe(pem);
    if (r == 0 && !v)
        r = hf_err_set(&err, -EINVAL, "%s holds no certificate", path);
    if (r < 0)
        return fail(cli, &err);
    (void)json_object_set_new(v, "cert", json_string(path));
    if (cli->json)
        hf_show_json(v);
    else
        print_shown(cli, &p, path, v);
    return HF_EXIT_OK;
}

static const struct hf_verb show_verb = {
    .name = "show",
    .summary = "show the certificate that the daemon uses",
    .opts = show_opts,
    .examples = "holdfast cert show\nholdfast cert show --ca > holdfast-ca.pem",
    .run = run_show,
};

static const struct hf_verb *const subs[] = {&init_verb, &show_verb, NULL};

const struct hf_verb hf_verb_cert = {
    .name = "cert",
    .summary = "a certificate for HTTPS",
    .examples = "holdfast cert init --domain sbx.example --install",
    .sub = subs,
};
