/* Traffic tokens, preview links, masked hosts, forwarding claims, CORS: who comes in and what goes on. */
#include "rig.h"

#include "base/clock.h"

#define OK "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
#define TOKEN "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define MISSING \
    "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"
#define INVALID(h) "Sandbox is secured with traffic access token. Provided token in header '" h "' is invalid"

static void make_private(void)
{
    rig.policy.private_traffic = true;
    (void)snprintf(rig.policy.traffic_token, sizeof(rig.policy.traffic_token), TOKEN);
    memset(rig.policy.preview_key, 7, sizeof(rig.policy.preview_key));
}

/* One request on its own connection; what the client got is in rig.in. */
static void ask(const char *head)
{
    int fd = rig_client();
    rig_send(fd, head);
    rig_expect(fd, "\r\n\r\n");
    net_pump(&rig.loop, 5);
    (void)net_recv(fd, &rig.in);
    hf_close(fd);
    net_pump(&rig.loop, 2);
}

static void refused(const char *head, const char *message)
{
    int dials = rig.dials;
    ask(head);
    if (strncmp(rig.in.p, "HTTP/1.1 403 ", 13) != 0 || !net_has(&rig.in, message))
        fail_msg("%s\nwas answered\n%s", head, rig.in.p);
    assert_true(net_has(&rig.in, "{\"sandboxId\":\"box\",\"message\":\""));
    assert_true(net_has(&rig.in, "\"code\":403}"));
    assert_true(net_has(&rig.in, "Access-Control-Allow-Origin: *\r\n"));
    assert_int_equal(rig.dials, dials); /* nothing of it reached the sandbox */
}

/* It reaches the application; what that saw is in rig.up. */
static void let_in(const char *head)
{
    int fd = rig_client();
    rig_send(fd, head);
    int up = rig_accept("\r\n\r\n");
    rig_send(up, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
    rig_expect(fd, "\r\n\r\nok");
    hf_close(fd);
    hf_close(up);
    net_pump(&rig.loop, 2);
}

#define GET(more) "GET /p HTTP/1.1\r\n" RIG_HOST more "\r\n"

static void test_tokens(void **state)
{
    make_private();
    refused(GET(""), MISSING);
    refused(GET("e2b-traffic-access-token: \r\n"), INVALID("e2b-traffic-access-token"));
    refused(GET("e2b-traffic-access-token: " TOKEN "0\r\n"), INVALID("e2b-traffic-access-token"));
    refused(GET("E2B-Traffic-Access-Token: 1" TOKEN "\r\n"), INVALID("e2b-traffic-access-token"));
    refused(GET("cube-traffic-access-token: x\r\n"), INVALID("cube-traffic-access-token"));
    /* E2B's name wins if both are there. */
    refused(GET("cube-traffic-access-token: " TOKEN "\r\ne2b-traffic-access-token: x\r\n"),
            INVALID("e2b-traffic-access-token"));
    refused(GET("Authorization: Bearer " TOKEN "\r\n"), MISSING);
    refused("GET /?e2b-traffic-access-token=" TOKEN " HTTP/1.1\r\n" RIG_HOST "\r\n", MISSING);
    let_in(GET("E2B-Traffic-Access-Token: " TOKEN "\r\n"));
    assert_false(net_has(&rig.up, "0123456789"));
    let_in(GET("Cube-Traffic-Access-Token: " TOKEN "\r\nA: b\r\n"));
    assert_false(net_has(&rig.up, "0123456789"));
    assert_true(net_has(&rig.up, "A: b\r\n"));
    /* A sandbox whose token is not known lets nobody in, an empty header least of all. */
    rig.policy.traffic_token[0] = '\0';
    refused(GET("e2b-traffic-access-token:\r\n"), INVALID("e2b-traffic-access-token"));
}

static void test_public_strips(void **state)
{
    let_in("GET /p?hf_preview=1.x&a=1&hf_preview=&b=%26&hf_preview&hf_previews=2 HTTP/1.1\r\n" RIG_HOST
           "e2b-traffic-access-token: s3cr\r\ncube-traffic-access-token: s3cr\r\nhf-preview: s3cr\r\n"
           "Cookie: a=1; hf_preview=s3cr;b=2\r\nCookie: xhf_preview=3; hf_preview=s3cr\r\n\r\n");
    assert_int_equal(strncmp(rig.up.p, "GET /p?a=1&b=%26&hf_previews=2 HTTP/1.1\r\n", 41), 0);
    assert_true(net_has(&rig.up, "Cookie: a=1; b=2; xhf_preview=3\r\n"));
    assert_false(net_has(&rig.up, "s3cr"));
    let_in("GET /p?hf_preview=1.x HTTP/1.1\r\n" RIG_HOST "Cookie: hf_preview=1\r\n\r\n");
    assert_int_equal(strncmp(rig.up.p, "GET /p HTTP/1.1\r\n", 17), 0);
    assert_false(net_has(&rig.up, "Cookie"));
}

static void test_envd_needs_no_token(void **state)
{
    make_private();
    rig.policy.mask_host = "masked.example";
    ask("GET /health HTTP/1.1\r\nHost: 49983-box.localhost\r\n\r\n");
    assert_true(net_has(&rig.in, "\"port\":49983,\"code\":502}")); /* no envd here, but no 403 either */
}

static void link_value(char out[72], const char *id, uint16_t port, int64_t in_s)
{
    hf_preview_sign(rig.policy.preview_key, id, port, hf_real_ms() / 1000 + in_s, out);
}

static void with_value(char out[1024], const char *format, const char *value)
{
    const char *at = strchr(format, '@');
    (void)snprintf(out, 1024, "%.*s%s%s", (int)(at - format), format, value, at + 1);
}

static void test_sign(void **state)
{
    unsigned char key[32] = {0};
    char a[72], b[72];
    hf_preview_sign(key, "iabc", 8000, 1900000000, a);
    assert_int_equal(strlen(a), 11 + 43);
    assert_int_equal(strspn(a + 11, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), 43);
    /* openssl dgst -sha256 -mac HMAC -macopt hexkey:00… */
    assert_string_equal(a, "1900000000.VNmMRbsHk2hGRKNvN9vjq1zCk5mmMmxYcpYYg5OEYRM");
    hf_preview_sign(key, "iabc", 8001, 1900000000, b);
    assert_string_not_equal(a, b);
    hf_preview_sign(key, "iabd", 8000, 1900000000, b);
    assert_string_not_equal(a, b);
}

static void test_link_redirects(void **state)
{
    static const struct {
        const char *target, *location;
    } cases[] = {{"/a/b?hf_preview=@", "/a/b"},
                 {"/?x=1&hf_preview=@&y=2", "/?x=1&y=2"},
                 {"//evil.example/?hf_preview=@", "/.//evil.example/"},
                 {"/\\evil.example?hf_preview=@", "/./\\evil.example"}};
    char value[72], req[1024], want[256];
    make_private();
    link_value(value, "box", 8000, 60);
    for (size_t i = 0; i < HF_ARRAY_LEN(cases); i++) {
        char format[256];
        (void)snprintf(format, sizeof(format), "GET %s HTTP/1.1\r\n" RIG_HOST "\r\n", cases[i].target);
        with_value(req, format, value);
        ask(req);
        (void)snprintf(want, sizeof(want), "\r\nLocation: %s\r\n", cases[i].location);
        assert_int_equal(strncmp(rig.in.p, "HTTP/1.1 303 ", 13), 0);
        if (!net_has(&rig.in, want))
            fail_msg("%s: %s", cases[i].target, rig.in.p);
        (void)snprintf(want, sizeof(want), "Set-Cookie: hf_preview=%s; Path=/; Max-Age=", value);
        assert_true(net_has(&rig.in, want));
        assert_true(net_has(&rig.in, "; HttpOnly; SameSite=Lax\r\n"));
        assert_true(net_has(&rig.in, "Cache-Control: no-store\r\n"));
    }
    assert_int_equal(rig.dials, 0);
}

static void test_link_lets_in(void **state)
{
    char value[72], req[1024];
    static const char *const ways[] = {
        GET("Cookie: a=1; hf_preview=@; b=2\r\n"), GET("hf-preview: @\r\n"),
        GET("Cookie: hf_preview=1.2\r\nCookie: b=2;hf_preview=@\r\n"),
        "POST /p?hf_preview=@&c=3 HTTP/1.1\r\n" RIG_HOST "Content-Length: 0\r\n\r\n",
        /* A WebSocket's upgrade is never redirected. */
        "GET /p?hf_preview=@ HTTP/1.1\r\n" RIG_HOST "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"};
    make_private();
    link_value(value, "box", 8000, 60);
    for (size_t i = 0; i < HF_ARRAY_LEN(ways); i++) {
        with_value(req, ways[i], value);
        let_in(req);
        assert_false(net_has(&rig.up, value));
        assert_false(net_has(&rig.up, "hf_preview="));
        assert_false(net_has(&rig.up, "hf-preview"));
    }
}

static void test_bad_links(void **state)
{
    static const char *const ways[] = {GET("Cookie: hf_preview=@\r\n"), GET("hf-preview: @\r\n"),
                                       "GET /?hf_preview=@ HTTP/1.1\r\n" RIG_HOST "\r\n"};
    char old[72], other_port[72], other_box[72], forged[72], late[96], req[1024];
    make_private();
    link_value(old, "box", 8000, -1);
    link_value(other_port, "box", 8001, 60);
    link_value(other_box, "other", 8000, 60);
    link_value(forged, "box", 8000, 60);
    (void)snprintf(late, sizeof(late), "9%s", forged); /* the date moved, the signature not */
    forged[strlen(forged) - 2] ^= 1;
    const char *const bad[] = {other_port, other_box, forged, late, "x", "1.", ".", "-1.abc", TOKEN};
    for (size_t i = 0; i < HF_ARRAY_LEN(ways); i++) {
        with_value(req, ways[i], old);
        refused(req, "The preview link has expired, ask for a new one");
        for (size_t k = 0; k < HF_ARRAY_LEN(bad); k++) {
            with_value(req, ways[i], bad[k]);
            refused(req, "The preview link is not valid for this sandbox and port");
        }
    }
    /* A person sees a page. */
    ask(GET("User-Agent: Mozilla/5.0\r\nAccept: text/html\r\nCookie: hf_preview=x\r\n"));
    assert_true(net_has(&rig.in, "HTTP/1.1 403 "));
    assert_true(net_has(&rig.in, "<h1>The preview link is not valid"));
    /* A new key (the token was rotated) ends the old links. */
    link_value(forged, "box", 8000, 60);
    memset(rig.policy.preview_key, 8, 32);
    with_value(req, ways[1], forged);
    refused(req, "The preview link is not valid");
}

static void test_mask_host(void **state)
{
    rig.policy.mask_host = "app-${PORT}.internal:${PORT}";
    let_in("GET / HTTP/1.1\r\nA: 1\r\nHost: 8000-box.localhost:3000\r\nX-Forwarded-Host: evil\r\n\r\n");
    assert_true(net_has(&rig.up, "GET / HTTP/1.1\r\nHost: app-8000.internal:8000\r\nA: 1\r\n"));
    assert_true(net_has(&rig.up, "X-Forwarded-Host: 8000-box.localhost:3000\r\n"));
    assert_false(net_has(&rig.up, "evil"));
}

static void test_no_claims(void **state)
{
    let_in(GET("X-Forwarded-For: 6.6.6.6\r\nx-forwarded-proto: https\r\nX-Forwarded-Host: 6.6.6.6\r\n"
               "Forwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\nX-Forwarded-Port: 666\r\n"
               "X-Forwarded-For: 6.6.6.6\r\nConnection: X-Forwarded-For\r\n"));
    assert_false(net_has(&rig.up, "6.6"));
    assert_false(net_has(&rig.up, "666"));
    assert_true(net_has(&rig.up, "\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\n"));
}

/* A browser asks first, without any credential. */
static void test_preflight(void **state)
{
#define PREFLIGHT                                                             \
    "Origin: https://page.example\r\nAccess-Control-Request-Method: POST\r\n" \
    "Access-Control-Request-Headers: e2b-traffic-access-token, x-y\r\n\r\n"
    static const char granted[] = "Access-Control-Allow-Headers: e2b-traffic-access-token, x-y\r\n";
    make_private();
    ask("OPTIONS / HTTP/1.1\r\n" RIG_HOST PREFLIGHT);
    assert_int_equal(strncmp(rig.in.p, "HTTP/1.1 204 ", 13), 0);
    assert_true(net_has(&rig.in, "Access-Control-Allow-Origin: *\r\n"));
    assert_true(net_has(&rig.in, granted));
    assert_false(net_has(&rig.in, "Allow-Credentials"));
    assert_int_equal(rig.dials, 0);                             /* the sandbox heard nothing */
    refused("OPTIONS / HTTP/1.1\r\n" RIG_HOST "\r\n", MISSING); /* not a preflight */
    refused("GET / HTTP/1.1\r\n" RIG_HOST PREFLIGHT, MISSING);
    /* An unknown sandbox: granted, so that the page can read the 502 of its request. */
    ask("OPTIONS /health HTTP/1.1\r\nHost: 49983-nobody.localhost\r\n" PREFLIGHT);
    assert_int_equal(strncmp(rig.in.p, "HTTP/1.1 204 ", 13), 0);
    ask("GET /health HTTP/1.1\r\nHost: 49983-nobody.localhost\r\nOrigin: https://page.example\r\n\r\n");
    assert_int_equal(strncmp(rig.in.p, "HTTP/1.1 502 ", 13), 0);
    assert_true(net_has(&rig.in, "Access-Control-Allow-Origin: *\r\n"));
    ask("GET / HTTP/1.1\r\nHost: 0-box.localhost\r\n\r\n");
    assert_int_equal(strncmp(rig.in.p, "HTTP/1.1 400 ", 13), 0);
    assert_true(net_has(&rig.in, "Access-Control-Allow-Origin: *\r\n"));
    /* A public port answers for itself. */
    rig.policy.private_traffic = false;
    let_in("OPTIONS / HTTP/1.1\r\n" RIG_HOST PREFLIGHT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sign),   RIG_TEST(test_tokens),
                                       RIG_TEST(test_public_strips),  RIG_TEST(test_envd_needs_no_token),
                                       RIG_TEST(test_link_redirects), RIG_TEST(test_link_lets_in),
                                       RIG_TEST(test_bad_links),      RIG_TEST(test_mask_host),
                                       RIG_TEST(test_no_claims),      RIG_TEST(test_preflight)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
