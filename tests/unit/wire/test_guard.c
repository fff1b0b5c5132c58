/* The guarded dialer: forms of URLs and addresses, names that resolve to forbidden places, rebinding,
 * redirects. The resolver is this file's. */
#include "net.h"
#include "tlsnet.h"

#include <netdb.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>

#include "wire/guard.h"
#include "wire/http.h"
#include "wire/url.h"

extern char **environ;

/* ---- a resolver of our own: libuv's worker calls it ---- */

static const char *answers[4]; /* what the n-th question is answered with; "a b" = two addresses */
static int questions;

static struct addrinfo *make(const char *text)
{
    struct hf_addr a;
    struct addrinfo *ai = hf_new(struct addrinfo);
    struct sockaddr_storage *ss = hf_new(struct sockaddr_storage);
    assert_int_equal(hf_addr_parse(hf_str_c(text), &a), 0);
    /* A mapped address stays one on its way out of the resolver. */
    if (strncmp(text, "::ffff:", 7) == 0) {
        struct sockaddr_in6 *s6 = (struct sockaddr_in6 *)ss;
        s6->sin6_family = AF_INET6;
        assert_int_equal(inet_pton(AF_INET6, text, &s6->sin6_addr), 1);
        ai->ai_addrlen = sizeof(*s6);
    } else {
        ai->ai_addrlen = hf_addr_to_sockaddr(&a, 0, ss);
    }
    ai->ai_addr = (struct sockaddr *)ss;
    ai->ai_family = ss->ss_family;
    ai->ai_socktype = SOCK_STREAM;
    return ai;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res)
{
    int n = questions++;
    const char *text = answers[HF_MIN(n, (int)HF_ARRAY_LEN(answers) - 1)]; /* the last one stays */
    struct addrinfo **tail = res;
    char word[64];
    if (!text)
        return EAI_NONAME;
    while (*text) {
        size_t k = strcspn(text, " ");
        (void)snprintf(word, sizeof(word), "%.*s", (int)k, text);
        *tail = make(word);
        tail = &(*tail)->ai_next;
        text += k + (text[k] == ' ');
    }
    return 0;
}

void freeaddrinfo(struct addrinfo *ai)
{
    while (ai) {
        struct addrinfo *after = ai->ai_next;
        free(ai->ai_addr);
        free(ai);
        ai = after;
    }
}

/* ---- forms ---- */

static int check(const char *url, unsigned flags)
{
    struct hf_err err = {0};
    int r = hf_url_check(hf_str_c(url), "http,https", flags, &err);
    assert_int_equal(r, err.r);
    return r;
}

static void test_urls(void **state)
{
    static const char *const good[] = {
        "http://a.test",      "https://a.test/",          "https://a.test:8443/x?y=z#f",
        "http://192.0.2.1/x", "http://[2001:db8::1]:80/", "https://a-b.c_d.test./x"};
    static const char *const bad[] = {
        "", "a.test", "//a.test/", "http:/a.test", "http:///x", "http://", "http://:80/", "http://a.test:0/",
        "http://a.test:65536/", "http://a.test:8x/", "http://a.test:/", "http://user@a.test/",
        "http://user:pw@a.test/", "http://a.test@192.0.2.1/", "http://a.test\\@b/", "http://a test/",
        "http://a.test/x y", "http://a.test/\r\nX: y", "http://a\t.test/", "ftp://a.test/",
        "file:///etc/passwd", "gopher://a.test/", "HTTP://a.test/", "http://a..test/", "http://.a.test/",
        "http://[::1/", "http://[::1]x/", "http://[fe80::1%25eth0]/", "http://[a.test]/", "http://::1/",
        "http://a%2etest/", "http://\xc3\xa4.test/",
        /* other ways to write 127.0.0.1, 169.254.169.254 and 10.0.0.1 */
        "http://2130706433/", "http://0x7f000001/", "http://017700000001/", "http://127.1/", "http://0x7f.1/",
        "http://0177.0.0.1/", "http://127.0.0.01/", "http://169.254.43518/", "http://2852039166/",
        "http://0xa9fea9fe/", "http://0xA9.0xFE.0xA9.0xFE/", "http://10.1/", "http://1.2.3.4.5/", "http://0/",
        "http://a.0x7f/", "http://127.0.0.1.1/"};
    for (size_t i = 0; i < HF_ARRAY_LEN(good); i++)
        if (check(good[i], 0) != 0)
            fail_msg("refused: %s", good[i]);
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++)
        if (check(bad[i], HF_DIAL_PRIVATE | HF_DIAL_LOCAL) != -EINVAL)
            fail_msg("accepted: %s", bad[i]);
}

static void test_address_urls(void **state)
{
    static const char *const never[] = {"http://169.254.169.254/latest/meta-data/",
                                        "http://169.254.169.254.:80/",
                                        "http://[fe80::1]/",
                                        "http://[::ffff:169.254.169.254]/",
                                        "http://[64:ff9b::a9fe:a9fe]/",
                                        "http://[::ffff:a9fe:a9fe]/",
                                        "http://100.100.100.200/",
                                        "http://[fd00:ec2::254]/",
                                        "http://0.0.0.0/",
                                        "http://255.255.255.255/",
                                        "http://224.0.0.1/",
                                        "http://[ff02::1]/",
                                        "http://[::]/",
                                        "http://240.0.0.1/",
                                        "http://168.63.129.16/",
                                        "http://[2002:a9fe:a9fe::]/"};
    static const char *const private[] = {"http://10.0.0.1/",         "http://172.31.0.1/",
                                          "http://192.168.1.1/",      "http://100.64.0.1/",
                                          "http://[fc00::1]/",        "http://[::ffff:10.0.0.1]/",
                                          "http://[64:ff9b::a00:1]/", "http://[2002:0a00:0001::]/"};
    static const char *const local[] = {"http://127.0.0.1/", "http://127.9.9.9/",
                                        "http://[::1]/",     "http://[::ffff:127.0.0.1]/",
                                        "http://localhost/", "http://a.LOCALHOST./"};
    for (size_t i = 0; i < HF_ARRAY_LEN(never); i++)
        if (check(never[i], HF_DIAL_PRIVATE | HF_DIAL_LOCAL) != -EACCES)
            fail_msg("accepted: %s", never[i]);
    for (size_t i = 0; i < HF_ARRAY_LEN(private); i++)
        if (check(private[i], 0) != -EACCES || check(private[i], HF_DIAL_PRIVATE) != 0)
            fail_msg("wrong: %s", private[i]);
    for (size_t i = 0; i < HF_ARRAY_LEN(local); i++)
        if (check(local[i], HF_DIAL_PRIVATE) != -EACCES || check(local[i], HF_DIAL_LOCAL) != 0)
            fail_msg("wrong: %s", local[i]);
}

/* In a network namespace of its own, where 192.0.2.1 is the host's. */
static int own_address_child(void)
{
    char *argv[] = {(char *)"ip",  (char *)"addr", (char *)"add", (char *)"192.0.2.1/24",
                    (char *)"dev", (char *)"lo",   NULL};
    char *up[] = {(char *)"ip", (char *)"link", (char *)"set", (char *)"lo", (char *)"up", NULL};
    char **const all[] = {up, argv};
    for (size_t i = 0; i < 2; i++) {
        pid_t pid;
        int st;
        if (posix_spawnp(&pid, "ip", NULL, NULL, all[i], environ) != 0 || waitpid(pid, &st, 0) != pid || st)
            return 77;
    }
    struct hf_addr own = {4, {192, 0, 2, 1}}, next = {4, {192, 0, 2, 9}}, all_of_them = {4, {192, 0, 2, 255}};
    struct hf_addr mapped = {6, {[10] = 0xff, 0xff, 192, 0, 2, 1}},
                   nat = {6, {0, 0x64, 0xff, 0x9b, [12] = 192, 0, 2, 1}};
    if (hf_dial_check(&own, HF_DIAL_PRIVATE, NULL) != -EACCES ||
        hf_dial_check(&own, HF_DIAL_LOCAL, NULL) != 0)
        return 1;
    if (hf_dial_check(&mapped, 0, NULL) != -EACCES || hf_dial_check(&nat, 0, NULL) != -EACCES)
        return 2;
    if (hf_dial_check(&all_of_them, HF_DIAL_LOCAL | HF_DIAL_PRIVATE, NULL) != -EACCES)
        return 3;
    (void)next; /* on lo the whole prefix is local: nothing to compare with */
    return 0;
}

static void test_own_address(void **state)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(unshare(CLONE_NEWNET) < 0 ? 77 : own_address_child());
    int st;
    assert_int_equal(waitpid(pid, &st, 0), pid);
    assert_true(WIFEXITED(st));
    if (WEXITSTATUS(st) == 77)
        skip(); /* no right to make a network namespace, or no ip command */
    assert_int_equal(WEXITSTATUS(st), 0);
}

/* ---- dialing ---- */

static uv_loop_t loop;
static struct hf_http_server *server;
static struct tls_world world;
static uint16_t port, tls_port;
static int requests;
static struct hf_buf seen;

static struct {
    bool called;
    uv_stream_t *stream;
    struct hf_addr addr;
    struct hf_err err;
    int status;
    struct hf_buf body;
} got;

static void on_dialled(void *arg, uv_stream_t *stream, const struct hf_addr *addr, const struct hf_err *err)
{
    assert_false(got.called);
    got.called = true;
    got.stream = stream;
    got.addr = *addr;
    if (err)
        got.err = *err;
}

static void on_fetched(void *arg, int status, struct hf_str body, const struct hf_err *err)
{
    assert_false(got.called);
    got.called = true;
    got.status = status;
    got.body = HF_BUF_INIT(NET_BUF_MAX);
    assert_int_equal(hf_buf_add(&got.body, body.p, body.n), 0);
    if (err)
        got.err = *err;
}

static void redirect(struct hf_req *req, int status, const char *to)
{
    hf_res_header(req, "Location", to);
    hf_res_send(req, status, NULL, "moved", 5);
}

static void note(struct hf_req *req, struct hf_str body, void *arg)
{
    struct hf_str m = hf_req_method(req), secret = hf_req_header(req, "x-secret");
    hf_buf_clear(&seen);
    assert_int_equal(hf_buf_addf(&seen, "%.*s %.*s secret=%.*s", (int)m.n, m.p, (int)body.n, body.p,
                                 (int)secret.n, secret.p ? secret.p : ""),
                     0);
    hf_res_send(req, 200, NULL, "fine", 4);
}

static void on_request(void *self, struct hf_req *req)
{
    struct hf_str p = hf_req_path(req), q = hf_req_query(req);
    char to[512];
    requests++;
    (void)snprintf(to, sizeof(to), "%.*s", (int)q.n, q.p ? q.p : "");
    if (hf_str_eq(p, "/303"))
        redirect(req, 303, to);
    else if (hf_str_eq(p, "/307"))
        redirect(req, 307, to);
    else if (hf_str_eq(p, "/loop"))
        redirect(req, 302, "/loop");
    else if (hf_str_eq(p, "/dir/relative"))
        redirect(req, 302, "next");
    else if (hf_str_eq(p, "/large")) {
        char *large = hf_xcalloc(1, 1 << 20);
        hf_res_send(req, 200, NULL, large, 1 << 20);
        free(large);
    } else if (!hf_str_eq(p, "/hang"))
        hf_req_collect(req, 1 << 20, note, NULL, NULL);
}

static const struct hf_http_handler handler = {on_request};

static int setup(void **state)
{
    struct hf_err err;
    assert_int_equal(uv_loop_init(&loop), 0);
    server = hf_http_server_new(&loop, &handler, NULL);
    assert_int_equal(hf_http_server_listen_tcp(server, "127.0.0.1", 0, &err), 0);
    port = hf_http_server_port(server);
    memset(answers, 0, sizeof(answers));
    memset(&got, 0, sizeof(got));
    questions = requests = 0;
    seen = HF_BUF_INIT(NET_BUF_MAX);
    return 0;
}

static void server_gone(void *arg)
{
    *(bool *)arg = true;
}

static void free_stream(uv_handle_t *h)
{
    free(h);
}

static int teardown(void **state)
{
    bool done = false;
    if (got.stream)
        uv_close((uv_handle_t *)got.stream, free_stream);
    hf_http_server_free(server, server_gone, &done);
    NET_WAIT(&loop, done);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    hf_buf_done(&got.body);
    hf_buf_done(&seen);
    return 0;
}

static int dial(const char *host, uint16_t to, unsigned flags)
{
    if (got.stream)
        uv_close((uv_handle_t *)got.stream, free_stream);
    memset(&got, 0, sizeof(got));
    questions = 0;
    (void)!hf_dial_host(&loop, host, to, flags, on_dialled, NULL);
    assert_false(got.called);
    NET_WAIT(&loop, got.called);
    return got.stream ? 0 : got.err.r;
}

static void test_dial(void **state)
{
    assert_int_equal(dial("127.0.0.1", port, HF_DIAL_LOCAL), 0);
    assert_int_equal(questions, 0);
    assert_int_equal(dial("127.0.0.1", port, 0), -EACCES);
    assert_int_equal(dial("::ffff:127.0.0.1", port, HF_DIAL_LOCAL), 0);
    assert_int_equal(dial("127.0.0.1", 1, HF_DIAL_LOCAL), -ECONNREFUSED);
    assert_non_null(strstr(got.err.msg, "127.0.0.1 port 1"));
    assert_int_equal(dial("2130706433", port, HF_DIAL_LOCAL), -EINVAL);
    assert_int_equal(dial("0x7f.1", port, HF_DIAL_LOCAL), -EINVAL);
    assert_int_equal(dial("", port, HF_DIAL_LOCAL), -EINVAL);
    assert_int_equal(questions, 0); /* no resolver sees what is no name */
    assert_int_equal(dial("nowhere.test", port, HF_DIAL_LOCAL), -ENOENT);
    answers[0] = "127.0.0.1";
    assert_int_equal(dial("here.test", port, HF_DIAL_LOCAL), 0);
    assert_int_equal(questions, 1);
}

/* A public name that resolves to a place inside. */
static void test_names_of_private_places(void **state)
{
    static const char *const inside[] = {
        "127.0.0.1",     "10.0.0.1",        "169.254.169.254",         "::1",
        "fd00:ec2::254", "::ffff:10.0.0.1", "::ffff:127.0.0.1",        "64:ff9b::a00:1",
        "fe80::1",       "0.0.0.0",         "10.0.0.1 169.254.169.254"};
    for (size_t i = 0; i < HF_ARRAY_LEN(inside); i++) {
        answers[0] = inside[i];
        if (dial("evil.test", port, 0) != -EACCES)
            fail_msg("dialled %s: %d %s", inside[i], got.err.r, got.err.msg);
    }
    /* What may not be dialled is passed over, not dialled. */
    answers[0] = "10.0.0.1 169.254.169.254 127.0.0.1";
    assert_int_equal(dial("mixed.test", port, HF_DIAL_LOCAL), 0);
    struct hf_addr lo = {4, {127, 0, 0, 1}};
    assert_true(hf_addr_equal(&got.addr, &lo));
    assert_int_equal(requests, 0);
}

/* An address that does not answer costs its share of the time, then the next one is tried. */
static void test_silent_address(void **state)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct hf_addr addrs[10] = {{4, {127, 0, 0, 2}}};
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fill[8];
    a.sin_addr.s_addr = inet_addr("127.0.0.2");
    assert_int_equal(bind(l, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(l, 0), 0);
    for (size_t i = 0; i < HF_ARRAY_LEN(fill); i++) { /* a full backlog drops what comes */
        fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(fill[i], (struct sockaddr *)&a, sizeof(a));
    }
    for (size_t i = 1; i < HF_ARRAY_LEN(addrs); i++)
        addrs[i] = (struct hf_addr){4, {127, 0, 0, 1}};
    uint64_t begin = hf_mono_ms();
    (void)!hf_dial_addrs(&loop, addrs, HF_ARRAY_LEN(addrs), port, HF_DIAL_LOCAL, on_dialled, NULL);
    NET_WAIT(&loop, got.called);
    assert_non_null(got.stream);
    assert_int_equal(got.addr.b[3], 1);
    assert_true(hf_mono_ms() - begin >= 900);
    hf_close(l);
    for (size_t i = 0; i < HF_ARRAY_LEN(fill); i++)
        hf_close(fill[i]);
}

static void test_cancel(void **state)
{
    struct hf_guard_dial *d = hf_dial_host(&loop, "127.0.0.1", port, HF_DIAL_LOCAL, on_dialled, NULL);
    hf_dial_cancel(d);
    answers[0] = "127.0.0.1";
    d = hf_dial_host(&loop, "a.test", port, HF_DIAL_LOCAL, on_dialled, NULL);
    hf_dial_cancel(d);
    d = hf_dial_host(&loop, "127.0.0.1", port, HF_DIAL_LOCAL, on_dialled, NULL);
    (void)uv_run(&loop, UV_RUN_NOWAIT); /* it connects */
    if (!got.called)
        hf_dial_cancel(d);
    bool before = got.called;
    net_pump(&loop, 20);
    assert_true(got.called == before);
}

/* ---- fetching ---- */

static int fetch_with(const char *method, const char *url, const char *body, unsigned flags, size_t max,
                      uint64_t ms)
{
    static const char *const headers[] = {"X-Secret: s3", "Content-Type: text/plain", NULL};
    hf_buf_done(&got.body);
    memset(&got, 0, sizeof(got));
    questions = requests = 0;
    (void)!hf_fetch_start(&loop, method, url, headers, hf_str_c(body), flags,
                          world.ca_path[0] ? world.ca_path : NULL, max, ms, on_fetched, NULL);
    assert_false(got.called);
    NET_WAIT(&loop, got.called);
    return got.err.r;
}

static char *url_of(const char *host, const char *path)
{
    static char all[4][600];
    static unsigned next;
    char *p = all[next++ % 4];
    (void)snprintf(p, 600, "http://%s:%u%s", host, port, path);
    return p;
}

static int fetch(const char *url)
{
    return fetch_with("POST", url, "hello", HF_DIAL_LOCAL, 65536, 5000);
}

static void test_fetch(void **state)
{
    answers[0] = "127.0.0.1";
    assert_int_equal(fetch(url_of("a.test", "/x?y")), 0);
    assert_int_equal(got.status, 200);
    assert_string_equal(got.body.p, "fine");
    assert_string_equal(seen.p, "POST hello secret=s3");
    assert_int_equal(fetch_with("POST", url_of("127.0.0.1", "/"), "x", 0, 100, 5000), -EACCES);
    assert_int_equal(requests, 0);
    assert_int_equal(got.status, 0);
    assert_int_equal(fetch_with("GET", url_of("127.0.0.1", "/large"), "", HF_DIAL_LOCAL, 1000, 5000), 0);
    assert_int_equal(got.body.n, 1000);
    assert_int_equal(fetch_with("GET", url_of("127.0.0.1", "/hang"), "", HF_DIAL_LOCAL, 1000, 80),
                     -ETIMEDOUT);
    assert_int_equal(fetch("http://user@127.0.0.1/"), -EINVAL);
    assert_int_equal(fetch("http://127.0.0.1:1/"), -ECONNREFUSED);
    assert_int_equal(fetch_with("P T", url_of("127.0.0.1", "/"), "", HF_DIAL_LOCAL, 1000, 1000), -EINVAL);
    struct hf_fetch *f = hf_fetch_start(&loop, "GET", url_of("127.0.0.1", "/hang"), NULL, (struct hf_str){0},
                                        HF_DIAL_LOCAL, NULL, 100, 1000, on_fetched, NULL);
    got.called = false;
    net_pump(&loop, 10);
    hf_fetch_cancel(f);
    net_pump(&loop, 10);
    assert_false(got.called);
}

/* The name answers differently the second time: there is no second time. */
static void test_rebinding(void **state)
{
    answers[0] = "127.0.0.1";
    answers[1] = "169.254.169.254";
    assert_int_equal(fetch(url_of("rebind.test", "/")), 0);
    assert_int_equal(questions, 1);
    assert_int_equal(requests, 1);
    answers[0] = "169.254.169.254";
    answers[1] = "127.0.0.1";
    assert_int_equal(fetch(url_of("rebind.test", "/")), -EACCES);
    assert_int_equal(requests, 0);
    /* A redirect is a new question, and its answer is judged again. */
    answers[0] = "127.0.0.1";
    answers[1] = "10.0.0.1";
    char path[128];
    (void)snprintf(path, sizeof(path), "/307?http://rebind.test:%u/", port);
    assert_int_equal(fetch(url_of("rebind.test", path)), -EACCES);
    assert_int_equal(requests, 1);
}

static void test_redirects(void **state)
{
    char path[256];
    for (size_t i = 0; i < HF_ARRAY_LEN(answers); i++)
        answers[i] = "127.0.0.1";
    static const char *const forbidden[] = {"http://169.254.169.254/latest/",
                                            "http://[::ffff:169.254.169.254]/", "http://10.0.0.1/",
                                            "http://[fd00:ec2::254]/", "//10.0.0.1/"};
    for (size_t i = 0; i < HF_ARRAY_LEN(forbidden); i++) {
        (void)snprintf(path, sizeof(path), "/307?%s", forbidden[i]);
        if (fetch(url_of("a.test", path)) != -EACCES)
            fail_msg("followed to %s: %s", forbidden[i], got.err.msg);
        assert_int_equal(requests, 1);
    }
    static const char *const bad[] = {"file:///etc/passwd", "gopher://a.test/", "http://2852039166/",
                                      "http://u@a.test/", "ftp://a.test/"};
    for (size_t i = 0; i < HF_ARRAY_LEN(bad); i++) {
        (void)snprintf(path, sizeof(path), "/307?%s", bad[i]);
        if (fetch(url_of("a.test", path)) != -EINVAL)
            fail_msg("followed to %s: %s", bad[i], got.err.msg);
    }
    assert_int_equal(fetch(url_of("a.test", "/loop")), -ELOOP);
    assert_int_equal(requests, 6);
    assert_int_equal(fetch(url_of("a.test", "/dir/relative")), 0);
    /* The same place keeps method, body and headers with 307; 303 makes a GET. */
    assert_int_equal(fetch(url_of("a.test", "/307?/x")), 0);
    assert_string_equal(seen.p, "POST hello secret=s3");
    assert_int_equal(fetch(url_of("a.test", "/303?/x")), 0);
    assert_string_equal(seen.p, "GET  secret=s3");
    /* Another place does not get the caller's secrets. */
    (void)snprintf(path, sizeof(path), "/307?http://b.test:%u/x", port);
    assert_int_equal(fetch(url_of("a.test", path)), 0);
    assert_string_equal(seen.p, "POST hello secret=");
    assert_int_equal(requests, 2);
}

static void test_https(void **state)
{
    struct hf_err err;
    char url[128], path[256];
    tls_world_init(&world, HF_ALPN_HTTP1);
    assert_int_equal(hf_http_server_listen_tls(server, "127.0.0.1", 0, world.server, &err), 0);
    /* The plain listener was first: hf_http_server_port tells only that one. */
    hf_http_server_stop(server);
    bool done = false;
    hf_http_server_free(server, server_gone, &done);
    NET_WAIT(&loop, done);
    server = hf_http_server_new(&loop, &handler, NULL);
    assert_int_equal(hf_http_server_listen_tls(server, "127.0.0.1", 0, world.server, &err), 0);
    tls_port = hf_http_server_port(server);
    assert_int_equal(hf_http_server_listen_tcp(server, "127.0.0.1", port, &err), 0);
    for (size_t i = 0; i < HF_ARRAY_LEN(answers); i++)
        answers[i] = "127.0.0.1";
    (void)snprintf(url, sizeof(url), "https://a.test:%u/", tls_port);
    assert_int_equal(fetch(url), 0);
    assert_string_equal(got.body.p, "fine");
    (void)snprintf(url, sizeof(url), "https://wrong.test:%u/", tls_port);
    assert_int_equal(fetch(url), -EPROTO);
    assert_non_null(strstr(got.err.msg, "certificate is not accepted"));
    assert_int_equal(requests, 0);
    (void)snprintf(url, sizeof(url), "https://a.test:%u/307?http://a.test:%u/", tls_port, port);
    assert_int_equal(fetch(url), -EACCES); /* no way down */
    assert_int_equal(requests, 1);
    (void)snprintf(path, sizeof(path), "/307?https://a.test:%u/", tls_port);
    assert_int_equal(fetch(url_of("a.test", path)), 0);
    char ca[64];
    memcpy(ca, world.ca_path, sizeof(ca));
    world.ca_path[0] = '\0';
    (void)snprintf(url, sizeof(url), "https://a.test:%u/", tls_port);
    assert_int_equal(fetch(url), -EPROTO); /* not in the system's store */
    memcpy(world.ca_path, ca, sizeof(ca));
    tls_world_done(&world);
    memset(&world, 0, sizeof(world));
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_address_urls),
        cmocka_unit_test(test_own_address),
        T(test_dial),
        T(test_names_of_private_places),
        T(test_silent_address),
        T(test_cancel),
        T(test_fetch),
        T(test_rebinding),
        T(test_redirects),
        T(test_https),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
