#include "envd/rpcwire.h"

#include <zlib.h>

#include "base/id.h"

static const struct {
    const char *name;
    int status;
} codes[] = {
    [0] = {"unknown", 500},
    [RPC_CANCELED] = {"canceled", 499},
    [RPC_UNKNOWN] = {"unknown", 500},
    [RPC_INVALID_ARGUMENT] = {"invalid_argument", 400},
    [RPC_DEADLINE_EXCEEDED] = {"deadline_exceeded", 504},
    [RPC_NOT_FOUND] = {"not_found", 404},
    [RPC_ALREADY_EXISTS] = {"already_exists", 409},
    [RPC_PERMISSION_DENIED] = {"permission_denied", 403},
    [RPC_RESOURCE_EXHAUSTED] = {"resource_exhausted", 429},
    [RPC_FAILED_PRECONDITION] = {"failed_precondition", 400},
    [RPC_ABORTED] = {"aborted", 409},
    [RPC_OUT_OF_RANGE] = {"out_of_range", 400},
    [RPC_UNIMPLEMENTED] = {"unimplemented", 501},
    [RPC_INTERNAL] = {"internal", 500},
    [RPC_UNAVAILABLE] = {"unavailable", 503},
    [RPC_DATA_LOSS] = {"data_loss", 500},
    [RPC_UNAUTHENTICATED] = {"unauthenticated", 401},
};

const char *rpc_code_name(enum rpc_code code)
{
    return (size_t)code < HF_ARRAY_LEN(codes) ? codes[code].name : codes[0].name;
}

int rpc_code_status(enum rpc_code code)
{
    return (size_t)code < HF_ARRAY_LEN(codes) ? codes[code].status : codes[0].status;
}

static struct hf_str trim(struct hf_str s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t')) {
        s.p++;
        s.n--;
    }
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s.n--;
    return s;
}

/* The part before sep, trimmed; *rest is what follows ({NULL, 0} at the end). */
static struct hf_str cut(struct hf_str s, char sep, struct hf_str *rest)
{
    const char *at = s.n ? memchr(s.p, sep, s.n) : NULL;
    *rest = (struct hf_str){NULL, 0};
    if (!at)
        return trim(s);
    size_t n = (size_t)(at - s.p);
    *rest = (struct hf_str){at + 1, s.n - n - 1};
    return trim((struct hf_str){s.p, n});
}

int rpc_parse_content_type(struct hf_str v, enum rpc_kind kind, bool *ret_json)
{
    struct hf_str rest;
    struct hf_str type = cut(v, ';', &rest);
    bool unary = kind == RPC_UNARY;
    if (hf_str_caseeq(type, unary ? "application/json" : "application/connect+json"))
        *ret_json = true;
    else if (hf_str_caseeq(type, unary ? "application/proto" : "application/connect+proto"))
        *ret_json = false;
    else
        return -EOPNOTSUPP;
    return 0;
}

int rpc_parse_timeout(struct hf_str v, uint64_t *ret_ms)
{
    v = trim(v);
    return v.n <= RPC_TIMEOUT_DIGITS && hf_parse_u64(v, UINT64_MAX, ret_ms) == 0 ? 0 : -EINVAL;
}

unsigned rpc_parse_keepalive(struct hf_str v)
{
    uint64_t s;
    if (!v.p || hf_parse_u64(trim(v), UINT32_MAX, &s) < 0 || s == 0)
        return RPC_KEEPALIVE_DEFAULT_S;
    return (unsigned)HF_MIN(s, RPC_KEEPALIVE_MAX_S);
}

int rpc_parse_basic_user(struct hf_str v, char out[RPC_USER_MAX])
{
    v = trim(v);
    if (v.n < 6 || !hf_str_caseeq((struct hf_str){v.p, 6}, "basic "))
        return 0;
    struct hf_str b64 = trim((struct hf_str){v.p + 6, v.n - 6});
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(8192);
    if (hf_unbase64_add(&b, b64) < 0 || b.n == 0)
        return -EINVAL;
    const char *colon = memchr(b.p, ':', b.n);
    size_t n = colon ? (size_t)(colon - b.p) : b.n;
    if (n >= RPC_USER_MAX || memchr(b.p, '\0', n))
        return -EINVAL;
    memcpy(out, b.p, n);
    out[n] = '\0';
    return n > 0;
}

static int inflate_all(z_stream *z, struct hf_buf *out)
{
    for (;;) {
        unsigned char chunk[4096];
        z->next_out = chunk;
        z->avail_out = sizeof(chunk);
        int r = inflate(z, Z_NO_FLUSH);
        if (r != Z_OK && r != Z_STREAM_END)
            return -EINVAL;
        int added = hf_buf_add(out, chunk, sizeof(chunk) - z->avail_out);
        if (added < 0)
            return added;
        if (r == Z_STREAM_END)
            return z->avail_in == 0 ? 0 : -EINVAL;
    }
}

int rpc_gunzip(const void *p, size_t n, struct hf_buf *out)
{
    if (n > UINT32_MAX)
        return -EMSGSIZE;
    z_stream z = {.next_in = (z_const Bytef *)(uintptr_t)p, .avail_in = (uInt)n};
    if (inflateInit2(&z, 15 + 16) != Z_OK)
        return -ENOMEM;
    int r = inflate_all(&z, out);
    (void)inflateEnd(&z);
    return r;
}

int rpc_parse_cursor(struct hf_str v, struct rpc_cursor *ret)
{
    struct rpc_cursor c = {RPC_CURSOR_ABSENT, RPC_CURSOR_ABSENT, RPC_CURSOR_ABSENT};
    do {
        struct hf_str rest, number;
        struct hf_str item = cut(v, ',', &rest);
        struct hf_str name = cut(item, '=', &number);
        uint64_t *to = hf_str_eq(name, "stdout")   ? &c.out
                       : hf_str_eq(name, "stderr") ? &c.err
                       : hf_str_eq(name, "pty")    ? &c.pty
                                                   : NULL;
        if (!to || *to != RPC_CURSOR_ABSENT || !number.p || hf_parse_u64(trim(number), INT64_MAX, to) < 0)
            return -EINVAL;
        v = rest;
    } while (v.p);
    *ret = c;
    return 0;
}

int rpc_error_json(struct hf_buf *b, enum rpc_code code, const char *message)
{
    json_auto_t *obj = json_object();
    json_t *text = json_string(message);
    if (!text) { /* not UTF-8: keep what is readable */
        hf_auto_free char *copy = hf_xstrdup(message);
        for (char *p = copy; *p; p++)
            if ((unsigned char)*p >= 0x80)
                *p = '?';
        text = json_string(copy);
    }
    json_object_set_new(obj, "code", json_string(rpc_code_name(code)));
    json_object_set_new(obj, "message", text);
    hf_auto_free char *dump = json_dumps(obj, JSON_COMPACT);
    return dump ? hf_buf_adds(b, dump) : -ENOMEM;
}
