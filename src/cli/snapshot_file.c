/* holdfast snapshot export | import: a snapshot as one file. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/path.h"
#include "cli/args.h"
#include "cli/import.h"
#include "cli/show.h"
#include "cli/term.h"
#include "cli/url.h"

/* ---- export ---- */

static const struct hf_opt export_opts[] = {
    {"template", 0, NULL, "put its template into the file, for a machine that lacks it", NULL},
    {0},
};

struct download {
    CURL *curl;
    int fd;
    uint64_t done;
    int local; /* -errno of our own side */
    struct hf_buf answer;
    struct hf_progress progress;
};

static size_t on_write(char *p, size_t size, size_t n, void *arg)
{
    struct download *d = arg;
    long status = 0;
    curl_easy_getinfo(d->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        return hf_client_collect(p, size, n, &d->answer);
    d->local = hf_write_all(d->fd, p, size * n);
    if (d->local < 0)
        return 0;
    d->done += size * n;
    hf_progress_bytes(&d->progress, d->done, 0);
    return size * n;
}

static int get(struct hf_cli *cli, struct download *d, const char *url, struct hf_err *err)
{
    char errbuf[CURL_ERROR_SIZE];
    long status = 0;
    d->curl = hf_client_easy(cli, url, errbuf);
    struct curl_slist *h = cli->api_key ? hf_client_header(NULL, "X-API-KEY", cli->api_key) : NULL;
    curl_easy_setopt(d->curl, CURLOPT_HTTPHEADER, h);
    curl_easy_setopt(d->curl, CURLOPT_WRITEFUNCTION, on_write);
    curl_easy_setopt(d->curl, CURLOPT_WRITEDATA, d);
    CURLcode code = curl_easy_perform(d->curl);
    curl_easy_getinfo(d->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(d->curl);
    curl_slist_free_all(h);
    if (d->local < 0)
        return hf_err_set(err, d->local, "cannot write the file: %s", strerror(-d->local));
    if (code != CURLE_OK)
        return hf_client_transport_err(cli, cli->url, code, errbuf, err);
    return status == 200 ? 0
                         : hf_client_answer_err(cli, status, (struct hf_str){d->answer.p, d->answer.n}, err);
}

/* Half a file must not lie where a whole one is expected: it gets its name at the end. */
static int download(struct hf_cli *cli, const char *url, const char *to, struct hf_err *err)
{
    struct download d = {.answer = HF_BUF_INIT(HF_CLIENT_BODY_MAX)};
    bool is_stdout = strcmp(to, "-") == 0;
    hf_auto_free char *part = hf_xasprintf("%s.part", to);
    hf_auto_close int fd = is_stdout ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                                     : open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return hf_err_set(err, -errno, "%s: %s", is_stdout ? "stdout" : part, strerror(errno));
    d.fd = fd;
    hf_progress_start(&d.progress, cli, "exporting");
    int r = get(cli, &d, url, err);
    hf_progress_end(&d.progress);
    hf_buf_done(&d.answer);
    if (is_stdout)
        return r;
    if (r == 0 && (fsync(fd) < 0 || rename(part, to) < 0))
        r = hf_err_set(err, -errno, "%s: %s", to, strerror(errno));
    if (r < 0)
        (void)unlink(part);
    return r;
}

static int run_export(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_buf struct hf_buf url = HF_BUF_INIT(HF_URL_MAX);
    hf_auto_free char *given = args->n > 1 ? hf_xstrdup(args->v[1]) : hf_xasprintf("%s.hfsnap", args->v[0]);
    int r = hf_buf_adds(&url, cli->url);
    if (r == 0)
        r = hf_url_path(&url, "/v1/snapshots/%s/export", args->v[0]);
    if (r == 0 && hf_arg(args, "template"))
        r = hf_url_query(&url, "template", "true");
    if (r < 0)
        return hf_cli_usage(cli, args->verb, "the snapshot's name is too long");
    if (args->n < 2)
        for (char *p = given; *p; p++)
            *p = (char)(*p == '/' || *p == ':' ? '-' : *p);
    if (strcmp(given, "-") == 0 && isatty(STDOUT_FILENO))
        return hf_cli_usage(cli, args->verb, "name a file, or pipe stdout somewhere");
    if (download(cli, url.p, given, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (strcmp(given, "-") != 0)
        (void)puts(given);
    return HF_EXIT_OK;
}

const struct hf_verb hf_verb_snapshot_export = {
    .name = "export",
    .summary = "write a snapshot into one file",
    .args = "NAME|ID [FILE|-]",
    .min_args = 1,
    .max_args = 2,
    .complete = HF_COMPLETE_SNAPSHOT,
    .opts = export_opts,
    .details =
        "FILE is a tar in zstd (default: NAME.hfsnap here), - is stdout. It holds everything that was in\n"
        "the sandbox's memory and on its disk, secrets included, but no volumes.",
    .examples = "holdfast snapshot export before-upgrade\n"
                "holdfast snapshot export before-upgrade - --template | ssh other holdfast snapshot import",
    .run = run_export,
};

/* ---- import ---- */

static const struct hf_opt import_opts[] = {
    {"name", 'n', "NAME", "NAME or NAME:TAG to find it by", NULL},
    {0},
};

static int run_import(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    struct stat st;
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_buf struct hf_buf url = HF_BUF_INIT(HF_URL_MAX);
    const char *path = args->n ? args->v[0] : "-";
    if (strcmp(path, "-") == 0 && isatty(STDIN_FILENO))
        return hf_cli_usage(cli, args->verb, "name a file of `holdfast snapshot export`, or pipe one in");
    if (strcmp(path, "-") != 0 && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return hf_cli_usage(cli, args->verb, "%s is a folder, not a file of `holdfast snapshot export`",
                            path);
    int r = hf_buf_addf(&url, "%s/v1/snapshots/import", cli->url);
    if (r == 0)
        r = hf_url_query(&url, "name", hf_arg(args, "name"));
    if (r < 0)
        return hf_cli_usage(cli, args->verb, "the name is too long");
    if (hf_upload(cli, url.p, path, path, &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json)
        hf_show_json(a.body);
    else
        (void)puts(hf_show_str(json_object_get(a.body, "snapshot"), "id"));
    return HF_EXIT_OK;
}

const struct hf_verb hf_verb_snapshot_import = {
    .name = "import",
    .summary = "take in a file of `snapshot export`, and print the snapshot's id",
    .args = "[FILE|-]",
    .max_args = 1,
    .complete = HF_COMPLETE_FILE,
    .opts = import_opts,
    .details =
        "Every part is compared with its hash. For keys of the tenant default only: whoever may bring a\n"
        "snapshot decides what this machine's kernel mounts and restores. Bring files you trust.",
    .examples = "holdfast snapshot import before-upgrade.hfsnap --name moved",
    .run = run_import,
};
