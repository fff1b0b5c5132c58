/* Header values of RPC calls, of the cursor, of gzip bodies and of cgroup files. */
#include "envd/rpcwire.h"
#include "envd/server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hf_str s = {(const char *)data, size};
    char user[RPC_USER_MAX];
    bool json;
    uint64_t v;
    struct rpc_cursor cursor;
    if (rpc_parse_basic_user(s, user) == 1 && (!user[0] || strlen(user) >= RPC_USER_MAX))
        abort();
    if (rpc_parse_timeout(s, &v) == 0 && v > UINT64_C(9999999999))
        abort();
    if (rpc_parse_keepalive(s) == 0 || rpc_parse_keepalive(s) > RPC_KEEPALIVE_MAX_S)
        abort();
    for (int kind = RPC_UNARY; kind <= RPC_CLIENT_STREAM; kind++)
        (void)!rpc_parse_content_type(s, (enum rpc_kind)kind, &json);
    if (rpc_parse_cursor(s, &cursor) == 0 && cursor.out == RPC_CURSOR_ABSENT &&
        cursor.err == RPC_CURSOR_ABSENT && cursor.pty == RPC_CURSOR_ABSENT)
        abort();
    (void)metrics_parse_number(s, &v);
    (void)metrics_parse_cpu(s, &v);
    (void)metrics_parse_field(s, "file", &v);
    hf_auto_buf struct hf_buf plain = HF_BUF_INIT(65536);
    if (rpc_gunzip(data, size, &plain) == 0 && plain.n > plain.max)
        abort();
    return 0;
}
