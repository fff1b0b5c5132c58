/* Programs of others against the server: curl, nghttp and h2load, where they are installed. */
#include "net.h"
#include "tlsnet.h"

#include <spawn.h>
#include <sys/wait.h>

#include "wire/http.h"

#define LARGE (1u << 20)
#define RUN_MS 20000u

extern char **environ;

static uv_loop_t loop;
static struct hf_http_server *plain, *tls;
static struct tls_world world;
static struct hf_buf out = {NULL, 0, 0, NET_BUF_MAX};
static char *large;
static char large_path[64];

static void echo(struct hf_req *req, struct hf_str b, void *arg)
{
    hf_res_send(req, 200, "text/plain", b.p, b.n);
}

static void on_request(void *self, struct hf_req *req)
{
    const char *const trailers[] = {"x-sum", "77"};
    if (hf_str_eq(hf_req_path(req), "/echo")) {
        hf_req_collect(req, 2 * LARGE, echo, NULL, NULL);
    } else if (hf_str_eq(hf_req_path(req), "/trailers")) {
        hf_res_begin(req, 200, -1);
        (void)hf_res_write(req, large, LARGE);
        hf_res_end_trailers(req, trailers, 1);
    } else {
        char text[64];
        int n = snprintf(text, sizeof(text), "version %d", hf_req_version(req));
        hf_res_send(req, 200, "text/plain", text, (size_t)n);
    }
}

static const struct hf_http_handler handler = {on_request};

static int setup(void **state)
{
    struct hf_err err;
    assert_int_equal(uv_loop_init(&loop), 0);
    tls_world_init(&world, HF_ALPN_HTTP1 | HF_ALPN_H2);
    plain = hf_http_server_new(&loop, &handler, NULL);
    tls = hf_http_server_new(&loop, &handler, NULL);
    hf_http_server_http2(plain);
    assert_int_equal(hf_http_server_listen_tcp(plain, "127.0.0.1", 0, &err), 0);
    assert_int_equal(hf_http_server_listen_tls(tls, "127.0.0.1", 0, world.server, &err), 0);
    large = hf_xmalloc(LARGE + 1);
    for (size_t i = 0; i < LARGE; i++)
        large[i] = (char)('a' + i % 26);
    large[LARGE] = '\0';
    temp_file(large, large_path);
    return 0;
}

static void server_gone(void *arg)
{
    (*(int *)arg)++;
}

static int teardown(void **state)
{
    int gone = 0;
    hf_http_server_free(plain, server_gone, &gone);
    hf_http_server_free(tls, server_gone, &gone);
    NET_WAIT(&loop, gone == 2);
    assert_int_equal(uv_loop_close(&loop), 0);
    tls_world_done(&world);
    hf_buf_done(&out);
    (void)unlink(large_path);
    free(large);
    return 0;
}

/* Runs a program and pumps the loop; its standard output is in out. Skips the test when it is not there. */
static int run(const char *const *argv)
{
    int fds[2], st;
    pid_t pid;
    posix_spawn_file_actions_t fa;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0); /* ours only: the program's end waits */
    assert_int_equal(posix_spawn_file_actions_init(&fa), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&fa, fds[1], 1), 0);
    int r = posix_spawnp(&pid, argv[0], &fa, NULL, (char *const *)argv, environ);
    (void)posix_spawn_file_actions_destroy(&fa);
    hf_close(fds[1]);
    if (r != 0) {
        hf_close(fds[0]);
        print_message("%s is not installed\n", argv[0]);
        skip();
    }
    hf_buf_clear(&out);
    uint64_t end = hf_mono_ms() + RUN_MS;
    pid_t done = 0;
    while (!done && hf_mono_ms() < end) {
        net_turn(&loop);
        assert_int_equal(hf_buf_reserve(&out, 65536), 0);
        ssize_t k = read(fds[0], out.p + out.n, 65536);
        out.n += k > 0 ? (size_t)k : 0;
        done = k > 0 ? 0 : waitpid(pid, &st, WNOHANG);
    }
    if (!done) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, &st, 0);
    }
    hf_close(fds[0]);
    out.p[out.n] = '\0';
    assert_true(done == pid);
    return WIFEXITED(st) ? WEXITSTATUS(st) : -1;
}

static const char *url(bool secure, const char *path)
{
    static char text[2][128];
    static unsigned next;
    char *p = text[next++ % 2];
    (void)snprintf(p, 128, "%s://localhost:%u%s", secure ? "https" : "http",
                   hf_http_server_port(secure ? tls : plain), path);
    return p;
}

static void curl(bool secure, const char *version, const char *expect)
{
    const char *get[] = {"curl",        "-sS",   "--noproxy",      "*", "--cacert",
                         world.ca_path, version, url(secure, "/"), NULL};
    assert_int_equal(run(get), 0);
    assert_string_equal(out.p, expect);
    char body[80];
    (void)snprintf(body, sizeof(body), "@%s", large_path);
    const char *post[] = {"curl",        "-sS",           "--noproxy", "*",     "--cacert",
                          world.ca_path, "--data-binary", body,        version, url(secure, "/echo"),
                          NULL};
    assert_int_equal(run(post), 0);
    assert_int_equal(out.n, LARGE);
    assert_memory_equal(out.p, large, LARGE);
}

static void test_curl(void **state)
{
    curl(false, "--http1.1", "version 11");
    curl(false, "--http2-prior-knowledge", "version 20");
    curl(true, "--http1.1", "version 11");
    curl(true, "--http2", "version 20");
}

static void test_curl_verifies(void **state)
{
    const char *argv[] = {"curl", "-sS",      "-o",        "/dev/null",    "--noproxy",
                          "*",    "--stderr", "/dev/null", url(true, "/"), NULL};
    assert_int_equal(run(argv), 60);
}

static void test_nghttp(void **state)
{
    const char *argv[] = {"nghttp", "-nv", url(false, "/trailers"), NULL};
    assert_int_equal(run(argv), 0);
    assert_true(net_has(&out, "x-sum"));
}

static void load(bool secure, const char *h1)
{
    const char *argv[] = {"h2load", "-n", "2000", "-c", "10", "-m", "20", url(secure, "/"), h1, NULL};
    assert_int_equal(run(argv), 0);
    assert_true(net_has(&out, "2000 succeeded, 0 failed"));
}

static void test_h2load(void **state)
{
    load(false, NULL);
    load(true, NULL);
    load(false, "--h1");
    load(true, "--h1");
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_curl),
        T(test_curl_verifies),
        T(test_nghttp),
        T(test_h2load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
