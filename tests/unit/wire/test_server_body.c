/* Bodies: streaming both ways with backpressure, 100-continue, collecting, tunnels. */
#include "net.h"

#include "wire/http_int.h"

#define HOST "Host: a\r\n"
#define BIG (24u << 20)

static uv_loop_t loop;
static struct hf_http_server *server;
static struct hf_buf in = {NULL, 0, 0, NET_BUF_MAX};
static struct hf_req *current;
static uint64_t got, produced, queue_max;
static int ends, closes, aborts;
static bool take, pause_now, answer_on_end;
static uv_stream_t *hijacked;
static struct hf_tls *hijacked_tls;
static int bulk = -1; /* the worker's own descriptor of the connection */
static struct hf_buf leftover;

static unsigned char pattern(uint64_t i)
{
    return (unsigned char)(i * 31 + (i >> 12));
}

static void on_data(struct hf_req *req, const char *p, size_t n)
{
    assert_false(req->paused); /* never while paused */
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] != pattern(got + i))
            fail_msg("byte %llu is wrong", (unsigned long long)(got + i));
    got += n;
    if (pause_now)
        hf_req_pause(req);
}

static void on_end(struct hf_req *req)
{
    ends++;
    if (answer_on_end)
        hf_res_send(req, 200, NULL, "end", 3);
}

/* Writes until told to stop, as a handler should. */
static void produce(struct hf_req *req)
{
    static char piece[20000];
    while (produced < BIG) {
        size_t n = (size_t)HF_MIN(sizeof(piece), BIG - produced);
        for (size_t i = 0; i < n; i++)
            piece[i] = (char)pattern(produced + i);
        char *owned = take ? memcpy(hf_xmalloc(n), piece, n) : NULL;
        int r = take ? hf_res_write_take(req, owned, n) : hf_res_write(req, piece, n);
        produced += n;
        queue_max = HF_MAX(queue_max, hf_res_queued(req));
        if (r)
            return;
    }
    hf_res_end(req);
}

static void on_close(struct hf_req *req)
{
    closes++;
    aborts += hf_req_aborted(req);
    current = NULL;
}

static const struct hf_req_ops ops = {on_data, on_end, produce, on_close};

static void on_request(void *self, struct hf_req *req)
{
    struct hf_str p = hf_req_path(req);
    current = req;
    hf_req_set_ops(req, &ops, NULL);
    if (hf_str_eq(p, "/download") || hf_str_eq(p, "/download10")) {
        hf_res_begin(req, 200, hf_str_eq(p, "/download10") ? (int64_t)BIG : -1);
        produce(req);
    } else if (hf_str_eq(p, "/bulk")) {
        hf_res_begin(req, 200, BIG);
        bulk = hf_res_dup_fd(req);
    } else if (hf_str_eq(p, "/paused")) {
        hf_req_pause(req);
    } else if (hf_str_eq(p, "/refuse")) {
        hf_res_error(req, 401, "no");
    } else if (hf_str_eq(p, "/hijack-busy")) {
        /* As in the turn of the loop in which libuv has not told the end of a write yet. */
        static char write_in_flight;
        req->conn->out.wr = (void *)&write_in_flight;
        hijacked = hf_req_hijack(req, &hijacked_tls, &leftover);
        req->conn->out.wr = NULL;
    } else if (hf_str_eq(p, "/hijack")) {
        hijacked = hf_req_hijack(req, &hijacked_tls, &leftover);
    }
}

static const struct hf_http_handler handler = {on_request};

static int setup(void **state)
{
    struct hf_err err;
    assert_int_equal(uv_loop_init(&loop), 0);
    server = hf_http_server_new(&loop, &handler, NULL);
    assert_int_equal(hf_http_server_listen_tcp(server, "127.0.0.1", 0, &err), 0);
    got = produced = queue_max = 0;
    ends = closes = aborts = 0;
    take = pause_now = answer_on_end = false;
    current = NULL;
    hijacked = NULL;
    return 0;
}

static void server_gone(void *arg)
{
    *(bool *)arg = true;
}

static int teardown(void **state)
{
    bool done = false;
    hf_http_server_free(server, server_gone, &done);
    NET_WAIT(&loop, done);
    assert_int_equal(uv_loop_close(&loop), 0);
    hf_buf_done(&in);
    return 0;
}

static int dial(int rcvbuf)
{
    hf_buf_clear(&in);
    return net_connect_rcvbuf(hf_http_server_port(server), rcvbuf);
}

static void send_pattern(int fd, uint64_t from, size_t n, bool chunked)
{
    static char piece[70000];
    while (n) {
        size_t k = HF_MIN(n, sizeof(piece));
        for (size_t i = 0; i < k; i++)
            piece[i] = (char)pattern(from + i);
        char line[32];
        (void)snprintf(line, sizeof(line), "%zX;ext=1\r\n", k);
        if (chunked)
            net_send(&loop, fd, line);
        net_send_n(&loop, fd, piece, k);
        if (chunked)
            net_send(&loop, fd, "\r\n");
        from += k;
        n -= k;
    }
}

static void test_upload(void **state)
{
    answer_on_end = true;
    int fd = dial(0);
    char head[128];
    (void)snprintf(head, sizeof(head), "POST /up HTTP/1.1\r\n" HOST "Content-Length: %u\r\n\r\n", BIG);
    net_send(&loop, fd, head);
    send_pattern(fd, 0, BIG, false);
    net_expect(&loop, fd, &in, "\r\n\r\nend");
    assert_int_equal(got, BIG);
    assert_int_equal(ends, 1);
    got = 0;
    hf_buf_clear(&in);
    net_send(&loop, fd, "POST /up HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
    send_pattern(fd, 0, BIG, true);
    net_send(&loop, fd, "0\r\nTrailer: x\r\n\r\n");
    net_expect(&loop, fd, &in, "\r\n\r\nend");
    assert_int_equal(got, BIG);
    assert_int_equal(ends, 2);
    NET_WAIT(&loop, closes == 2);
    hf_close(fd);
}

static void test_chunks_byte_by_byte(void **state)
{
    answer_on_end = true;
    static const char body[] = "POST /up HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n3\r\n";
    int fd = dial(0);
    for (size_t i = 0; i < sizeof(body) - 1; i++) {
        net_send_n(&loop, fd, body + i, 1);
        net_turn(&loop);
    }
    for (uint64_t i = 0; i < 3; i++) {
        char c = (char)pattern(i);
        net_send_n(&loop, fd, &c, 1);
        net_turn(&loop);
    }
    net_send(&loop, fd, "\r\n");
    net_pump(&loop, 5);
    assert_int_equal(got, 3);
    assert_int_equal(ends, 0);
    net_send(&loop, fd, "0\r");
    net_pump(&loop, 5);
    net_send(&loop, fd, "\n\r\n");
    net_expect(&loop, fd, &in, "\r\n\r\nend");
    hf_close(fd);
}

/* A handler that pauses stops the reading: what the server holds stays small. */
static void test_upload_backpressure(void **state)
{
    static char piece[65536];
    for (int chunked = 0; chunked < 2; chunked++) {
        int fd = dial(0);
        pause_now = true;
        got = 0;
        net_send(&loop, fd,
                 chunked ? "POST /up HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n1000000\r\n"
                         : "POST /up HTTP/1.1\r\n" HOST "Content-Length: 16777216\r\n\r\n");
        NET_WAIT(&loop, current);
        uint64_t sent = 0;
        for (int idle = 0; idle < 20;) {
            for (size_t i = 0; i < sizeof(piece); i++)
                piece[i] = (char)pattern(sent + i);
            ssize_t k = send(fd, piece, (size_t)HF_MIN(sizeof(piece), 16777216 - sent), MSG_NOSIGNAL);
            sent += k > 0 ? (size_t)k : 0;
            idle = k > 0 ? 0 : idle + 1;
            net_turn(&loop);
        }
        assert_true(sent < 16777216); /* the socket is full */
        assert_true(got <= HF_HTTP_READ_SIZE);
        assert_true(current->conn->in.n <= 2 * HF_HTTP_READ_SIZE);
        pause_now = false;
        answer_on_end = true;
        hf_req_resume(current);
        send_pattern(fd, sent, 16777216 - sent, false);
        if (chunked)
            net_send(&loop, fd, "\r\n0\r\n\r\n");
        net_expect(&loop, fd, &in, "\r\n\r\nend");
        assert_int_equal(got, 16777216);
        hf_close(fd);
        NET_WAIT(&loop, !current);
        answer_on_end = false;
    }
}

/* Paused with the whole body in one packet: neither data nor end come until resumed, then both. */
static void test_pause_holds_the_end(void **state)
{
    answer_on_end = true;
    for (int has_body = 0; has_body < 2; has_body++) {
        int fd = dial(0);
        ends = 0;
        got = 0;
        net_send(&loop, fd,
                 has_body ? "POST /paused HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\n\x00\x1f"
                          : "GET /paused HTTP/1.1\r\n" HOST "\r\n");
        if (has_body)
            net_send_n(&loop, fd, "\x00\x1f", 2);
        NET_WAIT(&loop, current);
        net_pump(&loop, 20);
        assert_int_equal(ends, 0);
        assert_int_equal(got, 0);
        hf_req_resume(current);
        net_expect(&loop, fd, &in, "\r\n\r\nend");
        assert_int_equal(got, has_body ? 2 : 0);
        hf_close(fd);
    }
}

static size_t body_bytes(void)
{
    const char *p = in.p ? strstr(in.p, "\r\n\r\n") : NULL;
    return p ? in.n - (size_t)(p + 4 - in.p) : 0;
}

/* A client that reads slowly: the queue stays near the high mark and every byte arrives. */
static void test_slow_reader(void **state)
{
    for (int i = 0; i < 2; i++) {
        take = i;
        produced = queue_max = 0;
        int fd = dial(65536);
        net_send(&loop, fd, "GET /download10 HTTP/1.1\r\n" HOST "\r\n");
        net_pump(&loop, 50);
        assert_true(produced < BIG);
        assert_true(queue_max <= HF_HTTP_WRITE_HIGH + 20000 + 256);
        uint64_t end = hf_mono_ms() + 60000;
        while (body_bytes() < BIG) {
            net_turn(&loop);
            assert_true(net_recv(fd, &in) != 0);
            assert_true(hf_mono_ms() < end);
        }
        assert_true(queue_max <= HF_HTTP_WRITE_HIGH + 20000 + 256);
        const char *b = strstr(in.p, "\r\n\r\n") + 4;
        for (size_t k = 0; k < BIG; k++)
            if ((unsigned char)b[k] != pattern(k))
                fail_msg("byte %zu is wrong", k);
        NET_WAIT(&loop, closes == i + 1);
        hf_close(fd);
    }
    assert_int_equal(aborts, 0);
}

static void test_chunked_download(void **state)
{
    int fd = dial(0);
    net_send(&loop, fd, "GET /download HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    assert_int_equal(net_read_end(&loop, fd, &in), 0);
    const char *p = strstr(in.p, "\r\n\r\n") + 4;
    uint64_t total = 0;
    for (;;) {
        char *data;
        unsigned long k = strtoul(p, &data, 16);
        assert_memory_equal(data, "\r\n", 2);
        for (unsigned long i = 0; i < k; i++)
            if ((unsigned char)data[2 + i] != pattern(total + i))
                fail_msg("byte %llu is wrong", (unsigned long long)(total + i));
        total += k;
        assert_memory_equal(data + 2 + k, "\r\n", 2);
        p = data + 4 + k;
        if (!k)
            break;
    }
    assert_int_equal(total, BIG);
    assert_ptr_equal(p, in.p + in.n);
    hf_close(fd);
}

/* The client leaves in the middle: the handler hears once and writes become no-ops. */
static void test_reader_leaves(void **state)
{
    int fd = dial(65536);
    net_send(&loop, fd, "GET /download HTTP/1.1\r\n" HOST "\r\n");
    net_pump(&loop, 30);
    assert_non_null(current);
    hf_close(fd);
    NET_WAIT(&loop, !current);
    assert_int_equal(closes, 1);
    assert_int_equal(aborts, 1);
}

/* One that takes nothing at all is cut after the idle time. */
static void test_reader_never_reads(void **state)
{
    hf_http_server_set_timeouts(server, 0, 150);
    int fd = dial(65536);
    net_send(&loop, fd, "GET /download HTTP/1.1\r\n" HOST "\r\n");
    NET_WAIT(&loop, closes == 1);
    assert_int_equal(aborts, 1);
    assert_true(produced < BIG);
    hf_close(fd);
}

/* Neither may one hold a worker's transfer for ever, of which the queue knows nothing. */
static void test_reader_never_reads_bulk(void **state)
{
    hf_http_server_set_timeouts(server, 0, 150);
    int fd = dial(65536);
    net_send(&loop, fd, "GET /bulk HTTP/1.1\r\n" HOST "\r\n");
    NET_WAIT(&loop, current);
    uint64_t end = hf_mono_ms() + 400; /* while bytes flow, nothing is cut */
    for (assert_true(bulk >= 0); hf_mono_ms() < end; net_turn(&loop))
        hf_res_sent(current, 1);
    assert_int_equal(closes, 0);
    NET_WAIT(&loop, closes == 1);
    assert_int_equal(aborts, 1);
    bulk = hf_close(bulk);
    hf_close(fd);
}

static void test_continue(void **state)
{
    answer_on_end = true;
    int fd = dial(0);
    net_send(&loop, fd, "POST /up HTTP/1.1\r\n" HOST "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    net_expect(&loop, fd, &in, "HTTP/1.1 100 Continue\r\n\r\n");
    net_send_n(&loop, fd, "\x00\x1f", 2);
    net_expect(&loop, fd, &in, "\r\n\r\nend");
    /* Not before the handler reads. */
    hf_buf_clear(&in);
    got = 0;
    net_send(&loop, fd, "POST /paused HTTP/1.1\r\n" HOST "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    NET_WAIT(&loop, current);
    net_pump(&loop, 20);
    assert_int_equal(net_recv(fd, &in), -EAGAIN);
    hf_req_resume(current);
    net_expect(&loop, fd, &in, "HTTP/1.1 100 Continue\r\n\r\n");
    net_send_n(&loop, fd, "\x00\x1f", 2);
    net_expect(&loop, fd, &in, "\r\n\r\nend");
    hf_close(fd);
    /* Refused without reading: no 100, and the connection is not used again. */
    fd = dial(0);
    net_send(&loop, fd, "POST /refuse HTTP/1.1\r\n" HOST "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    assert_int_equal(net_read_end(&loop, fd, &in), 0);
    assert_int_equal(strncmp(in.p, "HTTP/1.1 401", 12), 0);
    assert_true(net_has(&in, "Connection: close"));
    assert_false(net_has(&in, "100 Continue"));
    hf_close(fd);
}

static void test_chunk_overhead_is_limited(void **state)
{
    int fd = dial(0);
    net_send(&loop, fd, "POST /up HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n0\r\n");
    for (int i = 0; i < 4000; i++)
        net_send(&loop, fd, "X-Trailer: y\r\n");
    net_expect(&loop, fd, &in, "HTTP/1.1 400");
    assert_int_equal(aborts, 1);
    hf_close(fd);
}

static void free_stream(uv_handle_t *h)
{
    free(h);
}

static void test_hijack(void **state)
{
    int fd = dial(0);
    net_send(&loop, fd, "GET /hijack HTTP/1.1\r\n" HOST "Connection: Upgrade\r\nUpgrade: x\r\n\r\nearly");
    NET_WAIT(&loop, hijacked);
    assert_int_equal(closes, 1);
    assert_int_equal(aborts, 0);
    assert_string_equal(leftover.p, "early");
    assert_int_equal(server->conn_n, 0);
    uv_buf_t b = uv_buf_init((char *)"raw", 3);
    assert_int_equal(uv_try_write(hijacked, &b, 1), 3);
    net_expect(&loop, fd, &in, "raw");
    uv_close((uv_handle_t *)hijacked, free_stream);
    assert_int_equal(net_read_end(&loop, fd, &in), 0);
    hf_close(fd);
    hf_buf_done(&leftover);
}

/* The write's callback would come to memory that is gone. */
static void test_hijack_during_a_write(void **state)
{
    int fd = dial(0);
    net_send(&loop, fd, "GET /hijack-busy HTTP/1.1\r\n" HOST "Connection: Upgrade\r\nUpgrade: x\r\n\r\n");
    assert_int_equal(net_read_end(&loop, fd, &in), -ECONNRESET);
    assert_null(hijacked);
    hf_close(fd);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        T(test_upload),
        T(test_chunks_byte_by_byte),
        T(test_upload_backpressure),
        T(test_pause_holds_the_end),
        T(test_slow_reader),
        T(test_chunked_download),
        T(test_reader_leaves),
        T(test_reader_never_reads),
        T(test_reader_never_reads_bulk),
        T(test_continue),
        T(test_chunk_overhead_is_limited),
        T(test_hijack),
        T(test_hijack_during_a_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
