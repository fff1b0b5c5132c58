/* The transcoder against protoc's own encoding. The bytes below come from
 *   protoc -Iproto --encode=process.StartRequest process.proto <text | xxd -p
 * with the text format that stands beside them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>

#include "base/id.h"
#include "envd/pbjson.h"

static const struct fixture {
    const struct pb_msg *m;
    const char *hex;
    const char *json;
} fixtures[] = {
    /* process { cmd: "/bin/bash" args: "-l" args: "-c" args: "echo \303\251" envs { key: "A" value: "b" }
     * envs { key: "E" value: "" } cwd: "/tmp" } pty { size { cols: 80 rows: 300 } } tag: "t" stdin: false */
    {&pb_process_start_request,
     "0a310a092f62696e2f6261736812022d6c12022d6312076563686f20c3a91a060a01411201621a050a0145120022042f746d701"
     "2070a05"
     "085010ac021a01742000",
     "{\"process\":{\"cmd\":\"/bin/bash\",\"args\":[\"-l\",\"-c\",\"echo "
     "é\"],\"envs\":{\"A\":\"b\",\"E\":\"\"},"
     "\"cwd\":\"/tmp\"},\"pty\":{\"size\":{\"cols\":80,\"rows\":300}},\"tag\":\"t\",\"stdin\":false}"},
    /* event { end { exit_code: -1 exited: false status: "signal: killed" error: "signal: killed" } } */
    {&pb_process_start_response,
     "0a241a2208011a0e7369676e616c3a206b696c6c6564220e7369676e616c3a206b696c6c6564",
     "{\"event\":{\"end\":{\"exitCode\":-1,\"status\":\"signal: killed\",\"error\":\"signal: killed\"}}}"},
    /* event { data { stdout: "\000\377hi" } missed: 5000000000 } */
    {&pb_process_start_response, "0a0f12060a0400ff6869a00680e497d012",
     "{\"event\":{\"data\":{\"stdout\":\"AP9oaQ==\"},\"missed\":5000000000}}"},
    /* processes { config { cmd: "a" } pid: 4294967295 tag: "x" } processes { config { cmd: "b" } pid: 7 } */
    {&pb_process_list_response, "0a0e0a030a016110ffffffff0f1a01780a070a030a01621007",
     "{\"processes\":[{\"config\":{\"cmd\":\"a\"},\"pid\":4294967295,\"tag\":\"x\"},{\"config\":{\"cmd\":"
     "\"b\"},"
     "\"pid\":7}]}"},
    /* process { tag: "z" } signal: SIGNAL_SIGKILL */
    {&pb_process_send_signal_request, "0a0312017a1009",
     "{\"process\":{\"tag\":\"z\"},\"signal\":\"SIGNAL_SIGKILL\"}"},
    /* data { input { pty: "ab" } } */
    {&pb_process_stream_input_request, "1206120412026162", "{\"data\":{\"input\":{\"pty\":\"YWI=\"}}}"},
    /* entry { name: "a" type: FILE_TYPE_SYMLINK path: "/a" size: 5000000000 mode: 420
     * permissions: "-rw-r--r--" owner: "user" group: "user"
     * modified_time { seconds: 1767225600 nanos: 123456789 } symlink_target: "/b"
     * metadata { key: "k" value: "v" } } */
    {&pb_fs_stat_response,
     "0a430a016110031a022f612080e497d01228a403320a2d72772d722d2d722d2d3a04757365724204757365724a0b0880f2d6ca0"
     "610959a"
     "ef3a52022f625a060a016b120176",
     "{\"entry\":{\"name\":\"a\",\"type\":\"FILE_TYPE_SYMLINK\",\"path\":\"/"
     "a\",\"size\":5000000000,\"mode\":420,"
     "\"permissions\":\"-rw-r--r--\",\"owner\":\"user\",\"group\":\"user\","
     "\"modifiedTime\":\"2026-01-01T00:00:00.123456789Z\",\"symlinkTarget\":\"/"
     "b\",\"metadata\":{\"k\":\"v\"}}}"},
    /* entry { modified_time { seconds: -1 nanos: 500000000 } } */
    {&pb_fs_stat_response, "0a134a1108ffffffffffffffffff011080cab5ee01",
     "{\"entry\":{\"modifiedTime\":\"1969-12-31T23:59:59.500000000Z\"}}"},
    /* filesystem { name: "n" type: EVENT_TYPE_CHMOD } */
    {&pb_fs_watch_dir_response, "12050a016e1005",
     "{\"filesystem\":{\"name\":\"n\",\"type\":\"EVENT_TYPE_CHMOD\"}}"},
    {&pb_empty, "", "{}"},
};

static json_t *parse(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    assert_non_null(v);
    return v;
}

static size_t bytes_of(const char *hex, unsigned char *out, size_t max)
{
    size_t n = strlen(hex) / 2;
    assert_true(n <= max);
    assert_int_equal(hf_unhex(hf_str_c(hex), out, n), 0);
    return n;
}

static void assert_json(const json_t *got, const char *want)
{
    json_auto_t *w = parse(want);
    hf_auto_free char *text = json_dumps(got, JSON_COMPACT);
    if (!json_equal(got, w))
        fail_msg("got %s, want %s", text, want);
}

static void decodes_what_protoc_encodes(void **state)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(fixtures); i++) {
        unsigned char raw[512];
        size_t n = bytes_of(fixtures[i].hex, raw, sizeof(raw));
        json_auto_t *got = pb_to_json(fixtures[i].m, raw, n);
        assert_non_null(got);
        assert_json(got, fixtures[i].json);
    }
}

static void encodes_what_protoc_encodes(void **state)
{
    for (size_t i = 0; i < HF_ARRAY_LEN(fixtures); i++) {
        json_auto_t *v = parse(fixtures[i].json);
        hf_auto_buf struct hf_buf b = HF_BUF_INIT(1024);
        struct hf_err err;
        assert_int_equal(pb_from_json(fixtures[i].m, v, &b, &err), 0);
        char hex[1025] = "";
        hf_hex(b.p ? b.p : "", b.n, hex);
        assert_string_equal(hex, fixtures[i].hex);
    }
}

static void refuses_malformed_bytes(void **state)
{
    static const struct {
        const struct pb_msg *m;
        const char *hex;
    } bad[] = {
        {&pb_process_start_request, "0a"},         /* length missing */
        {&pb_process_start_request, "0aff"},       /* length cut */
        {&pb_process_start_request, "0a05"},       /* content missing */
        {&pb_process_start_request, "0801"},       /* a message as varint */
        {&pb_process_start_request, "0a040a02ff"}, /* inner length beyond the end */
        {&pb_process_start_request, "1a01ff"},     /* not UTF-8 */
        {&pb_process_start_request, "02"},         /* field number 0 */
        {&pb_process_start_request, "07"},         /* wire type 7 */
        {&pb_process_start_request, "9b0608"},     /* group that does not end */
        {&pb_process_start_request, "ffffffffffffffffffffff01"},
        {&pb_fs_stat_response, "0a074a05108094ebdc03"},      /* a second has fewer nanoseconds */
        {&pb_process_start_request, "0a081a060a0200411200"}, /* a name with NUL */
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        unsigned char raw[64];
        size_t n = bytes_of(bad[i].hex, raw, sizeof(raw));
        json_t *got = pb_to_json(bad[i].m, raw, n);
        if (got)
            fail_msg("%s was accepted", bad[i].hex);
    }
}

static void skips_unknown(void **state)
{
    unsigned char raw[64];
    /* 5: varint, 6: 64 bit, 7: bytes, 8: 32 bit, 99: a group with a group in it; then tag "t" */
    size_t n = bytes_of("28013101020304050607083a02aabb45010203049b060b08010c9c061a0174", raw, sizeof(raw));
    json_auto_t *got = pb_to_json(&pb_process_start_request, raw, n);
    assert_non_null(got);
    assert_json(got, "{\"tag\":\"t\"}");
}

static void merges_repeated_messages(void **state)
{
    unsigned char raw[64];
    size_t n = bytes_of("0a030a01610a0422022f62", raw, sizeof(raw)); /* process{cmd "a"} process{cwd "/b"} */
    json_auto_t *got = pb_to_json(&pb_process_start_request, raw, n);
    assert_json(got, "{\"process\":{\"cmd\":\"a\",\"cwd\":\"/b\"}}");
}

static void normalises(void **state)
{
    static const struct {
        const struct pb_msg *m;
        const char *in, *out;
    } cases[] = {
        {&pb_process_send_signal_request, "{\"signal\":9,\"x\":[1]}",
         "{\"signal\":\"SIGNAL_SIGKILL\",\"x\":[1]}"},
        {&pb_process_send_signal_request, "{\"signal\":77}", "{\"signal\":77}"},
        {&pb_process_send_signal_request, "{\"process\":{\"pid\":\"12\"}}", "{\"process\":{\"pid\":12}}"},
        {&pb_process_send_signal_request, "{\"process\":{\"pid\":1.2e1}}", "{\"process\":{\"pid\":12}}"},
        {&pb_process_send_signal_request, "{\"process\":null}", "{}"},
        {&pb_fs_watch_dir_request, "{\"include_entry\":true}", "{\"includeEntry\":true}"},
        {&pb_fs_watch_dir_request, "{\"includeEntry\":false,\"path\":\"a\"}",
         "{\"includeEntry\":false,\"path\":\"a\"}"},
        {&pb_fs_stat_response, "{\"entry\":{\"size\":\"-5\"}}", "{\"entry\":{\"size\":-5}}"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        json_auto_t *v = parse(cases[i].in);
        struct hf_err err;
        assert_int_equal(pb_normalise(cases[i].m, v, &err), 0);
        assert_json(v, cases[i].out);
    }
}

static void names_the_wrong_field(void **state)
{
    static const struct {
        const struct pb_msg *m;
        const char *in, *message;
    } cases[] = {
        {&pb_process_start_request, "{\"process\":7}", "field \"process\" must be an object"},
        {&pb_process_start_request, "{\"process\":{\"args\":\"x\"}}", "field \"args\" must be a list"},
        {&pb_process_start_request, "{\"process\":{\"args\":[null]}}", "field \"args\" must be text"},
        {&pb_process_start_request, "{\"process\":{\"envs\":{\"A\":1}}}",
         "field \"envs\" must be an object of strings"},
        {&pb_process_start_request, "{\"stdin\":\"yes\"}", "field \"stdin\" must be true or false"},
        {&pb_process_send_signal_request, "{\"signal\":\"HUP\"}", "field \"signal\": unknown value \"HUP\""},
        {&pb_process_send_signal_request, "{\"signal\":1.5}", "field \"signal\" must be a name or a number"},
        {&pb_process_send_signal_request, "{\"process\":{\"pid\":-1}}",
         "field \"pid\" must be between 0 and 4294967295"},
        {&pb_process_send_signal_request, "{\"process\":{\"pid\":\"1x\"}}",
         "field \"pid\" must be a whole number"},
        {&pb_fs_stat_response, "{\"entry\":{\"modifiedTime\":\"now\"}}",
         "field \"modifiedTime\" must be an RFC 3339 time"},
        {&pb_process_start_request, "[]", "StartRequest must be a JSON object"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        json_auto_t *v = parse(cases[i].in);
        struct hf_err err = {0};
        assert_int_equal(pb_normalise(cases[i].m, v, &err), -EINVAL);
        assert_string_equal(err.msg, cases[i].message);
        hf_auto_buf struct hf_buf b = HF_BUF_INIT(1024);
        assert_int_equal(pb_from_json(cases[i].m, v, &b, &err), -EINVAL);
        assert_int_equal(b.n, 0);
    }
}

static void respects_the_maximum(void **state)
{
    json_auto_t *v = parse("{\"process\":{\"cmd\":\"0123456789\"}}");
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(8);
    struct hf_err err;
    assert_int_equal(pb_from_json(&pb_process_start_request, v, &b, &err), -EMSGSIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_what_protoc_encodes), cmocka_unit_test(encodes_what_protoc_encodes),
        cmocka_unit_test(refuses_malformed_bytes),     cmocka_unit_test(skips_unknown),
        cmocka_unit_test(merges_repeated_messages),    cmocka_unit_test(normalises),
        cmocka_unit_test(names_the_wrong_field),       cmocka_unit_test(respects_the_maximum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
