/* holdfast sandbox open PORT ID: a link that opens a port of a sandbox in a browser. */
#include "base/text.h"
#include "cli/args.h"
#include "cli/client.h"
#include "cli/show.h"
#include "cli/url.h"

static const struct hf_opt opts[] = {
    {"expires", 'e', "TIME", "how long the link is good, as in 10m or 2h (default 1h, at most 7d)", NULL},
    {0},
};

static int make_body(const struct hf_args *a, json_t *body, struct hf_err *err)
{
    const char *expires = hf_arg(a, "expires");
    uint64_t port = 0, s = 0;
    if (hf_parse_u64(hf_str_c(a->v[0]), UINT16_MAX, &port) < 0 || port == 0)
        return hf_err_set(err, -EINVAL, "PORT is a number from 1 to 65535, not '%s'", a->v[0]);
    (void)json_object_set_new(body, "port", json_integer((json_int_t)port));
    if (!expires)
        return 0;
    if (hf_parse_seconds(expires, &s) < 0 || s == 0 || s > INT32_MAX)
        return hf_err_set(err, -EINVAL, "--expires takes a time such as 10m or 2h, not '%s'", expires);
    (void)json_object_set_new(body, "expires_in", json_integer((json_int_t)s));
    return 0;
}

static int run(struct hf_cli *cli, const struct hf_args *args)
{
    struct hf_err err = {0};
    hf_auto_answer struct hf_answer a = {0};
    hf_auto_buf struct hf_buf path = HF_BUF_INIT(HF_URL_MAX);
    json_auto_t *body = json_object();
    int r = make_body(args, body, &err);
    if (r == 0 && hf_url_path(&path, "/v1/sandboxes/%s/preview", args->v[1]) < 0)
        r = hf_err_set(&err, -EINVAL, "the sandbox id is too long");
    if (r < 0)
        return hf_cli_usage(cli, args->verb, "%s", err.msg);
    if (hf_api(cli, "POST", path.p, body, &a, &err) < 0)
        return hf_cli_fail(cli, &err);
    if (cli->json)
        hf_show_json(a.body);
    else
        (void)puts(hf_show_str(a.body, "url"));
    return HF_EXIT_OK;
}

const struct hf_verb hf_verb_sandbox_open = {
    .name = "open",
    .summary = "print a link that opens a port in a browser",
    .args = "PORT ID",
    .min_args = 2,
    .max_args = 2,
    .opts = opts,
    .details = "The link is signed and works without any header, also when the sandbox has no public\n"
               "traffic, until it expires or the traffic token is rotated. The browser gets a cookie in\n"
               "exchange for it.",
    .examples = "holdfast sandbox open 8000 i4f0c2k9d7m1q8s3v6x5z\n"
                "xdg-open \"$(holdfast sandbox open 3000 $id --expires 8h)\"",
    .run = run,
};
