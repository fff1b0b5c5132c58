/* Entry of the `holdfast` program: words to verb, environment to settings of a client. */
#include <curl/curl.h>
#include <locale.h>
#include <signal.h>

#include "cli/args.h"
#include "cli/url.h"

#define URL_DEFAULT "http://127.0.0.1:3000"

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* Flags first, then HOLDFAST_*, then E2B's names. */
static int fill(struct hf_cli *cli, const struct hf_args *a, struct hf_err *err)
{
    const char *url = hf_arg(a, "url"), *key = hf_arg(a, "api-key"), *data_plane = NULL;
    cli->json = hf_arg(a, "json") != NULL;
    cli->quiet = hf_arg(a, "quiet") != NULL;
    cli->color = !cli->json && isatty(STDOUT_FILENO) && !env("NO_COLOR");
    if (!url)
        url = env("HOLDFAST_URL");
    if (!url) {
        /* E2B_SANDBOX_URL belongs to E2B_API_URL: with an address of ours it would name another daemon. */
        data_plane = env("E2B_SANDBOX_URL");
        url = env("E2B_API_URL");
    }
    int r = hf_url_base(url ? url : URL_DEFAULT, &cli->owned_url, err);
    if (r == 0)
        r = hf_url_base(data_plane ? data_plane : cli->owned_url, &cli->owned_sandbox_url, err);
    cli->url = cli->owned_url;
    cli->sandbox_url = cli->owned_sandbox_url;
    if (!key)
        key = env("HOLDFAST_API_KEY");
    cli->api_key = key ? key : env("E2B_API_KEY");
    for (const char *p = cli->api_key; r == 0 && p && *p; p++)
        if (*p <= ' ' || *p > '~')
            r = hf_err_set(err, -EINVAL, "the API key holds a character that no key has");
    return r;
}

static int run(struct hf_cli *cli, const struct hf_parsed *p)
{
    struct hf_err err = {0};
    const struct hf_verb *verb = p->path[p->depth - 1];
    if (p->help) {
        /* A bare group is a question as well, but scripts must not take it for success. */
        bool asked = hf_arg(&p->args, "help") != NULL;
        hf_help_print(asked ? stdout : stderr, p->path, p->depth);
        return asked ? HF_EXIT_OK : HF_EXIT_USAGE;
    }
    if (fill(cli, &p->args, &err) < 0)
        return hf_cli_usage(cli, verb, "%s", err.msg);
    return verb->run(cli, &p->args);
}

int main(int argc, char **argv)
{
    struct hf_cli cli = {0};
    struct hf_parsed parsed;
    struct hf_err err = {0};
    int code;
    (void)setlocale(LC_CTYPE, "");
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    if (hf_args_parse(&hf_verb_root, argc, argv, &parsed, &err) < 0) {
        cli.json = hf_arg(&parsed.args, "json") != NULL;
        code = hf_cli_usage(&cli, parsed.path[parsed.depth - 1], "%s", err.msg);
    } else {
        code = run(&cli, &parsed);
    }
    hf_parsed_done(&parsed);
    curl_easy_cleanup(cli.curl);
    curl_global_cleanup();
    free(cli.owned_url);
    free(cli.owned_sandbox_url);
    /* A full disk or a closed pipe behind stdout is an error like any other. */
    if (fflush(stdout) != 0 && code == HF_EXIT_OK) {
        (void)fprintf(stderr, "holdfast: cannot write the output: %s\n", strerror(errno));
        code = HF_EXIT_ERROR;
    }
    return code;
}
