#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "envd/multipart.h"

#define LOG_MAX (1024u * 1024u)

static int on_part(void *self, struct hf_str name, struct hf_str filename, struct hf_err *err)
{
    return hf_buf_addf(self, "[%.*s|%.*s]", (int)name.n, name.p ? name.p : "", (int)filename.n,
                       filename.p ? filename.p : "");
}

static int on_data(void *self, const char *p, size_t n, struct hf_err *err)
{
    return hf_buf_add(self, p, n);
}

static int on_part_end(void *self, struct hf_err *err)
{
    return hf_buf_adds(self, "$");
}

static const struct multipart_events events = {on_part, on_data, on_part_end};

/* Feeds body in pieces of `step` bytes after a first piece of `first`; the log goes to out. */
static int run(struct hf_str body, size_t first, size_t step, struct hf_buf *out, struct hf_err *err)
{
    struct multipart m;
    int r = multipart_init(&m, HF_STR("multipart/form-data; boundary=XX"), &events, out, err);
    assert_int_equal(r, 0);
    for (size_t pos = 0, n; r == 0 && pos < body.n; pos += n) {
        n = pos == 0 && first ? HF_MIN(first, body.n) : HF_MIN(step, body.n - pos);
        hf_auto_free char *piece = malloc(n); /* exact size: reads past the piece are caught */
        assert_non_null(piece);
        memcpy(piece, body.p + pos, n);
        r = multipart_feed(&m, piece, n, err);
    }
    if (r == 0)
        r = multipart_finish(&m, err);
    multipart_done(&m);
    return r;
}

/* Whole, byte by byte and in every two pieces. */
static void expect(struct hf_str body, const char *want, size_t want_n)
{
    struct hf_err err = {0};
    for (size_t first = 0; first <= body.n; first++) {
        hf_auto_buf struct hf_buf out = HF_BUF_INIT(LOG_MAX);
        int r = run(body, first, first ? body.n : 1, &out, &err);
        if (r < 0)
            fail_msg("split at %zu: %s", first, err.msg);
        assert_int_equal(out.n, want_n);
        assert_memory_equal(out.p ? out.p : "", want, want_n);
    }
}

static void expect_error(struct hf_str body, int want, const char *text)
{
    for (size_t step = 1; step < body.n + 1; step += HF_MAX(body.n / 7, (size_t)1)) {
        hf_auto_buf struct hf_buf out = HF_BUF_INIT(LOG_MAX);
        struct hf_err err = {0};
        assert_int_equal(run(body, 0, step, &out, &err), want);
        assert_non_null(strstr(err.msg, text));
        assert_int_equal(err.status, 400);
    }
}

#define BODY(lit) HF_STR(lit)
#define EXPECT(body, want) expect(BODY(body), want, sizeof(want) - 1)
#define DISP(args) "Content-Disposition: form-data; " args "\r\n"

static void test_parts(void **state)
{
    EXPECT("--XX\r\n" DISP("name=\"file\"; filename=\"a b\"") "Content-Type: x/y\r\n\r\nhello\r\n--XX--\r\n",
           "[file|a b]hello$");
    EXPECT("--XX\r\n" DISP("name=file;filename=a") "\r\n1\r\n--XX  \r\n" DISP("name=g") "\r\n\r\n\r\n--XX--",
           "[file|a]1$[g|]\r\n$");
    EXPECT("preamble\r\n--XX\r\n" DISP("name=a") "\r\n\r\n--XX--junk after", "[a|]$");
    EXPECT("--XX\r\n" DISP("name=a") "\r\n--XX--", "[a|]$"); /* shares the CRLF with the head */
    EXPECT("--XX--\r\n", "");
    EXPECT("--XX\r\n\r\nno head\r\n--XX--", "[|]no head$");
}

static void test_near_boundaries(void **state)
{
    EXPECT("--XX\r\n" DISP("name=a") "\r\n--X\r\n--X\r\r\n-\r\n\r\n--XX--", "[a|]--X\r\n--X\r\r\n-\r\n$");
    EXPECT("--XX\r\n" DISP("name=a") "\r\n\r\r\n--\r\n--XY\r\n--XX--", "[a|]\r\r\n--\r\n--XY$");
    EXPECT("--XX\r\n" DISP("name=a") "\r\n\0\x01\xff\r\n--XX--", "[a|]\0\x01\xff$");
}

static void test_names(void **state)
{
    EXPECT("--XX\r\n" DISP("name=\"file\"; filename=\"dir/a%22b%0A%0d%20%41\"") "\r\n\r\n--XX--",
           "[file|dir/a\"b\n\r%20%41]$");
    EXPECT("--XX\r\n" DISP("name=\"file\"; filename=\"C:\\dir\\\"q\\\\\"") "\r\n\r\n--XX--",
           "[file|C:\\dir\"q\\]$");
    EXPECT("--XX\r\n" DISP("name=file; filename=x; filename*=UTF-8''%e2%82%ac%20r") "\r\n\r\n--XX--",
           "[file|\xe2\x82\xac r]$");
    EXPECT("--XX\r\n" DISP("name=file; filename=\"\xff\xfe\"") "\r\n\r\n--XX--", "[file|\xff\xfe]$");
}

static void test_malformed(void **state)
{
    expect_error(BODY("--XX\r\n" DISP("name=a") "\r\nabc"), -EINVAL, "last boundary");
    expect_error(BODY("--XX\r\n" DISP("name=a")), -EINVAL, "last boundary");
    expect_error(BODY("hello"), -EINVAL, "last boundary");
    expect_error(BODY("--XX\nContent-Disposition: a\n\n"), -EINVAL, "boundary line");
    expect_error(BODY("--XX-\r\n"), -EINVAL, "boundary line");
    expect_error(BODY("--XX\r\rb"), -EINVAL, "boundary line");
    expect_error(BODY("--XXY\r\n"), -EINVAL, "boundary line");
    expect_error(BODY("--XX\r\nContent-Disposition: x\n\r\n"), -EINVAL, "CRLF");
    expect_error(BODY("--XX\r\nno colon\r\n\r\n--XX--"), -EINVAL, "header line");
    expect_error(BODY("--XX\r\n: empty\r\n\r\n--XX--"), -EINVAL, "header line");
    expect_error(BODY("--XX\r\n folded: x\r\n\r\n--XX--"), -EINVAL, "header line");
    expect_error(BODY("--XX\r\n" DISP("name=\"a\0b\"") "\r\n\r\n--XX--"), -EINVAL, "header line");
    expect_error(BODY("--XX\r\n" DISP("name=\"a\rb\"") "\r\n\r\n--XX--"), -EINVAL, "header line");
    expect_error(BODY("--XX\r\n" DISP("name=\"a") "\r\n\r\n--XX--"), -EINVAL, "Content-Disposition");
    expect_error(BODY("--XX\r\n" DISP("filename*=latin1''a") "\r\n\r\n--XX--"), -EINVAL,
                 "Content-Disposition");
    expect_error(BODY("--XX\r\n" DISP("filename*=UTF-8''%00") "\r\n\r\n--XX--"), -EINVAL,
                 "Content-Disposition");
}

static void add_n(struct hf_buf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(hf_buf_adds(b, s), 0);
}

static void test_limits(void **state)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(LOG_MAX);
    hf_auto_buf struct hf_buf out = HF_BUF_INIT(LOG_MAX);
    struct hf_err err = {0};

    add_n(&b, "p", MULTIPART_PREAMBLE_MAX + 1);
    assert_int_equal(run((struct hf_str){b.p, b.n}, 0, 4096, &out, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "no boundary in the first"));

    hf_buf_clear(&b);
    add_n(&b, "--XX\r\nX: ", 1);
    add_n(&b, "v", MULTIPART_HEAD_MAX);
    assert_int_equal(run((struct hf_str){b.p, b.n}, 0, 999, &out, &err), -EMSGSIZE);

    for (unsigned extra = 0; extra < 2; extra++) {
        hf_buf_clear(&b);
        add_n(&b, "--XX\r\n", 1);
        add_n(&b, "X: y\r\n", MULTIPART_HEADERS_MAX + extra);
        add_n(&b, "\r\n\r\n--XX--", 1);
        assert_int_equal(run((struct hf_str){b.p, b.n}, 0, 5, &out, &err), extra ? -EMSGSIZE : 0);
    }
    hf_buf_clear(&b);
    add_n(&b, "--XX", 1);
    add_n(&b, "\r\n\r\n\r\n--XX", MULTIPART_PARTS_MAX + 1);
    add_n(&b, "--", 1);
    assert_int_equal(run((struct hf_str){b.p, b.n}, 0, 4096, &out, &err), -EMSGSIZE);
}

static int init_with(const char *content_type)
{
    struct multipart m;
    struct hf_err err = {0};
    int r = multipart_init(&m, hf_str_c(content_type), &events, NULL, &err);
    if (r == 0)
        multipart_done(&m);
    else
        assert_int_equal(err.status, 400);
    return r;
}

static void test_boundary(void **state)
{
    assert_int_equal(init_with("multipart/form-data; charset=utf-8; Boundary=\"a b'()+_,-./:=?\""), 0);
    assert_int_equal(init_with("multipart/form-data"), -EINVAL);
    assert_int_equal(init_with("multipart/form-data; boundary="), -EINVAL);
    assert_int_equal(init_with("multipart/form-data; boundary=\"a"), -EINVAL);
    assert_int_equal(init_with("multipart/form-data; boundary=\"a\tb\""), -EINVAL);
    hf_auto_free char *max = hf_xasprintf("multipart/x; boundary=%0*d", (int)MULTIPART_BOUNDARY_MAX, 1);
    hf_auto_free char *over = hf_xasprintf("multipart/x; boundary=%0*d", (int)MULTIPART_BOUNDARY_MAX + 1, 1);
    assert_int_equal(init_with(max), 0);
    assert_int_equal(init_with(over), -EINVAL);
}

static int fail_in_data(void *self, const char *p, size_t n, struct hf_err *err)
{
    return hf_err_http(err, -ENOSPC, 507, "full");
}

static void test_callback_error(void **state)
{
    static const struct multipart_events failing = {on_part, fail_in_data, on_part_end};
    hf_auto_buf struct hf_buf out = HF_BUF_INIT(LOG_MAX);
    struct multipart m;
    struct hf_err err = {0};
    assert_int_equal(multipart_init(&m, HF_STR("multipart/form-data; boundary=XX"), &failing, &out, &err), 0);
    struct hf_str body = HF_STR("--XX\r\n\r\nabc\r\n--XX--");
    assert_int_equal(multipart_feed(&m, body.p, body.n, &err), -ENOSPC);
    assert_int_equal(err.status, 507);
    multipart_done(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),          cmocka_unit_test(test_near_boundaries),
        cmocka_unit_test(test_names),          cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_limits),         cmocka_unit_test(test_boundary),
        cmocka_unit_test(test_callback_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
