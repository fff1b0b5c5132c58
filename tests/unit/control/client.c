#include "client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/path.h"
#include "control/daemon.h"
#include "control/key.h"
#include "served_modules.h"
#include "store/meta.h"

void hf_serve_if_asked(int argc, char **argv)
{
    if (argc != 3 || strcmp(argv[1], "--serve") != 0)
        return;
    struct hf_config cfg;
    struct hf_err err = {0};
    hf_config_defaults(&cfg);
    hf_auto_free char *run = hf_xasprintf("%s/run", argv[2]);
    const char *sets[][2] = {
        {"data", argv[2]}, {"run_dir", run}, {"listen", "127.0.0.1:0"}, {"warm_pool", "2"}};
    for (size_t i = 0; i < HF_ARRAY_LEN(sets); i++) {
        if (hf_config_set(&cfg, sets[i][0], sets[i][1], &err) < 0)
            abort();
    }
    const char *network = getenv("HF_NETWORK");
    if (network && hf_config_set(&cfg, "network", network, &err) < 0)
        abort();
    const char *max = getenv("HF_MAX_SANDBOXES");
    if (max && hf_config_set(&cfg, "max_sandboxes", max, &err) < 0)
        abort();
    cfg.max_timeout_s = 24 * 3600;
    int r = hf_daemon_run(&cfg, hf_served_modules, &err);
    if (r < 0)
        (void)fprintf(stderr, "failed: %s\n", err.msg);
    hf_config_done(&cfg);
    exit(r < 0 ? 1 : 0);
}

/* The port from the line that says "listening"; 0 when the daemon ended before. */
static int wait_port(const char *log, pid_t pid)
{
    for (unsigned i = 0; i < 1000; i++) {
        hf_auto_free char *text = NULL;
        size_t n;
        const char *at =
            hf_read_file(log, 1 << 24, &text, &n) == 0 ? strstr(text, "url=http://127.0.0.1:") : NULL;
        if (at)
            return (int)strtol(at + strlen("url=http://127.0.0.1:"), NULL, 10);
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid)
            return 0;
        (void)usleep(5000);
    }
    fail_msg("the daemon does not listen, see %s", log);
    return 0;
}

void hf_served_start(struct hf_served *s, const char *killpoint)
{
    hf_auto_free char *log = hf_xasprintf("%s/log", s->dir);
    (void)unlink(log); /* the line of an earlier daemon must not be taken for this one's */
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves no daemon */
        int fd = open(log, O_CREAT | O_TRUNC | O_WRONLY, 0600);
        if (fd < 0 || dup2(fd, 2) < 0)
            _exit(126);
        if (killpoint)
            (void)setenv("HOLDFAST_KILLPOINT", killpoint, 1);
        (void)execl("/proc/self/exe", "served", "--serve", s->dir, (char *)NULL);
        _exit(127);
    }
    s->port = wait_port(log, s->pid);
}

static void add_template(struct hf_served *s)
{
    hf_auto_reply struct hf_reply r = {0};
    hf_http(s, s->key, "POST", "/v1/templates?name=base", NULL, "a root file system", &r);
    if (r.status != 201)
        fail_msg("import: %d %s", r.status, r.body);
}

void hf_served_init(struct hf_served *s)
{
    struct hf_err err = {0};
    memset(s, 0, sizeof(*s));
    (void)snprintf(s->dir, sizeof(s->dir), "/tmp/hf-control-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    (void)snprintf(s->run_dir, sizeof(s->run_dir), "%s/run", s->dir);
    assert_int_equal(hf_key_create(s->dir, NULL, "test", s->key, NULL, &err), 0);
    assert_int_equal(hf_key_create(s->dir, "other", "test", s->other_key, NULL, &err), 0);
    hf_served_start(s, NULL);
    assert_true(s->port > 0);
    add_template(s);
}

void hf_served_stop(struct hf_served *s)
{
    int status = 0;
    assert_int_equal(kill(s->pid, SIGTERM), 0);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    s->pid = 0;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

void hf_served_kill9(struct hf_served *s)
{
    assert_int_equal(kill(s->pid, SIGKILL), 0);
    assert_int_equal(waitpid(s->pid, NULL, 0), s->pid);
    s->pid = 0;
}

bool hf_served_died(struct hf_served *s)
{
    for (unsigned i = 0; i < 500; i++) {
        int status = 0;
        if (waitpid(s->pid, &status, WNOHANG) == s->pid) {
            s->pid = 0;
            return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        }
        (void)usleep(2000);
    }
    return false;
}

void hf_served_done(struct hf_served *s)
{
    if (s->pid)
        hf_served_stop(s);
    assert_int_equal(hf_remove_tree(s->dir), 0);
}

/* ---- HTTP ---- */

void hf_reply_done(struct hf_reply *r)
{
    free(r->head);
    free(r->body);
    json_decref(r->json);
    memset(r, 0, sizeof(*r));
}

int hf_http_send(const struct hf_served *s, const char *key, const char *method, const char *path,
                 const char *extra, const char *body)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->port)};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    hf_auto_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
        return -1;
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(64u << 20);
    int r = hf_buf_addf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", method, path,
                        extra ? extra : "");
    if (r == 0 && key)
        r = hf_buf_addf(&b, "X-API-Key: %s\r\n", key);
    if (r == 0 && body)
        r = hf_buf_addf(&b, "Content-Length: %zu\r\n", strlen(body));
    if (r == 0)
        r = hf_buf_adds(&b, "\r\n");
    if (r == 0 && body)
        r = hf_buf_adds(&b, body);
    assert_int_equal(r, 0);
    (void)signal(SIGPIPE, SIG_IGN);
    if (hf_write_all(fd, b.p, b.n) < 0)
        return hf_take_fd(&fd); /* refused early: the answer is there */
    return hf_take_fd(&fd);
}

void hf_http_receive(int fd, struct hf_reply *ret)
{
    memset(ret, 0, sizeof(*ret));
    if (fd < 0)
        return;
    struct timeval limit = {.tv_sec = 20};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    hf_auto_buf struct hf_buf b = HF_BUF_INIT(64u << 20);
    char chunk[16384];
    ssize_t n;
    while ((n = read(fd, chunk, sizeof(chunk))) > 0)
        assert_int_equal(hf_buf_add(&b, chunk, (size_t)n), 0);
    (void)close(fd);
    char *end = b.n ? strstr(b.p, "\r\n\r\n") : NULL;
    if (!end || strncmp(b.p, "HTTP/1.1 ", 9) != 0)
        return;
    ret->status = (int)strtol(b.p + 9, NULL, 10);
    ret->head = hf_xstrndup(b.p, (size_t)(end - b.p) + 2);
    ret->body = hf_xstrdup(end + 4);
    ret->json = json_loads(ret->body, JSON_DECODE_ANY, NULL);
}

void hf_http(const struct hf_served *s, const char *key, const char *method, const char *path,
             const char *extra, const char *body, struct hf_reply *ret)
{
    hf_http_receive(hf_http_send(s, key, method, path, extra, body), ret);
}

const char *hf_reply_header(struct hf_reply *r, const char *name)
{
    static char value[1024];
    size_t n = strlen(name);
    for (const char *p = r->head; p && *p; p = strstr(p, "\r\n") + 2) {
        const char *eol = strstr(p, "\r\n");
        if ((size_t)(eol - p) > n && p[n] == ':' && hf_str_caseeq((struct hf_str){p, n}, name)) {
            (void)snprintf(value, sizeof(value), "%.*s", (int)(eol - p - (ptrdiff_t)n - 2), p + n + 2);
            return value;
        }
    }
    return NULL;
}
