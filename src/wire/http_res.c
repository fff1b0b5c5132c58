/* Responses. */
#include "wire/http_int.h"

#include <fcntl.h>
#include <stdio.h>

#include "base/log.h"

#define RESPONSE_LINE_MAX 256u

const char *hf_status_text(int status)
{
    static const struct {
        int status;
        const char *text;
    } texts[] = {
        {100, "Continue"},
        {101, "Switching Protocols"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < HF_ARRAY_LEN(texts); i++)
        if (texts[i].status == status)
            return texts[i].text;
    return "Status";
}

static const struct hf_conn_more *more_of(const struct hf_req *r)
{
    return r->conn->server->more;
}

static bool dead(const struct hf_req *r)
{
    return r->aborted || r->conn->closing;
}

void hf_res_header(struct hf_req *r, const char *name, const char *value)
{
    struct hf_str n = hf_str_c(name), v = hf_str_c(value);
    if (!hf_is_token(n) || !hf_is_header_value(v)) {
        hf_log_warn("response header dropped: it has characters that can't stand in one", "name=%s value=%s",
                    hf_log_quote(name), hf_log_quote(value));
        return;
    }
    /* Framing and the connection are the server's business. */
    if (hf_str_caseeq(n, "content-length") || hf_str_caseeq(n, "transfer-encoding"))
        return;
    if (hf_str_caseeq(n, "connection")) {
        if (hf_token_list_has(v, "close"))
            r->keep_alive = false;
        return;
    }
    if (hf_buf_addf(&r->extra, "%s: %s\r\n", name, value) < 0)
        hf_log_warn("response header dropped: too many header bytes", "name=%s", hf_log_quote(name));
}

/* length: of the body, HF_BODY_CHUNKED, or HF_BODY_UNTIL_EOF; body: some of it may follow. */
static void put_head(struct hf_req *r, int status, const char *ctype, int64_t length, bool body)
{
    struct hf_conn *c = r->conn;
    char line[RESPONSE_LINE_MAX];
    if (r->stream) {
        more_of(r)->res_head(r, status, ctype, length, body);
        return;
    }
    r->res_started = true;
    r->status = status;
    if (r->expect) {
        /* The body was never asked for: the client may or may not send it. */
        r->expect = false;
        r->keep_alive = false;
    }
    if (c->server->stopping || length == HF_BODY_UNTIL_EOF)
        r->keep_alive = false;
    int n = snprintf(line, sizeof(line), "HTTP/1.1 %d %s\r\n", status, hf_status_text(status));
    hf_conn_append(c, line, (size_t)n);
    if (r->extra.n)
        hf_conn_append(c, r->extra.p, r->extra.n);
    hf_buf_clear(&r->extra);
    if (ctype) {
        hf_conn_append(c, "Content-Type: ", 14);
        hf_conn_append(c, ctype, strlen(ctype));
        hf_conn_append(c, "\r\n", 2);
    }
    n = 0;
    if (length >= 0)
        n = snprintf(line, sizeof(line), "Content-Length: %lld\r\n", (long long)length);
    else if (length == HF_BODY_CHUNKED)
        n = snprintf(line, sizeof(line), "Transfer-Encoding: chunked\r\n");
    hf_conn_append(c, line, (size_t)n);
    const char *conn = !r->keep_alive       ? "Connection: close\r\n\r\n"
                       : r->head.minor == 0 ? "Connection: keep-alive\r\n\r\n"
                                            : "\r\n";
    hf_conn_append(c, conn, strlen(conn));
}

static bool status_without_body(int status)
{
    return status == 204 || status == 304;
}

static bool is_head(const struct hf_req *r)
{
    return r->head.method_n == 4 && memcmp(r->head_p + r->head.method, "HEAD", 4) == 0;
}

static void put_body(struct hf_req *r, const void *p, size_t n)
{
    struct hf_conn *c = r->conn;
    if (r->stream) {
        more_of(r)->res_write(r, p, n);
        return;
    }
    if (n < HF_HTTP_DIRECT_WRITE || n > UINT32_MAX) {
        hf_conn_append(c, p, n);
        if (hf_conn_queued(c) >= HF_HTTP_DIRECT_WRITE)
            hf_conn_flush(c);
        return;
    }
    uv_buf_t b = uv_buf_init((char *)p, (unsigned)n);
    hf_conn_writev(c, &b, 1);
}

/* The end of the response, with trailers where they can stand. */
static void finish(struct hf_req *r, const char *const *pairs, size_t n)
{
    if (r->stream)
        more_of(r)->res_end(r, pairs, n);
    else
        hf_conn_flush(r->conn);
    hf_res_finish(r);
}

void hf_res_send(struct hf_req *r, int status, const char *ctype, const void *p, size_t n)
{
    if (dead(r) || r->res_started)
        return;
    bool nobody = status_without_body(status);
    bool body = n && !nobody && !is_head(r);
    put_head(r, status, ctype, nobody ? HF_BODY_UNTIL_EOF - 1 : (int64_t)n, body);
    if (body)
        put_body(r, p, n);
    finish(r, NULL, 0);
}

void hf_res_finish(struct hf_req *r)
{
    r->res_ended = true;
    hf_conn_mark(r->conn);
}

void hf_res_continue(struct hf_req *r)
{
    static const char line[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (!r->expect || r->res_started || dead(r))
        return;
    r->expect = false;
    if (r->stream) {
        more_of(r)->res_interim(r, 100);
        return;
    }
    hf_conn_append(r->conn, line, sizeof(line) - 1);
    hf_conn_flush(r->conn);
}

void hf_res_begin(struct hf_req *r, int status, int64_t content_length)
{
    if (dead(r) || r->res_started)
        return;
    int64_t length = content_length;
    if (length < 0)
        length = r->head.minor == 0 || r->stream ? HF_BODY_UNTIL_EOF : HF_BODY_CHUNKED;
    if (status_without_body(status))
        length = HF_BODY_UNTIL_EOF - 1;
    r->res_nobody = is_head(r) || status_without_body(status);
    put_head(r, status, NULL, length, !r->res_nobody);
    r->res_chunked = length == HF_BODY_CHUNKED;
    r->res_left = length >= 0 ? length : -1;
}

/* Bytes of n that may be written; a handler that exceeds its Content-Length has the rest cut. */
static size_t allowed(struct hf_req *r, size_t n)
{
    if (dead(r) || !r->res_started || r->res_ended || r->res_nobody)
        return 0;
    r->conn->last_ms = uv_now(r->conn->server->loop);
    if (r->res_left < 0)
        return n;
    if ((uint64_t)r->res_left < n) {
        hf_log_warn("response body longer than its Content-Length, cut", "extra=%zu",
                    n - (size_t)r->res_left);
        n = (size_t)r->res_left;
    }
    r->res_left -= (int64_t)n;
    return n;
}

static int after_write(struct hf_req *r)
{
    size_t high = r->stream ? more_of(r)->res_high(r) : HF_HTTP_WRITE_HIGH;
    if (dead(r) || hf_res_queued(r) <= high)
        return 0;
    r->want_drain = true;
    return 1;
}

static void put_chunk_head(struct hf_req *r, size_t n)
{
    char line[32];
    int len = snprintf(line, sizeof(line), "%zx\r\n", n);
    hf_conn_append(r->conn, line, (size_t)len);
}

int hf_res_write(struct hf_req *r, const void *p, size_t n)
{
    n = allowed(r, n);
    if (!n)
        return 0;
    if (r->res_chunked)
        put_chunk_head(r, n);
    put_body(r, p, n);
    if (r->res_chunked && !dead(r))
        hf_conn_append(r->conn, "\r\n", 2);
    return after_write(r);
}

int hf_res_write_take(struct hf_req *r, void *p, size_t n)
{
    hf_auto_free char *owned = p;
    n = allowed(r, n);
    if (n < HF_HTTP_DIRECT_WRITE || r->stream)
        return n ? (r->res_left += r->res_left >= 0 ? (int64_t)n : 0, hf_res_write(r, p, n)) : 0;
    if (r->res_chunked)
        put_chunk_head(r, n);
    hf_conn_write_take(r->conn, hf_take_ptr(owned), n);
    if (r->res_chunked && !dead(r))
        hf_conn_append(r->conn, "\r\n", 2);
    return after_write(r);
}

void hf_res_want_drain(struct hf_req *r)
{
    r->want_drain = true;
}

size_t hf_res_queued(const struct hf_req *r)
{
    return r->stream ? more_of(r)->res_queued(r) : hf_conn_queued(r->conn);
}

int hf_res_dup_fd(struct hf_req *r)
{
    uv_os_fd_t fd;
    if (dead(r) || !r->res_started || r->res_ended || r->res_nobody || r->res_left < 0 || !r->conn->stream ||
        r->conn->tls || r->stream)
        return -EOPNOTSUPP;
    hf_conn_flush(r->conn);
    if (dead(r) || hf_conn_queued(r->conn))
        return -EAGAIN;
    if (uv_fileno((uv_handle_t *)r->conn->stream, &fd) < 0)
        return -EOPNOTSUPP;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return copy < 0 ? -errno : copy;
}

void hf_res_sent(struct hf_req *r, uint64_t n)
{
    if (dead(r) || r->res_left < 0)
        return;
    r->res_left -= (int64_t)HF_MIN(n, (uint64_t)r->res_left);
    r->conn->last_ms = uv_now(r->conn->server->loop);
}

bool hf_res_started(const struct hf_req *r)
{
    return r->res_started;
}

static void put_trailers(struct hf_req *r, const char *const *pairs, size_t n)
{
    hf_conn_append(r->conn, "0\r\n", 3);
    for (size_t i = 0; i < n; i++) {
        const char *name = pairs[2 * i], *value = pairs[2 * i + 1];
        if (!hf_is_token(hf_str_c(name)) || !hf_is_header_value(hf_str_c(value)))
            continue;
        hf_conn_append(r->conn, name, strlen(name));
        hf_conn_append(r->conn, ": ", 2);
        hf_conn_append(r->conn, value, strlen(value));
        hf_conn_append(r->conn, "\r\n", 2);
    }
    hf_conn_append(r->conn, "\r\n", 2);
}

void hf_res_end(struct hf_req *r)
{
    hf_res_end_trailers(r, NULL, 0);
}

void hf_res_end_trailers(struct hf_req *r, const char *const *pairs, size_t n)
{
    if (dead(r) || !r->res_started || r->res_ended)
        return;
    if (r->res_left > 0 && !r->res_nobody) {
        /* A short body must not look complete. */
        hf_res_abort(r);
        return;
    }
    if (r->res_chunked && !r->res_nobody)
        put_trailers(r, pairs, n);
    finish(r, pairs, n);
}

void hf_res_abort(struct hf_req *r)
{
    if (r->stream) {
        more_of(r)->res_abort(r);
        return;
    }
    hf_conn_close(r->conn, true);
}

/* ---- JSON errors ---- */

/* Length of the UTF-8 sequence at p, 0 when it is none (Unicode 15, table 3-7). */
static size_t utf8_len(const unsigned char *p, size_t n)
{
    if (p[0] < 0x80)
        return 1;
    size_t len = p[0] >= 0xc2 && p[0] <= 0xdf   ? 2
                 : (p[0] & 0xf0) == 0xe0        ? 3
                 : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
                                                : 0;
    if (!len || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    bool bad = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
               (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f);
    return bad ? 0 : len;
}

int hf_json_string_add(struct hf_buf *b, struct hf_str s)
{
    int r = hf_buf_adds(b, "\"");
    for (size_t i = 0; r == 0 && i < s.n;) {
        unsigned char c = (unsigned char)s.p[i];
        size_t len = utf8_len((const unsigned char *)s.p + i, s.n - i);
        if (c < 0x20)
            r = hf_buf_addf(b, "\\u%04x", c);
        else if (c == '"' || c == '\\')
            r = hf_buf_addf(b, "\\%c", c);
        else if (!len)
            r = hf_buf_adds(b, "?");
        else
            r = hf_buf_add(b, s.p + i, len);
        i += len ? len : 1;
    }
    return r < 0 ? r : hf_buf_adds(b, "\"");
}

static void send_error(struct hf_req *r, int status, struct hf_str msg)
{
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(8 * HF_ERR_MSG_MAX + 64);
    int e = hf_buf_addf(&b, "{\"code\":%d,\"message\":", status);
    e = e < 0 ? e : hf_json_string_add(&b, msg);
    e = e < 0 ? e : hf_buf_adds(&b, "}");
    if (e < 0)
        hf_res_send(r, status, NULL, NULL, 0);
    else
        hf_res_send(r, status, "application/json; charset=utf-8", b.p, b.n);
}

void hf_res_error(struct hf_req *r, int status, const char *fmt, ...)
{
    char msg[HF_ERR_MSG_MAX];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    send_error(r, status, hf_str_c(msg));
}

void hf_res_err(struct hf_req *r, const struct hf_err *err)
{
    send_error(r, hf_err_http_status(err), hf_str_c(err->msg));
}
