#include "cli/import.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include "base/path.h"
#include "cli/term.h"
#include "cli/url.h"

/* ---- a folder as a tar ---- */

static int archive_err(struct archive *a, struct hf_err *err)
{
    int e = archive_errno(a);
    return hf_err_set(err, e > 0 ? -e : -EIO, "%s",
                      archive_error_string(a) ? archive_error_string(a) : "archive error");
}

static int copy_data(struct archive *disk, struct archive *tar, struct hf_err *err)
{
    const void *p;
    size_t n;
    la_int64_t at, done = 0;
    static const char zeros[16384];
    int r;
    while ((r = archive_read_data_block(disk, &p, &n, &at)) == ARCHIVE_OK) {
        /* Holes are blocks that do not come. */
        while (done < at) {
            la_ssize_t w =
                archive_write_data(tar, zeros, (size_t)HF_MIN(at - done, (la_int64_t)sizeof(zeros)));
            if (w < 0)
                return archive_err(tar, err);
            done += w;
        }
        if (n && archive_write_data(tar, p, n) < 0)
            return archive_err(tar, err);
        done += (la_int64_t)n;
    }
    return r == ARCHIVE_EOF ? 0 : archive_err(disk, err);
}

static int write_entry(struct archive *disk, struct archive *tar, struct archive_entry *entry,
                       struct hf_err *err)
{
    int r = archive_write_header(tar, entry);
    if (r < ARCHIVE_WARN)
        return archive_err(tar, err);
    return archive_entry_size(entry) > 0 && archive_entry_filetype(entry) == AE_IFREG
               ? copy_data(disk, tar, err)
               : 0;
}

static int next_entry(struct archive *disk, struct archive *tar, struct archive_entry_linkresolver *links,
                      struct archive_entry *entry, struct hf_err *err)
{
    struct archive_entry *spare = NULL;
    const char *name = archive_entry_pathname(entry);
    if (archive_entry_filetype(entry) == AE_IFSOCK) /* a tar has no sockets, and an image needs none */
        return 0;
    if (name && strncmp(name, "./", 2) == 0 && name[2]) {
        hf_auto_free char *relative = hf_xstrdup(name + 2);
        archive_entry_copy_pathname(entry, relative);
    }
    archive_entry_linkify(links, &entry, &spare);
    return entry ? write_entry(disk, tar, entry, err) : 0;
}

static int copy_tree(struct archive *disk, struct archive *tar, struct hf_err *err)
{
    struct archive_entry_linkresolver *links = archive_entry_linkresolver_new();
    struct archive_entry *entry = archive_entry_new();
    int r = 0;
    archive_entry_linkresolver_set_strategy(links, archive_format(tar));
    while (r == 0) {
        int a = archive_read_next_header2(disk, entry);
        if (a == ARCHIVE_EOF)
            break;
        if (a < ARCHIVE_WARN) {
            const char *name = archive_entry_pathname(entry);
            r = archive_err(disk, err);
            hf_err_wrap(err, "%s", name ? name : "folder");
            break;
        }
        (void)archive_read_disk_descend(disk);
        r = next_entry(disk, tar, links, entry, err);
        archive_entry_clear(entry);
    }
    archive_entry_free(entry);
    archive_entry_linkresolver_free(links);
    return r;
}

int hf_import_tar(int dir_fd, int out_fd, struct hf_err *err)
{
    if (fchdir(dir_fd) < 0)
        return hf_err_set(err, -errno, "cannot enter the folder: %s", strerror(errno));
    struct archive *disk = archive_read_disk_new(), *tar = archive_write_new();
    int r = 0;
    (void)archive_read_disk_set_symlink_physical(disk);
    (void)archive_read_disk_set_behavior(disk, ARCHIVE_READDISK_NO_TRAVERSE_MOUNTS);
    (void)archive_write_set_format_pax_restricted(tar);
    (void)archive_write_set_bytes_in_last_block(tar, 1);
    if (archive_write_open_fd(tar, out_fd) != ARCHIVE_OK)
        r = archive_err(tar, err);
    else if (archive_read_disk_open(disk, ".") != ARCHIVE_OK)
        r = archive_err(disk, err);
    else
        r = copy_tree(disk, tar, err);
    if (archive_write_close(tar) != ARCHIVE_OK && r == 0)
        r = archive_err(tar, err);
    archive_write_free(tar);
    archive_read_free(disk);
    return r;
}

/* ---- the upload ---- */

struct upload {
    struct hf_progress progress;
    int fd;       /* the tar's bytes */
    int64_t size; /* -1 = unknown */
    uint64_t done;
    bool sent; /* everything was read */
    int local; /* -errno of our own side */
    struct hf_buf answer;
    /* the thread that makes a tar of a folder */
    bool threaded;
    pthread_t thread;
    int dir_fd, pipe_w, tar_r;
    struct hf_err tar_err;
};

static void *tar_thread(void *arg)
{
    struct upload *u = arg;
    u->tar_r = hf_import_tar(u->dir_fd, u->pipe_w, &u->tar_err);
    u->pipe_w = hf_close(u->pipe_w);
    return NULL;
}

static size_t on_read(char *p, size_t size, size_t n, void *arg)
{
    struct upload *u = arg;
    ssize_t got;
    do
        got = read(u->fd, p, size * n);
    while (got < 0 && errno == EINTR);
    if (got < 0) {
        u->local = -errno;
        return CURL_READFUNC_ABORT;
    }
    if (got == 0 && u->threaded) {
        /* The end of the pipe is the end of the thread; half a tar must not pass for a whole one. */
        (void)pthread_join(u->thread, NULL);
        u->threaded = false;
        if (u->tar_r < 0)
            return CURL_READFUNC_ABORT;
    }
    u->sent = got == 0;
    u->done += (uint64_t)got;
    return (size_t)got;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    struct upload *u = arg;
    (void)a, (void)b, (void)c, (void)d;
    bool all = u->sent || (u->size >= 0 && u->done >= (uint64_t)u->size);
    if (all && strncmp(u->progress.label, "importing", 9) == 0)
        (void)snprintf(u->progress.label, sizeof(u->progress.label), "the daemon builds the image");
    hf_progress_bytes(&u->progress, all ? 0 : u->done, !all && u->size > 0 ? (uint64_t)u->size : 0);
    return 0;
}

static int open_source(struct upload *u, const char *path, struct hf_err *err)
{
    struct stat st;
    int ends[2];
    bool is_stdin = strcmp(path, "-") == 0;
    u->fd = is_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open(path, O_RDONLY | O_CLOEXEC);
    if (u->fd < 0 || fstat(u->fd, &st) < 0)
        return hf_err_set(err, -errno, "%s: %s", path, strerror(errno));
    u->size = S_ISREG(st.st_mode) && !is_stdin ? st.st_size : -1;
    if (!S_ISDIR(st.st_mode))
        return 0;
    u->dir_fd = u->fd;
    u->fd = -1;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return hf_err_set(err, -errno, "cannot make a pipe: %s", strerror(errno));
    u->fd = ends[0];
    u->pipe_w = ends[1];
    if (pthread_create(&u->thread, NULL, tar_thread, u) != 0)
        return hf_err_set(err, -EAGAIN, "cannot start a thread");
    u->threaded = true;
    return 0;
}

static void close_source(struct upload *u)
{
    /* Closing our end makes the thread's next write fail, so that the join ends. */
    u->fd = hf_close(u->fd);
    if (u->threaded)
        (void)pthread_join(u->thread, NULL);
    u->dir_fd = hf_close(u->dir_fd);
    u->pipe_w = hf_close(u->pipe_w);
    hf_buf_done(&u->answer);
}

static int post(struct hf_cli *cli, struct upload *u, const char *url, struct hf_answer *ret,
                struct hf_err *err)
{
    char errbuf[CURL_ERROR_SIZE];
    CURL *c = hf_client_easy(cli, url, errbuf);
    struct curl_slist *h = hf_client_header(NULL, "Content-Type", "application/x-tar");
    h = hf_client_header(h, "Accept", "application/json");
    h = curl_slist_append(h, "Expect:");
    if (cli->api_key)
        h = hf_client_header(h, "X-API-KEY", cli->api_key);
    if (u->size < 0)
        h = hf_client_header(h, "Transfer-Encoding", "chunked");
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, h);
    curl_easy_setopt(c, CURLOPT_POST, 1L);
    curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)u->size);
    curl_easy_setopt(c, CURLOPT_UPLOAD_BUFFERSIZE, 1024L * 1024L);
    curl_easy_setopt(c, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(c, CURLOPT_READDATA, u);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, hf_client_collect);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &u->answer);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, u);
    CURLcode code = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &ret->status);
    curl_easy_cleanup(c);
    curl_slist_free_all(h);
    if (u->tar_r < 0 && !u->threaded) {
        *err = u->tar_err;
        return err->r;
    }
    if (u->local < 0)
        return hf_err_set(err, u->local, "cannot read the tar: %s", strerror(-u->local));
    if (code != CURLE_OK && !(code == CURLE_SEND_ERROR && ret->status >= 400))
        return hf_client_transport_err(cli, cli->url, code, errbuf, err);
    if (ret->status < 200 || ret->status > 299)
        return hf_client_answer_err(cli, ret->status, (struct hf_str){u->answer.p, u->answer.n}, err);
    ret->body = json_loadb(u->answer.p ? u->answer.p : "", u->answer.n, 0, NULL);
    return ret->body ? 0 : hf_err_set(err, -EBADMSG, "%s answered something that is not JSON", cli->url);
}

int hf_upload(struct hf_cli *cli, const char *url, const char *name, const char *path, struct hf_answer *ret,
              struct hf_err *err)
{
    struct upload u = {.fd = -1, .dir_fd = -1, .pipe_w = -1};
    u.answer = HF_BUF_INIT(HF_CLIENT_BODY_MAX);
    (void)signal(SIGPIPE, SIG_IGN); /* the thread gets EPIPE when the daemon refuses early */
    int r = open_source(&u, path, err);
    if (r == 0) {
        hf_progress_start(&u.progress, cli, "importing %s", name);
        r = post(cli, &u, url, ret, err);
        hf_progress_end(&u.progress);
    }
    close_source(&u);
    return r;
}

int hf_import(struct hf_cli *cli, const char *name, const char *path, bool is_private, struct hf_answer *ret,
              struct hf_err *err)
{
    hf_auto_buf struct hf_buf url = HF_BUF_INIT(HF_URL_MAX);
    int r = hf_buf_addf(&url, "%s/v1/templates", cli->url);
    if (r == 0)
        r = hf_url_query(&url, "name", name);
    if (r == 0 && is_private)
        r = hf_url_query(&url, "public", "false");
    if (r < 0)
        return hf_err_set(err, r, "the template's name is too long");
    return hf_upload(cli, url.p, name, path, ret, err);
}
