#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/path.h"
#include "envd/ca.h"
#include "envd/procenv.h"

#define STORE "/etc/ssl/certs/ca-certificates.crt"
#define PKI "/etc/pki/tls/certs/ca-bundle.crt"
#define CERT(x) "-----BEGIN CERTIFICATE-----\n" x "\n-----END CERTIFICATE-----\n"
#define OTHERS "# a comment\n" CERT("b3RoZXI=") "# last\n" CERT("bW9yZQ==")
#define MARKED(x) "# holdfast: this sandbox's certificate authority\n" x "# holdfast: end\n"

static char root[64];

static int setup(void **state)
{
    (void)snprintf(root, sizeof(root), "/tmp/hf-envd-ca-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    return hf_remove_tree(root);
}

static char *path_of(const char *name)
{
    return hf_xasprintf("%s%s", root, name);
}

static void put(const char *name, const char *text)
{
    hf_auto_free char *path = path_of(name), *dir = path_of(name);
    *strrchr(dir, '/') = '\0';
    assert_int_equal(hf_mkdir_p(dir, 0755), 0);
    assert_int_equal(hf_write_file_atomic(path, text, strlen(text), 0640), 0);
}

static void expect(const char *name, const char *text)
{
    hf_auto_free char *path = path_of(name), *got = NULL;
    int r = hf_read_file(path, 1 << 20, &got, NULL);
    if (!text) {
        assert_int_equal(r, -ENOENT);
        return;
    }
    assert_int_equal(r, 0);
    assert_string_equal(got, text);
}

static void install(const char *pem, const char *bundle)
{
    const char *is = "unset";
    struct hf_err err = {0};
    if (ca_install(root, hf_str_c(pem), &is, &err) < 0)
        fail_msg("%s", err.msg);
    if (bundle)
        assert_string_equal(is, bundle);
    else
        assert_null(is);
}

static void test_install_replace_remove(void **state)
{
    struct stat st;
    hf_auto_free char *path = path_of(STORE);
    put(STORE, OTHERS);
    put(PKI, CERT("cGtp"));
    for (int i = 0; i < 2; i++) {
        install(CERT("b25l"), STORE);
        expect(STORE, OTHERS MARKED(CERT("b25l")));
        expect(PKI, CERT("cGtp") MARKED(CERT("b25l")));
        expect(CA_FILE, CERT("b25l"));
    }
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640); /* as it was */
    install(CERT("dHdv") CERT("dGhyZWU="), STORE);
    expect(STORE, OTHERS MARKED(CERT("dHdv") CERT("dGhyZWU=")));
    expect(CA_FILE, CERT("dHdv") CERT("dGhyZWU="));
    install("", NULL);
    expect(STORE, OTHERS);
    expect(PKI, CERT("cGtp"));
    expect(CA_FILE, NULL);
    install("", NULL);
    expect(STORE, OTHERS);
}

static void test_unchanged_store_is_not_written(void **state)
{
    struct stat before, after;
    hf_auto_free char *path = path_of(STORE);
    put(STORE, OTHERS);
    install(CERT("b25l"), STORE);
    assert_int_equal(stat(path, &before), 0);
    install(CERT("b25l"), STORE);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
}

/* update-ca-certificates in the box has made the store anew, with ours as one of many. */
static void test_after_the_distributions_tool(void **state)
{
    put(STORE, OTHERS);
    install(CERT("b25l"), STORE);
    put(STORE, CERT("b3RoZXI=") CERT("b25l") CERT("bW9yZQ=="));
    install(CERT("dHdv"), STORE);
    expect(STORE, CERT("b3RoZXI=") CERT("bW9yZQ==") MARKED(CERT("dHdv")));
    put(STORE, CERT("b3RoZXI=") CERT("dHdv") CERT("bW9yZQ=="));
    install("", NULL);
    expect(STORE, CERT("b3RoZXI=") CERT("bW9yZQ=="));
}

static void test_no_store(void **state)
{
    install(CERT("b25l"), STORE);
    expect(STORE, MARKED(CERT("b25l")));
    install("", NULL);
    expect(STORE, NULL);
}

static void test_store_without_last_newline(void **state)
{
    put(PKI, "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----");
    install("junk before\r\n-----BEGIN CERTIFICATE-----\r\nb25l\r\n-----END CERTIFICATE-----\r\n", PKI);
    expect(PKI, CERT("YQ==") MARKED(CERT("b25l")));
    expect(STORE, NULL);
}

/* A link stays one, whatever it points at is written; what is no file is left alone. */
static void test_links_and_oddities(void **state)
{
    hf_auto_free char *link = path_of("/etc/ssl/cert.pem"), *fifo = path_of(PKI),
                      *dir = path_of("/etc/pki/tls/certs");
    struct stat st;
    put(STORE, OTHERS);
    assert_int_equal(symlink("certs/ca-certificates.crt", link), 0);
    assert_int_equal(hf_mkdir_p(dir, 0755), 0);
    assert_int_equal(mkfifo(fifo, 0644), 0);
    install(CERT("b25l"), STORE);
    expect(STORE, OTHERS MARKED(CERT("b25l")));
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(lstat(fifo, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
}

/* envd's own descriptors are no way to a file. */
static void test_magic_link(void **state)
{
    hf_auto_free char *store = path_of(STORE), *dir = path_of("/etc/ssl/certs"),
                      *other = path_of("/elsewhere");
    put("/elsewhere", OTHERS);
    assert_int_equal(hf_mkdir_p(dir, 0755), 0);
    FILE *f = fopen(other, "re");
    assert_non_null(f);
    hf_auto_free char *target = hf_xasprintf("/proc/self/fd/%d", fileno(f));
    assert_int_equal(symlink(target, store), 0);
    const char *is = NULL;
    struct hf_err err = {0};
    (void)!ca_install(root, hf_str_c(CERT("b25l")), &is, &err);
    expect("/elsewhere", OTHERS);
    (void)fclose(f);
}

static void test_refuses(void **state)
{
    static const char *const bad[] = {
        "not pem",
        "-----BEGIN CERTIFICATE-----\nb25l\n",
        "-----BEGIN CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n# holdfast: end\n-----END CERTIFICATE-----\n",
        CERT("b25l") "-----BEGIN PRIVATE KEY-----\nb25l\n-----END PRIVATE KEY-----\n",
        "-----BEGIN CERTIFICATE-----\n\n-----END CERTIFICATE-----\n",
    };
    put(STORE, OTHERS);
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        const char *is = NULL;
        struct hf_err err = {0};
        assert_int_equal(ca_install(root, hf_str_c(bad[i]), &is, &err), -EINVAL);
        assert_int_equal(err.status, 400);
    }
    hf_auto_free char *big = hf_xmalloc(CA_PEM_MAX + 100);
    int n = snprintf(big, 64, "-----BEGIN CERTIFICATE-----\n");
    memset(big + n, 'A', CA_PEM_MAX);
    memcpy(big + n + CA_PEM_MAX, "\n-----END CERTIFICATE-----\n", 28);
    const char *is = NULL;
    struct hf_err err = {0};
    assert_int_equal(ca_install(root, hf_str_c(big), &is, &err), -EMSGSIZE);
    expect(STORE, OTHERS);
    expect(CA_FILE, NULL);
}

static void test_environment(void **state)
{
    struct envd e = {.ca_bundle = STORE, .env = json_pack("{s:s}", "PIP_CERT", "/mine")};
    struct envd_user u = {.name = "user", .home = "/home/user"};
    struct procenv env;
    json_auto_t *request = json_pack("{s:s}", "AWS_CA_BUNDLE", "");
    assert_int_equal(procenv_build(&e, &u, request, &env, NULL), 0);
    assert_string_equal(procenv_get(&env, "SSL_CERT_FILE"), STORE);
    assert_string_equal(procenv_get(&env, "REQUESTS_CA_BUNDLE"), STORE);
    assert_string_equal(procenv_get(&env, "CURL_CA_BUNDLE"), STORE);
    assert_string_equal(procenv_get(&env, "GIT_SSL_CAINFO"), STORE);
    assert_string_equal(procenv_get(&env, "NODE_EXTRA_CA_CERTS"), CA_FILE);
    assert_string_equal(procenv_get(&env, "PIP_CERT"), "/mine"); /* the user's own win */
    assert_string_equal(procenv_get(&env, "AWS_CA_BUNDLE"), "");
    procenv_done(&env);
    e.ca_bundle = NULL;
    assert_int_equal(procenv_build(&e, &u, NULL, &env, NULL), 0);
    assert_string_equal(procenv_get(&env, "SSL_CERT_FILE"), "");
    procenv_done(&env);
    json_decref(e.env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_install_replace_remove, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unchanged_store_is_not_written, setup, teardown),
        cmocka_unit_test_setup_teardown(test_after_the_distributions_tool, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_store, setup, teardown),
        cmocka_unit_test_setup_teardown(test_store_without_last_newline, setup, teardown),
        cmocka_unit_test_setup_teardown(test_links_and_oddities, setup, teardown),
        cmocka_unit_test_setup_teardown(test_magic_link, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refuses, setup, teardown),
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
