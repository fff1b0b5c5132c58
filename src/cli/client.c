#include "cli/client.h"

#include <strings.h>

#include "base/id.h"
#include "cli/url.h"

void hf_answer_done(struct hf_answer *a)
{
    json_decref(a->body);
    a->body = NULL;
}

void hf_box_done(struct hf_box *box)
{
    free(box->id);
    free(box->token);
    box->id = box->token = NULL;
}

static bool is_loopback(const char *url)
{
    static const char *const hosts[] = {"127.", "localhost", "[::1]"};
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    for (size_t i = 0; i < HF_ARRAY_LEN(hosts); i++)
        if (strncmp(host, hosts[i], strlen(hosts[i])) == 0)
            return true;
    return false;
}

CURL *hf_client_easy(const struct hf_cli *cli, const char *url, char errbuf[CURL_ERROR_SIZE])
{
    CURL *c = curl_easy_init();
    if (!c)
        abort();
    errbuf[0] = '\0';
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, errbuf);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_USERAGENT, "holdfast-cli/" HOLDFAST_VERSION);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, HF_CLIENT_CONNECT_MS);
    curl_easy_setopt(c, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L);
    /* A proxy for the Internet must not see requests to this very machine. */
    if (is_loopback(url))
        curl_easy_setopt(c, CURLOPT_PROXY, "");
    return c;
}

struct curl_slist *hf_client_header(struct curl_slist *list, const char *name, const char *value)
{
    hf_auto_free char *line = hf_xasprintf("%s: %s", name, value);
    struct curl_slist *more = curl_slist_append(list, line);
    if (!more)
        abort();
    return more;
}

struct curl_slist *hf_box_headers(const struct hf_box *box, bool rpc)
{
    struct curl_slist *h = hf_client_header(NULL, "E2b-Sandbox-Id", box->id);
    h = hf_client_header(h, "E2b-Sandbox-Port", "49983");
    if (*box->token)
        h = hf_client_header(h, "X-Access-Token", box->token);
    if (!rpc)
        return h;
    h = hf_client_header(h, "Connect-Protocol-Version", "1");
    if (box->user) {
        hf_auto_buf struct hf_buf b = HF_BUF_INIT(4096);
        hf_auto_free char *pair = hf_xasprintf("%s:", box->user);
        if (hf_buf_adds(&b, "Basic ") == 0 && hf_base64_add(&b, pair, strlen(pair)) == 0)
            h = hf_client_header(h, "Authorization", b.p);
    }
    return h;
}

size_t hf_client_collect(char *p, size_t size, size_t n, void *buf)
{
    return hf_buf_add(buf, p, size * n) < 0 ? 0 : size * n;
}

int hf_client_transport_err(struct hf_cli *cli, const char *base, CURLcode code, const char *errbuf,
                            struct hf_err *err)
{
    switch (code) {
    case CURLE_COULDNT_CONNECT:
        hf_cli_hint(cli, "start one with `holdfast serve`, or name another with --url or HOLDFAST_URL");
        return hf_err_set(err, -ECONNREFUSED, "no holdfast daemon answers at %s", base);
    case CURLE_COULDNT_RESOLVE_HOST:
        hf_cli_hint(cli, "check --url, HOLDFAST_URL or E2B_API_URL");
        return hf_err_set(err, -EHOSTUNREACH, "the host of %s is not known", base);
    case CURLE_OPERATION_TIMEDOUT:
        return hf_err_set(err, -ETIMEDOUT, "%s did not answer in time", base);
    case CURLE_WRITE_ERROR:
        return hf_err_set(err, -EMSGSIZE, "the answer of %s is larger than this program accepts", base);
    default:
        break;
    }
    return hf_err_set(err, -EIO, "lost the connection to %s: %s", base,
                      errbuf && *errbuf ? errbuf : curl_easy_strerror(code));
}

static int errno_of(long status)
{
    switch (status) {
    case 400:
        return -EINVAL;
    case 401:
    case 403:
        return -EACCES;
    case 404:
        return -ENOENT;
    case 409:
        return -EBUSY;
    case 413:
        return -EMSGSIZE;
    case 429:
    case 503:
        return -EAGAIN;
    case 501:
        return -EOPNOTSUPP;
    case 507:
        return -ENOSPC;
    default:
        return -EIO;
    }
}

int hf_client_answer_err(struct hf_cli *cli, long status, struct hf_str body, struct hf_err *err)
{
    json_t *j = json_loadb(body.p ? body.p : "", body.n, 0, NULL);
    const char *message = json_string_value(json_object_get(j, "message"));
    const char *hint = json_string_value(json_object_get(j, "hint"));
    int r = errno_of(status);
    if (message && *message)
        hf_err_http(err, r, (int)status, "%s", message);
    else
        hf_err_http(err, r, (int)status, "the server answered with HTTP status %ld", status);
    if (hint && *hint)
        hf_cli_hint(cli, "%s", hint);
    else if (status == 401)
        hf_cli_hint(cli, "set HOLDFAST_API_KEY; on the daemon's host `holdfast key create` makes a key");
    json_decref(j);
    return r;
}

static size_t take_header(char *p, size_t size, size_t n, void *arg)
{
    static const char name[] = "x-next-token:";
    struct hf_answer *a = arg;
    size_t len = size * n, at = sizeof(name) - 1;
    if (len <= at || strncasecmp(p, name, at) != 0)
        return len;
    while (at < len && p[at] == ' ')
        at++;
    size_t end = len;
    while (end > at && (p[end - 1] == '\r' || p[end - 1] == '\n' || p[end - 1] == ' '))
        end--;
    if (end - at < sizeof(a->next_token)) {
        memcpy(a->next_token, p + at, end - at);
        a->next_token[end - at] = '\0';
    }
    return len;
}

struct exchange {
    const char *method, *base;
    char *url;
    struct curl_slist *headers;
    const json_t *body;
};

/* Does it; the status and the body come back, whatever they are. */
static int exchange(struct hf_cli *cli, const struct exchange *x, struct hf_answer *a, struct hf_buf *out,
                    struct hf_err *err)
{
    char errbuf[CURL_ERROR_SIZE];
    hf_auto_free char *text = x->body ? json_dumps(x->body, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (x->body && !text)
        return hf_err_set(err, -EINVAL, "the request is no valid UTF-8 text");
    if (!cli->curl)
        cli->curl = hf_client_easy(cli, x->url, errbuf);
    CURL *c = cli->curl;
    curl_easy_setopt(c, CURLOPT_URL, x->url);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, errbuf);
    errbuf[0] = '\0';
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, HF_CLIENT_CALL_MS);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, x->headers);
    curl_easy_setopt(c, CURLOPT_HTTPGET, 1L);
    if (text) {
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE, (long)strlen(text));
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, text);
    }
    curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, x->method);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, hf_client_collect);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, a);
    CURLcode code = curl_easy_perform(c);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, NULL);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, NULL);
    if (code != CURLE_OK)
        return hf_client_transport_err(cli, x->base, code, errbuf, err);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &a->status);
    return 0;
}

/* The body of a 2xx answer; anything else becomes err. */
static int finish(struct hf_cli *cli, const char *base, struct hf_answer *a, const struct hf_buf *out,
                  struct hf_err *err)
{
    if (a->status < 200 || a->status > 299)
        return hf_client_answer_err(cli, a->status, (struct hf_str){out->p, out->n}, err);
    if (a->status == 204 || out->n == 0)
        return 0;
    a->body = json_loadb(out->p, out->n, JSON_DECODE_ANY, NULL);
    if (!a->body) {
        hf_cli_hint(cli, "check that %s is the address of a holdfast daemon", base);
        return hf_err_set(err, -EBADMSG, "%s answered something that is not JSON", base);
    }
    return 0;
}

int hf_api(struct hf_cli *cli, const char *method, const char *path, const json_t *body,
           struct hf_answer *ret, struct hf_err *err)
{
    hf_auto_free char *url = hf_xasprintf("%s%s", cli->url, path);
    hf_auto_buf struct hf_buf out = HF_BUF_INIT(HF_CLIENT_BODY_MAX);
    struct curl_slist *headers = hf_client_header(NULL, "Accept", "application/json");
    if (cli->api_key)
        headers = hf_client_header(headers, "X-API-KEY", cli->api_key);
    if (body)
        headers = hf_client_header(headers, "Content-Type", "application/json");
    *ret = (struct hf_answer){0};
    struct exchange x = {method, cli->url, url, headers, body};
    int r = exchange(cli, &x, ret, &out, err);
    curl_slist_free_all(headers);
    return r < 0 ? r : finish(cli, cli->url, ret, &out, err);
}

bool hf_box_fate(struct hf_cli *cli, const char *id, char *out, size_t n)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    char hint[sizeof(cli->hint)];
    memcpy(hint, cli->hint, sizeof(hint));
    int r = hf_url_path(&path, "/v1/sandboxes/%s", id);
    if (r == 0)
        r = hf_api(cli, "GET", path.p, NULL, &a, &err);
    memcpy(cli->hint, hint, sizeof(hint)); /* this question is ours; its failure is nobody's concern */
    const char *state = json_string_value(json_object_get(a.body, "state"));
    const char *cause = json_string_value(json_object_get(a.body, "cause"));
    const char *detail = json_string_value(json_object_get(a.body, "detail"));
    if (r < 0 || !state)
        return false;
    if (strcmp(state, "killing") == 0)
        state = "killed"; /* as good as */
    (void)snprintf(out, n, "%s%s%s%s%s%s", state, cause && *cause ? " (" : "", cause ? cause : "",
                   cause && *cause ? ")" : "", detail && *detail ? ": " : "", detail ? detail : "");
    return true;
}

/* A 404 may mean "ended": say so, and why. */
static int not_there(struct hf_cli *cli, const char *id, struct hf_err *err)
{
    char fate[HF_ERR_MSG_MAX / 2];
    if (hf_box_fate(cli, id, fate, sizeof(fate)))
        return hf_err_http(err, -ENOENT, 404, "sandbox %s is gone: %s", id, fate);
    hf_cli_hint(cli, "`holdfast sandbox ls` lists the sandboxes");
    return -ENOENT;
}

int hf_box_detail(struct hf_cli *cli, const char *id, struct hf_answer *ret, struct hf_err *err)
{
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    int r = hf_url_path(&path, "/sandboxes/%s", id);
    if (r < 0)
        return hf_err_set(err, r, "the sandbox id is too long");
    r = hf_api(cli, "GET", path.p, NULL, ret, err);
    return r == -ENOENT ? not_there(cli, id, err) : r;
}

int hf_box_open(struct hf_cli *cli, const char *id, struct hf_box *ret, struct hf_err *err)
{
    hf_auto_answer struct hf_answer a = {0};
    int r = hf_box_detail(cli, id, &a, err);
    if (r < 0)
        return r;
    const char *state = json_string_value(json_object_get(a.body, "state"));
    const char *own = json_string_value(json_object_get(a.body, "sandboxID"));
    const char *token = json_string_value(json_object_get(a.body, "envdAccessToken"));
    if (!own)
        return hf_err_set(err, -EBADMSG, "%s answered without a sandbox id", cli->url);
    if (state && strcmp(state, "running") != 0)
        return hf_err_set(err, -EBUSY, "sandbox %s does not run, it is %s", own, state);
    ret->id = hf_xstrdup(own);
    ret->token = hf_xstrdup(token ? token : "");
    return 0;
}

int hf_box_rpc(struct hf_cli *cli, const struct hf_box *box, const char *method, const json_t *in,
               json_t **ret, struct hf_err *err)
{
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_free char *url = hf_xasprintf("%s%s", cli->sandbox_url, method);
    hf_auto_buf struct hf_buf out = HF_BUF_INIT(HF_CLIENT_BODY_MAX);
    struct curl_slist *headers =
        hf_client_header(hf_box_headers(box, true), "Content-Type", "application/json");
    struct exchange x = {"POST", cli->sandbox_url, url, headers, in};
    int r = exchange(cli, &x, &a, &out, err);
    curl_slist_free_all(headers);
    if (r == 0)
        r = finish(cli, cli->sandbox_url, &a, &out, err);
    if (r == 0 && ret)
        *ret = hf_take_ptr(a.body);
    return r;
}
