#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <zlib.h>

#include "envd/rpcwire.h"

static void codes(void **state)
{
    static const struct {
        enum rpc_code code;
        const char *name;
        int status;
    } all[] = {
        {RPC_CANCELED, "canceled", 499},
        {RPC_UNKNOWN, "unknown", 500},
        {RPC_INVALID_ARGUMENT, "invalid_argument", 400},
        {RPC_DEADLINE_EXCEEDED, "deadline_exceeded", 504},
        {RPC_NOT_FOUND, "not_found", 404},
        {RPC_ALREADY_EXISTS, "already_exists", 409},
        {RPC_PERMISSION_DENIED, "permission_denied", 403},
        {RPC_RESOURCE_EXHAUSTED, "resource_exhausted", 429},
        {RPC_FAILED_PRECONDITION, "failed_precondition", 400},
        {RPC_ABORTED, "aborted", 409},
        {RPC_OUT_OF_RANGE, "out_of_range", 400},
        {RPC_UNIMPLEMENTED, "unimplemented", 501},
        {RPC_INTERNAL, "internal", 500},
        {RPC_UNAVAILABLE, "unavailable", 503},
        {RPC_DATA_LOSS, "data_loss", 500},
        {RPC_UNAUTHENTICATED, "unauthenticated", 401},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(all); i++) {
        assert_int_equal(all[i].code, i + 1);
        assert_string_equal(rpc_code_name(all[i].code), all[i].name);
        assert_int_equal(rpc_code_status(all[i].code), all[i].status);
    }
    assert_string_equal(rpc_code_name((enum rpc_code)99), "unknown");
}

static void content_types(void **state)
{
    bool json = false;
    assert_int_equal(rpc_parse_content_type(HF_STR("application/json; charset=utf-8"), RPC_UNARY, &json), 0);
    assert_true(json);
    assert_int_equal(rpc_parse_content_type(HF_STR("Application/Proto"), RPC_UNARY, &json), 0);
    assert_false(json);
    assert_int_equal(rpc_parse_content_type(HF_STR("application/connect+json"), RPC_SERVER_STREAM, &json), 0);
    assert_true(json);
    assert_int_equal(rpc_parse_content_type(HF_STR("application/connect+proto"), RPC_CLIENT_STREAM, &json),
                     0);
    assert_false(json);
    assert_int_equal(rpc_parse_content_type(HF_STR("application/json"), RPC_SERVER_STREAM, &json),
                     -EOPNOTSUPP);
    assert_int_equal(rpc_parse_content_type(HF_STR("application/grpc"), RPC_UNARY, &json), -EOPNOTSUPP);
    assert_int_equal(rpc_parse_content_type((struct hf_str){NULL, 0}, RPC_UNARY, &json), -EOPNOTSUPP);
}

static void timeouts(void **state)
{
    uint64_t ms = 1;
    assert_int_equal(rpc_parse_timeout(HF_STR("60000"), &ms), 0);
    assert_int_equal(ms, 60000);
    assert_int_equal(rpc_parse_timeout(HF_STR("0"), &ms), 0);
    assert_int_equal(ms, 0);
    assert_int_equal(rpc_parse_timeout(HF_STR("9999999999"), &ms), 0);
    assert_int_equal(rpc_parse_timeout(HF_STR("99999999999"), &ms), -EINVAL);
    assert_int_equal(rpc_parse_timeout(HF_STR("-1"), &ms), -EINVAL);
    assert_int_equal(rpc_parse_timeout(HF_STR(""), &ms), -EINVAL);
    assert_int_equal(rpc_parse_keepalive(HF_STR("50")), 50);
    assert_int_equal(rpc_parse_keepalive(HF_STR("0")), RPC_KEEPALIVE_DEFAULT_S);
    assert_int_equal(rpc_parse_keepalive(HF_STR("soon")), RPC_KEEPALIVE_DEFAULT_S);
    assert_int_equal(rpc_parse_keepalive((struct hf_str){NULL, 0}), RPC_KEEPALIVE_DEFAULT_S);
    assert_int_equal(rpc_parse_keepalive(HF_STR("99999999")), RPC_KEEPALIVE_MAX_S);
}

static void basic_users(void **state)
{
    char user[RPC_USER_MAX] = "";
    assert_int_equal(rpc_parse_basic_user(HF_STR("Basic cm9vdDo="), user), 1);
    assert_string_equal(user, "root");
    assert_int_equal(rpc_parse_basic_user(HF_STR("basic cm9vdDpzZWNyZXQ"), user),
                     1); /* root:secret, no padding */
    assert_string_equal(user, "root");
    assert_int_equal(rpc_parse_basic_user(HF_STR("Basic Og=="), user), 0); /* ":" */
    assert_int_equal(rpc_parse_basic_user(HF_STR("Bearer abc"), user), 0);
    assert_int_equal(rpc_parse_basic_user(HF_STR(""), user), 0);
    assert_int_equal(rpc_parse_basic_user(HF_STR("Basic ***"), user), -EINVAL);
    assert_int_equal(rpc_parse_basic_user(HF_STR("Basic "), user), 0);
    assert_int_equal(rpc_parse_basic_user(HF_STR("Basic YQBiOg=="), user), -EINVAL); /* a NUL b : */
    /* 64 letters: no room for the NUL */
    assert_int_equal(
        rpc_parse_basic_user(HF_STR("Basic YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFh"
                                    "YWFhYWFhYWFhYWFhYWFhYWFhYQ=="),
                             user),
        -EINVAL);
}

static void cursors(void **state)
{
    struct rpc_cursor c;
    assert_int_equal(rpc_parse_cursor(HF_STR("stdout=12, stderr = 0"), &c), 0);
    assert_int_equal(c.out, 12);
    assert_int_equal(c.err, 0);
    assert_true(c.pty == RPC_CURSOR_ABSENT);
    assert_int_equal(rpc_parse_cursor(HF_STR("pty=9223372036854775807"), &c), 0);
    assert_int_equal(c.pty, INT64_MAX);
    static const char *const bad[] = {"",
                                      "stdout",
                                      "stdout=",
                                      "stdout=-1",
                                      "x=1",
                                      "stdout=1,",
                                      "stdout=1=2",
                                      "stdout=1,stdout=2",
                                      "pty=9223372036854775808"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        assert_int_equal(rpc_parse_cursor(hf_str_c(bad[i]), &c), -EINVAL);
}

static size_t gzip(const void *p, size_t n, unsigned char *out, size_t max)
{
    z_stream z = {.next_in = (z_const Bytef *)(uintptr_t)p,
                  .avail_in = (uInt)n,
                  .next_out = out,
                  .avail_out = (uInt)max};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t got = max - z.avail_out;
    (void)deflateEnd(&z);
    return got;
}

static void gunzip(void **state)
{
    unsigned char packed[4096];
    hf_auto_free char *big = hf_xcalloc(1, 1000000);
    size_t n = gzip("hello", 5, packed, sizeof(packed));
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(1000);
    assert_int_equal(rpc_gunzip(packed, n, &b), 0);
    assert_string_equal(b.p, "hello");
    hf_buf_clear(&b);
    assert_int_equal(rpc_gunzip(packed, n - 1, &b), -EINVAL);
    assert_int_equal(rpc_gunzip("hello", 5, &b), -EINVAL);
    assert_int_equal(rpc_gunzip("", 0, &b), -EINVAL);
    packed[n] = 'x';
    hf_buf_clear(&b);
    assert_int_equal(rpc_gunzip(packed, n + 1, &b), -EINVAL);
    n = gzip(big, 1000000, packed, sizeof(packed));
    hf_buf_clear(&b);
    assert_int_equal(rpc_gunzip(packed, n, &b), -EMSGSIZE); /* a bomb stops at the limit */
}

static void errors(void **state)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(1000);
    assert_int_equal(rpc_error_json(&b, RPC_NOT_FOUND, "no \"x\"\n"), 0);
    assert_string_equal(b.p, "{\"code\":\"not_found\",\"message\":\"no \\\"x\\\"\\n\"}");
    hf_buf_clear(&b);
    assert_int_equal(rpc_error_json(&b, RPC_INTERNAL,
                                    "a\xff"
                                    "b"),
                     0);
    assert_string_equal(b.p, "{\"code\":\"internal\",\"message\":\"a?b\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes),       cmocka_unit_test(content_types), cmocka_unit_test(timeouts),
        cmocka_unit_test(basic_users), cmocka_unit_test(cursors),       cmocka_unit_test(gunzip),
        cmocka_unit_test(errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
