/* Encryption at rest: what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/path.h"
#include "control/seal.h"

static char dir[64], path[96];

static int setup(void **state)
{
    (void)unsetenv("HOLDFAST_SECRET_KEY_FILE");
    (void)snprintf(dir, sizeof(dir), "/tmp/hf-seal-XXXXXX");
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/secret.key", dir);
    return 0;
}

static int teardown(void **state)
{
    return hf_remove_tree(dir);
}

static struct hf_sealer *open_sealer(void)
{
    struct hf_sealer *s = NULL;
    struct hf_err err = {0};
    if (hf_sealer_open(dir, &s, &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

static void round_trip(void **state)
{
    struct hf_sealer *s = open_sealer();
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, 32);
    unsigned char *a, *b;
    size_t a_n, b_n, n;
    assert_int_equal(hf_seal(s, "t/secret/x", "value", 5, &a, &a_n), 0);
    assert_int_equal(hf_seal(s, "t/secret/x", "value", 5, &b, &b_n), 0);
    assert_int_equal(a_n, 5 + HF_SEAL_OVERHEAD);
    assert_memory_not_equal(a, b, a_n); /* a nonce each */
    assert_null(memmem(a, a_n, "value", 5));
    hf_sealer_free(s);
    s = open_sealer(); /* the same key again */
    char *text;
    assert_int_equal(hf_unseal(s, "t/secret/x", a, a_n, &text, &n), 0);
    assert_int_equal(n, 5);
    assert_string_equal(text, "value");
    free(text);
    free(a);
    free(b);
    assert_int_equal(hf_seal(s, "l", "", 0, &a, &a_n), 0);
    assert_int_equal(hf_unseal(s, "l", a, a_n, &text, &n), 0);
    assert_int_equal(n, 0);
    free(text);
    free(a);
    hf_sealer_free(s);
}

static void wrong_label(void **state)
{
    struct hf_sealer *s = open_sealer();
    unsigned char *a;
    size_t a_n, n;
    char *text = NULL;
    assert_int_equal(hf_seal(s, "a/secret/x", "value", 5, &a, &a_n), 0);
    assert_int_equal(hf_unseal(s, "b/secret/x", a, a_n, &text, &n), -EBADMSG); /* moved to another tenant */
    assert_int_equal(hf_unseal(s, "a/secret/xx", a, a_n, &text, &n), -EBADMSG);
    assert_int_equal(hf_unseal(s, "", a, a_n, &text, &n), -EBADMSG);
    assert_null(text);
    free(a);
    hf_sealer_free(s);
}

static void bit_flips(void **state)
{
    struct hf_sealer *s = open_sealer();
    unsigned char *a;
    size_t a_n, n;
    char *text = NULL;
    assert_int_equal(hf_seal(s, "l", "value", 5, &a, &a_n), 0);
    for (size_t i = 0; i < a_n * 8; i++) {
        a[i / 8] ^= (unsigned char)(1u << (i % 8));
        assert_int_equal(hf_unseal(s, "l", a, a_n, &text, &n), -EBADMSG);
        a[i / 8] ^= (unsigned char)(1u << (i % 8));
    }
    for (size_t cut = 0; cut < a_n; cut++)
        assert_int_equal(hf_unseal(s, "l", a, cut, &text, &n), -EBADMSG);
    assert_null(text);
    free(a);
    hf_sealer_free(s);
}

static void another_key(void **state)
{
    struct hf_sealer *s = open_sealer();
    unsigned char *a;
    size_t a_n, n;
    char *text = NULL;
    assert_int_equal(hf_seal(s, "l", "value", 5, &a, &a_n), 0);
    hf_sealer_free(s);
    assert_int_equal(unlink(path), 0);
    s = open_sealer();
    assert_int_equal(hf_unseal(s, "l", a, a_n, &text, &n), -EBADMSG);
    free(a);
    hf_sealer_free(s);
}

static void refused(int expect, const char *word)
{
    struct hf_sealer *s = NULL;
    struct hf_err err = {0};
    assert_int_equal(hf_sealer_open(dir, &s, &err), expect);
    assert_null(s);
    if (!strstr(err.msg, word))
        fail_msg("%s", err.msg);
}

static void bad_files(void **state)
{
    hf_sealer_free(open_sealer());
    static const mode_t modes[] = {0640, 0604, 0620, 0601};
    for (size_t i = 0; i < HF_ARRAY_LEN(modes); i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        refused(-EACCES, "0600");
    }
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 31), 0);
    refused(-EINVAL, "31 bytes");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/zero", path), 0);
    refused(-ELOOP, path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    refused(-EINVAL, "regular");
}

static void another_place(void **state)
{
    char place[96];
    (void)snprintf(place, sizeof(place), "%s/credential", dir);
    (void)setenv("HOLDFAST_SECRET_KEY_FILE", place, 1);
    refused(-ENOENT, place); /* a place that somebody named is not filled by us */
    assert_int_equal(hf_write_file_atomic(place, "0123456789abcdef0123456789abcdef", 32, 0400), 0);
    hf_sealer_free(open_sealer());
    assert_int_not_equal(access(path, F_OK), 0);
    (void)setenv("HOLDFAST_SECRET_KEY_FILE", "credential", 1);
    refused(-EINVAL, "absolute");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_label, setup, teardown),
        cmocka_unit_test_setup_teardown(bit_flips, setup, teardown),
        cmocka_unit_test_setup_teardown(another_key, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_files, setup, teardown),
        cmocka_unit_test_setup_teardown(another_place, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
