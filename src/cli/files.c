#include "cli/files.h"

#include "base/path.h"
#include "cli/url.h"

#define STALL_S 120L /* no byte for this long ends a transfer */

struct transfer {
    struct hf_files *f;
    int fd;
    uint64_t done, total;
    int local; /* -errno of our own side */
    struct hf_buf answer;
};

static size_t on_read(char *p, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    ssize_t got;
    do
        got = read(t->fd, p, size * n);
    while (got < 0 && errno == EINTR);
    if (got < 0) {
        t->local = -errno;
        return CURL_READFUNC_ABORT;
    }
    t->done += (uint64_t)got;
    hf_progress_bytes(&t->f->progress, t->f->bytes + t->done, t->total);
    return (size_t)got;
}

static size_t on_write(char *p, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    long status = 0;
    curl_off_t length = 0;
    curl_easy_getinfo(t->f->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        return hf_client_collect(p, size, n, &t->answer);
    int r = hf_write_all(t->fd, p, size * n);
    if (r < 0) {
        t->local = r;
        return 0;
    }
    t->done += size * n;
    curl_easy_getinfo(t->f->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    hf_progress_bytes(&t->f->progress, t->f->bytes + t->done,
                      length > 0 && t->f->files == 0 ? (uint64_t)length : 0);
    return size * n;
}

static int files_url(const struct hf_files *f, const char *path, struct hf_buf *url, struct hf_err *err)
{
    int r = hf_buf_addf(url, "%s/files", f->cli->sandbox_url);
    if (r == 0)
        r = hf_url_query(url, "path", path);
    if (r == 0)
        r = hf_url_query(url, "username", f->user);
    return r < 0 ? hf_err_set(err, r, "the path is too long") : 0;
}

static CURL *prepare(struct hf_files *f, const char *url, char errbuf[CURL_ERROR_SIZE])
{
    if (!f->curl)
        f->curl = hf_client_easy(f->cli, url, errbuf);
    errbuf[0] = '\0';
    curl_easy_setopt(f->curl, CURLOPT_ERRORBUFFER, errbuf);
    curl_easy_setopt(f->curl, CURLOPT_URL, url);
    curl_easy_setopt(f->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(f->curl, CURLOPT_LOW_SPEED_TIME, STALL_S);
    return f->curl;
}

/* Performs and judges; path is for the message. */
static int perform(struct hf_files *f, struct transfer *t, struct curl_slist *headers, const char *path,
                   const char *errbuf, struct hf_err *err)
{
    long status = 0;
    curl_easy_setopt(f->curl, CURLOPT_HTTPHEADER, headers);
    CURLcode code = curl_easy_perform(f->curl);
    curl_easy_setopt(f->curl, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    curl_easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &status);
    if (t->local < 0)
        return hf_err_set(err, t->local, "%s: on this side: %s", path, strerror(-t->local));
    if (code != CURLE_OK && !(status >= 400 && code == CURLE_SEND_ERROR))
        return hf_client_transport_err(f->cli, f->cli->sandbox_url, code, errbuf, err);
    if (status < 200 || status > 299)
        return hf_client_answer_err(f->cli, status, (struct hf_str){t->answer.p, t->answer.n}, err);
    f->files++;
    f->bytes += t->done;
    return 0;
}

int hf_files_put(struct hf_files *f, int fd, int64_t size, const char *path, struct hf_err *err)
{
    char errbuf[CURL_ERROR_SIZE];
    hf_auto_buf struct hf_buf url = HF_BUF_INIT(HF_URL_MAX);
    struct transfer t = {.f = f, .fd = fd, .total = size > 0 && f->files == 0 ? (uint64_t)size : 0};
    int r = files_url(f, path, &url, err);
    if (r < 0)
        return r;
    t.answer = HF_BUF_INIT(256 * 1024);
    CURL *c = prepare(f, url.p, errbuf);
    struct curl_slist *h =
        hf_client_header(hf_box_headers(f->box, false), "Content-Type", "application/octet-stream");
    /* The sandbox answers errors early anyway; waiting for 100 would cost a round trip a file. */
    h = curl_slist_append(h, "Expect:");
    if (size < 0)
        h = hf_client_header(h, "Transfer-Encoding", "chunked");
    curl_easy_setopt(c, CURLOPT_POST, 1L);
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, NULL);
    curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)size);
    curl_easy_setopt(c, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(c, CURLOPT_READDATA, &t);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, hf_client_collect);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &t.answer);
    r = perform(f, &t, h, path, errbuf, err);
    hf_buf_done(&t.answer);
    return r;
}

int hf_files_get(struct hf_files *f, const char *path, int fd, struct hf_err *err)
{
    char errbuf[CURL_ERROR_SIZE];
    hf_auto_buf struct hf_buf url = HF_BUF_INIT(HF_URL_MAX);
    struct transfer t = {.f = f, .fd = fd};
    int r = files_url(f, path, &url, err);
    if (r < 0)
        return r;
    t.answer = HF_BUF_INIT(256 * 1024);
    CURL *c = prepare(f, url.p, errbuf);
    curl_easy_setopt(c, CURLOPT_HTTPGET, 1L);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_write);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &t);
    r = perform(f, &t, hf_box_headers(f->box, false), path, errbuf, err);
    hf_buf_done(&t.answer);
    return r;
}

/* {"path": path, …} to a method of the filesystem service; takes in. */
static int call(struct hf_files *f, const char *method, json_t *in, json_t **ret, struct hf_err *err)
{
    struct hf_box box = *f->box;
    box.user = f->user;
    hf_auto_free char *full = hf_xasprintf("/filesystem.Filesystem/%s", method);
    if (!in)
        return hf_err_set(err, -EINVAL, "the path is no valid UTF-8 text");
    int r = hf_box_rpc(f->cli, &box, full, in, ret, err);
    json_decref(in);
    return r;
}

int hf_files_stat(struct hf_files *f, const char *path, json_t **ret, struct hf_err *err)
{
    json_t *answer = NULL;
    int r = call(f, "Stat", json_pack("{s:s}", "path", path), &answer, err);
    if (r == 0)
        *ret = json_incref(json_object_get(answer, "entry"));
    json_decref(answer);
    return r;
}

int hf_files_list(struct hf_files *f, const char *path, json_t **ret, struct hf_err *err)
{
    json_t *answer = NULL;
    int r = call(f, "ListDir", json_pack("{s:s, s:i}", "path", path, "depth", 1), &answer, err);
    if (r == 0)
        *ret = json_incref(json_object_get(answer, "entries"));
    json_decref(answer);
    return r;
}

int hf_files_mkdir(struct hf_files *f, const char *path, struct hf_err *err)
{
    struct hf_err mine = {0};
    int r = call(f, "MakeDir", json_pack("{s:s}", "path", path), NULL, &mine);
    if (r == -EBUSY) /* already_exists travels as 409 */
        return 0;
    if (r < 0 && err)
        *err = mine;
    return r;
}

void hf_files_done(struct hf_files *f)
{
    hf_progress_end(&f->progress);
    curl_easy_cleanup(f->curl);
    f->curl = NULL;
}
